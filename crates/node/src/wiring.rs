//! The stages of a replica, and the queues between them.

use std::{collections::VecDeque, io, sync::atomic::AtomicU64};

use synod_host::{Bundles, Entry, Host, Parting, SnapshotBook, Started};
use synod_replica::{Executor, MergedFiles, Pace, StateMachine};
use synod_storage::{DataDir, PeerBook, Wal};
use synod_sync::{
    Arc,
    channel::{Receiver, Sender, unbounded},
    net::Bell,
};
use synod_transport::Inbox;
use synod_wire::{GroupId, Lsn, Time};
use tokio::sync::Semaphore;

#[cfg(feature = "metrics")]
use crate::metrics::Queues;
use crate::{
    Config, Handle, Merging, Threads,
    event_loop::Task,
    executor::{ExecutorStage, Executors, Job, JobSender},
    handle::Inner,
    hosted::Hosted,
    inputs::{Inputs, InputsEnd, Queue},
    log::{LogJob, LogStage, LoggedGroup},
    merged::{MergedGroup, MergedStage},
    node::{Begun, Notes},
    protocol::{Clock, Common, ProtocolStage},
    snapshots::{GroupSnapshots, Reader, SnapshotJob, SnapshotStage},
    status::{Ahead, Shared},
    view::Watched,
};

/// Events of peers and requests of clients that may wait for the protocol's thread. A thread that brings more waits,
/// and with it, in the end, the connection that it came from.
const INPUTS_MAX: usize = 8192;

/// The queues between the stages, and what more than one of them knows.
pub(crate) struct Wiring {
    /// How many groups there are.
    count: usize,
    compact: bool,
    /// Wakes the protocol's thread, where that reads from peers itself.
    pub(crate) bell: Option<Arc<Bell>>,
    /// For the protocol's thread.
    pub(crate) inputs: Queue,
    /// The same for tasks, which must not wait.
    requests: Inputs,
    /// For the executor, on whichever thread that runs.
    pub(crate) executor: JobSender,
    jobs: Sender<(GroupId, Job)>,
    pub(crate) snapshots: Sender<(GroupId, SnapshotJob)>,
    pub(crate) log: Sender<LogJob>,
    /// How far the log is durable, for peers.
    pub(crate) told: Arc<AtomicU64>,
    ahead: Arc<Ahead>,
}

/// The other ends of the queues, one for each stage.
pub(crate) struct Ends {
    pub(crate) inputs: InputsEnd,
    pub(crate) jobs: Receiver<(GroupId, Job)>,
    pub(crate) snapshots: Receiver<(GroupId, SnapshotJob)>,
    pub(crate) log: Receiver<LogJob>,
}

/// What the groups share on the protocol's thread.
pub(crate) struct Shares {
    pub(crate) book: Arc<PeerBook>,
    /// The peers that the groups know.
    pub(crate) parting: Parting<String>,
    /// The replica lost something that it learns again.
    pub(crate) amnesia: bool,
}

impl std::fmt::Debug for Wiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wiring").field("groups", &self.count).field("compact", &self.compact).finish()
    }
}

impl Wiring {
    /// The queues of a replica of `count` groups, whose log is durable through `durable`.
    ///
    /// # Errors
    /// The system gives no socket that wakes a thread.
    pub(crate) fn new(config: &Config, count: usize, durable: Lsn) -> io::Result<(Wiring, Ends)> {
        let compact = config.threads == Threads::Compact;
        let bell = if compact { Some(Arc::new(Bell::new()?)) } else { None };
        let (inputs, inputs_end) = Queue::new(INPUTS_MAX, bell.clone());
        let (requests, inputs_end) = Inputs::new(inputs.clone(), inputs_end);
        let (jobs, jobs_end) = unbounded();
        let (snapshots, snapshots_end) = unbounded();
        let (log, log_end) = unbounded();
        let executor =
            if compact { JobSender::Protocol(requests.clone()) } else { JobSender::Thread(jobs.clone()) };
        let (told, ahead) = (Arc::new(AtomicU64::new(durable.0)), Arc::new(Ahead::new(count)));
        let wiring =
            Wiring { count, compact, bell, inputs, requests, executor, jobs, snapshots, log, told, ahead };
        let ends = Ends { inputs: inputs_end, jobs: jobs_end, snapshots: snapshots_end, log: log_end };
        Ok((wiring, ends))
    }

    pub(crate) fn log_stage(
        &self,
        wal: Wal,
        begun: &[Begun],
        transport: &Arc<dyn synod_transport::Sender>,
        durable: Lsn,
        merged: bool,
    ) -> LogStage {
        let groups = begun.iter().map(|group| LoggedGroup::new(Arc::clone(&group.shared), durable));
        LogStage {
            wal,
            groups: groups.collect(),
            merged,
            ahead: Arc::clone(&self.ahead),
            events: self.inputs.clone(),
            transport: Arc::clone(transport),
            bundles: Bundles::new(self.count),
            told: Arc::clone(&self.told),
            trims: Vec::new(),
            loss_made_good: false,
            asked_for: 0,
        }
    }

    /// `merged`: the snapshots of groups that have one order.
    pub(crate) fn snapshot_stage(
        &self,
        begun: &[Begun],
        merged: Option<MergedFiles>,
        reader: Option<Reader>,
        clock: Clock,
    ) -> SnapshotStage {
        SnapshotStage {
            groups: begun.iter().map(|group| GroupSnapshots::new(Arc::clone(&group.store))).collect(),
            book: SnapshotBook::new(begun.len(), merged),
            clock,
            events: self.inputs.clone(),
            executor: self.executor.clone(),
            shared: Arc::clone(&begun[0].shared),
            reader,
            waiting: Default::default(),
            stopping: false,
        }
    }

    /// What executes the groups: on the protocol's thread, or on one of its own.
    pub(crate) fn executors<S: StateMachine>(
        &self,
        config: &Config,
        executors: Vec<Executor<S>>,
        begun: &[Begun],
    ) -> (Option<Executors<S>>, Option<Executors<S>>) {
        let executors = match config.merging {
            Some(_) => Executors::Merged(Box::new(self.merged_stage(executors, begun))),
            None => {
                let stages =
                    executors.into_iter().zip(begun).map(|(executor, group)| self.stage(executor, group));
                Executors::Each(stages.collect())
            }
        };
        if self.compact { (Some(executors), None) } else { (None, Some(executors)) }
    }

    fn merged_stage<S: StateMachine>(&self, executors: Vec<Executor<S>>, begun: &[Begun]) -> MergedStage<S> {
        let executor = executors.into_iter().next().expect("merged groups have one");
        let groups = begun
            .iter()
            .map(|group| MergedGroup { shared: Arc::clone(&group.shared), store: Arc::clone(&group.store) });
        MergedStage::new(executor, groups.collect(), self.snapshots.clone(), Arc::clone(&self.ahead))
    }

    fn stage<S: StateMachine>(&self, executor: Executor<S>, begun: &Begun) -> ExecutorStage<S> {
        let mut stage = ExecutorStage {
            group: begun.group,
            executor,
            snapshots: self.snapshots.clone(),
            store: Arc::clone(&begun.store),
            shared: Arc::clone(&begun.shared),
            ahead: Arc::clone(&self.ahead),
            waiting: Default::default(),
            begun: None,
        };
        // What the snapshot holds: it may be long until something is executed.
        stage.applied_more();
        stage
    }

    /// A handle on each group.
    pub(crate) fn handles(
        &self,
        config: &Config,
        begun: &[Begun],
        all: &Arc<[Arc<Shared>]>,
        transport: &Arc<dyn synod_transport::Sender>,
    ) -> Vec<Handle> {
        let permits_max = Inner::permits(config.settings.queue_bytes_max);
        let admission = Arc::new(Semaphore::new(permits_max));
        let handle = |begun: &Begun| {
            Handle::new(Inner {
                me: config.me,
                group: begun.group,
                all: Arc::clone(all),
                take: config.merging.map(|merging| merging.take),
                durability: config.durability,
                inputs: self.requests.clone(),
                executor: self.executor.clone(),
                admission: Arc::clone(&admission),
                permits_max,
                shared: Arc::clone(&begun.shared),
                transport: Arc::clone(transport),
            })
        };
        begun.iter().map(handle).collect()
    }

    /// A group on the protocol's thread: its replica, and what serves it.
    pub(crate) fn host(&self, begun: Begun, data_dir: &Arc<DataDir>, durable: Lsn) -> (Started, Hosted) {
        let Begun { group, replica, actions, shared, origin, executed, settles_at, .. } = begun;
        let hosted = Hosted {
            group,
            execution: Default::default(),
            executor: (!self.compact).then(|| self.jobs.clone()),
            notes: Notes { group, data_dir: Arc::clone(data_dir), origin },
            stranded: Default::default(),
            stage: None,
            reached_at: Time::ZERO,
            settles_at,
            gate: Entry::new(durable),
            executed,
            _watched: Watched(Arc::clone(&shared)),
            shared,
        };
        (Started { replica, actions, durable, executed }, hosted)
    }

    pub(crate) fn common(
        &self,
        config: &Config,
        clock: Clock,
        transport: &Arc<dyn synod_transport::Sender>,
        shares: Shares,
    ) -> Common {
        let Shares { book, parting, amnesia } = shares;
        Common {
            me: config.me,
            clock,
            log: self.log.clone(),
            job: Default::default(),
            transport: Arc::clone(transport),
            bundles: Bundles::new(self.count),
            snapshots: self.snapshots.clone(),
            ahead: Arc::clone(&self.ahead),
            book,
            parting,
            failed: None,
            loss_pending: amnesia,
        }
    }

    /// `executors`: what executes commands, if the protocol's thread does.
    pub(crate) fn protocol_stage<S: StateMachine>(
        &self,
        config: &Config,
        groups: Vec<(Started, Hosted)>,
        common: Common,
        executors: Option<Executors<S>>,
        inbox: Option<Box<dyn Inbox>>,
        inputs: InputsEnd,
    ) -> ProtocolStage<S> {
        let task = |(event_loop, bell)| Task { event_loop, bell };
        let (started, hosted): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let now = common.clock.now();
        let pace = config.merging.map(|Merging { take, skips, .. }| Pace::new(skips, take, self.count, now));
        let heartbeat = config.settings.consensus.heartbeat_interval;
        ProtocolStage {
            host: Host::new(config.me, started, pace, heartbeat),
            hosted,
            inputs,
            inbox,
            task: config.event_loop.clone().zip(self.bell.clone()).map(task),
            executing: VecDeque::new(),
            executors,
            common,
        }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn queues(&self) -> Queues {
        Queues { inputs: self.inputs.clone(), log: self.log.clone(), executor: self.executor.clone() }
    }
}
