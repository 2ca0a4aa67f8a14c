//! The data directory, snapshots, and what a replica records about its peers.

use std::{collections::BTreeMap, io::Write, path::Path, sync::Arc};

use synod_storage::{DataDir, Disk, Durability, PeerBook, SnapshotStore, StorageError};
use synod_testkit::{FaultyDisk, Odds};
use synod_wire::{ClusterId, Incarnation, Introduction, ReplicaId, Slot};

const OLD: ClusterId = ClusterId(1);
const NEW: ClusterId = ClusterId(2);
const TWO: ReplicaId = ReplicaId(2);
const THREE: ReplicaId = ReplicaId(3);

fn make(disk: &FaultyDisk, path: &Path, cluster: ClusterId) -> DataDir {
    disk.open_dir(path, cluster, ReplicaId(1)).unwrap()
}

fn book_on(disk: &FaultyDisk) -> PeerBook {
    PeerBook::open(&make(disk, Path::new("/n1"), OLD)).unwrap()
}

/// The first life of a replica.
fn born(birth: u64) -> Introduction {
    Introduction { birth, incarnation: Incarnation(1), nonce: birth + 1000, ..Introduction::default() }
}

fn recognises(book: &PeerBook, id: ReplicaId, birth: u64) -> bool {
    book.meet(id, &born(birth), None, true).unwrap().is_ok()
}

/// The directories above are durable too, although an earlier start may have made them and ended before
/// their names were durable.
#[test]
fn a_directory_that_was_opened_survives_a_power_failure() {
    let path = Path::new("/var/lib/synod/n1");
    for crash in 0.. {
        let mut crashed = false;
        for seed in 0..10 {
            let disk = FaultyDisk::new(seed);
            let open = || {
                let disk = Arc::new(disk.clone());
                DataDir::open_on(disk, path, ClusterId(7), ReplicaId(1), "n1", Durability::Sync)
            };
            disk.crash_after(crash);
            crashed = open().is_err();
            disk.kill();
            let birth = open().unwrap().identity().birth;
            disk.power_failure();
            assert_eq!(open().unwrap().identity().birth, birth, "crash at {crash}, seed {seed}");
        }
        if !crashed {
            break;
        }
    }
}

/// Both directories still exist, and no start takes the place for an empty one.
#[test]
fn a_crash_leaves_one_of_them_or_a_start_that_is_refused() {
    let (path, aside) = (Path::new("/data/n1"), Path::new("/data/n1.old"));
    let made = DataDir::replacement(path);
    for plain in [false, true] {
        let mut refused = 0;
        for crash in 0.. {
            let mut finished = false;
            for seed in 0..20 {
                let disk = FaultyDisk::new(seed);
                make(&disk, path, OLD);
                make(&disk, &made, NEW);
                if plain {
                    disk.make_plain();
                }
                disk.crash_after(crash);
                finished = DataDir::replace_on(&disk, path, aside).is_ok();
                if seed % 2 == 0 {
                    disk.power_failure()
                } else {
                    disk.kill()
                }
                let clusters = [path, aside, &made].map(|dir| {
                    let image = disk.image(&dir.join("identity"));
                    let text = image.into_values().next().map(|text| String::from_utf8(text).unwrap());
                    text.map(|text| text.contains(&NEW.to_string()))
                });
                assert!(clusters.contains(&Some(false)) && clusters.contains(&Some(true)), "{clusters:?}");
                match DataDir::read_on(&disk, path) {
                    Ok(_) => {
                        assert!(clusters[0] == Some(true) || (!finished && clusters[0] == Some(false)))
                    }
                    Err(StorageError::Unfinished { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            if finished {
                break;
            }
        }
        assert_eq!(refused > 0, plain, "only without an exchange there is a moment between two renames");
    }
}

/// A start relies on the snapshot that it finds: it trims the log.
#[test]
fn a_snapshot_that_a_start_found_survives_a_power_failure() {
    let (mut found, dir) = (0, Path::new("/snapshots"));
    for crash in 0..20 {
        for seed in 0..20 {
            let disk = FaultyDisk::new(seed);
            disk.create_dir(dir).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            let open = || SnapshotStore::open_on(Arc::new(disk.clone()), dir, OLD).unwrap();
            let mut writer = open().create(Slot(3)).unwrap();
            writer.write_all(b"state").unwrap();
            disk.crash_after(crash);
            let finished = writer.finish().is_ok();
            disk.kill();
            let before = open().latest().unwrap().snapshot;
            found += usize::from(before.is_some() && !finished);
            disk.power_failure();
            assert_eq!(open().latest().unwrap().snapshot, before, "crash at {crash}, seed {seed}");
        }
    }
    assert!(found > 0, "a crash between the name and its durability");
}

#[test]
fn a_full_disk_delays_new_replicas_and_no_others() {
    let disk = FaultyDisk::new(1);
    let book = book_on(&disk);
    assert!(recognises(&book, TWO, 20));
    disk.set_odds(Odds { full: 1000, ..Odds::default() });
    assert!(matches!(book.meet(THREE, &born(30), None, true), Err(StorageError::Full { .. })));
    assert!(recognises(&book, TWO, 20) && !recognises(&book, TWO, 21));
    disk.set_odds(Odds::default());
    assert!(recognises(&book, THREE, 31) && !recognises(&book, THREE, 30));
}

#[test]
fn a_disk_that_failed_once_delays_new_replicas_and_no_others() {
    for seed in 0..40 {
        let disk = FaultyDisk::new(seed);
        let book = book_on(&disk);
        assert!(recognises(&book, TWO, 20));
        let fails = if seed % 2 == 0 { 1000 } else { 0 };
        disk.set_odds(Odds { sync_fails: fails, dir_sync_fails: 1000 - fails, ..Odds::default() });
        assert!(matches!(book.meet(THREE, &born(30), None, true), Err(StorageError::Io { .. })));
        assert!(recognises(&book, TWO, 20) && !recognises(&book, TWO, 21));
        disk.set_odds(Odds::default());
        // The whole book is written again, to another file.
        assert!(recognises(&book, THREE, 31) && !recognises(&book, THREE, 30));
        disk.power_failure();
        assert_eq!(book_on(&disk).births(), BTreeMap::from([(TWO, 20), (THREE, 31)]), "seed {seed}");
    }
}
