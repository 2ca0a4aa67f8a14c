#!/usr/bin/env python3
"""Runs Kubernetes' own API server on three replicas of Synod, and checks that it does not notice.

    cargo build --release -p synod-cli
    python3 compat/kubernetes/run.py --synod target/release/synod

`kube-apiserver` is built from its Go module, k8s.io/kubernetes, which Go fetches from the module proxy; that takes a
while the first time. Several clients create, change and delete config maps while a watch follows, and meanwhile the
replica that leads is killed, comes back, and another one is killed. What is checked:

- every object that was created is listed once, with the value that was written last, and no deleted one is;
- the watch saw of each object its creation, its changes and its deletion, each once, in the order of their versions;
- the versions that the watch showed only grew.

A request that failed while a replica was down is asked about before it is sent again, as a careful client does. The exit
code is 1 if something does not hold.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from members import COUNT, Members, free_ports  # noqa: E402

VERSION = "v1.34.4"
MODULE = "k8s.io/kubernetes"
TOKEN = "a-token-for-this-run-only"


def go(arguments, cwd):
    environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
    done = subprocess.run(["go", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"go {' '.join(arguments)}:\n{done.stderr}")
    return done.stdout


def build(cache):
    """Builds kube-apiserver, unless it is there."""
    program = cache / "kube-apiserver"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "go.mod").write_text("module kube\n\ngo 1.24.0\n")
    found = json.loads(go(["mod", "download", "-json", f"{MODULE}@{VERSION}"], cache))
    # The module names the parts of its own repository by their folders. They are modules as well, with a minor version
    # in the place of its major one.
    parts = re.findall(r"^\s+(k8s\.io/[a-z0-9-]+) => \./staging", (Path(found["Dir"]) / "go.mod").read_text(), re.M)
    version = re.sub(r"^v1\.", "v0.", VERSION)
    replaced = "".join(f"\t{part} => {part} {version}\n" for part in parts)
    (cache / "go.mod").write_text(
        f"module kube\n\ngo 1.24.0\n\nrequire {MODULE} {VERSION}\n\nreplace (\n{replaced})\n"
    )
    print("building kube-apiserver", flush=True)
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={VERSION}"
    go(["build", "-ldflags", flags, "-o", str(program), f"{MODULE}/cmd/kube-apiserver"], cache)
    return program


class Kube:
    """The API server, and requests to it."""

    def __init__(self, program, folder, servers, watch_cache):
        self.folder = folder
        (folder / "tokens.csv").write_text(f"{TOKEN},tester,tester,system:masters\n")
        key = folder / "service-accounts.pem"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        [self.port] = free_ports(1)
        command = [
            str(program), "--etcd-servers", ",".join(servers), "--secure-port", str(self.port),
            "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--cert-dir", str(folder / "certificates"),
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
            "--service-cluster-ip-range", "10.0.0.0/24", "--token-auth-file", str(folder / "tokens.csv"),
            "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount",
            f"--watch-cache={'true' if watch_cache else 'false'}", "--etcd-compaction-interval", "10s",
            # A request that a killed replica had takes this long at most before the client tries another.
            "--etcd-healthcheck-timeout", "5s",
        ]
        with (folder / "kube-apiserver.log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        # The certificate is made by the server itself, for this run.
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def open(self, method, path, body=None, timeout=30):
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        return urllib.request.urlopen(request, timeout=timeout, context=self.context)

    def ask(self, method, path, body=None):
        with self.open(method, path, body) as answer:
            return json.load(answer)

    def wait_until_ready(self, seconds):
        deadline = time.time() + seconds
        while time.time() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with self.open("GET", "/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.5)
        tail = (self.folder / "kube-apiserver.log").read_text(errors="replace").splitlines()[-15:]
        sys.exit("kube-apiserver is not ready:\n" + "\n".join(tail))

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


MAPS = "/api/v1/namespaces/default/configmaps"


def config_map(name, value):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": "run"}}, "data": {"value": value}}


def insist(kube, method, name, body, done):
    """Sends a request until it is known to be carried out; returns how often it failed. `done` says of the object, or of
    None, whether it is as the request wants it."""
    failures = 0
    while True:
        try:
            kube.ask(method, MAPS if method == "POST" else f"{MAPS}/{name}", body)
            return failures
        except (urllib.error.URLError, OSError) as error:
            # The answer may be lost although the request was carried out.
            failures += 1
            if failures > 120:
                sys.exit(f"{method} {name} fails again and again: {error}")
        time.sleep(min(0.1 * failures, 1))
        try:
            found = kube.ask("GET", f"{MAPS}/{name}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                continue
            found = None
        except (urllib.error.URLError, OSError):
            continue
        if done(found):
            return failures


class Watch(threading.Thread):
    """Follows the config maps from a version on; goes on from the last version if the stream ends."""

    def __init__(self, kube, version):
        super().__init__(daemon=True)
        self.kube, self.version = kube, version
        self.events, self.streams, self.wrong, self.ended = [], 0, [], False

    def run(self):
        while not self.ended:
            self.streams += 1
            path = f"{MAPS}?watch=1&labelSelector=of%3Drun&allowWatchBookmarks=true&resourceVersion={self.version}"
            try:
                with self.kube.open("GET", path, timeout=60) as stream:
                    for line in stream:
                        self.note(json.loads(line))
            except (urllib.error.URLError, OSError, ValueError):
                time.sleep(0.2)

    def note(self, event):
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            self.wrong.append(f"the watch ends with {found.get('message')}")
            return
        version = int(found["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            self.version = max(self.version, version)
            return
        if version <= self.version:
            self.wrong.append(f"{kind} of {found['metadata']['name']} has version {version}, after {self.version}")
        self.version = version
        self.events.append((kind, found["metadata"]["name"], found["data"]["value"]))


def expected_events(name, deleted):
    events = [("ADDED", name, "first"), ("MODIFIED", name, "second")]
    return events + [("DELETED", name, "second")] if deleted else events


def attack(cluster, objects, progress, ended):
    """Kills the leader when a quarter is done, another replica when half is; each comes back a little later."""
    killed = []
    for share in [0.25, 0.5]:
        while progress() < share * 3 * objects:
            if ended.wait(0.05):
                return killed
        leader = cluster.leader()
        of = leader if share == 0.25 else next(n for n in range(COUNT) if n != leader)
        cluster.kill(of)
        killed.append(of)
        print(f"killed replica n{of}", flush=True)
        ended.wait(3)
        cluster.start(of)
        ended.wait(3)
    return killed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", help="the program to test")
    cache = os.environ.get("SYNOD_KUBE_CACHE", str(Path.home() / ".cache" / "synod-kube"))
    parser.add_argument("--cache", default=cache, help="where what Go builds is kept")
    parser.add_argument("--objects", type=int, default=2000, help="config maps that are created, changed, and half of them deleted")
    parser.add_argument("--clients", type=int, default=8, help="requests at the same time")
    parser.add_argument("--no-watch-cache", action="store_true", help="each watch of the API server is one of the store")
    parser.add_argument("--flags", default="", metavar="FLAG,...", help="further flags of `synod serve`")
    arguments = parser.parse_args()
    synod = str(Path(arguments.synod).resolve())
    if not Path(synod).exists():
        sys.exit(f"{synod} is not there: cargo build --release -p synod-cli")
    program = build(Path(arguments.cache).resolve())
    folder = Path(tempfile.mkdtemp(prefix="synod-kube-"))
    cluster = Members([synod, "serve"], folder, [flag for flag in arguments.flags.split(",") if flag])
    kube = Kube(program, folder, cluster.clients, not arguments.no_watch_cache)
    try:
        kube.wait_until_ready(120)
        wrong = run(kube, cluster, arguments)
    finally:
        kube.stop()
        cluster.stop()
    if wrong:
        print("does not hold:\n  " + "\n  ".join(wrong[:20]) + f"\nlogs: {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    print("everything holds")


def run(kube, cluster, arguments):
    version = int(kube.ask("GET", MAPS)["metadata"]["resourceVersion"])
    watch = Watch(kube, version)
    watch.start()
    names = [f"map-{n:05}" for n in range(arguments.objects)]
    deleted = set(names[::2])
    done, failures, began, ended = [], [], time.time(), threading.Event()
    killed = []
    killer = threading.Thread(
        target=lambda: killed.extend(attack(cluster, len(names), lambda: len(done), ended)), daemon=True
    )
    killer.start()

    def one(name):
        value = lambda found: found and found["data"]["value"]
        failed = insist(kube, "POST", name, config_map(name, "first"), lambda found: value(found) == "first")
        done.append(name)
        failed += insist(kube, "PUT", name, config_map(name, "second"), lambda found: value(found) == "second")
        done.append(name)
        if name in deleted:
            failed += insist(kube, "DELETE", name, None, lambda found: found is None)
        done.append(name)
        failures.append(failed)

    with concurrent.futures.ThreadPoolExecutor(arguments.clients) as clients:
        list(clients.map(one, names))
    seconds = time.time() - began
    ended.set()
    killer.join()

    kept = [name for name in names if name not in deleted]
    expected = sum(len(expected_events(name, name in deleted)) for name in names)
    deadline = time.time() + 60
    while len(watch.events) < expected and time.time() < deadline:
        time.sleep(0.1)
    watch.ended = True
    wrong = list(watch.wrong)
    by_name = {}
    for event in watch.events:
        by_name.setdefault(event[1], []).append(event)
    for name in names:
        seen = by_name.get(name, [])
        if seen != expected_events(name, name in deleted):
            wrong.append(f"the watch saw of {name}: {[kind for kind, _, _ in seen]}")
    items = kube.ask("GET", f"{MAPS}?labelSelector=of%3Drun")["items"]
    listed = {item["metadata"]["name"]: item["data"]["value"] for item in items}
    if listed != dict.fromkeys(kept, "second"):
        wrong.append(f"{len(listed)} config maps are listed, of {len(kept)}")
    if not killed:
        wrong.append("no replica was killed: there were too few objects")
    requests = expected
    print(
        f"{len(names)} config maps: {requests} requests in {seconds:.1f} s ({requests / seconds:.0f} a second), "
        f"{sum(failures)} of them failed at first; {len(watch.events)} events in {watch.streams} streams; "
        f"killed: {', '.join(f'n{of}' for of in killed)}"
    )
    return wrong


if __name__ == "__main__":
    main()
