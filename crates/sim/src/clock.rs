//! The time of the simulated world, and the clocks of its replicas, which differ from it.

use std::{
    fmt,
    ops::{Add, AddAssign},
    time::Duration,
};

use synod_wire::Time;

/// An instant of the simulated world, in nanoseconds since its beginning. No replica ever sees one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The beginning of the world.
    pub const START: Moment = Moment(0);

    /// The instant this long after the beginning.
    #[must_use]
    pub fn after(duration: Duration) -> Moment {
        Moment::START + duration
    }

    /// The time since `earlier`; zero if that is still to come.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}ms", self.0 / 1_000_000, self.0 / 1_000 % 1_000)
    }
}

/// The rate of a perfect clock, in the unit of [`Clock::new`].
pub const PERFECT_PPM: u64 = 1_000_000;

/// The monotonic clock of one life of a replica. It begins anywhere and runs at a rate of its own.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Moment,
    shown_then: u64,
    rate_ppm: u64,
}

impl Clock {
    /// A clock that shows `shown` at `now`, and then advances `rate_ppm` microseconds for each second of the world.
    ///
    /// # Panics
    /// The rate is zero.
    #[must_use]
    pub fn new(now: Moment, shown: Duration, rate_ppm: u64) -> Clock {
        assert!(rate_ppm > 0, "a clock runs");
        let shown_then = u64::try_from(shown.as_nanos()).expect("a clock begins within centuries");
        Clock { began: now, shown_then, rate_ppm }
    }

    /// The same clock, set forward so that it shows `time` at `now`; a clock is never set back.
    #[must_use]
    pub fn set_forward(&self, now: Moment, time: Time) -> Clock {
        let shown_then = self.read(now).as_nanos().max(time.as_nanos());
        Clock { began: now, shown_then, rate_ppm: self.rate_ppm }
    }

    /// The time that the clock shows.
    #[must_use]
    pub fn read(&self, now: Moment) -> Time {
        let elapsed = u128::from(now.0.saturating_sub(self.began.0));
        let ticks = elapsed * u128::from(self.rate_ppm) / u128::from(PERFECT_PPM);
        Time::from_nanos(self.shown_then + u64::try_from(ticks).expect("a simulation is short"))
    }

    /// The first instant at which the clock shows at least `time`; `None` if the world ends before.
    #[must_use]
    pub fn when(&self, time: Time) -> Option<Moment> {
        let ticks = u128::from(time.as_nanos().saturating_sub(self.shown_then));
        let elapsed = (ticks * u128::from(PERFECT_PPM)).div_ceil(u128::from(self.rate_ppm));
        let elapsed = u64::try_from(elapsed).ok()?;
        self.began.0.checked_add(elapsed).map(Moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_rings_not_before_and_not_long_after_the_time_it_was_set_to() {
        for rate_ppm in [1, 900_000, 999_999, PERFECT_PPM, 1_000_001, 1_100_000, 3_000_000] {
            let clock = Clock::new(Moment(77), Duration::from_nanos(1_000), rate_ppm);
            for nanos in [0, 999, 1_000, 1_001, 54_321, 1_000_000_007] {
                let time = Time::from_nanos(nanos);
                let rings = clock.when(time).unwrap();
                assert!(clock.read(rings) >= time, "{rate_ppm} {nanos}");
                if rings.0 > 77 {
                    assert!(clock.read(Moment(rings.0 - 1)) < time, "{rate_ppm} {nanos}");
                }
            }
        }
    }

    #[test]
    fn never_does_not_ring() {
        assert_eq!(Clock::new(Moment(1), Duration::ZERO, 999_999).when(Time::NEVER), None);
    }
}
