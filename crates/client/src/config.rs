//! The configuration of a client.

use std::{fmt, time::Duration};

use synod_tls::Connector;

/// How to reach a cluster, and how long to try.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Client URLs of the replicas, at least one: `http://host:port`, `https://host:port`, `unix://path`,
    /// `unixs://path`, or just `host:port`, which is with TLS if `tls` is set.
    pub endpoints: Vec<String>,
    /// The endpoint to begin with, counted from 0, unless another one answers much sooner or knows a leader where this
    /// one does not. Without it each client picks one at random, which spreads many clients over the replicas.
    pub first_endpoint: Option<usize>,
    /// How connections with TLS are made ([`Connector::new`], for the protocol `h2`).
    pub tls: Option<Connector>,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long to wait for one endpoint's answer to a request that may be sent again, or for its status. Each time-out
    /// doubles it for the next attempt of the same request.
    pub attempt_timeout: Duration,
    /// How long a request may take in all. Until then the client sends it again where `retry_writes` and the
    /// kind of request allow that, with pauses of 10 to 500 ms whenever every endpoint has failed.
    pub request_timeout: Duration,
    /// Send a write again although the first attempt may have been executed.
    ///
    /// A write of the etcd API carries no identity, so a replica that receives it twice executes it twice.
    /// That does no harm to a put of the same value or to a transaction that compares first; it is wrong for
    /// a client that counts versions. A [`Session`](crate::Session) executes each command once.
    pub retry_writes: bool,
    /// Give up once a connection to each endpoint has been tried without success, instead of trying until the
    /// request time-out. Meant for a person at a terminal, whose replicas probably do not run.
    pub give_up_unreachable: bool,
    /// The user for whom requests are made, and the password. The client gets a token with them when it first needs
    /// one, and a new one when that is not valid any more. `None`: requests are made for nobody, which is enough while
    /// users do not count (etcd's `auth enable`).
    pub user: Option<(String, String)>,
}

impl Config {
    /// A configuration for these endpoints, with 2 s to connect, 2 s for an attempt and 5 s for a request. It
    /// sends no write twice.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Config {
        Config {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            first_endpoint: None,
            tls: None,
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            retry_writes: false,
            give_up_unreachable: false,
            user: None,
        }
    }
}

impl fmt::Debug for Config {
    /// Leaves the password out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}
