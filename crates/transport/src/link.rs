//! What this replica's threads share about one peer: the queue to it, and the state of the connection that it
//! dials for its own sending.

use std::{
    fmt, io, mem,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use synod_wire::{Incarnation, ReplicaId};

use crate::{
    Config, Peer, PeerMetrics,
    frame::Frame,
    inbound::Turn,
    queue::{Bounds, FrameQueue},
    sync::{lock, wait, wait_while},
};

/// While a peer is away, this part of the queue's bounds is kept for it: enough for what a protocol says at the
/// beginning, little enough that a peer that was away for long is not buried in what has become stale.
const AWAY_SHARE: usize = 16;

/// One peer, as all threads see it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Peer,
    pub(crate) counters: Counters,
    /// Who of the peer's inbound connections may deliver.
    pub(crate) turn: Turn,
    /// The highest incarnation of the peer that was seen on any connection.
    highest: AtomicU64,
    bounds_connected: Bounds,
    bounds_away: Bounds,
    out: Mutex<Outgoing>,
    /// Wakes the sender thread, the only one that waits.
    out_changed: Condvar,
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
    pub(crate) sessions: AtomicU64,
    pub(crate) receiving: AtomicBool,
}

#[derive(Debug, Default)]
struct Outgoing {
    queue: FrameQueue,
    phase: Phase,
    /// The sender thread sleeps until a frame comes: whoever adds one must wake it. False while it is at work, so
    /// that a busy sender costs its callers no system call.
    awaits_frames: bool,
    /// The peer was seen to be alive: do not wait for the next attempt to reach it.
    redial_now: bool,
    stopped: bool,
    /// What came of the connection attempt under way.
    dialed: Option<io::Result<TcpStream>>,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Away,
    Handshake(Arc<TcpStream>),
    Session {
        stream: Arc<TcpStream>,
        incarnation: Incarnation,
        /// Why it is over; the sender thread has yet to notice.
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
    NewerIncarnation(Incarnation),
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
            SessionEnd::NewerIncarnation(incarnation) => {
                write!(f, "the peer was started anew (incarnation {incarnation})")
            }
            SessionEnd::Stopped => f.write_str("the transport is shutting down"),
        }
    }
}

impl Link {
    pub(crate) fn new(peer: Peer, config: &Config) -> Link {
        let bounds_connected =
            Bounds { frames: config.send_queue_frames_max, bytes: config.send_queue_bytes_max };
        let bounds_away = Bounds {
            frames: (bounds_connected.frames / AWAY_SHARE).max(1),
            bytes: bounds_connected.bytes / AWAY_SHARE,
        };
        Link {
            peer,
            counters: Counters::default(),
            turn: Turn::default(),
            highest: AtomicU64::new(0),
            bounds_connected,
            bounds_away,
            out: Mutex::default(),
            out_changed: Condvar::new(),
        }
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.peer.id
    }

    /// Queues a frame. Never waits for the network.
    ///
    /// A frame that is dropped in the middle of a session would leave a gap in it that nobody is told of. So
    /// dropping ends the session: the gap lies between two sessions, where every protocol expects one.
    pub(crate) fn enqueue(&self, frame: Arc<Frame>) {
        let (dropped, wake) = {
            let mut out = lock(&self.out);
            if out.stopped {
                (1, false)
            } else {
                let connected = matches!(out.phase, Phase::Session { end: None, .. });
                let bounds = if connected { self.bounds_connected } else { self.bounds_away };
                let dropped = out.queue.push(frame, bounds);
                if connected && dropped > 0 {
                    out.end_session(SessionEnd::Overflow);
                }
                (dropped, mem::take(&mut out.awaits_frames))
            }
        };
        if wake {
            self.out_changed.notify_one();
        }
        self.count_dropped(dropped);
    }

    /// Drops a frame that this replica or the peer has no room for, which must not leave a gap either.
    pub(crate) fn drop_too_large(&self, body: usize, max: usize) {
        self.count_dropped(1);
        self.end_session(SessionEnd::TooLarge { body, max });
    }

    fn count_dropped(&self, frames: usize) {
        if frames > 0 {
            self.counters.frames_dropped.fetch_add(frames as u64, Relaxed);
        }
    }

    /// Waits for frames, and takes as many as one write should carry; false once the session is over.
    pub(crate) fn next_frames(&self, gather: &mut Vec<Arc<Frame>>) -> bool {
        let mut out = lock(&self.out);
        loop {
            if !matches!(out.phase, Phase::Session { end: None, .. }) {
                return false;
            }
            out.queue.take(gather);
            if !gather.is_empty() {
                out.awaits_frames = false;
                return true;
            }
            out.awaits_frames = true;
            out = wait(&self.out_changed, out);
        }
    }

    /// Hands over what came of a connection attempt.
    pub(crate) fn put_dialed(&self, result: io::Result<TcpStream>) {
        lock(&self.out).dialed = Some(result);
        self.out_changed.notify_one();
    }

    /// Waits for the connection attempt under way; `None` if the transport is stopped.
    pub(crate) fn wait_dialed(&self) -> Option<io::Result<TcpStream>> {
        let mut out = lock(&self.out);
        while !out.stopped {
            if let Some(result) = out.dialed.take() {
                return Some(result);
            }
            out = wait(&self.out_changed, out);
        }
        None
    }

    /// From now on the stream is closed when the transport is stopped; false if it is already.
    pub(crate) fn begin_handshake(&self, stream: &Arc<TcpStream>) -> bool {
        let mut out = lock(&self.out);
        if !out.stopped {
            out.phase = Phase::Handshake(Arc::clone(stream));
        }
        !out.stopped
    }

    /// The handshake succeeded; false if the transport is stopped.
    pub(crate) fn begin_session(&self, stream: &Arc<TcpStream>, incarnation: Incarnation) -> bool {
        let mut out = lock(&self.out);
        if !out.stopped {
            out.phase = Phase::Session { stream: Arc::clone(stream), incarnation, end: None };
            out.redial_now = false;
            self.counters.sessions.fetch_add(1, Relaxed);
        }
        !out.stopped
    }

    /// Ends the session, if there is one that has not ended for another reason.
    pub(crate) fn end_session(&self, end: SessionEnd) {
        lock(&self.out).end_session(end);
        self.out_changed.notify_one();
    }

    /// The peer is away; frames that were taken and not sent as a whole are queued again.
    pub(crate) fn leave(&self, unsent: impl DoubleEndedIterator<Item = Arc<Frame>>) -> Option<SessionEnd> {
        let mut out = lock(&self.out);
        let end = match mem::take(&mut out.phase) {
            Phase::Session { end, .. } => end,
            Phase::Away | Phase::Handshake(_) => None,
        };
        out.awaits_frames = false;
        out.queue.put_back(unsent);
        let dropped = if out.stopped { out.queue.clear() } else { out.queue.trim(self.bounds_away) };
        drop(out);
        self.count_dropped(dropped);
        end
    }

    /// Waits before the next attempt to reach the peer, unless there is a reason to try at once.
    pub(crate) fn pause(&self, delay: Duration) {
        let out = lock(&self.out);
        wait_while(&self.out_changed, out, delay, |out| !out.stopped && !out.redial_now).redial_now = false;
    }

    /// Notes an incarnation of the peer; false if a later one was seen.
    pub(crate) fn see(&self, incarnation: Incarnation) -> bool {
        self.highest.fetch_max(incarnation.0, Relaxed) <= incarnation.0
    }

    /// The peer reached this replica. So a session with an earlier life of it is over, even if its host could not
    /// tell, and if there is none it is time to dial.
    pub(crate) fn heard_from(&self, incarnation: Incarnation) {
        let mut out = lock(&self.out);
        match &out.phase {
            Phase::Session { incarnation: known, .. } if *known < incarnation => {
                out.redial_now = true;
                out.end_session(SessionEnd::NewerIncarnation(incarnation));
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

    /// Ends whatever the sender thread is doing, for good.
    pub(crate) fn stop(&self) {
        let mut out = lock(&self.out);
        out.stopped = true;
        if let Phase::Handshake(stream) = &out.phase {
            // It may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
        out.end_session(SessionEnd::Stopped);
        let dropped = out.queue.clear();
        drop(out);
        self.out_changed.notify_one();
        self.count_dropped(dropped);
    }

    pub(crate) fn metrics(&self) -> PeerMetrics {
        let (connected, queue_frames, queue_bytes) = {
            let out = lock(&self.out);
            (matches!(out.phase, Phase::Session { end: None, .. }), out.queue.frames(), out.queue.bytes())
        };
        let counters = &self.counters;
        PeerMetrics {
            peer: self.id(),
            connected,
            receiving: counters.receiving.load(Relaxed),
            sessions: counters.sessions.load(Relaxed),
            frames_sent: counters.frames_sent.load(Relaxed),
            bytes_sent: counters.bytes_sent.load(Relaxed),
            writes: counters.writes.load(Relaxed),
            frames_received: counters.frames_received.load(Relaxed),
            bytes_received: counters.bytes_received.load(Relaxed),
            frames_dropped: counters.frames_dropped.load(Relaxed),
            queue_frames,
            queue_bytes,
        }
    }
}

impl Outgoing {
    /// Shutting the socket down wakes the sender thread out of a write, and the watching thread out of its read.
    fn end_session(&mut self, reason: SessionEnd) {
        if let Phase::Session { stream, end: end @ None, .. } = &mut self.phase {
            *end = Some(reason);
            // It may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}
