//! What a disk of your own implements, and what its methods speak of.
//!
//! [`Config::disk`](crate::Config::disk) takes it. The methods of [`Disk`] that an implementation leaves out are
//! those of this machine's disk:
//!
//! ```
//! use std::{io, path::Path, sync::Arc};
//! use synod::disk::{Disk, DiskFile, How, RealDisk};
//!
//! /// The disk of this machine, on which nothing new can be made.
//! #[derive(Debug)]
//! struct Full;
//!
//! impl Disk for Full {
//!     fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
//!         match how {
//!             How::Read | How::Write => RealDisk.open(path, how),
//!             _ => Err(io::ErrorKind::StorageFull.into()),
//!         }
//!     }
//! }
//!
//! # use synod::{ClusterId, Config, MemberAddress, ReplicaId};
//! # let members = vec![MemberAddress::new(ReplicaId(1), "one", "127.0.0.1:1")];
//! let mut config = Config::new(ClusterId(42), ReplicaId(1), members, "data".into());
//! config.disk = Arc::new(Full);
//! ```
//!
//! With the feature `faulty-disk` there is also one in memory, for tests: `FaultyDisk`, which forgets at a power
//! failure what was not made durable, and fails as it is told to.

pub use synod_storage::{Disk, DiskFile, Guard, How, RealDisk};
#[cfg(feature = "faulty-disk")]
pub use synod_testkit::{FaultyDisk, Odds, SilentFault};
