//! What a log proves to be decided although records of it are lost.
//!
//! A record is proof of a decision together with a later one that says through which slot all was decided
//! "with the values that the log holds". What the log held is known only from the last lost record on: that
//! one may have replaced anything. So records are read in sections without a gap, at the beginning of each of
//! which nothing is known. docs/repair.md has the argument; each protocol's folder says what its records
//! prove, next to what a restart makes of them.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Ballots, Batch, BatchId, Slot};

use crate::{Record, staged::Staged};

/// The proofs in a record.
pub trait Prove {
    /// Adds what the record proves, with what the log holds, if records are lost.
    fn prove(&self, proofs: &mut Proofs);
}

/// What the records of one epoch's instance prove, read in the order of the log.
#[derive(Clone, Debug, Default)]
pub struct Proofs {
    /// What the log is known to hold: for each slot, the ballot in which it was proposed, and the batch.
    /// Nothing proves yet that it is decided.
    held: BTreeMap<Slot, (Ballot, Batch)>,
    /// The ballot of the whole sequence, for a protocol that has one.
    sequence: Ballot,
    /// Pages of a sequence that is not whole yet.
    pub(crate) staged: Staged,
    decided: BTreeMap<Slot, (Ballots, Batch)>,
    /// The batches for which references may stand.
    batches: BTreeMap<BatchId, Batch>,
    /// Which bug is planted.
    #[cfg(feature = "planted-bugs")]
    planted: Option<crate::Bug>,
}

impl Proofs {
    /// Proofs of no records yet, perhaps with a planted bug.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn planted(planted: Option<crate::Bug>) -> Proofs {
        Proofs { planted, ..Proofs::default() }
    }

    #[cfg(feature = "planted-bugs")]
    fn has(&self, bug: crate::Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Without the feature no bug is planted.
    #[cfg(not(feature = "planted-bugs"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn has(&self, _: crate::Bug) -> bool {
        false
    }

    /// Takes in the record that follows the last one.
    pub fn read(&mut self, record: &Record) {
        if record.amnesia() == Some(true) {
            // The life that wrote it did not know everything that was written before.
            self.skip();
        }
        record.body().prove(self);
    }

    /// Marks records as lost here.
    pub fn skip(&mut self) {
        if self.has(crate::Bug::RepairAcrossGaps) {
            return;
        }
        self.held.clear();
        self.sequence = Ballot::ZERO;
        self.staged = Staged::default();
    }

    /// Records that all is decided through this slot, perhaps with other values than the log holds.
    pub fn cover(&mut self, through: Slot) {
        self.held = self.held.split_off(&through.next());
    }

    /// What is proven, by slot.
    #[must_use]
    pub fn into_decided(mut self) -> BTreeMap<Slot, (Ballots, Batch)> {
        if self.has(crate::Bug::RepairBelievesVotes) {
            self.decide(Slot(u64::MAX - 1), Ballots::both);
        }
        // A reference whose batch is lost says no more than a gap.
        let batches = &self.batches;
        let whole = |batch: &mut Batch| {
            let Some(id) = batch.id().filter(|_| batch.is_reference()) else { return true };
            let held = batches.get(&id).filter(|held| batch.stands_for(held));
            held.map(|held| *batch = held.clone()).is_some()
        };
        self.decided.retain(|_, (_, batch)| whole(batch));
        self.decided
    }

    /// Records that the log holds a batch for which references may stand: that is true whatever else is lost.
    pub(crate) fn hold_batch(&mut self, batch: &Batch) {
        if let Some(id) = batch.id() {
            self.batches.insert(id, batch.clone());
        }
    }

    /// Records that, from here on, the log holds these batches in consecutive slots.
    pub fn hold<'a>(&mut self, first: Slot, batches: impl IntoIterator<Item = (Ballot, &'a Batch)>) {
        let held = batches.into_iter().map(|(ballot, batch)| (ballot, batch.clone()));
        let first_counts = self.has(crate::Bug::RepairKeepsReplaced);
        for (slot, held) in (first.0..).map(Slot).zip(held) {
            if !first_counts || !self.held.contains_key(&slot) {
                self.held.insert(slot, held);
            }
        }
    }

    /// Records that, from here on, the log holds nothing from this slot on.
    pub(crate) fn cut(&mut self, from: Slot) {
        if self.has(crate::Bug::RepairKeepsReplaced) {
            return;
        }
        self.held.split_off(&from);
    }

    /// Records that the ballot of the sequence is at least this one.
    pub(crate) fn accepted_in(&mut self, ballot: Ballot) {
        self.sequence = self.sequence.max(ballot);
    }

    /// The ballot of the sequence, as far as it is known. It is known if anything is held: the record that
    /// holds it contains it, and so does every record that makes it higher.
    pub(crate) fn sequence(&self) -> Ballot {
        self.sequence
    }

    /// Records that what the log holds through this slot is decided; `ballots` makes its ballots out of
    /// the one in which it was proposed.
    pub fn decide(&mut self, through: Slot, ballots: impl Fn(Ballot) -> Ballots) {
        let tail = self.held.split_off(&through.next());
        let held = std::mem::replace(&mut self.held, tail);
        for (slot, (ballot, batch)) in held {
            // What is decided stays so, though the log may hold it a second time.
            self.decided.entry(slot).or_insert_with(|| (ballots(ballot), batch));
        }
    }

    /// Records that a peer told that this is decided.
    pub fn learn(&mut self, slot: Slot, ballots: Ballots, batch: &Batch) {
        self.held.remove(&slot);
        self.decided.insert(slot, (ballots, batch.clone()));
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{BatchBuilder, ReplicaId, SessionId};

    use super::*;
    use crate::{multipaxos, raft, sequence_paxos};

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    fn batch(text: &str) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, text.as_bytes());
        builder.finish()
    }

    /// What these records prove; `None` is a lost record.
    fn proven(records: Vec<Option<Record>>) -> Vec<(u64, Ballots, Batch)> {
        let mut proofs = Proofs::default();
        for record in records {
            match record {
                Some(record) => proofs.read(&record),
                None => proofs.skip(),
            }
        }
        let decided = proofs.into_decided().into_iter();
        decided.map(|(slot, (ballots, batch))| (slot.0, ballots, batch)).collect()
    }

    fn voted(round: u64, first: u64, decided: u64, texts: &[&str]) -> Option<Record> {
        let (ballot, first, decided) = (ballot(round), Slot(first), Slot(decided));
        let batches = texts.iter().map(|text| batch(text)).collect();
        Some(multipaxos::Record::Accepted { ballot, first, decided, batches }.into())
    }

    #[test]
    fn a_vote_counts_only_if_no_lost_record_lies_between_it_and_the_proof() {
        let of = |round| Ballots::both(ballot(round));
        let whole = proven(vec![voted(1, 1, 0, &["a", "b"]), voted(2, 2, 0, &["B"]), voted(2, 3, 2, &["c"])]);
        assert_eq!(whole, [(1, of(1), batch("a")), (2, of(2), batch("B"))], "the last one counts");
        // The second record is lost: slot 2 held something else when it was decided.
        let lost =
            proven(vec![voted(1, 1, 0, &["a", "b"]), None, voted(2, 3, 2, &["c"]), voted(2, 4, 3, &["d"])]);
        assert_eq!(lost, [(3, of(2), batch("c"))]);
    }

    #[test]
    fn what_a_peer_told_counts_by_itself() {
        let value = multipaxos::AcceptedValue { slot: Slot(7), ballot: ballot(3), batch: batch("x") };
        let learned = Some(multipaxos::Record::Learned(value).into());
        assert_eq!(proven(vec![None, learned, None]), [(7, Ballots::both(ballot(3)), batch("x"))]);
    }

    fn appended(round: u64, first: u64, decided: (u64, u64), texts: &[&str]) -> Option<Record> {
        let entry = |text: &&str| raft::Entry { ballot: ballot(round), batch: batch(text), voters: None };
        let entries = texts.iter().map(entry).collect();
        let (decided, decided_in) = (Slot(decided.0), ballot(decided.1));
        Some(raft::Record::Entries { first: Slot(first), entries, decided, decided_in }.into())
    }

    #[test]
    fn entries_that_were_removed_prove_nothing() {
        let removed = Some(raft::Record::Truncated { from: Slot(2), last: Slot(3) }.into());
        let records = vec![appended(1, 1, (0, 0), &["a", "b", "c"]), removed, appended(3, 4, (3, 3), &["d"])];
        let both = |proposed, decided| Ballots { proposed: ballot(proposed), decided: ballot(decided) };
        assert_eq!(proven(records), [(1, both(1, 3), batch("a"))]);
        // What a longer record replaced after its end is gone, too.
        let records = vec![appended(1, 1, (0, 0), &["a", "b", "c"]), appended(2, 2, (3, 2), &["B"])];
        assert_eq!(proven(records), [(1, both(1, 2), batch("a")), (2, both(2, 2), batch("B"))]);
    }

    fn page(from: u64, texts: &[&str]) -> Option<Record> {
        let batches = texts.iter().map(|text| batch(text)).collect();
        let (first, from) = (Slot(1), Slot(from));
        Some(sequence_paxos::Record::Staged { ballot: ballot(2), first, from, batches }.into())
    }

    fn adopted(from: u64, decided: u64, texts: &[&str]) -> Option<Record> {
        let batches = texts.iter().map(|text| batch(text)).collect();
        let (first, from, decided, covers) = (Slot(1), Slot(from), Slot(decided), Slot(9));
        Some(
            sequence_paxos::Record::Adopted { ballot: ballot(2), first, from, decided, covers, batches }
                .into(),
        )
    }

    fn extended(first: u64, decided: u64, texts: &[&str]) -> Option<Record> {
        let batches = texts.iter().map(|text| batch(text)).collect();
        let (first, decided) = (Slot(first), Slot(decided));
        Some(sequence_paxos::Record::Accepted { ballot: ballot(2), first, decided, batches }.into())
    }

    #[test]
    fn a_sequence_without_one_of_its_pages_proves_only_what_lies_in_the_others() {
        let of = Ballots::both(ballot(2));
        let whole = vec![page(1, &["a"]), page(2, &["b"]), adopted(3, 0, &["c"]), extended(4, 3, &["d"])];
        let all = [(1, of, batch("a")), (2, of, batch("b")), (3, of, batch("c"))];
        assert_eq!(proven(whole), all);
        let torn = vec![page(1, &["a"]), None, adopted(3, 0, &["c"]), extended(4, 3, &["d"])];
        assert_eq!(proven(torn), [(3, of, batch("c"))]);
        // What the record says of decisions is about the sequence before it.
        let before = vec![extended(1, 0, &["A"]), adopted(1, 1, &["a", "b"]), extended(3, 1, &["c"])];
        assert_eq!(proven(before)[0].2, batch("A"));
    }

    #[test]
    fn what_was_written_before_a_loss_is_not_known_to_be_held_after_it() {
        let lost = Some(multipaxos::Record::Amnesia(true).into());
        assert_eq!(proven(vec![voted(1, 1, 0, &["a"]), lost, voted(2, 2, 1, &["b"])]), []);
        let born = Some(multipaxos::Record::Amnesia(false).into());
        assert_eq!(proven(vec![born, voted(1, 1, 0, &["a"]), voted(2, 2, 1, &["b"])]).len(), 1);
    }
}
