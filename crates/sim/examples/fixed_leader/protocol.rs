//! A protocol of one's own: a log with a fixed leader.
//!
//! The member with the lowest id leads for as long as the epoch lasts. It writes each batch down, sends it to the
//! others, and takes it for decided once a majority has written it down. A life of the leader is a ballot. No other
//! replica ever proposes, so a slot has one value in all ballots, and a leader that starts again proposes what its log
//! holds once more.
//!
//! What it survives: messages that are lost, late or doubled, cuts, crashes of any replicas and their restarts. What it
//! does not survive: a leader that does not come back, and a replica that lost (a part of) its log.

use std::collections::BTreeMap;

use synod_consensus::{
    BatchText, Body, Claim, Claims, Class, Control, Describe, Effect, Effects, ElectionKind, Fact, Facts,
    Input, LeaderView, Logged, Members, Options, Outside, Proofs, Protocol, Prove, ReadToken, ReplicaSet,
    Restart, Role, Status, Survives,
};
use synod_wire::{Ballot, Ballots, Batch, DecodeError, Keep, Lsn, Reader, ReplicaId, Slot, Time, Writer};

/// What is registered.
pub static FIXED_LEADER: Outside = Outside::new::<Message, Record>(
    "fixed-leader",
    &[ElectionKind::None],
    Survives::NOTHING_ELSE,
    |options, members, restart, now, effects| {
        Box::new(FixedLeader::start(options, members, restart, now, effects))
    },
);

/// What replicas say to each other.
#[derive(Clone, Debug)]
pub enum Message {
    /// The leader proposes, and has decided the slots through `decided`.
    Accept { ballot: Ballot, slot: Slot, decided: Slot, batch: Batch },
    /// The sender has written it down.
    Accepted { ballot: Ballot, slot: Slot },
    /// The leader lives, and has decided the slots through `decided`.
    Leads { ballot: Ballot, decided: Slot },
    /// The sender follows.
    Follows { ballot: Ballot },
}

/// What a replica remembers.
#[derive(Clone, Debug)]
pub enum Record {
    /// No lower ballot is followed.
    Promised(Ballot),
    /// This was proposed when the slots through `decided` were decided.
    Accepted { ballot: Ballot, slot: Slot, decided: Slot, batch: Batch },
    /// Another replica said that this was decided.
    Learned { ballots: Ballots, slot: Slot, batch: Batch },
    /// Whether the log before this is lost.
    Amnesia(bool),
}

/// An undecided slot.
#[derive(Clone, Debug)]
struct Instance {
    ballot: Ballot,
    batch: Batch,
    /// The record of it.
    lsn: Lsn,
    /// At the leader: who has written it down.
    votes: ReplicaSet,
    decided: Option<Ballots>,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct FixedLeader {
    options: Options,
    members: Members,
    role: Role,
    promised: Ballot,
    /// The record of that.
    promised_lsn: Lsn,
    /// What was said of who leads.
    view: LeaderView,
    /// Delivered through this slot.
    decided: Slot,
    /// Slots through this one are known to be decided somewhere.
    decided_elsewhere: Slot,
    /// What is not delivered.
    slots: BTreeMap<Slot, Instance>,
    /// Executing falls behind.
    backlogged: bool,
    /// The leader proposes in this slot next.
    next: Slot,
    /// When the leader speaks again.
    tick_at: Time,
    /// Reads that wait until a slot is delivered.
    reads: Vec<(Slot, ReadToken)>,
    /// When the leader heard each follower last.
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
    ) -> FixedLeader {
        let leads = members.ids().first() == Some(&members.me());
        let mut replica = FixedLeader {
            options,
            role: if leads { Role::Leader } else { Role::Follower },
            promised: Ballot::ZERO,
            promised_lsn: Lsn::ZERO,
            view: LeaderView::default(),
            decided: restart.base,
            decided_elsewhere: restart.base,
            slots: BTreeMap::new(),
            backlogged: false,
            next: restart.base.next(),
            tick_at: Time::NEVER,
            reads: Vec::new(),
            heard: BTreeMap::new(),
            members,
        };
        let (mut amnesia, mut decided) = (restart.amnesia, restart.decided);
        for record in restart.records.iter().filter_map(synod_consensus::Record::outside) {
            match record {
                Record::Promised(ballot) => replica.promised = *ballot,
                Record::Accepted { ballot, slot, decided: known, batch } => {
                    decided = decided.max(*known);
                    replica.hold(*slot, *ballot, batch.clone(), effects.last_lsn(), None);
                }
                Record::Learned { ballots, slot, batch } => {
                    replica.hold(*slot, ballots.proposed, batch.clone(), effects.last_lsn(), Some(*ballots));
                }
                Record::Amnesia(lost) => amnesia |= lost,
            }
        }
        if restart.records.is_empty() || amnesia {
            effects.append(FIXED_LEADER.record(Record::Amnesia(amnesia)));
        }
        replica.decide_through(decided, None, effects);
        if amnesia {
            replica.role = Role::Recovering;
        } else if leads {
            // A life of the leader is a ballot. It proposes again what an earlier life may have sent.
            let ballot = Ballot { round: restart.incarnation.0, replica: replica.members.me() };
            replica.promise(now, ballot, effects);
            replica.see(LeaderView { ballot, leader: Some(ballot.replica) }, effects);
            (replica.next, replica.tick_at) = (replica.decided.next(), now);
            while let Some(held) = replica.slots.get(&replica.next) {
                replica.propose(held.batch.clone(), effects);
            }
        }
        effects.push(Effect::Deadline(replica.tick_at));
        replica
    }

    fn hold(&mut self, slot: Slot, ballot: Ballot, batch: Batch, lsn: Lsn, decided: Option<Ballots>) {
        if slot > self.decided {
            self.slots.insert(slot, Instance { ballot, batch, lsn, votes: ReplicaSet::default(), decided });
        }
    }

    /// The leader writes a batch down, and lets it leave once that is durable: no later life may propose another there.
    fn propose(&mut self, batch: Batch, effects: &mut Effects) {
        let (ballot, slot) = (self.promised, self.next);
        self.next = slot.next();
        self.accept(ballot, slot, batch, effects);
        self.send_proposals(slot, slot, effects);
    }

    fn accept(&mut self, ballot: Ballot, slot: Slot, batch: Batch, effects: &mut Effects) -> Lsn {
        let record = Record::Accepted { ballot, slot, decided: self.decided, batch: batch.clone() };
        let lsn = effects.append(FIXED_LEADER.record(record));
        self.hold(slot, ballot, batch, lsn, None);
        lsn
    }

    /// Sends what is undecided of these slots to those who have not said that they hold it.
    fn send_proposals(&self, first: Slot, last: Slot, effects: &mut Effects) {
        for (&slot, Instance { ballot, batch, lsn, votes, .. }) in self.slots.range(first..=last) {
            let lack = self.members.peers().filter(|&peer| !self.members.contains(*votes, peer));
            let accept =
                Message::Accept { ballot: *ballot, slot, decided: self.decided, batch: batch.clone() };
            effects.send_each(lack, FIXED_LEADER.message(accept), *lsn);
        }
    }

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        let (Message::Accept { ballot, .. }
        | Message::Accepted { ballot, .. }
        | Message::Leads { ballot, .. }
        | Message::Follows { ballot }) = message;
        let ballot = *ballot;
        match message {
            Message::Accepted { slot, .. } if self.role == Role::Leader && ballot == self.promised => {
                self.heard.insert(from, now);
                self.vote(*slot, from, effects);
            }
            Message::Follows { .. } if self.role == Role::Leader && ballot == self.promised => {
                self.heard.insert(from, now);
            }
            Message::Accept { slot, decided, batch, .. }
                if self.follow(now, from, ballot, *decided, effects) =>
            {
                let held = self.slots.get(slot).filter(|held| held.ballot == ballot).map(|held| held.lsn);
                let room = !self.is_congested() && slot.0 <= self.decided.0 + self.options.accept_ahead_max();
                let after = match held {
                    // A majority has it.
                    None if *slot <= self.decided => Some(self.promised_lsn),
                    None if room => Some(self.accept(ballot, *slot, batch.clone(), effects)),
                    held => held,
                };
                // Not to answer is always safe.
                if let Some(after) = after {
                    effects.send(
                        from,
                        FIXED_LEADER.message(Message::Accepted { ballot, slot: *slot }),
                        after,
                    );
                }
                self.decide_through(*decided, Some(ballot), effects);
            }
            Message::Leads { decided, .. } if self.follow(now, from, ballot, *decided, effects) => {
                effects.send(from, FIXED_LEADER.message(Message::Follows { ballot }), self.promised_lsn);
                self.decide_through(*decided, Some(ballot), effects);
            }
            _ => {}
        }
    }

    /// The leader speaks; whether this replica obeys.
    fn follow(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        decided: Slot,
        effects: &mut Effects,
    ) -> bool {
        if ballot.replica != from || ballot < self.promised {
            return false;
        }
        self.decided_elsewhere = self.decided_elsewhere.max(decided);
        self.see(LeaderView { ballot, leader: Some(from) }, effects);
        if self.role == Role::Follower {
            self.heed(now, ballot, effects);
        }
        self.role == Role::Follower
    }

    fn see(&mut self, view: LeaderView, effects: &mut Effects) {
        if view != self.view {
            self.view = view;
            effects.push(Effect::Leader(view));
        }
    }

    /// A replica holds a slot durably.
    fn vote(&mut self, slot: Slot, who: ReplicaId, effects: &mut Effects) {
        if let Some(held) = self.slots.get_mut(&slot) {
            held.votes = held.votes.union(self.members.only(who));
            if self.members.is_quorum(held.votes) {
                held.decided = Some(Ballots::both(held.ballot));
            }
        }
        self.deliver(effects);
    }

    /// Slots through this one are decided, with what is held in a ballot; `None`: in any.
    fn decide_through(&mut self, through: Slot, ballot: Option<Ballot>, effects: &mut Effects) {
        for (_, held) in self.slots.range_mut(..=through) {
            if ballot.is_none_or(|ballot| held.ballot == ballot) && held.decided.is_none() {
                held.decided = Some(Ballots::both(held.ballot));
            }
        }
        self.deliver(effects);
    }

    fn deliver(&mut self, effects: &mut Effects) {
        while let Some(entry) = self.slots.first_entry()
            && *entry.key() == self.decided.next()
            && let Some(ballots) = entry.get().decided
        {
            let (slot, Instance { batch, .. }) = entry.remove_entry();
            self.decided = slot;
            effects.push(Effect::Deliver { slot, ballots, batch });
        }
        self.decided_elsewhere = self.decided_elsewhere.max(self.decided);
        for (slot, token) in self.reads.extract_if(.., |(slot, _)| *slot <= self.decided) {
            effects.push(Effect::ReadIndex { token, slot: Some(slot) });
        }
    }
}

impl Protocol for FixedLeader {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        match input {
            Input::Receive { from, message } => {
                if let Some(message) = message.outside::<Message>() {
                    self.receive(now, from, message, effects);
                }
            }
            Input::Propose { batch, .. } if self.room() > 0 => self.propose(batch, effects),
            Input::Durable(lsn) if self.role == Role::Leader => {
                let durable = self.slots.iter().filter(|(_, held)| held.lsn <= lsn).map(|(&slot, _)| slot);
                let durable: Vec<Slot> = durable.collect();
                durable.into_iter().for_each(|slot| self.vote(slot, self.members.me(), effects));
            }
            Input::Timer if self.role == Role::Leader && now >= self.tick_at => {
                self.tick_at = now + self.options.heartbeat_interval;
                let leads = Message::Leads { ballot: self.promised, decided: self.decided };
                effects.send(self.members.to_peers(), FIXED_LEADER.message(leads), self.promised_lsn);
                self.send_proposals(self.decided.next(), self.next, effects);
            }
            Input::Control(Control::ReadIndex(token)) if self.role == Role::Leader => {
                // Nobody else decides anything: what is proposed here is all that there can be.
                self.reads.push((self.next.prev(), token));
                self.deliver(effects);
            }
            Input::Control(Control::ReadIndex(token)) => {
                effects.push(Effect::ReadIndex { token, slot: None })
            }
            Input::Control(Control::Learn { slot, ballots, batch, .. }) if slot > self.decided => {
                let record = Record::Learned { ballots, slot, batch: batch.clone() };
                let lsn = effects.append(FIXED_LEADER.record(record));
                self.hold(slot, ballots.proposed, batch, lsn, Some(ballots));
                self.deliver(effects);
            }
            Input::Control(Control::Installed { slot, .. }) if slot > self.decided => {
                (self.decided, self.next) = (slot, self.next.max(slot.next()));
                self.slots = self.slots.split_off(&slot.next());
                self.deliver(effects);
            }
            Input::Control(Control::Backlogged(backlogged)) => self.backlogged = backlogged,
            _ => {}
        }
    }

    fn promised(&self) -> Ballot {
        self.promised
    }

    fn promise(&mut self, _: Time, ballot: Ballot, effects: &mut Effects) {
        self.promised = ballot;
        self.promised_lsn = effects.append(FIXED_LEADER.record(Record::Promised(ballot)));
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn flush(&mut self, _: Time, effects: &mut Effects) {
        effects.push(Effect::Deadline(self.tick_at));
    }

    fn room(&self) -> usize {
        let leads = self.role == Role::Leader && !self.is_congested();
        if leads { self.options.window_max.saturating_sub(self.status().in_flight) } else { 0 }
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        if self.role == Role::Leader {
            self.slots.values().for_each(|held| see(&held.batch));
        }
    }

    fn is_congested(&self) -> bool {
        self.backlogged
    }

    fn status(&self) -> Status {
        let leads = self.role == Role::Leader;
        Status {
            role: self.role,
            view: self.view,
            decided: self.decided,
            decided_elsewhere: self.decided_elsewhere,
            in_flight: if leads { self.slots.len() } else { 0 },
            waits_for_disk: leads,
        }
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        let heard = self.heard.get(&voter).filter(|_| self.role == Role::Leader);
        heard.is_some_and(|&heard| now.since(heard) <= self.options.election_timeout)
    }

    fn fork(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}

// How messages and records are written, what they are for, and what they say to the checks.

impl Body for Message {
    fn encode(&self, writer: &mut Writer) {
        let (kind, ballot, slots, batch) = match self {
            Message::Accept { ballot, slot, decided, batch } => (1, ballot, vec![slot, decided], Some(batch)),
            Message::Accepted { ballot, slot } => (2, ballot, vec![slot], None),
            Message::Leads { ballot, decided } => (3, ballot, vec![decided], None),
            Message::Follows { ballot } => (4, ballot, vec![], None),
        };
        writer.u8(kind);
        writer.ballot(*ballot);
        slots.into_iter().for_each(|slot| writer.slot(*slot));
        batch.into_iter().for_each(|batch| writer.batch(batch));
    }

    fn decode(reader: &mut Reader) -> Result<Message, DecodeError> {
        let (kind, ballot) = (reader.u8("kind of message")?, reader.ballot("ballot")?);
        Ok(match kind {
            1 => {
                let (slot, decided) = (reader.slot("slot")?, reader.slot("decided")?);
                Message::Accept { ballot, slot, decided, batch: reader.batch("batch")? }
            }
            2 => Message::Accepted { ballot, slot: reader.slot("slot")? },
            3 => Message::Leads { ballot, decided: reader.slot("decided")? },
            4 => Message::Follows { ballot },
            value => return Err(DecodeError::Undefined { field: "kind of message", value: value.into() }),
        })
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        if let Message::Accept { batch, .. } = self {
            see(batch);
        }
    }

    fn class(&self) -> Class {
        match self {
            Message::Accept { .. } => Class::Proposal,
            Message::Accepted { .. } => Class::Vote,
            Message::Leads { .. } => Class::Heartbeat,
            Message::Follows { .. } => Class::HeartbeatAnswer,
        }
    }
}

impl Describe for Message {
    fn describe(&self, text: BatchText<'_>) -> String {
        match self {
            Message::Accept { ballot, slot, decided, batch } => {
                format!("Accept {ballot} slot {slot}, decided {decided}: {}", text(batch))
            }
            Message::Accepted { ballot, slot } => format!("Accepted {ballot} slot {slot}"),
            Message::Leads { ballot, decided } => format!("Leads {ballot}, decided {decided}"),
            Message::Follows { ballot } => format!("Follows {ballot}"),
        }
    }
}

impl Claims for Message {
    fn claims(&self) -> Vec<Claim<'_>> {
        match self {
            Message::Accept { ballot, slot, decided, batch } => {
                vec![Claim::Propose { ballot: *ballot, slot: *slot, batch, decided: *decided }]
            }
            Message::Accepted { ballot, slot } => vec![Claim::Vote { ballot: *ballot, slot: *slot }],
            Message::Leads { ballot, decided } => vec![Claim::Leads { ballot: *ballot, decided: *decided }],
            Message::Follows { .. } => Vec::new(),
        }
    }
}

impl Logged for Record {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Record::Promised(ballot) => {
                writer.u8(1);
                writer.ballot(*ballot);
            }
            Record::Accepted { ballot, slot, decided, batch } => {
                writer.u8(2);
                writer.ballot(*ballot);
                writer.slot(*slot);
                writer.slot(*decided);
                writer.batch(batch);
            }
            Record::Learned { ballots, slot, batch } => {
                writer.u8(3);
                writer.ballots(*ballots);
                writer.slot(*slot);
                writer.batch(batch);
            }
            Record::Amnesia(lost) => {
                writer.u8(4);
                writer.bool(*lost);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Record, DecodeError> {
        Ok(match reader.u8("kind of record")? {
            1 => Record::Promised(reader.ballot("ballot")?),
            2 => {
                let (ballot, slot) = (reader.ballot("ballot")?, reader.slot("slot")?);
                let decided = reader.slot("decided")?;
                Record::Accepted { ballot, slot, decided, batch: reader.batch("batch")? }
            }
            3 => {
                let (ballots, slot) = (reader.ballots("ballots")?, reader.slot("slot")?);
                Record::Learned { ballots, slot, batch: reader.batch("batch")? }
            }
            4 => Record::Amnesia(reader.bool("amnesia")?),
            value => return Err(DecodeError::Undefined { field: "kind of record", value: value.into() }),
        })
    }

    fn keep(&self) -> Keep {
        match self {
            Record::Promised(_) => Keep::State(1),
            Record::Amnesia(_) => Keep::State(2),
            Record::Accepted { slot, .. } | Record::Learned { slot, .. } => Keep::Slot(*slot),
        }
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
        if let Record::Accepted { slot, batch, .. } | Record::Learned { slot, batch, .. } = self {
            see(*slot, batch);
        }
    }

    fn is_decision(&self) -> bool {
        matches!(self, Record::Learned { .. })
    }

    fn amnesia(&self) -> Option<bool> {
        if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
    }
}

impl Describe for Record {
    fn describe(&self, text: BatchText<'_>) -> String {
        match self {
            Record::Promised(ballot) => format!("promised {ballot}"),
            Record::Accepted { ballot, slot, decided, batch } => {
                format!("accepted {ballot} slot {slot}, decided {decided}: {}", text(batch))
            }
            Record::Learned { ballots, slot, batch } => {
                format!("learned {} slot {slot}: {}", ballots.decided, text(batch))
            }
            Record::Amnesia(lost) => {
                format!("the log before this is {}", if *lost { "lost" } else { "whole" })
            }
        }
    }
}

impl Facts for Record {
    fn fact(&self) -> Fact {
        match self {
            Record::Promised(ballot) => Fact::Promised(*ballot),
            Record::Accepted { ballot, slot, batch, .. } => {
                Fact::Accepted { ballot: *ballot, first: *slot, batches: [batch.clone()].into() }
            }
            Record::Learned { slot, batch, .. } => Fact::Learned { slot: *slot, batch: batch.clone() },
            Record::Amnesia(_) => Fact::Nothing,
        }
    }
}

impl Prove for Record {
    fn prove(&self, proofs: &mut Proofs) {
        match self {
            Record::Accepted { ballot, slot, decided, batch } => {
                proofs.decide(*decided, Ballots::both);
                proofs.hold(*slot, [(*ballot, batch)]);
            }
            Record::Learned { ballots, slot, batch } => proofs.learn(*slot, *ballots, batch),
            Record::Promised(_) | Record::Amnesia(_) => {}
        }
    }
}
