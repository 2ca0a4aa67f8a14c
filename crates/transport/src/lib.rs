//! Messages between replicas: what a replica asks of a [`Network`], and frames over TCP.
//!
//! A [`Transport`] carries message bodies from this replica to its peers and back. It knows nothing about
//! their contents. Its promise is that of `Link` inputs in the protocols:
//!
//! - **Sessions.** Every replica dials every peer and sends on that connection only; it receives on those
//!   that it accepts.
//!   [`Event::Up`] and [`Event::Down`] tell of the connection that this replica dialled.
//! - **Within a session, bodies arrive whole, intact, once, in the order in which they were sent and without a gap.**
//!   Of an ended session a suffix may be lost. A queue that overflows ends the session, so that this holds even then.
//!   What was still queued leaves in the next session; so the first frames of a session may have been sent before its
//!   `Up` was noticed. With [`Config::datagram_mtu`] this holds of messages that are too large for a packet. **The
//!   others may be lost, come twice, and overtake any**, within their session; see docs/transports.md.
//! - **Sending never blocks and never fails.** Every queue is bounded; protocols send again what still
//!   matters. Receiving may
//!   block, in the sink; TCP then pushes back.
//! - **Bad input costs only its connection.** Strangers, other clusters, other versions, replaced lives of a peer,
//!   malformed, oversized or corrupted frames, and bodies that the owner of the transport cannot read end that
//!   connection, and leave a log line, of each kind one a minute ([`Repeats`]).
//! - **What is in the way of a peer is told** ([`PeerMetrics::obstacle`]).
//! - **Peers come, go and move while it runs** ([`TcpSender::set_peers`]); those that stay notice nothing.
//! - **A replica is its id and its birth**, a number that is as old as its data. A replica that comes back under its id
//!   with other data is refused, and so is one that forgot what it told, if [`Config::recognise`] says so. Every frame
//!   says how far the sender's log is durable, and so does a quiet connection once per second.
//! - **How long a peer takes to answer is measured** where messages wait too ([`PeerMetrics::round_trips`]).
//! - **Two versions in one group.** Each session speaks the highest version that both sides know.
//! - **Any program that knows an address can ask** ([`inquire`]). A replica that is about to join learns in
//!   this way which
//!   cluster it joins.
//! - **All of this inside of TLS, or without** ([`Config::tls`]). With TLS only those whose certificates both sides
//!   allow get as far as the handshake below; frames, sessions and checks are the same (`stream.rs`).
//!
//! # Threads
//!
//! As in Santos 2012 (section 9.4), each peer has one sender thread and one receiver thread, with blocking
//! I/O, so that a slow peer shares its loop with no other. A third thread per peer sleeps in `read` on the
//! outgoing connection, where nothing ever arrives, to notice the peer's death at once. One more thread
//! accepts, and one starts and ends the threads of peers that come and go. Calling [`TcpSender::send`] does no
//! I/O, and wakes the sender thread only if that one sleeps; [`TcpSender::set_peers`] does not wait, either.
//!
//! Two settings let an owner do with fewer switches of threads. With [`Config::direct`] the thread that sends writes
//! to the socket itself, and leaves to the sender thread what the socket does not take at once. With [`Config::bell`]
//! the owner reads the sockets of all peers on a thread of its own ([`Inbox`]), and the receiver threads sleep. That
//! thread may run an event loop for other tasks as well ([`EventLoop`]).

#![cfg(unix)]

mod complaint;
mod config;
mod datagram;
mod deadline;
mod dial;
mod event_loop;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod inbound;
mod inbox;
mod inquiry;
mod link;
mod memory;
mod network;
mod obstacle;
mod peers;
mod probe;
mod queue;
mod socket;
mod stream;
mod sync;
mod transport;

pub use complaint::{LeftOut, Repeats};
pub use config::{Config, Meeting, Outlived, Peer, Recognise, Tls, TransportError, Unrecognised};
pub use event_loop::{EventLoop, Readiness, Socket};
pub use handshake::{ANSWER_BYTES_MAX, VERSION, VERSION_OLDEST};
pub use inquiry::{InquireError, inquire};
pub use memory::MemoryNetwork;
pub use network::{Connections, Inbox, MTU_DEFAULT, Network, Sender, Sink, Tcp, Udp};
pub use obstacle::{Obstacle, ObstacleKind};
pub use transport::{Event, Metrics, PeerMetrics, TcpSender, Transport, Unreadable};
