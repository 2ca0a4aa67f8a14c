//! Locks and elections of the Rust client on real processes, of which the leader is killed.

mod commands;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use synod_client::{
    Client, Config, Lock,
    api::{PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request},
};
use tokio::{
    task::{block_in_place, spawn},
    time::{sleep, timeout},
};

use synod_testkit::{WAIT_MAX, processes::Cluster};

use self::commands::{SYNOD, leader};

const TTL: Duration = Duration::from_secs(3);
/// Longer than any time without a leader.
const LONG: Duration = Duration::from_secs(30);
const CONTENDERS: usize = 4;
const ROUNDS: usize = 6;

async fn started() -> (tempfile::TempDir, Cluster, Client) {
    let folder = tempfile::tempdir().unwrap();
    let cluster = block_in_place(|| Cluster::start(Path::new(SYNOD), folder.path(), 3, &[]));
    let client = client(&cluster, 0);
    let written = async {
        while client.put(PutRequest { key: "up".into(), ..Default::default() }).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT_MAX, written).await.expect("the cluster serves");
    (folder, cluster, client)
}

fn client(cluster: &Cluster, first: usize) -> Client {
    let mut config = Config::new(cluster.endpoints());
    config.first_endpoint = Some(first);
    Client::new(config).unwrap()
}

/// Kills the replica that leads, and returns its index.
fn kill_leader(cluster: &mut Cluster) -> usize {
    block_in_place(|| {
        let leads = leader(&cluster.endpoints());
        cluster.kill(leads);
        leads
    })
}

async fn count(client: &Client, prefix: &'static str, end: &'static str) -> i64 {
    let range = RangeRequest { key: prefix.into(), range_end: end.into(), ..Default::default() };
    client.get(range).await.map_or(-1, |found| found.count)
}

/// Adds one to a number that is written under a lock. It is told whether the fence let it pass.
async fn increment(client: &Client, lock: &Lock) -> Option<bool> {
    let found = client.get(RangeRequest { key: "sum".into(), ..Default::default() }).await.ok()?;
    let sum: u64 = found.kvs.first().map_or(0, |kv| std::str::from_utf8(&kv.value).unwrap().parse().unwrap());
    let put = PutRequest { key: "sum".into(), value: (sum + 1).to_string().into(), ..Default::default() };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
    let txn = TxnRequest { compare: vec![lock.fence()], success, ..Default::default() };
    client.txn(txn).await.ok().map(|done| done.succeeded)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_its_queue_outlive_the_leader() {
    let (_folder, mut cluster, holder) = started().await;
    let leads = block_in_place(|| leader(&cluster.endpoints()));
    // Both talk to the replica that will be killed.
    let (holder_first, waiter) = (client(&cluster, leads), client(&cluster, leads));
    let held = holder_first.lock("job", TTL).await.unwrap();
    let waits = spawn(async move { waiter.lock("job", TTL).await });
    let election = holder.election("scheduler");
    let leadership = election.campaign("one", TTL).await.unwrap();
    let queued = async {
        while count(&holder, "job/", "job0").await < 2 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_MAX, queued).await.expect("it waits");

    kill_leader(&mut cluster);
    // All live on for longer than leases that are not renewed.
    tokio::select! {
        () = held.lost() => panic!("the lock was lost"),
        () = leadership.lost() => panic!("the leadership was lost"),
        () = sleep(TTL + TTL / 2) => {}
    }
    assert!(held.is_held() && !waits.is_finished());
    assert_eq!(count(&holder, "job/", "job0").await, 2, "each is in the queue once");
    leadership.proclaim("uno").await.unwrap();
    assert_eq!(election.leader().await.unwrap().unwrap().value, "uno");
    let token = held.revision();
    held.unlock().await.unwrap();
    let next = timeout(WAIT_MAX, waits).await.unwrap().unwrap().unwrap();
    assert!(next.revision() > token);
    next.unlock().await.unwrap();
    leadership.resign().await.unwrap();
    assert_eq!(count(&holder, "job/", "job0").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_never_hold_at_once_while_leaders_are_killed() {
    let (_folder, mut cluster, client_of_all) = started().await;
    let (holders, added) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let contenders: Vec<_> = (0..CONTENDERS)
        .map(|number| {
            let client = client(&cluster, number % 3);
            let (holders, added) = (Arc::clone(&holders), Arc::clone(&added));
            spawn(async move {
                for _ in 0..ROUNDS {
                    let lock = loop {
                        if let Ok(lock) = client.lock("job", LONG).await {
                            break lock;
                        }
                    };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "held by two");
                    for _ in 0..3 {
                        match increment(&client, &lock).await {
                            Some(true) => _ = added.fetch_add(1, Ordering::SeqCst),
                            Some(false) => panic!("the lock was held, and the fence refused it"),
                            // It may be executed later, but not after the lock is let go.
                            None => break,
                        }
                        sleep(Duration::from_millis(10)).await;
                    }
                    assert!(lock.is_held());
                    holders.fetch_sub(1, Ordering::SeqCst);
                    let _ = lock.unlock().await;
                }
            })
        })
        .collect();
    for _ in 0..2 {
        sleep(Duration::from_millis(500)).await;
        let killed = kill_leader(&mut cluster);
        sleep(Duration::from_millis(500)).await;
        cluster.restart(killed);
    }
    for contender in contenders {
        timeout(WAIT_MAX, contender).await.expect("in time").unwrap();
    }
    let found = client_of_all.get(RangeRequest { key: "sum".into(), ..Default::default() }).await.unwrap();
    let sum: u64 = std::str::from_utf8(&found.kvs[0].value).unwrap().parse().unwrap();
    assert!(sum >= added.load(Ordering::SeqCst), "an increment was lost: {sum} of {added:?}");
}
