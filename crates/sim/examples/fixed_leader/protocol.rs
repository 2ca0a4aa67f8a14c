//! A protocol of one's own: a log with a fixed leader.
//!
//! The member with the lowest id leads for as long as the epoch lasts. It writes each batch down, sends it to the
//! others once that is durable, and takes it for decided once a majority has it durably. A life of the leader is a
//! ballot. No other replica ever proposes, and a life proposes again what its log holds, so a slot has one value in all
//! ballots.
//!
//! It survives messages that are lost, late or doubled, cuts, and crashes of any replicas that start again. It does not
//! survive a leader that never comes back, or a replica that lost its log or a part of it.

use synod_consensus::{
    BySlot, Effect, Effects, ElectionKind, Members, Options, Outside, Protocol, ReadToken, Restart, Role,
    SlotAcceptor, SlotRecord, Survives,
};
use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

/// What is registered: a name, the elections that go with it, what it survives, and how a replica starts.
pub static FIXED_LEADER: Outside = Outside::new::<Message, SlotRecord>(
    "fixed-leader",
    &[ElectionKind::None],
    Survives::NOTHING_ELSE,
    FixedLeader::start,
);

synod_consensus::messages! {
    /// What replicas say to each other.
    pub enum Message of FIXED_LEADER {
        /// The leader proposes, and has decided the slots through `decided`.
        1, Proposal, claims Propose: Accept { ballot: Ballot, slot: Slot, decided: Slot, batch: Batch },
        /// The sender has written it down.
        2, Vote, claims Vote: Accepted { ballot: Ballot, slot: Slot },
        /// The leader lives, and has decided the slots through `decided`.
        3, Heartbeat, claims Leads: Leads { ballot: Ballot, decided: Slot },
        /// The sender follows.
        4, HeartbeatAnswer: Follows { ballot: Ballot },
    }
}

/// One replica.
#[derive(Clone, Debug)]
pub struct FixedLeader {
    /// What it promised and accepted, what is decided, and which followers answer.
    acceptor: SlotAcceptor,
    /// When the replica speaks again.
    tick_at: Time,
}

impl FixedLeader {
    /// Starts a replica from what an earlier life has written.
    pub fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> Box<dyn Protocol> {
        let (leads, me) = (members.ids()[0] == members.me(), members.me());
        let acceptor = SlotAcceptor::start(&FIXED_LEADER, options, members, &restart, effects);
        let mut replica = FixedLeader { acceptor, tick_at: now };
        if leads && replica.acceptor.role() != Role::Recovering {
            // It proposes again what its log holds.
            replica.acceptor.lead(Ballot { round: restart.incarnation.0, replica: me }, effects);
            replica.send_proposals(Slot::ZERO, effects);
        }
        Box::new(replica)
    }

    /// Sends what is proposed from this slot on to the followers that have not said that they hold it. It leaves once
    /// it is durable here: no later life may propose another batch there.
    fn send_proposals(&self, first: Slot, effects: &mut Effects) {
        let decided = self.acceptor.decided();
        for (slot, ballot, batch, lsn) in self.acceptor.accepted_from(first) {
            let accept = Message::Accept { ballot, slot, decided, batch: batch.clone() };
            effects.send_each(self.acceptor.lacking(slot), accept, lsn);
        }
    }
}

impl BySlot for FixedLeader {
    type Message = Message;

    fn acceptor(&self) -> &SlotAcceptor {
        &self.acceptor
    }

    fn acceptor_mut(&mut self) -> &mut SlotAcceptor {
        &mut self.acceptor
    }

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        let acceptor = &mut self.acceptor;
        match *message {
            Message::Accepted { ballot, slot } if acceptor.hears(now, from, ballot) => {
                acceptor.vote(slot, ballot, from, effects);
            }
            Message::Follows { ballot } => _ = acceptor.hears(now, from, ballot),
            Message::Accept { ballot, slot, decided, ref batch } if acceptor.obeys(from, ballot, effects) => {
                // Not to answer is always safe.
                if let Some(after) = acceptor.accept(slot, batch, effects) {
                    effects.send(from, Message::Accepted { ballot, slot }, after);
                }
                acceptor.decide_through(decided, ballot, effects);
            }
            Message::Leads { ballot, decided } if acceptor.obeys(from, ballot, effects) => {
                acceptor.decide_through(decided, ballot, effects);
            }
            _ => {}
        }
    }

    fn propose(&mut self, _: Time, batch: &Batch, effects: &mut Effects) {
        let slot = self.acceptor.last().next();
        self.acceptor.propose(slot, batch, effects);
        self.send_proposals(slot, effects);
    }

    /// No other replica decides anything: what is proposed here is all that there can be.
    fn read_index(&mut self, token: ReadToken, effects: &mut Effects) {
        let slot = (self.acceptor.role() == Role::Leader).then(|| self.acceptor.last());
        effects.push(Effect::ReadIndex { token, slot });
    }

    fn wakes_at(&self) -> Time {
        self.tick_at
    }

    /// The leader says that it lives, and proposes again what was not answered. A follower says that it is there: a
    /// leader that has not heard of its epoch hears of it so.
    fn wake(&mut self, now: Time, effects: &mut Effects) {
        self.tick_at = now + self.acceptor.options().heartbeat_interval;
        let (ballot, promised_lsn) = self.acceptor.promised();
        let (members, decided) = (self.acceptor.members(), self.acceptor.decided());
        if self.acceptor.role() == Role::Leader {
            effects.send(members.to_peers(), Message::Leads { ballot, decided }, promised_lsn);
            self.send_proposals(Slot::ZERO, effects);
        } else {
            effects.send(members.ids()[0], Message::Follows { ballot }, promised_lsn);
        }
    }
}
