//! When a group that orders less than others skips positions of the common order ([`crate::Merge`]).
//!
//! What a skip says changes only when batches are executed, never in which order: so each leader may decide by itself,
//! from what it has seen decided of all groups.

use std::{fmt, str::FromStr, time::Duration};

use synod_wire::{GroupId, Time};

use super::{Place, Take, beyond};
use crate::Replica;

/// When a group skips. With each of these a group skips as far as another group's batch waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Skips {
    /// A quiet group skips further, by what the busiest group will have ordered more than it within [`PERIOD`]: so the
    /// busy group finds it ahead, and does not wait for it. While no group orders anything, none skips.
    #[default]
    Follow,
    /// Not further: every batch of a group waits until the others have skipped, unless they are ahead already.
    Demand,
    /// And so that it goes on by this many positions a second, whether or not anybody orders anything (Benz 2013: λ,
    /// there a number for each interval).
    Lambda(u32),
}

/// A group is quiet if it orders less than this part of what the busiest one does.
const QUIET_SHARE: u64 = 8;

/// How often a group looks ahead (Benz 2013: Δt).
pub const PERIOD: Duration = Duration::from_millis(100);

impl fmt::Display for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skips::Follow => f.write_str("follow"),
            Skips::Demand => f.write_str("demand"),
            Skips::Lambda(rate) => write!(f, "lambda:{rate}"),
        }
    }
}

/// A text that names no policy of skips.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("accepted: follow, demand, lambda:N with a number N of positions a second from 1 to 1000000")]
pub struct UnknownSkips;

impl FromStr for Skips {
    type Err = UnknownSkips;

    fn from_str(text: &str) -> Result<Skips, UnknownSkips> {
        match text {
            "follow" => Ok(Skips::Follow),
            "demand" => Ok(Skips::Demand),
            _ => {
                let rate = text.strip_prefix("lambda:").and_then(|rate| rate.parse().ok());
                rate.filter(|rate| (1..=1_000_000).contains(rate)).map(Skips::Lambda).ok_or(UnknownSkips)
            }
        }
    }
}

/// What a replica knows of the pace of all groups.
#[derive(Debug)]
pub struct Pace {
    skips: Skips,
    take: Take,
    /// When the rates were last measured, and how many batches each group had then; none before the first look, since
    /// what was ordered before this life began says nothing of the pace.
    measured: (Time, Vec<u64>),
    /// Batches of each group in the last period.
    rates: Vec<u64>,
    /// With [`Skips::Lambda`]: when this replica began to count, and the position from which.
    since: Option<(Time, u64)>,
    /// Groups that others wait for, but for what is under way: at which position, and since when.
    behind: Vec<Option<(u64, Time)>>,
    /// When what is under way has taken too long in one of them.
    late_at: Time,
}

impl Pace {
    /// Nothing was seen yet of this many groups.
    #[must_use]
    pub fn new(skips: Skips, take: Take, groups: usize, now: Time) -> Pace {
        Pace {
            skips,
            take,
            measured: (now, Vec::new()),
            rates: vec![0; groups],
            since: None,
            behind: vec![None; groups],
            late_at: Time::NEVER,
        }
    }

    /// The groups that should skip now, as far as these replicas of them may, and to which positions.
    pub fn skips<'a>(
        &mut self,
        now: Time,
        replicas: impl Iterator<Item = &'a Replica> + Clone,
    ) -> Vec<(GroupId, u64)> {
        let places: Vec<_> =
            replicas.clone().map(|replica| replica.merged_at().unwrap_or_default()).collect();
        self.look(now, &places);
        self.late_at = Time::NEVER;
        let mut skips = Vec::new();
        for (group, replica) in (0u16..).map(GroupId).zip(replicas) {
            let proposed = replica.may_skip();
            let target = proposed.and_then(|proposed| self.target(now, group, &places, proposed));
            skips.extend(target.map(|target| (group, target)));
        }
        skips
    }

    /// Records where the groups are.
    fn look(&mut self, now: Time, places: &[Place]) {
        let (at, before) = &mut self.measured;
        if before.is_empty() {
            *before = places.iter().map(|place| place.batches).collect();
        }
        if now < *at + PERIOD {
            return;
        }
        let periods = (now.since(*at).as_nanos() / PERIOD.as_nanos()).max(1) as u64;
        for ((rate, before), place) in self.rates.iter_mut().zip(before).zip(places) {
            *rate = place.batches.saturating_sub(*before) / periods;
            *before = place.batches;
        }
        *at = now;
    }

    /// When it wants to be asked next, whatever happens; with most policies only what was decided matters, and what
    /// does not come.
    #[must_use]
    pub fn due(&self) -> Time {
        let looks =
            if matches!(self.skips, Skips::Lambda(_)) { self.measured.0 + PERIOD } else { Time::NEVER };
        looks.min(self.late_at)
    }

    /// How many of a group's batches count as under way while others need it to come to `needed`. For a period those
    /// that are; after that none, since a batch may never be decided, and another one that was counted may be a void
    /// one.
    fn under_way(&mut self, now: Time, group: usize, position: u64, needed: u64, proposed: u64) -> u64 {
        let behind = &mut self.behind[group];
        if position >= needed || proposed == 0 {
            *behind = None;
            return proposed;
        }
        let (_, since) = behind.filter(|(at, _)| *at == position).unwrap_or((position, now));
        *behind = Some((position, since));
        if now >= since + PERIOD {
            return 0;
        }
        self.late_at = self.late_at.min(since + PERIOD);
        proposed
    }

    /// The position to which a group should skip now, if it should. `proposed`: this many of its batches are under way.
    fn target(&mut self, now: Time, group: GroupId, places: &[Place], proposed: u64) -> Option<u64> {
        let at = usize::from(group.0);
        let position = places[at].position;
        let others = (0u16..).map(GroupId).zip(places).filter(|(other, _)| *other != group);
        let last = others.filter_map(|(other, place)| Some((place.last?, other)));
        let needed = last.map(|(last, other)| beyond(group, other, last, self.take)).max().unwrap_or(0);
        let ahead = position + self.under_way(now, at, position, needed, proposed);
        let target = match self.skips {
            Skips::Demand => needed,
            Skips::Follow => {
                let (busiest, own) = (self.rates.iter().copied().max().unwrap_or(0), self.rates[at]);
                // A group that orders something itself would have to be waited for once it is ahead.
                let quiet = own < busiest / QUIET_SHARE;
                let lead = if quiet { busiest - own } else { 0 };
                // Only once half of the lead is used up, so that a skip comes a few times in a period.
                if ahead < needed + lead / 2 { needed + lead } else { needed }
            }
            Skips::Lambda(rate) => {
                let furthest = places.iter().map(|place| place.position).max().unwrap_or(0);
                let (since, base) = *self.since.get_or_insert((now, furthest));
                let periods = now.since(since).as_nanos() / PERIOD.as_nanos();
                let went = periods * PERIOD.as_nanos() * u128::from(rate) / 1_000_000_000;
                needed.max(base.saturating_add(u64::try_from(went).unwrap_or(u64::MAX)))
            }
        };
        (ahead < target).then_some(target)
    }
}

impl Replica {
    /// Where this group is in the common order, as far as this replica has delivered, if it is one of several groups
    /// that are merged.
    #[must_use]
    pub fn merged_at(&self) -> Option<Place> {
        self.history.place()
    }

    /// How many batches are on their way, if this replica may skip for its group now: one skip is under way at a time.
    #[must_use]
    pub fn may_skip(&self) -> Option<u64> {
        let batches = self.requests.under_way() + self.forwarded.len();
        (self.takes_care() && !self.requests.has_skip()).then_some(batches as u64)
    }

    /// Has the group go on to a position of the common order.
    pub(crate) fn skip(&mut self, now: Time, target: u64) {
        if self.may_skip().is_some() {
            self.requests.add_skip(now, target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ordered_before_a_life_is_no_pace() {
        let now = Time::ZERO + Duration::from_secs(1);
        let mut pace = Pace::new(Skips::Follow, Take::MIN, 2, now);
        let places = |busy| [busy, 7].map(|batches| Place { batches, ..Place::default() });
        pace.look(now, &places(1_000_000));
        pace.look(now + PERIOD, &places(1_000_020));
        assert_eq!(pace.rates, [20, 0]);
        pace.look(now + PERIOD * 5, &places(1_000_040));
        assert_eq!(pace.rates, [5, 0], "in a period, on average");
    }

    #[test]
    fn a_batch_that_does_not_come_is_not_waited_for_longer_than_a_period() {
        let (now, take) = (Time::ZERO + Duration::from_secs(1), Take::MIN);
        let mut pace = Pace::new(Skips::Demand, take, 2, now);
        let ahead = Place { position: 5, batches: 5, last: Some(4) };
        let places = [ahead, Place { position: 3, ..Place::default() }];
        let mut target = |after, proposed| pace.target(now + after, GroupId(1), &places, proposed);
        assert_eq!(target(Duration::ZERO, 1), None, "a batch is under way");
        assert_eq!(target(PERIOD / 2, 1), None);
        assert_eq!(target(PERIOD, 1), Some(4));
        assert_eq!(target(PERIOD * 2, 0), Some(4), "nothing is under way");
        assert_eq!(target(PERIOD * 3, 1), None, "now one is");
        assert_eq!(pace.due(), now + PERIOD, "it was to be asked again then");
    }
}
