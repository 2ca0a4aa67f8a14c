//! What replicas say to each other in a log in rounds. All but questions of reads are letters of a round.
//!
//! | here | Santos 2012 | in Paxos |
//! | --- | --- | --- |
//! | `Estimate` | ⟨x, ts⟩ of round 1, to the coordinator alone | promise |
//! | `Vote` | ⟨vote⟩ of round 2 | proposal |
//! | `Acknowledgement` | ⟨ack⟩ of round 3 | vote |
//! | `Here` | an empty message | nothing |
//! | `Values` | ⟨x⟩ of OneThirdRule, to all | vote |
//!
//! What is accepted in a slot stands for `x`, the ballot in which it was accepted for `ts`.

use synod_wire::{Ballot, DecodeError, Incarnation, Slot};

use super::Round;
use crate::{
    Claim, Letter,
    acceptor::AcceptedValue,
    batches::{Batches, check_run, is_prefix, is_slot, last_of},
    describe::{accepted as accepted_text, joined, more, run},
};

crate::messages! {
    /// A message between two replicas of a log in rounds.
    #[derive(PartialEq, Eq)]
    pub enum Message, "kind of message" {
        /// Round 1, to the coordinator of the ballot.
        1, Promise,
        claims [Claim::promise(*ballot, decided.next(), *decided, *next, accepted)],
        text (
            "Estimate {ballot}, decided {decided}: {}{}; waits: {}{}",
            accepted_text(accepted, batch), more(*next), joined(offers, batch), busy_text(*busy)
        ):
        Estimate {
            /// The phase and its coordinator.
            ballot: Ballot,
            /// Slots through this one are decided.
            decided: Slot,
            /// The first slot that the estimate does not speak of any more.
            next: Option<Slot>,
            /// What the sender accepted after the decided slots.
            accepted: Vec<AcceptedValue>,
            /// What the sender's clients wait for, and nobody proposed yet.
            offers: Batches,
            /// Whether the sender has something that is still to be ordered.
            busy: bool,
            /// The delay that the sender's time-outs allow for in this phase, in microseconds.
            delay_micros: u32,
        },
        /// Round 2, from the coordinator.
        2, Proposal, claims { Claim::proposals(*ballot, *first, *decided, batches) },
        text (
            "Vote {ballot} {}, decided {decided}: {}", run(*first, last_of(*first, batches)), joined(batches, batch)
        ):
        Vote {
            /// The phase and its coordinator.
            ballot: Ballot,
            /// The slot of the first batch.
            first: Slot,
            /// Slots through this one are decided.
            decided: Slot,
            /// What is proposed.
            batches: Batches,
            /// The delay that the sender's time-outs allow for in this phase, in microseconds.
            delay_micros: u32,
        },
        /// Round 3: the sender accepted these slots.
        3, Vote,
        claims { (first.0..=last.0).map(|slot| Claim::Vote { ballot: *ballot, slot: Slot(slot) }).collect() },
        text ("Acknowledgement {ballot} {}, decided {decided}{}", run(*first, *last), busy_text(*busy)):
        Acknowledgement {
            /// The phase and its coordinator.
            ballot: Ballot,
            /// The first accepted slot.
            first: Slot,
            /// The last accepted slot.
            last: Slot,
            /// Slots through this one are decided.
            decided: Slot,
            /// Whether the sender has something else that is still to be ordered.
            busy: bool,
            /// The delay that the sender's time-outs allow for in this phase, in microseconds.
            delay_micros: u32,
        },
        /// A letter of any round without anything in it.
        4, Heartbeat, text ("Here {phase}/{place}, decided {decided}{}", busy_text(*busy)):
        Here {
            /// The phase.
            phase: u64,
            /// The place of the round in its phase, from 1.
            place: u8,
            /// Slots through this one are decided.
            decided: Slot,
            /// Whether the sender has something that is still to be ordered.
            busy: bool,
            /// The delay that the sender's time-outs allow for in this phase, in microseconds.
            delay_micros: u32,
        },
        /// Which slot may be decided at most? Number 0 asks whether the receiver is there.
        5, HeartbeatAnswer, text "Ask {number} of life {life}":
        Ask {
            /// The sender's life.
            life: Incarnation,
            /// Names the question.
            number: u64,
        },
        /// None after this one.
        6, HeartbeatAnswer, text "Told {number} of life {life}: slot {last}":
        Told {
            /// The life that asked: a later one has other questions of the same numbers.
            life: Incarnation,
            /// The question.
            number: u64,
            /// The slot.
            last: Slot,
        },
        /// The only letter of OneThirdRule, to all: its round is the ballot's.
        7, Vote,
        claims { accepted.iter().map(|value| value.estimated_in(*ballot)).collect() },
        text (
            "Values {ballot}, decided {decided}: {}{}; waits: {}{}",
            accepted_text(accepted, batch), more(*next), joined(offers, batch), busy_text(*busy)
        ):
        Values {
            /// The round, and the lowest member, which all name.
            ballot: Ballot,
            /// Slots through this one are decided.
            decided: Slot,
            /// The first slot that the letter does not speak of any more.
            next: Option<Slot>,
            /// The estimates of the sender for slots after the decided ones, with the rounds since which it has them.
            accepted: Vec<AcceptedValue>,
            /// What the sender's clients wait for, and is no estimate of it yet.
            offers: Batches,
            /// Whether the letter says not all that is accepted, or a command of the sender's clients is not delivered.
            busy: bool,
            /// The delay that the sender's time-outs allow for in this round, in microseconds.
            delay_micros: u32,
        },
    }
    described with batch;
    checked by Message::is_of_a_round;
    claims {
        fn letter(&self) -> Option<Letter> {
            let (phase, place) = self.place()?;
            let Message::Estimate { ballot, .. } = self else {
                return Some(Letter { phase, place, estimates_to: None });
            };
            Some(Letter { phase, place, estimates_to: Some(ballot.replica) })
        }
    }
}

/// The longest phase has this many rounds.
const PLACES_MAX: u8 = 4;
/// The last phase: each is the round of a ballot.
const PHASE_MAX: u64 = Ballot::ROUND_MAX;

impl Message {
    /// The phase and the place in it, from 1, if it is a letter.
    fn place(&self) -> Option<(u64, u8)> {
        match self {
            Message::Estimate { ballot, .. } | Message::Values { ballot, .. } => Some((ballot.round, 1)),
            Message::Vote { ballot, .. } => Some((ballot.round, 2)),
            Message::Acknowledgement { ballot, .. } => Some((ballot.round, 3)),
            Message::Here { phase, place, .. } => Some((*phase, *place)),
            Message::Ask { .. } | Message::Told { .. } => None,
        }
    }

    /// The round, if it is a letter, where a phase has this many rounds.
    pub(super) fn round(&self, rounds: u64) -> Option<Round> {
        let (phase, place) = self.place()?;
        (u64::from(place) <= rounds).then(|| Round((phase - 1) * rounds + u64::from(place)))
    }

    /// If it is a letter, its phase, and the delay that its sender's time-outs allow for in it, in microseconds.
    pub(super) fn delay(&self) -> Option<(u64, u32)> {
        match self {
            Message::Estimate { ballot, delay_micros, .. }
            | Message::Values { ballot, delay_micros, .. }
            | Message::Vote { ballot, delay_micros, .. }
            | Message::Acknowledgement { ballot, delay_micros, .. } => Some((ballot.round, *delay_micros)),
            Message::Here { phase, delay_micros, .. } => Some((*phase, *delay_micros)),
            Message::Ask { .. } | Message::Told { .. } => None,
        }
    }

    /// The ballot that it names.
    pub(super) fn ballot(&self) -> Option<Ballot> {
        match self {
            Message::Estimate { ballot, .. }
            | Message::Values { ballot, .. }
            | Message::Vote { ballot, .. }
            | Message::Acknowledgement { ballot, .. } => Some(*ballot),
            Message::Here { .. } | Message::Ask { .. } | Message::Told { .. } => None,
        }
    }

    /// Slots through this one are decided, as the sender knows.
    pub(super) fn decided(&self) -> Slot {
        match self {
            Message::Estimate { decided, .. }
            | Message::Values { decided, .. }
            | Message::Vote { decided, .. }
            | Message::Acknowledgement { decided, .. }
            | Message::Here { decided, .. } => *decided,
            Message::Ask { .. } | Message::Told { .. } => Slot::ZERO,
        }
    }

    /// Whether the sender still has something to order.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Message::Estimate { busy, .. }
            | Message::Values { busy, .. }
            | Message::Acknowledgement { busy, .. }
            | Message::Here { busy, .. } => *busy,
            Message::Vote { .. } => true,
            Message::Ask { .. } | Message::Told { .. } => false,
        }
    }

    /// Refuses what no replica says: a place that no phase has, a phase that leads out of the numbers, ballots and
    /// slots that there cannot be, and slots in the wrong order.
    fn is_of_a_round(&self) -> Result<(), DecodeError> {
        if let Some((phase, place)) = self.place() {
            if !(1..=PHASE_MAX).contains(&phase) {
                return Err(DecodeError::Undefined { field: "phase", value: phase });
            }
            if !(1..=PLACES_MAX).contains(&place) {
                return Err(DecodeError::Undefined { field: "place", value: place.into() });
            }
        }
        is_prefix(self.decided())?;
        match self {
            Message::Vote { first, batches, .. } => check_run(*first, batches),
            Message::Estimate { accepted, .. } | Message::Values { accepted, .. } => {
                accepted.iter().try_for_each(|value| {
                    is_slot(value.slot)?;
                    value.ballot.reachable("ballot").map(drop)
                })
            }
            Message::Acknowledgement { first, last, .. } if first > last => {
                Err(DecodeError::Undefined { field: "last", value: last.0 })
            }
            _ => Ok(()),
        }
    }
}

fn busy_text(busy: bool) -> &'static str {
    if busy { ", busy" } else { "" }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;
