//! A log in rounds: one stream of rounds orders all slots by LastVoting (Santos 2012, Algorithms 4.1, 4.2, 5.1 and
//! 5.4). Every replica proposes, and the coordinator of a phase says only in which order. `log/thirds.rs` does the same
//! by OneThirdRule, without a coordinator.
//!
//! A phase φ with its coordinator is the ballot (φ, coordinator). What a round says is what Paxos says of that ballot:
//!
//! | round of a phase | letter | in Paxos |
//! | --- | --- | --- |
//! | 1 | `Estimate`, to the coordinator: what is accepted and not decided, and which batches wait | promise |
//! | 2 | `Vote`, from the coordinator: batches for slots | proposal |
//! | 3 | `Acknowledgement`, to all | vote |
//!
//! Of four rounds, the third is for the coordinator alone, and the fourth says how far decisions go.
//!
//! In each round a replica sends a letter to every other one, with nothing in it if it has nothing to say. The replicas
//! rest where nothing waits, each before the first round of a phase, and a letter wakes them.
//!
//! Nothing is said before it is durable: a phase is promised before any letter of it leaves, and a restart goes on in a
//! later one. A replica that lost its log says nothing more in its epoch, not even an empty letter.

mod reads;
mod rest;
mod thirds;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use synod_wire::{Ballot, Batch, Incarnation, Lsn, ReplicaId, Slot, Time};

use self::reads::Read;
use super::{
    Message, Round, RoundsAlgorithm, Synchronisation,
    pace::Pace,
    profile::{letter_bytes_max, promised_delay, synchronisation},
    rules::Rules,
    synchronisation::{Sight, Waited},
};
use crate::{
    Control, Effect, Effects, Input, LeaderView, Link, Members, Options, Protocol, ReplicaSet, Restart, Role,
    Route, SlotAcceptor, Status, Threshold,
    acceptor::AcceptedValue,
    batches::{Batches, fitting},
    slot_acceptor::RecordsOf,
};

/// Bytes that an accepted value takes in an estimate besides those of its batch.
const ACCEPTED_OVERHEAD_BYTES: usize = 32;

/// One replica.
#[derive(Clone, Debug)]
pub struct RoundsLog {
    /// What it promised and accepted, and what is decided.
    slots: SlotAcceptor,
    rules: &'static Rules,
    /// Rounds of a phase.
    rounds: u64,
    /// Batches of this replica's clients that are not delivered.
    offers: VecDeque<Batch>,
    /// Those that were voted for in slots which are too far ahead for this replica: the others order them.
    refused: Vec<Batch>,
    /// What was delivered through this slot does not wait any more.
    dropped_through: Slot,
    round: Round,
    coordinator: Option<ReplicaId>,
    /// Nothing of this round was sent, and nothing is waited for.
    rests: bool,
    /// The phase began after a rest, when nobody had been heard for long.
    is_first: bool,
    /// When the own letters of this round left.
    since: Time,
    next_seen: Option<Duration>,
    pace: Pace,
    received: BTreeMap<Round, BTreeMap<ReplicaId, Message>>,
    heard_before: ReplicaSet,
    heard_at: BTreeMap<ReplicaId, Time>,
    /// The members of which a letter came in this phase, if one of an earlier round.
    spoke: ReplicaSet,
    /// The members to which there is no session, and those that have spoken in the session that there is.
    down: ReplicaSet,
    there: ReplicaSet,
    /// Slots through which the members know all to be decided, as they said in the session that there is.
    tells_decided: BTreeMap<ReplicaId, Slot>,
    /// Where commands go.
    route: Route,
    /// What was sent in this round, for a session that begins; and the own letter, which counts once it is durable.
    said: Vec<(ReplicaId, Message)>,
    /// The record on which that rests.
    said_after: Lsn,
    own: Option<(Message, Lsn)>,
    durable: Lsn,
    /// The coordinator's vote of this phase.
    vote: Option<(Slot, Batches)>,
    /// The slots accepted in this phase, with the record of the last.
    accepted: Option<(Slot, Slot, Lsn)>,
    reads: VecDeque<Read>,
    /// Reads count from 0 in each life, whose name goes with them.
    reads_asked: u64,
    life: Incarnation,
    asked_at: Time,
}

impl RoundsLog {
    pub(super) fn start(
        options: Options,
        members: Members,
        restart: &Restart,
        rules: &'static Rules,
        now: Time,
        effects: &mut Effects,
    ) -> RoundsLog {
        let algorithm = options.rounds.algorithm;
        let (promised, rounds) = (promised_delay(&options), algorithm.phase());
        let mut slots = SlotAcceptor::start_of(RecordsOf::Rounds, options, members, restart, effects);
        let known = restart.base_ballots.decided;
        if known > slots.promised().0 {
            // A snapshot was durable before the promise that came first. The first letter names what the snapshot
            // holds as decided, so it is of a later phase.
            slots.promise(known, effects);
        }
        let round = first_of(rules.resumes_in(slots.promised().0), rounds);
        let slots_decided = slots.decided();
        let mut replica = RoundsLog {
            slots,
            rules,
            rounds,
            offers: VecDeque::new(),
            refused: Vec::new(),
            dropped_through: slots_decided,
            round,
            coordinator: None,
            rests: true,
            is_first: true,
            since: now,
            next_seen: None,
            pace: Pace::new(promised, algorithm.failures_max(), slots_decided),
            received: BTreeMap::new(),
            heard_before: ReplicaSet::default(),
            heard_at: BTreeMap::new(),
            spoke: ReplicaSet::default(),
            down: ReplicaSet::default(),
            there: ReplicaSet::default(),
            tells_decided: BTreeMap::new(),
            route: Route::Nowhere,
            said: Vec::new(),
            said_after: Lsn::ZERO,
            own: None,
            durable: effects.last_lsn(),
            vote: None,
            accepted: None,
            reads: VecDeque::new(),
            reads_asked: 0,
            life: restart.incarnation,
            asked_at: now,
        };
        replica.coordinator = Some(replica.members().ids()[0]);
        replica.enter(round);
        replica.route = replica.routed();
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

    /// Nobody leads. Before anything is promised the ballot says whose view it is, so that none is taken for the one
    /// with which an epoch begins.
    fn view(&self) -> LeaderView {
        let first = Ballot { round: 0, replica: self.me() };
        LeaderView { ballot: self.slots.promised().0.max(first), leader: None }
    }

    /// Nobody coordinates, and more than two thirds of the members decide.
    fn is_one_third_rule(&self) -> bool {
        self.slots.options().rounds.algorithm == RoundsAlgorithm::OneThirdRule
    }

    /// How many members decide.
    fn threshold(&self) -> Threshold {
        self.slots.options().threshold()
    }

    fn place(&self) -> u64 {
        self.round.place(self.rounds)
    }

    fn phase(&self) -> u64 {
        self.round.phase(self.rounds)
    }

    /// The ballot of this phase.
    fn ballot(&self) -> Ballot {
        Ballot { round: self.phase(), replica: self.coordinator.unwrap_or_default() }
    }

    /// The letter of this round without anything in it.
    fn here(&self, busy: bool) -> Message {
        let place = u8::try_from(self.place()).expect("a phase is short");
        Message::Here {
            phase: self.phase(),
            place,
            decided: self.slots.decided(),
            busy,
            delay_micros: self.pace.micros(),
        }
    }

    fn is_mute(&self) -> bool {
        !self.rules.may_speak(self.slots.role() == Role::Recovering)
    }

    // Sending.

    /// Sends the letters of this round.
    fn begin(&mut self, now: Time, effects: &mut Effects) {
        if self.is_mute() {
            return;
        }
        self.drop_delivered(effects);
        self.is_first |= self.rests;
        (self.rests, self.since, self.next_seen) = (false, now, None);
        if self.slots.promised().0 < self.ballot() {
            self.slots.promise(self.ballot(), effects);
        }
        let here = self.here(self.has_more());
        let (letter, record) = self.letter(&here);
        let after = self.rules.leaves_after(record);
        // Of four rounds the third is heard by the coordinator alone.
        let is_for_all = match letter {
            Message::Estimate { .. } => false,
            Message::Acknowledgement { .. } => self.rounds == 3,
            _ => true,
        };
        let is_for = |id| is_for_all || self.rules.is_addressed(id, self.coordinator);
        let said = |&id| (id, if is_for(id) { letter.clone() } else { here.clone() });
        self.said = self.members().ids().iter().map(said).collect();
        self.said_after = after;
        let me = self.me();
        if is_for_all {
            effects.send(self.members().to_peers(), letter, after);
        } else {
            for (to, message) in self.said.iter().filter(|(to, _)| *to != me) {
                effects.send(*to, message.clone(), after);
            }
        }
        let own = self.said.iter().find(|(to, _)| *to == me).map(|(_, message)| message.clone());
        self.own = own.map(|own| (own, after));
        self.hear_own(now, effects);
    }

    /// What this replica says in this round, which is `here` if it has nothing to say, and the record that has to be
    /// durable first. Nothing of a phase is said before the phase is promised.
    fn letter(&self, here: &Message) -> (Message, Lsn) {
        let (ballot, decided, busy) = (self.ballot(), self.slots.decided(), here.is_busy());
        let delay_micros = self.pace.micros();
        let promised_lsn = self.slots.promised().1;
        match self.place() {
            1 if self.is_one_third_rule() => self.values(promised_lsn),
            1 => {
                let (accepted, next, offers, after) = self.page(promised_lsn);
                let busy = self.is_busy();
                (Message::Estimate { ballot, decided, next, accepted, offers, busy, delay_micros }, after)
            }
            2 => match &self.vote {
                Some((first, batches)) => {
                    let (first, batches) = (*first, batches.clone());
                    (Message::Vote { ballot, first, decided, batches, delay_micros }, promised_lsn)
                }
                None => (here.clone(), promised_lsn),
            },
            3 => match self.accepted {
                Some((first, last, lsn)) => {
                    let letter =
                        Message::Acknowledgement { ballot, first, last, decided, busy, delay_micros };
                    (letter, lsn.max(promised_lsn))
                }
                None => (here.clone(), promised_lsn),
            },
            _ => (here.clone(), promised_lsn),
        }
    }

    /// What is accepted and not decided, the first slot of which that is not said, and of what waits as much as fits;
    /// with the record on which all that rests.
    fn page(&self, promised_lsn: Lsn) -> (Vec<AcceptedValue>, Option<Slot>, Batches, Lsn) {
        let decided = self.slots.decided();
        let bytes_max = letter_bytes_max(self.slots.options());
        let (mut accepted, mut next, mut bytes, mut after) = (Vec::new(), None, 0, promised_lsn);
        for (slot, ballot, batch, lsn) in self.slots.accepted_from(decided.next()) {
            if bytes > 0 && bytes + batch.bytes().len() > bytes_max {
                next = Some(slot);
                break;
            }
            bytes += batch.bytes().len() + ACCEPTED_OVERHEAD_BYTES;
            accepted.push(AcceptedValue { slot, ballot, batch: batch.clone() });
            after = after.max(lsn);
        }
        let waits = |offer: &&Batch| self.waits(decided.next(), offer);
        let mut offers: Vec<Batch> = self.offers.iter().filter(waits).cloned().collect();
        // One always leaves, unless something leaves before it.
        let room = bytes_max.saturating_sub(bytes);
        let is_first_too_large = offers.first().is_some_and(|first| first.bytes().len() > room);
        let count = if bytes > 0 && is_first_too_large { 0 } else { fitting(offers.iter(), room) };
        offers.truncate(count);
        (accepted, next, offers.into(), after)
    }

    /// The own letter is heard when others may hear it.
    fn hear_own(&mut self, now: Time, effects: &mut Effects) {
        if let Some((letter, _)) = self.own.take_if(|(_, after)| *after <= self.durable) {
            self.since = now;
            let me = self.me();
            self.received.entry(self.round).or_default().insert(me, letter);
            self.go_on(now, effects);
        }
    }

    // Receiving.

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        if self.members().index(from).is_none() || from == self.me() {
            return;
        }
        // Whichever member speaks remembers, and takes commands.
        self.there = self.there.union(self.members().only(from));
        if self.is_mute() {
            // It asks the others for what it hears to be decided: what it accepted may be of any ballot.
            self.slots.decide_through(message.decided(), Ballot::ZERO, effects);
            return self.reroute(effects);
        }
        match *message {
            Message::Ask { life, number } => return self.asked(from, life, number, effects),
            Message::Told { life, number, last } => return self.told(now, from, life, number, last, effects),
            _ => {}
        }
        let Some(round) = message.round(self.rounds) else { return };
        self.heard_at.insert(from, now);
        self.spoke = self.spoke.union(self.members().only(from));
        message.delay().into_iter().for_each(|(phase, micros)| self.pace.hear(phase, micros));
        self.note_decided(from, round, message.decided(), effects);
        if let Message::Acknowledgement { ballot, first, last, .. } = *message {
            // A vote counts whenever it comes. One of what is decided, or far ahead, costs nothing.
            let (least, ahead_max) = (self.slots.decided().next(), self.slots.options().accept_ahead_max());
            let most = Slot(least.0.saturating_add(ahead_max));
            for slot in (first.max(least).0..=last.min(most).0).map(Slot) {
                self.slots.vote(slot, ballot, from, effects);
            }
        }
        if round < self.round {
            // The sender is behind; letters of this round make it follow. If it has nothing to order and lacks nothing,
            // its letter is late, and its phase ends by itself: on a slow link each phase would wake the next one.
            if message.is_busy() || message.decided() != self.slots.decided() {
                self.begin_if_resting(now, effects);
            }
            return;
        }
        if round == self.round.next() && !self.rests {
            let elapsed = self.elapsed(now);
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
        let phase = self.phase();
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

    // Sessions.

    fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        let others = self.members().those(|id| id != peer);
        // It may be gone, or another life that knows less.
        self.tells_decided.remove(&peer);
        self.there = self.there.intersection(others);
        if link.begins_again() {
            self.down = self.down.intersection(others);
            if !self.is_mute() {
                effects.send(peer, self.ask(0), Lsn::ZERO);
            }
            let after = self.said_after;
            let again = self.said.iter().filter(|(to, _)| *to == peer && !self.rests);
            again.for_each(|(to, message)| effects.send(*to, message.clone(), after));
        } else {
            self.down = self.down.union(self.members().only(peer));
            if link == Link::Refused {
                self.heard_at.remove(&peer);
            }
        }
        self.reroute(effects);
        if self.is_busy() {
            self.begin_if_resting(now, effects);
        }
    }

    /// A replica takes commands while it has sessions to a quorum. One without memory sends them to another, if it
    /// knows any to one that speaks.
    fn routed(&self) -> Route {
        let members = self.members();
        let is_up = |id| !members.contains(self.down, id);
        if !self.is_mute() {
            let is_quorum = members.is_quorum_of(self.threshold(), members.those(is_up));
            return if is_quorum { Route::Here } else { Route::Nowhere };
        }
        let others = || members.peers().filter(|&id| is_up(id));
        let other = others().find(|&id| members.contains(self.there, id)).or_else(|| others().next());
        other.map_or(Route::Nowhere, Route::To)
    }

    fn reroute(&mut self, effects: &mut Effects) {
        let route = self.routed();
        if route != self.route {
            self.route = route;
            effects.push(Effect::Leader(self.view()));
        }
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
            threshold: self.threshold(),
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
            elapsed: self.elapsed(now),
            least: self.pause(),
            next_seen: self.next_seen,
            alive: self.alive(now),
            suspected: ReplicaSet::default(),
        };
        self.synchronisation().is_over(&sight, &waited)
    }

    /// A round lasts from when its own letters have left: what the disk takes is no part of a time-out.
    fn elapsed(&self, now: Time) -> Duration {
        if self.own.is_some() { Duration::ZERO } else { now.since(self.since) }
    }

    /// A phase after some that decided nothing does not go on at once, though the letters of its first round are there.
    fn pause(&self) -> Duration {
        if self.place() == 1 { self.pace.pause() } else { Duration::ZERO }
    }

    fn synchronisation(&self) -> Synchronisation {
        let kind = self.slots.options().rounds.rounds;
        synchronisation(kind, self.members().count(), self.pace.delay())
    }

    /// The members that this round waits for: those that are alive, those heard in the round before, and after a rest
    /// the coordinator, if it is its turn.
    fn alive(&self, now: Time) -> ReplicaSet {
        let Synchronisation::Swift { alive, .. } = self.synchronisation() else {
            return ReplicaSet::default();
        };
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
        self.drop_delivered(effects);
        let is_needed = self.is_busy() || self.rests_last_busy();
        if self.place() == 1 {
            let hears_enough =
                self.members().is_quorum_of(self.threshold(), self.spoke.union(self.heard_before));
            self.pace.begins(self.phase(), self.decided_by_others(), is_needed, hears_enough);
            self.spoke = self.members().only(self.me());
        }
        self.rests = self.place() == 1 && !is_needed && !self.received.contains_key(&self.round);
        self.since = now;
    }

    fn transition(&mut self, effects: &mut Effects) {
        let letters = self.received.get(&self.round).cloned().unwrap_or_default();
        self.heard_before = self.members().those(|id| letters.contains_key(&id));
        match self.place() {
            1 if self.is_one_third_rule() => self.count_values(&letters, effects),
            1 => self.count_estimates(&letters),
            2 => self.accept_vote(&letters, effects),
            _ => {}
        }
        // The letters of the last round are kept while the next begins.
        self.received = self.received.split_off(&self.round);
    }

    /// Enters a round. With a phase begins what is counted in it, whatever the last one left (Santos E1).
    fn enter(&mut self, round: Round) {
        let is_new_phase = round.phase(self.rounds) != self.phase() || round.place(self.rounds) == 1;
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
        if promised.round == round.phase(self.rounds) {
            // It was promised already, for what was learned.
            self.coordinator = Some(promised.replica);
        }
        if self.is_one_third_rule() {
            self.coordinator = self.members().ids().first().copied();
        }
    }

    /// The coordinator adopts what a majority accepted, and fills the slots after it with what waits. An estimate that
    /// is a page speaks of the slots before its end alone: it counts for these, and not for others.
    fn count_estimates(&mut self, letters: &BTreeMap<ReplicaId, Message>) {
        let mut ends: BTreeMap<ReplicaId, Option<Slot>> = BTreeMap::new();
        let mut floor = self.slots.decided();
        let mut adopted: BTreeMap<Slot, (Ballot, Batch)> = BTreeMap::new();
        let mut waiting: Vec<(ReplicaId, VecDeque<Batch>)> = Vec::new();
        for (from, letter) in letters {
            let Message::Estimate { ballot, decided, next, accepted, offers, .. } = letter else { continue };
            if !self.rules.counts_estimate(*ballot, self.ballot()) {
                continue;
            }
            ends.insert(*from, *next);
            floor = floor.max(*decided);
            for AcceptedValue { slot, ballot, batch } in accepted {
                let held = adopted.get(slot).map(|(held, _)| held.round);
                if held.is_none_or(|held| self.rules.outranks(ballot.round, held)) {
                    adopted.insert(*slot, (*ballot, batch.clone()));
                }
            }
            waiting.push((*from, offers.iter().cloned().collect()));
        }
        if self.coordinator == Some(self.me()) {
            let waiting = self.taking_turns(waiting);
            let batches = self.batches_for(floor, &ends, &adopted, waiting);
            if !batches.is_empty() {
                self.vote = Some((floor.next(), batches));
            }
        }
    }

    /// What the coordinator proposes for the slots after the decided ones: as far as a majority of estimates speaks of
    /// them, what was accepted, and then what waits.
    fn batches_for(
        &self,
        floor: Slot,
        ends: &BTreeMap<ReplicaId, Option<Slot>>,
        adopted: &BTreeMap<Slot, (Ballot, Batch)>,
        waiting: Vec<VecDeque<Batch>>,
    ) -> Batches {
        let speaks_of = |id, slot| ends.get(&id).is_some_and(|end| end.is_none_or(|end| slot < end));
        let is_known = |slot: &Slot| {
            self.rules.may_commit(self.members(), self.members().those(|id| speaks_of(id, *slot)))
        };
        let is_held = |offer: &Batch| adopted.values().any(|(_, batch)| batch == offer);
        let mut offers = in_turns(waiting).into_iter().filter(|offer| !is_held(offer));
        let window = Slot(floor.0.saturating_add(self.window()));
        let last = adopted.keys().next_back().copied().unwrap_or(floor);
        let mut batches = Vec::new();
        // Nobody accepts slots that are further ahead, whatever an estimate names.
        let most = floor.0.saturating_add(self.slots.options().accept_ahead_max());
        for slot in (floor.0 + 1..=most).map(Slot).take_while(is_known) {
            let batch = match adopted.get(&slot) {
                Some((_, batch)) => Some(batch.clone()),
                None if slot <= last => Some(offers.next().unwrap_or_else(Batch::noop)),
                None if slot <= window => offers.next(),
                None => None,
            };
            let Some(batch) = batch else { break };
            batches.push(batch);
        }
        batches.truncate(fitting(batches.iter(), letter_bytes_max(self.slots.options())));
        batches.into()
    }

    /// How many slots after the decided ones a phase fills: the window of each member, since each proposes, but no
    /// more than half of what a replica accepts that is behind.
    fn window(&self) -> u64 {
        let options = self.slots.options();
        (options.window_max as u64 * self.members().count() as u64).min(options.accept_ahead_max() / 2)
    }

    /// Each member is the first in turn in one of as many phases, so that none waits while the others have more.
    fn taking_turns(&self, mut waiting: Vec<(ReplicaId, VecDeque<Batch>)>) -> Vec<VecDeque<Batch>> {
        let count = self.members().count() as u64;
        let first = self.phase() % count;
        let turn = |id| self.members().index(id).map(|index| (index as u64 + count - first) % count);
        waiting.sort_by_key(|(id, _)| turn(*id));
        waiting.into_iter().map(|(_, offers)| offers).collect()
    }

    /// Accepts what the coordinator of this phase voted for.
    fn accept_vote(&mut self, letters: &BTreeMap<ReplicaId, Message>, effects: &mut Effects) {
        let Some(coordinator) = self.coordinator else { return };
        let Some(Message::Vote { ballot, first, batches, .. }) = letters.get(&coordinator) else { return };
        // A replica that has learned what a higher ballot decided acts in this one no more.
        if *ballot != self.ballot() || self.slots.promised().0 != *ballot {
            return;
        }
        for (place, (slot, batch)) in (first.0..).map(Slot).zip(batches.iter()).enumerate() {
            let Some(lsn) = self.slots.accept(slot, batch, effects) else {
                batches.iter().skip(place).for_each(|batch| self.refuse(batch));
                break;
            };
            // A slot that was learned before has an older record than those before it.
            let (from, latest) = self.accepted.map_or((slot, lsn), |(from, _, latest)| (from, latest));
            self.accepted = Some((from, slot, lsn.max(latest)));
        }
    }

    // Time.

    fn wakes_at(&self, now: Time) -> Time {
        if self.is_mute() {
            return Time::NEVER;
        }
        let lasts = match self.synchronisation() {
            Synchronisation::Swift { round, next, .. } => self.rules.patience(self.next_seen, next, round),
            Synchronisation::Full { round } => round,
            _ => unreachable!("a log runs in swift rounds or in timed ones"),
        };
        let pause = self.pause();
        let ends = self.since + if self.elapsed(now) < pause { pause.min(lasts) } else { lasts };
        let rounds = if self.rests || self.own.is_some() { Time::NEVER } else { ends };
        rounds.min(self.asks_again_at())
    }

    fn on_timer(&mut self, now: Time, effects: &mut Effects) {
        self.go_on(now, effects);
        self.ask_again(now, effects);
    }

    /// Batches that were delivered wait no more. A letter that still named them would have them ordered again.
    fn drop_delivered(&mut self, effects: &mut Effects) {
        if self.dropped_through == self.slots.decided() {
            return;
        }
        self.dropped_through = self.slots.decided();
        for effect in effects.split_off(0) {
            if let Effect::Deliver { batch, .. } = &effect {
                self.offers.retain(|offer| offer != batch);
            }
            effects.push(effect);
        }
    }
}

/// The first round of a phase.
fn first_of(phase: u64, rounds: u64) -> Round {
    Round((phase - 1) * rounds + 1)
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
        match input {
            Input::Receive { from, message } => {
                if let crate::Message::Rounds(message) = message {
                    self.receive(now, from, &message, effects);
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
                if self.is_busy() {
                    self.begin_if_resting(now, effects);
                }
            }
            Input::Link { peer, link } => self.link(now, peer, link, effects),
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
        self.drop_delivered(effects);
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
        let round = first_of(ballot.round, self.rounds);
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

    fn flush(&mut self, now: Time, effects: &mut Effects) {
        effects.push(Effect::Deadline(self.wakes_at(now)));
    }

    fn room(&self) -> usize {
        if self.route != Route::Here || self.slots.is_congested() {
            return 0;
        }
        self.slots.options().window_max.saturating_sub(self.offers.len())
    }

    fn route(&self) -> Route {
        self.route
    }

    /// The last coordinator, or another while that does not answer: nobody hears of a replica that falls silent, or has
    /// lost its memory, while all rest.
    fn caretaker(&self) -> Option<ReplicaId> {
        if self.is_mute() {
            return if let Route::To(other) = self.route { Some(other) } else { None };
        }
        let is_there = |id: &ReplicaId| *id == self.me() || self.members().contains(self.there, *id);
        self.coordinator.filter(is_there).or_else(|| self.members().ids().iter().copied().find(is_there))
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
