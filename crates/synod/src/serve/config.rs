//! From flags to what the parts are given, with the checks that need more than one flag.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use synod_consensus::ElectionKind;
use synod_node::MemberAddress;
use synod_replica::Settings;
use synod_server::Member;
use synod_storage::Durability;
use synod_wire::{ClusterId, ReplicaId};

use super::{
    flags::{ClusterState, ServeArgs, Tuning},
    units,
};

/// A wrong value: which flag, what it was, what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} {value}: {why}")]
pub struct ConfigError {
    flag: &'static str,
    value: String,
    why: String,
}

fn wrong<T>(flag: &'static str, value: impl ToString, why: impl ToString) -> Result<T, ConfigError> {
    Err(ConfigError { flag, value: value.to_string(), why: why.to_string() })
}

/// Everything that a replica and its server are told.
#[derive(Debug)]
pub struct Checked {
    pub node: synod_node::Config,
    pub server: synod_server::Config,
    /// The members as clients are told of them, by id.
    pub members: Vec<Member>,
    /// What is legal and probably not meant.
    pub warnings: Vec<String>,
}

/// Checks flags and puts them where they belong.
pub fn check(args: &ServeArgs) -> Result<Checked, ConfigError> {
    let name = &args.member.name;
    let mut warnings = Vec::new();
    check_name("name", name)?;
    let members = members(args, &mut warnings)?;
    let me = &members.iter().find(|member| member.name == *name).expect("checked by members()").id;
    let cluster = cluster_id(&args.cluster.initial_cluster_token, members.iter().map(|member| &*member.name));
    let addresses = members.iter().map(|member| MemberAddress {
        id: member.id,
        name: member.name.clone(),
        address: units::authority(&member.peer_urls[0]).expect("checked by members()").to_owned(),
        client_urls: member.client_urls.clone(),
    });
    let data_dir = args.member.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.synod")));
    if args.cluster.initial_cluster_state == ClusterState::Existing && !data_dir.join("identity").exists() {
        return wrong(
            "initial-cluster-state",
            "existing",
            format!(
                "there is no data of an earlier start in {}; correct --data-dir, or give new if this replica \
                 has never run. One that has lost its data can not come back under its old name",
                data_dir.display()
            ),
        );
    }

    check_tuning(&args.tuning)?;
    if args.tuning.durability == Durability::Memory && members.len() == 1 {
        warnings.push("one replica with --durability memory keeps nothing over a restart".to_owned());
    }
    let mut node = synod_node::Config::new(cluster, *me, addresses.collect(), data_dir);
    node.listen = listen("listen-peer-urls", &args.member.listen_peer_urls)?;
    node.durability = args.tuning.durability;
    node.segment_bytes = args.tuning.wal_segment_bytes;
    node.settings = settings(&args.tuning);
    node.executor_thread = args.tuning.executor_thread;
    let server = synod_server::Config {
        client_addresses: listen("listen-client-urls", &args.member.listen_client_urls)?,
        metrics_addresses: listen("listen-metrics-urls", &args.member.listen_metrics_urls)?,
        client_io_threads: args.tuning.client_io_threads.into(),
        connections_max: args.tuning.connections_max as usize,
        streams_per_connection_max: args.tuning.max_concurrent_streams,
        request_bytes_max: args.tuning.max_request_bytes,
        txn_ops_max: args.tuning.max_txn_ops as usize,
        quota_bytes: args.tuning.quota_backend_bytes,
        ..synod_server::Config::default()
    };
    Ok(Checked { node, server, members, warnings })
}

/// What the library takes where nothing is said.
pub fn defaults() -> synod_node::Config {
    synod_node::Config::new(ClusterId(0), ReplicaId(0), Vec::new(), PathBuf::new())
}

/// The settings of the replica's core.
pub fn settings(tuning: &Tuning) -> Settings {
    let mut settings = Settings::default();
    settings.consensus.protocol = tuning.protocol;
    settings.consensus.election = tuning.election;
    settings.consensus.priority = tuning.priority;
    settings.consensus.decision = tuning.decision;
    settings.consensus.heartbeat_interval = tuning.heartbeat_interval;
    settings.consensus.election_timeout = tuning.election_timeout;
    settings.consensus.retransmit_after = tuning.retransmit_after;
    settings.consensus.announce_delay_max = tuning.announce_delay_max;
    settings.consensus.window_max = tuning.window_max.into();
    settings.batch_bytes_max = tuning.batch_bytes_max;
    settings.batch_delay_max = tuning.batch_delay_max;
    settings.queue_bytes_max = tuning.queue_bytes_max;
    settings.forward_window_max = tuning.forward_window_max.into();
    settings.request_timeout = tuning.request_timeout;
    settings.snapshot_slots = tuning.snapshot_count;
    settings.snapshot_log_bytes = tuning.snapshot_log_bytes;
    settings.keep_slots = tuning.keep_slots;
    settings.keep_bytes = tuning.keep_bytes;
    settings
}

/// The cluster's id: FNV-1a (64 bits) over the token and the sorted names, each followed by a zero byte. URLs are not
/// part of it, so that a replica may move to another address.
pub fn cluster_id<'a>(token: &'a str, names: impl IntoIterator<Item = &'a str>) -> ClusterId {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    let words = std::iter::once(token).chain(names);
    let bytes = words.flat_map(|word| word.bytes().chain([0]));
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    // 0 stands for "no cluster" in etcd's messages.
    ClusterId(hash.max(1))
}

fn check_name(flag: &'static str, name: &str) -> Result<(), ConfigError> {
    let fits =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b",=/\\".contains(&byte));
    if fits {
        return Ok(());
    }
    wrong(flag, format!("'{name}'"), "accepted: a name of letters, digits and signs other than , = / \\")
}

/// The members, with ids 1, 2, ... in the order of their names; this replica is among them.
fn members(args: &ServeArgs, warnings: &mut Vec<String>) -> Result<Vec<Member>, ConfigError> {
    const FLAG: &str = "initial-cluster";
    let name = &args.member.name;
    let mut peer_urls = BTreeMap::new();
    for (member, url) in pairs(FLAG, &args.cluster.initial_cluster)? {
        if peer_urls.insert(member.clone(), url).is_some() {
            return wrong(FLAG, member, "is named twice; accepted: one URL for each name");
        }
    }
    if args.cluster.initial_cluster.is_empty() {
        peer_urls.insert(name.clone(), own_peer_url(args)?);
    }
    for (member, url) in &peer_urls {
        match units::authority(url) {
            Err(why) => return wrong(FLAG, format!("{member}={url}"), why),
            Ok(address) if units::is_wildcard(address) && peer_urls.len() > 1 => {
                let why =
                    "nobody can connect to that address; accepted: the one at which the others reach it";
                return wrong(FLAG, format!("{member}={url}"), why);
            }
            Ok(_) => {}
        }
    }
    if peer_urls.len() > synod_consensus::MEMBERS_MAX {
        let most = format!("accepted: at most {} replicas", synod_consensus::MEMBERS_MAX);
        return wrong(FLAG, format!("with {} names", peer_urls.len()), most);
    }
    let Some(own_url) = peer_urls.get(name) else {
        let names: Vec<_> = peer_urls.keys().map(String::as_str).collect();
        return wrong("name", name, format!("is not in --initial-cluster; accepted: {}", names.join(", ")));
    };
    if let Some(advertised) = &args.cluster.initial_advertise_peer_urls
        && advertised.trim_end_matches('/') != own_url.trim_end_matches('/')
    {
        let why = format!("--initial-cluster says {name}={own_url}; accepted: the same URL in both");
        return wrong("initial-advertise-peer-urls", advertised, why);
    }
    let mut client_urls = client_urls(args, &peer_urls)?;
    warn_of_wildcards(&client_urls[name.as_str()], warnings);
    let members = peer_urls.iter().zip(1..).map(|((member, url), id)| Member {
        id: ReplicaId(id),
        name: member.clone(),
        peer_urls: vec![url.clone()],
        client_urls: client_urls.remove(member.as_str()).unwrap_or_default(),
        is_learner: false,
    });
    Ok(members.collect())
}

/// Of a replica that is a cluster of its own.
fn own_peer_url(args: &ServeArgs) -> Result<String, ConfigError> {
    let own = args.cluster.initial_advertise_peer_urls.as_ref().or(args.member.listen_peer_urls.first());
    own.cloned().map_or_else(|| wrong("listen-peer-urls", "''", "accepted: http://host:port"), Ok)
}

/// Where clients reach each member, as far as it is known.
fn client_urls<'a>(
    args: &'a ServeArgs,
    members: &'a BTreeMap<String, String>,
) -> Result<BTreeMap<&'a str, Vec<String>>, ConfigError> {
    const FLAG: &str = "initial-cluster-client-urls";
    let mut urls: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (member, url) in pairs(FLAG, &args.cluster.initial_cluster_client_urls)? {
        if let Err(why) = units::authority(&url) {
            return wrong(FLAG, format!("{member}={url}"), why);
        }
        match members.get_key_value(&member) {
            Some((member, _)) => urls.entry(member).or_default().push(url),
            None => return wrong(FLAG, member, "is not in --initial-cluster; accepted: the names there"),
        }
    }
    let advertised = &args.member.advertise_client_urls;
    for url in advertised {
        if let Err(why) = units::authority(url) {
            return wrong("advertise-client-urls", url, why);
        }
    }
    // A replica knows itself best.
    let own = if advertised.is_empty() { &args.member.listen_client_urls } else { advertised };
    urls.insert(&args.member.name, own.clone());
    Ok(urls)
}

fn warn_of_wildcards(urls: &[String], warnings: &mut Vec<String>) {
    let wildcards = urls.iter().filter(|url| units::authority(url).is_ok_and(units::is_wildcard));
    warnings.extend(wildcards.map(|url| {
        format!("clients that ask for the members are told {url}, to which they can not connect; set --advertise-client-urls")
    }));
}

/// The parts of a list of `name=url`.
fn pairs(flag: &'static str, list: &[String]) -> Result<Vec<(String, String)>, ConfigError> {
    let pairs = list.iter().map(|pair| match pair.trim().split_once('=') {
        Some((name, url)) => check_name(flag, name).map(|()| (name.to_owned(), url.to_owned())),
        None => wrong(flag, format!("'{pair}'"), "accepted: NAME=http://host:port, and commas between them"),
    });
    pairs.collect()
}

fn listen(flag: &'static str, urls: &[String]) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut addresses = Vec::new();
    for url in urls {
        match synod_server::listen_addresses(url) {
            Ok(found) => addresses.extend(found),
            Err(error) => return wrong(flag, url, error),
        }
    }
    Ok(addresses)
}

fn check_tuning(tuning: &Tuning) -> Result<(), ConfigError> {
    if tuning.election_timeout < tuning.heartbeat_interval * 3 {
        let why = format!(
            "is less than 3 times --heartbeat-interval, which is {:?}; accepted: {:?} or more",
            tuning.heartbeat_interval,
            tuning.heartbeat_interval * 3
        );
        return wrong("election-timeout", format!("{:?}", tuning.election_timeout), why);
    }
    let elections = tuning.protocol.elections();
    if !elections.contains(&tuning.election) {
        let accepted: Vec<String> = elections.iter().map(ToString::to_string).collect();
        let why =
            format!("does not go with --protocol {}; accepted: {}", tuning.protocol, accepted.join(", "));
        return wrong("election", tuning.election.to_string(), why);
    }
    if tuning.priority > 0 && tuning.election == ElectionKind::Rotating {
        let why = "does nothing with --election rotating; accepted: 0, or any with --election ballot";
        return wrong("priority", tuning.priority, why);
    }
    if tuning.max_request_bytes > tuning.queue_bytes_max / 2 {
        let why =
            format!("accepted: at most half of --queue-bytes-max, so {} bytes", tuning.queue_bytes_max / 2);
        return wrong("max-request-bytes", tuning.max_request_bytes, why);
    }
    if !(16 << 10..=4 << 30).contains(&tuning.wal_segment_bytes) {
        return wrong("wal-segment-bytes", tuning.wal_segment_bytes, "accepted: 16KiB to 4GiB");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn checked(line: &str) -> Result<Checked, ConfigError> {
        check(&Cli::try_parse_from(["serve"].into_iter().chain(line.split_whitespace())).unwrap().args)
    }

    const THREE: &str = "--initial-cluster c=http://h3:1,a=http://h1:1,b=http://h2:1";

    #[test]
    fn members_are_numbered_by_name() {
        let checked = checked(&format!(
            "--name b {THREE} --initial-cluster-client-urls a=http://h1:2,a=http://h1:3 \
             --advertise-client-urls http://h2:2"
        ))
        .unwrap();
        assert_eq!(checked.node.me, ReplicaId(2));
        let members: Vec<_> = checked
            .members
            .iter()
            .map(|member| (member.id.0, &*member.name, member.client_urls.len()))
            .collect();
        assert_eq!(members, [(1, "a", 2), (2, "b", 1), (3, "c", 0)]);
        assert_eq!(checked.node.members[2].address, "h3:1");
        assert_eq!(checked.node.data_dir, PathBuf::from("b.synod"));
    }

    #[test]
    fn alone_without_any_flag() {
        let checked = checked("").unwrap();
        assert_eq!(checked.members.len(), 1);
        assert_eq!(checked.members[0].peer_urls, ["http://127.0.0.1:2380"]);
        assert_eq!(checked.members[0].client_urls, ["http://127.0.0.1:2379"]);
        assert!(checked.warnings.is_empty());
        let checked =
            super::tests::checked("--listen-client-urls http://0.0.0.0:2379 --durability memory").unwrap();
        assert_eq!(checked.warnings.len(), 2, "{:?}", checked.warnings);
    }

    #[test]
    fn the_cluster_is_its_token_and_its_names() {
        let id = |token, names: &[&'static str]| cluster_id(token, names.iter().copied());
        assert_eq!(id("t", &["a", "b"]), id("t", &["b", "a"]));
        assert_ne!(id("t", &["a", "b"]), id("u", &["a", "b"]));
        assert_ne!(id("t", &["a", "b"]), id("t", &["ab"]));
        // What is on disks must not change with a new version.
        assert_eq!(id("synod-cluster", &["n1", "n2", "n3"]), ClusterId(0x1b93_9e4b_11b1_3307));
    }

    #[test]
    fn a_refusal_names_the_flag_the_value_and_what_is_accepted() {
        let three = |rest: &str| format!("{THREE} {rest}");
        let cases = [
            (three("--name d"), ["--name d", "accepted: a, b, c"]),
            ("--name a=b".into(), ["--name 'a=b'", "accepted: a name"]),
            ("--name a --initial-cluster a".into(), ["--initial-cluster 'a'", "NAME=http://host:port"]),
            ("--name a --initial-cluster a=https://h:1".into(), ["--initial-cluster a=https://h:1", "TLS"]),
            (
                "--name a --initial-cluster a=http://h:1,a=http://i:1".into(),
                ["--initial-cluster a:", "one URL for each name"],
            ),
            (
                "--name a --initial-cluster a=http://0.0.0.0:1,b=http://h:1".into(),
                ["--initial-cluster a=http://0.0.0.0:1", "nobody can connect"],
            ),
            (
                three("--name a --initial-advertise-peer-urls http://h9:1"),
                ["--initial-advertise-peer-urls http://h9:1", "a=http://h1:1"],
            ),
            (
                three("--name a --initial-cluster-client-urls x=http://h:1"),
                ["--initial-cluster-client-urls x", "accepted: the names"],
            ),
            ("--priority 3".into(), ["--priority 3", "--election ballot"]),
            ("--protocol raft".into(), ["--election rotating", "accepted: randomized"]),
            (
                "--election-timeout 200 --heartbeat-interval 100".into(),
                ["--election-timeout 200ms", "accepted: 300ms or more"],
            ),
            ("--queue-bytes-max 1MiB".into(), ["--max-request-bytes 1572864", "524288 bytes"]),
            ("--wal-segment-bytes 1KiB".into(), ["--wal-segment-bytes 1024", "accepted: 16KiB to 4GiB"]),
            (
                "--listen-client-urls https://a:1".into(),
                ["--listen-client-urls https://a:1", "http://host:port"],
            ),
            (
                "--advertise-client-urls ftp://a:1".into(),
                ["--advertise-client-urls ftp://a:1", "http://host:port"],
            ),
            (
                "--data-dir /nowhere --initial-cluster-state existing".into(),
                ["--initial-cluster-state existing", "/nowhere"],
            ),
        ];
        for (line, parts) in cases {
            let error = checked(&line).expect_err(&line).to_string();
            for part in parts {
                assert!(error.contains(part), "{error} should contain {part}");
            }
        }
    }
}
