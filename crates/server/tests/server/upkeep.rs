//! What replicas do for their stores by themselves: three nodes in this process.

use std::{
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::replica;
use bytes::Bytes;
use prost::Message;
use synod_api::{
    etcdserverpb::{AlarmMember, AlarmRequest, AlarmType, PutRequest, alarm_request::AlarmAction},
    synod::v1::{
        KvAnswer, KvCommand, KvQuery, KvReply, KvStatus, KvStatusRequest, kv_answer::Answer,
        kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_kv::KvStore;
use synod_node::{Config, Handle, MemberAddress, Node};
use synod_server::{
    Compaction, Consistency, Differs, Group, Hashes, InMemory, Member, Replica, RequestError, Status, Upkeep,
    UpkeepConfig,
};
use synod_testkit::{WAIT_MAX, until};
use synod_wire::{ClusterId, ReplicaId};

/// One of three replicas; what has nothing to do with upkeep it answers as a replica in memory.
#[derive(Clone)]
struct OneOfThree {
    handle: Handle,
    id: u64,
    inner: InMemory,
    /// Replicas that are said to have decided something else.
    forked_with: Vec<ReplicaId>,
}

impl Replica for OneOfThree {
    answered_by_inner!(limits, execute_in_session, open_session, term, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.handle.execute(command).await.map_err(|_| RequestError::NoLeader)
    }

    async fn query(
        &self,
        query: Bytes,
        consistency: Consistency,
    ) -> Result<synod_server::Answer, RequestError> {
        let answer = match consistency {
            Consistency::Linearizable => self.handle.read(query).await,
            Consistency::Serializable | Consistency::Present => self.handle.read_present(query).await,
        };
        answer.map_err(|_| RequestError::NoLeader)
    }

    fn status(&self) -> Status {
        let mut status = Status { replica: ReplicaId(self.id), ..self.inner.status() };
        status.node.leader = self.handle.status().leader;
        status.node.forked_with.clone_from(&self.forked_with);
        status
    }

    fn takes_care(&self) -> bool {
        self.handle.status().takes_care
    }

    fn group(&self) -> Arc<Group> {
        let mut group = (*self.inner.group()).clone();
        let info = group.members[0].info.clone();
        group.members = (1..=3).map(|id| Member::voter(ReplicaId(id), info.clone())).collect();
        Arc::new(group)
    }
}

/// Three replicas with their upkeep.
struct Cluster {
    replicas: Vec<OneOfThree>,
    upkeep: Vec<Upkeep>,
    nodes: Vec<Node>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// `stores` are those with which the replicas begin.
    fn start(config: UpkeepConfig, stores: [KvStore; 3]) -> Cluster {
        Cluster::forked(config, stores, &[])
    }

    fn forked(config: UpkeepConfig, stores: [KvStore; 3], forked_with: &[ReplicaId]) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let listeners: Vec<_> = (0..3).map(|_| Arc::new(TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let member = |(address, id): (&std::net::SocketAddr, u64)| {
            MemberAddress::new(ReplicaId(id), format!("r{id}"), address.to_string())
        };
        let members: Vec<_> = addresses.iter().zip(1..).map(member).collect();
        let mut cluster = Cluster { replicas: Vec::new(), upkeep: Vec::new(), nodes: Vec::new(), _dir: dir };
        for (store, id) in stores.into_iter().zip(1_u64..) {
            let folder = cluster._dir.path().join(id.to_string());
            let mut node = Config::new(ClusterId(7), ReplicaId(id), members.clone(), folder);
            node.listeners = vec![Arc::clone(&listeners[id as usize - 1])];
            node.settings.consensus.heartbeat_interval = Duration::from_millis(30);
            node.settings.consensus.election_timeout = Duration::from_millis(300);
            let hashes = Hashes::default();
            let node = Node::start_blocking(node, store.compared_by(hashes.comparer())).unwrap();
            let forked_with = forked_with.to_vec();
            let replica = OneOfThree { handle: node.handle(), id, inner: replica(), forked_with };
            cluster.upkeep.push(Upkeep::start(config, vec![(replica.clone(), hashes)]).unwrap());
            cluster.replicas.push(replica);
            cluster.nodes.push(node);
        }
        cluster
    }

    /// Has a command executed, once there is a leader.
    fn execute(&self, command: &Command) -> Reply {
        let command = KvCommand { command: Some(command.clone()), ..KvCommand::default() }.encode_to_vec();
        let began = Instant::now();
        loop {
            match block(self.replicas[0].execute(command.clone().into())) {
                Ok(reply) => return KvReply::decode(reply).unwrap().reply.unwrap(),
                Err(error) => assert!(began.elapsed() < WAIT_MAX, "{error}"),
            }
        }
    }

    fn put(&self, value: &str) -> Reply {
        let put = PutRequest { key: "k".into(), value: value.to_owned().into(), ..PutRequest::default() };
        self.execute(&Command::Put(put))
    }

    fn status(&self, index: usize) -> KvStatus {
        let query =
            KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() }.encode_to_vec();
        let answer =
            block(self.replicas[index].query(query.into(), Consistency::Serializable)).unwrap().whole();
        match KvAnswer::decode(answer).unwrap().answer {
            Some(Answer::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.upkeep.clear();
        self.nodes.drain(..).for_each(|node| node.stop_now_blocking().unwrap());
    }
}

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[track_caller]
/// A store that differs from an empty one in its first revision.
fn corrupt() -> KvStore {
    let mut store = KvStore::new();
    let put = PutRequest { key: "stray".into(), value: "v".into(), ..PutRequest::default() };
    store.execute(&KvCommand { command: Some(Command::Put(put)), ..KvCommand::default() }).unwrap();
    store
}

const EACH_TENTH: Option<Duration> = Some(Duration::from_millis(100));

#[test]
fn a_member_whose_contents_differ_is_found_and_nothing_is_written_any_more() {
    let config = UpkeepConfig { check_interval: EACH_TENTH, ..UpkeepConfig::default() };
    let cluster = Cluster::start(config, [KvStore::new(), KvStore::new(), corrupt()]);
    let raised = AlarmMember { member_id: 3, alarm: AlarmType::Corrupt.into() };
    until("all know of the alarm", || (0..3).all(|index| cluster.status(index).alarms == [raised]));
    let Reply::Error(refused) = cluster.put("v") else { panic!("it is written") };
    assert_eq!(refused.message, "etcdserver: corrupt cluster");
    assert_eq!(cluster.upkeep[2].check_at_start(), Ok(0), "with the alarm nothing is compared");
    // An operator may clear it; the member still differs.
    let action = AlarmAction::Deactivate.into();
    let clear = AlarmRequest { action, member_id: 3, alarm: AlarmType::Corrupt.into() };
    let Reply::Alarm(cleared) = cluster.execute(&Command::Alarm(clear)) else { panic!("it is refused") };
    assert_eq!(cleared.alarms, [raised]);
    until("it is raised again", || cluster.status(0).alarms == [raised]);
}

#[test]
fn a_fork_raises_the_alarm_once_while_members_are_compared() {
    let config = UpkeepConfig { check_interval: EACH_TENTH, ..UpkeepConfig::default() };
    let cluster = Cluster::forked(config, Default::default(), &[ReplicaId(9)]);
    let raised = AlarmMember { member_id: 9, alarm: AlarmType::Corrupt.into() };
    until("the alarm is raised", || cluster.status(0).alarms == [raised]);
    // Each replica that takes care tells it once.
    let clear = AlarmRequest { action: AlarmAction::Deactivate.into(), ..AlarmRequest::default() };
    let compared = || cluster.upkeep[0].check_at_start() == Ok(3);
    until("it stays cleared", || {
        cluster.execute(&Command::Alarm(clear));
        compared() && compared() && cluster.status(0).alarms.is_empty()
    });
}

#[test]
fn a_member_that_differs_does_not_begin_to_serve_and_the_others_do() {
    let cluster = Cluster::start(UpkeepConfig::default(), [KvStore::new(), corrupt(), KvStore::new()]);
    cluster.put("v");
    assert_eq!(cluster.upkeep[1].check_at_start(), Err(Differs));
    assert_eq!(cluster.upkeep[0].check_at_start(), Ok(2));
    assert_eq!(cluster.status(0).alarms, []);
}

#[test]
fn old_revisions_are_compacted_and_members_are_compared_there() {
    let config = UpkeepConfig {
        compaction: Some(Compaction::Periodic(Duration::from_millis(500))),
        check_interval: EACH_TENTH,
        compact_check_interval: EACH_TENTH,
    };
    let cluster = Cluster::start(config, Default::default());
    let began = Instant::now();
    cluster.put("1");
    let mut count = 1;
    while cluster.status(2).compact_revision < 4 {
        // What is there since the beginning is not old yet.
        assert!(cluster.status(0).compact_revision <= 1 || began.elapsed() >= Duration::from_millis(500));
        assert!(began.elapsed() < WAIT_MAX, "nothing is compacted");
        cluster.put("next");
        count += 1;
    }
    assert!(count > 2);
    until("nothing differs", || cluster.upkeep[1].check_at_start() == Ok(3));
    assert!((0..3).all(|index| cluster.status(index).alarms.is_empty()));
}
