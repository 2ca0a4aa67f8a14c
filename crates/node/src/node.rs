//! Starting and stopping a replica: what was found on disk, connections, threads.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{ElectionKind, Link, Role};
use synod_host::Parting;
use synod_replica::{
    Action, Event, Executor, Group, History, Mark, MergedFiles, Met, PeerMessage, Replica, StateMachine,
};
use synod_storage::{DataDir, Lives, PeerBook, Reached, SnapshotStore, StorageError, Wal};
use synod_sync::{
    Arc, Condvar, Mutex, PoisonError,
    channel::{Sender, bounded},
    thread::{self, JoinHandle},
};
use synod_transport::{Connections, Peer, Unreadable};
use synod_wire::{GROUPS_MAX, GroupId, Lsn, ReplicaId, Slot, Time};
use tokio::sync::Notify;

use crate::{
    Config, ConfigError, Ended, Handle, Lacking, Origin, StartError,
    blocking::blocking,
    executor::Job,
    found::{Found, FoundGroup, open, others_at_first},
    inputs::Queue,
    log::LogJob,
    lone_replica::is_only_voter,
    meeting::{Meetings, outlived, write_what_is_heard},
    origin::peers_of,
    protocol::{Clock, Input, addressed, peers as peers_in},
    snapshots::{self, SnapshotJob},
    status::Shared,
    wiring::{Shares, Wiring},
};

/// The interval of a clock that another group moves: about a century.
const NEVER_TICKS: Duration = Duration::from_secs(3_000_000_000);

/// The most ids of members that a lagging group has not seen, which an answer to a replica that asks for its cluster
/// names.
const UNSEEN_MAX: usize = 1 << 10;

/// A running replica, of one group or of several that share its log, its connections and its threads. Dropping it stops
/// it as [`Node::stop_now_blocking`] does: a program should call [`Node::stop`], or [`Node::stop_blocking`].
#[derive(Debug)]
pub struct Node {
    me: ReplicaId,
    /// By the number of the group.
    handles: Vec<Handle>,
    wiring: Wiring,
    #[cfg(feature = "metrics")]
    batch_max: u64,
    /// Dropping it ends the thread that writes down what peers tell.
    peers_stop: Option<Sender<()>>,
    connections: Option<Box<dyn Connections>>,
    protocol_thread: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
    log_thread: Option<JoinHandle<()>>,
    end: Arc<End>,
    _data_dir: Arc<DataDir>,
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
    /// The peers that its groups know.
    parting: Parting<String>,
    /// It lost something that it learns again.
    amnesia: bool,
    /// The snapshots of merged groups.
    files: Option<MergedFiles>,
}

/// A group that is about to run.
pub(crate) struct Begun {
    pub(crate) group: GroupId,
    pub(crate) replica: Replica,
    pub(crate) actions: Vec<Action>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) origin: Origin,
    /// The slot of its snapshot.
    pub(crate) executed: Slot,
    /// When it answers from its own state at the latest, unless it joins.
    pub(crate) settles_at: Time,
}

impl Begun {
    /// `groups` is the number of groups that the replica has.
    fn new(config: &Config, found: FoundGroup, groups: usize, data_dir: &DataDir, now: Time) -> Begun {
        let FoundGroup { group, store, origin, recovered } = found;
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
        let has_lived = recovered.last_lsn > Lsn::ZERO || recovered.snapshot.is_some() || recovered.amnesia;
        let settles_at = now + config.settings.request_timeout;
        let mut actions = Vec::new();
        let mut settings = config.settings.clone();
        if groups > 1 && settings.consensus.priority == 0 {
            let known = recovered.snapshot.as_ref().map_or(&origin.first, |snapshot| &snapshot.group);
            settings.consensus.priority = u8::from(leads_first(config.me, group, known));
        }
        settings.merged = config.merging.is_some();
        if settings.merged && group != GroupId::FIRST {
            // The groups have one clock, and the first one moves it.
            settings.clock_interval = NEVER_TICKS;
        }
        let replica = Replica::start(settings, config.me, origin.first.clone(), recovered, now, &mut actions);
        shared.group.store(Some(Arc::new(replica.group().clone())));
        // Nobody sees a replica that lost its log as the follower that it will be.
        shared.store(&replica.status());
        shared.settled.store(!has_lived && !joins(replica.group(), config.me), SeqCst);
        Begun { group, replica, actions, shared, store, origin, executed, settles_at }
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

/// Whether a replica is the one of its group that should lead if several could begin to at the same time: voter after
/// voter has its turn, group after group, so that one replica does not come to lead all. Only an election by ballots
/// needs that: where time-outs are drawn, chance spreads the leaders, and a fixed order knows no preference.
fn leads_first(me: ReplicaId, group: GroupId, of: &Group) -> bool {
    let turn = usize::from(group.0) % of.voters().count().max(1);
    of.election == ElectionKind::Ballot && of.voters().nth(turn) == Some(me)
}

/// Whether a replica joins a group of which it has not learned yet that it is, or was, a member.
pub(crate) fn joins(group: &Group, me: ReplicaId) -> bool {
    me >= group.next_id
}

impl Node {
    /// Starts a replica: reads its log and its last snapshot, listens, and takes part. That is done by a thread of its
    /// own; if the future is dropped, the replica is stopped as soon as it has started.
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
    /// commands by itself, and has its own leader. They share the write-ahead log and its fsyncs, one connection to
    /// each peer, and the threads.
    ///
    /// All replicas of the cluster have the same number of groups, and the same at every start. The members with which
    /// the groups begin are those of the configuration. Members are decided in the first group, and the others follow
    /// by themselves ([`synod_replica::Membership`]): [`Handle::change`] of another group changes what orders it, its
    /// limits, and who of the members votes in it ([`synod_replica::Change::Place`]). A replica is removed once no
    /// group has it any more.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start_groups<S: StateMachine>(config: Config, machines: Vec<S>) -> Result<Node, StartError> {
        let start = move || Node::start_groups_blocking(config, machines);
        blocking("start", start).await.map_err(StartError::Thread)?
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
        if config.merging.is_some() && machines.len() > 1 {
            return Err(ConfigError::MergedMachines(machines.len()).into());
        }
        let found = open(&config, machines, false)?;
        let Found { data_dir, mut wal, groups, executors, files, peers, lives, goes_on } = found;
        let (amnesia, durable) = (groups[0].recovered.amnesia, groups[0].recovered.last_lsn);
        tracing::info!(
            replica = %config.me, name = config.name, cluster = %config.cluster,
            incarnation = groups[0].recovered.incarnation.0, protocol = %config.settings.consensus.protocol,
            durability = %config.durability, groups = groups.len(), "starting"
        );
        let clock = Clock::start();
        let count = groups.len();
        let begin = |found| Begun::new(&config, found, count, &data_dir, clock.now());
        let mut begun: Vec<_> = groups.into_iter().map(begin).collect();
        for group in &begun {
            group.check(config.me, goes_on, &data_dir)?;
        }
        if goes_on {
            // The replica knows no other any more, whichever it may have known.
            peers.forget_all_but(|_| false)?;
            // And what is lost is not decided any more.
            peers.forget_reached()?;
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
        for (group, Reached { since, sums }) in peers.reached() {
            let Some(Begun { replica, actions, .. }) = begun.get_mut(usize::from(group.0)) else { continue };
            let marks = sums.into_iter().map(|(slot, fingerprint)| Mark { slot, fingerprint });
            let noted = History::noted(since, marks);
            noted.into_iter().for_each(|earlier| replica.remember(earlier, actions));
        }
        // Before anybody is met.
        let mut parting = Parting::new(config.settings.consensus.election_timeout, begun.len());
        for Begun { group: id, replica, origin, .. } in &begun {
            let (group, now) = (replica.group(), clock.now());
            let (members, former) = peers_of(group, origin, config.me);
            parting.group(now, *id, group, addressed(members), addressed(former));
            peers.expect(*id, group.births());
        }
        peers.forget_all_but(|id| parting.remembers(id))?;
        let opened = Opened {
            config,
            data_dir: Arc::new(data_dir),
            book: Arc::new(peers),
            lives,
            wal,
            parting,
            amnesia,
            files,
        };
        Node::run(opened, begun, executors, clock, durable)
    }

    /// Connects the replica with its peers, and begins its threads.
    fn run<S: StateMachine>(
        opened: Opened,
        begun: Vec<Begun>,
        executors: Vec<Executor<S>>,
        clock: Clock,
        durable: Lsn,
    ) -> Result<Node, StartError> {
        let Opened { config, data_dir, book, lives, wal, parting, amnesia, files } = opened;
        let end = Arc::new(End::default());
        let (wiring, ends) = Wiring::new(&config, begun.len(), durable).map_err(StartError::Thread)?;
        let meeting = Arc::new(meetings(&config, &begun[0], &book, wiring.inputs.clone()));
        let members: Vec<_> = peers_in(&parting).collect();
        let mut connections = connect(&config, members, &begun, &meeting, lives, &wiring, &end)?;
        let (transport, inbox) = (connections.sender(), connections.inbox());

        let log_stage = wiring.log_stage(wal, &begun, &transport, durable, config.merging.is_some());
        let snapshot_stage = wiring.snapshot_stage(&begun, files, snapshots::reader::<S>(), clock);
        let (here, there) = wiring.executors(&config, executors, &begun);
        let groups: Arc<[_]> = begun.iter().map(|group| Arc::clone(&group.shared)).collect();
        let handles = wiring.handles(&config, &begun, &groups, &transport);
        let shared = Shares { book: Arc::clone(&book), parting, amnesia };
        let common = wiring.common(&config, clock, &transport, shared);
        let hosted = begun.into_iter().map(|group| wiring.host(group, &data_dir, durable)).collect();
        let protocol = wiring.protocol_stage(&config, hosted, common, here, inbox, ends.inputs);

        let spawn = Spawn { me: config.me, end: &end };
        let mut threads = Vec::new();
        if let Some(executors) = there {
            let protocol = wiring.inputs.clone();
            threads.push(spawn.begin("executor", move || {
                executors.run(&ends.jobs, &protocol);
                Ok(())
            })?);
        }
        threads.push(spawn.begin("snapshots", move || {
            snapshot_stage.run(&ends.snapshots);
            Ok(())
        })?);
        let (peers_stop, stopped) = bounded(0);
        threads.push(spawn.begin("peers", move || {
            write_what_is_heard(&book, &*transport, &groups, &stopped);
            Ok(())
        })?);
        let log_thread = spawn.begin("log", move || log_stage.run(&ends.log).map_err(Ended::from))?;
        let protocol_thread = spawn.begin("protocol", move || protocol.run())?;
        Ok(Node {
            me: config.me,
            handles,
            wiring,
            #[cfg(feature = "metrics")]
            batch_max: config.settings.batch_bytes_max as u64,
            peers_stop: Some(peers_stop),
            connections: Some(connections),
            protocol_thread: Some(protocol_thread),
            threads,
            log_thread: Some(log_thread),
            end,
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

    /// The numbers of this replica, for a registry of Prometheus metrics. If it has several groups, what is said of a
    /// group is said of the first one. With the feature `metrics`.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics(&self) -> crate::NodeMetrics {
        let inner = &self.handles[0].inner;
        let shared = |handle: &Handle| Arc::clone(&handle.inner.shared);
        crate::NodeMetrics {
            shared: Arc::clone(&inner.shared),
            transport: inner.transport.clone(),
            queues: self.wiring.queues(),
            batch_max: self.batch_max,
            merged: self.handles.iter().filter(|handle| handle.inner.take.is_some()).map(shared).collect(),
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

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.reason().is_some()
    }

    /// Stops the replica. If it leads, it hands over first ([`Node::hand_over`]), which takes some milliseconds as a
    /// rule and a second at most. Then it fails what waits, commits and closes the log. A thread of its own does all of
    /// that, to its end, also if the future is dropped.
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub async fn stop(self) -> Result<(), Ended> {
        let stop = |node: Node| {
            node.hand_over_blocking();
            drop(node);
        };
        self.stop_apart(stop).await
    }

    /// [`Node::stop`] for callers that are not asynchronous: it blocks for the other replicas, and for the disk.
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub fn stop_blocking(self) -> Result<(), Ended> {
        self.hand_over_blocking();
        self.stop_now_blocking()
    }

    /// [`Node::stop`] without handing over: if this replica leads, nothing is served until the others elect, an
    /// election time-out later. For a group that stops as a whole, and for a replica that has handed over.
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub async fn stop_now(self) -> Result<(), Ended> {
        self.stop_apart(drop).await
    }

    /// [`Node::stop_now`] for callers that are not asynchronous: it blocks for the disk.
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub fn stop_now_blocking(mut self) -> Result<(), Ended> {
        self.shut_down();
        self.end.reason().unwrap_or(Ok(()))
    }

    async fn stop_apart(self, stop: fn(Node)) -> Result<(), Ended> {
        let end = Arc::clone(&self.end);
        // Where the system gives no thread, the replica is dropped here, and that stops it too.
        let _ = blocking("stop", move || stop(self)).await;
        end.reason().unwrap_or(Ok(()))
    }

    fn shut_down(&mut self) {
        self.handles[0].inner.admission.close();
        // Sends fail only where a thread has ended already.
        let _ = self.wiring.inputs.send(Input::Stop);
        join(self.protocol_thread.take());
        self.wiring.executor.send(GroupId::FIRST, Job::Stop);
        let _ = self.wiring.snapshots.send((GroupId::FIRST, SnapshotJob::Stop));
        let _ = self.wiring.log.send(LogJob { stop: true, ..Default::default() });
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

/// What is written down of a group, beside the log.
pub(crate) struct Notes {
    pub(crate) group: GroupId,
    pub(crate) data_dir: Arc<DataDir>,
    pub(crate) origin: Origin,
}

impl Notes {
    /// Writes down who is a member from now on; see [`crate::lone_replica`]. Blocks for the disk.
    pub(crate) fn group(&mut self, group: &Group) -> Result<(), StorageError> {
        // A log that lost its end may come to another group of the same version.
        if group.version >= self.origin.present.version && *group != self.origin.present {
            self.origin.present = group.clone();
            self.data_dir.set_origin_of(self.group, &self.origin.encode())?;
        }
        Ok(())
    }
}

/// The replicas that are met first are all the members with which a new group began.
fn meetings(config: &Config, first: &Begun, book: &Arc<PeerBook>, inputs: Queue) -> Meetings {
    let waits = first.replica.status().waits_for_members;
    let meetings = Meetings {
        book: Arc::clone(book),
        first: others_at_first(&first.origin, config.me),
        waits: AtomicBool::new(waits),
        complaints: Mutex::default(),
        inputs,
        shared: Arc::clone(&first.shared),
    };
    if waits {
        let missing = meetings.publish_missing();
        tracing::info!(waits_for = ?missing, "this replica votes once it has met all members of the new group");
    }
    meetings
}

fn connect(
    config: &Config,
    peers: Vec<Peer>,
    begun: &[Begun],
    meeting: &Arc<Meetings>,
    lives: Lives,
    wiring: &Wiring,
    end: &Arc<End>,
) -> Result<Box<dyn Connections>, StartError> {
    let (hosted, inputs) = (begun.len(), meeting.inputs.clone());
    let who = lives.introduction(Lsn::ZERO);
    let mut transport = synod_transport::Config::new(config.cluster, config.me, who.incarnation, who.birth);
    (transport.who, transport.durable) = (who, Arc::clone(&wiring.told));
    (transport.direct, transport.bell) = (wiring.bell.is_some(), wiring.bell.clone());
    transport.event_loop = config.event_loop.clone();
    transport.versions = config.versions.clone();
    transport.listen = config.listen.clone();
    (transport.listen_tls, transport.tls) = (config.listen_tls.clone(), config.tls.clone());
    transport.listeners = config.listeners.clone();
    transport.message_bytes_max = config.message_bytes_max();
    transport.peers = peers;
    let recognising = Arc::clone(meeting);
    transport.recognise = Arc::new(move |id, who, meeting| recognising.recognise(id, who, meeting));
    let present = |group: &Shared| group.group.load_full().expect("stored before");
    let groups: Vec<_> =
        begun.iter().map(|group| (Arc::clone(&group.shared), group.origin.clone())).collect();
    let (stop, end, me, noted) = (inputs.clone(), Arc::clone(end), config.me, groups.clone());
    transport.outlived = Arc::new(move |by, stranger| {
        let alone = noted.iter().any(|(shared, noted)| is_only_voter(me, noted.latest(&present(shared))));
        let why = outlived(&lives, by, stranger, alone);
        tracing::error!("{why}");
        end.set(Err(Ended::Outlived { by, why }));
        // Not a word more from this life.
        let _ = stop.send(Input::Stop);
    });
    let (cluster, merged) = (config.cluster, config.merging.map(|merging| merging.take));
    transport.answer = Arc::new(move || {
        let [(first, began), others @ ..] = &groups[..] else { unreachable!("a replica has a group") };
        let first = (*present(first)).clone();
        let mut staying = BTreeSet::new();
        for (other, _) in others {
            let other = present(other);
            if other.is_away(me) {
                // What this replica knows of the group is old; those that take part in it tell.
                continue;
            }
            let members = other.members.iter().map(|member| member.id).chain(other.outgoing.iter().copied());
            // Where this replica lags, a group may have a member that it has not seen there yet.
            let unseen = (other.next_id.0..first.next_id.0).take(UNSEEN_MAX).map(ReplicaId);
            staying.extend(members.chain(unseen).filter(|&id| first.member(id).is_none()));
        }
        Origin {
            cluster,
            first: began.first.clone(),
            present: first,
            others: others.iter().map(|(_, began)| began.first.clone()).collect(),
            staying: staying.into_iter().collect(),
            merged,
        }
        .encode()
    });
    let sink = move |happened: Vec<synod_transport::Event>| {
        let mut received = Vec::new();
        // A failed send means that the protocol's thread has ended; the stop follows.
        let hand_over = |received: &mut Vec<_>| {
            if !received.is_empty() {
                let _ = inputs.send(Input::Events(std::mem::take(received)));
            }
        };
        let read = happened.into_iter().try_for_each(|event| {
            let (peer, link) = match event {
                synod_transport::Event::Up { peer, .. } => (peer, Link::Up),
                synod_transport::Event::Down { peer } => (peer, Link::Down),
                synod_transport::Event::Refused { peer } => (peer, Link::Refused),
                synod_transport::Event::Met { peer, birth, incarnation, since, version } => {
                    let met = Met { birth, incarnation, since, version };
                    received.extend(met_in(hosted, peer, met));
                    return Ok(());
                }
                synod_transport::Event::Received { from, version, group, body } => {
                    return receive(hosted, group, from, version, body, &mut received);
                }
            };
            // What came before stays before.
            hand_over(&mut received);
            let _ = inputs.send(Input::Link(peer, link));
            Ok(())
        });
        hand_over(&mut received);
        read
    };
    Ok(config.network.start(transport, Box::new(sink))?)
}

/// What each of `hosted` groups is told of whose messages follow.
pub(crate) fn met_in(hosted: usize, peer: ReplicaId, met: Met) -> impl Iterator<Item = (GroupId, Event)> {
    let groups = u16::try_from(hosted).expect("at most GROUPS_MAX");
    (0..groups).map(move |group| (GroupId(group), Event::Met { peer, met }))
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
    let mut one = |(group, body): (GroupId, Bytes)| {
        if usize::from(group.0) >= hosted {
            return Err(Unreadable(format!(
                "it is of group {group}, and this replica has {hosted}; all replicas of a cluster have the same number of groups"
            )));
        }
        let message = PeerMessage::decode_in(version, body).map_err(|error| Unreadable(error.to_string()))?;
        events.push((group, Event::Receive { from, message }));
        Ok(())
    };
    if group == synod_host::BUNDLE {
        let messages = synod_host::open_bundle(body).map_err(|error| Unreadable(error.to_string()))?;
        return messages.into_iter().try_for_each(one);
    }
    one((group, body))
}
