#!/usr/bin/env python3
"""Measures many leases of Synod and of etcd in one run: granting, renewing and expiring 100,000 of them, with a key each.

    cargo build --release -p synod-cli
    python3 compat/leases/run.py --synod target/release/synod

The clients are one Go program with etcd's client (compat/load), on the same machine as the servers, each of which is one member
with its data on the disk under --dir, fsynced. Latencies are in ms. `CPU` is what the server used in the phase, and
`memory` what it had at its end; `longest job` is the longest that the executor of Synod took for anything so far, as time and as processor time.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from built import load
from measured import Member, arguments_of, etcd_of

PORT = 24990


def main():
    parser = arguments_of(__doc__, "synod-leases")
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--ttl", type=int, default=60, help="seconds; they must suffice for a phase")
    parser.add_argument("--rounds", type=int, default=2, help="how often each lease is renewed")
    arguments = parser.parse_args()
    program = load(arguments.cache)
    for name, command in {"etcd": [etcd_of(arguments)], "synod": [arguments.synod, "serve"]}.items():
        folder = Path(tempfile.mkdtemp(dir=arguments.dir))
        server = Member(command, folder / "data", PORT)
        try:
            words = [program, "leases", f"127.0.0.1:{PORT}", str(arguments.leases), str(arguments.ttl), str(arguments.rounds)]
            client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            before = server.processor_seconds()
            for line in client.stdout:
                now = server.processor_seconds()
                longest = f"  longest job {server.longest_job()}" if name == "synod" else ""
                print(f"{name:6} {line.strip():40}  CPU {now - before:6.1f} s  memory {server.memory() / 1e6:5.0f} MB{longest}",
                      flush=True)
                before = now
            if client.wait() != 0:
                sys.exit(f"the clients of {name} failed")
        finally:
            server.stop()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
