//! When a group that orders less than others skips positions of the common order ([`crate::Merge`]).
//!
//! What a skip says changes only when batches are executed, never in which order: so each leader may decide by itself,
//! from what it has seen decided of all groups.

use std::{fmt, str::FromStr, time::Duration};

use synod_wire::{CommandKind, GroupId, Time};

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
    /// When the rates were last measured, and how many batches each group had then.
    measured: (Time, Vec<u64>),
    /// Batches of each group in the last period.
    rates: Vec<u64>,
    /// With [`Skips::Lambda`]: when this replica began to count, and the position from which.
    since: Option<(Time, u64)>,
}

impl Pace {
    /// Nothing was seen yet of so many groups.
    #[must_use]
    pub fn new(skips: Skips, take: Take, groups: usize, now: Time) -> Pace {
        Pace { skips, take, measured: (now, vec![0; groups]), rates: vec![0; groups], since: None }
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
        let mut skips = Vec::new();
        for (group, replica) in (0u16..).map(GroupId).zip(replicas) {
            let proposed = replica.may_skip();
            let target = proposed.and_then(|proposed| self.target(now, group, &places, proposed));
            skips.extend(target.map(|target| (group, target)));
        }
        skips
    }

    /// Takes note of where the groups are.
    fn look(&mut self, now: Time, places: &[Place]) {
        let (at, before) = &mut self.measured;
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

    /// When it wants to be asked next, whatever happens; with most policies only what was decided matters.
    #[must_use]
    pub fn due(&self) -> Time {
        if matches!(self.skips, Skips::Lambda(_)) { self.measured.0 + PERIOD } else { Time::NEVER }
    }

    /// The position to which a group should skip now, if it should. `proposed`: so many of its batches are under way.
    fn target(&mut self, now: Time, group: GroupId, places: &[Place], proposed: u64) -> Option<u64> {
        let at = usize::from(group.0);
        let position = places[at].position;
        let others = (0u16..).map(GroupId).zip(places).filter(|(other, _)| *other != group);
        let last = others.filter_map(|(other, place)| Some((place.last?, other)));
        let needed = last.map(|(last, other)| beyond(group, other, last, self.take)).max().unwrap_or(0);
        let ahead = position + proposed;
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
    /// Where this group is in the common order, as far as this replica has delivered, if it is one of several groups that
    /// are merged.
    #[must_use]
    pub fn merged_at(&self) -> Option<Place> {
        self.history.place()
    }

    /// How many batches are on their way, if this replica may skip for its group now: one skip is under way at a time.
    #[must_use]
    pub fn may_skip(&self) -> Option<u64> {
        let under_way = self.last_skip.is_some_and(|skip| self.requests.lowest_own() <= skip);
        let batches = self.requests.under_way() + self.forwarded.len();
        (self.takes_care() && !under_way).then_some(batches as u64)
    }

    /// Has the group go on to a position of the common order.
    pub(crate) fn skip(&mut self, now: Time, target: u64) {
        if self.may_skip().is_some() {
            let sequence = self.requests.add_own(now, None, CommandKind::Skip, &target.to_le_bytes());
            self.last_skip = Some(sequence);
        }
    }
}
