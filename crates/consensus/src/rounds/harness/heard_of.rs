//! Algorithms without layers: what each replica hears in a round is drawn, and so is the member that it takes for the
//! coordinator. Agreement, validity and integrity hold whatever that is; a predicate ends the run with a decision.

use fastrand::Rng;
use synod_wire::{ReplicaId, Slot};

use super::Verdict;
use crate::{
    Members,
    rounds::{Algorithm, At, LastVoting, OneThirdRule, Round, Spread, rules::Rules},
};

const SLOT: Slot = Slot(1);

/// What one run needs.
pub(super) struct Game<A: Algorithm> {
    algorithm: A,
    members: Vec<Members>,
    rules: Rules,
    states: Vec<A::State>,
    decided: Vec<bool>,
    coordinators: Vec<Option<ReplicaId>>,
    round: Round,
    verdict: Verdict,
}

impl<A: Algorithm<Value = u64>> Game<A> {
    pub(super) fn new(algorithm: A, n: usize, rules: Rules, random: &mut Rng) -> Game<A> {
        let ids = || (1..=n as u64).map(ReplicaId);
        let values = 1 + random.u64(..3);
        let mut verdict = Verdict::default();
        let states = ids().map(|_| {
            let value = random.u64(..values);
            verdict.propose(SLOT, value);
            algorithm.begin(value)
        });
        Game {
            states: states.collect(),
            members: ids().map(|me| Members::new(ids(), me)).collect(),
            decided: vec![false; n],
            coordinators: vec![None; n],
            round: Round(1),
            algorithm,
            rules,
            verdict,
        }
    }

    fn n(&self) -> usize {
        self.members.len()
    }

    /// Plays a round in which the member at `to` hears the one at `from` if `hears(from, to)`.
    pub(super) fn play(&mut self, hears: impl Fn(usize, usize) -> bool) -> Result<(), String> {
        let at = |me: usize| At {
            members: &self.members[me],
            round: self.round,
            coordinator: self.coordinators[me],
            rules: &self.rules,
        };
        let mut mail: Vec<Vec<(ReplicaId, A::Message)>> = vec![Vec::new(); self.n()];
        for from in 0..self.n() {
            for to in (0..self.n()).filter(|&to| hears(from, to)) {
                let id = self.members[to].me();
                let message = self.algorithm.send(&at(from), &self.states[from], id);
                mail[to].extend(message.map(|message| (self.members[from].me(), message)));
            }
        }
        for (me, mail) in mail.iter().enumerate() {
            let heard: Vec<_> = mail.iter().map(|(from, message)| (*from, message)).collect();
            let decision = self.algorithm.transition(&at(me), &heard, &mut self.states[me]);
            if let Some(value) = decision {
                let again = std::mem::replace(&mut self.decided[me], true);
                let first = self.verdict.decided.get(&SLOT);
                match again {
                    true if first != Some(&value) => {
                        return Err(format!("agreement: decided again, {value}"));
                    }
                    true => {}
                    false => self.verdict.decide(SLOT, self.members[me].me(), value)?,
                }
            }
        }
        self.round = self.round.next();
        Ok(())
    }

    /// Says whom each member takes for the coordinator, where a phase begins.
    pub(super) fn coordinate(&mut self, coordinator: impl Fn(usize) -> Option<ReplicaId>) {
        if self.round.place(self.algorithm.rounds()) == 1 {
            self.coordinators = (0..self.n()).map(coordinator).collect();
        }
    }

    /// Plays rounds at random, then a phase in which the predicate holds for some that are enough, which must decide.
    pub(super) fn run(&mut self, random: &mut Rng) -> Result<(), String> {
        let n = self.n();
        for _ in 0..random.usize(..6 * self.algorithm.rounds() as usize + 4) {
            // Mostly two that believe in themselves.
            let (one, other) = (random.u64(1..=n as u64), random.u64(1..=n as u64));
            let belief: Vec<_> = (0..n).map(|_| if random.bool() { one } else { other }).collect();
            self.coordinate(|me| Some(ReplicaId(belief[me])));
            let often = random.f64();
            let heard: Vec<bool> = (0..n * n).map(|_| random.f64() < often).collect();
            self.play(|from, to| from == to || heard[from * n + to])?;
        }
        while self.round.place(self.algorithm.rounds()) != 1 {
            self.play(|_, _| false)?;
        }
        let mut up: Vec<usize> = (0..n).collect();
        random.shuffle(&mut up);
        let least = self.algorithm.threshold().least(n);
        up.truncate(random.usize(least..=n));
        let chosen = ReplicaId(up[0] as u64 + 1);
        for _ in 0..self.algorithm.rounds().max(2) {
            self.coordinate(|_| Some(chosen));
            self.play(|from, to| up.contains(&from) && up.contains(&to))?;
        }
        match up.iter().find(|&&me| !self.decided[me]) {
            Some(me) => Err(format!("termination: {me} did not decide although the predicate held")),
            None => Ok(()),
        }
    }
}

/// Plays so many seeds, and says what the first that fails found.
pub(super) fn attack<A: Algorithm<Value = u64>>(
    algorithm: impl Fn() -> A,
    rules: impl Fn() -> Rules,
    seeds: u64,
) -> Result<(), String> {
    for seed in 0..seeds {
        let mut random = Rng::with_seed(seed);
        let n = random.usize(3..=7);
        let mut game = Game::new(algorithm(), n, rules(), &mut random);
        game.run(&mut random).map_err(|why| format!("seed {seed}, {n} members: {why}"))?;
    }
    Ok(())
}

/// A1 to A6: agreement, validity, integrity whatever is heard; a decision where the predicate holds.
#[test]
fn algorithms_are_safe_whatever_is_heard_and_decide_where_the_predicate_holds() {
    let sound = || Rules::SOUND;
    attack(OneThirdRule::new, sound, 20_000).unwrap();
    attack(LastVoting::three, sound, 20_000).unwrap();
    attack(LastVoting::four, sound, 20_000).unwrap();
    attack(|| Spread(OneThirdRule::new()), sound, 20_000).unwrap();
    attack(|| Spread(LastVoting::three()), sound, 20_000).unwrap();
    attack(|| Spread(LastVoting::four()), sound, 20_000).unwrap();
}

/// A4: one uniform round decides if all propose the same; two do otherwise, and then the first one may not.
#[test]
fn a4_one_third_rule_decides_in_one_uniform_round_or_in_two() {
    let (mut at_once, mut later) = (0, 0);
    for seed in 0..500 {
        let mut random = Rng::with_seed(seed);
        let mut game = Game::new(OneThirdRule::new(), 4, Rules::SOUND, &mut random);
        let is_same = game.states.iter().all(|value| *value == game.states[0]);
        game.play(|_, _| true).unwrap();
        let first = game.decided.iter().all(|it| *it);
        assert!(first || !is_same);
        game.play(|_, _| true).unwrap();
        assert!(game.decided.iter().all(|it| *it));
        (at_once, later) = (at_once + u32::from(first), later + u32::from(!first));
    }
    assert!(at_once > 50 && later > 50, "{at_once} {later}");
}

/// A7: one replica alone has decided, and a round in which it is heard makes all others decide, though no quorum hears
/// any other.
#[test]
fn a7_a_replica_that_has_decided_makes_all_that_hear_it_decide() {
    fn told<A: Algorithm<Value = u64>>(algorithm: A, can_alone: bool) -> usize {
        let mut random = Rng::with_seed(3);
        let rounds = algorithm.rounds();
        let mut game = Game::new(algorithm, 4, Rules::SOUND, &mut random);
        // In the last round of a phase, or in the second of OneThirdRule, the first member alone hears all.
        for round in 1..=rounds.max(2) {
            let is_last = round == rounds.max(2);
            game.coordinate(|_| Some(ReplicaId(1)));
            game.play(|from, to| !is_last || to == 0 || from == to && from != 0).unwrap();
        }
        let alone = game.decided.iter().filter(|it| **it).count();
        assert!(alone == 1 || !can_alone, "{alone} decided");
        game.coordinate(|_| Some(ReplicaId(2)));
        game.play(|from, to| from == 0 || from == to).unwrap();
        game.decided.iter().filter(|it| **it).count()
    }
    assert_eq!(told(OneThirdRule::new(), true), 1);
    assert_eq!(told(LastVoting::three(), true), 1);
    assert_eq!(told(Spread(OneThirdRule::new()), true), 4);
    assert_eq!(told(Spread(LastVoting::three()), true), 4);
    assert_eq!(told(Spread(LastVoting::four()), true), 4);
}
