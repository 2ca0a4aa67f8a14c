//! Reads a log without opening it, for tools.
//!
//! Nothing is written or locked, so it works while a replica runs. `dir` may be a data directory or the log's own.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use bytes::Bytes;
use synod_wire::{GroupId, Incarnation, Lsn, Slot};

use crate::{
    Damage, Durability, Identity, Keep, Loss, StorageError,
    disk::{Disk, How, RealDisk, file_names, read_exact_at},
    lock::DirLock,
    wal::{
        assess::{Known, assess},
        format::{NoHeader, PAGE, SegmentHeader, segment_name, segment_number},
        list::{Entry as ListEntry, Listed},
        mark,
        open::{ReadSegment, loss, read_segment, split_off_unused, suspects},
        state::{LogState, Previous},
    },
};

/// Something found in a log, in the order of the files.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A segment's file begins.
    Segment {
        /// Its number.
        segment: u64,
        /// Its file.
        path: PathBuf,
        /// Bytes of the file.
        file_bytes: u64,
        /// Its header.
        header: Header,
    },
    /// A record, readable or not.
    Record {
        /// The segment that it is in.
        segment: u64,
        /// The offset in the file, in bytes.
        offset: u64,
        /// Its number.
        lsn: Lsn,
        /// The replica that it belongs to.
        group: GroupId,
        /// How long it matters.
        keep: Keep,
        /// Whether it repeats an earlier record, at the head of the segment.
        restated: bool,
        /// The last record that was durable when this one was written.
        durable: Lsn,
        /// Its contents; `None` if the checksum does not match.
        bytes: Option<Bytes>,
    },
    /// An unreadable place, with readable records after it.
    Unreadable {
        /// The segment that it is in.
        segment: u64,
        /// The offset in the file, in bytes.
        offset: u64,
        /// What was found there.
        reason: String,
    },
    /// An unreadable place with nothing readable after it: records that are half-written, or are being written now.
    Torn {
        /// The segment that it is in.
        segment: u64,
        /// The offset in the file, in bytes.
        offset: u64,
        /// How many bytes have traces of such records.
        bytes: u64,
    },
}

/// The header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// The segment was prepared and has not begun.
    Blank,
    /// The header cannot be read.
    Damaged,
    /// The header can be read.
    Intact {
        /// The first record that is not a restated one.
        first_lsn: Lsn,
        /// The life of the replica that began the segment.
        incarnation: Incarnation,
        /// Records repeated at its head.
        restated: u32,
    },
}

/// The state of a whole log.
#[derive(Clone, Debug)]
pub struct Report {
    /// The owner of the log.
    pub identity: Identity,
    /// Whether a replica has it open. Then its end may be in the middle of a write.
    pub running: bool,
    /// The durability of the last life, if it is known.
    pub durability: Option<Durability>,
    /// The last record, if the log was closed.
    pub closed_at: Option<Lsn>,
    /// The loss that the next start will report; if a replica is running, the loss that its start reported.
    pub loss: Option<Loss>,
    /// Segments with records.
    pub segments: usize,
    /// Bytes of these segments up to their last record.
    pub bytes: u64,
    /// Readable records, repeated ones not included.
    pub records: u64,
    /// The first of them; [`Lsn::ZERO`] if there is none.
    pub first: Lsn,
    /// The last of them.
    pub last: Lsn,
    /// The lowest and highest slot in those of each group that has some.
    pub slots: BTreeMap<GroupId, (Slot, Slot)>,
    /// Recognisable bytes after the last record. A restart cuts them off; they were never durable.
    pub torn_bytes: u64,
    /// Records that were durable and cannot be read.
    pub damage: Option<Damage>,
    /// Damaged files that were set aside.
    pub set_aside: Vec<PathBuf>,
}

/// Calls `show` for everything in a log, in order.
///
/// # Errors
/// There is no log, it is of another version, or a file cannot be read.
pub fn dump(dir: &Path, mut show: impl FnMut(Entry)) -> Result<(), StorageError> {
    let (dir, identity, previous) = locate(dir)?;
    let listed = Listed::read(&RealDisk, &dir)?.within(previous.segments());
    for segment in segments(&dir)? {
        // A running replica may have trimmed the segment by now.
        let Some(read) = read_unless_gone(&dir, segment, identity, listed.get(&segment))? else { continue };
        dump_segment(read, &mut show);
    }
    Ok(())
}

fn dump_segment(ReadSegment { scan, bytes }: ReadSegment, show: &mut impl FnMut(Entry)) {
    let segment = scan.segment;
    let header = match &scan.header {
        Ok(header) if !scan.header_rebuilt => Header::Intact {
            first_lsn: header.first_lsn,
            incarnation: header.identity.incarnation,
            restated: header.restated,
        },
        Err(NoHeader::Blank) => Header::Blank,
        _ => Header::Damaged,
    };
    show(Entry::Segment { segment, path: scan.path.clone(), file_bytes: scan.file_bytes, header });
    let mut flaws = scan.flaws.iter().peekable();
    let mut flaws_until = |offset: u64, show: &mut dyn FnMut(Entry)| {
        while let Some(flaw) = flaws.next_if(|flaw| flaw.offset <= offset) {
            show(Entry::Unreadable { segment, offset: flaw.offset, reason: flaw.reason.clone() });
        }
    };
    for record in &scan.records {
        flaws_until(record.offset, show);
        show(Entry::Record {
            segment,
            offset: record.offset,
            lsn: record.header.lsn,
            group: record.header.group,
            keep: record.header.keep,
            restated: record.header.restated,
            durable: record.header.durable,
            bytes: record.body_ok.then(|| record.body(&bytes)),
        });
    }
    flaws_until(u64::MAX, show);
    if let Some(end) = scan.trace_end {
        show(Entry::Torn { segment, offset: scan.end, bytes: end - scan.end });
    }
}

/// Reads a whole log and judges it as a start of the replica would.
///
/// # Errors
/// There is no log, it is of another version, or a file cannot be read. Damage is no error.
pub fn verify(dir: &Path) -> Result<Report, StorageError> {
    let (dir, identity, previous) = locate(dir)?;
    for _ in 0..5 {
        let report = verify_once(&dir, identity, &previous)?;
        if report.damage.is_none() || !report.running {
            return Ok(report);
        }
        // If a replica writes meanwhile, a record can seem to be missing before a later one.
        thread::sleep(Duration::from_millis(100));
    }
    verify_once(&dir, identity, &previous)
}

fn verify_once(dir: &Path, identity: Identity, previous: &Previous) -> Result<Report, StorageError> {
    let running = DirLock::is_taken(dir);
    // A running replica writes the mark after its records, and takes a segment off the list before removing
    // it. So records that were marked before the segments are read are in them, and a segment that is on the
    // list before and after exists.
    let marked = mark::read(&RealDisk, dir, identity);
    let found = Listed::read(&RealDisk, dir)?;
    let mut listed = found.within(previous.segments());
    let mut read = read_newest_first(dir, identity, previous.segments(), &listed)?;
    let marked = if previous.is_set_aside(&found, read.is_empty()) { Lsn::ZERO } else { marked };
    let closed_at = previous.closed_at().filter(|_| !running);
    if let Some(last) = closed_at {
        read.iter_mut().for_each(|segment| segment.scan.end_at(last));
    }
    let still_listed = Listed::read(&RealDisk, dir)?.within(previous.segments());
    listed.retain(|segment, _| still_listed.contains_key(segment));
    let suspects = suspects(&listed, &read);
    split_off_unused(&mut read);
    let scans: Vec<_> = read.into_iter().map(|segment| segment.scan).collect();
    let state = match previous {
        Previous::Read(state) => Some(state),
        _ => None,
    };
    let unsynced = !running && previous.lost_unsynced(&RealDisk.boot());
    let known = Known { marked: Some(marked), closed_at, unsynced, suspects: &suspects };
    let verdict = assess(&scans, &known);

    let counts = || {
        let records = scans.iter().flat_map(|scan| &scan.records);
        records.filter(|r| r.body_ok && !r.header.restated && r.header.lsn <= verdict.last).map(|r| &r.header)
    };
    let mut slots = BTreeMap::new();
    for record in counts() {
        if let Keep::Slot(slot) = record.keep {
            let (lowest, highest) = slots.entry(record.group).or_insert((slot, slot));
            (*lowest, *highest) = (slot.min(*lowest), slot.max(*highest));
        }
    }
    let set_aside = file_names(&RealDisk, dir)?.into_iter().filter(|name| name.ends_with(".damaged"));
    Ok(Report {
        identity,
        running,
        durability: state.map(|state| state.durability),
        closed_at,
        loss: match state {
            Some(state) if running => state.loss.clone(),
            _ => loss(&RealDisk, previous, &found, identity, !scans.is_empty()),
        },
        segments: scans.len(),
        bytes: scans.iter().map(|scan| scan.end).sum(),
        records: counts().count() as u64,
        first: counts().map(|record| record.lsn).min().unwrap_or(Lsn::ZERO),
        last: counts().map(|record| record.lsn).max().unwrap_or(Lsn::ZERO),
        slots,
        torn_bytes: verdict.torn_bytes,
        damage: verdict.damage,
        set_aside: set_aside.map(|name| dir.join(name)).collect(),
    })
}

/// Reads the segments whose numbers are in `range`, without their records' bodies, and returns them in order.
fn read_newest_first(
    dir: &Path,
    identity: Identity,
    range: Range<u64>,
    marks: &BTreeMap<u64, ListEntry>,
) -> Result<Vec<ReadSegment>, StorageError> {
    loop {
        let listed: Vec<_> = segments(dir)?.into_iter().filter(|segment| range.contains(segment)).collect();
        let mut read = Vec::new();
        let mut all_there = true;
        // Segments before one that has begun do not change any more, but may be trimmed.
        for &segment in listed.iter().rev() {
            match read_unless_gone(dir, segment, identity, marks.get(&segment))? {
                // Only the scan is needed, so one segment at a time is in memory.
                Some(segment) => read.push(ReadSegment { bytes: Bytes::new(), ..segment }),
                None => {
                    all_there = false;
                    break;
                }
            }
        }
        read.reverse();
        // If not even the segment in use still exists, the list was out of date. That takes a replica that
        // has written whole segments meanwhile, so it does not repeat forever.
        if all_there || read.iter().any(|segment| segment.scan.is_begun()) {
            return Ok(read);
        }
    }
}

/// The log's own directory, its owner, and the contents of its state file.
fn locate(dir: &Path) -> Result<(PathBuf, Identity, Previous), StorageError> {
    let below = dir.join("wal");
    let dir = if below.is_dir() { below } else { dir.to_owned() };
    let previous = LogState::read(&RealDisk, &dir)?;
    if let Previous::Read(state) = &previous {
        return Ok((dir, state.identity, previous));
    }
    for segment in segments(&dir)? {
        let path = dir.join(segment_name(segment));
        let mut page = [0; PAGE];
        let read = RealDisk.open(&path, How::Read).and_then(|file| read_exact_at(&*file, &mut page, 0));
        if read.is_ok()
            && let Ok(header) = SegmentHeader::decode(&page)
        {
            return Ok((dir, header.identity, previous));
        }
    }
    Err(StorageError::NoLog { dir })
}

fn segments(dir: &Path) -> Result<Vec<u64>, StorageError> {
    Ok(file_names(&RealDisk, dir)?.iter().filter_map(|name| segment_number(name)).collect())
}

/// Reads a segment; `None` if the file is no longer in the log.
fn read_unless_gone(
    dir: &Path,
    segment: u64,
    identity: Identity,
    listed: Option<&ListEntry>,
) -> Result<Option<ReadSegment>, StorageError> {
    match read_segment(&RealDisk, dir, segment, identity, listed) {
        Err(error) if error.is_not_found() => Ok(None),
        // The segment was trimmed while it was read, and perhaps overwritten.
        Ok(read) if !read.scan.path.exists() => Ok(None),
        other => other.map(Some),
    }
}
