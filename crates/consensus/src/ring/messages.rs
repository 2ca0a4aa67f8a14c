//! What replicas of the ring say to each other, and the records that each writes.
//!
//! | here | Benz 2013 |
//! | --- | --- |
//! | `Prepare` / `Promise` | Phase1Range, open-ended, asked and answered directly |
//! | `Values` | Value |
//! | `Accept`, `Votes` | Phase2, in two: bytes wait for no disk, votes do |
//! | `Decision` | Decision |
//! | `View` | what ZooKeeper tells each node |

use synod_wire::{Ballot, Batch, DecodeError, Keep, Reader, ReplicaId, Slot, Writer};

use super::{Delay, View, Votes};
use crate::{
    Body, Class, Logged,
    batches::{Batches, check_run, last_of, see_run},
    codec::{Field, coded, fields},
    paxos::FamilyMessage,
};

/// A message between two replicas of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Phase 1a, for all slots from `from` on.
    Prepare {
        /// The ballot that the sender wants to lead.
        ballot: Ballot,
        /// The first slot that it wants to hear about.
        from: Slot,
    },
    /// Phase 1a for the slots of a range, with `ring-reserve`: the receiver promises the ballot for all slots, and
    /// tells what it accepted in these.
    PrepareRange {
        /// The same as in `Prepare`.
        ballot: Ballot,
        /// The first slot that it wants to hear about.
        from: Slot,
        /// The last.
        through: Slot,
    },
    /// Phase 1b: one page of what the sender accepted. The candidate asks for the next page with another `Prepare`.
    Promise(Promise),
    /// Batches on their way from their origin to the coordinator.
    Values {
        /// The ring along which they go.
        view: View,
        /// Whether every member needs the bytes, however far they came.
        safe: bool,
        /// The batches.
        values: Vec<Value>,
    },
    /// Phase 2a, for consecutive slots, on its way round the ring until the member before the coordinator has it.
    Accept(Accept),
    /// Phase 2b, for consecutive slots, on its way round the ring until a quorum has voted.
    Votes(VoteRun),
    /// These consecutive slots are decided, with what was proposed in the view's ballot.
    Decision(DecisionRun),
    /// This is the ring from now on.
    View {
        /// The ring.
        view: View,
    },
    /// Slots through `through` are decided, those proposed in `ballot` with what was proposed there: answers values
    /// that were delivered before.
    Decided {
        /// The coordinator's ballot.
        ballot: Ballot,
        /// The last slot of the decided prefix.
        through: Slot,
    },
    /// The coordinator lives, and asks whether the receiver still follows it.
    Heartbeat {
        /// The coordinator's ballot.
        ballot: Ballot,
        /// The same as `through` in `Decided`.
        decided: Slot,
        /// The number of the question, which grows with every question.
        round: u64,
    },
    /// The sender still follows `ballot`. A learner on the ring says so unsolicited, which counts as no answer.
    HeartbeatAck {
        /// The coordinator's ballot.
        ballot: Ballot,
        /// The number of the question that is answered; 0 if none is.
        round: u64,
        /// The number of the view of that ballot which the sender knows; 0 if it knows none.
        minor: u64,
        /// The sender has delivered the slots through this one.
        decided: Slot,
    },
    /// The receiver's ballot is too low: the sender promised `promised`.
    Reject {
        /// The higher ballot.
        promised: Ballot,
    },
    /// How long what the sender sends takes to other members; with `ring-order=measured` only.
    Delays {
        /// The other members that answered lately.
        delays: Vec<Delay>,
    },
    /// The coordinator wants the receiver to lead.
    TakeOver {
        /// The coordinator's ballot.
        ballot: Ballot,
    },
}

/// The contents of [`Message::Accept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The ring along which it goes.
    pub view: View,
    /// The slot of the first value.
    pub first: Slot,
    /// Slots through this one are decided, those proposed in the view's ballot with what was proposed.
    pub decided: Slot,
    /// The same as in [`Message::Values`].
    pub safe: bool,
    /// What is proposed in `first` and the slots after it.
    pub values: Vec<Value>,
}

/// The contents of [`Message::Votes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteRun {
    /// The ring along which it goes.
    pub view: View,
    /// The first slot.
    pub first: Slot,
    /// The last slot.
    pub last: Slot,
    /// The same as in [`Accept`].
    pub decided: Slot,
    /// The members of the view that have durably accepted what was proposed in these slots in the view's ballot.
    pub votes: Votes,
}

/// The contents of [`Message::Decision`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRun {
    /// The ring along which it goes.
    pub view: View,
    /// The first slot.
    pub first: Slot,
    /// The last slot.
    pub last: Slot,
    /// How many members it reaches from here on.
    pub ttl: u8,
}

/// A batch on its way, with its bytes or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// For how many more hops, this one included, the bytes are needed.
    pub hops: u8,
    /// The batch.
    pub content: Content,
}

/// What a message carries of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The batch.
    Whole(Batch),
    /// Its name, with length and checksum ([`Batch::reference`]): its receiver has the bytes.
    Name(Batch),
}

impl Content {
    /// The batch, if it is here.
    #[must_use]
    pub fn whole(&self) -> Option<&Batch> {
        match self {
            Content::Whole(batch) => Some(batch),
            Content::Name(_) => None,
        }
    }

    /// The batch, or its name.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        match self {
            Content::Whole(batch) | Content::Name(batch) => batch,
        }
    }

    /// Whether this is a batch, or its name.
    #[must_use]
    pub fn is_of(&self, batch: &Batch) -> bool {
        match self {
            Content::Whole(whole) => whole == batch,
            Content::Name(name) => name.stands_for(batch),
        }
    }
}

impl Field for Value {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.hops);
        let (whole, batch) = match &self.content {
            Content::Whole(batch) => (true, batch),
            Content::Name(name) => (false, name),
        };
        writer.bool(whole);
        writer.batch(batch);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Value, DecodeError> {
        let hops = reader.u8("hops of a value")?;
        let whole = reader.bool("whether a value is whole")?;
        let batch = reader.batch(name)?;
        if !whole && !batch.is_reference() {
            return Err(DecodeError::Undefined { field: "name of a value", value: 0 });
        }
        Ok(Value { hops, content: if whole { Content::Whole(batch) } else { Content::Name(batch) } })
    }
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
    /// The next slot in which the sender accepted something, also beyond the range that it was asked for; `None` if
    /// there is none.
    pub next: Option<Slot>,
}

/// A value that an acceptor accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedValue {
    /// The slot.
    pub slot: Slot,
    /// The ballot in which it was accepted.
    pub ballot: Ballot,
    /// The value.
    pub batch: Batch,
}

fields! { AcceptedValue { slot, ballot, batch } }

fields! { Accept { view, first, decided, safe, values } }

fields! { VoteRun { view, first, last, decided, votes } }

fields! { DecisionRun { view, first, last, ttl } }

fields! { Promise { ballot, from, decided, next, accepted } }

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

impl Message {
    /// Whether its slots are a run that does not end with the last number that there is.
    fn holds_slots(&self) -> Result<(), DecodeError> {
        let (first, last) = match self {
            Message::Accept(Accept { first, values, .. }) => {
                (*first, first.0.saturating_add(values.len() as u64))
            }
            Message::Votes(VoteRun { first, last, .. })
            | Message::Decision(DecisionRun { first, last, .. }) => (*first, last.0),
            _ => return Ok(()),
        };
        if first.0 <= last && last < u64::MAX {
            Ok(())
        } else {
            Err(DecodeError::Undefined { field: "last slot of a run", value: last })
        }
    }
}

impl Body for Message {
    coded! {
        Message, "message kind":
        1 = Prepare { ballot, from };
        2 = Promise(promise);
        3 = Values { view, safe, values };
        4 = Accept(accept);
        5 = Votes(votes);
        6 = Decision(decision);
        7 = View { view };
        8 = Decided { ballot, through };
        9 = Heartbeat { ballot, decided, round };
        10 = HeartbeatAck { ballot, round, minor, decided };
        11 = Reject { promised };
        12 = TakeOver { ballot };
        13 = Delays { delays };
        14 = PrepareRange { ballot, from, through };
        checked by Message::holds_slots
    }

    /// Names are not batches: the code that carries this message has nothing to fill in.
    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        match self {
            Message::Promise(promise) => promise.accepted.iter().for_each(|value| see(&value.batch)),
            Message::Values { values, .. } | Message::Accept(Accept { values, .. }) => {
                values.iter().filter_map(|value| value.content.whole()).for_each(see);
            }
            _ => {}
        }
    }

    fn other_bytes(&self) -> u64 {
        let (view, values) = match self {
            Message::Values { view, values, .. } | Message::Accept(Accept { view, values, .. }) => {
                (view, &values[..])
            }
            Message::Votes(VoteRun { view, .. })
            | Message::Decision(DecisionRun { view, .. })
            | Message::View { view } => (view, &[][..]),
            Message::Delays { delays } => return (delays.len() * size_of::<Delay>()) as u64,
            _ => return 0,
        };
        let names = values.iter().filter(|value| value.content.whole().is_none()).count();
        (names * NAME_BYTES + view.len() * size_of::<ReplicaId>()) as u64
    }

    fn class(&self) -> Class {
        match self {
            Message::Prepare { .. } | Message::PrepareRange { .. } => Class::Prepare,
            Message::Promise(_) => Class::Promise,
            Message::Values { .. } => Class::Dissemination,
            Message::Accept(_) => Class::Proposal,
            Message::Votes(_) => Class::Vote,
            Message::Decision(_) | Message::View { .. } | Message::Decided { .. } => Class::Announcement,
            Message::Heartbeat { .. } => Class::Heartbeat,
            Message::HeartbeatAck { .. } | Message::Delays { .. } => Class::HeartbeatAnswer,
            Message::Reject { .. } => Class::Refusal,
            Message::TakeOver { .. } => Class::Transfer,
        }
    }
}

/// About the most bytes that a name takes in a message.
const NAME_BYTES: usize = 64;

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
    /// This was decided in this slot, as a peer or a decision says; it replaces what was accepted there.
    Learned(AcceptedValue),
    /// Whether this replica lost a log and must not vote in this epoch. `false` is the first record of a new log.
    Amnesia(bool),
}

const STATE_PROMISED: u8 = 1;
const STATE_AMNESIA: u8 = 2;

impl Record {
    fn holds_slots(&self) -> Result<(), DecodeError> {
        if let Record::Accepted { first, batches, .. } = self { check_run(*first, batches) } else { Ok(()) }
    }
}

impl Logged for Record {
    fn keep(&self) -> Keep {
        match self {
            Record::Promised(_) => Keep::State(STATE_PROMISED),
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
        4 = Amnesia(amnesia);
        checked by Record::holds_slots
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        match self {
            Record::Accepted { first, batches, .. } => see_run(*first, batches, see),
            Record::Learned(value) => see(value.slot, &value.batch),
            Record::Promised(_) | Record::Amnesia(_) => {}
        }
    }

    fn is_decision(&self) -> bool {
        matches!(self, Record::Learned(_))
    }

    fn amnesia(&self) -> Option<bool> {
        if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
    }
}
