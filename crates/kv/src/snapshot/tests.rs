use std::{env, fs, path::Path};

use synod_api::{
    authpb::{Permission, permission::Type},
    etcdserverpb::{
        AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
        AuthUserGrantRoleRequest, CompactionRequest, LeaseGrantRequest, PutRequest,
        alarm_request::AlarmAction,
    },
    synod::v1::{KvAuthChange, KvCommand, kv_auth_change::Change as Managed, kv_command::Command},
};
use synod_replica::StateMachine;

use super::*;
use crate::testing::{self, Execute, all, keys, op_delete, op_put, op_txn};

fn written(store: &KvStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.freeze().write_to(&mut bytes).unwrap();
    bytes
}

fn restored(mut bytes: &[u8]) -> io::Result<KvStore> {
    let mut store = KvStore::new();
    store.restore(&mut bytes)?;
    assert_eq!(bytes, b"", "all is read");
    Ok(store)
}

/// A store with histories, tombstones, two changes of a key at one revision, alarms, and values that span blocks.
fn store() -> KvStore {
    let mut store = KvStore::new();
    for n in 0..300 {
        store.set(&format!("key-{}", n % 7), &"x".repeat(n * 5));
    }
    store.set("large", &"y".repeat(3 * BLOCK_BYTES_MAX));
    store.set("empty", "");
    store.del("key-1", "key-3");
    let twice = vec![op_txn(all(vec![op_put("t", "1")])), op_txn(all(vec![op_delete("t", "")]))];
    store.transact(all(twice)).unwrap();
    store.compact_at(100, true).unwrap();
    store.ask_alarm(AlarmAction::Activate, 3, AlarmType::Nospace);
    store
}

fn contents(store: &KvStore) -> (u64, i64, i64, u64, u64, u64, Vec<Change>) {
    let changes = store.changes.from(0).cloned().collect();
    let KvStore { revision, purged, live_keys, versions, size_bytes, .. } = store;
    (store.digest(), *revision, *purged, *live_keys, *versions, *size_bytes, changes)
}

#[test]
fn round_trip() {
    for store in [KvStore::new(), store()] {
        let again = restored(&written(&store)).unwrap();
        assert_eq!(contents(&again), contents(&store));
        assert_eq!(again.alarms, store.alarms);
        for revision in store.compacted.max(1)..=store.revision {
            let read = |store: &KvStore| store.read_at("\0", "\0", revision).unwrap();
            assert_eq!(read(&again), read(&store));
        }
        assert_eq!(written(&again), written(&store));
    }
}

#[test]
fn what_happens_after_the_freeze_is_not_in_it() {
    let mut store = store();
    store.ask_alarm(AlarmAction::Deactivate, 0, AlarmType::None);
    let before = written(&store);
    let frozen = store.freeze();
    for n in 0..300 {
        store.set(&format!("key-{n}"), "new");
    }
    store.del("a", "l");
    store.compact_at(store.revision, true).unwrap();
    let mut after = Vec::new();
    frozen.write_to(&mut after).unwrap();
    assert!(before == after);
    assert_eq!(keys(&store.read_at("\0", "\0", 0).unwrap()), ["large"]);
}

#[test]
fn a_restored_store_clears_away_in_step_with_the_others() {
    let mut store = KvStore::new();
    for n in 0..600 {
        store.set(&format!("{}", n * 7919 % 100), "value");
    }
    // Three compactions, each of which begins while the one before it is still in progress.
    let compact = |revision| Command::Compact(CompactionRequest { revision, physical: false });
    let script = (0..240).map(|n| match n {
        10 => compact(400),
        50 => compact(500),
        60 => compact(590),
        n if n % 3 == 0 => Command::DeleteRange(testing::delete(&format!("{n}"), "")),
        n => Command::Put(testing::put(&format!("{n}"), "more")),
    });
    let script = script.collect::<Vec<_>>();
    // The size decides over the quota, and the number of keys (deleted ones included) over how many a
    // transaction may look at. Both must be the same after every command.
    let run = |store: &mut KvStore, command: &Command| {
        store.send(command.clone()).unwrap();
        let judged_by = (store.size_bytes, store.keys.len());
        (store.purged, store.live_keys, store.versions, judged_by, store.digest())
    };
    let mut snapshots = Vec::new();
    let mut expected = Vec::new();
    for command in &script {
        snapshots.push(written(&store));
        expected.push(run(&mut store, command));
    }
    assert_eq!(store.purged, 590);
    for (at, snapshot) in snapshots.iter().enumerate() {
        let mut again = restored(snapshot).unwrap();
        for n in at..script.len() {
            assert_eq!(run(&mut again, &script[n]), expected[n], "restored at {at}, after command {n}");
        }
    }
}

/// A store whose snapshot is small.
fn small() -> KvStore {
    filled(KvStore::new())
}

fn filled(mut small: KvStore) -> KvStore {
    for n in 0..20 {
        small.set(&format!("{}", n % 3), "value");
    }
    small.del("1", "");
    small.ask_alarm(AlarmAction::Activate, 3, AlarmType::Nospace);
    small
}

/// The same with leases: one whose time counts already, and one whose time does not count yet.
fn with_leases() -> KvStore {
    let mut store = KvStore::new();
    let grant = |store: &mut KvStore, id| {
        store.send(Command::LeaseGrant(LeaseGrantRequest { ttl: 10 * id, id })).unwrap();
        store.set_with(PutRequest { lease: id, ..testing::put(&format!("leased {id}"), "v") }).unwrap();
    };
    grant(&mut store, 1);
    for clock_ms in [1_000, 2_000, 3_000] {
        store.clock_moved(clock_ms, 7);
    }
    grant(&mut store, 2);
    filled(store)
}

/// The same with users and roles too, which are in force.
fn with_users() -> KvStore {
    let mut store = with_leases();
    let user = AuthUserAddRequest {
        name: "root".to_owned(),
        hashed_password: "a hash".to_owned(),
        ..AuthUserAddRequest::default()
    };
    let perm = Permission { perm_type: Type::Readwrite.into(), key: "a".into(), range_end: "n".into() };
    let changes = [
        Managed::UserAdd(user),
        Managed::RoleAdd(AuthRoleAddRequest { name: "root".to_owned() }),
        Managed::RoleAdd(AuthRoleAddRequest { name: "editor".to_owned() }),
        Managed::RoleGrantPermission(AuthRoleGrantPermissionRequest {
            name: "editor".to_owned(),
            perm: Some(perm),
        }),
        Managed::UserGrantRole(AuthUserGrantRoleRequest { user: "root".to_owned(), role: "root".to_owned() }),
        Managed::UserGrantRole(AuthUserGrantRoleRequest {
            user: "root".to_owned(),
            role: "editor".to_owned(),
        }),
        Managed::Enable(AuthEnableRequest {}),
    ];
    for change in changes {
        store.send(Command::Auth(KvAuthChange { change: Some(change) })).unwrap();
    }
    store
}

/// A release adds files and changes none: `SYNOD_WRITE_FORMATS=RELEASE` writes those that it lacks.
#[test]
fn what_releases_wrote_is_read() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats"));
    let cases = [("", small()), ("-leases", with_leases()), ("-users", with_users())];
    let formats = cases.each_ref().map(|(_, store)| word(&written(store)[8..]));
    assert_eq!(formats, [OF_NO_LEASE, OF_NO_USER, FORMAT.written], "each of them is written");
    if let Ok(release) = env::var("SYNOD_WRITE_FORMATS") {
        for (name, store) in &cases {
            let file = folder.join(format!("{release}{name}.snapshot"));
            if !file.exists() {
                fs::write(file, written(store)).unwrap();
            }
        }
    }
    let mut read = 0;
    for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let (_, case) = name.split_once('-').map_or(("", ""), |(release, _)| name.split_at(release.len()));
        let (_, expected) = cases.iter().find(|(name, _)| *name == case).unwrap();
        let store = restored(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(contents(&store), contents(expected), "{}", file.display());
        assert_eq!((&store.leases, &store.auth), (&expected.leases, &expected.auth), "{}", file.display());
        read += 1;
    }
    assert!(read >= cases.len(), "{read} files");
}

fn word(bytes: &[u8]) -> Written {
    Written::unpacked(u32::from_le_bytes(bytes[..4].try_into().unwrap()))
}

#[test]
fn damage_is_refused_and_leaves_the_old_state() {
    let small = small();
    let bytes = written(&small);
    let mut store = store();
    let old = contents(&store);
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let written = u32::from_le_bytes(damaged[8..12].try_into().unwrap());
            if (8..12).contains(&at) && FORMAT.check(Written::unpacked(written)).is_ok() {
                // The changed bytes are a version number that this program reads as well.
                continue;
            }
            assert!(store.restore(&mut &damaged[..]).is_err(), "bit {bit} of byte {at}");
        }
        assert!(store.restore(&mut &bytes[..at]).is_err(), "cut at {at}");
    }
    assert_eq!(contents(&store), old);
    store.restore(&mut &bytes[..]).unwrap();
    assert_eq!(contents(&store), contents(&small));
}

#[test]
fn blocks_out_of_place_are_refused() {
    let bytes = written(&store());
    let mut blocks = Vec::new();
    let mut rest = &bytes[12..];
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        let (block, after) = rest.split_at(8 + length);
        blocks.push(block);
        rest = after;
    }
    assert!(blocks.len() > 4);
    let with = |blocks: &[&[u8]]| restored(&[&bytes[..12], &blocks.concat()].concat());
    assert!(with(&blocks).is_ok());
    let mut swapped = blocks.clone();
    swapped.swap(1, 2);
    assert!(with(&swapped).is_err());
    assert!(with(&[&blocks[..1], &blocks[2..]].concat()).is_err());
    assert!(with(&[&blocks[..2], &blocks[1..]].concat()).is_err());
}

#[test]
fn it_reads_not_a_byte_too_far() {
    let bytes = [written(&store()), b"what follows".to_vec()].concat();
    let mut rest = &bytes[..];
    KvStore::new().restore(&mut rest).unwrap();
    assert_eq!(rest, b"what follows");
}

#[test]
fn a_later_format_is_named() {
    let mut store = KvStore::new();
    Arc::make_mut(&mut store.auth).users.insert("u".into(), User::default());
    let mut bytes = written(&store);
    let later = |readers| Written { version: FORMAT.written.version + 1, readers }.packed().to_le_bytes();
    bytes[8..12].copy_from_slice(&later(FORMAT.written.version));
    restored(&bytes).unwrap();
    bytes[8..12].copy_from_slice(&later(FORMAT.written.version + 1));
    let error = restored(&bytes).unwrap_err().to_string();
    assert!(error.contains("format version 5, which takes a program that knows version 5"), "{error}");
    bytes[0] = 0;
    let error = restored(&bytes).unwrap_err().to_string();
    assert_eq!(error, "key-value snapshot: this is no snapshot of a key-value store");
}

/// Modified, sub, created, version.
type ForgedVersion = (i64, u32, i64, i64);

struct Forged {
    revisions: [i64; 3],
    alarms: &'static [(u64, i32)],
    counts: [u64; 2],
    keys: &'static [(&'static str, &'static [ForgedVersion])],
}

/// Writes a snapshot that no store would write, with checksums that match.
fn forge(forged: &Forged) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &OF_NO_LEASE.packed().to_le_bytes()].concat();
    let mut out = BlockWriter::new(&mut bytes);
    forged.revisions.iter().for_each(|revision| out.i64(*revision).unwrap());
    out.count(forged.alarms.len()).unwrap();
    for (member, kind) in forged.alarms {
        out.u64(*member).unwrap();
        out.write_all(&kind.to_le_bytes()).unwrap();
    }
    forged.counts.iter().for_each(|count| out.u64(*count).unwrap());
    for (key, versions) in forged.keys {
        out.bytes(key.as_bytes()).unwrap();
        out.count(versions.len()).unwrap();
        for (modified, sub, created, version) in *versions {
            out.i64(*modified).unwrap();
            out.write_all(&sub.to_le_bytes()).unwrap();
            out.i64(*created).unwrap();
            out.i64(*version).unwrap();
            out.i64(0).unwrap();
            out.bytes(b"").unwrap();
        }
    }
    out.finish().unwrap();
    bytes
}

#[test]
fn contents_that_make_no_sense_are_refused() {
    const GOOD: Forged = Forged {
        revisions: [5, 2, 2],
        alarms: &[(1, 1)],
        counts: [2, 3],
        keys: &[("a", &[(2, 0, 2, 1), (4, 0, 0, 0)]), ("b", &[(5, 0, 3, 2)])],
    };
    assert!(restored(&forge(&GOOD)).is_ok());
    let refused = |forged: Forged, why: &str| {
        let error = restored(&forge(&forged)).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(Forged { revisions: [0, -1, 0], ..GOOD }, "revisions of the store");
    refused(Forged { revisions: [5, 6, 2], ..GOOD }, "revisions of the store");
    refused(Forged { revisions: [i64::MAX, 2, 2], ..GOOD }, "revisions of the store");
    refused(Forged { revisions: [5, -2, 0], ..GOOD }, "revisions of the store");
    refused(Forged { revisions: [5, 2, 3], ..GOOD }, "purged");
    refused(Forged { revisions: [5, 2, -1], ..GOOD }, "purged");
    refused(Forged { alarms: &[(1, 0)], ..GOOD }, "alarm");
    refused(Forged { alarms: &[(1, 3)], ..GOOD }, "alarm");
    refused(Forged { alarms: &[(1, 1), (1, 1)], ..GOOD }, "alarm");
    refused(Forged { alarms: &[(1, 1); ALARMS_MAX + 1], ..GOOD }, "too many alarms");
    refused(Forged { counts: [2, 2], ..GOOD }, "number of versions");
    refused(Forged { counts: [1, 2], ..GOOD }, "something follows");
    refused(Forged { counts: [3, 3], ..GOOD }, "ends too early");
    let with = |keys| Forged { counts: [2, 2], keys, ..GOOD };
    refused(with(&[("b", &[(2, 0, 2, 1)]), ("a", &[(3, 0, 3, 1)])]), "keys are out of order");
    refused(with(&[("a", &[(2, 0, 2, 1)]), ("a", &[(3, 0, 3, 1)])]), "keys are out of order");
    refused(with(&[("", &[(2, 0, 2, 1)]), ("a", &[(3, 0, 3, 1)])]), "keys are out of order");
    refused(with(&[("a", &[])]), "no version");
    refused(with(&[("a", &[(3, 0, 3, 1), (2, 0, 2, 1)])]), "versions of a key");
    refused(with(&[("a", &[(3, 0, 3, 1), (3, 0, 3, 2)])]), "versions of a key");
    refused(with(&[("a", &[(2, 0, 2, 1)]), ("b", &[(2, 0, 2, 1)])]), "same revision and place");
    refused(with(&[("a", &[(6, 0, 2, 1)])]), "contradicts itself");
    refused(with(&[("a", &[(3, u32::MAX, 2, 1)])]), "contradicts itself");
    refused(with(&[("a", &[(3, 0, 2, i64::MAX)])]), "contradicts itself");
    refused(with(&[("a", &[(1, 0, 1, 1)])]), "contradicts itself");
    refused(with(&[("a", &[(3, 0, 4, 1)])]), "contradicts itself");
    refused(with(&[("a", &[(3, 0, 3, -1)])]), "contradicts itself");
    refused(with(&[("a", &[(3, 0, 3, 0)])]), "contradicts itself");
}

#[test]
fn writes_are_bounded() {
    struct Measure(usize);
    impl Write for Measure {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.max(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut measure = Measure(0);
    store().freeze().write_to(&mut measure).unwrap();
    assert_eq!(measure.0, BLOCK_BYTES_MAX);
}

#[test]
fn a_restored_store_goes_on() {
    let mut store = store();
    store.ask_alarm(AlarmAction::Deactivate, 0, AlarmType::None);
    let mut again = restored(&written(&store)).unwrap();
    for command in [
        Command::Put(testing::put("key-1", "back")),
        Command::DeleteRange(testing::delete("key-4", "key-6")),
        Command::Txn(all(vec![op_put("z", ""), op_delete("large", "")])),
    ] {
        let command = KvCommand { command: Some(command), ..KvCommand::default() };
        assert_eq!(again.execute(&command), store.execute(&command));
    }
    assert_eq!(contents(&again), contents(&store));
}
