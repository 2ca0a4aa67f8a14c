//! The rules by which a leader is chosen, as functions of the times that were measured, and those by which it takes
//! over.

use std::{collections::VecDeque, time::Duration};

use synod_wire::{ReplicaId, Slot, Time};

use super::Memory;
use crate::{VoterSets, rules::rules};

rules! {
    /// The round trip to a member, of those that its last answers took, the latest last: the shortest, since messages
    /// stand in queues of a leader that has much to do, and that says nothing about the link. (The source takes the
    /// last one, where computation takes no time; sections 6.2 and 6.3.1.)
    fn time_of(lately: &VecDeque<u64>) -> u64 {
        lately.iter().copied().min().unwrap_or(UNREACHABLE)
    }

    /// A leader hands over to the best member once some member was better in two cycles in a row. If all links become
    /// longer at one time, members notice it one after the other, within one cycle, and leadership would move for
    /// nothing. (In the source one cycle is enough.)
    fn moves(was_better: bool) -> bool {
        was_better
    }

    /// What is left of a member's report in the next cycle: nothing, so that no member leads that has crashed
    /// (section 6.3.2).
    fn row_of_next_cycle(_row: Option<Vec<u64>>) -> Option<Vec<u64>> {
        None
    }

    /// Whether a member that said of a cycle that an operator moved leadership away from it counts as if it said so
    /// in the next one: while it is reachable, since its process may have slept for a moment. One that ended wishes
    /// nothing.
    fn wish_of_next_cycle(said: bool, reached: bool) -> bool {
        said && reached
    }

    /// How long a leader waits for the member that an operator wants to lead. If that one leads later, it does so for
    /// another reason.
    fn wish_waits(timeout: Duration) -> Duration {
        timeout * 2
    }

    /// A replica that led before goes on saying that an operator moved it while the member leads that the operator
    /// wanted.
    fn keeps_wish(wanted: ReplicaId, leader: ReplicaId) -> bool {
        wanted == leader
    }

    /// Every member remembers that a leader failed when another takes the place of a silent one, and not only the
    /// member that takes it: that one may hand over. A member that heard the leader to the end knows by the rehearsal
    /// that others did not: one that the leader asks to take over does not rehearse.
    fn remembers_failure(silent: bool, rehearsed: bool, _takes_its_place: bool) -> bool {
        silent || rehearsed
    }

    /// What is known of members, and of an operator's wish, counts in the next epoch, too.
    fn counts_in_next_epoch(_known: &Memory) -> bool {
        true
    }

    /// Whether a member that did not take over in time is not left out for longer because of that: it is left out.
    fn spares(is_left_out: bool) -> bool {
        is_left_out
    }

    /// A member that was asked to take over stands before its time is over, and not after it.
    fn is_in_time(now: Time, ends_at: Time) -> bool {
        now < ends_at
    }

    /// A member answers each question of a leader, also one from which it learns of it (Algorithm 6.1, lines 18 to 25,
    /// where it is printed for a known leader alone; Lemma 6.6 needs all answers).
    fn answers_question(_knows_leader: bool) -> bool {
        true
    }

    /// The member to which the leader hands over is the one that it chose (Algorithm 6.1, line 35, where the process
    /// that runs the line is printed).
    fn heir(chosen: ReplicaId, _me: ReplicaId) -> ReplicaId {
        chosen
    }

    /// How long a command waits, if a member leads, where the choice weighs from where commands come: for the leader's
    /// majority, and in the mean for the way to the leader and back.
    fn time_of_command(majority: u64, way: u64) -> u64 {
        majority.saturating_add(way)
    }

    /// Whether a leader above an election that a protocol has itself hands over before the member has said that it is
    /// ready: it does not, since it proposes nothing meanwhile.
    fn transfers_at_once(_heir: ReplicaId) -> bool {
        false
    }

    /// A member that was asked to take over stands once its disk has written a record since, a quorum has answered
    /// it since, and it knows what was decided then. Until then the leader goes on.
    fn may_stand(durable: bool, quorum: bool, caught_up: bool) -> bool {
        durable && quorum && caught_up
    }

    /// The last slot that a member must know to be decided before it stands: of those that were known when it was
    /// asked, and not of those that are decided meanwhile.
    fn needs_decided(known_then: Slot, _known_now: Slot) -> Slot {
        known_then
    }

    /// How long a replica that failed is left out after this number of failures.
    fn abstains_for(least: Duration, doublings: u32) -> Duration {
        least * 2u32.pow(doublings)
    }
}

/// Nanoseconds of a round trip to a member that does not answer (`∞` in the source).
pub(crate) const UNREACHABLE: u64 = u64::MAX;

/// Nanoseconds within which a replica has exchanged messages with a quorum, itself included, when `time` says how long
/// it takes to each voter (Santos 2012, section 6.2: `majrtt`, the element ⌊n/2⌋ + 1 of the sorted row). [`u64::MAX`]
/// if it reaches no quorum.
pub fn majority_time(voters: &VoterSets, time: impl Fn(ReplicaId) -> u64) -> u64 {
    // The highest value that a quorum reaches is what is left above the lowest time within which a quorum answers.
    UNREACHABLE - voters.quorum_value(|voter| UNREACHABLE - time(voter))
}

/// The voter that should lead in place of `leader`, if one should (Santos 2012, Algorithm 6.2, `SelectLeader`): its
/// majority time is lower by more than 4ε. Among equals the lowest number leads. `time` gives a voter's majority time.
pub(super) fn better_leader(
    voters: &VoterSets,
    leader: ReplicaId,
    tolerance: Duration,
    time: impl Fn(ReplicaId) -> u64,
) -> Option<ReplicaId> {
    let best = voters.all().into_iter().min_by_key(|&voter| (time(voter), voter))?;
    let slack = u64::try_from(tolerance.as_nanos()).unwrap_or(u64::MAX).saturating_mul(4);
    (time(best).saturating_add(slack) < time(leader)).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: u64 = 1;

    /// The printed definition: sort, and take the element ⌊n/2⌋ + 1.
    fn by_sorting(row: &[u64]) -> u64 {
        let mut sorted = row.to_vec();
        sorted.sort_unstable();
        sorted[row.len() / 2]
    }

    fn voters(count: usize) -> VoterSets {
        VoterSets::simple((1..=count as u64).map(ReplicaId).collect())
    }

    /// All rows of `count` times from a few values, of which one is infinite.
    fn rows(count: usize) -> Vec<Vec<u64>> {
        let values = [0, 4 * NS, 9 * NS, UNREACHABLE];
        let mut rows = vec![Vec::new()];
        for _ in 0..count {
            let longer = |row: Vec<u64>| values.map(|value| [row.clone(), vec![value]].concat());
            rows = rows.into_iter().flat_map(longer).collect();
        }
        rows
    }

    #[test]
    fn the_majority_time_is_the_printed_element_of_the_sorted_row() {
        for count in 1..=5 {
            for row in rows(count) {
                let time = |voter: ReplicaId| row[voter.0 as usize - 1];
                assert_eq!(majority_time(&voters(count), time), by_sorting(&row), "{row:?}");
            }
        }
    }

    #[test]
    fn leadership_moves_to_the_lowest_time_and_number_for_more_than_four_tolerances() {
        for row in rows(4) {
            for leader in 1..=4 {
                for tolerance in [0, 1, 2] {
                    let time = |voter: ReplicaId| row[voter.0 as usize - 1];
                    let least = *row.iter().min().unwrap();
                    let first = row.iter().position(|&time| time == least).unwrap() as u64 + 1;
                    // In numbers that can hold infinity plus a little.
                    let moves = u128::from(least) + 4 * tolerance < u128::from(row[leader - 1])
                        && least != UNREACHABLE;
                    let tolerance = Duration::from_nanos(tolerance as u64);
                    let chosen = better_leader(&voters(4), ReplicaId(leader as u64), tolerance, time);
                    assert_eq!(chosen, moves.then_some(ReplicaId(first)), "{row:?}, leader {leader}");
                }
            }
        }
    }
}
