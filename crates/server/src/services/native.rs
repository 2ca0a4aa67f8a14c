//! Synod's own service, for clients that want each command executed at most once.

use std::sync::Arc;

use synod_api::synod::v1::{
    self as pb, ExecuteRequest, ExecuteResponse, KvStatus, OpenSessionRequest, OpenSessionResponse,
    QueryRequest, QueryResponse, StatusRequest, StatusResponse, native_server::Native,
};
use synod_wire::SessionId;
use tonic::{Request, Response, Status};

use super::envelope::{Store, failure};
use crate::{Config, Consistency, Replica, RequestError};

#[derive(Debug)]
pub(crate) struct NativeService<R> {
    store: Arc<Store<R>>,
    request_bytes_max: usize,
}

impl<R> NativeService<R> {
    pub(super) fn new(config: &Config, store: Arc<Store<R>>) -> NativeService<R> {
        NativeService { store, request_bytes_max: config.request_bytes_max }
    }
}

#[tonic::async_trait]
impl<R: Replica> Native for NativeService<R> {
    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let session = self.store.replica().open_session().await.map_err(failure)?.0;
        Ok(Response::new(OpenSessionResponse { session }))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteResponse>, Status> {
        let ExecuteRequest { session, sequence, lowest_outstanding, payload } = request.into_inner();
        if !(1..=sequence).contains(&lowest_outstanding) {
            return Err(Status::invalid_argument(format!(
                "synod: lowest_outstanding is {lowest_outstanding}; give 1 to the command's own number, {sequence}"
            )));
        }
        if payload.len() > self.request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        let replica = self.store.replica();
        let reply = replica
            .execute_in_session(SessionId(session), sequence, lowest_outstanding, payload)
            .await
            .map_err(failure)?;
        Ok(Response::new(ExecuteResponse { reply }))
    }

    async fn query(&self, request: Request<QueryRequest>) -> Result<Response<QueryResponse>, Status> {
        let QueryRequest { payload, serializable } = request.into_inner();
        if payload.len() > self.request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        let consistency = if serializable { Consistency::Serializable } else { Consistency::Linearizable };
        let reply = self.store.replica().query(payload, consistency).await.map_err(failure)?;
        Ok(Response::new(QueryResponse { reply }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let status = self.store.replica().status();
        // Another state machine than the key-value store has no revision; it answers something else or an error.
        let KvStatus { revision, size_bytes, .. } =
            self.store.status(Consistency::Serializable).await.unwrap_or_default();
        let leader_name = match status.leader {
            Some(leader) => {
                let members = self.store.replica().members();
                let known = members.into_iter().find(|member| member.id == leader);
                known.map_or_else(|| leader.to_string(), |member| member.name)
            }
            None => String::new(),
        };
        Ok(Response::new(StatusResponse {
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
        }))
    }
}
