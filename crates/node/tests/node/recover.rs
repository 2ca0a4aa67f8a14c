//! New clusters: what one keeps of the log of its only survivor, and those that begin with a backup.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::symlink,
    path::Path,
    time::Duration,
};

use crate::common::{Tape, append, block, tape};
use bytes::Bytes;
use synod_consensus::{
    Options, ProtocolKind, VoterSets,
    raft::{Entry, Record},
};
use synod_node::{
    Config, Merging, Node, Origin,
    recover::force_new_cluster,
    restore::{RestoreError, from_backup},
};
use synod_replica::{
    Change, ChangeRequest, Context, Frozen, Goal, Group, LogRecord, MemberInfo, StateMachine,
};
use synod_storage::{DataDir, Durability, Wal};
use synod_testkit::until;
use synod_wire::{
    Ballot, Batch, BatchBuilder, ClusterId, CommandKind, Epoch, Lsn, ReplicaId, SessionId, Slot,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const CLUSTER: ClusterId = ClusterId(7);

/// A group in which r1 votes and r2 is to vote.
fn with_learner() -> Group {
    let alone = Group::of(&Options::of(ProtocolKind::Raft), [R1]);
    let change = Change::Add { info: MemberInfo::default(), goal: Goal::Vote };
    alone.apply(Slot::ZERO, &ChangeRequest { expected: alone.version, change }).unwrap()
}

fn promotion(group: &Group) -> Batch {
    let request = ChangeRequest { expected: group.version, change: Change::promote(R2) };
    let mut builder = BatchBuilder::new();
    builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &request.encode().to_bytes());
    builder.finish()
}

/// The data directory of r1, which accepted a value in a cluster with r2.
fn survivor(path: &Path) -> Config {
    let group = Group::of(&Options::of(ProtocolKind::Raft), [R1, R2]);
    let dir = DataDir::open(path, CLUSTER, R1, "n1", Durability::Sync).unwrap();
    dir.set_origin(&Origin::new(CLUSTER, group).encode()).unwrap();
    let (mut wal, _) = Wal::open(&dir.wal(), dir.identity(), synod_storage::Options::default()).unwrap();
    let entry = Entry { ballot: Ballot { round: 1, replica: R1 }, batch: Batch::noop(), voters: None };
    let record = Record::Entries {
        first: Slot(1),
        entries: [entry].into(),
        decided: Slot::ZERO,
        decided_in: Ballot::ZERO,
    };
    let record = LogRecord::Protocol { epoch: Epoch(1), record: record.into() };
    wal.append(Lsn(1), record.keep(), record.encode());
    wal.close().unwrap();
    Config::new(CLUSTER, R1, Vec::new(), path.to_owned())
}

fn cluster_in(path: &Path) -> ClusterId {
    DataDir::read(path).unwrap().unwrap().identity.cluster
}

/// At one time there was a moment without a data directory between the renames, and a supervisor that started
/// the replica again in it got an empty one.
#[test]
fn an_interrupted_recovery_is_finished_and_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r1");
    let config = survivor(&path);
    let plan = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap().expect("agreed");
    assert_eq!((cluster_in(&path), cluster_in(&plan.aside)), (plan.new_cluster, CLUSTER));

    let made = DataDir::replacement(&path);
    fs::rename(&path, &made).unwrap();
    for empty in [false, true] {
        if empty {
            fs::create_dir(&path).unwrap();
        }
        let error = DataDir::open(&path, CLUSTER, R1, "n1", Durability::Sync).unwrap_err().to_string();
        assert!(error.contains(&format!("mv {} {}", made.display(), path.display())), "{error}");
        assert!(DataDir::read(&path).is_err());
        assert_eq!(path.exists(), empty, "what is to be renamed must not go into it");
    }
    fs::remove_dir(&path).unwrap();
    fs::rename(&made, &path).unwrap();
    let config = Config::new(plan.new_cluster, plan.groups[0].new.members[0].id, Vec::new(), path);
    assert!(
        force_new_cluster(&config, vec![Tape::default()], |_| false).unwrap().is_none(),
        "it can be read"
    );
}

#[test]
fn what_is_recovered_has_its_log_with_it_and_says_where_the_old_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let (path, fast) = (folder.path().join("r1"), folder.path().join("fast"));
    let config = survivor(&path);
    fs::rename(path.join("wal"), &fast).unwrap();
    DataDir::link_log(&path, &fast).unwrap();
    let plan = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap().expect("agreed");
    let said = format!("the old one stays in {}", fast.display());
    assert!(plan.warnings.iter().any(|warning| warning.contains(&said)), "{:?}", plan.warnings);
    assert!(fs::symlink_metadata(path.join("wal")).unwrap().is_dir() && fast.exists());
}

/// At one time the new directory was made beside the link, or had no name at all.
#[test]
fn the_directory_may_be_named_in_a_roundabout_way() {
    for way in ["link", "r1/wal/.."] {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let path = disk.join("r1");
        let mut config = survivor(&path);
        std::os::unix::fs::symlink(&path, disk.join("link")).unwrap();
        config.data_dir = disk.join(way);
        let plan = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap().expect("agreed");
        assert_eq!(plan.aside, path.canonicalize().unwrap().with_file_name(format!("r1.old-{CLUSTER}")));
        assert_eq!((cluster_in(&path), cluster_in(&plan.aside)), (plan.new_cluster, CLUSTER));
        assert_eq!(cluster_in(&disk.join("link")), plan.new_cluster);
    }
}

/// At one time a mount point was refused only when the new directory was there, which then prevented every
/// start from the old one.
#[test]
fn a_mount_point_is_refused_before_anything_is_written() {
    let config = Config::new(CLUSTER, R1, Vec::new(), "/proc".into());
    let error = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap_err().to_string();
    assert!(error.contains("--data-dir /proc/data"), "{error}");
}

#[test]
fn a_recovery_that_was_interrupted_before_it_changed_anything_is_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r1");
    let config = survivor(&path);
    let aside = folder.path().join(format!("r1.old-{CLUSTER}"));
    // An earlier attempt left this, under either of its names.
    for left in [DataDir::replacement(&path), aside.clone()] {
        drop(DataDir::open(&left, ClusterId(99), ReplicaId(3), "n1", Durability::Sync).unwrap());
    }
    let plan = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap().expect("agreed");
    assert_eq!(plan.aside, aside);
    assert_eq!((cluster_in(&path), cluster_in(&aside)), (plan.new_cluster, CLUSTER));
    assert!(!DataDir::replacement(&path).exists());

    // The data of this very cluster are not left over from an attempt.
    fs::remove_dir_all(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    drop(DataDir::open(&aside, CLUSTER, R1, "n1", Durability::Sync).unwrap());
    let error = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
}

/// r1 promoted r2, which acknowledged that and what came after it; then r1 was gone.
#[test]
fn a_learner_that_may_have_voted_keeps_what_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r2");
    let group = with_learner();
    let dir = DataDir::open(&path, CLUSTER, R2, "n2", Durability::Sync).unwrap();
    dir.set_origin(&Origin::new(CLUSTER, group.clone()).encode()).unwrap();
    let options = synod_storage::Options { durability: Durability::Sync, ..Default::default() };
    let (mut wal, _) = Wal::open(&dir.wal(), dir.identity(), options).unwrap();
    let entry = |slot, batch, voters| {
        let entry = Entry { ballot: Ballot { round: 1, replica: R1 }, batch, voters };
        Record::Entries {
            first: Slot(slot),
            entries: [entry].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        }
    };
    let voters = VoterSets::simple(vec![R1, R2]);
    let records = [
        Record::Amnesia(false),
        Record::Term { term: 1, voted_for: None },
        entry(1, Batch::noop(), None),
        entry(2, promotion(&group), Some(voters)),
        entry(3, Batch::noop(), None),
    ];
    for (lsn, record) in (1..).map(Lsn).zip(records) {
        let record = LogRecord::Protocol { epoch: Epoch(1), record: record.into() };
        wal.append(lsn, record.keep(), record.encode());
    }
    wal.commit().unwrap();
    wal.close().unwrap();
    drop(dir);

    let config = Config::new(CLUSTER, R2, Vec::new(), path);
    let plan = force_new_cluster(&config, vec![Tape::default()], |_| true).unwrap().expect("agreed");
    assert_eq!(plan.groups[0].decided, Slot::ZERO, "nobody told it");
    assert!(plan.groups[0].kept >= Slot(3), "{plan:?}");
    assert!(plan.groups[0].old.votes(R2));
    assert_eq!(plan.groups[0].new.voters().collect::<Vec<_>>(), [ReplicaId(3)]);
}

/// Sets a protocol, or merges groups.
type Tune = fn(&mut Config);

const WAYS: [(&str, Tune); 5] = [
    ("multipaxos", |config| config.settings.consensus = Options::of(ProtocolKind::MultiPaxos)),
    ("sequence-paxos", |config| config.settings.consensus = Options::of(ProtocolKind::SequencePaxos)),
    ("raft, with a log apart", |config| {
        config.settings.consensus = Options::of(ProtocolKind::Raft);
        config.log_dir = Some(config.data_dir.with_extension("log"));
    }),
    ("ring", |config| config.settings.consensus = Options::of(ProtocolKind::Ring)),
    ("merged", |config| config.merging = Some(Merging::of(2))),
];

fn backup() -> Tape {
    Tape(b"old ".to_vec())
}

#[test]
fn a_backup_is_what_all_members_begin_with_and_what_a_joining_one_gets() {
    for (way, tune) in WAYS {
        let group = crate::common::Group::new(4, tune);
        let first = |id| {
            let mut config = group.config(id);
            config.members.truncate(3);
            config
        };
        (1..=3).for_each(|id| from_backup(&first(id), backup()).unwrap());
        let start = |config| Node::start_blocking(config, Tape::default()).unwrap();
        let mut nodes: Vec<_> = (1..=3).map(|id| start(first(id))).collect();
        append(&nodes[1].handle(), "new ");
        assert_eq!(tape(&nodes[2].handle()), "old new ", "{way}");

        // The log does not hold what the cluster began with.
        let handle = nodes[0].handle();
        until("births are named", || handle.group().names_births());
        let member = &group.members[3];
        let info = MemberInfo::new(&member.name, vec![format!("http://{}", member.address)]);
        block(handle.change(handle.group().version, Change::Add { info, goal: Goal::Vote })).unwrap();
        let mut config = group.config(4);
        let asked = [group.members[0].address.as_str()];
        config.joins = Some(Origin::ask_blocking(asked, None, Duration::from_secs(20)).unwrap());
        nodes.push(start(config));
        append(&handle, "more");
        until("the new member has it", || tape(&nodes[3].handle()) == "old new more");

        // A member starts again with what it has, and one whose snapshot is gone gets it from the others.
        for id in [1, 2] {
            let config = first(id as u64);
            nodes.remove(id - 1).stop_blocking().unwrap();
            if id == 2 {
                for snapshot in fs::read_dir(config.data_dir.join("snapshots")).unwrap() {
                    fs::write(snapshot.unwrap().path(), "damaged").unwrap();
                }
            }
            nodes.insert(id - 1, start(config));
            until("it has it again", || tape(&nodes[id - 1].handle()) == "old new more");
        }
    }
}

/// Members of different backups, or one of which was started without it, are of different clusters.
#[test]
fn a_backup_is_restored_where_there_is_nothing() {
    let group = crate::common::Group::new(1, |_| {});
    let config = group.config(1);
    fs::create_dir(&config.data_dir).unwrap();
    fs::write(config.data_dir.join("something"), "of somebody").unwrap();
    assert!(matches!(from_backup(&config, backup()), Err(RestoreError::NotEmpty(_))));
    fs::remove_file(config.data_dir.join("something")).unwrap();
    let made = DataDir::replacement(&config.data_dir);
    fs::create_dir(&made).unwrap();
    assert!(matches!(from_backup(&config, backup()), Err(RestoreError::InTheWay(_))));
    fs::remove_dir(&made).unwrap();

    /// A state that cannot be written.
    struct Full;
    impl Frozen for Full {
        fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
            out.write_all(b"some")?;
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    impl StateMachine for Full {
        fn apply(&mut self, _: &Bytes, _: &Context) -> Bytes {
            Bytes::new()
        }
        fn query(&self, _: &Bytes) -> Bytes {
            Bytes::new()
        }
        fn freeze(&self) -> Box<dyn Frozen> {
            Box::new(Full)
        }
        fn restore(&mut self, _: &mut dyn Read) -> io::Result<()> {
            Ok(())
        }
        fn digest(&self) -> u64 {
            0
        }
    }
    assert!(matches!(from_backup(&config, Full), Err(RestoreError::Io { doing: "write", .. })));
    let is_empty = |path: &Path| fs::read_dir(path).unwrap().next().is_none();
    assert!(!made.exists() && is_empty(&config.data_dir));
    // The folder of a log stays if it was there, and only if it was.
    let log_dir = config.data_dir.with_extension("log");
    let mut apart = config.clone();
    apart.log_dir = Some(log_dir.clone());
    for was_there in [false, true] {
        if was_there {
            fs::create_dir(&log_dir).unwrap();
        }
        assert!(matches!(from_backup(&apart, Full), Err(RestoreError::Io { doing: "write", .. })));
        assert!(log_dir.exists() == was_there && !made.exists());
    }
    assert!(is_empty(&log_dir));
    fs::write(log_dir.join("something"), "of somebody").unwrap();
    assert!(matches!(from_backup(&apart, backup()), Err(RestoreError::LogNotEmpty(_))));
    // A link that leads nowhere counts as free, and a directory cannot get its name.
    let mut dangling = config.clone();
    dangling.data_dir = config.data_dir.with_extension("link");
    symlink("nowhere", &dangling.data_dir).unwrap();
    assert!(matches!(from_backup(&dangling, backup()), Err(RestoreError::Storage(_))));
    assert!(!DataDir::replacement(&dangling.data_dir).exists());

    // An empty folder is one.
    from_backup(&config, backup()).unwrap();
    assert!(matches!(from_backup(&config, backup()), Err(RestoreError::NotEmpty(_))));
    let node = Node::start_blocking(config.clone(), Tape::default()).unwrap();
    assert_eq!(tape(&node.handle()), "old ");
    node.stop_blocking().unwrap();
    let mut other = config;
    other.cluster = ClusterId(8);
    let error = Node::start_blocking(other, Tape::default()).unwrap_err().to_string();
    assert!(error.contains("of cluster"), "{error}");
}
