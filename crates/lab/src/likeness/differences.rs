//! Compares two answers to one request, and knows in which ways they may differ.
//!
//! A known difference is asserted: a rule says what each system answers, and everything else in the answers
//! must be equal.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use synod_api::{
    etcdserverpb::{
        AlarmResponse, CompactionResponse, DeleteRangeResponse, LeaseGrantResponse, LeaseLeasesResponse,
        LeaseRevokeResponse, LeaseTimeToLiveResponse, PutResponse, RangeRequest, RangeResponse, RequestOp,
        ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
        range_request::{SortOrder, SortTarget},
        request_op::Request as Op,
        response_op::Response,
    },
    mvccpb::KeyValue,
};

use super::draw::{DEPTH_MAX, Request};

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Range(RangeResponse),
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    Grant(LeaseGrantResponse),
    Revoke(LeaseRevokeResponse),
    TimeToLive(LeaseTimeToLiveResponse),
    Leases(LeaseLeasesResponse),
    Alarm(AlarmResponse),
    /// The code and the message of an error.
    Refused(tonic::Code, String),
}

impl Answer {
    /// The header, without the fields that name the member that answered.
    pub fn header_mut(&mut self) -> Option<&mut ResponseHeader> {
        match self {
            Answer::Range(answer) => answer.header.as_mut(),
            Answer::Put(answer) => answer.header.as_mut(),
            Answer::DeleteRange(answer) => answer.header.as_mut(),
            Answer::Txn(answer) => answer.header.as_mut(),
            Answer::Compact(answer) => answer.header.as_mut(),
            Answer::Grant(answer) => answer.header.as_mut(),
            Answer::Revoke(answer) => answer.header.as_mut(),
            Answer::TimeToLive(answer) => answer.header.as_mut(),
            Answer::Leases(answer) => answer.header.as_mut(),
            Answer::Alarm(answer) => answer.header.as_mut(),
            Answer::Refused(..) => None,
        }
    }
}

/// A way in which answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    CutBeforeSorting,
    OrderOfEquals,
    Depth,
    FirstError,
    LeaseOfKey,
}

/// Every known difference that random requests meet, with what each system does and why it stays.
pub const KNOWN: [(Difference, &str); 5] = [
    (
        Difference::CutBeforeSorting,
        "a range with a limit and a sort target but no order: Synod sorts all and cuts then, as with an order; etcd cuts in the \
         order of keys, to one more than the limit, sorts these, and cuts again. Synod's answer is what was asked for",
    ),
    (
        Difference::OrderOfEquals,
        "a range sorted by what several keys have in common: Synod keeps those in the order of their keys; etcd leaves \
         their order open if there are more than twelve pairs (before 3.6: more than six)",
    ),
    (
        Difference::Depth,
        "more than 48 transactions in each other: Synod refuses them, since it reads messages 100 deep; etcd executes them",
    ),
    (
        Difference::FirstError,
        "a transaction with a put and a range neither of which can be executed, before 3.6: Synod says what is wrong with the \
         first of them, as 3.6 does; etcd says what is wrong with the put",
    ),
    (
        Difference::LeaseOfKey,
        "a range with `keys_only`: Synod tells the lease of a key, as etcd before 3.7 does; 3.7 tells none, unless it sorts by \
         values",
    ),
];

/// By how many seconds the rest of a lease's time may differ: as long as a sequence takes.
const TTL_ERROR_MAX: u64 = 600;

/// The result of comparing two answers.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// They differ in known ways only.
    Known(BTreeSet<Difference>),
    Differ,
}

/// Compares the answers of both systems. In the headers only the revision counts, since the member that
/// answered and its term depend on the cluster.
///
/// `is_new` says that etcd is of version 3.6 or later.
pub fn judge(request: &Request, mut synod: Answer, mut etcd: Answer, is_new: bool) -> Verdict {
    for answer in [&mut synod, &mut etcd] {
        if let Some(header) = answer.header_mut() {
            *header = ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
        }
        without_order(answer);
    }
    if let (Answer::TimeToLive(ours), Answer::TimeToLive(theirs)) = (&synod, &mut etcd)
        && ours.ttl > 0
        && theirs.ttl > 0
        && ours.ttl.abs_diff(theirs.ttl) <= TTL_ERROR_MAX
    {
        theirs.ttl = ours.ttl;
    }
    if synod == etcd {
        return Verdict::Same;
    }
    let mut met = BTreeSet::new();
    // Go's sort.Sort keeps the order of up to this many elements: it sorts them by insertion. Before Go 1.19
    // it took other steps from seven on.
    let in_order = if is_new { 12 } else { 6 };
    match (request, &synod, &mut etcd) {
        (Request::Range(request), Answer::Range(ours), Answer::Range(theirs)) => {
            reconcile(request, ours, theirs, in_order, &mut met);
        }
        (Request::Txn(request), Answer::Txn(ours), Answer::Txn(theirs)) => {
            reconcile_txn(request, ours, theirs, in_order, &mut met);
        }
        (Request::Txn(_), Answer::Refused(tonic::Code::OutOfRange, _), Answer::Refused(_, why))
            if !is_new && is_of_put(why) =>
        {
            return Verdict::Known([Difference::FirstError].into());
        }
        (Request::Txn(request), Answer::Refused(tonic::Code::InvalidArgument, why), theirs)
            if depth(request) > DEPTH_MAX
                && why == "etcdserver: transactions are nested too deeply"
                && (is_done(theirs) || is_checked(theirs) || is_alarmed(theirs)) =>
        {
            return Verdict::Known([Difference::Depth].into());
        }
        _ => {}
    }
    if synod == etcd && !met.is_empty() { Verdict::Known(met) } else { Verdict::Differ }
}

/// Makes etcd's answer equal to Synod's where they differ in a known way.
/// Sorts what etcd keeps in maps, whose order it leaves open.
fn without_order(answer: &mut Answer) {
    match answer {
        Answer::TimeToLive(answer) => answer.keys.sort_unstable(),
        Answer::Leases(answer) => answer.leases.sort_unstable_by_key(|lease| lease.id),
        Answer::Alarm(answer) => {
            answer.alarms.sort_unstable_by_key(|alarm| (alarm.member_id, alarm.alarm));
        }
        _ => {}
    }
}

fn reconcile(
    request: &RangeRequest,
    ours: &RangeResponse,
    theirs: &mut RangeResponse,
    in_order: i64,
    met: &mut BTreeSet<Difference>,
) {
    if request.keys_only && request.sort_target() != SortTarget::Value {
        let leases: BTreeMap<_, _> = ours.kvs.iter().map(|pair| (&pair.key, pair.lease)).collect();
        for pair in theirs.kvs.iter_mut().filter(|pair| pair.lease == 0) {
            pair.lease = leases.get(&pair.key).copied().unwrap_or(0);
            if pair.lease != 0 {
                met.insert(Difference::LeaseOfKey);
            }
        }
    }
    if ours == theirs || !is_sorted(request, &ours.kvs) || !is_sorted(request, &theirs.kvs) {
        return;
    }
    let same_length = ours.kvs.len() == theirs.kvs.len();
    let pairs = || ours.kvs.iter().zip(&theirs.kvs).map(|(ours, theirs)| compare(request, ours, theirs));
    if is_cut_before_sorting(request) && same_length && pairs().all(Ordering::is_le) {
        // etcd sorted only the first keys of the range, of which at most one is missing here.
        met.insert(Difference::CutBeforeSorting);
        theirs.kvs.clone_from(&ours.kvs);
    } else if request.sort_target() != SortTarget::Key && ours.count > in_order && same_length {
        let all = |kvs: &[KeyValue]| kvs.iter().map(|pair| pair.key.clone()).collect::<BTreeSet<_>>();
        // If the answer is cut off, each system may have kept others of the equal pairs.
        let same = all(&ours.kvs) == all(&theirs.kvs) || ours.more;
        if pairs().all(Ordering::is_eq) && same {
            met.insert(Difference::OrderOfEquals);
            theirs.kvs.clone_from(&ours.kvs);
        }
    }
}

fn reconcile_txn(
    request: &TxnRequest,
    ours: &TxnResponse,
    theirs: &mut TxnResponse,
    in_order: i64,
    met: &mut BTreeSet<Difference>,
) {
    let ops: &[RequestOp] = if ours.succeeded { &request.success } else { &request.failure };
    for ((op, ours), theirs) in ops.iter().zip(&ours.responses).zip(&mut theirs.responses) {
        match (op, ours, theirs) {
            (
                RequestOp { request: Some(Op::RequestRange(request)) },
                ResponseOp { response: Some(Response::ResponseRange(ours)) },
                ResponseOp { response: Some(Response::ResponseRange(theirs)) },
            ) => reconcile(request, ours, theirs, in_order, met),
            (
                RequestOp { request: Some(Op::RequestTxn(request)) },
                ResponseOp { response: Some(Response::ResponseTxn(ours)) },
                ResponseOp { response: Some(Response::ResponseTxn(theirs)) },
            ) => reconcile_txn(request, ours, theirs, in_order, met),
            _ => {}
        }
    }
}

/// Whether an error says why a put in a transaction could not be executed.
fn is_of_put(why: &str) -> bool {
    ["etcdserver: key not found", "etcdserver: requested lease not found"].contains(&why)
}

/// Whether a transaction was executed. An answer that is nested too deeply cannot be decoded here.
fn is_done(answer: &Answer) -> bool {
    match answer {
        Answer::Refused(tonic::Code::Internal, why) => why.starts_with("failed to decode Protobuf message"),
        answer => matches!(answer, Answer::Txn(_)),
    }
}

/// Whether a transaction was refused before it was executed, for what it says however deep.
fn is_checked(answer: &Answer) -> bool {
    let Answer::Refused(tonic::Code::InvalidArgument, why) = answer else { return false };
    [
        "etcdserver: key is not provided",
        "etcdserver: value is provided",
        "etcdserver: lease is provided",
        "etcdserver: invalid sort option",
    ]
    .contains(&why.as_str())
}

/// Whether a request was refused since an alarm is raised.
fn is_alarmed(answer: &Answer) -> bool {
    let Answer::Refused(_, why) = answer else { return false };
    ["etcdserver: corrupt cluster", "etcdserver: mvcc: database space exceeded"].contains(&why.as_str())
}

fn depth(txn: &TxnRequest) -> usize {
    let nested = txn.success.iter().chain(&txn.failure).map(|op| match &op.request {
        Some(Op::RequestTxn(nested)) => depth(nested),
        _ => 0,
    });
    1 + nested.max().unwrap_or(0)
}

fn is_cut_before_sorting(request: &RangeRequest) -> bool {
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    request.limit > 0
        && request.sort_order() == SortOrder::None
        && request.sort_target() != SortTarget::Key
        && filters == [0; 4]
}

/// Compares two pairs by the sort target.
fn compare(request: &RangeRequest, a: &KeyValue, b: &KeyValue) -> Ordering {
    match request.sort_target() {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    }
}

fn is_sorted(request: &RangeRequest, kvs: &[KeyValue]) -> bool {
    let wrong = if request.sort_order() == SortOrder::Descend { Ordering::Less } else { Ordering::Greater };
    kvs.windows(2).all(|pair| compare(request, &pair[0], &pair[1]) != wrong)
}

#[cfg(test)]
mod tests {
    use synod_api::etcdserverpb::LeaseTimeToLiveRequest;

    use super::*;

    /// Pairs of these keys, each with a mod revision and a version.
    fn found(pairs: &[(&str, i64, i64)], count: i64, more: bool) -> Answer {
        let pair = |&(key, mod_revision, version): &(&str, i64, i64)| KeyValue {
            key: key.to_owned().into(),
            mod_revision,
            version,
            ..KeyValue::default()
        };
        let header = Some(ResponseHeader { revision: 9, ..ResponseHeader::default() });
        Answer::Range(RangeResponse { header, kvs: pairs.iter().map(pair).collect(), more, count })
    }

    fn in_txn(answer: &Answer) -> Answer {
        let Answer::Range(range) = answer else { panic!("{answer:?}") };
        let response = Some(Response::ResponseRange(range.clone()));
        Answer::Txn(TxnResponse { succeeded: true, responses: vec![ResponseOp { response }], header: None })
    }

    fn judge(request: &Request, synod: Answer, etcd: Answer) -> Verdict {
        super::judge(request, synod, etcd, true)
    }

    #[test]
    fn differences_in_the_answering_member_do_not_count_and_others_do() {
        let request = Request::Range(RangeRequest::default());
        let by = |member_id, raft_term, revision| {
            let header = Some(ResponseHeader { cluster_id: member_id, member_id, raft_term, revision });
            Answer::Range(RangeResponse { header, ..RangeResponse::default() })
        };
        assert_eq!(judge(&request, by(1, 2, 3), by(4, 5, 3)), Verdict::Same);
        assert_eq!(judge(&request, by(1, 2, 3), by(1, 2, 4)), Verdict::Differ);
        let refused = |code, words: &str| Answer::Refused(code, words.to_owned());
        let (here, there) = (tonic::Code::NotFound, tonic::Code::Aborted);
        assert_eq!(judge(&request, refused(here, "a"), refused(here, "a")), Verdict::Same);
        assert_eq!(judge(&request, refused(here, "a"), refused(here, "b")), Verdict::Differ);
        assert_eq!(judge(&request, refused(here, "a"), refused(there, "a")), Verdict::Differ);
        assert_eq!(judge(&request, refused(here, "a"), by(1, 1, 1)), Verdict::Differ);
    }

    #[test]
    fn a_cut_before_sorting_is_known_where_the_request_has_one() {
        let mut range = RangeRequest { limit: 1, sort_target: SortTarget::Mod.into(), ..Default::default() };
        let (first, second) = (found(&[("b", 3, 1)], 3, true), found(&[("a", 7, 1)], 3, true));
        let verdict = |range: &RangeRequest, ours: &Answer, theirs: &Answer| {
            let op = RequestOp { request: Some(Op::RequestRange(range.clone())) };
            let txn = TxnRequest { success: vec![op], ..TxnRequest::default() };
            let verdict = judge(&Request::Range(range.clone()), ours.clone(), theirs.clone());
            assert_eq!(judge(&Request::Txn(txn), in_txn(ours), in_txn(theirs)), verdict);
            verdict
        };
        let known = Verdict::Known([Difference::CutBeforeSorting].into());
        assert_eq!(verdict(&range, &first, &second), known);
        assert_eq!(verdict(&range, &second, &first), Verdict::Differ, "Synod's are the smallest of all");
        assert_eq!(verdict(&range, &first, &found(&[("a", 7, 1)], 4, true)), Verdict::Differ);
        range.sort_order = SortOrder::Ascend.into();
        assert_eq!(verdict(&range, &first, &second), Verdict::Differ, "with an order etcd sorts all");
    }

    #[test]
    fn the_order_of_equals_is_open_beyond_twelve() {
        let range =
            RangeRequest { sort_order: 1, sort_target: SortTarget::Version.into(), ..Default::default() };
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"];
        let pairs: Vec<_> = keys.iter().map(|&key| (key, 5, 1)).collect();
        let verdict = |ours: &[_], theirs: &[_]| {
            let count = i64::try_from(ours.len()).unwrap();
            let (ours, theirs) = (found(ours, count, false), found(theirs, count, false));
            judge(&Request::Range(range.clone()), ours, theirs)
        };
        let mut turned = pairs.clone();
        turned.swap(3, 9);
        assert_eq!(verdict(&pairs, &turned), Verdict::Known([Difference::OrderOfEquals].into()));
        assert_eq!(verdict(&pairs[..12], &turned[..12]), Verdict::Differ);
        turned[0].0 = "z";
        assert_eq!(verdict(&pairs, &turned), Verdict::Differ, "another key");
        turned[0] = ("a", 5, 0);
        assert_eq!(verdict(&pairs, &turned), Verdict::Differ, "another version");
    }

    #[test]
    fn before_3_6_more_was_open() {
        let range =
            RangeRequest { sort_order: 1, sort_target: SortTarget::Version.into(), ..Default::default() };
        let range = Request::Range(range);
        let pairs: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].iter().map(|&key| (key, 5, 1)).collect();
        let turned: Vec<_> = pairs.iter().rev().copied().collect();
        let old = |ours, theirs| super::judge(&range, ours, theirs, false);
        let known = Verdict::Known([Difference::OrderOfEquals].into());
        assert_eq!(old(found(&pairs, 7, false), found(&turned, 7, false)), known);
        assert_eq!(old(found(&pairs[..6], 6, false), found(&turned[1..], 6, false)), Verdict::Differ);

        let refused = |code, words: &str| Answer::Refused(code, words.to_owned());
        let ours = refused(tonic::Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
        let theirs = refused(tonic::Code::InvalidArgument, "etcdserver: key not found");
        let txn = Request::Txn(TxnRequest::default());
        let known = Verdict::Known([Difference::FirstError].into());
        assert_eq!(super::judge(&txn, ours.clone(), theirs.clone(), false), known);
        assert_eq!(super::judge(&txn, ours.clone(), theirs.clone(), true), Verdict::Differ);
        assert_eq!(super::judge(&txn, theirs, ours, false), Verdict::Differ);
    }

    #[test]
    fn etcd_may_not_tell_the_lease_of_a_key_without_its_value() {
        let keys = |leases: &[i64]| {
            let pair = |lease: &i64| KeyValue { key: "k".into(), lease: *lease, ..KeyValue::default() };
            let kvs: Vec<_> = leases.iter().map(pair).collect();
            let count = kvs.len() as i64;
            Answer::Range(RangeResponse { kvs, count, ..RangeResponse::default() })
        };
        let range = |keys_only, sort_target: SortTarget| {
            let sort_target = sort_target.into();
            Request::Range(RangeRequest { keys_only, sort_target, ..RangeRequest::default() })
        };
        let known = Verdict::Known([Difference::LeaseOfKey].into());
        let of_key = range(true, SortTarget::Key);
        assert_eq!(judge(&of_key, keys(&[7]), keys(&[0])), known);
        assert_eq!(judge(&of_key, keys(&[0]), keys(&[7])), Verdict::Differ);
        assert_eq!(judge(&of_key, keys(&[7]), keys(&[8])), Verdict::Differ);
        assert_eq!(judge(&range(false, SortTarget::Key), keys(&[7]), keys(&[0])), Verdict::Differ);
        assert_eq!(judge(&range(true, SortTarget::Value), keys(&[7]), keys(&[0])), Verdict::Differ);
    }

    #[test]
    fn the_rest_of_a_lease_may_differ_by_a_sequence_and_whether_it_is_there_may_not() {
        let request = Request::TimeToLive(LeaseTimeToLiveRequest { id: 1, keys: true });
        let rest = |ttl, keys: &[&'static str]| {
            let keys = keys.iter().map(|key| (*key).into()).collect();
            Answer::TimeToLive(LeaseTimeToLiveResponse { id: 1, ttl, keys, ..Default::default() })
        };
        assert_eq!(judge(&request, rest(3600, &["a", "b"]), rest(3590, &["b", "a"])), Verdict::Same);
        assert_eq!(judge(&request, rest(3600, &[]), rest(2900, &[])), Verdict::Differ);
        assert_eq!(judge(&request, rest(5, &[]), rest(-1, &[])), Verdict::Differ);
        assert_eq!(judge(&request, rest(-1, &[]), rest(5, &[])), Verdict::Differ);
    }

    #[test]
    fn only_what_is_nested_too_deeply_may_be_refused_so() {
        let txn = |depth| {
            Request::Txn(super::super::draw::nested(depth, Op::RequestRange(RangeRequest::default())))
        };
        let words = "etcdserver: transactions are nested too deeply".to_owned();
        let refused = Answer::Refused(tonic::Code::InvalidArgument, words);
        let done = Answer::Txn(TxnResponse::default());
        let verdict = |depth| judge(&txn(depth), refused.clone(), done.clone());
        assert_eq!(verdict(DEPTH_MAX + 1), Verdict::Known([Difference::Depth].into()));
        // etcd looks deeper.
        let words = "etcdserver: key is not provided".to_owned();
        let deeper = Answer::Refused(tonic::Code::InvalidArgument, words);
        let known = Verdict::Known([Difference::Depth].into());
        assert_eq!(judge(&txn(DEPTH_MAX + 1), refused.clone(), deeper.clone()), known);
        assert_eq!(judge(&txn(DEPTH_MAX), refused.clone(), deeper), Verdict::Differ);
        let otherwise = Answer::Refused(tonic::Code::InvalidArgument, "etcdserver: key not found".to_owned());
        assert_eq!(judge(&txn(DEPTH_MAX + 1), refused.clone(), otherwise), Verdict::Differ);
        assert_eq!(verdict(DEPTH_MAX), Verdict::Differ);
    }
}
