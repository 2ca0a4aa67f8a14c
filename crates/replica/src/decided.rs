//! Decided slots that other replicas may need.

use std::collections::VecDeque;

use synod_wire::{Ballots, Batch, Slot};

/// From where the decided log of a group is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrom {
    /// From this slot on.
    Slot(Slot),
    /// From the first batch on that takes this position of the common order, or a later one.
    Position(u64),
}

/// A part of the decided log of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// The slot of the first batch, or of the next one that will be decided if there are none.
    pub first: Slot,
    /// The position in the common order that the group is at before that slot; 0 where groups are not merged.
    pub position: u64,
    /// The batches of consecutive slots.
    pub batches: Vec<Batch>,
}

/// What is asked for is not kept any more; the log begins here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBegin {
    /// The first slot that is kept.
    pub first: Slot,
    /// The position in the common order that the group is at before that slot.
    pub position: u64,
}

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

/// A batch, and where its group is in the common order before it; 0 where groups are not merged.
#[derive(Debug)]
struct Kept {
    position: u64,
    decided: Decided,
}

/// The decided batches after the last trim, in memory, as references to buffers that were received or sent.
#[derive(Debug)]
pub struct DecidedLog {
    first: Slot,
    batches: VecDeque<Kept>,
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

    /// Records that the last slot ended its epoch. Ballots of different epochs cannot be compared, and
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

    /// Adds the next batch; `position` is where the group is in the common order before it.
    pub fn push(&mut self, slot: Slot, position: u64, ballots: Ballots, batch: Batch) {
        assert_eq!(slot, self.last().next(), "slots are decided in order");
        self.bytes += batch.bytes().len() as u64;
        self.batches.push_back(Kept { position, decided: Decided { ballots, batch } });
        self.ballots = self.ballots.followed_by(ballots);
    }

    fn pop(&mut self) {
        if let Some(Kept { decided, .. }) = self.batches.pop_front() {
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

    /// Records that a snapshot through `slot` was installed, which `ballots` goes with.
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
        let fits = |Kept { decided, .. }: &&Kept| {
            let fits = bytes == 0 || bytes + decided.batch.bytes().len() <= bytes_max;
            bytes += decided.size();
            fits
        };
        let kept = self.batches.iter().skip(skip).take(count).take_while(fits);
        Some(kept.map(|kept| kept.decided.clone()).collect())
    }

    /// Batches from a point on: at most `bytes_max` bytes, but at least one if it is decided. `end` is where the group
    /// is in the common order after the last slot. `None`: the slot is not decided, nor is the one before it.
    ///
    /// # Errors
    /// Where the log begins, if it begins later.
    pub fn read(&self, from: LogFrom, end: u64, bytes_max: usize) -> Result<Option<LogPart>, LogBegin> {
        let position_at = |at: usize| self.batches.get(at).map_or(end, |kept| kept.position);
        let trimmed = LogBegin { first: self.first, position: position_at(0) };
        let first = match from {
            LogFrom::Slot(slot) if slot < self.first => return Err(trimmed),
            LogFrom::Slot(slot) if slot > self.last().next() => return Ok(None),
            LogFrom::Slot(slot) => slot,
            LogFrom::Position(wanted) => {
                // Every batch before it takes a lesser position, if it takes one.
                let at = self.batches.partition_point(|kept| kept.position < wanted);
                if at == 0 && position_at(0) > wanted && self.first > Slot(1) {
                    return Err(trimmed);
                }
                Slot(self.first.0 + at as u64)
            }
        };
        let at = usize::try_from(first.0 - self.first.0).expect("it is held");
        let batches = self.range(first, self.last(), bytes_max).unwrap_or_default();
        let batches = batches.into_iter().map(|decided| decided.batch).collect();
        Ok(Some(LogPart { first, position: position_at(at), batches }))
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
        (1..=10).for_each(|slot| log.push(Slot(slot), 0, Ballots::ZERO, batch(100)));
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

    #[test]
    fn a_log_is_read_from_a_slot_or_a_position() {
        let mut log = DecidedLog::new(Slot(1), Ballots::ZERO);
        // The third batch takes position 2, and the fourth one 7: between them the group has skipped.
        for (slot, position) in (1..).zip([0, 1, 2, 7, 8]) {
            log.push(Slot(slot), position, Ballots::ZERO, batch(100));
        }
        let read = |log: &DecidedLog, from| match log.read(from, 9, 1 << 20) {
            Ok(Some(LogPart { first, position, batches })) => (first.0, position, batches.len()),
            Ok(None) => (0, 0, 0),
            Err(LogBegin { first, position }) => (first.0, position, usize::MAX),
        };
        assert_eq!(read(&log, LogFrom::Slot(Slot(2))), (2, 1, 4));
        assert_eq!(read(&log, LogFrom::Slot(Slot(6))), (6, 9, 0), "the next one");
        assert_eq!(read(&log, LogFrom::Slot(Slot(7))), (0, 0, 0));
        assert_eq!(read(&log, LogFrom::Position(2)), (3, 2, 3));
        assert_eq!(read(&log, LogFrom::Position(5)), (4, 7, 2));
        assert_eq!(read(&log, LogFrom::Position(50)), (6, 9, 0));
        log.trim(Slot(2), 0, 0);
        assert_eq!(read(&log, LogFrom::Slot(Slot(2))), (3, 2, usize::MAX));
        assert_eq!(read(&log, LogFrom::Position(1)), (3, 2, usize::MAX));
        assert_eq!(read(&log, LogFrom::Position(2)), (3, 2, 3));
    }
}
