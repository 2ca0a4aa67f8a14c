//! Short ways to write requests in tests.

use synod_api::{
    etcdserverpb::{
        AlarmMember, AlarmRequest, AlarmType, CompactionRequest, DeleteRangeRequest, DeleteRangeResponse,
        PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest, TxnResponse,
        alarm_request::AlarmAction, request_op::Request, response_op::Response,
    },
    synod::v1::{
        KvCommand, KvQuery, KvStatusRequest, kv_answer::Answer, kv_command::Command, kv_query::Query,
        kv_reply::Reply,
    },
};

use crate::{KvError, KvStore};

pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..PutRequest::default() }
}

pub(crate) fn delete(key: &str, range_end: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.to_owned().into(), range_end: range_end.to_owned().into(), prev_kv: false }
}

pub(crate) fn range(key: &str, range_end: &str) -> RangeRequest {
    RangeRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..RangeRequest::default()
    }
}

pub(crate) fn op_put(key: &str, value: &str) -> RequestOp {
    op(Request::RequestPut(put(key, value)))
}

pub(crate) fn op_delete(key: &str, range_end: &str) -> RequestOp {
    op(Request::RequestDeleteRange(delete(key, range_end)))
}

pub(crate) fn op_range(key: &str, range_end: &str) -> RequestOp {
    op(Request::RequestRange(range(key, range_end)))
}

pub(crate) fn op_txn(nested: TxnRequest) -> RequestOp {
    op(Request::RequestTxn(nested))
}

pub(crate) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// A transaction without comparisons.
pub(crate) fn all(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success, ..TxnRequest::default() }
}

pub(crate) fn command(command: Command) -> KvCommand {
    KvCommand { command: Some(command), ..KvCommand::default() }
}

/// The pairs of a response as text.
pub(crate) fn pairs(response: &RangeResponse) -> Vec<(&str, &str)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    response.kvs.iter().map(|pair| (text(&pair.key), text(&pair.value))).collect()
}

/// The keys of a response as text.
pub(crate) fn keys(response: &RangeResponse) -> Vec<&str> {
    pairs(response).into_iter().map(|(key, _)| key).collect()
}

/// The range response at a place of a transaction's response.
pub(crate) fn nth_range(responses: &[ResponseOp], at: usize) -> &RangeResponse {
    let Some(Response::ResponseRange(range)) = &responses[at].response else { panic!("not a range") };
    range
}

/// Executes requests one by one.
pub(crate) trait Execute {
    fn send(&mut self, request: Command) -> Result<Reply, KvError>;
    fn ask(&self, request: Query) -> Result<Answer, KvError>;

    fn set_with(&mut self, request: PutRequest) -> Result<PutResponse, KvError> {
        self.send(Command::Put(request))
            .map(|reply| if let Reply::Put(put) = reply { put } else { panic!("not a put") })
    }

    fn set(&mut self, key: &str, value: &str) -> PutResponse {
        self.set_with(put(key, value)).unwrap()
    }

    fn del_with(&mut self, request: DeleteRangeRequest) -> DeleteRangeResponse {
        let Ok(Reply::DeleteRange(response)) = self.send(Command::DeleteRange(request)) else {
            panic!("not a deletion")
        };
        response
    }

    fn del(&mut self, key: &str, range_end: &str) -> i64 {
        self.del_with(delete(key, range_end)).deleted
    }

    fn transact(&mut self, request: TxnRequest) -> Result<TxnResponse, KvError> {
        self.send(Command::Txn(request))
            .map(|reply| if let Reply::Txn(txn) = reply { txn } else { panic!("not a txn") })
    }

    fn compact_at(&mut self, revision: i64, physical: bool) -> Result<Reply, KvError> {
        let compact = Command::Compact(CompactionRequest { revision, physical });
        let reply = self.send(compact.clone())?;
        // As a server does.
        while physical && !self.is_cleared() {
            let again = self.send(compact.clone());
            assert!(matches!(again, Err(KvError::Compacted)));
        }
        Ok(reply)
    }

    fn is_cleared(&self) -> bool {
        let Ok(Answer::Status(status)) = self.ask(Query::Status(KvStatusRequest {})) else {
            panic!("not a status")
        };
        status.purged_revision >= status.compact_revision
    }

    fn ask_alarm(&mut self, action: AlarmAction, member_id: u64, alarm: AlarmType) -> Vec<AlarmMember> {
        let request = AlarmRequest { action: action.into(), member_id, alarm: alarm.into() };
        let Ok(Reply::Alarm(response)) = self.send(Command::Alarm(request)) else { panic!("not an alarm") };
        response.alarms
    }

    fn read_with(&self, request: RangeRequest) -> Result<RangeResponse, KvError> {
        self.ask(Query::Range(request))
            .map(|answer| if let Answer::Range(range) = answer { range } else { panic!("not a range") })
    }

    fn read_at(&self, key: &str, range_end: &str, revision: i64) -> Result<RangeResponse, KvError> {
        self.read_with(RangeRequest { revision, ..range(key, range_end) })
    }
}

impl Execute for KvStore {
    fn send(&mut self, request: Command) -> Result<Reply, KvError> {
        self.execute(&command(request))
    }

    fn ask(&self, request: Query) -> Result<Answer, KvError> {
        self.query(&KvQuery { query: Some(request), ..KvQuery::default() })
    }
}
