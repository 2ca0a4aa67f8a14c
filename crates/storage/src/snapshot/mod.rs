//! Snapshot files: the state machine's state through a slot, complete or not there at all.

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
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use synod_wire::{ClusterId, Slot};

use self::format::{file_name, slot_in_name};
pub use self::{
    read::SnapshotReader,
    write::{SnapshotReceiver, SnapshotWriter},
};
use crate::{
    StorageError,
    disk::{Disk, How, RealDisk, create_dir, file_names, read_exact_at, remove_file, sync_dir},
};

/// A snapshot that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The slot through which the state machine had executed.
    pub slot: Slot,
    /// Its file.
    pub path: PathBuf,
    /// Bytes of the file: what is transferred to a peer.
    pub file_bytes: u64,
}

/// A snapshot that cannot be used; see [`SnapshotStore::set_aside`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedSnapshot {
    /// Which.
    pub slot: Slot,
    /// Its file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The newest snapshot that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatestSnapshot {
    /// `None` if there is none.
    pub snapshot: Option<SnapshotFile>,
    /// Newer ones that had to be passed over; empty if all is well.
    pub damaged: Vec<DamagedSnapshot>,
}

/// The snapshots of one replica. Clones share the directory, and may be used by several threads: one may write a
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
    /// Snapshots that this process wrote or verified: they need not be read through again.
    trusted: Mutex<BTreeSet<Slot>>,
    drafts: AtomicU64,
}

impl SnapshotStore {
    /// Opens the directory, which is created if there is none, and removes what an earlier process left
    /// unfinished. It must not be open in another process; [`crate::DataDir`] sees to that.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub fn open(dir: &Path, cluster: ClusterId) -> Result<SnapshotStore, StorageError> {
        SnapshotStore::open_on(Arc::new(RealDisk), dir, cluster)
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cluster: ClusterId,
    ) -> Result<SnapshotStore, StorageError> {
        create_dir(&*disk, dir)?;
        // What is found here is relied on, and an earlier process may have ended before it could make a name durable.
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
    /// No file can be created, or the size makes no sense.
    pub fn receive(&self, slot: Slot, file_bytes: u64) -> Result<SnapshotReceiver, StorageError> {
        SnapshotReceiver::new(self, slot, file_bytes)
    }

    /// The newest snapshot that is whole. Each one is read through once in the life of the process; one that is
    /// damaged is logged and passed over. Nothing is changed.
    ///
    /// # Errors
    /// The directory cannot be read, or the newest snapshot that may be whole is of another version.
    pub fn latest(&self) -> Result<LatestSnapshot, StorageError> {
        let mut damaged = Vec::new();
        for slot in self.slots()?.into_iter().rev() {
            let path = self.path(slot);
            let verified = if self.is_trusted(slot) {
                Ok(())
            } else {
                SnapshotReader::open(&*self.disk, &path, self.cluster, slot).and_then(SnapshotReader::verify)
            };
            match verified {
                Ok(()) => {
                    self.trust(slot);
                    let file_bytes = self.disk.file_bytes(&path);
                    let file_bytes = file_bytes.map_err(|error| StorageError::io("look at", &path, error))?;
                    let snapshot = Some(SnapshotFile { slot, path, file_bytes });
                    return Ok(LatestSnapshot { snapshot, damaged });
                }
                Err(StorageError::SnapshotRejected { reason, .. }) => {
                    tracing::error!(file = %path.display(), reason, "a snapshot is damaged and is not used");
                    damaged.push(DamagedSnapshot { slot, path, reason });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(LatestSnapshot { snapshot: None, damaged })
    }

    /// Renames snapshots that cannot be used to `*.damaged`, so that they are not read again and can still be looked at.
    /// A replica that nobody else can give another keeps them as they are: the disk may read them tomorrow.
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

    /// Reads a snapshot's contents.
    ///
    /// # Errors
    /// There is none for this slot, it is not one of this cluster, or it cannot be read.
    pub fn open_snapshot(&self, slot: Slot) -> Result<SnapshotReader, StorageError> {
        let reader = SnapshotReader::open(&*self.disk, &self.path(slot), self.cluster, slot);
        reader.map_err(|error| self.missing(slot, error))
    }

    /// Size of the file of the snapshot of `slot`, in bytes.
    ///
    /// # Errors
    /// There is no snapshot for this slot (any more), or it cannot be read.
    pub fn file_bytes(&self, slot: Slot) -> Result<u64, StorageError> {
        let path = self.path(slot);
        let bytes = self.disk.file_bytes(&path);
        bytes.map_err(|error| self.missing(slot, StorageError::io("read", &path, error)))
    }

    /// Bytes of the file of the snapshot of `slot` from `offset` on, at most `bytes_max`, for a peer; empty at
    /// the end. They are not checked here: the receiver does that.
    ///
    /// # Errors
    /// There is no snapshot for this slot (any more), or it cannot be read.
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

    /// Deletes all snapshots but the `keep` newest ones. One that somebody is reading stays readable to him
    /// until he closes it; [`SnapshotStore::read_chunk`] will not find it.
    ///
    /// # Errors
    /// The directory cannot be read, or a file not be deleted.
    pub fn retain(&self, keep: usize) -> Result<(), StorageError> {
        let slots = self.slots()?;
        let gone = &slots[..slots.len().saturating_sub(keep)];
        for &slot in gone {
            self.shared.trusted.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
            remove_file(&*self.disk, &self.path(slot))?;
        }
        if gone.is_empty() { Ok(()) } else { sync_dir(&*self.disk, &self.dir) }
    }

    /// The slots of all snapshots, whole or not, in order.
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

    /// A name that no other unfinished snapshot has.
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
