//! Snapshots of what was executed, in the place of the log before them: when one is due, which one is kept, and how one
//! comes from another replica.
//!
//! A snapshot is the whole state. Still, snapshots cost what changed and not what is there: a large one is due only
//! after the log has grown by half of what the last one took ([`worth_a_snapshot`]). So for each byte of log about two
//! bytes of snapshots are written, and at most three while the state only grows, however large the state is; and a
//! restart executes at most half as much log as it reads of a snapshot, or what the operator allows.

use synod_consensus::{Bug, Control, Input};
use synod_wire::{ReplicaId, Slot, Time};

use crate::{
    PeerMessage, Replica, RequestError, Settings,
    events::{Action, Installed, SnapshotInfo},
};

/// A snapshot of at most this size is written whenever one is due.
const SMALL_SNAPSHOT_BYTES: u64 = 16 << 20;

/// The log that follows a large snapshot grows to one part in this many of the snapshot before the next one is due.
///
/// More log makes snapshots rarer, and a restart longer: executing a byte of log again takes several times as long as
/// reading a byte of a snapshot.
const LOG_PER_SNAPSHOT: u64 = 2;

/// The bytes of log that are worth writing a snapshot as large as the last one, which had this many bytes.
#[must_use]
pub fn worth_a_snapshot(bytes: u64) -> u64 {
    if bytes > SMALL_SNAPSHOT_BYTES { bytes / LOG_PER_SNAPSHOT } else { 0 }
}

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

    /// Records that a batch of this many bytes was delivered.
    pub fn delivered(&mut self, bytes: usize) {
        self.slots_since += 1;
        self.bytes_since += bytes as u64;
    }

    /// Whether the next snapshot is due, when slots from `kept` on are kept.
    pub fn is_due(&self, now: Time, kept: Slot, settings: &Settings) -> bool {
        // The next snapshot takes the place of the one that a peer fetches, and of the log after it. The peer
        // would have to begin again, and would never end if that always happens before it has all of it.
        let timeout = settings.consensus.election_timeout * FETCHED_TIMEOUTS;
        let fetched = self.fetched.is_some_and(|fetched| now.since(fetched.at) <= timeout);
        let follows = self.last.is_some_and(|last| kept <= last.slot.next());
        let stays = if fetched && follows { FETCHED_SNAPSHOT_STAYS } else { 1 };
        let (slots, bytes) = (self.slots_since / stays, self.bytes_since / stays);
        bytes >= self.worth_it() && (slots >= settings.snapshot_slots || bytes >= settings.snapshot_log_bytes)
    }

    /// The bytes of log that are worth the next one.
    fn worth_it(&self) -> u64 {
        self.last.map_or(0, |last| worth_a_snapshot(last.bytes))
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

    /// Records that the snapshot that was begun is taken, or could not be.
    pub fn ended(&mut self) {
        self.taking = false;
    }

    /// Makes the next snapshot due sooner than after a whole interval, even if the state is large.
    pub fn hasten(&mut self, settings: &Settings) {
        let soon = |since: &mut u64, due: u64| *since = since.saturating_add(due / 10 * 9);
        let bytes = settings.snapshot_log_bytes.max(self.worth_it());
        soon(&mut self.slots_since, settings.snapshot_slots);
        soon(&mut self.bytes_since, bytes);
    }

    /// Records that a snapshot took the place of slots that were not delivered here.
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

    /// Records the size of the file that holds `slot` now: peers are offered what they will be sent. Of merged
    /// groups several files may hold a group through one slot, and two threads tell of them.
    pub fn has_size(&mut self, slot: Slot, bytes: u64) {
        if let Some(last) = self.last.as_mut().filter(|last| last.slot == slot && bytes > 0) {
            last.bytes = bytes;
        }
    }

    /// Records that a peer asks for a piece of the snapshot at `slot`, when slots through `decided` are decided.
    pub fn piece_asked_for(&mut self, slot: Slot, decided: Slot, now: Time) {
        if self.last.is_some_and(|last| last.slot == slot) {
            self.fetched = Some(Fetched { at: now, through: decided });
        }
    }

    /// Records that a peer asks for slots from this one on.
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

    /// Records a snapshot that another group took. What was executed of this one is in it.
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
            self.fail_delivered_unseen(now, actions);
            let installed = Control::Installed { slot: info.slot, ballots, voters, delivered };
            self.input(now, Input::Control(installed), actions);
        } else {
            self.adopt_snapshot(now, info, actions);
        }
        self.watch_backlog(now);
        self.carry_out(now, actions);
    }

    /// Fails the requests of batches that a snapshot holds, where nobody would order them again, so that their results
    /// stay unknown. Where the leader orders what it is sent, it orders them again, and sessions have the results.
    pub(crate) fn fail_delivered_unseen(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.group.proposes_anywhere() {
            return;
        }
        let delivered = std::sync::Arc::clone(self.history.delivered());
        let unseen = self.requests.delivered_unseen(now, |id| delivered.voids(id));
        let error = RequestError::OutcomeUnknown;
        actions.extend(unseen.into_iter().map(|request| Action::RequestFailed { request, error }));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use synod_consensus::{Options, Overrides};
    use synod_wire::{Ballot, Ballots, Batch, CommandKind, GroupId, Incarnation, Lsn, SessionId};

    use super::*;
    use crate::{
        Change, ChangeRequest, Event, Executor, Group, Recovered, RequestId, executor::tests::Tape,
        requests::Taker,
    };

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
        large.delivered(SMALL_SNAPSHOT_BYTES as usize / 2);
        assert!(is_due(&large, Time::ZERO), "after half as much log as the snapshot has");
        // A snapshot of which half is more than the limit of the log.
        let mut huge = with(Some((5, 8 << 30)), 10);
        huge.delivered(2 << 30);
        assert!(!is_due(&huge, Time::ZERO));
        huge.delivered(2 << 30);
        assert!(is_due(&huge, Time::ZERO), "the log is bounded in any case");
    }

    /// The state grows to a hundred times what the log may have, and changes all the time.
    #[test]
    fn snapshots_cost_what_changed_and_not_what_is_there() {
        const WRITE: u64 = 1 << 20;
        let settings = Settings { snapshot_log_bytes: 32 << 20, ..settings() };
        let mut snapshots = Snapshots::new(None);
        let (mut logged, mut written, mut since, mut most) = (0, 0, 0, 0);
        for slot in 1..=20_000 {
            snapshots.delivered(WRITE as usize);
            (logged, since) = (logged + WRITE, since + WRITE);
            let state = logged.min(100 * settings.snapshot_log_bytes);
            most = most.max(since);
            if snapshots.is_due(Time::ZERO, Slot(1), &settings) {
                assert!(snapshots.begin());
                assert!(snapshots.keep(SnapshotInfo { slot: Slot(slot), bytes: state }));
                snapshots.ended();
                (written, since) = (written + state, 0);
            }
        }
        assert!(
            written > logged && written <= 3 * logged,
            "{written} bytes of snapshots for {logged} of log"
        );
        assert!(most <= 51 * settings.snapshot_log_bytes, "{most} bytes of log");
    }

    /// After a failure, what was due does not wait for half a snapshot's worth of log.
    #[test]
    fn a_large_snapshot_that_failed_comes_soon_again() {
        let settings = Settings { snapshot_log_bytes: 32 << 20, ..settings() };
        let large = SnapshotInfo { slot: Slot(5), bytes: 1 << 30 };
        let mut snapshots = Snapshots::new(Some(large));
        snapshots.delivered(512 << 20);
        assert!(snapshots.is_due(Time::ZERO, Slot(1), &settings) && snapshots.begin());
        snapshots.ended();
        snapshots.hasten(&settings);
        assert!(!snapshots.is_due(Time::ZERO, Slot(1), &settings));
        (0..10).for_each(|_| snapshots.delivered(6 << 20));
        assert!(snapshots.is_due(Time::ZERO, Slot(1), &settings));
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

    /// A peer that begins with a file shows which one that is; another one may be in the middle of an older one.
    #[test]
    fn what_is_offered_has_the_size_of_what_is_sent() {
        let group = Group::of(&Options::default(), [1, 2].map(ReplicaId));
        let mut executor = Executor::new(Tape::default(), group.clone());
        executor.execute(Slot(1), Ballots::ZERO, &Batch::noop(), |_| false);
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: Some(executor.installed(GroupId::FIRST, 1_000)),
            amnesia: false,
            birth: 1,
            incarnation: Incarnation(1),
            nonce: 0,
            met_all: true,
        };
        let (now, actions) = (Time::ZERO, &mut Vec::new());
        let mut replica = Replica::start(settings(), ReplicaId(1), group, recovered, now, actions);
        let mut offered_after = |slot, offset, total| {
            let (to, slot, bytes) = (ReplicaId(2), Slot(slot), Bytes::new());
            replica.step(now, Event::ChunkRead { to, slot, offset, total, bytes }, actions);
            replica.status().snapshot.map(|info| info.bytes)
        };
        assert_eq!(offered_after(2, 0, 2_000), Some(1_000), "it is another one");
        assert_eq!(offered_after(1, 0, 0), Some(1_000), "it could not be read");
        assert_eq!(offered_after(1, 500, 2_000), Some(1_000), "it is the one that was offered before");
        assert_eq!(offered_after(1, 0, 2_000), Some(2_000));
    }

    /// With `leader` the leader would order the batch again. Once every replica disseminates its own, nobody does.
    #[test]
    fn what_a_snapshot_delivered_before_the_epoch_is_not_waited_for_in_it() {
        let group = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: None,
            amnesia: false,
            birth: 1,
            incarnation: Incarnation(1),
            nonce: 0,
            met_all: true,
        };
        let (now, actions) = (Time::ZERO, &mut Vec::new());
        let mut replica = Replica::start(settings(), ReplicaId(1), group.clone(), recovered, now, actions);
        replica.requests.add_own(now, Some(RequestId(7)), CommandKind::Apply, b"a");
        let sent = replica.requests.next_batch(now, Taker::Leader(Ballot::ZERO)).unwrap();
        let mut executor = Executor::new(Tape::default(), group.clone());
        executor.execute(Slot(1), Ballots::ZERO, &sent, |_| false);
        let installed = Some(Box::new(executor.installed(GroupId::FIRST, 1_000)));
        replica.step(now, Event::SnapshotInstalled(installed), actions);
        let failed = |actions: &[Action]| {
            let is_it = |action: &Action| {
                matches!(
                    action,
                    Action::RequestFailed { request: RequestId(7), error: RequestError::OutcomeUnknown }
                )
            };
            actions.iter().any(is_it)
        };
        assert!(!failed(actions), "the leader orders it again, and then the answer is known");

        let mut options = Options::default();
        options.dissemination = synod_consensus::Dissemination::Balanced;
        let (protocol, election) = (group.protocol, group.election);
        let change = Change::Order { protocol, election, overrides: Overrides::shared(&options) };
        let change = ChangeRequest { expected: group.version, change }.encode();
        let mut builder = synod_wire::BatchBuilder::new();
        let payload = change.to_bytes();
        builder.push_as(CommandKind::Reconfigure, SessionId(9), 1, 1, &payload);
        replica.deliver(now, Slot(2), Ballots::ZERO, builder.finish(), actions);
        replica.carry_out(now, actions);
        assert!(replica.group().disseminates() && failed(actions));
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
