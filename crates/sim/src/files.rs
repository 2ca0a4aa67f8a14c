//! The real files of a replica, on a disk in memory that fails.
//!
//! Everything here is the code of `synod-storage`, from the data directory down, used as a server uses it.
//! The model in `disk.rs` stands beside it and tells when records are durable. What a start finds in the
//! files is compared with the model: everything that was durable and a prefix of the rest, each record as it
//! was written, or a report that something is lost.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::{LogRecord, salvage};
use synod_storage::{DataDir, Lives, Options, RecoveredRecord, SnapshotStore, StorageError, Wal};
use synod_testkit::{FaultyDisk, Odds};
use synod_wire::{ClusterId, Encoded, GroupId, Incarnation, Keep, Lsn, ReplicaId, Slot};

use crate::{
    check::{Invariant, Violation, demand, slots},
    plan::FilesPlan,
};

const CLUSTER: ClusterId = ClusterId(0xc1);
const DIR: &str = "/data";
/// As small as allowed, so that a run fills many segments.
const SEGMENT_BYTES: u64 = 16 << 10;

/// The files of one replica, and those that a process has open.
#[derive(Debug)]
pub struct Files {
    id: ReplicaId,
    plan: FilesPlan,
    disk: FaultyDisk,
    rng: Rng,
    open: Option<Open>,
    /// Records that the replica wrote and the log's thread has not taken yet.
    waiting: VecDeque<(Lsn, Keep, Encoded)>,
    /// Records that the last start found, and those given to the log since.
    written: BTreeMap<Lsn, Bytes>,
    /// Records that repairs have kept in starts since then that were interrupted.
    repaired: BTreeMap<Lsn, Bytes>,
    /// Snapshots that may exist although writing them failed.
    unsure: Vec<(Slot, Bytes)>,
    /// Whether files were harmed since the last start that succeeded, and nothing had been lost before.
    was_whole: bool,
    /// Whether a start may find that something is lost: files were harmed, the directory was outlived, or an
    /// earlier loss is not made good yet.
    may_be_lost: bool,
    /// Whether a later life of a copy was seen, so that the next start must be without memory.
    outlived: bool,
    /// Whether this life began without memory, and the log has not been told yet that the loss is made good.
    loss_pending: bool,
}

/// The open files of a process. The log is closed first, and the lock on all of it released last.
#[derive(Debug)]
struct Open {
    wal: Wal,
    store: SnapshotStore,
    lives: Lives,
    _dir: DataDir,
}

/// The result of a start.
#[derive(Debug)]
pub struct Started {
    /// The log, after its repair if that was needed.
    pub records: Vec<(Lsn, LogRecord)>,
    /// The number of the last record ever written.
    pub last: Lsn,
    /// The newest snapshot.
    pub snapshot: Option<(Slot, Bytes)>,
    /// Whether something was lost, so that the replica begins without memory.
    pub lost: bool,
    /// If damage was found, how many slots the rest of the log proved to be decided.
    pub kept: Option<u64>,
    /// Whether harm was done that had no effect.
    pub unharmed: bool,
}

/// Harm that is done to the files while no process runs.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A bit changes.
    Rot,
    /// A sector cannot be read.
    Spoil,
    /// A segment is deleted.
    Delete,
    /// A segment is emptied.
    Empty,
    /// The log's directory is emptied.
    EmptyLog,
}

/// Why a start does not finish.
enum Stop {
    Failed(StorageError),
    Wrong(Violation),
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Stop {
        Stop::Failed(error)
    }
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Wrong(violation)
    }
}

fn wal_dir() -> PathBuf {
    Path::new(DIR).join("wal")
}

fn is_segment(path: &Path) -> bool {
    path.starts_with(wal_dir()) && path.extension().is_some_and(|extension| extension == "wal")
}

impl Files {
    /// An empty disk.
    pub fn new(id: ReplicaId, plan: FilesPlan, seed: u64) -> Files {
        let mut rng = Rng::with_seed(seed ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Files {
            id,
            plan,
            disk: FaultyDisk::new(rng.u64(..)),
            rng,
            open: None,
            waiting: VecDeque::new(),
            written: BTreeMap::new(),
            repaired: BTreeMap::new(),
            unsure: Vec::new(),
            was_whole: false,
            may_be_lost: false,
            outlived: false,
            loss_pending: false,
        }
    }

    /// Replaces the files by those of a replica that never ran.
    pub fn wiped(&mut self) -> Files {
        Files::new(self.id, self.plan, self.rng.u64(..))
    }

    /// Writes a snapshot before any process ran, as a restore of a backup does.
    ///
    /// # Panics
    /// If the disk fails, which it does only once a process begins to start.
    pub fn begin_with(&mut self, slot: Slot, bytes: &Bytes) {
        let written = || -> Result<(), StorageError> {
            let dir = self.disk.open_dir(Path::new(DIR), CLUSTER, self.id)?;
            let store = self.disk.open_snapshots(&dir)?;
            let mut writer = store.create(slot)?;
            // `finish` reports the error again.
            let _ = writer.write_all(bytes);
            writer.finish().map(|_| ())
        };
        written().expect("the disk has no faults yet");
    }

    /// A copy of the durable files, on another disk.
    pub fn copy(&mut self) -> Files {
        let (seed, other) = (self.rng.u64(..), self.rng.fork());
        Files {
            disk: self.disk.copy(seed),
            rng: other,
            open: None,
            waiting: VecDeque::new(),
            written: self.written.clone(),
            repaired: self.repaired.clone(),
            unsure: self.unsure.clone(),
            ..*self
        }
    }

    /// Starts a process: opens everything as a server does, and repairs the log if it is damaged. Records
    /// through `durable` were durable, `log` has the records that the log must hold of all that were written,
    /// and `snapshot` is the newest snapshot.
    ///
    /// # Errors
    /// The inner error says that the disk or the machine failed: the process ends.
    pub fn start<'a>(
        &mut self,
        durable: Lsn,
        log: impl Iterator<Item = (Lsn, &'a Bytes)>,
        snapshot: Option<(Slot, Bytes)>,
    ) -> Result<Result<Started, StorageError>, Violation> {
        let FilesPlan { sync_fails, dir_sync_fails, full, starts_fail } = self.plan;
        self.disk.set_odds(Odds { sync_fails, dir_sync_fails, full, ..Odds::default() });
        if starts_fail.hit(&mut self.rng) {
            self.disk.crash_after(self.rng.u64(0..150));
        }
        match self.open_all(durable, log, snapshot) {
            Err(Stop::Wrong(violation)) => Err(violation),
            Err(Stop::Failed(error)) => {
                let excused = matches!(error, StorageError::Io { .. } | StorageError::Full { .. });
                demand(excused, Invariant::FilesKeep, || format!("{} does not start: {error}", self.id))?;
                self.end();
                Ok(Err(error))
            }
            Ok(started) => Ok(Ok(started)),
        }
    }

    fn open_all<'a>(
        &mut self,
        durable: Lsn,
        log: impl Iterator<Item = (Lsn, &'a Bytes)>,
        snapshot: Option<(Slot, Bytes)>,
    ) -> Result<Started, Stop> {
        let dir = self.disk.open_dir(Path::new(DIR), CLUSTER, self.id)?;
        let lives = Lives::begin(&dir)?;
        let store = self.disk.open_snapshots(&dir)?;
        let snapshot = self.find_snapshot(&store, snapshot)?;
        let options =
            Options { segment_bytes: SEGMENT_BYTES, recycled_segments_max: 2, ..Options::default() };
        let (mut wal, found) = self.disk.open_wal(&dir, options)?;

        for record in &found.records {
            let known = [&self.written, &self.repaired].map(|records| records.get(&record.lsn));
            demand(known.contains(&Some(&record.bytes)), Invariant::FilesKeep, || {
                format!("{} finds a record {} in its log that it never wrote", self.id, record.lsn)
            })?;
        }
        let lost = found.damage.is_some() || found.loss.is_some();
        demand(self.may_be_lost || !lost, Invariant::FilesKeep, || {
            format!(
                "{} finds its log damaged, and nobody harmed it: {:?} {:?}",
                self.id, found.damage, found.loss
            )
        })?;
        demand(lost || !self.outlived, Invariant::FilesKeep, || {
            format!("{} goes on with the log of a copy that was outlived", self.id)
        })?;
        if !lost {
            let there: BTreeMap<Lsn, &Bytes> =
                found.records.iter().map(|record| (record.lsn, &record.bytes)).collect();
            // If files were harmed, the log may hold a later statement of a state instead of the one that was written.
            let restated = |lsn: Lsn, bytes: &Bytes| {
                let keep = LogRecord::decode(bytes.clone()).expect("it is what was written").keep();
                let later = |record: &RecoveredRecord| record.keep == keep && record.lsn > lsn;
                self.may_be_lost && matches!(keep, Keep::State(_)) && found.records.iter().any(later)
            };
            let missing = log
                .filter(|(lsn, _)| *lsn <= found.last)
                .find(|(lsn, bytes)| there.get(lsn) != Some(bytes) && !restated(*lsn, bytes))
                .map(|(lsn, _)| lsn);
            let missing = missing.or((found.last < durable).then_some(durable));
            demand(missing.is_none(), Invariant::FilesKeep, || {
                let missing = missing.unwrap_or_default();
                format!("{}: record {missing} of its log is gone, which ends at {}", self.id, found.last)
            })?;
        }

        let decoded = found.records.iter().map(|record| {
            let decoded = LogRecord::decode(record.bytes.clone()).expect("it is what was written");
            (record.lsn, decoded)
        });
        let mut records: Vec<(Lsn, LogRecord)> = decoded.collect();
        let (mut last, mut kept) = (found.last, None);
        if found.damage.is_some() {
            let base = snapshot.as_ref().map_or(Slot::ZERO, |(slot, _)| *slot);
            let salvaged = salvage(records, base);
            let first = found.last.next().0;
            records = (first..).map(Lsn).zip(salvaged).collect();
            let encoded = records.iter().map(|(lsn, record)| (*lsn, record.encode().to_bytes()));
            self.repaired.extend(encoded);
            last = wal.quarantine(
                records.iter().map(|(_, record)| (GroupId::FIRST, record.keep(), record.encode())),
            )?;
            kept = Some(records.iter().map(|(_, record)| slots(record).count() as u64).sum());
        }
        if lost {
            lives.begin_without_memory()?;
        }
        self.written = records.iter().map(|(lsn, record)| (*lsn, record.encode().to_bytes())).collect();
        self.repaired.clear();
        let unharmed = std::mem::take(&mut self.was_whole) && !lost;
        (self.may_be_lost, self.loss_pending, self.outlived) = (lost, lost, false);
        self.open = Some(Open { wal, store, lives, _dir: dir });
        Ok(Started { records, last, snapshot, lost, kept, unharmed })
    }

    /// The newest snapshot, which must be the one that was written last.
    fn find_snapshot(
        &self,
        store: &SnapshotStore,
        written: Option<(Slot, Bytes)>,
    ) -> Result<Option<(Slot, Bytes)>, Stop> {
        let latest = store.latest()?;
        store.set_aside(&latest.damaged)?;
        let mut found = None;
        if let Some(file) = latest.snapshot {
            let mut bytes = Vec::new();
            let read = store.open_snapshot(file.slot)?.read_to_end(&mut bytes);
            read.expect("it was read a moment ago");
            found = Some((file.slot, Bytes::from(bytes)));
        }
        let newer = |unsure: &&(Slot, Bytes)| written.as_ref().is_none_or(|(slot, _)| unsure.0 > *slot);
        let mut unsure = self.unsure.iter().filter(newer);
        let expected = found == written || unsure.any(|unsure| found.as_ref() == Some(unsure));
        demand(expected, Invariant::FilesKeep, || {
            let slot = |snapshot: &Option<(Slot, Bytes)>| snapshot.as_ref().map(|(slot, _)| *slot);
            format!("{} finds snapshot {:?} instead of {:?}", self.id, slot(&found), slot(&written))
        })?;
        Ok(found)
    }

    /// Ends all faults of the disk.
    pub fn calm(&mut self) {
        self.plan = FilesPlan::CALM;
        self.disk.set_odds(Odds::default());
        self.disk.crash_after(u64::MAX);
    }

    /// The replica writes a record.
    pub fn append(&mut self, lsn: Lsn, record: &LogRecord) {
        let encoded = record.encode();
        self.written.insert(lsn, encoded.to_bytes());
        self.waiting.push_back((lsn, record.keep(), encoded));
    }

    /// Makes the records through `through` durable, in one commit.
    pub fn commit(&mut self, through: Lsn) -> Result<(), StorageError> {
        let Some(Open { wal, .. }) = &mut self.open else { return Ok(()) };
        let due = self.waiting.iter().take_while(|(lsn, ..)| *lsn <= through).count();
        self.waiting.drain(..due).for_each(|(lsn, keep, record)| wal.append(lsn, keep, record));
        wal.commit()?;
        // On a real disk a thread of its own does this meanwhile.
        while self.rng.u8(0..4) > 0 && wal.work_a_step() {}
        Ok(())
    }

    /// The log may forget slots through this one.
    pub fn trim(&mut self, through: Slot) -> Result<(), StorageError> {
        self.open.as_mut().map_or(Ok(()), |open| open.wal.trim(through))
    }

    /// The replica votes again, so what was lost no longer matters.
    pub fn loss_made_good(&mut self) -> Result<(), StorageError> {
        if !std::mem::take(&mut self.loss_pending) {
            return Ok(());
        }
        self.open.as_mut().map_or(Ok(()), |open| open.wal.loss_made_good())?;
        self.may_be_lost = false;
        Ok(())
    }

    /// Idles for a moment, so that all of the log is proven to be durable. Returns whether that could be recorded.
    pub fn idle(&mut self) -> bool {
        self.open.as_mut().is_some_and(|open| open.wal.mark_durable().is_ok())
    }

    /// A peer has seen a later life than this one. Returns whether that is recorded.
    pub fn outlived(&mut self) -> bool {
        // It is recorded by its own number: in the simulator the number that a peer knows counts the starts
        // that were completed.
        let noted = self.open.as_mut().is_some_and(|open| open.lives.outlived_by(Incarnation(0)).is_ok());
        (self.outlived, self.may_be_lost) = (self.outlived || noted, true);
        noted
    }

    /// Writes a snapshot. Of the older ones the newest stays.
    pub fn write_snapshot(&mut self, slot: Slot, bytes: &Bytes, kept: usize) -> Result<(), StorageError> {
        let Some(Open { store, .. }) = &mut self.open else { return Ok(()) };
        self.unsure.push((slot, bytes.clone()));
        let mut writer = store.create(slot)?;
        // `finish` reports the error again.
        let _ = writer.write_all(bytes);
        writer.finish()?;
        store.retain(kept)?;
        self.unsure.pop();
        // No more older ones than these are left.
        let gone = self.unsure.len().saturating_sub(kept - 1);
        self.unsure.drain(..gone);
        Ok(())
    }

    /// Ends the process or the machine, perhaps in the middle of a commit.
    pub fn crash(&mut self) {
        if let Some(Open { wal, .. }) = &mut self.open {
            let count = self.rng.usize(0..=self.waiting.len());
            self.waiting.drain(..count).for_each(|(lsn, keep, record)| wal.append(lsn, keep, record));
            self.disk.crash_after(self.rng.u64(0..12));
            // Nothing reads the result.
            let _ = wal.commit();
            while self.rng.bool() && wal.work_a_step() {}
        }
        self.end();
    }

    fn end(&mut self) {
        self.open = None;
        self.waiting.clear();
        if self.rng.bool() { self.disk.power_failure() } else { self.disk.kill() }
    }

    /// Harms the log. `lost` says that something was lost before. Only a log that was idle is harmed, so that
    /// the loss of its end shows.
    pub fn harm(&mut self, lost: bool) -> String {
        (self.may_be_lost, self.was_whole) = (true, !lost);
        let harms = [
            Harm::Rot,
            Harm::Rot,
            Harm::Rot,
            Harm::Rot,
            Harm::Spoil,
            Harm::Delete,
            Harm::Empty,
            Harm::EmptyLog,
        ];
        let harm = harms[self.rng.usize(..harms.len())];
        let log = self.disk.image(&wal_dir());
        let segments: Vec<&PathBuf> = log.keys().filter(|path| is_segment(path)).collect();
        let segment = self.rng.choice(&segments).map(|path| (*path).clone());
        // Harm mostly strikes the files with records.
        let any = self.rng.u8(0..8) == 0;
        let fits = |path: &Path| is_segment(path) || any && path.starts_with(wal_dir());
        match (harm, segment) {
            (Harm::Rot, _) => _ = self.disk.rot(fits),
            (Harm::Spoil, _) => _ = self.disk.spoil(is_segment),
            (Harm::Delete, Some(segment)) => self.disk.delete(&segment),
            (Harm::Empty, Some(segment)) => self.disk.put(&segment, &[]),
            (Harm::EmptyLog, _) | (_, None) => self.disk.put_back(&wal_dir(), &BTreeMap::new()),
        }
        format!("{harm:?}")
    }

    /// Changes a bit of a snapshot. (A newer one may exist if the disk failed when it was written.)
    pub fn harm_snapshot(&mut self, slot: Slot) {
        let name = format!("snapshot-{:020}.snap", slot.0);
        self.disk.rot(|path| path.ends_with(&name));
    }
}
