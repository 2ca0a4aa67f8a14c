//! The write-ahead log, snapshot files and the data directory of a replica.
//!
//! Everything here blocks and is meant for threads of its own; nothing here knows a protocol. What a record
//! means is its writer's business: the log only needs to know how long it matters ([`Keep`]).
//!
//! # What is promised
//!
//! - A record that [`Wal::commit`] reported durable comes back at the next [`Wal::open`] after an end that the
//!   [`Durability`] is for, or its loss is reported ([`Recovered::damage`], [`Recovered::loss`]). No record comes back other than it was written.
//! - A commit that a crash tore leaves a prefix of its records, or nothing, and no trace that could reappear.
//! - What is damaged is never deleted or cut; it is set aside ([`Wal::quarantine`]) when the replica says so.
//! - A disk that failed once is not trusted again before a restart.
//! - Files of another cluster, another replica, another birth of it or a later version are refused.
//! - What a replica says about its peers ([`PeerBook`]) and its first group it still says after a crash.
//!
//! # In order
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
mod durability;
mod error;
#[cfg(feature = "shuttle")]
pub mod explored;
#[cfg(any(test, feature = "shuttle", feature = "faulty-disk"))]
#[cfg_attr(not(test), allow(dead_code, reason = "the soak alone lets it fail in every way"))]
mod faulty;
mod fields;
mod group;
pub mod inspect;
mod lives;
mod lock;
mod peer_book;
mod replacement;
mod snapshot;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod versions;
mod wal;

pub use damage::{Damage, DamageSpot, Loss};
pub use data_dir::{DataDir, Identity, Marker};
pub use durability::{Durability, Ending};
pub use error::StorageError;
#[cfg(feature = "faulty-disk")]
pub use faulty::{FaultyDisk, Odds, SilentFault};
pub use group::GROUP_BYTES_MAX;
pub use lives::Lives;
pub use peer_book::{PeerBook, Reached};
pub use snapshot::{
    DamagedSnapshot, LatestSnapshot, SnapshotFile, SnapshotReader, SnapshotReceiver, SnapshotStore,
    SnapshotWriter,
};
pub use wal::{Keep, Options, RECORD_BYTES_MAX, Recovered, RecoveredRecord, Wal, WalStats};
