//! The acceptor: promises, accepts, and learns decisions from the leader's announcements.

use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, MultiPaxos, Promise, Record, State};
use crate::{Bug, Effects, LeaderView};

impl MultiPaxos {
    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.promised, "promises only grow");
        // Votes in a lower ballot leave before it is known that there are no more.
        self.send_accepted(effects);
        self.promised = ballot;
        self.promised_lsn = effects.append(Record::Promised(ballot).into());
        self.election.promised(ballot, now);
        self.step_down(effects);
    }

    /// Handles the ballot of a leader's message; false if it is too low to be obeyed.
    pub(super) fn follow(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        effects: &mut Effects,
    ) -> bool {
        if ballot.replica != from {
            // Only its owner speaks in a ballot.
            return false;
        }
        if ballot < self.promised {
            effects.send(from, Message::Reject { promised: self.promised }, self.promised_lsn);
            return false;
        }
        if ballot > self.promised {
            self.promise(now, ballot, effects);
        }
        self.election.heard_leader(now);
        self.set_view(LeaderView { ballot, leader: Some(from) }, effects);
        true
    }

    pub(super) fn on_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        first: Slot,
        effects: &mut Effects,
    ) {
        if ballot.replica != from {
            return;
        }
        if ballot < self.promised {
            effects.send(from, Message::Reject { promised: self.promised }, self.promised_lsn);
            return;
        }
        if ballot > self.promised {
            self.promise(now, ballot, effects);
        }
        let promise = self.promise_page(ballot, first);
        effects.send(from, Message::Promise(promise), effects.last_lsn());
    }

    /// What this replica accepted from slot `first` on, as much as fits a page. The page speaks of records up to
    /// the present end of the log, so it may leave only once they are durable.
    pub(super) fn promise_page(&self, ballot: Ballot, first: Slot) -> Promise {
        let mut accepted = Vec::new();
        let mut bytes = 0;
        let mut next = None;
        for (slot, instance) in self.slots.iter().filter(|(slot, _)| *slot >= first) {
            let Some(value) = &instance.accepted else { continue };
            if bytes > 0 && bytes + value.batch.bytes().len() > self.options.promise_bytes_max {
                next = Some(slot);
                break;
            }
            bytes += value.batch.bytes().len() + 32;
            accepted.push(AcceptedValue { slot, ballot: value.ballot, batch: value.batch.clone() });
        }
        Promise {
            ballot,
            from: first,
            decided: self.decided(),
            accepted,
            next,
            incarnation: self.incarnation,
            recovered: self.recovered.iter().map(|(&replica, &life)| (replica, life)).collect(),
        }
    }

    pub(super) fn on_accept(
        &mut self,
        ballot: Ballot,
        first: Slot,
        batches: &[Batch],
        effects: &mut Effects,
    ) {
        // Not answering is always safe. The leader proposes again, or the slot comes by catch-up.
        let ahead_max = if self.is_congested() { 0 } else { self.options.accept_ahead_max() };
        let last = self.decided().0 + ahead_max;
        for (slot, batch) in (first.0..=last).map(Slot).zip(batches) {
            self.accept_proposal(ballot, slot, batch, effects);
        }
    }

    fn accept_proposal(&mut self, ballot: Ballot, slot: Slot, batch: &Batch, effects: &mut Effects) {
        if slot <= self.decided() {
            // A quorum accepted this slot's value durably without this answer; the leader can only be
            // proposing that value again, and may not know yet that it is decided.
            return self.tell_accepted(ballot, slot, self.promised_lsn, effects);
        }
        let instance = self.slots.entry(slot);
        let known =
            instance.accepted.as_ref().filter(|accepted| accepted.ballot == ballot || instance.decided);
        let votes_came_first = !instance.votes.is_empty();
        let lsn = match known {
            Some(accepted) => accepted.lsn,
            None => self.accept(ballot, slot, batch.clone(), effects),
        };
        let early = self.options.has(Bug::VoteBeforeDurable);
        let after = if early { synod_wire::Lsn::ZERO } else { lsn.max(self.promised_lsn) };
        self.tell_accepted(ballot, slot, after, effects);
        // In the variant where everybody counts, the quorum may have answered before the proposal came.
        if votes_came_first && lsn <= self.durable {
            self.vote(slot, slot, ballot, self.members.me(), effects);
        }
    }

    /// The leader of `ballot` announced that slots through `through` are decided.
    pub(super) fn on_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.decided_elsewhere = self.decided_elsewhere.max(through);
        let any_ballot = self.options.has(Bug::DecideAcrossBallots);
        let from = self.slots.first();
        for slot in (from.0..=through.0.min(self.slots.last().0)).map(Slot) {
            let instance = self.slots.entry(slot);
            let proposed_there =
                instance.accepted.as_ref().is_some_and(|accepted| accepted.ballot == ballot || any_ballot);
            if proposed_there && !instance.decided {
                instance.decided = true;
                self.decided_ahead += 1;
            }
        }
        self.deliver(effects);
    }

    /// Gives up leading or trying to.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.rounds.fail(effects);
        }
        if !matches!(self.state, State::Recovering(_)) {
            self.state = State::Follower;
        }
    }
}
