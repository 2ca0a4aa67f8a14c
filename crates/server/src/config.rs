//! The configuration of the server.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use crate::{
    Auth, EventLoop, RequestMetrics, Watches,
    connection::CONNECTION_BYTES,
    readers::{GATHERED_BYTES, SENT_MAX, WHOLE_MAX},
    serve::PAGES_MAX,
};

/// Addresses to listen at, and limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses for clients: gRPC, and the HTTP pages too. Port 0 takes a free port.
    pub client_addresses: Vec<SocketAddr>,
    /// Further addresses, for the HTTP pages alone.
    pub metrics_addresses: Vec<SocketAddr>,
    /// Threads that serve clients, if there is no `event_loop`.
    pub client_io_threads: usize,
    /// Where clients are served in place of threads of the server: the loop on which the replica runs, which must have
    /// been started on it. What [`Server::stop`](crate::Server::stop) had to break off ends with that loop.
    pub event_loop: Option<Arc<EventLoop>>,
    /// Most connections at a time, over all addresses. A further one replaces an idle one, or is closed.
    pub connections_max: usize,
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
    /// The users of the store, if the store tells of them ([`Auth::feed`]). Without them etcd's service Auth is refused, as it
    /// is where there are several stores.
    pub auth: Option<Auth>,
    /// After how long a watch without events is told how far it is, if its client wants that.
    pub watch_progress_interval: Duration,
    /// Counters of the requests. Keep a clone to read them.
    pub requests: RequestMetrics,
}

impl Config {
    /// Most bytes of memory that clients can make the server use, besides the store and undecided commands,
    /// if each answer that must be in memory as a whole has at most `answer_bytes_max` bytes.
    #[must_use]
    pub fn memory_bytes_max(&self, answer_bytes_max: u64) -> u64 {
        let connections = self.connections_max as u64 + u64::from(PAGES_MAX);
        let pieces = (SENT_MAX * GATHERED_BYTES) as u64;
        // Such an answer exists twice: as it was made, and as it is sent.
        let whole = 2 * WHOLE_MAX as u64 * answer_bytes_max;
        let watches = if self.watches.is_some() { Watches::BYTES_MAX } else { 0 };
        let tokens = if self.auth.is_some() { Auth::BYTES_MAX } else { 0 };
        connections * CONNECTION_BYTES + self.requests_bytes_max + pieces + whole + watches + tokens
    }
}

impl Default for Config {
    /// No address; one thread; etcd's quota (2 GiB); 10,000 connections with 4,096 requests each, 384 MiB for
    /// their requests; five seconds to stop; no watches, and etcd's interval (ten minutes) between two notes of a
    /// watch's progress.
    fn default() -> Config {
        Config {
            client_addresses: Vec::new(),
            metrics_addresses: Vec::new(),
            client_io_threads: 1,
            event_loop: None,
            connections_max: 10_000,
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

/// Why the server cannot listen at a list of URLs.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {url:?}: {why}")]
pub struct ListenError {
    url: String,
    why: String,
}

/// The addresses in a list of URLs separated by commas, as in `http://127.0.0.1:2379,http://localhost:2379`.
/// Names are resolved.
///
/// # Errors
/// A URL is not `http://host:port`, or a name cannot be resolved.
pub fn listen_addresses(urls: &str) -> Result<Vec<SocketAddr>, ListenError> {
    let mut addresses = Vec::new();
    for url in urls.split(',').map(str::trim) {
        let wrong = |why: String| ListenError { url: url.to_owned(), why };
        let Some(authority) = url.strip_prefix("http://") else {
            return Err(wrong("give http://host:port; TLS is not supported yet".into()));
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let found =
            authority.to_socket_addrs().map_err(|error| wrong(format!("{error}; give http://host:port")))?;
        addresses.extend(found);
    }
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_become_addresses() {
        let both = listen_addresses("http://127.0.0.1:2379, http://[::1]:2379/").unwrap();
        assert_eq!(both, ["127.0.0.1:2379".parse().unwrap(), "[::1]:2379".parse().unwrap()]);
        for wrong in
            ["", "127.0.0.1:2379", "https://127.0.0.1:1", "http://127.0.0.1", "http://127.0.0.1:99999"]
        {
            let error = listen_addresses(wrong).unwrap_err().to_string();
            assert!(error.contains("http://host:port"), "{error}");
        }
    }
}
