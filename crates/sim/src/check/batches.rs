//! Batches that travel apart from their order: who holds them when they are referred to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use synod_consensus::{Message, Record, dissemination};
use synod_replica::{Group, LogRecord};
use synod_wire::{Batch, BatchId, Epoch, Life, Lsn, ReplicaId, Slot};

use super::invariant::{Checked, Invariant, demand};

/// What is known of one replica's log.
#[derive(Debug, Default)]
struct Holder {
    /// Batches whose records are not durable yet.
    pending: VecDeque<(Lsn, Epoch, BatchId)>,
    /// Batches of which a record was written since the log was lost last.
    held: BTreeSet<BatchId>,
}

/// Which replicas hold which batches, by index.
#[derive(Debug)]
pub struct Batches {
    holders: Vec<Holder>,
    /// Who has held a batch durably in an epoch, as a set of bits, whatever became of its log since.
    durable: BTreeMap<(Epoch, BatchId), u64>,
    /// The voters of an epoch, as a set of bits.
    voters: BTreeMap<Epoch, u64>,
    /// In which slot a batch was delivered first.
    counted: BTreeMap<BatchId, Slot>,
    /// The latest life of each replica that had a batch delivered, and the number below which it waits for none.
    floors: BTreeMap<ReplicaId, (Life, u64)>,
}

impl Batches {
    /// So many replicas at most.
    #[must_use]
    pub fn new(replicas: usize) -> Batches {
        Batches {
            holders: (0..replicas).map(|_| Holder::default()).collect(),
            durable: BTreeMap::new(),
            voters: BTreeMap::new(),
            counted: BTreeMap::new(),
            floors: BTreeMap::new(),
        }
    }

    /// A replica is in an epoch of this group.
    pub fn epoch_begins(&mut self, group: &Group) {
        let voters = group.voters().fold(0_u64, |set, id| set | 1 << (id.0 - 1));
        self.voters.insert(group.epoch, voters);
    }

    /// A replica appends a record. What the record refers to is in its log, or was delivered: `delivered` says so.
    pub fn appended(
        &mut self,
        of: usize,
        lsn: Lsn,
        record: &LogRecord,
        delivered: impl Fn(BatchId) -> bool,
    ) -> Checked {
        let LogRecord::Protocol { epoch, record } = record else { return Ok(()) };
        let holder = &mut self.holders[of];
        if let Record::Dissemination(dissemination::Record::Held { batch, .. }) = record {
            let id = batch.id().expect("what is held has a name");
            holder.pending.push_back((lsn, *epoch, id));
            holder.held.insert(id);
            return Ok(());
        }
        let mut missing = None;
        record.body().for_each_batch(&mut |slot, batch| {
            let id = batch.id().filter(|_| batch.is_reference());
            if let Some(id) = id.filter(|id| !holder.held.contains(id) && !delivered(*id)) {
                missing.get_or_insert((slot, id));
            }
        });
        demand(missing.is_none(), Invariant::BatchesHeld, || {
            let (slot, id) = missing.expect("there is one");
            format!("r{} writes a reference to {id} for slot {slot}, and does not hold the batch", of + 1)
        })
    }

    /// A replica's records through `lsn` are durable.
    pub fn durable(&mut self, of: usize, lsn: Lsn) {
        while let Some(&(at, epoch, id)) = self.holders[of].pending.front()
            && at <= lsn
        {
            self.holders[of].pending.pop_front();
            *self.durable.entry((epoch, id)).or_default() |= 1 << of;
        }
    }

    /// A replica starts with these records.
    pub fn restarted(&mut self, of: usize, records: impl Iterator<Item = (Lsn, LogRecord)>) {
        self.holders[of] = Holder::default();
        for (_, record) in records {
            if let LogRecord::Protocol { epoch, record: Record::Dissemination(record) } = record {
                let dissemination::Record::Held { batch, .. } = record;
                let id = batch.id().expect("what is held has a name");
                self.holders[of].held.insert(id);
                *self.durable.entry((epoch, id)).or_default() |= 1 << of;
            }
        }
    }

    /// A message of an epoch leaves a replica. What a leader proposes by reference, a quorum has held durably.
    pub fn said(&self, from: ReplicaId, epoch: Epoch, message: &Message, decided: Slot) -> Checked {
        for (slot, batch) in proposed(message) {
            let Some(id) = batch.id().filter(|_| batch.is_reference() && slot > decided) else { continue };
            let voters = self.voters.get(&epoch).copied().unwrap_or_default();
            let holders = self.durable.get(&(epoch, id)).copied().unwrap_or_default() & voters;
            demand(holders.count_ones() > voters.count_ones() / 2, Invariant::StableBeforeProposed, || {
                let holders = holders.count_ones();
                format!("{from} proposes {id} in slot {slot}; {holders} voters have held the batch durably")
            })?;
        }
        Ok(())
    }

    /// A slot is delivered for the first time by anybody. A batch that is ordered by reference counts once; a reference that is
    /// delivered as it is does not count.
    pub fn delivered(&mut self, slot: Slot, by_reference: bool, batch: &Batch) -> Checked {
        let Some(id) = batch.id() else { return Ok(()) };
        if batch.is_reference() {
            return demand(
                self.counted.contains_key(&id) || self.is_given_up(id),
                Invariant::OrderedOnce,
                || {
                    format!(
                        "slot {slot} delivers a reference to {id} as it is, and no slot before it has ordered the batch"
                    )
                },
            );
        }
        if let Some((replica, life)) = id.origin.of_replica() {
            let latest = self.floors.entry(replica).or_insert((life, batch.floor()));
            *latest = (*latest).max((life, batch.floor()));
        }
        let earlier = *self.counted.entry(id).or_insert(slot);
        demand(earlier == slot || !by_reference, Invariant::OrderedOnce, || {
            format!("slot {slot} orders {id}, which slot {earlier} has ordered")
        })
    }

    /// Whether the origin of a batch has said that it does not wait for it any more.
    fn is_given_up(&self, id: BatchId) -> bool {
        let Some((replica, life)) = id.origin.of_replica() else { return false };
        self.floors.get(&replica).is_some_and(|&latest| (life, id.number) < latest)
    }
}

/// What a message proposes, with the slots.
fn proposed(message: &Message) -> Vec<(Slot, &Batch)> {
    use synod_consensus::{Claim, TermClaim};
    let claims = message.body().claims().into_iter().filter_map(|claim| match claim {
        Claim::Propose { slot, batch, .. } => Some((slot, batch)),
        _ => None,
    });
    let terms = message.body().term_claims().into_iter().filter_map(|claim| match claim {
        TermClaim::Entry { slot, batch, .. } => Some((slot, batch)),
        _ => None,
    });
    claims.chain(terms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::{Options, multipaxos};
    use synod_wire::{Ballot, BatchBuilder, Incarnation, SessionId, replica_session};

    fn batch(number: u64) -> Batch {
        let origin = replica_session(ReplicaId(1), Incarnation(1), 0);
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"x");
        builder.finish_as(BatchId { origin, number }, 1)
    }

    fn batches() -> Batches {
        let mut batches = Batches::new(3);
        batches.epoch_begins(&Group::of(&Options::default(), [1, 2, 3].map(ReplicaId)));
        batches
    }

    fn logged(record: impl Into<Record>) -> LogRecord {
        LogRecord::Protocol { epoch: Epoch(1), record: record.into() }
    }

    fn holds(batches: &mut Batches, of: usize) {
        let record = dissemination::Record::Held { keep: Slot(9), batch: batch(1) };
        batches.appended(of, Lsn(1), &logged(record), |_| false).unwrap();
    }

    fn refers(batches: &mut Batches, of: usize, delivered: bool) -> Checked {
        let reference = batch(1).reference().unwrap();
        let ballot = Ballot { round: 1, replica: ReplicaId(1) };
        let (first, decided) = (Slot(1), Slot::ZERO);
        let record = multipaxos::Record::Accepted { ballot, first, decided, batches: [reference].into() };
        batches.appended(of, Lsn(2), &logged(record), |_| delivered)
    }

    #[test]
    fn a_reference_is_written_behind_its_batch() {
        let mut batches = batches();
        assert!(refers(&mut batches, 0, false).is_err());
        assert!(refers(&mut batches, 0, true).is_ok());
        holds(&mut batches, 0);
        assert!(refers(&mut batches, 0, false).is_ok());
        batches.restarted(0, std::iter::empty());
        assert!(refers(&mut batches, 0, false).is_err(), "the log was lost");
    }

    #[test]
    fn a_proposal_waits_for_a_quorum() {
        let ballot = Ballot { round: 1, replica: ReplicaId(1) };
        let batch = batch(1).reference().unwrap();
        let accept = multipaxos::Message::Accept {
            ballot,
            first: Slot(1),
            decided: Slot::ZERO,
            batches: [batch].into(),
        };
        let mut batches = batches();
        (0..2).for_each(|of| holds(&mut batches, of));
        batches.durable(0, Lsn(1));
        let proposes =
            |batches: &Batches| batches.said(ReplicaId(1), Epoch(1), &accept.clone().into(), Slot::ZERO);
        assert!(proposes(&batches).is_err());
        batches.durable(1, Lsn(1));
        assert!(proposes(&batches).is_ok());
    }

    #[test]
    fn a_batch_that_is_ordered_by_reference_counts_once() {
        let mut batches = batches();
        assert!(batches.delivered(Slot(1), true, &batch(1)).is_ok());
        assert!(batches.delivered(Slot(2), true, &batch(1)).is_err());
        assert!(batches.delivered(Slot(3), false, &batch(1)).is_ok(), "sessions tell commands apart");
    }

    #[test]
    fn what_does_not_count_was_ordered_before_or_given_up() {
        let mut batches = batches();
        let reference = |number| batch(number).reference().unwrap();
        batches.delivered(Slot(1), true, &batch(2)).unwrap();
        assert!(batches.delivered(Slot(2), true, &reference(2)).is_ok());
        assert!(batches.delivered(Slot(3), true, &reference(1)).is_err(), "its origin waits for it");
        let origin = replica_session(ReplicaId(1), Incarnation(2), 0);
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"x");
        batches.delivered(Slot(3), true, &builder.finish_as(BatchId { origin, number: 1 }, 1)).unwrap();
        assert!(batches.delivered(Slot(4), true, &reference(1)).is_ok(), "that life is over");
    }
}
