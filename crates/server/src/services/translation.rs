//! Roles, groups, members, changes and errors of a replica as messages of protobuf, and back.

use std::time::Duration;

use synod_api::{
    etcdserverpb,
    synod::v1::{self as pb, KvStatus, StatusResponse, change_request::Change as Asked},
};
use synod_consensus::Overrides;
use synod_replica::{Choice, Others};
use synod_wire::ReplicaId;
use tonic::{Code, Status};

use crate::{
    Change, ChangeError, Goal, Group, Member, MemberInfo, MoveError, NodeStatus, Refusal, RequestError,
    Standing, call::TOO_MANY, services::cluster::BAD_URLS,
};

/// The change that a client asks for, made for the group as it is: what the client leaves open stays.
pub(super) fn change(group: &Group, asked: &Asked) -> Result<Change, ChangeError> {
    Ok(match asked {
        Asked::Add(add) => {
            let goal = goal(add)?;
            let taken = |member: &&Member| {
                let replaced = goal == Goal::Replace(member.id);
                member.info.name == add.name && !add.name.is_empty() && !replaced
            };
            if let Some(member) = group.members.iter().find(taken) {
                let why = format!("{} has the name {} already; choose another", member.id, add.name);
                return Err(ChangeError::Unacceptable(why));
            }
            Change::Add { info: MemberInfo::new(&add.name, add.peer_urls.clone()), goal }
        }
        &Asked::Promote(id) => Change::promote(ReplicaId(id)),
        &Asked::Remove(id) => Change::Remove(ReplicaId(id)),
        Asked::Update(pb::UpdateMember { member, peer_urls }) => {
            let id = ReplicaId(*member);
            let mut info = group.member(id).ok_or(Refusal::NotAMember(id))?.info.clone();
            info.peer_urls.clone_from(peer_urls);
            Change::Update { id, info }
        }
        Asked::Reconfigure(order) => ordering(group, order)?,
        Asked::Limits(limits) => Change::Limits(group.limits.with(limits).map_err(unacceptable)?),
        Asked::Place(pb::Place { voters, others_stay_away }) => {
            let others = if *others_stay_away { Others::StayAway } else { Others::Learn };
            let voters = voters.iter().copied().map(ReplicaId);
            Change::Place((voters.len() > 0).then(|| Choice::of(voters, others)))
        }
    })
}

/// What becomes of a learner that is to be added.
pub(super) fn goal(add: &pb::AddMember) -> Result<Goal, ChangeError> {
    Ok(match pb::Goal::try_from(add.goal) {
        Ok(pb::Goal::Vote) => Goal::Vote,
        Ok(pb::Goal::Learn) => Goal::Learn,
        Ok(pb::Goal::Replace) => Goal::Replace(ReplicaId(add.replaces)),
        Err(_) => return Err(unacceptable(format!("{} is not a goal", add.goal))),
    })
}

fn ordering(group: &Group, order: &pb::Reconfigure) -> Result<Change, ChangeError> {
    let protocol = match &*order.protocol {
        "" => group.protocol,
        name => name.parse().map_err(unacceptable)?,
    };
    // Another protocol brings its own election and no options; the same protocol keeps those that it has.
    let stays = protocol == group.protocol;
    let election = match &*order.election {
        "" if stays => group.election,
        "" => protocol.elections()[0],
        name => name.parse().map_err(unacceptable)?,
    };
    let overrides = match &order.options {
        None if stays => group.overrides.clone(),
        None => Overrides::default(),
        Some(options) => options.parse().map_err(unacceptable)?,
    };
    Ok(Change::Order { protocol, election, overrides })
}

fn unacceptable(why: impl ToString) -> ChangeError {
    ChangeError::Unacceptable(why.to_string())
}

/// A group, with what a replica knows of how far its learners are.
pub(super) fn group(group: &Group, status: &NodeStatus) -> pb::Group {
    let members = group.members.iter().map(|member| {
        let (votes, goal, replaces) = match member.standing {
            Standing::Voter => (true, pb::Goal::Vote, 0),
            Standing::Learner(Goal::Vote) => (false, pb::Goal::Vote, 0),
            Standing::Learner(Goal::Replace(id)) => (false, pb::Goal::Replace, id.0),
            // A member without a vote that a later version may know is none that becomes a voter by itself.
            _ => (false, pb::Goal::Learn, 0),
        };
        pb::GroupMember {
            id: member.id.0,
            name: member.info.name.clone(),
            peer_urls: member.info.peer_urls.clone(),
            client_urls: member.info.client_urls.clone(),
            votes,
            goal: goal.into(),
            replaces,
            decided_slot: status.learned(member.id).map_or(0, |slot| slot.0),
        }
    });
    pb::Group {
        version: group.version,
        epoch: group.epoch.0,
        members: members.collect(),
        protocol: group.protocol.to_string(),
        election: group.election.to_string(),
        options: group.overrides.to_string(),
        limits: group.limits.to_string(),
        quorum: quorum(group),
    }
}

/// The members as etcd lists them.
pub(super) fn members(group: &Group) -> Vec<etcdserverpb::Member> {
    group.members.iter().map(member).collect()
}

fn member(member: &Member) -> etcdserverpb::Member {
    etcdserverpb::Member {
        id: member.id.0,
        name: member.info.name.clone(),
        peer_ur_ls: member.info.peer_urls.clone(),
        client_ur_ls: member.info.client_urls.clone(),
        is_learner: member.standing != Standing::Voter,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a replica says of itself and of its first group, without what its stores say.
pub(super) fn status(status: &crate::Status) -> StatusResponse {
    let crate::Status { node, group, .. } = status;
    // Members that were removed a short time ago may still be connected.
    let peers = node.peers.iter().filter(|peer| group.member(peer.id).is_some());
    let peers = peers.map(|peer| pb::PeerStatus {
        replica: peer.id.0,
        name: group.name_of(peer.id),
        up: peer.up_since.is_some(),
        // Only learners tell how far they are.
        decided_slot: node.learned(peer.id).map_or(0, |slot| slot.0),
        // One that is shorter than a nanosecond is measured, too.
        round_trip_nanos: node.round_trip(peer.id).map_or(0, |time| nanos(time).max(1)),
        datagrams: peer.datagrams,
    });
    let (received, total) = node.receiving;
    StatusResponse {
        cluster_id: status.cluster.0,
        replica: status.replica.0,
        name: status.name.clone(),
        role: role(status).to_owned(),
        leader: node.leader.map_or(0, |leader| leader.0),
        leader_name: node.leader.map_or_else(String::new, |leader| group.name_of(leader)),
        ballot: node.ballot.to_string(),
        protocol: group.protocol.to_string(),
        election: group.election.to_string(),
        dissemination: group.overrides.dissemination().to_string(),
        durability: status.durability.clone(),
        transport: status.transport.clone(),
        decided_slot: node.decided.0,
        applied_slot: node.executed.0,
        log_bytes: node.log_bytes,
        snapshot_slot: node.snapshot.0,
        sessions: node.client_sessions,
        peers: peers.collect(),
        snapshot_bytes_received: received,
        snapshot_bytes_total: total,
        slots_missing: node.missing(),
        sources: node.sources,
        waits_for: node.waits_for.iter().map(|&id| group.name_of(id)).collect(),
        commands_thousandths: node.share_of_commands(status.replica),
        ..StatusResponse::default()
    }
}

/// What a replica says of one of its groups, with what its store says. Names are told to the first group.
pub(super) fn group_status(
    status: &crate::Status,
    first: &Group,
    store: Option<&KvStatus>,
) -> pb::GroupStatus {
    let crate::Status { node, group, .. } = status;
    pb::GroupStatus {
        role: role(status).to_owned(),
        leader_name: node.leader.map_or_else(String::new, |leader| first.name_of(leader)),
        ballot: node.ballot.to_string(),
        decided_slot: node.decided.0,
        applied_slot: node.executed.0,
        snapshot_slot: node.snapshot.0,
        members_pending: status.members_pending.clone(),
        db_size: store.map_or(0, |store| store.size_bytes),
        keys: store.map_or(0, |store| store.keys),
        revision: store.map_or(0, |store| store.revision),
        position: node.merge.map_or(0, |merge| merge.position + 1),
        waited_for_ms: 0,
        placement: placement(group, first),
        voters: group.voters().map(|id| first.name_of(id)).collect(),
        without_memory: node.without_memory,
        epoch: group.epoch.0,
        quorum: quorum(group),
    }
}

/// How many voters of a group decide.
fn quorum(group: &Group) -> u32 {
    let quorum = group.threshold().least(group.voters().count());
    u32::try_from(quorum).expect("a group is small")
}

/// The role in lower case. A replica may take no part in a group.
fn role(status: &crate::Status) -> &'static str {
    if status.is_away() { "away" } else { status.node.role.as_str() }
}

/// The choice of the voters of a group, for people; empty if there is none.
fn placement(group: &Group, first: &Group) -> String {
    let Some(placement) = &group.placement else {
        return String::new();
    };
    let Choice { voters, others, .. } = &placement.choice;
    let names: Vec<_> = voters.iter().map(|&id| first.name_of(id)).collect();
    format!("{} {}, the others {others}", names.join(", "), if names.len() == 1 { "votes" } else { "vote" })
}

/// The status for a request that the replica did not answer, in etcd's words where etcd has some, since its clients
/// match on them.
pub(crate) fn failure(error: RequestError) -> Status {
    let (code, text) = match error {
        RequestError::NoLeader => (Code::Unavailable, "etcdserver: no leader"),
        RequestError::TakesNoPart => (Code::Unavailable, "synod: this replica takes no part in the group"),
        // In all three cases the command may have been executed, and this client gets no reply to it.
        RequestError::Timeout | RequestError::OutcomeUnknown | RequestError::Superseded => {
            (Code::Unavailable, "etcdserver: request timed out")
        }
        RequestError::Overloaded | RequestError::TooFarAhead => (Code::ResourceExhausted, TOO_MANY),
        RequestError::NotCaughtUp => {
            let text = "etcdserver: can only promote a learner member which is in sync with leader";
            (Code::FailedPrecondition, text)
        }
        RequestError::Unhealthy => (Code::Unavailable, "etcdserver: unhealthy cluster"),
        RequestError::TooLarge => (Code::InvalidArgument, "etcdserver: request is too large"),
        // Synod's client recognizes these three by their codes, which no other answer to a native request has.
        RequestError::ReplyGone => {
            let text = "synod: the command was executed before, and its reply is not kept any more";
            (Code::AlreadyExists, text)
        }
        RequestError::SessionExpired => (Code::NotFound, "synod: the session has expired"),
        RequestError::Stale => (Code::OutOfRange, "synod: the session has given up this sequence number"),
        RequestError::Stopping => (Code::Unavailable, "etcdserver: server stopped"),
        // A client cannot tell from the code whether the command was executed, and takes care.
        other => return Status::unavailable(format!("synod: {other}")),
    };
    Status::new(code, text)
}

/// The status for a change that failed, in etcd's words where etcd has some, since its clients match on them.
pub(super) fn unchanged(error: ChangeError) -> Status {
    let refusal = match error {
        ChangeError::OfNode(synod_node::ChangeError::Refused(refusal)) => refusal,
        ChangeError::OfNode(synod_node::ChangeError::Request(error)) => return failure(error),
        ChangeError::OfNode(error) => return Status::invalid_argument(format!("synod: {error}")),
        ChangeError::TooManyLearners => {
            return Status::failed_precondition(format!("etcdserver: {error}"));
        }
        ChangeError::Unacceptable(why) if why == BAD_URLS => {
            return Status::invalid_argument(format!("etcdserver: {why}"));
        }
        ChangeError::Unacceptable(why) => return Status::invalid_argument(format!("synod: {why}")),
    };
    let (code, text) = match refusal {
        Refusal::NotAMember(_) => (Code::NotFound, "etcdserver: member not found"),
        Refusal::NotALearner(_) => {
            (Code::FailedPrecondition, "etcdserver: can only promote a learner member")
        }
        Refusal::AddressTaken(..) => (Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
        Refusal::LastVoter(_) => {
            let text = "etcdserver: re-configuration failed due to not enough started members";
            (Code::FailedPrecondition, text)
        }
        Refusal::Full => (Code::FailedPrecondition, "synod: the group has as many members as it can have"),
        Refusal::Stale { expected, current } => {
            return Status::aborted(format!(
                "synod: the change was made for version {expected} of the group, and it is at version {current}: look at it again"
            ));
        }
        Refusal::NothingToDo => return Status::failed_precondition(format!("synod: {refusal}")),
        Refusal::Unsettled => return Status::unavailable(format!("synod: {refusal}")),
        other => return Status::invalid_argument(format!("synod: {other}")),
    };
    Status::new(code, text)
}

/// The status for a leadership that did not move, in etcd's words.
pub(super) fn unmoved(error: &MoveError) -> Status {
    let code = match error {
        MoveError::NotLeader | MoveError::BadTransferee => Code::FailedPrecondition,
        MoveError::TookTooLong | MoveError::Stopping => Code::Unavailable,
    };
    Status::new(code, format!("etcdserver: {error}"))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use synod_consensus::{ElectionKind, Options, ProtocolKind, Role};
    use synod_replica::Limits;
    use synod_wire::{Ballot, ClusterId, Epoch, Slot};

    use super::*;

    /// Groups and changes that are drawn.
    const DRAWN: u64 = 300;

    /// The groups and changes of a seed.
    struct Draw(fastrand::Rng);

    impl Draw {
        fn id(&mut self) -> ReplicaId {
            ReplicaId(self.0.u64(1..1 << 40))
        }

        fn texts(&mut self) -> Vec<String> {
            (0..self.0.usize(0..3)).map(|_| format!("http://h{}:1", self.0.u16(..))).collect()
        }

        fn info(&mut self) -> MemberInfo {
            let name = if self.0.bool() { String::new() } else { format!("n{}", self.0.u16(..)) };
            let mut info = MemberInfo::new(name, self.texts());
            info.client_urls = self.texts();
            info
        }

        fn goal(&mut self) -> Goal {
            let replaced = self.id();
            *self.0.choice(&[Goal::Learn, Goal::Vote, Goal::Replace(replaced)]).expect("three goals")
        }

        fn ordering(&mut self) -> (ProtocolKind, ElectionKind, Overrides) {
            let (_, protocol) = *self.0.choice(ProtocolKind::ALL).expect("there are protocols");
            let election = *self.0.choice(protocol.elections()).expect("it has one");
            let options = ["", "window-max=8", "window-max=9,dissemination=balanced"];
            (protocol, election, self.0.choice(&options).expect("three").parse().expect("options"))
        }

        fn limits(&mut self) -> Limits {
            let text = format!("max-txn-ops={},sessions-max={}", self.0.u32(1..), self.0.u32(1..1 << 20));
            Limits::default().with(&text).expect("in their ranges")
        }

        fn group(&mut self) -> Group {
            let mut group = Group::of(&Options::default(), []).limited(self.limits());
            (group.protocol, group.election, group.overrides) = self.ordering();
            (group.version, group.epoch) = (self.0.u64(1..), Epoch(self.0.u64(1..)));
            let mut members = std::collections::BTreeMap::new();
            for _ in 0..self.0.usize(1..6) {
                let mut member = Member::voter(self.id(), self.info());
                member.standing =
                    if self.0.bool() { Standing::Voter } else { Standing::Learner(self.goal()) };
                members.insert(member.id, member);
            }
            group.members = members.into_values().collect();
            group
        }

        fn change(&mut self, group: &Group) -> Change {
            match self.0.u8(0..7) {
                0 => {
                    let mut info = self.info();
                    info.name = format!("added{}", self.0.u16(..));
                    // A client does not say where clients reach a member.
                    info.client_urls.clear();
                    Change::Add { info, goal: self.goal() }
                }
                1 => Change::promote(self.id()),
                2 => Change::Remove(self.id()),
                3 => {
                    let Member { id, ref info, .. } = *self.0.choice(&group.members).expect("not empty");
                    let mut info = info.clone();
                    info.peer_urls = self.texts();
                    Change::Update { id, info }
                }
                4 => {
                    let (protocol, election, overrides) = self.ordering();
                    Change::Order { protocol, election, overrides }
                }
                5 => Change::Limits(self.limits()),
                _ => {
                    let others = if self.0.bool() { Others::StayAway } else { Others::Learn };
                    let voters: Vec<_> = (0..self.0.usize(0..4)).map(|_| self.id()).collect();
                    Change::Place((!voters.is_empty()).then(|| Choice::of(voters, others)))
                }
            }
        }

        fn status(&mut self, group: &Group) -> NodeStatus {
            let mut status = NodeStatus::default();
            status.learners = group.learners().map(|(id, _)| (id, Slot(self.0.u64(1..)))).collect();
            status
        }
    }

    /// What a client is told, read as this crate reads what clients say.
    fn read_group(told: &pb::Group) -> (Group, Vec<(ReplicaId, Slot)>) {
        let limits = Limits::default().with(&told.limits).expect("they are as they are read");
        let mut group = Group::of(&Options::default(), []).limited(limits);
        (group.version, group.epoch) = (told.version, Epoch(told.epoch));
        group.protocol = told.protocol.parse().expect("it is known");
        group.election = told.election.parse().expect("it is known");
        group.overrides = told.options.parse().expect("they are as they are read");
        let member = |told: &pb::GroupMember| {
            let mut info = MemberInfo::new(&told.name, told.peer_urls.clone());
            info.client_urls.clone_from(&told.client_urls);
            let mut member = Member::voter(ReplicaId(told.id), info);
            if !told.votes {
                let (goal, replaces) = (told.goal, told.replaces);
                let add = pb::AddMember { goal, replaces, ..pb::AddMember::default() };
                member.standing = Standing::Learner(goal_of(&add));
            }
            member
        };
        group.members = told.members.iter().map(member).collect();
        let learners = told.members.iter().filter(|member| !member.votes);
        (group, learners.map(|member| (ReplicaId(member.id), Slot(member.decided_slot))).collect())
    }

    fn goal_of(add: &pb::AddMember) -> Goal {
        goal(add).expect("it is one")
    }

    /// A change as a client asks for it.
    fn asked(change: &Change) -> Asked {
        match change {
            Change::Add { info, goal } => {
                let (goal, replaces) = match *goal {
                    Goal::Vote => (pb::Goal::Vote, 0),
                    Goal::Replace(id) => (pb::Goal::Replace, id.0),
                    _ => (pb::Goal::Learn, 0),
                };
                let (name, peer_urls) = (info.name.clone(), info.peer_urls.clone());
                Asked::Add(pb::AddMember { name, peer_urls, goal: goal.into(), replaces })
            }
            Change::Promote { id, .. } => Asked::Promote(id.0),
            Change::Remove(id) => Asked::Remove(id.0),
            Change::Update { id, info } => {
                Asked::Update(pb::UpdateMember { member: id.0, peer_urls: info.peer_urls.clone() })
            }
            Change::Order { protocol, election, overrides } => Asked::Reconfigure(pb::Reconfigure {
                protocol: protocol.to_string(),
                election: election.to_string(),
                options: Some(overrides.to_string()),
            }),
            Change::Limits(limits) => Asked::Limits(limits.to_string()),
            Change::Place(choice) => Asked::Place(pb::Place {
                voters: choice.iter().flat_map(|choice| &choice.voters).map(|id| id.0).collect(),
                others_stay_away: choice.as_ref().is_some_and(|choice| choice.others == Others::StayAway),
            }),
            other => panic!("no client asks for {other:?}"),
        }
    }

    #[test]
    fn a_group_that_is_told_is_that_group() {
        for seed in 0..DRAWN {
            let mut draw = Draw(fastrand::Rng::with_seed(seed));
            let known = draw.group();
            let status = draw.status(&known);
            let bytes = group(&known, &status).encode_to_vec();
            let (mut read, learners) = read_group(&pb::Group::decode(&bytes[..]).expect("it was encoded"));
            // Of what is not told.
            read.next_id = known.next_id;
            assert_eq!((read, learners), (known, status.learners), "seed {seed}");
        }
    }

    #[test]
    fn a_change_that_is_asked_for_is_that_change() {
        for seed in 0..DRAWN {
            let mut draw = Draw(fastrand::Rng::with_seed(seed));
            let known = draw.group();
            let wanted = draw.change(&known);
            let request = pb::ChangeRequest { change: Some(asked(&wanted)), ..pb::ChangeRequest::default() };
            let request = pb::ChangeRequest::decode(&request.encode_to_vec()[..]).expect("it was encoded");
            let read = change(&known, &request.change.expect("it is there"));
            assert_eq!(read.expect("it can be made"), wanted, "seed {seed}");
        }
    }

    #[test]
    fn what_a_client_leaves_open_stays_unless_the_protocol_changes() {
        let mut known = Group::of(&Options::default(), [ReplicaId(1)]);
        (known.election, known.overrides) = (ElectionKind::Rotating, "window-max=8".parse().unwrap());
        let order = |protocol: &str| {
            let order = pb::Reconfigure { protocol: protocol.into(), ..pb::Reconfigure::default() };
            change(&known, &Asked::Reconfigure(order)).unwrap()
        };
        let Group { protocol, election, ref overrides, .. } = known;
        let same = Change::Order { protocol, election, overrides: overrides.clone() };
        assert_eq!([order(""), order("multipaxos")], [same.clone(), same]);
        let (protocol, overrides) = (ProtocolKind::Raft, Overrides::default());
        let other = Change::Order { protocol, election: ElectionKind::Randomized, overrides };
        assert_eq!(order("raft"), other);
        let unknown = pb::AddMember { goal: 7, ..pb::AddMember::default() };
        let refused = ChangeError::Unacceptable("7 is not a goal".into());
        assert_eq!(change(&known, &Asked::Add(unknown)), Err(refused));
        let limits = change(&known, &Asked::Limits("max-txn-ops=7".into())).unwrap();
        assert_eq!(limits, Change::Limits(known.limits.with("max-txn-ops=7").unwrap()));
    }

    #[test]
    fn a_replica_tells_of_itself_what_its_node_does() {
        let mut known = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        (known.version, known.epoch) = (11, Epoch(12));
        known.members[1].info.name = "two".into();
        known.members[2].standing = Standing::Learner(Goal::Vote);
        let mut node = NodeStatus::default();
        (node.role, node.leader) = (Role::Recovering, Some(ReplicaId(2)));
        node.ballot = Ballot { round: 13, replica: ReplicaId(2) };
        (node.decided, node.decided_elsewhere, node.executed) = (Slot(14), Slot(114), Slot(15));
        (node.snapshot, node.log_bytes, node.client_sessions) = (Slot(16), 17, 18);
        (node.receiving, node.sources) = ((19, 20), 21);
        node.learners = vec![(ReplicaId(3), Slot(22))];
        node.peers = [2, 3, 9].map(|id| crate::PeerLink::new(ReplicaId(id), None)).into();
        node.peers[0].datagrams = true;
        (node.waits_for, node.origins) = (vec![ReplicaId(2)], vec![(ReplicaId(1), 400)]);
        node.round_trips = vec![(ReplicaId(3), Duration::from_millis(2))];
        let mut own = crate::Status {
            cluster: ClusterId(23),
            replica: ReplicaId(1),
            name: "one".into(),
            durability: "sync".into(),
            transport: "udp".into(),
            node,
            group: std::sync::Arc::new(known),
            troubles: Vec::new(),
            members_pending: String::new(),
            merged: Vec::new(),
        };
        let told = status(&own);
        let peer = |replica: u64, name: &str, decided_slot| pb::PeerStatus {
            replica,
            name: name.into(),
            up: false,
            decided_slot,
            round_trip_nanos: if replica == 3 { 2_000_000 } else { 0 },
            datagrams: replica == 2,
        };
        let expected = StatusResponse {
            cluster_id: 23,
            replica: 1,
            name: "one".into(),
            role: "recovering".into(),
            leader: 2,
            leader_name: "two".into(),
            ballot: own.node.ballot.to_string(),
            protocol: "multipaxos".into(),
            election: "ballot".into(),
            dissemination: "leader".into(),
            durability: "sync".into(),
            transport: "udp".into(),
            decided_slot: 14,
            applied_slot: 15,
            log_bytes: 17,
            snapshot_slot: 16,
            sessions: 18,
            // The one that was removed is left out.
            peers: vec![peer(2, "two", 0), peer(3, &ReplicaId(3).to_string(), 22)],
            snapshot_bytes_received: 19,
            snapshot_bytes_total: 20,
            slots_missing: 100,
            sources: 21,
            waits_for: vec!["two".into()],
            commands_thousandths: 400,
            ..StatusResponse::default()
        };
        assert_eq!(told, expected);
        let of_group = group_status(&own, &own.group, None);
        assert_eq!((of_group.epoch, &*of_group.leader_name, of_group.voters.len()), (12, "two", 2));
        for role in [Role::Follower, Role::Candidate, Role::Leader, Role::Recovering, Role::Learner] {
            own.node.role = role;
            assert_eq!(status(&own).role, role.as_str());
        }
    }

    #[test]
    fn failures_are_told_in_etcds_words() {
        let told = |error| {
            let status = failure(error);
            (status.code(), status.message().to_owned())
        };
        assert_eq!(told(RequestError::NoLeader), (Code::Unavailable, "etcdserver: no leader".into()));
        assert_eq!(told(RequestError::Timeout), (Code::Unavailable, "etcdserver: request timed out".into()));
        assert_eq!(told(RequestError::Stopping), (Code::Unavailable, "etcdserver: server stopped".into()));
        assert_eq!(
            told(RequestError::Overloaded),
            (Code::ResourceExhausted, "etcdserver: too many requests".into())
        );
        assert_eq!(
            told(RequestError::TooLarge),
            (Code::InvalidArgument, "etcdserver: request is too large".into())
        );
        assert_eq!(told(RequestError::ReplyGone).0, Code::AlreadyExists);
        assert_eq!(told(RequestError::Superseded), told(RequestError::Timeout));
        // No error becomes another one for lack of words.
        let text = "synod: this is not a change of the group";
        assert_eq!(told(RequestError::NotAChange), (Code::Unavailable, text.into()));
    }

    #[test]
    fn refusals_are_told_in_etcds_words() {
        let told = |error| {
            let status = unchanged(error);
            (status.code(), status.message().to_owned())
        };
        let cases = [
            (Refusal::NotAMember(ReplicaId(4)).into(), Code::NotFound, "etcdserver: member not found"),
            (
                Refusal::AddressTaken(ReplicaId(4), String::new()).into(),
                Code::FailedPrecondition,
                "etcdserver: Peer URLs already exists",
            ),
            (
                Refusal::NotALearner(ReplicaId(4)).into(),
                Code::FailedPrecondition,
                "etcdserver: can only promote a learner member",
            ),
            (
                crate::RequestError::NotCaughtUp.into(),
                Code::FailedPrecondition,
                "etcdserver: can only promote a learner member which is in sync with leader",
            ),
            (crate::RequestError::Unhealthy.into(), Code::Unavailable, "etcdserver: unhealthy cluster"),
            (
                Refusal::LastVoter(ReplicaId(4)).into(),
                Code::FailedPrecondition,
                "etcdserver: re-configuration failed due to not enough started members",
            ),
            (
                ChangeError::TooManyLearners,
                Code::FailedPrecondition,
                "etcdserver: too many learner members in cluster",
            ),
            (
                ChangeError::Unacceptable(BAD_URLS.into()),
                Code::InvalidArgument,
                "etcdserver: given member URLs are invalid",
            ),
            (
                Refusal::Stale { expected: 3, current: 4 }.into(),
                Code::Aborted,
                "synod: the change was made for version 3 of the group, and it is at version 4: look at it again",
            ),
        ];
        for (error, code, message) in cases {
            assert_eq!(told(error), (code, message.to_owned()));
        }
    }
}
