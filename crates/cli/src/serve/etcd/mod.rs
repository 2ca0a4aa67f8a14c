//! etcd's settings: its flags in Go's form, its variables `ETCD_*`, its YAML file, and what becomes of flags that have
//! no meaning here.
//!
//! The settings of the file, and then those of the variables, become arguments before the user's own, except those that
//! a flag or a variable `SYNOD_*` sets. So one parser reads them all. Flags of etcd that `synod serve` does not have
//! are hidden arguments ([`accept`]); [`judge`] warns of those that were given, or refuses them.

pub mod dns;
pub mod features;
pub mod flags;
#[cfg(test)]
mod fuzz;
pub mod lines;
pub mod log_files;
pub mod outputs;
mod table;
pub mod upkeep;
pub mod yaml;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

use self::table::{FLAGS, Form, Here};
use super::{file, units};
use crate::failure::Failure;

/// The beginning of the names of etcd's variables.
const PREFIX: &str = "ETCD_";
/// The beginning of the names that etcd's flags had before they were here to stay.
const EXPERIMENTAL: &str = "experimental-";

/// `synod serve` with etcd's flags that it does not have itself.
pub fn accept(serve: Command) -> Command {
    let lacking = FLAGS.iter().filter(|flag| !matches!(flag.here, Here::Same(_)));
    serve.args(lacking.map(|flag| {
        let arg = Arg::new(flag.name).long(flag.name).hide(true);
        match flag.form {
            Form::Switch => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(units::truth),
            Form::Text | Form::Time => arg.allow_hyphen_values(true),
        }
    }))
}

/// The id by which clap knows a flag that `synod serve` has itself.
fn id(name: &str) -> String {
    name.replace('-', "_")
}

/// The user's arguments in the form that clap reads: as Go's programs do, flags may have a single dash; and names that
/// begin with `experimental-` are those without it.
pub fn as_clap_reads(args: Vec<OsString>, serve: &Command) -> Vec<OsString> {
    let rewritten = args.into_iter().map(|arg| {
        let flag = arg.to_str().and_then(|text| Some((text, text.strip_prefix('-')?)));
        let Some((text, rest)) = flag else { return arg };
        let (double, name) = rest.strip_prefix('-').map_or((false, rest), |name| (true, name));
        let end = name.find('=').unwrap_or(name.len());
        let known = known(serve, &name[..end]);
        match known {
            // A flag of a letter is clap's own.
            Some(known) if end > 1 && (!double || known != name[..end]) => {
                format!("--{known}{}", &name[end..]).into()
            }
            _ => text.into(),
        }
    });
    rewritten.collect()
}

/// The name of a flag of `synod serve` in which a user may have another dash or `experimental-`.
fn known(serve: &Command, name: &str) -> Option<String> {
    let has = |name: &str| {
        let mut args = serve.get_arguments();
        args.any(|arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        })
    };
    let short = name.strip_prefix(EXPERIMENTAL).filter(|short| has(short));
    short.or_else(|| has(name).then_some(name)).map(str::to_owned)
}

/// What a file and etcd's variables set.
#[derive(Debug, Default)]
pub struct Settings {
    /// Arguments to put before the user's own.
    pub arguments: Vec<OsString>,
    /// What an operator should know of them.
    pub warnings: Vec<String>,
}

/// The settings that count beside the user's own arguments, which are `given`.
pub fn settings(serve: &Command, given: &ArgMatches) -> Result<Settings, Failure> {
    let variables = variables(env::vars_os(), |name| known(serve, name));
    gather(serve, given, variables)
}

fn gather(serve: &Command, given: &ArgMatches, variables: Variables) -> Result<Settings, Failure> {
    let mut settings = Settings { warnings: variables.warnings, ..Settings::default() };
    let file = given.get_one::<PathBuf>("config_file").cloned();
    let file = file.or_else(|| variables.values.get("config-file").map(PathBuf::from));
    if let Some(path) = file {
        let entries =
            entries(&path, serve).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?;
        // The parser adds lists up, so what a variable sets must not become an argument twice.
        let entries = entries.into_iter().filter(|(name, _)| !variables.values.contains_key(name));
        settings.add(entries, given, |_| None);
    }
    for (name, value) in &variables.values {
        file::check(serve, name, value)
            .map_err(|why| Failure::usage(format!("{}={value}: {why}", variable(name))))?;
    }
    settings.add(variables.values, given, |name| Some(variable(name)));
    Ok(settings)
}

impl Settings {
    /// Adds what a flag or a variable `SYNOD_*` does not set; warns of a variable that does not count for that reason.
    fn add(
        &mut self,
        entries: impl IntoIterator<Item = (String, String)>,
        given: &ArgMatches,
        variable: impl Fn(&str) -> Option<String>,
    ) {
        for (name, value) in entries {
            let by = match source(given, &name) {
                Some(ValueSource::CommandLine) => format!("--{name}"),
                Some(ValueSource::EnvVariable) => format!("SYNOD_{}", id(&name).to_uppercase()),
                _ => {
                    self.arguments.push(format!("--{name}={value}").into());
                    continue;
                }
            };
            self.warnings
                .extend(variable(&name).map(|variable| format!("{variable} is set too, and {by} counts")));
        }
    }
}

/// Where a flag's value comes from, by whichever of its names.
fn source(given: &ArgMatches, name: &str) -> Option<ValueSource> {
    let own = match name {
        "snapshot-catchup-entries" => "keep_slots".to_owned(),
        _ => id(name),
    };
    // Not `try_contains_id`: whether there is such a flag at all, clap knows in builds with debug assertions only.
    let id = given.ids().find(|id| **id == own.as_str() || **id == name)?;
    given.value_source(id.as_str())
}

fn variable(name: &str) -> String {
    format!("{PREFIX}{}", id(name).to_uppercase())
}

/// etcd's variables, by the names of their flags.
#[derive(Debug, Default)]
struct Variables {
    values: BTreeMap<String, String>,
    warnings: Vec<String>,
}

/// The variables that name a flag; as for etcd, an empty one is not set. Values are not told, since they may be secret.
fn variables(
    all: impl Iterator<Item = (OsString, OsString)>,
    known: impl Fn(&str) -> Option<String>,
) -> Variables {
    let mut found = Variables::default();
    for (name, value) in all {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let Some(rest) = name.strip_prefix(PREFIX).filter(|_| !value.is_empty()) else { continue };
        match known(&rest.to_lowercase().replace('_', "-")) {
            Some(flag) => _ = found.values.insert(flag, value.to_owned()),
            None => found.warnings.push(format!("unrecognized environment variable {name}")),
        }
    }
    found.warnings.sort();
    found
}

/// The entries of a file: TOML or etcd's YAML, as its name says, or otherwise its contents.
fn entries(path: &Path, serve: &Command) -> Result<Vec<(String, String)>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let found = match path.extension().and_then(|extension| extension.to_str()) {
        Some("yml" | "yaml") => yaml::entries(&text),
        Some("toml") => file::entries(&text),
        _ => file::entries(&text).or_else(|why| yaml::entries(&text).map_err(|_| why)),
    };
    let mut entries = Vec::new();
    for (key, value) in found? {
        let flag = known(serve, &key).filter(|flag| flag != "config-file");
        let Some(flag) = flag else {
            // What is off or empty is what holds without the key.
            if yaml::is_security(&key) && value == "false" {
                continue;
            }
            let similar = file::similar(serve, &key);
            let similar = similar.map_or_else(String::new, |name| format!("; did you mean '{name}'?"));
            return Err(format!(
                "unknown key '{key}'{similar}; accepted: the flags that `synod serve --help` lists, without their dashes, and \
                 etcd's"
            ));
        };
        file::check(serve, &flag, &value).map_err(|why| format!("{key} = {value}: {why}"))?;
        entries.push((flag, value));
    }
    Ok(entries)
}

/// What an operator should know of those flags of etcd that were given and that `synod serve` does not have.
pub fn judge(given: &ArgMatches) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    for flag in FLAGS.iter().filter(|flag| source(given, flag.name) == Some(ValueSource::CommandLine)) {
        let value = || match flag.form {
            Form::Switch => given.get_one::<bool>(flag.name).map(ToString::to_string),
            Form::Text | Form::Time => given.get_one::<String>(flag.name).cloned(),
        };
        let name = flag.name;
        match flag.here {
            Here::Same(_) => {}
            Here::NoMeaning(why) => warnings.push(format!("--{name} has no meaning here: {why}")),
            Here::Fixed(always, why) => match value().unwrap_or_default() {
                value if value == always => {}
                value => warnings.push(format!("--{name} {value} has no effect: {why}")),
            },
            Here::Refused(harmless, why) => match value().unwrap_or_default() {
                value if value == harmless => {}
                // Without the value, which may be secret.
                _ => return Err(Failure::usage(format!("--{name}: {why}"))),
            },
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::serve::{config, flags::ServeArgs};

    fn serve() -> Command {
        accept(ServeArgs::augment_args(Command::new("serve")).args_override_self(true))
    }

    fn parsed(args: &[&str]) -> ArgMatches {
        let line = ["synod", "serve"].iter().chain(args).map(OsString::from).collect();
        // The test's own environment must not count.
        let command = serve().mut_args(|arg| arg.env(None::<&'static str>));
        command.get_matches_from(&as_clap_reads(line, &serve())[1..])
    }

    fn variables_of(all: &[(&str, &str)]) -> Variables {
        variables(all.iter().map(|(name, value)| (name.into(), value.into())), |name| known(&serve(), name))
    }

    #[test]
    fn flags_have_gos_form_too() {
        let text = |args: &[&str], id: &str| parsed(args).get_one::<String>(id).cloned();
        assert_eq!(text(&["-name", "a"], "name"), Some("a".into()));
        assert_eq!(text(&["-name=a"], "name"), Some("a".into()));
        let truth = |args: &[&str]| parsed(args).get_one::<bool>("unsafe_no_fsync").copied();
        assert_eq!(truth(&["--unsafe-no-fsync"]), Some(true));
        assert_eq!(truth(&["--unsafe-no-fsync=F"]), Some(false));
        let given =
            parsed(&["--experimental-watch-progress-notify-interval=1m0s", "--snapshot-catchup-entries=7"]);
        assert_eq!(
            given.get_one("watch_progress_notify_interval"),
            Some(&std::time::Duration::from_secs(60))
        );
        assert_eq!(given.get_one("keep_slots"), Some(&7_u64));
    }

    #[test]
    fn a_flag_wins_over_a_variable_and_that_over_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("etcd.conf.yml");
        fs::write(
            &file,
            "name: of-file\ndata-dir: of-file\ninitial-cluster-token: of-file\nsnapshot-count: 5\n\
             listen-client-urls: http://a:1\n",
        )
        .unwrap();
        let variables = variables_of(&[
            ("ETCD_NAME", "of-variable"),
            ("ETCD_DATA_DIR", "of-variable"),
            ("ETCD_LISTEN_CLIENT_URLS", "https://b:2"),
            ("ETCD_CONFIG_FILE", file.to_str().unwrap()),
            ("ETCD_MAX_WALS", "5"),
            ("ETCD_UNHEARD_OF", "secret"),
            ("ETCD_WAL_DIR", ""),
            ("HOME", "x"),
        ]);
        let found = gather(&serve(), &parsed(&["--name=of-flag"]), variables).unwrap();
        let expected = [
            "--initial-cluster-token=of-file",
            "--snapshot-count=5",
            "--config-file=",
            "--data-dir=of-variable",
            "--listen-client-urls=https://b:2",
            "--max-wals=5",
        ];
        assert_eq!(found.arguments.len(), expected.len(), "{:?}", found.arguments);
        for (argument, expected) in found.arguments.iter().zip(expected) {
            assert!(argument.to_str().unwrap().starts_with(expected), "{argument:?} is not {expected}");
        }
        let expected =
            ["unrecognized environment variable ETCD_UNHEARD_OF", "ETCD_NAME is set too, and --name counts"];
        assert_eq!(found.warnings, expected);
        // Of several the last one counts.
        let all: Vec<_> = found
            .arguments
            .iter()
            .filter_map(|argument| argument.to_str())
            .chain(["--name=of-flag"])
            .collect();
        let given = parsed(&all);
        assert_eq!(given.get_one::<String>("name").unwrap(), "of-flag");
        assert_eq!(given.get_one::<PathBuf>("data_dir"), Some(&PathBuf::from("of-variable")));
        assert_eq!(given.get_one::<String>("initial_cluster_token").unwrap(), "of-file");
        // A list of the file is replaced, not added to.
        let urls = given.get_many::<String>("listen_client_urls").unwrap();
        assert_eq!(urls.collect::<Vec<_>>(), ["https://b:2"]);
    }

    #[test]
    fn etcds_own_sample_is_read() {
        let folder = tempfile::tempdir().unwrap();
        // By its name nobody could tell in which form it is.
        let file = folder.path().join("settings");
        let sample = "name: 'default'\ndata-dir:\nquota-backend-bytes: 0\ncors:\ndiscovery-fallback: 'proxy'\n\
                      strict-reconfig-check: false\nproxy: 'off'\nproxy-failure-wait: 5000\n\
                      client-transport-security:\n  cert-file:\n  client-cert-auth: false\n  auto-tls: false\n\
                      log-level: debug\nlogger: zap\nlog-outputs: [stderr]\nforce-new-cluster: false\n\
                      auto-compaction-mode: periodic\nauto-compaction-retention: \"1\"\n";
        fs::write(&file, sample).unwrap();
        let found =
            gather(&serve(), &parsed(&["--config-file", file.to_str().unwrap()]), Variables::default());
        let found = found.unwrap();
        let all: Vec<_> = found.arguments.iter().filter_map(|argument| argument.to_str()).collect();
        let warnings = judge(&parsed(&all)).unwrap();
        let names: Vec<_> = warnings.iter().map(|warning| warning.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["--discovery-fallback", "--proxy", "--proxy-failure-wait"]);
    }

    #[test]
    fn the_packaged_settings_are_those_of_a_replica() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/synod.toml");
        let line = ["--config-file", file.to_str().unwrap()];
        let found = gather(&serve(), &parsed(&line), Variables::default()).unwrap();
        let all: Vec<_> = found.arguments.iter().filter_map(|argument| argument.to_str()).collect();
        let given = parsed(&all);
        assert_eq!(judge(&given).unwrap(), [""; 0]);
        let checked = config::check(&ServeArgs::from_arg_matches(&given).unwrap()).unwrap();
        let members: Vec<_> = checked.node.members.iter().map(|member| &*member.name).collect();
        assert_eq!((&*checked.node.name, members), ("n1", vec!["n1", "n2", "n3"]));
        assert_eq!(checked.warnings, [""; 0]);
    }

    #[test]
    fn a_wrong_entry_or_variable_is_named_with_what_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let why = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            entries(&file, &serve()).unwrap_err()
        };
        let cases = [
            ("nane = 'x'", "unknown key 'nane'; did you mean 'name'?; accepted: the flags"),
            ("elektion-timeout = 5", "did you mean 'election-timeout'?"),
            ("qqqq = 'x'", "unknown key 'qqqq'; accepted: the flags that `synod serve --help` lists"),
            ("config-file = 'x'", "unknown key 'config-file'"),
            ("window-max = 0", "window-max = 0: '0' is no window; accepted: 1 to 65535 slots, or auto"),
            ("protocol = 'rafft'", "accepted: multipaxos"),
            ("durability = 'safe'", "sync, view, async, memory, crash-stop"),
            ("threads = 'many'", "accepted: spread, compact"),
            ("election-timeout = 'soon'", "election-timeout = soon: 'soon' is not a time; accepted: 100"),
        ];
        for (text, part) in cases {
            let error = why("file.toml", text);
            assert!(error.contains(part), "{error} should contain {part}");
            let yaml = text.replace(" =", ":");
            let error = why("file.yml", &yaml);
            assert!(error.contains(part), "{error} should contain {part}");
        }
        assert!(why("file.yml", "peer-transport-security: {no-such-key: x}").contains("'peer-no-such-key'"));
        let wrong = gather(&serve(), &parsed(&[]), variables_of(&[("ETCD_WINDOW_MAX", "0")])).unwrap_err();
        let why = "ETCD_WINDOW_MAX=0: '0' is no window; accepted: 1 to 65535 slots, or auto";
        assert!(format!("{wrong:?}").contains(why), "{wrong:?}");
    }

    #[test]
    fn what_has_no_meaning_is_told_and_what_would_be_dangerous_is_refused() {
        let told = |args: &[&str]| judge(&parsed(args));
        assert_eq!(
            told(&["--pre-vote", "--metrics=extensive", "--force-new-cluster=false"]).unwrap(),
            [""; 0]
        );
        let warnings = told(&["--max-wals=5", "--pre-vote=false"]).unwrap();
        assert!(warnings[0].starts_with("--max-wals has no meaning here: "), "{warnings:?}");
        assert!(warnings[1].starts_with("--pre-vote false has no effect: "), "{warnings:?}");
        for refused in ["--force-new-cluster", "--discovery-token=t"] {
            let error = told(&[refused]).unwrap_err();
            assert!(format!("{error:?}").contains(refused.split('=').next().unwrap()), "{error:?}");
        }
        // A variable and a file become arguments, so they are judged too.
        let variables = variables_of(&[("ETCD_DISCOVERY_TOKEN", "t")]);
        let arguments = gather(&serve(), &parsed(&[]), variables).unwrap().arguments;
        let arguments: Vec<_> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
        assert!(format!("{:?}", told(&arguments).unwrap_err()).contains("--discovery-token"));
    }
}
