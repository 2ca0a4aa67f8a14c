//! What two answers to one request have in common, and in which ways they are known to differ.
//!
//! A known difference is asserted: it has a rule for what each system answers, and whatever else is in the answers has to
//! be equal.

use std::{cmp::Ordering, collections::BTreeSet};

use synod_api::{
    etcdserverpb::{
        CompactionResponse, DeleteRangeResponse, PutResponse, RangeRequest, RangeResponse, RequestOp,
        ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
        range_request::{SortOrder, SortTarget},
        request_op::Request as Op,
        response_op::Response,
    },
    mvccpb::KeyValue,
};

use super::draw::{DEPTH_MAX, Request};

/// What was answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Range(RangeResponse),
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    /// The code, and the words.
    Refused(tonic::Code, String),
}

impl Answer {
    /// The header, without what says who answered.
    pub fn header_mut(&mut self) -> Option<&mut ResponseHeader> {
        match self {
            Answer::Range(answer) => answer.header.as_mut(),
            Answer::Put(answer) => answer.header.as_mut(),
            Answer::DeleteRange(answer) => answer.header.as_mut(),
            Answer::Txn(answer) => answer.header.as_mut(),
            Answer::Compact(answer) => answer.header.as_mut(),
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
}

/// Every known difference that requests drawn at random meet, with what each system does and why it stays.
pub const KNOWN: [(Difference, &str); 3] = [
    (
        Difference::CutBeforeSorting,
        "a range with a limit and a sort target but no order: Synod sorts all and cuts then, as with an order; etcd cuts in the \
         order of keys, to one more than the limit, sorts these, and cuts again. Synod's answer is what was asked for",
    ),
    (
        Difference::OrderOfEquals,
        "a range sorted by what several keys have in common: Synod keeps those in the order of their keys; etcd leaves \
         their order open if there are more than twelve pairs",
    ),
    (
        Difference::Depth,
        "more than 48 transactions in each other: Synod refuses them, since it reads messages 100 deep; etcd executes them",
    ),
];

/// How two answers compare.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// They differ in known ways only.
    Known(BTreeSet<Difference>),
    Differ,
}

/// Compares what both answered. In the headers only the revision counts: who answered, and in which term, is a matter of the
/// cluster.
pub fn judge(request: &Request, mut synod: Answer, mut etcd: Answer) -> Verdict {
    for answer in [&mut synod, &mut etcd] {
        if let Some(header) = answer.header_mut() {
            *header = ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
        }
    }
    if synod == etcd {
        return Verdict::Same;
    }
    let mut met = BTreeSet::new();
    match (request, &synod, &mut etcd) {
        (Request::Range(request), Answer::Range(ours), Answer::Range(theirs)) => {
            reconcile(request, ours, theirs, &mut met);
        }
        (Request::Txn(request), Answer::Txn(ours), Answer::Txn(theirs)) => {
            reconcile_txn(request, ours, theirs, &mut met);
        }
        (Request::Txn(request), Answer::Refused(tonic::Code::InvalidArgument, why), Answer::Txn(_))
            if depth(request) > DEPTH_MAX && why == "etcdserver: transactions are nested too deeply" =>
        {
            return Verdict::Known([Difference::Depth].into());
        }
        _ => {}
    }
    if synod == etcd && !met.is_empty() { Verdict::Known(met) } else { Verdict::Differ }
}

/// Makes etcd's answer equal to Synod's where it differs as is known.
fn reconcile(
    request: &RangeRequest,
    ours: &RangeResponse,
    theirs: &mut RangeResponse,
    met: &mut BTreeSet<Difference>,
) {
    if ours == theirs || !is_sorted(request, &ours.kvs) || !is_sorted(request, &theirs.kvs) {
        return;
    }
    let same_length = ours.kvs.len() == theirs.kvs.len();
    let pairs = || ours.kvs.iter().zip(&theirs.kvs).map(|(ours, theirs)| compare(request, ours, theirs));
    if is_cut_before_sorting(request) && same_length && pairs().all(Ordering::is_le) {
        // What etcd sorted are the first keys of the range, and at most one of these is missing.
        met.insert(Difference::CutBeforeSorting);
        theirs.kvs.clone_from(&ours.kvs);
    } else if request.sort_target() != SortTarget::Key && ours.kvs.len() > 12 && same_length {
        let all = |kvs: &[KeyValue]| kvs.iter().map(|pair| pair.key.clone()).collect::<BTreeSet<_>>();
        // Where some are cut off, these may be others of those that are equal.
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
    met: &mut BTreeSet<Difference>,
) {
    let ops: &[RequestOp] = if ours.succeeded { &request.success } else { &request.failure };
    for ((op, ours), theirs) in ops.iter().zip(&ours.responses).zip(&mut theirs.responses) {
        match (op, ours, theirs) {
            (
                RequestOp { request: Some(Op::RequestRange(request)) },
                ResponseOp { response: Some(Response::ResponseRange(ours)) },
                ResponseOp { response: Some(Response::ResponseRange(theirs)) },
            ) => reconcile(request, ours, theirs, met),
            (
                RequestOp { request: Some(Op::RequestTxn(request)) },
                ResponseOp { response: Some(Response::ResponseTxn(ours)) },
                ResponseOp { response: Some(Response::ResponseTxn(theirs)) },
            ) => reconcile_txn(request, ours, theirs, met),
            _ => {}
        }
    }
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

/// How two pairs stand by what is sorted by.
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
