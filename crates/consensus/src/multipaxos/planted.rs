//! Bugs of MultiPaxos that a test can plant; see [`crate::Bug`].

/// A known mistake in an implementation of MultiPaxos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A decided slot is delivered although one before it is not decided.
    DeliverOutOfOrder,
    /// A new leader puts no-ops where acceptors reported values.
    DropAcceptedValue,
    /// A follower takes an announced decision for the value that it accepted in an older ballot.
    DecideAcrossBallots,
    /// A promise counts as one although its pages are of several lives of its sender.
    MixLivesOfPromise,
    /// A replica that recovers counts an answer although its sender has lost its log since, and does not
    /// remember in which life the others answered.
    CountOutlivedAnswer,
    /// A new leader takes the reported value with the lowest ballot instead of the highest.
    AdoptLowestBallot,
}
