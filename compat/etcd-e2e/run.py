#!/usr/bin/env python3
"""Runs etcd's own end-to-end tests against `synod serve`, one at a time, and says why each failure failed.

    cargo build --release -p synod-cli
    python3 compat/etcd-e2e/run.py --synod target/release/synod                       # all tests of the package
    python3 compat/etcd-e2e/run.py --synod target/release/synod --run 'Watch|Lease'   # those whose names match
    python3 compat/etcd-e2e/run.py --flags                                            # etcd's flags that serve lacks

The suite is the package `common` of the Go module go.etcd.io/etcd/tests/v3 with the build tag e2e. Go fetches it and
the programs etcdctl and etcdutl from the module proxy, or its cache; nothing of etcd is in this tree. The suite starts
`etcd` from a folder; here that is a small program which starts `synod serve`, passes every flag on, and prints the line
that the suite waits for once /health answers. A test that fails or takes too long leaves no process behind.

The file passes.txt lists the tests and variants that are known to pass; the exit code is 1 if one of those that were run
does not. With --record those that pass now are added to it.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

VERSION = "v3.7.3"
TESTS = "go.etcd.io/etcd/tests/v3"
TOOLS = {"etcdctl": "go.etcd.io/etcd/etcdctl/v3", "etcdutl": "go.etcd.io/etcd/etcdutl/v3"}
LAUNCHER = Path(__file__).resolve().parent / "etcd.py"
PASSES = Path(__file__).resolve().parent / "passes.txt"


def go(arguments, cwd):
    environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
    done = subprocess.run(["go", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"go {' '.join(arguments)}:\n{done.stderr}")
    return done.stdout


def build(cache):
    """Builds the suite and etcd's tools, unless they are there; returns the suite, its folder, and that of programs."""
    cache.mkdir(parents=True, exist_ok=True)
    programs = cache / "bin"
    programs.mkdir(exist_ok=True)
    suite = cache / "common.test"
    module = cache / "go.mod"
    if not module.exists():
        needed = "".join(f"\t{name} {VERSION}\n" for name in [TESTS, *TOOLS.values()])
        module.write_text(f"module suite\n\ngo 1.24\n\nrequire (\n{needed})\n")
    if not suite.exists():
        go(["test", "-c", "-tags", "e2e", "-o", str(suite), f"{TESTS}/common"], cache)
    for name, package in TOOLS.items():
        if not (programs / name).exists():
            go(["build", "-o", str(programs / name), package], cache)
    folder = go(["list", "-f", "{{.Dir}}", "-tags", "e2e", f"{TESTS}/common"], cache).strip()
    return suite, Path(folder), programs


def listed(suite, folder, pattern):
    names = subprocess.run([suite, "-test.list", pattern], cwd=folder, capture_output=True, text=True, check=True)
    return [name for name in names.stdout.split() if name.startswith("Test")]


def run(suite, folder, programs, name, seconds, logs):
    """Runs one test; returns what became of it and of its variants, and why."""
    log = logs / f"{name}.log"
    began = time.time()
    with log.open("w") as out:
        command = [suite, f"-bin-dir={programs}", f"-test.run=^{name}$", "-test.v", f"-test.timeout={seconds}s"]
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, start_new_session=True)
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
    return outcomes, reason(text, outcomes[name]), time.time() - began


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


def flags(synod, cache):
    """etcd's flags that `synod serve` does not know."""
    source = go(["list", "-m", "-f", "{{.Dir}}", "go.etcd.io/etcd/server/v3"], cache)
    names = set()
    for path in Path(source.strip()).glob("embed/config*.go"):
        names |= set(re.findall(r"fs\.\w+\((?:[^,\"]+,\s*)?\"([a-z0-9-]+)\"", path.read_text()))
    for path in Path(source.strip()).glob("etcdmain/config.go"):
        names |= set(re.findall(r"fs\.\w+\((?:[^,\"]+,\s*)?\"([a-z0-9-]+)\"", path.read_text()))
    # Those without a meaning are accepted, and not in the help.
    for name in sorted(names):
        said = subprocess.run([synod, "serve", f"--{name}=x", "--help"], capture_output=True, text=True).stderr
        if f"unexpected argument '--{name}'" in said:
            print(f"--{name}")


def default_cache():
    return os.environ.get("SYNOD_E2E_CACHE", str(Path.home() / ".cache" / "synod-etcd-e2e"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", help="the program to test")
    parser.add_argument("--run", default=".*", metavar="REGEX", help="tests whose names match")
    parser.add_argument("--cache", default=default_cache(), help="where what Go builds is kept")
    parser.add_argument("--timeout", type=int, default=180, metavar="SECONDS", help="for one test with all its variants")
    parser.add_argument("--logs", default="etcd-e2e-logs", help="where the output of each test goes")
    parser.add_argument("--variants", action="store_true", help="show what became of each variant of a test")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--record", action="store_true", help="add what passes now to passes.txt")
    parser.add_argument("--flags", action="store_true", help="list etcd's flags that `synod serve` does not know")
    arguments = parser.parse_args()
    synod = str(Path(arguments.synod).resolve())
    if not Path(synod).exists():
        sys.exit(f"{synod} is not there: cargo build --release -p synod-cli")
    suite, folder, programs = build(Path(arguments.cache).resolve())
    if arguments.flags:
        return flags(synod, Path(arguments.cache).resolve())
    shutil.copyfile(LAUNCHER, programs / "etcd")
    (programs / "etcd").chmod(0o755)
    # The suite starts its servers without this program's environment.
    (programs / "synod").unlink(missing_ok=True)
    (programs / "synod").symlink_to(synod)
    logs = Path(arguments.logs)
    logs.mkdir(parents=True, exist_ok=True)
    tests = listed(suite, folder, arguments.run)
    known = set(PASSES.read_text().split()) if PASSES.exists() else set()
    results, passing, broken = [], set(), []
    for name in tests:
        outcomes, why, seconds = run(suite, folder, programs, name, arguments.timeout, logs)
        variants = {test: outcome for test, outcome in outcomes.items() if test != name}
        passed = sum(outcome != "FAIL" for outcome in variants.values())
        outcome = outcomes[name]
        passing |= {test for test, outcome in outcomes.items() if outcome == "PASS"}
        broken += [test for test, outcome in outcomes.items() if outcome == "FAIL" and test in known]
        results.append({"test": name, "outcome": outcome, "variants": variants, "seconds": round(seconds, 1), "why": why})
        if not arguments.json:
            share = f"{passed}/{len(variants)}" if variants else ""
            print(f"{outcome:5}{name:48}{share:>8}{seconds:7.1f} s  {why}", flush=True)
            if arguments.variants:
                for test, variant in variants.items():
                    print(f"      {variant:5}{test}")
    if arguments.json:
        print(json.dumps({"version": VERSION, "tests": results}, indent=1))
    else:
        passed = sum(result["outcome"] != "FAIL" for result in results)
        variants = [outcome for result in results for outcome in result["variants"].values()]
        share = sum(outcome != "FAIL" for outcome in variants)
        print(f"\n{passed} of {len(results)} tests pass whole, and {share} of {len(variants)} variants")
        if broken:
            print(f"passed before: {' '.join(broken)}")
    if arguments.record:
        PASSES.write_text("".join(f"{test}\n" for test in sorted(known | passing)))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
