//! Bugs that a test can plant, to see that the simulator finds them.
//!
//! They exist only under the feature `planted-bugs`, which nothing but the simulator's tests enables.

/// A known way to get consensus wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An acceptor answers before its record is durable.
    VoteBeforeDurable,
    /// A restarted acceptor forgets what it promised.
    ForgetPromise,
    /// A slot counts as decided with one vote less than a quorum.
    CommitWithMinority,
    /// A decided slot is delivered although one before it is not decided.
    DeliverOutOfOrder,
    /// A command that a client sends again is executed again.
    ExecuteRetryTwice,
    /// A leader answers a read without asking whether it still leads.
    ReadWithoutConfirmation,
    /// A new leader puts no-ops where acceptors reported values.
    DropAcceptedValue,
    /// A follower takes an announced decision for the value that it accepted in an older ballot.
    DecideAcrossBallots,
    /// A replica that lost its log votes at once.
    VoteWithAmnesia,
    /// A restarted leader goes on proposing in the ballot of its earlier life.
    ReuseBallot,
    /// The log is trimmed to the last executed slot without a snapshot that covers it.
    TrimPastSnapshot,
    /// A new leader takes the reported value with the lowest ballot instead of the highest.
    AdoptLowestBallot,
    /// A ballot leader election asks for one answer more than a majority (Ng 2020, erratum E3).
    ElectionMajorityOffByOne,
    /// Its replies carry the highest ballot known instead of the replier's own (E4).
    ElectionEchoesHighest,
    /// It forgets at a restart which ballots were promised (E8).
    ElectionForgetsPromise,
    /// It does not care whether others are content with the leader that it misses.
    ElectionIgnoresHappiness,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] = &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::DeliverOutOfOrder,
        Bug::ExecuteRetryTwice,
        Bug::ReadWithoutConfirmation,
        Bug::DropAcceptedValue,
        Bug::DecideAcrossBallots,
        Bug::VoteWithAmnesia,
        Bug::ReuseBallot,
        Bug::TrimPastSnapshot,
        Bug::AdoptLowestBallot,
        Bug::ElectionMajorityOffByOne,
        Bug::ElectionEchoesHighest,
        Bug::ElectionForgetsPromise,
        Bug::ElectionIgnoresHappiness,
    ];
}
