//! etcd's service Watch.

use std::time::Duration;

use crate::common::{config, connect, replica_of, serve};
use futures_util::{StreamExt as _, stream};
use synod_api::{
    etcdserverpb::{
        CompactionRequest, DeleteRangeRequest, HashKvRequest, PutRequest, RequestOp, TxnRequest,
        WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
        kv_client::KvClient, maintenance_client::MaintenanceClient, request_op::Request,
        watch_client::WatchClient, watch_request::RequestUnion,
    },
    mvccpb::Event,
};
use synod_kv::KvStore;
use synod_server::{Config, Server, Watches};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::{Code, Streaming, transport::Channel};

/// A server with watches.
fn watched(config: Config) -> Server {
    let watches = Watches::new();
    let store = KvStore::new().feeding(watches.feed());
    serve(&Config { watches: Some(watches), ..config }, replica_of(store))
}

/// A stream of watches.
struct Client {
    kv: KvClient<Channel>,
    requests: mpsc::UnboundedSender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Client {
    async fn new(server: &Server) -> Client {
        let channel = connect(server).await;
        let (requests, mut sent) = mpsc::unbounded_channel();
        let sent = stream::poll_fn(move |cx| sent.poll_recv(cx));
        let mut watches = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let responses = watches.watch(sent).await.unwrap().into_inner();
        Client { kv: KvClient::new(channel), requests, responses }
    }

    fn ask(&self, request: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(request) }).unwrap();
    }

    async fn next(&mut self) -> WatchResponse {
        let next = timeout(Duration::from_secs(20), self.responses.message()).await;
        next.expect("in time").unwrap().expect("the stream goes on")
    }

    async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.ask(RequestUnion::CreateRequest(request));
        let created = self.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        created
    }

    async fn put(&mut self, key: &str, value: &str) -> i64 {
        let put =
            PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
        self.kv.put(put).await.unwrap().into_inner().header.unwrap().revision
    }

    async fn delete(&mut self, key: &str) {
        let delete = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
        self.kv.delete_range(delete).await.unwrap();
    }
}

fn watch(key: &str, end: &str, start_revision: i64) -> WatchCreateRequest {
    let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
    WatchCreateRequest { key, range_end, start_revision, ..Default::default() }
}

fn short(events: &[Event]) -> Vec<String> {
    let text = |event: &Event| {
        let kv = event.kv.as_ref().unwrap();
        let previous = event.prev_kv.as_ref().map(|kv| format!(" was {:?}", kv.value));
        let (kind, previous) = (event.r#type().as_str_name(), previous.unwrap_or_default());
        format!("{kind} {:?} {:?} at {}{previous}", kv.key, kv.value, kv.mod_revision)
    };
    events.iter().map(text).collect()
}

/// The hash of a revision stays what it was before the store was compacted there.
#[tokio::test]
async fn a_compaction_leaves_the_hash_of_its_revision() {
    let server = watched(config());
    let mut client = Client::new(&server).await;
    for value in ["1", "2", "3"] {
        client.put("a", value).await;
    }
    client.delete("a").await;
    client.put("b", "1").await;
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let mut hash = async |revision| {
        let hash = maintenance.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner();
        (hash.hash, hash.hash_revision, hash.compact_revision, hash.header.unwrap().revision)
    };
    let (before, now) = (hash(5).await, hash(0).await);
    assert_eq!((before.1, before.2, before.3), (5, -1, 6));
    client.kv.compact(CompactionRequest { revision: 5, physical: true }).await.unwrap();
    assert_eq!(hash(5).await, before);
    // Nobody watches: a write then tells the watches nothing, and takes no hash away.
    client.put("c", "1").await;
    assert_eq!(hash(5).await, (before.0, before.1, before.2, 7));
    client.delete("c").await;
    let after = hash(6).await;
    assert_eq!((after.1, after.2), (6, 5));
    assert_ne!(after.0, now.0);
    // Compactions that follow each other closely have theirs, too.
    for revision in (8..28).step_by(2) {
        client.put("a", "1").await;
        client.delete("a").await;
        for revision in [revision - 1, revision] {
            client.kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
        }
        let kept = hash(revision).await;
        assert_eq!((kept.1, kept.2), (revision, revision - 1));
    }
}

#[tokio::test]
async fn what_happens_is_told_and_what_has_happened() {
    let server = watched(config());
    let mut client = Client::new(&server).await;
    client.put("a", "1").await;
    let created = client.create(watch("a", "", 0)).await;
    assert_eq!((created.watch_id, created.header.unwrap().revision), (0, 2));
    client.put("b", "1").await;
    client.put("a", "2").await;
    let told = client.next().await;
    assert_eq!((told.watch_id, told.header.unwrap().revision), (0, 4));
    assert_eq!(short(&told.events), ["PUT b\"a\" b\"2\" at 4"]);
    let past = WatchCreateRequest { prev_kv: true, ..watch("a", "c", 1) };
    assert_eq!(client.create(past).await.watch_id, 1);
    let told = client.next().await;
    assert_eq!(
        short(&told.events),
        ["PUT b\"a\" b\"1\" at 2", "PUT b\"b\" b\"1\" at 3", "PUT b\"a\" b\"2\" at 4 was b\"1\""]
    );
    client.delete("b").await;
    assert_eq!(short(&client.next().await.events), ["DELETE b\"b\" b\"\" at 5 was b\"1\""]);
    client.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    let progress = client.next().await;
    assert_eq!((progress.watch_id, progress.header.unwrap().revision, progress.events.len()), (-1, 5, 0));
    client.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 1 }));
    let canceled = client.next().await;
    assert!(canceled.canceled && canceled.watch_id == 1);
    // A client that asks for no more may still watch.
    let Client { kv, requests, responses } = client;
    drop(requests);
    let mut client = Client { kv, requests: mpsc::unbounded_channel().0, responses };
    sleep(Duration::from_millis(50)).await;
    client.put("a", "3").await;
    assert_eq!(short(&client.next().await.events), ["PUT b\"a\" b\"3\" at 6"]);
}

#[tokio::test]
async fn a_compaction_ends_a_watch_of_what_it_removed() {
    let server = watched(config());
    let mut client = Client::new(&server).await;
    for _ in 0..4 {
        client.put("k", "v").await;
    }
    client.kv.compact(CompactionRequest { revision: 4, physical: true }).await.unwrap();
    client.create(watch("k", "", 2)).await;
    let ended = client.next().await;
    assert_eq!((ended.canceled, ended.compact_revision, &ended.cancel_reason[..]), (true, 4, ""));
    client.create(watch("k", "", 4)).await;
    assert_eq!(short(&client.next().await.events), ["PUT b\"k\" b\"v\" at 4", "PUT b\"k\" b\"v\" at 5"]);
}

#[tokio::test]
async fn a_revision_is_split_only_if_that_is_asked_for() {
    let server = watched(config());
    let mut client = Client::new(&server).await;
    client.create(watch("k", "l", 0)).await;
    client.create(WatchCreateRequest { fragment: true, ..watch("k", "l", 0) }).await;
    let value = vec![7; 100_000];
    for round in 0..3 {
        // Each round changes the same keys in one transaction; the fragments of a deletion with previous pairs are
        // large.
        let put = |n| {
            Request::RequestPut(PutRequest {
                key: format!("k{n}").into(),
                value: value.clone().into(),
                ..Default::default()
            })
        };
        let ops = (0..14).map(|n| RequestOp { request: Some(put(n + 14 * round)) }).collect();
        client.kv.txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
        for _ in 0..2 {
            assert_eq!(client.next().await.events.len(), 14);
        }
    }
    for id in [0, 1] {
        client.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id }));
        assert!(client.next().await.canceled);
    }
    let whole = WatchCreateRequest { prev_kv: true, ..watch("k", "l", 0) };
    client.create(whole.clone()).await;
    let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    client.kv.delete_range(delete).await.unwrap();
    let told = client.next().await;
    assert_eq!((told.events.len(), told.fragment), (42, false));
    let again = WatchCreateRequest { fragment: true, start_revision: 5, ..whole };
    client.create(again).await;
    let (mut events, mut parts) = (0, 0);
    loop {
        let part = client.next().await;
        events += part.events.len();
        parts += 1;
        if !part.fragment {
            break;
        }
    }
    assert_eq!((events, parts), (42, 3));
}

/// A client that begins several watches at once tells their answers apart by the order.
#[tokio::test]
async fn a_watch_that_is_refused_for_memory_is_answered_in_its_turn() {
    let server = watched(Config { requests_bytes_max: 304 << 10, ..config() });
    let mut client = Client::new(&server).await;
    let revision = client.put("a", "1").await;
    let ids = 1..=60;
    for watch_id in ids.clone() {
        client.ask(RequestUnion::CreateRequest(WatchCreateRequest { watch_id, ..watch("a", "", 0) }));
    }
    let mut begun = 0;
    for id in ids {
        let answer = client.next().await;
        assert!(answer.created, "{answer:?}");
        assert_eq!(answer.header.as_ref().unwrap().revision, revision, "{answer:?}");
        if answer.canceled {
            assert_eq!((answer.watch_id, &answer.cancel_reason[..]), (-1, "etcdserver: too many requests"));
        } else {
            assert_eq!(answer.watch_id, id);
            begun += 1;
        }
    }
    assert!((1..60).contains(&begun), "{begun}");
}

#[tokio::test]
async fn progress_is_told_from_time_to_time() {
    let config = Config { watch_progress_interval: Duration::from_millis(100), ..config() };
    let server = watched(config);
    let mut client = Client::new(&server).await;
    client.create(WatchCreateRequest { progress_notify: true, ..watch("k", "", 0) }).await;
    let revision = client.put("other", "").await;
    let mut told = client.next().await;
    while told.header.as_ref().unwrap().revision < revision {
        told = client.next().await;
    }
    assert_eq!((told.watch_id, told.events.len()), (0, 0));
}

/// Clients on streams of their own, some of which read nothing for long: each is told everything once.
#[tokio::test]
async fn slow_clients_lose_nothing_and_delay_nobody() {
    let server = watched(config());
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client::new(&server).await;
        client.create(watch("k", "l", 0)).await;
        clients.push(client);
    }
    let mut writer = Client::new(&server).await;
    let value = "v".repeat(50_000);
    let mut fast = Vec::new();
    for n in 0..300 {
        writer.put(&format!("k{n}"), &value).await;
        fast.extend(clients[0].next().await.events);
    }
    assert_eq!(fast.len(), 300);
    for slow in &mut clients[1..] {
        let mut told = Vec::new();
        while told.len() < 300 {
            told.extend(slow.next().await.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
        }
        assert_eq!(told, (2..302).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_stopping_server_ends_its_streams() {
    let server = watched(config());
    let mut client = Client::new(&server).await;
    client.create(watch("k", "", 0)).await;
    let stopped = tokio::task::spawn_blocking(move || server.stop());
    let status = client.responses.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
    timeout(Duration::from_secs(4), stopped).await.expect("it need not wait for its limit").unwrap();
}

#[tokio::test]
async fn a_server_without_a_feed_refuses_watches() {
    let server = serve(&config(), crate::common::replica());
    let channel = connect(&server).await;
    let refused = WatchClient::new(channel).watch(stream::pending().boxed()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}
