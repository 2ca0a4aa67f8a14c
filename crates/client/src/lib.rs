//! Clients of a Synod cluster.
//!
//! - [`Client`] speaks the etcd v3 API, so it works with etcd too: keys, transactions, watches, leases,
//!   locks, elections, users, members, alarms, snapshots, status.
//! - [`Session`] speaks Synod's own protocol to any replicated state machine and executes each command **at most
//!   once**, however often it has to be sent.
//! - [`Subscription`] follows what a Synod cluster decides.
//!
//! Both know several endpoints. They start with a random one, stay with it while it answers, and move on to
//! the next when it does not (Santos 2012, section 7.2.3). Every replica accepts requests, whether it leads
//! or not, so there is no redirect to follow. `docs/client.md` says what is guaranteed when something fails.
//!
//! # Keys
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
//! A write is sent again only while no attempt can have been executed. If an answer is lost, the error says so
//! ([`Error::may_have_executed`]), and the caller decides; [`Config::retry_writes`] sends such writes again.
//!
//! # Transactions
//!
//! A transaction compares, and executes one of two lists of operations, all at one revision. This one writes a key only
//! if it does not exist:
//!
//! ```no_run
//! # async fn example(client: synod_client::Client) -> Result<(), synod_client::Error> {
//! use synod_client::api::{
//!     Compare, PutRequest, RequestOp, TxnRequest,
//!     compare::{CompareResult, CompareTarget, TargetUnion},
//!     request_op::Request,
//! };
//!
//! let is_absent = Compare {
//!     key: "city".into(),
//!     target: CompareTarget::Create.into(),
//!     result: CompareResult::Equal.into(),
//!     target_union: Some(TargetUnion::CreateRevision(0)),
//!     ..Default::default()
//! };
//! let put = PutRequest { key: "city".into(), value: "Lugano".into(), ..Default::default() };
//! let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
//! let done = client.txn(TxnRequest { compare: vec![is_absent], success, ..Default::default() }).await?;
//! println!("written: {}", done.succeeded);
//! # Ok(())
//! # }
//! ```
//!
//! # Watches
//!
//! A [`Watch`] tells each change once, in order, and goes on at another server by itself. To go on in another process,
//! keep the revision of the last event and watch from the next one:
//!
//! ```no_run
//! # async fn example(client: synod_client::Client, last_seen: i64) -> Result<(), synod_client::Error> {
//! use synod_client::api::WatchCreateRequest;
//!
//! // All keys that begin with `jobs/`.
//! let (key, range_end, start_revision) = ("jobs/".into(), "jobs0".into(), last_seen + 1);
//! let mut watch = client.watch(WatchCreateRequest { key, range_end, start_revision, ..Default::default() });
//! while let Some(told) = watch.next().await? {
//!     if told.canceled {
//!         // What it asked for is compacted: read the keys again, and watch from the revision of that answer on.
//!         eprintln!("the first revision left is {}", told.compact_revision);
//!     }
//!     for kv in told.events.into_iter().filter_map(|event| event.kv) {
//!         println!("{:?} changed at revision {}", kv.key, kv.mod_revision);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Leases, locks and elections
//!
//! [`Client::lease`] grants a lease and keeps it alive. [`Client::lock`] and [`Election::campaign`] wait for a lock and
//! for a leadership, each with a lease of its own. All of them tell when they are lost, and let go when they are
//! dropped:
//!
//! ```no_run
//! # async fn example(client: synod_client::Client) -> Result<(), synod_client::Error> {
//! use std::time::Duration;
//!
//! let ttl = Duration::from_secs(10);
//! let lock = client.lock("jobs/17", ttl).await?;
//! println!("held, with the fencing token {}", lock.revision());
//! tokio::select! {
//!     () = lock.lost() => eprintln!("somebody else may hold it now"),
//!     () = work() => {}
//! }
//! lock.unlock().await?;
//!
//! let leadership = client.election("scheduler").campaign("10.0.0.7:80", ttl).await?;
//! leadership.proclaim("10.0.0.7:80, ready").await?;
//! leadership.resign().await?;
//! # Ok(())
//! # }
//! # async fn work() {}
//! ```
//!
//! The holder of a lock can lose it without noticing in time. [`Lock`] says how to fence what must never be done by
//! two.
//!
//! # Users
//!
//! A client of a user gets a token when it needs one, and another when that is not valid any more:
//!
//! ```no_run
//! # fn example() -> Result<(), synod_client::Error> {
//! let mut config = synod_client::Config::new(["http://10.0.0.1:2379"]);
//! config.user = Some(("alice".into(), "her password".into()));
//! let client = synod_client::Client::new(config)?;
//! # Ok(())
//! # }
//! ```
//!
//! Users have roles, and roles have permissions. From [`Client::auth_enable`] on they count:
//!
//! ```no_run
//! # async fn example(client: synod_client::Client) -> Result<(), synod_client::Error> {
//! use synod_client::authpb::permission::Type;
//!
//! client.user_add("root", Some("its password")).await?;
//! client.user_grant_role("root", "root").await?;
//! client.role_add("workers").await?;
//! client.role_grant("workers", Type::Readwrite, "jobs/", "jobs0").await?;
//! client.user_add("alice", Some("her password")).await?;
//! client.user_grant_role("alice", "workers").await?;
//! client.auth_enable().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # TLS
//!
//! From files that are read again when they change:
//!
//! ```no_run
//! use synod_client::{Client, Config, tls::{Connector, Identity, Policy, Trust}};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let trust = Trust::of("ca.crt");
//! let shown = Identity::of("client.crt", "client.key");
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
mod greeting;
mod keeper;
mod lease;
mod lock;
mod maintenance;
mod members;
mod metrics;
mod queue;
mod session;
mod subscription;
mod users;
mod watch;

pub use client::Client;
pub use config::Config;
pub use election::{Election, Leadership, Observation};
pub use error::Error;
pub use keeper::Lease;
pub use lock::Lock;
pub use maintenance::Snapshot;
pub use metrics::{Between, Metrics};
pub use queue::Held;
pub use session::Session;
pub use subscription::{Start, Subscription};
/// Permissions of the etcd v3 API.
pub use synod_api::authpb;
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
