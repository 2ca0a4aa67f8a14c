//! The commands that are a few lines each: mostly another program with the right arguments, in the workspace's folder.

use std::{
    collections::BTreeSet,
    env,
    process::{Command, Stdio},
};

use crate::{Failure, none, tidy as checks};

/// Seeds of a simulation if none are named.
const SEEDS: &str = "0..2000";

/// Where the golden output of scenarios stands, in a folder for each protocol and its elections.
const GOLDEN: &str = "scenarios/golden";

/// `cargo`, as the one that runs this program.
pub fn cargo() -> Command {
    program(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// A program that runs in the workspace's folder.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(checks::root());
    command
}

/// Prints the command, runs it, and fails if it does.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    let words = shown(command);
    eprintln!("--- {words}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Wrong(format!("`{words}` failed ({status})"))),
        Err(why) => Err(Failure::Wrong(format!("`{words}` cannot be run: {why}"))),
    }
}

/// What a command writes.
pub fn output(command: &mut Command) -> Result<String, Failure> {
    let words = shown(command);
    match command.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(Failure::Wrong(format!("`{words}` failed ({})", output.status))),
        Err(why) => Err(Failure::Wrong(format!("`{words}` cannot be run: {why}"))),
    }
}

/// A command as somebody would write it.
fn shown(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={} ", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let arguments = command.get_args().map(|argument| format!(" {}", argument.to_string_lossy()));
    variables.chain([program]).chain(arguments).collect()
}

pub fn tidy(arguments: &[String]) -> Result<(), Failure> {
    none(arguments)?;
    let tree = checks::Tree::read(&checks::root()).map_err(Failure::Wrong)?;
    let findings = checks::findings(&tree);
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    match findings.len() {
        0 => Ok(()),
        count => Err(Failure::Wrong(format!("{count} findings"))),
    }
}

pub fn ci(arguments: &[String]) -> Result<(), Failure> {
    none(arguments)?;
    run(&mut program(".ci/run"))
}

pub fn sim(arguments: &[String]) -> Result<(), Failure> {
    let names = checks::Tree::read(&checks::root()).map_err(Failure::Wrong)?;
    let arguments = simulation(&names, arguments)?;
    run(cargo()
        .args(["run", "--release", "--package", "synod-cli", "--bin", "synod", "--", "sim"])
        .args(arguments))
}

/// The arguments of `synod sim` for those of `sim`. They are judged before the program is built, which takes minutes.
fn simulation(tree: &checks::Tree, arguments: &[String]) -> Result<Vec<String>, Failure> {
    let usage = |why: String| Failure::Usage(why);
    let casts = tree.folders(GOLDEN);
    let mut names: BTreeSet<_> = casts.iter().filter_map(|cast| cast.split('+').next()).collect();
    names.insert("merged");
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let (protocol, seeds) = match arguments {
        [protocol] => (protocol, SEEDS),
        [protocol, seeds] => (protocol, seeds.as_str()),
        _ => return Err(usage(format!("which protocol, and perhaps which seeds? Protocols: {names}"))),
    };
    if !names.split(", ").any(|name| name == protocol) {
        return Err(usage(format!("there is no protocol {protocol}; there are {names}")));
    }
    let number = |text: &str| text.parse::<u64>().ok();
    let range = seeds.split_once("..").and_then(|(from, to)| Some((number(from)?, number(to)?)));
    let (range, is_one) = match (range, number(seeds)) {
        (Some((from, to)), _) if from < to => (seeds.to_owned(), false),
        (None, Some(seed)) if seed < u64::MAX => (format!("{seed}..{}", seed + 1), true),
        _ => return Err(usage(format!("{seeds} is neither a range of seeds, as 0..2000, nor one seed"))),
    };
    let start = if protocol == "merged" { vec!["merged"] } else { vec!["run", "--protocol", protocol] };
    let trace = is_one.then_some("--trace");
    Ok(start.into_iter().chain(["--seeds", &range]).chain(trace).map(str::to_owned).collect())
}

pub fn bless(arguments: &[String]) -> Result<(), Failure> {
    none(arguments)?;
    let test = ["test", "--package", "synod-sim", "--test", "simulator", "scenarios"];
    run(cargo().env("SYNOD_BLESS", "1").args(test))?;
    let changed = output(program("git").args(["status", "--short", "--", GOLDEN]))?;
    match changed.lines().count() {
        0 => eprintln!("No golden output has changed."),
        count => {
            eprintln!("{changed}{count} golden files differ from the last commit: read `git diff {GOLDEN}`.")
        }
    }
    Ok(())
}

pub fn hooks(arguments: &[String]) -> Result<(), Failure> {
    none(arguments)?;
    let set = output(program("git").args(["config", "--default", "", "--get", "core.hooksPath"]))?;
    match set.trim() {
        "" | "tools/hooks" => {}
        other => {
            return Err(Failure::Wrong(format!(
                "hooks of {other} are installed; git config --unset core.hooksPath"
            )));
        }
    }
    run(program("git").args(["config", "core.hooksPath", "tools/hooks"]))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn a_simulation_is_judged_before_anything_is_built() {
        let tree = checks::Tree::of(&[
            ("scenarios/golden/raft/a.txt", ""),
            ("scenarios/golden/multipaxos+rotating/a.txt", ""),
        ]);
        let judged = |words: &str| {
            let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
            simulation(&tree, &words).map(|words| words.join(" "))
        };
        for (words, arguments) in [
            ("raft", "run --protocol raft --seeds 0..2000"),
            ("multipaxos 5..9", "run --protocol multipaxos --seeds 5..9"),
            ("raft 17", "run --protocol raft --seeds 17..18 --trace"),
            ("merged 1..2", "merged --seeds 1..2"),
        ] {
            assert_eq!(judged(words).unwrap(), arguments);
        }
        for (words, why) in [
            ("", "which protocol"),
            ("raft 1 2", "which protocol"),
            ("paxos", "there is no protocol paxos; there are merged, multipaxos, raft"),
            ("raft 9..5", "9..5 is neither"),
            ("raft all", "all is neither"),
        ] {
            let refused = judged(words);
            assert!(
                matches!(&refused, Err(Failure::Usage(text)) if text.contains(why)),
                "{words}: {refused:?}"
            );
        }
    }

    /// A message passes or is refused by the hook itself.
    #[cfg(unix)]
    #[test]
    fn subjects_of_commits_name_an_area_and_fit_into_72_columns() {
        let hook = checks::root().join("tools/hooks/commit-msg");
        let file = env::temp_dir().join(format!("synod-commit-msg-{}", std::process::id()));
        let judged = |file: &Path, message: &str| {
            fs::write(file, message).unwrap();
            let output = Command::new(&hook).arg(file).output().unwrap();
            (output.status.success(), String::from_utf8(output.stderr).unwrap())
        };
        let fits = format!("docs: {}", "x".repeat(66));
        let message =
            format!("# A comment.\n{fits}\n\nWhy, in as many words as it takes: {}\n", "y".repeat(90));
        for message in [&fits, &message, "raft, kv: what é\n", "Merge branch 'a'", "Revert \"A long one.\""]
        {
            let (passes, why) = judged(&file, message);
            assert!(passes && why.is_empty(), "{message}: {why}");
        }
        let wide = format!("{fits}x");
        for (message, why) in [
            (wide.as_str(), "73 columns; at most 72"),
            ("what was done", "does not begin with an area"),
            ("raft:what", "does not begin with an area"),
            ("Raft: what", "does not begin with an area"),
            ("raft: what.", "full stop"),
            ("raft: what\nmore of it", "is not empty"),
        ] {
            let (passes, said) = judged(&file, message);
            assert!(!passes && said.contains(why), "{message}: {said}");
        }
        fs::remove_file(file).unwrap();
    }
}
