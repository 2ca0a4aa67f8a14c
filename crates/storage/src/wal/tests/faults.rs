//! Disks that fail and fill up.

use std::sync::atomic::Ordering;

use super::*;

#[test]
fn a_failed_fsync_is_never_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options()).unwrap();
    let acknowledged = append(&mut wal, slot(1), b"acknowledged");
    wal.commit().unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    disk.sync_fails.store(true, Ordering::SeqCst);
    append(&mut wal, slot(2), b"not acknowledged");
    let error = wal.commit().unwrap_err();
    assert!(error.to_string().contains("the disk is broken"), "{error}");
    assert_eq!(wal.durable(), Lsn(1));

    // The disk recovers, which does not help the log.
    disk.sync_fails.store(false, Ordering::SeqCst);
    let before = disk.counts();
    append(&mut wal, slot(3), b"refused");
    let again =
        [wal.commit().unwrap_err(), wal.trim(Slot(9)).unwrap_err(), wal.loss_made_good().unwrap_err()];
    assert!(again.iter().all(|e| e.to_string() == error.to_string()));
    assert_eq!(wal.close().unwrap_err().to_string(), error.to_string());
    assert_eq!(disk.counts(), before);

    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.records[0], acknowledged);
    assert!(recovered.records.len() <= 2);
}

#[test]
fn records_that_nothing_proves_durable_are_written_again() {
    // After a failed fsync, the kernel may show data that is not on the disk.
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append(&mut wal, slot(1), b"one");
    wal.commit().unwrap();
    append(&mut wal, slot(2), b"two");
    wal.commit().unwrap();
    drop(wal);
    let disk = TestDisk::default();
    disk.set_room(300);
    // There is no space even to write the records again, so the log does not open.
    let opened = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options());
    assert!(matches!(opened, Err(StorageError::Full { .. })));
    disk.set_room(None);
    disk.sync_fails.store(true, Ordering::SeqCst);
    assert!(Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options()).is_err());
    assert_eq!(open(dir.path()).1.records.len(), 2);
}

#[test]
fn a_full_disk_loses_nothing_acknowledged() {
    for room in (0..70_000).step_by(1777) {
        let dir = tempfile::tempdir().unwrap();
        let disk = TestDisk::default();
        let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options()).unwrap();
        disk.set_room(room);
        let mut acknowledged = Vec::new();
        let mut lost = Vec::new();
        let error = loop {
            let n = acknowledged.len() as u64;
            assert!(n < 100, "there is no room for that much");
            let records = [
                append(&mut wal, Keep::State(0), &n.to_le_bytes()),
                append(&mut wal, slot(n), &[n as u8; 1500]),
            ];
            match wal.commit() {
                Ok(_) => acknowledged.extend(records),
                Err(error) => {
                    lost.extend(records);
                    break error;
                }
            }
        };
        let StorageError::Full { dir: named, .. } = &error else { panic!("{error}") };
        assert_eq!(named, dir.path());
        assert!(error.to_string().contains("no space left"), "{error}");
        assert_eq!(wal.commit().unwrap_err().to_string(), error.to_string());
        drop(wal);

        let (_, recovered) = open(dir.path());
        assert_eq!(recovered.damage, None, "room for {room} bytes");
        let n = acknowledged.len();
        assert_eq!(recovered.records[..n], acknowledged, "room for {room} bytes");
        assert!(lost.starts_with(&recovered.records[n..]), "room for {room} bytes");
    }
}

#[test]
fn a_segment_that_could_not_be_prepared_is_tried_again_when_it_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options()).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    disk.naming_fails.store(true, Ordering::SeqCst);
    let mut written = Vec::new();
    let mut commit = |wal: &mut Wal| {
        written.push(append(wal, slot(1), &[7; 4_000]));
        wal.commit().unwrap();
        wal.files.as_ref().unwrap().preparer.settle();
    };
    // Segment 2 was ready earlier; segment 3 cannot be prepared, which does not matter yet.
    while wal.stats().segments_begun == 0 || wal.files.as_ref().unwrap().active.has_room_for(4_004) {
        commit(&mut wal);
    }
    assert_eq!((wal.stats().segments_begun, wal.stats().segment_waits), (1, 0));
    disk.naming_fails.store(false, Ordering::SeqCst);
    commit(&mut wal);
    assert_eq!((wal.stats().segments_begun, wal.stats().segment_waits), (2, 1));
    drop(wal);
    assert_eq!(open(dir.path()).1.records, written);
}

#[test]
fn a_disk_that_is_full_from_the_start_is_an_error() {
    for room in [0, 5_000, 20_000] {
        let dir = tempfile::tempdir().unwrap();
        let disk = TestDisk::default();
        disk.set_room(room);
        let error = Wal::open_on(Arc::new(disk), dir.path(), IDENTITY, options()).map(|_| ()).err();
        if room < 16 << 10 {
            assert!(matches!(error, Some(StorageError::Full { .. })), "room for {room}: {error:?}");
        }
        let (_, recovered) = open(dir.path());
        assert_eq!((recovered.records.len(), recovered.damage, recovered.loss), (0, None, None));
    }
}
