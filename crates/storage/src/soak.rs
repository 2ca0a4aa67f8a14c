//! Runs the files of a replica through many lives on a disk that fails, as a seed decides, and compares them
//! with a model of what must survive. The code under test is the real one, from the data directory down.
//!
//! `SYNOD_STORAGE_SEEDS=0..20000 cargo test --release -p synod-storage --lib soak` runs more seeds.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use fastrand::Rng;
use synod_wire::{Acquaintance, ClusterId, GroupId, Incarnation, Introduction, Lsn, ReplicaId, Slot};

use crate::{
    DataDir, Durability, Keep, Lives, Loss, Options, PeerBook, Recovered, RecoveredRecord, SnapshotStore,
    StorageError, Wal,
    faulty::{FaultyDisk, Odds, SECTOR, SilentFault},
    wal::format::{PAGE, SegmentHeader, forged_records, segment_number},
};

const CLUSTER: ClusterId = ClusterId(0xc1);
const ME: ReplicaId = ReplicaId(1);
const DIR: &str = "/var/lib/synod/n1";

/// The harm that is done to the files at the end of a run. Every run also has ends of processes, power
/// failures at every operation, fsyncs that fail, full disks and torn renames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    None,
    /// A bit changes.
    Flip,
    /// A sector cannot be read.
    Spoil,
    LostWrite,
    MisdirectedWrite,
    /// A segment is deleted, emptied or cut.
    Segment,
    /// The log's directory is emptied.
    EmptyLog,
    /// The data directory is replaced by an older copy.
    OldDir,
    /// The data directory is emptied.
    Wipe,
}

/// What the replica knows to be durable, and what it does not know yet.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Records that were reported durable, each with its place.
    records: BTreeMap<Lsn, RecoveredRecord>,
    /// Records that were appended after these and not yet reported durable.
    unsure: Vec<RecoveredRecord>,
    commits: Vec<Commit>,
    /// Something other than later records proves that records through this one were durable.
    marked: Lsn,
    /// Records through this one survive a power failure.
    synced: Lsn,
    slot: u64,
    trimmed: Slot,
    /// Contents that were written for a snapshot, and whether one was reported durable.
    snapshots: BTreeMap<Slot, Vec<Vec<u8>>>,
    snapshot: Slot,
    births: BTreeMap<ReplicaId, u64>,
    /// What the book may hold instead, because a change of it got no answer.
    births_unsure: Option<BTreeMap<ReplicaId, u64>>,
    group: Option<Bytes>,
    groups_unsure: Vec<Bytes>,
    incarnation: Incarnation,
    birth: Option<u64>,
    salt: u64,
}

impl Model {
    /// The first record through `last` that the log must hold and does not.
    fn missing(&self, recovered: &Recovered, last: Lsn) -> Option<Lsn> {
        let there: BTreeSet<Lsn> = recovered.records.iter().map(|record| record.lsn).collect();
        let needed = |(lsn, record): &(&Lsn, &RecoveredRecord)| match record.keep {
            Keep::Slot(slot) => slot > self.trimmed,
            Keep::State(key) => {
                let mut later = self.records.range(lsn.next()..);
                !later.any(|(&at, later)| at <= recovered.last && later.keep == Keep::State(key))
            }
        };
        let mut promised = self.records.range(..=last).filter(needed).map(|(&lsn, _)| lsn);
        promised.find(|lsn| !there.contains(lsn))
    }
}

/// The place of a commit's records. A commit that spans segments counts as one in the last of them.
#[derive(Clone, Debug)]
struct Commit {
    last: Lsn,
    path: PathBuf,
    bytes: Range<usize>,
}

/// The files that one process has open.
struct Files {
    dir: DataDir,
    wal: Wal,
    store: SnapshotStore,
    peers: PeerBook,
    lives: Lives,
}

struct Run {
    rng: Rng,
    disk: FaultyDisk,
    options: Options,
    model: Model,
    /// What another replica remembers of this one: every life that ran, and the last record that it was told
    /// to be durable. The other replica is elsewhere, so no harm comes to its memory.
    known: Option<Acquaintance>,
    covered: BTreeSet<&'static str>,
}

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn wal_dir() -> PathBuf {
    dir().join("wal")
}

impl Run {
    fn new(seed: u64) -> Run {
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
    fn open(&mut self) -> Result<(Files, Recovered), StorageError> {
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
    fn meet(&mut self, files: &Files, recovered: &Recovered) {
        let who = files.lives.introduction(recovered.last);
        let met = self.known.map_or_else(|| Ok(Acquaintance::first(&who)), |known| known.meet(&who));
        self.known = Some(met.expect("nothing was forgotten"));
    }

    /// Compares what the log holds with what it must hold. The sectors in `harmed` differ from what was written.
    fn check(&mut self, recovered: &Recovered, harmed: &[SilentFault]) {
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
    fn live(&mut self, files: Files) -> bool {
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
            let tail = files.wal.tail().0;
            let segment = segment_number(tail.file_name().unwrap().to_str().unwrap()).unwrap();
            bytes = forged_records(files.dir.identity(), segment..segment + 8);
        }
        bytes.extend_from_slice(&salt.to_le_bytes());
        let keep = if self.rng.u8(0..5) == 0 {
            Keep::State(self.rng.u8(0..3))
        } else {
            self.model.slot = self.model.slot.max(self.model.trimmed.0) + self.rng.u64(0..3);
            Keep::Slot(Slot(self.model.slot.max(self.model.trimmed.0 + 1)))
        };
        let lsn = files.wal.appended().next();
        let mut writer = synod_wire::Writer::new();
        writer.shared(&Bytes::from(bytes));
        let record = writer.finish();
        self.model.unsure.push(RecoveredRecord {
            lsn,
            group: GroupId::FIRST,
            keep,
            bytes: record.to_bytes(),
        });
        files.wal.append(lsn, keep, record);
    }

    fn commit(&mut self, files: &mut Files) -> Result<(), StorageError> {
        let before = files.wal.tail();
        files.wal.commit()?;
        self.known = self.known.map(|known| known.heard(files.wal.durable()));
        let (path, end) = files.wal.tail();
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
    fn lives(&mut self, count: u32) {
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
    fn lives_without_fsync(&mut self, count: u32) {
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

    /// Runs a life at whose end something is harmed. What the next start reports must be true.
    fn harm(&mut self, harm: Harm) {
        let older = (self.disk.image(dir()), self.model.clone());
        let (files, recovered) = self.open().expect("it starts");
        self.check(&recovered, &[]);
        self.meet(&files, &recovered);
        let odds = match harm {
            Harm::LostWrite => Odds { lost_write: 100, ..Odds::default() },
            Harm::MisdirectedWrite => Odds { misdirected_write: 60, ..Odds::default() },
            _ => Odds::default(),
        };
        self.disk.set_odds(odds);
        let closed = self.live(files);
        self.disk.set_odds(Odds::default());
        if closed || self.rng.bool() {
            self.disk.kill();
        } else {
            self.disk.power_failure();
        }
        let mut harmed = self.disk.silent_faults();
        let mut noticed = false;
        match harm {
            Harm::None => {}
            Harm::Flip => harmed.extend(self.disk.rot(|_| true)),
            Harm::Spoil => harmed.extend(self.disk.spoil(|_| true)),
            Harm::LostWrite | Harm::MisdirectedWrite => self.disk.power_failure(),
            Harm::Segment => noticed = self.harm_segment(closed),
            Harm::EmptyLog => self.disk.put_back(&wal_dir(), &BTreeMap::new()),
            Harm::Wipe => return self.wipe(),
            Harm::OldDir => {
                // Only the other replicas can know what was forgotten with it.
                self.disk.put_back(dir(), &older.0);
                self.model = older.1;
            }
        }
        let hit = |name: &str| harmed.iter().any(|fault| fault.path.to_string_lossy().contains(name));
        let small = hit("identity") || hit("group") || hit("peers") || hit("lives") || hit("log.");
        match self.open() {
            Ok((files, recovered)) => {
                if matches!(harm, Harm::None | Harm::OldDir) {
                    assert_eq!((&recovered.damage, &recovered.loss), (&None, &None));
                }
                assert!(!noticed || recovered.damage.is_some(), "a segment is not as it was");
                self.check(&recovered, &harmed);
                match harm {
                    Harm::None => self.meet(&files, &recovered),
                    Harm::OldDir => self.find_out(files, &recovered),
                    _ => self.set_aside(files, &recovered),
                }
            }
            Err(error) => {
                assert!(!harmed.is_empty() && small, "{error}; {harmed:?}");
                self.covered.insert("a start was refused");
            }
        }
    }

    /// Whether the harm must be noticed.
    fn harm_segment(&mut self, closed: bool) -> bool {
        let image = self.disk.image(&wal_dir());
        let segments: Vec<_> =
            image.keys().filter(|path| path.extension().is_some_and(|e| e == "wal")).collect();
        if segments.is_empty() {
            return false;
        }
        let index = self.rng.usize(..segments.len());
        let path = segments[index];
        // A segment that began before it was prepared is listed with its length of that time, and grows.
        let list = String::from_utf8_lossy(&image[&wal_dir().join("log.segments")]);
        let name = path.file_stem().unwrap().to_str().unwrap();
        let listed = list.lines().find_map(|line| line.strip_prefix(&format!("segment.{name} = ")));
        let bytes = |entry: &str| entry.split(' ').next().unwrap().parse::<usize>().unwrap();
        let Some(listed) = listed.map(bytes) else { return false };
        // The end of a closed log is known, so a segment that had not begun by then is not needed.
        let last = self.model.records.keys().next_back().copied().unwrap_or(Lsn::ZERO);
        let header = SegmentHeader::decode(&image[path][..PAGE]);
        let matters = !closed || header.is_ok_and(|header| header.first_lsn <= last);
        match self.rng.u8(0..3) {
            0 => self.disk.delete(path),
            1 => self.disk.put(path, &[]),
            _ => {
                self.disk.put(path, &image[path][..self.rng.usize(..listed)]);
                // Perhaps only unwritten room was cut off, in a segment with others after it.
                return matters && index + 1 == segments.len();
            }
        }
        matters
    }

    /// The other replica refuses a life on an older directory. So the directory begins again without its log,
    /// also if the disk fails meanwhile.
    fn find_out(&mut self, files: Files, recovered: &Recovered) {
        let known = self.known.expect("it was met");
        let stranger = known.meet(&files.lives.introduction(recovered.last)).expect_err("it forgot a life");
        self.covered.insert("a copy was found out");
        files.lives.outlived_by(stranger.known.incarnation).expect("nothing fails now");
        drop(files);
        self.disk.crash_after(self.rng.u64(0..60));
        _ = self.open();
        self.disk.power_failure();
        let (files, recovered) = self.open().expect("it starts");
        assert_eq!((recovered.damage, recovered.loss), (None, Some(Loss::LogMissing)));
        files.lives.begin_without_memory().expect("nothing fails now");
        known.meet(&files.lives.introduction(recovered.last)).expect("it knows that it forgot");
    }

    /// Does what a replica does with a damaged log: it starts a new one with the records that it still trusts.
    fn set_aside(&mut self, files: Files, recovered: &Recovered) {
        let mut files = files;
        if recovered.damage.is_some() {
            self.covered.insert("damage was found");
            let mut kept = recovered.records.clone();
            kept.retain(|_| self.rng.u8(0..4) > 0);
            let as_written = |record: &RecoveredRecord| {
                let mut writer = synod_wire::Writer::new();
                record.bytes.iter().for_each(|&byte| writer.u8(byte));
                (record.group, record.keep, writer.finish())
            };
            // If power fails at any of its operations, all of it happens or nothing.
            if self.rng.bool() {
                self.disk.crash_after(self.rng.u64(0..60));
            }
            if let Ok(last) = files.wal.quarantine(kept.iter().map(as_written)) {
                assert!(last >= recovered.last);
            }
            drop(files);
            self.disk.power_failure();
            let (mut files, mut again) = self.open().expect("it starts");
            if again.damage.is_some() {
                self.covered.insert("a repair was interrupted");
                self.check(&again, &[]);
                let there: BTreeSet<Lsn> = again.records.iter().map(|record| record.lsn).collect();
                let durable =
                    recovered.records.iter().filter(|record| self.model.records.contains_key(&record.lsn));
                let gone: Vec<_> = durable.filter(|record| !there.contains(&record.lsn)).collect();
                assert!(gone.is_empty(), "an interrupted repair lost {gone:?}");
                files.wal.quarantine(kept.iter().map(as_written)).unwrap();
                drop(files);
                self.disk.power_failure();
                (files, again) = self.open().expect("it starts");
            }
            drop(files);
            assert!(matches!(again.loss, Some(Loss::Quarantined(_))), "{:?}", again.loss);
            let of = |record: &RecoveredRecord| (record.keep, record.bytes.clone());
            assert!(again.records.iter().map(of).eq(kept.iter().map(of)), "what was kept is there");
            assert_eq!(again.damage, None);
        } else if recovered.loss.is_some() {
            self.covered.insert("a loss was found");
        }
    }

    /// An emptied directory belongs to another replica, and the rest of the old files is not used.
    fn wipe(&mut self) {
        let old_log = self.disk.image(&wal_dir());
        let birth = std::mem::take(&mut self.model).birth;
        self.disk.put_back(dir(), &BTreeMap::new());
        let (files, recovered) = self.open().expect("it starts");
        assert_ne!(Some(files.dir.identity().birth), birth);
        assert!(files.dir.is_first_start() && recovered.damage.is_none() && recovered.loss.is_none());
        assert_eq!((recovered.records, recovered.last), (Vec::new(), Lsn::ZERO));
        drop((files.wal, files.dir));
        self.disk.kill();
        self.disk.put_back(&wal_dir(), &old_log);
        let Err(error) = self.open() else { panic!("it takes another one's log for its own") };
        assert!(matches!(error, StorageError::OtherIdentity { .. }), "{error}");
        self.covered.insert("another one's log was refused");
    }
}

fn run(seed: u64, harm: Harm, covered: &mut BTreeSet<&'static str>) {
    let mut run = Run::new(seed);
    // The parents of the data directory do not exist either.
    let lives = run.rng.u32(1..6);
    run.lives(lives);
    run.harm(harm);
    covered.append(&mut run.covered);
}

fn seeds(harm: Harm, default: u64, situations: &[&'static str]) {
    seeds_of(&format!("{harm:?}"), |seed, covered| run(seed, harm, covered), default, situations);
}

/// Runs the seeds; a failure names its seed. Together the runs must reach all of these situations.
fn seeds_of(
    what: &str,
    run: impl Fn(u64, &mut BTreeSet<&'static str>),
    default: u64,
    situations: &[&'static str],
) {
    let asked_for = std::env::var("SYNOD_STORAGE_SEEDS").ok();
    let range = match &asked_for {
        Some(text) => {
            let (from, to) = text.split_once("..").expect("SYNOD_STORAGE_SEEDS=A..B");
            from.parse().unwrap()..to.parse().unwrap()
        }
        None => 0..default,
    };
    let mut covered = BTreeSet::new();
    for seed in range {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut covered)));
        if let Err(panic) = result {
            eprintln!("{what}, SYNOD_STORAGE_SEEDS={seed}..{}", seed + 1);
            std::panic::resume_unwind(panic);
        }
    }
    let missing: Vec<_> = situations.iter().filter(|situation| !covered.contains(*situation)).collect();
    assert!(asked_for.is_some() || missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn nothing_promised_is_lost_on_a_disk_that_fails_and_says_so() {
    seeds(
        Harm::None,
        300,
        &[
            "a disk was full",
            "a second process was refused",
            "a log was closed",
            "a log was trimmed",
            "a snapshot was written",
            "a start failed",
            "a torn tail was cut",
            "an idle log was marked",
            "an operation failed",
            "power failed",
        ],
    );
}

#[test]
fn a_log_that_waits_for_no_fsync_may_lose_its_end_and_is_never_damaged() {
    let lives = |seed, covered: &mut BTreeSet<&'static str>| {
        let mut run = Run::new(seed);
        let lives = run.rng.u32(2..10);
        run.lives_without_fsync(lives);
        covered.append(&mut run.covered);
    };
    seeds_of(
        "async",
        lives,
        300,
        &[
            "a life was in memory",
            "a log was closed",
            "a log was trimmed",
            "a loss was found",
            "a power failure left what was waited for alone",
            "power failed",
        ],
    );
}

#[test]
fn a_changed_bit_is_never_taken_for_what_was_written() {
    seeds(
        Harm::Flip,
        300,
        &[
            "damage was found",
            "a start was refused",
            "a last commit that rotted was cut",
            "a repair was interrupted",
        ],
    );
}

#[test]
fn a_sector_that_cannot_be_read_is_damage() {
    seeds(Harm::Spoil, 200, &["damage was found", "a start was refused"]);
}

#[test]
fn a_write_that_got_lost_is_found() {
    seeds(Harm::LostWrite, 300, &["damage was found"]);
}

#[test]
fn a_write_that_went_elsewhere_is_found() {
    seeds(Harm::MisdirectedWrite, 300, &["damage was found"]);
}

#[test]
fn a_log_that_lost_a_segment_is_damaged() {
    seeds(Harm::Segment, 200, &["damage was found"]);
}

#[test]
fn a_data_directory_of_an_earlier_day_is_whole() {
    seeds(Harm::OldDir, 100, &["a copy was found out"]);
}

#[test]
fn a_log_that_was_emptied_is_missed() {
    seeds(Harm::EmptyLog, 100, &["a loss was found"]);
}

#[test]
fn a_directory_that_was_emptied_is_another_replica_s() {
    seeds(Harm::Wipe, 100, &["another one's log was refused"]);
}
