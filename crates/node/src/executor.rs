//! The executor's thread: applies decided batches of each group in order, answers queries, freezes and restores states.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use bytes::Bytes;
use synod_replica::{
    Answer, Event, Executor, Frozen, Installed, Outcome, RequestError, SnapshotInfo, StateMachine,
};
use synod_storage::SnapshotStore;
use synod_sync::{
    channel::{Receiver, Sender},
    time::Instant,
};
use synod_wire::{Ballots, Batch, GroupId, Slot};
use tokio::sync::oneshot;

use crate::{
    handle::Reply,
    inputs::{Inputs, Queue},
    protocol::Input,
    snapshots::SnapshotJob,
    status::{Ahead, Shared},
};

/// What the executor is asked to do, in order.
pub(crate) enum Job {
    /// Execute a batch, and answer these of its commands, in the order of their places.
    Execute { slot: Slot, ballots: Ballots, batch: Batch, replies: Vec<(usize, Reply)> },
    /// Answer queries from a state that includes `slot`.
    Query { slot: Slot, queries: Vec<(Bytes, Reply)> },
    /// Freeze the state for a snapshot.
    Freeze,
    /// Replace the state by a snapshot that was received and verified.
    Restore(SnapshotInfo),
    /// The state's slot and fingerprint.
    Digest(oneshot::Sender<(Slot, u64)>),
    /// No more jobs follow.
    Stop,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

/// Where jobs for the executor go: to its thread, or to the protocol's.
#[derive(Clone, Debug)]
pub(crate) enum JobSender {
    Thread(Sender<(GroupId, Job)>),
    Protocol(Inputs),
}

impl JobSender {
    /// False if nobody takes jobs any more.
    pub(crate) fn send(&self, group: GroupId, job: Job) -> bool {
        match self {
            JobSender::Thread(jobs) => jobs.send((group, job)).is_ok(),
            JobSender::Protocol(inputs) => inputs.send(Input::Job(group, job)),
        }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn len(&self) -> usize {
        match self {
            JobSender::Thread(jobs) => jobs.len(),
            JobSender::Protocol(_) => 0,
        }
    }
}

/// The executor of a group with what it needs to answer.
pub(crate) struct ExecutorStage<S> {
    pub(crate) group: GroupId,
    pub(crate) executor: Executor<S>,
    pub(crate) snapshots: Sender<(GroupId, SnapshotJob)>,
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ahead: Arc<Ahead>,
    /// Queries that wait for a slot.
    pub(crate) waiting: BTreeMap<Slot, Vec<(Bytes, Reply)>>,
}

/// Jobs taken before the protocol is told how far execution is.
const BURST_MAX: usize = 256;

/// The executors of all groups, on a thread of their own.
pub(crate) struct Executors<S> {
    /// By the number of the group.
    pub(crate) stages: Vec<ExecutorStage<S>>,
    pub(crate) events: Queue,
}

impl<S: StateMachine> Executors<S> {
    /// Runs until told to stop, or until nobody can send jobs any more.
    pub(crate) fn run(mut self, jobs: &Receiver<(GroupId, Job)>) {
        let mut worked = Vec::new();
        while let Ok(first) = jobs.recv() {
            let began = Instant::now();
            for (group, job) in std::iter::once(first).chain(jobs.try_iter().take(BURST_MAX)) {
                if matches!(job, Job::Stop) {
                    return;
                }
                let stage = &mut self.stages[usize::from(group.0)];
                if !worked.iter().any(|(known, _)| *known == group) {
                    worked.push((group, stage.executor.applied()));
                }
                if let Some(event) = stage.run_job(job) {
                    // A failed send means that the protocol's thread has ended; the stop follows.
                    let _ = self.events.send(Input::Event(group, event));
                }
            }
            let mut wake = false;
            for (group, before) in worked.drain(..) {
                let stage = &self.stages[usize::from(group.0)];
                if stage.executor.applied() > before {
                    stage.shared.executed.publish(stage.executor.applied().0);
                    stage.shared.watchers.tell();
                    stage.ahead.mark(group);
                    wake |= stage.shared.wake_when_executed.load(SeqCst);
                }
            }
            if wake {
                // A failed send means that the protocol's thread has ended; the stop follows.
                let _ = self.events.send(Input::Wake);
            }
            self.stages[0].shared.executor_busy.since(began);
        }
    }
}

impl<S: StateMachine> ExecutorStage<S> {
    /// Does one job; the event that the replica is to be told, if there is one.
    pub(crate) fn run_job(&mut self, job: Job) -> Option<Event> {
        match job {
            Job::Execute { slot, ballots, batch, replies } => self.execute(slot, ballots, &batch, replies),
            Job::Query { slot, queries } if slot <= self.executor.applied() => self.answer(queries),
            Job::Query { slot, queries } => self.waiting.entry(slot).or_default().extend(queries),
            Job::Freeze => {
                let slot = self.executor.applied();
                let frozen: Box<dyn Frozen> = self.executor.freeze();
                let _ = self.snapshots.send((self.group, SnapshotJob::Write { slot, frozen }));
            }
            Job::Restore(info) => return Some(self.restore(info)),
            Job::Digest(reply) => {
                let _ = reply.send((self.executor.applied(), self.executor.digest()));
            }
            Job::Stop => {}
        }
        None
    }

    fn execute(&mut self, slot: Slot, ballots: Ballots, batch: &Batch, replies: Vec<(usize, Reply)>) {
        let awaited = |place| {
            let found = replies.binary_search_by_key(&place, |(of, _)| *of);
            found.is_ok_and(|at| replies[at].1.is_awaited())
        };
        let mut outcomes = self.executor.execute(slot, ballots, batch, awaited);
        for (place, reply) in replies {
            let unknown = Outcome::Error(RequestError::OutcomeUnknown);
            let outcome = outcomes
                .get_mut(place)
                .map_or(unknown.clone(), |outcome| std::mem::replace(outcome, unknown));
            reply.send(match outcome {
                Outcome::Reply(bytes) => Ok(Answer::Whole(bytes)),
                Outcome::Error(error) => Err(error),
                // Its client has gone.
                Outcome::Unanswered => Err(RequestError::OutcomeUnknown),
            });
        }
        self.applied_more();
    }

    fn applied_more(&mut self) {
        // The clock first: a thread that sees the slot sees a clock that is no older.
        self.shared.clock_ms.set(u64::try_from(self.executor.clock().as_millis()).unwrap_or(u64::MAX));
        self.shared.executed.publish(self.executor.applied().0);
        self.ahead.mark(self.group);
        self.shared.client_sessions.set(self.executor.client_sessions() as u64);
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.executor.applied() {
                break;
            }
            let queries = entry.remove();
            self.answer(queries);
        }
    }

    fn answer(&self, queries: Vec<(Bytes, Reply)>) {
        for (query, reply) in queries {
            if reply.is_awaited() {
                reply.send(Ok(self.executor.answer(&query)));
            }
        }
    }

    fn restore(&mut self, info: SnapshotInfo) -> Event {
        let mut sound = true;
        // Slots that were executed meanwhile are not undone.
        if info.slot > self.executor.applied() {
            let opened = self.store.open_snapshot(info.slot).map_err(|error| error.to_string());
            let restored = opened
                .and_then(|mut reader| self.executor.restore(&mut reader).map_err(|error| error.to_string()));
            match restored {
                Ok(()) => tracing::info!(slot = info.slot.0, bytes = info.bytes, "installed a snapshot"),
                Err(error) => {
                    tracing::error!(slot = info.slot.0, error, "a received snapshot cannot be installed");
                    sound = false;
                }
            }
        }
        self.applied_more();
        let (ballots, group) = (self.executor.ballots(), self.executor.group().clone());
        let history = self.executor.history().clone();
        let installed = Installed { info, ballots, group, history };
        Event::SnapshotInstalled(sound.then(|| Box::new(installed)))
    }
}
