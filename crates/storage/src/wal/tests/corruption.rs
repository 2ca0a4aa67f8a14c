//! Files that changed after they were durable.

use std::collections::BTreeMap;

use super::*;
use crate::{
    Damage, Loss, inspect,
    wal::{
        assess::{Known, assess},
        open::{read_segment, split_off_unused},
        scan::scan,
    },
};

/// A log of three segments with promises and slots in all of them, in several commits; the last one has two
/// records. Returns the records and the number of the first one of the last commit.
fn build(dir: &Path) -> (Vec<RecoveredRecord>, Lsn) {
    let (mut wal, _) = open(dir);
    let mut written = Vec::new();
    for segment in 0..3 {
        wal.files.as_ref().unwrap().preparer.settle();
        written.push(append(&mut wal, Keep::State(0), format!("promise {segment}").as_bytes()));
        wal.commit().unwrap();
        written.push(append(&mut wal, slot(segment * 10 + 1), b"small"));
        written.push(append(&mut wal, slot(segment * 10 + 2), b""));
        wal.commit().unwrap();
        if segment == 1 {
            written.push(append(&mut wal, Keep::State(1), b"second key"));
            wal.commit().unwrap();
        }
        if segment < 2 {
            // This fills the segment, so that the next record begins another.
            let rest = 16_384 - wal.files.as_ref().unwrap().active.end as usize;
            written.push(append(&mut wal, slot(segment * 10 + 3), &vec![segment as u8; rest - 70]));
            wal.commit().unwrap();
        }
    }
    let last_commit = wal.appended.next();
    written.push(append(&mut wal, slot(30), b"last but one"));
    written.push(append(&mut wal, slot(31), b"last"));
    wal.commit().unwrap();
    assert_eq!(wal.segments(), 3);
    (written, last_commit)
}

/// Checks that what a reader was told is true: no record differs from what was written, and what is missing
/// is either declared as damage or was never proven durable.
fn check(
    written: &[RecoveredRecord],
    unproven: Lsn,
    records: &[RecoveredRecord],
    damage: Option<&Damage>,
    what: &str,
) {
    for record in records {
        assert_eq!(Some(record), written.get(record.lsn.0 as usize - 1), "{what}: a wrong record");
    }
    assert!(lsns(records).is_sorted_by(|a, b| a < b), "{what}");
    let missing = written.iter().filter(|record| !records.contains(record));
    for record in missing {
        let declared = damage
            .is_some_and(|d| d.spots.iter().any(|s| (s.first_lost..=s.last_lost).contains(&record.lsn)));
        assert!(declared || record.lsn >= unproven, "{what}: record {} silently lost", record.lsn);
    }
    let state_intact = damage.is_none_or(|damage| damage.state_intact);
    for key in [0, 1] {
        if state_intact {
            assert_eq!(state(records, key), state(written, key), "{what}: promise {key} lost");
        }
    }
}

/// The positions that are worth changing: all that are not in the middle of a large body or after the end.
fn positions(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let dull = |at: usize| {
        at > 8 && at + 40 < bytes.len() && bytes[at - 8..at + 40].iter().all(|byte| *byte == bytes[at])
    };
    (0..bytes.len()).filter(move |&at| !dull(at) || at % 1009 == 0)
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let dir = tempfile::tempdir().unwrap();
    let (written, last_commit) = build(dir.path());
    let originals: Vec<_> = (1..=3).map(|s| std::fs::read(segment_path(dir.path(), s)).unwrap()).collect();
    let last = Lsn(written.len() as u64);
    let (mut torn, mut damaged, mut harmless) = (0, 0, 0);
    for index in 0..originals.len() {
        for at in positions(&originals[index]) {
            for bit in 0..8 {
                let mut files = originals.clone();
                files[index][at] ^= 1 << bit;
                let what = format!("segment {}, byte {at}, bit {bit}", index + 1);
                let scans: Vec<_> = files
                    .iter()
                    .enumerate()
                    .map(|(i, f)| scan(i as u64 + 1, "x".into(), f, IDENTITY, None))
                    .collect();
                for closed_at in [None, Some(last)] {
                    let verdict = assess(&scans, &Known { closed_at, ..Known::default() });
                    let mut records: Vec<_> = scans
                        .iter()
                        .zip(&files)
                        .flat_map(|(s, f)| {
                            let file = Bytes::copy_from_slice(f);
                            s.records.iter().filter(|r| r.body_ok && r.header.lsn <= verdict.last).map(
                                move |r| RecoveredRecord {
                                    lsn: r.header.lsn,
                                    group: r.header.group,
                                    keep: r.header.keep,
                                    bytes: r.body(&file),
                                },
                            )
                        })
                        .collect();
                    records.sort_by_key(|r| r.lsn);
                    records.dedup_by_key(|r| r.lsn);
                    let unproven = if closed_at.is_some() { last.next() } else { last_commit };
                    check(&written, unproven, &records, verdict.damage.as_ref(), &what);
                    match (&verdict.damage, verdict.last < last) {
                        (Some(_), _) => damaged += 1,
                        (None, true) => torn += 1,
                        (None, false) => harmless += 1,
                    }
                }
            }
        }
    }
    // The test would show nothing if it did not meet all three.
    assert!(
        torn > 500 && damaged > 3000 && harmless > 500,
        "{torn} torn, {damaged} damaged, {harmless} harmless"
    );
}

#[test]
fn a_damaged_log_is_left_alone_until_it_is_set_aside() {
    let template = tempfile::tempdir().unwrap();
    let (written, last_commit) = build(template.path());
    let mut damaged = 0;
    for segment in 1..=3 {
        let bytes = std::fs::read(segment_path(template.path(), segment)).unwrap();
        for at in positions(&bytes).step_by(23) {
            let what = format!("segment {segment}, byte {at}");
            let dir = tempfile::tempdir().unwrap();
            for name in crate::disk::file_names(&RealDisk, template.path()).unwrap() {
                std::fs::copy(template.path().join(&name), dir.path().join(&name)).unwrap();
            }
            change(&segment_path(dir.path(), segment), |bytes| bytes[at] ^= 0xff);
            let (wal, recovered) = open(dir.path());
            check(&written, last_commit, &recovered.records, recovered.damage.as_ref(), &what);
            if recovered.damage.is_some() {
                damaged += 1;
                set_aside(dir.path(), wal, recovered, &what);
            }
        }
    }
    assert!(damaged > 20, "{damaged}");
}

fn set_aside(dir: &Path, mut wal: Wal, recovered: Recovered, what: &str) {
    // Opening changed nothing, and the log takes no records.
    append(&mut wal, slot(99), b"refused");
    assert!(matches!(wal.commit(), Err(StorageError::Damaged { .. })), "{what}");
    drop(wal);
    let (mut wal, again) = open(dir);
    assert_eq!((&again.records, &again.damage), (&recovered.records, &recovered.damage), "{what}");

    let last = wal.quarantine(as_written(&again.records)).unwrap();
    assert_eq!(last.0, again.last.0 + again.records.len() as u64, "{what}");
    let next = append(&mut wal, slot(100), b"after");
    wal.commit().unwrap();
    drop(wal);

    let (_, fresh) = open(dir);
    assert_eq!(fresh.damage, None, "{what}");
    assert!(matches!(fresh.loss, Some(Loss::Quarantined(_))), "{what}");
    let contents = |records: &[RecoveredRecord]| -> Vec<_> {
        records.iter().map(|r| (r.keep, r.bytes.clone())).collect()
    };
    let mut expected = contents(&again.records);
    expected.push((next.keep, next.bytes));
    assert_eq!(contents(&fresh.records), expected, "{what}");
    assert!(!inspect::verify(dir).unwrap().set_aside.is_empty(), "{what}");
}

#[test]
fn a_missing_segment_is_damage() {
    for gone in 1..=3 {
        let dir = tempfile::tempdir().unwrap();
        let (written, last_commit) = build(dir.path());
        std::fs::remove_file(segment_path(dir.path(), gone)).unwrap();
        let (_, recovered) = open(dir.path());
        let damage = recovered.damage.unwrap();
        assert!(damage.to_string().contains(&format!("segment {gone} is missing")), "{damage}");
        // The records of the first segments are repeated in the third; what the last ones held is not known.
        assert_eq!(damage.state_intact, gone <= 2, "{gone}");
        if gone <= 2 {
            check(&written, last_commit, &recovered.records, Some(&damage), "one is missing");
        }
        assert_eq!(inspect::verify(dir.path()).unwrap().damage, Some(damage));
    }
}

/// The end of the log was cut off, or deleted, and nothing after it could tell.
#[test]
fn a_shortened_last_segment_is_damage() {
    for bytes in [0, 4096, 4200, 16_383] {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path());
        change(&segment_path(dir.path(), 3), |file| file.truncate(bytes));
        let (_, recovered) = open(dir.path());
        let damage = recovered.damage.unwrap();
        assert!(damage.to_string().contains(&format!("only {bytes} of its 16384 bytes")), "{damage}");
        assert!(!damage.state_intact);
    }
}

/// Nothing was ever in it, and where the log was closed nothing can have been.
#[test]
fn a_prepared_segment_that_is_gone_after_a_clean_close_is_made_again() {
    for harm in ["remove", "shorten", "change"] {
        for closed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (mut wal, _) = open(dir.path());
            let record = append(&mut wal, slot(1), b"one");
            wal.commit().unwrap();
            wal.files.as_ref().unwrap().preparer.settle();
            if closed {
                wal.close().unwrap();
            } else {
                drop(wal);
            }
            let prepared = segment_path(dir.path(), 2);
            match harm {
                "remove" => std::fs::remove_file(&prepared).unwrap(),
                "shorten" => change(&prepared, |bytes| bytes.truncate(5000)),
                _ => change(&prepared, |bytes| bytes[7] ^= 1),
            }
            assert_eq!(inspect::verify(dir.path()).unwrap().damage.is_some(), !closed && harm != "change");
            let (wal, recovered) = open(dir.path());
            assert_eq!(recovered.records, [record]);
            assert_eq!(recovered.damage.is_some(), !closed && harm != "change", "{harm}");
            if recovered.damage.is_none() {
                wal.files.as_ref().unwrap().preparer.settle();
                assert_eq!(std::fs::read(&prepared).unwrap(), [0; 16 << 10]);
            }
        }
    }
}

#[test]
fn a_list_of_segments_that_is_gone_or_damaged_is_no_comfort() {
    for damaged in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (written, _) = build(dir.path());
        let list = dir.path().join("log.segments");
        if damaged {
            change(&list, |bytes| bytes[30] ^= 1);
        } else {
            std::fs::remove_file(&list).unwrap();
        }
        let (wal, recovered) = open(dir.path());
        assert!(matches!(recovered.loss, Some(Loss::StateUnreadable(why)) if why.contains("log.segments")));
        assert_eq!((recovered.records, recovered.damage), (written, None));
        drop(wal);
        // The file is written again, and what it says is believed only once the loss is made good.
        assert!(open(dir.path()).1.loss.is_some());
    }
}

/// The last commit may have been torn, as far as the log tells, unless it was idle since.
#[test]
fn what_rots_in_an_idle_log_is_damage() {
    for idle in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut wal, _) = open(dir.path());
        append(&mut wal, slot(1), b"one");
        wal.commit().unwrap();
        let end = wal.files.as_ref().unwrap().active.end as usize;
        append(&mut wal, slot(2), b"two");
        wal.commit().unwrap();
        assert!(!wal.is_marked());
        if idle {
            wal.mark_durable().unwrap();
            assert!(wal.is_marked());
        }
        drop(wal);
        change(&segment_path(dir.path(), 1), |bytes| bytes[end + 20] ^= 1);
        let (_, recovered) = open(dir.path());
        assert_eq!((lsns(&recovered.records), recovered.damage.is_some()), (vec![1], idle));
        if let Some(damage) = recovered.damage {
            assert_eq!((damage.spots[0].first_lost, damage.spots[0].last_lost), (Lsn(2), Lsn(2)));
        }
    }
}

#[test]
fn a_shortened_segment_in_the_middle_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (written, last_commit) = build(dir.path());
    change(&segment_path(dir.path(), 1), |bytes| bytes.truncate(6000));
    let (_, recovered) = open(dir.path());
    let damage = recovered.damage.unwrap();
    assert_eq!((damage.spots[0].first_lost, damage.spots[0].last_lost), (Lsn(4), Lsn(4)), "{damage}");
    assert!(damage.state_intact, "the next segment repeats the promises");
    check(&written, last_commit, &recovered.records, Some(&damage), "short");
}

#[test]
fn a_promise_that_may_be_lost_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append(&mut wal, Keep::State(0), b"promise one");
    wal.commit().unwrap();
    let at = wal.files.as_ref().unwrap().active.end as usize;
    append(&mut wal, Keep::State(0), b"promise two");
    wal.commit().unwrap();
    append(&mut wal, slot(1), b"proof");
    wal.commit().unwrap();
    drop(wal);
    for (offset, what) in [(at, "header"), (at + 60, "body")] {
        change(&segment_path(dir.path(), 1), |bytes| bytes[offset] ^= 1);
        let (_, recovered) = open(dir.path());
        assert!(!recovered.damage.unwrap().state_intact, "{what}");
        change(&segment_path(dir.path(), 1), |bytes| bytes[offset] ^= 1);
    }
    assert_eq!(open(dir.path()).1.damage, None);
}

#[test]
fn promises_survive_the_loss_of_a_slot() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let promise = append(&mut wal, Keep::State(0), b"promise");
    wal.commit().unwrap();
    let at = wal.files.as_ref().unwrap().active.end as usize;
    append(&mut wal, slot(1), b"lost");
    wal.commit().unwrap();
    append(&mut wal, slot(2), b"proof");
    wal.commit().unwrap();
    drop(wal);
    change(&segment_path(dir.path(), 1), |bytes| bytes[at..at + 30].fill(0x11));
    let (_, recovered) = open(dir.path());
    let damage = recovered.damage.unwrap();
    assert!(damage.state_intact, "{damage}");
    assert_eq!(
        (damage.spots.len(), damage.spots[0].first_lost, damage.spots[0].last_lost),
        (1, Lsn(2), Lsn(2))
    );
    assert_eq!(damage.spots[0].offset as usize, at);
    assert_eq!(lsns(&recovered.records), [1, 3]);
    assert_eq!(state(&recovered.records, 0), Some(&promise));
}

#[test]
fn after_a_clean_close_a_missing_end_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append(&mut wal, slot(1), b"one");
    wal.commit().unwrap();
    let end = wal.files.as_ref().unwrap().active.end as usize;
    append(&mut wal, slot(2), b"two");
    wal.close().unwrap();
    change(&segment_path(dir.path(), 1), |bytes| bytes[end..].fill(0));
    let (_, recovered) = open(dir.path());
    let damage = recovered.damage.unwrap();
    assert_eq!((damage.spots[0].first_lost, damage.spots[0].last_lost), (Lsn(2), Lsn(2)));
    // Nothing is left that could say what the lost record was.
    assert!(!damage.state_intact);

    std::fs::remove_file(segment_path(dir.path(), 1)).unwrap();
    let (_, recovered) = open(dir.path());
    assert!(!recovered.damage.unwrap().state_intact);
}

#[test]
fn a_setting_aside_that_was_interrupted_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _) = build(dir.path());
    change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 200] ^= 0xff);
    let (wal, before) = open(dir.path());
    assert!(before.damage.is_some());
    drop(wal);

    // The disk fills up, at one time or another while the records are copied.
    for room in [0, 10_000, 21_000, 35_000, 40_000] {
        let disk = TestDisk::default();
        let (mut wal, recovered) =
            Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options()).unwrap();
        assert_eq!(
            (&recovered.records, &recovered.damage),
            (&before.records, &before.damage),
            "room for {room}"
        );
        disk.set_room(room);
        let error = wal.quarantine(as_written(&recovered.records)).unwrap_err();
        assert!(matches!(error, StorageError::Full { .. }), "{error}");
        assert!(wal.commit().is_err());
        disk.set_room(None);
    }

    let (mut wal, after) = open(dir.path());
    assert_eq!((&after.records, &after.damage), (&before.records, &before.damage));
    wal.quarantine(as_written(&after.records)).unwrap();
    wal.loss_made_good().unwrap();
    drop(wal);
    let (_, fresh) = open(dir.path());
    assert_eq!((fresh.records.len(), fresh.damage, fresh.loss), (after.records.len(), None, None));
}

#[test]
fn a_setting_aside_that_ended_before_the_renames_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 200] ^= 0xff);
    let (mut wal, recovered) = open(dir.path());
    wal.quarantine(as_written(&recovered.records)).unwrap();
    drop(wal);
    let damaged = |segment| segment_path(dir.path(), segment).with_extension("wal.damaged");
    std::fs::rename(damaged(2), segment_path(dir.path(), 2)).unwrap();
    let (_, fresh) = open(dir.path());
    assert_eq!((fresh.records.len(), fresh.damage), (recovered.records.len(), None));
    assert!(damaged(2).exists());
}

fn open_with(dir: &Path, durability: Durability) -> (Wal, Recovered) {
    let options = Options { durability, ..options() };
    Wal::open_on(Arc::new(TestDisk::default()), dir, IDENTITY, options).unwrap()
}

/// A life in memory sets the log aside and begins none, so the marks and the list of what was set aside stay.
/// They say nothing of the log that a later life begins.
#[test]
fn a_log_that_was_set_aside_in_memory_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _) = build(dir.path());
    let (wal, _) = open(dir.path());
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    let damaged = |segment| segment_path(dir.path(), segment).with_extension("wal.damaged");
    change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 200] ^= 0xff);
    let evidence = std::fs::read(segment_path(dir.path(), 2)).unwrap();
    let (mut wal, recovered) = open_with(dir.path(), Durability::Memory);
    assert!(recovered.damage.is_some());
    wal.quarantine(as_written(&recovered.records)).unwrap();
    drop(wal);
    for durability in [Durability::Memory, Durability::Async, Durability::Sync] {
        assert_eq!(inspect::verify(dir.path()).unwrap().damage, None, "then {durability}");
        let (mut wal, recovered) = open_with(dir.path(), durability);
        assert_eq!((&recovered.records[..], &recovered.damage), (&[][..], &None), "then {durability}");
        assert!(recovered.loss.is_some());
        if durability == Durability::Memory {
            continue;
        }
        assert!(wal.tail().unwrap().0 > segment_path(dir.path(), 4), "numbers are used once");
        let last = append(&mut wal, slot(40), b"after");
        wal.commit().unwrap();
        drop(wal);
        let (mut wal, recovered) = open_with(dir.path(), durability);
        assert_eq!((&recovered.records[..], recovered.damage), (&[last][..], None));
        // What is damaged next is set aside besides what was before.
        drop(wal);
        std::fs::remove_file(segment_path(dir.path(), 5)).unwrap();
        let recovered;
        (wal, recovered) = open_with(dir.path(), durability);
        assert!(recovered.damage.is_some());
        wal.quarantine([]).unwrap();
        drop(wal);
        assert_eq!(std::fs::read(damaged(2)).unwrap(), evidence);
        break;
    }
}

/// The disk did not read a sector for a while, and reads it again.
#[test]
fn an_attempt_that_is_not_needed_any_more_is_not_missed_after_a_life_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (written, _) = build(dir.path());
    drop(open(dir.path()));
    let flip = || change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 200] ^= 0xff);
    flip();
    let disk = TestDisk::default();
    let (mut wal, recovered) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options()).unwrap();
    disk.set_room(21_000);
    wal.quarantine(as_written(&recovered.records)).unwrap_err();
    drop(wal);
    flip();
    for durability in [Durability::Memory, Durability::Sync] {
        let (_, recovered) = open_with(dir.path(), durability);
        assert_eq!((recovered.records.len(), recovered.damage), (written.len(), None), "{durability}");
        assert!(recovered.loss.is_some());
    }
}

/// Earlier versions of the program began again from segment 1 after a life in memory had set the log aside,
/// and noted so in `log.state`.
#[test]
fn an_attempt_below_what_was_set_aside_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _) = build(dir.path());
    let damaged = |segment| segment_path(dir.path(), segment).with_extension("wal.damaged");
    let (wal, _) = open(dir.path());
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    for segment in 1..=4 {
        std::fs::rename(segment_path(dir.path(), segment), damaged(segment)).unwrap();
    }
    let evidence = std::fs::read(damaged(1)).unwrap();
    std::fs::write(segment_path(dir.path(), 1), [0; 16 << 10]).unwrap();
    let crate::wal::state::Previous::Read(mut state) =
        crate::wal::LogState::read(&RealDisk, dir.path()).unwrap()
    else {
        panic!("the log was opened before")
    };
    (state.begins, state.unfinished, state.loss) = (5, Some(1), Some(Loss::Quarantined("x".to_owned())));
    state.write(&RealDisk, dir.path()).unwrap();
    assert_eq!(inspect::verify(dir.path()).unwrap().damage, None);
    let (wal, recovered) = open(dir.path());
    assert_eq!((recovered.records.len(), recovered.damage), (0, None));
    assert!(matches!(recovered.loss, Some(Loss::Quarantined(_))));
    assert_eq!(wal.tail().unwrap().0, segment_path(dir.path(), 5));
    assert_eq!(std::fs::read(damaged(1)).unwrap(), evidence);
}

#[test]
fn tools_see_what_a_start_sees() {
    let dir = tempfile::tempdir().unwrap();
    let (written, _) = build(dir.path());
    let (wal, _) = open(dir.path());
    let report = inspect::verify(dir.path()).unwrap();
    assert!(report.running && report.damage.is_none());
    assert_eq!(
        (report.first, report.last, report.records),
        (Lsn(1), Lsn(written.len() as u64), written.len() as u64)
    );
    let slots = BTreeMap::from([(GroupId::FIRST, (Slot(1), Slot(31)))]);
    assert_eq!((report.segments, report.slots), (3, slots));
    assert_eq!(report.identity, IDENTITY);
    drop(wal);

    let mut seen = Vec::new();
    let mut segments = 0;
    inspect::dump(dir.path(), |entry| match entry {
        inspect::Entry::Segment { header, .. } => segments += u64::from(header != inspect::Header::Blank),
        inspect::Entry::Record { lsn, keep, restated: false, bytes, .. } => {
            seen.push(RecoveredRecord { lsn, group: GroupId::FIRST, keep, bytes: bytes.unwrap() });
        }
        inspect::Entry::Record { restated: true, .. } => {}
        other => panic!("{other:?}"),
    })
    .unwrap();
    assert_eq!((seen, segments), (written, 3));

    change(&segment_path(dir.path(), 2), |bytes| bytes[4096 + 200] ^= 0xff);
    let before = std::fs::read(segment_path(dir.path(), 2)).unwrap();
    let report = inspect::verify(dir.path()).unwrap();
    assert!(!report.running);
    assert_eq!(report.damage, open(dir.path()).1.damage);
    assert!(report.damage.is_some());
    let mut unreadable = 0;
    inspect::dump(dir.path(), |entry| {
        unreadable += u64::from(matches!(entry, inspect::Entry::Unreadable { .. }))
    })
    .unwrap();
    assert_eq!(unreadable, 1);
    assert_eq!(std::fs::read(segment_path(dir.path(), 2)).unwrap(), before);

    let empty = tempfile::tempdir().unwrap();
    assert!(inspect::verify(empty.path()).is_err());
}

#[test]
fn tools_see_no_damage_in_a_log_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 1.. {
                append(&mut wal, Keep::State(0), &[i as u8; 20]);
                append(&mut wal, slot(i), &[i as u8; 700]);
                wal.commit().unwrap();
                wal.trim(Slot(i.saturating_sub(100))).unwrap();
                if i > 300 && !writing.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        // This ends the writer however the test ends.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::SeqCst);
            }
        }
        let _stop = Stop(&writing);
        let mut last = Lsn::ZERO;
        for _ in 0..100 {
            let report = inspect::verify(dir.path()).unwrap();
            assert_eq!(report.damage, None);
            assert!(report.running && report.last >= last, "{report:?}");
            last = report.last;
            inspect::dump(dir.path(), |_| {}).unwrap();
        }
    });
    assert!(wal.segments() > 3);
}

#[test]
fn a_segment_destroyed_between_others_is_named() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    change(&segment_path(dir.path(), 2), |bytes| bytes.fill(0xee));
    let mut read: Vec<_> =
        (1..=3).map(|s| read_segment(&RealDisk, dir.path(), s, IDENTITY, None).unwrap()).collect();
    assert!(split_off_unused(&mut read).is_empty());
    let (_, recovered) = open(dir.path());
    let damage = recovered.damage.unwrap();
    assert!(damage.to_string().contains("segment 2 at byte 0: nothing in this segment"), "{damage}");
    assert!(damage.state_intact);
}
