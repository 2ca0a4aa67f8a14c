//! What stands for the laboratory in a program that is built without it: its commands say how to get them.

use std::{ffi::OsString, process::ExitCode};

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// The end of the help of `synod`.
pub const AFTER_HELP: &str =
    "Begin with: synod dev\n\nThis program is built without bench, tune, sim and lab.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Not in this program, which is built without its laboratory
    #[command(hide = true, disable_help_flag = true)]
    Bench(Anything),
    /// Not in this program, which is built without its laboratory
    #[command(hide = true, disable_help_flag = true)]
    Tune(Anything),
    /// Not in this program, which is built without its laboratory
    #[command(hide = true, disable_help_flag = true)]
    Sim(Anything),
    /// Not in this program, which is built without its laboratory
    #[command(hide = true, disable_help_flag = true)]
    Lab(Anything),
}

/// Any arguments.
#[derive(Clone, Debug, Args)]
pub struct Anything {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// Says how to get the command.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    let (name, Anything { arguments }) = match command {
        Command::Bench(arguments) => ("bench", arguments),
        Command::Tune(arguments) => ("tune", arguments),
        Command::Sim(arguments) => ("sim", arguments),
        Command::Lab(arguments) => ("lab", arguments),
    };
    let arguments: String = arguments.iter().map(|argument| format!(" {}", argument.display())).collect();
    Err(Failure::usage(format!(
        "{name}: this program is built without its laboratory (bench, tune, sim, lab), as what is packaged is. In the source tree: \
         cargo run --release -- {name}{arguments}"
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn every_command_of_the_laboratory_says_how_to_get_it() {
        for line in ["bench put --total 9", "sim run --seeds 0..5", "sim explore", "lab --help", "lab"] {
            let command = Cli::try_parse_from(["synod"].into_iter().chain(line.split(' '))).unwrap().command;
            let why = run(command).unwrap_err().to_string();
            assert!(why.ends_with(&format!("cargo run --release -- {line}")), "{why}");
        }
    }
}
