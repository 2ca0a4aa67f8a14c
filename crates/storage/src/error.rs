//! Errors of files, with messages that tell an operator what to do.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use synod_wire::{Format, Slot, VersionError, Written};

/// Why storage refused or failed. It can be cloned, since a failed log answers every later call with its first error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// An operation on a file failed. A log whose write or fsync failed stays failed: the kernel may have
    /// dropped the data and marked it clean, so the success of a second fsync would prove nothing.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// The operation: "write to", "make durable", and so on.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The disk or the quota is used up.
    #[error(
        "no space left for {}: could not {doing} {}; make room on this file system and start the replica again \
         (everything it acknowledged is safe)",
        dir.display(),
        path.display()
    )]
    Full {
        /// The directory that needs room.
        dir: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Another process, or another open handle of this one, uses the directory.
    #[error("{} is in use by another process (it holds the lock on {})", dir.display(), lock.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The locked file.
        lock: PathBuf,
    },
    /// The log is to be in another directory than it is.
    #[error(
        "the log of this replica is in {at}, and is to be in {wanted}; start it with the log where it is, or stop it, move \
         {at} to {wanted}, and remove the link to it in the data directory if there is one",
        at = at.display(), wanted = wanted.display()
    )]
    LogElsewhere {
        /// Where it is to be.
        wanted: PathBuf,
        /// Where it is.
        at: PathBuf,
    },
    /// A directory that is to have a log has something else in it.
    #[error(
        "{} has something else in it than the log of a replica; name an empty folder for the log, which is not in the data \
         directory",
        dir.display()
    )]
    NoLogDir {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory of a log apart is not there.
    #[error(
        "the log of this replica is in {dir}, which is not there: mount its file system if that is what is missing; if the \
         log is lost for good, make the directory: the replica starts without memory then, and learns from the others",
        dir = dir.display()
    )]
    LogAway {
        /// The directory.
        dir: PathBuf,
    },
    /// A directory that is to have a log could not be set aside.
    #[error(
        "a file system is mounted at {dir}, so the log could not be renamed there; name a folder below for it, such as \
         {dir}/log",
        dir = dir.display()
    )]
    LogMount {
        /// The directory.
        dir: PathBuf,
    },
    /// The process that was replacing the data directory ended half-way.
    #[error(
        "{0} holds no data, and {1} beside it was about to take its place when that was interrupted; finish it: \
         'mv {1} {0}' (remove {0} first if it is there and empty), or remove {1} if it is not what should be here; if a \
         restore was interrupted, remove {1} and restore again",
        dir.display(), made.display()
    )]
    Unfinished {
        /// The data directory, which is missing.
        dir: PathBuf,
        /// The new data directory, which is complete.
        made: PathBuf,
    },
    /// The files belong to another cluster or another replica.
    #[error("{} belongs to {found}, not to {expected}; check the data directory and the configuration", path.display())]
    OtherIdentity {
        /// The file that names its owner.
        path: PathBuf,
        /// The owner of the file.
        found: String,
        /// The expected owner.
        expected: String,
    },
    /// The directory has etcd's data, which this program cannot read.
    #[error(
        "{} has the data of an etcd (member/snap/db), which synod does not read: it would begin an empty store beside \
         them. Where that etcd does not run any more, restore its data into another directory: `synod snapshot restore \
         {}/member/snap/db --skip-hash-check`, with the flags of this replica",
        path.display(), path.display()
    )]
    OfEtcd {
        /// The directory.
        path: PathBuf,
    },
    /// The files are of other groups.
    #[error("{} is of the groups {found}, and {expected} are asked for; a cluster's groups stay as they were", path.display())]
    Groups {
        /// The file that says so.
        path: PathBuf,
        /// Those that share the log.
        found: synod_wire::Groups,
        /// Those that should.
        expected: synod_wire::Groups,
    },
    /// The file has a version that this program cannot read. The file is left as it is.
    #[error("{} cannot be read: {error}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The file's version, and those that this program reads.
        error: VersionError,
    },
    /// A file's contents are not valid. What a replica promised may be written there, so it does not go on without.
    #[error(
        "{} is malformed: {reason}. If that is no replica's, correct the data directory; if it is, the replica cannot vouch for \
         what it promised: replace it (`synod member replace`), or, if it was the only one, restore a backup",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A directory that is to be inspected has no log.
    #[error("{} has no log that says whose it is; give the data directory of a replica, or the folder wal in it", dir.display())]
    NoLog {
        /// The directory.
        dir: PathBuf,
    },
    /// The log is damaged, and its damaged files have not been set aside yet.
    #[error(
        "the log in {} is damaged ({reason}) and takes no records until the damaged files are set aside",
        dir.display()
    )]
    Damaged {
        /// The log's directory.
        dir: PathBuf,
        /// The damage.
        reason: String,
    },
    /// An option has a value that cannot work.
    #[error("{option} is {value}, but must be {accepted}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The accepted values.
        accepted: String,
    },
    /// There is no snapshot for this slot, or no longer.
    #[error("{} holds no snapshot of slot {slot}", dir.display())]
    NoSnapshot {
        /// The directory of the snapshots.
        dir: PathBuf,
        /// The slot.
        slot: Slot,
    },
    /// A snapshot has another checksum, cluster or slot than it should.
    #[error("snapshot {} cannot be used: {reason}", path.display())]
    SnapshotRejected {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl StorageError {
    /// Refuses a file that this program cannot read.
    pub(crate) fn unless_readable(path: &Path, format: &Format, found: Written) -> Result<(), StorageError> {
        format.check(found).map_err(|error| StorageError::Version { path: path.to_owned(), error })
    }

    /// The error of an operation on `path`. A full disk has a variant of its own.
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> StorageError {
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            let dir = path.parent().unwrap_or(path).to_owned();
            return StorageError::Full { dir, doing, path: path.to_owned() };
        }
        StorageError::Io { doing, path: path.to_owned(), source: Arc::new(source) }
    }

    /// Whether the file does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, StorageError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
