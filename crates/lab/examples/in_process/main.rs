//! Batches decided by replicas in one thread: Synod's protocols, and with the feature `peers` the crates `omnipaxos`
//! and `raft`, in alternating runs.
//!
//! `cargo run --release -p synod-lab --features peers --example in_process [REPLICAS] [SECONDS] [ROUNDS] [NAME]`
//!
//! With NAME only the implementations run whose names contain it.
//!
//! `in_process count NAME LOAD BATCHES` lets one implementation decide this many batches of one load (`64x1`) without a
//! clock, for a program that counts instructions: `valgrind --tool=callgrind`. Two counts of batches give what one
//! batch takes, without the start.
//!
//! All implementations get the same load: batches encoded and checksummed once (commands of 16 bytes), all
//! proposed at the leader, with a fixed number outstanding; logs in memory; messages moved from queue to
//! queue without being encoded. Nothing is executed. The clock runs until the leader has decided everything;
//! the program then waits until the others have too. `replica core` is a Synod protocol with what surrounds
//! it on a server (batching, sessions, routing, catch-up), which the peers do not have. It gets the commands
//! one by one and encodes them while the clock runs, so compare it where a batch is one command.

#[cfg(feature = "peers")]
mod omnipaxos_peer;
#[cfg(feature = "peers")]
mod raft_peer;
mod synod_cores;
mod synod_protocol;

use std::time::{Duration, Instant};

use synod_consensus::ProtocolKind;
use synod_lab::statistics::median;
use synod_wire::{Batch, BatchBuilder, SessionId};

/// Replicas of one implementation; replica 0 leads.
trait Cluster {
    /// Proposes a batch at the leader.
    fn propose(&mut self, batch: &Batch);
    /// Lets every replica handle its waiting messages once. The caller passes the time.
    fn round(&mut self, now: Instant);
    /// Batches decided at the leader, and batches decided at all replicas.
    fn decided(&self) -> (u64, u64);
}

/// An implementation.
struct Contestant {
    name: String,
    ours: bool,
    /// Starts a cluster with a leader, given the number of replicas and the number of outstanding batches.
    start: Box<dyn Fn(usize, usize) -> Box<dyn Cluster>>,
}

/// One load: batches outstanding, and commands in a batch.
const LOADS: [(usize, usize); 5] = [(1, 1), (64, 1), (1024, 1), (64, 64), (32, 1456)];
/// After this many bytes of batches a new cluster replaces the old one, so that no log has to be trimmed.
const BYTES_MAX: usize = 256 << 20;

fn contestants() -> Vec<Contestant> {
    let mut all = Vec::new();
    for &(name, kind) in ProtocolKind::ALL {
        let protocol =
            Box::new(move |replicas, outstanding| synod_protocol::start(kind, replicas, outstanding));
        all.push(Contestant { name: format!("synod {name}"), ours: true, start: protocol });
        let cores = Box::new(move |replicas, outstanding| synod_cores::start(kind, replicas, outstanding));
        all.push(Contestant { name: format!("synod {name}, replica core"), ours: true, start: cores });
    }
    #[cfg(feature = "peers")]
    {
        let start = Box::new(|replicas, _| omnipaxos_peer::start(replicas));
        all.push(Contestant { name: "omnipaxos 0.2".to_owned(), ours: false, start });
        let start = Box::new(|replicas, _| raft_peer::start(replicas));
        all.push(Contestant { name: "raft 0.7 (raft-rs)".to_owned(), ours: false, start });
    }
    all
}

fn batch(commands: usize) -> Batch {
    let mut builder = BatchBuilder::new();
    for sequence in 1..=commands as u64 {
        builder.push(SessionId(1), sequence, 1, b"sixteen bytes !!");
    }
    builder.finish()
}

/// Measures batches a second over about `time`.
fn measure(
    contestant: &Contestant,
    replicas: usize,
    outstanding: usize,
    batch: &Batch,
    time: Duration,
) -> f64 {
    let (mut batches, mut took) = (0, Duration::ZERO);
    let per_cluster = (BYTES_MAX / batch.bytes().len().max(64)).max(outstanding) as u64;
    while took < time {
        let mut cluster = (contestant.start)(replicas, outstanding);
        let before = cluster.decided();
        let began = Instant::now();
        let mut proposed = 0;
        while proposed < per_cluster && took + began.elapsed() < time {
            for _ in 0..outstanding {
                cluster.propose(batch);
            }
            proposed += outstanding as u64;
            wait(contestant, &mut *cluster, |(leader, _)| leader - before.0 >= proposed);
        }
        took += began.elapsed();
        // A timer may tell the others of the last decisions a few milliseconds later, which is not work.
        wait(contestant, &mut *cluster, |(_, all)| all - before.1 >= proposed);
        batches += proposed;
    }
    batches as f64 / took.as_secs_f64()
}

fn wait(contestant: &Contestant, cluster: &mut dyn Cluster, done: impl Fn((u64, u64)) -> bool) {
    let began = Instant::now();
    while !done(cluster.decided()) {
        let now = Instant::now();
        cluster.round(now);
        let stuck = now - began > Duration::from_secs(30);
        assert!(!stuck, "{} is stuck: {:?} batches decided", contestant.name, cluster.decided());
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [count, name, load, batches] = &args[..]
        && count == "count"
    {
        return decide(name, load, batches.parse().expect("BATCHES is a number"));
    }
    let number = |index: usize, default: f64| {
        args.get(index)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{text} is not a number")))
    };
    let (replicas, seconds, rounds) = (number(0, 3.0) as usize, number(1, 0.5), number(2, 5.0) as usize);
    assert!(
        (3..=9).contains(&replicas) && seconds > 0.0 && rounds > 0,
        "REPLICAS 3 to 9, SECONDS and ROUNDS above 0"
    );
    println!(
        "{replicas} replicas in one thread, logs in memory; medians of {rounds} alternating runs of {seconds} s"
    );
    let wanted = args.get(3).map_or("", String::as_str);
    let mut contestants = contestants();
    contestants.retain(|contestant| contestant.name.contains(wanted));
    assert!(!contestants.is_empty(), "no implementation's name contains {wanted}");
    for (outstanding, commands) in LOADS {
        let batch = batch(commands);
        let mut rates = vec![Vec::new(); contestants.len()];
        for _ in 0..rounds {
            for (contestant, rates) in contestants.iter().zip(&mut rates) {
                let time = Duration::from_secs_f64(seconds);
                rates.push(measure(contestant, replicas, outstanding, &batch, time));
            }
        }
        print(&contestants, &rates, outstanding, &batch, commands);
    }
}

/// Lets three replicas of an implementation decide this many batches, and shows how many that were.
fn decide(name: &str, load: &str, batches: u64) {
    let load = LOADS.into_iter().find(|(outstanding, commands)| load == format!("{outstanding}x{commands}"));
    let (outstanding, commands) = load.unwrap_or_else(|| panic!("LOAD is one of {LOADS:?}, as in 64x1"));
    let all = contestants();
    let contestant = all.iter().find(|contestant| contestant.name == name);
    let contestant = contestant.unwrap_or_else(|| panic!("no implementation has the name {name}"));
    let (batch, mut cluster) = (batch(commands), (contestant.start)(3, outstanding));
    let (before, mut proposed) = (cluster.decided().0, 0);
    while proposed < batches {
        (0..outstanding).for_each(|_| cluster.propose(&batch));
        proposed += outstanding as u64;
        wait(contestant, &mut *cluster, |(leader, _)| leader - before >= proposed);
    }
    println!("{} batches decided", cluster.decided().0 - before);
}

fn print(contestants: &[Contestant], rates: &[Vec<f64>], outstanding: usize, batch: &Batch, commands: usize) {
    let medians: Vec<f64> = rates.iter().map(|rates| median(rates).expect("a round was run")).collect();
    let peers = contestants.iter().zip(&medians).filter(|(contestant, _)| !contestant.ours);
    let best = peers.map(|(_, &rate)| rate).max_by(f64::total_cmp);
    println!(
        "\n{outstanding} batches outstanding, {commands} commands ({} bytes) a batch\n{:40} {:>12} {:>14}  {:>19}  {}",
        batch.bytes().len(),
        "",
        "batches/s",
        "commands/s",
        "lowest to highest",
        best.map_or("", |_| "over the best peer")
    );
    for ((contestant, rates), rate) in contestants.iter().zip(rates).zip(&medians) {
        let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rates.iter().copied().fold(0.0, f64::max);
        let ratio = best.map_or(String::new(), |best| format!("{:.2}", rate / best));
        let all = rate * commands as f64;
        println!("{:40} {rate:12.0} {all:14.0}  {low:8.0} .. {high:8.0}  {ratio}", contestant.name);
    }
}
