//! The small types that every part of Synod shares, and how they look on a wire and on a disk.
//!
//! Nothing here knows a protocol, a socket or a file. The two ideas worth knowing:
//!
//! - A [`Batch`] of commands is encoded **once**, by the replica that received them, into one buffer with one
//!   checksum. From there to every disk and every socket it travels by reference.
//! - A message or a log record is an [`Encoded`]: a short list of buffers, some of them shared. Writing it
//!   gathers the buffers (`writev`), reading it slices one received buffer; neither copies a batch.

mod batch;
mod codec;
mod id;
mod time;
mod version;

pub use batch::{BATCH_BYTES_MAX, Batch, BatchBuilder, COMMAND_HEADER_BYTES, Command, CommandKind};
pub use codec::{DecodeError, Encoded, Reader, Writer};
pub use id::{Ballot, Ballots, ClusterId, Epoch, Incarnation, Keep, Lsn, ReplicaId, SessionId, Slot};
pub use time::Time;
pub use version::{FILE_HEAD_BYTES, Format, VersionError, Written};
