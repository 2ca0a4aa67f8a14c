//! Starting and stopping a replica: data directory, log, snapshots, connections, threads.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{Link, Role};
use synod_replica::{
    Action, Event, Executor, Group, History, Installed, LogRecord, Mark, PeerMessage, Recovered, Replica,
    SnapshotInfo, StateMachine, salvage,
};
use synod_storage::{
    DataDir, Lives, Loss, PeerBook, Reached, RecoveredRecord, SnapshotStore, StorageError, Wal,
};
use synod_sync::{
    Arc, Condvar, Mutex, PoisonError,
    channel::{Sender, bounded, unbounded},
    net::Bell,
    thread::{self, JoinHandle},
};
use synod_transport::{Connections, Unreadable};
use synod_wire::{GroupId, Lsn, ReplicaId, Slot, Time};
use tokio::sync::{Notify, Semaphore};

use crate::{
    Config, ConfigError, Ended, Handle, Lacking, Origin, StartError, Threads,
    alone::{Company, Verdict, is_only_voter},
    apart::apart,
    bundle::{self, BUNDLE, Bundles, GROUPS_MAX},
    executor::{ExecutorStage, Executors, Job, JobSender},
    handle::Inner,
    inputs::{Inputs, Queue},
    log::{LogJob, LogStage, LoggedGroup},
    meeting::{Meetings, outlived, write_what_is_heard},
    metrics::Queues,
    origin::former,
    parting::Parting,
    protocol::{Clock, Common, Execution, Hosted, Input, ProtocolStage},
    snapshots::{GroupSnapshots, SnapshotJob, SnapshotStage},
    status::{Ahead, Shared},
    view::Watched,
};

/// The part of a heartbeat's interval to whole multiples of which several groups round their timers, so that one wake-up
/// serves many.
const TIMERS_SHARE: u32 = 8;

/// Events of peers and requests of clients that may wait for the protocol's thread. Whoever brings more waits, and
/// with it, in the end, the connection that it came from.
const INPUTS_MAX: usize = 8192;

/// A running replica, of one group or of several that share its log, its connections and its threads. Dropping it stops
/// it, and blocks meanwhile: asynchronous code should call [`Node::stop`].
#[derive(Debug)]
pub struct Node {
    me: ReplicaId,
    /// By the number of the group.
    handles: Vec<Handle>,
    inputs: Queue,
    executor: JobSender,
    snapshots: Sender<(GroupId, SnapshotJob)>,
    log: Sender<LogJob>,
    /// Dropping it ends the thread that writes down what peers tell.
    peers_stop: Option<Sender<()>>,
    connections: Option<Box<dyn Connections>>,
    protocol_thread: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
    log_thread: Option<JoinHandle<()>>,
    end: Arc<End>,
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "only metrics show them"))]
    queues: Arc<QueuesForMetrics>,
    _data_dir: Arc<DataDir>,
}

#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "only metrics show them"))]
struct QueuesForMetrics(Queues);

impl std::fmt::Debug for QueuesForMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queues")
    }
}

/// How a replica ended, for those who wait for it.
#[derive(Debug, Default)]
struct End {
    reason: Mutex<Option<Result<(), Ended>>>,
    ended: Condvar,
    /// The same for tasks.
    told: Notify,
}

impl End {
    fn set(&self, result: Result<(), Ended>) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.get_or_insert(result);
        self.ended.notify_all();
        self.told.notify_waiters();
    }

    fn reason(&self) -> Option<Result<(), Ended>> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait(&self, timeout: Duration) -> Option<Result<(), Ended>> {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let (reason, _) = self
            .ended
            .wait_timeout_while(reason, timeout, |reason| reason.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        reason.clone()
    }
}

/// What was found on disk.
pub(crate) struct Found<S> {
    pub(crate) data_dir: DataDir,
    pub(crate) wal: Wal,
    /// By the number of the group.
    pub(crate) groups: Vec<FoundGroup<S>>,
    /// Who the others were when they were last seen.
    pub(crate) peers: PeerBook,
    /// The lives of this replica.
    pub(crate) lives: Lives,
    /// Something was lost, and there is nobody else who may hold it.
    goes_on: bool,
}

/// What was found of a group.
pub(crate) struct FoundGroup<S> {
    pub(crate) group: GroupId,
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) executor: Executor<S>,
    /// What the group began with.
    pub(crate) origin: Origin,
    pub(crate) recovered: Recovered,
}

/// Opens what a replica left, of as many groups as there are state machines. `recovering`: only to look at it; a loss is no
/// reason to refuse then.
pub(crate) fn open<S: StateMachine>(
    config: &Config,
    machines: Vec<S>,
    recovering: bool,
) -> Result<Found<S>, StartError> {
    let disk = || Arc::clone(&config.disk);
    let Config { cluster, me, name, durability, .. } = config;
    let count = u16::try_from(machines.len()).expect("at most GROUPS_MAX");
    let data_dir =
        DataDir::open_for_groups(disk(), &config.data_dir, *cluster, *me, name, *durability, count)?;
    let identity = data_dir.identity();
    let groups = || (0..count).map(GroupId);
    let origins = groups().map(|group| origin(config, &data_dir, group)).collect::<Result<Vec<_>, _>>()?;
    let peers = PeerBook::open(&data_dir)?;
    let lives = Lives::begin(&data_dir)?;
    // Who the members are is the same for all groups.
    let (company, first) =
        (Company::of(config.me, &origins[0].present), others_at_first(&origins[0], config.me));
    let mut states = Vec::new();
    for ((group, origin), machine) in groups().zip(origins).zip(machines) {
        states.push(open_state(config, &data_dir, group, origin, machine, recovering)?);
    }

    let options = synod_storage::Options {
        durability: config.durability,
        segment_bytes: config.segment_bytes,
        ..synod_storage::Options::default()
    };
    let (mut wal, found) = Wal::open_on(disk(), &data_dir.wal(), identity, options)?;
    if found.loss == Some(Loss::Stopped) && !recovering {
        return Err(StartError::Stopped(data_dir.path().to_owned()));
    }
    let mut last_lsn = found.last;
    let mut records = by_group(&found.records, states.len())?;
    let mut verdict = None;
    if let Some(damage) = &found.damage {
        match company {
            _ if recovering => {}
            Company::Nobody => {
                return Err(StartError::DamagedAlone(Lacking::Damage(damage.clone()), data_dir.wal()));
            }
            Company::Learners => {
                return Err(StartError::LostBeforeLearners(Lacking::Damage(damage.clone())));
            }
            Company::Voters => {
                // What can still be read may be older than what was promised. But what it proves to be decided is so.
                for (records, state) in records.iter_mut().zip(&states) {
                    let kept = salvage(records.drain(..), state.executor.applied());
                    // Their numbers do not matter any more.
                    records.extend(kept.into_iter().map(|record| (Lsn::ZERO, record)));
                }
                let kept = groups().zip(&records).flat_map(|(group, records)| {
                    records.iter().map(move |(_, record)| (group, record.keep(), record.encode()))
                });
                last_lsn = wal.quarantine(kept)?;
                let (slots, bytes) = (records.iter().map(Vec::len).sum::<usize>(), wal.bytes());
                tracing::error!(
                    %damage, slots, bytes,
                    "the log is damaged: set aside, but for what it proves to be decided; this replica learns the rest \
                     from its peers before it votes"
                );
                verdict = Some(Verdict::Learn);
            }
        }
    } else if let Some(loss) = &found.loss {
        let told = match company.verdict(loss) {
            Verdict::GoOnIfTold if config.accept_lost_log => Verdict::GoOn,
            told => told,
        };
        match told {
            _ if recovering => {}
            Verdict::Learn => tracing::warn!(%loss, "this replica learns from its peers before it votes"),
            Verdict::GoOn => {
                tracing::warn!(%loss, "there is no other replica: this one goes on with what it finds");
            }
            Verdict::GoOnIfTold => {
                return Err(StartError::LostAlone(loss.clone(), data_dir.path().to_owned()));
            }
            Verdict::Refuse => return Err(StartError::LostBeforeLearners(Lacking::Loss(loss.clone()))),
        }
        verdict = Some(told);
    }
    if verdict.is_some() {
        // Before anybody is told: what earlier lives told is not in this log.
        lives.begin_without_memory()?;
    }
    lives.begin_log(last_lsn)?;
    let amnesia = verdict.is_some() && verdict != Some(Verdict::GoOn);
    if config.begin_without_all {
        peers.wait_for_nobody()?;
    }
    let met_all = first.is_empty() || peers.has_met(&first)?;
    let (incarnation, nonce) = (identity.incarnation, lives.introduction(last_lsn).nonce);
    let mut found_groups = Vec::new();
    for (group, (state, records)) in groups().zip(states.into_iter().zip(records)) {
        let FoundState { origin, store, executor, snapshot } = state;
        let records = records.into_iter().map(|(_, record)| record).collect();
        let recovered = Recovered { records, last_lsn, snapshot, amnesia, incarnation, nonce, met_all };
        found_groups.push(FoundGroup { group, store, executor, origin, recovered });
    }
    let goes_on = verdict == Some(Verdict::GoOn);
    Ok(Found { data_dir, wal, groups: found_groups, peers, lives, goes_on })
}

/// What was found of a group besides the log.
struct FoundState<S> {
    origin: Origin,
    store: Arc<SnapshotStore>,
    executor: Executor<S>,
    snapshot: Option<Installed>,
}

/// The latest snapshot of a group, and the state machine with what is in it.
fn open_state<S: StateMachine>(
    config: &Config,
    data_dir: &DataDir,
    group: GroupId,
    origin: Origin,
    machine: S,
    recovering: bool,
) -> Result<FoundState<S>, StartError> {
    let (disk, dir) = (Arc::clone(&config.disk), data_dir.snapshots_of(group));
    let store = Arc::new(SnapshotStore::open_on(disk, &dir, config.cluster)?);
    let mut executor = Executor::new(machine, origin.first.clone());
    let latest = store.latest()?;
    if matches!(Company::of(config.me, &origin.present), Company::Voters) && !recovering {
        // Where nobody else has another one, it stays where it is: the disk may read it tomorrow.
        store.set_aside(&latest.damaged)?;
    }
    let Some(file) = latest.snapshot else {
        return Ok(FoundState { origin, store, executor, snapshot: None });
    };
    let mut reader = store.open_snapshot(file.slot)?;
    executor.restore(&mut reader).map_err(|error| StartError::Snapshot { path: file.path.clone(), error })?;
    let info = SnapshotInfo { slot: file.slot, bytes: file.file_bytes };
    let (ballots, group) = (executor.ballots(), executor.group().clone());
    let installed = Installed { info, ballots, group, history: executor.history().clone() };
    Ok(FoundState { origin, store, executor, snapshot: Some(installed) })
}

/// The records of each of `count` groups, in order. In their numbers is a gap only where there is one in the log, so that
/// records may be lost there, of any group.
fn by_group(found: &[RecoveredRecord], count: usize) -> Result<Vec<Vec<(Lsn, LogRecord)>>, StartError> {
    let mut groups = vec![Vec::new(); count];
    // Of each group, the number of its last record, and how many gaps the log had before that.
    let mut numbered = vec![(Lsn::ZERO, 0); count];
    let (mut gaps, mut expected) = (0, None);
    for RecoveredRecord { lsn, group, bytes, .. } in found {
        gaps += u64::from(expected.is_some_and(|expected| expected != *lsn));
        expected = Some(lsn.next());
        let at = usize::from(group.0);
        if at >= count {
            return Err(StartError::RecordOfGroup { lsn: *lsn, group: *group, groups: count });
        }
        let record =
            LogRecord::decode(bytes.clone()).map_err(|error| StartError::Record { lsn: *lsn, error })?;
        let (last, before) = &mut numbered[at];
        *last = if *before == gaps { last.next() } else { last.next().next() };
        *before = gaps;
        groups[at].push((*last, record));
    }
    Ok(groups)
}

/// The other members with which the group began, if this replica is one of them: one that joins later is told by those
/// who are there what was decided.
fn others_at_first(origin: &Origin, me: ReplicaId) -> Vec<ReplicaId> {
    if origin.first.member(me).is_none() {
        return Vec::new();
    }
    origin.first.members.iter().map(|member| member.id).filter(|&id| id != me).collect()
}

/// What the data directory says that a group began with; at the first start that is written down.
fn origin(config: &Config, data_dir: &DataDir, group: GroupId) -> Result<Origin, StartError> {
    if let Some(bytes) = data_dir.origin_of(group)? {
        return Origin::decode(bytes)
            .map_err(|error| StartError::Origin { data_dir: data_dir.path().to_owned(), error });
    }
    let origin = config.origin()?;
    data_dir.set_origin_of(group, &origin.encode())?;
    Ok(origin)
}

/// Begins the threads of a replica.
struct Spawn<'a> {
    me: ReplicaId,
    end: &'a Arc<End>,
}

impl Spawn<'_> {
    /// Begins one. If it ends with an error, or panics, so does the replica.
    fn begin(
        &self,
        what: &str,
        body: impl FnOnce() -> Result<(), Ended> + Send + 'static,
    ) -> Result<JoinHandle<()>, StartError> {
        let (end, name) = (Arc::clone(self.end), format!("{what}-{}", self.me.0));
        let builder = thread::Builder::new().name(name.clone());
        let run = move || match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => end.set(Err(error)),
            Err(_) => end.set(Err(Ended::Panicked(name))),
        };
        builder.spawn(run).map_err(StartError::Thread)
    }
}

/// What a replica has of its own before its threads begin.
struct Opened {
    config: Config,
    data_dir: Arc<DataDir>,
    book: Arc<PeerBook>,
    lives: Lives,
    wal: Wal,
    /// It lost something that it learns again.
    amnesia: bool,
}

/// A group that is about to run.
struct Begun<S> {
    group: GroupId,
    replica: Replica,
    actions: Vec<Action>,
    shared: Arc<Shared>,
    store: Arc<SnapshotStore>,
    executor: Executor<S>,
    origin: Origin,
    /// The slot of its snapshot.
    executed: Slot,
}

impl<S: StateMachine> Begun<S> {
    fn new(config: &Config, found: FoundGroup<S>, data_dir: &DataDir, now: Time) -> Begun<S> {
        let FoundGroup { group, store, executor, origin, recovered } = found;
        let executed = recovered.snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.info.slot);
        tracing::info!(
            %group, records = recovered.records.len(), snapshot = executed.0,
            first_start = recovered.last_lsn == Lsn::ZERO, "found"
        );
        let shared = Arc::new(Shared::default());
        #[cfg(feature = "shuttle")]
        shared.watch.begin(data_dir.path());
        #[cfg(not(feature = "shuttle"))]
        let _ = data_dir;
        let mut actions = Vec::new();
        let settings = config.settings.clone();
        let replica = Replica::start(settings, config.me, origin.first.clone(), recovered, now, &mut actions);
        shared.group.store(Some(Arc::new(replica.group().clone())));
        // Nobody sees a replica that lost its log as the follower that it will be.
        shared.store(&replica.status());
        Begun { group, replica, actions, shared, store, executor, origin, executed }
    }

    /// Refuses to go on where nobody could tell what is missing. `goes_on`: something is, and there was nobody else.
    fn check(&self, me: ReplicaId, goes_on: bool, data_dir: &DataDir) -> Result<(), StartError> {
        let group = self.replica.group();
        let damaged = |lacking| Err(StartError::DamagedAlone(lacking, data_dir.path().to_owned()));
        if is_only_voter(me, self.origin.latest(group))
            && self.replica.status().protocol.role == Role::Recovering
        {
            return damaged(Lacking::Snapshot);
        }
        if goes_on && !is_only_voter(me, group) {
            return damaged(Lacking::Removals);
        }
        if goes_on && group.next_id != self.origin.present.next_id {
            return Err(StartError::MembersForgotten);
        }
        Ok(())
    }
}

impl Node {
    /// Starts a replica: reads its log and its last snapshot, listens, and takes part. That is done by a thread of its own; if
    /// the future is dropped, the replica is stopped as soon as it has started.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start<S: StateMachine>(config: Config, machine: S) -> Result<Node, StartError> {
        Node::start_groups(config, vec![machine]).await
    }

    /// [`Node::start`] for callers that are not asynchronous: it blocks for the disk.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_blocking<S: StateMachine>(config: Config, machine: S) -> Result<Node, StartError> {
        Node::start_groups_blocking(config, vec![machine])
    }

    /// Starts a replica of several groups, one for each state machine, with logs of slots of their own: each orders its
    /// commands by itself, and has its own leader. They share the write-ahead log and its fsyncs, one connection to each
    /// peer, and the threads.
    ///
    /// All replicas of the cluster have the same number of groups, and the same at every start. The members with which the
    /// groups begin are those of the configuration. If there are several groups the members stay as they are:
    /// [`Handle::change`] changes what orders a group, and its limits, but not who belongs to it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start_groups<S: StateMachine>(config: Config, machines: Vec<S>) -> Result<Node, StartError> {
        let start = move || Node::start_groups_blocking(config, machines);
        apart("start", start).await.map_err(StartError::Thread)?
    }

    /// [`Node::start_groups`] for callers that are not asynchronous: it blocks for the disk.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_groups_blocking<S: StateMachine>(
        config: Config,
        machines: Vec<S>,
    ) -> Result<Node, StartError> {
        config.check()?;
        if !(1..=GROUPS_MAX).contains(&machines.len()) {
            let count = machines.len();
            return Err(ConfigError::Groups(count).into());
        }
        let Found { data_dir, mut wal, groups, peers, lives, goes_on } = open(&config, machines, false)?;
        let (amnesia, durable) = (groups[0].recovered.amnesia, groups[0].recovered.last_lsn);
        tracing::info!(
            replica = %config.me, name = config.name, cluster = %config.cluster,
            incarnation = groups[0].recovered.incarnation.0, protocol = %config.settings.consensus.protocol,
            durability = %config.durability, groups = groups.len(), "starting"
        );
        let clock = Clock::start();
        let begin = |found| Begun::new(&config, found, &data_dir, clock.now());
        let mut begun: Vec<_> = groups.into_iter().map(begin).collect();
        for group in &begun {
            group.check(config.me, goes_on, &data_dir)?;
        }
        if goes_on {
            // Nobody is known any more whom it may have known.
            peers.forget_all_but(|_| false)?;
            // And what is lost is not decided any more.
            peers.reach(None)?;
        }
        for Begun { group: id, replica, origin, .. } in &mut begun {
            let group = replica.group();
            if goes_on || group.version > origin.present.version {
                origin.present = group.clone();
                data_dir.set_origin_of(*id, &origin.encode())?;
            }
        }
        if goes_on {
            // Last: a start that ended before would otherwise leave a group behind that the log never reaches.
            wal.loss_made_good()?;
        }
        if let Some(Reached { since, sums }) = peers.reached() {
            let Begun { replica, actions, .. } = &mut begun[0];
            let marks = sums.into_iter().map(|(slot, fingerprint)| Mark { slot, fingerprint });
            let noted = History::noted(since, marks);
            noted.into_iter().for_each(|earlier| replica.remember(earlier, actions));
        }
        forget_the_removed(&peers, begun[0].replica.group())?;
        let opened =
            Opened { config, data_dir: Arc::new(data_dir), book: Arc::new(peers), lives, wal, amnesia };
        Node::run(opened, begun, clock, durable)
    }

    /// Connects the replica with its peers, and begins its threads.
    fn run<S: StateMachine>(
        opened: Opened,
        begun: Vec<Begun<S>>,
        clock: Clock,
        durable: Lsn,
    ) -> Result<Node, StartError> {
        let Opened { config, data_dir, book, lives, wal, amnesia } = opened;
        let compact = config.threads == Threads::Compact;
        let bell = if compact { Some(Arc::new(Bell::new().map_err(StartError::Thread)?)) } else { None };
        let (inputs, inputs_end) = Queue::new(INPUTS_MAX, bell.clone());
        let (requests, around) = Inputs::new(inputs.clone());
        let (jobs, jobs_end) = unbounded();
        let (snapshots, snapshots_end) = unbounded();
        let (log, log_end) = unbounded();
        let (end, told) = (Arc::new(End::default()), Arc::new(AtomicU64::new(durable.0)));
        let (count, first) = (begun.len(), &begun[0]);
        let ahead = Arc::new(Ahead::new(count));

        let meeting = Arc::new(Meetings {
            book: Arc::clone(&book),
            first: others_at_first(&first.origin, config.me),
            waits: AtomicBool::new(first.replica.status().waits_for_members),
            complained: Mutex::default(),
            inputs: inputs.clone(),
            shared: Arc::clone(&first.shared),
        });
        if first.replica.status().waits_for_members {
            let missing = meeting.publish_missing();
            tracing::info!(waits_for = ?missing, "this replica votes once it has met all members of the new group");
        }
        let mut connections = connect(&config, &first.origin, count, &meeting, lives, (&told, bell), &end)?;
        let (transport, inbox) = (connections.sender(), connections.inbox());
        let mut parting = Parting::new(config.settings.consensus.election_timeout);
        let (group, origin) = (first.replica.group(), &first.origin);
        parting.group(clock.now(), group, origin.members(group, config.me), former(group, config.me));

        let executor =
            if compact { JobSender::Protocol(requests.clone()) } else { JobSender::Thread(jobs.clone()) };
        let log_stage = LogStage {
            wal,
            groups: begun.iter().map(|group| LoggedGroup::new(Arc::clone(&group.shared), durable)).collect(),
            ahead: Arc::clone(&ahead),
            events: inputs.clone(),
            transport: Arc::clone(&transport),
            bundles: Bundles::new(count),
            told,
            gated: Vec::new(),
            trims: Vec::new(),
            loss_made_good: false,
            asked_for: 0,
        };
        let snapshot_stage = SnapshotStage {
            groups: begun.iter().map(|group| GroupSnapshots::new(Arc::clone(&group.store))).collect(),
            events: inputs.clone(),
            executor: executor.clone(),
            waiting: Default::default(),
            stopping: false,
        };
        let common = Common {
            me: config.me,
            clock,
            log: log.clone(),
            job: Default::default(),
            transport: Arc::clone(&transport),
            bundles: Bundles::new(count),
            snapshots: snapshots.clone(),
            ahead: Arc::clone(&ahead),
            parting,
            failed: None,
            loss_pending: amnesia,
            grid: if count > 1 {
                config.settings.consensus.heartbeat_interval / TIMERS_SHARE
            } else {
                Duration::ZERO
            },
        };
        let queues = Queues { inputs: inputs.clone(), log: log.clone(), executor: executor.clone() };
        let permits_max = Inner::permits(config.settings.queue_bytes_max);
        let admission = Arc::new(Semaphore::new(permits_max));
        let (mut handles, mut hosted, mut executors) = (Vec::new(), Vec::new(), Vec::new());
        let shared = Arc::clone(&first.shared);
        for Begun { group, replica, actions, shared, store, executor: of, origin, executed } in begun {
            handles.push(Handle::new(Inner {
                group,
                groups: count,
                durability: config.durability,
                inputs: requests.clone(),
                executor: executor.clone(),
                admission: Arc::clone(&admission),
                permits_max,
                shared: Arc::clone(&shared),
                transport: Arc::clone(&transport),
            }));
            let (shared_there, ahead) = (Arc::clone(&shared), Arc::clone(&ahead));
            let stage = ExecutorStage {
                group,
                executor: of,
                snapshots: snapshots.clone(),
                store,
                shared: shared_there,
                ahead,
                waiting: Default::default(),
            };
            let execution = if compact {
                Execution::Here(Box::new(stage), VecDeque::new())
            } else {
                executors.push(stage);
                Execution::Thread(jobs.clone())
            };
            let notes = Notes { group, data_dir: Arc::clone(&data_dir), book: Arc::clone(&book), origin };
            let watched = Watched(Arc::clone(&shared));
            hosted.push(Hosted {
                group,
                replica,
                actions,
                execution,
                shared,
                notes,
                stranded: Default::default(),
                reached_at: Time::ZERO,
                is_touched: false,
                durable,
                gated: 0,
                executed,
                waiting: Default::default(),
                _watched: watched,
            });
        }
        let protocol = ProtocolStage {
            hosted,
            deadlines: vec![Time::ZERO; count],
            touched: Vec::new(),
            glance_at: Time::ZERO,
            inputs: inputs_end,
            around,
            inbox,
            executing: VecDeque::new(),
            common,
        };

        let spawn = Spawn { me: config.me, end: &end };
        let mut threads = Vec::new();
        if !compact {
            let stage = Executors { stages: executors, events: inputs.clone() };
            threads.push(spawn.begin("executor", move || {
                stage.run(&jobs_end);
                Ok(())
            })?);
        }
        threads.push(spawn.begin("snapshots", move || {
            snapshot_stage.run(&snapshots_end);
            Ok(())
        })?);
        let (peers_stop, stopped) = bounded(0);
        threads.push(spawn.begin("peers", move || {
            write_what_is_heard(&book, &*transport, &shared, &stopped);
            Ok(())
        })?);
        let log_thread = spawn.begin("log", move || log_stage.run(&log_end).map_err(Ended::from))?;
        let protocol_thread = spawn.begin("protocol", move || protocol.run())?;
        Ok(Node {
            me: config.me,
            handles,
            inputs,
            executor,
            snapshots,
            log,
            peers_stop: Some(peers_stop),
            connections: Some(connections),
            protocol_thread: Some(protocol_thread),
            threads,
            log_thread: Some(log_thread),
            end,
            queues: Arc::new(QueuesForMetrics(queues)),
            _data_dir: data_dir,
        })
    }

    /// A handle for clients in this process, on the first group.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handles[0].clone()
    }

    /// A handle on each group, in the order of the state machines that the replica was started with.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// What the network carries, of all groups.
    #[must_use]
    pub fn network(&self) -> synod_transport::Metrics {
        self.handles[0].inner.transport.metrics()
    }

    /// Where other replicas reach this one.
    #[must_use]
    pub fn peer_addresses(&self) -> Vec<std::net::SocketAddr> {
        self.connections.as_ref().map_or_else(Vec::new, |connections| connections.local_addresses())
    }

    /// The numbers of this replica, for a registry of Prometheus metrics. If it has several groups, what is said of a group is
    /// said of the first one. With the feature `metrics`.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics(&self) -> crate::NodeMetrics {
        let inner = &self.handles[0].inner;
        crate::NodeMetrics {
            shared: Arc::clone(&inner.shared),
            transport: inner.transport.clone(),
            queues: self.queues.0.clone(),
        }
    }

    /// Waits until the replica ends by itself, which it does only when it cannot go on, and says why.
    pub async fn wait(&self) -> Ended {
        loop {
            // Made before the look, so that nothing is missed.
            let told = self.end.told.notified();
            if let Some(Err(why)) = self.end.reason() {
                return why;
            }
            told.await;
        }
    }

    /// [`Node::wait`] for callers that are not asynchronous: it blocks. `None`: the replica still runs after `timeout`.
    #[must_use]
    pub fn wait_blocking(&self, timeout: Duration) -> Option<Ended> {
        self.end.wait(timeout).and_then(Result::err)
    }

    pub(crate) fn me(&self) -> ReplicaId {
        self.me
    }

    /// Stops the replica: fails what waits, commits and closes the log. That is done by a thread of its own, to its end, also
    /// if the future is dropped. The leadership is not handed over; see [`Node::hand_over`].
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub async fn stop(self) -> Result<(), Ended> {
        let end = Arc::clone(&self.end);
        // Where the system gives no thread, the replica is dropped here, and that stops it too.
        let _ = apart("stop", move || drop(self)).await;
        end.reason().unwrap_or(Ok(()))
    }

    /// [`Node::stop`] for callers that are not asynchronous: it blocks for the disk.
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub fn stop_blocking(mut self) -> Result<(), Ended> {
        self.shut_down();
        self.end.reason().unwrap_or(Ok(()))
    }

    fn shut_down(&mut self) {
        self.handles[0].inner.admission.close();
        // Sends fail only where a thread has ended already.
        let _ = self.inputs.send(Input::Stop);
        join(self.protocol_thread.take());
        self.executor.send(GroupId::FIRST, Job::Stop);
        let _ = self.snapshots.send((GroupId::FIRST, SnapshotJob::Stop));
        let _ = self.log.send(LogJob { stop: true, ..Default::default() });
        join(self.log_thread.take());
        self.peers_stop = None;
        self.threads.drain(..).for_each(|thread| join(Some(thread)));
        self.connections = None;
        self.end.set(Ok(()));
        #[cfg(feature = "shuttle")]
        if matches!(self.end.reason(), Some(Ok(()))) {
            self.handles.iter().for_each(|handle| handle.inner.shared.watch.ended());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.protocol_thread.is_some() {
            self.shut_down();
        }
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    // A panic was reported where it happened.
    let _ = thread.map(JoinHandle::join);
}

/// Ids are not given twice, so nobody will show the birth of a replica that was removed.
fn forget_the_removed(peers: &PeerBook, group: &Group) -> Result<(), StorageError> {
    peers.forget_all_but(|id| id >= group.next_id || group.known().any(|member| member.id == id))
}

/// What is written down of a group, beside the log.
pub(crate) struct Notes {
    group: GroupId,
    data_dir: Arc<DataDir>,
    book: Arc<PeerBook>,
    pub(crate) origin: Origin,
}

impl Notes {
    /// Writes down who is a member from now on; see [`crate::alone`]. Blocks for the disk.
    pub(crate) fn group(&mut self, group: &Group) -> Result<(), StorageError> {
        // A log that lost its end may come to another group of the same version.
        if group.version >= self.origin.present.version && *group != self.origin.present {
            self.origin.present = group.clone();
            self.data_dir.set_origin_of(self.group, &self.origin.encode())?;
        }
        if self.group > GroupId::FIRST {
            return Ok(());
        }
        forget_the_removed(&self.book, group)
    }
}

fn connect(
    config: &Config,
    origin: &Origin,
    hosted: usize,
    meeting: &Arc<Meetings>,
    lives: Lives,
    (durable, bell): (&Arc<AtomicU64>, Option<Arc<Bell>>),
    end: &Arc<End>,
) -> Result<Box<dyn Connections>, StartError> {
    let (shared, inputs) = (&meeting.shared, meeting.inputs.clone());
    let who = lives.introduction(Lsn::ZERO);
    let mut transport = synod_transport::Config::new(config.cluster, config.me, who.incarnation, who.birth);
    (transport.who, transport.durable) = (who, Arc::clone(durable));
    (transport.direct, transport.bell) = (bell.is_some(), bell);
    transport.versions = config.versions.clone();
    transport.listen = config.listen.clone();
    transport.listeners = config.listeners.clone();
    transport.message_bytes_max = config.message_bytes_max();
    let group = shared.group.load_full().expect("stored before");
    transport.peers = origin.members(&group, config.me);
    let recognising = Arc::clone(meeting);
    transport.recognise = Arc::new(move |id, who, meeting| recognising.recognise(id, who, meeting));
    let (stop, end, me, groups) = (inputs.clone(), Arc::clone(end), config.me, Arc::clone(shared));
    let noted = origin.clone();
    transport.outlived = Arc::new(move |by, stranger| {
        let group = groups.group.load_full().expect("stored before");
        let why = outlived(&lives, by, stranger, is_only_voter(me, noted.latest(&group)));
        tracing::error!("{why}");
        end.set(Err(Ended::Outlived(why)));
        // Not a word more from this life.
        let _ = stop.send(Input::Stop);
    });
    let (cluster, first, shared) = (config.cluster, origin.first.clone(), Arc::clone(shared));
    transport.answer = Arc::new(move || {
        let present = shared.group.load_full().expect("stored before");
        Origin { cluster, first: first.clone(), present: (*present).clone() }.encode()
    });
    let sink = move |happened: Vec<synod_transport::Event>| {
        let mut received = Vec::new();
        let read = happened.into_iter().try_for_each(|event| {
            let (peer, link) = match event {
                synod_transport::Event::Up { peer, .. } => (peer, Link::Up),
                synod_transport::Event::Down { peer } => (peer, Link::Down),
                synod_transport::Event::Refused { peer } => (peer, Link::Refused),
                synod_transport::Event::Received { from, version, group, body } => {
                    return receive(hosted, group, from, version, body, &mut received);
                }
            };
            let _ = inputs.send(Input::Link(peer, link));
            Ok(())
        });
        if !received.is_empty() {
            // A failed send means that the protocol's thread has ended; the stop follows.
            let _ = inputs.send(Input::Events(received));
        }
        read
    };
    Ok(config.network.start(transport, Box::new(sink))?)
}

/// Appends to `events` what a peer says to one of `hosted` groups, or with a bundle to several.
pub(crate) fn receive(
    hosted: usize,
    group: GroupId,
    from: ReplicaId,
    version: u16,
    body: Bytes,
    events: &mut Vec<(GroupId, Event)>,
) -> Result<(), Unreadable> {
    if group == BUNDLE {
        let messages = bundle::open(body).map_err(|error| Unreadable(error.to_string()))?;
        return messages
            .into_iter()
            .try_for_each(|(group, body)| receive_one(hosted, group, from, version, body, events));
    }
    receive_one(hosted, group, from, version, body, events)
}

fn receive_one(
    hosted: usize,
    group: GroupId,
    from: ReplicaId,
    version: u16,
    body: Bytes,
    events: &mut Vec<(GroupId, Event)>,
) -> Result<(), Unreadable> {
    if usize::from(group.0) >= hosted {
        return Err(Unreadable(format!(
            "it is of group {group}, and this replica has {hosted}; all replicas of a cluster have the same number of groups"
        )));
    }
    let message = PeerMessage::decode_in(version, body).map_err(|error| Unreadable(error.to_string()))?;
    events.push((group, Event::Receive { from, message }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{self, Read, Write},
        path::{Path, PathBuf},
    };

    use synod_consensus::{Options, ProtocolKind, multipaxos};
    use synod_replica::{Context, Frozen, Goal, Standing};
    use synod_storage::Durability;
    use synod_wire::{Ballot, Batch, ClusterId, Epoch, Incarnation, Introduction};

    use super::*;

    const R1: ReplicaId = ReplicaId(1);
    const CLUSTER: ClusterId = ClusterId(7);

    struct Nothing;

    impl Frozen for Nothing {
        fn write_to(&self, _out: &mut dyn Write) -> io::Result<()> {
            Ok(())
        }
    }

    impl StateMachine for Nothing {
        fn apply(&mut self, _command: &Bytes, _: &Context) -> Bytes {
            Bytes::new()
        }

        fn query(&self, _query: &Bytes) -> Bytes {
            Bytes::new()
        }

        fn freeze(&self) -> Box<dyn Frozen> {
            Box::new(Nothing)
        }

        fn restore(&mut self, _snapshot: &mut dyn Read) -> io::Result<()> {
            Ok(())
        }

        fn digest(&self) -> u64 {
            0
        }
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// The replica began in a group of three. Where others were removed since, `members` says who is left and `voters` who
    /// of them votes; the log may have lost that. One bit of its first record has changed.
    fn damaged(path: &Path, members: &[u64], voters: &[u64]) -> Config {
        let ids = [R1, ReplicaId(2), ReplicaId(3)];
        let first = Group::of(&Options::of(ProtocolKind::MultiPaxos), ids);
        let dir = DataDir::open(path, CLUSTER, R1, "n1", Durability::Sync).unwrap();
        let mut present = Group { version: 3, ..first.clone() };
        present.members.retain(|member| members.contains(&member.id.0));
        let learners = present.members.iter_mut().filter(|member| !voters.contains(&member.id.0));
        learners.for_each(|member| member.standing = Standing::Learner(Goal::Learn));
        dir.set_origin(&Origin { present, ..Origin::new(CLUSTER, first) }.encode()).unwrap();
        let peers = PeerBook::open(&dir).unwrap();
        for (id, birth) in [(ids[1], 20), (ids[2], 30)] {
            let who = Introduction { birth, incarnation: Incarnation(1), ..Introduction::default() };
            peers.meet(id, &who, None, true).unwrap().unwrap();
        }
        let (mut wal, _) = Wal::open(&dir.wal(), dir.identity(), synod_storage::Options::default()).unwrap();
        for slot in 1..=3 {
            let record: LogRecord = LogRecord::Protocol {
                epoch: Epoch(1),
                record: multipaxos::Record::Accepted {
                    ballot: Ballot { round: 1, replica: R1 },
                    first: Slot(slot),
                    decided: Slot(slot - 1),
                    batches: [Batch::noop()].into(),
                }
                .into(),
            };
            wal.append(Lsn(slot), record.keep(), record.encode());
            wal.commit().unwrap();
        }
        wal.close().unwrap();
        let segment = dir.wal().join("00000000000000000001.wal");
        let mut bytes = fs::read(&segment).unwrap();
        bytes[4096 + 60] ^= 1;
        fs::write(&segment, bytes).unwrap();
        Config::new(CLUSTER, R1, Vec::new(), path.to_owned())
    }

    #[test]
    fn the_damaged_log_of_the_only_voter_left_is_not_set_aside() {
        for (members, voters) in [(vec![1], vec![1]), (vec![1, 2], vec![1]), (vec![1, 2], vec![1, 2])] {
            let folder = tempfile::tempdir().unwrap();
            let config = damaged(&folder.path().join("r1"), &members, &voters);
            let wal = config.data_dir.join("wal");
            let before = files(&wal);
            let opened = open(&config, vec![Nothing], false);
            match (members.len(), voters.len()) {
                (1, _) => assert!(matches!(opened.err(), Some(StartError::DamagedAlone(..)))),
                (_, 1) => assert!(matches!(opened.err(), Some(StartError::LostBeforeLearners(..)))),
                _ => assert!(opened.unwrap().groups[0].recovered.amnesia),
            }
            assert_eq!(files(&wal) == before, voters.len() == 1);
        }
    }

    /// It has nobody to ask and votes on, but its learners must not take it for one that remembers.
    #[test]
    fn the_only_voter_says_what_a_restart_may_lose() {
        for (durability, since) in [(Durability::Sync, 0), (Durability::Memory, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::new(CLUSTER, R1, Vec::new(), folder.path().to_owned());
            config.durability = durability;
            let dir = DataDir::open(&config.data_dir, CLUSTER, R1, &config.name, durability).unwrap();
            let group = Group::of(&Options::of(ProtocolKind::Raft), [R1]);
            dir.set_origin(&Origin::new(CLUSTER, group).encode()).unwrap();
            let (wal_dir, who) = (dir.wal(), dir.identity());
            let options = synod_storage::Options { durability, ..synod_storage::Options::default() };
            drop(Wal::open(&wal_dir, who, options).unwrap());
            drop(dir);
            let found = open(&config, vec![Nothing], false).unwrap();
            assert!(!found.groups[0].recovered.amnesia);
            assert_eq!(found.lives.introduction(Lsn(0)).since, Incarnation(since));
        }
    }
}
