//! Attacks on users: a stranger who listens since before users count, and one who keeps others from logging in.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
        AuthenticateRequest, PutRequest, WatchCreateRequest, WatchRequest, auth_client::AuthClient,
        kv_client::KvClient, watch_client::WatchClient, watch_request::RequestUnion,
    },
    synod::v1::{
        KvCommand, SubscribeRequest, kv_auth_change::Change, kv_command::Command, native_client::NativeClient,
    },
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::{Code, Request};

use super::{Scene, cluster::channel, report, wire::Wire};

/// The user for whom honest clients put, once users count.
pub const USER: &str = "root";
pub const PASSWORD: &str = "the probe's";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// What nobody may see who was a stranger when it was put.
const SECRET: &[u8] = b"topsecret";
/// A stranger's calls end within this time after users begin to count.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// An honest user logs in within this time, whatever strangers do.
const LOGIN_WITHIN: Duration = Duration::from_secs(5);
/// Connections of the strangers that send wrong passwords.
const FLOODING: usize = 200;

fn text(error: impl std::fmt::Display) -> String {
    format!("preparing: {error}")
}

/// Makes users count.
async fn enable(address: SocketAddr) -> Result<(), String> {
    let mut auth = AuthClient::new(channel(address));
    let (name, password) = (USER.to_owned(), PASSWORD.to_owned());
    auth.user_add(AuthUserAddRequest { name, password, ..Default::default() }).await.map_err(text)?;
    auth.role_add(AuthRoleAddRequest { name: USER.to_owned() }).await.map_err(text)?;
    let root = AuthUserGrantRoleRequest { user: USER.to_owned(), role: USER.to_owned() };
    auth.user_grant_role(root).await.map_err(text)?;
    auth.auth_enable(AuthEnableRequest {}).await.map(drop).map_err(text)
}

/// A token of the honest user.
pub async fn token(address: SocketAddr) -> Result<String, tonic::Status> {
    let request = AuthenticateRequest { name: USER.to_owned(), password: PASSWORD.to_owned() };
    Ok(AuthClient::new(channel(address)).authenticate(request).await?.into_inner().token)
}

/// What a stranger has seen.
#[derive(Debug, Default)]
struct Seen {
    commands: usize,
    /// Secrets of tokens, and hashes of passwords.
    credentials: usize,
    /// What was put when strangers had no right to see it any more.
    contents: usize,
    ended: usize,
}

fn holds_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

/// Follows everything that a server decides, without a user.
async fn subscribe(address: SocketAddr, seen: &Mutex<Seen>) {
    let seen = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    let subscribed = NativeClient::new(channel(address)).subscribe(SubscribeRequest::default()).await;
    if let Ok(answer) = subscribed {
        let mut stream = answer.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            for command in message.batches.into_iter().flat_map(|batch| batch.commands) {
                let mut seen = seen();
                seen.commands += 1;
                seen.contents += usize::from(holds_secret(&command.payload));
                seen.credentials += usize::from(holds_credentials(command.payload));
            }
        }
    }
    seen().ended += 1;
}

fn holds_credentials(command: Bytes) -> bool {
    let Ok(KvCommand { command: Some(Command::Auth(change)), .. }) = KvCommand::decode(command) else {
        return false;
    };
    match change.change {
        Some(Change::Authenticate(request)) => !request.secret.is_empty(),
        Some(Change::UserAdd(request)) => !request.hashed_password.is_empty(),
        Some(Change::UserChangePassword(request)) => !request.hashed_password.is_empty(),
        _ => false,
    }
}

/// Watches the whole store of a server, without a user.
async fn watch(address: SocketAddr, seen: &Mutex<Seen>) {
    let seen = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    let all = Bytes::from_static(&[0]);
    let create = WatchCreateRequest { key: all.clone(), range_end: all, ..Default::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = Request::new(stream::iter([request]).chain(stream::pending()));
    if let Ok(answer) = WatchClient::new(channel(address)).watch(requests).await {
        let mut stream = answer.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            let values = message.events.iter().filter_map(|event| event.kv.as_ref());
            seen().contents += values.filter(|kv| holds_secret(&kv.value)).count();
        }
    }
    seen().ended += 1;
}

/// A stranger subscribes and watches at each server. Then an operator makes users count, logs in at each server, and
/// puts what is secret.
pub async fn steal(scene: &mut Scene<'_>) -> Result<(), String> {
    let servers = scene.cluster.servers.map(|server| server.client);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut strangers = JoinSet::new();
    for address in servers {
        let (of_log, of_keys) = (Arc::clone(&seen), Arc::clone(&seen));
        strangers.spawn(async move { subscribe(address, &of_log).await });
        strangers.spawn(async move { watch(address, &of_keys).await });
    }
    sleep(Duration::from_secs(1)).await;
    enable(servers[scene.target]).await?;
    for (number, address) in servers.into_iter().enumerate() {
        let token = token(address).await.map_err(text)?;
        let put = PutRequest {
            key: format!("secret/{number}").into(),
            value: Bytes::from_static(SECRET),
            ..PutRequest::default()
        };
        let mut put = Request::new(put);
        put.metadata_mut().insert("token", token.parse().map_err(text)?);
        KvClient::new(channel(address)).put(put).await.map_err(text)?;
    }
    let began = Instant::now();
    let all_end = async { while strangers.join_next().await.is_some() {} };
    let ended = timeout(ENDS_WITHIN, all_end).await.is_ok();
    let took = report::ms(began.elapsed());
    let Seen { commands, credentials, contents, ended: calls } =
        std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    scene.note("commands that a stranger saw", commands);
    scene.claim("no stranger sees a token or a hash", credentials == 0, credentials);
    scene.claim("no stranger sees what is put once users count", contents == 0, contents);
    let bound = format!("the strangers' calls end within {} s", ENDS_WITHIN.as_secs());
    scene.claim(bound, ended, format!("{calls} of {} after {took}", 2 * servers.len()));
    Ok(())
}

/// Logs in once, from this address of the machine. Returns how that ended.
async fn log_in(server: SocketAddr, from: IpAddr, name: &str, password: &str) -> Result<Code, String> {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    let mut wire = Wire::open_from(server, from, 65_535).await?;
    wire.drain(AUTHENTICATE, &request).await.map(|answer| answer.code)
}

/// Strangers send wrong passwords to the target, from one address of the machine, all the time. An honest user logs in
/// there from the same address, where it did so before, and from another one.
pub async fn logins(scene: &mut Scene<'_>) -> Result<(), String> {
    let target = scene.cluster.servers[scene.target].client;
    enable(target).await?;
    let (own, other) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv4Addr::new(127, 0, 0, 2)));
    log_in(target, own, USER, PASSWORD).await?;
    let tries = Arc::new(AtomicU64::new(0));
    let mut strangers = JoinSet::new();
    for number in 0..FLOODING {
        let tries = Arc::clone(&tries);
        strangers.spawn(async move {
            let name = if number % 2 == 0 { "nobody".to_owned() } else { format!("nobody{number}") };
            let request = AuthenticateRequest { name, password: "wrong".to_owned() };
            loop {
                // A connection that is refused is tried again.
                if let Ok(mut wire) = Wire::open_from(target, own, 65_535).await {
                    while wire.drain(AUTHENTICATE, &request).await.is_ok() {
                        tries.fetch_add(1, Relaxed);
                    }
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
    sleep(Duration::from_secs(1)).await;
    let until = Instant::now() + scene.settings.seconds();
    let (mut slowest, mut times, mut failed) = ([Duration::ZERO; 2], 0, 0);
    while times == 0 || Instant::now() < until {
        for (from, slowest) in [own, other].into_iter().zip(&mut slowest) {
            let began = Instant::now();
            let code = timeout(2 * LOGIN_WITHIN, log_in(target, from, USER, PASSWORD)).await;
            failed += usize::from(!matches!(code, Ok(Ok(Code::Ok))));
            *slowest = began.elapsed().max(*slowest);
        }
        times += 1;
    }
    strangers.shutdown().await;
    scene.note("wrong passwords that were answered or refused", tries.load(Relaxed));
    scene.note("logins of the honest user", format!("{} from each of two addresses", times));
    scene.claim("every login of the honest user succeeds", failed == 0, format!("{failed} failed"));
    for (slowest, whence) in
        slowest.into_iter().zip(["the strangers' address, where it was known", "another"])
    {
        let bound = format!("from {whence}, it takes less than {} s", LOGIN_WITHIN.as_secs());
        scene.claim(bound, slowest < LOGIN_WITHIN, report::ms(slowest));
    }
    Ok(())
}
