"""What the programs that check a user of etcd have in common: checks one after another, their table, and what they are told."""

import argparse
import inspect
import subprocess
import sys
import time
from pathlib import Path


class Failed(Exception):
    """A check does not hold."""


def must(holds, otherwise):
    if not holds:
        raise Failed(otherwise)


def wait_for(what, condition, seconds):
    """What the condition gives, once it gives something; a failure after this many seconds."""
    until = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        must(time.monotonic() < until, f"after {seconds} s not: {what}")
        time.sleep(0.05)


def check(method, of):
    """Runs a check, a method of `of` whose doc is its name. It returns what it saw, as a text, or raises."""
    name, began = inspect.getdoc(method), time.monotonic()
    print(f"{name} ...", flush=True)
    try:
        outcome, seen = "ok", method(of)
    except Exception as error:  # noqa: BLE001: any failure of a check is its result
        outcome, seen = "FAILED", str(error) if isinstance(error, (Failed, RuntimeError)) else repr(error)
    seconds = time.monotonic() - began
    print(f"  {outcome}, {seconds:.1f} s: {seen}", flush=True)
    return name, outcome, seconds, seen


def play(of, begin, order, only, mend):
    """Runs the checks whose names have `only` in them, after the first; returns the table. After one that failed, `mend` starts
    what it may have left killed."""
    table = [check(begin, of)]
    if table[0][1] == "ok":
        for method in order:
            if only in inspect.getdoc(method):
                table.append(check(method, of))
                if table[-1][1] != "ok":
                    mend()
    return table


def print_table(table):
    """Prints it, and returns the names of the checks that failed."""
    wide = max(len(name) for name, *_ in table)
    print()
    for name, outcome, seconds, seen in table:
        print(f"{name:{wide}}  {outcome:6}  {seconds:6.1f} s  {seen}")
    failed = [name for name, outcome, *_ in table if outcome != "ok"]
    print(f"\n{len(table) - len(failed)} of {len(table)} checks hold")
    return failed


def arguments_of(description, user):
    """A parser with what each of these programs takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", default="target/release/synod", metavar="PATH", help="the program to test")
    parser.add_argument("--etcd", metavar="PATH", help="an etcd in its place, for comparison")
    parser.add_argument("--tls", action="store_true", help=f"TLS and passwords between {user} and the store")
    parser.add_argument("--only", default="", metavar="WORD", help="only checks with this word in their names, after the first")
    parser.add_argument("--flags", default="", metavar="FLAG,...", help="further flags of `synod serve`, or of etcd")
    parser.add_argument("--keep", action="store_true", help="keep the logs, also if all holds")
    return parser


def program_of(arguments):
    """The path of Synod or etcd, and the command that starts a member."""
    program = Path(arguments.etcd or arguments.synod).resolve()
    if not program.exists():
        sys.exit(f"{program} is not there" + ("" if arguments.etcd else ": cargo build --release -p synod-cli"))
    return str(program), [str(program)] if arguments.etcd else [str(program), "serve"]


def reconfigure(synod, members, protocol):
    """Changes the protocol of three replicas of Synod."""
    command = [synod, "reconfigure", "--protocol", protocol, "--endpoints", ",".join(members.clients)]
    if members.files:
        command += [f"--cacert={members.files}/ca.pem", f"--cert={members.files}/client.pem",
                    f"--key={members.files}/client.key", f"--user=root:{members.root_password}"]
    done = subprocess.run(command, capture_output=True, text=True)
    must(done.returncode == 0, f"synod reconfigure: {done.stderr}")
