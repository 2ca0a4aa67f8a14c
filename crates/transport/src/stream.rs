//! A connection between replicas, with TLS or without: what reads and writes it does not know which.
//!
//! Without TLS every call goes to the socket. With TLS, one thread at a time reads and one writes, as without. The
//! reader waits for the socket without holding the session, so that it delays no writer.
//!
//! **A write counts bytes only once all that they were encrypted to has left**, as a socket without TLS counts them:
//! the owner of the frames may give those that are left to another thread, or queue them for another session. What was
//! encrypted and did not leave is remembered, and the next write begins with the same bytes.

use std::{
    fmt,
    io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use synod_sync::{
    Arc, Mutex,
    net::{self, Shutdown, TcpStream},
};
use synod_tls::{
    explain,
    rustls::{self, ClientConnection, Connection, ServerConnection, pki_types::ServerName},
};

use crate::{
    config::Tls,
    deadline::Deadline,
    handshake::{HandshakeError, say_last},
    sync::lock,
};

/// Bytes that are read off the socket at a time with TLS.
const READ_BYTES: usize = 64 << 10;
/// The first byte of a connection with TLS: a record of the kind "handshake".
pub(crate) const TLS_FIRST: u8 = 22;
/// The first byte of an answer that refuses TLS's handshake: a record of the kind "alert".
pub(crate) const TLS_ALERT: u8 = 21;
/// The answer to a caller that does not speak TLS: a fatal alert, "unexpected message".
const UNEXPECTED: [u8; 7] = [TLS_ALERT, 3, 3, 0, 2, 2, 10];

/// A connection to or from another replica.
pub(crate) struct Stream {
    socket: Arc<TcpStream>,
    tls: OnceLock<Session>,
    /// Whether reading does not wait.
    is_nonblocking: AtomicBool,
}

/// TLS on a connection.
struct Session {
    arriving: Mutex<Arriving>,
    state: Mutex<State>,
}

/// What was read off the socket and is not decrypted yet. Only the thread that reads holds it, also while it waits.
struct Arriving {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether the last read took all that there was.
    is_drained: bool,
    has_ended: bool,
}

struct State {
    connection: Connection,
    /// Bytes at the beginning of the next write that were encrypted by an earlier one, and have not all left.
    held: usize,
}

/// The part of a write that must not wait for the socket, or may.
#[derive(Clone, Copy)]
enum Pace {
    AtOnce,
    AsItGoes,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_tls = self.tls.get().is_some();
        f.debug_struct("Stream").field("socket", &self.socket).field("tls", &has_tls).finish()
    }
}

impl Stream {
    /// A connection without TLS, so far.
    pub(crate) fn new(socket: TcpStream) -> Stream {
        Stream { socket: Arc::new(socket), tls: OnceLock::new(), is_nonblocking: AtomicBool::new(false) }
    }

    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.store(nonblocking, Relaxed);
        self.socket.set_nonblocking(nonblocking)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Shakes hands as the side that calls `host`.
    pub(crate) fn secure_to(&self, tls: &Tls, host: &str, timeout: Duration) -> Result<(), HandshakeError> {
        let host = bare(host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| HandshakeError::Tls(format!("{host:?} is no name that a certificate can have")))?;
        let connection = ClientConnection::new(tls.connector.config(), name).map_err(failed)?;
        self.secure(connection.into(), timeout)
    }

    /// Shakes hands as the side that was called.
    pub(crate) fn secure_from(&self, tls: &Tls, timeout: Duration) -> Result<(), HandshakeError> {
        let connection = ServerConnection::new(tls.acceptor.config()).map_err(failed)?;
        self.secure(connection.into(), timeout)
    }

    /// Whether the other side has shown a certificate, and that is valid for none of these hosts.
    pub(crate) fn is_shown_for_others<'a>(&self, hosts: impl IntoIterator<Item = &'a str>) -> bool {
        let Some(session) = self.tls.get() else { return false };
        let state = lock(&session.state);
        let shown = state.connection.peer_certificates().and_then(|chain| chain.first());
        let is_for = |certificate, host| synod_tls::is_valid_for(certificate, bare(host));
        shown.is_some_and(|certificate| !hosts.into_iter().any(|host| is_for(certificate, host)))
    }

    fn secure(&self, mut connection: Connection, timeout: Duration) -> Result<(), HandshakeError> {
        let deadline = Deadline::after(timeout);
        // What follows the handshake in the same read stays in the session, which takes more than this.
        let mut buffer = [0; 4096];
        let is_called = matches!(connection, Connection::Server(_));
        let mut is_first = true;
        loop {
            deadline.write(self, &to_say(&mut connection)?)?;
            if !connection.is_handshaking() {
                break;
            }
            let count = match deadline.read_some(self, &mut buffer)? {
                0 => return Err(HandshakeError::TlsClosed),
                count => count,
            };
            if std::mem::take(&mut is_first) && is_called && buffer[0] != TLS_FIRST {
                say_last(self, &UNEXPECTED);
                return Err(HandshakeError::NoTls);
            }
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                // After the other side's last word the session takes nothing more.
                if connection.read_tls(&mut rest)? == 0 {
                    break;
                }
                if let Err(error) = connection.process_new_packets() {
                    say_last(self, &to_say(&mut connection)?);
                    return Err(failed(error));
                }
            }
        }
        self.socket.set_read_timeout(None)?;
        let arriving = Arriving {
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            is_drained: true,
            has_ended: false,
        };
        let state = State { connection, held: 0 };
        let session = Session { arriving: Mutex::new(arriving), state: Mutex::new(state) };
        assert!(self.tls.set(session).is_ok(), "hands are shaken once");
        Ok(())
    }

    /// Writes as much as the connection takes at once, although it is one that blocks.
    ///
    /// # Errors
    /// The connection takes nothing now ([`ErrorKind::WouldBlock`]), or is broken.
    pub(crate) fn write_at_once(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tls.get() {
            None => net::write_at_once(&self.socket, parts),
            Some(session) => session.write(&self.socket, parts, Pace::AtOnce),
        }
    }
}

/// A host of a URL as certificates have it: an address of IPv6 has no brackets there.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// What a session has to say in its handshake.
fn to_say(connection: &mut Connection) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes)?;
    }
    Ok(bytes)
}

fn failed(error: rustls::Error) -> HandshakeError {
    HandshakeError::Tls(explain(&error))
}

impl Read for &Stream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => (&*self.socket).read(target),
            Some(session) => session.read(self, target, true),
        }
    }

    fn read_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(session) = self.tls.get() else { return (&*self.socket).read_vectored(targets) };
        let mut filled = 0;
        for target in targets {
            let count = session.read(self, target, filled == 0)?;
            filled += count;
            if count < target.len() {
                break;
            }
        }
        Ok(filled)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => (&*self.socket).write(bytes),
            Some(session) => session.write(&self.socket, &[IoSlice::new(bytes)], Pace::AsItGoes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tls.get() {
            None => (&*self.socket).write_vectored(parts),
            Some(session) => session.write(&self.socket, parts, Pace::AsItGoes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    /// Reads into `target`. Where the socket does not block, less than all of it means that nothing more is there. If
    /// `may_wait` is false, it returns 0 in place of waiting.
    fn read(&self, stream: &Stream, target: &mut [u8], may_wait: bool) -> io::Result<usize> {
        let arriving = &mut *lock(&self.arriving);
        let (mut filled, mut has_read) = (0, false);
        loop {
            filled += self.decrypt(arriving, stream, &mut target[filled..])?;
            // A socket that blocks is not asked for more than the first bytes.
            let has_some = filled > 0 || !may_wait;
            let is_enough = arriving.is_drained || !stream.is_nonblocking.load(Relaxed);
            if filled == target.len() || arriving.has_ended || has_some && is_enough {
                return Ok(filled);
            }
            // A caller with a deadline looks at it before a socket that blocks is read again.
            if has_read && filled == 0 && !stream.is_nonblocking.load(Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            match (&*stream.socket).read(&mut arriving.buffer) {
                Ok(count) => {
                    has_read = true;
                    (arriving.start, arriving.end) = (0, count);
                    arriving.is_drained = count < arriving.buffer.len();
                    // An end that nobody announced loses no more than the end of any connection.
                    arriving.has_ended = count == 0;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && has_some => {
                    arriving.is_drained = true;
                    return Ok(filled);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Decrypts into `target` as much as has arrived; says how much.
    fn decrypt(&self, arriving: &mut Arriving, stream: &Stream, target: &mut [u8]) -> io::Result<usize> {
        let State { connection, .. } = &mut *lock(&self.state);
        let mut filled = 0;
        while filled < target.len() {
            match connection.reader().read(&mut target[filled..]) {
                Ok(0) => {
                    arriving.has_ended = true;
                    // The socket itself need not end here, and a thread that waits for it, on either side, has to hear
                    // of this.
                    _ = stream.socket.shutdown(Shutdown::Both);
                    break;
                }
                Ok(count) => {
                    filled += count;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let mut rest = &arriving.buffer[arriving.start..arriving.end];
            if rest.is_empty() {
                break;
            }
            arriving.start += connection.read_tls(&mut rest)?;
            let processed = connection.process_new_packets();
            // There may be an answer, such as the reason for the end. If there is no room for it, the next read tries
            // again.
            _ = send(connection, &stream.socket, Pace::AtOnce);
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, explain(&error)))?;
        }
        Ok(filled)
    }

    /// Writes `parts`, as far as the pace allows; says how many bytes have left.
    fn write(&self, socket: &TcpStream, parts: &[IoSlice<'_>], pace: Pace) -> io::Result<usize> {
        let state = &mut *lock(&self.state);
        let mut left = 0;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        loop {
            match send(&mut state.connection, socket, pace) {
                Ok(()) => left += std::mem::take(&mut state.held),
                Err(_) if left > 0 => return Ok(left),
                Err(error) => return Err(error),
            }
            // A call that may wait says what has left before it waits again, so that a deadline is looked at.
            if left >= total || left > 0 && matches!(pace, Pace::AsItGoes) {
                return Ok(left);
            }
            state.held = encrypt(&mut state.connection, parts, left)?;
        }
    }
}

/// Encrypts what follows the first `skipped` bytes of `parts`, as far as the session has room; says how much.
fn encrypt(connection: &mut Connection, parts: &[IoSlice<'_>], mut skipped: usize) -> io::Result<usize> {
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let skip = skipped.min(part.len());
        skipped -= skip;
        if skip < part.len() {
            rest.push(IoSlice::new(&part[skip..]));
        }
    }
    connection.writer().write_vectored(&rest)
}

/// Sends all that is encrypted.
fn send(connection: &mut Connection, socket: &TcpStream, pace: Pace) -> io::Result<()> {
    while connection.wants_write() {
        match connection.write_tls(&mut Paced { socket, pace }) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            // The same while nothing has left as a whole; the bytes are remembered.
            Ok(_) if matches!(pace, Pace::AsItGoes) && connection.wants_write() => {
                return Err(ErrorKind::Interrupted.into());
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A socket that is written at a pace.
struct Paced<'a> {
    socket: &'a TcpStream,
    pace: Pace,
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.pace {
            Pace::AtOnce => net::write_at_once(self.socket, parts),
            Pace::AsItGoes => {
                let mut socket = self.socket;
                socket.write_vectored(parts)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
