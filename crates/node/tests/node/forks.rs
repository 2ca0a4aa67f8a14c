//! Replicas that decided different things, which no replica could notice when it happened.

use std::{fs, path::PathBuf, time::Duration};

use crate::common::{Group, Tape, append, block, copy};
use bytes::Bytes;
use synod_consensus::{Options, ProtocolKind};
use synod_node::{Config, Ended, Node};
use synod_replica::RequestError;
use synod_storage::{DataDir, Durability, PeerBook};
use synod_testkit::until;
use synod_transport::VERSION;
use synod_wire::{ClusterId, ReplicaId};

const CLUSTER: ClusterId = ClusterId(7);
const PROTOCOLS: [ProtocolKind; 3] =
    [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft];
/// Messages of this version do not tell histories.
const WITHOUT_HISTORY: u16 = 4;

fn stop(nodes: impl IntoIterator<Item = Node>) {
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}

fn why_forked(why: Ended) -> String {
    let Ended::Forked { with, agreed, slot, why, .. } = why else { panic!("{why}") };
    assert!(
        agreed < slot && [ReplicaId(1), ReplicaId(2), ReplicaId(3)].contains(&with),
        "{with} {agreed} {slot}"
    );
    assert!(why.contains(&format!("to {slot}")), "{why}");
    why
}

/// What a replica has executed, whether it hears a leader or not.
fn tape_of(node: &Node) -> String {
    let handle = node.handle();
    String::from_utf8(block(handle.query_stale(Bytes::new())).unwrap().to_vec()).unwrap()
}

struct Forked {
    group: Group,
    /// The first replica's files as they were before the histories parted.
    before: PathBuf,
}

impl Forked {
    fn start(&self, id: u64, version: u16) -> Node {
        let mut config = self.group.config(id);
        config.versions = version..=version;
        config.settings.request_timeout = Duration::from_secs(1);
        Node::start_blocking(config, Tape::default()).unwrap()
    }

    fn dir(&self, id: u64) -> DataDir {
        let path = self.group.dir.path().join(format!("r{id}"));
        DataDir::open(&path, CLUSTER, ReplicaId(id), &format!("r{id}"), Durability::Sync).unwrap()
    }

    fn forget_later_lives(&self) {
        let reached = PeerBook::open(&self.dir(1)).unwrap().reached();
        assert!(!reached.is_empty(), "it was stopped in good order");
        fs::copy(self.before.join("peers"), self.group.dir.path().join("r1/peers")).unwrap();
        PeerBook::open(&self.dir(1)).unwrap().reach(reached).unwrap();
    }
}

fn until_all_have(nodes: &[Node], tape: &str) {
    until("all have it", || nodes.iter().all(|node| tape_of(node) == tape));
}

/// The case that docs/identity.md says no replica can notice: r1 and r2 acknowledge "b" while r3 is down.
/// Then r2 is restored to a copy from before, and r2 and r3 acknowledge "c" and "d" while r1 is down.
fn forked(protocol: ProtocolKind) -> Forked {
    forked_in(VERSION, protocol)
}

/// The same in a version of the messages. In one without births none are named, so that it can be spoken again.
fn forked_in(version: u16, protocol: ProtocolKind) -> Forked {
    let tune: fn(&mut Config) = match protocol {
        ProtocolKind::MultiPaxos => {
            |config| config.settings.consensus = Options::of(ProtocolKind::MultiPaxos)
        }
        ProtocolKind::SequencePaxos => {
            |config| config.settings.consensus = Options::of(ProtocolKind::SequencePaxos)
        }
        _ => |config| config.settings.consensus = Options::of(ProtocolKind::Raft),
    };
    assert!(PROTOCOLS.contains(&protocol));
    let group = Group::new(3, tune);
    let dir = group.dir.path().to_owned();
    let start = |id| {
        let mut config = group.config(id);
        config.versions = version..=version;
        Node::start_blocking(config, Tape::default()).unwrap()
    };
    let nodes = [1, 2, 3].map(start);
    append(&nodes[0].handle(), "a");
    until("all have it", || nodes.iter().all(|node| tape_of(node) == "a"));
    stop(nodes);
    let (before, copied) = (dir.join("r1-before"), dir.join("r2-before"));
    copy(&dir.join("r1"), &before);
    copy(&dir.join("r2"), &copied);

    let two = [1, 2].map(start);
    append(&two[0].handle(), "b");
    until_all_have(&two, "ab");
    stop(two);

    fs::remove_dir_all(dir.join("r2")).unwrap();
    fs::rename(copied, dir.join("r2")).unwrap();
    let two = [2, 3].map(start);
    for text in ["c", "d"] {
        append(&two[0].handle(), text);
    }
    until_all_have(&two, "acd");
    stop(two);
    Forked { group, before }
}

/// r1 and r3 are a majority, recognise each other, and hold different things.
#[test]
fn two_of_three_that_differ_do_not_serve_together() {
    for protocol in PROTOCOLS {
        let forked = forked(protocol);
        let two = [1, 3].map(|id| forked.start(id, VERSION));
        until("both know", || {
            let differs =
                |(at, with): (usize, u64)| two[at].handle().status().forked_with == [ReplicaId(with)];
            [(0, 3), (1, 1)].into_iter().all(differs)
        });
        let refused = block(two[0].handle().execute(Bytes::from_static(b"e")));
        assert!(refused.is_err(), "{protocol}: {refused:?}");
        let refused = block(two[1].handle().query(Bytes::new()));
        assert!(refused.is_err(), "{protocol}: no quorum confirms a read");
        assert!(
            two.iter().all(|node| node.wait_blocking(Duration::ZERO).is_none()),
            "the third may agree with either"
        );
        drop(two);
    }
}

/// r1, which met the life that r2 does not remember, would find r2 out, unless r1's book of peers tells of an
/// older life. What the book says of r1 itself stays.
#[test]
fn one_that_differs_from_the_two_others_stops_and_they_go_on() {
    for protocol in PROTOCOLS {
        let forked = forked(protocol);
        forked.forget_later_lives();
        let three = [1, 2, 3].map(|id| forked.start(id, VERSION));
        let why = why_forked(three[0].wait_blocking(Duration::from_secs(30)).expect("it stops"));
        assert!(why.contains("have different histories"), "{why}");
        assert!(why.contains("this replica, r1, and r"), "{why}");
        assert!(why.contains("synod member replace"), "{why}");
        // They may have to elect a leader first.
        let appended = || match block(three[2].handle().execute(Bytes::from_static(b"e"))) {
            Err(RequestError::NoLeader) => false,
            other => other.map(|_| true).unwrap(),
        };
        until("they go on", appended);
        until("both have it", || three[1..].iter().all(|node| tape_of(node) == "acde"));
        assert!(three[1..].iter().all(|node| node.wait_blocking(Duration::ZERO).is_none()));
        drop(three);
        // It stops again.
        let again = forked.start(1, VERSION);
        let two = [2, 3].map(|id| forked.start(id, VERSION));
        let why = why_forked(again.wait_blocking(Duration::from_secs(30)).expect("it stops again"));
        assert!(why.contains("have different histories"), "{why}");
        drop((again, two));
    }
}

/// Where peers do not tell each other, a replica that learns something else than it knew to be decided finds
/// that out by itself. (After a restart MultiPaxos delivers what its snapshot does not cover as it finds it
/// decided again; the other protocols may take it from their own log.)
#[test]
fn one_that_learns_something_else_than_it_knew_stops() {
    let forked = forked_in(WITHOUT_HISTORY, ProtocolKind::MultiPaxos);
    let two = [1, 3].map(|id| forked.start(id, WITHOUT_HISTORY));
    until("one stops", || {
        // This write brings the log to where it had come before.
        let _ = block(two[1].handle().execute(Bytes::from_static(b"e")));
        two.iter().any(|node| node.wait_blocking(Duration::ZERO).is_some())
    });
    let why = why_forked(two.iter().find_map(|node| node.wait_blocking(Duration::ZERO)).unwrap());
    assert!(why.contains("an earlier life of it have different histories"), "{why}");
}

/// The same data without either: the two serve, a write that was acknowledged is gone, and neither reports it.
#[test]
fn no_replica_notices_without_histories() {
    for protocol in PROTOCOLS {
        let forked = forked_in(WITHOUT_HISTORY, protocol);
        for id in [1, 3] {
            PeerBook::open(&forked.dir(id)).unwrap().forget_reached().unwrap();
        }
        let two = [1, 3].map(|id| forked.start(id, WITHOUT_HISTORY));
        until("they serve", || block(two[0].handle().execute(Bytes::from_static(b"e"))).is_ok());
        until("both have it", || two.iter().all(|node| tape_of(node).ends_with('e')));
        let kept = |acknowledged: char| two.iter().all(|node| tape_of(node).contains(acknowledged));
        assert!(!(kept('b') && kept('c') && kept('d')), "{protocol}");
        assert!(two.iter().all(|node| node.wait_blocking(Duration::ZERO).is_none()));
    }
}
