//! etcd's YAML file: its keys are the names of flags, with a few sections.

use yaml_rust2::{Yaml, YamlLoader};

use super::table::{self, Form};

/// The flag of a key.
type ToFlag = fn(&str) -> String;

/// The sections of the file, and the flag of each of their keys.
const SECTIONS: [(&str, ToFlag); 3] = [
    ("client-transport-security", |key| match key {
        "allowed-hostname" => "client-cert-allowed-hostname".to_owned(),
        "allowed-cn" => "client-cert-allowed-cn".to_owned(),
        key => key.to_owned(),
    }),
    ("peer-transport-security", |key| match key {
        "allowed-hostname" | "allowed-cn" => format!("peer-cert-{key}"),
        key => format!("peer-{key}"),
    }),
    ("socket-options", |key| format!("socket-{key}")),
];

/// Whether a key comes from a section of the file about certificates, some of which are always written.
pub fn is_security(key: &str) -> bool {
    matches!(key, "client-cert-auth" | "auto-tls" | "peer-client-cert-auth" | "peer-auto-tls")
}

/// The entries as flags and values. A key without a value is none, as for etcd.
pub fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
    let table = match &documents[..] {
        [] => return Ok(Vec::new()),
        [Yaml::Hash(table)] => table,
        _ => return Err("accepted: one document of keys and values".to_owned()),
    };
    let mut entries = Vec::new();
    for (key, value) in table {
        let key = key.as_str().ok_or_else(|| format!("{key:?}: accepted: the name of a flag"))?;
        let section = SECTIONS.iter().find(|(name, _)| *name == key);
        match (value, section) {
            (Yaml::Hash(section), Some((_, flag))) => {
                for (inner, value) in section {
                    let inner =
                        inner.as_str().ok_or_else(|| format!("{key}: {inner:?}: accepted: a name"))?;
                    add(&mut entries, flag(inner), value)?;
                }
            }
            (Yaml::Null, Some(_)) => {}
            (_, Some(_)) => return Err(format!("{key}: accepted: keys and values")),
            (value, None) => add(&mut entries, key.to_owned(), value)?,
        }
    }
    Ok(entries)
}

fn add(entries: &mut Vec<(String, String)>, flag: String, value: &Yaml) -> Result<(), String> {
    let text = plain(&flag, value)
        .ok_or_else(|| format!("{flag}: accepted: a text, a number, true or false, or a list of these"))?;
    if !text.is_empty() {
        entries.push((flag, text));
    }
    Ok(())
}

/// A value as it would be typed after the flag.
fn plain(flag: &str, value: &Yaml) -> Option<String> {
    let flag = flag.strip_prefix(super::EXPERIMENTAL).unwrap_or(flag);
    match value {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        // etcd reads times of a file as Go's encoding of them: nanoseconds.
        Yaml::Integer(number) if table::find(flag).is_some_and(|flag| flag.form == Form::Time) => {
            Some(format!("{number}ns"))
        }
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(truth) => Some(truth.to_string()),
        Yaml::Null => Some(String::new()),
        Yaml::Array(list) => {
            list.iter().map(|item| plain("", item)).collect::<Option<Vec<_>>>().map(|list| list.join(","))
        }
        Yaml::Hash(table) => {
            let pairs =
                table.iter().map(|(name, value)| Some(format!("{}={}", name.as_str()?, plain("", value)?)));
            pairs.collect::<Option<Vec<_>>>().map(|pairs| pairs.join(","))
        }
        Yaml::Alias(_) | Yaml::BadValue => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sections_and_values_of_every_kind_become_flags() {
        let text = "name: 'n1'\ndata-dir:\nsnapshot-count: 5000\npre-vote: true\nauto-compaction-retention: \"1\"\n\
                    log-outputs: [stderr, /tmp/log]\ngrpc-keepalive-min-time: 5000000000\n\
                    experimental-corrupt-check-time: 1000000000\nheartbeat-interval: 100\n\
                    client-transport-security:\n  cert-file: a.crt\n  key-file:\n  client-cert-auth: false\n\
                    peer-transport-security:\n  auto-tls: true\n  allowed-cn: [x, y]\n\
                    socket-options:\n  reuse-port: true\n";
        let expected = [
            ("name", "n1"),
            ("snapshot-count", "5000"),
            ("pre-vote", "true"),
            ("auto-compaction-retention", "1"),
            ("log-outputs", "stderr,/tmp/log"),
            ("grpc-keepalive-min-time", "5000000000ns"),
            ("experimental-corrupt-check-time", "1000000000ns"),
            ("heartbeat-interval", "100"),
            ("cert-file", "a.crt"),
            ("client-cert-auth", "false"),
            ("peer-auto-tls", "true"),
            ("peer-cert-allowed-cn", "x,y"),
            ("socket-reuse-port", "true"),
        ];
        let expected = expected.map(|(flag, value)| (flag.to_owned(), value.to_owned()));
        assert_eq!(entries(text).unwrap(), expected);
        assert_eq!(entries("# nothing\n").unwrap(), []);
    }

    #[test]
    fn what_is_no_file_of_settings_is_refused() {
        for (text, why) in [
            ("- a\n- b\n", "one document"),
            ("name: [", "line"),
            ("1: x\n", "the name of a flag"),
            ("peer-transport-security: yes\n", "peer-transport-security: accepted"),
            ("name: [[a, {b: [[&x c]]}]]\nx: *y\n", "y"),
        ] {
            let error = entries(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
