//! Attacks on what becomes of requests before anybody knows who asks: small bodies of JSON and of protobuf, of which
//! much is made; and answers as JSON.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_api::etcdserverpb::{RequestOp, TxnRequest};
use tokio::{task::JoinSet, time::timeout};

use super::{
    Scene,
    large::fill,
    sockets::finish,
    wire::{TXN, Wire, framed},
};

/// How long a socket may block until its thread looks at the time.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of a body, and how many elements it has: a message in the list takes eleven.
const BODY_BYTES: usize = 4_000_000;
const ELEMENT: &str = r#"{"key":""}"#;
/// Connections of each attack.
const BODIES: usize = 40;
const RESETS: usize = 6;
const ANSWERS: usize = 4;
const EMPTY: usize = 8;
/// Requests at a time on a connection.
const EMPTY_STREAMS: usize = 8;
/// Empty operations of a transaction, in two bytes each. etcd and Synod take a message of 2 MiB.
const OPERATIONS: usize = 1_000_000;
/// Keys of which the answers consist. A pair takes thirty bytes, and a hundred as JSON.
const KEYS: u64 = 300_000;

/// A transaction with as many comparisons as go into a body.
fn body() -> Arc<Vec<u8>> {
    let elements = vec![ELEMENT; BODY_BYTES / (ELEMENT.len() + 1)].join(",");
    Arc::new(format!(r#"{{"compare":[{elements}]}}"#).into_bytes())
}

/// Sends a request, of which the answer ends with the connection.
fn post(address: SocketAddr, path: &str, body: &[u8]) -> Result<TcpStream, std::io::Error> {
    let mut stream = TcpStream::connect_timeout(&address, SOCKET_TIMEOUT)?;
    let len = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n");
    stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    Ok(stream)
}

/// Reads an answer until it ends or time is over. Returns how many bytes came.
fn drain(stream: &mut TcpStream, deadline: Instant) -> u64 {
    let (mut bytes, mut came) = (vec![0; 64 << 10], 0);
    while Instant::now() < deadline {
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => came += read as u64,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    came
}

/// Bodies of JSON whose answers are waited for.
pub async fn bodies(scene: &mut Scene<'_>) -> Result<(), String> {
    let (address, deadline) =
        (scene.cluster.servers[scene.target].client, Instant::now() + scene.settings.seconds());
    let body = body();
    let floods = (0..BODIES).map(|_| {
        let body = Arc::clone(&body);
        thread::spawn(move || {
            let mut answered = 0;
            while Instant::now() < deadline {
                if let Ok(mut stream) = post(address, "/v3/kv/txn", &body) {
                    answered += u64::from(drain(&mut stream, deadline) > 0);
                }
            }
            answered
        })
    });
    let answered = finish(floods.collect()).await?;
    scene.note("bodies answered", answered);
    Ok(())
}

/// The same, and the client hangs up as soon as a body is sent.
pub async fn resets(scene: &mut Scene<'_>) -> Result<(), String> {
    let (address, deadline) =
        (scene.cluster.servers[scene.target].client, Instant::now() + scene.settings.seconds());
    let body = body();
    let floods = (0..RESETS).map(|_| {
        let body = Arc::clone(&body);
        thread::spawn(move || {
            let mut sent = 0;
            while Instant::now() < deadline {
                if let Ok(stream) = post(address, "/v3/kv/txn", &body) {
                    sent += 1;
                    // The server has read it, or soon has.
                    thread::sleep(Duration::from_millis(20));
                    // The call fails only if the other side has closed.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
            sent
        })
    });
    let sent = finish(floods.collect()).await?;
    scene.note("bodies sent", sent);
    Ok(())
}

/// The whole store as JSON, by several clients that read it.
pub async fn answers(scene: &mut Scene<'_>) -> Result<(), String> {
    fill(&scene.cluster, scene.target, KEYS, 0).await?;
    let (address, deadline) =
        (scene.cluster.servers[scene.target].client, Instant::now() + scene.settings.seconds());
    let floods = (0..ANSWERS).map(|_| {
        thread::spawn(move || {
            let mut came = 0;
            while Instant::now() < deadline {
                if let Ok(mut stream) = post(address, "/v3/kv/range", br#"{"key":"AA==","range_end":"AA=="}"#)
                {
                    came += drain(&mut stream, deadline);
                }
            }
            came
        })
    });
    let came = finish(floods.collect()).await?;
    scene.note("answers", format!("{} MiB", came >> 20));
    Ok(())
}

/// Transactions of protobuf with operations that are empty.
pub async fn operations(scene: &mut Scene<'_>) -> Result<(), String> {
    let (address, deadline) =
        (scene.cluster.servers[scene.target].client, Instant::now() + scene.settings.seconds());
    let txn = TxnRequest { success: vec![RequestOp::default(); OPERATIONS], ..TxnRequest::default() };
    let (body, answered, mut tasks) = (framed(&txn), Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..EMPTY {
        let (body, answered): (Bytes, _) = (body.clone(), Arc::clone(&answered));
        tasks.spawn(async move {
            while Instant::now() < deadline {
                let Ok(mut wire) = Wire::open(address, 65_535).await else { continue };
                while Instant::now() < deadline && !wire.is_closed() {
                    let mut open = Vec::new();
                    for _ in 0..EMPTY_STREAMS {
                        match timeout(SOCKET_TIMEOUT, wire.send(TXN, body.clone(), true)).await {
                            Ok(Ok(stream)) => open.push(stream),
                            Ok(Err(_)) | Err(_) => break,
                        }
                    }
                    for (answer, _stream) in open {
                        let left = deadline.saturating_duration_since(Instant::now());
                        if let Ok(Ok(_)) = timeout(left, answer).await {
                            answered.fetch_add(1, Relaxed);
                        }
                    }
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    scene.note("transactions answered", answered.load(Relaxed));
    Ok(())
}
