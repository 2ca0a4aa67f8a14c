//! What Sequence Paxos replicas say to each other, and what each writes down.
//!
//! Slots take the place of the lengths of Ng 2020: "the sequence through slot l" has length l. All are absolute,
//! so that what was said at different times can be compared (errata E17 and E22).

use synod_wire::{Ballot, Ballots, Batch, DecodeError, Keep, Reader, Slot, Writer};

use super::Extent;
use crate::{
    Body, Class, Logged,
    batches::{Batches, last_of, read_batches, see_run, write_batches},
};

/// A message between two Sequence Paxos replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender wants to lead, or leads and wants to know what the receiver has.
    Prepare(Prepare),
    /// Answers `Prepare`.
    Promise(Promise),
    /// The receiver's sequence is to become that of the sender, in one step.
    AcceptSync(AcceptSync),
    /// A page of an `AcceptSync` that is not the last is there; send the one that begins at `from`.
    SyncNext {
        /// The leader's ballot.
        ballot: Ballot,
        /// As in the `AcceptSync`.
        start: Slot,
        /// Where the next page begins.
        from: Slot,
    },
    /// The next elements of the sequence.
    Accept {
        /// The leader's ballot.
        ballot: Ballot,
        /// Where they go: whoever has nothing in the slot before must not take them (E17).
        start: Slot,
        /// The sequence through this slot is decided, as far as it was proposed in `ballot`.
        decided: Slot,
        /// What goes into `start` and the slots behind it.
        batches: Batches,
    },
    /// The sender has accepted the sequence of `ballot` through `last`.
    Accepted {
        /// The ballot.
        ballot: Ballot,
        /// The last slot accepted.
        last: Slot,
    },
    /// The sequence of `ballot` is decided through `through`.
    Decide {
        /// The leader's ballot.
        ballot: Ballot,
        /// The last slot decided.
        through: Slot,
    },
    /// The sender may have missed something: whoever leads in no lower ballot should send it a `Prepare`.
    PrepareReq {
        /// What the sender has promised.
        promised: Ballot,
    },
    /// The receiver is so far behind that the leader has dropped what it lacks. It should learn the slots through
    /// `through` from whoever has them, and then ask for a `Prepare`.
    Behind {
        /// The leader's ballot.
        ballot: Ballot,
        /// Slots through this one are decided.
        through: Slot,
    },
    /// The leader lives. Also asks whether the receiver still follows it, which is what a linearizable read
    /// needs to know.
    Heartbeat {
        /// The leader's ballot.
        ballot: Ballot,
        /// As in `Decide`.
        decided: Slot,
        /// Grows with every question.
        round: u64,
    },
    /// The sender still follows `ballot`.
    HeartbeatAck {
        /// The leader's ballot.
        ballot: Ballot,
        /// The question that is answered.
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
}

/// See [`Message::Prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// The ballot of the sender.
    pub ballot: Ballot,
    /// What it has.
    pub has: Extent,
    /// For the next page of an answer, where it begins; slot 0: the first page.
    pub page: Slot,
}

/// See [`Message::Promise`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The ballot that is promised.
    pub ballot: Ballot,
    /// What the sender has: its own decided slot, not that of the `Prepare` (E2).
    pub has: Extent,
    /// As in the `Prepare`.
    pub page: Slot,
    /// If the sender's sequence may hold something that the candidate lacks, the elements from `start` on.
    pub start: Slot,
    /// See `start`. One page of them, so that no answer is unbounded.
    pub batches: Batches,
    /// Whether there are more behind this page.
    pub more: bool,
}

/// See [`Message::AcceptSync`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptSync {
    /// The leader's ballot.
    pub ballot: Ballot,
    /// The receiver keeps what it has before this slot; everything else is replaced.
    pub start: Slot,
    /// This page begins here.
    pub from: Slot,
    /// Its elements.
    pub batches: Batches,
    /// Whether there is another page: then nothing is accepted yet.
    pub more: bool,
    /// As in `Accept`.
    pub decided: Slot,
}

const PREPARE: u8 = 1;
const PROMISE: u8 = 2;
const ACCEPT_SYNC: u8 = 3;
const SYNC_NEXT: u8 = 4;
const ACCEPT: u8 = 5;
const ACCEPTED: u8 = 6;
const DECIDE: u8 = 7;
const PREPARE_REQ: u8 = 8;
const BEHIND: u8 = 9;
const HEARTBEAT: u8 = 10;
const HEARTBEAT_ACK: u8 = 11;
const REJECT: u8 = 12;
const TAKE_OVER: u8 = 13;

impl Extent {
    fn encode(&self, writer: &mut Writer) {
        writer.ballot(self.accepted_in);
        writer.slot(self.last);
        writer.slot(self.decided);
    }

    fn decode(reader: &mut Reader) -> Result<Extent, DecodeError> {
        Ok(Extent {
            accepted_in: reader.ballot("accepted in")?,
            last: reader.slot("last")?,
            decided: reader.slot("decided")?,
        })
    }
}

impl Body for Message {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Message::Prepare(Prepare { ballot, has, page }) => {
                writer.u8(PREPARE);
                writer.ballot(*ballot);
                has.encode(writer);
                writer.slot(*page);
            }
            Message::Promise(Promise { ballot, has, page, start, batches, more }) => {
                writer.u8(PROMISE);
                writer.ballot(*ballot);
                has.encode(writer);
                writer.slot(*page);
                writer.slot(*start);
                writer.bool(*more);
                write_batches(writer, batches);
            }
            Message::AcceptSync(AcceptSync { ballot, start, from, batches, more, decided }) => {
                writer.u8(ACCEPT_SYNC);
                writer.ballot(*ballot);
                writer.slot(*start);
                writer.slot(*from);
                writer.bool(*more);
                writer.slot(*decided);
                write_batches(writer, batches);
            }
            Message::SyncNext { ballot, start, from } => {
                writer.u8(SYNC_NEXT);
                writer.ballot(*ballot);
                writer.slot(*start);
                writer.slot(*from);
            }
            Message::Accept { ballot, start, decided, batches } => {
                writer.u8(ACCEPT);
                writer.ballot(*ballot);
                writer.slot(*start);
                writer.slot(*decided);
                write_batches(writer, batches);
            }
            Message::Accepted { ballot, last: slot }
            | Message::Decide { ballot, through: slot }
            | Message::Behind { ballot, through: slot } => {
                writer.u8(match self {
                    Message::Accepted { .. } => ACCEPTED,
                    Message::Decide { .. } => DECIDE,
                    _ => BEHIND,
                });
                writer.ballot(*ballot);
                writer.slot(*slot);
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
            Message::PrepareReq { promised: ballot }
            | Message::Reject { promised: ballot }
            | Message::TakeOver { ballot } => {
                writer.u8(match self {
                    Message::PrepareReq { .. } => PREPARE_REQ,
                    Message::Reject { .. } => REJECT,
                    _ => TAKE_OVER,
                });
                writer.ballot(*ballot);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Message, DecodeError> {
        let kind = reader.u8("message kind")?;
        let ballot = reader.ballot("ballot")?;
        Ok(match kind {
            PREPARE => {
                Message::Prepare(Prepare { ballot, has: Extent::decode(reader)?, page: reader.slot("page")? })
            }
            PROMISE => {
                let has = Extent::decode(reader)?;
                let (page, start, more) = (reader.slot("page")?, reader.slot("start")?, reader.bool("more")?);
                Message::Promise(Promise { ballot, has, page, start, batches: read_batches(reader)?, more })
            }
            ACCEPT_SYNC => {
                let (start, from) = (reader.slot("start")?, reader.slot("from")?);
                let (more, decided) = (reader.bool("more")?, reader.slot("decided")?);
                let batches = read_batches(reader)?;
                Message::AcceptSync(AcceptSync { ballot, start, from, batches, more, decided })
            }
            SYNC_NEXT => {
                Message::SyncNext { ballot, start: reader.slot("start")?, from: reader.slot("from")? }
            }
            ACCEPT => {
                let (start, decided) = (reader.slot("start")?, reader.slot("decided")?);
                Message::Accept { ballot, start, decided, batches: read_batches(reader)? }
            }
            ACCEPTED => Message::Accepted { ballot, last: reader.slot("last")? },
            DECIDE => Message::Decide { ballot, through: reader.slot("through")? },
            BEHIND => Message::Behind { ballot, through: reader.slot("through")? },
            PREPARE_REQ => Message::PrepareReq { promised: ballot },
            HEARTBEAT => {
                Message::Heartbeat { ballot, decided: reader.slot("decided")?, round: reader.u64("round")? }
            }
            HEARTBEAT_ACK => Message::HeartbeatAck { ballot, round: reader.u64("round")? },
            REJECT => Message::Reject { promised: ballot },
            TAKE_OVER => Message::TakeOver { ballot },
            value => return Err(DecodeError::Undefined { field: "message kind", value: value.into() }),
        })
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        match self {
            Message::Promise(Promise { batches, .. })
            | Message::AcceptSync(AcceptSync { batches, .. })
            | Message::Accept { batches, .. } => batches.iter().for_each(see),
            _ => {}
        }
    }

    fn class(&self) -> Class {
        match self {
            Message::Prepare(_) => Class::Prepare,
            Message::Promise(_) => Class::Promise,
            Message::AcceptSync(_) | Message::SyncNext { .. } | Message::Behind { .. } => Class::Sync,
            Message::Accept { .. } => Class::Proposal,
            Message::Accepted { .. } => Class::Vote,
            Message::Decide { .. } => Class::Announcement,
            Message::PrepareReq { .. } => Class::Recovery,
            Message::Heartbeat { .. } => Class::Heartbeat,
            Message::HeartbeatAck { .. } => Class::HeartbeatAnswer,
            Message::Reject { .. } => Class::Refusal,
            Message::TakeOver { .. } => Class::Transfer,
        }
    }
}

/// What a replica must remember across a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// No lower ballot may be answered any more (Ng 2020: n_prom).
    Promised(Ballot),
    /// The accepted sequence went on: behind `start` nothing was held.
    Accepted {
        /// The ballot of the sequence.
        ballot: Ballot,
        /// Where the batches go.
        start: Slot,
        /// When this was written, slots through this one were decided, with the values that the log holds.
        decided: Slot,
        /// What was accepted.
        batches: Batches,
    },
    /// A page of a new sequence that is not whole yet: without the `Adopted` that names it, it means nothing.
    Staged {
        /// The ballot of the sequence.
        ballot: Ballot,
        /// As in the `Adopted`.
        start: Slot,
        /// The page begins here.
        from: Slot,
        /// The page.
        batches: Batches,
    },
    /// The accepted ballot and the accepted sequence changed, both at once (erratum E20): what was held before
    /// `start` stays, the staged pages of this ballot and `start` follow up to `from`, then come `batches`.
    /// Whatever else was held behind `start` is gone.
    Adopted {
        /// The ballot of the sequence from now on.
        ballot: Ballot,
        /// What lies before it stays.
        start: Slot,
        /// Where `batches` begin.
        from: Slot,
        /// As in `Accepted`.
        decided: Slot,
        /// No record before this one holds a slot behind this one. It may be forgotten only together with all of
        /// them: otherwise a restart would take what it cut off for a part of its sequence.
        covers: Slot,
        /// The last page.
        batches: Batches,
    },
    /// A peer told what was decided in this slot, and that is something else than what was accepted there, or a higher
    /// ballot decided it than the one in which it was accepted.
    Learned {
        /// The slot. Those before it were decided when this was written.
        slot: Slot,
        /// As that peer delivered it: a restart must not make them lower.
        ballots: Ballots,
        /// What was decided.
        batch: Batch,
    },
    /// Whether this replica lost a log and must not vote. `false` is also the first record of a new log.
    Amnesia(bool),
    /// A snapshot covers slots through this one, whose records may be gone, and with them the ballot of the
    /// sequence.
    Trimmed {
        /// The slot.
        slot: Slot,
        /// The accepted ballot when this was written; it never decreases.
        accepted_in: Ballot,
    },
}

const STATE_PROMISED: u8 = 1;
const STATE_AMNESIA: u8 = 3;
const STATE_TRIMMED: u8 = 4;

impl Record {
    /// How many slots it holds something for.
    pub(super) fn slots(&self) -> u64 {
        match self {
            Record::Accepted { batches, .. }
            | Record::Staged { batches, .. }
            | Record::Adopted { batches, .. } => batches.len() as u64,
            Record::Learned { .. } => 1,
            Record::Promised(_) | Record::Amnesia(_) | Record::Trimmed { .. } => 0,
        }
    }
}

impl Logged for Record {
    fn keep(&self) -> Keep {
        match self {
            Record::Promised(_) => Keep::State(STATE_PROMISED),
            Record::Amnesia(_) => Keep::State(STATE_AMNESIA),
            Record::Trimmed { .. } => Keep::State(STATE_TRIMMED),
            Record::Accepted { start, batches, .. } => Keep::Slot(last_of(*start, batches)),
            Record::Staged { from, batches, .. } => Keep::Slot(last_of(*from, batches)),
            Record::Adopted { covers, .. } => Keep::Slot(*covers),
            Record::Learned { slot, .. } => Keep::Slot(*slot),
        }
    }

    fn encode(&self, writer: &mut Writer) {
        match self {
            Record::Promised(ballot) => {
                writer.u8(1);
                writer.ballot(*ballot);
            }
            Record::Accepted { ballot, start, decided, batches } => {
                writer.u8(2);
                writer.ballot(*ballot);
                writer.slot(*start);
                writer.slot(*decided);
                write_batches(writer, batches);
            }
            Record::Staged { ballot, start, from, batches } => {
                writer.u8(3);
                writer.ballot(*ballot);
                writer.slot(*start);
                writer.slot(*from);
                write_batches(writer, batches);
            }
            Record::Adopted { ballot, start, from, decided, covers, batches } => {
                writer.u8(4);
                writer.ballot(*ballot);
                writer.slot(*start);
                writer.slot(*from);
                writer.slot(*decided);
                writer.slot(*covers);
                write_batches(writer, batches);
            }
            Record::Learned { slot, ballots, batch } => {
                writer.u8(5);
                writer.slot(*slot);
                writer.ballots(*ballots);
                writer.batch(batch);
            }
            Record::Amnesia(lost) => {
                writer.u8(6);
                writer.bool(*lost);
            }
            Record::Trimmed { slot, accepted_in } => {
                writer.u8(7);
                writer.slot(*slot);
                writer.ballot(*accepted_in);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Record, DecodeError> {
        Ok(match reader.u8("record kind")? {
            1 => Record::Promised(reader.ballot("promised")?),
            2 => {
                let (ballot, start) = (reader.ballot("ballot")?, reader.slot("start")?);
                let decided = reader.slot("decided")?;
                Record::Accepted { ballot, start, decided, batches: read_batches(reader)? }
            }
            3 => {
                let (ballot, start) = (reader.ballot("ballot")?, reader.slot("start")?);
                let from = reader.slot("from")?;
                Record::Staged { ballot, start, from, batches: read_batches(reader)? }
            }
            4 => {
                let (ballot, start) = (reader.ballot("ballot")?, reader.slot("start")?);
                let (from, decided) = (reader.slot("from")?, reader.slot("decided")?);
                let covers = reader.slot("covers")?;
                Record::Adopted { ballot, start, from, decided, covers, batches: read_batches(reader)? }
            }
            5 => {
                let (slot, ballots) = (reader.slot("slot")?, reader.ballots("ballots")?);
                Record::Learned { slot, ballots, batch: reader.batch("batch")? }
            }
            6 => Record::Amnesia(reader.bool("amnesia")?),
            7 => {
                Record::Trimmed { slot: reader.slot("trimmed")?, accepted_in: reader.ballot("accepted in")? }
            }
            value => return Err(DecodeError::Undefined { field: "record kind", value: value.into() }),
        })
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        match self {
            Record::Accepted { start: from, batches, .. }
            | Record::Staged { from, batches, .. }
            | Record::Adopted { from, batches, .. } => see_run(*from, batches, see),
            Record::Learned { slot, batch, .. } => see(*slot, batch),
            Record::Promised(_) | Record::Amnesia(_) | Record::Trimmed { .. } => {}
        }
    }

    fn is_decision(&self) -> bool {
        matches!(self, Record::Learned { .. })
    }

    fn amnesia(&self) -> Option<bool> {
        if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
    }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
