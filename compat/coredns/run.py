#!/usr/bin/env python3
"""Runs CoreDNS, a DNS server, with records that it reads from three replicas of Synod, and checks what it answers.

    cargo build --release -p synod-cli
    python3 compat/coredns/run.py --synod target/release/synod

CoreDNS is built by Go from its module with its plug-in `etcd`, which asks the store for each question that it is asked, through
etcd's own client. Records are put, changed, deleted, and given leases. Meanwhile a client asks for a record every 20 ms: while
replicas of Synod are killed, stopped, and all killed at once, its answers must be that record, or a failure for a while; never
another value, and never that there is no such name. A table tells each check, its result and its
seconds; the exit code is 1 if one failed.

With --tls there are TLS with certificates on both sides, and a user with a password who may read the records only. With --etcd
the same checks run on etcd, for comparison.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import dns  # noqa: E402
from certificates import certificates  # noqa: E402
from checks import arguments_of, must, play, print_table, program_of, reconfigure, wait_for  # noqa: E402
from members import COUNT, Members, free_ports, text  # noqa: E402

VERSION = "v1.14.7"
MODULE = "github.com/coredns/coredns"
# CoreDNS with the plug-ins that are needed here; all of them take several times as long to build.
PROGRAM = f"""package main

import (
	_ "{MODULE}/plugin/errors"
	_ "{MODULE}/plugin/etcd"

	"{MODULE}/core/dnsserver"
	"{MODULE}/coremain"
)

func main() {{
	dnsserver.Directives = []string{{"errors", "etcd"}}
	coremain.Run()
}}
"""
PATH = "/skydns"
ZONE = "synod.test"
# Seconds. A change is seen by the next question; a killed replica is noticed at once; the client of etcd waits for one that is
# silent until its pings fail (5 s, and their time-out of 20 s), but asks the plug-in again itself after 5 s.
SILENT_MAX = 30
KILLED_MAX = 6


def go(arguments, cwd):
    environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
    done = subprocess.run(["go", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"go {' '.join(arguments)}:\n{done.stderr}")


def build(cache):
    """Builds CoreDNS, unless it is there."""
    program = cache / f"coredns-{VERSION}"
    if not program.exists():
        print(f"building CoreDNS {VERSION}", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "go.mod").write_text(f"module dns\n\ngo 1.24.0\n\nrequire {MODULE} {VERSION}\n")
        (cache / "main.go").write_text(PROGRAM)
        go(["mod", "tidy"], cache)
        go(["build", "-ldflags", "-s -w", "-o", str(program), "."], cache)
    return program


class CoreDns:
    """The server, and questions to it."""

    def __init__(self, program, folder, members, password):
        [self.port] = free_ports(1)
        lines = [f"path {PATH}", f"endpoint {' '.join(members.clients)}"]
        if members.files:
            files = members.files
            lines += [f"tls {files}/client.pem {files}/client.key {files}/ca.pem", f"credentials coredns {password}"]
        settings = "\n        ".join(lines)
        (folder / "Corefile").write_text(f"{ZONE}:{self.port} {{\n    errors\n    etcd {{\n        {settings}\n    }}\n}}\n")
        with (folder / "coredns.log").open("w") as log:
            command = [str(program), "-conf", str(folder / "Corefile")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, name, kind="A", seconds=8.0):
        """The answer; ("no answer", []) if there is none."""
        try:
            return dns.ask(self.port, f"{name}.{ZONE}", kind, seconds)
        except OSError:
            return "no answer", []

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Asker(threading.Thread):
    """Asks for a record that does not change all the time; notes when the answer was right, and what else was answered."""

    def __init__(self, server, name, value):
        super().__init__(daemon=True)
        self.server, self.name, self.value = server, name, value
        self.ended, self.right, self.failed, self.wrong = threading.Event(), [], 0, []

    def run(self):
        while not self.ended.is_set():
            code, found = self.server.ask(self.name)
            if (code, found) == ("NOERROR", [self.value]):
                self.right.append(time.monotonic())
            elif code in ("SERVFAIL", "no answer"):
                self.failed += 1
            else:
                self.wrong.append((code, found))
            self.ended.wait(0.02)

    def missed(self, since):
        """The longest time without a right answer since then."""
        times = [since, *(at for at in list(self.right) if at > since), time.monotonic()]
        return max(after - before for before, after in zip(times, times[1:]))


class Run:
    """The checks, in their order. Each returns what it saw, as a text, or raises."""

    def __init__(self, members, server, synod, flags):
        self.members, self.server, self.synod, self.flags = members, server, synod, flags
        self.puts = 0
        self.asker = Asker(server, "steady", "10.0.0.1")

    def key(self, name):
        return PATH + "/" + "/".join(reversed(f"{name}.{ZONE}".split(".")))

    def put(self, name, record, lease=None):
        more = {"lease": lease} if lease else {}
        self.members.ask("kv/put", {"key": text(self.key(name)), "value": text(json.dumps(record)), **more})

    def delete(self, name):
        self.members.ask("kv/deleterange", {"key": text(self.key(name))})

    def sees_changes(self):
        """A change that was answered is seen by the next question."""
        self.puts += 1
        value = f"10.1.{self.puts // 250}.{self.puts % 250}"
        self.put("changes", {"host": value})
        code, found = self.server.ask("changes")
        must((code, found) == ("NOERROR", [value]), f"{value} was put, and the answer is {code} {found}")
        return value

    def begin(self):
        """CoreDNS answers"""
        self.put("steady", {"host": "10.0.0.1"})
        wait_for("the record is answered", lambda: self.server.ask("steady", seconds=1) == ("NOERROR", ["10.0.0.1"]), 30)
        self.asker.start()
        return "steady A 10.0.0.1"

    def changes(self):
        """a changed record"""
        for _ in range(100):
            self.sees_changes()
        self.delete("changes")
        code, found = self.server.ask("changes")
        must((code, found) == ("NXDOMAIN", []), f"after its deletion the answer is {code} {found}")
        return "each of 100 changes is seen by the next question, and the deletion"

    def kinds(self):
        """SRV, AAAA, TXT, several hosts"""
        self.put("a.web", {"host": "10.2.0.1", "port": 80, "priority": 10, "weight": 60})
        self.put("b.web", {"host": "10.2.0.2", "port": 8080, "priority": 20, "weight": 5})
        self.put("six", {"host": "2001:db8::1"})
        self.put("words", {"text": "of a record"})
        expected = {
            ("web", "A"): ["10.2.0.1", "10.2.0.2"],
            ("web", "SRV"): [f"10 100 80 a.web.{ZONE}.", f"20 100 8080 b.web.{ZONE}."],
            ("six", "AAAA"): ["2001:db8::1"],
            ("words", "TXT"): ["of a record"],
        }
        for (name, kind), wanted in expected.items():
            code, found = self.server.ask(name, kind)
            must((code, found) == ("NOERROR", wanted), f"{name} {kind} is {code} {found}")
        return f"{len(expected)} kinds"

    def lease(self):
        """a record with a lease"""
        seconds = 5
        lease = self.members.ask("lease/grant", {"TTL": seconds})["ID"]
        began = time.monotonic()
        self.put("leased", {"host": "10.3.0.1"}, lease)
        must(self.server.ask("leased") == ("NOERROR", ["10.3.0.1"]), "it is not there")
        wait_for("it is gone", lambda: self.server.ask("leased") == ("NXDOMAIN", []), 3 * seconds)
        took = time.monotonic() - began
        must(took > seconds - 0.5, f"its lease of {seconds} s ended after {took:.1f} s")
        return f"a lease of {seconds} s ends after {took:.1f} s"

    def undisturbed(self, disturb, missed_max):
        """Runs something during which right answers may be missing so long at most."""
        began, failed = time.monotonic(), self.asker.failed
        disturb()
        self.sees_changes()
        missed = self.asker.missed(began)
        must(missed < missed_max, f"no right answer for {missed:.1f} s")
        return f"longest time without a right answer {missed:.2f} s, {self.asker.failed - failed} failures"

    def one_after_another_killed(self):
        """each replica is killed"""
        def disturb():
            first = self.members.leader()
            for of in [first, *(of for of in range(COUNT) if of != first)]:
                self.members.kill(of)
                until = time.monotonic() + 3
                # With the first question the client may still wait for the one that is gone.
                wait_for("changes are seen", lambda: self.server.ask("steady")[0] == "NOERROR", KILLED_MAX)
                while time.monotonic() < until:
                    self.sees_changes()
                    time.sleep(0.1)
                self.members.start(of)
                self.members.wait_until_serving([of])

        return self.undisturbed(disturb, KILLED_MAX)

    def leader_is_stopped(self):
        """the leader is silent"""
        def disturb():
            of = self.members.leader()
            self.members.pause(of)
            time.sleep(10)
            self.members.resume(of)
            self.members.wait_until_serving([of])
            wait_for("answers again", lambda: self.server.ask("steady")[0] == "NOERROR", SILENT_MAX)

        return self.undisturbed(disturb, SILENT_MAX)

    def store_is_started_again(self):
        """all replicas are killed, and start again"""
        def disturb():
            for of in range(COUNT):
                self.members.kill(of)
            time.sleep(3)
            for of in range(COUNT):
                self.members.start(of)
            self.members.wait_until_serving()
            wait_for("answers again", lambda: self.server.ask("steady")[0] == "NOERROR", SILENT_MAX)

        return self.undisturbed(disturb, SILENT_MAX)

    def protocol_is_changed(self):
        """the protocol is changed"""
        if not self.synod:
            return "etcd has one only"
        if self.flags:
            return "left out, since there are further flags"

        def disturb():
            for protocol in ["raft", "sequence-paxos", "multipaxos"]:
                reconfigure(self.synod, self.members, protocol)
                self.sees_changes()

        return self.undisturbed(disturb, KILLED_MAX)

    def only_right(self):
        """no wrong answer"""
        self.asker.ended.set()
        self.asker.join(15)
        must(not self.asker.wrong, f"{len(self.asker.wrong)}, such as {self.asker.wrong[:3]}")
        return f"{len(self.asker.right)} right answers, {self.asker.failed} failures"

    ORDER = [
        changes, kinds, lease, one_after_another_killed, leader_is_stopped, store_is_started_again, protocol_is_changed, only_right,
    ]

    def mend(self):
        """Starts what a check that failed has left killed."""
        for of in range(COUNT):
            if self.members.processes[of].poll() is not None:
                self.members.start(of)
            self.members.resume(of)
        self.members.wait_until_serving()


def main():
    parser = arguments_of(__doc__, "CoreDNS")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "synod-coredns", help="where what Go builds is kept")
    arguments = parser.parse_args()
    program, command = program_of(arguments)
    coredns = build(arguments.cache.resolve())
    folder = Path(tempfile.mkdtemp(prefix="synod-coredns-"))
    files = certificates(folder / "certificates", ("server", "client")) if arguments.tls else None
    flags = [flag for flag in arguments.flags.split(",") if flag]
    members, server, failed = Members(command, folder, flags, files), None, ["the cluster"]
    try:
        members.wait_until_serving()
        password = secrets.token_hex(12)
        if arguments.tls:
            members.require_passwords(secrets.token_hex(12), "coredns", password, f"{PATH}/", "READ")
        server = CoreDns(coredns, folder, members, password)
        run = Run(members, server, None if arguments.etcd else program, flags)
        failed = print_table(play(run, Run.begin, Run.ORDER, arguments.only, run.mend))
    except RuntimeError as error:
        print(f"the cluster does not begin: {error}")
    finally:
        if server:
            server.stop()
        members.stop()
    if failed or arguments.keep:
        print(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
