#!/usr/bin/env python3
"""Measures what a large state costs Synod and etcd in one run, with etcd's own load generator.

    cargo build --release -p synod-cli
    python3 compat/state/run.py --synod target/release/synod

The generator is `benchmark` of the Go module go.etcd.io/etcd/v3 v3.5.17, which Go builds from the module proxy. It runs on the
same machine as the servers, each of which is one member with its data on the disk under --dir, fsynced. One member and not
three: what is measured is what one replica does with its state, and three on one machine would share its cores and its disk.

A server is filled with --bytes of keys and values, and started again. Then keys are put again at --rate, in slices of some
seconds. It tells

- fill: seconds, keys a second, and resident memory afterwards;
- of the slices, those in which a snapshot was being written and the others (Synod): the median of the 99th percentiles of a
  put, and the longest put of all;
- the executor's longest job while the server was filled, and since it was started again, as time and as processor time, and
  the bytes of snapshots that were written for a byte of log, in these slices (Synod);
- restart: seconds from the start of the program until it answers /health, which takes a linearizable read, and the most
  memory that it took until then. The files are in the page cache, as after the restart of a process.
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from built import generator
from measured import Member, arguments_of, etcd_of

KEY_BYTES = 16
PUTS_OF_TRANSACTION = 100
PORT = 24890
QUOTA = 8 << 30


def writes_snapshot(member):
    return any(member.folder.glob("**/snapshot-*.tmp"))


class SnapshotWatch(threading.Thread):
    """Whether a snapshot was being written while something else went on."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.seen, self.ends = server, False, False
        self.start()

    def run(self):
        while not self.ends:
            self.seen |= writes_snapshot(self.server)
            time.sleep(0.02)


def generate(program, arguments):
    endpoint = f"--endpoints=http://127.0.0.1:{PORT}"
    done = subprocess.run([program, endpoint, "--conns=10", *arguments], capture_output=True, text=True)
    text = done.stdout + done.stderr
    if "Requests/sec" not in text:
        sys.exit(f"the load generator failed: {text[-2000:]}")
    return text


def fill(program, keys, value_bytes):
    began = time.monotonic()
    transactions = keys // PUTS_OF_TRANSACTION
    generate(program, ["--clients=40", "txn-put", f"--txn-ops={PUTS_OF_TRANSACTION}", f"--key-size={KEY_BYTES}",
                       f"--val-size={value_bytes}", f"--total={transactions}", f"--key-space-size={keys}"])
    return time.monotonic() - began


def slice_of_puts(program, server, keys, value_bytes, rate, seconds):
    """The 99th percentile and the longest of the puts, in ms, and whether a snapshot was being written."""
    watch = SnapshotWatch(server)
    text = generate(program, ["--clients=100", "put", f"--rate={rate}", f"--total={int(rate * seconds)}",
                              f"--key-size={KEY_BYTES}", f"--val-size={value_bytes}", f"--key-space-size={keys}"])
    watch.ends = True
    slow = float(re.search(r"99% in ([\d.]+) secs", text).group(1)) * 1e3
    longest = float(re.search(r"Slowest:\s+([\d.]+) secs", text).group(1)) * 1e3
    return slow, longest, watch.seen


def measure(program, name, server, keys, arguments, value_bytes):
    took = fill(program, keys, value_bytes)
    of_synod = name == "synod"
    longest = f"; executor's longest job: {server.longest_job()}" if of_synod else ""
    print(f"{name:8}fill: {took:.0f} s, {keys / took:.0f} keys/s, {server.memory() / 1e9:.2f} GB of memory{longest}", flush=True)
    server.stop()
    server.start()
    numbers = ["synod_snapshot_written_bytes_total", "synod_log_written_bytes_total"]
    before = [server.metric(number) for number in numbers] if of_synod else []
    slices, began = [], time.monotonic()
    while time.monotonic() - began < arguments.seconds:
        slices.append(slice_of_puts(program, server, keys, value_bytes, arguments.rate, arguments.slice))
    for what, seen in [("no snapshot", False), ("snapshot", True)]:
        of = [one for one in slices if one[2] == seen]
        if of:
            slow, longest = statistics.median(one[0] for one in of), max(one[1] for one in of)
            print(f"{name:8}put, {what}: {len(of)} slices, 99 % {slow:.1f} ms, longest {longest:.0f} ms", flush=True)
    if of_synod:
        snapshots, log = (server.metric(number) - was for number, was in zip(numbers, before))
        print(f"{name:8}executor's longest job since then: {server.longest_job()}; snapshots: {snapshots / 1e6:.0f} MB for "
              f"{log / 1e6:.0f} MB of log", flush=True)
    while writes_snapshot(server):
        time.sleep(0.1)
    memory = server.memory()
    server.stop()
    disk = sum(file.stat().st_size for file in server.folder.glob("**/*") if file.is_file())
    took = [server.start()]
    most = server.memory("VmHWM")
    for _ in range(arguments.restarts - 1):
        server.stop()
        took.append(server.start())
    print(f"{name:8}restart: {statistics.median(took):.2f} s ({', '.join(f'{one:.2f}' for one in took)}), "
          f"{most / 1e9:.2f} GB of memory (before: {memory / 1e9:.2f} GB), {disk / 1e9:.2f} GB on disk", flush=True)


def main():
    parser = arguments_of(__doc__, "synod-watchers")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="keys and values that a server is filled with")
    parser.add_argument("--values", default="1000,100", help="bytes of a value, of each run")
    parser.add_argument("--rate", type=int, default=2_000, help="puts a second")
    parser.add_argument("--seconds", type=int, default=180, help="for how long keys are put again")
    parser.add_argument("--slice", type=int, default=5, help="seconds of a slice")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--flag", action="append", default=[], help="a further flag for Synod")
    arguments = parser.parse_args()
    program = generator(arguments.cache)
    quota = f"--quota-backend-bytes={QUOTA}"
    systems = {
        "etcd": ([etcd_of(arguments)], [quota]),
        "synod": ([arguments.synod, "serve"], [quota, *arguments.flag]),
    }
    for value_bytes in map(int, arguments.values.split(",")):
        keys = arguments.bytes // (value_bytes + KEY_BYTES) // PUTS_OF_TRANSACTION * PUTS_OF_TRANSACTION
        print(f"\n{keys} keys, values of {value_bytes} bytes", flush=True)
        for name, (command, flags) in systems.items():
            folder = Path(tempfile.mkdtemp(dir=arguments.dir))
            server = Member(command, folder / "data", PORT, flags)
            try:
                measure(program, name, server, keys, arguments, value_bytes)
            finally:
                server.stop()
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
