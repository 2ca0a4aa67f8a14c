//! What MultiPaxos replicas say to each other, and the records that each writes.
//!
//! | here | Santos 2012, section 7 |
//! | --- | --- |
//! | `Prepare` / `Promise` | PHASE1A / PHASE1B |
//! | `Accept` / `Accepted` | PHASE2A / PHASE2B |
//! | `Decided`, and the field `decided` of `Accept` and `Heartbeat` | the leader's announcement of decisions |
//! | `Heartbeat` | ALIVE |

use synod_wire::{Ballot, Batch, DecodeError, Incarnation, Keep, ReplicaId, Slot};

use crate::{
    Claim, Fact, PromisePage, Recollection, Recovery,
    acceptor::AcceptedValue,
    batches::{Batches, check_run, last_of, see_run, with_others},
    codec::{fields, records},
    describe::{accepted as accepted_text, amnesia as lost_text, joined, more, run},
};

crate::messages! {
    /// A message between two MultiPaxos replicas.
    #[derive(PartialEq, Eq)]
    pub enum Message, "message kind" {
        /// Phase 1a, for all slots from `from` on.
        1, Prepare, claims [Claim::Candidate(*ballot)], text "Prepare {ballot} from slot {from}":
        Prepare {
            /// The ballot that the sender wants to lead.
            ballot: Ballot,
            /// The first slot that it wants to hear about.
            from: Slot,
        },
        /// Phase 1b: one page of what the sender accepted. The candidate asks for the next page with another
        /// `Prepare`, so that no answer is unbounded.
        2, Promise,
        claims [Claim::promise(promise.ballot, promise.from, promise.decided, promise.next, &promise.accepted)],
        text (
            "Promise {} from slot {}, decided {}: {}{}{}",
            promise.ballot, promise.from, promise.decided, accepted_text(&promise.accepted, batch), more(promise.next),
            lives_text(&promise.lives)
        ):
        Promise(promise: Promise),
        /// Phase 2a, for consecutive slots: they leave together, and each is answered and decided by itself.
        3, Proposal, claims { Claim::proposals(*ballot, *first, *decided, batches) },
        text (
            "Accept {ballot} {}, decided {decided}: {}",
            run(*first, last_of(*first, batches)), joined(batches, batch)
        ):
        Accept {
            /// The leader's ballot.
            ballot: Ballot,
            /// The slot of the first batch.
            first: Slot,
            /// Slots through this one are decided, those proposed in `ballot` with what was proposed.
            decided: Slot,
            /// What is proposed in `first` and the slots after it.
            batches: Batches,
        },
        /// Phase 2b, for consecutive slots.
        4, Vote,
        claims { (first.0..=last.0).map(|slot| Claim::Vote { ballot: *ballot, slot: Slot(slot) }).collect() },
        text ("Accepted {ballot} {}", run(*first, *last)):
        Accepted {
            /// The ballot of the proposals.
            ballot: Ballot,
            /// The slot of the first proposal.
            first: Slot,
            /// The slot of the last proposal.
            last: Slot,
        },
        /// Slots through `through` are decided, those proposed in `ballot` with what was proposed there.
        5, Announcement, claims [Claim::Leads { ballot: *ballot, decided: *through }],
        text "Decided {ballot} through slot {through}":
        Decided {
            /// The leader's ballot.
            ballot: Ballot,
            /// The last slot of the decided prefix.
            through: Slot,
        },
        /// The leader lives, and asks whether the receiver still follows it, which is what a linearizable read
        /// needs to know.
        6, Heartbeat, claims [Claim::Leads { ballot: *ballot, decided: *decided }],
        text "Heartbeat {ballot} round {round}, decided {decided}":
        Heartbeat {
            /// The leader's ballot.
            ballot: Ballot,
            /// The same as in `Decided`.
            decided: Slot,
            /// The number of the question, which grows with every question.
            round: u64,
        },
        /// The sender still follows `ballot`.
        7, HeartbeatAnswer, text "HeartbeatAck {ballot} round {round}":
        HeartbeatAck {
            /// The leader's ballot.
            ballot: Ballot,
            /// The number of the question that is answered.
            round: u64,
        },
        /// The receiver's ballot is too low: the sender promised `promised`.
        8, Refusal, text "Reject promised {promised}":
        Reject {
            /// The higher ballot.
            promised: Ballot,
        },
        /// The sender lost its log, and asks what it must know before it may vote again.
        9, Recovery, text "Recover life {incarnation}":
        Recover {
            /// The life that asks.
            incarnation: Incarnation,
        },
        /// Answers `Recover`.
        10, Recovery,
        text (
            "RecoverAnswer of life {incarnation} to life {asker}: promised {promised}{}{}",
            next_slot.map_or(String::new(), |slot| format!(", leads, next slot {slot}")), lives_text(lives)
        ):
        RecoverAnswer {
            /// The life that asked.
            asker: Incarnation,
            /// The life that answers.
            incarnation: Incarnation,
            /// The highest ballot that the sender of the answer promised.
            promised: Ballot,
            /// The first slot that the sender has not proposed in yet, if it leads in that ballot.
            next_slot: Option<Slot>,
            /// The latest lives of replicas that the sender knows of, which a replica that forgot them learns again.
            lives: Vec<(ReplicaId, Incarnation)>,
        },
        /// The leader wants the receiver to lead.
        11, Transfer, text "TakeOver from {ballot}":
        TakeOver {
            /// The leader's ballot.
            ballot: Ballot,
        },
    }
    described with batch;
    body {
        fn with_batches(&self, other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<crate::Message> {
            let &Message::Accept { ballot, first, decided, ref batches } = self else { return None };
            let batches = with_others(batches, other)?;
            Some(Message::Accept { ballot, first, decided, batches }.into())
        }
    }
    claims {
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
}

fields! {
    /// The contents of [`Message::Promise`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Promise {
        /// The ballot that is promised.
        pub ballot: Ballot,
        /// The slot with which the page begins, as the candidate asked.
        pub from: Slot,
        /// Slots through this one are decided, and not reported.
        pub decided: Slot,
        /// The slot with which the next page begins; `None` if this is the last.
        pub next: Option<Slot>,
        /// The sender's own life.
        pub incarnation: Incarnation,
        /// The latest lives of replicas that the sender knows of: promises of earlier lives are void.
        pub lives: Vec<(ReplicaId, Incarnation)>,
        /// What the sender accepted in slots of this page, in slot order.
        pub accepted: Vec<AcceptedValue>,
    }
}

records! {
    /// What an acceptor must remember across a crash.
    pub enum Record, "record kind" {
        /// No lower ballot may be answered any more.
        1, keep Keep::State(STATE_PROMISED), fact Fact::Promised(*promised), text "promised {promised}":
        Promised(promised: Ballot),
        /// Values were accepted in consecutive slots: what one message brought is one record. Each value replaces
        /// what was accepted in its slot before.
        2, keep Keep::Slot(last_of(*first, batches)),
        fact Fact::Accepted { ballot: *ballot, first: *first, batches: batches.clone() },
        text (
            "accepted {ballot} {}, decided {decided}: {}",
            run(*first, last_of(*first, batches)), joined(batches, batch)
        ):
        Accepted {
            /// The ballot in which they were accepted.
            ballot: Ballot,
            /// The slot of the first batch.
            first: Slot,
            /// When this was written, slots through this one were decided, with the values that the log holds.
            decided: Slot,
            /// What was accepted in `first` and the slots after it; at least one batch.
            batches: Batches,
        },
        /// A peer told what was decided in this slot; it replaces what was accepted there.
        ///
        /// The ballot is that in which the peer delivered it, which may be lower than one in which this replica
        /// accepted the same value. Without a ballot a later candidate could take an older value of another acceptor
        /// for the newer one.
        3, keep Keep::Slot(value.slot), fact Fact::Learned { slot: value.slot, batch: value.batch.clone() },
        text ("learned slot {}: {}", value.slot, batch(&value.batch)):
        Learned(value: AcceptedValue),
        /// The latest lives of replicas that this one knows of.
        4, keep Keep::State(STATE_LIVES), text ("lives:{}", lives_text(lives)):
        Lives(lives: Vec<(ReplicaId, Incarnation)>),
        /// Whether this replica lost a log and must not vote yet. `false` is also the first record of a new log.
        5, keep Keep::State(STATE_AMNESIA), text { lost_text(*amnesia) }:
        Amnesia(amnesia: bool),
    }
    described with batch;
    checked by Record::holds_slots;
    logged {
        fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
            match self {
                Record::Accepted { first, batches, .. } => see_run(*first, batches, see),
                Record::Learned(value) => see(value.slot, &value.batch),
                Record::Promised(_) | Record::Lives(_) | Record::Amnesia(_) => {}
            }
        }

        fn is_decision(&self) -> bool {
            matches!(self, Record::Learned(_))
        }

        fn amnesia(&self) -> Option<bool> {
            if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
        }
    }
    facts {
        fn recollection(&self) -> Option<Recollection> {
            match self {
                Record::Promised(ballot) => Some(Recollection::Promised(*ballot)),
                Record::Lives(lives) => Some(Recollection::Lives(lives.clone())),
                Record::Amnesia(lost) => Some(Recollection::Whole(!lost)),
                Record::Accepted { .. } | Record::Learned(_) => None,
            }
        }
    }
}

const STATE_PROMISED: u8 = 1;
const STATE_LIVES: u8 = 2;
const STATE_AMNESIA: u8 = 3;

impl Record {
    fn holds_slots(&self) -> Result<(), DecodeError> {
        if let Record::Accepted { first, batches, .. } = self { check_run(*first, batches) } else { Ok(()) }
    }
}

fn lives_text(known: &[(ReplicaId, Incarnation)]) -> String {
    let life = |(replica, life): &(ReplicaId, Incarnation)| format!("{replica} lives life {life}");
    let lives: Vec<String> = known.iter().map(life).collect();
    if lives.is_empty() { String::new() } else { format!(" ({})", lives.join(", ")) }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
