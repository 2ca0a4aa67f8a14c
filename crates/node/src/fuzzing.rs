//! What reads bytes of peers, as functions of bytes, for fuzzers.

use bytes::Bytes;
use synod_wire::{DecodeError, GroupId};

use crate::bundle;

/// The messages of several groups in one frame.
///
/// # Errors
/// The bytes are no such frame.
pub fn open_bundle(body: Bytes) -> Result<Vec<(GroupId, Bytes)>, DecodeError> {
    bundle::open(body)
}
