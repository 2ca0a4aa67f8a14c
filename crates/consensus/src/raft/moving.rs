//! Above Raft's own election: with `--election latency` leadership moves to the voter that exchanges messages with a
//! majority soonest (`election/latency/`). Raft elects as always, so nothing here has a part in who may lead; a leader
//! that hears of a better voter hands over to it as to one that an operator names.

use synod_wire::{Ballot, ReplicaId, Time};

use super::{Message, Raft, Record, State};
use crate::{
    Effects, ElectionKind, Members,
    election::{self, Memory, latency},
};

/// The latency-aware choice of a replica that votes, if the options ask for it.
pub(super) type Mover = Option<Box<latency::Mover>>;

impl Raft {
    /// Begins to measure, if this replica votes.
    pub(super) fn begin_moving(&mut self, now: Time, memory: &Memory) {
        if self.options.election == ElectionKind::Latency && self.votes() {
            let members = Members::seen_by(self.members.me(), self.voters().clone());
            self.mover = Some(Box::new(latency::Mover::new(&self.options, members, memory, now)));
        }
    }

    /// Follows a change of the voters, and tells a leader that asked that this replica could take over.
    pub(super) fn move_on(&mut self, now: Time, effects: &mut Effects) {
        if self.options.election != ElectionKind::Latency || matches!(self.state, State::Recovering) {
            return;
        }
        match &mut self.mover {
            Some(mover) if mover.members().voters() == &self.log.configuration().voters => {}
            Some(mover) if self.log.configuration().voters.contains(self.members.me()) => {
                let voters = self.log.configuration().voters.clone();
                mover.change_members(Members::seen_by(self.members.me(), voters), now);
            }
            Some(_) => self.mover = None,
            None => self.begin_moving(now, &Memory::default()),
        }
        let known = self.decided_elsewhere.max(self.decided);
        let lags = known.0 > self.decided.0 + self.options.accept_ahead_max();
        let follows = matches!(self.state, State::Follower);
        if let Some(mover) = &mut self.mover {
            let seen = latency::Seen { known, here: self.decided, lags, follows };
            mover.end_of_step(now, seen, effects);
        }
    }

    /// Pings and asks, if that is due.
    pub(super) fn measure(&mut self, now: Time, effects: &mut Effects) {
        let fit = self.disk.answers(now, self.options.election_timeout);
        let heir = self.mover.as_mut().and_then(|mover| mover.on_timer(now, fit, effects));
        self.transfer_to(now, heir.map(|heir| (heir, false)), effects);
    }

    /// Hands over to a voter. While that is under way, only another one that is wished takes its place.
    fn transfer_to(&mut self, now: Time, heir: Option<(ReplicaId, bool)>, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let admits = |heir, wished| match leader.transfers_to() {
            None => true,
            Some(present) => wished && present != heir,
        };
        if let Some((heir, _)) = heir.filter(|&(heir, wished)| admits(heir, wished)) {
            self.transfer(now, heir, effects);
        }
    }

    /// Takes a message of the latency-aware election. A leader hands over to a voter that it chose, and that is ready.
    pub(super) fn receive_of_election(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &election::Message,
        effects: &mut Effects,
    ) {
        let term = Record::Term { term: self.term, voted_for: self.voted_for };
        let Some(mover) = &mut self.mover else { return };
        let heir = mover.receive(now, from, message, term.into(), effects);
        self.transfer_to(now, heir, effects);
    }

    /// Hands over to a voter since an operator wants that: at once or, if leadership moves by latency, once it is
    /// ready.
    pub(super) fn transfer_as_wished(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        let leads = matches!(self.state, State::Leader(_));
        match self.mover.as_mut().filter(|_| leads) {
            Some(mover) => mover.wishes(now, to, effects),
            None => self.transfer(now, to, effects),
        }
    }

    /// Records that the leader of a ballot was heard, and whether it decides what it has to.
    pub(super) fn follows(&mut self, now: Time, ballot: Ballot, works: bool) {
        if let Some(mover) = &mut self.mover {
            mover.follows(now, ballot, works);
        }
    }

    /// Records that another replica asks who would vote for it, or asks for votes, in this term.
    pub(super) fn hears_of_rehearsal(&mut self, now: Time, question: &Message, from: ReplicaId) {
        if let &Message::Vote { term, rehearsal: true, .. } = question
            && let Some(mover) = &mut self.mover
        {
            mover.hears_rehearsal(now, Ballot { round: term, replica: from });
        }
    }
}
