//! Clients over TLS, by `Config::tls`.

use std::net::SocketAddr;

use synod_client::{
    Client, Code, Config, Error,
    api::{PutRequest, RangeRequest, WatchCreateRequest},
    authpb::permission::Type,
    tls::{Connector, Identity, Policy, Trust},
};
use synod_kv::KvStore;
use synod_server::{
    Address, At, Auth, Config as ServerConfig, InMemory, Registry, Server, Speaks, TokenKind, Watches,
};
use synod_tls::{
    Acceptor,
    authority::{Authority, Issued, Wanted},
};
use synod_wire::ClusterId;

fn issue(authority: &Authority, name: &str) -> Issued {
    authority.issue(&Wanted { file: name, common_name: name, ..Wanted::default() })
}

/// A server with TLS that takes the clients of this authority, and whose users may count.
fn server(authority: &Authority) -> Server {
    let own = issue(authority, "server");
    let (identity, trust) = (Identity::of(own.certificate, own.key), Trust::of(authority.certificate()));
    let acceptor = Acceptor::new(identity, Some(trust), Policy::default(), &ServerConfig::PROTOCOLS).unwrap();
    let (auth, watches) = (Auth::new(TokenKind::default(), 4), Watches::new());
    let store = KvStore::new().feeding(watches.feed()).authenticating(auth.feed());
    let at = At::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let config = ServerConfig {
        client_addresses: vec![Address { at, speaks: Speaks::Tls }],
        tls: Some(acceptor),
        watches: Some(watches),
        auth: Some(auth),
        ..ServerConfig::default()
    };
    let replica = InMemory::start(store, ClusterId(1), crate::common::member()).unwrap();
    Server::start(&config, replica, Registry::default()).unwrap()
}

/// A client that trusts this authority, and shows a certificate or none.
fn client(server: &Server, authority: &Authority, shown: Option<&Issued>) -> Client {
    let identity = shown.map(|issued| Identity::of(&issued.certificate, &issued.key));
    let trust = Trust::of(authority.certificate());
    // TLS goes without saying, since `tls` is set.
    let mut config = Config::new([server.client_addresses()[0].to_string()]);
    config.tls = Some(Connector::new(identity, Some(trust), Policy::default(), &["h2"]).unwrap());
    config.give_up_unreachable = true;
    Client::new(config).unwrap()
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

#[tokio::test]
async fn a_client_with_a_certificate_is_served() {
    let authority = Authority::new();
    let server = server(&authority);
    let client = client(&server, &authority, Some(&issue(&authority, "alice")));
    let mut watch = client.watch(WatchCreateRequest { key: "k".into(), ..Default::default() });
    assert!(watch.next().await.unwrap().unwrap().created);
    client.put(put("k")).await.unwrap();
    assert_eq!(client.get(get("k")).await.unwrap().kvs[0].value, "v");
    assert_eq!(watch.next().await.unwrap().unwrap().events.len(), 1);
    client.status().await.remove(0).unwrap();
}

/// As `etcdctl --cert` alone: the common name of the certificate is the user.
#[tokio::test]
async fn a_certificate_says_who_the_user_is() {
    let authority = Authority::new();
    let server = server(&authority);
    let root = client(&server, &authority, Some(&issue(&authority, "root")));
    let alice = client(&server, &authority, Some(&issue(&authority, "alice")));
    for name in ["root", "alice"] {
        root.user_add(name, None).await.unwrap();
    }
    root.user_grant_role("root", "root").await.unwrap();
    root.role_add("reader").await.unwrap();
    root.role_grant("reader", Type::Read, "k", "l").await.unwrap();
    root.user_grant_role("alice", "reader").await.unwrap();
    root.auth_enable().await.unwrap();
    root.put(put("k")).await.unwrap();
    assert_eq!(alice.get(get("k")).await.unwrap().kvs.len(), 1);
    assert_eq!(alice.put(put("k")).await.unwrap_err().code(), Some(Code::PermissionDenied));
    let nobody = client(&server, &authority, Some(&issue(&authority, "eve")));
    assert_eq!(nobody.get(get("k")).await.unwrap_err().code(), Some(Code::PermissionDenied));
}

#[tokio::test]
async fn who_is_not_trusted_is_told_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = server(&authority);
    let shown = issue(&authority, "alice");
    // The client does not trust the server.
    let error = client(&server, &other, Some(&shown)).put(put("k")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { reached: false, .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("the certificate of the other side comes from another authority than the ones that are trusted here"),
        "{text}"
    );
    // The server does not trust the client, which learns that after its own part of the handshake.
    for shown in [None, Some(&issue(&other, "alice"))] {
        let error = client(&server, &authority, shown).put(put("k")).await.unwrap_err();
        let text = error.to_string();
        let refused = "the other side refuses the certificate of this one; its log says why";
        let wants = "the other side may want a certificate that it allows";
        assert!(text.contains(refused) || text.contains(wants), "{text}");
    }
    let trusted = client(&server, &authority, Some(&shown));
    assert_eq!(trusted.get(get("k")).await.unwrap().kvs.len(), 0, "nothing was executed");
    // An address with TLS takes `Config::tls`.
    let error = Client::new(Config::new([format!("https://{}", server.client_addresses()[0])])).unwrap_err();
    assert!(error.to_string().contains("Config::tls"), "{error}");
}
