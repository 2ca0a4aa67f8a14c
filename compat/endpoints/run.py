#!/usr/bin/env python3
"""Measures what a bad endpoint costs a command: put, get, status and move-leader of `synod` beside those of `etcdctl`,
both with the endpoints of the same three members of Synod, of which the first-named one is healthy, hangs, is silent,
refuses connections, or is cut off from the other members.

    cargo build --release -p synod-cli
    python3 compat/endpoints/run.py --synod target/release/synod

etcdctl 3.7.3 is built from its Go module, unless it is there. All time-outs are the defaults: members run with default
flags, and both programs get no option but the endpoints. Everything runs on this machine. Members reach each other
through relays of this program, so that one can be cut off, and nothing here takes privileges. (An endpoint that is
silent is an address that drops what would open a connection, which works on Linux.) The two programs take turns, each run
is a process of its own, and times are those of the whole process.

What must hold, or the exit code is 1:

- whatever `etcdctl` does, `synod` does as well, and its median time is at most 0.2 s longer; where both fail, it does
  not fail more than 0.2 s later;
- with the first endpoint cut off every put succeeds within 3.5 s.

It takes eight minutes, since etcdctl waits for 5 s at each endpoint that gives no status.
"""

import argparse
import contextlib
import inspect
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from built import VERSION, etcds  # noqa: E402
from checks import wait_for  # noqa: E402
from faults import Relays, Silence  # noqa: E402
from members import COUNT, Members, text  # noqa: E402

# In seconds.
MORE_MAX = 0.2
CUT_OFF_PUT_MAX = 3.5
TO_SETTLE = 30
# Longer than any command takes with its default time-out.
TO_END = 60
COMMANDS = ["put", "get", "status", "move-leader"]


class Cases:
    """Each gives the endpoints in the order in which they are named, and the members that serve clients there."""

    def __init__(self, members, relays):
        self.members, self.relays = members, relays

    @contextlib.contextmanager
    def healthy(self):
        """all healthy"""
        yield self.members.clients, [0, 1, 2]

    @contextlib.contextmanager
    def hung(self):
        """the first hangs"""
        self.members.pause(0)
        yield self.members.clients, [1, 2]
        self.members.resume(0)

    @contextlib.contextmanager
    def silent(self):
        """the first is silent"""
        silence = Silence()
        yield [silence.url, *self.members.clients[1:]], [1, 2]

    @contextlib.contextmanager
    def two_silent(self):
        """the first two are silent"""
        silences = [Silence(), Silence()]
        yield [*(silence.url for silence in silences), self.members.clients[2]], [2]

    @contextlib.contextmanager
    def gone(self):
        """the first is gone"""
        self.members.kill(0)
        yield self.members.clients, [1, 2]
        self.members.start(0)

    @contextlib.contextmanager
    def two_gone(self):
        """the first two are gone"""
        self.members.kill(0)
        self.members.kill(1)
        yield self.members.clients, [2]
        self.members.start(0)
        self.members.start(1)

    @contextlib.contextmanager
    def cut_off(self):
        """the first is cut off"""
        self.relays.cut_off(0)
        yield self.members.clients, [1, 2]
        self.relays.mend()

    ALL = [healthy, hung, silent, two_silent, gone, two_gone, cut_off]


class Run:
    """One way of running one command: its seconds, and whether it did what it should."""

    def __init__(self):
        self.seconds, self.failures = [], []

    def add(self, seconds, failure):
        self.seconds.append(seconds)
        if failure:
            self.failures.append(failure)

    def median(self):
        return statistics.median(self.seconds)

    def shown(self):
        times = f"{self.median():6.3f} ({min(self.seconds):.3f} to {max(self.seconds):.3f})"
        return times + (f", {len(self.failures)} of {len(self.seconds)} fail" if self.failures else "")


class Bench:
    def __init__(self, members, relays, synod, etcdctl, repeats):
        self.members, self.relays, self.repeats = members, relays, repeats
        self.programs = {"synod": synod, "etcdctl": etcdctl}
        listed = members.ask("cluster/member/list", {})["members"]
        self.numbers = {member["name"]: int(member["ID"]) for member in listed}
        # Neither program is told anything but by its arguments.
        theirs = ("SYNOD_", "ETCDCTL_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}

    def words(self, name, command, target):
        """What the program is given for a command."""
        member = self.members.names[target]
        return {
            "put": ["put", "k", "v"],
            "get": ["get", "k"],
            "status": ["status"] if name == "synod" else ["endpoint", "status"],
            "move-leader": ["move-leader", member if name == "synod" else f"{self.numbers[member]:x}"],
        }[command]

    def time(self, name, command, endpoints, serving, target):
        """The seconds that a program took, and why it failed, if it did."""
        words = [self.programs[name], *self.words(name, command, target), f"--endpoints={','.join(endpoints)}"]
        began = time.monotonic()
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=TO_END)
        seconds = time.monotonic() - began
        if command == "status":
            # Both fail if one endpoint gives no status, and must show those that do.
            row = r"(leader|follower|candidate)\b.*" if name == "synod" else ""
            addresses = [self.members.clients[of].partition("://")[2] for of in serving]
            missing = [each for each in addresses if not re.search(rf"{row}{re.escape(each)}\b", done.stdout)]
            return seconds, f"it does not show {', '.join(missing)}" if missing else ""
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return seconds, "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"

    def leader(self, among):
        """Which of these members leads; None if none does."""
        for of in among:
            try:
                status = self.members.ask_member(of, "maintenance/status", {}, seconds=1)
            except OSError:
                continue
            if status.get("leader") == status["header"]["member_id"]:
                return of
        return None

    def serves(self, of):
        try:
            return self.members.ask_member(of, "kv/put", {"key": text("k"), "value": text("v")})
        except OSError:
            return None

    def knows_no_leader(self, of):
        status = self.members.ask_member(of, "maintenance/status", {}, seconds=1)
        return "leader" not in status or status["leader"] == "0"

    def settle_before(self):
        """The second member leads, so that whatever becomes of the first one, there is a leader unless two are gone."""
        self.members.wait_until_serving()
        every = ",".join(self.members.clients)

        def moved():
            if self.leader(range(COUNT)) == 1:
                return True
            words = [self.programs["synod"], "move-leader", self.members.names[1], f"--endpoints={every}"]
            subprocess.run(words, env=self.environment, capture_output=True, timeout=TO_END)
            return False

        wait_for("the second member leads", moved, TO_SETTLE)
        for of in range(COUNT):
            wait_for(f"{self.members.names[of]} serves", lambda: self.serves(of), TO_SETTLE)

    def settle(self, case, serving):
        """A fault is old news to the members that are left."""
        if case is Cases.two_gone:
            wait_for("the last one knows that none leads", lambda: self.knows_no_leader(2), TO_SETTLE)
            return
        for of in serving:
            wait_for(f"{self.members.names[of]} serves", lambda: self.serves(of), TO_SETTLE)
        if case is Cases.cut_off:
            wait_for("the first one misses the leader", lambda: self.knows_no_leader(0), TO_SETTLE)

    def measure(self, case, endpoints, serving):
        """The runs of both programs, by command."""
        runs = {command: {name: Run() for name in self.programs} for command in COMMANDS}
        for command in COMMANDS:
            for repeat in range(self.repeats):
                names = list(self.programs)
                # Each of them is the first one every other time.
                for name in names if repeat % 2 == 0 else reversed(names):
                    target = 2
                    if command == "move-leader" and case is not Cases.two_gone:
                        led = wait_for("somebody leads", lambda: (self.leader([1, 2]) or 0), TO_SETTLE)
                        target = 3 - led
                    runs[command][name].add(*self.time(name, command, endpoints, serving, target))
        return runs

    def play(self, cases):
        """Prints each case; returns what does not hold."""
        broken = []
        print(f"\n{'':24} {'':12} {'synod, seconds':36} {'etcdctl, seconds':36} {'more':>8} {'times':>7}")
        for case in cases:
            name = inspect.getdoc(case)
            self.settle_before()
            with case(Cases(self.members, self.relays)) as (endpoints, serving):
                self.settle(case, serving)
                runs = self.measure(case, endpoints, serving)
            for command, both in runs.items():
                ours, theirs = both.values()
                more, times = ours.median() - theirs.median(), ours.median() / theirs.median()
                why = self.broken(case, command, ours, theirs)
                verdict = f"   DOES NOT HOLD: {'; '.join(why)}" if why else ""
                times_shown = f"{ours.shown():36} {theirs.shown():36} {more:+8.3f} {times:7.2f}"
                print(f"{name:24} {command:12} {times_shown}{verdict}", flush=True)
                broken += [f"{name}, {command}: {each}" for each in why]
        return broken

    @staticmethod
    def broken(case, command, ours, theirs):
        """What does not hold of a command in a case."""
        why = []
        if ours.failures and not theirs.failures:
            why.append(f"etcdctl does it, and synod says: {ours.failures[-1]}")
        if bool(ours.failures) == bool(theirs.failures) and ours.median() > theirs.median() + MORE_MAX:
            why.append(f"more than {MORE_MAX} s longer")
        if case is Cases.cut_off and command == "put" and (ours.failures or max(ours.seconds) > CUT_OFF_PUT_MAX):
            why.append(f"not every put succeeds within {CUT_OFF_PUT_MAX} s")
        return why


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", metavar="PATH", help="the program to test")
    parser.add_argument("--etcdctl", metavar="PATH", help=f"a program in the place of that which Go builds, {VERSION}")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/synod-endpoints",
                        help="where what Go builds is kept")
    parser.add_argument("--repeats", type=int, default=5, help="how often each program runs each command (default 5)")
    parser.add_argument("--only", default="", metavar="WORD", help="only cases with this word in their names")
    parser.add_argument("--flags", default="", metavar="FLAG,...",
                        help="further flags of `synod serve`, such as --protocol=raft")
    parser.add_argument("--keep", action="store_true", help="keep the members' logs, also if all holds")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats: one at least")
    return arguments


def main():
    arguments = parsed()
    synod = Path(arguments.synod).resolve()
    if not synod.exists():
        sys.exit(f"{synod} is not there: cargo build --release -p synod-cli")
    cases = [case for case in Cases.ALL if arguments.only in inspect.getdoc(case)]
    if not cases:
        sys.exit(f"no case has {arguments.only!r} in its name: {', '.join(map(inspect.getdoc, Cases.ALL))}")
    etcdctl = arguments.etcdctl or etcds(arguments.cache, "etcdctl")
    folder = Path(tempfile.mkdtemp(prefix="synod-endpoints-"))
    flags = [flag for flag in arguments.flags.split(",") if flag]
    relays = Relays()
    members = Members([str(synod), "serve"], folder, flags, behind=relays.between)
    broken = ["the run"]
    try:
        members.wait_until_serving()
        broken = Bench(members, relays, str(synod), etcdctl, arguments.repeats).play(cases)
    finally:
        members.stop()
        if broken or arguments.keep:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder)
    print(f"\n{len(broken)} claims do not hold: {' / '.join(broken)}" if broken else "\nall claims hold")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
