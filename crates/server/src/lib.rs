//! The interface for clients of a Synod replica: the etcd v3 API and Synod's own over gRPC, health and
//! metrics over HTTP.
//!
//! The server orders nothing itself. It checks requests, hands them to a [`Replica`] and translates the
//! answers into the clients' terms. So it does not know which protocol runs, or whether there is one:
//! [`InMemory`] is a replica without a protocol.
//! ```text
//! sockets ── client-io threads ── gRPC over HTTP/2 ── services ── Replica (execute, query)
//! synod_grpc serve.rs             synod_grpc          methods.rs: the table of all
//!                                 call.rs             kv, cluster, maintenance, native
//!                                 feeds.rs            Replica (subscribe)
//!            reader threads       large answers, readers.rs
//!            watch thread         events for watches, watch/
//!            upkeep thread        compactions and comparisons by itself, upkeep/
//!                              ── pages, http.rs, exposition.rs
//!                              ── JSON, gateway.rs, then as gRPC   (both: web.rs)
//! ```
//!
//! - **Threads** ([`Server::start`]): as in Santos 2012, section 9.4, a fixed number of client-I/O threads; every new
//!   connection is given to the next of them and stays there, so its requests share one thread's caches and its
//!   answers leave together. Or there is none: with [`Config::event_loop`] the replica's own thread serves clients.
//! - **Back-pressure**: a request waits inside [`Replica::execute`], whose queues are bounded; the connection's
//!   window and number of streams bound how many can wait there.
//!
//! **Architecture invariant:** `replica.rs` names no type of gRPC, and the services nothing of a node but how it sees
//! itself. Roles, groups, members and changes are those of the replica; `services/translation.rs` makes messages of them.

mod auth;
mod call;
mod compaction_hashes;
mod config;
mod etcd_names;
mod event_loop;
mod exposition;
mod feeds;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway;
mod http;
mod http1;
mod json;
mod memory;
mod methods;
pub mod node;
mod openings;
mod readers;
mod replica;
mod requests;
mod serve;
mod services;
mod slow;
mod turns;
mod upkeep;
pub mod urls;
mod watch;
mod web;

pub use prometheus_client::registry::Registry;

pub use auth::{Auth, PASSWORD_BYTES_MAX, TokenKind};
pub use config::Config;
pub use event_loop::EventLoop;
pub use memory::InMemory;
pub use replica::{
    Answer, Change, ChangeError, Changed, Consistency, Elsewhere, Goal, Group, Limits, Member, MemberInfo,
    MoveError, NodeStatus, Ordered, PeerLink, Point, Refusal, Replica, RequestError, Standing, Start, Status,
    SubscribeError, Subscription, Timed, Wanted,
};
pub use requests::RequestMetrics;
pub use serve::Server;
pub use services::API_VERSION;
pub use synod_grpc::{Address, At, KeepAlive, ListenError, Speaks, listen_addresses};
pub use upkeep::{Compaction, Differs, Hashes, Upkeep, UpkeepConfig};
pub use watch::Watches;
