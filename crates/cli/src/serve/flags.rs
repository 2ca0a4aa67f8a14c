//! The flags of `synod serve`. Where etcd has the same thing, they have etcd's names.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use synod_consensus::{Decision, Dissemination, ElectionKind, Overrides, ProtocolKind};
use synod_node::Threads;
use synod_replica::{Skips, StateTransfer};
use synod_storage::Durability;

use synod_wire::Groups;

use super::{
    config,
    etcd::{flags::EtcdArgs, log_files::Rotation, outputs::Output},
    units,
};

/// The flags of one replica.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// A file with settings, in TOML or as etcd's in YAML; its keys are the flags' names without the dashes.
    ///
    /// A flag takes precedence over the variables SYNOD_*, these over etcd's ETCD_*, these over the file, and the file
    /// over the default. A list of URLs may be an array, and initial-cluster a table of names and URLs.
    #[arg(long, env = "SYNOD_CONFIG_FILE", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    #[command(flatten)]
    pub member: MemberArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub auth: AuthArgs,
    #[command(flatten)]
    pub etcd: EtcdArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// Stop, as on SIGTERM, when standard input ends; for a parent process that may be killed.
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

/// This replica.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "This replica")]
pub struct MemberArgs {
    /// The replica's name; at the first start one of those in --initial-cluster.
    #[arg(long, env = "SYNOD_NAME", default_value = "default")]
    pub name: String,
    /// The folder for the log and snapshots [default: NAME.synod].
    #[arg(long, env = "SYNOD_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// A folder for the log alone, such as one on a fast disk; the first start makes a link to it in --data-dir, and
    /// later ones need the flag no more. [default: wal in --data-dir]
    #[arg(long, env = "SYNOD_WAL_DIR", value_name = "DIR")]
    pub wal_dir: Option<PathBuf>,
    /// Addresses to listen at for clients (etcd v3 API and Synod's own over gRPC; /health and /metrics over HTTP):
    /// http:// or https://host:port, or a unix socket, unix:// or unixs://path.
    #[arg(
        long,
        env = "SYNOD_LISTEN_CLIENT_URLS",
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub listen_client_urls: Vec<String>,
    /// Addresses that clients are told for this replica [default: --listen-client-urls].
    #[arg(long, env = "SYNOD_ADVERTISE_CLIENT_URLS", value_name = "URL,...", value_delimiter = ',')]
    pub advertise_client_urls: Vec<String>,
    /// Addresses to listen at for other replicas, http:// or https://host:port.
    #[arg(
        long,
        env = "SYNOD_LISTEN_PEER_URLS",
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2380"
    )]
    pub listen_peer_urls: Vec<String>,
    /// Further addresses for /health and /metrics.
    #[arg(long, env = "SYNOD_LISTEN_METRICS_URLS", value_name = "URL,...", value_delimiter = ',')]
    pub listen_metrics_urls: Vec<String>,
}

/// The replica's cluster.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = CLUSTER)]
pub struct ClusterArgs {
    /// The replicas with which the cluster begins, each with the address at which the others reach it
    /// [default: only this one].
    ///
    /// Sorted by name they get the ids 1, 2, 3, ... The flag counts at the first start, and must then be the
    /// same on all of these replicas; later the cluster itself knows its members. With
    /// --initial-cluster-state existing: members of the cluster to join, and this replica.
    #[arg(long, env = "SYNOD_INITIAL_CLUSTER", value_name = "NAME=URL,...", value_delimiter = ',')]
    pub initial_cluster: Vec<String>,
    /// Distinguishes clusters whose replicas have the same names.
    #[arg(long, env = "SYNOD_INITIAL_CLUSTER_TOKEN", value_name = "TEXT", default_value = "synod-cluster")]
    pub initial_cluster_token: String,
    /// Whether the first start of this replica begins a cluster or joins one.
    ///
    /// With `existing` it asks the others of --initial-cluster for the members of the cluster; `synod member
    /// add` must have made it a member before. A replica that has data continues with it, whatever this flag
    /// says. A replica that has lost its data is refused by the others under its old id, since it does not
    /// remember what it promised; `synod member replace` gives it a new one.
    #[arg(
        long,
        env = "SYNOD_INITIAL_CLUSTER_STATE",
        value_name = "STATE",
        value_enum,
        default_value = "new"
    )]
    pub initial_cluster_state: ClusterState,
    /// Begin a cluster although not all of --initial-cluster run yet.
    ///
    /// A replica of a new cluster votes only after it has met every member of --initial-cluster once.
    /// Otherwise a member that lost its data and a member that was never started could form a majority that
    /// knows nothing of what the others decided. `synod status` names the members that it waits for. Give
    /// this flag to the running replicas only if you are sure that no member of this cluster has run before
    /// and lost its data. The replica remembers it.
    #[arg(
        long, env = "SYNOD_BEGIN_WITHOUT_ALL", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = CLUSTER
    )]
    pub begin_without_all: bool,
    /// The address at which the others reach this replica at first; must be the one in --initial-cluster,
    /// which is the default.
    #[arg(long, env = "SYNOD_INITIAL_ADVERTISE_PEER_URLS", value_name = "URL")]
    pub initial_advertise_peer_urls: Option<String>,
    /// The name in --initial-cluster that stands for this replica, if it is not its own: DNS knows no names.
    #[arg(skip)]
    pub found_as: Option<String>,
}

/// Whether a cluster begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClusterState {
    /// The cluster begins.
    New,
    /// It runs already.
    Existing,
}

/// How messages travel between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// All over TCP.
    Tcp,
    /// As datagrams, where they fit.
    Udp,
}

/// Settings that stay.
pub const CLUSTER: &str = "The cluster, at the first start (the same on all replicas)";
/// Settings that must be the same at all replicas.
const GROUPS: &str =
    "The group's: at the first start the same on all replicas; later `synod reconfigure` changes it";
/// Settings that may differ.
const CONSENSUS: &str = "Consensus";

/// Settings that trade speed, memory and safety against each other.
#[derive(Clone, Debug, Args)]
pub struct Tuning {
    /// The groups of the cluster, each with a leader and a log of slots of its own, which share a replica's disk and
    /// connections: merge:N for N groups in one order, shard:N for N stores of their own [default: shard:1, or those of
    /// the data directory].
    ///
    /// merge:N (2 to 64): each replica has commands ordered by a group that it leads, and all replicas execute what the
    /// groups order in one common order, so that there is one store, with the revisions, transactions and reads of a
    /// single group. A command waits until the other groups have gone on too.
    ///
    /// shard:N (1 to 1024): each group has the keys that a hash gives it, and revisions of its own. With several,
    /// etcd's API answers with an error, since there is no single revision; `synod put`, `get`, `del` and `txn` use
    /// Synod's own, for keys of one group at a time.
    ///
    /// The groups of a cluster stay as they are. A replica that joins takes those of its cluster.
    #[arg(long, env = "SYNOD_GROUPS", value_name = "shard:N|merge:N", help_heading = CLUSTER)]
    pub groups: Option<Groups>,
    /// With --groups merge:N, when a group that orders less than others goes on in the common order: follow (as far as
    /// others wait, and as far ahead as the busiest group will come within 100 ms) or demand (as far as others wait).
    #[arg(long, env = "SYNOD_SKIPS", value_name = "POLICY", default_value_t, help_heading = CONSENSUS)]
    pub skips: Skips,
    /// The protocol: multipaxos, sequence-paxos, raft or ring, and with --laboratory rounds [default: multipaxos].
    #[arg(long, env = "SYNOD_PROTOCOL", help_heading = GROUPS)]
    pub protocol: Option<ProtocolKind>,
    /// The election: ballot (replicas ask each other which leader they hear, and elect one that reaches a quorum,
    /// also where only some links work), rotating (the next replica in line follows one that falls silent, if a
    /// quorum consents), latency (as rotating, or with raft as randomized, and the leader moves to the replica that
    /// exchanges messages with a majority soonest: for links of different lengths) or randomized (raft's own)
    /// [default: randomized with raft, ballot otherwise].
    #[arg(long, env = "SYNOD_ELECTION", help_heading = GROUPS)]
    pub election: Option<ElectionKind>,
    /// Which replicas count votes for a slot: leader (it tells the others; fewest messages) or all (each
    /// replica counts by itself; one message delay less at followers); for multipaxos [default: leader].
    #[arg(long, env = "SYNOD_DECISION", help_heading = GROUPS)]
    pub decision: Option<Decision>,
    /// How batches of commands reach all replicas: leader (its proposals carry them), references (the same, but the
    /// replica that a batch came from gets a reference to it) or balanced (S-Paxos: each replica sends those of its own
    /// clients to all, and the leader orders their names) [default: leader].
    #[arg(long, env = "SYNOD_DISSEMINATION", help_heading = GROUPS)]
    pub dissemination: Option<Dissemination>,
    /// Options of the protocol, as KEY=VALUE,KEY=VALUE. With raft: replication=direct, gossip-replies or gossip-status
    /// (rounds of gossip, Driftwood), with round-interval, vote-gossip, peer-repair and lazy-push; with ring:
    /// ring-order=role or measured, ring-learners=catch-up, learn or propose, ring-voters=propose or accept. Options
    /// that exist to be measured take --laboratory. The end of this help has all of them; docs/driftwood.md and
    /// docs/ring.md say what each does.
    #[arg(long, env = "SYNOD_OPTIONS", value_name = "KEY=VALUE,...", help_heading = GROUPS)]
    pub options: Option<Overrides>,
    /// The largest request [default: 1.5MiB].
    #[arg(
        long, env = "SYNOD_MAX_REQUEST_BYTES", value_name = "SIZE",
        value_parser = units::memory_bytes, help_heading = GROUPS
    )]
    pub max_request_bytes: Option<usize>,
    /// Most operations in a list of a transaction [default: 128].
    #[arg(
        long, env = "SYNOD_MAX_TXN_OPS", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = GROUPS
    )]
    pub max_txn_ops: Option<u32>,

    /// Decides which replica leads if several could begin to at the same time: the one with the highest
    /// priority, from 0 to 255; for --election ballot or randomized. Of several groups each replica without a priority
    /// has its share to lead.
    #[arg(
        long, env = "SYNOD_PRIORITY", value_name = "0..255", default_value_t = 0, help_heading = CONSENSUS
    )]
    pub priority: u8,
    /// How often a leader sends a heartbeat.
    #[arg(
        long, env = "SYNOD_HEARTBEAT_INTERVAL", value_name = "TIME", default_value = "100ms",
        value_parser = units::duration_above_zero, help_heading = CONSENSUS
    )]
    pub heartbeat_interval: Duration,
    /// How long a leader may be silent, cut off or waiting for its disk; at least 3 heartbeats of any replica.
    #[arg(
        long, env = "SYNOD_ELECTION_TIMEOUT", value_name = "TIME", default_value = "1000ms",
        value_parser = units::duration_above_zero, help_heading = CONSENSUS
    )]
    pub election_timeout: Duration,
    /// For --election latency: how far the delay of a link may be from its usual one. The leader hands over to a
    /// replica whose round trip to a majority is shorter by more than four times as much.
    #[arg(
        long, env = "SYNOD_ELECTION_TOLERANCE", value_name = "TIME", default_value = "5ms",
        value_parser = units::duration, help_heading = CONSENSUS
    )]
    pub election_tolerance: Duration,
    /// For --election latency: weigh from which replicas commands come. The leader is chosen for the mean of what
    /// commands wait, the way to it and back included, and moves for a gain of more than eight times the tolerance.
    #[arg(
        long, env = "SYNOD_ELECTION_ORIGINS", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = CONSENSUS
    )]
    pub election_origins: bool,
    /// How many undecided slots a leader may have at a time; 1 decides one after another. In a laboratory, with auto, a
    /// leader bounds the bytes that it has under way, and its batches, by the rate and the round trip that it measures.
    #[arg(
        long, env = "SYNOD_WINDOW_MAX", value_name = "SLOTS|auto", help_heading = CONSENSUS,
        default_value_t = Window::Slots(
            u16::try_from(config::defaults().settings.consensus.window_max).unwrap_or(u16::MAX)
        ),
    )]
    pub window_max: Window,

    /// A batch is closed when the next command would make it larger; 1 makes every command a batch.
    #[arg(
        long, env = "SYNOD_BATCH_BYTES_MAX", value_name = "SIZE", default_value = "64KiB",
        value_parser = units::memory_bytes, help_heading = "Batching and queues"
    )]
    pub batch_bytes_max: usize,
    /// The most bytes of commands that may wait for a decision; clients that send more must wait.
    #[arg(
        long, env = "SYNOD_QUEUE_BYTES_MAX", value_name = "SIZE", default_value = "64MiB",
        value_parser = units::memory_bytes, help_heading = "Batching and queues"
    )]
    pub queue_bytes_max: usize,

    /// A request without a decision for this long fails; a request that waits for a leader fails after three
    /// fifths of it.
    #[arg(
        long, env = "SYNOD_REQUEST_TIMEOUT", value_name = "TIME", default_value = "5s",
        value_parser = units::duration_above_zero, help_heading = "Clients"
    )]
    pub request_timeout: Duration,
    /// Most outstanding requests on one connection.
    #[arg(
        long, env = "SYNOD_MAX_CONCURRENT_STREAMS", value_name = "COUNT", default_value = "4096",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = "Clients"
    )]
    pub max_concurrent_streams: u32,
    /// Most connections of clients; fewer if the limit of open files (ulimit -n) leaves fewer beside 368 for
    /// the replica. When all are taken, a connection that never sent a request gives way to a new one, or one
    /// that has been idle for half a minute.
    #[arg(
        long, env = "SYNOD_CONNECTIONS_MAX", value_name = "COUNT", default_value = "10000",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = "Clients"
    )]
    pub connections_max: u32,
    /// Memory for requests of clients that are received, waiting or being answered. A connection gets at most
    /// a quarter of what is free; a request beyond that is refused (too many requests).
    #[arg(
        long, env = "SYNOD_REQUESTS_BYTES_MAX", value_name = "SIZE", default_value = "384MiB",
        value_parser = units::memory_bytes, help_heading = "Clients"
    )]
    pub requests_bytes_max: usize,
    /// Writes are refused, and an alarm is raised, once the keys take more than this; 0 for 2 GiB, -1 for no bound.
    #[arg(
        long, env = "SYNOD_QUOTA_BACKEND_BYTES", value_name = "SIZE", default_value = "2GiB",
        value_parser = units::quota, allow_hyphen_values = true, help_heading = "Clients"
    )]
    pub quota_backend_bytes: u64,
    /// After how long a watch without events is told how far it is, if its client wants to know; at least 100ms.
    #[arg(
        long, env = "SYNOD_WATCH_PROGRESS_NOTIFY_INTERVAL", value_name = "TIME", default_value = "10m",
        value_parser = units::duration_above_zero, help_heading = "Clients"
    )]
    pub watch_progress_notify_interval: Duration,
    /// Which records the replica waits for its disk to have: sync (all records: acknowledged writes survive a
    /// power failure of all machines), view (promises, not votes: writes survive the end of all processes,
    /// and a power failure of a minority), async (none, the kernel writes later: writes survive the same),
    /// memory (nothing is written: writes survive the loss of a minority at a time), crash-stop (nothing is
    /// written, and a replica that stopped must be replaced).
    #[arg(long, env = "SYNOD_DURABILITY", default_value = "sync", help_heading = "Log and snapshots")]
    pub durability: Durability,
    /// Start the only replica of a cluster although its log is gone: it goes on from its last snapshot,
    /// without later writes. For one start.
    #[arg(
        long, env = "SYNOD_ACCEPT_LOST_LOG", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true",
        action = clap::ArgAction::Set, value_parser = units::truth, help_heading = "Log and snapshots"
    )]
    pub accept_lost_log: bool,
    /// Size of a segment of the log, 16KiB to 4GiB.
    #[arg(
        long, env = "SYNOD_WAL_SEGMENT_BYTES", value_name = "SIZE", default_value = "64MiB",
        value_parser = units::bytes, help_heading = "Log and snapshots"
    )]
    pub wal_segment_bytes: u64,
    /// Take a snapshot, and trim the log, after this many slots; after a snapshot above 16 MiB not before the log has
    /// grown by half as much.
    #[arg(
        long, env = "SYNOD_SNAPSHOT_COUNT", value_name = "SLOTS", default_value = "10000",
        value_parser = clap::value_parser!(u64).range(1..), help_heading = "Log and snapshots"
    )]
    pub snapshot_count: u64,
    /// Take a snapshot, and trim the log, after this much log; after a snapshot of more than twice that not before the
    /// log has grown by half as much as the snapshot has.
    #[arg(
        long, env = "SYNOD_SNAPSHOT_LOG_BYTES", value_name = "SIZE", default_value = "128MiB",
        value_parser = units::bytes, help_heading = "Log and snapshots"
    )]
    pub snapshot_log_bytes: u64,
    /// Slots before the last snapshot that stay in memory for lagging replicas; replicas that lag further are
    /// sent the snapshot.
    #[arg(
        long,
        env = "SYNOD_KEEP_SLOTS",
        value_name = "SLOTS",
        default_value = "5000",
        alias = "snapshot-catchup-entries",
        help_heading = "Log and snapshots"
    )]
    pub keep_slots: u64,
    /// The most memory that these slots may take.
    #[arg(
        long, env = "SYNOD_KEEP_BYTES", value_name = "SIZE", default_value = "32MiB",
        value_parser = units::bytes, help_heading = "Log and snapshots"
    )]
    pub keep_bytes: u64,

    /// How messages travel between replicas: tcp, or udp. With udp a message that fits a packet leaves as a datagram,
    /// to the address of the peer's URL; larger ones, handshakes and everything for a peer that takes no datagrams, or
    /// that none reach, go over TCP. Datagrams are neither encrypted nor authenticated: for a segment that you trust,
    /// and not with TLS between replicas.
    #[arg(
        long, env = "SYNOD_TRANSPORT", value_name = "HOW", value_enum, default_value_t = TransportKind::Tcp,
        help_heading = "Transport"
    )]
    pub transport: TransportKind,
    /// The MTU of the links between replicas: a datagram has at most this many bytes, with the headers of IP and UDP
    /// [default: 1500, with --transport udp].
    #[arg(
        long, env = "SYNOD_MTU", value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..),
        help_heading = "Transport"
    )]
    pub mtu: Option<u16>,
    /// How the replica's work is placed on threads: spread (each stage, and each direction of each connection to a
    /// peer, has its own) or compact (one thread serves clients, reads from peers, runs the protocol, writes to peers
    /// and executes commands; only the log has another). Compact takes fewer switches of threads and less of the
    /// processors for a command, uses few processors, and lets a slow command delay the protocol. Clients have a thread
    /// of their own with spread. Default: compact where there are at most 2 processors, and otherwise spread.
    #[arg(long, env = "SYNOD_THREADS", value_name = "HOW", help_heading = "Threads")]
    pub threads: Option<Threads>,
    /// Take settings of the laboratory too: options that exist to be measured, which are slower or less available than
    /// those that serve, and times and sizes that a server otherwise derives. Not for data that you need.
    #[arg(
        long, env = "SYNOD_LABORATORY", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = "Laboratory"
    )]
    pub laboratory: bool,
    #[command(flatten)]
    pub derived: Derived,
}

/// What a server derives, and takes only with `--laboratory` ([`super::laboratory`]). Help does not show it.
#[derive(Clone, Debug, Default, Args)]
pub struct Derived {
    /// After how long an unanswered proposal is sent again, at first.
    #[arg(
        long, env = "SYNOD_RETRANSMIT_AFTER", value_name = "TIME", hide = true,
        value_parser = units::duration_above_zero
    )]
    pub retransmit_after: Option<Duration>,
    /// How long a decision that no other replica waits for may wait for the next proposal to take it along.
    #[arg(
        long, env = "SYNOD_ANNOUNCE_DELAY_MAX", value_name = "TIME", hide = true, value_parser = units::duration
    )]
    pub announce_delay_max: Option<Duration>,
    /// How long the first command of a batch waits for others when the window is full.
    #[arg(
        long, env = "SYNOD_BATCH_DELAY_MAX", value_name = "TIME", hide = true, value_parser = units::duration
    )]
    pub batch_delay_max: Option<Duration>,
    /// The most batches that a follower may have in flight to the leader, at most --window-max.
    #[arg(
        long, env = "SYNOD_FORWARD_WINDOW_MAX", value_name = "BATCHES", hide = true,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub forward_window_max: Option<u16>,
    /// How a joining replica gets what was decided before: pull (it asks several replicas at a time) or eager (the
    /// voters send it unsolicited).
    #[arg(long, env = "SYNOD_STATE_TRANSFER", value_name = "HOW", hide = true)]
    pub state_transfer: Option<StateTransfer>,
    /// Threads that serve connections of clients; 0: the protocol's own thread does, which has to be compact.
    #[arg(
        long, env = "SYNOD_CLIENT_IO_THREADS", value_name = "COUNT", hide = true,
        value_parser = clap::value_parser!(u16).range(0..=256)
    )]
    pub client_io_threads: Option<u16>,
}

/// TLS for clients and for other replicas. Files are read again when they change.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// The certificate for clients at https:// and unixs:// addresses, in PEM, with those that lead to its authority.
    #[arg(long, env = "SYNOD_CERT_FILE", value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    #[arg(long, env = "SYNOD_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The authorities of clients' certificates, in PEM. With it every client has to show a certificate.
    #[arg(long, env = "SYNOD_TRUSTED_CA_FILE", value_name = "FILE")]
    pub trusted_ca_file: Option<PathBuf>,
    /// Have clients show certificates, which takes --trusted-ca-file.
    #[arg(
        long, env = "SYNOD_CLIENT_CERT_AUTH", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth
    )]
    pub client_cert_auth: bool,
    /// Clients' certificates that are revoked, in DER or PEM.
    #[arg(long, env = "SYNOD_CLIENT_CRL_FILE", value_name = "FILE")]
    pub client_crl_file: Option<PathBuf>,
    /// Host names or addresses, for one of which a client's certificate has to be.
    #[arg(long, env = "SYNOD_CLIENT_CERT_ALLOWED_HOSTNAME", value_name = "NAME,...", value_delimiter = ',')]
    pub client_cert_allowed_hostname: Vec<String>,
    /// Make a certificate for clients, if --cert-file is not given: connections are encrypted, and clients cannot know
    /// with whom. It is kept in the data directory.
    #[arg(
        long, env = "SYNOD_AUTO_TLS", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth
    )]
    pub auto_tls: bool,
    /// The certificate for other replicas, in PEM. This replica shows it when it calls, and when it is called.
    #[arg(long, env = "SYNOD_PEER_CERT_FILE", value_name = "FILE")]
    pub peer_cert_file: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    #[arg(long, env = "SYNOD_PEER_KEY_FILE", value_name = "FILE")]
    pub peer_key_file: Option<PathBuf>,
    /// Another certificate to show when this replica calls [default: --peer-cert-file].
    #[arg(long, env = "SYNOD_PEER_CLIENT_CERT_FILE", value_name = "FILE")]
    pub peer_client_cert_file: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, env = "SYNOD_PEER_CLIENT_KEY_FILE", value_name = "FILE")]
    pub peer_client_key_file: Option<PathBuf>,
    /// The authorities of other replicas' certificates, in PEM. With it only replicas with such a certificate are
    /// admitted.
    #[arg(long, env = "SYNOD_PEER_TRUSTED_CA_FILE", value_name = "FILE")]
    pub peer_trusted_ca_file: Option<PathBuf>,
    /// Have other replicas show certificates, which takes --peer-trusted-ca-file.
    #[arg(
        long, env = "SYNOD_PEER_CLIENT_CERT_AUTH", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth
    )]
    pub peer_client_cert_auth: bool,
    /// Certificates of other replicas that are revoked, in DER or PEM.
    #[arg(long, env = "SYNOD_PEER_CRL_FILE", value_name = "FILE")]
    pub peer_crl_file: Option<PathBuf>,
    /// Common names, one of which another replica's certificate has to have.
    #[arg(long, env = "SYNOD_PEER_CERT_ALLOWED_CN", value_name = "NAME,...", value_delimiter = ',')]
    pub peer_cert_allowed_cn: Vec<String>,
    /// Host names or addresses, for one of which another replica's certificate has to be.
    #[arg(long, env = "SYNOD_PEER_CERT_ALLOWED_HOSTNAME", value_name = "NAME,...", value_delimiter = ',')]
    pub peer_cert_allowed_hostname: Vec<String>,
    /// Admit a replica although the certificate that it shows is not valid for the host of its peer URL.
    #[arg(
        long, env = "SYNOD_PEER_SKIP_CLIENT_SAN_VERIFICATION", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth
    )]
    pub peer_skip_client_san_verification: bool,
    /// Make a certificate for other replicas, if --peer-cert-file is not given: connections are encrypted, and anybody
    /// is admitted. It is kept in the data directory.
    #[arg(
        long, env = "SYNOD_PEER_AUTO_TLS", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth
    )]
    pub peer_auto_tls: bool,
    /// For how many years a certificate that the replica makes is valid.
    #[arg(
        long, env = "SYNOD_SELF_SIGNED_CERT_VALIDITY", value_name = "YEARS", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub self_signed_cert_validity: u32,
    /// The cipher suites that may be used, by the names of the standards; without any of TLS 1.3, all of that version
    /// may be used [default: all that are safe].
    #[arg(long, env = "SYNOD_CIPHER_SUITES", value_name = "NAME,...", value_delimiter = ',')]
    pub cipher_suites: Vec<String>,
    /// The least version of TLS: TLS1.2 or TLS1.3.
    #[arg(long, env = "SYNOD_TLS_MIN_VERSION", value_name = "VERSION", default_value = "TLS1.2")]
    pub tls_min_version: String,
    /// The greatest version of TLS: TLS1.2 or TLS1.3 [default: the greatest that there is].
    #[arg(
        long,
        env = "SYNOD_TLS_MAX_VERSION",
        value_name = "VERSION",
        default_value = "",
        hide_default_value = true
    )]
    pub tls_max_version: String,
}

/// How users show who they are, where they count (`synod auth enable`).
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Users")]
pub struct AuthArgs {
    /// The tokens that users get for their passwords: simple, or
    /// jwt,sign-method=METHOD,priv-key=FILE,pub-key=FILE,ttl=TIME for signed ones, which all members know that have the
    /// key, also after a restart. The methods are HS256, RS256, PS256, ES256, EdDSA, and those of 384 and 512 bits.
    #[arg(long, env = "SYNOD_AUTH_TOKEN", value_name = "KIND", default_value = "simple")]
    pub auth_token: String,
    /// How many seconds a simple token is valid after it was last used.
    #[arg(
        long, env = "SYNOD_AUTH_TOKEN_TTL", value_name = "SECONDS", default_value = "300",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub auth_token_ttl: u32,
    /// What a hash of a password costs; each step doubles the time.
    #[arg(
        long, env = "SYNOD_BCRYPT_COST", value_name = "4..31", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(4..=31)
    )]
    pub bcrypt_cost: u32,
}

/// The replica's log messages.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Messages")]
pub struct LogArgs {
    /// The level: error, warn, info, debug or trace; or one for each part, as in info,synod_transport=debug. Frames of
    /// HTTP/2 take a word of their own: debug,h2=debug.
    #[arg(long, env = "SYNOD_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
    /// Where messages go: stderr, stdout, or files, to whose ends they are added.
    #[arg(
        long,
        env = "SYNOD_LOG_OUTPUTS",
        value_name = "PLACE,...",
        value_delimiter = ',',
        default_value = "stderr"
    )]
    pub log_outputs: Vec<Output>,
    /// Begin a new file, and keep the full one beside it, when a file of --log-outputs is full.
    #[arg(
        long, env = "SYNOD_ENABLE_LOG_ROTATION", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth
    )]
    pub enable_log_rotation: bool,
    /// The bounds of log files that are rotated: maxsize of a file (MiB), maxage (days) and maxbackups of full ones, 0
    /// for no bound; with compress they are compressed [default: {"maxsize": 100}].
    #[arg(long, env = "SYNOD_LOG_ROTATION_CONFIG_JSON", value_name = "JSON")]
    pub log_rotation_config_json: Option<Rotation>,
    /// The format: text (a line a message; etcd's console) or json (an object a line, with etcd's keys).
    #[arg(long, env = "SYNOD_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// The format of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line a message.
    #[value(alias = "console")]
    Text,
    /// A JSON object a line.
    Json,
}

/// How much a leader may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// This many slots.
    Slots(u16),
    /// As many bytes as the leader finds worth it.
    Auto,
}

impl Window {
    /// Slots that are under way at most with `auto`. Bytes bound it before.
    const SLOTS_OF_AUTO: usize = 512;

    /// The most slots.
    pub fn slots(self) -> usize {
        match self {
            Window::Slots(slots) => slots.into(),
            Window::Auto => Window::SLOTS_OF_AUTO,
        }
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Window::Slots(slots) => slots.fmt(f),
            Window::Auto => f.write_str("auto"),
        }
    }
}

impl std::str::FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Window, String> {
        let slots = || text.parse().ok().filter(|slots| *slots > 0).map(Window::Slots);
        let window = if text == "auto" { Some(Window::Auto) } else { slots() };
        window.ok_or_else(|| format!("'{text}' is no window; accepted: 1 to {} slots, or auto", u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    /// Every flag has an environment variable, whose name follows from the flag.
    #[test]
    fn every_flag_has_its_variable() {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let mut seen = 0;
        for arg in flags {
            let expected = format!("SYNOD_{}", arg.get_id().as_str().to_uppercase());
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(expected.as_str()));
            seen += 1;
        }
        assert!(seen > 30, "{seen} flags");
    }

    /// The command line and the library start from the same settings.
    #[test]
    fn defaults_are_those_of_the_library() {
        let tuning = Cli::parse_from(["serve"]).args.tuning;
        let settings = synod_replica::Settings::default();
        let defaults = config::settings(&tuning);
        assert_eq!(format!("{defaults:?}"), format!("{settings:?}"));
        assert_eq!(tuning.wal_segment_bytes, config::defaults().segment_bytes);
        assert_eq!(tuning.durability, config::defaults().durability);
        let limits = synod_server::Limits::default();
        let begins = (settings.limits.request_bytes_max, settings.limits.txn_ops_max);
        assert_eq!((limits.request_bytes_max, limits.txn_ops_max), begins);
        let server = synod_server::Config::default();
        assert_eq!(tuning.quota_backend_bytes, server.quota_bytes);
        assert_eq!(tuning.watch_progress_notify_interval, server.watch_progress_interval);
        assert_eq!(tuning.connections_max as usize, server.connections_max);
        assert_eq!(tuning.max_concurrent_streams, server.streams_per_connection_max);
    }
}
