//! The flags that every user of etcd knows, beside those that stand with what they set.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::features::Features;
use crate::serve::{flags::CLUSTER, units};

const CLIENTS: &str = "Clients";
const UPKEEP: &str = "Upkeep";

/// Flags of etcd.
#[derive(Clone, Debug, Args)]
pub struct EtcdArgs {
    /// A domain whose records SRV name the members with which the cluster begins (_etcd-server._tcp), in place of
    /// --initial-cluster; one of them has this replica's --initial-advertise-peer-urls.
    #[arg(long, env = "SYNOD_DISCOVERY_SRV", value_name = "DOMAIN", help_heading = CLUSTER)]
    pub discovery_srv: Option<String>,
    /// The name of the service in these records: _etcd-server-NAME._tcp.
    #[arg(long, env = "SYNOD_DISCOVERY_SRV_NAME", value_name = "NAME", help_heading = CLUSTER)]
    pub discovery_srv_name: Option<String>,
    /// Addresses for the pages, health and metrics among them, for clients; then --listen-client-urls serves gRPC
    /// alone.
    #[arg(
        long, env = "SYNOD_LISTEN_CLIENT_HTTP_URLS", value_name = "URL,...", value_delimiter = ',', help_heading = CLIENTS
    )]
    pub listen_client_http_urls: Vec<String>,
    /// The names of hosts by which clients may ask for pages, so that no web page of another origin can; `*`: any.
    #[arg(
        long, env = "SYNOD_HOST_WHITELIST", value_name = "HOST,...", value_delimiter = ',', default_value = "*",
        help_heading = CLIENTS
    )]
    pub host_whitelist: Vec<String>,
    /// The origins, as in https://example.com, of web pages that may call this replica (CORS); `*`: any.
    #[arg(
        long, env = "SYNOD_CORS", value_name = "ORIGIN,...", value_delimiter = ',', default_value = "*",
        help_heading = CLIENTS
    )]
    pub cors: Vec<String>,
    /// After how long without a request a client is asked whether it is still there; 0: never.
    #[arg(
        long, env = "SYNOD_GRPC_KEEPALIVE_INTERVAL", value_name = "TIME", default_value = "30s",
        value_parser = units::duration, help_heading = CLIENTS
    )]
    pub grpc_keepalive_interval: Duration,
    /// How long it has to answer until its connection is closed; 0: it is not asked.
    #[arg(
        long, env = "SYNOD_GRPC_KEEPALIVE_TIMEOUT", value_name = "TIME", default_value = "20s",
        value_parser = units::duration, help_heading = CLIENTS
    )]
    pub grpc_keepalive_timeout: Duration,
    /// How often a client may ask whether this replica is there, while it has requests; every 2 h while it has none.
    /// One that asks more often is cut off, as by grpc (too_many_pings); 0: it may ask at any time.
    #[arg(
        long, env = "SYNOD_GRPC_KEEPALIVE_MIN_TIME", value_name = "TIME", default_value = "5s",
        value_parser = units::duration, help_heading = CLIENTS
    )]
    pub grpc_keepalive_min_time: Duration,
    /// A request that takes longer is told in the log, at most ten a second; 0: none is.
    #[arg(
        long, env = "SYNOD_WARNING_UNARY_REQUEST_DURATION", value_name = "TIME", default_value = "300ms",
        value_parser = units::duration, help_heading = CLIENTS
    )]
    pub warning_unary_request_duration: Duration,
    /// Another process may listen at the same addresses for clients (SO_REUSEPORT).
    #[arg(
        long, env = "SYNOD_SOCKET_REUSE_PORT", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = CLIENTS
    )]
    pub socket_reuse_port: bool,
    /// Whether the calls of etcd's API are served as JSON too, at /v3/... of the addresses for clients.
    #[arg(
        long, env = "SYNOD_ENABLE_GRPC_GATEWAY", value_name = "true|false", default_value_t = true,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = CLIENTS
    )]
    pub enable_grpc_gateway: bool,
    /// Whether etcd's calls that add or remove a member are refused while too few voters have been connected for five
    /// seconds, as with etcd. A change that would leave the cluster stuck is refused in any case.
    #[arg(
        long, env = "SYNOD_STRICT_RECONFIG_CHECK", value_name = "true|false", default_value_t = true,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = CLIENTS
    )]
    pub strict_reconfig_check: bool,
    /// How many members may stay learners; those that are to vote, or to replace another, do not count.
    #[arg(long, env = "SYNOD_MAX_LEARNERS", value_name = "COUNT", default_value_t = 1, help_heading = CLIENTS)]
    pub max_learners: u32,
    /// What --auto-compaction-retention means: periodic (a time) or revision (a number of revisions).
    #[arg(
        long, env = "SYNOD_AUTO_COMPACTION_MODE", value_name = "MODE", value_enum, default_value = "periodic",
        help_heading = UPKEEP
    )]
    pub auto_compaction_mode: CompactionMode,
    /// How much history is kept: 1 or 1h (an hour), 30m; with --auto-compaction-mode revision how many revisions. Older
    /// versions are compacted away: each hour, or each period if that is shorter, or every five minutes; 0: never.
    #[arg(
        long, env = "SYNOD_AUTO_COMPACTION_RETENTION", value_name = "TIME|COUNT", default_value = "0",
        help_heading = UPKEEP
    )]
    pub auto_compaction_retention: String,
    /// How often all members' contents are compared, which raises the alarm CORRUPT for one that differs; 0: never.
    #[arg(
        long, env = "SYNOD_CORRUPT_CHECK_TIME", value_name = "TIME", default_value = "0s",
        value_parser = units::duration, help_heading = UPKEEP
    )]
    pub corrupt_check_time: Duration,
    /// Compare all members' contents as they were at the last compaction. --feature-gates CompactHashCheck says it too.
    #[arg(
        long, env = "SYNOD_COMPACT_HASH_CHECK_ENABLED", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = UPKEEP
    )]
    pub compact_hash_check_enabled: bool,
    /// How often it is looked whether there was a compaction to compare at.
    #[arg(
        long, env = "SYNOD_COMPACT_HASH_CHECK_TIME", value_name = "TIME", default_value = "1m",
        value_parser = units::duration_above_zero, help_heading = UPKEEP
    )]
    pub compact_hash_check_time: Duration,
    /// Compare this replica's contents with the others' before it serves clients; it ends if they differ.
    /// --feature-gates InitialCorruptCheck says it too.
    #[arg(
        long, env = "SYNOD_INITIAL_CORRUPT_CHECK", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = UPKEEP
    )]
    pub initial_corrupt_check: bool,
    /// Features of etcd that are switched, as NAME=true,NAME=false.
    #[arg(
        long, env = "SYNOD_FEATURE_GATES", value_name = "NAME=BOOL,...", default_value = "", help_heading = UPKEEP
    )]
    pub feature_gates: Features,
    /// The same as --durability async: acknowledged writes may be lost when machines lose power.
    #[arg(
        long, env = "SYNOD_UNSAFE_NO_FSYNC", value_name = "true|false", default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set,
        value_parser = units::truth, help_heading = "Log and snapshots"
    )]
    pub unsafe_no_fsync: bool,
}

/// What a retention means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompactionMode {
    /// A time.
    Periodic,
    /// A number of revisions.
    Revision,
}
