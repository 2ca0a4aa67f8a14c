//! Who should lead.
//!
//! An election only ever *suggests*: safety rests on ballots and quorums alone, so a wrong suspicion costs time,
//! never data. [`Rotating`] suspects silent leaders and passes leadership around in a fixed order.
//!
//! A leader-based protocol owns an [`Election`] and tells it what it sees (`heard_leader`, `answered`, `promised`,
//! ...). It asks [`Election::candidacy`] when a deadline has passed whether to try to lead, and in which ballot; a
//! leader asks [`Election::must_yield`].

mod rotating;

pub use rotating::Rotating;

use synod_wire::{Ballot, ReplicaId, Time};

use crate::{ElectionKind, Members, Options};

/// The election of one replica.
#[derive(Clone, Debug)]
pub enum Election {
    /// See [`Rotating`].
    Rotating(Rotating),
}

impl Election {
    /// The election that the options name, as it is after a start.
    #[must_use]
    pub fn new(options: &Options, members: Members, now: Time) -> Election {
        match options.election {
            ElectionKind::Rotating => {
                Election::Rotating(Rotating::new(members, options.election_timeout, now))
            }
        }
    }

    /// At the first start of a group nobody can have led before: do not wait for a whole time-out.
    pub fn expect_no_leader(&mut self) {
        let Election::Rotating(rotating) = self;
        rotating.expect_no_leader();
    }

    /// The leader of the current ballot gave a sign of life.
    pub fn heard_leader(&mut self, now: Time) {
        let Election::Rotating(rotating) = self;
        rotating.heard_leader(now);
    }

    /// This replica promised a ballot: its owner gets a while to show that it leads.
    pub fn promised(&mut self, _ballot: Ballot, now: Time) {
        let Election::Rotating(rotating) = self;
        rotating.round_began(now);
    }

    /// This replica gave up leading, or trying to: it comes last in line.
    pub fn gave_up(&mut self, now: Time) {
        let Election::Rotating(rotating) = self;
        rotating.round_began(now);
    }

    /// This replica tries to lead.
    pub fn tried(&mut self, now: Time) {
        let Election::Rotating(rotating) = self;
        rotating.tried(now);
    }

    /// This replica begins to lead.
    pub fn leads(&mut self, now: Time) {
        let Election::Rotating(rotating) = self;
        rotating.leads(now);
    }

    /// A member answered this replica, which leads or tries to.
    pub fn answered(&mut self, from: ReplicaId, now: Time) {
        let Election::Rotating(rotating) = self;
        rotating.answered(from, now);
    }

    /// The lowest ballot of this replica above another.
    #[must_use]
    pub fn next_ballot(&self, above: Ballot) -> Ballot {
        let Election::Rotating(rotating) = self;
        rotating.next_ballot(above)
    }

    /// The ballot, above `current`, in which this replica should try to lead now, if it should.
    #[must_use]
    pub fn candidacy(&self, now: Time, current: Ballot) -> Option<Ballot> {
        let Election::Rotating(rotating) = self;
        (now >= rotating.try_at(current)).then(|| rotating.next_ballot(current))
    }

    /// Whether this replica, which leads, should give up.
    #[must_use]
    pub fn must_yield(&self, now: Time) -> bool {
        let Election::Rotating(rotating) = self;
        !rotating.reaches_quorum(now)
    }

    /// When a replica that does not lead should ask [`Election::candidacy`] again, if it hears nothing before.
    #[must_use]
    pub fn deadline(&self, current: Ballot) -> Time {
        let Election::Rotating(rotating) = self;
        rotating.try_at(current)
    }
}
