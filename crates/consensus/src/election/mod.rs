//! Who should lead.
//!
//! An election only ever *suggests*: safety rests on ballots and quorums alone, so a wrong suspicion costs time,
//! never data. [`Rotating`] suspects silent leaders and passes leadership around in a fixed order.
//! [`BallotLeaderElection`] asks around who follows whom. Both elect only replicas that are connected to a quorum, and
//! neither ends the work of a leader that a quorum hears and answers.
//!
//! A leader-based protocol owns an [`Election`] and tells it what it sees (`heard_leader`, `answered`, `promised`,
//! ...). It asks [`Election::candidacy`] when a deadline has passed, or a message of the election has arrived, whether
//! to try to lead, and in which ballot; a leader asks [`Election::must_yield`]. An election has messages of its own,
//! and may have deadlines: the protocol carries its messages ([`Election::receive`]), and calls [`Election::on_timer`]
//! whenever its own timer has fired, having asked for a timer at [`Election::tick_at`] at the latest, also while it
//! leads. A replica that must not vote runs no election: it neither answers nor asks, as if it were down. A replica
//! whose disk does not answer answers others, but does not try to lead: nothing that it promises itself would ever
//! become durable.

mod ballot;
#[cfg(test)]
mod ballot_tests;
mod describe;
mod messages;
mod rotating;

pub use ballot::BallotLeaderElection;
pub use messages::Message;
pub use rotating::Rotating;

use synod_wire::{Ballot, Incarnation, ReplicaId, Slot, Time};

use crate::{Effects, ElectionKind, Link, Members, Options};

/// The election of one replica.
#[derive(Clone, Debug)]
pub enum Election {
    /// See [`Rotating`].
    Rotating(Box<Rotating>),
    /// See [`BallotLeaderElection`].
    Ballot(Box<BallotLeaderElection>),
}

impl Election {
    /// The election that the options name, as it is after a start.
    #[must_use]
    pub fn new(options: &Options, members: Members, incarnation: Incarnation, now: Time) -> Election {
        match options.election {
            ElectionKind::Rotating => Election::Rotating(Box::new(Rotating::new(options, members, now))),
            ElectionKind::Randomized => {
                unreachable!("a configuration is checked against `ProtocolKind::elections`")
            }
            ElectionKind::Ballot => {
                Election::Ballot(Box::new(BallotLeaderElection::new(options, members, incarnation, now)))
            }
        }
    }

    /// The replica starts again, or begins to vote, and has promised this ballot before.
    pub fn restarted(&mut self, promised: Ballot) {
        match self {
            Election::Rotating(rotating) => rotating.restarted(promised),
            Election::Ballot(ballot) => ballot.restarted(promised),
        }
    }

    /// At the first start of a group nobody can have led before: do not wait for a whole time-out.
    pub fn expect_no_leader(&mut self) {
        match self {
            Election::Rotating(rotating) => rotating.expect_no_leader(),
            // It asks whether anybody leads, and waits for nobody.
            Election::Ballot(_) => {}
        }
    }

    /// A message of an election arrived from a member. A replica that does not lead asks [`Election::candidacy`] then.
    pub fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        match self {
            Election::Rotating(rotating) => rotating.receive(now, from, message, effects),
            Election::Ballot(ballot) => ballot.receive(from, message, effects),
        }
    }

    /// Something became of the session to a member. The replica asks [`Election::deadline`] then.
    pub fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        match self {
            Election::Rotating(rotating) => rotating.link(now, peer, link),
            Election::Ballot(ballot) => ballot.link(now, peer, link, effects),
        }
    }

    /// Does what is due. To be called whenever the protocol's timer has fired, before [`Election::candidacy`] or
    /// [`Election::must_yield`]. `fit`: this replica could lead, since its disk answers.
    pub fn on_timer(&mut self, now: Time, fit: bool, effects: &mut Effects) {
        match self {
            Election::Rotating(rotating) => rotating.set_fit(fit),
            Election::Ballot(ballot) => ballot.on_timer(now, fit, effects),
        }
    }

    /// When [`Election::on_timer`] must be called at the latest, whatever the protocol does then.
    #[must_use]
    pub fn tick_at(&self) -> Time {
        match self {
            Election::Rotating(_) => Time::NEVER,
            Election::Ballot(ballot) => ballot.tick_at(),
        }
    }

    /// The leader of the current ballot gave a sign of life.
    pub fn heard_leader(&mut self, now: Time) {
        match self {
            Election::Rotating(rotating) => rotating.heard_leader(now),
            // It believes only in answers, which show that the link works in both directions.
            Election::Ballot(_) => {}
        }
    }

    /// This replica promised a ballot, which may be its own: its owner gets a while to show that it leads. To be called
    /// again when that one was told another page of what was promised: it gets a while for the next one.
    pub fn promised(&mut self, ballot: Ballot, now: Time) {
        match self {
            Election::Rotating(rotating) => rotating.promised(ballot, now),
            Election::Ballot(election) => election.promised(ballot),
        }
    }

    /// This replica gave up leading, or trying to: it comes last in line.
    pub fn gave_up(&mut self, now: Time) {
        match self {
            Election::Rotating(rotating) => rotating.gave_up(now),
            Election::Ballot(ballot) => ballot.gave_up(),
        }
    }

    /// Slots through this one are known to be decided, by whatever leader: somebody gets on. `lags`: this replica is so far
    /// behind that it could not lead before it has caught up.
    pub fn decided(&mut self, through: Slot, lags: bool) {
        match self {
            // It hears of leaders, and that suffices: everybody has its turn in any case.
            Election::Rotating(_) => {}
            Election::Ballot(ballot) => ballot.decided(through, lags),
        }
    }

    /// This replica leads, and decides nothing although it should, or does so again: another that could lead may try.
    pub fn stalls(&mut self, stalls: bool) {
        match self {
            Election::Rotating(rotating) => rotating.stalls(stalls),
            Election::Ballot(ballot) => ballot.stalls(stalls),
        }
    }

    /// This replica tries to lead; [`Election::promised`] tells in which ballot.
    pub fn tried(&mut self) {
        match self {
            Election::Rotating(rotating) => rotating.tried(),
            Election::Ballot(_) => {}
        }
    }

    /// This replica begins to lead.
    pub fn leads(&mut self, now: Time) {
        match self {
            Election::Rotating(rotating) => rotating.leads(now),
            Election::Ballot(ballot) => ballot.leads(),
        }
    }

    /// A member answered this replica, which leads or tries to. One that tries gets a while for the next answer.
    pub fn answered(&mut self, from: ReplicaId, now: Time) {
        match self {
            Election::Rotating(rotating) => rotating.answered(from, now),
            Election::Ballot(ballot) => ballot.answered(),
        }
    }

    /// Whether a member has answered this replica, which leads, not longer ago than a leader may be silent.
    #[must_use]
    pub fn answers(&self, now: Time, member: ReplicaId) -> bool {
        match self {
            Election::Rotating(rotating) => rotating.answers(now, member),
            Election::Ballot(ballot) => ballot.answers(member),
        }
    }

    /// A ballot of this replica above another.
    #[must_use]
    pub fn next_ballot(&self, above: Ballot) -> Ballot {
        match self {
            Election::Rotating(rotating) => rotating.next_ballot(above),
            Election::Ballot(ballot) => ballot.next_ballot(above),
        }
    }

    /// The ballot, above `current`, in which this replica, which does not lead, should try to do so now, if it should.
    #[must_use]
    pub fn candidacy(&mut self, now: Time, current: Ballot, effects: &mut Effects) -> Option<Ballot> {
        match self {
            Election::Rotating(rotating) => rotating.candidacy(now, current, effects),
            Election::Ballot(ballot) => ballot.candidacy().filter(|&ballot| ballot > current),
        }
    }

    /// Whether this replica, which leads, should give up.
    #[must_use]
    pub fn must_yield(&self, now: Time) -> bool {
        match self {
            Election::Rotating(rotating) => !rotating.reaches_quorum(now),
            Election::Ballot(ballot) => ballot.must_yield(),
        }
    }

    /// When a replica that does not lead should ask [`Election::candidacy`] again, if it hears nothing before.
    #[must_use]
    pub fn deadline(&self, current: Ballot) -> Time {
        match self {
            Election::Rotating(rotating) => rotating.deadline(current),
            Election::Ballot(ballot) => ballot.tick_at(),
        }
    }
}
