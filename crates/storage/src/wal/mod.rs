//! The write-ahead log.
//!
//! Groups of replicas share a log: numbers count the records of all of them, and each group has slots and
//! keys of its own and releases its own records.
//!
//! One thread owns a [`Wal`]. It appends every record that waits, then commits them together: one gathered
//! write and one `fdatasync` for all of them. Records are kept in segment files of a fixed size; `format` has
//! their layout, and `assess` the rule that tells a torn tail from corruption.

pub(crate) mod assess;
pub(crate) mod format;
pub(crate) mod list;
pub(crate) mod mark;
pub(crate) mod open;
mod prepare;
mod quarantine;
pub(crate) mod scan;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use synod_wire::{Encoded, GroupId, Lsn, Slot};

use self::{
    list::Entry,
    mark::Mark,
    prepare::Preparer,
    state::LogState,
    writer::{Active, Body, Label},
};
use crate::{
    Damage, Durability, Identity, Loss, StorageError,
    disk::{Disk, the_disk},
    lock::DirLock,
};

pub use synod_wire::Keep;

/// Settings of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What a commit waits for.
    pub durability: Durability,
    /// Size of a segment's file in bytes, 16 KiB to 4 GiB. The first segment of a new log has at most 4 MiB, so
    /// that a new replica starts at once; a segment that holds a record larger than this is as large as it must be.
    pub segment_bytes: u64,
    /// How many trimmed segments are kept to be used again rather than deleted.
    pub recycled_segments_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { durability: Durability::Sync, segment_bytes: 64 << 20, recycled_segments_max: 4 }
    }
}

impl Options {
    fn check(&self) -> Result<(), StorageError> {
        if (16 << 10..=4 << 30).contains(&self.segment_bytes) {
            return Ok(());
        }
        let accepted = "from 16384 to 4294967296 (bytes)".to_owned();
        Err(StorageError::Option { option: "segment_bytes", value: self.segment_bytes, accepted })
    }
}

/// Bytes of the largest record that the log takes.
pub const RECORD_BYTES_MAX: usize = 1 << 30;

/// What a log held when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The records in the order of their numbers. `State` records that were overwritten may be among them, so
    /// replaying all in order is right. Numbers have gaps where the log was trimmed or is damaged.
    pub records: Vec<RecoveredRecord>,
    /// The number of the last record: [`Wal::append`] goes on with the one after it.
    pub last: Lsn,
    /// What was once durable and cannot be read. Nothing was changed on disk, and the log takes no records
    /// until [`Wal::quarantine`].
    pub damage: Option<Damage>,
    /// Why promises of this identity may be missing although no file is damaged.
    pub loss: Option<Loss>,
    /// Bytes of records that a crash left half-written, and that were cut off. They were never durable.
    pub torn_bytes_cut: u64,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredRecord {
    /// Its number.
    pub lsn: Lsn,
    /// The group that it is of.
    pub group: GroupId,
    /// How long it matters.
    pub keep: Keep,
    /// The bytes that were appended, as a slice of the segment, which they keep in memory as long as they live.
    pub bytes: Bytes,
}

/// Counters since the log was opened, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Commits that wrote something.
    pub commits: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes written, including headers and repeated records.
    pub bytes_written: u64,
    /// Segments that were begun.
    pub segments_begun: u64,
    /// How many times the next segment was needed before it was written through.
    pub segment_waits: u64,
}

/// The write-ahead log of one replica.
///
/// The first write or fsync that fails makes the log fail permanently: every later call returns the same
/// error. A kernel that failed to write a page may mark it clean, so that a second fsync succeeds without the
/// data being anywhere; only a restart, which reads what is really there, can go on.
#[derive(Debug)]
pub struct Wal {
    dir: PathBuf,
    identity: Identity,
    options: Options,
    disk: Arc<dyn Disk>,
    /// The contents of `log.state`.
    state: LogState,
    /// The records that are not written yet, in order.
    pending: Vec<Pending>,
    pending_bytes: usize,
    /// The last record that was appended.
    appended: Lsn,
    /// The last record that was committed.
    durable: Lsn,
    /// The last record for which a commit waited for the disk, or that the start made durable.
    synced: Lsn,
    /// The list of segments when the log was opened.
    listed: BTreeMap<u64, Entry>,
    /// The latest record of every `State` key of every group.
    states: BTreeMap<(GroupId, u8), (Lsn, Body)>,
    /// The slot through which each group has released its records.
    trimmed: BTreeMap<GroupId, Slot>,
    /// The latest `State` record of any key.
    last_state: Lsn,
    /// The open files; `None` for durability `memory`, and while damage is not dealt with.
    files: Option<LogFiles>,
    /// The damage that waits for [`Wal::quarantine`], and what `log.state` said when it was found.
    damage: Option<(Damage, LogState)>,
    failure: Option<StorageError>,
    stats: WalStats,
    /// This comes last, so that the directory is free only when nothing here works on it any more.
    _lock: DirLock,
}

#[derive(Debug)]
struct Pending {
    lsn: Lsn,
    group: GroupId,
    keep: Keep,
    body: Body,
}

/// The files of a log that is written.
#[derive(Debug)]
struct LogFiles {
    active: Active,
    /// Segments before the active one, oldest first.
    full: VecDeque<FullSegment>,
    preparer: Preparer,
    mark: Mark,
}

#[derive(Debug)]
struct FullSegment {
    segment: u64,
    /// Bytes of the records and the header.
    bytes: u64,
    /// The highest slot of its records, of each group that has any.
    slot_max: BTreeMap<GroupId, Slot>,
}

impl FullSegment {
    /// Whether no group needs it.
    fn is_let_go_of(&self, trimmed: &BTreeMap<GroupId, Slot>) -> bool {
        self.slot_max.iter().all(|(group, slot)| trimmed.get(group).is_some_and(|through| slot <= through))
    }
}

impl Wal {
    /// Opens the log in `dir`, which is created if there is none, and reads all of it.
    ///
    /// # Errors
    /// The directory is in use, belongs to another cluster or replica, was written by a later version, cannot
    /// be read or written, or an option is out of bounds. Damage is not an error: see [`Recovered::damage`].
    pub fn open(dir: &Path, identity: Identity, options: Options) -> Result<(Wal, Recovered), StorageError> {
        Wal::open_on(the_disk(), dir, identity, options)
    }

    /// Adds a record of the first group under the number that its writer gives it; see [`Wal::append_to`].
    ///
    /// # Panics
    /// If `lsn` is not the one after the last record, or the record exceeds [`RECORD_BYTES_MAX`].
    pub fn append(&mut self, lsn: Lsn, keep: Keep, record: Encoded) {
        assert_eq!(lsn, self.appended.next(), "records are appended in the order of their numbers");
        self.append_to(GroupId::FIRST, keep, record);
    }

    /// Adds a record of a group, to be written by the next [`Wal::commit`]. Large parts are kept by reference until
    /// then. The caller bounds how much it appends before it commits; see [`Wal::pending_bytes`]. Returns the number of
    /// the record, which is the one after the last record of any group.
    ///
    /// # Panics
    /// If the record exceeds [`RECORD_BYTES_MAX`].
    pub fn append_to(&mut self, group: GroupId, keep: Keep, record: Encoded) -> Lsn {
        assert!(record.len() <= RECORD_BYTES_MAX, "a record of {} bytes is too large", record.len());
        self.push(group, keep, Body::Encoded(record))
    }

    fn push(&mut self, group: GroupId, keep: Keep, body: Body) -> Lsn {
        self.appended = self.appended.next();
        self.pending_bytes += body.len();
        self.pending.push(Pending { lsn: self.appended, group, keep, body });
        self.appended
    }

    /// Writes everything that was appended and waits as the durability demands: for the disk, if one of the
    /// records demands that, and then for all of them and for all before them. Returns the number of the last
    /// record that is as durable as the durability promises, which is the last one appended.
    ///
    /// # Errors
    /// A write or fsync failed, now or earlier, or the disk is full, or damage is not dealt with. What was
    /// committed before is safe; of what was appended since, any part may be on disk.
    pub fn commit(&mut self) -> Result<Lsn, StorageError> {
        self.check()?;
        if self.pending.is_empty() {
            return Ok(self.durable);
        }
        let synced = match self.write_pending() {
            Ok(synced) => synced,
            Err(error) => {
                tracing::error!(%error, "the log failed and takes no more records");
                self.failure = Some(error.clone());
                return Err(error);
            }
        };
        assert!(self.durable <= self.appended, "nothing is durable that was not appended");
        self.durable = self.appended;
        if synced {
            self.synced = self.durable;
        }
        self.pending_bytes = 0;
        self.stats.commits += 1;
        Ok(self.durable)
    }

    fn check(&self) -> Result<(), StorageError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match &self.damage {
            Some((damage, _)) => {
                Err(StorageError::Damaged { dir: self.dir.clone(), reason: damage.to_string() })
            }
            None => Ok(()),
        }
    }

    /// Writes what waits; returns whether it waited for the disk.
    fn write_pending(&mut self) -> Result<bool, StorageError> {
        if self.begins_with_a_commit() {
            self.state.write(&*self.disk, &self.dir)?;
        }
        let mut sync = self.pending.iter().any(|pending| self.options.durability.syncs(pending.keep));
        self.stats.records += self.pending.len() as u64;
        for Pending { lsn, group, keep, body } in std::mem::take(&mut self.pending) {
            if let Some(files) = &mut self.files {
                if !files.active.has_room_for(body.len()) {
                    // Where anything is synced, a full segment is made durable before the next one begins. So a next
                    // segment proves the one before whole. A later fsync reaches only the next file.
                    let syncs_states = self.options.durability.syncs_anything();
                    files.active.flush(syncs_states)?;
                    self.begin_segment(lsn)?;
                    // States are repeated in the new segment, and will soon be nowhere else.
                    sync |= syncs_states;
                }
                let files = self.files.as_mut().expect("a log with files keeps them");
                let (durable, last_state) = (self.durable, self.last_state);
                let label = Label { lsn, group, keep, restated: false, durable, last_state };
                self.stats.bytes_written += files.active.put(label, &body);
            }
            if let Keep::State(key) = keep {
                self.states.insert((group, key), (lsn, body));
                self.last_state = lsn;
            }
        }
        if let Some(files) = &mut self.files {
            files.active.flush(sync)?;
        }
        Ok(sync)
    }

    /// Makes the prepared segment the active one, with `first` as its first record. Its header and the repeated
    /// `State` records are written with whatever comes next.
    fn begin_segment(&mut self, first: Lsn) -> Result<(), StorageError> {
        let files = self.files.as_mut().expect("only a log with files begins segments");
        let (prepared, waited) = files.preparer.take()?;
        self.stats.segments_begun += 1;
        self.stats.segment_waits += u64::from(waited);
        assert_eq!(prepared.segment, files.active.segment + 1, "segments are numbered without gaps");
        tracing::debug!(segment = prepared.segment, %first, waited, "the log goes on in the next segment");
        let next = Active::begin(prepared, self.identity, first, self.states.len() as u32);
        let full = std::mem::replace(&mut files.active, next);
        files.full.push_back(FullSegment { segment: full.segment, bytes: full.end, slot_max: full.slot_max });
        self.restate();
        Ok(())
    }

    /// Repeats the latest `State` records in the segment that was just begun.
    fn restate(&mut self) {
        let Some(files) = &mut self.files else { return };
        for (&(group, key), (lsn, body)) in &self.states {
            let label = Label {
                lsn: *lsn,
                group,
                keep: Keep::State(key),
                restated: true,
                durable: self.durable,
                last_state: Lsn::ZERO,
            };
            self.stats.bytes_written += files.active.put(label, body);
        }
    }

    /// Releases records of the first group; see [`Wal::trim_of`].
    ///
    /// # Errors
    /// The log failed earlier, or damage is not dealt with.
    pub fn trim(&mut self, through: Slot) -> Result<(), StorageError> {
        self.trim_of(GroupId::FIRST, through)
    }

    /// Releases records of a group whose slot is at most `through`, as far as whole segments, from the oldest
    /// on, hold nothing else that any group needs. The files are renamed or removed in the background; a
    /// crash before that only means that some of the records come back.
    ///
    /// # Errors
    /// The log failed earlier, or damage is not dealt with.
    pub fn trim_of(&mut self, group: GroupId, through: Slot) -> Result<(), StorageError> {
        self.check()?;
        let trimmed = self.trimmed.entry(group).or_default();
        *trimmed = through.max(*trimmed);
        let Some(files) = &mut self.files else { return Ok(()) };
        let count = files.full.iter().take_while(|full| full.is_let_go_of(&self.trimmed)).count();
        if count > 0 {
            files.preparer.retire(files.full.drain(..count).map(|full| full.segment));
        }
        Ok(())
    }

    /// Says that the replica has made up for the [`Loss`] it was told at opening (it was re-admitted, or has
    /// everything again that it could have promised), so that the next start is not told of it any more.
    ///
    /// # Errors
    /// The note could not be written.
    pub fn loss_made_good(&mut self) -> Result<(), StorageError> {
        self.check()?;
        self.state.loss = None;
        self.write_state()
    }

    /// Notes, apart from the log, that everything for which a commit waited is durable. Until the next commit
    /// or this note, nothing proves that of the last commit, and a record of it that rots would pass for
    /// half-written. The note costs an fsync, so it is for a log that has been idle for a moment.
    ///
    /// # Errors
    /// The log failed, now or earlier, or damage is not dealt with.
    pub fn mark_durable(&mut self) -> Result<(), StorageError> {
        self.check()?;
        let Some(files) = &mut self.files else { return Ok(()) };
        if files.mark.lsn() >= self.synced {
            return Ok(());
        }
        if let Err(error) = files.mark.write(self.synced) {
            tracing::error!(%error, "the log failed and takes no more records");
            self.failure = Some(error.clone());
            return Err(error);
        }
        Ok(())
    }

    /// Whether something apart from the log already says that everything for which a commit waited is durable.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.files.as_ref().is_none_or(|files| files.mark.lsn() >= self.synced)
    }

    /// Whether `log.state` has still to say that this life has begun. A life that forbids another start says
    /// so with its first records and not before: if it ended before it said anything, because no port was
    /// free perhaps, it left nothing that could be forgotten.
    fn begins_with_a_commit(&self) -> bool {
        !self.options.durability.may_restart() && self.stats.commits == 0
    }

    fn write_state(&mut self) -> Result<(), StorageError> {
        let written = self.state.write(&*self.disk, &self.dir);
        if let Err(error) = &written {
            self.failure = Some(error.clone());
        }
        written
    }

    /// Commits what is left and notes where the log ends, so that the next start can tell that nothing is
    /// missing at its end. A log that is dropped instead is as after a crash.
    ///
    /// # Errors
    /// The same as for [`Wal::commit`].
    pub fn close(mut self) -> Result<(), StorageError> {
        self.commit()?;
        if self.synced < self.durable {
            self.sync_everything()?;
        }
        if self.begins_with_a_commit() {
            return Ok(());
        }
        self.state.closed_at = self.options.durability.writes().then_some(self.durable);
        self.write_state()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The last record that is as durable as the durability promises.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Bytes of records that were appended and not committed.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of all segments that were not trimmed, without the unused rest of the last one.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Some(files) = &self.files else { return 0 };
        files.active.end + files.full.iter().map(|full| full.bytes).sum::<u64>()
    }

    /// The groups that need the oldest segment, if another one was begun after it.
    #[must_use]
    pub fn oldest_needed_by(&self) -> Vec<GroupId> {
        let Some(oldest) = self.files.as_ref().and_then(|files| files.full.front()) else {
            return Vec::new();
        };
        let needs =
            |(group, slot): &(&GroupId, &Slot)| self.trimmed.get(group).is_none_or(|through| *slot > through);
        oldest.slot_max.iter().filter(needs).map(|(group, _)| *group).collect()
    }

    /// How many segments were not trimmed.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.files.as_ref().map_or(0, |files| files.full.len() + 1)
    }

    /// Does one piece of background work, where the disk allows no threads; returns false if there is none.
    pub fn work_a_step(&mut self) -> bool {
        self.files.as_mut().is_some_and(|files| files.preparer.step())
    }

    /// The active segment's file, and where it ends. `None` if the log writes to no file: it is in memory, or damage is
    /// not dealt with.
    #[must_use]
    pub fn tail(&self) -> Option<(PathBuf, u64)> {
        self.files.as_ref().map(|files| (files.active.path.clone(), files.active.end))
    }

    /// Counters since the log was opened.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        self.stats
    }
}
