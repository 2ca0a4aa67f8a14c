//! Measures what a large store costs its executor: the longest that one command takes while the store is filled, while
//! a snapshot shares it, and after it; how long it takes to write the snapshot and to read it back; and the same of
//! commands and ticks of the clock with 100,000 leases. One thread, memory only.
//!
//! `cargo run --release -p synod-kv --example large_state [BYTES [VALUE_BYTES]]`
//!
//! `BYTES` counts keys and values. The times of commands are CPU time of the thread, so that other programs on the
//! machine are not counted in.

use std::{
    env,
    io::{self, Read, Write},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};
use synod_api::{
    etcdserverpb::{LeaseGrantRequest, PutRequest},
    synod::v1::{KvCommand, KvLeaseRenew, kv_command::Command},
};
use synod_kv::KvStore;
use synod_replica::{Context, StateMachine};
use synod_wire::{SessionId, Slot};

const KEY_BYTES: u64 = 20;

fn main() -> io::Result<()> {
    let number = |at: usize, default: u64| {
        env::args().nth(at).map_or(default, |text| text.parse().expect("an argument is a number"))
    };
    let (bytes, value_bytes) = (number(1, 1 << 30), number(2, 100));
    let keys = bytes / (KEY_BYTES + value_bytes);
    println!("{keys} keys of {KEY_BYTES} bytes, values of {value_bytes} bytes");
    let mut bench = Bench { store: KvStore::new(), value: vec![b'v'; value_bytes as usize].into() };

    let mut spread = Spread::default();
    (0..keys).for_each(|n| spread.add(bench.put(n)));
    spread.report("fill");

    let mut random = fastrand::Rng::with_seed(1);
    let mut spread = Spread::default();
    (0..keys / 10).for_each(|_| spread.add(bench.put(random.u64(..keys))));
    spread.report("puts");

    let began = now();
    let frozen = bench.store.freeze();
    println!("{:40}{:>10.1?}", "freeze", now() - began);
    let mut spread = Spread::default();
    (0..keys / 10).for_each(|_| spread.add(bench.put(random.u64(..keys))));
    spread.report("puts while a snapshot shares the state");

    let mut snapshot = Written::default();
    let began = now();
    frozen.write_to(&mut snapshot)?;
    println!("{:40}{:>10.1?}  {} MB", "write a snapshot", now() - began, snapshot.0.len() / 1_000_000);
    let began = now();
    drop(frozen);
    println!("{:40}{:>10.1?}  (not on the executor's thread)", "drop the frozen state", now() - began);
    let mut spread = Spread::default();
    (0..keys / 10).for_each(|_| spread.add(bench.put(random.u64(..keys))));
    spread.report("puts after it");

    drop(bench);
    let began = now();
    let mut restored = KvStore::new();
    restored.restore(&mut &snapshot.0[..] as &mut dyn Read)?;
    let took = now() - began;
    println!(
        "{:40}{:>10.1?}  {:.0} ns a key",
        "read the snapshot",
        took,
        took.as_nanos() as f64 / keys as f64
    );
    drop(restored);
    leases();
    Ok(())
}

/// Leases of one tick of the clock: a tenth of a second, in which all are renewed that are due.
fn leases() {
    const LEASES: i64 = 100_000;
    let mut store = KvStore::new();
    let command = |command| {
        let command = KvCommand { command: Some(command), quota_bytes: 1 << 40, ..KvCommand::default() };
        Bytes::from(command.encode_to_vec())
    };
    let mut clock = 0;
    let mut tick = |store: &mut KvStore| {
        clock += 100;
        let mut context = Context::new(Slot(1));
        context.time = Duration::from_millis(clock);
        let began = now();
        store.clock_moved(&context, SessionId(7));
        now() - began
    };
    let (mut granting, mut ticking) = (Spread::default(), Spread::default());
    for id in 1..=LEASES {
        let grant = command(Command::LeaseGrant(LeaseGrantRequest { ttl: 60, id }));
        let put = PutRequest { key: format!("{id:020}").into(), lease: id, ..PutRequest::default() };
        let put = command(Command::Put(put));
        let began = now();
        store.apply(&grant, &Context::new(Slot(1)));
        store.apply(&put, &Context::new(Slot(1)));
        granting.add(now() - began);
        if id % 1_000 == 0 {
            ticking.add(tick(&mut store));
        }
    }
    granting.report("grant a lease and put a key of it");
    ticking.report("tick, 1,000 leases granted since");
    for renewed in [1_000, 10_000] {
        let (mut renewing, mut ticking) = (Spread::default(), Spread::default());
        for first in (1..=LEASES).step_by(renewed) {
            let renew =
                command(Command::LeaseRenew(KvLeaseRenew { ids: (first..first + renewed as i64).collect() }));
            let began = now();
            store.apply(&renew, &Context::new(Slot(1)));
            renewing.add(now() - began);
            ticking.add(tick(&mut store));
        }
        renewing.report(&format!("renew {renewed} leases in one command"));
        ticking.report(&format!("tick, {renewed} leases renewed since"));
    }
    let mut ending = Spread::default();
    while store.key_count() > 0 {
        ending.add(tick(&mut store));
    }
    ending.report("tick, until all leases have ended");
}

/// Keeps what is written.
#[derive(Default)]
struct Written(Vec<u8>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Bench {
    store: KvStore,
    value: Bytes,
}

impl Bench {
    fn put(&mut self, n: u64) -> Duration {
        // Neighbours in the order of keys are not put one after the other.
        let key = format!("{:020}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into();
        let put = PutRequest { key, value: self.value.clone(), ..PutRequest::default() };
        let command = KvCommand {
            command: Some(Command::Put(put)),
            quota_bytes: 1 << 40,
            member_id: 1,
            ..KvCommand::default()
        };
        let command = command.encode_to_vec().into();
        let began = now();
        self.store.apply(&command, &Context::new(Slot(1)));
        now() - began
    }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long commands took.
#[derive(Default)]
struct Spread(Vec<Duration>);

impl Spread {
    fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    fn report(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        let mean = self.0.iter().sum::<Duration>() / self.0.len() as u32;
        println!(
            "{what:40}{mean:>10.1?}{:>10.1?} at 99.9 %{:>10.1?} at most",
            at(0.999),
            self.0[self.0.len() - 1]
        );
    }
}
