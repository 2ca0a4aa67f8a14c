//! Members compare their contents through the log: who asks, who has answered, and what follows.
//!
//! The caretaker orders a question; every member that executes it hashes its own versions, up to the revision that it
//! has then or that the question names, and orders its hash. So no link but the log is needed, and all members are
//! asked at the same point of it, where they must have the same revision. The caretaker judges, and raises alarms,
//! which are commands as well.

use std::collections::{BTreeMap, BTreeSet};

use synod_api::{
    etcdserverpb::HashKvResponse,
    synod::v1::{KvHash, KvHashCheck},
};

use crate::{KvBug, planted};

/// What the log says of comparisons, as far as a replica still has to do something about it. The store tells it, by
/// [`Comparer`](crate::Comparer).
#[derive(Debug, Default)]
pub struct Comparisons {
    /// The last question that this replica has not answered.
    asked: Option<Question>,
    /// The question of this replica, and the answers to it.
    round: u64,
    answers: BTreeMap<u64, KvHash>,
}

/// A question to this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which comparison it is.
    pub round: u64,
    /// The revision up to which versions are hashed.
    pub revision: i64,
    /// The revision at which this replica executed it.
    pub executed_at: i64,
}

impl Question {
    /// The revision at which the store is asked for its hash.
    #[must_use]
    pub fn hashed_at(&self) -> i64 {
        if planted::has(KvBug::HashAtPresent) { 0 } else { self.revision }
    }

    /// What this replica tells: what its store says of that revision. It has no hash if a later compaction has passed
    /// the revision, or if it never had it.
    #[must_use]
    pub fn answer(&self, found: Option<&HashKvResponse>) -> KvHashCheck {
        let mut told = KvHash { hash: 0, compact_revision: NO_HASH, revision: self.executed_at };
        if let Some(found) = found {
            (told.hash, told.compact_revision) = (found.hash, found.compact_revision);
        }
        KvHashCheck { round: self.round, revision: self.revision, hash: Some(told) }
    }
}

impl Comparisons {
    /// A member asks, or tells its hash; this replica executes that at `executed_at`. The result is whether there is
    /// something to do.
    pub fn seen(&mut self, member: u64, check: &KvHashCheck, executed_at: i64) -> bool {
        match check.hash {
            None => {
                let revision = if check.revision > 0 { check.revision } else { executed_at };
                self.asked = Some(Question { round: check.round, revision, executed_at });
            }
            Some(hash) if check.round == self.round || planted::has(KvBug::AnyRound) => {
                self.answers.insert(member, hash);
            }
            // It answers a question of another, or of an earlier life.
            Some(_) => return false,
        }
        true
    }

    /// The last question that was not taken yet.
    pub fn take_question(&mut self) -> Option<Question> {
        self.asked.take()
    }

    /// Begins to collect answers to this replica's question.
    pub(super) fn begin(&mut self, round: u64) {
        self.round = round;
        self.answers.clear();
    }

    /// The answers so far.
    #[must_use]
    pub fn answers(&self) -> &BTreeMap<u64, KvHash> {
        &self.answers
    }
}

/// The compaction that a member without a hash tells. A store that was never compacted has -1.
pub const NO_HASH: i64 = -2;

/// What a comparison shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This many members have the same hash.
    Same(usize),
    /// Some differ from the majority of all members, in which this many are the same.
    Differ {
        /// Those that differ.
        differ: BTreeSet<u64>,
        /// This many are the same.
        same: usize,
    },
    /// There are several hashes, and none of them is that of a majority.
    Unclear,
}

impl Default for Verdict {
    /// Nothing could be compared.
    fn default() -> Verdict {
        Verdict::Same(0)
    }
}

/// Judges what some of the `members` told. All must have had the same revision; as etcd does, hashes are compared that
/// belong to the same compaction as that of this replica, `me`.
#[must_use]
pub fn judge(members: usize, me: u64, answers: &BTreeMap<u64, KvHash>) -> Verdict {
    let Some(own) = answers.get(&me) else { return Verdict::Same(0) };
    let mut by_hash: BTreeMap<(i64, u32), BTreeSet<u64>> = BTreeMap::new();
    for (member, told) in answers {
        let of = match told.revision == own.revision {
            true if planted::has(KvBug::JudgeByRevision) => (told.revision, 0),
            true if planted::has(KvBug::JudgeAcrossCompactions) => (told.revision, told.hash),
            true if told.compact_revision == own.compact_revision => (told.revision, told.hash),
            true => continue,
            false => (told.revision, 0),
        };
        by_hash.entry(of).or_default().insert(*member);
    }
    if let [only] = &by_hash.values().collect::<Vec<_>>()[..] {
        return Verdict::Same(only.len());
    }
    let least = if planted::has(KvBug::AnyHashIsRight) { 0 } else { members / 2 };
    let majority = by_hash.values().find(|those| those.len() > least).cloned();
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
        let mut comparisons = Comparisons::default();
        let say = |comparisons: &mut Comparisons, member, round, hash: Option<u32>| {
            let hash = hash.map(|hash| KvHash { hash, compact_revision: 1, revision: 12 });
            comparisons.seen(member, &KvHashCheck { round, revision: 9, hash }, 12)
        };
        assert!(say(&mut comparisons, 2, 77, None));
        let question = Question { round: 77, revision: 9, executed_at: 12 };
        assert_eq!((comparisons.take_question(), comparisons.take_question()), (Some(question), None));
        comparisons.seen(2, &KvHashCheck { round: 78, revision: 0, hash: None }, 13);
        let question = Question { round: 78, revision: 13, executed_at: 13 };
        assert_eq!(comparisons.take_question(), Some(question));
        comparisons.begin(5);
        assert!(say(&mut comparisons, 1, 5, Some(3)));
        assert!(!say(&mut comparisons, 2, 77, Some(4)));
        assert_eq!(comparisons.answers().keys().collect::<Vec<_>>(), [&1]);
        comparisons.begin(6);
        assert!(comparisons.answers().is_empty());
    }

    #[test]
    fn an_answer_is_of_the_revision_at_which_the_question_was_executed() {
        let question = Question { round: 7, revision: 9, executed_at: 12 };
        let found = HashKvResponse { hash: 5, compact_revision: 3, ..HashKvResponse::default() };
        let hash = KvHash { hash: 5, compact_revision: 3, revision: 12 };
        let answer = KvHashCheck { round: 7, revision: 9, hash: Some(hash) };
        assert_eq!((question.hashed_at(), question.answer(Some(&found))), (9, answer));
        let nothing = KvHash { hash: 0, compact_revision: NO_HASH, revision: 12 };
        assert_eq!(question.answer(None).hash, Some(nothing));
    }
}
