//! Keys, a transaction, a watch, a lease, a lock and an election, against a running cluster (`synod dev`):
//!
//! ```text
//! cargo run -p synod-client --example tour -- http://127.0.0.1:2379 http://127.0.0.1:22379 http://127.0.0.1:32379
//! ```

use std::{env, error::Error, time::Duration};

use synod_client::{
    Client, Config,
    api::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(5);
/// How long any step may take.
const SOON: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new(Config::new(env::args().skip(1)))?;
    client.delete(everything()).await?;
    let revision = keys(&client).await?;
    watch(&client, revision).await?;
    lease(&client).await?;
    lock(&client).await?;
    election(&client).await?;
    println!("all steps are done");
    Ok(())
}

/// All keys of this program.
fn everything() -> DeleteRangeRequest {
    DeleteRangeRequest { key: "tour/".into(), range_end: "tour0".into(), ..Default::default() }
}

fn put(key: &'static str, value: &'static str) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

/// Writes a key, reads it, and writes it once more if nobody else has. Returns the revision of the first write.
async fn keys(client: &Client) -> Result<i64, Box<dyn Error>> {
    let written = client.put(put("tour/city", "Lausanne")).await?.header.unwrap_or_default().revision;
    let found = client.get(RangeRequest { key: "tour/city".into(), ..Default::default() }).await?;
    assert_eq!(found.kvs[0].value, "Lausanne");
    let unchanged = Compare {
        key: "tour/city".into(),
        target: CompareTarget::Mod.into(),
        result: CompareResult::Equal.into(),
        target_union: Some(TargetUnion::ModRevision(written)),
        ..Default::default()
    };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put("tour/city", "Lugano"))) }];
    let txn = TxnRequest { compare: vec![unchanged], success, ..Default::default() };
    assert!(client.txn(txn.clone()).await?.succeeded);
    assert!(!client.txn(txn).await?.succeeded, "the key has changed since");
    println!("keys: two writes, from revision {written} on");
    Ok(written)
}

/// Reads the history of the key from a revision on.
async fn watch(client: &Client, start_revision: i64) -> Result<(), Box<dyn Error>> {
    let mut watch =
        client.watch(WatchCreateRequest { key: "tour/city".into(), start_revision, ..Default::default() });
    let mut values = Vec::new();
    while values.len() < 2 {
        let told = timeout(SOON, watch.next()).await??.ok_or("the watch ended")?;
        values.extend(told.events.into_iter().filter_map(|event| Some(event.kv?.value)));
    }
    assert_eq!(values, ["Lausanne", "Lugano"]);
    println!("watch: both values, in their order");
    Ok(())
}

/// A key that goes with its lease.
async fn lease(client: &Client) -> Result<(), Box<dyn Error>> {
    let lease = client.lease(TTL).await?;
    client.put(PutRequest { lease: lease.id(), ..put("tour/worker", "here") }).await?;
    assert!(lease.is_alive());
    lease.revoke().await?;
    let found = client.get(RangeRequest { key: "tour/worker".into(), ..Default::default() }).await?;
    assert!(found.kvs.is_empty());
    println!("lease: its key went with it");
    Ok(())
}

/// A lock, and a write that has no effect once the lock is lost.
async fn lock(client: &Client) -> Result<(), Box<dyn Error>> {
    let lock = timeout(SOON, client.lock("tour/lock", TTL)).await??;
    assert!(client.try_lock("tour/lock", TTL).await?.is_none(), "it is held");
    let success = vec![RequestOp { request: Some(Request::RequestPut(put("tour/guarded", "by the lock"))) }];
    let guarded = TxnRequest { compare: vec![lock.fence()], success, ..Default::default() };
    assert!(client.txn(guarded.clone()).await?.succeeded);
    lock.unlock().await?;
    assert!(!client.txn(guarded).await?.succeeded, "the fence refuses who held the lock before");
    println!("lock: held by one, and fenced");
    Ok(())
}

/// Two candidates, and who observes them.
async fn election(client: &Client) -> Result<(), Box<dyn Error>> {
    let election = client.election("tour/leader");
    let mut observed = election.observe();
    assert!(timeout(SOON, observed.next()).await??.is_none(), "nobody leads");
    let first = timeout(SOON, election.campaign("one", TTL)).await??;
    let other = election.clone();
    let second = tokio::spawn(async move { other.campaign("two", TTL).await });
    first.proclaim("one, and ready").await?;
    first.resign().await?;
    let second = timeout(SOON, second).await???;
    let mut leaders = Vec::new();
    while leaders.last().is_none_or(|leader| leader != "two") {
        leaders.extend(timeout(SOON, observed.next()).await??.map(|leader| leader.value));
    }
    println!("election: {leaders:?}");
    assert_eq!(leaders[..2], ["one", "one, and ready"]);
    second.resign().await?;
    Ok(())
}
