#!/usr/bin/env python3
"""Runs etcd's robustness suite on Synod: traffic, a fault meanwhile, and the suite's checks of all that clients saw.

    cargo build --release -p synod-cli
    python3 compat/etcd-robustness/run.py                                        # every ordering with every failpoint
    python3 compat/etcd-robustness/run.py --serve=--protocol=raft --failpoint KillLeader --traffic KubernetesHighTraffic
    python3 compat/etcd-robustness/run.py --serve='--groups=merge:3 --protocol=ring' --seconds 30
    python3 compat/etcd-robustness/run.py --quick --synod target/debug/synod     # what CI runs
    python3 compat/etcd-robustness/run.py --control                              # runs that must be refused

The program beside this one is built around the Go module go.etcd.io/etcd/tests/v3, of which nothing is in this tree. Where the
suite starts `etcd`, compat/etcd-e2e/etcd.sh starts `synod serve`; where it reads etcd's log, the program follows what each member
decides. Each run begins a cluster of three, with snapshots and time-outs that the suite draws, and ends with the suite's checks:
linearizability, watches, serializable reads, and equal contents.

Without --traffic, the runs take the suite's four profiles in turn. Failpoints that cut the power need root, mkfs.ext4 and loop
devices, and are left out elsewhere. The logs of a run that fails stay in --logs, with its history in the suite's format. The
exit code is 1 if a run fails, or if a control does not.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = "go.etcd.io/etcd/tests/v3"
PROTOCOLS = ["multipaxos", "sequence-paxos", "raft", "ring"]
DISSEMINATIONS = ["leader", "references", "balanced"]
SERVERS = [
    *(f"--protocol={protocol} --dissemination={how}" for protocol in PROTOCOLS for how in DISSEMINATIONS),
    "--protocol=raft --options=replication=gossip-status",
    *(f"--protocol={protocol} --groups=merge:3" for protocol in PROTOCOLS),
]
# Each of these faults, each ordering, dissemination and profile at least once, and groups that are merged.
QUICK = [
    ("--protocol=multipaxos --dissemination=leader", "KillLeader", "EtcdHighTraffic"),
    ("--protocol=raft --dissemination=references", "BlackholeUntilSnapshot", "EtcdTrafficDeleteLeases"),
    ("--protocol=ring --dissemination=leader", "KillAll", "KubernetesHighTraffic"),
    ("--protocol=sequence-paxos --dissemination=balanced", "Reconfigure", "KubernetesLowTraffic"),
    ("--protocol=raft --groups=merge:3", "PauseLeader", "EtcdTrafficDeleteLeases"),
    ("--protocol=multipaxos --dissemination=leader", "PowerLossAll", "EtcdHighTraffic"),
]
# Server flags, failpoint and what is spoilt: a history that lacks something, and disks that are not waited for.
CONTROLS = [
    ("--protocol=multipaxos", "Kill", "decided"),
    ("--protocol=multipaxos", "Kill", "answers"),
    ("--protocol=multipaxos --durability=async", "PowerLossAll", ""),
]
# What the suite says if a run shows little.
TOO_FEW = "Requiring minimal"
# Nobody debugs what is built. Without optimisation Go takes two thirds of the time.
SMALL = ["-ldflags=-s -w"]
SOON = [*SMALL, "-gcflags=all=-N -l"]


def go(arguments):
    environment = dict(os.environ, GOFLAGS="-mod=readonly", CGO_ENABLED="0")
    done = subprocess.run(["go", *arguments], cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"go {' '.join(arguments)}:\n{done.stderr}")
    return done.stdout.strip()


class Suite:
    """The program of this folder, the stand-in for etcd, and the certificates of the suite."""

    def __init__(self, cache, synod, how):
        self.program = cache / "robustness.test"
        self.programs = cache / "bin"
        self.programs.mkdir(parents=True, exist_ok=True)
        go(["test", "-c", *how, "-o", str(self.program), "."])
        self.certificates = Path(go(["list", "-m", "-f", "{{.Dir}}", TESTS])) / "fixtures"
        shutil.copyfile(HERE.parent / "etcd-e2e" / "etcd.sh", self.programs / "etcd")
        (self.programs / "etcd").chmod(0o755)
        (self.programs / "synod").unlink(missing_ok=True)
        (self.programs / "synod").symlink_to(synod)
        said = self.call(["-list"], subprocess.PIPE, None).communicate()[0]
        names = dict(re.findall(r"^(TRAFFIC|FAILPOINTS) (.+)$", said, re.M))
        self.traffic, self.failpoints = names["TRAFFIC"].split(), names["FAILPOINTS"].split()

    def call(self, arguments, out, seconds):
        flags = [f"-bin-dir={self.programs}", f"-cert-dir={self.certificates}"]
        if seconds:
            flags.append(f"-test.timeout={seconds}s")
        command = [self.program, "-test.v", *flags, *arguments]
        if can_cut_power():
            # What is mounted goes with the process, whatever becomes of it.
            command = ["unshare", "--mount", "--propagation=private", *command]
        return subprocess.Popen(command, cwd=HERE, stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def can_cut_power():
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and all(map(shutil.which, ["mkfs.ext4", "unshare"]))


def run(suite, logs, server, failpoint, traffic, seconds, spoil=""):
    """Plays one scenario. Returns what was done, or None, and why it failed, if it did."""
    name = re.sub(r"[^\w.]+", "-", f"{server} {failpoint} {traffic} {spoil}").strip("-")
    folder = (logs / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Small segments, so that logs go on in the next one, and a run that fails leaves little.
    (suite.programs / "flags").write_text(f"--wal-segment-bytes=1MiB {server}")
    groups = re.search(r"merge:(\d+)", server)
    arguments = [f"-failpoint={failpoint}", f"-traffic={traffic}", f"-seconds={seconds}", f"-folder={folder}", f"-spoil={spoil}"]
    arguments.append(f"-groups={groups.group(1) if groups else 1}")
    # A member that finds out what it forgot ends by itself, and learns when it is started again (docs/identity.md).
    arguments += ["-restarts=3"] if "durability=async" in server else []
    limit = seconds + 300
    with (folder / "log").open("w") as out:
        process = suite.call(arguments, out, limit)
        try:
            process.wait(limit + 10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
    said = (folder / "log").read_text(errors="replace")
    result = re.search(r"^RESULT (.+)$", said, re.M)
    passed = process.returncode == 0 and result
    if passed:
        shutil.rmtree(folder)
    return json.loads(result.group(1)) if result else None, "" if passed else reason(said)


def found(why):
    """What was found but too few operations."""
    return [part for part in why.split(" / ") if part and not part.startswith(TOO_FEW)]


def patiently(*scenario):
    """Plays a scenario again if the suite found nothing but too few operations, since the machine was busy."""
    for _ in range(3):
        result, why = run(*scenario)
        if not why or found(why):
            break
        print(f"once more, since the machine was too busy: {why}", flush=True)
    return result, why


def reason(said):
    found = re.findall(r"^(panic: [^\n]+)|^\s+(?:traffic|\w+_test)\.go:\d+: ([^\n]+)|^\s+Error:\s+([^\n]+)", said, re.M)
    return " / ".join(" ".join("".join(parts).split())[:300] for parts in found if "".join(parts).strip()) or "no result: see its log"


def play(suite, logs, seconds, scenarios):
    """Plays scenarios and shows each; returns the results."""
    results = []
    for server, failpoint, traffic in scenarios:
        result, why = patiently(suite, logs, server, failpoint, traffic, seconds)
        results.append((server, failpoint, traffic, result, why))
        counts = "{Operations:6} operations {Failures:5} failed {WatchEvents:7} events {Seconds:6.1f} s".format(**result) if result else ""
        print(f"{'FAIL' if why else 'PASS'} {server:52} {failpoint:24} {traffic:24} {counts} {why}", flush=True)
    return results


def summary(results, of):
    """A table of results, a row for each server, failpoint or profile."""
    rows = defaultdict(list)
    for result in results:
        rows[result[of]].append(result)
    title = ["server", "failpoint", "traffic"][of]
    print(f"\n| {title} | runs | passed | operations answered | failed or unknown | watch events |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for row, each in rows.items():
        sums = [sum(result[3][key] for result in each if result[3]) for key in ("Operations", "Failures", "WatchEvents")]
        passed = sum(not result[4] for result in each)
        print(f"| `{row}` | {len(each)} | {passed} | {' | '.join(f'{number:,}' for number in sums)} |")


def controls(suite, logs, seconds, which):
    """Whether the runs that must be refused are."""
    right = True
    for server, failpoint, spoil in which:
        what = f"{server} {failpoint} {f'lacks one of the {spoil}' if spoil else ''}"
        if failpoint.startswith("PowerLoss") and not can_cut_power():
            print(f"left out, since the power cannot be cut here: {what}")
            continue
        _, why = patiently(suite, logs, server, failpoint, "EtcdHighTraffic", seconds, spoil)
        print(f"{'refused' if why else 'NOT REFUSED'}: {what}: {why}", flush=True)
        # The checks of the history say so. Where only the history is spoilt, nothing else does.
        checked = [bool(re.match("(linearization|watch|serializable): |members disagree", part)) for part in found(why)]
        right &= any(checked) and (all(checked) or not spoil)
    return right


def default_cache():
    return os.environ.get("SYNOD_E2E_CACHE", str(Path.home() / ".cache" / "synod-etcd-robustness"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", help="the program to test")
    parser.add_argument("--cache", default=default_cache(), help="where what Go builds is kept")
    parser.add_argument("--logs", default="etcd-robustness-logs", help="where the logs of runs go")
    parser.add_argument("--seconds", type=int, default=5, help="how long the traffic of a run lasts, at least")
    parser.add_argument("--serve", action="append", metavar="FLAGS",
                        help="flags of all servers of a run; may be repeated [default: each ordering with each dissemination, and merge:3]")
    parser.add_argument("--failpoint", action="append", metavar="NAME", help="may be repeated [default: all]")
    parser.add_argument("--traffic", action="append", metavar="NAME", help="a profile; may be repeated [default: all in turn]")
    parser.add_argument("--quick", action="store_true", help="a few runs and the controls of the history, in about two minutes")
    parser.add_argument("--control", action="store_true", help="only runs that must be refused")
    parser.add_argument("--list", action="store_true", help="print the names of failpoints and profiles")
    arguments = parser.parse_args()
    synod = Path(arguments.synod).resolve()
    if not synod.exists():
        sys.exit(f"{synod} is not there: cargo build --release -p synod-cli")
    logs = Path(arguments.logs)
    suite = Suite(Path(arguments.cache).resolve() / ("quick" if arguments.quick else ""), synod, SOON if arguments.quick else SMALL)
    if arguments.list:
        print("failpoints:", *suite.failpoints, "\ntraffic:", *suite.traffic)
        return
    if arguments.control:
        sys.exit(0 if controls(suite, logs, arguments.seconds, CONTROLS) else 1)
    scenarios = QUICK
    if not arguments.quick:
        pairs = itertools.product(arguments.serve or SERVERS, arguments.failpoint or suite.failpoints)
        if arguments.traffic:
            scenarios = [(*pair, traffic) for pair in pairs for traffic in arguments.traffic]
        else:
            # Shifted by one with each server, so that each failpoint meets each profile.
            count = len(arguments.failpoint or suite.failpoints)
            scenarios = [(*pair, suite.traffic[(at // count + at) % len(suite.traffic)]) for at, pair in enumerate(pairs)]
    unknown = [name for _, *names in scenarios for name in names if name not in suite.failpoints + suite.traffic]
    if unknown:
        sys.exit(f"there is no {unknown[0]}: failpoints are {', '.join(suite.failpoints)}; profiles {', '.join(suite.traffic)}")
    if not can_cut_power():
        print("runs that cut the power are left out: that takes root, mkfs.ext4, unshare and loop devices")
        scenarios = [each for each in scenarios if not each[1].startswith("PowerLoss")]
    results = play(suite, logs, arguments.seconds, scenarios)
    if not arguments.quick:
        for of in range(3):
            summary(results, of)
    failed = sum(bool(result[4]) for result in results)
    print(f"\n{len(results) - failed} passed, {failed} failed")
    refused = not arguments.quick or controls(suite, logs, arguments.seconds, [each for each in CONTROLS if each[2]])
    sys.exit(0 if failed == 0 and refused else 1)


if __name__ == "__main__":
    main()
