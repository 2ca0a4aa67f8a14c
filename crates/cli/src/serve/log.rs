//! Writes log messages.

use tracing_subscriber::{EnvFilter, filter::LevelFilter, fmt};

use super::{
    etcd::{lines::Lines, outputs::Outputs},
    flags::{LogArgs, LogFormat},
};
use crate::failure::Failure;

/// Begins to write messages. Call it once.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let filter = filter(&args.log_level)?;
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

/// Reads `--log-level`.
fn filter(given: &str) -> Result<EnvFilter, Failure> {
    let level = match given {
        // etcd's levels for what ends the program.
        "panic" | "dpanic" | "fatal" => "error",
        level => level,
    };
    let refusal = |why: String| {
        Failure::usage(format!(
            "--log-level {given}: {why}; accepted: error, warn, info, debug, trace, off, or levels of parts too: \
             info,synod_transport=debug"
        ))
    };
    // The filter takes any other word for the name of a part, and tells nothing of all the others.
    let is_level =
        |word: &str| !word.is_empty() && (word.contains(['=', '[']) || word.parse::<LevelFilter>().is_ok());
    let words: Vec<_> = level.split(',').map(str::trim).collect();
    if let Some(word) = words.iter().find(|word| !is_level(word)) {
        return Err(refusal(format!("{word:?} is no level")));
    }
    EnvFilter::builder().parse(words.join(",")).map_err(|error| refusal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_one_that_there_is() {
        for level in ["error", "INFO", "off", "fatal", "info,synod_transport=debug", "warn, synod=trace"] {
            filter(level).unwrap_or_else(|why| panic!("{level}: {why:?}"));
        }
        for bogus in ["bogus", "", "info,bogus", "synod_transport=bogus", "notice"] {
            let why = format!("{:?}", filter(bogus).unwrap_err());
            assert!(why.contains("accepted: error, warn, info"), "{why}");
        }
    }
}
