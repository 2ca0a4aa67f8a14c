//! The versions that etcd would hold, in the order of their revisions.
//!
//! Above the last compaction the list of changes has that order. Below it there is one version of a key at most, which
//! only its key leads to, so these are looked for window by window: each walk over the keys finds the next ones. A
//! window is as large as an eighth of the keys, so there are nine walks at most, and the memory is that of an eighth of
//! the keys.

use std::{collections::BinaryHeap, vec};

use crate::{
    KvStore,
    history::{History, Seen},
    key::{Key, find},
};

/// Versions in a window at least.
const WINDOW_MIN: usize = 1 << 16;
/// A window has at least this part of the keys.
const WINDOW_SHARE: usize = 8;

/// A version's place: its revision, and its number among the changes of that revision.
type Place = (i64, u32);

/// How far a walk over the versions of a store is. The store must not change meanwhile.
#[derive(Debug)]
pub(crate) struct Revisions {
    /// All versions before it have been visited, or are in the window.
    next: Place,
    /// The next versions that are not above the last compaction.
    window: vec::IntoIter<(Place, Key)>,
    /// Whether there are no such versions behind the window.
    compacted_done: bool,
    /// The last revision.
    through: i64,
}

impl Revisions {
    /// Begins a walk over all versions through this revision.
    pub(crate) fn through(revision: i64) -> Revisions {
        let (window, compacted_done) = Default::default();
        Revisions { next: (0, 0), window, compacted_done, through: revision }
    }

    /// Visits the next versions until `visit` returns `false`. Returns whether the walk is over.
    pub(crate) fn walk(
        &mut self,
        store: &KvStore,
        mut visit: impl FnMut(&Key, &History, Seen<'_>) -> bool,
    ) -> bool {
        loop {
            for (place, key) in self.window.by_ref() {
                if !visited(store, place, &key, &mut visit) {
                    return false;
                }
            }
            if self.compacted_done {
                break;
            }
            self.look(store);
        }
        for change in store.changes.starting_at(self.next) {
            let place = (change.revision, change.sub);
            if change.revision > self.through {
                break;
            }
            self.next = (change.revision, change.sub + 1);
            if !visited(store, place, &change.key, &mut visit) {
                return false;
            }
        }
        true
    }

    /// Looks for the next window.
    fn look(&mut self, store: &KvStore) {
        let last = store.compacted.min(self.through);
        let most = WINDOW_MIN.max(store.keys.len() / WINDOW_SHARE);
        let mut found: BinaryHeap<(Place, Key)> = BinaryHeap::new();
        let keys = if store.compacted < 0 { None } else { Some(store.keys.iter()) };
        for (key, history) in keys.into_iter().flatten() {
            let needed = history.needed_from(store.compacted);
            let Some(version) = needed.take_while(|version| version.modified <= store.compacted).last()
            else {
                continue;
            };
            let place = (version.modified, version.sub);
            if place < self.next || version.modified > last {
                continue;
            }
            if found.len() == most {
                if found.peek().is_some_and(|(latest, _)| *latest < place) {
                    continue;
                }
                found.pop();
            }
            found.push((place, key.clone()));
        }
        self.compacted_done = found.len() < most;
        let window = found.into_sorted_vec();
        self.next = match window.last() {
            Some(&((revision, sub), _)) if !self.compacted_done => (revision, sub + 1),
            _ => (store.compacted + 1, 0),
        };
        self.window = window.into_iter();
    }
}

fn visited(
    store: &KvStore,
    (revision, sub): Place,
    key: &Key,
    visit: &mut impl FnMut(&Key, &History, Seen<'_>) -> bool,
) -> bool {
    let history = find(&store.keys, key).map(|(_, history)| history);
    let version = history.and_then(|history| Some((history, history.made_by(revision, sub)?)));
    let (history, version) = version.expect("a version is kept until a compaction passes it");
    visit(key, history, version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Execute;

    fn places(store: &KvStore, through: i64, turn: usize) -> Vec<Place> {
        let (mut revisions, mut places) = (Revisions::through(through), Vec::new());
        while !revisions.walk(store, |_, _, version| {
            places.push((version.modified, version.sub));
            places.len() % turn != 0
        }) {}
        places
    }

    #[test]
    fn versions_come_in_order_whatever_is_compacted() {
        let mut store = KvStore::new();
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..3_000 {
            let key = format!("{}", random.u16(0..400));
            if random.u8(0..5) == 0 {
                store.del(&key, &format!("{key}1"));
            } else {
                store.set(&key, "value");
            }
        }
        for compacted in [-1, 700, 2_000, store.revision()] {
            if compacted > 0 {
                store.compact_at(compacted, random.bool()).unwrap();
            }
            for through in [store.revision(), store.revision() - 100, compacted] {
                let mut expected: Vec<Place> = Vec::new();
                for history in store.keys.values() {
                    let needed: Vec<_> = history.needed_from(store.compacted).collect();
                    let (old, new): (Vec<_>, Vec<_>) =
                        needed.into_iter().partition(|version| version.modified <= store.compacted);
                    let kept = old.last().into_iter().chain(&new);
                    expected.extend(kept.map(|version| (version.modified, version.sub)));
                }
                expected.retain(|place| place.0 <= through);
                expected.sort_unstable();
                assert_eq!(places(&store, through, 1_000), expected, "{compacted} {through}");
                assert_eq!(places(&store, through, 7), expected);
            }
        }
    }

    #[test]
    fn a_window_does_not_hold_all_keys() {
        let mut store = KvStore::new();
        let keys = 2 * WINDOW_MIN + 10;
        for key in 0..keys {
            store.set(&format!("{}", (key * 7_919) % keys), "");
        }
        store.compact_at(store.revision(), false).unwrap();
        let mut revisions = Revisions::through(store.revision());
        let mut last = 0;
        let (mut count, mut most) = (0, 0);
        while !revisions.walk(&store, |_, _, version| {
            assert!(version.modified > last);
            last = version.modified;
            count += 1;
            false
        }) {
            most = most.max(revisions.window.len());
        }
        assert_eq!(count, keys);
        assert!(most < WINDOW_MIN, "{most}");
    }
}
