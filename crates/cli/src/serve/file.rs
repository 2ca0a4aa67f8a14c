//! Settings from a TOML file, which apply where neither a flag nor the environment sets them.
//!
//! The file's entries become arguments before the user's own, except those that a flag or a variable sets. So
//! one parser reads all three, and there is one list of names and one set of checks.

use std::{error::Error as _, ffi::OsString, fs, path::Path};

use clap::{
    ArgMatches, Args, Command,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use toml::{Table, Value};

use super::flags::ServeArgs;
use crate::failure::Failure;

/// The arguments for the entries of the file. `given` are the user's.
pub fn arguments(path: &Path, given: &ArgMatches) -> Result<Vec<OsString>, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let entries = entries(&text).map_err(wrong)?;
    let set_elsewhere = |key: &str| {
        let source = given.value_source(&key.replace('-', "_"));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let kept = entries.into_iter().filter(|(key, _)| !set_elsewhere(key));
    Ok(kept.map(|(key, value)| format!("--{key}={value}").into()).collect())
}

/// The entries as flags and values, each checked by the flag's own parser.
fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let command = ServeArgs::augment_args(Command::new("file").no_binary_name(true).disable_help_flag(true));
    let known: Vec<&str> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "config_file")
        .filter_map(|arg| arg.get_long())
        .collect();
    let mut entries = Vec::new();
    for (key, value) in &table {
        if !known.contains(&key.as_str()) {
            return Err(format!("unknown key '{key}'; accepted: {}", known.join(", ")));
        }
        let value = plain(value).ok_or_else(|| {
            format!(
                "{key} = {value}: accepted: a string, a number, true or false, or a list or table of strings"
            )
        })?;
        // The environment is switched off, since it must not stand in for the file.
        let checked = command.clone().mut_args(|arg| arg.env(None::<&'static str>));
        checked
            .try_get_matches_from([format!("--{key}={value}")])
            .map_err(|error| format!("{key} = {value}: {}", reason(&error)))?;
        entries.push((key.clone(), value));
    }
    Ok(entries)
}

/// A value as it would be typed after the flag.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(truth) => Some(truth.to_string()),
        Value::Array(list) => {
            list.iter().map(Value::as_str).collect::<Option<Vec<_>>>().map(|list| list.join(","))
        }
        Value::Table(table) => {
            let pairs = table.iter().map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
            pairs.collect::<Option<Vec<_>>>().map(|pairs| pairs.join(","))
        }
        Value::Datetime(_) => None,
    }
}

/// The accepted values, taken from clap's error about a wrong value.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(accepted)) => format!("accepted: {}", accepted.join(", ")),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_become_arguments() {
        let text = "name = 'n1'\nwindow-max = 8\nbegin-without-all = false\nelection-timeout = '2s'\n\
                    listen-client-urls = ['http://a:1', 'http://b:1']\n[initial-cluster]\nn1 = 'http://a:2'\n\
                    n2 = 'http://b:2'\n";
        let entries = entries(text).unwrap();
        let value = |key| entries.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
        assert_eq!(value("name"), Some("n1"));
        assert_eq!(value("window-max"), Some("8"));
        assert_eq!(value("begin-without-all"), Some("false"));
        assert_eq!(value("listen-client-urls"), Some("http://a:1,http://b:1"));
        assert_eq!(value("initial-cluster"), Some("n1=http://a:2,n2=http://b:2"));
    }

    #[test]
    fn a_wrong_entry_names_key_value_and_what_is_accepted() {
        let cases = [
            ("nane = 'x'", ["unknown key 'nane'", "accepted: name, data-dir"]),
            ("config-file = 'x'", ["unknown key 'config-file'", "data-dir"]),
            ("window-max = 0", ["window-max = 0", "1.."]),
            ("protocol = 'rafft'", ["protocol = rafft", "accepted: multipaxos"]),
            ("durability = 'safe'", ["durability = safe", "sync, view, async, memory, crash-stop"]),
            ("threads = 'many'", ["threads = many", "accepted: spread, compact"]),
            ("election-timeout = 'soon'", ["election-timeout = soon", "accepted: 100 (milliseconds)"]),
            ("snapshot-count = 1979-05-27", ["snapshot-count", "accepted: a string, a number"]),
            ("name = ", ["name = ", "line 1"]),
        ];
        for (text, parts) in cases {
            let error = entries(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{error} should contain {part}");
            }
        }
    }
}
