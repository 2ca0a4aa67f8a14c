//! Reads that wait until a quorum has confirmed that the leader still leads.

use std::collections::{BTreeMap, VecDeque};

use synod_wire::{ReplicaId, Slot};

use crate::{Effect, Effects, ReadToken};

/// The most reads that may wait for a quorum; each stands for all that one replica asked at a time.
const READS_MAX: usize = 4096;

/// A leader's heartbeats, which are numbered, and the reads that wait for answers to them.
///
/// A read needs a quorum to answer a heartbeat that was sent after the read came: then no replica had begun
/// to lead in a higher ballot when it came. Reads that come while a heartbeat is under way share the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadRounds {
    /// The last heartbeat that was sent.
    round: u64,
    /// The last heartbeat that each member answered.
    answered: BTreeMap<ReplicaId, u64>,
    /// The waiting reads, each with the heartbeat that a quorum has to answer and the slot that the read must see.
    reads: VecDeque<(u64, ReadToken, Slot)>,
}

impl ReadRounds {
    /// The last heartbeat that was sent.
    pub(crate) fn last(&self) -> u64 {
        self.round
    }

    /// Begins the next heartbeat and returns its number. The leader itself answers it at once.
    pub(crate) fn begin(&mut self, me: ReplicaId) -> u64 {
        self.round += 1;
        self.answered.insert(me, self.round);
        self.round
    }

    /// Records that a member answered a heartbeat.
    pub(crate) fn answered(&mut self, from: ReplicaId, round: u64) {
        let last = self.answered.entry(from).or_default();
        *last = (*last).max(round);
    }

    /// Forgets the answers of a member that is gone.
    pub(crate) fn forget(&mut self, member: ReplicaId) {
        self.answered.remove(&member);
    }

    /// Adds a read, which must see everything through this slot.
    pub(crate) fn ask(&mut self, token: ReadToken, slot: Slot) {
        if self.reads.len() >= READS_MAX {
            // A leader that reaches no quorum is asked repeatedly: the client of the oldest read has given up long ago.
            self.reads.pop_front();
        }
        self.reads.push_back((self.round + 1, token, slot));
    }

    /// Answers the reads that a quorum has confirmed. `quorum_value` finds the largest number that a quorum
    /// reaches, given what each member has reached. Returns whether a heartbeat should be sent now, because
    /// reads wait for the next one and none is under way.
    pub(crate) fn confirm(
        &mut self,
        quorum_value: impl FnOnce(&dyn Fn(ReplicaId) -> u64) -> u64,
        effects: &mut Effects,
    ) -> bool {
        if self.reads.is_empty() {
            return false;
        }
        let confirmed = quorum_value(&|member| self.answered.get(&member).copied().unwrap_or_default());
        while let Some(&(round, token, slot)) = self.reads.front()
            && round <= confirmed
        {
            self.reads.pop_front();
            effects.push(Effect::ReadIndex { token, slot: Some(slot) });
        }
        confirmed == self.round && !self.reads.is_empty()
    }

    /// Fails all reads, since this replica does not lead any more.
    pub(crate) fn fail(&mut self, effects: &mut Effects) {
        for (_, token, _) in self.reads.drain(..) {
            effects.push(Effect::ReadIndex { token, slot: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Members;
    use synod_wire::Lsn;

    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    struct Leader {
        rounds: ReadRounds,
        members: Members,
        effects: Effects,
    }

    impl Leader {
        fn of(members: u64) -> Leader {
            let members = Members::new((1..=members).map(ReplicaId), R1);
            Leader { rounds: ReadRounds::default(), members, effects: Effects::new(Lsn::ZERO) }
        }

        /// Whether a heartbeat should be sent, and the reads that are answered.
        fn confirm(&mut self) -> (bool, Vec<(u64, Option<u64>)>) {
            let members = &self.members;
            let more = self.rounds.confirm(|round_of| members.quorum_value(round_of), &mut self.effects);
            let answer = |effect: Effect| match effect {
                Effect::ReadIndex { token, slot } => (token.0, slot.map(|slot| slot.0)),
                other => panic!("{other:?}"),
            };
            (more, self.effects.drain().map(answer).collect())
        }
    }

    #[test]
    fn a_read_waits_for_answers_to_a_heartbeat_sent_after_it() {
        let mut leader = Leader::of(3);
        leader.rounds.begin(R1);
        leader.rounds.ask(ReadToken(7), Slot(4));
        assert_eq!(leader.confirm(), (false, vec![]), "round 1 is under way");
        leader.rounds.answered(R2, 1);
        assert_eq!(leader.confirm(), (true, vec![]), "it was sent before the read came");
        assert_eq!(leader.rounds.begin(R1), 2);
        leader.rounds.ask(ReadToken(8), Slot(5));
        assert_eq!(leader.confirm(), (false, vec![]));
        leader.rounds.answered(R2, 2);
        leader.rounds.answered(R2, 1);
        assert_eq!(leader.confirm(), (true, vec![(7, Some(4))]), "the second read needs another round");
        leader.rounds.forget(R2);
        leader.rounds.begin(R1);
        assert_eq!(leader.confirm(), (false, vec![]));
        leader.rounds.fail(&mut leader.effects);
        assert_eq!(leader.effects.drain().count(), 1);
    }

    #[test]
    fn alone_a_leader_confirms_itself() {
        let mut leader = Leader::of(1);
        leader.rounds.ask(ReadToken(7), Slot(4));
        assert_eq!(leader.confirm(), (true, vec![]));
        leader.rounds.begin(R1);
        assert_eq!(leader.confirm(), (false, vec![(7, Some(4))]));
    }
}
