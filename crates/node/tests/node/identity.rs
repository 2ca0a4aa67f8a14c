//! What replicas do about peers that are not what they should be, or not what they were.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::common::{Group, Tape, append, block, copy, tape};
use bytes::Bytes;
use synod_consensus::Role;
use synod_node::{Config, Ended, Node};
use synod_replica::RequestError;
use synod_testkit::until;
use synod_transport::{Event, Peer, Transport, VERSION, VERSION_OLDEST};
use synod_wire::{BIRTHS_SINCE, ClusterId, Incarnation, ReplicaId, Writer};

/// More time than anything takes on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_message_that_does_not_decode_ends_the_session() {
    let group = Group::new(2, |_| {});
    let _node = group.start(1);
    let [one, two] = &group.members[..] else { unreachable!("two were asked for") };

    let (tell, events) = mpsc::channel();
    let other = synod_transport::Config {
        listen: vec![two.address.parse().unwrap()],
        peers: vec![Peer { id: one.id, address: one.address.clone() }],
        ..synod_transport::Config::new(ClusterId(7), two.id, Incarnation(1), 22)
    };
    let sink = move |event| {
        _ = tell.send(event);
        Ok(())
    };
    let transport = Transport::start(other, sink).unwrap();
    let wait = |wanted: fn(&Event) -> bool| while !wanted(&events.recv_timeout(WAIT_MAX).unwrap()) {};
    wait(|event| matches!(event, Event::Up { .. }));
    let mut nonsense = Writer::new();
    nonsense.bytes(b"what no version says");
    transport.sender().send(one.id, nonsense.finish());
    wait(|event| matches!(event, Event::Down { .. }));
    // The refusal does not shut the peer out permanently.
    wait(|event| matches!(event, Event::Up { .. }));
}

fn impatient(config: &mut Config) {
    config.settings.request_timeout = Duration::from_millis(500);
}

#[test]
fn a_new_group_begins_once_all_have_met_and_needs_a_majority_from_then_on() {
    let group = Group::new(3, impatient);
    let nodes = [group.start(1), group.start(2)];
    for node in &nodes {
        until("the two have met", || node.handle().status().waits_for == [ReplicaId(3)]);
    }
    let refused = block(nodes[0].handle().execute(Bytes::from_static(b"a")));
    assert_eq!(refused, Err(RequestError::NoLeader));
    let third = group.start(3);
    until("a leader", || nodes.iter().all(|node| node.handle().status().leader.is_some()));
    append(&nodes[0].handle(), "a");
    assert!(nodes[0].handle().status().waits_for.is_empty());
    for node in nodes.into_iter().chain([third]) {
        node.stop_now_blocking().unwrap();
    }
    let nodes = [group.start(1), group.start(2)];
    until("a leader", || nodes[0].handle().status().leader.is_some());
    assert_eq!(append(&nodes[1].handle(), "b"), "2");
}

#[test]
fn one_that_lost_everything_and_one_that_was_never_there_are_no_majority() {
    let group = Group::new(3, impatient);
    let told = |id| {
        let mut config = group.config(id);
        config.begin_without_all = true;
        Node::start_blocking(config, Tape::default()).unwrap()
    };
    // The operator says that two replicas are enough, and one of them is not to be believed later.
    let nodes = [told(1), told(2)];
    until("a leader", || nodes[0].handle().status().leader.is_some());
    append(&nodes[0].handle(), "kept");
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    fs::remove_dir_all(group.dir.path().join("r2")).unwrap();

    let (wiped, new) = (group.start(2), group.start(3));
    until("the two have met", || {
        [&wiped, &new].iter().all(|node| node.handle().status().waits_for == [ReplicaId(1)])
    });
    let refused = block(new.handle().execute(Bytes::from_static(b"lost")));
    assert_eq!(refused, Err(RequestError::NoLeader));
    let first = group.start(1);
    until("the first and the third are a majority", || new.handle().status().leader.is_some());
    assert_eq!(tape(&new.handle()), "kept");
    assert!(wiped.handle().status().waits_for == [ReplicaId(1)], "nobody who knew it recognises it");
    drop(first);
}

#[test]
fn a_data_directory_that_was_restored_from_a_copy_is_found_out_and_learns_again() {
    let group = Group::new(3, |_| {});
    let start_all = || (1..=3).map(|id| Some(group.start(id))).collect::<Vec<_>>();
    let mut nodes = start_all();
    append(&nodes[0].as_ref().unwrap().handle(), "a");
    let (data, backup) = (group.dir.path().join("r3"), group.dir.path().join("backup"));
    nodes[2].take().unwrap().stop_now_blocking().unwrap();
    copy(&data, &backup);
    nodes[2] = Some(group.start(3));
    append(&nodes[2].as_ref().unwrap().handle(), "b");
    drop(nodes);
    // The other replicas forget what is only in memory, too.
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&backup, &data).unwrap();

    let nodes = start_all();
    let copied = nodes[2].as_ref().unwrap();
    let why = copied.wait_blocking(Duration::from_secs(30)).expect("it is told");
    let Ended::Outlived { by, why, .. } = why else { panic!("{why}") };
    assert!(by != ReplicaId(3) && why.contains("was restored from a copy"), "{why}");
    drop(nodes);
    let nodes = start_all();
    let again = nodes[2].as_ref().unwrap().handle();
    until("it votes again", || matches!(again.status().role, Role::Follower | Role::Leader));
    assert_eq!(tape(&again), "ab");
    assert_eq!(append(&again, "c"), "3");
    assert!(nodes[2].as_ref().unwrap().wait_blocking(Duration::ZERO).is_none());
}

/// 0.2.0 spoke messages in version 7, and skips changes that name births.
#[test]
fn births_are_named_once_all_know_them_and_an_older_program_is_refused_from_then_on() {
    let group = Group::new(3, impatient);
    let start = |id, newest| {
        let mut config = group.config(id);
        config.versions = VERSION_OLDEST..=newest;
        Node::start_blocking(config, Tape::default()).unwrap()
    };
    let old = BIRTHS_SINCE - 1;
    let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(start(id, old))).collect();
    let handle = |nodes: &[Option<Node>], id: usize| nodes[id - 1].as_ref().unwrap().handle();
    let names = |nodes: &[Option<Node>], id| handle(nodes, id).group().births().len();
    until("a leader", || handle(&nodes, 1).status().leader.is_some());
    append(&handle(&nodes, 1), "a");
    for id in 1..=2 {
        nodes[id - 1].take().unwrap().stop_now_blocking().unwrap();
        nodes[id - 1] = Some(start(id as u64, VERSION));
    }
    append(&handle(&nodes, 2), "b");
    // One of the three is down; then it runs the old program again; then the new one.
    nodes[2].take().unwrap().stop_now_blocking().unwrap();
    append(&handle(&nodes, 1), "c");
    thread::sleep(Duration::from_secs(2));
    nodes[2] = Some(start(3, old));
    until("r3 is back", || tape(&handle(&nodes, 3)) == "abc");
    thread::sleep(Duration::from_secs(2));
    assert!((1..=3).all(|id| names(&nodes, id) == 0), "r3 would skip the change");
    nodes[2].take().unwrap().stop_now_blocking().unwrap();
    nodes[2] = Some(start(3, VERSION));
    until("all births are named", || (1..=3).all(|id| names(&nodes, id) == 3));
    append(&handle(&nodes, 3), "d");

    nodes[2].take().unwrap().stop_now_blocking().unwrap();
    nodes[2] = Some(start(3, old));
    append(&handle(&nodes, 1), "e");
    thread::sleep(Duration::from_secs(1));
    assert!(handle(&nodes, 3).status().leader.is_none(), "nobody speaks its version");
    nodes[2].take().unwrap().stop_now_blocking().unwrap();
    nodes[2] = Some(start(3, VERSION));
    until("r3 is back", || tape(&handle(&nodes, 3)) == "abcde");
}

#[test]
fn a_build_with_one_version_more_replaces_another_under_load_in_both_orders() {
    let group = Group::new(3, |_| {});
    let start = |id, newest| {
        let mut config = group.config(id);
        config.versions = VERSION_OLDEST..=newest;
        Node::start_blocking(config, Tape::default()).unwrap()
    };
    let mut nodes: Vec<Option<Node>> = (1..=3).map(|id| Some(start(id, VERSION))).collect();
    append(&nodes[0].as_ref().unwrap().handle(), "x");
    let mut expected = 1;
    for newest in [VERSION + 1, VERSION] {
        for id in 1..=3 {
            let at = id as usize - 1;
            nodes[at].take().unwrap().stop_now_blocking().unwrap();
            nodes[at] = Some(start(id, newest));
            let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            let others: Vec<_> = nodes.iter().flatten().map(Node::handle).collect();
            thread::scope(|scope| {
                for handle in &others {
                    scope.spawn(|| {
                        while !stop.load(SeqCst) {
                            append(handle, "y");
                            done.fetch_add(1, SeqCst);
                        }
                    });
                }
                until("all replicas serve", || done.load(SeqCst) >= 60);
                stop.store(true, SeqCst);
            });
            expected += done.load(SeqCst) as usize;
            for handle in &others {
                assert_eq!(tape(handle).len(), expected, "version {newest} at r{id}");
            }
        }
    }
}
