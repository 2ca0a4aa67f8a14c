//! What MultiPaxos replicas say to each other, and the records that each writes.
//!
//! | here | Santos 2012, section 7 |
//! | --- | --- |
//! | `Prepare` / `Promise` | PHASE1A / PHASE1B |
//! | `Accept` / `Accepted` | PHASE2A / PHASE2B |
//! | `Decided`, and the field `decided` of `Accept` and `Heartbeat` | the leader's announcement of decisions |
//! | `Heartbeat` | ALIVE |

use synod_wire::{Ballot, Batch, DecodeError, Incarnation, Keep, Reader, ReplicaId, Slot, Writer};

use crate::{
    Body, Class, Logged,
    batches::{Batches, last_of, read_batches, read_run, see_run, write_batches},
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

impl AcceptedValue {
    fn encode(&self, writer: &mut Writer) {
        writer.slot(self.slot);
        writer.ballot(self.ballot);
        writer.batch(&self.batch);
    }

    fn decode(reader: &mut Reader) -> Result<AcceptedValue, DecodeError> {
        Ok(AcceptedValue {
            slot: reader.slot("accepted slot")?,
            ballot: reader.ballot("accepted ballot")?,
            batch: reader.batch("accepted batch")?,
        })
    }
}

const PREPARE: u8 = 1;
const PROMISE: u8 = 2;
const ACCEPT: u8 = 3;
const ACCEPTED: u8 = 4;
const DECIDED: u8 = 5;
const HEARTBEAT: u8 = 6;
const HEARTBEAT_ACK: u8 = 7;
const REJECT: u8 = 8;
const RECOVER: u8 = 9;
const RECOVER_ANSWER: u8 = 10;
const TAKE_OVER: u8 = 11;

fn write_option(writer: &mut Writer, slot: Option<Slot>) {
    // Slot 0 is never proposed, so it can stand for "none".
    writer.slot(slot.unwrap_or(Slot::ZERO));
}

fn read_option(reader: &mut Reader, field: &'static str) -> Result<Option<Slot>, DecodeError> {
    Ok(Some(reader.slot(field)?).filter(|&slot| slot != Slot::ZERO))
}

impl Body for Message {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Message::Prepare { ballot, from } => {
                writer.u8(PREPARE);
                writer.ballot(*ballot);
                writer.slot(*from);
            }
            Message::Promise(promise) => {
                writer.u8(PROMISE);
                promise.encode(writer);
            }
            Message::Accept { ballot, first, decided, batches } => {
                writer.u8(ACCEPT);
                writer.ballot(*ballot);
                writer.slot(*first);
                writer.slot(*decided);
                write_batches(writer, batches);
            }
            Message::Accepted { ballot, first, last } => {
                writer.u8(ACCEPTED);
                writer.ballot(*ballot);
                writer.slot(*first);
                writer.slot(*last);
            }
            Message::Decided { ballot, through } => {
                writer.u8(DECIDED);
                writer.ballot(*ballot);
                writer.slot(*through);
            }
            Message::Heartbeat { ballot, decided, round } => {
                writer.u8(HEARTBEAT);
                writer.ballot(*ballot);
                writer.slot(*decided);
                writer.u64(*round);
            }
            Message::HeartbeatAck { ballot, round } => {
                writer.u8(HEARTBEAT_ACK);
                writer.ballot(*ballot);
                writer.u64(*round);
            }
            Message::Reject { promised } => {
                writer.u8(REJECT);
                writer.ballot(*promised);
            }
            Message::TakeOver { ballot } => {
                writer.u8(TAKE_OVER);
                writer.ballot(*ballot);
            }
            Message::Recover { incarnation } => {
                writer.u8(RECOVER);
                writer.u64(incarnation.0);
            }
            Message::RecoverAnswer { asker, incarnation, promised, next_slot, lives } => {
                writer.u8(RECOVER_ANSWER);
                writer.u64(asker.0);
                writer.u64(incarnation.0);
                writer.ballot(*promised);
                write_option(writer, *next_slot);
                write_lives(writer, lives);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Message, DecodeError> {
        Ok(match reader.u8("message kind")? {
            PREPARE => Message::Prepare { ballot: reader.ballot("ballot")?, from: reader.slot("from")? },
            PROMISE => Message::Promise(Promise::decode(reader)?),
            ACCEPT => Message::Accept {
                ballot: reader.ballot("ballot")?,
                first: reader.slot("first")?,
                decided: reader.slot("decided")?,
                batches: read_batches(reader)?,
            },
            ACCEPTED => Message::Accepted {
                ballot: reader.ballot("ballot")?,
                first: reader.slot("first")?,
                last: reader.slot("last")?,
            },
            DECIDED => {
                Message::Decided { ballot: reader.ballot("ballot")?, through: reader.slot("through")? }
            }
            HEARTBEAT => Message::Heartbeat {
                ballot: reader.ballot("ballot")?,
                decided: reader.slot("decided")?,
                round: reader.u64("round")?,
            },
            HEARTBEAT_ACK => {
                Message::HeartbeatAck { ballot: reader.ballot("ballot")?, round: reader.u64("round")? }
            }
            REJECT => Message::Reject { promised: reader.ballot("promised")? },
            TAKE_OVER => Message::TakeOver { ballot: reader.ballot("ballot")? },
            RECOVER => Message::Recover { incarnation: Incarnation(reader.u64("incarnation")?) },
            RECOVER_ANSWER => Message::RecoverAnswer {
                asker: Incarnation(reader.u64("asker")?),
                incarnation: Incarnation(reader.u64("incarnation")?),
                promised: reader.ballot("promised")?,
                next_slot: read_option(reader, "next slot")?,
                lives: read_lives(reader)?,
            },
            value => return Err(DecodeError::Undefined { field: "message kind", value: value.into() }),
        })
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        match self {
            Message::Promise(promise) => promise.accepted.iter().for_each(|value| see(&value.batch)),
            Message::Accept { batches, .. } => batches.iter().for_each(see),
            _ => {}
        }
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

impl Promise {
    fn encode(&self, writer: &mut Writer) {
        writer.ballot(self.ballot);
        writer.slot(self.from);
        writer.slot(self.decided);
        write_option(writer, self.next);
        writer.u64(self.incarnation.0);
        write_lives(writer, &self.lives);
        writer.u32(u32::try_from(self.accepted.len()).expect("a page is small"));
        for value in &self.accepted {
            value.encode(writer);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Promise, DecodeError> {
        let ballot = reader.ballot("ballot")?;
        let from = reader.slot("from")?;
        let decided = reader.slot("decided")?;
        let next = read_option(reader, "next")?;
        let incarnation = Incarnation(reader.u64("incarnation")?);
        let lives = read_lives(reader)?;
        let count = reader.u32("accepted count")?;
        let mut accepted = Vec::new();
        for _ in 0..count {
            accepted.push(AcceptedValue::decode(reader)?);
        }
        Ok(Promise { ballot, from, decided, accepted, next, incarnation, lives })
    }
}

fn write_lives(writer: &mut Writer, lives: &[(ReplicaId, Incarnation)]) {
    writer.u32(u32::try_from(lives.len()).expect("at most one life a member"));
    for (replica, incarnation) in lives {
        writer.replica(*replica);
        writer.u64(incarnation.0);
    }
}

fn read_lives(reader: &mut Reader) -> Result<Vec<(ReplicaId, Incarnation)>, DecodeError> {
    let count = reader.u32("lives")?;
    let mut lives = Vec::new();
    for _ in 0..count {
        lives.push((reader.replica("life of")?, Incarnation(reader.u64("incarnation")?)));
    }
    Ok(lives)
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

    fn encode(&self, writer: &mut Writer) {
        match self {
            Record::Promised(ballot) => {
                writer.u8(1);
                writer.ballot(*ballot);
            }
            Record::Accepted { ballot, first, decided, batches } => {
                writer.u8(2);
                writer.ballot(*ballot);
                writer.slot(*first);
                writer.slot(*decided);
                write_batches(writer, batches);
            }
            Record::Learned(value) => {
                writer.u8(3);
                value.encode(writer);
            }
            Record::Lives(lives) => {
                writer.u8(4);
                write_lives(writer, lives);
            }
            Record::Amnesia(amnesia) => {
                writer.u8(5);
                writer.bool(*amnesia);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Record, DecodeError> {
        Ok(match reader.u8("record kind")? {
            1 => Record::Promised(reader.ballot("promised")?),
            2 => {
                let (ballot, first) = (reader.ballot("ballot")?, reader.slot("first")?);
                let decided = reader.slot("decided")?;
                Record::Accepted { ballot, first, decided, batches: read_run(reader, first)? }
            }
            3 => Record::Learned(AcceptedValue::decode(reader)?),
            4 => Record::Lives(read_lives(reader)?),
            5 => Record::Amnesia(reader.bool("amnesia")?),
            value => return Err(DecodeError::Undefined { field: "record kind", value: value.into() }),
        })
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
