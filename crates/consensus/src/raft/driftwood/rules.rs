//! The rules that rounds of gossip add: each a function of plain data, with the line of the document that states it.
//!
//! They all rest on one fact: a log whose entry in some slot is of the leader's term is the leader's log through that
//! slot (Log Matching). The tests try every pair of small logs. A planted bug replaces one rule (`planted.rs`).

use synod_wire::{Ballot, Slot};

/// Whether what a status says of `told` may be merged with what is known of `known`, and is kept when `known` begins:
/// what replicas hold is said of one leader's log, and nothing of another's (Driftwood 2023, ERR-8).
pub(in crate::raft) fn is_of_one_ballot(told: Ballot, known: Ballot) -> bool {
    told == known
}

/// Whether a log that ends with an entry of `last` is a beginning of the log of the leader of `ballot`. If so, what
/// stands in it may be committed (Driftwood 2023, figure 12, corrected by ERR-11), and served to others.
pub(in crate::raft) fn follows(last: Ballot, ballot: Ballot) -> bool {
    last == ballot
}

/// The slot through which a replica says that it holds the log of the leader of `ballot`: through `durable`, if the
/// entry there, of the ballot `there`, is the leader's (Driftwood 2023, section 3.3, with ERR-9).
pub(in crate::raft) fn held_through(durable: Slot, there: Option<Ballot>, ballot: Ballot) -> Slot {
    if there == Some(ballot) { durable } else { Slot::ZERO }
}

/// The slot after which a replica counts no holders: the end of its log, if that is a beginning of the leader's. It does
/// not know which voters count in slots behind it (the document's voters never change).
pub(in crate::raft) fn counted_through(end: Slot, last: Ballot, ballot: Ballot) -> Slot {
    if follows(last, ballot) { end } else { Slot::ZERO }
}

/// The slot through which a replica delivers: what is committed, as far as its log is verified to be the leader's
/// (Driftwood 2023, figure 12, all servers, corrected by ERR-11: the smaller one, and not the greater).
pub(in crate::raft) fn delivered_through(committed: Slot, verified: Slot) -> Slot {
    committed.min(verified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::rules::tests::{at, ballot, end, logs, may_stand_beside};

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
                    let through = delivered_through(Slot(committed as u64), Slot(verified as u64)).0 as usize;
                    assert!(through <= committed && log[..through] == leader[..through]);
                    assert!(through == committed || through == verified, "and no less");
                }
            }
        });
    }

    #[test]
    fn statements_of_different_ballots_do_not_meet() {
        for (told, known) in (0..4).flat_map(|told| (0..4).map(move |known| (told, known))) {
            assert_eq!(is_of_one_ballot(ballot(told), ballot(known)), told == known);
        }
    }
}
