//! Texts of commands and queries of the store, for people.

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, request_op::Request},
    synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
};

/// A command of the key-value store.
#[must_use]
pub fn command(payload: &Bytes) -> String {
    let Ok(command) = KvCommand::decode(payload.clone()) else { return "unreadable".to_owned() };
    match &command.command {
        Some(Command::Put(request)) => put(request),
        Some(Command::DeleteRange(request)) => delete(request),
        Some(Command::Txn(request)) => txn(request),
        Some(Command::Compact(request)) => format!("compact {}", request.revision),
        Some(Command::Alarm(_)) => "alarm".to_owned(),
        Some(Command::LeaseGrant(request)) => format!("grant lease {} for {} s", request.id, request.ttl),
        Some(Command::LeaseRevoke(request)) => format!("revoke lease {}", request.id),
        Some(Command::LeaseRenew(request)) => format!("renew leases {:?}", request.ids),
        Some(Command::HashCheck(request)) => format!("compare hashes at revision {}", request.revision),
        Some(Command::Auth(_)) => "change of users".to_owned(),
        None => "nothing".to_owned(),
    }
}

/// A query of the key-value store.
#[must_use]
pub fn query(payload: &Bytes) -> String {
    match KvQuery::decode(payload.clone()).map(|query| query.query) {
        Ok(Some(Query::Range(request))) => range(&request),
        Ok(_) => "query".to_owned(),
        Err(_) => "unreadable".to_owned(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches(['.', '\0']).to_owned()
}

fn keys(key: &[u8], range_end: &[u8]) -> String {
    if range_end.is_empty() { text(key) } else { format!("{}..{}", text(key), text(range_end)) }
}

fn put(request: &PutRequest) -> String {
    format!("{}={}", text(&request.key), text(&request.value))
}

fn delete(request: &DeleteRangeRequest) -> String {
    format!("delete {}", keys(&request.key, &request.range_end))
}

fn range(request: &RangeRequest) -> String {
    format!("get {}", keys(&request.key, &request.range_end))
}

fn txn(request: &TxnRequest) -> String {
    let ops: Vec<String> = request
        .success
        .iter()
        .map(|op| match &op.request {
            Some(Request::RequestPut(request)) => put(request),
            Some(Request::RequestDeleteRange(request)) => delete(request),
            Some(Request::RequestRange(request)) => range(request),
            Some(Request::RequestTxn(request)) => txn(request),
            None => "nothing".to_owned(),
        })
        .collect();
    let keys: Vec<String> = request.compare.iter().map(|compare| text(&compare.key)).collect();
    format!("if {} then {}", keys.join(" "), ops.join("+"))
}
