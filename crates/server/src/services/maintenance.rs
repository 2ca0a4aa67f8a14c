//! etcd's service Maintenance, as far as Synod serves it.

use synod_api::{
    etcdserverpb::{
        AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
        DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
        MoveLeaderRequest, MoveLeaderResponse, ResponseHeader, StatusRequest, StatusResponse,
        alarm_request::AlarmAction, downgrade_request::DowngradeAction,
    },
    synod::v1::{KvStatus, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply},
};
use synod_consensus::Role;
use synod_kv::validate;
use synod_wire::ReplicaId;
use tonic::Status;

use super::{
    API_VERSION, CLUSTER_VERSION, STORAGE_VERSION,
    envelope::{Store, decoded, refusal, unexpected},
    translation::unmoved,
};
use crate::{Consistency, Replica, auth::Who, readers::Lane, replica};

impl<R: Replica> Store<R> {
    /// etcd's hash of this replica's own state, for comparison with the others. It is small, so it needs no place,
    /// however long it takes.
    pub(super) async fn hash_kv(
        &self,
        who: &Who,
        request: HashKvRequest,
        lane: &Lane,
    ) -> Result<HashKvResponse, Status> {
        if request.revision > 0
            && let Ok(watches) = self.watches()
            && let Some(found) = watches.hash_of(request.revision).await
        {
            let KvStatus { revision, .. } = self.status(Consistency::Serializable).await?;
            let header = self.header(Some(ResponseHeader { revision, ..Default::default() }));
            return Ok(HashKvResponse { header, ..found });
        }
        let found = match self.asked(who, Ok(Query::HashKv(request)), Consistency::Serializable).await? {
            replica::Answer::Pieces(source) => {
                lane.next(&mut Some(source), 1).await?.pop().unwrap_or_default()
            }
            found => found.whole(),
        };
        match decoded(found)? {
            Answer::HashKv(found) => Ok(HashKvResponse { header: self.header(found.header), ..found }),
            other => Err(unexpected(other)),
        }
    }

    /// As with etcd a list of alarms has those that were raised before it was asked for, whichever member they are of.
    pub(super) async fn alarm(&self, who: &Who, request: AlarmRequest) -> Result<AlarmResponse, Status> {
        validate::alarm(&request).map_err(|error| refusal(&error))?;
        if request.action() == AlarmAction::Get {
            let KvStatus { revision, mut alarms, .. } = self.status(Consistency::Linearizable).await?;
            alarms.retain(|raised| request.alarm == 0 || request.alarm == raised.alarm);
            let header = self.header(Some(ResponseHeader { revision, ..Default::default() }));
            return Ok(AlarmResponse { header, alarms });
        }
        let mut request = request;
        if request.action() == AlarmAction::Deactivate && request.alarm() == AlarmType::None {
            // etcd clears alarms of one kind, and there are none of this one. The store would clear those of all kinds;
            // it answers this as etcd would.
            request.set_action(AlarmAction::Activate);
        }
        let execute = self.execute(who, Command::Alarm(request), |reply| match reply {
            Reply::Alarm(done) => Ok(AlarmResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        });
        execute.await
    }

    /// This replica's own view, which it gives whether there is a leader or not.
    pub(super) async fn member_status(&self, _: StatusRequest) -> Result<StatusResponse, Status> {
        let status = self.replica().status();
        let KvStatus { revision, size_bytes, alarms, .. } = self.status(Consistency::Present).await?;
        let bytes = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        // etcd's file is never empty, and etcdctl divides by its size.
        let size_bytes = size_bytes.max(1);
        let mut errors = status.troubles;
        let leads_nobody = |group: &R| group.elsewhere().is_none() && group.status().node.leader.is_none();
        if self.groups().iter().any(leads_nobody) {
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
            leader: status.node.leader.map_or(0, |leader| leader.0),
            raft_index: status.node.decided.0,
            raft_term: self.replica().term(),
            raft_applied_index: status.node.executed.0,
            errors,
            // Everything allocated is in use: there is no file in which a deletion leaves holes.
            db_size_in_use: bytes(size_bytes),
            is_learner: self.is_learner(),
            // That of the snapshots that it gives.
            storage_version: STORAGE_VERSION.to_owned(),
            db_size_quota: bytes(self.quota_bytes()),
            downgrade_info: Some(DowngradeInfo { enabled: false, target_version: String::new() }),
        })
    }

    /// Whether this replica does not vote.
    pub(crate) fn is_learner(&self) -> bool {
        let status = self.replica().status();
        let has_no_vote = matches!(status.node.role, Role::Recovering | Role::Learner) && !status.is_away();
        self.replica().group().learns(status.replica) || has_no_vote
    }

    /// Only the leader accepts it, as with etcd. The answer comes when the other member leads.
    pub(super) async fn move_leader(&self, request: MoveLeaderRequest) -> Result<MoveLeaderResponse, Status> {
        let moved = self.replica().move_leader(ReplicaId(request.target_id)).await;
        moved.map_err(|error| unmoved(&error))?;
        // As with etcd, there is no header, nor in the answer to a defragmentation.
        Ok(MoveLeaderResponse::default())
    }

    /// No version of etcd goes on with the data of this one, so there is none to downgrade to, and no downgrade to
    /// cancel: the way back leads over a snapshot.
    pub(super) async fn downgrade(&self, request: DowngradeRequest) -> Result<DowngradeResponse, Status> {
        match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Cancel) => {
                let (version, _patch) = CLUSTER_VERSION.rsplit_once('.').expect("it has three parts");
                let KvStatus { revision, .. } = self.status(Consistency::Serializable).await?;
                let header = self.header(Some(ResponseHeader { revision, ..Default::default() }));
                Ok(DowngradeResponse { header, version: version.to_owned() })
            }
            Ok(DowngradeAction::Validate | DowngradeAction::Enable) if is_version(&request.version) => {
                Err(Status::invalid_argument("etcdserver: invalid downgrade target version"))
            }
            Ok(_) => Err(Status::invalid_argument("etcdserver: wrong downgrade target version format")),
            Err(_) => Err(Status::unknown("etcdserver: unknown method")),
        }
    }

    /// In etcd this gives back space that deletions left unused in the database file. Synod has no such file,
    /// so there is nothing to do.
    pub(super) async fn defragment(&self, _: DefragmentRequest) -> Result<DefragmentResponse, Status> {
        Ok(DefragmentResponse::default())
    }

    /// Apart from its log, a member stores only the keys and their versions, so this is the fingerprint of those.
    pub(super) async fn hash(&self, who: &Who, _: HashRequest, lane: &Lane) -> Result<HashResponse, Status> {
        let all = HashKvRequest { revision: 0 };
        let HashKvResponse { header, hash, .. } = self.hash_kv(who, all, lane).await?;
        Ok(HashResponse { header, hash })
    }
}

/// Whether it is two or three numbers, after three with what comes before or after a release.
fn is_version(version: &str) -> bool {
    let numbers = version.split(['-', '+']).next().filter(|numbers| numbers.split('.').count() == 3);
    let parts: Vec<_> = numbers.unwrap_or(version).split('.').collect();
    (2..=3).contains(&parts.len()) && parts.iter().all(|part| part.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_what_etcd_takes_for_one() {
        let all = ["3.5", "3.5.0", "3.5.0-rc", "3.5.0+x", "3", "v3.5", "", "3.5-rc", "x.5.0"];
        let are: Vec<_> = all.into_iter().filter(|version| is_version(version)).collect();
        assert_eq!(are, ["3.5", "3.5.0", "3.5.0-rc", "3.5.0+x"]);
    }
}
