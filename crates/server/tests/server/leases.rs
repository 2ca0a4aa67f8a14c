//! etcd's service Lease, in front of a replica whose clock goes on.

use std::time::{Duration, Instant};

use crate::common::{config, connect, serve};
use bytes::Bytes;
use futures_util::stream;
use synod_api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, PutRequest, RangeRequest, kv_client::KvClient, lease_client::LeaseClient,
};
use synod_kv::KvStore;
use synod_node::{Config, Handle, MemberAddress, Node};
use synod_server::{Answer, Consistency, InMemory, Replica, RequestError, Server};
use synod_wire::{ClusterId, ReplicaId};
use tokio::{sync::mpsc, task::spawn_blocking, time::sleep};
use tonic::{Code, transport::Channel};

/// A replica of one, whose store is that of the node.
#[derive(Clone)]
struct Alone {
    handle: Handle,
    inner: InMemory,
}

impl Replica for Alone {
    answered_by_inner!(limits, execute_in_session, open_session, term, status, group, change, move_leader);

    fn gathering(&self) -> (Alone, impl Future<Output = ()> + Send + 'static) {
        let (handle, task) = self.handle.gathering();
        (Alone { handle, ..self.clone() }, task)
    }

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.handle.execute(command).await.map_err(|_| RequestError::NoLeader)
    }

    async fn query(&self, query: Bytes, _: Consistency) -> Result<Answer, RequestError> {
        self.handle.read(query).await.map_err(|_| RequestError::NoLeader)
    }
}

struct World {
    node: Node,
    server: Server,
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    _dir: tempfile::TempDir,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let me = ReplicaId(1);
    let address = "127.0.0.1:1";
    let members = vec![MemberAddress::new(me, "r1".to_owned(), address)];
    let mut node = Config::new(ClusterId(9), me, members, dir.path().join("r1"));
    node.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let node = spawn_blocking(|| Node::start_blocking(node, KvStore::new())).await.unwrap().unwrap();
    let replica = Alone { handle: node.handle(), inner: crate::common::replica() };
    let server = serve(&config(), replica);
    let channel = connect(&server).await;
    let (kv, leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
    World { node, server, kv, leases, _dir: dir }
}

impl World {
    async fn grant(&mut self, id: i64, ttl: i64) -> i64 {
        let granted = self.leases.lease_grant(LeaseGrantRequest { ttl, id }).await.unwrap().into_inner();
        assert!(granted.ttl >= ttl && granted.error.is_empty());
        granted.id
    }

    async fn put(&mut self, key: &str, lease: i64) {
        let put = PutRequest { key: key.to_owned().into(), lease, ..Default::default() };
        self.kv.put(put).await.unwrap();
    }

    async fn exists(&mut self, key: &str) -> bool {
        let range = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        self.kv.range(range).await.unwrap().into_inner().count > 0
    }

    async fn left(&mut self, id: i64) -> LeaseTimeToLiveResponse {
        self.leases.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: true }).await.unwrap().into_inner()
    }

    async fn stop(self) {
        let World { node, server, .. } = self;
        spawn_blocking(move || {
            server.stop();
            node.stop_blocking().unwrap();
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_after_its_time_and_not_before_and_a_renewed_one_lives_on() {
    let mut world = world().await;
    let began = Instant::now();
    let (short, kept) = (world.grant(0, 2).await, world.grant(77, 2).await);
    assert!(short > 0 && kept == 77);
    world.put("short", short).await;
    world.put("kept", kept).await;
    let listed = world.leases.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.leases.len(), 2);
    let (requests, mut sent) = mpsc::unbounded_channel();
    let sent = stream::poll_fn(move |cx| sent.poll_recv(cx));
    let mut renewals = world.leases.lease_keep_alive(sent).await.unwrap().into_inner();
    let mut gone_after = None;
    while began.elapsed() < Duration::from_millis(4_500) {
        requests.send(LeaseKeepAliveRequest { id: kept }).unwrap();
        let renewed = renewals.message().await.unwrap().unwrap();
        assert_eq!((renewed.id, renewed.ttl), (kept, 2));
        assert!(renewed.header.unwrap().revision > 0);
        if gone_after.is_none() && !world.exists("short").await {
            gone_after = Some(began.elapsed());
        }
        assert!(world.exists("kept").await);
        sleep(Duration::from_millis(100)).await;
    }
    let gone_after = gone_after.expect("the lease ends");
    assert!(gone_after >= Duration::from_secs(2), "{gone_after:?}");
    assert_eq!(world.left(short).await.ttl, -1);
    let left = world.left(kept).await;
    assert!((1..=2).contains(&left.ttl) && left.granted_ttl == 2 && left.keys == ["kept"], "{left:?}");
    // One that is gone is renewed for no time.
    requests.send(LeaseKeepAliveRequest { id: short }).unwrap();
    assert_eq!(renewals.message().await.unwrap().unwrap().ttl, 0);
    drop(requests);
    assert_eq!(renewals.message().await.unwrap(), None, "the client has ended the stream");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_takes_its_keys_with_it() {
    let mut world = world().await;
    let id = world.grant(5, 600).await;
    for key in ["a", "b"] {
        world.put(key, id).await;
    }
    assert_eq!(world.left(id).await.keys, ["a", "b"]);
    world.leases.lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
    assert!(!world.exists("a").await && !world.exists("b").await);
    let refused = world.leases.lease_revoke(LeaseRevokeRequest { id }).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::NotFound, "etcdserver: requested lease not found")
    );
    let again = LeaseGrantRequest { ttl: 9, id };
    world.leases.lease_grant(again).await.unwrap();
    let refused = world.leases.lease_grant(again).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::FailedPrecondition, "etcdserver: lease already exists")
    );
    world.stop().await;
}

/// Many renewals at a time are few entries of the log.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_travel_together() {
    let mut world = world().await;
    for id in 1..=200 {
        world.grant(id, 600).await;
    }
    let before = world.node.handle().status().decided;
    let requests: Vec<_> = (1..=200).map(|id| LeaseKeepAliveRequest { id }).collect();
    let mut renewals = world.leases.lease_keep_alive(stream::iter(requests)).await.unwrap().into_inner();
    let mut ids = Vec::new();
    while let Some(renewed) = renewals.message().await.unwrap() {
        assert_eq!(renewed.ttl, 600);
        ids.push(renewed.id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=200).collect::<Vec<_>>());
    let slots = world.node.handle().status().decided.0 - before.0;
    assert!(slots < 30, "{slots} slots");
    world.stop().await;
}
