//! A relay between replicas: real connections that behave like the links of a topology.
//!
//! Every replica is advertised at an address of the relay, and listens at another that only the relay knows.
//! A connection between replicas carries frames one way only, and its first bytes, the hello, name the
//! replica that dials. So the relay knows which link a connection is, and treats its bytes accordingly. A
//! client sends no hello; it gets an address of its own for each replica ([`Relay::open`]), and has a place
//! in the network as replicas have.
//!
//! ```text
//!  replica i ── dials j's advertised address ──▶ accept ─▶ reader ─▶ queue ─▶ writer ──▶ replica j
//!                                                          when each piece is due         │
//!            ◀──────────── the answer to the hello, delayed by the link j to i ◀──────────┘
//! ```
//!
//! Waiting bytes are bounded by what a link holds in flight. A reader whose queue is full stops reading, as a
//! full network makes a sender wait.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use synod_wire::ReplicaId;

use super::{Link, Links};

/// The bytes of a hello that name the caller, in every version from 4 on
/// (`crates/transport/src/handshake.rs`).
const HELLO_FROM: Range<usize> = 20..28;
/// Bytes with which every connection begins. An inquiry names no caller, and has fewer bytes after these than
/// a hello has.
const CALL_HEAD_BYTES: usize = 12;
/// The largest piece that is delayed as a whole, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that one direction of a connection may hold.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// How often a thread that waits for the network checks whether it should end.
const GLANCE_INTERVAL: Duration = Duration::from_millis(50);
/// How long a caller may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// A running relay. Dropping it ends all connections.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The place of each replica.
    places: Mutex<Vec<(ReplicaId, usize)>>,
    links: Mutex<Links>,
    /// Wakes writers that wait at a cut link.
    changed: Condvar,
    stopped: AtomicBool,
    /// Open connections with their link, so that they can be reset.
    sessions: Mutex<Vec<Session>>,
    last: AtomicU64,
    seed: u64,
}

/// An address at which the relay accepts connections.
#[derive(Clone, Copy, Debug)]
struct Gate {
    /// The caller's place; `None` if the hello tells it.
    from: Option<usize>,
    /// The target's place and address.
    to: usize,
    target: SocketAddr,
}

#[derive(Debug)]
struct Session {
    number: u64,
    from: usize,
    to: usize,
    streams: [TcpStream; 2],
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relay {
    /// Listens for each target and forwards connections. `links[from][to]` are in the order of the targets;
    /// `seed` decides jitter and loss.
    ///
    /// # Errors
    /// There is no address to listen at, or a thread cannot be started.
    ///
    /// # Panics
    /// There are fewer links than targets.
    pub fn start(links: Links, targets: Vec<(ReplicaId, SocketAddr)>, seed: u64) -> io::Result<Relay> {
        assert!(links.len() >= targets.len(), "every replica has its links");
        let shared = Arc::new(Shared {
            places: Mutex::new(targets.iter().map(|&(id, _)| id).zip(0..).collect()),
            links: Mutex::new(links),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            sessions: Mutex::new(Vec::new()),
            last: AtomicU64::new(0),
            seed,
        });
        let mut relay = Relay { shared, addresses: Vec::new(), threads: Vec::new() };
        for (to, &(_, target)) in targets.iter().enumerate() {
            let address = relay.listen(Gate { from: None, to, target })?;
            relay.addresses.push(address);
        }
        Ok(relay)
    }

    /// Opens an address for a caller at place `from` that sends no hello, to a target at place `to`. Returns
    /// the address to dial.
    ///
    /// # Errors
    /// There is no address to listen at, or a thread cannot be started.
    ///
    /// # Panics
    /// There are no links between the two places.
    pub fn open(&mut self, from: usize, to: usize, target: SocketAddr) -> io::Result<SocketAddr> {
        let places = lock(&self.shared.links).len();
        assert!(from < places && to < places, "every place has its links");
        self.listen(Gate { from: Some(from), to, target })
    }

    fn listen(&mut self, gate: Gate) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::clone(&self.shared);
        let accept = move || accept(&shared, &listener, gate);
        self.threads.push(thread::Builder::new().name(format!("relay-{}", gate.to)).spawn(accept)?);
        Ok(address)
    }

    /// Puts a new replica at a place: its messages use the links of that place.
    pub fn settle(&self, id: ReplicaId, place: usize) {
        lock(&self.shared.places).push((id, place));
    }

    /// The address to advertise for each target, in the order in which targets were given.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Changes a link, given the places of its ends. Bytes in flight keep their delay.
    pub fn set(&self, from: usize, to: usize, link: Link) {
        lock(&self.shared.links)[from][to] = link;
        self.shared.changed.notify_all();
    }

    /// Cuts a link (`true`) or mends it. Connections stay open and carry nothing; their bytes wait.
    pub fn cut(&self, from: usize, to: usize, cut: bool) {
        lock(&self.shared.links)[from][to].cut = cut;
        self.shared.changed.notify_all();
    }

    /// Ends the connections of a link; their bytes in flight are lost.
    pub fn reset(&self, from: usize, to: usize) {
        let sessions = lock(&self.shared.sessions);
        sessions.iter().filter(|session| (session.from, session.to) == (from, to)).for_each(Session::end);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.changed.notify_all();
        lock(&self.shared.sessions).iter().for_each(Session::end);
        for thread in self.threads.drain(..) {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Session {
    fn end(&self) {
        // The call fails if the connection has already ended.
        self.streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn link(&self, from: usize, to: usize) -> Link {
        lock(&self.links)[from][to]
    }

    /// Waits while a link is cut. Returns false if the relay stopped meanwhile.
    fn wait_until_mended(&self, from: usize, to: usize) -> bool {
        let mut links = lock(&self.links);
        while links[from][to].cut && !self.is_stopped() {
            links =
                self.changed.wait_timeout(links, GLANCE_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        !self.is_stopped()
    }
}

/// Accepts connections at one gate until the relay stops.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, gate: Gate) {
    let mut serving: Vec<JoinHandle<()>> = Vec::new();
    while !shared.is_stopped() {
        serving.retain(|thread| !thread.is_finished());
        match listener.accept() {
            Ok((caller, _)) => {
                let shared = Arc::clone(shared);
                let serve = move || {
                    // Whatever the error, both ends see the connection end, and dial again.
                    let _ = serve(&shared, &caller, gate);
                    drop(caller.shutdown(Shutdown::Both));
                };
                serving.extend(thread::Builder::new().name(format!("relay-{}", gate.to)).spawn(serve));
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
    serving.into_iter().for_each(|thread| drop(thread.join()));
}

fn serve(shared: &Arc<Shared>, caller: &TcpStream, gate: Gate) -> io::Result<()> {
    let Gate { to, target, .. } = gate;
    caller.set_nonblocking(false)?;
    caller.set_nodelay(true)?;
    let (hello, from) = match gate.from {
        Some(from) => (Vec::new(), from),
        None => {
            let (hello, from) = read_hello(shared, caller)?;
            (hello, from.unwrap_or(to))
        }
    };
    if from != to {
        // The first packet of a connection needs the way there and, for its acknowledgement, back.
        let (there, back) = (shared.link(from, to), shared.link(to, from));
        pause(shared, there.delay + back.delay);
        if !shared.wait_until_mended(from, to) {
            return Ok(());
        }
    }
    let replica = TcpStream::connect_timeout(&target, HELLO_TIMEOUT)?;
    replica.set_nodelay(true)?;
    let number = shared.last.fetch_add(1, Ordering::Relaxed);
    let streams = [caller.try_clone()?, replica.try_clone()?];
    let session = Session { number, from, to, streams };
    lock(&shared.sessions).push(session);
    let seed = shared.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let there = Pipe::new(shared, from, to, seed);
    let back = Pipe::new(shared, to, from, !seed);
    if !hello.is_empty() {
        there.push(&hello)?;
    }
    thread::scope(|scope| {
        scope.spawn(|| back.carry(&replica, caller));
        there.carry(caller, &replica);
    });
    lock(&shared.sessions).retain(|session| session.number != number);
    Ok(())
}

/// Reads the beginning of a connection, and the caller's place; `None` for an inquiry.
fn read_hello(shared: &Shared, mut caller: &TcpStream) -> io::Result<(Vec<u8>, Option<usize>)> {
    caller.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut hello = vec![0; CALL_HEAD_BYTES];
    caller.read_exact(&mut hello)?;
    let is_inquiry = hello[6..8] == [1, 0];
    let mut from = None;
    if !is_inquiry {
        hello.resize(HELLO_FROM.end, 0);
        caller.read_exact(&mut hello[CALL_HEAD_BYTES..])?;
        let id = ReplicaId(u64::from_le_bytes(hello[HELLO_FROM].try_into().expect("8 bytes")));
        let known = lock(&shared.places).iter().find(|(known, _)| *known == id).map(|&(_, place)| place);
        from = Some(known.ok_or_else(|| io::Error::other(format!("{id} has no links")))?);
    }
    caller.set_read_timeout(None)?;
    Ok((hello, from))
}

fn pause(shared: &Shared, time: Duration) {
    let until = Instant::now() + time;
    while !shared.is_stopped() && Instant::now() < until {
        thread::sleep(GLANCE_INTERVAL.min(until.saturating_duration_since(Instant::now())));
    }
}

/// One direction of a connection.
struct Pipe<'a> {
    shared: &'a Shared,
    from: usize,
    to: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    closed: bool,
    /// When the last piece will have left: bytes stay in order, and a slow link is busy until then.
    busy_until: Instant,
    last_due: Instant,
    random: fastrand::Rng,
}

impl<'a> Pipe<'a> {
    fn new(shared: &'a Shared, from: usize, to: usize, seed: u64) -> Pipe<'a> {
        let now = Instant::now();
        let state = State {
            pieces: VecDeque::new(),
            bytes: 0,
            closed: false,
            busy_until: now,
            last_due: now,
            random: fastrand::Rng::with_seed(seed),
        };
        Pipe { shared, from, to, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds a piece as soon as there is room. An error means that it was lost, or that the direction is closed.
    fn push(&self, piece: &[u8]) -> io::Result<()> {
        let now = Instant::now();
        let link = self.shared.link(self.from, self.to);
        let mut state = lock(&self.state);
        while state.bytes + piece.len() > QUEUE_BYTES_MAX && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed || (link.loss > 0.0 && state.random.f64() < link.loss) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let on_wire = piece.len() as f64 / link.bytes_per_second.max(1) as f64;
        let on_wire = if link.bytes_per_second == 0 { 0.0 } else { on_wire };
        state.busy_until = state.busy_until.max(now) + Duration::from_secs_f64(on_wire);
        let jitter = link.jitter.mul_f64(state.random.f64());
        let due = (state.busy_until + link.delay + jitter).max(state.last_due);
        state.last_due = due;
        state.bytes += piece.len();
        state.pieces.push_back((due, piece.to_vec()));
        self.changed.notify_all();
        Ok(())
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Reads and writes until either end closes, then closes both.
    fn carry(&self, source: &TcpStream, sink: &TcpStream) {
        thread::scope(|scope| {
            scope.spawn(|| {
                self.read(source);
                self.close();
            });
            self.write(sink);
            self.close();
            // The call fails if the connection has already ended.
            [source, sink].iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        });
    }

    fn read(&self, mut source: &TcpStream) {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) if self.push(&buffer[..count]).is_err() => return self.lose(source),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Ends the session; its bytes in flight are lost.
    fn lose(&self, source: &TcpStream) {
        lock(&self.state).pieces.clear();
        drop(source.shutdown(Shutdown::Both));
    }

    /// Writes each piece when it is due. Ends when the direction is closed and empty, or the sink fails.
    fn write(&self, mut sink: &TcpStream) {
        while let Some(piece) = self.next() {
            if !self.shared.wait_until_mended(self.from, self.to) || sink.write_all(&piece).is_err() {
                return;
            }
            lock(&self.state).bytes -= piece.len();
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut state = lock(&self.state);
        loop {
            if self.shared.is_stopped() {
                return None;
            }
            let wait = match state.pieces.front() {
                None if state.closed => return None,
                None => GLANCE_INTERVAL,
                Some((due, _)) => due.saturating_duration_since(Instant::now()),
            };
            if wait.is_zero() {
                return state.pieces.pop_front().map(|(_, piece)| piece);
            }
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects replica 0 to replica 1 through the relay, and returns both ends.
    fn connect(links: Links) -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let targets = vec![(ReplicaId(1), target), (ReplicaId(2), target)];
        let relay = Relay::start(links, targets, 1).unwrap();
        let mut caller = TcpStream::connect(relay.addresses()[1]).unwrap();
        caller.set_nodelay(true).unwrap();
        let mut hello = [0; 44];
        hello[..4].copy_from_slice(b"SYNO");
        hello[HELLO_FROM.start] = 1;
        caller.write_all(&hello).unwrap();
        let mut callee = listener.accept().unwrap().0;
        let mut got = [0; 44];
        callee.read_exact(&mut got).unwrap();
        assert_eq!(got, hello);
        (relay, caller, callee)
    }

    fn clear() -> Links {
        vec![vec![Link::CLEAR; 2]; 2]
    }

    /// How long one byte takes.
    fn time(from: &mut TcpStream, to: &mut TcpStream) -> Duration {
        let began = Instant::now();
        from.write_all(b"x").unwrap();
        to.read_exact(&mut [0]).unwrap();
        began.elapsed()
    }

    #[test]
    fn each_direction_has_its_delay_and_it_can_change() {
        let ms = Duration::from_millis;
        let mut links = clear();
        links[0][1].delay = ms(150);
        let (relay, mut caller, mut callee) = connect(links);
        let there = time(&mut caller, &mut callee);
        assert!(there >= ms(150) && there < ms(1500), "{there:?}");
        relay.set(0, 1, Link::CLEAR);
        relay.set(1, 0, Link { delay: ms(300), ..Link::CLEAR });
        let (there, back) = (time(&mut caller, &mut callee), time(&mut callee, &mut caller));
        assert!(back >= ms(300) && there < back, "{there:?} {back:?}");
    }

    #[test]
    fn a_cut_is_one_way_and_what_was_sent_arrives_when_it_is_mended() {
        let (relay, mut caller, mut callee) = connect(clear());
        relay.cut(0, 1, true);
        caller.write_all(b"late").unwrap();
        callee.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut buffer = [0; 4];
        let kind = callee.read(&mut buffer).unwrap_err().kind();
        assert!(matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{kind}");
        time(&mut callee, &mut caller);
        relay.cut(0, 1, false);
        callee.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        callee.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"late");
    }

    #[test]
    fn a_rate_is_kept() {
        let mut links = clear();
        links[0][1].bytes_per_second = 1 << 20;
        let (_relay, mut caller, mut callee) = connect(links);
        let began = Instant::now();
        let sent = thread::spawn(move || caller.write_all(&vec![7; 512 << 10]).map(|()| caller));
        let mut all = vec![0; 512 << 10];
        callee.read_exact(&mut all).unwrap();
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(10), "{took:?}");
        sent.join().unwrap().unwrap();
    }

    #[test]
    fn loss_and_reset_end_the_session() {
        let (relay, mut caller, mut callee) = connect(clear());
        relay.reset(0, 1);
        assert!(!matches!(callee.read(&mut [0]), Ok(1..)));
        assert!(!matches!(caller.read(&mut [0]), Ok(1..)));

        let (relay, mut caller, mut callee) = connect(clear());
        relay.set(0, 1, Link { loss: 1.0, ..Link::CLEAR });
        caller.write_all(b"lost").unwrap();
        assert!(!matches!(callee.read(&mut [0]), Ok(1..)));
    }

    #[test]
    fn a_client_needs_no_hello_where_a_way_was_opened_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let mut links = vec![vec![Link::CLEAR; 2]; 2];
        links[1][0].delay = Duration::from_millis(100);
        let mut relay = Relay::start(links, vec![(ReplicaId(1), target)], 1).unwrap();
        let way = relay.open(1, 0, target).unwrap();
        let mut client = TcpStream::connect(way).unwrap();
        let mut server = listener.accept().unwrap().0;
        let there = time(&mut client, &mut server);
        assert!(there >= Duration::from_millis(100), "{there:?}");
        time(&mut server, &mut client);
    }

    #[test]
    fn a_stranger_is_not_let_through() {
        let (relay, ..) = connect(clear());
        let mut stranger = TcpStream::connect(relay.addresses()[0]).unwrap();
        stranger.write_all(&[9; 44]).unwrap();
        assert!(!matches!(stranger.read(&mut [0]), Ok(1..)));
    }
}
