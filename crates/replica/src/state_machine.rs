//! The state machine, which a program that embeds replicas provides.

use std::{
    fmt,
    io::{self, Read, Write},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use synod_wire::{SessionId, Slot};

/// A deterministic state machine: the same commands in the same order give the same state and the same replies
/// on every machine. It must not read a clock, a random number, the environment or a randomly hashed map.
///
/// Methods run on one thread, in slot order. Every command is applied exactly once, even when clients send it again.
pub trait StateMachine: Send + 'static {
    /// Applies a command and answers it. A command that makes no sense is answered with an error in the state
    /// machine's own encoding; it must not panic, since it would on every replica. Where
    /// [`Context::reply_wanted`] is false, the reply is thrown away.
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes;

    /// The replicated clock has moved to [`Context::time`], by a command of this replica's session. It is called in
    /// the order of the log, as [`StateMachine::apply`] is, on every replica alike, so what happens after some time
    /// can be done here.
    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        let _ = (context, mover);
    }

    /// The time of the replicated clock for which the state machine waits. The clock then moves soon after that much
    /// time has gone by, and need not wait for [`Settings::clock_interval`](crate::Settings::clock_interval).
    fn waits_for(&self) -> Option<Duration> {
        None
    }

    /// Answers a query from the present state without changing it.
    fn query(&self, query: &Bytes) -> Bytes;

    /// Does the same for a query whose answer may be large, or take long. It is called between two commands,
    /// so what takes more than microseconds should be left to [`Answer::Pieces`], which other threads make
    /// while commands go on being applied. State machines with such queries should implement it.
    fn answer(&self, query: &Bytes) -> Answer {
        Answer::Whole(self.query(query))
    }

    /// Freezes the present state. This runs between two commands, so it should take microseconds: clone what
    /// is shared copy-on-write, and leave the encoding to [`Frozen::write_to`], which runs on another thread
    /// while commands go on being applied.
    fn freeze(&self) -> Box<dyn Frozen>;

    /// Replaces the state with one that [`Frozen::write_to`] wrote, perhaps in an earlier version of this
    /// program. On an error the old state is still in place.
    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()>;

    /// How to read a snapshot on another thread, while commands and queries still go to this state. State machines
    /// whose snapshots take longer than some milliseconds to read should have one. `None`, the default:
    /// [`StateMachine::restore`] reads between two commands, and holds up everything behind them.
    fn reader() -> Option<SnapshotReader<Self>>
    where
        Self: Sized,
    {
        None
    }

    /// A fingerprint of the state: equal states have equal digests on every machine. It is used to check that
    /// replicas agree, and may be slow. The default is a fingerprint of what [`Frozen::write_to`] writes,
    /// which must then be the same bytes for the same state.
    fn digest(&self) -> u64 {
        let mut sum = Fingerprint::EMPTY;
        self.freeze().write_to(&mut sum).expect("a fingerprint takes everything");
        sum.0
    }
}

/// Reads what [`Frozen::write_to`] wrote, perhaps in an earlier version of this program.
pub type SnapshotReader<S> = fn(&mut dyn Read) -> io::Result<Install<S>>;

/// Puts a state that was read in place of a state machine's own. It is called between two commands, so it should take
/// microseconds.
pub type Install<S> = Box<dyn FnOnce(&mut S) -> Replaced + Send>;

/// A state that another one has replaced. It is dropped on another thread, since freeing a large state takes long too.
pub type Replaced = Box<dyn Send>;

/// What a state machine is told with a command. Everything except [`Context::reply_wanted`] is the same on
/// every replica, so the state may depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The slot in which the command was decided. One slot may hold several commands.
    pub slot: Slot,
    /// What the replicated clock shows: the time that went by since the log began, or less. It never goes
    /// back, and advances about every [`Settings::clock_interval`](crate::Settings::clock_interval).
    pub time: Duration,
    /// The session in which a client numbered the command; `None` for commands without one.
    pub session: Option<SessionId>,
    /// Whether a client waits for the reply, or a session keeps it. It is false on most replicas for most
    /// commands, and on all replicas when they read their logs again, so **the state must not depend on it**.
    pub reply_wanted: bool,
}

impl Context {
    /// The context of a command in this slot, at time 0, without a session, with a reply.
    #[must_use]
    pub fn new(slot: Slot) -> Context {
        Context { slot, time: Duration::ZERO, session: None, reply_wanted: true }
    }

    /// The same context, without a wanted reply.
    #[must_use]
    pub fn without_reply(self) -> Context {
        Context { reply_wanted: false, ..self }
    }
}

/// FNV-1a of what is written to it.
struct Fingerprint(u64);

impl Fingerprint {
    const EMPTY: Fingerprint = Fingerprint(0xcbf2_9ce4_8422_2325);
}

impl Write for Fingerprint {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The answer to a query.
#[non_exhaustive]
pub enum Answer {
    /// The whole answer.
    Whole(Bytes),
    /// Pieces that are made one by one, from a frozen state; their concatenation is the answer. A piece may be
    /// empty, where there was much to look through. No piece should take more than some milliseconds to make,
    /// nor have more than some ten thousand bytes unless it must. If this is dropped, the rest is not made.
    Pieces(Box<dyn Iterator<Item = Bytes> + Send>),
}

impl Answer {
    /// The whole answer in one piece, however large it is, made now.
    #[must_use]
    pub fn whole(self) -> Bytes {
        match self {
            Answer::Whole(answer) => answer,
            Answer::Pieces(pieces) => pieces
                .fold(BytesMut::new(), |mut all, piece| {
                    all.extend_from_slice(&piece);
                    all
                })
                .freeze(),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Whole(answer) => f.debug_tuple("Whole").field(answer).finish(),
            Answer::Pieces(_) => f.write_str("Pieces"),
        }
    }
}

/// A state as it was after one slot.
pub trait Frozen: Send {
    /// Writes the state in a form that [`StateMachine::restore`] reads.
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A small state that is encoded at once.
impl Frozen for Bytes {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self)
    }
}

impl fmt::Debug for dyn Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Frozen")
    }
}
