//! What a user replicates.

use std::{
    fmt,
    io::{self, Read, Write},
};

use bytes::{Bytes, BytesMut};

/// A deterministic state machine: the same commands in the same order give the same state and the same replies
/// on every machine. It must not read a clock, a random number, the environment or a randomly hashed map.
///
/// Methods run on one thread, in slot order. Every command is applied exactly once, also when clients retry.
pub trait StateMachine: Send + 'static {
    /// Applies a command and answers it. A command that makes no sense is answered with an error of the state
    /// machine's own encoding; it must not panic, since every replica would.
    fn apply(&mut self, command: &Bytes) -> Bytes;

    /// Applies a command whose reply nobody waits for and nobody keeps: most replicas, for most commands, and all of them when
    /// they read their logs again. The state must become what [`StateMachine::apply`] makes of it. Worth writing where
    /// replies can be large.
    fn apply_unanswered(&mut self, command: &Bytes) {
        self.apply(command);
    }

    /// Answers a query from the present state without changing it.
    fn query(&self, query: &Bytes) -> Bytes;

    /// The same for a query whose answer may be large, or take long: it is asked between two commands, so what takes more than
    /// microseconds should be left to [`Answer::Pieces`], which are made by other threads while commands go on being
    /// applied. Worth writing where there are such queries.
    fn answer(&self, query: &Bytes) -> Answer {
        Answer::Whole(self.query(query))
    }

    /// Freezes the present state. This runs between two commands, so it should take microseconds: clone what
    /// is shared copy-on-write, and leave the encoding to [`Frozen::write_to`], which runs on another thread
    /// while commands go on being applied.
    fn freeze(&self) -> Box<dyn Frozen>;

    /// Replaces the state with one that [`Frozen::write_to`] wrote, perhaps an earlier version of this program.
    /// On an error the old state is still in place.
    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()>;

    /// A fingerprint of the state: equal states have equal digests on every machine. Used to check that
    /// replicas agree; it may be slow.
    fn digest(&self) -> u64;
}

/// The answer to a query.
pub enum Answer {
    /// All of it.
    Whole(Bytes),
    /// To be made piece by piece, from a state that was frozen as it was; put behind each other, the pieces are the answer. A
    /// piece may be empty, where there was much to look through. None should take more than some milliseconds to make, nor
    /// have more than some ten thousand bytes unless it must. Dropped, the rest is not made.
    Pieces(Box<dyn Iterator<Item = Bytes> + Send>),
}

impl Answer {
    /// All of it in one, however large it is; made now.
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

/// A state as it was at one slot.
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
