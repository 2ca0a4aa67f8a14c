//! What clients send by Synod's own API to the key-value store is checked before the store sees it: every kind of
//! command and of query.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prost::Message;
use prost_reflect::DescriptorPool;
use synod_api::{
    etcdserverpb::{
        AlarmRequest, AuthStatusRequest, CompactionRequest, Compare, DeleteRangeRequest, HashKvRequest,
        LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
        RangeRequest, RequestOp, TxnRequest, request_op::Request,
    },
    synod::v1::{
        ExecuteRequest, KvAuthChange, KvAuthQuery, KvCommand, KvEtcdSnapshot, KvHashCheck, KvLeaseRenew,
        KvQuery, KvStatusRequest, OpenSessionRequest, QueryRequest, kv_auth_query, kv_command::Command,
        kv_query::Query, native_client::NativeClient,
    },
};
use synod_kv::{KvStore, validate};
use synod_server::{Auth, Config, InMemory, Replica, Server, TokenKind, Watches};
use tonic::{Code, transport::Channel};

use crate::common::{MEMBER, config, connect, replica_of, serve};

const QUOTA_BYTES: u64 = 1 << 30;

/// A replica that keeps what reaches it.
#[derive(Clone)]
struct Watched {
    inner: InMemory,
    commands: Arc<Mutex<Vec<Bytes>>>,
    queries: Arc<Mutex<Vec<Bytes>>>,
}

impl Replica for Watched {
    answered_by_inner!(execute, open_session, limits, term, status, group, change, move_leader);

    async fn execute_in_session(
        &self,
        session: synod_wire::SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, synod_server::RequestError> {
        self.commands.lock().unwrap().push(command.clone());
        self.inner.execute_in_session(session, sequence, lowest_outstanding, command).await
    }

    async fn query(
        &self,
        query: Bytes,
        consistency: synod_server::Consistency,
    ) -> Result<synod_server::Answer, synod_server::RequestError> {
        // The hub of watches asks with no bytes.
        if !query.is_empty() {
            self.queries.lock().unwrap().push(query.clone());
        }
        self.inner.query(query, consistency).await
    }
}

fn server() -> (Server, Watched) {
    let (auth, watches) = (Auth::new(TokenKind::default(), 4), Watches::new());
    let store = KvStore::new().authenticating(auth.feed()).feeding(watches.feed());
    let inner = replica_of(store);
    let watched = Watched { inner, commands: Arc::default(), queries: Arc::default() };
    let config = Config { auth: Some(auth), watches: Some(watches), quota_bytes: QUOTA_BYTES, ..config() };
    (serve(&config, watched.clone()), watched)
}

/// The numbers of a message's fields.
fn fields(message: &str) -> Vec<u32> {
    let pool = DescriptorPool::decode(synod_api::DESCRIPTORS).unwrap();
    let message = pool.get_message_by_name(message).expect("it exists");
    message.fields().map(|field| field.number()).collect()
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..PutRequest::default() }
}

fn range(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

fn txn(count: usize, request: Option<Request>) -> TxnRequest {
    TxnRequest { success: vec![RequestOp { request }; count], ..TxnRequest::default() }
}

/// A transaction whose lists have as many transactions at each level, and the innermost lists as many empty ones.
fn tree(widths: [usize; 3]) -> TxnRequest {
    widths.into_iter().rev().fold(TxnRequest::default(), |inner, width| {
        let ops = vec![RequestOp { request: Some(Request::RequestTxn(inner)) }; width];
        TxnRequest { success: ops.clone(), failure: ops, ..TxnRequest::default() }
    })
}

fn command(command: Command) -> KvCommand {
    KvCommand { command: Some(command), ..KvCommand::default() }
}

fn query(query: Query) -> KvQuery {
    KvQuery { query: Some(query), ..KvQuery::default() }
}

/// Whether a payload is to reach the store, and the payload.
type Cases = Vec<(bool, Vec<u8>)>;

/// Commands with this field.
fn commands_with(field: u32) -> Cases {
    let large = PutRequest { value: vec![0; 1_600_000].into(), ..put("k") };
    let of = |passes: bool, asked: Command| (passes, command(asked).encode_to_vec());
    let with = |passes: bool, change: fn(&mut KvCommand)| {
        let mut command = command(Command::Put(put("k")));
        change(&mut command);
        (passes, command.encode_to_vec())
    };
    match field {
        1 => vec![
            of(true, Command::Put(put("k"))),
            of(false, Command::Put(put(""))),
            of(false, Command::Put(large)),
        ],
        2 => {
            let delete = |key: &str| DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
            vec![of(true, Command::DeleteRange(delete("k"))), of(false, Command::DeleteRange(delete("")))]
        }
        3 => {
            let puts = |count: usize| TxnRequest {
                success: (0..count)
                    .map(|n| RequestOp { request: Some(Request::RequestPut(put(&n.to_string()))) })
                    .collect(),
                ..TxnRequest::default()
            };
            let compares = |count: usize| TxnRequest {
                compare: vec![Compare::default(); count],
                ..TxnRequest::default()
            };
            vec![
                of(true, Command::Txn(puts(128))),
                of(false, Command::Txn(puts(129))),
                of(false, Command::Txn(txn(1, None))),
                of(false, Command::Txn(txn(700_000, None))),
                of(false, Command::Txn(compares(700_000))),
                of(false, Command::Txn(txn(2, Some(Request::RequestPut(put("twice")))))),
                of(false, Command::Txn(txn(1, Some(Request::RequestTxn(txn(700_000, None)))))),
                of(true, Command::Txn(tree([5, 6, 7]))),
                of(false, Command::Txn(tree([5, 6, 8]))),
                of(false, Command::Txn(tree([35, 35, 34]))),
            ]
        }
        4 => vec![of(true, Command::Compact(CompactionRequest { revision: 1, physical: false }))],
        5 => {
            let alarm = |alarm| AlarmRequest { action: 0, member_id: 0, alarm };
            vec![of(true, Command::Alarm(alarm(0))), of(false, Command::Alarm(alarm(7)))]
        }
        6 => vec![of(true, Command::LeaseGrant(LeaseGrantRequest { ttl: 10, id: 1 }))],
        7 => vec![of(true, Command::LeaseRevoke(LeaseRevokeRequest { id: 2 }))],
        8 => vec![of(false, Command::LeaseRenew(KvLeaseRenew { ids: vec![1; 500_000] }))],
        9 => vec![of(false, Command::Auth(KvAuthChange::default()))],
        10 => vec![with(false, |command| command.of_member = true)],
        11 => vec![with(false, |command| command.user = "root".into())],
        12 => vec![with(false, |command| command.auth_revision = 1)],
        13 => vec![with(true, |command| command.answer_bytes_max = 1 << 10)],
        14 => vec![with(false, |command| command.quota_bytes = 1)],
        15 => vec![with(false, |command| command.member_id = 77)],
        16 => vec![of(false, Command::HashCheck(KvHashCheck::default()))],
        field => panic!("say here what is checked of field {field}"),
    }
}

/// Queries with this field.
fn queries_with(field: u32) -> Cases {
    let of = |passes: bool, asked: Query| (passes, query(asked).encode_to_vec());
    let with = |change: fn(&mut KvQuery)| {
        let mut query = query(Query::Range(range("k")));
        change(&mut query);
        (false, query.encode_to_vec())
    };
    match field {
        1 => {
            let sorted = RangeRequest { sort_order: 9, ..range("k") };
            vec![
                of(true, Query::Range(range("k"))),
                of(false, Query::Range(range(""))),
                of(false, Query::Range(sorted)),
            ]
        }
        2 => {
            let read = || Some(Request::RequestRange(range("k")));
            vec![
                of(true, Query::Txn(txn(128, read()))),
                of(false, Query::Txn(txn(129, read()))),
                of(false, Query::Txn(txn(716_800, None))),
                of(true, Query::Txn(tree([5, 6, 7]))),
                of(false, Query::Txn(tree([5, 6, 8]))),
                of(false, Query::Txn(tree([35, 35, 34]))),
                of(false, Query::Txn(txn(1, Some(Request::RequestPut(put("k")))))),
            ]
        }
        3 => vec![of(true, Query::HashKv(HashKvRequest { revision: 0 }))],
        4 => vec![of(true, Query::Status(KvStatusRequest {}))],
        5 => vec![of(true, Query::LeaseTimeToLive(LeaseTimeToLiveRequest { id: 1, keys: true }))],
        6 => vec![of(true, Query::LeaseLeases(LeaseLeasesRequest {}))],
        7 => {
            let asked = Some(kv_auth_query::Query::Status(AuthStatusRequest {}));
            vec![of(false, Query::Auth(KvAuthQuery { query: asked }))]
        }
        10 => vec![with(|query| query.of_member = true)],
        11 => vec![with(|query| query.user = "root".into())],
        12 => vec![with(|query| query.auth_revision = 1)],
        13 => vec![of(false, Query::EtcdSnapshot(KvEtcdSnapshot::default()))],
        field => panic!("say here what is checked of field {field}"),
    }
}

async fn session(native: &mut NativeClient<Channel>) -> u64 {
    native.open_session(OpenSessionRequest::default()).await.unwrap().into_inner().session
}

#[tokio::test]
async fn every_command_is_checked_before_the_store_sees_it() {
    let (server, watched) = server();
    let mut native = NativeClient::new(connect(&server).await);
    let session = session(&mut native).await;
    let empty = vec![(false, Vec::new()), (false, vec![0xff])];
    let cases = fields("synod.v1.KvCommand").into_iter().map(|field| (field, commands_with(field)));
    let mut sequence = 0;
    for (field, cases) in cases.chain([(0, empty)]) {
        assert!(!cases.is_empty());
        for (passes, payload) in cases {
            sequence += 1;
            let bytes = payload.len();
            let request = ExecuteRequest {
                session,
                sequence,
                lowest_outstanding: sequence,
                payload: payload.into(),
                group: None,
            };
            let outcome = native.execute(request).await;
            let reached: Vec<_> = watched.commands.lock().unwrap().drain(..).collect();
            let case = format!("field {field}, {bytes} bytes: {outcome:?}");
            assert_eq!((outcome.is_ok(), reached.len()), (passes, usize::from(passes)), "{case}");
            if let Err(status) = outcome {
                assert!(matches!(status.code(), Code::InvalidArgument | Code::NotFound), "{case}");
            }
            for command in reached {
                let command = KvCommand::decode(command).unwrap();
                validate::command(&command, &watched.limits()).unwrap();
                assert_eq!((command.quota_bytes, command.member_id), (QUOTA_BYTES, MEMBER), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn every_query_is_checked_before_the_store_sees_it() {
    let (server, watched) = server();
    let mut native = NativeClient::new(connect(&server).await);
    let empty = vec![(false, Vec::new()), (false, vec![0xff])];
    let cases = fields("synod.v1.KvQuery").into_iter().map(|field| (field, queries_with(field)));
    for (field, cases) in cases.chain([(0, empty)]) {
        assert!(!cases.is_empty());
        for (passes, payload) in cases {
            let bytes = payload.len();
            watched.queries.lock().unwrap().clear();
            let request = QueryRequest { payload: payload.into(), serializable: true, group: None };
            let outcome = native.query(request).await;
            let reached = watched.queries.lock().unwrap().len();
            let case = format!("field {field}, {bytes} bytes: {outcome:?}");
            assert_eq!((outcome.is_ok(), reached), (passes, usize::from(passes)), "{case}");
        }
    }
}

/// What a payload becomes takes memory, as what any request becomes.
#[tokio::test]
async fn the_fields_of_a_payload_are_charged() {
    let (auth, watches) = (Auth::new(TokenKind::default(), 4), Watches::new());
    let replica = replica_of(KvStore::new().authenticating(auth.feed()).feeding(watches.feed()));
    // A connection gets a quarter of what is free: not enough for 1,810 operations of 256 bytes and their messages.
    let config = Config { auth: Some(auth), watches: Some(watches), requests_bytes_max: 2 << 20, ..config() };
    let server = serve(&config, replica);
    let mut native = NativeClient::new(connect(&server).await);
    let mut outcome = async |widths| {
        let payload = query(Query::Txn(tree(widths))).encode_to_vec().into();
        native.query(QueryRequest { payload, serializable: true, group: None }).await.map(drop)
    };
    let refused = outcome([5, 6, 7]).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::ResourceExhausted, "etcdserver: too many requests")
    );
    outcome([2, 2, 2]).await.unwrap();
}

/// The quota is the server's, and no client raises an alarm of a member that does not exist.
#[tokio::test]
async fn a_client_cannot_choose_the_quota() {
    let (server, _watched) = server();
    let mut native = NativeClient::new(connect(&server).await);
    let session = session(&mut native).await;
    for (sequence, (quota_bytes, member_id)) in (1..).zip([(1, 77), (1, 0), (0, 77)]) {
        let forged = KvCommand { quota_bytes, member_id, ..command(Command::Put(put("k"))) };
        let request = ExecuteRequest {
            session,
            sequence,
            lowest_outstanding: sequence,
            payload: forged.encode_to_vec().into(),
            group: None,
        };
        assert_eq!(native.execute(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let mut maintenance =
        synod_api::etcdserverpb::maintenance_client::MaintenanceClient::new(connect(&server).await);
    let status = maintenance.status(synod_api::etcdserverpb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, [""; 0]);
}
