#!/usr/bin/env python3
"""Leads a Synod's state to an etcd and back: saves a snapshot with etcdctl and with synod, looks at it and restores it with
etcdutl, starts a real etcd on the restored folder, saves a snapshot there, and restores Synods from each file and from the
database of the etcd that was stopped. It compares what all of them answer: keys with all their numbers, at every revision
that is not compacted, events since then, leases with their keys, users and roles, alarms, and etcd's hash of the history.

    cargo build -p synod-cli
    python3 compat/way-back/run.py --synod target/debug/synod

etcd 3.7.3, etcdctl and etcdutl are built from their Go modules in `--cache`, unless they are there; `--etcd` names another
server, such as an older version.
"""

import base64
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from built import etcds  # noqa: E402
from measured import arguments_of, etcd_of  # noqa: E402

SYNOD, ETCD = "127.0.0.1:23791", "127.0.0.1:23793"
PEERS = {SYNOD: "127.0.0.1:23792", ETCD: "127.0.0.1:23794"}


def started(command, log, address):
    process = subprocess.Popen(command, stdout=log, stderr=log)
    until = time.time() + 60
    while time.time() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{address}/health?exclude=NOSPACE", timeout=1) as page:
                if json.load(page)["health"] == "true":
                    return process
        except (OSError, ValueError):
            time.sleep(0.1)
    process.kill()
    sys.exit(f"{command[0]} does not serve; see {log.name}")


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.wait(30)


class Tools:
    def __init__(self, cache):
        self.programs = {name: etcds(cache, name) for name in ["etcdctl", "etcdutl"]}

    def ctl(self, address, *arguments):
        command = [self.programs["etcdctl"], f"--endpoints=http://{address}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"etcdctl {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def utl(self, *arguments):
        done = subprocess.run([self.programs["etcdutl"], *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"etcdutl {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout


def live(draw):
    """A life of a store: puts, deletions, transactions, leases, large values, a compaction, users and roles, an alarm."""
    put = lambda key, value, **more: posted(SYNOD, "/v3/kv/put", {"key": text(key), "value": text(value), **more})
    leases = [posted(SYNOD, "/v3/lease/grant", {"TTL": 3600})["ID"] for _ in range(3)]
    for number in range(400):
        key = f"key/{draw.randrange(25)}"
        choice = draw.randrange(10)
        if choice < 2:
            posted(SYNOD, "/v3/kv/deleterange", {"key": text(key)})
        elif choice == 2:
            posted(SYNOD, "/v3/kv/deleterange", {"key": text("key/1"), "range_end": text("key/2")})
        elif choice == 3:
            several = [{"request_put": {"key": text(f"{key}/{sub}"), "value": text("v")}} for sub in range(5)]
            posted(SYNOD, "/v3/kv/txn", {"success": several})
        elif choice < 6:
            put(key, "leased", lease=draw.choice(leases))
        elif choice == 6:
            put(key, "long" * draw.randrange(20_000))
        else:
            put(key, f"value {number}")
        if number == 200:
            revision = int(posted(SYNOD, "/v3/kv/range", {"key": text("x")})["header"]["revision"])
            posted(SYNOD, "/v3/kv/compaction", {"revision": revision - 50})
    for number in range(4_000):
        put(f"many/{number:06}", "v" * (number % 400))
    for name, end in [("reader", "key0"), ("all", "\0")]:
        posted(SYNOD, "/v3/auth/role/add", {"name": name})
        perm = {"permType": draw.choice(["READ", "READWRITE"]), "key": text("key/"), "range_end": text(end)}
        posted(SYNOD, "/v3/auth/role/grant", {"name": name, "perm": perm})
    for name in ["ann", "bob"]:
        posted(SYNOD, "/v3/auth/user/add", {"name": name, "password": f"secret of {name}"})
        posted(SYNOD, "/v3/auth/user/grant", {"user": name, "role": "reader"})
    posted(SYNOD, "/v3/auth/user/add", {"name": "certified", "options": {"no_password": True}})
    # Nothing can be written from now on.
    posted(SYNOD, "/v3/maintenance/alarm", {"action": "ACTIVATE", "memberID": "77", "alarm": "NOSPACE"})


def text(content):
    return base64.b64encode(content.encode()).decode()


def posted(address, path, request):
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(request).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def answers(tools, address):
    """What a server says of all that a snapshot holds."""
    def keys(revision):
        return posted(address, "/v3/kv/range", {"key": text("\0"), "range_end": text("\0"), "revision": revision})

    def hashed(revision):
        try:
            told = posted(address, "/v3/maintenance/hashkv", {"revision": revision})
        except urllib.error.HTTPError:
            # The gateway has it since etcd 3.6.
            told = tools.ctl(address, "endpoint", "hashkv", f"--rev={revision}", "-w", "json")
            told = json.loads(told)[0]["HashKV"]
        return [int(told["hash"]), int(told["compact_revision"])]

    told = {}
    present = int(keys(0)["header"]["revision"])
    told["revision"], told["hash"] = present, hashed(0)
    compacted = told["hash"][1]
    for revision in [*range(compacted, present, max(1, (present - compacted) // 50)), present]:
        told[f"keys at {revision}"] = keys(revision).get("kvs", [])
    # The hash of the compaction's own revision is not in a snapshot.
    for revision in range(compacted + 1, present, max(1, (present - compacted) // 50)):
        told[f"hash at {revision}"] = hashed(revision)
    for lease in posted(address, "/v3/lease/leases", {}).get("leases", []):
        found = posted(address, "/v3/lease/timetolive", {"ID": lease["ID"], "keys": True})
        told[f"lease {lease['ID']}"] = (found["grantedTTL"], sorted(found.get("keys", [])))
    for kind, path, field in [("user", "user", "users"), ("role", "role", "roles")]:
        for name in posted(address, f"/v3/auth/{path}/list", {}).get(field, []):
            told[f"{kind} {name}"] = without_header(posted(address, f"/v3/auth/{path}/get", {kind if kind == "role" else "name": name}))
    told["alarms"] = without_header(posted(address, "/v3/maintenance/alarm", {}))
    told["events"] = events(address, compacted + 1, present)
    try:
        keys(compacted - 1)
    except urllib.error.HTTPError as error:
        told["before the compaction"] = (error.code, json.load(error)["message"])
    return told


def events(address, first, last):
    """All events of these revisions, as a watch that begins with the first one tells them."""
    watch = {"create_request": {"key": text("\0"), "range_end": text("\0"), "start_revision": first}}
    request = urllib.request.Request(f"http://{address}/v3/watch", json.dumps(watch).encode())
    told = []
    with urllib.request.urlopen(request, timeout=60) as lines:
        while not told or int(told[-1]["kv"]["mod_revision"]) < last:
            told += json.loads(lines.readline())["result"].get("events", [])
    return told


def without_header(answer):
    return {name: value for name, value in answer.items() if name != "header"}


def flags_of_synod(data):
    return [
        "--name=s1", f"--data-dir={data}",
        f"--listen-client-urls=http://{SYNOD}", f"--advertise-client-urls=http://{SYNOD}",
        f"--listen-peer-urls=http://{PEERS[SYNOD]}", f"--initial-advertise-peer-urls=http://{PEERS[SYNOD]}",
        f"--initial-cluster=s1=http://{PEERS[SYNOD]}",
    ]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command[:3]))}: {done.stderr}")
    return done.stdout


def compare(what, expected, found, folder, but=()):
    names = sorted((expected.keys() | found.keys()) - set(but))
    differs = [name for name in names if expected.get(name) != found.get(name)]
    for name in differs[:10]:
        print(f"{name}: {str(expected.get(name))[:300]}, {what} {str(found.get(name))[:300]}")
    if differs:
        sys.exit(f"{len(differs)} of {len(names)} answers differ; see {folder}")
    print(f"{what} gives the same {len(names)} answers")


def main():
    parser = arguments_of(__doc__, "synod-way-back")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    etcd = etcd_of(arguments)
    tools = Tools(arguments.cache)
    folder = Path(tempfile.mkdtemp(prefix="way-back-", dir=arguments.dir))
    log = open(folder / "log", "w")
    synod = arguments.synod
    server = started([synod, "serve", *flags_of_synod(folder / "synod")], log, SYNOD)
    try:
        live(random.Random(arguments.seed))
        before = answers(tools, SYNOD)
        file, own = folder / "snapshot.db", folder / "own.db"
        tools.ctl(SYNOD, "snapshot", "save", str(file))
        run(synod, "snapshot", "save", own, f"--endpoints=http://{SYNOD}")
        after = answers(tools, SYNOD)
    finally:
        stop(server)
    if before != after:
        sys.exit("a snapshot has changed the store")
    status = json.loads(tools.utl("snapshot", "status", str(file), "-w", "json"))
    print(f"snapshot: {status}")
    if status != json.loads(run(synod, "snapshot", "status", file, "-w", "json")):
        sys.exit("synod says something else of it")
    keys = len(before[f"keys at {before['revision']}"])
    if (status["revision"], status["totalKey"]) != (before["revision"], keys):
        sys.exit(f"the snapshot should have {keys} keys at revision {before['revision']}")
    if status["totalSize"] + 32 != file.stat().st_size:
        sys.exit("the file has another size than it says")
    peer = f"http://{PEERS[ETCD]}"
    restored = folder / "etcd"
    tools.utl("snapshot", "restore", str(file), "--name=e1", f"--data-dir={restored}",
              f"--initial-cluster=e1={peer}", f"--initial-advertise-peer-urls={peer}")
    command = [
        str(etcd), "--name=e1", f"--data-dir={restored}", f"--listen-client-urls=http://{ETCD}",
        f"--advertise-client-urls=http://{ETCD}", f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=e1={peer}",
    ]
    server = started(command, log, ETCD)
    try:
        version = json.load(urllib.request.urlopen(f"http://{ETCD}/version"))["etcdserver"]
        compare(f"etcd {version}", before, answers(tools, ETCD), folder)
        of_etcd = folder / "etcd.db"
        tools.ctl(ETCD, "snapshot", "save", str(of_etcd))
        tools.ctl(ETCD, "alarm", "disarm")
        tools.ctl(ETCD, "put", "goes", "on")
        tools.ctl(ETCD, "user", "add", "root:root")
        tools.ctl(ETCD, "user", "grant-role", "root", "root")
        tools.ctl(ETCD, "auth", "enable")
        # The hash of the password has come along.
        tools.ctl(ETCD, "--user=ann:secret of ann", "get", "key/1")
        tools.ctl(ETCD, "--user=root:root", "auth", "disable")
        last = answers(tools, ETCD)
    finally:
        stop(server)
    status = json.loads(tools.utl("snapshot", "status", str(of_etcd), "-w", "json"))
    if status != json.loads(run(synod, "snapshot", "status", of_etcd, "-w", "json")):
        sys.exit("synod says something else of etcd's snapshot")
    # Alarms name a member of the cluster that was saved.
    for name, backup, expected, more in [
        ("own", own, before, []),
        ("of-etcd", of_etcd, before, []),
        ("merged", of_etcd, before, ["--groups=merge:2"]),
        ("bare", restored / "member" / "snap" / "db", last, ["--skip-hash-check"]),
    ]:
        flags = [*flags_of_synod(folder / name), *more]
        run(synod, "snapshot", "restore", backup, *flags)
        serving = [flag for flag in flags if flag != "--skip-hash-check"]
        server = started([synod, "serve", *serving], log, SYNOD)
        try:
            compare(f"Synod, restored from {backup.name} as {name},", expected, answers(tools, SYNOD), folder, ["alarms"])
            run(synod, "put", "goes", "further", f"--endpoints=http://{SYNOD}")
        finally:
            stop(server)


if __name__ == "__main__":
    main()
