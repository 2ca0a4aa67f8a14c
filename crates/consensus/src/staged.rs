//! Pages of a sequence that count only together.

use synod_wire::{Ballot, Batch, Slot};

use crate::batches::last_of;

/// Pages of which no record says yet that they count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Staged {
    ballot: Ballot,
    first: Slot,
    /// The first slot of the pages; after `first` if earlier pages are trimmed.
    held_from: Slot,
    batches: Vec<Batch>,
}

impl Staged {
    pub(crate) fn add(&mut self, ballot: Ballot, first: Slot, from: Slot, batches: &[Batch]) {
        let follows = (self.ballot, self.first) == (ballot, first)
            && from > first
            && from == last_of(self.held_from, &self.batches).next();
        if !follows {
            *self = Staged { ballot, first, held_from: from, batches: Vec::new() };
        }
        self.batches.extend_from_slice(batches);
    }

    /// Takes the pages before `from` out, and returns them with the slot where they begin. If pages after the
    /// base are missing, the result leaves a gap.
    pub(crate) fn take(&mut self, ballot: Ballot, first: Slot, from: Slot, base: Slot) -> (Slot, Vec<Batch>) {
        if from == first {
            return (from, Vec::new());
        }
        let staged = std::mem::take(self);
        let whole = (staged.ballot, staged.first) == (ballot, first)
            && last_of(staged.held_from, &staged.batches).next() == from
            && (staged.held_from == first || staged.held_from <= base.next());
        if whole { (staged.held_from, staged.batches) } else { (from, Vec::new()) }
    }
}
