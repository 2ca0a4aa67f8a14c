//! A protocol that does not stand in the tree (`protocol.rs`), run by the simulator, the explorer and scenarios:
//!
//! ```text
//! cargo run --release -p synod-sim --example fixed_leader -- run --seeds 0..500
//! cargo run --release -p synod-sim --example fixed_leader -- explore
//! cargo run --release -p synod-sim --example fixed_leader -- scenario crates/sim/examples/fixed_leader/scenarios/*.txt
//! ```
//!
//! Nothing of the simulator is changed for that. The program registers the protocol, and is `synod sim` with another
//! default.

mod protocol;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use synod_sim::{cli, explore};

#[derive(Parser)]
enum Sim {
    Run(cli::RunArgs),
    Explore(explore::cli::ExploreArgs),
    Scenario(cli::ScenarioArgs),
}

fn main() -> ExitCode {
    // Before anything else: options, casts and logs may name it from here on.
    let registered = protocol::FIXED_LEADER.register().expect("no other protocol has that name");
    let name = registered.name();
    let default = |command: clap::Command| command.mut_arg("protocol", |arg| arg.default_value(name));
    let command = Sim::command().mut_subcommand("run", default).mut_subcommand("explore", default);
    match Sim::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit()) {
        Sim::Run(args) => cli::run(&args),
        Sim::Explore(args) => explore::cli::run(&args),
        Sim::Scenario(args) => cli::play_scenarios(&args),
    }
}
