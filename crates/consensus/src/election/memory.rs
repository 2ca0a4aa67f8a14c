//! What an election hands to the one that follows it in the next epoch, in the same process.

use super::latency;

/// What an election knows that counts for longer than its epoch. Only a latency-aware one knows such things.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub(super) latency: Option<latency::Memory>,
}
