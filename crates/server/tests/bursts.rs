//! Clients that send very many small messages at once, each in a frame of its own, as etcd's client for Go does. Their
//! connections stay.

#[macro_use]
mod common;

use std::collections::BTreeSet;

use bytes::{Buf, Bytes, BytesMut};
use common::{
    config,
    http2::{SOON, call, framed, http2, post},
    replica, replica_of, serve,
};
use futures_util::StreamExt as _;
use h2::{RecvStream, SendStream, client::SendRequest};
use prost::Message;
use synod_api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest, WatchCreateRequest, WatchRequest,
    WatchResponse, watch_request::RequestUnion,
};
use synod_kv::KvStore;
use synod_server::{Config, Watches};
use tokio::time::timeout;

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
    let send = http2(&server).await;
    let frames = (1..=LEASES).map(|id| framed(&LeaseKeepAliveRequest { id: id << 40 }).freeze()).collect();
    let (mut answers, _stream) = burst(&send, "/etcdserverpb.Lease/LeaseKeepAlive", frames).await;
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
    let send = http2(&server).await;
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
    let send = http2(&server).await;
    let renewals = |count: i64| -> Vec<Bytes> {
        (0..count).map(|id| framed(&LeaseKeepAliveRequest { id }).freeze()).collect()
    };
    let (mut first, _first) = burst(&send, "/etcdserverpb.Lease/LeaseKeepAlive", renewals(1)).await;
    take(&mut first, |_: LeaseKeepAliveResponse| true).await;
    let streams = futures_util::stream::iter(0..4)
        .then(|_| burst(&send, "/etcdserverpb.Lease/LeaseKeepAlive", renewals(15_000)));
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
