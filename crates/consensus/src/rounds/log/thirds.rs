//! The log by OneThirdRule (Santos 2012, Algorithm 3.1). A phase is one round, in which each replica tells all others
//! its estimate for each slot that is not decided, and what its clients wait for. Nobody coordinates: all that heard
//! the same give the same slots to what waits, and so all say the same in the next round, which decides it.
//!
//! A replica's estimate is what it accepted last in a slot. It is durable before it is said, and is written again only
//! when it changes. The ballot of a round names the lowest member, so that it is the same for all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot};

use super::{Message, RoundsLog, in_turns};
use crate::{Claim, Effects, ReplicaSet, acceptor::AcceptedValue, batches::Batches};

impl AcceptedValue {
    /// What a letter of a round claims with it.
    pub(in crate::rounds) fn estimated_in(&self, promised: Ballot) -> Claim<'_> {
        Claim::Estimate { promised, ballot: self.ballot, slot: self.slot, batch: &self.batch }
    }
}

/// A letter that was heard in a round.
struct Said<'a> {
    from: ReplicaId,
    next: Option<Slot>,
    accepted: &'a [AcceptedValue],
    offers: &'a Batches,
}

/// What a round makes of one slot.
#[derive(Default)]
struct Counted<'a> {
    /// What was said of it, in ascending order, and by which members.
    values: BTreeMap<&'a [u8], (&'a AcceptedValue, ReplicaSet)>,
    /// The members whose letter speaks of the slot.
    heard: ReplicaSet,
}

impl RoundsLog {
    /// The letter of a round, to all, and the record that has to be durable first.
    pub(super) fn values(&self, promised_lsn: Lsn) -> (Message, Lsn) {
        let (accepted, next, offers, after) = self.page(promised_lsn);
        // Those that hear it go on until what its clients wait for is decided.
        let busy = next.is_some() || self.offers.iter().any(|offer| !self.is_held_back(offer));
        let (ballot, decided, delay_micros) = (self.ballot(), self.slots.decided(), self.pace.micros());
        (Message::Values { ballot, decided, next, accepted, offers, busy, delay_micros }, after)
    }

    /// The transition of a round (Algorithm 3.1, lines 6 to 10), for all slots, and what fills those of which nobody
    /// has an estimate.
    pub(super) fn count_values(&mut self, letters: &BTreeMap<ReplicaId, Message>, effects: &mut Effects) {
        let mut told = self.slots.decided();
        let mut said = Vec::new();
        for (from, letter) in letters {
            let Message::Values { decided, next, accepted, offers, .. } = letter else { continue };
            told = told.max(*decided);
            said.push(Said { from: *from, next: *next, accepted, offers });
        }
        let floor = self.rules.counts_after(told, self.slots.decided()).max(self.slots.decided());
        let most = Slot(floor.0.saturating_add(self.slots.options().accept_ahead_max()));
        let last_said = said.iter().flat_map(|letter| letter.accepted).map(|value| value.slot).max();
        let last = last_said.unwrap_or_default().max(self.slots.last_accepted()).min(most);
        let mut offers = self.offered(&said);
        let mut adopts: Vec<(Slot, Batch)> = Vec::new();
        for slot in (floor.0 + 1..=last.0).map(Slot) {
            if self.slots.is_decided(slot) {
                continue;
            }
            let counted = self.counted(&said, slot);
            let is_decided = |set: &ReplicaSet| self.rules.is_decided(self.members(), *set);
            if let Some((value, _)) = counted.values.values().find(|(_, by)| is_decided(by)) {
                self.slots.decide(slot, value.ballot, &value.batch, effects);
                continue;
            }
            adopts.extend(self.adopted(slot, &counted, &mut offers).map(|batch| (slot, batch)));
        }
        let window = floor.0.saturating_add(self.window()).min(most.0);
        adopts.extend((last.0.max(floor.0) + 1..=window).map(Slot).zip(offers));
        self.adopt(adopts, effects);
    }

    /// What all members that are heard say of a slot.
    fn counted<'a>(&self, said: &[Said<'a>], slot: Slot) -> Counted<'a> {
        let mut counted = Counted::default();
        for letter in said.iter().filter(|letter| letter.next.is_none_or(|next| slot < next)) {
            let by = self.members().only(letter.from);
            counted.heard = counted.heard.union(by);
            if let Some(value) = letter.accepted.iter().find(|value| value.slot == slot) {
                let first = (value, ReplicaSet::default());
                let (_, set) = counted.values.entry(value.batch.bytes().as_ref()).or_insert(first);
                *set = set.union(by);
            }
        }
        counted
    }

    /// The new estimate for a slot, if it changes: with enough members heard the most frequent value, and the smallest
    /// of several. A replica that has none yet takes what others say, and otherwise what waits, or nothing if nothing
    /// does: any value may be the first estimate.
    fn adopted(
        &self,
        slot: Slot,
        counted: &Counted<'_>,
        offers: &mut impl Iterator<Item = Batch>,
    ) -> Option<Batch> {
        let mut preferred: Option<(&Batch, usize)> = None;
        for (value, by) in counted.values.values() {
            let held = preferred.map_or(0, |(_, count)| count);
            if self.rules.is_preferred(by.len(), held) {
                preferred = Some((&value.batch, by.len()));
            }
        }
        match (self.slots.accepted(slot), preferred) {
            (None, Some((batch, _))) => Some(batch.clone()),
            (None, None) => Some(offers.next().unwrap_or_else(Batch::noop)),
            (Some(held), Some((batch, _))) => {
                let hears_enough = self.rules.hears_enough(self.members(), counted.heard);
                (hears_enough && held != batch).then(|| batch.clone())
            }
            (Some(_), None) => None,
        }
    }

    /// What waits at the members that are heard, origin after origin, and is nobody's estimate.
    fn offered(&self, said: &[Said<'_>]) -> impl Iterator<Item = Batch> + use<> {
        let told = said.iter().flat_map(|letter| letter.accepted).map(|value| value.batch.clone());
        let held = self.slots.accepted_from(Slot::ZERO).map(|(_, _, batch, _)| batch.clone());
        let held: BTreeSet<Bytes> = told.chain(held).map(|batch| batch.bytes().clone()).collect();
        let waiting: Vec<(ReplicaId, VecDeque<Batch>)> =
            said.iter().map(|letter| (letter.from, letter.offers.iter().cloned().collect())).collect();
        let waiting = in_turns(self.taking_turns(waiting));
        waiting.into_iter().filter(move |offer| !held.contains(offer.bytes()))
    }

    /// Writes the new estimates. They are of the next round, the first in which they are said.
    fn adopt(&mut self, adopts: Vec<(Slot, Batch)>, effects: &mut Effects) {
        if adopts.is_empty() {
            return;
        }
        let next = Ballot { round: self.phase() + 1, ..self.ballot() };
        if self.slots.promised().0 < next {
            self.slots.promise(next, effects);
        }
        for (slot, batch) in adopts {
            if self.slots.accept(slot, &batch, effects).is_none() {
                self.refuse(&batch);
            }
        }
    }
}
