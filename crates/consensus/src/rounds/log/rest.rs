//! When replicas of the log in rounds rest: what is still to be ordered, and what others know to be decided.

use synod_wire::{Ballot, Batch, ReplicaId, Slot};

use super::{Message, Round, RoundsLog};
use crate::Effects;

impl RoundsLog {
    /// Slots through this one are decided, as a member says that is there. It hands out what this replica lacks. What
    /// is known to a member alone that is gone, nobody hands out: the others decide it once more.
    pub(super) fn decided_by_others(&self) -> Slot {
        self.tells_decided.values().copied().fold(self.slots.decided(), Slot::max)
    }

    /// Whether something is still to be ordered, as far as this replica knows. What others know to be decided is
    /// fetched from them, and no round helps with that. A slot in which others accepted something is theirs to fill:
    /// this replica would have nothing to put there.
    pub(super) fn is_busy(&self) -> bool {
        self.slots.last_accepted() > self.decided_by_others()
            || self.offers.iter().any(|offer| self.waits(Slot::ZERO, offer))
    }

    /// The same, without what the letters of this phase see to.
    pub(super) fn has_more(&self) -> bool {
        let Some((first, last, _)) = self.accepted else { return self.is_busy() };
        self.slots.last_accepted() > last
            || self.decided_by_others().next() < first
            || self.offers.iter().any(|offer| self.waits(first, offer))
    }

    /// Whether a batch of this replica's clients is to be offered to the others: it is not accepted in a slot from
    /// `from` on, and is not held back.
    pub(super) fn waits(&self, from: Slot, offer: &Batch) -> bool {
        !self.holds(from, offer) && !self.is_held_back(offer)
    }

    /// While this replica lacks slots that others have decided, it does not know whether a batch is in one of these, if
    /// it saw that voted for and could not accept it. If it went on to offer it, the others would order it in every
    /// phase, which may be faster than this replica catches up.
    pub(super) fn is_held_back(&self, offer: &Batch) -> bool {
        self.slots.decided() < self.decided_by_others() && self.refused.contains(offer)
    }

    /// Others accept this batch, and this replica has no room for it.
    pub(super) fn refuse(&mut self, batch: &Batch) {
        self.refused.retain(|refused| self.offers.contains(refused));
        if self.offers.contains(batch) && !self.refused.contains(batch) {
            self.refused.push(batch.clone());
        }
    }

    /// Whether a batch is accepted in a slot from this one on, and not delivered.
    pub(super) fn holds(&self, from: Slot, batch: &Batch) -> bool {
        self.slots.accepted_from(from).any(|(_, _, held, _)| held == batch)
    }

    /// The sender of a letter knows slots through this one to be decided, in its phase or in earlier ones. Where this
    /// replica accepted in a phase as late, it accepted what was decided. With OneThirdRule it may have another
    /// estimate.
    pub(super) fn note_decided(
        &mut self,
        from: ReplicaId,
        round: Round,
        decided: Slot,
        effects: &mut Effects,
    ) {
        let told = self.tells_decided.entry(from).or_default();
        *told = decided.max(*told);
        let promised = self.slots.promised().0;
        let holds = round.phase(self.rounds) <= promised.round && !self.is_one_third_rule();
        let ballot = if holds { promised } else { Ballot::ZERO };
        self.slots.decide_through(decided, ballot, effects);
    }

    /// Whether a letter of the round before this one said that something is still to be ordered.
    pub(super) fn rests_last_busy(&self) -> bool {
        self.received.range(..self.round).any(|(_, letters)| letters.values().any(Message::is_busy))
    }
}
