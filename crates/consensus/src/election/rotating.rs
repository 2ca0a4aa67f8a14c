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
    members: Members,
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
    pub fn new(members: Members, timeout: Duration, now: Time) -> Rotating {
        let answered = vec![now; members.count()];
        Rotating { members, timeout, heard: now, failures: 0, answered }
    }

    /// At the first start of a group nobody can have led before: do not wait for a whole time-out.
    pub fn expect_no_leader(&mut self) {
        self.heard = self.heard - self.timeout * 3 / 4;
    }

    /// The lowest ballot of this replica above another.
    #[must_use]
    pub fn next_ballot(&self, above: Ballot) -> Ballot {
        let n = self.members.count() as u64;
        let mine = self.members.my_index() as u64 + 1;
        // The smallest round > above.round with round ≡ mine (mod n).
        let round = above.round + 1 + (mine + n - (above.round + 1) % n) % n;
        Ballot { round, replica: self.members.me() }
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
    pub fn try_at(&self, current: Ballot) -> Time {
        let patience = self.timeout * 2u32.pow(self.failures.min(DOUBLINGS_MAX));
        let distance = self.next_ballot(current).round - current.round;
        let stagger = self.timeout / 2;
        self.heard + patience + stagger * u32::try_from(distance - 1).expect("at most the number of members")
    }

    /// A member answered this replica.
    pub fn answered(&mut self, from: ReplicaId, now: Time) {
        if let Some(index) = self.members.index(from) {
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
    pub fn reaches_quorum(&self, now: Time) -> bool {
        let recent = |index: usize| {
            index == self.members.my_index() || now.since(self.answered[index]) <= self.timeout
        };
        (0..self.members.count()).filter(|&index| recent(index)).count() >= self.members.quorum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(me: u64) -> Rotating {
        let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(me));
        Rotating::new(members, T, Time::ZERO)
    }

    const T: Duration = Duration::from_millis(1000);

    #[test]
    fn every_round_has_one_owner() {
        for round in 0..20 {
            let above = Ballot { round, replica: ReplicaId(1) };
            let mut next: Vec<u64> = (1..=3).map(|me| election(me).next_ballot(above).round).collect();
            next.sort_unstable();
            assert_eq!(next, [round + 1, round + 2, round + 3]);
        }
    }

    #[test]
    fn the_next_in_line_tries_first() {
        let current = Ballot { round: 1, replica: ReplicaId(1) };
        let at = |me| election(me).try_at(current);
        assert_eq!(at(2), Time::ZERO + T);
        assert_eq!(at(3), Time::ZERO + T * 3 / 2);
        assert_eq!(at(1), Time::ZERO + T * 2, "the silent leader itself comes last");
    }

    #[test]
    fn failed_tries_make_patience_grow_until_a_leader_is_heard() {
        let current = Ballot { round: 1, replica: ReplicaId(1) };
        let mut election = election(2);
        election.tried(Time::ZERO);
        assert_eq!(election.try_at(current), Time::ZERO + T * 2);
        for _ in 0..10 {
            election.tried(Time::ZERO);
        }
        assert_eq!(election.try_at(current), Time::ZERO + T * 8);
        election.heard_leader(Time::ZERO);
        assert_eq!(election.try_at(current), Time::ZERO + T);
    }

    #[test]
    fn a_leader_notices_that_it_is_alone() {
        let mut election = election(1);
        election.leads(Time::ZERO);
        let later = Time::ZERO + T + Duration::from_millis(1);
        assert!(!election.reaches_quorum(later));
        election.answered(ReplicaId(3), later);
        assert!(election.reaches_quorum(later));
    }
}
