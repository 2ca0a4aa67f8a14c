//! Three replicas in this process, on real sockets and disks.

use std::{
    io::{self, Read},
    mem::replace,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use crate::common::{Group, Tape, append, block, tape};
use bytes::Bytes;
use synod_consensus::{ElectionKind, Options, ProtocolKind, Role};
use synod_node::{Config, Handle, Merging, Node, NodeStatus, StartError, Threads};
use synod_replica::{
    Change, Context, Frozen, LogRecord, RequestError, SessionCommand, SnapshotReader, StateMachine,
};
use synod_storage::Durability;
use synod_testkit::until;
use synod_wire::{ClusterId, Epoch, Slot};

#[test]
fn commands_and_reads_work_at_every_replica() {
    for tune in [|_: &mut Config| {}, |config: &mut Config| config.threads = Threads::Compact] {
        let group = Group::new(3, tune);
        let nodes = [group.start(1), group.start(2), group.start(3)];
        assert_eq!(append(&nodes[0].handle(), "a"), "1");
        assert_eq!(append(&nodes[1].handle(), "b"), "2");
        assert_eq!(append(&nodes[2].handle(), "c"), "3");
        for node in &nodes {
            assert_eq!(tape(&node.handle()), "abc");
        }
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    }
}

#[test]
fn a_stopped_group_comes_back_with_its_state() {
    let group = Group::new(3, |_| {});
    let nodes = [group.start(1), group.start(2), group.start(3)];
    append(&nodes[0].handle(), "before");
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    let nodes = [group.start(1), group.start(2), group.start(3)];
    assert_eq!(tape(&nodes[1].handle()), "before");
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}

/// What a client reads from one replica does not go back when the replica is started again, although its log does not
/// say how far it was decided. Without a quorum it answers what it has.
#[test]
fn a_restarted_replica_answers_no_older_than_before() {
    fn common(config: &mut Config) {
        config.settings.request_timeout = Duration::from_secs(2);
    }
    let stale = |node: &Node| {
        let answer = block(node.handle().query_stale(Bytes::new())).unwrap();
        String::from_utf8(answer.to_vec()).unwrap()
    };
    for tune in [
        common,
        |config: &mut Config| {
            common(config);
            config.threads = Threads::Compact;
        },
        |config: &mut Config| {
            common(config);
            config.merging = Some(Merging::of(2));
        },
        |config: &mut Config| {
            config.settings.consensus = Options::of(ProtocolKind::Raft);
            config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
            config.settings.consensus.election_timeout = Duration::from_millis(300);
            common(config);
        },
    ] {
        let group = Group::new(3, tune);
        let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(group.start(id))).collect();
        let mut whole = String::new();
        for number in 0..30 {
            let text = format!("<{number}>");
            append(&nodes[number % 3].as_ref().unwrap().handle(), &text);
            whole += &text;
        }
        for (id, node) in (1..).zip(&mut nodes) {
            until("the replica has everything", || stale(node.as_ref().unwrap()) == whole);
            node.take().unwrap().stop_now_blocking().unwrap();
            let again = group.start(id);
            assert_eq!(stale(&again), whole);
            *node = Some(again);
        }
        nodes.into_iter().flatten().for_each(|node| node.stop_now_blocking().unwrap());
        let alone = group.start(1);
        let began = Instant::now();
        assert!(whole.starts_with(&stale(&alone)));
        assert!(began.elapsed() < Duration::from_secs(10));
        // It has waited once.
        let began = Instant::now();
        assert!(whole.starts_with(&stale(&alone)) && began.elapsed() < Duration::from_millis(900));
    }
}

const LARGE: usize = 60_000;

/// Appends so much that segments of the log are removed once snapshots cover them: a replica that was not there needs a
/// snapshot.
fn append_much(handle: &Handle) {
    for _ in 0..60 {
        append(handle, &"y".repeat(LARGE));
    }
    until("a snapshot", || handle.status().snapshot >= Slot(40));
}

#[test]
fn service_goes_on_without_the_leader_and_it_catches_up_by_snapshot_when_it_returns() {
    let group = Group::new(3, |config| {
        config.settings.snapshot_slots = 20;
        config.settings.keep_slots = 5;
    });
    let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(group.start(id))).collect();
    append(&nodes[0].as_ref().unwrap().handle(), "x");
    let leader = nodes[0].as_ref().unwrap().handle().status().leader.unwrap().0 as usize - 1;
    nodes[leader].take().unwrap().stop_now_blocking().unwrap();
    let other = nodes[(leader + 1) % 3].as_ref().unwrap().handle();
    append_much(&other);
    nodes[leader] = Some(group.start(leader as u64 + 1));
    let returned = nodes[leader].as_ref().unwrap().handle();
    assert_eq!(tape(&returned), format!("x{}", "y".repeat(60 * LARGE)));
    until("equal digests", || {
        let all = nodes.iter().flatten().map(|node| block(node.handle().digest()).unwrap());
        let all: Vec<_> = all.collect();
        all.iter().all(|digest| *digest == all[0])
    });
}

/// A replica that has its snapshot, lost its log and is alone for now.
#[test]
fn a_replica_shows_what_its_snapshot_holds_before_it_executes_anything() {
    for tune in [
        |config: &mut Config| config.settings.snapshot_slots = 20,
        |config: &mut Config| {
            config.settings.snapshot_slots = 20;
            config.merging = Some(Merging::of(2));
        },
    ] {
        let group = Group::new(3, tune);
        let nodes = [group.start(1), group.start(2), group.start(3)];
        (0..60).for_each(|_| _ = append(&nodes[0].handle(), "z"));
        let snapshot = |node: &Node| node.handle().status().snapshot;
        until("a snapshot", || snapshot(&nodes[0]) > Slot(10));
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
        std::fs::remove_dir_all(group.dir.path().join("r1/wal")).unwrap();
        let alone = group.start(1);
        for handle in alone.handles() {
            let NodeStatus { snapshot, executed, merge, .. } = handle.status();
            assert_eq!((executed > Slot(10), executed), (true, snapshot));
            assert!(merge.is_none_or(|merge| merge.position > 0), "{merge:?}");
        }
    }
}

/// A tape whose snapshots are read once a test allows it: on a thread of its own, or between two commands.
#[derive(Default)]
struct Held<const APART: bool>(Tape);

static READS: AtomicBool = AtomicBool::new(false);
static MAY_READ: AtomicBool = AtomicBool::new(false);

fn read_once_allowed(snapshot: &mut dyn Read) -> io::Result<Tape> {
    READS.store(true, SeqCst);
    until("the test allows it", || MAY_READ.load(SeqCst));
    Tape::read(snapshot)
}

impl<const APART: bool> StateMachine for Held<APART> {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        self.0.apply(command, context)
    }

    fn query(&self, query: &Bytes) -> Bytes {
        self.0.query(query)
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        self.0.freeze()
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        self.0 = read_once_allowed(snapshot)?;
        Ok(())
    }

    fn reader() -> Option<SnapshotReader<Held<APART>>> {
        let read: SnapshotReader<Held<APART>> = |snapshot| {
            let read = read_once_allowed(snapshot)?;
            Ok(Box::new(|held| Box::new(replace(&mut held.0, read))))
        };
        APART.then_some(read)
    }
}

/// A replica that lags gets a snapshot, which takes long to read. Says whether it did something else meanwhile.
fn answers_while_it_reads<const APART: bool>(tune: fn(&mut Config)) -> bool {
    MAY_READ.store(true, SeqCst);
    let group = Group::new(3, tune);
    let start = |id| group.start_with(id, Held::<APART>::default()).unwrap();
    let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(start(id))).collect();
    append(&nodes[0].as_ref().unwrap().handle(), "x");
    let leader = nodes[0].as_ref().unwrap().handle().status().leader.unwrap().0 as usize - 1;
    let lagging = (leader + 1) % 3;
    nodes[lagging].take().unwrap().stop_now_blocking().unwrap();
    let handle = nodes[leader].as_ref().unwrap().handle();
    append_much(&handle);
    // What they remember besides their logs is gone then.
    for other in (0..3).filter(|other| *other != lagging) {
        nodes[other].take().unwrap().stop_now_blocking().unwrap();
        nodes[other] = Some(start(other as u64 + 1));
    }
    until("a leader", || nodes[leader].as_ref().unwrap().handle().status().leader.is_some());
    READS.store(false, SeqCst);
    MAY_READ.store(false, SeqCst);
    nodes[lagging] = Some(start(lagging as u64 + 1));
    let returned = nodes[lagging].as_ref().unwrap().handle();
    until("it reads the snapshot", || READS.load(SeqCst));
    let asked = block(async { tokio::time::timeout(Duration::from_millis(500), returned.digest()).await });
    let answered = asked.is_ok_and(|digest| digest.unwrap().0 < Slot(40));
    MAY_READ.store(true, SeqCst);
    assert_eq!(tape(&returned), format!("x{}", "y".repeat(60 * LARGE)));
    nodes.into_iter().flatten().for_each(|node| node.stop_now_blocking().unwrap());
    answered
}

#[test]
fn a_replica_goes_on_while_it_reads_a_snapshot_unless_the_state_machine_has_to_read_it() {
    fn tune(config: &mut Config) {
        (config.settings.snapshot_slots, config.settings.keep_slots) = (20, 5);
    }
    fn compact(config: &mut Config) {
        tune(config);
        config.threads = Threads::Compact;
    }
    for tune in [tune, compact] {
        assert!(answers_while_it_reads::<true>(tune));
        assert!(!answers_while_it_reads::<false>(tune));
    }
}

#[test]
fn a_replica_without_a_quorum_knows_no_leader() {
    let tunes = [
        |_: &mut Config| {},
        |config: &mut Config| config.settings.consensus.election = ElectionKind::Rotating,
        |config: &mut Config| config.settings.consensus = Options::of(ProtocolKind::SequencePaxos),
        |config: &mut Config| config.settings.consensus = Options::of(ProtocolKind::Raft),
        |config: &mut Config| config.settings.consensus = Options::of(ProtocolKind::Ring),
    ];
    for tune in tunes {
        let group = Group::new(3, tune);
        let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(group.start(id))).collect();
        append(&nodes[0].as_ref().unwrap().handle(), "x");
        let leader = nodes[0].as_ref().unwrap().handle().status().leader.unwrap().0 as usize - 1;
        for gone in [leader, (leader + 1) % 3] {
            nodes[gone].take().unwrap().stop_now_blocking().unwrap();
        }
        let left = nodes[(leader + 2) % 3].as_ref().unwrap().handle();
        until("it knows of no leader", || left.status().leader.is_none());
        // One of the others comes back, and there is a leader.
        nodes[leader] = Some(group.start(leader as u64 + 1));
        assert_eq!(append(&left, "y"), "2");
        assert!(left.status().leader.is_some());
        nodes.into_iter().flatten().for_each(|node| node.stop_now_blocking().unwrap());
    }
}

#[test]
fn terms_grow_although_each_epoch_begins_its_ballots_again() {
    let group = Group::new(3, |_| {});
    let nodes = [group.start(1), group.start(2), group.start(3)];
    let handles = nodes.each_ref().map(Node::handle);
    let terms = || handles.each_ref().map(Handle::term);
    append(&handles[0], "x");
    until("all know the leader", || handles.iter().all(|handle| handle.status().leader.is_some()));
    let orders = [
        (ProtocolKind::Raft, ElectionKind::Randomized),
        (ProtocolKind::SequencePaxos, ElectionKind::Ballot),
        (ProtocolKind::MultiPaxos, ElectionKind::Ballot),
    ];
    until("the births of the voters are named", || handles[0].group().names_births());
    let mut before = terms().into_iter().max().unwrap();
    for (protocol, election) in orders {
        let change = Change::Order { protocol, election, overrides: "".parse().unwrap() };
        let changed = block(handles[0].change(handles[0].group().version, change)).unwrap();
        append(&handles[0], "x");
        until("a greater term, the same at all replicas", || {
            let there =
                |handle: &Handle| handle.status().epoch == changed.epoch && handle.status().leader.is_some();
            let [first, second, third] = terms();
            handles.iter().all(there) && first > before && first == second && second == third
        });
        before = handles[0].term();
    }
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}

#[test]
fn a_session_command_is_executed_once() {
    let group = Group::new(3, |_| {});
    let nodes = [group.start(1), group.start(2), group.start(3)];
    let session = block(nodes[0].handle().open_session()).unwrap();
    let place = SessionCommand { session, sequence: 1, lowest_outstanding: 1 };
    let command = Bytes::from_static(b"once");
    for node in &nodes {
        assert_eq!(block(node.handle().execute_in_session(place, command.clone())).unwrap(), "4");
    }
    assert_eq!(tape(&nodes[2].handle()), "once");
    let stranger = SessionCommand { session: synod_wire::SessionId(99), ..place };
    let refused = block(nodes[0].handle().execute_in_session(stranger, command));
    assert_eq!(refused, Err(RequestError::SessionExpired));
}

#[test]
fn without_a_quorum_requests_fail_in_time_and_nothing_is_lost() {
    let group = Group::new(3, |config| {
        config.settings.request_timeout = Duration::from_millis(500);
        config.begin_without_all = true;
    });
    let first = group.start(1);
    let began = Instant::now();
    assert_eq!(block(first.handle().execute(Bytes::from_static(b"a"))), Err(RequestError::NoLeader));
    assert_eq!(block(first.handle().query(Bytes::new())), Err(RequestError::NoLeader));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(block(first.handle().query_stale(Bytes::new())).unwrap(), "", "the local state can be read");
    let _second = group.start(2);
    until("a leader", || first.handle().status().leader.is_some());
    assert_eq!(append(&first.handle(), "b"), "1");
}

/// Changes a few bytes at a share of the first segment's records.
fn corrupt(log: &Path, share: f64) {
    let mut segments: Vec<_> = std::fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .collect();
    segments.sort();
    let mut bytes = std::fs::read(&segments[0]).unwrap();
    // Records follow the header's page. The place is well before the tail, which a crash may leave half-written.
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() - 40;
    let at = 4096 + ((end - 4096) as f64 * share) as usize;
    bytes[at..at + 40].fill(0xff);
    std::fs::write(&segments[0], bytes).unwrap();
}

/// How many slots a repaired log kept from the log before it, and how many came from other replicas.
fn kept_and_fetched(log: &Path) -> (usize, usize) {
    let (mut kept, mut fetched) = (0, 0);
    synod_storage::inspect::dump(log, |entry| {
        let synod_storage::inspect::Entry::Record { bytes: Some(bytes), .. } = entry else { return };
        match LogRecord::decode(bytes).unwrap() {
            LogRecord::Decided { .. } => kept += 1,
            LogRecord::Learned { .. } => fetched += 1,
            _ => {}
        }
    })
    .unwrap();
    (kept, fetched)
}

/// Damages one log after the other, at its beginning, in its middle and at its end; then all three replicas
/// agree, and go on.
fn damaged_logs_are_repaired(tune: fn(&mut Config)) {
    let group = Group::new(3, tune);
    let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(group.start(id))).collect();
    let mut expected = String::new();
    for _ in 0..60 {
        append(&nodes[0].as_ref().unwrap().handle(), "z");
        expected.push('z');
    }
    for (id, share) in [(3, 0.0), (2, 0.5), (1, 1.0)] {
        nodes[id - 1].take().unwrap().stop_now_blocking().unwrap();
        let log = group.dir.path().join(format!("r{id}/wal"));
        corrupt(&log, share);
        let node = nodes[id - 1].insert(group.start(id as u64));
        // Before its first step, a replica tells nothing.
        let votes = |status: NodeStatus| status.epoch > Epoch(0) && !status.without_memory;
        until("it votes again", || votes(node.handle().status()));
        assert_eq!(tape(&node.handle()), expected);
        let (kept, fetched) = kept_and_fetched(&log);
        assert!(kept > 40 && fetched < 20, "r{id}: {kept} slots were kept, and {fetched} came from others");
        append(&node.handle(), "!");
        expected.push('!');
    }
    let digests = || nodes.iter().flatten().map(|node| block(node.handle().digest()).unwrap());
    until("equal digests", || digests().all(|digest| digest == digests().next().unwrap()));
    nodes.iter_mut().for_each(|node| node.take().unwrap().stop_now_blocking().unwrap());
    let nodes = [group.start(1), group.start(2), group.start(3)];
    nodes.iter().for_each(|node| assert_eq!(tape(&node.handle()), expected));
}

#[test]
fn damaged_logs_are_repaired_with_multipaxos() {
    damaged_logs_are_repaired(|_| {});
}

#[test]
fn damaged_logs_are_repaired_with_sequence_paxos() {
    damaged_logs_are_repaired(|config| {
        config.settings.consensus.protocol = ProtocolKind::SequencePaxos;
    });
}

#[test]
fn damaged_logs_are_repaired_with_raft() {
    damaged_logs_are_repaired(|config| {
        config.settings.consensus.protocol = ProtocolKind::Raft;
        config.settings.consensus.election = ProtocolKind::Raft.elections()[0];
    });
}

#[test]
fn a_replica_with_a_corrupt_log_learns_from_its_peers_before_it_votes() {
    let group = Group::new(3, |_| {});
    let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(group.start(id))).collect();
    for _ in 0..30 {
        append(&nodes[0].as_ref().unwrap().handle(), "z");
    }
    nodes[2].take().unwrap().stop_now_blocking().unwrap();
    corrupt(&group.dir.path().join("r3/wal"), 0.5);
    let third = group.start(3);
    let set_aside = std::fs::read_dir(group.dir.path().join("r3/wal")).unwrap();
    let set_aside =
        set_aside.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().ends_with(".damaged"));
    assert!(set_aside.count() > 0, "the damage was found");
    until("the third votes again", || third.handle().status().role == Role::Follower);
    assert_eq!(tape(&third.handle()), "z".repeat(30));
    drop(nodes[1].take());
    assert_eq!(append(&third.handle(), "!"), "31", "its vote counts");
    third.stop_now_blocking().unwrap();
    let third = group.start(3);
    assert_eq!(tape(&third.handle()), format!("{}!", "z".repeat(30)));
}

/// No other replica can bring back what the log held after the last snapshot, so an operator has to agree to
/// do without it.
#[test]
fn a_sole_replica_without_its_log_starts_only_if_it_is_told() {
    let mut group = Group::new(1, |config| config.settings.snapshot_slots = 10);
    let node = group.start(1);
    for _ in 0..15 {
        append(&node.handle(), "s");
    }
    until("a snapshot", || node.handle().status().snapshot > Slot::ZERO);
    append(&node.handle(), "!");
    node.stop_now_blocking().unwrap();
    std::fs::remove_dir_all(group.dir.path().join("r1/wal")).unwrap();
    let refused = || {
        let error = group.try_start(1).unwrap_err();
        assert!(matches!(error, StartError::LostAlone(..)), "{error}");
        assert!(error.to_string().contains("--accept-lost-log"), "{error}");
    };
    refused();
    refused();
    let tune = group.tune;
    group.tune = |config| config.accept_lost_log = true;
    let node = group.start(1);
    let kept = tape(&node.handle());
    // One of the ten slots of the snapshot names the replica's birth.
    assert!(kept.len() >= 9 && kept.bytes().all(|byte| byte == b's'), "{kept}");
    append(&node.handle(), "?");
    node.stop_now_blocking().unwrap();
    // The operator has to agree only once.
    group.tune = tune;
    assert_eq!(tape(&group.start(1).handle()), format!("{kept}?"));
}

#[test]
fn memory_replicas_recover_from_each_other() {
    let group = Group::new(3, |config| config.durability = Durability::Memory);
    let nodes = [group.start(1), group.start(2)];
    let third = group.start(3);
    append(&third.handle(), "m");
    third.stop_now_blocking().unwrap();
    let third = group.start(3);
    until("the third votes again", || third.handle().status().role == Role::Follower);
    assert_eq!(tape(&third.handle()), "m");
    drop(nodes);
}

#[test]
fn a_crash_stop_replica_starts_once_and_is_replaced() {
    let mut group = Group::new(3, |config| config.durability = Durability::CrashStop);
    let nodes = [group.start(1), group.start(2)];
    let third = group.start(3);
    append(&third.handle(), "m");
    third.stop_now_blocking().unwrap();
    let refused = |group: &Group| {
        let error = group.try_start(3).unwrap_err();
        assert!(matches!(error, StartError::Stopped(_)), "{error}");
        for remedy in ["synod member replace", "--initial-cluster-state existing", "synod recover"] {
            assert!(error.to_string().contains(remedy), "{error}");
        }
    };
    refused(&group);
    // This holds with another durability as well: what the earlier life promised is forgotten all the same.
    group.tune = |config| config.durability = Durability::Sync;
    refused(&group);
    append(&nodes[0].handle(), "n");
    assert_eq!(tape(&nodes[1].handle()), "mn");
}

/// The port may be taken, for example. The replica said nothing, so it forgot nothing.
#[test]
fn a_crash_stop_replica_that_never_came_to_run_may_start() {
    let group = Group::new(1, |config| config.durability = Durability::CrashStop);
    let mut config = group.config(1);
    config.listen = vec!["192.0.2.1:1".parse().unwrap()];
    let error = Node::start_blocking(config, Tape::default()).unwrap_err();
    assert!(matches!(error, StartError::Transport(_)), "{error}");
    let node = group.start(1);
    append(&node.handle(), "m");
    drop(node);
    assert!(matches!(group.try_start(1).unwrap_err(), StartError::Stopped(_)));
}

#[test]
fn a_data_directory_of_another_cluster_is_refused() {
    let group = Group::new(3, |_| {});
    group.start(1).stop_now_blocking().unwrap();
    let mut config = group.config(1);
    config.cluster = ClusterId(8);
    let error = Node::start_blocking(config, Tape::default()).unwrap_err().to_string();
    assert!(error.contains("0000000000000008"), "{error}");
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused_with_a_reason() {
    let group = Group::new(3, |config| {
        config.settings.consensus.election_timeout = config.settings.consensus.heartbeat_interval;
    });
    let error = group.try_start(1).unwrap_err().to_string();
    assert!(error.contains("election-timeout"), "{error}");
    let group = Group::new(3, |config| config.settings.fetch_bytes_max = 64 << 20);
    let error = group.try_start(1).unwrap_err().to_string();
    assert!(error.contains("exceeds the 67108864 of a frame; lower"), "{error}");
}

/// How many commands the replica has taken from its clients so far.
fn taken(node: &Node) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(node.metrics()));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("synod_commands_total "));
    count.expect("it is among the metrics").parse().unwrap()
}

#[test]
fn requests_that_are_withdrawn_keep_their_places_until_their_commands_are_done() {
    let group = Group::new(3, |config| {
        // There is room for 64 small commands.
        config.settings.queue_bytes_max = 64 << 10;
        config.settings.request_timeout = Duration::from_secs(1);
    });
    for gathers in [false, true] {
        // Without the other replicas nothing is decided. After a start all places are free.
        let node = group.start(1);
        let before = taken(&node);
        block(async {
            let (handle, handing_over) = node.handle().gathering();
            let handle = if gathers { handle } else { node.handle() };
            let handing_over = tokio::spawn(handing_over);
            for _ in 0..5_000 {
                let mut request = std::pin::pin!(handle.execute(Bytes::from_static(b"x")));
                let sent = std::future::poll_fn(|cx| std::task::Poll::Ready(request.as_mut().poll(cx))).await;
                assert!(sent.is_pending(), "it is sent or waits for its place, and is withdrawn now");
            }
            // This command has to wait until the commands before it are given up.
            assert_eq!(handle.execute(Bytes::from_static(b"y")).await, Err(RequestError::NoLeader));
            handing_over.abort();
        });
        assert_eq!(taken(&node) - before, 65);
        node.stop_now_blocking().unwrap();
    }
}
