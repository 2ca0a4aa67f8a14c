//! A protocol of one's own: a log with a fixed leader.
//!
//! The member with the lowest id leads for as long as the epoch lasts. It writes each batch down, sends it to the
//! others once that is durable, and takes it for decided once a majority has it durably. A life of the leader is a
//! ballot. No other replica ever proposes, and a life proposes again what its log holds, so a slot has one value in all
//! ballots.
//!
//! It survives messages that are lost, late or doubled, cuts, and crashes of any replicas that start again. It does not
//! survive a leader that never comes back, or a replica that lost its log or a part of it.

use std::collections::BTreeMap;

use synod_consensus::{
    Claim, Claims, Control, Effect, Effects, ElectionKind, Input, Members, Options, Outside, Protocol,
    Restart, Role, SlotAcceptor, SlotRecord, Status, Survives,
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
        1, Proposal: Accept { ballot: Ballot, slot: Slot, decided: Slot, batch: Batch },
        /// The sender has written it down.
        2, Vote: Accepted { ballot: Ballot, slot: Slot },
        /// The leader lives, and has decided the slots through `decided`.
        3, Heartbeat: Leads { ballot: Ballot, decided: Slot },
        /// The sender follows.
        4, HeartbeatAnswer: Follows { ballot: Ballot },
    }
}

/// One replica.
#[derive(Clone, Debug)]
pub struct FixedLeader {
    role: Role,
    /// What it promised and accepted, and what is decided.
    acceptor: SlotAcceptor,
    /// When the replica speaks again.
    tick_at: Time,
    /// When the leader last heard each follower.
    heard: BTreeMap<ReplicaId, Time>,
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
        let (lowest, me) = (members.ids()[0], members.me());
        let acceptor = SlotAcceptor::start(&FIXED_LEADER, options, members, &restart, effects);
        let role = match acceptor.is_whole() {
            false => Role::Recovering,
            true if lowest == me => Role::Leader,
            true => Role::Follower,
        };
        let tick_at = if role == Role::Recovering { Time::NEVER } else { now };
        let mut replica = FixedLeader { role, acceptor, tick_at, heard: BTreeMap::new() };
        if role == Role::Leader {
            replica.promise(now, Ballot { round: restart.incarnation.0, replica: me }, effects);
            replica.acceptor.leads(replica.promised(), effects);
            let held = replica.acceptor.accepted_from(Slot::ZERO);
            let held: Vec<_> = held.map(|(slot, _, batch, _)| (slot, batch.clone())).collect();
            for (slot, batch) in held {
                replica.acceptor.propose(slot, &batch, effects);
            }
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

    /// The leader says that it lives, and proposes again what was not answered. A follower says that it is there: a
    /// leader that has not heard of its epoch hears of it so.
    fn speak(&mut self, now: Time, effects: &mut Effects) {
        self.tick_at = now + self.options().heartbeat_interval;
        let (ballot, promised_lsn) = self.acceptor.promised();
        let (members, decided) = (self.acceptor.members(), self.acceptor.decided());
        if self.role == Role::Leader {
            effects.send(members.to_peers(), Message::Leads { ballot, decided }, promised_lsn);
            self.send_proposals(Slot::ZERO, effects);
        } else {
            effects.send(members.ids()[0], Message::Follows { ballot }, promised_lsn);
        }
    }

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        match *message {
            Message::Accepted { ballot, slot } if self.hears(now, from, ballot) => {
                self.acceptor.vote(slot, ballot, from, effects);
            }
            Message::Follows { ballot } => {
                self.hears(now, from, ballot);
            }
            Message::Accept { ballot, slot, decided, ref batch }
                if self.obeys(now, from, ballot, effects) =>
            {
                // Not to answer is always safe.
                if let Some(after) = self.acceptor.accept(slot, batch, effects) {
                    effects.send(from, Message::Accepted { ballot, slot }, after);
                }
                self.acceptor.decide_through(decided, ballot, effects);
            }
            Message::Leads { ballot, decided } if self.obeys(now, from, ballot, effects) => {
                self.acceptor.decide_through(decided, ballot, effects);
            }
            _ => {}
        }
    }

    /// Whether an answer is to this life of the leader, which takes note that the follower is there.
    fn hears(&mut self, now: Time, from: ReplicaId, ballot: Ballot) -> bool {
        let mine = self.role == Role::Leader && ballot == self.promised();
        if mine {
            self.heard.insert(from, now);
        }
        mine
    }

    /// Whether this replica obeys the leader of a ballot, which it promises then.
    fn obeys(&mut self, now: Time, from: ReplicaId, ballot: Ballot, effects: &mut Effects) -> bool {
        if ballot.replica != from || ballot < self.promised() || self.role != Role::Follower {
            return false;
        }
        self.acceptor.leads(ballot, effects);
        self.heed(now, ballot, effects);
        true
    }
}

impl Protocol for FixedLeader {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        match input {
            Input::Receive { from, message } => {
                if let Some(message) = message.outside() {
                    self.receive(now, from, message, effects);
                }
            }
            Input::Propose { batch, .. } if self.room() > 0 => {
                let slot = self.acceptor.last().next();
                self.acceptor.propose(slot, &batch, effects);
                self.send_proposals(slot, effects);
            }
            Input::Durable(lsn) => self.acceptor.durable(lsn, effects),
            Input::Timer if now >= self.tick_at => self.speak(now, effects),
            Input::Control(Control::ReadIndex(token)) => {
                // No other replica decides anything: what is proposed here is all that there can be.
                let slot = (self.role == Role::Leader).then(|| self.acceptor.last());
                effects.push(Effect::ReadIndex { token, slot });
            }
            Input::Control(control) => self.acceptor.control(control, effects),
            _ => {}
        }
    }

    fn promised(&self) -> Ballot {
        self.acceptor.promised().0
    }

    fn promise(&mut self, _: Time, ballot: Ballot, effects: &mut Effects) {
        self.acceptor.promise(ballot, effects);
    }

    fn options(&self) -> &Options {
        self.acceptor.options()
    }

    fn flush(&mut self, _: Time, effects: &mut Effects) {
        effects.push(Effect::Deadline(self.tick_at));
    }

    fn room(&self) -> usize {
        let leads = self.role == Role::Leader && !self.is_congested();
        if leads { self.options().window_max.saturating_sub(self.status().in_flight) } else { 0 }
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        self.acceptor.accepted_from(Slot::ZERO).for_each(|(_, _, batch, _)| see(batch));
    }

    fn is_congested(&self) -> bool {
        self.acceptor.is_congested()
    }

    fn status(&self) -> Status {
        self.acceptor.status(self.role)
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        self.heard.get(&voter).is_some_and(|&heard| now.since(heard) <= self.options().election_timeout)
    }
}

/// What the messages say to the checks of the simulator and the explorer.
impl Claims for Message {
    fn claims(&self) -> Vec<Claim<'_>> {
        match *self {
            Message::Accept { ballot, slot, decided, ref batch } => {
                vec![Claim::Propose { ballot, slot, batch, decided }]
            }
            Message::Accepted { ballot, slot } => vec![Claim::Vote { ballot, slot }],
            Message::Leads { ballot, decided } => vec![Claim::Leads { ballot, decided }],
            Message::Follows { .. } => Vec::new(),
        }
    }
}
