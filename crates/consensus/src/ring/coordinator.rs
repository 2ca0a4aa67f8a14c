//! The coordinator: what it knows of its members, which ring it makes of them, and what it proposes again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use synod_wire::{Ballot, Batch, BatchId, Lsn, ReplicaId, Slot, Time};

use super::{
    Accept, Content, Message, Ring, State, Value, View,
    direct::Search,
    order::{Survey, next_permutation},
    phase1::Question,
    round_trip::{RoundTrip, Took},
};
use crate::{
    Effects, MEMBERS_MAX, Options, Protocol, ReplicaSet,
    acceptor::{Accepted, pages},
    batches::last_of,
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
    /// A quorum told what it accepted in the slots through this one, and nothing is proposed in later ones.
    pub(super) reserved: Slot,
    /// What the members are asked of later slots.
    pub(super) reserving: Option<Question>,
    /// What goes into the slots after `proposed`, which leaves at the end of this burst.
    pub(super) waiting: VecDeque<Waiting>,
    /// The names of the batches that wait, or are proposed in this ballot, and are not delivered.
    pub(super) names: BTreeSet<BatchId>,
    pub(super) duties: Leadership,
    pub(super) flights: InFlight<Attempts>,
    /// How long what was proposed took.
    round_trip: RoundTrip,
    /// What the members said of themselves last.
    members: BTreeMap<ReplicaId, Heard>,
    /// What it knows for the order of its ring.
    pub(super) survey: Survey,
    /// When the ring was made.
    pub(super) ring_at: Time,
    /// Since when something went past this ring, since it did not come round: a link of it may be cut.
    broken: Option<Time>,
    /// What it looks for while it has no ring.
    pub(super) search: Option<Search>,
    /// How many election time-outs the next search waits at first.
    pub(super) patience: u32,
    /// Slots through this one were decided before it led.
    pub(super) began: Slot,
    /// The votes for slots through this one have begun their way, with its own or without.
    pub(super) begun: Slot,
    /// Members that answer, and are left out of the ring all the same until this time: it carries without them only.
    pub(super) apart: (Vec<ReplicaId>, Time),
    pub(super) gap: GapWatch,
}

/// A batch that waits for its slot.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) batch: Batch,
    /// For how many more hops its bytes are needed.
    pub(super) hops: u8,
    /// Whether all members need its bytes.
    pub(super) safe: bool,
}

/// What a member said of itself last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Time,
    decided: Slot,
    /// When a vote of it came.
    voted: Time,
}

/// How often something was proposed, and since when: at first round the ring, then to each member by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    pub(super) since: Time,
    pub(super) sent: u32,
}

/// So many times something goes round the ring before it goes to each member by itself.
pub(super) const ROUNDS: u32 = 2;

impl Leader {
    /// A coordinator of this ballot, of which these members are known: slots through `decided` are decided, and what
    /// waits goes into the slots after it, none of which is after `reserved`.
    pub(super) fn begin(
        now: Time,
        ballot: Ballot,
        duties: Leadership,
        (decided, reserved): (Slot, Slot),
        waiting: VecDeque<Waiting>,
        members: BTreeSet<ReplicaId>,
    ) -> Leader {
        let heard = Heard { at: now, decided: Slot::ZERO, voted: now };
        Leader {
            ballot,
            proposed: decided,
            reserved,
            reserving: None,
            names: waiting.iter().filter_map(|waiting| waiting.batch.id()).collect(),
            waiting,
            duties,
            flights: InFlight::new(),
            round_trip: RoundTrip::default(),
            members: members.into_iter().map(|member| (member, heard)).collect(),
            survey: Survey::new(),
            ring_at: now,
            broken: None,
            search: None,
            patience: 1,
            began: decided,
            begun: decided,
            apart: Default::default(),
            gap: GapWatch::begin(now),
        }
    }

    pub(super) fn tick_at(&self) -> Time {
        let asks = self.reserving.as_ref().map_or(Time::NEVER, Question::resend_at);
        self.duties.tick_at().min(self.flights.resend_at()).min(asks)
    }

    /// The batches that it took and has not proposed yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Batch> {
        self.waiting.iter().map(|waiting| &waiting.batch)
    }

    /// The slot for what is proposed next.
    pub(super) fn next_slot(&self) -> Slot {
        Slot(self.proposed.0 + self.waiting.len() as u64 + 1)
    }

    /// Slots through this one are decided.
    pub(super) fn lands(&mut self, decided: Slot, now: Time, least: Duration) {
        while let Some(flight) = self.flights.lands(decided) {
            let Attempts { since, sent } = flight.more;
            // What went round once carries the ring on, whatever had to go past it before.
            self.broken = self.broken.filter(|&broken| sent > 1 || since < broken);
            self.round_trip.took(Took { time: now.since(since), repeated: sent > 1 }, least);
        }
    }

    /// After which time a proposal is sent again at first.
    pub(super) fn resend_after(&self, options: &Options) -> Duration {
        self.round_trip.wait(options.retransmit_after, options.election_timeout / 3)
    }

    /// The members of which something was heard lately.
    pub(super) fn heard_since(&self, now: Time, lately: Duration) -> Vec<ReplicaId> {
        let heard = self.members.iter().filter(|(_, heard)| now.since(heard.at) <= lately);
        heard.map(|(&id, _)| id).collect()
    }

    /// Takes a batch under way; false if it is already.
    pub(super) fn takes(&mut self, id: BatchId) -> bool {
        self.names.insert(id)
    }

    /// A batch is delivered.
    pub(super) fn delivers(&mut self, id: BatchId) {
        self.names.remove(&id);
    }

    /// Drops names that are delivered.
    pub(super) fn drop_void(&mut self, is_void: impl Fn(BatchId) -> bool) {
        self.names.retain(|&id| !is_void(id));
    }
}

impl Ring {
    // The ring.

    /// The members that answered Phase 1 or the election lately, in ascending order from this replica on.
    pub(super) fn first_order(&self, now: Time) -> Vec<ReplicaId> {
        let State::Leader(leader) = &self.state else { return Vec::new() };
        let is_there = |&id: &ReplicaId| {
            id == self.me() || leader.members.contains_key(&id) || self.common.election.answers(now, id)
        };
        self.all_in_turn().into_iter().filter(is_there).collect()
    }

    /// All members by role: the voters in ascending order, from this replica on, then the learners that were heard
    /// of. So the acceptors stand together, and nobody who proposes and does not vote stands between the coordinator
    /// and a decision (Benz 2013, section 5.2).
    fn all_in_turn(&self) -> Vec<ReplicaId> {
        let mut ids = self.common.members.ids().to_vec();
        ids.rotate_left(self.common.members.my_index());
        if let State::Leader(leader) = &self.state {
            ids.extend(leader.members.keys().filter(|&&id| self.common.members.index(id).is_none()));
        }
        ids.truncate(MEMBERS_MAX);
        ids
    }

    /// Makes this the ring: the others are told, and what is under way goes round it again. Without anybody else in it
    /// there is no ring, and what is under way goes to each member by itself.
    pub(super) fn form_ring(&mut self, now: Time, order: Vec<ReplicaId>, effects: &mut Effects) {
        let State::Leader(leader) = &mut self.state else { return };
        let ballot = leader.ballot;
        let before = self.view.take().filter(|view| view.ballot == ballot);
        let minor = before.as_ref().map_or(0, |view| view.minor) + 1;
        let view = View { ballot, minor, order: order.into() };
        leader.survey.ring_begins(now, self.common.options.election_timeout, leader.broken.is_some());
        (leader.ring_at, leader.broken, leader.search) = (now, None, None);
        let wait = leader.resend_after(&self.common.options);
        let sent = if view.is_direct() { ROUNDS } else { 0 };
        leader.flights.hasten(now, wait, |attempts| *attempts = Attempts { since: now, sent });
        // It was stripped for the ring before.
        leader.waiting.iter_mut().for_each(|waiting| waiting.safe = true);
        self.common.broadcast(Message::View { view: view.clone() }, Lsn::ZERO, effects);
        let learners = view.order.iter().filter(|&&id| self.common.members.index(id).is_none());
        effects.send_each(learners.copied(), Message::View { view: view.clone() }, Lsn::ZERO);
        let begins = !view.is_direct() && before.is_some_and(|before| before.is_direct());
        self.view = Some(view);
        if begins {
            self.announce_at_last(effects);
        }
        self.send_values_again(now);
    }

    /// Leaves out members that do not answer, takes in those that do and have caught up, leaves a ring that does not
    /// carry, and takes another order if that makes the round much shorter.
    fn mend_ring(&mut self, now: Time, effects: &mut Effects) {
        let timeout = self.common.options.election_timeout;
        let suspect = (timeout / 2).max(self.common.options.heartbeat_interval * 3);
        let (me, decided) = (self.me(), self.decided());
        let State::Leader(leader) = &self.state else { return };
        let Some(view) = &self.view else { return };
        // What it said of itself may be a heartbeat old.
        let lag_max = self.common.options.accept_ahead_max() / 2;
        let fits = |id: ReplicaId| {
            let heard = leader.members.get(&id).filter(|heard| now.since(heard.at) <= suspect);
            heard.is_some_and(|heard| {
                view.contains(id) || heard.decided.0.saturating_add(lag_max) >= decided.0
            })
        };
        let young = now.since(leader.ring_at) <= suspect;
        let apart = |id: ReplicaId| now < leader.apart.1 && leader.apart.0.contains(&id);
        let is_in = |id: ReplicaId| id == me || fits(id) && !apart(id) || young && view.contains(id);
        let all = self.all_in_turn();
        if !self.common.members.is_quorum(self.common.members.those(is_in)) {
            // Those that were left out may make it one: they are taken in again at the next look.
            if let State::Leader(leader) = &mut self.state {
                leader.apart = Default::default();
            }
            return;
        }
        if leader.search.is_some() {
            let present = all.into_iter().filter(|&id| is_in(id)).collect();
            self.search_ring(now, present, effects);
        } else if all.iter().any(|&id| is_in(id) != view.contains(id)) {
            let order = all.into_iter().filter(|&id| is_in(id)).collect();
            let order = self.ordered(order);
            self.form_ring(now, order, effects);
        } else if let Some(since) = leader.broken.filter(|_| now.since(leader.ring_at) > timeout) {
            let voted = |id: &ReplicaId| leader.members.get(id).is_some_and(|heard| heard.voted >= since);
            let order = another_order(&view.order, voted);
            self.leave_ring(now, order, effects);
        } else if let Some(order) = self.better_order(now) {
            self.form_ring(now, order, effects);
        }
    }

    /// Votes of these members came, along the ring or past it.
    pub(super) fn heard_votes(&mut self, now: Time, voters: ReplicaSet) {
        let members = &self.common.members;
        let State::Leader(leader) = &mut self.state else { return };
        for (&id, heard) in &mut leader.members {
            if members.contains(voters, id) {
                heard.voted = now;
            }
        }
    }

    /// A member said which view it knows, and how far it is.
    pub(super) fn hear_of_member(
        &mut self,
        now: Time,
        from: ReplicaId,
        minor: u64,
        decided: Slot,
        effects: &mut Effects,
    ) {
        let State::Leader(leader) = &mut self.state else { return };
        let voted = leader.members.get(&from).map_or(now, |heard| heard.voted);
        leader.members.insert(from, Heard { at: now, decided, voted });
        if let Some(view) = self.view.as_ref().filter(|view| minor < view.minor) {
            effects.send(from, Message::View { view: view.clone() }, Lsn::ZERO);
        }
    }

    // Proposing again.

    /// Proposes again what was not decided in time, or runs Phase 1 again if that does not help.
    pub(super) fn propose_again(&mut self, now: Time, effects: &mut Effects) {
        let lags = self.decided() < self.common.decided_elsewhere && !self.is_congested();
        let State::Leader(leader) = &mut self.state else { return };
        if leader.gap.is_stuck(now, lags, self.common.options.election_timeout) {
            self.ask_all_again(now, effects);
        } else {
            self.ask_again(now, effects);
            self.mend_ring(now, effects);
            self.resend_proposals(now, effects);
        }
    }

    fn resend_proposals(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        let (acceptor, durable) = (&self.acceptor, self.common.durable);
        let wait = leader.resend_after(&self.common.options);
        let (mut round, mut straight) = (Vec::new(), Vec::new());
        leader.flights.repeat(now, wait_max, acceptor, |flight| {
            let list = if flight.more.sent < ROUNDS { &mut round } else { &mut straight };
            if flight.more.sent < ROUNDS {
                flight.resend = Resend::first(now, wait);
            }
            flight.more.sent += 1;
            list.extend(flight.slots());
        });
        let own_voted = |slot: &Slot| acceptor.accepted(*slot).is_none_or(|accepted| accepted.lsn <= durable);
        let Some(view) = self.view.clone() else { return };
        if !straight.is_empty() && !view.is_direct() && straight.iter().all(own_voted) {
            leader.broken.get_or_insert(now);
        }
        self.resend_along(&view, &round, effects);
        for peer in self.common.members.peers().collect::<Vec<_>>() {
            self.resend_straight(peer, &straight, effects);
        }
    }

    /// Proposes undecided slots to a member by itself, unless it is known to have voted.
    pub(super) fn resend_straight(&mut self, peer: ReplicaId, slots: &[Slot], effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let ballot = leader.ballot;
        let members = &self.common.members;
        let missing = |slot: &Slot| !members.contains(self.acceptor.voters(*slot, ballot), peer);
        let slots: Vec<Slot> = slots.iter().copied().filter(missing).collect();
        self.resend_along(&View::detour(ballot, peer), &slots, effects);
    }

    /// Proposes undecided slots again, unchanged and with their bytes. Consecutive ones leave together.
    fn resend_along(&mut self, view: &View, slots: &[Slot], effects: &mut Effects) {
        let (ballot, decided) = (view.ballot, self.decided());
        let missing = self.acceptor.undecided_of(ballot, slots);
        let missing: Vec<(Slot, Accepted)> = missing.map(|(slot, own)| (slot, own.clone())).collect();
        for page in pages(&missing, self.message_bytes_max()) {
            let whole = |own: &Accepted| Value { hops: 0, content: Content::Whole(own.batch.clone()) };
            let values = page.iter().map(|(_, own)| whole(own)).collect();
            let after = page.iter().map(|(_, own)| own.lsn).max().unwrap_or_default();
            let (first, last) = (page[0].0, last_of(page[0].0, page));
            let accept = Message::Accept(Accept { view: view.clone(), first, decided, safe: true, values });
            self.send_round(accept, Lsn::ZERO, effects);
            // If its own disk is slow, the others may be a quorum.
            self.send_own_votes(view.clone(), first, last, after <= self.common.durable, effects);
        }
    }

    /// A session to a peer began: what was sent to it before may be lost.
    pub(super) fn resend_to(&mut self, now: Time, peer: ReplicaId, effects: &mut Effects) {
        match &self.state {
            State::Candidate(_) => self.ask(peer, effects),
            State::Leader(leader) => {
                let (ballot, round) = (leader.ballot, leader.duties.rounds.last());
                effects.send(peer, Message::Heartbeat { ballot, decided: self.decided(), round }, Lsn::ZERO);
                if let Some(view) = self.view.clone() {
                    effects.send(peer, Message::View { view }, Lsn::ZERO);
                }
                let undecided: Vec<Slot> = self.acceptor.undecided().collect();
                self.resend_straight(peer, &undecided, effects);
                self.ask(peer, effects);
            }
            State::Follower | State::Learner(_)
                if self.view.as_ref().is_some_and(|view| view.ballot.replica == peer) =>
            {
                self.send_values_again(now);
            }
            State::Recovering | State::Follower | State::Learner(_) => {}
        }
    }
}

/// Another order of a ring. Members that did not vote although they were asked directly come last, where no decision
/// waits for them; if they do already, the members change places, those at the front first.
pub(super) fn another_order(order: &[ReplicaId], voted: impl Fn(&ReplicaId) -> bool) -> Vec<ReplicaId> {
    let (mut next, silent): (Vec<_>, Vec<_>) = order[1..].iter().copied().partition(voted);
    next.extend(silent);
    next.insert(0, order[0]);
    if next == order {
        next[1..].reverse();
        next_permutation(&mut next[1..]);
        next[1..].reverse();
    }
    next
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ids(numbers: &[u64]) -> Vec<ReplicaId> {
        numbers.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn a_member_that_does_not_vote_comes_last() {
        let order = another_order(&ids(&[1, 2, 3, 4]), |&id| id != ReplicaId(2));
        assert_eq!(order, ids(&[1, 3, 4, 2]));
    }

    #[test]
    fn every_order_is_tried_and_the_front_changes_first() {
        let mut order = ids(&[1, 2, 3, 4, 5]);
        let mut tried = BTreeSet::new();
        for _ in 0..24 {
            let next = another_order(&order, |_| true);
            assert_ne!(next[1], order[1], "the link after the coordinator");
            tried.insert(next.clone());
            order = next;
        }
        assert_eq!((tried.len(), order), (24, ids(&[1, 2, 3, 4, 5])));
    }
}
