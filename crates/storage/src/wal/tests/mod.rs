//! Tests of the log as a whole. Most run on a disk whose fsync is free, since what they test is the logic.

mod basics;
mod corruption;
mod crash;
mod faults;
mod groups;
mod losses;
mod model;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, IoSlice},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use synod_wire::{ClusterId, Encoded, GroupId, Incarnation, Lsn, ReplicaId, Slot, Writer};

use super::{Keep, Options, Recovered, RecoveredRecord, Wal, format::segment_name};
use crate::{
    Durability, Identity, StorageError,
    disk::{Disk, DiskFile, How, RealDisk, open_real},
};

const IDENTITY: Identity =
    Identity { cluster: ClusterId(0xc1a5), replica: ReplicaId(2), birth: 6, incarnation: Incarnation(1) };

/// A disk that counts, and fails when it is told to. Its fsync does nothing.
#[derive(Clone, Debug, Default)]
struct TestDisk(Arc<TestState>);

#[derive(Debug)]
struct TestFile {
    file: File,
    path: PathBuf,
    disk: TestDisk,
}

impl std::ops::Deref for TestDisk {
    type Target = TestState;

    fn deref(&self) -> &TestState {
        &self.0
    }
}

#[derive(Debug, Default)]
struct TestState {
    writes: AtomicU64,
    syncs: AtomicU64,
    /// Whether writes of nothing but zeros take a while.
    slow_zeros: AtomicBool,
    zero_writes: AtomicU64,
    sync_fails: AtomicBool,
    /// Whether no file can be given the name of a segment.
    naming_fails: AtomicBool,
    /// The files with records that were written and not synced.
    dirty: Mutex<BTreeSet<u64>>,
    /// How many bytes can still be written; unlimited if `None`.
    room: Mutex<Option<u64>>,
}

impl TestDisk {
    fn set_room(&self, bytes: impl Into<Option<u64>>) {
        *self.room.lock().unwrap() = bytes.into();
    }

    /// Checks that the segments before a segment are durable when it begins, since that it has begun proves it.
    fn check_order(&self, path: &Path, file: &File, parts: &[IoSlice<'_>], offset: u64) {
        if !path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit()) {
            // This is one of the files beside the segments.
            return;
        }
        // The preparer's zeros are not records.
        if parts.iter().all(|part| part.iter().all(|&byte| byte == 0)) {
            self.zero_writes.fetch_add(1, Ordering::SeqCst);
            if self.slow_zeros.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
            }
            return;
        }
        let file = file.metadata().unwrap().ino();
        let mut dirty = self.dirty.lock().unwrap();
        if offset == 0 && parts[0].starts_with(b"SYNODWAL") {
            assert!(
                dirty.iter().all(|&other| other == file),
                "a segment began before the last one was durable"
            );
        }
        dirty.insert(file);
    }

    fn counts(&self) -> (u64, u64) {
        (self.writes.load(Ordering::SeqCst), self.syncs.load(Ordering::SeqCst))
    }
}

impl DiskFile for TestFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        DiskFile::read_at(&self.file, buffer, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.disk.writes.fetch_add(1, Ordering::SeqCst);
        self.disk.check_order(&self.path, &self.file, parts, offset);
        let mut room = self.disk.room.lock().unwrap();
        let Some(left) = room.as_mut() else { return DiskFile::write_at(&self.file, parts, offset) };
        // Like a real disk, it takes what still fits and refuses the rest at the next call.
        let wanted: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let fits = wanted.len().min(*left as usize);
        if fits == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *left -= fits as u64;
        DiskFile::write_at(&self.file, &[IoSlice::new(&wanted[..fits])], offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.dirty.lock().unwrap().remove(&self.file.metadata()?.ino());
        self.disk.syncs.fetch_add(1, Ordering::SeqCst);
        if self.disk.sync_fails.load(Ordering::SeqCst) {
            Err(io::Error::other("the disk is broken"))
        } else {
            Ok(())
        }
    }

    fn bytes(&self) -> io::Result<u64> {
        DiskFile::bytes(&self.file)
    }
}

impl Disk for TestDisk {
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(TestFile { file: open_real(path, how)?, path: path.to_owned(), disk: self.clone() }))
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.naming_fails.load(Ordering::SeqCst) && to.extension().is_some_and(|e| e == "wal") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        RealDisk.rename(from, to)
    }
}

/// Small segments, so that few records fill many.
fn options() -> Options {
    Options { segment_bytes: 16 << 10, recycled_segments_max: 2, ..Options::default() }
}

fn open(dir: &Path) -> (Wal, Recovered) {
    try_open(dir).unwrap()
}

fn try_open(dir: &Path) -> Result<(Wal, Recovered), StorageError> {
    Wal::open_on(Arc::new(TestDisk::default()), dir, IDENTITY, options())
}

fn encoded(bytes: &[u8]) -> Encoded {
    let mut writer = Writer::new();
    writer.shared(&Bytes::copy_from_slice(bytes));
    writer.finish()
}

/// Appends a record and returns it as it should come back.
fn append(wal: &mut Wal, keep: Keep, bytes: &[u8]) -> RecoveredRecord {
    append_to(wal, GroupId::FIRST, keep, bytes)
}

fn append_to(wal: &mut Wal, group: GroupId, keep: Keep, bytes: &[u8]) -> RecoveredRecord {
    let record = encoded(bytes);
    let bytes = record.to_bytes();
    let lsn = wal.append_to(group, keep, record);
    RecoveredRecord { lsn, group, keep, bytes }
}

/// The records in the form in which they are written again.
fn as_written(records: &[RecoveredRecord]) -> Vec<(GroupId, Keep, Encoded)> {
    let again = |record: &RecoveredRecord| {
        let mut writer = Writer::new();
        record.bytes.iter().for_each(|&byte| writer.u8(byte));
        (record.group, record.keep, writer.finish())
    };
    records.iter().map(again).collect()
}

fn slot(slot: u64) -> Keep {
    Keep::Slot(Slot(slot))
}

/// The latest record of a `State` key.
fn state(records: &[RecoveredRecord], key: u8) -> Option<&RecoveredRecord> {
    records.iter().rfind(|record| record.keep == Keep::State(key))
}

fn lsns(records: &[RecoveredRecord]) -> Vec<u64> {
    records.iter().map(|record| record.lsn.0).collect()
}

fn segment_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(segment_name(segment))
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}
