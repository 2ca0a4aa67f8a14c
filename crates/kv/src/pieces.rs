//! Answers that are too large to be made between two commands.
//!
//! What a query finds on its first page is answered at once. Beyond that the answer is made from a view of
//! the store, which shares everything with the living store until that changes it. Another thread makes the
//! answer, piece by piece, while commands are executed. A range in the order of its keys is never in memory
//! as a whole: it is walked once to find out how long the answer is, and again to send it.

use std::{mem, sync::Arc, vec};

use bytes::Bytes;
use prost::{
    Message,
    encoding::{encode_varint, encoded_len_varint},
};
use synod_api::{
    etcdserverpb::{RangeRequest, RangeResponse},
    mvccpb::KeyValue,
    synod::v1::{KvAnswer, KvQuery, kv_answer::Answer, kv_query::Query},
};
use synod_replica::Answer as Answered;

use crate::{
    KvError, KvStore,
    auth::Holders,
    budget::Budget,
    changes::ChangeLog,
    etcd_db::EtcdDb,
    history::Seen,
    lease::Leases,
    machine::encoded,
    read::{comes_as_found, limit},
    store::header,
};

/// Target size of a piece. A larger value comes as a piece of its own.
pub(crate) const PIECE_BYTES: usize = 32 << 10;

/// Keys that are looked at for a piece if none of them is to be sent.
const PIECE_LOOKS: usize = 1 << 15;

impl KvStore {
    /// Answers a query at once if the answer is small, and in pieces if it is not.
    pub(crate) fn answer_in_pieces(&self, query: KvQuery) -> Answered {
        self.show_view();
        match self.query_within(&query, Budget::page()) {
            Err(KvError::AnswerTooLarge(_) | KvError::TooManyKeys) => {}
            small => return Answered::Whole(encoded(small)),
        }
        Answered::Pieces(match query.query {
            Some(Query::EtcdSnapshot(request)) => {
                let view = KvStore { changes: self.changes.clone(), ..self.view_with_leases() };
                Box::new(EtcdDb::new(view, request))
            }
            Some(Query::Range(request)) if comes_as_found(&request) => {
                Box::new(Walk::new(self.view(), request))
            }
            Some(Query::Range(request)) => Box::new(Sorted::new(self.view(), request)),
            _ => {
                let view = match query.query {
                    Some(Query::HashKv(_)) => self.view_with_changes(),
                    _ => self.view_with_leases(),
                };
                Box::new(std::iter::once_with(move || encoded(view.query(&query))))
            }
        })
    }

    /// A view that knows the history. Making it copies a reference to each thousandth change.
    pub(crate) fn view_with_changes(&self) -> KvStore {
        KvStore { changes: self.changes.clone(), ..self.view() }
    }

    /// A view that knows the leases. What is shared must be copied before it changes, and while leases are renewed that
    /// is much, so a view that needs none has none.
    pub(crate) fn view_with_leases(&self) -> KvStore {
        KvStore { leases: self.leases.clone(), ..self.view() }
    }

    /// A read-only copy of the keys as they are now. Making it takes no time: everything is shared until it is changed.
    pub(crate) fn view(&self) -> KvStore {
        KvStore {
            keys: self.keys.clone(),
            alarms: self.alarms.clone(),
            changes: ChangeLog::default(),
            leases: Leases::default(),
            auth: Arc::clone(&self.auth),
            holders: Holders::default(),
            feed: None,
            comparer: None,
            auth_feed: None,
            ..*self
        }
    }
}

/// Makes the first piece: everything but the pairs.
fn head(revision: i64, count: usize, more: bool, rest_bytes: usize) -> Bytes {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let answer = Answer::Range(RangeResponse { header: header(revision), kvs: Vec::new(), more, count });
    KvAnswer { answer: Some(answer), rest_bytes: rest_bytes as u64 }.encode_to_vec().into()
}

/// Makes a piece with these fields of a response.
fn piece(fields: &[u8]) -> Bytes {
    const RANGE: u8 = 1;
    let mut piece = Vec::with_capacity(fields.len() + 8);
    piece.push(RANGE << 3 | LENGTH_DELIMITED);
    encode_varint(fields.len() as u64, &mut piece);
    piece.extend_from_slice(fields);
    piece.into()
}

/// A pair as it is encoded in a response and in etcd's database. It is encoded by hand: making a message of each of a
/// million pairs costs several times as much as copying their bytes.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// The pair's numbers before the value, each with the number of its field.
    revisions: [(u8, i64); 3],
    lease: i64,
}

/// Field numbers of a response and of a pair.
const KVS: u8 = 2;
const KEY: u8 = 1;
const VALUE: u8 = 5;
const LEASE: u8 = 6;
/// Wire types.
const VARINT: u8 = 0;
const LENGTH_DELIMITED: u8 = 2;

impl<'a> Pair<'a> {
    fn new(key: &'a [u8], version: &'a Seen<'a>, keys_only: bool) -> Pair<'a> {
        let Seen { modified, created, version: number, lease, ref value, .. } = *version;
        let revisions = [(2, created), (3, modified), (4, number)];
        Pair { key, value: if keys_only { &[] } else { value }, revisions, lease }
    }

    /// As etcd's database has it: nothing of a tombstone but the key.
    pub(crate) fn stored(key: &'a [u8], version: &'a Seen<'a>) -> Pair<'a> {
        let pair = Pair::new(key, version, false);
        if version.is_tombstone() { Pair { revisions: [(2, 0); 3], ..pair } } else { pair }
    }

    pub(crate) fn len(&self) -> usize {
        let bytes = |field: &[u8]| match field.len() {
            0 => 0,
            len => 1 + prost::length_delimiter_len(len) + len,
        };
        let number = |number: i64| match number {
            0 => 0,
            number => 1 + encoded_len_varint(number as u64),
        };
        let revisions = self.revisions.iter().map(|&(_, revision)| number(revision));
        bytes(self.key) + revisions.sum::<usize>() + bytes(self.value) + number(self.lease)
    }

    /// The bytes that the pair takes in a response.
    fn len_in_response(&self) -> usize {
        let len = self.len();
        1 + prost::length_delimiter_len(len) + len
    }

    /// Puts the pair into a response.
    fn put_in_response(&self, out: &mut Vec<u8>) {
        out.push(KVS << 3 | LENGTH_DELIMITED);
        encode_varint(self.len() as u64, out);
        self.put(out);
    }

    /// Puts the fields in the order of their numbers.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let bytes = |field: u8, bytes: &[u8], out: &mut Vec<u8>| {
            if !bytes.is_empty() {
                out.push(field << 3 | LENGTH_DELIMITED);
                encode_varint(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
        };
        let number = |field: u8, number: i64, out: &mut Vec<u8>| {
            if number != 0 {
                out.push(field << 3 | VARINT);
                encode_varint(number as u64, out);
            }
        };
        bytes(KEY, self.key, out);
        self.revisions.iter().for_each(|&(field, revision)| number(field, revision, out));
        bytes(VALUE, self.value, out);
        number(LEASE, self.lease, out);
    }
}

/// A walk over a range in the order of its keys.
struct Walk {
    view: KvStore,
    request: RangeRequest,
    /// The first key that the walk has not looked at.
    next: Bytes,
    stage: Stage,
}

enum Stage {
    /// The walk counts the pairs and their bytes.
    Counting { count: usize, bytes: usize },
    /// The walk sends the pairs, of which `left` are still to come.
    Sending { left: usize },
}

impl Walk {
    fn new(view: KvStore, request: RangeRequest) -> Walk {
        let next = request.key.clone();
        Walk { view, request, next, stage: Stage::Counting { count: 0, bytes: 0 } }
    }

    /// Goes on from the next key, over a bounded number of keys, while `take` accepts the pairs. Returns
    /// whether the range has ended.
    fn walk(&mut self, mut take: impl FnMut(Pair<'_>) -> bool) -> bool {
        let Walk { view, request, next, .. } = self;
        let revision = if request.revision <= 0 { view.revision } else { request.revision };
        let from = mem::take(next);
        for (place, (key, history)) in view.in_range(&from, &request.range_end).enumerate() {
            let version = history.seen(revision, view.revision);
            let pair = version.as_ref().map(|version| Pair::new(key, version, request.keys_only));
            if place == PIECE_LOOKS || pair.is_some_and(|pair| !take(pair)) {
                *next = Bytes::copy_from_slice(key);
                return false;
            }
        }
        true
    }
}

impl Iterator for Walk {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let limit = limit(&self.request);
        match self.stage {
            Stage::Counting { mut count, mut bytes } => {
                let counts_only = self.request.count_only;
                let ended = self.walk(|pair| {
                    count += 1;
                    if count <= limit && !counts_only {
                        bytes += pair.len_in_response();
                    }
                    true
                });
                if !ended {
                    self.stage = Stage::Counting { count, bytes };
                    return Some(Bytes::new());
                }
                let left = if counts_only { 0 } else { count.min(limit) };
                self.next = self.request.key.clone();
                self.stage = Stage::Sending { left };
                Some(head(self.view.revision, count, !counts_only && count > limit, bytes))
            }
            Stage::Sending { left: 0 } => None,
            Stage::Sending { left } => {
                let (mut fields, mut count) = (Vec::with_capacity(PIECE_BYTES), 0);
                self.walk(|pair| {
                    let fits =
                        count < left && (count == 0 || fields.len() + pair.len_in_response() <= PIECE_BYTES);
                    if fits {
                        pair.put_in_response(&mut fields);
                        count += 1;
                    }
                    fits
                });
                self.stage = Stage::Sending { left: left - count };
                Some(if fields.is_empty() { Bytes::new() } else { piece(&fields) })
            }
        }
    }
}

/// A range in another order, or with a filter: all its pairs are found before the first is sent.
struct Sorted {
    found: Found,
}

enum Found {
    NotYet(Box<KvStore>, RangeRequest),
    Sending(vec::IntoIter<KeyValue>),
}

impl Sorted {
    fn new(view: KvStore, request: RangeRequest) -> Sorted {
        Sorted { found: Found::NotYet(Box::new(view), request) }
    }
}

impl Iterator for Sorted {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        match &mut self.found {
            Found::NotYet(view, request) => {
                let mut budget = Budget::unbounded();
                let found = match view.range_as_of(request, view.revision, &mut budget) {
                    Ok(found) => found,
                    Err(error) => {
                        self.found = Found::Sending(Vec::new().into_iter());
                        return Some(encoded(Err(error)));
                    }
                };
                let bytes = found.kvs.iter().map(|pair| of(pair).len_in_response()).sum();
                let RangeResponse { count, more, kvs, .. } = found;
                let first = head(view.revision, usize::try_from(count).unwrap_or(usize::MAX), more, bytes);
                // Cloning the pairs copies no value: they share the store's.
                self.found = Found::Sending(kvs.into_iter());
                Some(first)
            }
            Found::Sending(rest) => {
                let mut fields = Vec::with_capacity(PIECE_BYTES);
                while let Some(pair) = rest.as_slice().first().map(of)
                    && (fields.is_empty() || fields.len() + pair.len_in_response() <= PIECE_BYTES)
                {
                    pair.put_in_response(&mut fields);
                    rest.next();
                }
                (!fields.is_empty()).then(|| piece(&fields))
            }
        }
    }
}

fn of(pair: &KeyValue) -> Pair<'_> {
    let KeyValue { key, create_revision, mod_revision, version, value, lease } = pair;
    let revisions = [(2, *create_revision), (3, *mod_revision), (4, *version)];
    Pair { key, value, revisions, lease: *lease }
}

#[cfg(test)]
mod tests {
    use synod_api::etcdserverpb::{
        Compare, HashKvRequest, TxnRequest,
        compare::{CompareTarget, TargetUnion},
    };
    use synod_replica::StateMachine;

    use super::*;
    use crate::testing::{Execute, all, op_range, range};

    /// A store in which some keys are deleted, some are long and some have large values.
    fn store() -> KvStore {
        let mut store = KvStore::new();
        for n in 0..40_000 {
            let value = if n % 10_000 == 0 { "v".repeat(100_000) } else { format!("value {}", n % 97) };
            store.set(&format!("{n:05}{}", "k".repeat(n % 40)), &value);
        }
        store.del("1", "15");
        store
    }

    fn pieces(store: &KvStore, query: Query) -> Vec<Bytes> {
        let query = KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec().into();
        match store.answer(&query) {
            Answered::Pieces(pieces) => pieces.collect(),
            _ => panic!("{query:?} is answered at once"),
        }
    }

    fn joined(pieces: Vec<Bytes>) -> KvAnswer {
        KvAnswer::decode(&pieces.concat()[..]).unwrap()
    }

    #[test]
    fn pieces_one_after_another_are_the_answer() {
        let store = store();
        let all_keys = || range("0", "\0");
        let requests = [
            all_keys(),
            RangeRequest { limit: 20_000, ..all_keys() },
            RangeRequest { limit: 1, ..all_keys() },
            RangeRequest { keys_only: true, ..all_keys() },
            RangeRequest { count_only: true, ..all_keys() },
            RangeRequest { revision: 3_000, ..all_keys() },
            RangeRequest { min_mod_revision: 20_000, ..all_keys() },
            RangeRequest { sort_order: 2, sort_target: 4, ..all_keys() },
            RangeRequest { sort_target: 3, ..all_keys() },
            RangeRequest { sort_target: 4, limit: 20_000, ..all_keys() },
            RangeRequest { sort_order: 2, limit: 10, ..all_keys() },
            range("00000", ""),
            range("1", "15"),
        ];
        for request in requests {
            let pieces = pieces(&store, Query::Range(request.clone()));
            let (mut rest, mut told) = (0, 0);
            for (place, piece) in pieces.iter().enumerate() {
                let KvAnswer { answer, rest_bytes } = KvAnswer::decode(piece.clone()).unwrap();
                match answer {
                    None => continue,
                    Some(Answer::Range(range)) if range.header.is_some() => told = rest_bytes,
                    Some(Answer::Range(range)) => {
                        rest += range.encoded_len();
                        let single = range.kvs.len() == 1;
                        assert!(
                            single || range.encoded_len() <= 2 * PIECE_BYTES,
                            "piece {place} of {request:?}"
                        );
                    }
                    Some(other) => panic!("{other:?}"),
                }
            }
            assert_eq!(told, rest as u64, "{request:?}");
            let whole = store
                .query(&KvQuery { query: Some(Query::Range(request.clone())), ..KvQuery::default() })
                .unwrap();
            assert_eq!(joined(pieces).answer, Some(whole), "{request:?}");
        }
    }

    /// A run of deleted keys longer than one piece looks at is crossed, at any limit and revision, also if
    /// that revision is compacted meanwhile.
    #[test]
    fn pieces_come_across_what_is_gone() {
        let mut store = KvStore::new();
        let keys = 2 * PIECE_LOOKS + 5_000;
        for n in 0..keys {
            store.set(&format!("{n:06}"), &format!("{}", n % 1_009));
        }
        let full = store.revision();
        let lives = [0, 7, PIECE_LOOKS - 1, PIECE_LOOKS, PIECE_LOOKS + 1, 2 * PIECE_LOOKS, keys - 1];
        for two in lives.windows(2) {
            store.del(&format!("{:06}", two[0] + 1), &format!("{:06}", two[1]));
        }
        let gone = store.revision();
        let mut random = fastrand::Rng::with_seed(9);
        for round in 0..120 {
            let from = [0, 1, 8, PIECE_LOOKS, keys - 1, random.usize(..keys)][random.usize(..6)];
            let to = format!("{:06}", random.usize(from..keys) + 1);
            let ends = ["\0", &to, ""];
            let request = RangeRequest {
                revision: [0, full, full + 1, gone - 1, gone][random.usize(..5)],
                limit: [0, 1, 6, 7, 8, 3_000, keys as i64][random.usize(..7)],
                keys_only: random.bool(),
                count_only: random.u8(0..6) == 0,
                sort_order: [0, 1, 2][random.usize(..3)],
                sort_target: [0, 0, 0, 1, 2, 3, 4][random.usize(..7)],
                min_mod_revision: [0, 0, 0, 40_000][random.usize(..4)],
                max_create_revision: [0, 0, 0, 60_000][random.usize(..4)],
                ..range(&format!("{from:06}"), ends[random.usize(..3)])
            };
            let whole = store
                .query(&KvQuery { query: Some(Query::Range(request.clone())), ..KvQuery::default() })
                .unwrap();
            let query = KvQuery { query: Some(Query::Range(request.clone())), ..KvQuery::default() }
                .encode_to_vec()
                .into();
            let Answered::Pieces(mut pieces) = store.answer(&query) else { continue };
            let mut made: Vec<Bytes> = pieces.by_ref().take(random.usize(..4)).collect();
            if round == 60 {
                store.compact_at(full, true).unwrap();
                store.set("000000", "new");
            }
            made.extend(pieces);
            assert_eq!(joined(made).answer, Some(whole), "{request:?}");
        }
    }

    #[test]
    fn what_is_small_is_answered_at_once() {
        let store = store();
        let small = |query| {
            let query = KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec().into();
            matches!(store.answer(&query), Answered::Whole(_))
        };
        assert!(small(Query::Range(range("00001", "00100"))));
        assert!(small(Query::Range(range("none", ""))));
        assert!(small(Query::Txn(all(vec![op_range("00001", "00002"), op_range("00002", "00003")]))));
        assert!(small(Query::Range(RangeRequest { revision: 1 << 40, ..range("0", "\0") })));
        assert!(!small(Query::Txn(all(vec![op_range("0", "1")]))));
        assert!(!small(Query::HashKv(HashKvRequest { revision: 0 })));
    }

    /// A few keys can hold gigabytes.
    #[test]
    fn what_goes_through_many_bytes_is_not_done_between_two_commands() {
        let mut store = KvStore::new();
        let value = "v".repeat(100_000);
        for n in 0..20 {
            store.set(&format!("large{n}"), &value);
        }
        for n in 0..1_000 {
            store.set("often", &format!("{n}"));
        }
        let holds = Compare {
            target: CompareTarget::Value.into(),
            key: "large".into(),
            range_end: "largf".into(),
            target_union: Some(TargetUnion::Value(value.into())),
            ..Compare::default()
        };
        let found = RangeRequest { count_only: true, ..range("large", "larg\u{7f}") };
        let by_value = RangeRequest { sort_target: 4, limit: 1, keys_only: true, ..found.clone() };
        for query in [
            Query::HashKv(HashKvRequest { revision: 0 }),
            Query::Txn(TxnRequest { compare: vec![holds], ..TxnRequest::default() }),
            Query::Range(RangeRequest { count_only: false, ..by_value }),
        ] {
            let whole = store.query(&KvQuery { query: Some(query.clone()), ..KvQuery::default() }).unwrap();
            assert_eq!(joined(pieces(&store, query)).answer, Some(whole));
        }
        let count = KvQuery { query: Some(Query::Range(found)), ..KvQuery::default() }.encode_to_vec().into();
        assert!(matches!(store.answer(&count), Answered::Whole(_)));
    }

    #[test]
    fn what_changes_meanwhile_is_not_in_the_answer() {
        let mut store = store();
        for query in [
            Query::Range(range("0", "\0")),
            Query::Range(RangeRequest { sort_order: 2, ..range("0", "\0") }),
            Query::Txn(all(vec![op_range("0", "1")])),
            Query::HashKv(HashKvRequest { revision: 0 }),
        ] {
            let query = KvQuery { query: Some(query), ..KvQuery::default() };
            let before = store.query(&query).unwrap();
            let Answered::Pieces(mut rest) = store.answer(&query.encode_to_vec().into()) else {
                panic!("{query:?}")
            };
            let mut pieces: Vec<Bytes> = rest.next().into_iter().collect();
            let revision = store.revision();
            store.del("0", "00500");
            store.set("00001", "new");
            store.compact_at(revision, true).unwrap();
            pieces.extend(rest);
            assert_eq!(joined(pieces).answer, Some(before), "{query:?}");
        }
    }
}
