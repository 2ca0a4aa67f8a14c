//! How long the way round the ring takes, so that nothing is sent again that is only on its way.

use std::time::Duration;

/// An estimate of how long what is sent round the ring takes until it is decided. It rises at once, and falls slowly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    longest: Duration,
}

/// How long something took until it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Took {
    pub(super) time: Duration,
    /// Whether it was sent again meanwhile, so that the way may have taken less.
    pub(super) repeated: bool,
}

impl RoundTrip {
    /// How many of the longest ways fit into the time after which something is sent again.
    const WAYS: u32 = 3;

    /// Takes note of what was decided. How long the way of something was that was sent again, after `least` or later,
    /// is not known: half of the time counts, but so little that a loss is soon forgotten. That is enough to find
    /// out, step by step, that the way takes longer than the wait.
    pub(super) fn took(&mut self, took: Took, least: Duration) {
        let time = if took.repeated { (took.time / 2).min(self.longest.max(least)) } else { took.time };
        self.longest = time.max(self.longest - self.longest / 8);
    }

    /// How long to wait before something is sent again, at first: no less than `least`, and in any case no more than
    /// `most`, after which a message is rather lost than on its way.
    pub(super) fn wait(&self, least: Duration, most: Duration) -> Duration {
        (self.longest * RoundTrip::WAYS).max(least).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_millis(500);

    fn took(millis: u64, repeated: bool) -> Took {
        Took { time: Duration::from_millis(millis), repeated }
    }

    #[test]
    fn a_long_way_is_waited_for_once_it_is_known() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.wait(LEAST, MOST), LEAST);
        // It takes 160 ms, and was sent again after 100.
        round_trip.took(took(160, true), LEAST);
        assert_eq!(round_trip.wait(LEAST, MOST), Duration::from_millis(240));
        round_trip.took(took(160, false), LEAST);
        assert_eq!(round_trip.wait(LEAST, MOST), Duration::from_millis(480));
        round_trip.took(took(400, false), LEAST);
        assert_eq!(round_trip.wait(LEAST, MOST), MOST);
        assert_eq!(round_trip.wait(MOST * 2, MOST), MOST);
    }

    #[test]
    fn a_loss_is_soon_forgotten() {
        let mut round_trip = RoundTrip::default();
        round_trip.took(took(3_000, true), LEAST);
        assert_eq!(round_trip.wait(LEAST, MOST), LEAST * 3);
        for _ in 0..9 {
            round_trip.took(took(2, false), LEAST);
        }
        assert_eq!(round_trip.wait(LEAST, MOST), LEAST);
    }
}
