//! Whole replicas, from start to stop, in orders of their threads that a seed draws: see docs/interleavings.md.
//!
//! Runs with `cargo test -p synod-node --features shuttle --test interleavings`; `SYNOD_INTERLEAVINGS=0..5000` explores
//! other seeds than the few that CI takes.

mod common;

use std::{
    ops::Range,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use common::Tape;
use synod_consensus::{ProtocolKind, Role};
use synod_node::{Config, Handle, MemberAddress, Node, Threads};
use synod_storage::{
    DataDir, Durability, Keep, Options, Wal,
    explored::{durable_in, set_disk},
};
use synod_sync::{
    Planted,
    explore::{self, block_on, draw, is_strict, pass_until},
    net, thread,
};
use synod_testkit::FaultyDisk;
use synod_wire::{ClusterId, ReplicaId, Slot, Writer};

/// Far more time than anything here takes.
const LONG: Duration = Duration::from_secs(120);
/// Where nothing is lost, no step waits for a timer: if time must pass, a thread sleeps that has something to do.
const AT_ONCE: Duration = Duration::ZERO;

fn seeds(few: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("SYNOD_INTERLEAVINGS") else { return few };
    let bounds = given.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    bounds.expect("SYNOD_INTERLEAVINGS is a range such as 0..5000")
}

/// Gives the test a new and empty disk. The disk accepts writes in pieces and, as the seed decides, writes
/// some of them back before it is asked to.
fn new_disk(seed: u64) {
    let disk = FaultyDisk::new(seed).with_scheduler(explore::switch);
    set_disk(Arc::new(disk.clone()), move |dir| Arc::new(disk.copy_of(dir)));
}

fn config(id: u64, count: u64, seed: u64) -> Config {
    let member =
        |id: u64| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("127.0.0.1:{}", 7000 + id));
    let mut config =
        Config::new(ClusterId(7), ReplicaId(id), (1..=count).map(member).collect(), format!("/r{id}").into());
    config.listen = vec![([127, 0, 0, 1], 7000 + id as u16).into()];
    config.segment_bytes = 16 << 10;
    config.threads = [Threads::Compact, Threads::Spread][seed as usize / 2 % 2];
    let protocols = [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft];
    config.settings.consensus = synod_consensus::Options::of(protocols[seed as usize / 8 % 3]);
    config.settings.consensus.heartbeat_interval = Duration::from_millis(50);
    config.settings.consensus.election_timeout = Duration::from_millis(500);
    config.settings.snapshot_log_bytes = 4_000;
    // With odd seeds time passes freely.
    config.settings.request_timeout = Duration::from_secs(100_000);
    // Otherwise batches are closed when time has passed.
    config.settings.batch_delay_max = Duration::ZERO;
    if count == 1 && seed / 32 % 2 > 0 {
        // The disk and the executor lag, and the replica waits for them.
        config.settings.backlog_slots_max = 2;
        config.settings.undurable_bytes_max = 2_000;
    }
    config
}

/// Replicas, and what clients did.
struct Play {
    seed: u64,
    nodes: Vec<Node>,
    written: Arc<Mutex<Vec<String>>>,
}

impl Play {
    fn start(seed: u64, count: u64) -> Play {
        new_disk(seed);
        let mut play = Play { seed, nodes: Vec::new(), written: Arc::default() };
        play.start_again(count);
        play
    }

    fn start_again(&mut self, count: u64) {
        let start = |id| Node::start_blocking(config(id, count, self.seed), Tape::default()).unwrap();
        self.nodes = (1..=count).map(start).collect();
        let leads = |node: &Node| node.handle().status().role == Role::Leader;
        // A replica that is the only voter needs nothing but its disk.
        let at_most = if count == 1 && is_strict(self.seed) { AT_ONCE } else { LONG };
        self.until("a leader", at_most, || self.nodes.iter().any(leads));
    }

    /// Waits until this is reached. Meanwhile no replica may end by itself, as a replica does in which something fails.
    fn until(&self, what: &str, at_most: Duration, reached: impl Fn() -> bool) {
        pass_until(what, at_most, || {
            for node in &self.nodes {
                assert!(node.wait_blocking(Duration::ZERO).is_none(), "a replica has ended");
            }
            reached()
        });
    }

    fn handle(&self, at: u64) -> Handle {
        self.nodes[at as usize % self.nodes.len()].handle()
    }

    /// Runs clients at the same time, each of which writes at any replica, and reads what it wrote.
    fn clients(&self, count: u64, each: u64) {
        let done = Arc::new(AtomicUsize::new(0));
        for client in 0..count {
            let (handle, done) = (self.handle(draw(8)), Arc::clone(&done));
            let written = Arc::clone(&self.written);
            thread::spawn(move || {
                for number in 0..each {
                    // Some of these fill a segment of the log.
                    let text = format!("<{client}.{number}{}>", "-".repeat([0, 10, 6000][draw(3) as usize]));
                    block_on(handle.execute(Bytes::from(text.clone()))).expect("a replica has ended");
                    written.lock().unwrap().push(text.clone());
                    let tape = block_on(handle.query(Bytes::new())).expect("a replica has ended");
                    assert!(String::from_utf8_lossy(&tape).contains(&text), "{text} was acknowledged");
                }
                done.fetch_add(1, SeqCst);
            });
        }
        let at_most = if is_strict(self.seed) { AT_ONCE } else { LONG };
        self.until("all clients have their answers", at_most, || done.load(SeqCst) == count as usize);
    }

    /// Checks that every replica has everything that was acknowledged, once and in the same order.
    fn agree(&self) {
        let written = self.written.lock().unwrap().clone();
        self.until("all have what was acknowledged", LONG, || {
            let tape = |node: &Node| block_on(node.handle().read_present(Bytes::new())).unwrap().whole();
            let tapes: Vec<_> = self.nodes.iter().map(tape).collect();
            let tape = String::from_utf8_lossy(&tapes[0]);
            let there = |text: &String| tape.matches(text).count();
            assert!(written.iter().all(|text| there(text) <= 1), "executed twice: {tape}");
            tapes.iter().all(|other| *other == tapes[0]) && written.iter().all(|text| there(text) == 1)
        });
    }

    /// Checks that all replicas stop in time, whatever they are doing.
    fn stop(&mut self) {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = self.nodes.len();
        for node in self.nodes.drain(..) {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                node.stop_now_blocking().unwrap();
                ended.fetch_add(1, SeqCst);
            });
        }
        pass_until("all replicas have stopped", LONG, || ended.load(SeqCst) == count);
    }
}

/// All replicas take part: each was welcomed by all others, and knows it.
fn first_start(seed: u64) {
    let mut play = Play::start(seed, 3);
    play.until("all have met", LONG, || {
        play.nodes.iter().all(|node| node.handle().status().waits_for.is_empty())
    });
    play.stop();
}

/// A log that is opened and soon closed again, while the thread that prepares its segments is at work.
fn log_alone(seed: u64) {
    new_disk(seed);
    let done = Arc::new(AtomicUsize::new(0));
    let closed = Arc::clone(&done);
    thread::spawn(move || {
        let dir =
            DataDir::open(Path::new("/r1"), ClusterId(7), ReplicaId(1), "r1", Durability::Sync).unwrap();
        let options = Options { segment_bytes: 16 << 10, ..Options::default() };
        let (mut wal, found) = Wal::open(&dir.wal(), dir.identity(), options).unwrap();
        let mut lsn = found.last;
        for slot in 1..1 + draw(6) {
            let mut record = Writer::new();
            record.bytes(&vec![7; 6000]);
            lsn = lsn.next();
            wal.append(lsn, Keep::Slot(Slot(slot)), record.finish());
            assert_eq!(wal.commit().unwrap(), lsn);
            if draw(2) == 0 {
                wal.trim(Slot(slot)).unwrap();
            }
        }
        wal.close().unwrap();
        assert_eq!(durable_in(Path::new("/r1")), lsn);
        closed.fetch_add(1, SeqCst);
    });
    pass_until("the log is closed", LONG, || done.load(SeqCst) == 1);
}

fn one_replica(seed: u64) {
    let mut play = Play::start(seed, 1);
    play.clients(3, 3);
    play.stop();
}

/// Groups that share a log and the threads: a client of each writes, and none waits for a timer.
fn several_groups(seed: u64) {
    const GROUPS: usize = 3;
    new_disk(seed);
    let node = Node::start_groups_blocking(config(1, 1, seed), vec![Tape::default(); GROUPS]).unwrap();
    let handles = node.handles().to_vec();
    let mut play = Play { seed, nodes: vec![node], written: Arc::default() };
    let at_most = if is_strict(seed) { AT_ONCE } else { LONG };
    let leads = |handle: &Handle| handle.status().role == Role::Leader;
    play.until("a leader of each group", at_most, || handles.iter().all(leads));
    let done = Arc::new(AtomicUsize::new(0));
    for (group, handle) in handles.into_iter().enumerate() {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            let mut expected = String::new();
            for number in 0..3 {
                // Some of these fill a segment of the log.
                let text = format!("<{group}.{number}{}>", "-".repeat([0, 10, 6000][draw(3) as usize]));
                block_on(handle.execute(Bytes::from(text.clone()))).expect("a replica has ended");
                expected.push_str(&text);
                let tape = block_on(handle.query(Bytes::new())).expect("a replica has ended");
                assert_eq!(tape, expected, "a group has its own commands");
            }
            done.fetch_add(1, SeqCst);
        });
    }
    play.until("all clients have their answers", at_most, || done.load(SeqCst) == GROUPS);
    play.stop();
}

/// Replicas are stopped while clients still write: every client gets an answer, and what was acknowledged is
/// there after the next start.
fn stopped_at_work(seed: u64) {
    let count = if seed % 3 == 0 { 3 } else { 1 };
    let mut play = Play::start(seed, count);
    let answered = Arc::new(AtomicUsize::new(0));
    for client in 0..3 {
        let (handle, written) = (play.handle(client), Arc::clone(&play.written));
        let answered = Arc::clone(&answered);
        thread::spawn(move || {
            for number in 0..4 {
                let text = format!("<{client}.{number}{}>", "-".repeat([0, 3000][draw(2) as usize]));
                if block_on(handle.execute(Bytes::from(text.clone()))).is_ok() {
                    written.lock().unwrap().push(text);
                }
            }
            answered.fetch_add(1, SeqCst);
        });
    }
    for _ in 0..draw(400) {
        explore::switch();
    }
    play.stop();
    pass_until("all clients have an answer", LONG, || answered.load(SeqCst) == 3);
    play.start_again(count);
    play.agree();
    play.stop();
}

fn three_replicas(seed: u64) {
    let mut play = Play::start(seed, 3);
    play.clients(3, 2);
    play.agree();
    play.stop();
}

#[test]
fn a_replica_alone_answers_all_clients_without_waiting_for_a_timer() {
    explore::run(seeds(0..100), None, one_replica);
}

#[test]
fn groups_of_one_replica_answer_all_clients_without_waiting_for_a_timer() {
    explore::run(seeds(0..100), None, several_groups);
}

#[test]
fn a_log_closes_whatever_its_other_thread_does() {
    explore::run(seeds(0..400), None, log_alone);
}

#[test]
fn replicas_of_a_new_cluster_all_meet() {
    // Seed 202 was the first in which a peer that had been met was forgotten again.
    explore::run(seeds(0..250), None, first_start);
}

#[test]
fn three_replicas_keep_what_they_promise() {
    explore::run(seeds(0..30), None, three_replicas);
}

/// Connections break while clients write: what was acknowledged stays, and every replica gets it.
fn cut_connections(seed: u64) {
    let mut play = Play::start(seed, 3);
    let answered = Arc::new(AtomicUsize::new(0));
    for client in 0..2 {
        let (handle, written) = (play.handle(client), Arc::clone(&play.written));
        let answered = Arc::clone(&answered);
        thread::spawn(move || {
            for number in 0..3 {
                let text = format!("<{client}.{number}>");
                if block_on(handle.execute(Bytes::from(text.clone()))).is_ok() {
                    written.lock().unwrap().push(text);
                }
            }
            answered.fetch_add(1, SeqCst);
        });
    }
    for _ in 0..draw(6) {
        (0..draw(300)).for_each(|_| explore::switch());
        net::cut();
    }
    play.until("all clients have an answer", LONG, || answered.load(SeqCst) == 2);
    play.agree();
    play.stop();
}

#[test]
fn three_replicas_whose_connections_break_go_on() {
    explore::run(seeds(0..60), None, cut_connections);
}

#[test]
fn replicas_that_are_stopped_at_work_lose_nothing() {
    explore::run(seeds(0..100), None, stopped_at_work);
}

/// Checks that some seed finds the planted error, and fails with some of these words.
fn noticed(error: Planted, few: Range<u64>, test: fn(u64), words: &[&str]) {
    for seed in few.clone() {
        // A failed run leaves its thread of the system in a state in which no other run can begin.
        let run = move || explore::run(seed..seed + 1, Some(error), test);
        let Err(panic) = std::thread::spawn(run).join() else { continue };
        // Words without anything to fill in are no `String`.
        let plain = || panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = panic.downcast_ref::<String>().cloned().or_else(plain).unwrap_or_default();
        let known = words.iter().any(|words| said.contains(words));
        assert!(known, "{error:?} failed otherwise with seed {seed}: {said}");
        return println!("{error:?} is noticed with seed {seed}: {said}");
    }
    panic!("{error:?} was not noticed in {few:?}");
}

#[test]
fn planted_errors_are_noticed() {
    noticed(Planted::StopWithoutCommit, 0..400, stopped_at_work, &["the log has"]);
    noticed(Planted::ForgetStop, 0..400, stopped_at_work, &["all replicas have stopped"]);
    noticed(Planted::LookWithoutLock, 0..2000, log_alone, &["the log is closed"]);
    noticed(Planted::SendBeforeCommit, 0..100, three_replicas, &["a replica has ended"]);
    // From the first seed on with a thread for each connection: without, frames seldom wait for another thread.
    // A client that waits is stopped with the replicas, which may be the last that is said.
    let words = &["a leader", "a replica has ended"];
    noticed(Planted::NoWakeForFrames, 2..100, three_replicas, words);
}
