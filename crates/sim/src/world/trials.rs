//! Trials: the network keeps only some of its links for a long while, and nothing else goes wrong. A group in
//! which a replica is connected to a quorum must get a leader soon, and keep it.
//!
//! A trial begins with a cluster that works. Then links are cut for ten election time-outs. With an election
//! that promises it ([`serves_within`]), if some replica reaches a quorum in both directions,
//!
//! - after four election time-outs, or eight, a replica that reaches a quorum leads, and has delivered
//!   something that had not been
//!   proposed before the cut;
//! - from then on no other replica begins to lead, and that replica leads in the same ballot to the end. A leader
//!   with a latency-aware election may hand over to a better one, twice at most: only a replica that was asked to take
//!   over leads next, and it serves within an election time-out.
//!
//! Raft's election is put through the same trials; it need only recover afterwards.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::{ElectionKind, Options, ProtocolKind, Role};
use synod_wire::{Ballot, Slot};

use super::{FIRST, Happening, World};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::Moment,
    network::{NetworkPlan, between},
    odds::Odds,
    plan::Topology,
};

/// Election time-outs after which a cut network must have a leader that serves, if the election promises it.
/// Raft's does not: it elects only a replica that has all that is committed, so a hub that lags cannot lead.
/// A rotating election lets each replica try in its turn, and a replica that lags too far, once more.
fn serves_within(options: &Options) -> Option<u32> {
    match options.election {
        // Its own election is below.
        ElectionKind::Latency if options.protocol == ProtocolKind::Raft => None,
        ElectionKind::Ballot => Some(4),
        ElectionKind::Rotating | ElectionKind::Latency => Some(8),
        _ => None,
    }
}

/// Election time-outs within which another replica serves after a leader that may hand over has gone: less than it
/// takes to notice that a leader is gone, and to elect another.
const MOVES_WITHIN: u32 = 1;
/// How often leadership may move with a latency-aware election while a cut lasts.
const MOVES_MAX: u32 = 2;
/// Election timeouts that a cut lasts.
const LASTS: u32 = 10;
/// Election timeouts in which a cluster must work before a trial; otherwise there is none.
const SETTLES_WITHIN: u32 = 12;
/// The most election time-outs for which a replica is kept apart to make it lag.
const LAGS: u32 = 2;
/// How many slots it has to lag.
const LAG_SLOTS: u64 = 5;

/// The trials of a run.
#[derive(Debug)]
pub(super) struct Trials {
    rng: Rng,
    left: u32,
    phase: Phase,
    /// Leaders, and the replicas that each asked to take over, since links were cut or leadership moved.
    asked: Vec<(usize, usize)>,
    /// How often leadership has moved since.
    moves: u32,
    /// How rough the world is between trials.
    rough: Option<(NetworkPlan, Odds, Odds)>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// There is no trial.
    Between,
    /// The trial waits for the cluster to work.
    Settling { since: Moment },
    /// The trial waits for the hub to lag.
    Lagging { since: Moment, hub: usize, partition: u64 },
    /// Links are cut, and no replica has to serve yet.
    Electing(Cut),
    /// This replica has to go on leading in this ballot, being the last that began to.
    Serving { cut: Cut, leader: usize, ballot: Ballot, elections: u64 },
    /// That replica handed over, and none has to serve yet.
    Moving { cut: Cut, since: Moment },
}

#[derive(Clone, Debug)]
struct Cut {
    since: Moment,
    partition: u64,
    topology: Topology,
    /// The replicas that reach a quorum in both directions.
    connected: Vec<usize>,
    /// Slots through this one had been proposed before.
    proposed: Slot,
}

impl Trials {
    pub(super) fn new(trials: u32, rng: Rng) -> Trials {
        Trials { rng, left: trials, phase: Phase::Between, asked: Vec::new(), moves: 0, rough: None }
    }

    /// Whether nothing else must go wrong now.
    pub(super) fn is_on(&self) -> bool {
        !matches!(self.phase, Phase::Between)
    }

    /// A leader asks a replica to take over.
    pub(super) fn asked_to_lead(&mut self, leader: usize, heir: usize) {
        if self.is_on() && !self.asked.contains(&(leader, heir)) {
            self.asked.push((leader, heir));
        }
    }

    /// The replicas that were asked.
    fn heirs(&self) -> Vec<usize> {
        self.asked.iter().map(|&(_, heir)| heir).collect()
    }
}

impl World {
    /// Schedules the first trial, if there is to be one.
    pub(super) fn begin_trials(&mut self) {
        let timeout = self.plan.settings.consensus.election_timeout;
        if self.trials.left > 0 {
            let wait = between(&mut self.trials.rng, timeout * 2, timeout * 8);
            self.queue.push(self.now + wait, Happening::Trial);
        }
    }

    /// Lets a trial go on.
    pub(super) fn trial(&mut self) -> Checked {
        if self.faults_are_over() {
            return Ok(());
        }
        let timeout = self.plan.settings.consensus.election_timeout;
        let passed = |now: Moment, since: Moment| now.since(since);
        match self.trials.phase.clone() {
            Phase::Between => {
                self.calm_down()?;
                self.trials.phase = Phase::Settling { since: self.now };
            }
            // Messages sent before the calm may be very late, and so is everything after them in their streams.
            Phase::Settling { .. } if self.network.is_slow_until() > self.now + timeout / 4 => {}
            Phase::Settling { since } => match self.settled_leader() {
                Some(leader) => self.begin_to_cut(leader)?,
                None if passed(self.now, since) > timeout * SETTLES_WITHIN => {
                    self.coverage.trials_skipped += 1;
                    self.end_trial();
                    return Ok(());
                }
                None => {}
            },
            Phase::Lagging { since, hub, partition } => {
                let lags = self.decided_max().0.saturating_sub(self.decided(hub).0) >= LAG_SLOTS;
                if lags || passed(self.now, since) > timeout * LAGS {
                    self.cut_to(Topology::LaggingHub, hub)?;
                    self.mend(partition);
                }
            }
            Phase::Electing(cut) => {
                let within = serves_within(&self.plan.settings.consensus);
                if passed(self.now, cut.since) >= timeout * within.unwrap_or(LASTS / 2) {
                    self.must_serve(cut)?;
                }
            }
            Phase::Serving { cut, leader, ballot, elections } => {
                if self.goes_on_leading(cut, leader, ballot, elections)? {
                    self.end_trial();
                    return Ok(());
                }
            }
            Phase::Moving { cut, since } => self.must_move(cut, since)?,
        }
        if self.trials.is_on() {
            self.queue.push(self.now + timeout / 8, Happening::Trial);
        }
        Ok(())
    }

    /// While one serves: it has to, unless leadership may move. Returns whether the trial is over.
    fn goes_on_leading(
        &mut self,
        cut: Cut,
        leader: usize,
        ballot: Ballot,
        elections: u64,
    ) -> Result<bool, Violation> {
        let same = self.leads_in(leader) == Some(ballot) && self.coverage.elections == elections;
        let moves = self.plan.settings.consensus.election == ElectionKind::Latency;
        let may_move = moves && !self.trials.asked.is_empty() && self.trials.moves < MOVES_MAX;
        self.demand_of_election(same || may_move, || {
            format!(
                "r{} led in {ballot}, and did not go on, or somebody else began to lead, although links \
                 stayed as they were {:?} ago ({}), after {} moves of leadership; asked to take over: {}; {}",
                leader + 1,
                self.now.since(cut.since),
                cut.topology,
                self.trials.moves,
                in_words(&self.trials.heirs()),
                self.roles()
            )
        })?;
        if !same && moves {
            self.trials.moves += 1;
            let cut = Cut { proposed: self.checks[FIRST].votes.highest(), ..cut };
            self.trials.phase = Phase::Moving { cut, since: self.now };
            // So that there is something to decide.
            self.begin_probing();
            return Ok(false);
        }
        let is_over =
            !same || self.now.since(cut.since) >= self.plan.settings.consensus.election_timeout * LASTS;
        if is_over {
            self.coverage.trials += 1;
            self.mend(cut.partition);
        }
        Ok(is_over)
    }

    /// After a hand-over another one serves soon.
    fn must_move(&mut self, cut: Cut, since: Moment) -> Checked {
        let leader = self.serving(&cut);
        let late = self.now.since(since) > self.plan.settings.consensus.election_timeout * MOVES_WITHIN;
        self.demand_of_election(leader.is_some() || !late, || {
            format!(
                "{:?} after a leader handed over, or another began to lead ({}), none has decided \
                 anything beyond slot {}; {}",
                self.now.since(since),
                cut.topology,
                cut.proposed,
                self.roles()
            )
        })?;
        let Some(leader) = leader else { return Ok(()) };
        self.demand_of_election(self.trials.heirs().contains(&leader), || {
            format!(
                "r{} leads ({}), and was not asked to take over, as were {}; {}",
                leader + 1,
                cut.topology,
                in_words(&self.trials.heirs()),
                self.roles()
            )
        })?;
        // What an earlier leader asked is over.
        self.trials.asked.retain(|&(asker, _)| asker == leader);
        self.goes_on(cut, leader);
        Ok(())
    }

    /// A violation, if the election promises what does not hold.
    fn demand_of_election(&self, holds: bool, detail: impl FnOnce() -> String) -> Checked {
        let promises = serves_within(&self.plan.settings.consensus).is_some();
        demand(holds || !promises, Invariant::ServesWhenConnected, detail)
    }

    /// Lets everything work again, until the end of the trial.
    fn calm_down(&mut self) -> Checked {
        self.trials.left -= 1;
        let before = self.network.calm();
        let plan = &mut self.plan;
        let (any_step, snapshot_fails) = (plan.faults.any_step, plan.disk.snapshot_fails);
        self.trials.rough = Some((before, any_step, snapshot_fails));
        plan.faults.any_step = Odds::NEVER;
        plan.disk.snapshot_fails = Odds::NEVER;
        self.set_right()
    }

    fn end_trial(&mut self) {
        if let Some((network, any_step, snapshot_fails)) = self.trials.rough.take() {
            self.network.be_as(network);
            self.plan.faults.any_step = any_step;
            self.plan.disk.snapshot_fails = snapshot_fails;
        }
        self.trials.phase = Phase::Between;
        self.begin_trials();
    }

    /// The leader, if all replicas follow it and lack nothing.
    pub(super) fn settled_leader(&self) -> Option<usize> {
        self.leader_followed_by((0..self.machines.len()).collect())
    }

    /// The leader, if these replicas follow it and lack nothing.
    pub(super) fn leader_followed_by(&self, replicas: Vec<usize>) -> Option<usize> {
        let leader = (0..self.machines.len()).find(|&of| self.leads_in(of).is_some())?;
        let ballot = self.leads_in(leader);
        let follows = |of: usize| {
            let life = self.machines[of].life.as_ref().filter(|_| self.machines[of].is_running());
            life.is_some_and(|life| {
                let status = life.replica(FIRST).status().protocol;
                life.replica(FIRST).may_vote()
                    && status.view.leader == Some(self.machines[leader].id)
                    && Some(status.view.ballot) == ballot
                    && status.decided >= status.decided_elsewhere
            })
        };
        replicas.into_iter().all(follows).then_some(leader)
    }

    fn begin_to_cut(&mut self, leader: usize) -> Checked {
        let replicas = self.machines.len();
        let rng = &mut self.trials.rng;
        let topology = Topology::ALL[rng.usize(0..Topology::ALL.len())];
        if topology != Topology::LaggingHub {
            return self.cut_to(topology, leader);
        }
        let hub = (leader + rng.usize(1..replicas)) % replicas;
        let links = (0..replicas).filter(|&of| of != hub).flat_map(|of| [(of, hub), (hub, of)]);
        let partition = self.cut(links.collect());
        self.trials.phase = Phase::Lagging { since: self.now, hub, partition };
        Ok(())
    }

    /// Cuts the links that a topology does not have. `special` is the hub that lags, or the leader.
    fn cut_to(&mut self, topology: Topology, special: usize) -> Checked {
        let replicas = self.machines.len();
        let kept = topology.links(replicas, special, &mut self.trials.rng);
        let all = (0..replicas).flat_map(|from| (0..replicas).map(move |to| (from, to)));
        let cut: Vec<_> = all.filter(|&(from, to)| from != to && !kept.contains(&(from, to))).collect();
        let reaches = |of: usize| {
            let both = |to: &usize| kept.contains(&(of, *to)) && kept.contains(&(*to, of));
            1 + (0..replicas).filter(both).count() > replicas / 2
        };
        let connected: Vec<usize> = (0..replicas).filter(|&of| reaches(of)).collect();
        let partition = self.cut(cut);
        let proposed = self.checks[FIRST].votes.highest();
        (self.trials.asked, self.trials.moves) = (Vec::new(), 0);
        self.trials.phase =
            Phase::Electing(Cut { since: self.now, partition, topology, connected, proposed });
        // There must be something to order, wherever the next leader is.
        self.begin_probing();
        Ok(())
    }

    /// Checks that some replica serves by now.
    fn must_serve(&mut self, cut: Cut) -> Checked {
        let leader = self.serving(&cut);
        self.demand_of_election(leader.is_some() || cut.connected.is_empty(), || {
            format!(
                "{:?} after links were cut ({}), none of [{}], which are connected to a quorum, has decided \
                 anything beyond slot {}; {}",
                self.now.since(cut.since),
                cut.topology,
                in_words(&cut.connected),
                cut.proposed,
                self.roles()
            )
        })?;
        match leader {
            Some(leader) => self.goes_on(cut, leader),
            None => {
                self.mend(cut.partition);
                self.end_trial();
            }
        }
        Ok(())
    }

    /// The replica in the highest ballot that leads, is connected to a quorum, and has decided something new since the
    /// cut.
    fn serving(&self, cut: &Cut) -> Option<usize> {
        let serves = |of: &&usize| self.leads_in(**of).is_some() && self.decided(**of) > cut.proposed;
        cut.connected.iter().filter(serves).max_by_key(|of| self.leads_in(**of)).copied()
    }

    /// This replica serves, and has to go on.
    fn goes_on(&mut self, cut: Cut, leader: usize) {
        let ballot = self.leads_in(leader).expect("it leads");
        let elections = self.coverage.elections;
        self.trials.phase = Phase::Serving { cut, leader, ballot, elections };
    }

    /// The ballot in which a replica leads, if it does.
    pub(super) fn leads_in(&self, of: usize) -> Option<Ballot> {
        let status = self.machines[of].life.as_ref()?.replica(FIRST).status().protocol;
        (status.role == Role::Leader).then_some(status.view.ballot)
    }

    fn decided(&self, of: usize) -> Slot {
        let life = self.machines[of].life.as_ref();
        life.map_or(Slot::ZERO, |life| life.replica(FIRST).status().protocol.decided)
    }

    pub(super) fn decided_max(&self) -> Slot {
        (0..self.machines.len()).map(|of| self.decided(of)).max().unwrap_or_default()
    }
}

impl Topology {
    /// The links that work: pairs of replicas, by index, in one direction.
    fn links(self, replicas: usize, special: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
        let both = |a: usize, b: usize| [(a, b), (b, a)];
        let pairs = || (0..replicas).flat_map(|a| (a + 1..replicas).map(move |b| (a, b)));
        let mut order: Vec<usize> = (0..replicas).collect();
        rng.shuffle(&mut order);
        match self {
            Topology::Hub => {
                let hub = (special + rng.usize(1..replicas)) % replicas;
                (0..replicas).filter(|&of| of != hub).flat_map(|of| both(of, hub)).collect()
            }
            Topology::LaggingHub => {
                let away = (special + rng.usize(1..replicas)) % replicas;
                let away = Some(away).filter(|_| replicas > 3);
                (0..replicas)
                    .filter(|&of| of != special && Some(of) != away)
                    .flat_map(|of| both(of, special))
                    .collect()
            }
            Topology::Chain => order.windows(2).flat_map(|pair| both(pair[0], pair[1])).collect(),
            Topology::Ring => {
                let next = |place: usize| order[(place + 1) % replicas];
                (0..replicas).flat_map(|place| both(order[place], next(place))).collect()
            }
            Topology::LeaderCutOff => {
                pairs().filter(|&(a, b)| a != special && b != special).flat_map(|(a, b)| both(a, b)).collect()
            }
            Topology::Driftwood => {
                let place = |of: usize| (of + replicas - special) % replicas;
                let cut = [(0, 2), (0, 3), (1, 4)];
                let works = |&(a, b): &(usize, usize)| {
                    let (a, b) = (place(a).min(place(b)), place(a).max(place(b)));
                    !cut.contains(&(a, b))
                };
                pairs().filter(works).flat_map(|(a, b)| both(a, b)).collect()
            }
            Topology::Some => pairs().filter(|_| rng.bool()).flat_map(|(a, b)| both(a, b)).collect(),
            Topology::OneWay => {
                let all = (0..replicas).flat_map(|from| (0..replicas).map(move |to| (from, to)));
                all.filter(|(from, to)| from != to && rng.u8(0..3) > 0).collect()
            }
        }
    }
}

/// Replicas, as they are shown.
fn in_words(replicas: &[usize]) -> String {
    replicas.iter().map(|of| format!("r{}", of + 1)).collect::<Vec<_>>().join(" ")
}

/// The shortest duration of a run with trials.
pub(crate) fn duration(trials: u32, timeout: Duration) -> Duration {
    timeout * (8 + SETTLES_WITHIN / 2 + LAGS + LASTS) * trials
}
