//! Messages and records as people read them.
//!
//! Each folder says how its own are written. What is in a batch is not known here: the caller says how batches are
//! written.

use synod_wire::{Batch, Slot};

/// How a batch is written.
pub type BatchText<'a> = &'a dyn Fn(&Batch) -> String;

/// A message, or a record, as people read it.
pub trait Describe {
    /// In one line.
    fn describe(&self, batch: BatchText<'_>) -> String;
}

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident = $name:literal,)+) => {
        /// What a message is for, in words that serve all protocols.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class {
            $($(#[$doc])* $class,)+
        }

        impl Class {
            /// All of them.
            pub const ALL: &'static [Class] = &[$(Class::$class,)+];

            /// As scripts name it.
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
    /// The receiver may lead.
    Promise = "promise",
    /// Brings a replica in line with a new leader.
    Sync = "sync",
    /// What is to be ordered.
    Proposal = "proposal",
    /// The sender has accepted that.
    Vote = "vote",
    /// How far decisions go.
    Announcement = "announcement",
    /// The leader lives.
    Heartbeat = "heartbeat",
    /// The sender follows.
    HeartbeatAnswer = "heartbeat-answer",
    /// The receiver is not obeyed.
    Refusal = "refusal",
    /// The receiver is to lead.
    Transfer = "transfer",
    /// The sender lacks something.
    Recovery = "recovery",
    /// Who should lead.
    Election = "election",
    /// Which batches there are, and who holds them.
    Dissemination = "dissemination",
}

/// Consecutive slots.
pub(crate) fn run(first: Slot, last: Slot) -> String {
    if first == last { format!("slot {first}") } else { format!("slots {first} to {last}") }
}

/// Whether the log before this is lost.
pub(crate) fn amnesia(lost: bool) -> String {
    if lost { "the log before this is lost" } else { "the log is whole" }.to_owned()
}
