//! One process a directory.

use std::{fs::File, fs::TryLockError, path::Path};

use crate::{
    StorageError,
    disk::{Disk, Guard},
};

const FILE_NAME: &str = "LOCK";

/// Holds a directory for as long as it lives. The kernel lets go of the lock when the process ends, however it
/// ends, so that a left-over lock file means nothing.
#[derive(Debug)]
pub(crate) struct DirLock {
    _guard: Box<dyn Guard>,
}

impl DirLock {
    /// Takes the lock on `dir`, or says that somebody else has it.
    pub(crate) fn take(disk: &dyn Disk, dir: &Path) -> Result<DirLock, StorageError> {
        let path = dir.join(FILE_NAME);
        match disk.lock(&path) {
            Ok(Some(guard)) => Ok(DirLock { _guard: guard }),
            Ok(None) => Err(StorageError::Locked { dir: dir.to_owned(), lock: path }),
            Err(error) => Err(StorageError::io("lock", &path, error)),
        }
    }

    /// Whether somebody holds the lock on `dir`. For tools that only read.
    pub(crate) fn is_taken(dir: &Path) -> bool {
        File::open(dir.join(FILE_NAME))
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}
