//! What a transport is told at its start, and why it may refuse to start.

use std::{
    fmt, io,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use synod_sync::net::{Bell, TcpListener};
use synod_tls::{Acceptor, Connector};
use synod_wire::{ClusterId, Incarnation, Introduction, Lsn, ReplicaId, Stranger};

use crate::{
    EventLoop,
    datagram::{self, End},
    handshake::{Life, VERSION, VERSION_OLDEST},
};

/// Bytes in a mebibyte.
const MIB: usize = 1024 * 1024;

/// Another replica and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id. The peer's own answer in the handshake must agree.
    pub id: ReplicaId,
    /// `host:port`, or `https://host:port` for a peer that is called with TLS, whose certificate has to be for that
    /// host. A name is resolved again at every dial, so that a peer may move.
    pub address: String,
}

/// TLS with peers. A peer that the two admit is then asked what it would be asked without TLS: the cluster, its id and
/// birth.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tls {
    /// For peers that call.
    pub acceptor: Acceptor,
    /// For peers that are called.
    pub connector: Connector,
    /// Whether the certificate that a caller shows, if it has to show one, must be valid for the host of the address of
    /// the replica as which it calls.
    pub checks_hosts: bool,
}

impl Tls {
    /// TLS with peers that call, and with those that are called. Callers' certificates must be for their hosts.
    #[must_use]
    pub fn of(acceptor: Acceptor, connector: Connector) -> Tls {
        Tls { acceptor, connector, checks_hosts: true }
    }
}

/// Why a peer is not recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecognised {
    /// It cannot be who it says.
    Stranger(Stranger),
    /// This replica cannot remember whom it meets.
    Unwritten,
    /// The group has changes that are known in this version of the messages and later ones only.
    Outdated(u16),
}

impl From<Stranger> for Unrecognised {
    fn from(stranger: Stranger) -> Unrecognised {
        Unrecognised::Stranger(stranger)
    }
}

/// What is known of a peer that introduces itself, besides its introduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// The life with this nonce said things that rest on its log through this record.
    pub heard: Option<(u64, Lsn)>,
    /// This replica called, and the peer has welcomed it: it takes this replica for the one that it knows.
    pub welcomed: bool,
    /// The version in which both replicas would speak.
    pub version: u16,
}

/// See [`Config::recognise`].
pub type Recognise = dyn Fn(ReplicaId, &Introduction, Meeting) -> Result<(), Unrecognised> + Send + Sync;

/// See [`Config::outlived`].
pub type Outlived = dyn Fn(ReplicaId, &Stranger) + Send + Sync;

/// The settings of a [`Transport`](crate::Transport).
///
/// [`Config::new`] fills in everything that has a sensible default.
#[derive(Clone)]
pub struct Config {
    /// The cluster. Peers of another one are refused.
    pub cluster: ClusterId,
    /// This replica.
    pub me: ReplicaId,
    /// How this life of the replica introduces itself; [`Config::durable`] takes the place of what this says to be
    /// durable.
    pub who: Introduction,
    /// Records of the log through this one are durable, as the owner of the transport stores it here before it sends
    /// anything that rests on them. Each frame and each introduction carries it.
    pub durable: Arc<AtomicU64>,
    /// The versions of messages that may be spoken. Default: those that this build knows,
    /// [`VERSION_OLDEST`]`..=`[`VERSION`].
    pub versions: RangeInclusive<u16>,
    /// Whether somebody who introduces itself as the replica of this id is the one that this replica knows. Asked
    /// about every peer before a session with it begins, in either direction; one that is not recognised is refused.
    /// [`Meeting`] says what else is known. Called from several threads at a time; it may block (to remember a life
    /// durably, before it says yes), but must return once the transport is being shut down. Default: everybody is
    /// recognised.
    pub recognise: Arc<Recognise>,
    /// A peer refuses this replica: another life of it outlived this one. Called once for each refusal. Default:
    /// nothing.
    pub outlived: Arc<Outlived>,
    /// What an [`inquiry`](crate::inquire) is answered with, at most [`ANSWER_BYTES_MAX`](crate::ANSWER_BYTES_MAX)
    /// bytes. Anybody who reaches a listening address gets it. Called from several threads at a time; it must return
    /// once the transport is being shut down. Default: nothing, that is, zero bytes.
    pub answer: Arc<dyn Fn() -> Bytes + Send + Sync>,
    /// Where to accept connections without TLS; not used by [`Transport::start_on`](crate::Transport::start_on).
    pub listen: Vec<SocketAddr>,
    /// Where to accept connections with TLS. At an address of both lists the first byte of a connection tells.
    pub listen_tls: Vec<SocketAddr>,
    /// Sockets that listen already, in place of [`Config::listen`] and [`Config::listen_tls`]: for peers with TLS, if
    /// there is [`Config::tls`].
    pub listeners: Vec<Arc<TcpListener>>,
    /// TLS with peers whose address begins with `https://`, and at addresses of [`Config::listen_tls`].
    pub tls: Option<Tls>,
    /// All other replicas at the start; see [`Transport::set_peers`](crate::Transport::set_peers).
    pub peers: Vec<Peer>,
    /// The largest body that is accepted, in bytes. A receiver allocates at most this much a connection for a frame
    /// under way, and tells the caller how much that is. Default: 64 MiB.
    pub frame_bytes_max: usize,
    /// The largest body that this replica has to send, in bytes: a peer that accepts less is not spoken to, since the
    /// message would be lost again in every session. At most `frame_bytes_max`. Default: 0, nothing is demanded of
    /// peers.
    pub message_bytes_max: usize,
    /// Bytes that may wait for one peer while it is connected. Default: 64 MiB.
    pub send_queue_bytes_max: usize,
    /// Frames that may wait for one peer while it is connected. Default: 65,536.
    pub send_queue_frames_max: usize,
    /// The pause before the first new attempt to reach a peer. It doubles with every failure. Default: 10 ms.
    pub redial_delay_min: Duration,
    /// The longest pause between attempts to reach a peer. Default: 1 s.
    pub redial_delay_max: Duration,
    /// How long one attempt to connect may take. Default: 2 s.
    pub connect_timeout: Duration,
    /// How long either side of a new connection waits for the other's part of the handshake. Default: 5 s.
    pub handshake_timeout: Duration,
    /// A connection ends when the peer's host answers nothing, or takes no data off a full connection, for this
    /// long. (A process that dies is noticed at once, whatever this is.) Default: 5 s.
    pub silence_max: Duration,
    /// How often a peer is asked, to measure how long it takes to answer. While an answer is outstanding, it is asked
    /// again after four times this. Default: 4 s.
    pub probe_interval: Duration,
    /// Whether a thread that sends writes to the socket itself, as far as that takes its bytes at once, instead of
    /// waking the sender thread of the peer. That saves a switch of threads a message, and takes time of the thread
    /// that sends. Default: false.
    pub direct: bool,
    /// Whether the owner reads what peers send on a thread of its own
    /// ([`Connections::inbox`](crate::Connections::inbox)), which this wakes. Default: there is a thread for each
    /// connection of a peer.
    pub bell: Option<Arc<Bell>>,
    /// The event loop on which that owner is a task, if it is one. Default: it is a thread that waits by itself.
    pub event_loop: Option<Arc<dyn EventLoop>>,
    /// Messages that fit a packet of a link with this MTU, which is in bytes with all headers, leave as datagrams, to
    /// peers that take such ([`Udp`](crate::Udp)). Only without TLS. Default: all messages go over TCP.
    pub datagram_mtu: Option<u16>,
    /// Inbound connections that may exist at a time, those in the middle of a handshake or an inquiry included. When
    /// there are this many, the oldest whose caller has not said yet who it is gives way to a new one. No fewer than
    /// there ever are peers. Default: 64.
    pub inbound_connections_max: usize,
}

impl Config {
    /// The defaults: no peers and nowhere to listen.
    #[must_use]
    pub fn new(cluster: ClusterId, me: ReplicaId, incarnation: Incarnation, birth: u64) -> Config {
        Config {
            cluster,
            me,
            who: Introduction { birth, incarnation, ..Introduction::default() },
            durable: Arc::default(),
            versions: VERSION_OLDEST..=VERSION,
            recognise: Arc::new(|_, _, _| Ok(())),
            outlived: Arc::new(|_, _| {}),
            answer: Arc::new(Bytes::new),
            listen: Vec::new(),
            listen_tls: Vec::new(),
            tls: None,
            listeners: Vec::new(),
            peers: Vec::new(),
            frame_bytes_max: default_frame_bytes_max(),
            message_bytes_max: 0,
            send_queue_bytes_max: 64 * MIB,
            send_queue_frames_max: 65_536,
            redial_delay_min: Duration::from_millis(10),
            redial_delay_max: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(5),
            silence_max: Duration::from_secs(5),
            probe_interval: Duration::from_secs(4),
            direct: false,
            bell: None,
            event_loop: None,
            datagram_mtu: None,
            inbound_connections_max: 64,
        }
    }

    /// This life of this replica, as an end of datagrams.
    pub(crate) fn own_end(&self) -> End {
        End { id: self.me, life: Life::of(&self.who) }
    }

    /// How this replica introduces itself now.
    pub(crate) fn introduction(&self) -> Introduction {
        Introduction { durable: Lsn(self.durable.load(SeqCst)), ..self.who.clone() }
    }

    /// Says what is wrong with the settings, if anything is.
    pub(crate) fn validate(&self) -> Result<(), TransportError> {
        let wrong = |field, reason: String| Err(TransportError::Config { field, reason });
        if self.frame_bytes_max == 0 || u32::try_from(self.frame_bytes_max).is_err() {
            return wrong("frame_bytes_max", format!("{} is not in 1..=4294967295", self.frame_bytes_max));
        }
        if self.message_bytes_max > self.frame_bytes_max {
            let reason = format!(
                "{} is more than frame_bytes_max, which is {}",
                self.message_bytes_max, self.frame_bytes_max
            );
            return wrong("message_bytes_max", reason);
        }
        if self.send_queue_bytes_max < self.frame_bytes_max {
            let reason = format!(
                "{} is less than frame_bytes_max, which is {}",
                self.send_queue_bytes_max, self.frame_bytes_max
            );
            return wrong("send_queue_bytes_max", reason);
        }
        if self.send_queue_frames_max == 0 {
            return wrong("send_queue_frames_max", "0 would let no frame through".into());
        }
        if self.redial_delay_min.is_zero() || self.redial_delay_min > self.redial_delay_max {
            let reason = format!(
                "{:?} is not above zero and at most redial_delay_max, which is {:?}",
                self.redial_delay_min, self.redial_delay_max
            );
            return wrong("redial_delay_min", reason);
        }
        for (field, value) in [
            ("connect_timeout", self.connect_timeout),
            ("handshake_timeout", self.handshake_timeout),
            ("silence_max", self.silence_max),
            ("probe_interval", self.probe_interval),
        ] {
            if value < Duration::from_millis(1) {
                return wrong(field, format!("{value:?} is shorter than 1 ms"));
            }
        }
        if self.tls.is_none() && !self.listen_tls.is_empty() {
            return wrong("listen_tls", "there is no certificate to show at these addresses".into());
        }
        if let Some(mtu) = self.datagram_mtu {
            if datagram::bytes_max(mtu.into(), false).is_none() {
                let reason = format!("{mtu} is not in {}..={}", datagram::MTU_MIN, datagram::MTU_MAX);
                return wrong("datagram_mtu", reason);
            }
            if self.tls.is_some() {
                return wrong("datagram_mtu", "datagrams are not sealed, and peers speak TLS".into());
            }
        }
        check_peers(self.me, &self.peers, self.inbound_connections_max)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("cluster", &self.cluster)
            .field("me", &self.me)
            .field("incarnation", &self.who.incarnation)
            .field("birth", &format_args!("{:016x}", self.who.birth))
            .field("listen", &self.listen)
            .field("listeners", &self.listeners)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

/// See [`Config::frame_bytes_max`].
pub(crate) const fn default_frame_bytes_max() -> usize {
    64 * MIB
}

/// Says what is wrong with a list of peers of `me`, if anything is.
pub(crate) fn check_peers(
    me: ReplicaId,
    peers: &[Peer],
    inbound_connections_max: usize,
) -> Result<(), TransportError> {
    if inbound_connections_max < peers.len() {
        let reason = format!("{inbound_connections_max} is fewer than there are peers ({})", peers.len());
        return Err(TransportError::Config { field: "inbound_connections_max", reason });
    }
    for (i, peer) in peers.iter().enumerate() {
        let wrong = |reason| Err(TransportError::Config { field: "peers", reason });
        if peer.id == me {
            return wrong(format!("{} is this replica itself", peer.id));
        }
        if peers[..i].iter().any(|other| other.id == peer.id) {
            return wrong(format!("{} is named twice", peer.id));
        }
        if host_and_port(&peer.address).is_none() {
            return wrong(format!("{} has the address {:?}, which is not host:port", peer.id, peer.address));
        }
    }
    Ok(())
}

/// What stands before the address of a peer that is called with TLS.
const WITH_TLS: &str = "https://";
/// The end of a message about such an address where there is no TLS.
pub(crate) const NO_TLS: &str = "asks for TLS (https://), and this replica has none for peers: give --peer-cert-file, --peer-key-file and \
     --peer-trusted-ca-file";

/// Whether a peer with this address is called with TLS.
pub(crate) fn is_dialled_with_tls(address: &str) -> bool {
    address.starts_with(WITH_TLS)
}

/// The part of an address that is dialled, if it can be.
pub(crate) fn host_and_port(address: &str) -> Option<&str> {
    let address = address.strip_prefix(WITH_TLS).unwrap_or(address);
    let (host, port) = address.rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)).then_some(address)
}

/// The host in an address that can be dialled.
pub(crate) fn host(address: &str) -> &str {
    let address = host_and_port(address).unwrap_or(address);
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Why a transport does not start, or does not take a list of peers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// A setting has a value that makes no sense.
    #[error("transport setting {field}: {reason}")]
    Config {
        /// The name of the setting in [`Config`].
        field: &'static str,
        /// What is wrong, and what is accepted.
        reason: String,
    },
    /// There are peers, but they could not reach this replica.
    #[error("no address to listen on for peers is given")]
    NoListenAddress,
    /// An address to listen on cannot be had.
    #[error("cannot listen for peers on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// An address to take datagrams at cannot be had.
    #[error(
        "cannot take datagrams at {address}, the address for peers over UDP, which --transport udp needs: {source}"
    )]
    BindDatagrams {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses a thread or a socket.
    #[error("cannot start the transport: {0}")]
    System(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_peers(peers: &[(u64, &str)]) -> Config {
        let peers = peers
            .iter()
            .map(|(id, address)| Peer { id: ReplicaId(*id), address: (*address).into() })
            .collect();
        Config { peers, ..Config::new(ClusterId(1), ReplicaId(1), Incarnation(1), 1) }
    }

    #[test]
    fn the_defaults_are_valid() {
        with_peers(&[(2, "localhost:2380"), (3, "https://[::1]:2380")]).validate().unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let base = with_peers(&[]);
        let cases = [
            (with_peers(&[(1, "a:1")]), "peers: r1 is this replica itself"),
            (with_peers(&[(2, "a:1"), (2, "b:1")]), "r2 is named twice"),
            (with_peers(&[(2, "a")]), "\"a\", which is not host:port"),
            (with_peers(&[(2, ":1")]), "not host:port"),
            (with_peers(&[(2, "a:99999")]), "not host:port"),
            (with_peers(&[(2, "a:0")]), "not host:port"),
            (Config { frame_bytes_max: 0, ..base.clone() }, "frame_bytes_max"),
            (Config { message_bytes_max: usize::MAX, ..base.clone() }, "message_bytes_max"),
            (Config { send_queue_bytes_max: 1, ..base.clone() }, "send_queue_bytes_max"),
            (Config { send_queue_frames_max: 0, ..base.clone() }, "send_queue_frames_max"),
            (Config { redial_delay_min: Duration::from_secs(9), ..base.clone() }, "redial_delay_min"),
            (Config { silence_max: Duration::ZERO, ..base.clone() }, "silence_max"),
            (Config { probe_interval: Duration::ZERO, ..base.clone() }, "probe_interval"),
            (
                Config { datagram_mtu: Some(1279), ..base.clone() },
                "datagram_mtu: 1279 is not in 1280..=65535",
            ),
            (Config { inbound_connections_max: 0, ..with_peers(&[(2, "a:1")]) }, "inbound_connections_max"),
        ];
        for (config, expected) in cases {
            let error = config.validate().expect_err(expected).to_string();
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
    }
}
