//! Transactions: compare, then execute one of two lists of operations at one revision.

use std::cmp::Ordering;

use imbl::OrdMap;
use synod_api::etcdserverpb::{
    AlarmType, Compare, RangeRequest, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
};

use crate::{
    KvError, KvStore,
    budget::Budget,
    history::{History, Seen, Version},
    key::Key,
    lease::Leases,
    put::Put,
    store::{Writes, header},
    validate,
};

/// The result of a transaction's comparisons and checks, before anything is changed.
#[derive(Default)]
struct Decided {
    /// The outcomes of the comparisons, of the transaction and of those nested in the chosen branches, in the
    /// order in which they run.
    outcomes: Vec<bool>,
    /// Whether the chosen operations change anything.
    writes: bool,
    /// Whether an operation answers with what the store holds.
    reads: bool,
}

/// The parts of the store that a transaction may change, as they were before it.
struct Before {
    keys: OrdMap<Key, History>,
    live_keys: u64,
    versions: u64,
    size_bytes: u64,
    leases: Leases,
}

impl KvStore {
    /// Executes a transaction that passed validation.
    ///
    /// As in etcd, all comparisons and checks, nested ones included, are made on the state before the
    /// transaction. Only its cost shows during execution; a transaction that exceeds its budget is undone.
    pub(crate) fn txn(&mut self, request: &TxnRequest, budget: &mut Budget) -> Result<TxnResponse, KvError> {
        let mut decided = Decided::default();
        self.decide(request, &mut decided, budget)?;
        let before = (decided.writes && decided.reads).then(|| self.before());
        let mut writes = self.begin();
        match self.run(request, &mut decided.outcomes.into_iter(), &mut writes, budget) {
            Ok(mut response) => {
                response.header = header(self.revision_after(&writes));
                self.commit(writes);
                Ok(response)
            }
            Err(error) => {
                if let Some(before) = before {
                    self.undo(before);
                }
                Err(error)
            }
        }
    }

    /// Answers a transaction that only reads.
    pub(crate) fn read_txn(&self, request: &TxnRequest, budget: &mut Budget) -> Result<TxnResponse, KvError> {
        if !validate::is_read_only(request) {
            return Err(KvError::QueryWrites);
        }
        // In etcd only a transaction with nothing but ranges is a read, and any other is ordered, and refused.
        if self.has_alarm(AlarmType::Corrupt) && validate::has_nested(request) {
            return Err(KvError::Corrupt);
        }
        let mut decided = Decided::default();
        self.decide(request, &mut decided, budget)?;
        let mut response = self.read(request, &mut decided.outcomes.into_iter(), budget)?;
        response.header = header(self.revision);
        Ok(response)
    }

    fn before(&self) -> Before {
        let KvStore { ref keys, live_keys, versions, size_bytes, ref leases, .. } = *self;
        Before { keys: keys.clone(), live_keys, versions, size_bytes, leases: leases.clone() }
    }

    /// Undoes the changes that were made and not committed.
    fn undo(&mut self, before: Before) {
        let Before { keys, live_keys, versions, size_bytes, leases } = before;
        (self.keys, self.live_keys, self.leases) = (keys, live_keys, leases);
        (self.versions, self.size_bytes) = (versions, size_bytes);
        self.changes.drop_from(self.revision + 1);
    }

    /// Makes the comparisons, and checks the operations that will run.
    fn decide(
        &self,
        request: &TxnRequest,
        decided: &mut Decided,
        budget: &mut Budget,
    ) -> Result<(), KvError> {
        let mut succeeded = true;
        for compare in &request.compare {
            succeeded = succeeded && self.holds(compare, budget)?;
        }
        decided.outcomes.push(succeeded);
        for op in branch(request, succeeded) {
            // Even a range that finds nothing takes room in the answer.
            budget.answer(&[], &[])?;
            match &op.request {
                Some(Request::RequestRange(request)) => {
                    self.check_revision(request)?;
                    decided.reads = true;
                }
                Some(Request::RequestPut(request)) => {
                    self.check_put(&Put::from(request))?;
                    decided.writes = true;
                    decided.reads |= request.prev_kv;
                }
                Some(Request::RequestTxn(nested)) => self.decide(nested, decided, budget)?,
                // A deletion looks at keys, and may look at too many.
                Some(Request::RequestDeleteRange(_)) => (decided.writes, decided.reads) = (true, true),
                None => {}
            }
        }
        Ok(())
    }

    /// Inside of a transaction, unlike outside, a negative revision counts as one below the last compaction.
    fn check_revision(&self, request: &RangeRequest) -> Result<(), KvError> {
        if request.revision > self.revision {
            return Err(KvError::FutureRevision);
        }
        if request.revision != 0 && request.revision < self.compacted {
            return Err(KvError::Compacted);
        }
        Ok(())
    }

    fn run(
        &mut self,
        request: &TxnRequest,
        outcomes: &mut impl Iterator<Item = bool>,
        writes: &mut Writes,
        budget: &mut Budget,
    ) -> Result<TxnResponse, KvError> {
        let succeeded = outcomes.next().expect("every transaction that runs was decided");
        let ops = branch(request, succeeded);
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            let response = match &op.request {
                Some(Request::RequestRange(request)) => {
                    Response::ResponseRange(self.range_as_of(request, self.revision_after(writes), budget)?)
                }
                Some(Request::RequestPut(request)) => {
                    Response::ResponsePut(self.write_put(writes, &Put::from(request), budget)?)
                }
                Some(Request::RequestDeleteRange(request)) => {
                    Response::ResponseDeleteRange(self.write_delete_range(writes, request, budget)?)
                }
                Some(Request::RequestTxn(nested)) => {
                    Response::ResponseTxn(self.run(nested, outcomes, writes, budget)?)
                }
                None => unreachable!("an empty operation does not pass validation"),
            };
            if budget.wanted() {
                responses.push(ResponseOp { response: Some(response) });
            }
        }
        Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
    }

    fn read(
        &self,
        request: &TxnRequest,
        outcomes: &mut impl Iterator<Item = bool>,
        budget: &mut Budget,
    ) -> Result<TxnResponse, KvError> {
        let succeeded = outcomes.next().expect("every transaction that runs was decided");
        let ops = branch(request, succeeded);
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            let response = match &op.request {
                Some(Request::RequestRange(request)) => {
                    Response::ResponseRange(self.range_as_of(request, self.revision, budget)?)
                }
                Some(Request::RequestTxn(nested)) => {
                    Response::ResponseTxn(self.read(nested, outcomes, budget)?)
                }
                Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) | None => {
                    return Err(KvError::QueryWrites);
                }
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
    }

    /// Whether a comparison holds for every key in its range. Where there is no key, the comparison is made
    /// with a version of zeros; a comparison of values then is false, since no value could stand for "missing".
    fn holds(&self, compare: &Compare, budget: &mut Budget) -> Result<bool, KvError> {
        let mut found = false;
        for (_, history) in self.in_range(&compare.key, &compare.range_end) {
            budget.look()?;
            let Some(version) = history.live() else { continue };
            if let Some(TargetUnion::Value(value)) = &compare.target_union {
                budget.go_through(value.len().min(version.value.len()))?;
            }
            if !compares(compare, &version) {
                return Ok(false);
            }
            found = true;
        }
        Ok(found
            || compare.target != CompareTarget::Value as i32
                && compares(compare, &Seen::from(&Version::tombstone(0, 0))))
    }
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// A target that does not match the given value compares with zero, an unknown target is equal, and an unknown relation
/// holds: etcd's answers to requests that its clients do not make.
fn compares(compare: &Compare, version: &Seen<'_>) -> bool {
    let target = CompareTarget::try_from(compare.target);
    let number = match (target, &compare.target_union) {
        (Ok(CompareTarget::Version), Some(TargetUnion::Version(number)))
        | (Ok(CompareTarget::Create), Some(TargetUnion::CreateRevision(number)))
        | (Ok(CompareTarget::Mod), Some(TargetUnion::ModRevision(number)))
        | (Ok(CompareTarget::Lease), Some(TargetUnion::Lease(number))) => *number,
        _ => 0,
    };
    let ordering = match target {
        Ok(CompareTarget::Version) => version.version.cmp(&number),
        Ok(CompareTarget::Create) => version.created.cmp(&number),
        Ok(CompareTarget::Mod) => version.modified.cmp(&number),
        Ok(CompareTarget::Lease) => version.lease.cmp(&number),
        Ok(CompareTarget::Value) => match &compare.target_union {
            Some(TargetUnion::Value(value)) => version.value.cmp(&value[..]),
            _ => version.value[..].cmp(&[]),
        },
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use synod_api::{
        etcdserverpb::PutRequest,
        synod::v1::{kv_answer::Answer, kv_query::Query},
    };

    use super::*;
    use crate::testing::{
        self, Execute, all, keys, nth_range, op, op_delete, op_put, op_range, op_txn, pairs, range,
    };

    fn compare(target: CompareTarget, result: CompareResult, key: &str, wanted: TargetUnion) -> Compare {
        Compare {
            target: target.into(),
            result: result.into(),
            key: key.to_owned().into(),
            target_union: Some(wanted),
            ..Compare::default()
        }
    }

    fn value_is(key: &str, value: &str) -> Compare {
        compare(CompareTarget::Value, CompareResult::Equal, key, TargetUnion::Value(value.to_owned().into()))
    }

    fn whether(store: &KvStore, compare: &Compare) -> bool {
        store.holds(compare, &mut Budget::unbounded()).unwrap()
    }

    fn revision(response: &TxnResponse) -> i64 {
        response.header.unwrap().revision
    }

    /// Otherwise some hundred bytes could make all replicas compare long values, or walk through histories, for hours.
    #[test]
    fn what_costs_more_than_a_look_counts_as_more() {
        let mut store = KvStore::new();
        let mut random = fastrand::Rng::with_seed(1);
        for n in 0..100 {
            store.set(&format!("{n}"), &format!("{}{}", "x".repeat(60_000), random.u32(..)));
        }
        let often = |times: usize, range: RangeRequest| {
            let mut ops = vec![op(Request::RequestRange(range)); times];
            ops.push(op_put("written", ""));
            all(ops)
        };
        let counts = RangeRequest { count_only: true, ..range("\0", "\0") };
        let by_value = RangeRequest { sort_target: 4, limit: 1, keys_only: true, ..range("\0", "\0") };
        let by_key = RangeRequest { sort_target: 0, sort_order: 2, ..by_value.clone() };
        for cheap in [&counts, &by_key] {
            store.transact(often(1_000, cheap.clone())).unwrap();
        }
        store.transact(often(10, by_value.clone())).unwrap();
        let before = store.digest();
        assert_eq!(store.transact(often(1_000, by_value)).err(), Some(KvError::TooManyKeys));
        assert_eq!(store.digest(), before);

        let mut store = KvStore::new();
        for n in 0..300_000 {
            store.set(&format!("{}", n % 1_000), "x");
        }
        let early = RangeRequest { revision: 200_000, ..counts.clone() };
        store.transact(often(4_000, counts)).unwrap();
        store.transact(often(100, early.clone())).unwrap();
        assert_eq!(store.transact(often(4_000, early)).err(), Some(KvError::TooManyKeys));
    }

    #[test]
    fn one_revision_for_all_changes() {
        let mut store = KvStore::new();
        let response = store
            .transact(all(vec![
                op_put("a", "1"),
                op_put("b", "2"),
                op_range("a", "c"),
                op_delete("c", ""),
                op_put("d", ""),
            ]))
            .unwrap();
        assert_eq!((revision(&response), store.revision()), (2, 2));
        // A read sees the changes before it in the same transaction.
        assert_eq!(pairs(nth_range(&response.responses, 2)), [("a", "1"), ("b", "2")]);
        assert_eq!(nth_range(&response.responses, 2).header.unwrap().revision, 2);
        let subs = store.changes.from(2).map(|change| (change.sub, &change.key[..])).collect::<Vec<_>>();
        assert_eq!(subs, [(0, &b"a"[..]), (1, b"b"), (2, b"d")]);
    }

    #[test]
    fn without_changes_the_revision_stays() {
        let mut store = KvStore::new();
        store.set("a", "1");
        for ops in [vec![], vec![op_range("a", "")], vec![op_delete("none", "")], vec![op_txn(all(vec![]))]] {
            assert_eq!(revision(&store.transact(all(ops)).unwrap()), 2);
        }
        assert_eq!(store.revision(), 2);
    }

    #[test]
    fn comparisons_choose_the_branch() {
        use CompareResult::{Equal, Greater, Less, NotEqual};
        let mut store = KvStore::new();
        store.set("x", "");
        store.set("a", "m");
        store.set("a", "n");
        // Created at 3, modified at 4, version 2, value n, no lease.
        let number = |target, result, wanted| {
            let union = match target {
                CompareTarget::Version => TargetUnion::Version(wanted),
                CompareTarget::Create => TargetUnion::CreateRevision(wanted),
                CompareTarget::Mod => TargetUnion::ModRevision(wanted),
                _ => TargetUnion::Lease(wanted),
            };
            compare(target, result, "a", union)
        };
        for (target, actual) in [
            (CompareTarget::Version, 2),
            (CompareTarget::Create, 3),
            (CompareTarget::Mod, 4),
            (CompareTarget::Lease, 0),
        ] {
            for (result, holds) in [
                (Equal, [false, true, false]),
                (NotEqual, [true, false, true]),
                (Greater, [true, false, false]),
                (Less, [false, false, true]),
            ] {
                let wanted = [actual - 1, actual, actual + 1];
                let actual_holds = wanted.map(|wanted| whether(&store, &number(target, result, wanted)));
                assert_eq!(actual_holds, holds, "{target:?} {result:?}");
            }
        }
        for (result, holds) in [(Equal, "n"), (NotEqual, "mo"), (Greater, "m"), (Less, "o")] {
            for value in ["m", "n", "o"] {
                let wanted = TargetUnion::Value(value.into());
                let compare = compare(CompareTarget::Value, result, "a", wanted);
                assert_eq!(whether(&store, &compare), holds.contains(value), "{result:?} {value}");
            }
        }
        let choice = |compare| TxnRequest {
            compare,
            success: vec![op_put("then", "")],
            failure: vec![op_put("else", "")],
        };
        assert!(store.transact(choice(vec![value_is("a", "n"), value_is("x", "")])).unwrap().succeeded);
        assert!(!store.transact(choice(vec![value_is("a", "n"), value_is("x", "1")])).unwrap().succeeded);
        assert_eq!(keys(&store.read_at("e", "z", 0).unwrap()), ["else", "then", "x"]);
    }

    #[test]
    fn a_missing_key_compares_as_zeros_but_never_by_value() {
        let store = KvStore::new();
        let equal = |target, wanted| whether(&store, &compare(target, CompareResult::Equal, "none", wanted));
        assert!(equal(CompareTarget::Version, TargetUnion::Version(0)));
        assert!(equal(CompareTarget::Create, TargetUnion::CreateRevision(0)));
        assert!(!equal(CompareTarget::Mod, TargetUnion::ModRevision(1)));
        assert!(!equal(CompareTarget::Value, TargetUnion::Value("".into())));
        let other =
            compare(CompareTarget::Value, CompareResult::NotEqual, "none", TargetUnion::Value("x".into()));
        assert!(!whether(&store, &other));
    }

    #[test]
    fn odd_comparisons_are_taken_as_etcd_does() {
        let mut store = KvStore::new();
        store.set("a", "n");
        let odd = |target, result, target_union| Compare {
            target,
            result,
            key: "a".into(),
            target_union,
            ..Compare::default()
        };
        assert!(whether(&store, &odd(0, 9, None)));
        assert!(whether(&store, &odd(9, 0, None)));
        assert!(!whether(&store, &odd(9, 1, None)));
        // The given number is for another target, so the comparison is with zero.
        assert!(whether(&store, &odd(0, 1, Some(TargetUnion::ModRevision(5)))));
        assert!(whether(&store, &odd(3, 1, Some(TargetUnion::ModRevision(5)))));
    }

    #[test]
    fn a_comparison_over_a_range_must_hold_for_every_key() {
        let mut store = KvStore::new();
        for key in ["a", "b", "c"] {
            store.set(key, "1");
        }
        store.set("c", "2");
        let ranged = |end: &str| Compare { range_end: end.to_owned().into(), ..value_is("a", "1") };
        assert!(whether(&store, &ranged("c")));
        assert!(!whether(&store, &ranged("d")));
        assert!(!whether(&store, &ranged("\0")));
        let none = Compare { key: "x".into(), ..ranged("\0") };
        assert!(!whether(&store, &none));
        let none_created = Compare {
            key: "x".into(),
            range_end: "\0".into(),
            ..compare(CompareTarget::Create, CompareResult::Equal, "", TargetUnion::CreateRevision(0))
        };
        assert!(whether(&store, &none_created));
    }

    #[test]
    fn nested_comparisons_see_the_state_before_the_transaction() {
        let mut store = KvStore::new();
        store.set("a", "old");
        let nested = TxnRequest {
            compare: vec![value_is("a", "old")],
            success: vec![op_range("a", ""), op_put("b", "then")],
            failure: vec![op_put("b", "else")],
        };
        let response =
            store.transact(all(vec![op_put("a", "new"), op_txn(nested), op_put("c", "")])).unwrap();
        let Some(Response::ResponseTxn(nested)) = &response.responses[1].response else {
            panic!("not a txn")
        };
        assert!(nested.succeeded);
        assert_eq!(pairs(nth_range(&nested.responses, 0)), [("a", "new")]);
        assert_eq!(pairs(&store.read_at("a", "\0", 0).unwrap()), [("a", "new"), ("b", "then"), ("c", "")]);
        assert_eq!(store.revision(), 3);
    }

    #[test]
    fn a_deep_nest_runs_the_branches_that_were_decided() {
        let mut store = KvStore::new();
        store.set("yes", "");
        let choose = |key: &str, success, failure| {
            op_txn(TxnRequest { compare: vec![value_is(key, "")], success, failure })
        };
        let tree = vec![
            choose(
                "no",
                vec![choose("yes", vec![op_put("1", "")], vec![])],
                vec![
                    choose("yes", vec![op_put("2", "")], vec![op_put("3", "")]),
                    choose("no", vec![], vec![op_put("4", "")]),
                ],
            ),
            choose("yes", vec![op_put("5", "")], vec![op_put("6", "")]),
        ];
        store.transact(all(tree)).unwrap();
        assert_eq!(keys(&store.read_at("0", "9", 0).unwrap()), ["2", "4", "5"]);
    }

    #[test]
    fn a_refused_transaction_changes_nothing() {
        let mut store = KvStore::new();
        store.set("a", "1");
        store.set("a", "2");
        store.compact_at(3, true).unwrap();
        let digest = store.digest();
        let at = |revision| op(Request::RequestRange(RangeRequest { revision, ..range("a", "") }));
        let keeping = op(Request::RequestPut(PutRequest { ignore_value: true, ..testing::put("none", "") }));
        let leased = op(Request::RequestPut(PutRequest { lease: 1, ..testing::put("c", "") }));
        for (last, error) in [
            (at(4), KvError::FutureRevision),
            (at(2), KvError::Compacted),
            (at(-2), KvError::Compacted),
            (keeping, KvError::KeyNotFound),
            (leased, KvError::LeaseNotFound),
            (op_put("b", "2"), KvError::DuplicateKey),
        ] {
            let ops = vec![op_put("b", "1"), op_txn(all(vec![last.clone()]))];
            assert_eq!(store.transact(all(ops)), Err(error));
            assert_eq!((store.digest(), store.revision()), (digest, 3));
            // In the branch that does not run the operation does no harm.
            let elsewhere = TxnRequest { failure: vec![last], ..TxnRequest::default() };
            store.transact(all(vec![op_txn(elsewhere)])).unwrap();
        }
    }

    #[test]
    fn a_key_can_be_changed_twice_in_one_transaction_where_etcd_allows_it() {
        let mut store = KvStore::new();
        store.set("a", "1");
        let keeping = op(Request::RequestPut(PutRequest { ignore_value: true, ..testing::put("a", "") }));
        // A deletion to the end of all keys, then a put that keeps the value from before the transaction.
        store.transact(all(vec![op_delete("\0", "\0"), keeping])).unwrap();
        let a = store.read_at("a", "", 0).unwrap().kvs.remove(0);
        assert_eq!((&a.value[..], a.create_revision, a.mod_revision, a.version), (&b"1"[..], 3, 3, 1));
        // A put in one nested transaction, a deletion in a later one.
        let response = store
            .transact(all(vec![op_txn(all(vec![op_put("a", "2")])), op_txn(all(vec![op_delete("a", "")]))]))
            .unwrap();
        assert_eq!(revision(&response), 4);
        assert_eq!(keys(&store.read_at("a", "", 0).unwrap()), [""; 0]);
        assert_eq!(pairs(&store.read_at("a", "", 3).unwrap()), [("a", "1")]);
    }

    #[test]
    fn queries_only_read() {
        let mut store = KvStore::new();
        store.set("a", "1");
        let reading = TxnRequest {
            compare: vec![value_is("a", "1")],
            success: vec![op_range("a", ""), op_txn(all(vec![op_range("a", "\0")]))],
            failure: vec![],
        };
        let Ok(Answer::Txn(answer)) = store.ask(Query::Txn(reading.clone())) else { panic!("not a txn") };
        assert_eq!(Ok(answer), store.transact(reading));
        for write in [op_put("a", ""), op_delete("a", "")] {
            let hidden = TxnRequest { failure: vec![op_txn(all(vec![write]))], ..TxnRequest::default() };
            assert_eq!(store.ask(Query::Txn(hidden)), Err(KvError::QueryWrites));
        }
        assert_eq!(
            store.ask(Query::Txn(all(vec![op(Request::RequestRange(RangeRequest {
                revision: 3,
                ..range("a", "")
            }))]))),
            Err(KvError::FutureRevision)
        );
    }
}
