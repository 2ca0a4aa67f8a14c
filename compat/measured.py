"""What the programs that measure Synod and etcd in one run have in common: a member of either, and their arguments."""

import argparse
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from built import VERSION, etcds

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def arguments_of(description, cache):
    """A parser with what each of these programs takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synod", required=True)
    parser.add_argument("--etcd", help=f"a program of etcd; by default Go builds {VERSION}")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / cache, help="for what Go builds")
    parser.add_argument("--dir", help="where the servers keep their data")
    return parser


def etcd_of(arguments):
    """The program of etcd to measure."""
    return arguments.etcd or etcds(arguments.cache, "etcd")


def processor_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


class Member:
    """The only member of a cluster. It can be stopped and started again with the same data."""

    def __init__(self, command, folder, port, flags=()):
        self.endpoint = f"http://127.0.0.1:{port}"
        urls = [f"--listen-client-urls={self.endpoint}", f"--advertise-client-urls={self.endpoint}"]
        peers = [f"--listen-peer-urls=http://127.0.0.1:{port + 1}", f"--data-dir={folder}"]
        self.command = [*command, *urls, *peers, *flags]
        self.folder = folder
        self.start()

    def start(self):
        """Seconds until it answers."""
        began = time.monotonic()
        with open(f"{self.folder}.log", "a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while True:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/health", timeout=5):
                    return time.monotonic() - began
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{self.command[0]} does not start: see {self.folder}.log")
                time.sleep(0.01)

    def memory(self, field="VmRSS"):
        """Bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(field + r":\s+(\d+)", status).group(1)) << 10

    def processor_seconds(self):
        return processor_seconds(self.process)

    def longest_job(self):
        """Of the jobs of Synod's executor so far: the longest, and the most processor time that one took."""
        longest = self.metric("synod_executor_job_longest_seconds") * 1e3
        work = self.metric("synod_executor_job_most_processor_time_seconds") * 1e3
        return f"{longest:.1f} ms, of processor time {work:.1f} ms"

    def metric(self, name):
        """A metric of Synod; None if it has none of this name."""
        with urllib.request.urlopen(f"{self.endpoint}/metrics", timeout=30) as page:
            found = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(found.group(1)) if found else None

    def stop(self):
        self.process.terminate()
        self.process.wait()
