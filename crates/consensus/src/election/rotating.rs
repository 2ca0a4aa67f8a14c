//! Rotating leadership: round v belongs to member (v - 1) mod n, and the next in line takes over from a leader
//! that falls silent (Santos 2012, sections 7.4 and 9.5; there, "view v is led by v mod n").
//!
//! The thesis leaves open what happens when the next in line is gone too. Here a member that is d places behind
//! the silent leader waits d - 1 **staggers** longer than the first, so that exactly one replica tries first and
//! every live one tries in the end. Tries that fail make the time-out longer, up to eight times, until a leader
//! is heard again: so a time-out that is too short for the network corrects itself.

use std::time::Duration;

use synod_wire::{Ballot, ReplicaId, Time};

use crate::Members;

/// Failed tries after which the time-out grows no more: 2^3 times the configured one.
const DOUBLINGS_MAX: u32 = 3;

/// The state of the failure detector of one replica.
#[derive(Clone, Debug)]
pub struct Rotating {
    timeout: Duration,
    /// When the current round gave its last sign of life, or began.
    heard: Time,
    /// Tries of this replica since it last heard a leader.
    failures: u32,
    /// For each member, when it last answered this replica.
    answered: Vec<Time>,
}

impl Rotating {
    /// A detector that has just heard a leader.
    #[must_use]
    pub fn new(members: &Members, timeout: Duration, now: Time) -> Rotating {
        Rotating { timeout, heard: now, failures: 0, answered: vec![now; members.count()] }
    }

    /// At the first start of a group nobody can have led before: do not wait for a whole time-out.
    pub fn expect_no_leader(&mut self) {
        self.heard = self.heard - self.timeout * 3 / 4;
    }

    /// Who owns a round; rounds begin with 1.
    #[must_use]
    pub fn owner(members: &Members, round: u64) -> ReplicaId {
        let index = round.saturating_sub(1) % members.count() as u64;
        members.ids()[usize::try_from(index).expect("less than the number of members")]
    }

    /// The lowest ballot of this replica above another.
    #[must_use]
    pub fn next_ballot(members: &Members, above: Ballot) -> Ballot {
        let n = members.count() as u64;
        let mine = members.my_index() as u64 + 1;
        // The smallest round > above.round with round ≡ mine (mod n).
        let round = above.round + 1 + (mine + n - (above.round + 1) % n) % n;
        Ballot { round, replica: members.me() }
    }

    /// The leader of the current round gave a sign of life.
    pub fn heard_leader(&mut self, now: Time) {
        self.heard = now;
        self.failures = 0;
    }

    /// A new round began: its owner gets a whole time-out to show that it leads.
    pub fn round_began(&mut self, now: Time) {
        self.heard = now;
    }

    /// This replica tries to lead.
    pub fn tried(&mut self, now: Time) {
        self.heard = now;
        self.failures += 1;
    }

    /// When this replica should try to lead, unless it hears of a leader before.
    #[must_use]
    pub fn try_at(&self, members: &Members, current: Ballot) -> Time {
        let patience = self.timeout * 2u32.pow(self.failures.min(DOUBLINGS_MAX));
        let distance = Rotating::next_ballot(members, current).round - current.round;
        let stagger = self.timeout / 2;
        self.heard + patience + stagger * u32::try_from(distance - 1).expect("at most the number of members")
    }

    /// A member answered this replica.
    pub fn answered(&mut self, members: &Members, from: ReplicaId, now: Time) {
        if let Some(index) = members.index(from) {
            self.answered[index] = now;
        }
    }

    /// This replica begins to lead: the time to hear from a quorum starts now.
    pub fn leads(&mut self, now: Time) {
        self.answered.fill(now);
        self.failures = 0;
    }

    /// Whether a quorum, this replica included, answered within the last time-out.
    #[must_use]
    pub fn reaches_quorum(&self, members: &Members, now: Time) -> bool {
        let recent =
            |index: usize| index == members.my_index() || now.since(self.answered[index]) <= self.timeout;
        (0..members.count()).filter(|&index| recent(index)).count() >= members.quorum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(me: u64) -> Members {
        Members::new([1, 2, 3].map(ReplicaId), ReplicaId(me))
    }

    const T: Duration = Duration::from_millis(1000);

    #[test]
    fn every_round_has_one_owner_and_next_ballots_are_owned() {
        for me in 1..=3 {
            let members = members(me);
            for round in 0..20 {
                let next = Rotating::next_ballot(&members, Ballot { round, replica: ReplicaId(1) });
                assert!(next.round > round && next.round <= round + 3);
                assert_eq!(Rotating::owner(&members, next.round), ReplicaId(me));
            }
        }
    }

    #[test]
    fn the_next_in_line_tries_first() {
        let current = Ballot { round: 1, replica: ReplicaId(1) };
        let at = |me| Rotating::new(&members(me), T, Time::ZERO).try_at(&members(me), current);
        assert_eq!(at(2), Time::ZERO + T);
        assert_eq!(at(3), Time::ZERO + T * 3 / 2);
        assert_eq!(at(1), Time::ZERO + T * 2, "the silent leader itself comes last");
    }

    #[test]
    fn failed_tries_make_patience_grow_until_a_leader_is_heard() {
        let members = members(2);
        let current = Ballot { round: 1, replica: ReplicaId(1) };
        let mut election = Rotating::new(&members, T, Time::ZERO);
        election.tried(Time::ZERO);
        assert_eq!(election.try_at(&members, current), Time::ZERO + T * 2);
        for _ in 0..10 {
            election.tried(Time::ZERO);
        }
        assert_eq!(election.try_at(&members, current), Time::ZERO + T * 8);
        election.heard_leader(Time::ZERO);
        assert_eq!(election.try_at(&members, current), Time::ZERO + T);
    }

    #[test]
    fn a_leader_notices_that_it_is_alone() {
        let members = members(1);
        let mut election = Rotating::new(&members, T, Time::ZERO);
        election.leads(Time::ZERO);
        let later = Time::ZERO + T + Duration::from_millis(1);
        assert!(!election.reaches_quorum(&members, later));
        election.answered(&members, ReplicaId(3), later);
        assert!(election.reaches_quorum(&members, later));
    }
}
