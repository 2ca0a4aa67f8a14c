//! What operators ask of a cluster, or of one of its servers.

use bytes::Bytes;
use synod_api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    HashKvRequest, HashKvResponse, SnapshotRequest, SnapshotResponse, alarm_request::AlarmAction,
    maintenance_client::MaintenanceClient,
};
use tokio::time::timeout;
use tonic::{Response, Status, Streaming};

use crate::{
    Client, Error,
    auth::Line,
    client::ANSWER_BYTES_MAX,
    endpoints::{Retry, failed_at},
};

fn maintenance(line: Line) -> MaintenanceClient<Line> {
    MaintenanceClient::new(line).max_decoding_message_size(ANSWER_BYTES_MAX)
}

async fn alarm(line: Line, request: AlarmRequest) -> Result<Response<AlarmResponse>, Status> {
    maintenance(line).alarm(request).await
}

impl Client {
    /// The alarms that are raised.
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>, Error> {
        let send = |line| alarm(line, AlarmRequest::default());
        Ok(self.endpoints.call(Retry::Reads, send).await?.alarms)
    }

    /// Raises an alarm for a member; with [`AlarmType::Nospace`] no server takes a put, and with [`AlarmType::Corrupt`]
    /// none takes any write.
    pub async fn raise(&self, member_id: u64, kind: AlarmType) -> Result<Vec<AlarmMember>, Error> {
        self.set_alarm(AlarmAction::Activate, member_id, kind).await
    }

    /// Clears an alarm. Returns it, if it was raised. An alarm is that of the member for which it was raised, 0 among
    /// them.
    pub async fn disarm(&self, member_id: u64, kind: AlarmType) -> Result<Vec<AlarmMember>, Error> {
        self.set_alarm(AlarmAction::Deactivate, member_id, kind).await
    }

    async fn set_alarm(
        &self,
        action: AlarmAction,
        member_id: u64,
        kind: AlarmType,
    ) -> Result<Vec<AlarmMember>, Error> {
        let request = AlarmRequest { action: action.into(), member_id, alarm: kind.into() };
        Ok(self.endpoints.call(self.writes(), |line| alarm(line, request)).await?.alarms)
    }

    /// Asks every endpoint for the hash of its keys up to a revision; 0: its newest. Servers that were compacted at the
    /// same revision give the same hash. All are asked at the same time; the answers are in the order of
    /// [`endpoints`](Client::endpoints).
    pub async fn hash_kv(&self, revision: i64) -> Vec<Result<HashKvResponse, Error>> {
        let send = move |line| async move { maintenance(line).hash_kv(HashKvRequest { revision }).await };
        self.ask_all(self.endpoints.config().request_timeout, send).await
    }

    /// Has the server at an endpoint, counted from 0, give back the space of what was compacted. Synod has nothing to
    /// do then. With etcd the server answers nobody meanwhile, so ask one after the other; `Config::request_timeout`
    /// has to be long enough.
    pub async fn defragment(&self, endpoint: usize) -> Result<DefragmentResponse, Error> {
        self.check(endpoint)?;
        let send = |line| async move { maintenance(line).defragment(DefragmentRequest {}).await };
        self.endpoints.call_at(endpoint, send).await
    }

    /// Takes a snapshot of the server at an endpoint, counted from 0.
    pub async fn snapshot(&self, endpoint: usize) -> Result<Snapshot, Error> {
        self.check(endpoint)?;
        let send = |line| async move { maintenance(line).snapshot(SnapshotRequest {}).await };
        let pieces = self.endpoints.call_at(endpoint, send).await?;
        let url = self.endpoints().nth(endpoint).unwrap_or_default().to_owned();
        Ok(Snapshot { client: self.clone(), endpoint: url, pieces })
    }

    fn check(&self, endpoint: usize) -> Result<(), Error> {
        match self.endpoints().count() {
            count if endpoint < count => Ok(()),
            count => Err(Error::Config {
                what: format!("the endpoint is {endpoint}"),
                why: format!("there are {count}, counted from 0"),
            }),
        }
    }
}

/// A snapshot on its way. Its bytes are those of a file of etcd's, from which `etcdutl snapshot restore` makes a
/// member: the database, and the SHA-256 of it in the last 32 bytes.
#[derive(Debug)]
pub struct Snapshot {
    client: Client,
    endpoint: String,
    pieces: Streaming<SnapshotResponse>,
}

impl Snapshot {
    /// The next bytes; `None` at the end. Each piece comes within
    /// [`Config::request_timeout`](crate::Config::request_timeout).
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let next = timeout(self.client.endpoints.config().request_timeout, self.pieces.message()).await;
        let next = next.unwrap_or_else(|_| Err(Status::unavailable("no piece in time")));
        let piece = next.map_err(|status| failed_at(self.endpoint.clone(), &status))?;
        Ok(piece.map(|piece| piece.blob))
    }
}
