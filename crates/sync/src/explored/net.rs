//! A network within the process. Its connections keep the order of bytes, accept fewer bytes than they are
//! offered, and make the sender wait.

pub use std::net::Shutdown;
use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    io::{self, IoSlice, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    task,
    time::Duration,
};

use shuttle::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Condvar, explore::draw, time};

/// How many bytes a connection holds until the other end reads them.
const PIPE_BYTES_MAX: usize = 16 << 10;

/// All threads that wait for any connection wait on this one.
#[derive(Debug, Default)]
struct Doorbell {
    rung: Mutex<()>,
    condvar: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        drop(lock(&self.rung));
        self.condvar.notify_all();
    }
}

#[derive(Default)]
struct Network {
    doorbell: Option<Arc<Doorbell>>,
    listeners: BTreeMap<SocketAddr, Arc<Mutex<VecDeque<TcpStream>>>>,
    /// Both directions of every connection.
    connections: Vec<[Weak<Pipe>; 2]>,
    last_port: u16,
}

thread_local! {
    static NETWORK: RefCell<Network> = RefCell::default();
}

pub(super) fn reset() {
    let network = Network { doorbell: Some(Arc::default()), ..Network::default() };
    // An execution that failed leaves objects that belong to its own scheduler: dropping them here would
    // panic.
    std::mem::forget(NETWORK.replace(network));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn doorbell() -> Arc<Doorbell> {
    NETWORK.with_borrow(|network| Arc::clone(network.doorbell.as_ref().expect("set by reset")))
}

fn free_port() -> u16 {
    NETWORK.with_borrow_mut(|network| {
        network.last_port += 1;
        40_000 + network.last_port
    })
}

/// Bytes on their way in one direction.
#[derive(Debug, Default)]
struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    closed: bool,
    /// It is rung when there is something to read.
    bell: Option<Weak<Ringing>>,
}

impl Pipe {
    fn close(&self) {
        let bell = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.bell.clone()
        };
        self.tell(bell);
    }

    /// Wakes everybody who waits for this pipe.
    fn tell(&self, bell: Option<Weak<Ringing>>) {
        self.changed.notify_all();
        if let Some(bell) = bell.and_then(|bell| bell.upgrade()) {
            bell.ring();
        }
    }

    /// Waits until the pipe can be used, or for `timeout`.
    fn wait(
        &self,
        timeout: Option<Duration>,
        nothing: impl FnMut(&mut PipeState) -> bool,
    ) -> io::Result<MutexGuard<'_, PipeState>> {
        let timeout = timeout.unwrap_or(Duration::MAX);
        let state = lock(&self.state);
        let (state, waited) =
            self.changed.wait_timeout_while(state, timeout, nothing).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(state) }
    }
}

impl Pipe {
    /// Takes some of what is offered, of which there is room for at least one byte unless the pipe is closed.
    fn put(&self, mut state: MutexGuard<'_, PipeState>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let offered: usize = parts.iter().map(|part| part.len()).sum();
        let mut room = offered.min(PIPE_BYTES_MAX - state.bytes.len());
        if room > 1 && draw(8) == 0 {
            room = 1 + draw(room as u64) as usize;
        }
        state.bytes.extend(parts.iter().flat_map(|part| part.iter().copied()).take(room));
        let bell = state.bell.clone();
        drop(state);
        self.tell(bell);
        Ok(room)
    }
}

/// Writes as much as the connection takes at once; the seed may have it take nothing.
///
/// # Errors
/// The connection takes nothing now ([`io::ErrorKind::WouldBlock`]), or is broken.
pub fn write_at_once(stream: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let state = lock(&stream.outgoing.state);
    if !state.closed && (state.bytes.len() >= PIPE_BYTES_MAX || draw(8) == 0) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    stream.outgoing.put(state, parts)
}

/// Breaks one of the connections, drawn by the seed. The bytes on their way are lost.
pub fn cut() {
    let there_are = NETWORK.with_borrow_mut(|network| {
        network.connections.retain(|pipes| pipes.iter().all(|pipe| pipe.strong_count() > 0));
        network.connections.clone()
    });
    if there_are.is_empty() {
        return;
    }
    for pipe in there_are[draw(there_are.len() as u64) as usize].iter().filter_map(Weak::upgrade) {
        let mut state = lock(&pipe.state);
        state.bytes.clear();
        state.closed = true;
        let bell = state.bell.clone();
        drop(state);
        pipe.tell(bell);
    }
}

/// As in the standard library.
#[derive(Debug)]
pub struct TcpStream {
    local: SocketAddr,
    peer: SocketAddr,
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    timeouts: std::sync::Mutex<(Option<Duration>, Option<Duration>)>,
    /// Whether reading waits. Nobody here writes to a connection that does not.
    nonblocking: std::sync::atomic::AtomicBool,
}

impl TcpStream {
    /// As in the standard library.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect_timeout(address: &SocketAddr, _timeout: Duration) -> io::Result<TcpStream> {
        let waiting = NETWORK.with_borrow(|network| network.listeners.get(address).cloned());
        let waiting = waiting.ok_or(io::ErrorKind::ConnectionRefused)?;
        let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free_port());
        let (there, back) = (Arc::<Pipe>::default(), Arc::<Pipe>::default());
        let accepted = TcpStream {
            local: *address,
            peer: local,
            incoming: Arc::clone(&there),
            outgoing: Arc::clone(&back),
            timeouts: Default::default(),
            nonblocking: Default::default(),
        };
        NETWORK.with_borrow_mut(|network| {
            network.connections.push([Arc::downgrade(&there), Arc::downgrade(&back)]);
        });
        lock(&waiting).push_back(accepted);
        doorbell().ring();
        Ok(TcpStream {
            local,
            peer: *address,
            incoming: back,
            outgoing: there,
            timeouts: Default::default(),
            nonblocking: Default::default(),
        })
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn set_nodelay(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    ///
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeouts.lock().expect("never poisoned").0 = timeout;
        Ok(())
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    ///
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeouts.lock().expect("never poisoned").1 = timeout;
        Ok(())
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    ///
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.timeouts.lock().expect("never poisoned").1)
    }

    /// Ends both directions, whatever is asked: the runtime never ends only one.
    ///
    /// # Errors
    /// It never fails.
    pub fn shutdown(&self, _: Shutdown) -> io::Result<()> {
        self.incoming.close();
        self.outgoing.close();
        Ok(())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.incoming.close();
        self.outgoing.close();
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let timeout = self.timeouts.lock().expect("never poisoned").0;
        let mut state = if self.nonblocking.load(std::sync::atomic::Ordering::SeqCst) {
            let state = lock(&self.incoming.state);
            if state.bytes.is_empty() && !state.closed {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            state
        } else {
            self.incoming.wait(timeout, |state| state.bytes.is_empty() && !state.closed)?
        };
        let count = state.bytes.len().min(buffer.len());
        buffer.iter_mut().zip(state.bytes.drain(..count)).for_each(|(to, from)| *to = from);
        drop(state);
        self.incoming.changed.notify_all();
        Ok(count)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let timeout = self.timeouts.lock().expect("never poisoned").1;
        let full = |state: &mut PipeState| state.bytes.len() >= PIPE_BYTES_MAX && !state.closed;
        self.outgoing.put(self.outgoing.wait(timeout, full)?, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// As in the standard library.
#[derive(Debug)]
pub struct TcpListener(Arc<Listening>);

#[derive(Debug)]
struct Listening {
    address: SocketAddr,
    waiting: Arc<Mutex<VecDeque<TcpStream>>>,
}

impl TcpListener {
    /// As in the standard library.
    ///
    /// # Errors
    /// The address is taken, or makes no sense.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let mut address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::InvalidInput)?;
        if address.port() == 0 {
            address.set_port(free_port());
        }
        let waiting = Arc::<Mutex<VecDeque<TcpStream>>>::default();
        let taken = NETWORK.with_borrow_mut(|network| {
            let taken = network.listeners.contains_key(&address);
            if !taken {
                network.listeners.insert(address, Arc::clone(&waiting));
            }
            taken
        });
        if taken {
            Err(io::ErrorKind::AddrInUse.into())
        } else {
            Ok(TcpListener(Arc::new(Listening { address, waiting })))
        }
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn set_nonblocking(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.address)
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener(Arc::clone(&self.0)))
    }

    /// As in the standard library, for a listener that does not block.
    ///
    /// # Errors
    /// No connection is waiting.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let stream = lock(&self.0.waiting).pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let peer = stream.peer;
        Ok((stream, peer))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let address = self.address;
        _ = NETWORK.try_with(|network| {
            if let Ok(mut network) = network.try_borrow_mut() {
                network.listeners.remove(&address);
            }
        });
    }
}

/// A socket for packets. This network has none: nothing makes one.
#[derive(Debug)]
pub enum UdpSocket {}

impl UdpSocket {
    /// Sends a packet.
    ///
    /// # Errors
    /// It is never called.
    pub fn send(&self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    /// Takes a packet.
    ///
    /// # Errors
    /// It is never called.
    pub fn recv(&self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

/// Waits for the waker of `woken`: no packet ever comes.
pub fn wait_for_packets(_: &[Arc<UdpSocket>], woken: &Woken) {
    wait_for(&[], woken, None);
}

/// Wakes a thread that waits for connections to become readable.
#[derive(Debug, Default)]
pub struct Bell(Arc<Ringing>);

#[derive(Debug, Default)]
struct Ringing {
    rung: Mutex<bool>,
    condvar: Condvar,
    /// The task that sleeps.
    task: Mutex<Option<task::Waker>>,
}

impl Ringing {
    fn ring(&self) {
        *lock(&self.rung) = true;
        self.condvar.notify_all();
        if let Some(task) = lock(&self.task).take() {
            task.wake();
        }
    }
}

impl Bell {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// It never fails.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell::default())
    }

    /// Has [`Bell::wait`] return, or wakes the task that sleeps.
    pub fn ring(&self) {
        self.0.ring();
    }

    /// From now on [`Bell::ring`] wakes this task, once.
    pub fn sleep_as(&self, task: &task::Waker) {
        *lock(&self.0.task) = Some(task.clone());
    }

    /// The task is awake, and need not be woken.
    pub fn awake(&self) {
        *lock(&self.0.task) = None;
    }

    /// Waits until one of the streams has something to read or is closed, until the bell is rung, or for `timeout`.
    /// `is_idle` is asked before the thread falls asleep, and a thread that makes it false has to ring afterwards.
    /// `ready` is told the place of each stream that is worth reading. No packet ever comes.
    pub fn wait<'a>(
        &self,
        streams: impl Iterator<Item = &'a TcpStream>,
        _packets: &'a [Arc<UdpSocket>],
        timeout: Duration,
        is_idle: impl Fn() -> bool,
        ready: impl FnMut(usize),
    ) {
        let streams: Vec<_> = streams.collect();
        for stream in &streams {
            lock(&stream.incoming.state).bell = Some(Arc::downgrade(&self.0));
        }
        let is_ready = |at: &usize| {
            let state = lock(&streams[*at].incoming.state);
            state.closed || !state.bytes.is_empty()
        };
        let until = time::now().saturating_add(timeout);
        let mut rung = lock(&self.0.rung);
        while !*rung && is_idle() && time::now() < until && !(0..streams.len()).any(|at| is_ready(&at)) {
            let left = until.saturating_sub(time::now());
            rung = self.0.condvar.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *rung = false;
        drop(rung);
        (0..streams.len()).filter(is_ready).for_each(ready);
    }
}

/// Dropping it wakes the thread that waits with its [`Woken`].
#[derive(Debug)]
pub struct Waker(Arc<Doorbell>, Arc<std::sync::atomic::AtomicBool>);

/// What a thread passes to [`wait_for`] so that the [`Waker`] can wake it.
#[derive(Debug)]
pub struct Woken(Arc<std::sync::atomic::AtomicBool>);

/// Makes a waker and its counterpart.
///
/// # Errors
/// It never fails.
pub fn waker() -> io::Result<(Waker, Woken)> {
    let woken = Arc::default();
    Ok((Waker(doorbell(), Arc::clone(&woken)), Woken(woken)))
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.1.store(true, std::sync::atomic::Ordering::SeqCst);
        self.0.ring();
    }
}

/// Waits for a connection on any listener, for the waker of `woken`, or for `timeout`.
pub fn wait_for(listeners: &[TcpListener], woken: &Woken, timeout: Option<Duration>) {
    let doorbell = doorbell();
    let until = time::now().saturating_add(timeout.unwrap_or(Duration::MAX));
    let mut rung = lock(&doorbell.rung);
    loop {
        let is_woken = woken.0.load(std::sync::atomic::Ordering::SeqCst);
        if is_woken
            || time::now() >= until
            || listeners.iter().any(|listener| !lock(&listener.0.waiting).is_empty())
        {
            return;
        }
        let left = until.saturating_sub(time::now());
        rung = doorbell.condvar.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
