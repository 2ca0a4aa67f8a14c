//! The laboratory on its own: `cargo run --release -p synod-lab --example lab -- run ng-latency`.

use std::process::ExitCode;

use clap::Parser;
use synod_lab::cli;

/// Experiments by name, and their report.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: cli::Args,
}

fn main() -> ExitCode {
    cli::main(Cli::parse().args)
}
