//! The threaded runtime of a replica.
//!
//! A [`Node`] runs one [`synod_replica::Replica`], or one for each of several groups, on real threads, sockets and
//! files. It decides nothing about consensus: it feeds events, and carries out actions. A program may put a network and
//! a disk of its own in the place of these ([`Config::network`], [`Config::disk`]).
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
//! | protocol | `protocol.rs` | its next event; the disk only where the members change |
//! | log | `log.rs` | the disk: one commit takes everything that gathered during the last |
//! | executor | `executor.rs` | the state machine |
//! | snapshots | `snapshots.rs` | the disk |
//! | peers | `meeting.rs` | the disk: it writes down now and then how far peers have told |
//! | a sender and a receiver a peer | `synod-transport` | the network |
//!
//! With [`Threads::Compact`] the protocol's thread also reads what peers send, writes to their sockets and executes
//! commands, for a bounded time in each turn. The threads of senders and receivers then sleep unless a socket takes no
//! more. With [`Config::event_loop`] that thread also runs other tasks, such as those of a server for clients
//! (`event_loop.rs`).
//!
//! Which group is stepped when, who waits there, in which frames messages leave and who is a peer is decided by
//! `synod-host`, without a thread. `session.rs` sends the commands of clients until they are answered;
//! `subscription.rs` is those that follow what is decided; `origin.rs` is what a replica begins with, and what it tells
//! one that joins; `recover.rs` makes a new cluster of what one survivor has, `restore.rs` one of a backup.
//!
//! Queues are bounded. Everything that the protocol's thread takes comes through one queue of a fixed length, or with
//! [`Threads::Compact`] from the sockets of peers, of which it reads a bounded part in each turn: when the queue is
//! full, or the thread is busy, sockets are not read, and TCP pushes back. Requests are admitted by bytes, with a
//! semaphore in front ([`Handle`]). What goes to the log and the executor is bounded by the window, and by how far the
//! replica lets disk and execution fall behind before it takes in no more.
//!
//! Waking a thread costs more than most of what it is told. So the log and the executor publish how far they are, and
//! wake the protocol's thread only if it waits for that: a leader for its own disk, a replica whose execution lags.

mod blocking;
mod config;
mod error;
mod event_loop;
mod executor;
mod found;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hand_over;
mod handle;
mod hosted;
mod inputs;
mod log;
mod lone_replica;
mod meeting;
mod merged;
mod metrics;
mod node;
mod origin;
mod protocol;
pub mod recover;
pub mod restore;
mod session;
mod snapshots;
mod status;
mod subscription;
mod view;
mod wiring;

#[cfg(feature = "shuttle")]
mod watch;

/// For threads that a node does not begin itself, such as those of a runtime for tasks: what they call when they begin
/// to wait for something to do, and when they go on, so that `/metrics` tells their waits from their work.
pub mod threads {
    pub use synod_sync::{park, unpark};
}

pub use config::{Config, MemberAddress, Merging, Threads, UnknownThreads};
pub use error::{ChangeError, ConfigError, Ended, Lacking, ReadLogError, StartError};
pub use handle::Handle;
#[doc(hidden)]
pub use handle::Timed;
#[cfg(feature = "metrics")]
pub use metrics::NodeMetrics;
pub use node::Node;
pub use origin::{AskError, ORIGIN_FORMAT, Origin, is_begun};
pub use session::{Endpoint, Session, SessionError};
pub use status::{MergeStatus, NodeStatus, PeerLink, role_number};
pub use subscription::Subscription;
pub use synod_transport::{
    MTU_DEFAULT, Network, Obstacle, ObstacleKind, Repeats, Tcp, Tls, TransportError, Udp,
};
pub use synod_wire::GROUPS_MAX;
pub use view::{View, Watch};
