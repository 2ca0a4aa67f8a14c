//! What a snapshot file looks like. Integers are little-endian.
//!
//! ```text
//! file    := header (64 bytes) | chunk* | trailer (16 bytes)
//! header  := magic "SYNODSNP" | version u32 | chunk_bytes u32 | cluster u64 | slot u64 | length u64
//!          | zeros | crc u32
//! chunk   := crc u32 | payload (chunk_bytes, the last one less)
//! trailer := magic "SNAPDONE" | crc u32 of the whole payload | crc u32 of the header and the twelve bytes before
//! ```
//!
//! The chunk's checksum lets a reader use what it has read before it has read all; the trailer's proves that the
//! file is whole. Nothing in it depends on the replica, so it is sent to peers as it is.

use synod_wire::{ClusterId, Slot};

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const TRAILER_BYTES: usize = 16;
pub(crate) const CHUNK_CRC_BYTES: usize = 4;
/// Bytes of payload a chunk.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
pub(crate) const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"SYNODSNP";
const END_MAGIC: [u8; 8] = *b"SNAPDONE";

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub cluster: ClusterId,
    pub slot: Slot,
    /// Bytes of payload.
    pub length: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.length.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The error says what is wrong.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, String> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if bytes[..8] != MAGIC {
            return Err("it is no snapshot".to_owned());
        }
        if crc32fast::hash(&bytes[..HEADER_BYTES - 4]) != half(HEADER_BYTES - 4) {
            return Err("its header does not have its checksum".to_owned());
        }
        if half(8) != VERSION {
            return Err(format!("it has format version {}; this program reads version {VERSION}", half(8)));
        }
        if half(12) != CHUNK_BYTES as u32 {
            return Err(format!("its chunks have {} bytes instead of {CHUNK_BYTES}", half(12)));
        }
        Ok(Header { cluster: ClusterId(word(16)), slot: Slot(word(24)), length: word(32) })
    }

    /// Bytes that the whole file has.
    pub(crate) fn file_bytes(&self) -> u64 {
        let crcs = self.length.div_ceil(CHUNK_BYTES as u64).saturating_mul(CHUNK_CRC_BYTES as u64);
        self.length.saturating_add(crcs).saturating_add((HEADER_BYTES + TRAILER_BYTES) as u64)
    }

    /// The trailer that belongs to this header and a payload with this checksum.
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

/// The version of a header that is whole and of another one than this program reads.
pub(crate) fn other_version(bytes: &[u8; HEADER_BYTES]) -> Option<u32> {
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let whole = bytes[..8] == MAGIC && crc32fast::hash(&bytes[..HEADER_BYTES - 4]) == half(HEADER_BYTES - 4);
    (whole && half(8) != VERSION).then(|| half(8))
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
