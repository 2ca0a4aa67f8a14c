#!/usr/bin/env python3
"""Runs Patroni, which keeps a cluster of PostgreSQL available, on three replicas of Synod, and checks what its users rely on.

    cargo build --release -p synod-cli
    python3 compat/patroni/run.py --synod target/release/synod

Patroni uses etcd's v3 API as JSON over HTTP: leases, transactions, a watch. pip installs it; PostgreSQL must be there, on Debian
by `apt-get install postgresql`. PostgreSQL refuses to run as root: if root runs this, it runs as the user `postgres` (--user).

A writer inserts a row every 50 ms all the time. Meanwhile replicas of Synod are killed, stopped and replaced, all killed at
once too, the primary of PostgreSQL is killed, and an operator's commands are given, such as switchover, edit-config and pause.
At the end every row that was acknowledged must be there, once. A table tells each check, its result and its seconds; the exit
code is 1 if one failed. It takes five minutes.

With --tls there are TLS with certificates on both sides, and a user with a password who may use Patroni's keys only. With --etcd
the same checks run on etcd, for comparison.
"""

import os
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from certificates import certificates  # noqa: E402
from checks import arguments_of, must, play, print_table, program_of, reconfigure, wait_for  # noqa: E402
from members import COUNT, Members  # noqa: E402
from nodes import (  # noqa: E402
    LOOP_WAIT, PREFIX, SCOPE, TTL, Nodes, install, postgres_folder, run_by_a_python_of, unprivileged,
)

# Seconds that PostgreSQL may take, beside what Patroni waits for.
TO_PROMOTE = 5
TO_COME_BACK = 90
# Killing or stopping one replica may keep writes up so long, which do not need the store.
WRITES_MISSED_MAX = 2


class Writer(threading.Thread):
    """Inserts rows one after another at whichever node takes writes."""

    def __init__(self, nodes):
        super().__init__(daemon=True)
        self.nodes, self.ended = nodes, threading.Event()
        self.next, self.acknowledged = 0, []

    def connect(self, **more):
        import psycopg2

        hosts = ",".join(["127.0.0.1"] * len(self.nodes.names))
        ports = ",".join(str(self.nodes.sql_ports[name]) for name in self.nodes.names)
        connection = psycopg2.connect(
            host=hosts, port=ports, user="postgres", password=self.nodes.passwords["postgres"], dbname="postgres",
            target_session_attrs="read-write", connect_timeout=2, **more,
        )
        connection.autocommit = True
        return connection

    def query(self, name, text):
        """The only value that a node answers."""
        import psycopg2

        connection = psycopg2.connect(
            host="127.0.0.1", port=self.nodes.sql_ports[name], user="postgres", dbname="postgres",
            password=self.nodes.passwords["postgres"], connect_timeout=2,
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(text)
                return cursor.fetchall()
        finally:
            connection.close()

    def create(self):
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("create table rows (number bigint)")

    def run(self):
        import psycopg2

        connection = None
        while not self.ended.is_set():
            try:
                connection = connection or self.connect()
                number, self.next = self.next, self.next + 1
                with connection.cursor() as cursor:
                    cursor.execute("insert into rows values (%s)", (number,))
                self.acknowledged.append((number, time.monotonic()))
            except psycopg2.Error:
                # Whether this row is there is open: it is not counted as acknowledged, and its number is not used again.
                connection = None
            self.ended.wait(0.05)

    def last(self):
        return self.acknowledged[-1][1] if self.acknowledged else 0

    def missed(self, since):
        """The longest time without an acknowledged row since then."""
        times = [since, *(at for _, at in list(self.acknowledged) if at > since), time.monotonic()]
        return max(after - before for before, after in zip(times, times[1:]))

    def wait_for_row(self, seconds):
        began = time.monotonic()
        wait_for("a row is written", lambda: self.last() > began, seconds)
        return self.last() - began


class Run:
    """The checks, in their order. Each returns what it saw, as a text, or raises."""

    def __init__(self, members, nodes, writer, synod, flags):
        self.members, self.nodes, self.writer, self.synod, self.flags = members, nodes, writer, synod, flags

    def leader_key(self):
        return self.members.keys(f"{PREFIX}leader").get(f"{PREFIX}leader")

    def state(self):
        """What must not change if the primary stays: who it is, its timeline, and the lease of its key."""
        primary = self.nodes.primary()
        pair = self.leader_key()
        return primary, self.nodes.say(primary).get("timeline") if primary else None, pair and pair.get("lease")

    def begin(self):
        """the cluster begins"""
        for name in self.nodes.names:
            self.nodes.start(name)
        self.nodes.wait_until_whole(TO_COME_BACK)
        self.writer.create()
        self.writer.start()
        self.writer.wait_for_row(5)
        return f"{self.nodes.primary()} is the primary, all others follow it"

    def rows_arrive(self):
        """a row is at all nodes"""
        number = self.writer.acknowledged[-1][0]
        for name in self.nodes.names:
            read = lambda: self.writer.query(name, f"select count(*) from rows where number = {number}")[0][0] == 1
            wait_for(f"row {number} at {name}", read, 10)
        return f"row {number}"

    def patronictl_lists(self):
        """patronictl list"""
        listed = {row["Member"]: (row["Role"], row["State"]) for row in self.nodes.list()}
        must(sorted(listed) == self.nodes.names, f"it lists {listed}")
        roles = sorted(role for role, _ in listed.values())
        expected = sorted(["Leader", "Sync Standby", *["Replica"] * (len(listed) - 2)])
        must(roles == expected, f"it lists {listed}")
        return ", ".join(f"{name} {role}" for name, (role, _) in listed.items())

    def keys_are_there(self):
        """Patroni's keys"""
        keys = self.members.keys(PREFIX)
        expected = ["config", "initialize", "leader", "status", "sync", *(f"members/{name}" for name in self.nodes.names)]
        missing = [key for key in expected if PREFIX + key not in keys]
        must(not missing, f"not in the store: {missing}")
        leased = [key for key in ["leader", *(f"members/{name}" for name in self.nodes.names)] if "lease" in keys[PREFIX + key]]
        must(len(leased) == 1 + len(self.nodes.names), f"only {leased} have leases")
        return f"{len(keys)} keys, {len(leased)} of them with leases"

    def undisturbed(self, disturb):
        """Runs something that the primary must not notice."""
        before, began = self.state(), time.monotonic()
        disturb()
        # A primary that was hurt shows it one round later.
        time.sleep(2 * LOOP_WAIT)
        after, missed = self.state(), self.writer.missed(began)
        must(after == before, f"primary, timeline and lease were {before} and are {after}")
        must(missed < WRITES_MISSED_MAX, f"no row was written for {missed:.1f} s")
        self.nodes.wait_until_whole(TO_COME_BACK)
        return f"{before[0]} stays, its lease is kept; longest time without a row {missed:.2f} s"

    def one_after_another_killed(self):
        """each replica of the store is killed"""
        def disturb():
            first = self.members.leader()
            for of in [first, *(of for of in range(COUNT) if of != first)]:
                self.members.kill(of)
                time.sleep(TTL / 3)
                self.members.start(of)
                self.members.wait_until_serving([of])

        return self.undisturbed(disturb)

    def leader_is_stopped(self):
        """the store's leader is silent"""
        def disturb():
            of = self.members.leader()
            self.members.pause(of)
            time.sleep(TTL / 2)
            self.members.resume(of)
            self.members.wait_until_serving([of])

        return self.undisturbed(disturb)

    def member_is_replaced(self):
        """a replica of the store is replaced"""
        def disturb():
            first = self.members.leader()
            gone, other = [of for of in range(COUNT) if of != first]
            self.members.kill(gone)
            self.members.replace(gone)
            self.members.wait_until_serving([gone])
            wait_for("the new replica votes", lambda: not self.members.learners(), 30)
            # From now on there is no quorum without it.
            self.members.kill(other)
            time.sleep(TTL / 3)
            self.members.start(other)
            self.members.wait_until_serving([other])

        return self.undisturbed(disturb)

    def protocol_is_changed(self):
        """the store's protocol is changed"""
        if not self.synod:
            return "etcd has one only"
        if self.flags:
            return "left out, since there are further flags"

        def disturb():
            for protocol in ["raft", "sequence-paxos", "multipaxos"]:
                reconfigure(self.synod, self.members, protocol)
                # Longer than Patroni tries before its primary steps down.
                time.sleep(TTL / 2)

        return self.undisturbed(disturb)

    def primary_is_killed(self):
        """the primary is killed"""
        old, pair = self.nodes.primary(), self.leader_key()
        self.nodes.kill(old)
        began = time.monotonic()
        wait_for("its key ends with its lease", lambda: (self.leader_key() or {}).get("lease") != pair["lease"], TTL + LOOP_WAIT)
        ended = time.monotonic() - began
        # It was renewed a round ago at most, so it lasts so long at least.
        must(ended > TTL - 2 * LOOP_WAIT, f"its lease of {TTL} s ended {ended:.1f} s after the kill")
        new = wait_for("another primary", self.nodes.primary, LOOP_WAIT + TO_PROMOTE)
        self.writer.wait_for_row(TO_PROMOTE)
        took = time.monotonic() - began
        must(new != old, f"{old} is the primary again")
        must(took < TTL + LOOP_WAIT + TO_PROMOTE, f"after {took:.1f} s rows are written again")
        wait_for(f"{old} is gone from the list", lambda: old not in [row["Member"] for row in self.nodes.list()], LOOP_WAIT + 3)
        self.nodes.start(old)
        self.nodes.wait_until_whole(TO_COME_BACK)
        return f"its lease ends after {ended:.1f} s, {new} takes rows after {took:.1f} s, {old} follows it"

    def killed_with_a_replica_down(self):
        """the primary is killed while the store lacks a replica"""
        of = self.members.leader()
        self.members.kill(of)
        try:
            return self.primary_is_killed()
        finally:
            self.members.start(of)
            self.members.wait_until_serving([of])

    def history_is_there(self):
        """history of failovers"""
        history = self.nodes.ctl("history", SCOPE, "-f", "json")
        timeline = self.nodes.say(self.nodes.primary())["timeline"]
        must(history.count("no recovery target specified") == timeline - 1, f"timeline {timeline}, but its history is {history}")
        must(timeline == 1 or f"{PREFIX}history" in self.members.keys(PREFIX), "there is no key `history`")
        return f"timeline {timeline}, {timeline - 1} changes"

    def switchover(self):
        """patronictl switchover"""
        old, new, began = self.nodes.primary(), self.nodes.synchronous(), time.monotonic()
        told = self.nodes.ctl("switchover", SCOPE, "--leader", old, "--candidate", new, "--force")
        must("Successfully switched over" in told, f"it says {told}")
        wait_for(f"{new} is the primary", lambda: self.nodes.primaries() == [new], LOOP_WAIT + TO_PROMOTE)
        self.nodes.wait_until_whole(TO_COME_BACK)
        return f"from {old} to {new}; longest time without a row {self.writer.missed(began):.1f} s"

    def configuration_is_edited(self):
        """patronictl edit-config"""
        wanted = f"{random.randrange(5, 60)}MB"
        self.nodes.ctl("edit-config", SCOPE, "--force", "--quiet", "--pg", f"work_mem={wanted}")
        for name in self.nodes.names:
            is_there = lambda: self.writer.query(name, "show work_mem") == [(wanted,)]
            wait_for(f"work_mem is {wanted} at {name}", is_there, 3 * LOOP_WAIT)
        must(wanted in self.nodes.ctl("show-config", SCOPE), "patronictl show-config shows another value")
        return f"work_mem is {wanted} at all nodes"

    def paused(self):
        """patronictl pause, resume"""
        self.nodes.ctl("pause", SCOPE, "--wait")
        must(all(self.nodes.say(name).get("pause") for name in self.nodes.names), "not all nodes are paused")
        # In this time nobody starts PostgreSQL again.
        follower = next(name for name in self.nodes.names if name not in (self.nodes.primary(), self.nodes.synchronous()))
        for pid in self.nodes.postgres_processes(follower)[:1]:
            os.kill(pid, 2)
        wait_for(f"PostgreSQL of {follower} stops", lambda: not self.nodes.postgres_processes(follower), 15)
        time.sleep(3 * LOOP_WAIT)
        must(not self.nodes.postgres_processes(follower), f"PostgreSQL of {follower} was started during the pause")
        self.nodes.ctl("resume", SCOPE, "--wait")
        self.nodes.wait_until_whole(TO_COME_BACK)
        return f"PostgreSQL of {follower} stays stopped until the pause ends"

    def store_is_away_shortly(self):
        """the whole store is started again"""
        def disturb():
            for of in range(COUNT):
                self.members.kill(of)
            for of in range(COUNT):
                self.members.start(of)
            self.members.wait_until_serving()

        return self.undisturbed(disturb)

    def store_is_away(self):
        """the whole store is away for long"""
        before = self.nodes.primary()
        for of in range(COUNT):
            self.members.kill(of)
        # The lease was renewed a round ago at most, so it could end from then on.
        began, lease = time.monotonic(), TTL - LOOP_WAIT
        wait_for("no node is a primary", lambda: not self.nodes.primaries(), lease)
        demoted = time.monotonic() - began
        time.sleep(max(0, TTL + LOOP_WAIT - demoted))
        must(self.writer.last() < began + lease, "rows were written when the lease may have ended")
        for of in range(COUNT):
            self.members.start(of)
        self.members.wait_until_serving()
        seconds = self.writer.wait_for_row(TTL + LOOP_WAIT + TO_PROMOTE)
        self.nodes.wait_until_whole(TO_COME_BACK)
        return f"{before} stops taking rows after {demoted:.1f} s; rows are written {seconds:.1f} s after the store is back"

    def failsafe(self):
        """the whole store is away, failsafe mode"""
        self.nodes.ctl("edit-config", SCOPE, "--force", "--quiet", "--set", "failsafe_mode=true")
        wait_for("the key `failsafe`", lambda: f"{PREFIX}failsafe" in self.members.keys(PREFIX), 5 * LOOP_WAIT)
        # The followers have to learn of it as well.
        time.sleep(2 * LOOP_WAIT)

        def disturb():
            for of in range(COUNT):
                self.members.kill(of)
            time.sleep(TTL + LOOP_WAIT)
            for of in range(COUNT):
                self.members.start(of)
            self.members.wait_until_serving()

        return self.undisturbed(disturb)

    def rows_are_there(self):
        """every acknowledged row is there"""
        self.writer.ended.set()
        self.writer.join(30)
        found = [number for number, in self.writer.query(self.nodes.primary(), "select number from rows order by number")]
        acknowledged = {number for number, _ in self.writer.acknowledged}
        lost = sorted(acknowledged - set(found))
        must(not lost, f"{len(lost)} of {len(acknowledged)} are lost, such as {lost[:5]}")
        must(len(found) == len(set(found)) and max(found) < self.writer.next, "some are there twice, or were never written")
        return f"{len(acknowledged)} rows, and {len(found) - len(acknowledged)} whose writer heard no answer"

    def removed(self):
        """patronictl remove"""
        self.nodes.stop()
        self.nodes.ctl("remove", SCOPE, answers=f"{SCOPE}\nYes I am aware\n")
        keys = self.members.keys(PREFIX)
        must(not keys, f"still there: {sorted(keys)}")
        return "no key is left"

    ORDER = [
        rows_arrive, patronictl_lists, keys_are_there, switchover, configuration_is_edited, paused,
        one_after_another_killed, leader_is_stopped, member_is_replaced, protocol_is_changed, store_is_away_shortly,
        primary_is_killed, killed_with_a_replica_down, store_is_away, failsafe, history_is_there, rows_are_there, removed,
    ]

    def mend(self):
        """Starts what a check that failed has left killed, so that the next one begins with all."""
        for of in range(COUNT):
            if self.members.processes[of].poll() is not None:
                self.members.start(of)
            self.members.resume(of)
        for name in self.nodes.names:
            if self.nodes.processes[name].poll() is not None:
                self.nodes.start(name)
        try:
            self.members.wait_until_serving()
            self.nodes.wait_until_whole(TO_COME_BACK)
        except RuntimeError as error:
            print(f"  and the cluster does not come back: {error}", flush=True)


def parsed():
    parser = arguments_of(__doc__, "Patroni")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of Patroni, three at least (default 3)")
    parser.add_argument("--postgres", metavar="FOLDER", help="where `postgres` and `initdb` are (default: the newest found)")
    parser.add_argument("--user", default="postgres", help="who PostgreSQL and Patroni run as, if root runs this")
    parser.add_argument("--cache", type=Path, help="where Patroni is kept, for all to read; without it each run installs it again")
    arguments = parser.parse_args()
    if arguments.nodes < 3:
        parser.error("--nodes: three at least, so that one is neither the primary nor its synchronous standby")
    return arguments


def etcd3(members, password):
    """Patroni's section `etcd3`."""
    hosts = [client.partition("://")[2] for client in members.clients]
    if not members.files:
        return {"hosts": hosts}
    files = members.files
    return {"hosts": hosts, "protocol": "https", "cacert": f"{files}/ca.pem", "cert": f"{files}/client.pem",
            "key": f"{files}/client.key", "username": "patroni", "password": password}


def main():
    arguments = parsed()
    program, command = program_of(arguments)
    postgres, user = postgres_folder(arguments.postgres), unprivileged(arguments.user)
    run_by_a_python_of(user)
    folder = Path(tempfile.mkdtemp(prefix="synod-patroni-"))
    folder.chmod(0o755)
    patroni = install((arguments.cache or folder / "pip").resolve())
    sys.path.append(str(patroni))
    files = certificates(folder / "certificates", ("server", "client")) if arguments.tls else None
    flags = [flag for flag in arguments.flags.split(",") if flag]
    members, nodes, failed = Members(command, folder, flags, files), None, ["the cluster"]
    try:
        members.wait_until_serving()
        password = secrets.token_hex(12)
        if arguments.tls:
            members.require_passwords(secrets.token_hex(12), "patroni", password, "/service/")
        nodes = Nodes(arguments.nodes, folder, patroni, postgres, user, etcd3(members, password))
        if files:
            nodes.give_away(files / "client.key")
        synod = None if arguments.etcd else program
        run = Run(members, nodes, Writer(nodes), synod, flags)
        failed = print_table(play(run, Run.begin, Run.ORDER, arguments.only, run.mend))
    except RuntimeError as error:
        print(f"the cluster does not begin: {error}")
    finally:
        if nodes:
            nodes.stop()
        members.stop()
    if failed or arguments.keep:
        print(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
