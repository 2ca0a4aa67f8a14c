//! Who votes, and changing that: joint consensus, or one replica at a time.
//!
//! A configuration counts from the moment it is appended, on each replica that appends it, and no longer once it is
//! truncated. A change from old to new goes through an entry under which every decision and every election needs a
//! majority of both (Ng 2020, section 2.5.1; E29 tells why "from append" and not "from commit"). Once that entry is
//! committed, whoever leads appends the new configuration alone.
//!
//! A single replica may be added or removed in one step, since any majority of the one group meets any majority of the
//! other. That, and overlapping changes in general, are only safe if a leader begins no change before it has committed
//! an entry of its own term: otherwise two leaders can decide by majorities that do not meet, each of its own
//! uncommitted configuration.
//!
//! # Two who know it
//!
//! The replica layer names the voters that come with a batch ([`Control::ChangeVoters`](crate::Control::ChangeVoters)),
//! and every replica finds the same ones when it delivers that batch. For that to be the same at last, everything
//! that comes with voters is taken **one at a time**: while such an entry is in the log and not delivered, the next
//! one is refused. So what the leader had delivered when it proposed a batch, is what counts where it is decided: between
//! the two there is nothing else that speaks of voters. That includes batches that change something else about the
//! group, since they decide whether the next one counts. What this module adds by itself is [`Batch::settling`], which
//! every replica recognises.
//!
//! In return the replica layer can say who votes behind any decided slot. An entry that was fetched from a peer comes
//! with its voters, and a snapshot with those of its slot ([`Control::Learn`](crate::Control::Learn),
//! [`Control::Installed`](crate::Control::Installed), [`Restart::outgoing`](crate::Restart::outgoing)).

use std::sync::Arc;

use synod_wire::{Batch, ReplicaId, Time};

use super::{Message, Raft, State, messages::Entry};
use crate::{ChangeRefused, Effect, Effects, members::reached_by};

/// The replicas whose majority counts; during a change, two groups, both of whose majorities count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterSets {
    /// Shared, and small where it stands: there is room for them in every entry, and nearly no entry has any.
    halves: Arc<Halves>,
}

#[derive(Debug, PartialEq, Eq)]
struct Halves {
    incoming: Vec<ReplicaId>,
    outgoing: Vec<ReplicaId>,
}

impl VoterSets {
    /// What it takes in a message, in bytes.
    pub(super) fn size(&self) -> usize {
        8 * (1 + self.incoming().len() + self.outgoing().len())
    }

    /// One group.
    #[must_use]
    pub fn simple(voters: Vec<ReplicaId>) -> VoterSets {
        VoterSets::joint(voters, Vec::new())
    }

    /// The group to be, and the one that was. Each is put in order, and nobody counts twice.
    #[must_use]
    pub fn joint(mut incoming: Vec<ReplicaId>, mut outgoing: Vec<ReplicaId>) -> VoterSets {
        for half in [&mut incoming, &mut outgoing] {
            half.sort_unstable();
            half.dedup();
        }
        VoterSets { halves: Arc::new(Halves { incoming, outgoing }) }
    }

    /// Who votes once the change, if there is one, is complete.
    #[must_use]
    pub fn incoming(&self) -> &[ReplicaId] {
        &self.halves.incoming
    }

    /// During a change, who voted before it; otherwise empty.
    #[must_use]
    pub fn outgoing(&self) -> &[ReplicaId] {
        &self.halves.outgoing
    }

    /// Whether a change is under way.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.outgoing().is_empty()
    }

    /// Whether a replica votes.
    #[must_use]
    pub fn contains(&self, id: ReplicaId) -> bool {
        self.incoming().binary_search(&id).is_ok() || self.outgoing().binary_search(&id).is_ok()
    }

    /// Everybody who votes, in ascending order.
    #[must_use]
    pub fn all(&self) -> Vec<ReplicaId> {
        let mut all: Vec<_> = self.incoming().iter().chain(self.outgoing()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether these replicas decide: a majority of each group.
    pub fn is_quorum(&self, mut has: impl FnMut(ReplicaId) -> bool) -> bool {
        self.quorum_value(|id| u64::from(has(id))) >= 1
    }

    /// The largest number that a quorum reaches, each replica having reached `value`.
    pub fn quorum_value(&self, mut value: impl FnMut(ReplicaId) -> u64) -> u64 {
        let mut of = |half: &[ReplicaId]| reached_by(half, half.len() / 2 + 1, &mut value);
        match (self.incoming().is_empty(), self.outgoing().is_empty()) {
            (false, true) => of(self.incoming()),
            (false, false) => of(self.incoming()).min(of(self.outgoing())),
            // Nobody: never made by a leader, and nothing is decided by nobody.
            (true, _) => 0,
        }
    }

    /// A planted bug: the two groups taken for one.
    pub(super) fn union(&self) -> VoterSets {
        VoterSets::simple(self.all())
    }
}

impl Raft {
    /// Who votes, as far as this replica's log goes.
    pub(super) fn voters(&self) -> &VoterSets {
        &self.log.configuration().voters
    }

    pub(super) fn votes(&self) -> bool {
        self.voters().contains(self.members.me())
    }

    /// Whether this replica may stand for election. One that is removed by an entry that is not known to be committed
    /// still may: perhaps nobody else has that entry, and then nobody else's log is up to date (Ongaro 2014, section
    /// 4.2.2). It does not count itself.
    pub(super) fn may_stand(&self) -> bool {
        self.votes() || self.log.configuration_at(self.decided).voters.contains(self.members.me())
    }

    pub(super) fn change_voters(
        &mut self,
        now: Time,
        voters: VoterSets,
        batch: Batch,
        effects: &mut Effects,
    ) {
        match self.may_change_to(&voters) {
            Err(refused) => {
                effects.push(Effect::ChangeRefused(refused));
                if let ChangeRefused::Behind(id) = refused {
                    self.overtake(now, id, effects);
                }
            }
            Ok(()) => self.append_configuration(now, batch, voters, effects),
        }
    }

    /// A learner is to vote and obeys no leader of this term: a change that reached it and was never decided let it vote in
    /// a later one. It cannot go back, since that vote may count. So this leader, which has everything, goes on in a term
    /// above that one, if a quorum lets it; the change is asked for again.
    fn overtake(&mut self, now: Time, id: ReplicaId, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let Some(term) = leader.term_ahead(id) else { return };
        self.enter_term(now, term, None, effects);
        // The others need not have missed a leader.
        self.campaign(now, false, true, effects);
    }

    fn may_change_to(&self, voters: &VoterSets) -> Result<(), ChangeRefused> {
        let State::Leader(leader) = &self.state else { return Err(ChangeRefused::NotLeading) };
        let current = self.log.configuration();
        if !leader.duties.knows_all_before(self.decided) && !self.options.has(super::Bug::ChangeAtOnce) {
            return Err(ChangeRefused::TooEarly);
        }
        let pending = current.slot > self.decided && !self.options.has(super::Bug::ChangeAtOnce);
        if pending || leader.is_transferring() {
            return Err(ChangeRefused::Pending);
        }
        // A voter that has to fetch half the log first would only stop the others.
        for &id in voters.incoming().iter().filter(|&&id| !current.voters.contains(id)) {
            let known = id == self.members.me() || leader.has_caught_up(id, self.log.first());
            if !known {
                return Err(ChangeRefused::Behind(id));
            }
        }
        Ok(())
    }

    fn append_configuration(&mut self, now: Time, batch: Batch, voters: VoterSets, effects: &mut Effects) {
        let State::Leader(leader) = &mut self.state else { return };
        // All wait for it: it is announced at once.
        leader.duties.awaits(self.log.last().next());
        let entry = Entry { ballot: leader.ballot, batch, voters: Some(voters) };
        self.log.push(entry);
        // It counts from now on: so does the record.
        self.write(effects);
        self.track_voters(now);
    }

    /// Goes on with a change whose entry is committed: leaves the joint configuration, or, if this leader is not in
    /// the new one, leaves office.
    pub(super) fn advance_change(&mut self, now: Time, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let current = self.log.configuration();
        if current.slot > self.decided || !leader.duties.knows_all_before(self.decided) {
            return;
        }
        if current.voters.is_joint() {
            let voters = VoterSets::simple(current.voters.incoming().to_vec());
            return self.append_configuration(now, Batch::settling(), voters, effects);
        }
        if !self.votes() {
            // Who stays hears that the change is complete, and who has everything need not wait for a time-out.
            let ballot = leader.ballot;
            let heir = leader.most_advanced(current.voters.incoming());
            self.tell_commit(effects);
            if let Some(heir) = heir {
                effects.send(heir, Message::TimeoutNow { ballot }, synod_wire::Lsn::ZERO);
            }
            self.step_down(now, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bits: u32) -> Vec<ReplicaId> {
        (0..6).filter(|bit| bits & (1 << bit) != 0).map(|bit| ReplicaId(bit + 1)).collect()
    }

    /// A majority, by the definition: more than half.
    fn majority(of: u32, has: u32) -> bool {
        2 * (of & has).count_ones() > of.count_ones()
    }

    /// All pairs of groups of at most six replicas, against all sets of supporters.
    #[test]
    fn a_quorum_is_a_majority_of_each_group() {
        for incoming in 1..64u32 {
            for outgoing in (0..64u32).step_by(3) {
                let sets = VoterSets::joint(ids(incoming), ids(outgoing));
                for has in 0..64u32 {
                    let expected = majority(incoming, has) && (outgoing == 0 || majority(outgoing, has));
                    let found = sets.is_quorum(|id| has & (1 << (id.0 - 1)) != 0);
                    assert_eq!(found, expected, "{incoming:b} {outgoing:b} {has:b}");
                }
            }
        }
    }

    /// The value of a quorum against its definition: the largest that a quorum has reached.
    #[test]
    fn the_value_of_a_quorum_is_the_largest_that_one_reaches() {
        let mut seed = 7u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        for _ in 0..20_000 {
            let sets = VoterSets::joint(ids(random() as u32 % 63 + 1), ids(random() as u32 % 64));
            let values: Vec<u64> = (0..6).map(|_| random() % 5).collect();
            let value = |id: ReplicaId| values[id.0 as usize - 1];
            let brute = (0..5).rev().find(|&bound| sets.is_quorum(|id| value(id) >= bound)).unwrap_or(0);
            assert_eq!(sets.quorum_value(value), brute, "{sets:?} {values:?}");
        }
    }

    /// What joint consensus rests on: a quorum of the joint configuration meets every quorum of both.
    #[test]
    fn joint_quorums_meet_those_before_and_after() {
        let (old, new) = (0b00111u32, 0b11100u32);
        let joint = VoterSets::joint(ids(new), ids(old));
        let quorums = |sets: &VoterSets| -> Vec<u32> {
            (0..32).filter(|has| sets.is_quorum(|id| has & (1 << (id.0 - 1)) != 0)).collect()
        };
        for one in quorums(&joint) {
            for other in [VoterSets::simple(ids(old)), VoterSets::simple(ids(new)), joint.clone()] {
                assert!(quorums(&other).iter().all(|quorum| one & quorum != 0));
            }
        }
    }
}
