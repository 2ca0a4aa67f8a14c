//! What the ring answers otherwise than the rest of the family (`../wiring.rs`): its states, and questions of the
//! replica around it.

use std::{sync::Arc, time::Duration};

use synod_wire::{Ballot, Ballots, Batch, Delivered, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, Record, Ring, RingDecision, State, View};
use crate::{
    Effects, Protocol, Role, Route, Threshold,
    leadership::Leads,
    paxos::{Common, Paxos},
};

crate::wiring::protocol!(
    Ring,
    acceptor,
    /// A proposer that is in the ring sends its batches along it; others leave them to the coordinator. A replica that
    /// lost its coordinator may be in a ring that is over, of which nobody told it.
    fn route(&self) -> Route {
        let has_ring = self.common.reported.view.leader.is_some() && self.is_in_ring();
        let in_ring = has_ring && !self.values.is_stuck() && self.is_proposer();
        match self.state {
            State::Leader(_) => Route::Here,
            State::Follower | State::Candidate(_) | State::Learner(_) if in_ring => Route::Here,
            _ => self.common.reported.view.leader.map_or(Route::Nowhere, Route::To),
        }
    }
);

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
    /// Other members may know of a decision before the coordinator does, so a read waits for all that is proposed.
    fn proposed_if_all_count(&self) -> Option<Slot> {
        let State::Leader(leader) = &self.state else { return None };
        Some(leader.next_slot().prev())
    }

    fn waits_for_disk(&self) -> bool {
        true
    }
}

impl Ring {
    pub(super) fn room(&self) -> usize {
        let own = self.own_window().saturating_sub(self.values.pending());
        match &self.state {
            _ if self.is_congested() || self.route() != Route::Here => 0,
            State::Leader(_) => own.min(self.slots_free()),
            _ => own,
        }
    }

    fn for_each_undelivered(&self, see: &mut dyn FnMut(&Batch)) {
        let State::Leader(leader) = &self.state else { return };
        self.acceptor.batches().chain(leader.waiting()).for_each(see);
    }

    fn flush_all(&mut self, now: Time, effects: &mut Effects) {
        self.drop_void();
        self.send_values(now, effects);
        self.send_accepts(now, effects);
        self.reserve_more(now, effects);
        self.announce_directly(now, effects);
        self.send_outgoing(effects);
    }

    fn on_durable(&mut self, now: Time, effects: &mut Effects) {
        self.count_own_votes(effects);
        self.complete_phase_1(now, effects);
    }

    /// A peer says what was decided in a slot.
    fn learn(&mut self, slot: Slot, ballots: Ballots, batch: Batch, effects: &mut Effects) {
        let value = AcceptedValue { slot, ballot: ballots.proposed, batch };
        self.common.learn(&mut self.acceptor, value, |value| Record::Learned(value).into(), effects);
        self.deliver(effects);
    }

    /// A snapshot holds everything through a slot.
    fn installed(&mut self, slot: Slot, delivered: Arc<Delivered>, effects: &mut Effects) {
        if slot > self.decided() {
            self.acceptor.installed(slot);
            if let State::Leader(leader) = &mut self.state {
                leader.proposed = leader.proposed.max(slot);
            }
            (self.table, self.stale) = (delivered, true);
            self.deliver(effects);
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

    // What is under way.

    /// Whether this replica is in the ring of the ballot that it promised. One that led in that ballot, and does so no
    /// more, is not: its ring ends at a coordinator that is no longer there.
    pub(super) fn is_in_ring(&self) -> bool {
        let of_ballot = |view: &&View| view.ballot == self.common.promised;
        let is_over = |view: &View| view.ballot.replica == self.me() && self.role() != Role::Leader;
        let view = self.view.as_ref().filter(of_ballot);
        view.is_some_and(|view| view.contains(self.me()) && !is_over(view))
    }

    /// Slots that are proposed and not decided.
    pub(super) fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(leader) => self.acceptor.undecided_before(leader.next_slot()),
            _ => 0,
        }
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
    pub(super) fn resend_after(&self) -> Duration {
        self.round_trip.wait(self.common.options.retransmit_after, self.common.options.election_timeout / 2)
    }
}
