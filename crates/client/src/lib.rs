//! Clients of a Synod cluster.
//!
//! - [`Client`] speaks the etcd v3 API, so it works with etcd too: keys, transactions, watches, members, status.
//! - [`Session`] speaks Synod's own protocol to any replicated state machine and executes each command **at most
//!   once**, however often it has to be sent.
//! - [`Subscription`] follows what a Synod cluster decides.
//!
//! Both know several endpoints. They start with a random one, stay with it while it answers, and move on to
//! the next when it does not (Santos 2012, section 7.2.3). Every replica accepts requests, whether it leads
//! or not, so there is no redirect to follow.
//!
//! ```no_run
//! use synod_client::{Client, Config, api::{PutRequest, RangeRequest}};
//!
//! # async fn example() -> Result<(), synod_client::Error> {
//! let client = Client::new(Config::new(["http://127.0.0.1:2379", "http://127.0.0.1:22379"]))?;
//! client.put(PutRequest { key: "city".into(), value: "Lausanne".into(), ..Default::default() }).await?;
//! let found = client.get(RangeRequest { key: "city".into(), ..Default::default() }).await?;
//! assert_eq!(found.kvs[0].value, "Lausanne");
//! # Ok(())
//! # }
//! ```
//!
//! With TLS, from files that are read again when they change:
//!
//! ```no_run
//! use synod_client::{Client, Config, tls::{Connector, Identity, Policy, Trust}};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let trust = Trust { authorities: Some("ca.crt".into()), ..Trust::default() };
//! let shown = Identity { certificate: "client.crt".into(), key: "client.key".into() };
//! let mut config = Config::new(["https://10.0.0.1:2379"]);
//! config.tls = Some(Connector::new(Some(shown), Some(trust), Policy::default(), &["h2"])?);
//! let client = Client::new(config)?;
//! # Ok(())
//! # }
//! ```

mod auth;
mod client;
mod config;
mod dial;
mod election;
mod endpoints;
mod error;
mod keeper;
mod lease;
mod lock;
mod queue;
mod session;
mod subscription;
mod watch;

pub use client::Client;
pub use config::Config;
pub use election::{Election, Leadership, Observation};
pub use error::Error;
pub use keeper::Lease;
pub use lock::Lock;
pub use session::Session;
pub use subscription::{Start, Subscription};
/// The messages of the etcd v3 API.
pub use synod_api::etcdserverpb as api;
/// Keys, values and events of the etcd v3 API.
pub use synod_api::mvccpb;
/// The messages of Synod's own API.
pub use synod_api::synod::v1 as native;
/// What TLS is made of ([`Config::tls`]).
pub mod tls {
    pub use synod_tls::{Connector, Identity, Policy, TlsError, Trust};
}
/// What the other crates of this workspace share with this one. Nothing of it is promised.
#[doc(hidden)]
pub mod internal {
    pub use crate::dial::{Dial, Io};
}
pub use tonic::Code;
pub use watch::Watch;
