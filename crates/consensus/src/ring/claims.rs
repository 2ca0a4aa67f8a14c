//! What messages claim and records remember, for the checks: promises, proposals and votes for single slots.

use synod_wire::{Ballot, ReplicaId, Slot};

use super::{Accept, DecisionRun, Message, Record, VoteRun};
use crate::claims::{Claim, Claims, Fact, Facts, PromisePage, Way};

impl Claims for Message {
    fn claims(&self) -> Vec<Claim<'_>> {
        match self {
            Message::Prepare { ballot, .. } | Message::PrepareRange { ballot, .. } => {
                vec![Claim::Candidate(*ballot)]
            }
            Message::Promise(promise) => {
                let accepted = promise.accepted.iter();
                vec![Claim::Promise {
                    ballot: promise.ballot,
                    from: promise.from,
                    decided: promise.decided,
                    next: promise.next,
                    accepted: accepted.map(|value| (value.slot, value.ballot, &value.batch)).collect(),
                }]
            }
            Message::Decided { ballot, through } | Message::Heartbeat { ballot, decided: through, .. } => {
                vec![Claim::Leads { ballot: *ballot, decided: *through }]
            }
            _ => Vec::new(),
        }
    }

    /// Members send an `Accept` on that the coordinator proposed, and `Votes` with the bits of others.
    fn claims_of(&self, sender: ReplicaId) -> Vec<Claim<'_>> {
        match self {
            Message::Accept(Accept { view, first, decided, values, .. }) if sender == view.ballot.replica => {
                let (ballot, decided) = (view.ballot, *decided);
                let mut claims = vec![Claim::Leads { ballot, decided }];
                for (slot, value) in (first.0..).map(Slot).zip(values) {
                    let batch = value.content.whole();
                    claims.extend(batch.map(|batch| Claim::Propose { ballot, slot, batch, decided }));
                }
                claims
            }
            Message::Votes(VoteRun { view, first, last, votes, .. }) => {
                let votes = view.place(sender).is_some_and(|place| votes.has(place));
                let slots = (first.0..=last.0).map(Slot).filter(|_| votes);
                slots.map(|slot| Claim::Vote { ballot: view.ballot, slot }).collect()
            }
            _ => self.claims(),
        }
    }

    fn way(&self) -> Option<Way<'_>> {
        let (Message::Values { view, .. }
        | Message::Accept(Accept { view, .. })
        | Message::Votes(VoteRun { view, .. })
        | Message::Decision(DecisionRun { view, .. })
        | Message::View { view }) = self
        else {
            return None;
        };
        let votes = if let Message::Votes(run) = self { Some(run.votes) } else { None };
        Some(Way { ballot: view.ballot, number: view.minor, order: &view.order, votes })
    }

    fn range_asked(&self) -> Option<(Ballot, Slot)> {
        if let Message::PrepareRange { ballot, through, .. } = self {
            Some((*ballot, *through))
        } else {
            None
        }
    }

    fn promise_page(&self) -> Option<PromisePage> {
        let Message::Promise(promise) = self else { return None };
        let (first, delivered, more) = (promise.from, promise.decided, promise.next.is_some());
        Some(PromisePage { ballot: promise.ballot, first, delivered, more })
    }
}

impl Facts for Record {
    fn fact(&self) -> Fact {
        match self {
            Record::Promised(ballot) => Fact::Promised(*ballot),
            Record::Accepted { ballot, first, batches, .. } => {
                Fact::Accepted { ballot: *ballot, first: *first, batches: batches.clone() }
            }
            Record::Learned(value) => Fact::Learned { slot: value.slot, batch: value.batch.clone() },
            Record::Amnesia(_) => Fact::Nothing,
        }
    }
}
