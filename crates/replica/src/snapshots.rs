//! Snapshots of what was executed, in the place of the log before them: when one is due, which one is kept, and how one
//! comes from another replica.

use synod_consensus::{Bug, Control, Input};
use synod_wire::{ReplicaId, Slot, Time};

use crate::{
    PeerMessage, Replica, RequestError, Settings,
    events::{Action, Installed, SnapshotInfo},
};

/// A snapshot of at most this size is written whenever one is due.
const SMALL_SNAPSHOT_BYTES: u64 = 16 << 20;

/// While a peer fetches a snapshot, the next one is due only after this many times as much.
const FETCHED_SNAPSHOT_STAYS: u64 = 4;

/// A peer counts as fetching for this many election time-outs after it asked for something: it may have to
/// install what it has.
const FETCHED_TIMEOUTS: u32 = 10;

/// The snapshot that this replica keeps, and how much was decided since.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// The newest snapshot.
    last: Option<SnapshotInfo>,
    /// Whether one is being taken.
    taking: bool,
    /// The slots that were delivered since a snapshot was last begun or installed, and the bytes of their batches.
    slots_since: u64,
    bytes_since: u64,
    /// Whether a peer fetches the newest snapshot.
    fetched: Option<Fetched>,
}

/// A snapshot that a peer fetches.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    /// When it last asked for a piece, or for what was decided after the snapshot through `through`.
    at: Time,
    /// The last decided slot when it asked for the last piece. It fetches later slots as every lagging replica does.
    through: Slot,
}

impl Snapshots {
    /// The snapshots of a replica that begins with this one.
    pub fn new(last: Option<SnapshotInfo>) -> Snapshots {
        Snapshots { last, taking: false, slots_since: 0, bytes_since: 0, fetched: None }
    }

    /// The newest snapshot.
    pub fn last(&self) -> Option<SnapshotInfo> {
        self.last
    }

    /// Takes note that a batch of so many bytes was delivered.
    pub fn delivered(&mut self, bytes: usize) {
        self.slots_since += 1;
        self.bytes_since += bytes as u64;
    }

    /// Whether the next snapshot is due, when slots from `kept` on are kept.
    pub fn is_due(&self, now: Time, kept: Slot, settings: &Settings) -> bool {
        // A snapshot is the whole state: a large one should not be written again for a little log.
        let large = self.last.map(|last| last.bytes).filter(|bytes| *bytes > SMALL_SNAPSHOT_BYTES);
        // The next snapshot takes the place of the one that a peer fetches, and of the log after it. The peer
        // would have to begin again, and would never end if that always happens before it has all of it.
        let timeout = settings.consensus.election_timeout * FETCHED_TIMEOUTS;
        let fetched = self.fetched.is_some_and(|fetched| now.since(fetched.at) <= timeout);
        let follows = self.last.is_some_and(|last| kept <= last.slot.next());
        let stays = if fetched && follows { FETCHED_SNAPSHOT_STAYS } else { 1 };
        let (slots, bytes) = (self.slots_since / stays, self.bytes_since / stays);
        slots >= settings.snapshot_slots && bytes >= large.unwrap_or(0)
            || bytes >= settings.snapshot_log_bytes
    }

    /// Begins a snapshot of all that was delivered; `false` if one is being taken already.
    pub fn begin(&mut self) -> bool {
        if self.taking {
            return false;
        }
        (self.slots_since, self.bytes_since) = (0, 0);
        self.taking = true;
        true
    }

    /// Takes note that the snapshot that was begun is taken, or could not be.
    pub fn ended(&mut self) {
        self.taking = false;
    }

    /// Makes the next snapshot due sooner than after a whole interval, even if the state is large.
    pub fn hasten(&mut self, settings: &Settings) {
        let soon = |since: &mut u64, due: u64| *since = since.saturating_add(due / 10 * 9);
        soon(&mut self.slots_since, settings.snapshot_slots);
        soon(&mut self.bytes_since, settings.snapshot_log_bytes);
    }

    /// Takes note that a snapshot took the place of slots that were not delivered here.
    pub fn skipped(&mut self) {
        (self.slots_since, self.bytes_since) = (0, 0);
    }

    /// Keeps this snapshot if it is newer than the last one; returns whether it is. Another file of the same slot takes
    /// the place of the last one: peers are offered what they will be sent.
    pub fn keep(&mut self, info: SnapshotInfo) -> bool {
        if let Some(last) = self.last.as_mut().filter(|last| last.slot == info.slot) {
            last.bytes = info.bytes;
        }
        let newer = self.last.is_none_or(|last| last.slot < info.slot);
        if newer {
            (self.last, self.fetched) = (Some(info), None);
        }
        newer
    }

    /// Takes note that a peer asks for a piece of the snapshot at `slot`, when slots through `decided` are decided.
    pub fn piece_asked_for(&mut self, slot: Slot, decided: Slot, now: Time) {
        if self.last.is_some_and(|last| last.slot == slot) {
            self.fetched = Some(Fetched { at: now, through: decided });
        }
    }

    /// Takes note that a peer asks for slots from this one on.
    pub fn slots_asked_for(&mut self, from: Slot, now: Time) {
        if let Some(fetched) = self.fetched.as_mut().filter(|fetched| from <= fetched.through) {
            fetched.at = now;
        }
    }
}

impl Replica {
    pub(crate) fn take_snapshot_if_due(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.snapshots.is_due(now, self.decided.first(), &self.settings) {
            self.take_snapshot(actions);
        }
    }

    /// Takes a snapshot now if the last one does not hold everything that is decided. If it does, the log is
    /// released, which it may not have been since the start.
    pub(crate) fn take_snapshot_if_there_is_more(&mut self, actions: &mut Vec<Action>) {
        let held = self.snapshots.last().map_or(Slot::ZERO, |last| last.slot);
        if self.decided.last() > held {
            self.take_snapshot(actions);
        } else if held > Slot::ZERO {
            self.keep_parked(held, actions);
            actions.push(Action::Trim(held));
        }
    }

    fn take_snapshot(&mut self, actions: &mut Vec<Action>) {
        if self.catch_up.receiving().is_some() || !self.snapshots.begin() {
            return;
        }
        if self.has(Bug::TrimPastSnapshot) {
            self.snapshots.ended();
            let through = self.decided.last();
            self.decided.trim(through, 0, 0);
            actions.push(Action::Trim(through));
            return;
        }
        actions.push(Action::TakeSnapshot);
    }

    pub(crate) fn snapshot_taken(
        &mut self,
        now: Time,
        info: Option<SnapshotInfo>,
        actions: &mut Vec<Action>,
    ) {
        self.snapshots.ended();
        match info {
            Some(info) => self.adopt_snapshot(now, info, actions),
            None => self.snapshots.hasten(&self.settings),
        }
    }

    /// Takes note of a snapshot that another group took. What was executed of this one is in it.
    pub(crate) fn snapshot_shared(&mut self, now: Time, info: SnapshotInfo, actions: &mut Vec<Action>) {
        self.snapshots.skipped();
        self.adopt_snapshot(now, info, actions);
    }

    fn adopt_snapshot(&mut self, now: Time, info: SnapshotInfo, actions: &mut Vec<Action>) {
        if self.snapshots.keep(info) {
            self.decided.trim(info.slot, self.settings.keep_slots, self.settings.keep_bytes);
            self.carry_out(now, actions);
            self.write_trimmed(info.slot, actions);
            self.keep_parked(info.slot, actions);
            self.input(now, Input::Control(Control::Trim(info.slot)), actions);
            actions.push(Action::Trim(info.slot));
        }
    }

    /// A snapshot for a peer that lacks a slot which is not kept any more. If no snapshot covers the slot,
    /// one is taken: what is kept is bounded in bytes, so slots after the last snapshot may be gone, and if
    /// nothing more is decided no other snapshot becomes due.
    pub(crate) fn snapshot_offer(&mut self, lacks: Slot, actions: &mut Vec<Action>) -> Option<PeerMessage> {
        let covers = self.snapshots.last().filter(|last| last.slot >= lacks);
        if covers.is_none() && self.backlog.executed_through() >= lacks {
            self.take_snapshot(actions);
        }
        covers.map(|last| PeerMessage::SnapshotOffer { slot: last.slot, total: last.bytes })
    }

    /// Answers a peer that asks for a piece of a snapshot.
    pub(crate) fn answer_fetch_chunk(
        &mut self,
        now: Time,
        to: ReplicaId,
        slot: Slot,
        offset: u64,
        actions: &mut Vec<Action>,
    ) {
        self.snapshots.piece_asked_for(slot, self.decided.last(), now);
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
        self.backlog.executed(info.slot);
        if info.slot > self.decided.last() {
            assert_eq!(
                history.end().slot,
                info.slot,
                "what a snapshot brings is told before the next one is installed"
            );
            self.forwarded.skipped();
            self.changing.skipped();
            self.decided.restart_after(info.slot, ballots);
            self.history = self.of_snapshot(history);
            self.meet_earlier_life(actions);
            self.snapshots.skipped();
            self.adopt_snapshot(now, info, actions);
            self.adopt_group(now, group, actions);
            let voters = self.group.voter_sets();
            let delivered = std::sync::Arc::clone(self.history.delivered());
            if self.group.proposes_anywhere() {
                // Nobody orders them again, so that their results stay unknown.
                let unseen = self.requests.delivered_unseen(|id| delivered.voids(id));
                let error = RequestError::OutcomeUnknown;
                actions.extend(unseen.into_iter().map(|request| Action::RequestFailed { request, error }));
            }
            let installed = Control::Installed { slot: info.slot, ballots, voters, delivered };
            self.input(now, Input::Control(installed), actions);
        } else {
            self.adopt_snapshot(now, info, actions);
        }
        self.watch_backlog(now);
        self.carry_out(now, actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { snapshot_slots: 10, snapshot_log_bytes: 1 << 30, ..Settings::default() }
    }

    fn with(last: Option<(u64, u64)>, delivered: usize) -> Snapshots {
        let mut snapshots =
            Snapshots::new(last.map(|(slot, bytes)| SnapshotInfo { slot: Slot(slot), bytes }));
        (0..delivered).for_each(|_| snapshots.delivered(100));
        snapshots
    }

    fn is_due(snapshots: &Snapshots, now: Time) -> bool {
        snapshots.is_due(now, Slot(1), &settings())
    }

    #[test]
    fn a_large_snapshot_is_not_written_again_for_a_little_log() {
        assert!(!is_due(&with(None, 9), Time::ZERO) && is_due(&with(None, 10), Time::ZERO));
        assert!(is_due(&with(Some((5, SMALL_SNAPSHOT_BYTES)), 10), Time::ZERO));
        let mut large = with(Some((5, SMALL_SNAPSHOT_BYTES + 1)), 10);
        assert!(!is_due(&large, Time::ZERO));
        large.delivered(1 << 30);
        assert!(is_due(&large, Time::ZERO), "the log is bounded in any case");
    }

    #[test]
    fn a_snapshot_that_a_peer_fetches_stays_for_a_while() {
        let mut snapshots = with(Some((5, 1_000)), 39);
        snapshots.piece_asked_for(Slot(4), Slot(44), Time::ZERO);
        assert!(is_due(&snapshots, Time::ZERO), "it is another one that the peer asked for");
        snapshots.piece_asked_for(Slot(5), Slot(44), Time::ZERO);
        let timeout = settings().consensus.election_timeout * FETCHED_TIMEOUTS;
        let later = Time::ZERO + timeout + std::time::Duration::from_millis(1);
        assert!(!is_due(&snapshots, Time::ZERO + timeout) && is_due(&snapshots, later));
        assert!(snapshots.is_due(Time::ZERO, Slot(7), &settings()), "the log does not go on from it");
        snapshots.slots_asked_for(Slot(45), later);
        assert!(is_due(&snapshots, later), "that is asked for by any replica that lags");
        snapshots.slots_asked_for(Slot(44), later);
        assert!(!is_due(&snapshots, later));
        snapshots.delivered(100);
        assert!(is_due(&snapshots, later), "but not forever");
        assert!(snapshots.keep(SnapshotInfo { slot: Slot(45), bytes: 1_000 }));
        assert!(!snapshots.keep(SnapshotInfo { slot: Slot(44), bytes: 1_000 }), "it is older");
        let again = SnapshotInfo { slot: Slot(45), bytes: 2_000 };
        assert!(!snapshots.keep(again) && snapshots.last() == Some(again), "its file is another one now");
    }

    #[test]
    fn one_snapshot_is_taken_at_a_time_and_after_a_failure_the_next_comes_soon() {
        let mut snapshots = with(None, 10);
        assert!(snapshots.begin() && !snapshots.begin());
        snapshots.ended();
        snapshots.hasten(&settings());
        assert!(!is_due(&snapshots, Time::ZERO));
        snapshots.delivered(100);
        assert!(is_due(&snapshots, Time::ZERO) && snapshots.begin());
    }
}
