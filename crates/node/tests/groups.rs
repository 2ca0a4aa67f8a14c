//! Several groups on each of three nodes: one log, one connection to each peer, one set of threads.

mod common;

use std::{sync::Arc, thread::sleep, time::Duration};

use bytes::Bytes;
use common::{Group as OnSockets, Tape, append, block, tape, until};
use synod_node::{Config, Handle, MemberAddress, Node, StartError, Threads};
use synod_replica::{Change, Goal, MemberInfo};
use synod_storage::{FaultyDisk, StorageError};
use synod_transport::MemoryNetwork;
use synod_wire::{ClusterId, ReplicaId, Slot};

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
        nodes.into_iter().for_each(|node| node.stop_blocking().unwrap());
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
    nodes.into_iter().for_each(|node| node.stop_blocking().unwrap());
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
fn the_number_of_groups_stays_and_so_do_the_members() {
    let cluster = Cluster::new(|_| {});
    let nodes = cluster.start(3);
    let info = MemberInfo::new("r4", Vec::new());
    let handle = &nodes[0].handles()[1];
    let version = handle.group().version;
    assert!(block(handle.change(version, Change::Add { info, goal: Goal::Vote })).is_err());
    assert!(block(handle.change(version, Change::Remove(ReplicaId(3)))).is_err());
    assert_eq!(handle.group().version, version);
    // What a member says of itself stands in the first group.
    let mut told = handle.group().member(ReplicaId(1)).unwrap().info.clone();
    told.client_urls = vec!["http://r1:2".into()];
    let update = |info| Change::Update { id: ReplicaId(1), info };
    assert!(block(handle.change(version, update(told.clone()))).is_err());
    let first = &nodes[0].handles()[0];
    assert!(block(first.change(first.group().version, update(told.clone()))).is_ok());
    told.peer_urls = vec!["http://elsewhere:1".into()];
    assert!(block(first.change(first.group().version, update(told))).is_err());
    drop(nodes);
    for groups in [1, 2, 4] {
        let refused = cluster.try_start(1, groups).unwrap_err();
        assert!(matches!(refused, StartError::Storage(StorageError::Groups { found: 3, .. })), "{refused}");
    }
    assert!(cluster.try_start(1, 0).is_err());
    let nodes = cluster.start(3);
    assert_eq!(append(&nodes[0].handles()[2], "a"), "1");
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
    nodes.into_iter().for_each(|node| node.stop_blocking().unwrap());
}
