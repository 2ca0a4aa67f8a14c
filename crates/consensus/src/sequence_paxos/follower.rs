//! The acceptor and learner of Sequence Paxos: it promises, takes over the leader's sequence and appends to
//! it, and asks for a `Prepare` when it may have missed something.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{AcceptSync, Message, Prepare, Promise, Record, SequencePaxos, State};
use crate::{Batches, Effects, Protocol, batches::last_of, paxos::Paxos, resend::Resend};

/// The most slots of an `AcceptSync`, page by page. It is what a leader with the largest window that a server takes may
/// have in flight, and keep of what was decided before that, twice over: the window of a follower says nothing of its
/// leader's.
const SYNC_SLOTS_MAX: u64 = 16 * u16::MAX as u64;

/// How far a follower has come with the leader of its ballot (Ng 2020: the second half of the state;
/// RECOVER is added for lost sessions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It may have missed something, and only a `Prepare` helps.
    Recover,
    /// It has promised, and waits for the sequence.
    Prepare,
    /// It has the leader's sequence, or a prefix of it, and appends.
    Accept,
}

/// A replica that neither leads nor tries to.
#[derive(Clone, Debug)]
pub(super) struct Follower {
    pub(super) phase: Phase,
    /// When a leader is asked for a `Prepare`, unless it brings this replica to [`Phase::Accept`] before: soon if this
    /// replica needs one, but only after an election time-out while the leader prepares it or sends it pages.
    ask: Resend,
    /// If the leader has dropped what this replica lacks: it need not ask before slots through this one are
    /// decided here. Otherwise 0.
    dropped: Slot,
    /// The pages that have come of a sequence that is not whole yet.
    staging: Option<Staging>,
    /// The last page of its promise that this replica was asked for.
    told: Slot,
    /// Whether something was accepted since the last `Accepted` left.
    accepted_due: bool,
}

/// The pages of an `AcceptSync` that have come.
#[derive(Clone, Debug)]
struct Staging {
    first: Slot,
    batches: Vec<Batch>,
}

impl Staging {
    fn next(&self) -> Slot {
        last_of(self.first, &self.batches).next()
    }
}

impl Follower {
    pub(super) fn ask_at(&self) -> Time {
        if self.phase == Phase::Accept || self.dropped > Slot::ZERO { Time::NEVER } else { self.ask.at() }
    }
}

impl SequencePaxos {
    /// A follower that knows nothing of a leader yet.
    pub(super) fn new_follower(&self, now: Time) -> Follower {
        Follower {
            phase: Phase::Recover,
            ask: Resend::at_once(now, self.common.options.retransmit_after),
            dropped: Slot::ZERO,
            staging: None,
            told: Slot::ZERO,
            accepted_due: false,
        }
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

    pub(super) fn on_prepare(&mut self, now: Time, from: ReplicaId, prepare: Prepare, effects: &mut Effects) {
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

    /// Asks for a `Prepare` if this replica needs one and it is time to ask.
    pub(super) fn ask_for_prepare(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Follower(follower) = &mut self.state else { return };
        if now < follower.ask_at() {
            return;
        }
        if let Some(leader) = self.common.reported.view.leader
            && follower.ask.is_due(now, wait_max)
        {
            effects.send(leader, Message::PrepareReq { promised: self.common.promised }, Lsn::ZERO);
        }
    }

    /// Takes note that something was missed: what comes cannot be used before the leader has asked what is here.
    fn recover(&mut self, now: Time, effects: &mut Effects) {
        let retransmit_after = self.common.options.retransmit_after;
        let State::Follower(follower) = &mut self.state else { return };
        if follower.phase == Phase::Accept {
            follower.phase = Phase::Recover;
            follower.ask = Resend::at_once(now, retransmit_after);
            self.ask_for_prepare(now, effects);
        }
    }

    /// Handles the message that the leader has dropped what this replica lacks.
    pub(super) fn on_lagging(&mut self, now: Time, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let State::Follower(follower) = &mut self.state else { return };
        if follower.phase == Phase::Accept {
            if self.log.last() >= through {
                // This replica does not lack it any more: the leader answers a promise that was sent before that.
                return self.accepted(effects);
            }
            follower.phase = Phase::Recover;
        }
        follower.dropped = through;
        self.caught_up(now, effects);
    }

    /// Asks for a `Prepare` once what the leader has dropped was learned elsewhere.
    pub(super) fn caught_up(&mut self, now: Time, effects: &mut Effects) {
        let decided = self.log.decided();
        let retransmit_after = self.common.options.retransmit_after;
        let State::Follower(follower) = &mut self.state else { return };
        if follower.dropped > Slot::ZERO && decided >= follower.dropped {
            follower.dropped = Slot::ZERO;
            follower.ask = Resend::at_once(now, retransmit_after);
            self.ask_for_prepare(now, effects);
        }
    }

    pub(super) fn on_accept_sync(&mut self, now: Time, sync: AcceptSync, effects: &mut Effects) {
        let congested = self.is_congested();
        let AcceptSync { ballot, first, from, batches, more, decided } = sync;
        let State::Follower(follower) = &mut self.state else { return };
        if follower.phase == Phase::Accept {
            if from > self.log.last().next() {
                // This is a page of an `AcceptSync` that is not needed any more.
                return self.accepted(effects);
            }
            // The message comes twice, or its answer was lost, or the leader asked again what is here: what
            // is new in it counts as in an `Accept`.
            self.on_accept(now, ballot, from, &batches, effects);
            return self.on_decided(ballot, decided, effects);
        }
        if follower.phase != Phase::Prepare || congested {
            self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
            return;
        }
        let gap = first > self.log.last().next() || first == Slot::ZERO;
        let too_far = last_of(from, &batches).0.saturating_sub(first.0) > SYNC_SLOTS_MAX;
        if gap || too_far || from < first {
            // This is not what this replica's promise asked for. It asks again after a while.
            return;
        }
        // In one ballot the sequence only grows: pages that have come stay valid when the `AcceptSync` begins again.
        let staged = follower.staging.take().filter(|staging| staging.first == first);
        let mut staging = staged.unwrap_or(Staging { first, batches: Vec::new() });
        if staging.next() != from {
            // This page has come before, or it is too early.
            let next = staging.next();
            follower.staging = Some(staging);
            effects.send(ballot.replica, Message::SyncNext { ballot, first, from: next }, Lsn::ZERO);
            return;
        }
        follower.ask = Resend::first(now, self.common.options.election_timeout);
        staging.batches.extend(batches.iter().cloned());
        if more {
            let next = staging.next();
            follower.staging = Some(staging);
            self.recorded = self.recorded.max(last_of(from, &batches));
            self.write(Record::Staged { ballot, first, from, batches }, effects);
            effects.send(ballot.replica, Message::SyncNext { ballot, first, from: next }, Lsn::ZERO);
            return;
        }
        follower.phase = Phase::Accept;
        if self.accepted_in == ballot {
            // In the ballot that this replica accepted in nothing is given up: only what is new counts.
            let known = self.log.last();
            let skip = usize::try_from(known.next().0 - first.0).unwrap_or(usize::MAX);
            let rest: Batches = staging.batches.into_iter().skip(skip).collect();
            self.append(ballot, &rest, effects);
        } else {
            self.adopt(ballot, first, from, &staging.batches, batches, effects);
        }
        self.on_decided(ballot, decided, effects);
        self.accepted(effects);
    }

    /// Takes over the sequence of a ballot: what is held before `first`, then `elements`, of which those
    /// before `from` are staged already. A single record does all of it (E20).
    pub(super) fn adopt(
        &mut self,
        ballot: Ballot,
        first: Slot,
        from: Slot,
        elements: &[Batch],
        last_page: Batches,
        effects: &mut Effects,
    ) {
        self.recorded = self.recorded.max(last_of(from, &last_page)).max(self.log.last());
        let decided = self.log.decided();
        let covers = self.recorded;
        let record = Record::Adopted { ballot, first, from, decided, covers, batches: last_page };
        for record in self.rules().adoption(record, self.log.last()) {
            self.accepted_lsn = self.write(record, effects);
        }
        self.accepted_in = ballot;
        self.replace(first, elements);
    }

    /// Replaces the sequence from `first` on; what is decided stays.
    pub(super) fn replace(&mut self, first: Slot, elements: &[Batch]) {
        self.log.truncate(first.prev());
        let known = self.log.last().next().0 - first.0;
        let skip = usize::try_from(known).unwrap_or(usize::MAX);
        elements.iter().skip(skip).for_each(|batch| self.log.push(batch.clone()));
    }

    /// Extends the accepted sequence, in its own ballot.
    pub(super) fn append(&mut self, ballot: Ballot, batches: &Batches, effects: &mut Effects) {
        if batches.is_empty() {
            return;
        }
        let first = self.log.last().next();
        batches.iter().for_each(|batch| self.log.push(batch.clone()));
        let (decided, batches) = (self.log.decided(), batches.clone());
        self.recorded = self.recorded.max(self.log.last());
        self.accepted_lsn = self.write(Record::Accepted { ballot, first, decided, batches }, effects);
    }

    pub(super) fn on_accept(
        &mut self,
        now: Time,
        ballot: Ballot,
        first: Slot,
        batches: &Batches,
        effects: &mut Effects,
    ) {
        let State::Follower(follower) = &self.state else { return };
        if follower.phase != Phase::Accept {
            // What came before it may be lost.
            return self.ask_for_prepare(now, effects);
        }
        let next = self.log.last().next();
        // What is too far ahead is left out. To take none of the batches would be for good: the leader, whose window
        // may be larger, sends them together again.
        let last_taken = self.log.decided().0 + self.common.options.accept_ahead_max();
        let room = usize::try_from((last_taken + 1).saturating_sub(first.0)).unwrap_or(usize::MAX);
        // What is here already needs no room, and the answer that tells of it may be lost.
        let held = last_of(first, batches) < next;
        if !held && (self.is_congested() || room == 0) {
            // Not answering is always safe: the leader sends it again.
            return;
        }
        let Some(known) = self.rules().held_already(first, next) else { return self.recover(now, effects) };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let end = room.min(batches.len());
        if (known, end) == (0, batches.len()) {
            self.append(ballot, batches, effects);
        } else if known < end {
            self.append(ballot, &batches[known..end].into(), effects);
        }
        self.accepted(effects);
    }

    /// Has the leader told what is accepted: at once, or together with whatever else this burst brings.
    fn accepted(&mut self, effects: &mut Effects) {
        let latest = self.common.options.sequence_paxos.latest_accepted;
        let State::Follower(follower) = &mut self.state else { return };
        follower.accepted_due = true;
        if !latest {
            self.send_accepted(effects);
        }
    }

    pub(super) fn send_accepted(&mut self, effects: &mut Effects) {
        let State::Follower(follower) = &mut self.state else { return };
        if std::mem::take(&mut follower.accepted_due) && follower.phase == Phase::Accept {
            let ballot = self.common.promised;
            let after = self.common.rules().leaves_after(self.accepted_lsn.max(self.common.promised_lsn));
            effects.send(ballot.replica, Message::Accepted { ballot, last: self.log.last() }, after);
        }
    }

    /// Handles the announcement of the leader of `ballot` that its sequence is decided through a slot.
    pub(super) fn on_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let State::Follower(follower) = &self.state else { return };
        if self.rules().holds_decision(follower.phase, self.accepted_in, ballot) {
            self.decide_through(through, effects);
        }
    }
}
