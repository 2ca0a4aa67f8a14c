//! Draws requests from a seed: every field of every request of the service KV, of leases but for their renewal, and of
//! alarms, valid and invalid, on a handful of keys and leases, so that requests meet.

use bytes::Bytes;
use fastrand::Rng;
use synod_api::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, alarm_request::AlarmAction, compare::TargetUnion, request_op::Request as Op,
};

/// A request for both systems.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Range(RangeRequest),
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    Grant(LeaseGrantRequest),
    Revoke(LeaseRevokeRequest),
    TimeToLive(LeaseTimeToLiveRequest),
    Leases(LeaseLeasesRequest),
    Alarm(AlarmRequest),
}

impl Request {
    /// The request's name in the report.
    pub fn kind(&self) -> &'static str {
        match self {
            Request::Range(_) => "Range",
            Request::Put(_) => "Put",
            Request::DeleteRange(_) => "DeleteRange",
            Request::Txn(_) => "Txn",
            Request::Compact(_) => "Compact",
            Request::Grant(_) => "LeaseGrant",
            Request::Revoke(_) => "LeaseRevoke",
            Request::TimeToLive(_) => "LeaseTimeToLive",
            Request::Leases(_) => "LeaseLeases",
            Request::Alarm(_) => "Alarm",
        }
    }

    /// Whether the request changes nothing, so that it may be outstanding together with others.
    pub fn is_read(&self) -> bool {
        match self {
            Request::Range(_) | Request::TimeToLive(_) | Request::Leases(_) => true,
            Request::Txn(txn) => only_reads(txn),
            Request::Alarm(alarm) => alarm.action() == AlarmAction::Get,
            Request::Put(_)
            | Request::DeleteRange(_)
            | Request::Compact(_)
            | Request::Grant(_)
            | Request::Revoke(_) => false,
        }
    }

    /// Whether one server may answer from its own state, without asking whether there is a newer one.
    pub fn may_be_stale(&self) -> bool {
        match self {
            Request::Range(range) => range.serializable,
            // etcd does so if no range in the transaction demands otherwise.
            Request::Txn(txn) => only_reads(txn),
            _ => false,
        }
    }
}

fn only_reads(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match &op.request {
        Some(Op::RequestTxn(nested)) => only_reads(nested),
        Some(Op::RequestPut(_) | Op::RequestDeleteRange(_)) => false,
        Some(Op::RequestRange(_)) | None => true,
    })
}

/// Ten odd keys. With no more than twelve pairs etcd's sorting keeps equals in order (see `differences.rs`).
const KEYS: [&[u8]; 10] =
    [b"a", b"a\0", b"ab", b"abc", b"b", b"\0", b"\xff", b"\xff\xff", b"key with a much longer name", b"z"];
/// Further keys that a sequence may put, to have large ranges.
const MORE_KEYS: u32 = 700;
/// Few values, so that they are often equal.
const VALUES: [&[u8]; 5] = [b"", b"1", b"2", b"\0\xff", b"a longer value that is the same each time"];
/// Operations that a transaction may have.
const OPS_MAX: usize = 128;
/// Most bytes of a request. gRPC accepts half a megabyte more. The rest of a command differs by a few bytes.
const REQUEST_BYTES_MAX: usize = 3 << 19;
const MESSAGE_BYTES_MAX: usize = REQUEST_BYTES_MAX + (1 << 19);
const AROUND: usize = 4 << 10;
/// Leases of these numbers are granted.
const LEASES: i64 = 3;
/// The member for which alarms are raised. There is none of this number.
const RAISED_BY: u64 = 77;
/// How deep transactions may be nested.
pub const DEPTH_MAX: usize = 48;

/// Draws the requests of a sequence, given what the servers hold.
#[derive(Debug)]
pub struct Draw {
    random: Rng,
    /// The newest revision that the servers have told.
    pub revision: i64,
    /// The revision of the last compaction.
    pub compacted: i64,
    /// Whether there are more than a handful of keys.
    many: bool,
    /// Whether orders and sort targets may be undefined numbers, and any alarms raised.
    is_new: bool,
    /// The alarms that were raised, by `RAISED_BY`, and not taken back.
    raised: Vec<AlarmType>,
}

impl Draw {
    /// The sequence of a seed, on stores at this revision. Of etcd before 3.6 (not `is_new`) an undefined order or sort
    /// target is the end, an alarm that is taken back takes the other with it, and nested puts need no space.
    pub fn new(seed: u64, revision: i64, is_new: bool) -> Draw {
        let mut random = Rng::with_seed(seed);
        let many = random.u8(..3) == 0;
        Draw { random, revision, compacted: revision, many, is_new, raised: Vec::new() }
    }

    /// The first requests of a sequence.
    pub fn beginning(&mut self) -> Vec<Request> {
        if !self.many {
            return Vec::new();
        }
        let mut keys: Vec<u32> = (0..MORE_KEYS).collect();
        self.random.shuffle(&mut keys);
        let mut put = |key: &u32| {
            let value = format!("{}", self.random.u32(..5 * MORE_KEYS)).into();
            Op::RequestPut(PutRequest { key: more_key(*key), value, ..PutRequest::default() })
        };
        let op = |request| RequestOp { request: Some(request) };
        let some = |keys: &[u32]| keys.iter().map(|key| op(put(key))).collect();
        let txns = keys.chunks(OPS_MAX).map(some);
        txns.map(|success| Request::Txn(TxnRequest { success, ..TxnRequest::default() })).collect()
    }

    /// Some reads, followed by a request that changes something.
    pub fn burst(&mut self) -> Vec<Request> {
        let reads = self.random.usize(..6);
        let mut burst: Vec<Request> = (0..reads).map(|_| self.read()).collect();
        burst.push(self.request());
        burst
    }

    fn read(&mut self) -> Request {
        match self.random.u8(..20) {
            0..5 => Request::Txn(self.txn(&mut Kinds::reads(), 0)),
            5 => Request::TimeToLive(LeaseTimeToLiveRequest { id: self.lease(), keys: self.random.bool() }),
            6 => Request::Leases(LeaseLeasesRequest {}),
            7 if self.one_in(4) => Request::Alarm(self.alarm(AlarmAction::Get)),
            _ => Request::Range(self.range()),
        }
    }

    fn request(&mut self) -> Request {
        if !self.raised.is_empty() && self.one_in(6) {
            return Request::Alarm(self.takes_back().expect("one was raised"));
        }
        match self.random.u8(..110) {
            0..40 => Request::Put(self.put(true)),
            40..55 => Request::DeleteRange(self.delete_range()),
            55..97 => {
                let mut kinds = Kinds::any(&mut self.random);
                Request::Txn(self.txn(&mut kinds, 0))
            }
            97..100 => Request::Compact(CompactionRequest {
                revision: self.some_revision(),
                physical: self.random.bool(),
            }),
            100..104 => {
                // None ends before the sequence does.
                let ttl =
                    if self.one_in(10) { [9_000_000_001, i64::MAX][self.random.usize(..2)] } else { 36_000 };
                Request::Grant(LeaseGrantRequest { ttl, id: self.random.i64(1..=LEASES) })
            }
            104..108 => Request::Revoke(LeaseRevokeRequest { id: self.lease() }),
            _ => {
                let raises = self.random.bool() && (self.is_new || self.raised.is_empty());
                let action = if raises { AlarmAction::Activate } else { AlarmAction::Deactivate };
                let mut alarm = self.alarm(action);
                if action == AlarmAction::Activate {
                    alarm.member_id = RAISED_BY;
                    if !self.is_new {
                        alarm.set_alarm(AlarmType::Corrupt);
                    }
                    self.raised.push(alarm.alarm());
                }
                Request::Alarm(alarm)
            }
        }
    }

    /// The last requests of a sequence, after which the servers take every request.
    pub fn ending(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.takes_back()).map(Request::Alarm).collect()
    }

    /// Takes an alarm back, if one was raised.
    fn takes_back(&mut self) -> Option<AlarmRequest> {
        let (action, alarm) = (AlarmAction::Deactivate.into(), self.raised.pop()?.into());
        Some(AlarmRequest { action, member_id: RAISED_BY, alarm })
    }

    fn lease(&mut self) -> i64 {
        if self.one_in(10) { [-1, 0, i64::MAX][self.random.usize(..3)] } else { self.random.i64(1..=LEASES) }
    }

    fn alarm(&mut self, action: AlarmAction) -> AlarmRequest {
        let alarm = [AlarmType::None, AlarmType::Nospace, AlarmType::Corrupt][self.random.usize(..3)];
        AlarmRequest {
            action: action.into(),
            member_id: self.random.u64(RAISED_BY - 1..=RAISED_BY),
            alarm: alarm.into(),
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn key(&mut self) -> Bytes {
        match self.random.u8(..60) {
            0 => Bytes::new(),
            1 => "a key that nobody puts".into(),
            2..8 if self.many => more_key(self.random.u32(..MORE_KEYS + 10)),
            _ => Bytes::from_static(KEYS[self.random.usize(..KEYS.len())]),
        }
    }

    fn range_end(&mut self) -> Bytes {
        match self.random.u8(..10) {
            0..4 => Bytes::new(),
            4..6 => Bytes::from_static(b"\0"),
            6 if self.many => "m9".into(),
            _ => self.key(),
        }
    }

    /// A revision: a past one, the present one, or a future one.
    fn some_revision(&mut self) -> i64 {
        match self.random.u8(..20) {
            0 => -1,
            1 => 0,
            2 => i64::MAX,
            3 => self.revision + self.random.i64(0..3),
            4 => self.compacted - self.random.i64(0..3),
            _ => self.random.i64(self.compacted..=self.revision),
        }
    }

    /// A number of an enumeration, and sometimes one that is not in it.
    fn choice(&mut self, count: i32) -> i32 {
        if self.one_in(80) { [-1, count, 99][self.random.usize(..3)] } else { self.random.i32(0..count) }
    }

    fn sort_choice(&mut self, count: i32) -> i32 {
        if self.is_new { self.choice(count) } else { self.random.i32(0..count) }
    }

    fn limit(&mut self) -> i64 {
        match self.random.u8(..10) {
            0..5 => 0,
            5 => [-1, i64::MAX, i64::MIN, 512, 513, 600][self.random.usize(..6)],
            _ => self.random.i64(1..12),
        }
    }

    fn range(&mut self) -> RangeRequest {
        let mut bound = |one_in| if self.one_in(one_in) { self.some_revision() } else { 0 };
        let revision = bound(4);
        let bounds = [bound(10), bound(10), bound(10), bound(10)];
        let sorts = self.one_in(2);
        RangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            limit: self.limit(),
            revision,
            sort_order: if sorts { self.sort_choice(3) } else { 0 },
            sort_target: if sorts { self.sort_choice(5) } else { 0 },
            serializable: self.one_in(4),
            keys_only: self.one_in(5),
            count_only: self.one_in(8),
            min_mod_revision: bounds[0],
            max_mod_revision: bounds[1],
            min_create_revision: bounds[2],
            max_create_revision: bounds[3],
        }
    }

    fn value(&mut self) -> Bytes {
        let around = |random: &mut Rng, size: usize| random.usize(size - AROUND..size + AROUND);
        let size = match self.random.u32(..400) {
            0 => match self.random.u8(..4) {
                // The size is not so near to the bound that the envelope decides.
                0 => REQUEST_BYTES_MAX - AROUND,
                1 => REQUEST_BYTES_MAX + AROUND,
                2 => MESSAGE_BYTES_MAX + around(&mut self.random, AROUND),
                _ => self.random.usize(..REQUEST_BYTES_MAX - AROUND),
            },
            1..10 => around(&mut self.random, 16 << 10),
            10..40 => self.random.usize(..300),
            _ => return Bytes::from_static(VALUES[self.random.usize(..VALUES.len())]),
        };
        vec![b'v'; size].into()
    }

    /// A put. If `ignores`, it may ask to keep the value or the lease.
    fn put(&mut self, ignores: bool) -> PutRequest {
        let ignore_value = ignores && self.one_in(10);
        PutRequest {
            key: self.key(),
            value: if ignore_value && !self.one_in(4) { Bytes::new() } else { self.value() },
            lease: if self.one_in(10) { self.lease() } else { 0 },
            prev_kv: self.one_in(3),
            ignore_value,
            ignore_lease: ignores && self.one_in(12),
        }
    }

    fn delete_range(&mut self) -> DeleteRangeRequest {
        // Ranges are rare; otherwise the store would hardly hold anything.
        let range_end = if self.one_in(4) { self.range_end() } else { Bytes::new() };
        DeleteRangeRequest { key: self.key(), range_end, prev_kv: self.random.bool() }
    }

    fn txn(&mut self, kinds: &mut Kinds, depth: usize) -> TxnRequest {
        if depth == 0 && self.one_in(150) {
            return self.deep_txn();
        }
        TxnRequest {
            compare: self.list(|draw| draw.compare()),
            success: self.list(|draw| draw.op(kinds, depth)),
            failure: self.list(|draw| draw.op(kinds, depth)),
        }
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Draw) -> T) -> Vec<T> {
        let len = match self.random.u32(..400) {
            0 => self.random.usize(OPS_MAX - 3..OPS_MAX + 3),
            1..5 => self.random.usize(..20),
            _ => self.random.usize(..4),
        };
        (0..len).map(|_| one(self)).collect()
    }

    fn op(&mut self, kinds: &mut Kinds, depth: usize) -> RequestOp {
        let request = match self.random.u8(..60) {
            0 => return RequestOp { request: None },
            1..12 if depth < 4 => Op::RequestTxn(self.txn(kinds, depth + 1)),
            12..32 if kinds.puts => Op::RequestPut(self.put(kinds.ignores)),
            32..42 if kinds.deletes => Op::RequestDeleteRange(self.delete_range()),
            _ => Op::RequestRange(self.range()),
        };
        RequestOp { request: Some(request) }
    }

    /// Many nested transactions, about as many as are allowed.
    fn deep_txn(&mut self) -> TxnRequest {
        let depth = self.random.usize(DEPTH_MAX - 2..DEPTH_MAX + 3);
        nested(depth, Op::RequestRange(RangeRequest { key: self.key(), ..RangeRequest::default() }))
    }

    fn compare(&mut self) -> Compare {
        let target = self.choice(5);
        // As a rule the given value fits the target.
        let union = if self.one_in(30) { self.random.i32(0..6) } else { target };
        let number = match self.random.u8(..3) {
            0 => self.some_revision(),
            _ => self.random.i64(0..4),
        };
        Compare {
            result: self.choice(4),
            target,
            key: self.key(),
            range_end: self.range_end(),
            target_union: match union {
                0 => Some(TargetUnion::Version(number)),
                1 => Some(TargetUnion::CreateRevision(number)),
                2 => Some(TargetUnion::ModRevision(number)),
                3 => Some(TargetUnion::Value(Bytes::from_static(VALUES[self.random.usize(..VALUES.len())]))),
                4 => Some(TargetUnion::Lease(number)),
                _ => None,
            },
        }
    }
}

/// An operation in this many nested transactions.
pub fn nested(depth: usize, op: Op) -> TxnRequest {
    let around =
        |inner| TxnRequest { success: vec![RequestOp { request: Some(inner) }], ..TxnRequest::default() };
    (1..depth).fold(around(op), |txn, _| around(Op::RequestTxn(txn)))
}

fn more_key(number: u32) -> Bytes {
    format!("m{number:03}").into()
}

/// The operations that a transaction may have. A deletion and a put that relies on what it deletes do not
/// occur together, since that ends etcd (see `differences.rs`).
#[derive(Clone, Copy, Debug)]
struct Kinds {
    puts: bool,
    deletes: bool,
    ignores: bool,
}

impl Kinds {
    fn reads() -> Kinds {
        Kinds { puts: false, deletes: false, ignores: false }
    }

    fn any(random: &mut Rng) -> Kinds {
        let deletes = random.bool();
        Kinds { puts: true, deletes, ignores: !deletes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64) -> Vec<Request> {
        let mut draw = Draw::new(seed, 10, true);
        draw.revision = 50;
        let beginning = draw.beginning();
        beginning.into_iter().chain((0..1000).flat_map(|_| draw.burst())).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_requests_of_every_kind() {
        assert!(drawn(1) == drawn(1) && drawn(1) != drawn(2));
        let said = (1..4).map(|seed| format!("{:?}", drawn(seed))).collect::<String>();
        for field in [
            "RequestTxn",
            "RequestRange",
            "RequestDeleteRange",
            "RequestPut",
            "request: None",
            "Compact(",
            "count_only: true",
            "keys_only: true",
            "serializable: true",
            "sort_order: Descend",
            "sort_target: 99",
            "ignore_value: true",
            "ignore_lease: true",
            "prev_kv: true",
            "physical: true",
            "target: Lease",
            "target_union: None",
            "key: b\"\"",
            "range_end: b\"\\0\"",
            "limit: -1",
            "revision: -1",
            "key: b\"m",
            "Grant(",
            "ttl: 9000000001",
            "Revoke(",
            "TimeToLive(",
            "keys: true",
            "Leases(",
            "action: Get",
            "action: Activate, member_id: 77, alarm: Corrupt",
            "action: Activate, member_id: 77, alarm: Nospace",
            "action: Deactivate, member_id: 76",
        ] {
            assert!(said.contains(field), "{field} is never drawn");
        }
        let limits = 1 << 19;
        let sizes = |least: usize| {
            let put = |request: &Request| matches!(request, Request::Put(put) if put.value.len() > least);
            (1..20).flat_map(drawn).any(|request| put(&request))
        };
        assert!(sizes(limits) && sizes(REQUEST_BYTES_MAX), "no large values");
    }

    /// Such a transaction would end etcd.
    #[test]
    fn nothing_is_left_as_it_was_where_something_is_deleted() {
        for request in (1..4).flat_map(drawn) {
            let Request::Txn(_) = &request else { continue };
            let said = format!("{request:?}");
            let ignores = said.contains("ignore_value: true") || said.contains("ignore_lease: true");
            assert!(!(ignores && said.contains("RequestDeleteRange")), "{said}");
        }
    }
}
