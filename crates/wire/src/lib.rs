//! The small types that every part of Synod shares, and their formats on a wire and on a disk.
//!
//! Nothing here knows a protocol, a socket or a file. The two main ideas:
//!
//! - A [`Batch`] of commands is encoded **once**, by the replica that received them, into one buffer with one
//!   checksum. From there to every
//!   disk and every socket it travels by reference.
//! - A message or a log record is an [`Encoded`]: a short list of buffers, some of them shared. Writing it
//!   gathers the buffers (`writev`),
//!   reading it slices one received buffer; neither copies a batch.

/// The newest version of the messages between replicas that this build speaks. It grows whenever the encoding
/// of a message changes.
pub const MESSAGES_VERSION: u16 = 8;
/// The oldest version that this build speaks as well, so that replicas can be replaced one after the other. Releases
/// from 0.2.0 on speak the newest version of the minor version before them; 0.2.0 spoke 6 and 7. Version 5 and earlier
/// ones knew no identity of batches, so no replica of that time could take this one's.
pub const MESSAGES_VERSION_OLDEST: u16 = 6;

/// The first version in which a message may be of another group than [`GroupId::FIRST`].
pub const GROUPS_SINCE: u16 = 7;

/// The first version whose replicas know changes that name the births of voters. A group that names births has no
/// session in an earlier version.
pub const BIRTHS_SINCE: u16 = 8;

mod batch;
mod codec;
mod delivered;
mod durability;
mod floors;
mod groups;
mod id;
mod identity;
mod session;
mod time;
mod version;

pub use batch::{
    BATCH_BYTES_MAX, Batch, BatchBuilder, BatchId, COMMAND_HEADER_BYTES, Command, CommandKind,
    IDENTITY_BYTES, Places,
};
pub use codec::{DecodeError, Encoded, Reader, Writer};
pub use delivered::Delivered;
pub use durability::{Durability, Ending, UnknownDurability};
pub use floors::Floors;
pub use groups::{GROUPS_MAX, Groups, MERGED_MAX, TAKE_MAX, UnknownGroups};
pub use id::{
    Ballot, Ballots, ClusterId, Epoch, GroupId, Incarnation, Keep, Lsn, ReplicaId, SessionId, Slot,
};
pub use identity::{Acquaintance, EARLIER_LIVES_MAX, EarlierLife, Introduction, Mismatch, Stranger};
pub use session::{INCARNATION_MAX, Life, REPLICA_ID_MAX, replica_session};
pub use time::Time;
pub use version::{FILE_HEAD_BYTES, Format, VersionError, Written};
