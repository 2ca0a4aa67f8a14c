//! A replica and its clients on one thread: a program of its own, since it looks for other threads of its process.

#[allow(dead_code, unused_macros, reason = "the other tests use the rest")]
#[macro_use]
#[path = "server/common/mod.rs"]
mod common;

use std::{fs, sync::Arc, time::Duration};

use crate::common::on_node::OnNode;
use crate::common::{config, connect, replica, serve};
use synod_api::etcdserverpb::{PutRequest, kv_client::KvClient};
use synod_kv::KvStore;
use synod_node::{Config, ConfigError, MemberAddress, Node, StartError, Threads};
use synod_server::{EventLoop, Server};
use synod_wire::{ClusterId, ReplicaId};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tonic::Code;

/// The configuration of one of this many replicas, of which the others do not exist.
fn node_config(members: u64, dir: &tempfile::TempDir) -> Config {
    let members = (1..=members)
        .map(|id| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("127.0.0.1:{id}")));
    let mut config = Config::new(ClusterId(7), ReplicaId(1), members.collect(), dir.path().join("r1"));
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.threads = Threads::Compact;
    config.settings.request_timeout = Duration::from_secs(600);
    config
}

/// A replica on an event loop, and a server there.
fn start(mut node: Config) -> (Node, Server) {
    let event_loop = EventLoop::new().unwrap();
    node.event_loop = Some(event_loop.clone());
    let node = Node::start_blocking(node, KvStore::new()).unwrap();
    let mut config = config();
    config.event_loop = Some(event_loop);
    let server = serve(&config, OnNode { handle: node.handle(), inner: replica() });
    (node, server)
}

fn put(at: usize) -> PutRequest {
    PutRequest { key: format!("k{at}").into(), value: "v".into(), ..Default::default() }
}

/// The names of this process' threads.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

#[tokio::test]
async fn clients_are_served_by_the_thread_of_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = start(node_config(1, &dir));
    let clients: Vec<_> = [connect(&server).await, connect(&server).await].map(KvClient::new).into();
    let mut puts = JoinSet::new();
    for at in 0..500 {
        let mut client = clients[at % 2].clone();
        puts.spawn(async move { client.put(put(at)).await });
    }
    let answers = timeout(Duration::from_secs(60), puts.join_all()).await.unwrap();
    let revisions = answers.into_iter().map(|answer| answer.unwrap().into_inner().header.unwrap().revision);
    assert_eq!(revisions.max(), Some(501), "each put is executed once");
    let threads = threads();
    assert!(!threads.iter().any(|name| name.starts_with("client-io")), "{threads:?}");
    spawn_blocking(|| server.stop()).await.unwrap();
    node.stop().await.unwrap();
}

/// A replica that cannot go on ends before its server does, and says so to those who wait.
#[tokio::test]
async fn a_waiting_task_hears_that_the_replica_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = start(node_config(3, &dir));
    let mut client = KvClient::new(connect(&server).await);
    let waiting = tokio::spawn(async move { client.put(put(0)).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "there is no leader");
    node.stop().await.unwrap();
    spawn_blocking(|| server.stop()).await.unwrap();
    let refused = timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().starts_with("etcdserver:"), "the server's own answer: {refused}");
}

/// A server that stops before the replica has begun to run its loop leaves it the loop; and a loop that no replica ever
/// runs does not hold the server up forever.
#[tokio::test]
async fn a_server_may_stop_before_the_replica_runs() {
    let event_loop = EventLoop::new().unwrap();
    let mut of_server = config();
    of_server.event_loop = Some(event_loop.clone());
    of_server.stop_timeout = Duration::from_millis(200);
    let server = serve(&of_server, replica());
    timeout(Duration::from_secs(30), spawn_blocking(|| server.stop())).await.unwrap().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let mut config = node_config(1, &dir);
    config.event_loop = Some(event_loop);
    let node = spawn_blocking(|| Node::start_blocking(config, KvStore::new())).await.unwrap().unwrap();
    node.handle().execute(vec![].into()).await.expect("it executes commands, if only one that says nothing");
    node.stop().await.unwrap();
}

/// Server and replica may stop at the same time, in whichever order that turns out.
#[tokio::test]
async fn server_and_replica_stop_together() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let (node, server) = start(node_config(1, &dir));
        let stopped = async { tokio::join!(spawn_blocking(|| server.stop()), node.stop()) };
        let (server, node) = timeout(Duration::from_secs(30), stopped).await.unwrap();
        server.unwrap();
        node.unwrap();
    }
}

#[test]
fn spread_stages_have_no_thread_for_an_event_loop() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = node_config(1, &dir);
    config.threads = Threads::Spread;
    config.event_loop = Some(EventLoop::new().unwrap() as Arc<_>);
    let refused = Node::start_blocking(config, KvStore::new()).map(drop).unwrap_err();
    assert!(matches!(refused, StartError::Config(ConfigError::EventLoop)), "{refused}");
}
