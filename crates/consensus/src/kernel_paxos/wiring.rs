//! What Kernel Paxos answers otherwise than the rest of the family (`../wiring.rs`): its states, and questions of the
//! replica around it.

use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

use super::{KernelPaxos, Message, Record, State};
use crate::{
    Effects, Role,
    leadership::Leads,
    paxos::{Common, Paxos},
};

crate::wiring::protocol!(KernelPaxos, learner);

impl Paxos for KernelPaxos {
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
            State::Recovering => Role::Recovering,
        }
    }

    fn promise_record(ballot: Ballot) -> crate::Record {
        Record::Promised(ballot).into()
    }

    fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.become_candidate(now, ballot, effects);
    }

    fn accepted_after(&self, known: Slot, ballot: Ballot) -> bool {
        self.learner.has_accepted_after(known, ballot)
    }

    fn progress(&self) -> (Slot, bool) {
        self.common.progress_by_slot(self.decided(), self.in_flight())
    }

    fn resend(&mut self, now: Time, effects: &mut Effects) {
        match self.state {
            State::Candidate(_) => self.resend_prepare(now, effects),
            State::Leader(_) => {
                self.ask_to_repeat(now, effects);
                self.propose_again(now, effects);
            }
            State::Follower => self.ask_to_repeat(now, effects),
            State::Recovering => {}
        }
    }

    fn own_deadline(&self) -> Time {
        match &self.state {
            State::Follower => self.gaps.ask_at(),
            State::Candidate(candidate) => candidate.resend.at(),
            State::Leader(leader) => leader.tick_at().min(self.gaps.ask_at()),
            State::Recovering => Time::NEVER,
        }
    }

    /// Other members may know of a decision before the leader does, so a read waits for all that is proposed.
    fn proposed_if_all_count(&self) -> Option<Slot> {
        let State::Leader(leader) = &self.state else { return None };
        Some(leader.next_slot().prev())
    }

    fn waits_for_disk(&self) -> bool {
        true
    }
}

impl KernelPaxos {
    fn for_each_undelivered(&self, see: &mut dyn FnMut(&Batch)) {
        let State::Leader(leader) = &self.state else { return };
        self.learner.batches().chain(leader.waiting()).for_each(see);
    }

    fn flush_all(&mut self, now: Time, effects: &mut Effects) {
        self.send_accepts(now, effects);
        self.watch_gaps(now);
        // Each replica counts for itself; one that missed votes hears of decisions with the next message.
        let decided = self.decided();
        if let State::Leader(leader) = &mut self.state {
            leader.duties.announces_no_more(decided);
        }
    }

    fn on_durable(&mut self, now: Time, effects: &mut Effects) {
        self.count_own_votes(effects);
        self.complete_phase_1(now, effects);
    }

    /// Tells the others what is decided, with a heartbeat.
    fn tell_decided(&mut self, _: Slot, effects: &mut Effects) {
        self.broadcast_heartbeat(effects);
    }
}
