//! Synod's own service: for clients that want each command executed at most once, and for changes of a group
//! that etcd's API cannot express.

use std::time::Instant;

use bytes::Bytes;
use prost::{
    Message,
    encoding::{DecodeContext, decode_key, skip_field},
};
use synod_api::{
    etcdserverpb::AlarmMember,
    shards::{self, ENDPOINTS, NOT_HERE, Unroutable},
    synod::v1::{
        self as pb, ChangeRequest, ChangeResponse, ExecuteRequest, ExecuteResponse, KvCommand, KvQuery,
        KvStatus, MoveLeaderRequest, MoveLeaderResponse, OpenSessionRequest, OpenSessionResponse,
        QueryRequest, QueryResponse, StatusRequest, StatusResponse, SubscribeRequest, SubscribeStart,
        change_request::Change as Asked, kv_command::Command,
    },
};
use synod_grpc::Charge;
use synod_kv::validate;
use synod_wire::{GroupId, ReplicaId, SessionId, Slot};
use tonic::Status;
use tracing::debug;

use super::{
    envelope::{SMALL_ANSWER_BYTES_MAX, Store, asked_by, by, gathered, refusal, summed},
    translation::{self, failure, unmoved},
};
use crate::{
    Changed, Consistency, Elsewhere, Point, Replica, RequestError, Start,
    auth::{Judgement, Who},
    feeds::{Feed, broken_off},
    fields::Shape,
    openings::Table,
    readers::{Lane, Place},
    slow,
    upkeep::told_of_alarm,
};

/// The fields of a `KvCommand` and of a `KvQuery` that no client may set: renewals of leases, which servers gather;
/// changes of users and questions about them; comparisons of members' contents; snapshots; whose the command or query
/// is; and the quota, with the member that raises the alarm.
const FOR_MEMBERS_OF_COMMAND: [u32; 8] = [8, 9, 10, 11, 12, 14, 15, 16];
const FOR_MEMBERS_OF_QUERY: [u32; 5] = [7, 10, 11, 12, 13];

impl<R: Replica> Store<R> {
    pub(super) async fn open_session(
        &self,
        request: OpenSessionRequest,
        lane: &Lane,
    ) -> Result<OpenSessionResponse, Status> {
        let replica = self.group(request.group)?;
        let table = session_table(request.group, replica);
        let opening = self.openings().open(table, lane.origin(), Instant::now());
        let opening = opening.map_err(|share| too_many_sessions(table, share))?;
        match replica.open_session().await {
            Ok(session) => {
                // Without its number: with that anybody could execute commands in it.
                debug!(group = request.group, from = ?lane.origin(), "a client has opened a session");
                Ok(OpenSessionResponse { session: session.0, groups: self.count().into() })
            }
            Err(error) => {
                if !error.may_have_executed() {
                    opening.failed();
                }
                Err(failure(error))
            }
        }
    }

    pub(super) async fn execute_natively(
        &self,
        who: &Who,
        request: ExecuteRequest,
        charge: &Charge,
    ) -> Result<ExecuteResponse, Status> {
        let ExecuteRequest { session, sequence, lowest_outstanding, payload, group } = request;
        let in_session = session != 0;
        if !in_session && (sequence, lowest_outstanding) != (0, 0) {
            return Err(Status::invalid_argument(
                "synod: without a session nothing is numbered; give sequence and lowest_outstanding 0",
            ));
        }
        if in_session && !(1..=sequence).contains(&lowest_outstanding) {
            return Err(Status::invalid_argument(format!(
                "synod: lowest_outstanding is {lowest_outstanding}; give 1 to the command's own number, {sequence}"
            )));
        }
        if !in_session && self.count() == 1 {
            return Err(Status::invalid_argument(
                "synod: this cluster has one group: open a session, or use etcd's API, which needs none",
            ));
        }
        // A session's number may be that of another client's session in another group.
        let group = if in_session { Some(group.unwrap_or(0)) } else { group };
        let (replica, payload) = self.command(who, group, payload, in_session, charge)?;
        slow::handed_over();
        let done = if in_session {
            let session = SessionId(session);
            replica.execute_in_session_timed(session, sequence, lowest_outstanding, payload).await
        } else {
            replica.execute_timed(payload).await
        };
        Ok(ExecuteResponse { reply: slow::executed(done).map_err(failure)? })
    }

    pub(super) async fn query_natively(
        &self,
        who: &Who,
        request: QueryRequest,
        lane: &Lane,
        charge: &Charge,
    ) -> Result<(QueryResponse, Option<Place>), Status> {
        let QueryRequest { payload, serializable, group } = request;
        let (replica, payload) = self.query_of(who, group, payload, charge)?;
        let consistency = if serializable { Consistency::Serializable } else { Consistency::Linearizable };
        slow::handed_over();
        let answer = slow::read(replica.query_timed(payload, consistency).await).map_err(failure)?;
        let (reply, place) = gathered(answer, lane).await?;
        Ok((QueryResponse { reply }, place))
    }

    pub(super) async fn subscribe(
        &self,
        request: SubscribeRequest,
        judgement: Option<Judgement>,
    ) -> Result<Feed, Status> {
        let group = |number: u32| {
            u16::try_from(number)
                .map(GroupId)
                .map_err(|_| Status::invalid_argument(format!("synod: there is no group {number}")))
        };
        let start = match SubscribeStart::try_from(request.start) {
            Ok(SubscribeStart::Now) => Start::Now,
            Ok(SubscribeStart::Beginning) => Start::Beginning,
            Ok(SubscribeStart::Round) => Start::Round(request.round),
            Ok(SubscribeStart::Points) => {
                let point = |point: pb::GroupPoint| {
                    let after = Point::after(group(point.group)?, Slot(point.slot));
                    Ok(after.within(point.from_position, point.until_position))
                };
                Start::At(request.points.into_iter().map(point).collect::<Result<_, Status>>()?)
            }
            Err(unknown) => return Err(Status::invalid_argument(format!("synod: {unknown}"))),
        };
        let groups = request.groups.into_iter().map(group).collect::<Result<Vec<_>, _>>()?;
        let is_followed = |number: u16| groups.is_empty() || groups.contains(&GroupId(number));
        for (number, replica) in (0u16..).zip(self.groups()).filter(|&(number, _)| is_followed(number)) {
            if let Some(elsewhere) = replica.elsewhere() {
                return Err(not_here(number.into(), &elsewhere));
            }
        }
        let place = self.feeds().place()?;
        let leave: Vec<_> = request.leave.into_iter().map(group).collect::<Result<_, _>>()?;
        let subscribed = self.replica().subscribe(groups, start).await;
        let subscription = subscribed.map_err(|error| broken_off(&error))?;
        debug!(groups = subscription.points().len(), "a subscription begins");
        Ok(self.feeds().feed(subscription, leave, place, judgement))
    }

    pub(super) async fn move_leader_natively(
        &self,
        request: MoveLeaderRequest,
    ) -> Result<MoveLeaderResponse, Status> {
        let MoveLeaderRequest { group, member } = request;
        self.ordering_group(group)?.move_leader(ReplicaId(member)).await.map_err(|error| unmoved(&error))?;
        Ok(MoveLeaderResponse {})
    }

    /// The replica in the group that executes a command, and the command as it is ordered there.
    fn command(
        &self,
        who: &Who,
        group: Option<u32>,
        payload: Bytes,
        in_session: bool,
        charge: &Charge,
    ) -> Result<(&R, Bytes), Status> {
        if payload.len() > self.limits().request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        if !self.holds_keys() {
            return Ok((self.group(group.unwrap_or(0))?, payload));
        }
        check_unclaimed("command", &payload, &FOR_MEMBERS_OF_COMMAND)?;
        validate::encoded_command(&payload, &self.limits()).map_err(|error| refusal(&error))?;
        charge.afford(self.bounds().cost(&payload, Shape::named("synod.v1.KvCommand"))?)?;
        let command: KvCommand = decoded("KvCommand", payload)?;
        let replica = match self.count() {
            1 => self.group(group.unwrap_or(0))?,
            groups => self.group_of(group, shards::of_command(&command, groups))?,
        };
        let mut command = by(who, self.with_quota(command));
        if !matches!(command.command, Some(Command::Put(_))) {
            // Nothing keeps an answer that leaves without a session, so it was paid for before.
            let share = if in_session { u64::MAX } else { SMALL_ANSWER_BYTES_MAX };
            let most = replica.limits().answer_bytes_max.min(share);
            let asked = command.answer_bytes_max;
            command.answer_bytes_max = if asked == 0 { most } else { asked.min(most) };
        }
        validate::command(&command, &replica.limits()).map_err(|error| refusal(&error))?;
        Ok((replica, command.encode_to_vec().into()))
    }

    /// The replica in the group that is asked, and the query as it is asked there.
    fn query_of(
        &self,
        who: &Who,
        group: Option<u32>,
        payload: Bytes,
        charge: &Charge,
    ) -> Result<(&R, Bytes), Status> {
        if payload.len() > self.limits().request_bytes_max {
            return Err(failure(RequestError::TooLarge));
        }
        if !self.holds_keys() {
            return Ok((self.group(group.unwrap_or(0))?, payload));
        }
        check_unclaimed("query", &payload, &FOR_MEMBERS_OF_QUERY)?;
        validate::encoded_query(&payload, &self.limits()).map_err(|error| refusal(&error))?;
        charge.afford(self.bounds().cost(&payload, Shape::named("synod.v1.KvQuery"))?)?;
        let query: KvQuery = decoded("KvQuery", payload)?;
        let replica = match self.count() {
            1 => self.group(group.unwrap_or(0))?,
            groups => self.group_of(group, shards::of_query(&query, groups))?,
        };
        validate::query(&query, &replica.limits()).map_err(|error| refusal(&error))?;
        Ok((replica, asked_by(who, query).encode_to_vec().into()))
    }

    /// The replica in the group that is named, or to which the keys belong; both must agree.
    fn group_of(&self, named: Option<u32>, of_keys: Result<Option<u16>, Unroutable>) -> Result<&R, Status> {
        let of_keys = of_keys.map_err(|error| Status::invalid_argument(format!("synod: {error}")))?;
        match (named, of_keys.map(u32::from)) {
            (Some(named), Some(group)) if named != group => Err(Status::invalid_argument(format!(
                "synod: the request is for group {named}, and its keys belong to group {group} of {}",
                self.count()
            ))),
            (Some(group), _) | (None, Some(group)) => self.group(group),
            (None, None) => Err(Status::invalid_argument(format!(
                "synod: the request names no key, so it must name one of the {} groups",
                self.count()
            ))),
        }
    }

    /// A group for changes of what orders it: one of several that each have a store, or that order the commands of one.
    pub(super) fn ordering_group(&self, number: u32) -> Result<R, Status> {
        let merged = self.replica().status().merged.len();
        if merged == 0 {
            return self.group(number).cloned();
        }
        self.replica().merged_group(number).ok_or_else(|| {
            let last = merged - 1;
            Status::invalid_argument(format!(
                "synod: there is no group {number}; the groups of this cluster are 0 to {last}"
            ))
        })
    }

    fn group(&self, number: u32) -> Result<&R, Status> {
        let found = usize::try_from(number).ok().and_then(|number| self.groups().get(number));
        if let Some(elsewhere) = found.and_then(Replica::elsewhere) {
            return Err(not_here(number, &elsewhere));
        }
        found.ok_or_else(|| {
            Status::invalid_argument(format!(
                "synod: there is no group {number}; the groups of this cluster are 0 to {}",
                self.count() - 1
            ))
        })
    }

    pub(super) async fn replica_status(&self, request: StatusRequest) -> Result<StatusResponse, Status> {
        // First the group: an answer that has the members of a later version than its status would say of a change that
        // is under way that nothing is.
        let group = self.replica().group();
        let status = self.replica().status();
        // A state machine other than the key-value store has no revision; it answers something else or an error.
        let stores = match request.brief {
            true => Vec::new(),
            false => self.status_by_group(Consistency::Present).await.unwrap_or_default(),
        };
        let of_groups = self.groups().iter().map(Replica::status).enumerate();
        let groups: Vec<_> = if status.merged.is_empty() {
            let told = |(number, status)| translation::group_status(&status, &group, stores.get(number));
            of_groups.map(told).collect()
        } else {
            // They have one store.
            let told = |status| translation::group_status(status, &group, stores.first());
            let mut groups: Vec<_> = status.merged.iter().map(told).collect();
            let stall = status.merged[0].node.merge.and_then(|merge| merge.waits_for);
            if let Some((group, since)) = stall {
                groups[usize::from(group.0)].waited_for_ms = since.as_millis().try_into().unwrap_or(u64::MAX);
            }
            groups
        };
        let mut troubles = self.troubles(status.troubles.clone());
        let several = stores.len() > 1;
        for (number, store) in stores.iter().enumerate() {
            let told = |raised: &AlarmMember| {
                let member = group.name_of(ReplicaId(raised.member_id));
                told_of_alarm(raised, &member, several.then_some(number))
            };
            troubles.extend(store.alarms.iter().map(told));
        }
        let KvStatus { revision, size_bytes, .. } = summed(stores);
        Ok(StatusResponse {
            revision,
            db_size: size_bytes,
            group: Some(translation::group(&group, &status.node)),
            without_memory: groups.iter().any(|group| group.without_memory),
            troubles,
            groups,
            ..translation::status(&status)
        })
    }

    /// The troubles of the first group, and those of others that are not the same. Of several groups each trouble says
    /// of which it is, unless it is one of the whole replica.
    fn troubles(&self, of_first: Vec<String>) -> Vec<String> {
        let mut troubles = of_first.clone();
        for replica in self.groups().iter().skip(1) {
            let own = replica.status().troubles.into_iter().filter(|trouble| !of_first.contains(trouble));
            troubles.extend(own);
        }
        troubles
    }

    pub(super) async fn change_natively(&self, request: ChangeRequest) -> Result<ChangeResponse, Status> {
        let expected = Some(request.expected_version).filter(|&version| version != 0);
        let Some(asked) = request.change else {
            return Err(Status::invalid_argument("synod: no change is given"));
        };
        let adds = matches!(asked, Asked::Add(_));
        let own = matches!(asked, Asked::Reconfigure(_) | Asked::Limits(_) | Asked::Place(_));
        let count = usize::from(self.count()).max(self.replica().status().merged.len());
        if own && request.group.is_none() && count > 1 {
            return Err(Status::invalid_argument(format!(
                "synod: each of the {count} groups has a protocol, limits and voters of its own; name the group, as with `synod \
                 reconfigure --group 0`, or change the protocol or limits of all with --all-groups"
            )));
        }
        let replica = self.ordering_group(request.group.unwrap_or(0))?;
        let Changed { group, dropped } = self.change(&replica, expected, asked).await?;
        let added = group.members.last().filter(|_| adds).map_or(0, |member| member.id.0);
        let group = translation::group(&group, &replica.status().node);
        Ok(ChangeResponse { group: Some(group), added, dropped })
    }
}

/// The table of a group's sessions, as this replica knows it.
fn session_table(group: u32, replica: &impl Replica) -> Table {
    let limits = replica.group().limits.sessions;
    let free = (limits.clients_max as u64).saturating_sub(replica.status().node.client_sessions);
    Table { group, free, idle_max: limits.idle_max }
}

fn too_many_sessions(table: Table, share: u64) -> Status {
    Status::resource_exhausted(format!(
        "synod: clients of this address have opened {share} or more sessions lately, their share of the {} that are free; \
         use one session for many commands, or raise the limit sessions-max",
        table.free
    ))
}

/// The status for a request of a group in which this replica takes no part. It names those that do: for people in the
/// message, and for clients, which go there, in the metadata.
fn not_here(group: u32, Elsewhere { names, client_urls }: &Elsewhere) -> Status {
    let mut status = Status::unavailable(format!("{NOT_HERE} {group}; {} do", names.join(", ")));
    if let Ok(urls) = client_urls.join(",").parse() {
        status.metadata_mut().insert(ENDPOINTS, urls);
    }
    status
}

/// Refuses a command or query with a field that only servers set.
fn check_unclaimed(kind: &str, payload: &Bytes, for_members: &[u32]) -> Result<(), Status> {
    let mut rest = payload.clone();
    while let Ok((field, wire_type)) = decode_key(&mut rest) {
        if for_members.contains(&field) {
            return Err(Status::invalid_argument(format!(
                "synod: a client's {kind} must not have field {field}, which servers set: for a user give a token in the \
                 request's metadata; users, renewals of leases and snapshots have services of etcd's API"
            )));
        }
        if skip_field(wire_type, field, &mut rest, DecodeContext::default()).is_err() {
            break;
        }
    }
    Ok(())
}

/// Decodes a payload of the key-value store.
fn decoded<M: Message + Default>(kind: &str, payload: Bytes) -> Result<M, Status> {
    M::decode(payload).map_err(|error| {
        Status::invalid_argument(format!(
            "synod: the state machine is the key-value store, so a payload is a {kind}, and this one is not: {error}"
        ))
    })
}
