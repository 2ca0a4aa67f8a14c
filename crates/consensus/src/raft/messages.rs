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

use super::{
    driftwood::{Round, RoundConflict, VoteRound},
    log::Position,
};
use crate::{
    BatchText, MEMBERS_MAX, TermClaim, TermFact, VoterSets,
    batches::{last_of, with_others},
    codec::{Field, fields, records},
    describe::{amnesia as lost_text, run},
};

fields! {
    /// An entry of the log.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Entry {
        /// The term in which it was proposed, with its leader.
        pub ballot: Ballot,
        /// The voters from this entry on, if it changes them.
        pub voters: Option<VoterSets>,
        /// The batch that is proposed.
        pub batch: Batch,
    }
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

crate::messages! {
    /// A message between two Raft replicas.
    #[derive(PartialEq, Eq)]
    pub enum Message, "message kind" {
        /// The sender asks for a vote, since it wants to lead.
        1, Prepare, term_claims { candidacy(*term, *rehearsal) },
        text ("{}Vote term {term}, log to slot {last} in {last_ballot}{}", pre(*rehearsal), wished(*transfer)):
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
        2, Promise, term_claims { vote(*term, *granted && !*rehearsal) },
        text ("{}VoteReply term {term}: {}", pre(*rehearsal), if *granted { "yes" } else { "no" }):
        VoteReply {
            /// The term of the question if the vote is granted, otherwise the sender's.
            term: u64,
            /// The same as in the question.
            rehearsal: bool,
            /// Whether the vote is given, or would be given.
            granted: bool,
        },
        /// Entries for the receiver's log.
        3, Proposal, term_claims { leads_with(*ballot, *commit, position(*prev, *prev_ballot), entries) },
        text (
            "Append {ballot} after slot {prev} in {prev_ballot}, commit {commit}: {}",
            entries_text(*ballot, entries, batch)
        ):
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
            /// The leader has committed slots through this one.
            commit: Slot,
            /// The entries for the slots after `prev`; empty in a probe.
            entries: Entries,
        },
        /// Answers `Append`: the sender's log equals the leader's through a slot, durably.
        4, Vote, term_claims [TermClaim::Acknowledges { ballot: *ballot, through: *through }],
        text "AppendReply {ballot} through slot {through}":
        AppendReply {
            /// The leader's term.
            ballot: Ballot,
            /// The same as in `Append`.
            session: u64,
            /// The slot.
            through: Slot,
        },
        /// Answers `Append`: the sender's log has no such entry.
        5, Refusal,
        text (
            "Conflict {} at slot {}; perhaps slot {} in {}",
            conflict.ballot, conflict.prev, conflict.hint, conflict.hint_ballot
        ):
        Conflict(conflict: Conflict),
        /// The leader has committed slots through this one.
        6, Announcement, term_claims [TermClaim::Leads { ballot: *ballot, commit: *through }],
        text "Commit {ballot} through slot {through}":
        Commit {
            /// The leader's term.
            ballot: Ballot,
            /// The last of them.
            through: Slot,
        },
        /// The leader lives, and asks whether the receiver still follows it.
        7, Heartbeat, term_claims [TermClaim::Leads { ballot: *ballot, commit: *commit }],
        text "Heartbeat {ballot} round {round}, commit {commit}":
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
        8, HeartbeatAnswer, text ("HeartbeatAck {} round {}", ack.ballot, ack.round):
        HeartbeatAck(ack: HeartbeatAck),
        /// The receiver's term is over.
        9, Refusal, text "Stale: term {term} began":
        Stale {
            /// The sender's term.
            term: u64,
        },
        /// The leader wants the receiver, which has everything, to lead at once.
        10, Transfer, text "TimeoutNow from {ballot}":
        TimeoutNow {
            /// The leader's term.
            ballot: Ballot,
        },
        /// The sender hears no leader. If it does not vote, as far as the receiver knows, it would like to be
        /// told what is decided.
        11, Recovery, text { "Follow".to_owned() }:
        Follow,
        /// The sender has a priority. It says so in the first election of a group, or of an epoch, when no leader
        /// has said yet which priority is the highest.
        12, Election, text "Priority {priority}":
        Priority {
            /// The sender's priority.
            priority: u8,
        },
        /// Entries of the leader, which the sender may only pass on.
        13, Proposal, term_claims { round.claims() }, text { round.described(batch) }:
        Round(round: Box<Round>),
        /// Answers `Round`, to the leader: the sender's log equals the leader's through a slot, durably.
        14, Vote, term_claims [TermClaim::Acknowledges { ballot: *ballot, through: *through }],
        text "RoundReply {ballot} round {number} through slot {through}":
        RoundReply {
            /// The leader's term.
            ballot: Ballot,
            /// The number of the round.
            number: u64,
            /// The slot.
            through: Slot,
        },
        /// Answers `Round`, to the leader: the sender's log has no such entry.
        15, Refusal,
        text (
            "RoundConflict {} round {} at slot {}; perhaps slot {} in {}",
            conflict.ballot, conflict.number, conflict.prev, conflict.hint, conflict.hint_ballot
        ):
        RoundConflict(conflict: RoundConflict),
        /// A candidate asks for votes, and says which it has; the sender may only pass that on.
        16, Prepare, text { round.described() }:
        VoteRound(round: Box<VoteRound>),
        /// A round that the receiver passed on does not fit the sender's log. The receiver may send what is missing.
        17, Refusal, text "Pull {ballot} from slot {hint} in {hint_ballot}":
        Pull {
            /// The term of the round.
            ballot: Ballot,
            /// Where the logs may still agree.
            hint: Slot,
            /// The term of the sender's entry there.
            hint_ballot: Ballot,
        },
    }
    described with batch;
    checked by Message::is_sound;
    body {
        fn with_batches(&self, other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<crate::Message> {
            let mut others = |entries: &Entries| {
                with_others(entries, |entry| Some(Entry { batch: other(&entry.batch)?, ..entry.clone() }))
            };
            match self {
                &Message::Append { ballot, session, prev, prev_ballot, commit, ref entries } => {
                    let entries = others(entries)?;
                    Some(Message::Append { ballot, session, prev, prev_ballot, commit, entries }.into())
                }
                Message::Round(round) => {
                    let entries = others(&round.entries)?;
                    Some(Message::Round(Box::new(Round { entries, ..(**round).clone() })).into())
                }
                _ => None,
            }
        }

        fn other_bytes(&self) -> u64 {
            match self {
                Message::Round(round) => round.other_bytes(),
                Message::VoteRound(round) => size_of_val(&round.granted[..]) as u64,
                _ => 0,
            }
        }
    }
    claims {
        /// What a replica passes on of others claims nothing of it but its own vote.
        fn term_claims_of(&self, sender: ReplicaId) -> Vec<TermClaim<'_>> {
            match self {
                Message::Round(round) => round.claims_of(sender),
                Message::VoteRound(round) => round.claims_of(sender),
                _ => self.term_claims(),
            }
        }

        fn answers(&self, candidate: ReplicaId) -> Option<Ballot> {
            match *self {
                Message::VoteReply { term, rehearsal: false, .. } => {
                    Some(Ballot { round: term, replica: candidate })
                }
                _ => None,
            }
        }
    }
}

fields! {
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
}

fields! {
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
}

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

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        self.iter().for_each(|entry| see(&entry.batch));
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
    fn is_sound(&self) -> Result<(), DecodeError> {
        Ballot { round: self.term(), ..Ballot::ZERO }.reachable("term")?;
        match self {
            Message::Append { prev, entries, .. } => check_slots(*prev, entries),
            Message::Round(round) => round.has_slots(),
            Message::VoteRound(round) => round.has_few_votes(),
            _ => Ok(()),
        }
    }

    /// The term in which the sender speaks; 0 if it says nothing of one.
    fn term(&self) -> u64 {
        match self {
            Message::Vote { term, .. } | Message::VoteReply { term, .. } | Message::Stale { term } => *term,
            Message::VoteRound(round) => round.term,
            Message::Append { ballot, .. }
            | Message::AppendReply { ballot, .. }
            | Message::Commit { ballot, .. }
            | Message::Heartbeat { ballot, .. }
            | Message::TimeoutNow { ballot }
            | Message::RoundReply { ballot, .. }
            | Message::Pull { ballot, .. } => ballot.round,
            Message::Conflict(conflict) => conflict.ballot.round,
            Message::RoundConflict(conflict) => conflict.ballot.round,
            Message::HeartbeatAck(ack) => ack.ballot.round,
            Message::Round(round) => round.ballot.round,
            Message::Priority { .. } | Message::Follow => 0,
        }
    }
}

fn position(slot: Slot, ballot: Ballot) -> Position {
    Position { slot, ballot }
}

/// A rehearsed vote changes nothing, and claims nothing.
fn candidacy(term: u64, rehearsal: bool) -> Vec<TermClaim<'static>> {
    if rehearsal { Vec::new() } else { vec![TermClaim::Candidate { term }] }
}

fn vote(term: u64, given: bool) -> Vec<TermClaim<'static>> {
    if given { vec![TermClaim::Grants { term }] } else { Vec::new() }
}

/// The claims of a leader whose log has these entries after a position.
pub(super) fn leads_with(
    ballot: Ballot,
    commit: Slot,
    prev: Position,
    entries: &[Entry],
) -> Vec<TermClaim<'_>> {
    let mut claims = vec![TermClaim::Leads { ballot, commit }];
    let Position { mut slot, ballot: mut before } = prev;
    for entry in entries {
        slot = slot.next();
        claims.push(TermClaim::Entry { slot, ballot: entry.ballot, before, batch: &entry.batch });
        before = entry.ballot;
    }
    claims
}

/// How the names of rehearsed questions and answers begin.
pub(super) fn pre(rehearsal: bool) -> &'static str {
    if rehearsal { "Pre" } else { "" }
}

/// How it is told that the leader asked for an election.
pub(super) fn wished(transfer: bool) -> &'static str {
    if transfer { ", as the leader wishes" } else { "" }
}

/// Entries as text, each with its term if that is not the message's.
pub(super) fn entries_text(of: Ballot, entries: &[Entry], batch: BatchText<'_>) -> String {
    let one = |entry: &Entry| {
        let term = if entry.ballot == of { String::new() } else { format!("(in {}) ", entry.ballot) };
        let change = entry.voters.as_ref().map_or(String::new(), voters_text);
        format!("{term}{change}{}", batch(&entry.batch))
    };
    match entries {
        [] => "nothing".to_owned(),
        _ => entries.iter().map(one).collect::<Vec<_>>().join(" | "),
    }
}

fn voters_text(sets: &VoterSets) -> String {
    let names = |ids: &[ReplicaId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let before = if sets.is_joint() { format!(" and of {}", names(sets.outgoing())) } else { String::new() };
    format!("[majority of {}{before}] ", names(sets.incoming()))
}

records! {
    /// What a replica must remember across a crash.
    ///
    /// Replay: the records of entries, in order, build the log; **a record replaces everything from its first
    /// slot on**. The fact that entries were replaced must stay known for as long as their own records may exist,
    /// so a truncation is also a record of its own, which is kept as long as they are. So records that a snapshot
    /// covers may be dropped one by one: what the others build has no entry that was replaced, and every entry
    /// after the snapshot.
    pub enum Record, "record kind" {
        /// The current term, and the replica that this one voted for in it.
        1, keep Keep::State(STATE_TERM),
        term_fact TermFact::Term { term: *term, voted_for: *voted_for },
        text ("term {term}{}", voted_for.map_or(String::new(), |candidate| format!(", votes for {candidate}"))):
        Term {
            /// The term: messages of a lower one are not obeyed.
            term: u64,
            /// The replica that this one voted for; `None` if it has not voted yet.
            voted_for: Option<ReplicaId>,
        },
        /// Entries were appended.
        2, keep Keep::Slot(last_of(*first, entries)),
        term_fact TermFact::Entries { first: *first, entries: entries.clone(), decided: *decided },
        text {
            let of = entries.first().map_or(Ballot::ZERO, |entry| entry.ballot);
            let (last, what) = (last_of(*first, entries), entries_text(of, entries, batch));
            match *decided >= last {
                true => format!("learned {} in {of}: {what}", run(*first, last)),
                false => format!("entry {of} {}, decided {decided}: {what}", run(*first, last)),
            }
        }:
        Entries {
            /// The slot of the first entry.
            first: Slot,
            /// When this was written, slots through this one were decided, with the entries that the log holds.
            /// It is not less than the last slot if a peer told that these entries are decided.
            decided: Slot,
            /// No higher ballot than this decided them.
            decided_in: Ballot,
            /// The entries, at least one.
            entries: Entries,
        },
        /// The entries from a slot on were removed.
        3, keep Keep::Slot(*last), term_fact TermFact::Truncated { from: *from },
        text "slots from {from} on removed":
        Truncated {
            /// The first slot whose entry was removed.
            from: Slot,
            /// No record before this one holds an entry after this slot. This record may be forgotten only
            /// together with all of them: otherwise a restart would take what was removed for a part of the log.
            last: Slot,
        },
        /// Whether this replica lost a log, and so never votes. `false` is also the first record of a new log.
        4, keep Keep::State(STATE_AMNESIA),
        term_fact if *amnesia { TermFact::Lost } else { TermFact::Nothing },
        text { lost_text(*amnesia) }:
        Amnesia(amnesia: bool),
    }
    described with batch;
    checked by Record::has_slots;
    logged {
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
    }
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

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
