//! The first bytes on a connection: who is calling whom, and whether that is welcome.
//!
//! ```text
//! hello  := "SYNO" | version u16 | reserved u16 = 0 | cluster u64 | from u64 | to u64 | incarnation u64 | crc u32
//! answer := "SYNA" | version u16 | verdict u16      | incarnation u64 | frame_bytes_max u32             | crc u32
//! ```
//!
//! Integers are little-endian; the checksums cover everything before them. The verdict is 0 for "welcome" or the
//! number of a [`Refusal`]. The first eight bytes of a hello and the whole answer are the same in every version,
//! so that a caller of another version learns why it is refused.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use synod_wire::{ClusterId, Incarnation, ReplicaId};

pub(crate) const VERSION: u16 = 1;
const HELLO_MAGIC: [u8; 4] = *b"SYNO";
const ANSWER_MAGIC: [u8; 4] = *b"SYNA";
const HELLO_BYTES: usize = 44;
/// The part of a hello that every version has.
const HELLO_PREFIX_BYTES: usize = 8;
const ANSWER_BYTES: usize = 24;
/// How long a refused caller gets to read the refusal and hang up.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);

/// What the caller says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cluster: ClusterId,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    pub(crate) incarnation: Incarnation,
}

/// What a welcomed caller learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) incarnation: Incarnation,
    /// The largest body that the acceptor takes, in bytes.
    pub(crate) frame_bytes_max: usize,
}

/// Why a caller is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Version,
    OtherCluster,
    UnknownReplica,
    WrongDestination,
    OldIncarnation,
    /// A number that this version does not know.
    Other(u16),
}

impl Refusal {
    fn code(self) -> u16 {
        match self {
            Refusal::Version => 1,
            Refusal::OtherCluster => 2,
            Refusal::UnknownReplica => 3,
            Refusal::WrongDestination => 4,
            Refusal::OldIncarnation => 5,
            Refusal::Other(code) => code,
        }
    }

    fn from_code(code: u16) -> Refusal {
        match code {
            1 => Refusal::Version,
            2 => Refusal::OtherCluster,
            3 => Refusal::UnknownReplica,
            4 => Refusal::WrongDestination,
            5 => Refusal::OldIncarnation,
            _ => Refusal::Other(code),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Version => "it speaks another version of the transport",
            Refusal::OtherCluster => "the two replicas belong to different clusters",
            Refusal::UnknownReplica => "the caller is not a peer in the configuration of the replica called",
            Refusal::WrongDestination => "another replica than the one called listens there",
            Refusal::OldIncarnation => "a later incarnation of the caller was seen already",
            Refusal::Other(code) => return write!(f, "of reason {code}, which this version does not know"),
        })
    }
}

/// Why there is no handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the handshake begins with {0:02x?}: this is not a Synod replica")]
    Magic([u8; 4]),
    #[error("version {0} of the transport is not known (this replica knows version {VERSION})")]
    Version(u16),
    #[error("the checksum of the handshake does not match")]
    Checksum,
    #[error("the connection was closed during the handshake")]
    Closed,
    #[error("the handshake took longer than {0:?}")]
    Timeout(Duration),
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error("handshake: {0}")]
    Io(#[from] io::Error),
}

/// Introduces this replica on a new connection and waits for the answer.
pub(crate) fn call(
    mut stream: &TcpStream,
    hello: &Hello,
    timeout: Duration,
) -> Result<Welcome, HandshakeError> {
    let deadline = Deadline::after(timeout);
    stream.write_all(&encode_hello(hello))?;
    let mut answer = [0; ANSWER_BYTES];
    deadline.read(stream, &mut answer, Some(ANSWER_MAGIC))?;
    stream.set_read_timeout(None)?;
    decode_answer(&answer)
}

/// Waits for a caller to introduce itself. A caller of another version is told so.
pub(crate) fn receive(stream: &TcpStream, me: Welcome, timeout: Duration) -> Result<Hello, HandshakeError> {
    let deadline = Deadline::after(timeout);
    let mut hello = [0; HELLO_BYTES];
    let (prefix, rest) = hello.split_at_mut(HELLO_PREFIX_BYTES);
    deadline.read(stream, prefix, Some(HELLO_MAGIC))?;
    let version = u16::from_le_bytes([prefix[4], prefix[5]]);
    if version != VERSION {
        refuse(stream, Refusal::Version, me.incarnation);
        return Err(HandshakeError::Version(version));
    }
    deadline.read(stream, rest, None)?;
    stream.set_read_timeout(None)?;
    decode_hello(&hello)
}

/// Tells the caller that it is welcome.
pub(crate) fn welcome(mut stream: &TcpStream, me: Welcome) -> Result<(), HandshakeError> {
    let frame_bytes_max = u32::try_from(me.frame_bytes_max).expect("checked when the transport started");
    Ok(stream.write_all(&encode_answer(0, me.incarnation, frame_bytes_max))?)
}

/// Tells the caller why it is turned away, if it will listen.
///
/// The connection is closed only after the caller closed it, or a moment later: closing a socket that has unread
/// bytes resets the connection, and the caller could lose the answer.
pub(crate) fn refuse(mut stream: &TcpStream, refusal: Refusal, incarnation: Incarnation) {
    let deadline = Deadline::after(REFUSAL_LINGER);
    if stream.write_all(&encode_answer(refusal.code(), incarnation, 0)).is_ok()
        && stream.shutdown(Shutdown::Write).is_ok()
    {
        let mut ignored = [0; 256];
        while deadline.read_some(stream, &mut ignored).is_ok_and(|count| count > 0) {}
    }
}

/// A time that a whole exchange must keep, however slowly its bytes drip.
struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(timeout: Duration) -> Deadline {
        Deadline { at: Instant::now() + timeout, timeout }
    }

    fn remaining(&self) -> Result<Duration, HandshakeError> {
        let remaining = self.at.saturating_duration_since(Instant::now());
        if remaining.is_zero() { Err(HandshakeError::Timeout(self.timeout)) } else { Ok(remaining) }
    }

    fn error(&self, error: io::Error) -> HandshakeError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HandshakeError::Timeout(self.timeout),
            _ => HandshakeError::Io(error),
        }
    }

    fn read_some(&self, mut stream: &TcpStream, target: &mut [u8]) -> Result<usize, HandshakeError> {
        loop {
            stream.set_read_timeout(Some(self.remaining()?))?;
            match stream.read(target) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| self.error(error)),
            }
        }
    }

    /// Fills `target`. A wrong magic number is noticed at its first byte, so that nobody waits for the rest.
    fn read(
        &self,
        stream: &TcpStream,
        target: &mut [u8],
        magic: Option<[u8; 4]>,
    ) -> Result<(), HandshakeError> {
        let mut filled = 0;
        while filled < target.len() {
            match self.read_some(stream, &mut target[filled..])? {
                0 => return Err(HandshakeError::Closed),
                count => filled += count,
            }
            let have = filled.min(4);
            if magic.is_some_and(|magic| target[..have] != magic[..have]) {
                let mut found = [0; 4];
                found[..have].copy_from_slice(&target[..have]);
                return Err(HandshakeError::Magic(found));
            }
        }
        Ok(())
    }
}

fn seal(bytes: &mut [u8]) {
    let (content, crc) = bytes.split_at_mut(bytes.len() - 4);
    crc.copy_from_slice(&crc32fast::hash(content).to_le_bytes());
}

fn check_seal(bytes: &[u8]) -> Result<(), HandshakeError> {
    let (content, crc) = bytes.split_at(bytes.len() - 4);
    if crc == crc32fast::hash(content).to_le_bytes() { Ok(()) } else { Err(HandshakeError::Checksum) }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn encode_hello(hello: &Hello) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[0..4].copy_from_slice(&HELLO_MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&hello.cluster.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&hello.from.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&hello.to.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&hello.incarnation.0.to_le_bytes());
    seal(&mut bytes);
    bytes
}

fn decode_hello(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, HandshakeError> {
    check_seal(bytes)?;
    Ok(Hello {
        cluster: ClusterId(word(bytes, 8)),
        from: ReplicaId(word(bytes, 16)),
        to: ReplicaId(word(bytes, 24)),
        incarnation: Incarnation(word(bytes, 32)),
    })
}

fn encode_answer(verdict: u16, incarnation: Incarnation, frame_bytes_max: u32) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[0..4].copy_from_slice(&ANSWER_MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&verdict.to_le_bytes());
    bytes[8..16].copy_from_slice(&incarnation.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&frame_bytes_max.to_le_bytes());
    seal(&mut bytes);
    bytes
}

fn decode_answer(bytes: &[u8; ANSWER_BYTES]) -> Result<Welcome, HandshakeError> {
    check_seal(bytes)?;
    let verdict = u16::from_le_bytes([bytes[6], bytes[7]]);
    if verdict != 0 {
        return Err(HandshakeError::Refused(Refusal::from_code(verdict)));
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        return Err(HandshakeError::Version(version));
    }
    let frame_bytes_max = u32::from_le_bytes(bytes[16..20].try_into().expect("4 bytes")) as usize;
    Ok(Welcome { incarnation: Incarnation(word(bytes, 8)), frame_bytes_max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    const ME: Welcome = Welcome { incarnation: Incarnation(7), frame_bytes_max: 1000 };
    const HELLO: Hello =
        Hello { cluster: ClusterId(1), from: ReplicaId(2), to: ReplicaId(3), incarnation: Incarnation(4) };
    const LONG: Duration = Duration::from_secs(5);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    #[test]
    fn both_learn_of_each_other() {
        let (caller, acceptor) = pair();
        let called = thread::spawn(move || call(&caller, &HELLO, LONG));
        assert_eq!(receive(&acceptor, ME, LONG).unwrap(), HELLO);
        welcome(&acceptor, ME).unwrap();
        assert_eq!(called.join().unwrap().unwrap(), ME);
    }

    #[test]
    fn the_caller_learns_why_it_is_refused() {
        for refusal in [
            Refusal::OtherCluster,
            Refusal::UnknownReplica,
            Refusal::WrongDestination,
            Refusal::OldIncarnation,
            Refusal::Other(99),
        ] {
            let (caller, acceptor) = pair();
            let called = thread::spawn(move || call(&caller, &HELLO, LONG));
            receive(&acceptor, ME, LONG).unwrap();
            refuse(&acceptor, refusal, ME.incarnation);
            assert!(matches!(called.join().unwrap(), Err(HandshakeError::Refused(r)) if r == refusal));
        }
    }

    #[test]
    fn another_version_is_told_so_even_if_its_hello_is_longer() {
        let (mut caller, acceptor) = pair();
        let mut hello = [0; 500];
        hello[..HELLO_BYTES].copy_from_slice(&encode_hello(&HELLO));
        hello[4] = 2;
        caller.write_all(&hello).unwrap();
        let accepted = thread::spawn(move || receive(&acceptor, ME, LONG));
        let mut answer = [0; ANSWER_BYTES];
        caller.read_exact(&mut answer).unwrap();
        assert!(matches!(decode_answer(&answer), Err(HandshakeError::Refused(Refusal::Version))));
        drop(caller);
        assert!(matches!(accepted.join().unwrap(), Err(HandshakeError::Version(2))));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = encode_hello(&HELLO);
        for i in 8..good.len() {
            let mut bad = good;
            bad[i] ^= 0x10;
            assert!(matches!(decode_hello(&bad), Err(HandshakeError::Checksum)), "byte {i}");
        }
        let good = encode_answer(0, ME.incarnation, 1000);
        for i in 0..good.len() {
            let mut bad = good;
            bad[i] ^= 0x10;
            assert!(matches!(decode_answer(&bad), Err(HandshakeError::Checksum)), "byte {i}");
        }
    }

    #[test]
    fn dripping_bytes_do_not_stretch_the_timeout() {
        let (mut caller, acceptor) = pair();
        let drip = thread::spawn(move || {
            for byte in encode_hello(&HELLO) {
                thread::sleep(Duration::from_millis(20));
                if caller.write_all(&[byte]).is_err() {
                    break;
                }
            }
        });
        let started = Instant::now();
        assert!(matches!(
            receive(&acceptor, ME, Duration::from_millis(200)),
            Err(HandshakeError::Timeout(_))
        ));
        assert!(started.elapsed() < Duration::from_millis(700));
        drop(acceptor);
        drip.join().unwrap();
    }

    #[test]
    fn garbage_is_recognised_at_its_first_byte() {
        let (mut caller, acceptor) = pair();
        caller.write_all(b"G").unwrap();
        assert!(matches!(receive(&acceptor, ME, LONG), Err(HandshakeError::Magic([b'G', 0, 0, 0]))));
    }
}
