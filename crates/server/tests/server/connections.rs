//! How a server treats connections: valid ones, invalid ones, and all of them when it stops.

use std::time::Duration;

use crate::common::{
    config, connect,
    http2::{begin, framed, post},
    replica, serve,
};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http_body_util::{BodyExt, Empty};
use prost::Message;
use synod_api::{
    etcdserverpb::{
        AlarmRequest, AlarmType, PutRequest, RangeRequest, alarm_request::AlarmAction, kv_client::KvClient,
        maintenance_client::MaintenanceClient,
    },
    grpc::health::v1::HealthCheckRequest,
    synod::v1::{ExecuteRequest, OpenSessionRequest, StatusRequest, native_client::NativeClient},
};
use synod_server::{Answer, Config, Consistency, InMemory, Replica, RequestError, Server, Status};
use synod_wire::SessionId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tonic::{Code, Request, transport::Channel};

const SOON: Duration = Duration::from_secs(20);

async fn kv(server: &Server) -> KvClient<Channel> {
    KvClient::new(connect(server).await)
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

/// The status and the body of a page.
async fn page(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get(path).header("host", "x").body(Empty::<Bytes>::new()).unwrap();
    let response = send.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn pages_are_served_at_both_addresses() {
    let server = serve(&config(), replica());
    for address in [server.client_addresses()[0], server.metrics_addresses()[0]] {
        assert_eq!(page(address, "/health").await, (200, r#"{"health":"true","reason":""}"#.into()));
        assert_eq!(page(address, "/readyz").await.0, 200);
        assert_eq!(page(address, "/livez").await, (200, "ok\n".into()));
        let found = "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n";
        assert_eq!(page(address, "/readyz?verbose=true").await, (200, found.into()));
        assert_eq!(page(address, "/livez?verbose").await, (200, "[+]serializable_read ok\nok\n".into()));
        let found = "[+]linearizable_read ok\nok\n";
        assert_eq!(page(address, "/readyz/linearizable_read?verbose").await, (200, found.into()));
        assert_eq!(page(address, "/livez/linearizable_read").await.0, 404);
        let (status, version) = page(address, "/version").await;
        assert!(status == 200 && version.contains(r#""etcdserver":"3.7.3""#), "{version}");
        let (status, metrics) = page(address, "/metrics").await;
        assert!(status == 200 && metrics.contains("made_up 1"), "{metrics}");
        assert!(metrics.contains("\netcd_server_has_leader 1\n"), "{metrics}");
        assert!(metrics.contains("\netcd_mvcc_put_total 0\n"), "{metrics}");
        assert!(metrics.contains("\netcd_server_version{server_version=\"3.7.3\"} 1\n"), "{metrics}");
        let (status, vars) = page(address, "/debug/vars").await;
        let vars: serde_json::Value = serde_json::from_str(&vars).unwrap();
        assert_eq!((status, &vars["raft.status"]["raftState"]), (200, &"StateLeader".into()));
        assert_eq!(page(address, "/nowhere").await.0, 404);
    }
}

#[tokio::test]
async fn a_server_that_is_not_open_yet_refuses_clients_and_serves_pages() {
    let metrics = prometheus_client::registry::Registry::default();
    let mut server = Server::prepare_groups(&config(), vec![replica()], metrics).unwrap();
    let (clients, pages) = (server.client_addresses()[0], server.metrics_addresses()[0]);
    let refused = TcpStream::connect(clients).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(page(pages, "/livez").await.0, 200);
    server.open().unwrap();
    assert_eq!(page(clients, "/livez").await.0, 200);
}

#[tokio::test]
async fn health_knows_alarms() {
    let server = serve(&Config { quota_bytes: 100, ..config() }, replica());
    let address = server.client_addresses()[0];
    let full = PutRequest { value: vec![0; 200].into(), ..put("k") };
    kv(&server).await.put(full).await.unwrap_err();
    let (status, health) = page(address, "/health").await;
    assert!(status == 503 && health.contains("NOSPACE"), "{health}");
    assert_eq!(page(address, "/health?exclude=NOSPACE").await.0, 200);
    assert_eq!(page(address, "/readyz").await.0, 200);
}

#[tokio::test]
async fn probes_tell_of_each_check_as_etcd_does() {
    let server = serve(&config(), replica());
    let address = server.client_addresses()[0];
    let ok = || (200, "ok\n".to_owned());
    let all = "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\n";
    for path in ["/readyz", "/livez", "/readyz/linearizable_read", "/livez/serializable_read"] {
        assert_eq!(page(address, path).await, ok(), "{path}");
    }
    assert_eq!(page(address, "/readyz?verbose").await, (200, format!("{all}ok\n")));
    let some = "[+]data_corruption ok\n[+]non_learner ok\nok\n".to_owned();
    let excluding = "/readyz?verbose=1&exclude=serializable_read&exclude=linearizable_read&exclude=none";
    assert_eq!(page(address, excluding).await, (200, some));
    assert_eq!(page(address, "/readyz/nothing").await.0, 404);
    let corrupt =
        AlarmRequest { action: AlarmAction::Activate.into(), member_id: 9, alarm: AlarmType::Corrupt.into() };
    let channel = connect(&server).await;
    MaintenanceClient::new(channel).alarm(corrupt).await.unwrap();
    let failed = "[-]data_corruption failed: alarm activated: CORRUPT\n";
    let (status, text) = page(address, "/readyz").await;
    assert_eq!((status, text), (503, all.replace("[+]data_corruption ok\n", failed) + "\n"));
    assert_eq!(page(address, "/readyz/data_corruption?exclude=data_corruption").await.0, 503);
    for path in ["/readyz?exclude=data_corruption", "/readyz/non_learner", "/livez"] {
        assert_eq!(page(address, path).await, ok(), "{path}");
    }
    let (_, version) = page(address, "/version").await;
    assert!(version.contains(r#""storage":"3.6.0""#), "{version}");
}

#[tokio::test]
async fn a_long_range_comes_in_pieces_of_one_revision() {
    let server = serve(&config(), replica());
    let mut client = kv(&server).await;
    for i in 0..1000 {
        let value = vec![b'v'; 100].into();
        client.put(PutRequest { value, ..put(&format!("k{i:04}")) }).await.unwrap();
    }
    let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let collect = async |request: RangeRequest| {
        let mut stream = client.clone().range_stream(request).await.unwrap().into_inner();
        let mut keys = Vec::new();
        let mut pieces = Vec::new();
        while let Some(piece) = stream.message().await.unwrap() {
            let piece = piece.range_response.unwrap();
            keys.extend(piece.kvs.iter().map(|kv| kv.key.clone()));
            pieces.push(piece);
            // The next pieces must not show this write.
            client.clone().put(put(&format!("k{:04}x", keys.len()))).await.unwrap();
        }
        (keys, pieces)
    };
    let (keys, pieces) = collect(all.clone()).await;
    assert_eq!(keys, (0..1000).map(|i| Bytes::from(format!("k{i:04}"))).collect::<Vec<_>>());
    let (last, others) = pieces.split_last().unwrap();
    assert!(others.len() > 1 && others.iter().all(|piece| piece.header.is_none() && piece.count == 0));
    assert_eq!((last.count, last.more, last.header.unwrap().revision), (1000, false, 1001));

    let (keys, pieces) = collect(RangeRequest { limit: 100, revision: 1001, ..all.clone() }).await;
    let last = pieces.last().unwrap();
    assert_eq!((keys.len(), last.count, last.more), (100, 1000, true));
    let (_, pieces) = collect(RangeRequest { count_only: true, revision: 1001, ..all }).await;
    assert_eq!((pieces.len(), pieces[0].count), (1, 1000));
}

#[tokio::test]
async fn a_session_command_is_executed_once() {
    let server = serve(&config(), replica());
    let mut client = NativeClient::new(connect(&server).await);
    let session = client.open_session(OpenSessionRequest::default()).await.unwrap().into_inner().session;
    let command = synod_api::synod::v1::KvCommand {
        command: Some(synod_api::synod::v1::kv_command::Command::Put(put("k"))),
        ..Default::default()
    };
    let execute = ExecuteRequest {
        session,
        sequence: 1,
        lowest_outstanding: 1,
        payload: command.encode_to_vec().into(),
        group: None,
    };
    let first = client.execute(execute.clone()).await.unwrap().into_inner();
    let again = client.execute(execute.clone()).await.unwrap().into_inner();
    assert_eq!(first, again);
    let status = client.status(StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.revision, status.applied_slot, status.sessions), (2, 1, 1));
    assert_eq!((status.leader_name.as_str(), status.role.as_str()), ("only", "leader"));
    let wrong = [
        (ExecuteRequest { lowest_outstanding: 2, ..execute.clone() }, Code::InvalidArgument),
        (ExecuteRequest { lowest_outstanding: 0, ..execute.clone() }, Code::InvalidArgument),
        (ExecuteRequest { session: 99, ..execute.clone() }, Code::NotFound),
        (ExecuteRequest { payload: vec![0; (3 << 19) + 1].into(), ..execute.clone() }, Code::InvalidArgument),
    ];
    for (request, code) in wrong {
        assert_eq!(client.execute(request).await.unwrap_err().code(), code);
    }
    client.execute(ExecuteRequest { sequence: 2, lowest_outstanding: 2, ..execute.clone() }).await.unwrap();
    assert_eq!(client.execute(execute).await.unwrap_err().code(), Code::OutOfRange);
}

/// Sends one HTTP/2 request and returns the gRPC status, wherever it is.
async fn raw(send: &mut SendRequest<Bytes>, path: &str, body: &[u8]) -> Result<String, h2::Error> {
    let request =
        hyper::Request::post(format!("http://x{path}")).header("content-type", "application/grpc").body(());
    let (response, mut stream) = send.send_request(request.unwrap(), false)?;
    stream.send_data(Bytes::copy_from_slice(body), true)?;
    let mut response = response.await?;
    if let Some(status) = response.headers().get("grpc-status") {
        return Ok(status.to_str().unwrap().to_owned());
    }
    while let Some(data) = response.body_mut().data().await {
        data?;
    }
    let trailers = response.body_mut().trailers().await?.expect("gRPC ends with trailers");
    Ok(trailers["grpc-status"].to_str().unwrap().to_owned())
}

#[tokio::test]
async fn malformed_messages_harm_only_themselves() {
    let server = serve(&config(), replica());
    let stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let framed = |flag: u8, len: usize, body: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_u8(flag);
        frame.put_u32(len as u32);
        frame.put_slice(body);
        frame
    };
    let put_path = "/etcdserverpb.KV/Put";
    let good = put("k").encode_to_vec();
    assert_eq!(raw(&mut send, put_path, &framed(0, good.len(), &good)).await.unwrap(), "0");
    let bad = [
        framed(0, 3, b"\xff\xff\xff"), // not protobuf
        framed(9, good.len(), &good),  // no such compression flag
        framed(1, good.len(), &good),  // compressed, but nobody said how
        framed(0, 1000, &good),        // ends early
        framed(0, u32::MAX as usize, b"x"),
        BytesMut::new(),
    ];
    for body in bad {
        let status = timeout(SOON, raw(&mut send, put_path, &body)).await.expect("it is answered");
        assert_ne!(status.unwrap(), "0", "{body:?}");
    }
    assert_eq!(raw(&mut send, "/etcdserverpb.KV/Nothing", b"").await.unwrap(), "12");
    assert_eq!(raw(&mut send, "/nothing", b"").await.unwrap(), "12");
    assert_eq!(raw(&mut send, "/", b"").await.unwrap(), "12");
    assert_eq!(raw(&mut send, put_path, &framed(0, good.len(), &good)).await.unwrap(), "0");
}

#[tokio::test]
async fn noise_is_cut_off() {
    let server = serve(&config(), replica());
    for noise in [
        &b"PRI * HTTP/3.0\r\n\r\nxx\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"PO\x01T / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
        stream.write_all(noise).await.unwrap();
        let mut answer = Vec::new();
        // The server closes the connection, perhaps with an explanation, perhaps with a reset.
        let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("the connection is closed");
    }
    kv(&server).await.put(put("k")).await.unwrap();
}

#[tokio::test]
async fn connections_are_bounded() {
    let server = serve(&Config { connections_max: 2, client_io_threads: 2, ..config() }, replica());
    let (mut one, mut two) = (kv(&server).await, kv(&server).await);
    one.put(put("k")).await.unwrap();
    two.put(put("k")).await.unwrap();
    let mut third = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    third.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let closed = timeout(SOON, third.read(&mut [0; 10])).await.expect("it is closed at once");
    assert!(matches!(closed, Ok(0) | Err(_)));
    // Pages are answered all the same, and nothing else is.
    let (status, _) = page(server.client_addresses()[0], "/livez").await;
    assert_eq!(status, 200);
    let (status, text) = page(server.client_addresses()[0], "/v3/kv/range").await;
    assert!(status == 503 && text.contains("--connections-max"), "{status} {text}");
    drop(one);
    // The place is free once the server has seen that the connection is gone.
    let again = async {
        while kv(&server).await.put(put("k")).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, again).await.unwrap();
    two.put(put("k")).await.unwrap();
}

/// Connections without a request give way to those with one.
#[tokio::test]
async fn idle_connections_give_way_to_new_ones() {
    let server = serve(&Config { connections_max: 8, client_io_threads: 2, ..config() }, replica());
    let address = server.client_addresses()[0];
    let mut used = kv(&server).await;
    used.put(put("k")).await.unwrap();
    // Some have sent nothing, some have begun HTTP/2.
    let mut idle = Vec::new();
    for number in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        }
        idle.push(stream);
        // The pauses make the order of arrival certain.
        sleep(Duration::from_millis(5)).await;
    }
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = kv(&server).await;
        timeout(SOON, client.put(put("k"))).await.expect("it is served").unwrap();
        clients.push(client);
    }
    used.put(put("k")).await.expect("one that asked has kept its place");
    // Now connections that have sent a request hold more than half of the places. They stay, and the others give way.
    for client in &mut clients {
        client.put(put("k")).await.expect("nor has this one given way");
    }
    let (status, _) = page(server.metrics_addresses()[0], "/metrics").await;
    assert_eq!(status, 200);
}

/// A connection of HTTP/2 from this host of the loopback network.
async fn http2_from(host: u8, server: &Server) -> Result<SendRequest<Bytes>, h2::Error> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, host], 0).into()).unwrap();
    let stream = socket.connect(server.client_addresses()[0]).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    send.ready().await
}

async fn puts(send: &SendRequest<Bytes>) -> bool {
    let asked = async {
        let mut send = send.clone().ready().await?;
        let (response, mut stream) =
            send.send_request(post("/etcdserverpb.KV/Put").body(()).unwrap(), false)?;
        stream.send_data(framed(&put("k")).freeze(), true)?;
        let mut body = response.await?.into_body();
        while let Some(piece) = body.data().await {
            piece?;
        }
        Ok::<_, h2::Error>(())
    };
    timeout(SOON, asked).await.expect("it is answered or ends").is_ok()
}

/// Asks for the server's health until the connection ends.
async fn watches_health(send: &SendRequest<Bytes>) -> h2::RecvStream {
    let request = framed(&HealthCheckRequest::default());
    let (response, _) = begin(send, post("/grpc.health.v1.Health/Watch"), &request, true).await;
    timeout(SOON, response).await.expect("it begins").unwrap().into_body()
}

#[tokio::test]
async fn a_stranger_who_holds_all_places_keeps_nobody_out() {
    const PLACES: usize = 4;
    let server = serve(&Config { connections_max: PLACES, ..config() }, replica());
    for host in [1, 2] {
        let mut watching = Vec::new();
        for _ in 0..PLACES {
            let send = http2_from(1, &server).await.unwrap();
            watching.push((watches_health(&send).await, send));
        }
        let own = http2_from(host, &server).await.unwrap();
        assert!(puts(&own).await, "host {host}");
        let mut dripping = Vec::new();
        for _ in 0..2 * PLACES {
            let mut stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
            let head = "POST /v3/kv/range HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n{";
            stream.write_all(head.as_bytes()).await.unwrap();
            dripping.push(stream);
            sleep(Duration::from_millis(20)).await;
        }
        assert!(puts(&own).await, "one that works keeps its place");
        assert!(puts(&http2_from(host, &server).await.unwrap()).await, "host {host}");
    }
}

#[tokio::test]
async fn an_address_that_holds_all_places_loses_one_to_another() {
    const PLACES: usize = 4;
    let server = serve(&Config { connections_max: PLACES, ..config() }, replica());
    let mut working = Vec::new();
    for _ in 0..PLACES {
        let send = http2_from(1, &server).await.unwrap();
        assert!(puts(&send).await);
        working.push((watches_health(&send).await, send));
    }
    let refused = http2_from(1, &server).await;
    let refused = match refused {
        Ok(send) => !puts(&send).await,
        Err(_) => true,
    };
    assert!(refused, "those that work do not give way to one at the same address");
    let other = http2_from(2, &server).await.unwrap();
    assert!(puts(&other).await);
    assert!(!puts(&working[0].1).await, "the oldest has given way");
    assert!(puts(&working[1].1).await && puts(&other).await);
}

/// Clients that hold all places and read nothing keep nobody from the pages.
#[tokio::test]
async fn pages_are_answered_whoever_holds_the_places() {
    let server = serve(&Config { connections_max: 4, ..config() }, replica());
    let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000);
    let mut silent = Vec::new();
    for (address, count) in [(server.metrics_addresses()[0], 40), (server.client_addresses()[0], 8)] {
        for _ in 0..count {
            let stream = TcpStream::connect(address).await.unwrap();
            let sent = requests.clone();
            silent.push(tokio::spawn(async move {
                let mut stream = stream;
                // What does not fit is never sent.
                let _ = stream.write_all(sent.as_bytes()).await;
                std::future::pending::<()>().await;
                drop(stream);
            }));
        }
        // They take their places.
        sleep(Duration::from_millis(500)).await;
        for path in ["/livez", "/readyz", "/health", "/metrics"] {
            let (status, _) = timeout(SOON, page(address, path)).await.expect("it is answered");
            assert_eq!(status, 200, "{path}");
        }
    }
}

/// A state machine that answers commands after a while, or never.
#[derive(Clone, Debug)]
struct Slow {
    inner: InMemory,
    delay: Duration,
}

impl Replica for Slow {
    answered_by_inner!(limits, term, group, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        sleep(self.delay).await;
        self.inner.execute(command).await
    }

    async fn execute_in_session(
        &self,
        _: SessionId,
        _: u64,
        _: u64,
        _: Bytes,
    ) -> Result<Bytes, RequestError> {
        Err(RequestError::Timeout)
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        Err(RequestError::NoLeader)
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        if consistency == Consistency::Linearizable {
            return Err(RequestError::NoLeader);
        }
        self.inner.query(query, consistency).await
    }

    fn status(&self) -> Status {
        let mut status = self.inner.status();
        status.node.leader = None;
        status
    }
}

#[tokio::test]
async fn without_a_leader_only_what_is_local_is_answered() {
    let server = serve(&config(), Slow { inner: replica(), delay: Duration::ZERO });
    let mut client = kv(&server).await;
    let get = RangeRequest { key: "k".into(), ..Default::default() };
    let status = client.range(get.clone()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: no leader"));
    let local = RangeRequest { serializable: true, ..get };
    client.range(local.clone()).await.unwrap();
    // Nor if the client asks for a leader, as etcd's does of all its calls if it is told to.
    let mut needing = Request::new(local);
    needing.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let status = client.range(needing).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: no leader"));
    let address = server.metrics_addresses()[0];
    assert_eq!(
        page(address, "/health").await,
        (503, r#"{"health":"false","reason":"RAFT NO LEADER"}"#.into())
    );
    assert_eq!(page(address, "/health?serializable=true").await.0, 200);
    let found = "[+]data_corruption ok\n[+]serializable_read ok\n[-]linearizable_read failed: etcdserver: no leader\n\
                 [+]non_learner ok\n\n";
    assert_eq!(page(address, "/readyz").await, (503, found.into()));
    assert_eq!(page(address, "/readyz?exclude=linearizable_read").await.0, 200);
    assert_eq!(page(address, "/livez").await.0, 200);
}

#[tokio::test]
async fn stopping_waits_for_requests_under_way() {
    let server = serve(&config(), Slow { inner: replica(), delay: Duration::from_millis(300) });
    let mut client = kv(&server).await;
    let mut later = client.clone();
    let under_way = tokio::spawn(async move { client.put(put("k")).await });
    sleep(Duration::from_millis(100)).await;
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    under_way.await.unwrap().unwrap();
    later.put(put("k")).await.unwrap_err();
}

#[tokio::test]
async fn stopping_does_not_wait_forever() {
    let config = Config { stop_timeout: Duration::from_millis(200), ..config() };
    let server = serve(&config, Slow { inner: replica(), delay: Duration::from_secs(3600) });
    let mut client = kv(&server).await;
    let under_way = tokio::spawn(async move { client.put(Request::new(put("k"))).await });
    sleep(Duration::from_millis(100)).await;
    let stopped = tokio::task::spawn_blocking(move || server.stop());
    timeout(SOON, stopped).await.expect("it is broken off").unwrap();
    under_way.await.unwrap().unwrap_err();
}

#[test]
fn an_address_in_use_is_named() {
    let first = serve(&config(), replica());
    let taken = Config { client_addresses: vec![first.client_addresses()[0].into()], ..config() };
    let error = Server::start(&taken, replica(), synod_server::Registry::default()).unwrap_err().to_string();
    assert!(error.contains(&first.client_addresses()[0].to_string()), "{error}");
}

/// A program's main thread stops a server outside of any runtime.
#[test]
fn a_server_can_be_stopped_without_a_runtime() {
    let server = serve(&config(), replica());
    let address = server.client_addresses()[0];
    server.stop();
    assert!(std::net::TcpStream::connect(address).is_err());
}
