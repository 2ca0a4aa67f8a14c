//! What messages claim and records remember, for the checks: terms, the votes in them, and logs.

use synod_wire::{Ballot, ReplicaId};

use super::{Message, Record};
use crate::claims::{Claims, Facts, TermClaim, TermFact};

impl Claims for Message {
    fn term_claims(&self) -> Vec<TermClaim<'_>> {
        match self {
            Message::Vote { term, rehearsal: false, .. } => vec![TermClaim::Candidate { term: *term }],
            Message::VoteReply { term, rehearsal: false, granted: true } => {
                vec![TermClaim::Grants { term: *term }]
            }
            Message::Append { ballot, prev, prev_ballot, entries, commit, .. } => {
                let mut claims = vec![TermClaim::Leads { ballot: *ballot, commit: *commit }];
                let (mut slot, mut before) = (*prev, *prev_ballot);
                for entry in entries.iter() {
                    slot = slot.next();
                    claims.push(TermClaim::Entry { slot, ballot: entry.ballot, before, batch: &entry.batch });
                    before = entry.ballot;
                }
                claims
            }
            Message::Heartbeat { ballot, commit, .. } | Message::Commit { ballot, through: commit } => {
                vec![TermClaim::Leads { ballot: *ballot, commit: *commit }]
            }
            Message::AppendReply { ballot, through, .. } => {
                vec![TermClaim::Acknowledges { ballot: *ballot, through: *through }]
            }
            Message::Vote { rehearsal: true, .. }
            | Message::VoteReply { .. }
            | Message::Conflict(_)
            | Message::HeartbeatAck(_)
            | Message::Stale { .. }
            | Message::TimeoutNow { .. }
            | Message::Priority { .. }
            | Message::Follow => Vec::new(),
        }
    }

    fn answers(&self, candidate: ReplicaId) -> Option<Ballot> {
        match self {
            Message::VoteReply { term, rehearsal: false, .. } => {
                Some(Ballot { round: *term, replica: candidate })
            }
            _ => None,
        }
    }
}

impl Facts for Record {
    fn term_fact(&self) -> TermFact {
        match self {
            Record::Term { term, voted_for } => TermFact::Term { term: *term, voted_for: *voted_for },
            Record::Entries { first, entries, decided, .. } => {
                TermFact::Entries { first: *first, entries: entries.clone(), decided: *decided }
            }
            Record::Truncated { from, .. } => TermFact::Truncated { from: *from },
            Record::Amnesia(true) => TermFact::Lost,
            Record::Amnesia(false) => TermFact::Nothing,
        }
    }
}
