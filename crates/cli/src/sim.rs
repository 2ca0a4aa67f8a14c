//! `synod sim`: the deterministic simulator.

use std::process::ExitCode;

use clap::{Args, Subcommand};

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
    Merged(synod_sim::merged::MergedArgs),
    Outages(synod_sim::outage::OutagesArgs),
}

pub fn run(args: &SimArgs) -> ExitCode {
    match &args.command {
        SimCommand::Run(args) => synod_sim::cli::run(args),
        SimCommand::Explore(args) => synod_sim::explore::cli::run(args),
        SimCommand::Scenario(args) => synod_sim::cli::play_scenarios(args),
        SimCommand::Merged(args) => synod_sim::merged::run_merged(args),
        SimCommand::Outages(args) => synod_sim::outage::print(args),
    }
}
