//! What a client is told.

use std::time::Duration;

/// How to reach a cluster, and how long to try.
#[derive(Clone, Debug)]
pub struct Config {
    /// Client URLs of the replicas, `http://host:port`; a bare `host:port` will do. At least one.
    pub endpoints: Vec<String>,
    /// The endpoint to begin with, counted from 0. Unless it is given, chance decides, which spreads many clients
    /// over the replicas.
    pub first_endpoint: Option<usize>,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long to wait for one endpoint's answer to a request that may be sent again. Each time that this was too short,
    /// the request gets twice as long.
    pub attempt_timeout: Duration,
    /// How long a request may take in all. Until then it is sent again, as far as it may be, with pauses of 10 to
    /// 500 ms whenever every endpoint has failed.
    pub request_timeout: Duration,
    /// Send a write again although the first may have been executed.
    ///
    /// A write of the etcd API carries no identity, so a replica that is sent it twice executes it twice. That does
    /// no harm to a put of the same value or to a transaction that compares first; it is wrong for whoever counts
    /// versions. A [`Session`](crate::Session) has no such doubt.
    pub retry_writes: bool,
    /// Give up as soon as no endpoint could be connected to, each having been tried once, instead of trying until the
    /// request time-out: for somebody who types, and whose replicas probably do not run.
    pub give_up_unreachable: bool,
}

impl Config {
    /// These endpoints, and for the rest: 2 s to connect, 2 s an attempt, 5 s a request, no write sent twice.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Config {
        Config {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            first_endpoint: None,
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            retry_writes: false,
            give_up_unreachable: false,
        }
    }
}
