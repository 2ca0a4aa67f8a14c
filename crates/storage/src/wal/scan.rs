//! Reading one segment, whatever state it is in.
//!
//! A scan makes no decisions: it says which records can be read, where, and where there is something else.
//! What that means (torn tail or corruption) shows only with all segments side by side, in [`super::assess`].

use std::path::PathBuf;

use bytes::Bytes;
use synod_wire::Lsn;

use super::format::{
    ALIGNMENT, Binding, NoHeader, PAGE, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, record_bytes,
    u64_at,
};
use crate::Identity;

/// What one segment's file holds.
#[derive(Debug)]
pub(crate) struct SegmentScan {
    pub segment: u64,
    pub path: PathBuf,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Where the first byte is that the disk cannot read, if there is one; such bytes were taken for zeros.
    pub unreadable: Option<u64>,
    pub header: Result<SegmentHeader, NoHeader>,
    /// Whether the header was unreadable, and was made again from the records after it.
    pub header_rebuilt: bool,
    /// The mark of this segment's records, if it is known.
    pub life: Option<u64>,
    /// Records whose header is intact, in the order of the file.
    pub records: Vec<ScannedRecord>,
    /// Sections before the last record that cannot be read.
    pub flaws: Vec<Flaw>,
    /// Where the last record ends; [`PAGE`] if there is none.
    pub end: u64,
    /// After `end`: the end of the last trace of an unreadable record of this life, if there is one.
    pub trace_end: Option<u64>,
}

/// A record whose header is intact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScannedRecord {
    pub offset: u64,
    pub header: RecordHeader,
    /// Whether the body has its checksum.
    pub body_ok: bool,
}

impl ScannedRecord {
    /// Where the next record begins.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.header.record_bytes() as u64
    }

    /// The body in the bytes of its segment.
    pub(crate) fn body(&self, file: &Bytes) -> Bytes {
        let from = self.offset as usize + RECORD_HEADER_BYTES;
        file.slice(from..from + self.header.length as usize)
    }
}

/// A section that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Flaw {
    pub offset: u64,
    pub reason: String,
}

impl SegmentScan {
    /// Whether the segment was ever begun. If not, it is only prepared.
    pub(crate) fn is_begun(&self) -> bool {
        self.header.is_ok() || !self.records.is_empty()
    }

    /// The records that repeat earlier `State` records at the head of the segment.
    pub(crate) fn restated(&self) -> impl Iterator<Item = &ScannedRecord> {
        self.records.iter().filter(|record| record.header.restated)
    }

    /// Whether the header and every restated record can be read, so that nothing before this segment is needed
    /// to know the latest `State` record of every key at its beginning.
    pub(crate) fn head_is_complete(&self) -> bool {
        let readable = self.restated().filter(|record| record.body_ok).count();
        self.header.as_ref().is_ok_and(|header| header.restated as usize == readable)
    }

    /// The number of the first record that is not a restated one, if that is known.
    pub(crate) fn first_lsn(&self) -> Option<Lsn> {
        let first = || self.records.iter().find(|record| !record.header.restated);
        self.header.as_ref().map(|header| header.first_lsn).ok().or_else(|| first().map(|r| r.header.lsn))
    }

    /// Drops the records after `last`, where the log was closed: nothing was written since.
    pub(crate) fn end_at(&mut self, last: Lsn) {
        let is_after = |record: &ScannedRecord| !record.header.restated && record.header.lsn > last;
        let Some(first) = self.records.iter().find(|record| is_after(record)).copied() else { return };
        self.trace_end = self.trace_end.max(Some(self.end));
        self.records.retain(|record| !is_after(record));
        self.flaws.retain(|flaw| flaw.offset < first.offset);
        self.end = self.records.last().map_or(PAGE as u64, |record| record.end().min(self.file_bytes));
    }

    /// Where the restated records end.
    pub(crate) fn head_end(&self) -> u64 {
        self.restated().map(ScannedRecord::end).max().unwrap_or(PAGE as u64)
    }
}

/// Reads a segment's bytes, looking for records of `identity`, whose incarnation does not matter. `listed` is
/// the mark of the records according to the list of segments, if that says it.
pub(crate) fn scan(
    segment: u64,
    path: PathBuf,
    file: &[u8],
    identity: Identity,
    listed: Option<u64>,
) -> SegmentScan {
    let binding = Binding::new(identity, segment);
    let mut header = SegmentHeader::decode(&file[..file.len().min(PAGE)]);
    if matches!(&header, Ok(header) if header.segment != segment) {
        // This is what a recycled file said in its previous life.
        header = Err(NoHeader::Damaged);
    }
    let mut scan = SegmentScan {
        segment,
        path,
        file_bytes: file.len() as u64,
        unreadable: None,
        life: header.as_ref().ok().map(|header| header.life).or(listed),
        header,
        header_rebuilt: false,
        records: Vec::new(),
        flaws: Vec::new(),
        end: PAGE as u64,
        trace_end: None,
    };
    if matches!(&scan.header, Ok(header) if !header.identity.is_same_replica(&identity)) {
        // The caller refuses it; its records are bound to another identity.
        return scan;
    }
    scan.read_records(file, &binding);
    scan.rebuild_header(identity);
    scan
}

impl SegmentScan {
    fn read_records(&mut self, file: &[u8], binding: &Binding) {
        let mut at = PAGE;
        let mut last = Lsn::ZERO;
        loop {
            let Some(header) = self.record_at(file, at, last, binding) else {
                let Some(next) = self.find_record(file, at + ALIGNMENT, last, binding) else { break };
                let reason = format!("{} bytes that are no record", next - at);
                self.flaws.push(Flaw { offset: at as u64, reason });
                at = next;
                continue;
            };
            self.life = Some(header.life);
            let end = at + record_bytes(header.length as usize);
            let body_at = at + RECORD_HEADER_BYTES;
            let body = file.get(body_at..body_at + header.length as usize);
            let body_ok = body.is_some_and(|body| crc32fast::hash(body) == header.body_crc);
            if !body_ok {
                let what = if body.is_some() {
                    "does not have its checksum"
                } else {
                    "goes beyond the end of the file"
                };
                let reason = format!("the body of record {} {what}", header.lsn);
                self.flaws.push(Flaw { offset: at as u64, reason });
            }
            if !header.restated {
                last = header.lsn;
            }
            self.records.push(ScannedRecord { offset: at as u64, header, body_ok });
            at = end;
        }
        self.end = self.records.last().map_or(PAGE as u64, |record| record.end().min(file.len() as u64));
        self.trace_end = self.find_trace(file, self.end as usize);
    }

    /// The header at `at`, if it is one that may follow record `last`.
    fn record_at(&self, file: &[u8], at: usize, last: Lsn, binding: &Binding) -> Option<RecordHeader> {
        let header = RecordHeader::decode(file.get(at..)?, binding)?;
        let right_life = self.life.is_none_or(|life| header.life == life);
        let right_lsn = header.restated || header.lsn > last;
        (right_life && right_lsn).then_some(header)
    }

    /// The first place from `from` on where a record begins. Without the mark of this life nothing is looked
    /// for: whatever a client put into a body, now or in an earlier life of the file, could pass for a record.
    fn find_record(&self, file: &[u8], from: usize, last: Lsn, binding: &Binding) -> Option<usize> {
        let mark = self.life?.to_le_bytes();
        (from..file.len().saturating_sub(RECORD_HEADER_BYTES - 1))
            .step_by(ALIGNMENT)
            .find(|&at| file[at..at + 8] == mark && self.record_at(file, at, last, binding).is_some())
    }

    /// The end of the last section after `from` that bears the mark of this life.
    fn find_trace(&self, file: &[u8], from: usize) -> Option<u64> {
        let life = self.life?;
        let marked = |at: &usize| file.len() >= at + 8 && u64_at(file, *at) == life;
        let last = (from..file.len()).step_by(ALIGNMENT).rfind(marked)?;
        Some((last + RECORD_HEADER_BYTES).min(file.len()) as u64)
    }

    /// Makes a header that cannot be read again, if everything that it said follows from the records: they
    /// come after it without a gap, and the first that is not restated is among them.
    fn rebuild_header(&mut self, identity: Identity) {
        if !matches!(self.header, Err(NoHeader::Damaged | NoHeader::Blank)) {
            return;
        }
        let mut expected = PAGE as u64;
        for (restated, record) in (0..).zip(&self.records) {
            if record.offset != expected || !record.body_ok && record.header.restated {
                return;
            }
            if !record.header.restated {
                let first_lsn = record.header.lsn;
                let life = record.header.life;
                self.header =
                    Ok(SegmentHeader { identity, segment: self.segment, first_lsn, life, restated });
                self.header_rebuilt = true;
                return;
            }
            expected = record.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{ClusterId, GroupId, Incarnation, ReplicaId, Slot};

    use super::*;
    use crate::Keep;

    const IDENTITY: Identity =
        Identity { cluster: ClusterId(5), replica: ReplicaId(1), birth: 6, incarnation: Incarnation(1) };
    const LIFE: u64 = 0x1122_3344_5566_7788;

    /// A segment with these record bodies, and where each begins.
    fn segment(bodies: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
        let header =
            SegmentHeader { identity: IDENTITY, segment: 4, first_lsn: Lsn(1), life: LIFE, restated: 0 };
        let binding = Binding::new(IDENTITY, 4);
        let mut file = header.encode();
        let mut offsets = Vec::new();
        for (i, body) in bodies.iter().enumerate() {
            let lsn = Lsn(i as u64 + 1);
            let header = RecordHeader {
                life: LIFE,
                length: body.len() as u32,
                group: GroupId::FIRST,
                keep: Keep::Slot(Slot(lsn.0)),
                restated: false,
                lsn,
                durable: Lsn(i as u64),
                last_state: Lsn::ZERO,
                body_crc: crc32fast::hash(body),
            };
            offsets.push(file.len());
            file.extend_from_slice(&header.encode(&binding));
            file.extend_from_slice(body);
            file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        }
        file.resize(3 * PAGE, 0);
        (file, offsets)
    }

    fn lsns(scan: &SegmentScan) -> Vec<u64> {
        scan.records.iter().filter(|r| r.body_ok).map(|r| r.header.lsn.0).collect()
    }

    #[test]
    fn finds_the_next_record_after_a_damaged_header() {
        let (mut file, offsets) = segment(&[b"one", b"two", &[7; 300], b"four"]);
        file[offsets[2]] ^= 1;
        let scan = scan(4, "x".into(), &file, IDENTITY, None);
        assert_eq!(lsns(&scan), [1, 2, 4]);
        assert_eq!(scan.flaws.len(), 1);
        assert_eq!(scan.flaws[0].offset as usize, offsets[2]);
    }

    #[test]
    fn a_damaged_body_costs_that_record_only() {
        let (mut file, offsets) = segment(&[b"one", &[7; 300], b"three"]);
        file[offsets[1] + 200] ^= 1;
        let scan = scan(4, "x".into(), &file, IDENTITY, None);
        assert_eq!(lsns(&scan), [1, 3]);
        assert!(scan.flaws[0].reason.contains("record 2"), "{}", scan.flaws[0].reason);
    }

    #[test]
    fn a_damaged_header_page_is_made_again_from_the_records() {
        let (mut file, _) = segment(&[b"one", b"two"]);
        file[50] ^= 4;
        let scan = scan(4, "x".into(), &file, IDENTITY, None);
        assert_eq!(lsns(&scan), [1, 2]);
        assert!(scan.header_rebuilt);
        let header = scan.header.unwrap();
        assert_eq!((header.first_lsn, header.life, header.restated), (Lsn(1), LIFE, 0));
    }

    #[test]
    fn a_record_inside_a_body_is_not_taken_for_one() {
        // A client stores the bytes of a record that is right except for the life, which it cannot know.
        let binding = Binding::new(IDENTITY, 4);
        let forged = RecordHeader {
            life: LIFE + 1,
            length: 0,
            group: GroupId::FIRST,
            keep: Keep::State(0),
            restated: false,
            lsn: Lsn(3),
            durable: Lsn(2),
            last_state: Lsn(0),
            body_crc: 0,
        };
        let (mut file, offsets) = segment(&[b"one", &forged.encode(&binding), b"three"]);
        file[offsets[1] + 10] ^= 1;
        let scan = scan(4, "x".into(), &file, IDENTITY, None);
        assert_eq!(lsns(&scan), [1, 3]);
        assert!(scan.records.iter().all(|record| record.header.life == LIFE));
    }

    #[test]
    fn a_record_of_another_life_of_the_same_segment_is_not_taken_for_one() {
        let (mut file, offsets) = segment(&[b"one", b"two"]);
        let binding = Binding::new(IDENTITY, 4);
        let mut header = RecordHeader::decode(&file[offsets[1]..], &binding).unwrap();
        header.life += 1;
        file[offsets[1]..offsets[1] + RECORD_HEADER_BYTES].copy_from_slice(&header.encode(&binding));
        assert_eq!(lsns(&scan(4, "x".into(), &file, IDENTITY, None)), [1]);
    }

    /// A header of a record as a client can write it: it knows everything but the mark.
    fn forged(lsn: u64) -> [u8; RECORD_HEADER_BYTES] {
        let header = RecordHeader {
            life: LIFE + 1,
            length: 0,
            group: GroupId::FIRST,
            keep: Keep::Slot(Slot(lsn)),
            restated: false,
            lsn: Lsn(lsn),
            durable: Lsn(lsn - 1),
            last_state: Lsn::ZERO,
            body_crc: 0,
        };
        header.encode(&Binding::new(IDENTITY, 4))
    }

    /// The file was used before, or a power failure has taken the header and the first record.
    #[test]
    fn a_forged_record_in_a_segment_without_a_header_is_not_taken_for_one() {
        for listed in [None, Some(LIFE)] {
            let (mut file, offsets) = segment(&[b"one", &forged(9), &forged(10)]);
            file[..offsets[2]].fill(0);
            for page in [0, 0x55] {
                file[..PAGE].fill(page);
                let found = scan(4, "x".into(), &file, IDENTITY, listed);
                // The third record is a real one, for a reader that knows its mark.
                let expected: &[u64] = if listed.is_some() { &[3] } else { &[] };
                assert_eq!(lsns(&found), expected);
            }
            file[offsets[2]..offsets[2] + RECORD_HEADER_BYTES].fill(0);
            assert!(!scan(4, "x".into(), &file, IDENTITY, listed).is_begun());
        }
    }

    #[test]
    fn the_listed_mark_finds_what_is_left_when_the_header_is_gone() {
        let (mut file, offsets) = segment(&[b"one", b"two", b"three"]);
        file[..offsets[1]].fill(0);
        assert_eq!(lsns(&scan(4, "x".into(), &file, IDENTITY, Some(LIFE))), [2, 3]);
        assert_eq!(lsns(&scan(4, "x".into(), &file, IDENTITY, None)), []);
    }

    #[test]
    fn nothing_after_the_place_where_the_log_was_closed_counts() {
        let (file, offsets) = segment(&[b"one", b"two", b"three"]);
        let mut found = scan(4, "x".into(), &file, IDENTITY, None);
        let end = found.end;
        found.end_at(Lsn(3));
        assert_eq!((lsns(&found), found.trace_end), (vec![1, 2, 3], None));
        found.end_at(Lsn(1));
        assert_eq!(lsns(&found), [1]);
        assert_eq!((found.end as usize, found.trace_end), (offsets[1], Some(end)));
    }

    #[test]
    fn records_of_a_previous_life_are_nothing() {
        let (mut file, _) = segment(&[b"one", b"two"]);
        let header =
            SegmentHeader { identity: IDENTITY, segment: 9, first_lsn: Lsn(8), life: 3, restated: 0 };
        file[..PAGE].copy_from_slice(&header.encode());
        let begun = scan(9, "x".into(), &file, IDENTITY, None);
        assert!(begun.is_begun() && begun.records.is_empty() && begun.flaws.is_empty());
        assert_eq!((begun.end, begun.trace_end), (PAGE as u64, None));
        file[..PAGE].fill(0);
        assert!(!scan(9, "x".into(), &file, IDENTITY, None).is_begun());
    }

    #[test]
    fn what_is_left_of_a_torn_record_is_seen() {
        let (mut file, offsets) = segment(&[b"one", &[7; 300]]);
        file[offsets[1] + 30..].fill(0);
        let scan = scan(4, "x".into(), &file, IDENTITY, None);
        assert_eq!(lsns(&scan), [1]);
        assert_eq!(scan.end as usize, offsets[1]);
        assert_eq!(scan.trace_end, Some((offsets[1] + RECORD_HEADER_BYTES) as u64));
    }
}
