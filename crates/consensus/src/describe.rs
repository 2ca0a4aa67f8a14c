//! Messages and records as text for people.
//!
//! Each folder says how its own are written, in its list of messages ([`crate::messages!`]). The contents of a batch
//! are not known here: the caller says how batches are written.

use synod_wire::{Batch, Slot};

use crate::acceptor::AcceptedValue;

/// How a batch is written.
pub type BatchText<'a> = &'a dyn Fn(&Batch) -> String;

/// A message, or a record, as text for people.
pub trait Describe {
    /// The text, in one line.
    fn describe(&self, batch: BatchText<'_>) -> String;
}

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident = $name:literal,)+) => {
        /// The purpose of a message, in terms that fit all protocols.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class {
            $($(#[$doc])* $class,)+
        }

        impl Class {
            /// All classes.
            pub const ALL: &'static [Class] = &[$(Class::$class,)+];

            /// The name that scripts use.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Class::$class => $name,)+ }
            }
        }
    };
}

classes! {
    /// The sender wants to lead.
    Prepare = "prepare",
    /// The receiver may lead, as far as the sender is concerned.
    Promise = "promise",
    /// The message brings a replica in line with a new leader.
    Sync = "sync",
    /// The message carries what has to be ordered.
    Proposal = "proposal",
    /// The sender has accepted a proposal.
    Vote = "vote",
    /// The message says how far decisions go.
    Announcement = "announcement",
    /// The leader lives.
    Heartbeat = "heartbeat",
    /// The sender still follows the leader.
    HeartbeatAnswer = "heartbeat-answer",
    /// The sender does not obey the receiver.
    Refusal = "refusal",
    /// The receiver is asked to lead.
    Transfer = "transfer",
    /// The sender lacks something.
    Recovery = "recovery",
    /// The message is about which replica should lead.
    Election = "election",
    /// The message carries batches, or says which replica holds them.
    Dissemination = "dissemination",
}

/// The text for consecutive slots.
pub(crate) fn run(first: Slot, last: Slot) -> String {
    if first == last { format!("slot {first}") } else { format!("slots {first} to {last}") }
}

/// The text for whether the log before a record is lost.
pub(crate) fn amnesia(lost: bool) -> String {
    if lost { "the log before this is lost" } else { "the log is whole" }.to_owned()
}

/// The text for batches of consecutive slots.
pub(crate) fn joined(batches: &[Batch], batch: BatchText<'_>) -> String {
    batches.iter().map(batch).collect::<Vec<_>>().join(" | ")
}

/// The text for what an acceptor tells that it accepted.
pub(crate) fn accepted(values: &[AcceptedValue], batch: BatchText<'_>) -> String {
    let one = |AcceptedValue { slot, ballot, batch: value }: &AcceptedValue| {
        format!("slot {slot} in {ballot}: {}", batch(value))
    };
    match values {
        [] => "nothing accepted".to_owned(),
        _ => values.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

/// The text for where the next page of that begins, if there is one.
pub(crate) fn more(next: Option<Slot>) -> String {
    next.map_or(String::new(), |next| format!("; more from slot {next}"))
}
