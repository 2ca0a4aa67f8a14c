//! Phase 2, in the order in which its messages travel: the coordinator gives a batch its slot and proposes it round the
//! ring (`Accept`), the votes come behind it once each member's record is durable (`Votes`), the member at which they
//! are a quorum decides (`Decision`), and the slots are delivered in order.
//!
//! How a batch comes to the coordinator is in `values.rs` (`Values`), how a message is sent on in `passing.rs`.

use std::sync::Arc;

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{
    Accept, Content, DecisionRun, Message, Record, Ring, RingDecision, State, Value, View, VoteRun, Votes,
    coordinator::{Attempts, ROUNDS, Waiting},
    rules::Passing,
    values::{carried, sent_on},
};
use crate::{
    Batches, Effect, Effects, Protocol, ReplicaSet,
    acceptor::Accepted,
    batches::{fitting, last_of},
    leadership::Leads,
    paxos::Paxos,
    resend::Resend,
};

impl Ring {
    // The coordinator proposes.

    /// Takes a batch that has to be ordered, unless it is on its way or was delivered already. What there is no room
    /// for is dropped: its origin sends it again.
    pub(super) fn order(&mut self, waiting: Waiting) {
        let congested = self.is_congested();
        let id = waiting.batch.id();
        // What changes the group is ordered whenever the replica around the coordinator says so: it waits for that.
        let once = id.filter(|_| waiting.batch.reconfiguration().is_none());
        let void = once.is_some_and(|id| self.table.voids(id));
        let room = self.slots_free();
        let State::Leader(leader) = &mut self.state else { return };
        if congested || void || room == 0 || once.is_some_and(|id| leader.names.contains(&id)) {
            return;
        }
        leader.names.extend(id);
        if let Some((origin, _)) = id.and_then(|id| id.origin.of_replica()) {
            leader.survey.proposed(origin);
        }
        leader.waiting.push_back(waiting);
    }

    /// How many more slots this coordinator may have under way.
    pub(super) fn slots_free(&self) -> usize {
        let State::Leader(leader) = &self.state else { return 0 };
        let reserved = leader.reserved.0.saturating_sub(leader.next_slot().prev().0);
        let free = self.acceptor.slots_free(leader.next_slot(), &self.common.options);
        free.min(usize::try_from(reserved).unwrap_or(usize::MAX))
    }

    /// Proposes what waits; consecutive slots leave together.
    pub(super) fn send_accepts(&mut self, now: Time, effects: &mut Effects) {
        let bytes_max = self.message_bytes_max();
        while let State::Leader(leader) = &mut self.state
            && leader.proposed < leader.reserved
            && let Some(next) = leader.waiting.front()
        {
            let (safe, reserved) = (next.safe, leader.reserved.0 - leader.proposed.0);
            let alike = leader.waiting.iter().take_while(|waiting| waiting.safe == safe);
            let count = fitting(alike.map(|waiting| &waiting.batch), bytes_max);
            let count = count.min(usize::try_from(reserved).unwrap_or(usize::MAX));
            let page: Vec<Waiting> = leader.waiting.drain(..count).collect();
            let first = leader.proposed.next();
            self.propose_at(now, first, &page, effects);
        }
    }

    fn propose_at(&mut self, now: Time, first: Slot, page: &[Waiting], effects: &mut Effects) {
        let decided = self.decided();
        let Some(view) = self.view.clone() else { return };
        let State::Leader(leader) = &mut self.state else { return };
        let (ballot, last) = (leader.ballot, last_of(first, page));
        leader.proposed = last;
        let resend = Resend::first(now, leader.resend_after(&self.common.options));
        let sent = if view.is_direct() { ROUNDS } else { 1 };
        leader.flights.begins(first, last, resend, Attempts { since: now, sent });
        leader.duties.told(decided);
        let batches: Batches = page.iter().map(|waiting| waiting.batch.clone()).collect();
        self.accept_run(ballot, first, batches, effects);
        if view.is_direct() {
            self.record_votes_begun(last);
            return self.propose_directly(first, page, effects);
        }
        let safe = page.first().is_some_and(|waiting| waiting.safe);
        let value = |Waiting { batch, hops, .. }: &Waiting| {
            let content = carried(&Content::Whole(batch.clone()), *hops, safe);
            Value { hops: *hops, content }
        };
        let values = page.iter().map(value).collect();
        let accept = Message::Accept(Accept { view: view.clone(), first, decided, safe, values });
        self.send_round(accept, Lsn::ZERO, effects);
        if self.is_disk_slow(now) {
            // With them those for earlier slots, whose record is on its way to the same disk. What it proposed in its
            // ballot and is not decided comes after the decided prefix: of other slots it asks for no votes.
            let first = self.record_votes_begun(last).max(self.decided().next());
            self.send_own_votes(view, first, last, false, effects);
        }
    }

    // A member accepts, and the proposal goes on.

    /// A proposal passes on its way round the ring. It goes on at once; the vote follows when its record is durable
    /// ([`Ring::handle_votes`]).
    pub(super) fn handle_accept(
        &mut self,
        now: Time,
        from: ReplicaId,
        accept: Accept,
        effects: &mut Effects,
    ) {
        let Accept { view, first, decided, safe, values } = accept;
        let ballot = view.ballot;
        let passes_here = view.place(self.me()).is_some_and(|place| place > 0);
        if !passes_here || !view.is_of(&self.common.members, self.takes_learners()) {
            return;
        }
        let obeyed = self.follow_ring(now, from, &view, effects);
        if view.next(self.me()) != Some(ballot.replica) {
            let values = values.iter().map(|value| sent_on(value, safe)).collect();
            let accept = Message::Accept(Accept { view, first, decided, safe, values });
            let onward = if obeyed { Some(accept) } else { self.rules().refused(accept) };
            onward.into_iter().for_each(|accept| self.send_round(accept, Lsn::ZERO, effects));
        }
        if !obeyed {
            return;
        }
        let mut accepted: Vec<Batch> = Vec::new();
        let mut next = first;
        for value in &values {
            self.report_another(ballot, next, value.content.batch(), effects);
            if let Some(batch) = self.acceptable(ballot, next, &value.content) {
                accepted.push(batch);
            } else {
                self.accept_before(ballot, next, &mut accepted, effects);
            }
            next = next.next();
        }
        self.accept_before(ballot, next, &mut accepted, effects);
        self.handle_decided(ballot, decided, effects);
    }

    /// Accepts these batches in the slots before this one.
    fn accept_before(&mut self, ballot: Ballot, end: Slot, batches: &mut Vec<Batch>, effects: &mut Effects) {
        if !batches.is_empty() {
            let first = Slot(end.0 - batches.len() as u64);
            self.accept_run(ballot, first, std::mem::take(batches).into(), effects);
        }
    }

    /// What this replica writes down for a proposal; `None` if it has voted already, or does not vote. Not voting is
    /// always safe: the coordinator proposes again, with the bytes.
    fn acceptable(&self, ballot: Ballot, slot: Slot, content: &Content) -> Option<Batch> {
        let accepted = self.acceptor.accepted(slot);
        let (family, rules) = (self.common.rules(), self.rules());
        let ahead_max = if self.is_congested() { 0 } else { self.common.options.accept_ahead_max() };
        if !rules.may_accept(accepted.map(|accepted| accepted.ballot), ballot)
            || self.acceptor.is_decided(slot)
            || slot > family.takes_through(self.decided(), ahead_max)
        {
            return None;
        }
        let passed = if let Content::Name(name) = content { self.values.find(name) } else { None };
        rules.accepts(content, accepted.map(|accepted| &accepted.batch), passed)
    }

    /// Reports, once a ballot, that something else is proposed for an undecided slot than what this replica accepted
    /// there in the same ballot: the ballot's owner broke a rule, or somebody speaks in its name.
    fn report_another(&mut self, ballot: Ballot, slot: Slot, proposed: &Batch, effects: &mut Effects) {
        let accepted = self.acceptor.accepted(slot).filter(|accepted| accepted.ballot == ballot);
        let another = accepted.is_some_and(|Accepted { batch, .. }| {
            batch != proposed && !batch.stands_for(proposed) && !proposed.stands_for(batch)
        });
        if another && self.reported_in != ballot && !self.acceptor.is_decided(slot) {
            self.reported_in = ballot;
            effects.push(Effect::TwoProposals { ballot, slot });
        }
    }

    /// Accepts what is proposed in `first` and the slots after it, all of which is new.
    fn accept_run(&mut self, ballot: Ballot, first: Slot, batches: Batches, effects: &mut Effects) {
        let decided = self.decided();
        if self.is_learner() {
            self.acceptor.accept(ballot, first, &batches, Lsn::ZERO);
            while self.acceptor.became_durable(Lsn::ZERO).is_some() {}
            return;
        }
        let lsn =
            effects.append(Record::Accepted { ballot, first, decided, batches: batches.clone() }.into());
        let votes = self.acceptor.accept(ballot, first, &batches, lsn);
        self.common.disk.given(lsn, votes.slots());
    }

    // Votes go round.

    /// The coordinator's own record of what it proposed is durable: its vote goes round, and collects the others,
    /// unless they have begun without it.
    pub(super) fn begin_votes(&mut self, ballot: Ballot, first: Slot, last: Slot, effects: &mut Effects) {
        if let State::Leader(leader) = &self.state
            && leader.ballot == ballot
            && last > leader.begun
            && let Some(view) = self.view.clone()
        {
            let first = first.max(self.record_votes_begun(last));
            self.send_own_votes(view, first, last, true, effects);
        }
    }

    /// Records that the votes for slots through `last` begin their way; returns the first of them that had not.
    fn record_votes_begun(&mut self, last: Slot) -> Slot {
        let State::Leader(leader) = &mut self.state else { return last.next() };
        let first = leader.begun.next();
        leader.begun = leader.begun.max(last);
        first
    }

    /// Lets the votes for some slots begin their way, with the coordinator's own or without.
    pub(super) fn send_own_votes(
        &mut self,
        view: View,
        first: Slot,
        last: Slot,
        own: bool,
        effects: &mut Effects,
    ) {
        let (decided, votes) = (self.decided(), Votes::default());
        let votes = if own { votes.with(0) } else { votes };
        self.send_round(Message::Votes(VoteRun { view, first, last, decided, votes }), Lsn::ZERO, effects);
    }

    /// The votes for a proposal pass on their way round the ring. This replica adds its own, and with it they leave
    /// once its record is durable; if its disk is slow they leave at once, without its own (`late.rs`).
    pub(super) fn handle_votes(&mut self, now: Time, from: ReplicaId, run: VoteRun, effects: &mut Effects) {
        let VoteRun { ref view, first, last, decided, votes } = run;
        let ballot = view.ballot;
        let is_ring = view.is_of(&self.common.members, self.takes_learners());
        let Some(place) = view.place(self.me()).filter(|_| is_ring) else { return };
        if !self.follow_ring(now, from, view, effects) {
            if place > 0
                && let Some(onward) = self.rules().refused(Message::Votes(run))
            {
                self.send_round(onward, Lsn::ZERO, effects);
            }
            return;
        }
        let voters = view.voters(votes, &self.common.members);
        if place == 0 {
            // They came round.
            self.common.election.answered(from, now);
            self.heard_votes(now, voters);
            return self.count_returned(first, last, ballot, voters, effects);
        }
        let mut at = first;
        while at <= last {
            let (end, own) = self.votes_from(ballot, at, last);
            let after = own.unwrap_or_default();
            let late = self.lets_pass(now, view, at, end, after);
            let with_own = self.rules().own_vote_after(own, late);
            let leave = if with_own.is_some() { votes.with(place) } else { votes };
            let part = VoteRun { view: view.clone(), first: at, last: end, decided, votes };
            self.send_votes_on(part, leave, with_own.unwrap_or_default(), effects);
            let is_durable = own.is_some() && !late && after <= self.common.durable;
            let me = self.common.members.only(self.me());
            let voters = if is_durable { voters.union(me) } else { voters };
            self.count(at, end, ballot, voters, effects);
            at = end.next();
        }
        self.handle_decided(ballot, decided, effects);
    }

    /// The slots from `first` on, and not after `last`, for which this replica votes alike: the end of the run, and
    /// if it has a vote for them the record after which that may leave.
    fn votes_from(&self, ballot: Ballot, first: Slot, last: Slot) -> (Slot, Option<Lsn>) {
        if !self.rules().is_acceptor(self.role()) {
            return (last, None);
        }
        let promised_lsn = self.common.promised_lsn;
        if first <= self.decided() {
            // A quorum accepted these slots' values durably without this answer; the coordinator can only be proposing
            // them again, and may not know yet that they are decided.
            return (last.min(self.decided()), Some(promised_lsn));
        }
        let rules = self.common.rules();
        let vote = |slot: Slot| {
            let accepted = self.acceptor.accepted(slot)?;
            let votes = accepted.ballot == ballot || self.acceptor.is_decided(slot);
            votes.then(|| rules.leaves_after(accepted.lsn.max(promised_lsn)))
        };
        let mut own = vote(first);
        let known = self.acceptor.last().min(last);
        for slot in (first.0 + 1..=known.0).map(Slot) {
            let next = vote(slot);
            if next.is_some() != own.is_some() {
                return (slot.prev(), own);
            }
            own = own.max(next);
        }
        // Nothing is known of slots after these.
        (if own.is_some() { known } else { last }, own)
    }

    /// Sends the votes that came for some slots to the next member as they leave, perhaps with the own among them, once
    /// a record is durable; or the decision, if this replica makes one of them.
    fn send_votes_on(&mut self, came: VoteRun, leave: Votes, after: Lsn, effects: &mut Effects) {
        let VoteRun { view, first, last, .. } = &came;
        let decides = self.rules().decides(&Passing {
            members: &self.common.members,
            view,
            decision: self.common.options.ring.decision,
            is_last: self.common.options.ring.decision == RingDecision::Last
                && view.next(self.me()) == Some(view.ballot.replica),
            came: came.votes,
            leave,
        });
        let message = if decides {
            let (first, last, ttl) = (*first, *last, view.hops());
            Message::Decision(DecisionRun { view: came.view, first, last, ttl })
        } else {
            Message::Votes(VoteRun { votes: leave, ..came })
        };
        self.send_round(message, after, effects);
    }

    // Votes are counted, and decide.

    /// A proposal came back to its coordinator.
    fn count_returned(
        &mut self,
        first: Slot,
        last: Slot,
        ballot: Ballot,
        voters: ReplicaSet,
        effects: &mut Effects,
    ) {
        let known = self.acceptor.voters(first, ballot);
        let voters = self.rules().came_round(&self.common.members, known, voters);
        self.count(first, last, ballot, voters, effects);
    }

    /// Counts the own votes whose records became durable.
    pub(super) fn count_own_votes(&mut self, effects: &mut Effects) {
        let me = self.common.members.only(self.me());
        while let Some(votes) = self.acceptor.became_durable(self.common.durable) {
            // A slot that holds the value of a higher ballot by now, or one that was learned, is passed over.
            self.vote_late(&votes, effects);
            self.count(votes.first, votes.last, votes.ballot, me, effects);
            self.begin_votes(votes.ballot, votes.first, votes.last, effects);
        }
    }

    /// Counts the votes of these members, which accepted the proposals of `ballot` for some slots, and decides those
    /// for which that makes a quorum. What the coordinator decides itself, the others hear from it.
    fn count(&mut self, first: Slot, last: Slot, ballot: Ballot, voters: ReplicaSet, effects: &mut Effects) {
        let proposed = if let State::Leader(leader) = &self.state { leader.proposed } else { Slot::ZERO };
        let last = self.acceptor.counted_through(last, proposed, self.common.options.accept_ahead_max());
        let first = first.max(self.decided().next());
        let undecided = (first.0..=last.0).map(Slot).filter(|&slot| !self.acceptor.is_decided(slot));
        let undecided: Vec<Slot> = undecided.collect();
        let (members, rules) = (&self.common.members, self.common.rules());
        let is_quorum = |votes| rules.is_chosen(members, votes);
        if !self.acceptor.vote(first, last, ballot, voters, is_quorum) {
            return;
        }
        if matches!(&self.state, State::Leader(leader) if leader.ballot == ballot) {
            let decided: Vec<Slot> =
                undecided.into_iter().filter(|&slot| self.acceptor.is_decided(slot)).collect();
            self.send_decision(&decided, effects);
        }
        self.deliver(effects);
    }

    /// Sends the decision of these slots round the ring. The members have their values from the proposals that they
    /// voted for; the others catch up.
    fn send_decision(&mut self, slots: &[Slot], effects: &mut Effects) {
        let Some(view) = self.view.clone() else { return };
        for run in slots.chunk_by(|slot, next| slot.next() == *next) {
            let (view, ttl) = (view.clone(), view.hops());
            let decision =
                Message::Decision(DecisionRun { view, first: run[0], last: run[run.len() - 1], ttl });
            self.send_round(decision, Lsn::ZERO, effects);
        }
    }

    // Decisions go round, and are delivered.

    /// A decision passes on its way round the ring: what was proposed for these slots in the view's ballot. A member
    /// that did not accept that catches up, once the coordinator's prefix includes it.
    pub(super) fn handle_decision(
        &mut self,
        now: Time,
        from: ReplicaId,
        decision: DecisionRun,
        effects: &mut Effects,
    ) {
        let view = &decision.view;
        if !view.is_of(&self.common.members, self.takes_learners()) {
            return;
        }
        let ballot = view.ballot;
        if ballot >= self.common.promised {
            self.follow_ring(now, from, view, effects);
        }
        if ballot > self.common.promised {
            return; // Of a ballot of an earlier life of this replica, which remembers it no more.
        }
        self.came_back(now, from, view, effects);
        let DecisionRun { first, last, ttl, .. } = decision;
        if ttl > 1 {
            let decision = DecisionRun { ttl: ttl - 1, ..decision };
            self.send_round(Message::Decision(decision), Lsn::ZERO, effects);
        }
        let rules = self.common.rules();
        self.acceptor.decide_run(first, last, |accepted| rules.holds_decision(accepted.ballot, ballot));
        self.deliver(effects);
    }

    /// The coordinator of `ballot` says that slots through `through` are decided.
    pub(super) fn handle_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let rules = self.common.rules();
        self.acceptor.decide_through(through, |accepted| rules.holds_decision(accepted.ballot, ballot));
        self.deliver(effects);
    }

    /// Delivers the decided slots at the front.
    pub(super) fn deliver(&mut self, effects: &mut Effects) {
        let before = self.decided();
        loop {
            self.write_decided(effects);
            let Some((slot, ballots, batch)) = self.acceptor.deliver() else { break };
            Arc::make_mut(&mut self.table).deliver(&batch);
            if let Some(id) = batch.id() {
                if let Some(took) = self.values.delivered(id, self.common.now) {
                    self.round_trip.took(took, self.common.options.retransmit_after);
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
            leader.lands(decided, self.common.now, self.common.options.retransmit_after);
        }
    }
}
