//! Clients that send very many small messages at once, each in a frame of its own, as etcd's client for Go does. Their
//! connections stay.

use std::collections::BTreeSet;

use crate::common::{
    config,
    http2::{SOON, call, framed, http2_with, post},
    replica, replica_of, serve,
};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt as _;
use h2::{Reason, RecvStream, SendStream, client::SendRequest};
use prost::Message;
use synod_api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest, WatchCreateRequest, WatchRequest,
    WatchResponse, watch_request::RequestUnion,
};
use synod_kv::KvStore;
use synod_server::{Config, Server, Watches};
use tokio::{net::TcpStream, time::timeout};

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// A connection of a client that takes any number of small frames, as those for Go do, and all answers of a stream
/// while it reads another.
async fn connected(server: &Server) -> SendRequest<Bytes> {
    let mut builder = h2::client::Builder::new();
    builder.data_frame_budget(usize::MAX);
    builder.initial_window_size(1 << 20).initial_connection_window_size(16 << 20);
    http2_with(server, &mut builder).await
}

/// Begins a stream, and sends all messages, each in a frame, as fast as the server's window opens.
async fn burst(send: &SendRequest<Bytes>, path: &str, frames: Vec<Bytes>) -> (RecvStream, SendStream<Bytes>) {
    let mut send = send.clone().ready().await.unwrap();
    let (response, mut stream) = send.send_request(post(path).body(()).unwrap(), false).unwrap();
    for frame in frames {
        stream.send_data(frame, false).unwrap();
    }
    (response.await.unwrap().into_body(), stream)
}

/// Takes messages until `done` says that it is enough.
async fn take<M: Message + Default>(stream: &mut RecvStream, mut done: impl FnMut(M) -> bool) {
    let mut buffer = BytesMut::new();
    loop {
        let piece = timeout(SOON, futures_util::future::poll_fn(|cx| stream.poll_data(cx))).await;
        let piece =
            piece.expect("it is answered").expect("the stream goes on").expect("it is not broken off");
        stream.flow_control().release_capacity(piece.len()).unwrap();
        buffer.extend_from_slice(&piece);
        while let Some(&[_, a, b, c, d]) = buffer.first_chunk() {
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            if buffer.len() < 5 + len {
                break;
            }
            let mut message = buffer.split_to(5 + len).freeze();
            message.advance(5);
            if done(M::decode(message).unwrap()) {
                return;
            }
        }
    }
}

/// The connection serves other requests.
async fn assert_alive(send: &SendRequest<Bytes>) {
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    assert_eq!(call(send, post("/etcdserverpb.KV/Put"), &framed(&put)).await.grpc_status, "0");
}

#[tokio::test]
async fn twenty_thousand_leases_are_renewed_at_once() {
    const LEASES: i64 = 20_000;
    let server = serve(&config(), replica());
    let send = connected(&server).await;
    let frames = (1..=LEASES).map(|id| framed(&LeaseKeepAliveRequest { id: id << 40 }).freeze()).collect();
    let (mut answers, _stream) = burst(&send, KEEP_ALIVE, frames).await;
    let mut renewed = BTreeSet::new();
    take(&mut answers, |answer: LeaseKeepAliveResponse| {
        assert!(renewed.insert(answer.id >> 40), "{} is renewed once", answer.id);
        renewed.len() as i64 == LEASES
    })
    .await;
    assert_alive(&send).await;
}

#[tokio::test]
async fn twenty_thousand_watches_begin_at_once() {
    const WATCHES: i64 = 20_000;
    let watches = Watches::new();
    let store = KvStore::new().feeding(watches.feed());
    let server = serve(&Config { watches: Some(watches), ..config() }, replica_of(store));
    let send = connected(&server).await;
    let create = |number: i64| {
        let create = WatchCreateRequest { key: format!("k{number}").into(), ..WatchCreateRequest::default() };
        framed(&WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).freeze()
    };
    let frames = (0..WATCHES).map(create).collect();
    let (mut answers, _stream) = burst(&send, "/etcdserverpb.Watch/Watch", frames).await;
    let mut begun = 0;
    take(&mut answers, |answer: WatchResponse| {
        assert!(answer.created && !answer.canceled, "{answer:?}");
        assert_eq!(answer.watch_id, begun);
        begun += 1;
        begun == WATCHES
    })
    .await;
    assert_alive(&send).await;
}

/// Other streams of the connection go on while a burst is worked off.
#[tokio::test]
async fn a_burst_does_not_end_other_streams_of_the_connection() {
    let server = serve(&config(), replica());
    let send = connected(&server).await;
    let renewals = |count: i64| -> Vec<Bytes> {
        (0..count).map(|id| framed(&LeaseKeepAliveRequest { id }).freeze()).collect()
    };
    let (mut first, _first) = burst(&send, KEEP_ALIVE, renewals(1)).await;
    take(&mut first, |_: LeaseKeepAliveResponse| true).await;
    let streams = futures_util::stream::iter(0..4).then(|_| burst(&send, KEEP_ALIVE, renewals(15_000)));
    for (mut answers, _stream) in streams.collect::<Vec<_>>().await {
        let mut count = 0;
        take(&mut answers, |_: LeaseKeepAliveResponse| {
            count += 1;
            count == 15_000
        })
        .await;
    }
    assert_alive(&send).await;
}

/// A stream that the server ends in the middle of a burst leaves the rest of the burst on its way. That must not count
/// against the connection, however often it happens.
#[tokio::test]
async fn a_connection_outlives_streams_that_end_within_a_burst() {
    let server = serve(&config(), replica());
    let send = connected(&server).await;
    // One that goes on meanwhile.
    let renewal = || framed(&LeaseKeepAliveRequest { id: 1 }).freeze();
    let (mut other, mut renewals) = burst(&send, KEEP_ALIVE, vec![renewal()]).await;
    take(&mut other, |_: LeaseKeepAliveResponse| true).await;
    for _ in 0..5 {
        let mut frames = vec![renewal(); 20_000];
        // The flag for compression is neither 0 nor 1.
        frames[10] = Bytes::from_static(b"\x07\0\0\0\0");
        let (mut answers, mut stream) = burst(&send, KEEP_ALIVE, frames).await;
        let ended = timeout(SOON, async {
            while let Some(piece) = answers.data().await {
                answers.flow_control().release_capacity(piece.unwrap().len()).unwrap();
            }
            answers.trailers().await.unwrap().unwrap()
        });
        assert_eq!(ended.await.expect("it ends")["grpc-status"], "13");
        // As clients of gRPC do that have the status and have not sent all.
        stream.send_reset(Reason::NO_ERROR);
    }
    renewals.send_data(renewal(), false).unwrap();
    take(&mut other, |_: LeaseKeepAliveResponse| true).await;
    assert_alive(&send).await;
}

/// Frames without contents cost no window, so only their number bounds them.
#[tokio::test]
async fn a_flood_of_empty_frames_ends_its_connection() {
    let server = serve(&config(), replica());
    let stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let (_response, _stream) = {
        let mut send = send.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(post(KEEP_ALIVE).body(()).unwrap(), false).unwrap();
        for _ in 0..1_000 {
            stream.send_data(Bytes::new(), false).unwrap();
        }
        (response, stream)
    };
    let error = timeout(SOON, connection).await.expect("it ends").unwrap().unwrap_err();
    // The reason is lost if the socket is closed before all frames were read there.
    assert!(error.is_io() || error.reason() == Some(Reason::ENHANCE_YOUR_CALM), "{error}");
    assert_alive(&connected(&server).await).await;
}
