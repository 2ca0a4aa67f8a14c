//! The proposer: Phase 1 once, then Phase 2 slot after slot; heartbeats, read confirmation, retransmission.

use std::collections::{BTreeMap, VecDeque};

use synod_wire::{Ballot, Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, MultiPaxos, Promise, State, lives::Lives};
use crate::{
    Batches, Decision, Effects, Protocol,
    batches::{fitting, last_of},
    leadership::{Leadership, Leads},
    paxos::Paxos,
    resend::Resend,
};

/// A replica in Phase 1.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    ballot: Ballot,
    /// The first slot that it asks about.
    from: Slot,
    /// The record of its own promise.
    lsn: Lsn,
    answers: BTreeMap<ReplicaId, Answer>,
    /// For each slot that some answer mentions, the value of the highest ballot.
    values: BTreeMap<Slot, AcceptedValue>,
    /// The longest decided prefix that an answer mentions.
    decided: Slot,
    pub(super) resend: Resend,
}

/// What a member has answered so far, in one life and not in several.
#[derive(Clone, Debug)]
struct Answer {
    incarnation: Incarnation,
    /// The first slot of the page that is still to come.
    next: Option<Slot>,
}

/// A replica that completed Phase 1.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) ballot: Ballot,
    /// Slots through this one are proposed.
    pub(super) proposed: Slot,
    /// What goes into the slots after it, which leaves at the end of this burst.
    waiting: Vec<Batch>,
    pub(super) duties: Leadership,
    /// What was proposed, as far as it is in flight, and when the first of it is due again.
    flights: VecDeque<Flight>,
    resend_at: Time,
    /// Whether a slot was delivered since the gap at the front was last looked at, and since when it was not.
    pub(super) delivered: bool,
    stuck_since: Time,
}

impl Leader {
    pub(super) fn tick_at(&self) -> Time {
        self.duties.tick_at().min(self.resend_at)
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

/// Slots that were proposed together. Those that are not decided are proposed again from time to time.
#[derive(Clone, Debug)]
struct Flight {
    first: Slot,
    last: Slot,
    resend: Resend,
}

impl MultiPaxos {
    pub(super) fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.common.election.tried();
        self.promise(now, ballot, effects);
        let from = self.decided().next();
        self.state = State::Candidate(Candidate {
            ballot,
            from,
            lsn: self.common.promised_lsn,
            answers: BTreeMap::new(),
            values: BTreeMap::new(),
            decided: self.decided(),
            resend: Resend::first(now, self.common.options.retransmit_after),
        });
        self.common.broadcast(Message::Prepare { ballot, from }, self.common.promised_lsn, effects);
    }

    pub(super) fn resend_prepare(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.resend.is_due(now, self.common.options.election_timeout) {
            let unanswered: Vec<ReplicaId> = self.common.members.peers().collect();
            for peer in unanswered {
                self.ask_for_promise(peer, effects);
            }
        }
    }

    /// Asks a member for the page of its promise that is still missing.
    pub(super) fn ask_for_promise(&self, peer: ReplicaId, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        let from = match candidate.answers.get(&peer) {
            None => candidate.from,
            Some(Answer { next: Some(next), .. }) => *next,
            Some(Answer { next: None, .. }) => return,
        };
        effects.send(peer, Message::Prepare { ballot: candidate.ballot, from }, candidate.lsn);
    }

    pub(super) fn on_promise(&mut self, now: Time, from: ReplicaId, promise: Promise, effects: &mut Effects) {
        if !matches!(&self.state, State::Candidate(candidate) if candidate.ballot == promise.ballot) {
            return;
        }
        let mixes_lives = self.common.options.has(super::Bug::MixLivesOfPromise);
        self.note_lives(&promise.lives, effects);
        let State::Candidate(candidate) = &mut self.state else { return };
        let begun = candidate.answers.get(&from).map_or(promise.incarnation, |answer| answer.incarnation);
        if promise.incarnation < begun || !self.lives.is_latest(from, promise.incarnation) {
            return; // Of a life that is over.
        }
        if promise.incarnation > begun && !mixes_lives {
            // It lives another life, which may have forgotten what the pages before told: its promise begins again. The
            // values of those pages stay. They were accepted in lower ballots than this one, and such a value does no
            // harm: if something was chosen in a lower ballot still, it was chosen for the same slot with that value;
            // if in a higher one, the quorum that answers whole tells of that ballot or of a higher one.
            candidate.answers.remove(&from);
        }
        let expected = candidate.answers.get(&from).map_or(Some(candidate.from), |answer| answer.next);
        if expected != Some(promise.from) {
            if promise.incarnation > begun {
                self.ask_for_promise(from, effects);
            }
            return; // A page that was counted already, or the rest of a promise that begins again.
        }
        self.common.election.answered(from, now);
        if promise.decided > Slot(self.acceptor.decided().next().0 + self.common.options.accept_ahead_max()) {
            // This replica lags too far to hold what it would have to propose: it catches up, and lets another lead.
            self.common.decided_elsewhere = self.common.decided_elsewhere.max(promise.decided);
            return self.give_up(now, effects);
        }
        candidate.decided = candidate.decided.max(promise.decided);
        let lowest = self.common.options.has(super::Bug::AdoptLowestBallot);
        for value in promise.accepted {
            let best = candidate.values.entry(value.slot).or_insert_with(|| value.clone());
            if (value.ballot > best.ballot) != lowest {
                *best = value;
            }
        }
        candidate.answers.insert(from, Answer { incarnation: promise.incarnation, next: promise.next });
        if promise.next.is_some() {
            self.ask_for_promise(from, effects);
        }
        self.complete_phase_1(now, effects);
    }

    /// Begins to lead if a quorum has promised.
    pub(super) fn complete_phase_1(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.lsn > self.common.durable {
            return;
        }
        let told_all = |id| candidate.answers.get(&id).is_some_and(|answer| answer.next.is_none());
        let promised = self.common.members.those(|id| id == self.common.members.me() || told_all(id));
        if !self.common.members.is_quorum(promised) {
            return;
        }
        let ballot = candidate.ballot;
        let mut values = std::mem::take(&mut candidate.values);
        let decided = candidate.decided.max(self.decided());
        for (slot, own) in self.acceptor.accepted_from(decided.next()) {
            let own = AcceptedValue { slot, ballot: own.ballot, batch: own.batch.clone() };
            let best = values.entry(slot).or_insert_with(|| own.clone());
            if own.ballot > best.ballot {
                *best = own;
            }
        }
        // Slots through `decided` are decided; those that this replica does not know come by catch-up. After
        // them the value of the highest ballot is the only one that can have been chosen; where nobody of the
        // quorum accepted anything, nothing was chosen, and a no-op lets the slots after it be delivered.
        values.retain(|&slot, _| slot > decided);
        let last = values.keys().next_back().copied().unwrap_or(decided).max(decided);
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        let dropped = self.common.options.has(super::Bug::DropAcceptedValue);
        let mut adopted = |slot| {
            let value = values.remove(&slot).filter(|_| !dropped);
            value.map_or_else(Batch::noop, |value| value.batch)
        };
        self.state = State::Leader(Leader {
            ballot,
            proposed: decided,
            waiting: (decided.0 + 1..=last.0).map(|slot| adopted(Slot(slot))).collect(),
            duties: Leadership::begin(now, self.decided(), last),
            flights: VecDeque::new(),
            resend_at: Time::NEVER,
            delivered: false,
            stuck_since: now,
        });
        self.common.election.leads(now);
        // At once: these values belong into these slots, whatever else this burst brings.
        self.send_accepts(now, effects);
        self.lead_on(now, effects);
    }

    pub(super) fn propose(&mut self, batch: Batch, awaited: bool) {
        if self.room() == 0 {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        if awaited {
            leader.duties.awaits(leader.next_slot());
        }
        leader.waiting.push(batch);
    }

    /// Proposes what waits; consecutive slots leave together.
    pub(super) fn send_accepts(&mut self, now: Time, effects: &mut Effects) {
        while let State::Leader(leader) = &mut self.state
            && !leader.waiting.is_empty()
        {
            let count = fitting(leader.waiting.iter(), self.common.options.page_bytes_max);
            let batches: Batches = leader.waiting.drain(..count).collect();
            let first = leader.proposed.next();
            self.propose_at(now, first, batches, effects);
        }
    }

    fn propose_at(&mut self, now: Time, first: Slot, batches: Batches, effects: &mut Effects) {
        let decided = self.decided();
        let State::Leader(leader) = &mut self.state else { return };
        let (ballot, last) = (leader.ballot, last_of(first, &batches));
        leader.proposed = last;
        while leader.flights.front().is_some_and(|flight| flight.last <= decided) {
            leader.flights.pop_front();
        }
        let resend = Resend::first(now, self.common.options.retransmit_after);
        leader.resend_at = leader.resend_at.min(resend.at());
        leader.flights.push_back(Flight { first, last, resend });
        leader.duties.told(decided);
        // The followers' disks work while this one does: the own votes count once they are durable.
        let accept = Message::Accept { ballot, first, decided, batches: batches.clone() };
        self.common.broadcast(accept, Lsn::ZERO, effects);
        self.accept(ballot, first, batches, effects);
    }

    /// Whether nothing was delivered for two time-outs although slots were decided before this leader's time.
    /// The replica that reported them decided may be gone for good; another Phase 1 finds the values with those who
    /// accepted them.
    fn is_stuck(&mut self, now: Time) -> bool {
        let lags = self.decided() < self.common.decided_elsewhere && !self.is_congested();
        let State::Leader(leader) = &mut self.state else { return false };
        if !lags || std::mem::take(&mut leader.delivered) {
            leader.stuck_since = now;
        }
        now.since(leader.stuck_since) > self.common.options.election_timeout * 2
    }

    /// Proposes again what was not accepted in time, or runs Phase 1 again if that does not help.
    pub(super) fn propose_again(&mut self, now: Time, effects: &mut Effects) {
        if self.is_stuck(now) {
            let ballot = self.common.election.next_ballot(self.common.highest_ballot());
            let progress = self.common.progress;
            self.become_candidate(now, ballot, effects);
            self.common.progress = progress;
        } else {
            self.resend_proposals(now, effects);
        }
    }

    fn resend_proposals(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        if now < leader.resend_at {
            return;
        }
        let acceptor = &self.acceptor;
        let in_flight = |slot| !acceptor.is_decided(Slot(slot));
        leader.flights.retain(|flight| (flight.first.0..=flight.last.0).any(in_flight));
        let mut due = Vec::new();
        for flight in &mut leader.flights {
            if flight.resend.is_due(now, wait_max) {
                due.extend((flight.first.0..=flight.last.0).map(Slot));
            }
        }
        let next = leader.flights.iter().map(|flight| flight.resend.at()).min();
        leader.resend_at = next.unwrap_or(Time::NEVER);
        for peer in self.common.members.peers() {
            self.resend_proposals_to(peer, &due, effects);
        }
    }

    /// Proposes slots again to a member that is not known to have accepted them. Consecutive ones leave together.
    fn resend_proposals_to(&self, peer: ReplicaId, slots: &[Slot], effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let (ballot, decided) = (leader.ballot, self.decided());
        let everybody_counts = self.common.options.multipaxos.decision == Decision::All;
        let mut missing: Vec<(Slot, Batch)> = Vec::new();
        for &slot in slots {
            let own = self.acceptor.accepted(slot).filter(|accepted| accepted.ballot == ballot);
            let Some(accepted) = own.filter(|_| !self.acceptor.is_decided(slot)) else { continue };
            let answered = self.common.members.contains(self.acceptor.voters(slot, ballot), peer);
            if !answered || everybody_counts {
                missing.push((slot, accepted.batch.clone()));
            }
            if everybody_counts && accepted.lsn <= self.common.durable {
                // The peer may also have missed this replica's own vote.
                effects.send(peer, Message::Accepted { ballot, first: slot, last: slot }, accepted.lsn);
            }
        }
        for run in missing.chunk_by(|(slot, _), (next, _)| slot.next() == *next) {
            let mut run = run;
            while let Some(&(first, _)) = run.first() {
                let count = fitting(run.iter().map(|(_, batch)| batch), self.common.options.page_bytes_max);
                let (page, rest) = run.split_at(count);
                let batches = page.iter().map(|(_, batch)| batch.clone()).collect();
                effects.send(peer, Message::Accept { ballot, first, decided, batches }, Lsn::ZERO);
                run = rest;
            }
        }
    }

    /// A session to a peer began: what was sent to it before may be lost.
    pub(super) fn resend_to(&mut self, peer: ReplicaId, effects: &mut Effects) {
        match &self.state {
            State::Candidate(_) => self.ask_for_promise(peer, effects),
            State::Leader(leader) => {
                let (ballot, round) = (leader.ballot, leader.duties.rounds.last());
                effects.send(peer, Message::Heartbeat { ballot, decided: self.decided(), round }, Lsn::ZERO);
                let undecided: Vec<Slot> = self.acceptor.undecided().collect();
                self.resend_proposals_to(peer, &undecided, effects);
            }
            State::Recovering(_) => self.ask_to_recover(peer, effects),
            State::Follower => {}
        }
    }
}

impl Candidate {
    /// Drops what earlier lives promised: those may have forgotten it. Returns which replicas have to be asked again.
    pub(super) fn drop_outlived(&mut self, lives: &Lives) -> Vec<ReplicaId> {
        let outlived =
            self.answers.extract_if(.., |&replica, answer| !lives.is_latest(replica, answer.incarnation));
        outlived.map(|(replica, _)| replica).collect()
    }
}
