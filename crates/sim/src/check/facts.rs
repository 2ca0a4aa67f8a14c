//! What messages and records of the different protocols mean to the checks.
//!
//! The checks of [`super::votes`] know ballots, promises and votes, which all leader-based protocols have. Each
//! protocol is translated here, and nowhere else.

use synod_consensus::{Message, Record, multipaxos};
use synod_replica::LogRecord;
use synod_wire::{Ballot, Batch, Slot};

/// What a message claims.
#[derive(Debug)]
pub enum Claim<'a> {
    /// The sender asks to lead.
    Candidate(Ballot),
    /// The sender will not follow lower ballots, and has accepted nothing but `accepted` in the slots from `from`
    /// on and before `next`, apart from those through `decided`.
    Promise {
        ballot: Ballot,
        from: Slot,
        decided: Slot,
        next: Option<Slot>,
        accepted: Vec<(Slot, Ballot, &'a Batch)>,
    },
    /// The sender leads, and proposes.
    Propose { ballot: Ballot, slot: Slot, batch: &'a Batch, decided: Slot },
    /// The sender has accepted the proposal.
    Vote { ballot: Ballot, slot: Slot },
    /// The sender leads, and knows the slots through `decided` to be decided.
    Leads { ballot: Ballot, decided: Slot },
    /// Nothing that is checked.
    Nothing,
}

/// What a message claims.
pub fn claim(message: &Message) -> Claim<'_> {
    let message = match message {
        Message::MultiPaxos(message) => message,
        Message::Election(_) => return Claim::Nothing,
    };
    match message {
        multipaxos::Message::Prepare { ballot, .. } => Claim::Candidate(*ballot),
        multipaxos::Message::Promise(promise) => Claim::Promise {
            ballot: promise.ballot,
            from: promise.from,
            decided: promise.decided,
            next: promise.next,
            accepted: promise.accepted.iter().map(|value| (value.slot, value.ballot, &value.batch)).collect(),
        },
        multipaxos::Message::Accept { ballot, slot, decided, batch } => {
            Claim::Propose { ballot: *ballot, slot: *slot, batch, decided: *decided }
        }
        multipaxos::Message::Accepted { ballot, slot } => Claim::Vote { ballot: *ballot, slot: *slot },
        multipaxos::Message::Decided { ballot, through }
        | multipaxos::Message::Heartbeat { ballot, decided: through, .. } => {
            Claim::Leads { ballot: *ballot, decided: *through }
        }
        multipaxos::Message::HeartbeatAck { .. }
        | multipaxos::Message::Reject { .. }
        | multipaxos::Message::TakeOver { .. }
        | multipaxos::Message::Recover { .. }
        | multipaxos::Message::RecoverAnswer { .. } => Claim::Nothing,
    }
}

/// What a record remembers.
#[derive(Clone, Debug)]
pub enum Fact {
    /// No lower ballot is followed.
    Promised(Ballot),
    /// This proposal was accepted.
    Accepted { ballot: Ballot, slot: Slot, batch: Batch },
    /// A peer told that this was decided.
    Learned { slot: Slot },
    /// Nothing that is checked.
    Nothing,
}

/// Whether a record remembers what a peer told.
pub fn is_learned(record: &LogRecord) -> bool {
    match record {
        LogRecord::Protocol { record: Record::MultiPaxos(record), .. } => {
            matches!(record, multipaxos::Record::Learned(_))
        }
        LogRecord::Learned { .. } => true,
        LogRecord::Entered { .. } | LogRecord::Trimmed(_) => false,
    }
}

/// What a record remembers.
pub fn fact(record: &Record) -> Fact {
    let Record::MultiPaxos(record) = record;
    match record {
        multipaxos::Record::Promised(ballot) => Fact::Promised(*ballot),
        multipaxos::Record::Accepted { value, .. } => {
            Fact::Accepted { ballot: value.ballot, slot: value.slot, batch: value.batch.clone() }
        }
        multipaxos::Record::Learned(value) => Fact::Learned { slot: value.slot },
        multipaxos::Record::Recovered(_) | multipaxos::Record::Amnesia(_) => Fact::Nothing,
    }
}
