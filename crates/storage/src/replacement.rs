//! Replaces a data directory by another so that at no moment there is none, since a replica that is started
//! without a data directory begins an empty one.
//!
//! The new directory is made beside the old one, as `DIR.new`. Where the file system can exchange two names
//! atomically, it first gets the name under which the old one is to be kept, and then the two are exchanged. Elsewhere
//! two renames are needed; a start between them finds no `identity` in `DIR`, but one in `DIR.new`, and refuses.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    DataDir, StorageError,
    data_dir::FILE_NAME,
    disk::{Disk, RealDisk, beside, folder_of, sync_dir},
};

impl DataDir {
    /// The path at which the replacement of the data directory at `path` is to be made.
    #[must_use]
    pub fn replacement(path: &Path) -> PathBuf {
        beside(path, "new")
    }

    /// Whether a file system is mounted at `path`, which must be absolute and without symbolic links. Such a
    /// directory cannot be renamed, and so not replaced. Returns false if the system does not tell.
    #[must_use]
    pub fn is_mount_point(path: &Path) -> bool {
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        let other_device = path.parent().is_none_or(|parent| device(parent) != device(path));
        // Only this file shows bind mounts: the mount point is the fifth word of a line.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        other_device || mounts.lines().any(|line| line.split(' ').nth(4).map(Path::new) == Some(path))
    }

    /// Puts the finished data directory at [`replacement`](DataDir::replacement) in the place of the one at
    /// `path`, which is then at `aside` in the same directory. No process may have either open. Durable when this
    /// returns. A process that ends before leaves the old or the new directory at `path`, or a state in which
    /// every start refuses and tells how to finish the replacement. It may also leave the new one at `aside`.
    ///
    /// # Errors
    /// The directories cannot be renamed, or the renames cannot be made durable.
    pub fn replace(path: &Path, aside: &Path) -> Result<(), StorageError> {
        DataDir::replace_on(&RealDisk, path, aside)
    }

    /// The same on another disk than the one of this machine.
    ///
    /// # Errors
    /// As those of [`DataDir::replace`].
    pub fn replace_on(disk: &dyn Disk, path: &Path, aside: &Path) -> Result<(), StorageError> {
        let made = DataDir::replacement(path);
        let rename = |from: &Path, to: &Path| {
            disk.rename(from, to).map_err(|error| StorageError::io("rename", from, error))?;
            sync_dir(disk, folder_of(to))
        };
        rename(&made, aside)?;
        match disk.exchange(path, aside) {
            Ok(()) => sync_dir(disk, folder_of(path)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) =>
            {
                rename(aside, &made)?;
                rename(path, aside)?;
                rename(&made, path)
            }
            Err(error) => {
                rename(aside, &made)?;
                Err(StorageError::io("exchange", path, error))
            }
        }
    }

    /// Puts the finished data directory at [`replacement`](DataDir::replacement) at `path`, where there is nothing, or
    /// an empty directory. No process may have it open. Durable when this returns.
    ///
    /// # Errors
    /// There is something at `path`, a file system is mounted there, or the rename fails or cannot be made durable.
    pub fn place(path: &Path) -> Result<(), StorageError> {
        let made = DataDir::replacement(path);
        RealDisk.rename(&made, path).map_err(|error| StorageError::io("rename", &made, error))?;
        sync_dir(&RealDisk, folder_of(path))
    }
}

/// Refuses a directory whose replacement was interrupted between two renames.
pub(crate) fn refuse_unfinished(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let made = DataDir::replacement(path);
    let has_identity = |dir: &Path| disk.file_bytes(&dir.join(FILE_NAME)).is_ok();
    if !has_identity(path) && has_identity(&made) {
        return Err(StorageError::Unfinished { dir: path.to_owned(), made });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_told_from_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!DataDir::is_mount_point(&dir.path().canonicalize().unwrap()));
        assert!(DataDir::is_mount_point(Path::new("/")) && DataDir::is_mount_point(Path::new("/proc")));
    }
}
