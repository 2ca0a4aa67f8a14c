//! The members of the ring: promises, votes, and decisions on their way.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{
    Accept, AcceptedValue, Content, DecisionRun, Message, Promise, Record, Ring, RingDecision, State, Value,
    View, VoteRun, Votes, late::Late, rules::Passing, values::sent_on,
};
use crate::{
    Batches, Effect, Effects, Protocol, ReplicaSet, Role,
    acceptor::Accepted,
    batches::last_of,
    leadership::Leads,
    paxos::{FamilyMessage, Paxos},
    rules,
};

impl Ring {
    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        // Votes in a lower ballot leave before it is known that there are no more.
        self.send_outgoing(effects);
        self.common.promised = ballot;
        self.late = Late::default();
        if self.is_learner() {
            // It only follows: nobody needs its promise.
            self.common.election.promised(ballot, now);
            return;
        }
        self.common.promised_lsn = effects.append(Record::Promised(ballot).into());
        self.common.election.promised(ballot, now);
        self.step_down(effects);
    }

    pub(super) fn on_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        first: Slot,
        through: Slot,
        effects: &mut Effects,
    ) {
        if !self.obeys_prepare(now, from, ballot, first, effects) {
            return;
        }
        let promise = self.promise_page(ballot, first, through);
        effects.send(from, Message::Promise(promise), effects.last_lsn());
    }

    /// What this replica accepted in the slots from `first` to `through`, as much as fits a page. The page speaks of
    /// records up to the present end of the log, so it may leave only once they are durable.
    fn promise_page(&self, ballot: Ballot, first: Slot, through: Slot) -> Promise {
        let (accepted, next) = self.acceptor.page(first, through, self.common.options.page_bytes_max);
        Promise { ballot, from: first, decided: self.decided(), accepted, next }
    }

    // Following a view.

    /// Handles the view of a message that passes the ring; returns false if it is of a ballot that is not obeyed. Other
    /// than what only its owner sends, such a message comes from any member.
    pub(super) fn follow_ring(
        &mut self,
        now: Time,
        from: ReplicaId,
        view: &View,
        effects: &mut Effects,
    ) -> bool {
        let (ballot, me) = (view.ballot, self.me());
        if !view.is_of(&self.common.members, self.takes_learners()) {
            return false;
        }
        if ballot.replica == me {
            return matches!(&self.state, State::Leader(leader) if leader.ballot == ballot);
        }
        let (promised, promised_lsn) = (self.common.promised, self.common.promised_lsn);
        if !self.common.rules().may_obey(promised, ballot) {
            if !self.is_learner() {
                let reject = Message::from(FamilyMessage::Reject { promised });
                effects.send(ballot.replica, reject, promised_lsn);
            }
            return false;
        }
        if ballot > promised {
            self.promise(now, ballot, effects);
        }
        if from == ballot.replica {
            self.follow(now, from, ballot, effects);
        } else {
            self.common.heard_of_leader(now, ballot, effects);
        }
        self.adopt_view(now, view);
        true
    }

    /// Takes a view for the ring, if it is newer than the one that is known.
    pub(super) fn adopt_view(&mut self, now: Time, view: &View) {
        if view.ballot == self.common.promised && view.replaces(self.view.as_ref()) {
            self.view = Some(view.clone());
            self.send_values_again(now);
        }
    }

    /// The member to which a message of this view goes on; none if there is a newer view, along which the coordinator
    /// sends again what is not decided.
    pub(super) fn onward(&self, view: &View) -> Option<ReplicaId> {
        let newer = |known: &View| known.ballot == view.ballot && known.minor > view.minor;
        let outdated = !view.is_detour() && self.view.as_ref().is_some_and(newer);
        if outdated { None } else { view.next(self.me()) }
    }

    // Proposals.

    /// A proposal passes on its way round the ring. It goes on at once; the vote follows when its record is durable
    /// ([`Ring::on_votes`]).
    pub(super) fn on_accept(&mut self, now: Time, from: ReplicaId, accept: Accept, effects: &mut Effects) {
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
        self.on_decided(ballot, decided, effects);
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
            || !family.has_room(slot, self.decided(), ahead_max)
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

    // Votes.

    /// The votes for a proposal pass on their way round the ring. This replica adds its own, and with it they leave
    /// once its record is durable; if its disk is slow they leave at once, without its own (`late.rs`).
    pub(super) fn on_votes(&mut self, now: Time, from: ReplicaId, run: VoteRun, effects: &mut Effects) {
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
        self.on_decided(ballot, decided, effects);
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

    /// Accepts what is proposed in `first` and the slots after it, all of which is new.
    pub(super) fn accept_run(
        &mut self,
        ballot: Ballot,
        first: Slot,
        batches: Batches,
        effects: &mut Effects,
    ) {
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

    /// Takes note that these members accepted the proposals of `ballot` for some slots, and decides those for which
    /// that makes a quorum. What the coordinator decides itself, the others hear from it.
    pub(super) fn count(
        &mut self,
        first: Slot,
        last: Slot,
        ballot: Ballot,
        voters: ReplicaSet,
        effects: &mut Effects,
    ) {
        // A coordinator that lags may have adopted slots further ahead than an acceptor would take; they are its own.
        let proposed = if let State::Leader(leader) = &self.state { leader.proposed } else { Slot::ZERO };
        let bound = proposed.0.max(self.decided().0 + self.common.options.accept_ahead_max());
        let (first, last) = (first.max(self.decided().next()), Slot(last.0.min(bound)));
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

    // Decisions.

    /// A decision passes on its way round the ring: what was proposed for these slots in the view's ballot. A member
    /// that did not accept that catches up, once the coordinator's prefix includes it.
    pub(super) fn on_decision(
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

    /// Takes note of what was decided in a slot.
    pub(super) fn learn(&mut self, slot: Slot, ballot: Ballot, batch: Batch, effects: &mut Effects) {
        let has_room = rules::has_room(slot, self.decided(), self.common.options.accept_ahead_max());
        if self.is_congested() || !has_room || self.acceptor.is_decided(slot) {
            return;
        }
        // The record makes the log hold the decided value, whatever was accepted here before.
        let value = AcceptedValue { slot, ballot, batch: batch.clone() };
        let lsn = effects.append(Record::Learned(value).into());
        self.acceptor.learn(slot, Accepted { ballot, batch, lsn });
        self.common.disk.given(lsn, 1);
    }

    /// The coordinator of `ballot` says that slots through `through` are decided.
    pub(super) fn on_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let rules = self.common.rules();
        self.acceptor.decide_through(through, |accepted| rules.holds_decision(accepted.ballot, ballot));
        self.deliver(effects);
    }

    /// Gives up leading or trying to.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
        }
        self.common.progress = Default::default();
        if !matches!(self.role(), Role::Recovering | Role::Learner) {
            self.state = State::Follower;
        }
    }

    // Sending on.

    /// Sends a message to the next member of its view once a record is durable. What a burst sends there leaves
    /// together.
    pub(super) fn send_round(&mut self, message: Message, after: Lsn, effects: &mut Effects) {
        let (Message::Accept(Accept { view, .. })
        | Message::Votes(VoteRun { view, .. })
        | Message::Decision(DecisionRun { view, .. })) = &message
        else {
            return;
        };
        let Some(to) = self.onward(view) else { return };
        let bytes_max = self.message_bytes_max();
        if let Some(last) = self.outgoing.last_mut()
            && last.to == to
            && join(&mut last.message, &message, bytes_max)
        {
            last.after = last.after.max(after);
            return;
        }
        self.send_behind(to, message, after, effects);
    }

    /// Sends a message behind what leaves for the ring. Values must not overtake the decision of those before them: the
    /// coordinator would have no room for them yet, and drop them.
    pub(super) fn send_behind(&mut self, to: ReplicaId, message: Message, after: Lsn, effects: &mut Effects) {
        if self.outgoing.len() >= OUTGOING_MAX {
            self.send_outgoing(effects);
        }
        self.outgoing.push(Outgoing { to, message, after });
    }

    /// Lets what goes round the ring leave.
    pub(super) fn send_outgoing(&mut self, effects: &mut Effects) {
        for Outgoing { to, message, after } in self.outgoing.drain(..) {
            effects.send(to, message, after);
        }
    }
}

/// So many messages leave at the latest.
const OUTGOING_MAX: usize = 64;

/// A message that leaves at the end of the burst.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    to: ReplicaId,
    message: Message,
    after: Lsn,
}

/// Adds the slots of a message to those of the one before, if they follow them and all else is the same.
fn join(before: &mut Message, next: &Message, bytes_max: usize) -> bool {
    let fits = |values: &[Value], more: &[Value]| {
        let bytes = |value: &Value| value.content.whole().map_or(64, |batch| batch.bytes().len() + 64);
        values.iter().chain(more).map(bytes).sum::<usize>() <= bytes_max
    };
    match (before, next) {
        (
            Message::Accept(Accept { view, first, decided, safe, values }),
            Message::Accept(Accept {
                view: in_view,
                first: from,
                decided: through,
                safe: mode,
                values: more,
            }),
        ) if (&*view, &*safe) == (in_view, mode)
            && last_of(*first, values).next() == *from
            && fits(values, more) =>
        {
            values.extend(more.iter().cloned());
            *decided = (*decided).max(*through);
            true
        }
        (
            Message::Votes(VoteRun { view, last, decided, votes, .. }),
            Message::Votes(VoteRun { view: in_view, first: from, last: end, decided: through, votes: voted }),
        ) if (&*view, &*votes, last.next()) == (in_view, voted, *from) => {
            (*last, *decided) = (*end, (*decided).max(*through));
            true
        }
        (
            Message::Decision(DecisionRun { view, last, ttl, .. }),
            Message::Decision(DecisionRun { view: in_view, first: from, last: end, ttl: left }),
        ) if (&*view, &*ttl, last.next()) == (in_view, left, *from) => {
            *last = *end;
            true
        }
        _ => false,
    }
}
