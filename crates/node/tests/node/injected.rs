//! Three replicas on a network and on disks in memory, as a program that embeds them may test.

use std::{sync::Arc, time::Duration};

use crate::common::{Tape, append, block, tape};
use bytes::Bytes;
use synod_node::{Config, Handle, MemberAddress, Node, ReadLogError};
use synod_replica::{Change, Goal, MemberInfo, RequestError};
use synod_testkit::{FaultyDisk, until};
use synod_transport::MemoryNetwork;
use synod_wire::{ClusterId, CommandKind, ReplicaId, Slot};

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
        self.start_with(id, |_| {})
    }

    fn start_with(&self, id: u64, tune: fn(&mut Config)) -> Node {
        let member = |id| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("r{id}:1"));
        let members = (1..=self.disks.len() as u64).map(member).collect();
        let mut config = Config::new(ClusterId(7), ReplicaId(id), members, "/data".into());
        config.network = Arc::new(self.network.clone());
        config.disk = Arc::new(self.disks[id as usize - 1].clone());
        config.segment_bytes = 64 << 10;
        config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
        config.settings.consensus.election_timeout = Duration::from_millis(300);
        config.settings.request_timeout = Duration::from_millis(1000);
        tune(&mut config);
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
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
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

/// Nothing asks again and again here: a wake-up that is missing leaves the test waiting.
#[test]
fn a_watch_wakes_for_another_leader_and_for_a_new_member() {
    let group = Group::new(3);
    let nodes = [1, 2, 3].map(|id| group.start(id));
    let handles = [0, 1, 2].map(|at| nodes[at].handle());
    block(async {
        let mut leader = None;
        for handle in &handles {
            let mut watch = handle.watch();
            leader = watch.until(|view| view.leader.is_some()).await.expect("it runs").leader;
        }
        let leader = leader.expect("one leads");
        let another = async |handle: &Handle| {
            let mut watch = handle.watch();
            let view = watch.until(|view| view.leader.is_some_and(|now| now != leader)).await;
            view.expect("it runs").leader
        };
        let others: Vec<_> =
            handles.iter().enumerate().filter(|(at, _)| *at as u64 + 1 != leader.0).collect();
        let (one, other, ()) = tokio::join!(another(others[0].1), another(others[1].1), async {
            group.cut_off(leader.0, true);
        });
        assert_eq!(one, other);
        group.cut_off(leader.0, false);

        let mut watch = handles[0].watch();
        watch.until(|view| view.group.names_births()).await.expect("it runs");

        let joined = async |handle: &Handle| {
            let mut watch = handle.watch();
            let known = watch.until(|view| view.group.member(ReplicaId(4)).is_some()).await;
            known.expect("it runs").group.version
        };
        let (first, second, third, changed) =
            tokio::join!(joined(&handles[0]), joined(&handles[1]), joined(&handles[2]), async {
                let info = MemberInfo::new("r4", vec!["http://r4:1".into()]);
                let add = Change::Add { info, goal: Goal::Learn };
                others[0].1.change(handles[0].group().version, add).await
            });
        assert_eq!([first, second, third], [changed.expect("the change is made").version; 3]);

        let mut watch = handles[0].watch();
        let ended = async { while watch.changed().await.is_some() {} };
        let [first, second, third] = nodes;
        tokio::join!(ended, async {
            for node in [first, second, third] {
                node.stop_now().await.unwrap();
            }
        });
    });
}

/// The commands in the decided log from a slot on, as text, and the slots.
fn logged(handle: &Handle, from: Slot, bytes_max: usize) -> Result<(String, Vec<u64>), ReadLogError> {
    let read = block(handle.read_log(from, bytes_max))?;
    let commands = read.iter().flat_map(|(_, batch)| batch.commands());
    let applied = commands.filter(|command| command.kind == CommandKind::Apply);
    let text = applied.map(|command| command.payload).collect::<Vec<_>>().concat();
    Ok((String::from_utf8(text).expect("text"), read.iter().map(|(slot, _)| slot.0).collect()))
}

#[test]
fn the_log_has_the_commands_in_order_until_a_snapshot_covers_them() {
    let group = Group::new(1);
    let node = group.start_with(1, |config| {
        (config.settings.snapshot_slots, config.settings.keep_slots) = (40, 0);
    });
    let handle = node.handle();
    let texts: Vec<_> = (0..20).map(|number| format!("<{number}>")).collect();
    texts.iter().for_each(|text| _ = append(&handle, text));
    let (text, slots) = logged(&handle, Slot(1), 1 << 20).unwrap();
    assert_eq!(text, texts.concat());
    assert_eq!(text, tape(&handle));
    assert!(slots.len() >= 20 && slots.iter().copied().eq(1..=slots.len() as u64), "{slots:?}");
    // A slot at least, however little is asked for, and none where nothing is decided.
    assert_eq!(logged(&handle, Slot(2), 1).unwrap().1, [2]);
    assert_eq!(logged(&handle, Slot(1_000), 1).unwrap().1, []);

    (0..60).for_each(|number| _ = append(&handle, &format!("<{number}>")));
    until("the first slots are trimmed", || logged(&handle, Slot(1), 1).is_err());
    let mut from = Slot(1);
    // More may be trimmed in between.
    let (text, slots) = loop {
        match logged(&handle, from, 1 << 20) {
            Ok(read) => break read,
            Err(ReadLogError::Trimmed { first }) => {
                assert!(first > from, "{first}");
                from = first;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(slots.first().is_none_or(|&first| first == from.0), "{slots:?}");
    assert!(tape(&handle).ends_with(&text), "{text}");
    node.stop_now_blocking().unwrap();
}
