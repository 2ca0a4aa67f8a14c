//! Synod's own service, for clients that want each command executed at most once.

use synod_api::synod::v1::{
    self as pb, ExecuteRequest, ExecuteResponse, KvStatus, OpenSessionRequest, OpenSessionResponse,
    QueryRequest, QueryResponse, StatusRequest, StatusResponse,
};
use synod_wire::SessionId;
use tonic::Status;

use super::envelope::{Store, failure};
use crate::{Consistency, Replica, RequestError};

impl<R: Replica> Store<R> {
    pub(super) async fn open_session(&self, _: OpenSessionRequest) -> Result<OpenSessionResponse, Status> {
        let session = self.replica().open_session().await.map_err(failure)?.0;
        Ok(OpenSessionResponse { session })
    }

    pub(super) async fn execute_in_session(
        &self,
        request: ExecuteRequest,
    ) -> Result<ExecuteResponse, Status> {
        let ExecuteRequest { session, sequence, lowest_outstanding, payload } = request;
        if !(1..=sequence).contains(&lowest_outstanding) {
            return Err(Status::invalid_argument(format!(
                "synod: lowest_outstanding is {lowest_outstanding}; give 1 to the command's own number, {sequence}"
            )));
        }
        if payload.len() > self.limits().request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        let replica = self.replica();
        let reply = replica
            .execute_in_session(SessionId(session), sequence, lowest_outstanding, payload)
            .await
            .map_err(failure)?;
        Ok(ExecuteResponse { reply })
    }

    pub(super) async fn query_natively(&self, request: QueryRequest) -> Result<QueryResponse, Status> {
        let QueryRequest { payload, serializable } = request;
        if payload.len() > self.limits().request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        let consistency = if serializable { Consistency::Serializable } else { Consistency::Linearizable };
        let reply = self.replica().query(payload, consistency).await.map_err(failure)?;
        Ok(QueryResponse { reply })
    }

    pub(super) async fn replica_status(&self, _: StatusRequest) -> Result<StatusResponse, Status> {
        let status = self.replica().status();
        // Another state machine than the key-value store has no revision; it answers something else or an error.
        let KvStatus { revision, size_bytes, .. } =
            self.status(Consistency::Serializable).await.unwrap_or_default();
        let leader_name = match status.leader {
            Some(leader) => {
                let members = self.replica().members();
                let known = members.into_iter().find(|member| member.id == leader);
                known.map_or_else(|| leader.to_string(), |member| member.name)
            }
            None => String::new(),
        };
        Ok(StatusResponse {
            cluster_id: status.cluster.0,
            replica: status.replica.0,
            name: status.name,
            role: status.role.as_str().to_owned(),
            leader: status.leader.map_or(0, |leader| leader.0),
            leader_name,
            ballot: status.ballot.to_string(),
            protocol: status.protocol,
            election: status.election,
            durability: status.durability,
            decided_slot: status.decided.0,
            applied_slot: status.applied.0,
            log_bytes: status.log_bytes,
            snapshot_slot: status.snapshot.0,
            sessions: status.sessions,
            revision,
            db_size: size_bytes,
            peers: status
                .peers
                .into_iter()
                .map(|peer| pb::PeerStatus {
                    replica: peer.replica.0,
                    name: peer.name,
                    up: peer.up,
                    decided_slot: peer.decided.0,
                })
                .collect(),
        })
    }
}
