//! Decided slots that arrived before slots with lower numbers did.

use std::collections::{BTreeMap, VecDeque};

use synod_wire::Slot;

use crate::decided::Decided;

/// Slots without gaps between them are a run; there are at most this many runs.
const RUNS_MAX: usize = 1024;

/// This many slots are accepted whatever their size, since an answer to a question has at least one slot.
pub const SLOTS_MIN: usize = 16;

/// Decided slots that arrived before slots with lower numbers did.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The runs by their first slots; no two overlap, and none is empty.
    runs: BTreeMap<Slot, VecDeque<Decided>>,
    slots: usize,
    bytes: usize,
}

fn end((first, run): (&Slot, &VecDeque<Decided>)) -> Slot {
    Slot(first.0 + run.len() as u64)
}

impl Ahead {
    /// Bytes of the slots that are here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many slots are here.
    pub fn len(&self) -> usize {
        self.slots
    }

    /// Takes what is new among consecutive slots, if there is room; returns whether anything was taken. There
    /// is always room for the slot after `decided`, which is needed next: it is not here for long.
    pub fn insert(&mut self, from: Slot, batches: Vec<Decided>, decided: Slot, bytes_max: usize) -> bool {
        let before = self.runs.range(..=from).next_back().map_or(from, end);
        let first = from.max(before).max(decided.next());
        let after = self.runs.range(first..).next().map_or(u64::MAX, |(slot, _)| slot.0);
        let skip = usize::try_from(first.0 - from.0).unwrap_or(usize::MAX);
        let take = usize::try_from(after - first.0).unwrap_or(usize::MAX);
        let new: VecDeque<Decided> = batches.into_iter().skip(skip).take(take).collect();
        let bytes: usize = new.iter().map(Decided::size).sum();
        let fits = self.slots + new.len() <= SLOTS_MIN
            || self.bytes + bytes <= bytes_max && self.runs.len() < RUNS_MAX;
        if new.is_empty() || !fits && first != decided.next() {
            return false;
        }
        self.slots += new.len();
        self.bytes += bytes;
        match self.runs.range_mut(..first).next_back() {
            Some((start, run)) if end((start, run)) == first => run.extend(new),
            _ => {
                self.runs.insert(first, new);
            }
        }
        true
    }

    /// The content of a slot, if it is the first slot that is here.
    pub fn front(&self, slot: Slot) -> Option<&Decided> {
        self.runs.first_key_value().filter(|(first, _)| **first == slot)?.1.front()
    }

    /// Drops the slots through this one.
    pub fn drop_through(&mut self, slot: Slot) {
        while let Some(entry) = self.runs.first_entry().filter(|entry| *entry.key() <= slot) {
            let (first, mut run) = entry.remove_entry();
            let gone = usize::try_from(slot.0 + 1 - first.0).unwrap_or(usize::MAX).min(run.len());
            self.slots -= gone;
            self.bytes -= run.drain(..gone).map(|decided| decided.size()).sum::<usize>();
            if !run.is_empty() {
                self.runs.insert(slot.next(), run);
            }
        }
    }

    /// The slot after the run of `slot`; `None` if `slot` is not here.
    pub fn end_of(&self, slot: Slot) -> Option<Slot> {
        self.runs.range(..=slot).next_back().map(end).filter(|end| *end > slot)
    }

    /// The first slot that is here, from this one on.
    pub fn first_from(&self, slot: Slot) -> Option<Slot> {
        self.runs.range(slot..).next().map(|(first, _)| *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{Ballot, Ballots, Batch};

    /// Batches whose ballots tell their slots.
    fn slots(range: std::ops::RangeInclusive<u64>) -> Vec<Decided> {
        let ballot = |round| Ballot { round, ..Ballot::ZERO };
        range.map(|slot| Decided { ballots: Ballots::both(ballot(slot)), batch: Batch::noop() }).collect()
    }

    #[test]
    fn pieces_in_any_order_come_out_in_one_order_each_once() {
        let pieces = [(9, 12), (3, 4), (11, 14), (2, 6), (7, 8), (1, 1), (5, 16)];
        for first in 0..pieces.len() {
            let mut ahead = Ahead::default();
            let mut decided = Slot::ZERO;
            let mut told = Vec::new();
            // The last piece covers what other pieces cut off, so it comes a second time at the end.
            let order = pieces.iter().cycle().skip(first).take(pieces.len()).chain([&(5, 16), &(1, 16)]);
            for &(from, through) in order {
                ahead.insert(Slot(from), slots(from..=through), decided, usize::MAX);
                while let Some(next) = ahead.front(decided.next()) {
                    told.push(next.ballots.proposed.round);
                    decided = decided.next();
                    ahead.drop_through(decided);
                }
            }
            assert_eq!(told, (1..=16).collect::<Vec<_>>(), "beginning with piece {first}");
            assert_eq!((ahead.bytes(), ahead.len(), ahead.runs.len()), (0, 0, 0));
        }
    }

    #[test]
    fn gaps_are_known() {
        let mut ahead = Ahead::default();
        assert!(ahead.insert(Slot(3), slots(3..=4), Slot(0), usize::MAX));
        assert!(ahead.insert(Slot(5), slots(5..=5), Slot(0), usize::MAX));
        assert!(ahead.insert(Slot(8), slots(8..=9), Slot(0), usize::MAX));
        assert!(!ahead.insert(Slot(4), slots(4..=5), Slot(0), usize::MAX), "it is here");
        assert_eq!(ahead.end_of(Slot(2)), None);
        assert_eq!(ahead.end_of(Slot(3)), Some(Slot(6)));
        assert_eq!(ahead.first_from(Slot(6)), Some(Slot(8)));
        assert!(ahead.front(Slot(1)).is_none());
        ahead.drop_through(Slot(8));
        assert_eq!(ahead.front(Slot(9)).unwrap().ballots.proposed.round, 9);
    }

    #[test]
    fn room_is_bounded_but_for_what_is_needed_next() {
        let mut ahead = Ahead::default();
        let size = slots(1..=1)[0].size();
        assert!(!ahead.insert(Slot(5), slots(5..=24), Slot(0), 20 * size - 1), "the first has to fit, too");
        assert!(ahead.insert(Slot(5), slots(5..=24), Slot(0), 20 * size));
        assert!(!ahead.insert(Slot(29), slots(29..=29), Slot(0), 20 * size));
        assert!(ahead.insert(Slot(1), slots(1..=1), Slot(0), 20 * size));
        assert!(!ahead.insert(Slot(2), slots(2..=2), Slot(0), 20 * size), "what is needed next is here");
        assert_eq!((ahead.len(), ahead.bytes()), (21, 21 * size));
        ahead.drop_through(Slot(14));
        assert_eq!((ahead.len(), ahead.bytes()), (10, 10 * size));
        assert!(ahead.insert(Slot(29), slots(29..=34), Slot(14), 0), "a few have room whatever their size");
    }
}
