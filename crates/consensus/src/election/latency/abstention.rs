//! For how long a replica leaves leadership to others after it failed at it.
//!
//! Without that, leadership returns to the best member at once, however often that one fails there, and undoes what an
//! operator wishes.

use std::time::Duration;

use synod_wire::Time;

use super::rules::Rules;

/// A while doubles at most so often.
const DOUBLINGS_MAX: u32 = 7;
/// After a calm of this many of the shortest whiles one doubling is forgotten.
const CALM: u32 = 32;

/// Whiles in which a replica is not chosen. Each is twice as long as the one before, unless there was a long calm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abstention {
    /// The shortest while.
    least: Duration,
    ends_at: Time,
    doublings: u32,
}

impl Abstention {
    /// None yet.
    pub(super) fn new(least: Duration) -> Abstention {
        Abstention { least, ends_at: Time::ZERO, doublings: 0 }
    }

    /// The replica fails, now.
    pub(super) fn begins(&mut self, now: Time, rules: &Rules) {
        let calm = now.since(self.ends_at).as_nanos() / (self.least * CALM).as_nanos().max(1);
        self.doublings = self.doublings.saturating_sub(u32::try_from(calm).unwrap_or(u32::MAX));
        self.ends_at = self.ends_at.max(now + rules.abstains_for(self.least, self.doublings));
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
    }

    /// Whether the replica is to be left out.
    pub(super) fn is_on(&self, now: Time) -> bool {
        now < self.ends_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// The seconds for which it lasts when it begins now.
    fn lasts(abstention: &mut Abstention, now: u64) -> u64 {
        abstention.begins(at(now), &Rules::SOUND);
        (1..).find(|seconds| !abstention.is_on(at(now + seconds))).expect("it ends")
    }

    #[test]
    fn whiles_double_up_to_a_bound_and_shrink_after_a_long_calm() {
        let mut abstention = Abstention::new(LEAST);
        assert!(!abstention.is_on(at(0)));
        let mut now = 0;
        for expected in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
            assert_eq!(lasts(&mut abstention, now), expected);
            now += expected + 1;
        }
        // Three calm stretches of 64 s after the end.
        assert_eq!(lasts(&mut abstention, now + 3 * 64), 32);
        assert_eq!(lasts(&mut abstention, now + 10_000), 2, "all is forgotten");
    }

    #[test]
    fn a_failure_meanwhile_makes_no_while_shorter() {
        let mut abstention = Abstention::new(LEAST);
        assert_eq!((lasts(&mut abstention, 0), lasts(&mut abstention, 0)), (2, 4));
        let mut third = abstention;
        assert_eq!(lasts(&mut third, 3), 8, "from the failure on");
    }
}
