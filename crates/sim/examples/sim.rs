//! `synod sim run` without the rest of the binary.

use std::process::ExitCode;

use clap::Parser;
use synod_sim::cli::{self, RunArgs};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    run: RunArgs,
}

fn main() -> ExitCode {
    cli::run(&Args::parse().run)
}
