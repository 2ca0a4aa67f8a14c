#!/usr/bin/env python3
"""Stands for `etcd` in etcd's end-to-end suite: starts `synod serve` with the same flags.

The suite waits for the line below, and ends the program by signals. `etcd --version` tells the version of the API that is
served.
"""

import os
import subprocess
import sys
import time
import urllib.request

# It stands beside this program.
FOLDER = os.path.dirname(os.path.abspath(__file__))
SYNOD = os.path.join(FOLDER, "synod")
READY = "ready to serve client requests"


def main():
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-version"]):
        text = subprocess.run([SYNOD, "version"], capture_output=True, text=True, check=True).stdout
        version = next(line.split()[-1] for line in text.splitlines() if line.startswith("etcd API"))
        print(f"etcd Version: {version}")
        return 0
    # The suite's signals are to reach the replica itself, so this process becomes it.
    if os.fork() == 0:
        tell_ready(client_url(arguments), os.getppid())
        return 0
    os.execv(SYNOD, [SYNOD, "serve", *arguments])


def name_of(argument):
    """The name of a flag that has its value after an equals sign, or needs none."""
    return argument.partition("=")[0].removeprefix("--")


def client_url(arguments):
    """The first address for clients."""
    for at, argument in enumerate(arguments):
        _, given, value = argument.partition("=")
        if name_of(argument) == "listen-client-urls":
            return (value if given else arguments[at + 1]).split(",")[0]
    return "http://127.0.0.1:2379"


def tell_ready(url, replica):
    """Prints the line once the replica answers, unless it has ended before."""
    while os.getppid() == replica:
        try:
            with urllib.request.urlopen(f"{url}/health?serializable=true", timeout=1):
                print(READY, file=sys.stderr, flush=True)
                return
        except OSError:
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
