#!/usr/bin/env python3
"""Runs etcd's own end-to-end tests against `synod serve`, one at a time, and says why each failure failed.

    cargo build --release -p synod-cli
    python3 compat/etcd-e2e/run.py --synod target/release/synod                       # all tests of the package `common`
    python3 compat/etcd-e2e/run.py --synod target/release/synod --package e2e         # and of the package `e2e`
    python3 compat/etcd-e2e/run.py --synod target/release/synod --run 'Watch|Lease'   # those whose names match
    python3 compat/etcd-e2e/run.py --synod target/debug/synod --quick                 # what CI runs
    python3 compat/etcd-e2e/run.py --serve-flag=--protocol=raft                       # all of `common` with Raft
    python3 compat/etcd-e2e/run.py --flags                                            # etcd's flags that serve lacks

The suite is two packages of the Go module go.etcd.io/etcd/tests/v3, built with the tag e2e. Go fetches it and the programs
etcdctl, etcdutl and etcd from the module proxy, or its cache; nothing of etcd is in this tree. The suite starts `etcd` from a
folder; here that is a script which starts `synod serve` and passes every flag on. Only for `etcd gateway` and `etcd grpc-proxy`,
which stand before any server, it starts etcd itself. A test that fails or takes too long leaves no
process behind.

passes-PACKAGE.txt lists the tests and variants that are known to pass; the exit code is 1 if one of those that were run does not.
With --record those that pass now are added to it. left-out-PACKAGE.tsv lists the tests and variants that are not run, each with its reason:
the table shows them, unless --run-left-out runs them too. quick.txt lists what --quick runs: all of these must pass, and all of etcd's flags be known.
"""

import argparse
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from built import PROGRAMS, VERSION

TESTS = "go.etcd.io/etcd/tests/v3"
PACKAGES = ["common", "e2e"]
# etcd itself is used for its gateway and its proxy only.
TOOLS = {("etcd-proxy" if name == "etcd" else name): module for name, module in PROGRAMS.items()}
HERE = Path(__file__).resolve().parent


# Nobody debugs what is built: without symbols it is linked in half the time.
SMALL = ["-ldflags=-s -w"]
# Without optimisation Go takes two thirds of the time.
SOON = [*SMALL, "-gcflags=all=-N -l"]


def go(arguments, cwd):
    environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
    done = subprocess.run(["go", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"go {' '.join(arguments)}:\n{done.stderr}")
    return done.stdout


class Suite:
    """The suite's programs, and etcd's tools, each built when it is first needed and not there yet."""

    def __init__(self, cache, how, flags):
        self.cache = cache
        self.how = how
        self.flags = flags
        self.programs = cache / "bin"
        self.programs.mkdir(parents=True, exist_ok=True)
        module = cache / "go.mod"
        if not module.exists():
            needed = "".join(f"\t{name} {VERSION}\n" for name in [TESTS, *TOOLS.values()])
            module.write_text(f"module suite\n\ngo 1.26.0\n\nrequire (\n{needed})\n")

    def tests(self, package):
        """The program with a package's tests."""
        program = self.cache / f"{package}.test"
        if not program.exists():
            go(["test", "-c", "-tags", "e2e", *self.how, "-o", str(program), f"{TESTS}/{package}"], self.cache)
        return program

    @functools.cache
    def folder(self, package):
        """Where a package's tests expect to be run."""
        return Path(go(["list", "-f", "{{.Dir}}", "-tags", "e2e", f"{TESTS}/{package}"], self.cache).strip())

    def tools(self, names, synod):
        """The folder with etcd's tools and with what stands for `etcd`."""
        for name in names:
            if not (self.programs / name).exists():
                go(["build", *self.how, "-o", str(self.programs / name), TOOLS[name]], self.cache)
        shutil.copyfile(HERE / "etcd.sh", self.programs / "etcd")
        (self.programs / "etcd").chmod(0o755)
        # The suite starts its servers without this program's environment.
        (self.programs / "synod").unlink(missing_ok=True)
        (self.programs / "synod").symlink_to(synod)
        (self.programs / "flags").write_text(" ".join(self.flags))
        return self.programs


def listed(suite, package, pattern):
    command = [suite.tests(package), "-test.list", pattern]
    names = subprocess.run(command, cwd=suite.folder(package), capture_output=True, text=True, check=True)
    return [name for name in names.stdout.split() if name.startswith("Test")]


def run(suite, package, pattern, seconds, logs, but=()):
    """Runs a test with all its variants, or some: NAME/VARIANT, but not these. Returns what became of each, why, and how long it
    took."""
    name = pattern.partition("/")[0]
    log = log_of(logs, pattern)
    program = suite.tests(package)
    began = time.time()
    with log.open("w") as out:
        command = [program, f"-bin-dir={suite.programs}", f"-test.run={anchored(pattern)}", "-test.v"]
        command.append(f"-test.timeout={seconds}s")
        command += [f"-test.skip={'|'.join(map(anchored, but))}"] if but else []
        process = subprocess.Popen(command, cwd=suite.folder(package), stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(seconds + 10)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    text = log.read_text(errors="replace")
    found = re.findall(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", text, re.M)
    outcomes = {test: outcome for outcome, test in found}
    if name not in outcomes:
        outcomes[name] = "FAIL"
    variants = [outcome for test, outcome in outcomes.items() if test != name]
    if variants and set(variants) == {"SKIP"}:
        # The suite says PASS.
        outcomes[name] = "SKIP"
    return outcomes, reason(text, outcomes[name]), time.time() - began


def anchored(pattern):
    return "/".join(f"^{re.escape(part)}$" for part in pattern.split("/"))


def log_of(logs, pattern):
    return logs / f"{pattern.replace('/', '.')}.log"


def reason(text, outcome):
    """The line that says most about a failure."""
    if outcome != "FAIL":
        return ""
    patterns = [
        r"(error: unexpected argument '[^']+')",
        r"(invalid value '[^']*' for '[^']+')",
        r"((?:rpc error: )?code = Unimplemented desc = [^\n\"]+)",
        r"^(panic: [^\n]+)",
        r"Error:\s+(?:Received unexpected error:\s*)?([^\n]+(?:\n\s+(?:expected|actual)\s*: [^\n]+){0,2})",
        r"^\s+\w+_test\.go:\d+: ([^\n]+)",
    ]
    for pattern in patterns:
        found = re.search(pattern, text, re.M)
        if found:
            return " ".join(found.group(1).split())[:160]
    return "no result: see its log"


def knows_flags(synod, suite):
    """Names etcd's flags that `synod serve` does not know; returns whether there is none."""
    source = Path(go(["list", "-m", "-f", "{{.Dir}}", "go.etcd.io/etcd/server/v3"], suite.cache).strip())
    names = set()
    for path in [*source.glob("embed/config*.go"), *source.glob("etcdmain/config.go")]:
        names |= set(re.findall(r"fs\.\w+\((?:[^,\"]+,\s*)?\"([a-z0-9-]+)\"", path.read_text()))
    if not names:
        sys.exit(f"no flags were found in {source}")
    missing = 0
    # Those without a meaning are accepted, and not in the help.
    for name in sorted(names):
        said = subprocess.run([synod, "serve", f"--{name}=x", "--help"], capture_output=True, text=True).stderr
        if f"unexpected argument '--{name}'" in said:
            missing += 1
            print(f"synod serve does not know etcd's --{name}", flush=True)
    print(f"{len(names) - missing} of etcd's {len(names)} flags are known", flush=True)
    return missing == 0


def quick(suite, synod, seconds, logs):
    """Runs the part of the suite that quick.txt lists; returns whether all of it passed. The suite has time limits that a busy
    machine may exceed, so a test that fails is run once more."""
    lines = [line.split() for line in (HERE / "quick.txt").read_text().splitlines() if line and line[0] != "#"]
    suite.tools(["etcdctl"], synod)
    failed = 0
    for package, pattern in lines:
        passed, why, took = passes(suite, package, pattern, seconds, logs)
        if not passed:
            print(f"once more, since it failed: {pattern}: {why}", flush=True)
            passed, why, took = passes(suite, package, pattern, seconds, logs)
        failed += not passed
        print(f"{'PASS' if passed else 'FAIL':5}{pattern:72}{took:7.1f} s  {why}", flush=True)
        if not passed:
            print(log_of(logs, pattern).read_text(errors="replace")[-4000:], flush=True)
    print(f"\n{len(lines) - failed} passed, {failed} failed")
    return knows_flags(synod, suite) and failed == 0


def passes(suite, package, pattern, seconds, logs):
    outcomes, why, took = run(suite, package, pattern, seconds, logs)
    # A pattern that matches nothing has not passed. The suite may tell of what is below it only.
    matches = {outcome for test, outcome in outcomes.items() if f"{test}/".startswith(f"{pattern}/")}
    return "PASS" in matches and "FAIL" not in outcomes.values(), why, took


def left_out(package):
    """The tests of a package, or variants of them, that are not run, each with its reason."""
    table = HERE / f"left-out-{package}.tsv"
    lines = table.read_text().splitlines() if table.exists() else []
    return dict(line.split("\t") for line in lines)


def default_cache():
    return os.environ.get("SYNOD_E2E_CACHE", str(Path.home() / ".cache" / "synod-etcd-e2e"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", help="the program to test")
    parser.add_argument("--package", default="common", choices=PACKAGES, help="which tests")
    parser.add_argument("--run", default=".*", metavar="REGEX", help="tests whose names match")
    parser.add_argument("--run-left-out", action="store_true", help="run also the tests that are left out")
    parser.add_argument("--quick", action="store_true", help="run the part that quick.txt lists")
    parser.add_argument("--cache", default=default_cache(), help="where what Go builds is kept")
    parser.add_argument("--timeout", type=int, default=180, metavar="SECONDS", help="for one test with all its variants")
    parser.add_argument("--logs", default="etcd-e2e-logs", help="where the output of each test goes")
    parser.add_argument("--variants", action="store_true", help="show what became of each variant of a test")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--record", action="store_true", help="add what passes now to what is known to pass")
    parser.add_argument("--serve-flag", action="append", default=[], metavar="FLAG",
                        help="give each server this flag too, as --serve-flag=--protocol=raft; may be repeated")
    parser.add_argument("--flags", action="store_true", help="name etcd's flags that `synod serve` does not know")
    arguments = parser.parse_args()
    synod = str(Path(arguments.synod).resolve())
    if not Path(synod).exists():
        sys.exit(f"{synod} is not there: cargo build --release -p synod-cli")
    cache = Path(arguments.cache).resolve()
    place, how = (cache / "quick", SOON) if arguments.quick else (cache, SMALL)
    suite = Suite(place, how, arguments.serve_flag)
    if arguments.flags:
        sys.exit(0 if knows_flags(synod, suite) else 1)
    logs = Path(arguments.logs)
    logs.mkdir(parents=True, exist_ok=True)
    if arguments.quick:
        sys.exit(0 if quick(suite, synod, arguments.timeout, logs) else 1)
    suite.tools(TOOLS, synod)
    recorded = HERE / f"passes-{arguments.package}.txt"
    known = set(recorded.read_text().split()) if recorded.exists() else set()
    left = {} if arguments.run_left_out else left_out(arguments.package)
    results, passing, broken = [], set(), []
    for name in listed(suite, arguments.package, arguments.run):
        if name in left:
            result = {"test": name, "outcome": "LEFT", "variants": {}, "seconds": 0.0, "why": left[name]}
        else:
            but = [test for test in left if test.startswith(f"{name}/")]
            outcomes, why, seconds = run(suite, arguments.package, name, arguments.timeout, logs, but)
            outcomes |= dict.fromkeys(but, "LEFT")
            why = "; ".join(filter(None, [why, *(f"not run: {test}: {left[test]}" for test in but)]))
            variants = {test: outcome for test, outcome in outcomes.items() if test != name}
            passing |= {test for test, outcome in outcomes.items() if outcome == "PASS"}
            broken += [test for test, outcome in outcomes.items() if outcome == "FAIL" and test in known]
            result = {"test": name, "outcome": outcomes[name], "variants": variants, "seconds": round(seconds, 1), "why": why}
        results.append(result)
        if not arguments.json:
            show(result, arguments.variants)
    if arguments.json:
        print(json.dumps({"version": VERSION, "package": arguments.package, "tests": results}, indent=1))
    else:
        outcomes = [result["outcome"] for result in results]
        variants = [outcome for result in results for outcome in result["variants"].values()]
        share = passed(variants)
        print(f"\n{len(outcomes)} tests: {outcomes.count('PASS')} pass whole, {outcomes.count('SKIP')} are skipped by the suite, "
              f"{outcomes.count('FAIL')} fail, {outcomes.count('LEFT')} are left out; {share} of {len(variants)} variants pass")
        if broken:
            print(f"passed before: {' '.join(broken)}")
    if arguments.record:
        recorded.write_text("".join(f"{test}\n" for test in sorted(known | passing)))
    sys.exit(1 if broken else 0)


def passed(outcomes):
    return sum(outcome in ("PASS", "SKIP") for outcome in outcomes)


def show(result, each_variant):
    variants = result["variants"]
    share = f"{passed(variants.values())}/{len(variants)}" if variants else ""
    print(f"{result['outcome']:5}{result['test']:56}{share:>8}{result['seconds']:7.1f} s  {result['why']}", flush=True)
    if each_variant:
        for test, outcome in variants.items():
            print(f"      {outcome:5}{test}")


if __name__ == "__main__":
    main()
