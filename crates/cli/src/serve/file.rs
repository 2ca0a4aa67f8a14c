//! The entries of a TOML file of settings, whose keys are the names of flags.

use std::error::Error as _;

use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue},
};
use toml::{Table, Value};

/// The entries as flags and values.
pub fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let entries = table.iter().map(|(key, value)| match plain(value) {
        Some(value) => Ok((key.clone(), value)),
        None => Err(format!(
            "{key} = {value}: accepted: a string, a number, true or false, or a list or table of strings"
        )),
    });
    entries.collect()
}

/// Has the flag's own parser check a value that does not come from the command line.
pub fn check(serve: &Command, flag: &str, value: &str) -> Result<(), String> {
    // The environment is switched off, since it must not stand in for the value. What else the command takes, such as
    // the file of a restore, is not there.
    let alone = |arg: Arg| arg.env(None::<&'static str>).required(false);
    let checked = serve.clone().no_binary_name(true).mut_args(alone);
    let parsed = checked.try_get_matches_from([format!("--{flag}={value}")]);
    parsed.map(drop).map_err(|error| reason(&error))
}

/// The flag that is most like this name, which is none, if one is like it.
pub fn similar(serve: &Command, name: &str) -> Option<String> {
    let parsed = serve.clone().no_binary_name(true).try_get_matches_from([format!("--{name}")]);
    match parsed.err()?.get(ContextKind::SuggestedArg)? {
        ContextValue::String(flag) => Some(flag.trim_start_matches("--").to_owned()),
        _ => None,
    }
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
    fn what_is_no_value_of_a_flag_is_named() {
        for (text, part) in
            [("snapshot-count = 1979-05-27", "accepted: a string, a number"), ("name = ", "line 1")]
        {
            let error = entries(text).unwrap_err();
            assert!(error.contains(part), "{error} should contain {part}");
        }
    }
}
