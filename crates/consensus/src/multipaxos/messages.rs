//! What MultiPaxos replicas say to each other, and the records that each writes.
//!
//! | here | Santos 2012, section 7 |
//! | --- | --- |
//! | `Prepare` / `Promise` | PHASE1A / PHASE1B |
//! | `Accept` / `Accepted` | PHASE2A / PHASE2B |
//! | `Decided`, and the field `decided` of `Accept` and `Heartbeat` | the leader's announcement of decisions |
//! | `Heartbeat` | ALIVE |

use synod_wire::{Ballot, Batch, DecodeError, Incarnation, Keep, ReplicaId, Slot};

use crate::{
    Body, Class, Logged,
    acceptor::AcceptedValue,
    batches::{Batches, check_run, last_of, see_run, with_others},
    codec::{coded, fields},
    paxos::FamilyMessage,
};

/// A message between two MultiPaxos replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Phase 1a, for all slots from `from` on.
    Prepare {
        /// The ballot that the sender wants to lead.
        ballot: Ballot,
        /// The first slot that it wants to hear about.
        from: Slot,
    },
    /// Phase 1b: one page of what the sender accepted. The candidate asks for the next page with another
    /// `Prepare`, so that no answer is unbounded.
    Promise(Promise),
    /// Phase 2a, for consecutive slots: they leave together, and each is answered and decided by itself.
    Accept {
        /// The leader's ballot.
        ballot: Ballot,
        /// The slot of the first batch.
        first: Slot,
        /// Slots through this one are decided, those proposed in `ballot` with what was proposed.
        decided: Slot,
        /// What is proposed in `first` and the slots after it.
        batches: Batches,
    },
    /// Phase 2b, for consecutive slots.
    Accepted {
        /// The ballot of the proposals.
        ballot: Ballot,
        /// The slot of the first proposal.
        first: Slot,
        /// The slot of the last proposal.
        last: Slot,
    },
    /// Slots through `through` are decided, those proposed in `ballot` with what was proposed there.
    Decided {
        /// The leader's ballot.
        ballot: Ballot,
        /// The last slot of the decided prefix.
        through: Slot,
    },
    /// The leader lives, and asks whether the receiver still follows it, which is what a linearizable read
    /// needs to know.
    Heartbeat {
        /// The leader's ballot.
        ballot: Ballot,
        /// The same as in `Decided`.
        decided: Slot,
        /// The number of the question, which grows with every question.
        round: u64,
    },
    /// The sender still follows `ballot`.
    HeartbeatAck {
        /// The leader's ballot.
        ballot: Ballot,
        /// The number of the question that is answered.
        round: u64,
    },
    /// The receiver's ballot is too low: the sender promised `promised`.
    Reject {
        /// The higher ballot.
        promised: Ballot,
    },
    /// The leader wants the receiver to lead.
    TakeOver {
        /// The leader's ballot.
        ballot: Ballot,
    },
    /// The sender lost its log, and asks what it must know before it may vote again.
    Recover {
        /// The life that asks.
        incarnation: Incarnation,
    },
    /// Answers `Recover`.
    RecoverAnswer {
        /// The life that asked.
        asker: Incarnation,
        /// The life that answers.
        incarnation: Incarnation,
        /// The highest ballot that the sender of the answer promised.
        promised: Ballot,
        /// The first slot that the sender has not proposed in yet, if it leads in that ballot.
        next_slot: Option<Slot>,
        /// The latest lives of replicas that the sender knows of, which a replica that forgot them learns again.
        lives: Vec<(ReplicaId, Incarnation)>,
    },
}

/// The contents of [`Message::Promise`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The ballot that is promised.
    pub ballot: Ballot,
    /// The slot with which the page begins, as the candidate asked.
    pub from: Slot,
    /// Slots through this one are decided, and not reported.
    pub decided: Slot,
    /// What the sender accepted in slots of this page, in slot order.
    pub accepted: Vec<AcceptedValue>,
    /// The slot with which the next page begins; `None` if this is the last.
    pub next: Option<Slot>,
    /// The sender's own life.
    pub incarnation: Incarnation,
    /// The latest lives of replicas that the sender knows of: promises of earlier lives are void.
    pub lives: Vec<(ReplicaId, Incarnation)>,
}

fields! { Promise { ballot, from, decided, next, incarnation, lives, accepted } }

impl From<FamilyMessage> for Message {
    fn from(message: FamilyMessage) -> Message {
        match message {
            FamilyMessage::Heartbeat { ballot, decided, round } => {
                Message::Heartbeat { ballot, decided, round }
            }
            FamilyMessage::Reject { promised } => Message::Reject { promised },
            FamilyMessage::TakeOver { ballot } => Message::TakeOver { ballot },
        }
    }
}

impl Body for Message {
    coded! {
        Message, "message kind":
        1 = Prepare { ballot, from };
        2 = Promise(promise);
        3 = Accept { ballot, first, decided, batches };
        4 = Accepted { ballot, first, last };
        5 = Decided { ballot, through };
        6 = Heartbeat { ballot, decided, round };
        7 = HeartbeatAck { ballot, round };
        8 = Reject { promised };
        9 = Recover { incarnation };
        10 = RecoverAnswer { asker, incarnation, promised, next_slot, lives };
        11 = TakeOver { ballot };
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        match self {
            Message::Promise(promise) => promise.accepted.iter().for_each(|value| see(&value.batch)),
            Message::Accept { batches, .. } => batches.iter().for_each(see),
            _ => {}
        }
    }

    fn with_batches(&self, other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<crate::Message> {
        let &Message::Accept { ballot, first, decided, ref batches } = self else { return None };
        let batches = with_others(batches, other)?;
        Some(Message::Accept { ballot, first, decided, batches }.into())
    }

    fn class(&self) -> Class {
        match self {
            Message::Prepare { .. } => Class::Prepare,
            Message::Promise(_) => Class::Promise,
            Message::Accept { .. } => Class::Proposal,
            Message::Accepted { .. } => Class::Vote,
            Message::Decided { .. } => Class::Announcement,
            Message::Heartbeat { .. } => Class::Heartbeat,
            Message::HeartbeatAck { .. } => Class::HeartbeatAnswer,
            Message::Reject { .. } => Class::Refusal,
            Message::TakeOver { .. } => Class::Transfer,
            Message::Recover { .. } | Message::RecoverAnswer { .. } => Class::Recovery,
        }
    }
}

/// What an acceptor must remember across a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// No lower ballot may be answered any more.
    Promised(Ballot),
    /// Values were accepted in consecutive slots: what one message brought is one record. Each value replaces
    /// what was accepted in its slot before.
    Accepted {
        /// The ballot in which they were accepted.
        ballot: Ballot,
        /// The slot of the first batch.
        first: Slot,
        /// When this was written, slots through this one were decided, with the values that the log holds.
        decided: Slot,
        /// What was accepted in `first` and the slots after it; at least one batch.
        batches: Batches,
    },
    /// A peer told what was decided in this slot; it replaces what was accepted there.
    ///
    /// The ballot is at least every ballot in which this replica accepted something there. Without it a later
    /// candidate could take an older value of another acceptor for the newer one.
    Learned(AcceptedValue),
    /// The latest lives of replicas that this one knows of.
    Lives(Vec<(ReplicaId, Incarnation)>),
    /// Whether this replica lost a log and must not vote yet. `false` is also the first record of a new log.
    Amnesia(bool),
}

const STATE_PROMISED: u8 = 1;
const STATE_LIVES: u8 = 2;
const STATE_AMNESIA: u8 = 3;

impl Record {
    fn holds_slots(&self) -> Result<(), DecodeError> {
        if let Record::Accepted { first, batches, .. } = self { check_run(*first, batches) } else { Ok(()) }
    }
}

impl Logged for Record {
    fn keep(&self) -> Keep {
        match self {
            Record::Promised(_) => Keep::State(STATE_PROMISED),
            Record::Lives(_) => Keep::State(STATE_LIVES),
            Record::Amnesia(_) => Keep::State(STATE_AMNESIA),
            // If a snapshot covers a part of the record, replay ignores that part.
            Record::Accepted { first, batches, .. } => Keep::Slot(last_of(*first, batches)),
            Record::Learned(value) => Keep::Slot(value.slot),
        }
    }

    coded! {
        Record, "record kind":
        1 = Promised(promised);
        2 = Accepted { ballot, first, decided, batches };
        3 = Learned(value);
        4 = Lives(lives);
        5 = Amnesia(amnesia);
        checked by Record::holds_slots
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        match self {
            Record::Accepted { first, batches, .. } => see_run(*first, batches, see),
            Record::Learned(value) => see(value.slot, &value.batch),
            Record::Promised(_) | Record::Lives(_) | Record::Amnesia(_) => {}
        }
    }

    fn is_decision(&self) -> bool {
        matches!(self, Record::Learned(_))
    }

    fn amnesia(&self) -> Option<bool> {
        if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
    }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
