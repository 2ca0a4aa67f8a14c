//! The etcd client when endpoints fail.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::common::{Fault, Pair};
use synod_client::{
    Client, Code, Config, Error,
    api::{
        AlarmMember, AlarmType, AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest,
        AuthUserChangePasswordRequest, AuthUserGrantRoleRequest, AuthenticateRequest, CompactionRequest,
        DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
        auth_client::AuthClient, request_op::Request,
    },
    authpb::permission::Type,
};
use synod_kv::KvStore;
use synod_server::{
    Auth, Config as ServerConfig, InMemory, Registry, RequestError, Server, TokenKind, Watches,
};
use synod_wire::ClusterId;

fn put() -> PutRequest {
    PutRequest { key: "k".into(), value: "v".into(), ..Default::default() }
}

fn get() -> RangeRequest {
    RangeRequest { key: "k".into(), ..Default::default() }
}

/// How many times the key was written.
async fn version(client: &Client) -> i64 {
    client.get(get()).await.unwrap().kvs.first().map_or(0, |kv| kv.version)
}

#[tokio::test]
async fn every_request_is_answered() {
    let pair = Pair::start();
    let client = Client::new(pair.config()).unwrap();
    assert_eq!(client.put(put()).await.unwrap().header.unwrap().revision, 2);
    assert_eq!(client.get(get()).await.unwrap().kvs[0].value, "v");
    let ops = vec![RequestOp { request: Some(Request::RequestPut(put())) }];
    assert!(client.txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap().succeeded);
    client.compact(CompactionRequest { revision: 2, physical: false }).await.unwrap();
    let delete = DeleteRangeRequest { key: "k".into(), ..Default::default() };
    assert_eq!(client.delete(delete).await.unwrap().deleted, 1);
    assert_eq!(client.member_list(true).await.unwrap().members[0].name, "one");
    for status in client.status().await {
        assert_eq!(status.unwrap().raft_applied_index, 4);
    }
    for status in client.native_status().await {
        assert_eq!(status.unwrap().name, "one");
    }
    assert_eq!(pair.replicas[1].seen(), 2, "the second endpoint is asked for its status only");
}

#[tokio::test]
async fn a_write_moves_on_from_an_endpoint_that_is_down() {
    let mut pair = Pair::start();
    let client = Client::new(pair.config()).unwrap();
    client.put(put()).await.unwrap();
    pair.stop(0).await;
    client.put(put()).await.unwrap();
    assert_eq!(version(&client).await, 2);
    let status = client.status().await;
    assert!(matches!(status[0], Err(Error::Unavailable { .. })), "{status:?}");
    assert!(status[1].is_ok());
}

#[tokio::test]
async fn a_write_that_was_not_proposed_is_sent_again() {
    let pair = Pair::start();
    let client = Client::new(pair.config()).unwrap();
    for refusal in [RequestError::NoLeader, RequestError::Overloaded] {
        pair.replicas[0].set(Fault::Refuse(refusal));
        pair.replicas[1].set(Fault::Refuse(refusal));
        let recover = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            pair.replicas[1].set(Fault::None);
        };
        let (done, ()) = tokio::join!(client.put(put()), recover);
        done.unwrap();
        pair.replicas[0].set(Fault::None);
    }
    assert_eq!(version(&client).await, 2);
}

#[tokio::test]
async fn a_write_in_doubt_is_sent_once() {
    let pair = Pair::start();
    let client =
        Client::new(pair.config_with(|config| config.request_timeout = Duration::from_millis(500))).unwrap();
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    let error = client.put(put()).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { attempts: 1, .. }) && error.may_have_executed(), "{error}");
    assert_eq!(version(&client).await, 1);

    pair.replicas[1].set(Fault::Hang);
    let began = Instant::now();
    let error = client.put(put()).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { attempts: 1, .. }), "{error}");
    assert!(
        began.elapsed() >= Duration::from_millis(400),
        "all the time there is, since it cannot be sent again"
    );
    pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
    assert_eq!(version(&client).await, 2);
}

#[tokio::test]
async fn a_write_is_sent_twice_if_the_client_asks_for_it() {
    let pair = Pair::start();
    let client = Client::new(pair.config_with(|config| config.retry_writes = true)).unwrap();
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    client.put(put()).await.unwrap();
    assert_eq!(version(&client).await, 2);
}

/// The second endpoint refuses, but cannot know whether the first attempt was executed.
#[tokio::test]
async fn a_refusal_does_not_answer_for_an_earlier_attempt() {
    let pair = Pair::start();
    let client = Client::new(pair.config_with(|config| config.retry_writes = true)).unwrap();
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    pair.replicas[1].set(Fault::Refuse(RequestError::TooLarge));
    let error = client.put(put()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::InvalidArgument));
    assert!(error.may_have_executed(), "{error}");
    assert!(error.to_string().contains("an earlier attempt got no answer"), "{error}");
    // A read has no effect that could be in doubt.
    let client = Client::new(pair.config()).unwrap();
    let error = client.get(get()).await.unwrap_err();
    assert_eq!((error.code(), error.may_have_executed()), (Some(Code::InvalidArgument), false));
    pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
    assert_eq!(version(&client).await, 1);
}

#[tokio::test]
async fn a_read_is_sent_again_after_any_failure() {
    let pair = Pair::start();
    let client = Client::new(pair.config()).unwrap();
    client.put(put()).await.unwrap();
    for fault in [Fault::Hang, Fault::LoseAnswer(RequestError::Stopping)] {
        let client = Client::new(pair.config()).unwrap();
        pair.replicas[0].set(fault);
        let before = pair.replicas[1].seen();
        assert_eq!(client.get(get()).await.unwrap().kvs[0].value, "v");
        assert_eq!(pair.replicas[1].seen(), before + 1);
        // The client stays with the endpoint that answered.
        client.get(get()).await.unwrap();
        assert_eq!(pair.replicas[1].seen(), before + 2);
    }
}

#[tokio::test]
async fn a_refusal_is_final() {
    let pair = Pair::start();
    let client = Client::new(pair.config()).unwrap();
    let error = client.put(PutRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::InvalidArgument));
    assert!(!error.may_have_executed());
    assert!(error.to_string().contains("etcdserver: key is not provided"), "{error}");
    let error = client.get(RangeRequest { revision: 99, ..get() }).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::OutOfRange));
    assert_eq!((pair.replicas[0].seen(), pair.replicas[1].seen()), (1, 0));
}

#[tokio::test]
async fn without_an_answer_the_client_says_so_in_time() {
    let mut pair = Pair::start();
    let client =
        Client::new(pair.config_with(|config| config.request_timeout = Duration::from_millis(300))).unwrap();
    pair.stop(0).await;
    pair.stop(1).await;
    let began = Instant::now();
    let error = client.put(put()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && !error.may_have_executed(), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn give_up_unreachable_reports_refused_connections_at_once() {
    let mut pair = Pair::start();
    pair.stop(0).await;
    pair.stop(1).await;
    let config = pair.config_with(|config| {
        (config.give_up_unreachable, config.request_timeout) = (true, Duration::from_secs(60));
    });
    let error = Client::new(config).unwrap().get(get()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { attempts: 2, reached: false, .. }), "{error:?}");
}

/// A process that is stopped takes connections, since its machine does.
#[tokio::test]
async fn an_endpoint_that_hangs_is_not_waited_for() {
    let pair = Pair::start();
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = hangs.local_addr().unwrap().to_string();
    let mut config = pair.config_with(|config| config.endpoints.insert(0, hung.clone()));
    config.request_timeout = Duration::from_secs(20);
    let client = Client::new(config).unwrap();
    let began = Instant::now();
    client.put(put()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "not until the request is given up");
    assert_eq!(pair.replicas[0].seen() + pair.replicas[1].seen(), 1);
    // What is asked of each is not waited for either.
    let began = Instant::now();
    let answers = client.native_status().await;
    assert!(began.elapsed() < Duration::from_secs(10), "not until the request is given up");
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, true]);
}

/// As behind a proxy whose server is gone. Nobody knows what became of a write that it took.
#[tokio::test]
async fn an_endpoint_that_breaks_connections_is_not_used() {
    let pair = Pair::start();
    let breaks = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = breaks.local_addr().unwrap().to_string();
    std::thread::spawn(move || breaks.incoming().for_each(drop));
    let client = Client::new(pair.config_with(|config| config.endpoints.insert(0, address))).unwrap();
    client.put(put()).await.unwrap();
    assert_eq!(pair.replicas[0].seen() + pair.replicas[1].seen(), 1);
}

/// A replica that is cut off from the others answers, and knows no leader.
#[tokio::test]
async fn an_endpoint_with_a_leader_is_used() {
    let pair = Pair::start();
    pair.replicas[0].knows_leader(false);
    let config = pair.config_with(|config| config.request_timeout = Duration::from_secs(3));
    let client = Client::new(config).unwrap();
    client.put(put()).await.unwrap();
    assert_eq!((pair.replicas[0].seen(), pair.replicas[1].seen()), (0, 1));
    // Then that one is cut off, and refuses after two seconds.
    pair.replicas[1].set(Fault::RefuseLate(RequestError::NoLeader));
    pair.replicas[1].knows_leader(false);
    pair.replicas[0].knows_leader(true);
    client.put(put()).await.unwrap();
    assert_eq!(version(&client).await, 2);
}

/// The refusal took as long as the server looked for a leader. There is no time for a second such refusal.
#[tokio::test]
async fn a_refusal_that_took_long_is_passed_on_rather_than_asked_for_again() {
    let pair = Pair::start();
    let client =
        Client::new(pair.config_with(|config| config.request_timeout = Duration::from_secs(3))).unwrap();
    for replica in &pair.replicas {
        replica.set(Fault::RefuseLate(RequestError::NoLeader));
        replica.knows_leader(false);
    }
    let error = client.put(put()).await.unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { reached: true, .. }) && !error.may_have_executed(),
        "{error}"
    );
    assert!(error.to_string().contains("no leader"), "{error}");
}

#[tokio::test]
async fn a_renewal_is_sent_again_and_says_that_it_may_have_been_executed() {
    let pair = Pair::start();
    let client =
        Client::new(pair.config_with(|config| config.request_timeout = Duration::from_millis(300))).unwrap();
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    assert_eq!(client.lease_keep_alive(1).await.unwrap().ttl, 0);
    pair.replicas[1].set(Fault::LoseAnswer(RequestError::Timeout));
    let error = client.lease_keep_alive(1).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { attempts: 2.., .. }) && error.may_have_executed(), "{error:?}");
}

/// The server refuses what it reads only after it has begun to answer. To ask again would bring the same refusal.
#[tokio::test]
async fn a_watch_that_is_refused_ends() {
    let watches = Watches::new();
    let store = KvStore::new().feeding(watches.feed());
    let replica = InMemory::start(store, ClusterId(1), crate::common::member()).unwrap();
    let config = ServerConfig {
        client_addresses: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()],
        watches: Some(watches),
        ..ServerConfig::default()
    };
    let server = Server::start(&config, replica, Registry::default()).unwrap();
    let client = Client::new(Config::new(&[server.client_addresses()[0].to_string()])).unwrap();
    let mut watch = client.watch(WatchCreateRequest { key: "k".into(), ..Default::default() });
    assert!(watch.next().await.unwrap().unwrap().created);
    client.put(put()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().events.len(), 1);
    let key = vec![0; 4 << 20].into();
    let mut watch = client.watch(WatchCreateRequest { key, ..Default::default() });
    let error =
        tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("it ends").unwrap_err();
    assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
}

/// A server whose users may count.
fn with_users() -> Server {
    let (auth, watches) = (Auth::new(TokenKind::default(), 4), Watches::new());
    let store = KvStore::new().feeding(watches.feed()).authenticating(auth.feed());
    let replica = InMemory::start(store, ClusterId(1), crate::common::member()).unwrap();
    let config = ServerConfig {
        client_addresses: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()],
        watches: Some(watches),
        auth: Some(auth),
        ..ServerConfig::default()
    };
    Server::start(&config, replica, Registry::default()).unwrap()
}

#[tokio::test]
async fn users_and_roles_are_managed() {
    let server = with_users();
    let of = |user: Option<(&str, &str)>| {
        let mut config = Config::new([server.client_addresses()[0].to_string()]);
        config.user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        Client::new(config).unwrap()
    };
    let (root, alice) = (of(Some(("root", "pw"))), of(Some(("alice", "hers"))));
    root.user_add("root", Some("pw")).await.unwrap();
    root.user_grant_role("root", "root").await.unwrap();
    root.user_add("alice", Some("hers")).await.unwrap();
    root.user_add("of a certificate", None).await.unwrap();
    root.role_add("reader").await.unwrap();
    root.role_grant("reader", Type::Read, "k", "l").await.unwrap();
    root.user_grant_role("alice", "reader").await.unwrap();
    assert!(!root.auth_status().await.unwrap().enabled);
    root.auth_enable().await.unwrap();
    assert!(root.auth_status().await.unwrap().enabled);
    assert_eq!(root.users().await.unwrap(), ["alice", "of a certificate", "root"]);
    assert_eq!(root.user_roles("alice").await.unwrap(), ["reader"]);
    let permissions = root.role_get("reader").await.unwrap().perm;
    assert_eq!((permissions.len(), &permissions[0].range_end[..]), (1, &b"l"[..]));
    root.put(put()).await.unwrap();
    assert_eq!(alice.get(get()).await.unwrap().kvs.len(), 1);
    let denied = |error: Error| assert_eq!(error.code(), Some(Code::PermissionDenied), "{error}");
    denied(alice.put(put()).await.unwrap_err());
    denied(alice.user_delete("root").await.unwrap_err());
    root.role_revoke("reader", "k", "l").await.unwrap();
    denied(alice.get(get()).await.unwrap_err());
    root.user_change_password("alice", "new").await.unwrap();
    let alice = of(Some(("alice", "new")));
    denied(alice.get(get()).await.unwrap_err());
    root.user_revoke_role("alice", "reader").await.unwrap();
    root.role_delete("reader").await.unwrap();
    assert!(!root.roles().await.unwrap().contains(&"reader".to_owned()));
    root.user_delete("alice").await.unwrap();
    root.auth_disable().await.unwrap();
    assert_eq!(of(None).users().await.unwrap(), ["of a certificate", "root"]);
}

#[tokio::test]
async fn operators_ask_for_alarms_hashes_and_snapshots() {
    let pair = Pair::start();
    let client = Client::new(pair.config()).unwrap();
    client.put(put()).await.unwrap();
    let raised = AlarmMember { member_id: 3, alarm: AlarmType::Nospace.into() };
    assert_eq!(client.raise(3, AlarmType::Nospace).await.unwrap(), [raised]);
    assert_eq!(client.alarms().await.unwrap(), [raised]);
    assert_eq!(client.put(put()).await.unwrap_err().code(), Some(Code::ResourceExhausted));
    assert_eq!(client.disarm(0, AlarmType::Nospace).await.unwrap(), []);
    assert_eq!(client.disarm(3, AlarmType::Nospace).await.unwrap(), [raised]);
    let hashes: Vec<_> = client.hash_kv(0).await.into_iter().map(|hash| hash.unwrap().hash).collect();
    assert_eq!(hashes[0], hashes[1]);
    client.defragment(1).await.unwrap();
    let mut snapshot = client.snapshot(1).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = snapshot.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    // A page of the database begins with its number, and at its 17th byte stands what bbolt calls magic.
    assert_eq!((bytes.len() % 512, &bytes[16..20]), (32, &0xED0C_DAED_u32.to_le_bytes()[..]));
    for error in [client.defragment(2).await.unwrap_err(), client.snapshot(2).await.unwrap_err()] {
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
}

/// The client authenticates by itself, and again when its token is void.
#[tokio::test]
async fn a_client_of_a_user_has_a_token() {
    let server = with_users();
    let address = server.client_addresses()[0].to_string();
    let client = |user: Option<(&str, &str)>| {
        let mut config = Config::new([address.clone()]);
        config.user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        Client::new(config).unwrap()
    };
    // A user whom the server does not ask for is nobody.
    let root = client(Some(("root", "pw")));
    root.put(put()).await.unwrap();
    let url = format!("http://{address}");
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut users = AuthClient::new(channel);
    let user =
        AuthUserAddRequest { name: "root".into(), password: "pw".into(), ..AuthUserAddRequest::default() };
    users.user_add(user).await.unwrap();
    users.role_add(AuthRoleAddRequest { name: "root".into() }).await.unwrap();
    let (name, role) = ("root".to_owned(), "root".to_owned());
    users.user_grant_role(AuthUserGrantRoleRequest { user: name.clone(), role }).await.unwrap();
    users.auth_enable(AuthEnableRequest {}).await.unwrap();
    root.put(put()).await.unwrap();
    root.status().await.remove(0).unwrap();
    let mut watch = root.watch(WatchCreateRequest { key: put().key, ..Default::default() });
    assert!(watch.next().await.unwrap().unwrap().created);
    let refused = |error: Error| match error {
        Error::Refused { message, .. } => message,
        other => panic!("{other:?}"),
    };
    let wrong = client(Some(("root", "other"))).put(put()).await.unwrap_err();
    assert_eq!(refused(wrong), "etcdserver: authentication failed, invalid user ID or password");
    assert_eq!(refused(client(None).put(put()).await.unwrap_err()), "etcdserver: user name is empty");
    // A new password makes the tokens void, even if it is the old one.
    let token = users.authenticate(AuthenticateRequest { name: name.clone(), password: "pw".into() }).await;
    let mut change = tonic::Request::new(AuthUserChangePasswordRequest {
        name,
        password: "pw".into(),
        ..AuthUserChangePasswordRequest::default()
    });
    change.metadata_mut().insert("token", token.unwrap().into_inner().token.parse().unwrap());
    users.user_change_password(change).await.unwrap();
    let mut watch = root.watch(WatchCreateRequest { key: put().key, ..Default::default() });
    let created = watch.next().await.unwrap().unwrap();
    assert!(created.created && !created.canceled, "{created:?}");
    root.put(put()).await.unwrap();
    root.status().await.remove(0).unwrap();
    assert!(!format!("{root:?}").contains("pw"));
}
