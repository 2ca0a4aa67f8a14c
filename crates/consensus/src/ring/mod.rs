//! Unicast Ring Paxos (Benz 2013, section 2.3): the members form a ring, and every byte of a batch crosses each link of
//! it once.
//!
//! Any replica takes commands. Its batch goes along the ring to the **coordinator**, the leader, as a value
//! ([`Message::Values`]). The coordinator gives it a slot, and sends one proposal round the ring
//! ([`Message::Accept`]), to which each member adds its vote once its record is durable. The member at which the
//! votes reach a quorum makes the decision ([`Message::Decision`]), which travels on until all have it. From the
//! member before the batch's origin on, a message carries only the batch's name (`values.rs`).
//!
//! Phase 1, heartbeats, reads and transfers are those of MultiPaxos: each of these messages goes straight to its
//! receiver.
//!
//! # Why it is safe
//!
//! The rules of MultiPaxos hold slot by slot: a promise and a vote leave after their record, one ballot proposes one
//! value for a slot, a new coordinator adopts the value of the highest ballot that a quorum reports. The **view**,
//! which says who sends to whom, is in none of them. Votes are a set, not a number, so a message that passes a member
//! twice counts its vote once. A name holds length and checksum of its batch, and a member votes only for what it can
//! write down in full. docs/ring.md has the argument, and the differences from the document.

mod claims;
mod describe;
mod direct;
mod follower;
mod late;
mod leader;
mod learner;
mod messages;
mod order;
mod planted;
mod profile;
mod question;
mod recovery;
mod rules;
#[cfg(test)]
mod tests;
mod values;
mod view;
mod walk;

pub use crate::acceptor::AcceptedValue;
pub use learner::{RingLearners, RingVoters};
pub use messages::{Accept, Content, DecisionRun, Message, Promise, Record, Value, VoteRun};
pub use order::{Delay, RingOrder};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{RingDecision, Tuning};
pub use view::{View, Votes};

use std::{sync::Arc, time::Duration};

use follower::Outgoing;
use late::Late;
use leader::{Candidate, Leader};
use learner::Learner;
use rules::Rules;
use synod_wire::{Ballot, Batch, Delivered, Lsn, ReplicaId, Slot, Time};
use values::Values;
use walk::Walk;

use crate::{
    Control, Effect, Effects, Input, Options, Protocol, Role, Route, Status, Threshold, VoterSets,
    acceptor::Acceptor,
    leadership::{Leadership, Leads},
    paxos::{Common, Paxos},
};

/// One replica of the ring.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The window of its options is the coordinator's, which orders for all.
    common: Common,
    state: State,
    /// What is known of the slots after the decided prefix.
    acceptor: Acceptor,
    /// The ring, as far as this replica knows; it may be of an earlier ballot.
    view: Option<View>,
    values: Values,
    /// How many batches of this replica's own clients may be under way.
    window_own: usize,
    /// The batches that were delivered.
    table: Arc<Delivered>,
    /// Batches were delivered since what can never count any more was dropped last.
    stale: bool,
    /// The ballot of the last report that somebody proposed two values for a slot.
    reported_in: Ballot,
    /// What this burst sends round the ring.
    outgoing: Vec<Outgoing>,
    /// How long the batches of this replica's own clients take.
    walk: Walk,
    /// The votes that went on without this replica's own.
    late: Late,
    /// The time of the present step.
    now: Time,
}

#[derive(Clone, Debug)]
enum State {
    Follower,
    Candidate(Candidate),
    Leader(Box<Leader>),
    /// It lost its log, and only learns.
    Recovering,
    /// It does not vote.
    Learner(Learner),
}

impl Protocol for Ring {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.now = now;
        self.yield_if_overslept(now, effects);
        match input {
            Input::Receive { from, message: crate::Message::Ring(message) } => {
                self.receive(now, from, message, effects);
            }
            Input::Receive { from, message: crate::Message::Election(message) } => {
                self.handle_election(now, from, &message, effects);
            }
            Input::Receive { .. } => {}
            Input::Propose { batch, .. } => self.propose(now, batch),
            Input::Durable(lsn) => self.on_durable(now, lsn, effects),
            Input::Link { peer, link } => {
                self.link(now, peer, link, effects);
                if link.begins_again() {
                    self.resend_to(peer, effects);
                }
            }
            Input::Timer => self.on_timer(now, effects),
            Input::Control(control) => self.control(control, effects),
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
        self.now = now;
        self.yield_if_overslept(now, effects);
        self.drop_void();
        self.send_values(now, effects);
        self.send_accepts(now, effects);
        self.reserve_more(now, effects);
        self.announce_directly(now, effects);
        self.send_outgoing(effects);
        self.end_of_step(now, before, effects);
        self.ask_for_timer(effects);
    }

    fn room(&self) -> usize {
        let own = self.own_window().saturating_sub(self.values.pending());
        match &self.state {
            _ if self.is_congested() || self.route() != Route::Here => 0,
            State::Leader(_) => own.min(self.slots_free()),
            _ => own,
        }
    }

    fn is_congested(&self) -> bool {
        self.common.is_congested()
    }

    /// A proposer that is in the ring sends its batches along it; others leave them to the coordinator.
    fn route(&self) -> Route {
        let in_ring = self.is_in_ring() && !self.values.is_stuck() && self.is_proposer();
        match self.state {
            State::Leader(_) => Route::Here,
            State::Follower | State::Candidate(_) | State::Learner(_) if in_ring => Route::Here,
            _ => self.common.reported.view.leader.map_or(Route::Nowhere, Route::To),
        }
    }

    fn status(&self) -> Status {
        Status {
            role: self.role(),
            view: self.common.reported.view,
            decided: self.decided(),
            decided_elsewhere: self.common.decided_elsewhere.max(self.decided()),
            in_flight: self.in_flight(),
            waits_for_disk: true,
        }
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        matches!(self.state, State::Leader(_)) && self.common.election.answers(now, voter)
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        let State::Leader(leader) = &self.state else { return };
        let waiting = leader.waiting();
        // These include slots that are decided after one that is not.
        let accepted = self.acceptor.accepted_from(Slot::ZERO).map(|(_, accepted)| accepted);
        accepted.map(|accepted| &accepted.batch).chain(waiting).for_each(see);
    }
}

impl Leads for Ring {
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

    /// Round a ring decisions travel by themselves.
    fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
        let decided = Message::Decided { ballot: self.common.promised, through };
        self.common.broadcast(decided, Lsn::ZERO, effects);
    }

    /// Other members may know of a decision before the coordinator does, so a read waits for all that is proposed.
    fn read_slot(&mut self) -> Option<Slot> {
        let State::Leader(leader) = &self.state else { return None };
        Some(leader.next_slot().prev())
    }

    /// A read waits for all that is proposed.
    fn serves_reads(&mut self) -> bool {
        false
    }
}

impl Paxos for Ring {
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
            State::Learner(_) => Role::Learner,
        }
    }

    fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.become_candidate(now, ballot, effects);
    }

    fn accepted_after(&self, known: Slot, ballot: Ballot) -> bool {
        self.acceptor.accepted_from(known.next()).any(|(_, accepted)| accepted.ballot == ballot)
    }

    fn progress(&self) -> (Slot, bool) {
        let decided = self.decided();
        let has_work = self.in_flight() > 0 || decided < self.common.decided_elsewhere;
        (decided, has_work && !self.is_congested())
    }

    fn resend(&mut self, now: Time, effects: &mut Effects) {
        match self.state {
            State::Candidate(_) => self.ask_again(now, effects),
            State::Leader(_) => self.propose_again(now, effects),
            State::Learner(_) => self.tell_voters(now, effects),
            State::Recovering | State::Follower => {}
        }
    }

    fn own_deadline(&self) -> Time {
        let values = if self.is_in_ring() { self.values.due() } else { Time::NEVER };
        match &self.state {
            State::Follower => values,
            State::Candidate(candidate) => candidate.question.resend_at(),
            State::Leader(leader) => leader.tick_at().min(values),
            State::Recovering => Time::NEVER,
            State::Learner(learner) => learner.tells_at.min(values),
        }
    }
}

impl Ring {
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        let votes = self.common.members.index(from).is_some();
        if from == self.me() || !votes && !self.takes_learners() {
            return;
        }
        if let Message::HeartbeatAck { ballot, minor, decided, .. } = message
            && !votes
        {
            let minor = if ballot == self.common.promised { minor } else { 0 };
            return self.on_heard(now, from, minor, decided, effects);
        }
        if (!votes || self.is_learner()) && !Ring::concerns_learners(&message) {
            return;
        }
        if matches!(self.state, State::Recovering) {
            return self.receive_while_recovering(now, from, &message, effects);
        }
        match message {
            Message::Prepare { ballot, from: first } => {
                self.on_prepare(now, from, ballot, first, Slot(u64::MAX), effects);
            }
            Message::PrepareRange { ballot, from: first, through } => {
                self.on_prepare(now, from, ballot, first, through, effects);
            }
            Message::Promise(promise) => self.on_promise(now, from, promise, effects),
            Message::Values { view, safe, values } => self.on_values(now, from, view, safe, values, effects),
            Message::Accept(accept) => self.on_accept(now, from, accept, effects),
            Message::Votes(votes) => self.on_votes(now, from, votes, effects),
            Message::Decision(decision) => self.on_decision(now, from, decision, effects),
            Message::View { view } => {
                self.follow_ring(now, from, &view, effects);
            }
            Message::Decided { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.on_decided(ballot, through, effects);
                }
            }
            Message::Heartbeat { ballot, decided, round } => {
                if self.follow(now, from, ballot, effects) {
                    let known = self.view.as_ref().filter(|view| view.ballot == ballot);
                    let (minor, own) = (known.map_or(0, |view| view.minor), self.decided());
                    let answer = Message::HeartbeatAck { ballot, round, minor, decided: own };
                    effects.send(from, answer, self.common.promised_lsn);
                    self.tell_delays(from, effects);
                    self.on_decided(ballot, decided, effects);
                }
            }
            Message::HeartbeatAck { ballot, round, minor, decided } => {
                self.handle_heartbeat_ack(now, from, ballot, round, effects);
                if ballot == self.common.promised {
                    self.on_heard(now, from, minor, decided, effects);
                }
            }
            Message::Delays { delays } => {
                if let State::Leader(leader) = &mut self.state {
                    leader.survey.measured(from, delays);
                }
            }
            Message::Reject { promised } => self.handle_reject(now, promised, effects),
            Message::TakeOver { ballot } => self.handle_take_over(now, from, ballot, effects),
        }
    }

    fn control(&mut self, control: Control, effects: &mut Effects) {
        match control {
            Control::ReadIndex(token) => self.read_index(token, effects),
            Control::Learn { slot, ballots, batch, .. } => {
                self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
                if slot > self.decided() {
                    self.learn(slot, ballots.proposed, batch, effects);
                    self.deliver(effects);
                }
            }
            Control::Installed { slot, delivered, .. } => {
                if slot > self.decided() {
                    self.acceptor.installed(slot);
                    self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
                    if let State::Leader(leader) = &mut self.state {
                        leader.proposed = leader.proposed.max(slot);
                    }
                    (self.table, self.stale) = (delivered, true);
                    self.deliver(effects);
                }
            }
            Control::Trim(_) => {}
            Control::Backlogged(backlogged) => self.common.backlogged = backlogged,
            Control::Transfer(to) => self.transfer(to, effects),
            // The replica layer changes members by a new epoch.
            Control::ChangeVoters { .. } => {}
        }
    }

    /// Whether this replica is in the ring of the ballot that it promised. One that led in that ballot, and does so no
    /// more, is not: its ring ends at a coordinator that is no longer there.
    fn is_in_ring(&self) -> bool {
        let of_ballot = |view: &&View| view.ballot == self.common.promised;
        let is_over = |view: &View| view.ballot.replica == self.me() && self.role() != Role::Leader;
        let view = self.view.as_ref().filter(of_ballot);
        view.is_some_and(|view| view.contains(self.me()) && !is_over(view))
    }

    /// Slots that are proposed and not decided.
    fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(leader) => self.acceptor.undecided_before(leader.next_slot()),
            _ => 0,
        }
    }

    /// Delivers the decided slots at the front.
    fn deliver(&mut self, effects: &mut Effects) {
        let before = self.decided();
        loop {
            self.write_decided(effects);
            let Some((slot, ballots, batch)) = self.acceptor.deliver() else { break };
            Arc::make_mut(&mut self.table).deliver(&batch);
            if let Some(id) = batch.id() {
                if let Some(took) = self.values.delivered(id, self.now) {
                    self.walk.took(took, self.common.options.retransmit_after);
                }
                if let State::Leader(leader) = &mut self.state {
                    leader.delivers(id);
                }
                self.stale = true;
            }
            effects.push(Effect::Deliver { slot, ballots, batch });
        }
        let decided = self.decided();
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        if let State::Leader(leader) = &mut self.state
            && decided > before
        {
            leader.proposed = leader.proposed.max(decided);
            leader.gap.delivered();
            leader.lands(decided, self.now, self.common.options.retransmit_after);
        }
    }

    /// Drops batches that are delivered, or that their origin has given up.
    fn drop_void(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.values.drop_void(|id| self.table.voids(id));
            if let State::Leader(leader) = &mut self.state {
                leader.drop_void(|id| self.table.voids(id));
            }
        }
    }

    fn on_durable(&mut self, now: Time, lsn: Lsn, effects: &mut Effects) {
        self.common.became_durable(now, lsn);
        let me = self.common.members.only(self.me());
        while let Some(votes) = self.acceptor.became_durable(self.common.durable) {
            // A slot that holds the value of a higher ballot by now, or one that was learned, is passed over.
            self.vote_late(&votes, effects);
            self.count(votes.first, votes.last, votes.ballot, me, effects);
            self.begin_votes(votes.ballot, votes.first, votes.last, effects);
        }
        self.complete_phase_1(now, effects);
    }

    /// How many batches of this replica's own clients may be under way: its part of what the coordinator orders at a
    /// time. Proposers that wait for two rounds have twice as many as others, so that all order equally much where
    /// they want more than there is (Benz 2013, figure 4.5: half of them are much faster).
    fn own_window(&self) -> usize {
        let place = |view: &View| view.place(self.me());
        let Some((view, place)) = self.view.as_ref().and_then(|view| Some((view, place(view)?))) else {
            return self.window_own;
        };
        let decides_at = self.decides_at(view);
        let rounds = |place: usize| if 0 < place && place < decides_at { 2 } else { 1 };
        let all: usize = (0..view.len()).map(rounds).sum();
        let part = self.common.options.window_max * rounds(place) / all;
        part.min(self.window_own * rounds(place)).max(1)
    }

    /// The place in a ring at which the votes reach a quorum, if no disk is slow.
    fn decides_at(&self, view: &View) -> usize {
        let last = view.len() - 1;
        if self.common.options.ring.decision == RingDecision::Last {
            return last;
        }
        let voters =
            view.order.iter().enumerate().filter(|(_, id)| self.common.members.index(**id).is_some());
        let quorum = Threshold::Majority.least(self.common.members.count());
        voters.map(|(place, _)| place).nth(quorum - 1).unwrap_or(last)
    }

    /// After which time a batch of this replica's own clients is sent again at first.
    fn resend_after(&self) -> Duration {
        self.walk.wait(self.common.options.retransmit_after, self.common.options.election_timeout / 2)
    }

    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.common.options)
    }
}
