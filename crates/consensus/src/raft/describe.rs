//! Messages and records as people read them.

use synod_wire::{Ballot, ReplicaId, Slot};

use super::{
    CommitStatus, Conflict, Entry, HeartbeatAck, Known, Message, Record, Round, RoundConflict, VoteRound,
};
use crate::{
    BatchText, Describe, Logged, VoterSets,
    batches::last_of,
    describe::{amnesia, run},
};

impl Describe for Message {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Message::Vote { term, rehearsal, transfer, last, last_ballot } => {
                let name = if *rehearsal { "PreVote" } else { "Vote" };
                let asked = if *transfer { ", as the leader wishes" } else { "" };
                format!("{name} term {term}, log to slot {last} in {last_ballot}{asked}")
            }
            Message::VoteReply { term, rehearsal, granted } => {
                let name = if *rehearsal { "PreVoteReply" } else { "VoteReply" };
                let answer = if *granted { "yes" } else { "no" };
                format!("{name} term {term}: {answer}")
            }
            Message::Append { ballot, prev, prev_ballot, entries, commit, .. } => {
                let entries = if entries.is_empty() {
                    "nothing".to_owned()
                } else {
                    describe_entries(*ballot, entries, batch)
                };
                format!("Append {ballot} after slot {prev} in {prev_ballot}, commit {commit}: {entries}")
            }
            Message::AppendReply { ballot, through, .. } => {
                format!("AppendReply {ballot} through slot {through}")
            }
            Message::Conflict(Conflict { ballot, prev, hint, hint_ballot, .. }) => {
                format!("Conflict {ballot} at slot {prev}; perhaps slot {hint} in {hint_ballot}")
            }
            Message::Commit { ballot, through } => format!("Commit {ballot} through slot {through}"),
            Message::Heartbeat { ballot, commit, round, .. } => {
                format!("Heartbeat {ballot} round {round}, commit {commit}")
            }
            Message::HeartbeatAck(HeartbeatAck { ballot, round, .. }) => {
                format!("HeartbeatAck {ballot} round {round}")
            }
            Message::Stale { term } => format!("Stale: term {term} began"),
            Message::TimeoutNow { ballot } => format!("TimeoutNow from {ballot}"),
            Message::Priority { priority } => format!("Priority {priority}"),
            Message::Follow => "Follow".to_owned(),
            Message::Round(round) => describe_round(round, batch),
            Message::Pull { ballot, hint, hint_ballot } => {
                format!("Pull {ballot} from slot {hint} in {hint_ballot}")
            }
            Message::VoteRound(round) => describe_vote_round(round),
            Message::RoundReply { ballot, number, through } => {
                format!("RoundReply {ballot} round {number} through slot {through}")
            }
            Message::RoundConflict(RoundConflict { ballot, number, prev, hint, hint_ballot }) => format!(
                "RoundConflict {ballot} round {number} at slot {prev}; perhaps slot {hint} in {hint_ballot}"
            ),
        }
    }
}

impl Describe for Record {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Record::Term { term, voted_for: Some(candidate) } => {
                format!("term {term}, votes for {candidate}")
            }
            Record::Term { term, voted_for: None } => format!("term {term}"),
            Record::Entries { first, entries, decided, .. } => {
                let of = entries.first().map_or(Ballot::ZERO, |entry| entry.ballot);
                let slots = run(*first, last_of(*first, entries));
                let what = describe_entries(of, entries, batch);
                if self.is_decision() {
                    format!("learned {slots} in {of}: {what}")
                } else {
                    format!("entry {of} {slots}, decided {decided}: {what}")
                }
            }
            Record::Truncated { from, .. } => format!("slots from {from} on removed"),
            Record::Amnesia(lost) => amnesia(*lost),
        }
    }
}

fn describe_vote_round(round: &VoteRound) -> String {
    let VoteRound { candidate, term, attempt, rehearsal, transfer, last, last_ballot, granted } = round;
    let name = if *rehearsal { "PreVoteRound" } else { "VoteRound" };
    let asked = if *transfer { ", as the leader wishes" } else { "" };
    let granted: String = granted.iter().map(|id| format!(" {id}")).collect();
    format!(
        "{name} {attempt} of {candidate}, term {term}, log to slot {last} in {last_ballot}{asked}; votes of{granted}"
    )
}

fn describe_round(round: &Round, batch: BatchText<'_>) -> String {
    let Round { ballot, number, beat: _, prev, prev_ballot, entries, commit, status } = round;
    if let (0, Some(status), true) = (number, status, entries.is_empty()) {
        return format!("Status in {ballot}{}", describe_status(status));
    }
    let what =
        if entries.is_empty() { "nothing".to_owned() } else { describe_entries(*ballot, entries, batch) };
    let status = status.as_ref().map_or(String::new(), describe_status);
    format!("Round {number} of {ballot} after slot {prev} in {prev_ballot}, commit {commit}{status}: {what}")
}

fn describe_status(status: &CommitStatus) -> String {
    let CommitStatus { merge: _, commit, next, members } = status;
    let holders = members.iter().filter(|known| known.held != Slot::ZERO);
    let text = |known: &Known| match *next {
        Slot::ZERO => format!(" {} {}", known.id, known.held),
        _ => format!(" {}", known.id),
    };
    let holders: String = holders.map(text).collect();
    let next = if *next == Slot::ZERO { String::new() } else { format!(", slot {next} next") };
    format!(" ({commit} known{next}, held by{})", if holders.is_empty() { " nobody" } else { &holders })
}

fn describe_entries(of: Ballot, entries: &[Entry], batch: BatchText<'_>) -> String {
    entries.iter().map(|entry| describe_entry(of, entry, batch)).collect::<Vec<_>>().join(" | ")
}

/// An entry, with its term if that is not the message's.
fn describe_entry(of: Ballot, entry: &Entry, batch: BatchText<'_>) -> String {
    let term = if entry.ballot == of { String::new() } else { format!("(in {}) ", entry.ballot) };
    let change = entry.voters.as_ref().map_or(String::new(), |sets| format!("{} ", voters(sets)));
    format!("{term}{change}{}", batch(&entry.batch))
}

fn voters(sets: &VoterSets) -> String {
    let names = |ids: &[ReplicaId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let before = if sets.is_joint() { format!(" and of {}", names(sets.outgoing())) } else { String::new() };
    format!("[majority of {}{before}]", names(sets.incoming()))
}
