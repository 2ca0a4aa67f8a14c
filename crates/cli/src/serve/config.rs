//! Turns flags into configurations, with the checks that need more than one flag.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use synod_consensus::{Combination, CombinationError, ElectionKind, Overrides, ProtocolKind, Threshold};
use synod_node::{MemberAddress, Merging, Threads};
use synod_replica::{Limits, REQUEST_BYTES_MAX, REQUEST_BYTES_MIN, Settings};
use synod_server::{Address, At, Auth, KeepAlive, Speaks, TokenKind, node::Joining, urls};
use synod_storage::{DataDir, Durability, Ending};
use synod_wire::{ClusterId, Groups, ReplicaId};

use super::{
    flags::{AuthArgs, ClusterState, Derived, ServeArgs, Tuning, Window},
    laboratory,
    network::network,
    tls::TlsPlan,
};

/// A wrong value: the flag, its value, and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} {value}: {why}")]
pub struct ConfigError {
    flag: &'static str,
    value: String,
    why: String,
}

pub(super) fn wrong<T>(
    flag: &'static str,
    value: impl ToString,
    why: impl ToString,
) -> Result<T, ConfigError> {
    Err(ConfigError { flag, value: value.to_string(), why: why.to_string() })
}

/// The configuration of a replica and its server.
#[derive(Debug)]
pub struct Checked {
    pub node: synod_node::Config,
    pub server: synod_server::Config,
    /// What the replica does for its store by itself.
    pub upkeep: synod_server::UpkeepConfig,
    /// Whether it compares itself with the others before it serves.
    pub check_at_start: bool,
    /// That of the flags, for a replica that joins: the cluster tells it the number.
    pub groups: Groups,
    /// For the first start of a replica that joins a cluster: whom to ask. The cluster and the id in `node`
    /// are not known yet then.
    pub joining: Option<Joining>,
    /// The addresses that clients are told for this replica.
    pub client_urls: Vec<String>,
    /// What `node` and `server` still lack: TLS, which is made from files.
    pub tls: TlsPlan,
    /// Settings that are legal and probably a mistake.
    pub warnings: Vec<String>,
}

/// Checks flags and turns them into configurations. The data directory of an earlier start takes precedence
/// over flags about the cluster.
pub fn check(args: &ServeArgs) -> Result<Checked, ConfigError> {
    let name = &args.member.name;
    let mut warnings = Vec::new();
    check_name("name", name)?;
    let client_urls = client_urls(args, &mut warnings)?;
    let data_dir = data_dir(args);
    let begun = begun(&data_dir)?;
    let asked_for = args.tuning.groups;
    let groups = begun.map_or(asked_for.unwrap_or(Groups::ONE), |begun| begun.groups);
    // Otherwise the group has its options already.
    let begins = begun.is_none() && args.cluster.initial_cluster_state == ClusterState::New;
    let (cluster, me, members, joining, own_url) = match begun {
        Some(Begun { cluster, me, groups }) => {
            if let Some(other) = asked_for.filter(|other| *other != groups) {
                let why = format!(
                    "{} holds data of {groups}, and the groups of a cluster stay; accepted: --groups {groups}, or \
                     another folder with --data-dir",
                    data_dir.display()
                );
                return wrong("groups", other, why);
            }
            // The log says by now where the others call this replica.
            (cluster, me, Vec::new(), None, None)
        }
        None if args.cluster.initial_cluster_state == ClusterState::Existing => {
            let joining = joining(args)?;
            let own_url = joining.peer_url.clone();
            (ClusterId(0), ReplicaId(0), Vec::new(), Some(joining), Some(own_url))
        }
        None => {
            let urls = initial_members(args)?;
            let cluster = cluster_id(args, groups, &urls);
            let members: Vec<_> = urls.iter().zip(1..).map(address).collect();
            let own = named_as(args);
            let me = members.iter().find(|member| member.name == own).expect("checked with the list").id;
            (cluster, me, members, None, urls.get(own).cloned())
        }
    };

    check_tuning(&args.tuning)?;
    laboratory::check_replica(&args.tuning)?;
    if begins {
        laboratory::check_start(&args.tuning)?;
    } else if begun.is_none() {
        laboratory::check_joiner(&args.tuning)?;
    }
    let durability = durability(args)?;
    check_combination(&args.tuning, durability)?;
    let needed = settings(&args.tuning).consensus.threshold();
    warnings.extend(too_few_for(durability, needed, members.len()));
    let (upkeep, check_at_start) = match super::etcd::upkeep::config(&args.etcd) {
        Ok(upkeep) => upkeep,
        Err(why) => return wrong("auto-compaction-retention", &args.etcd.auto_compaction_retention, why),
    };
    let idle = &args.etcd.feature_gates.without_meaning;
    warnings.extend(idle.iter().map(|name| format!("--feature-gates {name} has no meaning here")));
    warnings.extend(super::log::idle(&args.log));
    let mut node = synod_node::Config::new(cluster, me, members, data_dir);
    node.name.clone_from(name);
    node.log_dir = args.member.wal_dir.clone().filter(|dir| !dir.as_os_str().is_empty());
    for Address { at, speaks } in listen("listen-peer-urls", &args.member.listen_peer_urls)? {
        let At::Tcp(address) = at else {
            return wrong("listen-peer-urls", at, "accepted: http://host:port or https://host:port");
        };
        if speaks != Speaks::Tls {
            node.listen.push(address);
        }
        if speaks != Speaks::Plain {
            node.listen_tls.push(address);
        }
    }
    warnings.extend(own_url.and_then(|url| called_elsewhere(args, &node, &url)));
    let tls = TlsPlan::check(args, &node, &mut warnings)?;
    node.network = network(&args.tuning, &tls, &mut warnings)?;
    node.durability = durability;
    node.segment_bytes = args.tuning.wal_segment_bytes;
    node.accept_lost_log = args.tuning.accept_lost_log;
    node.begin_without_all = args.cluster.begin_without_all;
    node.settings = settings(&args.tuning);
    node.threads = threads(&args.tuning);
    node.merging = Merging::of_cluster(groups, args.tuning.skips);
    let AuthArgs { auth_token, auth_token_ttl, bcrypt_cost } = &args.auth;
    let ttl = Duration::from_secs((*auth_token_ttl).into());
    let tokens = TokenKind::parse(auth_token, ttl).or_else(|why| wrong("auth-token", auth_token, why))?;
    let keys = auth_token.split(',').filter_map(|option| option.strip_prefix("priv-key="));
    warnings.extend(keys.filter_map(|key| synod_tls::key_is_open(Path::new(key))));
    let server = synod_server::Config {
        auth: Some(Auth::new(tokens, *bcrypt_cost)),
        names_are_users: args.tls.client_cert_auth,
        client_addresses: listen("listen-client-urls", &args.member.listen_client_urls)?,
        http_addresses: listen("listen-client-http-urls", &args.etcd.listen_client_http_urls)?,
        metrics_addresses: listen("listen-metrics-urls", &args.member.listen_metrics_urls)?,
        reuse_port: args.etcd.socket_reuse_port,
        json: args.etcd.enable_grpc_gateway,
        strict_reconfig_check: args.etcd.strict_reconfig_check,
        hosts: args.etcd.host_whitelist.clone(),
        // A file of etcd's may name none, which is the default.
        origins: args.etcd.cors.iter().filter(|origin| !origin.is_empty()).cloned().collect(),
        keep_alive: KeepAlive {
            interval: args.etcd.grpc_keepalive_interval,
            timeout: args.etcd.grpc_keepalive_timeout,
            min_time: args.etcd.grpc_keepalive_min_time,
        },
        slow_request: args.etcd.warning_unary_request_duration,
        client_io_threads: client_io_threads(&args.tuning).into(),
        connections_max: args.tuning.connections_max as usize,
        streams_per_connection_max: args.tuning.max_concurrent_streams,
        requests_bytes_max: args.tuning.requests_bytes_max as u64,
        quota_bytes: args.tuning.quota_backend_bytes,
        watch_progress_interval: args.tuning.watch_progress_notify_interval,
        ..synod_server::Config::default()
    };
    Ok(Checked { node, server, upkeep, check_at_start, groups, joining, client_urls, tls, warnings })
}

/// A warning if a cluster that begins with this many replicas is too small for what this durability loses.
fn too_few_for(durability: Durability, needed: Threshold, replicas: usize) -> Option<String> {
    match replicas {
        1 if !durability.keeps_votes(Ending::Process) => {
            Some(format!("one replica with --durability {durability} keeps nothing over a restart"))
        }
        2.. if needed.spare(replicas) == 0 && !durability.keeps_votes(Ending::Machine) => Some(format!(
            "{replicas} replicas with --durability {durability} do not go on after one machine went down; use {}, or sync",
            needed.members_for(1)
        )),
        _ => None,
    }
}

/// The durability of the flags: --unsafe-no-fsync is etcd's way to say that nothing waits for the disk.
fn durability(args: &ServeArgs) -> Result<Durability, ConfigError> {
    match args.tuning.durability {
        Durability::Sync | Durability::Async if args.etcd.unsafe_no_fsync => Ok(Durability::Async),
        other if args.etcd.unsafe_no_fsync => wrong(
            "unsafe-no-fsync",
            true,
            format!("does not go with --durability {other}; accepted: one of the two"),
        ),
        durability => Ok(durability),
    }
}

/// The folder of the replica's data.
pub fn data_dir(args: &ServeArgs) -> PathBuf {
    args.member.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("{}.synod", args.member.name)))
}

/// The name of this replica in --initial-cluster.
fn named_as(args: &ServeArgs) -> &str {
    args.cluster.found_as.as_deref().unwrap_or(&args.member.name)
}

/// The library's defaults.
pub fn defaults() -> synod_node::Config {
    synod_node::Config::new(ClusterId(0), ReplicaId(0), Vec::new(), PathBuf::new())
}

/// With more processors than this, stages have threads of their own unless a flag says otherwise. With two, compact was
/// measured to answer as much or more, with less of the processors (docs/operating.md, "Threads").
const COMPACT_PROCESSORS_MAX: usize = 2;

/// How the work is placed on threads.
fn threads(tuning: &Tuning) -> Threads {
    let processors = || thread::available_parallelism().map_or(1, NonZero::get);
    let suited = || if processors() <= COMPACT_PROCESSORS_MAX { Threads::Compact } else { Threads::Spread };
    tuning.threads.unwrap_or_else(suited)
}

/// Threads that serve clients beside the protocol's own.
fn client_io_threads(tuning: &Tuning) -> u16 {
    tuning.derived.client_io_threads.unwrap_or(if threads(tuning) == Threads::Compact { 0 } else { 1 })
}

/// The election of the flags, or the protocol's default.
fn election(tuning: &Tuning) -> ElectionKind {
    tuning.election.unwrap_or(protocol(tuning).elections()[0])
}

pub(super) fn protocol(tuning: &Tuning) -> ProtocolKind {
    tuning.protocol.unwrap_or(ProtocolKind::MultiPaxos)
}

/// The limits with which a group begins.
fn limits(tuning: &Tuning) -> Limits {
    let mut limits = Limits::default();
    limits.request_bytes_max = tuning.max_request_bytes.unwrap_or(limits.request_bytes_max);
    limits.txn_ops_max = tuning.max_txn_ops.map_or(limits.txn_ops_max, |count| count as usize);
    limits
}

/// The settings of the replica's core.
pub fn settings(tuning: &Tuning) -> Settings {
    let mut settings = Settings::default();
    settings.consensus.protocol = protocol(tuning);
    settings.consensus.election = election(tuning);
    settings.consensus.priority = tuning.priority;
    settings.consensus.multipaxos.decision = tuning.decision.unwrap_or_default();
    settings.consensus.dissemination = tuning.dissemination.unwrap_or_default();
    if let Some(options) = &tuning.options {
        options.apply(&mut settings.consensus);
    }
    settings.limits = limits(tuning);
    settings.consensus.heartbeat_interval = tuning.heartbeat_interval;
    settings.consensus.election_timeout = tuning.election_timeout;
    settings.consensus.latency.tolerance = tuning.election_tolerance;
    settings.consensus.latency.origins = tuning.election_origins;
    settings.consensus.window_max = tuning.window_max.slots();
    settings.paced = tuning.window_max == Window::Auto;
    settings.batch_bytes_max = tuning.batch_bytes_max;
    settings.queue_bytes_max = tuning.queue_bytes_max;
    settings.request_timeout = tuning.request_timeout;
    settings.snapshot_slots = tuning.snapshot_count;
    settings.snapshot_log_bytes = tuning.snapshot_log_bytes;
    settings.keep_slots = tuning.keep_slots;
    settings.keep_bytes = tuning.keep_bytes;
    derive(&mut settings, &tuning.derived);
    settings
}

/// What follows from the other settings, unless the laboratory says otherwise. An operator sets the interval of
/// heartbeats by the round trips between the members, so what is not answered within it is lost or late.
fn derive(settings: &mut Settings, given: &Derived) {
    let consensus = &mut settings.consensus;
    let resend = consensus.heartbeat_interval.max(consensus.retransmit_after);
    consensus.retransmit_after = given.retransmit_after.unwrap_or(resend);
    consensus.announce_delay_max = given.announce_delay_max.unwrap_or(consensus.announce_delay_max);
    settings.batch_delay_max = given.batch_delay_max.unwrap_or(settings.batch_delay_max);
    settings.forward_window_max = given.forward_window_max.map_or(settings.forward_window_max, usize::from);
    settings.state_transfer = given.state_transfer.unwrap_or(settings.state_transfer);
}

/// The id of a cluster that begins: FNV-1a (64 bits) over everything that must be the same at its replicas
/// then, each word followed by a zero byte, and the number of groups. Replicas that were started with different
/// values refuse each other instead of diverging.
pub fn cluster_id(args: &ServeArgs, groups: Groups, members: &BTreeMap<String, String>) -> ClusterId {
    let settings = settings(&args.tuning);
    let mut words = vec![args.cluster.initial_cluster_token.clone()];
    words.extend(members.iter().flat_map(|(name, url)| [name.clone(), urls::plain(url).to_owned()]));
    words.extend([settings.consensus.protocol.to_string(), settings.consensus.election.to_string()]);
    words.extend([Overrides::shared(&settings.consensus).to_string(), settings.limits.to_string()]);
    cluster_of(groups, words.iter().flat_map(|word| word.bytes().chain([0])))
}

/// The id of a cluster that begins with a backup: from what it would be without, the hash of the backup, and how many
/// revisions are skipped. So its members have the same contents, and those of a cluster that began otherwise, such as
/// the one that was saved, are refused.
pub fn restored_cluster(
    cluster: ClusterId,
    groups: Groups,
    backup: &[u8; 32],
    skipped: Option<u64>,
) -> ClusterId {
    let skipped = skipped.map(u64::to_le_bytes);
    let bytes = cluster.0.to_le_bytes().into_iter().chain(*backup);
    cluster_of(groups, bytes.chain(skipped.into_iter().flatten()))
}

fn cluster_of(groups: Groups, bytes: impl Iterator<Item = u8>) -> ClusterId {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    // 0 stands for "no cluster" in etcd's messages.
    ClusterId(groups.named_in(ClusterId(hash)).0.max(1))
}

/// What a data directory says of its replica.
#[derive(Clone, Copy, Debug)]
struct Begun {
    cluster: ClusterId,
    me: ReplicaId,
    groups: Groups,
}

/// The owner of a data directory, if a start has already recorded what the replica began with.
fn begun(data_dir: &Path) -> Result<Option<Begun>, ConfigError> {
    if !synod_node::is_begun(data_dir) {
        return Ok(None);
    }
    match DataDir::read(data_dir) {
        Ok(Some(marker)) => Ok(Some(Begun {
            cluster: marker.identity.cluster,
            me: marker.identity.replica,
            groups: marker.groups,
        })),
        Ok(None) => wrong(
            "data-dir",
            data_dir.display(),
            "the file 'identity' is missing beside the file 'group'; restore it, or replace this replica: synod \
             member replace",
        ),
        Err(error) => wrong("data-dir", data_dir.display(), error),
    }
}

fn address(((name, url), id): ((&String, &String), u64)) -> MemberAddress {
    MemberAddress::new(ReplicaId(id), name, urls::peer_address(url).expect("checked with the list"))
}

fn check_name(flag: &'static str, name: &str) -> Result<(), ConfigError> {
    let fits =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b",=/\\".contains(&byte));
    if fits {
        return Ok(());
    }
    wrong(flag, format!("'{name}'"), "accepted: a name of letters, digits and signs other than , = / \\")
}

/// The peer URLs of the members with which a cluster begins, by name, this replica included. Their ids are 1,
/// 2, ... in this order.
pub(super) fn initial_members(args: &ServeArgs) -> Result<BTreeMap<String, String>, ConfigError> {
    let name = named_as(args);
    let mut peer_urls = named_urls(args)?;
    if args.cluster.initial_cluster.is_empty() {
        let url = own_peer_url(args)?;
        peer_urls.insert(name.to_owned(), url.clone());
        check_peer_url(name, &url, true)?;
    }
    if peer_urls.len() > synod_consensus::MEMBERS_MAX {
        let most = format!("accepted: at most {} replicas", synod_consensus::MEMBERS_MAX);
        return wrong(FLAG, format!("with {} names", peer_urls.len()), most);
    }
    let mut places = BTreeMap::new();
    for (member, url) in &peer_urls {
        let place = urls::authority(url).unwrap_or(url).to_ascii_lowercase();
        if let Some(other) = places.insert(place, member) {
            let why = format!("is the address of {other} too; accepted: one of its own for each member");
            return wrong(FLAG, format!("{member}={url}"), why);
        }
    }
    let Some(own_url) = peer_urls.get(name) else {
        let names: Vec<_> = peer_urls.keys().map(String::as_str).collect();
        return wrong("name", name, format!("is not in --initial-cluster; accepted: {}", names.join(", ")));
    };
    if let Some(advertised) = &args.cluster.initial_advertise_peer_urls
        && urls::plain(advertised) != urls::plain(own_url)
    {
        let why = format!("--initial-cluster says {name}={own_url}; accepted: the same URL in both");
        return wrong("initial-advertise-peer-urls", advertised, why);
    }
    Ok(peer_urls)
}

const FLAG: &str = "initial-cluster";

/// The names and URLs of --initial-cluster.
fn named_urls(args: &ServeArgs) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut peer_urls = BTreeMap::new();
    for (member, url) in pairs(FLAG, &args.cluster.initial_cluster)? {
        if peer_urls.insert(member.clone(), url).is_some() {
            return wrong(FLAG, member, "is named twice; accepted: one URL for each name");
        }
    }
    for (member, url) in &peer_urls {
        check_peer_url(member, url, peer_urls.len() == 1)?;
    }
    Ok(peer_urls)
}

fn check_peer_url(member: &str, url: &str, alone: bool) -> Result<(), ConfigError> {
    match urls::authority(url) {
        Err(why) => wrong(FLAG, format!("{member}={url}"), why),
        Ok(address) if urls::is_wildcard(address) && !alone => {
            let why = "nobody can connect to that address; accepted: the one at which the others reach it";
            wrong(FLAG, format!("{member}={url}"), why)
        }
        Ok(_) => Ok(()),
    }
}

/// A warning if this replica does not listen where the others call it, as far as addresses tell: a name may stand for
/// any address, and one that is not this machine's may lead to it. --initial-advertise-peer-urls says that the two
/// differ on purpose.
fn called_elsewhere(args: &ServeArgs, node: &synod_node::Config, own_url: &str) -> Option<String> {
    let (host, port) = urls::authority(own_url).ok()?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let ip: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let is_heard = |at: &SocketAddr| {
        let is_here = match ip {
            Some(ip) if ip.is_loopback() || at.ip().is_loopback() => {
                at.ip().is_unspecified() || at.ip() == ip
            }
            _ => true,
        };
        is_here && at.port() == port
    };
    let listen = if urls::asks_for_tls(own_url) { &node.listen_tls } else { &node.listen };
    if args.cluster.initial_advertise_peer_urls.is_some() || listen.iter().any(is_heard) {
        return None;
    }
    Some(format!(
        "--listen-peer-urls {}: --initial-cluster has the others call this replica at {own_url}, where it does not listen. \
         Correct one of the two; if something forwards from there, as a port that a container maps, say so with \
         --initial-advertise-peer-urls {own_url}",
        args.member.listen_peer_urls.join(",")
    ))
}

/// The replicas that a replica without data asks about the cluster that it joins.
fn joining(args: &ServeArgs) -> Result<Joining, ConfigError> {
    let name = &args.member.name;
    let mut urls = named_urls(args)?;
    let named = urls.remove(name);
    let peer_url = match (&args.cluster.initial_advertise_peer_urls, named) {
        (Some(url), _) => url.clone(),
        (None, Some(url)) => url,
        (None, None) => own_peer_url(args)?,
    };
    check_peer_url(name, &peer_url, false)?;
    let others = urls.values().filter(|url| urls::plain(url) != urls::plain(&peer_url));
    let others: Vec<_> = others.map(|url| urls::peer_address(url).expect("checked with the list")).collect();
    if others.is_empty() {
        let why = "there is no data of an earlier start, so this replica joins a cluster; accepted: with members of \
                   it, as NAME=http://host:port, in --initial-cluster";
        return wrong("initial-cluster-state", "existing", why);
    }
    let (groups, skips) = (args.tuning.groups, args.tuning.skips);
    Ok(Joining { name: name.clone(), peer_url, others, groups, skips })
}

/// The peer URL of a replica that is a cluster of its own.
fn own_peer_url(args: &ServeArgs) -> Result<String, ConfigError> {
    let own = args.cluster.initial_advertise_peer_urls.as_ref().or(args.member.listen_peer_urls.first());
    own.cloned().map_or_else(|| wrong("listen-peer-urls", "''", "accepted: http://host:port"), Ok)
}

/// The addresses at which clients reach this replica.
fn client_urls(args: &ServeArgs, warnings: &mut Vec<String>) -> Result<Vec<String>, ConfigError> {
    let advertised = &args.member.advertise_client_urls;
    for url in advertised {
        // Port 0 is accepted where it is advertised, as with etcd.
        if let Err(why) = urls::authority(&with_port(url))
            && !urls::is_socket(url)
        {
            return wrong("advertise-client-urls", url, why);
        }
    }
    let urls = if advertised.is_empty() { &args.member.listen_client_urls } else { advertised };
    let is_nowhere = |url: &&String| url.ends_with(":0") || urls::authority(url).is_ok_and(urls::is_wildcard);
    warnings.extend(urls.iter().filter(is_nowhere).map(|url| {
        format!("clients that ask for the members are told {url}, to which they cannot connect; set --advertise-client-urls")
    }));
    Ok(urls.clone())
}

/// A URL with another port than 0.
fn with_port(url: &str) -> Cow<'_, str> {
    url.strip_suffix(":0").map_or(Cow::Borrowed(url), |host| Cow::Owned(format!("{host}:1")))
}

/// The parts of a list of `name=url`.
fn pairs(flag: &'static str, list: &[String]) -> Result<Vec<(String, String)>, ConfigError> {
    let pairs = list.iter().map(|pair| match pair.trim().split_once('=') {
        Some((name, url)) => check_name(flag, name).map(|()| (name.to_owned(), url.to_owned())),
        None => wrong(flag, format!("'{pair}'"), "accepted: NAME=http://host:port, and commas between them"),
    });
    pairs.collect()
}

fn listen(flag: &'static str, urls: &[String]) -> Result<Vec<Address>, ConfigError> {
    if urls.is_empty() {
        return Ok(Vec::new());
    }
    let urls = urls.join(",");
    synod_server::listen_addresses(&urls).or_else(|error| wrong(flag, urls, error))
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
    check_options(tuning)?;
    if tuning.priority > 0 && matches!(election(tuning), ElectionKind::Rotating | ElectionKind::Latency) {
        let why = format!(
            "does nothing with --election {}; accepted: 0, or any with --election ballot or randomized",
            election(tuning)
        );
        return wrong("priority", tuning.priority, why);
    }
    if client_io_threads(tuning) == 0 && threads(tuning) != Threads::Compact {
        let why = "needs --threads compact; accepted: 1 to 256";
        return wrong("client-io-threads", 0, why);
    }
    let Limits { request_bytes_max, .. } = limits(tuning);
    if !(REQUEST_BYTES_MIN..=REQUEST_BYTES_MAX).contains(&request_bytes_max) {
        let why = format!("accepted: {REQUEST_BYTES_MIN} to {REQUEST_BYTES_MAX} bytes");
        return wrong("max-request-bytes", request_bytes_max, why);
    }
    if request_bytes_max > tuning.queue_bytes_max / 2 {
        let why =
            format!("accepted: at most half of --queue-bytes-max, so {} bytes", tuning.queue_bytes_max / 2);
        return wrong("max-request-bytes", request_bytes_max, why);
    }
    if !(16 << 10..=4 << 30).contains(&tuning.wal_segment_bytes) {
        return wrong("wal-segment-bytes", tuning.wal_segment_bytes, "accepted: 16KiB to 4GiB");
    }
    Ok(())
}

/// The end of a refusal of flags that do not go together.
const ALL_COMBINATIONS: &str = "`synod serve --help` ends with all that goes together";

/// Whether a group can begin with the options that are given.
fn check_options(tuning: &Tuning) -> Result<(), ConfigError> {
    let Some(options) = &tuning.options else { return Ok(()) };
    if let Err(error) = options.check(protocol(tuning)) {
        return wrong("options", options, error);
    }
    let flags = [
        ("decision", "--decision", tuning.decision.is_some()),
        ("dissemination", "--dissemination", tuning.dissemination.is_some()),
    ];
    if let Some((_, flag, _)) = flags.iter().find(|(key, _, given)| *given && options.get(key).is_some()) {
        return wrong("options", options, format!("says the same as {flag}; accepted: one of the two"));
    }
    if options.get("window-max").is_some() {
        return wrong(
            "options",
            options,
            "the window is each replica's own at first; accepted: --window-max",
        );
    }
    Ok(())
}

fn check_combination(tuning: &Tuning, durability: Durability) -> Result<(), ConfigError> {
    let (protocol, election) = (protocol(tuning), election(tuning));
    let dissemination = settings(tuning).consensus.dissemination;
    match Combination::of(protocol, election, dissemination, durability).check() {
        Ok(()) => Ok(()),
        Err(CombinationError::Election { .. }) => {
            let accepted: Vec<String> = protocol.elections().iter().map(ToString::to_string).collect();
            let accepted = accepted.join(", ");
            let why = format!(
                "does not go with --protocol {protocol}; accepted: {accepted}, or another --protocol; {ALL_COMBINATIONS}"
            );
            wrong("election", election, why)
        }
        Err(error @ CombinationError::Dissemination { .. }) => {
            wrong("dissemination", dissemination, format!("{error}; {ALL_COMBINATIONS}"))
        }
        Err(error) => wrong("durability", durability, format!("{error}; {ALL_COMBINATIONS}")),
    }
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
        let advertising = |url| checked(&format!("--name b {THREE} --advertise-client-urls {url}")).unwrap();
        let nowhere = advertising("http://h2:0").warnings;
        assert!(nowhere.iter().any(|warning| warning.contains("told http://h2:0, to which")), "{nowhere:?}");
        let checked = advertising("http://h2:2");
        assert_eq!(checked.node.me, ReplicaId(2));
        let members: Vec<_> = checked
            .node
            .members
            .iter()
            .map(|member| (member.id.0, &*member.name, &*member.address))
            .collect();
        assert_eq!(members, [(1, "a", "h1:1"), (2, "b", "h2:1"), (3, "c", "h3:1")]);
        assert_eq!(checked.client_urls, ["http://h2:2"]);
        assert_eq!(checked.node.data_dir, PathBuf::from("b.synod"));
    }

    #[test]
    fn a_replica_that_does_not_listen_where_the_others_call_it_is_warned() {
        let warned = |own: &str, listen: &str, more: &str| {
            let line = format!(
                "--name a --initial-cluster a={own},b=http://h2:1 --listen-peer-urls {listen} --data-dir /nowhere {more}"
            );
            let warnings = checked(&line).expect(&line).warnings;
            warnings.iter().any(|warning| {
                let names_both = warning.contains(listen) && warning.contains(own);
                names_both && warning.contains("--initial-cluster has the others call this replica at")
            })
        };
        let own = "http://10.0.0.1:2380";
        for (own, listen) in [
            (own, "http://0.0.0.0:2380"),
            (own, "http://10.0.0.1:2380"),
            // The address of a machine may be mapped to the one that it has itself.
            (own, "http://172.17.0.2:2380"),
            ("http://node-1:2380", "http://127.0.0.1:2380"),
            ("http://127.0.0.1:2380", "http://127.0.0.1:2380,http://10.0.0.1:2380"),
            ("http://[::1]:2380", "http://[::]:2380"),
        ] {
            assert!(!warned(own, listen, ""), "{own} {listen}");
        }
        for (own, listen) in [
            (own, "http://0.0.0.0:2390"),
            (own, "http://127.0.0.1:2380"),
            ("http://node-1:2381", "http://0.0.0.0:2380"),
            ("http://127.0.0.1:2380", "http://10.0.0.1:2380"),
        ] {
            assert!(warned(own, listen, ""), "{own} {listen}");
            let joins = "--initial-cluster-state existing";
            assert!(warned(own, listen, joins), "{own} {listen} {joins}");
            let on_purpose = format!("--initial-advertise-peer-urls {own}");
            assert!(!warned(own, listen, &on_purpose), "{own} {listen} {on_purpose}");
        }
    }

    #[test]
    fn datagrams_are_for_replicas_that_speak_no_tls_with_each_other() {
        let of =
            |line: &str| checked(line).map(|checked| (checked.node.network.name(), checked.warnings.len()));
        let (tcp, warnings) = of("").unwrap();
        assert_eq!(tcp, "tcp");
        // One more warning: they are for a segment that is trusted.
        assert_eq!(of("--transport udp"), Ok(("udp", warnings + 1)));
        assert_eq!(of("--transport udp --mtu 9000"), Ok(("udp", warnings + 1)));
        assert_eq!(of("--transport udp --auto-tls").map(|(name, _)| name), Ok("udp"), "TLS with clients");
        for (line, expected) in [
            (
                "--name a --initial-cluster a=https://h1:1 --listen-peer-urls https://0.0.0.0:1 --peer-auto-tls \
                 --transport udp",
                "peer URLs with http://",
            ),
            ("--mtu 9000", "does nothing with --transport tcp"),
        ] {
            let refused = of(line).unwrap_err().to_string();
            assert!(refused.contains(expected), "{line}: {refused}");
        }
    }

    #[test]
    fn clients_are_served_by_the_protocols_own_thread_only_where_that_is_compact() {
        let of = |line| {
            let checked = checked(line)?;
            Ok::<_, ConfigError>((checked.node.threads, checked.server.client_io_threads))
        };
        assert_eq!(of("--threads compact").unwrap(), (Threads::Compact, 0));
        let apart = of("--threads compact --client-io-threads 2 --laboratory").unwrap();
        assert_eq!(apart, (Threads::Compact, 2));
        assert_eq!(of("--threads spread").unwrap(), (Threads::Spread, 1));
        let refused = of("--threads spread --client-io-threads 0 --laboratory").unwrap_err().to_string();
        assert!(refused.contains("client-io-threads") && refused.contains("--threads compact"), "{refused}");
    }

    #[test]
    fn alone_without_any_flag() {
        let checked = checked("").unwrap();
        assert_eq!(checked.node.members, [MemberAddress::new(ReplicaId(1), "default", "127.0.0.1:2380")]);
        assert_eq!(checked.client_urls, ["http://127.0.0.1:2379"]);
        assert!(checked.warnings.is_empty());
        let checked =
            super::tests::checked("--listen-client-urls http://0.0.0.0:2379 --durability memory").unwrap();
        assert_eq!(checked.warnings.len(), 2, "{:?}", checked.warnings);
        assert_eq!(too_few_for(Durability::Async, Threshold::Majority, 3), None);
        let warned = too_few_for(Durability::Async, Threshold::TwoThirds, 3).unwrap();
        assert!(warned.starts_with("3 replicas with") && warned.ends_with("; use 4, or sync"), "{warned}");
    }

    #[test]
    fn a_protocol_brings_its_own_election() {
        let of = |line: &str| checked(line).unwrap().node.settings.consensus.election;
        assert_eq!(of(""), ElectionKind::Ballot);
        assert_eq!(of("--election rotating"), ElectionKind::Rotating);
        assert_eq!(of("--protocol sequence-paxos"), ElectionKind::Ballot);
        assert_eq!(of("--protocol raft"), ElectionKind::Randomized);
        assert_eq!(of("--protocol sequence-paxos --election rotating"), ElectionKind::Rotating);
    }

    #[test]
    fn a_data_directory_that_cannot_be_read_is_named_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["identity", "group"] {
            std::fs::write(folder.path().join(file), "junk").unwrap();
        }
        let error = checked(&format!("--data-dir {}", folder.path().display())).unwrap_err().to_string();
        let begin = format!("--data-dir {0}: {0}/identity is malformed: ", folder.path().display());
        assert!(error.starts_with(&begin) && error.contains("synod member replace"), "{error}");
    }

    #[test]
    fn replicas_that_begin_differently_are_of_different_clusters() {
        let id = |line: &str| checked(line).unwrap().node.cluster;
        let three = id(&format!("--name a {THREE}"));
        let same = "--initial-cluster a=http://h1:1/,b=http://h2:1,c=http://h3:1";
        assert_eq!(id(&format!("--name b {same} --window-max 7 --groups shard:1")), three);
        for other in [
            "--initial-cluster-token other",
            "--election rotating",
            "--decision all",
            "--dissemination balanced",
            "--protocol ring --options ring-order=measured",
            "--max-request-bytes 1MiB",
            "--max-txn-ops 256",
            "--groups shard:2",
            "--initial-cluster a=http://h1:1,b=http://h2:1",
            "--initial-cluster a=http://h1:1,b=http://h2:1,c=http://h3:9",
            "--initial-cluster a=http://h1:1,b=http://h2:1,d=http://h3:1",
        ] {
            let members = if other.contains("--initial-cluster a") { "" } else { THREE };
            assert_ne!(id(&format!("--name a {members} {other}")), three, "{other}");
        }
    }

    #[test]
    fn members_that_dns_has_named_need_no_names() {
        let line = ["serve", "--name", "mine", "--data-dir", "/nowhere"];
        let mut args = Cli::try_parse_from(line).unwrap().args;
        args.cluster.initial_cluster = ["h1:1", "h2:1"].map(|at| format!("{at}=http://{at}")).into();
        let mut of = |own: &str, state| {
            args.cluster.found_as = Some(own.to_owned());
            args.cluster.initial_advertise_peer_urls = Some(format!("http://{own}"));
            args.cluster.initial_cluster_state = state;
            check(&args).unwrap()
        };
        let [one, two] = ["h1:1", "h2:1"].map(|own| of(own, ClusterState::New).node);
        assert_eq!((one.cluster, one.me, two.me), (two.cluster, ReplicaId(1), ReplicaId(2)));
        assert_eq!((&*two.name, one.members), ("mine", two.members));
        let joining = of("h2:1", ClusterState::Existing).joining.unwrap();
        assert_eq!(
            (&*joining.name, &*joining.peer_url, &joining.others[..]),
            ("mine", "http://h2:1", &["h1:1".to_owned()][..])
        );
    }

    #[test]
    fn a_joining_replica_asks_the_others() {
        let line = format!("--name b {THREE} --initial-cluster-state existing --data-dir /nowhere");
        let joining = checked(&line).unwrap().joining.unwrap();
        assert_eq!(joining.peer_url, "http://h2:1");
        assert_eq!(joining.others, ["h1:1", "h3:1"]);
        // A replica that replaces a member at its address has another name.
        let line = format!(
            "--name d {THREE} --initial-advertise-peer-urls http://h3:1 --initial-cluster-state existing"
        );
        let joining = checked(&line).unwrap().joining.unwrap();
        assert_eq!((&*joining.name, &*joining.peer_url), ("d", "http://h3:1"));
        assert_eq!(joining.others, ["h1:1", "h2:1"]);
    }

    #[test]
    fn a_refusal_names_the_flag_the_value_and_what_is_accepted() {
        let three = |rest: &str| format!("{THREE} {rest}");
        let cases = [
            (three("--name d"), ["--name d", "accepted: a, b, c"]),
            ("--name a=b".into(), ["--name 'a=b'", "accepted: a name"]),
            ("--name a --initial-cluster a".into(), ["--initial-cluster 'a'", "NAME=http://host:port"]),
            (
                "--name a --initial-cluster a=ftp://h:1".into(),
                ["--initial-cluster a=ftp://h:1", "https://host:port"],
            ),
            (
                "--name a --initial-cluster a=http://h:1,a=http://i:1".into(),
                ["--initial-cluster a:", "one URL for each name"],
            ),
            (
                "--name a --initial-cluster a=http://h:1,b=https://H:1/".into(),
                ["--initial-cluster b=https://H:1/", "the address of a too"],
            ),
            (
                "--name a --initial-cluster a=http://0.0.0.0:1,b=http://h:1".into(),
                ["--initial-cluster a=http://0.0.0.0:1", "nobody can connect"],
            ),
            (
                three("--name a --initial-advertise-peer-urls http://h9:1"),
                ["--initial-advertise-peer-urls http://h9:1", "a=http://h1:1"],
            ),
            ("--election rotating --priority 3".into(), ["--priority 3", "--election ballot"]),
            ("--protocol raft --election rotating".into(), ["--election rotating", "accepted: randomized"]),
            (
                "--election randomized".into(),
                ["--protocol multipaxos", "accepted: ballot, rotating, latency"],
            ),
            (
                "--options ring-decision=last".into(),
                ["--options ring-decision=last", "does not go with multipaxos"],
            ),
            ("--options window-max=4".into(), ["--options window-max=4", "accepted: --window-max"]),
            (
                "--options decision=all --decision leader".into(),
                ["--options decision=all", "the same as --decision"],
            ),
            (
                "--election-timeout 200 --heartbeat-interval 100".into(),
                ["--election-timeout 200ms", "accepted: 300ms or more"],
            ),
            ("--queue-bytes-max 1MiB".into(), ["--max-request-bytes 1572864", "524288 bytes"]),
            ("--max-request-bytes 1KiB".into(), ["--max-request-bytes 1024", "accepted: 4096 to 33554374"]),
            ("--max-request-bytes 64MiB".into(), ["--max-request-bytes 67108864", "accepted: 4096 to"]),
            ("--wal-segment-bytes 1KiB".into(), ["--wal-segment-bytes 1024", "accepted: 16KiB to 4GiB"]),
            ("--listen-client-urls ftp://a:1".into(), ["--listen-client-urls ftp://a:1", "http://host:port"]),
            (
                three("--name a --listen-peer-urls unix://a:1"),
                ["--listen-peer-urls a:1", "accepted: http://host:port"],
            ),
            (
                "--advertise-client-urls ftp://a:1".into(),
                ["--advertise-client-urls ftp://a:1", "http://host:port"],
            ),
            (
                "--data-dir /nowhere --initial-cluster-state existing".into(),
                ["--initial-cluster-state existing", "members of it"],
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
