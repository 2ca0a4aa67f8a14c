"""Clients for etcd by others: how each is fetched from its registry, and how its tests are run."""

import abc
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from built import VERSION as ETCDCTL_VERSION
from built import etcds

HERE = Path(__file__).resolve().parent
# The port that some tests of others know and no other.
ETCD_PORT = 2379
# A suite that hangs.
SUITE_SECONDS = 900

PASSED, FAILED, LEFT_OUT = "passed", "FAILED", "left out"


class LeftOut(Exception):
    """A client that cannot be tried on this machine, with the reason."""


def tool(name, remedy):
    if not shutil.which(name):
        raise LeftOut(f"there is no `{name}` ({remedy})")


def fetch(command, folder, **environment):
    """Runs a registry's client, or a compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, cwd=folder, env=dict(os.environ, **environment), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-600:]}")


def said(command, folder, log, **environment):
    """Runs a suite; returns what it prints. One that does not end is ended, and what it has printed so far counts."""
    environment = dict(os.environ, **environment)
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            process.wait(SUITE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return log.read_text(errors="replace")


def pip(folder, *packages):
    fetch([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *packages], folder.parent)


@dataclass
class Client(abc.ABC):
    """A client. `whose` are the tests, and `left_out` are those among them that are not run, with the reasons."""

    name: str
    version: str
    whose: str
    port: int | None = None
    members: str = "n"
    left_out: dict = field(default_factory=dict)

    @abc.abstractmethod
    def fetch(self, cache):
        """Fetches client and tests, unless they are there already."""

    @abc.abstractmethod
    def play(self, cluster, folder):
        """Runs the tests on `cluster`; returns name, result and reason of each. Logs go to `folder`."""

    def place(self, cache):
        return cache / f"{self.name.replace(' ', '-')}-{self.version}"


class Ours(Client):
    """A client for which a program beside this one does what its documentation shows."""

    @abc.abstractmethod
    def command(self):
        """How to run the program, and what to add to the environment."""

    def play(self, cluster, folder):
        command, environment = self.command()
        text = said([*command, *cluster.clients], folder, folder / "suite.log", **environment)
        found = re.findall(r"^(ok|FAILED): ([^:\n]+)(?:: (.*))?$", text, re.M)
        results = [(name, PASSED if result == "ok" else FAILED, why) for result, name, why in found]
        # It says so when it has come to its end.
        is_whole = re.search(r"^end$", text, re.M)
        return results if is_whole else [*results, ("the program runs to its end", FAILED, text.strip()[-600:])]


class Aetcd(Ours):
    def fetch(self, cache):
        self.folder = self.place(cache).with_name(f"{self.place(cache).name}-python{python()}")
        if not (self.folder / "aetcd").exists():
            pip(self.folder, f"aetcd=={self.version}")

    def command(self):
        return [sys.executable, str(HERE / "with_aetcd.py")], {"PYTHONPATH": str(self.folder)}


class NodeEtcd3(Ours):
    def fetch(self, cache):
        for name in ["node", "npm"]:
            tool(name, "on Debian: apt-get install nodejs npm")
        self.folder = self.place(cache)
        if not (self.folder / "node_modules" / "etcd3").exists():
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.folder)]
            fetch([*install, f"etcd3@{self.version}"], self.folder)

    def command(self):
        return ["node", str(HERE / "with_etcd3.js")], {"NODE_PATH": str(self.folder / "node_modules")}


class Jetcd(Ours):
    PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>clients</groupId>
  <artifactId>jetcd</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>io.etcd</groupId><artifactId>jetcd-core</artifactId><version>{}</version></dependency>
  </dependencies>
</project>
"""

    def fetch(self, cache):
        tool("javac", "a JDK of version 17 or later; on Debian: apt-get install default-jdk-headless")
        tool("mvn", "on Debian: apt-get install maven")
        self.folder = self.place(cache)
        if not (self.folder / "whole").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "pom.xml").write_text(self.PROJECT.format(self.version))
            fetch(["mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=jars"], self.folder)
            (self.folder / "whole").touch()

    def command(self):
        return ["java", "-cp", f"{self.folder}/jars/*", str(HERE / "WithJetcd.java")], {}


class PythonEtcd3(Client):
    """Its published source has its tests, which look at the store with etcdctl."""

    # tenacity as its own requirements name it; later ones call it in another way.
    PACKAGES = ["grpcio==1.85.3", "protobuf==3.20.3", "six==1.17.0", "tenacity==6.1.0",
                "pytest==9.2.0", "hypothesis==6.170.17", "mock==5.2.0"]

    def fetch(self, cache):
        tool("go", "for etcdctl, which the tests run")
        tool("pgrep", "on Debian: apt-get install procps")
        place = self.place(cache)
        self.packages = place / f"python{python()}"
        if not (self.packages / "mock").exists():
            pip(self.packages, *self.PACKAGES)
        self.source = place / f"etcd3-{self.version}"
        if not self.source.exists():
            source = ["--no-deps", "--no-binary", ":all:", "--dest", str(place), f"etcd3=={self.version}"]
            fetch([sys.executable, "-m", "pip", "download", "--quiet", *source], place)
            with tarfile.open(f"{self.source}.tar.gz") as archive:
                archive.extractall(place, filter="data")
        self.etcdctl = Path(etcds(cache, "etcdctl")).parent

    def play(self, cluster, folder):
        results = folder / "results.xml"
        command = [sys.executable, "-m", "pytest", "-p", "suite_settings", "-p", "no:cacheprovider", "-q", "tests",
                   f"--junitxml={results}"]
        command += [f"--deselect=tests/test_etcd3.py::{name}" for name in self.left_out]
        text = said(command, self.source, folder / "suite.log", PYTHONPATH=f"{self.packages}:{HERE}",
                    PYTHON_ETCD_HTTP_URL=cluster.clients[0], TEST_ETCD_VERSION=ETCDCTL_VERSION,
                    PATH=f"{self.etcdctl}:{os.environ['PATH']}")
        if not results.exists():
            return [("the suite", FAILED, text.strip()[-600:])]
        return [self.result(case) for case in ElementTree.parse(results).iter("testcase")]

    @staticmethod
    def result(case):
        name = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        for kind, result in [("failure", FAILED), ("error", FAILED), ("skipped", LEFT_OUT)]:
            found = case.find(kind)
            if found is not None:
                return name, result, " ".join((found.get("message") or "").split())[:300]
        return name, PASSED, ""


class CoreDns(Client):
    """Go compiles the tests of the plugin from the module that has it."""

    MODULE = "github.com/coredns/coredns"

    def fetch(self, cache):
        tool("go", "1.26 or later")
        self.folder = self.place(cache)
        self.program = self.folder / "etcd.test"
        if not self.program.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            module = f"module clients\n\ngo 1.26.0\n\nrequire {self.MODULE} {self.version}\n"
            (self.folder / "go.mod").write_text(module)
            build = ["go", "test", "-c", "-tags", "etcd", "-o", str(self.program), f"{self.MODULE}/plugin/etcd"]
            fetch(build, self.folder, GOFLAGS="-mod=mod", CGO_ENABLED="0")

    def play(self, cluster, folder):
        text = said([str(self.program), "-test.v"], folder, folder / "suite.log")
        found = re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", text, re.M)
        why = " ".join(line.strip() for line in text.splitlines() if re.match(r"\s+\w+_test\.go:\d+: ", line))[:600]
        results = {"PASS": (PASSED, ""), "FAIL": (FAILED, why), "SKIP": (LEFT_OUT, "it leaves itself out")}
        return [(name, *results[result]) for result, name in found] or [("the suite", FAILED, text.strip()[-600:])]


def python():
    return f"{sys.version_info.major}.{sys.version_info.minor}"


CLIENTS = [
    NodeEtcd3("node etcd3", "1.1.2", "ours"),
    Jetcd("jetcd", "0.8.7", "ours"),
    PythonEtcd3(
        "python etcd3", "0.12.0", "its own", port=ETCD_PORT,
        # Two tests stop the members whose command lines have these names, but the first.
        members="pifpaf",
        left_out={
            "TestEtcd3::test_snapshot": "it runs `etcdctl snapshot status`, which etcdctl has not had since 3.6; "
                                        "compat/way-back looks at snapshots with etcdutl",
            "TestClient::test_user_pwd_auth": "it replaces a module `etcdrpc`, which the package does not have",
        },
    ),
    Aetcd("aetcd", "1.0.0", "ours"),
    CoreDns(
        "coredns etcd", "v1.15.0", "its own", port=ETCD_PORT,
        left_out={
            "test/etcd_*_test.go": "three tests of another package, whose program has every plugin of CoreDNS and the "
                                   "libraries of clouds; one of them asks servers on the internet",
        },
    ),
]
