//! Limits that all replicas of a group have alike: a part of the replicated [`Group`](crate::Group).
//!
//! The contents of a session table are replicated state, and a replica with other limits than the rest would
//! answer differently. The largest command decides how large a message between two replicas is, which both
//! must be able to carry. And one replica should not refuse what another takes from a client. So these limits
//! are written when a group begins, travel with it, and change for all replicas in the same slot
//! ([`Change::Limits`](crate::Change)).
//!
//! They are read from text, `KEY=NUMBER,KEY=NUMBER`, which is also how they are written.

use std::{fmt, time::Duration};

use synod_wire::{BATCH_BYTES_MAX, COMMAND_HEADER_BYTES, IDENTITY_BYTES};

use crate::SessionLimits;

/// Limits that all replicas of a group have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The limits of the session table.
    pub sessions: SessionLimits,
    /// The largest command, in bytes. No batch is larger than a batch of one such command.
    pub request_bytes_max: usize,
    /// The most operations in a list of a transaction. The server defines what a transaction is.
    pub txn_ops_max: usize,
    /// The largest answer to a command, in bytes. The state machine decides what an answer holds; the server
    /// passes the limit on with the command.
    pub answer_bytes_max: u64,
}

impl Default for Limits {
    /// The defaults of [`SessionLimits`], etcd's limits on requests (1.5 MiB, 128 operations), and 64 MiB for answers.
    fn default() -> Limits {
        Limits {
            sessions: SessionLimits::default(),
            request_bytes_max: 3 << 19,
            txn_ops_max: 128,
            answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }
}

/// The smallest limit on commands: the replicas' own commands fit it.
pub const REQUEST_BYTES_MIN: usize = 4 << 10;

/// The largest limit on commands.
pub const REQUEST_BYTES_MAX: usize = BATCH_BYTES_MAX - IDENTITY_BYTES - COMMAND_HEADER_BYTES;

/// The largest limit on answers: 64 MiB.
pub const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A value that can be limited: its key, the smallest and the largest limit, and the field.
struct Key {
    name: &'static str,
    range: (u64, u64),
    get: fn(&Limits) -> u64,
    set: fn(&mut Limits, u64),
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

const KEYS: &[Key] = &[
    Key {
        name: "max-request-bytes",
        range: (REQUEST_BYTES_MIN as u64, REQUEST_BYTES_MAX as u64),
        get: |limits| limits.request_bytes_max as u64,
        set: |limits, bytes| limits.request_bytes_max = size(bytes),
    },
    Key {
        name: "max-txn-ops",
        range: (1, u32::MAX as u64),
        get: |limits| limits.txn_ops_max as u64,
        set: |limits, count| limits.txn_ops_max = size(count),
    },
    Key {
        name: "max-answer-bytes",
        range: (4 << 10, ANSWER_BYTES_MAX),
        get: |limits| limits.answer_bytes_max,
        set: |limits, bytes| limits.answer_bytes_max = bytes,
    },
    Key {
        name: "sessions-max",
        range: (1, 1 << 20),
        get: |limits| limits.sessions.clients_max as u64,
        set: |limits, count| limits.sessions.clients_max = size(count),
    },
    Key {
        name: "session-outstanding-max",
        range: (1, 1 << 16),
        get: |limits| limits.sessions.outstanding_max,
        set: |limits, count| limits.sessions.outstanding_max = count,
    },
    Key {
        name: "session-reply-bytes",
        range: (1, 1 << 30),
        get: |limits| limits.sessions.session_reply_bytes_max,
        set: |limits, bytes| limits.sessions.session_reply_bytes_max = bytes,
    },
    Key {
        name: "reply-bytes",
        range: (1, 1 << 32),
        get: |limits| limits.sessions.reply_bytes_max,
        set: |limits, bytes| limits.sessions.reply_bytes_max = bytes,
    },
    Key {
        name: "session-idle-ms",
        range: (1, u32::MAX as u64),
        get: |limits| u64::try_from(limits.sessions.idle_max.as_millis()).unwrap_or(u64::MAX),
        set: |limits, millis| limits.sessions.idle_max = Duration::from_millis(millis),
    },
    Key {
        name: "replica-outstanding-max",
        range: (1 << 10, 1 << 24),
        get: |limits| limits.sessions.replica_outstanding_max,
        set: |limits, count| limits.sessions.replica_outstanding_max = count,
    },
];

/// Why limits were not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The text is not `KEY=NUMBER`.
    #[error("{0:?} is not KEY=NUMBER")]
    NotAPair(String),
    /// There is no such key.
    #[error("unknown limit {0:?}; accepted: {keys}", keys = names())]
    Unknown(String),
    /// The value is out of its range.
    #[error("{value:?} is not a value of limit {key}; accepted: {min} to {max}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value that was given.
        value: String,
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
}

fn names() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

impl Limits {
    /// These limits, except for what the text says.
    ///
    /// # Errors
    /// The text was not understood; the error says what of it.
    pub fn with(&self, text: &str) -> Result<Limits, LimitError> {
        let mut limits = *self;
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| LimitError::NotAPair(pair.to_owned()))?;
            let key = KEYS.iter().find(|key| key.name == name);
            let key = key.ok_or_else(|| LimitError::Unknown(name.to_owned()))?;
            let (min, max) = key.range;
            let number = value.parse().ok().filter(|number| (min..=max).contains(number));
            let wrong = || LimitError::Value { key: key.name, value: value.to_owned(), min, max };
            (key.set)(&mut limits, number.ok_or_else(wrong)?);
        }
        Ok(limits)
    }

    /// Checks that each limit is in its range.
    ///
    /// # Errors
    /// One is not; the error says which.
    pub fn check(&self) -> Result<(), LimitError> {
        self.with(&self.to_string()).map(|_| ())
    }

    /// The largest batch, in bytes.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.request_bytes_max + IDENTITY_BYTES + COMMAND_HEADER_BYTES
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in KEYS.iter().enumerate() {
            write!(f, "{}{}={}", if index > 0 { "," } else { "" }, key.name, (key.get)(self))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, BatchId, SessionId};

    #[test]
    fn they_are_written_read_and_changed_one_by_one() {
        let limits = Limits::default();
        limits.check().unwrap();
        for key in KEYS {
            for number in [key.range.0, key.range.1] {
                let changed = limits.with(&format!("{}={number}", key.name)).unwrap();
                assert_eq!((key.get)(&changed), number);
                assert_eq!(Limits::default().with(&changed.to_string()), Ok(changed));
                let others = KEYS.iter().filter(|other| other.name != key.name);
                others.for_each(|other| assert_eq!((other.get)(&changed), (other.get)(&limits)));
            }
        }
        assert_eq!(limits.with(""), Ok(limits));
    }

    #[test]
    fn a_batch_has_room_for_the_largest_request_and_no_more() {
        let limits = Limits { request_bytes_max: 4096, ..Limits::default() };
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, &vec![0; limits.request_bytes_max]);
        let batch = builder.finish_as(BatchId { origin: SessionId(2), number: 1 }, 1);
        assert_eq!(batch.bytes().len(), limits.batch_bytes_max());
    }

    #[test]
    fn what_is_not_accepted_is_named_with_what_is() {
        let why = |text: &str| Limits::default().with(text).unwrap_err().to_string();
        assert_eq!(why("max-txn-ops"), "\"max-txn-ops\" is not KEY=NUMBER");
        assert!(
            why("speed=1").starts_with("unknown limit \"speed\"; accepted: max-request-bytes, max-txn-ops")
        );
        let expected = "\"0\" is not a value of limit max-txn-ops; accepted: 1 to 4294967295";
        assert_eq!(why("max-txn-ops=0"), expected);
        assert!(why("max-request-bytes=1GiB").contains("accepted: 4096 to 33554374"));
        assert!(Limits { txn_ops_max: 0, ..Limits::default() }.check().is_err());
    }
}
