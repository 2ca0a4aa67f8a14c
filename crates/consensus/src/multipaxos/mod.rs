//! MultiPaxos as JPaxos runs it (Santos 2012, chapter 7): views, one Phase 1 for all later slots, a window of
//! Phase 2 instances decided out of order and delivered in order. docs/multipaxos.md tells what happens,
//! message by message, and has the argument why it is safe.
//!
//! A **ballot** is what the thesis calls a view or proposal number. Its owner runs Phase 1 once
//! ([`Message::Prepare`], [`Message::Promise`]) and then proposes slot after slot ([`Message::Accept`],
//! [`Message::Accepted`]). What a burst of inputs proposes leaves together and is written together; still each slot is
//! voted for, decided and proposed again by itself. The election ([`crate::election`]) says which replica should own
//! the next ballot.
//!
//! # Where to begin
//!
//! [`MultiPaxos`] below is all that a replica keeps, and its `receive` names the handler of each message. The normal
//! case is two files, `phase1.rs` and `phase2.rs`, to be read from top to bottom: each has both sides of its messages,
//! in the order in which they travel.
//!
//! A **member** is a voter of the epoch, the acceptor of the papers. A **life** is one start of it, numbered by its
//! incarnation (docs/glossary.md).
//!
//! 1. The election wants this replica to lead (`Paxos::stand` in `../paxos.rs`): `become_candidate` asks all others
//!    (`Prepare`).
//! 2. At a member, `handle_prepare` promises the ballot, unless it promised a higher one (`Paxos::obeys`), and answers
//!    with what it accepted (`Promise`).
//! 3. `handle_promise` collects the answers. With a quorum `complete_phase_1` adopts their values, and leads.
//! 4. The replica around the protocol gives a batch (`Replica::order` in `crates/replica/src/proposing.rs`; `handle` in
//!    `../wiring.rs` takes the input) to `propose`. The end of the burst (`flush_all` in `wiring.rs`) gives it to all
//!    with the others of the burst (`send_accepts`: `Accept`), and to this replica's own log.
//! 5. At a member, `handle_accept` writes a record. Its vote leaves once that is durable (`send_accepted`: `Accepted`).
//! 6. The leader counts the votes of members (`handle_accepted`), and its own once its record is durable
//!    (`count_own_votes`). With a quorum `Acceptor` (`../acceptor.rs`) knows that the slot is decided.
//! 7. `deliver` hands over the decided slots at the front, in order.
//! 8. The next `Accept` tells the members what is decided, or `announce_decided` does (`Decided`): `handle_decided`.
//!
//! Everything that is sent names the record after which it may leave ([`Effects::send`]). `common` is what a replica of
//! the family keeps (`../paxos.rs`), `duties` what a leader does besides ordering: heartbeats, announcements and reads
//! (`../leadership.rs`).
//!
//! | file | what it has |
//! | --- | --- |
//! | `phase1.rs` | a candidate asks (`Prepare`), members answer (`Promise`), a quorum makes it the leader |
//! | `phase2.rs` | the leader proposes (`Accept`), members vote (`Accepted`), a quorum decides, all hear (`Decided`) |
//! | `rules.rs`, `../rules.rs` | what may be promised, adopted, decided, delivered: a few lines a rule |
//! | `recovery.rs`, `lives.rs` | a start with the log or without it (`Recover`, `RecoverAnswer`) |
//! | `wiring.rs`, `../wiring.rs` | the answers to the traits: inputs on their way in, questions of the replica around |
//! | `messages.rs` | messages and records: encoding, text, what the checks know of them |
//! | `profile.rs`, `planted.rs` | options; bugs for the simulator |

mod lives;
mod messages;
mod phase1;
mod phase2;
mod planted;
mod profile;
mod recovery;
mod rules;
#[cfg(test)]
mod tests;
mod wiring;

pub use crate::acceptor::AcceptedValue;
pub use messages::{Message, Promise, Record};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{Decision, Tuning};

use lives::Lives;
use phase1::Candidate;
use phase2::Leader;
use recovery::Recovering;
use rules::Rules;
use synod_wire::{Incarnation, ReplicaId, Time};

use crate::{
    Effects,
    acceptor::{Acceptor, Votes},
    paxos::{Common, Paxos},
};

/// One MultiPaxos replica.
#[derive(Clone, Debug)]
pub struct MultiPaxos {
    common: Common,
    incarnation: Incarnation,
    state: State,
    /// What is known of the slots after the decided prefix.
    acceptor: Acceptor,
    /// Votes of this burst, of which nobody was told yet: they leave together at its end.
    untold: Option<Votes>,
    /// The latest lives of the other replicas: what they promised or answered in earlier ones is void.
    lives: Lives,
}

#[derive(Clone, Debug)]
enum State {
    Follower,
    Candidate(Candidate),
    Leader(Leader),
    Recovering(Recovering),
}

impl MultiPaxos {
    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.common.options)
    }

    /// Takes each message to its handler.
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        if self.common.members.index(from).is_none() || from == self.common.members.me() {
            return;
        }
        if matches!(self.state, State::Recovering(_)) {
            return self.handle_while_recovering(now, from, message, effects);
        }
        match message {
            Message::Prepare { ballot, from: first } => {
                self.handle_prepare(now, from, ballot, first, effects)
            }
            Message::Promise(promise) => self.handle_promise(now, from, promise, effects),
            Message::Accept { ballot, first, decided, batches } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_accept(ballot, first, batches, effects);
                    self.handle_decided(ballot, decided, effects);
                }
            }
            Message::Accepted { ballot, first, last } => {
                self.handle_accepted(now, from, ballot, first, last, effects);
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
            Message::HeartbeatAck { ballot, round } => {
                self.handle_heartbeat_ack(now, from, ballot, round, effects)
            }
            Message::Reject { promised } => self.handle_reject(now, promised, effects),
            Message::Recover { incarnation } => self.handle_recover(from, incarnation, effects),
            Message::TakeOver { ballot } => self.handle_take_over(now, from, ballot, effects),
            // This message is for an earlier life that was recovering.
            Message::RecoverAnswer { .. } => {}
        }
    }
}
