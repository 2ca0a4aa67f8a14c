//! Reads the file that etcd saves as a snapshot, or its database, into a store.
//!
//! What names members of the cluster that was saved does not belong into a new one, and is left out: the members
//! themselves, how far their log was, and the alarms that they raised.

// Impure: an operator names the file, once, before a replica starts with its contents.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    path::Path,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost::Message;
use sha2::{Digest as _, Sha256};
use synod_api::{
    authpb::{self, permission::Type},
    etcdserverpb::{AlarmMember, AlarmType},
    mvccpb::KeyValue,
};

use super::{
    ALARM, AUTH, COMPACTED, KEY, LEASE, META, REVISION_BYTES, ROLES, StoredLease, TOMBSTONE, USERS,
    revision_value,
};
use crate::{
    ALARMS_MAX, KvStore,
    auth::{Auth, Role, User, is_range},
    bbolt::{ReadAt, Reader},
    changes::Change,
    history::{History, Version},
    key::Key,
    lease::{End, LEASE_BYTES, TICKS, TTL_SECONDS_MAX},
    store::charge,
};

/// Bytes of the hash that follows a database in a file that was saved as a snapshot.
const HASH_BYTES: u64 = 32;
/// Sizes of databases are multiples of it.
const SECTOR_BYTES: u64 = 512;
/// Revisions, and numbers of versions, of a restored store are below it, far from where they would end.
const NUMBERS_END: i64 = 1 << 62;
/// Bytes that are hashed at a time.
const HASHED_BYTES: usize = 1 << 20;

/// Why a file of etcd's cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(io::Error),
    /// The file ends without a hash: it was not saved as a snapshot, or not all of it is there.
    #[error(
        "it does not end with a hash, as a saved snapshot does: it is incomplete, or the database of a member itself"
    )]
    NoHash,
    /// The hash at the end is not that of the file.
    #[error("its hash does not match its contents: it was damaged after it was saved")]
    WrongHash,
    /// The contents are none of etcd's, or were damaged.
    #[error("{0}")]
    Damaged(String),
}

impl From<io::Error> for BackupError {
    fn from(error: io::Error) -> BackupError {
        match error.kind() {
            io::ErrorKind::InvalidData => BackupError::Damaged(error.to_string()),
            io::ErrorKind::UnexpectedEof => BackupError::Damaged("it ends too early".to_owned()),
            _ => BackupError::Read(error),
        }
    }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Revisions that a restored store skips, so that clients which have seen later revisions than those of the backup see
/// no revision twice. All that was before is compacted: watches from before end, and begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bump(pub u64);

/// A backup: a snapshot that etcd or Synod saved, or the database of a member of etcd's.
///
/// The file must not change while it is read; a database must be that of a member that does not run.
#[derive(Debug)]
pub struct Backup {
    file: File,
    /// Without the hash.
    bytes: u64,
    hash: Option<[u8; HASH_BYTES as usize]>,
}

/// What a backup holds, as etcdutl says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupStatus {
    /// CRC-32C of all buckets, with names, keys and values.
    pub hash: u32,
    /// The revision of the last change.
    pub revision: i64,
    /// Keys that exist at that revision.
    pub keys: usize,
    /// The size of the database.
    pub bytes: u64,
    /// The version of etcd's that its contents need; none before 3.6.
    pub version: String,
}

/// A store out of a backup.
#[derive(Debug)]
#[non_exhaustive]
pub struct Restored {
    /// The store. Its leases begin again with their whole time to live.
    pub store: KvStore,
    /// How many leases it has.
    pub leases: usize,
    /// How many users.
    pub users: usize,
    /// How many roles.
    pub roles: usize,
    /// What the backup holds and the store does not, one sentence each.
    pub left_out: Vec<String>,
}

impl Restored {
    /// Reads a database that is in memory, as [`Backup::restore`] does.
    ///
    /// # Errors
    /// It is damaged, or the revisions would not fit into 63 bits.
    pub fn from_database(database: &[u8], bump: Option<Bump>) -> Result<Restored, BackupError> {
        Ok(restore(database, database.len() as u64, bump)?)
    }
}

impl Backup {
    /// Opens a file. `check` says whether it must end with a hash that is right.
    ///
    /// # Errors
    /// It cannot be read, or the hash is missing or wrong.
    pub fn open(path: &Path, check: bool) -> Result<Backup, BackupError> {
        let file = File::open(path).map_err(BackupError::Read)?;
        let whole = file.bytes()?;
        let is_hashed = whole % SECTOR_BYTES == HASH_BYTES;
        let mut backup = Backup { file, bytes: whole, hash: None };
        if is_hashed {
            backup.bytes -= HASH_BYTES;
            let mut hash = [0; HASH_BYTES as usize];
            backup.file.read_at(&mut hash, backup.bytes)?;
            backup.hash = Some(hash);
        }
        match backup.hash {
            None if check => return Err(BackupError::NoHash),
            Some(told) if check && backup.sha256()? != told => return Err(BackupError::WrongHash),
            _ => {}
        }
        Ok(backup)
    }

    /// SHA-256 of the database.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn sha256(&self) -> Result<[u8; 32], BackupError> {
        let (mut hasher, mut place) = (Sha256::new(), 0);
        let mut bytes = vec![0; HASHED_BYTES];
        while place < self.bytes {
            let next = bytes.len().min(usize::try_from(self.bytes - place).unwrap_or(usize::MAX));
            self.file.read_at(&mut bytes[..next], place)?;
            hasher.update(&bytes[..next]);
            place += next as u64;
        }
        Ok(hasher.finalize().into())
    }

    /// Whether the file ends with a hash.
    #[must_use]
    pub fn is_hashed(&self) -> bool {
        self.hash.is_some()
    }

    /// Goes through all that the backup holds.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn status(&self) -> Result<BackupStatus, BackupError> {
        let mut reader = Reader::open(&self.file, self.bytes)?;
        let mut status = BackupStatus { bytes: reader.used_bytes(), ..BackupStatus::default() };
        let mut live: BTreeSet<Key> = BTreeSet::new();
        for (name, tree) in reader.buckets()? {
            status.hash = crc32c::crc32c_append(status.hash, &name);
            reader.walk(&tree, |key, value| {
                status.hash = crc32c::crc32c_append(status.hash, key);
                status.hash = crc32c::crc32c_append(status.hash, value);
                if name == KEY.as_bytes() {
                    let place = Place::of(key)?;
                    status.revision = place.revision;
                    if value.is_empty() {
                        return Ok(());
                    }
                    let key = pair(value)?.key;
                    if place.is_tombstone {
                        live.remove(&key[..]);
                    } else {
                        live.insert(Key::from(&key[..]));
                    }
                } else if (&name[..], key) == (META.as_bytes(), &b"storageVersion"[..]) {
                    status.version = String::from_utf8_lossy(value).into_owned();
                } else if let (true, Some(compacted)) = (name == META.as_bytes(), compacted(key, value)?) {
                    status.revision = status.revision.max(compacted);
                }
                Ok(())
            })?;
        }
        status.keys = live.len();
        Ok(status)
    }

    /// Reads the backup into a store.
    ///
    /// # Errors
    /// It cannot be read, or is damaged, or the revisions would not fit into 63 bits.
    pub fn restore(&self, bump: Option<Bump>) -> Result<Restored, BackupError> {
        Ok(restore(&self.file, self.bytes, bump)?)
    }
}

/// Reads a store from a database of this many bytes.
fn restore(file: &(impl ReadAt + ?Sized), bytes: u64, bump: Option<Bump>) -> io::Result<Restored> {
    let mut reader = Reader::open(file, bytes)?;
    let buckets = reader.buckets()?;
    let of = |name: &str| {
        let found = buckets.iter().find(|(bucket, _)| bucket == name.as_bytes());
        found.map(|(_, tree)| tree)
    };
    let keys = of(KEY).ok_or_else(|| invalid("it has no keys' bucket, so it is no database of etcd 3"))?;
    let mut restoring = Restoring::default();
    if let Some(leases) = of(LEASE) {
        reader.walk(leases, |id, lease| restoring.lease(id, lease))?;
    }
    reader.walk(keys, |place, pair| restoring.version(place, pair))?;
    for (name, read) in SMALL_BUCKETS {
        if let Some(bucket) = of(name) {
            reader.walk(bucket, |key, value| read(&mut restoring, key, value))?;
        }
    }
    restoring.finish(bump)
}

/// Reads an entry of a bucket.
type Read = fn(&mut Restoring, &[u8], &[u8]) -> io::Result<()>;

/// The buckets besides those of leases and keys, of which the former must be known first.
const SMALL_BUCKETS: [(&str, Read); 5] = [
    (META, Restoring::compaction),
    (ALARM, Restoring::alarm),
    (AUTH, Restoring::users_count),
    (USERS, Restoring::user),
    (ROLES, Restoring::role),
];

/// Where a version is in the bucket `key`.
struct Place {
    revision: i64,
    sub: u32,
    is_tombstone: bool,
}

impl Place {
    fn of(key: &[u8]) -> io::Result<Place> {
        let is_tombstone = key.len() == REVISION_BYTES + 1 && key[REVISION_BYTES] == TOMBSTONE;
        if key.len() != REVISION_BYTES && !is_tombstone || key[8] != b'_' {
            return Err(invalid(format!("{} is no revision", key.escape_ascii())));
        }
        let [revision, sub] = [&key[..8], &key[9..REVISION_BYTES]]
            .map(|number| u64::from_be_bytes(number.try_into().expect("eight bytes")));
        match (i64::try_from(revision), u32::try_from(sub)) {
            (Ok(revision), Ok(sub)) if revision < NUMBERS_END && sub < u32::MAX => {
                Ok(Place { revision, sub, is_tombstone })
            }
            _ => Err(invalid(format!("the revision {revision}, {sub} is out of range"))),
        }
    }
}

/// The revision of a compaction, if the entry of the bucket `meta` has one.
fn compacted(name: &[u8], value: &[u8]) -> io::Result<Option<i64>> {
    if !COMPACTED.iter().any(|known| name == known.as_bytes()) {
        return Ok(None);
    }
    let revision = value.first_chunk().map_or(-1, |revision| i64::from_be_bytes(*revision));
    if !(0..NUMBERS_END).contains(&revision) || value != revision_value(revision) {
        return Err(invalid("the revision of a compaction cannot be read"));
    }
    Ok(Some(revision))
}

fn pair(value: &[u8]) -> io::Result<KeyValue> {
    KeyValue::decode(value).map_err(|error| invalid(format!("a pair cannot be read: {error}")))
}

/// A store that is being restored.
#[derive(Debug, Default)]
struct Restoring {
    store: KvStore,
    /// The place of the last version.
    last: (i64, u32),
    auth: Auth,
    left_out: Vec<String>,
}

impl Restoring {
    fn lease(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let StoredLease { id, ttl } = StoredLease::decode(value)
            .map_err(|error| invalid(format!("a lease cannot be read: {error}")))?;
        if key != id.to_be_bytes() || id == 0 || !(1..=TTL_SECONDS_MAX).contains(&ttl) {
            return Err(invalid(format!("the lease {id:x} of {ttl} s contradicts itself")));
        }
        self.store.leases.insert(id, ttl, End::After(TICKS));
        self.store.size_bytes += LEASE_BYTES;
        Ok(())
    }

    /// The next version of a key. They come in the order of their revisions.
    fn version(&mut self, place: &[u8], value: &[u8]) -> io::Result<()> {
        let store = &mut self.store;
        let Place { revision, sub, is_tombstone } = Place::of(place)?;
        // A tombstone and a pair could be at one place.
        if (revision, sub) <= self.last {
            return Err(invalid(format!("two versions are at revision {revision}, {sub}")));
        }
        self.last = (revision, sub);
        store.revision = store.revision.max(revision);
        if value.is_empty() {
            // Where revisions were bumped, etcdutl marks the last one so, through which all are compacted.
            store.compacted = store.compacted.max(revision);
            return Ok(());
        }
        let pair = pair(value)?;
        let version = match is_tombstone {
            true => Version::tombstone(revision, sub),
            false => Version {
                modified: revision,
                sub,
                created: pair.create_revision,
                version: pair.version,
                lease: pair.lease,
                value: pair.value,
            },
        };
        let is_plausible = is_tombstone
            || pair.mod_revision == revision
                && (1..NUMBERS_END).contains(&pair.version)
                && (2..=revision).contains(&pair.create_revision);
        if !is_plausible || revision < 2 || pair.key.is_empty() {
            let key = pair.key.escape_ascii();
            return Err(invalid(format!("the version of '{key}' at revision {revision} contradicts itself")));
        }
        store.versions += 1;
        store.size_bytes += charge(&pair.key, &version.value);
        let key = Key::from(&pair.key[..]);
        store.changes.push(Change { revision, sub, key: key.clone() });
        match store.keys.get_mut(&key) {
            Some(history) => history.push(version),
            None => _ = store.keys.insert(key, History::new(version)),
        }
        Ok(())
    }

    fn compaction(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        // One that was scheduled only is finished here.
        self.store.compacted = self.store.compacted.max(compacted(name, value)?.unwrap_or(0));
        Ok(())
    }

    fn alarm(&mut self, key: &[u8], _: &[u8]) -> io::Result<()> {
        let alarm = AlarmMember::decode(key).map_err(|_| invalid("an alarm cannot be read"))?;
        match (alarm.member_id, alarm.alarm()) {
            (0, kind) if kind != AlarmType::None && self.store.alarms.len() < ALARMS_MAX => {
                self.store.alarms.insert((0, kind));
            }
            (member, kind) => self.left_out.push(format!(
                "the alarm {} of the member {member:x}, which is none of the new cluster",
                kind.as_str_name()
            )),
        }
        Ok(())
    }

    fn users_count(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match (name, value) {
            (b"authEnabled", [enabled @ (0 | 1)]) => self.auth.enabled = *enabled == 1,
            (b"authRevision", _) => {
                let revision = value.try_into().map(u64::from_be_bytes);
                let revision = revision.ok().filter(|revision| (1..u64::MAX).contains(revision));
                self.auth.revision =
                    revision.ok_or_else(|| invalid("the revision of users cannot be read"))?;
            }
            (b"authEnabled", _) => return Err(invalid("whether users count cannot be read")),
            _ => {}
        }
        Ok(())
    }

    fn user(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let stored = authpb::User::decode(value).map_err(|_| invalid("a user cannot be read"))?;
        let name = name_of(key, &stored.name)?;
        let no_password = stored.options.is_some_and(|options| options.no_password);
        let roles = stored.roles.into_iter().collect();
        let password_hash = if no_password { String::new() } else { STANDARD.encode(&stored.password) };
        self.auth.users.insert(name, User { password_hash, no_password, roles, ..User::default() });
        Ok(())
    }

    fn role(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let stored = authpb::Role::decode(value).map_err(|_| invalid("a role cannot be read"))?;
        let name = name_of(key, &stored.name)?;
        let mut permissions = BTreeMap::new();
        for authpb::Permission { perm_type, key, range_end } in stored.key_permission {
            if !is_range(&key, &range_end) {
                // Earlier versions of etcd took such permissions, which permit nothing there.
                let (key, range_end) = (key.escape_ascii(), range_end.escape_ascii());
                self.left_out.push(format!(
                    "the permission of the role {name} for '{key}' to '{range_end}', which is no range"
                ));
                continue;
            }
            // etcd may have several for one range, and permits what any of them does.
            let kind = permissions.entry((key, range_end)).or_insert(perm_type);
            if *kind != perm_type {
                *kind = Type::Readwrite.into();
            }
        }
        self.auth.roles.insert(name, Role { permissions });
        Ok(())
    }

    fn finish(self, bump: Option<Bump>) -> io::Result<Restored> {
        let Restoring { mut store, auth, mut left_out, .. } = self;
        // Before 3.5.16 a compaction removed the last version too, if that was a tombstone.
        store.revision = store.revision.max(store.compacted);
        let detached = store.attach_all();
        if detached > 0 {
            left_out.push(format!(
                "the leases of {detached} keys, which the backup does not have: these keys stay"
            ));
        }
        store.live_keys = store.keys.values().filter(|history| history.live().is_some()).count() as u64;
        if let Some(Bump(by)) = bump {
            let bumped = i64::try_from(by).ok().and_then(|by| store.revision.checked_add(by));
            let bumped = bumped.filter(|bumped| *bumped < NUMBERS_END);
            store.revision = bumped.ok_or_else(|| invalid(format!("revisions end before {by} more")))?;
            store.compacted = store.revision;
        }
        store.clear_all();
        let (leases, users, roles) = (store.leases.len(), auth.users.len(), auth.roles.len());
        store.auth = Arc::new(auth.complete());
        Ok(Restored { store, leases, users, roles, left_out })
    }
}

/// The name of a user or role, which is also the key.
fn name_of(key: &[u8], name: &[u8]) -> io::Result<String> {
    let text = String::from_utf8(key.to_vec()).ok().filter(|_| key == name && !key.is_empty());
    text.ok_or_else(|| invalid(format!("'{}' is no name of a user or role", key.escape_ascii())))
}

impl KvStore {
    /// Attaches all keys to their leases. A key whose lease does not exist has none; returns how many these are.
    fn attach_all(&mut self) -> u64 {
        let leased = |(key, history): (&Key, &History)| {
            let lease = history.live().map_or(0, |version| version.lease);
            (lease != 0).then(|| (key.clone(), lease))
        };
        let leased: Vec<_> = self.keys.iter().filter_map(leased).collect();
        let mut detached = 0;
        for (key, lease) in leased {
            if self.leases.contains(lease) {
                self.leases.attach(&key, 0, lease);
            } else if let Some(history) = self.keys.get_mut(&key) {
                history.drop_lease();
                detached += 1;
            }
        }
        detached
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use synod_api::{
        etcdserverpb::{
            AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
            LeaseGrantRequest, PutRequest, alarm_request::AlarmAction,
        },
        synod::v1::{KvAuthChange, KvBucketEntry, kv_auth_change::Change as AuthChange, kv_command::Command},
    };

    use super::{super::write::tests::database, *};
    use crate::{
        bbolt::Writer,
        testing::{self, Execute},
    };

    /// A store with a past.
    fn store(random: &mut fastrand::Rng, steps: usize) -> KvStore {
        let mut store = KvStore::new();
        for id in [7, -3, 1 << 40] {
            store.send(Command::LeaseGrant(LeaseGrantRequest { id, ttl: 60 })).unwrap();
        }
        for step in 0..steps {
            let key = format!("key-{}", random.u8(0..40));
            match random.u8(0..12) {
                0 => _ = store.del(&key, ""),
                1 => _ = store.del("key-1", "key-2"),
                2 => {
                    let lease = [7, -3, 0][random.usize(0..3)];
                    store.set_with(PutRequest { lease, ..testing::put(&key, "leased") }).unwrap();
                }
                3 if step % 50 == 3 => _ = store.compact_at(random.i64(1..=store.revision()), false),
                _ => _ = store.set(&key, &"v".repeat(random.usize(0..300))),
            }
        }
        store
    }

    fn with_users(store: &mut KvStore) {
        let hashed_password = STANDARD.encode("$2a$10$some hash of bcrypt's");
        let ann = AuthUserAddRequest { name: "ann".into(), hashed_password, ..Default::default() };
        let perm = authpb::Permission { perm_type: 2, key: "a".into(), range_end: "b".into() };
        let (role, user) = ("reader".to_owned(), "ann".to_owned());
        for change in [
            AuthChange::UserAdd(ann),
            AuthChange::RoleAdd(AuthRoleAddRequest { name: role.clone() }),
            AuthChange::RoleGrantPermission(AuthRoleGrantPermissionRequest {
                name: role.clone(),
                perm: Some(perm),
            }),
            AuthChange::UserGrantRole(AuthUserGrantRoleRequest { user, role }),
        ] {
            store.send(Command::Auth(KvAuthChange { change: Some(change) })).unwrap();
        }
    }

    fn assert_same(store: &KvStore, restored: &KvStore) {
        assert_eq!((store.revision, store.compacted), (restored.revision, restored.compacted));
        assert_eq!((store.live_keys, &store.auth), (restored.live_keys, &restored.auth));
        for revision in store.compacted.max(1) + 1..=store.revision {
            let hashes = [store, restored].map(|store| store.hash_kv(revision).unwrap().hash);
            assert_eq!(hashes[0], hashes[1], "at {revision}");
            let read = [store, restored].map(|store| store.read_at("\0", "\0", revision).unwrap());
            assert_eq!(read[0], read[1], "at {revision}");
        }
        let leases = |store: &KvStore| -> Vec<_> {
            store.leases.iter().map(|(id, lease)| (*id, lease.ttl, lease.keys.clone())).collect()
        };
        assert_eq!(leases(store), leases(restored));
    }

    #[test]
    fn what_was_saved_is_restored() {
        let mut random = fastrand::Rng::with_seed(41);
        for steps in [0, 1, 30, 2_000] {
            let mut store = store(&mut random, steps);
            if steps > 1 {
                with_users(&mut store);
            }
            let bytes = database(&store, Vec::new());
            let Restored { store: restored, left_out, .. } = Restored::from_database(&bytes, None).unwrap();
            assert!(left_out.is_empty(), "{left_out:?}");
            assert_same(&store, &restored);
            // What counts is what is there: the totals are those of a store that has cleared everything away.
            let mut cleared = store;
            cleared.clear_all();
            assert_eq!(cleared.status().versions, restored.status().versions);
            assert_eq!(cleared.size_bytes, restored.size_bytes);
            assert!(database(&restored, Vec::new()) == bytes, "a snapshot of it is the same file");
        }
    }

    #[test]
    fn what_belongs_to_members_is_left_out() {
        let mut store = store(&mut fastrand::Rng::with_seed(1), 20);
        store.ask_alarm(AlarmAction::Activate, 0x77, AlarmType::Nospace);
        store.ask_alarm(AlarmAction::Activate, 0, AlarmType::Nospace);
        let member = KvBucketEntry { bucket: "members".into(), key: "1f".into(), value: "{}".into() };
        let bytes = database(&store, vec![member]);
        let Restored { store, left_out, .. } = Restored::from_database(&bytes, None).unwrap();
        assert_eq!(left_out.len(), 1);
        assert!(left_out[0].contains("NOSPACE of the member 77"), "{left_out:?}");
        assert_eq!(store.list_alarms(AlarmType::None).len(), 1);
    }

    #[test]
    fn bumped_revisions_leave_nothing_of_the_past() {
        let store = store(&mut fastrand::Rng::with_seed(2), 300);
        let bytes = database(&store, Vec::new());
        let bumped = Restored::from_database(&bytes, Some(Bump(1_000))).unwrap().store;
        assert_eq!((bumped.revision, bumped.compacted), (store.revision + 1_000, store.revision + 1_000));
        assert_eq!(bumped.status().versions, bumped.live_keys);
        let read = |store: &KvStore| store.read_at("\0", "\0", 0).unwrap().kvs;
        assert_eq!(read(&store), read(&bumped));
        let error = Restored::from_database(&bytes, Some(Bump(u64::MAX))).unwrap_err();
        assert!(error.to_string().contains("revisions end"), "{error}");
    }

    type Entries<'a> = &'a [(&'a [u8], &'a [u8])];

    /// A database with these entries in the bucket `key`, and one lease.
    fn with_keys(entries: Entries<'_>) -> Vec<u8> {
        let lease = StoredLease { id: 5, ttl: 60 }.encode_to_vec();
        with_buckets(&[(KEY, entries), (LEASE, &[(&5_i64.to_be_bytes(), &lease)])])
    }

    fn with_buckets(buckets: &[(&'static str, Entries<'_>)]) -> Vec<u8> {
        let write = |writer: &mut Writer| {
            for (name, entries) in buckets {
                for (key, value) in *entries {
                    writer.entry(key, value.len(), |out| out.extend_from_slice(value));
                }
                writer.end_bucket(name);
            }
            writer.end()
        };
        let pages = write(&mut Writer::counting());
        let mut writer = Writer::writing(pages);
        write(&mut writer);
        writer.take()
    }

    fn stored(key: &str, revision: i64, lease: i64) -> (Vec<u8>, Vec<u8>) {
        let pair = KeyValue {
            key: key.to_owned().into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            value: "v".into(),
            lease,
        };
        (revision_value(revision), pair.encode_to_vec())
    }

    #[test]
    fn a_lease_that_is_not_there_and_the_mark_of_a_bump_do_no_harm() {
        let (place, with) = stored("with", 2, 5);
        let (later, without) = stored("without", 3, 6);
        let mark = revision_value(9);
        let bytes = with_keys(&[(&place, &with), (&later, &without), (&mark, b"")]);
        let Restored { store, left_out, .. } = Restored::from_database(&bytes, None).unwrap();
        assert_eq!((store.revision, store.live_keys, store.leases.key_count(5)), (9, 2, 1));
        assert_eq!(store.compacted, 9, "its own backup has the revision too");
        assert!(left_out[0].contains("the leases of 1 keys"), "{left_out:?}");
        assert_eq!(store.read_at("without", "", 0).unwrap().kvs[0].lease, 0);
    }

    /// etcd before 3.5.16: put, put, delete, compact at the deletion.
    #[test]
    fn the_last_revision_may_be_one_that_was_compacted() {
        let (place, pair) = stored("k", 2, 0);
        let revision = revision_value(4);
        let meta: Entries<'_> = &[(b"finishedCompactRev", &revision), (b"scheduledCompactRev", &revision)];
        let bytes = with_buckets(&[(KEY, &[(&place, &pair)]), (META, meta)]);
        let mut store = Restored::from_database(&bytes, None).unwrap().store;
        assert_eq!((store.revision, store.compacted, store.live_keys), (4, 4, 1));
        assert_eq!(store.set("x", "again").header.unwrap().revision, 5);
    }

    #[test]
    fn permissions_are_what_etcd_makes_of_them() {
        let permission = |kind: Type, key: &'static str, range_end: &'static str| authpb::Permission {
            perm_type: kind.into(),
            key: key.into(),
            range_end: range_end.into(),
        };
        let role = authpb::Role {
            name: "r".into(),
            key_permission: vec![
                permission(Type::Read, "a", "c"),
                permission(Type::Write, "a", "c"),
                permission(Type::Read, "b", ""),
                permission(Type::Readwrite, "", "\0"),
            ],
        };
        let role = role.encode_to_vec();
        let bytes = with_buckets(&[(ROLES, &[(b"r", &role)]), (KEY, &[])]);
        let Restored { store, left_out, .. } = Restored::from_database(&bytes, None).unwrap();
        let permissions: Vec<_> = store.auth.roles["r"].permissions.iter().collect();
        let of = |key: &'static str, end: &'static str| (bytes::Bytes::from(key), bytes::Bytes::from(end));
        assert_eq!(permissions, [(&of("a", "c"), &2), (&of("b", ""), &0)]);
        assert!(left_out[0].contains("the role r for ''"), "{left_out:?}");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let (place, pair) = stored("k", 7, 0);
        let (other, _) = stored("k", 8, 0);
        for (entry, expected) in [
            ((&b"short"[..], &pair[..]), "is no revision"),
            ((&other, &pair), "contradicts itself"),
            ((&place, b"\xff\xff"), "a pair cannot be read"),
            ((&[&[0xff; 8][..], b"_", &[0; 8]].concat(), &pair), "out of range"),
        ] {
            let bytes = with_keys(&[entry]);
            let error = Restored::from_database(&bytes, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let tombstone = [&place[..], b"t"].concat();
        let bytes = with_keys(&[(&place, &pair), (&tombstone, &pair)]);
        let error = Restored::from_database(&bytes, None).unwrap_err().to_string();
        assert!(error.contains("two versions are at revision 7"), "{error}");
    }

    #[test]
    fn a_file_is_whole_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backup");
        let database = database(&store(&mut fastrand::Rng::with_seed(3), 100), Vec::new());
        fs::write(&path, &database).unwrap();
        assert!(matches!(Backup::open(&path, true), Err(BackupError::NoHash)));
        let bare = Backup::open(&path, false).unwrap();
        let mut saved = database.clone();
        saved.extend(bare.sha256().unwrap());
        fs::write(&path, &saved).unwrap();
        let whole = Backup::open(&path, true).unwrap();
        assert!(whole.is_hashed() && whole.status().unwrap() == bare.status().unwrap());
        for cut in [1, 31, 32, 33, PAGE, database.len()] {
            fs::write(&path, &saved[..saved.len() - cut]).unwrap();
            assert!(Backup::open(&path, true).is_err(), "{cut}");
        }
        let mut flipped = saved;
        flipped[PAGE * 2 + 100] ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert!(matches!(Backup::open(&path, true), Err(BackupError::WrongHash)));
    }

    const PAGE: usize = crate::bbolt::PAGE_BYTES;
}
