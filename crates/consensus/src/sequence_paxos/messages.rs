//! What Sequence Paxos replicas say to each other, and the records that each writes.
//!
//! Slots take the place of the lengths of Ng 2020: "the sequence through slot l" has length l. All are
//! absolute, so that what was said at different times can be compared (errata E17 and E22).

use synod_wire::{Ballot, Ballots, Batch, Keep, Slot};

use super::Extent;
use crate::{
    Body, Class, Logged,
    batches::{Batches, last_of, see_run, with_others},
    codec::{coded, fields},
    paxos::FamilyMessage,
};

/// A message between two Sequence Paxos replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender wants to lead, or leads and wants to know what the receiver has.
    Prepare(Prepare),
    /// Answers `Prepare`.
    Promise(Promise),
    /// The receiver's sequence has to become that of the sender, in one step.
    AcceptSync(AcceptSync),
    /// Asks for the page of an `AcceptSync` that begins at `from`; the pages before it have come.
    SyncNext {
        /// The leader's ballot.
        ballot: Ballot,
        /// The same as in the `AcceptSync`.
        first: Slot,
        /// The slot with which the next page begins.
        from: Slot,
    },
    /// The next elements of the sequence.
    Accept {
        /// The leader's ballot.
        ballot: Ballot,
        /// The first slot of the elements: a receiver that has nothing in the slot before must not take them (E17).
        first: Slot,
        /// The sequence through this slot is decided, as far as it was proposed in `ballot`.
        decided: Slot,
        /// The elements for `first` and the slots after it.
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
    /// The sender may have missed something: a leader in `promised` or a higher ballot should send it a `Prepare`.
    PrepareReq {
        /// The ballot that the sender has promised.
        promised: Ballot,
    },
    /// The receiver lags so far that the leader has dropped what it lacks. It should learn the slots through
    /// `through` from replicas that have them, and then ask for a `Prepare`.
    Lagging {
        /// The leader's ballot.
        ballot: Ballot,
        /// Slots through this one are decided.
        through: Slot,
    },
    /// The leader lives, and asks whether the receiver still follows it, which is what a linearizable read
    /// needs to know.
    Heartbeat {
        /// The leader's ballot.
        ballot: Ballot,
        /// The same as in `Decide`.
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
}

/// The contents of [`Message::Prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// The ballot of the sender.
    pub ballot: Ballot,
    /// What the sender has.
    pub has: Extent,
    /// The slot with which the wanted page of the answer begins; 0 for the first page.
    pub page: Slot,
}

/// The contents of [`Message::Promise`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The ballot that is promised.
    pub ballot: Ballot,
    /// What the sender has: its own decided slot, not that of the `Prepare` (E2).
    pub has: Extent,
    /// The same as in the `Prepare`.
    pub page: Slot,
    /// The slot of the first of `batches`.
    pub first: Slot,
    /// If the sender's sequence may hold something that the candidate lacks, its elements from `first` on:
    /// one page of them, so that no answer is unbounded.
    pub batches: Batches,
    /// Whether there are more elements after this page.
    pub more: bool,
}

/// The contents of [`Message::AcceptSync`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptSync {
    /// The leader's ballot.
    pub ballot: Ballot,
    /// The receiver keeps what it has before this slot; everything else is replaced.
    pub first: Slot,
    /// The slot with which this page begins.
    pub from: Slot,
    /// The elements of this page.
    pub batches: Batches,
    /// Whether there is another page: if so, nothing is accepted yet.
    pub more: bool,
    /// The same as in `Accept`.
    pub decided: Slot,
}

fields! { Extent { accepted_in, last, decided } }

fields! { Prepare { ballot, has, page } }

fields! { Promise { ballot, has, page, first, more, batches } }

fields! { AcceptSync { ballot, first, from, more, decided, batches } }

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
        1 = Prepare(prepare);
        2 = Promise(promise);
        3 = AcceptSync(sync);
        4 = SyncNext { ballot, first, from };
        5 = Accept { ballot, first, decided, batches };
        6 = Accepted { ballot, last };
        7 = Decide { ballot, through };
        8 = PrepareReq { promised };
        9 = Lagging { ballot, through };
        10 = Heartbeat { ballot, decided, round };
        11 = HeartbeatAck { ballot, round };
        12 = Reject { promised };
        13 = TakeOver { ballot };
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        match self {
            Message::Promise(Promise { batches, .. })
            | Message::AcceptSync(AcceptSync { batches, .. })
            | Message::Accept { batches, .. } => batches.iter().for_each(see),
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
            Message::Prepare(_) => Class::Prepare,
            Message::Promise(_) => Class::Promise,
            Message::AcceptSync(_) | Message::SyncNext { .. } | Message::Lagging { .. } => Class::Sync,
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
    /// The accepted sequence was extended: nothing was held from `first` on.
    Accepted {
        /// The ballot of the sequence.
        ballot: Ballot,
        /// The slot of the first of the batches.
        first: Slot,
        /// When this was written, slots through this one were decided, with the values that the log holds.
        decided: Slot,
        /// The accepted batches.
        batches: Batches,
    },
    /// A page of a new sequence that is not whole yet. It means nothing without the `Adopted` that names it.
    Staged {
        /// The ballot of the sequence.
        ballot: Ballot,
        /// The same as in the `Adopted`.
        first: Slot,
        /// The slot with which the page begins.
        from: Slot,
        /// The elements of the page.
        batches: Batches,
    },
    /// The accepted ballot and the accepted sequence changed, both at once (erratum E20): what was held
    /// before `first` stays, the staged pages of this ballot and `first` follow up to `from`, then come
    /// `batches`. Whatever else was held from `first` on is gone.
    Adopted {
        /// The ballot of the sequence from now on.
        ballot: Ballot,
        /// The first slot whose content is replaced; what is held before it stays.
        first: Slot,
        /// The slot of the first of `batches`.
        from: Slot,
        /// The same as in `Accepted`.
        decided: Slot,
        /// No record before this one holds a slot after this one. This record may be forgotten only together
        /// with all of them: otherwise a restart would take what it cut off for a part of its sequence.
        covers: Slot,
        /// The last page.
        batches: Batches,
    },
    /// A peer told what was decided in this slot, and that is something else than what was accepted there, or
    /// a higher ballot decided it than the one in which it was accepted.
    Learned {
        /// The slot. Those before it were decided when this was written.
        slot: Slot,
        /// The ballots with which that peer delivered it: a restart must not make them lower.
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
            Record::Accepted { first, batches, .. } => Keep::Slot(last_of(*first, batches)),
            Record::Staged { from, batches, .. } => Keep::Slot(last_of(*from, batches)),
            Record::Adopted { covers, .. } => Keep::Slot(*covers),
            Record::Learned { slot, .. } => Keep::Slot(*slot),
        }
    }

    coded! {
        Record, "record kind":
        1 = Promised(promised);
        2 = Accepted { ballot, first, decided, batches };
        3 = Staged { ballot, first, from, batches };
        4 = Adopted { ballot, first, from, decided, covers, batches };
        5 = Learned { slot, ballots, batch };
        6 = Amnesia(amnesia);
        7 = Trimmed { slot, accepted_in };
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        match self {
            Record::Accepted { first: from, batches, .. }
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
