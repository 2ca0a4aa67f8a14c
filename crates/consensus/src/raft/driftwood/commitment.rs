//! Commitment by commit statuses (version 2): which status a replica tells, and what follows for its own log from
//! those that it was told.

use synod_wire::{Ballot, ReplicaId, Slot, Time};

use super::commit_status::{Merge, Status};
use crate::{
    Effects, VoterSets,
    raft::{Raft, State},
};

impl Raft {
    /// The status goes with the present term's leader, if that one's rounds carry statuses.
    pub(in crate::raft) fn has_status(&self) -> bool {
        let ballot = self.gossip.status.ballot();
        ballot != Ballot::ZERO && ballot.round == self.term
    }

    pub(super) fn begin_status(&mut self, ballot: Ballot, merge: Merge) {
        if self.gossip.status.ballot() != ballot {
            let forgets = self.gossip_rules().forgets_status(self.gossip.status.ballot(), ballot);
            self.gossip.status.raise(self.decided);
            self.gossip.status.begin(ballot, merge, forgets);
        }
    }

    /// Takes in what a status of this ballot says of voters, and returns whether that is news. What it says of replicas
    /// that this one does not know to vote comes again with every round.
    pub(super) fn take_status(&mut self, ballot: Ballot, status: &Status) -> bool {
        if ballot.round == self.term {
            self.begin_status(ballot, status.merge);
        } else if !self.has_status() {
            // The status is of a term that is over, like this round.
            return false;
        }
        let voters = &self.log.configuration().voters;
        self.gossip_rules().may_merge(ballot, self.gossip.status.ballot())
            && self.gossip.status.merge(status, |id| voters.contains(id))
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
        let (rules, end, last) = (self.gossip_rules(), self.log.last_written(), self.log.last_ballot());
        let durable = rules.stable_through(self.stable, end);
        let own = rules.held_through(durable, self.log.ballot_at(durable), ballot);
        let counted = rules.counted_through(end, last, ballot);
        let voters: &VoterSets = &self.log.configuration().voters;
        self.gossip.status.forget_others(voters, me);
        self.gossip.has_news |= own > self.gossip.status.held_by(me) && own > self.gossip.status.commit();
        self.gossip.status.settle(me, own, counted, |value| voters.quorum_value(value));
        self.gossip.status.raise(self.decided);
        if rules.follows(last, ballot) {
            self.verified = self.verified.max(end);
        }
        let committed = self.gossip.status.commit();
        let through = rules.delivered_through(committed, self.verified, end);
        if !matches!(self.state, State::Leader(_)) {
            self.decided_elsewhere = self.decided_elsewhere.max(committed);
            self.deliver_through(through, ballot, effects);
        } else if through > self.decided {
            self.deliver_through(through, ballot, effects);
            self.advance_change(now, effects);
        }
    }
}
