//! A replica of several groups: requests find the group of their keys, and what has none is refused.

use crate::common::{config, connect, replica};
use prost::Message;
use synod_api::{
    etcdserverpb::{
        self, CompactionRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, kv_client::KvClient,
        maintenance_client::MaintenanceClient, request_op::Request,
    },
    shards,
    synod::v1::{
        ExecuteRequest, KvAnswer, KvCommand, KvQuery, KvReply, KvStatusRequest, OpenSessionRequest,
        QueryRequest, StatusRequest, kv_answer::Answer, kv_command::Command, kv_query::Query,
        kv_reply::Reply, native_client::NativeClient,
    },
};
use synod_server::{Config, Registry, Server};
use tonic::{Code, Status};

const GROUPS: u16 = 3;

fn serve(config: &Config) -> Server {
    let groups = (0..GROUPS).map(|_| replica()).collect();
    Server::start_groups(config, groups, Registry::default()).unwrap()
}

fn put(key: &str) -> ExecuteRequest {
    let put = PutRequest { key: key.to_owned().into(), value: "v".into(), ..PutRequest::default() };
    let command = KvCommand { command: Some(Command::Put(put)), ..KvCommand::default() };
    ExecuteRequest { payload: command.encode_to_vec().into(), ..ExecuteRequest::default() }
}

fn query(query: Query, group: Option<u32>) -> QueryRequest {
    let payload = KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec().into();
    QueryRequest { payload, serializable: false, group }
}

fn one(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

fn group_of(key: &str) -> u32 {
    shards::of_key(key.as_bytes(), GROUPS).into()
}

/// A key of each group.
fn keys() -> [String; GROUPS as usize] {
    [0, 1, 2].map(|group| (0..).map(|i| format!("k{i}")).find(|key| group_of(key) == group).unwrap())
}

fn told(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test]
async fn each_group_has_the_keys_and_revisions_of_its_own() {
    let server = serve(&config());
    let mut client = NativeClient::new(connect(&server).await);
    for (key, writes) in keys().iter().zip([1, 2, 3]) {
        for revision in 2..2 + writes {
            let reply = client.execute(put(key)).await.unwrap().into_inner().reply;
            let Some(Reply::Put(done)) = KvReply::decode(reply).unwrap().reply else { panic!("a put") };
            assert_eq!(done.header.unwrap().revision, revision);
        }
        let reply = client.query(query(Query::Range(one(key)), None)).await.unwrap().into_inner().reply;
        let Some(Answer::Range(found)) = KvAnswer::decode(reply).unwrap().answer else { panic!("a range") };
        assert_eq!(found.kvs[0].version, writes);
    }
    for (group, writes) in [(0, 1), (1, 2), (2, 3)] {
        let status = query(Query::Status(KvStatusRequest {}), Some(group));
        let reply = client.query(status).await.unwrap().into_inner().reply;
        let Some(Answer::Status(status)) = KvAnswer::decode(reply).unwrap().answer else {
            panic!("a status")
        };
        assert_eq!((status.revision, status.keys), (1 + writes, 1));
    }
    let status = client.status(StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!(status.groups.iter().map(|group| group.applied_slot).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(status.groups.iter().all(|group| group.leader_name == "only"));
    assert_eq!(status.revision, 0, "there is no single revision");
}

#[tokio::test]
async fn a_session_is_of_one_group() {
    let server = serve(&config());
    let mut client = NativeClient::new(connect(&server).await);
    let [_, key, other] = &keys();
    let opened = client.open_session(OpenSessionRequest { group: 1 }).await.unwrap().into_inner();
    assert_eq!(opened.groups, u32::from(GROUPS));
    let numbered = |key, group| ExecuteRequest {
        session: opened.session,
        sequence: 1,
        lowest_outstanding: 1,
        group,
        ..put(key)
    };
    let first = client.execute(numbered(key, Some(1))).await.unwrap().into_inner();
    assert_eq!(client.execute(numbered(key, Some(1))).await.unwrap().into_inner(), first);
    // Another client may have a session of the same number there.
    for (request, part) in [
        (numbered(other, Some(1)), "for group 1, and its keys belong to group 2"),
        (numbered(key, None), "for group 0, and its keys belong to group 1"),
        (ExecuteRequest { group: Some(3), ..put(key) }, "for group 3, and its keys belong to group 1"),
        (ExecuteRequest { sequence: 1, ..put(key) }, "without a session nothing is numbered"),
        (ExecuteRequest { payload: vec![0xff].into(), ..put(key) }, "is a KvCommand"),
    ] {
        let status = client.execute(request).await.unwrap_err();
        assert!(told(&status).0 == Code::InvalidArgument && told(&status).1.contains(part), "{status}");
    }
    let beyond = client.open_session(OpenSessionRequest { group: 3 }).await.unwrap_err();
    assert_eq!(
        told(&beyond),
        (Code::InvalidArgument, "synod: there is no group 3; the groups of this cluster are 0 to 2")
    );
    let keyless = client.query(query(Query::Status(KvStatusRequest {}), None)).await.unwrap_err();
    assert!(keyless.message().contains("must name one of the 3 groups"), "{keyless}");
    let range = RangeRequest { range_end: "z".into(), ..one("a") };
    let range = client.query(query(Query::Range(range), None)).await.unwrap_err();
    assert!(
        told(&range).0 == Code::InvalidArgument && range.message().contains("a range of keys"),
        "{range}"
    );
}

#[tokio::test]
async fn without_a_session_an_answer_is_small_and_one_group_is_refused() {
    let server = serve(&config());
    let mut client = NativeClient::new(connect(&server).await);
    let key = &keys()[0];
    let large = PutRequest { key: key.clone().into(), value: vec![0; 70 << 10].into(), ..Default::default() };
    let get = RequestOp { request: Some(Request::RequestRange(one(key))) };
    let put_it = RequestOp { request: Some(Request::RequestPut(large)) };
    let txn = TxnRequest { success: vec![put_it, get], ..TxnRequest::default() };
    let command = KvCommand { command: Some(Command::Txn(txn)), ..KvCommand::default() };
    let request = ExecuteRequest { payload: command.encode_to_vec().into(), ..ExecuteRequest::default() };
    let reply = client.execute(request).await.unwrap().into_inner().reply;
    let reply = KvReply::decode(reply).unwrap().reply;
    assert!(matches!(&reply, Some(Reply::Error(_))), "nothing pays for it: {reply:?}");

    let alone = Server::start(&config(), replica(), Registry::default()).unwrap();
    let refused = NativeClient::new(connect(&alone).await).execute(put(key)).await.unwrap_err();
    assert!(
        told(&refused).0 == Code::InvalidArgument && refused.message().contains("one group"),
        "{refused}"
    );
}

#[tokio::test]
async fn the_groups_share_the_quota() {
    let server = serve(&Config { quota_bytes: 3000, ..config() });
    let mut client = NativeClient::new(connect(&server).await);
    let key = &keys()[0];
    let mut refused = None;
    for _ in 0..100 {
        let reply = client.execute(put(key)).await.unwrap().into_inner().reply;
        if let Some(Reply::Error(failure)) = KvReply::decode(reply).unwrap().reply {
            refused = Some(failure.message);
            break;
        }
    }
    assert!(refused.unwrap().contains("space exceeded"));
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let status = maintenance.status(etcdserverpb::StatusRequest {}).await.unwrap().into_inner();
    assert!((500..1500).contains(&status.db_size), "a third of the quota: {}", status.db_size);
    assert_eq!(status.header.unwrap().revision, 0);
}

#[tokio::test]
async fn etcds_services_say_why_they_are_not_served() {
    let server = serve(&config());
    let mut kv = KvClient::new(connect(&server).await);
    let refusals = [
        kv.put(PutRequest { key: "k".into(), ..PutRequest::default() }).await.unwrap_err(),
        kv.range(one("k")).await.unwrap_err(),
        kv.compact(CompactionRequest::default()).await.unwrap_err(),
    ];
    for status in refusals {
        let (code, message) = told(&status);
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.starts_with(shards::NO_SINGLE_REVISION) && message.contains("shard:3"), "{message}");
    }
}
