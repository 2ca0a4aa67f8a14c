//! The key-value store as a sequential specification, small enough to be seen to be right.
//!
//! Revisions are part of the answers, and one revision counts the changes of all keys. So a history can not be split
//! by key as it could without them; but revisions also say nearly everything about the order, and with the hints
//! from the decided log ([`super::linear`]) a whole history is checked in about as many steps as it has operations.

use std::collections::BTreeMap;

use super::linear::Sequential;
use crate::ops::{Answer, Entry, Key, Op, Other, Part};

/// gRPC's OUT_OF_RANGE, with which etcd refuses revisions.
const OUT_OF_RANGE: i32 = 11;

/// What the store must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    keys: BTreeMap<Key, Entry>,
    revision: i64,
    compacted: i64,
}

impl Default for Model {
    fn default() -> Model {
        Model { keys: BTreeMap::new(), revision: 1, compacted: -1 }
    }
}

impl Model {
    fn put(&mut self, key: Key, value: u64, revision: i64) -> Part {
        let before = self.keys.get(&key).copied();
        let created = before.map_or(revision, |entry| entry.created);
        let version = before.map_or(1, |entry| entry.version + 1);
        self.keys.insert(key, Entry { key, value, created, modified: revision, version });
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

    fn get(&self, first: Key, last: Key) -> Vec<Entry> {
        self.keys.range(first..=last).map(|(_, entry)| *entry).collect()
    }
}

impl Sequential for Model {
    type Op = Op;
    type Answer = Answer;

    fn apply(&mut self, op: &Op) -> Answer {
        let next = self.revision + 1;
        let mut succeeded = true;
        let parts = match *op {
            Op::Put { key, value } => vec![self.put(key, value, next)],
            Op::Delete { first, last } => vec![self.delete(first, last, next)],
            Op::Swap { key, expected, value, other } => {
                succeeded = self.keys.get(&key).map_or(0, |entry| entry.modified) == expected;
                if succeeded {
                    let mut parts = vec![self.put(key, value, next)];
                    parts.extend(match other {
                        Other::Nothing => None,
                        Other::Put(other) => Some(self.put(other, value, next)),
                        Other::Delete(other) => Some(self.delete(other, other, next)),
                    });
                    parts
                } else {
                    vec![Part::Get(self.get(key, key))]
                }
            }
            Op::Compact { revision } => {
                if revision <= self.compacted || revision > self.revision {
                    return Answer::Refused(OUT_OF_RANGE);
                }
                self.compacted = revision;
                Vec::new()
            }
            Op::Get { first, last } => vec![Part::Get(self.get(first, last))],
        };
        Answer::Done { revision: self.revision, succeeded, parts }
    }

    fn is_inert(op: &Op, answer: &Answer) -> bool {
        let Answer::Done { succeeded, parts, .. } = answer else { return true };
        match op {
            Op::Get { .. } => true,
            Op::Swap { .. } => !succeeded,
            Op::Delete { .. } => {
                parts.iter().all(|part| matches!(part, Part::Delete(gone) if gone.is_empty()))
            }
            Op::Put { .. } | Op::Compact { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use synod_kv::KvStore;
    use synod_replica::StateMachine;

    use super::*;

    /// The specification and the real store agree; also a test that operations and answers survive their encoding.
    #[test]
    fn model_and_store_give_the_same_answers() {
        let mut rng = Rng::with_seed(7);
        for _ in 0..50 {
            let (mut model, mut store) = (Model::default(), KvStore::new());
            for id in 0..200 {
                let key = rng.u8(0..4);
                let other = (key + rng.u8(1..4)) % 4;
                let known = model.keys.get(&key).map_or(0, |entry| entry.modified);
                let op = match rng.u8(0..6) {
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
                let reply =
                    if op.is_read() { StateMachine::query(&store, &bytes) } else { store.apply(&bytes) };
                let answer = model.apply(&op);
                assert_eq!(Answer::decode(&op, &reply).as_ref(), Some(&answer), "{op:?}");
                assert_eq!(Model::is_inert(&op, &answer), model == before, "{op:?} {answer:?}");
            }
        }
    }
}
