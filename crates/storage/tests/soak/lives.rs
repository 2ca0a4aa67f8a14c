//! Lives of a replica, none of which may lose anything that was reported durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use fastrand::Rng;
use synod_storage::{
    DataDir, Durability, Identity, Keep, Lives, Loss, Options, PeerBook, Recovered, RecoveredRecord,
    SnapshotStore, StorageError, Wal,
};
use synod_testkit::{FaultyDisk, Odds, SECTOR, SilentFault};
use synod_wire::{Acquaintance, ClusterId, GroupId, Incarnation, Introduction, Lsn, ReplicaId, Slot};

use crate::model::{Commit, Model};

const CLUSTER: ClusterId = ClusterId(0xc1);
const ME: ReplicaId = ReplicaId(1);
const DIR: &str = "/var/lib/synod/n1";

/// The files that one process has open.
pub(super) struct Files {
    pub(super) dir: DataDir,
    pub(super) wal: Wal,
    pub(super) store: SnapshotStore,
    pub(super) peers: PeerBook,
    pub(super) lives: Lives,
}

pub(super) struct Run {
    pub(super) rng: Rng,
    pub(super) disk: FaultyDisk,
    pub(super) options: Options,
    pub(super) model: Model,
    /// What another replica remembers of this one: every life that ran, and the last record that it was told
    /// to be durable. The other replica is elsewhere, so no harm comes to its memory.
    pub(super) known: Option<Acquaintance>,
    pub(super) covered: BTreeSet<&'static str>,
}

pub(super) fn dir() -> &'static Path {
    Path::new(DIR)
}

pub(super) fn wal_dir() -> PathBuf {
    dir().join("wal")
}

impl Run {
    pub(super) fn new(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let options = Options {
            segment_bytes: [16 << 10, 20 << 10, 32 << 10][rng.usize(..3)],
            recycled_segments_max: rng.usize(..3),
            ..Options::default()
        };
        let disk = FaultyDisk::new(rng.u64(..));
        Run { rng, disk, options, model: Model::default(), known: None, covered: BTreeSet::new() }
    }

    /// Opens everything as a start of a replica does.
    pub(super) fn open(&mut self) -> Result<(Files, Recovered), StorageError> {
        let disk = || Arc::new(self.disk.clone());
        let dir = DataDir::open_on(disk(), dir(), CLUSTER, ME, "n1", self.options.durability)?;
        let group = dir.origin()?;
        let peers = PeerBook::open(&dir)?;
        let lives = Lives::begin(&dir)?;
        let store = SnapshotStore::open_on(disk(), &dir.snapshots(), CLUSTER)?;
        let latest = store.latest()?;
        store.set_aside(&latest.damaged)?;
        let (wal, recovered) = Wal::open_on(disk(), &dir.wal(), dir.identity(), self.options.clone())?;

        let model = &mut self.model;
        assert!(dir.identity().incarnation > model.incarnation, "an incarnation is counted twice");
        model.incarnation = dir.identity().incarnation;
        let birth = *model.birth.get_or_insert(dir.identity().birth);
        assert_eq!(dir.identity().birth, birth);

        assert!(
            group == model.group || group.as_ref().is_some_and(|group| model.groups_unsure.contains(group)),
            "the group is {group:?} instead of {:?} or {:?}",
            model.group,
            model.groups_unsure
        );
        model.group = group;
        model.groups_unsure.clear();

        let births = peers.births();
        assert!(
            births == model.births || Some(&births) == model.births_unsure.as_ref(),
            "the births are {births:?} instead of {:?} or {:?}",
            model.births,
            model.births_unsure
        );
        model.births = births;
        model.births_unsure = None;

        let slot = latest.snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.slot);
        if latest.damaged.is_empty() {
            assert!(slot >= model.snapshot, "the snapshot of slot {} is gone", model.snapshot);
        }
        if slot > Slot::ZERO {
            let mut contents = Vec::new();
            store.open_snapshot(slot)?.read_to_end(&mut contents).unwrap();
            assert!(model.snapshots[&slot].contains(&contents), "a snapshot that nobody wrote");
        }
        model.snapshot = slot;
        let unused = recovered.damage.is_some() || recovered.loss.is_some() || !latest.damaged.is_empty();
        assert!(unused || model.trimmed <= slot, "slots through {} are nowhere", model.trimmed);
        lives.begin_log(recovered.last)?;
        Ok((Files { dir, wal, store, peers, lives }, recovered))
    }

    /// The running life meets another replica, which must take it for the one that it knows.
    pub(super) fn meet(&mut self, files: &Files, recovered: &Recovered) {
        let who = files.lives.introduction(recovered.last);
        let met = self.known.map_or_else(|| Ok(Acquaintance::first(&who)), |known| known.meet(&who));
        self.known = Some(met.expect("nothing was forgotten"));
    }

    /// Compares what the log holds with what it must hold. The sectors in `harmed` differ from what was written.
    pub(super) fn check(&mut self, recovered: &Recovered, harmed: &[SilentFault]) {
        let model = &mut self.model;
        let known: BTreeMap<Lsn, &RecoveredRecord> = model
            .records
            .iter()
            .map(|(&lsn, record)| (lsn, record))
            .chain(model.unsure.iter().map(|record| (record.lsn, record)))
            .collect();
        let mut previous = Lsn::ZERO;
        for record in &recovered.records {
            assert!(record.lsn > previous, "each once and in order");
            previous = record.lsn;
            assert_eq!(Some(&record), known.get(&record.lsn), "a record that nobody wrote");
        }
        if recovered.damage.is_some() || recovered.loss.is_some() {
            return;
        }
        let last = model.records.keys().next_back().copied().unwrap_or(Lsn::ZERO);
        if recovered.last < last {
            // A lost record is excused only if nothing proves that it existed: no complete later commit, and no mark.
            let whole = |commit: &Commit| {
                let hit = |fault: &SilentFault| {
                    let (from, to) = (fault.sector * SECTOR, (fault.sector + 1) * SECTOR);
                    // A segment's file may have had other names before.
                    fault.path.file_stem() == commit.path.file_stem()
                        && from < commit.bytes.end
                        && commit.bytes.start < to
                };
                !harmed.iter().any(hit)
            };
            let lost: Vec<_> = model.commits.iter().filter(|commit| commit.last > recovered.last).collect();
            let witness = lost.iter().skip(1).find(|commit| whole(commit));
            assert!(
                !harmed.is_empty(),
                "record {} is promised, and the log ends at {}",
                last,
                recovered.last
            );
            assert!(witness.is_none(), "cut at {} although {witness:?} is whole; {harmed:?}", recovered.last);
            let mark_harmed = harmed.iter().any(|fault| fault.path.ends_with("log.mark"));
            assert!(
                mark_harmed || model.marked <= recovered.last,
                "cut at {}, marked {}; {harmed:?}",
                recovered.last,
                model.marked
            );
            self.covered.insert("a last commit that rotted was cut");
        }
        let missing = model.missing(recovered, recovered.last);
        assert_eq!(missing, None, "a record is missing, and nothing says so");
        // A replica acts on the records that it recovered, so from now on they must survive.
        for record in std::mem::take(&mut model.unsure) {
            if record.lsn <= recovered.last {
                model.records.insert(record.lsn, record);
            }
        }
        model.records.retain(|&lsn, _| lsn <= recovered.last);
        model.commits.retain(|commit| commit.last <= recovered.last);
        if recovered.torn_bytes_cut > 0 {
            self.covered.insert("a torn tail was cut");
        }
    }

    /// Runs one life until something fails, or it is closed or interrupted. Returns whether the log was closed.
    pub(super) fn live(&mut self, files: Files) -> bool {
        if self.rng.u8(0..4) == 0 {
            let disk = Arc::new(self.disk.clone());
            let second = DataDir::open_on(disk, dir(), CLUSTER, ME, "n1", self.options.durability);
            assert!(matches!(second, Err(StorageError::Locked { .. })), "two processes have one identity");
            self.covered.insert("a second process was refused");
        }
        let mut files = files;
        for _ in 0..self.rng.u32(0..60) {
            if let Err(error) = self.act(&mut files) {
                let full = matches!(error, StorageError::Full { .. });
                self.covered.insert(if full { "a disk was full" } else { "an operation failed" });
                return false;
            }
        }
        if self.rng.u8(0..4) > 0 {
            return false;
        }
        self.covered.insert("a log was closed");
        let closed = files.wal.close().is_ok();
        if closed {
            self.promise(None);
            self.model.marked = self.model.records.keys().next_back().copied().unwrap_or(Lsn::ZERO);
            self.model.synced = self.model.marked;
        }
        closed
    }

    fn act(&mut self, files: &mut Files) -> Result<(), StorageError> {
        match self.rng.u32(0..100) {
            0..40 => self.append(files),
            40..70 => self.commit(files)?,
            70..73 => {
                files.wal.mark_durable()?;
                self.model.marked = files.wal.durable();
                self.covered.insert("an idle log was marked");
            }
            73..80 => {
                files.wal.work_a_step();
            }
            80..86 => self.snapshot(files)?,
            86..90 => {
                // A replica trims durable records that a snapshot covers.
                self.commit(files)?;
                let through = Slot(self.rng.u64(0..=self.model.snapshot.0));
                self.model.trimmed = self.model.trimmed.max(through);
                files.wal.trim(through)?;
                self.covered.insert("a log was trimmed");
            }
            90..92 => files.store.retain(self.rng.usize(1..3))?,
            92..96 => self.recognise(files)?,
            96..98 => {
                let group = Bytes::from(vec![self.salt() as u8; self.rng.usize(0..2000)]);
                self.model.groups_unsure.push(group.clone());
                files.dir.set_origin(&group)?;
                self.model.group = Some(group);
                self.model.groups_unsure.clear();
            }
            _ => {
                let members: Vec<_> = (2..6).filter(|_| self.rng.bool()).map(ReplicaId).collect();
                let mut births = self.model.births.clone();
                births.retain(|id, _| members.contains(id));
                self.model.births_unsure = Some(births.clone());
                files.peers.forget_all_but(|id| members.contains(&id))?;
                (self.model.births, self.model.births_unsure) = (births, None);
            }
        }
        Ok(())
    }

    fn salt(&mut self) -> u64 {
        self.model.salt += 1;
        self.model.salt
    }

    fn append(&mut self, files: &mut Files) {
        let len = match self.rng.u8(0..20) {
            0..12 => self.rng.usize(0..200),
            12..19 => self.rng.usize(200..3000),
            _ => self.rng.usize(3000..30_000),
        };
        let salt = self.salt();
        let mut bytes = vec![salt as u8; len];
        if self.rng.u8(0..8) == 0 {
            // A client that knows where its values will lie could choose this one.
            let segment = segment_number(&tail(&files.wal).0);
            bytes = forged_records(files.dir.identity(), segment..segment + 8);
        }
        bytes.extend_from_slice(&salt.to_le_bytes());
        let keep = if self.rng.u8(0..5) == 0 {
            Keep::State(self.rng.u8(0..3))
        } else {
            self.model.slot = self.model.slot.max(self.model.trimmed.0) + self.rng.u64(0..3);
            Keep::Slot(Slot(self.model.slot.max(self.model.trimmed.0 + 1)))
        };
        let mut writer = synod_wire::Writer::new();
        writer.shared(&Bytes::from(bytes));
        let (group, record) = (GroupId::FIRST, writer.finish());
        let bytes = record.to_bytes();
        let lsn = files.wal.append_to(group, keep, record);
        self.model.unsure.push(RecoveredRecord { lsn, group, keep, bytes });
    }

    fn commit(&mut self, files: &mut Files) -> Result<(), StorageError> {
        let before = tail(&files.wal);
        files.wal.commit()?;
        self.known = self.known.map(|known| known.heard(files.wal.durable()));
        let (path, end) = tail(&files.wal);
        let from = if path == before.0 { before.1 } else { 0 };
        self.promise(Some((path, from as usize..end as usize)));
        Ok(())
    }

    /// Everything appended has been reported durable.
    fn promise(&mut self, place: Option<(PathBuf, Range<usize>)>) {
        let unsure = std::mem::take(&mut self.model.unsure);
        let Some(last) = unsure.last().map(|record| record.lsn) else { return };
        if place.is_none() || unsure.iter().any(|record| self.options.durability.syncs(record.keep)) {
            self.model.synced = last;
        }
        self.model.records.extend(unsure.into_iter().map(|record| (record.lsn, record)));
        if let Some((path, bytes)) = place {
            self.model.commits.push(Commit { last, path, bytes });
        }
    }

    fn snapshot(&mut self, files: &mut Files) -> Result<(), StorageError> {
        let durable = self.model.records.values().filter_map(|record| match record.keep {
            Keep::Slot(slot) => Some(slot),
            Keep::State(_) => None,
        });
        let Some(slot) = durable.max().filter(|&slot| slot > self.model.snapshot) else { return Ok(()) };
        let salt = self.salt();
        let contents = vec![salt as u8; self.rng.usize(0..5000)];
        self.model.snapshots.entry(slot).or_default().push(contents.clone());
        let mut writer = files.store.create(slot)?;
        // `finish` reports the error again.
        let _ = writer.write_all(&contents);
        writer.finish()?;
        self.model.snapshot = slot;
        self.covered.insert("a snapshot was written");
        Ok(())
    }

    fn recognise(&mut self, files: &mut Files) -> Result<(), StorageError> {
        let (id, birth) = (ReplicaId(self.rng.u64(2..6)), self.rng.u64(1..4));
        let mut births = self.model.births.clone();
        let expected = *births.entry(id).or_insert(birth) == birth;
        self.model.births_unsure = Some(births.clone());
        let who = Introduction { birth, incarnation: Incarnation(1), ..Introduction::default() };
        let met = files.peers.meet(id, &who, None, true)?;
        assert_eq!(met.is_ok(), expected, "{id} has another birth than before");
        (self.model.births, self.model.births_unsure) = (births, None);
        Ok(())
    }

    /// Runs lives, none of which may lose anything that was reported durable.
    pub(super) fn lives(&mut self, count: u32) {
        for _ in 0..count {
            let crashes = self.rng.bool();
            if crashes {
                // Enough operations for a start and a short life.
                self.disk.crash_after(self.rng.u64(0..150));
            }
            if self.rng.u8(0..3) == 0 {
                let some = |rng: &mut Rng| if rng.bool() { rng.u32(0..60) } else { 0 };
                let odds = Odds {
                    sync_fails: some(&mut self.rng),
                    dir_sync_fails: some(&mut self.rng),
                    full: some(&mut self.rng),
                    ..Odds::default()
                };
                self.disk.set_odds(odds);
            }
            match self.open() {
                Ok((files, recovered)) => {
                    assert_eq!((&recovered.damage, &recovered.loss), (&None, &None));
                    self.check(&recovered, &[]);
                    self.meet(&files, &recovered);
                    self.live(files);
                }
                Err(error) => {
                    let excused = matches!(error, StorageError::Io { .. } | StorageError::Full { .. });
                    assert!(excused, "{error}");
                    self.covered.insert("a start failed");
                }
            }
            self.disk.set_odds(Odds::default());
            if self.rng.bool() {
                self.covered.insert("power failed");
                self.disk.power_failure();
            } else {
                self.disk.kill();
            }
        }
        // Only a failing disk may keep a replica from starting.
        let (_, recovered) = self.open().expect("it starts");
        assert_eq!((&recovered.damage, &recovered.loss), (&None, &None));
        self.check(&recovered, &[]);
        self.disk.kill();
    }

    /// Runs lives of a log that does not wait for the disk, or waits for states only. The end of a process
    /// loses nothing. The end of the machine loses what the log reports and nothing that was waited for, and
    /// it is never taken for damage.
    pub(super) fn lives_without_fsync(&mut self, count: u32) {
        let mut may_lose = false;
        for _ in 0..count {
            let in_memory = self.rng.u8(0..6) == 0;
            may_lose |= in_memory;
            let on_disk = if self.rng.bool() { Durability::View } else { Durability::Async };
            self.options.durability = if in_memory { Durability::Memory } else { on_disk };
            if self.rng.bool() {
                self.disk.crash_after(self.rng.u64(0..150));
            }
            let mut closed = false;
            match self.open() {
                // Nothing is written, so the records of an earlier life must still be intact afterwards.
                Ok((files, recovered)) if in_memory => {
                    assert_eq!(recovered.damage, None);
                    self.check(&recovered, &[]);
                    self.covered.insert("a life was in memory");
                    drop(files);
                }
                Ok((mut files, recovered)) => {
                    assert_eq!(recovered.damage, None);
                    assert!(may_lose || recovered.loss.is_none(), "{:?}", recovered.loss);
                    assert!(matches!(recovered.loss, None | Some(Loss::Reboot | Loss::Memory)));
                    self.check(&recovered, &[]);
                    let mut made_good = true;
                    if recovered.loss.is_some() {
                        self.covered.insert("a loss was found");
                        let synced = self.model.synced;
                        assert_eq!(self.model.missing(&recovered, synced), None, "of what was waited for");
                        if recovered.last > Lsn::ZERO && recovered.last == synced {
                            self.covered.insert("a power failure left what was waited for alone");
                        }
                        let kept = recovered.records.iter().map(|record| (record.lsn, record.clone()));
                        self.model.records = kept.collect();
                        self.model.unsure.clear();
                        self.model.commits.clear();
                        made_good = self.rng.bool() && files.wal.loss_made_good().is_ok();
                    }
                    may_lose = !made_good;
                    // The start has made all of it durable. But `async` does not wait for a promise that is
                    // repeated in a new segment, and the old segment is removed.
                    let view = self.options.durability == Durability::View;
                    self.model.synced = if view { recovered.last } else { Lsn::ZERO };
                    closed = self.live(files);
                }
                Err(error) => {
                    assert!(matches!(error, StorageError::Io { .. }), "{error}");
                    self.covered.insert("a start failed");
                }
            }
            if self.rng.bool() {
                self.covered.insert("power failed");
                self.disk.power_failure();
                may_lose |= !closed;
            } else {
                self.disk.kill();
            }
        }
    }
}

/// The file that the log's next record goes to, and where.
fn tail(wal: &Wal) -> (PathBuf, u64) {
    wal.tail().expect("it writes to files")
}

fn segment_number(path: &Path) -> u64 {
    path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).expect("a segment is named by its number")
}

/// What a client may put into a record's body: records of these segments, at every place where a reader may
/// look for one. It knows everything in them but the mark. The format is the one in ARCHITECTURE.md.
fn forged_records(identity: Identity, segments: Range<u64>) -> Vec<u8> {
    let lsn = 1_u64 << 40;
    let mut record = [0; 56];
    record[..8].fill(0x11);
    record[12] = 1;
    for (at, word) in [(16, lsn), (24, 1), (32, lsn - 1)] {
        record[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let mut bytes = Vec::new();
    for segment in segments {
        let mut crc = crc32fast::Hasher::new();
        for word in [identity.cluster.0, identity.replica.0, identity.birth, segment] {
            crc.update(&word.to_le_bytes());
        }
        crc.update(&record[..52]);
        record[52..].copy_from_slice(&crc.finalize().to_le_bytes());
        for _ in 0..8 {
            bytes.extend_from_slice(&record);
            bytes.push(0);
        }
    }
    bytes
}
