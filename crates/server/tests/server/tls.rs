//! Clients over TLS and over unix sockets.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{
    config,
    http2::{SOON, framed, post, read},
    replica, replica_of, serve,
};
use bytes::Bytes;
use h2::client::SendRequest;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use prost::Message;
use synod_api::{
    authpb::{Permission, UserAddOptions, permission::Type},
    etcdserverpb::{
        AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
        AuthUserGrantRoleRequest, PutRequest,
    },
    synod::v1::{KvAuthChange, KvCommand, kv_auth_change::Change, kv_command::Command},
};
use synod_kv::KvStore;
use synod_server::{Address, At, Auth, Config, Server, Speaks, TokenKind};
use synod_tls::{
    Acceptor, Connector, Identity, Policy, Trust,
    authority::{Authority, Issued, Wanted},
    rustls::{
        self, ClientConfig, RootCertStore,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

fn identity(issued: &Issued) -> Identity {
    Identity::of(&issued.certificate, &issued.key)
}

fn trust(authority: &Authority) -> Trust {
    Trust::of(authority.certificate())
}

fn issue(authority: &Authority, file: &str, serial: u64) -> Issued {
    authority.issue(&Wanted { file, serial, ..Wanted::default() })
}

/// A server at a port that speaks this, and at one for pages.
fn serve_with(acceptor: Acceptor, speaks: Speaks) -> Server {
    let anywhere = || vec![Address { at: At::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))), speaks }];
    let config = Config {
        client_addresses: anywhere(),
        metrics_addresses: anywhere(),
        tls: Some(acceptor),
        ..config()
    };
    serve(&config, replica())
}

fn accepting(issued: &Issued, trust: Option<Trust>) -> Acceptor {
    Acceptor::new(identity(issued), trust, Policy::default(), &Config::PROTOCOLS).unwrap()
}

/// A client that trusts the authority, and offers these protocols.
fn connecting(issued: Option<&Issued>, authority: &Authority, protocols: &[&str]) -> Connector {
    Connector::new(issued.map(identity), Some(trust(authority)), Policy::default(), protocols).unwrap()
}

async fn secure<S: AsyncRead + AsyncWrite + Unpin>(
    connector: &Connector,
    stream: S,
) -> std::io::Result<TlsStream<S>> {
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(connector.config()).connect(name, stream).await
}

/// A connection of a client; the error may come from the first use, since with TLS 1.3 a client finishes first.
async fn http2(connector: &Connector, address: SocketAddr) -> Result<SendRequest<Bytes>, String> {
    let stream = TcpStream::connect(address).await.unwrap();
    http2_over(secure(connector, stream).await.map_err(|error| error.to_string())?).await
}

async fn http2_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Bytes>, String> {
    let (send, connection) = h2::client::handshake(stream).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(send)
}

/// Puts a key; the error is that of the connection.
async fn put(send: &SendRequest<Bytes>) -> Result<(), String> {
    let request = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    ask(send, "/etcdserverpb.KV/Put", &request).await.map(drop)
}

/// Makes a request; returns the bytes of the answer, which is one that succeeds.
async fn ask(send: &SendRequest<Bytes>, path: &str, message: &impl Message) -> Result<usize, String> {
    let broken = |error: h2::Error| error.to_string();
    let mut send = send.clone().ready().await.map_err(broken)?;
    let (response, mut stream) = send.send_request(post(path).body(()).unwrap(), false).map_err(broken)?;
    stream.send_data(framed(message).freeze(), true).map_err(broken)?;
    let mut body = response.await.map_err(broken)?.into_body();
    let bytes = timeout(SOON, read(&mut body, usize::MAX)).await.expect("it is answered").len();
    assert_eq!(body.trailers().await.map_err(broken)?.unwrap()["grpc-status"], "0");
    Ok(bytes)
}

async fn page(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> String {
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get("/health").header("host", "x").body(Empty::<Bytes>::new()).unwrap();
    let body = send.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn one_port_serves_grpc_and_pages_with_tls() {
    let authority = Authority::new();
    let server = serve_with(accepting(&issue(&authority, "server", 1), None), Speaks::Tls);
    let (clients, pages) = (server.client_addresses()[0], server.metrics_addresses()[0]);
    // Some clients negotiate no protocol.
    for offered in [&["h2"][..], &[]] {
        put(&http2(&connecting(None, &authority, offered), clients).await.unwrap()).await.unwrap();
    }
    for offered in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        for address in [clients, pages] {
            let stream = TcpStream::connect(address).await.unwrap();
            let stream = secure(&connecting(None, &authority, offered), stream).await.unwrap();
            assert_eq!(page(stream).await, r#"{"health":"true","reason":""}"#);
        }
    }
    // An answer of many megabytes: what the session holds back leaves as well.
    let send = http2(&connecting(None, &authority, &["h2"]), clients).await.unwrap();
    let value = vec![7; 1 << 20];
    for key in 0..8_u8 {
        let request =
            PutRequest { key: vec![b'l', key].into(), value: value.clone().into(), ..Default::default() };
        ask(&send, "/etcdserverpb.KV/Put", &request).await.unwrap();
    }
    let range = synod_api::etcdserverpb::RangeRequest {
        key: "l".into(),
        range_end: "m".into(),
        ..Default::default()
    };
    let bytes = ask(&send, "/etcdserverpb.KV/Range", &range).await.unwrap();
    assert!(bytes > 8 << 20, "{bytes} bytes");
}

#[tokio::test]
async fn only_a_certificate_of_the_authority_is_let_in() {
    let (authority, other) = (Authority::new(), Authority::new());
    let revoked = authority.revoke(&[3]);
    let demanded = trust(&authority).without(revoked);
    let server = serve_with(accepting(&issue(&authority, "server", 1), Some(demanded)), Speaks::Tls);
    let address = server.client_addresses()[0];
    let try_as = async |issued: Option<&Issued>| match http2(
        &connecting(issued, &authority, &["h2"]),
        address,
    )
    .await
    {
        Ok(send) => put(&send).await,
        Err(error) => Err(error),
    };
    try_as(Some(&issue(&authority, "good", 2))).await.unwrap();
    try_as(None).await.unwrap_err();
    try_as(Some(&issue(&other, "stranger", 2))).await.unwrap_err();
    try_as(Some(&issue(&authority, "revoked", 3))).await.unwrap_err();
    // A connector takes no certificate that has expired, so this client is made without one.
    let expired = authority.issue(&Wanted { file: "expired", expired: true, ..Wanted::default() });
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.certificate()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = vec![CertificateDer::from_pem_file(&expired.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&expired.key).unwrap();
    let client = client.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let refused = match TlsConnector::from(Arc::new(client)).connect(name, stream).await {
        Ok(stream) => match http2_over(stream).await {
            Ok(send) => put(&send).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error.to_string()),
    };
    refused.unwrap_err();
    try_as(Some(&issue(&authority, "good", 2))).await.unwrap();
}

#[tokio::test]
async fn changed_files_count_for_the_next_connection() {
    let (authority, other) = (Authority::new(), Authority::new());
    let issued = issue(&authority, "server", 1);
    let revoked = authority.revoke(&[]);
    let demanded = trust(&authority).without(revoked);
    let server = serve_with(accepting(&issued, Some(demanded)), Speaks::Tls);
    let address = server.client_addresses()[0];
    let client = issue(&authority, "client", 9);
    let trusting = |authority| {
        let identity = identity(&client);
        Connector::new(Some(identity), Some(trust(authority)), Policy::default(), &["h2"]).unwrap()
    };
    let (of_authority, of_other) = (trusting(&authority), trusting(&other));
    let first = http2(&of_authority, address).await.unwrap();
    put(&first).await.unwrap();

    // The certificate changes before its key does: meanwhile the old one is shown.
    let next = issue(&other, "next", 1);
    fs::copy(&next.certificate, &issued.certificate).unwrap();
    sleep(Duration::from_millis(1500)).await;
    put(&http2(&of_authority, address).await.unwrap()).await.unwrap();
    fs::copy(&next.key, &issued.key).unwrap();
    let deadline = Instant::now() + SOON;
    while http2(&of_other, address).await.is_err() {
        assert!(Instant::now() < deadline, "the new certificate is never shown");
        sleep(Duration::from_millis(50)).await;
    }
    put(&http2(&of_other, address).await.unwrap()).await.unwrap();
    http2(&of_authority, address).await.unwrap_err();

    let _ = authority.revoke(&[9]);
    let deadline = Instant::now() + SOON;
    while let Ok(send) = http2(&of_other, address).await
        && put(&send).await.is_ok()
    {
        assert!(Instant::now() < deadline, "the revoked certificate is let in forever");
        sleep(Duration::from_millis(50)).await;
    }
    // Connections that were there stay.
    put(&first).await.unwrap();
}

#[tokio::test]
async fn whatever_is_no_handshake_is_closed_and_costs_nothing_else() {
    let authority = Authority::new();
    let server = serve_with(accepting(&issue(&authority, "server", 1), None), Speaks::Tls);
    let address = server.client_addresses()[0];
    let mut state = 1_u32;
    for round in 0..64 {
        let mut bytes = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_vec();
        if round > 0 {
            let random = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            bytes = (0..round * 17).map(random).collect();
            bytes[..5].copy_from_slice(&[22, 3, 1, 0, 12]);
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut heard = Vec::new();
        // The connection may be reset, since not all was read.
        let _ = timeout(SOON, stream.read_to_end(&mut heard)).await.expect("it is closed");
        assert!(!heard.starts_with(b"HTTP"), "no page without TLS");
    }
    put(&http2(&connecting(None, &authority, &["h2"]), address).await.unwrap()).await.unwrap();
}

/// Clients that begin a handshake and stop give way to those that go on.
#[tokio::test]
async fn a_handshake_that_stops_keeps_nobody_out() {
    let authority = Authority::new();
    let acceptor = accepting(&issue(&authority, "server", 1), None);
    let at = At::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let client_addresses = vec![Address { at, speaks: Speaks::Tls }];
    let limited = Config { client_addresses, tls: Some(acceptor), connections_max: 8, ..config() };
    let server = serve(&limited, replica());
    let address = server.client_addresses()[0];
    let mut stopped = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        stopped.push(stream);
    }
    for _ in 0..4 {
        let send = http2(&connecting(None, &authority, &["h2"]), address).await.unwrap();
        timeout(SOON, put(&send)).await.expect("it is served").unwrap();
    }
    drop(stopped);
}

#[tokio::test]
async fn an_address_may_speak_both() {
    let authority = Authority::new();
    let server = serve_with(accepting(&issue(&authority, "server", 1), None), Speaks::Either);
    let address = server.client_addresses()[0];
    put(&http2(&connecting(None, &authority, &["h2"]), address).await.unwrap()).await.unwrap();
    put(&http2_over(TcpStream::connect(address).await.unwrap()).await.unwrap()).await.unwrap();
    assert!(page(TcpStream::connect(address).await.unwrap()).await.contains("true"));
}

#[tokio::test]
async fn clients_come_by_unix_sockets() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let path = |name| -> PathBuf { folder.path().join(name) };
    let (plain, with_tls) = (path("localhost:1234"), path("secure"));
    let at = |path: &PathBuf, speaks| Address { at: At::Unix(path.clone()), speaks };
    let config = Config {
        client_addresses: vec![at(&plain, Speaks::Plain), at(&with_tls, Speaks::Tls)],
        metrics_addresses: Vec::new(),
        tls: Some(accepting(&issue(&authority, "server", 1), None)),
        ..config()
    };
    let server = serve(&config, replica());
    assert!(server.client_addresses().is_empty());
    put(&http2_over(UnixStream::connect(&plain).await.unwrap()).await.unwrap()).await.unwrap();
    assert!(page(UnixStream::connect(&plain).await.unwrap()).await.contains("true"));
    let stream = UnixStream::connect(&with_tls).await.unwrap();
    let stream = secure(&connecting(None, &authority, &["h2"]), stream).await.unwrap();
    put(&http2_over(stream).await.unwrap()).await.unwrap();
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    assert!(!plain.exists() && !with_tls.exists());
}

#[test]
fn an_address_with_tls_needs_a_certificate() {
    let at = At::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let config = Config { client_addresses: vec![Address { at, speaks: Speaks::Tls }], ..config() };
    let error = Server::start(&config, replica(), synod_server::Registry::default()).unwrap_err();
    assert!(error.to_string().contains("no certificate"), "{error}");
}

/// A store in which the user `tester` may do everything, and nobody without a name anything.
fn store_of_tester() -> KvStore {
    let mut store = KvStore::new();
    let everything =
        Permission { perm_type: Type::Readwrite.into(), key: "\0".into(), range_end: "\0".into() };
    let user = |name: &str| {
        let (name, options) = (name.to_owned(), Some(UserAddOptions { no_password: true }));
        Change::UserAdd(AuthUserAddRequest { name, options, ..Default::default() })
    };
    let has = |user: &str, role: &str| {
        let (user, role) = (user.to_owned(), role.to_owned());
        Change::UserGrantRole(AuthUserGrantRoleRequest { user, role })
    };
    let granted = AuthRoleGrantPermissionRequest { name: "all".into(), perm: Some(everything) };
    for change in [
        user("root"),
        user("tester"),
        Change::RoleAdd(AuthRoleAddRequest { name: "root".into() }),
        Change::RoleAdd(AuthRoleAddRequest { name: "all".into() }),
        Change::RoleGrantPermission(granted),
        has("root", "root"),
        has("tester", "all"),
        Change::Enable(AuthEnableRequest {}),
    ] {
        let command = Some(Command::Auth(KvAuthChange { change: Some(change) }));
        store.execute(&KvCommand { command, of_member: true, ..Default::default() }).unwrap();
    }
    store
}

/// Whether a put succeeds.
async fn may_put(send: &SendRequest<Bytes>) -> bool {
    let mut send = send.clone().ready().await.unwrap();
    let (response, mut stream) =
        send.send_request(post("/etcdserverpb.KV/Put").body(()).unwrap(), false).unwrap();
    let request = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    stream.send_data(framed(&request).freeze(), true).unwrap();
    let response = timeout(SOON, response).await.expect("it is answered").unwrap();
    let refused = response.headers().contains_key("grpc-status");
    let mut body = response.into_body();
    while body.data().await.is_some() {}
    !refused && body.trailers().await.unwrap().unwrap()["grpc-status"] == "0"
}

/// A certificate that has to be shown says who the client is only where names of certificates are users.
#[tokio::test]
async fn the_name_of_a_certificate_is_a_user_where_that_is_said() {
    let authority = Authority::new();
    let shown = issue(&authority, "client", 2);
    for names_are_users in [true, false] {
        let acceptor = accepting(&issue(&authority, "server", 1), Some(trust(&authority)));
        let auth = Auth::new(TokenKind::default(), 4);
        let at = At::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let limited = Config {
            client_addresses: vec![Address { at, speaks: Speaks::Tls }],
            tls: Some(acceptor),
            names_are_users,
            auth: Some(auth.clone()),
            ..config()
        };
        let server = serve(&limited, replica_of(store_of_tester().authenticating(auth.feed())));
        let client = connecting(Some(&shown), &authority, &["h2"]);
        let send = http2(&client, server.client_addresses()[0]).await.unwrap();
        assert_eq!(may_put(&send).await, names_are_users);
    }
}
