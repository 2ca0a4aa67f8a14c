//! What reads bytes of peers, as functions of bytes, for fuzzers. Where a checksum would keep mutated bytes out,
//! `seal_...` makes it right first.

use std::io::{self, Read};

use bytes::Bytes;
use synod_wire::{
    ClusterId, EarlierLife, Encoded, GroupId, Incarnation, Introduction, Lsn, ReplicaId, Writer,
};

use crate::{
    ANSWER_BYTES_MAX, VERSION, VERSION_OLDEST,
    frame::{
        Arrived, Content, Frame, FrameReader, GROUP_HEADER_BYTES, GROUP_VERSION, HEADER_BYTES, MAGIC,
        header_crc,
    },
    handshake::{self, Caller, HandshakeError, Hello, Welcome, answer_crc, seal},
    probe::Probe,
};

/// The cluster of all frames.
const CLUSTER: ClusterId = ClusterId(0x5eed);
/// The largest frame that is taken.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// A connection that gives out its bytes in pieces of one size.
struct Pieces<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.size.min(target.len());
        self.bytes.read(&mut target[..count])
    }
}

/// Reads frames of a session of version `agreed`, as they come in pieces of `size` bytes: what is said in them, and why
/// the next one was refused, if that is so. Each frame that arrives is also written again, and must then have the same
/// bytes.
///
/// # Panics
/// A frame is not what it was.
#[must_use]
pub fn frames(bytes: &[u8], agreed: u16, size: usize) -> (Vec<(GroupId, Bytes)>, Option<String>) {
    let mut reader = FrameReader::new(Pieces { bytes, size }, CLUSTER, agreed, FRAME_BYTES_MAX);
    let (mut messages, mut again) = (Vec::new(), Vec::new());
    let error = loop {
        let Arrived { durable, content, bytes: len } = match reader.next_frame() {
            Ok(Some(arrived)) => arrived,
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        };
        let from = again.len();
        if let Content::Message(message) = content {
            let mut body = Writer::new();
            message.body.iter().for_each(|&byte| body.u8(byte));
            let is_first_with_group = message.group == GroupId::FIRST && bytes[from + 4] == GROUP_VERSION;
            if is_first_with_group {
                // The first group may be named, and is not named by what writes frames.
                again.extend_from_slice(&bytes[from..from + len]);
            } else {
                let frame = Frame::new(CLUSTER, message.version, message.group, durable, body.finish());
                again.extend(frame.slices().flat_map(|slice| slice.to_vec()));
            }
            messages.push((message.group, message.body));
        } else {
            if let Content::Mark(Some(probe)) = content {
                let body = probe.write().to_bytes();
                let header_bytes =
                    if bytes[from + 4] == GROUP_VERSION { GROUP_HEADER_BYTES } else { HEADER_BYTES };
                let read = &bytes[from + header_bytes..from + len];
                assert!(read.starts_with(&body), "a probe is written as it was");
            }
            // Of a mark the version of its message does not matter, and is not written again.
            again.extend_from_slice(&bytes[from..from + len]);
        }
        assert!(bytes.starts_with(&again), "a frame that was read is written as it was");
    };
    (messages, error)
}

/// The bytes of a frame.
#[must_use]
pub fn frame(version: u16, group: GroupId, durable: Lsn, body: Encoded) -> Vec<u8> {
    let frame = Frame::new(CLUSTER, version, group, durable, body);
    frame.slices().flat_map(|slice| slice.to_vec()).collect()
}

/// The bytes of a frame without a message.
#[must_use]
pub fn mark(durable: Lsn) -> Vec<u8> {
    Frame::mark(CLUSTER, durable).slices().flat_map(|slice| slice.to_vec()).collect()
}

/// The bytes of a probe, which asks or answers.
#[must_use]
pub fn probe(durable: Lsn, asks: bool, number: u64) -> Vec<u8> {
    let probe = if asks { Probe::Asks(number) } else { Probe::Answers(number) };
    Frame::probe(CLUSTER, durable, probe).slices().flat_map(|slice| slice.to_vec()).collect()
}

/// Makes the checksums of all frames right, one after the other, as far as the bytes are frames.
pub fn seal_frames(bytes: &mut [u8]) {
    let mut rest = bytes;
    while rest.len() >= GROUP_HEADER_BYTES && rest.starts_with(&MAGIC) {
        let header_bytes = if rest[4] == GROUP_VERSION { GROUP_HEADER_BYTES } else { HEADER_BYTES };
        let length = u32::from_le_bytes(rest[8..12].try_into().expect("4 bytes")) as usize;
        let (header, body) = rest.split_at_mut(header_bytes);
        let (body, next) = body.split_at_mut(length.min(body.len()));
        header[12..16].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        let crc = header_crc(CLUSTER, header);
        header[header_bytes - 4..].copy_from_slice(&crc.to_le_bytes());
        rest = next;
    }
}

/// Takes bytes off the front of `bytes`.
fn fill<'a>(
    bytes: &'a mut &[u8],
) -> impl FnMut(&mut [u8], Option<[u8; 4]>) -> Result<(), HandshakeError> + 'a {
    |target, magic| {
        let (taken, rest) = bytes.split_at_checked(target.len()).ok_or(HandshakeError::Closed)?;
        if let Some(magic) = magic.filter(|magic| !taken.starts_with(magic)) {
            return Err(HandshakeError::Magic(magic));
        }
        target.copy_from_slice(taken);
        *bytes = rest;
        Ok(())
    }
}

/// Reads what a caller says. A hello is also written again and read again, and must then say the same.
///
/// # Errors
/// The bytes are no call that a replica understands.
///
/// # Panics
/// A hello is not what it was.
pub fn read_call(mut bytes: &[u8]) -> Result<String, String> {
    let versions = VERSION_OLDEST..=VERSION;
    let caller = handshake::read_call(&mut fill(&mut bytes), &versions).map_err(|error| error.to_string())?;
    if let Caller::Replica(hello, _) = &caller
        && hello.who.earlier.len() <= synod_wire::EARLIER_LIVES_MAX
    {
        let again = handshake::encode_hello(&versions, hello);
        let again = handshake::read_call(&mut fill(&mut &again[..]), &versions);
        assert_eq!(again.ok(), Some(Caller::Replica(hello.clone(), VERSION)));
    }
    Ok(format!("{caller:?}"))
}

/// Reads the answer to a hello. It is also written again and read again, and must then say the same.
///
/// # Errors
/// The bytes are no welcome.
///
/// # Panics
/// The welcome is not what it was.
pub fn read_welcome(mut bytes: &[u8]) -> Result<String, String> {
    let versions = VERSION_OLDEST..=VERSION;
    let welcome =
        handshake::read_welcome(&mut fill(&mut bytes), &versions).map_err(|error| error.to_string())?;
    if welcome.who.earlier.len() <= synod_wire::EARLIER_LIVES_MAX {
        let again = handshake::encode_welcome(&welcome);
        let again = handshake::read_welcome(&mut fill(&mut &again[..]), &versions);
        assert_eq!(again.ok().as_ref(), Some(&welcome));
    }
    Ok(format!("{welcome:?}"))
}

/// Reads the answer to an inquiry.
///
/// # Errors
/// The bytes are no answer.
pub fn read_answer(mut bytes: &[u8]) -> Result<Bytes, String> {
    let answer = handshake::read_answer(&mut fill(&mut bytes), &(VERSION_OLDEST..=VERSION));
    answer.map_err(|error| error.to_string())
}

/// Makes the checksum at the end of a call right.
pub fn seal_call(bytes: &mut [u8]) {
    let end = |length: &[u8]| 16 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    if let Some(call) = bytes.get(10..12).map(end).and_then(|end| bytes.get_mut(..end)) {
        seal(call);
    }
}

/// Makes the checksums of a verdict and of the fields that follow it right.
pub fn seal_welcome(bytes: &mut [u8]) {
    let Some((verdict, rest)) = bytes.split_at_mut_checked(24) else { return };
    seal(verdict);
    let end = |length: &[u8]| 6 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    if let Some(fields) = rest.get(..2).map(end).and_then(|end| rest.get_mut(..end)) {
        seal(fields);
    }
}

/// Makes the checksums of a verdict and of the answer that follows it right.
pub fn seal_answer(bytes: &mut [u8]) {
    let Some((verdict, rest)) = bytes.split_at_mut_checked(24) else { return };
    seal(verdict);
    let Some((head, answer)) = rest.split_at_mut_checked(8) else { return };
    let length = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
    if let Some(answer) = answer.get(..length).filter(|answer| answer.len() <= ANSWER_BYTES_MAX) {
        head[4..].copy_from_slice(&answer_crc(answer).to_le_bytes());
    }
}

/// A replica that has lived before.
fn who() -> Introduction {
    let life =
        |life| EarlierLife { incarnation: Incarnation(life), nonce: life * 11, began: Lsn(400 + life) };
    Introduction {
        birth: 40,
        incarnation: Incarnation(4),
        nonce: 41,
        since: Incarnation(2),
        earlier: vec![life(2), life(3)],
        began: Lsn(470),
        durable: Lsn(500),
    }
}

/// The bytes of a hello.
#[must_use]
pub fn hello() -> Vec<u8> {
    let hello = Hello { cluster: CLUSTER, from: ReplicaId(2), to: ReplicaId(3), who: who() };
    handshake::encode_hello(&(VERSION_OLDEST..=VERSION), &hello)
}

/// The bytes of a welcome.
#[must_use]
pub fn welcome() -> Vec<u8> {
    handshake::encode_welcome(&Welcome {
        version: VERSION,
        who: who(),
        frame_bytes_max: FRAME_BYTES_MAX,
        datagram_mtu: 0,
    })
}

/// The bytes of an answer to an inquiry.
#[must_use]
pub fn answer(answer: &[u8]) -> Vec<u8> {
    let mut bytes = welcome()[..24].to_vec();
    bytes.extend_from_slice(&(answer.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&answer_crc(answer).to_le_bytes());
    bytes.extend_from_slice(answer);
    bytes
}
