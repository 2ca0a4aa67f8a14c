//! Phase 2, in the order in which its messages travel: the leader proposes (`Accept`), each member's acceptor votes,
//! the vote goes to all (`Accepted`), and each replica that counts a quorum knows the decision. Slots are delivered in
//! order.
//!
//! What a burst of inputs proposes leaves at its end: `flush_all` (`wiring.rs`) calls `send_accepts`. `follow`
//! (`../paxos.rs`) comes before each handler of a leader's message: it refuses a ballot below the promised one, and
//! promises a higher one.

use std::collections::VecDeque;

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{KernelPaxos, Message, Preparation, Record, State, planted, prepared::Prepared};
use crate::{
    Effect, Effects, Protocol,
    acceptor::Accepted,
    leadership::{Leadership, Leads},
    paxos::Paxos,
    proposer::{GapWatch, InFlight},
    resend::Resend,
};

/// A replica that completed Phase 1.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) ballot: Ballot,
    /// Slots through this one are proposed.
    pub(super) proposed: Slot,
    /// What goes into the slots after it, once these are prepared.
    waiting: VecDeque<Batch>,
    pub(super) duties: Leadership,
    flights: InFlight,
    pub(super) gap: GapWatch,
    pub(super) prepared: Prepared,
}

impl Leader {
    /// A leader of this ballot: slots through `decided` are decided, and what waits goes into the slots after it.
    pub(super) fn begin(
        now: Time,
        ballot: Ballot,
        decided: Slot,
        waiting: Vec<Batch>,
        duties: Leadership,
        how: Preparation,
    ) -> Leader {
        let told = Slot(decided.0 + waiting.len() as u64);
        Leader {
            ballot,
            proposed: decided,
            waiting: waiting.into(),
            duties,
            flights: InFlight::new(),
            gap: GapWatch::begin(now),
            prepared: Prepared::begin(how, told),
        }
    }

    pub(super) fn tick_at(&self) -> Time {
        self.duties.tick_at().min(self.flights.resend_at()).min(self.prepared.resend_at())
    }

    /// The batches that it took and has not proposed yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Batch> {
        self.waiting.iter()
    }

    /// The slot for what is proposed next.
    pub(super) fn next_slot(&self) -> Slot {
        Slot(self.proposed.0 + self.waiting.len() as u64 + 1)
    }
}

impl KernelPaxos {
    // The leader proposes.

    /// How many batches it may propose now: as many as its window has room for, if it leads.
    pub(super) fn room(&self) -> usize {
        match &self.state {
            State::Leader(leader) if !self.is_congested() => {
                self.learner.slots_free(leader.next_slot(), &self.common.options)
            }
            _ => 0,
        }
    }

    /// Takes a batch. It gets its slot now, and leaves at the end of this burst if that is prepared.
    pub(super) fn propose(&mut self, _: Time, batch: Batch, awaited: bool) {
        if self.room() == 0 {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        if awaited {
            leader.duties.awaits(leader.next_slot());
        }
        leader.waiting.push_back(batch);
    }

    /// Proposes what waits, in the order of slots, as far as these are prepared.
    pub(super) fn send_accepts(&mut self, now: Time, effects: &mut Effects) {
        self.prepare_waiting(now, effects);
        let rules = self.common.rules();
        while let State::Leader(leader) = &mut self.state {
            let members = &self.common.members;
            let slot = leader.proposed.next();
            if !leader.prepared.is_ready(slot, |promises| rules.is_promised(members, promises)) {
                return;
            }
            let Some(batch) = leader.waiting.pop_front() else { return };
            self.propose_at(now, slot, batch, effects);
        }
    }

    fn propose_at(&mut self, now: Time, slot: Slot, proposed: Batch, effects: &mut Effects) {
        let decided = self.decided();
        let window = self.common.options.window_max as u64;
        let State::Leader(leader) = &mut self.state else { return };
        let ballot = leader.ballot;
        leader.proposed = slot;
        while leader.flights.lands(decided).is_some() {}
        let resend = Resend::first(now, self.common.options.retransmit_after);
        leader.flights.begins(slot, slot, resend, ());
        leader.duties.told(decided);
        let further =
            leader.prepared.further(Slot(slot.0 + window), now, self.common.options.retransmit_after);
        // The followers' disks work while this one does: the own vote counts once it is durable.
        let accept = Message::Accept { ballot, slot, further, decided, proposed: proposed.clone() };
        self.common.broadcast(accept, Lsn::ZERO, effects);
        if !self.voter.has_room(slot) {
            // It adopted what acceptors told that are further than itself: their slots are its own.
            self.make_room(slot);
        }
        self.accept(ballot, slot, further, proposed, effects);
    }

    // A member accepts, and votes.

    pub(super) fn handle_accept(
        &mut self,
        ballot: Ballot,
        slot: Slot,
        further: Option<Slot>,
        batch: Batch,
        effects: &mut Effects,
    ) {
        // Not answering is always safe. The leader proposes again, or the slot comes by catch-up.
        let ahead_max = if self.is_congested() { 0 } else { self.common.options.accept_ahead_max() };
        if slot <= self.common.rules().takes_through(self.decided(), ahead_max) {
            self.accept(ballot, slot, further, batch, effects);
        }
    }

    /// Asks the acceptor for its vote for what is proposed in the ballot that this replica promised. Writes down what
    /// is new, and lets the vote leave once that is durable.
    pub(super) fn accept(
        &mut self,
        ballot: Ballot,
        slot: Slot,
        further: Option<Slot>,
        accepted: Batch,
        effects: &mut Effects,
    ) {
        if self.learner.is_decided(slot) {
            // A quorum accepted this slot's value durably without this answer; the leader can only be proposing that
            // value again, and may not know yet that it is decided.
            return self.tell_accepted(ballot, slot, None, self.common.promised_lsn, effects);
        }
        let (votes, further) = self.voter.accept(slot, ballot, &accepted, further);
        if !votes {
            return;
        }
        let held = self.learner.accepted(slot).filter(|held| held.ballot == ballot).map(|held| held.lsn);
        let Some(lsn) = held else {
            let decided = self.decided();
            let batches = [accepted.clone()].into();
            let lsn = effects.append(Record::Accepted { ballot, slot, decided, accepted }.into());
            self.learner.accept(ballot, slot, &batches, lsn);
            self.common.disk.given(lsn, 1);
            return self.tell_accepted(ballot, slot, further, lsn, effects);
        };
        let votes_came_first = self.learner.has_votes(slot);
        self.tell_accepted(ballot, slot, further, lsn, effects);
        // The quorum may have answered before the proposal came.
        if votes_came_first && lsn <= self.common.durable {
            self.count_votes(slot, ballot, self.common.members.me(), effects);
        }
    }

    /// Tells all others of a vote, once the record that holds it, and that of the promise, is durable.
    fn tell_accepted(
        &mut self,
        ballot: Ballot,
        slot: Slot,
        further: Option<Slot>,
        record: Lsn,
        effects: &mut Effects,
    ) {
        let after = self.common.rules().leaves_after(record.max(self.common.promised_lsn));
        self.common.broadcast(Message::Accepted { ballot, slot, further }, after, effects);
        if let (State::Leader(leader), Some(further)) = (&mut self.state, further) {
            leader.prepared.promised(further, self.common.members.only(self.common.members.me()));
        }
    }

    // Votes are counted, and decide.

    /// A member voted.
    pub(super) fn handle_accepted(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        slot: Slot,
        further: Option<Slot>,
        effects: &mut Effects,
    ) {
        // Votes for another replica's ballot come here as well: they answer that replica.
        if ballot.replica == self.common.members.me() {
            self.common.election.answered(from, now);
        }
        if let State::Leader(leader) = &mut self.state
            && leader.ballot == ballot
            && let Some(further) = further
        {
            leader.prepared.promised(further, self.common.members.only(from));
        }
        self.count_votes(slot, ballot, from, effects);
    }

    /// Counts the own votes whose records became durable.
    pub(super) fn count_own_votes(&mut self, effects: &mut Effects) {
        while let Some(votes) = self.learner.became_durable(self.common.durable) {
            self.count_votes(votes.first, votes.ballot, self.common.members.me(), effects);
        }
    }

    /// Counts the vote of `who` for the proposal of a ballot, and decides the slot if that makes a quorum.
    fn count_votes(&mut self, slot: Slot, ballot: Ballot, who: ReplicaId, effects: &mut Effects) {
        let proposed = if let State::Leader(leader) = &self.state { leader.proposed } else { Slot::ZERO };
        let ahead_max = self.common.options.accept_ahead_max();
        if slot > self.learner.counted_through(slot, proposed, ahead_max) {
            return;
        }
        let (members, rules) = (&self.common.members, self.common.rules());
        let is_quorum = |votes| rules.is_chosen(members, votes);
        if self.learner.vote(slot, slot, ballot, members.only(who), is_quorum) {
            self.deliver(effects);
        }
    }

    /// Delivers the decided slots at the front. The acceptor may forget them.
    pub(super) fn deliver(&mut self, effects: &mut Effects) {
        let before = self.decided();
        while let Some((slot, ballots, batch)) = self.learner.deliver() {
            effects.push(Effect::Deliver { slot, ballots, batch });
        }
        let decided = self.decided();
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        self.forget_delivered();
        if let State::Leader(leader) = &mut self.state
            && decided > before
        {
            leader.proposed = leader.proposed.max(decided);
            leader.prepared.decided(decided);
            leader.gap.delivered();
        }
    }

    /// Lets acceptor and learner forget what they need no more.
    pub(super) fn forget_delivered(&mut self) {
        let touched = self.voter.touched();
        self.voter.trim(self.rules().forgets_through(self.decided(), touched));
        self.gaps.forget(self.learner.decided());
    }

    /// The leader of `ballot` announced that slots through `through` are decided.
    pub(super) fn handle_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let rules = self.common.rules();
        self.learner
            .decide_through(through, |accepted: &Accepted| rules.holds_decision(accepted.ballot, ballot));
        self.deliver(effects);
    }

    /// The leader lives, and says what is decided.
    pub(super) fn handle_heartbeat(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        decided: Slot,
        round: u64,
        effects: &mut Effects,
    ) {
        effects.send(from, Message::HeartbeatAck { ballot, round }, self.common.promised_lsn);
        self.handle_decided(ballot, decided, effects);
    }

    // Proposing again.

    /// Proposes again what was not accepted in time, or runs Phase 1 again if that does not help.
    pub(super) fn propose_again(&mut self, now: Time, effects: &mut Effects) {
        let lags = self.decided() < self.common.decided_elsewhere && !self.is_congested();
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        if leader.gap.is_stuck(now, lags, wait_max) {
            // A whole round, in a ballot of its own: a gap is never filled without phase 1 (E4).
            if !planted::fills_gap(self, effects) {
                self.ask_all_again(now, effects);
            }
            return;
        }
        let mut due = Vec::new();
        leader.flights.repeat(now, wait_max, &self.learner, |flight| due.extend(flight.slots()));
        let peers: Vec<ReplicaId> = self.common.members.peers().collect();
        for peer in peers {
            self.resend_proposals_to(peer, &due, effects);
        }
        self.prepare_again(now, effects);
    }

    /// Proposes slots again to a member, and tells it again of the own votes: it may have missed these.
    fn resend_proposals_to(&self, peer: ReplicaId, slots: &[Slot], effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let (ballot, decided) = (leader.ballot, self.decided());
        for (slot, own) in self.learner.undecided_of(ballot, slots) {
            if own.lsn <= self.common.durable {
                effects.send(peer, Message::Accepted { ballot, slot, further: None }, own.lsn);
            }
            let proposed = own.batch.clone();
            let accept = Message::Accept { ballot, slot, further: None, decided, proposed };
            effects.send(peer, accept, Lsn::ZERO);
        }
    }

    /// A session to a peer began: what was sent to it before may be lost.
    pub(super) fn resend_to(&mut self, _: Time, peer: ReplicaId, effects: &mut Effects) {
        match &self.state {
            State::Candidate(_) => self.ask_for_promise(peer, effects),
            State::Leader(leader) => {
                let (ballot, round) = (leader.ballot, leader.duties.rounds.last());
                effects.send(peer, Message::Heartbeat { ballot, decided: self.decided(), round }, Lsn::ZERO);
                let undecided: Vec<Slot> = self.learner.undecided().collect();
                self.resend_proposals_to(peer, &undecided, effects);
            }
            State::Recovering | State::Follower => {}
        }
    }

    /// Slots that are proposed and not decided.
    pub(super) fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(leader) => self.learner.undecided_before(leader.next_slot()),
            _ => 0,
        }
    }
}
