//! Checks of requests that need no store.
//!
//! The server makes them before ordering, so that invalid requests take no room in the log. The store makes
//! them again, since not every command comes through a server.

mod encoded;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use prost::Message;
use synod_api::{
    etcdserverpb::{
        AlarmRequest, AlarmType, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        alarm_request::AlarmAction,
        range_request::{SortOrder, SortTarget},
        request_op::Request,
    },
    synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
};
use synod_replica::ANSWER_BYTES_MAX;

pub use self::encoded::{encoded_command, encoded_query, encoded_txn};
use crate::{
    KvError,
    range::{End, end_of},
};

/// Limits that a server sets. They are checked only before ordering, so replicas may differ in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most operations in a list of a transaction. Nested transactions are counted as etcd does: each level
    /// has what the longest list of the level above it leaves. All lists together have at most
    /// [`txn_ops_total_max`](Limits::txn_ops_total_max).
    pub txn_ops_max: usize,
    /// Most bytes of an encoded command.
    pub request_bytes_max: usize,
    /// Most bytes of a command's answer; at most [`ANSWER_BYTES_MAX`].
    pub answer_bytes_max: u64,
}

impl Limits {
    /// No limits, for the store's own checks.
    pub(crate) const NONE: Limits =
        Limits { txn_ops_max: usize::MAX, request_bytes_max: usize::MAX, answer_bytes_max: ANSWER_BYTES_MAX };

    /// Most operations and comparisons of a transaction in all its lists, those of nested transactions among them. The
    /// rule for each list does not bound their number: it multiplies with each level.
    #[must_use]
    pub fn txn_ops_total_max(&self) -> usize {
        self.txn_ops_max.saturating_mul(TXN_OPS_TOTAL_FACTOR)
    }
}

impl Default for Limits {
    /// etcd's limits, 128 operations and 1.5 MiB, and answers of 64 MiB.
    fn default() -> Limits {
        Limits { txn_ops_max: 128, request_bytes_max: 3 << 19, answer_bytes_max: ANSWER_BYTES_MAX }
    }
}

/// How deep transactions may be nested, the outermost one counted. A request is decoded again as a part of a
/// command, where it lies one message deeper; prost decodes 100 messages deep, and each transaction takes two.
pub const TXN_DEPTH_MAX: usize = 48;

/// A transaction and those nested in it have at most this many times as many operations and comparisons as one list of
/// a transaction may have. The three lists of a transaction that is not nested have three times as many.
const TXN_OPS_TOTAL_FACTOR: usize = 16;

/// Checks a command.
///
/// # Errors
/// Those of the other functions here, [`KvError::RequestTooLarge`], and [`KvError::Malformed`] if the command is empty.
pub fn command(command: &KvCommand, limits: &Limits) -> Result<(), KvError> {
    match &command.command {
        Some(Command::Put(request)) => put(request)?,
        Some(Command::DeleteRange(request)) => delete_range(request)?,
        Some(Command::Txn(request)) => txn(request, limits)?,
        Some(Command::Compact(_)) => {}
        Some(Command::Alarm(request)) => alarm(request)?,
        // Whether they make sense depends on the leases that there are.
        Some(Command::LeaseGrant(_) | Command::LeaseRevoke(_) | Command::LeaseRenew(_)) => {}
        // Nothing is done with them here.
        Some(Command::HashCheck(_)) => {}
        // Whether it makes sense depends on the users and roles that there are.
        Some(Command::Auth(change)) if change.change.is_some() => {}
        Some(Command::Auth(_)) | None => return Err(KvError::Malformed("command")),
    }
    // The size is checked last: etcd reports the other error of a request that is both wrong and too large.
    if limits.request_bytes_max != usize::MAX && command.encoded_len() > limits.request_bytes_max {
        return Err(KvError::RequestTooLarge);
    }
    Ok(())
}

/// Checks a query.
///
/// # Errors
/// Those of the other functions here, [`KvError::QueryWrites`], [`KvError::RequestTooLarge`], and
/// [`KvError::Malformed`] if the query is empty.
pub fn query(query: &KvQuery, limits: &Limits) -> Result<(), KvError> {
    match &query.query {
        Some(Query::Range(request)) => range(request)?,
        Some(Query::Txn(request)) => {
            txn(request, limits)?;
            if !is_read_only(request) {
                return Err(KvError::QueryWrites);
            }
        }
        // There is nothing to check in them.
        Some(Query::HashKv(_) | Query::Status(_) | Query::LeaseTimeToLive(_) | Query::LeaseLeases(_)) => {}
        // Those of members.
        Some(Query::EtcdSnapshot(_) | Query::Auth(_)) => {}
        None => return Err(KvError::Malformed("query")),
    }
    if limits.request_bytes_max != usize::MAX && query.encoded_len() > limits.request_bytes_max {
        return Err(KvError::RequestTooLarge);
    }
    Ok(())
}

/// Checks a read.
///
/// # Errors
/// [`KvError::EmptyKey`], [`KvError::InvalidSortOption`].
pub fn range(request: &RangeRequest) -> Result<(), KvError> {
    check_key(&request.key)?;
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(KvError::InvalidSortOption);
    }
    Ok(())
}

/// Checks a put.
///
/// # Errors
/// [`KvError::EmptyKey`], [`KvError::ValueProvided`], [`KvError::LeaseProvided`].
pub fn put(request: &PutRequest) -> Result<(), KvError> {
    check_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(KvError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(KvError::LeaseProvided);
    }
    Ok(())
}

/// Checks a deletion.
///
/// # Errors
/// [`KvError::EmptyKey`].
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), KvError> {
    check_key(&request.key)
}

/// Checks a transaction.
///
/// # Errors
/// [`KvError::NestedTooDeeply`], [`KvError::TooManyOps`], [`KvError::DuplicateKey`], [`KvError::KeyNotFound`] for an
/// empty operation, and those of the operations in it.
pub fn txn(request: &TxnRequest, limits: &Limits) -> Result<(), KvError> {
    check_ops(request, limits.txn_ops_max, &mut limits.txn_ops_total_max(), TXN_DEPTH_MAX)?;
    Footprint::of(&request.success)?;
    Footprint::of(&request.failure)?;
    Ok(())
}

/// Checks an alarm request.
///
/// # Errors
/// [`KvError::BadAlarm`] for an action or alarm that is not defined.
pub fn alarm(request: &AlarmRequest) -> Result<(), KvError> {
    if AlarmAction::try_from(request.action).is_err() {
        return Err(KvError::BadAlarm("no such alarm action"));
    }
    if AlarmType::try_from(request.alarm).is_err() {
        return Err(KvError::BadAlarm("no such alarm"));
    }
    Ok(())
}

/// Whether a transaction has no put and no deletion on any path. Such a transaction can be a query.
#[must_use]
pub fn is_read_only(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).all(|op| match &op.request {
        Some(Request::RequestRange(_)) => true,
        Some(Request::RequestTxn(nested)) => is_read_only(nested),
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) | None => false,
    })
}

/// Whether a transaction has another one in it.
pub(crate) fn has_nested(request: &TxnRequest) -> bool {
    let nested = |op: &RequestOp| matches!(op.request, Some(Request::RequestTxn(_)));
    request.success.iter().chain(&request.failure).any(nested)
}

/// Whether a transaction only reads and its reads accept stale data: there is at least one range, at any
/// depth, and all ranges are serializable. A transaction that only compares does not ask for stale data.
#[must_use]
pub fn is_serializable(request: &TxnRequest) -> bool {
    let mut serializable = ranges(request).peekable();
    is_read_only(request) && serializable.peek().is_some() && serializable.all(|range| range.serializable)
}

/// The ranges of a transaction, on every path and at any depth.
fn ranges(request: &TxnRequest) -> Box<dyn Iterator<Item = &RangeRequest> + '_> {
    Box::new(request.success.iter().chain(&request.failure).flat_map(|op| match &op.request {
        Some(Request::RequestRange(range)) => Box::new(std::iter::once(range)),
        Some(Request::RequestTxn(nested)) => ranges(nested),
        _ => Box::new(std::iter::empty()),
    }))
}

fn check_key(key: &[u8]) -> Result<(), KvError> {
    if key.is_empty() { Err(KvError::EmptyKey) } else { Ok(()) }
}

/// Checks the operations of a transaction, which has at most `ops_max` in each list, and takes all of them from
/// `total_left`.
fn check_ops(
    request: &TxnRequest,
    ops_max: usize,
    total_left: &mut usize,
    depth_left: usize,
) -> Result<(), KvError> {
    let below = depth_left.checked_sub(1).ok_or(KvError::NestedTooDeeply)?;
    let lists = [request.compare.len(), request.success.len(), request.failure.len()];
    let left = ops_max.checked_sub(lists.into_iter().max().unwrap_or(0)).ok_or(KvError::TooManyOps)?;
    *total_left = total_left.checked_sub(lists.into_iter().sum()).ok_or(KvError::TooManyOps)?;
    request.compare.iter().try_for_each(|compare| check_key(&compare.key))?;
    request.success.iter().chain(&request.failure).try_for_each(|op| match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(nested)) => check_ops(nested, left, total_left, below),
        None => Err(KvError::KeyNotFound),
    })
}

/// The keys that a list of operations may put, and the ranges that it may delete.
///
/// The rules are etcd's: a key is put at most once on any path, and not put where this list or an *earlier*
/// nested transaction deletes. A deletion in a later nested transaction passes, as does one up to the end of
/// all keys (`range_end` "\0"), which etcd's interval arithmetic takes for empty. The store executes such
/// operations in order.
#[derive(Default)]
struct Footprint<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Intervals<'a>,
}

impl<'a> Footprint<'a> {
    fn of(ops: &'a [RequestOp]) -> Result<Footprint<'a>, KvError> {
        let mut all = Footprint::default();
        for op in ops {
            if let Some(Request::RequestDeleteRange(request)) = &op.request {
                all.deletes.insert_range(&request.key, &request.range_end);
            }
        }
        for op in ops {
            if let Some(Request::RequestTxn(nested)) = &op.request {
                let success = Footprint::of(&nested.success)?;
                let failure = Footprint::of(&nested.failure)?;
                all.add_branches(success, failure)?;
            }
        }
        for op in ops {
            if let Some(Request::RequestPut(request)) = &op.request {
                all.add_put(&request.key)?;
            }
        }
        Ok(all)
    }

    fn add_put(&mut self, key: &'a [u8]) -> Result<(), KvError> {
        if self.deletes.contain(key) || !self.puts.insert(key) {
            return Err(KvError::DuplicateKey);
        }
        Ok(())
    }

    /// Adds both branches of a nested transaction. Only one of them will run, so both may put the same key.
    fn add_branches(&mut self, mut success: Footprint<'a>, failure: Footprint<'a>) -> Result<(), KvError> {
        let either = |own: &Footprint<'a>, branch: &Footprint<'a>| {
            branch.puts.iter().any(|key| own.puts.contains(key) || own.deletes.contain(key))
        };
        if either(self, &success) || either(self, &failure) {
            return Err(KvError::DuplicateKey);
        }
        success.puts.extend(failure.puts);
        // The smaller set is merged into the larger, so that deep nesting does not copy the keys once a level.
        if self.puts.len() < success.puts.len() {
            mem::swap(&mut self.puts, &mut success.puts);
        }
        self.puts.extend(success.puts);
        self.deletes.insert_all(success.deletes);
        self.deletes.insert_all(failure.deletes);
        Ok(())
    }
}

/// A set of keys: single ones, and disjoint ranges from a first key to the first key beyond.
#[derive(Default)]
struct Intervals<'a> {
    points: BTreeSet<&'a [u8]>,
    ranges: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Intervals<'a> {
    fn insert_range(&mut self, key: &'a [u8], range_end: &'a [u8]) {
        match end_of(range_end) {
            End::Single => _ = self.points.insert(key),
            End::Before(end) => self.insert(key, end),
            End::Unbounded => {}
        }
    }

    fn insert(&mut self, mut start: &'a [u8], mut end: &'a [u8]) {
        if start >= end {
            return;
        }
        if let Some((&left, &left_end)) = self.ranges.range(..=start).next_back()
            && left_end >= start
        {
            start = left;
            end = end.max(left_end);
        }
        while let Some((&right, &right_end)) = self.ranges.range(start..=end).next() {
            end = end.max(right_end);
            self.ranges.remove(right);
        }
        self.ranges.insert(start, end);
    }

    fn insert_all(&mut self, mut other: Intervals<'a>) {
        if self.points.len() + self.ranges.len() < other.points.len() + other.ranges.len() {
            mem::swap(self, &mut other);
        }
        self.points.extend(other.points);
        other.ranges.into_iter().for_each(|(start, end)| self.insert(start, end));
    }

    fn contain(&self, key: &[u8]) -> bool {
        self.points.contains(key) || self.ranges.range(..=key).next_back().is_some_and(|(_, &end)| key < end)
    }
}

#[cfg(test)]
mod tests {
    use synod_api::etcdserverpb::Compare;

    use super::*;
    use crate::testing::{self, all, op_delete, op_put, op_range, op_txn, range as range_request};

    fn check(ops: Vec<RequestOp>) -> Result<(), KvError> {
        txn(&all(ops), &Limits::default())
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        op_txn(TxnRequest { compare: Vec::new(), success, failure })
    }

    #[test]
    fn single_requests() {
        assert_eq!(range(&range_request("", "z")), Err(KvError::EmptyKey));
        let sorted =
            |sort_order, sort_target| RangeRequest { sort_order, sort_target, ..range_request("k", "") };
        assert_eq!(range(&sorted(2, 4)), Ok(()));
        assert_eq!(range(&sorted(3, 0)), Err(KvError::InvalidSortOption));
        assert_eq!(range(&sorted(0, 5)), Err(KvError::InvalidSortOption));
        assert_eq!(range(&sorted(-1, 0)), Err(KvError::InvalidSortOption));
        assert_eq!(delete_range(&testing::delete("", "z")), Err(KvError::EmptyKey));
        assert_eq!(put(&testing::put("", "v")), Err(KvError::EmptyKey));
        let ignoring = |value: &'static str, ignore_value, lease, ignore_lease| {
            put_request("k", value, ignore_value, lease, ignore_lease)
        };
        assert_eq!(put(&ignoring("", true, 0, true)), Ok(()));
        assert_eq!(put(&ignoring("v", true, 0, false)), Err(KvError::ValueProvided));
        assert_eq!(put(&ignoring("v", false, 7, true)), Err(KvError::LeaseProvided));
    }

    fn put_request(key: &str, value: &str, ignore_value: bool, lease: i64, ignore_lease: bool) -> PutRequest {
        PutRequest { lease, ignore_value, ignore_lease, ..testing::put(key, value) }
    }

    #[test]
    fn commands() {
        let limits = Limits { request_bytes_max: 100, ..Limits::default() };
        let of = |value: &str| KvCommand {
            command: Some(Command::Put(testing::put("k", value))),
            ..KvCommand::default()
        };
        assert_eq!(command(&of("small"), &limits), Ok(()));
        assert_eq!(command(&of(&"x".repeat(100)), &limits), Err(KvError::RequestTooLarge));
        let wrong = Command::Put(testing::put("", &"x".repeat(100)));
        let wrong = KvCommand { command: Some(wrong), ..KvCommand::default() };
        assert_eq!(
            command(&wrong, &limits),
            Err(KvError::EmptyKey),
            "what is wrong comes first, as with etcd"
        );
        assert_eq!(command(&KvCommand::default(), &limits), Err(KvError::Malformed("command")));
        let bad_alarm = |action, alarm| {
            let alarm = AlarmRequest { action, member_id: 1, alarm };
            command(&KvCommand { command: Some(Command::Alarm(alarm)), ..KvCommand::default() }, &limits)
        };
        assert_eq!(bad_alarm(1, 1), Ok(()));
        assert!(matches!(bad_alarm(3, 1), Err(KvError::BadAlarm(_))));
        assert!(matches!(bad_alarm(1, 3), Err(KvError::BadAlarm(_))));
    }

    #[test]
    fn operations_of_a_transaction_are_checked_at_every_depth() {
        let deep = |op: RequestOp| check(vec![nested(vec![], vec![nested(vec![op], vec![])])]);
        assert_eq!(deep(op_put("k", "v")), Ok(()));
        assert_eq!(deep(op_put("", "v")), Err(KvError::EmptyKey));
        assert_eq!(deep(op_delete("", "")), Err(KvError::EmptyKey));
        assert_eq!(deep(op_range("", "")), Err(KvError::EmptyKey));
        assert_eq!(deep(RequestOp { request: None }), Err(KvError::KeyNotFound));
        let without_key = TxnRequest { compare: vec![Compare::default()], ..TxnRequest::default() };
        assert_eq!(deep(op_txn(without_key)), Err(KvError::EmptyKey));
    }

    #[test]
    fn operations_are_counted_down_the_levels() {
        let ops = |count: usize| (0..count).map(|n| op_put(&n.to_string(), "v")).collect::<Vec<_>>();
        assert_eq!(check(ops(128)), Ok(()));
        assert_eq!(check(ops(129)), Err(KvError::TooManyOps));
        assert_eq!(check(vec![nested(ops(127), ops(127))]), Ok(()));
        assert_eq!(check(vec![nested(ops(1), ops(128))]), Err(KvError::TooManyOps));
        let compare = Compare { key: "k".into(), ..Compare::default() };
        let comparing = TxnRequest { compare: vec![compare; 129], ..TxnRequest::default() };
        assert_eq!(txn(&comparing, &Limits::default()), Err(KvError::TooManyOps));
        assert_eq!(txn(&comparing, &Limits { txn_ops_max: 129, ..Limits::default() }), Ok(()));
    }

    /// Lists of 35, 35 and 34 have 104 of the 128 operations that a level may have, and 333,200 in all.
    #[test]
    fn operations_of_all_nested_transactions_are_counted_together() {
        let tree = |widths: [usize; 3]| {
            let leaf = op_txn(TxnRequest::default());
            let wide = |op: RequestOp, width: usize| nested(vec![op.clone(); width], vec![op; width]);
            let [outer, middle, inner] = widths;
            let ops = vec![wide(wide(leaf, inner), middle); outer];
            TxnRequest { success: ops.clone(), failure: ops, ..TxnRequest::default() }
        };
        for widths in [[35, 35, 34], [16, 16, 15], [9, 8, 7]] {
            assert_eq!(txn(&tree(widths), &Limits::default()), Err(KvError::TooManyOps), "{widths:?}");
        }
        // 10 + 120 + 1,920 operations are 2,050, and with 7 leaves in each innermost list there are 1,810.
        assert_eq!(txn(&tree([5, 6, 8]), &Limits::default()), Err(KvError::TooManyOps));
        assert_eq!(txn(&tree([5, 6, 7]), &Limits::default()), Ok(()));
        assert_eq!(txn(&tree([9, 8, 7]), &Limits::NONE), Ok(()), "a command that was ordered is executed");
    }

    #[test]
    fn a_key_is_put_once_on_a_path() {
        let duplicate = Err(KvError::DuplicateKey);
        assert_eq!(check(vec![op_put("a", "1"), op_put("b", "1")]), Ok(()));
        assert_eq!(check(vec![op_put("a", "1"), op_put("a", "2")]), duplicate);
        // The branches of a nested transaction exclude each other, but not what lies around them.
        let both = || nested(vec![op_put("a", "1")], vec![op_put("a", "2")]);
        assert_eq!(check(vec![both()]), Ok(()));
        assert_eq!(check(vec![both(), op_put("a", "3")]), duplicate);
        assert_eq!(check(vec![op_put("a", "3"), both()]), duplicate);
        assert_eq!(check(vec![both(), both()]), duplicate);
        assert_eq!(check(vec![nested(vec![both()], vec![both()])]), Ok(()));
        assert_eq!(
            check(vec![nested(vec![], vec![op_put("a", "1")]), nested(vec![both()], vec![])]),
            duplicate
        );
        let failure_only =
            TxnRequest { failure: vec![op_put("a", "1"), op_put("a", "2")], ..TxnRequest::default() };
        assert_eq!(txn(&failure_only, &Limits::default()), duplicate);
    }

    #[test]
    fn a_put_key_is_not_deleted() {
        let duplicate = Err(KvError::DuplicateKey);
        assert_eq!(check(vec![op_put("a", "1"), op_delete("a", "")]), duplicate);
        assert_eq!(check(vec![op_delete("a", ""), op_put("a", "1")]), duplicate);
        assert_eq!(check(vec![op_delete("a", "c"), op_put("b", "1")]), duplicate);
        assert_eq!(check(vec![op_delete("a", "c"), op_put("c", "1")]), Ok(()));
        assert_eq!(check(vec![op_delete("a", "c"), op_delete("b", "d"), op_delete("b", "")]), Ok(()));
        assert_eq!(check(vec![op_delete("a", "c"), op_delete("b", "d"), op_put("c", "1")]), duplicate);
        assert_eq!(check(vec![op_delete("c", "a"), op_put("b", "1")]), Ok(()));
        // A nested transaction conflicts with the deletions around it and those of earlier nested ones, not
        // those of later ones.
        let put_b = || nested(vec![op_put("b", "1")], vec![]);
        let delete_b = || nested(vec![], vec![op_delete("b", "c")]);
        assert_eq!(check(vec![put_b(), op_delete("b", "")]), duplicate);
        assert_eq!(check(vec![delete_b(), put_b()]), duplicate);
        assert_eq!(check(vec![delete_b(), op_put("b", "1")]), duplicate);
        assert_eq!(check(vec![put_b(), delete_b()]), Ok(()));
        // As in etcd, a deletion to the end of all keys goes unnoticed.
        assert_eq!(check(vec![op_delete("a", "\0"), op_put("b", "1")]), Ok(()));
    }

    #[test]
    fn intervals_agree_with_a_list_of_ranges() {
        let mut random = fastrand::Rng::with_seed(7);
        let keys: Vec<[u8; 1]> = (0..40).map(|n| [n + 1]).collect();
        for _ in 0..500 {
            let mut parts = [Intervals::default(), Intervals::default()];
            let mut list = Vec::new();
            for _ in 0..random.usize(0..12) {
                let (start, end) = (random.usize(0..40), random.usize(0..40));
                let single = random.u8(0..4) == 0;
                let range_end: &[u8] = if single { &[] } else { &keys[end] };
                parts[random.usize(0..2)].insert_range(&keys[start], range_end);
                list.push(if single { start..start + 1 } else { start..end });
            }
            let [mut all, other] = parts;
            all.insert_all(other);
            for (n, key) in keys.iter().enumerate() {
                assert_eq!(all.contain(key), list.iter().any(|range| range.contains(&n)), "{n} in {list:?}");
            }
        }
    }

    #[test]
    fn kinds_of_transactions() {
        let read = |serializable| {
            all(vec![RequestOp {
                request: Some(Request::RequestRange(RangeRequest {
                    serializable,
                    ..range_request("a", "b")
                })),
            }])
        };
        let around = |inner| all(vec![op_txn(inner)]);
        assert!(is_read_only(&read(false)) && !is_serializable(&read(false)));
        assert!(is_read_only(&around(read(true))) && is_serializable(&around(read(true))));
        // None of these asks for stale data.
        for compares in [all(vec![]), around(all(vec![])), around(around(all(vec![])))] {
            assert!(is_read_only(&compares) && !is_serializable(&compares));
        }
        let beside = |inner: TxnRequest| all([inner.success, vec![op_txn(all(vec![]))]].concat());
        assert!(is_serializable(&beside(read(true))) && !is_serializable(&beside(read(false))));
        for write in [op_put("a", "1"), op_delete("a", "")] {
            let failure = TxnRequest { failure: vec![write], ..read(true) };
            assert!(!is_read_only(&around(failure.clone())) && !is_serializable(&around(failure)));
        }
    }
}
