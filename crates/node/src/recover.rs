//! A new cluster from the data of one replica, after a quorum was lost for good.
//!
//! What is kept, and why that is right:
//!
//! - **Everything that this replica accepted becomes decided**, as far as nothing else was decided in its place that it
//!   knows of. What it knows to be decided is executed first. Then the present epoch's own protocol is started from
//!   this replica's records as if this replica were the only voter. What the protocol does to become leader, it does
//!   here with itself as the quorum: it takes up each value that was accepted in the highest ballot, fills the holes
//!   between them, and decides. So nothing that the others acknowledged with this replica's vote is lost; what they
//!   acknowledged without it is, which is why the survivor that is furthest should be taken.
//! - **The result is a snapshot of a new epoch** behind all of that, with this replica as the only member, and an empty
//!   log. Nothing of the old log is interpreted twice, and no promise of the old epochs counts in the new one.
//! - **The cluster is another one**, so old members are refused if they come back; they would know slots in which the
//!   new cluster decides something else.
//! - **The replica is another one**: it takes the id that comes next in its group, which nobody had. So it is not bound
//!   by the sequence numbers of earlier lives, and nobody is taken for it.
//! - **All groups of the cluster are recovered at once**, each from its own records and with its own protocol: they
//!   share the log. The survivor gets the same id in each, which nobody had in any.
//! - **The old data directory is kept**, renamed. Until the rename nothing has happened, and at no moment a start finds
//!   an empty place (`DataDir::replace`).

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::BuildHasher,
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use synod_consensus::{Effect, Effects, Input, Members, Record, Restart, Role, election};
use synod_replica::{
    Action, ChangeRequest, Executor, Group, LogRecord, Member, Recovered, Replica, StateMachine,
};
use synod_storage::{Damage, DataDir, SnapshotStore, StorageError, inspect, the_disk};
use synod_wire::{Batch, ClusterId, Epoch, GroupId, Groups, Incarnation, ReplicaId, Slot, Time};

use crate::{Config, Origin, StartError, found};

/// Why no new cluster was made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The data directory cannot be opened as by a start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No other directory can take the place of one at which a file system is mounted.
    #[error(
        "a file system is mounted at {dir}, so no other directory can take its place; stop the replica, move all that is \
         in it to a directory below, such as {dir}/data, run this with --data-dir {dir}/data, and serve from there",
        dir = .0.display()
    )]
    MountPoint(PathBuf),
    /// Which batch of a group comes next could depend on a group of which the survivor lacks something.
    #[error("no new cluster can be made of one replica of groups that are merged into one order")]
    Merged,
    /// The name that the old data directory would get is taken.
    #[error("{} exists already; move it away", .0.display())]
    InTheWay(PathBuf),
    /// The directory does not hold all that its replica knew.
    #[error("{}: {}{lacks}; take another survivor, or a backup", data_dir.display(), named(*group))]
    Incomplete {
        /// The directory.
        data_dir: PathBuf,
        /// The group of which it lacks something, if there are several.
        group: Option<GroupId>,
        /// What it lacks.
        lacks: Incomplete,
    },
    /// A file or a directory cannot be used.
    #[error("cannot {doing} {}: {error}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// What a survivor's data directory lacks, so that it cannot begin a new cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Incomplete {
    /// Files of the log are damaged.
    #[error("the log is damaged ({0})")]
    Damage(Damage),
    /// The log begins after a snapshot that is not there.
    #[error("a snapshot through slot {0} is missing")]
    Snapshot(Slot),
    /// The replica knew of an epoch that begins after all that it holds.
    #[error("epoch {epoch} began with slot {first}, and it ends at {decided}")]
    Epoch {
        /// The epoch.
        epoch: Epoch,
        /// Its first slot.
        first: Slot,
        /// The last slot that the replica knows to be decided.
        decided: Slot,
    },
    /// The protocol does not decide what the replica accepted.
    #[error("the protocol does not decide what was accepted")]
    Undecided,
    /// A change of the group was decided that this program does not know.
    #[error(
        "a change was decided in slot {0} that this release does not know: take the release that it takes"
    )]
    UnknownChange(Slot),
    /// The replica has not executed anything.
    #[error("there is nothing in it")]
    Empty,
}

impl From<StorageError> for RecoverError {
    fn from(error: StorageError) -> RecoverError {
        RecoverError::Start(error.into())
    }
}

/// More than the protocol needs by far to decide what it has, one message or timer a step.
const STEPS_MAX: u32 = 10_000_000;

/// What is about to happen, for a person to agree to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The cluster that is given up.
    pub old_cluster: ClusterId,
    /// The one that takes its place.
    pub new_cluster: ClusterId,
    /// The survivor.
    pub me: ReplicaId,
    /// What becomes of each group of the cluster, by its number; the first one decides on the members.
    pub groups: Vec<PlannedGroup>,
    /// Where the old data directory goes.
    pub aside: PathBuf,
    /// What else an operator should know before he agrees, one sentence each.
    pub warnings: Vec<String>,
}

/// What is kept of a group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedGroup {
    /// The group as the survivor knows it.
    pub old: Group,
    /// The group with which the new cluster begins.
    pub new: Group,
    /// The survivor knew slots through this one to be decided.
    pub decided: Slot,
    /// Slots through this one are kept.
    pub kept: Slot,
}

/// Makes a new cluster from the data directory of a replica that does not run, if `agree` says so about the plan;
/// returns the plan if it was carried out. `config` is that of the replica; cluster and id must be those in the
/// directory, and there must be a state machine for each of its groups. Blocks for the disk.
///
/// # Errors
/// The directory is in use, cannot be read or written, or does not hold all that its replica knew.
pub fn force_new_cluster<S: StateMachine>(
    config: &Config,
    machines: Vec<S>,
    agree: impl FnOnce(&Plan) -> bool,
) -> Result<Option<Plan>, RecoverError> {
    // It gets another name beside this one, whatever way led to it.
    let data_dir = fs::canonicalize(&config.data_dir);
    let data_dir = data_dir.map_err(failed("find", &config.data_dir))?;
    if DataDir::is_mount_point(&data_dir) {
        return Err(RecoverError::MountPoint(data_dir));
    }
    let config = &Config { data_dir, ..config.clone() };
    let incomplete = |group, lacks| {
        let data_dir = config.data_dir.clone();
        RecoverError::Incomplete { data_dir, group, lacks }
    };
    // Before anything is opened: a start would set a damaged log aside.
    let report = inspect::verify(&config.data_dir)?;
    if let Some(damage) = &report.damage {
        return Err(incomplete(None, Incomplete::Damage(damage.clone())));
    }
    if config.merging.is_some() {
        return Err(RecoverError::Merged);
    }
    let mut warnings = Vec::new();
    if let Some(loss) = &report.loss {
        warnings.push(format!("this replica's log is not whole ({loss}): what it forgot is lost"));
    }
    let found::Found { data_dir, wal, groups, executors, .. } = found::open(config, machines, true)?;
    // Nothing will be written to it.
    drop(wal);
    let log = config.data_dir.join("wal");
    if data_dir.wal() != log {
        warnings.push(format!(
            "the new log is in {}, and the old one stays in {}: start the replica without naming a folder for its log, or \
             move the new one to an empty folder first and name that",
            log.display(),
            data_dir.wal().display()
        ));
    }
    let count = groups.len();
    let mut survived = Vec::new();
    for (found, executor) in groups.into_iter().zip(executors) {
        let number = Some(found.group).filter(|_| count > 1);
        let group = survive(config, found, executor, |warning| warnings.push(named(number) + &warning));
        survived.push(group.map_err(|lacks| incomplete(number, lacks))?);
    }
    if survived.iter().all(|group| group.executor.applied() == Slot::ZERO) {
        return Err(incomplete(None, Incomplete::Empty));
    }

    let new_cluster = ClusterId(RandomState::new().hash_one((config.cluster.0, SystemTime::now())).max(1));
    let aside = aside(config);
    let plan = Plan {
        old_cluster: config.cluster,
        new_cluster,
        me: config.me,
        groups: planned(config, &survived),
        aside: aside.clone(),
        warnings,
    };
    let unfinished = is_unfinished(config, &aside);
    if aside.exists() && !unfinished {
        return Err(RecoverError::InTheWay(aside));
    }
    if !agree(&plan) {
        return Ok(None);
    }
    let made = DataDir::replacement(&config.data_dir);
    for left in [Some(&made), unfinished.then_some(&aside)].into_iter().flatten().filter(|left| left.exists())
    {
        // An earlier attempt was interrupted before it changed anything.
        fs::remove_dir_all(left).map_err(failed("remove", left))?;
    }
    write_new(config, &plan, &made, survived)?;
    drop(data_dir);
    DataDir::replace(&config.data_dir, &aside)?;
    Ok(Some(plan))
}

/// What is left of a group: all that the survivor accepted is executed.
struct Survived<S> {
    executor: Executor<S>,
    /// The survivor knew slots through this one to be decided.
    decided: Slot,
}

/// Decides and executes all that the survivor accepted of a group.
fn survive<S: StateMachine>(
    config: &Config,
    found: found::FoundGroup,
    mut executor: Executor<S>,
    mut warn: impl FnMut(String),
) -> Result<Survived<S>, Incomplete> {
    let found::FoundGroup { origin, recovered, .. } = found;
    // Of a group that began with a backup, or was recovered before, the log does not hold what it began with.
    let began = origin.first.first.prev();
    let records = recovered.records.clone();
    let (incarnation, birth) = (recovered.incarnation, recovered.birth);
    execute_decided(config, origin, recovered, &mut executor)?;
    if executor.group().birth_of(config.me).is_some_and(|named| named != birth) {
        warn("its vote belonged to another data directory, which may hold more".to_owned());
    }
    let decided = executor.applied();
    if decided < began {
        return Err(Incomplete::Snapshot(began));
    }
    let holds_more = |record: &LogRecord| match record {
        LogRecord::Decided { epoch, slot, .. } => *slot > decided && *epoch >= executor.group().epoch,
        _ => false,
    };
    if records.iter().any(holds_more) {
        let missing = decided.next();
        warn(format!("slot {missing} is missing in this replica's log: what it holds after that is lost"));
    }
    for record in &records {
        match record {
            LogRecord::Trimmed(slot) if *slot > decided => return Err(Incomplete::Snapshot(*slot)),
            LogRecord::Entered { group, .. } if group.epoch > executor.group().epoch => {
                let (epoch, first) = (group.epoch, group.first);
                return Err(Incomplete::Epoch { epoch, first, decided });
            }
            _ => {}
        }
    }
    let group = executor.group();
    let (counts, takes_part) = (group.counts(config.me), group.voting(config.me).is_some());
    if group.is_away(config.me) {
        warn(format!(
            "this replica takes no part in the group, and what it holds of it ends at slot {decided}: what the group decided \
             after that is lost, unless another replica is recovered"
        ));
    } else if !counts {
        warn("this replica did not vote, as far as it knows: it has what others told it".to_owned());
    }
    // A learner may have been promoted, and have voted, without having heard that this is decided.
    let accepted =
        if takes_part { decide_accepted(config, records, incarnation, &mut executor) } else { Ok(()) };
    if let Err(lacks) = accepted
        && counts
    {
        return Err(lacks);
    }
    Ok(Survived { executor, decided })
}

/// The beginning of what is said of one of several groups.
fn named(group: Option<GroupId>) -> String {
    group.map_or_else(String::new, |group| format!("group {}: ", group.0))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecoverError {
    let path = path.to_owned();
    move |error| RecoverError::Io { doing, path, error }
}

/// Where the old data directory is kept.
fn aside(config: &Config) -> PathBuf {
    let mut name = config.data_dir.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(format!(".old-{}", config.cluster));
    config.data_dir.with_file_name(name)
}

/// Whether what has the name of the old data directory is the new one of an attempt that was interrupted: it is of
/// another cluster.
fn is_unfinished(config: &Config, aside: &Path) -> bool {
    DataDir::read(aside)
        .is_ok_and(|found| found.is_some_and(|marker| marker.identity.cluster != config.cluster))
}

/// Executes what the replica knows to be decided, as a start would.
fn execute_decided<S: StateMachine>(
    config: &Config,
    origin: Origin,
    recovered: Recovered,
    executor: &mut Executor<S>,
) -> Result<(), Incomplete> {
    let mut actions = Vec::new();
    let (settings, start) = (config.settings.clone(), beginning());
    drop(Replica::start(settings, config.me, origin.first, recovered, start, &mut actions));
    for action in actions {
        match action {
            Action::Execute { slot, ballots, batch, .. } => {
                executor.execute(slot, ballots, &batch, |_| false);
            }
            Action::UnknownChange { slot } => return Err(Incomplete::UnknownChange(slot)),
            _ => {}
        }
    }
    Ok(())
}

/// Not zero, so that the past can be spoken of.
fn beginning() -> Time {
    Time::ZERO + Duration::from_secs(3600)
}

/// Lets the present epoch's protocol decide what this replica accepted, with this replica as its only voter.
fn decide_accepted<S: StateMachine>(
    config: &Config,
    records: Vec<LogRecord>,
    incarnation: Incarnation,
    executor: &mut Executor<S>,
) -> Result<(), Incomplete> {
    let epoch = executor.group().epoch;
    let options = executor.group().options(&config.settings.consensus);
    let begin = executor.group().first.prev();
    let restart = Restart {
        records: of_epoch(records, epoch).into_iter().map(|record| record.without_voters()).collect(),
        base: executor.applied(),
        base_ballots: executor.ballots(),
        begin,
        decided: executor.applied(),
        amnesia: false,
        incarnation,
        head_start: true,
        delivered: std::sync::Arc::clone(executor.history().delivered()),
        memory: election::Memory::default(),
        is_over: false,
    };
    let mut now = beginning();
    let mut effects = Effects::new(synod_wire::Lsn::ZERO);
    let mut protocol = options.start(Members::new([config.me], config.me), restart, now, &mut effects);
    let (mut deadline, mut proposed) = (Time::NEVER, false);
    for _ in 0..STEPS_MAX {
        protocol.flush(now, &mut effects);
        let mut durable = None;
        let mut quiet = true;
        for effect in effects.drain() {
            quiet = false;
            match effect {
                Effect::Append { lsn, .. } => durable = Some(lsn),
                Effect::Deadline(at) => deadline = at,
                Effect::Deliver { slot, ballots, batch } => {
                    // What an epoch decides after a change that ends it is void.
                    if executor.group().epoch == epoch && slot > executor.applied() {
                        if ChangeRequest::is_unknown(&batch) {
                            return Err(Incomplete::UnknownChange(slot));
                        }
                        executor.execute(slot, ballots, &batch, |_| false);
                    }
                }
                Effect::Send { .. }
                | Effect::Leader(_)
                | Effect::ReadIndex { .. }
                | Effect::TwoProposals { .. }
                | Effect::Lacks { .. }
                | Effect::ChangeRefused(_) => {}
            }
        }
        if executor.group().epoch != epoch {
            return Ok(());
        }
        let status = protocol.status();
        let leads = status.role == Role::Leader;
        if let Some(lsn) = durable {
            protocol.step(now, Input::Durable(lsn), &mut effects);
        } else if leads && !proposed && protocol.room() > 0 {
            // After everything else: once it is decided, all of that is.
            proposed = true;
            protocol.step(now, Input::Propose { batch: Batch::noop(), awaited: true }, &mut effects);
        } else if leads && proposed && quiet && status.in_flight == 0 {
            return Ok(());
        } else if quiet {
            if deadline == Time::NEVER {
                break;
            }
            now = now.max(deadline);
            deadline = Time::NEVER;
            protocol.step(now, Input::Timer, &mut effects);
        }
    }
    Err(Incomplete::Undecided)
}

fn of_epoch(records: Vec<LogRecord>, wanted: Epoch) -> Vec<Record> {
    let of_epoch = |record| match record {
        LogRecord::Protocol { epoch, record } if epoch == wanted => Some(record),
        _ => None,
    };
    records.into_iter().filter_map(of_epoch).collect()
}

/// What becomes of the groups. In each the survivor is alone, under an id that nobody had in any of them.
fn planned<S: StateMachine>(config: &Config, survived: &[Survived<S>]) -> Vec<PlannedGroup> {
    let first = survived[0].executor.group();
    let ids = survived.iter().map(|group| group.executor.group().next_id);
    let id = ids.max().expect("a replica has a group");
    // What it accepted may have removed it, from the first group before the others.
    let known = survived.iter().flat_map(|group| group.executor.group().known());
    let mut this = known.filter(|member| member.id == config.me);
    let mut info = this.next().map(|member| member.info.clone()).unwrap_or_default();
    info.name.clone_from(&config.name);
    let member = Member::voter(id, info);
    // All groups agree on the members, as in the first group's version.
    let version = first.version + 1;
    let planned = survived.iter().map(|Survived { executor, decided }| {
        let (old, kept) = (executor.group().clone(), executor.applied());
        let mut new = old.clone();
        (new.version, new.epoch, new.first) = (old.version + 1, Epoch(old.epoch.0 + 1), kept.next());
        (new.members, new.next_id) = (vec![member.clone()], ReplicaId(id.0 + 1));
        (new.former, new.outgoing) = (Vec::new(), Vec::new());
        // The only member votes in every group.
        new.placement = None;
        new.membership = old.membership.in_version(version);
        PlannedGroup { old, new, decided: *decided, kept }
    });
    planned.collect()
}

/// Makes the data directory of the new cluster's only replica.
fn write_new<S: StateMachine>(
    config: &Config,
    plan: &Plan,
    path: &Path,
    survived: Vec<Survived<S>>,
) -> Result<(), RecoverError> {
    let me = plan.groups[0].new.members[0].id;
    let count = u16::try_from(survived.len()).expect("at most GROUPS_MAX");
    let (cluster, durability) = (plan.new_cluster, config.durability);
    let dir = DataDir::open_for_groups(
        the_disk(),
        path,
        cluster,
        me,
        &config.name,
        durability,
        Groups::shards(count),
    )?;
    // The first group's origin is written last: with it the directory counts as begun.
    for (number, Survived { mut executor, .. }) in (0..count).zip(survived).rev() {
        let (group, planned) = (GroupId(number), &plan.groups[usize::from(number)]);
        let mut new = planned.new.clone();
        // Its vote belongs to the directory that is made here.
        new.members[0].birth = Some(dir.identity().birth);
        dir.set_origin_of(group, &Origin::new(cluster, new.clone()).encode())?;
        if planned.kept == Slot::ZERO {
            // It begins with the first slot, as any group does.
            continue;
        }
        executor.begin_again(new);
        let store = SnapshotStore::open(&dir.snapshots_of(group), cluster)?;
        let mut snapshot = store.create(executor.applied())?;
        executor.freeze().write_to(&mut snapshot).map_err(failed("write", path))?;
        snapshot.finish().map_err(RecoverError::from)?;
    }
    Ok(())
}
