//! Sessions of peers that the owner of the transport reads on a thread of its own, in place of a thread for each.
//!
//! A connection is accepted, and its handshake done, by its own thread in any case. That thread then hands the session
//! over, and sleeps until the session is over.

use std::{
    fmt,
    io::{self, IoSliceMut, Read},
    task::Context,
    time::Duration,
};

use synod_sync::{
    Arc,
    channel::{Receiver, Sender, bounded, unbounded},
    net::{Bell, UdpSocket},
};
use tracing::warn;

use crate::{
    Event, EventLoop, Inbox, Readiness, Socket, Unreadable,
    datagram::incoming::{self, Incoming},
    frame::{FrameError, FrameReader},
    inbound::{DatagramsGuard, Session},
    stream::Stream,
};

/// Bytes after which the next peer has its turn.
const TURN_BYTES_MAX: usize = 256 << 10;

/// What the thread of a connection hands over.
pub(crate) struct Flow {
    session: Arc<Session>,
    reader: FrameReader<Source>,
    /// It is told once how the session ended.
    ended: Sender<Result<(), FrameError>>,
    /// Whether there may be something to read.
    is_ready: bool,
    /// The owner was told whose messages these are, and datagrams bring some.
    datagrams: Option<DatagramsGuard>,
    /// How the event loop says so, if there is one.
    readiness: Option<Box<dyn Readiness>>,
}

/// A connection that does not block.
#[derive(Debug)]
struct Source(Arc<Stream>);

impl Read for Source {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(target)
    }

    fn read_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self.0).read_vectored(targets)
    }
}

/// Where threads of connections hand their sessions over.
#[derive(Clone, Debug)]
pub(crate) struct Entrance {
    flows: Sender<Flow>,
    bell: Arc<Bell>,
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("from", &self.session.link.id()).finish_non_exhaustive()
    }
}

impl Entrance {
    /// Hands a session over, and waits for its end; `None` if it has not ended, and nobody reads it any more.
    pub(crate) fn read(&self, stream: &Arc<Stream>, session: Arc<Session>) -> Option<Result<(), FrameError>> {
        let (ended, end) = bounded(1);
        let reader = match stream.set_nonblocking(true) {
            Ok(()) => session.reader(Source(Arc::clone(stream))),
            Err(error) => return Some(Err(error.into())),
        };
        self.flows
            .send(Flow { session, reader, ended, is_ready: true, datagrams: None, readiness: None })
            .ok()?;
        self.bell.ring();
        end.recv().ok()
    }
}

/// The sessions that the owner reads.
#[derive(Debug)]
pub(crate) struct TcpInbox {
    bell: Arc<Bell>,
    new: Receiver<Flow>,
    flows: Vec<Flow>,
    event_loop: Option<Arc<dyn EventLoop>>,
    datagrams: Option<Datagrams>,
}

/// Datagrams, of all peers.
#[derive(Debug)]
struct Datagrams {
    incoming: Arc<Incoming>,
    sockets: Vec<Packets>,
    buffer: Vec<u8>,
}

/// One socket at which they come.
#[derive(Debug, Default)]
struct Packets {
    /// Whether there may be something to take.
    is_ready: bool,
    /// Whether the event loop was asked to say so, if there is one, and how it does.
    is_registered: bool,
    readiness: Option<Box<dyn Readiness>>,
}

/// Makes an inbox, and where sessions come into it.
pub(crate) fn inbox(
    bell: Arc<Bell>,
    event_loop: Option<Arc<dyn EventLoop>>,
    incoming: Option<Arc<Incoming>>,
) -> (Entrance, TcpInbox) {
    let (flows, new) = unbounded();
    let datagrams = incoming.map(|incoming| Datagrams {
        sockets: incoming.sockets.iter().map(|_| Packets::default()).collect(),
        incoming,
        buffer: incoming::buffer(),
    });
    let entrance = Entrance { flows, bell: Arc::clone(&bell) };
    (entrance, TcpInbox { bell, new, flows: Vec::new(), event_loop, datagrams })
}

impl Inbox for TcpInbox {
    fn wait(&mut self, timeout: Duration, is_idle: &dyn Fn() -> bool) {
        let (new, flows) = (&self.new, &self.flows);
        // What is in a buffer, or was left for another turn, wakes nobody.
        let nothing_left = !flows.iter().any(|flow| flow.is_ready) && !self.has_packets();
        let packets: &[Arc<UdpSocket>] =
            self.datagrams.as_ref().map_or(&[], |datagrams| &datagrams.incoming.sockets);
        let mut ready = Vec::with_capacity(flows.len());
        let streams = flows.iter().map(|flow| &**flow.reader.source().0.socket());
        self.bell.wait(
            streams,
            packets,
            timeout,
            || nothing_left && is_idle() && new.is_empty(),
            |at| ready.push(at),
        );
        let streams = self.flows.len();
        for at in ready {
            match (at.checked_sub(streams), &mut self.datagrams) {
                (Some(socket), Some(datagrams)) => datagrams.sockets[socket].is_ready = true,
                _ => self.flows[at].is_ready = true,
            }
        }
        self.flows.extend(self.new.try_iter());
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        for mut flow in self.new.try_iter() {
            if let Some(event_loop) = &self.event_loop {
                let socket = Socket::Connection(Arc::clone(flow.reader.source().0.socket()));
                match event_loop.register(socket) {
                    Ok(readiness) => flow.readiness = Some(readiness),
                    Err(error) => {
                        // The thread of the connection waits for this; the peer dials again.
                        _ = flow.ended.send(Err(error.into()));
                        continue;
                    }
                }
            }
            self.flows.push(flow);
        }
        for flow in &mut self.flows {
            flow.is_ready |= flow.readiness.as_mut().is_some_and(|readiness| readiness.poll(cx));
        }
        self.poll_packets(cx);
        self.flows.iter().any(|flow| flow.is_ready) || self.has_packets()
    }

    fn take(&mut self, sink: &mut dyn FnMut(Event) -> Result<(), Unreadable>) {
        self.flows.retain_mut(|flow| {
            let end = if flow.is_ready { flow.take(sink) } else { None };
            let goes_on = end.is_none();
            if let Some(end) = end {
                // The thread of the connection waits for this.
                _ = flow.ended.send(end);
            }
            goes_on
        });
        // After the flows, where sessions begin whose datagrams may be here already.
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.take(sink);
        }
    }
}

impl TcpInbox {
    fn has_packets(&self) -> bool {
        self.datagrams.iter().flat_map(|datagrams| &datagrams.sockets).any(|socket| socket.is_ready)
    }

    /// Asks the event loop for what has come at the sockets of datagrams.
    fn poll_packets(&mut self, cx: &mut Context<'_>) {
        let (Some(datagrams), Some(event_loop)) = (&mut self.datagrams, &self.event_loop) else { return };
        let Datagrams { incoming, sockets, .. } = datagrams;
        for (socket, packets) in incoming.sockets.iter().zip(sockets) {
            if !std::mem::replace(&mut packets.is_registered, true) {
                match event_loop.register(Socket::Datagrams(Arc::clone(socket))) {
                    Ok(readiness) => packets.readiness = Some(readiness),
                    // Peers get no answer to their probes, and send over TCP.
                    Err(error) => warn!("cannot watch the socket for datagrams, and takes none: {error}"),
                }
            }
            packets.is_ready |= packets.readiness.as_mut().is_some_and(|readiness| readiness.poll(cx));
        }
    }
}

impl Datagrams {
    /// Takes what has come, up to a bound.
    fn take(&mut self, sink: &mut dyn FnMut(Event) -> Result<(), Unreadable>) {
        let Datagrams { incoming, sockets, buffer } = self;
        let mut deliver = |events: Vec<Event>| events.into_iter().try_for_each(&mut *sink);
        for (socket, packets) in incoming.sockets.iter().zip(sockets) {
            if packets.is_ready {
                packets.is_ready = incoming.take(socket, buffer, &mut deliver);
            }
        }
    }
}

impl Flow {
    /// Takes what has arrived, up to a bound; says how the session ended, if it did.
    fn take(
        &mut self,
        sink: &mut dyn FnMut(Event) -> Result<(), Unreadable>,
    ) -> Option<Result<(), FrameError>> {
        let mut taken = 0;
        self.is_ready = false;
        if self.datagrams.is_none() {
            if let Err(error) = sink(self.session.met()) {
                return Some(Err(error.into()));
            }
            self.datagrams = Some(self.session.begin_datagrams());
        }
        while self.session.goes_on() {
            match self.reader.next_frame() {
                Ok(Some(frame)) => {
                    taken += frame.bytes;
                    if let Some(event) = self.session.arrived(frame)
                        && let Err(error) = sink(event)
                    {
                        return Some(Err(error.into()));
                    }
                }
                Ok(None) => return Some(Ok(())),
                Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => return Some(Err(error)),
            }
            if taken >= TURN_BYTES_MAX {
                self.is_ready = true;
                return None;
            }
            if self.reader.is_drained() {
                return None;
            }
        }
        Some(Ok(()))
    }
}
