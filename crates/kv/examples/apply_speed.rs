//! Measures how fast the store applies puts without a log, a network or a client: one thread, memory only.
//!
//! `cargo run --release -p synod-kv --example apply_speed [KEYS] [VALUE_BYTES] [PUTS]`

use std::{
    env, io,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message;
use synod_api::{
    etcdserverpb::{CompactionRequest, PutRequest, RangeRequest},
    synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
};
use synod_kv::KvStore;
use synod_replica::{Context, StateMachine};
use synod_wire::Slot;

fn main() -> io::Result<()> {
    let number = |at: usize, default: u64| {
        env::args().nth(at).map_or(default, |text| text.parse().expect("an argument is a number"))
    };
    let (keys, value_bytes, puts) = (number(1, 100_000), number(2, 256), number(3, 1_000_000));
    println!("{keys} keys, values of {value_bytes} bytes, {puts} puts at random");
    let mut random = fastrand::Rng::with_seed(1);
    let value = Bytes::from(vec![b'v'; value_bytes as usize]);
    let encode = |command| {
        Bytes::from(
            KvCommand { command: Some(command), quota_bytes: 1 << 40, member_id: 1, ..KvCommand::default() }
                .encode_to_vec(),
        )
    };
    let mut put = || {
        let key = format!("key-{:012}", random.u64(..keys)).into();
        encode(Command::Put(PutRequest { key, value: value.clone(), ..PutRequest::default() }))
    };
    let commands: Vec<Bytes> = (0..puts).map(|_| put()).collect();

    let mut store = KvStore::new();
    apply(&mut store, "puts", &commands[..commands.len() / 2]);
    let start = Instant::now();
    let frozen = store.freeze();
    println!("freeze: {:?}", start.elapsed());
    apply(&mut store, "puts while a snapshot shares the state", &commands[commands.len() / 2..]);
    let start = Instant::now();
    let mut bytes = Vec::new();
    frozen.write_to(&mut bytes)?;
    report("write snapshot", start.elapsed(), 1);
    println!("  {} MB", bytes.len() / 1_000_000);
    drop(frozen);
    let start = Instant::now();
    KvStore::new().restore(&mut &bytes[..])?;
    report("restore snapshot", start.elapsed(), 1);

    let start = Instant::now();
    let context = Context::new(Slot(1));
    store.apply(
        &encode(Command::Compact(CompactionRequest { revision: store.revision(), physical: false })),
        &context,
    );
    report("compact (logical)", start.elapsed(), 1);
    apply(&mut store, "puts while the compaction is cleared away", &commands[..commands.len() / 20]);
    let compaction = CompactionRequest { revision: store.revision(), physical: true };
    let compaction = encode(Command::Compact(compaction));
    let (start, mut commands) = (Instant::now(), 0);
    while store.status().purged_revision < store.revision() {
        store.apply(&compaction, &context);
        commands += 1;
    }
    report("compact (physical), a portion", start.elapsed(), commands);

    let gets: Vec<Bytes> = (0..puts / 2)
        .map(|_| {
            let key = format!("key-{:012}", random.u64(..keys)).into();
            let range = RangeRequest { key, ..RangeRequest::default() };
            KvQuery { query: Some(Query::Range(range)), ..KvQuery::default() }.encode_to_vec().into()
        })
        .collect();
    let start = Instant::now();
    let answered: usize = gets.iter().map(|get| StateMachine::query(&store, get).len()).sum();
    report("gets", start.elapsed(), gets.len());
    assert!(answered > 0);
    Ok(())
}

fn apply(store: &mut KvStore, what: &str, commands: &[Bytes]) {
    let start = Instant::now();
    let replies: usize =
        commands.iter().map(|command| store.apply(command, &Context::new(Slot(1))).len()).sum();
    report(what, start.elapsed(), commands.len());
    assert!(replies > 0);
}

fn report(what: &str, elapsed: Duration, count: usize) {
    println!(
        "{what}: {elapsed:.1?} for {count}, {:.2} us each",
        elapsed.as_secs_f64() * 1e6 / count.max(1) as f64
    );
}
