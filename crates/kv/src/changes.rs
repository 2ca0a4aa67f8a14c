//! The list of changes: which key changed at which revision.

use std::{collections::VecDeque, sync::Arc};

use crate::key::Key;

/// A change at `revision`; `sub` is its place among the changes of that revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) sub: u32,
    pub(crate) key: Key,
}

/// All changes since the last compaction, in order.
///
/// With it a compaction looks only at keys that changed since the compaction before, not at all keys. The
/// changes of a revision are also its events. The list consists of chunks, because a single buffer that grows
/// would be copied as a whole between two commands. Changes are taken from the front of a chunk, a few at a
/// time, without moving the rest. A clone shares the chunks, of which only the first and the last ever change.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    chunks: VecDeque<Arc<VecDeque<Change>>>,
}

const CHUNK_CHANGES: usize = 1024;

/// Most buckets of a [`Sorter`]. A damaged snapshot may announce any number of changes.
const BUCKETS_MAX: usize = 1 << 14;

/// Brings changes that come in any order into the order of a list. Each goes into the bucket of its revision, and a
/// bucket becomes a chunk of the list: sorting millions of changes in one piece would take longer, and twice the
/// memory.
#[derive(Debug)]
pub(crate) struct Sorter {
    first: i64,
    /// Revisions of a bucket.
    width: i64,
    buckets: Vec<Vec<Change>>,
}

impl Sorter {
    /// For about `count` changes of the revisions from `first` through `last`.
    pub(crate) fn new(first: i64, last: i64, count: u64) -> Sorter {
        let buckets = i64::try_from(count / CHUNK_CHANGES as u64 + 1).unwrap_or(i64::MAX);
        let buckets = buckets.min(BUCKETS_MAX as i64);
        let width = ((last - first).max(0) / buckets).saturating_add(1);
        Sorter { first, width, buckets: Vec::new() }
    }

    /// Adds a change at or after the first revision.
    pub(crate) fn push(&mut self, change: Change) {
        let bucket = usize::try_from((change.revision - self.first) / self.width).unwrap_or(0);
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, Vec::new);
        }
        self.buckets[bucket].push(change);
    }

    /// The list; `None` if two changes have the same place in the same revision.
    pub(crate) fn finish(self) -> Option<ChangeLog> {
        let place = |change: &Change| (change.revision, change.sub);
        let mut chunks = VecDeque::new();
        for mut bucket in self.buckets {
            bucket.sort_unstable_by_key(place);
            if bucket.windows(2).any(|pair| place(&pair[0]) == place(&pair[1])) {
                return None;
            }
            // The changes of one revision are in one bucket, however many they are.
            while bucket.len() > CHUNK_CHANGES {
                let rest = bucket.split_off(CHUNK_CHANGES);
                chunks.push_back(Arc::new(std::mem::replace(&mut bucket, rest).into()));
            }
            if !bucket.is_empty() {
                bucket.shrink_to_fit();
                chunks.push_back(Arc::new(bucket.into()));
            }
        }
        Some(ChangeLog { chunks })
    }
}

impl ChangeLog {
    /// Adds a change, later than all others.
    pub(crate) fn push(&mut self, change: Change) {
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < CHUNK_CHANGES => Arc::make_mut(chunk).push_back(change),
            last => {
                // A small store should not pay for a whole chunk.
                let capacity = if last.is_some() { CHUNK_CHANGES } else { 0 };
                let mut chunk = VecDeque::with_capacity(capacity);
                chunk.push_back(change);
                self.chunks.push_back(Arc::new(chunk));
            }
        }
    }

    /// Removes all changes from `revision` on.
    pub(crate) fn drop_from(&mut self, revision: i64) {
        while let Some(chunk) = self.chunks.back_mut().map(Arc::make_mut) {
            chunk.truncate(chunk.partition_point(|change| change.revision < revision));
            if !chunk.is_empty() {
                break;
            }
            self.chunks.pop_back();
        }
    }

    /// Removes and returns all changes below `revision`.
    pub(crate) fn take_before(&mut self, revision: i64) -> Vec<Change> {
        let mut taken = Vec::new();
        while let Some(chunk) = self.chunks.front_mut().map(Arc::make_mut) {
            let count = chunk.partition_point(|change| change.revision < revision);
            if count < chunk.len() {
                taken.extend(chunk.drain(..count));
                break;
            }
            taken.extend(chunk.drain(..));
            self.chunks.pop_front();
        }
        taken
    }

    /// All changes at or above `revision`, in order.
    pub(crate) fn from(&self, revision: i64) -> impl Iterator<Item = &Change> {
        self.starting_at((revision, 0))
    }

    /// All changes from the one with this revision and `sub` on, in order.
    pub(crate) fn starting_at(&self, place: (i64, u32)) -> impl Iterator<Item = &Change> {
        let is_before = move |change: &Change| (change.revision, change.sub) < place;
        let first = self.chunks.partition_point(|chunk| chunk.back().is_none_or(is_before));
        self.chunks.range(first..).flat_map(|chunk| chunk.iter()).skip_while(move |change| is_before(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(revisions: impl Iterator<Item = i64>) -> ChangeLog {
        let mut log = ChangeLog::default();
        for revision in revisions {
            for sub in 0..3 {
                log.push(Change { revision, sub, key: format!("{revision}.{sub}").as_bytes().into() });
            }
        }
        log
    }

    fn revisions<'a>(changes: impl Iterator<Item = &'a Change>) -> Vec<i64> {
        changes.filter(|change| change.sub == 0).map(|change| change.revision).collect()
    }

    #[test]
    fn changes_in_any_order_become_a_list() {
        let mut random = fastrand::Rng::with_seed(1);
        for (first, last, of_revision) in [(0, 0, 0), (5, 5, 3), (5, 5, 3_000), (1, 5_000, 1), (7, 3_000, 3)]
        {
            let change = |revision, sub| Change { revision, sub, key: b"k"[..].into() };
            let mut all: Vec<Change> = (first..=last)
                .flat_map(|revision| (0..of_revision).map(move |sub| change(revision, sub)))
                .collect();
            let expected = all.clone();
            random.shuffle(&mut all);
            for announced in [0, all.len() as u64, u64::MAX] {
                let mut sorter = Sorter::new(first, last, announced);
                all.iter().cloned().for_each(|change| sorter.push(change));
                let log = sorter.finish().unwrap();
                assert!(log.from(0).eq(&expected));
                assert!(log.chunks.iter().all(|chunk| (1..=CHUNK_CHANGES).contains(&chunk.len())));
                let middle = (first + last) / 2;
                assert!(log.from(middle).eq(expected.iter().filter(|change| change.revision >= middle)));
                let place = (middle, of_revision / 2);
                let is_after = |change: &&Change| (change.revision, change.sub) >= place;
                assert!(log.starting_at(place).eq(expected.iter().filter(is_after)));
            }
            if let Some(one) = all.pop() {
                let mut sorter = Sorter::new(first, last, 2);
                [one.clone(), one].into_iter().for_each(|change| sorter.push(change));
                assert!(sorter.finish().is_none(), "one comes twice");
            }
        }
    }

    #[test]
    fn splits_at_any_revision() {
        for cut in [0, 1, 2, 341, 342, 343, 1000, 1999, 2000, 2001, 5000] {
            let mut log = log(1..=2000);
            let before = (1..cut.min(2001)).collect::<Vec<_>>();
            let after = (cut.max(1)..=2000).collect::<Vec<_>>();
            assert_eq!(revisions(log.from(cut)), after, "from {cut}");
            assert_eq!(revisions(log.take_before(cut).iter()), before, "before {cut}");
            assert_eq!(revisions(log.from(0)), after, "left after taking before {cut}");
            let mut dropped = self::log(1..=2000);
            dropped.drop_from(cut);
            assert_eq!(revisions(dropped.from(0)), before, "left after dropping from {cut}");
            assert_eq!(revisions(log.take_before(i64::MAX).iter()), after);
            assert_eq!(revisions(log.from(0)), []);
        }
    }
}
