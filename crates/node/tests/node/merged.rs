//! Groups that are merged into one order: three nodes, one state machine each.

use std::{
    io::{self, Read, Write},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use crate::common::{Tape, append, block, tape};
use bytes::Bytes;
use synod_consensus::{Options, ProtocolKind};
use synod_node::{
    ChangeError, Config, Handle, MemberAddress, Merging, Node, StartError, Subscription, Threads,
};
use synod_replica::{
    Change, Choice, Context, Frozen, Ordered, Others, Skips, Start, StateMachine, SubscribeError,
};
use synod_testkit::{FaultyDisk, until};
use synod_transport::MemoryNetwork;
use synod_wire::{ClusterId, CommandKind, GroupId, ReplicaId, SessionId, Slot};

const GROUPS: u16 = 3;

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

    fn config(&self, id: u64) -> Config {
        let member = |id| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("r{id}:1"));
        let mut config =
            Config::new(ClusterId(7), ReplicaId(id), [1, 2, 3].map(member).to_vec(), "/data".into());
        config.network = Arc::new(self.network.clone());
        config.disk = Arc::new(self.disks[id as usize - 1].clone());
        config.segment_bytes = 64 << 10;
        config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
        config.settings.consensus.election_timeout = Duration::from_millis(300);
        config.merging = Some(Merging::of(GROUPS));
        (self.tune)(&mut config);
        config
    }

    fn start_one(&self, id: u64) -> Node {
        Node::start_blocking(self.config(id), Tape::default()).unwrap()
    }

    fn start(&self) -> Vec<Node> {
        let nodes: Vec<_> = (1..=3).map(|id| self.start_one(id)).collect();
        nodes.iter().for_each(wait_for_leaders);
        nodes
    }
}

fn wait_for_leaders(node: &Node) {
    until("a leader of every group", || node.handles().iter().all(|handle| handle.status().leader.is_some()));
}

/// At equal points of the common order; so it waits until all are at the same one.
fn agree(nodes: &[Node]) {
    until("equal states", || {
        let mut digests = nodes.iter().map(|node| block(node.handle().digest()).unwrap());
        let first = digests.next().unwrap();
        digests.all(|digest| digest == first)
    });
}

fn in_three_ways() -> [fn(&mut Config); 3] {
    [
        |_| {},
        |config| config.threads = Threads::Compact,
        |config| {
            let mut merging = Merging::of(GROUPS);
            (merging.take, merging.skips) = (NonZeroU32::new(3).unwrap(), Skips::Demand);
            config.merging = Some(merging);
            config.settings.consensus = Options::of(ProtocolKind::Raft);
            config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
            config.settings.consensus.election_timeout = Duration::from_millis(300);
        },
    ]
}

#[test]
fn what_any_group_orders_is_executed_in_one_order_and_read_everywhere() {
    for tune in in_three_ways() {
        let cluster = Cluster::new(tune);
        let nodes = cluster.start();
        let mut whole = String::new();
        for number in 0..30 {
            let text = format!("<{number}>");
            whole += &text;
            // Each answer tells the length of what was executed before: no command waits forever, and none overtakes.
            let length = append(&nodes[number % 3].handles()[number / 2 % 3], &text);
            assert_eq!(length, whole.len().to_string());
            assert_eq!(tape(&nodes[(number + 1) % 3].handles()[number % 3]), whole);
        }
        agree(&nodes);
        drop(nodes);
        cluster.disks.iter().for_each(FaultyDisk::power_failure);
        let nodes = cluster.start();
        assert_eq!(tape(&nodes[0].handle()), whole);
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    }
}

/// Many at once, in all groups: everywhere the same order, and none twice.
#[test]
fn commands_of_all_groups_at_once_have_one_order() {
    for tune in in_three_ways() {
        let cluster = Cluster::new(tune);
        let nodes = cluster.start();
        let one = |number: usize| {
            let handle = nodes[number % 3].handles()[number / 3 % 3].clone();
            async move { handle.execute(format!("<{number}>").into()).await.unwrap() }
        };
        block(async {
            let all: tokio::task::JoinSet<_> = (0..300).map(one).collect();
            assert_eq!(all.join_all().await.len(), 300);
        });
        agree(&nodes);
        let text = tape(&nodes[1].handle());
        assert!((0..300).all(|number| text.matches(&format!("<{number}>")).count() == 1), "{text}");
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    }
}

#[test]
fn a_snapshot_holds_all_groups_at_one_point_for_restarts_and_for_those_who_lag() {
    let cluster = Cluster::new(|config| {
        config.settings.snapshot_slots = 10;
        config.settings.keep_slots = 2;
    });
    let nodes = cluster.start();
    let others = [ReplicaId(1), ReplicaId(2)];
    others.iter().for_each(|&other| cluster.network.cut(ReplicaId(3), other));
    let led_elsewhere = |handle: &Handle| handle.status().leader.is_some_and(|leader| leader != ReplicaId(3));
    until("leaders among the others", || nodes[0].handles().iter().all(led_elsewhere));
    // One group is quiet: it is in the snapshots of the others.
    for number in 0..60 {
        append(&nodes[number % 2].handles()[number % 2], "x");
    }
    until("a snapshot of each group", || {
        nodes[0].handles().iter().all(|handle| handle.status().snapshot > Slot::ZERO)
    });
    others.iter().for_each(|&other| cluster.network.heal(ReplicaId(3), other));
    until("the third has learned", || nodes[2].handle().status().leader.is_some());
    assert_eq!(tape(&nodes[2].handle()), "x".repeat(60));
    append(&nodes[2].handles()[2], "y");
    agree(&nodes);
    drop(nodes);
    cluster.disks.iter().for_each(FaultyDisk::power_failure);
    let nodes = cluster.start();
    append(&nodes[1].handles()[1], "z");
    assert_eq!(tape(&nodes[2].handle()), "x".repeat(60) + "yz");
    agree(&nodes);
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}

#[test]
fn a_group_without_a_leader_is_waited_for_and_named_until_it_has_one() {
    let cluster = Cluster::new(|_| {});
    let mut nodes = cluster.start();
    append(&nodes[0].handle(), "a");
    let leads = |node: &Node, me| {
        node.handles().iter().position(|handle| handle.status().leader == Some(ReplicaId(me)))
    };
    let Some(lost) = leads(&nodes[0], 3) else { return };
    nodes.pop().unwrap().stop_now_blocking().unwrap();
    let other = nodes[0].handles()[(lost + 1) % 3].clone();
    assert_eq!(append(&other, "b"), "2");
    // What a new leader orders by itself may wait for a moment.
    until("nothing waits", || other.status().merge.is_some_and(|merge| merge.waits_for.is_none()));
    assert!(other.status().merge.unwrap().position > 0);
    nodes.push(cluster.start_one(3));
    wait_for_leaders(&nodes[2]);
    assert_eq!(tape(&nodes[2].handle()), "ab");
    agree(&nodes);
}

#[test]
fn nobody_skips_while_nobody_orders_anything() {
    let cluster = Cluster::new(|config| config.settings.clock_interval = Duration::from_secs(600));
    let nodes = cluster.start();
    append(&nodes[0].handle(), "a");
    agree(&nodes);
    let slots = || {
        let handles = nodes.iter().flat_map(Node::handles);
        handles.map(|handle| handle.status().decided).collect::<Vec<_>>()
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = slots();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(slots(), before);
}

#[test]
fn one_of_the_groups_changes_its_protocol() {
    let cluster = Cluster::new(|_| {});
    let nodes = cluster.start();
    let handle = &nodes[0].handles()[1];
    // Otherwise the members' births are named meanwhile, and the group follows.
    until("births are named", || nodes[0].handles().iter().all(|handle| handle.group().names_births()));
    let (protocol, version) = (ProtocolKind::Raft, handle.group().version);
    let change = Change::Order { protocol, election: protocol.elections()[0], overrides: Default::default() };
    let group = block(handle.change(version, change)).unwrap();
    assert_eq!(group.protocol, protocol);
    for number in 0..6 {
        append(&nodes[number % 3].handles()[number % 3], &number.to_string());
    }
    assert_eq!(tape(&nodes[2].handle()), "012345");
    assert_eq!(nodes[2].handles()[0].group().protocol, ProtocolKind::MultiPaxos);
    agree(&nodes);
}

#[test]
fn what_was_merged_stays_merged_in_the_same_way() {
    let cluster = Cluster::new(|_| {});
    drop(cluster.start());
    let mut config = cluster.config(1);
    config.merging = None;
    let refused = |config, machines: usize| {
        Node::start_groups_blocking(config, vec![Tape::default(); machines]).unwrap_err()
    };
    let error = refused(config.clone(), 3);
    assert!(error.to_string().contains("is of the groups merge:3, and shard:3 are asked for"), "{error}");
    config.merging = Some(Merging::of(4));
    let error = refused(config.clone(), 1).to_string();
    assert!(error.contains("merge:4 are asked for"), "{error}");
    config.merging = Some(Merging::of(GROUPS));
    assert!(matches!(refused(config.clone(), 2), StartError::Config(_)));
    config.merging = Some(Merging::of(1));
    assert!(matches!(refused(config, 1), StartError::Config(_)));
}

/// The state machine needs all groups.
#[test]
fn merged_groups_choose_their_voters_and_nobody_stays_away() {
    let cluster = Cluster::new(|_| {});
    let nodes = cluster.start();
    let second = &nodes[0].handles()[1];
    until("the births of the voters are named", || second.group().names_births());
    let place = |others| {
        let choice = Choice::of([ReplicaId(2)], others);
        block(second.change(second.group().version, Change::Place(Some(choice))))
    };
    assert_eq!(place(Others::StayAway), Err(ChangeError::AllLearn));
    let placed = place(Others::Learn).unwrap();
    assert_eq!(placed.voters().collect::<Vec<_>>(), [ReplicaId(2)]);
    nodes.iter().for_each(|node| drop(append(&node.handle(), "x")));
    agree(&nodes);
    assert_eq!(tape(&nodes[2].handle()), "xxx");
}

type Followed = Vec<(GroupId, Slot, String)>;

/// The commands of the next batch that a subscription hands out.
async fn next_of(subscription: &mut Subscription) -> Followed {
    let next = tokio::time::timeout(Duration::from_secs(60), subscription.next());
    let Ordered { group, slot, batch, .. } = next.await.expect("in time").unwrap();
    let commands = batch.commands().filter(|command| command.kind == CommandKind::Apply);
    commands.map(|command| (group, slot, String::from_utf8(command.payload.to_vec()).unwrap())).collect()
}

/// What a subscription hands out until a command that was ordered last.
async fn followed(subscription: &mut Subscription, end: &str) -> Followed {
    let mut got = Vec::new();
    while got.last().is_none_or(|(_, _, text)| text != end) {
        got.extend(next_of(subscription).await);
    }
    got
}

/// A subscriber of all groups gets what the state machines execute, one of two groups its part of that in the same
/// order, and one that goes on at another node loses nothing and gets nothing twice.
#[test]
fn subscribers_get_the_common_order_of_their_groups_at_any_node() {
    for tune in in_three_ways() {
        let cluster = Cluster::new(tune);
        let nodes = cluster.start();
        append(&nodes[0].handles()[1], "before");
        let groups = |numbers: &[u16]| numbers.iter().copied().map(GroupId).collect::<Vec<_>>();
        let all = groups(&[]);
        block(async {
            let subscribe = |node: usize, groups: &[GroupId], start| {
                let (handle, groups) = (nodes[node].handle(), groups.to_vec());
                async move { handle.subscribe(groups, start).await }
            };
            let mut whole = subscribe(0, &all, Start::Now).await.unwrap();
            let points = whole.points().into_iter().filter(|point| point.group != GroupId(1)).collect();
            let mut some = subscribe(1, &groups(&[0, 2]), Start::At(points)).await.unwrap();
            let one = |number: usize| {
                let handle = nodes[number % 3].handles()[number / 3 % 3].clone();
                async move { handle.execute(format!("<{number}>").into()).await.unwrap() }
            };
            let mut got = Vec::new();
            for round in 0..3 {
                let writes: tokio::task::JoinSet<_> = (round * 60..round * 60 + 60).map(one).collect();
                assert_eq!(writes.join_all().await.len(), 60);
                got.extend(next_of(&mut whole).await);
                // It goes on elsewhere.
                whole = subscribe((round + 1) % 3, &all, Start::At(whole.points())).await.unwrap();
            }
            for (number, end) in ["end0", "end1", "end2"].into_iter().enumerate() {
                nodes[0].handles()[number].execute(end.into()).await.unwrap();
            }
            got.extend(followed(&mut whole, "end2").await);
            let texts: String = got.iter().map(|(_, _, text)| text.as_str()).collect();
            let state =
                String::from_utf8(nodes[0].handle().query("".into()).await.unwrap().to_vec()).unwrap();
            assert_eq!(format!("before{texts}"), state);
            let part = followed(&mut some, "end2").await;
            let wanted = got.iter().filter(|(group, ..)| *group != GroupId(1));
            assert!(part.iter().eq(wanted), "{part:?}");
            // What comes after a point in the middle is the same again.
            let mut from_start = subscribe(2, &all, Start::Beginning).await.unwrap();
            let again = followed(&mut from_start, "end2").await;
            assert_eq!(again[1..], got);
            assert_eq!(
                subscribe(0, &groups(&[3]), Start::Now).await.unwrap_err(),
                SubscribeError::NoSuchGroup { group: GroupId(3), count: 3 }
            );
        });
        nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
    }
}

/// A start that is not kept is refused with the first that is, and a subscriber that does not read holds nothing back
/// and is told that it was too slow.
#[test]
fn a_subscriber_that_is_too_slow_is_told_and_hurts_nobody() {
    let cluster = Cluster::new(|config| {
        config.settings.snapshot_slots = 10;
        config.settings.keep_slots = 2;
    });
    let nodes = cluster.start();
    let handle = nodes[0].handle();
    let mut slow = block(handle.subscribe([], Start::Beginning)).unwrap();
    for number in 0..90 {
        append(&nodes[number % 3].handles()[number % 3], "x");
    }
    until("the log is trimmed", || block(handle.read_log(Slot(1), 1)).is_err());
    let error = block(async {
        loop {
            if let Err(error) = slow.next().await {
                return error;
            }
        }
    });
    let SubscribeError::Trimmed { first, round: Some(round) } = error else { panic!("{error}") };
    assert_eq!(first.len(), 3);
    assert!(matches!(block(handle.subscribe([], Start::Beginning)), Err(SubscribeError::Trimmed { .. })));
    assert!(block(handle.subscribe([], Start::At(first))).is_ok());
    assert!(block(handle.subscribe([], Start::Round(round))).is_ok());
    nodes.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
}

/// Waits, from its first command on, until the clock shows a fifth of a second.
#[derive(Clone, Debug, Default)]
struct Timer {
    waits: bool,
}

impl Timer {
    const UNTIL: Duration = Duration::from_millis(200);
}

impl Frozen for Timer {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&[self.waits.into()])
    }
}

impl StateMachine for Timer {
    fn apply(&mut self, _: &Bytes, _: &Context) -> Bytes {
        self.waits = true;
        Bytes::new()
    }

    fn clock_moved(&mut self, context: &Context, _: SessionId) {
        self.waits &= context.time < Timer::UNTIL;
    }

    fn waits_for(&self) -> Option<Duration> {
        self.waits.then_some(Timer::UNTIL)
    }

    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::from_static(if self.waits { b"waits" } else { b"is done" })
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut waits = [0];
        snapshot.read_exact(&mut waits)?;
        self.waits = waits == [1];
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.waits.into()
    }
}

/// The clock moves when the state machine waits for it, whichever group executed that and although the replica has
/// executed nothing since it has a snapshot: nobody waits for the interval of the clock.
#[test]
fn the_clock_moves_for_a_machine_that_waits() {
    for (merged, threads) in [(true, Threads::Spread), (true, Threads::Compact), (false, Threads::Spread)] {
        let cluster = Cluster::new(|config| {
            config.settings.snapshot_slots = 1;
            config.settings.clock_interval = Duration::from_secs(600);
        });
        let start = || {
            let mut config = cluster.config(1);
            config.members.truncate(1);
            (config.threads, config.merging) = (threads, config.merging.filter(|_| merged));
            let node = Node::start_blocking(config, Timer::default()).unwrap();
            wait_for_leaders(&node);
            node
        };
        let is_done = |node: &Node| tape(&node.handle()) == "is done";
        let mut node = start();
        let last = node.handles().last().unwrap().clone();
        block(last.execute(Bytes::new())).unwrap();
        if !merged {
            until("a snapshot", || last.status().snapshot > Slot::ZERO);
            node.stop_now_blocking().unwrap();
            node = start();
        }
        until("the clock moves", || is_done(&node));
        node.stop_now_blocking().unwrap();
    }
}
