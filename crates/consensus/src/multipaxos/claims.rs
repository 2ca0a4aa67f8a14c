//! What messages claim and records remember, for the checks: promises, proposals and votes for single slots.

use synod_wire::Slot;

use super::{Message, Record};
use crate::claims::{Claim, Claims, Fact, Facts, PromisePage, Recollection, Recovery};

impl Claims for Message {
    fn claims(&self) -> Vec<Claim<'_>> {
        match self {
            Message::Prepare { ballot, .. } => vec![Claim::Candidate(*ballot)],
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
            Message::Accept { ballot, first, decided, batches } => {
                Claim::proposals(*ballot, *first, *decided, batches)
            }
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

    fn recovery(&self) -> Option<Recovery> {
        match self {
            Message::Prepare { from, .. } => Some(Recovery::PageWanted { first: *from }),
            Message::Promise(promise) => Some(Recovery::Page {
                ballot: promise.ballot,
                first: promise.from,
                next: promise.next,
                life: promise.incarnation,
            }),
            Message::Recover { .. } => Some(Recovery::Asks),
            Message::RecoverAnswer { asker, incarnation, .. } => {
                Some(Recovery::Answers { asker: *asker, life: *incarnation })
            }
            _ => None,
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
            Record::Lives(_) | Record::Amnesia(_) => Fact::Nothing,
        }
    }

    fn recollection(&self) -> Option<Recollection> {
        match self {
            Record::Promised(ballot) => Some(Recollection::Promised(*ballot)),
            Record::Lives(lives) => Some(Recollection::Lives(lives.clone())),
            Record::Amnesia(lost) => Some(Recollection::Whole(!lost)),
            Record::Accepted { .. } | Record::Learned(_) => None,
        }
    }
}
