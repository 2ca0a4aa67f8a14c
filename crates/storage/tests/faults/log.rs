//! The write-ahead log.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use synod_storage::{Disk, Durability, How, Identity, Keep, Options, Recovered, RecoveredRecord, Wal};
use synod_testkit::{FaultyDisk, Odds, SECTOR};
use synod_wire::{ClusterId, Encoded, GroupId, Incarnation, Lsn, ReplicaId, Slot, Writer};

const IDENTITY: Identity =
    Identity { cluster: ClusterId(0xc1a5), replica: ReplicaId(2), birth: 6, incarnation: Incarnation(1) };

/// Small segments, so that few records fill many.
fn options() -> Options {
    Options { segment_bytes: 16 << 10, recycled_segments_max: 2, ..Options::default() }
}

/// Appends a record and returns it as it should come back.
fn append(wal: &mut Wal, keep: Keep, bytes: &[u8]) -> RecoveredRecord {
    let mut writer = Writer::new();
    writer.shared(&Bytes::copy_from_slice(bytes));
    let (group, record) = (GroupId::FIRST, writer.finish());
    let bytes = record.to_bytes();
    RecoveredRecord { lsn: wal.append_to(group, keep, record), group, keep, bytes }
}

/// The records in the form in which they are written again.
fn as_written(records: &[RecoveredRecord]) -> Vec<(GroupId, Keep, Encoded)> {
    let again = |record: &RecoveredRecord| {
        let mut writer = Writer::new();
        writer.shared(&record.bytes);
        (record.group, record.keep, writer.finish())
    };
    records.iter().map(again).collect()
}

fn slot(slot: u64) -> Keep {
    Keep::Slot(Slot(slot))
}

fn lsns(records: &[RecoveredRecord]) -> Vec<u64> {
    records.iter().map(|record| record.lsn.0).collect()
}

fn segment_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("{segment:020}.wal"))
}

/// Writes bytes in the midst of a file; the disk may accept them in pieces.
fn write(disk: &FaultyDisk, path: &Path, bytes: &[u8], at: u64) {
    let file = disk.open(path, How::Write).unwrap();
    let mut written = 0;
    while written < bytes.len() {
        written += file.write_at(&[IoSlice::new(&bytes[written..])], at + written as u64).unwrap();
    }
}

/// The fsync that was to make a new segment's head durable fails, and the segment's first record is torn.
/// What is left of the segment is a head that only the kernel's memory has.
#[test]
fn a_head_that_nothing_proves_durable_is_written_again() {
    let (mut gone_on, mut forgotten) = (0, 0);
    for seed in 0..200 {
        let disk = FaultyDisk::new(seed);
        let dir = Path::new("/wal");
        let open = || Wal::open_on(Arc::new(disk.clone()), dir, IDENTITY, options()).unwrap();
        let (mut wal, _) = open();
        let promise = append(&mut wal, Keep::State(0), &[7; 1500]);
        append(&mut wal, slot(1), &[1; 9_000]);
        wal.commit().unwrap();
        while wal.work_a_step() {}
        disk.set_odds(Odds { sync_fails: 500, ..Odds::default() });
        append(&mut wal, slot(2), &[2; 6_000]);
        let committed = wal.commit();
        disk.set_odds(Odds::default());
        let begun = segment_path(dir, 2);
        let mut magic = [0; 8];
        disk.open(&begun, How::Read).unwrap().read_at(&mut magic, 0).unwrap();
        if committed.is_ok() || magic != *b"SYNODWAL" {
            // The second fsync did not fail in this round; the first one makes the segment before durable.
            continue;
        }
        write(&disk, &begun, &[0; 1024], 4096 + 2048);
        drop(wal);
        disk.kill();

        let (mut wal, recovered) = open();
        assert_eq!((recovered.last, &recovered.damage), (Lsn(2), &None), "seed {seed}");
        if wal.tail().unwrap().0 == begun {
            gone_on += 1;
        } else {
            forgotten += 1;
        }
        append(&mut wal, slot(2), &[3; 6_000]);
        wal.commit().unwrap();
        wal.trim(Slot(1)).unwrap();
        while wal.work_a_step() {}
        assert!(disk.file_bytes(&segment_path(dir, 1)).is_err());
        drop(wal);
        disk.power_failure();
        let (_, recovered) = open();
        assert_eq!((lsns(&recovered.records), recovered.damage), (vec![1, 3], None), "seed {seed}");
        assert_eq!(recovered.records[0], promise);
    }
    assert!(gone_on > 5 && forgotten > 5, "{gone_on} {forgotten}");
}

#[test]
fn a_prepared_segment_with_a_sector_that_cannot_be_read_is_made_again() {
    let mut harmless = 0;
    for seed in 0..40 {
        let disk = FaultyDisk::new(seed);
        disk.create_dir(Path::new("/wal")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let dir = Path::new("/wal");
        let open = || Wal::open_on(Arc::new(disk.clone()), dir, IDENTITY, options()).unwrap();
        let (mut wal, _) = open();
        let record = append(&mut wal, slot(1), b"one");
        wal.commit().unwrap();
        while wal.work_a_step() {}
        disk.kill();
        drop(wal);
        let prepared = segment_path(dir, 2);
        let spoilt = disk.spoil(|path| path == prepared).unwrap();
        let (mut wal, recovered) = open();
        assert_eq!(recovered.records, [record]);
        // Where a header would be, it is not known that there is none.
        let begun = spoilt.sector * SECTOR < 4096;
        assert_eq!(recovered.damage.is_some(), begun, "{spoilt:?}");
        if !begun {
            harmless += 1;
            while wal.work_a_step() {}
            assert!(disk.image(dir)[&prepared].iter().all(|&byte| byte == 0));
            let again = open_again(&disk, wal, dir);
            assert_eq!(again.damage, None);
        }
    }
    assert!(harmless > 10, "{harmless}");
}

/// What the next start finds.
fn open_again(disk: &FaultyDisk, wal: Wal, dir: &Path) -> Recovered {
    disk.kill();
    drop(wal);
    Wal::open_on(Arc::new(disk.clone()), dir, IDENTITY, options()).unwrap().1
}

/// Wherever a power failure interrupts it, the setting aside by a life in memory is undone or done, and every
/// later start says the truth.
#[test]
fn a_setting_aside_in_memory_may_be_interrupted_anywhere() {
    let open_on = |disk: &FaultyDisk, durability| {
        let options = Options { durability, ..options() };
        Wal::open_on(Arc::new(disk.clone()), Path::new("/wal"), IDENTITY, options)
    };
    let (mut undone, mut done) = (0, 0);
    for operations in 0..120 {
        let disk = FaultyDisk::new(operations);
        let (mut wal, _) = open_on(&disk, Durability::Sync).unwrap();
        for i in 1..=20 {
            append(&mut wal, slot(i), &[i as u8; 1000]);
            wal.commit().unwrap();
        }
        wal.mark_durable().unwrap();
        drop(wal);
        disk.rot(|path| path.ends_with("00000000000000000001.wal"));
        disk.kill();
        let (wal, recovered) = open_on(&disk, Durability::Memory).unwrap();
        disk.kill();
        drop(wal);
        if recovered.damage.is_none() {
            continue;
        }
        // Lives in memory follow each other, then one that waits for the disk, each interrupted somewhere.
        for durability in [Durability::Memory, Durability::Memory, Durability::Sync, Durability::Sync] {
            disk.crash_after(operations % 40);
            if let Ok((mut wal, recovered)) = open_on(&disk, durability)
                && recovered.damage.is_some()
            {
                _ = wal.quarantine(as_written(&recovered.records));
            }
            disk.power_failure();
        }
        let (mut wal, mut recovered) = open_on(&disk, Durability::Sync).unwrap();
        assert!(recovered.damage.is_some() || recovered.loss.is_some());
        if recovered.damage.is_some() {
            undone += 1;
            wal.quarantine([]).unwrap();
            disk.kill();
            drop(wal);
            (wal, recovered) = open_on(&disk, Durability::Sync).unwrap();
        } else {
            done += 1;
        }
        assert_eq!(recovered.damage, None, "after {operations} operations");
        append(&mut wal, slot(50), b"after");
        wal.commit().unwrap();
        disk.power_failure();
        drop(wal);
        let (_, recovered) = open_on(&disk, Durability::Sync).unwrap();
        assert_eq!((recovered.records.len(), recovered.damage), (1, None), "after {operations} operations");
    }
    assert!(undone > 0 && done > 10, "{undone} undone, {done} done");
}

/// The second attempt found the segment gone and reported it as retired, though the attempt that removed
/// it could not make that durable.
#[test]
fn a_segment_that_was_retired_at_the_second_attempt_does_not_come_back() {
    let dir = Path::new("/wal");
    for recycled_segments_max in [0, 2] {
        for crash in 0..12 {
            for seed in 0..10 {
                let disk = FaultyDisk::new(seed);
                let options = Options { recycled_segments_max, ..options() };
                let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir, IDENTITY, options).unwrap();
                for number in 1..=4 {
                    append(&mut wal, slot(number), &[number as u8; 9_000]);
                    wal.commit().unwrap();
                    while wal.work_a_step() {}
                }
                let path = segment_path(dir, 2);
                assert!(disk.file_bytes(&path).is_ok());
                wal.trim(Slot(1)).unwrap();
                while wal.work_a_step() {}

                wal.trim(Slot(2)).unwrap();
                disk.crash_after(crash);
                wal.work_a_step();
                let done = disk.file_bytes(&path).is_err();
                disk.crash_after(u64::MAX);
                // What is let go of now comes after what could not be taken out before.
                wal.trim(Slot(3)).unwrap();
                wal.work_a_step();
                let spare = disk.file_bytes(&path.with_extension("spare")).is_ok();
                assert_eq!(spare, recycled_segments_max > 0);
                disk.power_failure();
                let there = disk.file_bytes(&path).is_ok();
                assert!(!there, "crash at {crash}, seed {seed}; at the first attempt: {done}");
            }
        }
    }
}
