//! What can go wrong with files, said so that an operator knows what to do.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use synod_wire::{Format, Slot, VersionError, Written};

/// Why storage refused or failed. Cloneable, since a failed log answers every later call with its first error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// An operation on a file failed. A log whose write or fsync failed stays failed: the kernel may have
    /// dropped the data and marked it clean, so a second fsync that succeeds would prove nothing.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// What was tried: "write to", "make durable", ...
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
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
        /// What was tried.
        doing: &'static str,
        /// With which file.
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
    /// A data directory was to take the place of another one, and the process ended in between.
    #[error(
        "{0} holds no data, and {1} beside it was about to take its place when that was interrupted; finish it: \
         'mv {1} {0}' (remove {0} first if it is there and empty), or remove {1} if it is not what should be here",
        dir.display(), made.display()
    )]
    Unfinished {
        /// Where the data should be.
        dir: PathBuf,
        /// Where they are.
        made: PathBuf,
    },
    /// The files belong to another cluster or another replica.
    #[error("{} belongs to {found}, not to {expected}; check the data directory and the configuration", path.display())]
    OtherIdentity {
        /// The file that says so.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        expected: String,
    },
    /// A file of a version that this program cannot read. It is left as it is.
    #[error("{} cannot be read: {error}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Which versions would do.
        error: VersionError,
    },
    /// A file does not hold what it should.
    #[error("{} is malformed: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The log was found damaged and nobody has decided yet what to do about it.
    #[error(
        "the log in {} is damaged ({reason}) and takes no records until the damaged files are set aside",
        dir.display()
    )]
    Damaged {
        /// The log's directory.
        dir: PathBuf,
        /// What the damage is.
        reason: String,
    },
    /// An option has a value that cannot work.
    #[error("{option} is {value}, but must be {accepted}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// What is accepted.
        accepted: String,
    },
    /// There is no snapshot for this slot (any more).
    #[error("{} holds no snapshot of slot {slot}", dir.display())]
    NoSnapshot {
        /// Where it was looked for.
        dir: PathBuf,
        /// Which.
        slot: Slot,
    },
    /// A snapshot does not have the checksum, the cluster or the slot that it should.
    #[error("snapshot {} can not be used: {reason}", path.display())]
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

    /// What went wrong with an operation on `path`, told apart by whether the disk is full.
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> StorageError {
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            let dir = path.parent().unwrap_or(path).to_owned();
            return StorageError::Full { dir, doing, path: path.to_owned() };
        }
        StorageError::Io { doing, path: path.to_owned(), source: Arc::new(source) }
    }

    /// Whether it is a file that does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, StorageError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
