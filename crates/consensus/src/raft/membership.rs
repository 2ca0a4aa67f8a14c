//! Which replicas vote, and changing that: by joint consensus, or one replica at a time.
//!
//! A configuration counts from the moment it is appended, on each replica that appends it, and no longer once it is
//! truncated. A leader begins no change before it has committed an entry of its own term, and none while a batch that
//! speaks of voters is in the log and not delivered. docs/raft.md says why, and how the replica layer knows the voters
//! too.

use synod_wire::{Batch, ReplicaId, Time};

use super::{Message, Raft, State, messages::Entry};
use crate::{ChangeRefused, Effect, Effects, VoterSets};

impl Raft {
    /// The voters, as far as this replica's log goes.
    pub(super) fn voters(&self) -> &VoterSets {
        &self.log.configuration().voters
    }

    pub(super) fn votes(&self) -> bool {
        self.voters().contains(self.members.me())
    }

    /// Whether this replica may stand for election. A replica that is removed by an entry that is not known
    /// to be committed still may: perhaps no other replica has that entry, and then no other log is up to
    /// date (Ongaro 2014, section 4.2.2). It does not count itself.
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
                if let ChangeRefused::Lagging(id) = refused {
                    self.overtake(now, id, effects);
                }
            }
            Ok(()) => self.append_configuration(now, batch, voters, effects),
        }
    }

    /// Begins an election if a learner is to vote and obeys no leader of this term, because a change that
    /// reached it and was never decided let it vote in a later one. The learner cannot go back, since that
    /// vote may count. So this leader, which has everything, goes on in a term above that one, if a quorum
    /// lets it; the change has to be asked for again.
    fn overtake(&mut self, now: Time, id: ReplicaId, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let Some(term) = leader.term_ahead(id) else { return };
        self.enter_term(now, term, None, effects);
        // The others do not need to have missed a leader.
        self.campaign(now, false, true, effects);
    }

    fn may_change_to(&self, voters: &VoterSets) -> Result<(), ChangeRefused> {
        let State::Leader(leader) = &self.state else { return Err(ChangeRefused::NotLeading) };
        let current = self.log.configuration();
        let has_own = leader.duties.knows_all_before(self.decided);
        self.rules().may_change(has_own, current.slot, self.decided)?;
        if leader.is_transferring() {
            return Err(ChangeRefused::Pending);
        }
        // A voter that has to fetch half the log first would only stop the others.
        for &id in voters.incoming().iter().filter(|&&id| !current.voters.contains(id)) {
            let known = id == self.members.me() || leader.has_caught_up(id, self.log.first());
            if !known {
                return Err(ChangeRefused::Lagging(id));
            }
        }
        Ok(())
    }

    fn append_configuration(&mut self, now: Time, batch: Batch, voters: VoterSets, effects: &mut Effects) {
        let State::Leader(leader) = &mut self.state else { return };
        // All replicas wait for it, so it is announced at once.
        leader.duties.awaits(self.log.last().next());
        let entry = Entry { ballot: leader.ballot, batch, voters: Some(voters) };
        self.log.push(entry);
        // The configuration counts from now on, and so does its record.
        self.write(effects);
        self.track_voters(now);
    }

    /// Goes on with a change whose entry is committed: leaves the joint configuration or, if this leader is
    /// not in the new one, gives up leading.
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
            // The replicas that stay hear that the change is complete, and one that has everything need not
            // wait for a time-out.
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
