//! Bugs of Raft that a test can plant; see [`crate::Bug`].

/// A known way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A replica gives its vote to whoever asks, also twice in a term (Ng 2020, E25).
    VoteTwice,
    /// The longer log counts as up to date, whatever the terms of its entries (E25).
    VoteByLength,
    /// A vote is told before it is durable (E30).
    VoteBeforeDurable,
    /// A restarted replica forgets whom it voted for.
    ForgetVote,
    /// Entries are acknowledged before they are durable (E30).
    AckBeforeDurable,
    /// An append removes everything behind it, also what is not in conflict (E27).
    TruncateAlways,
    /// Entries of older terms are committed by counting (E28).
    CountOldTerms,
    /// Under a joint configuration a majority of all voters counts as a quorum.
    UnionMajority,
    /// Voters are changed before the leader has committed anything, or the change before.
    ChangeAtOnce,
}
