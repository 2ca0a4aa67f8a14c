//! The store as etcd has it in its database: for etcd's snapshots and hashes, and for backups.
//!
//! The bucket `key` has each version under its revision, so it is the history since the last compaction. What the store
//! does not know (members, how far the log is) comes with the question.

mod read;
mod write;

use crate::history::Seen;

pub use self::read::{Backup, BackupError, BackupStatus, Bump, Restored};
pub(crate) use self::write::EtcdDb;

/// All buckets of an etcd, in the order of their names.
const BUCKETS: [&str; 10] =
    [ALARM, AUTH, ROLES, USERS, "cluster", KEY, LEASE, "members", "members_removed", META];
const ALARM: &str = "alarm";
const AUTH: &str = "auth";
const ROLES: &str = "authRoles";
const USERS: &str = "authUsers";
const KEY: &str = "key";
const LEASE: &str = "lease";
const META: &str = "meta";

/// In the bucket `meta`: the revision of the last compaction, and of the last one that has cleared everything away.
const COMPACTED: [&str; 2] = ["scheduledCompactRev", "finishedCompactRev"];

/// Bytes of the key of a version in the bucket `key`, which has one more for a tombstone.
const REVISION_BYTES: usize = 17;
const TOMBSTONE: u8 = b't';

/// The key of a version in the bucket `key`.
pub(crate) fn revision_key(version: &Seen<'_>) -> ([u8; REVISION_BYTES + 1], usize) {
    let mut key = [0; REVISION_BYTES + 1];
    key[..8].copy_from_slice(&version.modified.to_be_bytes());
    key[8] = b'_';
    key[9..REVISION_BYTES].copy_from_slice(&u64::from(version.sub).to_be_bytes());
    key[REVISION_BYTES] = TOMBSTONE;
    (key, REVISION_BYTES + usize::from(version.is_tombstone()))
}

/// A revision as the bucket `meta` has it.
fn revision_value(revision: i64) -> Vec<u8> {
    [&revision.to_be_bytes()[..], b"_", &[0; 8]].concat()
}

/// A lease as the bucket `lease` has it. Its time to live begins again when it is read.
#[derive(Clone, PartialEq, prost::Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    /// Seconds.
    #[prost(int64, tag = "2")]
    ttl: i64,
}
