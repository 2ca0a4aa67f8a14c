//! The configuration of the server.

use std::{sync::Arc, time::Duration};

use synod_grpc::{CONNECTION_BYTES, GATHERED_BYTES, KeepAlive, PROTOCOLS, TLS_BYTES};
use synod_tls::Acceptor;

use crate::{
    Address, Auth, EventLoop, RequestMetrics, Watches,
    readers::{SENT_MAX, WHOLE_MAX},
    serve::PAGES_MAX,
};

/// Addresses to listen at, and limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses for clients: gRPC, and the HTTP pages too.
    pub client_addresses: Vec<Address>,
    /// Addresses for clients that ask for the HTTP pages; if there are some, the client addresses serve gRPC alone.
    pub http_addresses: Vec<Address>,
    /// Further addresses, for the HTTP pages alone.
    pub metrics_addresses: Vec<Address>,
    /// What addresses that speak TLS show and demand, made with [`Config::PROTOCOLS`].
    pub tls: Option<Acceptor>,
    /// Whether the common name of a client's verified certificate is the user of its requests without a token.
    pub names_are_users: bool,
    /// Whether another process may listen at the same addresses (SO_REUSEPORT).
    pub reuse_port: bool,
    /// Whether clients may make calls as JSON.
    pub json: bool,
    /// Whether etcd's calls `MemberAdd` and `MemberRemove` are refused while too few voters have been connected for
    /// five seconds, as with etcd. A change that would leave the cluster stuck is refused in any case.
    pub strict_reconfig_check: bool,
    /// The names of hosts by which clients may ask for a page at an address for clients; none, or `*`: any.
    pub hosts: Vec<String>,
    /// The origins of web pages that may read answers at an address for clients (CORS); none, or `*`: any.
    pub origins: Vec<String>,
    /// Threads that serve clients, if there is no `event_loop`.
    pub client_io_threads: usize,
    /// Where clients are served in place of threads of the server: the loop on which the replica runs, which must have
    /// been started on it. What [`Server::stop`](crate::Server::stop) had to break off ends with that loop.
    pub event_loop: Option<Arc<EventLoop>>,
    /// Most connections at a time, over all addresses. A further one replaces one that is idle, does no work, or comes
    /// from the address with most; or it is closed.
    pub connections_max: usize,
    /// How the server and a client find out that the other is gone.
    pub keep_alive: KeepAlive,
    /// A request that takes longer until its answer is known is logged.
    pub slow_request: Duration,
    /// Most outstanding requests of one connection. A further one waits at the client.
    pub streams_per_connection_max: u32,
    /// Most bytes of memory for requests that are received, waiting or being answered, over all connections.
    /// A connection gets at most a quarter of the bytes that are free.
    pub requests_bytes_max: u64,
    /// Bytes that the key-value store may hold before writes are refused; 0: no bound.
    pub quota_bytes: u64,
    /// How long a stopping server waits for outstanding requests.
    pub stop_timeout: Duration,
    /// The watches of the store, if the store feeds them ([`Watches::feed`]). Without them etcd's service Watch is
    /// refused.
    pub watches: Option<Watches>,
    /// The users of the store, if the store tells of them ([`Auth::feed`]). Without them etcd's service Auth is
    /// refused, as it is where there are several stores.
    pub auth: Option<Auth>,
    /// After how long a watch without events is told how far it is, if its client wants that.
    pub watch_progress_interval: Duration,
    /// Counters of the requests. Keep a clone to read them.
    pub requests: RequestMetrics,
}

impl Config {
    /// The protocols that are negotiated with TLS (ALPN).
    pub const PROTOCOLS: [&str; 2] = PROTOCOLS;

    /// Most bytes of memory that clients can make the server use, besides the store and undecided commands,
    /// if each answer that must be in memory as a whole has at most `answer_bytes_max` bytes.
    #[must_use]
    pub fn memory_bytes_max(&self, answer_bytes_max: u64) -> u64 {
        let connections = self.connections_max as u64 + 2 * u64::from(PAGES_MAX);
        let pieces = (SENT_MAX * GATHERED_BYTES) as u64;
        // Such an answer exists twice: as it was made, and as it is sent.
        let whole = 2 * WHOLE_MAX as u64 * answer_bytes_max;
        let watches = if self.watches.is_some() { Watches::BYTES_MAX } else { 0 };
        let connection = CONNECTION_BYTES + if self.tls.is_some() { TLS_BYTES } else { 0 };
        let tokens = if self.auth.is_some() { Auth::BYTES_MAX } else { 0 };
        connections * connection + self.requests_bytes_max + pieces + whole + watches + tokens
    }
}

impl Default for Config {
    /// No address; one thread; etcd's quota (2 GiB); 10,000 connections with 4,096 requests each, 384 MiB for
    /// their requests; five seconds to stop; no watches, and etcd's interval (ten minutes) between two notes of a
    /// watch's progress.
    fn default() -> Config {
        Config {
            client_addresses: Vec::new(),
            http_addresses: Vec::new(),
            metrics_addresses: Vec::new(),
            tls: None,
            names_are_users: true,
            reuse_port: false,
            json: true,
            strict_reconfig_check: true,
            hosts: Vec::new(),
            origins: Vec::new(),
            client_io_threads: 1,
            event_loop: None,
            connections_max: 10_000,
            keep_alive: KeepAlive::default(),
            slow_request: Duration::from_millis(300),
            streams_per_connection_max: 4096,
            requests_bytes_max: 384 << 20,
            quota_bytes: 2 << 30,
            stop_timeout: Duration::from_secs(5),
            watches: None,
            auth: None,
            watch_progress_interval: Duration::from_secs(600),
            requests: RequestMetrics::default(),
        }
    }
}
