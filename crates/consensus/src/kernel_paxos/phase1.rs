//! Phase 1, in the order in which its messages travel: a candidate asks for one promise of all slots (`PrepareAll`),
//! each member promises and says how far it was touched (`PromiseAll`); then the candidate reads each slot up to there
//! (`Prepare`, `Promise`), and with a quorum that has told everything it leads (Kernel Paxos 2019, section 4.6).
//!
//! The election says when (`stand` and `take_part` in `../paxos.rs`). `obeys_prepare` (there, too) takes the ballot: it
//! refuses one below the promised ballot, and promises a higher one by `promise` here.

use std::collections::{BTreeMap, BTreeSet};

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{
    AcceptedValue, KernelPaxos, Leader, Message, Promise, Record, State,
    rules::Rules,
    votes::{Said, name},
};
use crate::{
    Effects,
    leadership::{Leadership, Leads},
    paxos::Paxos,
    proposer::Phase1Values,
    resend::Resend,
};

/// How many slots a candidate asks a member about before it waits for answers, which bounds what may come at a time.
const READ_AHEAD: usize = 16;

/// A replica in Phase 1.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    ballot: Ballot,
    /// The first slot that it asks about.
    from: Slot,
    /// The record of its own promise.
    lsn: Lsn,
    answers: BTreeMap<ReplicaId, Answer>,
    told: Phase1Values,
    /// The longest decided prefix that an answer mentions.
    decided: Slot,
    pub(super) resend: Resend,
}

/// What a member that has promised is still to tell.
#[derive(Clone, Debug)]
struct Answer {
    /// The first slot that it was not asked about.
    next: Slot,
    /// It accepted nothing after this slot.
    touched: Slot,
    /// The slots that it was asked about and has not told.
    missing: BTreeSet<Slot>,
}

impl Answer {
    fn is_whole(&self, rules: &Rules) -> bool {
        rules.has_told_all(self.missing.len(), self.next, self.touched)
    }

    /// The slots to ask about now.
    fn ask(&mut self) -> Vec<Slot> {
        let room = READ_AHEAD.saturating_sub(self.missing.len());
        let asked: Vec<Slot> = (self.next.0..=self.touched.0).take(room).map(Slot).collect();
        self.next = asked.last().map_or(self.next, |last| last.next());
        self.missing.extend(&asked);
        asked
    }
}

impl KernelPaxos {
    // The candidate asks.

    /// Promises itself a ballot of its own, and asks all others to promise it in all slots. Nobody would read a ballot
    /// that is out of reach.
    pub(super) fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        if !ballot.is_in_reach() {
            return;
        }
        self.common.election.tried();
        self.promise(now, ballot, effects);
        let from = self.decided().next();
        let lsn = self.rules().prepares_after(self.common.promised_lsn);
        self.state = State::Candidate(Candidate {
            ballot,
            from,
            lsn,
            answers: BTreeMap::new(),
            told: Phase1Values::default(),
            decided: self.decided(),
            resend: Resend::first(now, self.common.options.retransmit_after),
        });
        self.common.broadcast(Message::PrepareAll { ballot, from }, lsn, effects);
    }

    // A member answers.

    /// A candidate asks for a promise of all slots. The acceptor raises the promise before it says how far it was
    /// touched, and whatever it accepts after that is of this ballot or a higher one.
    pub(super) fn handle_prepare_all(
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
        let touched = self.voter.prepare_all(ballot);
        let answer = Message::PromiseAll { ballot, decided: self.decided(), touched };
        effects.send(from, answer, effects.last_lsn());
    }

    /// A candidate, or a leader, asks for a promise of one slot and for what was accepted there.
    pub(super) fn handle_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        slot: Slot,
        effects: &mut Effects,
    ) {
        let view = self.common.reported.view;
        let leads = view.ballot == ballot && view.leader == Some(from);
        let obeys = if leads {
            self.follow(now, from, ballot, effects)
        } else {
            self.obeys_prepare(now, from, ballot, slot, effects)
        };
        if !obeys {
            return;
        }
        let accepted: Vec<AcceptedValue> = self.accepted_in(slot, ballot).into_iter().collect();
        // It waits for what it tells, and for no vote of another slot.
        let told = self.learner.accepted(slot).filter(|_| !accepted.is_empty());
        let record = told.map_or(Lsn::ZERO, |held| held.lsn).max(self.common.promised_lsn);
        let promise = Promise { ballot, slot, decided: self.decided(), accepted };
        effects.send(from, Message::Promise(promise), self.common.rules().leaves_after(record));
    }

    /// What a member tells of a slot in a promise of this ballot.
    fn accepted_in(&mut self, slot: Slot, ballot: Ballot) -> Option<AcceptedValue> {
        let held = self.learner.accepted(slot).map(|held| held.value_of(slot));
        if self.learner.is_decided(slot) {
            // It is told as what it is: whatever the acceptor has there is of no higher ballot.
            return held;
        }
        // Where the acceptor has no room it has accepted nothing, and what it has forgotten is delivered.
        let Said::Promises { accepted } = self.voter.prepare(slot, ballot, &self.rules()) else {
            return None;
        };
        let (in_ballot, value) = accepted?;
        let held = held.filter(|held| held.ballot == in_ballot && name(&held.batch) == value);
        Some(held.expect("the batch of a vote is kept until its slot is delivered"))
    }

    /// Promises a higher ballot: lower ones are not answered any more in any slot, and whatever this replica did in one
    /// ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        self.common.promised = ballot;
        self.common.promised_lsn = effects.append(Record::Promised(ballot).into());
        self.voter.prepare_all(ballot);
        self.common.election.promised(ballot, now);
        self.step_down(effects);
    }

    /// Gives up leading or trying to.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
        }
        self.common.progress = Default::default();
        if !matches!(self.state, State::Recovering) {
            self.state = State::Follower;
        }
    }

    // The candidate takes the answers.

    /// A member promised the ballot in all slots.
    pub(super) fn handle_promise_all(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        decided: Slot,
        touched: Slot,
        effects: &mut Effects,
    ) {
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.ballot != ballot || candidate.answers.contains_key(&from) {
            return;
        }
        if self.lags_behind(decided) {
            self.common.election.answered(from, now);
            return self.give_up(now, effects);
        }
        let (members, ahead_max) = (self.common.members.count(), self.common.options.accept_ahead_max());
        if touched > self.rules().reads_through(self.decided(), ahead_max, members) {
            return; // No acceptor holds so much, and this replica would not either.
        }
        self.common.election.answered(from, now);
        let State::Candidate(candidate) = &mut self.state else { return };
        candidate.decided = candidate.decided.max(decided);
        let next = candidate.from.max(decided.next());
        candidate.answers.insert(from, Answer { next, touched, missing: BTreeSet::new() });
        self.read_on(from, effects);
        self.complete_phase_1(now, effects);
    }

    /// Whether this replica lags too far to hold what it would have to propose: then it catches up, and lets another
    /// lead.
    fn lags_behind(&mut self, decided: Slot) -> bool {
        let lags = decided > Slot(self.learner.decided().next().0 + self.common.options.accept_ahead_max());
        if lags {
            self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        }
        lags
    }

    /// Asks a member that has promised about further slots.
    fn read_on(&mut self, from: ReplicaId, effects: &mut Effects) {
        let State::Candidate(candidate) = &mut self.state else { return };
        let (ballot, lsn) = (candidate.ballot, candidate.lsn);
        let Some(answer) = candidate.answers.get_mut(&from) else { return };
        for slot in answer.ask() {
            effects.send(from, Message::Prepare { ballot, slot }, lsn);
        }
    }

    /// A member promised a slot, and told what it accepted there.
    pub(super) fn handle_promise(
        &mut self,
        now: Time,
        from: ReplicaId,
        promise: Promise,
        effects: &mut Effects,
    ) {
        if promise.ballot != self.common.promised {
            return;
        }
        let family = self.common.rules();
        let candidate = match &mut self.state {
            State::Candidate(candidate) => candidate,
            State::Leader(leader) => {
                leader.prepared.promised(promise.slot, self.common.members.only(from));
                return;
            }
            State::Follower | State::Recovering => return,
        };
        let Some(answer) = candidate.answers.get_mut(&from) else { return };
        if !answer.missing.remove(&promise.slot) {
            return; // It was told already.
        }
        self.common.election.answered(from, now);
        if self.lags_behind(promise.decided) {
            return self.give_up(now, effects);
        }
        let State::Candidate(candidate) = &mut self.state else { return };
        candidate.decided = candidate.decided.max(promise.decided);
        for value in promise.accepted.into_iter().filter(|value| value.slot == promise.slot) {
            candidate.told.take(value, |told, held| family.outranks(told, held));
        }
        self.read_on(from, effects);
        self.complete_phase_1(now, effects);
    }

    /// Begins to lead if a quorum has promised, and told everything.
    pub(super) fn complete_phase_1(&mut self, now: Time, effects: &mut Effects) {
        let own_rules = self.rules();
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.lsn > self.common.durable {
            return;
        }
        let told_all = |id| candidate.answers.get(&id).is_some_and(|answer| answer.is_whole(&own_rules));
        let promised = self.common.members.those(|id| id == self.common.members.me() || told_all(id));
        let rules = self.common.rules();
        if !rules.is_promised(&self.common.members, promised) {
            return;
        }
        let ballot = candidate.ballot;
        let told = std::mem::take(&mut candidate.told);
        // Slots through `decided` are decided; those that this replica does not know come by catch-up. Where nothing
        // was chosen after them, a no-op lets the slots after it be delivered.
        let decided = candidate.decided.max(self.learner.decided());
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        let adopted = told.adopted(&self.learner, decided, Slot(u64::MAX), &rules);
        let adopted = adopted.into_iter().map(|told| rules.adopted(told).unwrap_or_else(Batch::noop));
        let waiting: Vec<Batch> = adopted.collect();
        let last = Slot(decided.0 + waiting.len() as u64);
        let duties = Leadership::begin(now, self.decided(), last);
        let how = self.common.options.kernel_paxos.prepare;
        self.state = State::Leader(Leader::begin(now, ballot, decided, waiting, duties, how));
        self.common.election.leads(now);
        self.prepare_window(now, effects);
        // At once: these values belong into these slots, whatever else this burst brings.
        self.send_accepts(now, effects);
        self.lead_on(now, effects);
    }

    // Asking again.

    pub(super) fn resend_prepare(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.resend.is_due(now, self.common.options.election_timeout) {
            let peers: Vec<ReplicaId> = self.common.members.peers().collect();
            for peer in peers {
                self.ask_for_promise(peer, effects);
            }
        }
    }

    /// Asks a member again for what it has not answered.
    pub(super) fn ask_for_promise(&self, peer: ReplicaId, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        let &Candidate { ballot, from, lsn, .. } = candidate;
        let Some(answer) = candidate.answers.get(&peer) else {
            return effects.send(peer, Message::PrepareAll { ballot, from }, lsn);
        };
        for &slot in &answer.missing {
            effects.send(peer, Message::Prepare { ballot, slot }, lsn);
        }
    }
}
