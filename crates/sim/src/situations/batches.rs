//! Situations with batches that travel apart from their order.

use std::collections::{BTreeMap, BTreeSet};

use synod_consensus::{Message, Record, Role, Threshold, dissemination};
use synod_replica::{Event, Group, LogRecord, PeerMessage};
use synod_wire::{Batch, BatchId, ReplicaId};

use super::{Reached, Sight, Situation, scene::Scene};

/// Which replicas have which batches, as their logs tell.
#[derive(Debug)]
pub(super) struct Watcher {
    /// The batches of which each replica wrote a record, since it lost its log last.
    held: Vec<BTreeSet<BatchId>>,
    /// The batches that came to each replica in this life: it may write the record at the end of a burst.
    arrived: Vec<BTreeSet<BatchId>>,
    /// The batches to which a message referred that came to each replica before them: its sender, and whether a later
    /// message of that sender came since.
    lacked: Vec<BTreeMap<BatchId, (ReplicaId, bool)>>,
    /// The batches to which other records of that log refer.
    referred: Vec<BTreeSet<BatchId>>,
    /// The batches that some replica has delivered, or that no replica delivers any more.
    over: BTreeSet<BatchId>,
}

impl Watcher {
    pub(super) fn new(capacity: usize) -> Watcher {
        let none = vec![BTreeSet::new(); capacity];
        let lacked = vec![BTreeMap::new(); capacity];
        Watcher { held: none.clone(), arrived: none.clone(), lacked, referred: none, over: BTreeSet::new() }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        if let Sight::Starts { of, .. } = *sight {
            self.arrived[of].clear();
            self.lacked[of].clear();
        }
        match *sight {
            Sight::Starts { of, amnesia: true, .. } => {
                let lost = std::mem::take(&mut self.held[of]);
                reached.mark(Situation::HeldLost, lost.iter().any(|id| !self.over.contains(id)));
                self.referred[of].clear();
            }
            Sight::Takes {
                of,
                event: Event::Receive { from, message: PeerMessage::Protocol { message, .. } },
            } => self.comes(of, *from, message, reached),
            Sight::Appends { of, record: LogRecord::Protocol { record, .. } } => match record {
                Record::Dissemination(dissemination::Record::Held { batch, .. }) => {
                    let id = batch.id().expect("what is held has a name");
                    self.held[of].insert(id);
                    let holders = scene.voters.iter().filter(|&&voter| self.held[voter].contains(&id));
                    let quorum = holders.count() >= Threshold::Majority.least(scene.voters.len())
                        && !self.over.contains(&id);
                    let lacks = |leader: usize| !self.held[leader].contains(&id);
                    let leaders = scene.leaders().any(|(leader, _)| lacks(leader));
                    reached.mark(Situation::LeaderWithoutBatch, quorum && leaders);
                }
                record => {
                    record.body().for_each_batch(&mut |_, batch| self.referred[of].extend(referred(batch)))
                }
            },
            Sight::Delivers { first: true, batch, .. } => self.delivered(scene, batch, reached),
            Sight::Stepped { of, .. } if scene.actors[of].becomes(Role::Leader) => {
                let inherits = self.referred[of].iter().any(|id| !self.over.contains(id));
                reached.mark(Situation::LeaderInheritsReferences, inherits);
            }
            Sight::Regroups { before, group, .. } => self.regrouped(before, group, reached),
            _ => {}
        }
    }

    fn comes(&mut self, of: usize, from: ReplicaId, message: &Message, reached: &mut Reached) {
        if !matches!(message, Message::Dissemination(_)) {
            let of_sender = self.lacked[of].values_mut().filter(|(sender, _)| *sender == from);
            of_sender.for_each(|(_, overtaken)| *overtaken = true);
        }
        message.body().for_each_batch(&mut |batch| match referred(batch) {
            Some(id) => {
                let lacks =
                    [&self.held[of], &self.arrived[of], &self.over].iter().all(|ids| !ids.contains(&id));
                reached.mark(Situation::ReferenceFirst, lacks);
                if lacks {
                    self.lacked[of].entry(id).or_insert((from, false));
                }
            }
            None => {
                let Some(id) = batch.id() else { return };
                self.arrived[of].insert(id);
                let overtaken = self.lacked[of].remove(&id).is_some_and(|(_, overtaken)| overtaken);
                reached.mark(Situation::ParkedTakenLate, overtaken);
            }
        });
    }

    fn delivered(&mut self, scene: &Scene, batch: &Batch, reached: &mut Reached) {
        let Some(id) = batch.id() else { return };
        reached.mark(Situation::DecidedTwice, batch.is_reference() && self.over.contains(&id));
        if !self.held.iter().any(|held| held.contains(&id)) {
            // It was ordered as it is.
            return;
        }
        let lacks = |&&voter: &&usize| scene.actors[voter].runs() && !self.held[voter].contains(&id);
        reached.mark(Situation::DecidedBeforeHeld, scene.voters.iter().any(|voter| lacks(&voter)));
        self.over.insert(id);
        let given_up = BatchId { number: 0, ..id }..BatchId { number: batch.floor(), ..id };
        let given_up = self.held.iter().flat_map(|held| held.range(given_up.clone()));
        let given_up: Vec<BatchId> = given_up.copied().filter(|id| !self.over.contains(id)).collect();
        reached.mark(Situation::BatchGivenUp, !given_up.is_empty());
        self.over.extend(given_up);
    }

    fn regrouped(&self, before: &Group, group: &Group, reached: &mut Reached) {
        let under_way = self.held.iter().flatten().any(|id| !self.over.contains(id));
        reached.mark(Situation::EpochWithBatches, under_way && before.epoch != group.epoch);
    }
}

/// The batch to which a reference refers.
fn referred(batch: &Batch) -> Option<BatchId> {
    batch.id().filter(|_| batch.is_reference())
}

#[cfg(test)]
mod tests {
    use super::{super::stories::three, *};
    use synod_consensus::dissemination::Holdings;
    use synod_wire::{BatchBuilder, Incarnation, SessionId, replica_session};

    fn batch(number: u64, floor: u64) -> Batch {
        let origin = replica_session(ReplicaId(2), Incarnation(1), 0);
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), number, 1, b"x");
        builder.finish_as(BatchId { origin, number }, floor)
    }

    fn holds(of: usize, batch: &Batch, seen: &mut crate::situations::Situations) {
        let record = dissemination::Record::Held { keep: synod_wire::Slot(9), batch: batch.clone() };
        let record = LogRecord::Protocol { epoch: synod_wire::Epoch(1), record: record.into() };
        seen.see(&Sight::Appends { of, record: &record });
    }

    #[test]
    fn a_message_that_waits_is_overtaken_by_a_later_one_of_the_same_sender() {
        use synod_consensus::{Batches, multipaxos};
        use synod_wire::{Ballot, Epoch, Slot};
        let accept = |batch: Batch| multipaxos::Message::Accept {
            ballot: Ballot { round: 1, replica: ReplicaId(1) },
            first: Slot(1),
            decided: Slot::ZERO,
            batches: [batch].into(),
        };
        let comes = |from, message| Event::Receive {
            from: ReplicaId(from),
            message: PeerMessage::Protocol { epoch: Epoch(1), message },
        };
        let reached = |later: u64| {
            let mut seen = three();
            seen.takes(0, &comes(2, accept(batch(1, 1).reference().unwrap()).into()));
            seen.takes(0, &comes(later, accept(Batch::noop()).into()));
            let batches = Batches::from([batch(1, 1)]);
            let forward = dissemination::Message::Forward { held: Holdings::default(), batches };
            seen.takes(0, &comes(2, forward.into()));
            seen.reached().has(Situation::ParkedTakenLate)
        };
        assert!(!reached(3), "it comes from another sender");
        assert!(reached(2));
    }

    #[test]
    fn a_batch_is_decided_twice_if_its_reference_is_delivered_after_it() {
        let mut seen = three();
        let batch = batch(1, 1);
        let reference = batch.reference().unwrap();
        holds(0, &batch, &mut seen);
        for delivered in [&batch, &reference] {
            assert!(!seen.reached().has(Situation::DecidedTwice));
            seen.see(&Sight::Delivers { of: 0, first: true, batch: delivered });
        }
        assert!(seen.reached().has(Situation::DecidedTwice));
    }

    #[test]
    fn a_batch_is_given_up_if_a_later_one_of_its_origin_says_so() {
        let given_up = |held: u64, floor: u64| {
            let mut seen = three();
            let (earlier, later) = (batch(held, 1), batch(5, floor));
            holds(0, &earlier, &mut seen);
            holds(1, &later, &mut seen);
            seen.see(&Sight::Delivers { of: 0, first: true, batch: &later });
            seen.reached().has(Situation::BatchGivenUp)
        };
        assert!(!given_up(4, 4), "it is still waited for");
        assert!(!given_up(5, 5), "it is the same");
        assert!(given_up(4, 5));
    }
}
