//! A new cluster from a backup: the data directory of each of its members, which all begin with the same state.
//!
//! Why that is right:
//!
//! - **The state is what slot 1 did.** Nobody orders that slot: every member has a snapshot through it, and the group
//!   begins with slot 2 and an empty log. A replica that joins later, or whose snapshot is damaged, finds no log from
//!   slot 1 on at the others, so it gets a snapshot, as it does where a log was trimmed.
//! - **All members have the same state**, since replicas of different clusters refuse each other, and the cluster's id
//!   is one that only this backup begins. The program makes it from the hash of the backup and from all that must be the
//!   same at the members; a program with a state machine of its own has to do the same.
//! - **A member votes once it has met all others**, as where a group begins with nothing: one that lost its directory
//!   before cannot form a majority with one that was never started.
//! - **Nothing of the old cluster counts**: neither its log, nor its members, nor the sessions of its clients.
//! - **A directory is made beside its place**, and gets its name when it is whole.

use std::{
    fs, io,
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
    #[error("{} exists already: a restore was interrupted, or one runs; move it away", .0.display())]
    InTheWay(PathBuf),
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
    let made = DataDir::replacement(&config.data_dir);
    check_place(&config.data_dir, &made)?;
    if let Some(log_dir) = &config.log_dir {
        check_empty(log_dir)?;
    }
    let finished = write(config, &made, machine)
        .and_then(|()| DataDir::place(&config.data_dir).map_err(RestoreError::from));
    if finished.is_err() {
        // What fails here has failed before.
        for made in [Some(&made), config.log_dir.as_ref()].into_iter().flatten() {
            let _ = fs::remove_dir_all(made);
        }
    }
    finished
}

/// Whether there is nothing in a directory, or no such directory. Returns whether there is one.
fn check_empty(path: &Path) -> Result<bool, RestoreError> {
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

/// Whether there is room for a data directory.
fn check_place(path: &Path, made: &Path) -> Result<(), RestoreError> {
    if check_empty(path)? {
        let whole = fs::canonicalize(path).map_err(failed("find", path))?;
        if DataDir::is_mount_point(&whole) {
            return Err(RestoreError::MountPoint(whole));
        }
    }
    if made.exists() {
        return Err(RestoreError::InTheWay(made.to_owned()));
    }
    Ok(())
}

/// Makes the data directory at `made`.
fn write<S: StateMachine>(config: &Config, made: &Path, machine: S) -> Result<(), RestoreError> {
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
    if let Some(log_dir) = &config.log_dir {
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
