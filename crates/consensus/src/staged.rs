//! Pages of a sequence that count only together.

use synod_wire::{Ballot, Batch, Slot};

use crate::batches::last_of;

/// Pages of which no record says yet that they count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Staged {
    ballot: Ballot,
    start: Slot,
    /// The first slot of the pages; after `start` if earlier pages are trimmed.
    first: Slot,
    batches: Vec<Batch>,
}

impl Staged {
    pub(crate) fn add(&mut self, ballot: Ballot, start: Slot, from: Slot, batches: &[Batch]) {
        let follows = (self.ballot, self.start) == (ballot, start)
            && from > start
            && from == last_of(self.first, &self.batches).next();
        if !follows {
            *self = Staged { ballot, start, first: from, batches: Vec::new() };
        }
        self.batches.extend_from_slice(batches);
    }

    /// Takes the pages before `from` out, and returns them with the slot where they begin. If pages after the
    /// base are missing, the result leaves a gap.
    pub(crate) fn take(&mut self, ballot: Ballot, start: Slot, from: Slot, base: Slot) -> (Slot, Vec<Batch>) {
        if from == start {
            return (from, Vec::new());
        }
        let staged = std::mem::take(self);
        let whole = (staged.ballot, staged.start) == (ballot, start)
            && last_of(staged.first, &staged.batches).next() == from
            && (staged.first == start || staged.first <= base.next());
        if whole { (staged.first, staged.batches) } else { (from, Vec::new()) }
    }
}
