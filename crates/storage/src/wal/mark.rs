//! `log.mark`: through which record the log is durable, written when it has been idle for a moment.
//!
//! ```text
//! file := mark | zeros up to byte 4096 | mark | zeros up to byte 8192
//! mark := magic "SYNODMRK" | cluster u64 | replica u64 | birth u64 | lsn u64 | crc u32
//! ```
//!
//! Every commit proves that the one before it was durable; nothing in the log proves that of the last one, so one that
//! rotted there would pass for torn. While records are written, the next commit comes in an instant. When none comes,
//! this is written instead, in a place of its own so that one bad sector does not take both. The two marks are written
//! in turn: a crash while one is written leaves the other.

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

/// The file, open to be written.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Box<dyn DiskFile>,
    path: std::path::PathBuf,
    identity: Identity,
    /// What this process wrote.
    lsn: Lsn,
    /// Which of the two places is written next.
    second: bool,
}

/// What the marks of the log in `dir` say; [`Lsn::ZERO`] if there are none, or they are of another replica.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, identity: Identity) -> Lsn {
    // A file that cannot be read says nothing; the log is as if it had not been idle.
    let bytes = read_file(disk, &dir.join(FILE_NAME)).unwrap_or_default();
    places(&bytes, identity).into_iter().flatten().max().unwrap_or(Lsn::ZERO)
}

/// Removes the marks, durably: the log that they are of was set aside.
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
    /// Opens the file, which is made if there is none. Its marks are kept.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, identity: Identity) -> Result<Mark, StorageError> {
        let path = dir.join(FILE_NAME);
        let bytes = read_file(disk, &path).unwrap_or_default();
        let [one, other] = places(&bytes, identity);
        if bytes.len() != 2 * PAGE {
            replace_file(disk, &path, &[0; 2 * PAGE])?;
        }
        let file = open(disk, &path, How::Write)?;
        // What was read may be in the kernel's memory only, so nothing counts as noted yet. The newer one stays until
        // the next is written.
        Ok(Mark { file, path, identity, lsn: Lsn::ZERO, second: one >= other })
    }

    /// Through which record this process has noted the log to be durable.
    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Notes that the log is durable through `lsn`, durably; nothing is to be done if that is noted already.
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
            // Also after a restart, the older place is written.
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
