//! The versions of one key.

use std::{mem, ops::Deref, sync::Arc};

use bytes::Bytes;
use synod_api::mvccpb::KeyValue;

use crate::packed::{self, Packed};

/// One version of a key, or the mark that it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// The store revision that made it.
    pub(crate) modified: i64,
    /// Its place among the changes of that revision, from 0.
    pub(crate) sub: u32,
    /// The store revision at which the key came into being; 0 for a tombstone.
    pub(crate) created: i64,
    /// 1 for the version that created the key; 0 for a tombstone.
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: Bytes,
}

impl Version {
    pub(crate) fn tombstone(modified: i64, sub: u32) -> Version {
        Version { modified, sub, created: 0, version: 0, lease: 0, value: Bytes::new() }
    }
}

/// A version as a reader sees it, whether it is packed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen<'a> {
    pub(crate) modified: i64,
    pub(crate) sub: u32,
    pub(crate) created: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: Value<'a>,
}

/// A value, which is either shared or must be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Shared(&'a Bytes),
    Packed(&'a [u8]),
}

impl Value<'_> {
    pub(crate) fn to_bytes(self) -> Bytes {
        match self {
            Value::Shared(bytes) => bytes.clone(),
            Value::Packed(bytes) => Bytes::copy_from_slice(bytes),
        }
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Value::Shared(bytes) => bytes,
            Value::Packed(bytes) => bytes,
        }
    }
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value<'_> {}

impl<'a> From<&'a Version> for Seen<'a> {
    fn from(version: &'a Version) -> Seen<'a> {
        let Version { modified, sub, created, version, lease, ref value } = *version;
        Seen { modified, sub, created, version, lease, value: Value::Shared(value) }
    }
}

impl Seen<'_> {
    /// A copy that lives on by itself.
    pub(crate) fn to_version(self) -> Version {
        let Seen { modified, sub, created, version, lease, value } = self;
        Version { modified, sub, created, version, lease, value: value.to_bytes() }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    pub(crate) fn to_key_value(self, key: &[u8]) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(key),
            create_revision: self.created,
            mod_revision: self.modified,
            version: self.version,
            value: self.value.to_bytes(),
            lease: self.lease,
        }
    }
}

/// All versions of one key that are kept, oldest first, at least one.
///
/// A history is one pointer, so that the nodes of the map that holds it are small.
#[derive(Clone, Debug)]
pub(crate) struct History(Arc<Versions>);

/// The newest version and a few before it are unpacked; a put reaches beyond them only when they are full.
/// Older versions are packed in chunks of bounded size behind two levels of sharing. So a write to a key
/// whose history a snapshot shares copies a few versions, and at times one chunk and the list of chunks,
/// however long the history is.
#[derive(Clone, Debug)]
struct Versions {
    latest: Version,
    /// The versions right before the newest, oldest first, at most [`RECENT_VERSIONS`].
    recent: Vec<Version>,
    /// Packed older versions. No chunk is empty.
    older: Option<Arc<Vec<Chunk>>>,
}

type Chunk = Arc<Packed>;

const RECENT_VERSIONS: usize = 8;

impl History {
    pub(crate) fn new(first: Version) -> History {
        History(Arc::new(Versions { latest: first, recent: Vec::new(), older: None }))
    }

    /// The newest version, which may be a tombstone.
    pub(crate) fn latest(&self) -> Seen<'_> {
        Seen::from(&self.0.latest)
    }

    /// Takes the lease from the newest version.
    pub(crate) fn drop_lease(&mut self) {
        Arc::make_mut(&mut self.0).latest.lease = 0;
    }

    /// The newest version unless the key is deleted.
    pub(crate) fn live(&self) -> Option<Seen<'_>> {
        Some(self.latest()).filter(|version| !version.is_tombstone())
    }

    /// The version that a read at `revision` sees.
    pub(crate) fn at(&self, revision: i64) -> Option<Seen<'_>> {
        let Versions { latest, recent, older } = &*self.0;
        let seen = if latest.modified <= revision {
            Some(Seen::from(latest))
        } else if recent.first().is_some_and(|first| first.modified <= revision) {
            let upto = recent.partition_point(|version| version.modified <= revision);
            recent[..upto].last().map(Seen::from)
        } else {
            let chunks = older.as_deref()?;
            let after = chunks.partition_point(|chunk| chunk.first().0 <= revision);
            let chunk = &chunks[after.checked_sub(1)?];
            chunk.iter().take_while(|version| version.modified <= revision).last()
        };
        seen.filter(|version| !version.is_tombstone())
    }

    /// The version that a read at `revision` sees, given that `current` is the newest revision.
    pub(crate) fn seen(&self, revision: i64, current: i64) -> Option<Seen<'_>> {
        if revision == current { self.live() } else { self.at(revision) }
    }

    /// What [`History::at`] costs at most, counted in looks at the newest version: it may go through all
    /// versions of a chunk. The bound depends only on the number of versions, which is the same on every
    /// replica; how versions are spread over chunks is not.
    pub(crate) fn looks(&self) -> usize {
        const VERSIONS_PER_LOOK: usize = 16;
        let Versions { recent, older, .. } = &*self.0;
        let mut chunks = older.iter().flat_map(|chunks| chunks.iter());
        let mut count = 1 + recent.len();
        while count < packed::VERSIONS
            && let Some(chunk) = chunks.next()
        {
            count += chunk.len();
        }
        1 + count.min(packed::VERSIONS) / VERSIONS_PER_LOOK
    }

    /// Whether the version that this change made is kept.
    pub(crate) fn contains(&self, modified: i64, sub: u32) -> bool {
        let place = |version: &Version| (version.modified, version.sub);
        let Versions { latest, recent, older } = &*self.0;
        if place(latest) == (modified, sub) || recent.binary_search_by_key(&(modified, sub), place).is_ok() {
            return true;
        }
        older.as_ref().is_some_and(|chunks| {
            let after = chunks.partition_point(|chunk| chunk.first() <= (modified, sub));
            after.checked_sub(1).is_some_and(|at| {
                chunks[at].iter().any(|version| (version.modified, version.sub) == (modified, sub))
            })
        })
    }

    /// The version that this change made, if it is kept.
    pub(crate) fn made_by(&self, modified: i64, sub: u32) -> Option<Seen<'_>> {
        let made = |version: &Seen<'_>| (version.modified, version.sub) == (modified, sub);
        let Versions { latest, recent, older } = &*self.0;
        if let Some(version) = recent.iter().chain([latest]).map(Seen::from).find(made) {
            return Some(version);
        }
        let chunks = older.as_deref()?;
        let after = chunks.partition_point(|chunk| chunk.first() <= (modified, sub));
        chunks[after.checked_sub(1)?].iter().find(made)
    }

    /// Every version, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Seen<'_>> {
        let Versions { latest, recent, older } = &*self.0;
        let older = older.iter().flat_map(|chunks| chunks.iter().flat_map(|chunk| chunk.iter()));
        older.chain(recent.iter().chain([latest]).map(Seen::from))
    }

    /// How many versions are kept.
    pub(crate) fn len(&self) -> usize {
        let Versions { recent, older, .. } = &*self.0;
        1 + recent.len() + older.as_ref().map_or(0, |chunks| chunks.iter().map(|chunk| chunk.len()).sum())
    }

    /// Adds a version, newer than all others.
    pub(crate) fn push(&mut self, version: Version) {
        let versions = Arc::make_mut(&mut self.0);
        let previous = mem::replace(&mut versions.latest, version);
        if versions.recent.len() == RECENT_VERSIONS {
            versions.put_away();
        }
        versions.recent.push(previous);
    }

    /// The versions, oldest first, that a read at or after `revision`, or an event from `revision` on, needs.
    pub(crate) fn needed_from(&self, revision: i64) -> impl Iterator<Item = Seen<'_>> {
        self.iter().skip(self.dispensable(revision))
    }

    /// Drops all versions that [`History::needed_from`] does not give, and calls `dropped` for each. Returns
    /// `false` if none is left, so that the key itself should go.
    pub(crate) fn compact(&mut self, revision: i64, dropped: impl FnMut(Seen<'_>)) -> bool {
        let count = self.dispensable(revision);
        self.iter().take(count).for_each(dropped);
        if count == self.len() {
            return false;
        }
        if count > 0 {
            Arc::make_mut(&mut self.0).drop_oldest(count);
        }
        true
    }

    /// How many of the oldest versions are not needed from `revision` on.
    fn dispensable(&self, revision: i64) -> usize {
        let before = self.iter().take_while(|version| version.modified < revision).count();
        let mut next = self.iter().skip(before.saturating_sub(1));
        if before == 0 {
            return 0;
        }
        let last_before = next.next();
        let replaced_at_revision = next.next().is_some_and(|version| version.modified == revision);
        let still_read = !replaced_at_revision && last_before.is_some_and(|version| !version.is_tombstone());
        before - usize::from(still_read)
    }
}

impl Versions {
    /// Packs the recent versions.
    fn put_away(&mut self) {
        let chunks = Arc::make_mut(self.older.get_or_insert_default());
        if chunks.last().is_none_or(|chunk| chunk.is_full()) {
            chunks.push(Chunk::default());
        }
        let last = chunks.last_mut().expect("there is one now");
        let chunk = Arc::make_mut(last);
        chunk.extend(&self.recent);
        if chunk.is_full() {
            chunk.shrink();
        }
        self.recent.clear();
    }

    fn drop_oldest(&mut self, count: usize) {
        let left = self.drop_chunks(count);
        if left > 0 {
            self.recent.drain(..left);
            self.recent.shrink_to_fit();
        }
    }

    /// Drops up to `count` of the oldest versions that are in chunks. Returns how many are still to be dropped.
    fn drop_chunks(&mut self, mut count: usize) -> usize {
        let Some(shared) = self.older.as_mut() else { return count };
        let chunks = Arc::make_mut(shared);
        let whole = chunks
            .iter()
            .take_while(|chunk| {
                let all = chunk.len() <= count;
                count -= if all { chunk.len() } else { 0 };
                all
            })
            .count();
        chunks.drain(..whole);
        if chunks.is_empty() {
            self.older = None;
            return count;
        }
        if count > 0 {
            chunks[0] = Arc::new(chunks[0].without_first(count));
        }
        chunks.shrink_to_fit();
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(modified: i64, version: i64) -> Version {
        Version { modified, sub: 0, created: 2, version, lease: 0, value: Bytes::from(modified.to_string()) }
    }

    fn long(revisions: impl Iterator<Item = i64>) -> History {
        let mut revisions = revisions.zip(1..);
        let (first, _) = revisions.next().unwrap();
        let mut history = History::new(put(first, 1));
        revisions.for_each(|(revision, version)| history.push(put(revision, version)));
        history
    }

    fn revisions(history: &History) -> Vec<i64> {
        history.iter().map(|version| version.modified).collect()
    }

    #[test]
    fn reads_at_every_revision_across_chunks() {
        // Even revisions only, so that every odd one falls between two versions.
        let history = long((1..=1000).map(|n| 2 * n));
        assert_eq!(history.len(), 1000);
        assert_eq!(history.at(1), None);
        for revision in 2..=2005 {
            let expected = (revision / 2 * 2).min(2000);
            assert_eq!(history.at(revision).map(|v| v.modified), Some(expected), "at {revision}");
            assert_eq!(history.contains(revision, 0), revision % 2 == 0 && revision <= 2000, "{revision}");
            assert!(!history.contains(revision, 1));
        }
    }

    #[test]
    fn compaction_keeps_what_reads_at_or_after_it_see() {
        for revision in (1..=2010).step_by(7) {
            let full = long((1..=1000).map(|n| 2 * n));
            let mut compacted = full.clone();
            let mut dropped = Vec::new();
            assert!(compacted.compact(revision, |version| dropped.push(version.modified)));
            for read in revision..=2010 {
                assert_eq!(compacted.at(read), full.at(read), "compacted at {revision}, read at {read}");
            }
            let (kept, all) = (revisions(&compacted), revisions(&full));
            assert_eq!([dropped, kept.clone()].concat(), all);
            assert!(kept.iter().filter(|kept| **kept <= revision).count() <= 1);
        }
    }

    #[test]
    fn a_tombstone_goes_once_the_compaction_is_past_it() {
        let mut history = long([2, 4].into_iter());
        history.push(Version::tombstone(6, 0));
        assert_eq!(history.at(5).map(|v| v.modified), Some(4));
        assert_eq!(history.at(6), None);
        // A watcher from revision 6 on still needs the event of revision 6.
        let mut at = history.clone();
        assert!(at.compact(6, |_| {}));
        assert_eq!(revisions(&at), [6]);
        assert!(!at.compact(7, |_| {}));
        let mut past = history;
        let mut dropped = 0;
        assert!(!past.compact(7, |_| dropped += 1));
        assert_eq!(dropped, 3);
    }

    #[test]
    fn two_versions_at_one_revision() {
        let mut history = History::new(put(2, 1));
        history.push(put(5, 2));
        history.push(Version::tombstone(5, 1));
        assert_eq!(history.at(5), None);
        assert_eq!(history.at(4).map(|v| v.modified), Some(2));
        assert_eq!(history.needed_from(5).count(), 2);
        assert!(history.compact(5, |_| {}));
        assert_eq!(revisions(&history), [5, 5]);
        assert_eq!(history.needed_from(6).count(), 0);
        assert!(!history.compact(6, |_| {}));
    }

    /// Compares histories as transactions and compactions make them, over several chunks, with a list of all
    /// versions. They are compacted at any revision, and shared with a copy meanwhile.
    #[test]
    fn a_history_is_what_a_list_of_its_versions_is() {
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..150 {
            let (mut all, mut compacted) = (Vec::<Version>::new(), 0);
            let mut history: Option<History> = None;
            let values = [3, 200, 1024, 1025, 3000];
            let value_bytes = random.choice(values).unwrap();
            let mut shared = None;
            for step in 0..random.usize(1..900) {
                let last = all.last().cloned().unwrap_or(Version::tombstone(compacted.max(1), 0));
                let again = !all.is_empty() && last.modified > compacted && random.u8(0..6) == 0;
                let (modified, sub) = if again {
                    (last.modified, last.sub + 1)
                } else {
                    (last.modified + random.i64(1..4), random.u32(0..3))
                };
                let version = if last.version > 0 && random.u8(0..9) == 0 {
                    Version::tombstone(modified, sub)
                } else {
                    let created = if last.version == 0 { modified } else { last.created };
                    let lease = if random.u8(0..20) == 0 { random.i64(..) } else { 0 };
                    let value = vec![step as u8; random.usize(0..=value_bytes)].into();
                    Version { modified, sub, created, version: last.version + 1, lease, value }
                };
                match &mut history {
                    None => history = Some(History::new(version.clone())),
                    Some(history) => history.push(version.clone()),
                }
                all.push(version);
                let kept = history.as_mut().expect("it was just made");
                if random.u8(0..60) == 0 {
                    shared = Some((kept.clone(), all.clone()));
                }
                if random.u8(0..40) == 0 {
                    compacted = random.i64(compacted..=compacted.max(all.last().unwrap().modified + 1));
                    let before = all.iter().filter(|version| version.modified < compacted).count();
                    let replaced = all.get(before).is_some_and(|next| next.modified == compacted);
                    let read = before > 0 && !replaced && all[before - 1].version > 0;
                    let gone: Vec<Version> = all.drain(..before - usize::from(read)).collect();
                    let mut dropped = 0;
                    let remains = kept.compact(compacted, |version| {
                        assert_eq!(version, Seen::from(&gone[dropped]), "round {round}");
                        dropped += 1;
                    });
                    assert_eq!((dropped, remains), (gone.len(), !all.is_empty()), "round {round}");
                    if !remains {
                        history = None;
                        continue;
                    }
                }
                let kept = history.as_ref().expect("some remain");
                assert_eq!(kept.len(), all.len());
                if step % 16 == 0 {
                    same(kept, &all, compacted);
                }
            }
            if let Some(history) = &history {
                same(history, &all, compacted);
            }
            if let Some((copy, all)) = &shared {
                same(copy, all, 0);
            }
        }
    }

    fn same(history: &History, all: &[Version], compacted: i64) {
        // A history that came with a snapshot has other chunks, and must cost the same.
        let mut restored = History::new(all[0].clone());
        all[1..].iter().for_each(|version| restored.push(version.clone()));
        assert_eq!(history.looks(), restored.looks());
        assert!(history.iter().eq(all.iter().map(Seen::from)));
        assert_eq!((history.len(), history.latest()), (all.len(), Seen::from(all.last().unwrap())));
        for revision in compacted.max(all[0].modified - 1)..=all.last().unwrap().modified + 1 {
            let expected = all.iter().rfind(|version| version.modified <= revision).map(Seen::from);
            assert_eq!(
                history.at(revision),
                expected.filter(|version| !version.is_tombstone()),
                "{revision}"
            );
        }
        for version in all {
            assert!(history.contains(version.modified, version.sub));
            let other = (version.modified, version.sub + 1);
            let known = all.iter().any(|version| (version.modified, version.sub) == other);
            assert_eq!(history.contains(other.0, other.1), known);
        }
    }

    #[test]
    fn a_copy_is_not_touched_by_later_writes() {
        let mut history = long(2..=700);
        let frozen = history.clone();
        history.push(put(701, 700));
        history.compact(600, |_| {});
        assert_eq!(revisions(&frozen), (2..=700).collect::<Vec<_>>());
        assert_eq!(history.len(), 102);
    }
}
