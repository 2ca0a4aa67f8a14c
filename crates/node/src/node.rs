//! Starting and stopping a replica: data directory, log, snapshots, connections, threads.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64},
    time::Duration,
};

use synod_consensus::{Link, Role};
use synod_replica::{
    Event, Executor, Group, History, Installed, LogRecord, Mark, PeerMessage, Recovered, Replica,
    SnapshotInfo, StateMachine, salvage,
};
use synod_storage::{DataDir, Lives, Loss, PeerBook, Reached, SnapshotStore, StorageError, Wal};
use synod_sync::{
    Arc, Condvar, Mutex, PoisonError,
    channel::{Sender, bounded, unbounded},
    thread::{self, JoinHandle},
};
use synod_transport::{Connections, Unreadable};
use synod_wire::{GroupId, Lsn, ReplicaId, Slot, Time};
use tokio::sync::{Notify, Semaphore};

use crate::{
    Config, Ended, Handle, Lacking, Origin, StartError,
    alone::{Company, Verdict, is_only_voter},
    apart::apart,
    executor::{ExecutorStage, Job, JobSender},
    handle::Inner,
    inputs::Inputs,
    log::LogStage,
    meeting::{Meetings, outlived, write_what_is_heard},
    metrics::{NodeMetrics, Queues},
    origin::former,
    parting::Parting,
    protocol::{Clock, Execution, Input, ProtocolStage},
    snapshots::{SnapshotJob, SnapshotStage},
    status::Shared,
};

/// Events of peers and requests of clients that may wait for the protocol's thread. Whoever brings more waits, and
/// with it, in the end, the connection that it came from.
const INPUTS_MAX: usize = 8192;

/// A running replica. Dropping it stops it, and blocks meanwhile: asynchronous code should call [`Node::stop`].
#[derive(Debug)]
pub struct Node {
    me: ReplicaId,
    handle: Handle,
    inputs: Sender<Input>,
    executor: JobSender,
    snapshots: Sender<SnapshotJob>,
    log: Sender<crate::log::LogJob>,
    /// Dropping it ends the thread that writes down what peers tell.
    peers_stop: Option<Sender<()>>,
    connections: Option<Box<dyn Connections>>,
    protocol_thread: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
    log_thread: Option<JoinHandle<()>>,
    end: Arc<End>,
    queues: Arc<QueuesForMetrics>,
    _data_dir: Arc<DataDir>,
}

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
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) executor: Executor<S>,
    /// What the replica began with.
    pub(crate) origin: Origin,
    /// Who the others were when they were last seen.
    pub(crate) peers: PeerBook,
    /// The lives of this replica.
    pub(crate) lives: Lives,
    pub(crate) recovered: Recovered,
    /// Something was lost, and there is nobody else who may hold it.
    goes_on: bool,
}

/// Opens what a replica left. `recovering`: only to look at it; a loss is no reason to refuse then.
pub(crate) fn open<S: StateMachine>(
    config: &Config,
    machine: S,
    recovering: bool,
) -> Result<Found<S>, StartError> {
    let disk = || Arc::clone(&config.disk);
    let Config { cluster, me, name, durability, .. } = config;
    let data_dir = DataDir::open_on(disk(), &config.data_dir, *cluster, *me, name, *durability)?;
    let identity = data_dir.identity();
    let origin = origin(config, &data_dir)?;
    let peers = PeerBook::open(&data_dir)?;
    let lives = Lives::begin(&data_dir)?;

    let store = Arc::new(SnapshotStore::open_on(disk(), &data_dir.snapshots(), config.cluster)?);
    let mut executor = Executor::new(machine, origin.first.clone());
    let latest = store.latest()?;
    if matches!(Company::of(config.me, &origin.present), Company::Voters) && !recovering {
        // Where nobody else has another one, it stays where it is: the disk may read it tomorrow.
        store.set_aside(&latest.damaged)?;
    }
    let snapshot = match latest.snapshot {
        Some(file) => {
            let mut reader = store.open_snapshot(file.slot)?;
            executor
                .restore(&mut reader)
                .map_err(|error| StartError::Snapshot { path: file.path.clone(), error })?;
            let info = SnapshotInfo { slot: file.slot, bytes: file.file_bytes };
            let (ballots, group) = (executor.ballots(), executor.group().clone());
            Some(Installed { info, ballots, group, history: executor.history().clone() })
        }
        None => None,
    };

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
    let records = found.records.iter().map(|record| {
        let lsn = record.lsn;
        LogRecord::decode(record.bytes.clone()).map_err(|error| StartError::Record { lsn, error })
    });
    let mut records = records.collect::<Result<Vec<_>, _>>()?;
    let company = Company::of(config.me, &origin.present);
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
                let found = found.records.iter().map(|record| record.lsn).zip(records);
                records = salvage(found, executor.applied());
                last_lsn = wal.quarantine(
                    records.iter().map(|record| (GroupId::FIRST, record.keep(), record.encode())),
                )?;
                let (slots, bytes) = (records.len(), wal.bytes());
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
    let first = others_at_first(&origin, config.me);
    if config.begin_without_all {
        peers.wait_for_nobody()?;
    }
    let met_all = first.is_empty() || peers.has_met(&first)?;
    let (incarnation, nonce) = (identity.incarnation, lives.introduction(last_lsn).nonce);
    let recovered = Recovered { records, last_lsn, snapshot, amnesia, incarnation, nonce, met_all };
    let goes_on = verdict == Some(Verdict::GoOn);
    Ok(Found { data_dir, wal, store, executor, origin, peers, lives, recovered, goes_on })
}

/// The other members with which the group began, if this replica is one of them: one that joins later is told by those
/// who are there what was decided.
fn others_at_first(origin: &Origin, me: ReplicaId) -> Vec<ReplicaId> {
    if origin.first.member(me).is_none() {
        return Vec::new();
    }
    origin.first.members.iter().map(|member| member.id).filter(|&id| id != me).collect()
}

/// What the data directory says that the replica began with; at its first start that is written down.
fn origin(config: &Config, data_dir: &DataDir) -> Result<Origin, StartError> {
    if let Some(bytes) = data_dir.origin()? {
        return Origin::decode(bytes)
            .map_err(|error| StartError::Origin { data_dir: data_dir.path().to_owned(), error });
    }
    let origin = config.origin()?;
    data_dir.set_origin(&origin.encode())?;
    Ok(origin)
}

fn spawn(
    name: String,
    end: &Arc<End>,
    body: impl FnOnce() -> Result<(), Ended> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let end = Arc::clone(end);
    thread::Builder::new().name(name.clone()).spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => end.set(Err(error)),
            Err(_) => end.set(Err(Ended::Panicked(name))),
        }
    })
}

impl Node {
    /// Starts a replica: reads its log and its last snapshot, listens, and takes part. That is done by a thread of its own; if
    /// the future is dropped, the replica is stopped as soon as it has started.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start<S: StateMachine>(config: Config, machine: S) -> Result<Node, StartError> {
        apart("start", move || Node::start_blocking(config, machine)).await.map_err(StartError::Thread)?
    }

    /// [`Node::start`] for callers that are not asynchronous: it blocks for the disk.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_blocking<S: StateMachine>(config: Config, machine: S) -> Result<Node, StartError> {
        config.check()?;
        let Found { data_dir, mut wal, store, executor, mut origin, peers, lives, recovered, goes_on } =
            open(&config, machine, false)?;
        let amnesia = recovered.amnesia;
        let durable = recovered.last_lsn;
        let snapshot_slot = recovered.snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.info.slot);
        let log_empty = recovered.last_lsn == Lsn::ZERO;
        let told = Arc::new(AtomicU64::new(durable.0));
        tracing::info!(
            replica = %config.me, name = config.name, cluster = %config.cluster, incarnation = recovered.incarnation.0,
            protocol = %config.settings.consensus.protocol, durability = %config.durability,
            records = recovered.records.len(), snapshot = snapshot_slot.0,
            first_start = log_empty, "starting"
        );

        let (inputs, inputs_end) = bounded(INPUTS_MAX);
        let (requests, around) = Inputs::new(inputs.clone());
        let (jobs, jobs_end) = unbounded();
        let (snapshots, snapshots_end) = unbounded();
        let (log, log_end) = unbounded();
        let shared = Arc::new(Shared::default());
        #[cfg(feature = "shuttle")]
        shared.watch.begin(data_dir.path());
        let end = Arc::new(End::default());

        let first = origin.first.clone();
        let clock = Clock::start();
        let mut actions = Vec::new();
        let mut replica =
            Replica::start(config.settings.clone(), config.me, first, recovered, clock.now(), &mut actions);
        shared.group.store(Some(Arc::new(replica.group().clone())));
        // Nobody sees a replica that lost its log as the follower that it will be.
        shared.store(&replica.status());
        let group = replica.group();
        let damaged = |lacking| StartError::DamagedAlone(lacking, data_dir.path().to_owned());
        if is_only_voter(config.me, origin.latest(group))
            && replica.status().protocol.role == Role::Recovering
        {
            return Err(damaged(Lacking::Snapshot));
        }
        if goes_on {
            if !is_only_voter(config.me, group) {
                return Err(damaged(Lacking::Removals));
            }
            if group.next_id != origin.present.next_id {
                return Err(StartError::MembersForgotten);
            }
            // Nobody is known any more whom it may have known.
            peers.forget_all_but(|_| false)?;
            // And what is lost is not decided any more.
            peers.reach(None)?;
        }
        if goes_on || group.version > origin.present.version {
            origin.present = group.clone();
            data_dir.set_origin(&origin.encode())?;
        }
        if goes_on {
            // Last: a start that ended before would otherwise leave a group behind that the log never reaches.
            wal.loss_made_good()?;
        }
        if let Some(Reached { since, sums }) = peers.reached() {
            let marks = sums.into_iter().map(|(slot, fingerprint)| Mark { slot, fingerprint });
            let noted = History::noted(since, marks);
            noted.into_iter().for_each(|earlier| replica.remember(earlier, &mut actions));
        }
        let data_dir = Arc::new(data_dir);
        let book = Arc::new(peers);
        forget_the_removed(&book, replica.group())?;
        let meeting = Arc::new(Meetings {
            book: Arc::clone(&book),
            first: others_at_first(&origin, config.me),
            waits: AtomicBool::new(replica.status().waits_for_members),
            complained: Mutex::default(),
            inputs: inputs.clone(),
            shared: Arc::clone(&shared),
        });
        if replica.status().waits_for_members {
            let missing = meeting.publish_missing();
            tracing::info!(waits_for = ?missing, "this replica votes once it has met all members of the new group");
        }
        let connections = connect(&config, &origin, &meeting, lives, &told, &end)?;
        let transport = connections.sender();
        let (peers_stop, stopped) = bounded(0);
        let mut parting = Parting::new(config.settings.consensus.election_timeout);
        let group = replica.group();
        parting.group(clock.now(), group, origin.members(group, config.me), former(group, config.me));

        let stage = ExecutorStage {
            executor,
            events: inputs.clone(),
            snapshots: snapshots.clone(),
            store: Arc::clone(&store),
            shared: Arc::clone(&shared),
            waiting: Default::default(),
        };
        let name = |what: &str| format!("{what}-{}", config.me.0);
        let mut threads = Vec::new();
        let (execution, executor) = if config.executor_thread {
            threads.push(spawn(name("executor"), &end, move || {
                stage.run(&jobs_end);
                Ok(())
            }));
            (Execution::Thread(jobs.clone()), JobSender::Thread(jobs))
        } else {
            (Execution::Here(Box::new(stage)), JobSender::Protocol(requests.clone()))
        };
        let log_stage = LogStage {
            wal,
            events: inputs.clone(),
            transport: Arc::clone(&transport),
            shared: Arc::clone(&shared),
            told,
            gated: Vec::new(),
            released: 0,
            trim: None,
            loss_made_good: false,
        };
        let log_end_run = log_end;
        let log_thread = spawn(name("log"), &end, move || log_stage.run(&log_end_run).map_err(Ended::from));
        let snapshot_stage = SnapshotStage {
            store,
            events: inputs.clone(),
            executor: executor.clone(),
            receiving: None,
            served: None,
            stopping: false,
        };
        threads.push(spawn(name("snapshots"), &end, move || {
            snapshot_stage.run(&snapshots_end);
            Ok(())
        }));
        let (heard, sender) = (Arc::clone(&meeting.book), Arc::clone(&transport));
        let reached = Arc::clone(&shared);
        threads.push(spawn(name("peers"), &end, move || {
            write_what_is_heard(&heard, &*sender, &reached, &stopped);
            Ok(())
        }));
        let queues = Queues { inputs: inputs.clone(), log: log.clone(), executor: executor.clone() };
        let protocol = ProtocolStage {
            replica,
            actions,
            clock,
            inputs: inputs_end,
            around,
            log: log.clone(),
            transport: Arc::clone(&transport),
            execution,
            snapshots: snapshots.clone(),
            shared: Arc::clone(&shared),
            me: config.me,
            notes: Notes { data_dir: Arc::clone(&data_dir), book, origin },
            parting,
            failed: None,
            loss_pending: amnesia,
            stranded: Default::default(),
            durable,
            gated: 0,
            executed: snapshot_slot,
            reached_at: Time::ZERO,
            deadline: Time::ZERO,
            waiting: Default::default(),
        };
        let protocol_thread = spawn(name("protocol"), &end, move || protocol.run());

        let permits_max = Inner::permits(config.settings.queue_bytes_max);
        let handle = Handle::new(Inner {
            inputs: requests,
            executor: executor.clone(),
            admission: Arc::new(Semaphore::new(permits_max)),
            permits_max,
            shared,
            transport: Arc::clone(&transport),
        });
        let spawned = |thread: io::Result<JoinHandle<()>>| thread.map_err(StartError::Thread);
        Ok(Node {
            me: config.me,
            handle,
            inputs,
            executor,
            snapshots,
            log,
            peers_stop: Some(peers_stop),
            connections: Some(connections),
            protocol_thread: Some(spawned(protocol_thread)?),
            threads: threads.into_iter().map(spawned).collect::<Result<_, _>>()?,
            log_thread: Some(spawned(log_thread)?),
            end,
            queues: Arc::new(QueuesForMetrics(queues)),
            _data_dir: data_dir,
        })
    }

    /// A handle for clients in this process.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Where other replicas reach this one.
    #[must_use]
    pub fn peer_addresses(&self) -> Vec<std::net::SocketAddr> {
        self.connections.as_ref().map_or_else(Vec::new, |connections| connections.local_addresses())
    }

    /// The numbers of this replica, for a registry of Prometheus metrics.
    #[must_use]
    pub fn metrics(&self) -> NodeMetrics {
        let inner = &self.handle.inner;
        NodeMetrics {
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
        self.handle.inner.admission.close();
        // Sends fail only where a thread has ended already.
        let _ = self.inputs.send(Input::Stop);
        join(self.protocol_thread.take());
        self.executor.send(Job::Stop);
        let _ = self.snapshots.send(SnapshotJob::Stop);
        let _ = self.log.send(crate::log::LogJob { stop: true, ..Default::default() });
        join(self.log_thread.take());
        self.peers_stop = None;
        self.threads.drain(..).for_each(|thread| join(Some(thread)));
        self.connections = None;
        self.end.set(Ok(()));
        #[cfg(feature = "shuttle")]
        if matches!(self.end.reason(), Some(Ok(()))) {
            self.handle.inner.shared.watch.ended();
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

/// What is written down of the group, beside the log.
pub(crate) struct Notes {
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
            self.data_dir.set_origin(&self.origin.encode())?;
        }
        forget_the_removed(&self.book, group)
    }
}

fn connect(
    config: &Config,
    origin: &Origin,
    meeting: &Arc<Meetings>,
    lives: Lives,
    durable: &Arc<AtomicU64>,
    end: &Arc<End>,
) -> Result<Box<dyn Connections>, StartError> {
    let (shared, inputs) = (&meeting.shared, meeting.inputs.clone());
    let who = lives.introduction(Lsn::ZERO);
    let mut transport = synod_transport::Config::new(config.cluster, config.me, who.incarnation, who.birth);
    (transport.who, transport.durable) = (who, Arc::clone(durable));
    transport.versions = config.versions.clone();
    transport.listen = config.listen.clone();
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
    let sink = move |event: synod_transport::Event| {
        let event = match event {
            synod_transport::Event::Up { peer, .. } => Event::Link { peer, link: Link::Up },
            synod_transport::Event::Down { peer } => Event::Link { peer, link: Link::Down },
            synod_transport::Event::Refused { peer } => Event::Link { peer, link: Link::Refused },
            synod_transport::Event::Received { from, version, group, body } => {
                if group != GroupId::FIRST {
                    return Err(Unreadable(format!(
                        "it is of group {group}, which this replica does not host"
                    )));
                }
                match PeerMessage::decode_in(version, body) {
                    Ok(message) => Event::Receive { from, message },
                    Err(error) => return Err(Unreadable(error.to_string())),
                }
            }
        };
        // A failed send means that the protocol's thread has ended; the stop follows.
        let _ = inputs.send(Input::Event(event));
        Ok(())
    };
    Ok(config.network.start(transport, Box::new(sink))?)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Read, Write},
        path::{Path, PathBuf},
    };

    use bytes::Bytes;
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
            let opened = open(&config, Nothing, false);
            match (members.len(), voters.len()) {
                (1, _) => assert!(matches!(opened.err(), Some(StartError::DamagedAlone(..)))),
                (_, 1) => assert!(matches!(opened.err(), Some(StartError::LostBeforeLearners(..)))),
                _ => assert!(opened.unwrap().recovered.amnesia),
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
            let found = open(&config, Nothing, false).unwrap();
            assert!(!found.recovered.amnesia);
            assert_eq!(found.lives.introduction(Lsn(0)).since, Incarnation(since));
        }
    }
}
