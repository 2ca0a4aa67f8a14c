//! Phase 1, in the order in which its messages travel: a candidate asks (`Prepare`), each member promises and tells
//! what it has and the candidate may lack (`Promise`), and with a quorum the candidate adopts the best sequence and
//! leads.
//!
//! A leader asks a follower in the same way that may have missed something (`rejoin.rs`).

use std::collections::BTreeMap;

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{Extent, Leader, Message, Phase, Prepare, Promise, Record, SequencePaxos, State, peers::Peer};
use crate::{
    Batches, Effects,
    batches::{fitting, last_of},
    leadership::Leadership,
    paxos::Paxos,
    resend::Resend,
};

/// A replica in its prepare phase.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    ballot: Ballot,
    /// The record of its own promise.
    lsn: Lsn,
    /// The question to all others, the same each time: what promises leave out depends on it.
    prepare: Prepare,
    /// The replicas that have promised, with what each has.
    promises: BTreeMap<ReplicaId, Extent>,
    best: Best,
    pub(super) resend: Resend,
}

/// The promise of the highest rank so far.
#[derive(Clone, Debug)]
struct Best {
    /// The replica that gave it; `None` for the candidate itself.
    from: Option<ReplicaId>,
    has: Extent,
    /// The slot of the first element that has come.
    first: Slot,
    batches: Vec<Batch>,
    /// The slot with which the next page begins, if there is one to come.
    next: Option<Slot>,
}

impl SequencePaxos {
    // The candidate asks.

    /// Promises itself a ballot of its own, and asks all others to promise it.
    pub(super) fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.common.election.tried();
        self.promise(now, ballot, effects);
        let has = self.extent();
        let prepare = Prepare { ballot, has, page: Slot::ZERO };
        self.state = State::Candidate(Candidate {
            ballot,
            lsn: self.common.promised_lsn,
            prepare,
            promises: BTreeMap::new(),
            best: Best { from: None, has, first: has.last.next(), batches: Vec::new(), next: None },
            resend: Resend::first(now, self.common.options.retransmit_after),
        });
        // Only once the ballot is durable: no life after this one uses it again (P2).
        self.common.broadcast(Message::Prepare(prepare), self.common.promised_lsn, effects);
    }

    // A member answers.

    /// A candidate asks for a promise, or a leader what its follower has.
    pub(super) fn handle_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        prepare: Prepare,
        effects: &mut Effects,
    ) {
        let answers = self.rules().answers_prepare(self.common.promised, prepare.ballot);
        if !self.obeys(now, from, prepare.ballot, effects) || !answers {
            return;
        }
        let timeout = self.common.options.election_timeout;
        let State::Follower(follower) = &mut self.state else { return };
        // A follower that accepts in this ballot goes on. It holds a prefix of the leader's sequence,
        // whatever was lost, and what comes next says where it belongs. Without slots in an `Accept` this
        // would be unsafe (E17).
        if follower.phase == Phase::Recover {
            follower.phase = Phase::Prepare;
            follower.staging = None;
        }
        // The owner of the ballot sends again what is not answered.
        follower.ask = Resend::first(now, timeout);
        if prepare.page > follower.told {
            // The candidate has the page before this one: it makes progress.
            follower.told = prepare.page;
            self.common.election.promised(prepare.ballot, now);
        }
        let promise = self.promise_page(&prepare);
        // The answer speaks of the promise and of everything accepted, that is of all records up to the
        // present end of the log.
        effects.send(from, promise, self.common.rules().leaves_after(effects.last_lsn()));
    }

    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in a
    /// lower one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        self.step_down(effects);
        self.common.promised = ballot;
        self.common.promised_lsn = effects.append(Record::Promised(ballot).into());
        self.common.election.promised(ballot, now);
        if !matches!(self.state, State::Recovering) {
            self.state = State::Follower(self.new_follower(now));
        }
    }

    /// Stops leading, or trying to, after the election was told.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
            // No follower was told of these; the replicas that proposed them propose them again.
            self.log.truncate(leader.written);
        }
        self.common.progress = Default::default();
        if matches!(self.state, State::Leader(_) | State::Candidate(_)) {
            self.state = State::Follower(self.new_follower(Time::ZERO));
        }
    }

    /// A page of what this replica has and the candidate may lack.
    fn promise_page(&self, prepare: &Prepare) -> Message {
        let (has, tells) = self.rules().promises(self.extent(), prepare.has);
        // In the same ballot the shorter sequence is a prefix of the longer one.
        let same = has.accepted_in == prepare.has.accepted_in;
        let lacks = if same { prepare.has.last.next() } else { prepare.has.decided.next() };
        let first = prepare.page.max(lacks).max(self.log.first());
        let last = if tells { has.last } else { Slot::ZERO };
        let batches = self.log.page(first, last, self.common.options.page_bytes_max, usize::MAX);
        let more = last_of(first, &batches) < last;
        Message::Promise(Promise { ballot: prepare.ballot, has, page: prepare.page, first, batches, more })
    }

    // The candidate takes the answers.

    /// A member promised, and told a page of what it has.
    pub(super) fn handle_promise(
        &mut self,
        now: Time,
        from: ReplicaId,
        promise: Promise,
        effects: &mut Effects,
    ) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(promise.has.decided);
        match &self.state {
            State::Candidate(candidate) if candidate.ballot == promise.ballot => {
                self.handle_promise_prepare(now, from, promise, effects);
            }
            State::Leader(leader) if leader.ballot == promise.ballot => {
                self.handle_promise_accept(now, from, promise, effects);
            }
            _ => {}
        }
    }

    /// A candidate takes the promise in.
    fn handle_promise_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        promise: Promise,
        effects: &mut Effects,
    ) {
        let rules = self.rules();
        let State::Candidate(candidate) = &mut self.state else { return };
        let is_best = rules.is_better(promise.has, candidate.best.has);
        if !candidate.takes(from, promise, is_best) {
            // Nothing new: what is still missing is asked for again in a while.
            return;
        }
        let has_more = candidate.best.from == Some(from) && candidate.best.next.is_some();
        self.common.election.answered(from, now);
        if has_more {
            self.ask_for_promise(from, effects);
        }
        self.complete_prepare(now, effects);
    }

    /// The leader has its sequence: a follower that promises late, or again, is brought to it.
    fn handle_promise_accept(&mut self, now: Time, from: ReplicaId, promise: Promise, effects: &mut Effects) {
        self.common.election.answered(from, now);
        self.synchronise(now, from, promise.has, effects);
    }

    /// Adopts the best sequence and begins to lead, if a quorum has promised and that sequence is there.
    pub(super) fn complete_prepare(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        let members = &self.common.members;
        let promised = members.those(|id| id == members.me() || candidate.promises.contains_key(&id));
        let best = &candidate.best;
        if candidate.lsn > self.common.durable
            || !self.common.rules().is_promised(members, promised)
            || best.next.is_some()
        {
            return;
        }
        // What lies before the suffix is decided here, or accepted in the same ballot. Otherwise the replica that gave
        // the promise has dropped it as decided; then it comes by catch-up.
        let same = best.has.accepted_in == candidate.prepare.has.accepted_in;
        let kept = if same { self.log.last() } else { self.log.decided() };
        if best.from.is_some() && best.first > kept.next() {
            self.common.decided_elsewhere = self.common.decided_elsewhere.max(best.first.prev());
            return;
        }
        self.lead(now, effects);
    }

    fn lead(&mut self, now: Time, effects: &mut Effects) {
        let follower = State::Follower(self.new_follower(now));
        let State::Candidate(candidate) = std::mem::replace(&mut self.state, follower) else { return };
        let Candidate { ballot, best, promises, .. } = candidate;
        self.adopt_best(ballot, &best, effects);
        // Whatever any replica knew to be decided is in the sequence.
        let decided = promises.values().map(|has| has.decided).max().unwrap_or_default();
        let last = self.log.last();
        let retransmit_after = self.common.options.retransmit_after;
        let peers =
            self.common.members.peers().map(|peer| (peer, Peer::asked(now, retransmit_after))).collect();
        let duties = Leadership::begin(now, self.log.decided(), last);
        self.state = State::Leader(Leader::begin(ballot, best.has, peers, (self.accepted_lsn, last), duties));
        self.common.election.leads(now);
        self.decide_through(decided, effects);
        for (peer, has) in promises {
            self.synchronise(now, peer, has, effects);
        }
        self.lead_on(now, effects);
    }

    /// Makes the best sequence the accepted one, in this replica's own ballot: both at once, and before
    /// anything of it counts (E1, P5).
    fn adopt_best(&mut self, ballot: Ballot, best: &Best, effects: &mut Effects) {
        let accepted_in = self.accepted_in;
        let first = best.first.max(self.log.decided().next()).min(self.log.last().next());
        let known = usize::try_from(first.0 - best.first.0.min(first.0)).unwrap_or(usize::MAX);
        let elements = best.batches.get(known..).unwrap_or_default();
        let first = if best.from.is_some() { first } else { self.log.last().next() };
        let mut from = first;
        let mut pages = self.pages(elements);
        let last_page = pages.pop().unwrap_or_default();
        for batches in pages {
            let next = last_of(from, &batches).next();
            self.recorded = self.recorded.max(next.prev());
            self.write(Record::Staged { ballot, first, from, batches }, effects);
            from = next;
        }
        self.adopt(ballot, first, from, elements, last_page, effects);
        self.accepted_in = self.rules().adopted_in(ballot, accepted_in);
    }

    /// Elements in pieces of about a page.
    fn pages(&self, elements: &[Batch]) -> Vec<Batches> {
        let mut pages = Vec::new();
        let mut rest = elements;
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(fitting(rest.iter(), self.common.options.page_bytes_max));
            pages.push(page.into());
            rest = tail;
        }
        pages
    }

    // Asking again.

    /// Asks again the replicas that have not answered, or whose answer has another page.
    pub(super) fn resend_prepare(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.resend.is_due(now, wait_max) {
            let peers: Vec<ReplicaId> = self.common.members.peers().collect();
            peers.into_iter().for_each(|peer| self.ask_for_promise(peer, effects));
        }
    }

    pub(super) fn ask_for_promise(&self, peer: ReplicaId, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        let page = candidate.best.next.filter(|_| candidate.best.from == Some(peer));
        if page.is_some() || !candidate.promises.contains_key(&peer) {
            let prepare = Prepare { page: page.unwrap_or(Slot::ZERO), ..candidate.prepare };
            effects.send(peer, Message::Prepare(prepare), candidate.lsn);
        }
    }
}

impl Candidate {
    /// Notes a promise, which is better than all before or not, or another page of the best one; false if there is
    /// nothing new in it.
    fn takes(&mut self, from: ReplicaId, promise: Promise, is_best: bool) -> bool {
        let Promise { has, page, first, batches, more, .. } = promise;
        let next = more.then(|| last_of(first, &batches).next());
        if page == Slot::ZERO {
            let news = self.promises.insert(from, has).is_none();
            // Also if it holds no elements: then those that this replica lacks, if any, are dropped as decided, and
            // come by catch-up. `first` tells.
            if is_best {
                let batches = batches.to_vec();
                self.best = Best { from: Some(from), has, first, batches, next };
                return true;
            }
            return news;
        }
        if self.best.from != Some(from) || self.best.next != Some(page) {
            return false;
        }
        if first > page {
            // Meanwhile it has dropped what comes before, as decided: that comes by catch-up, as with a first page.
            self.best.first = first;
            self.best.batches.clear();
        }
        self.best.batches.extend(batches.iter().cloned());
        self.best.next = next;
        true
    }
}
