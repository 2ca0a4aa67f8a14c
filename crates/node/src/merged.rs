//! The executor of several groups in one order ([`MergedExecutor`]), with what it needs to answer.
//!
//! A snapshot of it holds all groups at one point of the common order, whichever group asked for it
//! ([`synod_replica::MergedFiles`]).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use synod_host::{MERGED_BATCHES_MAX, Reads};
use synod_replica::{Event, Executor, MergedExecutor, RequestError, Restored, SnapshotInfo, StateMachine};
use synod_storage::SnapshotStore;
use synod_sync::{channel::Sender, time::Instant};
use synod_wire::{GroupId, Slot};

use crate::{
    executor::{Job, answer, awaits, reply_to},
    handle::Reply,
    snapshots::{self, SnapshotJob},
    status::{Ahead, Gauge, Shared},
};

/// Executes the batches of all groups when it is their turn.
pub(crate) struct MergedStage<S> {
    merged: MergedExecutor<S, Replies>,
    groups: Vec<MergedGroup>,
    snapshots: Sender<(GroupId, SnapshotJob)>,
    ahead: Arc<Ahead>,
    /// Queries that wait for slots of all groups.
    waiting: Reads<Vec<Slot>, Queries>,
    /// The group that all others wait for.
    stalled: Option<GroupId>,
    /// The last job left batches that have their turn.
    has_more: bool,
}

/// Those who wait for the outcomes of a batch's commands, with the places of these.
type Replies = Vec<(usize, Reply)>;

/// What a client asks the state machine.
pub(crate) type Query = (Bytes, Reply);

/// What clients ask the state machine.
pub(crate) type Queries = Vec<Query>;

/// What the executor needs of each group.
pub(crate) struct MergedGroup {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<SnapshotStore>,
}

impl<S: StateMachine> MergedStage<S> {
    pub(crate) fn new(
        executor: Executor<S>,
        groups: Vec<MergedGroup>,
        snapshots: Sender<(GroupId, SnapshotJob)>,
        ahead: Arc<Ahead>,
    ) -> MergedStage<S> {
        let merged = MergedExecutor::of(executor);
        let (waiting, stalled, has_more) = Default::default();
        let stage = MergedStage { merged, groups, snapshots, ahead, waiting, stalled, has_more };
        // What the snapshot holds: it may be long until something is executed, if a group stalls.
        (0..stage.groups.len() as u16).for_each(|group| stage.applied_more(GroupId(group)));
        stage
    }

    /// Tells the first group, which moves the clock, what it shows: any group may execute what the state machine waits
    /// for now.
    fn clock_shown(&self) {
        let clock = self.merged.executor().clocked(GroupId::FIRST);
        if self.groups[0].shared.clock() != clock {
            self.groups[0].shared.set_clock(clock);
            self.ahead.mark(GroupId::FIRST);
        }
    }

    /// How far each group is executed.
    pub(crate) fn applied(&self) -> Vec<Slot> {
        self.merged.executor().cut().slots
    }

    pub(crate) fn applied_of(&self, group: GroupId) -> Slot {
        self.merged.executor().applied_of(group)
    }

    pub(crate) fn shared(&self, group: GroupId) -> &Shared {
        &self.groups[usize::from(group.0)].shared
    }

    pub(crate) fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Does one job; the events that the replicas of groups are to be told.
    pub(crate) fn run_job(&mut self, group: GroupId, job: Job) -> Vec<(GroupId, Event)> {
        let executor = self.merged.executor();
        match job {
            Job::Execute { slot, ballots, batch, replies } => {
                match self.merged.take(group, slot, ballots, batch, replies) {
                    Some(replies) => give_up(replies),
                    None => self.execute(),
                }
            }
            Job::Query { queries, .. } => answer(executor, queries),
            Job::QueryAt { slots, queries } => {
                self.waiting.push(slots, queries);
                self.answer();
            }
            Job::Freeze => match self.merged.freeze(group) {
                Some((slot, cut, frozen)) => {
                    let _ = self.snapshots.send((group, SnapshotJob::Write { slot, frozen, cut: Some(cut) }));
                }
                None => return vec![(group, Event::SnapshotTaken(None))],
            },
            Job::Restore(info, read) => return self.restore(group, info, read),
            Job::Digest(reply) => {
                let _ = reply.send((Slot(executor.cut().order), executor.digest()));
            }
            Job::Cut(reply) => {
                let _ = reply.send(executor.cut().slots);
            }
            Job::GoOn => self.execute(),
            Job::Stop => {}
        }
        Vec::new()
    }

    /// Executes what has its turn.
    fn execute(&mut self) {
        self.has_more = true;
        for _ in 0..MERGED_BATCHES_MAX {
            let executed = self.merged.execute(|replies, place| awaits(replies, place));
            let Some((group, _, replies, outcomes)) = executed else {
                self.has_more = false;
                break;
            };
            reply_to(replies, outcomes);
            self.applied_more(group);
        }
        let waits = self.merged.waits_for();
        if waits != self.stalled {
            self.stalled = waits;
            self.groups[0].shared.merge.waits_for(waits);
        }
        self.answer();
    }

    fn applied_more(&self, group: GroupId) {
        self.clock_shown();
        let (executor, shared) = (self.merged.executor(), self.shared(group));
        // The clock first: a thread that sees the slot sees a clock that is no older.
        shared.set_clock(executor.clocked(group));
        shared.executed.publish(executor.applied_of(group).0);
        self.ahead.mark(group);
        shared.position.set(self.merged.place_of(group).position);
        self.groups[0].shared.client_sessions.set(executor.client_sessions() as u64);
    }

    /// Answers the queries that have waited for what is executed now.
    fn answer(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let applied = self.applied();
        let reached = |slots: &[Slot]| slots.iter().zip(&applied).all(|(slot, applied)| slot <= applied);
        let executor = self.merged.executor();
        self.waiting.reached(|slots| reached(slots)).for_each(|queries| answer(executor, queries));
    }

    /// Goes on from a snapshot that was received for a group, and tells all groups.
    fn restore(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        read: Option<snapshots::ReadState>,
    ) -> Vec<(GroupId, Event)> {
        let outcome = match read {
            Some(read) => self.install(group, info, read),
            None => {
                let store = Arc::clone(&self.groups[usize::from(group.0)].store);
                let open = || store.open_snapshot(info.slot).map_err(|error| error.to_string());
                self.merged.restore(group, info, open)
            }
        };
        // Before its replicas hear of it. A failed send means that the replica is stopping.
        let _ =
            self.snapshots.send((group, SnapshotJob::Restored { slot: info.slot, sound: outcome.is_ok() }));
        match outcome {
            Ok(Restored { events, gone }) => {
                tracing::info!(%group, slot = info.slot.0, bytes = info.bytes, "installed a snapshot of all groups");
                gone.into_iter().for_each(give_up);
                (0..self.groups.len() as u16).for_each(|group| self.applied_more(GroupId(group)));
                self.execute();
                events
            }
            Err(error) => {
                tracing::error!(%group, slot = info.slot.0, error, "a received snapshot cannot be installed");
                vec![(group, Event::SnapshotInstalled(None))]
            }
        }
    }

    fn install(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        read: snapshots::ReadState,
    ) -> Result<Restored<Replies>, String> {
        let (restored, replaced) = self.merged.install(group, info, snapshots::of_kind(read)?)?;
        // A failed send means that the replica is stopping.
        let _ = self.snapshots.send((group, SnapshotJob::Free(replaced)));
        Ok(restored)
    }
}

fn give_up(replies: Replies) {
    replies.into_iter().for_each(|(_, reply)| reply.send(Err(RequestError::OutcomeUnknown)));
}

/// What anybody sees of the merge.
#[derive(Debug)]
pub(crate) struct MergeView {
    began: Instant,
    /// The number of the group that the others wait for, and one more; 0 if they wait for none.
    waits_for: Gauge,
    /// Nanoseconds from `began` until they began to wait for it.
    since: Gauge,
    /// Nanoseconds that they have waited before, for whichever group.
    waited: Gauge,
}

impl Default for MergeView {
    fn default() -> MergeView {
        let [waits_for, since, waited] = Default::default();
        MergeView { began: Instant::now(), waits_for, since, waited }
    }
}

impl MergeView {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn waits_for(&self, group: Option<GroupId>) {
        let now = self.now();
        if self.waits_for.get() > 0 {
            self.waited.add(now.saturating_sub(self.since.get()));
        }
        self.since.set(now);
        self.waits_for.set(group.map_or(0, |group| u64::from(group.0) + 1));
    }

    /// The group that the others wait for, and for how long they have.
    pub(crate) fn stall(&self) -> Option<(GroupId, Duration)> {
        let group = self.waits_for.get().checked_sub(1)?;
        let since = Duration::from_nanos(self.now().saturating_sub(self.since.get()));
        Some((GroupId(u16::try_from(group).ok()?), since))
    }

    /// For how long a batch waited for another group's, in all.
    pub(crate) fn waited(&self) -> Duration {
        let now = self.stall().map_or(Duration::ZERO, |(_, since)| since);
        Duration::from_nanos(self.waited.get()) + now
    }
}
