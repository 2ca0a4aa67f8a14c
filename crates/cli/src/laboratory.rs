//! `synod bench`, `tune`, `sim` and `lab`: the load generator, the tuner, the simulator and the laboratory. They are a
//! feature of this crate, and what is packaged does without (`no_laboratory.rs`).

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// The end of the help of `synod`.
pub const AFTER_HELP: &str = "Begin with: synod dev";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure throughput and latency of a cluster, Synod's or etcd's
    Bench(Box<synod_lab::bench::Args>),
    /// Measure what a cluster can do and what binds it, and what other settings, protocols and machines would bring
    Tune(Box<synod_lab::tune::Args>),
    /// Attack the consensus code in a simulated world
    Sim(SimArgs),
    /// Run experiments, judge what they measure, and report
    Lab(synod_lab::cli::Args),
}

/// Runs a command. Each reports for itself.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    Ok(match command {
        Command::Bench(args) => synod_lab::bench::main(*args),
        Command::Tune(args) => synod_lab::tune::main(&args),
        Command::Sim(args) => simulate(&args),
        Command::Lab(args) => synod_lab::cli::main(args),
    })
}

/// Arguments of `synod sim`.
#[derive(Clone, Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum SimCommand {
    /// Attack simulated clusters, one seed after the other, and check that they keep every promise
    Run(synod_sim::cli::RunArgs),
    /// Explore every possible run of a small configuration of a protocol, and check that it keeps every promise
    Explore(synod_sim::explore::cli::ExploreArgs),
    /// Play scenario scripts, and compare what happens with what they expect
    Scenario(synod_sim::cli::ScenarioArgs),
    /// Attack simulated clusters whose groups are merged into one order
    Merged(synod_sim::cli::MergedArgs),
    Outages(synod_sim::outage::OutagesArgs),
}

fn simulate(args: &SimArgs) -> ExitCode {
    match &args.command {
        SimCommand::Run(args) => synod_sim::cli::run(args),
        SimCommand::Explore(args) => synod_sim::explore::cli::run(args),
        SimCommand::Scenario(args) => synod_sim::cli::play_scenarios(args),
        SimCommand::Merged(args) => synod_sim::cli::run_merged(args),
        SimCommand::Outages(args) => synod_sim::outage::print(args),
    }
}
