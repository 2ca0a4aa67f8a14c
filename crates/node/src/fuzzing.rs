//! What reads bytes of peers, as functions of bytes, for fuzzers.

use bytes::Bytes;
use synod_wire::{DecodeError, GroupId};

/// The messages of several groups in one frame.
///
/// # Errors
/// The bytes are no such frame.
pub fn open_bundle(body: Bytes) -> Result<Vec<(GroupId, Bytes)>, DecodeError> {
    synod_host::open(body)
}
