//! How much memory a transaction takes, also when the log is replayed, and how much the store takes.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use prost::Message;
use synod_api::{
    etcdserverpb::{
        CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        request_op::Request,
    },
    synod::v1::{KvCommand, KvQuery, KvReply, kv_command::Command, kv_query::Query, kv_reply::Reply},
};
use synod_kv::KvStore;
use synod_replica::{ANSWER_BYTES_MAX, Context, StateMachine};
use synod_wire::Slot;

/// An allocator that counts the bytes in use, and their maximum.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most memory that `work` takes beyond what was in use before.
fn needs(work: impl FnOnce()) -> usize {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    work();
    MOST.load(Relaxed) - before
}

const REQUEST_BYTES_MAX: usize = 3 << 19;

/// Most memory that a command may take if no client waits for its answer: it is decoded, the keys that it
/// finds are listed, and what it changes exists twice until it is done.
const UNANSWERED_BYTES_MAX: usize = 60 * REQUEST_BYTES_MAX;

/// A store of 9 MB.
fn store() -> KvStore {
    let mut store = KvStore::new();
    for n in 0..9_000 {
        let put =
            PutRequest { key: format!("{n:05}").into(), value: vec![7; 1000].into(), ..Default::default() };
        store.apply(&encoded(Command::Put(put)), &answered());
    }
    store
}

fn encoded(command: Command) -> Bytes {
    KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec().into()
}

fn everything() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn all(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success, ..TxnRequest::default() }
}

/// A transaction with one put, and ranges over the whole store in nested lists of 100.
fn poison(ranges: usize, range: &RangeRequest) -> TxnRequest {
    let put = PutRequest { key: "poison".into(), ..PutRequest::default() };
    let ranges = vec![op(Request::RequestRange(range.clone())); ranges];
    let lists = ranges.chunks(100).map(|list| op(Request::RequestTxn(all(list.to_vec()))));
    let nested = lists.collect::<Vec<_>>();
    let nested = nested.chunks(100).map(|some| op(Request::RequestTxn(all(some.to_vec()))));
    all(nested.chain([op(Request::RequestPut(put))]).collect())
}

/// The allocator counts all threads together, so tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answered() -> Context {
    Context::new(Slot(1))
}

fn unanswered() -> Context {
    answered().without_reply()
}

/// A store that was restored takes no more memory than one whose keys came in any order, and restoring it hardly more.
#[test]
fn a_restored_store_takes_no_more_memory() {
    let _alone = alone();
    let before = NOW.load(Relaxed);
    let mut store = KvStore::new();
    for n in 0..50_000_u64 {
        let key = format!("{:020}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into();
        let put = PutRequest { key, value: vec![7; 100].into(), ..Default::default() };
        store.apply(&encoded(Command::Put(put)), &answered());
    }
    let taken = NOW.load(Relaxed) - before;
    let mut snapshot = Vec::new();
    store.freeze().write_to(&mut snapshot).unwrap();
    drop(store);
    let before = NOW.load(Relaxed);
    let mut restored = KvStore::new();
    let needed = needs(|| restored.restore(&mut &snapshot[..]).unwrap());
    let takes = NOW.load(Relaxed) - before;
    assert!(takes <= taken && needed <= takes + takes / 5, "{taken} before, {takes} now, {needed} meanwhile");
}

/// A history takes at most 1.3 times the bytes of its keys and values, and a compaction gives memory back.
#[test]
fn history_takes_little_more_than_its_keys_and_values() {
    const PUTS: usize = 200_000;
    const KEYS: usize = 1_000;
    const VALUE_BYTES: usize = 256;
    let _alone = alone();
    let before = NOW.load(Relaxed);
    let mut store = KvStore::new();
    let mut random = fastrand::Rng::with_seed(2);
    let mut key_bytes = 0;
    for _ in 0..PUTS {
        let key = format!("some/longer/key/{:08}", random.usize(0..KEYS));
        key_bytes += key.len();
        let put = PutRequest { key: key.into(), value: vec![7; VALUE_BYTES].into(), ..Default::default() };
        store.apply(&encoded(Command::Put(put)), &unanswered());
    }
    let held = |store: &KvStore| {
        assert!(store.revision() > 0);
        NOW.load(Relaxed) - before
    };
    let (contents, all) = (key_bytes + PUTS * VALUE_BYTES, held(&store));
    println!("{all} bytes for {contents} of keys and values: {:.2}", all as f64 / contents as f64);
    assert!(all * 10 < contents * 13, "{all} bytes for {contents} of keys and values");

    let compaction = CompactionRequest { revision: store.revision(), physical: true };
    while store.status().purged_revision < store.revision() {
        store.apply(&encoded(Command::Compact(compaction)), &unanswered());
    }
    let (contents, live) = (contents / PUTS * KEYS, held(&store));
    println!("{live} bytes for {contents} of live keys and values");
    assert!(live < 3 * contents, "{live} bytes for {contents} of live keys and values");
}

#[test]
fn no_transaction_takes_more_than_its_bound() {
    let _alone = alone();
    let mut store = store();
    let sorted = RangeRequest { sort_order: 2, sort_target: 4, ..everything() };
    let counts = RangeRequest { count_only: true, ..everything() };
    let few = RangeRequest { limit: 1, sort_order: 2, ..everything() };
    for range in [everything(), sorted, counts, few] {
        for ranges in [6, 250, 100_000] {
            let command = encoded(Command::Txn(poison(ranges, &range)));
            let (digest, revision) = (store.digest(), store.revision());
            let unanswered = needs(|| drop(store.apply(&command, &unanswered())));
            assert!(unanswered < UNANSWERED_BYTES_MAX, "{unanswered} for {ranges} of {range:?}");
            let executed = store.revision() > revision;
            assert!(executed || store.digest() == digest);
            assert!(ranges > 6 || executed, "{range:?}");
            let mut reply = Bytes::new();
            let answered = needs(|| reply = store.apply(&command, &answered()));
            assert!(answered < UNANSWERED_BYTES_MAX + 2 * ANSWER_BYTES_MAX as usize, "{answered}");
            let reply = KvReply::decode(reply).unwrap().reply.unwrap();
            let refused = matches!(&reply, Reply::Error(failure) if failure.code == 8);
            assert_eq!(refused, !executed, "{range:?}");
            let reads = TxnRequest { success: poison(ranges, &range).success, ..TxnRequest::default() };
            let reads = all(reads.success[..reads.success.len() - 1].to_vec());
            let query =
                KvQuery { query: Some(Query::Txn(reads)), ..KvQuery::default() }.encode_to_vec().into();
            let asked = needs(|| drop(StateMachine::query(&store, &query)));
            assert!(asked < UNANSWERED_BYTES_MAX + 2 * ANSWER_BYTES_MAX as usize, "{asked}");
        }
    }

    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..300 {
        let command = encoded(Command::Txn(random_txn(&mut random, 4)));
        let needed = needs(|| drop(store.apply(&command, &unanswered())));
        assert!(needed < UNANSWERED_BYTES_MAX, "{needed}");
    }
}

/// Operations of all kinds, most of them on much of the store.
fn random_txn(random: &mut fastrand::Rng, depth: usize) -> TxnRequest {
    let key = |random: &mut fastrand::Rng| Bytes::from(format!("{:05}", random.usize(0..9_000)));
    let ops = |random: &mut fastrand::Rng| {
        let count = random.usize(0..12);
        (0..count)
            .map(|_| {
                op(match random.u8(0..8) {
                    0 if depth > 0 => Request::RequestTxn(random_txn(random, depth - 1)),
                    0..5 => Request::RequestRange(RangeRequest {
                        key: key(random),
                        range_end: vec![0].into(),
                        limit: [0, 0, 1, 1000][random.usize(0..4)],
                        sort_order: random.i32(0..3),
                        sort_target: random.i32(0..5),
                        count_only: random.u8(0..5) == 0,
                        keys_only: random.u8(0..5) == 0,
                        ..RangeRequest::default()
                    }),
                    5 => Request::RequestPut(PutRequest {
                        key: key(random),
                        value: vec![1; random.usize(0..10_000)].into(),
                        prev_kv: random.bool(),
                        ..PutRequest::default()
                    }),
                    _ => Request::RequestDeleteRange(DeleteRangeRequest {
                        key: key(random),
                        range_end: key(random),
                        prev_kv: random.bool(),
                    }),
                })
            })
            .collect::<Vec<_>>()
    };
    let (success, failure) = (ops(random), ops(random));
    let compare = Compare { key: key(random), range_end: vec![0].into(), ..Compare::default() };
    TxnRequest { compare: vec![compare; random.usize(0..3)], success, failure }
}
