//! What replicas of Kernel Paxos say to each other, and the records that each writes.
//!
//! | here | Kernel Paxos 2019, section 4.2 |
//! | --- | --- |
//! | `Prepare` / `Promise` | PREPARE / PROMISE |
//! | `Accept` / `Accepted` | ACCEPT / ACCEPTED; `further` is its `promise_iid` |
//! | `Reject` | PREEMPTED |
//! | `Repeat` / `Told` | REPEAT / ACCEPTED with a value |
//! | `PrepareAll` / `PromiseAll` | section 4.6: a range promise |
//!
//! TRIM has no message: each replica trims its acceptor to what it has delivered. CLIENT_VALUE, LEARNER_HI and its
//! answers are the replica layer's: batches are forwarded to the leader, and the members are known.

use synod_wire::{Ballot, Batch, DecodeError, Keep, Slot};

use crate::{
    Claim, Fact, PromisePage, Recollection,
    acceptor::AcceptedValue,
    batches::{is_prefix, is_slot},
    codec::{fields, records},
    describe::{accepted as accepted_text, amnesia as lost_text},
};

crate::messages! {
    /// A message between two replicas of Kernel Paxos.
    #[derive(PartialEq, Eq)]
    pub enum Message, "message kind" {
        /// Phase 1a of all slots.
        1, Prepare, claims [Claim::Candidate(*ballot)], text "PrepareAll {ballot} from slot {from}":
        PrepareAll {
            /// The ballot that the sender wants to lead.
            ballot: Ballot,
            /// The first slot that it will ask about.
            from: Slot,
        },
        /// Phase 1b of all slots: no lower ballot is obeyed, and nothing was accepted after `touched`.
        2, Promise,
        claims [Claim::promise(*ballot, (*touched).max(*decided).next(), *decided, None, &[])],
        text "PromiseAll {ballot}, touched through slot {touched}, decided {decided}":
        PromiseAll {
            /// The ballot that is promised.
            ballot: Ballot,
            /// Slots through this one are decided, and forgotten.
            decided: Slot,
            /// The highest slot of which something was promised or accepted by itself.
            touched: Slot,
        },
        /// Phase 1a of one slot.
        3, Prepare, claims [Claim::Candidate(*ballot)], text "Prepare {ballot} slot {slot}":
        Prepare {
            /// The sender's ballot.
            ballot: Ballot,
            /// The slot that it asks about.
            slot: Slot,
        },
        /// Phase 1b of one slot.
        4, Promise,
        claims [Claim::promise(
            promise.ballot, promise.slot, promise.decided, Some(promise.slot.next()), &promise.accepted,
        )],
        text (
            "Promise {} slot {}, decided {}: {}",
            promise.ballot, promise.slot, promise.decided, accepted_text(&promise.accepted, batch)
        ):
        Promise(promise: Promise),
        /// Phase 2a.
        5, Proposal,
        claims [
            Claim::Leads { ballot: *ballot, decided: *decided },
            Claim::Propose { ballot: *ballot, slot: *slot, batch: proposed, decided: *decided },
        ],
        text (
            "Accept {ballot} slot {slot}, decided {decided}: {}{}",
            batch(proposed), further.map_or(String::new(), |slot| format!("; prepares slot {slot}"))
        ):
        Accept {
            /// The leader's ballot.
            ballot: Ballot,
            /// The slot.
            slot: Slot,
            /// A further slot that is prepared with it.
            further: Option<Slot>,
            /// Slots through this one are decided, those proposed in `ballot` with what was proposed.
            decided: Slot,
            /// What is proposed.
            proposed: Batch,
        },
        /// Phase 2b, which goes to all.
        6, Vote, claims [Claim::Vote { ballot: *ballot, slot: *slot }],
        text (
            "Accepted {ballot} slot {slot}{}",
            further.map_or(String::new(), |slot| format!("; promises slot {slot}"))
        ):
        Accepted {
            /// The ballot of the proposal.
            ballot: Ballot,
            /// The slot.
            slot: Slot,
            /// The further slot that the proposal named, if it is promised and nothing was accepted there.
            further: Option<Slot>,
        },
        /// A learner misses a slot.
        7, Recovery, text "Repeat slot {slot}":
        Repeat {
            /// The slot.
            slot: Slot,
        },
        /// Answers `Repeat`: what the sender accepted in the slot, or learned to be decided there, whatever it has
        /// promised since. What was delivered comes as with catch-up.
        8, Vote,
        claims [Claim::Told {
            promised: *promised, ballot: value.ballot, slot: value.slot, batch: &value.batch,
        }],
        text ("Told by one that promised {promised}: {}", accepted_text(std::slice::from_ref(value), batch)):
        Told {
            /// The ballot that the sender has promised by now.
            promised: Ballot,
            /// What it accepted, with the ballot of the value.
            value: AcceptedValue,
        },
        /// The leader lives, and asks whether the receiver still follows it.
        9, Heartbeat, claims [Claim::Leads { ballot: *ballot, decided: *decided }],
        text "Heartbeat {ballot} round {round}, decided {decided}":
        Heartbeat {
            /// The leader's ballot.
            ballot: Ballot,
            /// Slots through this one are decided, those proposed in `ballot` with what was proposed.
            decided: Slot,
            /// The number of the question, which grows with every question.
            round: u64,
        },
        /// The sender still follows `ballot`.
        10, HeartbeatAnswer, text "HeartbeatAck {ballot} round {round}":
        HeartbeatAck {
            /// The leader's ballot.
            ballot: Ballot,
            /// The number of the question that is answered.
            round: u64,
        },
        /// The receiver's ballot is too low: the sender promised `promised`.
        11, Refusal, text "Reject promised {promised}":
        Reject {
            /// The higher ballot.
            promised: Ballot,
        },
        /// The leader wants the receiver to lead.
        12, Transfer, text "TakeOver from {ballot}":
        TakeOver {
            /// The leader's ballot.
            ballot: Ballot,
        },
    }
    described with batch;
    checked by Message::is_sound;
    body {
        fn with_batches(&self, other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<crate::Message> {
            let &Message::Accept { ballot, slot, further, decided, ref proposed } = self else { return None };
            let proposed = other(proposed)?;
            Some(Message::Accept { ballot, slot, further, decided, proposed }.into())
        }
    }
    claims {
        fn promise_page(&self) -> Option<PromisePage> {
            match self {
                Message::PromiseAll { ballot, decided, touched } => Some(PromisePage {
                    ballot: *ballot,
                    first: decided.next(),
                    delivered: *decided,
                    more: touched > decided,
                }),
                Message::Promise(Promise { ballot, slot, decided, .. }) => {
                    Some(PromisePage { ballot: *ballot, first: *slot, delivered: *decided, more: false })
                }
                _ => None,
            }
        }
    }
}

fields! {
    /// The contents of [`Message::Promise`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Promise {
        /// The ballot that is promised.
        pub ballot: Ballot,
        /// The slot.
        pub slot: Slot,
        /// Slots through this one are decided, and forgotten.
        pub decided: Slot,
        /// What the sender accepted in the slot: one value, or none.
        pub accepted: Vec<AcceptedValue>,
    }
}

records! {
    /// What an acceptor must remember across a crash.
    pub enum Record, "record kind" {
        /// No lower ballot may be answered any more, in any slot.
        1, keep Keep::State(1), fact Fact::Promised(*promised), text "promised {promised}":
        Promised(promised: Ballot),
        /// A value was accepted. It replaces what was accepted in its slot before.
        2, keep Keep::Slot(*slot),
        fact Fact::Accepted { ballot: *ballot, first: *slot, batches: [accepted.clone()].into() },
        text ("accepted {ballot} slot {slot}, decided {decided}: {}", batch(accepted)):
        Accepted {
            /// The ballot in which it was accepted.
            ballot: Ballot,
            /// The slot.
            slot: Slot,
            /// When this was written, slots through this one were decided, with the values that the log holds.
            decided: Slot,
            /// The value.
            accepted: Batch,
        },
        /// Others told what was decided in this slot; it replaces what was accepted there.
        3, keep Keep::Slot(value.slot), fact Fact::Learned { slot: value.slot, batch: value.batch.clone() },
        text ("learned slot {}: {}", value.slot, batch(&value.batch)):
        Learned(value: AcceptedValue),
        /// Whether this replica lost a log. `false` is also the first record of a new log.
        4, keep Keep::State(2), text { lost_text(*amnesia) }:
        Amnesia(amnesia: bool),
    }
    described with batch;
    checked by Record::is_sound;
    logged {
        fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
            match self {
                Record::Accepted { slot, accepted, .. } => see(*slot, accepted),
                Record::Learned(value) => see(value.slot, &value.batch),
                Record::Promised(_) | Record::Amnesia(_) => {}
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
                Record::Amnesia(lost) => Some(Recollection::Whole(!lost)),
                Record::Accepted { .. } | Record::Learned(_) => None,
            }
        }
    }
}

impl Record {
    /// There is no slot 0.
    fn is_sound(&self) -> Result<(), DecodeError> {
        match self {
            Record::Accepted { slot: Slot::ZERO, .. } => {
                Err(DecodeError::Undefined { field: "slot", value: 0 })
            }
            _ => Ok(()),
        }
    }
}

impl Message {
    /// Refuses what no replica says: something said in no ballot, or in one that no group gets to; a slot that there
    /// cannot be; and a promise of one slot with the value of another.
    fn is_sound(&self) -> Result<(), DecodeError> {
        match self {
            Message::PrepareAll { ballot, from: slot } | Message::Prepare { ballot, slot } => {
                is_ballot(*ballot)?;
                is_slot(*slot)
            }
            Message::PromiseAll { ballot, decided, touched } => {
                is_ballot(*ballot)?;
                is_prefix((*decided).max(*touched))
            }
            Message::Promise(promise) => promise.is_sound(),
            Message::Accept { ballot, slot, further, decided, .. } => {
                is_ballot(*ballot)?;
                is_slot(*slot)?;
                is_slot(further.unwrap_or(*slot))?;
                is_prefix(*decided)
            }
            Message::Accepted { ballot, slot, further } => {
                is_ballot(*ballot)?;
                is_slot(*slot)?;
                is_slot(further.unwrap_or(*slot))
            }
            Message::Repeat { slot } => is_slot(*slot),
            Message::Told { promised, value } => {
                is_ballot(*promised)?;
                is_ballot(value.ballot)?;
                is_slot(value.slot)
            }
            Message::Heartbeat { ballot, decided, .. } => {
                is_ballot(*ballot)?;
                is_prefix(*decided)
            }
            Message::HeartbeatAck { ballot, .. }
            | Message::Reject { promised: ballot }
            | Message::TakeOver { ballot } => is_ballot(*ballot),
        }
    }
}

impl Promise {
    fn is_sound(&self) -> Result<(), DecodeError> {
        is_ballot(self.ballot)?;
        is_slot(self.slot)?;
        is_prefix(self.decided)?;
        let refuse = |field, value| Err(DecodeError::Undefined { field, value });
        match &self.accepted[..] {
            [] => Ok(()),
            [value] if value.slot == self.slot => is_ballot(value.ballot),
            [value] => refuse("slot of the value", value.slot.0),
            more => refuse("values", more.len() as u64),
        }
    }
}

/// No replica does anything in round 0, which is before the first.
fn is_ballot(ballot: Ballot) -> Result<(), DecodeError> {
    if ballot.round > 0 && ballot.is_in_reach() {
        Ok(())
    } else {
        Err(DecodeError::Undefined { field: "ballot", value: ballot.round })
    }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
