//! Round trips and throughput between two replicas over loopback, compared with bare TCP sockets in the same run.
//!
//! `cargo run --release -p synod-transport --example pingpong`
//!
//! Both replicas live in this process, so they share its cores. In a round trip over the transport four
//! threads take turns (a sender and a receiver on each side); over bare sockets it is two. Nothing is stored.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_transport::{Config, Event, Peer, TcpSender, Transport};
use synod_wire::{ClusterId, Encoded, Incarnation, ReplicaId, Writer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PING: ReplicaId = ReplicaId(1);
const PONG: ReplicaId = ReplicaId(2);
const ROUND_TRIPS: usize = 30_000;
const WARM_UP: usize = 2_000;
const ROUND_TRIP_BYTES: usize = 64;
/// The most bytes that are under way while throughput is measured.
const WINDOW_BYTES: usize = 16 << 20;
const DURATION: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    println!("round trips of {ROUND_TRIP_BYTES} bytes, one at a time, over loopback");
    report("bare sockets", bare_round_trips()?);
    report("transport", transport_round_trips()?);
    println!("\none way over loopback, up to {} MiB under way", WINDOW_BYTES >> 20);
    println!(
        "{:>10} {:>14} {:>14} {:>14} {:>16}",
        "body", "frames/s", "MB/s", "frames/write", "bare TCP MB/s"
    );
    for size in [64, 1024, 16 << 10, 64 << 10, 1 << 20] {
        let (frames, per_write) = transport_throughput(size)?;
        let megabytes = frames * size as f64 / 1e6;
        println!(
            "{size:>10} {frames:>14.0} {megabytes:>14.1} {per_write:>14.1} {:>16.1}",
            bare_throughput(size)? / 1e6
        );
    }
    Ok(())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{what:>14}: median {:.1} us, 99% {:.1} us, 99.9% {:.1} us", at(0.5), at(0.99), at(0.999));
}

fn message(size: usize) -> Encoded {
    let mut writer = Writer::new();
    // A length stands before the bytes.
    writer.shared(&Bytes::from(vec![1; size - 4]));
    writer.finish()
}

/// Two connected replicas; the second hands what it receives to `pong`, the first to `ping`.
fn start(
    ping: impl Fn(&TcpSender) + Send + Sync + 'static,
    pong: impl Fn(&TcpSender) + Send + Sync + 'static,
) -> Result<(Transport, Transport)> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let addresses = [listeners[0].local_addr()?.to_string(), listeners[1].local_addr()?.to_string()];
    let [first, second] = listeners;
    let (up, ups) = mpsc::channel();
    let a = start_one(PING, Peer { id: PONG, address: addresses[1].clone() }, first, up.clone(), ping)?;
    let b = start_one(PONG, Peer { id: PING, address: addresses[0].clone() }, second, up, pong)?;
    ups.recv()?;
    ups.recv()?;
    Ok((a, b))
}

fn start_one(
    me: ReplicaId,
    peer: Peer,
    listener: TcpListener,
    up: mpsc::Sender<()>,
    received: impl Fn(&TcpSender) + Send + Sync + 'static,
) -> Result<Transport> {
    let config = Config { peers: vec![peer], ..Config::new(ClusterId(1), me, Incarnation(1), me.0) };
    let sender = Arc::new(OnceLock::<TcpSender>::new());
    let own = Arc::clone(&sender);
    let transport = Transport::start_on(config, vec![listener], move |event| {
        match event {
            Event::Met { .. } => {}
            Event::Received { .. } => received(own.get().expect("set before anything is sent")),
            Event::Up { .. } => _ = up.send(()),
            // The other replica is shut down.
            Event::Down { .. } | Event::Refused { .. } => {}
        }
        Ok(())
    })?;
    sender.set(transport.sender()).expect("set once");
    Ok(transport)
}

fn transport_round_trips() -> Result<Vec<Duration>> {
    let (done, answered) = mpsc::channel();
    let body = message(ROUND_TRIP_BYTES);
    let (next, echo) = (body.clone(), body.clone());
    // The answer causes the next question in the receiver thread itself, as in a protocol that runs there.
    let ping = move |sender: &TcpSender| {
        if done.send(Instant::now()).is_ok() {
            sender.send(PONG, next.clone());
        }
    };
    let (a, b) = start(ping, move |sender| sender.send(PING, echo.clone()))?;
    a.sender().send(PONG, body);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    let mut last = answered.recv()?;
    for i in 0..WARM_UP + ROUND_TRIPS {
        let now = answered.recv()?;
        if i >= WARM_UP {
            times.push(now - last);
        }
        last = now;
    }
    a.shutdown();
    b.shutdown();
    Ok(times)
}

fn bare_round_trips() -> Result<Vec<Duration>> {
    let (mut ping, mut pong) = pair()?;
    let echo = thread::spawn(move || {
        let mut body = [0; ROUND_TRIP_BYTES];
        while pong.read_exact(&mut body).is_ok() && pong.write_all(&body).is_ok() {}
    });
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    let mut body = [1; ROUND_TRIP_BYTES];
    for i in 0..WARM_UP + ROUND_TRIPS {
        let began = Instant::now();
        ping.write_all(&body)?;
        ping.read_exact(&mut body)?;
        if i >= WARM_UP {
            times.push(began.elapsed());
        }
    }
    drop(ping);
    echo.join().map_err(|_| "the echo panicked")?;
    Ok(times)
}

/// Frames per second, and how many of them left in one write.
fn transport_throughput(size: usize) -> Result<(f64, f64)> {
    let received = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&received);
    let (a, b) = start(|_| (), move |_| _ = counter.fetch_add(1, Relaxed))?;
    let (sender, body) = (a.sender(), message(size));
    let window = (WINDOW_BYTES / size).min(16_384) as u64;
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < DURATION {
        while sent - received.load(Relaxed) < window {
            sender.send(PONG, body.clone());
            sent += 1;
        }
        thread::sleep(Duration::from_micros(100));
    }
    let rate = received.load(Relaxed) as f64 / began.elapsed().as_secs_f64();
    let metrics = &a.metrics().peers[0];
    if metrics.frames_dropped > 0 {
        return Err(format!("{} frames were dropped", metrics.frames_dropped).into());
    }
    let per_write = metrics.frames_sent as f64 / metrics.writes as f64;
    a.shutdown();
    b.shutdown();
    Ok((rate, per_write))
}

/// Bytes per second, written in pieces of `size` and read in large ones, without checksums.
fn bare_throughput(size: usize) -> Result<f64> {
    let (mut from, mut to) = pair()?;
    let reader = thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        let mut total = 0;
        while let Ok(count @ 1..) = to.read(&mut buffer) {
            total += count;
        }
        total
    });
    let body = vec![1; size];
    let began = Instant::now();
    while began.elapsed() < DURATION {
        from.write_all(&body)?;
    }
    drop(from);
    let total = reader.join().map_err(|_| "the reader panicked")?;
    Ok(total as f64 / began.elapsed().as_secs_f64())
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ping = TcpStream::connect(listener.local_addr()?)?;
    let (pong, _) = listener.accept()?;
    ping.set_nodelay(true)?;
    pong.set_nodelay(true)?;
    Ok((ping, pong))
}
