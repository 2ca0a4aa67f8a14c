//! What messages claim and records remember, for the checks: promises of, proposals for and votes on a sequence.

use super::{AcceptSync, Message, Record};
use crate::claims::{Claim, Claims, Fact, Facts, PromisePage};

impl Claims for Message {
    fn claims(&self) -> Vec<Claim<'_>> {
        match self {
            Message::Prepare(prepare) => vec![Claim::Candidate(prepare.ballot)],
            Message::Promise(promise) => {
                vec![Claim::PromiseSequence { ballot: promise.ballot, has: promise.has }]
            }
            Message::AcceptSync(AcceptSync { ballot, from, batches, decided, .. }) => {
                Claim::proposals(*ballot, *from, *decided, batches)
            }
            Message::Accept { ballot, first, decided, batches } => {
                Claim::proposals(*ballot, *first, *decided, batches)
            }
            Message::Accepted { ballot, last } => vec![Claim::VoteThrough { ballot: *ballot, last: *last }],
            Message::Decide { ballot, through }
            | Message::Lagging { ballot, through }
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

    fn promise_page(&self) -> Option<PromisePage> {
        let Message::Promise(promise) = self else { return None };
        let (first, delivered, more) = (promise.page, promise.first.prev(), promise.more);
        Some(PromisePage { ballot: promise.ballot, first, delivered, more })
    }
}

impl Facts for Record {
    fn fact(&self) -> Fact {
        match self.clone() {
            Record::Promised(ballot) => Fact::Promised(ballot),
            Record::Accepted { ballot, first, batches, .. } => Fact::Extended { ballot, first, batches },
            Record::Staged { ballot, first, from, batches } => Fact::Staged { ballot, first, from, batches },
            Record::Adopted { ballot, first, from, decided, batches, .. } => {
                Fact::Adopted { ballot, first, from, decided, batches }
            }
            Record::Learned { slot, batch, .. } => Fact::Learned { slot, batch },
            Record::Amnesia(_) | Record::Trimmed { .. } => Fact::Nothing,
        }
    }
}
