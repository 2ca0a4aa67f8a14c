//! Elections: which replica should lead.
//!
//! An election only ever *suggests* a leader: safety rests on ballots and quorums alone, so a wrong suspicion costs
//! time, never data. [`Rotating`] suspects silent leaders and passes leadership around in a fixed order.
//! [`BallotLeaderElection`] asks the replicas which leader each follows. [`LatencyAware`] detects as `Rotating` does,
//! and moves the leadership to the replica that is nearest to a majority. All elect only replicas that are connected to
//! a quorum, and none ends the work of a leader that a quorum hears and answers.
//!
//! A leader-based protocol owns an [`Election`] and tells it what it sees (`heard_leader`, `answered`,
//! `promised`, ...). When a deadline has passed, or a message of the election has arrived, it asks
//! [`Election::candidacy`] whether to try to lead, and in which ballot; a leader asks for
//! [`Election::advice`]. An election has messages of its own, and may have deadlines: the protocol carries its
//! messages ([`Election::receive`]), and calls [`Election::on_timer`] whenever its own timer has fired, having
//! asked for a timer at [`Election::tick_at`] at the latest, even while it leads. A replica that must not vote
//! runs no election: it neither answers nor asks, as if it were down. A replica whose disk does not answer
//! answers others, but does not try to lead: nothing that it promises itself would ever become durable.

mod ballot;
#[cfg(test)]
mod ballot_tests;
pub mod latency;
mod memory;
mod messages;
mod planted;
mod rotating;
mod round_trips;
mod rules;

pub use ballot::BallotLeaderElection;
pub use latency::LatencyAware;
pub use memory::Memory;
pub use messages::Message;
pub use rotating::Rotating;

use std::time::Duration;

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use crate::{Effects, ElectionKind, Link, Members, Options, Record, Restart};

/// What an election advises a replica that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Go on leading.
    Stay,
    /// Give up: another replica should try to lead.
    Yield,
    /// Let this member lead, which is in a better position. The leader asks that member to take over and goes
    /// on leading until it does. The advice is followed each time that it is given.
    HandTo(ReplicaId),
}

/// The election of one replica. The methods at the end are questions that an election answers; the others
/// tell it something, which it may ignore.
pub trait Election: CloneElection + std::fmt::Debug + Send {
    /// Tells that the replica starts again, or begins to vote, and has promised this ballot before.
    fn restarted(&mut self, _promised: Ballot) {}

    /// Tells that no replica can have led before, at the first start of a group, so that there is no need to
    /// wait for a whole time-out.
    fn expect_no_leader(&mut self) {}

    /// Tells that a message of an election arrived from a member. A replica that does not lead asks
    /// [`Election::candidacy`] then.
    fn receive(&mut self, _now: Time, _from: ReplicaId, _message: &Message, _effects: &mut Effects) {}

    /// Tells what happened to the session to a member. The replica asks [`Election::deadline`] then.
    fn link(&mut self, _now: Time, _peer: ReplicaId, _link: Link, _effects: &mut Effects) {}

    /// Does what is due. It has to be called whenever the protocol's timer has fired, before [`Election::candidacy`]
    /// or [`Election::advice`]. `fit` says that this replica could lead, since its disk answers.
    fn on_timer(&mut self, _now: Time, _fit: bool, _effects: &mut Effects) {}

    /// When [`Election::on_timer`] must be called at the latest, whatever the protocol does then.
    fn tick_at(&self) -> Time {
        Time::NEVER
    }

    /// Tells that the leader of the current ballot gave a sign of life.
    fn heard_leader(&mut self, _now: Time) {}

    /// Tells that this replica promised a ballot, which may be its own: the owner gets a while to show that
    /// it leads. It has to be called again when the owner was told another page of what was promised: the
    /// owner gets a while for the next one.
    fn promised(&mut self, _ballot: Ballot, _now: Time) {}

    /// Tells that this replica gave up leading, or trying to: it comes last in line.
    fn gave_up(&mut self, _now: Time) {}

    /// Tells that slots through `known` are known to be decided, so some leader makes progress, and that this replica
    /// has those through `here`. `lags` says that it lags so far that it could not lead before it has caught up.
    fn decided(&mut self, _known: Slot, _here: Slot, _lags: bool) {}

    /// Tells that records through this one are durable.
    fn durable(&mut self, _through: Lsn) {}

    /// Tells that the leader asks this replica, which follows it, to take over, and that slots through `known` are
    /// known to be decided. Returns whether it should try at once, if it lacks none of them. An election that makes
    /// sure first that it can lead writes `promise`, the promise of the present ballot, once more: the disk may hang.
    /// Later [`Election::candidacy`] says so.
    fn asked_to_lead(&mut self, _now: Time, _promise: Record, _known: Slot, _effects: &mut Effects) -> bool {
        true
    }

    /// Tells that an operator wants this member to lead in place of this replica.
    fn wishes(&mut self, _to: ReplicaId, _now: Time) {}

    /// Tells that this replica leads and decides nothing although it should, so that another may try, or that
    /// it decides again.
    fn stalls(&mut self, _stalls: bool) {}

    /// Tells that this replica tries to lead; [`Election::promised`] tells the ballot.
    fn tried(&mut self) {}

    /// Tells that this replica begins to lead.
    fn leads(&mut self, _now: Time) {}

    /// Tells that a member answered this replica, which leads or tries to. A replica that tries gets a while
    /// for the next answer.
    fn answered(&mut self, _from: ReplicaId, _now: Time) {}

    /// Whether a member has answered this replica, which leads, not longer ago than a leader may be silent.
    fn answers(&self, now: Time, member: ReplicaId) -> bool;

    /// Whether a quorum, this replica included, has answered it not longer ago than a leader may be silent.
    fn reaches_quorum(&self, now: Time) -> bool;

    /// The shortest time in which a member answered this replica lately; none if it did not, or if the election times
    /// no answers (`Options::times_answers`).
    fn round_trip(&self, _member: ReplicaId) -> Option<Duration> {
        None
    }

    /// Tells that commands of this replica's clients were ordered.
    fn ordered(&mut self, _origin: ReplicaId, _commands: u64) {}

    /// Thousandths of the commands that came from each member lately, if the election weighs that.
    fn origins(&self) -> Vec<(ReplicaId, u64)> {
        Vec::new()
    }

    /// What the election of the next epoch should know of this one.
    fn memory(&self) -> Memory {
        Memory::default()
    }

    /// A ballot of this replica above another.
    fn next_ballot(&self, above: Ballot) -> Ballot;

    /// The ballot, above `current`, in which this replica, which does not lead, should try to do so now, if it should.
    fn candidacy(&mut self, now: Time, current: Ballot, effects: &mut Effects) -> Option<Ballot>;

    /// What this replica, which leads, should do.
    fn advice(&self, now: Time) -> Advice;

    /// When a replica that does not lead should ask [`Election::candidacy`] again, if it hears nothing before.
    fn deadline(&self, current: Ballot) -> Time;
}

/// Copies an election behind its trait: a copy of a protocol holds a copy of its election. Every election that is
/// [`Clone`] has it.
pub trait CloneElection {
    /// Another instance in the same state, which is independent from here on.
    fn clone_election(&self) -> Box<dyn Election>;
}

impl<E: Election + Clone + 'static> CloneElection for E {
    fn clone_election(&self) -> Box<dyn Election> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Election> {
    fn clone(&self) -> Box<dyn Election> {
        (**self).clone_election()
    }
}

/// The election that the options name, as it is after a start, or at the beginning of an epoch.
///
/// # Panics
/// If the options name `randomized`, which is a part of Raft, or none: options are checked against
/// [`crate::ProtocolKind::elections`].
#[must_use]
pub fn start(options: &Options, members: Members, restart: &Restart, now: Time) -> Box<dyn Election> {
    match options.election {
        ElectionKind::Rotating => Box::new(Rotating::new(options, members, now)),
        ElectionKind::Ballot => {
            Box::new(BallotLeaderElection::new(options, members, restart.incarnation, now))
        }
        // A learner on a ring follows, and takes no part: there is nothing that it could measure for others.
        ElectionKind::Latency if members.index(members.me()).is_none() => {
            Box::new(Rotating::new(options, members, now))
        }
        ElectionKind::Latency => {
            Box::new(LatencyAware::new(options, members, now).remembering(&restart.memory, now))
        }
        ElectionKind::Randomized | ElectionKind::None => {
            unreachable!("a configuration is checked against `ProtocolKind::elections`")
        }
    }
}

/// An election for tests of the protocols that ask one: its replica may always try, and gets the same advice each time.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) struct Advised {
    pub(crate) me: ReplicaId,
    pub(crate) advice: Advice,
}

#[cfg(test)]
impl Election for Advised {
    fn answers(&self, _: Time, _: ReplicaId) -> bool {
        true
    }

    fn reaches_quorum(&self, _: Time) -> bool {
        true
    }

    fn next_ballot(&self, above: Ballot) -> Ballot {
        Ballot { round: above.round + 1, replica: self.me }
    }

    fn candidacy(&mut self, _: Time, current: Ballot, _: &mut Effects) -> Option<Ballot> {
        Some(self.next_ballot(current))
    }

    fn advice(&self, _: Time) -> Advice {
        self.advice
    }

    fn deadline(&self, _: Ballot) -> Time {
        Time::NEVER
    }
}
