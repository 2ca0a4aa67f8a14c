//! Snapshot files: the state machine's state through a slot. A file is complete, or it does not exist.

mod format;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use synod_sync::{Mutex, PoisonError};
use synod_wire::{ClusterId, Slot};

pub(crate) use self::format::FORMAT;
use self::format::{file_name, slot_in_name};
pub use self::{
    read::SnapshotReader,
    write::{SnapshotReceiver, SnapshotWriter},
};
use crate::{
    StorageError,
    disk::{Disk, How, create_dir, file_names, read_exact_at, remove_file, sync_dir, the_disk},
};

/// A complete snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The slot through which the state machine had executed.
    pub slot: Slot,
    /// Its file.
    pub path: PathBuf,
    /// Bytes of the file, which is what a peer receives.
    pub file_bytes: u64,
}

/// A snapshot that cannot be used; see [`SnapshotStore::set_aside`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedSnapshot {
    /// Its slot.
    pub slot: Slot,
    /// Its file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The newest snapshot that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatestSnapshot {
    /// The snapshot; `None` if there is none.
    pub snapshot: Option<SnapshotFile>,
    /// Newer snapshots that cannot be used.
    pub damaged: Vec<DamagedSnapshot>,
}

/// The snapshots of one replica. Clones share the directory, and several threads may use it: one may write a
/// snapshot while another sends an older one.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    dir: PathBuf,
    cluster: ClusterId,
    disk: Arc<dyn Disk>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Snapshots that this process wrote or verified, and need not read through again.
    trusted: Mutex<BTreeSet<Slot>>,
    drafts: AtomicU64,
}

impl SnapshotStore {
    /// Opens the directory, which is created if it does not exist, and removes unfinished snapshots of an
    /// earlier process. No other process may have it open; [`crate::DataDir`] sees to that.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub fn open(dir: &Path, cluster: ClusterId) -> Result<SnapshotStore, StorageError> {
        SnapshotStore::open_on(the_disk(), dir, cluster)
    }

    /// The same on another disk than the one of this machine.
    ///
    /// # Errors
    /// As those of [`SnapshotStore::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cluster: ClusterId,
    ) -> Result<SnapshotStore, StorageError> {
        create_dir(&*disk, dir)?;
        // The replica relies on what is found here, and an earlier process may have ended before a name was durable.
        sync_dir(&*disk, dir)?;
        for name in file_names(&*disk, dir)?.into_iter().filter(|name| name.ends_with(".tmp")) {
            remove_file(&*disk, &dir.join(name))?;
        }
        Ok(SnapshotStore { dir: dir.to_owned(), cluster, disk, shared: Arc::default() })
    }

    /// Begins a snapshot of the state after `slot`.
    ///
    /// # Errors
    /// No file can be created.
    pub fn create(&self, slot: Slot) -> Result<SnapshotWriter, StorageError> {
        SnapshotWriter::new(self, slot)
    }

    /// Begins to receive a snapshot whose file has `file_bytes` bytes at the peer that sends it.
    ///
    /// # Errors
    /// The file cannot be created, or `file_bytes` is not a possible size.
    pub fn receive(&self, slot: Slot, file_bytes: u64) -> Result<SnapshotReceiver, StorageError> {
        SnapshotReceiver::new(self, slot, file_bytes)
    }

    /// Finds the newest complete snapshot. Each file is read through once in the life of the process; a
    /// damaged one is logged and skipped. Nothing is changed.
    ///
    /// # Errors
    /// The directory cannot be read, or the newest snapshot that may be whole is of another version.
    pub fn latest(&self) -> Result<LatestSnapshot, StorageError> {
        let mut damaged = Vec::new();
        for slot in self.slots()?.into_iter().rev() {
            match self.verified(slot) {
                Ok(snapshot) => return Ok(LatestSnapshot { snapshot: Some(snapshot), damaged }),
                Err(StorageError::SnapshotRejected { path, reason }) => {
                    tracing::error!(file = %path.display(), reason, "a snapshot is damaged and is not used");
                    damaged.push(DamagedSnapshot { slot, path, reason });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(LatestSnapshot { snapshot: None, damaged })
    }

    /// The complete snapshot of this slot; `None` if it is damaged, which is logged.
    ///
    /// # Errors
    /// There is none, it cannot be read, or it is of another version.
    pub fn usable(&self, slot: Slot) -> Result<Option<SnapshotFile>, StorageError> {
        match self.verified(slot) {
            Err(StorageError::SnapshotRejected { path, reason }) => {
                tracing::error!(file = %path.display(), reason, "a snapshot is damaged and is not used");
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    fn verified(&self, slot: Slot) -> Result<SnapshotFile, StorageError> {
        let path = self.path(slot);
        if !self.is_trusted(slot) {
            SnapshotReader::open(&*self.disk, &path, self.cluster, slot).and_then(SnapshotReader::verify)?;
            self.trust(slot);
        }
        let file_bytes = self.disk.file_bytes(&path);
        let file_bytes = file_bytes.map_err(|error| StorageError::io("look at", &path, error))?;
        Ok(SnapshotFile { slot, path, file_bytes })
    }

    /// Renames snapshots that cannot be used to `*.damaged`, so that they are not read again and can still be examined.
    /// A replica that no other can send a snapshot must not do this: the disk may be able to read the files later.
    ///
    /// # Errors
    /// A file cannot be renamed.
    pub fn set_aside(&self, damaged: &[DamagedSnapshot]) -> Result<(), StorageError> {
        for DamagedSnapshot { path, .. } in damaged {
            tracing::warn!(file = %path.display(), "set a damaged snapshot aside");
            let renamed = self.disk.rename(path, &path.with_extension("snap.damaged"));
            renamed.map_err(|error| StorageError::io("rename", path, error))?;
        }
        if damaged.is_empty() { Ok(()) } else { sync_dir(&*self.disk, &self.dir) }
    }

    /// Opens a snapshot's contents for reading.
    ///
    /// # Errors
    /// There is no snapshot for this slot, it belongs to another cluster, or it cannot be read.
    pub fn open_snapshot(&self, slot: Slot) -> Result<SnapshotReader, StorageError> {
        let reader = SnapshotReader::open(&*self.disk, &self.path(slot), self.cluster, slot);
        reader.map_err(|error| self.missing(slot, error))
    }

    /// Bytes of the file of the snapshot of `slot`.
    ///
    /// # Errors
    /// There is no snapshot for this slot, or no longer, or it cannot be read.
    pub fn file_bytes(&self, slot: Slot) -> Result<u64, StorageError> {
        let path = self.path(slot);
        let bytes = self.disk.file_bytes(&path);
        bytes.map_err(|error| self.missing(slot, StorageError::io("read", &path, error)))
    }

    /// Reads at most `bytes_max` bytes of the file of the snapshot of `slot` from `offset` on, for a peer.
    /// The result is empty at the end. The bytes are not checked here: the receiver does that.
    ///
    /// # Errors
    /// There is no snapshot for this slot, or no longer, or it cannot be read.
    pub fn read_chunk(&self, slot: Slot, offset: u64, bytes_max: usize) -> Result<Bytes, StorageError> {
        let path = self.path(slot);
        let read = || -> io::Result<Bytes> {
            let file = self.disk.open(&path, How::Read)?;
            let left = file.bytes()?.saturating_sub(offset);
            let mut bytes = vec![0; left.min(bytes_max as u64) as usize];
            read_exact_at(&*file, &mut bytes, offset)?;
            Ok(bytes.into())
        };
        read().map_err(|error| self.missing(slot, StorageError::io("read", &path, error)))
    }

    fn missing(&self, slot: Slot, error: StorageError) -> StorageError {
        if error.is_not_found() { StorageError::NoSnapshot { dir: self.dir.clone(), slot } } else { error }
    }

    /// Deletes all snapshots but the `keep` newest ones. An open [`SnapshotReader`] can still read a deleted
    /// one; [`SnapshotStore::read_chunk`] does not find it.
    ///
    /// # Errors
    /// The directory cannot be read, or a file cannot be deleted.
    pub fn retain(&self, keep: usize) -> Result<(), StorageError> {
        let slots = self.slots()?;
        self.delete(&slots[..slots.len().saturating_sub(keep)])
    }

    fn delete(&self, gone: &[Slot]) -> Result<(), StorageError> {
        for &slot in gone {
            self.shared.trusted.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
            remove_file(&*self.disk, &self.path(slot))?;
        }
        if gone.is_empty() { Ok(()) } else { sync_dir(&*self.disk, &self.dir) }
    }

    /// Deletes all snapshots but those of these slots.
    ///
    /// # Errors
    /// As those of [`SnapshotStore::retain`].
    pub fn retain_only(&self, keep: &[Slot]) -> Result<(), StorageError> {
        let gone: Vec<_> = self.slots()?.into_iter().filter(|slot| !keep.contains(slot)).collect();
        self.delete(&gone)
    }

    /// The slots of all snapshot files, complete or not, in order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn slots(&self) -> Result<Vec<Slot>, StorageError> {
        Ok(file_names(&*self.disk, &self.dir)?.iter().filter_map(|name| slot_in_name(name)).collect())
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, slot: Slot) -> PathBuf {
        self.dir.join(file_name(slot))
    }

    /// A file name that no other unfinished snapshot has.
    fn temporary_path(&self, slot: Slot) -> PathBuf {
        let number = self.shared.drafts.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("snapshot-{:020}-{number}.tmp", slot.0))
    }

    fn trust(&self, slot: Slot) {
        self.shared.trusted.lock().unwrap_or_else(PoisonError::into_inner).insert(slot);
    }

    fn is_trusted(&self, slot: Slot) -> bool {
        self.shared.trusted.lock().unwrap_or_else(PoisonError::into_inner).contains(&slot)
    }
}
