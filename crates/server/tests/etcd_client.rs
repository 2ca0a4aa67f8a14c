//! The server as seen by an etcd client that was not made for it.

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, Compare, CompareOp, DeleteOptions, Error, EventType,
    GetOptions, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    WatchOptions,
};
use synod_kv::KvStore;
use synod_server::{Config, InMemory, Limits, Member, MemberInfo, Registry, Server, Watches};
use synod_wire::{ClusterId, ReplicaId};
use tonic::Code;

const CLUSTER: u64 = 0xc1;
const MEMBER: u64 = 7;

fn replica() -> InMemory {
    replica_of(KvStore::new())
}

fn replica_of(store: KvStore) -> InMemory {
    let mut info = MemberInfo::new("only", vec!["http://127.0.0.1:2380".into()]);
    info.client_urls = vec!["http://127.0.0.1:2379".into()];
    InMemory::start(store, ClusterId(CLUSTER), Member::voter(ReplicaId(MEMBER), info)).unwrap()
}

fn config() -> Config {
    Config {
        client_addresses: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()],
        ..Config::default()
    }
}

fn serve(config: &Config, replica: InMemory) -> Server {
    Server::start(config, replica, Registry::default()).unwrap()
}

async fn connect(server: &Server) -> Client {
    Client::connect([format!("http://{}", server.client_addresses()[0])], None).await.unwrap()
}

#[track_caller]
fn assert_refused<T>(outcome: Result<T, Error>, code: Code, message: &str) {
    match outcome {
        Err(Error::GRpcStatus(status)) => assert_eq!((status.code(), status.message()), (code, message)),
        Err(other) => panic!("not a status: {other}"),
        Ok(_) => panic!("it should have been refused: {message}"),
    }
}

#[tokio::test]
async fn what_is_put_can_be_got_and_deleted() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    let put = client.put("k", "v1", None).await.unwrap();
    let header = put.header().unwrap();
    assert_eq!(
        (header.cluster_id(), header.member_id(), header.revision(), header.raft_term()),
        (CLUSTER, MEMBER, 2, 1)
    );
    let put = client.put("k", "v2", Some(PutOptions::new().with_prev_key())).await.unwrap();
    assert_eq!(put.prev_key().unwrap().value(), b"v1");

    let got = client.get("k", None).await.unwrap();
    assert_eq!(got.header().unwrap().revision(), 3);
    let kv = &got.kvs()[0];
    assert_eq!((kv.value(), kv.create_revision(), kv.mod_revision(), kv.version()), (&b"v2"[..], 2, 3, 2));
    let old = client.get("k", Some(GetOptions::new().with_revision(2))).await.unwrap();
    assert_eq!(old.kvs()[0].value(), b"v1");
    let local = client.get("k", Some(GetOptions::new().with_serializable())).await.unwrap();
    assert_eq!(local.kvs()[0].value(), b"v2");

    let deleted = client.delete("k", Some(DeleteOptions::new().with_prev_key())).await.unwrap();
    assert_eq!((deleted.deleted(), deleted.prev_kvs()[0].value()), (1, &b"v2"[..]));
    assert!(client.get("k", None).await.unwrap().kvs().is_empty());
}

#[tokio::test]
async fn ranges_are_sorted_limited_and_counted() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    for (key, value) in [("a/1", "z"), ("a/2", "y"), ("a/3", "x"), ("b", "w")] {
        client.put(key, value, None).await.unwrap();
    }
    let keys = |response: &etcd_client::GetResponse| -> Vec<String> {
        response.kvs().iter().map(|kv| kv.key_str().unwrap().to_owned()).collect()
    };
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Value, SortOrder::Ascend);
    assert_eq!(keys(&client.get("a/", Some(options)).await.unwrap()), ["a/3", "a/2", "a/1"]);
    let page = client.get("a/", Some(GetOptions::new().with_prefix().with_limit(2))).await.unwrap();
    assert_eq!((keys(&page), page.more(), page.count()), (vec!["a/1".into(), "a/2".into()], true, 3));
    let count = client.get("", Some(GetOptions::new().with_all_keys().with_count_only())).await.unwrap();
    assert_eq!((count.count(), count.kvs().len()), (4, 0));
    let from = client.get("a/3", Some(GetOptions::new().with_from_key().with_keys_only())).await.unwrap();
    assert_eq!(keys(&from), ["a/3", "b"]);
    assert!(from.kvs().iter().all(|kv| kv.value().is_empty()));
    let deleted = client.delete("a/", Some(DeleteOptions::new().with_prefix())).await.unwrap();
    assert_eq!(deleted.deleted(), 3);
}

#[tokio::test]
async fn transactions_compare_and_then_act() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    let create = || {
        Txn::new()
            .when([Compare::version("lock", CompareOp::Equal, 0)])
            .and_then([TxnOp::put("lock", "mine", None)])
            .or_else([TxnOp::get("lock", None)])
    };
    assert!(client.txn(create()).await.unwrap().succeeded());
    let second = client.txn(create()).await.unwrap();
    assert!(!second.succeeded());
    match &second.op_responses()[0] {
        etcd_client::TxnOpResponse::Get(got) => assert_eq!(got.kvs()[0].value(), b"mine"),
        other => panic!("{other:?}"),
    }
    // A transaction that only reads takes another way through the server, and does not change the revision.
    let read = Txn::new().and_then([TxnOp::get("lock", None)]);
    let read = client.txn(read).await.unwrap();
    assert_eq!(read.header().unwrap().revision(), 2);
    assert_eq!(read.op_responses().len(), 1);
    let twice = Txn::new().and_then([TxnOp::put("k", "1", None), TxnOp::put("k", "2", None)]);
    let refused = client.txn(twice).await;
    assert_refused(refused, Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
}

#[tokio::test]
async fn compaction_forgets() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    for value in ["1", "2", "3"] {
        client.put("k", value, None).await.unwrap();
    }
    assert_eq!(client.compact(3, None).await.unwrap().header().unwrap().revision(), 4);
    let at = |revision| Some(GetOptions::new().with_revision(revision));
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    assert_refused(client.get("k", at(2)).await, Code::OutOfRange, compacted);
    assert_refused(client.compact(3, None).await, Code::OutOfRange, compacted);
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(client.get("k", at(99)).await, Code::OutOfRange, future);
    assert_refused(client.compact(99, None).await, Code::OutOfRange, future);
    assert_eq!(client.get("k", at(3)).await.unwrap().kvs()[0].value(), b"2");
}

#[tokio::test]
async fn nonsense_is_refused_in_etcds_words() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    let no_key = "etcdserver: key is not provided";
    assert_refused(client.put("", "v", None).await, Code::InvalidArgument, no_key);
    assert_refused(client.get("", None).await, Code::InvalidArgument, no_key);
    assert_refused(client.delete("", None).await, Code::InvalidArgument, no_key);
    let ignore = Some(PutOptions::new().with_ignore_value());
    let outcome = client.put("new", "", ignore).await;
    assert_refused(outcome, Code::InvalidArgument, "etcdserver: key not found");
    let lease = Some(PutOptions::new().with_lease(42));
    assert_refused(
        client.put("k", "v", lease).await,
        Code::NotFound,
        "etcdserver: requested lease not found",
    );
    let many: Vec<_> = (0..129).map(|i| TxnOp::put(format!("k{i}"), "v", None)).collect();
    let outcome = client.txn(Txn::new().and_then(many)).await;
    assert_refused(outcome, Code::InvalidArgument, "etcdserver: too many operations in txn request");
}

#[tokio::test]
async fn a_request_may_be_just_as_large_as_it_is_said() {
    let limits = Limits { request_bytes_max: 10_000, ..Limits::default() };
    let server = serve(&config(), replica().limited(limits));
    let mut client = connect(&server).await;
    client.put("k", vec![b'v'; 9_900], None).await.unwrap();
    let large = client.put("k", vec![b'v'; 10_001], None).await;
    assert_refused(large, Code::InvalidArgument, "etcdserver: request is too large");
    // gRPC refuses a message above its own bound, as its Go implementation does for etcd.
    let larger = client.put("k", vec![b'v'; 10_000 + (512 << 10)], None).await;
    let message = "grpc: received message larger than max (534295 vs. 534288)";
    assert_refused(larger, Code::ResourceExhausted, message);
    // The connection has survived.
    assert_eq!(client.get("k", None).await.unwrap().kvs()[0].value().len(), 9_900);
}

#[tokio::test]
async fn a_full_store_refuses_writes_and_raises_the_alarm() {
    let server = serve(&Config { quota_bytes: 1000, ..config() }, replica());
    let mut client = connect(&server).await;
    let full = "etcdserver: mvcc: database space exceeded";
    assert_refused(client.put("k", vec![0; 2000], None).await, Code::ResourceExhausted, full);
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
    assert_eq!(alarms.alarms().len(), 1);
    assert_eq!((alarms.alarms()[0].member_id(), alarms.alarms()[0].alarm()), (MEMBER, AlarmType::Nospace));
    let status = client.status().await.unwrap();
    assert_eq!(status.errors(), [format!("memberID:{MEMBER} alarm:NOSPACE")]);
    // As with etcd, an alarm is cleared for the member that it was raised for.
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.unwrap();
    assert_refused(client.put("k", "small", None).await, Code::ResourceExhausted, full);
    let mut of = AlarmOptions::new();
    of.with_member(MEMBER);
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of)).await.unwrap();
    client.put("k", "small", None).await.unwrap();
}

#[tokio::test]
async fn members_and_status_are_told() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    client.put("k", "v", None).await.unwrap();
    let members = client.member_list().await.unwrap();
    let member = &members.members()[0];
    assert_eq!((member.id(), member.name(), member.is_learner()), (MEMBER, "only", false));
    assert_eq!(member.peer_urls(), ["http://127.0.0.1:2380"]);
    assert_eq!(member.client_urls(), ["http://127.0.0.1:2379"]);
    let status = client.status().await.unwrap();
    assert_eq!((status.version(), status.leader(), status.raft_term()), ("3.7.3", MEMBER, 1));
    assert_eq!((status.raft_index(), status.raft_applied_index()), (1, 1));
    assert!(status.db_size() > 0 && status.raft_used_db_size() == status.db_size());
    assert!(status.errors().is_empty());
    let one = client.hash_kv(0).await.unwrap().hash();
    client.put("k", "w", None).await.unwrap();
    assert_ne!(client.hash_kv(0).await.unwrap().hash(), one);
    assert_eq!(client.hash_kv(2).await.unwrap().hash(), one);
    client.defragment().await.unwrap();
}

#[tokio::test]
async fn members_and_leadership_are_served() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    client.move_leader(MEMBER).await.unwrap();
    let code = |outcome: Result<(), Error>| match outcome {
        Err(Error::GRpcStatus(status)) => (status.code(), status.message().to_owned()),
        other => panic!("{other:?}"),
    };
    let url = || vec!["http://127.0.0.1:9".to_owned()];
    let moved = code(client.move_leader(MEMBER + 1).await.map(|_| ()));
    assert_eq!(moved, (Code::FailedPrecondition, "etcdserver: bad leader transferee".into()));
    // The replica in memory refuses every change; the test checks that the requests reach it.
    for outcome in [
        client.member_add(url(), None).await.map(|_| ()),
        client.member_remove(MEMBER).await.map(|_| ()),
        client.member_promote(MEMBER).await.map(|_| ()),
        client.member_update(MEMBER, url()).await.map(|_| ()),
    ] {
        let (code, why) = code(outcome);
        assert_ne!(code, Code::Unimplemented, "{why}");
        assert!(!why.is_empty());
    }
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    for outcome in [client.watch("k", None).await.map(|_| ()), client.auth_enable().await.map(|_| ())] {
        match outcome {
            Err(Error::GRpcStatus(status)) => {
                assert_eq!(status.code(), Code::Unimplemented);
                assert!(status.message().starts_with("synod: "), "{status}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_watch_tells_the_past_and_what_comes() {
    let watches = Watches::new();
    let replica = replica_of(KvStore::new().feeding(watches.feed()));
    let server = serve(&Config { watches: Some(watches), ..config() }, replica);
    let mut client = connect(&server).await;
    client.put("k/1", "old", None).await.unwrap();
    let options = WatchOptions::new().with_prefix().with_start_revision(2).with_prev_key();
    let mut stream = client.watch("k/", Some(options)).await.unwrap();
    client.put("k/1", "new", None).await.unwrap();
    client.put("other", "", None).await.unwrap();
    client.delete("k/1", None).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 3 {
        let response = stream.message().await.unwrap().unwrap();
        told.extend(response.events().iter().map(|event| {
            let kv = event.kv().unwrap();
            let before = event.prev_kv().map(|kv| kv.value().to_vec());
            (event.event_type(), kv.mod_revision(), kv.value().to_vec(), before)
        }));
    }
    let text = |text: &str| text.as_bytes().to_vec();
    assert_eq!(
        told,
        [
            (EventType::Put, 2, text("old"), None),
            (EventType::Put, 3, text("new"), Some(text("old"))),
            (EventType::Delete, 5, text(""), Some(text("new"))),
        ]
    );
    stream.request_progress().await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().header().unwrap().revision(), 5);
    stream.cancel(0).await.unwrap();
    assert!(stream.message().await.unwrap().unwrap().canceled());
}

#[tokio::test]
async fn leases_are_granted_renewed_and_revoked() {
    let server = serve(&config(), replica());
    let mut client = connect(&server).await;
    let lease = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(7))).await.unwrap();
    assert_eq!((lease.id(), lease.ttl()), (7, 60));
    client.put("k", "v", Some(PutOptions::new().with_lease(7))).await.unwrap();
    assert_eq!(client.get("k", None).await.unwrap().kvs()[0].lease(), 7);
    let found = client.lease_time_to_live(7, Some(LeaseTimeToLiveOptions::new().with_keys())).await.unwrap();
    assert_eq!((found.granted_ttl(), found.keys()), (60, &[b"k".to_vec()][..]));
    let (mut keeper, mut stream) = client.lease_keep_alive(7).await.unwrap();
    keeper.keep_alive().await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().ttl(), 60);
    assert_eq!(client.leases().await.unwrap().leases().len(), 1);
    client.lease_revoke(7).await.unwrap();
    assert!(client.get("k", None).await.unwrap().kvs().is_empty());
    assert_refused(client.lease_revoke(7).await, Code::NotFound, "etcdserver: requested lease not found");
}
