//! Bugs of the ring that a test can plant; see [`crate::Bug`].

/// A known mistake in an implementation of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Votes are counted, not collected as a set: one that comes back to where it was given counts again (Benz 2013,
    /// ERR-5).
    CountVotes,
    /// The first member at which one vote less than a quorum has come together makes the decision.
    DecideEarly,
    /// A member whose disk is slow lets the votes pass with its own, although its record is not durable.
    PassWithOwn,
    /// Bytes leave one hop too early.
    StripEarly,
    /// A replica votes for a name whose batch it does not hold (ERR-23).
    VoteWithoutBytes,
    /// A new coordinator takes the reported value with the lowest ballot instead of the highest (ERR-2).
    AdoptLowestBallot,
    /// A new coordinator puts no-ops where acceptors reported values (ERR-2).
    DropAcceptedValue,
    /// What was told of one range of slots is taken for all that was accepted, although the answers say that there is
    /// more.
    TakeRangeForAll,
    /// A learner adds a vote to those that pass it.
    LearnerVotes,
    /// A replica that accepted a value in a lower ballot keeps it, and votes for it in the new ballot (ERR-6).
    KeepAcceptedValue,
    /// A replica accepts another value in a ballot in which it has accepted one (A7).
    AcceptAnother,
    /// A new coordinator proposes in slots that an answer says to be decided (A1).
    ProposeBelowPrefix,
    /// A replica that refuses a message of a lower ballot does not send it on (ERR-20).
    DropRefused,
    /// A decision of one ballot is taken for the value that was accepted in another.
    DecideAcrossBallots,
}
