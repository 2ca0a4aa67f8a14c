//! The members of the ring: promises, votes, and decisions on their way.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{
    AcceptedValue, Bug, Content, Message, Promise, Record, Ring, State, Value, View, Votes,
    values::{carried, sent_on},
};
use crate::{
    Batches, Effects, LeaderView, Protocol, ReplicaSet, Role,
    acceptor::Accepted,
    batches::last_of,
    leadership::Leads,
    paxos::{FamilyMessage, Paxos},
};

/// What a member does with the proposal for one slot.
#[derive(Debug)]
enum Stance {
    /// It accepts this.
    Accept(Batch),
    /// It has accepted it, and the record that holds that.
    Accepted(Lsn),
    /// It does not vote: it lacks the bytes, or there is no room.
    Abstain,
}

impl Stance {
    fn is_like(&self, other: &Stance) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Ring {
    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        // Votes in a lower ballot leave before it is known that there are no more.
        self.send_outgoing(effects);
        self.common.promised = ballot;
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
        effects: &mut Effects,
    ) {
        let known = ballot == self.common.promised;
        if !self.obeys(now, from, ballot, effects) {
            return;
        }
        if !known {
            self.told = first;
        } else if first > self.told {
            // It has the page before this one: it makes progress.
            self.told = first;
            self.common.election.promised(ballot, now);
        }
        let promise = self.promise_page(ballot, first);
        effects.send(from, Message::Promise(promise), effects.last_lsn());
    }

    /// What this replica accepted from slot `first` on, as much as fits a page. The page speaks of records up to
    /// the present end of the log, so it may leave only once they are durable.
    fn promise_page(&self, ballot: Ballot, first: Slot) -> Promise {
        let (mut accepted, mut bytes, mut next) = (Vec::new(), 0, None);
        for (slot, value) in self.acceptor.accepted_from(first) {
            if bytes > 0 && bytes + value.batch.bytes().len() > self.common.options.page_bytes_max {
                next = Some(slot);
                break;
            }
            bytes += value.batch.bytes().len() + 32;
            accepted.push(AcceptedValue { slot, ballot: value.ballot, batch: value.batch.clone() });
        }
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
        if !view.is_of(&self.common.members) {
            return false;
        }
        if ballot.replica == me {
            return matches!(&self.state, State::Leader(leader) if leader.ballot == ballot);
        }
        let (promised, promised_lsn) = (self.common.promised, self.common.promised_lsn);
        if ballot < promised {
            let reject = Message::from(FamilyMessage::Reject { promised });
            effects.send(ballot.replica, reject, promised_lsn);
            return false;
        }
        if ballot > promised {
            self.promise(now, ballot, effects);
        }
        if from == ballot.replica {
            self.follow(now, from, ballot, effects);
        } else {
            self.common.reported.leader(LeaderView { ballot, leader: Some(ballot.replica) }, effects);
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

    // Voting.

    /// A proposal passes on its way round the ring, with the votes of the members before.
    pub(super) fn on_accept(
        &mut self,
        now: Time,
        from: ReplicaId,
        (view, votes, safe): (View, Votes, bool),
        (first, decided, values): (Slot, Slot, Vec<Value>),
        effects: &mut Effects,
    ) {
        let ballot = view.ballot;
        let Some(place) = view.place(self.me()).filter(|_| view.is_of(&self.common.members)) else { return };
        if !self.follow_ring(now, from, &view, effects) {
            if place > 0 {
                // It goes on without this member's vote: the others may be a quorum.
                let values = values.iter().map(|value| sent_on(value, safe)).collect();
                self.send_round(
                    Message::Accept { view, first, decided, votes, safe, values },
                    Lsn::ZERO,
                    effects,
                );
            }
            return;
        }
        let voters = view.voters(votes, &self.common.members);
        if place == 0 {
            // It came round, and brings the votes of this walk.
            self.common.election.answered(from, now);
            return self.count_returned(first, last_of(first, &values), ballot, voters, effects);
        }
        let mut rest = &values[..];
        let mut at = first;
        while !rest.is_empty() {
            let stance = self.stance(ballot, at, &rest[0].content);
            let mut stances = vec![stance];
            while let Some(next) = rest.get(stances.len()) {
                let stance = self.stance(ballot, Slot(at.0 + stances.len() as u64), &next.content);
                if !stance.is_like(&stances[0]) {
                    break;
                }
                stances.push(stance);
            }
            let (run, tail) = rest.split_at(stances.len());
            let values = run.iter().map(|value| sent_on(value, safe)).collect();
            let last = last_of(at, run);
            let (mut voters, mut after, mut voted) = (voters, Lsn::ZERO, votes.with(place));
            match &stances[0] {
                Stance::Abstain => voted = votes,
                Stance::Accepted(_) => {
                    let records = stances.iter().map(|stance| match stance {
                        Stance::Accepted(lsn) => *lsn,
                        _ => Lsn::ZERO,
                    });
                    after = records.max().unwrap_or_default();
                    if after <= self.common.durable {
                        voters = voters.union(self.common.members.only(self.me()));
                    }
                }
                Stance::Accept(_) => {
                    let accepted = stances.into_iter().filter_map(|stance| match stance {
                        Stance::Accept(batch) => Some(batch),
                        _ => None,
                    });
                    after = self.accept_run(ballot, at, accepted.collect(), effects);
                }
            }
            let makes_quorum = voted != votes && self.is_enough(&view, voted);
            let message = if makes_quorum || self.counts_twice(votes, voted) {
                let ttl = view.hops();
                Message::Decision { view: view.clone(), first: at, ttl, safe, values }
            } else {
                Message::Accept { view: view.clone(), first: at, decided, votes: voted, safe, values }
            };
            self.send_round(message, after, effects);
            self.count(at, last, ballot, voters, effects);
            (at, rest) = (last.next(), tail);
        }
        self.on_decided(ballot, decided, effects);
    }

    /// Whether these votes decide.
    fn is_enough(&self, view: &View, votes: Votes) -> bool {
        let voters = view.voters(votes, &self.common.members);
        let missing = self.has(Bug::DecideEarly) || self.has(crate::Bug::CommitWithMinority);
        self.common.members.is_quorum_with(usize::from(missing), voters)
    }

    /// A planted bug: the vote of this member is added whether or not it is there already.
    fn counts_twice(&self, votes: Votes, voted: Votes) -> bool {
        self.has(Bug::CountVotes) && votes == voted && votes.count() + 1 > self.common.members.count() / 2
    }

    /// What to do with a proposal. Not voting is always safe: the coordinator proposes again, with the bytes.
    fn stance(&self, ballot: Ballot, slot: Slot, content: &Content) -> Stance {
        let promised_lsn = self.common.promised_lsn;
        if slot <= self.decided() {
            // A quorum accepted this slot's value durably without this answer; the coordinator can only be proposing
            // that value again, and may not know yet that it is decided.
            return Stance::Accepted(promised_lsn);
        }
        let accepted = self.acceptor.accepted(slot);
        if let Some(accepted) = accepted
            && (accepted.ballot == ballot || self.acceptor.is_decided(slot))
        {
            // Two values in one ballot: somebody broke a rule, and this replica takes no side.
            let same = accepted.ballot != ballot || content.is_of(&accepted.batch);
            let early = self.has(crate::Bug::VoteBeforeDurable);
            let after = if early { Lsn::ZERO } else { accepted.lsn.max(promised_lsn) };
            return if same { Stance::Accepted(after) } else { Stance::Abstain };
        }
        let ahead_max = if self.is_congested() { 0 } else { self.common.options.accept_ahead_max() };
        if slot.0 > self.decided().0 + ahead_max {
            return Stance::Abstain;
        }
        let held = match content {
            Content::Whole(batch) => Some(batch),
            Content::Name(name) => {
                let before = accepted.map(|accepted| &accepted.batch).filter(|batch| name.stands_for(batch));
                before.or_else(|| self.values.find(name))
            }
        };
        match (held, content) {
            (Some(batch), _) => Stance::Accept(batch.clone()),
            (None, Content::Name(name)) if self.has(Bug::VoteWithoutBytes) => Stance::Accept(name.clone()),
            (None, _) => Stance::Abstain,
        }
    }

    /// Accepts what is proposed in `first` and the slots after it, all of which is new; returns the record after which
    /// this replica's vote may leave.
    pub(super) fn accept_run(
        &mut self,
        ballot: Ballot,
        first: Slot,
        batches: Batches,
        effects: &mut Effects,
    ) -> Lsn {
        let decided = self.decided();
        let lsn =
            effects.append(Record::Accepted { ballot, first, decided, batches: batches.clone() }.into());
        let votes = self.acceptor.accept(ballot, first, &batches, lsn);
        self.common.disk.given(lsn, votes.slots());
        if self.has(crate::Bug::VoteBeforeDurable) { Lsn::ZERO } else { lsn }
    }

    /// A proposal came back to its coordinator.
    fn count_returned(
        &mut self,
        first: Slot,
        last: Slot,
        ballot: Ballot,
        mut voters: ReplicaSet,
        effects: &mut Effects,
    ) {
        if self.has(Bug::CountVotes) {
            // The planted bug: numbers of votes are added up, whoever gave them.
            let known = self.acceptor.voters(first, ballot).len() + voters.len();
            let ids = self.common.members.ids();
            voters = ids.iter().take(known).fold(voters, |set, &id| set.union(self.common.members.only(id)));
        }
        self.count(first, last, ballot, voters, effects);
    }

    /// Takes note that these members accepted the proposals of `ballot` for some slots, and decides those for which that
    /// makes a quorum. What the coordinator decides itself, the others hear from it.
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
        let last = Slot(last.0.min(bound));
        let undecided = (first.0..=last.0).map(Slot).filter(|&slot| !self.acceptor.is_decided(slot));
        let undecided: Vec<Slot> = undecided.collect();
        let missing = usize::from(self.has(crate::Bug::CommitWithMinority));
        let is_quorum = |votes| self.common.members.is_quorum_with(missing, votes);
        if !self.acceptor.vote(first, last, ballot, voters, is_quorum) {
            return;
        }
        if matches!(&self.state, State::Leader(leader) if leader.ballot == ballot) {
            let decided = undecided.into_iter().filter(|&slot| self.acceptor.is_decided(slot)).collect();
            self.tell_decided(decided, effects);
        }
        self.deliver(effects);
    }

    /// Sends the decision of these slots round the ring. The members have their bytes from the proposals that they voted
    /// for; the others catch up.
    fn tell_decided(&mut self, slots: Vec<Slot>, effects: &mut Effects) {
        let Some(view) = self.view.clone() else { return };
        for slot in slots {
            let Some(accepted) = self.acceptor.accepted(slot) else { continue };
            let content = carried(&Content::Whole(accepted.batch.clone()), 0, false);
            let (values, ttl) = (vec![Value { hops: 0, content }], view.hops());
            let decision = Message::Decision { view: view.clone(), first: slot, ttl, safe: false, values };
            self.send_round(decision, Lsn::ZERO, effects);
        }
    }

    // Decisions.

    /// A decision passes on its way round the ring.
    pub(super) fn on_decision(
        &mut self,
        now: Time,
        from: ReplicaId,
        (view, ttl, safe): (View, u8, bool),
        (first, values): (Slot, Vec<Value>),
        effects: &mut Effects,
    ) {
        if !view.is_of(&self.common.members) {
            return;
        }
        let ballot = view.ballot;
        if ballot >= self.common.promised {
            self.follow_ring(now, from, &view, effects);
        }
        if ballot > self.common.promised {
            return; // Of a ballot of an earlier life of this replica, which remembers it no more.
        }
        if ttl > 1 && self.onward(&view).is_some() {
            let values = values.iter().map(|value| sent_on(value, safe)).collect();
            let view = view.clone();
            self.send_round(
                Message::Decision { view, first, ttl: ttl - 1, safe, values },
                Lsn::ZERO,
                effects,
            );
        }
        for (slot, value) in (first.0..).map(Slot).zip(&values) {
            self.on_decided_value(slot, ballot, &value.content, effects);
        }
        self.deliver(effects);
    }

    /// A slot was decided in this ballot, with this value.
    fn on_decided_value(&mut self, slot: Slot, ballot: Ballot, content: &Content, effects: &mut Effects) {
        if self.acceptor.is_decided(slot) {
            return;
        }
        let accepted = self.acceptor.accepted(slot);
        let any_ballot = self.has(Bug::DecideAcrossBallots);
        if accepted.is_some_and(|accepted| accepted.ballot == ballot || any_ballot) {
            return self.acceptor.decide(slot);
        }
        if accepted.is_some_and(|accepted| accepted.ballot > ballot) {
            return; // The higher ballot decides the same.
        }
        let before = accepted.map(|accepted| accepted.batch.clone()).filter(|batch| content.is_of(batch));
        let held = match content {
            Content::Whole(batch) => Some(batch.clone()),
            Content::Name(name) => before.or_else(|| self.values.find(name).cloned()),
        };
        // Without the bytes it comes by catch-up, once the coordinator's prefix includes it.
        if let Some(batch) = held {
            self.learn(slot, ballot, batch, effects);
        }
    }

    /// Takes note of what was decided in a slot.
    pub(super) fn learn(&mut self, slot: Slot, ballot: Ballot, batch: Batch, effects: &mut Effects) {
        let ahead = slot.0 > self.decided().0 + self.common.options.accept_ahead_max();
        if self.is_congested() || ahead || self.acceptor.is_decided(slot) {
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
        let any_ballot = self.has(Bug::DecideAcrossBallots);
        self.acceptor.decide_through(through, |accepted| accepted.ballot == ballot || any_ballot);
        self.deliver(effects);
    }

    /// Gives up leading or trying to.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
        }
        self.common.progress = Default::default();
        if self.role() != Role::Recovering {
            self.state = State::Follower;
        }
    }

    // Sending on.

    /// Sends a message to the next member of its view once a record is durable. What a burst sends there leaves together.
    pub(super) fn send_round(&mut self, message: Message, after: Lsn, effects: &mut Effects) {
        let (Message::Accept { view, .. } | Message::Decision { view, .. }) = &message else { return };
        let Some(to) = self.onward(view) else { return };
        if let Some(last) = self.outgoing.last_mut()
            && last.to == to
            && join(&mut last.message, &message, self.common.options.page_bytes_max)
        {
            last.after = last.after.max(after);
            return;
        }
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
            Message::Accept { view, first, decided, votes, safe, values },
            Message::Accept {
                view: in_view,
                first: from,
                decided: through,
                votes: voted,
                safe: mode,
                values: more,
            },
        ) if (&*view, &*votes, &*safe) == (in_view, voted, mode)
            && last_of(*first, values).next() == *from
            && fits(values, more) =>
        {
            values.extend(more.iter().cloned());
            *decided = (*decided).max(*through);
            true
        }
        (
            Message::Decision { view, first, ttl, safe, values },
            Message::Decision { view: in_view, first: from, ttl: left, safe: mode, values: more },
        ) if (&*view, &*ttl, &*safe) == (in_view, left, mode)
            && last_of(*first, values).next() == *from
            && fits(values, more) =>
        {
            values.extend(more.iter().cloned());
            true
        }
        _ => false,
    }
}
