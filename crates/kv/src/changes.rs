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
        let first =
            self.chunks.partition_point(|chunk| chunk.back().is_none_or(|last| last.revision < revision));
        self.chunks
            .range(first..)
            .flat_map(|chunk| chunk.iter())
            .skip_while(move |change| change.revision < revision)
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
