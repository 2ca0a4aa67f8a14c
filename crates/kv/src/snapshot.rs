//! Writing the store to a stream, and reading it back.
//!
//! ```text
//! snapshot := magic "synod-kv" | format u32 (version, and readers above; see wire/version.rs) | block ... | end block
//! block    := length u32, at most 64 KiB | checksum u32 | payload
//! end      := a block of length 0
//! payloads, one after the other:
//!   revision i64 | compacted i64 | purged i64
//!   alarms u32   | alarms  x { member u64 | kind u32 }
//!   keys u64     | versions u64
//!   keys x { key bytes | versions u32 | versions x { modified i64 | sub u32 | created i64 | version i64 | lease i64
//!                                                    | value bytes } }
//!   with leases, which a store of version 2 has not:
//!   leases u32   | clock u64 | mover u64 | restarted u64
//!                | leases x { id i64 | ttl i64 | ticks u8, 0 if the end is known | end u64, 0 if it is not }
//!   with users or roles, which a store of version 3 has not; the leases above may be 0 then, and nothing follows them:
//!   enabled u8   | revision u64 | tokens u64
//!   users u32    | users x { name bytes | hash bytes | without password u8 | roles u32 | roles x { name bytes } }
//!   roles u32    | roles x { name bytes | permissions u32 | permissions x { key bytes | range_end bytes | kind u32 } }
//! bytes := length u32 | that many
//! ```
//!
//! Numbers are little-endian. A block's checksum is the CRC-32 of all payloads up to and including its own,
//! so that a damaged, missing, repeated or misplaced block is found before its contents are used. Keys
//! ascend, and the versions of a key go from old to new. Which keys a lease has is told by their last versions.

use std::{
    io::{self, Read, Write},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use imbl::OrdMap;
use synod_api::etcdserverpb::AlarmType;
use synod_replica::Frozen;
use synod_wire::{Format, Written};

use crate::{
    ALARMS_MAX, KvBug, KvStore,
    auth::{Auth, Role, User},
    changes::{Change, Sorter},
    history::{History, Seen, Version},
    key::Key,
    lease::{End, LEASE_BYTES, Leases},
    planted,
    store::charge,
};

const MAGIC: &[u8; 8] = b"synod-kv";
/// Format 1 did not say which versions can read it.
const FORMAT: Format = Format { oldest: WITHOUT_LEASES, ..Format::first(4) };
/// A store without leases is written as before there were any.
const WITHOUT_LEASES: u32 = 2;
const OF_NO_LEASE: Written = Written { version: WITHOUT_LEASES, readers: WITHOUT_LEASES };
/// A store without users and roles is written as before there were any.
const WITHOUT_USERS: u32 = 3;
const OF_NO_USER: Written = Written { version: WITHOUT_USERS, readers: WITHOUT_USERS };

/// The formats of a store's snapshot, by what is in the store.
pub const SNAPSHOT_FORMATS: &[(&str, Format)] = &[
    ("without leases and users", Format { written: OF_NO_LEASE, ..FORMAT }),
    ("with leases", Format { written: OF_NO_USER, ..FORMAT }),
    ("with users or roles", FORMAT),
];
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// A store as it was when it was frozen. It shares everything with the living store until that changes it.
#[derive(Debug)]
pub(crate) struct FrozenStore(pub(crate) KvStore);

impl Frozen for FrozenStore {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let FrozenStore(store) = self;
        out.write_all(MAGIC)?;
        let has_users = *store.auth != Auth::default();
        let written = match (has_users, store.leases.is_empty()) {
            (true, _) => FORMAT.written,
            (false, false) => OF_NO_USER,
            (false, true) => OF_NO_LEASE,
        };
        out.write_all(&written.packed().to_le_bytes())?;
        let mut out = BlockWriter::new(out);
        out.i64(store.revision)?;
        out.i64(store.compacted)?;
        out.i64(store.purged)?;
        out.count(store.alarms.len())?;
        for (member, kind) in &store.alarms {
            out.u64(*member)?;
            out.write_all(&i32::from(*kind).to_le_bytes())?;
        }
        out.u64(store.keys.len() as u64)?;
        out.u64(store.versions)?;
        for (key, history) in &store.keys {
            out.bytes(key)?;
            out.count(history.len())?;
            for version in history.iter() {
                out.i64(version.modified)?;
                out.write_all(&version.sub.to_le_bytes())?;
                out.i64(version.created)?;
                out.i64(version.version)?;
                out.i64(version.lease)?;
                out.bytes(&version.value)?;
            }
        }
        if !store.leases.is_empty() {
            write_leases(&store.leases, &mut out)?;
        } else if has_users {
            out.count(0)?;
        }
        if has_users {
            write_auth(&store.auth, &mut out)?;
        }
        out.finish()
    }
}

fn write_leases(leases: &Leases, out: &mut BlockWriter<'_>) -> io::Result<()> {
    out.count(leases.len())?;
    for number in [leases.clock_ms, leases.mover, leases.restarted_ms] {
        out.u64(number)?;
    }
    for (id, lease) in leases.iter() {
        out.i64(*id)?;
        out.i64(lease.ttl)?;
        let (ticks, end) = match lease.end {
            End::After(ticks) => (ticks, 0),
            End::At(end) => (0, end),
        };
        out.write_all(&[ticks])?;
        out.u64(end)?;
    }
    Ok(())
}

fn write_auth(auth: &Auth, out: &mut BlockWriter<'_>) -> io::Result<()> {
    let Auth { enabled, revision, tokens, users, roles, costs: _ } = auth;
    out.write_all(&[u8::from(*enabled)])?;
    out.u64(*revision)?;
    out.u64(*tokens)?;
    out.count(users.len())?;
    for (name, user) in users {
        out.bytes(name.as_bytes())?;
        out.bytes(user.password_hash.as_bytes())?;
        out.write_all(&[u8::from(user.no_password)])?;
        out.count(user.roles.len())?;
        user.roles.iter().try_for_each(|role| out.bytes(role.as_bytes()))?;
    }
    out.count(roles.len())?;
    for (name, role) in roles {
        out.bytes(name.as_bytes())?;
        out.count(role.permissions.len())?;
        for ((key, range_end), kind) in &role.permissions {
            out.bytes(key)?;
            out.bytes(range_end)?;
            out.write_all(&kind.to_le_bytes())?;
        }
    }
    Ok(())
}

fn read_auth(input: &mut BlockReader<'_>) -> io::Result<Auth> {
    let enabled = input.flag()?;
    let (revision, tokens) = (input.u64()?, input.u64()?);
    check(revision > 0, "the revision of users is 0")?;
    let mut auth = Auth { enabled, revision, tokens, ..Auth::default() };
    for _ in 0..input.u32()? {
        let name = input.text()?;
        let (password_hash, no_password) = (input.text()?, input.flag()?);
        let mut user = User { password_hash, no_password, ..User::default() };
        for _ in 0..input.u32()? {
            check(user.roles.insert(input.text()?), "a user has a role twice")?;
        }
        check(!name.is_empty() && auth.users.insert(name, user).is_none(), "a user is void or repeated")?;
    }
    for _ in 0..input.u32()? {
        let (name, mut role) = (input.text()?, Role::default());
        for _ in 0..input.u32()? {
            let range = (input.bytes()?, input.bytes()?);
            let kind = i32::from_le_bytes(input.array()?);
            check(role.permissions.insert(range, kind).is_none(), "a permission is repeated")?;
        }
        check(!name.is_empty() && auth.roles.insert(name, role).is_none(), "a role is void or repeated")?;
    }
    Ok(auth.complete())
}

fn read_leases(input: &mut BlockReader<'_>, may_be_none: bool) -> io::Result<Leases> {
    let mut leases = Leases::default();
    let count = input.u32()?;
    if count == 0 && may_be_none {
        return Ok(leases);
    }
    check(count > 0, "there are no leases where some are announced")?;
    (leases.clock_ms, leases.mover, leases.restarted_ms) = (input.u64()?, input.u64()?, input.u64()?);
    for _ in 0..count {
        let (id, ttl) = (input.i64()?, input.i64()?);
        let [ticks] = input.array()?;
        let end = input.u64()?;
        check(id != 0 && ttl > 0 && !leases.contains(id), "a lease contradicts itself")?;
        let ends = match ticks {
            0 => End::At(end),
            _ if planted::has(KvBug::LeaseCountsAtRestore) => {
                End::At(leases.clock_ms.saturating_add(ttl.unsigned_abs().saturating_mul(1_000)))
            }
            ticks => End::After(ticks),
        };
        leases.insert(id, ttl, ends);
    }
    Ok(leases)
}

/// Reads a store that [`FrozenStore::write_to`] wrote, and not a byte further.
pub(crate) fn read_store(input: &mut dyn Read) -> io::Result<KvStore> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    check(magic == *MAGIC, "this is no snapshot of a key-value store")?;
    let mut format = [0; 4];
    input.read_exact(&mut format)?;
    let written = Written::unpacked(u32::from_le_bytes(format));
    FORMAT.check(written).map_err(|error| invalid(error.to_string()))?;
    let mut input = BlockReader::new(input);
    let mut store = KvStore::new();
    store.revision = input.i64()?;
    store.compacted = input.i64()?;
    store.purged = input.i64()?;
    check(
        (1..i64::MAX).contains(&store.revision) && (-1..=store.revision).contains(&store.compacted),
        "the revisions of the store are out of order",
    )?;
    check((0..=store.compacted.max(0)).contains(&store.purged), "the purged revision is out of range")?;
    for _ in 0..input.count_at_most(ALARMS_MAX, "alarms")? {
        let member = input.u64()?;
        let kind = AlarmType::try_from(i32::from_le_bytes(input.array()?))
            .map_err(|_| invalid("an alarm is not known"))?;
        check(
            kind != AlarmType::None && store.alarms.insert((member, kind)),
            "an alarm is void or repeated",
        )?;
    }
    let keys = input.u64()?;
    let versions = input.u64()?;
    let mut changes = Sorter::new(store.purged, store.revision, versions);
    let mut leased = Vec::new();
    let mut map = Ascending::default();
    let mut last_key = Key::from(&[][..]);
    let mut buffer = Vec::new();
    for _ in 0..keys {
        let key = Key::from(input.bytes_into(&mut buffer)?);
        // The last key is empty at first, so this also refuses an empty key, which the store never has.
        check(key > last_key, "the keys are out of order")?;
        let history = read_history(&mut input, &key, &mut store, &mut changes)?;
        store.live_keys += u64::from(history.live().is_some());
        if let Some(lease) = history.live().map(|version| version.lease).filter(|lease| *lease != 0) {
            leased.push((lease, key.clone()));
        }
        map.push(key.clone(), history);
        last_key = key;
    }
    store.keys = map.finish();
    check(store.versions == versions, "the number of versions is not as announced")?;
    if written.version > WITHOUT_LEASES {
        let with_users = written.version > WITHOUT_USERS;
        store.leases = read_leases(&mut input, with_users)?;
        store.size_bytes += LEASE_BYTES * store.leases.len() as u64;
        if with_users {
            store.auth = Arc::new(read_auth(&mut input)?);
        }
    }
    input.finish()?;
    for (lease, key) in leased {
        check(store.leases.contains(lease), "a key has a lease that does not exist")?;
        store.leases.attach(&key, 0, lease);
    }
    store.changes =
        changes.finish().ok_or_else(|| invalid("two changes have the same revision and place"))?;
    Ok(store)
}

/// Keys of which every second is put into the map before those between them.
const ASCENDING_KEYS: usize = 2048;

/// Builds a map of keys that ascend.
///
/// A leaf of the map that is full is split into halves. If keys are inserted as they come, the left half gets no
/// further key, and the map takes nearly twice the memory that it needs. So every second of some keys comes first, and
/// those between them fill the halves.
#[derive(Default)]
struct Ascending {
    map: OrdMap<Key, History>,
    between: Vec<(Key, History)>,
    /// How many keys came since those between others were last put into the map.
    came: usize,
}

impl Ascending {
    fn push(&mut self, key: Key, history: History) {
        if self.came.is_multiple_of(2) {
            self.map.insert(key, history);
        } else {
            self.between.push((key, history));
        }
        self.came += 1;
        if self.came == ASCENDING_KEYS {
            self.fill();
        }
    }

    fn fill(&mut self) {
        self.map.extend(self.between.drain(..));
        self.came = 0;
    }

    fn finish(mut self) -> OrdMap<Key, History> {
        self.fill();
        self.map
    }
}

fn read_history(
    input: &mut BlockReader<'_>,
    key: &Key,
    store: &mut KvStore,
    changes: &mut Sorter,
) -> io::Result<History> {
    let mut history: Option<History> = None;
    for _ in 0..input.u32()? {
        let version = Version {
            modified: input.i64()?,
            sub: input.u32()?,
            created: input.i64()?,
            version: input.i64()?,
            lease: input.i64()?,
            value: input.bytes()?,
        };
        let plausible = if Seen::from(&version).is_tombstone() {
            version.created == 0 && version.lease == 0 && version.value.is_empty()
        } else {
            (1..i64::MAX).contains(&version.version) && (2..=version.modified).contains(&version.created)
        };
        let is_placed = (2..=store.revision).contains(&version.modified) && version.sub < u32::MAX;
        check(plausible && is_placed, "a version contradicts itself")?;
        store.versions += 1;
        store.size_bytes += charge(key, &version.value);
        if version.modified >= store.purged {
            changes.push(Change { revision: version.modified, sub: version.sub, key: key.clone() });
        }
        match &mut history {
            None => history = Some(History::new(version)),
            Some(history) => {
                let last = history.latest();
                check(
                    (last.modified, last.sub) < (version.modified, version.sub),
                    "the versions of a key are out of order",
                )?;
                history.push(version);
            }
        }
    }
    history.ok_or_else(|| invalid("a key has no version"))
}

fn check(holds: bool, otherwise: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(invalid(otherwise)) }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("key-value snapshot: {}", why.into()))
}

/// Cuts a stream into blocks.
struct BlockWriter<'a> {
    out: &'a mut dyn Write,
    block: Vec<u8>,
    crc: crc32fast::Hasher,
}

impl<'a> BlockWriter<'a> {
    fn new(out: &'a mut dyn Write) -> BlockWriter<'a> {
        BlockWriter { out, block: Vec::with_capacity(BLOCK_BYTES_MAX), crc: crc32fast::Hasher::new() }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES_MAX - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK_BYTES_MAX {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn u64(&mut self, value: u64) -> io::Result<()> {
        self.write_all(&value.to_le_bytes())
    }

    fn i64(&mut self, value: i64) -> io::Result<()> {
        self.write_all(&value.to_le_bytes())
    }

    fn count(&mut self, count: usize) -> io::Result<()> {
        let count = u32::try_from(count).map_err(|_| invalid("a field is 4 GiB or larger"))?;
        self.write_all(&count.to_le_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.count(bytes.len())?;
        self.write_all(bytes)
    }

    fn end_block(&mut self) -> io::Result<()> {
        self.crc.update(&self.block);
        let length = u32::try_from(self.block.len()).expect("a block is at most 64 KiB");
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&self.crc.clone().finalize().to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        self.end_block()
    }
}

/// Reads blocks, checks them, and returns their contents.
struct BlockReader<'a> {
    input: &'a mut dyn Read,
    block: Vec<u8>,
    taken: usize,
    crc: crc32fast::Hasher,
}

impl<'a> BlockReader<'a> {
    fn new(input: &'a mut dyn Read) -> BlockReader<'a> {
        BlockReader { input, block: Vec::new(), taken: 0, crc: crc32fast::Hasher::new() }
    }

    /// Takes at most `max` bytes of the current block, or of the next one if the current one is used up.
    /// Returns at least one byte unless `max` is 0.
    fn next_bytes(&mut self, max: usize) -> io::Result<&[u8]> {
        if self.taken == self.block.len() && max > 0 {
            self.next_block()?;
            check(!self.block.is_empty(), "it ends too early")?;
        }
        let from = self.taken;
        self.taken = from.saturating_add(max).min(self.block.len());
        Ok(&self.block[from..self.taken])
    }

    fn next_block(&mut self) -> io::Result<()> {
        let mut head = [0; 8];
        self.input.read_exact(&mut head)?;
        let [length, crc] = [&head[..4], &head[4..]]
            .map(|half| u32::from_le_bytes(half.try_into().expect("half of eight bytes is four")));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        check(length <= BLOCK_BYTES_MAX, "a block is longer than allowed")?;
        let mut block = mem::take(&mut self.block);
        block.resize(length, 0);
        self.input.read_exact(&mut block)?;
        self.crc.update(&block);
        check(self.crc.clone().finalize() == crc, "a checksum does not match")?;
        self.block = block;
        self.taken = 0;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        let mut filled = 0;
        while filled < N {
            let some = self.next_bytes(N - filled)?;
            array[filled..filled + some.len()].copy_from_slice(some);
            filled += some.len();
        }
        Ok(array)
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn i64(&mut self) -> io::Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> io::Result<bool> {
        let [flag] = self.array()?;
        check(flag <= 1, "a flag is neither 0 nor 1")?;
        Ok(flag == 1)
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| invalid("a name is no text"))
    }

    fn count_at_most(&mut self, max: usize, what: &str) -> io::Result<usize> {
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        check(count <= max, &format!("too many {what}"))?;
        Ok(count)
    }

    /// Reads a field into an allocation of its own, which grows with the bytes that are present and not with
    /// the length that is announced.
    fn bytes(&mut self) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        self.bytes_into(&mut bytes)?;
        Ok(Bytes::from(bytes.into_boxed_slice()))
    }

    /// The same, into a buffer whose contents it replaces.
    fn bytes_into<'b>(&mut self, bytes: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
        let length = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        bytes.clear();
        bytes.reserve_exact(length.min(BLOCK_BYTES_MAX));
        while bytes.len() < length {
            bytes.extend_from_slice(self.next_bytes(length - bytes.len())?);
        }
        Ok(bytes)
    }

    fn finish(mut self) -> io::Result<()> {
        check(self.taken == self.block.len(), "something follows the last key")?;
        self.next_block()?;
        check(self.block.is_empty(), "something follows the last key")
    }
}

#[cfg(test)]
mod tests;
