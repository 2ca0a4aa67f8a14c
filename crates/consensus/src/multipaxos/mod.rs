//! MultiPaxos as JPaxos runs it (Santos 2012, chapter 7): views, one Phase 1 for all later slots, a window of
//! Phase 2 instances decided out of order and delivered in order. docs/multipaxos.md tells what happens,
//! message by message, and has the argument why it is safe.
//!
//! A **ballot** is what the thesis calls a view or proposal number. Its owner runs Phase 1 once
//! ([`Message::Prepare`], [`Message::Promise`]) and then proposes slot after slot ([`Message::Accept`],
//! [`Message::Accepted`]). What a burst of inputs proposes leaves together and is written together; still each slot is
//! voted for, decided and proposed again by itself. The election ([`crate::election`]) says which replica should own
//! the next ballot.

mod follower;
mod leader;
mod lives;
mod messages;
mod planted;
mod profile;
mod recovery;
#[cfg(test)]
mod tests;

pub use crate::acceptor::AcceptedValue;
pub use messages::{Message, Promise, Record};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{Decision, Tuning};

use leader::{Candidate, Leader};
use lives::Lives;
use recovery::Recovering;
use synod_wire::{Ballot, Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

use crate::{
    Control, Effect, Effects, Input, Options, Protocol, Role, Status, VoterSets,
    acceptor::{Accepted, Acceptor, Votes},
    leadership::{Leadership, Leads},
    paxos::{Common, Paxos},
    planted::is_nearly_quorum,
};

/// One MultiPaxos replica.
#[derive(Clone, Debug)]
pub struct MultiPaxos {
    common: Common,
    incarnation: Incarnation,
    state: State,
    /// What is known of the slots after the decided prefix.
    acceptor: Acceptor,
    /// Votes of this burst: they leave together at its end.
    untold: Option<Votes>,
    /// The latest lives of the other replicas: what they promised or answered in earlier ones is void.
    lives: Lives,
}

#[derive(Clone, Debug)]
enum State {
    Follower,
    Candidate(Candidate),
    Leader(Leader),
    Recovering(Recovering),
}

impl Protocol for MultiPaxos {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.yield_if_overslept(now, effects);
        match input {
            Input::Receive { from, message: crate::Message::MultiPaxos(message) } => {
                self.receive(now, from, message, effects);
            }
            Input::Receive { from, message: crate::Message::Election(message) } => {
                self.on_election_message(now, from, &message, effects);
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
                // The leader goes no further beyond the decided prefix than acceptors follow.
                let span = leader.next_slot().0 - self.decided().next().0;
                let span_room = self.common.options.accept_ahead_max().saturating_sub(span);
                let window_room = self.common.options.window_max.saturating_sub(self.in_flight());
                window_room.min(usize::try_from(span_room).unwrap_or(usize::MAX))
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
            decided: self.decided(),
            decided_elsewhere: self.common.decided_elsewhere.max(self.decided()),
            in_flight: self.in_flight(),
            waits_for_disk: self.common.options.multipaxos.decision == Decision::All
                || !matches!(self.state, State::Follower),
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
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        if self.common.members.index(from).is_none() || from == self.common.members.me() {
            return;
        }
        if matches!(self.state, State::Recovering(_)) {
            return self.receive_while_recovering(now, from, message, effects);
        }
        match message {
            Message::Prepare { ballot, from: first } => self.on_prepare(now, from, ballot, first, effects),
            Message::Promise(promise) => self.on_promise(now, from, promise, effects),
            Message::Accept { ballot, first, decided, batches } => {
                if self.follow(now, from, ballot, effects) {
                    self.on_accept(ballot, first, batches, effects);
                    self.on_decided(ballot, decided, effects);
                }
            }
            Message::Accepted { ballot, first, last } => {
                // With decision `all`, votes for another replica's ballot come here as well: they answer that replica.
                if ballot.replica == self.common.members.me() {
                    self.common.election.answered(from, now);
                }
                self.vote(first, last, ballot, from, effects);
            }
            Message::Decided { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.on_decided(ballot, through, effects);
                }
            }
            Message::Heartbeat { ballot, decided, round } => {
                if self.follow(now, from, ballot, effects) {
                    effects.send(from, Message::HeartbeatAck { ballot, round }, self.common.promised_lsn);
                    self.on_decided(ballot, decided, effects);
                }
            }
            Message::HeartbeatAck { ballot, round } => {
                self.on_heartbeat_ack(now, from, ballot, round, effects)
            }
            Message::Reject { promised } => self.on_reject(now, promised, effects),
            Message::Recover { incarnation } => self.on_recover(from, incarnation, effects),
            Message::TakeOver { ballot } => self.on_take_over(now, from, ballot, effects),
            // This message is for an earlier life that was recovering.
            Message::RecoverAnswer { .. } => {}
        }
    }

    fn control(&mut self, now: Time, control: Control, effects: &mut Effects) {
        match control {
            Control::ReadIndex(token) => self.read_index(token, effects),
            Control::Learn { slot, ballots, batch, .. } => self.learn(slot, ballots.proposed, batch, effects),
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

    /// Slots that are proposed and not decided.
    fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(leader) => self.acceptor.undecided_before(leader.next_slot()),
            _ => 0,
        }
    }

    /// Takes note that `who` accepted the proposals of `ballot` for some slots, and decides those for which
    /// that makes a quorum.
    fn vote(&mut self, first: Slot, last: Slot, ballot: Ballot, who: ReplicaId, effects: &mut Effects) {
        // A leader that lags may have adopted slots further ahead than an acceptor would take; they are its own.
        let proposed = if let State::Leader(leader) = &self.state { leader.proposed } else { Slot::ZERO };
        let bound = proposed.0.max(self.decided().0 + self.common.options.accept_ahead_max());
        let (members, few) = (&self.common.members, self.common.options.has(crate::Bug::CommitWithMinority));
        let last = Slot(last.0.min(bound));
        let is_quorum = |votes| members.is_quorum(votes) || few && is_nearly_quorum(members, votes);
        if self.acceptor.vote(first, last, ballot, members.only(who), is_quorum) {
            self.deliver(effects);
        }
    }

    /// Delivers the decided slots at the front.
    fn deliver(&mut self, effects: &mut Effects) {
        let before = self.decided();
        let out_of_order = self.common.options.has(Bug::DeliverOutOfOrder);
        let next = |acceptor: &mut Acceptor| match acceptor.deliver() {
            None if out_of_order => acceptor.deliver_out_of_order(),
            next => next,
        };
        while let Some((slot, ballots, batch)) = next(&mut self.acceptor) {
            effects.push(Effect::Deliver { slot, ballots, batch });
        }
        let decided = self.decided();
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        if let State::Leader(leader) = &mut self.state
            && decided > before
        {
            leader.proposed = leader.proposed.max(decided);
            leader.gap.delivered();
        }
    }

    /// Takes note of what a peer says was decided in a slot.
    fn learn(&mut self, slot: Slot, ballot: Ballot, batch: Batch, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
        if self.is_congested()
            || slot <= self.decided()
            || slot.0 > self.decided().0 + self.common.options.accept_ahead_max()
        {
            return;
        }
        if self.acceptor.is_decided(slot) {
            return;
        }
        // The record makes the log hold the decided value, whatever was accepted here before.
        let lsn =
            effects.append(Record::Learned(AcceptedValue { slot, ballot, batch: batch.clone() }).into());
        self.acceptor.learn(slot, Accepted { ballot, batch, lsn });
        self.common.disk.given(lsn, 1);
        self.deliver(effects);
    }

    fn on_durable(&mut self, now: Time, lsn: Lsn, effects: &mut Effects) {
        self.common.became_durable(now, lsn);
        while let Some(votes) = self.acceptor.became_durable(self.common.durable) {
            // Where only leaders count votes, this replica does so in its own ballots alone. A slot that holds the
            // value of a higher ballot by now, or one that was learned, is passed over.
            if self.common.options.multipaxos.decision == Decision::Leader
                && votes.ballot.replica != self.common.members.me()
            {
                continue;
            }
            self.vote(votes.first, votes.last, votes.ballot, self.common.members.me(), effects);
        }
        self.complete_phase_1(now, effects);
        self.finish_recovery(now, effects);
    }
}
