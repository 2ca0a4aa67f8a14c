//! The file `group`: the group of replicas that the log begins with, and the present members.
//!
//! ```text
//! file := head (20 bytes, of "SYNODGRP"; see wire/version.rs) | length u32 | cluster u64 | replica u64 | birth u64
//!       | crc u32 | bytes
//! ```
//!
//! Integers are little-endian; the checksum covers all other parts. Only the replica knows what the bytes mean.

use std::{io, path::Path};

use bytes::Bytes;
use synod_wire::{ClusterId, FILE_HEAD_BYTES, Format, Incarnation, ReplicaId, Written};

use crate::{
    Identity, StorageError,
    disk::{Disk, How, read_exact_at, replace_file},
    wal::format::{u32_at, u64_at},
};

/// The largest group that the file can hold, in bytes.
pub const GROUP_BYTES_MAX: usize = 1 << 20;

const FILE_NAME: &str = "group";
const MAGIC: [u8; 8] = *b"SYNODGRP";
pub(crate) const FORMAT: Format = Format::first(2);
const HEADER_BYTES: usize = 52;

/// Replaces the file, durably.
pub(crate) fn write(
    disk: &dyn Disk,
    dir: &Path,
    identity: Identity,
    group: &Bytes,
) -> Result<(), StorageError> {
    if group.len() > GROUP_BYTES_MAX {
        return Err(StorageError::Option {
            option: "the size of a group in bytes",
            value: group.len() as u64,
            accepted: format!("at most {GROUP_BYTES_MAX}"),
        });
    }
    replace_file(disk, &dir.join(FILE_NAME), &encode(FORMAT.written, identity, group))
}

/// Reads the file; `None` if there is none.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, identity: Identity) -> Result<Option<Bytes>, StorageError> {
    let path = dir.join(FILE_NAME);
    let io_error = |error| StorageError::io("read", &path, error);
    let file = match disk.open(&path, How::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(error)),
    };
    // One byte more than there can be, so that a longer file is noticed without being read.
    let len = file.bytes().map_err(io_error)?.min((HEADER_BYTES + GROUP_BYTES_MAX + 1) as u64);
    let mut bytes = vec![0; len as usize];
    read_exact_at(&*file, &mut bytes, 0).map_err(io_error)?;
    let malformed = |reason: &str| StorageError::Malformed { path: path.clone(), reason: reason.to_owned() };
    let Some(written) = Written::of_head(&bytes, MAGIC) else {
        return Err(malformed("it does not begin as a group does"));
    };
    StorageError::unless_readable(&path, &FORMAT, written)?;
    if bytes.len() < HEADER_BYTES || bytes.len() - HEADER_BYTES != u32_at(&bytes, FILE_HEAD_BYTES) as usize {
        return Err(malformed("it is cut, or longer than it says"));
    }
    if crc(&bytes) != u32_at(&bytes, HEADER_BYTES - 4) {
        return Err(malformed("its checksum does not match"));
    }
    let found = Identity {
        cluster: ClusterId(u64_at(&bytes, 24)),
        replica: ReplicaId(u64_at(&bytes, 32)),
        birth: u64_at(&bytes, 40),
        incarnation: Incarnation(0),
    };
    if !found.is_same_replica(&identity) {
        let (found, expected) = (found.to_string(), identity.to_string());
        return Err(StorageError::OtherIdentity { path, found, expected });
    }
    Ok(Some(Bytes::from(bytes).slice(HEADER_BYTES..)))
}

fn encode(written: Written, identity: Identity, group: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + group.len());
    bytes.extend_from_slice(&written.head(MAGIC));
    bytes.extend_from_slice(&(group.len() as u32).to_le_bytes());
    for word in [identity.cluster.0, identity.replica.0, identity.birth] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(group);
    let crc = crc(&bytes);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The checksum of everything but itself.
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..HEADER_BYTES - 4]);
    crc.update(&bytes[HEADER_BYTES..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::{
        DataDir, Durability,
        disk::{RealDisk, crash::for_every_crash},
    };

    const IDENTITY: Identity =
        Identity { cluster: ClusterId(7), replica: ReplicaId(1), birth: 9, incarnation: Incarnation(1) };

    #[test]
    fn the_group_is_there_at_the_next_start() {
        let temporary = tempfile::tempdir().unwrap();
        let open = || DataDir::open(temporary.path(), ClusterId(7), ReplicaId(1), "n1", Durability::Sync);
        let dir = open().unwrap();
        assert_eq!(dir.origin().unwrap(), None);
        for group in [Bytes::from_static(b"three"), Bytes::new(), vec![1; GROUP_BYTES_MAX].into()] {
            dir.set_origin(&group).unwrap();
            assert!(dir.origin().unwrap() == Some(group));
        }
        let error = dir.set_origin(&vec![1; GROUP_BYTES_MAX + 1].into()).unwrap_err();
        assert!(error.to_string().contains("1048577"), "{error}");
        drop(dir);
        assert_eq!(open().unwrap().origin().unwrap().unwrap().len(), GROUP_BYTES_MAX);
    }

    #[test]
    fn a_damaged_group_is_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        let good = encode(FORMAT.written, IDENTITY, b"members");
        let path = temporary.path().join(FILE_NAME);
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert!(read(&RealDisk, temporary.path(), IDENTITY).is_err(), "byte {at} changed");
            fs::write(&path, &good[..at]).unwrap();
            assert!(read(&RealDisk, temporary.path(), IDENTITY).is_err(), "cut at {at}");
        }
        fs::write(&path, [good.as_slice(), b"s"].concat()).unwrap();
        assert!(read(&RealDisk, temporary.path(), IDENTITY).is_err());
        fs::write(&path, &good).unwrap();
        assert_eq!(read(&RealDisk, temporary.path(), IDENTITY).unwrap().unwrap(), "members");
        let other = Identity { birth: 10, ..IDENTITY };
        assert!(matches!(read(&RealDisk, temporary.path(), other), Err(StorageError::OtherIdentity { .. })));
    }

    #[test]
    fn a_crash_leaves_the_old_group_or_the_new_one() {
        let (old, new) = (Bytes::from_static(b"old"), Bytes::from_static(b"new and longer"));
        let before = |dir: &Path| write(&RealDisk, dir, IDENTITY, &old).unwrap();
        let change = |disk: Arc<dyn Disk>, dir: &Path| write(&*disk, dir, IDENTITY, &new).is_ok();
        let seen = for_every_crash(before, change, |dir, finished| {
            let found = read(&RealDisk, dir, IDENTITY).unwrap().unwrap();
            assert!(found == new || (found == old && !finished), "{found:?}");
            found == new
        });
        assert!(seen.contains(&true) && seen.contains(&false));
    }
}
