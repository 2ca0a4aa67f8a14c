//! Synod's own service: for clients that want each command executed at most once, and for changes of a group
//! that etcd's API cannot express.

use synod_api::synod::v1::{
    self as pb, ChangeRequest, ChangeResponse, ExecuteRequest, ExecuteResponse, KvStatus, OpenSessionRequest,
    OpenSessionResponse, QueryRequest, QueryResponse, StatusRequest, StatusResponse,
    change_request::Change as Asked,
};
use synod_wire::{ReplicaId, SessionId};
use tonic::Status;

use super::envelope::{Store, failure, gathered};
use crate::{
    Change, Consistency, Goal, Group, Replica, RequestError, Standing,
    readers::{Lane, Place},
};

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

    pub(super) async fn query_natively(
        &self,
        request: QueryRequest,
        lane: &Lane,
    ) -> Result<(QueryResponse, Option<Place>), Status> {
        let QueryRequest { payload, serializable } = request;
        if payload.len() > self.limits().request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        let consistency = if serializable { Consistency::Serializable } else { Consistency::Linearizable };
        let answer = self.replica().query(payload, consistency).await.map_err(failure)?;
        let (reply, place) = gathered(answer, lane).await?;
        Ok((QueryResponse { reply }, place))
    }

    pub(super) async fn replica_status(&self, _: StatusRequest) -> Result<StatusResponse, Status> {
        let status = self.replica().status();
        // A state machine other than the key-value store has no revision; it answers something else or an error.
        let KvStatus { revision, size_bytes, .. } =
            self.status(Consistency::Serializable).await.unwrap_or_default();
        let group = self.replica().group();
        let leader_name = status.leader.map_or_else(String::new, |leader| group.name_of(leader));
        let (received, total) = status.receiving.unwrap_or_default();
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
            dissemination: status.dissemination,
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
            group: Some(group.into()),
            snapshot_bytes_received: received,
            snapshot_bytes_total: total,
            slots_missing: status.missing,
            sources: status.sources,
            without_memory: status.without_memory,
            troubles: status.troubles,
            waits_for: status.waits_for,
        })
    }

    pub(super) async fn change_natively(&self, request: ChangeRequest) -> Result<ChangeResponse, Status> {
        let expected = Some(request.expected_version).filter(|&version| version != 0);
        let change = match request.change {
            Some(change) => Change::try_from(change)?,
            None => return Err(Status::invalid_argument("synod: no change is given")),
        };
        let adds = matches!(change, Change::Add { .. });
        let group = self.change(expected, change).await?;
        let added = group.members.last().filter(|_| adds).map_or(0, |member| member.id.0);
        Ok(ChangeResponse { group: Some(group.into()), added })
    }
}

impl TryFrom<Asked> for Change {
    type Error = Status;

    fn try_from(change: Asked) -> Result<Change, Status> {
        let unless_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(match change {
            Asked::Add(pb::AddMember { name, peer_urls, goal, replaces }) => {
                let goal = match pb::Goal::try_from(goal) {
                    Ok(pb::Goal::Vote) => Goal::Vote,
                    Ok(pb::Goal::Learn) => Goal::Learn,
                    Ok(pb::Goal::Replace) => Goal::Replace(ReplicaId(replaces)),
                    Err(_) => return Err(Status::invalid_argument(format!("synod: {goal} is not a goal"))),
                };
                Change::Add { name, peer_urls, goal }
            }
            Asked::Promote(id) => Change::Promote(ReplicaId(id)),
            Asked::Remove(id) => Change::Remove(ReplicaId(id)),
            Asked::Update(pb::UpdateMember { member, peer_urls }) => {
                Change::Update { id: ReplicaId(member), peer_urls }
            }
            Asked::Reconfigure(pb::Reconfigure { protocol, election, options }) => {
                Change::Order { protocol: unless_empty(protocol), election: unless_empty(election), options }
            }
            Asked::Limits(limits) => Change::Limits(limits),
        })
    }
}

impl From<Group> for pb::Group {
    fn from(group: Group) -> pb::Group {
        let members = group.members.into_iter().map(|member| {
            let (votes, goal, replaces) = match member.standing {
                Standing::Voter => (true, pb::Goal::Vote, 0),
                Standing::Learner(Goal::Vote) => (false, pb::Goal::Vote, 0),
                Standing::Learner(Goal::Learn) => (false, pb::Goal::Learn, 0),
                Standing::Learner(Goal::Replace(id)) => (false, pb::Goal::Replace, id.0),
            };
            pb::GroupMember {
                id: member.id.0,
                name: member.name,
                peer_urls: member.peer_urls,
                client_urls: member.client_urls,
                votes,
                goal: goal.into(),
                replaces,
                decided_slot: member.decided.map_or(0, |slot| slot.0),
            }
        });
        pb::Group {
            version: group.version,
            epoch: group.epoch,
            members: members.collect(),
            protocol: group.protocol,
            election: group.election,
            options: group.options,
            limits: group.limits,
        }
    }
}
