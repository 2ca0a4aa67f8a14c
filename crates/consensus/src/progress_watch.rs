//! Whether a leader makes progress: a leader that has something to decide and decides nothing stalls,
//! whatever the cause.
//!
//! A leader that a quorum hears and answers works, as far as an election can see. Yet it may decide nothing:
//! a member of its only quorum answers but cannot write, or the leader lacks what only a snapshot holds, and
//! the snapshot is slow to come. Then another leader may be able to decide.
//!
//! - A leader that stalls and **serves reads** can be replaced, but does not give up: perhaps no other replica can
//!   decide either, and then the reads are all that is left. It leads until it hears of a higher ballot. With the
//!   election `ballot` it tells that it is not happy ([`crate::election::BallotLeaderElection`]). With the others a
//!   follower sees for itself that what it accepted is not decided; from then on it takes nothing that the leader says
//!   for a sign that the leader works.
//! - A leader that stalls and serves no reads, since it does not know everything that earlier leaders
//!   decided, gives up.
//!
//! None of this touches safety. A read is answered at the slot through which decisions can have been known
//! when it came, once a quorum has answered a heartbeat of the leader's ballot that was sent after that: so
//! no higher ballot had a quorum then. That argument depends neither on whether the leader has decided
//! anything since, nor on what the election says of it.

use std::time::Duration;

use synod_wire::{Slot, Time};

/// A leader stalls after this many election time-outs without progress. That is twice as long as it takes a
/// leader to ask once more what is accepted, and much longer than any write to a disk that works.
const TIMEOUTS: u32 = 4;

/// Since when a leader has had something to decide without deciding anything, and what it had decided then. A
/// follower keeps the same of its leader, as far as it knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgressWatch {
    since: Option<(Time, Slot)>,
}

impl ProgressWatch {
    /// Whether the leader stalls. It has to be called repeatedly, with the last slot that is known to be
    /// decided, or where else its progress shows before it decides, and with whether something `waits` to be decided.
    pub(crate) fn stalls(&mut self, now: Time, decided: Slot, waits: bool, timeout: Duration) -> bool {
        match self.since {
            Some((since, then)) if waits && then == decided => now.since(since) > timeout * TIMEOUTS,
            _ => {
                self.since = waits.then_some((now, decided));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leader_that_waits_and_decides_nothing_for_long_stalls() {
        const T: Duration = Duration::from_secs(1);
        let mut watch = ProgressWatch::default();
        let mut stalls = |seconds, decided, waits| {
            watch.stalls(Time::ZERO + Duration::from_secs(seconds), Slot(decided), waits, T)
        };
        assert!(!stalls(1, 5, false) && !stalls(100, 5, false), "nothing waits");
        assert!(!stalls(101, 5, true) && !stalls(105, 5, true), "not for long");
        assert!(stalls(106, 5, true));
        assert!(!stalls(106, 6, true) && !stalls(110, 6, true), "something was decided");
        assert!(!stalls(111, 6, false) && !stalls(112, 6, true), "nothing waited in between");
    }
}
