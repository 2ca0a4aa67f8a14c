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

use synod_consensus::{Effect, Effects, Input, Members, Record, Restart, Role};
use synod_replica::{Action, Executor, Group, LogRecord, Member, Recovered, Replica, Standing, StateMachine};
use synod_storage::{Damage, DataDir, SnapshotStore, StorageError, inspect};
use synod_wire::{Batch, ClusterId, Epoch, Incarnation, ReplicaId, Slot, Time};

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
    /// The name that the old data directory would get is taken.
    #[error("{} exists already; move it away", .0.display())]
    InTheWay(PathBuf),
    /// The directory does not hold all that its replica knew.
    #[error("{}: {lacks}; take another survivor, or a backup", data_dir.display())]
    Incomplete {
        /// The directory.
        data_dir: PathBuf,
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
pub struct Plan {
    /// The cluster that is given up.
    pub old_cluster: ClusterId,
    /// The one that takes its place.
    pub new_cluster: ClusterId,
    /// The group as the survivor knows it.
    pub old: Group,
    /// The group with which the new cluster begins.
    pub new: Group,
    /// The survivor.
    pub me: ReplicaId,
    /// It knew slots through this one to be decided.
    pub decided: Slot,
    /// Slots through this one are kept.
    pub kept: Slot,
    /// Where the old data directory goes.
    pub aside: PathBuf,
    /// What else an operator should know before he agrees, one sentence each.
    pub warnings: Vec<String>,
}

/// Makes a new cluster from the data directory of a replica that does not run, if `agree` says so about the plan;
/// returns the plan if it was carried out. `config` is that of the replica; cluster and id must be those in the
/// directory. Blocks for the disk.
///
/// # Errors
/// The directory is in use, cannot be read or written, or does not hold all that its replica knew.
pub fn force_new_cluster<S: StateMachine>(
    config: &Config,
    machine: S,
    agree: impl FnOnce(&Plan) -> bool,
) -> Result<Option<Plan>, RecoverError> {
    let incomplete = |lacks| Err(RecoverError::Incomplete { data_dir: config.data_dir.clone(), lacks });
    // It gets another name beside this one, whatever way led to it.
    let data_dir = fs::canonicalize(&config.data_dir);
    let data_dir = data_dir.map_err(failed("find", &config.data_dir))?;
    if DataDir::is_mount_point(&data_dir) {
        return Err(RecoverError::MountPoint(data_dir));
    }
    let config = &Config { data_dir, ..config.clone() };
    // Before anything is opened: a start would set a damaged log aside.
    let report = inspect::verify(&config.data_dir)?;
    if let Some(damage) = &report.damage {
        return incomplete(Incomplete::Damage(damage.clone()));
    }
    let mut warnings = Vec::new();
    if let Some(loss) = &report.loss {
        warnings.push(format!("this replica's log is not whole ({loss}): what it forgot is lost"));
    }
    let found::Found { data_dir, wal, mut groups, .. } = found::open(config, vec![machine], true)?;
    let found::FoundGroup { mut executor, origin, recovered, .. } = groups.remove(0);
    // Nothing will be written to it.
    drop(wal);
    let records = recovered.records.clone();
    let incarnation = recovered.incarnation;
    execute_decided(config, origin, recovered, &mut executor);
    let decided = executor.applied();
    let holds_more = |record: &LogRecord| match record {
        LogRecord::Decided { epoch, slot, .. } => *slot > decided && *epoch >= executor.group().epoch,
        _ => false,
    };
    if records.iter().any(holds_more) {
        let missing = decided.next();
        warnings.push(format!(
            "slot {missing} is missing in this replica's log: what it holds after that is lost"
        ));
    }
    for record in &records {
        match record {
            LogRecord::Trimmed(slot) if *slot > decided => {
                return incomplete(Incomplete::Snapshot(*slot));
            }
            LogRecord::Entered { group, .. } if group.epoch > executor.group().epoch => {
                let (epoch, first) = (group.epoch, group.first);
                return incomplete(Incomplete::Epoch { epoch, first, decided });
            }
            _ => {}
        }
    }
    let group = executor.group();
    let (counts, takes_part) = (group.counts(config.me), group.voting(config.me).is_some());
    if !counts {
        warnings.push("this replica did not vote, as far as it knows: it has what others told it".to_owned());
    }
    // A learner may have been promoted, and have voted, without having heard that this is decided.
    let accepted =
        if takes_part { decide_accepted(config, records, incarnation, &mut executor) } else { Ok(()) };
    if let Err(lacks) = accepted
        && counts
    {
        return incomplete(lacks);
    }
    if executor.applied() == Slot::ZERO {
        return incomplete(Incomplete::Empty);
    }

    let old = executor.group().clone();
    let new = new_group(&old, config, executor.applied());
    let new_cluster = ClusterId(RandomState::new().hash_one((config.cluster.0, SystemTime::now())).max(1));
    let aside = aside(config);
    let plan = Plan {
        old_cluster: config.cluster,
        new_cluster,
        old,
        new: new.clone(),
        me: config.me,
        decided,
        kept: executor.applied(),
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
    executor.begin_anew(new.clone());
    let made = DataDir::replacement(&config.data_dir);
    for left in [Some(&made), unfinished.then_some(&aside)].into_iter().flatten().filter(|left| left.exists())
    {
        // An earlier attempt was interrupted before it changed anything.
        fs::remove_dir_all(left).map_err(failed("remove", left))?;
    }
    write_new(config, &plan, &made, &executor)?;
    drop(data_dir);
    DataDir::replace(&config.data_dir, &aside)?;
    Ok(Some(plan))
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
) {
    let mut actions = Vec::new();
    let (settings, start) = (config.settings.clone(), beginning());
    drop(Replica::start(settings, config.me, origin.first, recovered, start, &mut actions));
    for action in actions {
        if let Action::Execute { slot, ballots, batch, .. } = action {
            executor.execute(slot, ballots, &batch, |_| false);
        }
    }
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
                        executor.execute(slot, ballots, &batch, |_| false);
                    }
                }
                Effect::Send { .. }
                | Effect::Leader(_)
                | Effect::ReadIndex { .. }
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

/// The group with which the new cluster begins: the survivor alone, under an id that nobody had.
fn new_group(old: &Group, config: &Config, last: Slot) -> Group {
    let id = old.next_id;
    // What it accepted may have removed it.
    let mut this = old.known().filter(|member| member.id == config.me);
    let mut info = this.next().map(|member| member.info.clone()).unwrap_or_default();
    info.name.clone_from(&config.name);
    Group {
        version: old.version + 1,
        epoch: Epoch(old.epoch.0 + 1),
        first: last.next(),
        protocol: old.protocol,
        election: old.election,
        overrides: old.overrides.clone(),
        limits: old.limits,
        members: vec![Member { id, info, standing: Standing::Voter, readmitted: Incarnation(0) }],
        former: Vec::new(),
        outgoing: Vec::new(),
        next_id: ReplicaId(id.0 + 1),
        membership: old.membership,
    }
}

/// Makes the data directory of the new cluster's only replica.
fn write_new<S: StateMachine>(
    config: &Config,
    plan: &Plan,
    path: &Path,
    executor: &Executor<S>,
) -> Result<(), RecoverError> {
    let me = plan.new.members[0].id;
    let dir = DataDir::open(path, plan.new_cluster, me, &config.name, config.durability)?;
    dir.set_origin(&Origin::new(plan.new_cluster, plan.new.clone()).encode())?;
    let store = SnapshotStore::open(&dir.snapshots(), plan.new_cluster)?;
    let mut snapshot = store.create(executor.applied())?;
    executor.freeze().write_to(&mut snapshot).map_err(failed("write", path))?;
    snapshot.finish().map(|_| ()).map_err(RecoverError::from)
}
