//! Learners on the ring (Benz 2013: a process that is a learner, or a learner and a proposer, and no acceptor).
//!
//! A learner of the group does not vote, promises nothing that counts, and takes no part in elections. With
//! `ring-learners` it has a place in the ring all the same: messages pass it like every other member, it keeps what
//! they bring, and it delivers what is decided. It writes down only what is decided, before it delivers it, as what
//! it learns by catch-up. It says to all voters how far it is, as long as it runs; the coordinator among them takes
//! it into the ring.

use std::time::Duration;

use synod_wire::{Lsn, ReplicaId, Time};

use super::{AcceptedValue, Message, Record, Ring, State};
use crate::{Effects, leadership::Leads, options::choice, paxos::Paxos};

choice! {
    /// What the learners of the group do in the ring.
    #[derive(Default)]
    RingLearners, "part of learners" {
        #[default]
        /// They are not in it: they fetch what is decided.
        CatchUp = "catch-up",
        /// They learn from what passes them, and leave the commands of their clients to the coordinator.
        Learn = "learn",
        /// They propose, too.
        Propose = "propose",
    }
}

choice! {
    /// What the voters of the group do in the ring.
    #[derive(Default)]
    RingVoters, "part of voters" {
        #[default]
        /// They accept, and propose.
        Propose = "propose",
        /// They accept, and leave the commands of their clients to the coordinator.
        Accept = "accept",
    }
}

/// A replica that does not vote.
#[derive(Clone, Debug)]
pub(super) struct Learner {
    /// When it says again how far it is.
    pub(super) tells_at: Time,
}

impl Ring {
    /// Whether this replica does not vote.
    pub(super) fn is_learner(&self) -> bool {
        matches!(self.state, State::Learner(_))
    }

    /// Whether members of the ring need not be voters.
    pub(super) fn takes_learners(&self) -> bool {
        self.common().options.ring.learners != RingLearners::CatchUp
    }

    /// Whether this replica proposes the commands of its own clients whether or not it leads.
    pub(super) fn is_proposer(&self) -> bool {
        let ring = self.common().options.ring;
        if self.is_learner() {
            ring.learners == RingLearners::Propose
        } else {
            ring.voters == RingVoters::Propose
        }
    }

    /// Says, as a learner, how far it is, if it is time.
    pub(super) fn tell_voters(&mut self, now: Time, effects: &mut Effects) {
        let interval = self.common().options.heartbeat_interval.max(Duration::from_nanos(1));
        let State::Learner(learner) = &mut self.state else { return };
        if now < learner.tells_at {
            return;
        }
        learner.tells_at = now + interval;
        let (ballot, decided) = (self.common().promised, self.decided());
        let minor = self.view.as_ref().filter(|view| view.ballot == ballot).map_or(0, |view| view.minor);
        let told = Message::HeartbeatAck { ballot, round: 0, minor, decided };
        self.common().broadcast(told, Lsn::ZERO, effects);
    }

    /// Whether a message of a replica that does not vote, or to one, says something.
    pub(super) fn concerns_learners(message: &Message) -> bool {
        matches!(
            message,
            Message::Values { .. }
                | Message::Accept(_)
                | Message::Votes(_)
                | Message::Decision(_)
                | Message::View { .. }
                | Message::Decided { .. }
        )
    }

    /// Whether something may be sent to this replica: a voter, or a learner in the ring.
    pub(super) fn is_reached(&self, id: ReplicaId) -> bool {
        let in_ring = || self.view.as_ref().is_some_and(|view| view.contains(id));
        id != self.me() && (self.common().members.index(id).is_some() || self.takes_learners() && in_ring())
    }

    /// Writes down, as a learner, what is decided in the slot that is delivered next.
    pub(super) fn write_decided(&mut self, effects: &mut Effects) {
        if !self.is_learner() {
            return;
        }
        let slot = self.decided().next();
        let Some(accepted) = self.acceptor.accepted(slot).filter(|_| self.acceptor.is_decided(slot)) else {
            return;
        };
        if accepted.lsn == Lsn::ZERO {
            let value = AcceptedValue { slot, ballot: accepted.ballot, batch: accepted.batch.clone() };
            let lsn = effects.append(Record::Learned(value).into());
            self.common_mut().disk.given(lsn, 1);
        }
    }
}
