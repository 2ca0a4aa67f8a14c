//! Writes log messages.

use tracing_subscriber::{EnvFilter, fmt};

use super::{
    etcd::{lines::Lines, outputs::Outputs},
    flags::{LogArgs, LogFormat},
};
use crate::failure::Failure;

/// Begins to write messages. Call it once.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let level = match args.log_level.as_str() {
        // etcd's levels for what ends the program.
        "panic" | "dpanic" | "fatal" => "error",
        level => level,
    };
    let filter = EnvFilter::builder().parse(level).map_err(|error| {
        Failure::usage(format!(
            "--log-level {}: {error}; accepted: error, warn, info, debug, trace, or info,synod_transport=debug",
            args.log_level
        ))
    })?;
    let outputs = Outputs::open(&args.log_outputs)
        .map_err(|error| Failure::failed(format!("--log-outputs: cannot be opened: {error}")))?;
    let colours = outputs.are_terminals();
    let format = fmt().with_env_filter(filter).with_writer(outputs).with_ansi(colours);
    match args.log_format {
        LogFormat::Text => format.compact().init(),
        LogFormat::Json => format.event_format(Lines).init(),
    }
    Ok(())
}
