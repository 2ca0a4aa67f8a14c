//! How much memory clients can make a server use, and whether other clients are served meanwhile.

use std::time::Duration;

use crate::common::{
    config,
    http2::{Answer, SOON, begin, call, finish, framed, http2, http2_with, post},
    replica, serve,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::select_all};
use prost::Message;
use synod_api::{
    etcdserverpb::{
        LeaseGrantRequest, LeaseLeasesRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        request_op::Request,
    },
    synod::v1::{ExecuteRequest, KvCommand, OpenSessionRequest, OpenSessionResponse, kv_command},
};
use synod_server::Config;
use tokio::time::{sleep, timeout};

const PUT: &str = "/etcdserverpb.KV/Put";
const EXECUTE: &str = "/synod.v1.Native/Execute";
const RANGE: &str = "/etcdserverpb.KV/Range";

/// The server's memory for requests.
const BYTES_MAX: u64 = 4 << 20;

fn small() -> Config {
    Config { requests_bytes_max: BYTES_MAX, ..config() }
}

fn put(key: &str, bytes: usize) -> Bytes {
    let value = vec![b'v'; bytes].into();
    framed(&PutRequest { key: key.to_owned().into(), value, ..Default::default() }).freeze()
}

fn is_refused(answer: &Answer) -> bool {
    let refused = answer.grpc_status == "8";
    assert!(
        !refused || answer.grpc_message == "etcdserver:%20too%20many%20requests",
        "{}",
        answer.grpc_message
    );
    refused
}

#[tokio::test]
async fn what_has_half_come_is_bounded_and_others_are_served() {
    let server = serve(&small(), replica());
    let (request, mut kept) = (put("large", 1 << 20), Vec::new());
    let half = request.len() / 2;
    for _ in 0..6 {
        let send = http2(&server).await;
        let mut answers = Vec::new();
        for _ in 0..4 {
            let (response, stream) = begin(&send, post(PUT), &request[..half], false).await;
            answers.push(Box::pin(finish(response)));
            kept.push(stream);
        }
        let first = select_all(answers).await.0;
        assert!(is_refused(&first), "a connection has a share, and no more: {}", first.grpc_message);
        // Earlier connections do not keep out later ones, either.
        let other = http2(&server).await;
        assert_eq!(call(&other, post(PUT), &put("k", 100)).await.grpc_status, "0");
    }
    drop(kept);
    let send = http2(&server).await;
    // The server frees what the connections held once it has seen that they are gone.
    let served = async { while is_refused(&call(&send, post(PUT), &put("k", 500 << 10)).await) {} };
    timeout(SOON, served).await.expect("there is room again");
}

/// The state machine decides how large the reply to a command in a session is, and the command is executed
/// once. So the reply exists before its size is known.
#[tokio::test]
async fn unread_replies_to_sessions_are_bounded_and_asked_for_again() {
    let server = serve(&small(), replica());
    let send = http2(&server).await;
    assert_eq!(call(&send, post(PUT), &put("k", 200 << 10)).await.grpc_status, "0");
    let range = RequestOp {
        request: Some(Request::RequestRange(RangeRequest { key: "k".into(), ..Default::default() })),
    };
    let txn = TxnRequest { success: vec![range; 4], ..Default::default() };
    let command = KvCommand { command: Some(kv_command::Command::Txn(txn)), ..Default::default() };
    let session = {
        let answer =
            call(&send, post("/synod.v1.Native/OpenSession"), &framed(&OpenSessionRequest::default())).await;
        OpenSessionResponse::decode(&answer.body[5..]).unwrap().session
    };
    let execute = |sequence| {
        let payload = command.encode_to_vec().into();
        framed(&ExecuteRequest { session, sequence, lowest_outstanding: 1, payload, group: None }).freeze()
    };
    // Each reply has 800 KiB; a connection has a fifth of 4 MiB.
    let silent = http2(&server).await;
    let mut unread = Vec::new();
    for sequence in 1..=4 {
        unread.push(begin(&silent, post(EXECUTE), &execute(sequence), true).await.0);
    }
    let refused = async {
        let mut refused = 0;
        for response in unread {
            refused += usize::from(is_refused(&finish(response).await));
        }
        refused
    };
    assert!(timeout(SOON, refused).await.expect("each is answered or refused") > 0, "nothing bounds them");
    drop(silent);
    // A client whose command was executed, but whose reply was refused, gets the reply when it asks again.
    let again = async { while is_refused(&call(&send, post(EXECUTE), &execute(1)).await) {} };
    timeout(SOON, again).await.expect("there is room again");
}

#[tokio::test]
async fn requests_give_back_what_they_held() {
    let server = serve(&small(), replica());
    let send = http2(&server).await;
    // Five times as many bytes as there are, one request after another.
    let request = put("k", 200 << 10);
    for _ in 0..5 * BYTES_MAX as usize / request.len() {
        assert_eq!(call(&send, post(PUT), &request).await.grpc_status, "0");
    }
    let range = framed(&RangeRequest { key: "k".into(), ..Default::default() });
    for _ in 0..200 {
        assert_eq!(call(&send, post(RANGE), &range).await.grpc_status, "0");
    }
}

/// Answers about leases have no bound of their own: there may be any number of leases.
#[tokio::test]
async fn unread_answers_about_leases_are_bounded() {
    const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
    let server = serve(&small(), replica());
    let send = http2(&server).await;
    let mut granted = 0..;
    let mut grant = async |count: usize| {
        for id in granted.by_ref().take(count) {
            let request = framed(&LeaseGrantRequest { id: i64::MAX - id, ttl: 1_000 });
            let answer = call(&send, post("/etcdserverpb.Lease/LeaseGrant"), &request).await;
            assert_eq!(answer.grpc_status, "0");
        }
    };
    // How many of a hundred answers are begun, and how many are refused, to a client that takes none.
    let unread = async || {
        let silent = http2_with(&server, h2::client::Builder::new().initial_window_size(0)).await;
        let mut answers = Vec::new();
        for _ in 0..100 {
            answers.push(begin(&silent, post(LEASES), &framed(&LeaseLeasesRequest {}), true).await);
        }
        // Until nothing more comes.
        let (mut begun, mut refused, mut held) = (0, 0, Vec::new());
        let mut before = None;
        while before != Some((begun, refused)) || begun + refused == 0 {
            before = Some((begun, refused));
            sleep(Duration::from_millis(300)).await;
            for (mut response, stream) in std::mem::take(&mut answers) {
                let Some(response) = (&mut response).now_or_never() else {
                    answers.push((response, stream));
                    continue;
                };
                let response = response.unwrap();
                let is_refused = response.headers().get("grpc-status").is_some_and(|code| code == "8");
                *if is_refused { &mut refused } else { &mut begun } += 1;
                held.push((response, stream));
            }
        }
        (begun, refused)
    };
    grant(500).await;
    let (begun, refused) = unread().await;
    assert!(begun > 0 && begun + refused == 100, "{begun} and {refused}");
    assert!(begun * 10_000 < BYTES_MAX / 4, "a connection has a fifth: {begun} answers of 6,000 bytes");
    grant(1_500).await;
    assert_eq!(unread().await, (1, 0), "a large answer has a place, of which a connection has one");
    let answer = call(&send, post(LEASES), &framed(&LeaseLeasesRequest {})).await;
    assert_eq!((answer.grpc_status.as_str(), answer.body.len() > 20_000), ("0", true));
}
