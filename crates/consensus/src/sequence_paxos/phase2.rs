//! Phase 2, in the order in which its messages travel: the leader brings a follower to its sequence (`AcceptSync`,
//! `SyncNext`), appends to it (`Accept`), the followers answer once that is durable (`Accepted`), a quorum chooses, and
//! all deliver (`Decide`).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use synod_wire::{Ballot, Ballots, Batch, Delivered, Lsn, ReplicaId, Slot, Time};

use super::{
    AcceptSync, Extent, Message, Phase, Record, SequencePaxos, State,
    follower::Staging,
    peers::{Peer, Stage},
};
use crate::{Batches, Effect, Effects, Protocol, batches::last_of, leadership::Leadership, resend::Resend};

/// The most slots of an `AcceptSync`, page by page. It is what a leader with the largest window that a server takes may
/// have in flight, and keep of what was decided before that, twice over: the window of a follower says nothing of its
/// leader's.
const SYNC_SLOTS_MAX: u64 = 16 * u16::MAX as u64;

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
    /// A leader of this ballot that adopted a sequence, which is durable through a slot with a record.
    pub(super) fn begin(
        ballot: Ballot,
        adopted: Extent,
        peers: BTreeMap<ReplicaId, Peer>,
        own: (Lsn, Slot),
        duties: Leadership,
    ) -> Leader {
        Leader { ballot, adopted, peers, written: own.1, own: Slot::ZERO, undurable: [own].into(), duties }
    }

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
    // The leader brings a follower to its sequence.

    /// Brings a follower that has promised to the leader's sequence. A promise that comes when the leader asks for none
    /// any more says nothing new: another one came before.
    pub(super) fn synchronise(&mut self, now: Time, to: ReplicaId, has: Extent, effects: &mut Effects) {
        let (retransmit_after, timeout) =
            (self.common.options.retransmit_after, self.common.options.election_timeout);
        let (kept, decided) = (self.log.first(), self.log.decided());
        let max_sync = self.common.options.sequence_paxos.max_accept_sync;
        let rules = self.rules();
        let State::Leader(leader) = &mut self.state else { return };
        let adopted = leader.adopted;
        let keeps_all = max_sync && rules.is_prefix(has, adopted, leader.ballot);
        let first = if keeps_all { has.last.next() } else { has.decided.next() };
        let Some(peer) = leader.peers.get_mut(&to).filter(|peer| peer.stage == Stage::Asked) else { return };
        if peer.last > Slot::ZERO && (has.accepted_in, has.last) < (leader.ballot, peer.last) {
            // An old promise that comes late: since then it has accepted more, and what it has it keeps.
            return;
        }
        peer.goes_on(now, retransmit_after, timeout);
        if first < kept {
            peer.stage = Stage::Lagging;
            let ballot = leader.ballot;
            effects.send(to, Message::Lagging { ballot, through: decided }, Lsn::ZERO);
        } else if first <= leader.written.next() {
            peer.stage = Stage::Syncing { first, page: first, whole: false };
            self.send_page(to, effects);
        }
        // Otherwise it knows more to be decided than this leader has: another replica leads in a higher ballot.
    }

    /// Sends the page of an `AcceptSync` that is under way.
    fn send_page(&mut self, to: ReplicaId, effects: &mut Effects) {
        let bytes_max = self.common.options.page_bytes_max;
        let (kept, decided) = (self.log.first(), self.log.decided());
        let State::Leader(leader) = &mut self.state else { return };
        let Some(peer) = leader.peers.get_mut(&to) else { return };
        let Stage::Syncing { first, page, .. } = peer.stage else { return };
        if page < kept {
            // Dropped meanwhile: ask again what it has.
            peer.stage = Stage::Asked;
            return;
        }
        let batches = self.log.page(page, leader.written, bytes_max, usize::MAX);
        let last = last_of(page, &batches);
        let more = last < leader.written;
        peer.stage = Stage::Syncing { first, page, whole: !more };
        peer.sent = last;
        let sync = AcceptSync { ballot: leader.ballot, first, from: page, batches, more, decided };
        effects.send(to, Message::AcceptSync(sync), Lsn::ZERO);
    }

    /// The leader's sequence comes, page by page.
    pub(super) fn handle_accept_sync(&mut self, now: Time, sync: AcceptSync, effects: &mut Effects) {
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
            self.handle_accept(now, ballot, from, &batches, effects);
            return self.handle_decide(ballot, decided, effects);
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
        self.handle_decide(ballot, decided, effects);
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

    /// A follower has a page, and wants the next.
    pub(super) fn handle_sync_next(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        wanted_first: Slot,
        wanted: Slot,
        effects: &mut Effects,
    ) {
        let (retransmit_after, timeout) =
            (self.common.options.retransmit_after, self.common.options.election_timeout);
        let State::Leader(leader) = &mut self.state else { return };
        let written = leader.written;
        let Some(peer) = leader.peers.get_mut(&from).filter(|_| ballot == leader.ballot) else { return };
        let Stage::Syncing { first, page, .. } = &mut peer.stage else { return };
        if *first != wanted_first || wanted <= *page || wanted > written.next() {
            return;
        }
        *page = wanted;
        peer.reached = peer.reached.max(wanted.prev());
        peer.goes_on(now, retransmit_after, timeout);
        self.send_page(from, effects);
    }

    // The leader appends.

    pub(super) fn propose(&mut self, _: Time, batch: Batch, awaited: bool) {
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

    /// Sends elements that were just written to every follower that has what comes before, and to others what they
    /// may have missed.
    fn send_accept(&mut self, first: Slot, batches: &Batches, effects: &mut Effects) {
        let decided = self.decided_on_accept();
        let State::Leader(leader) = &mut self.state else { return };
        let ballot = leader.ballot;
        let last = last_of(first, batches);
        let ready = |peer: &Peer| peer.takes_accepts() && peer.sent.next() == first;
        let to = self.common.members.to_those(|id| leader.peers.get(&id).is_some_and(ready));
        for peer in leader.peers.values_mut().filter(|peer| ready(peer)) {
            peer.sent = last;
        }
        let accept = Message::Accept { ballot, first, decided, batches: batches.clone() };
        effects.send(to, accept, Lsn::ZERO);
        leader.duties.told(decided);
    }

    /// What an `Accept` says of decisions.
    fn decided_on_accept(&self) -> Slot {
        if self.common.options.sequence_paxos.decide_on_accept { self.log.decided() } else { Slot::ZERO }
    }

    // A follower accepts.

    /// The leader appended elements.
    pub(super) fn handle_accept(
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
        let ahead_max = self.common.options.accept_ahead_max();
        let through = self.common.rules().takes_through(self.log.decided(), ahead_max);
        let room = usize::try_from(through.next().0.saturating_sub(first.0)).unwrap_or(usize::MAX);
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

    /// Extends the accepted sequence, in its own ballot.
    fn append(&mut self, ballot: Ballot, batches: &Batches, effects: &mut Effects) {
        if batches.is_empty() {
            return;
        }
        let first = self.log.last().next();
        batches.iter().for_each(|batch| self.log.push(batch.clone()));
        let (decided, batches) = (self.log.decided(), batches.clone());
        self.recorded = self.recorded.max(self.log.last());
        self.accepted_lsn = self.write(Record::Accepted { ballot, first, decided, batches }, effects);
    }

    /// Has the leader told what is accepted: at once, or together with whatever else this burst brings.
    pub(super) fn accepted(&mut self, effects: &mut Effects) {
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

    // What a quorum accepted is chosen.

    /// A follower has accepted the sequence through a slot.
    pub(super) fn handle_accepted(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        last: Slot,
        effects: &mut Effects,
    ) {
        let retransmit_after = self.common.options.retransmit_after;
        let State::Leader(leader) = &mut self.state else { return };
        let written = leader.written;
        let Some(peer) = leader.peers.get_mut(&from).filter(|_| ballot == leader.ballot) else { return };
        // It may know more to be decided than this leader has proposed.
        let last = last.min(written);
        let news = last > peer.last;
        peer.last = peer.last.max(last);
        peer.reached = peer.reached.max(last);
        if news {
            peer.resend = Resend::first(now, retransmit_after);
        }
        match peer.stage {
            Stage::Syncing { whole: true, .. } => peer.stage = Stage::Synced,
            // It has this leader's sequence from an earlier `AcceptSync`: what it lacks it can append. That goes for
            // one that was told that it lags, too: an older promise of it was answered before that.
            Stage::Syncing { .. } | Stage::Lagging => {
                peer.stage = Stage::Synced;
                self.resend_accepts(now, from, effects);
            }
            _ => {}
        }
        // An answer that comes after a quorum has the slot decides nothing.
        if news && last > self.log.decided() {
            self.choose(effects);
        }
    }

    /// Counts this replica's own acceptance, once it is durable (P6).
    pub(super) fn count_own_acceptance(&mut self, effects: &mut Effects) {
        let State::Leader(leader) = &mut self.state else { return };
        while leader.undurable.front().is_some_and(|(lsn, _)| *lsn <= self.common.durable) {
            leader.own = leader.undurable.pop_front().expect("there is a front").1;
        }
        self.choose(effects);
    }

    /// Decides what a quorum has accepted.
    fn choose(&mut self, effects: &mut Effects) {
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
                self.tell_decided(slot, effects);
            }
        }
    }

    // All deliver.

    /// Tells the followers that slots through this one are decided.
    ///
    /// A follower is told only what it was sent before: a `Decide` that overtakes its `Accept` would name elements
    /// that the follower does not hold (E21). Nothing is queued beyond a burst, so a `Decide` is never merged with
    /// one that stands before an `Accept`; what remains of the erratum is a follower in the middle of an
    /// `AcceptSync`.
    pub(super) fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
        let rules = self.rules();
        let State::Leader(leader) = &mut self.state else { return };
        leader.duties.told(through);
        let ballot = leader.ballot;
        let holds = |peer: &Peer| rules.may_hear(peer.takes_accepts(), peer.sent, through);
        let holders = self.common.members.to_those(|id| leader.peers.get(&id).is_some_and(holds));
        effects.send(holders, Message::Decide { ballot, through }, Lsn::ZERO);
    }

    /// Handles the announcement of the leader of `ballot` that its sequence is decided through a slot.
    pub(super) fn handle_decide(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let State::Follower(follower) = &self.state else { return };
        if self.rules().holds_decision(follower.phase, self.accepted_in, ballot) {
            self.decide_through(through, effects);
        }
    }

    /// Delivers what was accepted, through a slot.
    pub(super) fn decide_through(&mut self, through: Slot, effects: &mut Effects) {
        let through = through.min(self.log.last());
        if through > self.log.decided() {
            let ballots = Ballots::both(self.accepted_in);
            for (slot, batch) in self.log.decide_through(through) {
                effects.push(Effect::Deliver { slot, ballots, batch: batch.clone() });
            }
        }
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(self.log.decided());
        self.forget_old();
    }

    /// Drops decided elements that hardly any replica can still lack. Some are kept: a follower may lag a
    /// little when this replica begins to lead, or a candidate when it answers one. A replica that lags
    /// further learns from the replica layer of others.
    pub(super) fn forget_old(&mut self) {
        let kept = match &self.state {
            State::Leader(leader) => {
                let all = leader.peers.values().map(|peer| peer.last).min().unwrap_or(leader.written);
                let lacked = self.log.decided().0.saturating_sub(all.0);
                lacked.min(self.common.options.accept_ahead_max())
            }
            _ => self.common.options.window_max as u64,
        };
        self.log.forget(Slot(self.log.decided().0.saturating_sub(kept)));
    }

    /// A peer says what was decided in a slot.
    pub(super) fn learn(&mut self, slot: Slot, ballots: Ballots, batch: Batch, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
        if self.is_congested() || slot != self.log.decided().next() {
            return;
        }
        let accepted = self.log.get(slot);
        let above = self.rules().raises_ballot(ballots.decided, self.accepted_in);
        if accepted != Some(&batch) || above || matches!(self.state, State::Recovering) {
            debug_assert!(
                !self.leads() || self.is_planted(),
                "a leader holds what was decided in no higher ballot"
            );
            let batch = batch.clone();
            self.accepted_lsn = self.write(Record::Learned { slot, ballots, batch }, effects);
            self.recorded = self.recorded.max(slot);
        }
        self.log.set_decided(slot, batch.clone());
        effects.push(Effect::Deliver { slot, ballots, batch });
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
        self.forget_old();
    }

    pub(super) fn installed(&mut self, slot: Slot, _: Arc<Delivered>, _: &mut Effects) {
        if slot <= self.log.decided() {
            return;
        }
        debug_assert!(
            !self.leads() || slot <= self.log.last() || self.is_planted(),
            "a leader's sequence has what was decided in no higher ballot"
        );
        self.log.installed(slot);
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(slot);
    }

    /// Adds a record that holds elements to the log.
    pub(super) fn write(&mut self, record: Record, effects: &mut Effects) -> Lsn {
        let slots = record.slots();
        let lsn = effects.append(record.into());
        self.common.disk.given(lsn, slots);
        lsn
    }

    // Sending again.

    /// Sends again what was not answered in time.
    pub(super) fn resend_to_peers(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        let written = leader.written;
        let mut due = Vec::new();
        for (&to, peer) in &mut leader.peers {
            if now >= peer.resend_at(written) && peer.resend.is_due(now, wait_max) {
                due.push((to, peer.stage));
            }
        }
        for (to, stage) in due {
            match stage {
                Stage::Asked => {
                    if let Some(prepare) = self.prepare_of_leader() {
                        effects.send(to, prepare, Lsn::ZERO);
                    }
                }
                Stage::Syncing { .. } => self.send_page(to, effects),
                Stage::Synced => self.resend_accepts(now, to, effects),
                Stage::Lagging => {}
            }
        }
    }

    /// Sends everything again that a follower has not said to have.
    fn resend_accepts(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        let bytes_max = self.common.options.page_bytes_max;
        let slots_max = if self.common.options.sequence_paxos.batched_accepts { usize::MAX } else { 1 };
        let (decided, kept) = (self.decided_on_accept(), self.log.first());
        let State::Leader(leader) = &mut self.state else { return };
        let Some(peer) = leader.peers.get_mut(&to) else { return };
        let mut first = peer.last.next();
        if first < kept {
            // Dropped: find out what it has.
            return self.prepare_peer(now, to, effects);
        }
        while first <= leader.written {
            let batches = self.log.page(first, leader.written, bytes_max, slots_max);
            let next = last_of(first, &batches).next();
            let ballot = leader.ballot;
            effects.send(to, Message::Accept { ballot, first, decided, batches }, Lsn::ZERO);
            first = next;
        }
        peer.sent = leader.written;
    }
}
