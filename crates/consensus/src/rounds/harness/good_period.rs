//! A world for the layers of chapter 4: first a bad period, in which replicas stop, go on, and lose messages; then a
//! good one, in which those that are up take a step in every Φ, messages among them arrive within Δ, and clocks run
//! between α and β (Santos 2012, definitions 4.1 to 4.4). In a step a replica sends one message, or receives what has
//! arrived.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use synod_wire::{ReplicaId, Slot, Time};

use super::Verdict;
use crate::{
    Members,
    rounds::{Algorithm, Bounds, Ended, Layer, Letter, Round, Synchronisation, rules::Rules},
};

/// The one instance of a run.
pub(super) const SLOT: Slot = Slot(1);
/// Nanoseconds of a unit of time, so that clocks have whole nanoseconds.
const UNIT: u64 = 1_000;

/// What is drawn between two bounds: always one of them, or anything in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    Least,
    Most,
    /// Each message, step or clock at one of the bounds.
    Ends,
    Any,
}

impl Draw {
    fn any(random: &mut Rng) -> Draw {
        [Draw::Least, Draw::Most, Draw::Most, Draw::Ends, Draw::Any][random.usize(..5)]
    }

    fn of(self, least: u64, most: u64, random: &mut Rng) -> u64 {
        match self {
            Draw::Least => least,
            Draw::Most => most,
            Draw::Ends => [least, most][random.usize(..2)],
            Draw::Any => random.u64(least..=most),
        }
    }
}

/// When the good period begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Anywhere,
    /// Just after a replica sent its first letter of a round that is the highest; of this place in its phase.
    AfterFirstLetter(u64),
    /// Just after it sent the last.
    AfterLastLetter(u64),
}

/// A world that is drawn: sizes, and how its adversary acts.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) n: usize,
    /// Δ and Φ, in units.
    pub(super) delay: u64,
    pub(super) step: u64,
    /// Clock rates, in thousandths.
    pub(super) slowest: u64,
    pub(super) fastest: u64,
    pub(super) delays: Draw,
    pub(super) steps: Draw,
    pub(super) clocks: Draw,
    pub(super) start: Start,
    /// How many are up in the good period.
    pub(super) up: usize,
    /// Messages of the bad period arrive in the good one, however late.
    pub(super) late: bool,
}

impl Plan {
    /// A plan for an algorithm of so many rounds a phase, which needs so many replicas.
    pub(super) fn draw(seed: u64, rounds: u64, least: impl Fn(usize) -> usize) -> Plan {
        let mut random = Rng::with_seed(seed);
        let n = random.usize(3..=7);
        let place = random.u64(1..=rounds);
        let is_exact = random.bool();
        let mut plan = Plan {
            seed,
            n,
            delay: [40, 200, 2_000][random.usize(..3)],
            step: [2, 20][random.usize(..2)],
            slowest: if is_exact { 1_000 } else { random.u64(600..=1_000) },
            fastest: if is_exact { 1_000 } else { random.u64(1_000..=1_500) },
            delays: Draw::any(&mut random),
            steps: Draw::any(&mut random),
            clocks: Draw::any(&mut random),
            start: [Start::Anywhere, Start::AfterFirstLetter(place), Start::AfterLastLetter(place)]
                [random.usize(..3)],
            up: random.usize(least(n)..=n),
            late: random.bool(),
        };
        // The slowest world of all, often: the bounds are for it.
        if random.u8(..3) == 0 {
            (plan.delays, plan.steps, plan.clocks, plan.late) = (Draw::Most, Draw::Most, Draw::Least, false);
        }
        plan
    }

    pub(super) fn bounds(&self) -> Bounds {
        let units = |units: u64| Duration::from_nanos(units * UNIT);
        Bounds {
            clock_slowest: self.slowest as u32 * 1_000,
            clock_fastest: self.fastest as u32 * 1_000,
            ..Bounds::exact(self.n as u32, units(self.delay), units(self.step))
        }
    }

    pub(super) fn rho(&self) -> f64 {
        self.fastest as f64 / self.slowest as f64
    }
}

struct Process<A: Algorithm> {
    layer: Layer<A>,
    step_at: u64,
    clock: u64,
    rate: u64,
    /// What is under way to it: when it arrives, from where, in which period it was sent.
    mail: Vec<(u64, ReplicaId, Letter<A::Message>)>,
    has_sent: bool,
}

/// What a run recorded.
pub(super) struct Record {
    /// When the good period began, and the highest round that was begun by then among those that are up.
    pub(super) good_from: u64,
    pub(super) highest: Round,
    pub(super) up: Vec<usize>,
    /// For each replica the rounds that it ended, and when.
    pub(super) ended: Vec<BTreeMap<Round, (u64, Ended)>>,
    /// When each replica decided.
    pub(super) decided: BTreeMap<usize, u64>,
    /// Letters of each round that were sent in the good period, a replica's to itself among them.
    pub(super) letters: BTreeMap<Round, u64>,
    pub(super) members: Members,
}

pub(super) struct World<A: Algorithm<Value = u64>> {
    plan: Plan,
    random: Rng,
    now: u64,
    processes: Vec<Process<A>>,
    is_good: bool,
    /// How much is lost in the bad period.
    loss: f64,
    verdict: Verdict,
    record: Record,
}

impl<A: Algorithm<Value = u64>> World<A> {
    pub(super) fn new(
        plan: Plan,
        algorithm: impl Fn() -> A,
        synchronisation: Synchronisation,
        rules: impl Fn() -> Rules,
    ) -> World<A> {
        let mut random = Rng::with_seed(plan.seed ^ 0x5EED);
        let ids = || (1..=plan.n as u64).map(ReplicaId);
        let mut verdict = Verdict::default();
        let mut process = |me| {
            let members = Members::new(ids(), me);
            let mut layer = Layer::with_rules(algorithm(), members, synchronisation, rules());
            let value = random.u64(..3);
            verdict.propose(SLOT, value);
            layer.propose(SLOT, value);
            layer.begin(Time::ZERO);
            let rate = plan.clocks.of(plan.slowest, plan.fastest, &mut random);
            let step_at = random.u64(1..=plan.step);
            Process { layer, step_at, clock: 0, rate, mail: Vec::new(), has_sent: false }
        };
        let processes: Vec<_> = ids().map(&mut process).collect();
        let record = Record {
            good_from: 0,
            highest: Round(0),
            up: (0..plan.n).collect(),
            ended: vec![BTreeMap::new(); plan.n],
            decided: BTreeMap::new(),
            letters: BTreeMap::new(),
            members: Members::new(ids(), ReplicaId(1)),
        };
        let loss = [0.1, 0.5, 0.9, 1.0][random.usize(..4)];
        World { plan, random, now: 0, processes, is_good: false, loss, verdict, record }
    }

    /// Runs the bad period, and then the good one for so long.
    pub(super) fn run(mut self, good_for: u64) -> Result<Record, String> {
        let bad_for = self.random.u64(1..40) * self.plan.delay;
        let mut may_begin = false;
        loop {
            let me = self.next();
            let at = self.processes[me].step_at;
            if self.is_good && at > self.record.good_from + good_for {
                return Ok(self.record);
            }
            self.now = at;
            let begins = self.step(me)?;
            may_begin |= self.now >= bad_for;
            // A start that never comes is given up.
            let is_late = self.now > 20 * bad_for + 1_000 * self.plan.delay;
            let is_start = self.plan.start == Start::Anywhere || begins || is_late;
            if !self.is_good && may_begin && is_start {
                self.begin_good_period(me);
            }
        }
    }

    /// The replica whose step is next.
    fn next(&self) -> usize {
        let up = self.record.up.iter().copied();
        up.min_by_key(|&me| (self.processes[me].step_at, me)).expect("somebody is up")
    }

    fn begin_good_period(&mut self, with: usize) {
        let Plan { n, up, step, late, delay, .. } = self.plan;
        let mut others: Vec<usize> = (0..n).filter(|&me| me != with).collect();
        self.random.shuffle(&mut others);
        let mut all = vec![with];
        all.extend(others.into_iter().take(up - 1));
        all.sort_unstable();
        self.is_good = true;
        let record = &mut self.record;
        (record.good_from, record.up) = (self.now, all);
        let rounds = record.up.iter().map(|&me| self.processes[me].layer.round());
        record.highest = rounds.max().expect("somebody is up");
        for &me in &self.record.up {
            let process = &mut self.processes[me];
            process.step_at = self.now + self.plan.steps.of(1, step, &mut self.random);
            process.rate = self.plan.clocks.of(self.plan.slowest, self.plan.fastest, &mut self.random);
            let is_up = |from: ReplicaId| self.record.up.contains(&(from.0 as usize - 1));
            process.mail.retain(|(_, from, _)| late && is_up(*from));
            for (at, ..) in &mut process.mail {
                *at = self.now + self.random.u64(..5 * delay);
            }
        }
    }

    /// One step of a replica. Returns whether the good period may begin with it.
    fn step(&mut self, me: usize) -> Result<bool, String> {
        let gap = self.gap();
        let rate = self.rate(me);
        let now = self.now;
        let highest = self.processes.iter().map(|it| it.layer.round()).max();
        let process = &mut self.processes[me];
        process.clock += gap.max(1) * rate;
        process.step_at = now + gap.max(1);
        let clock = Time::from_nanos(process.clock);
        let round = process.layer.round();
        let place = round.place(process.layer.rounds());
        let is_highest = Some(round) == highest;
        if let Some((to, letter)) = process.layer.next_letter(clock) {
            let is_first = !std::mem::replace(&mut process.has_sent, true);
            let is_last = !process.layer.has_letters() || process.layer.round() != round;
            self.send(me, to, letter);
            self.note(me)?;
            return Ok(is_highest
                && match self.plan.start {
                    Start::Anywhere => true,
                    Start::AfterFirstLetter(at) => is_first && place == at,
                    Start::AfterLastLetter(at) => is_last && place == at,
                });
        }
        let arrived;
        (arrived, process.mail) = std::mem::take(&mut process.mail).into_iter().partition(|it| it.0 <= now);
        let letters = arrived.into_iter().map(|(_, from, letter)| (from, letter));
        if process.layer.receive(clock, letters) {
            process.has_sent = false;
            process.layer.begin(clock);
        }
        self.note(me)?;
        Ok(false)
    }

    /// How long until the next step.
    fn gap(&mut self) -> u64 {
        let Plan { step, delay, steps, .. } = self.plan;
        if self.is_good {
            return steps.of(1, step, &mut self.random);
        }
        match self.random.u8(..40) {
            0 => self.random.u64(1..=10 * delay),
            _ => self.random.u64(1..=2 * step),
        }
    }

    fn rate(&mut self, me: usize) -> u64 {
        match self.plan.clocks {
            // A clock changes its rate all the time.
            Draw::Any => self.random.u64(self.plan.slowest..=self.plan.fastest),
            _ => self.processes[me].rate,
        }
    }

    fn send(&mut self, me: usize, to: ReplicaId, letter: Letter<A::Message>) {
        let delay = self.plan.delay;
        let at = if self.is_good {
            *self.record.letters.entry(letter.round).or_default() += 1;
            Some(self.plan.delays.of(0, delay, &mut self.random))
        } else {
            (self.random.f64() >= self.loss).then(|| self.random.u64(..4 * delay))
        };
        let to = to.0 as usize - 1;
        if let Some(at) = at.filter(|_| self.record.up.contains(&to)) {
            self.processes[to].mail.push((self.now + at, ReplicaId(me as u64 + 1), letter));
        }
    }

    /// Records what a replica has ended and decided.
    fn note(&mut self, me: usize) -> Result<(), String> {
        for ended in self.processes[me].layer.take_ended() {
            let id = ReplicaId(me as u64 + 1);
            // Its letter to itself.
            if self.is_good && !ended.is_skipped && self.record.members.contains(ended.heard, id) {
                *self.record.letters.entry(ended.round).or_default() += 1;
            }
            self.record.ended[me].insert(ended.round, (self.now, ended));
        }
        for (slot, value) in self.processes[me].layer.take_decided() {
            self.verdict.decide(slot, ReplicaId(me as u64 + 1), value)?;
            self.record.decided.insert(me, self.now);
        }
        Ok(())
    }
}
