//! Data directories in which one file has another version.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use synod_wire::{ClusterId, FILE_HEAD_BYTES, ReplicaId, Slot, VersionError, Writer, Written};

use crate::{
    DataDir, Durability, Keep, Lives, Options, PeerBook, SnapshotStore, StorageError, Wal, disk::RealDisk,
    fields::Fields,
};

const CLUSTER: ClusterId = ClusterId(7);
const FILES: [&str; 8] = [
    "identity",
    "lives",
    "peers",
    "group",
    "wal/log.state",
    "wal/log.segments",
    "wal/00000000000000000001.wal",
    "snapshots/snapshot-00000000000000000005.snap",
];

/// Opens everything, as a start of a replica does, and returns the records.
fn start(path: &Path) -> Result<Vec<Bytes>, StorageError> {
    let dir = DataDir::open(path, CLUSTER, ReplicaId(1), "n1", Durability::Sync)?;
    let group = dir.origin()?.unwrap_or_default();
    let peers = PeerBook::open(&dir)?;
    Lives::begin(&dir)?;
    let store = SnapshotStore::open(&dir.snapshots(), CLUSTER)?;
    let mut found = vec![group, format!("{:?}", peers.births()).into()];
    if let Some(file) = store.latest()?.snapshot {
        let mut contents = Vec::new();
        store.open_snapshot(file.slot)?.read_to_end(&mut contents).unwrap();
        found.push(contents.into());
    }
    let (wal, recovered) = Wal::open(&dir.wal(), dir.identity(), Options::default())?;
    assert!(recovered.damage.is_none() && recovered.loss.is_none());
    found.extend(recovered.records.into_iter().map(|record| record.bytes));
    wal.close()?;
    Ok(found)
}

/// A directory with something in every file.
fn filled(path: &Path) {
    start(path).unwrap();
    let dir = DataDir::open(path, CLUSTER, ReplicaId(1), "n1", Durability::Sync).unwrap();
    dir.set_origin(&Bytes::from_static(b"the first group")).unwrap();
    PeerBook::open(&dir).unwrap().wait_for_nobody().unwrap();
    let store = SnapshotStore::open(&dir.snapshots(), CLUSTER).unwrap();
    let mut writer = store.create(Slot(5)).unwrap();
    writer.write_all(b"the state").unwrap();
    writer.finish().unwrap();
    let (mut wal, recovered) = Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap();
    let mut record = Writer::new();
    record.bytes(b"a promise");
    wal.append(recovered.last.next(), Keep::Slot(Slot(6)), record.finish());
    wal.close().unwrap();
}

/// Makes a file claim another version. Checksums match where that version can still be read.
fn restate(file: &Path, change: impl Fn(u32) -> Written) {
    if let Ok(Some(Ok(mut fields))) = Fields::read(&RealDisk, file) {
        let written = change(fields.parse("version").unwrap());
        fields.set("version", written.version);
        fields.set("readers", written.readers);
        fields.set("of_later_versions", "something that is not known yet");
        return fields.write(&RealDisk, file, "synod").unwrap();
    }
    let mut bytes = fs::read(file).unwrap();
    let magic: [u8; 8] = bytes[..8].try_into().unwrap();
    let written = change(Written::of_head(&bytes, magic).unwrap().version);
    bytes[..FILE_HEAD_BYTES].copy_from_slice(&written.head(magic));
    let put =
        |bytes: &mut Vec<u8>, at: usize, crc: u32| bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    match &magic {
        b"SYNODWAL" => {
            let crc = crc32fast::hash(&bytes[..84]);
            put(&mut bytes, 84, crc);
        }
        b"SYNODSNP" => {
            let crc = crc32fast::hash(&bytes[..60]);
            put(&mut bytes, 60, crc);
            let end = bytes.len();
            let crc = crc32fast::hash(&[&bytes[..64], &bytes[end - 16..end - 4]].concat());
            put(&mut bytes, end - 4, crc);
        }
        b"SYNODGRP" => {
            let crc = crc32fast::hash(&[&bytes[..48], &bytes[52..]].concat());
            put(&mut bytes, 48, crc);
        }
        other => panic!("{other:?}"),
    }
    fs::write(file, bytes).unwrap();
}

fn later(readers_too: bool) -> impl Fn(u32) -> Written {
    move |version| Written { version: version + 1, readers: version + u32::from(readers_too) }
}

/// All files that a start does not write anyway.
fn kept(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let folders = [path.to_owned(), path.join("wal"), path.join("snapshots")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = entries.map(|entry| entry.unwrap().path()).filter(|file| file.is_file());
    let kept =
        files.filter(|file| !["identity", "lives", "wal/log.state"].iter().any(|name| file.ends_with(name)));
    kept.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

#[test]
fn what_a_later_version_wrote_for_this_one_too_is_read() {
    for name in FILES {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let before = start(dir.path()).unwrap();
        restate(&dir.path().join(name), later(false));
        assert_eq!(start(dir.path()).unwrap(), before, "{name}");
    }
}

#[test]
fn what_takes_a_later_version_is_refused_and_left_as_it_is() {
    for name in FILES {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let before = start(dir.path()).unwrap();
        let file = dir.path().join(name);
        let ours = fs::read(&file).unwrap();
        restate(&file, later(true));
        let files = kept(dir.path());
        let error = start(dir.path()).unwrap_err();
        let StorageError::Version { path, error: VersionError::TooNew { found, known } } = &error else {
            panic!("{name}: {error}")
        };
        assert_eq!((path, found.readers), (&file, known + 1));
        assert!(error.to_string().contains(&format!("knows version {} or later", found.readers)), "{error}");
        assert_eq!(kept(dir.path()), files, "{name}: nothing is set aside, cut or written over");
        fs::write(&file, ours).unwrap();
        assert_eq!(start(dir.path()).unwrap(), before, "{name}: nothing is lost");
    }
}

#[test]
fn a_file_that_is_too_old_is_refused_with_the_versions_that_read_it() {
    for name in FILES {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        restate(&dir.path().join(name), |_| Written { version: 0, readers: 0 });
        let error = start(dir.path()).unwrap_err();
        assert!(
            matches!(error, StorageError::Version { error: VersionError::TooOld { found: 0, .. }, .. }),
            "{name}"
        );
        assert!(
            error.to_string().contains("It is read by: no release, only builds from before 0.2.0"),
            "{error}"
        );
    }
}

/// The snapshot is refused before it has cost the network more than its first piece, and nothing is left of it.
#[test]
fn a_snapshot_of_a_later_peer_is_refused_at_its_first_piece() {
    for (readers_too, taken) in [(true, false), (false, true)] {
        let (theirs, ours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        filled(theirs.path());
        let file = theirs.path().join(FILES[7]);
        restate(&file, later(readers_too));
        let bytes = Bytes::from(fs::read(&file).unwrap());
        let store = SnapshotStore::open(&ours.path().join("snapshots"), CLUSTER).unwrap();
        let mut receiver = store.receive(Slot(5), bytes.len() as u64).unwrap();
        let received = receiver.write_chunk(0, &bytes.slice(..70)).and_then(|_| {
            receiver.write_chunk(70, &bytes.slice(70..))?;
            receiver.finish()
        });
        assert_eq!(received.is_ok(), taken);
        if let Err(error) = received {
            assert!(
                matches!(error, StorageError::Version { error: VersionError::TooNew { .. }, .. }),
                "{error}"
            );
            assert_eq!(fs::read_dir(store.dir()).unwrap().count(), 0);
        }
    }
}
