//! The etcd v3 API.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        AlarmMember, AlarmRequest, CompactionRequest, CompactionResponse, DeleteRangeRequest,
        DeleteRangeResponse, MoveLeaderRequest, MoveLeaderResponse, PutRequest, PutResponse, RangeRequest,
        RangeResponse, StatusRequest, StatusResponse, TxnRequest, TxnResponse, alarm_request::AlarmAction,
        kv_client::KvClient, maintenance_client::MaintenanceClient, request_op::Request,
    },
    shards::NO_SINGLE_REVISION,
    synod::v1::{
        self as native, KvAnswer, KvCommand, KvFailure, KvQuery, KvReply, kv_answer::Answer,
        kv_command::Command, kv_query::Query, kv_reply::Reply, native_client::NativeClient,
    },
};
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Response, Status};

use crate::{
    Config, Error,
    auth::Line,
    endpoints::{Endpoints, Retry},
};

/// Answers may be as large as the store allows, since the client asked for them.
pub(crate) const ANSWER_BYTES_MAX: usize = i32::MAX as usize;

/// A client of the etcd v3 API.
///
/// Clones share its connections: one connection to each endpoint, made when it is first needed. To have
/// several connections to an endpoint, make several clients.
///
/// A cluster of several groups does not serve etcd's API. There the client asks for keys by Synod's own, once a server
/// has said so: a put, and a read, deletion or transaction of keys of one group. Revisions are then those of the group.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) endpoints: Arc<Endpoints>,
    /// A server has said that the keys are spread over several groups.
    spread: Arc<AtomicBool>,
}

impl Client {
    /// Makes a client of these endpoints. Nothing is connected yet.
    pub fn new(config: Config) -> Result<Client, Error> {
        Ok(Client { endpoints: Endpoints::new(config)?, spread: Arc::default() })
    }

    /// The endpoints, as URLs, in the order in which they were given.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.endpoints.urls()
    }

    pub(crate) fn endpoints_used(&self) -> &Endpoints {
        &self.endpoints
    }

    pub(crate) fn writes(&self) -> Retry {
        if self.endpoints.config().retry_writes { Retry::Freely } else { Retry::IfNotExecuted }
    }

    /// Reads a key or a range of keys. Linearizable unless the request says `serializable`.
    pub async fn get(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        let send = |channel| {
            let request = request.clone();
            async move { kv(channel).range(request).await }
        };
        if let Some(answer) = self.unless_spread(Retry::Reads, send).await {
            return answer;
        }
        let serializable = request.serializable;
        match self.query(Query::Range(request), serializable).await? {
            Answer::Range(found) => Ok(found),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Writes one key.
    pub async fn put(&self, request: PutRequest) -> Result<PutResponse, Error> {
        let send = |channel| {
            let request = request.clone();
            async move { kv(channel).put(request).await }
        };
        if let Some(answer) = self.unless_spread(self.writes(), send).await {
            return answer;
        }
        match self.execute(None, Command::Put(request), self.writes()).await? {
            Reply::Put(done) => Ok(done),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Deletes a key or a range of keys.
    pub async fn delete(&self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse, Error> {
        let send = |channel| {
            let request = request.clone();
            async move { kv(channel).delete_range(request).await }
        };
        if let Some(answer) = self.unless_spread(self.writes(), send).await {
            return answer;
        }
        match self.execute(None, Command::DeleteRange(request), self.writes()).await? {
            Reply::DeleteRange(done) => Ok(done),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Compares, then executes one of two lists of operations, all at one revision.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        let retry = if only_reads(&request) { Retry::Reads } else { self.writes() };
        self.txn_as(retry, request).await
    }

    /// [`Client::txn`], sent again as `retry` allows.
    pub(crate) async fn txn_as(&self, retry: Retry, request: TxnRequest) -> Result<TxnResponse, Error> {
        let send = |channel| {
            let request = request.clone();
            async move { kv(channel).txn(request).await }
        };
        if let Some(answer) = self.unless_spread(retry, send).await {
            return answer;
        }
        if retry == Retry::Reads {
            return match self.query(Query::Txn(request), false).await? {
                Answer::Txn(found) => Ok(found),
                other => Err(self.unexpected(&other)),
            };
        }
        match self.execute(None, Command::Txn(request), retry).await? {
            Reply::Txn(done) => Ok(done),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The answer of etcd's API; `None` if the cluster does not serve it, since its keys are spread over groups.
    async fn unless_spread<T, F>(&self, retry: Retry, send: impl Fn(Line) -> F) -> Option<Result<T, Error>>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        if self.spread.load(Ordering::Relaxed) {
            return None;
        }
        match self.endpoints.call(retry, send).await {
            Err(Error::Refused { code: Code::FailedPrecondition, message, .. })
                if message.starts_with(NO_SINGLE_REVISION) =>
            {
                self.spread.store(true, Ordering::Relaxed);
                None
            }
            answer => Some(answer),
        }
    }

    /// Executes a command of the key-value store by Synod's own API, outside of a session, in the group of its keys or
    /// in the one that is named.
    async fn execute(&self, group: Option<u16>, command: Command, retry: Retry) -> Result<Reply, Error> {
        let payload = KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec();
        let group = group.map(u32::from);
        let request = native::ExecuteRequest { payload: payload.into(), group, ..Default::default() };
        let send = |channel| {
            let request = request.clone();
            async move { native_client(channel).execute(request).await }
        };
        let answer = self.endpoints.call(retry, send).await?;
        match KvReply::decode(answer.reply) {
            Ok(KvReply { reply: Some(Reply::Error(failure)) }) => {
                Err(self.failed(failure, retry == Retry::Freely))
            }
            Ok(KvReply { reply: Some(reply) }) => Ok(reply),
            garbled => Err(self.unexpected(&garbled)),
        }
    }

    /// Asks the key-value store by Synod's own API.
    async fn query(&self, query: Query, serializable: bool) -> Result<Answer, Error> {
        let payload = KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec();
        let request = native::QueryRequest { payload: payload.into(), serializable, group: None };
        let send = |channel| {
            let request = request.clone();
            async move { native_client(channel).query(request).await }
        };
        let answer = self.endpoints.call(Retry::Reads, send).await?;
        match KvAnswer::decode(answer.reply) {
            Ok(KvAnswer { answer: Some(Answer::Error(failure)), .. }) => Err(self.failed(failure, false)),
            Ok(KvAnswer { answer: Some(answer), .. }) => Ok(answer),
            garbled => Err(self.unexpected(&garbled)),
        }
    }

    /// What the store refuses, as the server tells it in etcd's API. `in_doubt`: an earlier attempt may have been made.
    fn failed(&self, failure: KvFailure, in_doubt: bool) -> Error {
        let (code, message) = (Code::from_i32(failure.code), failure.message);
        Error::Refused { endpoint: self.endpoints.current_url(), code, message, in_doubt }
    }

    /// An answer that does not match its question.
    fn unexpected(&self, answer: &dyn fmt::Debug) -> Error {
        let message = format!("synod: the store answered something else: {answer:?}");
        Error::Refused {
            endpoint: self.endpoints.current_url(),
            code: Code::Internal,
            message,
            in_doubt: true,
        }
    }

    /// Forgets versions that no read at or after a revision can see. A server refuses a repeated compaction
    /// as already compacted, so the client repeats it only where it would repeat another write.
    pub async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse, Error> {
        let send = |channel| async move { kv(channel).compact(request).await };
        self.endpoints.call(self.writes(), send).await
    }

    /// [`Client::compact`] in one group of a cluster that has several. The revision is that group's.
    pub async fn compact_in(
        &self,
        group: u16,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Error> {
        match self.execute(Some(group), Command::Compact(request), self.writes()).await? {
            Reply::Compact(done) => Ok(done),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Clears the alarms of one group of a cluster that has several, so that a group whose store was full takes puts
    /// again. Returns what was cleared.
    pub async fn disarm_in(&self, group: u16) -> Result<Vec<AlarmMember>, Error> {
        let request = AlarmRequest { action: AlarmAction::Deactivate.into(), ..AlarmRequest::default() };
        match self.execute(Some(group), Command::Alarm(request), self.writes()).await? {
            Reply::Alarm(done) => Ok(done.alarms),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Changes the group: its members, or its protocol, by Synod's own API. The client sends the change again only
    /// while no earlier attempt can have been executed.
    pub async fn change(&self, request: native::ChangeRequest) -> Result<native::ChangeResponse, Error> {
        let send = |channel| {
            let request = request.clone();
            async move { NativeClient::new(channel).change(request).await }
        };
        self.endpoints.call(Retry::IfNotExecuted, send).await
    }

    /// Hands the leadership to a member, and waits until it leads. Only the leader takes the request, so the
    /// client asks the first endpoint and no other.
    pub async fn move_leader(&self, target_id: u64) -> Result<MoveLeaderResponse, Error> {
        let send = |channel| async move {
            MaintenanceClient::new(channel).move_leader(MoveLeaderRequest { target_id }).await
        };
        self.endpoints.call_at(0, send).await
    }

    /// Hands the leadership of a group to a member, and waits until it leads. Only the group's leader takes the
    /// request, so the client asks the first endpoint and no other.
    pub async fn move_leader_of(&self, group: u32, member: u64) -> Result<(), Error> {
        let request = native::MoveLeaderRequest { group, member };
        let send = |channel| async move { NativeClient::new(channel).move_leader(request).await };
        self.endpoints.call_at(0, send).await.map(|native::MoveLeaderResponse {}| ())
    }

    /// Asks every endpoint for its status, in the etcd API's terms. All are asked at the same time; the
    /// answers are in the order of [`endpoints`](Client::endpoints).
    pub async fn status(&self) -> Vec<Result<StatusResponse, Error>> {
        let within = self.status_timeout();
        self.ask_all(within, |channel| async move {
            MaintenanceClient::new(channel).status(StatusRequest {}).await
        })
        .await
    }

    /// Asks every endpoint for its status, in Synod's terms. All are asked at the same time; the answers are
    /// in the order of [`endpoints`](Client::endpoints). An etcd server does not know the request.
    pub async fn native_status(&self) -> Vec<Result<native::StatusResponse, Error>> {
        self.ask_all(self.status_timeout(), native_status_at).await
    }

    /// The same from those endpoints that answer soon, with their addresses: until an answer is `enough`, or once one
    /// has come for as long as `grace`.
    pub async fn native_status_soon(
        &self,
        grace: Duration,
        mut enough: impl FnMut(&native::StatusResponse) -> bool,
    ) -> Vec<(String, native::StatusResponse)> {
        let within = self.status_timeout();
        let asked = self.endpoints.urls().enumerate().map(|(index, url)| async move {
            (url.to_owned(), self.endpoints.call_at_within(index, within, native_status_at).await)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut until = Instant::now() + within;
        let mut answers = Vec::new();
        while let Ok(Some((url, answer))) = timeout_at(until, asked.next()).await {
            let Ok(status) = answer else { continue };
            let is_enough = enough(&status);
            answers.push((url, status));
            if is_enough {
                break;
            }
            until = until.min(Instant::now() + grace);
        }
        answers
    }

    /// A replica tells its status at once, or does not answer.
    fn status_timeout(&self) -> Duration {
        let config = self.endpoints.config();
        config.attempt_timeout.min(config.request_timeout)
    }

    pub(crate) async fn ask_all<T, F>(
        &self,
        within: Duration,
        send: impl Fn(Line) -> F + Clone + Send + Sync + 'static,
    ) -> Vec<Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send,
    {
        let asked: Vec<_> = (0..self.endpoints.count())
            .map(|index| {
                let (endpoints, send) = (self.endpoints.clone(), send.clone());
                tokio::spawn(async move { endpoints.call_at_within(index, within, send).await })
            })
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for task in asked {
            answers.push(task.await.expect("asking for a status does not panic"));
        }
        answers
    }
}

async fn native_status_at(channel: Line) -> Result<Response<native::StatusResponse>, Status> {
    NativeClient::new(channel).status(native::StatusRequest::default()).await
}

fn native_client(channel: Line) -> NativeClient<Line> {
    NativeClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn kv(channel: Line) -> KvClient<Line> {
    KvClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// Whether no branch of the transaction writes.
fn only_reads(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match &op.request {
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => false,
        Some(Request::RequestTxn(inner)) => only_reads(inner),
        Some(Request::RequestRange(_)) | None => true,
    })
}

#[cfg(test)]
mod tests {
    use synod_api::etcdserverpb::RequestOp;

    use super::*;

    #[test]
    fn a_write_in_a_nested_branch_is_a_write() {
        let op = |request| RequestOp { request: Some(request) };
        let read = TxnRequest {
            success: vec![op(Request::RequestRange(RangeRequest::default()))],
            ..Default::default()
        };
        assert!(only_reads(&read));
        let inner = TxnRequest {
            failure: vec![op(Request::RequestPut(PutRequest::default()))],
            ..Default::default()
        };
        let outer = TxnRequest { success: vec![op(Request::RequestTxn(inner))], ..read };
        assert!(!only_reads(&outer));
    }

    #[test]
    fn a_configuration_that_makes_no_sense_is_named() {
        let wrong = |config| Client::new(config).unwrap_err().to_string();
        assert!(wrong(Config::new(Vec::<String>::new())).contains("no endpoint"));
        assert!(wrong(Config::new(["https://a:1"])).contains("--cacert"));
        assert!(wrong(Config::new(["ftp://a:1"])).contains("http://host:port"));
        assert!(wrong(Config::new(["http://a b"])).contains("http://host:port"));
        assert!(wrong(Config { first_endpoint: Some(1), ..Config::new(["a:1"]) }).contains("first_endpoint"));
    }
}
