//! Whether a replica that lost something of its log could learn it from another one.
//!
//! Asked before anything is set aside: the log of a replica that decides by itself is the only copy of what it decided.

use std::collections::BTreeMap;

use synod_consensus::{Record, VoterSets, multipaxos, raft, sequence_paxos};
use synod_replica::{Group, LogRecord};
use synod_wire::{Batch, ReplicaId, Slot};

/// Whether `me` is the only voter of `group`, and nobody can have become one since: ids are given in order and once, so
/// a birth of an id that the group has not given yet is of a later member. One of a lower id is of a learner, or of a
/// member that was removed.
pub(crate) fn is_alone(group: &Group, me: ReplicaId, births: &BTreeMap<ReplicaId, u64>) -> bool {
    group.voter_sets() == VoterSets::simple(vec![me]) && births.keys().all(|id| *id < group.next_id)
}

/// The group as the log knows it, which may lack records. `group` is that of the snapshot through `base`, or the first
/// one.
///
/// A change that ends an epoch counts once it is known to be decided. One that the epoch's protocol makes itself counts as
/// soon as it is in the log, as it does there: until it is decided, the voters before it are asked too.
pub(crate) fn latest_group(group: Group, base: Slot, records: &[LogRecord]) -> Group {
    let mut group = group;
    let mut held: BTreeMap<Slot, Batch> = BTreeMap::new();
    let mut decided = base;
    let mut entered = Vec::new();
    for record in records {
        match record {
            LogRecord::Entered { group, .. } => {
                decided = decided.max(group.first.prev());
                entered.push(group);
            }
            LogRecord::Learned { slot, batch, .. } | LogRecord::Decided { slot, batch, .. } => {
                decided = decided.max(*slot);
                hold(&mut held, *slot, [batch]);
            }
            LogRecord::Trimmed(slot) | LogRecord::Ended { slot, .. } => decided = decided.max(*slot),
            LogRecord::Protocol { record, .. } => decided = decided.max(hold_record(&mut held, record)),
        }
    }
    for (slot, batch) in held.split_off(&base.next()) {
        if let Some(Ok(next)) = group.behind(slot, &batch)
            && (slot <= decided || next.epoch == group.epoch)
        {
            group = next;
        }
    }
    let later = entered.into_iter().filter(|entered| entered.epoch > group.epoch);
    later.max_by_key(|entered| entered.epoch).cloned().unwrap_or(group)
}

/// Notes what the record holds of changes; returns through which slot it says that all is decided.
fn hold_record(held: &mut BTreeMap<Slot, Batch>, record: &Record) -> Slot {
    match record {
        Record::MultiPaxos(multipaxos::Record::Accepted { first, batches, decided, .. }) => {
            hold(held, *first, &**batches);
            *decided
        }
        Record::SequencePaxos(sequence_paxos::Record::Accepted { start, batches, decided, .. }) => {
            held.split_off(start);
            hold(held, *start, &**batches);
            *decided
        }
        Record::SequencePaxos(sequence_paxos::Record::Adopted { from, batches, decided, .. }) => {
            held.split_off(from);
            hold(held, *from, &**batches);
            *decided
        }
        Record::Raft(raft::Record::Entries { start, entries, decided, .. }) => {
            held.split_off(start);
            hold(held, *start, entries.iter().map(|entry| &entry.batch));
            *decided
        }
        Record::Raft(raft::Record::Truncated { from, .. }) => {
            held.split_off(from);
            Slot::ZERO
        }
        _ => Slot::ZERO,
    }
}

fn hold<'a>(held: &mut BTreeMap<Slot, Batch>, first: Slot, batches: impl IntoIterator<Item = &'a Batch>) {
    let mut slot = first;
    for batch in batches {
        if batch.reconfiguration().is_some() || batch.is_settling() {
            held.insert(slot, batch.clone());
        } else {
            held.remove(&slot);
        }
        slot = slot.next();
    }
}

#[cfg(test)]
mod tests {
    use synod_consensus::{Options, ProtocolKind};
    use synod_replica::{Change, ChangeRequest, Goal, MemberInfo};
    use synod_wire::{Ballot, BatchBuilder, CommandKind, Epoch, SessionId};

    use super::*;

    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    fn change(group: &Group, change: Change) -> Batch {
        let request = ChangeRequest { expected: group.version, change };
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &request.encode().to_bytes());
        builder.finish()
    }

    fn accepted(protocol: ProtocolKind, slot: u64, decided: u64, batch: Batch) -> LogRecord {
        let ballot = Ballot { round: 1, replica: R1 };
        let (slot, decided) = (Slot(slot), Slot(decided));
        let record = match protocol {
            ProtocolKind::Raft => raft::Record::Entries {
                start: slot,
                entries: [raft::Entry { ballot, batch, voters: None }].into(),
                decided,
                decided_in: ballot,
            }
            .into(),
            _ => {
                multipaxos::Record::Accepted { ballot, first: slot, decided, batches: [batch].into() }.into()
            }
        };
        LogRecord::Protocol { epoch: Epoch(1), record }
    }

    #[test]
    fn a_learner_and_those_who_were_removed_help_nobody_and_a_later_member_may() {
        let alone = Group::of(&Options::of(ProtocolKind::Raft), [R1]);
        let add = Change::Add { info: MemberInfo::default(), goal: Goal::Vote };
        let with_learner =
            alone.apply(Slot(1), &ChangeRequest { expected: alone.version, change: add }).unwrap();
        let births = |id| BTreeMap::from([(ReplicaId(id), 5)]);
        assert!(is_alone(&alone, R1, &BTreeMap::new()));
        assert!(!is_alone(&alone, R1, &births(2)), "added since");
        assert!(is_alone(&with_learner, R1, &births(2)));
        assert!(!is_alone(&with_learner, R1, &births(3)));
        assert!(!is_alone(&Group::of(&Options::of(ProtocolKind::Raft), [R1, R2]), R1, &BTreeMap::new()));
    }

    #[test]
    fn a_change_that_ends_the_epoch_counts_once_it_is_decided() {
        let two = Group::of(&Options::of(ProtocolKind::MultiPaxos), [R1, R2]);
        let removal = change(&two, Change::Remove(R2));
        for (decided, alone) in [(0, false), (1, true)] {
            let records = [
                accepted(ProtocolKind::MultiPaxos, 1, 0, removal.clone()),
                accepted(ProtocolKind::MultiPaxos, 2, decided, Batch::noop()),
            ];
            let group = latest_group(two.clone(), Slot::ZERO, &records);
            assert_eq!(is_alone(&group, R1, &BTreeMap::from([(R2, 5)])), alone);
        }
    }

    #[test]
    fn what_was_overwritten_in_the_log_is_no_change() {
        let alone = Group::of(&Options::of(ProtocolKind::Raft), [R1]);
        let add = Change::Add { info: MemberInfo::default(), goal: Goal::Vote };
        let added = accepted(ProtocolKind::Raft, 1, 0, change(&alone, add));
        let group = latest_group(alone.clone(), Slot::ZERO, std::slice::from_ref(&added));
        assert_eq!(group.learners().count(), 1);
        let records = [added, accepted(ProtocolKind::Raft, 1, 0, Batch::noop())];
        assert_eq!(latest_group(alone.clone(), Slot::ZERO, &records), alone);
    }
}
