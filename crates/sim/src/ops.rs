//! The requests of simulated clients to the key-value store, encoded as bytes of its API, and decoded answers.

use std::fmt;

use bytes::Bytes;
use fastrand::Rng;
use prost::Message;
use synod_api::{
    etcdserverpb::{
        AlarmRequest, CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest,
        PutRequest, RangeRequest, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
        alarm_request::AlarmAction,
        compare::{CompareResult, CompareTarget, TargetUnion},
        range_request::{SortOrder, SortTarget},
        request_op::Request,
        response_op::Response,
    },
    mvccpb::KeyValue,
    synod::v1::{
        KvAnswer, KvCommand, KvLeaseRenew, KvQuery, KvReply, kv_answer::Answer as QueryAnswer,
        kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};

/// A key; there are few, so that operations meet.
pub type Key = u8;

/// A lease, above zero; there are few, too.
pub type Lease = u8;

/// An operation on the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write a key.
    Put {
        /// The key.
        key: Key,
        /// No two operations write the same value.
        value: u64,
    },
    /// Delete the keys from `first` through `last`.
    Delete {
        /// The first key.
        first: Key,
        /// The last key.
        last: Key,
    },
    /// If the key was last changed at revision `expected` (0: does not exist), write it, and do something to
    /// another; otherwise read it.
    Swap {
        /// The key.
        key: Key,
        /// The revision.
        expected: i64,
        /// The value to write.
        value: u64,
        /// The second operation.
        other: Other,
    },
    /// Forget what was before a revision.
    Compact {
        /// The revision.
        revision: i64,
    },
    /// Read the keys from `first` through `last`.
    Get {
        /// The first key.
        first: Key,
        /// The last key.
        last: Key,
    },
    /// Read the keys from `first` through `last` in one of the other ways that the API has.
    Look {
        /// The first key.
        first: Key,
        /// The last key.
        last: Key,
        /// The revision at which to read; 0 for the present one.
        revision: i64,
        /// The most keys to return; 0 for all.
        limit: i64,
        /// The order of the result.
        order: Order,
        /// Whether only to count.
        count_only: bool,
    },
    /// If the key was last changed at revision `expected`, write it, and in a nested transaction delete
    /// `inner` if it exists, or write it if it does not. Otherwise read both, in a nested transaction.
    Nest {
        /// The key.
        key: Key,
        /// The revision.
        expected: i64,
        /// The value to write.
        value: u64,
        /// Another key.
        inner: Key,
    },
    /// Write a key with a quota that leaves no space for it: it is not written, and an alarm is raised.
    Exceed {
        /// The key.
        key: Key,
    },
    /// Write a key, delete another and read the first one, with a bound on the answer that only the read
    /// exceeds: nothing is changed.
    Overrun {
        /// The key.
        key: Key,
        /// The other one.
        other: Key,
    },
    /// Clear all alarms.
    Disarm,
    /// Grant a lease, if there is none of this number.
    Grant {
        /// Its number.
        lease: Lease,
        /// Its time to live.
        seconds: i64,
    },
    /// Renew a lease.
    Renew {
        /// Its number.
        lease: Lease,
    },
    /// End a lease, and delete its keys.
    Revoke {
        /// Its number.
        lease: Lease,
    },
    /// Write a key that goes with a lease.
    Attach {
        /// The key.
        key: Key,
        /// The value.
        value: u64,
        /// The lease.
        lease: Lease,
    },
    /// The time of a lease is over. No client asks for it: the log does it by its clock.
    End {
        /// The lease.
        lease: Lease,
    },
}

/// How a read is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the lowest key on.
    Key,
    /// From the highest key on.
    KeyDown,
    /// From the key that was changed longest ago on; those that were changed together in the order of keys.
    Modified,
}

/// What a transaction does besides its main purpose, so that it touches two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Nothing.
    Nothing,
    /// Write the same value to this key.
    Put(Key),
    /// Delete this key.
    Delete(Key),
}

/// One key as a read sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value.
    pub value: u64,
    /// The revision at which it was created.
    pub created: i64,
    /// The revision of its last change.
    pub modified: i64,
    /// How many changes it has seen since it was created.
    pub version: i64,
    /// The lease with which it goes; 0 for none.
    pub lease: Lease,
}

/// The answer to an operation: everything in the store's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done {
        /// The store's revision after it.
        revision: i64,
        /// Whether the comparisons held; true if it is not a transaction.
        succeeded: bool,
        /// The answers to its parts.
        parts: Vec<Part>,
    },
    /// The store refused it with this gRPC code.
    Refused(i32),
}

/// The answer to one part of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The key was written; the pair that was there before.
    Put(Option<Entry>),
    /// Keys were deleted; the pairs that were there before.
    Delete(Vec<Entry>),
    /// The pairs that were read.
    Get(Vec<Entry>),
    /// The pairs that were read in another way.
    Look {
        /// The pairs.
        entries: Vec<Entry>,
        /// How many there are.
        count: i64,
        /// Whether some were left out.
        more: bool,
    },
    /// The result of a nested transaction.
    Nest {
        /// Whether its comparisons held.
        succeeded: bool,
        /// The answers to its parts.
        parts: Vec<Part>,
    },
    /// This many alarms were cleared.
    Cleared(usize),
    /// The lease exists from now on for this many seconds; 0 if it does not exist.
    Lives(i64),
}

impl Op {
    /// Whether it changes nothing and is not ordered.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Get { .. } | Op::Look { .. })
    }

    /// The bytes of the command, or of the query if it is a read. `id` makes the bytes of a command differ
    /// from those of every other; `padding` is the number of additional bytes of a written value.
    #[must_use]
    pub fn encode(&self, id: u64, padding: usize) -> Bytes {
        if let Some(range) = self.query() {
            let query = KvQuery { query: Some(Query::Range(range)), ..KvQuery::default() };
            return query.encode_to_vec().into();
        }
        // Without a quota the store looks at the member only to name an alarm.
        let quota_bytes = u64::from(matches!(self, Op::Exceed { .. }));
        // There is room for three operations, but not for what the last one finds.
        let answer_bytes_max = if matches!(self, Op::Overrun { .. }) { 3 * 64 } else { 0 };
        let command = KvCommand {
            command: Some(self.command(padding)),
            answer_bytes_max,
            quota_bytes,
            member_id: id,
            ..KvCommand::default()
        };
        command.encode_to_vec().into()
    }

    /// What a read asks for.
    fn query(&self) -> Option<RangeRequest> {
        match self {
            Op::Get { first, last } => Some(range_request(*first, *last)),
            Op::Look { first, last, revision, limit, order, count_only } => {
                let (target, sort_order) = match order {
                    Order::Key => (SortTarget::Key, SortOrder::Ascend),
                    Order::KeyDown => (SortTarget::Key, SortOrder::Descend),
                    Order::Modified => (SortTarget::Mod, SortOrder::Ascend),
                };
                Some(RangeRequest {
                    revision: *revision,
                    limit: *limit,
                    sort_target: target.into(),
                    sort_order: sort_order.into(),
                    count_only: *count_only,
                    ..range_request(*first, *last)
                })
            }
            _ => None,
        }
    }

    /// What everything else has ordered.
    fn command(&self, padding: usize) -> Command {
        match self {
            Op::Get { .. } | Op::Look { .. } => unreachable!("a read is not ordered"),
            Op::End { .. } => unreachable!("no client asks for it"),
            Op::Put { key, value } => Command::Put(put_request(*key, *value, padding)),
            Op::Exceed { key } => Command::Put(put_request(*key, 0, padding)),
            Op::Grant { lease, seconds } => {
                Command::LeaseGrant(LeaseGrantRequest { ttl: *seconds, id: (*lease).into() })
            }
            Op::Renew { lease } => Command::LeaseRenew(KvLeaseRenew { ids: vec![(*lease).into()] }),
            Op::Revoke { lease } => Command::LeaseRevoke(LeaseRevokeRequest { id: (*lease).into() }),
            Op::Attach { key, value, lease } => {
                Command::Put(PutRequest { lease: (*lease).into(), ..put_request(*key, *value, padding) })
            }
            Op::Disarm => Command::Alarm(AlarmRequest {
                action: AlarmAction::Deactivate.into(),
                ..AlarmRequest::default()
            }),
            Op::Nest { key, expected, value, inner } => {
                Command::Txn(nested_request(*key, *expected, *value, *inner, padding))
            }
            Op::Overrun { key, other } => Command::Txn(TxnRequest {
                success: ops(vec![
                    Request::RequestPut(put_request(*key, 0, padding)),
                    Request::RequestDeleteRange(DeleteRangeRequest {
                        prev_kv: false,
                        ..delete_request(*other, *other)
                    }),
                    Request::RequestRange(range_request(*key, *key)),
                ]),
                ..TxnRequest::default()
            }),
            Op::Delete { first, last } => Command::DeleteRange(delete_request(*first, *last)),
            Op::Swap { key, expected, value, other } => {
                let mut success = vec![Request::RequestPut(put_request(*key, *value, padding))];
                success.extend(match other {
                    Other::Nothing => None,
                    Other::Put(other) => Some(Request::RequestPut(put_request(*other, *value, padding))),
                    Other::Delete(other) => Some(Request::RequestDeleteRange(delete_request(*other, *other))),
                });
                let failure = vec![Request::RequestRange(range_request(*key, *key))];
                Command::Txn(TxnRequest {
                    compare: vec![unchanged(*key, *expected)],
                    success: ops(success),
                    failure: ops(failure),
                })
            }
            Op::Compact { revision } => {
                Command::Compact(CompactionRequest { revision: *revision, physical: false })
            }
        }
    }
}

/// Leases that clients use.
const LEASES: u8 = 3;

/// An operation about leases, of which some write a key.
pub(crate) fn draw_lease_op(rng: &mut Rng, key: Key, value: u64) -> Op {
    let lease = rng.u8(1..=LEASES);
    match rng.u8(0..10) {
        0..3 => Op::Grant { lease, seconds: rng.i64(1..4) },
        3..5 => Op::Renew { lease },
        5 => Op::Revoke { lease },
        _ => Op::Attach { key, value, lease },
    }
}

impl Answer {
    /// Reads the reply to a command or the answer to a query; `None` if it is not one that the operation can have.
    #[must_use]
    pub fn decode(op: &Op, bytes: &Bytes) -> Option<Answer> {
        if op.is_read() {
            return match KvAnswer::decode(bytes.clone()).ok()?.answer? {
                QueryAnswer::Range(range) if matches!(op, Op::Look { .. }) => {
                    let (count, more) = (range.count, range.more);
                    done(range.header, true, vec![Part::Look { entries: entries(&range.kvs)?, count, more }])
                }
                QueryAnswer::Range(range) => done(range.header, true, vec![Part::Get(entries(&range.kvs)?)]),
                QueryAnswer::Error(failure) => Some(Answer::Refused(failure.code)),
                _ => None,
            };
        }
        match KvReply::decode(bytes.clone()).ok()?.reply? {
            Reply::Put(put) => done(put.header, true, vec![Part::Put(optional(put.prev_kv.as_ref())?)]),
            Reply::DeleteRange(delete) => {
                let gone = entries(&delete.prev_kvs)?;
                (usize::try_from(delete.deleted) == Ok(gone.len())).then_some(())?;
                done(delete.header, true, vec![Part::Delete(gone)])
            }
            Reply::Txn(txn) => {
                let parts = parts(&txn)?;
                done(txn.header, txn.succeeded, parts)
            }
            Reply::Compact(compact) => done(compact.header, true, Vec::new()),
            Reply::Error(failure) => Some(Answer::Refused(failure.code)),
            Reply::Alarm(alarm) => done(alarm.header, true, vec![Part::Cleared(alarm.alarms.len())]),
            Reply::LeaseGrant(granted) => done(granted.header, true, vec![Part::Lives(granted.ttl)]),
            Reply::LeaseRevoke(revoked) => done(revoked.header, true, Vec::new()),
            Reply::LeaseRenew(renewed) => {
                let parts = renewed.ttls.into_iter().map(Part::Lives).collect();
                Some(Answer::Done { revision: renewed.revision, succeeded: true, parts })
            }
            Reply::HashCheck(_) | Reply::Auth(_) => None,
        }
    }

    /// The store's revision after the operation, if it was done.
    #[must_use]
    pub fn revision(&self) -> Option<i64> {
        match self {
            Answer::Done { revision, .. } => Some(*revision),
            Answer::Refused(_) => None,
        }
    }

    /// The keys in the answer.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        let parts: &[Part] = match self {
            Answer::Done { parts, .. } => parts,
            Answer::Refused(_) => &[],
        };
        parts.iter().flat_map(|part| match part {
            Part::Get(entries) => entries.as_slice(),
            Part::Put(_)
            | Part::Delete(_)
            | Part::Look { .. }
            | Part::Nest { .. }
            | Part::Cleared(_)
            | Part::Lives(_) => &[],
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer::Done { revision, parts, .. } = self else { return f.write_str("refused") };
        for part in parts {
            match part {
                Part::Put(_) => f.write_str("done")?,
                Part::Delete(gone) => write!(f, "{} deleted", gone.len())?,
                Part::Look { entries, count, .. } => write!(f, "{} of {count}", entries.len())?,
                Part::Nest { parts, .. } => write!(f, "{} parts", parts.len())?,
                Part::Cleared(alarms) => write!(f, "{alarms} alarms cleared")?,
                Part::Lives(seconds) => write!(f, "lives for {seconds} s")?,
                Part::Get(entries) if entries.is_empty() => f.write_str("nothing")?,
                Part::Get(entries) => {
                    let entries: Vec<String> =
                        entries.iter().map(|entry| format!("k{}={}", entry.key, entry.value)).collect();
                    f.write_str(&entries.join(" "))?;
                }
            }
            f.write_str(", ")?;
        }
        write!(f, "revision {revision}")
    }
}

fn done(header: Option<ResponseHeader>, succeeded: bool, parts: Vec<Part>) -> Option<Answer> {
    Some(Answer::Done { revision: header?.revision, succeeded, parts })
}

/// Whether a key was last changed at a revision.
/// A put, and a transaction inside of the transaction that changes another key by whether it exists.
fn nested_request(key: Key, expected: i64, value: u64, inner: Key, padding: usize) -> TxnRequest {
    let exists = Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Version.into(),
        key: key_bytes(inner),
        target_union: Some(TargetUnion::Version(0)),
        ..Compare::default()
    };
    let change = TxnRequest {
        compare: vec![exists],
        success: ops(vec![Request::RequestDeleteRange(delete_request(inner, inner))]),
        failure: ops(vec![Request::RequestPut(put_request(inner, value, padding))]),
    };
    let read = |key| Request::RequestRange(range_request(key, key));
    let look = TxnRequest { success: ops(vec![read(key), read(inner)]), ..TxnRequest::default() };
    let put = Request::RequestPut(put_request(key, value, padding));
    TxnRequest {
        compare: vec![unchanged(key, expected)],
        success: ops(vec![put, Request::RequestTxn(change)]),
        failure: ops(vec![Request::RequestTxn(look)]),
    }
}

fn unchanged(key: Key, expected: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key_bytes(key),
        target_union: Some(TargetUnion::ModRevision(expected)),
        ..Compare::default()
    }
}

fn ops(requests: Vec<Request>) -> Vec<RequestOp> {
    requests.into_iter().map(|request| RequestOp { request: Some(request) }).collect()
}

fn parts(txn: &TxnResponse) -> Option<Vec<Part>> {
    txn.responses.iter().map(|response| part(response.response.as_ref())).collect()
}

fn part(response: Option<&Response>) -> Option<Part> {
    match response? {
        Response::ResponsePut(put) => Some(Part::Put(optional(put.prev_kv.as_ref())?)),
        Response::ResponseDeleteRange(delete) => Some(Part::Delete(entries(&delete.prev_kvs)?)),
        Response::ResponseRange(range) => Some(Part::Get(entries(&range.kvs)?)),
        Response::ResponseTxn(txn) => Some(Part::Nest { succeeded: txn.succeeded, parts: parts(txn)? }),
    }
}

fn key_bytes(key: Key) -> Bytes {
    format!("k{key}").into()
}

/// The end of a range that includes `last`.
fn end_bytes(first: Key, last: Key) -> Bytes {
    if first == last { Bytes::new() } else { format!("k{last}\0").into() }
}

fn range_request(first: Key, last: Key) -> RangeRequest {
    RangeRequest { key: key_bytes(first), range_end: end_bytes(first, last), ..RangeRequest::default() }
}

fn delete_request(first: Key, last: Key) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key_bytes(first), range_end: end_bytes(first, last), prev_kv: true }
}

fn put_request(key: Key, value: u64, padding: usize) -> PutRequest {
    let value = format!("{value}{}", ".".repeat(padding)).into();
    PutRequest { key: key_bytes(key), value, prev_kv: true, ..PutRequest::default() }
}

fn entry(pair: &KeyValue) -> Option<Entry> {
    let key = std::str::from_utf8(&pair.key).ok()?.strip_prefix('k')?.parse().ok()?;
    let value = std::str::from_utf8(&pair.value).ok()?.trim_end_matches('.').parse().ok()?;
    let KeyValue { create_revision: created, mod_revision: modified, version, lease, .. } = *pair;
    Some(Entry { key, value, created, modified, version, lease: lease.try_into().ok()? })
}

fn entries(pairs: &[KeyValue]) -> Option<Vec<Entry>> {
    pairs.iter().map(entry).collect()
}

fn optional(pair: Option<&KeyValue>) -> Option<Option<Entry>> {
    match pair {
        Some(pair) => entry(pair).map(Some),
        None => Some(None),
    }
}
