//! The rules of rounds: each is a pure function of plain data, with its line in Santos 2012. The tests have a twin of
//! each, written from the definition, and the harness plants a bug in place of each.

use std::time::Duration;

use synod_wire::{Ballot, Incarnation, Lsn, ReplicaId, Slot};

use super::Round;
use crate::{Members, ReplicaSet, Threshold, rules::rules};

rules! {
    // OneThirdRule.

    /// An estimate changes only with more than two thirds of the members heard (Algorithm 3.1, line 7).
    fn hears_enough(members: &Members, heard: ReplicaSet) -> bool {
        members.is_quorum_of(Threshold::TwoThirds, heard)
    }

    /// Of values that are counted in ascending order, one that is more frequent than all before it is taken: so the
    /// smallest of the most frequent ones (Algorithm 3.1, line 8).
    fn is_preferred(count: usize, held: usize) -> bool {
        count > held
    }

    /// A value is decided if more than two thirds of the members said it in one round (Algorithm 3.1, line 9).
    fn is_decided(members: &Members, said: ReplicaSet) -> bool {
        members.is_quorum_of(Threshold::TwoThirds, said)
    }

    // LastVoting.

    /// An estimate goes to the one member that its sender takes for the coordinator (Algorithm 4.1, line 9). Sent to
    /// all, two coordinators could count a majority in one phase.
    fn is_addressed(to: ReplicaId, coordinator: Option<ReplicaId>) -> bool {
        coordinator == Some(to)
    }

    /// A coordinator votes with the estimates of a majority (Algorithm 4.1, line 11).
    fn may_commit(members: &Members, estimates: ReplicaSet) -> bool {
        members.is_quorum(estimates)
    }

    /// Of several estimates, one of the latest phase is taken (Algorithm 4.1, lines 12 and 13).
    fn outranks(voted_in: u64, held: u64) -> bool {
        voted_in > held
    }

    /// The coordinator votes in a phase in which it counted a majority (Algorithm 4.1, line 17).
    fn proposes(is_coordinator: bool, commit: bool) -> bool {
        is_coordinator && commit
    }

    /// A vote or decision counts if it is the coordinator's (Algorithm 4.1, lines 20 and 35).
    fn is_heeded(from: ReplicaId, coordinator: Option<ReplicaId>) -> bool {
        coordinator == Some(from)
    }

    /// A replica acknowledges the vote of this phase, and of no earlier one (Algorithm 4.1, line 25; Algorithm 4.2,
    /// line 8).
    fn acknowledges(voted_in: u64, phase: u64) -> bool {
        voted_in == phase
    }

    /// A value is chosen once a majority acknowledged it in one phase (Algorithm 4.1, line 28; Algorithm 4.2, line 11).
    fn is_accepted(members: &Members, voters: ReplicaSet) -> bool {
        members.is_quorum(voters)
    }

    /// The coordinator tells a decision that a majority acknowledged in this phase (Algorithm 4.1, line 32).
    fn announces(is_coordinator: bool, ready: bool) -> bool {
        is_coordinator && ready
    }

    /// With the last round of a phase the coordinator forgets what it counted, whether or not anything was decided
    /// (Algorithm 4.1, lines 37 and 38, with Santos E1: printed inside the branch that decides). What it kept would
    /// be its vote in a later phase, in place of what was decided in between.
    fn forgets(is_last_of_phase: bool, _decided: bool) -> bool {
        is_last_of_phase
    }

    // Layers.

    /// A round ends, and every round before the higher one is skipped, once a letter of a higher round is there
    /// (Parametrizations 4.1 to 4.3, first lines of NextRound and SkipRound; Algorithm 5.1, line 21).
    fn is_overtaken(heard: Round, round: Round) -> bool {
        heard > round
    }

    /// A time-out ends a round when it has gone by (Parametrization 4.1, NextRound; Algorithm 5.1, line 17).
    fn is_over(elapsed: Duration, timeout: Duration) -> bool {
        elapsed >= timeout
    }

    /// The coordinator of a phase is the lowest member heard in the round before it. Without one the coordinator
    /// stays; in the first phase it is the lowest member of all (ElectCoord of Parametrizations 4.1 to 4.3).
    fn elected(round: Round, members: &Members, lowest: Option<ReplicaId>, present: Option<ReplicaId>)
        -> Option<ReplicaId> {
        if round == Round(1) { members.ids().first().copied() } else { lowest.or(present) }
    }

    /// A coordinator that did not count a majority of estimates skips the round of its vote (Parametrization 4.3,
    /// SkipRound, second line; Santos E3: the majority is that of round 4φ-3).
    fn has_no_vote(members: &Members, is_coordinator: bool, estimates: ReplicaSet) -> bool {
        is_coordinator && !members.is_quorum(estimates)
    }

    /// A replica that heard no vote of its coordinator skips the acknowledgements (Parametrization 4.3, SkipRound,
    /// third line).
    fn has_heard_no_vote(is_heard: bool) -> bool {
        !is_heard
    }

    /// In the last round of a phase a replica competes for the next one if it got there before anybody's letter
    /// (Parametrization 4.3, Dest, third line).
    fn competes(heard: ReplicaSet) -> bool {
        heard.is_empty()
    }

    // Swift rounds.

    /// A member is alive while it is not silent for the time-out of life (Algorithm 5.4, line 13).
    fn is_alive(silence: Duration, timeout: Duration) -> bool {
        silence < timeout
    }

    /// A round ends once all that are alive are heard (Algorithm 5.4, lines 14 and 15), and, which the document lacks,
    /// as many as the algorithm needs: a replica that hears nobody takes itself alone for alive, and would run through
    /// rounds as fast as it can.
    fn may_end_early(members: &Members, threshold: Threshold, alive: ReplicaSet, heard: ReplicaSet) -> bool {
        heard.intersection(alive) == alive && members.is_quorum_of(threshold, heard)
    }

    /// A replica follows at once into a round that is not the next one: then no good period can have begun (Algorithm
    /// 5.4, lines 19 and 20).
    fn must_follow(heard: Round, round: Round) -> bool {
        heard.0 > round.0 + 1
    }

    /// A replica that hears the next round waits a while longer in its own for what is still under way: the race of
    /// Figure 5.3 (Algorithm 5.4, lines 8 and 22).
    fn patience(next_seen: Option<Duration>, next: Duration, round: Duration) -> Duration {
        next_seen.map_or(round, |seen| (seen + next).min(round))
    }

    /// A round over a failure detector ends once all that are not suspected are heard (Algorithm 5.3, line 10).
    fn hears_unsuspected(unsuspected: ReplicaSet, heard: ReplicaSet) -> bool {
        heard.intersection(unsuspected) == unsuspected
    }

    // The log.

    /// Estimates of OneThirdRule count for slots after those that any of the letters tells to be decided: of the others
    /// its sender says nothing any more, so that what was decided may be the rarer one.
    fn counts_after(decided: Slot, _delivered: Slot) -> Slot {
        decided
    }

    /// The coordinator of a ballot counts estimates that name it: each is of a replica that takes no other for the
    /// coordinator of that phase.
    fn counts_estimate(named: Ballot, own: Ballot) -> bool {
        named == own
    }

    /// A restart goes on in the phase after the last that was promised, since letters of that one may have left.
    fn resumes_in(promised: Ballot) -> u64 {
        promised.round + 1
    }

    /// A letter leaves once the record that it rests on is durable.
    fn leaves_after(record: Lsn) -> Lsn {
        record
    }

    /// A replica that lost records says nothing: it may have forgotten in which phase it spoke, and to which
    /// coordinator.
    fn may_speak(lost_records: bool) -> bool {
        !lost_records
    }

    /// A read waits for the last slot in which a member of a quorum accepted anything: what is decided was accepted
    /// by one of any quorum, and may not be known to be decided.
    fn read_through(accepted: Slot, decided: Slot) -> Slot {
        accepted.max(decided)
    }

    /// An answer counts for the life that asked: the slot that it names may be older than a question of a later life.
    fn is_own_question(asked_in: Incarnation, life: Incarnation) -> bool {
        asked_in == life
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rules")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(n: u64) -> Members {
        Members::new((1..=n).map(ReplicaId), ReplicaId(1))
    }

    fn subsets(members: &Members) -> Vec<(usize, ReplicaSet)> {
        let set = |bits: u64| members.those(|id| bits >> (id.0 - 1) & 1 == 1);
        (0..1u64 << members.count()).map(|bits| (bits.count_ones() as usize, set(bits))).collect()
    }

    #[test]
    fn quorums_are_of_half_or_two_thirds() {
        for n in 1..=7 {
            let members = members(n as u64);
            for (size, set) in subsets(&members) {
                let (half, thirds) = (2 * size > n, 3 * size > 2 * n);
                assert_eq!(hears_enough(&members, set), thirds, "{size} of {n}");
                assert_eq!(is_decided(&members, set), thirds);
                assert_eq!(may_commit(&members, set), half);
                assert_eq!(is_accepted(&members, set), half);
                for is_coordinator in [false, true] {
                    assert_eq!(has_no_vote(&members, is_coordinator, set), is_coordinator && !half);
                }
                assert_eq!(competes(set), size == 0);
            }
        }
    }

    /// Whatever more than two thirds of the members said, every replica that hears more than two thirds adopts, and no
    /// smaller threshold would do: the argument of docs/rounds.md, by all ways to be heard.
    #[test]
    fn what_two_thirds_said_is_adopted_by_all_that_hear_two_thirds() {
        let adopted = |said: &[u64], heard: &[bool]| {
            let count = |value| said.iter().zip(heard).filter(|it| *it.0 == value && *it.1).count();
            (0..3).fold((0, 0), |(best, held), value| match count(value) {
                count if is_preferred(count, held) => (value, count),
                _ => (best, held),
            })
        };
        for n in 1..=5usize {
            let members = members(n as u64);
            let sets = subsets(&members);
            for word in 0..3u64.pow(n as u32) {
                let said: Vec<u64> = (0..n as u32).map(|place| word / 3u64.pow(place) % 3).collect();
                let by = |value| members.those(|id| said[id.0 as usize - 1] == value);
                let Some(decided) = (0..3).find(|&value| is_decided(&members, by(value))) else { continue };
                for (_, set) in sets.iter().filter(|(_, set)| hears_enough(&members, *set)) {
                    let heard: Vec<bool> =
                        members.ids().iter().map(|&id| members.contains(*set, id)).collect();
                    assert_eq!(adopted(&said, &heard).0, decided, "{said:?} {heard:?}");
                }
            }
        }
        // With majorities, four members: three say 0, one says 1, and a replica that hears 0 and 1 once is free.
        assert_eq!(adopted(&[1, 0, 0, 0], &[true, true, false, false]).1, 1);
    }

    #[test]
    fn only_the_coordinator_is_addressed_and_heeded() {
        for (one, other) in (1..4).flat_map(|one| (1..4).map(move |other| (ReplicaId(one), ReplicaId(other))))
        {
            assert_eq!(is_addressed(one, Some(other)), one.0 == other.0);
            assert_eq!(is_heeded(one, Some(other)), one.0 == other.0);
            assert!(!is_addressed(one, None) && !is_heeded(one, None));
        }
    }

    #[test]
    fn what_is_said_is_of_this_phase_and_the_latest_estimate_wins() {
        for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
            assert_eq!(acknowledges(one, other), [one, other].iter().all(|it| *it == one));
            assert_eq!(outranks(one, other), one.max(other) != other);
            assert_eq!(is_preferred(one as usize, other as usize), outranks(one, other));
            assert_eq!(is_overtaken(Round(one), Round(other)), (other + 1..9).contains(&one));
            assert_eq!(must_follow(Round(one), Round(other)), (other + 2..9).contains(&one));
        }
        for (one, other) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(proposes(one, other), [one, other] == [true, true]);
            assert_eq!(announces(one, other), [one, other] == [true, true]);
            assert_eq!(forgets(one, other), one, "Santos E1: also without a decision");
            assert_eq!(has_heard_no_vote(one), !one);
        }
    }

    #[test]
    fn the_lowest_that_was_heard_coordinates() {
        let members = members(3);
        for lowest in [None, Some(ReplicaId(2))] {
            for present in [None, Some(ReplicaId(3))] {
                assert_eq!(elected(Round(1), &members, lowest, present), Some(ReplicaId(1)));
                let later = elected(Round(4), &members, lowest, present);
                assert_eq!(later, if lowest.is_some() { lowest } else { present });
            }
        }
    }

    #[test]
    fn an_early_end_needs_all_that_are_alive_and_a_quorum() {
        for n in 1..=5 {
            let members = members(n as u64);
            let sets = subsets(&members);
            for ((_, alive), (size, heard)) in
                sets.iter().flat_map(|one| sets.iter().map(move |it| (one, it)))
            {
                let all = members
                    .ids()
                    .iter()
                    .all(|&id| !members.contains(*alive, id) || members.contains(*heard, id));
                let early = |threshold| may_end_early(&members, threshold, *alive, *heard);
                assert_eq!(early(Threshold::Majority), all && 2 * size > n);
                assert_eq!(early(Threshold::TwoThirds), all && 3 * size > 2 * n);
                assert_eq!(hears_unsuspected(*alive, *heard), all);
            }
        }
    }

    #[test]
    fn the_log_speaks_for_one_ballot_of_what_is_durable() {
        let ballots =
            || (0..3).flat_map(|round| (1..3).map(move |it| Ballot { round, replica: ReplicaId(it) }));
        for (one, other) in ballots().flat_map(|one| ballots().map(move |other| (one, other))) {
            let is_same = (one.round, one.replica) == (other.round, other.replica);
            assert_eq!(counts_estimate(one, other), is_same);
            assert!(resumes_in(one) > one.round);
        }
        for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
            assert_eq!(read_through(Slot(one), Slot(other)).0, [one, other].into_iter().max().unwrap());
            assert_eq!(leaves_after(Lsn(one)), Lsn(one));
            assert_eq!(is_own_question(Incarnation(one), Incarnation(other)), one == other);
        }
        assert!(may_speak(false) && !may_speak(true));
    }

    #[test]
    fn time_outs_end_at_their_instant() {
        let s = Duration::from_secs;
        for (elapsed, timeout) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
            assert_eq!(is_over(s(elapsed), s(timeout)), (timeout..9).contains(&elapsed));
            assert_eq!(is_alive(s(elapsed), s(timeout)), (0..timeout).contains(&elapsed));
            for next in 0..4 {
                let twin = if elapsed + next < timeout { elapsed + next } else { timeout };
                assert_eq!(patience(Some(s(elapsed)), s(next), s(timeout)), s(twin));
                assert_eq!(patience(None, s(next), s(timeout)), s(timeout));
            }
        }
    }
}
