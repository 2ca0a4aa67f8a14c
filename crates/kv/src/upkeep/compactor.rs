//! When to compact by itself: etcd's two modes, as decisions without a clock.
//!
//! Every replica notes revisions, and the caretaker compacts at one of them. A revision counts as old once it was noted
//! a whole period ago, by this replica's own clock, in this life. At that time this replica had not executed any later
//! revision, so every version that the compaction makes unreadable was replaced before: a change of caretaker, and a
//! restart, make a compaction late and never early.

use std::{collections::VecDeque, time::Duration};

use crate::{KvBug, planted};

/// Which revisions are compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    /// Those that are older than this.
    Periodic(Duration),
    /// All but this many.
    Revision(i64),
}

/// The longest time between two compactions of the periodic mode.
const PERIODIC_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// A period has this many notes.
const NOTES: u32 = 10;
/// The time between two compactions of the other mode.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// What a replica knows of past revisions. Times are since any moment that stays the same.
#[derive(Debug)]
pub struct Compactor {
    mode: Compaction,
    /// In the periodic mode: the revisions that were noted, the oldest first, and when.
    notes: VecDeque<(Duration, i64)>,
    /// When to note, and perhaps compact, next.
    next: Duration,
    /// When the last compaction was made, and at which revision.
    last: Option<(Duration, i64)>,
}

impl Compactor {
    /// A replica that knows nothing of the past.
    pub fn new(mode: Compaction, now: Duration) -> Compactor {
        let mut compactor = Compactor { mode, notes: VecDeque::new(), next: now, last: None };
        if let Compaction::Revision(_) = mode {
            compactor.next = now + REVISION_INTERVAL;
        }
        compactor
    }

    /// When [`look`](Compactor::look) is due.
    pub fn due(&self) -> Duration {
        self.next
    }

    /// Notes the present revision. The result is a revision to compact at, if this replica takes care of that and one
    /// is due.
    pub fn look(&mut self, now: Duration, revision: i64, takes_care: bool) -> Option<i64> {
        self.next = now + self.interval();
        let old = match self.mode {
            Compaction::Periodic(period) => {
                let period = if planted::has(KvBug::HastyCompaction) { period / 10 } else { period };
                // Of those that are old the latest counts; it stays, for a compaction that fails.
                while self.notes.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= period) {
                    self.notes.pop_front();
                }
                let old = self.notes.front().copied().filter(|(at, _)| now.saturating_sub(*at) >= period);
                self.notes.push_back((now, revision));
                let rested =
                    |(at, _): (Duration, i64)| now.saturating_sub(at) >= period.min(PERIODIC_INTERVAL_MAX);
                let old = old.map(|(_, revision)| revision).filter(|_| self.last.is_none_or(rested));
                if planted::has(KvBug::CompactAtPresent) { old.map(|_| revision) } else { old }
            }
            Compaction::Revision(kept) => Some(revision - kept),
        };
        let done = self.last.map_or(0, |(_, revision)| revision);
        old.filter(|revision| takes_care && *revision > done)
    }

    /// A compaction was made, here or by another.
    pub fn compacted(&mut self, now: Duration, revision: i64) {
        self.last = Some((now, revision));
    }

    fn interval(&self) -> Duration {
        match self.mode {
            Compaction::Periodic(period) => period.min(PERIODIC_INTERVAL_MAX) / NOTES,
            Compaction::Revision(_) => REVISION_INTERVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Looks each time that it is due, at a store whose revision grows by one a minute; the result is when it was
    /// compacted, in minutes, and where.
    fn compactions(mode: Compaction, minutes: u32, takes_care: impl Fn(u32) -> bool) -> Vec<(u32, i64)> {
        let mut compactor = Compactor::new(mode, Duration::ZERO);
        let mut made = Vec::new();
        while compactor.due() <= minutes * MINUTE {
            let now = compactor.due();
            let minute = u32::try_from(now.as_secs() / 60).unwrap();
            if let Some(revision) = compactor.look(now, i64::from(minute) + 1, takes_care(minute)) {
                compactor.compacted(now, revision);
                made.push((minute, revision));
            }
        }
        made
    }

    #[test]
    fn nothing_is_compacted_before_a_period_is_over_and_then_what_was_there_a_period_ago() {
        let ten = compactions(Compaction::Periodic(10 * MINUTE), 31, |_| true);
        assert_eq!(ten, [(10, 1), (20, 11), (30, 21)]);
        // With a longer period it happens once an hour.
        let day = compactions(Compaction::Periodic(24 * 60 * MINUTE), 26 * 60, |_| true);
        assert_eq!(day, [(24 * 60, 1), (25 * 60, 61), (26 * 60, 121)]);
    }

    #[test]
    fn a_new_caretaker_compacts_what_it_has_known_for_a_period_and_no_more() {
        let late = compactions(Compaction::Periodic(10 * MINUTE), 31, |minute| minute >= 25);
        assert_eq!(late, [(25, 16)]);
        let restarted = compactions(Compaction::Periodic(10 * MINUTE), 9, |_| true);
        assert_eq!(restarted, []);
    }

    #[test]
    fn the_other_mode_keeps_so_many_revisions() {
        let kept = compactions(Compaction::Revision(12), 30, |_| true);
        assert_eq!(kept, [(15, 4), (20, 9), (25, 14), (30, 19)]);
        assert_eq!(compactions(Compaction::Revision(12), 30, |_| false), []);
    }

    #[test]
    fn a_store_that_does_not_change_is_not_compacted_again() {
        let mut compactor = Compactor::new(Compaction::Periodic(MINUTE), Duration::ZERO);
        let mut made = 0;
        for tenth in 0..100 {
            let now = tenth * MINUTE / 10;
            if let Some(revision) = compactor.look(now, 7, true) {
                compactor.compacted(now, revision);
                made += 1;
            }
        }
        assert_eq!(made, 1);
    }

    #[test]
    fn a_compaction_that_fails_is_due_again() {
        let mut compactor = Compactor::new(Compaction::Periodic(10 * MINUTE), Duration::ZERO);
        let looked: Vec<_> =
            (0..13).map(|minute| compactor.look(minute * MINUTE, i64::from(minute), true)).collect();
        assert_eq!(looked[..10], [None; 10]);
        assert_eq!(looked[10..], [None, Some(1), Some(2)], "revision 0 is no revision to compact at");
    }

    /// Replicas lag, restart, and take themselves for the caretaker as a seed draws it.
    #[test]
    fn no_version_is_lost_that_was_there_a_period_ago() {
        const REPLICAS: usize = 3;
        const PERIOD: Duration = Duration::from_millis(500);
        let (mut made, mut restarts) = (0, 0);
        for seed in 0..100 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let new = |now| Compactor::new(Compaction::Periodic(PERIOD), now);
            let mut replicas: Vec<_> = (0..REPLICAS).map(|_| new(Duration::ZERO)).collect();
            // The revision of the cluster after each millisecond, and what each replica has executed.
            let (mut history, mut executed, mut compacted) = (vec![1_i64], [1; REPLICAS], 0);
            for millis in 1..4000 {
                let now = Duration::from_millis(millis);
                history.push(history.last().unwrap() + i64::from(rng.u8(..4) == 0));
                let revision = *history.last().unwrap();
                for index in 0..REPLICAS {
                    if rng.u16(..) < 20 {
                        replicas[index] = new(now);
                        restarts += 1;
                    }
                    if rng.u8(..8) > 0 || index == 0 {
                        executed[index] = rng.i64(executed[index]..=revision);
                    }
                    if now < replicas[index].due() || rng.u8(..20) == 0 {
                        continue;
                    }
                    let Some(at) = replicas[index].look(now, executed[index], rng.bool()) else { continue };
                    let then = millis.checked_sub(500).expect("nothing is old before");
                    assert!(at <= history[then as usize], "seed {seed}: {at} at {millis} ms");
                    // It may be refused, or its outcome unknown.
                    if rng.bool() {
                        compacted = at.max(compacted);
                        replicas[index].compacted(now, at);
                        made += 1;
                    }
                }
            }
            assert!(compacted <= history[3500], "seed {seed}");
        }
        assert!(made > 300 && restarts > 100, "{made} compactions, {restarts} restarts");
    }
}
