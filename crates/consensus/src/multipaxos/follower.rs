//! The acceptor: promises, accepts, and learns decisions from the leader's announcements.

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::{Message, MultiPaxos, Promise, Record, State, Votes};
use crate::{Batches, Bug, Decision, Effects, Protocol, leadership::Leads, paxos::Paxos};

impl MultiPaxos {
    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        // Votes in a lower ballot leave before it is known that there are no more.
        self.send_accepted(effects);
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
        if !self.obeys_prepare(now, from, ballot, first, effects) {
            return;
        }
        let promise = self.promise_page(ballot, first);
        effects.send(from, Message::Promise(promise), effects.last_lsn());
    }

    /// What this replica accepted from slot `first` on, as much as fits a page. The page speaks of records up to
    /// the present end of the log, so it may leave only once they are durable.
    pub(super) fn promise_page(&self, ballot: Ballot, first: Slot) -> Promise {
        let bytes_max = self.common.options.page_bytes_max;
        let (accepted, next) = self.acceptor.page(first, Slot(u64::MAX), bytes_max);
        Promise {
            ballot,
            from: first,
            decided: self.decided(),
            accepted,
            next,
            incarnation: self.incarnation,
            lives: self.lives.list(),
        }
    }

    pub(super) fn on_accept(
        &mut self,
        ballot: Ballot,
        first: Slot,
        mut batches: Batches,
        effects: &mut Effects,
    ) {
        // Not answering is always safe. The leader proposes again, or the slot comes by catch-up.
        let ahead_max = if self.is_congested() { 0 } else { self.common.options.accept_ahead_max() };
        let room = (self.decided().0 + ahead_max + 1).saturating_sub(first.0);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if room < batches.len() {
            batches = batches[..room].into();
        }
        self.accept(ballot, first, batches, effects);
    }

    /// Accepts what is proposed in `first` and the slots after it, in the ballot that this replica promised: writes
    /// down what is new, remembers to count the own votes once that is durable, and tells the replicas that count
    /// votes of all of it.
    pub(super) fn accept(&mut self, ballot: Ballot, first: Slot, batches: Batches, effects: &mut Effects) {
        let slot_at = |index: usize| Slot(first.0 + index as u64);
        let mut from = 0;
        while from < batches.len() {
            let new = self.acceptor.new_ones(ballot, slot_at(from), batches.len() - from);
            if new == 0 {
                self.accept_again(ballot, slot_at(from), effects);
                from += 1;
                continue;
            }
            let part = from..from + new;
            // Usually everything is new: then the record shares what the message brought.
            let run = if new == batches.len() { batches.clone() } else { batches[part.clone()].into() };
            self.accept_run(ballot, slot_at(from), run, effects);
            from = part.end;
        }
    }

    fn accept_run(&mut self, ballot: Ballot, first: Slot, batches: Batches, effects: &mut Effects) {
        let decided = self.decided();
        let lsn =
            effects.append(Record::Accepted { ballot, first, decided, batches: batches.clone() }.into());
        let votes = self.acceptor.accept(ballot, first, &batches, lsn);
        self.common.disk.given(lsn, votes.slots());
        let early = self.common.options.has(Bug::VoteBeforeDurable);
        self.tell_accepted(ballot, first, votes.last, if early { Lsn::ZERO } else { lsn }, effects);
    }

    /// A proposal came again, or its slot is decided.
    fn accept_again(&mut self, ballot: Ballot, slot: Slot, effects: &mut Effects) {
        if slot <= self.decided() {
            // A quorum accepted this slot's value durably without this answer; the leader can only be
            // proposing that value again, and may not know yet that it is decided.
            return self.tell_accepted(ballot, slot, slot, self.common.promised_lsn, effects);
        }
        let Some(lsn) = self.acceptor.accepted(slot).map(|accepted| accepted.lsn) else { return };
        let votes_came_first = self.acceptor.has_votes(slot);
        let early = self.common.options.has(Bug::VoteBeforeDurable);
        let after = if early { Lsn::ZERO } else { lsn.max(self.common.promised_lsn) };
        self.tell_accepted(ballot, slot, slot, after, effects);
        // In the variant where everybody counts, the quorum may have answered before the proposal came.
        if votes_came_first && lsn <= self.common.durable {
            self.vote(slot, slot, ballot, self.common.members.me(), effects);
        }
    }

    /// Values were accepted here; the replicas that count votes are told at the end of the burst, once record `after`
    /// is durable.
    fn tell_accepted(&mut self, ballot: Ballot, first: Slot, last: Slot, after: Lsn, effects: &mut Effects) {
        if let Some(votes) = &mut self.untold
            && votes.ballot == ballot
            && votes.last.next() == first
        {
            votes.last = last;
            votes.after = votes.after.max(after);
            return;
        }
        self.send_accepted(effects);
        self.untold = Some(Votes { ballot, first, last, after });
    }

    /// Lets the votes of this burst leave.
    pub(super) fn send_accepted(&mut self, effects: &mut Effects) {
        let Some(Votes { ballot, first, last, after }) = self.untold.take() else { return };
        let message = Message::Accepted { ballot, first, last };
        match self.common.options.multipaxos.decision {
            Decision::Leader if ballot.replica != self.common.members.me() => {
                effects.send(ballot.replica, message, after);
            }
            Decision::Leader => {}
            Decision::All => self.common.broadcast(message, after, effects),
        }
    }

    /// The leader of `ballot` announced that slots through `through` are decided.
    pub(super) fn on_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let any_ballot = self.common.options.has(super::Bug::DecideAcrossBallots);
        self.acceptor.decide_through(through, |accepted| accepted.ballot == ballot || any_ballot);
        self.deliver(effects);
    }

    /// Gives up leading or trying to.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
        }
        self.common.progress = Default::default();
        if !matches!(self.state, State::Recovering(_)) {
            self.state = State::Follower;
        }
    }
}
