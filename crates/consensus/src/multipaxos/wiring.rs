//! What MultiPaxos answers otherwise than the rest of the family (`../wiring.rs`): its states, and questions of the
//! replica around it.

use std::sync::Arc;

use synod_wire::{Ballot, Ballots, Batch, Delivered, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, MultiPaxos, Record, State};
use crate::{
    Decision, Effects, Role,
    leadership::Leads,
    paxos::{Common, Paxos},
};

crate::wiring::protocol!(MultiPaxos, acceptor);

impl Paxos for MultiPaxos {
    type Message = Message;

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn role(&self) -> Role {
        match self.state {
            State::Follower => Role::Follower,
            State::Candidate(_) => Role::Candidate,
            State::Leader(_) => Role::Leader,
            State::Recovering(_) => Role::Recovering,
        }
    }

    fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.become_candidate(now, ballot, effects);
    }

    fn accepted_after(&self, known: Slot, ballot: Ballot) -> bool {
        self.acceptor.has_accepted_after(known, ballot)
    }

    fn progress(&self) -> (Slot, bool) {
        self.common.progress_by_slot(self.decided(), self.in_flight())
    }

    fn resend(&mut self, now: Time, effects: &mut Effects) {
        match self.state {
            State::Candidate(_) => self.resend_prepare(now, effects),
            State::Leader(_) => self.propose_again(now, effects),
            State::Recovering(_) => self.resend_recover(now, effects),
            State::Follower => {}
        }
    }

    fn own_deadline(&self) -> Time {
        match &self.state {
            State::Follower => Time::NEVER,
            State::Candidate(candidate) => candidate.resend.at(),
            State::Leader(leader) => leader.tick_at(),
            State::Recovering(recovering) => recovering.resend.at(),
        }
    }

    fn proposed_if_all_count(&self) -> Option<Slot> {
        let State::Leader(leader) = &self.state else { return None };
        self.all_count().then(|| leader.next_slot().prev())
    }

    fn waits_for_disk(&self) -> bool {
        self.all_count() || !matches!(self.state, State::Follower)
    }

    fn knows_more(&mut self, now: Time, effects: &mut Effects) {
        self.finish_recovery(now, effects);
    }
}

impl MultiPaxos {
    /// Whether all members count votes, and not the leader alone.
    pub(super) fn all_count(&self) -> bool {
        self.common.options.multipaxos.decision == Decision::All
    }

    fn for_each_undelivered(&self, see: &mut dyn FnMut(&Batch)) {
        let State::Leader(leader) = &self.state else { return };
        self.acceptor.batches().chain(leader.waiting()).for_each(see);
    }

    fn flush_all(&mut self, now: Time, effects: &mut Effects) {
        self.send_accepts(now, effects);
        self.send_accepted(effects);
        self.announce_decided(now, effects);
    }

    fn on_durable(&mut self, now: Time, effects: &mut Effects) {
        self.count_own_votes(effects);
        self.complete_phase_1(now, effects);
        self.finish_recovery(now, effects);
    }

    /// A peer says what was decided in a slot.
    fn learn(&mut self, slot: Slot, ballots: Ballots, batch: Batch, effects: &mut Effects) {
        let value = AcceptedValue { slot, ballot: ballots.proposed, batch };
        self.common.learn(&mut self.acceptor, value, |value| Record::Learned(value).into(), effects);
        self.deliver(effects);
    }

    /// A snapshot holds everything through a slot.
    fn installed(&mut self, slot: Slot, _: Arc<Delivered>, effects: &mut Effects) {
        if slot > self.decided() {
            self.acceptor.installed(slot);
            if let State::Leader(leader) = &mut self.state {
                leader.proposed = leader.proposed.max(slot);
            }
            self.deliver(effects);
        }
    }
}
