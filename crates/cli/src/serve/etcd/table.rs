//! The flags of etcd 3.7, and of versions before it, with what each does here. docs/etcd-flags.md shows them.
//!
//! Flags of TLS and of authentication that count here are not listed: they stand with what they set.

use Form::{Switch, Text, Time};
use Here::{Fixed, NoMeaning, Refused, Same};

/// A flag of etcd.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without the dashes.
    pub name: &'static str,
    /// What its value looks like.
    pub form: Form,
    /// What it does here.
    pub here: Here,
}

/// What a flag's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text, a number or a list.
    Text,
    /// True or false; true without a value.
    Switch,
    /// A time. etcd's YAML file gives it in nanoseconds.
    Time,
}

/// What a flag does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// `synod serve` has it. The text says where it differs from etcd's.
    Same(&'static str),
    /// It has no meaning, for this reason: a warning says so.
    NoMeaning(&'static str),
    /// The replica always does what the flag does with this value; a warning says why another value has no effect.
    Fixed(&'static str, &'static str),
    /// To ignore it would be dangerous, for this reason, unless it has this value.
    Refused(&'static str, &'static str),
}

const fn flag(name: &'static str, form: Form, here: Here) -> Flag {
    Flag { name, form, here }
}

const NO_FILE: &str = "keys are kept in memory, and the log and snapshots have no file of bbolt's";
const NO_DISCOVERY: &str = "a discovery service is not asked; name the members with --initial-cluster, or let DNS name them \
                            with --discovery-srv";
const NO_TRACES: &str = "no traces are sent; /metrics has histograms of requests and commits";
const NO_CALL: &str =
    "a replica does not call itself to serve the JSON API, so it shows no certificate as a client of its own";
const NO_LONGER: &str = "etcd has no such flag any more";
const NO_PROXY: &str = "etcd has no proxy of its second API any more";

/// All of them.
pub const FLAGS: &[Flag] = &[
    flag("advertise-client-urls", Text, Same("Default: --listen-client-urls, where etcd has none then.")),
    flag("auto-compaction-mode", Text, Same("")),
    flag("auto-compaction-retention", Text, Same("")),
    flag("backend-batch-interval", Time, NoMeaning(NO_FILE)),
    flag("backend-batch-limit", Text, NoMeaning(NO_FILE)),
    flag("backend-bbolt-freelist-type", Text, NoMeaning(NO_FILE)),
    flag("bootstrap-defrag-threshold-megabytes", Text, NoMeaning(NO_FILE)),
    flag("client-cert-file", Text, NoMeaning(NO_CALL)),
    flag("client-key-file", Text, NoMeaning(NO_CALL)),
    flag("cluster-active-size", Text, NoMeaning(NO_LONGER)),
    flag("cluster-remove-delay", Text, NoMeaning(NO_LONGER)),
    flag("cluster-sync-interval", Text, NoMeaning(NO_LONGER)),
    flag("compact-hash-check-enabled", Switch, Same("The same as the feature CompactHashCheck.")),
    flag("compact-hash-check-time", Time, Same("")),
    flag(
        "compaction-batch-limit",
        Text,
        NoMeaning("a compaction clears versions away a few at a time by itself"),
    ),
    flag(
        "compaction-sleep-interval",
        Time,
        NoMeaning("a compaction clears versions away a few at a time by itself"),
    ),
    flag("config", Text, NoMeaning(NO_LONGER)),
    flag(
        "config-file",
        Text,
        Same(
            "etcd's YAML, or TOML with the same keys. Flags and variables count beside it; etcd ignores them then.",
        ),
    ),
    flag("corrupt-check-time", Time, Same("")),
    flag("cors", Text, Same("")),
    flag("data-dir", Text, Same("Default: NAME.synod, where etcd has NAME.etcd.")),
    flag("discovery", Text, Refused("", NO_DISCOVERY)),
    flag("discovery-cacert", Text, NoMeaning(NO_DISCOVERY)),
    flag("discovery-cert", Text, NoMeaning(NO_DISCOVERY)),
    flag("discovery-dial-timeout", Time, NoMeaning(NO_DISCOVERY)),
    flag("discovery-endpoints", Text, Refused("", NO_DISCOVERY)),
    flag("discovery-fallback", Text, NoMeaning(NO_PROXY)),
    flag("discovery-insecure-skip-tls-verify", Switch, NoMeaning(NO_DISCOVERY)),
    flag("discovery-insecure-transport", Switch, NoMeaning(NO_DISCOVERY)),
    flag("discovery-keepalive-time", Time, NoMeaning(NO_DISCOVERY)),
    flag("discovery-keepalive-timeout", Time, NoMeaning(NO_DISCOVERY)),
    flag("discovery-key", Text, NoMeaning(NO_DISCOVERY)),
    flag("discovery-password", Text, NoMeaning(NO_DISCOVERY)),
    flag("discovery-proxy", Text, NoMeaning(NO_DISCOVERY)),
    flag("discovery-request-timeout", Time, NoMeaning(NO_DISCOVERY)),
    flag("discovery-srv", Text, Same("At the first start. DNS is asked at the servers of /etc/resolv.conf.")),
    flag("discovery-srv-name", Text, Same("")),
    flag("discovery-token", Text, Refused("", NO_DISCOVERY)),
    flag("discovery-user", Text, NoMeaning(NO_DISCOVERY)),
    flag("distributed-tracing-address", Text, NoMeaning(NO_TRACES)),
    flag("distributed-tracing-instance-id", Text, NoMeaning(NO_TRACES)),
    flag("distributed-tracing-sampling-rate", Text, NoMeaning(NO_TRACES)),
    flag("distributed-tracing-service-name", Text, NoMeaning(NO_TRACES)),
    flag("downgrade-check-time", Time, NoMeaning("a cluster is not downgraded to a version of etcd")),
    flag("election-timeout", Text, Same("At least 3 heartbeats, where etcd demands 5.")),
    flag("enable-distributed-tracing", Switch, Fixed("false", NO_TRACES)),
    flag("enable-grpc-gateway", Switch, Same("")),
    flag("enable-lease-checkpoint", Switch, Fixed("true", "the log decides when a lease ends")),
    flag("enable-lease-checkpoint-persist", Switch, Fixed("true", "the log decides when a lease ends")),
    flag("enable-log-rotation", Switch, Same("Of each file of --log-outputs, where etcd takes one file.")),
    flag("enable-pprof", Switch, Fixed("false", "there is no profiler of Go's here; use `perf`")),
    flag("enable-v2", Switch, Fixed("false", "etcd's second API is not served")),
    flag("enable-v2v3", Text, NoMeaning("etcd's second API is not served")),
    flag(
        "feature-gates",
        Text,
        Same("CompactHashCheck and InitialCorruptCheck count; the others have no meaning here."),
    ),
    flag("force", Switch, NoMeaning(NO_LONGER)),
    flag(
        "force-new-cluster",
        Switch,
        Refused(
            "false",
            "a new cluster is made of one survivor's data by `synod recover`, which first says what may be lost",
        ),
    ),
    flag(
        "grpc-keepalive-interval",
        Time,
        Same("Default: 30 s, where etcd has 2 h, since idle connections take places."),
    ),
    flag(
        "grpc-keepalive-min-time",
        Time,
        Same("0 allows any number of pings, where etcd then has gRPC's bound of 5 minutes."),
    ),
    flag("grpc-keepalive-timeout", Time, Same("")),
    flag("heartbeat-interval", Text, Same("")),
    flag("host-whitelist", Text, Same("")),
    flag(
        "initial-advertise-peer-urls",
        Text,
        Same("One address; its host name may stand for several, which are tried in turn."),
    ),
    flag(
        "initial-cluster",
        Text,
        Same("One address for each name; its host name may stand for several, which are tried in turn."),
    ),
    flag("initial-cluster-state", Text, Same("")),
    flag("initial-cluster-token", Text, Same("Default: synod-cluster.")),
    flag("initial-corrupt-check", Switch, Same("The same as the feature InitialCorruptCheck.")),
    flag(
        "initial-election-tick-advance",
        Switch,
        NoMeaning("a replica that starts asks the others for their leader at once"),
    ),
    flag("listen-client-http-urls", Text, Same("")),
    flag("listen-client-urls", Text, Same("")),
    flag("listen-metrics-urls", Text, Same("")),
    flag("listen-peer-urls", Text, Same("")),
    flag("log-format", Text, Same("Default: text, which is etcd's console.")),
    flag("log-level", Text, Same("panic, dpanic and fatal are the same as error.")),
    flag("log-outputs", Text, Same("systemd/journal is standard error, which a service's journal gets.")),
    flag(
        "log-package-levels",
        Text,
        NoMeaning("--log-level sets levels of parts: info,synod_transport=debug"),
    ),
    flag(
        "log-rotation-config-json",
        Text,
        Same("A warning for localtime: the names of full files have times of UTC, as all log lines."),
    ),
    flag("logger", Text, Fixed("zap", "messages have the format that --log-format says")),
    flag("max-concurrent-streams", Text, Same("Default: 4096, where etcd has no bound.")),
    flag(
        "max-learners",
        Text,
        Same("Members that stay learners; one that is to vote, or replaces another, does not count."),
    ),
    flag("max-request-bytes", Text, Same("At the first start; later `synod reconfigure` changes it.")),
    flag("max-result-buffer", Text, NoMeaning(NO_LONGER)),
    flag("max-retry-attempts", Text, NoMeaning(NO_LONGER)),
    flag("max-snapshots", Text, NoMeaning("the last snapshots are kept, and no more")),
    flag("max-txn-ops", Text, Same("At the first start; later `synod reconfigure` changes it.")),
    flag("max-wals", Text, NoMeaning("a segment of the log goes once a snapshot covers it")),
    flag(
        "memory-mlock",
        Switch,
        Fixed("false", "memory is not locked; turn swapping off for the machine or the service"),
    ),
    flag("metrics", Text, Fixed("extensive", "/metrics always has its histograms")),
    flag("name", Text, Same("")),
    flag("peer-election-timeout", Text, NoMeaning(NO_LONGER)),
    flag("peer-heartbeat-interval", Text, NoMeaning(NO_LONGER)),
    flag(
        "peer-skip-client-san-verification",
        Switch,
        Same(
            "etcd compares the address from which a peer calls; here the host of its peer URL is what counts.",
        ),
    ),
    flag(
        "pre-vote",
        Switch,
        Fixed("true", "a replica asks the others before it stands for election, with every protocol"),
    ),
    flag("proxy", Text, NoMeaning(NO_PROXY)),
    flag("proxy-dial-timeout", Text, NoMeaning(NO_PROXY)),
    flag("proxy-failure-wait", Text, NoMeaning(NO_PROXY)),
    flag("proxy-read-timeout", Text, NoMeaning(NO_PROXY)),
    flag("proxy-refresh-interval", Text, NoMeaning(NO_PROXY)),
    flag("proxy-write-timeout", Text, NoMeaning(NO_PROXY)),
    flag("quota-backend-bytes", Text, Same("Bytes of keys and values with their history in memory.")),
    flag("raft-read-timeout", Time, NoMeaning("--election-timeout says how long a peer may be silent")),
    flag("raft-write-timeout", Time, NoMeaning("--election-timeout says how long a peer may be silent")),
    flag("retry-interval", Text, NoMeaning(NO_LONGER)),
    flag("snapshot", Switch, NoMeaning(NO_LONGER)),
    flag("snapshot-catchup-entries", Text, Same("Another name of --keep-slots.")),
    flag("snapshot-count", Text, Same("")),
    flag(
        "socket-reuse-address",
        Switch,
        Fixed("true", "a replica that starts again need not wait for its old connections"),
    ),
    flag("socket-reuse-port", Switch, Same("")),
    flag("stop-grpc-service-on-defrag", Switch, NoMeaning(NO_FILE)),
    flag(
        "strict-reconfig-check",
        Switch,
        Same(
            "For etcd's calls, as there. A change of members that would leave the cluster without a quorum is refused in any \
             case.",
        ),
    ),
    flag("txn-mode-write-with-shared-buffer", Switch, NoMeaning(NO_FILE)),
    flag("unsafe-no-fsync", Switch, Same("The same as --durability async.")),
    flag("v", Switch, NoMeaning(NO_LONGER)),
    flag("v2-deprecation", Text, NoMeaning("etcd's second API is not served")),
    flag("vv", Switch, NoMeaning(NO_LONGER)),
    flag(
        "wait-cluster-ready-timeout",
        Time,
        NoMeaning(
            "clients are served at once, and wait for a leader by themselves; a member that joins serves them once it has \
             caught up",
        ),
    ),
    flag(
        "wal-dir",
        Text,
        Same(
            "`wal` in --data-dir becomes a link to it at the first start, where `wal`, `recover` and `snapshot restore` find it. A log \
             that is missing there counts as lost; a folder that is not there is refused, as its file system may not be \
             mounted, and so is a log of another replica.",
        ),
    ),
    flag(
        "warning-apply-duration",
        Time,
        NoMeaning("--warning-unary-request-duration tells of slow requests as a whole"),
    ),
    flag("warning-unary-request-duration", Time, Same("At most ten lines a second.")),
    flag("watch-progress-notify-interval", Time, Same("")),
];

/// The flag of this name.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use std::{env, fmt::Write as _, fs};

    use clap::{Args as _, Command};

    use super::*;
    use crate::serve::flags::ServeArgs;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/etcd-flags.md");
    const HEAD: &str = "| flag | here |\n| --- | --- |\n";

    /// The table of the page.
    fn rendered() -> String {
        let mut text = HEAD.to_owned();
        for Flag { name, here, .. } in FLAGS {
            let here = match here {
                Same("") => "as etcd's".to_owned(),
                Same(differs) => (*differs).to_owned(),
                NoMeaning(why) => format!("a warning: {why}"),
                Fixed(always, why) => format!("always `{always}`, and a warning otherwise: {why}"),
                Refused("", why) => format!("refused: {why}"),
                Refused(harmless, why) => format!("refused, unless it is `{harmless}`: {why}"),
            };
            writeln!(text, "| `--{name}` | {here} |").unwrap();
        }
        text
    }

    #[test]
    fn the_page_shows_the_table() {
        let page = fs::read_to_string(PAGE).unwrap();
        let begin = page.find(HEAD).expect("the page has the table");
        let end = page[begin..].find("\n\n").map_or(page.len(), |end| begin + end + 1);
        if env::var_os("SYNOD_BLESS").is_some() {
            fs::write(PAGE, format!("{}{}{}", &page[..begin], rendered(), &page[end..])).unwrap();
            return;
        }
        assert!(page[begin..end] == rendered(), "SYNOD_BLESS=1 writes the table into docs/etcd-flags.md");
    }

    /// A flag that counts here is one of `synod serve`, and the others are not.
    #[test]
    fn each_flag_does_what_the_table_says() {
        let serve = ServeArgs::augment_args(Command::new("serve"));
        for Flag { name, here, .. } in FLAGS {
            let mut args = serve.get_arguments();
            let has = args.any(|arg| {
                arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(name))
            });
            assert_eq!(has, matches!(here, Same(_)), "--{name}");
        }
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name), "they are sorted, and each stands once");
    }
}
