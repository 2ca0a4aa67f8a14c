//! Leader-based Sequence Paxos (Ng 2020, section 2.4.2 and algorithm 4) for replicas that crash and recover, over
//! sessions that lose messages. docs/sequence-paxos.md tells what happens, message by message, and has the argument why
//! it is safe, and the names of the thesis.
//!
//! Where MultiPaxos decides slot by slot, Sequence Paxos agrees on a growing **sequence**. A replica has
//! accepted a whole sequence in a ballot, and says so with two numbers: that ballot, and the last slot. The
//! owner of a ballot runs a prepare phase ([`Message::Prepare`], [`Message::Promise`]), **adopts** the best
//! sequence that a quorum has, brings each follower to the same one ([`Message::AcceptSync`]), and then appends
//! to it ([`Message::Accept`], [`Message::Accepted`], [`Message::Decide`]). A follower that may have missed
//! something asks for another `Prepare` ([`Message::PrepareReq`]). Sessions and replicas recover by that alone.
//!
//! # Where to begin
//!
//! [`SequencePaxos`] below is all that a replica keeps, and its `receive` names the handler of each message. The normal
//! case is two files, to be read from top to bottom: each has both sides of its messages, in the order in which they
//! travel.
//!
//! | file | what it has |
//! | --- | --- |
//! | `phase1.rs` | a candidate asks (`Prepare`), members answer (`Promise`), a quorum makes it the leader |
//! | `phase2.rs` | the leader's sequence reaches all (`AcceptSync`), grows (`Accept`), is decided (`Decide`) |
//! | `rejoin.rs` | a follower missed something (`PrepareReq`, `Lagging`) |
//! | `rules.rs`, `../rules.rs` | what may be promised, adopted, appended, decided: a few lines a rule |
//! | `follower.rs`, `peers.rs`, `sequence.rs` | how far a follower is; as its leader sees it; the sequence in memory |
//! | `recovery.rs` | a start with the log or without it |
//! | `wiring.rs`, `../wiring.rs` | the answers to the traits: inputs on their way in, questions of the replica around |
//! | `messages.rs` | messages and records: encoding, text, what the checks know of them |
//! | `profile.rs`, `planted.rs` | options; bugs for the simulator |

mod follower;
mod messages;
mod peers;
mod phase1;
mod phase2;
mod planted;
mod profile;
mod recovery;
mod rejoin;
mod rules;
mod sequence;
#[cfg(test)]
mod tests;
mod wiring;

pub use crate::claims::Extent;
pub use messages::{AcceptSync, Message, Prepare, Promise, Record};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::Tuning;

use follower::{Follower, Phase};
use phase1::Candidate;
use phase2::Leader;
use rules::Rules;
use sequence::Sequence;
use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use crate::{
    Effects,
    paxos::{Common, Paxos},
};

/// One Sequence Paxos replica.
#[derive(Clone, Debug)]
pub struct SequencePaxos {
    common: Common,
    /// The ballot of the accepted sequence.
    accepted_in: Ballot,
    /// The accepted sequence.
    log: Sequence,
    /// The record that holds the last change of the two.
    accepted_lsn: Lsn,
    /// No record holds a slot after this one.
    recorded: Slot,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Follower(Follower),
    Candidate(Candidate),
    Leader(Leader),
    /// Records may be missing, so it only learns.
    Recovering,
}

impl SequencePaxos {
    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.common.options)
    }

    /// Takes each message to its handler.
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        if self.common.members.index(from).is_none() || from == self.common.members.me() {
            return;
        }
        if matches!(self.state, State::Recovering) {
            return self.handle_while_recovering(now, from, &message, effects);
        }
        match message {
            Message::Prepare(prepare) => self.handle_prepare(now, from, prepare, effects),
            Message::Promise(promise) => self.handle_promise(now, from, promise, effects),
            Message::AcceptSync(sync) => {
                if self.follow(now, from, sync.ballot, effects) {
                    self.handle_accept_sync(now, sync, effects);
                }
            }
            Message::SyncNext { ballot, first, from: page } => {
                self.common.election.answered(from, now);
                self.handle_sync_next(now, from, ballot, first, page, effects);
            }
            Message::Accept { ballot, first, decided, batches } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_decide(ballot, decided, effects);
                    self.handle_accept(now, ballot, first, &batches, effects);
                    self.handle_decide(ballot, decided, effects);
                }
            }
            Message::Accepted { ballot, last } => {
                self.common.election.answered(from, now);
                self.handle_accepted(now, from, ballot, last, effects);
            }
            Message::Decide { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_decide(ballot, through, effects);
                }
            }
            Message::PrepareReq { promised } => self.handle_prepare_req(now, from, promised, effects),
            Message::Lagging { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_lagging(now, through, effects);
                }
            }
            Message::Heartbeat { ballot, decided, round } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_heartbeat(now, from, ballot, decided, round, effects);
                }
            }
            Message::HeartbeatAck { ballot, round } => {
                self.handle_heartbeat_ack(now, from, ballot, round, effects);
            }
            Message::Reject { promised } => self.handle_reject(now, promised, effects),
            Message::TakeOver { ballot } => self.handle_take_over(now, from, ballot, effects),
        }
    }

    /// The leader lives, and says what is decided.
    fn handle_heartbeat(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        decided: Slot,
        round: u64,
        effects: &mut Effects,
    ) {
        effects.send(from, Message::HeartbeatAck { ballot, round }, self.common.promised_lsn);
        self.handle_decide(ballot, decided, effects);
        self.ask_for_prepare(now, effects);
    }

    /// A summary of what it has accepted.
    fn extent(&self) -> Extent {
        Extent { accepted_in: self.accepted_in, last: self.log.last(), decided: self.log.decided() }
    }
}
