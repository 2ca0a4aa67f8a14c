//! `log.mark`: the record through which the log is durable, written when the log has been idle for a moment.
//!
//! ```text
//! file := mark | zeros up to byte 4096 | mark | zeros up to byte 8192
//! mark := magic "SYNODMRK" | cluster u64 | replica u64 | birth u64 | lsn u64 | crc u32
//! ```
//!
//! Every commit proves that the commit before it was durable. Nothing in the log proves that of the last
//! commit, so if a record of it rotted, it would pass for torn. While records are written, the next commit
//! comes in an instant. When none comes, this file is written instead. The two marks have a page each, so that
//! one bad sector does not take both, and are written in turn: a crash while one is written leaves the other.

use std::{io::IoSlice, path::Path};

use synod_wire::Lsn;

use super::format::{PAGE, u32_at, u64_at};
use crate::{
    Identity, StorageError,
    disk::{
        Disk, DiskFile, How, open, read_file, remove_file, replace_file, sync_dir, sync_file, write_all_at,
    },
};

const FILE_NAME: &str = "log.mark";
const MAGIC: [u8; 8] = *b"SYNODMRK";
const MARK_BYTES: usize = 44;

/// The file, open for writing.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Box<dyn DiskFile>,
    path: std::path::PathBuf,
    identity: Identity,
    /// The last record that this process has marked.
    lsn: Lsn,
    /// Whether the second of the two places is written next.
    second: bool,
}

/// The higher of the marks of the log in `dir`; [`Lsn::ZERO`] if there are none, or if they are of another replica.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, identity: Identity) -> Lsn {
    // A file that cannot be read says nothing: the log is then as if it had never been idle.
    let bytes = read_file(disk, &dir.join(FILE_NAME)).unwrap_or_default();
    places(&bytes, identity).into_iter().flatten().max().unwrap_or(Lsn::ZERO)
}

/// Removes the marks, durably, since the log that they belong to was set aside.
pub(crate) fn forget(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    remove_file(disk, &dir.join(FILE_NAME))?;
    sync_dir(disk, dir)
}

fn places(bytes: &[u8], identity: Identity) -> [Option<Lsn>; 2] {
    [0, PAGE].map(|at| bytes.get(at..at + MARK_BYTES).and_then(|mark| decode(mark, identity)))
}

fn encode(lsn: Lsn, identity: Identity) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for word in [identity.cluster.0, identity.replica.0, identity.birth, lsn.0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], identity: Identity) -> Option<Lsn> {
    let right = crc32fast::hash(&bytes[..MARK_BYTES - 4]) == u32_at(bytes, MARK_BYTES - 4);
    let lsn = Lsn(u64_at(bytes, 32));
    (right && bytes == encode(lsn, identity)).then_some(lsn)
}

impl Mark {
    /// Opens the file, and creates it if there is none. Its marks are kept.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, identity: Identity) -> Result<Mark, StorageError> {
        let path = dir.join(FILE_NAME);
        let bytes = read_file(disk, &path).unwrap_or_default();
        let [one, other] = places(&bytes, identity);
        if bytes.len() != 2 * PAGE {
            replace_file(disk, &path, &[0; 2 * PAGE])?;
        }
        let file = open(disk, &path, How::Write)?;
        // What was read may be in the kernel's memory only, so nothing counts as noted yet. The newer mark
        // stays until the next one is written.
        Ok(Mark { file, path, identity, lsn: Lsn::ZERO, second: one >= other })
    }

    /// The record through which this process has noted the log to be durable.
    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Notes, durably, that the log is durable through `lsn`. Does nothing if that is noted already.
    pub(crate) fn write(&mut self, lsn: Lsn) -> Result<(), StorageError> {
        if lsn <= self.lsn {
            return Ok(());
        }
        let mark = encode(lsn, self.identity);
        let at = if self.second { PAGE as u64 } else { 0 };
        write_all_at(&*self.file, &self.path, &mut [IoSlice::new(&mark)], at)?;
        sync_file(&*self.file, &self.path)?;
        (self.lsn, self.second) = (lsn, !self.second);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{ClusterId, Incarnation, ReplicaId};

    use super::*;
    use crate::disk::RealDisk;

    const ME: Identity =
        Identity { cluster: ClusterId(7), replica: ReplicaId(1), birth: 9, incarnation: Incarnation(1) };

    #[test]
    fn a_mark_that_is_torn_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&RealDisk, dir.path(), ME), Lsn::ZERO);
        let path = dir.path().join(FILE_NAME);
        for lsn in (3..12).map(Lsn) {
            // After a restart, the older of the two places is written, too.
            let mut mark = Mark::open(&RealDisk, dir.path(), ME).unwrap();
            let before = std::fs::read(&path).unwrap();
            mark.write(lsn).unwrap();
            assert_eq!(read(&RealDisk, dir.path(), ME), lsn);
            let after = std::fs::read(&path).unwrap();
            let changed: Vec<_> = (0..after.len()).filter(|&at| after[at] != before[at]).collect();
            let mut torn = after.clone();
            torn[changed[0]] ^= 0x55;
            std::fs::write(&path, &torn).unwrap();
            let expected = if lsn == Lsn(3) { Lsn::ZERO } else { Lsn(lsn.0 - 1) };
            assert_eq!(read(&RealDisk, dir.path(), ME), expected);
            std::fs::write(&path, &after).unwrap();
        }
        assert_eq!(read(&RealDisk, dir.path(), Identity { birth: 10, ..ME }), Lsn::ZERO);
    }
}
