//! State from one replica to another: what this one asks for, what it answers, and what it does with what
//! comes; and snapshots.

use std::time::Duration;

use synod_consensus::{Bug, Control, Input};
use synod_wire::{Lsn, ReplicaId, Slot, Time};

use crate::{
    PeerMessage, Replica, StateTransfer,
    catch_up::{Arrived, Ask, Pace},
    decided::Decided,
    events::{Action, Installed, SnapshotInfo},
};

/// A snapshot of at most this size is written whenever one is due.
const SMALL_SNAPSHOT_BYTES: u64 = 16 << 20;

/// While a peer fetches a snapshot, the next one is due only after this many times as much.
const FETCHED_SNAPSHOT_STAYS: u64 = 4;

/// A peer counts as fetching for this many election time-outs after it asked for something: it may have to
/// install what it has.
const FETCHED_PATIENCE: u32 = 10;

/// A snapshot that a peer fetches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    /// When it last asked for a piece, or for what was decided after the snapshot through `through`.
    at: Time,
    /// The last decided slot when it asked for the last piece. It fetches later slots as every lagging replica does.
    through: Slot,
}

impl Replica {
    // Decided slots.

    /// Asks for what is missing.
    pub(crate) fn catch_up(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.is_backlogged() {
            return;
        }
        self.learn_ahead(now, actions);
        let status = self.protocol_status();
        let (pace, leader) = (self.pace(), self.view.leader);
        for (to, ask) in self.catch_up.next(now, status.decided, status.decided_elsewhere, leader, &pace) {
            let message = match ask {
                Ask::Slots { from, through } => PeerMessage::Fetch { from, through },
                Ask::Chunk { slot, offset } => PeerMessage::FetchChunk { slot, offset },
            };
            actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
        }
    }

    pub(crate) fn pace(&self) -> Pace {
        let consensus = &self.settings.consensus;
        let retry = consensus.election_timeout / 2;
        let patience = match self.settings.state_transfer {
            // A leader proposes nothing new before it has what was decided before it.
            _ if self.proposes_without_leading() && self.leads() => consensus.retransmit_after / 4,
            // Batches come by ways of their own, and are asked for by name first.
            _ if self.proposes_without_leading() => consensus.retransmit_after * 2,
            _ if self.protocol.is_some() => consensus.heartbeat_interval / 4,
            // With this setting nothing comes by itself.
            StateTransfer::Pull => Duration::ZERO,
            StateTransfer::Eager => retry,
        };
        let fresh = consensus.heartbeat_interval / 4;
        // This is longer than it takes to ask all others, one after the other.
        let forget = consensus.election_timeout * 2;
        let others = u32::try_from(self.group.members.len()).unwrap_or(u32::MAX);
        let lacked = forget.max(patience.saturating_mul(others));
        Pace { patience, retry, fresh, forget, lacked, answer_bytes: self.settings.fetch_bytes_max }
    }

    pub(crate) fn answer_fetch(
        &mut self,
        now: Time,
        to: ReplicaId,
        from: Slot,
        through: Slot,
        actions: &mut Vec<Action>,
    ) {
        let kept = self.decided.first();
        let decided = self.decided.last();
        if let Some(fetched) = self.fetched.as_mut().filter(|fetched| from <= fetched.through) {
            fetched.at = now;
        }
        let batches = self.decided.range(from, through, self.settings.fetch_bytes_max);
        let offer = if batches.is_none() { self.snapshot_offer(from, actions) } else { None };
        let message = offer.unwrap_or_else(|| {
            let batches = batches.unwrap_or_default();
            PeerMessage::Fetched { from, kept, decided, batches }
        });
        actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
    }

    /// A snapshot for a peer that lacks a slot which is not kept any more. If no snapshot covers the slot,
    /// one is taken: what is kept is bounded in bytes, so slots after the last snapshot may be gone, and if
    /// nothing more is decided no other snapshot becomes due.
    pub(crate) fn snapshot_offer(&mut self, lacks: Slot, actions: &mut Vec<Action>) -> Option<PeerMessage> {
        let covers = self.snapshot.filter(|snapshot| snapshot.slot >= lacks);
        if covers.is_none() && self.executed >= lacks {
            self.take_snapshot(actions);
        }
        covers.map(|snapshot| PeerMessage::SnapshotOffer { slot: snapshot.slot, total: snapshot.bytes })
    }

    /// Takes an answer of a peer that keeps the slots from the first to the last of `keeps`.
    pub(crate) fn fetched(
        &mut self,
        now: Time,
        arrived: Arrived,
        keeps: (Slot, Slot),
        actions: &mut Vec<Action>,
    ) {
        // In an epoch that is over no other message says how much more there is.
        self.known.elsewhere = self.known.elsewhere.max(keeps.1);
        let (decided, pace) = (self.decided.last(), self.pace());
        self.catch_up.fetched(now, arrived, keeps, decided, &pace);
        self.learn_ahead(now, actions);
    }

    /// Takes slots that a peer, which has decided slots through `last`, sends without being asked.
    pub(crate) fn pushed(&mut self, now: Time, arrived: Arrived, last: Slot, actions: &mut Vec<Action>) {
        self.known.elsewhere = self.known.elsewhere.max(last);
        let (decided, pace) = (self.decided.last(), self.pace());
        self.catch_up.pushed(now, arrived, last, decided, &pace);
        self.learn_ahead(now, actions);
    }

    /// Delivers what came, in order, as long as the next slot is here and can be taken.
    fn learn_ahead(&mut self, now: Time, actions: &mut Vec<Action>) {
        loop {
            let slot = self.decided.last().next();
            let Some(Decided { ballots, batch }) = self.catch_up.front(slot).cloned() else { return };
            self.learn(now, slot, ballots, batch, actions);
            if self.decided.last() < slot {
                // The slot cannot be taken yet; it is kept.
                return;
            }
            self.catch_up.delivered(self.decided.last());
        }
    }

    // Snapshots.

    pub(crate) fn take_snapshot_if_due(&mut self, now: Time, actions: &mut Vec<Action>) {
        // A snapshot is the whole state: a large one should not be written again for a little log.
        let large =
            self.snapshot.map(|snapshot| snapshot.bytes).filter(|bytes| *bytes > SMALL_SNAPSHOT_BYTES);
        // The next snapshot takes the place of the one that a peer fetches, and of the log after it. The peer
        // would have to begin again, and would never end if that always happens before it has all of it.
        let patience = self.settings.consensus.election_timeout * FETCHED_PATIENCE;
        let fetched = self.fetched.is_some_and(|fetched| now.since(fetched.at) <= patience);
        let follows = self.snapshot.is_some_and(|snapshot| self.decided.first() <= snapshot.slot.next());
        let stays = if fetched && follows { FETCHED_SNAPSHOT_STAYS } else { 1 };
        let (slots, bytes) = (self.slots_since_snapshot / stays, self.bytes_since_snapshot / stays);
        let due = slots >= self.settings.snapshot_slots && bytes >= large.unwrap_or(0)
            || bytes >= self.settings.snapshot_log_bytes;
        if due {
            self.take_snapshot(actions);
        }
    }

    /// Takes a snapshot now if the last one does not hold everything that is decided. If it does, the log is
    /// released, which it may not have been since the start.
    pub(crate) fn take_snapshot_if_there_is_more(&mut self, actions: &mut Vec<Action>) {
        let held = self.snapshot.map_or(Slot::ZERO, |snapshot| snapshot.slot);
        if self.decided.last() > held {
            self.take_snapshot(actions);
        } else if held > Slot::ZERO {
            self.keep_parked(held, actions);
            actions.push(Action::Trim(held));
        }
    }

    fn take_snapshot(&mut self, actions: &mut Vec<Action>) {
        if self.taking_snapshot || self.catch_up.receiving().is_some() {
            return;
        }
        self.slots_since_snapshot = 0;
        self.bytes_since_snapshot = 0;
        if self.has(Bug::TrimPastSnapshot) {
            let through = self.decided.last();
            self.decided.trim(through, 0, 0);
            actions.push(Action::Trim(through));
            return;
        }
        self.taking_snapshot = true;
        actions.push(Action::TakeSnapshot);
    }

    pub(crate) fn snapshot_taken(
        &mut self,
        now: Time,
        info: Option<SnapshotInfo>,
        actions: &mut Vec<Action>,
    ) {
        self.taking_snapshot = false;
        match info {
            Some(info) => self.adopt_snapshot(now, info, actions),
            // The next attempt comes sooner than after a whole interval, even if the state is large.
            None => {
                let soon = |since: &mut u64, due: u64| *since = since.saturating_add(due / 10 * 9);
                soon(&mut self.slots_since_snapshot, self.settings.snapshot_slots);
                soon(&mut self.bytes_since_snapshot, self.settings.snapshot_log_bytes);
            }
        }
    }

    fn adopt_snapshot(&mut self, now: Time, info: SnapshotInfo, actions: &mut Vec<Action>) {
        if self.snapshot.is_none_or(|snapshot| snapshot.slot < info.slot) {
            self.snapshot = Some(info);
            self.fetched = None;
            self.decided.trim(info.slot, self.settings.keep_slots, self.settings.keep_bytes);
            self.carry_out(now, actions);
            self.write_trimmed(info.slot, actions);
            self.keep_parked(info.slot, actions);
            self.input(now, Input::Control(Control::Trim(info.slot)), actions);
            actions.push(Action::Trim(info.slot));
        }
    }

    /// Answers a peer that asks for a piece of a snapshot.
    pub(crate) fn answer_fetch_chunk(
        &mut self,
        now: Time,
        to: ReplicaId,
        (slot, offset): (Slot, u64),
        actions: &mut Vec<Action>,
    ) {
        if self.snapshot.is_some_and(|snapshot| snapshot.slot == slot) {
            self.fetched = Some(Fetched { at: now, through: self.decided.last() });
        }
        actions.push(Action::ReadChunk { to, slot, offset, len_max: self.settings.chunk_bytes_max });
    }

    /// Installs a snapshot of which all pieces are here.
    pub(crate) fn install_snapshot(&mut self, now: Time, actions: &mut Vec<Action>) {
        let Some((info, _)) = self.catch_up.receiving() else { return };
        if info.slot > self.decided.last() {
            actions.push(Action::InstallSnapshot(info));
        } else {
            // The slots came another way meanwhile.
            self.catch_up.snapshot_done(true, now);
        }
    }

    pub(crate) fn snapshot_installed(
        &mut self,
        now: Time,
        installed: Option<Installed>,
        actions: &mut Vec<Action>,
    ) {
        self.catch_up.snapshot_done(installed.is_some(), now);
        let Some(Installed { info, ballots, group, history }) = installed else { return };
        self.note_executed(info.slot);
        if info.slot > self.decided.last() {
            self.forwarded.skipped();
            self.decided.restart_after(info.slot, ballots);
            self.history = self.of_snapshot(history);
            self.meet_earlier_life(actions);
            self.slots_since_snapshot = 0;
            self.bytes_since_snapshot = 0;
            self.adopt_snapshot(now, info, actions);
            self.adopt_group(now, group, actions);
            let voters = self.group.voter_sets();
            let delivered = std::sync::Arc::clone(self.history.delivered());
            let installed = Control::Installed { slot: info.slot, ballots, voters, delivered };
            self.input(now, Input::Control(installed), actions);
        } else {
            self.adopt_snapshot(now, info, actions);
        }
        self.watch_backlog(now);
        self.carry_out(now, actions);
    }
}
