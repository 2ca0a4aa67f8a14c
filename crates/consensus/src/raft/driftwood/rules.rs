//! The rules that rounds of gossip add: each a function of plain data, with the line of the document that states it.
//!
//! They all rest on one fact: a log whose entry in some slot is of the leader's term is the leader's log through that
//! slot (Log Matching). The tests try every pair of small logs. A planted bug replaces one rule (`planted.rs`).

use synod_wire::{Ballot, Slot};

use crate::rules::rules;

rules! {
    // Commit statuses.

    /// Whether what a status says of `told` may be merged with what is known of `known`: what replicas hold is said of
    /// one leader's log, and nothing of another's (Driftwood 2023, ERR-8).
    fn may_merge(told: Ballot, known: Ballot) -> bool {
        told == known
    }

    /// Whether what is known of `known` is dropped when `begins` begins, for the same reason (ERR-8).
    fn forgets_status(known: Ballot, begins: Ballot) -> bool {
        known != begins
    }

    /// The slot through which the log counts as stable: what is on the disk (Ng 2020, E30).
    #[allow(unused_variables, reason = "a planted bug counts what is written and not durable")]
    fn stable_through(stable: Slot, written: Slot) -> Slot {
        stable
    }

    /// Whether a log that ends with an entry of `last` is a beginning of the log of the leader of `ballot`. If so, what
    /// stands in it may be committed (Driftwood 2023, figure 12, corrected by ERR-11).
    fn follows(last: Ballot, ballot: Ballot) -> bool {
        last == ballot
    }

    /// The slot through which a replica says that it holds the log of the leader of `ballot`: through `durable`, if the
    /// entry there, of the ballot `there`, is the leader's (Driftwood 2023, section 3.3, with ERR-9).
    fn held_through(durable: Slot, there: Option<Ballot>, ballot: Ballot) -> Slot {
        if there == Some(ballot) { durable } else { Slot::ZERO }
    }

    /// The slot after which a replica counts no holders: the end of its log, if that is a beginning of the leader's. It
    /// does not know which voters count in slots behind it (the document's voters never change).
    fn counted_through(end: Slot, last: Ballot, ballot: Ballot) -> Slot {
        if follows(last, ballot) { end } else { Slot::ZERO }
    }

    /// The slot through which a replica whose log ends at `end` delivers: what is committed, as far as its log is
    /// verified to be the leader's (Driftwood 2023, figure 12, all servers, corrected by ERR-11: the smaller one, and
    /// not the greater).
    #[allow(unused_variables, reason = "a planted bug delivers through the end of the log")]
    fn delivered_through(committed: Slot, verified: Slot, end: Slot) -> Slot {
        committed.min(verified)
    }

    // Rounds, and answers to them.

    /// The slot through which a reply to a round says that the logs are equal: the one that the round showed (ERR-6).
    #[allow(unused_variables, reason = "a planted bug answers with the end of the log")]
    fn replies_through(shown: Slot, end: Slot) -> Slot {
        shown
    }

    /// The ballot that the entry before a round's entries must have: the one that the round names, whether entries came
    /// with it or not (Ongaro 2014, figure 3.1, AppendEntries, step 2).
    #[allow(unused_variables, reason = "a planted bug takes the log's own where no entries came")]
    fn compares(named: Ballot, own: Option<Ballot>, has_entries: bool) -> Ballot {
        named
    }

    /// Whether a log may be served that ends with an entry of `last`, to a replica that asks for the log of `ballot`
    /// (ERR-11).
    fn may_serve(last: Ballot, ballot: Ballot) -> bool {
        follows(last, ballot)
    }

    // Reads.

    /// Whether a read waits for all that is proposed: where another replica may know of more decisions than the leader.
    fn reads_wait_for_all(any_may_commit: bool) -> bool {
        any_may_commit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{
        Bug,
        driftwood::planted,
        rules::tests::{at, ballot, end, logs, may_stand_beside},
    };

    const TERM: u64 = 3;

    fn for_each_pair(mut check: impl FnMut(&[u64], &[u64])) {
        let logs = logs(3, TERM);
        for leader in &logs {
            logs.iter().filter(|log| may_stand_beside(log, leader, TERM)).for_each(|log| check(leader, log));
        }
    }

    #[test]
    fn what_a_replica_says_that_it_holds_is_the_leaders() {
        for_each_pair(|leader, log| {
            let equal = |through: usize| leader.get(..through).is_some_and(|begin| begin == &log[..through]);
            for durable in 0..=log.len() {
                let slot = Slot(durable as u64);
                let held = held_through(slot, at(log, slot), ballot(TERM));
                let own = durable > 0 && log[durable - 1] == TERM;
                assert!(held == if own { slot } else { Slot::ZERO } && equal(held.0 as usize), "{log:?}");
            }
            let end = end(log);
            let whole = equal(log.len());
            assert!(!follows(end.ballot, ballot(TERM)) || whole, "{log:?} is not {leader:?}");
            let counted = counted_through(end.slot, end.ballot, ballot(TERM));
            assert!(counted == Slot::ZERO || counted == end.slot && whole, "{log:?} {leader:?}");
        });
    }

    /// Whatever the leader has committed, and however far the log of a follower was verified.
    #[test]
    fn what_a_replica_delivers_is_committed_and_the_leaders() {
        for_each_pair(|leader, log| {
            let equal = log.iter().zip(leader).take_while(|(one, other)| one == other).count();
            for committed in 0..=leader.len() {
                for verified in 0..=equal {
                    let (committed_slot, verified_slot) = (Slot(committed as u64), Slot(verified as u64));
                    let end = end(log).slot;
                    let through = delivered_through(committed_slot, verified_slot, end).0 as usize;
                    assert!(through <= committed && log[..through] == leader[..through]);
                    assert!(through == committed || through == verified, "and no less");
                }
            }
        });
    }

    #[test]
    fn statements_of_different_ballots_do_not_meet() {
        for (told, known) in (0..4).flat_map(|told| (0..4).map(move |known| (told, known))) {
            let (told_of, known_of) = (ballot(told), ballot(known));
            assert_eq!(may_merge(told_of, known_of), told == known);
            assert_eq!(forgets_status(told_of, known_of), told != known);
            assert_eq!(may_serve(told_of, known_of), told == known);
        }
    }

    #[test]
    fn a_round_is_compared_and_answered_by_what_it_shows() {
        let (shown, end) = (Slot(3), Slot(5));
        assert_eq!((replies_through(shown, end), stable_through(shown, end)), (shown, shown));
        for (own, has_entries) in
            [None, Some(ballot(2))].into_iter().flat_map(|own| [(own, false), (own, true)])
        {
            assert_eq!(compares(ballot(1), own, has_entries), ballot(1));
        }
        assert!(reads_wait_for_all(true) && !reads_wait_for_all(false));
    }

    /// A planted bug that changed nothing would never be found.
    #[test]
    fn a_planted_bug_replaces_its_rule() {
        let with =
            |bug: Bug| planted::rules(&crate::Options { planted: Some(bug.into()), ..Default::default() });
        let (old, new) = (ballot(1), ballot(2));
        assert!(
            with(Bug::MergeOlderTerms).may_merge(old, new) && !with(Bug::MergeOlderTerms).may_merge(new, old)
        );
        assert!(!with(Bug::KeepStatusOfTerm).forgets_status(old, new));
        assert!(with(Bug::ServeAnyLog).may_serve(old, new));
        assert!(!with(Bug::ReadAtCommit).reads_wait_for_all(true));
        let (near, far) = (Slot(3), Slot(5));
        assert_eq!(with(Bug::AckBeforeDurable).stable_through(near, far), far);
        assert_eq!(with(Bug::HoldAnyTerm).held_through(near, Some(old), new), near);
        assert_eq!(with(Bug::CountBeyondLog).counted_through(near, new, new), Slot(u64::MAX));
        assert_eq!(with(Bug::CommitEverything).delivered_through(near, far, far), far);
        assert_eq!(with(Bug::CommitAnyTerm).delivered_through(far, near, Slot(4)), Slot(4));
        assert_eq!(with(Bug::ReplyWithLast).replies_through(near, far), far);
        assert_eq!(with(Bug::FitByLength).compares(old, Some(new), false), new);
    }
}
