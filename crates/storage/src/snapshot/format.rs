//! The format of a snapshot file. Integers are little-endian.
//!
//! ```text
//! file    := header (64 bytes) | chunk* | trailer (16 bytes)
//! header  := head (20 bytes, of "SYNODSNP"; see wire/version.rs) | chunk_bytes u32 | cluster u64 | slot u64
//!          | length u64 | zeros | crc u32
//! chunk   := crc u32 | payload (chunk_bytes, the last one less)
//! trailer := magic "SNAPDONE" | crc u32 of the whole payload | crc u32 of the header and the twelve bytes before
//! ```
//!
//! A chunk's checksum lets a reader use the chunk before it has read the others; the trailer's checksum proves
//! that the file is whole. Nothing in the file depends on the replica, so it is sent to peers as it is. Where several
//! groups are in one file, the slot is that of the group that wrote or received it.

use synod_wire::{ClusterId, FILE_HEAD_BYTES, Format, Slot, VersionError, Written};

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const TRAILER_BYTES: usize = 16;
pub(crate) const CHUNK_CRC_BYTES: usize = 4;
/// Bytes of payload in a chunk.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
pub(crate) const FORMAT: Format = Format::first(2);

const MAGIC: [u8; 8] = *b"SYNODSNP";
const END_MAGIC: [u8; 8] = *b"SNAPDONE";

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub written: Written,
    pub cluster: ClusterId,
    pub slot: Slot,
    /// Bytes of payload.
    pub length: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..FILE_HEAD_BYTES].copy_from_slice(&self.written.head(MAGIC));
        bytes[20..24].copy_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.length.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header. The outer error means that it has a version this program cannot read; the inner one
    /// says what is wrong.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Result<Header, String>, VersionError> {
        let Some(written) = Header::written(bytes)? else {
            return Ok(Err("it does not begin as a snapshot does".to_owned()));
        };
        Ok(Header::decode_as(written, bytes))
    }

    /// The version of a file that begins with these bytes; `None` if it is no snapshot, or damaged.
    pub(crate) fn written(bytes: &[u8]) -> Result<Option<Written>, VersionError> {
        let written = Written::of_head(bytes, MAGIC);
        written.map_or(Ok(()), |written| FORMAT.check(written))?;
        Ok(written)
    }

    fn decode_as(written: Written, bytes: &[u8; HEADER_BYTES]) -> Result<Header, String> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if crc32fast::hash(&bytes[..HEADER_BYTES - 4]) != half(HEADER_BYTES - 4) {
            return Err("its header does not have its checksum".to_owned());
        }
        if half(20) != CHUNK_BYTES as u32 {
            return Err(format!("its chunks have {} bytes instead of {CHUNK_BYTES}", half(20)));
        }
        Ok(Header { written, cluster: ClusterId(word(24)), slot: Slot(word(32)), length: word(40) })
    }

    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        let crcs = self.length.div_ceil(CHUNK_BYTES as u64).saturating_mul(CHUNK_CRC_BYTES as u64);
        self.length.saturating_add(crcs).saturating_add((HEADER_BYTES + TRAILER_BYTES) as u64)
    }

    /// The trailer for this header and a payload with this checksum.
    pub(crate) fn trailer(&self, payload_crc: u32) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[0..8].copy_from_slice(&END_MAGIC);
        bytes[8..12].copy_from_slice(&payload_crc.to_le_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.encode());
        crc.update(&bytes[..12]);
        bytes[12..].copy_from_slice(&crc.finalize().to_le_bytes());
        bytes
    }
}

/// The name of a snapshot's file.
pub(crate) fn file_name(slot: Slot) -> String {
    format!("snapshot-{:020}.snap", slot.0)
}

/// The slot in a snapshot's file name; `None` for other files.
pub(crate) fn slot_in_name(name: &str) -> Option<Slot> {
    let digits = name.strip_prefix("snapshot-")?.strip_suffix(".snap")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok().map(Slot))?
}
