//! The load generator on its own: `cargo run --release -p synod-lab --example bench -- put --clients 64`.

use std::process::ExitCode;

use clap::Parser;
use synod_lab::bench;

/// Drives a server of the etcd v3 API, and reports throughput and latency.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: bench::Args,
}

fn main() -> ExitCode {
    bench::main(Cli::parse().args)
}
