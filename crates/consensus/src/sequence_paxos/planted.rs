//! Bugs of Sequence Paxos that a test can plant; see [`crate::Bug`].

/// A known way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A new leader adopts a sequence, but not in its own ballot (Ng 2020, erratum E1).
    AdoptWithoutBallot,
    /// A promise names the decided slot of the `Prepare` instead of the sender's (E2).
    PromiseOthersDecided,
    /// What is learned and held already is not written down: after a restart it counts as decided in the ballot in
    /// which it had been accepted.
    ForgetLearnedBallot,
    /// A promise tells of its sequence only if its ballot is higher than the candidate's, not if it is equal (E15).
    PromiseOnlyNewer,
    /// A follower does not answer a `Prepare` in a ballot that it has promised already (E16).
    RefusePrepareAgain,
    /// A follower appends whatever comes next, although it missed something before (E17).
    AcceptGap,
    /// A follower takes an announced decision for what it holds before it has the leader's sequence (E18).
    DecideInAnyPhase,
    /// The accepted ballot becomes durable before the sequence (E20).
    TornAdoption,
    /// A decision is announced to a follower that was not sent what it names (E21).
    DecideToUnsynced,
    /// A follower keeps a sequence of the adopted ballot that is longer than the adopted one, as if it were a prefix
    /// (E22).
    KeepLongerSequence,
}
