//! What a replica asks of whatever carries its messages.
//!
//! [`Tcp`] is what a server uses. A program may put another [`Network`] in its place, such as [`crate::MemoryNetwork`]
//! in a test; what the head of this crate promises of sessions holds of every one.

use std::{fmt, net::SocketAddr};

use synod_sync::Arc;
use synod_wire::{Encoded, GroupId, Lsn, ReplicaId};

use crate::{
    Config, Event, Metrics, Peer, TcpSender, Transport, TransportError, Unreadable,
    config::default_frame_bytes_max,
};

/// What the owner of a network's connections is told with; see [`Network::start`].
pub type Sink = dyn Fn(Event) -> Result<(), Unreadable> + Send + Sync;

/// A way for the replicas of a cluster to reach each other.
pub trait Network: fmt::Debug + Send + Sync {
    /// Connects a replica with its peers, and tells `sink` what happens.
    ///
    /// `sink` is called from threads of the network, for each peer in the order of what happens there. It may block, which
    /// must hold up no more than what comes from that peer. It must return once the connections are being dropped, and must
    /// not drop them itself. If it returns an error for an [`Event::Received`], nothing that was sent after that body in the
    /// same session may be delivered.
    ///
    /// # Errors
    /// A setting is wrong, or the system is out of something that the network needs.
    fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError>;

    /// The largest body that it carries, in bytes.
    fn message_bytes_max(&self) -> usize;
}

/// The connections of one replica with its peers. Dropping them ends them and waits for their threads; no event follows.
pub trait Connections: fmt::Debug + Send {
    /// What sends. It may outlive the connections, and then drops everything.
    fn sender(&self) -> Arc<dyn Sender>;

    /// Where peers reach this replica, if that is something with an address of the internet protocol.
    fn local_addresses(&self) -> Vec<SocketAddr>;
}

/// Sends messages to peers, from any thread.
pub trait Sender: fmt::Debug + Send + Sync {
    /// Queues one message of a group for several peers that is written in this version, as [`Sender::version`] named it a
    /// moment ago. Never blocks, never fails: a message may be lost with the session that it was made for, and one that no
    /// queue has room for ends the session. In a version before [`synod_wire::GROUPS_SINCE`] nothing is said of another
    /// group than the first.
    fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded);

    /// The version in which a message for this peer is to be written: the one that the two replicas agreed on; while
    /// there is no session, the oldest.
    fn version(&self, to: ReplicaId) -> u16;

    /// How far the latest life of each peer, by its nonce, has told: what it said rests on its log through this record.
    fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)>;

    /// Makes `peers` the peers of this replica, in place of those before. Waits for nothing.
    ///
    /// # Errors
    /// The list makes no sense; then the peers remain as they were.
    fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError>;

    /// How things stand now.
    fn metrics(&self) -> Metrics;
}

/// One TCP connection a direction between any two replicas.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Network for Tcp {
    fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError> {
        Ok(Box::new(Transport::start(config, sink)?))
    }

    fn message_bytes_max(&self) -> usize {
        default_frame_bytes_max()
    }
}

impl Connections for Transport {
    fn sender(&self) -> Arc<dyn Sender> {
        Arc::new(Transport::sender(self))
    }

    fn local_addresses(&self) -> Vec<SocketAddr> {
        Transport::local_addresses(self).to_vec()
    }
}

impl Sender for TcpSender {
    fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded) {
        TcpSender::send_in(self, version, group, to, body);
    }

    fn version(&self, to: ReplicaId) -> u16 {
        TcpSender::version(self, to)
    }

    fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)> {
        TcpSender::heard(self)
    }

    fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError> {
        TcpSender::set_peers(self, peers)
    }

    fn metrics(&self) -> Metrics {
        TcpSender::metrics(self)
    }
}
