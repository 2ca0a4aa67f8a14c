//! Reads a snapshot, and checks every byte before returning it.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use synod_wire::{ClusterId, Slot};

use super::format::{CHUNK_BYTES, CHUNK_CRC_BYTES, HEADER_BYTES, Header, TRAILER_BYTES};
use crate::{
    StorageError,
    disk::{Disk, DiskFile, How, is_unreadable, read_exact_at},
};

/// Reads the contents of a snapshot. A chunk is checked before any of it is returned, and the end of the
/// input is reported only when the whole file has been checked. Any defect is an error of kind `InvalidData`.
#[derive(Debug)]
pub struct SnapshotReader {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The offset of the next chunk in the file.
    at: u64,
    header: Header,
    /// Payload bytes that have not been read from the file.
    left: u64,
    chunk: Vec<u8>,
    /// How much of the chunk has been returned.
    taken: usize,
    crc: crc32fast::Hasher,
    ended: bool,
}

impl SnapshotReader {
    /// Opens a file that has to be of this slot.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        cluster: ClusterId,
        slot: Slot,
    ) -> Result<SnapshotReader, StorageError> {
        let reader = SnapshotReader::open_any(disk, path, cluster)?;
        if reader.header.slot != slot {
            let reason = format!("it is of slot {}, not {slot}", reader.header.slot);
            return Err(StorageError::SnapshotRejected { path: path.to_owned(), reason });
        }
        Ok(reader)
    }

    /// Opens a file of whatever slot.
    pub(crate) fn open_any(
        disk: &dyn Disk,
        path: &Path,
        cluster: ClusterId,
    ) -> Result<SnapshotReader, StorageError> {
        let rejected = |reason: String| StorageError::SnapshotRejected { path: path.to_owned(), reason };
        let failed = |error: io::Error| match is_unreadable(&error) {
            true => rejected(error.to_string()),
            false => StorageError::io("read", path, error),
        };
        let file = disk.open(path, How::Read).map_err(|error| StorageError::io("open", path, error))?;
        let file_bytes = file.bytes().map_err(failed)?;
        if file_bytes < (HEADER_BYTES + TRAILER_BYTES) as u64 {
            return Err(rejected(format!("it has only {file_bytes} bytes")));
        }
        let mut bytes = [0; HEADER_BYTES];
        read_exact_at(&*file, &mut bytes, 0).map_err(failed)?;
        let header = Header::decode(&bytes)
            .map_err(|error| StorageError::Version { path: path.to_owned(), error })?
            .map_err(rejected)?;
        if header.cluster != cluster {
            return Err(rejected(format!("it is of cluster {}, not {cluster}", header.cluster)));
        }
        if header.file_bytes() != file_bytes {
            return Err(rejected(format!("it has {file_bytes} bytes instead of {}", header.file_bytes())));
        }
        Ok(SnapshotReader {
            path: path.to_owned(),
            file,
            at: HEADER_BYTES as u64,
            header,
            left: header.length,
            chunk: Vec::new(),
            taken: 0,
            crc: crc32fast::Hasher::new(),
            ended: false,
        })
    }

    /// The slot through which the state machine has executed.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.header.slot
    }

    /// Bytes of the contents.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.header.length
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// Reads to the end and checks everything. Returns the checksum of the contents.
    pub(crate) fn verify(mut self) -> Result<u32, StorageError> {
        loop {
            match self.next_chunk() {
                Ok(true) => {}
                Ok(false) => return Ok(self.crc.finalize()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData || is_unreadable(&error) => {
                    return Err(StorageError::SnapshotRejected {
                        path: self.path,
                        reason: error.to_string(),
                    });
                }
                Err(error) => return Err(StorageError::io("read", &self.path, error)),
            }
        }
    }

    /// Reads and checks one more chunk; at the end, the trailer. Returns whether there was a chunk.
    fn next_chunk(&mut self) -> io::Result<bool> {
        let invalid = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        self.chunk.clear();
        self.taken = 0;
        if self.left == 0 {
            if !self.ended {
                let mut trailer = [0; TRAILER_BYTES];
                read_exact_at(&*self.file, &mut trailer, self.at)?;
                if trailer != self.header.trailer(self.crc.clone().finalize()) {
                    return invalid("its end does not have the right checksum".to_owned());
                }
                self.ended = true;
            }
            return Ok(false);
        }
        let len = self.left.min(CHUNK_BYTES as u64) as usize;
        let mut crc = [0; CHUNK_CRC_BYTES];
        read_exact_at(&*self.file, &mut crc, self.at)?;
        self.chunk.resize(len, 0);
        read_exact_at(&*self.file, &mut self.chunk, self.at + CHUNK_CRC_BYTES as u64)?;
        self.at += (CHUNK_CRC_BYTES + len) as u64;
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.chunk);
        if sum.clone().finalize() != u32::from_le_bytes(crc) {
            let at = self.header.length - self.left;
            self.chunk.clear();
            return invalid(format!("the chunk at byte {at} of the contents does not have its checksum"));
        }
        self.crc.combine(&sum);
        self.left -= len as u64;
        Ok(true)
    }
}

impl Read for SnapshotReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || (self.taken == self.chunk.len() && !self.next_chunk()?) {
            return Ok(0);
        }
        let len = buffer.len().min(self.chunk.len() - self.taken);
        buffer[..len].copy_from_slice(&self.chunk[self.taken..self.taken + len]);
        self.taken += len;
        Ok(len)
    }
}
