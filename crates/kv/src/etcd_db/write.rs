//! Writes the file piece by piece from a view: a first walk over all versions counts the pages, a second one writes
//! them. So the memory is that of a page of each level and of what [`Revisions`] holds, whatever the size of the store.

use std::ops::Bound;

use bytes::Bytes;
use prost::Message as _;
use synod_api::synod::v1::{KvAnswer, KvBucketEntry, KvEtcdSnapshot, kv_answer::Answer};

use super::{ALARM, BUCKETS, COMPACTED, KEY, LEASE, META, StoredLease, revision_key, revision_value};
use crate::{
    KvStore,
    bbolt::{PAGE_BYTES, Writer},
    pieces::{PIECE_BYTES, Pair},
    revisions::Revisions,
};

/// Entries that are looked at between two pieces.
const STEP_ENTRIES: usize = 4_096;

impl KvStore {
    /// The entries of the small buckets that the store itself knows: of all buckets but `key` and `lease`.
    fn small_entries(&self) -> Vec<KvBucketEntry> {
        let entry = |bucket: &str, key: Vec<u8>, value: Vec<u8>| KvBucketEntry {
            bucket: bucket.to_owned(),
            key: key.into(),
            value: value.into(),
        };
        let alarms = self.list_alarms(synod_api::etcdserverpb::AlarmType::None);
        let mut entries: Vec<_> =
            alarms.iter().map(|alarm| entry(ALARM, alarm.encode_to_vec(), Vec::new())).collect();
        if self.compacted >= 0 {
            for name in COMPACTED {
                entries.push(entry(META, name.into(), revision_value(self.compacted)));
            }
        }
        entries.extend(
            self.auth.bucket_entries().into_iter().map(|(bucket, key, value)| entry(bucket, key, value)),
        );
        entries
    }
}

/// The database file of a store, piece by piece. The first piece tells how many bytes follow.
pub(crate) struct EtcdDb {
    view: KvStore,
    /// The entries of the small buckets, in order.
    small: Vec<KvBucketEntry>,
    walk: Walk,
    /// Whether the walk only counts pages.
    counts: bool,
    done: bool,
}

/// A walk over all entries of all buckets.
struct Walk {
    writer: Writer,
    /// The number of the bucket that is written.
    bucket: usize,
    revisions: Revisions,
    /// The next lease, as bbolt orders them: negative numbers come last.
    lease: Option<u64>,
}

impl Walk {
    fn new(writer: Writer, view: &KvStore) -> Walk {
        Walk { writer, bucket: 0, revisions: Revisions::through(view.revision), lease: Some(0) }
    }

    /// Goes on over some entries. Returns the number of pages if the walk is over.
    fn step(&mut self, view: &KvStore, small: &[KvBucketEntry]) -> Option<u64> {
        let Some(&bucket) = BUCKETS.get(self.bucket) else { return Some(self.writer.end()) };
        let ended = match bucket {
            KEY => self.step_keys(view),
            LEASE => self.step_leases(view),
            _ => {
                for entry in small.iter().filter(|entry| entry.bucket == bucket) {
                    let value = &entry.value;
                    self.writer.entry(&entry.key, value.len(), |out| out.extend_from_slice(value));
                }
                true
            }
        };
        if ended {
            self.writer.end_bucket(bucket);
            self.bucket += 1;
        }
        None
    }

    fn step_keys(&mut self, view: &KvStore) -> bool {
        let Walk { writer, revisions, .. } = self;
        let mut entries = 0;
        revisions.walk(view, |key, _, version| {
            let pair = Pair::stored(key, &version);
            let (revision, len) = revision_key(&version);
            writer.entry(&revision[..len], pair.len(), |out| pair.put(out));
            entries += 1;
            entries < STEP_ENTRIES && writer.written() < PIECE_BYTES
        })
    }

    fn step_leases(&mut self, view: &KvStore) -> bool {
        const NEGATIVE: u64 = 1 << 63;
        let Some(from) = self.lease else { return true };
        let end = if from < NEGATIVE { Bound::Unbounded } else { Bound::Excluded(0) };
        let leases = view.leases.range((Bound::Included(from.cast_signed()), end));
        self.lease = if from < NEGATIVE { Some(NEGATIVE) } else { None };
        for (number, (&id, found)) in leases.enumerate() {
            if number == STEP_ENTRIES {
                self.lease = Some(id.cast_unsigned());
                break;
            }
            let value = StoredLease { id, ttl: found.ttl }.encode_to_vec();
            self.writer.entry(&id.to_be_bytes(), value.len(), |out| out.extend_from_slice(&value));
        }
        self.lease.is_none()
    }
}

impl EtcdDb {
    /// The file of a view that knows its changes.
    pub(crate) fn new(view: KvStore, request: KvEtcdSnapshot) -> EtcdDb {
        let mut small = request.entries;
        small.extend(view.small_entries());
        small.sort_by(|a, b| (&a.bucket, &a.key).cmp(&(&b.bucket, &b.key)));
        small.dedup_by(|later, earlier| (&later.bucket, &later.key) == (&earlier.bucket, &earlier.key));
        small.retain(|entry| !entry.key.is_empty());
        let walk = Walk::new(Writer::counting(), &view);
        EtcdDb { view, small, walk, counts: true, done: false }
    }
}

impl Iterator for EtcdDb {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let ended = self.walk.step(&self.view, &self.small);
        if let Some(pages) = ended.filter(|_| self.counts) {
            self.counts = false;
            self.walk = Walk::new(Writer::writing(pages), &self.view);
            return Some(piece(Vec::new(), pages * PAGE_BYTES as u64));
        }
        self.done = ended.is_some();
        if self.counts || self.walk.writer.written() < PIECE_BYTES && !self.done {
            return Some(Bytes::new());
        }
        Some(piece(self.walk.writer.take(), 0))
    }
}

fn piece(pages: Vec<u8>, rest_bytes: u64) -> Bytes {
    let answer = Some(Answer::EtcdSnapshot(pages.into()));
    KvAnswer { answer, rest_bytes }.encode_to_vec().into()
}

#[cfg(test)]
pub(super) mod tests {
    use synod_api::{
        etcdserverpb::{AlarmType, LeaseGrantRequest, PutRequest, alarm_request::AlarmAction},
        mvccpb::KeyValue,
        synod::v1::{KvQuery, kv_command::Command, kv_query::Query},
    };
    use synod_replica::{Answer as Answered, StateMachine};

    use super::*;
    use crate::{
        bbolt::tests::{Entries, buckets},
        testing::{self, Execute},
    };

    /// The database of a store.
    pub(crate) fn database(store: &KvStore, entries: Vec<KvBucketEntry>) -> Vec<u8> {
        let query =
            KvQuery { query: Some(Query::EtcdSnapshot(KvEtcdSnapshot { entries })), ..KvQuery::default() };
        let Answered::Pieces(pieces) = store.answer(&query.encode_to_vec().into()) else {
            panic!("a snapshot comes in pieces");
        };
        let (mut told, mut bytes) = (None, Vec::new());
        for piece in pieces {
            let KvAnswer { answer, rest_bytes } = KvAnswer::decode(piece).unwrap();
            match answer {
                None => {}
                Some(Answer::EtcdSnapshot(pages)) => {
                    assert!(pages.len() < 4 * PIECE_BYTES + 300_000, "{}", pages.len());
                    bytes.extend_from_slice(&pages);
                    told = told.or(Some(rest_bytes));
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(told, Some(bytes.len() as u64));
        bytes
    }

    fn file(store: &KvStore, entries: Vec<KvBucketEntry>) -> Vec<(String, Entries)> {
        buckets(&database(store, entries))
    }

    fn entries<'a>(file: &'a [(String, Entries)], name: &str) -> &'a Entries {
        &file.iter().find(|(bucket, _)| bucket == name).expect("it is there").1
    }

    #[test]
    fn the_file_has_what_the_store_has() {
        let mut store = KvStore::new();
        for id in [7, -3, 1 << 40] {
            store.send(Command::LeaseGrant(LeaseGrantRequest { id, ttl: 60 })).unwrap();
        }
        store.set("a", "1");
        store.set_with(PutRequest { lease: 7, ..testing::put("b", "2") }).unwrap();
        store.set("a", &"long".repeat(60_000));
        store.del("b", "");
        store.set("c", "3");
        store.ask_alarm(AlarmAction::Activate, 5, AlarmType::Nospace);
        let member = KvBucketEntry { bucket: "members".into(), key: "1f".into(), value: "{}".into() };
        let all = file(&store, vec![member]);
        assert_eq!(all.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), BUCKETS);
        let shown = |entries: &Entries| -> Vec<String> {
            let show = |(place, value): &(Vec<u8>, Vec<u8>)| {
                let kv = KeyValue::decode(&value[..]).unwrap();
                let numbers = (kv.create_revision, kv.mod_revision, kv.version, kv.lease);
                let place = place[..].escape_ascii().to_string().replace("\\x00", "");
                format!("{place}: {} {numbers:?} {}", kv.key.escape_ascii(), kv.value.len())
            };
            entries.iter().map(show).collect()
        };
        let keys = entries(&all, "key");
        assert_eq!(
            shown(keys),
            [
                "\\x02_: a (2, 2, 1, 0) 1",
                "\\x03_: b (3, 3, 1, 7) 1",
                "\\x04_: a (2, 4, 2, 0) 240000",
                "\\x05_t: b (0, 0, 0, 0) 0",
                "\\x06_: c (6, 6, 1, 0) 1"
            ]
        );
        // As etcd writes a pair: the fields in the order of their numbers.
        let pair = KeyValue::decode(&keys[1].1[..]).unwrap();
        assert_eq!(pair.encode_to_vec(), keys[1].1);
        let ids: Vec<i64> = entries(&all, "lease")
            .iter()
            .map(|(id, _)| i64::from_be_bytes(id[..].try_into().unwrap()))
            .collect();
        assert_eq!(ids, [7, 1 << 40, -3]);
        assert_eq!(entries(&all, "lease")[0].1, [8, 7, 16, 60]);
        assert_eq!(entries(&all, "members")[..], [(b"1f".to_vec(), b"{}".to_vec())]);
        assert_eq!(entries(&all, "alarm").len(), 1);
        assert!(entries(&all, "meta").is_empty());
        store.ask_alarm(AlarmAction::Deactivate, 0, AlarmType::None);
        store.compact_at(5, false).unwrap();
        let all = file(&store, Vec::new());
        assert_eq!(
            shown(entries(&all, "key")),
            ["\\x04_: a (2, 4, 2, 0) 240000", "\\x05_t: b (0, 0, 0, 0) 0", "\\x06_: c (6, 6, 1, 0) 1"]
        );
        let meta = entries(&all, "meta");
        assert_eq!(meta[0], (b"finishedCompactRev".to_vec(), revision_value(5)));
        assert_eq!(meta.len(), 2);
    }

    #[test]
    fn the_file_of_a_large_store_is_whole() {
        let mut store = KvStore::new();
        for key in 0..30_000 {
            store.set(&format!("key-{key:06}"), &"v".repeat(key % 300));
        }
        for id in 1..10_000 {
            store.send(Command::LeaseGrant(LeaseGrantRequest { id, ttl: 60 })).unwrap();
        }
        store.compact_at(15_000, false).unwrap();
        let all = file(&store, Vec::new());
        assert_eq!(entries(&all, "key").len(), 30_000);
        assert_eq!(entries(&all, "lease").len(), 9_999);
    }
}
