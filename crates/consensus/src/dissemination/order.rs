//! The leader proposes references; a replica that delivers one delivers its batch.

use std::{collections::BTreeSet, sync::Arc};

use synod_wire::{Batch, BatchId, ReplicaId, Slot, Time};

use super::{Balanced, Bug, Record, by_reference};
use crate::{Effect, Effects, Input};

impl Balanced {
    /// Proposes what a quorum holds, if this replica leads.
    pub(super) fn order(&mut self, now: Time, effects: &mut Effects) {
        let ballot = self.leading();
        if ballot != self.leads.map(|(ballot, _)| ballot) {
            self.leads = ballot.map(|ballot| (ballot, self.inner.status().decided_elsewhere));
            if ballot.is_some() {
                self.begin_to_lead();
            }
        }
        // What was proposed in another ballot is sent to the leader of the present one.
        self.unnamed.retain(|(proposed, ..)| Some(*proposed) == ballot);
        let Some((_, settled)) = self.leads else { return };
        while self.inner.room() > 0
            && let Some((_, batch, awaited)) = self.unnamed.pop_front()
        {
            self.step_inner(now, Input::Propose { batch, awaited }, effects);
        }
        // What was decided before this leader's time it must have delivered, so as to propose none of it again.
        while self.decided() >= settled && self.inner.room() > 0 {
            let Some(batch) = self.store.next_stable() else { break };
            let reference = batch.reference().expect("what is stable has a name");
            let id = reference.id().expect("a reference has a name");
            if self.table.voids(id) {
                continue;
            }
            let awaited = origin(id) != Some(self.members.me());
            self.step_inner(now, Input::Propose { batch: reference, awaited }, effects);
        }
    }

    /// A new leader has in its log what earlier ones may have decided; it proposes that again by itself, and nothing of it
    /// a second time (Santos 2012: viewChangeFinished).
    fn begin_to_lead(&mut self) {
        let mut proposed: BTreeSet<BatchId> = BTreeSet::new();
        self.inner.for_each_proposal(&mut |batch| proposed.extend(batch.id()));
        if self.has(Bug::ForgetReproposed) {
            proposed.clear();
        }
        self.store.begin_to_propose(&proposed, &self.members, self.unneeded_holders());
    }

    /// Makes the effects of the inner protocol since `mark` those of this replica.
    pub(super) fn edit(&mut self, mark: usize, effects: &mut Effects) {
        let mut rewritten = Vec::new();
        for effect in effects.split_off(mark) {
            match effect {
                Effect::Deliver { slot, ballots, batch } => {
                    if let Some(batch) = self.resolve(slot, batch, &mut rewritten) {
                        effects.push(Effect::Deliver { slot, ballots, batch });
                    }
                }
                Effect::Deadline(deadline) => self.inner_deadline = deadline,
                effect => effects.push(effect),
            }
        }
        // Behind what the inner protocol has written: records are numbered in the order in which they are written.
        for record in rewritten {
            effects.append(record);
        }
    }

    /// What a slot delivers.
    fn resolve(&mut self, slot: Slot, decided: Batch, rewritten: &mut Vec<crate::Record>) -> Option<Batch> {
        if self.lacks {
            return None;
        }
        let void = decided.id().is_some_and(|id| self.table.voids(id));
        let batch = match decided.id().filter(|_| decided.is_reference()) {
            Some(id) if !void => {
                let Some((batch, keep)) = self.store.take_delivered(id) else {
                    let excused = self.is_over || self.options.planted.is_some();
                    assert!(excused, "the batch of a decided reference is here: {id}");
                    self.lacks = self.is_over;
                    return Some(decided).filter(|_| !self.lacks);
                };
                assert!(decided.stands_for(&batch), "two batches are called {id}");
                if keep < slot && !self.has(Bug::TrimHeld) {
                    rewritten.push(Record::Held { keep: slot, batch: batch.clone() }.into());
                }
                batch
            }
            _ => {
                debug_assert!(!by_reference(&decided) || decided.is_reference(), "ordered by reference");
                decided
            }
        };
        Arc::make_mut(&mut self.table).deliver(&batch);
        self.stale = true;
        Some(batch)
    }

    /// The log is about to forget slots through this one: what is held and not delivered must stay.
    pub(super) fn keep_longer(&mut self, trimmed: Slot, effects: &mut Effects) {
        if self.has(Bug::TrimHeld) {
            return;
        }
        let keep = self.kept_from(self.decided().max(trimmed));
        for (_, known) in self.store.iter_mut().filter(|(_, known)| known.keep <= trimmed) {
            if let Some(batch) = &known.batch {
                known.keep = keep;
                effects.append(Record::Held { keep, batch: batch.clone() }.into());
            }
        }
    }
}

/// The replica that made a batch.
fn origin(id: BatchId) -> Option<ReplicaId> {
    id.origin.of_replica().map(|(replica, _)| replica)
}
