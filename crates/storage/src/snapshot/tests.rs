use std::{
    fs::{self, File},
    io::{IoSlice, Read, Write},
};

use super::{
    format::{CHUNK_BYTES, FORMAT, HEADER_BYTES, TRAILER_BYTES},
    *,
};
use crate::disk::{DiskFile, RealDisk, open_real};
use synod_wire::Written;

const CLUSTER: ClusterId = ClusterId(0xc1);

fn store(dir: &Path) -> SnapshotStore {
    SnapshotStore::open(dir, CLUSTER).unwrap()
}

fn contents(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 253) as u8).collect()
}

fn write(store: &SnapshotStore, slot: u64, contents: &[u8]) -> SnapshotFile {
    let mut writer = store.create(Slot(slot)).unwrap();
    // The pieces do not match the chunks.
    contents.chunks(100_003).for_each(|piece| writer.write_all(piece).unwrap());
    writer.finish().unwrap()
}

fn read(store: &SnapshotStore, slot: u64) -> Vec<u8> {
    let mut all = Vec::new();
    store.open_snapshot(Slot(slot)).unwrap().read_to_end(&mut all).unwrap();
    all
}

fn files(store: &SnapshotStore) -> Vec<String> {
    file_names(&RealDisk, store.dir()).unwrap()
}

#[test]
fn contents_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let sizes = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 17];
    for (slot, size) in (1..).zip(sizes) {
        let file = write(&store, slot, &contents(size));
        assert_eq!(file.file_bytes, fs::metadata(&file.path).unwrap().len());
        assert_eq!(read(&store, slot), contents(size), "{size} bytes");
        let reader = store.open_snapshot(Slot(slot)).unwrap();
        assert_eq!((reader.slot(), reader.length()), (Slot(slot), size as u64));
        assert_eq!(store.latest().unwrap(), LatestSnapshot { snapshot: Some(file), damaged: Vec::new() });
    }
    store.retain(2).unwrap();
    assert_eq!(store.slots().unwrap(), [Slot(6), Slot(7)]);
    assert!(matches!(store.open_snapshot(Slot(1)), Err(StorageError::NoSnapshot { .. })));
    assert!(matches!(store.read_chunk(Slot(1), 0, 10), Err(StorageError::NoSnapshot { .. })));
}

#[test]
fn an_unfinished_snapshot_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let old = write(&store, 5, b"old");
    let mut writer = store.create(Slot(9)).unwrap();
    writer.write_all(&contents(2 * CHUNK_BYTES)).unwrap();
    assert_eq!(store.latest().unwrap().snapshot, Some(old.clone()));
    writer.abort();
    assert_eq!(files(&store).len(), 1);

    // A crash leaves the temporary file behind.
    std::mem::forget(store.create(Slot(9)).unwrap());
    assert_eq!(files(&store).len(), 2);
    let store = SnapshotStore::open(dir.path(), CLUSTER).unwrap();
    assert_eq!(files(&store).len(), 1);
    assert_eq!(store.latest().unwrap().snapshot, Some(old));
}

#[test]
fn a_damaged_snapshot_is_passed_over() {
    let template = tempfile::tempdir().unwrap();
    let file = write(&store(template.path()), 9, &contents(CHUNK_BYTES + 300));
    let bytes = fs::read(&file.path).unwrap();
    let len = bytes.len();
    let mut damages: Vec<(String, Vec<u8>)> = Vec::new();
    let interesting =
        (0..HEADER_BYTES + 20).chain(len - TRAILER_BYTES - 20..len).chain((0..len).step_by(9973));
    for at in interesting {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        damages.push((format!("byte {at}"), damaged));
    }
    for cut in [0, 10, HEADER_BYTES, CHUNK_BYTES, len - TRAILER_BYTES, len - 1] {
        damages.push((format!("cut at {cut}"), bytes[..cut].to_vec()));
    }
    damages.push(("one byte more".to_owned(), [&bytes[..], &[0]].concat()));
    for (what, damaged) in damages {
        let dir = tempfile::tempdir().unwrap();
        let older = write(&store(dir.path()), 4, b"older");
        fs::write(dir.path().join(file_name(Slot(9))), &damaged).unwrap();
        // This store did not write the file itself.
        let store = store(dir.path());
        if let Ok(mut reader) = store.open_snapshot(Slot(9)) {
            let mut read = Vec::new();
            let error = reader.read_to_end(&mut read).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}");
            assert!(contents(CHUNK_BYTES + 300).starts_with(&read), "{what}: wrong bytes were handed out");
        }
        let latest = store.latest().unwrap();
        assert_eq!(latest.snapshot, Some(older), "{what}");
        assert_eq!(latest.damaged.len(), 1, "{what}");
        assert_eq!(latest.damaged[0].slot, Slot(9));
        // Looking changes nothing: this may be the only copy, and the disk may be able to read it later.
        assert_eq!(store.latest().unwrap(), latest, "{what}");
        store.set_aside(&latest.damaged).unwrap();
        assert!(files(&store).contains(&"snapshot-00000000000000000009.snap.damaged".to_owned()));
        assert_eq!(store.latest().unwrap().damaged, []);
    }
}

#[test]
fn a_snapshot_of_another_version_is_refused_and_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    write(&store(dir.path()), 4, b"older");
    let path = write(&store(dir.path()), 9, b"newer").path;
    let mut bytes = fs::read(&path).unwrap();
    let version = FORMAT.written.version + 1;
    bytes[..20].copy_from_slice(&Written { version, readers: version }.head(*b"SYNODSNP"));
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let error = store(dir.path()).latest().unwrap_err();
    assert!(matches!(error, StorageError::Version { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_snapshot_travels_to_a_peer() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (sender, receiver) = (store(here.path()), store(there.path()));
    let file = write(&sender, 12, &contents(2 * CHUNK_BYTES + 5));
    let mut receiving = receiver.receive(Slot(12), file.file_bytes).unwrap();
    let mut round = 0;
    while !receiving.is_complete() {
        let at = receiving.offset();
        let chunk = sender.read_chunk(Slot(12), at, 50_000).unwrap();
        // A piece that comes twice, or after one that was lost, changes nothing.
        assert_eq!(receiving.write_chunk(at + 1, &chunk).unwrap(), at);
        let next = receiving.write_chunk(at, &chunk).unwrap();
        assert_eq!(next, at + chunk.len() as u64);
        assert_eq!(receiving.write_chunk(at, &chunk).unwrap(), next);
        round += 1;
    }
    assert!(round > 10);
    assert!(sender.read_chunk(Slot(12), file.file_bytes, 100).unwrap().is_empty());
    assert_eq!(receiver.latest().unwrap().snapshot, None);
    let received = receiving.finish().unwrap();
    assert_eq!((received.slot, received.file_bytes), (Slot(12), file.file_bytes));
    assert_eq!(read(&receiver, 12), contents(2 * CHUNK_BYTES + 5));
    assert_eq!(files(&receiver).len(), 1);
}

/// Several groups are in one file, which has the slot of the group that took it.
#[test]
fn a_file_of_several_groups_gets_the_slot_of_the_group_that_received_it() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (sender, receiver) = (store(here.path()), store(there.path()));
    let file = write(&sender, 400, &contents(2 * CHUNK_BYTES + 5));
    let whole = sender.read_chunk(Slot(400), 0, usize::MAX).unwrap();
    let receive = |slot, bytes: &[u8]| {
        let mut receiving = receiver.receive(Slot(slot), file.file_bytes).unwrap();
        receiving.write_chunk(0, &Bytes::copy_from_slice(bytes)).unwrap();
        receiving
    };
    let error = receive(399, &whole).finish().unwrap_err();
    assert!(error.to_string().contains("it is of slot 400, not 399"), "{error}");
    assert!(receive(399, &whole).finish_for_group(|_| false).is_err(), "the caller looks at the contents");
    let received = receive(399, &whole).finish_for_group(|_| true).unwrap();
    assert_eq!((received.slot, received.file_bytes), (Slot(399), file.file_bytes));
    assert_eq!(read(&receiver, 399), contents(2 * CHUNK_BYTES + 5));
    // A life after this one finds it whole.
    assert_eq!(store(there.path()).latest().unwrap().snapshot.map(|found| found.slot), Some(Slot(399)));
    receive(400, &whole).finish_for_group(|_| true).unwrap();
    assert_eq!(read(&receiver, 400), contents(2 * CHUNK_BYTES + 5));
    let mut flipped = whole.to_vec();
    flipped[200] ^= 1;
    assert!(receive(401, &flipped).finish_for_group(|_| true).is_err());
    assert_eq!(files(&receiver).len(), 2);
}

#[test]
fn what_a_peer_sends_wrongly_is_refused_and_leaves_nothing() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (sender, receiver) = (store(here.path()), store(there.path()));
    let file = write(&sender, 12, &contents(1000));
    let whole = sender.read_chunk(Slot(12), 0, usize::MAX).unwrap();
    assert_eq!(whole.len() as u64, file.file_bytes);
    let attempt = |slot: u64, announced: u64, bytes: &[u8]| -> Result<SnapshotFile, StorageError> {
        let mut receiving = receiver.receive(Slot(slot), announced)?;
        receiving.write_chunk(0, &Bytes::copy_from_slice(bytes))?;
        receiving.finish()
    };
    let mut flipped = whole.to_vec();
    flipped[200] ^= 1;
    let len = whole.len() as u64;
    let wrong = [
        attempt(12, len, &flipped),
        attempt(13, len, &whole),
        attempt(12, len + 1, &whole),
        attempt(12, len - 1, &whole),
        attempt(12, len - 1, &whole[..whole.len() - 1]),
        attempt(12, 0, &[]),
        attempt(12, 1000, &[0; 1000]),
    ];
    for (i, result) in wrong.into_iter().enumerate() {
        assert!(matches!(result, Err(StorageError::SnapshotRejected { .. })), "{i}: {result:?}");
    }
    let other = SnapshotStore::open(there.path(), ClusterId(2)).unwrap();
    let mut receiving = other.receive(Slot(12), len).unwrap();
    receiving.write_chunk(0, &whole).unwrap();
    let error = receiving.finish().unwrap_err();
    assert!(error.to_string().contains("cluster"), "{error}");
    assert_eq!(files(&receiver), [""; 0]);
    attempt(12, len, &whole).unwrap();
}

/// A disk that has room for this many more bytes.
#[derive(Clone, Debug)]
struct Room(Arc<AtomicU64>);

#[derive(Debug)]
struct RoomFile(File, Room);

impl Disk for Room {
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RoomFile(open_real(path, how)?, self.clone())))
    }
}

impl DiskFile for RoomFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        DiskFile::read_at(&self.0, buffer, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let room = &self.1.0;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        if room.fetch_sub(wanted as u64, Ordering::SeqCst) < wanted as u64 {
            room.store(0, Ordering::SeqCst);
            return Err(io::ErrorKind::StorageFull.into());
        }
        DiskFile::write_at(&self.0, parts, offset)
    }

    fn sync(&self) -> io::Result<()> {
        DiskFile::sync(&self.0)
    }

    fn bytes(&self) -> io::Result<u64> {
        DiskFile::bytes(&self.0)
    }
}

#[test]
fn a_full_disk_leaves_no_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    for room in [0, 100, CHUNK_BYTES as u64 + 100] {
        let disk = Room(Arc::new(AtomicU64::new(room)));
        let store = SnapshotStore::open_on(Arc::new(disk), dir.path(), CLUSTER).unwrap();
        let mut writer = store.create(Slot(3)).unwrap();
        let written = writer.write_all(&contents(3 * CHUNK_BYTES));
        assert!(written.is_err());
        let error = writer.finish().unwrap_err();
        assert!(matches!(error, StorageError::Full { .. }), "{error}");
        assert_eq!(files(&store), [""; 0]);
    }
}
