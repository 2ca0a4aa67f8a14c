//! What this replica's threads share about one peer: the queue to it, and the state of the connection that it
//! dials for its own sending.

use std::{
    fmt,
    io::{self, ErrorKind, IoSlice},
    mem,
    sync::atomic::{
        AtomicU16, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use synod_metrics::Durations;
use synod_sync::{
    Arc, Condvar, Mutex, MutexGuard, Planted,
    atomic::AtomicBool,
    net::{Shutdown, TcpStream},
    planted,
    time::Instant,
};
use synod_wire::{ClusterId, Encoded, GroupId, Lsn, ReplicaId};

use crate::{
    Config, Obstacle, ObstacleKind, Peer, PeerMetrics,
    datagram::outgoing::{self, Path},
    frame::Frame,
    handshake::Life,
    inbound::Turn,
    probe::{PROBE_BYTES, Probe, Probes},
    queue::{Bounds, FrameQueue},
    stream::Stream,
    sync::{lock, wait, wait_while},
};

/// While a peer is away, this part of the queue's bounds is kept for it: enough for what a protocol says at
/// the beginning, and little enough that a peer that was away for long does not get many stale messages.
const AWAY_SHARE: usize = 16;

/// How long a peer may be sent nothing before it is told how far this replica's log has become durable.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

/// One peer, as all threads see it.
#[derive(Debug)]
pub(crate) struct Link {
    id: ReplicaId,
    pub(crate) counters: Counters,
    /// Which of the peer's inbound connections may deliver.
    pub(crate) turn: Turn,
    /// Whether its sender thread runs, and nothing is left of an earlier link to the same replica.
    ready: AtomicBool,
    /// The latest life of the peer that was seen on any connection.
    latest: Mutex<Option<Life>>,
    /// The nonce of the peer's life, and the last record of its log that something it said rests on.
    heard: Mutex<Option<(u64, Lsn)>>,
    /// When a replica of this id was last refused that called.
    turned_away: Mutex<Option<Instant>>,
    /// The version of the session; the oldest while there is none.
    spoken: AtomicU16,
    own: Own,
    bounds: LinkBounds,
    out: Mutex<Outgoing>,
    /// Wakes the sender thread, the only one that waits.
    out_changed: Condvar,
    /// See [`Config::direct`].
    direct: bool,
}

/// Frames that are being written.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    pub(crate) frames: Vec<Arc<Frame>>,
    /// Bytes of the first one that were written already.
    pub(crate) written: usize,
}

/// Totals since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) frames_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) frames_received: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) frames_dropped: AtomicU64,
    pub(crate) frames_refused: AtomicU64,
    pub(crate) sessions: AtomicU64,
    pub(crate) receiving: AtomicBool,
    pub(crate) round_trips: Arc<Durations>,
    pub(crate) datagrams_received: AtomicU64,
    datagrams: outgoing::Counters,
}

/// What may wait for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkBounds {
    connected: Bounds,
    away: Bounds,
    direct: bool,
}

impl LinkBounds {
    pub(crate) fn new(config: &Config) -> LinkBounds {
        let connected = Bounds { frames: config.send_queue_frames_max, bytes: config.send_queue_bytes_max };
        let away =
            Bounds { frames: (connected.frames / AWAY_SHARE).max(1), bytes: connected.bytes / AWAY_SHARE };
        LinkBounds { connected, away, direct: config.direct }
    }
}

/// What a link itself tells about this replica.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    cluster: ClusterId,
    /// The oldest version of messages, which every peer understands with which there can be a session.
    oldest: u16,
    /// How far this replica's log is durable ([`Config::durable`]).
    durable: Arc<AtomicU64>,
    probe_interval: Duration,
}

impl Own {
    pub(crate) fn new(config: &Config) -> Own {
        let oldest = *config.versions.start();
        let Config { cluster, probe_interval, .. } = *config;
        Own { cluster, oldest, durable: Arc::clone(&config.durable), probe_interval }
    }

    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.durable.load(SeqCst))
    }
}

/// The address at which the peer is dialled.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: Arc<str>,
    /// How many addresses the peer had before this one.
    pub(crate) version: u64,
}

#[derive(Debug)]
struct Outgoing {
    target: Target,
    queue: FrameQueue,
    phase: Phase,
    /// How far the log was durable when the last frame of the session was made.
    marked: Lsn,
    probes: Probes,
    /// Whether the sender thread sleeps until a frame comes, so that the thread that adds one must wake it.
    /// It is false while the sender is at work, so that a busy sender costs its callers no system call.
    awaits_frames: bool,
    /// Whether a thread that sends writes to the socket itself. The sender thread takes no frames meanwhile.
    writes_directly: bool,
    /// What such a thread could not write at once. The sender thread goes on with it.
    rest: Gather,
    /// Memory for the next thread that writes itself.
    spare: Vec<Arc<Frame>>,
    /// Whether the peer was seen to be alive, so that the next attempt to reach it need not wait.
    redial_now: bool,
    /// Why the last attempt to reach the peer failed, if it did.
    obstacle: Option<Obstacle>,
    stopped: bool,
    /// The result of the connection attempt under way.
    dialed: Option<io::Result<TcpStream>>,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Away,
    Handshake(Arc<TcpStream>),
    Session {
        stream: Arc<Stream>,
        life: Life,
        version: u16,
        /// The largest body that the peer takes.
        body_bytes_max: usize,
        /// The way for what fits a packet, if the peer takes datagrams.
        path: Option<Box<Path>>,
        began: Instant,
        /// Why the session is over, if it is and the sender thread has yet to notice.
        end: Option<SessionEnd>,
    },
}

/// Why an outgoing session is over.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    Closed,
    UnexpectedData,
    Failed(io::Error),
    Stalled(Duration),
    Overflow,
    TooLarge { body: usize, max: usize },
    NewerLife(Life),
    Moved,
    Stopped,
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionEnd::Closed => f.write_str("the peer closed the connection"),
            SessionEnd::UnexpectedData => {
                f.write_str("the peer sent data on a connection that is not its to send on")
            }
            SessionEnd::Failed(error) => error.fmt(f),
            SessionEnd::Stalled(time) => write!(f, "the peer took no data for {time:?}"),
            SessionEnd::Overflow => {
                f.write_str("the send queue overflowed, and the oldest frames were dropped")
            }
            SessionEnd::TooLarge { body, max } => {
                write!(f, "a message of {body} bytes was dropped: frame_bytes_max is {max}")
            }
            SessionEnd::NewerLife(life) => {
                write!(f, "the peer was started again (incarnation {})", life.incarnation)
            }
            SessionEnd::Moved => f.write_str("the peer has a new address"),
            SessionEnd::Stopped => f.write_str("it is no peer any more, or the transport is shutting down"),
        }
    }
}

impl Link {
    pub(crate) fn new(peer: Peer, bounds: LinkBounds, own: Own) -> Link {
        let probes = Probes::new(own.probe_interval);
        Link {
            id: peer.id,
            counters: Counters::default(),
            turn: Turn::default(),
            ready: AtomicBool::new(false),
            latest: Mutex::new(None),
            heard: Mutex::new(None),
            turned_away: Mutex::new(None),
            spoken: AtomicU16::new(own.oldest),
            own,
            bounds,
            out: Mutex::new(Outgoing {
                target: Target { address: peer.address.into(), version: 0 },
                queue: FrameQueue::default(),
                phase: Phase::Away,
                marked: Lsn::ZERO,
                probes,
                awaits_frames: false,
                writes_directly: false,
                rest: Gather::default(),
                spare: Vec::new(),
                redial_now: false,
                obstacle: None,
                stopped: false,
                dialed: None,
            }),
            out_changed: Condvar::new(),
            direct: bounds.direct,
        }
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.id
    }

    /// Whether the peer may be received from.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Relaxed);
    }

    /// Where to dial.
    pub(crate) fn target(&self) -> Target {
        lock(&self.out).target.clone()
    }

    /// Makes `address` the one at which the peer is dialled. If that is another one than before, what is
    /// under way with the old one ends; what the peer sends on a connection of its own is not affected.
    pub(crate) fn move_to(&self, address: &str) {
        {
            let mut out = lock(&self.out);
            if *out.target.address == *address {
                return;
            }
            out.target = Target { address: address.into(), version: out.target.version + 1 };
            out.obstacle = None;
            out.redial_now = true;
            out.end_attempt(SessionEnd::Moved);
        }
        self.out_changed.notify_one();
    }

    /// Queues a frame, which leaves at the latest at the next [`Link::flush`]. Never waits for the network.
    ///
    /// A frame that is dropped in the middle of a session would leave a gap of which no replica is told. So
    /// dropping ends the session: the gap is between two sessions, where every protocol expects one.
    pub(crate) fn enqueue(&self, frame: Arc<Frame>) {
        let dropped = {
            let mut out = lock(&self.out);
            let agreed = match out.phase {
                Phase::Session { version, .. } => version,
                _ => u16::MAX,
            };
            // A frame of a version that is not spoken any more was made for an earlier session, and is lost with that.
            if out.stopped || frame.version() > agreed {
                1
            } else {
                let connected = matches!(out.phase, Phase::Session { end: None, .. });
                let bounds = if connected { self.bounds.connected } else { self.bounds.away };
                let dropped = out.queue.push(frame, bounds);
                if connected && dropped > 0 {
                    out.end_session(SessionEnd::Overflow);
                }
                dropped
            }
        };
        self.count_dropped(dropped);
    }

    /// Takes a message that may leave as a datagram; says whether it did. It leaves at the latest at the next
    /// [`Link::flush`].
    pub(crate) fn put_in_datagram(&self, version: u16, group: GroupId, body: &Encoded) -> bool {
        let mut out = lock(&self.out);
        match &mut out.phase {
            Phase::Session { path: Some(path), body_bytes_max, end: None, .. } => {
                let fits = body.len() <= *body_bytes_max;
                fits && path.put(version, group, body, self.own.durable(), &self.counters.datagrams)
            }
            _ => false,
        }
    }

    /// Has the queued frames leave now: the sender thread is woken, or this thread writes to the socket itself. Never
    /// waits for the network.
    pub(crate) fn flush(&self) {
        let mut out = lock(&self.out);
        if let Phase::Session { path: Some(path), end: None, .. } = &mut out.phase {
            path.flush(self.own.durable(), &self.counters.datagrams);
        }
        if !out.awaits_frames || out.queue.frames() == 0 {
            return;
        }
        if self.direct {
            self.write_directly(out);
        } else {
            out.awaits_frames = false;
            drop(out);
            self.wake_sender();
        }
    }

    fn wake_sender(&self) {
        if !planted(Planted::NoWakeForFrames) {
            self.out_changed.notify_one();
        }
    }

    /// Writes what the socket takes at once, for as long as frames are queued, and leaves the rest to the sender
    /// thread, which sleeps.
    fn write_directly<'a>(&'a self, mut out: MutexGuard<'a, Outgoing>) {
        // If another thread writes, it looks at the queue once more before it ends.
        if mem::replace(&mut out.writes_directly, true) {
            return;
        }
        let mut gather = Gather { frames: mem::take(&mut out.spare), written: 0 };
        let mut leave_to_sender = false;
        while let Phase::Session { stream, body_bytes_max, end: None, .. } = &out.phase
            && !leave_to_sender
        {
            let (stream, body_bytes_max) = (Arc::clone(stream), *body_bytes_max);
            out.queue.take(&mut gather.frames);
            let Some(last) = gather.frames.last() else { break };
            out.marked = last.durable();
            if gather.frames.iter().any(|frame| frame.body_len() > body_bytes_max) {
                leave_to_sender = true;
                break;
            }
            drop(out);
            let written = stream.write_at_once(&gather.slices());
            out = lock(&self.out);
            match written {
                Ok(bytes) => self.counters.count_written(gather.advance(bytes)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => out.end_session(SessionEnd::Failed(error)),
            }
            leave_to_sender = !gather.frames.is_empty();
        }
        out.writes_directly = false;
        // What is left is the beginning of what the sender thread goes on with, or queues again if the session is over.
        if leave_to_sender {
            out.rest = gather;
        } else {
            out.spare = gather.frames;
        }
        let is_over = !matches!(out.phase, Phase::Session { end: None, .. });
        if leave_to_sender || is_over {
            out.awaits_frames = false;
            drop(out);
            self.wake_sender();
        }
    }

    /// Drops a frame that this replica or the peer has no room for, which must not leave a gap either.
    pub(crate) fn drop_too_large(&self, body: usize, max: usize) {
        self.count_dropped(1);
        self.end_session(SessionEnd::TooLarge { body, max });
    }

    pub(crate) fn count_dropped(&self, frames: usize) {
        if frames > 0 {
            self.counters.frames_dropped.fetch_add(frames as u64, Relaxed);
        }
    }

    /// Waits for frames, and takes as many as one write should carry; returns false once the session is over. If
    /// there is nothing to send for a while, the peer is told nevertheless how far the log has become durable. Now and
    /// then there is a probe among them.
    pub(crate) fn next_frames(&self, gather: &mut Gather) -> bool {
        let in_session = |out: &Outgoing| matches!(out.phase, Phase::Session { end: None, .. });
        let mut out = lock(&self.out);
        let mut waited = false;
        loop {
            if !in_session(&out) {
                return false;
            }
            let patience = match &mut out.phase {
                Phase::Session { path: Some(path), .. } => path.probe(Instant::now()).min(MARK_INTERVAL),
                _ => MARK_INTERVAL,
            };
            if !out.rest.frames.is_empty() {
                *gather = mem::take(&mut out.rest);
                out.awaits_frames = false;
                return true;
            }
            if self.admits_probe(&out)
                && let Some(probe) = out.probes.ask()
            {
                self.queue_probe(&mut out, probe);
            }
            if !out.writes_directly {
                out.queue.take(&mut gather.frames);
                let durable = self.own.durable();
                if gather.frames.is_empty() && waited && durable > out.marked {
                    gather.frames.push(Arc::new(Frame::mark(self.own.cluster, durable)));
                }
                if let Some(last) = gather.frames.last() {
                    out.marked = last.durable();
                    out.awaits_frames = false;
                    return true;
                }
            }
            out.awaits_frames = true;
            let nothing = |out: &mut Outgoing| out.awaits_frames && in_session(out);
            out = wait_while(&self.out_changed, out, patience, nothing);
            waited = patience == MARK_INTERVAL;
        }
    }

    /// The version in which messages to the peer are written.
    pub(crate) fn version(&self) -> u16 {
        self.spoken.load(Relaxed)
    }

    /// A frame for the peer.
    pub(crate) fn frame(&self, version: u16, group: GroupId, body: Encoded) -> Frame {
        Frame::new(self.own.cluster, version, group, self.own.durable(), body)
    }

    /// The nonce of the peer's life, and the last record of its log that something it said rests on.
    pub(crate) fn heard(&self) -> Option<(u64, Lsn)> {
        *lock(&self.heard)
    }

    /// Records a life of the peer that is welcome, and introduced itself with a log through `durable`.
    pub(crate) fn hear_life(&self, nonce: u64, durable: Lsn) {
        let mut heard = lock(&self.heard);
        let before = heard.filter(|(known, _)| *known == nonce).map_or(Lsn::ZERO, |(_, told)| told);
        *heard = Some((nonce, before.max(durable)));
    }

    /// Records that the peer said something that rests on its log through `durable`, in the life with this nonce.
    pub(crate) fn hear(&self, nonce: u64, durable: Lsn) {
        if let Some((known, told)) = &mut *lock(&self.heard)
            && *known == nonce
        {
            *told = durable.max(*told);
        }
    }

    /// Hands over the result of an attempt to connect to the `version`th address, if that is still needed.
    pub(crate) fn put_dialed(&self, version: u64, result: io::Result<TcpStream>) {
        {
            let mut out = lock(&self.out);
            if !out.goes_on(version) {
                return;
            }
            out.dialed = Some(result);
        }
        self.out_changed.notify_one();
    }

    /// Waits for the connection attempt under way; `None` if the link is stopped or the peer moved.
    pub(crate) fn wait_dialed(&self, version: u64) -> Option<io::Result<TcpStream>> {
        let mut out = lock(&self.out);
        while out.goes_on(version) {
            if let Some(result) = out.dialed.take() {
                return Some(result);
            }
            out = wait(&self.out_changed, out);
        }
        None
    }

    /// Has the stream closed, from now on, when the link is stopped or the peer moves; returns false if that
    /// has happened already.
    pub(crate) fn begin_handshake(&self, stream: &Arc<TcpStream>, version: u64) -> bool {
        let mut out = lock(&self.out);
        let goes_on = out.goes_on(version);
        if goes_on {
            out.phase = Phase::Handshake(Arc::clone(stream));
        }
        goes_on
    }

    /// Begins a session after a successful handshake; returns false if the link is stopped or the peer moved.
    /// Messages of a later version than `spoken` that still wait are lost with the session for which they were made.
    pub(crate) fn begin_session(
        &self,
        stream: &Arc<Stream>,
        version: u64,
        life: Life,
        spoken: u16,
        body_bytes_max: usize,
        path: Option<Path>,
    ) -> bool {
        let mut out = lock(&self.out);
        let goes_on = out.goes_on(version);
        let mut dropped = 0;
        if goes_on {
            let stream = Arc::clone(stream);
            out.phase = Phase::Session {
                stream,
                life,
                version: spoken,
                body_bytes_max,
                path: path.map(Box::new),
                began: Instant::now(),
                end: None,
            };
            out.redial_now = false;
            out.obstacle = None;
            out.marked = Lsn::ZERO;
            out.probes.begin();
            self.spoken.store(spoken, Relaxed);
            dropped = out.queue.drop_newer_than(spoken);
            self.counters.sessions.fetch_add(1, Relaxed);
        }
        drop(out);
        self.count_dropped(dropped);
        goes_on
    }

    /// Records what is in the way at the `version`th address.
    pub(crate) fn obstructed(&self, version: u64, kind: ObstacleKind, why: &str) {
        let mut out = lock(&self.out);
        if out.goes_on(version) {
            out.obstacle = Some(Obstacle::met(out.obstacle.as_ref(), kind, why));
        }
    }

    /// Records that a replica that calls as this peer is refused.
    pub(crate) fn turn_away(&self) {
        *lock(&self.turned_away) = Some(Instant::now());
    }

    /// Ends the session, if there is one that has not ended for another reason.
    pub(crate) fn end_session(&self, end: SessionEnd) {
        lock(&self.out).end_session(end);
        self.out_changed.notify_one();
    }

    /// The peer is away; frames that were taken and not sent as a whole are queued again.
    pub(crate) fn leave(&self, unsent: impl DoubleEndedIterator<Item = Arc<Frame>>) -> Option<SessionEnd> {
        let mut out = lock(&self.out);
        // The socket is shut down, so a thread that writes to it is about to end that.
        while out.writes_directly {
            out = wait(&self.out_changed, out);
        }
        let end = match mem::take(&mut out.phase) {
            Phase::Session { end, .. } => end,
            Phase::Away | Phase::Handshake(_) => None,
        };
        out.awaits_frames = false;
        self.spoken.store(self.own.oldest, Relaxed);
        let rest = mem::take(&mut out.rest).frames;
        out.queue.put_back(rest.into_iter().chain(unsent));
        // They were made for the session that is over.
        out.queue.drop_marks();
        let dropped = if out.stopped { out.queue.clear() } else { out.queue.trim(self.bounds.away) };
        drop(out);
        self.count_dropped(dropped);
        end
    }

    /// Waits before the next attempt to reach the peer, unless there is a reason to try at once.
    pub(crate) fn pause(&self, delay: Duration) {
        let out = lock(&self.out);
        wait_while(&self.out_changed, out, delay, |out| !out.stopped && !out.redial_now).redial_now = false;
    }

    /// A probe of the peer came, which is answered if there is a session, or its answer to one.
    pub(crate) fn probed(&self, probe: Probe) {
        let mut out = lock(&self.out);
        match probe {
            Probe::Answers(number) => {
                if let Some(took) = out.probes.took(number) {
                    self.counters.round_trips.record(took);
                }
            }
            Probe::Arrived(number) => {
                if let Phase::Session { path: Some(path), .. } = &mut out.phase {
                    path.arrived(number);
                }
            }
            Probe::Asks(number) => {
                if self.admits_probe(&out)
                    && let Some(answer) = out.probes.answer(number)
                {
                    self.queue_probe(&mut out, answer);
                    drop(out);
                    self.flush();
                }
            }
        }
    }

    /// A probe of the peer came as a datagram. It is told so, if there is a session, and no more often than it asks.
    pub(crate) fn probed_by_datagram(&self, number: u64) {
        let mut out = lock(&self.out);
        if self.admits_probe(&out) && out.probes.admits_arrival() {
            self.queue_probe(&mut out, Probe::Arrived(number));
            drop(out);
            self.flush();
        }
    }

    /// The number of sessions that have begun, which tells them apart.
    pub(crate) fn sessions(&self) -> u64 {
        self.counters.sessions.load(Relaxed)
    }

    /// Whether there is a session in which a probe can be sent, and room for it.
    fn admits_probe(&self, out: &Outgoing) -> bool {
        matches!(out.phase, Phase::Session { end: None, body_bytes_max, .. } if body_bytes_max >= PROBE_BYTES)
            && out.queue.has_room_for_mark(PROBE_BYTES, self.bounds.connected)
    }

    /// Queues a probe that is admitted, behind all that waits.
    fn queue_probe(&self, out: &mut Outgoing, probe: Probe) {
        out.queue.push_mark(Arc::new(Frame::probe(self.own.cluster, self.own.durable(), probe)));
    }

    /// Records a life of the peer, whose birth was recognised; returns false if a later one was seen.
    pub(crate) fn see(&self, life: Life) -> bool {
        let mut latest = lock(&self.latest);
        let is_latest = latest.is_none_or(|latest| !latest.is_after(life));
        if is_latest {
            *latest = Some(life);
        }
        is_latest
    }

    /// Records that the peer reached this replica. So a session with an earlier life of it is over, even
    /// if its host could not tell, and if there is none it is time to dial.
    pub(crate) fn heard_from(&self, life: Life) {
        let mut out = lock(&self.out);
        match &out.phase {
            Phase::Session { life: known, .. } if *known != life && !known.is_after(life) => {
                out.redial_now = true;
                out.end_attempt(SessionEnd::NewerLife(life));
            }
            Phase::Session { .. } => return,
            Phase::Away | Phase::Handshake(_) => out.redial_now = true,
        }
        drop(out);
        self.out_changed.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.out).stopped
    }

    /// Ends whatever the sender thread is doing, permanently.
    pub(crate) fn stop(&self) {
        let mut out = lock(&self.out);
        out.stopped = true;
        out.end_attempt(SessionEnd::Stopped);
        let dropped = out.queue.clear();
        drop(out);
        self.out_changed.notify_one();
        self.count_dropped(dropped);
    }

    pub(crate) fn metrics(&self) -> PeerMetrics {
        let (connected_since, takes_datagrams, is_silent, back, obstacle, queue_frames, queue_bytes) = {
            let out = lock(&self.out);
            let (began, works) = match &out.phase {
                Phase::Session { began, path, end: None, .. } => {
                    (Some(*began), path.as_ref().is_some_and(|path| path.works()))
                }
                _ => (None, false),
            };
            let (is_silent, back) = (out.probes.is_silent(), out.probes.back());
            (began, works, is_silent, back, out.obstacle.clone(), out.queue.frames(), out.queue.bytes())
        };
        let (counters, datagrams) = (&self.counters, &self.counters.datagrams);
        PeerMetrics {
            peer: self.id(),
            connected_since,
            is_silent,
            back_since: back,
            obstacle,
            receiving: counters.receiving.load(Relaxed),
            turned_away: *lock(&self.turned_away),
            sessions: counters.sessions.load(Relaxed),
            frames_sent: counters.frames_sent.load(Relaxed),
            bytes_sent: counters.bytes_sent.load(Relaxed) + datagrams.bytes.load(Relaxed),
            writes: counters.writes.load(Relaxed),
            frames_received: counters.frames_received.load(Relaxed),
            bytes_received: counters.bytes_received.load(Relaxed),
            frames_dropped: counters.frames_dropped.load(Relaxed),
            frames_refused: counters.frames_refused.load(Relaxed),
            queue_frames,
            queue_bytes,
            takes_datagrams,
            datagrams_sent: datagrams.datagrams.load(Relaxed),
            datagram_messages_sent: datagrams.messages.load(Relaxed),
            datagrams_unsent: datagrams.unsent.load(Relaxed),
            datagrams_received: counters.datagrams_received.load(Relaxed),
            round_trips: Arc::clone(&counters.round_trips),
        }
    }
}

impl Gather {
    /// The buffers to write, in order.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices: Vec<_> = self.frames.iter().flat_map(|frame| frame.slices()).collect();
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, self.written);
        let left = rest.len();
        slices.drain(..slices.len() - left);
        slices
    }

    /// This many more bytes were written; returns how many frames left as a whole, and their bytes.
    pub(crate) fn advance(&mut self, bytes: usize) -> (usize, usize) {
        let mut left = self.written + bytes;
        let is_whole = |frame: &&Arc<Frame>| {
            let is_whole = left >= frame.len();
            left -= if is_whole { frame.len() } else { 0 };
            is_whole
        };
        let whole = self.frames.iter().take_while(is_whole).count();
        self.written = left;
        (whole, self.frames.drain(..whole).map(|frame| frame.len()).sum())
    }
}

impl Counters {
    /// Counts a write with which this many frames left as a whole, of this many bytes.
    pub(crate) fn count_written(&self, (frames, bytes): (usize, usize)) {
        self.frames_sent.fetch_add(frames as u64, Relaxed);
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
        self.writes.fetch_add(1, Relaxed);
    }
}

impl Outgoing {
    /// Whether there is still a reason to deal with the peer at its `version`th address.
    fn goes_on(&self, version: u64) -> bool {
        !self.stopped && self.target.version == version
    }

    /// Ends a handshake or a session, whichever there is.
    fn end_attempt(&mut self, reason: SessionEnd) {
        if let Phase::Handshake(stream) = &self.phase {
            // The stream may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
        self.dialed = None;
        self.end_session(reason);
    }

    /// Shutting the socket down wakes the sender thread out of a write, and the watching thread out of its read.
    fn end_session(&mut self, reason: SessionEnd) {
        if let Phase::Session { stream, end: end @ None, .. } = &mut self.phase {
            *end = Some(reason);
            // The stream may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}
