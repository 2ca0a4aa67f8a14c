//! Attacks below requests: connections, frames and bytes.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use fastrand::Rng;
use h2::Reason;
use synod_api::etcdserverpb::{PutRequest, kv_client::KvClient};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Scene,
    cluster::{Cluster, SERVERS, channel, puts},
    report,
    wire::{PUT, RANGE, Wire, everything, framed},
};

/// The beginning of an HTTP/2 connection: the preface, and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
const PING: &[u8] = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00attacked";
const SETTINGS: &[u8] = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x80\x00";
/// How long a socket may block until its thread looks at the time.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(200);
/// Most half-open connections of the attacker to one port.
const HALF_OPEN_MAX: usize = 3_000;

/// Connections that are opened and never used; each is opened again when the server closes it.
pub async fn idle(scene: &mut Scene<'_>) -> Result<(), String> {
    let mut tasks = JoinSet::new();
    let connections = scene.settings.get("connections");
    let opened = Arc::new(AtomicU64::new(0));
    // An honest client that was connected before the attack.
    let mut writer = KvClient::new(channel(scene.cluster.servers[scene.target].client));
    let first = PutRequest { key: "idle".into(), ..PutRequest::default() };
    writer.put(first).await.map_err(|error| error.to_string())?;
    for server in scene.cluster.servers {
        for _ in 0..connections {
            let opened = Arc::clone(&opened);
            tasks.spawn(async move {
                loop {
                    let wire = timeout(Duration::from_secs(5), Wire::open(server.client, 65_535)).await;
                    if let Ok(Ok(wire)) = wire {
                        opened.fetch_add(1, Ordering::Relaxed);
                        while !wire.is_closed() {
                            sleep(Duration::from_millis(100)).await;
                        }
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            });
        }
    }
    sleep(scene.settings.seconds()).await;
    // The log needs a descriptor for each new segment, so the test makes it begin segments while no
    // descriptor is left.
    let put = PutRequest { key: "idle".into(), value: vec![b'.'; 1 << 20].into(), ..PutRequest::default() };
    let mut written = 0;
    for _ in 0..scene.settings.get("written-mib") {
        written += u64::from(
            timeout(Duration::from_secs(5), writer.put(put.clone())).await.is_ok_and(|put| put.is_ok()),
        );
    }
    scene.note("MiB written meanwhile", written);
    sleep(scene.settings.seconds()).await;
    let mut served = 0;
    for server in scene.cluster.servers {
        served += usize::from(puts(server.client, Duration::from_secs(5)).await);
    }
    scene.note("connections opened", opened.load(Ordering::Relaxed));
    scene.claim("new clients are served by all servers", served == SERVERS, format!("by {served}"));
    tasks.shutdown().await;
    Ok(())
}

/// Restarts a replica, first without and then with silent connections to all peer ports.
pub async fn half_open(scene: &mut Scene<'_>) -> Result<(), String> {
    let victim = (scene.target + 1) % SERVERS;
    scene.killed = Some(victim);
    let alone = rejoin(scene, victim).await?;
    let deadline = Instant::now() + scene.settings.seconds() + Duration::from_secs(30);
    let floods = scene.cluster.servers.map(|server| {
        let stop = Arc::new(AtomicU64::new(0));
        (Arc::clone(&stop), thread::spawn(move || open_and_say_nothing(server.peer, &stop, deadline)))
    });
    sleep(scene.settings.seconds()).await;
    let flooded = rejoin(scene, victim).await;
    let mut opened = 0;
    for (stop, flood) in floods {
        stop.store(1, Ordering::Relaxed);
        opened += flood.join().map_err(|_| "the attacker panicked")?;
    }
    let flooded = flooded?;
    scene.note("half-open connections", opened);
    scene.note(
        "a replica rejoins, alone and flooded",
        format!("{}, {}", report::ms(alone), report::ms(flooded)),
    );
    let soon = flooded < alone * 2 + Duration::from_secs(1);
    scene.claim("a replica rejoins within twice the time and a second", soon, report::ms(flooded));
    Ok(())
}

/// Kills a replica and starts it again. Returns the time until it serves a put.
async fn rejoin(scene: &mut Scene<'_>, victim: usize) -> Result<Duration, String> {
    scene.cluster.kill(victim);
    sleep(Duration::from_millis(500)).await;
    scene.cluster.restart(victim)?;
    let began = Instant::now();
    while !puts(scene.cluster.servers[victim].client, Duration::from_secs(2)).await {
        if began.elapsed() > Duration::from_secs(30) {
            return Err(format!("{} does not serve 30 s after its restart", Cluster::name(victim)));
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(began.elapsed())
}

fn open_and_say_nothing(address: SocketAddr, stop: &AtomicU64, deadline: Instant) -> usize {
    let (mut held, mut opened) = (std::collections::VecDeque::new(), 0);
    while stop.load(Ordering::Relaxed) == 0 && Instant::now() < deadline {
        if let Ok(stream) = TcpStream::connect_timeout(&address, SOCKET_TIMEOUT) {
            held.push_back(stream);
            opened += 1;
        }
        if held.len() > HALF_OPEN_MAX {
            held.pop_front();
        }
        thread::sleep(Duration::from_micros(2_800));
    }
    opened
}

/// Requests that are reset as soon as they are sent.
pub async fn resets(scene: &mut Scene<'_>) -> Result<(), String> {
    let deadline = Instant::now() + scene.settings.seconds();
    let address = scene.cluster.servers[scene.target].client;
    let (resets, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..4 {
        let resets = Arc::clone(&resets);
        tasks.spawn(async move {
            let body = framed(&everything());
            while Instant::now() < deadline {
                let Ok(Ok(mut wire)) = timeout(SOCKET_TIMEOUT, Wire::open(address, 65_535)).await else {
                    continue;
                };
                while Instant::now() < deadline && !wire.is_closed() {
                    // The server may end the connection because of the resets; the next round opens another.
                    let Ok(Ok((_, mut stream))) =
                        timeout(SOCKET_TIMEOUT, wire.send(RANGE, body.clone(), true)).await
                    else {
                        break;
                    };
                    // The frames need time to go out; otherwise the library drops both.
                    tokio::task::yield_now().await;
                    stream.send_reset(Reason::CANCEL);
                    resets.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    scene.note("resets", resets.load(Ordering::Relaxed));
    Ok(())
}

/// Frames that each demand an answer, half of them on connections whose answers are not read.
pub async fn pings(scene: &mut Scene<'_>) -> Result<(), String> {
    let deadline = Instant::now() + scene.settings.seconds();
    let address = scene.cluster.servers[scene.target].client;
    let kinds = [(PING, true), (PING, false), (SETTINGS, true), (SETTINGS, false)];
    let floods = kinds.map(|(frame, reads)| {
        let many = frame.repeat(500);
        thread::spawn(move || flood(address, deadline, reads, PREFACE, &mut || many.clone()))
    });
    let sent = finish(floods.into()).await?;
    scene.note("frames", format!("{:.1} million", sent as f64 / PING.len() as f64 / 1e6));
    Ok(())
}

/// Requests whose bodies never end.
pub async fn half_requests(scene: &mut Scene<'_>) -> Result<(), String> {
    let (mut wires, mut held) = (Vec::new(), Vec::new());
    // The prefix announces a message of a MiB, and 6 bytes of it follow.
    let half = Bytes::from_static(&[0, 0, 16, 0, 0, 10, 4, b'h', b'a', b'l', b'f']);
    for _ in 0..10 {
        let mut wire = Wire::open(scene.cluster.servers[scene.target].client, 65_535).await?;
        for _ in 0..1000 {
            match timeout(SOCKET_TIMEOUT, wire.send(PUT, half.clone(), false)).await {
                Ok(Ok(stream)) => held.push(stream),
                // As many streams as the server allows.
                Ok(Err(_)) | Err(_) => break,
            }
        }
        wires.push(wire);
    }
    scene.note("half requests", held.len());
    sleep(scene.settings.seconds()).await;
    // Of these requests all but the last byte is sent: more than four GiB, if the server takes it.
    let mut request = vec![b'.'; (1 << 20) + 4];
    request[..5].copy_from_slice(&[0, 0, 16, 0, 0]);
    let almost = Bytes::from(request);
    let mut sent = 0;
    for _ in 0..20 {
        let mut wire = Wire::open(scene.cluster.servers[scene.target].client, 65_535).await?;
        for _ in 0..200 {
            match timeout(SOCKET_TIMEOUT, wire.send(PUT, almost.clone(), false)).await {
                Ok(Ok(stream)) => held.push(stream),
                Ok(Err(_)) | Err(_) => break,
            }
            sent += 1;
        }
        wires.push(wire);
    }
    scene.note("requests without their last byte", sent);
    sleep(scene.settings.seconds()).await;
    Ok(())
}

/// Bytes that no client would send, to every port of every server.
pub async fn garbage(scene: &mut Scene<'_>) -> Result<(), String> {
    let deadline = Instant::now() + scene.settings.seconds();
    let seed = scene.settings.get("seed");
    let ports =
        scene.cluster.servers.into_iter().flat_map(|server| [server.client, server.peer, server.metrics]);
    let floods = ports.map(|port| {
        let mut random = Rng::with_seed(seed ^ u64::from(port.port()));
        thread::spawn(move || {
            let mut sent = 0;
            while Instant::now() < deadline {
                let kind = random.u8(..3);
                let begin: &[u8] = [b"", PREFACE, b"GET /metrics HTTP/1.1\r\nX-Long: "][usize::from(kind)];
                let until = deadline.min(Instant::now() + SOCKET_TIMEOUT);
                sent += flood(port, until, true, begin, &mut || rubbish(&mut random, kind));
                // The pause leaves the processors to the servers now and then, since there are 9 such threads.
                thread::sleep(Duration::from_millis(5));
            }
            sent
        })
    });
    let sent = finish(floods.collect()).await?;
    scene.note("garbage", format!("{} MiB", sent >> 20));
    Ok(())
}

fn rubbish(random: &mut Rng, kind: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..random.usize(1..2048)).map(|_| random.u8(..)).collect();
    match kind {
        // A frame in which only the length is right.
        1 => {
            let length = u32::try_from(bytes.len()).expect("it is short").to_be_bytes();
            let head =
                [length[1], length[2], length[3], random.u8(..10), random.u8(..), 0, 0, 0, random.u8(..8)];
            bytes.splice(..0, head);
        }
        2 => bytes.fill(b'x'),
        _ => {}
    }
    bytes
}

/// Writes until the other side closes or time is over. Returns how many bytes were taken.
fn flood(
    address: SocketAddr,
    deadline: Instant,
    reads: bool,
    begin: &[u8],
    next: &mut dyn FnMut() -> Vec<u8>,
) -> u64 {
    let mut sent = 0;
    while Instant::now() < deadline {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, SOCKET_TIMEOUT) else { continue };
        // These calls fail only for a time-out of 0.
        let _ = stream.set_write_timeout(Some(SOCKET_TIMEOUT));
        let _ = stream.set_read_timeout(Some(SOCKET_TIMEOUT));
        let reader = stream.try_clone().ok().filter(|_| reads).map(|mut stream| {
            thread::spawn(move || {
                let mut answers = vec![0; 64 << 10];
                while Instant::now() < deadline && stream.read(&mut answers).is_ok_and(|read| read > 0) {}
            })
        });
        let mut taken = stream.write_all(begin).is_ok();
        while taken && Instant::now() < deadline {
            let bytes = next();
            taken = stream.write_all(&bytes).is_ok();
            sent += if taken { bytes.len() as u64 } else { 0 };
        }
        if !reads {
            // The answers stay unread.
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        // The call fails only if the other side has closed.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        if let Some(reader) = reader {
            let _ = reader.join();
        }
    }
    sent
}

/// Waits for threads without blocking other tasks, and returns the sum of their results.
pub async fn finish(floods: Vec<JoinHandle<u64>>) -> Result<u64, String> {
    while floods.iter().any(|flood| !flood.is_finished()) {
        sleep(Duration::from_millis(20)).await;
    }
    floods.into_iter().map(|flood| flood.join().map_err(|_| "the attacker panicked".to_owned())).sum()
}
