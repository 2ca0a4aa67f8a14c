//! A new cluster from a backup: the data directory of each of its members, which all begin with the same state.
//!
//! Why that is right:
//!
//! - **The state is what slot 1 did.** Nobody orders that slot: every member has a snapshot through it, and the group
//!   begins with slot 2 and an empty log. A replica that joins later, or whose snapshot is damaged, finds no log from
//!   slot 1 on at the others, so it gets a snapshot, as it does where a log was trimmed.
//! - **All members have the same state**, since replicas of different clusters refuse each other, and the cluster's id
//!   is one that only this backup begins. The program makes it from the hash of the backup and from all that must be
//!   the same at the members; a program with a state machine of its own has to do the same.
//! - **A member votes once it has met all others**, as where a group begins with nothing: one that lost its directory
//!   before cannot form a majority with one that was never started.
//! - **Nothing of the old cluster counts**: neither its log, nor its members, nor the sessions of its clients.
//! - **A directory is made beside its place**, and gets its name when it is whole.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use synod_replica::{Executor, StateMachine};
use synod_storage::{DataDir, SnapshotStore, StorageError, the_disk};
use synod_wire::{GroupId, Groups};

use crate::{Config, ConfigError, Merging, Origin};

/// Why no data directory was made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A member could not be started so.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is something where the data directory is to be.
    #[error("{} is not empty; give another folder, or move away what is in it", .0.display())]
    NotEmpty(PathBuf),
    /// The directory cannot get its name, since another file system begins there.
    #[error(
        "a file system is mounted at {dir}, so no directory can be put there; restore into a folder below, such as \
         {dir}/data, and serve from there",
        dir = .0.display()
    )]
    MountPoint(PathBuf),
    /// Something has the name under which the directory is made.
    #[error(
        "{} exists already: a restore was interrupted, or one runs; move it away, and what is in the folder of the log if that \
         is another one",
        .0.display()
    )]
    InTheWay(PathBuf),
    /// The folder that is to have the log is not empty.
    #[error(
        "{} is to have the log and is not empty; name an empty folder, or move away what is in it, such as what a restore \
         left that was killed",
        .0.display()
    )]
    LogNotEmpty(PathBuf),
    /// A file or a directory cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
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

/// How far the numbers of a new cluster's sessions begin from 1, in bits.
const SESSION_BITS: u32 = 40;

/// Makes the data directory of the member `config.me` of a new cluster of `config.members`, which begins with the state
/// that `machine` has. The directory does not exist yet, or is empty. Every member is made so, on its machine, from the
/// same state, and then started with the same configuration. Blocks for the disk.
///
/// `config.cluster` must be the id of no other cluster: not that of the cluster from which the state is, and not one
/// that is begun with another state.
///
/// # Errors
/// See [`RestoreError`]; no directory is left then.
pub fn from_backup<S: StateMachine>(config: &Config, machine: S) -> Result<(), RestoreError> {
    config.check()?;
    let path = free_place(&config.data_dir)?;
    let log_dir = match &config.log_dir {
        Some(log_dir) => DataDir::log_apart(&path, log_dir)?,
        None => None,
    };
    let mut making = Making::begin(&path, log_dir)?;
    write(config, &making, machine)?;
    let placed = DataDir::place(&path);
    // Also where it has its name, and only that could not be made durable.
    making.is_finished = placed.is_ok() || !making.made.exists();
    Ok(placed?)
}

/// The directories that a restore makes. They are removed unless it is finished.
struct Making {
    made: PathBuf,
    log_dir: Option<PathBuf>,
    /// The log's directory was there before, and empty.
    had_log_dir: bool,
    is_finished: bool,
}

impl Making {
    fn begin(path: &Path, log_dir: Option<PathBuf>) -> Result<Making, RestoreError> {
        let had_log_dir = match &log_dir {
            Some(log_dir) => is_empty(log_dir).map_err(|error| match error {
                RestoreError::NotEmpty(dir) => RestoreError::LogNotEmpty(dir),
                other => other,
            })?,
            None => false,
        };
        let made = DataDir::replacement(path);
        if let Some(parent) = made.parent() {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
        }
        // Of two restores at a time one makes it.
        match fs::DirBuilder::new().mode(0o700).create(&made) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(RestoreError::InTheWay(made)),
            Err(error) => Err(failed("make", &made)(error)),
            Ok(()) => Ok(Making { made, log_dir, had_log_dir, is_finished: false }),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // What fails here has failed before.
        let _ = fs::remove_dir_all(&self.made);
        let Some(log_dir) = &self.log_dir else { return };
        if !self.had_log_dir {
            let _ = fs::remove_dir_all(log_dir);
        }
        for left in fs::read_dir(log_dir).into_iter().flatten().flatten() {
            let _ = fs::remove_file(left.path());
        }
    }
}

/// Whether there is a directory, in which there must be nothing.
fn is_empty(path: &Path) -> Result<bool, RestoreError> {
    match fs::read_dir(path) {
        Ok(mut found) => match found.next() {
            None => Ok(true),
            Some(_) => Err(RestoreError::NotEmpty(path.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    let path = path.to_owned();
    move |error| RestoreError::Io { doing, path, error }
}

/// Where a data directory is to be, whatever way leads there.
fn free_place(path: &Path) -> Result<PathBuf, RestoreError> {
    if !is_empty(path)? {
        return Ok(path.to_owned());
    }
    let path = fs::canonicalize(path).map_err(failed("find", path))?;
    if DataDir::is_mount_point(&path) { Err(RestoreError::MountPoint(path)) } else { Ok(path) }
}

/// Makes the data directory at `made`.
fn write<S: StateMachine>(config: &Config, making: &Making, machine: S) -> Result<(), RestoreError> {
    let Making { made, log_dir, .. } = making;
    let groups = match config.merging {
        Some(Merging { groups, take, .. }) => Groups { count: groups, merged: Some(take) },
        None => Groups::ONE,
    };
    let origin = |group: GroupId| {
        let origin = config.origin(group, groups)?;
        let first = if group == GroupId::FIRST { origin.first.after_backup() } else { origin.first };
        Ok::<_, ConfigError>(Origin::new(config.cluster, first))
    };
    let origins = (0..groups.count).map(|group| origin(GroupId(group))).collect::<Result<Vec<_>, _>>()?;
    let mut executor = match groups.merged {
        Some(take) => Executor::merged(machine, origins.iter().map(|origin| origin.first.clone()), take),
        None => Executor::new(machine, origins[0].first.clone()),
    };
    executor.begin_with_backup(config.cluster.0 >> (u64::BITS - SESSION_BITS));
    let Config { cluster, me, name, durability, .. } = config;
    if let Some(log_dir) = log_dir {
        DataDir::link_log(made, log_dir)?;
    }
    let dir = DataDir::open_for_groups(the_disk(), made, *cluster, *me, name, *durability, groups)?;
    let store = SnapshotStore::open(&dir.snapshots_of(GroupId::FIRST), *cluster)?;
    let mut snapshot = store.create(executor.applied())?;
    executor.freeze().write_to(&mut snapshot).map_err(failed("write", made))?;
    snapshot.finish()?;
    // The first group's is written last: with it the directory counts as begun.
    for (group, origin) in (0..groups.count).map(GroupId).zip(&origins).rev() {
        dir.set_origin_of(group, &origin.encode())?;
    }
    Ok(())
}
