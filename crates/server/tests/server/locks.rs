//! etcd's services Lock and Election.

use std::{
    sync::{
        Arc,
        atomic::{AtomicIsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::{config, connect, replica_of, serve};
use bytes::Bytes;
use synod_api::{
    etcdserverpb::{
        DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, RangeRequest, kv_client::KvClient,
        lease_client::LeaseClient,
    },
    v3electionpb::{
        CampaignRequest, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ResignRequest,
        election_client::ElectionClient,
    },
    v3lockpb::{LockRequest, UnlockRequest, lock_client::LockClient},
};
use synod_kv::KvStore;
use synod_server::{Config, InMemory, Replica, RequestError, Server, Watches};
use tokio::time::{sleep, timeout};
use tonic::{Code, Streaming, transport::Channel};

const SOON: Duration = Duration::from_secs(20);
/// Long enough for a call that could be answered.
const WHILE: Duration = Duration::from_millis(200);

struct World {
    server: Server,
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    locks: LockClient<Channel>,
    elections: ElectionClient<Channel>,
}

async fn world() -> World {
    world_with(|replica| replica).await
}

/// A world whose replica is made of one in memory.
async fn world_with<R: Replica>(make: impl FnOnce(InMemory) -> R) -> World {
    let watches = Watches::new();
    let store = KvStore::new().feeding(watches.feed());
    let server = serve(&Config { watches: Some(watches), ..config() }, make(replica_of(store)));
    let channel = connect(&server).await;
    World {
        server,
        kv: KvClient::new(channel.clone()),
        leases: LeaseClient::new(channel.clone()),
        locks: LockClient::new(channel.clone()),
        elections: ElectionClient::new(channel),
    }
}

impl World {
    async fn grant(&mut self, id: i64) {
        self.leases.lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap();
    }

    async fn revoke(&mut self, id: i64) {
        self.leases.lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
    }

    /// Takes a lock in a task.
    fn lock(&self, lease: i64) -> tokio::task::JoinHandle<Result<String, (Code, String)>> {
        let mut locks = self.locks.clone();
        tokio::spawn(async move {
            let locked = locks.lock(LockRequest { name: "name".into(), lease }).await;
            locked.map(|locked| text(&locked.into_inner().key)).map_err(told)
        })
    }

    fn campaign(
        &self,
        lease: i64,
        value: &'static str,
    ) -> tokio::task::JoinHandle<Result<LeaderKey, (Code, String)>> {
        let mut elections = self.elections.clone();
        tokio::spawn(async move {
            let elected =
                elections.campaign(CampaignRequest { name: "name".into(), lease, value: value.into() });
            elected.await.map(|elected| elected.into_inner().leader.unwrap()).map_err(told)
        })
    }

    async fn keys(&mut self) -> Vec<String> {
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let found = self.kv.range(all).await.unwrap().into_inner();
        found.kvs.iter().map(|kv| text(&kv.key)).collect()
    }

    /// Waits until there are exactly these keys.
    async fn until_keys(&mut self, keys: &[&str]) {
        let seen = async {
            while self.keys().await != keys {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, seen).await.expect("in time");
    }

    async fn observe(&mut self) -> Streaming<LeaderResponse> {
        self.elections.observe(LeaderRequest { name: "name".into() }).await.unwrap().into_inner()
    }

    async fn leader(&mut self) -> Result<String, (Code, String)> {
        let leader = self.elections.leader(LeaderRequest { name: "name".into() }).await;
        leader.map(|leader| text(&leader.into_inner().kv.unwrap().value)).map_err(told)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn told(status: tonic::Status) -> (Code, String) {
    (status.code(), status.message().to_owned())
}

fn unknown<T>(message: &str) -> Result<T, (Code, String)> {
    Err((Code::Unknown, message.to_owned()))
}

async fn next(observed: &mut Streaming<LeaderResponse>) -> (String, i64) {
    let told = timeout(SOON, observed.message()).await.expect("in time").unwrap().expect("it goes on");
    (text(&told.kv.unwrap().value), told.header.unwrap().revision)
}

#[tokio::test]
async fn a_lock_goes_from_one_to_the_next() {
    let mut world = world().await;
    for lease in [0xa1, 0xb2, 0xc3] {
        world.grant(lease).await;
    }
    assert_eq!(world.lock(0xa1).await.unwrap().unwrap(), "name/a1");
    assert_eq!(world.lock(0xa1).await.unwrap().unwrap(), "name/a1", "who holds it may ask again");
    let second = world.lock(0xb2);
    world.until_keys(&["name/a1", "name/b2"]).await;
    let third = world.lock(0xc3);
    world.until_keys(&["name/a1", "name/b2", "name/c3"]).await;
    sleep(WHILE).await;
    assert!(!second.is_finished() && !third.is_finished());
    world.locks.unlock(UnlockRequest { key: "name/a1".into() }).await.unwrap();
    assert_eq!(timeout(SOON, second).await.unwrap().unwrap().unwrap(), "name/b2");
    sleep(WHILE).await;
    assert!(!third.is_finished());
    world.revoke(0xb2).await;
    assert_eq!(timeout(SOON, third).await.unwrap().unwrap().unwrap(), "name/c3");
    assert_eq!(world.keys().await, ["name/c3"]);
    assert_eq!(world.lock(0xdd).await.unwrap(), unknown("etcdserver: requested lease not found"));
}

/// A call whose key was deleted and put again, behind others, does not hold the lock that they wait for.
#[tokio::test]
async fn a_key_that_stands_elsewhere_since_is_not_the_one_of_the_call() {
    let mut world = world().await;
    for lease in 1..=3 {
        world.grant(lease).await;
    }
    world.lock(1).await.unwrap().unwrap();
    let early = world.lock(2);
    world.until_keys(&["name/1", "name/2"]).await;
    let third = world.lock(3);
    world.until_keys(&["name/1", "name/2", "name/3"]).await;
    world.locks.unlock(UnlockRequest { key: "name/2".into() }).await.unwrap();
    world.until_keys(&["name/1", "name/3"]).await;
    let late = world.lock(2);
    world.until_keys(&["name/1", "name/2", "name/3"]).await;
    world.locks.unlock(UnlockRequest { key: "name/1".into() }).await.unwrap();
    assert_eq!(timeout(SOON, early).await.unwrap().unwrap(), unknown("mutex: session is expired"));
    assert_eq!(timeout(SOON, third).await.unwrap().unwrap().unwrap(), "name/3");
    sleep(WHILE).await;
    assert!(!late.is_finished());
}

#[tokio::test]
async fn who_gives_up_leaves_the_queue() {
    let mut world = world().await;
    for lease in 1..=3 {
        world.grant(lease).await;
    }
    world.lock(1).await.unwrap().unwrap();
    let second = world.lock(2);
    world.until_keys(&["name/1", "name/2"]).await;
    let third = world.lock(3);
    world.until_keys(&["name/1", "name/2", "name/3"]).await;
    second.abort();
    world.until_keys(&["name/1", "name/3"]).await;
    let mut hurried = tonic::Request::new(LockRequest { name: "name".into(), lease: 2 });
    hurried.set_timeout(WHILE);
    // The client's own clock may be first.
    let code = world.locks.lock(hurried).await.unwrap_err().code();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&code), "{code:?}");
    world.until_keys(&["name/1", "name/3"]).await;
    assert!(!third.is_finished());
    // What it waited for is gone, and it itself as well.
    let delete = DeleteRangeRequest { key: "name/3".into(), ..Default::default() };
    world.kv.delete_range(delete).await.unwrap();
    world.locks.unlock(UnlockRequest { key: "name/1".into() }).await.unwrap();
    assert_eq!(timeout(SOON, third).await.unwrap().unwrap(), unknown("mutex: session is expired"));
}

#[tokio::test]
async fn a_lock_without_a_lease_gets_one() {
    let mut world = world().await;
    let key = world.lock(0).await.unwrap().unwrap();
    let lease = i64::from_str_radix(key.strip_prefix("name/").unwrap(), 16).unwrap();
    world.revoke(lease).await;
    assert!(world.keys().await.is_empty());
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_locks() {
    let mut world = world().await;
    world.lock(0).await.unwrap().unwrap();
    let waits = world.lock(0);
    while world.keys().await.len() < 2 {
        sleep(Duration::from_millis(5)).await;
    }
    let World { server, .. } = world;
    let stopped = tokio::task::spawn_blocking(|| server.stop());
    let refused = timeout(SOON, waits).await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused, (Code::Unavailable, "etcdserver: server stopped".to_owned()));
    timeout(Duration::from_secs(5), stopped).await.expect("it does not wait").unwrap();
}

/// The threads that serve clients end while calls wait; nothing of these may keep them busy.
#[tokio::test]
async fn a_server_that_is_dropped_lets_go_of_calls_that_wait() {
    for _ in 0..10 {
        let mut world = world().await;
        world.lock(0).await.unwrap().unwrap();
        let waits = [world.lock(0), world.lock(0)];
        while world.keys().await.len() < 3 {
            sleep(Duration::from_millis(5)).await;
        }
        drop(world.server);
        for waits in waits {
            timeout(SOON, waits).await.unwrap().unwrap().unwrap_err();
        }
    }
}

#[tokio::test]
async fn leaders_follow_each_other_and_are_observed() {
    let mut world = world().await;
    world.grant(1).await;
    world.grant(2).await;
    assert_eq!(world.leader().await, unknown("election: no leader"));
    let mut early = world.observe().await;
    let first = world.campaign(1, "one").await.unwrap().unwrap();
    assert_eq!((text(&first.name), text(&first.key), first.rev, first.lease), named(1, 2));
    assert_eq!(next(&mut early).await, ("one".to_owned(), 2));
    let again = world.campaign(1, "uno").await.unwrap().unwrap();
    assert_eq!(again, first, "who leads may ask again, with another value");
    assert_eq!(next(&mut early).await, ("uno".to_owned(), 3));
    let second = world.campaign(2, "two");
    world.until_keys(&["name/1", "name/2"]).await;
    assert_eq!(world.leader().await.unwrap(), "uno");
    let mut late = world.observe().await;
    assert_eq!(next(&mut late).await, ("uno".to_owned(), 4));
    let proclaim = |leader: &LeaderKey, value: &'static str| ProclaimRequest {
        leader: Some(leader.clone()),
        value: value.into(),
    };
    world.elections.proclaim(proclaim(&first, "ein")).await.unwrap();
    for observed in [&mut early, &mut late] {
        assert_eq!(next(observed).await, ("ein".to_owned(), 5));
    }
    world.elections.resign(ResignRequest { leader: Some(first.clone()) }).await.unwrap();
    let second = timeout(SOON, second).await.unwrap().unwrap().unwrap();
    assert_eq!((text(&second.name), text(&second.key), second.rev, second.lease), named(2, 4));
    for observed in [&mut early, &mut late] {
        assert_eq!(next(observed).await.0, "two");
    }
    let late = world.elections.proclaim(proclaim(&first, "late")).await;
    assert_eq!(told(late.unwrap_err()), (Code::Unknown, "election: not leader".to_owned()));
    // Its term is over: this does not touch the leader, nor its key of a later term.
    world.elections.resign(ResignRequest { leader: Some(LeaderKey { rev: 2, ..second }) }).await.unwrap();
    assert_eq!(world.leader().await.unwrap(), "two");
    let nobody = world.elections.resign(ResignRequest { leader: None }).await.unwrap_err();
    assert_eq!(told(nobody), (Code::Unknown, "\"leader\" field must be provided".to_owned()));
}

fn named(lease: i64, rev: i64) -> (String, String, i64, i64) {
    ("name".to_owned(), format!("name/{lease}"), rev, lease)
}

#[tokio::test]
async fn a_candidate_that_gives_up_is_none_any_more() {
    let mut world = world().await;
    world.grant(1).await;
    world.grant(2).await;
    let first = world.campaign(1, "one").await.unwrap().unwrap();
    let second = world.campaign(2, "two");
    world.until_keys(&["name/1", "name/2"]).await;
    second.abort();
    world.until_keys(&["name/1"]).await;
    world.elections.resign(ResignRequest { leader: Some(first) }).await.unwrap();
    assert_eq!(world.leader().await, unknown("election: no leader"));
}

/// Does not execute the command that comes after this many others.
#[derive(Clone)]
struct Refusing {
    inner: InMemory,
    after: Arc<AtomicIsize>,
}

impl Replica for Refusing {
    answered_by_inner!(
        limits,
        execute_in_session,
        open_session,
        query,
        term,
        status,
        group,
        change,
        move_leader
    );

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        match self.after.fetch_sub(1, SeqCst) {
            0 => Err(RequestError::Timeout),
            _ => self.inner.execute(command).await,
        }
    }
}

/// Its key has the value of before, so others would take it for one that leads with that.
#[tokio::test]
async fn a_candidate_whose_value_cannot_be_told_is_none_any_more() {
    let after = Arc::new(AtomicIsize::new(-1));
    let mut world = world_with(|inner| Refusing { inner, after: Arc::clone(&after) }).await;
    world.grant(1).await;
    world.campaign(1, "one").await.unwrap().unwrap();
    // Its key is found; then its value is to be changed.
    after.store(1, SeqCst);
    let (code, message) = world.campaign(1, "uno").await.unwrap().unwrap_err();
    assert_eq!((code, &*message), (Code::Unknown, "etcdserver: request timed out"));
    assert_eq!(world.leader().await, unknown("election: no leader"));
    assert!(world.keys().await.is_empty());
    assert_eq!(text(&world.campaign(1, "uno").await.unwrap().unwrap().key), "name/1");
    assert_eq!(world.leader().await.unwrap(), "uno");
}
