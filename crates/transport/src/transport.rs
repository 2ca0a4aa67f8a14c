//! The parts put together: start, the sending side's handle, metrics, shutdown.

use std::{
    fmt,
    net::SocketAddr,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use synod_metrics::Durations;
use synod_sync::{
    Arc, Mutex,
    atomic::AtomicBool,
    net::{self, TcpListener},
    thread::{self, JoinHandle},
    time::Instant,
};
use synod_wire::{Encoded, GROUPS_SINCE, GroupId, Incarnation, Lsn, ReplicaId};
use tracing::{error, warn};

use crate::{
    Config, Obstacle, Peer, TransportError,
    complaint::{LeftOut, Repeats},
    datagram::{
        self, Drops,
        incoming::{self, Incoming},
    },
    handshake::Welcome,
    inbound::{self, Speaks},
    inbox::{Entrance, TcpInbox, inbox},
    network::Sink,
    peers::{self, Peers, Supervisor},
    sync::lock,
};

/// What happens between this replica and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session to the peer began: this replica's own connection to it is open, and the peer welcomed it. What was
    /// sent before may have been lost.
    Up {
        /// The peer.
        peer: ReplicaId,
        /// Which life of the peer it is.
        incarnation: Incarnation,
    },
    /// The session to the peer ended. Of what was sent in it, a suffix may have been lost.
    Down {
        /// The peer.
        peer: ReplicaId,
    },
    /// The system of the peer refuses connections: nobody listens there, so the process of the peer has ended, or has
    /// not begun to listen. Told once between two sessions.
    Refused {
        /// The peer.
        peer: ReplicaId,
    },
    /// What arrives from the peer after this comes from this life of it, until the next event of this kind. It comes
    /// before the first message of each session in which the peer sends.
    Met {
        /// The peer.
        peer: ReplicaId,
        /// The birth of its data directory.
        birth: u64,
        /// Which life of the peer it is.
        incarnation: Incarnation,
        /// The life with which its memory begins ([`synod_wire::Introduction::since`]).
        since: Incarnation,
        /// The version in which it sends.
        version: u16,
    },
    /// A whole, intact message body arrived.
    Received {
        /// The sender.
        from: ReplicaId,
        /// The version in which it is written: not above the one that the two replicas agreed on.
        version: u16,
        /// The group that it is of.
        group: GroupId,
        /// The body, in an allocation of its own size.
        body: Bytes,
    },
}

/// Why the owner of a transport cannot read a body that arrived. The connection that brought it is closed, with this
/// reason in the log: what was sent after it may rest on it, so it must not be skipped within a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message makes no sense: {0}")]
pub struct Unreadable(pub String);

/// What all threads of a transport share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) peers: Arc<Peers>,
    /// How many inquiries are being answered.
    pub(crate) inquiries: AtomicUsize,
    pub(crate) inquiry_lines: Mutex<Repeats>,
    sink: Box<Sink>,
    /// Where sessions are handed over that the owner reads itself.
    pub(crate) entrance: Option<Entrance>,
    /// What takes datagrams, if any are.
    pub(crate) incoming: Option<Arc<Incoming>>,
    stopping: AtomicBool,
    complaints: Mutex<Repeats>,
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// What a caller that is welcome learns.
    pub(crate) fn introduction(&self, version: u16) -> Welcome {
        let frame_bytes_max = self.config.frame_bytes_max;
        let datagram_mtu = self.config.datagram_mtu.unwrap_or(0);
        Welcome { version, who: self.config.introduction(), frame_bytes_max, datagram_mtu }
    }

    /// Tells the owner of the transport, unless it has ended it.
    ///
    /// # Errors
    /// The owner cannot read what arrived.
    pub(crate) fn emit(&self, events: Vec<Event>) -> Result<(), Unreadable> {
        if self.is_stopping() || events.is_empty() { Ok(()) } else { (self.sink)(events) }
    }

    /// Tells the owner that a session began or ended, which is always understood.
    pub(crate) fn tell(&self, event: Event) {
        if let Err(error) = self.emit(vec![event]) {
            warn!("the owner of the transport does not understand a change of sessions: {error}");
        }
    }

    /// Writes a log line about something that strangers may cause at any rate: one a minute of a kind.
    pub(crate) fn complain(&self, kind: &str, text: impl FnOnce() -> String) {
        let left_out = lock(&self.complaints).admit(kind);
        if let Some(left_out) = left_out {
            warn!("{}{left_out}", text());
        }
    }
}

/// The connections of one replica with all its peers.
///
/// Dropping it is a [`shutdown`](Transport::shutdown).
pub struct Transport {
    shared: Arc<Shared>,
    sender: TcpSender,
    local_addresses: Vec<SocketAddr>,
    /// Until the owner has it.
    pub(crate) inbox: Option<TcpInbox>,
    /// Dropping them wakes the threads that accept, and that take datagrams.
    wake: Vec<net::Waker>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("me", &self.shared.config.me)
            .field("local_addresses", &self.local_addresses)
            .finish_non_exhaustive()
    }
}

impl Transport {
    /// Listens on `config.listen` and begins to dial the peers.
    ///
    /// `sink` is called from the receiver threads (`Met` and `Received`; one thread a peer at a time, in the order in
    /// which the peer sent) and from the sender threads (`Up`, `Down` and `Refused`, in turn for each peer). It may
    /// block: then that peer's connection is not read, and TCP pushes back. It must return once the transport is being
    /// shut down, which waits for it, and must not shut it down itself.
    ///
    /// If it returns an error for a `Received`, the connection that brought the body is closed, the reason goes into
    /// the log, and nothing that was sent after that body is delivered: a session has no gaps. The peer notices the
    /// end of its session and begins another. For the other events it returns `Ok`.
    ///
    /// # Errors
    /// If a setting is wrong, an address cannot be listened on, or the system is out of threads or sockets.
    pub fn start(
        config: Config,
        sink: impl Fn(Event) -> Result<(), Unreadable> + Send + Sync + 'static,
    ) -> Result<Transport, TransportError> {
        Transport::start_with(config, one_by_one(sink))
    }

    /// The same with a sink that takes several events at a time; see [`Network::start`](crate::Network::start).
    pub(crate) fn start_with(config: Config, sink: Box<Sink>) -> Result<Transport, TransportError> {
        if !config.listeners.is_empty() {
            let listeners = config.listeners.iter().map(|listener| listener.try_clone());
            let listeners = listeners.collect::<Result<_, _>>()?;
            return Transport::begin_on(config, listeners, sink);
        }
        let bind = |address: &SocketAddr| {
            TcpListener::bind(address).map_err(|source| TransportError::Bind { address: *address, source })
        };
        let plain = config.listen.iter().map(|address| match config.listen_tls.contains(address) {
            true => (address, Speaks::Either),
            false => (address, Speaks::Plain),
        });
        let with_tls = config.listen_tls.iter().filter(|address| !config.listen.contains(address));
        let all = plain.chain(with_tls.map(|address| (address, Speaks::Tls)));
        let listeners = all.map(|(address, speaks)| bind(address).map(|listener| (listener, speaks)));
        let listeners = listeners.collect::<Result<_, _>>()?;
        Transport::begin(config, listeners, sink)
    }

    /// Like [`Transport::start`], with listeners that exist already instead of `config.listen`: with ports that the
    /// system chose, every replica's address must be known before the first one starts.
    ///
    /// # Errors
    /// As those of [`Transport::start`].
    pub fn start_on(
        config: Config,
        listeners: Vec<TcpListener>,
        sink: impl Fn(Event) -> Result<(), Unreadable> + Send + Sync + 'static,
    ) -> Result<Transport, TransportError> {
        Transport::begin_on(config, listeners, one_by_one(sink))
    }

    fn begin_on(
        config: Config,
        listeners: Vec<TcpListener>,
        sink: Box<Sink>,
    ) -> Result<Transport, TransportError> {
        let speaks = if config.tls.is_some() { Speaks::Tls } else { Speaks::Plain };
        let listeners = listeners.into_iter().map(|listener| (listener, speaks)).collect();
        Transport::begin(config, listeners, sink)
    }

    fn begin(
        config: Config,
        listeners: Vec<(TcpListener, Speaks)>,
        sink: Box<Sink>,
    ) -> Result<Transport, TransportError> {
        config.validate()?;
        let peers = Arc::new(Peers::new(&config, !listeners.is_empty())?);
        let mut local_addresses = Vec::new();
        for (listener, _) in &listeners {
            listener.set_nonblocking(true)?;
            local_addresses.push(listener.local_addr()?);
        }
        let listen = |mtu: u16| Incoming::listen(&local_addresses, mtu.into()).map(Arc::new);
        let incoming = config.datagram_mtu.map(listen).transpose()?;
        let sender = TcpSender {
            routes: Arc::new(Routes {
                frame_bytes_max: config.frame_bytes_max,
                oldest: *config.versions.start(),
                peers: Arc::clone(&peers),
                unroutable: AtomicU64::new(0),
                complaints: Mutex::default(),
                datagram_body_max: incoming
                    .as_ref()
                    .map_or(0, |incoming| datagram::body_bytes_max(incoming.bytes_max)),
                drops: incoming.as_ref().map(|incoming| Arc::clone(&incoming.drops)),
            }),
        };
        let inbox = |bell| inbox(bell, config.event_loop.clone(), incoming.clone());
        let (entrance, inbox) = config.bell.clone().map(inbox).unzip();
        let shared = Arc::new(Shared {
            config,
            peers,
            inquiries: AtomicUsize::new(0),
            inquiry_lines: Mutex::default(),
            sink,
            entrance,
            incoming,
            stopping: AtomicBool::new(false),
            complaints: Mutex::default(),
        });
        let mut transport =
            Transport { shared, sender, local_addresses, inbox, wake: Vec::new(), threads: Vec::new() };
        // If a thread cannot be had, dropping the transport ends those that run.
        transport.start_threads(listeners)?;
        Ok(transport)
    }

    fn start_threads(&mut self, listeners: Vec<(TcpListener, Speaks)>) -> Result<(), TransportError> {
        let supervisor = Supervisor::start(Arc::clone(&self.shared))?;
        self.threads.push(thread::Builder::new().name("peers".into()).spawn(|| supervisor.run())?);
        let (wake, woken) = net::waker()?;
        self.wake.push(wake);
        let shared = Arc::clone(&self.shared);
        let (listeners, speak): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
        let accept = move || inbound::accept(&shared, &listeners, &speak, &woken);
        self.threads.push(thread::Builder::new().name("accept".into()).spawn(accept)?);
        // The owner of an inbox takes datagrams itself.
        if let (Some(incoming), None) = (&self.shared.incoming, &self.inbox) {
            let (wake, woken) = net::waker()?;
            self.wake.push(wake);
            let (shared, incoming) = (Arc::clone(&self.shared), Arc::clone(incoming));
            let take = move || incoming::run(&shared, &incoming, &woken);
            self.threads.push(thread::Builder::new().name("datagrams".into()).spawn(take)?);
        }
        Ok(())
    }

    /// Where this replica accepts connections.
    #[must_use]
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.local_addresses
    }

    /// A handle to send with. It may outlive the transport, and then drops everything.
    #[must_use]
    pub fn sender(&self) -> TcpSender {
        self.sender.clone()
    }

    /// Changes who the peers are; see [`TcpSender::set_peers`].
    ///
    /// # Errors
    /// As those of [`TcpSender::set_peers`].
    pub fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError> {
        self.sender.set_peers(peers)
    }

    /// How things stand now.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.sender.metrics()
    }

    /// Stops accepting, closes all connections, drops what is queued, and waits for all threads. No event follows.
    ///
    /// A name resolution or a connection attempt under way is left to end by itself, within
    /// [`Config::connect_timeout`] or whatever time the system's resolver takes.
    pub fn shutdown(self) {
        drop(self);
    }
}

/// A sink that gives its events to `sink`.
fn one_by_one(sink: impl Fn(Event) -> Result<(), Unreadable> + Send + Sync + 'static) -> Box<Sink> {
    Box::new(move |events| events.into_iter().try_for_each(&sink))
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Relaxed);
        self.inbox = None;
        self.shared.peers.stop();
        self.wake.clear();
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                error!("the thread {name} panicked");
            }
        }
    }
}

/// Sends frames to peers; cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct TcpSender {
    /// Apart from the sink, which may hold a sender itself.
    routes: Arc<Routes>,
}

#[derive(Debug)]
struct Routes {
    frame_bytes_max: usize,
    /// The oldest version of messages, which every peer understands.
    oldest: u16,
    peers: Arc<Peers>,
    unroutable: AtomicU64,
    complaints: Mutex<Repeats>,
    /// The largest body that any datagram has room for, in bytes; 0 without datagrams.
    datagram_body_max: usize,
    drops: Option<Arc<Drops>>,
}

impl Routes {
    /// Whether to write that messages of this kind are dropped, and how many lines were left out before.
    fn admit(&self, kind: &str) -> Option<LeftOut> {
        lock(&self.complaints).admit(kind)
    }
}

impl TcpSender {
    /// Queues a message for `to` and has it leave, and never blocks.
    ///
    /// If the queue is full its oldest frames are dropped and the session to the peer is ended, since a session has
    /// no gaps: `Down` and `Up` follow. While there is no session, only the newest frames are kept, up to a
    /// sixteenth of the queue's bounds. A body above `frame_bytes_max` (this replica's or the peer's) is dropped and
    /// ends the session too; one for a replica that is no peer is dropped with a log line. Everything dropped is
    /// counted.
    ///
    /// The message is written in the oldest version that this build speaks; see [`TcpSender::send_in`].
    pub fn send(&self, to: ReplicaId, body: Encoded) {
        self.send_many(&[to], body);
    }

    /// Queues a message of a group for several peers that is written in this version, as [`TcpSender::version`] named
    /// it a moment ago; it leaves at the latest at the next [`TcpSender::flush`]. If that is not spoken any more when
    /// it would leave, it is lost with the session that it was made for. Its buffers are shared, not copied. In a
    /// version that knows no groups nothing is said of another one than the first: such a message is dropped and
    /// counted, and the session goes on.
    pub fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded) {
        self.queue(version, group, to, body);
    }

    /// Has everything leave that was queued. Never blocks for a peer.
    pub fn flush(&self) {
        self.routes.peers.table().iter().for_each(|link| link.flush());
    }

    /// The version in which a message for this peer is to be written: the one that the two replicas agreed on; while
    /// there is no session, the oldest.
    #[must_use]
    pub fn version(&self, to: ReplicaId) -> u16 {
        peers::find(&self.routes.peers.table(), to).map_or(self.routes.oldest, |link| link.version())
    }

    /// How far the latest life of each peer, by its nonce, has told: what it said rests on its log through this record.
    #[must_use]
    pub fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)> {
        let heard =
            |link: &Arc<crate::link::Link>| link.heard().map(|(nonce, told)| (link.id(), nonce, told));
        self.routes.peers.table().iter().filter_map(heard).collect()
    }

    /// Makes `peers` the peers of this replica, in place of those before. Returns at once: the calling thread only
    /// swaps a table, and another one does the rest.
    ///
    /// - A peer that is new is dialled, and welcomed when it calls. What is sent to it is queued from now on.
    /// - One that left is refused when it calls. Its connections are closed, with a `Down` if there was a session,
    ///   and what waits for it is dropped. Of its events a last few may still follow, but none after the first of a
    ///   later session, should it become a peer again.
    /// - One with another address is dialled there, after a `Down` if there was a session. What waits for it is kept
    ///   as for every peer that is away, and what it sends on its own connection is not touched.
    /// - Nothing happens to the others.
    ///
    /// After the end of the transport it does nothing.
    ///
    /// # Errors
    /// A list that [`Transport::start`] would not take either; then the peers remain as they were.
    pub fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError> {
        self.routes.peers.set(peers)
    }

    /// Queues one message for several peers, and has it leave. Its buffers are shared, not copied.
    pub fn send_many(&self, to: &[ReplicaId], body: Encoded) {
        self.queue(self.routes.oldest, GroupId::FIRST, to, body);
        self.flush();
    }

    fn queue(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded) {
        let routes = &*self.routes;
        let table = routes.peers.table();
        if group != GroupId::FIRST && version < GROUPS_SINCE {
            to.iter().filter_map(|id| peers::find(&table, *id)).for_each(|link| link.count_dropped(1));
            return;
        }
        let length = body.len();
        if length > routes.frame_bytes_max {
            let links = to.iter().filter_map(|id| peers::find(&table, *id));
            links.for_each(|link| link.drop_too_large(length, routes.frame_bytes_max));
            if let Some(left_out) = routes.admit("too large") {
                let max = routes.frame_bytes_max;
                error!("dropped a message of {length} bytes: frame_bytes_max is {max}{left_out}");
            }
            return;
        }
        let mut shared = None;
        let may_fit = routes.datagram_body_max > 0 && length <= routes.datagram_body_max;
        for id in to {
            match peers::find(&table, *id) {
                Some(link) if may_fit && link.put_in_datagram(version, group, &body) => {}
                Some(link) => {
                    let frame =
                        shared.get_or_insert_with(|| Arc::new(link.frame(version, group, body.clone())));
                    link.enqueue(Arc::clone(frame));
                }
                None => {
                    routes.unroutable.fetch_add(1, Relaxed);
                    if let Some(left_out) = routes.admit(&id.to_string()) {
                        error!("dropped a message for {id}, which is not a peer{left_out}");
                    }
                }
            }
        }
    }

    /// How things stand now.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics {
            peers: self.routes.peers.table().iter().map(|link| link.metrics()).collect(),
            frames_unroutable: self.routes.unroutable.load(Relaxed),
            datagrams_dropped: self.routes.drops.as_ref().map_or_else(Vec::new, |drops| drops.counts()),
        }
    }
}

/// A replica that runs calls more often than this: an attempt has [`Config::connect_timeout`] and the pause after it.
const CALLS_WITHIN: Duration = Duration::from_secs(10);

/// The state of a transport at one moment.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// One entry for each present peer, in the order in which they were given.
    pub peers: Vec<PeerMetrics>,
    /// Messages for replicas that are no peers.
    pub frames_unroutable: u64,
    /// How many packets were dropped that came where datagrams are taken, by the name of each reason. Empty if none are
    /// taken.
    pub datagrams_dropped: Vec<(&'static str, u64)>,
}

/// The state of the connections with one peer. Counts are totals since it became one; bytes include frame headers, and
/// those of datagrams.
#[derive(Clone, Debug)]
pub struct PeerMetrics {
    /// The peer.
    pub peer: ReplicaId,
    /// When the session to it began, if there is one.
    pub connected_since: Option<Instant>,
    /// Whether it has answered probes in this session ([`Config::probe_interval`]), and has not for five intervals: its
    /// process hangs, or its machine, and the connections stay open.
    pub is_silent: bool,
    /// When it answered again after that, if it was silent in this session.
    pub back_since: Option<Instant>,
    /// What the last attempt to reach it met, if that failed. `None` in a session, and before the first attempt.
    pub obstacle: Option<Obstacle>,
    /// Whether there is a session from it.
    pub receiving: bool,
    /// When a replica that called under its id was last refused.
    pub turned_away: Option<Instant>,
    /// Sessions to it that ever began; all but the first are reconnects.
    pub sessions: u64,
    /// Frames that were handed to the system as a whole.
    pub frames_sent: u64,
    /// Bytes of these frames.
    pub bytes_sent: u64,
    /// Gathers in which they were written: `frames_sent / writes` frames left together on average.
    pub writes: u64,
    /// Frames that arrived whole and intact.
    pub frames_received: u64,
    /// Bytes of these frames.
    pub bytes_received: u64,
    /// Frames that never left: the queue was full, they were too large, of a group that the peer's version does not
    /// know, or the transport was shut down.
    pub frames_dropped: u64,
    /// Frames from the peer that make no sense, or carry a message that makes none. Each ended its session.
    pub frames_refused: u64,
    /// Frames that wait now.
    pub queue_frames: usize,
    /// Bytes of these frames.
    pub queue_bytes: usize,
    /// Whether messages that fit a packet leave as datagrams now: the peer takes them, and says that they arrive.
    pub takes_datagrams: bool,
    /// Datagrams with messages that were handed to the system.
    pub datagrams_sent: u64,
    /// Messages that left in datagrams, or were lost with one that the system did not take.
    pub datagram_messages_sent: u64,
    /// Datagrams that the system did not take.
    pub datagrams_unsent: u64,
    /// Sound datagrams with messages from the peer.
    pub datagrams_received: u64,
    /// How long it took from each probe to the peer's answer ([`Config::probe_interval`]).
    pub round_trips: Arc<Durations>,
}

impl PeerMetrics {
    /// Whether there is a session to it.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.connected_since.is_some()
    }

    /// Since when there is a session to it, if there is one from it, too, and it answers: where packets are dropped in
    /// one direction only, or a peer refuses to call, the other session tells.
    #[must_use]
    pub fn up_since(&self) -> Option<Instant> {
        let since = self.connected_since.filter(|_| self.receiving && !self.is_silent)?;
        Some(self.back_since.map_or(since, |back| back.max(since)))
    }

    /// Whether a replica of its id calls this one, or did a moment ago, welcome or not: its process runs.
    #[must_use]
    pub fn calls(&self) -> bool {
        self.receiving || self.turned_away.is_some_and(|at| at.elapsed() < CALLS_WITHIN)
    }
}
