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
        // Pairs beyond the limit need only be counted.
        let keep_max = if request.count_only {
            0
        } else if comes_as_found(request) {
            limit
        } else {
            usize::MAX
        };
        let mut count = 0_usize;
        let mut found = Vec::new();
        let early = revision != current;
        for (key, history) in self.in_range(&request.key, &request.range_end) {
            budget.look_at(if early { history.looks() } else { 1 })?;
            let Some(version) = history.seen(revision, current) else { continue };
            count += 1;
            if found.len() < keep_max {
                found.push((key, version));
            }
        }
        let mut more = !request.count_only && count > limit;
        if filters(request) {
            found.retain(|(_, version)| passes(request, version));
            more = found.len() > limit;
        }
        budget.look_at(looks_to_sort(&found, request))?;
        sort(&mut found, request);
        found.truncate(limit);
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

/// The cost of sorting, in looks. Long values may differ only near their ends, so all their bytes count.
fn looks_to_sort(found: &[Found<'_>], request: &RangeRequest) -> usize {
    const COMPARISONS_PER_LOOK: usize = 8;
    const BYTES_PER_COMPARISON: usize = 64;
    let target = request.sort_target();
    if target == SortTarget::Key {
        return 0;
    }
    let bytes: usize = match target {
        SortTarget::Value => found.iter().map(|(_, version)| version.value.len()).sum(),
        _ => 0,
    };
    let rounds = found.len().max(1).ilog2() as usize;
    (found.len() + bytes / BYTES_PER_COMPARISON) * rounds / COMPARISONS_PER_LOOK
}

/// Sorts as requested. Pairs that compare equal keep the order of their keys. A target without an order means
/// ascending.
fn sort(found: &mut [Found<'_>], request: &RangeRequest) {
    let descending = request.sort_order() == SortOrder::Descend;
    let ascending: fn(&Found<'_>, &Found<'_>) -> Ordering = match request.sort_target() {
        SortTarget::Key => {
            // The pairs were found in ascending order of keys.
            if descending {
                found.reverse();
            }
            return;
        }
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
