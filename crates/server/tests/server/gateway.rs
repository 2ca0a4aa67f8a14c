//! The calls of the v3 API as JSON over HTTP, health and reflection.

use std::time::Duration;

use crate::common::{
    config, connect,
    http2::{begin, http2_with},
    replica_of, serve,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::stream;
use serde_json::{Value, json};
use synod_api::{
    etcdserverpb::{PutRequest, RangeRequest, kv_client::KvClient},
    grpc::{
        health::v1::{
            HealthCheckRequest, HealthListRequest, health_check_response::ServingStatus,
            health_client::HealthClient,
        },
        reflection::v1::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest as Asked, server_reflection_response::MessageResponse,
        },
    },
};
use synod_kv::KvStore;
use synod_server::{Config, Limits, Server, Watches};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use tonic::Code;

const SOON: Duration = Duration::from_secs(20);

fn watched() -> Server {
    watched_within(config())
}

fn watched_within(config: Config) -> Server {
    let watches = Watches::new();
    let store = KvStore::new().feeding(watches.feed());
    let limits = Limits { request_bytes_max: 200_000, ..Limits::default() };
    serve(&Config { watches: Some(watches), ..config }, replica_of(store).limited(limits))
}

/// A connection of HTTP/1.1.
struct Http(BufReader<TcpStream>);

impl Http {
    async fn new(server: &Server) -> Http {
        Http(BufReader::new(TcpStream::connect(server.client_addresses()[0]).await.unwrap()))
    }

    async fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let len = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len}\r\n\r\n{body}");
        self.0.write_all(request.as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(SOON, self.0.read_line(&mut line)).await.expect("in time").unwrap();
        line.trim_end().to_owned()
    }

    /// Reads the head of an answer: its status, and how long it is unless it comes in chunks.
    async fn head(&mut self) -> (u16, Option<usize>) {
        let status = self.line().await.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = None;
        loop {
            let line = self.line().await.to_lowercase();
            if line.is_empty() {
                return (status, length);
            }
            if let Some(bytes) = line.strip_prefix("content-length: ") {
                length = Some(bytes.parse().unwrap());
            }
        }
    }

    /// Reads a chunk: an object and the end of its line.
    async fn chunk(&mut self) -> Value {
        let bytes = usize::from_str_radix(&self.line().await, 16).unwrap();
        let mut chunk = vec![0; bytes + 2];
        timeout(SOON, self.0.read_exact(&mut chunk)).await.expect("in time").unwrap();
        serde_json::from_slice(&chunk).unwrap()
    }

    /// Reads the rest of an answer in chunks, and how many there are.
    async fn chunks(&mut self) -> (Vec<u8>, usize) {
        let (mut all, mut count) = (Vec::new(), 0);
        loop {
            let bytes = usize::from_str_radix(&self.line().await, 16).unwrap();
            let mut chunk = vec![0; bytes + 2];
            timeout(SOON, self.0.read_exact(&mut chunk)).await.expect("in time").unwrap();
            if bytes == 0 {
                return (all, count);
            }
            all.extend_from_slice(&chunk[..bytes]);
            count += 1;
        }
    }

    async fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
        self.send(method, path, headers, body).await;
        let (status, bytes) = self.head().await;
        let mut body = vec![0; bytes.expect("it is a single object")];
        timeout(SOON, self.0.read_exact(&mut body)).await.expect("in time").unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn post(&mut self, path: &str, body: Value) -> (u16, Value) {
        self.ask("POST", path, "", &body.to_string()).await
    }
}

fn header(revision: &str) -> Value {
    json!({"cluster_id": "193", "member_id": "7", "revision": revision, "raft_term": "1"})
}

#[tokio::test]
async fn keys_are_put_and_got_as_json() {
    let server = watched();
    let mut http = Http::new(&server).await;
    let (status, put) = http.post("/v3/kv/put", json!({"key": "Zm9v", "value": "YmFy"})).await;
    assert_eq!((status, put), (200, json!({"header": header("2")})));
    let (status, got) = http.post("/v3/kv/range", json!({"key": "Zm9v"})).await;
    let kv = json!({
        "key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "YmFy"
    });
    assert_eq!((status, got), (200, json!({"header": header("2"), "kvs": [kv], "count": "1"})));
    let txn = json!({
        "compare": [{"result": "EQUAL", "target": "CREATE", "key": "Zm9v", "createRevision": "2"}],
        "success": [{"requestPut": {"key": "Zm9v", "value": "bmV3"}}, {"request_range": {"key": "Zm9v"}}],
    });
    let (status, txn) = http.post("/v3/kv/txn", txn).await;
    assert_eq!((status, &txn["succeeded"]), (200, &json!(true)));
    assert_eq!(txn["responses"][1]["response_range"]["kvs"][0]["value"], "bmV3");
    let (status, members) = http.ask("POST", "/v3/cluster/member/list", "", "").await;
    assert_eq!((status, &members["members"][0]["name"]), (200, &json!("only")));
    let (status, told) = http.post("/v3/maintenance/status", json!({})).await;
    assert_eq!((status, &told["version"]), (200, &json!("3.7.3")));
    // The same connection serves pages.
    let (status, health) = http.ask("GET", "/health", "", "").await;
    assert_eq!((status, &health["health"]), (200, &json!("true")));
}

#[tokio::test]
async fn refusals_have_the_code_of_http_and_that_of_grpc() {
    let server = watched();
    let mut http = Http::new(&server).await;
    let failed = |code: i32, message: &str| json!({"code": code, "error": message, "message": message});
    let (status, told) = http.post("/v3/kv/put", json!({"value": "YmFy"})).await;
    assert_eq!((status, told), (400, failed(3, "etcdserver: key is not provided")));
    let (status, told) = http.post("/v3/kv/put", json!({"key": "YQ==", "lease": 7})).await;
    assert_eq!((status, told), (404, failed(5, "etcdserver: requested lease not found")));
    let (status, told) = http.post("/v3/kv/nothing", json!({})).await;
    assert_eq!((status, told), (404, failed(5, "Not Found")));
    let (status, told) = http.ask("GET", "/v3/kv/put", "", "").await;
    assert_eq!((status, told), (501, failed(12, "Method Not Allowed")));
    let (status, told) = http.ask("POST", "/v3/kv/put", "", "{\"key\": 7}").await;
    assert_eq!((status, &told["code"]), (400, &json!(3)));
    let large = json!({"key": "YQ==", "value": "A".repeat(400_000)});
    let (status, told) = http.post("/v3/kv/put", large).await;
    assert_eq!((status, told), (400, failed(3, "etcdserver: request is too large")));
    let (status, _) =
        Http::new(&server).await.post("/v3/kv/put", json!({"key": "A".repeat(2_000_000)})).await;
    assert_eq!(status, 429);
    let late = "Grpc-Timeout: 50m\r\n";
    http.ask("POST", "/v3/lock/lock", "", "{}").await;
    let (status, told) = http.ask("POST", "/v3/lock/lock", late, "{}").await;
    assert_eq!((status, told), (504, failed(4, "context deadline exceeded")));
}

/// A message of a body takes eight hundred bytes, and eleven in the body.
#[tokio::test]
async fn what_bodies_contain_is_counted_before_anything_is_made_of_it() {
    let server = watched();
    let mut http = Http::new(&server).await;
    let body = |count: usize| json!({"compare": vec![json!({"key": ""}); count]});
    let (status, told) = http.post("/v3/kv/txn", body(129)).await;
    assert_eq!((status, &told["error"]), (400, &json!("etcdserver: too many operations in txn request")));
    let (status, told) = http.post("/v3/kv/txn", body(33_000)).await;
    let text = "synod: a request has 65536 fields at most, those of all messages in it counted; send several";
    assert_eq!((status, &told["error"]), (429, &json!(text)));
    // Characters in texts are no messages.
    let value = STANDARD.encode("x".repeat(1000));
    let put = json!({"key": "YQ==", "value": value, "unknown": ",[{".repeat(30_000)});
    assert_eq!(http.post("/v3/kv/put", put).await.0, 200);
}

#[tokio::test]
async fn long_answers_are_written_piece_by_piece() {
    let server = watched();
    let mut kv = KvClient::new(connect(&server).await);
    for number in 0..200 {
        let key = format!("{number:03}").into();
        kv.put(PutRequest { key, value: vec![7; 2_000].into(), ..PutRequest::default() }).await.unwrap();
    }
    let mut http = Http::new(&server).await;
    let all = json!({"key": "AA==", "range_end": "AA=="}).to_string();
    for _ in 0..2 {
        http.send("POST", "/v3/kv/range", "", &all).await;
        assert_eq!(http.head().await, (200, None));
        let (object, count) = http.chunks().await;
        assert!(count > 4, "{count}");
        let object: Value = serde_json::from_slice(&object).unwrap();
        assert_eq!((&object["count"], &object["header"]), (&json!("200"), &header("201")));
        assert_eq!(object["kvs"].as_array().unwrap().len(), 200);
        assert_eq!(object["kvs"][199]["key"], STANDARD.encode("199"));
        assert_eq!(object["kvs"][199]["value"], STANDARD.encode([7; 2_000]));
    }
    // A long message of a stream is a line, too.
    http.send("POST", "/v3/kv/rangestream", "", &all).await;
    assert_eq!(http.head().await, (200, None));
    let (lines, _) = http.chunks().await;
    let lines: Vec<Value> = lines
        .trim_ascii()
        .split(|&byte| byte == b'\n')
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let pairs = |line: &Value| line["result"]["range_response"]["kvs"].as_array().map_or(0, Vec::len);
    assert_eq!(lines.iter().map(pairs).sum::<usize>(), 200);
}

#[tokio::test]
async fn a_watch_is_a_line_for_each_response() {
    let server = watched();
    let (mut http, mut other) = (Http::new(&server).await, Http::new(&server).await);
    http.send("POST", "/v3/watch", "", &json!({"create_request": {"key": "aw=="}}).to_string()).await;
    assert_eq!(http.head().await, (200, None));
    assert_eq!(http.chunk().await, json!({"result": {"header": header("1"), "created": true}}));
    other.post("/v3/kv/put", json!({"key": "aw==", "value": "dg=="})).await;
    let kv = json!({
        "key": "aw==", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "dg=="
    });
    let told = json!({"result": {"header": header("2"), "events": [{"kv": kv}]}});
    assert_eq!(http.chunk().await, told);
    other.post("/v3/kv/deleterange", json!({"key": "aw=="})).await;
    assert_eq!(http.chunk().await["result"]["events"][0]["type"], "DELETE");
    let stopped = tokio::task::spawn_blocking(|| server.stop());
    let last = http.chunk().await;
    assert_eq!(last["error"]["message"], "etcdserver: server stopped");
    drop((http, other));
    timeout(SOON, stopped).await.expect("it does not wait").unwrap();
}

#[tokio::test]
async fn leases_are_kept_and_snapshots_come_as_lines() {
    let server = watched();
    let mut http = Http::new(&server).await;
    let (_, granted) = http.post("/v3/lease/grant", json!({"TTL": 60, "ID": "7"})).await;
    assert_eq!((&granted["ID"], &granted["TTL"]), (&json!("7"), &json!("60")));
    let twice = r#"{"ID":7}{"ID":"8"}"#;
    http.send("POST", "/v3/lease/keepalive", "", twice).await;
    http.head().await;
    let mut kept = [http.chunk().await, http.chunk().await];
    kept.sort_by_key(|kept| kept["result"]["ID"].to_string());
    assert_eq!((&kept[0]["result"]["TTL"], &kept[1]["result"]["TTL"]), (&json!("60"), &Value::Null));
    assert_eq!(http.line().await, "0");
    http.line().await;
    // A stream without a message, which ends well.
    http.send("POST", "/v3/lease/keepalive", "", "").await;
    assert_eq!(http.head().await.0, 200);
    assert_eq!(http.line().await, "0");
    http.line().await;
    http.send("POST", "/v3/maintenance/snapshot", "", "{}").await;
    http.head().await;
    let first = http.chunk().await;
    assert_eq!(first["result"]["version"], "3.6.0");
}

/// A client that leaves takes its key out of the queue.
#[tokio::test]
async fn a_lock_that_is_waited_for_ends_with_its_client() {
    let server = watched();
    let (mut http, mut other) = (Http::new(&server).await, Http::new(&server).await);
    let (_, first) = http.post("/v3/lock/lock", json!({"name": "bg=="})).await;
    other.send("POST", "/v3/lock/lock", "", &json!({"name": "bg=="}).to_string()).await;
    let mut kv = KvClient::new(connect(&server).await);
    let mut count = async || {
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        kv.range(all).await.unwrap().into_inner().count
    };
    let mut until = async |wanted| {
        let seen = async { while count().await != wanted {} };
        timeout(SOON, seen).await.expect("in time");
    };
    until(2).await;
    drop(other);
    until(1).await;
    let (status, _) = http.post("/v3/lock/unlock", json!({"key": first["key"]})).await;
    assert_eq!(status, 200);
    until(0).await;
}

#[tokio::test]
async fn json_and_pages_are_served_over_http2() {
    let server = watched();
    let send = crate::common::http2::http2(&server).await;
    let ask = async |request: http::request::Builder, body: &str| {
        let answer = crate::common::http2::call(&send, request, body.as_bytes()).await;
        (answer.http_status, serde_json::from_slice::<Value>(&answer.body).unwrap())
    };
    let post = |path: &str| http::Request::post(format!("http://x{path}"));
    let (status, put) = ask(post("/v3/kv/put"), r#"{"key":"YQ==","value":"Yg=="}"#).await;
    assert_eq!((status, put), (200, json!({"header": header("2")})));
    let (status, refused) = ask(post("/v3/kv/put"), "{}").await;
    assert_eq!((status, &refused["code"]), (400, &json!(3)));
    let (status, health) = ask(http::Request::get("http://x/health"), "").await;
    assert_eq!((status, &health["health"]), (200, &json!("true")));
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call_and_old_paths_are_served() {
    let server = watched();
    let mut http = Http::new(&server).await;
    let put = json!({"key": "Zm9v", "value": "YmFy"}).to_string();
    // The head of an answer, and what it says of origins.
    let asked = async |http: &mut Http, method: &str, path: &str, body: &str| {
        http.send(method, path, "origin: http://page.example\r\n", body).await;
        let mut lines = vec![http.line().await.to_lowercase()];
        while !lines[lines.len() - 1].is_empty() {
            lines.push(http.line().await.to_lowercase());
        }
        let value = |name: &str| lines.iter().find_map(|line| Some(line.strip_prefix(name)?.to_owned()));
        let mut body = vec![0; value("content-length: ").unwrap().parse().unwrap()];
        timeout(SOON, http.0.read_exact(&mut body)).await.expect("in time").unwrap();
        let status: u16 = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        (status, value("access-control-allow-origin: "), value("access-control-allow-headers: "))
    };
    let (any, headers) = (Some("*".to_owned()), Some("accept, content-type, authorization".to_owned()));
    for (method, path, status) in [
        ("OPTIONS", "/v3/kv/put", 200),
        ("POST", "/v3/kv/put", 200),
        ("POST", "/v3beta/kv/put", 200),
        ("POST", "/v3beta/no/such", 404),
        ("GET", "/health", 200),
        ("OPTIONS", "/nowhere", 200),
    ] {
        let answer = asked(&mut http, method, path, &put).await;
        assert_eq!(answer, (status, any.clone(), headers.clone()), "{method} {path}");
    }
    let origins = vec!["http://other.example".to_owned()];
    let server = serve(&Config { origins, ..config() }, replica_of(KvStore::new()));
    let mut http = Http::new(&server).await;
    assert_eq!(asked(&mut http, "OPTIONS", "/v3/kv/put", "").await, (200, None, None));
    assert_eq!(asked(&mut http, "POST", "/v3/kv/put", &put).await, (200, None, None));
}

#[tokio::test]
async fn health_and_reflection_are_served() {
    let server = watched();
    let channel = connect(&server).await;
    let mut health = HealthClient::new(channel.clone());
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let serving = i32::from(ServingStatus::Serving);
    assert_eq!(health.check(ask("")).await.unwrap().into_inner().status, serving);
    let unknown = health.check(ask("x")).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message()), (Code::NotFound, "unknown service"));
    let all = health.list(HealthListRequest {}).await.unwrap().into_inner().statuses;
    assert_eq!(
        all.into_iter().map(|(name, of)| (name, of.status)).collect::<Vec<_>>(),
        [(String::new(), serving)]
    );
    let mut watched = health.watch(ask("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, serving);
    let mut reflection = ServerReflectionClient::new(channel);
    let asked = [
        Asked::ListServices(String::new()),
        Asked::FileContainingSymbol("etcdserverpb.KV.Range".to_owned()),
        Asked::FileByFilename("nothing.proto".to_owned()),
    ];
    let asked =
        asked.map(|asked| ServerReflectionRequest { host: String::new(), message_request: Some(asked) });
    let mut told = reflection.server_reflection_info(stream::iter(asked)).await.unwrap().into_inner();
    let mut next = async || told.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(listed) = next().await else { panic!("a list") };
    assert!(listed.service.iter().any(|service| service.name == "v3lockpb.Lock"));
    let MessageResponse::FileDescriptorResponse(files) = next().await else { panic!("files") };
    assert_eq!(files.file_descriptor_proto.len(), 2, "the file of KV, and what it imports");
    let MessageResponse::ErrorResponse(error) = next().await else { panic!("an error") };
    assert_eq!(error.error_code, Code::NotFound as i32);
}

/// A client of HTTP/2 that makes no room for the bodies of answers.
async fn without_room(server: &Server) -> h2::client::SendRequest<bytes::Bytes> {
    http2_with(server, h2::client::Builder::new().initial_window_size(0)).await
}

/// Makes a call as JSON; the body of the answer stays where it is.
async fn begun(
    send: &h2::client::SendRequest<bytes::Bytes>,
    path: &str,
    body: Value,
) -> h2::client::ResponseFuture {
    let request = http::Request::post(format!("http://x{path}")).header("content-type", "application/json");
    begin(send, request, body.to_string().as_bytes(), true).await.0
}

/// Otherwise a client could have the server keep as many answers as it likes.
#[tokio::test]
async fn answers_that_nobody_reads_stay_charged() {
    let limited = Config { requests_bytes_max: 8 << 20, ..config() };
    let server = serve(&limited, replica_of(KvStore::new()));
    let mut http = Http::new(&server).await;
    let value = STANDARD.encode(vec![b'x'; 100_000]);
    assert_eq!(http.post("/v3/kv/put", json!({"key": "Zm9v", "value": value})).await.0, 200);
    let send = without_room(&server).await;
    let (mut answered, mut refused) = (Vec::new(), 0);
    for _ in 0..200 {
        let response = timeout(SOON, begun(&send, "/v3/kv/range", json!({"key": "Zm9v"})).await).await;
        match response.expect("in time").unwrap() {
            answer if answer.status() == 200 => answered.push(answer),
            answer => {
                assert_eq!(answer.status(), 429);
                refused += 1;
            }
        }
    }
    assert!(answered.len() < 50 && refused > 100, "{} answered, {refused} refused", answered.len());
    // What is given up is free again.
    drop(answered);
    loop {
        let response = begun(&send, "/v3/kv/range", json!({"key": "Zm9v"})).await;
        if timeout(SOON, response).await.expect("in time").unwrap().status() == 200 {
            break;
        }
    }
}

/// Nor as many requests.
#[tokio::test]
async fn requests_of_a_stream_stay_charged_until_they_are_read() {
    let server = watched_within(Config { requests_bytes_max: 32 << 20, ..config() });
    let send = without_room(&server).await;
    // Watches of nothing are refused, and cost nothing. Once their answers have no room, no more requests are read.
    let refused = json!({"create_request": {"key": "Zm9v", "range_end": "AQ=="}}).to_string().repeat(2_000);
    let large = json!({"create_request": {"key": STANDARD.encode(vec![b'x'; 300_000])}}).to_string();
    let body = [refused, large].concat();
    let mut taken = Vec::new();
    for _ in 0..50 {
        let request = http::Request::post("http://x/v3/watch").header("content-type", "application/json");
        let response = begin(&send, request, body.as_bytes(), true).await.0;
        let answer = timeout(SOON, response).await.expect("in time").unwrap();
        if answer.status() == 200 {
            taken.push(answer);
        }
    }
    assert!((1..5).contains(&taken.len()), "{} are held", taken.len());
}

#[tokio::test]
async fn a_stream_that_nobody_reads_holds_up_no_other_call() {
    let server = watched();
    let send = without_room(&server).await;
    let watch = json!({"create_request": {"key": "Zm9v"}});
    let watch = timeout(SOON, begun(&send, "/v3/watch", watch).await).await.expect("in time").unwrap();
    let value = STANDARD.encode(vec![b'x'; 100_000]);
    // More than a window of events.
    for _ in 0..30 {
        let put = begun(&send, "/v3/kv/put", json!({"key": "Zm9v", "value": value})).await;
        assert_eq!(timeout(SOON, put).await.expect("in time").unwrap().status(), 200);
    }
    drop(watch);
}

/// A message that is translated is in memory several times until its client takes it.
#[tokio::test]
async fn large_messages_of_streams_are_charged() {
    let server = watched_within(Config { requests_bytes_max: 8 << 20, ..config() });
    // There is room for the answers that begin watches, and for that of a watch that is refused.
    let send = http2_with(&server, h2::client::Builder::new().initial_window_size(400)).await;
    let mut watches = Vec::new();
    for _ in 0..8 {
        let watch = begun(&send, "/v3/watch", json!({"create_request": {"key": "Zm9v"}})).await;
        let mut body = timeout(SOON, watch).await.expect("in time").unwrap().into_body();
        let first = timeout(SOON, body.data()).await.expect("in time").unwrap().unwrap();
        assert!(first.ends_with(b"}\n") && first.len() < 200, "{first:?}");
        watches.push(body);
    }
    let value = STANDARD.encode(vec![b'x'; 100_000]);
    let mut http = Http::new(&server).await;
    assert_eq!(http.post("/v3/kv/put", json!({"key": "Zm9v", "value": value})).await.0, 200);
    let (mut told, mut refused) = (0, 0);
    for body in &mut watches {
        let next = timeout(SOON, body.data()).await.expect("in time").unwrap().unwrap();
        let is_refused = next.starts_with(b"{\"error\"") && next.ends_with(b"}\n");
        *if is_refused { &mut refused } else { &mut told } += 1;
    }
    assert!(told > 0 && refused > 0, "{told} told, {refused} refused");
}

/// A command that has had its effect is not answered as one that was refused, however large its answer is.
#[tokio::test]
async fn a_write_with_a_large_answer_is_answered_and_never_refused_afterwards() {
    const VALUES: usize = 30;
    const VALUE_BYTES: usize = 1_000_000;
    let of = |text: &str| STANDARD.encode(text);
    let all = || json!({"key": of("big/"), "range_end": of("big0")});
    let fill = async |http: &mut Http| {
        let value = STANDARD.encode(vec![b'v'; VALUE_BYTES]);
        for number in 0..VALUES {
            let put = json!({"key": of(&format!("big/{number:02}")), "value": value});
            assert_eq!(http.post("/v3/kv/put", put).await.0, 200);
        }
    };
    let txn = || {
        json!({"success": [
            {"request_put": {"key": of("marker"), "value": of("written")}},
            {"request_range": all()},
        ]})
    };
    let marker = async |http: &mut Http| {
        http.post("/v3/kv/range", json!({"key": of("marker")})).await.1["kvs"][0]["value"].clone()
    };
    let server = serve(&config(), replica_of(KvStore::new()));
    let mut http = Http::new(&server).await;
    fill(&mut http).await;
    for (path, asked) in [("/v3/kv/range", all()), ("/v3/kv/txn", txn())] {
        http.send("POST", path, "", &asked.to_string()).await;
        assert_eq!(http.head().await, (200, None), "{path}");
        let (answer, _) = http.chunks().await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let found = if path.ends_with("txn") { &answer["responses"][1]["response_range"] } else { &answer };
        assert_eq!(found["kvs"].as_array().unwrap().len(), VALUES, "{path}");
    }
    assert_eq!(marker(&mut http).await, of("written"));
    // Where memory is missing, a read may be tried again, and of a write the outcome is unknown.
    let little = Config { requests_bytes_max: 64 << 20, ..config() };
    let server = serve(&little, replica_of(KvStore::new()));
    let mut http = Http::new(&server).await;
    fill(&mut http).await;
    let (status, refused) = http.post("/v3/kv/range", all()).await;
    assert_eq!((status, &refused["message"]), (429, &json!("etcdserver: too many requests")));
    let (status, refused) = http.post("/v3/kv/txn", txn()).await;
    assert_eq!((status, &refused["code"]), (503, &json!(14)));
    assert!(refused["message"].as_str().unwrap().contains("the outcome is unknown"), "{refused}");
    assert_eq!(marker(&mut http).await, of("written"));
    let delete = json!({"key": of("big/"), "range_end": of("big0"), "prev_kv": true});
    assert_eq!(http.post("/v3/kv/deleterange", delete).await.0, 503);
    let (_, left) = http
        .post("/v3/kv/range", json!({"key": of("big/"), "range_end": of("big0"), "count_only": true}))
        .await;
    assert_eq!(left["count"], Value::Null);
}
