//! How a server treats requests on the streams of an HTTP/2 connection: slow ones, large ones, and those that
//! are given up.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::{
    config, connect,
    http2::{SOON, begin, call, finish, framed, http2, http2_with, post, read},
    replica, serve,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use h2::{Reason, RecvStream, SendStream, client::SendRequest};
use http::Request;
use prost::Message;
use synod_api::etcdserverpb::{
    DeleteRangeRequest, HashKvRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, RangeResponse,
    RangeStreamResponse, RequestOp, TxnRequest, kv_client::KvClient, maintenance_client::MaintenanceClient,
    range_request::SortTarget, request_op::Request as Op,
};
use synod_server::{Config, Consistency, InMemory, Replica, RequestError, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";

/// A state machine that executes a command about a key that begins with `slow` only when the test allows it.
#[derive(Clone, Debug)]
struct Gated {
    inner: InMemory,
    gate: Arc<Semaphore>,
    /// Commands that wait and are not given up.
    waiting: Arc<AtomicUsize>,
    /// Pieces of answers that were made, and answers in pieces that are being made or wait for that.
    pieces: Arc<AtomicUsize>,
    sources: Arc<AtomicUsize>,
    /// Bytes of the replies to commands.
    answered: Arc<AtomicUsize>,
}

impl Gated {
    fn new() -> Gated {
        Gated {
            inner: replica(),
            gate: Arc::new(Semaphore::new(0)),
            waiting: Arc::default(),
            pieces: Arc::default(),
            sources: Arc::default(),
            answered: Arc::default(),
        }
    }

    async fn until_waiting(&self, count: usize) {
        until(&self.waiting, count).await;
    }
}

async fn until(counter: &AtomicUsize, count: usize) {
    let reached = async {
        while counter.load(Ordering::SeqCst) != count {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let reached = timeout(SOON, reached).await;
    reached.unwrap_or_else(|_| panic!("{} wait, not {count}", counter.load(Ordering::SeqCst)));
}

struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Replica for Gated {
    answered_by_inner!(limits, execute_in_session, open_session, term, status, group, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        if command.windows(4).any(|bytes| bytes == b"slow") {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _waiting = Waiting(self.waiting.clone());
            self.gate.acquire().await.unwrap().forget();
        }
        let answer = self.inner.execute(command).await?;
        self.answered.fetch_add(answer.len(), Ordering::SeqCst);
        Ok(answer)
    }

    async fn query(
        &self,
        query: Bytes,
        consistency: Consistency,
    ) -> Result<synod_server::Answer, RequestError> {
        let pieces = self.pieces.clone();
        let fails = query.windows(4).any(|bytes| bytes == b"fail");
        Ok(match self.inner.query(query, consistency).await? {
            synod_server::Answer::Pieces(source) => {
                self.sources.fetch_add(1, Ordering::SeqCst);
                let present = Waiting(self.sources.clone());
                synod_server::Answer::Pieces(Box::new(source.inspect(move |_| {
                    let _ = &present;
                    assert!(!fails || pieces.load(Ordering::SeqCst).is_multiple_of(2), "as it was asked to");
                    pieces.fetch_add(1, Ordering::SeqCst);
                })))
            }
            whole => whole,
        })
    }
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

#[tokio::test]
async fn answers_leave_in_the_order_in_which_they_are_ready() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let send = http2(&server).await;
    let (slow, _stream) = begin(&send, post(PUT), &framed(&put("slow")), true).await;
    replica.until_waiting(1).await;
    for _ in 0..3 {
        assert_eq!(call(&send, post(PUT), &framed(&put("fast"))).await.grpc_status, "0");
    }
    assert_eq!(replica.waiting.load(Ordering::SeqCst), 1);
    replica.gate.add_permits(1);
    assert_eq!(finish(slow).await.grpc_status, "0");
}

#[tokio::test]
async fn a_request_that_is_reset_is_forgotten() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let send = http2(&server).await;
    let (_response, mut stream) = begin(&send, post(PUT), &framed(&put("slow")), true).await;
    replica.until_waiting(1).await;
    stream.send_reset(Reason::CANCEL);
    replica.until_waiting(0).await;
    // Requests may also be reset in the middle of their message.
    let (_response, mut stream) = begin(&send, post(PUT), &framed(&put("slow"))[..8], false).await;
    stream.send_reset(Reason::CANCEL);
    assert_eq!(call(&send, post(PUT), &framed(&put("k"))).await.grpc_status, "0");
}

#[tokio::test]
async fn a_connection_that_breaks_forgets_its_requests() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let _three = [
        begin(&send, post(PUT), &framed(&put("slow1")), true).await,
        begin(&send, post(PUT), &framed(&put("slow2")), true).await,
        begin(&send, post(PUT), &framed(&put("slow3")), true).await,
    ];
    replica.until_waiting(3).await;
    connection.abort();
    replica.until_waiting(0).await;
}

#[tokio::test]
async fn a_client_is_answered_when_it_stops_waiting() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let send = http2(&server).await;
    let hurried = post(PUT).header("grpc-timeout", "50m");
    let began = Instant::now();
    let answer = call(&send, hurried, &framed(&put("slow"))).await;
    assert_eq!(
        (answer.grpc_status.as_str(), answer.grpc_message.as_str()),
        ("4", "context%20deadline%20exceeded")
    );
    assert!(began.elapsed() >= Duration::from_millis(50));
    replica.until_waiting(0).await;
    let patient = post(PUT).header("grpc-timeout", "1H");
    assert_eq!(call(&send, patient, &framed(&put("k"))).await.grpc_status, "0");
    let wrong = post(PUT).header("grpc-timeout", "soon");
    let answer = call(&send, wrong, &framed(&put("k"))).await;
    assert_eq!((answer.http_status, answer.grpc_status.as_str()), (400, "13"));
    let late = post(PUT).header("grpc-timeout", "0n");
    assert_eq!(call(&send, late, &framed(&put("late"))).await.grpc_status, "4");
    let get = framed(&RangeRequest { key: "late".into(), ..Default::default() });
    let found = call(&send, post(RANGE), &get).await.body;
    assert_eq!(RangeResponse::decode(found.slice(5..)).unwrap().count, 0, "it is not executed");
}

#[tokio::test]
async fn requests_beyond_the_bound_wait_at_the_client() {
    let replica = Gated::new();
    let server = serve(&Config { streams_per_connection_max: 2, ..config() }, replica.clone());
    let send = http2(&server).await;
    // The client knows the bound once it has an answer.
    call(&send, post(PUT), &framed(&put("k"))).await;
    let slow = |key: &'static str| {
        let send = send.clone();
        tokio::spawn(async move { call(&send, post(PUT), &framed(&put(key))).await.grpc_status })
    };
    let calls = [slow("slow1"), slow("slow2"), slow("slow3"), slow("slow4")];
    replica.until_waiting(2).await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!(replica.waiting.load(Ordering::SeqCst), 2);
    replica.gate.add_permits(4);
    for call in calls {
        assert_eq!(call.await.unwrap(), "0");
    }
}

#[tokio::test]
async fn what_is_not_grpc_is_told_so() {
    let server = serve(&config(), replica());
    let send = http2(&server).await;
    let body = framed(&put("k"));
    let get = Request::get(format!("http://x{PUT}")).header("content-type", "application/grpc");
    let answer = call(&send, get, &body).await;
    assert_eq!((answer.http_status, answer.grpc_status.as_str()), (405, "13"));
    for wrong in ["application/json", "application/grpc-web"] {
        let request = Request::post(format!("http://x{PUT}")).header("content-type", wrong);
        let answer = call(&send, request, &body).await;
        assert_eq!((answer.http_status, answer.grpc_status.as_str()), (415, "3"), "{wrong}");
    }
    let answer = call(&send, post(PUT).header("host", "a").header("host", "b"), &body).await;
    assert_eq!((answer.http_status, answer.grpc_status.as_str()), (400, "13"));
    assert_eq!(call(&send, post(PUT).header("host", "a"), &body).await.grpc_status, "0");
    // A message is protobuf however its content type goes on.
    let other = Request::post(format!("http://x{PUT}")).header("content-type", "application/grpc+other");
    assert_eq!(call(&send, other, &body).await.grpc_status, "0");
    let answer = call(&send, post("/etcdserverpb.KV/Nothing"), &body).await;
    assert_eq!((answer.http_status, answer.grpc_status.as_str()), (200, "12"));
    assert_eq!(answer.grpc_message, "unknown%20method%20Nothing%20for%20service%20etcdserverpb.KV");
    let twice = [&body[..], &body].concat();
    assert_eq!(call(&send, post(PUT), &twice).await.grpc_status, "13");
    assert_eq!(call(&send, post(PUT), &body).await.grpc_status, "0");
}

/// A message that is compressed with gzip.
fn packed(message: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(message).unwrap();
    let packed = packed.finish().unwrap();
    let len = u32::try_from(packed.len()).unwrap().to_be_bytes();
    [&[1], &len[..], &packed].concat()
}

#[tokio::test]
async fn messages_may_come_as_gzip_and_are_bounded_by_what_they_become() {
    let server = serve(&config(), replica());
    let send = http2(&server).await;
    let gzip = || post(PUT).header("grpc-encoding", "gzip");
    let plain = framed(&put("k"));
    assert_eq!(call(&send, gzip(), &packed(&plain[5..])).await.grpc_status, "0");
    assert_eq!(call(&send, gzip(), &plain).await.grpc_status, "0", "not every message has to be");
    let renewal = LeaseKeepAliveRequest { id: 7 }.encode_to_vec();
    let keep_alive = || post("/etcdserverpb.Lease/LeaseKeepAlive").header("grpc-encoding", "gzip");
    let twice = call(&send, keep_alive(), &[packed(&renewal), packed(&renewal)].concat()).await;
    assert_eq!(twice.grpc_status, "0");
    let once = call(&send, keep_alive(), &packed(&renewal)).await;
    assert_eq!(twice.body.len(), 2 * once.body.len(), "a message of a stream each");
    let large = framed(&PutRequest { value: vec![7; 64 << 20].into(), ..put("k") });
    let bomb = packed(&large[5..]);
    assert!(bomb.len() < 1 << 20);
    let answer = call(&send, gzip(), &bomb).await;
    assert_eq!(answer.grpc_status, "8");
    assert!(answer.grpc_message.contains("after%20decompression%20larger"), "{}", answer.grpc_message);
    let mut torn = packed(&plain[5..]);
    // Eight bytes at the end are a checksum and a length.
    *torn.iter_mut().nth_back(7).unwrap() ^= 1;
    assert_eq!(call(&send, gzip(), &torn).await.grpc_status, "13");
    let twice = [&packed(&plain[5..])[5..], &packed(&[])[5..]].concat();
    let len = u32::try_from(twice.len()).unwrap().to_be_bytes();
    let two_members = [&[1], &len[..], &twice].concat();
    assert_eq!(call(&send, gzip(), &two_members).await.grpc_status, "13");
    let unnamed = |encoding: &str| post(PUT).header("grpc-encoding", encoding);
    for request in [post(PUT), unnamed("identity"), unnamed("")] {
        let answer = call(&send, request, &packed(&plain[5..])).await;
        assert_eq!(answer.grpc_status, "13");
        assert!(answer.grpc_message.contains("identity%20or%20empty%20encoding"), "{}", answer.grpc_message);
    }
    let unnamed_stream = post("/etcdserverpb.Lease/LeaseKeepAlive");
    assert_eq!(call(&send, unnamed_stream, &packed(&renewal)).await.grpc_status, "13");
    assert_eq!(call(&send, unnamed(""), &plain).await.grpc_status, "0");
    let answer = call(&send, post(PUT).header("grpc-encoding", "deflate"), &plain).await;
    assert_eq!((answer.grpc_status.as_str(), answer.accepts.as_str()), ("12", "gzip"));
    assert!(answer.grpc_message.contains("not%20installed"), "{}", answer.grpc_message);
    assert_eq!(call(&send, post(PUT), &plain).await.grpc_status, "0");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_before_it_has_come() {
    let server = serve(&config(), replica());
    let send = http2(&server).await;
    let (response, mut rest) = begin(&send, post(PUT), b"\0\x10\0\0\0begins", false).await;
    let answer = finish(response).await;
    assert_eq!(answer.grpc_status, "8");
    assert!(answer.grpc_message.contains("larger%20than%20max"), "{}", answer.grpc_message);
    // The server does not read the rest.
    let reset = std::future::poll_fn(|cx| rest.poll_reset(cx));
    assert_eq!(timeout(SOON, reset).await.expect("it is reset").unwrap(), Reason::NO_ERROR);
    assert_eq!(call(&send, post(PUT), &framed(&put("k"))).await.grpc_status, "0");
}

#[tokio::test]
async fn a_message_may_come_in_pieces() {
    let server = serve(&config(), replica());
    let send = http2(&server).await;
    let message = framed(&put("k"));
    let (response, mut stream) = begin(&send, post(PUT), &message[..1], false).await;
    for byte in &message[1..] {
        stream.send_data(Bytes::copy_from_slice(&[*byte]), false).unwrap();
        tokio::task::yield_now().await;
    }
    stream.send_data(Bytes::new(), true).unwrap();
    assert_eq!(finish(response).await.grpc_status, "0");
    // The message is many times larger than a stream's window, so it stalls unless what was read is given back.
    let mut client = KvClient::new(connect(&server).await);
    for _ in 0..20 {
        let large = PutRequest { value: vec![b'v'; 1_500_000].into(), ..put("large") };
        timeout(SOON, client.put(large)).await.expect("it does not stall").unwrap();
    }
}

#[tokio::test]
async fn an_answer_larger_than_the_window_waits_for_its_reader_and_delays_no_other() {
    let server = serve(&config(), replica());
    let value = Bytes::from((0..1_400_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let mut client = KvClient::new(connect(&server).await);
    client.put(PutRequest { value: value.clone(), ..put("large") }).await.unwrap();
    let send = http2_with(
        &server,
        h2::client::Builder::new().initial_window_size(10_000).initial_connection_window_size(1 << 20),
    )
    .await;
    let get = framed(&RangeRequest { key: "large".into(), ..Default::default() });
    let (response, _stream) = begin(&send, post(RANGE), &get, true).await;
    let response = timeout(SOON, response).await.unwrap().unwrap();
    assert_eq!(call(&send, post(PUT), &framed(&put("k"))).await.grpc_status, "0");
    let mut stream = response.into_body();
    let body = timeout(SOON, read(&mut stream, usize::MAX)).await.expect("it comes as it is read");
    assert_eq!(RangeResponse::decode(body.slice(5..)).unwrap().kvs[0].value, value);
    assert_eq!(stream.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    // An answer that is given up half-way leaves room for the next.
    for _ in 0..3 {
        let (response, mut request) = begin(&send, post(RANGE), &get, true).await;
        let mut stream = response.await.unwrap().into_body();
        read(&mut stream, 1).await;
        request.send_reset(Reason::CANCEL);
    }
    // One whose time is over half-way is cancelled: a status would come in the middle of the message.
    let hurried = post(RANGE).header("grpc-timeout", "100m");
    let (response, _stream) = begin(&send, hurried, &get, true).await;
    let mut stream = response.await.unwrap().into_body();
    let cancelled = async {
        loop {
            if let Err(error) = stream.data().await.expect("no status comes") {
                break error.reason();
            }
        }
    };
    assert_eq!(timeout(SOON, cancelled).await.expect("it ends"), Some(Reason::CANCEL));
    let (response, _stream) = begin(&send, post(RANGE), &get, true).await;
    assert!(finish(response).await.body.len() > value.len());
}

#[tokio::test]
async fn pieces_of_a_range_are_made_as_they_are_read() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let mut client = KvClient::new(connect(&server).await);
    for i in 0..100 {
        let value = vec![i; 200_000].into();
        client.put(PutRequest { value, ..put(&format!("k{i:02}")) }).await.unwrap();
    }
    let send = http2_with(&server, h2::client::Builder::new().initial_window_size(50_000)).await;
    let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let (response, _stream) = begin(&send, post("/etcdserverpb.KV/RangeStream"), &framed(&all), true).await;
    let mut stream = response.await.unwrap().into_body();
    let first = read(&mut stream, 1).await;
    sleep(Duration::from_millis(100)).await;
    // The fields that concern the whole, and the first value, of which the client took a part.
    assert_eq!(
        replica.pieces.load(Ordering::SeqCst),
        2,
        "nobody reads the first piece, but the second is made"
    );
    let rest = timeout(SOON, read(&mut stream, usize::MAX)).await.expect("it comes as it is read");
    assert_eq!(stream.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    assert_eq!(replica.pieces.load(Ordering::SeqCst), 101);
    let mut body = Bytes::from([first, rest].concat());
    let mut values = Vec::new();
    while !body.is_empty() {
        let len = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
        let piece = RangeStreamResponse::decode(body.slice(5..5 + len)).unwrap().range_response.unwrap();
        values.extend(piece.kvs.into_iter().map(|kv| kv.value[0]));
        body = body.slice(5 + len..);
    }
    assert_eq!(values, (0..100).collect::<Vec<_>>());
}

/// A range comes in a stream as it does in one message: none is left out and none comes twice, also if there are so
/// many that they come in several pieces. With a sort target and no order they ascend, as with etcd.
#[tokio::test]
async fn a_range_is_streamed_in_the_order_of_one_message() {
    const KEYS: i64 = 2000;
    let server = serve(&config(), replica());
    let mut client = KvClient::new(connect(&server).await);
    // The later a key, the earlier it was put, and the smaller its value.
    for i in (0..KEYS).rev() {
        let value = format!("{}{}", 9000 - i, "-".repeat(100)).into();
        client.put(PutRequest { value, ..put(&format!("k{i:04}")) }).await.unwrap();
    }
    let mut pieces_max = 0;
    for target in
        [SortTarget::Key, SortTarget::Mod, SortTarget::Create, SortTarget::Version, SortTarget::Value]
    {
        for limit in [-1, 0, 1, 64, 65, KEYS - 1, KEYS, KEYS + 1] {
            let sort_target = target.into();
            let all = RangeRequest {
                key: "k".into(),
                range_end: "l".into(),
                limit,
                sort_target,
                ..Default::default()
            };
            let mut pieces = client.range_stream(all.clone()).await.unwrap().into_inner();
            let (mut keys, mut last, mut with_keys) = (Vec::new(), None, 0);
            while let Some(piece) = pieces.message().await.unwrap() {
                let piece = piece.range_response.unwrap();
                with_keys += usize::from(!piece.kvs.is_empty());
                keys.extend(piece.kvs.into_iter().map(|pair| pair.key));
                last = Some((piece.count, piece.more));
            }
            let wanted = if limit > 0 { limit.min(KEYS) } else { KEYS };
            let by_key = ![SortTarget::Mod, SortTarget::Create, SortTarget::Value].contains(&target);
            let numbers: Vec<i64> =
                if by_key { (0..wanted).collect() } else { (KEYS - wanted..KEYS).rev().collect() };
            let expected: Vec<String> = numbers.iter().map(|i| format!("k{i:04}")).collect();
            assert_eq!(keys.len(), expected.len(), "this many keys are sent: {target:?} {limit}");
            assert_eq!(keys, expected, "{target:?} {limit}");
            assert_eq!(last, Some((KEYS, wanted < KEYS)), "{target:?} {limit}");
            pieces_max = pieces_max.max(with_keys);

            let whole = client.range(all).await.unwrap().into_inner();
            let keys: Vec<_> = whole.kvs.iter().map(|pair| pair.key.clone()).collect();
            assert_eq!(keys, expected, "{target:?} {limit}");
            assert_eq!((whole.count, whole.more), (KEYS, wanted < KEYS), "{target:?} {limit}");
        }
    }
    assert!(pieces_max > 2, "{pieces_max} pieces");
}

#[tokio::test]
async fn broken_frames_break_one_connection() {
    let server = serve(&config(), replica());
    let send = http2(&server).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let bad: [&[u8]; 4] = [
        b"\0\0\x01\0\0\0\0\0\0x",                      // data without a stream
        b"\0\0\x05\x06\0\0\0\0\0hello",                // a ping of another length than eight
        b"\xff\xff\xff\0\0\0\0\0\x01",                 // a frame larger than was agreed
        b"\0\0\x04\x01\x04\0\0\0\x01\xff\xff\xff\xff", // headers that do not decode
    ];
    for frame in bad {
        let mut stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
        stream.write_all(&[preface, frame].concat()).await.unwrap();
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        let _ = timeout(SOON, closed).await.expect("the connection is closed");
    }
    assert_eq!(call(&send, post(PUT), &framed(&put("k"))).await.grpc_status, "0");
}

#[tokio::test]
async fn stopping_does_not_wait_for_connections_without_requests() {
    let server = serve(&config(), replica());
    let _silent = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    let send = http2(&server).await;
    call(&send, post(PUT), &framed(&put("k"))).await;
    let began = Instant::now();
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    assert!(began.elapsed() < config().stop_timeout / 2, "it took {:?}", began.elapsed());
}

/// However many large answers a client asks for, none is made before the client takes it, and other clients are served.
#[tokio::test]
async fn large_answers_that_no_client_takes_are_not_made() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let mut client = KvClient::new(connect(&server).await);
    for i in 0..20 {
        client
            .put(PutRequest { value: vec![i; 1_000_000].into(), ..put(&format!("k{i:02}")) })
            .await
            .unwrap();
    }
    let send = http2_with(&server, h2::client::Builder::new().initial_window_size(0)).await;
    let everything = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let mut unread = Vec::new();
    for sort_order in [0, 2] {
        for _ in 0..50 {
            let request = framed(&RangeRequest { sort_order, ..everything.clone() });
            unread.push(begin(&send, post(RANGE), &request, true).await);
        }
    }
    let mut begun = Vec::new();
    for (response, stream) in unread {
        begun.push((timeout(SOON, response).await.expect("it is begun").unwrap(), stream));
    }
    assert_eq!(replica.pieces.load(Ordering::SeqCst), 0);
    // In the order of the keys, and in the opposite order.
    for sort_order in [1, 2] {
        let request = RangeRequest { sort_order, ..everything.clone() };
        let mut client = client.clone().max_decoding_message_size(usize::MAX);
        let found = timeout(SOON, client.range(request)).await.expect("it is served").unwrap().into_inner();
        let first = |place: usize| found.kvs[place].value[0];
        assert_eq!((found.count, found.kvs.len()), (20, 20));
        assert_eq!(if sort_order == 1 { (first(0), first(19)) } else { (first(19), first(0)) }, (0, 19));
    }
}

/// Connections that each have a sorted range and took a little of it. They hold all the places.
async fn slow_readers(
    server: &Server,
    count: usize,
) -> Vec<(SendRequest<Bytes>, RecvStream, SendStream<Bytes>)> {
    let sorted = RangeRequest { key: "k".into(), range_end: "l".into(), sort_order: 2, ..Default::default() };
    let mut readers = Vec::new();
    for _ in 0..count {
        let send = http2_with(server, h2::client::Builder::new().initial_window_size(50_000)).await;
        let (response, request) = begin(&send, post(RANGE), &framed(&sorted), true).await;
        let mut stream = timeout(SOON, response).await.expect("it is begun").unwrap().into_body();
        timeout(SOON, read(&mut stream, 1)).await.expect("it has a place");
        readers.push((send, stream, request));
    }
    readers
}

async fn put_large(client: &mut KvClient<tonic::transport::Channel>, count: u8) {
    for i in 0..count {
        let value = vec![i; 1_000_000].into();
        client.put(PutRequest { value, ..put(&format!("k{i:02}")) }).await.unwrap();
    }
}

/// A small answer needs no place.
#[tokio::test]
async fn a_fingerprint_does_not_wait_for_slow_readers() {
    let server = serve(&config(), replica());
    let mut client = KvClient::new(connect(&server).await);
    put_large(&mut client, 2).await;
    for i in 0..600 {
        client.put(put(&format!("small{i}"))).await.unwrap();
    }
    let _readers = slow_readers(&server, 8).await;
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let hash = maintenance.hash_kv(HashKvRequest { revision: 0 });
    timeout(SOON, hash).await.expect("it does not wait").unwrap();
}

/// What matters is how large an answer is, not how large it might be.
#[tokio::test]
async fn commands_with_small_answers_do_not_wait_for_slow_readers() {
    let server = serve(&config(), replica());
    let mut client = KvClient::new(connect(&server).await);
    put_large(&mut client, 2).await;
    for key in ["some1", "some2", "some3"] {
        client.put(put(key)).await.unwrap();
    }
    let readers = slow_readers(&server, 8).await;
    let some = RangeRequest { key: "some".into(), range_end: "somf".into(), ..Default::default() };
    let success = [Op::RequestRange(some), Op::RequestPut(put("written"))];
    let success = success.map(|op| RequestOp { request: Some(op) }).into();
    let txn = client.txn(TxnRequest { success, ..Default::default() });
    assert_eq!(timeout(SOON, txn).await.expect("it does not wait").unwrap().into_inner().responses.len(), 2);
    let delete = DeleteRangeRequest { key: "some".into(), range_end: "somf".into(), prev_kv: true };
    let deleted = timeout(SOON, client.delete_range(delete)).await.expect("it does not wait").unwrap();
    assert_eq!(deleted.into_inner().prev_kvs.len(), 3);
    // Commands with large answers wait, and change nothing meanwhile.
    let large = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let waits = tokio::spawn({
        let mut client = client.clone();
        async move { client.delete_range(large).await.unwrap().into_inner().prev_kvs.len() }
    });
    sleep(Duration::from_millis(100)).await;
    assert!(!waits.is_finished());
    let large =
        RangeRequest { key: "k".into(), range_end: "l".into(), count_only: true, ..Default::default() };
    assert_eq!(client.range(large).await.unwrap().into_inner().count, 2);
    drop(readers);
    assert_eq!(timeout(SOON, waits).await.expect("there is a place now").unwrap(), 2);
}

#[tokio::test]
async fn an_answer_that_is_given_up_while_it_waits_for_its_place_is_forgotten() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let mut client = KvClient::new(connect(&server).await);
    put_large(&mut client, 2).await;
    let readers = slow_readers(&server, 1).await;
    until(&replica.sources, 1).await;
    let sorted = RangeRequest { key: "k".into(), range_end: "l".into(), sort_order: 2, ..Default::default() };
    let (response, mut request) = begin(&readers[0].0, post(RANGE), &framed(&sorted), true).await;
    let _stream = timeout(SOON, response).await.expect("it is begun").unwrap();
    until(&replica.sources, 2).await;
    request.send_reset(Reason::CANCEL);
    until(&replica.sources, 1).await;
}

#[tokio::test]
async fn an_answer_that_fails_breaks_off_and_gives_its_places_back() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let mut client = KvClient::new(connect(&server).await);
    for i in 0..3 {
        client.put(PutRequest { value: vec![i; 400_000].into(), ..put(&format!("fail{i}")) }).await.unwrap();
    }
    let send = http2(&server).await;
    // More than there are places for a connection, and in all.
    for round in 0..40 {
        let sort_order = [0, 2][round % 2];
        let range =
            RangeRequest { key: "fail".into(), range_end: "g".into(), sort_order, ..Default::default() };
        replica.pieces.store(round / 2 % 2, Ordering::SeqCst);
        let answer = call(&send, post(RANGE), &framed(&range)).await;
        assert_eq!(answer.grpc_status, "13", "{}", answer.grpc_message);
        let ranges = vec![RequestOp { request: Some(Op::RequestRange(range)) }];
        let txn = TxnRequest { success: ranges, ..Default::default() };
        replica.pieces.store(1, Ordering::SeqCst);
        let answer = call(&send, post("/etcdserverpb.KV/Txn"), &framed(&txn)).await;
        assert_eq!(answer.grpc_status, "13", "{}", answer.grpc_message);
    }
    until(&replica.sources, 0).await;
}

/// One answer of each connection is in memory: only the execution of a command shows whether its answer is large.
#[tokio::test]
async fn unread_answers_to_commands_are_few() {
    let replica = Gated::new();
    let server = serve(&config(), replica.clone());
    let mut client = KvClient::new(connect(&server).await);
    put_large(&mut client, 1).await;
    client.put(put("counter")).await.unwrap();
    let one = RangeRequest { key: "k00".into(), ..Default::default() };
    let counts = PutRequest { ignore_value: true, value: Bytes::new(), ..put("counter") };
    let ops = [Op::RequestRange(one), Op::RequestPut(counts)];
    let txn =
        TxnRequest { success: ops.map(|op| RequestOp { request: Some(op) }).into(), ..Default::default() };
    let keeps = PutRequest { ignore_value: true, prev_kv: true, value: Bytes::new(), ..put("k00") };
    for (path, request) in [("/etcdserverpb.KV/Txn", framed(&txn)), (PUT, framed(&keeps))] {
        let before = replica.answered.load(Ordering::SeqCst);
        let send = http2_with(&server, h2::client::Builder::new().initial_window_size(0)).await;
        let mut unread = Vec::new();
        for _ in 0..30 {
            unread.push(begin(&send, post(path), &request, true).await);
        }
        sleep(Duration::from_millis(300)).await;
        let answered = replica.answered.load(Ordering::SeqCst) - before;
        assert!((1_000_000..1_100_000).contains(&answered), "{path}: {answered}");
        // Each command was refused once, which changed nothing, and executed once.
        drop((unread, send));
        let send = http2(&server).await;
        let version = async |client: &mut KvClient<_>, key: &'static str| {
            let found = client.range(RangeRequest { key: key.into(), ..Default::default() }).await.unwrap();
            found.into_inner().kvs[0].version
        };
        let key = if path == PUT { "k00" } else { "counter" };
        until(&replica.waiting, 0).await;
        let earlier = version(&mut client, key).await;
        for _ in 0..3 {
            let answer = call(&send, post(path), &request).await;
            assert_eq!((answer.grpc_status.as_str(), answer.body.len() > 1_000_000), ("0", true));
        }
        assert_eq!(version(&mut client, key).await, earlier + 3);
    }
}
