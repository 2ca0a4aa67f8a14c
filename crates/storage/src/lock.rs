//! One process a directory.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use crate::StorageError;

const FILE_NAME: &str = "LOCK";

/// Holds a directory for as long as it lives. The kernel lets go of the lock when the process ends, however it
/// ends, so that a left-over lock file means nothing.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock on `dir`, or says that somebody else has it.
    pub(crate) fn take(dir: &Path) -> Result<DirLock, StorageError> {
        let path = dir.join(FILE_NAME);
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| StorageError::io("open", &path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(DirLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StorageError::Locked { dir: dir.to_owned(), lock: path }),
            Err(TryLockError::Error(error)) => Err(StorageError::io("lock", &path, error)),
        }
    }

    /// Whether somebody holds the lock on `dir`. For tools that only read.
    pub(crate) fn is_taken(dir: &Path) -> bool {
        File::open(dir.join(FILE_NAME))
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}
