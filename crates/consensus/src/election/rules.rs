//! The rules of the elections `ballot` and `rotating`: each a function of plain data, with the line of the document that
//! states it. `latency/rules.rs` has those of `latency`; `randomized` is a part of Raft, whose rules are in
//! `../raft/rules.rs`.
//!
//! No safety rests on an election. These rules decide which replica leads, and whether one that works is left alone. A
//! planted bug replaces one (`planted.rs`).

use synod_wire::{Ballot, ReplicaId};

use crate::{Members, ReplicaSet, VoterSets, rules::rules};

/// After this many failed tries a replica waits no longer than before: 2^2 times as long as at first.
pub(super) const DOUBLINGS_MAX: u32 = 2;

/// What a replica said of its leader in its last reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) by: ReplicaId,
    /// The ballot that it showed: its own, or a bid.
    pub(super) ballot: Ballot,
    pub(super) happy: bool,
}

rules! {
    // Ballot leader election (Ng 2020, section 2.4.1 and Algorithm 3; E-numbers are those of docs/errata.md).

    /// The ballot that a reply shows: the replica's own, or its bid while it is not happy; never another's, by which a
    /// leader that is gone would be reported alive forever (Algorithm 3, HeartbeatReply, with E4).
    #[allow(unused_variables, reason = "a planted bug shows the ballot that it follows")]
    fn shown(own: Ballot, bid: Option<Ballot>, happy: bool, follows: Ballot) -> Ballot {
        bid.filter(|_| !happy).unwrap_or(own)
    }

    /// A follower is happy with what its leader itself says: that it is happy in the ballot that the follower follows
    /// (section 2.4.1, with E4).
    fn is_word_of_leader(said: Said, follows: Ballot) -> bool {
        said.happy && said.ballot == follows && said.by == follows.replica
    }

    /// A replica is connected to a quorum if those that answered are one with it (Algorithm 3, the time-out, with E3).
    fn is_connected(members: &Members, answered: ReplicaSet) -> bool {
        members.is_quorum(answered.union(members.only(members.me())))
    }

    /// A replica bids for nothing while it, or a neighbour, is happy with a leader (section 2.4.1).
    fn is_content(happy: bool, neighbour_is_happy: bool) -> bool {
        happy || neighbour_is_happy
    }

    /// After a restart an election begins with the ballot that was promised (Algorithm 3, the start, with E8).
    fn begins_with(known: Ballot, promised: Ballot) -> Ballot {
        known.max(promised)
    }

    /// A replica whose disk does not answer leads nothing (docs/elections.md, the table).
    fn is_fit(disk_answers: bool) -> bool {
        disk_answers
    }

    /// For how many rounds a replica in Phase 1 may make no progress, where a reply counts for `timeout` rounds: a
    /// message and its answer may take one election time-out (docs/elections.md, "Ballot leader election").
    fn phase_1_rounds(timeout: u64) -> u64 {
        2 * timeout
    }

    /// For how many rounds a replica that gives up makes no bid, after as many `failures`, and how many it has had
    /// then. In the `seen` rounds after the time-out another replica's bid is seen (docs/elections.md).
    fn abstains(timeout: u64, seen: u64, failures: u32) -> (u64, u32) {
        ((timeout + seen) << failures.min(DOUBLINGS_MAX), failures + 1)
    }

    // Rotating leadership (Santos 2012, sections 7.4 and 9.5).

    /// The lowest round above another that belongs to the member at `place` of `count`, from 1 on: round v belongs to
    /// member (v - 1) mod n (section 10.4.3: the replica after the leader, modulo n, takes its place).
    fn next_round(above: u64, place: u64, count: u64) -> u64 {
        above + 1 + (place + count - (above + 1) % count) % count
    }

    /// A member would let another try a ballot that is above all that it knows to be promised, unless there is a leader
    /// to be left alone (PreVote; Ongaro 2014, section 9.6).
    fn is_willing(asked: Ballot, highest: Ballot, has_leader: bool) -> bool {
        asked > highest && !has_leader
    }

    /// A member tries once a quorum, itself included, is willing (Ongaro 2014, section 9.6).
    fn may_try(voters: &VoterSets, willing: &dyn Fn(ReplicaId) -> bool) -> bool {
        voters.is_quorum(willing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bug, election::planted};

    fn with(bug: Bug) -> Rules {
        planted::rules(Some(bug))
    }

    fn ballots() -> impl Iterator<Item = Ballot> {
        let of = |round| (1..=2).map(move |owner| Ballot { round, replica: ReplicaId(owner) });
        (0..3).flat_map(of)
    }

    #[test]
    fn a_reply_shows_the_own_ballot_and_a_bid_only_if_not_happy() {
        for (own, bid) in ballots().flat_map(|own| ballots().map(move |bid| (own, bid))) {
            for follows in ballots() {
                assert_eq!(shown(own, Some(bid), false, follows), bid);
                for (bid, happy) in [(Some(bid), true), (None, false), (None, true)] {
                    assert_eq!(shown(own, bid, happy, follows), own);
                }
                assert_eq!(with(Bug::ElectionEchoesHighest).shown(own, Some(bid), false, follows), follows);
            }
        }
    }

    /// Whatever two replicas say, at most one of them is heard as the leader, and it owns the ballot.
    #[test]
    fn only_the_owner_of_a_ballot_speaks_for_it() {
        for (follows, ballot) in ballots().flat_map(|one| ballots().map(move |other| (one, other))) {
            for happy in [false, true] {
                let says = |by| Said { by: ReplicaId(by), ballot, happy };
                let heard: Vec<u64> = (1..=3).filter(|&by| is_word_of_leader(says(by), follows)).collect();
                let expected = (happy && ballot == follows).then_some(follows.replica.0);
                assert_eq!(heard, Vec::from_iter(expected));
            }
        }
        let follows = Ballot { round: 1, replica: ReplicaId(1) };
        let echo = Said { by: ReplicaId(2), ballot: follows, happy: true };
        assert!(with(Bug::ElectionEchoesHighest).is_word_of_leader(echo, follows));
    }

    /// Each replica counts itself, so the twin counts one more than those that answered.
    #[test]
    fn a_replica_that_reaches_more_than_half_is_connected() {
        let mut differs = false;
        for n in 1..=5u64 {
            let members = Members::new((1..=n).map(ReplicaId), ReplicaId(1));
            for others in 0..1u64 << (n - 1) {
                let answered = members.those(|id| id.0 > 1 && others >> (id.0 - 2) & 1 == 1);
                let twin = 2 * (u64::from(others.count_ones()) + 1) > n;
                assert_eq!(is_connected(&members, answered), twin, "{n} members, {others:b}");
                differs |= with(Bug::ElectionMajorityOffByOne).is_connected(&members, answered) != twin;
            }
        }
        assert!(differs);
    }

    #[test]
    fn a_replica_is_content_with_a_neighbours_leader_and_begins_with_what_it_promised() {
        for (own, neighbour) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(is_content(own, neighbour), [own, neighbour].contains(&true));
            assert_eq!(with(Bug::ElectionIgnoresHappiness).is_content(own, neighbour), own);
        }
        for (known, promised) in ballots().flat_map(|one| ballots().map(move |other| (one, other))) {
            assert_eq!(Some(begins_with(known, promised)), [known, promised].into_iter().max());
            assert_eq!(with(Bug::ElectionForgetsPromise).begins_with(known, promised), known);
        }
    }

    #[test]
    fn a_replica_that_gave_up_abstains_twice_as_long_each_time_up_to_a_bound() {
        let mut expected = 7;
        for failures in 0..6 {
            assert_eq!(abstains(3, 4, failures), (expected, failures + 1));
            assert_eq!(with(Bug::ElectionOfHungDisk).abstains(3, 4, failures), (3, failures));
            expected = (expected * 2).min(28);
        }
        assert_eq!((phase_1_rounds(3), with(Bug::ElectionOfHungDisk).phase_1_rounds(3)), (6, 3));
        assert!(is_fit(true) && !is_fit(false) && with(Bug::ElectionOfHungDisk).is_fit(false));
    }

    /// The twin goes through the rounds one by one.
    #[test]
    fn rounds_belong_to_the_members_in_turn() {
        for count in 1..=5 {
            for (above, place) in (0..12).flat_map(|above| (1..=count).map(move |place| (above, place))) {
                let is_own = |round: &u64| (round - 1) % count + 1 == place;
                assert_eq!(Some(next_round(above, place, count)), (above + 1..).find(is_own));
            }
        }
    }

    #[test]
    fn a_leader_that_works_is_left_alone() {
        for (asked, highest) in ballots().flat_map(|one| ballots().map(move |other| (one, other))) {
            assert!(!is_willing(asked, highest, true));
            assert_eq!(
                is_willing(asked, highest, false),
                (asked.round, asked.replica) > (highest.round, highest.replica)
            );
        }
        for n in 1..=5u64 {
            let voters = VoterSets::simple((1..=n).map(ReplicaId).collect());
            for bits in 0..1u64 << n {
                let willing = |id: ReplicaId| bits >> (id.0 - 1) & 1 == 1;
                assert_eq!(may_try(&voters, &willing), 2 * u64::from(bits.count_ones()) > n);
                assert!(with(Bug::ElectionWithoutRehearsal).may_try(&voters, &willing));
            }
        }
    }
}
