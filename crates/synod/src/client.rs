//! What all commands that talk to a cluster share.

use std::{future::Future, time::Duration};

use clap::Args;
use synod_client::{Client, Config};

use crate::{failure::Failure, output::Format, serve::units};

/// Whom to ask, for how long, and how to print the answer.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct ClientArgs {
    /// Client URLs of the replicas; each can answer every request, and one that does not answer is passed over.
    #[arg(
        long,
        env = "SYNOD_ENDPOINTS",
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub endpoints: Vec<String>,
    /// How long the request may take in all.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration_above_zero)]
    pub command_timeout: Duration,
    /// How the answer is printed.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "simple")]
    pub write_out: Format,
}

impl ClientArgs {
    /// A client of these endpoints.
    pub fn client(&self) -> Result<Client, Failure> {
        let mut config = Config::new(self.endpoints.iter().cloned());
        // In the order in which the user gave them.
        config.first_endpoint = Some(0);
        config.request_timeout = self.command_timeout;
        config.connect_timeout = config.connect_timeout.min(self.command_timeout);
        Ok(Client::new(config)?)
    }
}

/// Runs a command's requests.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::failed)?.block_on(work)
}
