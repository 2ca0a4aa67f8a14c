//! What one request may cost: bytes of its answer, and keys that it looks at.
//!
//! A transaction of a few hundred bytes can ask for the whole store a hundred times, and nested transactions a
//! hundred thousand times. A transaction that writes is in the log, so every replica must execute it, now and
//! after every restart. So the cost is counted during execution, before an answer is built, and in the same way
//! on every replica; a transaction that would cost more than its budget has no effect. Sorting counts as well,
//! as do compared bytes, and versions of a key that a read at an earlier revision may have to go through.

use synod_replica::ANSWER_BYTES_MAX;

use crate::KvError;

/// What a pair counts besides its key and value: more than its numbers, tags and lengths ever take.
const PAIR_OVERHEAD_BYTES: u64 = 64;

/// Keys that every transaction may look at, however small the store: about a second's work.
const LOOKS_MIN: u64 = 1 << 24;
/// How many times, beyond [`LOOKS_MIN`], a transaction may look at each key of the store.
const LOOKS_PER_KEY: u64 = 4;

/// Going through this many bytes of values costs about as much as one look.
const BYTES_PER_LOOK: usize = 512;

/// The largest answer that is made between two commands, in bytes and in keys looked at. Other threads make
/// larger ones.
pub const PAGE_BYTES: u64 = 16 << 10;
const PAGE_LOOKS: u64 = 512;

/// What is left of the cost that a request may have.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Whether a client waits for the answer. If not, the cost is counted in the same way, but no answer is built.
    wanted: bool,
    bytes_max: u64,
    bytes: u64,
    looks: u64,
}

impl Budget {
    /// The budget of a transaction on a store of `keys` keys, whose answer may have `answer_bytes_max` bytes.
    /// 0 stands for the largest answer that any request may have.
    pub(crate) fn new(keys: usize, answer_bytes_max: u64, wanted: bool) -> Budget {
        let bytes_max = match answer_bytes_max {
            0 => ANSWER_BYTES_MAX,
            bytes => bytes.min(ANSWER_BYTES_MAX),
        };
        let looks = LOOKS_MIN.saturating_add(LOOKS_PER_KEY.saturating_mul(keys as u64));
        Budget { wanted, bytes_max, bytes: bytes_max, looks }
    }

    /// The budget of an answer that is made between two commands.
    pub(crate) fn page() -> Budget {
        Budget { wanted: true, bytes_max: PAGE_BYTES, bytes: PAGE_BYTES, looks: PAGE_LOOKS }
    }

    /// The budget of a request that looks at each key at most once, and whose answer is bounded elsewhere.
    pub(crate) fn unbounded() -> Budget {
        Budget { wanted: true, bytes_max: u64::MAX, bytes: u64::MAX, looks: u64::MAX }
    }

    /// Whether answers are to be built.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted
    }

    /// Counts one look at a key.
    pub(crate) fn look(&mut self) -> Result<(), KvError> {
        self.look_at(1)
    }

    /// Counts looks at `keys` keys, or work that costs as much.
    pub(crate) fn look_at(&mut self, keys: usize) -> Result<(), KvError> {
        self.looks = self.looks.checked_sub(keys as u64).ok_or(KvError::TooManyKeys)?;
        Ok(())
    }

    /// Counts `bytes` bytes of values that are gone through.
    pub(crate) fn go_through(&mut self, bytes: usize) -> Result<(), KvError> {
        self.look_at(bytes / BYTES_PER_LOOK)
    }

    /// Counts a pair of the answer.
    pub(crate) fn answer(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        let cost = PAIR_OVERHEAD_BYTES + key.len() as u64 + value.len() as u64;
        self.bytes = self.bytes.checked_sub(cost).ok_or(KvError::AnswerTooLarge(self.bytes_max))?;
        Ok(())
    }
}
