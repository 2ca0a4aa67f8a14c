//! Tells an operator of slow requests, and not too often.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tonic::Code;
use tracing::warn;

/// Least time between two lines.
const SAY_INTERVAL: Duration = Duration::from_millis(100);

/// What is slow, and when an operator was last told.
#[derive(Debug)]
pub(crate) struct Slow {
    after: Duration,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    /// Slow requests since then that were not told.
    others: u64,
}

impl Slow {
    /// Requests that take longer than this are slow; zero: none is.
    pub(crate) fn new(after: Duration) -> Slow {
        Slow { after: if after.is_zero() { Duration::MAX } else { after }, said: Mutex::default() }
    }

    /// Looks at a request whose answer, or refusal, is known.
    pub(crate) fn look(&self, method: &str, code: Code, took: Duration) {
        if took <= self.after {
            return;
        }
        if let Some(others) = self.say(Instant::now()) {
            warn!(method, ?code, ?took, expected = ?self.after, others, "request stats: it took too long");
        }
    }

    /// How many requests were not told since the last that was, or `None` if this one is not either.
    fn say(&self, now: Instant) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.at.is_some_and(|at| now.duration_since(at) < SAY_INTERVAL) {
            said.others += 1;
            return None;
        }
        let others = said.others;
        *said = Said { at: Some(now), others: 0 };
        Some(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_told_ten_times_a_second_and_of_how_many_more() {
        let (slow, began) = (Slow::new(Duration::from_millis(300)), Instant::now());
        let at = |millis| slow.say(began + Duration::from_millis(millis));
        assert_eq!(
            [at(0), at(1), at(99), at(100), at(150), at(300)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
