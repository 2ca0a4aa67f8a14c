//! Monotonic time as the pure parts see it.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

/// An instant on one replica's monotonic clock, in nanoseconds since an origin that only that replica knows.
///
/// Pure code is given a `Time` with every input and never asks for one. Times of different replicas cannot be
/// compared, and are never sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than every instant that a process reaches.
    pub const NEVER: Time = Time(u64::MAX);

    /// The instant this many nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This instant, or the next one that is a multiple of `step` after the origin.
    ///
    /// # Panics
    /// If `step` is zero.
    #[must_use]
    pub fn rounded_up(self, step: Duration) -> Time {
        let step = nanos(step);
        Time(self.0.div_ceil(step).saturating_mul(step))
    }

    /// How long ago `earlier` was; zero if it is in the future.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(duration)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}ms", self.0 / 1_000_000, self.0 / 1_000 % 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_multiples() {
        for (nanos, rounded) in [(0, 0), (1, 10), (10, 10), (11, 20), (u64::MAX, u64::MAX)] {
            let step = if nanos == u64::MAX { 2 } else { 10 };
            assert_eq!(
                Time::from_nanos(nanos).rounded_up(Duration::from_nanos(step)),
                Time::from_nanos(rounded)
            );
        }
    }
}
