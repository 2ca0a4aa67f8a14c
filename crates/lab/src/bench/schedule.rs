//! The times at which requests are due in an open loop.

use std::time::Duration;

/// The times at which requests are due, counted from the start of the run; the sequence never ends.
///
/// Several threads share a rate: each has a timetable of its own, and fixed intervals are staggered so that together
/// they are as regular as one.
#[derive(Debug)]
pub(super) struct Schedule {
    gap_seconds: f64,
    arrivals: Arrivals,
}

#[derive(Debug)]
enum Arrivals {
    /// The n-th request is due at `(n + offset) * gap`, which is computed each time so that errors do not add up.
    Fixed { next: u64, offset: f64 },
    /// Gaps are exponentially distributed; `at` is the last arrival in seconds.
    Poisson { rng: fastrand::Rng, at: f64 },
}

impl Schedule {
    /// A request every `1 / rate` seconds; the first is due after `offset` (0 to 1) of such an interval.
    pub(super) fn fixed(rate: f64, offset: f64) -> Schedule {
        assert!(rate > 0.0, "a rate is positive");
        Schedule { gap_seconds: 1.0 / rate, arrivals: Arrivals::Fixed { next: 0, offset } }
    }

    /// `rate` requests a second on average, independent of one another.
    pub(super) fn poisson(rate: f64, seed: u64) -> Schedule {
        assert!(rate > 0.0, "a rate is positive");
        let rng = fastrand::Rng::with_seed(seed);
        Schedule { gap_seconds: 1.0 / rate, arrivals: Arrivals::Poisson { rng, at: 0.0 } }
    }

    /// When the next request is due.
    pub(super) fn next_due(&mut self) -> Duration {
        let seconds = match &mut self.arrivals {
            Arrivals::Fixed { next, offset } => {
                let seconds = (*next as f64 + *offset) * self.gap_seconds;
                *next += 1;
                seconds
            }
            Arrivals::Poisson { rng, at } => {
                // 1 - [0, 1) is never 0, whose logarithm is infinite.
                *at -= (1.0 - rng.f64()).ln() * self.gap_seconds;
                *at
            }
        };
        // A rate so low that this overflows means "never"; a run is far shorter than ten years.
        Duration::from_secs_f64(seconds.min(315_360_000.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_intervals_do_not_drift() {
        let mut schedule = Schedule::fixed(3_000.0, 0.0);
        let due = (0..=3_000_000).map(|_| schedule.next_due()).last().unwrap();
        assert_eq!(due, Duration::from_secs(1_000));
    }

    #[test]
    fn threads_take_turns() {
        let mut threads = [Schedule::fixed(500.0, 0.0), Schedule::fixed(500.0, 0.5)];
        let due: Vec<Duration> = (0..6).map(|i| threads[i % 2].next_due()).collect();
        let expected = [0, 1, 2, 3, 4, 5].map(Duration::from_millis);
        assert_eq!(due, expected);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread() {
        let mut schedule = Schedule::poisson(1_000.0, 7);
        let mut last = Duration::ZERO;
        let (mut sum, mut squares) = (0.0, 0.0);
        let count = 200_000;
        for _ in 0..count {
            let due = schedule.next_due();
            assert!(due >= last);
            let gap = (due - last).as_secs_f64();
            (sum, squares, last) = (sum + gap, squares + gap * gap, due);
        }
        let mean = sum / f64::from(count);
        let deviation = (squares / f64::from(count) - mean * mean).sqrt();
        // An exponential distribution has mean and deviation 1 / rate; 200,000 samples come within a percent.
        assert!((mean * 1_000.0 - 1.0).abs() < 0.01, "mean {mean}");
        assert!((deviation * 1_000.0 - 1.0).abs() < 0.02, "deviation {deviation}");
    }

    #[test]
    fn a_seed_gives_its_arrivals_again() {
        let take = |seed| {
            let mut schedule = Schedule::poisson(10.0, seed);
            (0..5).map(|_| schedule.next_due()).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    /// The meaning of latency in an open loop: one client, and a server that answers in 1 ms except for a stall of 1 s.
    #[test]
    fn a_stall_is_charged_to_every_request_due_during_it() {
        let mut schedule = Schedule::fixed(100.0, 0.0);
        let service = Duration::from_millis(1);
        let stall = Duration::from_secs(1)..Duration::from_secs(2);
        let mut free_at = Duration::ZERO;
        let mut slow = 0;
        for _ in 0..300 {
            let due = schedule.next_due();
            let sent = due.max(free_at);
            let begins = if stall.contains(&sent) { stall.end } else { sent };
            free_at = begins + service;
            slow += usize::from(free_at - due > Duration::from_millis(500));
        }
        // Requests due from 1.00 s to 1.50 s wait for more than half a second; timing from the sending would show one.
        assert!((50..=56).contains(&slow), "{slow} slow requests");
    }
}
