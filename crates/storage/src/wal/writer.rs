//! Laying records out in a segment and writing them with as few calls as possible.

use std::{collections::BTreeMap, io::IoSlice, ops::Range, path::PathBuf, slice};

use bytes::Bytes;
use synod_wire::{Encoded, GroupId, Lsn, Slot};

use super::{
    format::{ALIGNMENT, Binding, PAGE, RecordHeader, SegmentHeader, record_bytes},
    prepare::Prepared,
};
use crate::{
    Identity, Keep, StorageError,
    disk::{DiskFile, sync_file, write_all_at},
};

/// A record's contents: as the protocol encoded them, or as they were read.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Encoded(Encoded),
    Read(Bytes),
}

impl Body {
    pub(crate) fn parts(&self) -> &[Bytes] {
        match self {
            Body::Encoded(encoded) => encoded.parts(),
            Body::Read(bytes) => slice::from_ref(bytes),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Body::Encoded(encoded) => encoded.len(),
            Body::Read(bytes) => bytes.len(),
        }
    }

    fn crc(&self) -> u32 {
        match self {
            Body::Encoded(encoded) => encoded.crc(),
            Body::Read(bytes) => crc32fast::hash(bytes),
        }
    }
}

/// What a record says besides its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub lsn: Lsn,
    pub group: GroupId,
    pub keep: Keep,
    pub restated: bool,
    pub durable: Lsn,
    pub last_state: Lsn,
}

/// The segment to which records are written.
#[derive(Debug)]
pub(crate) struct Active {
    pub segment: u64,
    pub path: PathBuf,
    pub file: Box<dyn DiskFile>,
    /// Bytes that it is meant to hold.
    pub capacity: u64,
    /// Where the next write goes.
    pub end: u64,
    /// The highest slot of the records of each group that has any in the segment.
    pub slot_max: BTreeMap<GroupId, Slot>,
    /// Whether it has a record that is not a restated one.
    pub has_records: bool,
    life: u64,
    binding: Binding,
    gather: Gather,
}

impl Active {
    /// The segment, whose records end at `end`, as the one to go on with.
    pub(crate) fn resume(prepared: Prepared, identity: Identity, end: u64) -> Active {
        let Prepared { segment, path, file, bytes: capacity, life } = prepared;
        Active {
            segment,
            path,
            file,
            capacity,
            end,
            slot_max: BTreeMap::new(),
            has_records: false,
            life,
            binding: Binding::new(identity, segment),
            gather: Gather::default(),
        }
    }

    /// Begins a prepared segment; its header goes with the first write.
    pub(crate) fn begin(prepared: Prepared, identity: Identity, first_lsn: Lsn, restated: u32) -> Active {
        let Prepared { segment, life, .. } = prepared;
        let header = SegmentHeader { identity, segment, first_lsn, life, restated };
        let mut active = Active::resume(prepared, identity, 0);
        active.gather.put_copied(&header.encode());
        active
    }

    /// Whether a record with a body of this length still goes into it. A segment without records takes one of
    /// any length, and grows.
    pub(crate) fn has_room_for(&self, body_bytes: usize) -> bool {
        let filled = self.end + self.gather.bytes;
        !self.has_records || filled + record_bytes(body_bytes) as u64 <= self.capacity
    }

    /// Adds a record to the next write. Returns the bytes that it takes.
    pub(crate) fn put(&mut self, label: Label, body: &Body) -> u64 {
        let header = RecordHeader {
            life: self.life,
            length: u32::try_from(body.len()).expect("checked when it was appended"),
            group: label.group,
            keep: label.keep,
            restated: label.restated,
            lsn: label.lsn,
            durable: label.durable,
            last_state: label.last_state,
            body_crc: body.crc(),
        };
        let before = self.gather.bytes;
        self.gather.put_copied(&header.encode(&self.binding));
        body.parts().iter().for_each(|part| self.gather.put(part));
        let padding = header.record_bytes() as u64 - (self.gather.bytes - before);
        self.gather.put_copied(&[0; ALIGNMENT][..padding as usize]);
        self.has_records |= !label.restated;
        if let Keep::Slot(slot) = label.keep {
            let slot_max = self.slot_max.entry(label.group).or_default();
            *slot_max = slot.max(*slot_max);
        }
        self.gather.bytes - before
    }

    /// Writes what was put, and makes it durable if `sync` is set.
    pub(crate) fn flush(&mut self, sync: bool) -> Result<(), StorageError> {
        let mut slices = self.gather.slices();
        write_all_at(&*self.file, &self.path, &mut slices, self.end)?;
        if sync {
            sync_file(&*self.file, &self.path)?;
        }
        self.end += self.gather.bytes;
        self.capacity = self.capacity.max(self.end);
        self.gather.clear();
        debug_assert!(self.end >= PAGE as u64);
        Ok(())
    }
}

/// Parts up to this many bytes are copied beside the headers: a gathered write costs more for another buffer
/// than for the copy.
const COPIED_BYTES_MAX: usize = 512;

/// Buffers for one gathered write.
#[derive(Debug, Default)]
struct Gather {
    copied: Vec<u8>,
    pieces: Vec<Piece>,
    bytes: u64,
}

#[derive(Debug)]
enum Piece {
    /// A range of `copied`.
    Copied(Range<usize>),
    Shared(Bytes),
}

impl Gather {
    fn put(&mut self, part: &Bytes) {
        if part.len() <= COPIED_BYTES_MAX {
            return self.put_copied(part);
        }
        self.bytes += part.len() as u64;
        self.pieces.push(Piece::Shared(part.clone()));
    }

    fn put_copied(&mut self, part: &[u8]) {
        if part.is_empty() {
            return;
        }
        let start = self.copied.len();
        self.copied.extend_from_slice(part);
        self.bytes += part.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Copied(range)) => range.end = self.copied.len(),
            _ => self.pieces.push(Piece::Copied(start..self.copied.len())),
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            slices.push(IoSlice::new(match piece {
                Piece::Copied(range) => &self.copied[range.clone()],
                Piece::Shared(bytes) => bytes,
            }));
        }
        slices
    }

    fn clear(&mut self) {
        self.copied.clear();
        self.pieces.clear();
        self.bytes = 0;
        // A large commit must not keep its memory forever.
        self.copied.shrink_to(1 << 20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_parts_are_not_copied_and_small_ones_share_a_buffer() {
        let large = Bytes::from(vec![7; COPIED_BYTES_MAX + 1]);
        let mut gather = Gather::default();
        gather.put_copied(b"head");
        gather.put(&Bytes::from_static(b"small"));
        gather.put(&large);
        gather.put_copied(b"tail");
        let slices = gather.slices();
        assert_eq!(slices.len(), 3);
        assert_eq!(&slices[0][..], b"headsmall");
        assert_eq!(slices[1].as_ptr(), large.as_ptr());
        assert_eq!(gather.bytes, slices.iter().map(|slice| slice.len() as u64).sum());
    }
}
