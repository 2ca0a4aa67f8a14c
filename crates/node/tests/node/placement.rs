//! Groups that do not have the voters of the first one: five nodes, of which three vote in a group, and the others
//! learn or take no part in it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, sleep},
    time::Duration,
};

use crate::common::{Group as OnSockets, Tape, append, block, tape};
use bytes::Bytes;
use synod_consensus::ProtocolKind;
use synod_node::{ChangeError, Config, Handle, Node, Origin, Subscription};
use synod_replica::{
    Change, Choice, Goal, MemberInfo, Ordered, Others, Refusal, RequestError, Start, SubscribeError,
};
use synod_storage::Durability;
use synod_testkit::until;
use synod_wire::{CommandKind, GroupId, ReplicaId};

const GROUPS: usize = 3;

struct Cluster {
    sockets: OnSockets,
    nodes: Vec<Option<Node>>,
}

impl Cluster {
    /// Five nodes, and an address for a sixth.
    fn start(tune: fn(&mut Config)) -> Cluster {
        let mut cluster = Cluster { sockets: OnSockets::new(6, tune), nodes: (0..6).map(|_| None).collect() };
        (1..=5).for_each(|id| cluster.begin(id));
        for id in 1..=5 {
            let led = || cluster.node(id).handles().iter().all(|handle| handle.status().leader.is_some());
            until("a leader of every group", led);
        }
        cluster
    }

    fn config(&self, id: u64) -> Config {
        let mut config = self.sockets.config(id);
        config.members.truncate(5);
        config
    }

    fn begin(&mut self, id: u64) {
        self.begin_with(id, self.config(id));
    }

    fn begin_with(&mut self, id: u64, config: Config) {
        let node = Node::start_groups_blocking(config, vec![Tape::default(); GROUPS]).unwrap();
        self.nodes[id as usize - 1] = Some(node);
    }

    fn stop(&mut self, id: u64) {
        self.nodes[id as usize - 1].take().expect("it runs").stop_now_blocking().unwrap();
    }

    fn node(&self, id: u64) -> &Node {
        self.nodes[id as usize - 1].as_ref().expect("it runs")
    }

    fn handle(&self, id: u64, group: usize) -> &Handle {
        &self.node(id).handles()[group]
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// Makes a change through a replica that takes part in the group, and waits until those that do agree.
    fn place(&self, group: usize, choice: Option<Choice>) {
        change(self.node_in(group), group, &Change::Place(choice));
        self.await_agreement(group);
    }

    fn await_agreement(&self, group: usize) {
        until("the group has the members that were chosen", || {
            let first = self.node_in(0).handle().group();
            let takes_part = self.running().filter(|node| node.handles()[group].takes_part());
            takes_part.map(|node| &node.handles()[group]).all(|handle| handle.group().agrees_with(&first))
        });
    }

    fn node_in(&self, group: usize) -> &Node {
        let takes_part = |node: &&Node| {
            let handle = &node.handles()[group];
            handle.takes_part() && handle.status().leader.is_some()
        };
        loop {
            if let Some(node) = self.running().find(takes_part) {
                return node;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// A group may change meanwhile, or have no leader.
fn change(node: &Node, group: usize, change: &Change) {
    let handle = &node.handles()[group];
    until("the change is made", || {
        let before = handle.group().version;
        match block(handle.change(before, change.clone())) {
            Ok(_) => {
                assert!(handle.group().version > before, "the change is answered, and does not show");
                true
            }
            Err(ChangeError::Refused(Refusal::NothingToDo)) => true,
            Err(
                ChangeError::Refused(Refusal::Stale { .. } | Refusal::Unsettled) | ChangeError::Request(_),
            ) => false,
            Err(error) => panic!("{error}"),
        }
    });
}

fn choice(ids: &[u64], others: Others) -> Option<Choice> {
    Some(Choice::of(ids.iter().copied().map(ReplicaId), others))
}

fn voters(handle: &Handle) -> Vec<u64> {
    handle.group().voters().map(|id| id.0).collect()
}

/// Appends numbers to a group, at whichever of the nodes takes part in it, while the test goes on; each at least once.
struct Load {
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<u32>,
}

impl Load {
    fn begin(handles: Vec<Handle>) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut done = 0;
            let mut at = 0;
            while !ends.load(SeqCst) {
                let command = Bytes::from(format!("<{done}>"));
                match block(handles[at % handles.len()].execute(command)) {
                    Ok(_) => done += 1,
                    Err(_) => at += 1,
                }
            }
            done
        });
        Load { over, thread }
    }

    fn end(self) -> u32 {
        self.over.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

fn holds(tape: &str, count: u32) -> bool {
    (0..count).all(|number| tape.contains(&format!("<{number}>")))
}

/// What a subscription of group 1 still hands out at a node that has left the group, and then at another one.
fn goes_on_elsewhere(subscription: &mut Subscription, other: &Handle) {
    let mut got = String::new();
    let mut take = |Ordered { batch, .. }: Ordered| {
        let commands = batch.commands().filter(|command| command.kind == CommandKind::Apply);
        commands.for_each(|command| got.push_str(std::str::from_utf8(&command.payload).unwrap()));
        got.ends_with("on")
    };
    let error = loop {
        match block(subscription.next()) {
            Ok(next) => _ = take(next),
            Err(error) => break error,
        }
    };
    assert_eq!(error, SubscribeError::TakesNoPart(GroupId(1)));
    let mut goes_on = block(other.subscribe([GroupId(1)], Start::At(subscription.points()))).unwrap();
    while !take(block(goes_on.next()).unwrap()) {}
    assert_eq!(got, "beginson");
}

fn members_go_on_in_some_groups(tune: fn(&mut Config)) {
    let mut cluster = Cluster::start(tune);
    append(cluster.handle(4, 1), "begins");
    let mut subscription = block(cluster.node(4).handle().subscribe([GroupId(1)], Start::Beginning)).unwrap();
    cluster.place(1, choice(&[1, 2, 3], Others::StayAway));
    cluster.place(2, choice(&[3, 4, 5], Others::Learn));
    assert_eq!(voters(cluster.handle(1, 2)), [3, 4, 5]);
    until("two nodes are away", || [4, 5].iter().all(|&id| !cluster.handle(id, 1).takes_part()));
    append(cluster.handle(1, 2), "two");
    until("the others learn", || (1..=5).all(|id| cluster.handle(id, 2).status().executed.0 > 0));

    // A node that takes no part says so, and does nothing.
    let away = cluster.handle(4, 1);
    assert_eq!(block(away.execute(Bytes::new())), Err(RequestError::TakesNoPart));
    assert_eq!(block(away.query(Bytes::new())), Err(RequestError::TakesNoPart));
    assert_eq!(block(away.query_stale(Bytes::new())), Err(RequestError::TakesNoPart));
    until("the group goes on without it", || away.is_retired());
    let quiet = || (away.status().messages_sent, away.status().decided);
    let before = quiet();
    append(cluster.handle(1, 1), "on");
    goes_on_elsewhere(&mut subscription, &cluster.node(1).handle());
    let refused = block(cluster.node(4).handle().subscribe([], Start::Now));
    assert_eq!(refused.unwrap_err(), SubscribeError::TakesNoPart(GroupId(1)));
    assert!(block(cluster.node(4).handle().subscribe([GroupId(0), GroupId(2)], Start::Now)).is_ok());
    sleep(Duration::from_millis(700));
    assert_eq!(quiet(), before);
    assert!(!cluster.node(4).handle().is_retired() && !cluster.handle(4, 2).is_retired());

    // One of three dies, and the group moves away from it under load.
    let handles: Vec<_> = (1..=5).map(|id| cluster.handle(id, 1).clone()).collect();
    let load = Load::begin(handles[1..].to_vec());
    cluster.stop(1);
    cluster.stop(5);
    cluster.begin(5);
    cluster.place(1, choice(&[3, 4, 5], Others::StayAway));
    let done = load.end();
    assert!(done > 0);
    assert_eq!(voters(cluster.handle(5, 1)), [3, 4, 5]);
    let all = tape(cluster.handle(4, 1));
    assert!(all.starts_with("begins") && holds(&all, done), "{done} were answered: {all}");
    until("node 2 is away", || !cluster.handle(2, 1).takes_part());

    // The one that was down comes back, and comes back to the group.
    cluster.begin(1);
    until("node 1 finds that it is away", || !cluster.handle(1, 1).takes_part());
    cluster.stop(2);
    cluster.begin(2);
    cluster.place(1, choice(&[1, 2, 3], Others::StayAway));
    assert!(!cluster.handle(1, 1).is_retired());
    cluster.stop(3);
    assert_eq!(tape(cluster.handle(2, 1)), all);
    append(cluster.handle(1, 1), "back");
    cluster.begin(3);

    // A chosen member is replaced in the cluster, and its successor takes its place in the group.
    cluster.stop(3);
    let new = &cluster.sockets.members[5];
    let info = MemberInfo::new("r6", vec![format!("http://{}", new.address)]);
    change(cluster.node(1), 0, &Change::Add { info, goal: Goal::Replace(ReplicaId(3)) });
    let address = cluster.sockets.members[0].address.clone();
    let told = Origin::ask_blocking([address.as_str()], None, Duration::from_secs(10)).unwrap();
    let mut config = cluster.config(6);
    (config.members, config.joins) = (Vec::new(), Some(told));
    cluster.begin_with(6, config);
    for (group, ids) in [(1, [1, 2, 6]), (2, [4, 5, 6])] {
        until("the successor has its place", || {
            voters(cluster.node_in(group).handles().get(group).unwrap()) == ids
        });
        cluster.await_agreement(group);
    }
    cluster.stop(1);
    append(cluster.handle(6, 1), "!");
    assert_eq!(tape(cluster.handle(2, 1)), all + "back!");
    cluster.begin(1);

    cluster.place(1, None);
    assert_eq!(voters(cluster.handle(4, 1)), [1, 2, 4, 5, 6]);
    append(cluster.handle(4, 1), "!");
}

#[test]
fn a_group_moves_among_the_members_of_a_cluster() {
    members_go_on_in_some_groups(|_| {});
}

#[test]
fn a_group_of_raft_moves_among_the_members_of_a_cluster() {
    members_go_on_in_some_groups(raft);
}

fn raft(config: &mut Config) {
    config.settings.consensus.protocol = ProtocolKind::Raft;
    config.settings.consensus.election = ProtocolKind::Raft.elections()[0];
}

/// A node loses its memory with each restart, also what it knew of a group that it left and comes back to.
#[test]
fn a_member_comes_back_to_a_group_without_memory() {
    let tune: fn(&mut Config) = |config| {
        raft(config);
        config.durability = Durability::Memory;
    };
    let mut cluster = Cluster::start(tune);
    append(cluster.handle(1, 1), "a");
    cluster.place(1, choice(&[1, 2, 3], Others::StayAway));
    until("node 4 is away", || cluster.handle(4, 1).is_retired());
    cluster.stop(4);
    cluster.begin(4);
    cluster.place(1, choice(&[2, 3, 4], Others::StayAway));
    cluster.stop(2);
    until("node 4 votes", || block(cluster.handle(4, 1).execute(Bytes::from_static(b"b"))).is_ok());
    assert!(tape(cluster.handle(3, 1)).starts_with("ab"));
}

#[test]
fn only_a_group_that_follows_is_placed_and_only_on_voters_of_the_first_group() {
    let cluster = Cluster::start(|_| {});
    let first = cluster.node(1).handle();
    until("the births of the voters are named", || first.group().names_births());
    let place = Change::Place(choice(&[1], Others::Learn));
    let refused = block(first.change(first.group().version, place.clone()));
    assert_eq!(refused, Err(ChangeError::Refused(Refusal::FollowsNone)));
    let second = cluster.handle(1, 1);
    until("the births of the voters are named", || second.group().names_births());
    let unknown = Change::Place(choice(&[1, 9], Others::Learn));
    let refused = block(second.change(second.group().version, unknown));
    assert_eq!(refused, Err(ChangeError::Refused(Refusal::NotAVoterOfFirst(ReplicaId(9)))));
}
