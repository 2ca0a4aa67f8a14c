//! Reading ranges.

use std::cmp::Ordering;

use bytes::Bytes;
use synod_api::etcdserverpb::{
    RangeRequest, RangeResponse,
    range_request::{SortOrder, SortTarget},
};

use crate::{
    KvError, KvStore,
    budget::Budget,
    history::{History, Seen},
    key::{Key, find},
    range::bounds,
    store::header,
};

type Found<'a> = (&'a Key, Seen<'a>);

impl KvStore {
    /// Answers a range request. `current` is the revision that counts as the newest, which in the middle of a
    /// transaction is that of its own changes. If no client waits for the answer, no pairs are put into it.
    pub(crate) fn range_as_of(
        &self,
        request: &RangeRequest,
        current: i64,
        budget: &mut Budget,
    ) -> Result<RangeResponse, KvError> {
        if request.revision > current {
            return Err(KvError::FutureRevision);
        }
        let revision = if request.revision <= 0 { current } else { request.revision };
        if revision < self.compacted {
            return Err(KvError::Compacted);
        }
        let limit = limit(request);
        let mut chosen = Chosen::new(request, limit);
        let mut count = 0_usize;
        let early = revision != current;
        for (key, history) in self.in_range(&request.key, &request.range_end) {
            budget.look_at(if early { history.looks() } else { 1 })?;
            let Some(version) = history.seen(revision, current) else { continue };
            count += 1;
            // Pairs that are only counted cost no more than that.
            if !request.count_only {
                chosen.offer(key, version);
            }
        }
        let more = chosen.offered > limit;
        budget.look_at(chosen.looks_to_sort())?;
        let mut found = chosen.sorted();
        for (key, version) in &found {
            budget.answer(key, if request.keys_only { &[] } else { &version.value })?;
        }
        if !budget.wanted() {
            found.clear();
        }
        let kvs = found
            .into_iter()
            .map(|(key, version)| {
                let mut pair = version.to_key_value(key);
                if request.keys_only {
                    pair.value = Bytes::new();
                }
                pair
            })
            .collect();
        Ok(RangeResponse {
            header: header(current),
            kvs,
            more,
            count: i64::try_from(count).unwrap_or(i64::MAX),
        })
    }

    /// The keys of a range, in order.
    pub(crate) fn in_range<'a>(
        &'a self,
        key: &'a [u8],
        range_end: &'a [u8],
    ) -> impl Iterator<Item = (&'a Key, &'a History)> {
        // Most reads are of one key, and a lookup costs less than an iterator.
        let (single, range) = if range_end.is_empty() {
            (find(&self.keys, key), None)
        } else {
            (None, bounds(key, range_end).map(|range| self.keys.range::<_, [u8]>(range)))
        };
        single.into_iter().chain(range.into_iter().flatten())
    }
}

/// The largest number of keys that a request wants.
pub(crate) fn limit(request: &RangeRequest) -> usize {
    usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX)
}

/// Whether pairs can be sent in the order in which they are found: by key, and without filters.
pub(crate) fn comes_as_found(request: &RangeRequest) -> bool {
    !sorts(request) && !filters(request)
}

fn filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

fn passes(request: &RangeRequest, version: &Seen<'_>) -> bool {
    let within = |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(version.modified, request.min_mod_revision, request.max_mod_revision)
        && within(version.created, request.min_create_revision, request.max_create_revision)
}

/// Whether the result must be sorted. Pairs are found in ascending order of keys.
fn sorts(request: &RangeRequest) -> bool {
    request.sort_target() != SortTarget::Key || request.sort_order() == SortOrder::Descend
}

/// The first pairs of a range, up to a limit, in the order that is asked for. Never many more are kept than are wanted:
/// who asks for the first key of a queue, as a lock does, does not have all of it copied and sorted.
struct Chosen<'a, 'r> {
    request: &'r RangeRequest,
    limit: usize,
    /// In the order of their keys, but for those that were sorted before.
    found: Vec<Found<'a>>,
    /// Pairs that pass the filters.
    offered: usize,
    /// Bytes of their values, if these are compared.
    value_bytes: usize,
}

/// At least this many pairs are kept between two sorts, however few are wanted.
const KEPT_MIN: usize = 64;

impl<'a, 'r> Chosen<'a, 'r> {
    fn new(request: &'r RangeRequest, limit: usize) -> Chosen<'a, 'r> {
        Chosen { request, limit, found: Vec::new(), offered: 0, value_bytes: 0 }
    }

    /// Offers the next pair, in the order of the keys.
    fn offer(&mut self, key: &'a Key, version: Seen<'a>) {
        if filters(self.request) && !passes(self.request, &version) {
            return;
        }
        self.offered += 1;
        if self.request.sort_target() == SortTarget::Value {
            self.value_bytes += version.value.len();
        }
        if !sorts(self.request) && self.found.len() >= self.limit {
            return;
        }
        self.found.push((key, version));
        if self.found.len() >= self.limit.saturating_mul(2).max(KEPT_MIN) {
            self.cut();
        }
    }

    /// Keeps those that come first. Pairs that are offered later have later keys, so of equal ones they come later.
    fn cut(&mut self) {
        if self.request.sort_target() == SortTarget::Key {
            if sorts(self.request) {
                // The last keys come first.
                self.found.drain(..self.found.len().saturating_sub(self.limit));
            }
        } else {
            sort(&mut self.found, self.request);
        }
        self.found.truncate(self.limit);
    }

    /// The cost of sorting, in looks: all pairs count, as where all are sorted, since replicas of other versions sort
    /// all. Long values may differ only near their ends, so all their bytes count.
    fn looks_to_sort(&self) -> usize {
        const COMPARISONS_PER_LOOK: usize = 8;
        const BYTES_PER_COMPARISON: usize = 64;
        if self.request.sort_target() == SortTarget::Key {
            return 0;
        }
        let rounds = self.offered.max(1).ilog2() as usize;
        (self.offered + self.value_bytes / BYTES_PER_COMPARISON) * rounds / COMPARISONS_PER_LOOK
    }

    fn sorted(mut self) -> Vec<Found<'a>> {
        self.cut();
        if self.request.sort_target() == SortTarget::Key && sorts(self.request) {
            self.found.reverse();
        }
        self.found
    }
}

/// Sorts by anything but the key. Pairs that compare equal keep their order. A target without an order means ascending.
fn sort(found: &mut [Found<'_>], request: &RangeRequest) {
    let descending = request.sort_order() == SortOrder::Descend;
    let ascending: fn(&Found<'_>, &Found<'_>) -> Ordering = match request.sort_target() {
        SortTarget::Key => unreachable!("pairs are found in this order"),
        SortTarget::Version => |(_, a), (_, b)| a.version.cmp(&b.version),
        SortTarget::Create => |(_, a), (_, b)| a.created.cmp(&b.created),
        SortTarget::Mod => |(_, a), (_, b)| a.modified.cmp(&b.modified),
        SortTarget::Value => |(_, a), (_, b)| a.value.cmp(&b.value),
    };
    if descending {
        found.sort_by(|a, b| ascending(b, a));
    } else {
        found.sort_by(ascending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Execute, keys, pairs, range};

    /// Five keys with differing values, versions and revisions.
    fn store() -> KvStore {
        let mut store = KvStore::new();
        // Revisions 2 to 9.
        for (key, value) in
            [("b", "5"), ("a", "9"), ("d", "1"), ("c", "3"), ("a", "7"), ("e", "4"), ("a", "2"), ("d", "8")]
        {
            store.set(key, value);
        }
        store
    }

    fn sorted(sort_target: SortTarget, sort_order: SortOrder) -> RangeRequest {
        RangeRequest { sort_target: sort_target.into(), sort_order: sort_order.into(), ..range("a", "\0") }
    }

    #[test]
    fn ranges() {
        let store = store();
        let read = |key, end| keys(&store.read_at(key, end, 0).unwrap()).join("");
        assert_eq!(read("b", ""), "b");
        assert_eq!(read("bb", ""), "");
        assert_eq!(read("b", "d"), "bc");
        assert_eq!(read("b", "\0"), "bcde");
        assert_eq!(read("\0", "\0"), "abcde");
        assert_eq!(read("d", "b"), "");
        assert_eq!(read("d", "d"), "");
        assert_eq!(store.read_at("", "", 0), Err(KvError::EmptyKey));
    }

    #[test]
    fn earlier_revisions() {
        let store = store();
        let read = |revision| store.read_at("a", "c", revision).unwrap();
        assert_eq!(pairs(&read(1)), []);
        assert_eq!(pairs(&read(2)), [("b", "5")]);
        assert_eq!(pairs(&read(5)), [("a", "9"), ("b", "5")]);
        assert_eq!(pairs(&read(6)), [("a", "7"), ("b", "5")]);
        assert_eq!(read(6).kvs[0].version, 2);
        assert_eq!(pairs(&read(9)), [("a", "2"), ("b", "5")]);
        assert_eq!(pairs(&read(-1)), pairs(&read(0)));
        assert_eq!(store.read_at("a", "", 10), Err(KvError::FutureRevision));
        // The header tells the present revision, not the revision of the read.
        assert_eq!(read(2).header.unwrap().revision, 9);
    }

    #[test]
    fn limits() {
        let store = store();
        let read = |limit| store.read_with(RangeRequest { limit, ..range("a", "\0") }).unwrap();
        for (limit, expected, more) in
            [(0, 5, false), (1, 1, true), (4, 4, true), (5, 5, false), (6, 5, false), (-1, 5, false)]
        {
            let response = read(limit);
            assert_eq!(
                (response.kvs.len(), response.more, response.count),
                (expected, more, 5),
                "limit {limit}"
            );
        }
        assert_eq!(keys(&read(2)), ["a", "b"]);
        // With a sort, the limit cuts the sorted result.
        let response = store
            .read_with(RangeRequest { limit: 2, ..sorted(SortTarget::Value, SortOrder::Descend) })
            .unwrap();
        assert_eq!((keys(&response), response.more, response.count), (vec!["d", "b"], true, 5));
    }

    #[test]
    fn counts_and_keys_only() {
        let store = store();
        let counted =
            store.read_with(RangeRequest { count_only: true, limit: 2, ..range("a", "\0") }).unwrap();
        assert_eq!((counted.kvs.len(), counted.count, counted.more), (0, 5, false));
        let request = RangeRequest { keys_only: true, ..sorted(SortTarget::Value, SortOrder::Ascend) };
        let response = store.read_with(request).unwrap();
        assert_eq!(pairs(&response), [("a", ""), ("c", ""), ("e", ""), ("b", ""), ("d", "")]);
        assert_eq!(response.kvs[0].version, 3);
    }

    #[test]
    fn sorting() {
        let store = store();
        let read = |target, order| keys(&store.read_with(sorted(target, order)).unwrap()).join("");
        use SortOrder::{Ascend, Descend, None};
        assert_eq!(read(SortTarget::Key, None), "abcde");
        assert_eq!(read(SortTarget::Key, Ascend), "abcde");
        assert_eq!(read(SortTarget::Key, Descend), "edcba");
        assert_eq!(read(SortTarget::Version, Ascend), "bceda");
        assert_eq!(read(SortTarget::Version, Descend), "adbce");
        assert_eq!(read(SortTarget::Create, Ascend), "badce");
        assert_eq!(read(SortTarget::Create, Descend), "ecdab");
        assert_eq!(read(SortTarget::Mod, Ascend), "bcead");
        assert_eq!(read(SortTarget::Mod, Descend), "daecb");
        assert_eq!(read(SortTarget::Value, Ascend), "acebd");
        // A target without an order sorts all the same.
        assert_eq!(read(SortTarget::Value, None), "acebd");
        assert_eq!(read(SortTarget::Mod, None), "bcead");
    }

    #[test]
    fn the_first_pairs_are_those_of_the_whole_range_in_order() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut store = KvStore::new();
        for _ in 0..2_000 {
            store.set(&format!("{}", random.u16(0..600)), &format!("{}", random.u8(0..20)));
        }
        let revision = store.revision();
        for _ in 0..400 {
            let request = RangeRequest {
                sort_target: random.i32(0..5),
                sort_order: random.i32(0..3),
                min_mod_revision: if random.bool() { random.i64(0..revision) } else { 0 },
                max_create_revision: if random.bool() { random.i64(1..revision) } else { 0 },
                revision: if random.bool() { random.i64(revision / 2..revision) } else { 0 },
                ..range("\0", "\0")
            };
            let all = store.read_with(request.clone()).unwrap();
            let limit = random.i64(1..200);
            let first = store.read_with(RangeRequest { limit, ..request.clone() }).unwrap();
            let kept = all.kvs.len().min(limit as usize);
            assert_eq!(first.kvs, all.kvs[..kept], "{limit} of {request:?}");
            assert_eq!((first.count, first.more), (all.count, all.kvs.len() > kept));
        }
    }

    #[test]
    fn a_look_for_the_first_of_many_keeps_few() {
        let mut store = KvStore::new();
        for n in 0..10_000 {
            store.set(&format!("{:x}", mixed(n)), "");
        }
        let request = RangeRequest { limit: 1, ..sorted(SortTarget::Create, SortOrder::Ascend) };
        let request = RangeRequest { key: "\0".into(), ..request };
        let mut chosen = Chosen::new(&request, 1);
        let mut most = 0;
        for (key, history) in store.in_range(&request.key, &request.range_end) {
            chosen.offer(key, history.seen(store.revision(), store.revision()).unwrap());
            most = most.max(chosen.found.capacity());
        }
        assert!((1..=2 * KEPT_MIN).contains(&most), "{most}");
        assert_eq!((chosen.offered, chosen.sorted()[0].1.created), (10_000, 2));
    }

    fn mixed(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn revision_filters() {
        let store = store();
        let read = |request: RangeRequest| {
            let response = store.read_with(request).unwrap();
            assert_eq!(response.count, 5);
            (keys(&response).join(""), response.more)
        };
        let base = || range("a", "\0");
        // Last modified: a 8, b 2, c 5, d 9, e 7. Created: a 3, b 2, c 5, d 4, e 7.
        assert_eq!(read(RangeRequest { min_mod_revision: 7, ..base() }), ("ade".into(), false));
        assert_eq!(read(RangeRequest { max_mod_revision: 7, ..base() }), ("bce".into(), false));
        assert_eq!(read(RangeRequest { min_create_revision: 4, ..base() }), ("cde".into(), false));
        assert_eq!(read(RangeRequest { max_create_revision: 4, ..base() }), ("abd".into(), false));
        let both = RangeRequest { min_mod_revision: 5, max_create_revision: 4, limit: 1, ..base() };
        assert_eq!(read(both), ("a".into(), true));
        let all_that_pass = RangeRequest { min_mod_revision: 7, limit: 3, ..base() };
        assert_eq!(read(all_that_pass), ("ade".into(), false));
    }
}
