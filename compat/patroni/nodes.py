"""Nodes of Patroni, each with a PostgreSQL of its own, on this machine."""

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from members import free_ports  # noqa: E402

VERSION = "4.1.5"
PACKAGES = [f"patroni[etcd3]=={VERSION}", "psycopg2-binary==2.9.13"]
SCOPE = "demo"
PREFIX = f"/service/{SCOPE}/"

# Seconds. A lease lasts TTL, the shortest that Patroni takes; a node looks at the store every LOOP_WAIT, and gives a request up
# after RETRY_TIMEOUT, of which each member of the store gets a third.
TTL, LOOP_WAIT, RETRY_TIMEOUT = 20, 2, 6


def install(folder):
    """Patroni, unless it is there."""
    place = folder / f"patroni-{VERSION}-python{sys.version_info.major}.{sys.version_info.minor}"
    if (place / "bin" / "patroni").exists():
        return place
    print(f"installing Patroni {VERSION} with pip", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"pip does not install {' '.join(PACKAGES)}:\n{done.stderr}")
    return place


def postgres_folder(given):
    """The folder of `postgres` and `initdb`."""
    def version(folder):
        return [int(part) for part in folder.parent.name.split(".") if part.isdigit()]

    if given:
        places = [Path(given).resolve()]
    else:
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=version, reverse=True)
        found = shutil.which("postgres")
        places += [Path(found).resolve().parent] if found else []
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    where = f"in {given}" if given else "(on Debian: apt-get install postgresql), or name its folder with --postgres"
    sys.exit(f"no PostgreSQL is found {where}")


def unprivileged(name):
    """The user that PostgreSQL runs as, since it refuses to run as root; None if this program is not root itself."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        sys.exit(f"there is no user {name!r} for PostgreSQL to run as: name one with --user")


def run_by_a_python_of(user):
    """Patroni runs with the Python that runs this program, so that user must be able to; else the system's takes over."""
    if user is None:
        return
    try:
        subprocess.run([sys.executable, "-c", ""], user=user.pw_uid, group=user.pw_gid, extra_groups=[], check=True)
    except (OSError, subprocess.CalledProcessError):
        system = "/usr/bin/python3"
        if Path(sys.executable).resolve() == Path(system).resolve() or not Path(system).exists():
            sys.exit(f"the user {user.pw_name} cannot run {sys.executable}: run this program with a Python that all may run")
        os.execv(system, [system, *sys.argv])


def descendants(pid):
    """The processes that a process has started, and those that they have."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, rest = [], [pid]
    while rest:
        started = children.get(rest.pop(), [])
        found += started
        rest += started
    return found


def killed(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Nodes:
    """Nodes of one cluster of Patroni, of which one at a time is the primary. `etcd3` says how they reach the store."""

    def __init__(self, count, folder, patroni, postgres, user, etcd3):
        self.folder, self.patroni, self.postgres, self.user, self.etcd3 = folder, patroni, postgres, user, etcd3
        self.names = [f"p{of}" for of in range(count)]
        ports = free_ports(2 * count)
        self.rest_ports = dict(zip(self.names, ports[:count]))
        self.sql_ports = dict(zip(self.names, ports[count:]))
        self.passwords = {name: secrets.token_hex(12) for name in ["postgres", "replicator", "rewind"]}
        self.processes = {}
        for name in self.names:
            (folder / name).mkdir()
            (folder / f"{name}.yml").write_text(json.dumps(self.configuration(name), indent=1))
            self.give_away(folder / name, folder / f"{name}.yml")

    def give_away(self, *files):
        for file in files:
            if self.user:
                os.chown(file, self.user.pw_uid, self.user.pw_gid)

    def configuration(self, name):
        """JSON, which is YAML too."""
        own = self.folder / name
        user = lambda name: {"username": name, "password": self.passwords[name]}
        return {
            "scope": SCOPE,
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{self.rest_ports[name]}", "connect_address": f"127.0.0.1:{self.rest_ports[name]}"},
            "etcd3": self.etcd3,
            "bootstrap": {
                "dcs": {
                    "ttl": TTL, "loop_wait": LOOP_WAIT, "retry_timeout": RETRY_TIMEOUT,
                    # No row that was acknowledged may be lost by a failover.
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 30, "shared_buffers": "16MB"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.sql_ports[name]}",
                "connect_address": f"127.0.0.1:{self.sql_ports[name]}",
                "data_dir": str(own / "data"), "bin_dir": str(self.postgres), "pgpass": str(own / "pgpass"),
                "authentication": {"superuser": user("postgres"), "replication": user("replicator"), "rewind": user("rewind")},
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication replicator 127.0.0.1/32 scram-sha-256",
                ],
                "parameters": {"unix_socket_directories": str(own)},
            },
        }

    def as_user(self):
        """How to start a process that runs as PostgreSQL's user."""
        environment = {"PATH": f"{self.postgres}:/usr/bin:/bin", "PYTHONPATH": str(self.patroni), "LC_ALL": "C.UTF-8",
                       "HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}
        how = {"env": environment, "cwd": self.folder}
        if self.user:
            how.update(user=self.user.pw_uid, group=self.user.pw_gid, extra_groups=[])
        return how

    def start(self, name):
        command = [sys.executable, str(self.patroni / "bin" / "patroni"), str(self.folder / f"{name}.yml")]
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **self.as_user())

    def postgres_processes(self, name):
        """PostgreSQL of a node: its first process, and those that this one has started."""
        try:
            first = int((self.folder / name / "data" / "postmaster.pid").read_text().split()[0])
            command = Path(f"/proc/{first}/cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            return []
        return [first, *descendants(first)] if str(self.folder / name).encode() in command else []

    def kill(self, name):
        """Kills a node and its PostgreSQL, as when its machine fails."""
        postgres = self.postgres_processes(name)
        self.processes[name].kill()
        for pid in postgres:
            killed(pid)
        self.processes[name].wait()

    def stop(self):
        """Each node stops its PostgreSQL, the primary last."""
        primary = self.primary()
        for name in sorted(self.processes, key=lambda name: name == primary):
            process = self.processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for pid in self.postgres_processes(name):
                killed(pid)

    def ctl(self, *arguments, answers=""):
        """What `patronictl` prints."""
        tool, configuration = self.patroni / "bin" / "patronictl", self.folder / "p0.yml"
        command = [sys.executable, str(tool), "-c", str(configuration), *arguments]
        done = subprocess.run(command, input=answers, capture_output=True, text=True, timeout=120, **self.as_user())
        if done.returncode != 0:
            raise RuntimeError(f"patronictl {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def list(self):
        """What `patronictl list` says, as JSON."""
        return json.loads(self.ctl("list", SCOPE, "-f", "json"))

    def say(self, name):
        """What a node says of itself; {} if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_ports[name]}/patroni", timeout=2) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return {}

    def primary(self):
        """The node that says that its PostgreSQL takes writes; the first of them, if there are several."""
        primaries = self.primaries()
        return primaries[0] if primaries else None

    def primaries(self):
        said = {name: self.say(name) for name in self.processes}
        return [name for name, told in said.items() if told.get("role") == "primary" and told.get("state") == "running"]

    def is_whole(self):
        """One primary, all others follow it, and one of them synchronously."""
        said = [self.say(name) for name in self.names]
        primaries = [told for told in said if told.get("role") == "primary" and told.get("state") == "running"]
        followers = [told for told in said if told.get("role") == "replica" and told.get("replication_state") == "streaming"]
        timelines = {told.get("timeline") for told in primaries + followers}
        synchronous = [told for told in followers if told.get("sync_standby")]
        return len(primaries) == 1 and len(followers) == len(said) - 1 and len(timelines) == 1 and bool(synchronous)

    def synchronous(self):
        return next((name for name in self.names if self.say(name).get("sync_standby")), None)

    def wait_until_whole(self, seconds):
        until = time.monotonic() + seconds
        while not self.is_whole():
            if time.monotonic() > until:
                said = {name: {key: told.get(key) for key in ["state", "role", "timeline", "replication_state", "sync_standby"]}
                        for name, told in ((name, self.say(name)) for name in self.names)}
                raise RuntimeError(f"after {seconds} s not one primary with all others behind it: {said}")
            time.sleep(0.1)
