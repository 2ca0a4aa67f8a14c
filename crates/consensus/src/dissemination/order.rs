//! The leader proposes references; a replica that delivers one delivers its batch.

use std::{collections::BTreeSet, sync::Arc};

use synod_wire::{Batch, BatchId, ReplicaId, Slot, Time};

use super::{Balanced, Leads, Record, by_reference};
use crate::{Effect, Effects, Input};

impl Balanced {
    /// Proposes what a quorum holds, if this replica leads.
    pub(super) fn order(&mut self, now: Time, effects: &mut Effects) {
        let ballot = self.leading();
        if ballot != self.leads.map(|leads| leads.ballot) {
            let settled = self.inner.status().decided_elsewhere;
            self.leads = ballot.map(|ballot| Leads { ballot, settled, began: false });
        }
        // What was proposed in another ballot is sent to the leader of the present one.
        self.unnamed.retain(|(proposed, ..)| Some(*proposed) == ballot);
        let Some(leads) = self.leads else { return };
        while self.inner.room() > 0
            && let Some((_, batch, awaited)) = self.unnamed.pop_front()
        {
            self.step_inner(now, Input::Propose { batch, awaited }, effects);
        }
        if !leads.began && self.decided() >= leads.settled {
            self.begin_to_propose();
            self.leads = Some(Leads { began: true, ..leads });
        }
        while self.leads.is_some_and(|leads| leads.began) && self.inner.room() > 0 {
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

    /// A new leader has in its log what earlier ones may have decided; it proposes that again by itself, and nothing of
    /// it twice. It looks once everything that was decided before its time is delivered: until then its log may hold,
    /// in a slot that was decided with another batch, a batch that no slot holds any more.
    fn begin_to_propose(&mut self) {
        let mut proposed: BTreeSet<BatchId> = BTreeSet::new();
        self.inner.for_each_proposal(&mut |batch| proposed.extend(batch.id()));
        let (members, rules) = (&self.members, self.rules());
        let proposed = rules.proposed_already(proposed);
        self.store.begin_to_propose(&proposed, |holders| rules.is_stable(members, holders));
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
        // After what the inner protocol has written: records are numbered in the order in which they are written.
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
                if !self.rules().is_kept(keep, slot) {
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
        (self.stale, self.arrived) = (true, true);
        Some(batch)
    }

    /// Drops batches that would be void if they were decided. The inner protocol's log may refer to one: the log keeps
    /// it until the log is trimmed through a slot by which it is void, since a replica that starts again from an
    /// earlier snapshot does not know that it is.
    pub(super) fn drop_void(&mut self, effects: &mut Effects) {
        let (keep, rules) = (self.decided(), self.rules());
        for batch in self.store.drop_void(&self.table, |kept| rules.is_kept(kept, keep)) {
            effects.append(Record::Held { keep, batch }.into());
        }
    }

    /// The log is about to forget slots through this one: what is held and not delivered must stay.
    pub(super) fn keep_longer(&mut self, trimmed: Slot, effects: &mut Effects) {
        let (keep, rules) = (self.kept_from(self.decided().max(trimmed)), self.rules());
        for (_, known) in self.store.iter_mut() {
            if let Some(batch) = &known.batch
                && !rules.is_kept(known.keep, trimmed.next())
            {
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
