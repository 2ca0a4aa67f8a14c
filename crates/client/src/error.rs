//! Why a request has no answer, and what that says about its effect.

use std::error::Error as StdError;

use synod_api::shards::NOT_HERE;
use tonic::{Code, ConnectError, Status};

const EARLIER: &str = "; an earlier attempt got no answer, and may have been executed";

/// Why a request failed. What matters most to the caller is whether it may have been executed all the same:
/// [`may_have_executed`](Error::may_have_executed).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint is not an address, or the configuration does not make sense.
    #[error("{what}: {why}")]
    Config {
        /// The value that is wrong.
        what: String,
        /// The values that are accepted.
        why: String,
    },
    /// The server understood the request and refused it. This attempt had no effect.
    #[error("{message} ({code:?}, from {endpoint}){}", if *in_doubt { EARLIER } else { "" })]
    Refused {
        /// The endpoint that refused.
        endpoint: String,
        /// The gRPC status code.
        code: Code,
        /// The server's message. Of the etcd API it is etcd's own.
        message: String,
        /// Whether an earlier attempt got no answer. That attempt may have been executed, whatever this
        /// answer says.
        in_doubt: bool,
    },
    /// No endpoint could take the request; it was not executed.
    #[error(
        "no endpoint could {} after {}; the last, {endpoint}, said: {cause}",
        if *reached { "serve the request" } else { "be reached" },
        times(*attempts)
    )]
    Unavailable {
        /// How many attempts were made.
        attempts: u32,
        /// The endpoint of the last attempt.
        endpoint: String,
        /// Why the last attempt failed.
        cause: String,
        /// Whether a connection to any endpoint could be made.
        reached: bool,
    },
    /// The request was sent and the answer is lost; it may or may not have been executed, now or later.
    #[error(
        "no answer after {}, so whether the request was executed is not known; the last, {endpoint}, said: {cause}",
        times(*attempts)
    )]
    Unknown {
        /// How many times it was sent.
        attempts: u32,
        /// The endpoint of the last attempt.
        endpoint: String,
        /// Why the last attempt failed.
        cause: String,
    },
    /// The cluster has forgotten the session, because it was idle for too long or there were too many
    /// sessions. Earlier attempts of the command may have been executed. Open another session to go on.
    #[error("the session has expired")]
    SessionExpired,
    /// An earlier attempt executed the command, but its answer was lost and the cluster no longer keeps the
    /// reply: the outstanding commands of the session have larger replies than a session may keep.
    #[error("the command was executed by an earlier attempt, and its reply is not kept any more")]
    ReplyGone,
    /// The lease has ended, or its time has gone by without a renewal, or somebody has deleted the key: the lock is
    /// not held, or the candidate does not lead and is none any more. What the request may have written is gone with
    /// the key.
    #[error("the lease has ended, and with it what it held")]
    LeaseLost,
}

fn times(attempts: u32) -> String {
    if attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") }
}

impl Error {
    /// Whether the request may have taken effect although it failed.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        let earlier = matches!(self, Error::Refused { in_doubt: true, .. });
        earlier || matches!(self, Error::Unknown { .. } | Error::SessionExpired | Error::ReplyGone)
    }

    /// The server's status code, if the server refused the request.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// What one attempt's failure says about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request itself is at fault: no other endpoint would answer differently.
    Refused,
    /// No connection could be made, so the request was not executed.
    NotReached,
    /// The request was not executed; another endpoint or a later attempt may execute it.
    NotExecuted,
    /// The replica takes no part in the group of the request, which was not executed. It names others that do.
    Elsewhere,
    /// The request may have been executed.
    InDoubt,
}

/// What a server says that knows no leader.
pub(crate) const NO_LEADER: &str = "etcdserver: no leader";

/// Statuses of the etcd API that a server answers before it proposes anything.
const REFUSED_BEFORE_PROPOSING: [&str; 2] = [NO_LEADER, "etcdserver: too many requests"];

impl Failure {
    /// Sorts a gRPC status.
    pub(crate) fn of(status: &Status) -> Failure {
        if never_connected(status) {
            return Failure::NotReached;
        }
        if status.code() == Code::Unavailable && status.message().starts_with(NOT_HERE) {
            return Failure::Elsewhere;
        }
        if REFUSED_BEFORE_PROPOSING.contains(&status.message()) {
            return Failure::NotExecuted;
        }
        match status.code() {
            Code::Unavailable | Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Internal => {
                Failure::InDoubt
            }
            _ => Failure::Refused,
        }
    }
}

/// Whether the status means that no connection could be made.
fn never_connected(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_never_proposed_is_safe_to_send_again() {
        let of = |code, message: &str| Failure::of(&Status::new(code, message));
        assert_eq!(of(Code::Unavailable, "etcdserver: no leader"), Failure::NotExecuted);
        assert_eq!(of(Code::ResourceExhausted, "etcdserver: too many requests"), Failure::NotExecuted);
        assert_eq!(
            of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            Failure::Refused
        );
        assert_eq!(of(Code::Unavailable, "etcdserver: request timed out"), Failure::InDoubt);
        assert_eq!(of(Code::Unavailable, "transport error"), Failure::InDoubt);
        assert_eq!(of(Code::Unavailable, &format!("{NOT_HERE} 2; n1 do")), Failure::Elsewhere);
        assert_eq!(of(Code::InvalidArgument, "etcdserver: key is not provided"), Failure::Refused);
    }
}
