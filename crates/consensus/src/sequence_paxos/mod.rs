//! Leader-based Sequence Paxos (Ng 2020, section 2.4.2 and algorithm 4) for replicas that crash and recover, over
//! sessions that lose messages. docs/sequence-paxos.md tells what happens, message by message, and has the argument why
//! it is safe, and the names of the thesis.
//!
//! Where MultiPaxos decides slot by slot, Sequence Paxos agrees on a growing **sequence**. A replica has
//! accepted a whole sequence in a ballot, and says so with two numbers: that ballot, and the last slot. The
//! owner of a ballot runs a prepare phase ([`Message::Prepare`], [`Message::Promise`]), **adopts** the best
//! sequence that a quorum has, brings each follower to the same one ([`Message::AcceptSync`]), and then appends
//! to it ([`Message::Accept`], [`Message::Accepted`], [`Message::Decide`]). A follower that may have missed
//! something asks for another `Prepare` ([`Message::PrepareReq`]). Sessions and replicas recover by that alone.

mod claims;
mod describe;
mod follower;
mod leader;
mod messages;
mod peers;
mod planted;
mod profile;
mod recovery;
mod rules;
mod sequence;
#[cfg(test)]
mod tests;

pub use crate::claims::Extent;
pub use messages::{AcceptSync, Message, Prepare, Promise, Record};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::Tuning;

use follower::{Follower, Phase};
use leader::{Candidate, Leader};
use rules::Rules;
use sequence::Sequence;
use synod_wire::{Ballot, Ballots, Batch, Lsn, ReplicaId, Slot, Time};

use crate::{
    Control, Effect, Effects, Input, Options, Protocol, Role, Status, VoterSets,
    leadership::{Leadership, Leads},
    paxos::{Common, Paxos},
};

/// One Sequence Paxos replica.
#[derive(Clone, Debug)]
pub struct SequencePaxos {
    common: Common,
    /// The ballot of the accepted sequence.
    accepted_in: Ballot,
    /// The accepted sequence.
    log: Sequence,
    /// The record that holds the last change of the two.
    accepted_lsn: Lsn,
    /// No record holds a slot after this one.
    recorded: Slot,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Follower(Follower),
    Candidate(Candidate),
    Leader(Leader),
    /// Records may be missing, so it only learns.
    Recovering,
}

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
        Status {
            role: self.role(),
            view: self.common.reported.view,
            decided: self.log.decided(),
            decided_elsewhere: self.common.decided_elsewhere.max(self.log.decided()),
            in_flight: self.in_flight(),
            waits_for_disk: matches!(self.state, State::Candidate(_) | State::Leader(_)),
        }
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
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        if self.common.members.index(from).is_none() || from == self.common.members.me() {
            return;
        }
        if matches!(self.state, State::Recovering) {
            return self.receive_while_recovering(now, from, &message, effects);
        }
        match message {
            Message::Prepare(prepare) => self.on_prepare(now, from, prepare, effects),
            Message::Promise(promise) => self.on_promise(now, from, promise, effects),
            Message::AcceptSync(sync) => {
                if self.follow(now, from, sync.ballot, effects) {
                    self.on_accept_sync(now, sync, effects);
                }
            }
            Message::SyncNext { ballot, first, from: page } => {
                self.common.election.answered(from, now);
                self.on_sync_next(now, from, ballot, first, page, effects);
            }
            Message::Accept { ballot, first, decided, batches } => {
                if self.follow(now, from, ballot, effects) {
                    self.on_decided(ballot, decided, effects);
                    self.on_accept(now, ballot, first, &batches, effects);
                    self.on_decided(ballot, decided, effects);
                }
            }
            Message::Accepted { ballot, last } => {
                self.common.election.answered(from, now);
                self.on_accepted(now, from, ballot, last, effects);
            }
            Message::Decide { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.on_decided(ballot, through, effects);
                }
            }
            Message::PrepareReq { promised } => self.on_prepare_req(now, from, promised, effects),
            Message::Lagging { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.on_lagging(now, through, effects);
                }
            }
            Message::Heartbeat { ballot, decided, round } => {
                if self.follow(now, from, ballot, effects) {
                    effects.send(from, Message::HeartbeatAck { ballot, round }, self.common.promised_lsn);
                    self.on_decided(ballot, decided, effects);
                    self.ask_for_prepare(now, effects);
                }
            }
            Message::HeartbeatAck { ballot, round } => {
                self.handle_heartbeat_ack(now, from, ballot, round, effects);
            }
            Message::Reject { promised } => self.handle_reject(now, promised, effects),
            Message::TakeOver { ballot } => self.handle_take_over(now, from, ballot, effects),
        }
    }

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

    /// A summary of what it has accepted.
    fn extent(&self) -> Extent {
        Extent { accepted_in: self.accepted_in, last: self.log.last(), decided: self.log.decided() }
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

    /// Delivers what was accepted, through a slot.
    fn decide_through(&mut self, through: Slot, effects: &mut Effects) {
        let through = through.min(self.log.last());
        if through > self.log.decided() {
            let ballots = Ballots::both(self.accepted_in);
            for (slot, batch) in self.log.decide_through(through) {
                effects.push(Effect::Deliver { slot, ballots, batch: batch.clone() });
            }
        }
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(self.log.decided());
        self.forget_old();
    }

    /// Drops decided elements that hardly any replica can still lack. Some are kept: a follower may lag a
    /// little when this replica begins to lead, or a candidate when it answers one. A replica that lags
    /// further learns from the replica layer of others.
    fn forget_old(&mut self) {
        let kept = match &self.state {
            State::Leader(leader) => {
                let all = leader.peers.values().map(|peer| peer.last).min().unwrap_or(leader.written);
                let lacked = self.log.decided().0.saturating_sub(all.0);
                lacked.min(self.common.options.accept_ahead_max())
            }
            _ => self.common.options.window_max as u64,
        };
        self.log.forget(Slot(self.log.decided().0.saturating_sub(kept)));
    }

    /// Adds a record that holds elements to the log.
    fn write(&mut self, record: Record, effects: &mut Effects) -> Lsn {
        let slots = record.slots();
        let lsn = effects.append(record.into());
        self.common.disk.given(lsn, slots);
        lsn
    }

    /// A peer says what was decided in a slot.
    fn learn(&mut self, slot: Slot, ballots: Ballots, batch: Batch, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
        if self.is_congested() || slot != self.log.decided().next() {
            return;
        }
        let accepted = self.log.get(slot);
        let above = self.rules().raises_ballot(ballots.decided, self.accepted_in);
        if accepted != Some(&batch) || above || matches!(self.state, State::Recovering) {
            debug_assert!(
                !self.leads() || self.is_planted(),
                "a leader holds what was decided in no higher ballot"
            );
            let batch = batch.clone();
            self.accepted_lsn = self.write(Record::Learned { slot, ballots, batch }, effects);
            self.recorded = self.recorded.max(slot);
        }
        self.log.set_decided(slot, batch.clone());
        effects.push(Effect::Deliver { slot, ballots, batch });
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
        self.forget_old();
    }

    fn installed(&mut self, slot: Slot) {
        if slot <= self.log.decided() {
            return;
        }
        debug_assert!(
            !self.leads() || slot <= self.log.last() || self.is_planted(),
            "a leader's sequence has what was decided in no higher ballot"
        );
        self.log.installed(slot);
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
    }

    fn on_durable(&mut self, now: Time, lsn: Lsn, effects: &mut Effects) {
        self.common.became_durable(now, lsn);
        self.accepted_durably(effects);
        self.complete_prepare(now, effects);
    }

    /// Checks the invariants of docs/errata.md that one replica can check; the simulator checks I3, I5 and I8,
    /// which are about several. I6 concerns epochs.
    fn assert_invariants(&self) {
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

    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.common.options)
    }

    fn leads(&self) -> bool {
        matches!(self.state, State::Leader(_))
    }

    /// With a bug planted, invariants need not hold.
    fn is_planted(&self) -> bool {
        self.common.options.planted_bug().is_some()
    }
}
