//! Leases by the true time of the world, which no replica knows: none ends early, and each ends soon after its time.

use std::{collections::BTreeMap, time::Duration};

use super::invariant::{Checked, Invariant, demand};
use crate::clock::Moment;

/// Something that the log has done to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAct {
    /// It was granted or renewed, for this many seconds.
    Lives { lease: i64, seconds: i64 },
    /// A client revoked it.
    Revoked { lease: i64 },
    /// Its time was over.
    Ended { lease: i64, had_keys: bool },
    /// It has its whole time again, since another replica moved the clock, or the log stood still.
    StartsAgain { lease: i64 },
}

/// What a lease that is over may still live: the clock moves at least that often while there are leases, and its time
/// begins to count with the second time that the clock moves.
const LATE_MAX: Duration = Duration::from_secs(3);
/// How many times slower than time the replicated clock may go once faults are over. A move of it counts for two of its
/// intervals at most, and takes longer where each batch waits for a retransmission.
const SLOW_MAX: u32 = 10;

/// By when leases must have ended that nobody renews.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// By the replicated clock.
    clock: Duration,
    /// By the time of the world, since the clock must go on.
    now: Moment,
}

/// When leases were granted and renewed, and when they ended.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// What the log does, by the slots, or the batches of a common order, that no replica has executed yet.
    to_execute: BTreeMap<u64, Vec<LeaseAct>>,
    /// When the first replica executed the last grant or renewal of each lease that exists, and for how many seconds.
    lives: BTreeMap<i64, (Duration, i64)>,
}

impl Leases {
    /// The log does this with a slot.
    pub(crate) fn decided(&mut self, slot: u64, acts: Vec<LeaseAct>) {
        if !acts.is_empty() {
            self.to_execute.insert(slot, acts);
        }
    }

    /// A replica has executed everything through a slot. Clocks of replicas may have measured so much more than the
    /// time that went by. Returns what happened to leases for the first time.
    pub(crate) fn executed(
        &mut self,
        who: impl std::fmt::Display,
        slot: u64,
        now: Duration,
        error: Duration,
    ) -> Result<Vec<LeaseAct>, super::Violation> {
        if self.to_execute.first_key_value().is_none_or(|(first, _)| *first > slot) {
            return Ok(Vec::new());
        }
        let later = self.to_execute.split_off(&(slot + 1));
        let acts: Vec<_> = std::mem::replace(&mut self.to_execute, later).into_values().flatten().collect();
        for act in &acts {
            match *act {
                LeaseAct::Lives { lease, seconds } => _ = self.lives.insert(lease, (now, seconds)),
                LeaseAct::Revoked { lease } => _ = self.lives.remove(&lease),
                LeaseAct::Ended { lease, .. } => {
                    let lived = self.lives.remove(&lease);
                    early(&who, lease, lived, now, error)?;
                }
                LeaseAct::StartsAgain { .. } => {}
            }
        }
        Ok(acts)
    }

    /// By when the leases that exist must have ended, if faults are over now and the replicated clock shows this.
    pub(crate) fn deadline(&self, clock: Duration, now: Moment) -> Deadline {
        // Another replica may move the clock once more, with which leases start again.
        let lives = self.longest() * 2;
        let late = lives + lives / 10 + LATE_MAX;
        Deadline { clock: clock + late, now: now + late * SLOW_MAX }
    }

    /// Leases still exist.
    pub(crate) fn still_exist(&self, deadline: Deadline, clock: Duration, now: Moment) -> Checked {
        demand(clock < deadline.clock && now < deadline.now, Invariant::LeaseEnds, || {
            let left: Vec<_> = self.lives.keys().collect();
            format!("at {now:?}, and {clock:?} by the clock, there are still leases {left:?}: {deadline:?}")
        })
    }

    /// The longest time that a lease lives which exists now.
    fn longest(&self) -> Duration {
        let seconds = self.lives.values().map(|(_, seconds)| seconds.unsigned_abs()).max();
        Duration::from_secs(seconds.unwrap_or(0))
    }
}

fn early(
    who: &impl std::fmt::Display,
    lease: i64,
    lived: Option<(Duration, i64)>,
    now: Duration,
    error: Duration,
) -> Checked {
    let (since, seconds) = lived.unwrap_or((now, 0));
    let (lives, went_by) = (Duration::from_secs(seconds.unsigned_abs()), now - since);
    demand(lived.is_some() && went_by + error >= lives, Invariant::LeaseNotEarly, || {
        format!(
            "{who} ends lease {lease} {went_by:?} after the first replica executed that it lives for {lives:?}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn leases() -> Leases {
        let mut leases = Leases::default();
        leases.decided(3, vec![LeaseAct::Lives { lease: 1, seconds: 2 }]);
        leases.decided(5, vec![LeaseAct::Ended { lease: 1, had_keys: false }]);
        leases
    }

    #[test]
    fn time_counts_from_the_first_execution_to_the_first_end() {
        let mut found = leases();
        assert_eq!(found.executed("r1", 2, SECOND, Duration::ZERO).unwrap(), []);
        assert_eq!(found.executed("r1", 4, SECOND, Duration::ZERO).unwrap().len(), 1);
        assert_eq!((found.longest(), found.lives.len()), (2 * SECOND, 1));
        assert_eq!(found.executed("r2", 4, 2 * SECOND, Duration::ZERO).unwrap(), []);
        assert_eq!(found.executed("r2", 5, 3 * SECOND, Duration::ZERO).unwrap().len(), 1);
        assert_eq!((found.longest(), found.lives.len()), (Duration::ZERO, 0));
    }

    #[test]
    fn a_lease_that_lives_on_is_noticed_by_the_clock_and_if_that_stands_still() {
        let mut found = leases();
        found.executed("r1", 3, SECOND, Duration::ZERO).unwrap();
        let (clock, begins) = (100 * SECOND, Moment::after(SECOND));
        let deadline = found.deadline(clock, begins);
        // Twice its two seconds, a tenth more, and three.
        let late = Duration::from_millis(7_400);
        let lives_on = |clock, now| found.still_exist(deadline, clock, now).is_ok();
        assert!(lives_on(clock + late - Duration::from_millis(1), begins + late));
        assert!(!lives_on(clock + late, begins));
        assert!(lives_on(clock, begins + late * 9) && !lives_on(clock, begins + late * 10));
    }

    #[test]
    fn a_lease_that_ends_early_is_noticed_unless_clocks_may_have_measured_its_time() {
        let ends = |error| {
            let mut found = leases();
            found.executed("r1", 3, SECOND, error).unwrap();
            found.executed("r1", 5, 3 * SECOND - Duration::from_millis(1), error)
        };
        assert_eq!(ends(Duration::ZERO).unwrap_err().invariant, Invariant::LeaseNotEarly);
        assert!(ends(Duration::from_millis(1)).is_ok());
        let mut found = leases();
        found.decided(6, vec![LeaseAct::Revoked { lease: 1 }]);
        assert!(found.executed("r1", 6, SECOND, Duration::ZERO).is_err(), "at once");
    }
}
