//! Fingerprints of the contents, by which replicas are compared.

use synod_api::etcdserverpb::HashKvResponse;

use crate::{
    KvError, KvStore, auth::Auth, etcd_db::revision_key, history::History, lease::End, pieces::Pair,
    revisions::Revisions, store::header,
};

impl KvStore {
    /// A fingerprint of all that is replicated: the revision, the last compaction and how far it is cleared away, the
    /// sizes by which the quota is judged, the alarms, and every version that a read can still see. It takes time in
    /// proportion to the contents.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut print = Fingerprint::default();
        print.number(self.revision);
        print.number(self.compacted);
        print.number(self.purged);
        print.word(self.size_bytes);
        print.word(self.versions);
        print.word(self.live_keys);
        for (member, kind) in &self.alarms {
            print.word(*member);
            print.number(i64::from(i32::from(*kind)));
        }
        // A store without leases has the fingerprint that it had before there were any.
        for number in [self.leases.clock_ms, self.leases.mover, self.leases.restarted_ms] {
            if !self.leases.is_empty() {
                print.word(number);
            }
        }
        for (id, lease) in self.leases.iter() {
            print.number(*id);
            print.number(lease.ttl);
            match lease.end {
                End::After(ticks) => print.word(u64::from(ticks)),
                End::At(at) => print.word(at),
            }
            lease.keys.iter().for_each(|key| print.bytes(key));
        }
        // As does one without users.
        if *self.auth != Auth::default() {
            self.print_auth(&mut print);
        }
        self.print_versions(&mut print);
        print.finish()
    }

    fn print_auth(&self, print: &mut Fingerprint) {
        let Auth { enabled, revision, tokens, users, roles, costs: _ } = &*self.auth;
        [u64::from(*enabled), *revision, *tokens].into_iter().for_each(|number| print.word(number));
        // The lengths of lists keep one state from looking like another.
        print.word(users.len() as u64);
        for (name, user) in users {
            print.bytes(name.as_bytes());
            print.bytes(user.password_hash.as_bytes());
            print.word(u64::from(user.no_password));
            print.word(user.roles.len() as u64);
            user.roles.iter().for_each(|role| print.bytes(role.as_bytes()));
        }
        print.word(roles.len() as u64);
        for (name, role) in roles {
            print.bytes(name.as_bytes());
            print.word(role.permissions.len() as u64);
            for ((key, range_end), kind) in &role.permissions {
                print.bytes(key);
                print.bytes(range_end);
                print.number(i64::from(*kind));
            }
        }
    }

    /// etcd's hash of the versions up to a revision (0: the present one; below it there are none), by which replicas
    /// are compared that have gone on to different revisions since, provided that they compacted at the same one: the
    /// CRC-32C of the bucket `key` of etcd's database, without versions that the last compaction keeps only for reads
    /// before `revision`.
    ///
    /// # Errors
    /// [`KvError::Compacted`], [`KvError::FutureRevision`].
    pub fn hash_kv(&self, revision: i64) -> Result<HashKvResponse, KvError> {
        if revision > self.revision {
            return Err(KvError::FutureRevision);
        }
        if revision > 0 && revision < self.compacted {
            return Err(KvError::Compacted);
        }
        let hash_revision = if revision == 0 { self.revision } else { revision };
        Ok(HashKvResponse {
            header: header(self.revision),
            hash: self.hash_through(hash_revision),
            compact_revision: self.compacted,
            hash_revision,
        })
    }

    fn hash_through(&self, revision: i64) -> u32 {
        let read = |history: &History| history.seen(revision, self.revision).is_some();
        if revision < 0 {
            return crc32c::crc32c(b"key");
        }
        // As in etcd: without any key everything counts.
        let anything = self.keys.values().any(read);
        let mut hash = crc32c::crc32c(b"key");
        let mut pair = Vec::new();
        Revisions::through(revision).walk(self, |key, history, version| {
            if version.modified <= self.compacted {
                let current = history.seen(revision, self.revision);
                let is_current = current.is_some_and(|current| current.modified == version.modified);
                if version.is_tombstone() || anything && !is_current {
                    return true;
                }
            }
            let (place, len) = revision_key(&version);
            hash = crc32c::crc32c_append(hash, &place[..len]);
            pair.clear();
            Pair::stored(key, &version).put(&mut pair);
            hash = crc32c::crc32c_append(hash, &pair);
            true
        });
        hash
    }

    fn print_versions(&self, print: &mut Fingerprint) {
        for (key, history) in &self.keys {
            // Versions that a compaction has yet to clear away are already invisible.
            for version in history.needed_from(self.compacted) {
                print.bytes(key);
                print.number(version.modified);
                print.word(u64::from(version.sub));
                print.number(version.created);
                print.number(version.version);
                print.number(version.lease);
                print.bytes(&version.value);
            }
        }
    }
}

/// A 64-bit hash, eight bytes at a time. It is not the standard library's hash, which may change from release
/// to release: two builds of this program must agree.
struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0x243f_6a88_85a3_08d3)
    }
}

impl Fingerprint {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn number(&mut self, number: i64) {
        self.word(number.cast_unsigned());
    }

    /// The length is hashed too; otherwise bytes could move from the end of one field to the start of the
    /// next unnoticed.
    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    /// Mixes the state, so that every bit of it affects every bit of the result.
    fn finish(self) -> u64 {
        let mut hash = self.0;
        for _ in 0..2 {
            hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        hash ^ (hash >> 32)
    }
}

#[cfg(test)]
mod tests {
    use synod_api::{
        etcdserverpb::{AlarmType, alarm_request::AlarmAction},
        synod::v1::{KvHash, KvHashCheck, kv_command::Command},
    };

    use super::*;
    use crate::testing::Execute;

    #[test]
    fn whatever_differs_shows() {
        let base = || {
            let mut store = KvStore::new();
            store.set("a", "1");
            store.set("b", "2");
            store
        };
        let changed = |change: fn(&mut KvStore)| {
            let mut store = base();
            change(&mut store);
            store.digest()
        };
        let digests = [
            KvStore::new().digest(),
            base().digest(),
            changed(|store| _ = store.set("b", "2")),
            changed(|store| _ = store.set("b", "3")),
            changed(|store| _ = store.set("ba", "")),
            changed(|store| _ = store.set("b", "a")),
            changed(|store| _ = store.del("a", "")),
            changed(|store| _ = store.del("b", "")),
            changed(|store| _ = store.compact_at(2, false)),
            changed(|store| _ = store.compact_at(3, false)),
            changed(|store| _ = store.ask_alarm(AlarmAction::Activate, 1, AlarmType::Nospace)),
            changed(|store| _ = store.ask_alarm(AlarmAction::Activate, 2, AlarmType::Nospace)),
            changed(|store| _ = store.ask_alarm(AlarmAction::Activate, 1, AlarmType::Corrupt)),
        ];
        for (n, digest) in digests.iter().enumerate() {
            assert!(!digests[..n].contains(digest), "digest {n} repeats an earlier one");
        }
        assert_eq!(base().digest(), digests[1]);
    }

    #[test]
    fn a_digest_is_the_same_in_every_build() {
        let mut store = KvStore::new();
        store.set("key", "a value longer than eight bytes");
        assert_eq!(store.digest(), 7_344_798_496_495_482_817);
    }

    #[test]
    fn hash_kv_is_of_a_revision() {
        let mut store = KvStore::new();
        store.set("a", "1");
        store.set("b", "1");
        let then = store.hash_kv(0).unwrap();
        assert_eq!((then.hash_revision, then.compact_revision, then.header.unwrap().revision), (3, -1, 3));
        store.set("a", "2");
        store.del("b", "");
        let later = store.hash_kv(3).unwrap();
        assert_eq!((later.hash, later.hash_revision), (then.hash, 3));
        assert_ne!(store.hash_kv(0).unwrap().hash, then.hash);
        assert_eq!(store.hash_kv(6), Err(KvError::FutureRevision));
        // What etcd 3.7.3 answers.
        let before = store.hash_kv(-1).unwrap();
        assert_eq!((before.hash, before.hash_revision), (1_084_519_789, -1));
        store.compact_at(4, false).unwrap();
        assert_eq!(store.hash_kv(3), Err(KvError::Compacted));
        assert_eq!(store.hash_kv(4).unwrap().compact_revision, 4);
    }

    /// So a member whose version does not know comparisons stays as the others are.
    #[test]
    fn a_comparison_changes_nothing_that_is_replicated() {
        let mut store = KvStore::new();
        store.set("a", "1");
        let digest = store.digest();
        for hash in [None, Some(KvHash { hash: 7, compact_revision: 1, revision: 2 })] {
            store.send(Command::HashCheck(KvHashCheck { round: 1, revision: 2, hash })).unwrap();
            assert_eq!((store.digest(), store.revision()), (digest, 2));
        }
        store.ask_alarm(AlarmAction::Activate, 1, AlarmType::Corrupt);
        let check = Command::HashCheck(KvHashCheck::default());
        assert_eq!(store.send(check), Err(KvError::Corrupt));
    }
}
