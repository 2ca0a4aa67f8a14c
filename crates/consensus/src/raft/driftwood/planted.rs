//! The rules of rounds of gossip as a replica follows them: those of `rules.rs`, of which a planted bug replaces one.

use synod_wire::{Ballot, Slot};

use super::rules;
use crate::raft::{Bug, planted::Rules};

impl Rules {
    /// See [`rules::is_of_one_ballot`], of what comes.
    pub(super) fn may_merge(self, told: Ballot, known: Ballot) -> bool {
        rules::is_of_one_ballot(told, known) || self.has(Bug::MergeOlderTerms) && told < known
    }

    /// See [`rules::is_of_one_ballot`], of what is known.
    pub(super) fn forgets_status(self, known: Ballot, begins: Ballot) -> bool {
        !rules::is_of_one_ballot(known, begins) && !self.has(Bug::KeepStatusOfTerm)
    }

    /// The slot through which the log counts as stable: what is on the disk.
    pub(super) fn stable_through(self, stable: Slot, written: Slot) -> Slot {
        if self.has(Bug::AckBeforeDurable) { written } else { stable }
    }

    /// See [`rules::held_through`].
    pub(super) fn held_through(self, durable: Slot, there: Option<Ballot>, ballot: Ballot) -> Slot {
        match self.has(Bug::HoldAnyTerm) {
            true => durable,
            false => rules::held_through(durable, there, ballot),
        }
    }

    /// See [`rules::counted_through`].
    pub(super) fn counted_through(self, end: Slot, last: Ballot, ballot: Ballot) -> Slot {
        match self.has(Bug::CountBeyondLog) {
            true => Slot(u64::MAX),
            false => rules::counted_through(end, last, ballot),
        }
    }

    /// See [`rules::delivered_through`]; the log ends at `end`.
    pub(super) fn delivered_through(self, committed: Slot, verified: Slot, end: Slot) -> Slot {
        if self.has(Bug::CommitEverything) {
            return verified;
        }
        rules::delivered_through(committed, if self.has(Bug::CommitAnyTerm) { end } else { verified })
    }

    /// Whether a log may be served that ends with an entry of `last`, to a replica that asks for the leader's of `ballot`:
    /// see [`rules::follows`].
    pub(super) fn may_serve(self, last: Ballot, ballot: Ballot) -> bool {
        rules::follows(last, ballot) || self.has(Bug::ServeAnyLog)
    }

    /// The slot through which a reply to a round says that the logs are equal: the one that the round showed (ERR-6).
    pub(super) fn replies_through(self, shown: Slot, end: Slot) -> Slot {
        if self.has(Bug::ReplyWithLast) { end } else { shown }
    }

    /// The ballot that the entry before a round's entries must have: the one that the round names, whether entries came
    /// with it or not.
    pub(super) fn compares(self, named: Ballot, own: Option<Ballot>, has_entries: bool) -> Ballot {
        own.filter(|_| !has_entries && self.has(Bug::FitByLength)).unwrap_or(named)
    }

    /// Whether a read waits for all that is proposed: where another replica may know of more decisions than the leader.
    pub(in crate::raft) fn reads_wait_for_all(self, any_may_commit: bool) -> bool {
        any_may_commit && !self.has(Bug::ReadAtCommit)
    }
}
