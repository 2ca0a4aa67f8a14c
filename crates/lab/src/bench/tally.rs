//! The counts of one thread in one interval. Tallies of threads add up to an interval, those of intervals to a run.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;

use super::report::FirstError;

/// Latencies are kept from a microsecond to ten minutes, with three significant digits.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Different errors that are counted separately. A server that puts a number into each message must not fill memory.
const ERROR_KINDS_MAX: usize = 32;
/// Errors that are shown one by one.
pub(super) const FIRST_ERRORS_MAX: usize = 5;
/// Characters of an error's message that are kept.
const MESSAGE_CHARS_MAX: usize = 200;

/// The latencies to which a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Get,
}

/// Counts and latencies.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Latencies of answered puts that were due in the window. A histogram takes 170 kB, so there is one only
    /// if it has values.
    pub(super) puts: Option<Histogram<u64>>,
    /// Latencies of answered gets that were due in the window.
    pub(super) gets: Option<Histogram<u64>>,
    /// In an open loop, the times from when requests were due until they were sent.
    pub(super) lateness: Option<Histogram<u64>>,
    /// Answers that came, whenever the request was due.
    pub(super) answered: u64,
    /// Answers that came inside the window, whenever the request was due.
    pub(super) answered_in_window: u64,
    /// Gets due in the window that found their key.
    pub(super) found: u64,
    /// Requests due in the window that failed.
    pub(super) failed: u64,
    /// Requests of the warm-up that failed.
    pub(super) failed_in_warmup: u64,
    /// How often each error occurred: code, message.
    pub(super) errors: BTreeMap<(String, String), u64>,
    pub(super) first_errors: Vec<FirstError>,
}

impl Tally {
    /// Counts an answer to a request that was due in the window.
    pub(super) fn record_latency(&mut self, kind: Kind, latency: Duration) {
        let histogram = match kind {
            Kind::Put => &mut self.puts,
            Kind::Get => &mut self.gets,
        };
        histogram.get_or_insert_with(histogram_of_latencies).saturating_record(micros(latency));
    }

    /// Records how late a request was sent.
    pub(super) fn record_lateness(&mut self, lateness: Duration) {
        self.lateness.get_or_insert_with(histogram_of_latencies).saturating_record(micros(lateness));
    }

    /// Counts a failure.
    pub(super) fn record_error(&mut self, mut error: FirstError, in_window: bool) {
        if in_window {
            self.failed += 1;
        } else {
            self.failed_in_warmup += 1;
        }
        if let Some((at, _)) = error.message.char_indices().nth(MESSAGE_CHARS_MAX) {
            error.message.truncate(at);
        }
        self.count_error((error.code.clone(), error.message.clone()), 1);
        if self.first_errors.len() < FIRST_ERRORS_MAX {
            self.first_errors.push(error);
        }
    }

    /// Adds the counts of another thread or another interval.
    pub(super) fn add(&mut self, other: &Tally) {
        add_histogram(&mut self.puts, other.puts.as_ref());
        add_histogram(&mut self.gets, other.gets.as_ref());
        add_histogram(&mut self.lateness, other.lateness.as_ref());
        self.answered += other.answered;
        self.answered_in_window += other.answered_in_window;
        self.found += other.found;
        self.failed += other.failed;
        self.failed_in_warmup += other.failed_in_warmup;
        for (error, count) in &other.errors {
            self.count_error(error.clone(), *count);
        }
        self.first_errors.extend_from_slice(&other.first_errors);
        self.first_errors.sort_by(|a, b| a.at_seconds.total_cmp(&b.at_seconds));
        self.first_errors.truncate(FIRST_ERRORS_MAX);
    }

    /// Latencies of puts and gets together.
    pub(super) fn all(&self) -> Histogram<u64> {
        let mut all = Some(histogram_of_latencies());
        add_histogram(&mut all, self.puts.as_ref());
        add_histogram(&mut all, self.gets.as_ref());
        all.unwrap_or_else(histogram_of_latencies)
    }

    fn count_error(&mut self, error: (String, String), count: u64) {
        let known = self.errors.contains_key(&error);
        let key = if known || self.errors.len() < ERROR_KINDS_MAX {
            error
        } else {
            ("Other".into(), "errors of further kinds".into())
        };
        *self.errors.entry(key).or_default() += count;
    }
}

fn add_histogram(sum: &mut Option<Histogram<u64>>, other: Option<&Histogram<u64>>) {
    if let Some(other) = other {
        let sum = sum.get_or_insert_with(histogram_of_latencies);
        sum.add(other).expect("histograms of one range add up");
    }
}

fn histogram_of_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are constants that are accepted")
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(at_seconds: f64, message: &str) -> FirstError {
        FirstError { at_seconds, endpoint: "e".into(), code: "Unavailable".into(), message: message.into() }
    }

    #[test]
    fn tallies_of_threads_add_up_to_the_tally_of_all() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut one = Tally::default();
        let mut parts: Vec<Tally> = (0..4).map(|_| Tally::default()).collect();
        for i in 0..20_000 {
            let latency = Duration::from_micros(rng.u64(1..2_000_000));
            let kind = if rng.bool() { Kind::Put } else { Kind::Get };
            for tally in [&mut one, &mut parts[i % 4]] {
                tally.record_latency(kind, latency);
                tally.record_lateness(latency / 2);
                tally.answered += 1;
            }
        }
        let mut sum = Tally::default();
        parts.iter().for_each(|part| sum.add(part));
        assert_eq!(sum.answered, 20_000);
        assert_eq!(sum.all().len(), 20_000);
        assert_eq!((&sum.puts, &sum.gets, &sum.lateness), (&one.puts, &one.gets, &one.lateness));
        assert_eq!(sum.all().value_at_quantile(0.99), one.all().value_at_quantile(0.99));
    }

    #[test]
    fn extreme_latencies_are_kept_at_the_bounds() {
        let mut tally = Tally::default();
        tally.record_latency(Kind::Put, Duration::ZERO);
        tally.record_latency(Kind::Put, Duration::from_secs(100_000));
        let all = tally.all();
        assert_eq!((all.len(), all.min()), (2, 1));
        assert!(all.max() >= LATENCY_US_MAX);
    }

    #[test]
    fn errors_are_counted_by_kind_and_the_kinds_are_bounded() {
        let mut tally = Tally::default();
        for i in 0..3 {
            tally.record_error(error(f64::from(i), "no leader"), true);
        }
        for i in 0..100 {
            tally.record_error(error(4.0, &format!("request {i}")), true);
        }
        tally.record_error(error(0.0, "too early"), false);
        let mut earlier = Tally::default();
        earlier.record_error(error(-1.0, &"x".repeat(1000)), false);
        tally.add(&earlier);
        assert_eq!((tally.failed, tally.failed_in_warmup), (103, 2));
        assert_eq!(tally.errors[&("Unavailable".into(), "no leader".into())], 3);
        assert!(tally.errors.len() <= ERROR_KINDS_MAX + 1);
        assert_eq!(tally.errors.values().sum::<u64>(), 105);
        assert_eq!(tally.first_errors.len(), FIRST_ERRORS_MAX);
        assert_eq!(tally.first_errors[0].message.len(), MESSAGE_CHARS_MAX);
    }
}
