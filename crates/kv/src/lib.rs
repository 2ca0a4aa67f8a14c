//! The key-value state machine: etcd's multi-version store, without clocks, I/O or consensus.
//!
//! [`KvStore`] is a [`StateMachine`](synod_replica::StateMachine) whose commands, replies, queries and answers are the
//! protobuf messages `KvCommand`, `KvReply`, `KvQuery` and `KvAnswer` of `synod-api`; [`KvStore::execute`] and
//! [`KvStore::query`] are the same with types. [`validate`] holds the checks that need no store.
//!
//! ```
//! use synod_api::{etcdserverpb::PutRequest, synod::v1::{KvCommand, kv_command::Command}};
//!
//! let mut store = synod_kv::KvStore::new();
//! let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
//! store.execute(&KvCommand { command: Some(Command::Put(put)), ..Default::default() })?;
//! assert_eq!(store.revision(), 2);
//! # Ok::<(), synod_kv::KvError>(())
//! ```

mod alarms;
mod auth;
mod bbolt;
mod budget;
mod changes;
pub mod describe;
mod digest;
mod error;
mod etcd_db;
mod feed;
mod history;
mod key;
mod lease;
mod machine;
mod packed;
mod pieces;
mod planted;
mod put;
mod range;
mod read;
mod revisions;
mod snapshot;
mod store;
#[cfg(test)]
mod testing;
mod txn;
pub mod upkeep;
pub mod validate;
pub mod watch;

pub use alarms::ALARMS_MAX;
pub use auth::{AuthFeed, ROOT, Shown, Token, shown};
pub use budget::PAGE_BYTES;
pub use error::KvError;
pub use etcd_db::{Backup, BackupError, BackupStatus, Bump, Restored};
pub use feed::{Change, Commit, Compactions, Event, Feed, View};
pub use planted::KvBug;
#[cfg(feature = "planted-bugs")]
pub use planted::plant;
pub use snapshot::SNAPSHOT_FORMATS;
pub use store::{Comparer, KvStore};
