//! A world for the layers of chapter 5: time is counted in steps, of which every replica that is up takes one in each
//! tick once the good period has begun, to read its proposals, to send one message, to receive, or to write its
//! decisions (Santos 2012, section 5.2). Proposals wait in a queue of each replica.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use fastrand::Rng;
use synod_wire::{ReplicaId, Slot, Time};

use super::Verdict;
use crate::{
    Members, ReplicaSet,
    rounds::{
        Algorithm, Channel, Detector, Frame, Layer, Letter, Round, Spread, Synchronisation, rules::Rules,
    },
};

/// What a run is made of. All times are ticks.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) n: usize,
    /// How many never come back from the bad period.
    pub(super) down: usize,
    /// The actual delays: at least and at most (`δ`).
    pub(super) delays: (u64, u64),
    /// When the good period begins (`GST`), the longest delay that is promised then (`Δ`), and how much is lost before
    /// and after.
    pub(super) good_from: u64,
    pub(super) delay_max: u64,
    pub(super) loss: (f64, f64),
    /// Replicas of the bad period take a step in this many of a hundred ticks, each at its own pace between these.
    pub(super) pace: (u64, u64),
    /// When each instance is given to each replica; beyond these, the next one when the last is decided.
    pub(super) given: Vec<Vec<u64>>,
    pub(super) goes_on: bool,
    /// Of how many values replicas propose one each.
    pub(super) values: u64,
    pub(super) until: u64,
    pub(super) synchronisation: Synchronisation,
    pub(super) detector: Option<Detecting>,
}

/// A failure detector and its channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detecting {
    /// A heartbeat so often, and a suspicion after so long a silence (`η`, `τ`).
    pub(super) every: u64,
    pub(super) after: u64,
    /// Messages are sent again after so long; without, none is lost.
    pub(super) again_after: Option<u64>,
}

#[derive(Clone, Debug)]
enum Packet<M> {
    Letter(Letter<M>),
    Framed(Frame<Letter<M>>),
    Heartbeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Input,
    /// Letters to others; then a step for the one to itself.
    Send,
    ToItself,
    Receive,
    Output,
}

struct Process<A: Algorithm> {
    layer: Layer<Spread<A>>,
    part: Part,
    /// Steps taken so far, which is how a replica measures time.
    steps: u64,
    pace: u64,
    queue: VecDeque<(u64, Slot, u64)>,
    mail: Vec<(u64, ReplicaId, Packet<SaidOf<A>>)>,
    to_output: Vec<(Slot, u64)>,
    detector: Option<Detector>,
    channels: BTreeMap<ReplicaId, Channel<Letter<SaidOf<A>>>>,
    /// What the detector and the channels have to send.
    background: VecDeque<(ReplicaId, Packet<SaidOf<A>>)>,
}

type SaidOf<A> = <Spread<A> as Algorithm>::Message;

/// What happened to an instance.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    /// When the last replica took it from its queue, and in which round.
    pub(super) taken: u64,
    pub(super) taken_in: Round,
    /// When the last replica wrote its decision.
    pub(super) out: u64,
    pub(super) outputs: usize,
}

/// What a run recorded.
pub(super) struct Record {
    pub(super) instances: BTreeMap<Slot, Instance>,
    /// The highest round that a replica was in when the good period began.
    pub(super) highest: Round,
    /// The first round that began in the good period, and the rounds that ended in it: who was heard by whom.
    pub(super) ended: BTreeMap<Round, Vec<(usize, ReplicaSet)>>,
    /// How many rounds the replica that is furthest has gone through.
    pub(super) rounds: u64,
    pub(super) up: ReplicaSet,
}

pub(super) struct World<A: Algorithm<Value = u64>> {
    setting: Setting,
    random: Rng,
    now: u64,
    processes: Vec<Process<A>>,
    verdict: Verdict,
    record: Record,
}

impl<A: Algorithm<Value = u64>> World<A> {
    pub(super) fn new(setting: Setting, algorithm: impl Fn() -> A, rules: impl Fn() -> Rules) -> World<A> {
        let mut random = Rng::with_seed(setting.seed ^ 0x57E9);
        let ids = || (1..=setting.n as u64).map(ReplicaId);
        let process = |me: ReplicaId| {
            let members = Members::new(ids(), me);
            let ticks = Duration::from_nanos;
            let detector = setting
                .detector
                .map(|it| Detector::new(members.clone(), ticks(it.every), ticks(it.after), Time::ZERO));
            let again_after = setting.detector.and_then(|it| it.again_after);
            let channels = again_after.into_iter().flat_map(|after| {
                members.peers().map(move |id| (id, Channel::new(ticks(after)))).collect::<Vec<_>>()
            });
            Process {
                layer: Layer::with_rules(
                    Spread(algorithm()),
                    members.clone(),
                    setting.synchronisation,
                    rules(),
                ),
                part: Part::Input,
                steps: 0,
                pace: random.u64(setting.pace.0..=setting.pace.1),
                queue: VecDeque::new(),
                mail: Vec::new(),
                to_output: Vec::new(),
                detector,
                channels: channels.collect(),
                background: VecDeque::new(),
            }
        };
        let processes = ids().map(process).collect();
        let members = Members::new(ids(), ReplicaId(1));
        let record = Record {
            instances: BTreeMap::new(),
            highest: Round(0),
            ended: BTreeMap::new(),
            rounds: 0,
            up: members.those(|id| id.0 as usize > setting.down),
        };
        let mut world = World { setting, random, now: 0, processes, verdict: Verdict::default(), record };
        for (slot, given) in (1..).map(Slot).zip(world.setting.given.clone()) {
            for (me, at) in given.into_iter().enumerate() {
                world.give(me, slot, at);
            }
        }
        world
    }

    /// Gives a replica a proposal for an instance.
    fn give(&mut self, me: usize, slot: Slot, at: u64) {
        let value = self.random.u64(..self.setting.values);
        self.verdict.propose(slot, value);
        let queue = &mut self.processes[me].queue;
        queue.push_back((at, slot, value));
        queue.make_contiguous().sort_unstable();
    }

    pub(super) fn run(mut self) -> Result<Record, String> {
        let mut order: Vec<usize> = (0..self.setting.n).collect();
        while self.now < self.setting.until {
            self.now += 1;
            if self.now == self.setting.good_from {
                self.begin_good_period();
            }
            self.random.shuffle(&mut order);
            for &me in &order {
                let is_good = self.now >= self.setting.good_from;
                let is_slow = !is_good && self.random.u64(..100) >= self.processes[me].pace;
                let is_down = is_good && me < self.setting.down;
                if !is_slow && !is_down {
                    self.step(me)?;
                }
            }
        }
        self.record.rounds = self.processes.iter().map(|it| it.layer.round().0).max().unwrap_or(0);
        Ok(self.record)
    }

    fn begin_good_period(&mut self) {
        // Letters of those that are down may still come, so a round that they began is not new.
        let rounds = self.processes.iter().map(|it| it.layer.round());
        self.record.highest = rounds.max().expect("there are members");
        // What was sent before comes by the longest delay, or never.
        let latest = self.now + self.setting.delay_max;
        for process in &mut self.processes {
            process.mail.iter_mut().for_each(|(at, ..)| *at = latest.min(*at));
        }
    }

    fn step(&mut self, me: usize) -> Result<(), String> {
        self.processes[me].steps += 1;
        if self.setting.detector.is_some() && self.processes[me].steps % 2 == 1 {
            self.attend(me);
            return Ok(());
        }
        let now = self.now;
        let process = &mut self.processes[me];
        let clock = Time::from_nanos(process.steps);
        match process.part {
            Part::Input => {
                while process.queue.front().is_some_and(|(at, ..)| *at <= now) {
                    let (_, slot, value) = process.queue.pop_front().expect("there is one");
                    process.layer.propose(slot, value);
                    let instance = self.record.instances.entry(slot).or_default();
                    (instance.taken, instance.taken_in) = (now, process.layer.round());
                }
                process.layer.begin(clock);
                process.part = if process.layer.has_letters() { Part::Send } else { Part::ToItself };
            }
            Part::Send => {
                if let Some((to, letter)) = process.layer.next_letter(clock) {
                    let packet = match process.channels.get_mut(&to) {
                        Some(channel) => Packet::Framed(channel.send(letter, clock)),
                        None => Packet::Letter(letter),
                    };
                    process.part = if process.layer.has_letters() { Part::Send } else { Part::ToItself };
                    self.send(me, to, packet);
                }
            }
            Part::ToItself => process.part = Part::Receive,
            Part::Receive => self.receive(me, clock),
            Part::Output => {
                process.part = Part::Input;
                for (slot, value) in std::mem::take(&mut process.to_output) {
                    self.output(me, slot, value)?;
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, me: usize, clock: Time) {
        let now = self.now;
        let process = &mut self.processes[me];
        let arrived;
        (arrived, process.mail) = std::mem::take(&mut process.mail).into_iter().partition(|it| it.0 <= now);
        let mut letters = Vec::new();
        for (_, from, packet) in arrived {
            match packet {
                Packet::Letter(letter) => letters.push((from, letter)),
                Packet::Heartbeat => process.detector.as_mut().expect("sends heartbeats").hear(from, clock),
                Packet::Framed(frame) => {
                    let (next, answer) = process.channels.get_mut(&from).expect("a channel").receive(frame);
                    letters.extend(next.into_iter().map(|letter| (from, letter)));
                    process.background.extend(answer.map(|frame| (from, Packet::Framed(frame))));
                }
            }
        }
        if let Some(detector) = &process.detector {
            process.layer.suspect(detector.suspected(clock));
        }
        if process.layer.receive(clock, letters) {
            process.part = Part::Output;
            process.to_output = process.layer.take_decided();
        }
        for ended in process.layer.take_ended() {
            if now >= self.setting.good_from {
                self.record.ended.entry(ended.round).or_default().push((me, ended.heard));
            }
        }
    }

    /// A step of the failure detector and of the channels, which have every other one.
    fn attend(&mut self, me: usize) {
        let now = self.now;
        let process = &mut self.processes[me];
        let clock = Time::from_nanos(process.steps);
        let detector = process.detector.as_mut().expect("steps of a detector");
        process.mail.retain(|(at, from, packet)| {
            let is_heartbeat = *at <= now && matches!(packet, Packet::Heartbeat);
            if is_heartbeat {
                detector.hear(*from, clock);
            }
            !is_heartbeat
        });
        if detector.beats(clock) {
            let peers = (1..=self.setting.n as u64).map(ReplicaId).filter(|id| id.0 as usize != me + 1);
            process.background.extend(peers.map(|id| (id, Packet::Heartbeat)));
        }
        for (id, channel) in &mut process.channels {
            process.background.extend(channel.again(clock).into_iter().map(|it| (*id, Packet::Framed(it))));
        }
        if let Some((to, packet)) = process.background.pop_front() {
            self.send(me, to, packet);
        }
    }

    fn send(&mut self, me: usize, to: ReplicaId, packet: Packet<SaidOf<A>>) {
        let Setting { good_from, delays, delay_max, loss, .. } = self.setting;
        let is_good = self.now >= good_from;
        let is_kept = matches!(self.setting.detector, Some(Detecting { again_after: None, .. }));
        if !is_kept && self.random.f64() < if is_good { loss.1 } else { loss.0 } {
            return;
        }
        // Some links are always slow, others never, as the seed has it.
        let link = (self.setting.seed >> ((me as u64 * 7 + to.0) % 32)) & 3;
        let delay = match (is_good, link) {
            (true, 0) => delays.1,
            (true, 1) => delays.0,
            (true, _) => self.random.u64(delays.0..=delays.1),
            (false, _) => self.random.u64(1..=5 * delay_max),
        };
        let latest = if is_good { u64::MAX } else { good_from + delay_max };
        let at = (self.now + delay.max(1)).min(latest.max(self.now + 1));
        self.processes[to.0 as usize - 1].mail.push((at, ReplicaId(me as u64 + 1), packet));
    }

    fn output(&mut self, me: usize, slot: Slot, value: u64) -> Result<(), String> {
        self.verdict.decide(slot, ReplicaId(me as u64 + 1), value)?;
        let instance = self.record.instances.entry(slot).or_default();
        (instance.out, instance.outputs) = (self.now, instance.outputs + 1);
        if self.setting.goes_on {
            self.give(me, Slot(slot.0 + 1), self.now);
            let others = self.setting.down..self.setting.n;
            let has_decided =
                |slot: Slot, it: usize| self.verdict.has_decided(slot, ReplicaId(it as u64 + 1));
            if others.clone().all(|it| has_decided(slot, it)) {
                others.for_each(|it| self.processes[it].layer.forget(slot));
            }
        }
        Ok(())
    }
}
