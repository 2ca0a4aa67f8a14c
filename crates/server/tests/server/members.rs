//! Changes of the group through etcd's API and Synod's own: what reaches the replica, and what is answered.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::common::{MEMBER, config, connect, replica, serve};
use synod_api::{
    etcdserverpb::{
        MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
        MoveLeaderRequest, cluster_client::ClusterClient, maintenance_client::MaintenanceClient,
    },
    synod::v1::{self as native, change_request::Change as Asked, native_client::NativeClient},
};
use synod_consensus::{Overrides, ProtocolKind};
use synod_server::{
    Change, ChangeError, Changed, Goal, Group, InMemory, Member, MemberInfo, MoveError, PeerLink, Refusal,
    Replica, Standing, Status, Wanted,
};
use synod_wire::{ReplicaId, Slot};
use tonic::Code;

/// A change, with the version that it expects.
type Note = (Option<u64>, Change);

/// A replica that records the changes that it is asked for, and adds and removes members of a list.
#[derive(Clone)]
struct Noting {
    inner: InMemory,
    group: Arc<Mutex<Group>>,
    asked: Arc<Mutex<Vec<Note>>>,
    /// The error that answers every change, if there is one.
    refusal: Arc<Mutex<Option<ChangeError>>>,
    peers: Arc<Mutex<Vec<PeerLink>>>,
}

impl Noting {
    fn new() -> Noting {
        let inner = replica();
        let group = Arc::new(Mutex::new((*inner.group()).clone()));
        Noting { inner, group, asked: Arc::default(), refusal: Arc::default(), peers: Arc::default() }
    }

    fn refuse(&self, error: ChangeError) {
        *self.refusal.lock().unwrap() = Some(error);
    }

    fn last_asked(&self) -> Note {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

impl Replica for Noting {
    answered_by_inner!(limits, execute, execute_in_session, open_session, query, term);

    fn status(&self) -> Status {
        let mut status = self.inner.status();
        status.node.receiving = (3, 10);
        status.node.peers.clone_from(&self.peers.lock().unwrap());
        status.node.learners = self.group().learners().map(|(id, _)| (id, Slot(5))).collect();
        status
    }

    fn group(&self) -> Arc<Group> {
        Arc::new(self.group.lock().unwrap().clone())
    }

    async fn change(&self, expected: Option<u64>, wanted: &Wanted<'_>) -> Result<Changed, ChangeError> {
        let change = wanted(&self.group())?;
        self.asked.lock().unwrap().push((expected, change.clone()));
        if let Some(error) = self.refusal.lock().unwrap().clone() {
            return Err(error);
        }
        let mut group = self.group.lock().unwrap();
        group.version += 1;
        match change {
            Change::Add { info, goal } => {
                let mut member = Member::voter(ReplicaId(MEMBER + group.version), info);
                member.standing = Standing::Learner(goal);
                group.members.push(member);
            }
            Change::Remove(id) => group.members.retain(|member| member.id != id),
            _ => {}
        }
        Ok(Arc::new(group.clone()).into())
    }

    async fn move_leader(&self, to: ReplicaId) -> Result<(), MoveError> {
        match to.0 {
            1 => Err(MoveError::NotLeader),
            2 => Err(MoveError::TookTooLong),
            _ => self.inner.move_leader(to).await,
        }
    }
}

#[tokio::test]
async fn members_come_and_go_in_etcds_terms() {
    let replica = Noting::new();
    let server = serve(&config(), replica.clone());
    let mut cluster = ClusterClient::new(connect(&server).await);
    let urls = || vec!["http://h:2380".to_owned()];

    let add = MemberAddRequest { peer_ur_ls: urls(), is_learner: false };
    let added = cluster.member_add(add).await.unwrap().into_inner();
    let member = added.member.unwrap();
    assert_eq!((member.id, member.is_learner, added.members.len()), (MEMBER + 2, true, 2));
    assert_eq!(added.header.unwrap().member_id, MEMBER);
    let info = || MemberInfo::new("", urls());
    let change = Change::Add { info: info(), goal: Goal::Vote };
    assert_eq!(replica.last_asked(), (None, change));

    let add = MemberAddRequest { peer_ur_ls: urls(), is_learner: true };
    cluster.member_add(add).await.unwrap();
    let change = Change::Add { info: info(), goal: Goal::Learn };
    assert_eq!(replica.last_asked().1, change);

    // One that the replica has not heard of yet is waited for, as clients of etcd expect it.
    replica.refuse(synod_server::RequestError::NotCaughtUp.into());
    let heard = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        *replica.refusal.lock().unwrap() = None;
    };
    let promoted = cluster.member_promote(MemberPromoteRequest { id: 9 });
    tokio::join!(promoted, heard).0.unwrap();
    assert_eq!(replica.last_asked().1, Change::promote(ReplicaId(9)));
    cluster.member_update(MemberUpdateRequest { id: 9, peer_ur_ls: urls() }).await.unwrap();
    assert_eq!(replica.last_asked().1, Change::Update { id: ReplicaId(9), info: info() });
    let left = cluster.member_remove(MemberRemoveRequest { id: MEMBER + 2 }).await.unwrap().into_inner();
    assert_eq!(left.members.iter().map(|member| member.id).collect::<Vec<_>>(), [MEMBER, MEMBER + 3]);
    let list = cluster.member_list(MemberListRequest { linearizable: true }).await.unwrap().into_inner();
    assert_eq!(list.members.len(), 2);
}

/// etcd's `--strict-reconfig-check`.
#[tokio::test]
async fn a_change_of_members_waits_until_enough_voters_have_been_connected_for_five_seconds() {
    let replica = Noting::new();
    let ids = [MEMBER + 1, MEMBER + 2].map(ReplicaId);
    for id in ids {
        let member = Member::voter(id, MemberInfo::default());
        replica.group.lock().unwrap().members.push(member);
    }
    // For how many seconds each of the others has been connected.
    let connected = |seconds: [Option<u64>; 2]| {
        let peer = |(id, seconds): (ReplicaId, Option<u64>)| {
            let since = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            PeerLink::new(id, seconds.map(since))
        };
        *replica.peers.lock().unwrap() = ids.into_iter().zip(seconds).map(peer).collect();
    };
    let server = serve(&config(), replica.clone());
    let loose = synod_server::Config { strict_reconfig_check: false, ..config() };
    let loose = serve(&loose, replica.clone());
    let (mut strict, mut loose) =
        (ClusterClient::new(connect(&server).await), ClusterClient::new(connect(&loose).await));
    let add = |is_learner| MemberAddRequest { peer_ur_ls: vec!["http://h:2380".to_owned()], is_learner };
    let remove = |id: ReplicaId| MemberRemoveRequest { id: id.0 };

    connected([Some(9), Some(1)]);
    for is_learner in [false, true] {
        let refused = strict.member_add(add(is_learner)).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "etcdserver: unhealthy cluster"));
    }
    assert_eq!(strict.member_remove(remove(ids[0])).await.unwrap_err().code(), Code::Unavailable);
    assert!(replica.asked.lock().unwrap().is_empty(), "nothing was ordered");
    loose.member_add(add(true)).await.unwrap();

    connected([Some(9), None]);
    assert_eq!(strict.member_add(add(false)).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(strict.member_remove(remove(ids[0])).await.unwrap_err().code(), Code::Unavailable);
    // One that is not there is no part of the quorum at work, and an unknown one is told as such.
    strict.member_remove(remove(ids[1])).await.unwrap();
    strict.member_remove(remove(ReplicaId(99))).await.unwrap();

    connected([Some(9), None]);
    strict.member_add(add(false)).await.unwrap();
}

#[tokio::test]
async fn impossible_changes_are_refused_in_etcds_words() {
    let replica = Noting::new();
    let server = serve(&config(), replica.clone());
    let mut cluster = ClusterClient::new(connect(&server).await);
    for urls in [vec![], vec!["h:1".to_owned()], vec!["http://h".to_owned()]] {
        let add = MemberAddRequest { peer_ur_ls: urls, is_learner: false };
        let refused = cluster.member_add(add).await.unwrap_err();
        let expected = (Code::InvalidArgument, "etcdserver: given member URLs are invalid");
        assert_eq!((refused.code(), refused.message()), expected);
    }
    assert!(replica.asked.lock().unwrap().is_empty(), "what is wrong in itself is not ordered");
    replica.refuse(Refusal::NotAMember(ReplicaId(MEMBER)).into());
    let refused = cluster.member_remove(MemberRemoveRequest { id: 99 }).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "etcdserver: member not found"));
    let nobody = MemberUpdateRequest { id: 99, peer_ur_ls: vec!["no address".to_owned()] };
    let refused = cluster.member_update(nobody).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "etcdserver: member not found"));
    let wrong = MemberUpdateRequest { id: MEMBER, peer_ur_ls: vec!["no address".to_owned()] };
    assert_eq!(cluster.member_update(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    // Etcd accepts an update of a member that changes nothing.
    replica.refuse(Refusal::NothingToDo.into());
    let same = MemberUpdateRequest { id: MEMBER, peer_ur_ls: vec!["http://h:1".to_owned()] };
    assert_eq!(cluster.member_update(same).await.unwrap().into_inner().members.len(), 1);
}

#[tokio::test]
async fn the_leadership_moves_or_it_is_said_why_not() {
    let server = serve(&config(), Noting::new());
    let mut maintenance = MaintenanceClient::new(connect(&server).await);
    let cases = [
        (1, Code::FailedPrecondition, "etcdserver: not leader"),
        (2, Code::Unavailable, "etcdserver: request timed out, leader transfer took too long"),
        (3, Code::FailedPrecondition, "etcdserver: bad leader transferee"),
    ];
    for (target_id, code, message) in cases {
        let refused = maintenance.move_leader(MoveLeaderRequest { target_id }).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (code, message));
    }
    maintenance.move_leader(MoveLeaderRequest { target_id: MEMBER }).await.unwrap();
}

#[tokio::test]
async fn the_native_call_says_more() {
    let replica = Noting::new();
    let server = serve(&config(), replica.clone());
    let mut client = NativeClient::new(connect(&server).await);
    let add = native::AddMember {
        name: "n4".into(),
        peer_urls: vec!["http://h:1".into()],
        goal: native::Goal::Replace.into(),
        replaces: MEMBER,
    };
    let request = native::ChangeRequest { expected_version: 1, change: Some(Asked::Add(add)), group: None };
    let changed = client.change(request).await.unwrap().into_inner();
    let (expected, change) = replica.last_asked();
    let goal = Goal::Replace(ReplicaId(MEMBER));
    let add = Change::Add { info: MemberInfo::new("n4", vec!["http://h:1".into()]), goal };
    assert_eq!((expected, change), (Some(1), add));
    assert_eq!(changed.added, MEMBER + 2);
    let group = changed.group.unwrap();
    let member = group.members.last().unwrap();
    assert_eq!((member.votes, member.goal(), member.replaces), (false, native::Goal::Replace, MEMBER));

    let status = client.status(native::StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.snapshot_bytes_received, status.snapshot_bytes_total), (3, 10));
    let group = status.group.unwrap();
    assert_eq!((group.version, group.members[0].votes, group.members[1].decided_slot), (2, true, 5));

    let order = native::Reconfigure { protocol: "raft".into(), election: String::new(), options: None };
    let request =
        native::ChangeRequest { expected_version: 0, change: Some(Asked::Reconfigure(order)), group: None };
    client.change(request).await.unwrap();
    let raft = ProtocolKind::Raft;
    let (election, overrides) = (raft.elections()[0], Overrides::default());
    assert_eq!(replica.last_asked(), (None, Change::Order { protocol: raft, election, overrides }));

    replica.refuse(Refusal::Stale { expected: 1, current: 9 }.into());
    let request = native::ChangeRequest { expected_version: 1, change: Some(Asked::Promote(8)), group: None };
    assert_eq!(client.change(request).await.unwrap_err().code(), Code::Aborted);
    let nothing = client.change(native::ChangeRequest::default()).await.unwrap_err();
    assert_eq!(nothing.code(), Code::InvalidArgument);
}
