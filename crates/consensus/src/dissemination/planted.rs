//! Bugs of dissemination that a test can plant.

/// A known way to get dissemination wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The leader proposes a batch that it alone is known to hold.
    ProposeUnstable,
    /// A replica acknowledges a batch before its record is durable.
    AcknowledgeBeforeDurable,
    /// A replica acknowledges a batch that it did not write down.
    HoldUnrecorded,
    /// The inner protocol sees references whose batches are not here.
    VoteWithoutBatch,
    /// The log forgets a batch that is not delivered, or that was delivered in a later slot than was expected.
    TrimHeld,
    /// A new leader proposes a second time what it has in its log.
    ForgetReproposed,
    /// A replica that lacks the batch to which a reference refers takes another one of its own for it.
    FillWithAnother,
    /// A replica that starts again gives its batches the names that an earlier life gave to others.
    ReuseNames,
}
