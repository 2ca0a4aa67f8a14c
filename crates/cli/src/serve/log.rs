//! Writes log messages to standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt};

use super::flags::{LogArgs, LogFormat};
use crate::failure::Failure;

/// Begins to write messages. Call it once.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let filter = EnvFilter::builder().parse(&args.log_level).map_err(|error| {
        Failure::usage(format!(
            "--log-level {}: {error}; accepted: error, warn, info, debug, trace, or info,synod_transport=debug",
            args.log_level
        ))
    })?;
    let format = fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => format.compact().init(),
        LogFormat::Json => format.json().flatten_event(true).init(),
    }
    Ok(())
}
