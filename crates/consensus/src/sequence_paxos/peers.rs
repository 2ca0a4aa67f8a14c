//! What a leader knows of each follower, and what it sends to each.

use std::time::Duration;

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::{AcceptSync, Extent, Message, Prepare, SequencePaxos, State};
use crate::{Batches, Effects, batches::last_of, resend::Resend};

/// A follower, as its leader sees it.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    stage: Stage,
    /// It has accepted the sequence of this ballot through this slot, durably (las[r]).
    pub(super) last: Slot,
    /// It was seen to have this slot of the sequence, at least in a page that counts for nothing yet.
    pub(super) reached: Slot,
    /// The sequence was sent to it through this slot.
    sent: Slot,
    resend: Resend,
    /// Until then it gets by with what is sent again: a question of it changes nothing.
    ask_at: Time,
}

/// How far a leader has come with a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It was sent a `Prepare`, or has to be sent one (lds[r] = ⊥).
    Asked,
    /// What it lacks is dropped: it will ask when it has learned that.
    Lagging,
    /// It is sent the sequence from `first` on; `page` is the page under way, `whole` says whether it is the last.
    Syncing { first: Slot, page: Slot, whole: bool },
    /// It appends.
    Synced,
}

impl Peer {
    pub(super) fn asked(now: Time, wait: Duration) -> Peer {
        let (none, resend) = (Slot::ZERO, Resend::at_once(now, wait));
        Peer { stage: Stage::Asked, last: none, reached: none, sent: none, resend, ask_at: now }
    }

    /// When something is to be sent to it again; the leader has written its sequence through `written`.
    pub(super) fn resend_at(&self, written: Slot) -> Time {
        match self.stage {
            Stage::Lagging => Time::NEVER,
            Stage::Synced if self.last >= written => Time::NEVER,
            _ => self.resend.at(),
        }
    }

    /// It is sent something that it was not sent before.
    fn goes_on(&mut self, now: Time, resend_after: Duration, timeout: Duration) {
        self.resend = Resend::first(now, resend_after);
        // It asks a time-out after the last page that it took, which was a while before this one was sent.
        self.ask_at = now + timeout / 2;
    }

    /// Whether the leader is about to bring it to its sequence.
    fn is_served(&self, now: Time) -> bool {
        matches!(self.stage, Stage::Asked | Stage::Syncing { .. }) && now < self.ask_at
    }

    /// Whether it has been sent everything that comes before `sent`, so that more may follow.
    fn takes_accepts(&self) -> bool {
        matches!(self.stage, Stage::Synced | Stage::Syncing { whole: true, .. })
    }
}

impl SequencePaxos {
    fn prepare_of_leader(&self) -> Option<Message> {
        let State::Leader(leader) = &self.state else { return None };
        // What was proposed in this burst is not written yet, so no follower can have it.
        let has = Extent { last: leader.written, ..self.extent() };
        Some(Message::Prepare(Prepare { ballot: leader.ballot, has, page: Slot::ZERO }))
    }

    /// Asks a follower what it has, since it may have missed something.
    fn prepare_peer(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        let (retransmit_after, timeout) =
            (self.common.options.retransmit_after, self.common.options.election_timeout);
        let Some(prepare) = self.prepare_of_leader() else { return };
        let State::Leader(leader) = &mut self.state else { return };
        let Some(peer) = leader.peers.get_mut(&to) else { return };
        peer.stage = Stage::Asked;
        peer.goes_on(now, retransmit_after, timeout);
        effects.send(to, prepare, Lsn::ZERO);
    }

    /// A session to a peer began: what was sent to it before may be lost.
    pub(super) fn session_up(&mut self, now: Time, peer: ReplicaId, effects: &mut Effects) {
        match &mut self.state {
            State::Candidate(_) => self.ask_for_promise(peer, effects),
            // The first message of the session, so that whatever was lost is found out before anything else comes.
            State::Leader(_) => self.prepare_peer(now, peer, effects),
            State::Follower(_) => {
                let promised = self.common.promised;
                effects.send(peer, Message::PrepareReq { promised }, Lsn::ZERO);
            }
            State::Recovering => {}
        }
    }

    pub(super) fn on_prepare_req(
        &mut self,
        now: Time,
        from: ReplicaId,
        promised: Ballot,
        effects: &mut Effects,
    ) {
        let State::Leader(leader) = &self.state else { return };
        // A `Prepare` or a page is under way, and is sent again. Beginning again with each question would never end
        // where a page takes longer than the follower waits.
        let is_served = leader.peers.get(&from).is_some_and(|peer| peer.is_served(now));
        // A replica that has promised more will hear of a leader that can use it.
        if promised <= leader.ballot && !is_served {
            self.prepare_peer(now, from, effects);
        }
    }

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

    pub(super) fn on_sync_next(
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

    pub(super) fn on_accepted(
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

    /// Sends elements that were just written to every follower that has what comes before, and to others what they
    /// may have missed.
    pub(super) fn send_accept(&mut self, first: Slot, batches: &Batches, effects: &mut Effects) {
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

    /// Tells the followers that slots through this one are decided.
    ///
    /// A follower is told only what it was sent before: a `Decide` that overtakes its `Accept` would name elements
    /// that the follower does not hold (E21). Nothing is queued beyond a burst, so a `Decide` is never merged with
    /// one that stands before an `Accept`; what remains of the erratum is a follower in the middle of an
    /// `AcceptSync`.
    pub(super) fn send_decide(&mut self, through: Slot, effects: &mut Effects) {
        let rules = self.rules();
        let State::Leader(leader) = &mut self.state else { return };
        leader.duties.told(through);
        let ballot = leader.ballot;
        let holds = |peer: &Peer| rules.may_hear(peer.takes_accepts(), peer.sent, through);
        let holders = self.common.members.to_those(|id| leader.peers.get(&id).is_some_and(holds));
        effects.send(holders, Message::Decide { ballot, through }, Lsn::ZERO);
    }
}
