//! Frames: the format of message bodies on a connection.
//!
//! ```text
//! frame  := header body
//! header := magic "SYNF" | version u8 | flags u8 | message version u16 | body length u32
//!         | body crc u32 | durable u64 | [group u16 | 0 u16] | header crc u32
//! flags  := 0: a message for the replica; 1: a mark, which says how far the sender's log is durable; its body is
//!         empty, or a probe
//! ```
//!
//! A header of version 2 has no group (28 bytes): its message is of the first one. A header of version 3 has
//! a group (32 bytes); only sessions that speak version 7 of the messages or later use it. So a peer that
//! knows no groups gets what it knows.
//!
//! `durable` is the record of the sender's log through which the log was durable when the frame was made, so
//! what the frame says rests on no later one. Peers remember it ([`synod_wire::Acquaintance`]).
//!
//! Integers are little-endian. The header's checksum covers the cluster id and everything before it in the
//! header, so a length is believed only when it is intact, and a frame of another cluster never passes. It covers
//! the body's checksum too, which the encoder of the body knows already: sending never reads a body again.
//!
//! **Memory policy of the receiver.** Message bodies carry batches that stay in the log for long. So every
//! body gets an allocation of exactly its size, and none keeps a larger read buffer alive. Small frames
//! arrive many at a time in one read and are copied out of the (cache-warm) read buffer; of a large frame
//! only what came with its header is copied, and the rest is read into its place directly, in one `readv`
//! with whatever follows.

use std::io::{self, IoSlice, IoSliceMut, Read};

use bytes::Bytes;
use synod_wire::{ClusterId, Encoded, GROUPS_SINCE, GroupId, Lsn, Writer};

use crate::probe::Probe;

/// Bytes before the body of a frame without a group.
pub(crate) const HEADER_BYTES: usize = 28;
/// Bytes before the body of a frame with a group.
pub(crate) const GROUP_HEADER_BYTES: usize = 32;
/// The most bytes that one read takes, besides the body of a large frame.
const READ_BUFFER_BYTES: usize = 32 * 1024;

pub(crate) const MAGIC: [u8; 4] = *b"SYNF";
const VERSION: u8 = 2;
/// The version of a header with a group.
pub(crate) const GROUP_VERSION: u8 = 3;
const FLAG_MARK: u8 = 1;

/// A body with its header, ready to be written; shared by all destinations.
#[derive(Debug)]
pub(crate) struct Frame {
    header: [u8; GROUP_HEADER_BYTES],
    header_bytes: usize,
    body: Encoded,
    version: u16,
    durable: Lsn,
}

impl Frame {
    /// # Panics
    /// If the body has 4 GiB or more; the caller has compared it with `frame_bytes_max`. If a message of this version
    /// has no group and this one does.
    pub(crate) fn new(
        cluster: ClusterId,
        version: u16,
        group: GroupId,
        durable: Lsn,
        body: Encoded,
    ) -> Frame {
        Frame::with_flags(cluster, 0, version, group, durable, body)
    }

    /// A frame without a message, which says only how far the log is durable.
    pub(crate) fn mark(cluster: ClusterId, durable: Lsn) -> Frame {
        Frame::with_flags(cluster, FLAG_MARK, 0, GroupId::FIRST, durable, Writer::new().finish())
    }

    /// A mark with a probe.
    pub(crate) fn probe(cluster: ClusterId, durable: Lsn, probe: Probe) -> Frame {
        Frame::with_flags(cluster, FLAG_MARK, 0, GroupId::FIRST, durable, probe.write())
    }

    fn with_flags(
        cluster: ClusterId,
        flags: u8,
        version: u16,
        group: GroupId,
        durable: Lsn,
        body: Encoded,
    ) -> Frame {
        let length = u32::try_from(body.len()).expect("frame_bytes_max is below 4 GiB");
        let has_group = group != GroupId::FIRST;
        assert!(!has_group || version >= GROUPS_SINCE, "version {version} knows no {group}");
        let header_bytes = if has_group { GROUP_HEADER_BYTES } else { HEADER_BYTES };
        let mut header = [0; GROUP_HEADER_BYTES];
        header[0..4].copy_from_slice(&MAGIC);
        header[4] = if has_group { GROUP_VERSION } else { VERSION };
        header[5] = flags;
        header[6..8].copy_from_slice(&version.to_le_bytes());
        header[8..12].copy_from_slice(&length.to_le_bytes());
        header[12..16].copy_from_slice(&body.crc().to_le_bytes());
        header[16..24].copy_from_slice(&durable.0.to_le_bytes());
        if has_group {
            header[24..26].copy_from_slice(&group.0.to_le_bytes());
        }
        let crc = header_crc(cluster, &header[..header_bytes]);
        header[header_bytes - 4..header_bytes].copy_from_slice(&crc.to_le_bytes());
        Frame { header, header_bytes, body, version, durable }
    }

    /// Whether it has no message.
    pub(crate) fn is_mark(&self) -> bool {
        self.header[5] & FLAG_MARK != 0
    }

    /// The version of the message in it.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// How far the log was durable when it was made.
    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    /// Bytes on the wire, header included.
    pub(crate) fn len(&self) -> usize {
        self.header_bytes + self.body.len()
    }

    /// Bytes of the body.
    pub(crate) fn body_len(&self) -> usize {
        self.body.len()
    }

    /// How many buffers there are to write.
    pub(crate) fn slice_count(&self) -> usize {
        1 + self.body.parts().len()
    }

    /// The buffers to write, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        std::iter::once(IoSlice::new(&self.header[..self.header_bytes]))
            .chain(self.body.parts().iter().map(|part| IoSlice::new(part)))
    }
}

/// The checksum of a whole header, which ends with it.
pub(crate) fn header_crc(cluster: ClusterId, header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&cluster.0.to_le_bytes());
    crc.update(&header[..header.len() - 4]);
    crc.finalize()
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}

/// Why no further frame can be read from a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame begins with {0:02x?} instead of the magic number")]
    Magic([u8; 4]),
    #[error("frame version {0} is not known (this replica knows versions {VERSION} and {GROUP_VERSION})")]
    Version(u8),
    #[error("frame flags {0:#04x} are not defined")]
    Flags(u8),
    #[error("a frame of a group in version {version} of the messages, and groups begin with {GROUPS_SINCE}")]
    Group { version: u16 },
    #[error("a frame has {0:#06x} in a place that is not used")]
    Unused(u16),
    #[error("a message of version {found}; the session speaks versions up to {agreed}")]
    MessageVersion { found: u16, agreed: u16 },
    #[error("the checksum of a frame header does not match")]
    HeaderChecksum,
    #[error("a frame of {length} bytes exceeds frame_bytes_max, which is {max}")]
    TooLarge { length: usize, max: usize },
    #[error("the checksum of a frame body of {length} bytes does not match")]
    BodyChecksum { length: usize },
    #[error("the connection ended inside a frame")]
    Truncated,
    /// The body is intact, and the owner of the transport cannot read it.
    #[error(transparent)]
    Unreadable(#[from] crate::Unreadable),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl FrameError {
    /// Whether a frame came that makes no sense, or carries a message that makes none.
    pub(crate) fn is_of_a_frame(&self) -> bool {
        !matches!(self, FrameError::Truncated | FrameError::Io(_))
    }
}

/// A frame that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// How far the sender's log was durable.
    pub(crate) durable: Lsn,
    pub(crate) content: Content,
    /// Bytes of the frame.
    pub(crate) bytes: usize,
}

/// What a frame has beside that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Message(Message),
    /// It is a mark, with a probe or without.
    Mark(Option<Probe>),
}

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) version: u16,
    pub(crate) group: GroupId,
    pub(crate) body: Bytes,
}

/// Takes the frames off one connection.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    source: R,
    cluster: ClusterId,
    /// The version that the two sides agreed on.
    agreed: u16,
    frame_bytes_max: usize,
    buffer: Box<[u8]>,
    /// The bytes that were read and not yet used are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// The frame whose body has arrived in part.
    begun: Option<Begun>,
    /// Whether the last read took everything that was there.
    drained: bool,
}

/// A frame whose header has arrived, and `filled` bytes of the body.
#[derive(Debug)]
struct Begun {
    header: [u8; GROUP_HEADER_BYTES],
    header_bytes: usize,
    crc: u32,
    body: Vec<u8>,
    filled: usize,
}

impl<R: Read> FrameReader<R> {
    /// Reads frames of this cluster off `source`.
    pub(crate) fn new(source: R, cluster: ClusterId, agreed: u16, frame_bytes_max: usize) -> FrameReader<R> {
        let buffer = vec![0; READ_BUFFER_BYTES].into_boxed_slice();
        FrameReader {
            source,
            cluster,
            agreed,
            frame_bytes_max,
            buffer,
            start: 0,
            end: 0,
            begun: None,
            drained: false,
        }
    }

    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// Whether the next frame is there as a whole, so that [`FrameReader::next_frame`] does not read. If its header is
    /// wrong, that is found out then.
    pub(crate) fn has_frame(&self) -> bool {
        let there = &self.buffer[self.start..self.end];
        let header_bytes = match there.get(4) {
            Some(&GROUP_VERSION) => GROUP_HEADER_BYTES,
            _ => HEADER_BYTES,
        };
        self.begun.is_none()
            && there.len() >= header_bytes
            && there.len() - header_bytes >= word(&there[8..12]) as usize
    }

    /// Whether the next frame takes a read, before which there is nothing to expect: the last one took all that there
    /// was.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained && !self.has_frame()
    }

    /// The next frame; `None` at an end of the connection between two frames.
    ///
    /// After an error the position in the stream is unknown, and the connection cannot be used any more. But if the
    /// source does not block and has nothing now ([`io::ErrorKind::WouldBlock`]), this may be called again later.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Arrived>, FrameError> {
        let mut frame = match self.begun.take() {
            Some(begun) => begun,
            None => match self.begin()? {
                Some(begun) => begun,
                None => return Ok(None),
            },
        };
        if let Err(error) = self.read_body(&mut frame) {
            self.begun = Some(frame);
            return Err(error);
        }
        let Begun { header, header_bytes, crc, body, .. } = frame;
        let (header, length) = (&header[..header_bytes], body.len());
        if crc32fast::hash(&body) != crc {
            return Err(FrameError::BodyChecksum { length });
        }
        let durable = Lsn(u64::from_le_bytes(header[16..24].try_into().expect("8 bytes")));
        let content = if header[5] & FLAG_MARK != 0 {
            Content::Mark(Probe::read(&body))
        } else {
            let (version, group) = (message_version(header), group(header));
            Content::Message(Message { version, group, body: body.into() })
        };
        Ok(Some(Arrived { durable, content, bytes: header_bytes + length }))
    }

    /// Takes the next header, and what is there of the body; `None` at the end of the stream.
    fn begin(&mut self) -> Result<Option<Begun>, FrameError> {
        if !self.fill(HEADER_BYTES)? {
            return Ok(None);
        }
        let header_bytes = match self.buffer[self.start + 4] {
            VERSION => HEADER_BYTES,
            GROUP_VERSION => GROUP_HEADER_BYTES,
            other => return Err(FrameError::Version(other)),
        };
        self.fill(header_bytes)?;
        let mut header = [0; GROUP_HEADER_BYTES];
        header[..header_bytes].copy_from_slice(&self.buffer[self.start..self.start + header_bytes]);
        let (length, crc) = self.check_header(&header[..header_bytes])?;
        self.start += header_bytes;
        let filled = length.min(self.end - self.start);
        let there = &self.buffer[self.start..self.start + filled];
        let body = if filled == length {
            there.to_vec()
        } else {
            let mut body = vec![0; length];
            body[..filled].copy_from_slice(there);
            body
        };
        self.start += filled;
        Ok(Some(Begun { header, header_bytes, crc, body, filled }))
    }

    /// Reads until this many bytes are in the buffer, of which the first are of a header; false at the end of the
    /// stream.
    fn fill(&mut self, bytes: usize) -> Result<bool, FrameError> {
        while self.end - self.start < bytes {
            // At most a part of one header is moved, and only once per read.
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) if self.end == 0 => return Ok(false),
                Ok(0) => return Err(FrameError::Truncated),
                Ok(count) => {
                    self.drained = count < self.buffer.len() - self.end;
                    self.end += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            // Garbage that is shorter than a header must not keep the connection open.
            check_magic(&self.buffer[..self.end])?;
        }
        Ok(true)
    }

    /// Length and checksum of the body that the header announces.
    fn check_header(&self, header: &[u8]) -> Result<(usize, u32), FrameError> {
        check_magic(header)?;
        if word(&header[header.len() - 4..]) != header_crc(self.cluster, header) {
            return Err(FrameError::HeaderChecksum);
        }
        if header.len() == GROUP_HEADER_BYTES {
            let version = message_version(header).min(self.agreed);
            if version < GROUPS_SINCE {
                return Err(FrameError::Group { version });
            }
            let unused = u16::from_le_bytes([header[26], header[27]]);
            if unused != 0 {
                return Err(FrameError::Unused(unused));
            }
        }
        if header[5] & !FLAG_MARK != 0 {
            return Err(FrameError::Flags(header[5]));
        }
        let (found, agreed) = (message_version(header), self.agreed);
        if found > agreed {
            return Err(FrameError::MessageVersion { found, agreed });
        }
        let length = word(&header[8..12]) as usize;
        if length > self.frame_bytes_max {
            return Err(FrameError::TooLarge { length, max: self.frame_bytes_max });
        }
        Ok((length, word(&header[12..16])))
    }

    /// Reads what is missing of a body into its place, and into the buffer what follows.
    fn read_body(&mut self, Begun { body, filled, .. }: &mut Begun) -> Result<(), FrameError> {
        while *filled < body.len() {
            // Nothing is in the buffer.
            (self.start, self.end) = (0, 0);
            let missing = body.len() - *filled;
            let mut targets = [IoSliceMut::new(&mut body[*filled..]), IoSliceMut::new(&mut self.buffer)];
            match self.source.read_vectored(&mut targets) {
                Ok(0) => return Err(FrameError::Truncated),
                Ok(count) => {
                    let into_body = count.min(missing);
                    *filled += into_body;
                    self.end = count - into_body;
                    self.drained = self.end < self.buffer.len();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn message_version(header: &[u8]) -> u16 {
    u16::from_le_bytes([header[6], header[7]])
}

fn group(header: &[u8]) -> GroupId {
    if header.len() == HEADER_BYTES {
        return GroupId::FIRST;
    }
    GroupId(u16::from_le_bytes([header[24], header[25]]))
}

/// Compares as much of the magic number as `bytes` holds.
fn check_magic(bytes: &[u8]) -> Result<(), FrameError> {
    let have = bytes.len().min(MAGIC.len());
    if bytes[..have] == MAGIC[..have] {
        return Ok(());
    }
    let mut found = [0; 4];
    found[..have].copy_from_slice(&bytes[..have]);
    Err(FrameError::Magic(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use synod_wire::Writer;

    const CLUSTER: ClusterId = ClusterId(0x5eed);
    const MAX: usize = 1 << 20;

    /// A stream that gives its bytes out in pieces of the given sizes, repeatedly. Size 0: it has nothing now.
    struct Dribble {
        bytes: Vec<u8>,
        at: usize,
        sizes: Vec<usize>,
        turn: usize,
    }

    impl Read for Dribble {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            let size = self.sizes[self.turn % self.sizes.len()];
            self.turn += 1;
            if size == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = size.min(target.len()).min(self.bytes.len() - self.at);
            target[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            Ok(count)
        }

        fn read_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let mut left = self.sizes[self.turn % self.sizes.len()];
            self.turn += 1;
            if left == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut total = 0;
            for target in targets {
                let count = left.min(target.len()).min(self.bytes.len() - self.at);
                target[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
                self.at += count;
                left -= count;
                total += count;
            }
            Ok(total)
        }
    }

    fn frame(body: &[u8]) -> Frame {
        let mut writer = Writer::new();
        body.iter().for_each(|byte| writer.u8(*byte));
        Frame::new(CLUSTER, 7, GroupId(u16::from(body.len() % 3 == 1)), Lsn(77), writer.finish())
    }

    fn on_wire(frame: &Frame) -> Vec<u8> {
        frame.slices().flat_map(|slice| slice.to_vec()).collect()
    }

    fn read_all(bytes: Vec<u8>, sizes: Vec<usize>) -> (Vec<Bytes>, Option<FrameError>) {
        let source = Dribble { bytes, at: 0, sizes, turn: 0 };
        let mut reader = FrameReader::new(source, CLUSTER, 7, MAX);
        let mut bodies = Vec::new();
        loop {
            match reader.next_frame() {
                Ok(Some(Arrived { durable, content, .. })) => {
                    assert_eq!(durable, Lsn(77));
                    if let Content::Message(message) = content {
                        assert_eq!(message.group, GroupId(u16::from(message.body.len() % 3 == 1)));
                        bodies.push(message.body);
                    }
                }
                Ok(None) => return (bodies, None),
                Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(!reader.has_frame());
                }
                Err(error) => return (bodies, Some(error)),
            }
        }
    }

    fn only_error(bytes: Vec<u8>) -> FrameError {
        let (bodies, error) = read_all(bytes, vec![7]);
        assert!(bodies.is_empty());
        error.expect("the frame is bad")
    }

    #[test]
    fn a_body_takes_exactly_its_size() {
        // A body out of the middle of a full read buffer must not keep that buffer alive.
        let mut bytes = on_wire(&frame(b"first"));
        bytes.extend(on_wire(&frame(b"second")));
        let (bodies, error) = read_all(bytes, vec![READ_BUFFER_BYTES]);
        assert!(error.is_none());
        for body in bodies {
            let len = body.len();
            assert_eq!(Vec::from(body).capacity(), len);
        }
    }

    #[test]
    fn a_session_of_an_older_version_has_no_groups() {
        let bytes = on_wire(&frame(b"four"));
        let source = Dribble { bytes, at: 0, sizes: vec![100], turn: 0 };
        let error = FrameReader::new(source, CLUSTER, 6, MAX).next_frame().unwrap_err();
        assert!(matches!(error, FrameError::Group { version: 6 }), "{error}");
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (first, other) = (on_wire(&frame(b"hello")), on_wire(&frame(b"four")));
        assert_eq!((first.len(), other.len()), (28 + 5, 32 + 4));
        for good in [first, other] {
            every_change_is_noticed(&good);
        }
    }

    fn every_change_is_noticed(good: &[u8]) {
        for i in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[i] ^= 1 << bit;
                let (bodies, error) = read_all(bad, vec![64]);
                assert!(bodies.is_empty() && error.is_some(), "bit {bit} of byte {i}");
            }
        }
    }

    #[test]
    fn a_frame_of_another_cluster_is_refused() {
        let mut writer = Writer::new();
        writer.u64(1);
        let foreign = Frame::new(ClusterId(1), 7, GroupId::FIRST, Lsn(77), writer.finish());
        assert!(matches!(only_error(on_wire(&foreign)), FrameError::HeaderChecksum));
    }

    #[test]
    fn a_length_above_the_bound_is_refused_before_it_is_used() {
        let huge = frame(&vec![0; MAX + 1]);
        assert!(
            matches!(only_error(on_wire(&huge)), FrameError::TooLarge { length, max: MAX } if length == MAX + 1)
        );
        let largest = frame(&vec![0; MAX]);
        assert_eq!(read_all(on_wire(&largest), vec![4096]).0.len(), 1);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let good = on_wire(&frame(b"hello"));
        assert!(matches!(only_error(b"GET".to_vec()), FrameError::Magic(_)));
        let mut version = good.clone();
        version[4] = 9;
        assert!(matches!(only_error(version), FrameError::Version(9)));
        let mut body = good.clone();
        body[HEADER_BYTES + 2] ^= 1;
        assert!(matches!(only_error(body), FrameError::BodyChecksum { length: 5 }));
        for len in 1..good.len() {
            assert!(matches!(only_error(good[..len].to_vec()), FrameError::Truncated), "{len} bytes");
        }
    }

    #[test]
    fn undefined_flags_with_a_good_checksum_are_refused() {
        let mut header: [u8; HEADER_BYTES] = on_wire(&frame(b"")).try_into().unwrap();
        header[5] = 2;
        let crc = header_crc(CLUSTER, &header);
        header[24..28].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(only_error(header.to_vec()), FrameError::Flags(2)));
    }

    #[test]
    fn a_mark_is_no_message_and_a_message_of_a_version_that_was_not_agreed_is_refused() {
        let mark = Frame::mark(CLUSTER, Lsn(77));
        let (bodies, error) = read_all([on_wire(&mark), on_wire(&frame(b"then"))].concat(), vec![9]);
        assert!(error.is_none());
        assert_eq!(bodies, ["then"]);
        let newer = Frame::new(CLUSTER, 8, GroupId::FIRST, Lsn(77), Writer::new().finish());
        let error = only_error(on_wire(&newer));
        assert!(matches!(error, FrameError::MessageVersion { found: 8, agreed: 7 }));
    }

    proptest! {
        #[test]
        fn frames_come_back_however_the_stream_is_cut(
            bodies in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..200),
                    prop::collection::vec(any::<u8>(), 30_000..70_000),
                ],
                0..6,
            ),
            mut sizes in prop::collection::vec(prop_oneof![Just(0), 1_usize..50_000], 0..8),
        ) {
            sizes.push(1000);
            let bytes = bodies.iter().flat_map(|body| on_wire(&frame(body))).collect();
            let (read, error) = read_all(bytes, sizes);
            prop_assert!(error.is_none());
            prop_assert_eq!(read, bodies);
        }
    }
}
