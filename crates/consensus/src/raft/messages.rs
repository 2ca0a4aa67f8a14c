//! What Raft replicas say to each other, and the records that each writes.
//!
//! | here | Ongaro 2014, Ng 2020 section 10.1 |
//! | --- | --- |
//! | `Vote` / `VoteReply` | RequestVote, and its rehearsal PreVote |
//! | `Append` / `AppendReply` | AppendEntries |
//! | `Heartbeat` / `HeartbeatAck`, `Commit` | AppendEntries without entries |
//! | `TimeoutNow` | TimeoutNow (leadership transfer) |
//! | `Round` / `RoundReply`, `RoundConflict` | AppendEntries by gossip (Driftwood 2023, figures 8 and 12) |
//!
//! A term has at most one leader, so a term with its leader is a [`Ballot`], and entries carry that.

use std::sync::Arc;

use synod_wire::{Ballot, Batch, DecodeError, Keep, Reader, ReplicaId, Slot, Writer};

use super::driftwood::{Known, Round, RoundConflict, VoteRound};
use crate::{
    Body, Class, Logged, MEMBERS_MAX, VoterSets,
    batches::{last_of, with_others},
    codec::{Field, coded, fields},
};

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The term in which it was proposed, with its leader.
    pub ballot: Ballot,
    /// The batch that is proposed.
    pub batch: Batch,
    /// The voters from this entry on, if it changes them.
    pub voters: Option<VoterSets>,
}

/// Entries for consecutive slots. They are shared: the log, its record and the messages to all followers hold
/// the same ones.
pub type Entries = Arc<[Entry]>;

/// The voters from a slot on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The slot of the entry that names them; the start of the epoch for the first configuration.
    pub slot: Slot,
    /// That entry's term.
    pub ballot: Ballot,
    /// The voters.
    pub voters: VoterSets,
}

/// A message between two Raft replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender asks for a vote, since it wants to lead.
    Vote {
        /// The term in which it wants to lead.
        term: u64,
        /// Whether the sender only asks if the receiver would grant the vote, which changes nothing.
        rehearsal: bool,
        /// Whether the leader asked the sender to take over: the receiver then does not hold on to that leader.
        transfer: bool,
        /// The last entry of the sender's log.
        last: Slot,
        /// The term of that entry.
        last_ballot: Ballot,
    },
    /// Answers `Vote`.
    VoteReply {
        /// The term of the question if the vote is granted, otherwise the sender's.
        term: u64,
        /// The same as in the question.
        rehearsal: bool,
        /// Whether the vote is given, or would be given.
        granted: bool,
    },
    /// Entries for the receiver's log.
    Append {
        /// The leader's term.
        ballot: Ballot,
        /// The number of the leader's tracking of the receiver that this belongs to. A replica that leaves
        /// and comes back is tracked again, and answers that belong to the earlier tracking do not count.
        session: u64,
        /// The slot before the first of `entries`.
        prev: Slot,
        /// The term of the leader's entry there.
        prev_ballot: Ballot,
        /// The entries for the slots after it; empty in a probe.
        entries: Entries,
        /// The leader has committed slots through this one.
        commit: Slot,
    },
    /// Answers `Append`: the sender's log equals the leader's through a slot, durably.
    AppendReply {
        /// The leader's term.
        ballot: Ballot,
        /// The same as in `Append`.
        session: u64,
        /// The slot.
        through: Slot,
    },
    /// Answers `Append`: the sender's log has no such entry.
    Conflict(Conflict),
    /// The leader has committed slots through this one.
    Commit {
        /// The leader's term.
        ballot: Ballot,
        /// The last of them.
        through: Slot,
    },
    /// The leader lives, and asks whether the receiver still follows it.
    Heartbeat {
        /// The leader's term.
        ballot: Ballot,
        /// The leader has committed slots through this one.
        commit: Slot,
        /// The number of the question, which grows with every question.
        round: u64,
        /// The highest priority of a voter that the leader knows.
        priority_max: u8,
    },
    /// The sender still follows.
    HeartbeatAck(HeartbeatAck),
    /// The receiver's term is over.
    Stale {
        /// The sender's term.
        term: u64,
    },
    /// The leader wants the receiver, which has everything, to lead at once.
    TimeoutNow {
        /// The leader's term.
        ballot: Ballot,
    },
    /// The sender has a priority. It says so in the first election of a group, or of an epoch, when no leader
    /// has said yet which priority is the highest.
    Priority {
        /// The sender's priority.
        priority: u8,
    },
    /// The sender hears no leader. If it does not vote, as far as the receiver knows, it would like to be
    /// told what is decided.
    Follow,
    /// Entries of the leader, which the sender may only pass on.
    Round(Box<Round>),
    /// Answers `Round`, to the leader: the sender's log equals the leader's through a slot, durably.
    RoundReply {
        /// The leader's term.
        ballot: Ballot,
        /// The number of the round.
        number: u64,
        /// The slot.
        through: Slot,
    },
    /// Answers `Round`, to the leader: the sender's log has no such entry.
    RoundConflict(RoundConflict),
    /// A candidate asks for votes, and says which it has; the sender may only pass that on.
    VoteRound(Box<VoteRound>),
    /// A round that the receiver passed on does not fit the sender's log. The receiver may send what is missing.
    Pull {
        /// The term of the round.
        ballot: Ballot,
        /// Where the logs may still agree.
        hint: Slot,
        /// The term of the sender's entry there.
        hint_ballot: Ballot,
    },
}

/// The contents of [`Message::Conflict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The leader's term.
    pub ballot: Ballot,
    /// The same as in `Append`.
    pub session: u64,
    /// The `prev` that does not fit.
    pub prev: Slot,
    /// Where the logs may still agree: the sender's last entry before the conflicting term.
    pub hint: Slot,
    /// The term of that entry.
    pub hint_ballot: Ballot,
}

/// The contents of [`Message::HeartbeatAck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatAck {
    /// The leader's term.
    pub ballot: Ballot,
    /// The number of the question that is answered.
    pub round: u64,
    /// The last slot that the sender has delivered.
    pub decided: Slot,
    /// The sender's own priority.
    pub priority: u8,
}

fields! { Entry { ballot, voters, batch } }

impl Field for Entries {
    fn write(&self, writer: &mut Writer) {
        writer.u32(u32::try_from(self.len()).expect("a page is small"));
        self.iter().for_each(|entry| entry.write(writer));
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Entries, DecodeError> {
        let count = reader.u32(name)?;
        if count == 1 {
            return Ok([Entry::read(reader, name)?].into());
        }
        // The count is not trusted: nothing is reserved for it.
        let entries: Result<Vec<_>, _> = (0..count).map(|_| Entry::read(reader, name)).collect();
        Ok(entries?.into())
    }
}

impl Field for Option<VoterSets> {
    fn write(&self, writer: &mut Writer) {
        writer.bool(self.is_some());
        for half in self.iter().flat_map(|voters| [voters.incoming(), voters.outgoing()]) {
            writer.u32(u32::try_from(half.len()).expect("a small group"));
            half.iter().for_each(|&id| writer.replica(id));
        }
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Option<VoterSets>, DecodeError> {
        if !reader.bool(name)? {
            return Ok(None);
        }
        let mut half = |field| -> Result<Vec<ReplicaId>, DecodeError> {
            let count = reader.u32(field)?;
            if count as usize > MEMBERS_MAX {
                return Err(DecodeError::Undefined { field, value: count.into() });
            }
            (0..count).map(|_| reader.replica("voter")).collect()
        };
        let (incoming, outgoing) = (half("voters")?, half("outgoing voters")?);
        Ok(Some(VoterSets::joint(incoming, outgoing)))
    }
}

/// Checks that the slots of entries after `prev` exist.
pub(super) fn check_slots(prev: Slot, entries: &[Entry]) -> Result<(), DecodeError> {
    if prev.0.checked_add(entries.len() as u64).is_none_or(|last| last == u64::MAX) {
        return Err(DecodeError::Undefined { field: "slot before the entries", value: prev.0 });
    }
    Ok(())
}

impl Message {
    fn has_slots(&self) -> Result<(), DecodeError> {
        match self {
            Message::Append { prev, entries, .. } => check_slots(*prev, entries),
            Message::Round(round) => round.has_slots(),
            Message::VoteRound(round) => round.has_few_votes(),
            _ => Ok(()),
        }
    }
}

fields! { Conflict { ballot, session, prev, hint, hint_ballot } }

impl<T: Field> Field for Box<T> {
    fn write(&self, writer: &mut Writer) {
        (**self).write(writer);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Box<T>, DecodeError> {
        T::read(reader, name).map(Box::new)
    }
}

fields! { HeartbeatAck { ballot, round, decided, priority } }

impl Body for Message {
    coded! {
        Message, "message kind":
        1 = Vote { term, rehearsal, transfer, last, last_ballot };
        2 = VoteReply { term, rehearsal, granted };
        3 = Append { ballot, session, prev, prev_ballot, commit, entries };
        4 = AppendReply { ballot, session, through };
        5 = Conflict(conflict);
        6 = Commit { ballot, through };
        7 = Heartbeat { ballot, commit, round, priority_max };
        8 = HeartbeatAck(ack);
        9 = Stale { term };
        10 = TimeoutNow { ballot };
        11 = Follow;
        12 = Priority { priority };
        13 = Round(round);
        14 = RoundReply { ballot, number, through };
        15 = RoundConflict(conflict);
        16 = VoteRound(round);
        17 = Pull { ballot, hint, hint_ballot };
        checked by Message::has_slots
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        if let Message::Append { entries, .. } = self {
            entries.iter().for_each(|entry| see(&entry.batch));
        }
        if let Message::Round(round) = self {
            round.entries.iter().for_each(|entry| see(&entry.batch));
        }
    }

    fn with_batches(&self, other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<crate::Message> {
        let mut others = |entries: &Entries| {
            with_others(entries, |entry| Some(Entry { batch: other(&entry.batch)?, ..entry.clone() }))
        };
        match self {
            &Message::Append { ballot, session, prev, prev_ballot, ref entries, commit } => {
                let entries = others(entries)?;
                Some(Message::Append { ballot, session, prev, prev_ballot, entries, commit }.into())
            }
            Message::Round(round) => {
                let entries = others(&round.entries)?;
                Some(Message::Round(Box::new(Round { entries, ..(**round).clone() })).into())
            }
            _ => None,
        }
    }

    fn other_bytes(&self) -> u64 {
        let bytes = match self {
            Message::Round(round) => {
                round.status.as_ref().map_or(0, |status| status.members.len() * size_of::<Known>())
            }
            Message::VoteRound(round) => size_of_val(&round.granted[..]),
            _ => 0,
        };
        bytes as u64
    }

    fn class(&self) -> Class {
        match self {
            Message::Vote { .. } | Message::VoteRound(_) => Class::Prepare,
            Message::VoteReply { .. } => Class::Promise,
            Message::Append { .. } | Message::Round(_) => Class::Proposal,
            Message::AppendReply { .. } | Message::RoundReply { .. } => Class::Vote,
            Message::Commit { .. } => Class::Announcement,
            Message::Heartbeat { .. } => Class::Heartbeat,
            Message::HeartbeatAck(_) => Class::HeartbeatAnswer,
            Message::Conflict(_)
            | Message::RoundConflict(_)
            | Message::Pull { .. }
            | Message::Stale { .. } => Class::Refusal,
            Message::TimeoutNow { .. } => Class::Transfer,
            Message::Priority { .. } => Class::Election,
            Message::Follow => Class::Recovery,
        }
    }
}

/// What a replica must remember across a crash.
///
/// Replay: the records of entries, in order, build the log; **a record replaces everything from its first
/// slot on**. The fact that entries were replaced must stay known for as long as their own records may exist,
/// so a truncation is also a record of its own, which is kept as long as they are. So records that a snapshot
/// covers may be dropped one by one: what the others build has no entry that was replaced, and every entry
/// after the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The current term, and the replica that this one voted for in it.
    Term {
        /// The term: messages of a lower one are not obeyed.
        term: u64,
        /// The replica that this one voted for; `None` if it has not voted yet.
        voted_for: Option<ReplicaId>,
    },
    /// Entries were appended.
    Entries {
        /// The slot of the first entry.
        first: Slot,
        /// The entries, at least one.
        entries: Entries,
        /// When this was written, slots through this one were decided, with the entries that the log holds.
        /// It is not less than the last slot if a peer told that these entries are decided.
        decided: Slot,
        /// No higher ballot than this decided them.
        decided_in: Ballot,
    },
    /// The entries from a slot on were removed.
    Truncated {
        /// The first slot whose entry was removed.
        from: Slot,
        /// No record before this one holds an entry after this slot. This record may be forgotten only
        /// together with all of them: otherwise a restart would take what was removed for a part of the log.
        last: Slot,
    },
    /// Whether this replica lost a log, and so never votes. `false` is also the first record of a new log.
    Amnesia(bool),
}

const STATE_TERM: u8 = 1;
const STATE_AMNESIA: u8 = 2;

impl Record {
    fn has_slots(&self) -> Result<(), DecodeError> {
        let Record::Entries { first, entries, .. } = self else { return Ok(()) };
        if *first == Slot::ZERO {
            return Err(DecodeError::Undefined { field: "first", value: 0 });
        }
        if entries.is_empty() {
            return Err(DecodeError::Undefined { field: "entry count", value: 0 });
        }
        check_slots(first.prev(), entries)
    }
}

impl Logged for Record {
    fn keep(&self) -> Keep {
        match self {
            Record::Term { .. } => Keep::State(STATE_TERM),
            Record::Amnesia(_) => Keep::State(STATE_AMNESIA),
            Record::Entries { first, entries, .. } => Keep::Slot(last_of(*first, entries)),
            Record::Truncated { last, .. } => Keep::Slot(*last),
        }
    }

    fn is_decision(&self) -> bool {
        matches!(self, Record::Entries { first, entries, decided, .. } if *decided >= last_of(*first, entries))
    }

    fn amnesia(&self) -> Option<bool> {
        if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
    }

    fn without_voters(&self) -> Option<crate::Record> {
        let &Record::Entries { first, ref entries, decided, decided_in } = self else { return None };
        let without = |entry: &Entry| Entry { voters: None, ..entry.clone() };
        let entries = entries.iter().map(without).collect();
        Some(Record::Entries { first, entries, decided, decided_in }.into())
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        if let Record::Entries { first, entries, .. } = self {
            (first.0..).map(Slot).zip(entries.iter()).for_each(|(slot, entry)| see(slot, &entry.batch));
        }
    }

    coded! {
        Record, "record kind":
        1 = Term { term, voted_for };
        2 = Entries { first, decided, decided_in, entries };
        3 = Truncated { from, last };
        4 = Amnesia(amnesia);
        checked by Record::has_slots
    }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
