//! In which order the members of a ring stand (Benz 2013, sections 5.2 and 3.2).
//!
//! What passes the ring takes the whole round to its proposer, and two rounds if the proposer stands behind the
//! coordinator and before the member at which the votes reach a quorum. So the cost of an order is the time of its
//! round, times one and the share of the batches that such members propose. Any order is safe (docs/ring.md); a wrong
//! one costs time.

use std::{collections::BTreeMap, time::Duration};

use synod_wire::{DecodeError, Reader, ReplicaId, Time, Writer};

use super::{Message, Ring, State};
use crate::{Effects, Threshold, codec::Field, leadership::Leads, options::choice, paxos::Paxos};

choice! {
    /// In which order the members of the ring stand.
    #[derive(Default)]
    RingOrder, "order of the ring" {
        #[default]
        /// By role, and by number among those with the same role.
        Role = "role",
        /// By the delays between them, and by how much each proposes.
        Measured = "measured",
    }
}

/// How long what one member sends takes to another, as the sender measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The other member.
    pub to: ReplicaId,
    /// Half of the shortest time in which it answered lately, in microseconds.
    pub micros: u64,
}

impl Field for Delay {
    fn write(&self, writer: &mut Writer) {
        writer.replica(self.to);
        writer.u64(self.micros);
    }

    fn read(reader: &mut Reader, _: &'static str) -> Result<Delay, DecodeError> {
        let (to, micros) = (reader.replica("member of a delay")?, reader.u64("microseconds of a delay")?);
        Ok(Delay { to, micros })
    }
}

/// Election time-outs from one comparison of orders to the next.
const COMPARE_TIMEOUTS: u32 = 2;
/// In this many comparisons one after the other some order must be worth a change.
const COMPARISONS: u32 = 2;
/// An order must be better by one part in this many, and by [`GAIN_MIN`], to be worth a change.
const GAIN_PART: u64 = 10;
const GAIN_MIN: Duration = Duration::from_millis(1);
/// Comparisons are at most this many times rarer after rings that did not carry.
const RARER_MAX: u32 = 16;
/// Shares of proposals are counted in parts of this.
const WHOLE: u64 = 1024;

/// What a coordinator knows of the members for the order of its ring.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    /// What each member measured last.
    delays: BTreeMap<ReplicaId, Vec<Delay>>,
    /// How many batches came from each member, the older ones counting less.
    proposed: BTreeMap<ReplicaId, u64>,
    compare_at: Time,
    /// How often one after the other another order was worth a change.
    gains: u32,
    /// How many times rarer comparisons are.
    rarer: u32,
}

impl Survey {
    pub(super) fn new() -> Survey {
        Survey {
            delays: BTreeMap::new(),
            proposed: BTreeMap::new(),
            compare_at: Time::ZERO,
            gains: 0,
            rarer: 1,
        }
    }

    pub(super) fn measured(&mut self, by: ReplicaId, delays: Vec<Delay>) {
        self.delays.insert(by, delays);
    }

    /// A batch of this member's clients was ordered.
    pub(super) fn proposed(&mut self, by: ReplicaId) {
        *self.proposed.entry(by).or_default() += 1;
    }

    /// A ring begins. `broken` says that it takes the place of one that did not carry: its order was chosen for that,
    /// and has to last for longer each time.
    pub(super) fn ring_begins(&mut self, now: Time, timeout: Duration, broken: bool) {
        if broken {
            self.rarer = (self.rarer * 2).min(RARER_MAX);
        }
        self.gains = 0;
        self.compare_at = now + timeout * COMPARE_TIMEOUTS * self.rarer;
    }

    /// Members as the points between which an order is chosen. This many votes decide.
    fn points(&self, ids: &[ReplicaId], needed: usize, unknown: Duration) -> Points {
        let all: u64 = ids.iter().filter_map(|id| self.proposed.get(id)).sum();
        let share = |id: &ReplicaId| match all {
            0 => WHOLE / ids.len() as u64,
            _ => self.proposed.get(id).map_or(0, |&proposed| proposed * WHOLE / all),
        };
        let said = |by: &ReplicaId, to: ReplicaId| {
            let delays = self.delays.get(by)?.iter().find(|delay| delay.to == to);
            delays.map(|delay| delay.micros)
        };
        let unknown = micros(unknown);
        let delay = |one: &ReplicaId, other: &ReplicaId| {
            // Both measured the way there and back; the shorter time is nearer to what it takes.
            [said(one, *other), said(other, *one)].into_iter().flatten().min().unwrap_or(unknown).min(unknown)
        };
        Points {
            delays: ids.iter().map(|one| ids.iter().map(|other| delay(one, other)).collect()).collect(),
            shares: ids.iter().map(share).collect(),
            needed,
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Members by their index, the coordinator being the first.
#[derive(Clone, Debug)]
struct Points {
    /// How long what one sends takes to another, in microseconds.
    delays: Vec<Vec<u64>>,
    /// What each proposes of all, in parts of [`WHOLE`].
    shares: Vec<u64>,
    /// How many votes decide; all, if there are not this many.
    needed: usize,
}

impl Points {
    /// This many members are compared in every order.
    const EXACT_MAX: usize = 8;
    /// The most sweeps over all pairs of places to improve an order of more members.
    const SWEEPS_MAX: usize = 4;

    fn len(&self) -> usize {
        self.shares.len()
    }

    /// How long the round takes.
    fn round(&self, order: &[usize]) -> u64 {
        let next = order.iter().cycle().skip(1);
        order.iter().zip(next).map(|(&one, &other)| self.delays[one][other]).sum()
    }

    /// The time of the round, with what proposers wait for a second one, in parts of [`WHOLE`].
    fn cost(&self, order: &[usize]) -> u64 {
        // The last of these decides, and does not wait for a second round.
        let votes = self.needed.clamp(1, order.len());
        let twice: u64 = order[..votes - 1].iter().skip(1).map(|&member| self.shares[member]).sum();
        self.round(order) * (WHOLE + twice)
    }

    /// The order of the least cost, or of more than [`Points::EXACT_MAX`] members one that is no worse than
    /// `present`, and costs at most four times the least where delays keep the triangle inequality: a walk round the
    /// smallest tree takes at most twice the shortest round, and no share makes more of that than twice as much. Of
    /// equal orders the present one.
    fn best(&self, present: &[usize]) -> Vec<usize> {
        if self.len() <= Points::EXACT_MAX { self.exact(present) } else { self.near(present) }
    }

    fn exact(&self, present: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        let mut best = (self.cost(present), present.to_vec());
        loop {
            let cost = self.cost(&order);
            if cost < best.0 {
                best = (cost, order.clone());
            }
            next_permutation(&mut order[1..]);
            if order.is_sorted() {
                return best.1;
            }
        }
    }

    fn near(&self, present: &[usize]) -> Vec<usize> {
        let walk = self.walk_round_tree();
        let mut best = if self.cost(&walk) < self.cost(present) { walk } else { present.to_vec() };
        let mut cost = self.cost(&best);
        for _ in 0..Points::SWEEPS_MAX {
            let before = cost;
            for first in 1..self.len() {
                for last in first + 1..self.len() {
                    for turned in [true, false] {
                        let mut order = best.clone();
                        if turned {
                            order[first..=last].reverse()
                        } else {
                            order[first..=last].rotate_left(1)
                        }
                        let other = self.cost(&order);
                        if other < cost {
                            (best, cost) = (order, other);
                        }
                    }
                }
            }
            if cost == before {
                break;
            }
        }
        best
    }

    /// The members of the smallest spanning tree from the coordinator on, each before those behind it.
    fn walk_round_tree(&self) -> Vec<usize> {
        let mut parents = vec![0; self.len()];
        let mut outside: Vec<usize> = (1..self.len()).collect();
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.len()];
        while let Some(at) = (0..outside.len()).min_by_key(|&at| {
            let member = outside[at];
            (self.delays[parents[member]][member], member)
        }) {
            let member = outside.swap_remove(at);
            children[parents[member]].push(member);
            for &other in &outside {
                if self.delays[member][other] < self.delays[parents[other]][other] {
                    parents[other] = member;
                }
            }
        }
        let (mut order, mut stack) = (Vec::new(), vec![0]);
        while let Some(member) = stack.pop() {
            order.push(member);
            stack.extend(children[member].iter().rev());
        }
        order
    }
}

/// The next order of these in the order of their numbers; the first one after the last.
pub(super) fn next_permutation<T: Ord>(ids: &mut [T]) {
    let Some(descent) = (1..ids.len()).rev().find(|&at| ids[at - 1] < ids[at]) else { return ids.reverse() };
    let pivot = descent - 1;
    let larger =
        (descent..ids.len()).rev().find(|&at| ids[at] > ids[pivot]).expect("the one after it is larger");
    ids.swap(pivot, larger);
    ids[descent..].reverse();
}

impl Ring {
    /// Tells the coordinator how long what this replica sends takes to the other members.
    pub(super) fn tell_delays(&self, to: ReplicaId, effects: &mut Effects) {
        let delays = self.own_delays();
        if !delays.is_empty() {
            effects.send(to, Message::Delays { delays }, synod_wire::Lsn::ZERO);
        }
    }

    fn own_delays(&self) -> Vec<Delay> {
        let delay = |to: ReplicaId| {
            let trip = self.common().election.round_trip(to)?;
            Some(Delay { to, micros: micros(trip / 2) })
        };
        self.common().members.peers().filter_map(delay).collect()
    }

    /// An order of the ring that is worth a change, if the present one has not been the best for a while.
    pub(super) fn better_order(&mut self, now: Time) -> Option<Vec<ReplicaId>> {
        let State::Leader(leader) = &self.state else { return None };
        if !self.common.options.times_answers() || now < leader.survey.compare_at {
            return None;
        }
        let (order, learners) = self.voters_apart(&self.view.as_ref()?.order);
        let points = self.points(&order);
        let timeout = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return None };
        leader.survey.compare_at = now + timeout * COMPARE_TIMEOUTS * leader.survey.rarer;
        leader.survey.proposed.values_mut().for_each(|proposed| *proposed -= *proposed / 2);
        let present: Vec<usize> = (0..order.len()).collect();
        let best = points.best(&present);
        let (cost, least) = (points.cost(&present), points.cost(&best));
        let is_worth = cost - least > (cost / GAIN_PART).max(WHOLE * micros(GAIN_MIN));
        leader.survey.gains = if is_worth { leader.survey.gains + 1 } else { 0 };
        let best = best.into_iter().map(|member| order[member]);
        (leader.survey.gains >= COMPARISONS).then(|| best.chain(learners).collect())
    }

    /// The best order of these members, of which the coordinator is the first: of those that are known, by their role.
    pub(super) fn ordered(&mut self, ids: Vec<ReplicaId>) -> Vec<ReplicaId> {
        if !self.common.options.times_answers() {
            return ids;
        }
        let (ids, learners) = self.voters_apart(&ids);
        let present: Vec<usize> = (0..ids.len()).collect();
        let best = self.points(&ids).best(&present);
        best.into_iter().map(|member| ids[member]).chain(learners).collect()
    }

    /// These members, without the learners among them, and those. Nobody has measured how far learners are: they stay
    /// last.
    fn voters_apart(&self, ids: &[ReplicaId]) -> (Vec<ReplicaId>, Vec<ReplicaId>) {
        ids.iter().partition(|&&id| self.common().members.index(id).is_some())
    }

    fn points(&mut self, ids: &[ReplicaId]) -> Points {
        let (me, own) = (self.me(), self.own_delays());
        let needed = match self.common.options.ring.decision {
            super::RingDecision::Quorum => Threshold::Majority.least(self.common.members.count()),
            super::RingDecision::Last => usize::MAX,
        };
        let State::Leader(leader) = &mut self.state else { unreachable!("a coordinator places members") };
        leader.survey.measured(me, own);
        // What no member has measured lately may not carry.
        leader.survey.points(ids, needed, self.common.options.election_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % below
    }

    /// Points of a plane, with the distance between them as delay.
    fn plane(seed: &mut u64, count: usize) -> Points {
        let places: Vec<(i64, i64)> =
            (0..count).map(|_| (random(seed, 1_000) as i64, random(seed, 1_000) as i64)).collect();
        let delay =
            |(x, y): &(i64, i64), (z, w): &(i64, i64)| (x - z).unsigned_abs() + (y - w).unsigned_abs();
        let delays =
            places.iter().map(|one| places.iter().map(|other| delay(one, other)).collect()).collect();
        let shares = (0..count).map(|_| random(seed, WHOLE / count as u64)).collect();
        Points { delays, shares, needed: Threshold::Majority.least(count) }
    }

    fn in_turn(points: &Points) -> Vec<usize> {
        (0..points.len()).collect()
    }

    #[test]
    fn few_members_stand_in_the_best_of_all_orders() {
        let mut seed = 1;
        for count in 1..=6 {
            for _ in 0..50 {
                let points = plane(&mut seed, count);
                let best = points.cost(&points.best(&in_turn(&points)));
                let mut order = in_turn(&points);
                for _ in 0..720 {
                    assert!(best <= points.cost(&order));
                    next_permutation(&mut order[1..]);
                }
            }
        }
    }

    #[test]
    fn many_members_stand_within_the_bound_and_no_worse_than_before() {
        let mut seed = 2;
        let mut sum = 0.0;
        for _ in 0..100 {
            let points = plane(&mut seed, Points::EXACT_MAX);
            let near = points.near(&in_turn(&points));
            let (least, cost) = (points.cost(&points.exact(&in_turn(&points))), points.cost(&near));
            assert!(
                points.cost(&points.walk_round_tree()) <= 4 * least && cost <= points.cost(&in_turn(&points))
            );
            sum += cost as f64 / least as f64;
        }
        assert!(sum / 100.0 < 1.05, "on average {}", sum / 100.0);
        let points = plane(&mut seed, 40);
        let mut best = points.best(&in_turn(&points));
        assert!(points.cost(&best) < points.cost(&in_turn(&points)) / 2);
        assert_eq!(best[0], 0, "the coordinator");
        best.sort_unstable();
        assert_eq!(best, in_turn(&points));
    }

    /// Five members in two places: the ring crosses from one to the other once in each direction.
    #[test]
    fn a_ring_goes_to_a_distant_place_once() {
        let far = |member: usize| member % 2;
        let delay = |one: usize, other: usize| if far(one) == far(other) { 500 } else { 40_000 };
        let delays = (0..5).map(|one| (0..5).map(|other| delay(one, other)).collect()).collect();
        let points = Points { delays, shares: vec![WHOLE / 5; 5], needed: 3 };
        let best = points.best(&in_turn(&points));
        assert_eq!((points.round(&in_turn(&points)), points.round(&best)), (160_500, 81_500));
    }

    /// With equal delays a member that proposes much does not stand between the coordinator and the decision.
    #[test]
    fn a_busy_proposer_stands_where_one_round_is_enough() {
        let shares = vec![0, WHOLE, 0, 0, 0];
        let points = Points { delays: vec![vec![1_000; 5]; 5], shares, needed: 3 };
        let best = points.best(&in_turn(&points));
        assert!(best.iter().position(|&member| member == 1) >= Some(2), "{best:?}");
        assert_eq!(points.cost(&best), points.round(&best) * WHOLE);
        let last = Points { needed: usize::MAX, ..points };
        assert_eq!(last.best(&in_turn(&last))[4], 1, "where the last member decides");
    }

    #[test]
    fn what_nobody_has_measured_is_far_away_and_idle_members_count_alike() {
        let ids: Vec<ReplicaId> = [1, 2, 3].map(ReplicaId).to_vec();
        let mut survey = Survey::new();
        survey.measured(ids[0], vec![Delay { to: ids[1], micros: 900 }]);
        survey.measured(
            ids[1],
            vec![Delay { to: ids[0], micros: 700 }, Delay { to: ids[2], micros: 90_000_000 }],
        );
        let points = survey.points(&ids, 2, Duration::from_secs(1));
        assert_eq!(points.delays[0], [1_000_000, 700, 1_000_000]);
        assert_eq!(points.delays[1][2], 1_000_000);
        assert_eq!(points.shares, [341; 3]);
        survey.proposed(ids[2]);
        assert_eq!(survey.points(&ids, 2, Duration::from_secs(1)).shares, [0, 0, WHOLE]);
    }
}
