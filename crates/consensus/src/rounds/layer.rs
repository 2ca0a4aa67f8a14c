//! The layer that makes rounds (Santos 2012, Algorithm 4.3, with Algorithms 5.1 and 5.4): one stream of rounds carries
//! all instances of an algorithm.
//!
//! The caller of a [`Layer`]
//!
//! 1. calls [`Layer::begin`] at the start and after each round that has ended, when it has proposed what there is to
//!    propose: the state of an instance is what the letters of the round are made of;
//! 2. takes letters from [`Layer::next_letter`] until there is none, since a time-out counts from the last;
//! 3. gives [`Layer::receive`] all that has arrived, also when a time-out ends: what has arrived counts before the
//!    time-out does (section 4.4), or rounds would not be uniform.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use synod_wire::{ReplicaId, Slot, Time};

use super::{
    Algorithm, At, Round, Synchronisation,
    rules::Rules,
    synchronisation::{Destination, Received, Sight, Waited},
};
use crate::{Members, ReplicaSet};

/// Rounds are lower: a letter of a higher one is no replica's, and would leave no round to go on in.
const ROUND_MAX: Round = Round(1 << 62);

/// What one replica sends another in a round. A letter in which nothing is said still tells that its sender is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter<M> {
    /// The round.
    pub round: Round,
    /// What is said of each instance, in ascending order.
    pub said: Vec<(Slot, M)>,
}

/// A round that a replica has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The round.
    pub round: Round,
    /// The members whose letters of this round were received (`HO(p, r)`).
    pub heard: ReplicaSet,
    /// The coordinator (`Coord(p, φ)`).
    pub coordinator: Option<ReplicaId>,
    /// The round was skipped: nothing was sent in it.
    pub is_skipped: bool,
}

/// One instance of consensus.
#[derive(Clone, Debug)]
struct Instance<A: Algorithm> {
    state: A::State,
    is_decided: bool,
}

/// A replica's rounds.
#[derive(Debug)]
pub struct Layer<A: Algorithm> {
    algorithm: A,
    members: Members,
    synchronisation: Synchronisation,
    rules: Rules,
    round: Round,
    coordinator: Option<ReplicaId>,
    instances: BTreeMap<Slot, Instance<A>>,
    received: Received<A::Message>,
    /// The members heard in the round before this one.
    heard_before: ReplicaSet,
    /// When each member was last heard, in any round.
    heard_at: BTreeMap<ReplicaId, Time>,
    suspected: ReplicaSet,
    letters: VecDeque<(ReplicaId, Letter<A::Message>)>,
    /// Since when the round waits: the last letter was sent then.
    since: Option<Time>,
    next_seen: Option<Duration>,
    ended: Vec<Ended>,
    decided: Vec<(Slot, A::Value)>,
}

impl<A: Algorithm> Layer<A> {
    /// A replica before its first round.
    #[must_use]
    pub fn new(algorithm: A, members: Members, synchronisation: Synchronisation) -> Layer<A> {
        Layer::with_rules(algorithm, members, synchronisation, Rules::SOUND)
    }

    pub(super) fn with_rules(
        algorithm: A,
        members: Members,
        synchronisation: Synchronisation,
        rules: Rules,
    ) -> Layer<A> {
        let mut layer = Layer {
            algorithm,
            members,
            synchronisation,
            rules,
            round: Round(1),
            coordinator: None,
            instances: BTreeMap::new(),
            received: BTreeMap::new(),
            heard_before: ReplicaSet::default(),
            heard_at: BTreeMap::new(),
            suspected: ReplicaSet::default(),
            letters: VecDeque::new(),
            since: None,
            next_seen: None,
            ended: Vec::new(),
            decided: Vec::new(),
        };
        layer.elect();
        layer
    }

    /// The round that this replica is in.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// The rounds of a phase.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.algorithm.rounds()
    }

    /// Proposes a value in an instance. It is said from the next [`Layer::begin`] on.
    pub fn propose(&mut self, instance: Slot, value: A::Value) {
        let begin = || Instance { state: self.algorithm.begin(value), is_decided: false };
        self.instances.entry(instance).or_insert_with(begin);
    }

    /// Forgets the instances through this one, of which nothing more is said.
    pub fn forget(&mut self, through: Slot) {
        self.instances = self.instances.split_off(&Slot(through.0 + 1));
    }

    /// The members that a detector of failures suspects from now on.
    pub fn suspect(&mut self, suspected: ReplicaSet) {
        self.suspected = suspected;
    }

    /// Sends the letters of this round. What is for this replica is received at once.
    pub fn begin(&mut self, now: Time) {
        debug_assert!(self.letters.is_empty() && self.since.is_none(), "a round begins once");
        let destination = self.synchronisation.destination(&self.sight());
        let receivers: Vec<ReplicaId> = match destination {
            Destination::All => self.members.ids().to_vec(),
            Destination::Coordinator => self.coordinator.into_iter().collect(),
            Destination::Nobody => Vec::new(),
        };
        for to in receivers {
            let letter = self.letter(to);
            if to == self.members.me() {
                self.received.entry(self.round).or_default().insert(to, letter);
            } else {
                self.letters.push_back((to, letter));
            }
        }
        self.wait_if_sent(now);
    }

    /// The next letter of this round, and the member that it is for.
    pub fn next_letter(&mut self, now: Time) -> Option<(ReplicaId, Letter<A::Message>)> {
        let letter = self.letters.pop_front()?;
        self.wait_if_sent(now);
        Some(letter)
    }

    /// Whether letters of this round are still to be sent.
    #[must_use]
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// Receives letters, and returns whether the round has ended: then [`Layer::begin`] begins the next one.
    pub fn receive(
        &mut self,
        now: Time,
        letters: impl IntoIterator<Item = (ReplicaId, Letter<A::Message>)>,
    ) -> bool {
        let elapsed = self.since.map_or(Duration::ZERO, |since| now.since(since));
        for (from, letter) in letters {
            if self.members.index(from).is_none() || letter.round > ROUND_MAX {
                continue;
            }
            self.heard_at.insert(from, now);
            if letter.round == self.round.next() {
                self.next_seen.get_or_insert(elapsed);
            }
            // Rounds are closed: a letter of an earlier one is lost.
            if letter.round >= self.round {
                self.received.entry(letter.round).or_default().insert(from, letter);
            }
        }
        if self.since.is_none() {
            return false;
        }
        let waited = Waited {
            elapsed,
            least: Duration::ZERO,
            next_seen: self.next_seen,
            alive: self.alive(now),
            suspected: self.suspected,
        };
        let is_over = self.synchronisation.is_over(&self.sight(), &waited);
        if is_over {
            self.end();
        }
        is_over
    }

    /// The rounds that have ended since this was asked, without long runs of rounds in which nothing was heard.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// What was decided since this was asked. Each instance is decided once.
    pub fn take_decided(&mut self) -> Vec<(Slot, A::Value)> {
        std::mem::take(&mut self.decided)
    }

    /// The members that were heard within the time-out of life, this replica among them.
    fn alive(&self, now: Time) -> ReplicaSet {
        let Synchronisation::Swift { alive, .. } = self.synchronisation else { return ReplicaSet::default() };
        let was_heard = |id| {
            let at = self.heard_at.get(&id);
            at.is_some_and(|&at| self.rules.is_alive(now.since(at), alive))
        };
        self.members.those(|id| id == self.members.me() || was_heard(id))
    }

    fn letter(&self, to: ReplicaId) -> Letter<A::Message> {
        let at = self.at();
        let said = self
            .instances
            .iter()
            .filter_map(|(&slot, instance)| Some((slot, self.algorithm.send(&at, &instance.state, to)?)));
        Letter { round: self.round, said: said.collect() }
    }

    /// The timer starts after the last letter (Algorithm 4.3, line 15).
    fn wait_if_sent(&mut self, now: Time) {
        if !self.letters.is_empty() {
            return;
        }
        self.since = Some(now);
        if self.synchronisation.ends_at_once(self.place()) {
            self.end();
            self.begin(now);
        }
    }

    /// Ends this round, and every round after it that is skipped. In those, too, what was received counts.
    fn end(&mut self) {
        self.transition(false);
        let mut quiet = 0;
        loop {
            self.enter(self.round.next());
            let sight = self.sight();
            if !self.synchronisation.is_skipped(&sight) {
                break;
            }
            quiet = if sight.heard.is_empty() { quiet + 1 } else { 0 };
            self.transition(true);
            // After a phase of rounds without a letter nothing changes before the next letter.
            if quiet >= self.algorithm.rounds()
                && let Some((&heard, _)) = self.received.first_key_value()
                && heard > self.round.next()
            {
                self.heard_before = ReplicaSet::default();
                self.enter(heard);
                if !self.synchronisation.is_skipped(&self.sight()) {
                    break;
                }
                self.transition(true);
                quiet = 0;
            }
        }
    }

    fn enter(&mut self, round: Round) {
        self.round = round;
        (self.since, self.next_seen) = (None, None);
        self.elect();
    }

    fn elect(&mut self) {
        if self.place() == 1 {
            self.coordinator = Synchronisation::elected(&self.sight());
        }
    }

    /// The transition of this round with what was received in it, for all instances.
    fn transition(&mut self, is_skipped: bool) {
        let letters = self.received.remove(&self.round).unwrap_or_default();
        let at = At {
            members: &self.members,
            round: self.round,
            coordinator: self.coordinator,
            rules: &self.rules,
        };
        let heard = self.members.those(|id| letters.contains_key(&id));
        for (slot, instance) in &mut self.instances {
            let of_instance = letters.iter().filter_map(|(&from, letter)| {
                let place = letter.said.binary_search_by_key(slot, |(slot, _)| *slot).ok()?;
                Some((from, &letter.said[place].1))
            });
            let messages: Vec<_> = of_instance.collect();
            let decision = self.algorithm.transition(&at, &messages, &mut instance.state);
            if let Some(value) = decision.filter(|_| !instance.is_decided) {
                instance.is_decided = true;
                self.decided.push((*slot, value));
            }
        }
        let (round, coordinator) = (self.round, self.coordinator);
        self.ended.push(Ended { round, heard, coordinator, is_skipped });
        self.heard_before = heard;
    }

    fn place(&self) -> u64 {
        self.round.place(self.algorithm.rounds())
    }

    fn at(&self) -> At<'_> {
        let Layer { members, round, coordinator, rules, .. } = self;
        At { members, round: *round, coordinator: *coordinator, rules }
    }

    fn sight(&self) -> Sight<'_> {
        let letters = self.received.get(&self.round);
        Sight {
            rules: &self.rules,
            members: &self.members,
            threshold: self.algorithm.threshold(),
            round: self.round,
            place: self.place(),
            coordinator: self.coordinator,
            heard: self.members.those(|id| letters.is_some_and(|letters| letters.contains_key(&id))),
            heard_before: self.heard_before,
            highest: self.received.keys().next_back().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::{Bounds, LastVoting, OneThirdRule, Word};

    const SLOT: Slot = Slot(1);

    fn bounds() -> Bounds {
        Bounds::exact(3, Duration::from_nanos(100), Duration::from_nanos(1))
    }

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// The layer of the second of three members, which proposes 7.
    fn layer<A: Algorithm<Value = u64>>(algorithm: A, synchronisation: Synchronisation) -> Layer<A> {
        let members = Members::new((1..=3).map(ReplicaId), ReplicaId(2));
        let mut layer = Layer::new(algorithm, members, synchronisation);
        layer.propose(SLOT, 7);
        layer
    }

    /// Sends the letters of a round, and returns who got one.
    fn send<A: Algorithm>(layer: &mut Layer<A>, now: Time) -> Vec<u64> {
        layer.begin(now);
        std::iter::from_fn(|| layer.next_letter(now)).map(|(to, _)| to.0).collect()
    }

    fn said<M>(from: u64, round: u64, message: M) -> (ReplicaId, Letter<M>) {
        (ReplicaId(from), Letter { round: Round(round), said: vec![(SLOT, message)] })
    }

    fn ids(layer: &Layer<impl Algorithm>, set: ReplicaSet) -> Vec<u64> {
        layer.members.ids().iter().filter(|id| layer.members.contains(set, **id)).map(|id| id.0).collect()
    }

    #[test]
    fn a_time_out_counts_from_the_last_letter_and_what_has_arrived_counts_first() {
        let mut layer = layer(OneThirdRule::new(), bounds().full());
        let Synchronisation::Full { round } = bounds().full() else { panic!() };
        layer.begin(at(0));
        assert!(layer.has_letters() && layer.next_letter(at(10)).is_some());
        assert!(!layer.receive(at(5_000), []), "a letter is still to be sent");
        assert!(layer.next_letter(at(20)).is_some() && !layer.has_letters());
        assert!(!layer.receive(at(20) + round - Duration::from_nanos(1), [said(1, 1, 7)]));
        assert!(layer.receive(at(20) + round, [said(3, 1, 7)]), "the time-out");
        let ended = layer.take_ended();
        assert_eq!((ids(&layer, ended[0].heard), layer.round()), (vec![1, 2, 3], Round(2)));
        assert_eq!(layer.take_decided(), [(SLOT, 7)]);
    }

    #[test]
    fn a_letter_of_an_earlier_round_is_lost() {
        let mut layer = layer(OneThirdRule::new(), bounds().full());
        send(&mut layer, at(0));
        assert!(layer.receive(at(1), [said(1, 2, 7)]), "a higher round");
        send(&mut layer, at(2));
        assert!(!layer.receive(at(3), [said(3, 1, 7)]));
        assert!(layer.receive(at(9_000), []));
        let heard: Vec<_> = layer.take_ended().iter().map(|it| ids(&layer, it.heard)).collect();
        assert_eq!(heard, [vec![2], vec![1, 2]], "the letter of round 1 came in round 2");
    }

    /// The vote and a letter of the round after it come in one step: the round of the vote is skipped, and its
    /// transition takes the vote.
    #[test]
    fn what_was_received_counts_in_a_round_that_is_skipped() {
        let mut layer = layer(LastVoting::three(), bounds().phase());
        assert_eq!(send(&mut layer, at(0)), [1], "the estimate goes to the coordinator");
        let letters = [said(1, 2, Word::Vote(9)), said(1, 3, Word::Acknowledgement(Some(9)))];
        assert!(layer.receive(at(1), letters));
        assert_eq!(layer.round(), Round(3));
        assert!(layer.take_ended()[1].is_skipped);
        layer.begin(at(2));
        let (_, letter) = layer.next_letter(at(2)).unwrap();
        assert_eq!(letter.said, [(SLOT, Word::Acknowledgement(Some(9)))]);
    }

    /// A letter from far ahead costs a phase of transitions, and no memory; one that no replica can send is ignored.
    #[test]
    fn a_jump_costs_no_more_than_what_was_received() {
        let mut layer = layer(LastVoting::four(), bounds().swift());
        send(&mut layer, at(0));
        let far = 1 << 40;
        let empty = |round| (ReplicaId(1), Letter { round: Round(round), said: Vec::new() });
        assert!(!layer.receive(at(1), [empty(u64::MAX), empty(ROUND_MAX.0 + 1)]));
        assert!(
            layer
                .receive(at(2), [empty(far), (ReplicaId(9), Letter { round: Round(far + 1), said: vec![] })])
        );
        assert_eq!(layer.round(), Round(far), "a stranger is not followed");
        assert!(layer.take_ended().len() < 10 && layer.received.len() == 1);
        // The end of a phase was among the transitions, so that nothing of the old one is left.
        assert_eq!(layer.coordinator, Some(ReplicaId(1)));
    }

    #[test]
    fn nothing_is_said_of_a_forgotten_instance() {
        let mut layer = layer(OneThirdRule::new(), bounds().full());
        layer.propose(Slot(2), 5);
        layer.forget(SLOT);
        layer.begin(at(0));
        let (_, letter) = layer.next_letter(at(0)).unwrap();
        assert_eq!(letter.said, [(Slot(2), 5)]);
    }
}
