//! What lies in a data directory. A file that is damaged is a clear error, or is told from a file that a crash has
//! torn; it is never a panic.

use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use synod_replica::{History, LogRecord, Mark};
use synod_storage::{Disk, Lives, Options, PeerBook, Recovered, SnapshotStore, StorageError, Wal};
use synod_testkit::FaultyDisk;
use synod_wire::{ClusterId, Encoded, GroupId, Keep, Lsn, ReplicaId, Slot, Writer};

use super::{Memory, Target, Verdict, kind};
use crate::entropy::Entropy;

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "file-directory",
        about: "a data directory of release 0.2.0 in which one file has these contents, and perhaps another one is missing: what can \
                be opened takes a record, which is there when it is opened again",
        run: directory,
        seeds: directory_seeds,
        memory: Memory { base: 8 << 20, times: 256 },
        words: &[
            b"checksum = ",
            b"version = ",
            b"readers = ",
            b" = ",
            b"\n",
            b"SYNODWAL",
            b"SYNODGRP",
            b"SYNODMRK",
            b"18446744073709551615",
        ],
    },
    Target {
        name: "file-snapshot",
        about: "the file of a snapshot, on the disk and as it comes from a peer in pieces: both ways refuse the same files, and give the \
                same contents",
        run: snapshot,
        seeds: || {
            let file = DIRECTORY.iter().find(|(path, _)| path.ends_with(".snap")).expect("there is one").1;
            vec![("0.2.0".into(), [&[0, 200], file].concat()), ("unsealed".into(), [&[7, 9], file].concat())]
        },
        memory: Memory { base: 8 << 20, times: 64 },
        words: &[b"SYNODSNP", b"SNAPDONE"],
    },
];

const CLUSTER: ClusterId = ClusterId(7);
const ME: ReplicaId = ReplicaId(1);
const BIRTH: u64 = 0x908a_a8fe_b65b_77d3;

macro_rules! directory {
    ($($path:literal),+) => {
        [$(($path, include_bytes!(concat!("../../../node/tests/formats/0.2.0/multipaxos-leader/", $path)))),+]
    };
}

/// The files of a data directory that release 0.2.0 wrote.
const DIRECTORY: [(&str, &[u8]); 10] = directory!(
    "group",
    "identity",
    "lives",
    "peers",
    "wal/00000000000000000001.wal",
    "wal/00000000000000000002.wal",
    "wal/log.mark",
    "wal/log.segments",
    "wal/log.state",
    "snapshots/snapshot-00000000000000000005.snap"
);

/// Bytes of a segment's first page, and how many of them are used.
const PAGE: usize = 4096;
const HEADER_USED: usize = 88;
/// Bytes of a record in a segment before its body.
const RECORD_HEADER_BYTES: usize = 56;

/// Where the marks in `log.mark` begin, and how long they are.
const MARK_BYTES: usize = 44;

/// The contents of a file as an input has them: without the zeros that fill pages.
fn compact(path: &str, file: &[u8]) -> Vec<u8> {
    let end = file.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    if path.ends_with(".wal") {
        let records = file.get(PAGE..end.next_multiple_of(8).max(PAGE)).unwrap_or_default();
        return [&file[..HEADER_USED], records].concat();
    }
    match path {
        "wal/log.mark" => [&file[..MARK_BYTES], &file[PAGE..PAGE + MARK_BYTES]].concat(),
        _ => file.to_vec(),
    }
}

/// What [`compact`] made smaller.
fn expanded(path: &str, contents: &[u8]) -> Vec<u8> {
    let (front, bytes) = match path {
        "wal/log.mark" => (MARK_BYTES, 2 * PAGE),
        // The length that the list of segments says.
        path if path.ends_with(".wal") => (HEADER_USED, 16 << 10),
        _ => return contents.to_vec(),
    };
    let (front, rest) = contents.split_at(contents.len().min(front));
    let mut file = front.to_vec();
    file.resize(PAGE, 0);
    file.extend_from_slice(rest);
    file.resize(file.len().max(bytes), 0);
    file
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Writes the checksum of everything in front of it.
fn seal_at(bytes: &mut [u8], from: usize, at: usize) {
    if at + 4 <= bytes.len() {
        let crc = crc32fast::hash(&bytes[from..at]).to_le_bytes();
        bytes[at..at + 4].copy_from_slice(&crc);
    }
}

/// Makes the checksums of a file right.
fn seal(path: &str, file: &mut Vec<u8>) {
    match path {
        "group" => {
            seal_at(file, 0, 16);
            if file.len() >= 52 {
                let mut crc = crc32fast::Hasher::new();
                crc.update(&file[..48]);
                crc.update(&file[52..]);
                file[48..52].copy_from_slice(&crc.finalize().to_le_bytes());
            }
        }
        "wal/log.mark" => {
            seal_at(file, 0, MARK_BYTES - 4);
            seal_at(file, PAGE, PAGE + MARK_BYTES - 4);
        }
        path if path.ends_with(".wal") => seal_segment(path, file),
        path if path.ends_with(".snap") => seal_snapshot(file),
        _ => {
            // Lines of text, of which the last one is the checksum of the others.
            const LAST: &[u8] = b"checksum = ";
            let at = file.windows(LAST.len()).rposition(|window| window == LAST).unwrap_or(file.len());
            file.truncate(at);
            let crc = crc32fast::hash(file);
            file.extend_from_slice(format!("checksum = {crc:08x}\n").as_bytes());
        }
    }
}

fn seal_segment(path: &str, file: &mut [u8]) {
    seal_at(file, 0, 16);
    seal_at(file, 0, HEADER_USED - 4);
    let number: u64 = path["wal/".len()..][..20].parse().expect("it is a number");
    let mut binding = crc32fast::Hasher::new();
    for word in [CLUSTER.0, ME.0, BIRTH, number] {
        binding.update(&word.to_le_bytes());
    }
    let mut at = PAGE;
    while at + RECORD_HEADER_BYTES <= file.len() && (1..=3).contains(&file[at + 12]) {
        let (header, body) = file[at..].split_at_mut(RECORD_HEADER_BYTES);
        let length = u32_at(header, 8) as usize;
        if let Some(body) = body.get(..length) {
            header[48..52].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        }
        let mut crc = binding.clone();
        crc.update(&header[..52]);
        header[52..].copy_from_slice(&crc.finalize().to_le_bytes());
        at = at.saturating_add((RECORD_HEADER_BYTES + length).next_multiple_of(8));
    }
}

fn seal_snapshot(file: &mut [u8]) {
    if file.len() >= 64 + 16 {
        // The length of the contents, as the length of the file has it.
        let length = (file.len() - 64 - 16).saturating_sub(4) as u64;
        file[40..48].copy_from_slice(&length.to_le_bytes());
    }
    seal_at(file, 0, 16);
    seal_at(file, 0, 60);
    if file.len() < 64 + 16 {
        return;
    }
    // All contents are one chunk, since an input is smaller than one.
    let (front, trailer) = file.split_at_mut(file.len() - 16);
    let (header, chunk) = front.split_at_mut(64);
    let mut crc = 0;
    if let Some((sum, payload)) = chunk.split_at_mut_checked(4) {
        crc = crc32fast::hash(payload);
        sum.copy_from_slice(&crc.to_le_bytes());
    }
    trailer[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(&trailer[..12]);
    trailer[12..].copy_from_slice(&crc.finalize().to_le_bytes());
}

/// Where the data directory is on the disk in memory.
const HOME: &str = "/synod";

/// A disk with the directory, in which one file is another one, and another one may be missing.
fn disk(changed: &str, file: &[u8], missing: Option<&str>) -> FaultyDisk {
    let disk = FaultyDisk::new(1);
    for dir in [HOME, "/synod/wal", "/synod/snapshots"] {
        let dir = Path::new(dir);
        disk.create_dir(dir).expect("it is new");
        disk.sync_dir(dir.parent().expect("it has one")).expect("the disk is whole");
    }
    for (path, original) in DIRECTORY.iter().filter(|(path, _)| missing != Some(path)) {
        let contents = if *path == changed { file } else { original };
        disk.put(&Path::new(HOME).join(path), contents);
    }
    disk
}

/// What a start of a replica found.
struct Opened {
    text: String,
    wal: Wal,
    recovered: Recovered,
}

/// Opens everything, as a replica does when it starts.
fn open(disk: &FaultyDisk) -> Result<Opened, StorageError> {
    let dir = disk.open_dir(Path::new(HOME), CLUSTER, ME)?;
    let lives = Lives::begin(&dir)?;
    let book = PeerBook::open(&dir)?;
    for reached in book.reached().into_values() {
        let marks = reached.sums.iter().map(|&(slot, fingerprint)| Mark { slot, fingerprint });
        if let Some(history) = History::noted(reached.since, marks) {
            let _ = history.to_note().count();
        }
    }
    let origin = dir.origin()?.map(synod_node::Origin::decode);
    let snapshots = disk.open_snapshots(&dir)?;
    let latest = snapshots.latest()?;
    if let Some(snapshot) = &latest.snapshot {
        let mut contents = Vec::new();
        let read = snapshots.open_snapshot(snapshot.slot)?.read_to_end(&mut contents);
        read.expect("it was verified");
    }
    let options = Options { segment_bytes: 16 << 10, ..Options::default() };
    let (wal, recovered) = disk.open_wal(&dir, options)?;
    lives.begin_log(recovered.last)?;
    let _ = lives.introduction(recovered.last);
    let known = recovered.records.iter().filter(|record| LogRecord::decode(record.bytes.clone()).is_ok());
    let text = format!(
        "{} records, {} torn, {} {} {} {:?}",
        known.count().min(12),
        recovered.torn_bytes_cut > 0,
        kind(&recovered.damage),
        kind(&recovered.loss),
        latest.damaged.len(),
        origin.map(|origin| origin.is_ok()),
    );
    Ok(Opened { text, wal, recovered })
}

/// A record that the log did not have.
fn record() -> Encoded {
    let mut writer = Writer::new();
    writer.bytes(b"a record of this life");
    writer.finish()
}

fn directory(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let (path, _) = DIRECTORY[input.below(DIRECTORY.len())];
    let how = input.byte();
    let mut file = expanded(path, input.rest());
    if how % 8 != 7 {
        seal(path, &mut file);
    }
    let missing = DIRECTORY.get(usize::from(how / 8)).map(|(path, _)| *path);
    let disk = disk(path, &file, missing);
    let mut opened = match open(&disk) {
        Ok(opened) => opened,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let damaged = opened.recovered.damage.is_some();
    if damaged {
        // The operator, or the replica by itself, goes on with what can be read.
        let kept = opened.recovered.records.iter().map(|record| {
            let mut writer = Writer::new();
            record.bytes.iter().for_each(|&byte| writer.u8(byte));
            (record.group, record.keep, writer.finish())
        });
        if let Err(error) = opened.wal.quarantine(kept.collect::<Vec<_>>()) {
            return Verdict::Refused(format!("quarantine: {error}"));
        }
    }
    if opened.wal.durable() >= Lsn(u64::MAX - 16) {
        return Verdict::Accepted(format!("at the end of all numbers {}", opened.text));
    }
    let lsn = opened.wal.append_to(GroupId::FIRST, Keep::Slot(Slot(77)), record());
    match opened.wal.commit() {
        Ok(durable) => assert_eq!(durable, lsn),
        Err(error) => return Verdict::Refused(format!("commit: {error}")),
    }
    let text = opened.text;
    drop((opened.wal, opened.recovered));
    disk.power_failure();
    let again = match open(&disk) {
        Ok(again) => again,
        Err(error) => panic!("what was opened, and written to, cannot be opened again: {error}"),
    };
    assert!(again.recovered.damage.is_none(), "{:?} after {text}", again.recovered.damage);
    let body = record().to_bytes();
    let is_new = |record: &synod_storage::RecoveredRecord| record.lsn == lsn && record.bytes == body;
    assert!(again.recovered.records.iter().any(is_new), "the record that was committed is there");
    Verdict::Accepted(format!("{path} {text}"))
}

fn directory_seeds() -> Vec<(String, Vec<u8>)> {
    let seeds = DIRECTORY.iter().zip(0_u8..).flat_map(|((path, file), number)| {
        let name = path.rsplit('/').next().expect("a path has a name");
        let contents = compact(path, file);
        let none = u8::try_from(DIRECTORY.len()).expect("few files") * 8;
        let seed = |what: &str, how: u8| (format!("{name}-{what}"), [&[number, how], &contents[..]].concat());
        [seed("whole", none), seed("as-it-is", none + 7), seed("without-state", 8 * 8)]
    });
    seeds.collect()
}

fn snapshots(disk: &FaultyDisk) -> SnapshotStore {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    SnapshotStore::open_on(disk, &PathBuf::from("/synod/snapshots"), CLUSTER).expect("the directory is there")
}

/// The contents of the snapshot of slot 5, if it is one.
fn contents(store: &SnapshotStore) -> Result<Vec<u8>, String> {
    let latest = store.latest().map_err(|error| error.to_string())?;
    if latest.snapshot.is_none() {
        return Err(latest.damaged.first().map_or("none".to_owned(), |damaged| damaged.reason.clone()));
    }
    let mut reader = store.open_snapshot(Slot(5)).map_err(|error| error.to_string())?;
    let mut contents = Vec::new();
    reader.read_to_end(&mut contents).map_err(|error| error.to_string())?;
    Ok(contents)
}

fn snapshot(input: &[u8]) -> Verdict {
    const PATH: &str = "snapshots/snapshot-00000000000000000005.snap";
    let mut input = Entropy::new(input);
    let (as_it_is, size) = (input.below(8) == 7, 1 + usize::from(input.byte()) * 4);
    let mut file = input.rest().to_vec();
    if !as_it_is {
        seal(PATH, &mut file);
    }
    let on_disk = contents(&snapshots(&disk(PATH, &file, None)));
    // Another replica gets it in pieces.
    let store = snapshots(&disk("", &[], Some(PATH)));
    let received = store.receive(Slot(5), file.len() as u64).and_then(|mut receiver| {
        for piece in file.chunks(size) {
            receiver.write_chunk(receiver.offset(), &Bytes::copy_from_slice(piece))?;
        }
        receiver.finish()
    });
    match (on_disk, received) {
        (Ok(on_disk), Ok(_)) => {
            assert_eq!(contents(&store).as_ref(), Ok(&on_disk));
            Verdict::Accepted(format!("{}", on_disk.len().min(64) / 16))
        }
        (Err(reason), Err(_)) => Verdict::Refused(reason),
        (on_disk, received) => panic!("{on_disk:?} on the disk, {received:?} from a peer"),
    }
}
