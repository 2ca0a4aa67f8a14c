"""What Go builds for the programs here: etcd, its tools, its load generator, and clients of our own."""

import os
import subprocess
from pathlib import Path

VERSION = "v3.7.3"
# The modules of etcd's programs, which are their packages as well.
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "etcdctl": "go.etcd.io/etcd/etcdctl/v3",
    "etcdutl": "go.etcd.io/etcd/etcdutl/v3",
}
GENERATOR = ("go.etcd.io/etcd/v3", "v3.5.17", "go.etcd.io/etcd/v3/tools/benchmark")


def go_build(folder, program, package):
    environment = dict(os.environ, GOFLAGS="-mod=mod", CGO_ENABLED="0")
    subprocess.run(["go", "build", "-o", str(program), package], cwd=folder, env=environment, check=True)


def fetched(cache, name, module, version, package):
    """A program of a module of the module proxy, unless it has been built already."""
    folder = cache.resolve() / f"{name}-{version}"
    program = folder / name
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "go.mod").write_text(f"module built\n\ngo 1.24\n\nrequire {module} {version}\n")
        go_build(folder, program, package)
    return str(program)


def etcds(cache, name):
    """One of etcd's programs."""
    return fetched(cache, name, PROGRAMS[name], VERSION, PROGRAMS[name])


def generator(cache):
    """etcd's load generator."""
    return fetched(cache, "benchmark", *GENERATOR)


def load(cache):
    """The clients of compat/load."""
    cache.mkdir(parents=True, exist_ok=True)
    program = cache.resolve() / "load"
    go_build(Path(__file__).parent / "load", program, ".")
    return str(program)
