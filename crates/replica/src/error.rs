//! Why a request was not answered with a result.

/// Why a command or a query failed. None of these comes from the state machine, whose errors are its replies.
///
/// [`RequestError::may_have_executed`] says of each whether the command may have been executed all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The learner that was to be promoted has not caught up yet; nothing was proposed.
    #[error("the learner has not caught up yet")]
    NotCaughtUp,
    /// Too few of the replicas that would vote answer the leader; it did not propose the change. (If the
    /// change was sent to an earlier leader as well, it may still be made.)
    #[error("too few of those who would vote answer the leader")]
    Unhealthy,
    /// This replica heard of no leader for three fifths of the request time-out: too few replicas run, they do not
    /// reach each other, or the group is new and a member has not been met yet (`NodeStatus::waits_for`). The command
    /// was not executed.
    #[error("no leader: too few replicas run or reach each other, or a new group still waits for a member")]
    NoLeader,
    /// This replica takes no part in the group ([`crate::Others::StayAway`]); others do. The command was not executed.
    #[error("this replica takes no part in the group")]
    TakesNoPart,
    /// The command was not decided within the request time-out. It may be executed later, at most once.
    #[error("timed out; the outcome is unknown")]
    Timeout,
    /// The command was executed, but this replica does not know the result: it caught up by a snapshot.
    #[error("executed, but the result is unknown at this replica")]
    OutcomeUnknown,
    /// The command was executed before, once, and its reply is not kept any more: the session, or all sessions
    /// together, cached more bytes of replies than they may. It is not executed again.
    #[error("executed before, and the reply is gone")]
    ReplyGone,
    /// Too many requests are waiting. The command was not executed.
    #[error("too many requests are waiting")]
    Overloaded,
    /// The payload is no change of the group that this replica knows, or none that clients may ask for. The command was
    /// not executed.
    #[error("this is not a change of the group")]
    NotAChange,
    /// The payload is larger than a command may be. The command was not executed.
    #[error("request is too large")]
    TooLarge,
    /// The session is not known: it was idle for too long, or too many others were opened since. Whether
    /// commands without an answer were executed can no longer be told.
    #[error("session is not known or has expired")]
    SessionExpired,
    /// The session has said before that it does not wait for this command any more. It is not executed now.
    #[error("command is older than what the session still waits for")]
    Stale,
    /// The sequence number is too far above the lowest outstanding one. The command was not executed.
    #[error("session has too many commands outstanding")]
    TooFarAhead,
    /// The client sent the same command again; the later request will be answered.
    #[error("superseded by a later request for the same command")]
    Superseded,
    /// This replica is stopping.
    #[error("replica is stopping")]
    Stopping,
}

impl RequestError {
    /// Whether the command may have been executed, or may still be. `false` is certain: a client may send the
    /// command again without a session. After `true` it may do so only if executing it twice does no harm, or
    /// with the same number in the same session.
    ///
    /// If a command was sent more than once, this is about the request that failed, not about the earlier
    /// ones. A query never changes anything.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            RequestError::NotCaughtUp
            | RequestError::NotAChange
            | RequestError::NoLeader
            | RequestError::TakesNoPart
            | RequestError::Overloaded
            | RequestError::TooLarge
            | RequestError::TooFarAhead => false,
            // A change that was also sent to an earlier leader may still be made.
            RequestError::Unhealthy
            | RequestError::Timeout
            | RequestError::OutcomeUnknown
            | RequestError::ReplyGone
            // The session can no longer tell whether the command was executed.
            | RequestError::SessionExpired
            | RequestError::Stale
            | RequestError::Superseded
            // A command may be on its way to the leader when its replica stops.
            | RequestError::Stopping => true,
        }
    }
}
