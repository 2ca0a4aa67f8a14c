//! Bugs of Raft that a test can plant; see [`crate::Bug`].

/// A known mistake in an implementation of Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A replica gives its vote to every candidate that asks, even twice in a term (Ng 2020, E25).
    VoteTwice,
    /// The longer log counts as up to date, whatever the terms of its entries (E25).
    VoteByLength,
    /// A vote is told before it is durable (E30).
    VoteBeforeDurable,
    /// A restarted replica forgets which candidate it voted for.
    ForgetVote,
    /// Entries are acknowledged before they are durable (E30).
    AckBeforeDurable,
    /// An append removes everything after it, including what is not in conflict (E27).
    TruncateAlways,
    /// Entries of older terms are committed by counting (E28).
    CountOldTerms,
    /// Under a joint configuration a majority of all voters counts as a quorum.
    UnionMajority,
    /// Voters are changed before the leader has committed an entry of its term, or the previous change.
    ChangeAtOnce,
}
