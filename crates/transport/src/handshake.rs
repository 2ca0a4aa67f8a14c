//! The first bytes on a connection: which replica calls which, which version they speak, and whether the
//! caller is welcome.
//!
//! ```text
//! call     := "SYNO" | newest u16 | kind u16 | oldest u16 | length u16 | fields | crc u32
//! kinds    := 0: hello, from a replica that wants to send frames; 1: inquiry, without fields
//! fields of a hello := cluster u64 | from u64 | to u64 | introduction
//!
//! verdict  := "SYNA" | version u16 | verdict u16 | incarnation u64 | frame_bytes_max u32 | crc u32  (24 bytes)
//! rest     := length u16 | fields | crc u32
//! welcome  := verdict | rest           to a hello; the fields are an introduction, and mtu u16 if the acceptor
//!                                      takes datagrams of links with this MTU (`datagram.rs`)
//! refusal  := verdict | rest           the fields say more about the reason, if there is more to say
//! answer   := verdict | length u32 | crc u32 | bytes    to an inquiry
//!
//! introduction := birth u64 | incarnation u64 | nonce u64 | since u64 | durable u64
//!               | count u16 | count * (life u64 | nonce u64)
//!               | began u64 | count * began u64    from version 5 on, by its own newest version
//! ```
//!
//! Integers are little-endian. The checksums cover everything before them: of the rest, its length and fields;
//! of an answer, the length and the bytes. The verdict is 0 for "welcome", or the number of a [`Refusal`].
//!
//! **Versions.** A caller names the oldest and the newest version that it speaks, and the acceptor takes the
//! highest that both speak: the verdict of a welcome names it, and the session's messages are written in it.
//! The verdict of a refusal names the newest version of the acceptor. The layout above is the same in every
//! version from 4 on, with this freedom: fields may get longer at their end, and a reader that does not know
//! what stands there ignores it. Callers of versions 1 to 3 named one version only, and no length; they get a
//! verdict of the same form.
//!
//! A replica is (id, birth). A replica that lost its data and comes back under its old id shows another
//! birth, has forgotten what it promised, and is refused, by the caller as by the acceptor. So is a replica
//! whose data directory was restored from a copy, which its introduction shows
//! ([`synod_wire::Acquaintance::meet`]).

use std::{io, ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use synod_sync::net::Shutdown;
use synod_wire::{ClusterId, EARLIER_LIVES_MAX, EarlierLife, Incarnation, Introduction, Lsn, ReplicaId};

mod refusal;

use crate::{
    deadline::Deadline,
    stream::{Stream, TLS_ALERT, TLS_FIRST},
};

pub(crate) use refusal::{OTHER_BIRTH, Refusal};
pub use synod_wire::{MESSAGES_VERSION as VERSION, MESSAGES_VERSION_OLDEST as VERSION_OLDEST};

/// Versions below this one named no range, and no length.
const VERSION_FIRST_RANGE: u16 = 4;
/// The largest answer to an inquiry, in bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

const CALL_MAGIC: [u8; 4] = *b"SYNO";
const VERDICT_MAGIC: [u8; 4] = *b"SYNA";
const KIND_HELLO: u16 = 0;
const KIND_INQUIRY: u16 = 1;
/// The part of a call that every version has.
const PREFIX_BYTES: usize = 8;
/// What stands before the fields of a call.
const CALL_HEAD_BYTES: usize = 12;
const VERDICT_BYTES: usize = 24;
/// The most bytes of all fields together.
const FIELDS_BYTES_MAX: usize = 4096;
/// What stands between the verdict and the bytes of an answer.
const ANSWER_HEAD_BYTES: usize = 8;
/// How long a refused caller gets to read the refusal and hang up.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);

/// Which replica a caller or acceptor is, apart from its id, and in which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) birth: u64,
    pub(crate) incarnation: Incarnation,
    pub(crate) nonce: u64,
    pub(crate) since: Incarnation,
}

impl Life {
    pub(crate) fn of(who: &Introduction) -> Life {
        Life { birth: who.birth, incarnation: who.incarnation, nonce: who.nonce, since: who.since }
    }

    /// Whether it is a later life than `other` of the same replica. Lives of different births have no order.
    pub(crate) fn is_after(self, other: Life) -> bool {
        self.birth == other.birth && self.incarnation > other.incarnation
    }
}

/// The kind of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A replica that wants to send frames, with the version in which it will send them.
    Replica(Hello, u16),
    /// A program that wants only the answer to the inquiry, with the version of that.
    Inquirer(u16),
}

/// What a replica says when it calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cluster: ClusterId,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    pub(crate) who: Introduction,
}

/// What an acceptor tells a caller that it welcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The version of the session.
    pub(crate) version: u16,
    pub(crate) who: Introduction,
    /// The largest body that the acceptor takes, in bytes.
    pub(crate) frame_bytes_max: usize,
    /// The MTU of the links whose datagrams the acceptor takes; 0 if it takes none.
    pub(crate) datagram_mtu: u16,
}

/// Why there is no handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("{}", described(.0))]
    Magic([u8; 4]),
    #[error("TLS: {0}")]
    Tls(String),
    #[error(
        "TLS: the connection was closed during the handshake; does the other side expect its peers without TLS (http:// in \
         its --listen-peer-urls)?"
    )]
    TlsClosed,
    #[error(
        "the caller does not speak TLS, and this replica expects it at this address (https:// in --listen-peer-urls): the \
         URL by which the caller knows this replica has to begin with https:// as well"
    )]
    NoTls,
    #[error(
        "the other side speaks versions {} to {} of the transport, this replica versions {} to {}",
        theirs.start(), theirs.end(), ours.start(), ours.end()
    )]
    Version { theirs: RangeInclusive<u16>, ours: RangeInclusive<u16> },
    #[error("call of kind {0}, which this replica does not know")]
    Kind(u16),
    #[error("the handshake announces {0} bytes of fields; at most {FIELDS_BYTES_MAX} are allowed")]
    FieldsTooLarge(usize),
    #[error("the handshake is shorter than it has to be")]
    Short,
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

/// What begins with these bytes in place of a handshake.
fn described(found: &[u8; 4]) -> String {
    match found {
        [TLS_FIRST, 3, ..] => {
            "the caller speaks TLS, and this replica does not at this address (http:// in --listen-peer-urls): both have to \
             speak TLS, or neither"
        }
        [TLS_ALERT, 3, ..] => {
            "the other side expects TLS (https:// in its --listen-peer-urls), and its URL among the members begins with \
             http://: start it with --initial-advertise-peer-urls https://, or change it with `synod member update`"
        }
        _ => return format!("the handshake begins with {found:02x?}: this is not a Synod replica"),
    }
    .to_owned()
}

/// Fills a buffer with the next bytes of a connection. The magic number, if there is one, is noticed to be wrong at its
/// first wrong byte.
type Fill<'a> = &'a mut dyn FnMut(&mut [u8], Option<[u8; 4]>) -> Result<(), HandshakeError>;

/// Introduces this replica on a new connection and waits for the answer.
pub(crate) fn call(
    stream: &Stream,
    versions: &RangeInclusive<u16>,
    hello: &Hello,
    timeout: Duration,
) -> Result<Welcome, HandshakeError> {
    let deadline = Deadline::after(timeout);
    deadline.write(stream, &encode_hello(versions, hello))?;
    let welcome = read_welcome(&mut |target, magic| deadline.read(stream, target, magic), versions)?;
    stream.socket().set_read_timeout(None)?;
    Ok(welcome)
}

/// Makes an inquiry on a new connection and waits for the answer.
pub(crate) fn inquire(stream: &Stream, timeout: Duration) -> Result<Bytes, HandshakeError> {
    let (deadline, versions) = (Deadline::after(timeout), VERSION_OLDEST..=VERSION);
    deadline.write(stream, &encode_call(&versions, KIND_INQUIRY, &Fields::default()))?;
    read_answer(&mut |target, magic| deadline.read(stream, target, magic), &versions)
}

/// Waits for a caller to introduce itself. A caller that speaks none of `versions` is told so.
pub(crate) fn receive(
    stream: &Stream,
    me: Incarnation,
    versions: &RangeInclusive<u16>,
    timeout: Duration,
) -> Result<Caller, HandshakeError> {
    let deadline = Deadline::after(timeout);
    let caller = read_call(&mut |target, magic| deadline.read(stream, target, magic), versions);
    if let Err(HandshakeError::Version { .. }) = caller {
        refuse(stream, &Refusal::Version(Some(versions.clone())), versions, me);
    }
    let caller = caller?;
    stream.socket().set_read_timeout(None)?;
    Ok(caller)
}

/// Reads what a caller says.
pub(crate) fn read_call(fill: Fill<'_>, versions: &RangeInclusive<u16>) -> Result<Caller, HandshakeError> {
    let mut bytes = vec![0; CALL_HEAD_BYTES];
    let (prefix, rest) = bytes.split_at_mut(PREFIX_BYTES);
    fill(prefix, Some(CALL_MAGIC))?;
    let newest = u16::from_le_bytes([prefix[4], prefix[5]]);
    let kind = u16::from_le_bytes([prefix[6], prefix[7]]);
    let other = |theirs: RangeInclusive<u16>| Err(HandshakeError::Version { theirs, ours: versions.clone() });
    if newest < VERSION_FIRST_RANGE {
        return other(newest..=newest);
    }
    fill(rest, None)?;
    let oldest = u16::from_le_bytes([rest[0], rest[1]]);
    let length = usize::from(u16::from_le_bytes([rest[2], rest[3]]));
    if length > FIELDS_BYTES_MAX {
        return Err(HandshakeError::FieldsTooLarge(length));
    }
    bytes.resize(CALL_HEAD_BYTES + length + 4, 0);
    fill(&mut bytes[CALL_HEAD_BYTES..], None)?;
    check_seal(&bytes)?;
    let Some(version) = common(&(oldest..=newest), versions) else { return other(oldest..=newest) };
    let mut fields = FieldReader(&bytes[CALL_HEAD_BYTES..CALL_HEAD_BYTES + length]);
    match kind {
        KIND_HELLO => Ok(Caller::Replica(
            Hello {
                cluster: ClusterId(fields.word()?),
                from: ReplicaId(fields.word()?),
                to: ReplicaId(fields.word()?),
                who: fields.introduction()?,
            },
            version,
        )),
        KIND_INQUIRY => Ok(Caller::Inquirer(version)),
        kind => Err(HandshakeError::Kind(kind)),
    }
}

/// Reads the answer to a hello.
pub(crate) fn read_welcome(
    fill: Fill<'_>,
    versions: &RangeInclusive<u16>,
) -> Result<Welcome, HandshakeError> {
    let Verdict { version, frame_bytes_max } = read_verdict(fill, versions)?;
    let rest = read_rest(fill)?;
    let mut fields = FieldReader(&rest);
    let who = fields.introduction()?;
    let datagram_mtu = if fields.0.is_empty() { 0 } else { fields.half_word()? };
    Ok(Welcome { version, who, frame_bytes_max, datagram_mtu })
}

/// Reads the answer to an inquiry.
pub(crate) fn read_answer(fill: Fill<'_>, versions: &RangeInclusive<u16>) -> Result<Bytes, HandshakeError> {
    read_verdict(fill, versions)?;
    let mut head = [0; ANSWER_HEAD_BYTES];
    fill(&mut head, None)?;
    let (length, crc) = (half_word(&head, 0), half_word(&head, 4));
    let length = length as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(HandshakeError::AnswerTooLarge { length });
    }
    let mut bytes = vec![0; length];
    fill(&mut bytes, None)?;
    if answer_crc(&bytes) != crc {
        return Err(HandshakeError::Checksum);
    }
    Ok(bytes.into())
}

/// The highest version that is in both ranges.
pub(crate) fn common(one: &RangeInclusive<u16>, other: &RangeInclusive<u16>) -> Option<u16> {
    let highest = *one.end().min(other.end());
    (one.contains(&highest) && other.contains(&highest)).then_some(highest)
}

/// Tells the calling replica that it is welcome.
pub(crate) fn welcome(stream: &Stream, me: &Welcome, timeout: Duration) -> Result<(), HandshakeError> {
    Deadline::after(timeout).write(stream, &encode_welcome(me))
}

/// Answers an inquiry.
///
/// # Panics
/// If the answer has more than [`ANSWER_BYTES_MAX`] bytes.
pub(crate) fn answer(
    stream: &Stream,
    me: &Welcome,
    answer: &Bytes,
    timeout: Duration,
) -> Result<(), HandshakeError> {
    assert!(answer.len() <= ANSWER_BYTES_MAX, "the caller of this compares it");
    let deadline = Deadline::after(timeout);
    let mut head = encode_verdict(0, me.version, me.who.incarnation, me.frame_bytes_max).to_vec();
    head.extend_from_slice(&(answer.len() as u32).to_le_bytes());
    head.extend_from_slice(&answer_crc(answer).to_le_bytes());
    deadline.write(stream, &head)?;
    deadline.write(stream, answer)?;
    Ok(())
}

/// Tells the caller why it is turned away, if it listens.
pub(crate) fn refuse(
    stream: &Stream,
    refusal: &Refusal,
    versions: &RangeInclusive<u16>,
    incarnation: Incarnation,
) {
    let mut bytes = encode_verdict(refusal.code(), *versions.end(), incarnation, 0).to_vec();
    bytes.extend(encode_rest(&refusal.fields()));
    say_last(stream, &bytes);
}

/// Says something to the other side, if it listens, and nothing after that.
///
/// The connection is closed only after the other side has closed it, or a moment later: closing a socket that has
/// unread bytes resets the connection, and the other side could lose what is said.
pub(crate) fn say_last(stream: &Stream, bytes: &[u8]) {
    let deadline = Deadline::after(REFUSAL_LINGER);
    if deadline.write(stream, bytes).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
        let mut ignored = [0; 256];
        while deadline.read_some(stream, &mut ignored).is_ok_and(|count| count > 0) {}
    }
}

pub(crate) fn seal(bytes: &mut [u8]) {
    let (content, crc) = bytes.split_at_mut(bytes.len() - 4);
    crc.copy_from_slice(&crc32fast::hash(content).to_le_bytes());
}

fn check_seal(bytes: &[u8]) -> Result<(), HandshakeError> {
    let (content, crc) = bytes.split_at(bytes.len() - 4);
    if crc == crc32fast::hash(content).to_le_bytes() { Ok(()) } else { Err(HandshakeError::Checksum) }
}

fn half_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn answer_crc(answer: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(answer.len() as u32).to_le_bytes());
    crc.update(answer);
    crc.finalize()
}

/// The fields of a call or an answer.
#[derive(Debug, Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn half_word(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn word(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn introduction(&mut self, who: &Introduction) {
        for word in [who.birth, who.incarnation.0, who.nonce, who.since.0, who.durable.0] {
            self.word(word);
        }
        assert!(who.earlier.len() <= EARLIER_LIVES_MAX, "an introduction names a few lives");
        self.half_word(who.earlier.len() as u16);
        for life in &who.earlier {
            self.word(life.incarnation.0);
            self.word(life.nonce);
        }
        self.word(who.began.0);
        for life in &who.earlier {
            self.word(life.began.0);
        }
    }
}

/// Reads fields one after the other. What a later version added after them is left unread.
#[derive(Debug)]
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn half_word(&mut self) -> Result<u16, HandshakeError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(HandshakeError::Short)?;
        self.0 = rest;
        Ok(u16::from_le_bytes(*bytes))
    }

    fn word(&mut self) -> Result<u64, HandshakeError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(HandshakeError::Short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn introduction(&mut self) -> Result<Introduction, HandshakeError> {
        let (birth, incarnation, nonce) = (self.word()?, Incarnation(self.word()?), self.word()?);
        let (since, durable) = (Incarnation(self.word()?), Lsn(self.word()?));
        // The length of the fields bounds them.
        let count = self.half_word()?;
        let life = |_| {
            let (incarnation, nonce) = (Incarnation(self.word()?), self.word()?);
            Ok(EarlierLife { incarnation, nonce, began: Lsn::MAX })
        };
        let mut earlier: Vec<_> = (0..count).map(life).collect::<Result<_, HandshakeError>>()?;
        let mut began = durable;
        if !self.0.is_empty() {
            began = Lsn(self.word()?);
            for life in &mut earlier {
                life.began = Lsn(self.word()?);
            }
        }
        Ok(Introduction { birth, incarnation, nonce, since, earlier, began, durable })
    }
}

fn encode_call(versions: &RangeInclusive<u16>, kind: u16, fields: &Fields) -> Vec<u8> {
    let mut bytes = CALL_MAGIC.to_vec();
    for half_word in [*versions.end(), kind, *versions.start(), length_of(fields)] {
        bytes.extend_from_slice(&half_word.to_le_bytes());
    }
    bytes.extend_from_slice(&fields.0);
    bytes.extend_from_slice(&[0; 4]);
    seal(&mut bytes);
    bytes
}

fn length_of(fields: &Fields) -> u16 {
    assert!(fields.0.len() <= FIELDS_BYTES_MAX, "all that is ever said is short");
    fields.0.len() as u16
}

pub(crate) fn encode_hello(versions: &RangeInclusive<u16>, hello: &Hello) -> Vec<u8> {
    let mut fields = Fields::default();
    for word in [hello.cluster.0, hello.from.0, hello.to.0] {
        fields.word(word);
    }
    fields.introduction(&hello.who);
    encode_call(versions, KIND_HELLO, &fields)
}

fn encode_rest(fields: &Fields) -> Vec<u8> {
    let mut bytes = length_of(fields).to_le_bytes().to_vec();
    bytes.extend_from_slice(&fields.0);
    bytes.extend_from_slice(&[0; 4]);
    seal(&mut bytes);
    bytes
}

fn read_rest(fill: Fill<'_>) -> Result<Vec<u8>, HandshakeError> {
    let mut bytes = vec![0; 2];
    fill(&mut bytes, None)?;
    let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    if length > FIELDS_BYTES_MAX {
        return Err(HandshakeError::FieldsTooLarge(length));
    }
    bytes.resize(2 + length + 4, 0);
    fill(&mut bytes[2..], None)?;
    check_seal(&bytes)?;
    bytes.truncate(2 + length);
    bytes.drain(..2);
    Ok(bytes)
}

fn encode_verdict(
    verdict: u16,
    version: u16,
    incarnation: Incarnation,
    frame_bytes_max: usize,
) -> [u8; VERDICT_BYTES] {
    let frame_bytes_max = u32::try_from(frame_bytes_max).expect("checked when the transport started");
    let mut bytes = [0; VERDICT_BYTES];
    bytes[0..4].copy_from_slice(&VERDICT_MAGIC);
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    bytes[6..8].copy_from_slice(&verdict.to_le_bytes());
    bytes[8..16].copy_from_slice(&incarnation.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&frame_bytes_max.to_le_bytes());
    seal(&mut bytes);
    bytes
}

pub(crate) fn encode_welcome(me: &Welcome) -> Vec<u8> {
    let mut fields = Fields::default();
    fields.introduction(&me.who);
    if me.datagram_mtu > 0 {
        fields.half_word(me.datagram_mtu);
    }
    let mut bytes = encode_verdict(0, me.version, me.who.incarnation, me.frame_bytes_max).to_vec();
    bytes.extend(encode_rest(&fields));
    bytes
}

/// The verdict of an acceptor that welcomes the caller.
#[derive(Debug)]
struct Verdict {
    version: u16,
    frame_bytes_max: usize,
}

fn read_verdict(fill: Fill<'_>, ours: &RangeInclusive<u16>) -> Result<Verdict, HandshakeError> {
    let mut bytes = [0; VERDICT_BYTES];
    fill(&mut bytes, Some(VERDICT_MAGIC))?;
    check_seal(&bytes)?;
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    let verdict = u16::from_le_bytes([bytes[6], bytes[7]]);
    if verdict != 0 {
        // Acceptors of older versions say no more, and the reason is complete without the rest.
        let rest = read_rest(fill).unwrap_or_default();
        return Err(HandshakeError::Refused(Refusal::read(verdict, version, &mut FieldReader(&rest))));
    }
    if !ours.contains(&version) {
        return Err(HandshakeError::Version { theirs: version..=version, ours: ours.clone() });
    }
    Ok(Verdict { version, frame_bytes_max: half_word(&bytes, 16) as usize })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
        time::Instant,
    };
    use synod_wire::{Acquaintance, Mismatch, Stranger};

    const LONG: Duration = Duration::from_secs(5);
    const OURS: RangeInclusive<u16> = VERSION_OLDEST..=VERSION;

    fn earlier(life: u64, began: u64) -> EarlierLife {
        EarlierLife { incarnation: Incarnation(life), nonce: life * 11, began: Lsn(began) }
    }

    fn who(birth: u64) -> Introduction {
        Introduction {
            birth,
            incarnation: Incarnation(4),
            nonce: birth + 1,
            since: Incarnation(2),
            earlier: vec![earlier(2, 450), earlier(3, 460)],
            began: Lsn(470),
            durable: Lsn(500),
        }
    }

    fn me() -> Welcome {
        Welcome { version: VERSION, who: who(70), frame_bytes_max: 1000, datagram_mtu: 0 }
    }

    fn hello() -> Hello {
        Hello { cluster: ClusterId(1), from: ReplicaId(2), to: ReplicaId(3), who: who(40) }
    }

    fn pair() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Stream::new(caller), Stream::new(listener.accept().unwrap().0))
    }

    fn receive_ours(acceptor: &Stream) -> Result<Caller, HandshakeError> {
        receive(acceptor, Incarnation(4), &OURS, LONG)
    }

    #[test]
    fn both_learn_of_each_other() {
        let (caller, acceptor) = pair();
        let called = thread::spawn(move || call(&caller, &OURS, &hello(), LONG));
        assert_eq!(receive_ours(&acceptor).unwrap(), Caller::Replica(hello(), VERSION));
        welcome(&acceptor, &me(), LONG).unwrap();
        assert_eq!(called.join().unwrap().unwrap(), me());
    }

    #[test]
    fn the_highest_version_that_both_speak_is_chosen() {
        for (caller_speaks, acceptor_speaks, chosen) in [
            (4..=4, 4..=5, Some(4)),
            (4..=5, 4..=4, Some(4)),
            (4..=9, 6..=8, Some(8)),
            (5..=6, 5..=6, Some(6)),
            (4..=5, 6..=7, None),
            (6..=7, 4..=5, None),
        ] {
            let (caller, acceptor) = pair();
            let called = thread::spawn(move || call(&caller, &caller_speaks, &hello(), LONG));
            let received = receive(&acceptor, Incarnation(4), &acceptor_speaks, LONG);
            match chosen {
                Some(version) => {
                    assert_eq!(received.unwrap(), Caller::Replica(hello(), version));
                    welcome(&acceptor, &Welcome { version, ..me() }, LONG).unwrap();
                    assert_eq!(called.join().unwrap().unwrap().version, version);
                }
                None => {
                    assert!(matches!(received, Err(HandshakeError::Version { .. })));
                    let error = called.join().unwrap().unwrap_err();
                    let spoken = Refusal::Version(Some(acceptor_speaks));
                    assert!(matches!(error, HandshakeError::Refused(refusal) if refusal == spoken));
                }
            }
        }
    }

    #[test]
    fn fields_that_a_later_version_adds_are_ignored() {
        let (caller, acceptor) = pair();
        let mut fields = Fields::default();
        [1, 2, 3].into_iter().for_each(|word| fields.word(word));
        fields.introduction(&who(40));
        fields.word(u64::MAX);
        (&caller).write_all(&encode_call(&(3..=99), KIND_HELLO, &fields)).unwrap();
        assert_eq!(receive_ours(&acceptor).unwrap(), Caller::Replica(hello(), VERSION));
    }

    /// What a replica of release 0.2.0, which spoke versions 6 and 7, said when it called.
    const CALL_OF_0_2_0: &str = "53594e4f0700000006007a0001000000000000000200000000000000030000000000000028000000000000000400000000000000\
        29000000000000000200000000000000f40100000000000002000200000000000000160000000000000003000000000000002100\
        000000000000d601000000000000c201000000000000cc010000000000004404c79f";
    /// What it answered when it was called, in version 7.
    const WELCOME_OF_0_2_0: &str = "53594e41070000000400000000000000e8030000514f796362004600000000000000040000000000000047000000000000000200\
        000000000000f40100000000000002000200000000000000160000000000000003000000000000002100000000000000d6010000\
        00000000c201000000000000cc01000000000000e42e08d0";

    fn of_hex(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn release_0_2_0_is_understood() {
        const { assert!(VERSION_OLDEST <= 7, "one of its versions is spoken") };
        let (caller, acceptor) = pair();
        (&caller).write_all(&of_hex(CALL_OF_0_2_0)).unwrap();
        assert_eq!(receive_ours(&acceptor).unwrap(), Caller::Replica(hello(), VERSION.min(7)));
        let (caller, acceptor) = pair();
        (&acceptor).write_all(&of_hex(WELCOME_OF_0_2_0)).unwrap();
        let welcome = Welcome { version: 7, ..me() };
        assert_eq!(call(&caller, &OURS, &hello(), LONG).unwrap(), welcome);
    }

    #[test]
    fn version_4_does_not_tell_with_what_lives_began() {
        let mut fields = Fields::default();
        fields.introduction(&who(40));
        fields.0.truncate(fields.0.len() - 3 * 8);
        let mut told = FieldReader(&fields.0).introduction().unwrap();
        assert_eq!((told.began, told.earlier[1].began), (Lsn(500), Lsn::MAX));
        told.began = who(40).began;
        told.earlier = who(40).earlier;
        assert_eq!(told, who(40));
    }

    #[test]
    fn the_caller_learns_why_it_is_refused() {
        let known = Acquaintance { birth: 1, incarnation: Incarnation(2), nonce: 3, told: Lsn(4) };
        for refusal in [
            Refusal::OtherCluster,
            Refusal::UnknownReplica,
            Refusal::WrongDestination,
            Refusal::OldIncarnation,
            Refusal::OtherBirth,
            Refusal::Busy,
            Refusal::NoAnswer,
            Refusal::Unwritten,
            Refusal::OtherHost,
            Refusal::Outlived(Stranger { mismatch: Mismatch::Superseded, known }),
            Refusal::Outlived(Stranger { mismatch: Mismatch::Shorter, known }),
            Refusal::Version(Some(OURS)),
            Refusal::Other(99),
        ] {
            let (caller, acceptor) = pair();
            let called = thread::spawn(move || call(&caller, &OURS, &hello(), LONG));
            receive_ours(&acceptor).unwrap();
            refuse(&acceptor, &refusal, &OURS, Incarnation(4));
            assert!(matches!(called.join().unwrap(), Err(HandshakeError::Refused(r)) if r == refusal));
        }
    }

    #[test]
    fn an_inquirer_gets_the_answer_whole() {
        for length in [0, 1, 5000, ANSWER_BYTES_MAX] {
            let (caller, acceptor) = pair();
            let inquired = thread::spawn(move || inquire(&caller, LONG));
            assert_eq!(receive_ours(&acceptor).unwrap(), Caller::Inquirer(VERSION));
            let bytes = Bytes::from(vec![3; length]);
            answer(&acceptor, &me(), &bytes, LONG).unwrap();
            assert!(inquired.join().unwrap().unwrap() == bytes);
        }
    }

    #[test]
    fn an_inquirer_that_takes_nothing_does_not_keep_the_answerer() {
        let (caller, acceptor) = pair();
        (&caller).write_all(&encode_call(&OURS, KIND_INQUIRY, &Fields::default())).unwrap();
        assert_eq!(receive_ours(&acceptor).unwrap(), Caller::Inquirer(VERSION));
        let started = Instant::now();
        let bytes = Bytes::from(vec![3; ANSWER_BYTES_MAX]);
        // It takes this many to fill the buffers of the system.
        let stuck = (0..50).find_map(|_| answer(&acceptor, &me(), &bytes, Duration::from_millis(100)).err());
        assert!(matches!(stuck, Some(HandshakeError::Timeout(_))), "{stuck:?}");
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn a_call_of_an_unknown_kind_is_an_error() {
        let (caller, acceptor) = pair();
        (&caller).write_all(&encode_call(&OURS, 9, &Fields::default())).unwrap();
        assert!(matches!(receive_ours(&acceptor), Err(HandshakeError::Kind(9))));
    }

    #[test]
    fn versions_that_named_no_range_are_told_so_in_their_own_form() {
        let (caller, acceptor) = pair();
        let mut old = [0; 52];
        old[..8].copy_from_slice(b"SYNO\x02\0\0\0");
        (&caller).write_all(&old).unwrap();
        let accepted = thread::spawn(move || receive_ours(&acceptor));
        let mut answer = [0; VERDICT_BYTES];
        (&caller).read_exact(&mut answer).unwrap();
        check_seal(&answer).unwrap();
        assert_eq!((&answer[..4], answer[6]), (b"SYNA".as_slice(), 1));
        drop(caller);
        let error = accepted.join().unwrap().unwrap_err();
        assert!(matches!(error, HandshakeError::Version { theirs, .. } if theirs == (2..=2)));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = encode_hello(&OURS, &hello());
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0x10;
            let (caller, acceptor) = pair();
            (&caller).write_all(&bad).unwrap();
            drop(caller);
            assert!(receive_ours(&acceptor).is_err(), "byte {i}");
        }
        let good = encode_welcome(&me());
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0x10;
            let (caller, acceptor) = pair();
            (&acceptor).write_all(&bad).unwrap();
            acceptor.shutdown(Shutdown::Write).unwrap();
            assert!(call(&caller, &OURS, &hello(), LONG).is_err(), "byte {i}");
        }
    }

    #[test]
    fn dripping_bytes_do_not_stretch_the_timeout() {
        let (caller, acceptor) = pair();
        let drip = thread::spawn(move || {
            for byte in encode_hello(&OURS, &hello()) {
                thread::sleep(Duration::from_millis(20));
                if (&caller).write_all(&[byte]).is_err() {
                    break;
                }
            }
        });
        let started = Instant::now();
        assert!(matches!(
            receive(&acceptor, Incarnation(4), &OURS, Duration::from_millis(200)),
            Err(HandshakeError::Timeout(_))
        ));
        assert!(started.elapsed() < Duration::from_millis(700));
        drop(acceptor);
        drip.join().unwrap();
    }

    #[test]
    fn garbage_is_recognised_at_its_first_byte() {
        let (caller, acceptor) = pair();
        (&caller).write_all(b"G").unwrap();
        assert!(matches!(receive_ours(&acceptor), Err(HandshakeError::Magic([b'G', 0, 0, 0]))));
    }
}
