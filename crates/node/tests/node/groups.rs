//! Several groups on each of three nodes: one log, one connection to each peer, one set of threads.

use std::{sync::Arc, thread::sleep, time::Duration};

use crate::common::{Group as OnSockets, Tape, append, block, tape};
use bytes::Bytes;
use synod_consensus::{ProtocolKind, Role};
use synod_node::{ChangeError, Config, Handle, MemberAddress, Node, Origin, StartError, Threads};
use synod_replica::{Change, Goal, MemberInfo};
use synod_storage::{DataDir, PeerBook, the_disk};
use synod_testkit::{FaultyDisk, until};
use synod_transport::MemoryNetwork;
use synod_wire::{ClusterId, Groups, ReplicaId, Slot};

struct Cluster {
    network: MemoryNetwork,
    disks: [FaultyDisk; 3],
    tune: fn(&mut Config),
}

impl Cluster {
    fn new(tune: fn(&mut Config)) -> Cluster {
        let disks = [1, 2, 3].map(|id| FaultyDisk::new(id).with_threads());
        Cluster { network: MemoryNetwork::new(), disks, tune }
    }

    fn try_start(&self, id: u64, groups: usize) -> Result<Node, StartError> {
        let member = |id| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("r{id}:1"));
        let members = [1, 2, 3].map(member).to_vec();
        let mut config = Config::new(ClusterId(7), ReplicaId(id), members, "/data".into());
        config.network = Arc::new(self.network.clone());
        config.disk = Arc::new(self.disks[id as usize - 1].clone());
        config.segment_bytes = 64 << 10;
        config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
        config.settings.consensus.election_timeout = Duration::from_millis(300);
        (self.tune)(&mut config);
        Node::start_groups_blocking(config, vec![Tape::default(); groups])
    }

    fn start(&self, groups: usize) -> Vec<Node> {
        let nodes: Vec<_> = (1..=3).map(|id| self.try_start(id, groups).unwrap()).collect();
        for node in &nodes {
            let led = || node.handles().iter().all(|handle| handle.status().leader.is_some());
            until("a leader of every group", led);
        }
        nodes
    }
}

#[test]
fn one_replica_does_not_lead_all_groups() {
    const GROUPS: usize = 12;
    let leads =
        |node: &Node| node.handles().iter().filter(|handle| handle.status().role == Role::Leader).count();
    // A replica that meets the others a little later misses its turn, as may happen on a busy machine.
    let is_spread = (0..10).any(|_| {
        let nodes = Cluster::new(|_| {}).start(GROUPS);
        let is_spread = nodes.iter().all(|node| (1..=GROUPS / 2).contains(&leads(node)));
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
        is_spread
    });
    assert!(is_spread, "one of three leads none or most of {GROUPS} groups, each time");
}

fn digests_are_equal(nodes: &[Node], group: usize) -> bool {
    let digests = nodes.iter().map(|node| block(node.handles()[group].digest()).unwrap());
    let digests: Vec<_> = digests.collect();
    digests.iter().all(|digest| *digest == digests[0])
}

#[test]
fn each_group_orders_its_own_commands_and_a_power_failure_takes_none() {
    const GROUPS: usize = 70;
    for threads in [|_: &mut Config| {}, |config: &mut Config| config.threads = Threads::Compact] {
        let cluster = Cluster::new(threads);
        let nodes = cluster.start(GROUPS);
        for round in 0..3 {
            for group in 0..GROUPS {
                let handle = &nodes[(group + round) % 3].handles()[group];
                let length = append(handle, &format!("<{group}.{round}>"));
                assert_eq!(length, tape(handle).len().to_string());
            }
        }
        drop(nodes);
        cluster.disks.iter().for_each(FaultyDisk::power_failure);
        let nodes = cluster.start(GROUPS);
        for group in 0..GROUPS {
            let expected: String = (0..3).map(|round| format!("<{group}.{round}>")).collect();
            assert_eq!(tape(&nodes[group % 3].handles()[group]), expected);
            until("equal digests", || digests_are_equal(&nodes, group));
        }
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    }
}

#[test]
fn groups_go_on_without_a_node_that_is_cut_off_and_it_learns_of_all_of_them() {
    const GROUPS: usize = 8;
    let cluster = Cluster::new(|config| {
        config.settings.snapshot_slots = 10;
        config.settings.keep_slots = 2;
    });
    let nodes = cluster.start(GROUPS);
    let others = [ReplicaId(1), ReplicaId(2)];
    others.iter().for_each(|&other| cluster.network.cut(ReplicaId(3), other));
    let led_elsewhere = |handle: &Handle| handle.status().leader.is_some_and(|leader| leader != ReplicaId(3));
    until("leaders among the others", || nodes[0].handles().iter().all(led_elsewhere));
    for group in 0..GROUPS {
        (0..30).for_each(|_| drop(append(&nodes[group % 2].handles()[group], "x")));
    }
    others.iter().for_each(|&other| cluster.network.heal(ReplicaId(3), other));
    for group in 0..GROUPS {
        until("equal digests", || digests_are_equal(&nodes, group));
        assert_eq!(tape(&nodes[2].handles()[group]), "x".repeat(30));
        assert!(nodes[0].handles()[group].status().snapshot >= Slot(10));
    }
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}

/// Otherwise the record of its only command would keep everything that the other group has written since.
#[test]
fn a_group_that_has_little_to_do_takes_a_snapshot_when_the_log_is_long() {
    let cluster = Cluster::new(|config| config.settings.snapshot_slots = 50);
    let nodes = cluster.start(2);
    let [busy, idle] = nodes[0].handles() else { panic!("two groups") };
    append(idle, "once");
    let large = "y".repeat(10_000);
    for _ in 0..150 {
        append(busy, &large);
    }
    until("a snapshot of the idle group", || idle.status().snapshot > Slot::ZERO);
    until("a short log", || {
        append(busy, &large);
        busy.status().log_bytes < 1 << 20
    });
    drop(nodes);
    let nodes = cluster.start(2);
    assert_eq!(tape(&nodes[1].handles()[1]), "once");
}

#[test]
fn members_change_in_the_first_group_alone_and_the_number_of_groups_stays() {
    let cluster = Cluster::new(|_| {});
    let nodes = cluster.start(3);
    let info = MemberInfo::new("r4", Vec::new());
    let handle = &nodes[0].handles()[1];
    // Otherwise the members' births are named meanwhile, and the group follows.
    until("births are named", || nodes[0].handles().iter().all(|handle| handle.group().names_births()));
    let version = handle.group().version;
    let refused = |change| block(handle.change(version, change)) == Err(ChangeError::MembersFollow);
    assert!(refused(Change::Add { info, goal: Goal::Vote }) && refused(Change::Remove(ReplicaId(3))));
    let mut told = handle.group().member(ReplicaId(1)).unwrap().info.clone();
    told.client_urls = vec!["http://r1:2".into()];
    let update = |info| Change::Update { id: ReplicaId(1), info };
    assert!(refused(update(told.clone())));
    let first = &nodes[0].handles()[0];
    assert!(block(first.change(first.group().version, update(told.clone()))).is_ok());
    assert_eq!(handle.group().version, version, "nobody asks other groups for what a member says of itself");
    told.peer_urls = vec!["http://r1:3".into()];
    assert!(block(first.change(first.group().version, update(told.clone()))).is_ok());
    let knows = |handle: &Handle| handle.group().member(ReplicaId(1)).unwrap().info == told;
    until("every group knows the new address", || nodes[1].handles().iter().all(knows));
    drop(nodes);
    for groups in [1, 2, 4] {
        let refused = cluster.try_start(1, groups).unwrap_err();
        assert!(refused.to_string().contains("is of the groups shard:3"), "{refused}");
    }
    assert!(cluster.try_start(1, 0).is_err());
    let nodes = cluster.start(3);
    assert_eq!(append(&nodes[0].handles()[2], "a"), "1");
}

/// This runs on real sockets.
#[test]
fn every_group_follows_when_a_member_is_replaced() {
    const GROUPS: usize = 4;
    let sockets = OnSockets::new(4, |_| {});
    let config = |id| {
        let mut config = sockets.config(id);
        config.members.truncate(3);
        config
    };
    let start = |config| Node::start_groups_blocking(config, vec![Tape::default(); GROUPS]).unwrap();
    let mut nodes: Vec<_> = (1..=3).map(|id| start(config(id))).collect();
    for group in 0..GROUPS {
        append(&nodes[group % 3].handles()[group], &format!("<{group}>"));
    }
    until("births are named", || nodes[0].handles().iter().all(|handle| handle.group().names_births()));
    let Some(old) = nodes.pop() else { panic!("three nodes") };
    old.stop_now_blocking().unwrap();

    let new = &sockets.members[3];
    let info = MemberInfo::new("r4", vec![format!("http://{}", new.address)]);
    let first = nodes[0].handle();
    let add = Change::Add { info, goal: Goal::Replace(ReplicaId(3)) };
    block(first.change(first.group().version, add)).unwrap();
    let address = sockets.members[0].address.as_str();
    let joins = |told: Origin| {
        let mut config = config(4);
        (config.members, config.joins) = (Vec::new(), Some(told));
        config
    };
    let told = Origin::ask_blocking([address], None, Duration::from_secs(10)).unwrap();
    assert_eq!(told.groups(), Groups::shards(GROUPS as u16));
    let wrong = Node::start_groups_blocking(joins(told.clone()), vec![Tape::default(); 3]).unwrap_err();
    assert!(wrong.to_string().contains("the cluster to be joined has shard:4"), "{wrong}");
    std::fs::remove_dir_all(&config(4).data_dir).unwrap();
    nodes.push(start(joins(told)));
    let voters = |handle: &Handle| handle.group().voters().map(|id| id.0).collect::<Vec<_>>();
    let follows = |node: &Node| {
        let first = node.handle().group();
        let agrees = |handle: &Handle| handle.group().agrees_with(&first) && voters(handle) == [1, 2, 4];
        voters(&node.handle()) == [1, 2, 4] && node.handles()[1..].iter().all(agrees)
    };
    until("every group has the new member", || nodes.iter().all(follows));

    // It is needed and does its part.
    nodes.remove(0).stop_now_blocking().unwrap();
    for group in 0..GROUPS {
        append(&nodes[1].handles()[group], "!");
        assert_eq!(tape(&nodes[0].handles()[group]), format!("<{group}>!"));
    }
    nodes.insert(0, start(config(1)));
    let told = Origin::ask_blocking([address], None, Duration::from_secs(10)).unwrap();
    assert!(told.present.member(ReplicaId(3)).is_none() && told.staying.is_empty(), "{told:?}");
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    let Config { cluster, me, name, data_dir, durability, .. } = config(1);
    let groups = Groups::shards(GROUPS as u16);
    let dir = DataDir::open_for_groups(the_disk(), &data_dir, cluster, me, &name, durability, groups);
    let reached = PeerBook::open(&dir.unwrap()).unwrap().reached();
    assert_eq!(
        reached.len(),
        GROUPS,
        "a later life that lost its log can tell whether it has another history"
    );
}

#[test]
fn a_removed_member_leaves_every_group_of_raft() {
    const GROUPS: usize = 3;
    let cluster = Cluster::new(|config| {
        config.settings.consensus.protocol = ProtocolKind::Raft;
        config.settings.consensus.election = ProtocolKind::Raft.elections()[0];
    });
    let nodes = cluster.start(GROUPS);
    let first = nodes[0].handle();
    // Until the members have heard of each other, they are not healthy.
    let remove = || block(first.change(first.group().version, Change::Remove(ReplicaId(3))));
    until("it is removed", || remove().is_ok());
    let out = |handle: &Handle| handle.group().member(ReplicaId(3)).is_none();
    until("every group has it out", || nodes[..2].iter().all(|node| node.handles().iter().all(out)));
    until("it knows", || nodes[2].handles().iter().all(Handle::is_retired));
    for group in 0..GROUPS {
        append(&nodes[group % 2].handles()[group], "x");
    }
}

/// This runs on real sockets.
#[test]
fn small_messages_of_many_groups_share_frames() {
    const GROUPS: usize = 64;
    let sockets = OnSockets::new(3, |_| {});
    let start = |id| Node::start_groups_blocking(sockets.config(id), vec![Tape::default(); GROUPS]).unwrap();
    let nodes: Vec<_> = (1..=3).map(start).collect();
    for group in 0..GROUPS {
        append(&nodes[group % 3].handles()[group], "a");
    }
    let counts = || {
        let messages =
            |node: &Node| node.handles().iter().map(|handle| handle.status().messages_sent).sum::<u64>();
        let frames = |node: &Node| node.network().peers.iter().map(|peer| peer.frames_sent).sum::<u64>();
        (nodes.iter().map(messages).sum::<u64>(), nodes.iter().map(frames).sum::<u64>())
    };
    let before = counts();
    sleep(Duration::from_secs(1));
    let after = counts();
    let (messages, frames) = (after.0 - before.0, after.1 - before.1);
    assert!(messages > 4 * frames, "{messages} messages left in {frames} frames");
    for group in 0..GROUPS {
        assert_eq!(block(nodes[group % 3].handles()[group].query(Bytes::new())).unwrap(), "a");
    }
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}
