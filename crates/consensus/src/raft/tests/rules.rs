//! Each rule, and a twin that tries every small case.

use super::*;
use crate::{
    Options,
    raft::{Bug, planted},
};

pub(crate) fn ballot(term: u64) -> Ballot {
    Ballot { round: term, replica: ReplicaId(term) }
}

/// All logs of at most `len` entries, as the terms of their entries, of terms that never decrease from 1 to `term`.
pub(crate) fn logs(len: usize, term: u64) -> Vec<Vec<u64>> {
    let mut logs = vec![vec![]];
    let mut from = 0;
    for _ in 0..len {
        let to = logs.len();
        for index in from..to {
            let least = logs[index].last().copied().unwrap_or(1);
            logs.extend((least..=term).map(|term| [&logs[index][..], &[term]].concat()).collect::<Vec<_>>());
        }
        from = to;
    }
    logs
}

pub(crate) fn end(log: &[u64]) -> Position {
    Position { slot: Slot(log.len() as u64), ballot: log.last().map_or(Ballot::ZERO, |&term| ballot(term)) }
}

pub(crate) fn at(log: &[u64], slot: Slot) -> Option<Ballot> {
    match slot.0.checked_sub(1) {
        Some(index) => log.get(index as usize).map(|&term| ballot(term)),
        None => Some(Ballot::ZERO),
    }
}

/// Whether a log may exist beside that of the leader of the last term: what it has of that term came from the leader,
/// with all that stands before it.
pub(crate) fn may_stand_beside(log: &[u64], leader: &[u64], term: u64) -> bool {
    log.iter().rposition(|&of| of == term).is_none_or(|last| leader.get(..=last) == Some(&log[..=last]))
}

fn subsets(of: &[u64]) -> impl Iterator<Item = Vec<ReplicaId>> {
    (0..1u32 << of.len()).map(move |bits| {
        let those = of.iter().enumerate().filter(move |(index, _)| bits >> index & 1 == 1);
        those.map(|(_, &id)| ReplicaId(id)).collect()
    })
}

/// Every configuration of at most four replicas.
fn configurations() -> Vec<VoterSets> {
    let simple = || subsets(&[1, 2, 3, 4]).filter(|half| !half.is_empty());
    let outgoing = || subsets(&[1, 2, 3, 4]);
    simple().flat_map(|half| outgoing().map(move |other| VoterSets::joint(half.clone(), other))).collect()
}

/// More than half of the future voters, and of the former ones, if there are any.
fn is_majority_of_each(voters: &VoterSets, set: &[ReplicaId]) -> bool {
    let most = |half: &[ReplicaId]| 2 * half.iter().filter(|id| set.contains(id)).count() > half.len();
    most(voters.incoming()) && (voters.outgoing().is_empty() || most(voters.outgoing()))
}

#[test]
fn votes_of_a_majority_of_each_group_elect_and_any_two_elections_share_a_voter() {
    for voters in configurations() {
        let electing: Vec<_> = subsets(&[1, 2, 3, 4]).filter(|granted| elects(&voters, granted)).collect();
        for granted in subsets(&[1, 2, 3, 4]) {
            assert_eq!(elects(&voters, &granted), is_majority_of_each(&voters, &granted), "{voters:?}");
        }
        for (one, other) in electing.iter().flat_map(|one| electing.iter().map(move |other| (one, other))) {
            assert!(one.iter().any(|id| other.contains(id)), "{voters:?}: {one:?} and {other:?}");
        }
    }
}

#[test]
fn a_quorum_has_reached_the_highest_slot_that_all_of_some_majority_have() {
    for voters in configurations() {
        for held in 0..3u64.pow(4) {
            let held = |id: ReplicaId| Slot(held / 3u64.pow(id.0 as u32 - 1) % 3);
            let least = |set: Vec<ReplicaId>| set.into_iter().map(held).min().expect("it is a majority");
            let majorities =
                subsets(&[1, 2, 3, 4]).filter(|set| !set.is_empty() && is_majority_of_each(&voters, set));
            assert_eq!(Some(reached_by_quorum(&voters, &held)), majorities.map(least).max(), "{voters:?}");
        }
    }
}

#[test]
fn votes_that_come_twice_count_once() {
    let voters = VoterSets::simple((1..=4).map(ReplicaId).collect());
    for votes in 0..4u64.pow(5) {
        let votes: Vec<_> = (0..5).map(|place| ReplicaId(1 + votes / 4u64.pow(place) % 4)).collect();
        let mut granted = Vec::new();
        for &voter in &votes {
            if counts_vote(&granted, voter) {
                granted.push(voter);
            }
        }
        let distinct: std::collections::BTreeSet<_> = votes.iter().collect();
        assert_eq!((granted.len(), elects(&voters, &granted)), (distinct.len(), distinct.len() > 2));
    }
}

/// Every order in which three candidates, one of which may be the voter itself, ask four times in a term.
#[test]
fn a_voter_votes_for_one_candidate_a_term() {
    for asked in 0..3u64.pow(4) {
        let mut voted_for = None;
        let mut given = Vec::new();
        for place in 0..4 {
            let candidate = ReplicaId(asked / 3u64.pow(place) % 3);
            if may_vote(voted_for, candidate, false) {
                voted_for = Some(candidate);
                given.push(candidate);
            }
        }
        let first = ReplicaId(asked % 3);
        assert!(given.iter().all(|&id| id == first), "{given:?}");
        let asks_again = (0..4).filter(|&place| asked / 3u64.pow(place) % 3 == first.0).count();
        assert_eq!(given.len(), asks_again, "and for that one as often as it asks");
    }
    assert!(!may_vote(None, ReplicaId(2), true), "a leader votes for no other");
}

/// The twin compares whole logs, entry by entry, from their ends.
#[test]
fn logs_are_compared_by_term_then_by_length() {
    let logs = logs(3, 3);
    for (mine, other) in logs.iter().flat_map(|mine| logs.iter().map(move |other| (mine, other))) {
        let granted = is_up_to_date(end(other), end(mine));
        let twin = match (mine.last(), other.last()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(my_term), Some(term)) if my_term == term => other.len() >= mine.len(),
            (Some(my_term), Some(term)) => term > my_term,
        };
        assert_eq!(granted, twin, "{mine:?} votes for {other:?}");
        assert!(granted || is_up_to_date(end(mine), end(other)), "one of two can always win");
        assert!(!other.starts_with(mine) || granted, "a candidate that has all that the voter has");
    }
}

/// Leader Completeness, by trying all: once a leader of term 3 may commit a slot, no replica that lacks it can win the
/// votes of a majority of three. With an entry of an older term one can: that is figure 3.7.
#[test]
fn what_a_leader_may_commit_every_later_leader_has() {
    let (term, logs) = (3, logs(3, 3));
    let mut replaced = 0;
    for leader in &logs {
        let followers: Vec<_> = logs.iter().filter(|log| may_stand_beside(log, leader, term)).collect();
        for (second, third) in
            followers.iter().flat_map(|second| followers.iter().map(move |third| (second, third)))
        {
            let agree = |log: &[u64]| log.iter().zip(leader).take_while(|(one, other)| one == other).count();
            // The second replica has acknowledged all that it has of the leader's log.
            let reached = Slot(agree(second) as u64);
            let has = |log: &[u64]| agree(log) as u64 >= reached.0;
            let candidate_lacks = !has(third);
            let wins = is_up_to_date(end(third), end(second));
            let commits = may_commit(reached, at(leader, reached), Slot::ZERO, ballot(term));
            assert_eq!(commits, leader[..reached.0 as usize].last() == Some(&term), "{leader:?} {second:?}");
            assert!(!(commits && candidate_lacks && wins), "{leader:?} {second:?} {third:?}");
            replaced += u32::from(reached > Slot::ZERO && candidate_lacks && wins);
            assert!(!may_commit(reached, at(leader, reached), reached, ballot(term)), "it is decided");
        }
    }
    assert!(replaced > 0, "figure 3.7 is among them");
}

/// The twin is figure 3.1 word by word, entry after entry.
#[test]
fn only_what_is_in_conflict_is_replaced() {
    let logs = logs(3, 2);
    for (log, sent) in logs.iter().flat_map(|log| logs.iter().map(move |sent| (log, sent))) {
        for prev in 0..=sent.len().min(log.len()) {
            let agree = log.iter().zip(sent).take_while(|(one, other)| one == other).count();
            for decided in 0..=agree {
                if log[..prev] != sent[..prev] {
                    continue;
                }
                let mut twin = log.clone();
                for (index, &term) in sent.iter().enumerate().skip(prev) {
                    if twin.get(index).is_some_and(|&there| there != term) {
                        twin.truncate(index);
                    }
                    if index == twin.len() {
                        twin.push(term);
                    }
                }
                let (first, decided) = (Slot(prev as u64 + 1), Slot(decided as u64));
                let entries = sent[prev..].iter().map(|&term| ballot(term));
                let lacking = first_lacking(first, entries, decided, |slot| at(log, slot));
                let mut found = log.clone();
                let through = Slot(sent.len() as u64);
                if let Some(from) = removed_from(lacking, through, decided) {
                    found.truncate(from.0 as usize - 1);
                }
                if let Some(from) = lacking {
                    found.extend(&sent[from.0 as usize - 1..]);
                }
                assert_eq!(found, twin, "{log:?} takes in {sent:?} after {prev}");
                assert_eq!(removed_from(Some(decided), through, decided), None, "what is decided stays");
            }
        }
    }
}

#[test]
fn a_leader_changes_voters_once_it_has_committed_and_one_change_after_the_other() {
    for (last_change, decided) in (0..4).flat_map(|change| (0..4).map(move |decided| (change, decided))) {
        let may = |has_own| may_change(has_own, Slot(last_change), Slot(decided));
        assert_eq!(may(false), Err(ChangeRefused::TooEarly));
        assert_eq!(may(true).is_ok(), (0..=decided).contains(&last_change), "{last_change} {decided}");
    }
}

#[test]
fn a_vote_and_an_acknowledgement_rest_on_their_records() {
    for (entries, term) in (0..4).flat_map(|entries| (0..4).map(move |term| (Lsn(entries), Lsn(term)))) {
        let rests_on = acknowledgement_rests_on(entries, term);
        assert!(rests_on >= entries && rests_on >= term && [entries, term].contains(&rests_on));
        assert_eq!(vote_rests_on(term), term);
    }
    for vote in [None, Some(ReplicaId(2))] {
        assert_eq!(recalls_vote(vote), vote);
    }
}

/// A planted bug that changed nothing would never be found.
#[test]
fn a_planted_bug_replaces_its_rule() {
    let with = |bug: Bug| planted::rules(&Options { planted: Some(bug.into()), ..Options::default() });
    let (one, other) = (ReplicaId(1), ReplicaId(2));
    assert!(with(Bug::VoteTwice).may_vote(Some(one), other, false));
    let (long, late) = (end(&[1, 1]), end(&[2]));
    assert!(with(Bug::VoteByLength).is_up_to_date(long, late) && !is_up_to_date(long, late));
    assert_eq!(with(Bug::VoteBeforeDurable).vote_rests_on(Lsn(3)), Lsn::ZERO);
    assert_eq!(with(Bug::ForgetVote).recalls_vote(Some(one)), None);
    assert_eq!(with(Bug::AckBeforeDurable).acknowledgement_rests_on(Lsn(3), Lsn(2)), Lsn::ZERO);
    assert_eq!(with(Bug::TruncateAlways).removed_from(None, Slot(4), Slot(2)), Some(Slot(5)));
    assert!(with(Bug::CountOldTerms).may_commit(Slot(2), Some(ballot(1)), Slot(1), ballot(2)));
    assert!(with(Bug::ChangeAtOnce).may_change(false, Slot(2), Slot(1)).is_ok());
    let joint = VoterSets::joint(vec![one], vec![other, ReplicaId(3)]);
    let union = with(Bug::UnionMajority);
    assert!(union.elects(&joint, &[other, ReplicaId(3)]) && !elects(&joint, &[other, ReplicaId(3)]));
    let held = |id: ReplicaId| Slot(u64::from(id != one));
    assert!(union.reached_by_quorum(&joint, &held) > reached_by_quorum(&joint, &held));
    let twice = with(Bug::CountVoteMessages);
    assert!(twice.counts_vote(&[one], one));
    let three = VoterSets::simple(vec![one, other, ReplicaId(3)]);
    assert!(twice.elects(&three, &[one, one]) && !elects(&three, &[one, one]));
}
