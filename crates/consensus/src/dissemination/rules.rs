//! The rules of dissemination: each a function of plain data, with the line of the document that states it
//! (docs/dissemination.md has the argument).
//!
//! A planted bug replaces one in a replica's table of rules (`planted.rs`).

use std::collections::BTreeSet;

use synod_wire::{BatchId, Lsn, Slot};

use super::Record;
use crate::{Members, ReplicaSet, rules::rules};

rules! {
    // Holding.

    /// A replica writes a batch down when it takes it in, so that a vote for its reference is a vote for the batch
    /// ("Why it is safe"; Santos 2012, section 10.2, keeps it in memory).
    fn writes(held: Record) -> Option<Record> {
        Some(held)
    }

    /// A replica acknowledges a batch once its record is durable (Santos 2012, Algorithm 10.1, ACK, with "How
    /// `balanced` works", step 2).
    fn acknowledges_after(record: Lsn) -> Lsn {
        record
    }

    /// Whether a batch that the log keeps through `kept` is kept long enough for a slot that needs it: the log may
    /// forget no batch before its delivery is in what a restart begins with.
    fn is_kept(kept: Slot, needed: Slot) -> bool {
        kept >= needed
    }

    // Ordering.

    /// The leader proposes a reference once a quorum holds its batch (Santos 2012, Algorithm 10.1: f + 1
    /// acknowledgements).
    fn is_stable(members: &Members, holders: ReplicaSet) -> bool {
        members.is_quorum(holders)
    }

    /// What a new leader has in its log it proposes again by itself, and nothing of it twice.
    fn proposed_already(in_log: BTreeSet<BatchId>) -> BTreeSet<BatchId> {
        in_log
    }

    /// An inner protocol sees a message once it refers to no batch that is not here ("Why it is safe").
    fn may_see(lacked: &[BatchId]) -> bool {
        lacked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{Batch, BatchBuilder, ReplicaId, SessionId};

    use super::*;
    use crate::{
        Options,
        dissemination::{Bug, planted},
    };

    fn with(bug: Bug) -> Rules {
        planted::rules(&Options { planted: Some(crate::Bug::Dissemination(bug)), ..Options::default() })
    }

    fn id(number: u64) -> BatchId {
        BatchId { origin: SessionId(1), number }
    }

    fn batch() -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"x");
        builder.finish_as(id(1), 1)
    }

    /// Every quorum, and so the one of the next leader's Phase 1, has a member that holds a stable batch.
    #[test]
    fn a_batch_is_stable_if_every_quorum_has_a_holder() {
        for n in 1..=5u64 {
            let members = Members::new((1..=n).map(ReplicaId), ReplicaId(1));
            let set = |bits: u64| members.those(|id| bits >> (id.0 - 1) & 1 == 1);
            let quorums: Vec<u64> =
                (0..1u64 << n).filter(|bits| u64::from(bits.count_ones()) * 2 > n).collect();
            for holders in 0..1u64 << n {
                let meets_all = quorums.iter().all(|quorum| quorum & holders != 0);
                let stable = is_stable(&members, set(holders));
                assert_eq!(stable, quorums.contains(&holders), "{n} members, {holders:b}");
                assert!(!stable || meets_all);
                assert!(with(Bug::ProposeUnstable).is_stable(&members, set(holders)));
            }
        }
    }

    #[test]
    fn a_batch_is_kept_as_long_as_a_slot_needs_it() {
        for (kept, needed) in (0..4).flat_map(|kept| (0..4).map(move |needed| (kept, needed))) {
            let forgotten_first = (0..needed).any(|trimmed_through| trimmed_through >= kept);
            assert_eq!(is_kept(Slot(kept), Slot(needed)), !forgotten_first, "{kept} {needed}");
            assert!(with(Bug::TrimHeld).is_kept(Slot(kept), Slot(needed)));
        }
    }

    #[test]
    fn a_batch_is_acknowledged_and_seen_when_it_is_here() {
        for record in (0..4).map(Lsn) {
            assert_eq!(acknowledges_after(record), record);
            assert_eq!(with(Bug::AcknowledgeBeforeDurable).acknowledges_after(record), Lsn::ZERO);
        }
        let held = Record::Held { keep: Slot(9), batch: batch() };
        assert_eq!(
            (writes(held.clone()), with(Bug::HoldUnrecorded).writes(held.clone())),
            (Some(held), None)
        );
        assert!(may_see(&[]) && !may_see(&[id(1)]) && with(Bug::VoteWithoutBatch).may_see(&[id(1)]));
        let log: BTreeSet<BatchId> = [id(1), id(2)].into();
        assert_eq!(proposed_already(log.clone()), log);
        assert!(with(Bug::ForgetReproposed).proposed_already(log).is_empty());
    }
}
