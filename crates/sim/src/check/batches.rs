//! Batches that travel apart from their order: who holds them when they are referred to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use synod_consensus::{
    Message, Record,
    dissemination::{self, Holdings},
};
use synod_replica::{Group, LogRecord, PeerMessage, Routed};
use synod_wire::{Ballot, Batch, BatchId, Epoch, Life, Lsn, ReplicaId, Slot};

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
    /// The replicas that have held a batch durably in an epoch, as a set of bits, whatever became of their logs since.
    durable: BTreeMap<(Epoch, BatchId), u64>,
    /// The voters of an epoch, as a set of bits.
    voters: BTreeMap<Epoch, u64>,
    /// The epochs in which proposals name batches that their receiver has sent to the leader.
    sparing: BTreeSet<Epoch>,
    /// The batches that replicas sent to leaders.
    forwarded: BTreeMap<BatchId, Batch>,
    /// Where each batch was proposed by reference in an epoch.
    placed: BTreeMap<(Epoch, BatchId), Places>,
    /// In which slot a batch was delivered first.
    counted: BTreeMap<BatchId, Slot>,
    /// The latest life of each replica that had a batch delivered, and the number below which it waits for none.
    floors: BTreeMap<ReplicaId, (Life, u64)>,
}

impl Batches {
    /// This many replicas at most.
    #[must_use]
    pub fn new(replicas: usize) -> Batches {
        Batches {
            holders: (0..replicas).map(|_| Holder::default()).collect(),
            durable: BTreeMap::new(),
            voters: BTreeMap::new(),
            sparing: BTreeSet::new(),
            forwarded: BTreeMap::new(),
            placed: BTreeMap::new(),
            counted: BTreeMap::new(),
            floors: BTreeMap::new(),
        }
    }

    /// A replica is in an epoch of this group.
    pub fn epoch_begins(&mut self, group: &Group) {
        let voters = group.voters().fold(0_u64, |set, id| set | 1 << (id.0 - 1));
        self.voters.insert(group.epoch, voters);
        if group.spares_origins() {
            self.sparing.insert(group.epoch);
        }
    }

    /// A message leaves a replica.
    pub fn sent(&mut self, message: &PeerMessage) {
        if let PeerMessage::Direct(Routed::Forward(batch))
        | PeerMessage::Relayed { message: Routed::Forward(batch), .. } = message
        {
            self.forwarded.extend(batch.id().map(|id| (id, batch.clone())));
        }
    }

    /// A message of an epoch as the protocol of its sender made it, without references to what its receiver has sent.
    #[must_use]
    pub fn filled(&self, epoch: Epoch, message: &Message) -> Message {
        let known = |batch: &Batch| {
            let forwarded =
                batch.id().filter(|_| batch.is_reference()).and_then(|id| self.forwarded.get(&id));
            forwarded.filter(|whole| batch.stands_for(whole)).cloned()
        };
        let filled =
            self.sparing.contains(&epoch).then(|| message.body().with_batches(&mut |batch| known(batch)));
        filled.flatten().unwrap_or_else(|| message.clone())
    }

    /// A replica appends a record. What the record refers to is in its log, unless the reference does not count in its
    /// slot, as `counts` says: the batch was delivered, or the epoch ends before the slot.
    pub fn appended(
        &mut self,
        of: usize,
        lsn: Lsn,
        record: &LogRecord,
        counts: impl Fn(Slot, BatchId) -> bool,
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
            if let Some(id) = id.filter(|id| !holder.held.contains(id) && counts(slot, *id)) {
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

    /// A message of an epoch leaves a replica. What it says it holds, it has held durably, unless that was ordered.
    /// What a leader proposes by reference, a quorum has held durably; and a leader proposes nothing in a slot of its
    /// choice that it proposes in another slot. What it says it has delivered (through `delivered`), it has; slots
    /// through `decided` are decided.
    pub fn said(
        &mut self,
        (from, delivered): (ReplicaId, Slot),
        epoch: Epoch,
        message: &Message,
        decided: Slot,
    ) -> Checked {
        if let Message::Dissemination(dissemination::Message::Delivered { decided: through }) = message {
            demand(*through <= delivered, Invariant::HeldIsDurable, || {
                format!("{from} says that it has delivered slot {through}, and it is at slot {delivered}")
            })?;
        }
        for id in held(message).into_iter().flat_map(Holdings::ids) {
            let holders = self.durable.get(&(epoch, id)).copied().unwrap_or_default();
            let holds = holders & 1 << (from.0 - 1) != 0 || self.counted.contains_key(&id);
            demand(holds, Invariant::HeldIsDurable, || {
                format!("{from} says that it holds {id}, and has not held it durably in epoch {epoch}")
            })?;
        }
        for (ballot, slot, batch) in proposed(from, message) {
            let Some(id) = batch.id().filter(|_| batch.is_reference()) else { continue };
            let twice = self.placed.entry((epoch, id)).or_default().twice_with(ballot, slot);
            demand(twice.is_none(), Invariant::ProposedOnce, || {
                let other = twice.expect("there is one");
                format!("{from} proposes {id} in slot {slot} and in slot {other}, in ballot {ballot}")
            })?;
            if slot <= decided {
                continue;
            }
            let voters = self.voters.get(&epoch).copied().unwrap_or_default();
            let holders = self.durable.get(&(epoch, id)).copied().unwrap_or_default() & voters;
            demand(holders.count_ones() > voters.count_ones() / 2, Invariant::StableBeforeProposed, || {
                let holders = holders.count_ones();
                format!("{from} proposes {id} in slot {slot}; {holders} voters have held the batch durably")
            })?;
        }
        Ok(())
    }

    /// A slot is delivered for the first time by anybody. A batch that is ordered by reference counts once; a reference
    /// that is delivered as it is does not count.
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

/// Where a batch was proposed in an epoch.
#[derive(Debug, Default)]
struct Places {
    /// The ballot that first proposed it in a slot.
    first: BTreeMap<Slot, Ballot>,
    /// The slots in which a ballot proposed it.
    of: BTreeMap<Ballot, BTreeSet<Slot>>,
}

impl Places {
    /// A ballot proposes it in a slot. Returns another slot in which it did so too, if it chose one of them: in the
    /// others it only repeats what earlier ballots may have decided.
    fn twice_with(&mut self, ballot: Ballot, slot: Slot) -> Option<Slot> {
        self.first.entry(slot).or_insert(ballot);
        let slots = self.of.entry(ballot).or_default();
        slots.insert(slot);
        let chosen = slots.iter().any(|slot| self.first[slot] == ballot);
        slots.iter().copied().find(|&other| chosen && other != slot)
    }
}

/// The batches that a message says its sender holds.
fn held(message: &Message) -> Option<&Holdings> {
    match message {
        Message::Dissemination(
            dissemination::Message::Held { held } | dissemination::Message::Forward { held, .. },
        ) => Some(held),
        _ => None,
    }
}

/// What a message proposes that this replica sends: in which ballot, in which slot, and what.
fn proposed(from: ReplicaId, message: &Message) -> Vec<(Ballot, Slot, &Batch)> {
    use synod_consensus::{Claim, TermClaim};
    let claims = message.body().claims_of(from).into_iter().filter_map(|claim| match claim {
        Claim::Propose { ballot, slot, batch, .. } => Some((ballot, slot, batch)),
        _ => None,
    });
    let terms = message.body().term_claims_of(from);
    let leader = terms.iter().find_map(|claim| match claim {
        TermClaim::Leads { ballot, .. } => Some(*ballot),
        _ => None,
    });
    let entries = terms.into_iter().filter_map(|claim| match claim {
        TermClaim::Entry { slot, batch, .. } => Some((leader?, slot, batch)),
        _ => None,
    });
    claims.chain(entries).collect()
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
        batches.appended(of, Lsn(1), &logged(record), |_, _| true).unwrap();
    }

    fn refers(batches: &mut Batches, of: usize, delivered: bool) -> Checked {
        let reference = batch(1).reference().unwrap();
        let ballot = Ballot { round: 1, replica: ReplicaId(1) };
        let (first, decided) = (Slot(1), Slot::ZERO);
        let record = multipaxos::Record::Accepted { ballot, first, decided, batches: [reference].into() };
        batches.appended(of, Lsn(2), &logged(record), |_, _| !delivered)
    }

    #[test]
    fn a_reference_is_written_after_its_batch() {
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
        let proposes = |batches: &mut Batches| {
            batches.said((ReplicaId(1), Slot::ZERO), Epoch(1), &accept.clone().into(), Slot::ZERO)
        };
        assert!(proposes(&mut batches).is_err());
        batches.durable(1, Lsn(1));
        assert!(proposes(&mut batches).is_ok());
    }

    #[test]
    fn an_acknowledgement_waits_for_the_disk() {
        let held = [batch(1).id().unwrap()].into_iter().collect();
        let held = Message::from(dissemination::Message::Held { held });
        let says = |batches: &mut Batches, from| {
            batches.said((ReplicaId(from), Slot::ZERO), Epoch(1), &held, Slot::ZERO)
        };
        let mut batches = batches();
        holds(&mut batches, 0);
        assert_eq!(says(&mut batches, 1).unwrap_err().invariant, Invariant::HeldIsDurable);
        batches.durable(0, Lsn(1));
        assert!(says(&mut batches, 1).is_ok());
        assert!(says(&mut batches, 2).is_err(), "another replica holds it");
        batches.delivered(Slot(1), true, &batch(1)).unwrap();
        assert!(says(&mut batches, 2).is_ok(), "it was ordered");
    }

    #[test]
    fn what_a_replica_says_it_has_delivered_it_has() {
        let delivered = Message::from(dissemination::Message::Delivered { decided: Slot(3) });
        let says = |at| batches().said((ReplicaId(1), Slot(at)), Epoch(1), &delivered, Slot(9));
        assert_eq!(says(2).unwrap_err().invariant, Invariant::HeldIsDurable);
        assert!(says(3).is_ok());
    }

    #[test]
    fn a_ballot_proposes_a_batch_once_unless_it_repeats_earlier_ballots() {
        let ballot = |round| Ballot { round, replica: ReplicaId(1) };
        let mut places = Places::default();
        assert_eq!(places.twice_with(ballot(1), Slot(2)), None);
        assert_eq!(places.twice_with(ballot(2), Slot(1)), None, "it does not know of slot 2");
        assert_eq!(places.twice_with(ballot(3), Slot(1)), None);
        assert_eq!(places.twice_with(ballot(3), Slot(2)), None, "both were proposed before");
        assert_eq!(places.twice_with(ballot(3), Slot(3)), Some(Slot(1)));
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
