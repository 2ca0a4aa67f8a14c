//! Writes a snapshot of this replica's own state, or receives one from a peer.

use std::{
    io::{self, IoSlice, Write},
    path::PathBuf,
};

use bytes::Bytes;
use synod_wire::{ClusterId, Slot};

use super::{
    SnapshotFile, SnapshotStore,
    format::{CHUNK_BYTES, FORMAT, HEADER_BYTES, Header, TRAILER_BYTES},
    read::SnapshotReader,
};
use crate::{
    StorageError,
    disk::{DiskFile, How, open, remove_file, sync_dir, sync_file, write_all_at},
};

/// A snapshot is synced whenever this many bytes were written. One large fsync at the end would delay those
/// of the log, which wait for the same disk.
const SYNC_BYTES: u64 = 8 << 20;

/// A file that gets its name when it is complete, and is removed if it is not.
#[derive(Debug)]
struct Draft {
    store: SnapshotStore,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    end: u64,
    synced: u64,
    named: bool,
}

impl Draft {
    fn new(store: &SnapshotStore, slot: Slot) -> Result<Draft, StorageError> {
        let path = store.temporary_path(slot);
        let file = open(&*store.disk, &path, How::CreateNew)?;
        Ok(Draft { store: store.clone(), path, file, end: 0, synced: 0, named: false })
    }

    fn append(&mut self, parts: &mut [IoSlice<'_>]) -> Result<(), StorageError> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        write_all_at(&*self.file, &self.path, parts, self.end)?;
        self.end += len;
        if self.end - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.synced = self.end;
        sync_file(&*self.file, &self.path)
    }

    fn give_name(mut self, slot: Slot) -> Result<SnapshotFile, StorageError> {
        self.sync()?;
        let path = self.store.path(slot);
        let renamed = self.store.disk.rename(&self.path, &path);
        renamed.map_err(|error| StorageError::io("rename to", &path, error))?;
        self.named = true;
        sync_dir(&*self.store.disk, &self.store.dir)?;
        self.store.trust(slot);
        Ok(SnapshotFile { slot, path, file_bytes: self.end })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.named
            && let Err(error) = remove_file(&*self.store.disk, &self.path)
        {
            tracing::warn!(%error, "could not remove an unfinished snapshot");
        }
    }
}

/// Writes a snapshot, which exists once [`SnapshotWriter::finish`] has returned. A writer that is dropped, or
/// a process that ends, leaves no snapshot.
#[derive(Debug)]
pub struct SnapshotWriter {
    draft: Draft,
    cluster: ClusterId,
    slot: Slot,
    chunk: Vec<u8>,
    length: u64,
    crc: crc32fast::Hasher,
    /// The error of a failed write, after which the snapshot cannot be finished.
    failure: Option<StorageError>,
}

impl SnapshotWriter {
    pub(crate) fn new(store: &SnapshotStore, slot: Slot) -> Result<SnapshotWriter, StorageError> {
        let mut draft = Draft::new(store, slot)?;
        // The header is written last, when the length is known.
        draft.end = HEADER_BYTES as u64;
        Ok(SnapshotWriter {
            draft,
            cluster: store.cluster,
            slot,
            chunk: Vec::with_capacity(CHUNK_BYTES),
            length: 0,
            crc: crc32fast::Hasher::new(),
            failure: None,
        })
    }

    /// Completes the snapshot and makes it durable.
    ///
    /// # Errors
    /// The disk failed, now or during an earlier write. Nothing is left of the snapshot then.
    pub fn finish(mut self) -> Result<SnapshotFile, StorageError> {
        self.write_chunk()?;
        let (written, cluster) = (FORMAT.written, self.cluster);
        let header = Header { written, cluster, slot: self.slot, length: self.length };
        let trailer = header.trailer(self.crc.clone().finalize());
        self.draft.append(&mut [IoSlice::new(&trailer)])?;
        let encoded = header.encode();
        write_all_at(&*self.draft.file, &self.draft.path, &mut [IoSlice::new(&encoded)], 0)?;
        assert_eq!(self.draft.end, header.file_bytes(), "the file is as long as its header says");
        self.draft.give_name(self.slot)
    }

    /// Gives the snapshot up.
    pub fn abort(self) {}

    fn write_chunk(&mut self) -> Result<(), StorageError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.chunk.is_empty() {
            return Ok(());
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.chunk);
        let sum = crc.clone().finalize().to_le_bytes();
        let written = self.draft.append(&mut [IoSlice::new(&sum), IoSlice::new(&self.chunk)]);
        if let Err(error) = written {
            self.failure = Some(error.clone());
            return Err(error);
        }
        self.crc.combine(&crc);
        self.length += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }
}

impl Write for SnapshotWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() == CHUNK_BYTES {
            self.write_chunk().map_err(io::Error::other)?;
        }
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Does nothing: only [`SnapshotWriter::finish`] makes a snapshot durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Receives the file of a snapshot from a peer, piece by piece. The snapshot exists once
/// [`SnapshotReceiver::finish`] has returned.
#[derive(Debug)]
pub struct SnapshotReceiver {
    draft: Draft,
    slot: Slot,
    file_bytes: u64,
}

impl SnapshotReceiver {
    pub(crate) fn new(
        store: &SnapshotStore,
        slot: Slot,
        file_bytes: u64,
    ) -> Result<SnapshotReceiver, StorageError> {
        let draft = Draft::new(store, slot)?;
        let receiver = SnapshotReceiver { draft, slot, file_bytes };
        if file_bytes < (HEADER_BYTES + TRAILER_BYTES) as u64 {
            return Err(receiver.rejected(format!("{file_bytes} bytes were announced, which is too few")));
        }
        Ok(receiver)
    }

    fn rejected(&self, reason: String) -> StorageError {
        StorageError::SnapshotRejected { path: self.draft.store.path(self.slot), reason }
    }

    /// The slot of the snapshot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The offset of the next piece in the file, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.draft.end
    }

    /// Whether all pieces have arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.draft.end == self.file_bytes
    }

    /// Takes a piece. A piece that does not begin at [`SnapshotReceiver::offset`] is ignored: it was sent
    /// twice, or an earlier one was lost. Returns the new offset, which is what to ask the peer for next.
    ///
    /// # Errors
    /// The piece goes beyond the end, the snapshot has a version that this program cannot read, or the disk
    /// failed. The receiver must not be used any more then.
    pub fn write_chunk(&mut self, offset: u64, bytes: &Bytes) -> Result<u64, StorageError> {
        if offset == self.draft.end {
            if bytes.len() as u64 > self.file_bytes - offset {
                let (len, all) = (bytes.len(), self.file_bytes);
                return Err(self.rejected(format!("{len} bytes at {offset} go beyond the announced {all}")));
            }
            if offset == 0 {
                // The version is checked before the rest of the file uses the network.
                let path = self.draft.store.path(self.slot);
                Header::written(bytes).map_err(|error| StorageError::Version { path, error })?;
            }
            self.draft.append(&mut [IoSlice::new(bytes)])?;
        }
        Ok(self.draft.end)
    }

    /// Checks the whole file and gives it its name.
    ///
    /// # Errors
    /// A piece is missing, the file is not a snapshot of this cluster and slot with valid checksums, or the
    /// disk failed. Nothing is left of it then.
    pub fn finish(self) -> Result<SnapshotFile, StorageError> {
        self.check_complete()?;
        let Draft { store, path, .. } = &self.draft;
        SnapshotReader::open(&*store.disk, path, store.cluster, self.slot)?.verify()?;
        self.draft.give_name(self.slot)
    }

    /// [`SnapshotReceiver::finish`] for a file that holds several groups and may be of another group's slot: it gets
    /// this slot and its name if the caller `accepts` the contents.
    ///
    /// # Errors
    /// As those of [`SnapshotReceiver::finish`], apart from the slot; or the contents are not accepted.
    pub fn finish_for_group(
        self,
        accepts: impl FnOnce(&mut SnapshotReader) -> bool,
    ) -> Result<SnapshotFile, StorageError> {
        self.check_complete()?;
        let Draft { store, path, file, end, .. } = &self.draft;
        let mut reader = SnapshotReader::open_any(&*store.disk, path, store.cluster)?;
        if !accepts(&mut reader) {
            return Err(self.rejected("its contents are not what was asked for".to_owned()));
        }
        let (is_renamed, header) =
            (reader.slot() != self.slot, Header { slot: self.slot, ..reader.header() });
        // It goes on where the caller has stopped to read, and has checked all before that.
        let payload_crc = reader.verify()?;
        if is_renamed {
            write_all_at(&**file, path, &mut [IoSlice::new(&header.encode())], 0)?;
            let trailer = header.trailer(payload_crc);
            write_all_at(&**file, path, &mut [IoSlice::new(&trailer)], end - TRAILER_BYTES as u64)?;
        }
        self.draft.give_name(self.slot)
    }

    fn check_complete(&self) -> Result<(), StorageError> {
        let (have, all) = (self.draft.end, self.file_bytes);
        if self.is_complete() {
            return Ok(());
        }
        Err(self.rejected(format!("only {have} of {all} bytes have arrived")))
    }
}
