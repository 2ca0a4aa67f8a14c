//! The time from one round of gossip to the next (Driftwood 2023, section 6.2: dynamic round interval).
//!
//! Without a fixed interval the leader begins rounds as fast as they come back. A round that takes longer has waited at
//! a busy processor, at the leader's or at that of a replica which passed it on, or in a network with more to carry: so
//! rounds slow down with load, and follow each other sooner where they meet none. `docs/driftwood.md` says why that
//! stands for the use of the processor, by which the document means to adapt.

use std::{ops::RangeInclusive, time::Duration};

use synod_wire::Time;

use crate::Options;

/// This many rounds are under way at a time, as long as the bounds allow it.
const ROUNDS_UNDER_WAY: u32 = 2;

/// The shortest time from one round to the next.
pub(in crate::raft) const INTERVAL_MIN: Duration = Duration::from_micros(50);

/// How long the leader waits from one round to the next.
#[derive(Clone, Debug)]
pub(super) enum Pace {
    /// As long as the options say.
    Fixed(Duration),
    /// As long as rounds take.
    Measured(Measured),
}

/// How long rounds take.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The shortest and the longest interval.
    bounds: RangeInclusive<Duration>,
    /// The smoothed time from the beginning of a round to the first message that shows that it came back.
    takes: Duration,
    /// The round that is timed, with its beginning. One at a time is.
    timed: Option<(u64, Time)>,
}

impl Pace {
    pub(super) fn new(options: &Options) -> Pace {
        match options.raft.round_interval {
            Some(interval) => Pace::Fixed(interval),
            None => Pace::Measured(Measured::new(options)),
        }
    }

    /// The time from one round to the next.
    pub(super) fn interval(&self) -> Duration {
        match self {
            Pace::Fixed(interval) => *interval,
            Pace::Measured(measured) => measured.interval(),
        }
    }

    /// A round begins that some replica will answer, or send back.
    pub(super) fn begins(&mut self, round: u64, now: Time) {
        if let Pace::Measured(measured) = self {
            measured.begins(round, now);
        }
    }

    /// A replica answers a round, or sends it back.
    pub(super) fn returns(&mut self, round: u64, now: Time) {
        if let Pace::Measured(measured) = self {
            measured.returns(round, now);
        }
    }
}

impl Measured {
    fn new(options: &Options) -> Measured {
        // Rounds are signs of life, and followers that heartbeats do not reach have no others: several fit the time
        // after which the leader would be replaced, and one fits between two heartbeats.
        let longest = (options.heartbeat_interval / 2).min(options.election_timeout / 10).max(INTERVAL_MIN);
        let takes = (ROUNDS_UNDER_WAY * Duration::from_millis(1)).min(ROUNDS_UNDER_WAY * longest);
        Measured { bounds: INTERVAL_MIN..=longest, takes, timed: None }
    }

    fn interval(&self) -> Duration {
        (self.takes / ROUNDS_UNDER_WAY).clamp(*self.bounds.start(), *self.bounds.end())
    }

    fn begins(&mut self, round: u64, now: Time) {
        match self.timed {
            Some((_, began)) if now.since(began) <= 4 * self.takes => {}
            // It may be lost, or rounds take much longer than before.
            Some(_) => {
                self.takes = self.at_most(2 * self.takes);
                self.timed = Some((round, now));
            }
            None => self.timed = Some((round, now)),
        }
    }

    fn returns(&mut self, round: u64, now: Time) {
        let Some((_, began)) = self.timed.filter(|(timed, _)| round >= *timed) else { return };
        self.timed = None;
        // An eighth of what is new, as TCP smooths its round trips.
        self.takes = self.at_most((7 * self.takes + now.since(began)) / 8);
    }

    /// Beyond the longest interval nothing is remembered, so that one slow round is soon forgotten.
    fn at_most(&self, takes: Duration) -> Duration {
        takes.min(ROUNDS_UNDER_WAY * *self.bounds.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn measured() -> Pace {
        let mut options = Options::default();
        options.raft.round_interval = None;
        Pace::new(&options)
    }

    /// Rounds that each come back after so long; the interval after them.
    fn rounds(pace: &mut Pace, takes: Duration) -> Duration {
        for round in 1..=60 {
            let began = Time::ZERO + 50 * MS * round;
            pace.begins(u64::from(round), began);
            pace.returns(u64::from(round), began + takes);
        }
        pace.interval()
    }

    fn about(interval: Duration, expected: Duration) -> bool {
        interval.abs_diff(expected) <= expected / 10
    }

    #[test]
    fn rounds_follow_each_other_as_fast_as_they_come_back() {
        let mut pace = measured();
        for takes in [4 * MS, MS, 20 * MS, MS / 2] {
            let interval = rounds(&mut pace, takes);
            assert!(about(interval, takes / ROUNDS_UNDER_WAY), "{takes:?}: {interval:?}");
        }
    }

    #[test]
    fn the_interval_stays_where_failures_are_found_as_soon_as_without() {
        let mut pace = measured();
        assert_eq!(rounds(&mut pace, Duration::from_micros(3)), INTERVAL_MIN);
        assert_eq!(rounds(&mut pace, Duration::from_secs(9)), 50 * MS, "half a heartbeat");
        assert!(about(rounds(&mut pace, MS), MS / ROUNDS_UNDER_WAY), "what was slow once is forgotten");
        let mut options = Options { heartbeat_interval: Duration::from_secs(9), ..Options::default() };
        options.raft.round_interval = None;
        let mut pace = Pace::new(&options);
        assert_eq!(rounds(&mut pace, Duration::from_secs(9)), 100 * MS, "a tenth of an election time-out");
        options.election_timeout = Duration::from_micros(9);
        assert_eq!(rounds(&mut Pace::new(&options), MS), INTERVAL_MIN);
    }

    #[test]
    fn rounds_that_do_not_come_back_slow_it_down() {
        let mut pace = measured();
        rounds(&mut pace, MS);
        let (mut now, mut round) = (Time::ZERO + Duration::from_secs(9), 100);
        let before = pace.interval();
        for _ in 0..40 {
            now += pace.interval();
            round += 1;
            pace.begins(round, now);
        }
        assert!(pace.interval() > 4 * before, "{:?}", pace.interval());
        pace.returns(3, now);
        let Pace::Measured(Measured { timed: Some(_), .. }) = pace else { panic!("that one was lost") };
        let mut fixed = Pace::Fixed(7 * MS);
        assert_eq!(rounds(&mut fixed, Duration::from_secs(9)), 7 * MS);
    }
}
