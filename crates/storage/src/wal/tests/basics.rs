//! What the log does when nothing goes wrong.

use std::fs;

use super::*;
use crate::disk::file_names;

#[test]
fn records_come_back_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for life in 0..4 {
        let (mut wal, recovered) = open(dir.path());
        assert_eq!(recovered.records, written);
        assert_eq!(recovered.last, Lsn(written.len() as u64));
        assert_eq!((recovered.damage, recovered.loss, recovered.torn_bytes_cut), (None, None, 0));
        for i in 0..20 {
            let keep = if i % 7 == 0 { Keep::State(i as u8 % 3) } else { slot(life * 20 + i) };
            written.push(append(&mut wal, keep, &vec![i as u8; (i * 97) as usize]));
            if i % 3 == 0 {
                assert_eq!(wal.commit().unwrap(), Lsn(written.len() as u64));
            }
        }
        wal.commit().unwrap();
        assert_eq!(wal.durable(), Lsn(written.len() as u64));
        if life % 2 == 0 {
            wal.close().unwrap();
        }
    }
}

#[test]
fn a_commit_is_one_write_and_one_fsync() {
    let dir = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let options = Options { segment_bytes: 1 << 20, ..options() };
    let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    let before = disk.counts();
    for i in 1..=200 {
        append(&mut wal, slot(i), &[1; 600]);
    }
    assert_eq!(disk.counts(), before);
    assert!(wal.pending_bytes() > 200 * 600);
    assert_eq!(wal.commit().unwrap(), Lsn(200));
    assert_eq!(disk.counts(), (before.0 + 1, before.1 + 1));
    assert_eq!(wal.pending_bytes(), 0);
    // A commit without records costs nothing.
    assert_eq!(wal.commit().unwrap(), Lsn(200));
    assert_eq!(disk.counts(), (before.0 + 1, before.1 + 1));
}

#[test]
fn records_that_were_not_committed_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let kept = append(&mut wal, slot(1), b"kept");
    wal.commit().unwrap();
    append(&mut wal, slot(2), b"never written");
    drop(wal);
    assert_eq!(open(dir.path()).1.records, [kept]);
}

#[test]
fn state_outlives_the_segments_that_are_trimmed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append(&mut wal, Keep::State(1), b"overwritten");
    let one = append(&mut wal, Keep::State(1), b"promise one");
    let two = append(&mut wal, Keep::State(2), b"promise two");
    for i in 1..=100 {
        append(&mut wal, slot(i), &[i as u8; 1500]);
        wal.commit().unwrap();
    }
    let (segments, bytes) = (wal.segments(), wal.bytes());
    assert!(segments > 8 && bytes > 100 * 1500);
    wal.trim(Slot(60)).unwrap();
    assert!(wal.segments() < segments && wal.bytes() < bytes);
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);

    let (wal, recovered) = open(dir.path());
    assert_eq!(recovered.damage, None);
    assert_eq!(state(&recovered.records, 1), Some(&one));
    assert_eq!(state(&recovered.records, 2), Some(&two));
    let slots: Vec<_> = recovered
        .records
        .iter()
        .filter_map(|r| if let Keep::Slot(s) = r.keep { Some(s.0) } else { None })
        .collect();
    assert_eq!(slots.last(), Some(&100));
    assert!((50..=61).contains(&slots[0]), "trimmed by whole segments: {}", slots[0]);
    assert!(slots.windows(2).all(|pair| pair[1] == pair[0] + 1));
    drop(wal);
}

#[test]
fn an_overwritten_state_is_repeated_in_its_latest_form() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let mut latest = None;
    for i in 1..=60 {
        append(&mut wal, slot(i), &[0; 2000]);
        latest = Some(append(&mut wal, Keep::State(0), format!("promise {i}").as_bytes()));
        wal.commit().unwrap();
        wal.trim(Slot(i.saturating_sub(10))).unwrap();
    }
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    let (_, recovered) = open(dir.path());
    assert_eq!(state(&recovered.records, 0), latest.as_ref());
    assert!(lsns(&recovered.records).is_sorted_by(|a, b| a < b), "each record once, in order");
}

#[test]
fn trimmed_segments_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let mut written = Vec::new();
    for i in 1..=298 {
        written.push(append(&mut wal, slot(i), &[i as u8; 3000]));
        wal.commit().unwrap();
        wal.trim(Slot(i.saturating_sub(9))).unwrap();
        wal.files.as_ref().unwrap().preparer.settle();
        if i % 20 == 0 {
            let files = file_names(&RealDisk, dir.path()).unwrap();
            let logs = files.iter().filter(|name| name.ends_with(".wal")).count();
            let spares = files.iter().filter(|name| name.ends_with(".spare")).count();
            assert!(logs <= 5 && spares <= 2, "{files:?}");
        }
    }
    let active = &wal.files.as_ref().unwrap().active;
    let (path, end) = (active.path.clone(), active.end);
    let file = fs::read(&path).unwrap();
    assert!(file[end as usize..].iter().any(|&byte| byte != 0), "the file had a previous life");
    drop(wal);
    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.damage, None);
    let first = recovered.records[0].lsn.0 as usize;
    assert_eq!(recovered.records, written[first - 1..]);
}

#[test]
fn a_record_larger_than_a_segment_gets_one_that_is_large_enough() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let sizes = [10, 200_000, 10, 16 << 10, 12_000, 12_000, 70_000, 1];
    let mut written = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        written.push(append(&mut wal, slot(i as u64 + 1), &vec![i as u8; size]));
    }
    wal.commit().unwrap();
    drop(wal);
    let (mut wal, recovered) = open(dir.path());
    assert_eq!(recovered.records, written);
    wal.trim(Slot(7)).unwrap();
    append(&mut wal, slot(9), &[7; 100]);
    wal.commit().unwrap();
}

#[test]
fn a_writer_that_is_faster_than_the_preparer_takes_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let options = Options { segment_bytes: 8 << 20, ..options() };
    let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options.clone()).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    let before = disk.zero_writes.load(Ordering::SeqCst);
    disk.slow_zeros.store(true, Ordering::SeqCst);
    let mut written = Vec::new();
    for i in 1..=40 {
        written.push(append(&mut wal, slot(i), &vec![i as u8; 1 << 20]));
        wal.commit().unwrap();
    }
    let stats = wal.stats();
    assert!(stats.segments_begun >= 4 && stats.segment_waits >= 1, "{stats:?}");
    drop(wal);
    // Writing a segment through takes eight steps.
    let zero_writes = disk.zero_writes.load(Ordering::SeqCst) - before;
    assert!(zero_writes < 8 * stats.segments_begun, "{zero_writes} writes for {stats:?}");
    let (_, recovered) = Wal::open_on(Arc::new(TestDisk::default()), dir.path(), IDENTITY, options).unwrap();
    assert_eq!(recovered.damage, None);
    assert!(recovered.records == written);
}

#[test]
fn many_small_parts_in_one_commit_are_written_in_order() {
    // These are more buffers than one gathered write takes.
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 8 << 20, ..options() };
    let (mut wal, _) =
        Wal::open_on(Arc::new(TestDisk::default()), dir.path(), IDENTITY, options.clone()).unwrap();
    let written: Vec<_> =
        (1..=3000).map(|i| append(&mut wal, slot(i), &vec![i as u8; 513 + i as usize % 9])).collect();
    wal.commit().unwrap();
    drop(wal);
    let (_, recovered) = Wal::open_on(Arc::new(TestDisk::default()), dir.path(), IDENTITY, options).unwrap();
    assert_eq!(recovered.records, written);
}

#[test]
fn the_real_disk_works_too() {
    let dir = tempfile::tempdir().unwrap();
    for durability in [Durability::Sync, Durability::Async] {
        let path = dir.path().join(durability.to_string());
        let options = Options { durability, ..options() };
        let mut written = Vec::new();
        for _ in 0..3 {
            let (mut wal, recovered) = Wal::open(&path, IDENTITY, options.clone()).unwrap();
            assert_eq!(recovered.records, written);
            for i in 0..30 {
                written.push(append(&mut wal, slot(i), &[3; 1000]));
                wal.commit().unwrap();
            }
            wal.close().unwrap();
        }
    }
}

#[test]
fn two_processes_cannot_open_a_log_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path());
    let error = try_open(dir.path()).unwrap_err();
    assert!(matches!(error, StorageError::Locked { .. }), "{error}");
    drop(wal);
    open(dir.path());
}

#[test]
fn the_log_of_another_replica_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append(&mut wal, slot(1), b"x");
    wal.close().unwrap();
    for state_file in [true, false] {
        if !state_file {
            // The segments alone know their owner as well.
            fs::remove_file(dir.path().join("log.state")).unwrap();
        }
        for (cluster, replica, birth) in [(1, 2, 6), (0xc1a5, 3, 6), (0xc1a5, 2, 7)] {
            let (cluster, replica) = (ClusterId(cluster), ReplicaId(replica));
            let other = Identity { cluster, replica, birth, ..IDENTITY };
            let error = Wal::open(dir.path(), other, options()).unwrap_err();
            assert!(matches!(error, StorageError::OtherIdentity { .. }), "{error}");
        }
    }
    let later = Identity { incarnation: Incarnation(9), ..IDENTITY };
    assert_eq!(Wal::open(dir.path(), later, options()).unwrap().1.records.len(), 1);
}

#[test]
fn a_segment_size_out_of_bounds_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for segment_bytes in [0, 4096, 5 << 30] {
        let error = Wal::open(dir.path(), IDENTITY, Options { segment_bytes, ..options() }).unwrap_err();
        assert!(error.to_string().contains("segment_bytes"), "{error}");
    }
}

#[test]
#[should_panic(expected = "in the order of their numbers")]
fn a_gap_in_the_numbers_is_a_bug() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    wal.append(Lsn(2), slot(1), encoded(b"x"));
}

#[test]
fn segments_of_another_size_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for kib in [16, 64, 32, 16] {
        let options = Options { segment_bytes: kib << 10, ..options() };
        let (mut wal, recovered) =
            Wal::open_on(Arc::new(TestDisk::default()), dir.path(), IDENTITY, options).unwrap();
        assert_eq!(recovered.records, written);
        for i in 0..50 {
            written.push(append(&mut wal, slot(i), &[4; 1000]));
        }
        wal.commit().unwrap();
    }
}
