//! Measures what executing a put costs, by number and length of keys: the work of an executor's thread on
//! decided batches (session table, decoding, store, encoding the reply), without a log, a network or a
//! client. Memory only.
//!
//! `cargo run --release -p synod-kv --example put_speed [PUTS [KEY_BYTES [KEYS]]]`
//!
//! Every store first gets all its keys once, in random order, and then `PUTS` puts of random keys, with values
//! of 256 bytes, in batches of 100. The figures are microseconds of the thread's CPU time for one put. `new` is
//! the first put of a key, `again` a further one, `frozen` one while a frozen copy of the state, renewed every
//! 20,000 puts, shares everything with the store, and `compacting` one while a compaction is cleared away.

use std::env;

use bytes::Bytes;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};
use synod_api::{
    etcdserverpb::{CompactionRequest, PutRequest},
    synod::v1::{KvCommand, kv_command::Command},
};
use synod_consensus::Options;
use synod_kv::KvStore;
use synod_replica::{Executor, Group, Outcome};
use synod_wire::{Ballots, Batch, BatchBuilder, ReplicaId, SessionId, Slot};

const BATCH_COMMANDS: u64 = 100;
const VALUE_BYTES: usize = 256;
const FREEZE_EVERY_PUTS: u64 = 20_000;
/// The session of the first life of replica 1, which is that of all requests without a session of their own.
const SESSION: SessionId = SessionId(1 << 63 | 1 << 48 | 1);
/// Requests of a replica that are outstanding at a time.
const OUTSTANDING: u64 = 512;

fn main() {
    let number = |at: usize| env::args().nth(at).map(|text| text.parse().expect("an argument is a number"));
    let puts = number(1).unwrap_or(200_000);
    let lengths = number(2).map_or(vec![8, 20, 100], |one| vec![one]);
    let spaces = number(3).map_or(vec![1, 1_000, 100_000, 1_000_000], |one| vec![one]);
    println!(
        "{:>10} {:>9} {:>8} {:>8} {:>8} {:>10}",
        "key bytes", "keys", "new", "again", "frozen", "compacting"
    );
    for &key_bytes in &lengths {
        for &keys in &spaces {
            measure(key_bytes as usize, keys, puts);
        }
    }
}

fn measure(key_bytes: usize, keys: u64, puts: u64) {
    let mut bench = Bench::new(key_bytes);
    let mut order: Vec<u64> = (0..keys).collect();
    bench.random.shuffle(&mut order);
    let mut order = order.into_iter();
    let new = bench.put(keys, |_| order.next().expect("as many keys as puts"));
    let again = bench.put(puts, |random| random.u64(..keys));
    let mut frozen = 0.0;
    let mut left = puts;
    while left > 0 {
        let copy = bench.executor.freeze();
        let some = left.min(FREEZE_EVERY_PUTS);
        frozen += bench.put(some, |random| random.u64(..keys)) * some as f64;
        left -= some;
        drop(copy);
    }
    bench.compact();
    let compacting = bench.put(puts / 8, |random| random.u64(..keys));
    let frozen = frozen / puts as f64;
    println!("{key_bytes:>10} {keys:>9} {new:>8.2} {again:>8.2} {frozen:>8.2} {compacting:>10.2}");
}

struct Bench {
    executor: Executor<KvStore>,
    random: fastrand::Rng,
    key_bytes: usize,
    value: Bytes,
    sequence: u64,
}

impl Bench {
    fn new(key_bytes: usize) -> Bench {
        Bench {
            executor: Executor::new(KvStore::new(), Group::of(&Options::default(), [ReplicaId(1)])),
            random: fastrand::Rng::with_seed(1),
            key_bytes,
            value: vec![b'v'; VALUE_BYTES].into(),
            sequence: 0,
        }
    }

    fn put(&mut self, puts: u64, mut key: impl FnMut(&mut fastrand::Rng) -> u64) -> f64 {
        let mut seconds = 0.0;
        let mut left = puts;
        while left > 0 {
            let some = left.min(BATCH_COMMANDS);
            left -= some;
            let commands = (0..some).map(|_| {
                // Real keys often share a prefix, and so do these.
                let key = format!("{:0width$}", key(&mut self.random), width = self.key_bytes).into();
                Command::Put(PutRequest { key, value: self.value.clone(), ..PutRequest::default() })
            });
            let batch = batch(&mut self.sequence, commands);
            seconds += self.execute(&batch);
        }
        seconds * 1e6 / puts as f64
    }

    fn compact(&mut self) {
        let revision = self.executor.machine().revision();
        let command = Command::Compact(CompactionRequest { revision, physical: false });
        let batch = batch(&mut self.sequence, [command]);
        self.execute(&batch);
    }

    /// Seconds of CPU time.
    fn execute(&mut self, batch: &Batch) -> f64 {
        let slot = Slot(self.executor.applied().0 + 1);
        let before = cpu_seconds();
        let outcomes = self.executor.execute(slot, Ballots::ZERO, batch, |_| true);
        let after = cpu_seconds();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Reply(_))));
        after - before
    }
}

fn batch(sequence: &mut u64, commands: impl IntoIterator<Item = Command>) -> Batch {
    let mut builder = BatchBuilder::new();
    for command in commands {
        *sequence += 1;
        let command =
            KvCommand { command: Some(command), quota_bytes: 1 << 40, member_id: 1, ..KvCommand::default() };
        let lowest_outstanding = sequence.saturating_sub(OUTSTANDING).max(1);
        builder.push(SESSION, *sequence, lowest_outstanding, &command.encode_to_vec());
    }
    builder.finish()
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
