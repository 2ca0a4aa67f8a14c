//! The proposer: the prepare phase, adopting a sequence, appending to it; heartbeats, reads, stepping down.

use std::collections::{BTreeMap, VecDeque};

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{Extent, Message, Prepare, Promise, Record, SequencePaxos, State, peers::Peer};
use crate::{
    Batches, Effects, Protocol,
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

/// A replica that has adopted a sequence in its ballot.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) ballot: Ballot,
    /// The sequence that was adopted: of this ballot, through this slot. A follower whose own is of the same ballot
    /// and not longer has a prefix of it.
    pub(super) adopted: Extent,
    pub(super) peers: BTreeMap<ReplicaId, Peer>,
    /// Records, and what they hold is sent, through this slot; what was proposed since goes with the end of the burst.
    pub(super) written: Slot,
    /// The leader's own sequence is durable through this slot.
    own: Slot,
    /// Records that are not durable yet, each with the slot through which the sequence will be durable with it.
    undurable: VecDeque<(Lsn, Slot)>,
    pub(super) duties: Leadership,
}

impl Leader {
    pub(super) fn tick_at(&self) -> Time {
        let resend_at = self.peers.values().map(|peer| peer.resend_at(self.written)).min();
        self.duties.tick_at().min(resend_at.unwrap_or(Time::NEVER))
    }

    /// Whether no replica is taken to have accepted more than there is (I7).
    pub(super) fn all_within(&self, last: Slot) -> bool {
        self.own <= last && self.written <= last && self.peers.values().all(|peer| peer.last <= last)
    }
}

impl SequencePaxos {
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

    pub(super) fn on_promise(&mut self, now: Time, from: ReplicaId, promise: Promise, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(promise.has.decided);
        let rules = self.rules();
        match &mut self.state {
            State::Candidate(candidate) if candidate.ballot == promise.ballot => {
                let is_best = rules.is_better(promise.has, candidate.best.has);
                if !candidate.takes(from, promise, is_best) {
                    // Nothing new: what is still missing is asked for again in a while.
                    return;
                }
                self.common.election.answered(from, now);
                if let State::Candidate(candidate) = &self.state
                    && candidate.best.from == Some(from)
                    && candidate.best.next.is_some()
                {
                    self.ask_for_promise(from, effects);
                }
                self.complete_prepare(now, effects);
            }
            State::Leader(leader) if leader.ballot == promise.ballot => {
                self.common.election.answered(from, now);
                self.synchronise(now, from, promise.has, effects);
            }
            _ => {}
        }
    }

    /// Adopts the best sequence and begins to lead, if a quorum has promised and that sequence is there.
    pub(super) fn complete_prepare(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        let promised = |id| id == self.common.members.me() || candidate.promises.contains_key(&id);
        let best = &candidate.best;
        if candidate.lsn > self.common.durable
            || !self.common.members.voters().is_quorum(promised)
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
        let mut undurable = VecDeque::new();
        undurable.push_back((self.accepted_lsn, last));
        self.state = State::Leader(Leader {
            ballot,
            adopted: best.has,
            peers,
            written: last,
            own: Slot::ZERO,
            undurable,
            duties: Leadership::begin(now, self.log.decided(), last),
        });
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

    pub(super) fn propose(&mut self, batch: Batch, awaited: bool) {
        if self.room() == 0 {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        self.log.push(batch);
        if awaited {
            leader.duties.awaits(self.log.last());
        }
    }

    /// Writes down what was proposed since the last time, and sends it to every follower that has what comes before.
    pub(super) fn send_accepts(&mut self, effects: &mut Effects) {
        let slots_max = if self.common.options.sequence_paxos.batched_accepts { usize::MAX } else { 1 };
        let (bytes_max, last) = (self.common.options.page_bytes_max, self.log.last());
        while let State::Leader(leader) = &mut self.state
            && leader.written < last
        {
            let (ballot, first) = (leader.ballot, leader.written.next());
            let batches = self.log.page(first, last, bytes_max, slots_max);
            let decided = self.log.decided();
            leader.written = last_of(first, &batches);
            let lsn =
                effects.append(Record::Accepted { ballot, first, decided, batches: batches.clone() }.into());
            self.accepted_lsn = lsn;
            self.recorded = self.recorded.max(leader.written);
            leader.undurable.push_back((lsn, leader.written));
            self.common.disk.given(lsn, batches.len() as u64);
            // The followers' disks work while this one does.
            self.send_accept(first, &batches, effects);
        }
    }

    /// Counts this replica's own acceptance, once it is durable (P6).
    pub(super) fn accepted_durably(&mut self, effects: &mut Effects) {
        let State::Leader(leader) = &mut self.state else { return };
        while leader.undurable.front().is_some_and(|(lsn, _)| *lsn <= self.common.durable) {
            leader.own = leader.undurable.pop_front().expect("there is a front").1;
        }
        self.choose(effects);
    }

    /// Decides what a quorum has accepted.
    pub(super) fn choose(&mut self, effects: &mut Effects) {
        let rules = self.common.rules();
        let State::Leader(leader) = &mut self.state else { return };
        let accepted = |id| leader.peers.get(&id).map_or(leader.own, |peer| peer.last).0;
        let by_quorum = rules.chosen_through(self.common.members.voters(), &accepted);
        let chosen = Slot(by_quorum).min(leader.written);
        let before = self.log.decided();
        if chosen <= before {
            return;
        }
        self.decide_through(chosen, effects);
        if !self.common.options.sequence_paxos.latest_decide {
            for slot in (before.0 + 1..=chosen.0).map(Slot) {
                self.send_decide(slot, effects);
            }
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
