//! What Raft replicas say to each other, and the records that each writes.
//!
//! | here | Ongaro 2014, Ng 2020 section 10.1 |
//! | --- | --- |
//! | `Vote` / `VoteReply` | RequestVote, and its rehearsal PreVote |
//! | `Append` / `AppendReply` | AppendEntries |
//! | `Heartbeat` / `HeartbeatAck`, `Commit` | AppendEntries without entries |
//! | `TimeoutNow` | TimeoutNow (leadership transfer) |
//!
//! A term has at most one leader, so a term with its leader is a [`Ballot`], and entries carry that.

use std::sync::Arc;

use synod_wire::{Ballot, Batch, DecodeError, Keep, Reader, ReplicaId, Slot, Writer};

use crate::{Body, Class, Logged, MEMBERS_MAX, VoterSets, batches::last_of};

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
    Conflict {
        /// The leader's term.
        ballot: Ballot,
        /// The same as in `Append`.
        session: u64,
        /// The `prev` that does not fit.
        prev: Slot,
        /// Where the logs may still agree: the sender's last entry before the conflicting term.
        hint: Slot,
        /// The term of that entry.
        hint_ballot: Ballot,
    },
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
    HeartbeatAck {
        /// The leader's term.
        ballot: Ballot,
        /// The number of the question that is answered.
        round: u64,
        /// The last slot that the sender has delivered.
        decided: Slot,
        /// The sender's own priority.
        priority: u8,
    },
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
}

impl Entry {
    fn encode(&self, writer: &mut Writer) {
        writer.ballot(self.ballot);
        writer.bool(self.voters.is_some());
        if let Some(voters) = &self.voters {
            write_voters(writer, voters);
        }
        writer.batch(&self.batch);
    }

    fn decode(reader: &mut Reader) -> Result<Entry, DecodeError> {
        let ballot = reader.ballot("entry's ballot")?;
        let voters = if reader.bool("changes voters")? { Some(read_voters(reader)?) } else { None };
        Ok(Entry { ballot, voters, batch: reader.batch("entry's batch")? })
    }
}

fn write_entries(writer: &mut Writer, entries: &[Entry]) {
    writer.u32(u32::try_from(entries.len()).expect("a page is small"));
    entries.iter().for_each(|entry| entry.encode(writer));
}

/// Reads entries for the slots after `prev`; fails if there are no such slots.
fn read_entries(reader: &mut Reader, prev: Slot) -> Result<Entries, DecodeError> {
    let count = reader.u32("entry count")?;
    if prev.0.checked_add(count.into()).is_none_or(|last| last == u64::MAX) {
        return Err(DecodeError::Undefined { field: "slot before the entries", value: prev.0 });
    }
    if count == 1 {
        return Ok([Entry::decode(reader)?].into());
    }
    // The count is not trusted: no space is reserved for it.
    let entries: Result<Vec<_>, _> = (0..count).map(|_| Entry::decode(reader)).collect();
    Ok(entries?.into())
}

fn write_voters(writer: &mut Writer, voters: &VoterSets) {
    for half in [voters.incoming(), voters.outgoing()] {
        writer.u32(u32::try_from(half.len()).expect("a small group"));
        half.iter().for_each(|&id| writer.replica(id));
    }
}

fn read_voters(reader: &mut Reader) -> Result<VoterSets, DecodeError> {
    let mut half = |field| -> Result<Vec<ReplicaId>, DecodeError> {
        let count = reader.u32(field)?;
        if count as usize > MEMBERS_MAX {
            return Err(DecodeError::Undefined { field, value: count.into() });
        }
        (0..count).map(|_| reader.replica("voter")).collect()
    };
    let (incoming, outgoing) = (half("voters")?, half("outgoing voters")?);
    Ok(VoterSets::joint(incoming, outgoing))
}

const VOTE: u8 = 1;
const VOTE_REPLY: u8 = 2;
const APPEND: u8 = 3;
const APPEND_REPLY: u8 = 4;
const CONFLICT: u8 = 5;
const COMMIT: u8 = 6;
const HEARTBEAT: u8 = 7;
const HEARTBEAT_ACK: u8 = 8;
const STALE: u8 = 9;
const TIMEOUT_NOW: u8 = 10;
const FOLLOW: u8 = 11;
const PRIORITY: u8 = 12;

impl Body for Message {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Message::Vote { term, rehearsal, transfer, last, last_ballot } => {
                writer.u8(VOTE);
                writer.u64(*term);
                writer.bool(*rehearsal);
                writer.bool(*transfer);
                writer.slot(*last);
                writer.ballot(*last_ballot);
            }
            Message::VoteReply { term, rehearsal, granted } => {
                writer.u8(VOTE_REPLY);
                writer.u64(*term);
                writer.bool(*rehearsal);
                writer.bool(*granted);
            }
            Message::Append { ballot, session, prev, prev_ballot, entries, commit } => {
                writer.u8(APPEND);
                writer.ballot(*ballot);
                writer.u64(*session);
                writer.slot(*prev);
                writer.ballot(*prev_ballot);
                writer.slot(*commit);
                write_entries(writer, entries);
            }
            Message::AppendReply { ballot, session, through } => {
                writer.u8(APPEND_REPLY);
                writer.ballot(*ballot);
                writer.u64(*session);
                writer.slot(*through);
            }
            Message::Conflict { ballot, session, prev, hint, hint_ballot } => {
                writer.u8(CONFLICT);
                writer.ballot(*ballot);
                writer.u64(*session);
                writer.slot(*prev);
                writer.slot(*hint);
                writer.ballot(*hint_ballot);
            }
            Message::Commit { ballot, through } => {
                writer.u8(COMMIT);
                writer.ballot(*ballot);
                writer.slot(*through);
            }
            Message::Heartbeat { ballot, commit, round, priority_max } => {
                writer.u8(HEARTBEAT);
                writer.ballot(*ballot);
                writer.slot(*commit);
                writer.u64(*round);
                writer.u8(*priority_max);
            }
            Message::HeartbeatAck { ballot, round, decided, priority } => {
                writer.u8(HEARTBEAT_ACK);
                writer.ballot(*ballot);
                writer.u64(*round);
                writer.slot(*decided);
                writer.u8(*priority);
            }
            Message::Stale { term } => {
                writer.u8(STALE);
                writer.u64(*term);
            }
            Message::TimeoutNow { ballot } => {
                writer.u8(TIMEOUT_NOW);
                writer.ballot(*ballot);
            }
            Message::Priority { priority } => {
                writer.u8(PRIORITY);
                writer.u8(*priority);
            }
            Message::Follow => writer.u8(FOLLOW),
        }
    }

    fn decode(reader: &mut Reader) -> Result<Message, DecodeError> {
        Ok(match reader.u8("message kind")? {
            VOTE => Message::Vote {
                term: reader.u64("term")?,
                rehearsal: reader.bool("rehearsal")?,
                transfer: reader.bool("transfer")?,
                last: reader.slot("last")?,
                last_ballot: reader.ballot("last ballot")?,
            },
            VOTE_REPLY => Message::VoteReply {
                term: reader.u64("term")?,
                rehearsal: reader.bool("rehearsal")?,
                granted: reader.bool("granted")?,
            },
            APPEND => {
                let ballot = reader.ballot("ballot")?;
                let session = reader.u64("session")?;
                let prev = reader.slot("prev")?;
                let prev_ballot = reader.ballot("prev ballot")?;
                let commit = reader.slot("commit")?;
                let entries = read_entries(reader, prev)?;
                Message::Append { ballot, session, prev, prev_ballot, entries, commit }
            }
            APPEND_REPLY => Message::AppendReply {
                ballot: reader.ballot("ballot")?,
                session: reader.u64("session")?,
                through: reader.slot("through")?,
            },
            CONFLICT => Message::Conflict {
                ballot: reader.ballot("ballot")?,
                session: reader.u64("session")?,
                prev: reader.slot("prev")?,
                hint: reader.slot("hint")?,
                hint_ballot: reader.ballot("hint ballot")?,
            },
            COMMIT => Message::Commit { ballot: reader.ballot("ballot")?, through: reader.slot("through")? },
            HEARTBEAT => Message::Heartbeat {
                ballot: reader.ballot("ballot")?,
                commit: reader.slot("commit")?,
                round: reader.u64("round")?,
                priority_max: reader.u8("highest priority")?,
            },
            HEARTBEAT_ACK => Message::HeartbeatAck {
                ballot: reader.ballot("ballot")?,
                round: reader.u64("round")?,
                decided: reader.slot("decided")?,
                priority: reader.u8("priority")?,
            },
            STALE => Message::Stale { term: reader.u64("term")? },
            TIMEOUT_NOW => Message::TimeoutNow { ballot: reader.ballot("ballot")? },
            PRIORITY => Message::Priority { priority: reader.u8("priority")? },
            FOLLOW => Message::Follow,
            value => return Err(DecodeError::Undefined { field: "message kind", value: value.into() }),
        })
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        if let Message::Append { entries, .. } = self {
            entries.iter().for_each(|entry| see(&entry.batch));
        }
    }

    fn class(&self) -> Class {
        match self {
            Message::Vote { .. } => Class::Prepare,
            Message::VoteReply { .. } => Class::Promise,
            Message::Append { .. } => Class::Proposal,
            Message::AppendReply { .. } => Class::Vote,
            Message::Commit { .. } => Class::Announcement,
            Message::Heartbeat { .. } => Class::Heartbeat,
            Message::HeartbeatAck { .. } => Class::HeartbeatAnswer,
            Message::Conflict { .. } | Message::Stale { .. } => Class::Refusal,
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
        start: Slot,
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

impl Logged for Record {
    fn keep(&self) -> Keep {
        match self {
            Record::Term { .. } => Keep::State(STATE_TERM),
            Record::Amnesia(_) => Keep::State(STATE_AMNESIA),
            Record::Entries { start, entries, .. } => Keep::Slot(last_of(*start, entries)),
            Record::Truncated { last, .. } => Keep::Slot(*last),
        }
    }

    fn is_decision(&self) -> bool {
        matches!(self, Record::Entries { start, entries, decided, .. } if *decided >= last_of(*start, entries))
    }

    fn amnesia(&self) -> Option<bool> {
        if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
    }

    fn without_voters(&self) -> Option<crate::Record> {
        let &Record::Entries { start, ref entries, decided, decided_in } = self else { return None };
        let without = |entry: &Entry| Entry { voters: None, ..entry.clone() };
        let entries = entries.iter().map(without).collect();
        Some(Record::Entries { start, entries, decided, decided_in }.into())
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        if let Record::Entries { start, entries, .. } = self {
            (start.0..).map(Slot).zip(entries.iter()).for_each(|(slot, entry)| see(slot, &entry.batch));
        }
    }

    fn encode(&self, writer: &mut Writer) {
        match self {
            Record::Term { term, voted_for } => {
                writer.u8(1);
                writer.u64(*term);
                // Replica numbers start at 1.
                writer.replica(voted_for.unwrap_or_default());
            }
            Record::Entries { start, entries, decided, decided_in } => {
                writer.u8(2);
                writer.slot(*start);
                writer.slot(*decided);
                writer.ballot(*decided_in);
                write_entries(writer, entries);
            }
            Record::Truncated { from, last } => {
                writer.u8(3);
                writer.slot(*from);
                writer.slot(*last);
            }
            Record::Amnesia(amnesia) => {
                writer.u8(4);
                writer.bool(*amnesia);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Record, DecodeError> {
        Ok(match reader.u8("record kind")? {
            1 => {
                let term = reader.u64("term")?;
                let voted_for = Some(reader.replica("voted for")?).filter(|id| id.0 != 0);
                Record::Term { term, voted_for }
            }
            2 => {
                let (start, decided) = (reader.slot("start")?, reader.slot("decided")?);
                let decided_in = reader.ballot("decided in")?;
                if start == Slot::ZERO {
                    return Err(DecodeError::Undefined { field: "start", value: 0 });
                }
                let entries = read_entries(reader, start.prev())?;
                if entries.is_empty() {
                    return Err(DecodeError::Undefined { field: "entry count", value: 0 });
                }
                Record::Entries { start, entries, decided, decided_in }
            }
            3 => Record::Truncated { from: reader.slot("from")?, last: reader.slot("last")? },
            4 => Record::Amnesia(reader.bool("amnesia")?),
            value => return Err(DecodeError::Undefined { field: "record kind", value: value.into() }),
        })
    }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
