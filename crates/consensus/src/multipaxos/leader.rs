//! The proposer: Phase 1 once, then Phase 2 slot after slot; heartbeats, read confirmation, retransmission.

use std::collections::{BTreeMap, VecDeque};

use synod_wire::{Ballot, Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, MultiPaxos, Promise, State, lives::Lives};
use crate::{
    Batches, Bug, Decision, Effect, Effects, Protocol, ReadToken,
    batches::{fitting, last_of},
    election::Advice,
    leadership::Leadership,
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
    waiting: VecDeque<Batch>,
    pub(super) duties: Leadership,
    /// What was proposed, as far as it is in flight, and when the first of it is due again.
    flights: VecDeque<Flight>,
    resend_at: Time,
    /// Whether a slot was delivered since the gap at the front was last looked at, and since when it was not.
    pub(super) progress: bool,
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
        self.election.tried();
        self.promise(now, ballot, effects);
        let from = self.decided().next();
        self.state = State::Candidate(Candidate {
            ballot,
            from,
            lsn: self.promised_lsn,
            answers: BTreeMap::new(),
            values: BTreeMap::new(),
            decided: self.decided(),
            resend: Resend::first(now, self.options.retransmit_after),
        });
        self.broadcast(Message::Prepare { ballot, from }, self.promised_lsn, effects);
    }

    pub(super) fn resend_prepare(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.resend.is_due(now, self.options.election_timeout) {
            let unanswered: Vec<ReplicaId> = self.members.peers().collect();
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
        let mixes_lives = self.options.has(super::Bug::MixLivesOfPromise);
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
        self.election.answered(from, now);
        if promise.decided > Slot(self.acceptor.decided().next().0 + self.options.accept_ahead_max()) {
            // Too far behind to hold what it would have to propose: catch up, and let somebody else lead.
            self.decided_elsewhere = self.decided_elsewhere.max(promise.decided);
            self.election.gave_up(now);
            return self.step_down(effects);
        }
        candidate.decided = candidate.decided.max(promise.decided);
        let lowest = self.options.has(super::Bug::AdoptLowestBallot);
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
        if candidate.lsn > self.durable {
            return;
        }
        let told_all = |id| candidate.answers.get(&id).is_some_and(|answer| answer.next.is_none());
        let promised = self.members.those(|id| id == self.members.me() || told_all(id));
        if !self.members.is_quorum(promised) {
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
        // Slots through `decided` are decided; those that this replica does not know come by catch-up. Behind
        // them the value of the highest ballot is the only one that can have been chosen; where nobody of the
        // quorum accepted anything, nothing was chosen, and a no-op lets the slots behind it be delivered.
        values.retain(|&slot, _| slot > decided);
        let last = values.keys().next_back().copied().unwrap_or(decided).max(decided);
        self.decided_elsewhere = self.decided_elsewhere.max(decided);
        let dropped = self.options.has(super::Bug::DropAcceptedValue);
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
            progress: false,
            stuck_since: now,
        });
        self.election.leads(now);
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
        leader.waiting.push_back(batch);
    }

    /// Proposes what waits; consecutive slots leave together.
    pub(super) fn send_accepts(&mut self, now: Time, effects: &mut Effects) {
        while let State::Leader(leader) = &mut self.state
            && !leader.waiting.is_empty()
        {
            let count = fitting(leader.waiting.iter(), self.options.promise_bytes_max);
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
        let resend = Resend::first(now, self.options.retransmit_after);
        leader.resend_at = leader.resend_at.min(resend.at());
        leader.flights.push_back(Flight { first, last, resend });
        leader.duties.told(decided);
        // The followers' disks work while this one does: the own votes count once they are durable.
        let accept = Message::Accept { ballot, first, decided, batches: batches.clone() };
        self.broadcast(accept, Lsn::ZERO, effects);
        self.accept(ballot, first, batches, effects);
    }

    /// Tells the followers about decisions that no proposal carried.
    pub(super) fn announce(&mut self, now: Time, effects: &mut Effects) {
        let through = self.decided();
        let State::Leader(leader) = &mut self.state else { return };
        if self.options.multipaxos.decision == Decision::All {
            return leader.duties.told(through);
        }
        if leader.duties.announces(now, through, self.options.announce_delay_max) {
            let ballot = leader.ballot;
            self.broadcast(Message::Decided { ballot, through }, Lsn::ZERO, effects);
        }
    }

    /// A leader that overslept gives up. One that orders alone has nobody to give up for.
    pub(super) fn yield_if_overslept(&mut self, now: Time, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let overslept = leader.duties.overslept(now, self.options.election_timeout);
        if overslept && self.members.count() > 1 && !self.options.has(Bug::ReadWithoutConfirmation) {
            self.election.gave_up(now);
            self.step_down(effects);
            self.report_leader(effects);
        }
    }

    /// What a leader does whenever its timer fires: steps down if it cannot lead, sends again what was not
    /// answered, says that it lives.
    pub(super) fn lead_on(&mut self, now: Time, effects: &mut Effects) {
        let timeout = self.options.election_timeout;
        let decided = self.decided();
        let waits = !self.is_congested() && (self.in_flight() > 0 || decided < self.decided_elsewhere);
        let stalls = self.progress.stalls(now, decided, waits, timeout);
        self.election.stalls(stalls);
        let useless = stalls && !self.serves_reads();
        let advice = self.election.advice(now);
        if !self.disk.answers(now, timeout) || advice == Advice::Yield || useless {
            // The others elect a leader once they miss the heartbeats; this replica comes last in line.
            self.election.gave_up(now);
            return self.step_down(effects);
        }
        if self.is_stuck(now) {
            let ballot = self.election.next_ballot(self.promised.max(self.reported.view.ballot));
            let progress = self.progress;
            self.become_candidate(now, ballot, effects);
            self.progress = progress;
            return;
        }
        self.resend_proposals(now, effects);
        if let Advice::HandTo(heir) = advice {
            self.transfer(heir, effects);
        }
        let State::Leader(leader) = &mut self.state else { return };
        if leader.duties.is_heartbeat_due(now, self.options.heartbeat_interval) {
            self.send_heartbeat(effects);
        }
    }

    /// Whether a read that comes now need not wait for any decision, so that also a leader that decides nothing is of
    /// use (`progress_watch.rs`). Where everybody counts votes, a read waits for all that is proposed.
    fn serves_reads(&self) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        self.options.multipaxos.decision == Decision::Leader && leader.duties.knows_all_before(self.decided())
    }

    /// Whether nothing was delivered for two time-outs although slots were decided before this leader's time.
    /// The replica that reported them decided may be gone for good; another Phase 1 finds the values with those who
    /// accepted them.
    fn is_stuck(&mut self, now: Time) -> bool {
        let behind = self.decided() < self.decided_elsewhere && !self.is_congested();
        let State::Leader(leader) = &mut self.state else { return false };
        if !behind || std::mem::take(&mut leader.progress) {
            leader.stuck_since = now;
        }
        now.since(leader.stuck_since) > self.options.election_timeout * 2
    }

    fn send_heartbeat(&mut self, effects: &mut Effects) {
        let decided = self.decided();
        let State::Leader(leader) = &mut self.state else { return };
        let round = leader.duties.beats(self.members.me(), decided);
        let heartbeat = Message::Heartbeat { ballot: leader.ballot, decided, round };
        self.broadcast(heartbeat, Lsn::ZERO, effects);
        self.confirm_reads(effects);
    }

    fn resend_proposals(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.options.election_timeout;
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
        for peer in self.members.peers() {
            self.resend_proposals_to(peer, &due, effects);
        }
    }

    /// Proposes slots again to a member that is not known to have accepted them. Consecutive ones leave together.
    fn resend_proposals_to(&self, peer: ReplicaId, slots: &[Slot], effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let (ballot, decided) = (leader.ballot, self.decided());
        let everybody_counts = self.options.multipaxos.decision == Decision::All;
        let mut missing: Vec<(Slot, Batch)> = Vec::new();
        for &slot in slots {
            let own = self.acceptor.accepted(slot).filter(|accepted| accepted.ballot == ballot);
            let Some(accepted) = own.filter(|_| !self.acceptor.is_decided(slot)) else { continue };
            let answered = self.members.contains(self.acceptor.voters(slot, ballot), peer);
            if !answered || everybody_counts {
                missing.push((slot, accepted.batch.clone()));
            }
            if everybody_counts && accepted.lsn <= self.durable {
                // The peer may also have missed this replica's own vote.
                effects.send(peer, Message::Accepted { ballot, first: slot, last: slot }, accepted.lsn);
            }
        }
        for run in missing.chunk_by(|(slot, _), (next, _)| slot.next() == *next) {
            let mut run = run;
            while let Some(&(first, _)) = run.first() {
                let count = fitting(run.iter().map(|(_, batch)| batch), self.options.promise_bytes_max);
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

    /// Asks a member to run Phase 1, which ends this replica's leadership. If that member does not, this replica
    /// goes on leading.
    pub(super) fn transfer(&mut self, to: ReplicaId, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        if to != self.members.me() && self.members.index(to).is_some() {
            effects.send(to, Message::TakeOver { ballot: leader.ballot }, Lsn::ZERO);
        }
    }

    pub(super) fn read_index(&mut self, token: ReadToken, effects: &mut Effects) {
        let decided = self.decided();
        let State::Leader(leader) = &mut self.state else {
            effects.push(Effect::ReadIndex { token, slot: None });
            return;
        };
        // Where everybody counts votes, a follower may know of a decision before this leader does, so the read waits
        // for all that is proposed.
        let slot = match self.options.multipaxos.decision {
            Decision::Leader => leader.duties.read_slot(decided),
            Decision::All => leader.next_slot().prev(),
        };
        leader.duties.read(token, slot, &self.options, effects);
        self.confirm_reads(effects);
    }

    pub(super) fn on_heartbeat_ack(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        round: u64,
        effects: &mut Effects,
    ) {
        let State::Leader(leader) = &mut self.state else { return };
        if ballot != leader.ballot {
            return;
        }
        leader.duties.rounds.answered(from, round);
        self.election.answered(from, now);
        self.confirm_reads(effects);
    }

    /// Answers the reads for which a quorum has confirmed that this replica leads, and asks on behalf of the others.
    fn confirm_reads(&mut self, effects: &mut Effects) {
        let State::Leader(leader) = &mut self.state else { return };
        if leader.duties.rounds.confirm(|round_of| self.members.quorum_value(round_of), effects) {
            self.send_heartbeat(effects);
        }
    }
}

impl Candidate {
    /// Drops what earlier lives promised: those may have forgotten it. Returns who has to be asked again.
    pub(super) fn drop_outlived(&mut self, lives: &Lives) -> Vec<ReplicaId> {
        let outlived =
            self.answers.extract_if(.., |&replica, answer| !lives.is_latest(replica, answer.incarnation));
        outlived.map(|(replica, _)| replica).collect()
    }
}
