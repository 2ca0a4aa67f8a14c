#!/usr/bin/env python3
"""Gives every command of etcdctl to three replicas of Synod and to three members of etcd, and compares the answers: what is
printed, errors, and the exit code.

    cargo build --release -p synod-cli
    python3 compat/etcdctl/run.py --synod target/release/synod

rows.py has the commands. Numbers of members and leases, addresses, hashes, times and the term of the ordering are a cluster's own
and are replaced by names before answers are compared; so is the storage version, which is a server's own. etcd and etcdctl are
built from their Go modules, unless they are there.

The exit code is 1 if an answer differs that is not known to, if one that is known to differ no longer does, or if etcdctl has
a command that no row gives.
"""

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from built import VERSION, etcds  # noqa: E402
from members import COUNT, Members, free_ports  # noqa: E402
from rows import ALL  # noqa: E402

# They ask no server.
LOCAL = {"completion", "help", "options", "version"}
# What a command that goes on may take to print what is waited for.
PATIENCE = 20


class Side:
    """A cluster, and what is the cluster's own in its answers."""

    def __init__(self, name, command, folder, flags, etcdctl, storage_version):
        self.name, self.etcdctl, self.storage_version = name, etcdctl, storage_version
        self.folder = folder / name
        self.folder.mkdir()
        self.members = Members(command, self.folder, flags)
        self.peers = [*self.members.peers, *(f"http://127.0.0.1:{port}" for port in free_ports(2))]
        self.values = {"{folder}": str(self.folder), "{lease}": "0"}
        for of in range(COUNT):
            self.values[f"{{client{of}}}"] = self.members.clients[of]
        for of, peer in enumerate(self.peers):
            self.values[f"{{peer{of}}}"] = peer
        self.names, self.short_names, self.leases = {}, {}, 0

    def begin(self):
        self.members.wait_until_serving()
        listed = self.members.ask("cluster/member/list", {})
        self.named(int(listed["header"]["cluster_id"]), "CLUSTER")
        for of, name in enumerate(self.members.names):
            [number] = [int(member["ID"]) for member in listed["members"] if member["name"] == name]
            self.values[f"{{{name}}}"] = f"{number:x}"
            self.named(number, f"MEMBER-{name}")
        # The second one leads, so that there is something to move.
        leader = self.members.leader()
        if leader != 1:
            self.run(f"move-leader {self.values['{n1}']}", endpoints=self.members.clients[leader])

    def named(self, number, name):
        for text in [f"{number:016x}", f"{number:x}", str(number)]:
            # Synod's first members have the numbers 1 to 3, which are other things too.
            (self.names if len(text) > 8 else self.short_names)[text] = name

    def words(self, command):
        for mark, value in self.values.items():
            command = command.replace(mark, value)
        return shlex.split(command)

    def start(self, command, endpoints=None):
        endpoints = [] if "--endpoints" in command else [f"--endpoints={endpoints or self.members.clients[0]}"]
        words = self.words(command)
        # What follows `--` is a program.
        end = words.index("--") if "--" in words else len(words)
        arguments = [self.etcdctl, *words[:end], *endpoints, *words[end:]]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(arguments, text=True, errors="backslashreplace", **pipes)

    def run(self, command, typed="", endpoints=None):
        """The exit code, what was printed, and the errors."""
        process = self.start(command, endpoints)
        try:
            out, errors = process.communicate(typed, timeout=180)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
            return "no end", out, errors
        return process.returncode, out, errors

    def follow(self, row):
        """Runs a command that goes on until it has printed what is waited for."""
        process = self.start(row.command)
        process.stdin.write(row.typed)
        process.stdin.flush()
        with ThreadPoolExecutor(1) as reading:
            printed = []
            reader = reading.submit(lambda: printed.extend(iter(process.stdout.readline, "")))
            # A watch that has begun prints nothing.
            time.sleep(0.7)
            answers = [self.run(command) for command in row.meanwhile]
            lasts, enough = (1, sys.maxsize) if row.until_lines < 0 else (PATIENCE, row.until_lines)
            until = time.monotonic() + lasts
            while len(printed) < enough and time.monotonic() < until and process.poll() is None:
                time.sleep(0.02)
            ended = process.poll()
            process.send_signal(signal.SIGTERM)
            reader.result()
        errors = process.stderr.read()
        process.wait()
        for code, out, wrong in answers:
            printed.append(f"meanwhile ({code}): {out}{wrong}")
        return "goes on" if ended is None else ended, "".join(printed), errors

    def answer(self, row):
        """What becomes of a row, without what is the cluster's own."""
        code, out, errors = self.follow(row) if row.until_lines else self.run(row.command, row.typed)
        self.learn(out)
        return code, self.common(out, row), self.common(self.plain(errors), row)

    def learn(self, out):
        """Records numbers that the cluster has just given."""
        granted = [int(found, 16) for found in re.findall(r"lease ([0-9a-f]{12,16}) granted", out)]
        granted += [int(found) for found in re.findall(r'"ID":(\d{15,})', out)]
        for number in granted:
            if str(number) not in self.names:
                self.named_lease(number)
                self.values["{lease}"] = f"{number:x}"
        for found in re.findall(r"Member +([0-9a-f]+) added", out):
            self.values["{n3}"] = found
            self.named(int(found, 16), "MEMBER-n3")
        # A lock's name ends with its lease, and a list has those of earlier locks.
        for found in re.findall(r"(?:name/|^)([0-9a-f]{12,16})$", out, re.MULTILINE):
            self.named_lease(int(found, 16))

    def named_lease(self, number):
        if str(number) not in self.names:
            self.leases += 1
            self.named(number, f"LEASE-{self.leases}")

    @staticmethod
    def plain(errors):
        """The client's log without times and places in its source."""
        lines = []
        for line in errors.splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                line = " ".join(str(entry[name]) for name in ["level", "msg", "error"] if name in entry)
            # Bars of progress.
            if not re.search(r"[\d?] p/s", line):
                lines.append(line)
        return "\n".join(lines)

    def common(self, text, row):
        text = text.replace(str(self.folder), "FOLDER")
        for kind, addresses in [("CLIENT", self.members.clients), ("PEER", self.peers)]:
            for of, address in enumerate(addresses):
                text = text.replace(address.removeprefix("http://"), f"{kind}-n{of}")
        for number, name in self.names.items():
            text = re.sub(rf"(?<![0-9a-f]){number}(?![0-9a-f])", name, text)
        # Where a number is a member's.
        before = r'(member_id":|MemberID" : |"leader":|Leader" : )'
        if row.members:
            before = r"(CLIENT-n\d(?:,| +│) +)" if row.command.startswith("endpoint") else r"(^|[^\w.])"
        for number, name in self.short_names.items():
            text = re.sub(rf"{before}{number}(?![\w.])", rf"\1{name}", text, flags=re.MULTILINE)
        text = re.sub(r'("raft_term":|"?RaftTerm"? : )\d+', r"\1TERM", text)
        # Not what a lease is granted for.
        text = re.sub(r"(?<!TTL\()\b\d+(\.\d+)?(ns|µs|ms|s|m\d+(\.\d+)?s)\b", "TIME", text)
        text = re.sub(r'"ttl":\d+', '"ttl":REST', text)
        if "hashkv" in row.command:
            hashes = list(dict.fromkeys(re.findall(r"(?<![\w.])\d{8,10}(?![\w.])", text)))
            for number, found in enumerate(hashes):
                text = re.sub(rf"(?<![\w.]){found}(?![\w.])", f"HASH-{number}", text)
        if row.storage_version:
            text = text.replace(self.storage_version, "STORAGE-VERSION")
        if row.any_numbers:
            # But not versions.
            text = re.sub(r"(?<![\w.])\d+(\.\d+)?(?![\w.])( ?[kMG]?B\b)?", "#", text)
        if row.any_numbers or row.members:
            # Columns are as wide as what they have.
            text = re.sub(r"[-─]{3,}", "---", re.sub(r" {2,}", " ", text))
        if row.any_order_of_words:
            return "\n".join(sorted(re.split(r'[\s,\[\]{}"]+', text)))
        lines = text.rstrip("\n").splitlines()
        return "\n".join(sorted(lines) if row.any_order else lines)


def commands_of(etcdctl, path=()):
    """The commands that etcdctl has, as its help names them."""
    help_text = subprocess.run([etcdctl, *path, "--help"], capture_output=True, text=True, check=True).stdout
    sections = re.findall(r"^[\w -]+ [Cc]ommands:?\n((?:  .+\n)+)", help_text, re.MULTILINE)
    names = re.findall(r"^  (\S+) +\S", "".join(sections), re.MULTILINE)
    if not names:
        if not path:
            sys.exit(f"etcdctl {VERSION} does not tell its commands as it did")
        return [" ".join(path)]
    return [command for name in names if name not in LOCAL for command in commands_of(etcdctl, (*path, name))]


def shown(answer):
    code, out, errors = answer
    return "\n".join(f"      {line}" for line in [f"exit code {code}", *out.splitlines(), *errors.splitlines()])


def is_known(row, ours, theirs):
    """Whether both answers are as it is said of a row that differs."""
    return all(
        code == expected and part in f"{out}\n{errors}"
        for (code, out, errors), (expected, part) in zip((ours, theirs), (row.ours, row.theirs))
    )


def compare(sides, rows, everything):
    """Prints each row and whether the answers are equal; returns the rows of which that is not as it should be."""
    wrong, equal, known = [], 0, 0
    with ThreadPoolExecutor(len(sides)) as both:
        for row in rows:
            ours, theirs = both.map(lambda side: side.answer(row), sides)
            same = ours == theirs
            equal += same
            verdict = "equal" if same else "differs"
            is_right = is_known(row, ours, theirs) if row.differs else same
            if not is_right:
                wrong.append(row.command)
                if same:
                    verdict += ", though it is said to differ"
                else:
                    verdict += ", and not as it should" if row.differs else ", which it should not"
            elif not same:
                known += 1
                verdict += f": {row.differs}"
            print(f"{row.command:60} {verdict}", flush=True)
            if everything or not is_right:
                print(f"   synod:\n{shown(ours)}")
                if not same:
                    print(f"   etcd:\n{shown(theirs)}")
    print(f"\n{len(rows)} commands: {equal} answers are equal, {known} differ as is known, {len(wrong)} not as they should")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", metavar="PATH", help="the program to test")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/synod-etcdctl", help="where what Go builds is kept")
    parser.add_argument("--only", default="", metavar="REGEX",
                        help="only commands that match; those that need others before them may differ then")
    parser.add_argument("--flags", default="", metavar="FLAG,...", help="further flags of `synod serve`, such as --protocol=raft")
    parser.add_argument("--short", action="store_true", help="without the commands that take minutes: check perf and datascale")
    parser.add_argument("--answers", action="store_true", help="print each answer, not only those that differ")
    arguments = parser.parse_args()

    synod = Path(arguments.synod).resolve()
    if not synod.exists():
        sys.exit(f"{synod} is not there: cargo build --release -p synod-cli")
    etcd, etcdctl = etcds(arguments.cache, "etcd"), etcds(arguments.cache, "etcdctl")
    given = [row.command for row in ALL]
    forgotten = [command for command in commands_of(etcdctl) if not any(each.startswith(command) for each in given)]
    if forgotten:
        sys.exit(f"no row has these commands of etcdctl {VERSION}: {', '.join(forgotten)}")
    rows = [row for row in ALL if re.search(arguments.only, row.command) and not (arguments.short and row.long)]
    if not rows:
        sys.exit(f"no command matches {arguments.only!r}")

    with tempfile.TemporaryDirectory(prefix="synod-etcdctl-") as folder:
        flags = [flag for flag in arguments.flags.split(",") if flag]
        sides = []
        try:
            servers = [("synod", [str(synod), "serve"], flags, "3.6.0"), ("etcd", [etcd], [], "3.7.0")]
            for name, command, more, storage in servers:
                sides.append(Side(name, command, Path(folder), more, etcdctl, storage))
            for side in sides:
                side.begin()
            wrong = compare(sides, rows, arguments.answers)
        finally:
            for side in sides:
                side.members.stop()
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
