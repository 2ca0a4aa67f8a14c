//! What a program that embeds replicas relies on: no thread of a runtime is blocked, and a state machine is
//! told what it needs.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::common::{Group, append, block, tape};
use bytes::Bytes;
use synod_consensus::{ElectionKind, ProtocolKind};
use synod_node::{ChangeError, Config, Ended, Node, Threads};
use synod_replica::{Change, Context, Frozen, RequestError, SessionCommand, StateMachine};
use synod_testkit::until;
use synod_wire::Slot;

/// Counts commands. The first one is executed until it is told to end.
struct Slow {
    gate: Receiver<()>,
    passed: bool,
    count: Arc<AtomicU64>,
}

impl Slow {
    fn new() -> (Slow, Sender<()>, Arc<AtomicU64>) {
        let ((open, gate), count) = (channel(), Arc::new(AtomicU64::new(0)));
        (Slow { gate, passed: false, count: Arc::clone(&count) }, open, count)
    }
}

impl StateMachine for Slow {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        assert!(command != "panic", "told to panic");
        if !self.passed {
            self.passed = self.gate.recv().is_ok();
        }
        self.count.fetch_add(1, SeqCst);
        Bytes::new()
    }

    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::new()
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(Bytes::new())
    }

    fn restore(&mut self, _: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}

/// Opens the gate if a runtime's thread is blocked, so that a test fails and does not hang.
fn watchdog(open: &Sender<()>) -> impl Fn() + use<> {
    let (open, (done, over)) = (open.clone(), channel::<()>());
    let watch = thread::spawn(move || {
        let late = over.recv_timeout(Duration::from_secs(20)).is_err();
        let _ = open.send(());
        late
    });
    let watch = std::cell::RefCell::new(Some(watch));
    move || {
        let _ = done.send(());
        if let Some(watch) = watch.take() {
            assert!(!watch.join().unwrap(), "a thread of the runtime was blocked");
        }
    }
}

#[test]
fn no_task_waits_for_a_full_queue() {
    // These are more than the queue of the protocol's thread takes.
    const COMMANDS: u64 = 9_000;
    let tune = |config: &mut Config| {
        // Commands are executed on the protocol's thread, which therefore takes nothing for as long as the
        // first one is executed.
        config.threads = Threads::Compact;
        config.settings.request_timeout = Duration::from_secs(120);
    };
    let group = Group::new(1, tune);
    let (machine, open, count) = Slow::new();
    let finished = watchdog(&open);
    block(async {
        let node = Node::start(group.config(1), machine).await.unwrap();
        let commands: Vec<_> = (0..COMMANDS)
            .map(|_| {
                let handle = node.handle();
                tokio::spawn(async move { handle.execute(Bytes::from_static(b"a")).await })
            })
            .collect();
        // All of them run before this timer ends.
        tokio::time::sleep(Duration::from_millis(200)).await;
        finished();
        for command in commands {
            command.await.unwrap().unwrap();
        }
        assert_eq!(count.load(SeqCst), COMMANDS);
        node.stop().await.unwrap();
    });
}

/// Executes a command for each time that it is told to, and all that follow once nobody can tell it any more.
struct Stepped(Slow, Arc<AtomicU64>);

impl StateMachine for Stepped {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        self.1.fetch_add(1, SeqCst);
        let reply = self.0.apply(command, context);
        self.0.passed = false;
        reply
    }

    fn query(&self, query: &Bytes) -> Bytes {
        self.0.query(query)
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        self.0.freeze()
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        self.0.restore(snapshot)
    }
}

fn compact(config: &mut Config) {
    config.threads = Threads::Compact;
    config.settings.request_timeout = Duration::from_secs(120);
}

#[test]
fn between_slow_commands_the_protocol_has_its_turn() {
    protocol_has_its_turn(|config| {
        compact(config);
        // Every command is a batch of its own.
        config.settings.batch_bytes_max = 1;
    });
}

#[test]
fn within_a_long_batch_the_protocol_has_its_turn() {
    protocol_has_its_turn(compact);
}

fn protocol_has_its_turn(tune: fn(&mut Config)) {
    let group = Group::new(1, tune);
    let (machine, step, count) = Slow::new();
    let begun = Arc::new(AtomicU64::new(0));
    let machine = Stepped(machine, Arc::clone(&begun));
    block(async {
        let has_begun = async |commands| {
            while begun.load(SeqCst) < commands {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let node = Node::start(group.config(1), machine).await.unwrap();
        let submit = || {
            let handle = node.handle();
            tokio::spawn(async move { handle.execute(Bytes::from_static(b"a")).await })
        };
        let mut commands = vec![submit()];
        has_begun(1).await;
        // These are taken together after the first one, and wait for execution together.
        commands.extend([submit(), submit()]);
        tokio::time::sleep(Duration::from_millis(50)).await;
        step.send(()).unwrap();
        has_begun(2).await;
        // The thread is busy with the second command, and the third waits.
        let handle = node.handle();
        let log = tokio::spawn(async move { handle.read_log(Slot(1), 1 << 20).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!log.is_finished());
        step.send(()).unwrap();
        let read = tokio::time::timeout(Duration::from_secs(20), log).await;
        assert_eq!(count.load(SeqCst), 2);
        drop(step);
        assert!(read.expect("the third command was not begun before").unwrap().unwrap().len() >= 2);
        for command in commands {
            command.await.unwrap().unwrap();
        }
        node.stop().await.unwrap();
    });
}

#[test]
fn a_task_that_stops_a_replica_leaves_its_thread_to_others() {
    let group = Group::new(1, |_| {});
    let (machine, open, count) = Slow::new();
    let finished = watchdog(&open);
    block(async {
        let node = Node::start(group.config(1), machine).await.unwrap();
        let handle = node.handle();
        let command = tokio::spawn(async move { handle.execute_timed(Bytes::from_static(b"a")).await });
        until_asked(&node).await;
        // The executor's thread ends when the command does, and the stop waits for it.
        let (stopped, ()) = tokio::join!(node.stop(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            finished();
        });
        stopped.unwrap();
        assert_eq!(count.load(SeqCst), 1);
        let command = command.await.unwrap();
        assert_eq!(command.outcome, Ok(Bytes::new()));
        // It was decided long before it could be executed.
        let (ordering, execution) = (command.ordering, command.execution);
        assert!(
            ordering > Duration::ZERO && execution >= Duration::from_millis(20),
            "{ordering:?}, {execution:?}"
        );
    });
}

#[test]
fn what_does_not_go_together_is_refused_with_the_reason_before_anything_happens() {
    let group = Group::new(1, |_| {});
    let mut config = group.config(1);
    config.settings.consensus.protocol = ProtocolKind::Raft;
    let refused = Node::start_blocking(config, Diary::default()).unwrap_err();
    let why = "configuration: election ballot does not go with raft; accepted: randomized, latency";
    assert_eq!(refused.to_string(), why);

    let node = Node::start_blocking(group.config(1), Diary::default()).unwrap();
    let handle = node.handle();
    append(&handle, "a");
    until("births are named", || handle.group().names_births());
    let of = handle.group();
    let change = |change| block(handle.change(of.version, change)).unwrap_err();
    let order = |protocol, election, options: &str| {
        change(Change::Order { protocol, election, overrides: options.parse().unwrap() })
    };
    let raft = ProtocolKind::Raft;
    let refused = order(raft, ElectionKind::Ballot, "");
    assert!(matches!(refused, ChangeError::Combination(_)) && !refused.may_have_executed(), "{refused}");
    let refused = order(raft, ElectionKind::Randomized, "decision=all");
    assert!(matches!(refused, ChangeError::Option(_)) && !refused.may_have_executed(), "{refused}");
    let mut limits = of.limits;
    limits.txn_ops_max = 0;
    let limits = change(Change::Limits(limits));
    assert!(matches!(limits, ChangeError::Limit(_)) && !limits.may_have_executed(), "{limits}");
    assert_eq!(handle.group().version, of.version);
    node.stop_blocking().unwrap();
}

async fn until_asked(node: &Node) {
    while node.handle().status().decided.0 == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[test]
fn a_panic_of_the_state_machine_ends_the_replica_and_waiting_clients_are_told() {
    let group = Group::new(1, |config| config.settings.request_timeout = Duration::from_secs(120));
    let (machine, _open, _) = Slow::new();
    block(async {
        let node = Node::start(group.config(1), machine).await.unwrap();
        let handle = node.handle();
        let command = tokio::spawn(async move { handle.execute(Bytes::from_static(b"panic")).await });
        let why = node.wait().await;
        assert!(matches!(&why, Ended::Panicked(thread) if thread == "executor-1"), "{why}");
        assert!(node.wait_blocking(Duration::ZERO).is_some());
        let stopped = node.stop().await;
        assert!(matches!(stopped, Err(Ended::Panicked(_))));
        assert_eq!(command.await.unwrap(), Err(RequestError::Stopping));
    });
}

/// Remembers what it is told together with commands.
#[derive(Default)]
struct Diary {
    lines: String,
    /// Counts how often a reply was wanted, which differs between replicas.
    wanted: Arc<AtomicU64>,
}

impl StateMachine for Diary {
    fn apply(&mut self, _: &Bytes, context: &Context) -> Bytes {
        self.lines += &format!("{} {:?} {:?};", context.slot, context.time, context.session);
        self.wanted.fetch_add(context.reply_wanted.into(), SeqCst);
        Bytes::from(context.slot.0.to_string())
    }

    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::from(self.lines.clone())
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(Bytes::from(self.lines.clone()))
    }

    fn restore(&mut self, _: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn all_replicas_tell_their_state_machines_the_same_with_a_command() {
    let group = Group::new(3, |config| config.settings.clock_interval = Duration::from_millis(20));
    let wanted: Vec<_> = (0..3).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let nodes: Vec<_> = (1..=3)
        .map(|id| {
            let machine = Diary { wanted: Arc::clone(&wanted[id as usize - 1]), ..Diary::default() };
            Node::start_blocking(group.config(id), machine).unwrap()
        })
        .collect();
    let handle = nodes[0].handle();
    let first: u64 = append(&handle, "a").parse().unwrap();
    thread::sleep(Duration::from_millis(200));
    let session = block(handle.open_session()).unwrap();
    let place = SessionCommand { session, sequence: 1, lowest_outstanding: 1 };
    let second = block(handle.execute_in_session(place, Bytes::from_static(b"b"))).unwrap();
    let second: u64 = std::str::from_utf8(&second).unwrap().parse().unwrap();
    assert!(first < second);

    let diary = tape(&handle);
    let lines: Vec<Vec<&str>> =
        diary.trim_end_matches(';').split(';').map(|line| line.split(' ').collect()).collect();
    assert_eq!((lines[0][0], lines[0][2]), (&*first.to_string(), "None"));
    assert_eq!((lines[1][0], lines[1][2]), (&*second.to_string(), &*format!("Some({session:?})")));
    assert_ne!(lines[0][1], lines[1][1], "the clock stands still");
    assert!(nodes.iter().all(|node| tape(&node.handle()) == diary));
    // The default fingerprint is a checksum of the contents of a snapshot.
    until("the replicas agree", || {
        let digests: Vec<_> = nodes.iter().map(|node| block(node.handle().digest()).unwrap()).collect();
        digests.windows(2).all(|pair| pair[0] == pair[1])
    });
    // The command without a session is answered here alone; the session keeps the other reply on every replica.
    assert_eq!(wanted.iter().map(|wanted| wanted.load(SeqCst)).collect::<Vec<_>>(), [2, 1, 1]);
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}
