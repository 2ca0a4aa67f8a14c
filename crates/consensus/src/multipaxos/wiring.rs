//! MultiPaxos as the traits see it: where inputs go, and what others ask of a replica.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, MultiPaxos, Record, State};
use crate::{
    Control, Decision, Effects, Input, Options, Protocol, Role, Status, VoterSets,
    leadership::{Leadership, Leads},
    paxos::{Common, Paxos},
};

impl Protocol for MultiPaxos {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.yield_if_overslept(now, effects);
        match input {
            Input::Receive { from, message: crate::Message::MultiPaxos(message) } => {
                self.receive(now, from, message, effects);
            }
            Input::Receive { from, message: crate::Message::Election(message) } => {
                self.handle_election(now, from, &message, effects);
            }
            Input::Receive { .. } => {}
            // It waits for the flush, which looks at what else this step would look at.
            Input::Propose { batch, awaited } => return self.propose(batch, awaited),
            Input::Durable(lsn) => self.on_durable(now, lsn, effects),
            Input::Link { peer, link } => {
                self.link(now, peer, link, effects);
                if link.begins_again() {
                    self.resend_to(peer, effects);
                }
            }
            Input::Timer => self.on_timer(now, effects),
            Input::Control(control) => self.control(now, control, effects),
        }
        self.end_of_step(now, before, effects);
    }

    fn promised(&self) -> Ballot {
        self.common.promised
    }

    fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.promise(now, ballot, effects);
    }

    fn options(&self) -> &Options {
        &self.common.options
    }

    fn flush(&mut self, now: Time, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.yield_if_overslept(now, effects);
        self.send_accepts(now, effects);
        self.send_accepted(effects);
        self.announce(now, effects);
        self.end_of_step(now, before, effects);
        self.ask_for_timer(effects);
    }

    fn room(&self) -> usize {
        match &self.state {
            State::Leader(leader) if !self.is_congested() => {
                self.acceptor.slots_free(leader.next_slot(), &self.common.options)
            }
            _ => 0,
        }
    }

    fn is_congested(&self) -> bool {
        self.common.is_congested()
    }

    fn status(&self) -> Status {
        let everybody_counts = self.common.options.multipaxos.decision == Decision::All;
        let waits_for_disk = everybody_counts || !matches!(self.state, State::Follower);
        self.common.status(self.role(), self.decided(), self.in_flight(), waits_for_disk)
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        matches!(self.state, State::Leader(_)) && self.common.election.answers(now, voter)
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        let State::Leader(leader) = &self.state else { return };
        self.acceptor.batches().chain(leader.waiting()).for_each(see);
    }
}

impl Leads for MultiPaxos {
    fn me(&self) -> ReplicaId {
        self.common.members.me()
    }

    fn decided(&self) -> Slot {
        self.acceptor.decided()
    }

    fn duties(&mut self) -> Option<(&mut Leadership, &VoterSets)> {
        let State::Leader(leader) = &mut self.state else { return None };
        Some((&mut leader.duties, self.common.members.voters()))
    }

    fn tell_heartbeat(&mut self, effects: &mut Effects) {
        self.broadcast_heartbeat(effects);
    }

    fn give_up(&mut self, now: Time, effects: &mut Effects) {
        self.common.election.gave_up(now);
        self.step_down(effects);
    }

    fn report_leader(&mut self, effects: &mut Effects) {
        self.common.report_leader(self.role(), effects);
    }

    fn serves_reads(&mut self) -> bool {
        let decided = self.decided();
        let State::Leader(leader) = &self.state else { return false };
        // Where everybody counts votes, a read waits for all that is proposed.
        let by_leader = self.common.options.multipaxos.decision == Decision::Leader;
        by_leader && leader.duties.knows_all_before(decided)
    }

    /// Where everybody counts votes, everybody finds out by itself what is decided.
    fn is_known(&self, _: Slot) -> bool {
        self.common.options.multipaxos.decision == Decision::All
    }

    fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
        let ballot = self.common.promised;
        self.common.broadcast(Message::Decided { ballot, through }, Lsn::ZERO, effects);
    }

    fn read_slot(&mut self) -> Option<Slot> {
        let decided = self.decided();
        let State::Leader(leader) = &self.state else { return None };
        // Where everybody counts votes, a follower may know of a decision before this leader does, so the read waits
        // for all that is proposed.
        Some(match self.common.options.multipaxos.decision {
            Decision::Leader => leader.duties.read_slot(decided),
            Decision::All => leader.next_slot().prev(),
        })
    }
}

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

    fn promise_record(ballot: Ballot) -> crate::Record {
        Record::Promised(ballot).into()
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
}

impl MultiPaxos {
    fn control(&mut self, now: Time, control: Control, effects: &mut Effects) {
        match control {
            Control::ReadIndex(token) => self.read_index(token, effects),
            Control::Learn { slot, ballots, batch, .. } => {
                let value = AcceptedValue { slot, ballot: ballots.proposed, batch };
                self.common.learn(&mut self.acceptor, value, |value| Record::Learned(value).into(), effects);
                self.deliver(effects);
            }
            Control::Installed { slot, .. } => {
                if slot > self.decided() {
                    self.acceptor.installed(slot);
                    self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
                    if let State::Leader(leader) = &mut self.state {
                        leader.proposed = leader.proposed.max(slot);
                    }
                    self.deliver(effects);
                }
            }
            Control::Trim(_) => {}
            Control::Backlogged(backlogged) => self.common.backlogged = backlogged,
            Control::Transfer(to) => self.transfer(to, effects),
            // The replica layer changes members by a new epoch.
            Control::ChangeVoters { .. } => {}
        }
        self.finish_recovery(now, effects);
    }

    fn on_durable(&mut self, now: Time, lsn: Lsn, effects: &mut Effects) {
        self.common.became_durable(now, lsn);
        self.count_own_votes(effects);
        self.complete_phase_1(now, effects);
        self.finish_recovery(now, effects);
    }
}
