//! What one request may cost: bytes of its answer, and keys that it looks at.
//!
//! A transaction of a few hundred bytes can ask for the whole store a hundred times, nested ones a hundred thousand times. One
//! that writes is in the log, so every replica has to get through it, now and whenever it starts again. So what it costs is
//! counted while it runs, before anything is built, in the same way on every replica; one that would cost more has no effect.
//! Sorting counts as well, and so do bytes that are compared, and versions of a key that a read at an earlier revision may have to
//! go through.

use synod_replica::ANSWER_BYTES_MAX;

use crate::KvError;

/// What a pair counts besides its key and value: more than its numbers, tags and lengths ever take.
const PAIR_OVERHEAD_BYTES: u64 = 64;

/// Keys that a transaction may look at in any case: about a second's work.
const LOOKS_MIN: u64 = 1 << 24;
/// Beyond that, how often it may look at each key of the store.
const LOOKS_PER_KEY: u64 = 4;

/// To go through so many bytes of values costs about what a look does.
const BYTES_PER_LOOK: usize = 512;

/// What is answered between two commands: so many bytes, and so many keys looked at. What is larger is left to other threads.
pub const PAGE_BYTES: u64 = 16 << 10;
const PAGE_LOOKS: u64 = 512;

/// What is left of what a request may cost.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Whether somebody is given the answer. Without, it is counted in the same way, and nothing is built.
    wanted: bool,
    bytes_max: u64,
    bytes: u64,
    looks: u64,
}

impl Budget {
    /// For a transaction on a store of so many keys whose answer has at most so many bytes; 0: the most that there are.
    pub(crate) fn new(keys: usize, answer_bytes_max: u64, wanted: bool) -> Budget {
        let bytes_max = match answer_bytes_max {
            0 => ANSWER_BYTES_MAX,
            bytes => bytes.min(ANSWER_BYTES_MAX),
        };
        let looks = LOOKS_MIN.saturating_add(LOOKS_PER_KEY.saturating_mul(keys as u64));
        Budget { wanted, bytes_max, bytes: bytes_max, looks }
    }

    /// For what is answered between two commands.
    pub(crate) fn page() -> Budget {
        Budget { wanted: true, bytes_max: PAGE_BYTES, bytes: PAGE_BYTES, looks: PAGE_LOOKS }
    }

    /// For a request that looks at each key at most once, and whose answer is bounded elsewhere.
    pub(crate) fn unbounded() -> Budget {
        Budget { wanted: true, bytes_max: u64::MAX, bytes: u64::MAX, looks: u64::MAX }
    }

    /// Whether answers are to be built.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted
    }

    /// A key is looked at.
    pub(crate) fn look(&mut self) -> Result<(), KvError> {
        self.look_at(1)
    }

    /// So many keys are looked at, or something is done that costs as much.
    pub(crate) fn look_at(&mut self, keys: usize) -> Result<(), KvError> {
        self.looks = self.looks.checked_sub(keys as u64).ok_or(KvError::TooManyKeys)?;
        Ok(())
    }

    /// So many bytes of values are gone through.
    pub(crate) fn go_through(&mut self, bytes: usize) -> Result<(), KvError> {
        self.look_at(bytes / BYTES_PER_LOOK)
    }

    /// A pair comes into the answer.
    pub(crate) fn answer(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        let cost = PAIR_OVERHEAD_BYTES + key.len() as u64 + value.len() as u64;
        self.bytes = self.bytes.checked_sub(cost).ok_or(KvError::AnswerTooLarge(self.bytes_max))?;
        Ok(())
    }
}
