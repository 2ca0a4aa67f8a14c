//! Calls that are judged when they begin, and last: what becomes of them when their users lose something.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::users::{Users, put, with, with_users};
use crate::common::{connect, replica_of, serve};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use synod_api::{
    authpb::permission::Type,
    etcdserverpb::{
        AuthRoleRevokePermissionRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
        AuthUserRevokeRoleRequest, LeaseGrantRequest, PutRequest, WatchCreateRequest, WatchRequest,
        WatchResponse, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    synod::v1::{
        DecidedBatch, KvCommand, SubscribeRequest, SubscribeResponse, kv_auth_change::Change,
        kv_command::Command, native_client::NativeClient,
    },
    v3electionpb::{CampaignRequest, LeaderRequest, election_client::ElectionClient},
};
use synod_server::{
    Answer, Consistency, InMemory, Ordered, Point, Replica, RequestError, Server, Start, SubscribeError,
    Subscription, TokenKind,
};
use synod_wire::{BatchBuilder, GroupId, SessionId, Slot};
use tokio::{sync::Notify, time::timeout};
use tonic::{Code, Status, Streaming};

const WAIT_MAX: Duration = Duration::from_secs(20);

/// A replica with a log. It may lag: then commands are decided, and executed with the next linearizable read.
#[derive(Clone)]
struct Logged {
    inner: InMemory,
    log: Arc<Mutex<Vec<Bytes>>>,
    grown: Arc<Notify>,
    lags: Arc<AtomicBool>,
    catches_up: Arc<Notify>,
}

impl Logged {
    fn start() -> (Logged, Server) {
        let (store, config) = with_users(TokenKind::default());
        let (log, grown, lags, catches_up) = Default::default();
        let logged = Logged { inner: replica_of(store), log, grown, lags, catches_up };
        let server = serve(&config, logged.clone());
        (logged, server)
    }
}

impl Replica for Logged {
    answered_by_inner!(limits, execute_in_session, open_session, term, status, group, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.log.lock().unwrap().push(command.clone());
        self.grown.notify_waiters();
        if self.lags.load(SeqCst) {
            self.catches_up.notified().await;
        }
        self.inner.execute(command).await
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        if consistency == Consistency::Linearizable && self.lags.swap(false, SeqCst) {
            self.catches_up.notify_one();
            // What waits is executed meanwhile.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.inner.query(query, consistency).await
    }

    async fn subscribe(
        &self,
        _: Vec<GroupId>,
        start: Start,
    ) -> Result<Box<dyn Subscription>, SubscribeError> {
        let at = if start == Start::Beginning { 0 } else { self.log.lock().unwrap().len() };
        Ok(Box::new(Following { logged: self.clone(), at }))
    }
}

struct Following {
    logged: Logged,
    at: usize,
}

impl Subscription for Following {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Ordered, SubscribeError>> + Send + '_>> {
        Box::pin(async move {
            loop {
                let (logged, grown) = (self.logged.clone(), self.logged.grown.clone());
                let mut grown = std::pin::pin!(grown.notified());
                grown.as_mut().enable();
                if let Some(next) = self.try_next() {
                    drop(logged);
                    return Ok(next);
                }
                grown.await;
            }
        })
    }

    fn try_next(&mut self) -> Option<Ordered> {
        let command = self.logged.log.lock().unwrap().get(self.at).cloned()?;
        self.at += 1;
        let mut batch = BatchBuilder::new();
        batch.push(SessionId(1), self.at as u64, 1, &command);
        let slot = Slot(self.at as u64);
        Some(Ordered::of(GroupId(0), slot, batch.finish()))
    }

    fn remove(&mut self, _: GroupId) {}

    fn points(&self) -> Vec<Point> {
        vec![Point::after(GroupId(0), Slot(self.at as u64))]
    }

    fn lacks_leader(&self) -> bool {
        false
    }
}

async fn subscribed(server: &Server, token: &str) -> Streaming<SubscribeResponse> {
    let request = with(token, SubscribeRequest::default());
    NativeClient::new(connect(server).await).subscribe(request).await.unwrap().into_inner()
}

/// What comes until a call ends, and how it does.
async fn rest<T>(stream: &mut Streaming<T>) -> (Vec<T>, Status) {
    let mut all = Vec::new();
    timeout(WAIT_MAX, async {
        loop {
            match stream.message().await {
                Ok(Some(message)) => all.push(message),
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    })
    .await
    .map(|status| (all, status))
    .expect("it ends")
}

fn commands(messages: Vec<SubscribeResponse>) -> Vec<Command> {
    let batches = messages.into_iter().flat_map(|message| message.batches);
    let commands = batches.flat_map(|DecidedBatch { commands, .. }| commands);
    commands.filter_map(|command| KvCommand::decode(command.payload).unwrap().command).collect()
}

fn is_put(command: &Command, wanted: &str) -> bool {
    matches!(command, Command::Put(put) if put.key == wanted.as_bytes())
}

async fn put_by(server: &Server, token: &str, key: &str) {
    KvClient::new(connect(server).await).put(with(token, put(key))).await.unwrap();
}

#[track_caller]
fn has_to_come_again(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("what this user may do has changed"), "{status:?}");
}

/// Otherwise a stranger who subscribes early is shown all tokens, and what others put.
#[tokio::test]
async fn a_subscription_of_a_stranger_ends_when_users_begin_to_count() {
    for lags in [false, true] {
        let (logged, server) = Logged::start();
        let mut stranger = subscribed(&server, "").await;
        put_by(&server, "", "u/early").await;
        let mut users = Users::prepared(&server).await;
        // The replica has not executed it yet when its log shows it.
        logged.lags.store(lags, SeqCst);
        users.enable().await;
        put_by(&server, &users.token, "u/late").await;
        let (messages, status) = rest(&mut stranger).await;
        has_to_come_again(&status);
        let commands = commands(messages);
        assert!(commands.iter().any(|command| is_put(command, "u/early")));
        assert!(!commands.iter().any(|command| is_put(command, "u/late")), "{commands:?}");
    }
}

#[tokio::test]
async fn a_subscription_of_root_goes_on_until_root_loses_the_right() {
    let (_logged, server) = Logged::start();
    let (mut users, _) = Users::enabled(&server).await;
    users.add("other", "pw").await;
    users.grant("other", "root").await;
    let other = users.authenticate("other", "pw").await.unwrap();
    let mut followed = subscribed(&server, &other).await;
    // A change that takes nothing from its user.
    let revoke = |role: &str, key: &str| AuthRoleRevokePermissionRequest {
        role: role.into(),
        key: key.to_owned().into(),
        range_end: "v".into(),
    };
    users.auth.role_revoke_permission(with(&users.token, revoke("editor", "u"))).await.unwrap();
    put_by(&server, &users.token, "between").await;
    let mut before = Vec::new();
    while !before.iter().any(|command| is_put(command, "between")) {
        let message = timeout(WAIT_MAX, followed.message()).await.expect("it goes on").unwrap().unwrap();
        before.extend(commands(vec![message]));
    }
    let revoke = AuthUserRevokeRoleRequest { name: "other".into(), role: "root".into() };
    users.auth.user_revoke_role(with(&users.token, revoke)).await.unwrap();
    put_by(&server, &users.token, "late").await;
    let (messages, status) = rest(&mut followed).await;
    has_to_come_again(&status);
    assert!(!commands(messages).iter().any(|command| is_put(command, "late")));
}

/// For root too: a reader of a token is its user.
#[tokio::test]
async fn a_subscription_shows_no_token_and_no_hash() {
    let (logged, server) = Logged::start();
    let (mut users, token) = Users::enabled(&server).await;
    let change =
        AuthUserChangePasswordRequest { name: "u".into(), password: "new".into(), ..Default::default() };
    users.auth.user_change_password(with(&users.token, change)).await.unwrap();
    let request = SubscribeRequest { start: 1, ..Default::default() };
    let mut followed = NativeClient::new(connect(&server).await)
        .subscribe(with(&users.token, request))
        .await
        .unwrap()
        .into_inner();
    let (mut shown, decided) = (Vec::new(), logged.log.lock().unwrap().len());
    while shown.len() < decided {
        shown.extend(commands(vec![followed.message().await.unwrap().unwrap()]));
    }
    let mut seen = [0; 3];
    for command in shown {
        match command {
            Command::Auth(change) => match change.change.unwrap() {
                Change::Authenticate(request) => {
                    seen[0] += 1;
                    assert!(request.secret.is_empty() && !request.name.is_empty());
                }
                Change::UserAdd(request) => {
                    seen[1] += 1;
                    assert!(request.hashed_password.is_empty() && request.password.is_empty());
                }
                Change::UserChangePassword(request) => {
                    seen[2] += 1;
                    assert!(request.hashed_password.is_empty() && request.password.is_empty());
                }
                _ => {}
            },
            other => panic!("nothing else was done: {other:?}"),
        }
    }
    assert_eq!(seen, [2, 2, 1]);
    assert!(token.contains('.'));
}

fn watch_of(key: &str, end: &str) -> WatchRequest {
    let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
    let create = WatchCreateRequest { key, range_end, ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

async fn watched(server: &Server, token: &str) -> Streaming<WatchResponse> {
    let requests = stream::iter([watch_of("u", "v")]).chain(stream::pending());
    let watch = WatchClient::new(connect(server).await).watch(with(token, requests)).await;
    let mut watch = watch.unwrap().into_inner();
    let created = watch.message().await.unwrap().unwrap();
    assert!(created.created && !created.canceled, "{created:?}");
    watch
}

fn keys(messages: &[WatchResponse]) -> Vec<String> {
    let events = messages.iter().flat_map(|message| &message.events);
    let key = |event: &synod_api::mvccpb::Event| event.kv.as_ref().unwrap().key.to_vec();
    events.map(|event| String::from_utf8(key(event)).unwrap()).collect()
}

#[tokio::test]
async fn a_watch_of_a_stranger_ends_when_users_begin_to_count() {
    let (_logged, server) = Logged::start();
    let mut stranger = watched(&server, "").await;
    put_by(&server, "", "u/early").await;
    let mut users = Users::prepared(&server).await;
    users.enable().await;
    put_by(&server, &users.token, "u/late").await;
    let (messages, status) = rest(&mut stranger).await;
    has_to_come_again(&status);
    assert_eq!(keys(&messages), ["u/early"]);
}

#[tokio::test]
async fn a_watch_ends_when_its_user_loses_something_and_not_when_others_do() {
    for loss in 0..4 {
        let (_logged, server) = Logged::start();
        let (mut users, token) = Users::enabled(&server).await;
        users.add("other", "pw").await;
        users.role("others").await;
        users.permit("others", Type::Read, "u", "v").await;
        users.grant("other", "others").await;
        let other = users.authenticate("other", "pw").await.unwrap();
        let (mut own, mut of_other) = (watched(&server, &token).await, watched(&server, &other).await);
        put_by(&server, &users.token, "u/early").await;
        // What has not been sent when the user loses something is not sent any more, early or late.
        let mut told = Vec::new();
        while keys(&told).is_empty() {
            told.push(timeout(WAIT_MAX, own.message()).await.expect("it is told").unwrap().unwrap());
        }
        assert_eq!(keys(&told), ["u/early"], "{loss}");
        let root = users.token.clone();
        match loss {
            0 => {
                let revoke = AuthRoleRevokePermissionRequest {
                    role: "editor".into(),
                    key: "u".into(),
                    range_end: "v".into(),
                };
                users.auth.role_revoke_permission(with(&root, revoke)).await.map(drop).unwrap();
            }
            1 => {
                let revoke = AuthUserRevokeRoleRequest { name: "u".into(), role: "editor".into() };
                users.auth.user_revoke_role(with(&root, revoke)).await.map(drop).unwrap();
            }
            2 => {
                let delete = AuthUserDeleteRequest { name: "u".into() };
                users.auth.user_delete(with(&root, delete)).await.map(drop).unwrap();
            }
            _ => {
                let (name, password) = ("u".into(), "new".into());
                let change = AuthUserChangePasswordRequest { name, password, ..Default::default() };
                users.auth.user_change_password(with(&root, change)).await.map(drop).unwrap();
            }
        }
        put_by(&server, &root, "u/late").await;
        let (messages, status) = rest(&mut own).await;
        has_to_come_again(&status);
        assert_eq!(keys(&messages), [""; 0], "{loss}");
        let mut all = Vec::new();
        while keys(&all).len() < 2 {
            all.push(timeout(WAIT_MAX, of_other.message()).await.expect("it goes on").unwrap().unwrap());
        }
        assert_eq!(keys(&all), ["u/early", "u/late"]);
    }
}

/// It tells a leader's values as long as that leads, and no longer than its user may read them.
#[tokio::test]
async fn who_observes_an_election_is_judged_again_when_something_is_lost() {
    let (_logged, server) = Logged::start();
    let (mut users, token) = Users::enabled(&server).await;
    let channel = connect(&server).await;
    let mut elections = ElectionClient::new(channel.clone());
    LeaseClient::new(channel.clone())
        .lease_grant(with(&users.token, LeaseGrantRequest { ttl: 60, id: 1 }))
        .await
        .unwrap();
    let campaign = CampaignRequest { name: "u".into(), lease: 1, value: "first".into() };
    elections.campaign(with(&users.token, campaign)).await.unwrap();
    let name: Bytes = "u".into();
    let observe = LeaderRequest { name };
    let mut observed = elections.observe(with(&token, observe)).await.unwrap().into_inner();
    let told = observed.message().await.unwrap().unwrap().kv.unwrap();
    assert_eq!(&told.value[..], b"first");
    let revoke = AuthUserRevokeRoleRequest { name: "u".into(), role: "editor".into() };
    users.auth.user_revoke_role(with(&users.token, revoke)).await.unwrap();
    let value = PutRequest { key: told.key, value: "second".into(), lease: 1, ..Default::default() };
    KvClient::new(channel).put(with(&users.token, value)).await.unwrap();
    let (messages, status) = rest(&mut observed).await;
    assert_eq!(status.message(), "etcdserver: permission denied");
    assert!(messages.is_empty(), "{messages:?}");
}

/// A stranger could fill the log otherwise: what nobody asks for is refused in its slot, but has one.
#[tokio::test]
async fn what_comes_without_a_user_is_not_ordered() {
    let (logged, server) = Logged::start();
    let (_users, _) = Users::enabled(&server).await;
    let channel = connect(&server).await;
    let ordered = || logged.log.lock().unwrap().len();
    let before = ordered();
    let empty = "etcdserver: user name is empty";
    let mut kv = KvClient::new(channel.clone());
    assert_eq!(kv.put(put("u")).await.unwrap_err().message(), empty);
    let delete = synod_api::etcdserverpb::DeleteRangeRequest { key: "u".into(), ..Default::default() };
    assert_eq!(kv.delete_range(delete).await.unwrap_err().message(), empty);
    assert_eq!(kv.txn(synod_api::etcdserverpb::TxnRequest::default()).await.unwrap_err().message(), empty);
    let mut leases = LeaseClient::new(channel.clone());
    let grant = LeaseGrantRequest { ttl: 60, id: 5 };
    assert_eq!(leases.lease_grant(grant).await.unwrap_err().message(), empty);
    let renewals = stream::iter([synod_api::etcdserverpb::LeaseKeepAliveRequest { id: 5 }]);
    let mut renewed = leases.lease_keep_alive(renewals).await.unwrap().into_inner();
    assert_eq!(renewed.message().await.unwrap_err().message(), empty);
    let campaign = CampaignRequest { name: "u".into(), lease: 0, value: "v".into() };
    let campaign = ElectionClient::new(channel).campaign(campaign).await;
    assert_eq!(campaign.unwrap_err().message(), empty);
    let mut users = Users::new(&server).await;
    let add = synod_api::etcdserverpb::AuthUserAddRequest { name: "v".into(), ..Default::default() };
    assert_eq!(users.auth.user_add(add).await.unwrap_err().message(), empty);
    assert_eq!(ordered(), before);
    // Whether users count is no secret.
    let status = users.auth.auth_status(synod_api::etcdserverpb::AuthStatusRequest {}).await;
    assert!(status.unwrap().into_inner().enabled);
}
