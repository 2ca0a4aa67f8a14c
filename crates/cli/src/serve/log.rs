//! Writes log messages.

use tracing_subscriber::{EnvFilter, filter::LevelFilter, fmt};

use super::{
    etcd::{
        lines::Lines,
        outputs::{Output, Outputs},
    },
    flags::{LogArgs, LogFormat},
};
use crate::failure::Failure;

/// Begins to write messages. Call it once.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let filter = filter(&args.log_level)?;
    let rotation = args.log_rotation_config_json.clone().unwrap_or_default();
    let outputs = Outputs::open(&args.log_outputs, args.enable_log_rotation.then_some(&rotation))
        .map_err(|error| Failure::failed(format!("--log-outputs: cannot be opened: {error}")))?;
    let colours = outputs.are_terminals();
    let format = fmt().with_env_filter(filter).with_writer(outputs).with_ansi(colours);
    match args.log_format {
        LogFormat::Text => format.compact().init(),
        LogFormat::Json => format.event_format(Lines).init(),
    }
    Ok(())
}

/// Settings of log files that have no effect.
pub fn idle(args: &LogArgs) -> Vec<String> {
    let is_file = |output: &Output| matches!(output, Output::File(_));
    match &args.log_rotation_config_json {
        Some(_) if !args.enable_log_rotation => {
            vec!["--log-rotation-config-json has no effect without --enable-log-rotation".to_owned()]
        }
        _ if args.enable_log_rotation && !args.log_outputs.iter().any(is_file) => {
            vec!["--enable-log-rotation has no effect: --log-outputs names no file".to_owned()]
        }
        rotation => {
            let idle = rotation.iter().flat_map(|rotation| &rotation.idle);
            idle.map(|why| format!("--log-rotation-config-json: {why}")).collect()
        }
    }
}

/// What `debug` and `trace` leave out unless it is named: some ten lines for each request.
const FRAMES: &str = "h2=info";

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
    let mut words: Vec<_> = level.split(',').map(str::trim).collect();
    if let Some(word) = words.iter().find(|word| !is_level(word)) {
        return Err(refusal(format!("{word:?} is no level")));
    }
    let is_verbose = |word: &&str| word.parse::<LevelFilter>().is_ok_and(|level| level > LevelFilter::INFO);
    if words.iter().any(is_verbose) {
        // Of equal names the last one counts.
        words.insert(0, FRAMES);
    }
    EnvFilter::builder().parse(words.join(",")).map_err(|error| refusal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_without_effect_is_told() {
        let told = |enabled, outputs: &[Output], rotation: Option<&str>| {
            idle(&LogArgs {
                log_level: "info".to_owned(),
                log_outputs: outputs.to_vec(),
                log_format: LogFormat::Text,
                enable_log_rotation: enabled,
                log_rotation_config_json: rotation.map(|text| text.parse().unwrap()),
            })
        };
        let file = [Output::Error, Output::File("/x".into())];
        assert_eq!(told(false, &file, None), [""; 0]);
        assert_eq!(told(true, &file, Some(r#"{"maxsize": 5}"#)), [""; 0]);
        for (told, expected) in [
            (told(true, &file[..1], Some("{}")), "--enable-log-rotation has no effect: "),
            (told(false, &file, Some("{}")), "--log-rotation-config-json has no effect without "),
            (
                told(true, &file, Some(r#"{"localtime": true}"#)),
                "--log-rotation-config-json: localtime has no ",
            ),
        ] {
            assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
        }
    }

    #[test]
    fn a_level_is_one_that_there_is() {
        for level in ["error", "INFO", "off", "fatal", "info,synod_transport=debug", "warn, synod=trace"] {
            filter(level).unwrap_or_else(|why| panic!("{level}: {why:?}"));
        }
        let shown = |level: &str| filter(level).unwrap().to_string();
        for (level, has, lacks) in [
            ("debug", "h2=info", "trace"),
            ("warn,trace", "h2=info", "debug"),
            ("debug,h2=trace", "h2=trace", "h2=info"),
            ("info", "info", "h2"),
            ("warn,synod_node=debug", "synod_node=debug", "h2"),
        ] {
            let shown = shown(level);
            assert!(shown.contains(has) && !shown.contains(lacks), "{level}: {shown}");
        }
        for bogus in ["bogus", "", "info,bogus", "synod_transport=bogus", "notice"] {
            let why = format!("{:?}", filter(bogus).unwrap_err());
            assert!(why.contains("accepted: error, warn, info"), "{why}");
        }
    }
}
