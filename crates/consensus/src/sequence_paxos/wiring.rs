//! Sequence Paxos as the traits see it: where inputs go, and what others ask of a replica.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{Message, Phase, Record, SequencePaxos, State};
use crate::{
    Control, Effects, Input, Options, Protocol, Role, Status, VoterSets,
    leadership::{Leadership, Leads},
    paxos::{Common, Paxos},
};

impl Protocol for SequencePaxos {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.yield_if_overslept(now, effects);
        match input {
            Input::Receive { from, message: crate::Message::SequencePaxos(message) } => {
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
                    self.session_up(now, peer, effects);
                }
            }
            Input::Timer => self.on_timer(now, effects),
            Input::Control(control) => self.control(now, control, effects),
        }
        self.end_of_step(now, before, effects);
        self.assert_invariants();
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
        self.send_accepted(effects);
        self.send_accepts(effects);
        self.announce(now, effects);
        self.end_of_step(now, before, effects);
        self.assert_invariants();
        self.ask_for_timer(effects);
    }

    fn room(&self) -> usize {
        match &self.state {
            State::Leader(_) if !self.is_congested() => {
                self.common.options.window_max.saturating_sub(self.in_flight())
            }
            _ => 0,
        }
    }

    fn is_congested(&self) -> bool {
        self.common.is_congested()
    }

    fn status(&self) -> Status {
        let waits_for_disk = matches!(self.state, State::Candidate(_) | State::Leader(_));
        self.common.status(self.role(), self.log.decided(), self.in_flight(), waits_for_disk)
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        matches!(self.state, State::Leader(_)) && self.common.election.answers(now, voter)
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        if matches!(self.state, State::Leader(_)) {
            let undecided = (self.log.decided().0 + 1..=self.log.last().0).map(Slot);
            undecided.filter_map(|slot| self.log.get(slot)).for_each(see);
        }
    }
}

impl Leads for SequencePaxos {
    fn me(&self) -> ReplicaId {
        self.common.members.me()
    }

    fn decided(&self) -> Slot {
        self.log.decided()
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

    fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
        self.send_decide(through, effects);
    }
}

impl Paxos for SequencePaxos {
    type Message = Message;

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn role(&self) -> Role {
        match self.state {
            State::Follower(_) => Role::Follower,
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
        self.accepted_in == ballot && self.log.last() > known
    }

    /// It grows with the slots that this leader decided, and with those that each follower has of its sequence, be it
    /// in pages that count for nothing yet. It stops to grow if nothing is decided, as then nothing more than the
    /// window is proposed.
    fn progress(&self) -> (Slot, bool) {
        let State::Leader(leader) = &self.state else { return (Slot::ZERO, false) };
        let followers: u64 = leader.peers.values().map(|peer| peer.reached.0).sum();
        let gained = Slot(self.log.decided().0.saturating_add(followers));
        (gained, self.in_flight() > 0 && !self.is_congested())
    }

    fn resend(&mut self, now: Time, effects: &mut Effects) {
        match self.state {
            State::Follower(_) => self.ask_for_prepare(now, effects),
            State::Candidate(_) => self.resend_prepare(now, effects),
            State::Leader(_) => self.resend_to_peers(now, effects),
            State::Recovering => {}
        }
    }

    fn own_deadline(&self) -> Time {
        match &self.state {
            State::Follower(follower) if self.common.reported.view.leader.is_some() => follower.ask_at(),
            State::Candidate(candidate) => candidate.resend.at(),
            State::Leader(leader) => leader.tick_at(),
            State::Follower(_) | State::Recovering => Time::NEVER,
        }
    }
}

impl SequencePaxos {
    fn control(&mut self, now: Time, control: Control, effects: &mut Effects) {
        match control {
            // The replica layer changes members by a new epoch.
            Control::ChangeVoters { .. } => {}
            Control::ReadIndex(token) => self.read_index(token, effects),
            Control::Learn { slot, ballots, batch, .. } => self.learn(slot, ballots, batch, effects),
            Control::Installed { slot, .. } => self.installed(slot),
            Control::Trim(slot) => {
                effects.append(Record::Trimmed { slot, accepted_in: self.accepted_in }.into());
            }
            Control::Backlogged(backlogged) => self.common.backlogged = backlogged,
            Control::Transfer(to) => self.transfer(to, effects),
        }
        // A candidate, or a follower that lagged too far, may wait for what was learned.
        self.complete_prepare(now, effects);
        self.caught_up(now, effects);
    }

    fn on_durable(&mut self, now: Time, lsn: Lsn, effects: &mut Effects) {
        self.common.became_durable(now, lsn);
        self.count_own_acceptance(effects);
        self.complete_prepare(now, effects);
    }

    /// How many slots of this leader's sequence are not decided.
    fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(_) => {
                usize::try_from(self.log.last().0 - self.log.decided().0).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }

    /// Checks the invariants of docs/errata.md that one replica can check; the simulator checks I3, I5 and I8,
    /// which are about several. I6 concerns epochs.
    pub(super) fn assert_invariants(&self) {
        if self.is_planted() || matches!(self.state, State::Recovering) {
            return;
        }
        debug_assert!(self.accepted_in <= self.common.promised, "I1");
        debug_assert!(self.log.decided() <= self.log.last(), "I2");
        if let State::Leader(leader) = &self.state {
            debug_assert!(leader.ballot == self.common.promised && leader.ballot == self.accepted_in, "I4");
            debug_assert!(leader.all_within(self.log.last()), "I7");
        }
        if let State::Follower(follower) = &self.state {
            let accepts = follower.phase == Phase::Accept;
            debug_assert!(!accepts || self.accepted_in == self.common.promised, "accepts in its ballot only");
        }
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.state, State::Leader(_))
    }

    /// With a bug planted, invariants need not hold.
    pub(super) fn is_planted(&self) -> bool {
        self.common.options.planted_bug().is_some()
    }
}
