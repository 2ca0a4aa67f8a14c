//! A log in rounds: one stream of swift rounds orders all slots by LastVoting of three rounds (Santos 2012, Algorithms
//! 4.2 and 5.4). Every replica proposes, and the coordinator of a phase says only in which order.
//!
//! A phase φ with its coordinator is the ballot (φ, coordinator). What a round says is what Paxos says of that ballot:
//!
//! | round of a phase | letter | in Paxos |
//! | --- | --- | --- |
//! | 1 | `Estimate`, to the coordinator: what is accepted and not decided, and which batches wait | promise |
//! | 2 | `Vote`, from the coordinator: batches for slots | proposal |
//! | 3 | `Acknowledgement`, to all | vote |
//!
//! In each round a replica sends a letter to every other one, with nothing in it if it has nothing to say. The replicas
//! rest where nothing waits, each before the first round of a phase, and a letter wakes them.
//!
//! Nothing is said before it is durable: a phase is promised before any letter of it leaves, and a restart goes on in a
//! later one. A replica that lost its log says nothing more in its epoch, not even an empty letter.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{
    Bounds, Round, Synchronisation,
    rules::Rules,
    synchronisation::{Sight, Waited},
};
use crate::{
    Claim, Control, Effect, Effects, ElectionKind, Input, LeaderView, Link, Members, Options, Outside,
    Protocol, ReadToken, ReplicaSet, Restart, Role, Route, SlotAcceptor, SlotRecord, Status, Survives,
    Threshold,
    acceptor::AcceptedValue,
    batches::{Batches, fitting},
};

/// What is registered to run it.
pub static ROUNDS: Outside = Outside::new::<Message, SlotRecord>(
    "rounds",
    &[ElectionKind::None],
    Survives { lost_logs: true, lost_replicas: true },
    |options, members, restart, now, effects| {
        Box::new(RoundsLog::start(options, members, &restart, &SOUND, now, effects))
    },
)
.without_leader();

crate::messages! {
    /// What replicas say to each other. All but questions of reads are letters of a round.
    pub enum Message of ROUNDS {
        /// Round 1, to the coordinator of the ballot.
        1, Promise,
        claims [Claim::promise(*ballot, decided.next(), *decided, *next, accepted)]:
        Estimate {
            ballot: Ballot, decided: Slot, next: Option<Slot>, accepted: Vec<AcceptedValue>, offers: Batches,
            busy: bool
        },
        /// Round 2, from the coordinator.
        2, Proposal, claims { Claim::proposals(*ballot, *first, *decided, batches) }:
        Vote { ballot: Ballot, first: Slot, decided: Slot, batches: Batches },
        /// Round 3: the sender accepted these slots.
        3, Vote,
        claims { (first.0..=last.0).map(|slot| Claim::Vote { ballot: *ballot, slot: Slot(slot) }).collect() }:
        Acknowledgement { ballot: Ballot, first: Slot, last: Slot, decided: Slot, busy: bool },
        /// A letter without anything in it.
        4, Heartbeat: Here { round: u64, decided: Slot, busy: bool },
        /// Which slot may be decided at most? Number 0 asks whether the receiver is there.
        5, HeartbeatAnswer: Ask { number: u64 },
        /// None after this one.
        6, HeartbeatAnswer: Told { number: u64, last: Slot },
    }
}

/// The rules of a replica, unless a test plants a bug.
static SOUND: Rules = Rules::SOUND;

/// Rounds of a phase.
const PHASE: u64 = 3;
/// A replica promises delays of so many parts of an election time-out (`Δ`), and steps of a hundredth of a delay (`Φ`).
const DELAY_PARTS: u32 = 30;
const STEP_PARTS: u32 = 100;
/// The most reads that wait; the client of the oldest has given up long ago.
const READS_MAX: usize = 4096;

impl Message {
    /// The round, if it is a letter.
    fn round(&self) -> Option<Round> {
        let of = |ballot: &Ballot, place: u64| Some(Round(ballot.round.checked_mul(PHASE)? + place - PHASE));
        match self {
            Message::Estimate { ballot, .. } => of(ballot, 1),
            Message::Vote { ballot, .. } => of(ballot, 2),
            Message::Acknowledgement { ballot, .. } => of(ballot, 3),
            Message::Here { round, .. } => Some(Round(*round)),
            Message::Ask { .. } | Message::Told { .. } => None,
        }
    }

    /// The ballot that it names.
    fn ballot(&self) -> Option<Ballot> {
        match self {
            Message::Estimate { ballot, .. }
            | Message::Vote { ballot, .. }
            | Message::Acknowledgement { ballot, .. } => Some(*ballot),
            Message::Here { .. } | Message::Ask { .. } | Message::Told { .. } => None,
        }
    }

    fn decided(&self) -> Slot {
        match self {
            Message::Estimate { decided, .. }
            | Message::Vote { decided, .. }
            | Message::Acknowledgement { decided, .. }
            | Message::Here { decided, .. } => *decided,
            Message::Ask { .. } | Message::Told { .. } => Slot::ZERO,
        }
    }

    /// Whether the sender still has something to order.
    fn is_busy(&self) -> bool {
        match self {
            Message::Estimate { busy, .. }
            | Message::Acknowledgement { busy, .. }
            | Message::Here { busy, .. } => *busy,
            Message::Vote { .. } => true,
            Message::Ask { .. } | Message::Told { .. } => false,
        }
    }
}

/// A read that waits for a quorum.
#[derive(Clone, Debug)]
struct Read {
    number: u64,
    token: ReadToken,
    told: ReplicaSet,
    last: Slot,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct RoundsLog {
    /// What it promised and accepted, and what is decided.
    slots: SlotAcceptor,
    rules: &'static Rules,
    synchronisation: Synchronisation,
    /// Batches of this replica's clients that are not delivered.
    offers: VecDeque<Batch>,
    round: Round,
    coordinator: Option<ReplicaId>,
    /// Nothing of this round was sent, and nothing is waited for.
    rests: bool,
    /// The phase began after a rest, when nobody had been heard for long.
    is_first: bool,
    since: Time,
    next_seen: Option<Duration>,
    received: BTreeMap<Round, BTreeMap<ReplicaId, Message>>,
    heard_before: ReplicaSet,
    heard_at: BTreeMap<ReplicaId, Time>,
    /// The members to which there is no session, and those that have answered in the session that there is.
    down: ReplicaSet,
    there: ReplicaSet,
    /// What was sent in this round, for a session that begins; and the own letter, which counts once it is durable.
    said: Vec<(ReplicaId, Message)>,
    own: Option<(Message, Lsn)>,
    durable: Lsn,
    /// The coordinator's vote of this phase.
    vote: Option<(Slot, Batches)>,
    /// The slots accepted in this phase, with the record of the last.
    accepted: Option<(Slot, Slot, Lsn)>,
    reads: VecDeque<Read>,
    reads_asked: u64,
    asked_at: Time,
}

impl RoundsLog {
    fn start(
        options: Options,
        members: Members,
        restart: &Restart,
        rules: &'static Rules,
        now: Time,
        effects: &mut Effects,
    ) -> RoundsLog {
        let delay = (options.election_timeout / DELAY_PARTS).max(Duration::from_nanos(1));
        let replicas = u32::try_from(members.count()).unwrap_or(u32::MAX);
        let synchronisation = Bounds::exact(replicas, delay, delay / STEP_PARTS).swift();
        let slots = SlotAcceptor::start(&ROUNDS, options, members, restart, effects);
        let round = Round((rules.resumes_in(slots.promised().0) - 1) * PHASE + 1);
        let mut replica = RoundsLog {
            slots,
            rules,
            synchronisation,
            offers: VecDeque::new(),
            round,
            coordinator: None,
            rests: true,
            is_first: true,
            since: now,
            next_seen: None,
            received: BTreeMap::new(),
            heard_before: ReplicaSet::default(),
            heard_at: BTreeMap::new(),
            down: ReplicaSet::default(),
            there: ReplicaSet::default(),
            said: Vec::new(),
            own: None,
            durable: effects.last_lsn(),
            vote: None,
            accepted: None,
            reads: VecDeque::new(),
            reads_asked: 0,
            asked_at: now,
        };
        replica.coordinator = Some(replica.members().ids()[0]);
        replica.enter(round);
        effects.push(Effect::Leader(replica.view()));
        if replica.is_busy() {
            replica.begin(now, effects);
        }
        replica
    }

    fn members(&self) -> &Members {
        self.slots.members()
    }

    fn me(&self) -> ReplicaId {
        self.members().me()
    }

    fn view(&self) -> LeaderView {
        LeaderView { ballot: self.slots.promised().0, leader: None }
    }

    fn place(&self) -> u64 {
        self.round.place(PHASE)
    }

    /// The ballot of this phase.
    fn ballot(&self) -> Ballot {
        Ballot { round: self.round.phase(PHASE), replica: self.coordinator.unwrap_or_default() }
    }

    fn is_mute(&self) -> bool {
        !self.rules.may_speak(self.slots.role() == Role::Recovering)
    }

    /// Whether something is still to be ordered, as far as this replica knows.
    fn is_busy(&self) -> bool {
        !self.offers.is_empty() || self.slots.last() > self.slots.decided()
    }

    /// The same, without what the letters of this phase see to.
    fn has_more(&self) -> bool {
        let Some((first, last, _)) = self.accepted else { return self.is_busy() };
        let is_held = |offer: &Batch| self.slots.accepted_from(first).any(|(_, _, held, _)| held == offer);
        self.slots.last() > last
            || self.slots.decided().next() < first
            || self.offers.iter().any(|offer| !is_held(offer))
    }

    // Sending.

    /// Sends the letters of this round.
    fn begin(&mut self, now: Time, effects: &mut Effects) {
        if self.is_mute() {
            return;
        }
        self.is_first |= self.rests;
        (self.rests, self.since, self.next_seen) = (false, now, None);
        if self.slots.promised().0 < self.ballot() {
            self.slots.promise(self.ballot(), effects);
        }
        let (letter, record) = self.letter();
        let after = self.rules.leaves_after(record);
        let here =
            Message::Here { round: self.round.0, decided: self.slots.decided(), busy: self.has_more() };
        let is_for_all = !matches!(letter, Message::Estimate { .. });
        let is_for = |id| is_for_all || self.rules.is_addressed(id, self.coordinator);
        let said = |&id| (id, if is_for(id) { letter.clone() } else { here.clone() });
        self.said = self.members().ids().iter().map(said).collect();
        let me = self.me();
        for (to, message) in self.said.iter().filter(|(to, _)| *to != me) {
            effects.send(*to, message.clone(), after);
        }
        let own = self.said.iter().find(|(to, _)| *to == me).map(|(_, message)| message.clone());
        self.own = own.map(|own| (own, after));
        self.hear_own(now, effects);
    }

    /// What this replica says in this round, and the record that has to be durable first. Nothing of a phase is said
    /// before the phase is promised.
    fn letter(&self) -> (Message, Lsn) {
        let (ballot, decided, busy) = (self.ballot(), self.slots.decided(), self.has_more());
        let promised_lsn = self.slots.promised().1;
        let here = Message::Here { round: self.round.0, decided, busy };
        match self.place() {
            1 => self.estimate(ballot, decided, promised_lsn),
            2 => match &self.vote {
                Some((first, batches)) => {
                    let (first, batches) = (*first, batches.clone());
                    (Message::Vote { ballot, first, decided, batches }, promised_lsn)
                }
                None => (here, promised_lsn),
            },
            _ => match self.accepted {
                Some((first, last, lsn)) => {
                    let letter = Message::Acknowledgement { ballot, first, last, decided, busy };
                    (letter, lsn.max(promised_lsn))
                }
                None => (here, promised_lsn),
            },
        }
    }

    fn estimate(&self, ballot: Ballot, decided: Slot, promised_lsn: Lsn) -> (Message, Lsn) {
        let bytes_max = self.slots.options().page_bytes_max / 2;
        let (mut accepted, mut next, mut bytes, mut after) = (Vec::new(), None, 0, promised_lsn);
        for (slot, ballot, batch, lsn) in self.slots.accepted_from(decided.next()) {
            if bytes > 0 && bytes + batch.bytes().len() > bytes_max {
                next = Some(slot);
                break;
            }
            bytes += batch.bytes().len() + 32;
            accepted.push(AcceptedValue { slot, ballot, batch: batch.clone() });
            after = after.max(lsn);
        }
        let is_held =
            |offer: &&Batch| !self.slots.accepted_from(decided.next()).any(|(_, _, held, _)| held == *offer);
        let offers: Vec<Batch> = self.offers.iter().filter(is_held).cloned().collect();
        let offers = offers[..fitting(offers.iter(), bytes_max)].into();
        (Message::Estimate { ballot, decided, next, accepted, offers, busy: self.is_busy() }, after)
    }

    /// The own letter is heard when others may hear it.
    fn hear_own(&mut self, now: Time, effects: &mut Effects) {
        if let Some((letter, _)) = self.own.take_if(|(_, after)| *after <= self.durable) {
            let me = self.me();
            self.received.entry(self.round).or_default().insert(me, letter);
            self.go_on(now, effects);
        }
    }

    // Receiving.

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        if self.is_mute() || self.members().index(from).is_none() || from == self.me() {
            return;
        }
        match *message {
            Message::Ask { number } => {
                let last = self.rules.read_through(self.slots.last(), self.slots.decided());
                effects.send(from, Message::Told { number, last }, Lsn::ZERO);
                return;
            }
            Message::Told { number, last } => return self.told(from, number, last, effects),
            _ => {}
        }
        let Some(round) = message.round().filter(|round| round.0 < 1 << 62) else { return };
        self.heard_at.insert(from, now);
        self.note_decided(round, message.decided(), effects);
        if let Message::Acknowledgement { ballot, first, last, .. } = *message {
            // A vote counts whenever it comes. One of what is decided, or far ahead, costs nothing.
            let (least, ahead_max) = (self.slots.decided().next(), self.slots.options().accept_ahead_max());
            let most = Slot(least.0.saturating_add(ahead_max));
            for slot in (first.max(least).0..=last.min(most).0).map(Slot) {
                self.slots.vote(slot, ballot, from, effects);
            }
        }
        if round < self.round {
            // The sender is behind; letters of this round make it follow.
            return self.begin_if_resting(now, effects);
        }
        if round == self.round.next() && !self.rests {
            let elapsed = now.since(self.since);
            self.next_seen.get_or_insert(elapsed);
        }
        if self.rests {
            self.join(round, message);
        }
        self.received.entry(round).or_default().insert(from, message.clone());
        self.begin_if_resting(now, effects);
        self.go_on(now, effects);
    }

    /// A letter of this round, or of a higher one, ends the rest. A replica that has said nothing of that phase yet
    /// takes the coordinator that the letter names.
    fn join(&mut self, round: Round, message: &Message) {
        if round > self.round {
            self.heard_before = ReplicaSet::default();
            self.received = self.received.split_off(&round);
            self.enter(round);
        }
        let phase = self.round.phase(PHASE);
        let is_open = self.slots.promised().0.round < phase;
        if let Some(ballot) = message.ballot().filter(|ballot| is_open && ballot.round == phase) {
            self.coordinator = Some(ballot.replica);
        }
    }

    fn begin_if_resting(&mut self, now: Time, effects: &mut Effects) {
        if self.rests {
            self.begin(now, effects);
        }
    }

    /// The sender of a letter knows slots through this one to be decided, in its phase or in earlier ones. Where this
    /// replica accepted in a phase as late, it accepted what was decided.
    fn note_decided(&mut self, round: Round, decided: Slot, effects: &mut Effects) {
        let promised = self.slots.promised().0;
        let ballot = if round.phase(PHASE) <= promised.round { promised } else { Ballot::ZERO };
        self.slots.decide_through(decided, ballot, effects);
    }

    // Rounds.

    /// Ends rounds that are over.
    fn go_on(&mut self, now: Time, effects: &mut Effects) {
        while !self.rests && self.is_over(now) {
            self.end(now, effects);
            if !self.rests {
                self.begin(now, effects);
            }
        }
    }

    fn sight(&self) -> Sight<'_> {
        let letters = self.received.get(&self.round);
        Sight {
            rules: self.rules,
            members: self.members(),
            threshold: Threshold::Majority,
            round: self.round,
            place: self.place(),
            coordinator: self.coordinator,
            heard: self.members().those(|id| letters.is_some_and(|letters| letters.contains_key(&id))),
            heard_before: self.heard_before,
            highest: self.received.keys().next_back().copied(),
        }
    }

    fn is_over(&self, now: Time) -> bool {
        let sight = self.sight();
        let waited = Waited {
            elapsed: now.since(self.since),
            next_seen: self.next_seen,
            alive: self.alive(now),
            suspected: ReplicaSet::default(),
        };
        self.synchronisation.is_over(&sight, &waited)
    }

    /// The members that this round waits for: those that are alive, those heard in the round before, and after a rest
    /// the coordinator, if it is its turn.
    fn alive(&self, now: Time) -> ReplicaSet {
        let Synchronisation::Swift { alive, .. } = self.synchronisation else { return ReplicaSet::default() };
        let was_heard =
            |id| self.heard_at.get(&id).is_some_and(|&at| self.rules.is_alive(now.since(at), alive));
        let coordinator = self.coordinator.filter(|_| self.place() == 2 && self.is_first);
        let waits = |id| id == self.me() || was_heard(id) || Some(id) == coordinator;
        self.members().those(waits).union(self.heard_before)
    }

    /// Ends this round, and skips those before the highest of which there is a letter.
    fn end(&mut self, now: Time, effects: &mut Effects) {
        self.transition(effects);
        self.enter(self.round.next());
        while let Some(highest) = self.sight().highest.filter(|highest| *highest > self.round) {
            // A round without letters changes nothing but what a phase's beginning does.
            let skip_to = self.received.range(self.round..).next().map_or(highest, |(round, _)| *round);
            if skip_to > self.round {
                self.heard_before = ReplicaSet::default();
                self.enter(skip_to);
            } else {
                self.transition(effects);
                self.enter(self.round.next());
            }
        }
        let is_needed = self.is_busy() || self.rests_last_busy();
        self.rests = self.place() == 1 && !is_needed && !self.received.contains_key(&self.round);
        self.since = now;
    }

    /// Whether a letter of the round before this one said that something is still to be ordered.
    fn rests_last_busy(&self) -> bool {
        self.received.range(..self.round).any(|(_, letters)| letters.values().any(Message::is_busy))
    }

    fn transition(&mut self, effects: &mut Effects) {
        let letters = self.received.get(&self.round).cloned().unwrap_or_default();
        self.heard_before = self.members().those(|id| letters.contains_key(&id));
        match self.place() {
            1 => self.count_estimates(&letters),
            2 => self.accept_vote(&letters, effects),
            _ => {}
        }
        // The letters of the last round are kept while the next begins.
        self.received = self.received.split_off(&self.round);
    }

    /// Enters a round. With a phase begins what is counted in it, whatever the last one left (Santos E1).
    fn enter(&mut self, round: Round) {
        let is_new_phase = round.phase(PHASE) != self.round.phase(PHASE) || round.place(PHASE) == 1;
        self.round = round;
        self.next_seen = None;
        self.said.clear();
        self.own = None;
        if !is_new_phase {
            return;
        }
        if self.rules.forgets(true, false) {
            self.vote = None;
        }
        (self.accepted, self.is_first) = (None, false);
        let promised = self.slots.promised().0;
        let heard = self.heard_before;
        let lowest = self.members().ids().iter().find(|id| self.members().contains(heard, **id)).copied();
        self.coordinator = self.rules.elected(round, self.members(), lowest, self.coordinator);
        if promised.round == round.phase(PHASE) {
            // It was promised already, for what was learned.
            self.coordinator = Some(promised.replica);
        }
    }

    /// The coordinator adopts what a majority accepted, and fills the slots after it with what waits.
    fn count_estimates(&mut self, letters: &BTreeMap<ReplicaId, Message>) {
        let mut counted = ReplicaSet::default();
        let (mut floor, mut limit) = (self.slots.decided(), Slot(u64::MAX));
        let mut adopted: BTreeMap<Slot, (Ballot, Batch)> = BTreeMap::new();
        let mut waiting: Vec<VecDeque<Batch>> = Vec::new();
        for (from, letter) in letters {
            let Message::Estimate { ballot, decided, next, accepted, offers, .. } = letter else { continue };
            if !self.rules.counts_estimate(*ballot, self.ballot()) {
                continue;
            }
            counted = counted.union(self.members().only(*from));
            floor = floor.max(*decided);
            limit = limit.min(next.unwrap_or(limit));
            for AcceptedValue { slot, ballot, batch } in accepted {
                let held = adopted.get(slot).map(|(held, _)| held.round);
                if held.is_none_or(|held| self.rules.outranks(ballot.round, held)) {
                    adopted.insert(*slot, (*ballot, batch.clone()));
                }
            }
            waiting.push(offers.iter().cloned().collect());
        }
        let is_coordinator = self.coordinator == Some(self.me());
        if !is_coordinator || !self.rules.may_commit(self.members(), counted) {
            return;
        }
        let held: Vec<Batch> = adopted.values().map(|(_, batch)| batch.clone()).collect();
        let mut offers = in_turns(waiting).into_iter().filter(|offer| !held.contains(offer));
        let options = self.slots.options();
        let window = Slot(floor.0 + options.window_max as u64);
        let last = adopted.keys().next_back().copied().unwrap_or(floor);
        let mut batches = Vec::new();
        for slot in (floor.0 + 1..).map(Slot).take_while(|slot| *slot < limit) {
            let batch = match adopted.get(&slot) {
                Some((_, batch)) => Some(batch.clone()),
                None if slot <= last => Some(offers.next().unwrap_or_else(Batch::noop)),
                None if slot <= window => offers.next(),
                None => None,
            };
            let Some(batch) = batch else { break };
            batches.push(batch);
        }
        batches.truncate(fitting(batches.iter(), options.page_bytes_max));
        if !batches.is_empty() {
            self.vote = Some((floor.next(), batches.into()));
        }
    }

    /// Accepts what the coordinator of this phase voted for.
    fn accept_vote(&mut self, letters: &BTreeMap<ReplicaId, Message>, effects: &mut Effects) {
        let Some(coordinator) = self.coordinator else { return };
        let Some(Message::Vote { ballot, first, batches, .. }) = letters.get(&coordinator) else { return };
        // A replica that has learned what a higher ballot decided acts in this one no more.
        if *ballot != self.ballot() || self.slots.promised().0 != *ballot {
            return;
        }
        for (slot, batch) in (first.0..).map(Slot).zip(batches.iter()) {
            let Some(lsn) = self.slots.accept(slot, batch, effects) else { break };
            let from = self.accepted.map_or(slot, |(from, ..)| from);
            self.accepted = Some((from, slot, lsn));
        }
    }

    // Reads.

    /// What is decided was accepted by a majority, and one of any majority says so: a read waits for the highest slot
    /// in which any of these accepted something, and not only for what is known to be decided.
    fn read_index(&mut self, now: Time, token: ReadToken, effects: &mut Effects) {
        if self.is_mute() || self.reads.len() >= READS_MAX {
            effects.push(Effect::ReadIndex { token, slot: None });
            return;
        }
        self.reads_asked += 1;
        let number = self.reads_asked;
        self.reads.push_back(Read { number, token, told: ReplicaSet::default(), last: Slot::ZERO });
        self.asked_at = now;
        effects.send(self.members().to_peers(), Message::Ask { number }, Lsn::ZERO);
        let last = self.rules.read_through(self.slots.last(), self.slots.decided());
        self.told(self.me(), number, last, effects);
    }

    fn told(&mut self, from: ReplicaId, number: u64, last: Slot, effects: &mut Effects) {
        let members = self.slots.members();
        self.there = self.there.union(members.only(from));
        let Some(at) = self.reads.iter().position(|read| read.number == number) else { return };
        let read = &mut self.reads[at];
        (read.told, read.last) = (read.told.union(members.only(from)), read.last.max(last));
        if members.is_quorum(read.told) {
            effects.push(Effect::ReadIndex { token: read.token, slot: Some(read.last) });
            self.reads.remove(at);
        }
    }

    // Time.

    fn wakes_at(&self) -> Time {
        if self.is_mute() {
            return Time::NEVER;
        }
        let Synchronisation::Swift { round, next, .. } = self.synchronisation else { return Time::NEVER };
        let ends = self.since + self.rules.patience(self.next_seen, next, round);
        let asks = self.asked_at + self.slots.options().retransmit_after;
        let rounds = if self.rests { Time::NEVER } else { ends };
        rounds.min(if self.reads.is_empty() { Time::NEVER } else { asks })
    }

    fn on_timer(&mut self, now: Time, effects: &mut Effects) {
        self.go_on(now, effects);
        if !self.reads.is_empty() && now >= self.asked_at + self.slots.options().retransmit_after {
            self.asked_at = now;
            for read in &self.reads {
                effects.send(self.members().to_peers(), Message::Ask { number: read.number }, Lsn::ZERO);
            }
        }
    }

    /// Batches that were delivered wait no more.
    fn drop_delivered(&mut self, mark: usize, effects: &mut Effects) {
        for effect in effects.split_off(mark) {
            if let Effect::Deliver { batch, .. } = &effect {
                self.offers.retain(|offer| offer != batch);
            }
            effects.push(effect);
        }
    }
}

/// What waits at several replicas, in turns.
fn in_turns(mut waiting: Vec<VecDeque<Batch>>) -> Vec<Batch> {
    let mut all = Vec::new();
    while waiting.iter().any(|batches| !batches.is_empty()) {
        all.extend(waiting.iter_mut().filter_map(VecDeque::pop_front));
    }
    all
}

impl Protocol for RoundsLog {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let mark = effects.mark();
        match input {
            Input::Receive { from, message } => {
                if let Some(message) = message.outside() {
                    self.receive(now, from, message, effects);
                }
            }
            Input::Propose { batch, .. } if self.room() > 0 => {
                self.offers.push_back(batch);
                self.begin_if_resting(now, effects);
            }
            Input::Durable(lsn) => {
                self.durable = self.durable.max(lsn);
                self.slots.durable(lsn, effects);
                self.hear_own(now, effects);
            }
            Input::Link { peer, link } if link.begins_again() => {
                let without = |set| self.members().those(|id| id != peer && self.members().contains(set, id));
                (self.down, self.there) = (without(self.down), without(self.there));
                if !self.is_mute() {
                    effects.send(peer, Message::Ask { number: 0 }, Lsn::ZERO);
                }
                let after = self.accepted.map_or(Lsn::ZERO, |(.., lsn)| lsn).max(self.slots.promised().1);
                let again = self.said.iter().filter(|(to, _)| *to == peer && !self.rests);
                again.for_each(|(to, message)| effects.send(*to, message.clone(), after));
            }
            Input::Link { peer, link } => {
                let without = |set| self.members().those(|id| id != peer && self.members().contains(set, id));
                (self.down, self.there) = (self.down.union(self.members().only(peer)), without(self.there));
                if link == Link::Refused {
                    self.heard_at.remove(&peer);
                }
            }
            Input::Timer => self.on_timer(now, effects),
            Input::Control(Control::ReadIndex(token)) => self.read_index(now, token, effects),
            Input::Control(control) => {
                self.slots.control(control, effects);
                if self.is_busy() {
                    self.begin_if_resting(now, effects);
                }
            }
            Input::Propose { .. } => {}
        }
        self.drop_delivered(mark, effects);
    }

    fn promised(&self) -> Ballot {
        self.slots.promised().0
    }

    /// Goes on in the phase of a ballot in which something was decided, or in the next one if it takes another member
    /// for that phase's coordinator.
    fn promise(&mut self, _: Time, ballot: Ballot, effects: &mut Effects) {
        let is_of_another = self.slots.promised().0.round == ballot.round;
        let ballot = Ballot { round: ballot.round + u64::from(is_of_another), ..ballot };
        self.slots.promise(ballot, effects);
        let round = Round(ballot.round * PHASE + 1 - PHASE);
        if round >= self.round {
            self.heard_before = ReplicaSet::default();
            self.received = self.received.split_off(&round);
            self.enter(round);
            self.rests = true;
        }
    }

    fn options(&self) -> &Options {
        self.slots.options()
    }

    fn flush(&mut self, _: Time, effects: &mut Effects) {
        effects.push(Effect::Deadline(self.wakes_at()));
    }

    fn room(&self) -> usize {
        if self.is_mute() || self.slots.is_congested() {
            return 0;
        }
        self.slots.options().window_max.saturating_sub(self.offers.len())
    }

    fn route(&self) -> Route {
        if self.is_mute() { Route::Nowhere } else { Route::Here }
    }

    /// The last coordinator, or another while there is no session to it: nobody hears of a replica that falls silent
    /// while all rest.
    fn caretaker(&self) -> Option<ReplicaId> {
        let is_up = |id: &ReplicaId| !self.members().contains(self.down, *id);
        self.coordinator.filter(is_up).or_else(|| self.members().ids().iter().copied().find(is_up))
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        self.slots.accepted_from(Slot::ZERO).for_each(|(_, _, batch, _)| see(batch));
        self.offers.iter().for_each(see);
    }

    fn is_congested(&self) -> bool {
        self.slots.is_congested()
    }

    fn status(&self) -> Status {
        let status = self.slots.status();
        Status { view: self.view(), in_flight: self.offers.len(), waits_for_disk: true, ..status }
    }

    /// Where nothing is ordered no letter comes; a replica without memory answers no question.
    fn answers(&self, _: Time, voter: ReplicaId) -> bool {
        self.members().contains(self.there, voter)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
