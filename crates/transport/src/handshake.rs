//! The first bytes on a connection: who is calling whom, and whether that is welcome.
//!
//! ```text
//! hello    := "SYNO" | version u16 | kind u16 = 0 | cluster u64 | from u64 | to u64 | incarnation u64
//!           | birth u64 | crc u32                                                               (52 bytes)
//! inquiry  := "SYNO" | version u16 | kind u16 = 1 | crc u32                                     (12 bytes)
//!
//! verdict  := "SYNA" | version u16 | verdict u16 | incarnation u64 | frame_bytes_max u32 | crc u32  (24 bytes)
//! welcome  := verdict | birth u64 | crc u32             to a hello
//! answer   := verdict | length u32 | crc u32 | bytes    to an inquiry
//! ```
//!
//! Integers are little-endian. The checksums cover everything before them: of the welcome, the birth; of the
//! answer, the length and the bytes. The verdict is 0 for "welcome", and what belongs to it follows; or it is the
//! number of a [`Refusal`], and nothing follows. The first eight bytes of a hello or an inquiry and the whole
//! verdict are the same in every version, so that a caller of another version learns why it is refused.
//!
//! A replica is (id, birth): whoever lost its data and comes back under its old id shows another birth, has
//! forgotten what it promised, and is refused, by the caller as by the acceptor.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use synod_sync::net::{Shutdown, TcpStream};
use synod_wire::{ClusterId, Incarnation, ReplicaId};

use crate::deadline::Deadline;

/// Grows whenever messages between replicas are encoded in another way: replicas of two versions do not talk.
pub(crate) const VERSION: u16 = 3;
/// The largest answer to an inquiry, in bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

const CALL_MAGIC: [u8; 4] = *b"SYNO";
const VERDICT_MAGIC: [u8; 4] = *b"SYNA";
const KIND_HELLO: u16 = 0;
const KIND_INQUIRY: u16 = 1;
/// The part of a hello or an inquiry that every version has.
const PREFIX_BYTES: usize = 8;
const HELLO_BYTES: usize = 52;
const INQUIRY_BYTES: usize = 12;
const VERDICT_BYTES: usize = 24;
/// What follows the verdict that welcomes a hello.
const WELCOME_BYTES: usize = 12;
/// What stands between the verdict and the bytes of an answer.
const ANSWER_HEAD_BYTES: usize = 8;
/// How long a refused caller gets to read the refusal and hang up.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);

/// Which replica it is, apart from its id, and in which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) birth: u64,
    pub(crate) incarnation: Incarnation,
}

impl Life {
    /// Whether it is a later life than `other` of the same replica. Lives of different births have no order.
    pub(crate) fn is_after(self, other: Life) -> bool {
        self.birth == other.birth && self.incarnation > other.incarnation
    }
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A replica that wants to send frames.
    Replica(Hello),
    /// Somebody who wants the answer to the inquiry, and nothing else.
    Inquirer,
}

/// What a replica says when it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cluster: ClusterId,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    pub(crate) life: Life,
}

/// What a welcomed caller learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) life: Life,
    /// The largest body that the acceptor takes, in bytes.
    pub(crate) frame_bytes_max: usize,
}

/// The lesson for whoever starts a replica without its data.
pub(crate) const OTHER_BIRTH: &str = "a replica of this id with other data was seen before; a replica that lost its \
     data can not come back under its old id, since it forgot what it promised: replace it (`synod member replace`)";

/// Why a caller is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Version,
    OtherCluster,
    UnknownReplica,
    WrongDestination,
    OldIncarnation,
    OtherBirth,
    Busy,
    NoAnswer,
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
            Refusal::OtherBirth => 6,
            Refusal::Busy => 7,
            Refusal::NoAnswer => 8,
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
            6 => Refusal::OtherBirth,
            7 => Refusal::Busy,
            8 => Refusal::NoAnswer,
            _ => Refusal::Other(code),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Version => "it speaks another version of the transport",
            Refusal::OtherCluster => "the two replicas belong to different clusters",
            Refusal::UnknownReplica => "the caller is not among the peers of the replica called",
            Refusal::WrongDestination => "another replica than the one called listens there",
            Refusal::OldIncarnation => "a later incarnation of the caller was seen already",
            Refusal::OtherBirth => OTHER_BIRTH,
            Refusal::Busy => "it answers as many inquiries as it can at a time; ask again",
            Refusal::NoAnswer => "its answer is too large to be sent, which its log tells more about",
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
    #[error("call of kind {0}, which version {VERSION} of the transport does not know")]
    Kind(u16),
    #[error("an answer of {length} bytes exceeds the bound, which is {ANSWER_BYTES_MAX}")]
    AnswerTooLarge { length: usize },
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
pub(crate) fn call(stream: &TcpStream, hello: &Hello, timeout: Duration) -> Result<Welcome, HandshakeError> {
    let deadline = Deadline::after(timeout);
    deadline.write(stream, &encode_hello(hello))?;
    let (incarnation, frame_bytes_max) = read_verdict(stream, &deadline)?;
    let mut rest = [0; WELCOME_BYTES];
    deadline.read(stream, &mut rest, None)?;
    stream.set_read_timeout(None)?;
    check_seal(&rest)?;
    Ok(Welcome { life: Life { birth: word(&rest, 0), incarnation }, frame_bytes_max })
}

/// Makes an inquiry on a new connection and waits for the answer.
pub(crate) fn inquire(stream: &TcpStream, timeout: Duration) -> Result<Bytes, HandshakeError> {
    let deadline = Deadline::after(timeout);
    deadline.write(stream, &encode_inquiry())?;
    read_verdict(stream, &deadline)?;
    let mut head = [0; ANSWER_HEAD_BYTES];
    deadline.read(stream, &mut head, None)?;
    let (length, crc) = (half_word(&head, 0), half_word(&head, 4));
    let length = length as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(HandshakeError::AnswerTooLarge { length });
    }
    let mut bytes = vec![0; length];
    deadline.read(stream, &mut bytes, None)?;
    if answer_crc(&bytes) != crc {
        return Err(HandshakeError::Checksum);
    }
    Ok(bytes.into())
}

/// Waits for a caller to say who it is. A caller of another version is told so.
pub(crate) fn receive(stream: &TcpStream, me: Life, timeout: Duration) -> Result<Caller, HandshakeError> {
    let deadline = Deadline::after(timeout);
    let mut bytes = [0; HELLO_BYTES];
    let (prefix, rest) = bytes.split_at_mut(PREFIX_BYTES);
    deadline.read(stream, prefix, Some(CALL_MAGIC))?;
    let version = u16::from_le_bytes([prefix[4], prefix[5]]);
    if version != VERSION {
        refuse(stream, Refusal::Version, me.incarnation);
        return Err(HandshakeError::Version(version));
    }
    match u16::from_le_bytes([prefix[6], prefix[7]]) {
        KIND_HELLO => {
            deadline.read(stream, rest, None)?;
            stream.set_read_timeout(None)?;
            decode_hello(&bytes).map(Caller::Replica)
        }
        KIND_INQUIRY => {
            deadline.read(stream, &mut rest[..INQUIRY_BYTES - PREFIX_BYTES], None)?;
            check_seal(&bytes[..INQUIRY_BYTES])?;
            Ok(Caller::Inquirer)
        }
        kind => Err(HandshakeError::Kind(kind)),
    }
}

/// Tells the calling replica that it is welcome.
pub(crate) fn welcome(stream: &TcpStream, me: Welcome, timeout: Duration) -> Result<(), HandshakeError> {
    Deadline::after(timeout).write(stream, &encode_welcome(me))
}

/// Answers an inquiry.
///
/// # Panics
/// If the answer has more than [`ANSWER_BYTES_MAX`] bytes.
pub(crate) fn answer(
    stream: &TcpStream,
    me: Welcome,
    answer: &Bytes,
    timeout: Duration,
) -> Result<(), HandshakeError> {
    assert!(answer.len() <= ANSWER_BYTES_MAX, "the caller of this compares it");
    let deadline = Deadline::after(timeout);
    let mut head = encode_verdict(0, me.life.incarnation, me.frame_bytes_max).to_vec();
    head.extend_from_slice(&(answer.len() as u32).to_le_bytes());
    head.extend_from_slice(&answer_crc(answer).to_le_bytes());
    deadline.write(stream, &head)?;
    deadline.write(stream, answer)?;
    Ok(())
}

/// Tells the caller why it is turned away, if it will listen.
///
/// The connection is closed only after the caller closed it, or a moment later: closing a socket that has unread
/// bytes resets the connection, and the caller could lose the answer.
pub(crate) fn refuse(stream: &TcpStream, refusal: Refusal, incarnation: Incarnation) {
    let deadline = Deadline::after(REFUSAL_LINGER);
    if deadline.write(stream, &encode_verdict(refusal.code(), incarnation, 0)).is_ok()
        && stream.shutdown(Shutdown::Write).is_ok()
    {
        let mut ignored = [0; 256];
        while deadline.read_some(stream, &mut ignored).is_ok_and(|count| count > 0) {}
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

fn half_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn answer_crc(answer: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(answer.len() as u32).to_le_bytes());
    crc.update(answer);
    crc.finalize()
}

/// The part that every version has.
fn set_prefix(bytes: &mut [u8], kind: u16) {
    bytes[0..4].copy_from_slice(&CALL_MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.to_le_bytes());
}

fn encode_inquiry() -> [u8; INQUIRY_BYTES] {
    let mut bytes = [0; INQUIRY_BYTES];
    set_prefix(&mut bytes, KIND_INQUIRY);
    seal(&mut bytes);
    bytes
}

fn encode_hello(hello: &Hello) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    set_prefix(&mut bytes, KIND_HELLO);
    bytes[8..16].copy_from_slice(&hello.cluster.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&hello.from.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&hello.to.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&hello.life.incarnation.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&hello.life.birth.to_le_bytes());
    seal(&mut bytes);
    bytes
}

fn decode_hello(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, HandshakeError> {
    check_seal(bytes)?;
    Ok(Hello {
        cluster: ClusterId(word(bytes, 8)),
        from: ReplicaId(word(bytes, 16)),
        to: ReplicaId(word(bytes, 24)),
        life: Life { incarnation: Incarnation(word(bytes, 32)), birth: word(bytes, 40) },
    })
}

fn encode_verdict(verdict: u16, incarnation: Incarnation, frame_bytes_max: usize) -> [u8; VERDICT_BYTES] {
    let frame_bytes_max = u32::try_from(frame_bytes_max).expect("checked when the transport started");
    let mut bytes = [0; VERDICT_BYTES];
    bytes[0..4].copy_from_slice(&VERDICT_MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&verdict.to_le_bytes());
    bytes[8..16].copy_from_slice(&incarnation.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&frame_bytes_max.to_le_bytes());
    seal(&mut bytes);
    bytes
}

fn encode_welcome(me: Welcome) -> [u8; VERDICT_BYTES + WELCOME_BYTES] {
    let mut bytes = [0; VERDICT_BYTES + WELCOME_BYTES];
    let (verdict, rest) = bytes.split_at_mut(VERDICT_BYTES);
    verdict.copy_from_slice(&encode_verdict(0, me.life.incarnation, me.frame_bytes_max));
    rest[0..8].copy_from_slice(&me.life.birth.to_le_bytes());
    seal(rest);
    bytes
}

fn read_verdict(stream: &TcpStream, deadline: &Deadline) -> Result<(Incarnation, usize), HandshakeError> {
    let mut bytes = [0; VERDICT_BYTES];
    deadline.read(stream, &mut bytes, Some(VERDICT_MAGIC))?;
    decode_verdict(&bytes)
}

/// The incarnation and the `frame_bytes_max` of a replica that says "welcome".
fn decode_verdict(bytes: &[u8; VERDICT_BYTES]) -> Result<(Incarnation, usize), HandshakeError> {
    check_seal(bytes)?;
    let verdict = u16::from_le_bytes([bytes[6], bytes[7]]);
    if verdict != 0 {
        return Err(HandshakeError::Refused(Refusal::from_code(verdict)));
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        return Err(HandshakeError::Version(version));
    }
    Ok((Incarnation(word(bytes, 8)), half_word(bytes, 16) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
        time::Instant,
    };

    const ME: Welcome =
        Welcome { life: Life { birth: 70, incarnation: Incarnation(7) }, frame_bytes_max: 1000 };
    const HELLO: Hello = Hello {
        cluster: ClusterId(1),
        from: ReplicaId(2),
        to: ReplicaId(3),
        life: Life { birth: 40, incarnation: Incarnation(4) },
    };
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
        assert_eq!(receive(&acceptor, ME.life, LONG).unwrap(), Caller::Replica(HELLO));
        welcome(&acceptor, ME, LONG).unwrap();
        assert_eq!(called.join().unwrap().unwrap(), ME);
    }

    #[test]
    fn the_caller_learns_why_it_is_refused() {
        for refusal in [
            Refusal::OtherCluster,
            Refusal::UnknownReplica,
            Refusal::WrongDestination,
            Refusal::OldIncarnation,
            Refusal::OtherBirth,
            Refusal::Busy,
            Refusal::NoAnswer,
            Refusal::Other(99),
        ] {
            let (caller, acceptor) = pair();
            let called = thread::spawn(move || call(&caller, &HELLO, LONG));
            receive(&acceptor, ME.life, LONG).unwrap();
            refuse(&acceptor, refusal, ME.life.incarnation);
            assert!(matches!(called.join().unwrap(), Err(HandshakeError::Refused(r)) if r == refusal));
        }
    }

    #[test]
    fn an_inquirer_gets_the_answer_whole() {
        for length in [0, 1, 5000, ANSWER_BYTES_MAX] {
            let (caller, acceptor) = pair();
            let inquired = thread::spawn(move || inquire(&caller, LONG));
            assert_eq!(receive(&acceptor, ME.life, LONG).unwrap(), Caller::Inquirer);
            let bytes = Bytes::from(vec![3; length]);
            answer(&acceptor, ME, &bytes, LONG).unwrap();
            assert!(inquired.join().unwrap().unwrap() == bytes);
        }
    }

    #[test]
    fn an_inquirer_that_takes_nothing_does_not_keep_the_answerer() {
        let (mut caller, acceptor) = pair();
        caller.write_all(&encode_inquiry()).unwrap();
        assert_eq!(receive(&acceptor, ME.life, LONG).unwrap(), Caller::Inquirer);
        let started = Instant::now();
        let bytes = Bytes::from(vec![3; ANSWER_BYTES_MAX]);
        // As many as it takes to fill the buffers of the system.
        let stuck = (0..50).find_map(|_| answer(&acceptor, ME, &bytes, Duration::from_millis(100)).err());
        assert!(matches!(stuck, Some(HandshakeError::Timeout(_))), "{stuck:?}");
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn a_call_of_an_unknown_kind_is_an_error() {
        let (mut caller, acceptor) = pair();
        let mut bytes = encode_inquiry();
        bytes[6] = 9;
        caller.write_all(&bytes).unwrap();
        assert!(matches!(receive(&acceptor, ME.life, LONG), Err(HandshakeError::Kind(9))));
    }

    #[test]
    fn another_version_is_told_so_even_if_its_hello_is_longer() {
        let (mut caller, acceptor) = pair();
        let mut hello = [0; 500];
        hello[..HELLO_BYTES].copy_from_slice(&encode_hello(&HELLO));
        hello[4] = 9;
        caller.write_all(&hello).unwrap();
        let accepted = thread::spawn(move || receive(&acceptor, ME.life, LONG));
        let mut answer = [0; VERDICT_BYTES];
        caller.read_exact(&mut answer).unwrap();
        assert!(matches!(decode_verdict(&answer), Err(HandshakeError::Refused(Refusal::Version))));
        drop(caller);
        assert!(matches!(accepted.join().unwrap(), Err(HandshakeError::Version(9))));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = encode_hello(&HELLO);
        for i in 8..good.len() {
            let mut bad = good;
            bad[i] ^= 0x10;
            assert!(matches!(decode_hello(&bad), Err(HandshakeError::Checksum)), "byte {i}");
        }
        let good = encode_verdict(0, ME.life.incarnation, 1000);
        for i in 0..good.len() {
            let mut bad = good;
            bad[i] ^= 0x10;
            assert!(matches!(decode_verdict(&bad), Err(HandshakeError::Checksum)), "byte {i}");
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
            receive(&acceptor, ME.life, Duration::from_millis(200)),
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
        assert!(matches!(receive(&acceptor, ME.life, LONG), Err(HandshakeError::Magic([b'G', 0, 0, 0]))));
    }
}
