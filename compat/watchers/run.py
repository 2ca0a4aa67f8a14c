#!/usr/bin/env python3
"""Measures watches of Synod and of etcd in one run, with etcd's own load generator and with clients of our own.

    cargo build --release -p synod-cli
    python3 compat/watchers/run.py --synod target/release/synod

The generator is `benchmark` of the Go module go.etcd.io/etcd/v3 v3.5.17, which Go builds from the module proxy. It runs on the
same machine as the servers, each of which is one member with its data on the disk under --dir, fsynced. The two take turns, so
that each figure has its counterpart a moment before or after. Of each number of watchers it tells

- events a second that all watchers together were told, while puts change the keys that they watch;
- the server's most resident memory, and memory a watcher: how much more that is than of another server of the same kind that had
  one watcher a stream and the same puts, divided by the number of watchers that it had more;
- the latency from a put's answer to the event of one watcher, when there is no other.

compat/load, which has etcd's client, then puts while all watchers are open, each writer the next key once everybody who watches the
last one was told, and tells how long after the beginning of a put its events arrived, of all watchers together.
"""

import contextlib
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
from built import generator, load
from measured import Member, arguments_of, etcd_of

# Streams, watchers of each, and puts: few puts where each of them is an event for many.
LOADS = [(1, 1, 20_000), (10, 100, 200), (100, 1_000, 10)]
# Streams, watchers of each, keys, puts, and how many write at a time.
OPEN = [(1, 1, 1, 5_000, 1), (10, 100, 1, 200, 1), (100, 1_000, 1, 20, 1), (100, 1_000, 100_000, 20_000, 16)]
PORT = 24790


class Peak(threading.Thread):
    """The most memory that a server takes while something runs."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.most, self.ends = server, 0, False
        self.start()

    def run(self):
        while not self.ends:
            self.most = max(self.most, self.server.memory())
            time.sleep(0.05)


def generate(program, arguments):
    endpoint = f"--endpoints=http://127.0.0.1:{PORT}"
    done = subprocess.run([program, endpoint, *arguments], capture_output=True, text=True, timeout=600)
    return done.stdout + done.stderr


def watch(program, server, streams, each, puts):
    """Events a second, and the most resident memory."""
    peak = Peak(server)
    text = generate(program, ["--conns=10", "--clients=10", "watch", f"--streams={streams}",
                              f"--watch-per-stream={each}", "--watched-key-total=1", f"--put-total={puts}"])
    peak.ends = True
    # The summaries are of opening the watches, and of the events.
    rates = [float(rate) for rate in re.findall(r"Requests/sec:\s+([\d.]+)", text)]
    return rates[-1], peak.most


def latency(program):
    text = generate(program, ["watch-latency", "--total=500", "--put-rate=200"])
    found = re.findall(r"(\d+)% in ([\d.]+) secs", text)
    by_share = {int(share): float(seconds) * 1e3 for share, seconds in found}
    return by_share.get(50, float("nan")), by_share.get(99, float("nan"))


def put_while_open(program, numbers):
    """Events a second; the median, the 99th percentile and the maximum of their latency; and a put's median."""
    words = [program, "watchers", f"127.0.0.1:{PORT}", *map(str, numbers)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stderr}")
    return map(float, done.stdout.split())


def main():
    parser = arguments_of(__doc__, "synod-watchers")
    parser.add_argument("--rounds", type=int, default=3, help="medians are of this many")
    arguments = parser.parse_args()
    program = generator(arguments.cache)
    systems = {"etcd": [etcd_of(arguments)], "synod": [arguments.synod, "serve"]}

    @contextlib.contextmanager
    def member(name):
        folder = Path(tempfile.mkdtemp(dir=arguments.dir))
        server = Member(systems[name], folder / "data", PORT)
        try:
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder)

    print(f"{'watchers':>9} {'system':8}{'events/s':>12}{'memory, MB':>12}{'bytes a watcher':>17}   "
          "put to event, ms: median, 99 %")
    for streams, each, puts in LOADS:
        results = {name: [] for name in systems}
        for _ in range(arguments.rounds):
            for name in systems:
                a_watcher = float("nan")
                with member(name) as server:
                    rate, most = watch(program, server, streams, each, puts)
                    times = latency(program)
                if each > 1:
                    with member(name) as server:
                        _, few = watch(program, server, streams, 1, puts)
                    a_watcher = (most - few) / (streams * (each - 1))
                results[name].append((rate, most / 1e6, a_watcher, *times))
        for name, rounds in results.items():
            events, most, a_watcher, median, slow = (statistics.median(column) for column in zip(*rounds))
            a_watcher = f"{a_watcher:.0f}" if each > 1 else "-"
            print(f"{streams * each:9} {name:8}{events:12.0f}{most:12.1f}{a_watcher:>17}   {median:10.2f} {slow:10.2f}",
                  flush=True)


    program = load(arguments.cache)
    print(f"\n{'watchers':>9} {'keys':>8} {'system':8}{'events/s':>12}   put to event, ms: median, 99 %, most; put, median")
    for numbers in OPEN:
        results = {name: [] for name in systems}
        for _ in range(arguments.rounds):
            for name in systems:
                with member(name):
                    results[name].append(put_while_open(program, numbers))
        streams, each, keys, *_ = numbers
        for name, rounds in results.items():
            events, *times = (statistics.median(column) for column in zip(*rounds))
            times = " ".join(f"{time:10.2f}" for time in times)
            print(f"{streams * each:9} {keys:8} {name:8}{events:12.0f}   {times}", flush=True)


if __name__ == "__main__":
    main()
