//! What a replica may have forgotten without a file being damaged.

use super::*;
use crate::Loss;

fn open_as(dir: &Path, durability: Durability, incarnation: u64) -> (Wal, Recovered) {
    let identity = Identity { incarnation: Incarnation(incarnation), ..IDENTITY };
    let options = Options { durability, ..options() };
    Wal::open_on(Arc::new(TestDisk::default()), dir, identity, options).unwrap()
}

fn pretend_reboot(dir: &Path) {
    let crate::wal::state::Previous::Read(mut state) = crate::wal::LogState::read(&RealDisk, dir).unwrap()
    else {
        panic!("the log was opened before")
    };
    state.boot = "another boot".to_owned();
    state.unsynced = state.unsynced.map(|_| state.boot.clone());
    state.write(&RealDisk, dir).unwrap();
}

/// What `synod wal verify` says that the next start will find forgotten.
fn told_by_tools(dir: &Path) -> Option<Loss> {
    crate::inspect::verify(dir).unwrap().loss
}

#[test]
fn memory_keeps_nothing_and_the_next_start_knows() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, recovered) = open_as(dir.path(), Durability::Memory, 1);
    assert_eq!(recovered.loss, None);
    append(&mut wal, Keep::State(0), b"promise");
    append(&mut wal, slot(1), b"vote");
    assert_eq!(wal.commit().unwrap(), Lsn(2));
    wal.trim(Slot(1)).unwrap();
    assert_eq!((wal.bytes(), wal.segments()), (0, 0));
    wal.close().unwrap();
    let names = crate::disk::file_names(&RealDisk, dir.path()).unwrap();
    assert!(names.iter().all(|name| !name.ends_with(".wal")), "{names:?}");
    assert_eq!(told_by_tools(dir.path()), Some(Loss::Memory));

    for durability in [Durability::Memory, Durability::Sync, Durability::Sync] {
        let (_, recovered) = open_as(dir.path(), durability, 2);
        assert_eq!((recovered.loss, recovered.records.len()), (Some(Loss::Memory), 0));
    }
    let (mut wal, _) = open_as(dir.path(), Durability::Sync, 3);
    wal.loss_made_good().unwrap();
    drop(wal);
    assert_eq!(open_as(dir.path(), Durability::Sync, 4).1.loss, None);
}

#[test]
fn async_survives_the_process_and_a_clean_reboot_only() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open_as(dir.path(), Durability::Async, 1);
    append(&mut wal, slot(1), b"vote");
    wal.commit().unwrap();
    drop(wal);
    let (wal, recovered) = open_as(dir.path(), Durability::Async, 2);
    assert_eq!((recovered.loss, recovered.records.len()), (None, 1));
    wal.close().unwrap();
    pretend_reboot(dir.path());
    let (wal, recovered) = open_as(dir.path(), Durability::Async, 3);
    assert_eq!(recovered.loss, None);
    drop(wal);
    assert_eq!(told_by_tools(dir.path()), None);
    pretend_reboot(dir.path());
    assert_eq!(told_by_tools(dir.path()), Some(Loss::Reboot));
    let (wal, recovered) = open_as(dir.path(), Durability::Sync, 4);
    assert_eq!((recovered.loss, recovered.records.len()), (Some(Loss::Reboot), 1));
    drop(wal);
    assert_eq!(open_as(dir.path(), Durability::Sync, 5).1.loss, Some(Loss::Reboot));
}

#[test]
fn async_waits_for_no_fsync() {
    let dir = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let options = Options { durability: Durability::Async, ..options() };
    let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    let (writes, syncs) = disk.counts();
    append(&mut wal, slot(1), b"vote");
    wal.commit().unwrap();
    assert_eq!(disk.counts(), (writes + 1, syncs));
    wal.close().unwrap();
    assert!(disk.counts().1 > syncs);
}

#[test]
fn view_waits_for_states_and_for_all_before_them() {
    let dir = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let options = Options { durability: Durability::View, ..options() };
    let (mut wal, _) = Wal::open_on(Arc::new(disk.clone()), dir.path(), IDENTITY, options).unwrap();
    wal.files.as_ref().unwrap().preparer.settle();
    let costs = |wal: &mut Wal, keep: &[Keep]| {
        let (writes, syncs) = disk.counts();
        keep.iter().for_each(|keep| _ = append(wal, *keep, b"record"));
        wal.commit().unwrap();
        (disk.counts().0 - writes, disk.counts().1 - syncs)
    };
    assert_eq!(costs(&mut wal, &[slot(1)]), (1, 0));
    assert!(wal.is_marked(), "nothing was waited for");
    assert_eq!(costs(&mut wal, &[slot(2), Keep::State(0), slot(3)]), (1, 1));
    assert!(!wal.is_marked());
    let (_, syncs) = disk.counts();
    wal.mark_durable().unwrap();
    assert!(wal.is_marked() && disk.counts().1 > syncs);
    assert_eq!(costs(&mut wal, &[slot(4)]), (1, 0));
    assert!(wal.is_marked());
}

#[test]
fn view_survives_the_process_and_knows_of_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open_as(dir.path(), Durability::View, 1);
    append(&mut wal, Keep::State(0), b"promise");
    append(&mut wal, slot(1), b"vote");
    wal.commit().unwrap();
    drop(wal);
    let (wal, recovered) = open_as(dir.path(), Durability::View, 2);
    assert_eq!((recovered.loss, recovered.records.len()), (None, 2));
    drop(wal);
    pretend_reboot(dir.path());
    assert_eq!(told_by_tools(dir.path()), Some(Loss::Reboot));
    // The loss stays after a life that waits for the disk, until it is made good.
    for durability in [Durability::View, Durability::Sync] {
        assert_eq!(open_as(dir.path(), durability, 3).1.loss, Some(Loss::Reboot), "{durability}");
    }
    let (mut wal, _) = open_as(dir.path(), Durability::View, 4);
    wal.loss_made_good().unwrap();
    wal.close().unwrap();
    pretend_reboot(dir.path());
    assert_eq!(open_as(dir.path(), Durability::View, 5).1.loss, None, "it was closed");
}

#[test]
fn crash_stop_is_the_last_life_once_it_has_written_anything() {
    let dir = tempfile::tempdir().unwrap();
    for life in 1..3 {
        let (wal, recovered) = open_as(dir.path(), Durability::CrashStop, life);
        assert_eq!(recovered.loss, None, "life {life}");
        if life == 1 {
            drop(wal)
        } else {
            wal.close().unwrap()
        }
        crate::wal::LogState::opened(
            Identity { incarnation: Incarnation(0), ..IDENTITY },
            Durability::Sync,
            String::new(),
        )
        .write(&RealDisk, dir.path())
        .unwrap();
    }
    let (mut wal, _) = open_as(dir.path(), Durability::CrashStop, 3);
    append(&mut wal, slot(1), b"vote");
    wal.commit().unwrap();
    assert_eq!((wal.bytes(), wal.segments()), (0, 0));
    drop(wal);
    assert_eq!(told_by_tools(dir.path()), Some(Loss::Stopped));
    for durability in [Durability::Memory, Durability::Sync, Durability::CrashStop, Durability::View] {
        assert_eq!(open_as(dir.path(), durability, 4).1.loss, Some(Loss::Stopped), "{durability}");
    }
}

#[test]
fn a_life_that_may_be_the_last_follows_others() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open_as(dir.path(), Durability::Sync, 1);
    append(&mut wal, slot(1), b"vote");
    wal.close().unwrap();
    let (wal, recovered) = open_as(dir.path(), Durability::CrashStop, 2);
    assert_eq!((recovered.loss, recovered.records.len()), (None, 1));
    drop(wal);
    assert_eq!(
        told_by_tools(dir.path()),
        Some(Loss::Stopped),
        "at once: what it found is what it may have acted on"
    );
}

#[test]
fn a_log_that_was_deleted_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wal");
    assert_eq!(open_as(&path, Durability::Sync, 1).1.loss, None);
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(open_as(&path, Durability::Sync, 2).1.loss, Some(Loss::LogMissing));
}

#[test]
fn an_unreadable_state_file_counts_as_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wal, _) = open_as(dir.path(), Durability::Sync, 1);
    append(&mut wal, slot(1), b"vote");
    wal.commit().unwrap();
    drop(wal);
    let file = dir.path().join("log.state");
    change(&file, |bytes| bytes[40] ^= 1);
    let (wal, recovered) = open_as(dir.path(), Durability::Sync, 2);
    assert!(matches!(recovered.loss, Some(Loss::StateUnreadable(_))));
    assert_eq!(recovered.records.len(), 1);
    drop(wal);
    std::fs::remove_file(&file).unwrap();
    let (_, recovered) = open_as(dir.path(), Durability::Sync, 3);
    assert!(matches!(recovered.loss, Some(Loss::StateUnreadable(why)) if why.contains("missing")));
}

/// A power failure under durability `async` leaves holes. Lives in memory do not touch the log, so what they
/// note must not make the next life believe what the records say was durable.
#[test]
fn a_hole_that_a_power_failure_left_is_no_damage_after_lives_in_memory() {
    for lives in 0..3 {
        for reboots_before in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (mut wal, _) = open_as(dir.path(), Durability::Async, 1);
            for i in 1..=9 {
                append(&mut wal, slot(i), &[i as u8; 1000]);
                wal.commit().unwrap();
            }
            drop(wal);
            let tear = || {
                change(&segment_path(dir.path(), 1), |bytes| bytes[8192..12_288].fill(0));
                pretend_reboot(dir.path());
            };
            if reboots_before {
                tear();
            }
            for life in 0..lives {
                let (_, recovered) = open_as(dir.path(), Durability::Memory, 2 + life);
                assert_eq!(recovered.damage, None, "life {life} of {lives}");
            }
            if !reboots_before {
                tear();
            }
            let (mut wal, recovered) = open_as(dir.path(), Durability::Sync, 9);
            assert_eq!((lsns(&recovered.records), &recovered.damage), (vec![1, 2, 3], &None), "{lives}");
            assert!(recovered.loss.is_some());
            append(&mut wal, slot(4), b"after");
            wal.commit().unwrap();
            drop(wal);
            // From here on the log waits for the disk, so a hole is damage again.
            change(&segment_path(dir.path(), 1), |bytes| bytes[4096 + 1200] ^= 1);
            pretend_reboot(dir.path());
            assert!(open_as(dir.path(), Durability::Sync, 10).1.damage.is_some());
        }
    }
}
