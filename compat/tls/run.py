#!/usr/bin/env python3
"""Measures what TLS costs a put, of Synod and of etcd in one run, with etcd's own load generator.

    cargo build --release -p synod-cli
    python3 compat/tls/run.py --synod target/release/synod

Three members of each on this machine, fsynced, once without TLS and once with: clients and peers, each side with a certificate
that the other one checks. All four take turns in each round, so that each figure has its counterpart a moment before or after.
Certificates are made with `openssl`. The generator and its version are those of compat/watchers. Of each load it tells puts a
second, the median of their latency, and processor time of the three members a put.
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from certificates import certificates, server_flags
from built import generator
from measured import arguments_of, etcd_of, processor_seconds

# Clients, and puts of 256 bytes. Clients share connections as they do in etcd's own measurements, at most a hundred a connection.
LOADS = [(1, 2_000), (64, 60_000), (512, 100_000)]
PORT = 24810


class Cluster:
    def __init__(self, command, folder, files):
        self.files = files
        scheme = "https" if files else "http"
        urls = [(f"{scheme}://127.0.0.1:{PORT + 2 * at}", f"{scheme}://127.0.0.1:{PORT + 2 * at + 1}") for at in range(3)]
        self.endpoints = ",".join(client for client, _ in urls)
        members = ",".join(f"m{at}={peer}" for at, (_, peer) in enumerate(urls))
        self.processes = []
        for at, (client, peer) in enumerate(urls):
            flags = [f"--name=m{at}", f"--data-dir={folder}/m{at}", f"--initial-cluster={members}",
                     f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                     f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
            log = open(f"{folder}/m{at}.log", "w")
            command_line = [*command, *flags, *(server_flags(files) if files else [])]
            self.processes.append(subprocess.Popen(command_line, stdout=log, stderr=log))

    def generator_flags(self):
        trust = [f"--cacert={self.files}/ca.pem", f"--cert={self.files}/own.pem", f"--key={self.files}/own.key"]
        return [f"--endpoints={self.endpoints}", *(trust if self.files else [])]

    def processor_seconds(self):
        return sum(processor_seconds(process) for process in self.processes)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


def put(program, cluster, clients, puts):
    connections = max(1, clients // 8)
    before = cluster.processor_seconds()
    done = subprocess.run([program, *cluster.generator_flags(), f"--conns={connections}", f"--clients={clients}", "put",
                           f"--total={puts}", "--key-size=16", "--val-size=256", "--key-space-size=10000", "--sequential-keys"],
                          capture_output=True, text=True, timeout=600)
    text = done.stdout + done.stderr
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    errors = re.search(r"Error distribution:", text)
    if not rate or errors:
        sys.exit(f"the load failed:\n{text}")
    median = float(re.search(r"50% in ([\d.]+) secs", text).group(1)) * 1e3
    return float(rate.group(1)), median, (cluster.processor_seconds() - before) / puts * 1e6


def wait_until_serving(program, cluster):
    for _ in range(100):
        done = subprocess.run([program, *cluster.generator_flags(), "--conns=3", "--clients=3", "put", "--total=30"],
                              capture_output=True, text=True, timeout=600)
        if done.returncode == 0 and "Error distribution" not in done.stdout + done.stderr:
            return
        if any(process.poll() is not None for process in cluster.processes):
            sys.exit("a member ended: see its log")
        time.sleep(0.3)
    sys.exit("the cluster does not serve")


def main():
    parser = arguments_of(__doc__, "synod-watchers")
    parser.add_argument("--rounds", type=int, default=3, help="medians are of this many")
    arguments = parser.parse_args()
    program = generator(arguments.cache)
    systems = {"etcd": [etcd_of(arguments), "--log-level=error"], "synod": [arguments.synod, "serve"]}
    folder = Path(tempfile.mkdtemp(dir=arguments.dir))
    files = certificates(folder / "certificates")
    results = {}
    for _ in range(arguments.rounds):
        for name, command in systems.items():
            for is_secured in [False, True]:
                data = Path(tempfile.mkdtemp(dir=folder))
                cluster = Cluster(command, data, files if is_secured else None)
                try:
                    wait_until_serving(program, cluster)
                    for clients, puts in LOADS:
                        measured = put(program, cluster, clients, puts)
                        results.setdefault((clients, name, is_secured), []).append(measured)
                finally:
                    cluster.stop()
                shutil.rmtree(data)
    shutil.rmtree(folder)
    print(f"{'clients':>7} {'system':8}{'':6}{'puts/s':>10}{'median, ms':>12}{'µs of processor a put':>23}")
    medians = {key: [statistics.median(column) for column in zip(*rounds)] for key, rounds in results.items()}
    for clients, _ in LOADS:
        for name in systems:
            plain, secured = medians[clients, name, False], medians[clients, name, True]
            for label, (rate, median, cost) in [("plain", plain), ("TLS", secured)]:
                print(f"{clients:7} {name:8}{label:6}{rate:10.0f}{median:12.2f}{cost:23.0f}")
            print(f"{'':7} {name:8}{'ratio':6}{secured[0] / plain[0]:10.2f}{secured[1] / plain[1]:12.2f}"
                  f"{secured[2] / plain[2]:18.2f} ({secured[2] - plain[2]:+.0f})", flush=True)


if __name__ == "__main__":
    main()
