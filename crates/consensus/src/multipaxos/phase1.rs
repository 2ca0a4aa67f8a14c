//! Phase 1, in the order in which its messages travel: a candidate asks (`Prepare`), each member promises and tells
//! what it accepted (`Promise`), and with a quorum the candidate leads.
//!
//! The election says when (`stand` and `take_part` in `../paxos.rs`). `obeys_prepare` (there, too) takes the ballot of
//! a `Prepare`: it refuses one below the promised ballot, and promises a higher one by `promise` here.
//!
//! One Phase 1 is for all slots after the candidate's decided prefix (Santos 2012, section 7.1.2). An answer comes in
//! pages, each of which is asked for.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{Leader, Message, MultiPaxos, Promise, Record, State, lives::Lives};
use crate::{
    Effects,
    leadership::{Leadership, Leads},
    paxos::Paxos,
    proposer::Phase1Values,
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
    told: Phase1Values,
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

impl MultiPaxos {
    // The candidate asks.

    /// Promises itself a ballot of its own, and asks all others to promise it.
    pub(super) fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.common.election.tried();
        self.promise(now, ballot, effects);
        let from = self.decided().next();
        self.state = State::Candidate(Candidate {
            ballot,
            from,
            lsn: self.common.promised_lsn,
            answers: BTreeMap::new(),
            told: Phase1Values::default(),
            decided: self.decided(),
            resend: Resend::first(now, self.common.options.retransmit_after),
        });
        self.common.broadcast(Message::Prepare { ballot, from }, self.common.promised_lsn, effects);
    }

    // A member answers.

    /// A candidate asks for a promise, and for what was accepted from slot `first` on.
    pub(super) fn handle_prepare(
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

    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        // The votes of this burst are in a lower ballot: they leave before the promise does, after which nothing more
        // is said in that ballot.
        self.send_accepted(effects);
        self.common.promised = ballot;
        self.common.promised_lsn = effects.append(Record::Promised(ballot).into());
        self.common.election.promised(ballot, now);
        self.step_down(effects);
    }

    /// Ends what this replica does in its ballot: fails its reads, and follows. (`give_up` also tells the election.)
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
        }
        self.common.progress = Default::default();
        if !matches!(self.state, State::Recovering(_)) {
            self.state = State::Follower;
        }
    }

    /// What this replica accepted from slot `first` on, as much as fits a page. The page speaks of records up to
    /// the present end of the log, so it may leave only once they are durable.
    fn promise_page(&self, ballot: Ballot, first: Slot) -> Promise {
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

    // The candidate takes the answers.

    /// A member promised, and told a page of what it accepted.
    pub(super) fn handle_promise(
        &mut self,
        now: Time,
        from: ReplicaId,
        promise: Promise,
        effects: &mut Effects,
    ) {
        if !matches!(&self.state, State::Candidate(candidate) if candidate.ballot == promise.ballot) {
            return;
        }
        let (family, rules) = (self.common.rules(), self.rules());
        self.note_lives(&promise.lives, effects);
        let State::Candidate(candidate) = &mut self.state else { return };
        let begun = candidate.answers.get(&from).map_or(promise.incarnation, |answer| answer.incarnation);
        if promise.incarnation < begun || !self.lives.is_latest(from, promise.incarnation) {
            return; // Of a life that is over.
        }
        if rules.begins_again(begun, promise.incarnation) {
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
        for value in promise.accepted {
            candidate.told.take(value, |told, held| family.outranks(told, held));
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
        let family = self.common.rules();
        if !family.is_promised(&self.common.members, promised) {
            return;
        }
        let ballot = candidate.ballot;
        let told = std::mem::take(&mut candidate.told);
        // Slots through `decided` are decided; those that this replica does not know come by catch-up. Where nothing
        // was chosen after them, a no-op lets the slots after it be delivered.
        let decided = candidate.decided.max(self.acceptor.decided());
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        let adopted = told.adopted(&self.acceptor, decided, Slot(u64::MAX), &family);
        let adopted = adopted.into_iter().map(|told| family.adopted(told).unwrap_or_else(Batch::noop));
        let waiting: Vec<Batch> = adopted.collect();
        let last = Slot(decided.0 + waiting.len() as u64);
        let duties = Leadership::begin(now, self.decided(), last);
        self.state = State::Leader(Leader::begin(now, ballot, decided, waiting, duties));
        self.common.election.leads(now);
        // At once: these values belong into these slots, whatever else this burst brings.
        self.send_accepts(now, effects);
        self.lead_on(now, effects);
    }

    // Asking again.

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
}

impl Candidate {
    /// Drops what earlier lives promised: those may have forgotten it. Returns which replicas have to be asked again.
    pub(super) fn drop_outlived(&mut self, lives: &Lives) -> Vec<ReplicaId> {
        let outlived =
            self.answers.extract_if(.., |&replica, answer| !lives.is_latest(replica, answer.incarnation));
        outlived.map(|(replica, _)| replica).collect()
    }
}
