//! etcd's service Maintenance, as far as it is served.

use synod_api::{
    etcdserverpb::{
        AlarmRequest, AlarmResponse, DefragmentRequest, DefragmentResponse, DowngradeInfo, HashKvRequest,
        HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse, ResponseHeader,
        StatusRequest, StatusResponse, alarm_request::AlarmAction,
    },
    synod::v1::{KvStatus, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply},
};
use synod_kv::validate;
use synod_wire::ReplicaId;
use tonic::{Code, Status};

use super::{
    API_VERSION,
    envelope::{Store, decoded, refusal, unexpected},
};
use crate::{Consistency, MoveError, Replica, Role, readers::Lane, replica};

impl<R: Replica> Store<R> {
    /// The fingerprint of this replica's own state, which is what one compares with the others'. It is small, so it waits for
    /// no place, however long it takes.
    pub(super) async fn hash_kv(
        &self,
        request: HashKvRequest,
        lane: &Lane,
    ) -> Result<HashKvResponse, Status> {
        let found = match self.asked(Ok(Query::HashKv(request)), Consistency::Serializable).await? {
            replica::Answer::Whole(found) => found,
            replica::Answer::Pieces(source) => {
                lane.next(&mut Some(source), 1).await?.pop().unwrap_or_default()
            }
        };
        match decoded(found)? {
            Answer::HashKv(found) => Ok(HashKvResponse { header: self.header(found.header), ..found }),
            other => Err(unexpected(other)),
        }
    }

    /// A list of alarms is read locally, as with etcd, so that it works without a leader.
    pub(super) async fn alarm(&self, request: AlarmRequest) -> Result<AlarmResponse, Status> {
        validate::alarm(&request).map_err(|error| refusal(&error))?;
        if request.action() == AlarmAction::Get {
            let KvStatus { revision, alarms, .. } = self.status(Consistency::Serializable).await?;
            let wanted = |id, alarm| {
                (request.member_id == 0 || request.member_id == id)
                    && (request.alarm == 0 || request.alarm == alarm)
            };
            let alarms = alarms.into_iter().filter(|alarm| wanted(alarm.member_id, alarm.alarm)).collect();
            let header = self.header(Some(ResponseHeader { revision, ..Default::default() }));
            return Ok(AlarmResponse { header, alarms });
        }
        let execute = self.execute(Command::Alarm(request), |reply| match reply {
            Reply::Alarm(done) => Ok(AlarmResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        });
        execute.await
    }

    /// This replica's own view; it answers whether there is a leader or not.
    pub(super) async fn member_status(&self, _: StatusRequest) -> Result<StatusResponse, Status> {
        let status = self.replica().status();
        let KvStatus { revision, size_bytes, alarms, .. } = self.status(Consistency::Serializable).await?;
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
        Ok(StatusResponse {
            header: self.header(Some(ResponseHeader { revision, ..Default::default() })),
            version: API_VERSION.to_owned(),
            db_size: bytes(size_bytes),
            leader: status.leader.map_or(0, |leader| leader.0),
            raft_index: status.decided.0,
            raft_term: status.ballot.round,
            raft_applied_index: status.applied.0,
            errors,
            // Nothing is allocated and unused: there is no file that a deletion leaves holes in.
            db_size_in_use: bytes(size_bytes),
            is_learner: self.replica().group().is_learner(status.replica) || status.role == Role::Learner,
            // The file format is not any etcd version's.
            storage_version: String::new(),
            db_size_quota: bytes(self.quota_bytes()),
            downgrade_info: Some(DowngradeInfo { enabled: false, target_version: String::new() }),
        })
    }

    /// Only the leader takes it, as with etcd; the answer comes when the other one leads.
    pub(super) async fn move_leader(&self, request: MoveLeaderRequest) -> Result<MoveLeaderResponse, Status> {
        self.replica().move_leader(ReplicaId(request.target_id)).await.map_err(|error| {
            let code = match error {
                MoveError::NotLeader | MoveError::BadTransferee => Code::FailedPrecondition,
                MoveError::TookTooLong | MoveError::Stopping => Code::Unavailable,
            };
            Status::new(code, format!("etcdserver: {error}"))
        })?;
        Ok(MoveLeaderResponse { header: self.header(None) })
    }

    /// Gives space back that deletions have left unused in etcd's database file. Here there is no such file, and
    /// so nothing is left to be done.
    pub(super) async fn defragment(&self, _: DefragmentRequest) -> Result<DefragmentResponse, Status> {
        Ok(DefragmentResponse { header: self.header(None) })
    }

    /// All that a member stores, apart from its log, is the keys and their versions.
    pub(super) async fn hash(&self, _: HashRequest, lane: &Lane) -> Result<HashResponse, Status> {
        let HashKvResponse { header, hash, .. } = self.hash_kv(HashKvRequest { revision: 0 }, lane).await?;
        Ok(HashResponse { header, hash })
    }
}
