//! What messages and records of the different protocols mean to the checks.
//!
//! The checks of [`super::votes`] know ballots, promises and votes, which all leader-based protocols have. Each
//! protocol is translated here, and nowhere else.

use synod_consensus::{
    Batches, Message, Record, multipaxos, raft,
    sequence_paxos::{self, Extent},
};
use synod_replica::LogRecord;
use synod_wire::{Ballot, Batch, Incarnation, ReplicaId, Slot};

/// What a message claims.
#[derive(Debug)]
pub enum Claim<'a> {
    /// The sender asks to lead.
    Candidate(Ballot),
    /// The sender will not follow lower ballots, and has accepted nothing but `accepted` in the slots from `from`
    /// on and before `next`, apart from those through `decided`.
    Promise {
        ballot: Ballot,
        from: Slot,
        decided: Slot,
        next: Option<Slot>,
        accepted: Vec<(Slot, Ballot, &'a Batch)>,
    },
    /// The sender will not follow lower ballots, and has accepted no sequence of a higher rank than this one.
    PromiseSequence { ballot: Ballot, has: Extent },
    /// The sender leads, and proposes.
    Propose { ballot: Ballot, slot: Slot, batch: &'a Batch, decided: Slot },
    /// The sender has accepted the proposal.
    Vote { ballot: Ballot, slot: Slot },
    /// The sender has accepted what was proposed in all slots through `last`.
    VoteThrough { ballot: Ballot, last: Slot },
    /// The sender leads, and knows the slots through `decided` to be decided.
    Leads { ballot: Ballot, decided: Slot },
}

/// What a message claims.
pub fn claims(message: &Message) -> Vec<Claim<'_>> {
    match message {
        Message::MultiPaxos(message) => multipaxos_claims(message),
        Message::SequencePaxos(message) => sequence_paxos_claims(message),
        // Raft has checks of its own; see `terms.rs`.
        Message::Raft(_) | Message::Election(_) => Vec::new(),
    }
}

fn multipaxos_claims(message: &multipaxos::Message) -> Vec<Claim<'_>> {
    use multipaxos::Message;
    match message {
        Message::Prepare { ballot, .. } => vec![Claim::Candidate(*ballot)],
        Message::Promise(promise) => vec![Claim::Promise {
            ballot: promise.ballot,
            from: promise.from,
            decided: promise.decided,
            next: promise.next,
            accepted: promise.accepted.iter().map(|value| (value.slot, value.ballot, &value.batch)).collect(),
        }],
        Message::Accept { ballot, first, decided, batches } => proposals(*ballot, *first, *decided, batches),
        Message::Accepted { ballot, first, last } => {
            (first.0..=last.0).map(|slot| Claim::Vote { ballot: *ballot, slot: Slot(slot) }).collect()
        }
        Message::Decided { ballot, through } | Message::Heartbeat { ballot, decided: through, .. } => {
            vec![Claim::Leads { ballot: *ballot, decided: *through }]
        }
        Message::HeartbeatAck { .. }
        | Message::Reject { .. }
        | Message::TakeOver { .. }
        | Message::Recover { .. }
        | Message::RecoverAnswer { .. } => Vec::new(),
    }
}

fn sequence_paxos_claims(message: &sequence_paxos::Message) -> Vec<Claim<'_>> {
    use sequence_paxos::{AcceptSync, Message};
    match message {
        Message::Prepare(prepare) => vec![Claim::Candidate(prepare.ballot)],
        Message::Promise(promise) => {
            vec![Claim::PromiseSequence { ballot: promise.ballot, has: promise.has }]
        }
        Message::AcceptSync(AcceptSync { ballot, from, batches, decided, .. }) => {
            proposals(*ballot, *from, *decided, batches)
        }
        Message::Accept { ballot, start, decided, batches } => proposals(*ballot, *start, *decided, batches),
        Message::Accepted { ballot, last } => vec![Claim::VoteThrough { ballot: *ballot, last: *last }],
        Message::Decide { ballot, through }
        | Message::Behind { ballot, through }
        | Message::Heartbeat { ballot, decided: through, .. } => {
            vec![Claim::Leads { ballot: *ballot, decided: *through }]
        }
        Message::SyncNext { .. }
        | Message::PrepareReq { .. }
        | Message::HeartbeatAck { .. }
        | Message::Reject { .. }
        | Message::TakeOver { .. } => Vec::new(),
    }
}

fn proposals(ballot: Ballot, from: Slot, decided: Slot, batches: &Batches) -> Vec<Claim<'_>> {
    let proposal = |(slot, batch)| Claim::Propose { ballot, slot, batch, decided };
    let mut claims = vec![Claim::Leads { ballot, decided }];
    claims.extend((from.0..).map(Slot).zip(batches.iter()).map(proposal));
    claims
}

/// What a record remembers.
#[derive(Clone, Debug)]
pub enum Fact {
    /// No lower ballot is followed.
    Promised(Ballot),
    /// These proposals were accepted, in `first` and the slots behind it.
    Accepted { ballot: Ballot, first: Slot, batches: Batches },
    /// A peer told that this was decided.
    Learned { slot: Slot, batch: Batch },
    /// The accepted sequence goes on.
    Extended { ballot: Ballot, start: Slot, batches: Batches },
    /// Elements that may become a part of the accepted sequence.
    Staged { ballot: Ballot, start: Slot, from: Slot, batches: Batches },
    /// What is held before `start`, then staged elements through `from`, then these, are accepted in this ballot.
    Adopted { ballot: Ballot, start: Slot, from: Slot, decided: Slot, batches: Batches },
    /// Nothing that is checked.
    Nothing,
}

/// Whether a record remembers what a peer told.
pub fn is_learned(record: &LogRecord) -> bool {
    match record {
        LogRecord::Protocol { record, .. } => record.is_decision(),
        LogRecord::Learned { .. } | LogRecord::Decided { .. } => true,
        LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => false,
    }
}

/// The slots for which a record holds a batch.
pub fn slots(record: &LogRecord) -> std::ops::Range<u64> {
    let run = |from: Slot, len: usize| from.0..from.0 + len as u64;
    match record {
        LogRecord::Learned { slot, .. } | LogRecord::Decided { slot, .. } => run(*slot, 1),
        LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => 0..0,
        LogRecord::Protocol {
            record: Record::Raft(raft::Record::Entries { start, entries, .. }), ..
        } => run(*start, entries.len()),
        LogRecord::Protocol { record, .. } => match fact(record) {
            Fact::Learned { slot, .. } => run(slot, 1),
            Fact::Accepted { first, batches, .. } => run(first, batches.len()),
            Fact::Extended { start, batches, .. } => run(start, batches.len()),
            Fact::Staged { from, batches, .. } | Fact::Adopted { from, batches, .. } => {
                run(from, batches.len())
            }
            Fact::Promised(_) | Fact::Nothing => 0..0,
        },
    }
}

/// The batches that a record holds, with their slots.
pub fn values(record: &LogRecord) -> Vec<(Slot, Batch)> {
    let run = |from: Slot, batches: Vec<Batch>| (from.0..).map(Slot).zip(batches).collect();
    match record {
        LogRecord::Learned { slot, batch, .. } | LogRecord::Decided { slot, batch, .. } => {
            vec![(*slot, batch.clone())]
        }
        LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => Vec::new(),
        LogRecord::Protocol {
            record: Record::Raft(raft::Record::Entries { start, entries, .. }), ..
        } => run(*start, entries.iter().map(|entry| entry.batch.clone()).collect()),
        LogRecord::Protocol { record, .. } => match fact(record) {
            Fact::Learned { slot, batch } => vec![(slot, batch)],
            Fact::Accepted { first: from, batches, .. }
            | Fact::Extended { start: from, batches, .. }
            | Fact::Staged { from, batches, .. }
            | Fact::Adopted { from, batches, .. } => run(from, batches.iter().cloned().collect()),
            Fact::Promised(_) | Fact::Nothing => Vec::new(),
        },
    }
}

/// What a record remembers.
pub fn fact(record: &Record) -> Fact {
    match record {
        Record::MultiPaxos(record) => multipaxos_fact(record),
        Record::SequencePaxos(record) => sequence_paxos_fact(record),
        Record::Raft(_) => Fact::Nothing,
    }
}

fn multipaxos_fact(record: &multipaxos::Record) -> Fact {
    match record {
        multipaxos::Record::Promised(ballot) => Fact::Promised(*ballot),
        multipaxos::Record::Accepted { ballot, first, batches, .. } => {
            Fact::Accepted { ballot: *ballot, first: *first, batches: batches.clone() }
        }
        multipaxos::Record::Learned(value) => Fact::Learned { slot: value.slot, batch: value.batch.clone() },
        multipaxos::Record::Lives(_) | multipaxos::Record::Amnesia(_) => Fact::Nothing,
    }
}

fn sequence_paxos_fact(record: &sequence_paxos::Record) -> Fact {
    use sequence_paxos::Record;
    match record.clone() {
        Record::Promised(ballot) => Fact::Promised(ballot),
        Record::Accepted { ballot, start, batches, .. } => Fact::Extended { ballot, start, batches },
        Record::Staged { ballot, start, from, batches } => Fact::Staged { ballot, start, from, batches },
        Record::Adopted { ballot, start, from, decided, batches, .. } => {
            Fact::Adopted { ballot, start, from, decided, batches }
        }
        Record::Learned { slot, batch, .. } => Fact::Learned { slot, batch },
        Record::Amnesia(_) | Record::Trimmed { .. } => Fact::Nothing,
    }
}

/// What a record says about who remembers what. Only of protocols that let a replica without its log vote again.
#[derive(Clone, Debug)]
pub enum Recollection {
    /// No lower ballot is followed.
    Promised(Ballot),
    /// The latest lives of others that the replica knows of.
    Lives(Vec<(ReplicaId, Incarnation)>),
    /// Whether the replica knows all that it may have promised and accepted.
    Whole(bool),
}

/// What a record says about who remembers what.
pub fn recollection(record: &Record) -> Option<Recollection> {
    let Record::MultiPaxos(record) = record else { return None };
    match record {
        multipaxos::Record::Promised(ballot) => Some(Recollection::Promised(*ballot)),
        multipaxos::Record::Lives(lives) => Some(Recollection::Lives(lives.clone())),
        multipaxos::Record::Amnesia(lost) => Some(Recollection::Whole(!lost)),
        multipaxos::Record::Accepted { .. } | multipaxos::Record::Learned(_) => None,
    }
}

/// A part of a promise.
#[derive(Clone, Copy, Debug)]
pub enum Page {
    /// A candidate wants to hear about the slots from `first` on.
    Question { first: Slot },
    /// A life answers about the slots from `first` on, and before `next` if there is more.
    Answer { ballot: Ballot, first: Slot, next: Option<Slot>, life: Incarnation },
}

/// The part of a promise that a message is. Only of protocols that let a replica without its log vote again.
pub fn page(message: &Message) -> Option<Page> {
    match message {
        Message::MultiPaxos(multipaxos::Message::Prepare { from, .. }) => {
            Some(Page::Question { first: *from })
        }
        Message::MultiPaxos(multipaxos::Message::Promise(promise)) => Some(Page::Answer {
            ballot: promise.ballot,
            first: promise.from,
            next: promise.next,
            life: promise.incarnation,
        }),
        _ => None,
    }
}

/// Whether a replica that lost its log asks others what it must know.
pub fn asks_to_recover(message: &Message) -> bool {
    matches!(message, Message::MultiPaxos(multipaxos::Message::Recover { .. }))
}

/// Of an answer to that: the life that asked, and the one that answers.
pub fn answer_to_recover(message: &Message) -> Option<(Incarnation, Incarnation)> {
    match message {
        Message::MultiPaxos(multipaxos::Message::RecoverAnswer { asker, incarnation, .. }) => {
            Some((*asker, *incarnation))
        }
        _ => None,
    }
}
