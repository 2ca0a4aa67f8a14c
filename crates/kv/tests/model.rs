//! Compares the store with a very simple model: the whole contents at every revision.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use prost::Message;
use synod_api::{
    etcdserverpb::{
        CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        TxnResponse,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
    },
    mvccpb::KeyValue,
    synod::v1::{
        KvCommand, KvQuery, KvReply, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_kv::{KvError, KvStore};
use synod_replica::{Context, StateMachine};
use synod_wire::Slot;

/// Bytes of an answer besides its operations and pairs.
const HEADER_BYTES_MAX: u64 = 64;

type Contents = BTreeMap<Vec<u8>, KeyValue>;

/// The contents at revision 1, 2, 3, ...
#[derive(Clone)]
struct Model {
    history: Vec<Contents>,
    compacted: i64,
}

impl Model {
    fn revision(&self) -> i64 {
        self.history.len() as i64
    }

    fn now(&self) -> &Contents {
        self.history.last().unwrap()
    }

    fn range(&self, now: &Contents, current: i64, request: &RangeRequest) -> Result<Found, KvError> {
        if request.revision > current {
            return Err(KvError::FutureRevision);
        }
        if request.revision > 0 && request.revision < self.compacted {
            return Err(KvError::Compacted);
        }
        let contents = match request.revision {
            revision if revision <= 0 || revision == current => now,
            revision => &self.history[revision as usize - 1],
        };
        let inside = contents.values().filter(|pair| is_in(&pair.key, &request.key, &request.range_end));
        let all: Vec<KeyValue> = inside.cloned().collect();
        let count = all.len() as i64;
        if request.count_only {
            return Ok((Vec::new(), false, count));
        }
        let passes =
            |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
        let mut pairs: Vec<KeyValue> = all
            .into_iter()
            .filter(|pair| passes(pair.mod_revision, request.min_mod_revision, request.max_mod_revision))
            .filter(|pair| {
                passes(pair.create_revision, request.min_create_revision, request.max_create_revision)
            })
            .collect();
        // Descending order is ascending order of the negated number, or of the complemented bytes.
        let descending = request.sort_order == 2;
        pairs.sort_by_cached_key(|pair| {
            let number =
                [0, pair.version, pair.create_revision, pair.mod_revision, 0][request.sort_target as usize];
            let bytes = match request.sort_target {
                0 => &pair.key[..],
                4 => &pair.value[..],
                _ => &[],
            };
            let mut text: Vec<u16> = bytes.iter().map(|byte| u16::from(*byte) + 1).collect();
            text.push(0);
            if descending { (-number, text.iter().map(|unit| 1000 - unit).collect()) } else { (number, text) }
        });
        let more = request.limit > 0 && pairs.len() as i64 > request.limit;
        if request.limit > 0 {
            pairs.truncate(request.limit as usize);
        }
        if request.keys_only {
            pairs.iter_mut().for_each(|pair| pair.value.clear());
        }
        Ok((pairs, more, count))
    }

    /// Executes on a copy, so that an error at any point changes nothing.
    fn execute(&mut self, request: &Command) -> Result<Outcome, KvError> {
        let mut draft = Draft { contents: self.now().clone(), changed: false };
        let outcome = match request {
            Command::Put(put) => draft.put(self, put).map(Outcome::Put)?,
            Command::DeleteRange(delete) => Outcome::Deleted(draft.delete(delete)),
            Command::Txn(txn) => Outcome::Txn(draft.txn(self, txn)?),
            Command::Compact(compact) => {
                if compact.revision <= self.compacted {
                    return Err(KvError::Compacted);
                }
                if compact.revision > self.revision() {
                    return Err(KvError::FutureRevision);
                }
                self.compacted = compact.revision;
                Outcome::Compacted
            }
            Command::Alarm(_)
            | Command::LeaseGrant(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseRenew(_)
            | Command::Auth(_) => {
                unreachable!("not generated")
            }
        };
        if draft.changed {
            self.history.push(draft.contents);
        }
        Ok(outcome)
    }
}

/// The pairs, whether there are more, and how many there are in all.
type Found = (Vec<KeyValue>, bool, i64);

#[derive(Debug, PartialEq)]
enum Outcome {
    Range(Found),
    Put(Option<KeyValue>),
    Deleted(Vec<KeyValue>),
    Txn((bool, Vec<Outcome>)),
    Compacted,
}

struct Draft {
    contents: Contents,
    changed: bool,
}

impl Draft {
    fn put(&mut self, model: &Model, put: &PutRequest) -> Result<Option<KeyValue>, KvError> {
        let old = self.contents.get(&put.key[..]).cloned();
        if put.ignore_value && old.is_none() {
            return Err(KvError::KeyNotFound);
        }
        let revision = model.revision() + 1;
        let new = KeyValue {
            key: put.key.clone(),
            value: if put.ignore_value { old.clone().unwrap().value } else { put.value.clone() },
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.as_ref().map_or(0, |old| old.version) + 1,
            lease: 0,
        };
        self.contents.insert(put.key.to_vec(), new);
        self.changed = true;
        Ok(old.filter(|_| put.prev_kv))
    }

    fn delete(&mut self, delete: &DeleteRangeRequest) -> Vec<KeyValue> {
        let doomed = |pair: &KeyValue| is_in(&pair.key, &delete.key, &delete.range_end);
        let deleted: Vec<KeyValue> = self.contents.values().filter(|pair| doomed(pair)).cloned().collect();
        self.contents.retain(|_, pair| !doomed(pair));
        self.changed |= !deleted.is_empty();
        deleted
    }

    fn txn(&mut self, model: &Model, txn: &TxnRequest) -> Result<(bool, Vec<Outcome>), KvError> {
        let succeeded = txn.compare.iter().all(|compare| holds(model.now(), compare));
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let mut outcomes = Vec::new();
        for op in ops {
            outcomes.push(match op.request.as_ref().unwrap() {
                Request::RequestRange(range) => {
                    // A revision that the transaction itself makes does not exist yet when it is checked.
                    if range.revision > model.revision() {
                        return Err(KvError::FutureRevision);
                    }
                    // In a transaction, unlike outside, a negative revision is not the newest but an old one.
                    if range.revision < 0 && range.revision < model.compacted {
                        return Err(KvError::Compacted);
                    }
                    let current = model.revision() + i64::from(self.changed);
                    Outcome::Range(model.range(&self.contents, current, range)?)
                }
                Request::RequestPut(put) => Outcome::Put(self.put(model, put)?),
                Request::RequestDeleteRange(delete) => Outcome::Deleted(self.delete(delete)),
                Request::RequestTxn(nested) => Outcome::Txn(self.txn(model, nested)?),
            });
        }
        Ok((succeeded, outcomes))
    }
}

fn is_in(key: &[u8], from: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key < end,
    }
}

fn holds(contents: &Contents, compare: &Compare) -> bool {
    let missing = KeyValue::default();
    let mut pairs: Vec<&KeyValue> =
        contents.values().filter(|pair| is_in(&pair.key, &compare.key, &compare.range_end)).collect();
    if pairs.is_empty() {
        if compare.target() == CompareTarget::Value {
            return false;
        }
        pairs.push(&missing);
    }
    pairs.into_iter().all(|pair| {
        let ordering = match compare.target_union.as_ref().unwrap() {
            TargetUnion::Version(wanted) => pair.version.cmp(wanted),
            TargetUnion::CreateRevision(wanted) => pair.create_revision.cmp(wanted),
            TargetUnion::ModRevision(wanted) => pair.mod_revision.cmp(wanted),
            TargetUnion::Value(wanted) => pair.value.cmp(wanted),
            TargetUnion::Lease(wanted) => pair.lease.cmp(wanted),
        };
        match compare.result() {
            CompareResult::Equal => ordering.is_eq(),
            CompareResult::Greater => ordering.is_gt(),
            CompareResult::Less => ordering.is_lt(),
            CompareResult::NotEqual => ordering.is_ne(),
        }
    })
}

/// Checks a transaction response's headers, and reduces it to what the model gives.
fn reduce(response: TxnResponse) -> (bool, Vec<Outcome>) {
    let outcomes = response.responses.into_iter().map(|response| match response.response.unwrap() {
        Response::ResponseRange(range) => Outcome::Range((range.kvs, range.more, range.count)),
        Response::ResponsePut(put) => Outcome::Put(put.prev_kv),
        Response::ResponseDeleteRange(delete) => {
            assert_eq!(delete.deleted, delete.prev_kvs.len() as i64);
            Outcome::Deleted(delete.prev_kvs)
        }
        Response::ResponseTxn(txn) => Outcome::Txn(reduce(txn)),
    });
    (response.succeeded, outcomes.collect())
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    // Few keys, so that operations meet; some are prefixes of others, and one is the lowest.
    prop_oneof![Just(vec![0]), vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'c')], 1..3)]
}

fn range_end() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![2 => Just(vec![]), 1 => Just(vec![0]), 3 => key()]
}

fn small() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(0), 1 => 1..12_i64]
}

fn range() -> impl Strategy<Value = RangeRequest> {
    let revision = prop_oneof![8 => Just(0_i64), 4 => 1..10_i64, 1 => -2..25_i64];
    let shape = (key(), range_end(), prop_oneof![Just(0_i64), -1..4_i64], revision);
    let order = (0..3_i32, 0..5_i32, any::<bool>(), prop::bool::weighted(0.1));
    (shape, order, [small(), small(), small(), small()], any::<bool>()).prop_map(
        |(
            (key, range_end, limit, revision),
            (sort_order, sort_target, keys_only, count_only),
            bounds,
            filtered,
        )| {
            let [min_mod_revision, max_mod_revision, min_create_revision, max_create_revision] =
                if filtered { bounds } else { [0; 4] };
            RangeRequest {
                key: key.into(),
                range_end: range_end.into(),
                limit,
                revision,
                sort_order,
                sort_target,
                serializable: false,
                keys_only,
                count_only,
                min_mod_revision,
                max_mod_revision,
                min_create_revision,
                max_create_revision,
            }
        },
    )
}

fn put() -> impl Strategy<Value = PutRequest> {
    (key(), vec(b'x'..b'z', 0..3), any::<bool>(), prop::bool::weighted(0.1)).prop_map(
        |(key, value, prev_kv, ignore_value)| PutRequest {
            key: key.into(),
            value: if ignore_value { Vec::new() } else { value }.into(),
            prev_kv,
            ignore_value,
            ..PutRequest::default()
        },
    )
}

fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (key(), range_end()).prop_map(|(key, range_end)| DeleteRangeRequest {
        key: key.into(),
        range_end: range_end.into(),
        prev_kv: true,
    })
}

fn compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        (0..4_i64).prop_map(|n| (CompareTarget::Version, TargetUnion::Version(n))),
        (0..15_i64).prop_map(|n| (CompareTarget::Create, TargetUnion::CreateRevision(n))),
        (0..15_i64).prop_map(|n| (CompareTarget::Mod, TargetUnion::ModRevision(n))),
        (0..2_i64).prop_map(|n| (CompareTarget::Lease, TargetUnion::Lease(n))),
        vec(b'x'..b'z', 0..2).prop_map(|v| (CompareTarget::Value, TargetUnion::Value(v.into()))),
    ];
    (key(), range_end(), target, 0..4_i32).prop_map(|(key, range_end, (target, union), result)| Compare {
        result,
        target: target.into(),
        key: key.into(),
        range_end: range_end.into(),
        target_union: Some(union),
    })
}

fn txn() -> impl Strategy<Value = TxnRequest> {
    let op = |request| RequestOp { request: Some(request) };
    let leaf = prop_oneof![
        range().prop_map(Request::RequestRange),
        put().prop_map(Request::RequestPut),
        delete().prop_map(Request::RequestDeleteRange),
    ]
    .prop_map(op);
    let ops = leaf.prop_recursive(2, 12, 4, move |inner| {
        (vec(compare(), 0..2), vec(inner.clone(), 0..4), vec(inner, 0..4)).prop_map(
            move |(compare, success, failure)| {
                op(Request::RequestTxn(TxnRequest { compare, success, failure }))
            },
        )
    });
    (vec(compare(), 0..2), vec(ops.clone(), 0..4), vec(ops, 0..4))
        .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure })
}

/// Whether a put that keeps its value may meet a deletion in the same transaction. The store then keeps the
/// value from before the transaction; the model, for simplicity, has none.
fn keeps_beside_deletion(txn: &TxnRequest) -> bool {
    fn any(txn: &TxnRequest, what: fn(&Request) -> bool) -> bool {
        txn.success.iter().chain(&txn.failure).any(|op| match op.request.as_ref().unwrap() {
            Request::RequestTxn(nested) => any(nested, what),
            other => what(other),
        })
    }
    any(txn, |request| matches!(request, Request::RequestDeleteRange(_)))
        && any(txn, |request| matches!(request, Request::RequestPut(put) if put.ignore_value))
}

#[derive(Clone, Debug)]
enum Step {
    /// A command with a bound on its answer.
    Execute(Command, u64),
    Read(RangeRequest),
    /// A restart from a snapshot.
    Restore,
}

/// Mostly no bound; otherwise room for no pair, or for three or four operations and two or three pairs.
fn answer_bytes_max() -> impl Strategy<Value = u64> {
    prop_oneof![12 => Just(0), 1 => Just(64), 2 => Just(300), 2 => Just(500)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (put(), answer_bytes_max()).prop_map(|(put, bytes)| Step::Execute(Command::Put(put), bytes)),
        2 => (delete(), answer_bytes_max())
            .prop_map(|(delete, bytes)| Step::Execute(Command::DeleteRange(delete), bytes)),
        6 => (txn(), answer_bytes_max())
            .prop_filter("the model has no value to keep", |(txn, _)| !keeps_beside_deletion(txn))
            .prop_map(|(txn, bytes)| Step::Execute(Command::Txn(txn), bytes)),
        2 => (-1..20_i64, any::<bool>()).prop_map(|(revision, physical)| {
            Step::Execute(Command::Compact(CompactionRequest { revision, physical }), 0)
        }),
        6 => range().prop_map(Step::Read),
        1 => Just(Step::Restore),
    ]
}

fn read(store: &KvStore, request: &RangeRequest) -> Result<Found, KvError> {
    let Answer::Range(range) =
        store.query(&KvQuery { query: Some(Query::Range(request.clone())), ..KvQuery::default() })?
    else {
        panic!("a range is answered by a range");
    };
    assert_eq!(range.header.unwrap().revision, store.revision());
    Ok((range.kvs, range.more, range.count))
}

/// The bytes of a reply as a part of the message that holds it.
fn reply_bytes(reply: &Reply) -> u64 {
    KvReply { reply: Some(reply.clone()) }.encoded_len() as u64
}

fn everything_at(revision: i64) -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), revision, ..RangeRequest::default() }
}

fn check(steps: Vec<Step>) {
    let mut model = Model { history: vec![Contents::new()], compacted: -1 };
    let mut store = KvStore::new();
    // This store executes the same commands, and no client waits for its answers.
    let mut unanswered = KvStore::new();
    for step in steps {
        match step {
            Step::Execute(request, answer_bytes_max) => {
                let command =
                    KvCommand { command: Some(request.clone()), answer_bytes_max, ..KvCommand::default() };
                unanswered.apply(&command.encode_to_vec().into(), &Context::new(Slot(1)).without_reply());
                // A refused command clears away what a compaction left, as any other does, which no client can see.
                let before = store.hash_kv(0);
                let result = store.execute(&command).inspect(|reply| {
                    assert!(
                        answer_bytes_max == 0 || reply_bytes(reply) <= HEADER_BYTES_MAX + answer_bytes_max
                    );
                });
                let result = result.map(|reply| match reply {
                    Reply::Put(put) => (put.header, Outcome::Put(put.prev_kv)),
                    Reply::DeleteRange(delete) => (delete.header, Outcome::Deleted(delete.prev_kvs)),
                    Reply::Txn(txn) => (txn.header, Outcome::Txn(reduce(txn))),
                    Reply::Compact(compact) => (compact.header, Outcome::Compacted),
                    other => panic!("unexpected {other:?}"),
                });
                match result {
                    // Other tests cover the rules for duplicate keys.
                    Err(KvError::DuplicateKey) => assert_eq!(store.hash_kv(0), before),
                    Err(KvError::AnswerTooLarge(bytes)) => {
                        assert_eq!((bytes, store.hash_kv(0)), (answer_bytes_max, before));
                    }
                    Err(error) => {
                        assert_eq!(model.clone().execute(&request), Err(error));
                        assert_eq!(store.hash_kv(0), before);
                    }
                    Ok((header, outcome)) => {
                        assert_eq!(model.execute(&request), Ok(outcome));
                        assert_eq!(header.unwrap().revision, model.revision());
                    }
                }
                assert_eq!(store.revision(), model.revision());
                assert_eq!(store.key_count(), model.now().len() as u64);
                assert_eq!(store.digest(), unanswered.digest());
            }
            Step::Read(request) => {
                assert_eq!(read(&store, &request), model.range(model.now(), model.revision(), &request));
            }
            Step::Restore => {
                let mut bytes = Vec::new();
                store.freeze().write_to(&mut bytes).unwrap();
                let mut restored = KvStore::new();
                restored.restore(&mut &bytes[..]).unwrap();
                assert_eq!(restored.digest(), store.digest());
                assert_eq!(restored.size_bytes(), store.size_bytes());
                store = restored;
            }
        }
    }
    for revision in 1..=model.revision() {
        let request = everything_at(revision);
        assert_eq!(read(&store, &request), model.range(model.now(), model.revision(), &request));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_model_does(steps in vec(step(), 1..60)) {
        check(steps);
    }
}

/// The random steps must reach every case that they are meant to test.
#[test]
fn the_random_steps_reach_every_kind_of_outcome() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for _ in 0..300 {
        let steps = vec(step(), 1..60).new_tree(&mut runner).unwrap().current();
        let mut store = KvStore::new();
        for step in steps {
            let outcome = match step {
                Step::Execute(request, answer_bytes_max) => store
                    .execute(&KvCommand { command: Some(request), answer_bytes_max, ..KvCommand::default() })
                    .map(|_| "executed"),
                Step::Read(request) => {
                    read(&store, &request).map(|(pairs, ..)| if pairs.len() > 1 { "several" } else { "few" })
                }
                Step::Restore => Ok("restored"),
            };
            *seen.entry(outcome.unwrap_or_else(|error| error.to_string().leak())).or_insert(0) += 1;
        }
    }
    let expected = [
        ("executed", 1000),
        ("several", 100),
        ("few", 100),
        ("restored", 50),
        ("etcdserver: trying to send message larger than max (300 bytes)", 20),
        ("etcdserver: key not found", 20),
        ("etcdserver: duplicate key given in txn request", 20),
        ("etcdserver: mvcc: required revision has been compacted", 20),
        ("etcdserver: mvcc: required revision is a future revision", 20),
    ];
    for (outcome, at_least) in expected {
        assert!(seen.get(outcome).is_some_and(|count| *count >= at_least), "{outcome}: {seen:?}");
    }
}
