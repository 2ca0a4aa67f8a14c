"""Three members of Synod, or of etcd, for programs that use etcd: started, killed, stopped for a while, and asked over JSON."""

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from certificates import server_flags  # noqa: E402

COUNT = 3


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def text(content):
    """Bytes as etcd's JSON has them."""
    return base64.b64encode(content.encode()).decode()


class Members:
    """`command` starts a member: `synod serve` or `etcd`. With `files` there is TLS for clients and between members.

    Names begin with `name`, and the first member serves clients at `port`, if that is given. `behind` gets the URLs at
    which members listen for each other, and returns those at which they reach each other."""

    def __init__(self, command, folder, flags=(), files=None, name="n", port=None, behind=list):
        self.command, self.folder, self.flags, self.files = command, folder, list(flags), files
        scheme = "https" if files else "http"
        ports = free_ports(2 * COUNT)
        ports[0] = port or ports[0]
        self.clients = [f"{scheme}://127.0.0.1:{port}" for port in ports[:COUNT]]
        self.listens = [f"{scheme}://127.0.0.1:{port}" for port in ports[COUNT:]]
        self.peers = behind(self.listens)
        self.names = [f"{name}{of}" for of in range(COUNT)]
        self.joined = set()
        self.token = self.root_password = None
        self.context = None
        if files:
            self.context = ssl.create_default_context(cafile=f"{files}/ca.pem")
            self.context.load_cert_chain(f"{files}/client.pem", f"{files}/client.key")
        self.processes = [None] * COUNT
        for of in range(COUNT):
            self.start(of)

    def start(self, of):
        name = self.names[of]
        command = [
            # Two words, since a client's own tests look for the processes of members by them.
            *self.command, "--name", name, f"--data-dir={self.folder}/{name}",
            f"--listen-client-urls={self.clients[of]}", f"--advertise-client-urls={self.clients[of]}",
            f"--listen-peer-urls={self.listens[of]}", f"--initial-advertise-peer-urls={self.peers[of]}",
            "--initial-cluster=" + ",".join(f"{name}={peer}" for name, peer in zip(self.names, self.peers)),
            f"--initial-cluster-state={'existing' if name in self.joined else 'new'}",
            *(server_flags(self.files, "server") if self.files else []), *self.flags,
        ]
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[of] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, of):
        self.processes[of].kill()
        self.processes[of].wait()

    def pause(self, of):
        """The member answers nothing, and keeps its connections."""
        os.kill(self.processes[of].pid, signal.SIGSTOP)

    def resume(self, of):
        os.kill(self.processes[of].pid, signal.SIGCONT)

    def replace(self, of):
        """Removes a member that is killed, and adds another one with other addresses, which has nothing."""
        listed = self.ask("cluster/member/list", {})["members"]
        [old] = [member["ID"] for member in listed if member.get("name") == self.names[of]]
        self.ask("cluster/member/remove", {"ID": old})
        self.names[of] = f"n{COUNT + len(self.joined)}"
        self.joined.add(self.names[of])
        scheme = self.clients[of].partition("://")[0]
        self.clients[of], self.listens[of] = [f"{scheme}://127.0.0.1:{port}" for port in free_ports(2)]
        self.peers[of] = self.listens[of]
        self.ask("cluster/member/add", {"peerURLs": [self.peers[of]]})
        self.start(of)

    def learners(self):
        """Members that do not vote yet. With Synod each new one learns first, and votes once it has caught up."""
        return [member for member in self.ask("cluster/member/list", {})["members"] if member.get("isLearner")]

    def ask_member(self, of, path, body, seconds=3):
        request = urllib.request.Request(f"{self.clients[of]}/v3/{path}", json.dumps(body).encode())
        if self.token:
            request.add_header("Authorization", self.token)
        try:
            with urllib.request.urlopen(request, timeout=seconds, context=self.context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            # A token does not outlive some restarts.
            if refused.code != 401 or not self.token:
                raise
        self.authenticate()
        return self.ask_member(of, path, body, seconds)

    def ask(self, path, body):
        """Asks one member after another until one answers."""
        until, error = time.monotonic() + 30, None
        while time.monotonic() < until:
            for of in range(COUNT):
                if self.processes[of].poll() is not None:
                    continue
                try:
                    return self.ask_member(of, path, body)
                except urllib.error.HTTPError as refused:
                    error = f"{refused}: {refused.read().decode(errors='replace')}"
                except OSError as failed:
                    error = f"{self.clients[of]}: {failed}"
            time.sleep(0.1)
        raise RuntimeError(f"no member answers {path}: {error}")

    def keys(self, prefix):
        """The pairs below a prefix, by their keys, as JSON has them."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.ask("kv/range", {"key": text(prefix), "range_end": text(end)}).get("kvs", [])
        return {base64.b64decode(pair["key"]).decode(): pair for pair in found}

    def statuses(self):
        """What each member that answers says of itself."""
        told = {}
        for of in range(COUNT):
            try:
                told[of] = self.ask_member(of, "maintenance/status", {})
            except OSError:
                pass
        return told

    def leader(self):
        """The number of the member that leads."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            for of, status in self.statuses().items():
                if status.get("leader") == status["header"]["member_id"]:
                    return of
            time.sleep(0.1)
        raise RuntimeError("no member leads")

    def wait_until_serving(self, only=range(COUNT), seconds=60):
        """Until these members answer a read that needs a quorum."""
        until = time.monotonic() + seconds
        for of in only:
            while True:
                try:
                    self.ask_member(of, "kv/range", {"key": text("-")})
                    break
                except urllib.error.HTTPError as refused:
                    # A user without a token is refused by a member that serves.
                    if refused.code < 500:
                        break
                except OSError:
                    pass
                if self.processes[of].poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"member {self.names[of]} does not serve; see {self.folder}/{self.names[of]}.log")
                time.sleep(0.1)

    def require_passwords(self, root_password, user, password, prefix, kind="READWRITE"):
        """From now on each client is a user; this one may read, write or both below a prefix."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        permission = {"permType": kind, "key": text(prefix), "range_end": text(end)}
        for path, body in [
            ("auth/user/add", {"name": "root", "password": root_password}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/role/add", {"name": user}),
            ("auth/role/grant", {"name": user, "perm": permission}),
            ("auth/user/add", {"name": user, "password": password}),
            ("auth/user/grant", {"user": user, "role": user}),
            ("auth/enable", {}),
        ]:
            self.ask(path, body)
        self.root_password = root_password
        self.authenticate()

    def authenticate(self):
        self.token = None
        self.token = self.ask("auth/authenticate", {"name": "root", "password": self.root_password})["token"]

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
