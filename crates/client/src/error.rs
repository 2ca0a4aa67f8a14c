//! Why a request has no answer, and what that says about its effect.

use std::error::Error as StdError;

use tonic::{Code, ConnectError, Status};

const EARLIER: &str = "; an earlier attempt got no answer, and may have been executed";

/// Why a request failed. What matters most to the caller is whether it may have been executed all the same:
/// [`may_have_executed`](Error::may_have_executed).
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An endpoint is not an address, or the configuration does not make sense.
    #[error("{what}: {why}")]
    Config {
        /// What is wrong.
        what: String,
        /// What would be right.
        why: String,
    },
    /// The server understood the request and refused it. This attempt had no effect.
    #[error("{message} ({code:?}, from {endpoint}){}", if *in_doubt { EARLIER } else { "" })]
    Refused {
        /// Who refused.
        endpoint: String,
        /// The gRPC status code.
        code: Code,
        /// The server's words; for the etcd API, etcd's.
        message: String,
        /// Whether an earlier attempt got no answer: it may have been executed, whatever this one was told.
        in_doubt: bool,
    },
    /// No endpoint could take the request; it was not executed.
    #[error(
        "no endpoint could {} after {}; the last, {endpoint}, said: {cause}",
        if *reached { "serve the request" } else { "be reached" },
        times(*attempts)
    )]
    Unavailable {
        /// How many times it was tried.
        attempts: u32,
        /// Who was tried last.
        endpoint: String,
        /// How that failed.
        cause: String,
        /// Whether any endpoint could be connected to.
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
        /// To whom it was sent last.
        endpoint: String,
        /// How that failed.
        cause: String,
    },
    /// The cluster has forgotten the session, because it was idle for too long or there were too many. Earlier
    /// attempts of a command that is answered so may have been executed; open another session.
    #[error("the session has expired")]
    SessionExpired,
    /// The command was executed, once, by an earlier attempt whose answer was lost, and the cluster does not keep its
    /// reply any more: the commands that the session waits for have larger replies than are kept for a session.
    #[error("the command was executed by an earlier attempt, and its reply is not kept any more")]
    ReplyGone,
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
    /// No connection could be made, so it was certainly not executed.
    NotReached,
    /// It was certainly not executed, and another endpoint or a later attempt may.
    NotExecuted,
    /// It may have been executed.
    InDoubt,
}

/// Statuses of the etcd API that a server gives before it proposes anything.
const REFUSED_BEFORE_PROPOSING: [&str; 2] = ["etcdserver: no leader", "etcdserver: too many requests"];

impl Failure {
    /// Sorts a gRPC status.
    pub(crate) fn of(status: &Status) -> Failure {
        if never_connected(status) {
            return Failure::NotReached;
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

/// Whether the status stands for a connection that could not even be made.
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
        assert_eq!(of(Code::InvalidArgument, "etcdserver: key is not provided"), Failure::Refused);
    }
}
