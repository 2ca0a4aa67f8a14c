//! Opening a log: read everything, judge it, cut a torn tail, go on.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use synod_wire::{Lsn, Slot};

use super::{
    Body, FullSegment, LogFiles, LogState, Options, Recovered, RecoveredRecord, Wal, WalStats,
    assess::{Assessment, End, assess},
    format::{NoHeader, PAGE, VERSION, segment_name, segment_number},
    prepare::{Pace, Prepared, Preparer, Workshop},
    scan::{Flaw, SegmentScan, scan},
    state::{Previous, boot_id},
    writer::Active,
};
use crate::{
    Durability, Identity, Keep, Loss, StorageError,
    disk::{Disk, create_dir, file_names, remove_file, sync_dir, write_all_at, write_zeros},
    lock::DirLock,
};

/// The first segment of a new log is at most this large: writing it through is waited for.
const FIRST_SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// A segment as it was read.
#[derive(Debug)]
pub(crate) struct ReadSegment {
    pub scan: SegmentScan,
    /// The file up to the last record.
    pub bytes: Bytes,
}

impl Wal {
    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        identity: Identity,
        options: Options,
    ) -> Result<(Wal, Recovered), StorageError> {
        options.check()?;
        create_dir(&*disk, dir)?;
        let lock = DirLock::take(dir)?;
        let previous = read_state(dir, identity)?;
        tidy(&*disk, dir, &previous)?;

        let mut segments = read_segments(dir, identity)?;
        let unused = split_off_unused(&mut segments);
        let closed_at = match &previous {
            Previous::Read(state) => state.closed_at,
            _ => None,
        };
        let (scans, files): (Vec<_>, Vec<_>) = segments.into_iter().map(|s| (s.scan, s.bytes)).unzip();
        let verdict = assess(&scans, closed_at);
        let records = recovered_records(&scans, &files, verdict.last);

        let loss = loss(&previous, identity, !scans.is_empty());
        let mut state = LogState { loss: loss.clone(), ..LogState::opened(identity, options.durability) };
        if let Previous::Read(previous) = &previous {
            state.begins = previous.begins;
        }
        let mut wal = Wal {
            dir: dir.to_owned(),
            identity,
            options,
            disk,
            state,
            pending: Vec::new(),
            pending_bytes: 0,
            appended: verdict.last,
            durable: verdict.last,
            states: latest_states(&records),
            last_state: Lsn::ZERO,
            files: None,
            damage: verdict.damage.clone(),
            failure: None,
            stats: WalStats::default(),
            _lock: lock,
        };
        wal.last_state = wal.states.values().map(|(lsn, _)| *lsn).max().unwrap_or(Lsn::ZERO);
        let mut recovered = Recovered {
            records,
            last: verdict.last,
            damage: verdict.damage.clone(),
            loss,
            torn_bytes_cut: 0,
        };
        if let Some(loss) = &recovered.loss {
            tracing::warn!(dir = %dir.display(), %loss, "this replica may have forgotten what it promised");
        }
        if let Some(damage) = &recovered.damage {
            tracing::error!(dir = %dir.display(), %damage, "the log is damaged; nothing was changed");
            // Numbers that any intact header bears are used up.
            let used = scans.iter().flat_map(|s| &s.records).map(|r| r.header.lsn).max();
            recovered.last = verdict.last.max(used.unwrap_or(Lsn::ZERO));
            wal.appended = recovered.last;
            wal.durable = recovered.last;
            return Ok((wal, recovered));
        }
        if wal.options.durability == Durability::Memory {
            wal.state.write(&*wal.disk, dir)?;
        } else {
            wal.go_on(&scans, &verdict, unused)?;
            recovered.torn_bytes_cut = verdict.torn_bytes;
        }
        Ok((wal, recovered))
    }

    /// Makes the files ready to be written, behind the last record that counts.
    fn go_on(
        &mut self,
        scans: &[SegmentScan],
        verdict: &Assessment,
        unused: Vec<ReadSegment>,
    ) -> Result<(), StorageError> {
        let Some(end) = verdict.end else {
            assert!(scans.is_empty(), "a log with segments has an end, or is damaged");
            for segment in unused {
                remove_file(&segment.scan.path)?;
            }
            // Before the first segment, so that segments without this file mean that it was lost.
            self.state.write(&*self.disk, &self.dir)?;
            self.files = Some(self.first_files(self.state.begins.max(1), verdict.last.next())?);
            return Ok(());
        };
        if verdict.torn_bytes > 0 {
            let bytes = verdict.torn_bytes;
            tracing::warn!(dir = %self.dir.display(), bytes, last = %verdict.last, "cut a half-written end off the log");
        }
        // The newest first: a hole in the row of segments would pass for corruption.
        for torn in scans[end.segment + 1..].iter().rev() {
            remove_file(&torn.path)?;
            sync_dir(&*self.disk, &self.dir)?;
        }
        let active = self.resume(&scans[end.segment], end, verdict.proven)?;
        let full: VecDeque<_> = scans[..end.segment].iter().map(full_segment).collect();
        self.sync_segments(&full)?;

        let ready = self.adopt(unused, active.segment + 1)?;
        let preparer = self.start_preparer(active.segment + 1, ready)?;
        self.files = Some(LogFiles { active, full, preparer });
        // After everything is durable, so that a crash before that is still a crash of the previous life.
        self.state.write(&*self.disk, &self.dir)
    }

    /// The files of a log that begins with segment `segment` and record `first_lsn`.
    pub(super) fn first_files(&self, segment: u64, first_lsn: Lsn) -> Result<LogFiles, StorageError> {
        let workshop = self.workshop();
        let bytes = self.options.segment_bytes.min(FIRST_SEGMENT_BYTES_MAX);
        let prepared = workshop.make(segment, bytes, || Pace::Steady)?.expect("it was not told to give up");
        let mut active = Active::begin(prepared, self.identity, first_lsn, 0);
        active.flush(&*self.disk, true)?;
        let preparer = self.start_preparer(segment + 1, None)?;
        Ok(LogFiles { active, full: VecDeque::new(), preparer })
    }

    fn workshop(&self) -> Workshop {
        Workshop {
            disk: Arc::clone(&self.disk),
            dir: self.dir.clone(),
            segment_bytes: self.options.segment_bytes,
            spares_max: self.options.recycled_segments_max,
        }
    }

    fn start_preparer(&self, next: u64, ready: Option<Prepared>) -> Result<Preparer, StorageError> {
        let mut spares = Vec::new();
        for name in file_names(&self.dir)?.into_iter().filter(|name| name.ends_with(".spare")) {
            let path = self.dir.join(name);
            let fits = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == self.options.segment_bytes);
            if fits && spares.len() < self.options.recycled_segments_max {
                spares.push(path);
            } else {
                remove_file(&path)?;
            }
        }
        Preparer::start(self.workshop(), next, ready, spares)
    }

    /// Opens the segment that is gone on with, and makes what is in it durable and what is behind it harmless.
    fn resume(&self, scan: &SegmentScan, end: End, proven: Lsn) -> Result<Active, StorageError> {
        let (disk, path) = (&*self.disk, &scan.path);
        let file = open_to_write(path)?;
        if scan.header_rebuilt {
            tracing::warn!(segment = scan.segment, "the segment's header was damaged and is written again");
            let header = scan.header.as_ref().expect("it was rebuilt");
            write_all_at(disk, &file, path, &mut [std::io::IoSlice::new(&header.encode())], 0)?;
        }
        // A failed fsync may have left records in the kernel's memory that are marked as written and are not.
        // Records that nothing proves durable are therefore written once more before anybody relies on them.
        let unproven = scan
            .records
            .iter()
            .filter(|r| !r.header.restated && r.header.lsn > proven && r.offset < end.offset);
        if let Some(first) = unproven.map(|record| record.offset).min() {
            let first_of_segment = scan.head_end() == first;
            // The padding of the last record may be missing.
            let to = end.offset.min(scan.file_bytes);
            rewrite(disk, &file, path, if first_of_segment { 0 } else { first }, to)?;
        }
        // What is torn must not come back when shorter records are written over a part of it.
        let torn_end = scan.trace_end.unwrap_or(0).max(scan.end);
        if torn_end > end.offset {
            write_zeros(disk, &file, path, end.offset, torn_end - end.offset, || true)?;
        }
        disk.sync_data(&file).map_err(|error| StorageError::io("make durable", path, error))?;

        let life = scan.life.expect("a segment that goes on was begun");
        let prepared = Prepared { segment: scan.segment, path: path.clone(), file, bytes: scan.file_bytes };
        let mut active = Active::resume(prepared, self.identity, life, end.offset);
        active.slot_max = slot_max(scan, end.offset);
        active.has_records = scan.records.iter().any(|r| !r.header.restated && r.offset < end.offset);
        Ok(active)
    }

    /// A segment that was prepared and not begun is the next one, if it is fit for it; others are removed.
    fn adopt(&self, unused: Vec<ReadSegment>, next: u64) -> Result<Option<Prepared>, StorageError> {
        let mut ready = None;
        for ReadSegment { scan, .. } in unused {
            let fits = scan.segment == next
                && scan.header == Err(NoHeader::Blank)
                && scan.file_bytes == self.options.segment_bytes;
            if fits {
                let file = open_to_write(&scan.path)?;
                ready = Some(Prepared { segment: next, path: scan.path, file, bytes: scan.file_bytes });
            } else {
                remove_file(&scan.path)?;
            }
        }
        Ok(ready)
    }

    /// Makes all segments durable, whatever the durability of the life that wrote them.
    fn sync_segments(&self, full: &VecDeque<FullSegment>) -> Result<(), StorageError> {
        for segment in full {
            let path = self.dir.join(segment_name(segment.segment));
            let file = open_to_write(&path)?;
            self.disk.sync_data(&file).map_err(|error| StorageError::io("make durable", &path, error))?;
        }
        Ok(())
    }

    /// Makes everything that was written durable.
    pub(super) fn sync_everything(&self) -> Result<(), StorageError> {
        let Some(files) = &self.files else { return Ok(()) };
        self.sync_segments(&files.full)?;
        let synced = self.disk.sync_data(&files.active.file);
        synced.map_err(|error| StorageError::io("make durable", &files.active.path, error))
    }
}

fn full_segment(scan: &SegmentScan) -> FullSegment {
    FullSegment { segment: scan.segment, bytes: scan.end, slot_max: slot_max(scan, scan.end) }
}

/// The highest slot of the records before `end`.
fn slot_max(scan: &SegmentScan, end: u64) -> Slot {
    let slot = |keep| if let Keep::Slot(slot) = keep { slot } else { Slot::ZERO };
    let before = scan.records.iter().filter(|record| record.offset < end);
    before.map(|record| slot(record.header.keep)).max().unwrap_or(Slot::ZERO)
}

fn open_to_write(path: &Path) -> Result<File, StorageError> {
    File::options().read(true).write(true).open(path).map_err(|error| StorageError::io("open", path, error))
}

/// Writes what is there to where it is.
fn rewrite(disk: &dyn Disk, file: &File, path: &Path, from: u64, to: u64) -> Result<(), StorageError> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; (to - from) as usize];
    file.read_exact_at(&mut bytes, from).map_err(|error| StorageError::io("read", path, error))?;
    write_all_at(disk, file, path, &mut [std::io::IoSlice::new(&bytes)], from)
}

/// Reads `log.state` and refuses that of somebody else.
fn read_state(dir: &Path, identity: Identity) -> Result<Previous, StorageError> {
    let previous = LogState::read(dir)?;
    if let Previous::Read(state) = &previous
        && !state.identity.is_same_replica(&identity)
    {
        return Err(other_identity(&dir.join(super::state::FILE_NAME), state.identity, identity));
    }
    Ok(previous)
}

fn other_identity(path: &Path, found: Identity, expected: Identity) -> StorageError {
    let (found, expected) = (found.to_string(), expected.to_string());
    StorageError::OtherIdentity { path: path.to_owned(), found, expected }
}

/// Finishes what a crash interrupted: temporary files, a fresh beginning that was not finished, and damaged
/// segments that were not renamed yet.
fn tidy(disk: &dyn Disk, dir: &Path, previous: &Previous) -> Result<(), StorageError> {
    let (begins, unfinished) = match previous {
        Previous::Read(state) => (state.begins, state.unfinished.unwrap_or(u64::MAX)),
        _ => (0, u64::MAX),
    };
    let mut renamed = false;
    for name in file_names(dir)? {
        let path = dir.join(&name);
        if name.ends_with(".tmp") {
            remove_file(&path)?;
        }
        let Some(segment) = segment_number(&name) else { continue };
        if segment >= unfinished {
            remove_file(&path)?;
        } else if segment < begins {
            set_aside(disk, &path)?;
            renamed = true;
        }
    }
    if renamed { sync_dir(disk, dir) } else { Ok(()) }
}

/// Renames a damaged file, so that it is not read any more and can still be looked at.
pub(crate) fn set_aside(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let to = path.with_extension("wal.damaged");
    tracing::warn!(file = %to.display(), "set a damaged log file aside");
    disk.rename(path, &to).map_err(|error| StorageError::io("rename", path, error))
}

/// Reads every segment of the directory, in order.
fn read_segments(dir: &Path, identity: Identity) -> Result<Vec<ReadSegment>, StorageError> {
    let names = file_names(dir)?;
    let numbers = names.iter().filter_map(|name| segment_number(name));
    numbers.map(|segment| read_segment(dir, segment, identity)).collect()
}

/// Reads one segment. Refuses that of another version or identity.
pub(crate) fn read_segment(
    dir: &Path,
    segment: u64,
    identity: Identity,
) -> Result<ReadSegment, StorageError> {
    let path: PathBuf = dir.join(segment_name(segment));
    let mut file = fs::read(&path).map_err(|error| StorageError::io("read", &path, error))?;
    let scan = scan(segment, path, &file, identity);
    match &scan.header {
        Err(NoHeader::Version(found)) => {
            return Err(StorageError::Version { path: scan.path, found: *found, supported: VERSION });
        }
        Ok(header) if !header.identity.is_same_replica(&identity) => {
            return Err(other_identity(&scan.path, header.identity, identity));
        }
        _ => {}
    }
    file.truncate(scan.end as usize);
    file.shrink_to_fit();
    Ok(ReadSegment { scan, bytes: file.into() })
}

/// Takes the segments off the end that were never begun. One between others is no such thing: it is damaged
/// beyond recognition.
pub(crate) fn split_off_unused(segments: &mut Vec<ReadSegment>) -> Vec<ReadSegment> {
    let used = segments.iter().rposition(|segment| segment.scan.is_begun()).map_or(0, |last| last + 1);
    let unused = segments.split_off(used);
    for segment in segments.iter_mut().filter(|segment| !segment.scan.is_begun()) {
        let reason = "nothing in this segment can be read".to_owned();
        segment.scan.flaws.push(Flaw { offset: 0, reason });
    }
    unused
}

/// The records up to `last`, each once, in the order of their numbers.
fn recovered_records(scans: &[SegmentScan], files: &[Bytes], last: Lsn) -> Vec<RecoveredRecord> {
    let mut records = BTreeMap::new();
    for (scan, file) in scans.iter().zip(files) {
        for record in scan.records.iter().filter(|record| record.body_ok && record.header.lsn <= last) {
            let (lsn, keep) = (record.header.lsn, record.header.keep);
            records.entry(lsn).or_insert_with(|| {
                let body = record.body(file);
                // A promise is small and lives long: it must not keep a whole segment in memory.
                let bytes = if matches!(keep, Keep::State(_)) { Bytes::copy_from_slice(&body) } else { body };
                RecoveredRecord { lsn, keep, bytes }
            });
        }
    }
    records.into_values().collect()
}

fn latest_states(records: &[RecoveredRecord]) -> BTreeMap<u8, (Lsn, Body)> {
    let mut states = BTreeMap::new();
    for record in records {
        if let Keep::State(key) = record.keep {
            states.insert(key, (record.lsn, Body::Read(record.bytes.clone())));
        }
    }
    states
}

/// What the identity may have forgotten, as far as the files can not show it.
fn loss(previous: &Previous, identity: Identity, has_segments: bool) -> Option<Loss> {
    match previous {
        Previous::Read(state) => state.loss_at_restart(&boot_id()),
        Previous::Unreadable(reason) => Some(Loss::StateUnreadable(reason.clone())),
        Previous::None if has_segments => {
            Some(Loss::StateUnreadable(format!("the file {} is missing", super::state::FILE_NAME)))
        }
        Previous::None if identity.incarnation.0 > 1 => Some(Loss::LogMissing),
        Previous::None => None,
    }
}

const _: () = assert!(FIRST_SEGMENT_BYTES_MAX > PAGE as u64);
