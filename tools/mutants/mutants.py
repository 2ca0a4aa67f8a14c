#!/usr/bin/env python3
"""Mutants of production code, all in one build: see docs/mutants.md.

cargo-mutants makes the mutants; this draws some of them by a seed, builds a copy of the tree in which the environment
variable SYNOD_MUTANT chooses one of them while it runs, and runs the tests against each. One build stands for all,
where cargo-mutants builds the tree again for each mutant.

A function with mutants 3 and 7 becomes `{ if on(3) { <its body, mutant 3> } else if on(7) { ... } else { <its body> } }`.
"""

import argparse, collections, concurrent.futures, json, os, pathlib, random, re, shutil, signal, subprocess, sys, time

PACKAGES = ["synod-consensus", "synod-replica"]
# Bugs that the simulator's own tests plant are no production code.
EXCLUDED = ["crates/consensus/src/planted.rs"]
PROTOCOLS = ["multipaxos", "sequence-paxos", "raft"]
# Tests that take many times as long as the others.
SLOW = {"state_transfer"}
MEMORY_BYTES_MAX = 4 << 30

SWITCH = """
/// Which mutant this process runs; only in the copy of the tree that tools/mutants builds.
pub mod mutants {
    use std::{env, io::Write, sync::{OnceLock, atomic::{AtomicBool, Ordering}}};

    static CHOSEN: OnceLock<u32> = OnceLock::new();
    static REACHED: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];
    static REPORT: OnceLock<Option<String>> = OnceLock::new();

    pub fn on(mutant: u32) -> bool {
        if !REACHED[mutant as usize].swap(true, Ordering::Relaxed)
            && let Some(path) = REPORT.get_or_init(|| env::var("SYNOD_MUTANTS_REACHED").ok())
        {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            file.write_all(format!("{mutant}\\n").as_bytes()).unwrap();
        }
        mutant == *CHOSEN.get_or_init(|| env::var("SYNOD_MUTANT").map_or(0, |chosen| chosen.parse().unwrap()))
    }
}
"""

# `synod sim run` without the crates of a server around it.
SEEDS = """
use clap::Parser;

#[derive(Parser)]
struct Cli { #[command(flatten)] run: synod_sim::cli::RunArgs }

fn main() -> std::process::ExitCode { synod_sim::cli::run(&Cli::parse().run) }
"""


def folder_of(package):
    """Where a package is in the tree."""
    return f"crates/{package.removeprefix('synod-')}"


def listed(tree, packages, under):
    """All mutants that cargo-mutants makes of these packages in files under these paths, by their places in the tree."""
    command = ["cargo", "mutants", "--list", "--json", "--no-config"]
    command += [word for package in packages for word in ("-p", package)]
    command += [word for path in EXCLUDED for word in ("--exclude", path)]
    made = json.loads(subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout)
    made = [mutant for mutant in made if not under or mutant["file"].startswith(tuple(under))]
    return sorted(made, key=lambda mutant: (mutant["file"], mutant["span"]["start"]["line"], mutant["span"]["start"]["column"], mutant["name"]))


def masked(text):
    """The text with blanks in the place of comments, strings and characters."""
    token = re.compile(
        r"""//[^\n]*|(?P<block>/\*)|b?r(?P<hashes>\#*)"(?:.|\n)*?"(?P=hashes)|b?"(?:\\.|\n|[^"\\])*"|"""
        r"""b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])'""",
        re.VERBOSE,
    )
    out, place = list(text), 0
    while found := token.search(text, place):
        end = found.end()
        if found["block"]:
            end = text.index("*/", end) + 2
        # `r"` within a name such as `for"` does not occur in formatted code.
        for at in range(found.start(), end):
            if out[at] != "\n":
                out[at] = " "
        place = end
    return "".join(out)


class Source:
    """A source file, and where lines begin in it."""

    def __init__(self, path):
        self.text = path.read_text()
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.mask = masked(self.text)

    def at(self, position):
        return self.starts[position["line"] - 1] + position["column"] - 1

    def body(self, function):
        """Where the function's signature begins, and its body, braces included."""
        start, end = self.at(function["span"]["start"]), self.at(function["span"]["end"])
        open_at = []
        for at in range(start, end):
            if self.mask[at] == "{":
                open_at.append(at)
            elif self.mask[at] == "}":
                opening = open_at.pop()
        assert not open_at and self.mask[end - 1] == "}", (function, self.text[start:end])
        return start, opening, end


def switched(source, mutants):
    """The text of a file in which these mutants, by number, can be chosen; and what each line comes from."""
    functions = collections.defaultdict(list)
    for number, mutant in mutants:
        span = mutant["function"]["span"]
        functions[json.dumps(span)].append((number, mutant))
    edits = []
    for group in functions.values():
        function = group[0][1]["function"]
        start, opening, end = source.body(function)
        boxed = re.match(r"-> impl (.*)$", function["return_type"])
        branches = []
        for number, mutant in group:
            first, last = source.at(mutant["span"]["start"]), source.at(mutant["span"]["end"])
            text = mutant["replacement"]
            assert opening <= first and last <= end, mutant["name"]
            branches.append((number, source.text[opening:first] + text + source.text[last:end]))
        # Branches of an `impl Trait` have to be of one type.
        wrap = (lambda code: f"Box::new({code}) as Box<dyn {boxed[1]}>") if boxed else (lambda code: code)
        text = "{\n"
        for number, branch in branches:
            text += f"/*mutant {number}*/ if ::synod_wire::mutants::on({number}) {{\n{wrap(branch)}\n}} else\n"
        text += f"/*mutant 0*/ {{\n{wrap(source.text[opening:end])}\n}}\n}}"
        signature = source.text[start:opening]
        # What is chosen while it runs is not constant.
        signature = re.sub(r"^((?:pub(?:\([a-z ]*\))? )?)const (fn )", r"\1\2", signature, flags=re.M)
        edits.append((start, end, signature + text))
    edits.sort()
    out, place = "", 0
    for start, end, text in edits:
        assert start >= place, "a function with mutants within another"
        out += source.text[place:start] + text
        place = end
    return out + source.text[place:]


def owners(text):
    """Which mutant each line belongs to, 0 for none."""
    owner, lines = 0, []
    for line in text.splitlines():
        if marked := re.match(r"/\*mutant (\d+)\*/", line):
            owner = int(marked[1])
        lines.append(owner)
    return lines


def copy(tree, scratch):
    """A copy of the tracked files as they stand, with the switch in it."""
    for entry in scratch.iterdir() if scratch.exists() else []:
        if entry.name != "target":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    scratch.mkdir(parents=True, exist_ok=True)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True).stdout
    archive = ["tar", "c", "--null", "--files-from=-"]
    archive = subprocess.run(archive, cwd=tree, check=True, input=tracked, capture_output=True).stdout
    subprocess.run(["tar", "x"], cwd=scratch, check=True, input=archive)
    manifest = scratch / "Cargo.toml"
    # A mutant may leave something unused, or compute what cannot be: that shows when it runs.
    text = re.sub(r"\[workspace\.lints\.(rust|clippy)\]\n(?:.+\n)*", r"[workspace.lints.\1]\n", manifest.read_text())
    allowed = 'arithmetic_overflow = "allow"\nunconditional_panic = "allow"\n'
    manifest.write_text(text.replace("[workspace.lints.rust]\n", "[workspace.lints.rust]\n" + allowed))
    with open(scratch / "crates/wire/src/lib.rs", "a") as wire:
        wire.write(SWITCH)
    (scratch / "crates/sim/src/bin").mkdir()
    (scratch / "crates/sim/src/bin/seeds.rs").write_text(SEEDS)


def write(scratch, sources, chosen):
    """Writes the files of the copy in which mutants are. Returns what their lines belong to."""
    by_file = collections.defaultdict(list)
    for number, mutant in sorted(chosen.items()):
        by_file[mutant["file"]].append((number, mutant))
    lines = {}
    for path, source in sources.items():
        text = switched(source, by_file.get(path, []))
        (scratch / path).write_text(text)
        lines[path] = owners(text)
    return lines


def compile_errors(scratch, command):
    """The messages of cargo that are errors, and the programs that it built."""
    done = subprocess.run(
        ["nice", "-n", "5", "cargo", *command, "--message-format=json"],
        cwd=scratch, stdout=subprocess.PIPE, text=True, env={**os.environ, "CARGO_INCREMENTAL": "0"}, stderr=subprocess.DEVNULL,
    )
    errors, programs = [], []
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        if entry["reason"] == "compiler-message" and entry["message"]["level"] == "error":
            errors.append(entry["message"])
        if entry["reason"] == "compiler-artifact" and entry.get("executable"):
            programs.append((entry["target"]["name"], entry["target"]["kind"][0], entry["executable"]))
    return done.returncode, errors, programs


def build(args):
    tree, scratch = args.tree.resolve(), args.scratch.resolve()
    packages = args.package or PACKAGES
    made = listed(tree, packages, args.under)
    order = list(range(len(made)))
    random.Random(args.seed).shuffle(order)
    copy(tree, scratch)
    sources = {path: Source(tree / path) for path in sorted({mutant["file"] for mutant in made})}
    # A mutant's number is its place in the draw, from 1.
    drawn = {place: made[index] for place, index in enumerate(order, 1)}
    count = min(args.count, len(drawn))
    unviable = {number: "not in a function" for number, mutant in drawn.items() if not mutant["function"]}
    while True:
        chosen = {}
        for number, mutant in drawn.items():
            if len(chosen) < count and number not in unviable and (not args.numbers or number in args.numbers):
                chosen[number] = mutant
        lines = write(scratch, sources, chosen)
        code, errors, _ = compile_errors(scratch, ["check", *(f"-p{package}" for package in packages)])
        if code == 0:
            break
        blamed = {}
        for error in errors:
            for span in error["spans"]:
                at = lines.get(span["file_name"])
                if at and span["is_primary"] and at[span["line_start"] - 1]:
                    blamed[at[span["line_start"] - 1]] = error["message"]
        if not blamed:
            sys.exit("\n".join(error["rendered"] for error in errors))
        unviable |= blamed
        for number, message in sorted(blamed.items()):
            print(f"not compiled: {number} {drawn[number]['name']}: {message}", flush=True)
    last = max(chosen)
    draw = {
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True).stdout.strip(),
        "seed": args.seed,
        "packages": packages,
        "made": len(made),
        "mutants": [
            {"number": number, "name": mutant["name"], "genre": mutant["genre"], "not_compiled": unviable.get(number)}
            for number, mutant in drawn.items() if number <= last
        ],
    }
    units = ["test", "--no-run", *(f"-p{package}" for package in packages), "--lib"]
    if not args.lib:
        folders = [scratch / folder_of(package) / "tests" for package in packages]
        units += [f"--test={path.stem}" for folder in folders for path in sorted(folder.glob("*.rs"))]
    builds = [units] if args.units or args.lib else [
        [*units, "-psynod-sim", "--test=scenarios"], ["build", "--release", "-psynod-sim", "--bin=seeds"],
    ]
    draw["programs"] = []
    for command in builds:
        code, errors, programs = compile_errors(scratch, command)
        assert code == 0, "\n".join(error["rendered"] for error in errors)
        draw["programs"] += programs
    (scratch / "target/draw.json").write_text(json.dumps(draw, indent=1))
    skipped = sum(number < last for number in unviable)
    print(f"{len(made)} made, {len(chosen)} compiled in, {skipped} of those drawn not")


def layers(scratch, draw, seeds, tests):
    """What is run against each mutant, in order: name, command, folder. What takes long comes last."""
    units, last = [], []
    programs = {(name, kind): path for name, kind, path in draw["programs"]}
    for package in draw["packages"]:
        folder = scratch / folder_of(package)
        names = {"synod_" + folder.name} | {path.stem for path in (folder / "tests").glob("*.rs")}
        for (name, kind), path in sorted(programs.items()):
            if name in names and kind in ("lib", "test"):
                (last if name in SLOW else units).append((f"unit: {folder.name} {name}", [path, "-q", *tests], folder))
    if ("seeds", "bin") not in programs:
        return units + last
    scenarios = ("scenarios", [programs["scenarios", "test"], "-q"], scratch / "crates/sim")
    attacks = []
    for protocol in PROTOCOLS:
        command = [programs["seeds", "bin"], "--protocol", protocol, "--seeds", seeds, "--jobs", "1"]
        attacks.append((f"seeds: {protocol}", command, scratch))
    return [scenarios, *units, *attacks, *last]


def attempt(command, folder, environment, seconds_max):
    """How a program went: None if it held, else how it did not; and its output."""
    process = subprocess.Popen(
        ["nice", "-n", "5", "prlimit", f"--as={MEMORY_BYTES_MAX}", *command],
        cwd=folder, env={**os.environ, "RUST_BACKTRACE": "0", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "time-out", ""
    text = output.decode(errors="replace")
    if process.returncode == 0:
        return None, text
    return ("failure" if process.returncode > 0 else f"signal {-process.returncode}"), text


def reason(layer, text):
    """The line that says why."""
    if layer.startswith("seeds"):
        found = re.search(r"^  seed \d+: .*$", text, re.M) or re.search(r"panicked at .*\n.*", text)
    else:
        found = re.search(r"^    (\S.*)$", text.rpartition("\nfailures:\n")[2], re.M)
    return " ".join(found[0].split())[:160] if found else text.strip()[-160:].replace("\n", " ")


def run(args):
    scratch = args.scratch.resolve()
    draw = json.loads((scratch / "target/draw.json").read_text())
    runs = [run for run in layers(scratch, draw, args.seeds, args.tests) if not (args.quick and run[0].split()[-1] in SLOW)]
    reached, seconds = {}, {}
    for name, command, folder in runs:
        report = scratch / "target/reached"
        report.unlink(missing_ok=True)
        begun = time.monotonic()
        how, text = attempt(command, folder, {"SYNOD_MUTANTS_REACHED": str(report)}, 600)
        seconds[name] = time.monotonic() - begun
        assert how is None, f"{name} does not hold without a mutant: {how}\n{text[-2000:]}"
        reached[name] = {int(line) for line in report.read_text().split()} if report.exists() else set()
        print(f"{name}: {seconds[name]:.1f} s, reaches {len(reached[name])}", flush=True)
    path = scratch / "target/results.json"
    results = json.loads(path.read_text()) if path.exists() and args.resume else {}

    def judge(mutant):
        number = mutant["number"]
        result = {"name": mutant["name"], "killed": None, "reached": [name for name in reached if number in reached[name]]}
        for name, command, folder in runs:
            # A program that does not come to a function goes as it goes without the mutant.
            if number not in reached[name]:
                continue
            how, text = attempt(command, folder, {"SYNOD_MUTANT": str(number)}, 20 + 8 * seconds[name])
            if how:
                result["killed"] = {"by": name, "how": how, "why": reason(name, text)}
                break
        return number, result

    wanted = [
        mutant for mutant in draw["mutants"]
        if not mutant["not_compiled"] and str(mutant["number"]) not in results
        and (not args.mutants or mutant["number"] in args.mutants)
    ]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for number, result in pool.map(judge, wanted):
            results[str(number)] = result
            killed = result["killed"]
            verdict = f"{killed['by']}, {killed['how']}: {killed['why']}" if killed else "SURVIVES"
            print(f"{number} {result['name']}: {verdict}", flush=True)
            path.write_text(json.dumps(results, indent=1))
    survivors = [number for number, result in results.items() if not result["killed"]]
    print(f"{len(results)} mutants, {len(survivors)} survive: {' '.join(survivors)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    parser.add_argument("--scratch", type=pathlib.Path, required=True, help="the folder of the copy; its target/ is kept")
    actions = parser.add_subparsers(required=True)
    one = actions.add_parser("build", help="draw mutants, and build them in")
    one.add_argument("--seed", type=int, default=8)
    one.add_argument("--count", type=int, default=240)
    one.add_argument("--numbers", type=int, nargs="*", help="of the draw, only these")
    one.add_argument("--package", action="append", help=f"of these packages (without: {' and '.join(PACKAGES)})")
    one.add_argument("--under", action="append", default=[], help="of files under these paths of the tree only")
    one.add_argument("--units", action="store_true", help="build unit tests only, those of folders tests/ included")
    one.add_argument("--lib", action="store_true", help="build unit tests beside the code only")
    one.set_defaults(action=build)
    one = actions.add_parser("run", help="run tests, scenarios and seeds against each mutant")
    one.add_argument("--seeds", default="0..60", help="seeds of each protocol")
    one.add_argument("--jobs", type=int, default=1)
    one.add_argument("--quick", action="store_true", help="without the tests that take long")
    one.add_argument("--tests", nargs="*", default=[], help="only unit tests with such names")
    one.add_argument("--mutants", type=int, nargs="*", help="only these numbers")
    one.add_argument("--resume", action="store_true", help="keep results that are there")
    one.set_defaults(action=run)
    args = parser.parse_args()
    args.action(args)


if __name__ == "__main__":
    main()
