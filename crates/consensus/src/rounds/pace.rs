//! Time-outs that grow where the network or disks are slower than was promised.
//!
//! They begin as the least ones for the promised delay (`timeouts.rs`). Where phases decide nothing all the same,
//! something takes longer, and they grow until phases decide again. No safety rests on them.

use synod_wire::Slot;

/// By how much time-outs are longer than the least ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    factor: u32,
    /// Phases in a row that decided nothing though something waited.
    failed: u32,
    /// Phases in a row that decided something.
    decided_in: u32,
    decided: Slot,
}

/// The longest time-outs are this many times as long as the least ones: then a delay is an election time-out.
const FACTOR_MAX: u32 = 32;
/// After this many phases that decide, shorter time-outs are tried.
const CALM_PHASES: u32 = 32;

impl Pace {
    /// That of a replica which knows slots through this one to be decided.
    pub(super) fn new(decided: Slot) -> Pace {
        Pace { factor: 1, failed: 0, decided_in: 0, decided }
    }

    /// By how much time-outs are longer now.
    pub(super) fn factor(&self) -> u32 {
        self.factor
    }

    /// A phase is over. One that decides nothing may have lost its coordinator; with two in a row time-outs are too
    /// short.
    pub(super) fn phase_ends(&mut self, decided: Slot, is_needed: bool) {
        if decided > self.decided {
            (self.decided, self.failed, self.decided_in) = (decided, 0, self.decided_in + 1);
            if self.decided_in >= CALM_PHASES {
                (self.factor, self.decided_in) = ((self.factor / 2).max(1), 0);
            }
        } else if is_needed {
            (self.failed, self.decided_in) = (self.failed + 1, 0);
            if self.failed >= 2 {
                (self.factor, self.failed) = ((self.factor * 2).min(FACTOR_MAX), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_grow_while_phases_decide_nothing_and_shrink_when_many_decide() {
        let mut pace = Pace::new(Slot(7));
        let end = |pace: &mut Pace, decided, is_needed| {
            pace.phase_ends(Slot(decided), is_needed);
            pace.factor()
        };
        assert_eq!([1, 2, 2, 4].map(|_| end(&mut pace, 7, true)), [1, 2, 2, 4]);
        assert_eq!(end(&mut pace, 7, true), 4);
        assert_eq!(end(&mut pace, 8, true), 4, "one phase that decides makes the next failure the first");
        assert_eq!(end(&mut pace, 8, true), 4);
        (0..9).for_each(|_| assert_eq!(end(&mut pace, 8, false), 4, "nothing waits"));
        (0..100).for_each(|_| _ = end(&mut pace, 8, true));
        assert_eq!(pace.factor(), FACTOR_MAX);
        let shrunk: Vec<u32> =
            (9..9 + 6 * u64::from(CALM_PHASES)).map(|slot| end(&mut pace, slot, true)).collect();
        assert_eq!(shrunk[CALM_PHASES as usize - 2..][..2], [32, 16]);
        assert_eq!(shrunk.last(), Some(&1));
    }
}
