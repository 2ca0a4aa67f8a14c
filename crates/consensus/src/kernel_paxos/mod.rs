//! Kernel Paxos (Esposito, Coelho, Pedone 2019): a replica's votes are given by the C of `kernel/core`, the same that
//! an XDP program runs below the socket layer; proposer and learner are Rust. docs/kernel-paxos.md tells what happens,
//! message by message, and has the argument why it is safe.
//!
//! The document's instance is a slot here, and its round number a ballot. One message is about one slot, as one frame
//! is. Every replica is proposer, acceptor and learner at once; each hears all votes and finds out by itself what is
//! decided. The election ([`crate::election`]) says which replica should propose.
//!
//! # Where to begin
//!
//! [`KernelPaxos`] below is all that a replica keeps, and its `receive` names the handler of each message.
//!
//! 1. The election wants this replica to lead (`Paxos::stand` in `../paxos.rs`): `become_candidate` asks all others for
//!    one promise of all slots (`PrepareAll`).
//! 2. At a member the acceptor raises that promise, and says how far it was touched (`PromiseAll`); the candidate reads
//!    each slot up to there (`Prepare`, `Promise`). With a quorum that has told everything it leads.
//! 3. `propose` takes a batch, and the end of the burst proposes it (`send_accepts`: `Accept`), once its slot is
//!    prepared (`prepared.rs`).
//! 4. At a member, `handle_accept` asks the acceptor. A vote leaves for all others once its record is durable
//!    (`Accepted`), and each counts (`handle_accepted`).
//! 5. `deliver` hands over the decided slots at the front, in order, and lets the acceptor forget them.
//! 6. A replica that lacks a slot asks for the votes again (`Repeat`, `Told`: `gaps.rs`).
//!
//! | file | what it has |
//! | --- | --- |
//! | `votes.rs` | the acceptor: the C, and how ballots and batches look to it |
//! | `phase1.rs` | a candidate takes over: one promise of all slots, then what was accepted in each |
//! | `phase2.rs` | the leader proposes, members vote, a quorum decides |
//! | `prepared.rs` | phase 1 of single slots as the document has it, which is an option of the laboratory |
//! | `gaps.rs` | a learner that misses a slot |
//! | `rules.rs`, `../rules.rs` | what may be promised, adopted, counted, forgotten: a few lines a rule |
//! | `recovery.rs` | a start with the log or without it |
//! | `wiring.rs`, `../wiring.rs` | the answers to the traits |
//! | `messages.rs` | messages and records: encoding, text, what the checks know of them |
//! | `profile.rs`, `planted.rs` | options; bugs for the simulator |

mod gaps;
mod messages;
mod phase1;
mod phase2;
mod planted;
mod prepared;
mod profile;
mod recovery;
mod rules;
#[cfg(test)]
mod tests;
mod votes;
mod wiring;

pub use crate::acceptor::AcceptedValue;
pub use messages::{Message, Promise, Record};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{Preparation, Tuning};

use gaps::Gaps;
use phase1::Candidate;
use phase2::Leader;
use rules::Rules;
use synod_wire::{ReplicaId, Time};
use votes::Voter;

use crate::{
    Effects,
    acceptor::Acceptor,
    paxos::{Common, Paxos},
};

/// One replica of Kernel Paxos.
#[derive(Clone, Debug)]
pub struct KernelPaxos {
    common: Common,
    state: State,
    /// The acceptor: what this replica promised and voted for. It has names; the batches are the learner's.
    voter: Voter,
    /// The learner: the batches of the slots after the decided prefix, and which replicas voted for them.
    learner: Acceptor,
    /// What the learner misses.
    gaps: Gaps,
}

#[derive(Clone, Debug)]
enum State {
    Follower,
    Candidate(Candidate),
    Leader(Leader),
    /// Its acceptor is another life than the one that promised and voted in this epoch, so it does neither.
    Recovering,
}

impl KernelPaxos {
    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.common.options)
    }

    /// Takes each message to its handler.
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        let is_peer = self.common.members.index(from).is_some() && from != self.common.members.me();
        if !is_peer {
            return;
        }
        if matches!(self.state, State::Recovering) {
            return self.handle_while_recovering(now, from, &message, effects);
        }
        match message {
            Message::PrepareAll { ballot, from: first } => {
                self.handle_prepare_all(now, from, ballot, first, effects);
            }
            Message::PromiseAll { ballot, decided, touched } => {
                self.handle_promise_all(now, from, ballot, decided, touched, effects);
            }
            Message::Prepare { ballot, slot } => self.handle_prepare(now, from, ballot, slot, effects),
            Message::Promise(promise) => self.handle_promise(now, from, promise, effects),
            Message::Accept { ballot, slot, further, decided, proposed } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_accept(ballot, slot, further, proposed, effects);
                    self.handle_decided(ballot, decided, effects);
                }
            }
            Message::Accepted { ballot, slot, further } => {
                self.handle_accepted(now, from, ballot, slot, further, effects);
            }
            Message::Repeat { slot } => self.handle_repeat(from, slot, effects),
            Message::Told { promised, value } => self.handle_told(now, from, promised, value, effects),
            Message::Heartbeat { ballot, decided, round } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_heartbeat(from, ballot, decided, round, effects);
                }
            }
            Message::HeartbeatAck { ballot, round } => {
                self.handle_heartbeat_ack(now, from, ballot, round, effects);
            }
            Message::Reject { promised } => self.handle_reject(now, promised, effects),
            Message::TakeOver { ballot } => self.handle_take_over(now, from, ballot, effects),
        }
    }
}
