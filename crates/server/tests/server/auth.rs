//! Users, roles and tokens, through etcd's service Auth; and that Synod's own service is no way around them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::users::{
    COST, DENIED, EMPTY, FAILED, INVALID, OLD, Users, get, put, refused, with, with_users,
};
use crate::common::{
    MEMBER, config, connect,
    http2::{call, framed, http2, post},
    replica_of, serve,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use synod_api::v3lockpb::{LockRequest, UnlockRequest, lock_client::LockClient};
use synod_api::{
    authpb::{UserAddOptions, permission::Type},
    etcdserverpb::{
        AuthDisableRequest, AuthEnableRequest, AuthRoleGetRequest, AuthRoleRevokePermissionRequest,
        AuthStatusRequest, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
        AuthUserGetRequest, AuthUserListRequest, AuthenticateRequest, CompactionRequest, HashKvRequest,
        LeaseGrantRequest, LeaseKeepAliveRequest, MemberAddRequest, MemberListRequest, MemberPromoteRequest,
        MemberRemoveRequest, MemberUpdateRequest, PutRequest, RangeRequest, RequestOp, StatusRequest,
        TxnRequest, WatchCreateRequest, WatchRequest, cluster_client::ClusterClient, kv_client::KvClient,
        lease_client::LeaseClient, maintenance_client::MaintenanceClient, request_op::Request as Op,
        watch_client::WatchClient, watch_request::RequestUnion,
    },
    synod::v1::{
        self as native, ChangeRequest, ExecuteRequest, KvAuthChange, KvAuthQuery, KvAuthenticate, KvCommand,
        KvPasswordOf, KvQuery, KvReply, MoveLeaderRequest, OpenSessionRequest, QueryRequest,
        SubscribeRequest, kv_auth_change::Change, kv_auth_query, kv_command::Command, kv_query::Query,
        kv_reply::Reply, native_client::NativeClient,
    },
};
use synod_kv::{AuthFeed, KvStore, Token};
use synod_server::{Answer, Auth, Config, Consistency, InMemory, Replica, RequestError, Server, TokenKind};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
};
use tonic::{Code, Request, transport::Channel};

/// Tokens that are signed with a key in this folder, and valid for so long.
fn signed(folder: &TempDir, ttl: &str) -> TokenKind {
    let key = folder.path().join("key");
    std::fs::write(&key, "a secret of servers").unwrap();
    let text = format!("jwt,sign-method=HS256,priv-key={},ttl={ttl}", key.display());
    TokenKind::parse(&text, Duration::from_secs(300)).unwrap()
}

fn server() -> Server {
    let (store, config) = with_users(TokenKind::default());
    serve(&config, replica_of(store))
}

#[tokio::test]
async fn a_user_may_do_with_a_token_what_roles_permit() {
    let server = server();
    let (mut users, token) = Users::enabled(&server).await;
    let channel = connect(&server).await;
    let mut kv = KvClient::new(channel.clone());
    kv.put(with(&token, put("u1"))).await.unwrap();
    kv.put(with(&users.token, put("x"))).await.unwrap();
    assert_eq!(refused(kv.put(with(&token, put("x"))).await), DENIED);
    assert_eq!(refused(kv.put(put("u1")).await), EMPTY);
    assert_eq!(refused(kv.put(with("abc.1", put("u1"))).await), INVALID);
    assert_eq!(refused(kv.put(with("abc.99", put("u1"))).await), INVALID);
    // As etcd's gateway sends it.
    let mut request = Request::new(get("u", "v"));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    assert_eq!(kv.range(request).await.unwrap().into_inner().count, 1);
    for serializable in [false, true] {
        let range = |key, end| RangeRequest { serializable, ..get(key, end) };
        assert_eq!(refused(kv.range(with(&token, range("u", "w"))).await), DENIED);
        assert_eq!(refused(kv.range(range("u", "v")).await), EMPTY);
    }
    assert_eq!(refused(kv.range_stream(with(&token, get("a", "\0"))).await), DENIED);
    let reads = |key| TxnRequest {
        success: vec![RequestOp { request: Some(Op::RequestRange(get(key, ""))) }],
        ..Default::default()
    };
    let writes = |key| TxnRequest {
        failure: vec![RequestOp { request: Some(Op::RequestPut(put(key))) }],
        ..Default::default()
    };
    for txn in [reads("x"), writes("x")] {
        assert_eq!(refused(kv.txn(with(&token, txn.clone())).await), DENIED);
        assert_eq!(refused(kv.txn(txn.clone()).await), EMPTY);
        kv.txn(with(&users.token, txn)).await.unwrap();
    }
    for txn in [reads("u"), writes("u")] {
        kv.txn(with(&token, txn)).await.unwrap();
    }
    let compact = CompactionRequest { revision: 2, physical: false };
    assert_eq!(refused(kv.compact(with(&token, compact)).await), DENIED);
    kv.compact(with(&users.token, compact)).await.unwrap();
    // A large answer is made from the state that was judged.
    for n in 0..200 {
        let value = "v".repeat(1_000).into();
        kv.put(with(&token, PutRequest { value, ..put(&format!("u{n:03}")) })).await.unwrap();
    }
    let all = kv.range(with(&token, get("u", "v"))).await.unwrap().into_inner();
    assert!(all.kvs.len() > 200);
    let txn = TxnRequest {
        success: vec![RequestOp { request: Some(Op::RequestRange(get("u", "v"))) }],
        ..Default::default()
    };
    kv.txn(with(&token, txn)).await.unwrap();

    let mut maintenance = MaintenanceClient::new(channel.clone());
    let hash = HashKvRequest { revision: 0 };
    assert_eq!(refused(maintenance.hash_kv(with(&token, hash)).await), DENIED);
    maintenance.hash_kv(with(&users.token, hash)).await.unwrap();
    assert_eq!(refused(maintenance.status(StatusRequest {}).await), EMPTY);
    maintenance.status(with(&token, StatusRequest {})).await.unwrap();
    let mut cluster = ClusterClient::new(channel);
    let list = MemberListRequest { linearizable: false };
    assert_eq!(refused(cluster.member_list(list).await), EMPTY);
    cluster.member_list(with(&token, list)).await.unwrap();
    assert_eq!(refused(cluster.member_add(with(&token, MemberAddRequest::default())).await), DENIED);

    // A user with the role root manages users; others see what concerns them.
    let list = AuthUserListRequest {};
    assert_eq!(refused(users.auth.user_list(with(&token, list)).await), DENIED);
    let found = users.auth.user_list(with(&users.token, list)).await.unwrap().into_inner();
    assert_eq!(found.users, ["root", "u"]);
    let own = AuthUserGetRequest { name: "u".into() };
    let found = users.auth.user_get(with(&token, own)).await.unwrap().into_inner();
    assert_eq!(found.roles, ["editor"]);
    let role = AuthRoleGetRequest { role: "editor".into() };
    let found = users.auth.role_get(with(&token, role)).await.unwrap().into_inner();
    assert_eq!(found.perm.len(), 1);
    let add = AuthUserAddRequest { name: "v".into(), password: "pw".into(), ..Default::default() };
    assert_eq!(refused(users.auth.user_add(with(&token, add)).await), DENIED);
    let status = users.auth.auth_status(AuthStatusRequest {}).await.unwrap().into_inner();
    assert!(status.enabled && status.auth_revision > 1);
    assert_eq!(refused(users.auth.auth_disable(with(&token, AuthDisableRequest {})).await), DENIED);
    users.auth.auth_disable(with(&users.token, AuthDisableRequest {})).await.unwrap();
    kv.put(put("x")).await.unwrap();
    // A token that is void does no harm where users do not count.
    kv.put(with(&token, put("x"))).await.unwrap();
}

#[tokio::test]
async fn watches_and_leases_take_permissions() {
    let server = server();
    let (users, token) = Users::enabled(&server).await;
    let channel = connect(&server).await;
    let watch = |key: &str, end: &str| {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        let create = WatchCreateRequest { key, range_end, ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let created = async |token: &str, watches: Vec<WatchRequest>| {
        let requests = stream::iter(watches).chain(stream::pending());
        let answer = WatchClient::new(channel.clone()).watch(with(token, requests)).await.unwrap();
        answer.into_inner()
    };
    let mut own = created(&token, vec![watch("u", "v"), watch("u", "w"), watch("", "\0")]).await;
    let first = own.message().await.unwrap().unwrap();
    assert!(first.created && !first.canceled);
    for _ in 0..2 {
        let second = own.message().await.unwrap().unwrap();
        assert!(second.created && second.canceled, "{second:?}");
        let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert_eq!((second.watch_id, second.cancel_reason.as_str()), (-1, reason));
    }
    let nobody = created("", vec![watch("u", "")]).await.message().await.unwrap().unwrap();
    assert_eq!(
        nobody.cancel_reason,
        "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"
    );
    let mut kv = KvClient::new(channel.clone());
    let mut leases = LeaseClient::new(channel.clone());
    let grant = |id| LeaseGrantRequest { ttl: 60, id };
    assert_eq!(refused(leases.lease_grant(grant(5)).await), EMPTY);
    leases.lease_grant(with(&token, grant(5))).await.unwrap();
    leases.lease_grant(with(&users.token, grant(6))).await.unwrap();
    kv.put(with(&token, PutRequest { lease: 5, ..put("u") })).await.unwrap();
    kv.put(with(&users.token, PutRequest { lease: 6, ..put("x") })).await.unwrap();
    assert_eq!(refused(kv.put(with(&token, PutRequest { lease: 6, ..put("u") })).await), DENIED);
    let renew = async |token: &str, id| {
        let requests = stream::iter([LeaseKeepAliveRequest { id }]);
        let mut answers = LeaseClient::new(channel.clone())
            .lease_keep_alive(with(token, requests))
            .await
            .unwrap()
            .into_inner();
        answers.message().await.map(|answer| answer.unwrap().ttl)
    };
    // Renewals of several users go together.
    let (own, others, of_root, of_nobody) =
        tokio::join!(renew(&token, 5), renew(&token, 6), renew(&users.token, 6), renew("", 5));
    assert_eq!((own.unwrap(), of_root.unwrap()), (60, 60));
    assert_eq!((refused(others), refused(of_nobody)), (DENIED.to_owned(), EMPTY.to_owned()));
    assert_eq!(own_events(&mut created(&token, vec![watch("u", "v")]).await, &mut kv, &token).await, "u9");
}

/// The key of the first event after a put.
async fn own_events(
    watch: &mut tonic::Streaming<synod_api::etcdserverpb::WatchResponse>,
    kv: &mut KvClient<Channel>,
    token: &str,
) -> String {
    watch.message().await.unwrap();
    kv.put(with(token, put("u9"))).await.unwrap();
    let events = watch.message().await.unwrap().unwrap().events;
    String::from_utf8(events[0].kv.as_ref().unwrap().key.to_vec()).unwrap()
}

#[tokio::test]
async fn a_token_ends_with_its_password_or_its_user() {
    let server = server();
    let (mut users, token) = Users::enabled(&server).await;
    let mut kv = KvClient::new(connect(&server).await);
    for (name, password) in [("u", "wrong"), ("nobody", "upw"), ("u", ""), ("", "")] {
        assert_eq!(refused(users.authenticate(name, password).await), FAILED);
    }
    let second = users.authenticate("u", "upw").await.unwrap();
    assert_ne!(token, second);
    let change =
        AuthUserChangePasswordRequest { name: "u".into(), password: "new".into(), ..Default::default() };
    users.auth.user_change_password(with(&users.token, change)).await.unwrap();
    for old in [&token, &second] {
        assert_eq!(refused(kv.put(with(old, put("u"))).await), INVALID);
    }
    assert_eq!(refused(users.authenticate("u", "upw").await), FAILED);
    let token = users.authenticate("u", "new").await.unwrap();
    kv.put(with(&token, put("u"))).await.unwrap();
    users.auth.user_delete(with(&users.token, AuthUserDeleteRequest { name: "u".into() })).await.unwrap();
    assert_eq!(refused(kv.put(with(&token, put("u"))).await), INVALID);
    // A user of the same name is another one.
    users.add("u", "new").await;
    assert_eq!(refused(kv.put(with(&token, put("u"))).await), INVALID);
    let options = Some(UserAddOptions { no_password: true });
    let request = AuthUserAddRequest { name: "cert".into(), options, ..Default::default() };
    users.auth.user_add(with(&users.token, request)).await.unwrap();
    assert_eq!(
        refused(users.authenticate("cert", "x").await),
        "Unknown: auth: authentication failed, password was given for no password user"
    );
    let hash = |hashed_password: &str| AuthUserChangePasswordRequest {
        name: "u".into(),
        hashed_password: hashed_password.into(),
        ..Default::default()
    };
    let garbled = users.auth.user_change_password(with(&users.token, hash("?"))).await;
    assert_eq!(
        refused(garbled),
        "Unknown: auth: authentication failed, password was given for no password user"
    );
}

/// With users Synod's own service takes a token as well, and no client can say for itself who it is.
#[tokio::test]
async fn the_native_service_is_no_way_around() {
    let server = server();
    let channel = connect(&server).await;
    let mut native = NativeClient::new(channel);
    let command = |command| KvCommand { command: Some(command), ..Default::default() };
    let execute = |session, sequence, command: KvCommand| ExecuteRequest {
        session,
        sequence,
        lowest_outstanding: 1,
        payload: command.encode_to_vec().into(),
        group: None,
    };
    // Before users count, too: a server that lags would take the command for one of nobody.
    let session = native.open_session(OpenSessionRequest::default()).await.unwrap().into_inner().session;
    let authenticate = KvAuthenticate {
        name: "root".into(),
        secret: "mine".into(),
        checked_revision: 1,
        issued_ms: u64::MAX,
    };
    let auth = |change| Command::Auth(KvAuthChange { change: Some(change) });
    let forged = [
        KvCommand { user: "root".into(), auth_revision: 1 << 60, ..command(Command::Put(put("x"))) },
        KvCommand { auth_revision: 1, ..command(Command::Put(put("x"))) },
        KvCommand { of_member: true, ..command(Command::Put(put("x"))) },
        command(auth(Change::Authenticate(authenticate))),
        command(auth(Change::Enable(AuthEnableRequest {}))),
    ];
    let password_of =
        KvAuthQuery { query: Some(kv_auth_query::Query::PasswordOf(KvPasswordOf { name: "root".into() })) };
    let queries = [
        KvQuery { query: Some(Query::Auth(password_of)), of_member: true, ..Default::default() },
        KvQuery { query: Some(Query::Range(get("x", ""))), of_member: true, ..Default::default() },
        KvQuery {
            query: Some(Query::Range(get("x", ""))),
            user: "root".into(),
            auth_revision: 1,
            ..Default::default()
        },
    ];
    let (mut users, mut tokens) = (None, vec![String::new()]);
    for round in 0..2 {
        for token in &tokens {
            for (sequence, forged) in (1..).zip(&forged) {
                let outcome = native.execute(with(token, execute(session, sequence, forged.clone()))).await;
                let why = refused(outcome);
                let claims =
                    why.starts_with("InvalidArgument: synod: a client's command must not have field ");
                assert!(claims || round == 1 && [EMPTY, DENIED].contains(&&*why), "{why} for {forged:?}");
            }
            for query in &queries {
                let payload: Bytes = query.encode_to_vec().into();
                // A tag may be written longer than it need be.
                let longer: Bytes = [&[0xd0, 0x80, 0x00, 0x01][..], &payload].concat().into();
                for payload in [payload, longer] {
                    let request = QueryRequest { payload, serializable: true, group: None };
                    let outcome = native.query(with(token, request)).await;
                    assert_eq!(outcome.unwrap_err().code(), Code::InvalidArgument);
                }
            }
        }
        if round == 0 {
            let (managing, token) = Users::enabled(&server).await;
            tokens = vec![String::new(), token, managing.token.clone()];
            users = Some(managing);
        }
    }
    let users = users.unwrap();
    let [_, own, root] = &tokens[..] else { panic!() };
    for (token, why) in [("", EMPTY), (own.as_str(), DENIED), ("x.1", INVALID)] {
        assert_eq!(refused(native.open_session(with(token, OpenSessionRequest::default())).await), why);
        let plain = execute(session, 9, command(Command::Put(put("u"))));
        assert_eq!(refused(native.execute(with(token, plain)).await), why);
        assert_eq!(refused(native.subscribe(with(token, SubscribeRequest::default())).await), why);
        assert_eq!(refused(native.change(with(token, ChangeRequest::default())).await), why);
        assert_eq!(refused(native.move_leader(with(token, MoveLeaderRequest::default())).await), why);
    }
    let query = |key: &str| {
        let query = KvQuery { query: Some(Query::Range(get(key, ""))), ..Default::default() };
        QueryRequest { payload: query.encode_to_vec().into(), serializable: true, group: None }
    };
    assert_eq!(refused(native.query(query("u")).await), EMPTY);
    assert_eq!(refused(native.status(native::StatusRequest::default()).await), EMPTY);
    native.status(with(own, native::StatusRequest::default())).await.unwrap();
    let answered = async |native: &mut NativeClient<Channel>, key| {
        let reply = native.query(with(own, query(key))).await.unwrap().into_inner().reply;
        native::KvAnswer::decode(reply).unwrap().answer.unwrap()
    };
    assert!(matches!(answered(&mut native, "u").await, native::kv_answer::Answer::Range(_)));
    let denied = answered(&mut native, "x").await;
    assert!(matches!(&denied, native::kv_answer::Answer::Error(failure) if failure.code == 7), "{denied:?}");
    // Root may.
    let reply =
        native.execute(with(root, execute(session, 9, command(Command::Put(put("x")))))).await.unwrap();
    let reply = KvReply::decode(reply.into_inner().reply).unwrap().reply;
    assert!(matches!(reply, Some(Reply::Put(_))), "{reply:?}");
    assert_eq!(users.token, *root);
    let guess = post("/etcdserverpb.KV/Guess");
    let answer = call(&http2(&server).await, guess, &framed(&put("x"))).await;
    assert_eq!(answer.grpc_message, "unknown%20method%20Guess%20for%20service%20etcdserverpb.KV");
    // The pages for operators stay open, as with etcd.
    for page in ["health", "metrics"] {
        assert!(page_is_there(&server, page).await, "{page}");
    }
}

async fn page_is_there(server: &Server, page: &str) -> bool {
    let mut stream = tokio::net::TcpStream::connect(server.metrics_addresses()[0]).await.unwrap();
    let request = format!("GET /{page} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.starts_with("HTTP/1.1 200")
}

/// Holds commands back before they are decided.
#[derive(Clone)]
struct Held {
    inner: InMemory,
    holds: Arc<AtomicBool>,
    held: Arc<Notify>,
    goes_on: Arc<Notify>,
}

impl Replica for Held {
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
        if self.holds.swap(false, SeqCst) {
            self.held.notify_one();
            self.goes_on.notified().await;
        }
        self.inner.execute(command).await
    }
}

#[tokio::test]
async fn a_command_that_is_decided_after_a_revocation_is_refused() {
    let (store, config) = with_users(TokenKind::default());
    let (holds, held, goes_on) = Default::default();
    let replica = Held { inner: replica_of(store), holds, held, goes_on };
    let server = serve(&config, replica.clone());
    let (mut users, token) = Users::enabled(&server).await;
    let mut kv = KvClient::new(connect(&server).await);
    kv.put(with(&token, put("u"))).await.unwrap();
    replica.holds.store(true, SeqCst);
    let mut other = kv.clone();
    let early = tokio::spawn({
        let token = token.clone();
        async move {
            other.put(with(&token, put("late"))).await.map(drop).and(other.put(with(&token, put("u"))).await)
        }
    });
    replica.held.notified().await;
    let (role, key, range_end) = ("editor".into(), "u".into(), "v".into());
    let revoke = AuthRoleRevokePermissionRequest { role, key, range_end };
    users.auth.role_revoke_permission(with(&users.token, revoke)).await.unwrap();
    replica.goes_on.notify_one();
    assert_eq!(refused(early.await.unwrap()), OLD);
    // The same token is good for what is permitted now.
    assert_eq!(refused(kv.put(with(&token, put("u"))).await), DENIED);
    // A password that is changed between its check and the command gives no token.
    replica.holds.store(true, SeqCst);
    let mut other = users.auth.clone();
    let early = tokio::spawn(async move {
        other.authenticate(AuthenticateRequest { name: "u".into(), password: "upw".into() }).await
    });
    replica.held.notified().await;
    let change =
        AuthUserChangePasswordRequest { name: "u".into(), password: "new".into(), ..Default::default() };
    users.auth.user_change_password(with(&users.token, change)).await.unwrap();
    replica.goes_on.notify_one();
    assert_eq!(refused(early.await.unwrap()), FAILED);
}

/// What the store tells a server of users reaches it only with the answer to a linearizable read: the replica lags.
#[derive(Debug)]
struct LateFeed {
    feed: Arc<dyn AuthFeed>,
    last: Mutex<Option<(bool, u64, u64)>>,
}

impl AuthFeed for LateFeed {
    fn state(&self, enabled: bool, revision: u64, tokens: u64) {
        *self.last.lock().unwrap() = Some((enabled, revision, tokens));
    }

    fn issued(&self, token: &Token<'_>) {
        self.feed.issued(token);
    }

    fn void(&self, user: Option<&str>) {
        self.feed.void(user);
    }

    fn changed(&self, user: Option<&str>) {
        self.feed.changed(user);
    }
}

#[derive(Clone)]
struct Late {
    inner: InMemory,
    feed: Arc<LateFeed>,
    lags: Arc<AtomicBool>,
}

impl Replica for Late {
    answered_by_inner!(
        limits,
        execute,
        execute_in_session,
        open_session,
        term,
        status,
        group,
        change,
        move_leader
    );

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        let answer = self.inner.query(query, consistency).await;
        if consistency == Consistency::Linearizable && !self.lags.load(SeqCst) {
            let last = *self.feed.last.lock().unwrap();
            last.into_iter()
                .for_each(|(enabled, revision, tokens)| self.feed.feed.state(enabled, revision, tokens));
        }
        answer
    }
}

/// Calls that are judged only when they come wait for what was decided before them.
#[tokio::test]
async fn a_server_that_does_not_know_yet_that_users_count_lets_nobody_in() {
    for call in 0..6 {
        let auth = Auth::new(TokenKind::default(), COST);
        let feed = Arc::new(LateFeed { feed: auth.feed(), last: Mutex::default() });
        let lags = Arc::new(AtomicBool::new(true));
        let store = KvStore::new().authenticating(feed.clone());
        let inner = replica_of(store);
        let server =
            serve(&Config { auth: Some(auth), ..config() }, Late { inner, feed, lags: lags.clone() });
        let mut users = Users::new(&server).await;
        users.add("root", "rootpw").await;
        users.role("root").await;
        users.grant("root", "root").await;
        users.auth.auth_enable(AuthEnableRequest {}).await.unwrap();
        let channel = connect(&server).await;
        let mut cluster = ClusterClient::new(channel.clone());
        // As far as this server knows, nobody needs a token.
        cluster.member_list(MemberListRequest { linearizable: false }).await.unwrap();
        lags.store(false, SeqCst);
        let refusal = match call {
            0 => refused(NativeClient::new(channel).subscribe(SubscribeRequest::default()).await),
            1 => refused(cluster.member_add(MemberAddRequest::default()).await),
            2 => refused(cluster.member_remove(MemberRemoveRequest { id: MEMBER }).await),
            3 => refused(cluster.member_update(MemberUpdateRequest::default()).await),
            4 => refused(cluster.member_promote(MemberPromoteRequest { id: MEMBER }).await),
            _ => refused(KvClient::new(channel).put(put("u")).await),
        };
        assert_eq!(refusal, EMPTY);
    }
}

/// A replica that has executed nothing since it lags, until a read waits for what was decided.
#[derive(Clone)]
struct Behind {
    inner: InMemory,
    before: InMemory,
    lags: Arc<AtomicBool>,
}

impl Replica for Behind {
    answered_by_inner!(limits, execute_in_session, open_session, term, status, group, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        if !self.lags.load(SeqCst) {
            self.before.execute(command.clone()).await?;
        }
        self.inner.execute(command).await
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        if consistency == Consistency::Linearizable {
            self.lags.store(false, SeqCst);
        }
        let answers = if self.lags.load(SeqCst) { &self.before } else { &self.inner };
        answers.query(query, consistency).await
    }
}

/// A signed token may be later than what this server has executed. What was revoked before the token was issued is
/// gone.
#[tokio::test]
async fn a_watch_is_judged_by_a_state_that_its_token_knows() {
    let folder = tempfile::tempdir().unwrap();
    let (store, config) = with_users(signed(&folder, "5m"));
    let (inner, before) = (replica_of(store), replica_of(KvStore::new()));
    let lags = Arc::new(AtomicBool::new(false));
    let server = serve(&config, Behind { inner, before, lags: lags.clone() });
    let (mut users, token) = Users::enabled(&server).await;
    let channel = connect(&server).await;
    let watch = async |token: &str| {
        let create = WatchCreateRequest { key: "u".into(), ..Default::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = stream::iter([request]).chain(stream::pending());
        let mut answers =
            WatchClient::new(channel.clone()).watch(with(token, requests)).await.unwrap().into_inner();
        let created = answers.message().await.unwrap().unwrap();
        assert_eq!((created.created, created.canceled), (true, !created.cancel_reason.is_empty()));
        created.cancel_reason
    };
    assert_eq!(watch(&token).await, "");
    lags.store(true, SeqCst);
    let (role, key, range_end) = ("editor".into(), "u".into(), "v".into());
    let revoke = AuthRoleRevokePermissionRequest { role, key, range_end };
    users.auth.role_revoke_permission(with(&users.token, revoke)).await.unwrap();
    users.token = users.authenticate("root", "rootpw").await.unwrap();
    let later = users.authenticate("u", "upw").await.unwrap();
    lags.store(true, SeqCst);
    let refused = |why: &str| format!("rpc error: code = {why}");
    assert_eq!(watch(&later).await, refused("PermissionDenied desc = etcdserver: permission denied"));
    assert!(!lags.load(SeqCst), "it has waited");
    let old = "InvalidArgument desc = etcdserver: revision of auth store is old";
    assert_eq!(watch(&token).await, refused(old));
    // Nobody is refused for what the server does not know yet.
    lags.store(true, SeqCst);
    users.permit("editor", Type::Read, "u", "v").await;
    let later = users.authenticate("u", "upw").await.unwrap();
    lags.store(true, SeqCst);
    assert_eq!(watch(&later).await, "");
}

/// A replica that lags behind a cluster, until a read waits for what was decided.
#[derive(Clone)]
struct Follower {
    cluster: InMemory,
    inner: InMemory,
    missed: Arc<Mutex<Vec<Bytes>>>,
    lags: Arc<AtomicBool>,
}

impl Replica for Follower {
    answered_by_inner!(limits, execute_in_session, open_session, term, status, group, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        if self.lags.load(SeqCst) {
            self.missed.lock().unwrap().push(command.clone());
        } else {
            self.inner.execute(command.clone()).await?;
        }
        self.cluster.execute(command).await
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        if consistency == Consistency::Linearizable {
            let missed: Vec<_> = self.missed.lock().unwrap().drain(..).collect();
            for command in missed {
                self.inner.execute(command).await?;
            }
            self.lags.store(false, SeqCst);
        }
        self.inner.query(query, consistency).await
    }
}

/// The hash of no password, with this cost.
fn hash_of_nobody(cost: u32) -> String {
    STANDARD.encode(format!("$2b${cost:02}${}", ".".repeat(53)))
}

#[tokio::test]
async fn a_token_that_is_void_changes_no_users_through_a_replica_that_lags() {
    for change in 0..3 {
        let (store, config) = with_users(TokenKind::default());
        let (cluster, inner) = (replica_of(KvStore::new()), replica_of(store));
        let replica = Follower { cluster, inner, missed: Arc::default(), lags: Arc::default() };
        let server = serve(&config, replica.clone());
        let (mut users, _) = Users::enabled(&server).await;
        replica.lags.store(true, SeqCst);
        // Another member changes the password of root. The tokens of root are void from here on.
        let (name, hashed_password) = ("root".to_owned(), hash_of_nobody(4));
        let new = AuthUserChangePasswordRequest { name, hashed_password, ..Default::default() };
        let command = Command::Auth(KvAuthChange { change: Some(Change::UserChangePassword(new)) });
        let command = KvCommand { command: Some(command), of_member: true, ..KvCommand::default() };
        let reply = replica.execute(command.encode_to_vec().into()).await.unwrap();
        assert!(matches!(KvReply::decode(reply).unwrap().reply, Some(Reply::Auth(_))));
        let token = users.token.clone();
        let outcome = match change {
            0 => {
                let add =
                    AuthUserAddRequest { name: "mine".into(), password: "pw".into(), ..Default::default() };
                users.auth.user_add(with(&token, add)).await.map(drop)
            }
            1 => users.auth.auth_disable(with(&token, AuthDisableRequest {})).await.map(drop),
            _ => {
                let compact = CompactionRequest { revision: 1, physical: false };
                KvClient::new(connect(&server).await).compact(with(&token, compact)).await.map(drop)
            }
        };
        assert_eq!(refused(outcome), INVALID, "{change}");
    }
}

/// Each cost more doubles the time of a login.
#[tokio::test]
async fn a_hash_that_would_take_days_is_refused() {
    let server = server();
    let (mut users, _) = Users::enabled(&server).await;
    let mut change = async |cost| {
        let hashed_password = hash_of_nobody(cost);
        let change =
            AuthUserChangePasswordRequest { name: "u".into(), hashed_password, ..Default::default() };
        users.auth.user_change_password(with(&users.token, change)).await.map(drop)
    };
    change(12).await.unwrap();
    let refusal = refused(change(31).await);
    assert!(refusal.starts_with("InvalidArgument: synod: the hash has the cost 31"), "{refusal}");
}

/// Posts JSON, and reads the answer until the connection ends.
async fn post_json(server: &Server, path: &str, headers: &str, body: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    let len = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {len}\r\n\r\n"
    );
    // The server may answer before it has read all.
    let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_body_of_a_stranger_is_not_translated_where_users_count() {
    let server = server();
    let (_users, token) = Users::enabled(&server).await;
    let own = format!("authorization: {token}\r\n");
    let unknown = "authorization: abc.1\r\n";
    // It is no JSON, which would show if it were looked at.
    let of = async |path: &str, headers: &str, body: &str| post_json(&server, path, headers, body).await;
    assert!(of("/v3/kv/txn", "", "{no}").await.contains("user name is empty"));
    assert!(of("/v3/kv/txn", unknown, "{no}").await.contains("invalid auth token"));
    assert!(of("/v3/lock/lock", "", "{no}").await.contains("user name is empty"));
    assert!(of("/v3/kv/txn", &own, "{no}").await.contains("key must be a string"));
    // A client that logs in is no user yet. A name and a password are no large body.
    let login = |name: &str| format!(r#"{{"name": "{name}", "password": "upw"}}"#);
    assert!(of("/v3/auth/authenticate", "", &login("u")).await.contains("\"token\""));
    let long = of("/v3/auth/authenticate", "", &login(&"u".repeat(9_000))).await;
    assert!(long.contains("a body has 8192 bytes at most"), "{long}");
    assert!(of("/v3/auth/status", "", "{}").await.contains("\"enabled\":true"));
}

/// A stream that fails before its first message has the code of HTTP, and its body is the line with which it would end.
#[tokio::test]
async fn refused_streams_have_the_code_of_http_and_the_shape_of_their_last_line() {
    let server = server();
    let (_users, token) = Users::enabled(&server).await;
    let own = format!("authorization: {token}\r\n");
    let calls = [
        ("maintenance/snapshot", "{}"),
        ("kv/rangestream", r#"{"key": "YQ=="}"#),
        ("lease/keepalive", r#"{"ID": "5"}"#),
    ];
    let line =
        |code: i32, text: &str| format!("\r\n\r\n{{\"error\":{{\"code\":{code},\"message\":\"{text}\"}}}}\n");
    for (path, body) in calls {
        let told = post_json(&server, &format!("/v3/{path}"), "", body).await;
        assert!(told.starts_with("HTTP/1.1 400"), "{path}: {told}");
        assert!(told.ends_with(&line(3, "etcdserver: user name is empty")), "{path}: {told}");
    }
    let told = post_json(&server, "/v3/kv/rangestream", &own, r#"{"key": "eA=="}"#).await;
    assert!(told.starts_with("HTTP/1.1 403"), "{told}");
    assert!(told.ends_with(&line(7, "etcdserver: permission denied")), "{told}");
    // No stream has begun.
    let told = post_json(&server, "/v3/kv/rangestream", &own, "{no}").await;
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("\"error\":\"key must be"), "{told}");
}

/// A change of users or roles is no reason to lose a place in a queue.
#[tokio::test]
async fn who_waits_for_a_lock_keeps_its_place_when_users_change() {
    let server = server();
    let (mut users, token) = Users::enabled(&server).await;
    let channel = connect(&server).await;
    let mut leases = LeaseClient::new(channel.clone());
    for id in [1, 2] {
        leases.lease_grant(with(&token, LeaseGrantRequest { ttl: 60, id })).await.unwrap();
    }
    let mut locks = LockClient::new(channel.clone());
    let held = locks.lock(with(&token, LockRequest { name: "u".into(), lease: 1 })).await.unwrap();
    let (mut other, asked) = (locks.clone(), with(&token, LockRequest { name: "u".into(), lease: 2 }));
    let waiting = tokio::spawn(async move { other.lock(asked).await });
    let mut kv = KvClient::new(channel);
    while kv.range(with(&token, get("u/", "u0"))).await.unwrap().into_inner().count < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    users.add("another", "pw").await;
    users.role("another").await;
    locks.unlock(with(&token, UnlockRequest { key: held.into_inner().key })).await.unwrap();
    let locked = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it has its turn");
    assert_eq!(locked.unwrap().unwrap().into_inner().key, "u/2");
    // Nobody without a token gets in line.
    let nobody = locks.lock(LockRequest { name: "u".into(), lease: 2 }).await;
    assert_eq!(refused(nobody), "Unknown: etcdserver: user name is empty");
    let stranger = locks.lock(with("no.token", LockRequest { name: "u".into(), lease: 2 })).await;
    assert_eq!(refused(stranger), "Unknown: etcdserver: invalid auth token");
}

#[tokio::test]
async fn signed_tokens_say_who_it_is_until_users_change() {
    let folder = tempfile::tempdir().unwrap();
    let (store, config) = with_users(signed(&folder, "5m"));
    let server = serve(&config, replica_of(store));
    let (mut users, token) = Users::enabled(&server).await;
    let mut kv = KvClient::new(connect(&server).await);
    kv.put(with(&token, put("u"))).await.unwrap();
    assert_eq!(refused(kv.put(with(&token, put("x"))).await), DENIED);
    let mut forged = token.clone().into_bytes();
    let last = forged.len() - 2;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    assert_eq!(refused(kv.put(with(&String::from_utf8(forged).unwrap(), put("u"))).await), INVALID);
    // Its revision is old, and the client gets another.
    users.role("other").await;
    assert_eq!(refused(kv.put(with(&token, put("u"))).await), OLD);
    let token = users.authenticate("u", "upw").await.unwrap();
    kv.put(with(&token, put("u"))).await.unwrap();
    assert_eq!(token.split('.').count(), 3);
    // They end.
    let (store, config) = with_users(signed(&folder, "1s"));
    let server = serve(&config, replica_of(store));
    let (_, token) = Users::enabled(&server).await;
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let mut kv = KvClient::new(connect(&server).await);
    assert_eq!(refused(kv.put(with(&token, put("u"))).await), INVALID);
}
