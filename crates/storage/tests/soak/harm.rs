//! Lives at whose end files are harmed.

use std::collections::{BTreeMap, BTreeSet};

use synod_storage::{Loss, Recovered, RecoveredRecord, StorageError};
use synod_testkit::Odds;
use synod_wire::Lsn;

use crate::lives::{Files, Run, dir, wal_dir};

/// The harm that is done to the files at the end of a run. Every run also has ends of processes, power
/// failures at every operation, fsyncs that fail, full disks and torn renames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
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

impl Run {
    /// Runs a life at whose end something is harmed. What the next start reports must be true.
    pub(super) fn harm(&mut self, harm: Harm) {
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
        let matters = !closed || first_lsn(&image[path]).is_some_and(|first| first <= last);
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

/// The number of the first record of a segment, if it was begun. The format is the one in ARCHITECTURE.md.
fn first_lsn(segment: &[u8]) -> Option<Lsn> {
    let first = segment.strip_prefix(b"SYNODWAL")?.get(40..48)?;
    Some(Lsn(u64::from_le_bytes(first.try_into().expect("8 bytes"))))
}
