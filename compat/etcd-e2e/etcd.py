#!/usr/bin/env python3
"""Stands for `etcd` in etcd's end-to-end suite: starts `synod serve` with the same flags.

The suite waits for the line below, and ends the program by signals. `etcd --version` tells the version of the API that is
served.
"""

import http.client
import os
import socket
import ssl
import subprocess
import sys
import time

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
        tell_ready(asking(arguments), os.getppid())
        return 0
    os.execv(SYNOD, [SYNOD, "serve", *arguments])


def name_of(argument):
    """The name of a flag that has its value after an equals sign, or needs none."""
    return argument.partition("=")[0].removeprefix("--")


def value_of(arguments, wanted):
    """The value of a flag, with an equals sign or without."""
    for at, argument in enumerate(arguments):
        _, given, value = argument.partition("=")
        if name_of(argument) == wanted:
            return value if given else arguments[at + 1]
    return None


def asking(arguments):
    """A function that makes a connection to the first address for clients."""
    url = (value_of(arguments, "listen-client-urls") or "http://127.0.0.1:2379").split(",")[0]
    scheme, _, address = url.partition("://")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    certificate = value_of(arguments, "cert-file")
    if certificate:
        # A server may want to see one, and takes its own.
        context.load_cert_chain(certificate, value_of(arguments, "key-file"))

    def connect():
        if scheme == "http":
            return http.client.HTTPConnection(address, timeout=1)
        if scheme == "https":
            return http.client.HTTPSConnection(address, timeout=1, context=context)
        connection = http.client.HTTPConnection("localhost", timeout=1)
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(1)
        plain.connect(address)
        connection.sock = context.wrap_socket(plain) if scheme == "unixs" else plain
        return connection

    return connect


def tell_ready(connect, replica):
    """Prints the line once the replica answers, unless it has ended before."""
    while os.getppid() == replica:
        try:
            connection = connect()
            connection.request("GET", "/health?serializable=true")
            if connection.getresponse().status == 200:
                print(READY, file=sys.stderr, flush=True)
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
