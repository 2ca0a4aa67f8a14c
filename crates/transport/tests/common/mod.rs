//! Replicas on loopback ports of the system's choice, and strangers that speak to them by hand.
//!
//! The bytes are composed here independently, from the documentation of the format, so that the tests notice
//! when the format changes.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_sync::net::Bell;
use synod_transport::{
    Config, Connections, Event, Peer, PeerMetrics, TcpSender, Transport, Unreadable, VERSION, VERSION_OLDEST,
};
use synod_wire::{ClusterId, Encoded, Incarnation, ReplicaId, Writer};

/// A gate at which a sink waits.
#[derive(Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub fn pass(&self) {
        drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
    }

    pub fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

pub const CLUSTER: ClusterId = ClusterId(0xc1);
/// This is longer than anything takes on a busy machine.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// A body that no replica here understands.
pub const UNREADABLE: &[u8] = b"xyzzy";

/// The id, birth, incarnation and version of an [`Event::Met`].
pub type Met = (ReplicaId, u64, Incarnation, u16);

pub struct Replica {
    /// The thread that reads what peers send, if the transport does not. It ends before the transport.
    pub reader: Option<Reader>,
    pub transport: Transport,
    pub sender: TcpSender,
    pub events: Receiver<Event>,
    /// Whose messages came, in the order in which that was told.
    pub met: Arc<Mutex<Vec<Met>>>,
    pub address: SocketAddr,
}

/// A thread that reads what peers send until this is dropped, which waits for it.
pub struct Reader {
    stop: Option<Sender<()>>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(
        transport: &mut Transport,
        bell: Arc<Bell>,
        mut sink: impl FnMut(Event) -> Result<(), Unreadable> + Send + 'static,
    ) -> Reader {
        let mut inbox = transport.inbox().unwrap();
        let (stop, stopped) = mpsc::channel();
        let goes_on = move || stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected);
        let thread = thread::spawn(move || {
            while goes_on() {
                inbox.wait(WAIT_MAX, &goes_on);
                inbox.take(&mut sink);
            }
        });
        Reader { stop: Some(stop), bell, thread: Some(thread) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop = None;
        self.bell.ring();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The settings with which the owner's threads write to sockets and read from them.
pub fn without_threads(config: Config) -> Config {
    Config { direct: true, bell: Some(Arc::new(Bell::new().unwrap())), ..config }
}

pub fn listeners(count: usize) -> Vec<TcpListener> {
    // Datagrams are taken at the same ports.
    let is_free = |listener: &TcpListener| UdpSocket::bind(listener.local_addr().unwrap()).is_ok();
    std::iter::repeat_with(|| TcpListener::bind("127.0.0.1:0").unwrap()).filter(is_free).take(count).collect()
}

pub fn addresses(listeners: &[TcpListener]) -> Vec<SocketAddr> {
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

/// The settings of replica `me`; replica 1 listens on the first address.
pub fn config(me: u64, incarnation: u64, addresses: &[SocketAddr]) -> Config {
    let peers = (1..)
        .zip(addresses)
        .filter(|(id, _)| *id != me)
        .map(|(id, address)| Peer { id: ReplicaId(id), address: address.to_string() })
        .collect();
    let mut config = Config::new(CLUSTER, ReplicaId(me), Incarnation(incarnation), birth(me));
    config.who.nonce = nonce(incarnation, birth(me));
    // No probe comes among the frames that tests count, unless a test asks for it.
    Config { peers, probe_interval: Duration::from_secs(600), ..config }
}

/// The birth of every replica `id`, unless a test says otherwise.
pub fn birth(id: u64) -> u64 {
    0xb000 + id
}

impl Replica {
    pub fn start(config: Config, listener: TcpListener) -> Replica {
        let (tell, events) = mpsc::channel();
        let (met, told) = (Arc::<Mutex<Vec<Met>>>::default(), tell);
        let meets = Arc::clone(&met);
        let sink = move |event| match event {
            Event::Received { ref body, .. } if body == UNREADABLE => {
                Err(Unreadable("it is not a word".into()))
            }
            Event::Met { peer, birth, incarnation, version, .. } => {
                meets.lock().unwrap().push((peer, birth, incarnation, version));
                Ok(())
            }
            // These tests are not about when other replicas listen.
            Event::Refused { .. } => Ok(()),
            event => {
                if let Event::Received { from, .. } = &event {
                    let is_met = meets.lock().unwrap().iter().any(|(peer, ..)| peer == from);
                    assert!(is_met, "before its first message it is said whose that is");
                }
                _ = told.send(event);
                Ok(())
            }
        };
        let bell = config.bell.clone();
        let mut transport = Transport::start_on(config, vec![listener], sink.clone()).unwrap();
        let address = transport.local_addresses()[0];
        let reader = bell.map(|bell| Reader::start(&mut transport, bell, sink));
        Replica { sender: transport.sender(), transport, events, met, address, reader }
    }

    /// The next event. An early message of a session may be of any version that both sides speak.
    pub fn next(&self) -> Event {
        match self.events.recv_timeout(WAIT_MAX).expect("an event comes") {
            Event::Received { from, version, group, body }
                if (VERSION_OLDEST..=VERSION).contains(&version) =>
            {
                Event::Received { from, version: VERSION, group, body }
            }
            event => event,
        }
    }

    /// The next event that `wanted` takes; all events before it are skipped.
    pub fn wait_for<T>(&self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(&self.next()) {
                return found;
            }
        }
    }

    pub fn wait_up(&self, peer: u64) -> Incarnation {
        self.wait_for(|event| match event {
            Event::Up { peer: p, incarnation } if p.0 == peer => Some(*incarnation),
            _ => None,
        })
    }

    pub fn wait_down(&self, peer: u64) {
        self.wait_for(|event| matches!(event, Event::Down { peer: p } if p.0 == peer).then_some(()));
    }

    pub fn wait_received(&self, from: u64) -> Bytes {
        self.wait_for(|event| match event {
            Event::Received { from: f, body, .. } if f.0 == from => Some(body.clone()),
            _ => None,
        })
    }

    pub fn send(&self, to: u64, body: &[u8]) {
        self.sender.send(ReplicaId(to), encode(body));
    }

    pub fn metrics(&self, peer: u64) -> PeerMetrics {
        self.transport.metrics().peers.into_iter().find(|metrics| metrics.peer.0 == peer).unwrap()
    }

    /// Shuts the replica down, within the second that is promised.
    pub fn stop(self) {
        let started = Instant::now();
        drop(self.reader);
        self.transport.shutdown();
        let elapsed = started.elapsed();
        assert!(elapsed < Duration::from_secs(1), "shutdown took {elapsed:?}");
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts `count` replicas; returns when each has a session to every other.
pub fn cluster(count: usize) -> Vec<Replica> {
    cluster_with(count, |config| config)
}

/// The same with other settings.
pub fn cluster_with(count: usize, tune: fn(Config) -> Config) -> Vec<Replica> {
    let listeners = listeners(count);
    let addresses = addresses(&listeners);
    let replicas: Vec<_> = (1..)
        .zip(listeners)
        .map(|(me, listener)| Replica::start(tune(config(me, 1, &addresses)), listener))
        .collect();
    for replica in &replicas {
        (1..count).for_each(|_| assert!(matches!(replica.next(), Event::Up { .. })));
    }
    replicas
}

/// The first of two replicas, and the listener of the second, which is played by hand.
pub fn one_of_two(tune: fn(Config) -> Config) -> (Replica, TcpListener) {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let one = Replica::start(tune(config(1, 1, &addresses)), listeners.next().unwrap());
    (one, listeners.next().unwrap())
}

pub fn encode(body: &[u8]) -> Encoded {
    let mut writer = Writer::new();
    body.iter().for_each(|byte| writer.u8(*byte));
    writer.finish()
}

pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

pub fn hello(cluster: ClusterId, from: u64, to: u64, incarnation: u64) -> Vec<u8> {
    hello_born(cluster, from, to, incarnation, birth(from))
}

/// The introduction of a life of a replica that has nothing to tell of earlier lives.
fn introduction(incarnation: u64, birth: u64) -> Vec<u8> {
    let words = [birth, incarnation, nonce(incarnation, birth), 0, 0];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.extend([0, 0]);
    bytes.extend(0_u64.to_le_bytes());
    bytes
}

/// The nonce of every life here.
pub fn nonce(incarnation: u64, birth: u64) -> u64 {
    birth << 8 | incarnation
}

/// The bytes of an introduction without earlier lives.
const INTRODUCTION_BYTES: usize = 50;
/// The number of bytes that a replica sends here when it calls.
pub const HELLO_BYTES: usize = 12 + 24 + INTRODUCTION_BYTES + 4;
/// The number of bytes after the verdict that welcomes.
const WELCOME_BYTES: usize = 2 + INTRODUCTION_BYTES + 4;

pub fn hello_born(cluster: ClusterId, from: u64, to: u64, incarnation: u64, birth: u64) -> Vec<u8> {
    let mut bytes = b"SYNO".to_vec();
    for half_word in [VERSION_OLDEST, 0, VERSION_OLDEST] {
        bytes.extend(half_word.to_le_bytes());
    }
    bytes.extend((24 + INTRODUCTION_BYTES as u16).to_le_bytes());
    for word in [cluster.0, from, to] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(introduction(incarnation, birth));
    sealed(bytes)
}

pub fn inquiry() -> Vec<u8> {
    inquiry_in(VERSION_OLDEST)
}

pub fn inquiry_in(newest: u16) -> Vec<u8> {
    let mut bytes = b"SYNO".to_vec();
    for half_word in [newest, 1, VERSION_OLDEST, 0] {
        bytes.extend(half_word.to_le_bytes());
    }
    sealed(bytes)
}

pub fn verdict(verdict: u16, incarnation: u64, frame_bytes_max: u32) -> Vec<u8> {
    let mut bytes = b"SYNA".to_vec();
    bytes.extend(VERSION_OLDEST.to_le_bytes());
    bytes.extend(verdict.to_le_bytes());
    bytes.extend(incarnation.to_le_bytes());
    bytes.extend(frame_bytes_max.to_le_bytes());
    sealed(bytes)
}

fn welcome_rest(incarnation: u64, birth: u64) -> Vec<u8> {
    let mut bytes = (INTRODUCTION_BYTES as u16).to_le_bytes().to_vec();
    bytes.extend(introduction(incarnation, birth));
    sealed(bytes)
}

/// A verdict that welcomes a replica, and what follows it.
pub fn welcome_born(incarnation: u64, frame_bytes_max: u32, birth: u64) -> Vec<u8> {
    [verdict(0, incarnation, frame_bytes_max), welcome_rest(incarnation, birth)].concat()
}

/// A frame whose header announces `length` and the checksum `crc`, whatever the body is.
pub fn frame_with(cluster: ClusterId, length: u32, crc: u32, body: &[u8]) -> Vec<u8> {
    flagged(0, VERSION_OLDEST, cluster, length, crc, body)
}

/// A mark that asks or answers with this number.
pub fn probe(kind: u8, number: u64) -> Vec<u8> {
    let body = [&[kind], &number.to_le_bytes()[..]].concat();
    flagged(1, 0, CLUSTER, 9, crc32fast::hash(&body), &body)
}

fn flagged(flags: u8, version: u16, cluster: ClusterId, length: u32, crc: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [&b"SYNF\x02"[..], &[flags]].concat();
    bytes.extend(version.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(crc.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    let header_crc = crc32fast::hash(&[&cluster.0.to_le_bytes(), bytes.as_slice()].concat());
    bytes.extend(header_crc.to_le_bytes());
    bytes.extend(body);
    bytes
}

pub fn frame(body: &[u8]) -> Vec<u8> {
    frame_with(CLUSTER, u32::try_from(body.len()).unwrap(), crc32fast::hash(body), body)
}

/// Sends `hello`; returns the connection with the verdict.
pub fn call(address: SocketAddr, hello: &[u8]) -> (TcpStream, u16) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(hello).unwrap();
    let mut answer = [0; 24];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..4], b"SYNA");
    assert_eq!(answer[20..], crc32fast::hash(&answer[..20]).to_le_bytes());
    let verdict = u16::from_le_bytes([answer[6], answer[7]]);
    if verdict != 0 {
        // The rest says more about the reason.
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; usize::from(u16::from_le_bytes(length)) + 4]).unwrap();
    }
    (stream, verdict)
}

/// A welcomed connection.
pub fn join(address: SocketAddr, from: u64, to: u64, incarnation: u64) -> TcpStream {
    let (mut stream, verdict) = call(address, &hello(CLUSTER, from, to, incarnation));
    assert_eq!(verdict, 0);
    let mut rest = [0; WELCOME_BYTES];
    stream.read_exact(&mut rest).unwrap();
    assert_eq!(rest[2..10], birth(to).to_le_bytes());
    stream
}

/// Accepts a caller by hand and welcomes it, as replica 2 would.
pub fn welcome(listener: &TcpListener, incarnation: u64, frame_bytes_max: u32) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    stream.write_all(&welcome_born(incarnation, frame_bytes_max, birth(2))).unwrap();
    stream
}

/// Whether the other side closes the connection, with or without a reset.
pub fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}
