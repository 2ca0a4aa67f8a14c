//! Starting and stopping a replica: data directory, log, snapshots, connections, threads.

use std::{collections::VecDeque, io, time::Duration};

use synod_consensus::{Role, VoterSets};
use synod_replica::{
    Event, Executor, Group, Installed, LogRecord, PeerMessage, Recovered, Replica, SnapshotInfo, StateMachine,
};
use synod_storage::{DataDir, Identity, Loss, PeerBook, SnapshotStore, Wal};
use synod_sync::{
    Arc, Condvar, Mutex, PoisonError,
    channel::{Sender, bounded, unbounded},
    thread::{self, JoinHandle},
};
use synod_transport::Transport;
use synod_wire::{Lsn, ReplicaId, Slot, Time};
use tokio::sync::Semaphore;

use crate::{
    Config, Handle, Origin, StartError,
    alone::{is_alone, latest_group},
    executor::{ExecutorStage, Job, JobSender},
    handle::Inner,
    log::LogStage,
    metrics::{NodeMetrics, Queues},
    protocol::{Clock, Execution, Input, ProtocolStage},
    snapshots::{SnapshotJob, SnapshotStage},
    status::Shared,
};

/// Events of peers and requests of clients that may wait for the protocol's thread. Whoever brings more waits, and
/// with it, in the end, the connection that it came from.
const INPUTS_MAX: usize = 8192;

/// A running replica. Dropping it stops it.
#[derive(Debug)]
pub struct Node {
    handle: Handle,
    inputs: Sender<Input>,
    executor: JobSender,
    snapshots: Sender<SnapshotJob>,
    log: Sender<crate::log::LogJob>,
    transport: Option<Transport>,
    protocol_thread: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
    log_thread: Option<JoinHandle<()>>,
    end: Arc<End>,
    queues: Arc<QueuesForMetrics>,
    _data_dir: DataDir,
}

struct QueuesForMetrics(Queues);

impl std::fmt::Debug for QueuesForMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queues")
    }
}

/// How a replica ended, for whoever waits for it.
#[derive(Debug, Default)]
struct End {
    reason: Mutex<Option<Result<(), String>>>,
    ended: Condvar,
}

impl End {
    fn set(&self, result: Result<(), String>) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.get_or_insert(result);
        self.ended.notify_all();
    }

    fn wait(&self, timeout: Duration) -> Option<Result<(), String>> {
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
    /// Who the others were when they were first seen.
    pub(crate) peers: PeerBook,
    pub(crate) recovered: Recovered,
}

pub(crate) fn open<S: StateMachine>(config: &Config, machine: S) -> Result<Found<S>, StartError> {
    let data_dir =
        DataDir::open(&config.data_dir, config.cluster, config.me, &config.name, config.durability)?;
    let identity = data_dir.identity();
    let origin = origin(config, &data_dir)?;
    let peers = PeerBook::open(&data_dir)?;

    let store = Arc::new(SnapshotStore::open(&data_dir.snapshots(), config.cluster)?);
    let mut executor = Executor::new(machine, origin.first.clone());
    let latest = store.latest()?;
    for damaged in &latest.damaged {
        tracing::error!(
            slot = damaged.slot.0,
            reason = damaged.reason,
            "a snapshot is damaged; it is not used"
        );
    }
    let snapshot = match latest.snapshot {
        Some(file) => {
            let mut reader = store.open_snapshot(file.slot)?;
            executor
                .restore(&mut reader)
                .map_err(|error| StartError::Unreadable(format!("{}: {error}", file.path.display())))?;
            let info = SnapshotInfo { slot: file.slot, bytes: file.file_bytes };
            Some(Installed { info, ballots: executor.ballots(), group: executor.group().clone() })
        }
        None => None,
    };

    let options = synod_storage::Options {
        durability: config.durability,
        segment_bytes: config.segment_bytes,
        ..synod_storage::Options::default()
    };
    let (mut wal, found) = Wal::open(&data_dir.wal(), identity, options)?;
    let mut last_lsn = found.last;
    let records = found.records.iter().map(|record| {
        let lsn = record.lsn;
        LogRecord::decode(record.bytes.clone())
            .map_err(|error| StartError::Unreadable(format!("log record {lsn}: {error}")))
    });
    let mut records = records.collect::<Result<Vec<_>, _>>()?;
    let group = latest_group(executor.group().clone(), executor.applied(), &records);
    let alone = is_alone(&group, config.me, &peers.births());
    if let Some(damage) = &found.damage {
        if alone {
            return Err(StartError::DamagedAlone(damage.to_string(), data_dir.wal()));
        }
        tracing::error!(%damage, "the log is damaged: set aside; this replica learns from its peers before it votes");
        // What can still be read may be older than what was promised: believe none of it.
        last_lsn = wal.quarantine(&[])?;
        records.clear();
    } else if let Some(loss) = &found.loss {
        match loss {
            _ if !alone => tracing::warn!(%loss, "this replica learns from its peers before it votes"),
            // It was told to acknowledge what a restart may lose.
            Loss::Memory | Loss::Reboot => {
                tracing::warn!(%loss, "there is no other replica: this one goes on with what it finds");
            }
            _ if config.accept_lost_log => {
                tracing::warn!(%loss, "there is no other replica: this one goes on from its last snapshot, as it is told");
                wal.loss_made_good()?;
            }
            _ => return Err(StartError::LostAlone(loss.to_string(), data_dir.path().to_owned())),
        }
    }
    let amnesia = (found.damage.is_some() || found.loss.is_some()) && !alone;
    let recovered = Recovered { records, last_lsn, snapshot, amnesia, incarnation: identity.incarnation };
    Ok(Found { data_dir, wal, store, executor, origin, peers, recovered })
}

/// What the data directory says that the replica began with; at its first start that is written down.
fn origin(config: &Config, data_dir: &DataDir) -> Result<Origin, StartError> {
    let path = data_dir.path();
    if let Some(bytes) = data_dir.first_group()? {
        let unreadable = |error| {
            StartError::Unreadable(format!("{}: what the replica began with: {error}", path.display()))
        };
        return Origin::decode(bytes).map_err(unreadable);
    }
    let origin = config.origin()?;
    data_dir.set_first_group(&origin.encode())?;
    Ok(origin)
}

fn spawn(
    name: String,
    end: &Arc<End>,
    body: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let end = Arc::clone(end);
    thread::Builder::new().name(name.clone()).spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => end.set(Err(error)),
            Err(_) => end.set(Err(format!("thread {name} panicked; see the message above"))),
        }
    })
}

impl Node {
    /// Starts a replica: reads its log and its last snapshot, listens, and takes part.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start<S: StateMachine>(config: Config, machine: S) -> Result<Node, StartError> {
        config.check()?;
        let Found { data_dir, wal, store, executor, origin, peers, recovered } = open(&config, machine)?;
        let amnesia = recovered.amnesia;
        let durable = recovered.last_lsn;
        let snapshot_slot = recovered.snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.info.slot);
        let log_empty = recovered.last_lsn == Lsn::ZERO;
        tracing::info!(
            replica = %config.me, name = config.name, cluster = %config.cluster, incarnation = recovered.incarnation.0,
            protocol = %config.settings.consensus.protocol, durability = %config.durability,
            records = recovered.records.len(), snapshot = snapshot_slot.0,
            first_start = log_empty, "starting"
        );

        let (inputs, inputs_end) = bounded(INPUTS_MAX);
        let (jobs, jobs_end) = unbounded();
        let (snapshots, snapshots_end) = unbounded();
        let (log, log_end) = unbounded();
        let shared = Arc::new(Shared::default());
        #[cfg(feature = "shuttle")]
        shared.watch.begin(data_dir.path());
        let end = Arc::new(End::default());

        let identity = data_dir.identity();
        let first = origin.first.clone();
        let clock = Clock::start();
        let mut actions = Vec::new();
        let replica =
            Replica::start(config.settings.clone(), config.me, first, recovered, clock.now(), &mut actions);
        shared.group.store(Some(Arc::new(replica.group().clone())));
        let alone = replica.group().voter_sets() == VoterSets::simple(vec![config.me]);
        if alone && replica.status().protocol.role == Role::Recovering {
            let reason = if amnesia {
                "this replica, now the only voter, lost a part of it before it had learned that from the others"
            } else {
                "it relies on a snapshot that is missing, or was set aside before"
            };
            return Err(StartError::DamagedAlone(reason.to_owned(), data_dir.path().to_owned()));
        }
        forget_the_removed(&peers, replica.group())?;
        let transport = start_transport(&config, identity, &origin, peers, &shared, inputs.clone())?;

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
            (Execution::Here(Box::new(stage)), JobSender::Protocol(inputs.clone()))
        };
        let log_stage = LogStage {
            wal,
            events: inputs.clone(),
            transport: transport.sender(),
            shared: Arc::clone(&shared),
            gated: VecDeque::new(),
            released: 0,
            trim: None,
            loss_made_good: false,
        };
        let log_end_run = log_end;
        let log_thread =
            spawn(name("log"), &end, move || log_stage.run(&log_end_run).map_err(|error| error.to_string()));
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
        let queues = Queues { inputs: inputs.clone(), log: log.clone(), executor: executor.clone() };
        let protocol = ProtocolStage {
            replica,
            actions,
            clock,
            inputs: inputs_end,
            log: log.clone(),
            transport: transport.sender(),
            execution,
            snapshots: snapshots.clone(),
            shared: Arc::clone(&shared),
            me: config.me,
            origin,
            loss_pending: amnesia,
            stranded: Default::default(),
            durable,
            gated: 0,
            executed: snapshot_slot,
            deadline: Time::ZERO,
            waiting: Default::default(),
        };
        let protocol_thread = spawn(name("protocol"), &end, move || {
            protocol.run();
            Ok(())
        });

        let permits_max = Inner::permits(config.settings.queue_bytes_max);
        let handle = Handle::new(Inner {
            inputs: inputs.clone(),
            executor: executor.clone(),
            admission: Arc::new(Semaphore::new(permits_max)),
            permits_max,
            shared,
            transport: transport.sender(),
        });
        let spawned = |thread: io::Result<JoinHandle<()>>| {
            thread.map_err(|error| StartError::Config(format!("a thread can not be started: {error}")))
        };
        Ok(Node {
            handle,
            inputs,
            executor,
            snapshots,
            log,
            transport: Some(transport),
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
        self.transport.as_ref().map_or_else(Vec::new, |transport| transport.local_addresses().to_vec())
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

    /// Waits until the replica ends by itself, which it does only when it can not go on, and says why. `None`: it
    /// still runs after `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<String> {
        self.end.wait(timeout).and_then(Result::err)
    }

    /// Stops the replica: fails what waits, commits and closes the log.
    ///
    /// # Errors
    /// Why it had ended before, or why the log could not be closed.
    pub fn stop(mut self) -> Result<(), String> {
        self.shut_down();
        match self.end.wait(Duration::ZERO) {
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
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
        self.threads.drain(..).for_each(|thread| join(Some(thread)));
        if let Some(transport) = self.transport.take() {
            transport.shutdown();
        }
        self.end.set(Ok(()));
        #[cfg(feature = "shuttle")]
        if self.end.wait(Duration::ZERO) == Some(Ok(())) {
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
fn forget_the_removed(peers: &PeerBook, group: &Group) -> Result<(), StartError> {
    let may_come = |id: &ReplicaId| *id >= group.next_id || group.known().any(|member| member.id == *id);
    let kept: Vec<_> = peers.births().into_keys().filter(may_come).collect();
    Ok(peers.forget_all_but(&kept)?)
}

fn start_transport(
    config: &Config,
    identity: Identity,
    origin: &Origin,
    peers: PeerBook,
    shared: &Arc<Shared>,
    inputs: Sender<Input>,
) -> Result<Transport, StartError> {
    let mut transport =
        synod_transport::Config::new(config.cluster, config.me, identity.incarnation, identity.birth);
    transport.listen = config.listen.clone();
    transport.message_bytes_max = config.message_bytes_max();
    let group = shared.group.load_full().expect("stored before");
    transport.peers = origin.peers(&group, config.me);
    transport.recognise = Arc::new(move |id, birth| {
        peers.recognise(id, birth).unwrap_or_else(|error| {
            tracing::error!(%id, %error, "no new peer is recognised before a restart");
            false
        })
    });
    let (cluster, first, shared) = (config.cluster, origin.first.clone(), Arc::clone(shared));
    transport.answer = Arc::new(move || {
        let present = shared.group.load_full().expect("stored before");
        Origin { cluster, first: first.clone(), present: (*present).clone() }.encode()
    });
    let sink = move |event: synod_transport::Event| {
        let event = match event {
            synod_transport::Event::Up { peer, .. } => Event::Link { peer, up: true },
            synod_transport::Event::Down { peer } => Event::Link { peer, up: false },
            synod_transport::Event::Received { from, body } => match PeerMessage::decode(body) {
                Ok(message) => Event::Receive { from, message },
                Err(error) => return complain(from, &error),
            },
        };
        // A failed send means that the protocol's thread has ended; the stop follows.
        let _ = inputs.send(Input::Event(event));
    };
    Ok(Transport::start(transport, sink)?)
}

fn complain(from: ReplicaId, error: &synod_wire::DecodeError) {
    tracing::warn!(%from, %error, "a message that makes no sense; is the peer of another version?");
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
    use synod_replica::Frozen;
    use synod_storage::Durability;
    use synod_wire::{Ballot, Batch, ClusterId, Epoch};

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
        fn apply(&mut self, _command: &Bytes) -> Bytes {
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

    /// The replica began in a group of three. `shrunk`: the others were removed, which the log says. One bit of a record
    /// has changed.
    fn damaged(path: &Path, shrunk: bool) -> Config {
        let ids = [R1, ReplicaId(2), ReplicaId(3)];
        let first = Group::of(&Options::of(ProtocolKind::MultiPaxos), ids);
        let dir = DataDir::open(path, CLUSTER, R1, "n1", Durability::Sync).unwrap();
        dir.set_first_group(&Origin::new(CLUSTER, first.clone()).encode()).unwrap();
        let peers = PeerBook::open(&dir).unwrap();
        assert!(peers.recognise(ids[1], 20).unwrap() && peers.recognise(ids[2], 30).unwrap());
        let (mut wal, _) = Wal::open(&dir.wal(), dir.identity(), synod_storage::Options::default()).unwrap();
        let accepted = |epoch, slot| LogRecord::Protocol {
            epoch: Epoch(epoch),
            record: multipaxos::Record::Accepted {
                ballot: Ballot { round: 1, replica: R1 },
                first: Slot(slot),
                decided: Slot(slot - 1),
                batches: [Batch::noop()].into(),
            }
            .into(),
        };
        let mut records = vec![accepted(1, 1)];
        if shrunk {
            let mut group = Group { epoch: Epoch(3), first: Slot(2), version: 3, ..first };
            group.members.retain(|member| member.id == R1);
            records.push(LogRecord::Entered { group, amnesia: false });
        }
        records.push(accepted(if shrunk { 3 } else { 1 }, 2));
        for (lsn, record) in (1..).map(Lsn).zip(&records) {
            wal.append(lsn, record.keep(), record.encode());
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
        for shrunk in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let config = damaged(&folder.path().join("r1"), shrunk);
            let wal = config.data_dir.join("wal");
            let before = files(&wal);
            let opened = open(&config, Nothing);
            if shrunk {
                assert!(matches!(opened.err(), Some(StartError::DamagedAlone(..))));
                assert_eq!(files(&wal), before);
            } else {
                assert!(opened.unwrap().recovered.amnesia);
                assert_ne!(files(&wal), before);
            }
        }
    }
}
