//! What a developer runs: `cargo xtask help` lists it. A command prints the other programs that it runs. It ends with 0
//! if all is well, 1 if something is wrong with the tree, and 2 if it was called wrongly.

mod check;
mod commands;
mod tidy;
mod workspace;

use std::{env, process::ExitCode};

/// Why a command ended without success.
#[derive(Debug)]
enum Failure {
    /// The command does not know what is meant.
    Usage(String),
    /// Something is wrong with the tree, or with what the command needs.
    Wrong(String),
}

/// A command: its name, its arguments, what it is for, and what it does with the arguments.
struct Command {
    name: &'static str,
    arguments: &'static str,
    purpose: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

const COMMANDS: [Command; 7] = [
    Command {
        name: "check",
        arguments: "[--since REVISION]",
        purpose: "what to run before a commit: format, tidiness, then lints of the crates that differ from main (or \
                  REVISION) and of those that depend on them, and the unit tests of those that differ. Two minutes at \
                  most on a warm tree, so those of the simulator are left out.",
        run: check::check,
    },
    Command {
        name: "tidy",
        arguments: "",
        purpose: "the checks of the tree's text alone: words, lengths, purity, dependencies, links, pages. A few seconds.",
        run: commands::tidy,
    },
    Command {
        name: "ci",
        arguments: "",
        purpose: "everything that must pass before a change lands (.ci/run). Half an hour on two cores.",
        run: commands::ci,
    },
    Command {
        name: "sim",
        arguments: "PROTOCOL [SEEDS]",
        purpose: "attack a protocol, or `merged` groups, in the simulator, in a release build. SEEDS is a range \
                  (0..2000 if none is given), or one seed, which is traced. What a seed reaches, and what to do with one \
                  that fails: docs/simulating.md.",
        run: commands::sim,
    },
    Command {
        name: "bless",
        arguments: "",
        purpose: "write the golden output of all scenarios as the protocols behave now. Read the diff before you commit it.",
        run: commands::bless,
    },
    Command {
        name: "hooks",
        arguments: "",
        purpose: "let git check format, tidiness and the subject of each commit (tools/hooks/). `git config --unset \
                  core.hooksPath` undoes it.",
        run: commands::hooks,
    },
    Command { name: "help", arguments: "", purpose: "this.", run: help },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (name, rest) =
        arguments.split_first().map_or(("help", &[][..]), |(name, rest)| (name.as_str(), rest));
    let name = if ["-h", "--help"].contains(&name) { "help" } else { name };
    let result = match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(rest),
        None => Err(Failure::Usage(format!("there is no command {name}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Wrong(why)) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::from(1)
        }
        Err(Failure::Usage(why)) => {
            eprintln!("xtask {name}: {why}\nSee `cargo xtask help`.");
            ExitCode::from(2)
        }
    }
}

fn help(arguments: &[String]) -> Result<(), Failure> {
    none(arguments)?;
    println!("cargo xtask COMMAND\n");
    for Command { name, arguments, purpose, .. } in COMMANDS {
        println!("  {}", format!("{name} {arguments}").trim_end());
        wrapped(purpose, 90).iter().for_each(|line| println!("      {line}"));
    }
    println!(
        "\nA day's work: edit; `check`; commit. With a protocol: `sim` as well, and `bless` if its messages changed."
    );
    println!("CONTRIBUTING.md names the page of each suite, experiment and comparison.");
    Ok(())
}

/// The words of a text in lines of at most this many columns.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one from the beginning");
        if last.is_empty() {
            last.push_str(word);
        } else if last.len() + 1 + word.len() <= columns {
            *last += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Refuses arguments where a command takes none.
fn none(arguments: &[String]) -> Result<(), Failure> {
    match arguments {
        [] => Ok(()),
        [first, ..] => Err(Failure::Usage(format!("it takes no arguments, and {first} is one"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
    }

    #[test]
    fn a_command_without_arguments_refuses_one() {
        for Command { name, run, .. } in COMMANDS.iter().filter(|it| it.arguments.is_empty()) {
            let result = run(&["more".to_owned()]);
            assert!(matches!(result, Err(Failure::Usage(_))), "{name}: {result:?}");
        }
    }
}
