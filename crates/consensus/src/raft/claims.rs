//! What messages claim and records remember, for the checks: terms, the votes in them, and logs.

use synod_wire::{Ballot, ReplicaId, Slot};

use super::{Entry, Message, Record, Round, log::Position};
use crate::claims::{Claims, Facts, TermClaim, TermFact};

impl Claims for Message {
    fn term_claims(&self) -> Vec<TermClaim<'_>> {
        match self {
            Message::Vote { term, rehearsal: false, .. } => vec![TermClaim::Candidate { term: *term }],
            Message::VoteReply { term, rehearsal: false, granted: true } => {
                vec![TermClaim::Grants { term: *term }]
            }
            Message::Append { ballot, prev, prev_ballot, entries, commit, .. } => {
                leads_with(*ballot, *commit, Position { slot: *prev, ballot: *prev_ballot }, entries)
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
            | Message::RoundConflict(_)
            | Message::Pull { .. }
            | Message::Follow => Vec::new(),
            Message::RoundReply { ballot, through, .. } => {
                vec![TermClaim::Acknowledges { ballot: *ballot, through: *through }]
            }
            Message::Round(round) => round_claims(round),
            // Each replica claims its own vote.
            Message::VoteRound(_) => Vec::new(),
        }
    }

    /// A replica that passes a round on says nothing by that of its own log, and does not lead.
    fn term_claims_of(&self, sender: ReplicaId) -> Vec<TermClaim<'_>> {
        let mut claims = self.term_claims();
        if let Message::Round(round) = self
            && round.ballot.replica != sender
        {
            claims.retain(|claim| !matches!(claim, TermClaim::Leads { .. } | TermClaim::Entry { .. }));
        }
        if let Message::VoteRound(round) = self
            && !round.rehearsal
            && round.granted.contains(&sender)
        {
            claims.push(TermClaim::Votes { term: round.term, candidate: round.candidate });
        }
        claims
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

/// The claims of a leader whose log has these entries after a position.
fn leads_with(ballot: Ballot, commit: Slot, prev: Position, entries: &[Entry]) -> Vec<TermClaim<'_>> {
    let mut claims = vec![TermClaim::Leads { ballot, commit }];
    let Position { mut slot, ballot: mut before } = prev;
    for entry in entries {
        slot = slot.next();
        claims.push(TermClaim::Entry { slot, ballot: entry.ballot, before, batch: &entry.batch });
        before = entry.ballot;
    }
    claims
}

fn round_claims(round: &Round) -> Vec<TermClaim<'_>> {
    let ballot = round.ballot;
    let mut claims = leads_with(ballot, round.commit, round.before(), &round.entries);
    if let Some(status) = &round.status {
        claims.push(TermClaim::Committed { ballot, through: status.commit });
        let holders = status.members.iter().filter(|known| known.held != Slot::ZERO);
        claims.extend(holders.map(|known| TermClaim::Held { ballot, by: known.id, through: known.held }));
    }
    claims
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
