//! Opening a log: read everything, judge it, cut a torn tail, go on.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use synod_wire::{GroupId, Lsn, Slot};

use super::{
    Body, FullSegment, LogFiles, LogState, Options, Recovered, RecoveredRecord, Wal, WalStats,
    assess::{Assessment, End, Known, Suspect, assess},
    format::{FORMAT, NoHeader, PAGE, RecordHeader, segment_name, segment_number},
    list::{Entry, Listed, SegmentList},
    mark::{self, Mark},
    prepare::{Pace, Prepared, Preparer, Workshop},
    scan::{Flaw, SegmentScan, scan},
    state::Previous,
    writer::Active,
};
use crate::{
    Damage, Durability, Identity, Keep, Loss, StorageError,
    disk::{
        Disk, DiskFile, How, create_dir, file_names, open, read_exact_at, read_what_can_be_read, remove_file,
        sync_dir, sync_file, write_all_at, write_zeros,
    },
    lock::DirLock,
};

/// The first segment of a new log has at most this size, since the start waits until it is written through.
const FIRST_SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// A segment as it was read.
#[derive(Debug)]
pub(crate) struct ReadSegment {
    pub scan: SegmentScan,
    /// The file up to the last record.
    pub bytes: Bytes,
}

impl Wal {
    /// Does what [`Wal::open`] does, on another disk than the one of this machine.
    ///
    /// # Errors
    /// The same as for [`Wal::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        identity: Identity,
        options: Options,
    ) -> Result<(Wal, Recovered), StorageError> {
        options.check()?;
        create_dir(&*disk, dir)?;
        let lock = DirLock::take(&*disk, dir)?;
        let previous = read_state(&*disk, dir, identity)?;
        let found = Listed::read(&*disk, dir)?;
        let listed = found.within(previous.segments());
        tidy(&*disk, dir, &previous, &listed)?;

        let mut segments = read_segments(&*disk, dir, identity, &listed)?;
        if let Some(last) = previous.closed_at() {
            segments.iter_mut().for_each(|segment| segment.scan.end_at(last));
        }
        let suspects = suspects(&listed, &segments);
        if previous.is_set_aside(&found, segments.is_empty()) {
            mark::forget(&*disk, dir)?;
        }
        let unused = split_off_unused(&mut segments);
        let (scans, files): (Vec<_>, Vec<_>) = segments.into_iter().map(|s| (s.scan, s.bytes)).unzip();
        let known = Known {
            marked: Some(mark::read(&*disk, dir, identity)),
            closed_at: previous.closed_at(),
            unsynced: previous.lost_unsynced(&disk.boot()),
            suspects: &suspects,
        };
        let verdict = assess(&scans, &known);
        let nothing_left = verdict.end.is_none() && verdict.damage.is_none();
        let records = if nothing_left { Vec::new() } else { recovered_records(&scans, &files, verdict.last) };

        let loss = loss(&*disk, &previous, &found, identity, !scans.is_empty());
        let opened = LogState::opened(identity, options.durability, disk.boot());
        let state = state_after(&previous, LogState { loss: loss.clone(), ..opened });
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
            synced: verdict.last,
            listed,
            states: latest_states(&records),
            trimmed: BTreeMap::new(),
            last_state: Lsn::ZERO,
            files: None,
            damage: None,
            failure: None,
            stats: WalStats::default(),
            _lock: lock,
        };
        wal.last_state = wal.states.values().map(|(lsn, _)| *lsn).max().unwrap_or(Lsn::ZERO);
        let (last, damage) = (verdict.last, verdict.damage.clone());
        let mut recovered = Recovered { records, last, damage, loss, torn_bytes_cut: 0 };
        if let Some(loss) = &recovered.loss {
            tracing::warn!(dir = %dir.display(), %loss, "this replica may have forgotten what it promised");
        }
        if let Some(damage) = recovered.damage.clone() {
            // Numbers that any intact header bears cannot be used again.
            let used = scans.iter().flat_map(|s| &s.records).map(|r| r.header.lsn).max();
            recovered.last = verdict.last.max(used.unwrap_or(Lsn::ZERO));
            wal.leave_as_it_is(damage, previous, recovered.last);
            return Ok((wal, recovered));
        }
        if !wal.options.durability.may_restart() && previous.is_unborn() {
            // Nothing of an earlier life is here, and the first commit notes that this life has begun.
        } else if !wal.options.durability.writes() {
            wal.go_on_without_writes(&found)?;
        } else {
            wal.go_on(&scans, &verdict, unused)?;
            recovered.torn_bytes_cut = verdict.torn_bytes;
        }
        Ok((wal, recovered))
    }

    /// Writes that this life has begun. Nothing else of it will be written.
    fn go_on_without_writes(&mut self, found: &Listed) -> Result<(), StorageError> {
        if matches!(found, Listed::Read(_)) {
            // The list has neither what was set aside nor what an unfinished attempt has listed: below
            // this no note of them is kept.
            self.list(self.listed.clone()).write()?;
        }
        self.state.write(&*self.disk, &self.dir)
    }

    /// Notes that the log is damaged. It changes nothing on disk; records that are written once it is set aside come
    /// after `last`.
    fn leave_as_it_is(&mut self, damage: Damage, previous: Previous, last: Lsn) {
        tracing::error!(dir = %self.dir.display(), %damage, "the log is damaged; nothing was changed");
        (self.appended, self.durable, self.synced) = (last, last, last);
        let found = match previous {
            Previous::Read(found) => found,
            _ => LogState::opened(self.identity, Durability::Sync, self.disk.boot()),
        };
        self.damage = Some((damage, found));
    }

    /// Prepares the files for writing after the last record that counts.
    fn go_on(
        &mut self,
        scans: &[SegmentScan],
        verdict: &Assessment,
        unused: Vec<ReadSegment>,
    ) -> Result<(), StorageError> {
        // The state is written when everything with which the log goes on is.
        self.state.unsynced = None;
        let Some(end) = verdict.end else {
            self.list([]).write()?;
            // The newest come first, as below.
            for path in
                scans.iter().chain(unused.iter().map(|segment| &segment.scan)).map(|scan| &scan.path).rev()
            {
                remove_file(&*self.disk, path)?;
                sync_dir(&*self.disk, &self.dir)?;
            }
            let first = |wal: &Wal| {
                wal.first_files(wal.state.begins.max(1), verdict.last.next(), BTreeMap::new()).map(Some)
            };
            if verdict.last == Lsn::ZERO {
                // This is written before the first segment, so that segments without this file mean that it was lost.
                self.state.write(&*self.disk, &self.dir)?;
                self.files = first(self)?;
            } else {
                // Once the list is written, records that were marked as durable and are not there are damage.
                self.files = first(self)?;
                self.state.write(&*self.disk, &self.dir)?;
            }
            return Ok(());
        };
        if verdict.torn_bytes > 0 {
            let bytes = verdict.torn_bytes;
            tracing::warn!(dir = %self.dir.display(), bytes, last = %verdict.last, "cut a half-written end off the log");
        }
        // What is removed leaves the list first, or it would be missed.
        let next = scans[end.segment].segment + 1;
        let (ready, unfit): (Vec<_>, Vec<_>) =
            unused.into_iter().partition(|segment| self.fits(&segment.scan, next));
        // What a file has grown since it was listed may not be durable yet. The next file was made durable
        // before it got its name. It gets another mark: it may have been begun, of which a power failure has
        // left next to nothing.
        let begun = scans[..=end.segment].iter().map(|scan| {
            let listed = self.listed.get(&scan.segment).map_or(PAGE as u64, |entry| entry.bytes);
            let life = scan.life.expect("a segment that counts has records or a header");
            (scan.segment, Entry { bytes: scan.file_bytes.min(listed), life })
        });
        let ready = ready.into_iter().next().map(|segment| (segment.scan, self.disk.secret()));
        let next_one =
            ready.iter().map(|(scan, life)| (scan.segment, Entry { bytes: scan.file_bytes, life: *life }));
        let list = self.list(begun.chain(next_one));
        list.write()?;
        for segment in unfit {
            remove_file(&*self.disk, &segment.scan.path)?;
        }
        // The newest come first: a hole in the row of segments would pass for corruption.
        for torn in scans[end.segment + 1..].iter().rev() {
            remove_file(&*self.disk, &torn.path)?;
            sync_dir(&*self.disk, &self.dir)?;
        }
        let active = self.resume(&scans[end.segment], end, verdict.proven)?;
        let full: VecDeque<_> = scans[..end.segment].iter().map(full_segment).collect();
        self.sync_segments(&full)?;

        let ready = ready.map(|(scan, life)| self.adopt(scan, life)).transpose()?;
        let preparer = self.start_preparer(self.workshop(list), next, ready)?;
        // By now all of it is durable, and what is written next removes the note of a clean close.
        let mut mark = Mark::open(&*self.disk, &self.dir, self.identity)?;
        mark.write(verdict.last)?;
        self.files = Some(LogFiles { active, full, preparer, mark });
        // This comes after everything is durable, so that a crash before that is still a crash of the previous life.
        self.state.write(&*self.disk, &self.dir)
    }

    /// The files of a log that begins with segment `segment` and record `first_lsn`. `listed` has segments
    /// that are set aside only when the new log holds what has to be kept of them.
    pub(super) fn first_files(
        &self,
        segment: u64,
        first_lsn: Lsn,
        listed: BTreeMap<u64, Entry>,
    ) -> Result<LogFiles, StorageError> {
        let mut workshop = self.workshop(self.list(listed));
        let bytes = self.options.segment_bytes.min(FIRST_SEGMENT_BYTES_MAX);
        let prepared = workshop.make(segment, bytes, || Pace::Steady)?.expect("it was not told to give up");
        let mut active = Active::begin(prepared, self.identity, first_lsn, 0);
        active.flush(true)?;
        let preparer = self.start_preparer(workshop, segment + 1, None)?;
        let mark = Mark::open(&*self.disk, &self.dir, self.identity)?;
        Ok(LogFiles { active, full: VecDeque::new(), preparer, mark })
    }

    fn list(&self, segments: impl IntoIterator<Item = (u64, Entry)>) -> SegmentList {
        SegmentList::new(Arc::clone(&self.disk), &self.dir, self.identity, segments.into_iter().collect())
    }

    fn workshop(&self, list: SegmentList) -> Workshop {
        Workshop {
            disk: Arc::clone(&self.disk),
            dir: self.dir.clone(),
            segment_bytes: self.options.segment_bytes,
            spares_max: self.options.recycled_segments_max,
            list,
        }
    }

    fn start_preparer(
        &self,
        workshop: Workshop,
        next: u64,
        ready: Option<Prepared>,
    ) -> Result<Preparer, StorageError> {
        // A spare of an earlier life may be a segment of this log at the same time, if a crash tore the
        // rename by which it became one.
        for name in file_names(&*self.disk, &self.dir)?.into_iter().filter(|name| name.ends_with(".spare")) {
            remove_file(&*self.disk, &self.dir.join(name))?;
        }
        Preparer::start(workshop, next, ready)
    }

    /// Opens the segment in which the log goes on, and makes what is in it durable and what is after it harmless.
    fn resume(&self, scan: &SegmentScan, end: End, proven: Lsn) -> Result<Active, StorageError> {
        let path = &scan.path;
        let file = open(&*self.disk, path, How::Write)?;
        if scan.header_rebuilt {
            tracing::warn!(segment = scan.segment, "the segment's header was damaged and is written again");
            let header = scan.header.as_ref().expect("it was rebuilt");
            write_all_at(&*file, path, &mut [std::io::IoSlice::new(&header.encode())], 0)?;
        }
        // A failed fsync may have left records in the kernel's memory that are marked as written and are not.
        // Records that nothing proves durable are therefore written once more before anything relies on them.
        // The head was written with the first record, and may be all that is left of that commit.
        let head_is_proven = scan.first_lsn().is_some_and(|first| first <= proven);
        let unproven = scan
            .records
            .iter()
            .filter(|r| !r.header.restated && r.header.lsn > proven && r.offset < end.offset);
        let from = if head_is_proven { unproven.map(|record| record.offset).min() } else { Some(0) };
        if let Some(from) = from {
            // The padding of the last record may be missing.
            rewrite(&*file, path, from, end.offset.min(scan.file_bytes))?;
        }
        // What is torn must not come back when shorter records are written over a part of it.
        let torn_end = scan.trace_end.unwrap_or(0).max(scan.end);
        if torn_end > end.offset {
            write_zeros(&*file, path, end.offset, torn_end - end.offset, || true)?;
        }
        sync_file(&*file, path)?;

        let life = scan.life.expect("a segment that goes on was begun");
        let bytes = scan.file_bytes;
        let prepared = Prepared { segment: scan.segment, path: path.clone(), file, bytes, life };
        let mut active = Active::resume(prepared, self.identity, end.offset);
        active.slot_max = slot_max(scan, end.offset);
        active.has_records = scan.records.iter().any(|r| !r.header.restated && r.offset < end.offset);
        Ok(active)
    }

    /// Whether a segment that was prepared and not begun is the next one.
    fn fits(&self, scan: &SegmentScan, next: u64) -> bool {
        scan.segment == next
            && is_blank(scan)
            && scan.unreadable.is_none()
            && scan.file_bytes == self.options.segment_bytes
    }

    fn adopt(&self, scan: SegmentScan, life: u64) -> Result<Prepared, StorageError> {
        let file = open(&*self.disk, &scan.path, How::Write)?;
        Ok(Prepared { segment: scan.segment, path: scan.path, file, bytes: scan.file_bytes, life })
    }

    /// Makes all segments durable, whatever the durability of the life that wrote them.
    fn sync_segments(&self, full: &VecDeque<FullSegment>) -> Result<(), StorageError> {
        for segment in full {
            let path = self.dir.join(segment_name(segment.segment));
            sync_file(&*open(&*self.disk, &path, How::Write)?, &path)?;
        }
        Ok(())
    }

    /// Makes everything that was written durable, including what was trimmed and is still there: the next
    /// start reads it.
    pub(super) fn sync_everything(&self) -> Result<(), StorageError> {
        if self.files.is_none() {
            return Ok(());
        }
        for name in file_names(&*self.disk, &self.dir)?.iter().filter(|name| segment_number(name).is_some()) {
            let path = self.dir.join(name);
            match open(&*self.disk, &path, How::Write) {
                // The segment was taken out of the log meanwhile.
                Err(error) if error.is_not_found() => {}
                file => sync_file(&*file?, &path)?,
            }
        }
        Ok(())
    }
}

fn full_segment(scan: &SegmentScan) -> FullSegment {
    FullSegment { segment: scan.segment, bytes: scan.end, slot_max: slot_max(scan, scan.end) }
}

/// The highest slot of the records before `end`, of each group that has any.
fn slot_max(scan: &SegmentScan, end: u64) -> BTreeMap<GroupId, Slot> {
    let mut highest = BTreeMap::<_, Slot>::new();
    for record in scan.records.iter().filter(|record| record.offset < end) {
        if let Keep::Slot(slot) = record.header.keep {
            let known = highest.entry(record.header.group).or_default();
            *known = slot.max(*known);
        }
    }
    highest
}

/// Writes the contents of a part of a file again, in their place.
fn rewrite(file: &dyn DiskFile, path: &Path, from: u64, to: u64) -> Result<(), StorageError> {
    let mut bytes = vec![0; (to - from) as usize];
    read_exact_at(file, &mut bytes, from).map_err(|error| StorageError::io("read", path, error))?;
    write_all_at(file, path, &mut [std::io::IoSlice::new(&bytes)], from)
}

/// Reads `log.state`, and refuses that of another replica.
fn read_state(disk: &dyn Disk, dir: &Path, identity: Identity) -> Result<Previous, StorageError> {
    let previous = LogState::read(disk, dir)?;
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

/// The state of a new life: where the log begins, and what was not synced, is as before.
fn state_after(previous: &Previous, opened: LogState) -> LogState {
    match previous {
        Previous::Read(previous) => LogState {
            begins: previous.begins,
            unsynced: previous.unsynced_since().map(str::to_owned),
            ..opened
        },
        _ => opened,
    }
}

/// Finishes what a crash interrupted: temporary files, an attempt to begin a new log that was not finished,
/// damaged segments that were not renamed yet, and trimmed ones that were not removed. All of it is durable
/// on return: what is written next may say that it was done.
fn tidy(
    disk: &dyn Disk,
    dir: &Path,
    previous: &Previous,
    listed: &BTreeMap<u64, Entry>,
) -> Result<(), StorageError> {
    let begins = previous.segments().start;
    let unfinished = previous.unfinished();
    let trimmed_below = listed.keys().next().copied().unwrap_or(0);
    let mut changed = false;
    for name in file_names(disk, dir)? {
        let path = dir.join(&name);
        if name.ends_with(".tmp") {
            remove_file(disk, &path)?;
        }
        let Some(segment) = segment_number(&name) else { continue };
        if segment >= unfinished || (begins..trimmed_below).contains(&segment) {
            remove_file(disk, &path)?;
            changed = true;
        } else if segment < begins {
            set_aside(disk, &path)?;
            changed = true;
        }
    }
    if changed { sync_dir(disk, dir) } else { Ok(()) }
}

/// Whether a segment has no trace of a header, as far as it can be read.
fn is_blank(scan: &SegmentScan) -> bool {
    scan.header == Err(NoHeader::Blank) && scan.unreadable.is_none_or(|at| at >= PAGE as u64)
}

/// Segments that are not as the list says, or that cannot be read.
pub(crate) fn suspects(listed: &BTreeMap<u64, Entry>, segments: &[ReadSegment]) -> Vec<Suspect> {
    let found: BTreeMap<u64, &SegmentScan> = segments.iter().map(|s| (s.scan.segment, &s.scan)).collect();
    let mut suspects = Vec::new();
    for (&segment, &Entry { bytes, .. }) in listed {
        match found.get(&segment) {
            None => {
                let reason = format!("segment {segment} is missing");
                suspects.push(Suspect { segment, offset: 0, reason, prepared: false });
            }
            Some(scan) if scan.file_bytes < bytes => {
                let reason = format!("the file has only {} of its {bytes} bytes", scan.file_bytes);
                suspects.push(Suspect { segment, offset: scan.file_bytes, reason, prepared: false });
            }
            Some(_) => {}
        }
    }
    for scan in found.values() {
        if let Some(offset) = scan.unreadable {
            let reason = "the disk cannot read this".to_owned();
            let prepared = is_blank(scan) && !scan.is_begun();
            suspects.push(Suspect { segment: scan.segment, offset, reason, prepared });
        }
    }
    suspects
}

/// The suffix for the name of a file that is set aside.
pub(super) const SET_ASIDE: &str = ".damaged";

/// Renames a damaged file, so that it is not read any more and can still be looked at.
pub(crate) fn set_aside(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let to = path.with_added_extension(&SET_ASIDE[1..]);
    tracing::warn!(file = %to.display(), "set a damaged log file aside");
    disk.rename(path, &to).map_err(|error| StorageError::io("rename", path, error))
}

/// Reads every segment of the directory, in order.
fn read_segments(
    disk: &dyn Disk,
    dir: &Path,
    identity: Identity,
    listed: &BTreeMap<u64, Entry>,
) -> Result<Vec<ReadSegment>, StorageError> {
    let names = file_names(disk, dir)?;
    let numbers = names.iter().filter_map(|name| segment_number(name));
    numbers.map(|segment| read_segment(disk, dir, segment, identity, listed.get(&segment))).collect()
}

/// Reads one segment, which the list of segments describes as `listed`. Refuses a segment of another version
/// or identity.
pub(crate) fn read_segment(
    disk: &dyn Disk,
    dir: &Path,
    segment: u64,
    identity: Identity,
    listed: Option<&Entry>,
) -> Result<ReadSegment, StorageError> {
    let path: PathBuf = dir.join(segment_name(segment));
    let read = read_what_can_be_read(disk, &path);
    let (mut file, unreadable) = read.map_err(|error| StorageError::io("read", &path, error))?;
    let life = listed.map(|entry| entry.life);
    let scan = SegmentScan { unreadable, ..scan(segment, path, &file, identity, life) };
    match &scan.header {
        Err(NoHeader::Version(found)) => {
            StorageError::unless_readable(&scan.path, &FORMAT, *found)?;
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

/// Takes the segments that were never begun off the end. A segment between others is not one of these: it is
/// damaged beyond recognition.
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
            let RecordHeader { lsn, group, keep, .. } = record.header;
            records.entry(lsn).or_insert_with(|| {
                let body = record.body(file);
                // A promise is small and lives long, so it must not keep a whole segment in memory.
                let bytes = if matches!(keep, Keep::State(_)) { Bytes::copy_from_slice(&body) } else { body };
                RecoveredRecord { lsn, group, keep, bytes }
            });
        }
    }
    records.into_values().collect()
}

fn latest_states(records: &[RecoveredRecord]) -> BTreeMap<(GroupId, u8), (Lsn, Body)> {
    let mut states = BTreeMap::new();
    for record in records {
        if let Keep::State(key) = record.keep {
            states.insert((record.group, key), (record.lsn, Body::Read(record.bytes.clone())));
        }
    }
    states
}

/// What the identity may have forgotten, as far as the segments cannot show it.
pub(crate) fn loss(
    disk: &dyn Disk,
    previous: &Previous,
    listed: &Listed,
    identity: Identity,
    has_segments: bool,
) -> Option<Loss> {
    let missing = |name: &str| Some(Loss::StateUnreadable(format!("the file {name} is missing")));
    let by_state = match previous {
        Previous::Read(state) => state.loss_at_restart(&disk.boot()),
        Previous::Unreadable(reason) => Some(Loss::StateUnreadable(reason.clone())),
        Previous::None if has_segments => missing(super::state::FILE_NAME),
        Previous::None if identity.incarnation.0 > 1 => Some(Loss::LogMissing),
        Previous::None => None,
    };
    by_state.or_else(|| match listed {
        Listed::Unreadable(reason) => Some(Loss::StateUnreadable(reason.clone())),
        Listed::None if has_segments => missing(super::list::FILE_NAME),
        _ => None,
    })
}

const _: () = assert!(FIRST_SEGMENT_BYTES_MAX > PAGE as u64);
