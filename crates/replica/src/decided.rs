//! Decided slots that other replicas may need.

use std::collections::VecDeque;

use synod_wire::{Ballots, Batch, Slot};

/// What was decided in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The ballots in which it was proposed and in which it was decided, as the protocol said when it delivered it.
    pub ballots: Ballots,
    /// The batch.
    pub batch: Batch,
}

impl Decided {
    pub(crate) fn into_parts(self) -> (Ballots, Batch) {
        (self.ballots, self.batch)
    }

    /// About how many bytes it takes in a message: an empty batch takes some too.
    pub(crate) fn size(&self) -> usize {
        self.batch.bytes().len() + 40
    }
}

/// The decided batches after the last trim, in memory, as references to buffers that were received or sent.
#[derive(Debug)]
pub struct DecidedLog {
    first: Slot,
    batches: VecDeque<Decided>,
    bytes: u64,
    /// The highest ballots of the current epoch's slots through the last one.
    ballots: Ballots,
}

impl DecidedLog {
    /// An empty log that begins with `first`; the slots of the current epoch before that were decided in `ballots`.
    pub fn new(first: Slot, ballots: Ballots) -> DecidedLog {
        DecidedLog { first, batches: VecDeque::new(), bytes: 0, ballots }
    }

    /// The highest ballots of the current epoch's slots through the last one; [`Ballots::ZERO`] if there are none.
    pub fn ballots(&self) -> Ballots {
        self.ballots
    }

    /// Takes note that the last slot ended its epoch. Ballots of different epochs cannot be compared, and
    /// what is before an epoch counts as lower than anything in it.
    pub fn begin_epoch(&mut self) {
        self.ballots = Ballots::ZERO;
    }

    /// The last slot that was decided.
    pub fn last(&self) -> Slot {
        Slot(self.first.0 + self.batches.len() as u64 - 1)
    }

    /// Bytes of batches.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many slots are held.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    pub fn push(&mut self, slot: Slot, ballots: Ballots, batch: Batch) {
        assert_eq!(slot, self.last().next(), "slots are decided in order");
        self.bytes += batch.bytes().len() as u64;
        self.batches.push_back(Decided { ballots, batch });
        self.ballots = self.ballots.followed_by(ballots);
    }

    fn pop(&mut self) {
        if let Some(decided) = self.batches.pop_front() {
            self.bytes -= decided.batch.bytes().len() as u64;
            self.first = self.first.next();
        }
    }

    /// Drops what a snapshot through `snapshot` covers, except the last `slots` slots or `bytes` bytes of it.
    pub fn trim(&mut self, snapshot: Slot, slots: u64, bytes: u64) {
        while self.first <= snapshot
            && !self.batches.is_empty()
            && (self.first.0 + slots <= snapshot.0 || self.bytes > bytes)
        {
            self.pop();
        }
    }

    /// Drops the oldest batches, whether a snapshot covers them or not, until at most `bytes` are left.
    pub fn cap(&mut self, bytes: u64) {
        while self.bytes > bytes && self.batches.len() > 1 {
            self.pop();
        }
    }

    /// Takes note that a snapshot through `slot` was installed, which `ballots` goes with.
    pub fn restart_after(&mut self, slot: Slot, ballots: Ballots) {
        *self = DecidedLog::new(slot.next(), ballots);
    }

    /// The first slot that is held; the one after [`DecidedLog::last`] if none is.
    pub fn first(&self) -> Slot {
        self.first
    }

    /// Consecutive batches from one slot through another: at most `bytes_max` bytes, but at least one batch.
    /// `None` if the first is not held any more.
    pub fn range(&self, from: Slot, through: Slot, bytes_max: usize) -> Option<Vec<Decided>> {
        let skip = usize::try_from(from.0.checked_sub(self.first.0)?).ok()?;
        let count = through.0.saturating_add(1).saturating_sub(from.0);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let fits = |decided: &&Decided| {
            let fits = bytes == 0 || bytes + decided.batch.bytes().len() <= bytes_max;
            bytes += decided.size();
            fits
        };
        Some(self.batches.iter().skip(skip).take(count).take_while(fits).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, SessionId};

    fn batch(len: usize) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, &vec![0; len]);
        builder.finish()
    }

    #[test]
    fn the_decided_log_keeps_what_it_should() {
        let mut log = DecidedLog::new(Slot(1), Ballots::ZERO);
        (1..=10).for_each(|slot| log.push(Slot(slot), Ballots::ZERO, batch(100)));
        let range = |log: &DecidedLog, from, through, bytes| {
            log.range(Slot(from), Slot(through), bytes).map(|batches| batches.len())
        };
        assert_eq!(range(&log, 9, 99, 10_000), Some(2));
        assert_eq!(range(&log, 1, 99, 300), Some(2));
        assert_eq!(range(&log, 1, 99, 1), Some(1), "at least one");
        assert_eq!(range(&log, 3, 5, 10_000), Some(3), "no more than is asked for");
        assert_eq!(range(&log, 5, 4, 10_000), Some(0));
        assert_eq!(range(&log, 11, 99, 1), Some(0));
        log.trim(Slot(8), 3, u64::MAX);
        assert_eq!(range(&log, 5, 99, 1), None);
        assert_eq!(range(&log, 6, 99, 1), Some(1), "three slots before the snapshot are kept");
        log.trim(Slot(8), 3, 0);
        assert_eq!(range(&log, 8, 99, 1), None, "bytes bound it as well");
        assert_eq!(range(&log, 9, 99, 1), Some(1), "what no snapshot covers stays");
        assert_eq!(log.first(), Slot(9));
    }
}
