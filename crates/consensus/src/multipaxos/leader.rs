//! The proposer: Phase 1 once, then Phase 2 slot after slot; heartbeats, read confirmation, retransmission.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{Message, MultiPaxos, Promise, State, lives::Lives};
use crate::{
    Batches, Decision, Effects, Protocol,
    acceptor::pages,
    batches::{fitting, last_of},
    leadership::{Leadership, Leads},
    paxos::Paxos,
    proposer::{Flights, GapWatch, Told},
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
    told: Told,
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
    flights: Flights,
    pub(super) gap: GapWatch,
}

impl Leader {
    pub(super) fn tick_at(&self) -> Time {
        self.duties.tick_at().min(self.flights.resend_at())
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
            told: Told::default(),
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
            candidate.told.take(value, |new, held| (new > held) != lowest);
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
        let told = std::mem::take(&mut candidate.told);
        // Slots through `decided` are decided; those that this replica does not know come by catch-up. Where nothing
        // was chosen after them, a no-op lets the slots after it be delivered.
        let decided = candidate.decided.max(self.acceptor.decided());
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        let dropped = self.common.options.has(super::Bug::DropAcceptedValue);
        let adopted = told.adopted(&self.acceptor, decided, Slot(u64::MAX));
        let adopted = adopted.into_iter().map(|value| value.filter(|_| !dropped).unwrap_or_else(Batch::noop));
        let waiting: Vec<Batch> = adopted.collect();
        let last = Slot(decided.0 + waiting.len() as u64);
        self.state = State::Leader(Leader {
            ballot,
            proposed: decided,
            waiting,
            duties: Leadership::begin(now, self.decided(), last),
            flights: Flights::new(),
            gap: GapWatch::begin(now),
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
        while leader.flights.lands(decided).is_some() {}
        let resend = Resend::first(now, self.common.options.retransmit_after);
        leader.flights.begins(first, last, resend, ());
        leader.duties.told(decided);
        // The followers' disks work while this one does: the own votes count once they are durable.
        let accept = Message::Accept { ballot, first, decided, batches: batches.clone() };
        self.common.broadcast(accept, Lsn::ZERO, effects);
        self.accept(ballot, first, batches, effects);
    }

    /// Proposes again what was not accepted in time, or runs Phase 1 again if that does not help.
    pub(super) fn propose_again(&mut self, now: Time, effects: &mut Effects) {
        let lags = self.decided() < self.common.decided_elsewhere && !self.is_congested();
        let State::Leader(leader) = &mut self.state else { return };
        if leader.gap.is_stuck(now, lags, self.common.options.election_timeout) {
            self.ask_all_again(now, effects);
        } else {
            self.resend_proposals(now, effects);
        }
    }

    fn resend_proposals(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        let mut due = Vec::new();
        leader.flights.repeat(now, wait_max, &self.acceptor, |flight| due.extend(flight.slots()));
        for peer in self.common.members.peers() {
            self.resend_proposals_to(peer, &due, effects);
        }
    }

    /// Proposes slots again to a member that is not known to have accepted them. Consecutive ones leave together.
    fn resend_proposals_to(&self, peer: ReplicaId, slots: &[Slot], effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let (ballot, decided) = (leader.ballot, self.decided());
        let everybody_counts = self.common.options.multipaxos.decision == Decision::All;
        let mut missing: Vec<_> = self.acceptor.undecided_of(ballot, slots).collect();
        if everybody_counts {
            // The peer may also have missed this replica's own vote.
            for &(slot, accepted) in missing.iter().filter(|(_, own)| own.lsn <= self.common.durable) {
                effects.send(peer, Message::Accepted { ballot, first: slot, last: slot }, accepted.lsn);
            }
        } else {
            let members = &self.common.members;
            missing.retain(|(slot, _)| !members.contains(self.acceptor.voters(*slot, ballot), peer));
        }
        for page in pages(&missing, self.common.options.page_bytes_max) {
            let (first, batches) = (page[0].0, page.iter().map(|(_, own)| own.batch.clone()).collect());
            effects.send(peer, Message::Accept { ballot, first, decided, batches }, Lsn::ZERO);
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
