//! etcd's service Maintenance.

use std::sync::Arc;

use synod_api::{
    etcdserverpb::{
        AlarmRequest, AlarmResponse, DefragmentRequest, DefragmentResponse, DowngradeInfo, DowngradeRequest,
        DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
        MoveLeaderResponse, ResponseHeader, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
        alarm_request::AlarmAction, maintenance_server::Maintenance,
    },
    synod::v1::{KvStatus, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply},
};
use synod_kv::validate;
use tokio_stream::Empty;
use tonic::{Request, Response, Status};

use super::{
    API_VERSION,
    envelope::{Store, refusal, unexpected},
};
use crate::{Consistency, Replica, Role};

#[derive(Debug)]
pub(crate) struct MaintenanceService<R> {
    store: Arc<Store<R>>,
}

impl<R: Replica> MaintenanceService<R> {
    pub(super) fn new(store: Arc<Store<R>>) -> MaintenanceService<R> {
        MaintenanceService { store }
    }

    /// The fingerprint of this replica's own state, which is what one compares with the others'.
    async fn hash_kv(&self, request: HashKvRequest) -> Result<HashKvResponse, Status> {
        match self.store.query(Query::HashKv(request), Consistency::Serializable).await? {
            Answer::HashKv(mut response) => {
                response.header = self.store.header(response.header);
                Ok(response)
            }
            other => Err(unexpected(other)),
        }
    }
}

#[tonic::async_trait]
impl<R: Replica> Maintenance for MaintenanceService<R> {
    /// A list of alarms is read locally, as with etcd, so that it works without a leader.
    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        let request = request.into_inner();
        validate::alarm(&request).map_err(|error| refusal(&error))?;
        if request.action() == AlarmAction::Get {
            let KvStatus { revision, alarms, .. } = self.store.status(Consistency::Serializable).await?;
            let wanted = |id, alarm| {
                (request.member_id == 0 || request.member_id == id)
                    && (request.alarm == 0 || request.alarm == alarm)
            };
            let alarms = alarms.into_iter().filter(|alarm| wanted(alarm.member_id, alarm.alarm)).collect();
            let header = self.store.header(Some(ResponseHeader { revision, ..Default::default() }));
            return Ok(Response::new(AlarmResponse { header, alarms }));
        }
        match self.store.execute(Command::Alarm(request)).await? {
            Reply::Alarm(mut response) => {
                response.header = self.store.header(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }

    /// This replica's own view; it answers whether there is a leader or not.
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let status = self.store.replica().status();
        let KvStatus { revision, size_bytes, alarms, .. } =
            self.store.status(Consistency::Serializable).await?;
        let bytes = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut errors = status.troubles;
        if status.leader.is_none() {
            errors.push("etcdserver: no leader".to_owned());
        }
        errors.extend(
            alarms.iter().map(|raised| {
                format!("memberID:{} alarm:{}", raised.member_id, raised.alarm().as_str_name())
            }),
        );
        Ok(Response::new(StatusResponse {
            header: self.store.header(Some(ResponseHeader { revision, ..Default::default() })),
            version: API_VERSION.to_owned(),
            db_size: bytes(size_bytes),
            leader: status.leader.map_or(0, |leader| leader.0),
            raft_index: status.decided.0,
            raft_term: status.ballot.round,
            raft_applied_index: status.applied.0,
            errors,
            // Nothing is allocated and unused: there is no file that a deletion leaves holes in.
            db_size_in_use: bytes(size_bytes),
            is_learner: status.role == Role::Learner,
            // The file format is not any etcd version's.
            storage_version: String::new(),
            db_size_quota: bytes(self.store.quota_bytes()),
            downgrade_info: Some(DowngradeInfo { enabled: false, target_version: String::new() }),
        }))
    }

    /// Gives space back that deletions have left unused in etcd's database file. Here there is no such file, and
    /// so nothing is left to be done.
    async fn defragment(
        &self,
        _: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        Ok(Response::new(DefragmentResponse { header: self.store.header(None) }))
    }

    /// All that a member stores, apart from its log, is the keys and their versions.
    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        let HashKvResponse { header, hash, .. } = self.hash_kv(HashKvRequest { revision: 0 }).await?;
        Ok(Response::new(HashResponse { header, hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        self.hash_kv(request.into_inner()).await.map(Response::new)
    }

    type SnapshotStream = Empty<Result<SnapshotResponse, Status>>;

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(Status::unimplemented(
            "synod: snapshots in etcd's file format are not served; copy a stopped member's data directory instead",
        ))
    }

    async fn move_leader(
        &self,
        _: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        Err(Status::unimplemented(
            "synod: the leadership can not be moved on request; stop the leader instead",
        ))
    }

    async fn downgrade(&self, _: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        Err(Status::unimplemented("synod: a cluster can not be downgraded to a version of etcd"))
    }
}
