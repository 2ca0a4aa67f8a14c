//! The accepted sequence in memory: v_a of Ng 2020, without the elements that are not needed any more.

use std::collections::VecDeque;

use synod_wire::{Batch, Slot};

use crate::batches::{Batches, fitting};

/// Elements of consecutive slots up to [`Sequence::last`]. Those through [`Sequence::decided`] never change
/// any more; the first of them may be dropped.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// The first slot that is held, or that would be.
    first: Slot,
    elements: VecDeque<Batch>,
    decided: Slot,
}

impl Sequence {
    /// A sequence of which everything through `base` is decided, and not held.
    pub(super) fn new(base: Slot) -> Sequence {
        Sequence { first: base.next(), elements: VecDeque::new(), decided: base }
    }

    pub(super) fn first(&self) -> Slot {
        self.first
    }

    /// The last slot of the sequence (its length, as Ng 2020 says).
    pub(super) fn last(&self) -> Slot {
        Slot(self.first.0 + self.elements.len() as u64 - 1)
    }

    pub(super) fn decided(&self) -> Slot {
        self.decided
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Batch> {
        let index = slot.0.checked_sub(self.first.0)?;
        self.elements.get(usize::try_from(index).ok()?)
    }

    pub(super) fn push(&mut self, batch: Batch) {
        self.elements.push_back(batch);
    }

    /// Cuts off everything after a slot, but nothing that is decided.
    pub(super) fn truncate(&mut self, last: Slot) {
        let keep = last.max(self.decided).0.saturating_sub(self.first.0 - 1);
        self.elements.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// Records that the slot, and all slots before it, are decided, and that the slot holds this batch.
    pub(super) fn set_decided(&mut self, slot: Slot, batch: Batch) {
        debug_assert_eq!(slot, self.decided.next());
        if slot > self.last() {
            self.elements.push_back(batch);
        } else {
            let index = usize::try_from(slot.0 - self.first.0).expect("a slot that is held");
            self.elements[index] = batch;
        }
        self.decided = slot;
    }

    /// Records that slots through this one, which are all accepted, are decided; returns those that were not
    /// before, with what they hold.
    pub(super) fn decide_through(&mut self, through: Slot) -> impl Iterator<Item = (Slot, &Batch)> {
        let through = through.max(self.decided);
        let first = std::mem::replace(&mut self.decided, through).next();
        let index = |slot: Slot| usize::try_from(slot.0 - self.first.0).expect("a slot that is held");
        let held = if first > through { 0..0 } else { index(first)..index(through) + 1 };
        (first.0..).map(Slot).zip(self.elements.range(held))
    }

    /// Records that a snapshot holds everything through this slot.
    pub(super) fn installed(&mut self, slot: Slot) {
        while self.first <= slot && self.elements.pop_front().is_some() {
            self.first = self.first.next();
        }
        self.first = self.first.max(slot.next());
        self.decided = self.decided.max(slot);
    }

    /// Drops decided elements through a slot.
    pub(super) fn forget(&mut self, through: Slot) {
        let end = through.min(self.decided).next();
        let dropped = end.0.saturating_sub(self.first.0).min(self.elements.len() as u64);
        match usize::try_from(dropped).expect("no more than there are") {
            0 => {}
            1 => drop(self.elements.pop_front()),
            several => drop(self.elements.drain(..several)),
        }
        self.first.0 += dropped;
    }

    /// A page: elements from a slot on, none after `last`, of at most this many bytes and slots, and at least
    /// one if there is one.
    pub(super) fn page(&self, from: Slot, last: Slot, bytes_max: usize, slots_max: usize) -> Batches {
        let skip = usize::try_from(from.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        let count = usize::try_from(last.0.saturating_sub(from.0) + 1).unwrap_or(usize::MAX);
        if from > last || skip >= self.elements.len() {
            return Batches::default();
        }
        let count = count.min(slots_max).min(self.elements.len() - skip);
        let len = fitting(self.elements.range(skip..skip + count), bytes_max);
        self.elements.range(skip..skip + len).cloned().collect()
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

    fn sequence(base: u64, len: usize) -> Sequence {
        let mut sequence = Sequence::new(Slot(base));
        (0..len).for_each(|_| sequence.push(batch(100)));
        sequence
    }

    #[test]
    fn what_is_decided_stays_and_the_rest_can_be_cut_off() {
        let mut sequence = sequence(4, 3);
        assert_eq!((sequence.first(), sequence.last(), sequence.decided()), (Slot(5), Slot(7), Slot(4)));
        let decided: Vec<Slot> = sequence.decide_through(Slot(5)).map(|(slot, _)| slot).collect();
        assert_eq!(decided, [Slot(5)]);
        assert_eq!(sequence.decide_through(Slot(4)).count(), 0, "what is decided stays");
        sequence.truncate(Slot(2));
        assert_eq!(sequence.last(), Slot(5), "slot 5 is decided");
        sequence.set_decided(Slot(6), Batch::noop());
        assert_eq!((sequence.last(), sequence.get(Slot(6))), (Slot(6), Some(&Batch::noop())));
        sequence.forget(Slot(5));
        assert_eq!((sequence.first(), sequence.last()), (Slot(6), Slot(6)));
        sequence.installed(Slot(20));
        assert_eq!((sequence.first(), sequence.last(), sequence.decided()), (Slot(21), Slot(20), Slot(20)));
    }

    #[test]
    fn a_page_is_bounded_and_never_empty_if_there_is_something() {
        let sequence = sequence(4, 5);
        let page = |from, last, bytes, slots| sequence.page(Slot(from), Slot(last), bytes, slots).len();
        assert_eq!(page(5, 9, 1 << 20, usize::MAX), 5);
        assert_eq!(page(7, 8, 1 << 20, usize::MAX), 2);
        assert_eq!(page(5, 9, 1, usize::MAX), 1);
        assert_eq!(page(5, 9, 300, usize::MAX), 2);
        assert_eq!(page(5, 9, 1 << 20, 3), 3);
        assert_eq!(page(10, 9, 1 << 20, 3), 0);
        assert_eq!(page(10, 12, 1 << 20, 3), 0);
    }
}
