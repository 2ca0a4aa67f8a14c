//! The format of a log file, byte by byte. Integers are little-endian.
//!
//! ```text
//! segment := header page (4096 bytes) | record* | anything that is no record of this life
//!
//! header  := head (20 bytes, of "SYNODWAL"; see wire/version.rs) | page u32 | cluster u64 | replica u64 | segment u64
//!          | first_lsn u64 | life u64 | incarnation u64 | birth u64 | restated u32
//!          | crc u32 | zeros
//!
//! record  := life u64 | length u32 | kind u8 | key u8 | group u16 | lsn u64 | slot u64 | durable u64
//!          | last_state u64 | body_crc u32 | header_crc u32 | body | zeros up to a multiple of 8
//! ```
//!
//! - `life` is drawn at random whenever a file is prepared to be a segment, and is in the list of segments before the
//!   segment is begun. Records carry it, so it is also the mark by which a reader finds the next record after a damaged
//!   one. A client that stores the bytes of a record as a value cannot forge one without knowing it; a reader that does
//!   not know it either, since list and header are lost, takes only what begins where the first record does, where no
//!   client's bytes have ever been.
//! - `header_crc` covers cluster, replica, birth and segment number (which are not repeated in every record) and the
//!   record's header with `body_crc`: records of a file's previous life never pass, and the body's checksum is the one
//!   that the batch brought.
//! - `durable` is the highest record known to be durable when this one was written. It proves later that a
//!   record before it is missing
//!   because of corruption and not because of a crash during its commit.
//! - `last_state` is the number of the latest `State` record before this one. A reader that can read that one
//!   knows that no promise was lost
//!   in a damaged section.
//! - `group` says which of the groups that share the log the record is of. Numbers count the records of all
//!   of them; slots and keys are the
//!   group's own.
//! - `restated` counts the records at the head of the segment that repeat the latest `State` record of every
//!   key of every group, under their
//!   old numbers, so that older segments can be removed.

use synod_wire::{ClusterId, Format, GroupId, Incarnation, Lsn, ReplicaId, Slot, Written};

use crate::{Identity, Keep};

/// Version of this format, and of the records in it. What earlier versions lack: up to version 1, a birth; up to
/// 2, records of accepted values with more than one slot; up to 3, the ballot that decided a slot, and the list
/// of the begun segments; up to 4, the marks of records in that list, and the birth in the checksums of records;
/// up to 5, which versions can read a segment; up to 6, the group of a record, and the identity of a batch.
pub(crate) const FORMAT: Format = Format::first(7);
/// Bytes of the page that holds a segment's header; records begin after it.
pub(crate) const PAGE: usize = 4096;
/// Bytes of a record before its body.
pub(crate) const RECORD_HEADER_BYTES: usize = 56;
/// Records begin at multiples of this, so that a reader that lost its place has few places to look at.
pub(crate) const ALIGNMENT: usize = 8;

const MAGIC: [u8; 8] = *b"SYNODWAL";
const HEADER_USED: usize = 88;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub identity: Identity,
    pub segment: u64,
    /// Number of the first record that is not a restated one.
    pub first_lsn: Lsn,
    pub life: u64,
    pub restated: u32,
}

/// Why a page is not the header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// The page was never written: the segment was prepared, but not begun.
    Blank,
    /// It is the header of a version that this program cannot read.
    Version(Written),
    /// It is anything else.
    Damaged,
}

impl SegmentHeader {
    /// The whole page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_as(FORMAT.written)
    }

    pub(crate) fn encode_as(&self, written: Written) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE);
        page.extend_from_slice(&written.head(MAGIC));
        page.extend_from_slice(&(PAGE as u32).to_le_bytes());
        for word in [
            self.identity.cluster.0,
            self.identity.replica.0,
            self.segment,
            self.first_lsn.0,
            self.life,
            self.identity.incarnation.0,
            self.identity.birth,
        ] {
            page.extend_from_slice(&word.to_le_bytes());
        }
        page.extend_from_slice(&self.restated.to_le_bytes());
        let crc = crc32fast::hash(&page);
        page.extend_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(page.len(), HEADER_USED);
        page.resize(PAGE, 0);
        page
    }

    /// Reads a page.
    pub(crate) fn decode(page: &[u8]) -> Result<SegmentHeader, NoHeader> {
        let Some(used) = page.get(..HEADER_USED) else { return Err(NoHeader::Damaged) };
        if used.iter().all(|&byte| byte == 0) {
            return Err(NoHeader::Blank);
        }
        let written = Written::of_head(used, MAGIC).ok_or(NoHeader::Damaged)?;
        // After the head another version may have another layout.
        if FORMAT.check(written).is_err() {
            return Err(NoHeader::Version(written));
        }
        if crc32fast::hash(&used[..HEADER_USED - 4]) != u32_at(used, HEADER_USED - 4) {
            return Err(NoHeader::Damaged);
        }
        Ok(SegmentHeader {
            identity: Identity {
                cluster: ClusterId(u64_at(used, 24)),
                replica: ReplicaId(u64_at(used, 32)),
                incarnation: Incarnation(u64_at(used, 64)),
                birth: u64_at(used, 72),
            },
            segment: u64_at(used, 40),
            first_lsn: Lsn(u64_at(used, 48)),
            life: u64_at(used, 56),
            restated: u32_at(used, 80),
        })
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub life: u64,
    /// Bytes of the body.
    pub length: u32,
    pub group: GroupId,
    pub keep: Keep,
    /// Whether this is a copy of an earlier `State` record, at the head of a segment.
    pub restated: bool,
    pub lsn: Lsn,
    /// The highest record known to be durable when this one was written.
    pub durable: Lsn,
    /// The latest `State` record before this one.
    pub last_state: Lsn,
    pub body_crc: u32,
}

/// What a segment's records are bound to: checksums of another segment's records do not match.
#[derive(Clone, Debug)]
pub(crate) struct Binding(crc32fast::Hasher);

impl Binding {
    pub(crate) fn new(identity: Identity, segment: u64) -> Binding {
        let mut hasher = crc32fast::Hasher::new();
        for word in [identity.cluster.0, identity.replica.0, identity.birth, segment] {
            hasher.update(&word.to_le_bytes());
        }
        Binding(hasher)
    }

    fn crc(&self, header: &[u8]) -> u32 {
        let mut hasher = self.0.clone();
        hasher.update(header);
        hasher.finalize()
    }
}

impl RecordHeader {
    /// Bytes that the record takes in the file, padding included.
    pub(crate) fn record_bytes(&self) -> usize {
        record_bytes(self.length as usize)
    }

    pub(crate) fn encode(&self, binding: &Binding) -> [u8; RECORD_HEADER_BYTES] {
        let (kind, key, slot) = match (self.keep, self.restated) {
            (Keep::Slot(slot), _) => (1, 0, slot),
            (Keep::State(key), false) => (2, key, Slot::ZERO),
            (Keep::State(key), true) => (3, key, Slot::ZERO),
        };
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.life.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12] = kind;
        bytes[13] = key;
        bytes[14..16].copy_from_slice(&self.group.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&slot.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.durable.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.last_state.0.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = binding.crc(&bytes[..RECORD_HEADER_BYTES - 4]);
        bytes[52..56].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header at the beginning of `bytes`; `None` if it is not a header, or not one of this segment.
    pub(crate) fn decode(bytes: &[u8], binding: &Binding) -> Option<RecordHeader> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        // Cheap tests come first: a reader that lost its place tries this at every eighth byte.
        let (kind, key) = (bytes[12], bytes[13]);
        if !(1..=3).contains(&kind) {
            return None;
        }
        if binding.crc(&bytes[..RECORD_HEADER_BYTES - 4]) != u32_at(bytes, 52) {
            return None;
        }
        let keep = if kind == 1 { Keep::Slot(Slot(u64_at(bytes, 24))) } else { Keep::State(key) };
        Some(RecordHeader {
            life: u64_at(bytes, 0),
            length: u32_at(bytes, 8),
            group: GroupId(u16::from_le_bytes([bytes[14], bytes[15]])),
            keep,
            restated: kind == 3,
            lsn: Lsn(u64_at(bytes, 16)),
            durable: Lsn(u64_at(bytes, 32)),
            last_state: Lsn(u64_at(bytes, 40)),
            body_crc: u32_at(bytes, 48),
        })
    }
}

/// Bytes that a record with a body of `body` bytes takes in a file.
pub(crate) fn record_bytes(body: usize) -> usize {
    (RECORD_HEADER_BYTES + body).next_multiple_of(ALIGNMENT)
}

/// The name of a segment's file.
pub(crate) fn segment_name(segment: u64) -> String {
    format!("{segment:020}.wal")
}

/// The number in a segment's file name; `None` for other files.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// What a client may put into a record's body: records of these segments, at every place where a reader may
/// look for one. It knows everything in them but the mark.
#[cfg(test)]
pub(crate) fn forged_records(identity: Identity, segments: std::ops::Range<u64>) -> Vec<u8> {
    let lsn = Lsn(1 << 40);
    let header = RecordHeader {
        life: 0x1111_1111_1111_1111,
        length: 0,
        group: GroupId::FIRST,
        keep: Keep::Slot(Slot(1)),
        restated: false,
        lsn,
        durable: Lsn(lsn.0 - 1),
        last_state: Lsn::ZERO,
        body_crc: 0,
    };
    let mut bytes = Vec::new();
    for segment in segments {
        for _ in 0..ALIGNMENT {
            bytes.extend_from_slice(&header.encode(&Binding::new(identity, segment)));
            bytes.push(0);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { cluster: ClusterId(0xc1), replica: ReplicaId(3), birth: 8, incarnation: Incarnation(7) }
    }

    #[test]
    fn a_segment_header_comes_back_and_no_flipped_bit_passes() {
        let header = SegmentHeader {
            identity: identity(),
            segment: 9,
            first_lsn: Lsn(41),
            life: 0xfeed_beef,
            restated: 2,
        };
        let page = header.encode();
        assert_eq!(page.len(), PAGE);
        assert_eq!(SegmentHeader::decode(&page), Ok(header));
        for bit in 0..HEADER_USED * 8 {
            let mut page = page.clone();
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&page), Err(NoHeader::Damaged), "bit {bit}");
        }
        assert_eq!(SegmentHeader::decode(&[0; PAGE]), Err(NoHeader::Blank));
        assert_eq!(SegmentHeader::decode(&page[..40]), Err(NoHeader::Damaged));
    }

    #[test]
    fn a_record_header_is_bound_to_its_segment() {
        let binding = Binding::new(identity(), 3);
        for (keep, restated) in
            [(Keep::Slot(Slot(5)), false), (Keep::State(9), false), (Keep::State(0), true)]
        {
            let header = RecordHeader {
                life: 77,
                length: 1000,
                group: GroupId(u16::from(restated) * 0x0203),
                keep,
                restated,
                lsn: Lsn(12),
                durable: Lsn(11),
                last_state: Lsn(4),
                body_crc: 0xabcd,
            };
            let bytes = header.encode(&binding);
            assert_eq!(RecordHeader::decode(&bytes, &binding), Some(header));
            for (other, segment) in [
                (Identity { cluster: ClusterId(9), ..identity() }, 3),
                (Identity { replica: ReplicaId(9), ..identity() }, 3),
                (Identity { birth: 9, ..identity() }, 3),
                (identity(), 9),
            ] {
                let other = Binding::new(other, segment);
                assert_eq!(RecordHeader::decode(&bytes, &other), None);
            }
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(RecordHeader::decode(&bytes, &binding), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn segment_names_sort_and_come_back() {
        assert_eq!(segment_name(7), "00000000000000000007.wal");
        assert_eq!(segment_number(&segment_name(u64::MAX)), Some(u64::MAX));
        for name in ["7.wal", "00000000000000000007.wal.damaged", "LOCK", "+0000000000000000007.wal"] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }
}
