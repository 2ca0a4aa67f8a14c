//! Unicast Ring Paxos (Benz 2013, section 2.3): the members form a ring, and every byte of a batch crosses each link of
//! it once.
//!
//! Any replica takes commands. Its batch goes along the ring to the **coordinator**, the leader, as a value
//! ([`Message::Values`]). The coordinator gives it a slot, and sends one proposal round the ring
//! ([`Message::Accept`]), to which each member adds its vote once its record is durable. The member at which the
//! votes reach a quorum makes the decision ([`Message::Decision`]), which travels on until all have it. From the
//! member before the batch's origin on, a message carries only the batch's name (`values.rs`).
//!
//! Phase 1, heartbeats, reads and transfers are those of MultiPaxos: each of these messages goes straight to its
//! receiver.
//!
//! # Where to begin
//!
//! [`Ring`] below is all that a replica keeps, and its `receive` names the handler of each message. The normal case is
//! three files, each of which has both sides of its messages in the order in which they travel.
//!
//! | file | what it has |
//! | --- | --- |
//! | `values.rs` | a batch goes to the coordinator (`Values`) |
//! | `phase2.rs` | the proposal goes round (`Accept`), the votes behind it (`Votes`), then the decision (`Decision`) |
//! | `phase1.rs` | how a replica becomes the coordinator (`Prepare`, `Promise`) |
//! | `rules.rs`, `../rules.rs` | what may be promised, adopted, voted for, decided: a few lines a rule |
//! | `passing.rs`, `view.rs`, `late.rs` | how a message is sent on; the ring; a member whose disk is slow |
//! | `coordinator.rs`, `order.rs`, `direct.rs`, `round_trip.rs` | which ring is made, and what is sent again |
//! | `learner.rs`, `recovery.rs` | replicas that do not vote; a start with the log or without it |
//! | `wiring.rs`, `../wiring.rs` | the answers to the traits: inputs on their way in, questions of the replica around |
//! | `messages.rs` | messages and records: encoding, text, what the checks know of them |
//! | `profile.rs`, `planted.rs` | options; bugs for the simulator |
//!
//! # Why it is safe
//!
//! The rules of MultiPaxos hold slot by slot: a promise and a vote leave after their record, one ballot proposes one
//! value for a slot, a new coordinator adopts the value of the highest ballot that a quorum reports. The **view**,
//! which says who sends to whom, is in none of them. Votes are a set, not a number, so a message that passes a member
//! twice counts its vote once. A name holds length and checksum of its batch, and a member votes only for what it can
//! write down in full. docs/ring.md has the argument, and the differences from the document.

mod coordinator;
mod direct;
mod late;
mod learner;
mod messages;
mod order;
mod passing;
mod phase1;
mod phase2;
mod planted;
mod profile;
mod recovery;
mod round_trip;
mod rules;
#[cfg(test)]
mod tests;
mod values;
mod view;
mod wiring;

pub use crate::acceptor::AcceptedValue;
pub use learner::{RingLearners, RingVoters};
pub use messages::{Accept, Content, DecisionRun, Message, Promise, Record, Value, VoteRun};
pub use order::{Delay, RingOrder};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{RingDecision, Tuning};
pub use view::{View, Votes};

use std::sync::Arc;

use coordinator::Leader;
use late::Late;
use learner::Learner;
use passing::Outgoing;
use phase1::Candidate;
use round_trip::RoundTrip;
use rules::Rules;
use synod_wire::{Ballot, Delivered, ReplicaId, Slot, Time};
use values::Values;

use crate::{
    Effects,
    acceptor::Acceptor,
    leadership::Leads,
    paxos::{Common, Paxos},
};

/// One replica of the ring.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The window of its options is the coordinator's, which orders for all.
    common: Common,
    state: State,
    /// What is known of the slots after the decided prefix.
    acceptor: Acceptor,
    /// The ring, as far as this replica knows; it may be of an earlier ballot.
    view: Option<View>,
    values: Values,
    /// How many batches of this replica's own clients may be under way.
    window_own: usize,
    /// The batches that were delivered.
    table: Arc<Delivered>,
    /// Batches were delivered since what can never count any more was dropped last.
    stale: bool,
    /// The ballot of the last report that somebody proposed two values for a slot.
    reported_in: Ballot,
    /// What this burst sends round the ring.
    outgoing: Vec<Outgoing>,
    /// How long the batches of this replica's own clients take.
    round_trip: RoundTrip,
    /// The votes that went on without this replica's own.
    late: Late,
}

#[derive(Clone, Debug)]
enum State {
    Follower,
    Candidate(Candidate),
    Leader(Box<Leader>),
    /// It lost its log, and only learns.
    Recovering,
    /// It does not vote.
    Learner(Learner),
}

impl Ring {
    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.common.options)
    }

    /// Takes each message to its handler.
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        let votes = self.common.members.index(from).is_some();
        if from == self.me() || !votes && !self.takes_learners() {
            return;
        }
        if let Message::HeartbeatAck { ballot, minor, decided, .. } = message
            && !votes
        {
            let minor = if ballot == self.common.promised { minor } else { 0 };
            return self.hear_of_member(now, from, minor, decided, effects);
        }
        if (!votes || self.is_learner()) && !Ring::concerns_learners(&message) {
            return;
        }
        if matches!(self.state, State::Recovering) {
            return self.handle_while_recovering(now, from, &message, effects);
        }
        match message {
            Message::Prepare { ballot, from: first } => {
                self.handle_prepare(now, from, ballot, first, Slot(u64::MAX), effects);
            }
            Message::PrepareRange { ballot, from: first, through } => {
                self.handle_prepare(now, from, ballot, first, through, effects);
            }
            Message::Promise(promise) => self.handle_promise(now, from, promise, effects),
            Message::Values { view, safe, values } => {
                self.handle_values(now, from, view, safe, values, effects)
            }
            Message::Accept(accept) => self.handle_accept(now, from, accept, effects),
            Message::Votes(votes) => self.handle_votes(now, from, votes, effects),
            Message::Decision(decision) => self.handle_decision(now, from, decision, effects),
            Message::View { view } => {
                self.follow_ring(now, from, &view, effects);
            }
            Message::Decided { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_decided(ballot, through, effects);
                }
            }
            Message::Heartbeat { ballot, decided, round } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_heartbeat(from, ballot, decided, round, effects);
                }
            }
            Message::HeartbeatAck { ballot, round, minor, decided } => {
                self.handle_heartbeat_ack(now, from, ballot, round, effects);
                if ballot == self.common.promised {
                    self.hear_of_member(now, from, minor, decided, effects);
                }
            }
            Message::Delays { delays } => {
                if let State::Leader(leader) = &mut self.state {
                    leader.survey.measured(from, delays);
                }
            }
            Message::Reject { promised } => self.handle_reject(now, promised, effects),
            Message::TakeOver { ballot } => self.handle_take_over(now, from, ballot, effects),
        }
    }

    /// The leader lives, and says what is decided.
    fn handle_heartbeat(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        decided: Slot,
        round: u64,
        effects: &mut Effects,
    ) {
        let known = self.view.as_ref().filter(|view| view.ballot == ballot);
        let (minor, own) = (known.map_or(0, |view| view.minor), self.decided());
        let answer = Message::HeartbeatAck { ballot, round, minor, decided: own };
        effects.send(from, answer, self.common.promised_lsn);
        self.tell_delays(from, effects);
        self.handle_decided(ballot, decided, effects);
    }
}
