//! What a replica that began as the only one may do after a loss, which depends on the replicas that joined since.

use std::{fs, thread, time::Duration};

use crate::common::{Group, append, block, tape};
use synod_consensus::{Options, ProtocolKind, Role};
use synod_node::{Config, Node, Origin, StartError, recover::force_new_cluster};
use synod_replica::{Change, Goal, MemberInfo};
use synod_storage::{DataDir, Durability};
use synod_testkit::until;
use synod_wire::{ClusterId, ReplicaId};

fn founder(group: &Group) -> Config {
    let mut config = group.config(1);
    config.members.truncate(1);
    config
}

fn start(config: Config) -> Result<Node, StartError> {
    Node::start_blocking(config, crate::common::Tape::default())
}

/// Adds a replica to those that run, and starts it.
fn join(group: &Group, of: &Node, id: u64, goal: Goal) -> Node {
    let member = &group.members[id as usize - 1];
    let info = MemberInfo::new(&member.name, vec![format!("http://{}", member.address)]);
    let handle = of.handle();
    until("births are named", || handle.group().names_births());
    block(handle.change(handle.group().version, Change::Add { info, goal })).unwrap();
    let mut config = group.config(id);
    config.durability = Durability::Sync;
    let asked = [group.members[0].address.as_str()];
    config.joins = Some(Origin::ask_blocking(asked, None, Duration::from_secs(20)).unwrap());
    let node = start(config).unwrap();
    until("it is what it came for", || {
        let known = handle.group();
        let votes = known.voters().any(|voter| voter == member.id);
        known.member(member.id).is_some() && (votes || goal == Goal::Learn)
    });
    node
}

/// The founder began alone, and its log never said otherwise, or said so only in what is lost. It must not
/// assume that it is the only one: it may neither decide by itself nor refuse to learn from the others.
#[test]
fn a_founder_that_lost_its_log_learns_from_the_members_that_joined() {
    let memory: fn(&mut Config) = |config| config.durability = Durability::Memory;
    let raft: fn(&mut Config) = |config| config.settings.consensus = Options::of(ProtocolKind::Raft);
    for tune in [memory, raft] {
        let group = Group::new(3, tune);
        let first = start(founder(&group)).unwrap();
        append(&first.handle(), "a");
        let others = [2, 3].map(|id| join(&group, &first, id, Goal::Vote));
        append(&first.handle(), "b");
        until("all have it", || {
            others.iter().all(|node| node.handle().status().executed >= first.handle().status().executed)
        });
        first.stop_now_blocking().unwrap();
        others.into_iter().for_each(|node| node.stop_now_blocking().unwrap());
        if group.config(1).durability == Durability::Sync {
            fs::remove_dir_all(group.dir.path().join("r1/wal")).unwrap();
        }

        let first = start(founder(&group)).unwrap();
        // Elections are over by then, if there can be any.
        thread::sleep(Duration::from_secs(2));
        assert_eq!(first.handle().status().role, Role::Recovering);
        let _others = [2, 3].map(|id| {
            let mut config = group.config(id);
            config.durability = Durability::Sync;
            start(config).unwrap()
        });
        until("it votes again", || first.handle().status().role == Role::Follower);
        assert_eq!(tape(&first.handle()), "ab");
    }
}

/// A learner may hold what the only voter lost: if the voter went on, the two would follow different histories.
#[test]
fn the_only_voter_does_not_go_on_before_a_learner_that_may_hold_more() {
    let group = Group::new(2, |config| config.durability = Durability::Memory);
    let first = start(founder(&group)).unwrap();
    append(&first.handle(), "a");
    let learner = join(&group, &first, 2, Goal::Learn);
    first.stop_now_blocking().unwrap();
    let error = start(founder(&group)).unwrap_err();
    assert!(matches!(error, StartError::LostBeforeLearners(..)), "{error}");
    assert!(error.to_string().contains("synod recover --force-new-cluster"), "{error}");
    learner.stop_now_blocking().unwrap();
}

/// What the founder's log knew of a removed replica is lost with the log. The removed replica may never have
/// heard of its removal, and must not be taken for a new member with the same id.
#[test]
fn a_replica_that_is_alone_again_and_forgets_the_others_needs_a_new_cluster() {
    let group = Group::new(2, |config| config.durability = Durability::Memory);
    let first = start(founder(&group)).unwrap();
    let other = join(&group, &first, 2, Goal::Vote);
    let handle = first.handle();
    block(handle.change(handle.group().version, Change::Remove(group.members[1].id))).unwrap();
    until("it is alone", || handle.group().members.len() == 1);
    append(&handle, "a");
    drop(other);
    first.stop_now_blocking().unwrap();
    let error = start(founder(&group)).unwrap_err();
    assert!(matches!(error, StartError::MembersForgotten), "{error}");
    assert!(error.to_string().contains("synod recover --force-new-cluster"), "{error}");
    let plan =
        force_new_cluster(&founder(&group), vec![crate::common::Tape::default()], |_| true).unwrap().unwrap();
    let mut config = founder(&group);
    (config.cluster, config.me) = (plan.new_cluster, plan.groups[0].new.members[0].id);
    config.members[0].id = config.me;
    let first = start(config).unwrap();
    append(&first.handle(), "b");
}

/// A replica that was always the only one goes on, however often it forgets.
#[test]
fn a_replica_that_was_always_alone_goes_on() {
    let group = Group::new(1, |config| config.durability = Durability::Memory);
    for text in ["a", "b"] {
        let first = start(founder(&group)).unwrap();
        append(&first.handle(), text);
        first.stop_now_blocking().unwrap();
    }
}

/// A start that ended between two files can leave a group beside the log that the log never came to.
#[test]
fn new_members_are_written_down_whatever_stood_there() {
    let group = Group::new(2, |_| {});
    start(founder(&group)).unwrap().stop_now_blocking().unwrap();
    let path = group.dir.path().join("r1");
    let open = || DataDir::open(&path, ClusterId(7), ReplicaId(1), "r1", Durability::Sync).unwrap();
    let noted = || Origin::decode(open().origin().unwrap().unwrap()).unwrap();
    let mut origin = noted();
    origin.present.version += 1;
    open().set_origin(&origin.encode()).unwrap();

    let first = start(founder(&group)).unwrap();
    let other = join(&group, &first, 2, Goal::Learn);
    let present = first.handle().group();
    assert_eq!(present.version, origin.present.version);
    first.stop_now_blocking().unwrap();
    other.stop_now_blocking().unwrap();
    assert_eq!(noted().present, *present);
}
