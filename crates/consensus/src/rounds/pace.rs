//! Time-outs that grow where the network or disks are slower than was promised.
//!
//! They begin as the least ones for the promised delay (`timeouts.rs`). Where phases decide nothing all the same,
//! something takes longer, and they grow until phases decide again. No safety rests on them.
//!
//! The bounds hold for replicas with the same time-outs: a round of one must outlast the while for which another
//! follows it. But each replica has settings of its own, and sees others phases fail. So letters tell the delay for
//! which their sender's time-outs are made, and all that are in a phase take the longest of these.

use std::time::Duration;

use synod_wire::Slot;

/// The delay that time-outs allow for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The delay that was promised to this replica, and the one that it makes of it at most.
    least_micros: u32,
    most_micros: u32,
    micros: u32,
    /// The latest phase of which this replica knows the delay: its own, or that of a letter.
    phase: u64,
    /// Phases in a row that decided nothing though something waited; with `failures_max` time-outs are too short.
    failed: u32,
    failures_max: u32,
    /// The same, however long time-outs have become since.
    barren: u32,
    /// Since the last phase in which time-outs could be halved: whether they grew, and whether something was decided.
    grew: bool,
    decides: bool,
    decided: Slot,
}

/// The longest delay is this many times as long as the promised one.
const FACTOR_MAX: u32 = 32;
/// In each phase of this many times as many as may fail, shorter time-outs are tried if they did not grow in those
/// before it. All replicas do so in the same phase: a replica that did it alone would hear of longer ones from the
/// others. Rarely enough that most phases decide where shorter ones are always too short, and often enough that a
/// group soon forgets what it lived through.
const CALM_FACTOR: u32 = 2;

impl Pace {
    /// That of a replica to which this delay was promised, and which knows slots through this one to be decided, where
    /// time-outs are too short if this many phases in a row decide nothing.
    pub(super) fn new(promised: Duration, failures_max: u32, decided: Slot) -> Pace {
        let least_micros = u32::try_from(promised.as_micros()).unwrap_or(u32::MAX).max(1);
        let most_micros = least_micros.saturating_mul(FACTOR_MAX);
        let (micros, phase) = (least_micros, 0);
        let (failed, barren, grew, decides) = (0, 0, false, false);
        Pace {
            least_micros,
            most_micros,
            micros,
            phase,
            failed,
            failures_max,
            barren,
            grew,
            decides,
            decided,
        }
    }

    /// The delay that time-outs allow for now.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_micros(self.micros.into())
    }

    /// How long a phase's first round lasts at least. Where phases decide nothing for some other reason than time, as
    /// when most members are too far behind to accept anything, letters are all there and rounds end at once: phases
    /// would follow each other as fast as the network lets them.
    pub(super) fn pause(&self) -> Duration {
        if self.barren < self.failures_max { Duration::ZERO } else { self.delay() }
    }

    /// The same as letters tell it, in microseconds.
    pub(super) fn micros(&self) -> u32 {
        self.micros
    }

    /// A letter of a phase tells the delay that its sender allows for in it. That of a later phase replaces the own
    /// one. No replica allows for less than it was promised: its own letters bring those with shorter time-outs along.
    pub(super) fn hear(&mut self, phase: u64, micros: u32) {
        // Settings of members differ, but not without bound: one letter does not stop the group.
        let micros = micros.clamp(self.least_micros, self.most_micros.saturating_mul(FACTOR_MAX));
        if phase > self.phase {
            (self.phase, self.micros) = (phase, micros);
        } else if phase == self.phase {
            self.micros = self.micros.max(micros);
        }
    }

    /// A phase is over, and another begins. One that decides nothing may have lost its coordinator; with several in a
    /// row time-outs are too short. Where a letter told the delay of the phase that begins, it holds.
    ///
    /// A replica that is behind hears what the others decide. Without letters of a quorum, early or late, longer
    /// time-outs would help nothing.
    pub(super) fn begins(&mut self, phase: u64, decided: Slot, is_needed: bool, hears_enough: bool) {
        // It is less than before where the only member that knew more is gone.
        let before = std::mem::replace(&mut self.decided, decided);
        if decided > before {
            (self.failed, self.barren, self.decides) = (0, 0, true);
        } else if !is_needed {
            self.barren = 0;
        } else if hears_enough {
            (self.failed, self.barren) = (self.failed + 1, self.barren.saturating_add(1));
        }
        let is_told = phase <= self.phase;
        if self.failed >= self.failures_max {
            (self.failed, self.grew) = (0, true);
            if !is_told {
                self.micros = self.micros.max(self.most_micros.min(self.micros.saturating_mul(2)));
            }
        }
        if phase.is_multiple_of(u64::from(CALM_FACTOR * self.failures_max)) {
            if self.decides && !self.grew && !is_told {
                self.micros = self.micros.min(self.least_micros.max(self.micros / 2));
            }
            (self.grew, self.decides) = (false, false);
        }
        self.phase = self.phase.max(phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn time_outs_grow_while_phases_decide_nothing_and_shrink_in_a_phase_that_all_know() {
        let mut pace = Pace::new(MICRO, 2, Slot(7));
        let mut phase = 81;
        let mut end = |pace: &mut Pace, decided, is_needed| {
            phase += 1;
            pace.begins(phase, Slot(decided), is_needed, true);
            (phase, pace.micros())
        };
        assert_eq!([1, 2, 2, 4].map(|_| end(&mut pace, 7, true).1), [1, 2, 2, 4]);
        assert_eq!(end(&mut pace, 7, true).1, 4);
        assert_eq!(end(&mut pace, 8, true).1, 4, "one phase that decides makes the next failure the first");
        assert_eq!(end(&mut pace, 8, true).1, 4);
        (0..9).for_each(|_| assert_eq!(end(&mut pace, 8, false).1, 4, "nothing waits"));
        (0..100).for_each(|_| _ = end(&mut pace, 8, true));
        assert_eq!(pace.micros(), FACTOR_MAX);
        let mut before = pace.micros();
        for slot in 9..80 {
            let (phase, micros) = end(&mut pace, slot, true);
            assert!(micros == before || phase % 4 == 0 && 2 * micros == before);
            before = micros;
        }
        assert_eq!(before, 1);
    }

    /// Where each phase decides nothing at once, for whatever reason, a few of them are tried in a row and no more.
    #[test]
    fn phases_that_decide_nothing_do_not_follow_each_other_at_once() {
        let mut pace = Pace::new(MICRO, 2, Slot(7));
        pace.begins(2, Slot(7), true, true);
        assert_eq!(pace.pause(), Duration::ZERO, "a coordinator may be lost");
        for phase in 3..40 {
            pace.begins(phase, Slot(7), true, true);
            assert_eq!((pace.pause(), pace.pause() > Duration::ZERO), (pace.delay(), true));
        }
        pace.begins(40, Slot(8), true, true);
        assert_eq!(pace.pause(), Duration::ZERO);
        (41..50).for_each(|phase| pace.begins(phase, Slot(8), true, true));
        pace.begins(50, Slot(8), false, true);
        assert_eq!(pace.pause(), Duration::ZERO, "nothing waits any more");
    }

    /// A replica that is cut off goes through phases with nobody. When it comes back its letters would make everybody's
    /// time-outs as long as its own.
    #[test]
    fn phases_without_letters_of_a_quorum_say_nothing_of_time_outs() {
        let mut pace = Pace::new(MICRO, 2, Slot(7));
        (1..100).for_each(|phase| pace.begins(phase, Slot(7), true, false));
        assert_eq!((pace.micros(), pace.pause()), (1, Duration::ZERO));
    }

    /// Replicas with different time-outs in one phase would part: the one whose round is shorter than the other's while
    /// is never heard in its round.
    #[test]
    fn all_that_are_in_a_phase_take_the_longest_time_outs_and_those_of_a_later_one() {
        let mut pace = Pace::new(MICRO, 2, Slot(7));
        pace.begins(4, Slot(8), true, true);
        pace.hear(4, 4);
        pace.hear(4, 2);
        pace.hear(3, 32);
        assert_eq!(pace.micros(), 4);
        pace.hear(6, 2);
        assert_eq!(pace.micros(), 2, "a replica that was cut off takes what the others have");
        pace.begins(5, Slot(8), true, true);
        pace.begins(6, Slot(8), true, true);
        assert_eq!(pace.micros(), 2, "it is known already");
        pace.begins(7, Slot(8), true, true);
        pace.begins(8, Slot(8), true, true);
        assert_eq!(pace.micros(), 4);
    }

    /// A replica that was promised less takes what it hears. One member with a far shorter time-out does not shorten
    /// those of the others.
    #[test]
    fn a_longer_delay_that_is_heard_holds_and_none_is_shorter_than_was_promised() {
        let mut pace = Pace::new(10 * MICRO, 2, Slot(7));
        pace.hear(6, 400);
        assert_eq!(pace.delay(), 400 * MICRO);
        (7..10).for_each(|phase| pace.begins(phase, Slot(7), true, true));
        assert_eq!(pace.micros(), 400, "it is above the most already");
        (10..100).for_each(|phase| pace.begins(phase, Slot(phase), true, true));
        assert_eq!(pace.micros(), 10);
        pace.hear(200, 3);
        assert_eq!(pace.micros(), 10);
        pace.hear(201, 0);
        assert_eq!(pace.micros(), 10);
        pace.hear(202, u32::MAX);
        assert_eq!(pace.micros(), 10 * FACTOR_MAX * FACTOR_MAX);
    }
}
