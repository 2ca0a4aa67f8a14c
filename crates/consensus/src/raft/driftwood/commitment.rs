//! Commitment by commit statuses (version 2): which status a replica tells, and what follows for its own log from
//! those that it was told.

use synod_wire::{Ballot, ReplicaId, Slot, Time};

use super::commit_status::{Merge, Status};
use crate::{
    Effects, VoterSets,
    raft::{Bug, Raft, State},
};

impl Raft {
    /// The status goes with the present term's leader, if that one's rounds carry statuses.
    pub(in crate::raft) fn has_status(&self) -> bool {
        let ballot = self.gossip.status.ballot();
        ballot != Ballot::ZERO && ballot.round == self.term
    }

    pub(super) fn begin_status(&mut self, ballot: Ballot, merge: Merge) {
        if self.gossip.status.ballot() != ballot {
            let forgets = !self.options.has(Bug::KeepStatusOfTerm);
            self.gossip.status.raise(self.decided);
            self.gossip.status.begin(ballot, merge, forgets);
        }
    }

    /// Takes in what a status says of voters. What it says of replicas that this one does not know to vote comes again
    /// with every round.
    pub(super) fn merge_status(&mut self, status: &Status) -> bool {
        let voters = &self.log.configuration().voters;
        self.gossip.status.merge(status, |id| voters.contains(id))
    }

    pub(super) fn status_to_tell(&self) -> Option<Status> {
        let voters = self.voters();
        self.has_status().then(|| self.gossip.status.tell(|id| voters.contains(id)))
    }

    /// Takes note that a follower holds this leader's log through a slot, if the status counts that.
    pub(in crate::raft) fn holds_directly(&mut self, id: ReplicaId, through: Slot) {
        let own_term = self.log.ballot_at(through) == Some(self.gossip.status.ballot());
        // The document's leader learns of logs by statuses only.
        let counts = own_term && self.voters().contains(id);
        if self.has_status() && counts && self.options.raft.status_merge != Merge::Printed {
            self.gossip.status.hold(id, through);
        }
    }

    /// Draws the conclusions from the status: what this replica holds durably counts, and what a quorum holds is
    /// committed.
    pub(in crate::raft) fn settle(&mut self, now: Time, effects: &mut Effects) {
        if !self.has_status() {
            return;
        }
        let (me, ballot) = (self.members.me(), self.gossip.status.ballot());
        // With an entry of the leader's term at its end, this log is a beginning of the leader's.
        let follows = self.log.last_ballot() == ballot;
        let stable =
            if self.options.has(Bug::AckBeforeDurable) { self.log.last_written() } else { self.stable };
        let has_own_term = self.log.ballot_at(stable) == Some(ballot) || self.options.has(Bug::HoldAnyTerm);
        let own = if has_own_term { stable } else { Slot::ZERO };
        let counted = if self.options.has(Bug::CountBeyondLog) {
            Slot(u64::MAX)
        } else if follows {
            self.log.last_written()
        } else {
            Slot::ZERO
        };
        let voters: &VoterSets = &self.log.configuration().voters;
        self.gossip.status.forget_others(voters, me);
        self.gossip.has_news |= own > self.gossip.status.held_by(me) && own > self.gossip.status.commit();
        self.gossip.status.settle(me, own, counted, |value| voters.quorum_value(value));
        self.gossip.status.raise(self.decided);
        if follows {
            self.verified = self.verified.max(self.log.last_written());
        }
        let mut commit = self.gossip.status.commit();
        if self.options.has(Bug::CommitEverything) {
            commit = commit.max(self.log.last_written());
        }
        if matches!(self.state, State::Leader(_)) {
            let reached = commit.min(self.log.last_written());
            if reached > self.decided {
                self.deliver_through(reached, ballot, effects);
                self.advance_change(now, effects);
            }
        } else {
            self.decided_elsewhere = self.decided_elsewhere.max(commit);
            let any_term = self.options.has(Bug::CommitAnyTerm);
            let verified = if any_term { self.log.last_written() } else { self.verified };
            self.deliver_through(commit.min(verified), ballot, effects);
        }
    }
}
