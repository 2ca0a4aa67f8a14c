#!/usr/bin/env python3
"""Runs the tests of clients for etcd, by others and in several languages, on three replicas of Synod.

    cargo build --release -p synod-cli
    python3 compat/clients/run.py --synod target/release/synod
    python3 compat/clients/run.py --list
    python3 compat/clients/run.py aetcd 'node etcd3'
    python3 compat/clients/run.py --etcd PATH                    # the same on three members of etcd, for comparison

Each client comes from its registry, and each has a new cluster. Where a published package has the client's own tests,
these run; for other clients a program beside this one, in their language, does what their documentation shows. A client
whose language is not on this machine is left out, and so is one whose tests know port 2379 only, if that is taken.

A table tells for each client how many tests passed, failed and were left out; below it are the reasons. The exit code
is 1 if one failed, and 2 if a client that was named is left out.
"""

import argparse
import shutil
import socket
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from members import Members  # noqa: E402
from suites import CLIENTS, FAILED, LEFT_OUT, PASSED, LeftOut  # noqa: E402


def is_free(port):
    # As servers bind it, which do not wait for connections that ended a moment ago.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def played(client, command, flags, cache, folder):
    """Runs the tests of a client on a new cluster; returns name, result and reason of each."""
    if client.port and not is_free(client.port):
        raise LeftOut(f"its tests know port {client.port} only, which is taken")
    print(f"{client.name} {client.version}: fetching", flush=True)
    client.fetch(cache)
    print(f"{client.name} {client.version}: running", flush=True)
    cluster = Members(command, folder, flags, name=client.members, port=client.port)
    try:
        cluster.wait_until_serving()
        results = client.play(cluster, folder)
        for name, process in zip(cluster.names, cluster.processes):
            if process.poll() is not None:
                results.append((f"{name} runs to the end", FAILED, "it has ended"))
    finally:
        cluster.stop()
    return results + [(name, LEFT_OUT, why) for name, why in client.left_out.items()]


def count(results, result):
    return sum(each == result for _, each, _ in results)


def print_table(table):
    """`table` has a client and its results, or why it is left out."""
    print(f"\n{'client':14} {'version':8} {'tests':8} {'passed':>7} {'failed':>7} {'left out':>9}")
    for client, results in table:
        row = f"{client.name:14} {client.version:8} {client.whose:8}"
        if isinstance(results, str):
            print(f"{row} left out: {results}")
        else:
            print(f"{row} {count(results, PASSED):7} {count(results, FAILED):7} {count(results, LEFT_OUT):9}")
    for wanted in [FAILED, LEFT_OUT]:
        for client, results in table:
            for name, result, why in results if isinstance(results, list) else []:
                if result == wanted:
                    print(f"{result}: {client.name}: {name}: {why}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="only these (default: all)")
    parser.add_argument("--list", action="store_true", help="print the clients, and whose tests run")
    parser.add_argument("--synod", default="target/release/synod", metavar="PATH", help="the program to test")
    parser.add_argument("--etcd", metavar="PATH", help="an etcd in its place, for comparison")
    parser.add_argument("--flags", default="", metavar="FLAG,...", help="further flags of `synod serve`, or of etcd")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/synod-clients",
                        help="where what is fetched is kept")
    parser.add_argument("--keep", action="store_true", help="keep the logs, also if all tests pass")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.clients if name not in [client.name for client in CLIENTS]]
    if unknown:
        parser.error(f"there is no client {unknown[0]!r}; there are {', '.join(client.name for client in CLIENTS)}")
    return arguments


def main():
    arguments = parsed()
    if arguments.list:
        for client in CLIENTS:
            print(f"{client.name:14} {client.version:8} tests: {client.whose}")
        return
    program = Path(arguments.etcd or arguments.synod).resolve()
    if not program.exists():
        sys.exit(f"{program} is not there" + ("" if arguments.etcd else ": cargo build --release -p synod-cli"))
    command = [str(program)] if arguments.etcd else [str(program), "serve"]
    flags = [flag for flag in arguments.flags.split(",") if flag]
    cache = arguments.cache.resolve()
    logs, table = Path(tempfile.mkdtemp(prefix="synod-clients-")), []
    for client in CLIENTS:
        if arguments.clients and client.name not in arguments.clients:
            continue
        folder = logs / client.name.replace(" ", "-")
        folder.mkdir()
        try:
            results = played(client, command, flags, cache, folder)
        except LeftOut as why:
            results = str(why)
        except RuntimeError as error:
            results = [("the suite begins", FAILED, str(error))]
        table.append((client, results))
    print_table(table)
    failed = sum(count(results, FAILED) for _, results in table if isinstance(results, list))
    missing = [client.name for client, results in table if isinstance(results, str) and arguments.clients]
    if failed or arguments.keep:
        print(f"logs: {logs}")
    else:
        shutil.rmtree(logs)
    sys.exit(1 if failed else 2 if missing else 0)


if __name__ == "__main__":
    main()
