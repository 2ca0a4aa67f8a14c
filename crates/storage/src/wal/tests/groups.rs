//! Groups that share a log.

use std::fs;

use synod_wire::Written;

use super::*;
use crate::wal::format::{PAGE, SegmentHeader};

const OTHER: GroupId = GroupId(0x0203);

#[test]
fn a_group_that_lets_go_of_nothing_keeps_the_log_and_the_others_may_let_go_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    let first = append_to(&mut wal, OTHER, slot(1), b"of the idle group");
    for i in 1..=60 {
        append(&mut wal, slot(i), &[i as u8; 1500]);
        wal.commit().unwrap();
    }
    let segments = wal.segments();
    assert_eq!(wal.oldest_needed_by(), [GroupId::FIRST, OTHER]);
    wal.trim(Slot(60)).unwrap();
    assert_eq!(wal.segments(), segments);
    assert_eq!(wal.oldest_needed_by(), [OTHER]);
    drop(wal);
    // After a start, each group has to say again what it has released.
    let (mut wal, recovered) = open(dir.path());
    assert_eq!(recovered.records[0], first);
    assert_eq!(recovered.last, Lsn(61));
    wal.trim(Slot(60)).unwrap();
    assert_eq!(wal.segments(), segments);
    wal.trim_of(OTHER, Slot(1)).unwrap();
    assert_eq!(wal.segments(), 1);
    assert_eq!(wal.oldest_needed_by(), []);
}

#[test]
fn equal_keys_of_different_groups_are_different_states_and_outlive_their_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append_to(&mut wal, OTHER, Keep::State(1), b"overwritten");
    let one = append(&mut wal, Keep::State(1), b"of the first group");
    let other = append_to(&mut wal, OTHER, Keep::State(1), b"of the other group");
    for i in 1..=60 {
        append(&mut wal, slot(i), &[i as u8; 1500]);
        wal.commit().unwrap();
    }
    wal.trim(Slot(60)).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    drop(wal);
    let (_, recovered) = open(dir.path());
    let states: Vec<_> = recovered.records.iter().filter(|record| record.keep == Keep::State(1)).collect();
    assert_eq!(states, [&one, &other]);
}

/// A log that a program wrote that knew no groups.
#[test]
fn a_log_of_the_version_before_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(dir.path());
    append(&mut wal, slot(1), b"old");
    wal.close().unwrap();
    let path = dir.path().join(segment_name(1));
    let mut bytes = fs::read(&path).unwrap();
    let header = SegmentHeader::decode(&bytes[..PAGE]).unwrap();
    bytes[..PAGE].copy_from_slice(&header.encode_as(Written { version: 6, readers: 6 }));
    fs::write(&path, &bytes).unwrap();
    let error = try_open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("has format version 6"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}
