//! Encoding without copying what is large, and decoding by slicing.
//!
//! Integers are little-endian and of fixed width: batches dominate what is sent, so a varint would save nothing.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{Ballot, Ballots, Batch, Lsn, ReplicaId, SessionId, Slot};

/// Why bytes cannot be decoded. It names the field, so that a log line can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends inside this field.
    #[error("input ends inside {0}")]
    Truncated(&'static str),
    /// The field has a value that no encoder writes.
    #[error("{field} has the value {value}, which is not defined")]
    Undefined {
        /// The field's name.
        field: &'static str,
        /// The value of the field.
        value: u64,
    },
    /// Bytes are left over.
    #[error("{0} bytes follow the end")]
    Trailing(usize),
    /// A checksum does not match.
    #[error("checksum of {0} does not match")]
    Checksum(&'static str),
    /// The bytes are of a protocol from outside that this program does not have.
    #[error("a protocol that is named {0:?} is not registered in this program")]
    Unregistered(String),
}

/// A batch of at most this many bytes is copied: a buffer of its own, and putting its checksum together with that of
/// the rest, would cost more.
const COPIED_BYTES_MAX: usize = 512;

/// An encoded message or record: buffers to be written one after the other, and the checksum of all of them.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    parts: Vec<Bytes>,
    len: usize,
    crc: u32,
}

impl Encoded {
    /// The buffers, in order.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Bytes in all parts together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC-32 (IEEE) of all parts in order. Shared buffers bring their own checksum, which is not computed again.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// One contiguous copy, for tests and tools.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if let [only] = self.parts.as_slice() {
            return only.clone();
        }
        let mut all = BytesMut::with_capacity(self.len);
        self.parts.iter().for_each(|part| all.extend_from_slice(part));
        all.freeze()
    }
}

/// Builds an [`Encoded`].
#[derive(Debug, Default)]
pub struct Writer {
    parts: Vec<Bytes>,
    head: BytesMut,
    len: usize,
    crc: crc32fast::Hasher,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Writer {
        Writer { head: BytesMut::with_capacity(64), ..Writer::default() }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.head.put_u8(value);
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.head.put_u32_le(value);
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.head.put_u64_le(value);
    }

    /// One byte, 0 or 1.
    pub fn bool(&mut self, value: bool) {
        self.head.put_u8(u8::from(value));
    }

    /// A slot.
    pub fn slot(&mut self, slot: Slot) {
        self.u64(slot.0);
    }

    /// A record number.
    pub fn lsn(&mut self, lsn: Lsn) {
        self.u64(lsn.0);
    }

    /// A replica.
    pub fn replica(&mut self, replica: ReplicaId) {
        self.u64(replica.0);
    }

    /// A session.
    pub fn session(&mut self, session: SessionId) {
        self.u64(session.0);
    }

    /// A ballot.
    pub fn ballot(&mut self, ballot: Ballot) {
        self.u64(ballot.round);
        self.replica(ballot.replica);
    }

    /// The ballots of a decided slot.
    pub fn ballots(&mut self, ballots: Ballots) {
        self.ballot(ballots.proposed);
        self.ballot(ballots.decided);
    }

    /// Length and bytes, copied: for small things.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("a field is smaller than 4 GiB"));
        self.head.extend_from_slice(bytes);
    }

    /// Length and bytes, by reference: for large things that are not batches.
    pub fn shared(&mut self, bytes: &Bytes) {
        self.u32(u32::try_from(bytes.len()).expect("a field is smaller than 4 GiB"));
        let mut crc = crc32fast::Hasher::new();
        crc.update(bytes);
        self.append_shared(bytes, &crc);
    }

    /// A batch: its length and checksum, then its bytes, by reference if they are many.
    pub fn batch(&mut self, batch: &Batch) {
        self.u32(u32::try_from(batch.bytes().len()).expect("a batch is smaller than 4 GiB"));
        self.u32(batch.crc());
        if batch.bytes().len() <= COPIED_BYTES_MAX {
            return self.head.extend_from_slice(batch.bytes());
        }
        let crc = crc32fast::Hasher::new_with_initial_len(batch.crc(), batch.bytes().len() as u64);
        self.append_shared(batch.bytes(), &crc);
    }

    fn append_shared(&mut self, bytes: &Bytes, crc: &crc32fast::Hasher) {
        if bytes.is_empty() {
            return;
        }
        self.cut();
        self.crc.combine(crc);
        self.len += bytes.len();
        self.parts.push(bytes.clone());
    }

    fn cut(&mut self) {
        if !self.head.is_empty() {
            self.crc.update(&self.head);
            self.len += self.head.len();
            self.parts.push(self.head.split().freeze());
        }
    }

    /// Returns what was written.
    #[must_use]
    pub fn finish(mut self) -> Encoded {
        self.cut();
        Encoded { parts: self.parts, len: self.len, crc: self.crc.finalize() }
    }
}

/// Reads what a [`Writer`] wrote out of one buffer. Large fields are sliced, not copied.
#[derive(Clone, Debug)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Reads `bytes` from its beginning.
    #[must_use]
    pub fn new(bytes: Bytes) -> Reader {
        Reader { rest: bytes }
    }

    /// Bytes still to be read.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next byte, which stays to be read.
    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn take(&mut self, len: usize, field: &'static str) -> Result<Bytes, DecodeError> {
        if self.rest.len() < len {
            return Err(DecodeError::Truncated(field));
        }
        Ok(self.rest.split_to(len))
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.take(1, field)?[0])
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let bytes = self.take(4, field)?;
        Ok(u32::from_le_bytes(bytes[..].try_into().expect("took 4 bytes")))
    }

    /// Eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let bytes = self.take(8, field)?;
        Ok(u64::from_le_bytes(bytes[..].try_into().expect("took 8 bytes")))
    }

    /// One byte, 0 or 1.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Undefined { field, value: value.into() }),
        }
    }

    /// A slot.
    pub fn slot(&mut self, field: &'static str) -> Result<Slot, DecodeError> {
        self.u64(field).map(Slot)
    }

    /// A record number.
    pub fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.u64(field).map(Lsn)
    }

    /// A replica.
    pub fn replica(&mut self, field: &'static str) -> Result<ReplicaId, DecodeError> {
        self.u64(field).map(ReplicaId)
    }

    /// A session.
    pub fn session(&mut self, field: &'static str) -> Result<SessionId, DecodeError> {
        self.u64(field).map(SessionId)
    }

    /// A ballot.
    pub fn ballot(&mut self, field: &'static str) -> Result<Ballot, DecodeError> {
        Ok(Ballot { round: self.u64(field)?, replica: self.replica(field)? })
    }

    /// The same in a message of a peer: of a round that a group can reach ([`Ballot::is_in_reach`]).
    pub fn ballot_in_reach(&mut self, field: &'static str) -> Result<Ballot, DecodeError> {
        self.ballot(field)?.reachable(field)
    }

    /// The ballots of a decided slot.
    pub fn ballots(&mut self, field: &'static str) -> Result<Ballots, DecodeError> {
        Ok(Ballots { proposed: self.ballot(field)?, decided: self.ballot(field)? })
    }

    /// Length and bytes; a slice of the input.
    pub fn bytes(&mut self, field: &'static str) -> Result<Bytes, DecodeError> {
        let len = self.u32(field)? as usize;
        self.take(len, field)
    }

    /// A batch; a slice of the input. Its commands are checked to be well formed. Its checksum is taken as
    /// read, since the caller has checked the frame or record around the bytes.
    pub fn batch(&mut self, field: &'static str) -> Result<Batch, DecodeError> {
        let len = self.u32(field)? as usize;
        let crc = self.u32(field)?;
        Batch::from_parts(self.take(len, field)?, crc)
    }

    /// Checks that nothing is left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchBuilder;

    fn batch() -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(7), 1, 1, b"hello");
        builder.finish()
    }

    #[test]
    fn reads_back_what_was_written() {
        let batch = batch();
        let mut writer = Writer::new();
        writer.u8(3);
        writer.batch(&batch);
        writer.bool(true);
        writer.shared(&Bytes::from_static(b"snapshot"));
        writer.ballot(Ballot { round: 9, replica: ReplicaId(2) });
        let encoded = writer.finish();

        let bytes = encoded.to_bytes();
        assert_eq!(encoded.len(), bytes.len());
        assert_eq!(encoded.crc(), crc32fast::hash(&bytes), "combined checksum is the checksum of the whole");
        let mut reader = Reader::new(bytes);
        assert_eq!(reader.u8("a"), Ok(3));
        assert_eq!(reader.batch("b"), Ok(batch));
        assert_eq!(reader.bool("c"), Ok(true));
        assert_eq!(reader.bytes("d").unwrap(), "snapshot");
        assert_eq!(reader.ballot("e"), Ok(Ballot { round: 9, replica: ReplicaId(2) }));
        reader.finish().unwrap();
    }

    #[test]
    fn a_ballot_of_a_peer_is_one_that_a_group_can_reach() {
        let read = |round| {
            let mut writer = Writer::new();
            writer.ballot(Ballot { round, replica: ReplicaId(2) });
            Reader::new(writer.finish().to_bytes()).ballot_in_reach("ballot").map(|ballot| ballot.round)
        };
        assert_eq!(read(Ballot::ROUND_MAX), Ok(Ballot::ROUND_MAX));
        for round in [Ballot::ROUND_MAX + 1, u64::MAX - 255, u64::MAX] {
            assert_eq!(read(round), Err(DecodeError::Undefined { field: "ballot", value: round }));
        }
    }

    #[test]
    fn a_small_batch_has_no_buffer_of_its_own_and_a_large_one_is_not_copied() {
        for (bytes, parts) in [(1, 1), (COPIED_BYTES_MAX, 2)] {
            let mut builder = BatchBuilder::new();
            builder.push(SessionId(7), 1, 1, &vec![7; bytes]);
            let batch = builder.finish();
            let mut writer = Writer::new();
            writer.u64(1);
            writer.batch(&batch);
            let encoded = writer.finish();
            assert_eq!(encoded.parts().len(), parts);
            assert_eq!(encoded.crc(), crc32fast::hash(&encoded.to_bytes()));
            let shares = |part: &Bytes| part.as_ptr() == batch.bytes().as_ptr();
            assert_eq!(encoded.parts().iter().any(shares), parts == 2);
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let mut writer = Writer::new();
        writer.slot(Slot(4));
        writer.batch(&batch());
        let bytes = writer.finish().to_bytes();
        for len in 0..bytes.len() {
            let mut reader = Reader::new(bytes.slice(..len));
            assert!(reader.slot("slot").and_then(|_| reader.batch("batch")).is_err(), "{len} bytes");
        }
    }
}
