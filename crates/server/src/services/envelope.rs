//! The key-value store behind a replica: requests into envelopes, answers out of them, errors into gRPC's terms.

use bytes::Bytes;
use prost::Message;
use synod_api::{
    etcdserverpb::ResponseHeader,
    synod::v1::{
        KvAnswer, KvCommand, KvFailure, KvQuery, KvReply, KvStatus, KvStatusRequest, kv_answer::Answer,
        kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_kv::{
    KvError,
    validate::{self, Limits},
};
use tonic::{Code, Status};

use crate::{Config, Consistency, Replica, RequestError};

/// A gRPC message may be this much larger than the largest command, as with etcd: then the answer to a command a
/// little above the limit says so in etcd's words.
const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

/// A key-value store, replicated somehow.
#[derive(Debug)]
pub(crate) struct Store<R> {
    replica: R,
    limits: Limits,
    quota_bytes: u64,
    cluster_id: u64,
    member_id: u64,
}

impl<R: Replica> Store<R> {
    pub(crate) fn new(config: &Config, replica: R) -> Store<R> {
        let status = replica.status();
        Store {
            limits: Limits { txn_ops_max: config.txn_ops_max, request_bytes_max: config.request_bytes_max },
            quota_bytes: config.quota_bytes,
            cluster_id: status.cluster.0,
            member_id: status.replica.0,
            replica,
        }
    }

    pub(crate) fn replica(&self) -> &R {
        &self.replica
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Most bytes of a request's message.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.limits.request_bytes_max.saturating_add(MESSAGE_OVERHEAD_BYTES)
    }

    pub(super) fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// Checks a command, orders it and executes it.
    pub(super) async fn execute(&self, command: Command) -> Result<Reply, Status> {
        let command =
            KvCommand { command: Some(command), quota_bytes: self.quota_bytes, member_id: self.member_id };
        validate::command(&command, &self.limits).map_err(|error| refusal(&error))?;
        let reply = self.replica.execute(command.encode_to_vec().into()).await.map_err(failure)?;
        match KvReply::decode(reply).map_err(garbled)?.reply {
            Some(Reply::Error(error)) => Err(failed(error)),
            Some(reply) => Ok(reply),
            None => Err(unexpected("no reply")),
        }
    }

    /// Asks the store. The query is one that was checked.
    pub(crate) async fn query(&self, query: Query, consistency: Consistency) -> Result<Answer, Status> {
        let query = Bytes::from(KvQuery { query: Some(query) }.encode_to_vec());
        let answer = self.replica.query(query, consistency).await.map_err(failure)?;
        match KvAnswer::decode(answer).map_err(garbled)?.answer {
            Some(Answer::Error(error)) => Err(failed(error)),
            Some(answer) => Ok(answer),
            None => Err(unexpected("no answer")),
        }
    }

    /// How the store itself is: revision, size, alarms.
    pub(crate) async fn status(&self, consistency: Consistency) -> Result<KvStatus, Status> {
        match self.query(Query::Status(KvStatusRequest {}), consistency).await? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    /// The header of an answer, given the one that the store made: the store knows its revision and nothing else.
    pub(super) fn header(&self, from_store: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision: from_store.map_or(0, |header| header.revision),
            raft_term: self.replica.ballot().round,
        })
    }
}

/// The status for a request that validation refuses.
pub(super) fn refusal(error: &KvError) -> Status {
    failed(KvFailure::from(error))
}

fn failed(error: KvFailure) -> Status {
    Status::new(Code::from_i32(error.code), error.message)
}

/// The status for a request that the replica did not answer; in etcd's words, since its clients match on them.
pub(super) fn failure(error: RequestError) -> Status {
    let code = match error {
        RequestError::NoLeader
        | RequestError::Timeout
        | RequestError::Stopping
        | RequestError::Damaged(_) => Code::Unavailable,
        RequestError::Overloaded => Code::ResourceExhausted,
        RequestError::TooLarge => Code::InvalidArgument,
        RequestError::NotCaughtUp => Code::FailedPrecondition,
        // Synod's client knows these two by their codes: no other answer to a native request has them.
        RequestError::SessionExpired => Code::NotFound,
        RequestError::StaleSequence => Code::OutOfRange,
    };
    let whose = match error {
        RequestError::SessionExpired | RequestError::StaleSequence | RequestError::Damaged(_) => "synod",
        _ => "etcdserver",
    };
    Status::new(code, format!("{whose}: {error}"))
}

fn garbled(error: prost::DecodeError) -> Status {
    Status::internal(format!("synod: the state machine's answer does not decode: {error}"))
}

/// An answer of another kind than its question.
pub(super) fn unexpected(answer: impl std::fmt::Debug) -> Status {
    Status::internal(format!("synod: the state machine answered something else: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_in_etcds_words() {
        let told = |error| {
            let status = failure(error);
            (status.code(), status.message().to_owned())
        };
        assert_eq!(told(RequestError::NoLeader), (Code::Unavailable, "etcdserver: no leader".into()));
        assert_eq!(told(RequestError::Timeout), (Code::Unavailable, "etcdserver: request timed out".into()));
        assert_eq!(told(RequestError::Stopping), (Code::Unavailable, "etcdserver: server stopped".into()));
        assert_eq!(
            told(RequestError::Overloaded),
            (Code::ResourceExhausted, "etcdserver: too many requests".into())
        );
        assert_eq!(
            told(RequestError::TooLarge),
            (Code::InvalidArgument, "etcdserver: request is too large".into())
        );
    }
}
