//! Members compare their contents through the log: who asks, who has answered, and what follows.
//!
//! The caretaker orders a question; every member that executes it hashes its own versions, up to the revision that it has
//! then or that the question names, and orders its hash. So no link but the log is needed, and all members are asked at the
//! same point of it, where they must have the same revision. The caretaker judges, and raises alarms, which are commands as
//! well.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use synod_api::synod::v1::{KvHash, KvHashCheck};
use synod_kv::Comparer;
use tokio::sync::Notify;

/// What the log says of comparisons. Clones share it; the store tells it ([`synod_kv::KvStore::compared_by`]).
#[derive(Clone, Debug, Default)]
pub struct Hashes {
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// The last question that this replica has not answered.
    asked: Option<Question>,
    /// The question of this replica, and the answers to it.
    round: u64,
    answers: BTreeMap<u64, KvHash>,
}

/// A question to this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// Which comparison it is.
    pub round: u64,
    /// The revision up to which versions are hashed.
    pub revision: i64,
    /// The revision at which this replica executed it.
    pub executed_at: i64,
}

impl Comparer for Seen {
    fn seen(&self, member: u64, check: &KvHashCheck, executed_at: i64) {
        let mut inner = self.inner();
        match check.hash {
            None => {
                let revision = if check.revision > 0 { check.revision } else { executed_at };
                inner.asked = Some(Question { round: check.round, revision, executed_at });
            }
            Some(hash) if check.round == inner.round => _ = inner.answers.insert(member, hash),
            // It answers a question of another, or of an earlier life.
            Some(_) => return,
        }
        drop(inner);
        self.changed.notify_one();
    }
}

impl Seen {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hashes {
    /// What a store tells of comparisons.
    #[must_use]
    pub fn comparer(&self) -> Arc<dyn Comparer> {
        Arc::clone(&self.seen) as Arc<dyn Comparer>
    }

    /// Waits until something was said since the last call.
    pub(super) async fn changed(&self) {
        self.seen.changed.notified().await;
    }

    /// The last question that was not taken yet.
    pub(super) fn take_question(&self) -> Option<Question> {
        self.seen.inner().asked.take()
    }

    /// Begins to collect answers to this replica's question.
    pub(super) fn begin(&self, round: u64) {
        let mut inner = self.seen.inner();
        inner.round = round;
        inner.answers.clear();
    }

    /// The answers so far.
    pub(super) fn answers(&self) -> BTreeMap<u64, KvHash> {
        self.seen.inner().answers.clone()
    }
}

/// The compaction that a member without a hash tells. A store that was never compacted has -1.
pub(super) const NO_HASH: i64 = -2;

/// What a comparison shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// So many members have the same hash.
    Same(usize),
    /// Some differ from the majority of all members, in which so many are the same.
    Differ { differ: BTreeSet<u64>, same: usize },
    /// There are several hashes, and none of them is that of a majority.
    Unclear,
}

impl Default for Verdict {
    /// Nothing could be compared.
    fn default() -> Verdict {
        Verdict::Same(0)
    }
}

/// Judges what some of the `members` told. All must have had the same revision; as etcd does, hashes are compared that belong
/// to the same compaction as that of this replica, `me`.
pub(super) fn judge(members: usize, me: u64, answers: &BTreeMap<u64, KvHash>) -> Verdict {
    let Some(own) = answers.get(&me) else { return Verdict::Same(0) };
    let mut by_hash: BTreeMap<(i64, u32), BTreeSet<u64>> = BTreeMap::new();
    for (member, told) in answers {
        let of = match told.revision == own.revision {
            true if told.compact_revision == own.compact_revision => (told.revision, told.hash),
            true => continue,
            false => (told.revision, 0),
        };
        by_hash.entry(of).or_default().insert(*member);
    }
    if let [only] = &by_hash.values().collect::<Vec<_>>()[..] {
        return Verdict::Same(only.len());
    }
    let majority = by_hash.values().find(|those| those.len() > members / 2).cloned();
    match majority {
        Some(majority) => Verdict::Differ {
            same: majority.len(),
            differ: by_hash.into_values().filter(|those| *those != majority).flatten().collect(),
        },
        None => Verdict::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(all: &[(u64, u32, i64)]) -> BTreeMap<u64, KvHash> {
        let hash = |hash, compact_revision| KvHash { hash, compact_revision, revision: 9 };
        all.iter().map(|&(member, number, compacted)| (member, hash(number, compacted))).collect()
    }

    /// A store that was never compacted has a hash, with the compaction -1.
    #[test]
    fn a_member_without_a_hash_is_not_compared() {
        let never = answers(&[(1, 7, -1), (2, 7, -1), (3, 0, NO_HASH)]);
        assert_eq!(judge(3, 1, &never), Verdict::Same(2));
    }

    #[test]
    fn a_member_with_another_revision_differs_whatever_its_hash() {
        let mut told = answers(&[(1, 7, 5), (2, 7, 5), (3, 7, 6)]);
        assert_eq!(judge(3, 1, &told), Verdict::Same(2));
        told.get_mut(&3).unwrap().revision = 10;
        assert_eq!(judge(3, 1, &told), Verdict::Differ { differ: [3].into(), same: 2 });
        assert_eq!(judge(3, 3, &told), Verdict::Differ { differ: [3].into(), same: 2 });
    }

    #[test]
    fn those_who_differ_from_a_majority_of_all_members_are_named() {
        let of = |members, all: &[_]| judge(members, 1, &answers(all));
        assert_eq!(of(3, &[(1, 7, 5), (2, 7, 5), (3, 7, 5)]), Verdict::Same(3));
        assert_eq!(
            of(3, &[(1, 7, 5), (2, 7, 5), (3, 8, 5)]),
            Verdict::Differ { differ: [3].into(), same: 2 }
        );
        assert_eq!(
            of(3, &[(1, 6, 5), (2, 7, 5), (3, 7, 5)]),
            Verdict::Differ { differ: [1].into(), same: 2 },
            "also the one who judges"
        );
        assert_eq!(of(3, &[(1, 6, 5), (2, 7, 5), (3, 8, 5)]), Verdict::Unclear);
        assert_eq!(of(2, &[(1, 6, 5), (2, 7, 5)]), Verdict::Unclear);
        assert_eq!(
            of(5, &[(1, 7, 5), (2, 7, 5), (3, 8, 5)]),
            Verdict::Unclear,
            "two of five are no majority"
        );
        assert_eq!(of(3, &[(1, 7, 5), (2, 7, 5), (3, 8, 6)]), Verdict::Same(2), "another compaction");
        assert_eq!(of(3, &[(2, 7, 5), (3, 8, 5)]), Verdict::Same(0), "this replica's own is missing");
    }

    #[test]
    fn answers_count_for_the_question_that_was_asked_last() {
        let hashes = Hashes::default();
        let say = |member, round, hash: Option<u32>| {
            let hash = hash.map(|hash| KvHash { hash, compact_revision: 1, revision: 12 });
            hashes.comparer().seen(member, &KvHashCheck { round, revision: 9, hash }, 12);
        };
        say(2, 77, None);
        let question = Question { round: 77, revision: 9, executed_at: 12 };
        assert_eq!((hashes.take_question(), hashes.take_question()), (Some(question), None));
        hashes.comparer().seen(2, &KvHashCheck { round: 78, revision: 0, hash: None }, 13);
        assert_eq!(hashes.take_question(), Some(Question { round: 78, revision: 13, executed_at: 13 }));
        hashes.begin(5);
        say(1, 5, Some(3));
        say(2, 77, Some(4));
        assert_eq!(hashes.answers().keys().collect::<Vec<_>>(), [&1]);
        hashes.begin(6);
        assert!(hashes.answers().is_empty());
    }
}
