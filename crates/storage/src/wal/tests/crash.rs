//! What a power failure in the middle of a commit leaves behind.

use super::*;
use crate::wal::format::forged_records;

/// Three committed records, then a commit of three more that a crash will tear. Returns all records, and
/// where in segment 1 the last commit begins and ends.
fn log_with_last_commit(dir: &Path) -> (Vec<RecoveredRecord>, usize, usize) {
    let (mut wal, _) = open(dir);
    let mut written = Vec::new();
    written.push(append(&mut wal, Keep::State(0), b"promise"));
    written.push(append(&mut wal, slot(1), b"first"));
    wal.commit().unwrap();
    written.push(append(&mut wal, slot(2), b"second"));
    wal.commit().unwrap();
    let start = wal.files.as_ref().unwrap().active.end as usize;
    written.push(append(&mut wal, slot(3), b"the third is a little longer than the others"));
    written.push(append(&mut wal, Keep::State(0), b"another promise"));
    written.push(append(&mut wal, slot(4), b"last"));
    wal.commit().unwrap();
    let end = wal.files.as_ref().unwrap().active.end as usize;
    (written, start, end)
}

/// Recovers after `tear`, checks that a prefix survived, goes on, and checks again. Returns how many survived.
fn survive(tear: impl FnOnce(&mut Vec<u8>), what: &str) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let (written, _, _) = log_with_last_commit(dir.path());
    change(&segment_path(dir.path(), 1), tear);

    let (mut wal, recovered) = open(dir.path());
    assert_eq!(recovered.damage, None, "{what}");
    let survived = recovered.records.len();
    assert!(survived >= 3, "{what}: what was committed before is there");
    assert_eq!(recovered.records, written[..survived], "{what}");
    assert_eq!(recovered.last, Lsn(survived as u64), "{what}");

    // These records are as long as the torn ones, so that remains of those would fit after them.
    let mut expected = recovered.records;
    for (i, old) in written[survived..].iter().enumerate() {
        expected.push(append(&mut wal, slot(100), &vec![b'n'; old.bytes.len() - 4]));
        wal.commit().unwrap();
        drop(wal);
        let recovered;
        (wal, recovered) = open(dir.path());
        assert_eq!((recovered.records, recovered.damage), (expected.clone(), None), "{what}, {i} later");
    }
    survived
}

#[test]
fn the_last_commit_may_be_cut_at_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (written, start, end) = log_with_last_commit(dir.path());
    let mut seen = Vec::new();
    for cut in start..=end {
        let survived = survive(|bytes| bytes[cut..].fill(0), &format!("zeros from {cut}"));
        survive(|bytes| bytes[cut..end].fill(0xaa), &format!("garbage from {cut}"));
        seen.push(survived);
    }
    assert!(seen.is_sorted());
    assert_eq!((seen[0], seen[seen.len() - 1]), (3, written.len()));
}

#[test]
fn any_stretch_of_the_last_commit_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, start, end) = log_with_last_commit(dir.path());
    for from in (start..end).step_by(5) {
        for to in (from + 1..end).step_by(11) {
            survive(|bytes| bytes[from..to].fill(0), &format!("bytes {from} to {to} missing"));
        }
    }
}

#[test]
fn a_torn_tail_is_reported_and_cut_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_, start, end) = log_with_last_commit(dir.path());
    change(&segment_path(dir.path(), 1), |bytes| bytes[start + 3] ^= 1);
    let (wal, recovered) = open(dir.path());
    assert_eq!(recovered.torn_bytes_cut, (end - start) as u64);
    drop(wal);
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.torn_bytes_cut, recovered.records.len()), (0, 3));
}

/// A log whose last commit began segment 2, and the segment's bytes before that.
fn log_with_new_segment(dir: &Path) -> Vec<RecoveredRecord> {
    let (mut wal, _) = open(dir);
    wal.files.as_ref().unwrap().preparer.settle();
    let mut written = Vec::new();
    written.push(append(&mut wal, Keep::State(3), b"promise"));
    written.push(append(&mut wal, slot(1), &[1; 10_000]));
    wal.commit().unwrap();
    written.push(append(&mut wal, slot(2), &[2; 5_000]));
    written.push(append(&mut wal, slot(3), b"three"));
    wal.commit().unwrap();
    assert_eq!(wal.segments(), 2);
    written
}

#[test]
fn a_crash_while_a_segment_begins_loses_nothing_that_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    log_with_new_segment(dir.path());
    let end = 4096 + 64 + 5_100 + 100;
    for from in (0..end).step_by(61) {
        for len in [8, 512, 4096, 20_000] {
            let dir = tempfile::tempdir().unwrap();
            let mut expected = log_with_new_segment(dir.path());
            change(&segment_path(dir.path(), 2), |bytes| {
                let to = (from + len).min(bytes.len());
                bytes[from..to].fill(0);
            });
            let (mut wal, recovered) = open(dir.path());
            assert_eq!(recovered.damage, None, "{len} bytes from {from}");
            let survived = recovered.records.len();
            assert!(survived >= 2, "{len} bytes from {from}");
            assert_eq!(recovered.records, expected[..survived]);
            expected.truncate(survived);
            for i in 0..3 {
                expected.push(append(&mut wal, slot(10 + i), &[9; 5_000]));
                wal.commit().unwrap();
            }
            drop(wal);
            let (_, recovered) = open(dir.path());
            assert_eq!((recovered.records, recovered.damage), (expected, None), "{len} bytes from {from}");
        }
    }
}

#[test]
fn a_segment_that_was_cut_off_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = log_with_new_segment(dir.path());
    // The first record of segment 2 is torn; the second one is whole, and would have the right number later.
    change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 72..4096 + 100].fill(0));
    let disk = TestDisk::default();
    // With this, no new segment is written over it by chance.
    disk.naming_fails.store(true, Ordering::SeqCst);
    let (mut wal, recovered) = Wal::open_on(Arc::new(disk), dir.path(), IDENTITY, options()).unwrap();
    assert_eq!(recovered.records, expected[..2]);
    expected.truncate(2);
    // Without the head of segment 2, which is whole, the log would go on in segment 1.
    expected.push(append(&mut wal, slot(2), b"another three"));
    wal.commit().unwrap();
    drop(wal);
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.damage), (expected, None));
}

#[test]
fn a_segment_with_a_torn_head_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = log_with_new_segment(dir.path());
    // The repeated promise and the first record are torn; the header and the second record are whole.
    change(&segment_path(dir.path(), 2), |bytes| bytes[4096..4096 + 100].fill(0));
    let disk = TestDisk::default();
    disk.naming_fails.store(true, Ordering::SeqCst);
    let (mut wal, recovered) = Wal::open_on(Arc::new(disk), dir.path(), IDENTITY, options()).unwrap();
    assert_eq!((&recovered.records[..], &recovered.damage), (&expected[..2], &None));
    assert_eq!(wal.segments(), 1);
    expected.truncate(2);
    expected.push(append(&mut wal, slot(2), b"another three"));
    wal.commit().unwrap();
    drop(wal);
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.damage), (expected, None));
}

/// The head of a segment is larger than a sector, so a power failure may keep what comes after the head.
#[test]
fn a_record_after_a_torn_head_is_torn() {
    for proven in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut wal, _) = open(dir.path());
        wal.files.as_ref().unwrap().preparer.settle();
        let mut written: Vec<_> = (0..3).map(|key| append(&mut wal, Keep::State(key), &[key; 600])).collect();
        written.push(append(&mut wal, slot(1), &[1; 9_000]));
        wal.commit().unwrap();
        written.push(append(&mut wal, slot(2), &[2; 5_000]));
        wal.commit().unwrap();
        assert_eq!(wal.segments(), 2);
        if proven {
            wal.mark_durable().unwrap();
        }
        drop(wal);
        change(&segment_path(dir.path(), 2), |bytes| bytes[4096..4608].fill(0));
        let (mut wal, recovered) = open(dir.path());
        if proven {
            // This damage is reported while the segment before still holds the promises.
            let damage = recovered.damage.unwrap();
            assert!(damage.to_string().contains("segment 2"), "{damage}");
            assert!(damage.state_intact);
            assert_eq!(recovered.records, written);
            continue;
        }
        written.pop();
        assert_eq!((recovered.last, recovered.damage), (Lsn(4), None));
        assert_eq!(recovered.records, written);
        // The promises outlive the segment in which they were made.
        append(&mut wal, slot(2), &[3; 5_000]);
        wal.commit().unwrap();
        wal.trim(Slot(1)).unwrap();
        wal.files.as_ref().unwrap().preparer.settle();
        assert_eq!(wal.segments(), 1);
        drop(wal);
        let (_, recovered) = open(dir.path());
        assert_eq!((&recovered.records[..3], recovered.damage), (&written[..3], None));
    }
}

#[test]
fn the_only_copy_of_a_promise_survives_the_loss_of_everything_after_it() {
    // Segment 1 is trimmed; segment 2 has the repeated promise and one record, which is torn.
    let dir = tempfile::tempdir().unwrap();
    let written = log_with_new_segment(dir.path());
    let (mut wal, _) = open(dir.path());
    wal.trim(Slot(1)).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    assert!(!segment_path(dir.path(), 1).exists());
    change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 72..].fill(0));
    // The start above noted that all of this is durable; had it been torn, the start would not have noted that.
    std::fs::remove_file(dir.path().join("log.mark")).unwrap();
    let (mut wal, recovered) = open(dir.path());
    assert_eq!(recovered.damage, None);
    assert_eq!(recovered.records, written[..1]);
    assert_eq!(recovered.last, Lsn(2));
    let next = append(&mut wal, slot(2), b"again");
    wal.commit().unwrap();
    drop(wal);
    assert_eq!(open(dir.path()).1.records, [written[0].clone(), next]);
}

#[test]
fn stale_records_of_a_recycled_file_do_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    // Every record has the same size, so that old records lie exactly where new ones would.
    for i in 1..=60 {
        append(&mut wal, slot(i), &[i as u8; 2000]);
        wal.commit().unwrap();
        wal.trim(Slot(i.saturating_sub(6))).unwrap();
        wal.files.as_ref().unwrap().preparer.settle();
    }
    drop(wal);
    for _ in 0..12 {
        let (mut wal, recovered) = open(dir.path());
        let last = recovered.last.0;
        assert_eq!(recovered.damage, None);
        for record in &recovered.records {
            assert_eq!(record.keep, slot(record.lsn.0));
            assert_eq!(record.bytes[4..], [record.lsn.0 as u8; 2000], "record {}", record.lsn);
        }
        append(&mut wal, slot(last + 1), &[(last + 1) as u8; 2000]);
        wal.commit().unwrap();
        wal.trim(Slot(last - 6)).unwrap();
        wal.files.as_ref().unwrap().preparer.settle();
        drop(wal);
        assert_eq!(open(dir.path()).1.last, Lsn(last + 1));
    }
}

/// A client can put everything of a record but the mark into a value, and knows which segments are coming.
#[test]
fn forged_records_in_a_recycled_file_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { recycled_segments_max: 1, ..options() };
    let open = || Wal::open_on(Arc::new(TestDisk::default()), dir.path(), IDENTITY, options.clone()).unwrap();
    let (mut wal, _) = open();
    let mut recycled = 0;
    // A start keeps no spares, so a life has to be as long as several segments, of three records each.
    for i in 1..=120 {
        let segment = wal.files.as_ref().unwrap().active.segment;
        append(&mut wal, slot(i), &forged_records(IDENTITY, segment + 1..segment + 9));
        wal.commit().unwrap();
        // What is trimmed here becomes the segment after the one that is prepared now: its file is there in time.
        wal.files.as_ref().unwrap().preparer.settle();
        wal.trim(Slot(i.saturating_sub(4))).unwrap();
        wal.files.as_ref().unwrap().preparer.settle();
        if i % 20 == 0 {
            let next = wal.files.as_ref().unwrap().active.segment + 1;
            let next = std::fs::read(segment_path(dir.path(), next)).unwrap();
            recycled += u32::from(next.iter().any(|&byte| byte != 0));
            wal.close().unwrap();
            let recovered;
            (wal, recovered) = open();
            assert_eq!((recovered.damage, recovered.last), (None, Lsn(i)));
        }
    }
    assert_eq!(recycled, 6);
}

#[test]
fn leftovers_of_an_interrupted_preparation_are_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let record = append(&mut wal, slot(1), b"x");
    wal.commit().unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    std::fs::write(dir.path().join("00000000000000000009.tmp"), [1; 100]).unwrap();
    std::fs::write(dir.path().join("00000000000000000007.spare"), [1; 100]).unwrap();
    // This segment was prepared, but with a size that is not wanted any more.
    std::fs::write(segment_path(dir.path(), 2), [0; 32 << 10]).unwrap();
    let (wal, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.damage), (vec![record], None));
    wal.files.as_ref().unwrap().preparer.settle();
    let mut names = crate::disk::file_names(&RealDisk, dir.path()).unwrap();
    names.retain(|name| name.ends_with(".tmp") || name.ends_with(".spare"));
    assert!(names.is_empty(), "{names:?}");
    assert_eq!(std::fs::metadata(segment_path(dir.path(), 2)).unwrap().len(), 16 << 10);
}

/// A crash during the rename by which a spare becomes a segment may leave both names.
#[test]
fn a_spare_that_is_a_segment_too_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let written = log_with_new_segment(dir.path());
    std::fs::remove_file(segment_path(dir.path(), 3)).ok();
    let spare = segment_path(dir.path(), 1).with_extension("spare");
    std::fs::hard_link(segment_path(dir.path(), 2), spare).unwrap();
    // With this, the list does not miss the segment that was only prepared.
    let list = dir.path().join("log.segments");
    let lines = std::fs::read_to_string(&list).unwrap();
    let kept: String = lines
        .lines()
        .filter(|line| !line.contains("0003 =") && !line.contains("checksum"))
        .fold(String::new(), |text, line| text + line + "\n");
    let checksum = crc32fast::hash(kept.as_bytes());
    std::fs::write(&list, format!("{kept}checksum = {checksum:08x}\n")).unwrap();
    let (wal, _) = open(dir.path());
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.records, recovered.damage), (written, None));
}
