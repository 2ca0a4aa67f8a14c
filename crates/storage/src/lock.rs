//! Locks a directory for one process.

use std::{fs::File, fs::TryLockError, path::Path};

use crate::{
    StorageError,
    disk::{Disk, Guard},
};

const FILE_NAME: &str = "LOCK";

/// Holds a directory until it is dropped. The kernel releases the lock when the process ends, in whatever
/// way, so a left-over lock file means nothing.
#[derive(Debug)]
pub(crate) struct DirLock {
    _guard: Box<dyn Guard>,
}

impl DirLock {
    /// Takes the lock on `dir`, or reports that another process has it.
    pub(crate) fn take(disk: &dyn Disk, dir: &Path) -> Result<DirLock, StorageError> {
        let path = dir.join(FILE_NAME);
        match disk.lock(&path) {
            Ok(Some(guard)) => Ok(DirLock { _guard: guard }),
            Ok(None) => Err(StorageError::Locked { dir: dir.to_owned(), lock: path }),
            Err(error) => Err(StorageError::io("lock", &path, error)),
        }
    }

    /// Whether a process holds the lock on `dir`. For tools that only read.
    pub(crate) fn is_taken(dir: &Path) -> bool {
        File::open(dir.join(FILE_NAME))
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}
