//! The threaded runtime of a replica.
//!
//! A [`Node`] runs one [`synod_replica::Replica`] on real threads, sockets and files. It decides nothing about
//! consensus: it feeds events, and carries out actions.
//!
//! ```text
//!              requests            decided batches           replies
//!  Handle ---------------> protocol ---------------> executor -------> Handle
//!                          |  ^   |                      |
//!         records, gated   |  |   | messages             | frozen state
//!         messages         v  |   v                      v
//!                         log |  transport            snapshots
//!                             |   |
//!              "durable"      |   | received messages
//!               from log -----+---+
//! ```
//!
//! | thread | file | waits for |
//! | --- | --- | --- |
//! | protocol | `protocol.rs` | its next event; nothing else, ever |
//! | log | `log.rs` | the disk: one commit takes everything that gathered during the last |
//! | executor | `executor.rs` | the state machine (may be folded into the protocol's thread) |
//! | snapshots | `snapshots.rs` | the disk |
//! | a sender and a receiver a peer | `synod-transport` | the network |
//!
//! Queues are bounded: events of peers by a count, beyond which the receiver threads stop reading and TCP pushes
//! back; requests by bytes, with a semaphore in front ([`Handle`]); what goes to the log and the executor by the
//! window and the backlog that the replica allows itself.

mod config;
mod executor;
mod handle;
mod log;
mod metrics;
mod node;
mod protocol;
mod snapshots;
mod status;

pub use config::{Config, MemberAddress, StartError};
pub use handle::Handle;
pub use metrics::NodeMetrics;
pub use node::Node;
pub use status::{NodeStatus, PeerLink};
