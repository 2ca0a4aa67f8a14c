//! Time-outs that grow where the network or disks are slower than was promised.
//!
//! They begin as the least ones for the promised delay (`timeouts.rs`). Where phases decide nothing all the same,
//! something takes longer, and they grow until phases decide again. No safety rests on them.
//!
//! The bounds hold for replicas with the same time-outs: a round of one must outlast the while for which another
//! follows it. So letters tell how long time-outs are, and all that are in a phase take the longest of these.

use synod_wire::Slot;

/// By how much time-outs are longer than the least ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Time-outs were doubled this many times.
    doublings: u8,
    /// The latest phase of which this replica knows how long time-outs are: its own, or that of a letter.
    phase: u64,
    /// Phases in a row that decided nothing though something waited.
    failed: u32,
    /// Since the last phase in which time-outs could be halved: whether they grew, and whether something was decided.
    grew: bool,
    decides: bool,
    decided: Slot,
}

/// The longest time-outs are doubled this many times: then a delay is an election time-out.
pub(super) const DOUBLINGS_MAX: u8 = 5;
/// In each phase of this many, shorter time-outs are tried if they did not grow in those before it. All replicas do so
/// in the same phase: whoever did it alone would hear of longer ones from the others.
const CALM_PHASES: u64 = 8;

impl Pace {
    /// That of a replica which knows slots through this one to be decided.
    pub(super) fn new(decided: Slot) -> Pace {
        Pace { doublings: 0, phase: 0, failed: 0, grew: false, decides: false, decided }
    }

    /// How often time-outs were doubled.
    pub(super) fn doublings(&self) -> u8 {
        self.doublings
    }

    /// By how much time-outs are longer now.
    pub(super) fn factor(&self) -> u32 {
        1 << self.doublings
    }

    /// A letter of a phase tells how long the sender's time-outs are in it. Those of a later phase replace the own ones.
    pub(super) fn hear(&mut self, phase: u64, doublings: u8) {
        if phase > self.phase {
            (self.phase, self.doublings) = (phase, doublings);
        } else if phase == self.phase {
            self.doublings = self.doublings.max(doublings);
        }
    }

    /// A phase is over, and another begins. One that decides nothing may have lost its coordinator; with two in a row
    /// time-outs are too short. Where a letter told the time-outs of the phase that begins, they hold.
    pub(super) fn begins(&mut self, phase: u64, decided: Slot, is_needed: bool) {
        if decided > self.decided {
            (self.decided, self.failed, self.decides) = (decided, 0, true);
        } else if is_needed {
            self.failed += 1;
        }
        let is_told = phase <= self.phase;
        if !is_told {
            self.phase = phase;
        }
        if self.failed >= 2 {
            (self.failed, self.grew) = (0, true);
            self.doublings = DOUBLINGS_MAX.min(self.doublings + u8::from(!is_told));
        }
        if phase.is_multiple_of(CALM_PHASES) {
            let is_calm = self.decides && !self.grew;
            self.doublings = self.doublings.saturating_sub(u8::from(is_calm && !is_told));
            (self.grew, self.decides) = (false, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_grow_while_phases_decide_nothing_and_shrink_in_a_phase_that_all_know() {
        let mut pace = Pace::new(Slot(7));
        let mut phase = 80;
        let mut end = |pace: &mut Pace, decided, is_needed| {
            phase += 1;
            pace.begins(phase, Slot(decided), is_needed);
            (phase, pace.factor())
        };
        assert_eq!([1, 2, 2, 4].map(|_| end(&mut pace, 7, true).1), [1, 2, 2, 4]);
        assert_eq!(end(&mut pace, 7, true).1, 4);
        assert_eq!(end(&mut pace, 8, true).1, 4, "one phase that decides makes the next failure the first");
        assert_eq!(end(&mut pace, 8, true).1, 4);
        (0..9).for_each(|_| assert_eq!(end(&mut pace, 8, false).1, 4, "nothing waits"));
        (0..100).for_each(|_| _ = end(&mut pace, 8, true));
        assert_eq!(pace.factor(), 1 << DOUBLINGS_MAX);
        let mut before = pace.factor();
        for slot in 9..80 {
            let (phase, factor) = end(&mut pace, slot, true);
            assert!(factor == before || phase % CALM_PHASES == 0 && 2 * factor == before);
            before = factor;
        }
        assert_eq!(before, 1);
    }

    /// Replicas with different time-outs in one phase would part: the one whose round is shorter than the other's while
    /// is never heard in its round.
    #[test]
    fn all_that_are_in_a_phase_take_the_longest_time_outs_and_those_of_a_later_one() {
        let mut pace = Pace::new(Slot(7));
        pace.begins(4, Slot(8), true);
        pace.hear(4, 2);
        pace.hear(4, 1);
        pace.hear(3, 5);
        assert_eq!(pace.factor(), 4);
        pace.hear(6, 1);
        assert_eq!(pace.factor(), 2, "a replica that was cut off takes what the others have");
        pace.begins(5, Slot(8), true);
        pace.begins(6, Slot(8), true);
        assert_eq!(pace.factor(), 2, "it is known already");
        pace.begins(7, Slot(8), true);
        pace.begins(8, Slot(8), true);
        assert_eq!(pace.factor(), 4);
    }
}
