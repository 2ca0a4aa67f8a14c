//! The services of the etcd v3 API. (`etcd_client.rs` has more, through a client that was not made for Synod.)

use crate::common::{CLUSTER, MEMBER, config, connect, replica, serve};
use sha2::{Digest as _, Sha256};
use synod_api::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, Compare, DefragmentRequest, DeleteRangeRequest,
    DowngradeRequest, HashKvRequest, HashRequest, MemberListRequest, PutRequest, RangeRequest, RequestOp,
    SnapshotRequest, StatusRequest, TxnRequest,
    alarm_request::AlarmAction,
    cluster_client::ClusterClient,
    compare::{CompareTarget, TargetUnion},
    downgrade_request::DowngradeAction,
    kv_client::KvClient,
    maintenance_client::MaintenanceClient,
    request_op::Request,
    response_op::Response,
    watch_client::WatchClient,
};
use synod_server::{Config, Limits, Server};
use tonic::{Code, Status, transport::Channel};

async fn kv(server: &Server) -> KvClient<Channel> {
    KvClient::new(connect(server).await)
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[track_caller]
fn assert_refused<T>(outcome: Result<T, Status>, code: Code, message: &str) {
    let Err(status) = outcome else { panic!("it should have been refused: {message}") };
    assert_eq!((status.code(), status.message()), (code, message));
}

#[tokio::test]
async fn what_is_put_can_be_got_and_deleted() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    let header = client.put(put("k", "v1")).await.unwrap().into_inner().header.unwrap();
    assert_eq!(
        (header.cluster_id, header.member_id, header.revision, header.raft_term),
        (CLUSTER, MEMBER, 2, 1)
    );
    let response = client.put(PutRequest { prev_kv: true, ..put("k", "v2") }).await.unwrap().into_inner();
    assert_eq!(response.prev_kv.unwrap().value, "v1");
    let got = client.range(get("k")).await.unwrap().into_inner();
    assert_eq!((got.header.unwrap().revision, got.count, &got.kvs[0].value[..]), (3, 1, &b"v2"[..]));
    let old = client.range(RangeRequest { revision: 2, ..get("k") }).await.unwrap().into_inner();
    assert_eq!(old.kvs[0].value, "v1");
    let local = client.range(RangeRequest { serializable: true, ..get("k") }).await.unwrap().into_inner();
    assert_eq!(local.kvs[0].value, "v2");
    let delete = DeleteRangeRequest { key: "k".into(), prev_kv: true, ..Default::default() };
    let deleted = client.delete_range(delete).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, &deleted.prev_kvs[0].value[..]), (1, &b"v2"[..]));
    assert!(client.range(get("k")).await.unwrap().into_inner().kvs.is_empty());
}

#[tokio::test]
async fn transactions_that_only_read_are_not_ordered() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    let create = TxnRequest {
        compare: vec![Compare {
            key: "lock".into(),
            target: CompareTarget::Version.into(),
            target_union: Some(TargetUnion::Version(0)),
            ..Default::default()
        }],
        success: vec![op(Request::RequestPut(put("lock", "mine")))],
        failure: vec![op(Request::RequestRange(get("lock")))],
    };
    let response = client.txn(create.clone()).await.unwrap().into_inner();
    assert!(response.succeeded);
    let response = client.txn(create).await.unwrap().into_inner();
    assert!(!response.succeeded);
    assert_eq!(response.header.unwrap().member_id, MEMBER);
    match response.responses[0].response.as_ref().unwrap() {
        Response::ResponseRange(got) => assert_eq!(got.kvs[0].value, "mine"),
        other => panic!("{other:?}"),
    }
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let ordered = maintenance.status(StatusRequest {}).await.unwrap().into_inner().raft_index;
    let read = TxnRequest { success: vec![op(Request::RequestRange(get("lock")))], ..Default::default() };
    let nested = TxnRequest { failure: vec![op(Request::RequestTxn(read.clone()))], ..read };
    let response = client.txn(nested).await.unwrap().into_inner();
    assert_eq!((response.succeeded, response.responses.len()), (true, 1));
    assert_eq!(maintenance.status(StatusRequest {}).await.unwrap().into_inner().raft_index, ordered);
}

/// The transaction asks for the whole store many times, beside a put that would be in the log of every replica.
#[tokio::test]
async fn a_transaction_that_costs_too_much_is_refused_and_changes_nothing() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    client.put(put("large", &"x".repeat(1 << 20))).await.unwrap();
    let all = |success| TxnRequest { success, ..TxnRequest::default() };
    let (ranges, poison) = (vec![op(Request::RequestRange(get("large"))); 100], put("poison", "x"));
    let both = all([ranges.clone(), vec![op(Request::RequestPut(poison))]].concat());
    let too_large = "etcdserver: trying to send message larger than max (67108864 bytes)";
    assert_refused(client.txn(both).await, Code::ResourceExhausted, too_large);
    assert_refused(client.txn(all(ranges)).await, Code::ResourceExhausted, too_large);
    assert!(client.range(get("poison")).await.unwrap().into_inner().kvs.is_empty());
    for depth in [49, 60, 200] {
        let inner = all(vec![op(Request::RequestPut(put("deep", "x")))]);
        let nested = (1..depth).fold(inner, |inner, _| all(vec![op(Request::RequestTxn(inner))]));
        let too_deep = "etcdserver: transactions are nested too deeply";
        assert_refused(client.txn(nested).await, Code::InvalidArgument, too_deep);
    }
}

#[tokio::test]
async fn compaction_forgets() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    for value in ["1", "2", "3"] {
        client.put(put("k", value)).await.unwrap();
    }
    let to = |revision| CompactionRequest { revision, ..Default::default() };
    assert_eq!(client.compact(to(3)).await.unwrap().into_inner().header.unwrap().revision, 4);
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    assert_refused(client.range(RangeRequest { revision: 2, ..get("k") }).await, Code::OutOfRange, compacted);
    assert_refused(client.compact(to(3)).await, Code::OutOfRange, compacted);
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(client.range(RangeRequest { revision: 99, ..get("k") }).await, Code::OutOfRange, future);
}

#[tokio::test]
async fn a_physical_compaction_is_answered_when_all_is_cleared_away() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    // More than a command clears away.
    for n in 0..5000 {
        client.put(put(&format!("{}", n / 2), "v")).await.unwrap();
    }
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let mut size = async || maintenance.status(StatusRequest {}).await.unwrap().into_inner().db_size;
    let full = size().await;
    client.compact(CompactionRequest { revision: 5001, physical: true }).await.unwrap();
    assert_eq!(size().await, full / 2);
}

#[tokio::test]
async fn nonsense_is_refused_before_it_is_ordered() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    let no_key = "etcdserver: key is not provided";
    assert_refused(client.put(put("", "v")).await, Code::InvalidArgument, no_key);
    assert_refused(client.range(get("")).await, Code::InvalidArgument, no_key);
    assert_refused(client.range_stream(get("")).await, Code::InvalidArgument, no_key);
    assert_refused(client.delete_range(DeleteRangeRequest::default()).await, Code::InvalidArgument, no_key);
    let unsorted = RangeRequest { sort_order: 77, ..get("k") };
    assert_refused(client.range(unsorted).await, Code::InvalidArgument, "etcdserver: invalid sort option");
    let many = TxnRequest { success: vec![op(Request::RequestRange(get("k"))); 129], ..Default::default() };
    let too_many = "etcdserver: too many operations in txn request";
    assert_refused(client.txn(many).await, Code::InvalidArgument, too_many);
    let twice = vec![op(Request::RequestPut(put("k", "1"))); 2];
    let twice = client.txn(TxnRequest { success: twice, ..Default::default() }).await;
    assert_refused(twice, Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let status = maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.raft_index, 0);
    assert!(
        status.db_size > 0 && status.db_size_in_use > 0,
        "etcdctl divides by the size of a store without keys"
    );
}

#[tokio::test]
async fn a_request_may_be_just_as_large_as_it_is_said() {
    let server =
        serve(&config(), replica().limited(Limits { request_bytes_max: 10_000, ..Limits::default() }));
    let mut client = kv(&server).await;
    let large = |bytes| PutRequest { value: vec![b'v'; bytes].into(), ..put("k", "") };
    client.put(large(9_900)).await.unwrap();
    let refused = client.put(large(10_001)).await;
    assert_refused(refused, Code::InvalidArgument, "etcdserver: request is too large");
    // gRPC refuses a message above its own bound, as its Go implementation does for etcd.
    let refused = client.put(large(10_000 + (512 << 10))).await;
    let message = "grpc: received message larger than max (534295 vs. 534288)";
    assert_refused(refused, Code::ResourceExhausted, message);
    // The connection has survived.
    assert_eq!(client.range(get("k")).await.unwrap().into_inner().kvs[0].value.len(), 9_900);
}

#[tokio::test]
async fn a_full_store_refuses_writes_and_raises_the_alarm() {
    let server = serve(&Config { quota_bytes: 1000, ..config() }, replica());
    let mut client = kv(&server).await;
    let full = PutRequest { value: vec![0; 2000].into(), ..put("k", "") };
    let message = "etcdserver: mvcc: database space exceeded";
    assert_refused(client.put(full).await, Code::ResourceExhausted, message);
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let list = AlarmRequest::default();
    let alarms = maintenance.alarm(list).await.unwrap().into_inner().alarms;
    assert_eq!((alarms.len(), alarms[0].member_id, alarms[0].alarm()), (1, MEMBER, AlarmType::Nospace));
    // Etcd lists those of all members, whichever is named.
    let others = AlarmRequest { member_id: MEMBER + 1, ..list };
    assert_eq!(maintenance.alarm(others).await.unwrap().into_inner().alarms.len(), 1);
    let status = maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, [format!("memberID:{MEMBER} alarm:NOSPACE")]);
    let disarm = AlarmRequest {
        action: AlarmAction::Deactivate.into(),
        member_id: MEMBER,
        alarm: AlarmType::Nospace.into(),
    };
    // Without a kind nothing is cleared, as with etcd.
    let nothing = AlarmRequest { member_id: 0, alarm: AlarmType::None.into(), ..disarm };
    assert_eq!(maintenance.alarm(nothing).await.unwrap().into_inner().alarms, []);
    assert_eq!(maintenance.alarm(disarm).await.unwrap().into_inner().alarms.len(), 1);
    client.put(put("k", "small")).await.unwrap();
}

#[tokio::test]
async fn members_status_and_hashes_are_told() {
    let server = serve(&config(), replica());
    let channel = connect(&server).await;
    let mut client = kv(&server).await;
    client.put(put("k", "v")).await.unwrap();
    for linearizable in [false, true] {
        let mut cluster = ClusterClient::new(channel.clone());
        let members =
            cluster.member_list(MemberListRequest { linearizable }).await.unwrap().into_inner().members;
        assert_eq!((members.len(), members[0].id, members[0].name.as_str()), (1, MEMBER, "only"));
        assert_eq!(members[0].peer_ur_ls, ["http://127.0.0.1:2380"]);
        assert_eq!(members[0].client_ur_ls, ["http://127.0.0.1:2379"]);
    }
    let mut maintenance = MaintenanceClient::new(channel);
    let status = maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.version.as_str(), status.leader, status.raft_term), ("3.7.3", MEMBER, 1));
    assert_eq!((status.raft_index, status.raft_applied_index), (1, 1));
    assert_eq!(status.header.unwrap().revision, 2);
    assert!(status.db_size > 0 && status.errors.is_empty());
    let before = maintenance.hash_kv(HashKvRequest { revision: 0 }).await.unwrap().into_inner();
    assert_eq!(maintenance.hash(HashRequest {}).await.unwrap().into_inner().hash, before.hash);
    client.put(put("k", "w")).await.unwrap();
    let after = maintenance.hash_kv(HashKvRequest { revision: 0 }).await.unwrap().into_inner();
    assert_ne!(before.hash, after.hash);
    let again = maintenance.hash_kv(HashKvRequest { revision: 2 }).await.unwrap().into_inner();
    assert_eq!(before.hash, again.hash);
    maintenance.defragment(DefragmentRequest {}).await.unwrap();
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let server = serve(&config(), replica());
    let channel = connect(&server).await;
    let outcome = WatchClient::new(channel.clone()).watch(futures_util::stream::pending()).await;
    let status = outcome.expect_err("it is refused");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().starts_with("synod: "), "{status}");
}

#[tokio::test]
async fn a_snapshot_is_a_file_and_its_hash() {
    let server = serve(&config(), replica());
    let channel = connect(&server).await;
    let mut client = kv(&server).await;
    for number in 0..600 {
        client.put(put(&format!("key {number}"), &"v".repeat(5 * number))).await.unwrap();
    }
    let mut maintenance = MaintenanceClient::new(channel);
    let mut stream = maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        assert_eq!(message.version, "3.6.0");
        messages.push((message.remaining_bytes, message.blob));
    }
    let (_, hash) = messages.pop().unwrap();
    let mut file = Vec::new();
    let total = messages[0].0 + messages[0].1.len() as u64;
    for (remaining, blob) in messages {
        file.extend_from_slice(&blob);
        assert_eq!(remaining, total - file.len() as u64);
    }
    assert_eq!((file.len() as u64, file.len() % 4096), (total, 0));
    assert_eq!(hash[..], Sha256::digest(&file)[..]);
    for part in [&b"key 599"[..], b"http://127.0.0.1:2380", b"members_removed", b"consistent_index"] {
        assert!(file.windows(part.len()).any(|bytes| bytes == part), "{}", part.escape_ascii());
    }
}

#[tokio::test]
async fn there_is_nothing_to_downgrade_to() {
    let server = serve(&config(), replica());
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let mut ask = async |action: DowngradeAction, version: &str| {
        let request = DowngradeRequest { action: action.into(), version: version.to_owned() };
        let answer = maintenance.downgrade(request).await?.into_inner();
        Ok::<_, tonic::Status>((answer.version, answer.header.unwrap().revision))
    };
    for action in [DowngradeAction::Validate, DowngradeAction::Enable] {
        for (version, text) in
            [("3.5.0", "invalid downgrade target version"), ("x", "wrong downgrade target version format")]
        {
            let text = format!("etcdserver: {text}");
            assert_refused(ask(action, version).await, Code::InvalidArgument, &text);
        }
    }
    assert_eq!(ask(DowngradeAction::Cancel, "").await.unwrap(), ("3.7".to_owned(), 1));
}
