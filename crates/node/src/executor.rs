//! The executor's thread: applies decided batches of each group in order, answers queries, freezes and restores states.

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use synod_host::{Part, Reads};
use synod_replica::{
    Answer, Event, Executor, Frozen, Installed, Outcome, Replaced, RequestError, SnapshotInfo, StateMachine,
};
use synod_storage::SnapshotStore;
use synod_sync::{
    channel::{Receiver, Sender},
    processor_time,
    time::Instant,
};
use synod_wire::{Ballots, Batch, GroupId, Slot};
use tokio::sync::oneshot;

use crate::{
    handle::Reply,
    inputs::{Inputs, Queue},
    merged::{MergedStage, Queries},
    protocol::Input,
    snapshots::{self, SnapshotJob},
    status::{Ahead, Shared},
};

/// What the executor is asked to do, in order.
pub(crate) enum Job {
    /// Execute a batch, and answer these of its commands, in the order of their places.
    Execute { slot: Slot, ballots: Ballots, batch: Batch, replies: Vec<(usize, Reply)> },
    /// Answer queries from a state that includes `slot`.
    Query { slot: Slot, queries: Queries },
    /// Answer queries from a state that includes these slots of all groups.
    QueryAt { slots: Vec<Slot>, queries: Queries },
    /// Freeze the state for a snapshot.
    Freeze,
    /// Replace the state by a snapshot that was received and verified; with what was read of it, if that is possible on
    /// another thread.
    Restore(SnapshotInfo, Option<snapshots::ReadState>),
    /// How far the state is: the slot of the group, or those of all groups that have one order.
    Cut(oneshot::Sender<Vec<Slot>>),
    /// The state's slot and fingerprint.
    Digest(oneshot::Sender<(Slot, u64)>),
    /// Execute what the job before has left: the rest of a batch whose turn was over, or what has its turn in the
    /// common order of several groups.
    GoOn,
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
    pub(crate) waiting: Reads<Slot, Queries>,
    /// A batch of which a part is executed. The source of the jobs lets the rest follow before anything else.
    pub(crate) begun: Option<Part<Reply>>,
}

/// Jobs taken before the protocol is told how far execution is.
const BURST_MAX: usize = 256;

/// The executors of all groups, or that of all groups in one order.
pub(crate) enum Executors<S> {
    /// By the number of the group.
    Each(Vec<ExecutorStage<S>>),
    Merged(Box<MergedStage<S>>),
}

impl<S: StateMachine> Executors<S> {
    /// Does one job, or a part of it if `is_over` says that it is time for something else; the events that the replicas
    /// of groups are to be told.
    pub(crate) fn run_job(
        &mut self,
        group: GroupId,
        job: Job,
        is_over: impl FnMut() -> bool,
    ) -> Vec<(GroupId, Event)> {
        let (began, worked_before) = (Instant::now(), processor_time());
        let events = match self {
            Executors::Each(stages) => {
                let event = stages[usize::from(group.0)].run_job(job, is_over);
                event.into_iter().map(|event| (group, event)).collect()
            }
            Executors::Merged(stage) => stage.run_job(group, job),
        };
        let (took, shared) = (began.elapsed(), self.progress(GroupId::FIRST).1);
        shared.executor_jobs.record(took);
        shared.executor_longest.raise(nanos(took));
        shared.executor_most_work.raise(nanos(processor_time().saturating_sub(worked_before)));
        events
    }

    /// Whether the last job of the group has left something that must be done before its next: a job bounds what it
    /// executes, so that the thread may look at something else.
    pub(crate) fn has_more(&self, group: GroupId) -> bool {
        match self {
            Executors::Each(stages) => stages[usize::from(group.0)].begun.is_some(),
            Executors::Merged(stage) => stage.has_more(),
        }
    }

    /// Runs until told to stop, or until nobody can send jobs any more.
    pub(crate) fn run(mut self, jobs: &Receiver<(GroupId, Job)>, protocol: &Queue) {
        let mut worked = Vec::new();
        while let Ok(first) = jobs.recv() {
            let began = Instant::now();
            for (group, job) in std::iter::once(first).chain(jobs.try_iter().take(BURST_MAX)) {
                if matches!(job, Job::Stop) {
                    return;
                }
                if !worked.iter().any(|(known, _)| *known == group) {
                    self.note_before(group, &mut worked);
                }
                let mut job = Some(job);
                while let Some(next) = job.take() {
                    for (group, event) in self.run_job(group, next, || false) {
                        // A failed send means that the protocol's thread has ended; the stop follows.
                        let _ = protocol.send(Input::Event(group, event));
                    }
                    job = self.has_more(group).then_some(Job::GoOn);
                }
            }
            let mut wake = false;
            for (group, before) in worked.drain(..) {
                let (applied, shared, ahead) = self.progress(group);
                if applied > before {
                    shared.executed.publish(applied.0);
                    shared.watchers.tell();
                    ahead.mark(group);
                    wake |= shared.wake_when_executed.load(SeqCst);
                }
            }
            if wake {
                // A failed send means that the protocol's thread has ended; the stop follows.
                let _ = protocol.send(Input::Wake);
            }
            self.progress(GroupId::FIRST).1.executor_busy.since(began);
        }
    }

    /// How far the groups are that work for `group` may bring further.
    fn note_before(&self, group: GroupId, worked: &mut Vec<(GroupId, Slot)>) {
        match self {
            Executors::Each(_) => worked.push((group, self.progress(group).0)),
            Executors::Merged(stage) => {
                worked.extend((0u16..).map(GroupId).zip(stage.applied()));
            }
        }
    }

    fn progress(&self, group: GroupId) -> (Slot, &Shared, &Ahead) {
        match self {
            Executors::Each(stages) => {
                let stage = &stages[usize::from(group.0)];
                (stage.executor.applied(), &stage.shared, &stage.ahead)
            }
            Executors::Merged(stage) => (stage.applied_of(group), stage.shared(group), stage.ahead()),
        }
    }
}

impl<S: StateMachine> ExecutorStage<S> {
    /// Does one job, or a part of it if `is_over` says that it is time for something else; the event that the replica
    /// is to be told, if there is one.
    ///
    /// # Panics
    /// The job before was not done, and something other than its rest comes.
    pub(crate) fn run_job(&mut self, job: Job, is_over: impl FnMut() -> bool) -> Option<Event> {
        let goes_on = matches!(job, Job::GoOn | Job::Stop);
        assert!(goes_on || self.begun.is_none(), "a batch is executed whole before anything else is done");
        match job {
            Job::Execute { slot, ballots, batch, replies } => {
                self.begun = Some(Part::begin(&mut self.executor, slot, ballots, batch, replies));
                self.go_on(is_over);
            }
            Job::Query { slot, queries } if slot <= self.executor.applied() => {
                answer(&self.executor, queries)
            }
            Job::Query { slot, queries } => self.waiting.push(slot, queries),
            Job::QueryAt { slots, queries } => {
                return self.run_job(Job::Query { slot: slots[0], queries }, is_over);
            }
            Job::Freeze => {
                let slot = self.executor.applied();
                let frozen: Box<dyn Frozen> = self.executor.freeze();
                let _ = self.snapshots.send((self.group, SnapshotJob::Write { slot, frozen, cut: None }));
            }
            Job::Restore(info, read) => return Some(self.restore(info, read)),
            Job::Digest(reply) => {
                let _ = reply.send((self.executor.applied(), self.executor.digest()));
            }
            Job::Cut(reply) => {
                let _ = reply.send(vec![self.executor.applied()]);
            }
            Job::GoOn => self.go_on(is_over),
            Job::Stop => {}
        }
        None
    }

    /// Executes the batch that was begun, or a part of it. Nobody learns of a part: what waits for the slot is told
    /// once the batch is done.
    fn go_on(&mut self, is_over: impl FnMut() -> bool) {
        let Some(part) = self.begun.take() else { return };
        match part.go_on(&mut self.executor, awaits, is_over) {
            ControlFlow::Continue(rest) => self.begun = Some(rest),
            ControlFlow::Break((replies, outcomes)) => {
                reply_to(replies, outcomes);
                self.applied_more();
            }
        }
    }

    /// Shows how far the state is.
    pub(crate) fn applied_more(&mut self) {
        // The clock first: a thread that sees the slot sees a clock that is no older.
        self.shared.set_clock(self.executor.clocked(GroupId::FIRST));
        self.shared.executed.publish(self.executor.applied().0);
        self.ahead.mark(self.group);
        self.shared.client_sessions.set(self.executor.client_sessions() as u64);
        let applied = self.executor.applied();
        self.waiting.reached(|slot| *slot <= applied).for_each(|queries| answer(&self.executor, queries));
    }

    fn restore(&mut self, info: SnapshotInfo, read: Option<snapshots::ReadState>) -> Event {
        let mut sound = true;
        // Slots that were executed meanwhile are not undone.
        if info.slot > self.executor.applied() {
            match self.put(info, read) {
                Ok(()) => tracing::info!(slot = info.slot.0, bytes = info.bytes, "installed a snapshot"),
                Err(error) => {
                    tracing::error!(slot = info.slot.0, error, "a received snapshot cannot be installed");
                    sound = false;
                }
            }
        } else if let Some(read) = read {
            self.free(Box::new(read));
        }
        self.applied_more();
        let installed = Installed { info, ..self.executor.installed(GroupId::FIRST, info.bytes) };
        Event::SnapshotInstalled(sound.then(|| Box::new(installed)))
    }

    fn put(&mut self, info: SnapshotInfo, read: Option<snapshots::ReadState>) -> Result<(), String> {
        match read {
            Some(read) => {
                let replaced =
                    self.executor.install(snapshots::of_kind(read)?).map_err(|error| error.to_string())?;
                self.free(replaced);
            }
            None => {
                let mut file = self.store.open_snapshot(info.slot).map_err(|error| error.to_string())?;
                self.executor.restore(&mut file).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Has a state freed on another thread.
    fn free(&self, replaced: Replaced) {
        // A failed send means that the replica is stopping.
        let _ = self.snapshots.send((self.group, SnapshotJob::Free(replaced)));
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Answers those who wait for the outcomes of a batch's commands.
pub(crate) fn reply_to(replies: Vec<(usize, Reply)>, mut outcomes: Vec<Outcome>) {
    for (place, reply) in replies {
        let unknown = Outcome::Error(RequestError::OutcomeUnknown);
        let outcome =
            outcomes.get_mut(place).map_or(unknown.clone(), |outcome| std::mem::replace(outcome, unknown));
        reply.send(match outcome {
            Outcome::Reply(bytes) => Ok(Answer::Whole(bytes)),
            Outcome::Error(error) => Err(error),
            // Its client has gone.
            Outcome::Unanswered => Err(RequestError::OutcomeUnknown),
        });
    }
}

/// Whether a client waits for the outcome of the command at this place.
pub(crate) fn awaits(replies: &[(usize, Reply)], place: usize) -> bool {
    let found = replies.binary_search_by_key(&place, |(of, _)| *of);
    found.is_ok_and(|at| replies[at].1.is_awaited())
}

/// Answers clients from the present state.
pub(crate) fn answer<S: StateMachine>(executor: &Executor<S>, queries: Queries) {
    for (query, reply) in queries {
        if reply.is_awaited() {
            reply.send(Ok(executor.answer(&query)));
        }
    }
}
