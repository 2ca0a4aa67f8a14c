//! Accepting connections, and the receiver thread of each.
//!
//! Connections are bounded. When all places are taken, the connection that has been silent the longest gives
//! way to a new one, so a program that opens connections and says nothing keeps no member out.

use std::{
    fmt,
    io::{self, Read},
    net::SocketAddr,
    sync::{
        Weak,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use synod_sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicBool, AtomicU64},
    net::{Shutdown, TcpListener, TcpStream, Woken, wait_for},
    thread::{self, JoinHandle},
};
use tracing::{debug, info, warn};

use crate::{
    Config, Event, Unreadable,
    config::{Meeting, Unrecognised, host, is_dialled_with_tls},
    datagram::{self, End, Ends},
    frame::{Arrived, Content, FrameError, FrameReader, Message},
    handshake::{self, Caller, HandshakeError, Hello, Life, Refusal},
    inquiry,
    link::Link,
    socket,
    stream::{Stream, TLS_FIRST},
    sync::{lock, wait},
    transport::Shared,
};

/// How long to wait when the system refuses another socket, before the next attempt.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The most messages that are handed over together.
const TOGETHER_MAX: usize = 256;

/// What is spoken at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Plain,
    Tls,
    /// The first byte of a connection tells.
    Either,
}

/// An inbound connection, as the accepting thread knows it.
struct Connection {
    /// This is weak, so that the socket is closed when its thread is done.
    stream: Weak<TcpStream>,
    thread: JoinHandle<()>,
    call: Arc<Call>,
}

impl Connection {
    fn close(&self) {
        if let Some(stream) = self.stream.upgrade() {
            // The stream may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Waits for the end of its thread.
    fn join(self) {
        if self.thread.join().is_err() {
            warn!("a receiver thread panicked");
        }
    }
}

/// Whether the caller has introduced itself, or its connection had to give way to another one: what comes first
/// counts.
#[derive(Debug, Default)]
struct Call(AtomicBool);

impl Call {
    fn is_first(&self) -> bool {
        !self.0.swap(true, SeqCst)
    }
}

/// Accepts on all listeners until the transport is stopped; then ends all inbound connections and their threads.
///
/// The listeners are non-blocking, and each has what is spoken there. Whatever happens on `wake` ends the waiting.
pub(crate) fn accept(shared: &Arc<Shared>, listeners: &[TcpListener], speak: &[Speaks], wake: &Woken) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut serial = 0;
    while !shared.is_stopping() {
        wait_for(listeners, wake, None);
        for (listener, &speaks) in listeners.iter().zip(speak) {
            while !shared.is_stopping() {
                match listener.accept() {
                    Ok((stream, remote)) => {
                        serial += 1;
                        if make_room(&mut connections, shared.config.inbound_connections_max) {
                            connections.extend(start_receiver(shared, (stream, speaks), remote, serial));
                        } else {
                            let open = connections.len();
                            shared.complain("full", || {
                                format!("closed a connection from {remote}: there are {open} already")
                            });
                        }
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => break,
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                        _ => {
                            shared.complain("accept", || format!("cannot accept a connection: {error}"));
                            wait_for(&[], wake, Some(ACCEPT_RETRY));
                            break;
                        }
                    },
                }
            }
        }
    }
    connections.iter().for_each(Connection::close);
    connections.into_iter().for_each(Connection::join);
}

/// Whether there is room for one more; if need be, the connection that has been silent the longest is closed.
fn make_room(connections: &mut Vec<Connection>, max: usize) -> bool {
    connections.retain(|connection| !connection.thread.is_finished());
    if connections.len() >= max
        && let Some(silent) = connections.iter().position(|connection| connection.call.is_first())
    {
        // The thread of a closed connection has nothing to wait for any more.
        let silent = connections.remove(silent);
        silent.close();
        silent.join();
    }
    connections.len() < max
}

fn start_receiver(
    shared: &Arc<Shared>,
    (stream, speaks): (TcpStream, Speaks),
    remote: SocketAddr,
    serial: u64,
) -> Option<Connection> {
    let stream = Arc::new(Stream::new(stream));
    let weak = Arc::downgrade(stream.socket());
    let call = Arc::<Call>::default();
    let (shared_there, called) = (Arc::clone(shared), Arc::clone(&call));
    let receiver = Receiver { shared: shared_there, stream, speaks, remote, serial, call: called };
    match thread::Builder::new().name("receive".into()).spawn(move || receiver.run()) {
        Ok(thread) => Some(Connection { stream: weak, thread, call }),
        Err(error) => {
            shared.complain("thread", || {
                format!("closed a connection from {remote}: no thread for it: {error}")
            });
            None
        }
    }
}

/// The result of the handshake with a peer.
pub(crate) struct Session {
    shared: Arc<Shared>,
    pub(crate) link: Arc<Link>,
    /// The number of the connection.
    serial: u64,
    /// The version that was agreed on.
    version: u16,
    /// The peer's life.
    life: Life,
    /// This is weak, so that the socket is closed when its thread is done.
    stream: Weak<TcpStream>,
    /// Whether a datagram said something that cannot be read.
    refused: AtomicBool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("from", &self.link.id()).finish_non_exhaustive()
    }
}

impl Session {
    /// Whose messages follow.
    pub(crate) fn met(&self) -> Event {
        let Life { birth, incarnation, since, .. } = self.life;
        Event::Met { peer: self.link.id(), birth, incarnation, since, version: self.version }
    }

    /// Takes the frames of the session off its connection.
    pub(crate) fn reader<R: Read>(&self, source: R) -> FrameReader<R> {
        let config = &self.shared.config;
        FrameReader::new(source, config.cluster, self.version, config.frame_bytes_max)
    }

    /// Whether what comes on this connection still counts.
    pub(crate) fn goes_on(&self) -> bool {
        self.link.turn.is_newest(self.serial) && !self.shared.is_stopping() && !self.refused.load(Relaxed)
    }

    /// The version that was agreed on.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// The two lives between which its datagrams are.
    pub(crate) fn ends(&self) -> Ends {
        let config = &self.shared.config;
        let from = End { id: self.link.id(), life: self.life };
        Ends { cluster: config.cluster, from, to: config.own_end() }
    }

    /// Its messages may come as datagrams until what this returns is dropped: the owner was told whose they are.
    pub(crate) fn begin_datagrams(self: &Arc<Session>) -> DatagramsGuard {
        if let Some(incoming) = &self.shared.incoming {
            incoming.begin(self);
        }
        DatagramsGuard(Arc::clone(self))
    }

    /// Records what a datagram of this many bytes says of its sender; returns what it says.
    pub(crate) fn arrived_as_datagram(&self, arrived: datagram::Arrived, bytes: usize) -> Vec<Event> {
        let link = &self.link;
        // This comes before what the datagram says is believed.
        link.hear(self.life.nonce, arrived.durable);
        let (from, version) = (link.id(), arrived.version);
        match arrived.content {
            datagram::Content::Messages(messages) => {
                link.counters.datagrams_received.fetch_add(1, Relaxed);
                link.counters.bytes_received.fetch_add(bytes as u64, Relaxed);
                let event = |(group, body)| Event::Received { from, version, group, body };
                messages.into_iter().map(event).collect()
            }
            datagram::Content::Probe(number) => {
                link.probed_by_datagram(number);
                Vec::new()
            }
        }
    }

    /// A message in a datagram cannot be read: the session ends, as after such a message on the connection.
    pub(crate) fn refuse(&self, error: &Unreadable) {
        let link = &self.link;
        link.counters.frames_refused.fetch_add(1, Relaxed);
        self.refused.store(true, Relaxed);
        if let Some(stream) = self.stream.upgrade() {
            // The stream may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.complain(&format!("{} {error}", link.id()), || {
            format!("closes the connection from {}: a datagram of it: {error}", link.id())
        });
    }

    /// Records what a frame says of its sender; returns what it says.
    pub(crate) fn arrived(&self, frame: Arrived) -> Option<Event> {
        let link = &self.link;
        // This comes before what the frame says is believed.
        link.hear(self.life.nonce, frame.durable);
        link.counters.frames_received.fetch_add(1, Relaxed);
        link.counters.bytes_received.fetch_add(frame.bytes as u64, Relaxed);
        match frame.content {
            Content::Message(Message { version, group, body }) => {
                Some(Event::Received { from: link.id(), version, group, body })
            }
            Content::Mark(probe) => {
                probe.into_iter().for_each(|probe| link.probed(probe));
                None
            }
        }
    }
}

/// One inbound connection and the thread that reads it.
struct Receiver {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    speaks: Speaks,
    remote: SocketAddr,
    /// The number of the connection, in the order in which all inbound connections were accepted.
    serial: u64,
    call: Arc<Call>,
}

impl Receiver {
    fn run(self) {
        match self.admit() {
            Ok(Some(session)) => self.deliver(session),
            Ok(None) => {}
            Err(error) if self.shared.is_stopping() => debug!(remote = %self.remote, "{error}"),
            Err(error) => self.shared.complain(&format!("{} {error}", self.remote.ip()), || {
                format!("rejected connection on peer endpoint from {}: {error}", self.remote)
            }),
        }
        // The stream may be closed already, which is as good.
        _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The handshake, up to the welcome of a peer or the whole answer to an inquiry, which nothing follows. `None` if
    /// nothing follows, or the caller was refused.
    fn admit(&self) -> Result<Option<Session>, HandshakeError> {
        let config = &self.shared.config;
        // Some systems give the stream the listener's mode.
        self.stream.set_nonblocking(false)?;
        socket::tune(self.stream.socket(), config.silence_max)?;
        let me = config.who.incarnation;
        let receive = || {
            self.secure()?;
            handshake::receive(&self.stream, me, &config.versions, config.handshake_timeout)
        };
        let caller = receive();
        if !self.call.is_first() {
            debug!(remote = %self.remote, "closed, since it was silent and another one called");
            return Ok(None);
        }
        match caller? {
            Caller::Replica(hello, version) => self.admit_replica(&hello, version),
            Caller::Inquirer(version) => {
                inquiry::serve(&self.shared, &self.stream, self.remote, version).map(|()| None)
            }
        }
    }

    /// Shakes hands with TLS, if that is spoken here.
    fn secure(&self) -> Result<(), HandshakeError> {
        let Config { tls, handshake_timeout, .. } = &self.shared.config;
        let Some(tls) = tls else { return Ok(()) };
        let with_tls = match self.speaks {
            Speaks::Plain => false,
            Speaks::Tls => true,
            Speaks::Either => {
                socket::first_byte(self.stream.socket(), *handshake_timeout)? == Some(TLS_FIRST)
            }
        };
        if with_tls { self.stream.secure_from(tls, *handshake_timeout) } else { Ok(()) }
    }

    fn admit_replica(&self, hello: &Hello, version: u16) -> Result<Option<Session>, HandshakeError> {
        let config = &self.shared.config;
        match self.find_link(hello).and_then(|link| self.claim_turn(&link, hello, version).map(|()| link)) {
            Ok(link) => {
                link.hear_life(hello.who.nonce, hello.who.durable);
                let me = self.shared.introduction(version);
                handshake::welcome(&self.stream, &me, config.handshake_timeout)?;
                link.heard_from(Life::of(&hello.who));
                let incarnation = hello.who.incarnation;
                debug!(peer = %link.id(), remote = %self.remote, %incarnation, version, "accepted");
                let (shared, serial) = (Arc::clone(&self.shared), self.serial);
                let (life, stream) = (Life::of(&hello.who), Arc::downgrade(self.stream.socket()));
                let refused = AtomicBool::new(false);
                Ok(Some(Session { shared, link, serial, version, life, stream, refused }))
            }
            Err(refusal) => {
                self.tell_of_refused(hello, &refusal);
                handshake::refuse(&self.stream, &refusal, &config.versions, config.who.incarnation);
                Ok(None)
            }
        }
    }

    /// Writes down which replica is refused, and why.
    fn tell_of_refused(&self, hello: &Hello, refusal: &Refusal) {
        let Hello { cluster, from, to, who } = hello;
        if self.shared.is_stopping() {
            return debug!(peer = %from, remote = %self.remote, "refused: this replica stops");
        }
        let (config, peers) = (&self.shared.config, &self.shared.peers);
        let link = peers.find(*from);
        if *refusal == Refusal::UnknownReplica {
            if link.is_some() {
                return debug!(peer = %from, remote = %self.remote, "refused: its earlier connections still end");
            }
            // One of the two was removed: it learns of that by itself, and ends.
            if peers.has_left(*from) {
                return debug!(peer = %from, remote = %self.remote, "refused: it was a peer until a moment ago");
            }
        }
        if let Some(link) = link.as_deref().filter(|_| *to == config.me) {
            link.turn_away();
        }
        let more = match refusal {
            Refusal::OtherCluster => {
                format!(" of cluster {cluster}, and this replica is of {}", config.cluster)
            }
            Refusal::WrongDestination => format!(" for {to}, and this replica is {}", config.me),
            Refusal::OtherHost => {
                let address = link.map_or_else(String::new, |link| link.target().address.to_string());
                format!(
                    "; its certificate is not valid for {}, the host of {address}, which is the peer URL of {from}: give it \
                     one that is, or start this replica with --peer-skip-client-san-verification",
                    host(&address)
                )
            }
            Refusal::OldIncarnation | Refusal::OtherBirth | Refusal::Outlived(_) | Refusal::Unwritten => {
                format!(
                    ", birth {:016x}, incarnation {} with a log through {}",
                    who.birth, who.incarnation, who.durable
                )
            }
            _ => String::new(),
        };
        // The port of a caller is another one at each attempt.
        self.shared.complain(&format!("{} {from} {refusal}", self.remote.ip()), || {
            format!(
                "rejected connection on peer endpoint from {}, which calls as {from}{more}: {refusal}",
                self.remote
            )
        });
    }

    fn find_link(&self, hello: &Hello) -> Result<Arc<Link>, Refusal> {
        let config = &self.shared.config;
        if hello.cluster != config.cluster {
            return Err(Refusal::OtherCluster);
        }
        if hello.to != config.me {
            return Err(Refusal::WrongDestination);
        }
        // A link that is not ready waits for the end of an earlier one to the same replica. The caller tries again.
        let link = self.shared.peers.find(hello.from).filter(|link| link.is_ready());
        let link = link.ok_or(Refusal::UnknownReplica)?;
        let address = link.target().address;
        // A member whose address has no TLS yet is called without; its certificate need not be for that host.
        if is_dialled_with_tls(&address)
            && config.tls.as_ref().is_some_and(|tls| tls.checks_hosts)
            && self.stream.is_shown_for_others([host(&address)])
        {
            return Err(Refusal::OtherHost);
        }
        Ok(link)
    }

    /// Makes this the connection on which the peer is received, if the caller is the replica that this one knows.
    fn claim_turn(&self, link: &Link, hello: &Hello, version: u16) -> Result<(), Refusal> {
        let meeting = Meeting { heard: link.heard(), welcomed: false, version };
        let recognised = (self.shared.config.recognise)(hello.from, &hello.who, meeting);
        recognised.map_err(|unrecognised| match unrecognised {
            Unrecognised::Stranger(stranger) => Refusal::of(stranger),
            Unrecognised::Unwritten => Refusal::Unwritten,
            Unrecognised::Outdated(least) => {
                Refusal::Version(Some(least..=*self.shared.config.versions.end()))
            }
        })?;
        if link.turn.claim(self.serial, self.stream.socket(), || link.see(Life::of(&hello.who))) {
            return Ok(());
        }
        // The peer may have left during the check.
        Err(if link.is_stopped() { Refusal::UnknownReplica } else { Refusal::OldIncarnation })
    }

    /// Hands every frame to the owner, once no older connection of the peer does.
    fn deliver(&self, session: Session) {
        let link = Arc::clone(&session.link);
        let Some(turn) = link.turn.begin(self.serial) else {
            return;
        };
        link.counters.receiving.store(true, Relaxed);
        let session = Arc::new(session);
        let result = match &self.shared.entrance {
            Some(entrance) => entrance.read(&self.stream, Arc::clone(&session)),
            None => Some(self.deliver_frames(&session)),
        };
        link.counters.receiving.store(false, Relaxed);
        if matches!(&result, Some(Err(error)) if error.is_of_a_frame()) {
            link.counters.frames_refused.fetch_add(1, Relaxed);
        }
        match result {
            // The owner takes nothing any more.
            None => {}
            _ if self.shared.is_stopping() => {}
            _ if link.is_stopped() => {
                info!(peer = %link.id(), remote = %self.remote, "closed: it is no peer any more")
            }
            _ if !link.turn.is_newest(self.serial) => {
                info!(peer = %link.id(), remote = %self.remote, "replaced by a new connection")
            }
            // This replica closed it, and said so when the datagram came.
            _ if session.refused.load(Relaxed) => {}
            Some(Ok(())) => info!(peer = %link.id(), remote = %self.remote, "the peer closed its connection"),
            Some(Err(error)) => self.shared.complain(&format!("{} {error}", link.id()), || {
                format!("closed the connection from {} ({}): {error}", link.id(), self.remote)
            }),
        }
        drop(turn);
    }

    /// Hands over together what one read has brought: each time may wake the owner.
    fn deliver_frames(&self, session: &Arc<Session>) -> Result<(), FrameError> {
        let mut reader = session.reader(&*self.stream);
        self.shared.emit(vec![session.met()])?;
        let _datagrams = session.begin_datagrams();
        while session.goes_on() {
            let Some(frame) = reader.next_frame()? else {
                break;
            };
            let mut events: Vec<_> = session.arrived(frame).into_iter().collect();
            let mut broken = None;
            while broken.is_none() && events.len() < TOGETHER_MAX && reader.has_frame() {
                match reader.next_frame() {
                    Ok(frame) => events.extend(frame.and_then(|frame| session.arrived(frame))),
                    Err(error) => broken = Some(error),
                }
            }
            self.shared.emit(events)?;
            broken.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

/// Messages of a session may come as datagrams. When it is dropped, even by a panic of the sink, none comes any more.
pub(crate) struct DatagramsGuard(Arc<Session>);

impl Drop for DatagramsGuard {
    fn drop(&mut self) {
        if let Some(incoming) = &self.0.shared.incoming {
            incoming.end(&self.0);
        }
    }
}

/// Which inbound connection of a peer may deliver: the newest, and only after the one before it has stopped,
/// so that no frame of an old session comes after one of a new session.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The serial number of the newest connection; `u64::MAX` once the link is stopped.
    newest: AtomicU64,
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    stream: Weak<TcpStream>,
    delivering: bool,
}

impl Turn {
    /// Makes this the newest connection and closes the one before, if `check` allows it.
    fn claim(&self, serial: u64, stream: &Arc<TcpStream>, check: impl FnOnce() -> bool) -> bool {
        let mut state = lock(&self.state);
        if self.newest.load(Relaxed) > serial || !check() {
            return false;
        }
        self.newest.store(serial, Relaxed);
        if let Some(older) = std::mem::replace(&mut state.stream, Arc::downgrade(stream)).upgrade() {
            // The stream may be closed already, which is as good.
            _ = older.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        true
    }

    /// Waits until no other connection delivers; `None` if meanwhile a newer one came.
    fn begin(&self, serial: u64) -> Option<TurnGuard<'_>> {
        let mut state = lock(&self.state);
        while state.delivering && self.newest.load(Relaxed) == serial {
            state = wait(&self.changed, state);
        }
        if self.newest.load(Relaxed) != serial {
            return None;
        }
        state.delivering = true;
        Some(TurnGuard { turn: self })
    }

    /// Closes the connection, and lets no connection deliver any more, except for a delivery that is under way.
    pub(crate) fn stop(&self) {
        let state = lock(&self.state);
        self.newest.store(u64::MAX, Relaxed);
        if let Some(stream) = state.stream.upgrade() {
            // The stream may be closed already, which is as good.
            _ = stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Whether no newer connection has come, and the link is not stopped.
    fn is_newest(&self, serial: u64) -> bool {
        self.newest.load(Relaxed) == serial
    }

    /// Whether a delivery is under way.
    pub(crate) fn is_delivering(&self) -> bool {
        lock(&self.state).delivering
    }
}

/// The right to deliver; ends when it is dropped, even by a panic of the sink.
struct TurnGuard<'a> {
    turn: &'a Turn,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        lock(&self.turn.state).delivering = false;
        self.turn.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(listener: &TcpListener) -> Arc<TcpStream> {
        Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    #[test]
    fn the_newest_connection_waits_for_the_one_before() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let turn = Turn::default();
        let streams: Vec<_> = (0..3).map(|_| stream(&listener)).collect();
        assert!(turn.claim(1, &streams[0], || true));
        let first = turn.begin(1).unwrap();
        assert!(turn.is_newest(1));

        assert!(turn.claim(2, &streams[1], || true));
        assert!(!turn.is_newest(1));
        thread::scope(|scope| {
            let second = scope.spawn(|| turn.begin(2).is_some());
            assert!(turn.claim(3, &streams[2], || true));
            assert!(!second.join().unwrap(), "a connection that was replaced does not wait on");
            let third = scope.spawn(|| turn.begin(3).is_some());
            thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished(), "the first still delivers");
            drop(first);
            assert!(third.join().unwrap());
        });
    }

    #[test]
    fn a_refused_claim_leaves_the_turn_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let turn = Turn::default();
        assert!(turn.claim(1, &stream(&listener), || true));
        assert!(!turn.claim(2, &stream(&listener), || false));
        assert!(turn.begin(1).is_some());
        turn.stop();
        assert!(turn.begin(1).is_none());
        assert!(!turn.claim(3, &stream(&listener), || true));
    }
}
