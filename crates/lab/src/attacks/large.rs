//! Attacks by requests that are small and have large answers.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fastrand::Rng;
use synod_api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    kv_client::KvClient,
    request_op::Request,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Scene,
    cluster::{Cluster, SERVERS, channel},
    report,
    wire::{RANGE, TXN, Wire, everything, framed},
};

/// How long an attacker waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that a reader lets a server send ahead.
const WINDOW: u32 = 1 << 20;
/// Puts in a transaction that fills the store: the most that etcd and Synod accept.
const FILL: u64 = 128;

/// Puts `keys` keys with values of `value_bytes` bytes.
pub async fn fill(cluster: &Cluster, at: usize, keys: u64, value_bytes: usize) -> Result<(), String> {
    let (channel, value) = (channel(cluster.servers[at].client), Bytes::from(vec![b'.'; value_bytes]));
    let mut tasks = JoinSet::new();
    for first in (0..keys).step_by(FILL as usize) {
        let mut client = KvClient::new(channel.clone());
        let put = |key| PutRequest { key: name(key), value: value.clone(), ..PutRequest::default() };
        let puts = (first..keys.min(first + FILL)).map(|key| op(Request::RequestPut(put(key))));
        let txn = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
        if tasks.len() >= 16 {
            tasks.join_next().await;
        }
        tasks.spawn(
            async move { client.txn(txn).await.map_err(|error| format!("filling the store: {error}")) },
        );
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}

fn name(key: u64) -> Bytes {
    format!("store/{key:09}").into()
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn ops_of(request: &Request, count: usize) -> Vec<RequestOp> {
    vec![op(request.clone()); count]
}

/// A transaction with one put, so that it is in the log, and many ranges over the whole store.
pub async fn poison(scene: &mut Scene<'_>) -> Result<(), String> {
    let range = Request::RequestRange(everything());
    let nested = |success| Request::RequestTxn(TxnRequest { success, ..TxnRequest::default() });
    let put = PutRequest { key: "poison".into(), ..PutRequest::default() };
    let poisoned = |mut ops: Vec<RequestOp>| {
        ops.push(op(Request::RequestPut(put.clone())));
        TxnRequest { success: ops, ..TxnRequest::default() }
    };
    // A list of a transaction has at most 128 operations, the transactions around it counted.
    let ranges = usize::try_from(scene.settings.get("ranges")).unwrap_or(usize::MAX);
    let some = (0..ranges).step_by(100).map(|done| op(nested(ops_of(&range, (ranges - done).min(100)))));
    let some = poisoned(some.collect());
    let mut tree = range.clone();
    for _ in 0..4 {
        tree = nested(ops_of(&tree, 18));
    }
    let many = poisoned(vec![op(tree)]);
    for (what, txn) in [(format!("{ranges} ranges"), some), ("104,976 ranges".to_owned(), many)] {
        let size = framed(&txn).len() >> 10;
        let answer = ask(scene, &txn).await;
        scene.note(format!("answer to {what} ({size} KiB)"), answer);
    }
    Ok(())
}

/// Sends a transaction to the target, and describes the result in words.
async fn ask(scene: &Scene<'_>, txn: &TxnRequest) -> String {
    let began = Instant::now();
    let asked = async {
        let mut wire = Wire::open(scene.cluster.servers[scene.target].client, WINDOW).await?;
        wire.drain(TXN, txn).await
    };
    match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(Ok(answer)) => {
            format!("{:?}, {} MiB, {}", answer.code, answer.bytes >> 20, report::ms(began.elapsed()))
        }
        Ok(Err(error)) => error,
        Err(_) => format!("nothing within {ANSWER_TIMEOUT:?}"),
    }
}

/// An honest client reads the whole store again and again.
pub async fn range(scene: &mut Scene<'_>) -> Result<(), String> {
    let mut wire = Wire::open(scene.cluster.servers[scene.target].client, WINDOW).await?;
    let (began, mut answers, mut bytes) = (Instant::now(), 0, 0);
    while answers == 0 || began.elapsed() < scene.settings.seconds() {
        let answer = timeout(ANSWER_TIMEOUT, wire.drain(RANGE, &everything())).await;
        bytes = answer.map_err(|_| format!("no answer within {ANSWER_TIMEOUT:?}"))??.bytes;
        answers += 1;
    }
    scene.note("ranges answered", answers);
    scene.note("an answer", format!("{} MiB in {}", bytes >> 20, report::ms(began.elapsed() / answers)));
    Ok(())
}

/// Ranges whose answers the client gives no room to send, then ranges whose answers may be sent and are not read.
pub async fn unread(scene: &mut Scene<'_>) -> Result<(), String> {
    let streams = scene.settings.get("streams");
    for (connections, streams, window) in [(20, streams, 0), (50, streams / 5, 65_535)] {
        let attack = async {
            let mut held = Vec::new();
            for _ in 0..connections {
                let mut wire = Wire::open(scene.cluster.servers[scene.target].client, window).await?;
                let mut open = Vec::new();
                for _ in 0..streams {
                    open.push(wire.send(RANGE, framed(&everything()), true).await?);
                }
                held.push((wire, open));
            }
            Ok::<_, String>(held)
        };
        // Streams beyond the server's limit wait here; the limit is a bound, too.
        let (began, held) = (Instant::now(), timeout(scene.settings.seconds(), attack).await);
        let sent = match &held {
            Ok(Ok(_)) => format!("all sent after {}", report::ms(began.elapsed())),
            Ok(Err(error)) => format!("refused: {error}"),
            Err(_) => "not all taken".to_owned(),
        };
        sleep(scene.settings.seconds().saturating_sub(began.elapsed())).await;
        let resident = report::all_mib(scene.cluster.resident());
        scene.note(
            format!("{connections} x {streams} with window {window}"),
            format!("{sent}; {resident} resident"),
        );
    }
    Ok(())
}

/// Random transactions, to find costs that no other attack was written for.
pub async fn random(scene: &mut Scene<'_>) -> Result<(), String> {
    let deadline = Instant::now() + scene.settings.seconds();
    let (keys, seed) = (scene.settings.get("small-keys"), scene.settings.get("seed"));
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let address = scene.cluster.servers[(scene.target + task) % SERVERS].client;
        let mut random = Rng::with_seed(seed.wrapping_add(task as u64));
        tasks.spawn(async move {
            let mut codes = BTreeMap::new();
            let mut wire = Wire::open(address, WINDOW).await?;
            while Instant::now() < deadline {
                let txn = transaction(&mut random, keys, 0);
                let answer = timeout(ANSWER_TIMEOUT, wire.drain(TXN, &txn)).await;
                let answer = answer.map_err(|_| format!("no answer within {ANSWER_TIMEOUT:?}"))??;
                *codes.entry(format!("{:?}", answer.code)).or_insert(0) += 1;
            }
            Ok::<_, String>(codes)
        });
    }
    let mut codes = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        for (code, count) in done.map_err(|error| error.to_string())?? {
            *codes.entry(code).or_insert(0) += count;
        }
    }
    let codes: Vec<_> = codes.into_iter().map(|(code, count)| format!("{count} {code}")).collect();
    scene.note("transactions", codes.join(", "));
    Ok(())
}

/// A random transaction. One in four has long lists; nested lists together stay below the limit of 128 operations.
fn transaction(random: &mut Rng, keys: u64, depth: u32) -> TxnRequest {
    let longest = if random.u8(..4) == 0 { 40 >> depth } else { 5 };
    let mut list = || {
        let count = random.usize(..=longest);
        (0..count).map(|_| op(operation(random, keys, depth))).collect::<Vec<_>>()
    };
    let (success, failure) = (list(), list());
    let compare = Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Version.into(),
        key: name(random.u64(..2 * keys)),
        target_union: Some(TargetUnion::Version(random.i64(..3))),
        ..Compare::default()
    };
    let compare = if random.bool() { vec![compare] } else { Vec::new() };
    TxnRequest { compare, success, failure }
}

fn operation(random: &mut Rng, keys: u64, depth: u32) -> Request {
    let first = random.u64(..keys);
    match random.u8(..8) {
        0..=1 if depth < 3 => Request::RequestTxn(transaction(random, keys, depth + 1)),
        0..=2 => Request::RequestRange(RangeRequest {
            limit: if random.bool() { random.i64(..100) } else { 0 },
            sort_order: random.i32(..3),
            sort_target: random.i32(..5),
            keys_only: random.bool(),
            count_only: random.u8(..4) == 0,
            ..everything()
        }),
        3..=4 => Request::RequestRange(RangeRequest {
            key: name(first),
            range_end: name(first + random.u64(..keys)),
            ..RangeRequest::default()
        }),
        5 => Request::RequestDeleteRange(DeleteRangeRequest {
            key: name(first),
            range_end: if random.bool() { name(first + random.u64(..50)) } else { Bytes::new() },
            prev_kv: random.bool(),
        }),
        _ => Request::RequestPut(PutRequest {
            key: name(random.u64(..2 * keys)),
            value: vec![b'-'; random.usize(..256)].into(),
            prev_kv: random.bool(),
            ..PutRequest::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_transactions_of_every_kind() {
        let draw = |seed| {
            let mut random = Rng::with_seed(seed);
            (0..50).map(|_| transaction(&mut random, 100, 0)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let said = format!("{:?}", draw(1));
        for kind in ["RequestTxn", "RequestRange", "RequestDeleteRange", "RequestPut", "count_only: true"] {
            assert!(said.contains(kind), "{kind} is never drawn");
        }
    }
}
