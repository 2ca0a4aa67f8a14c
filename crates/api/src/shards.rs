//! How the keys of a cluster of several groups are spread over its groups.
//!
//! Servers and clients compute the same: a client to find the session of a key's group, a server to find the replica
//! and to refuse what would lie in the wrong group. Data rests on it, so it never changes for a cluster.
//!
//! **The group of a key**: the 64-bit FNV-1a hash of its bytes, mixed by the finalizer of MurmurHash3, modulo the
//! number of groups. (The lowest bits of FNV-1a depend on the lowest bits of the bytes alone.)

use std::fmt;

use crate::{
    etcdserverpb::{TxnRequest, request_op::Request},
    synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
};

/// How the answer of a cluster of several groups begins to a request of etcd's API, which it does not serve. The code
/// is `FAILED_PRECONDITION`. Clients recognize it by this text.
pub const NO_SINGLE_REVISION: &str = "synod: the keys of this cluster are spread over several groups";

/// How the answer of a replica begins to a request of a group in which it takes no part. The code is `UNAVAILABLE`, and
/// the request was not executed.
pub const NOT_HERE: &str = "synod: this replica takes no part in group";

/// The metadata of such an answer: the client URLs of replicas that take part, with commas between them.
pub const ENDPOINTS: &str = "synod-endpoints";

/// The group of a key in a cluster of this many groups, counted from 0.
///
/// # Panics
/// If there are 0 groups.
#[must_use]
pub fn of_key(key: &[u8], groups: u16) -> u16 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = key.iter().fold(OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^= hash >> 33;
    u16::try_from(hash % u64::from(groups)).expect("less than the number of groups")
}

/// Why a request has no group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// It is about a range of keys, which lie in several groups.
    Range,
    /// Its keys belong to several groups: two of them, with their groups.
    SeveralGroups([(String, u16); 2]),
}

impl fmt::Display for Unroutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unroutable::Range => f.write_str(
                "a range of keys lies in several groups, which have no common order; name single keys",
            ),
            Unroutable::SeveralGroups([(one, group), (other, second)]) => write!(
                f,
                "{one:?} belongs to group {group} and {other:?} to group {second}, which have no common order; name \
                 keys of one group"
            ),
        }
    }
}

impl std::error::Error for Unroutable {}

/// The group to which the keys of a command belong; `None` if it names no key, as a compaction.
///
/// # Errors
/// There is no such group.
pub fn of_command(command: &KvCommand, groups: u16) -> Result<Option<u16>, Unroutable> {
    let mut found = Found { groups, first: None };
    match &command.command {
        Some(Command::Put(put)) => found.key(&put.key, b"")?,
        Some(Command::DeleteRange(range)) => found.key(&range.key, &range.range_end)?,
        Some(Command::Txn(txn)) => found.txn(txn)?,
        Some(
            Command::Compact(_)
            | Command::Alarm(_)
            | Command::LeaseGrant(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseRenew(_)
            | Command::HashCheck(_)
            | Command::Auth(_),
        )
        | None => {}
    }
    Ok(found.first.map(|(_, group)| group))
}

/// The group to which the keys of a query belong; `None` if it names no key, as one for the status.
///
/// # Errors
/// There is no such group.
pub fn of_query(query: &KvQuery, groups: u16) -> Result<Option<u16>, Unroutable> {
    let mut found = Found { groups, first: None };
    match &query.query {
        Some(Query::Range(range)) => found.key(&range.key, &range.range_end)?,
        Some(Query::Txn(txn)) => found.txn(txn)?,
        Some(
            Query::HashKv(_)
            | Query::Status(_)
            | Query::LeaseTimeToLive(_)
            | Query::LeaseLeases(_)
            | Query::EtcdSnapshot(_)
            | Query::Auth(_),
        )
        | None => {}
    }
    Ok(found.first.map(|(_, group)| group))
}

/// The group of the keys seen so far.
struct Found<'a> {
    groups: u16,
    /// The first key, and its group.
    first: Option<(&'a [u8], u16)>,
}

impl<'a> Found<'a> {
    fn key(&mut self, key: &'a [u8], range_end: &[u8]) -> Result<(), Unroutable> {
        if !range_end.is_empty() {
            return Err(Unroutable::Range);
        }
        let group = of_key(key, self.groups);
        let (first, seen) = *self.first.get_or_insert((key, group));
        if seen == group {
            return Ok(());
        }
        let named = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        Err(Unroutable::SeveralGroups([(named(first), seen), (named(key), group)]))
    }

    /// The keys of both branches, since only execution shows which of them is taken.
    fn txn(&mut self, txn: &'a TxnRequest) -> Result<(), Unroutable> {
        for compare in &txn.compare {
            self.key(&compare.key, &compare.range_end)?;
        }
        for operation in txn.success.iter().chain(&txn.failure) {
            match &operation.request {
                Some(Request::RequestPut(put)) => self.key(&put.key, b"")?,
                Some(Request::RequestRange(range)) => self.key(&range.key, &range.range_end)?,
                Some(Request::RequestDeleteRange(range)) => self.key(&range.key, &range.range_end)?,
                Some(Request::RequestTxn(inner)) => self.txn(inner)?,
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{
        CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp,
    };

    fn put(key: &str) -> PutRequest {
        PutRequest { key: key.to_owned().into(), ..PutRequest::default() }
    }

    fn of(command: Command) -> Result<Option<u16>, Unroutable> {
        of_command(&KvCommand { command: Some(command), ..KvCommand::default() }, 4)
    }

    /// Data rests on these numbers.
    #[test]
    fn a_key_stays_in_its_group() {
        let groups =
            |count| ["", "a", "b", "city", "k1", "k2", "k3"].map(|key| of_key(key.as_bytes(), count));
        assert_eq!(groups(1), [0; 7]);
        assert_eq!(groups(2), [0, 1, 0, 0, 1, 0, 1]);
        assert_eq!(groups(1000), [342, 315, 704, 406, 93, 352, 411]);
    }

    #[test]
    fn keys_that_resemble_each_other_are_spread_evenly() {
        for groups in [2, 3, 4, 16] {
            let mut counts = vec![0; usize::from(groups)];
            // Each of these keys has an even number of odd bytes.
            (0..16_000).for_each(|i| counts[usize::from(of_key(format!("{i}{i}").as_bytes(), groups))] += 1);
            let fair = 16_000 / i32::from(groups);
            assert!(counts.iter().all(|count: &i32| (count - fair).abs() < fair / 5), "{counts:?}");
        }
    }

    #[test]
    fn a_transaction_has_the_group_of_all_its_keys() {
        let group = |key: &str| of_key(key.as_bytes(), 4);
        let keys = || (0..100).map(|i| format!("k{i}"));
        let alike = keys().find(|key| group(key) == group("a")).unwrap();
        let other = keys().find(|key| group(key) != group("a")).unwrap();
        let op = |key: &str| RequestOp { request: Some(Request::RequestPut(put(key))) };
        let compare = Compare { key: "a".into(), ..Compare::default() };
        let txn = |success, failure| TxnRequest { compare: vec![compare.clone()], success, failure };
        assert_eq!(of(Command::Txn(txn(vec![op(&alike)], vec![op("a")]))), Ok(Some(group("a"))));
        let apart = Unroutable::SeveralGroups([("a".into(), group("a")), (other.clone(), group(&other))]);
        assert_eq!(of(Command::Txn(txn(Vec::new(), vec![op(&other)]))), Err(apart.clone()));
        let inner = RequestOp { request: Some(Request::RequestTxn(txn(vec![op(&other)], Vec::new()))) };
        assert_eq!(of(Command::Txn(txn(vec![inner], Vec::new()))), Err(apart));
    }

    #[test]
    fn a_range_has_no_group_and_neither_has_a_compaction() {
        assert_eq!(of(Command::Put(put("a"))), Ok(Some(of_key(b"a", 4))));
        let range = DeleteRangeRequest { key: "a".into(), range_end: "b".into(), prev_kv: false };
        assert_eq!(of(Command::DeleteRange(range)), Err(Unroutable::Range));
        assert_eq!(of(Command::Compact(CompactionRequest::default())), Ok(None));
        let range = RangeRequest { key: "a".into(), range_end: "b".into(), ..RangeRequest::default() };
        let query = |range| KvQuery { query: Some(Query::Range(range)), ..KvQuery::default() };
        assert_eq!(of_query(&query(range.clone()), 4), Err(Unroutable::Range));
        let one = RangeRequest { range_end: "".into(), ..range };
        assert_eq!(of_query(&query(one), 4), Ok(Some(of_key(b"a", 4))));
    }
}
