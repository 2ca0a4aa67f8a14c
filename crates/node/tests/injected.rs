//! Three replicas on a network and on disks in memory, as a program that embeds them may test.

mod common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::{Tape, append, block, tape, until};
use synod_node::{Config, MemberAddress, Node};
use synod_replica::RequestError;
use synod_storage::FaultyDisk;
use synod_transport::MemoryNetwork;
use synod_wire::{ClusterId, ReplicaId};

struct Group {
    network: MemoryNetwork,
    disks: Vec<FaultyDisk>,
}

impl Group {
    fn new(count: u64) -> Group {
        let disks = (1..=count).map(|id| FaultyDisk::new(id).with_threads()).collect();
        Group { network: MemoryNetwork::new(), disks }
    }

    fn start(&self, id: u64) -> Node {
        let member = |id| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("r{id}:1"));
        let members = (1..=self.disks.len() as u64).map(member).collect();
        let mut config = Config::new(ClusterId(7), ReplicaId(id), members, "/data".into());
        config.network = Arc::new(self.network.clone());
        config.disk = Arc::new(self.disks[id as usize - 1].clone());
        config.segment_bytes = 64 << 10;
        config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
        config.settings.consensus.election_timeout = Duration::from_millis(300);
        config.settings.request_timeout = Duration::from_millis(1000);
        Node::start_blocking(config, Tape::default()).unwrap()
    }

    fn cut_off(&self, id: u64, cut: bool) {
        for other in (1..=self.disks.len() as u64).filter(|&other| other != id) {
            if cut {
                self.network.cut(ReplicaId(id), ReplicaId(other));
            } else {
                self.network.heal(ReplicaId(id), ReplicaId(other));
            }
        }
    }
}

#[test]
fn commands_are_ordered_while_the_network_is_cut_and_after_it_is_healed() {
    let group = Group::new(3);
    let nodes = [1, 2, 3].map(|id| group.start(id));
    let handles = [0, 1, 2].map(|at| nodes[at].handle());
    until("a leader", || handles.iter().all(|handle| handle.status().leader.is_some()));
    assert_eq!(append(&handles[0], "a"), "1");

    let leader = handles[0].status().leader.unwrap();
    let cut = leader.0 as usize - 1;
    group.cut_off(leader.0, true);
    let lost = block(handles[cut].execute(Bytes::from_static(b"x")));
    assert!(matches!(lost, Err(RequestError::Timeout | RequestError::NoLeader)), "{lost:?}");
    let others: Vec<_> = handles.iter().enumerate().filter(|(at, _)| *at != cut).collect();
    let new_leader = |status: synod_node::NodeStatus| status.leader.is_some_and(|now| now != leader);
    until("another leader", || others.iter().all(|(_, handle)| new_leader(handle.status())));
    for (_, handle) in &others {
        append(handle, "b");
    }
    assert_eq!(tape(others[0].1), "abb");

    group.cut_off(leader.0, false);
    until("equal digests", || {
        let digests = handles.iter().map(|handle| block(handle.digest()).unwrap()).collect::<Vec<_>>();
        digests.iter().all(|digest| *digest == digests[0])
    });
    // No replica has acknowledged what the leader ordered while it was alone.
    let all = tape(&handles[cut]);
    assert!(all.starts_with("abb"), "{all}");
    nodes.into_iter().for_each(|node| node.stop_blocking().unwrap());
}

/// All data is in memory, so only these disks can know what was written.
#[test]
fn a_power_failure_takes_nothing_that_was_acknowledged() {
    let group = Group::new(3);
    let nodes = [1, 2, 3].map(|id| group.start(id));
    for number in 0..50 {
        append(&nodes[number % 3].handle(), "y");
    }
    drop(nodes);
    group.disks.iter().for_each(FaultyDisk::power_failure);
    let nodes = [1, 2, 3].map(|id| group.start(id));
    until("a leader", || nodes.iter().all(|node| node.handle().status().leader.is_some()));
    assert_eq!(tape(&nodes[1].handle()), "y".repeat(50));
}
