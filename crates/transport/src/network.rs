//! What a replica asks of the network that carries its messages.
//!
//! [`Tcp`] is what a server uses. A program may put another [`Network`] in its place, such as [`crate::MemoryNetwork`]
//! in a test; what the head of this crate promises of sessions holds of every one.

use std::{fmt, net::SocketAddr, task::Context, time::Duration};

use synod_sync::Arc;
use synod_wire::{Encoded, GroupId, Lsn, ReplicaId};

use crate::{
    Config, Event, Metrics, Peer, TcpSender, Transport, TransportError, Unreadable,
    config::default_frame_bytes_max,
};

/// The function that tells the owner of a network's connections what happens; see [`Network::start`].
pub type Sink = dyn Fn(Vec<Event>) -> Result<(), Unreadable> + Send + Sync;

/// A way for the replicas of a cluster to reach each other.
pub trait Network: fmt::Debug + Send + Sync {
    /// Connects a replica with its peers, and tells `sink` what happens.
    ///
    /// `sink` is called from threads of the network, for each peer in the order of what happens there, with as many
    /// events of a peer at a time as are there. It may block, which must delay only what comes from that peer, and
    /// of others their datagrams, and beginnings and ends of their sessions. It
    /// must return once the connections are being dropped, and must not drop them itself. If it returns an error,
    /// an [`Event::Received`] among these events cannot be read, those before it were taken and those after it were
    /// not, and nothing that was sent after them in the same session may be delivered.
    ///
    /// With [`Config::bell`] what peers send does not go to `sink` if the connections have an [`Inbox`].
    ///
    /// # Errors
    /// A setting is wrong, or the system lacks something that the network needs.
    fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError>;

    /// The largest body that it carries, in bytes.
    fn message_bytes_max(&self) -> usize;

    /// What a replica shows of it, in a word.
    fn name(&self) -> &'static str {
        "other"
    }
}

/// The connections of one replica with its peers. Dropping them ends them and waits for their threads; no event
/// follows. If there is an inbox, it has to be dropped first.
pub trait Connections: fmt::Debug + Send {
    /// What peers send, for an owner that has set [`Config::bell`] and asks for the first time. `None`: the network
    /// gives that to its sink, as always without a bell.
    fn inbox(&mut self) -> Option<Box<dyn Inbox>> {
        None
    }

    /// The handle that sends. It may outlive the connections, and then drops everything.
    fn sender(&self) -> Arc<dyn Sender>;

    /// The addresses at which peers reach this replica, if the network has addresses of the internet protocol.
    fn local_addresses(&self) -> Vec<SocketAddr>;
}

/// What peers send, read by the owner of the connections on a thread of its own.
pub trait Inbox: fmt::Debug + Send {
    /// Waits until something has arrived, until [`Config::bell`] is rung, or for `timeout`. `is_idle` says whether the
    /// owner has nothing else to do; a thread that makes it false rings the bell afterwards.
    fn wait(&mut self, timeout: Duration, is_idle: &dyn Fn() -> bool);

    /// The same for an owner that is a task of [`Config::event_loop`]: whether there may be something to take. If there
    /// is nothing, the task is woken once there is.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool;

    /// Hands out what had arrived at the last [`Inbox::wait`] or [`Inbox::poll`], or a part of it that takes no long
    /// time; the next look finds the rest. Nothing more comes of the session of an [`Event::Received`] for which `sink`
    /// returns an error.
    fn take(&mut self, sink: &mut dyn FnMut(Event) -> Result<(), Unreadable>);
}

/// Sends messages to peers, from any thread.
pub trait Sender: fmt::Debug + Send + Sync {
    /// Queues one message of a group for several peers, written in this version, which [`Sender::version`] named a
    /// moment ago. It leaves at the latest at the next [`Sender::flush`]. Never blocks and never fails: a message may
    /// be lost with the session for which it was made, and a message for which no queue has room ends the session. In a
    /// version before [`synod_wire::GROUPS_SINCE`] only messages of the first group are sent.
    fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded);

    /// Has everything leave that was queued. Never blocks for a peer.
    fn flush(&self);

    /// The version in which a message for this peer has to be written: the one that the two replicas agreed
    /// on, or the oldest while there is no session.
    fn version(&self, to: ReplicaId) -> u16;

    /// For each peer, the nonce of its latest life, and the last record of that life's log that something it
    /// said rests on.
    fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)>;

    /// Makes `peers` the peers of this replica, in place of those before. Does not wait.
    ///
    /// # Errors
    /// The list makes no sense; then the peers remain as they were.
    fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError>;

    /// The present values of the metrics.
    fn metrics(&self) -> Metrics;
}

/// A network with one TCP connection per direction between any two replicas.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Network for Tcp {
    fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError> {
        Ok(Box::new(Transport::start_with(config, sink)?))
    }

    fn message_bytes_max(&self) -> usize {
        default_frame_bytes_max()
    }

    fn name(&self) -> &'static str {
        "tcp"
    }
}

/// The MTU of Ethernet, in bytes.
pub const MTU_DEFAULT: u16 = 1500;

/// The same connections for handshakes and for what is large, and datagrams of UDP for messages that fit a packet of a
/// link with this MTU, in bytes. A peer that takes none, or that none reach, gets everything over TCP.
#[derive(Clone, Copy, Debug)]
pub struct Udp {
    /// See [`Config::datagram_mtu`].
    pub mtu: u16,
}

impl Default for Udp {
    fn default() -> Udp {
        Udp { mtu: MTU_DEFAULT }
    }
}

impl Network for Udp {
    fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError> {
        Tcp.start(Config { datagram_mtu: Some(self.mtu), ..config }, sink)
    }

    fn message_bytes_max(&self) -> usize {
        Tcp.message_bytes_max()
    }

    fn name(&self) -> &'static str {
        "udp"
    }
}

impl Connections for Transport {
    fn inbox(&mut self) -> Option<Box<dyn Inbox>> {
        self.inbox.take().map(|inbox| Box::new(inbox) as Box<dyn Inbox>)
    }

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

    fn flush(&self) {
        TcpSender::flush(self);
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
