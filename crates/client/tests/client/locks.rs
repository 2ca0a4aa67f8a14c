//! Leases that are kept alive, locks and elections, when endpoints fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::{Fault, Pair};
use synod_client::{
    Client, Code, Error, Lock,
    api::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
    },
};
use synod_server::RequestError;
use tokio::time::{Instant, sleep, timeout};

/// The least time to live.
const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(20);
/// Long enough for a call that could be answered.
const WHILE: Duration = Duration::from_millis(200);

/// The keys of the store.
async fn keys(client: &Client) -> Vec<String> {
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    let found = client.get(all).await.unwrap();
    found.kvs.iter().map(|kv| String::from_utf8(kv.key.to_vec()).unwrap()).collect()
}

async fn until_keys(client: &Client, count: usize) {
    let seen = async {
        while keys(client).await.len() != count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, seen).await.expect("in time");
}

/// Writes if the lock is held.
async fn write_fenced(client: &Client, fence: Compare) -> bool {
    let put = PutRequest { key: "guarded".into(), value: "v".into(), ..Default::default() };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
    client.txn(TxnRequest { compare: vec![fence], success, ..Default::default() }).await.unwrap().succeeded
}

#[tokio::test]
async fn a_lock_is_held_by_one_at_a_time_in_the_order_of_their_coming() {
    let pair = Pair::watched();
    let client = Client::new(pair.config()).unwrap();
    let first = client.lock("job", LONG).await.unwrap();
    assert_eq!(keys(&client).await.len(), 1);
    assert!(first.key().starts_with(b"job/") && first.is_held());
    let waits = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.lock("job", LONG).await.unwrap() })
    };
    let second = waits(&client);
    until_keys(&client, 2).await;
    let third = waits(&client);
    until_keys(&client, 3).await;
    assert!(client.try_lock("job", LONG).await.unwrap().is_none());
    until_keys(&client, 3).await;
    sleep(WHILE).await;
    assert!(!second.is_finished() && !third.is_finished());
    let tokens = [first.revision()];
    let fence = first.fence();
    assert!(write_fenced(&client, fence.clone()).await);
    first.unlock().await.unwrap();
    let second: Lock = timeout(SOON, second).await.unwrap().unwrap();
    sleep(WHILE).await;
    assert!(!third.is_finished());
    assert!(!write_fenced(&client, fence).await, "who held it before writes no more");
    assert!(write_fenced(&client, second.fence()).await);
    assert!(second.revision() > tokens[0]);
    drop(second);
    let third = timeout(SOON, third).await.unwrap().unwrap();
    third.unlock().await.unwrap();
    let free = client.try_lock("job", LONG).await.unwrap().expect("nobody holds it");
    drop(free);
    until_keys(&client, 1).await;
    assert_eq!(keys(&client).await, ["guarded"]);
}

fn lose_every_other() -> Fault {
    Fault::EveryOther(Box::new(Fault::LoseAnswer(RequestError::Timeout)))
}

/// Each request is executed, its answer is lost, and it is sent again to the other endpoint.
#[tokio::test]
async fn a_lock_whose_answers_are_lost_is_queued_once() {
    let pair = Pair::watched();
    let client = Client::new(pair.config()).unwrap();
    pair.replicas[0].set(lose_every_other());
    for _ in 0..5 {
        let lock = client.lock("job", LONG).await.unwrap();
        assert_eq!(keys(&client).await, [String::from_utf8(lock.key().to_vec()).unwrap()]);
        assert!(stands(&client, &lock).await);
        lock.unlock().await.unwrap();
        assert!(keys(&client).await.is_empty());
    }
}

/// Whether the lock is in the store.
async fn stands(client: &Client, lock: &Lock) -> bool {
    let request = TxnRequest { compare: vec![lock.fence()], ..Default::default() };
    client.txn(request).await.unwrap().succeeded
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_key() {
    let pair = Pair::watched();
    let client = Client::new(pair.config()).unwrap();
    let held = client.lock("job", LONG).await.unwrap();
    for after in [0, 1, 2, 5, 10, 50, 200] {
        let gives_up = timeout(Duration::from_millis(after), client.lock("job", LONG)).await;
        assert!(gives_up.is_err());
        until_keys(&client, 1).await;
    }
    // In the middle of a request for a place in the queue.
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    assert!(timeout(WHILE, client.lock("job", LONG)).await.is_err());
    pair.replicas[0].set(Fault::None);
    until_keys(&client, 1).await;
    // An unlock that is dropped lets go all the same.
    let _ = timeout(Duration::ZERO, held.unlock()).await;
    until_keys(&client, 0).await;
}

#[tokio::test]
async fn a_lock_that_is_lost_says_so() {
    let pair = Pair::watched();
    let client = Client::new(pair.config()).unwrap();
    // Somebody deletes its key.
    let lock = client.lock("job", LONG).await.unwrap();
    assert!(timeout(WHILE, lock.lost()).await.is_err());
    client.delete(DeleteRangeRequest { key: lock.key().clone(), ..Default::default() }).await.unwrap();
    timeout(SOON, lock.lost()).await.unwrap();
    // A second look finds it too.
    timeout(SOON, lock.lost()).await.unwrap();
    assert!(!write_fenced(&client, lock.fence()).await);
    // Somebody revokes its lease, which the next renewal tells.
    let lease = client.lease(TTL).await.unwrap();
    client.lease_revoke(lease.id()).await.unwrap();
    let began = Instant::now();
    timeout(SOON, lease.lost()).await.unwrap();
    assert!(!lease.is_alive() && began.elapsed() < TTL, "{:?}", began.elapsed());
    lease.revoke().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_renewed_while_any_endpoint_answers_and_then_lost_in_time() {
    let pair = Pair::watched();
    let client = Client::new(pair.config()).unwrap();
    let lock = client.lock("job", TTL).await.unwrap();
    let began = Instant::now();
    for fault in [Fault::Hang, Fault::Refuse(RequestError::NoLeader)] {
        pair.replicas[0].set(Fault::EveryOther(Box::new(fault)));
        assert!(timeout(TTL, lock.lost()).await.is_err(), "the other endpoint answers");
    }
    assert!(lock.is_held() && began.elapsed() >= 2 * TTL);
    pair.replicas[0].set(Fault::Refuse(RequestError::NoLeader));
    let silent = Instant::now();
    assert!(lock.held_until() <= silent + TTL);
    timeout(SOON, lock.lost()).await.unwrap();
    assert!(!lock.is_held() && silent.elapsed() <= TTL + Duration::from_secs(1), "{:?}", silent.elapsed());
    // A client that cannot renew does not wait forever either.
    pair.replicas[0].set(Fault::None);
    let waits = {
        let client = client.clone();
        tokio::spawn(async move { client.lock("job", TTL).await })
    };
    until_keys(&client, 2).await;
    pair.replicas[0].set(Fault::Refuse(RequestError::NoLeader));
    let error = timeout(SOON, waits).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, Error::LeaseLost) && !error.may_have_executed(), "{error}");
}

#[tokio::test]
async fn contenders_never_hold_a_lock_at_once() {
    let pair = Pair::watched();
    let holders = Arc::new(AtomicUsize::new(0));
    let contenders: Vec<_> = (0..4)
        .map(|number| {
            let config = pair.config_with(|config| config.first_endpoint = Some(number % 2));
            let (client, holders) = (Client::new(config).unwrap(), Arc::clone(&holders));
            tokio::spawn(async move {
                let mut last = 0;
                for _ in 0..20 {
                    let lock = client.lock("job", LONG).await.unwrap();
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    assert!(stands(&client, &lock).await);
                    assert!(lock.revision() > last);
                    last = lock.revision();
                    assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1);
                    lock.unlock().await.unwrap();
                }
            })
        })
        .collect();
    let flapping = tokio::spawn({
        let replica = pair.replicas[0].clone();
        async move {
            for round in 0.. {
                replica.set(if round % 2 == 0 { lose_every_other() } else { Fault::None });
                sleep(Duration::from_millis(3)).await;
            }
        }
    });
    for contender in contenders {
        timeout(LONG, contender).await.unwrap().unwrap();
    }
    flapping.abort();
    pair.replicas[0].set(Fault::None);
    until_keys(&Client::new(pair.config()).unwrap(), 0).await;
}

#[tokio::test]
async fn leaders_follow_each_other_and_are_observed() {
    let pair = Pair::watched();
    let client = Client::new(pair.config()).unwrap();
    let election = client.election("leader");
    let mut observed = election.observe();
    let next = async |observed: &mut synod_client::Observation| {
        let leader = timeout(SOON, observed.next()).await.unwrap().unwrap();
        leader.map(|leader| String::from_utf8(leader.value.to_vec()).unwrap())
    };
    assert_eq!(next(&mut observed).await, None);
    assert!(election.leader().await.unwrap().is_none());
    let first = election.campaign("one", LONG).await.unwrap();
    assert_eq!(next(&mut observed).await.as_deref(), Some("one"));
    let second = {
        let election = election.clone();
        tokio::spawn(async move { election.campaign("two", LONG).await.unwrap() })
    };
    until_keys(&client, 2).await;
    // The answer is lost, and the value is told once.
    pair.replicas[0].set(lose_every_other());
    first.proclaim("uno").await.unwrap();
    pair.replicas[0].set(Fault::None);
    first.proclaim("ein").await.unwrap();
    assert_eq!(next(&mut observed).await.as_deref(), Some("uno"));
    assert_eq!(next(&mut observed).await.as_deref(), Some("ein"));
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((&leader.key, leader.create_revision, leader.version), (first.key(), first.revision(), 3));
    let fence = first.fence();
    first.resign().await.unwrap();
    let second = timeout(SOON, second).await.unwrap().unwrap();
    assert!(!write_fenced(&client, fence).await && write_fenced(&client, second.fence()).await);
    assert_eq!(next(&mut observed).await.as_deref(), Some("two"));
    client.delete(DeleteRangeRequest { key: second.key().clone(), ..Default::default() }).await.unwrap();
    assert!(matches!(second.proclaim("zwei").await.unwrap_err(), Error::LeaseLost));
    timeout(SOON, second.lost()).await.unwrap();
    assert_eq!(next(&mut observed).await, None);
}

#[tokio::test]
async fn a_lock_that_the_server_refuses_is_told_with_its_reason() {
    let pair = Pair::watched();
    let config = pair.config_with(|config| config.request_timeout = Duration::from_millis(500));
    let client = Client::new(config).unwrap();
    pair.replicas[0].set(Fault::Refuse(RequestError::TooLarge));
    let error = client.lock("job", LONG).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::InvalidArgument), "{error}");
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    let error = client.lock("job", LONG).await.unwrap_err();
    assert!(error.may_have_executed(), "{error}");
}
