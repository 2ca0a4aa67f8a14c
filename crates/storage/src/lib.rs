//! The write-ahead log, snapshot files and the data directory of a replica.
//!
//! Everything here blocks and is meant for threads of its own, and nothing here knows a protocol. Only its
//! writer knows what a record means; the log needs to know only how long it matters ([`Keep`]).
//!
//! # Guarantees
//!
//! - A record that [`Wal::commit`] reported durable comes back at the next [`Wal::open`] after an end that the
//!   [`Durability`] covers, or its loss is reported ([`Recovered::damage`], [`Recovered::loss`]). No record comes back
//!   changed.
//! - A commit that a crash tore leaves a prefix of its records, or nothing, and no trace that could reappear.
//! - A damaged file is never deleted or cut; it is set aside ([`Wal::quarantine`]) when the replica says so.
//! - A disk that failed once is not used again before a restart.
//! - Files of another cluster, replica or birth, or of a later version, are refused.
//! - What a replica records about its peers ([`PeerBook`]) and its first group survives a crash.
//!
//! All of that rests on what [`Disk`] demands of a file system; a program may substitute another one.
//!
//! # Example
//!
//! ```
//! use synod_storage::{DataDir, Durability, Keep, Options, Wal};
//! use synod_wire::{ClusterId, ReplicaId, Slot, Writer};
//!
//! # let temporary = tempfile::tempdir().unwrap();
//! # let path = temporary.path();
//! let dir = DataDir::open(path, ClusterId(0xc1), ReplicaId(1), "n1", Durability::Sync)?;
//! let (mut wal, recovered) = Wal::open(&dir.wal(), dir.identity(), Options::default())?;
//! assert!(recovered.damage.is_none() && recovered.loss.is_none());
//!
//! let mut record = Writer::new();
//! record.bytes(b"accepted");
//! let lsn = recovered.last.next();
//! wal.append(lsn, Keep::Slot(Slot(1)), record.finish());
//! assert_eq!(wal.commit()?, lsn);
//! wal.close()?;
//! # Ok::<(), synod_storage::StorageError>(())
//! ```

mod damage;
mod data_dir;
mod disk;
mod error;
#[cfg(feature = "shuttle")]
pub mod explored;
mod fields;
mod group;
pub mod inspect;
mod lives;
mod lock;
mod peer_book;
mod replacement;
mod snapshot;
#[cfg(test)]
mod versions;
mod wal;

pub use damage::{Damage, DamageSpot, Loss};
pub use data_dir::{DataDir, Identity, Marker};
pub use disk::{Disk, DiskFile, Guard, How, RealDisk, the_disk};
pub use error::StorageError;
pub use group::GROUP_BYTES_MAX;
pub use lives::Lives;
pub use peer_book::{PeerBook, Reached};
pub use snapshot::{
    DamagedSnapshot, LatestSnapshot, SnapshotFile, SnapshotReader, SnapshotReceiver, SnapshotStore,
    SnapshotWriter,
};
use synod_wire::Format;
pub use synod_wire::{Durability, Ending};
pub use wal::{Keep, Options, RECORD_BYTES_MAX, Recovered, RecoveredRecord, Wal, WalStats};

/// The formats of the files in a data directory. [`SnapshotFile`]s and the file `group` hold what others write, which
/// has formats of its own.
pub const FORMATS: &[(&str, Format)] = &[
    ("identity", data_dir::FORMAT),
    ("peers", peer_book::FORMAT),
    ("lives", lives::FORMAT),
    ("group", group::FORMAT),
    ("wal/log.state", wal::state::FORMAT),
    ("wal/log.segments", wal::list::FORMAT),
    ("wal/*.wal", wal::format::FORMAT),
    ("snapshots/*", snapshot::FORMAT),
];
