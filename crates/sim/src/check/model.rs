//! The key-value store as a sequential specification, small enough to be checked by reading.
//!
//! Revisions are part of the answers, and one revision counts the changes of all keys. So a history cannot be split
//! by key as it could without them. But revisions also determine nearly the whole order, and with the hints from
//! the decided log ([`super::linear`]) a whole history is checked in about as many steps as it has operations.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use super::linear::Sequential;
use crate::ops::{Answer, Entry, Key, Lease, Op, Order, Other, Part};

/// gRPC's OUT_OF_RANGE, with which etcd refuses revisions.
const OUT_OF_RANGE: i32 = 11;
/// gRPC's NOT_FOUND, with which etcd answers for a lease that does not exist.
const NOT_FOUND: i32 = 5;
/// gRPC's FAILED_PRECONDITION, with which etcd refuses to grant a lease that exists.
const FAILED_PRECONDITION: i32 = 9;
/// The shortest time that a lease lives, in seconds.
const LEASE_SECONDS_MIN: i64 = 2;
/// gRPC's RESOURCE_EXHAUSTED, with which etcd refuses operations for which there is no space.
const RESOURCE_EXHAUSTED: i32 = 8;

/// The keys at a revision, and before it.
#[derive(Clone, Debug)]
struct Past {
    revision: i64,
    keys: BTreeMap<Key, Entry>,
    before: Option<Arc<Past>>,
}

/// What the store must hold.
#[derive(Clone, Debug)]
pub struct Model {
    keys: BTreeMap<Key, Entry>,
    revision: i64,
    compacted: i64,
    alarm: bool,
    /// The leases that exist, each with its time to live.
    leases: BTreeMap<Lease, i64>,
    past: Option<Arc<Past>>,
    /// Stands for `past` where states are compared: a hash of the whole history.
    digest: u64,
}

impl Model {
    #[allow(clippy::type_complexity, reason = "these are what counts, in one place")]
    fn shown(&self) -> (&BTreeMap<Key, Entry>, i64, i64, bool, &BTreeMap<Lease, i64>, u64) {
        (&self.keys, self.revision, self.compacted, self.alarm, &self.leases, self.digest)
    }
}

impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        self.shown() == other.shown()
    }
}

impl Eq for Model {}

impl Hash for Model {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.shown().hash(state);
    }
}

impl Default for Model {
    fn default() -> Model {
        let (keys, leases, past) = (BTreeMap::new(), BTreeMap::new(), None);
        Model { keys, revision: 1, compacted: -1, alarm: false, leases, past, digest: 0 }
    }
}

impl Model {
    fn put(&mut self, key: Key, value: u64, revision: i64) -> Part {
        self.put_with(0, key, value, revision)
    }

    fn put_with(&mut self, lease: Lease, key: Key, value: u64, revision: i64) -> Part {
        let before = self.keys.get(&key).copied();
        let created = before.map_or(revision, |entry| entry.created);
        let version = before.map_or(1, |entry| entry.version + 1);
        self.keys.insert(key, Entry { key, value, created, modified: revision, version, lease });
        self.revision = revision;
        Part::Put(before)
    }

    fn delete(&mut self, first: Key, last: Key, revision: i64) -> Part {
        let gone = self.get(first, last);
        for entry in &gone {
            self.keys.remove(&entry.key);
            self.revision = revision;
        }
        Part::Delete(gone)
    }

    /// Removes a lease, and its keys at one revision.
    fn end(&mut self, lease: Lease, revision: i64) -> bool {
        let existed = self.leases.remove(&lease).is_some();
        let before = self.keys.len();
        self.keys.retain(|_, entry| !existed || entry.lease != lease);
        if self.keys.len() < before {
            self.revision = revision;
        }
        existed
    }

    /// Makes the present contents a part of the past.
    fn remember(&mut self) {
        let (revision, keys) = (self.revision, self.keys.clone());
        let mut hasher = DefaultHasher::new();
        (self.digest, revision, &keys).hash(&mut hasher);
        self.digest = hasher.finish();
        self.past = Some(Arc::new(Past { revision, keys, before: self.past.take() }));
    }

    /// The keys at a revision.
    fn at(&self, revision: i64) -> BTreeMap<Key, Entry> {
        let mut past = self.past.as_deref();
        while let Some(then) = past.filter(|then| then.revision > revision) {
            past = then.before.as_deref();
        }
        past.map(|then| then.keys.clone()).unwrap_or_default()
    }

    fn get(&self, first: Key, last: Key) -> Vec<Entry> {
        self.keys.range(first..=last).map(|(_, entry)| *entry).collect()
    }

    /// Whether the key was last changed at this revision; 0 for a key that does not exist.
    fn is_unchanged(&self, key: Key, expected: i64) -> bool {
        self.keys.get(&key).map_or(0, |entry| entry.modified) == expected
    }

    /// A transaction that writes, perhaps with another key, or reads.
    fn swap(&mut self, succeeded: bool, key: Key, value: u64, other: Other, revision: i64) -> Vec<Part> {
        if !succeeded {
            return vec![Part::Get(self.get(key, key))];
        }
        let put = self.put(key, value, revision);
        let more = match other {
            Other::Nothing => None,
            Other::Put(other) => Some(self.put(other, value, revision)),
            Other::Delete(other) => Some(self.delete(other, other, revision)),
        };
        [put].into_iter().chain(more).collect()
    }

    /// A transaction that holds another one.
    fn nest(&mut self, succeeded: bool, key: Key, value: u64, inner: Key, revision: i64) -> Vec<Part> {
        if !succeeded {
            let parts = vec![Part::Get(self.get(key, key)), Part::Get(self.get(inner, inner))];
            return vec![Part::Nest { succeeded: true, parts }];
        }
        let put = self.put(key, value, revision);
        let exists = self.keys.contains_key(&inner);
        let change =
            if exists { self.delete(inner, inner, revision) } else { self.put(inner, value, revision) };
        vec![put, Part::Nest { succeeded: exists, parts: vec![change] }]
    }
}

/// What a range returns of the entries in it.
fn look(mut entries: Vec<Entry>, limit: i64, order: Order, count_only: bool) -> Part {
    let count = entries.len();
    match order {
        Order::Key => {}
        Order::KeyDown => entries.reverse(),
        Order::Modified => entries.sort_by_key(|entry| entry.modified),
    }
    let kept = usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let more = !count_only && count > kept;
    entries.truncate(if count_only { 0 } else { kept });
    Part::Look { entries, count: i64::try_from(count).expect("a few"), more }
}

impl Sequential for Model {
    type Op = Op;
    type Answer = Answer;

    fn apply(&mut self, op: &Op) -> Answer {
        if self.alarm && takes_space(op) {
            return Answer::Refused(RESOURCE_EXHAUSTED);
        }
        let before = self.revision;
        let next = before + 1;
        let mut succeeded = true;
        let parts = match *op {
            Op::Put { key, value } => vec![self.put(key, value, next)],
            Op::Delete { first, last } => vec![self.delete(first, last, next)],
            Op::Swap { key, expected, value, other } => {
                succeeded = self.is_unchanged(key, expected);
                self.swap(succeeded, key, value, other, next)
            }
            Op::Compact { revision } => {
                if revision <= self.compacted || revision > self.revision {
                    return Answer::Refused(OUT_OF_RANGE);
                }
                self.compacted = revision;
                Vec::new()
            }
            Op::Get { first, last } => vec![Part::Get(self.get(first, last))],
            Op::Look { first, last, revision, limit, order, count_only } => {
                if revision > self.revision || (revision > 0 && revision < self.compacted) {
                    return Answer::Refused(OUT_OF_RANGE);
                }
                let keys = if revision == 0 { self.keys.clone() } else { self.at(revision) };
                let entries = keys.range(first..=last).map(|(_, entry)| *entry).collect();
                vec![look(entries, limit, order, count_only)]
            }
            Op::Nest { key, expected, value, inner } => {
                succeeded = self.is_unchanged(key, expected);
                self.nest(succeeded, key, value, inner, next)
            }
            Op::Exceed { .. } => {
                self.alarm = true;
                return Answer::Refused(RESOURCE_EXHAUSTED);
            }
            Op::Overrun { .. } => return Answer::Refused(RESOURCE_EXHAUSTED),
            Op::Grant { lease, seconds } => {
                if self.leases.contains_key(&lease) {
                    return Answer::Refused(FAILED_PRECONDITION);
                }
                let seconds = seconds.max(LEASE_SECONDS_MIN);
                self.leases.insert(lease, seconds);
                vec![Part::Lives(seconds)]
            }
            Op::Renew { lease } => vec![Part::Lives(self.leases.get(&lease).copied().unwrap_or(0))],
            Op::Attach { lease, .. } if !self.leases.contains_key(&lease) => {
                return Answer::Refused(NOT_FOUND);
            }
            Op::Attach { key, value, lease } => vec![self.put_with(lease, key, value, next)],
            Op::Revoke { lease } => {
                if !self.end(lease, next) {
                    return Answer::Refused(NOT_FOUND);
                }
                Vec::new()
            }
            Op::End { lease } => {
                self.end(lease, next);
                Vec::new()
            }
            Op::Disarm => vec![Part::Cleared(usize::from(std::mem::take(&mut self.alarm)))],
        };
        if self.revision > before {
            self.remember();
        }
        Answer::Done { revision: self.revision, succeeded, parts }
    }

    fn is_inert(op: &Op, answer: &Answer) -> bool {
        let Answer::Done { succeeded, parts, .. } = answer else {
            return !matches!(op, Op::Exceed { .. });
        };
        match op {
            Op::Get { .. } | Op::Look { .. } | Op::Overrun { .. } | Op::Renew { .. } => true,
            Op::Swap { .. } | Op::Nest { .. } => !succeeded,
            Op::Disarm => *parts == [Part::Cleared(0)],
            Op::Exceed { .. } | Op::Grant { .. } | Op::Revoke { .. } | Op::Attach { .. } | Op::End { .. } => {
                false
            }
            Op::Delete { .. } => {
                parts.iter().all(|part| matches!(part, Part::Delete(gone) if gone.is_empty()))
            }
            Op::Put { .. } | Op::Compact { .. } => false,
        }
    }
}

/// Whether an operation is refused while there is no space.
fn takes_space(op: &Op) -> bool {
    matches!(
        op,
        Op::Put { .. }
            | Op::Attach { .. }
            | Op::Grant { .. }
            | Op::Swap { .. }
            | Op::Nest { .. }
            | Op::Exceed { .. }
    )
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use synod_kv::KvStore;
    use synod_replica::{Context, StateMachine};
    use synod_wire::Slot;

    use super::*;

    /// The specification and the real store agree. This also tests that operations and answers survive their encoding.
    #[test]
    fn model_and_store_give_the_same_answers() {
        let mut rng = Rng::with_seed(7);
        for _ in 0..50 {
            let (mut model, mut store) = (Model::default(), KvStore::new());
            for id in 0..200 {
                let key = rng.u8(0..4);
                let other = (key + rng.u8(1..4)) % 4;
                let known = model.keys.get(&key).map_or(0, |entry| entry.modified);
                let op = match rng.u8(0..14) {
                    10 => Op::Grant { lease: rng.u8(1..3), seconds: rng.i64(1..4) },
                    11 => Op::Renew { lease: rng.u8(1..3) },
                    12 if rng.bool() => Op::Revoke { lease: rng.u8(1..3) },
                    12 | 13 => Op::Attach { key, value: id, lease: rng.u8(1..3) },
                    6 => Op::Look {
                        first: key.min(other),
                        last: key.max(other),
                        revision: [0, model.revision - rng.i64(-1..6)][rng.usize(0..2)].max(0),
                        limit: rng.i64(0..3),
                        order: [Order::Key, Order::KeyDown, Order::Modified][rng.usize(0..3)],
                        count_only: rng.u8(0..4) == 0,
                    },
                    7 => Op::Nest { key, expected: known - rng.i64(0..2), value: id, inner: other },
                    8 if rng.u8(0..4) == 0 => Op::Exceed { key },
                    8 if rng.bool() => Op::Overrun { key, other },
                    8 => Op::Disarm,
                    0 => Op::Put { key, value: id },
                    1 => Op::Delete { first: key.min(other), last: key.max(other) },
                    2 => Op::Compact { revision: model.revision - rng.i64(-1..5) },
                    3 => Op::Get { first: key, last: key },
                    _ => Op::Swap {
                        key,
                        expected: known - rng.i64(0..2),
                        value: id,
                        other: match rng.u8(0..3) {
                            0 => Other::Nothing,
                            1 => Other::Put(other),
                            _ => Other::Delete(other),
                        },
                    },
                };
                let bytes = op.encode(id, rng.usize(0..20));
                let before = model.clone();
                let reply = if op.is_read() {
                    StateMachine::query(&store, &bytes)
                } else {
                    store.apply(&bytes, &Context::new(Slot(id)))
                };
                let answer = model.apply(&op);
                assert_eq!(Answer::decode(&op, &reply).as_ref(), Some(&answer), "{op:?}");
                let inert = Model::is_inert(&op, &answer);
                // An alarm that is raised already is not raised by this one.
                let raised = before.alarm && matches!(op, Op::Exceed { .. });
                assert!(inert == (model == before) || raised, "{op:?} {answer:?}");
            }
        }
    }
}
