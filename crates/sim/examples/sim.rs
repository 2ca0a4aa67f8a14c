//! `synod sim` without the rest of the binary: quicker to build.

use std::process::ExitCode;

use clap::Parser;
use synod_sim::cli::{self, RunArgs, ScenarioArgs};

#[derive(Parser)]
enum Args {
    /// Run seeds.
    Run(RunArgs),
    /// Play scripts.
    Scenario(ScenarioArgs),
}

fn main() -> ExitCode {
    match Args::parse() {
        Args::Run(args) => cli::run(&args),
        Args::Scenario(args) => cli::play_scenarios(&args),
    }
}
