//! Datagrams from all peers: sockets, and which datagram is of which session.
//!
//! One thread takes them: that of the owner, which reads the sessions over TCP too ([`crate::Inbox`]), or one of their
//! own. A datagram counts from the moment in which its sender's session has told whose messages follow
//! ([`Event::Met`]), and to the end of that session: [`Incoming::end`] waits for a delivery that is under way, so
//! nothing of a session comes after the next one has begun.

use std::{io::ErrorKind, net::SocketAddr};

use synod_sync::{
    Arc, Mutex,
    net::{UdpSocket, Woken, wait_for_packets},
};
use tracing::warn;

use super::{Drops, MTU_MAX, Reason, Sessions, bytes_max};
use crate::{
    Event, Repeats, TransportError, Unreadable, inbound::Session, socket, sync::lock, transport::Shared,
};

/// Packets of a socket after which others have their turn.
const TURN_PACKETS_MAX: usize = 128;

/// What takes datagrams.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) sockets: Vec<Arc<UdpSocket>>,
    /// The largest datagram that is taken, in bytes.
    pub(crate) bytes_max: usize,
    sessions: Mutex<Sessions<Arc<Session>>>,
    /// It may outlive the sockets: what sends tells it.
    pub(crate) drops: Arc<Drops>,
    complaints: Mutex<Repeats>,
}

impl Incoming {
    /// Listens for packets at these addresses, on links with this MTU.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub(crate) fn listen(addresses: &[SocketAddr], mtu: usize) -> Result<Incoming, TransportError> {
        let listen = |&address: &SocketAddr| {
            socket::packets_at(address)
                .map(Arc::new)
                .map_err(|source| TransportError::BindDatagrams { address, source })
        };
        Ok(Incoming {
            sockets: addresses.iter().map(listen).collect::<Result<_, _>>()?,
            bytes_max: bytes_max(mtu, false).expect("checked with the settings"),
            sessions: Mutex::default(),
            drops: Arc::default(),
            complaints: Mutex::default(),
        })
    }

    /// A session has told whose messages follow.
    pub(crate) fn begin(&self, session: &Arc<Session>) {
        lock(&self.sessions).begin(&session.ends(), session.version(), Arc::clone(session));
    }

    /// A session has ended. When this returns, no event of its datagrams follows.
    pub(crate) fn end(&self, session: &Arc<Session>) {
        lock(&self.sessions).end(|other| Arc::ptr_eq(session, other));
    }

    /// Takes packets off a socket, and gives `deliver` what each says; returns whether there may be more.
    pub(crate) fn take(
        &self,
        socket: &UdpSocket,
        buffer: &mut [u8],
        deliver: &mut dyn FnMut(Vec<Event>) -> Result<(), Unreadable>,
    ) -> bool {
        for _ in 0..TURN_PACKETS_MAX {
            match socket.recv(buffer) {
                Ok(length) => self.arrive(&buffer[..length], deliver),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if let Some(left_out) = lock(&self.complaints).admit("take") {
                        warn!("cannot take datagrams: {error}{left_out}");
                    }
                    return false;
                }
            }
        }
        true
    }

    /// A packet that cannot be believed is dropped. One that can, and whose message cannot be read, ends its session,
    /// as over TCP: its sender means something that this replica does not understand, and would say it again.
    fn arrive(&self, packet: &[u8], deliver: &mut dyn FnMut(Vec<Event>) -> Result<(), Unreadable>) {
        let mut sessions = lock(&self.sessions);
        let is_large = packet.len() > self.bytes_max;
        let read = if is_large { Err(Reason::Large) } else { sessions.read(packet) };
        let (session, arrived) = match read {
            Ok((session, arrived)) if session.goes_on() => (Arc::clone(session), arrived),
            Ok(_) => return self.drops.count(Reason::Binding),
            Err(reason) => return self.drops.count(reason),
        };
        if let Err(error) = deliver(session.arrived_as_datagram(arrived, packet.len())) {
            session.refuse(&error);
            sessions.end(|other| Arc::ptr_eq(&session, other));
        }
    }
}

/// A buffer that no packet exceeds.
pub(crate) fn buffer() -> Vec<u8> {
    vec![0; MTU_MAX + 1]
}

/// The thread that takes datagrams, until the transport is stopped and the waker of `woken` dropped.
pub(crate) fn run(shared: &Shared, incoming: &Incoming, woken: &Woken) {
    let mut buffer = buffer();
    while !shared.is_stopping() {
        wait_for_packets(&incoming.sockets, woken);
        let mut has_more = true;
        while has_more && !shared.is_stopping() {
            let mut deliver = |events| shared.emit(events);
            // One turn of each, so that none waits for the packets of another.
            let more = incoming.sockets.iter().map(|socket| incoming.take(socket, &mut buffer, &mut deliver));
            has_more = more.fold(false, |one, other| one | other);
        }
    }
}
