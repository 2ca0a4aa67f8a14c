//! The questions of one cycle of a leader: how long does it take each member to exchange messages with the others?

use std::time::Duration;

use synod_wire::{ReplicaId, Time};

use super::rules::{Rules, UNREACHABLE, better_leader, majority_time};
use crate::Members;

/// One cycle. Its matrix begins without any time, so nothing is left of a member that has crashed since the last one
/// (Santos 2012, section 6.3.2).
#[derive(Clone, Debug)]
pub(super) struct Survey {
    number: u64,
    ends_at: Time,
    /// What each member measured, if it reported and could lead.
    rows: Vec<Option<Vec<u64>>>,
    /// Whether a member says that an operator moved leadership away from it.
    by_wish: bool,
}

/// What a member reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'a> {
    pub(super) able: bool,
    pub(super) by_wish: bool,
    pub(super) times: &'a [u64],
}

impl Survey {
    pub(super) fn new(number: u64, ends_at: Time, members: usize) -> Survey {
        Survey { number, ends_at, rows: vec![None; members], by_wish: false }
    }

    /// The cycle after this one.
    pub(super) fn next(self, number: u64, ends_at: Time, rules: &Rules) -> Survey {
        let rows = self.rows.into_iter().map(|row| rules.row_of_next_cycle(row)).collect();
        Survey { number, ends_at, rows, by_wish: false }
    }

    pub(super) fn ends_at(&self) -> Time {
        self.ends_at
    }

    /// A member reports what it measured. Reports of other cycles, and of other members than there are, do not count.
    pub(super) fn reports(&mut self, member: usize, number: u64, report: Report<'_>) {
        let Report { able, by_wish, times } = report;
        if number == self.number && times.len() == self.rows.len() {
            self.rows[member] = able.then(|| times.to_vec());
            self.by_wish |= by_wish;
        }
    }

    /// The member that should lead in place of this replica, whose own times are `mine`; nobody after an operator moved
    /// leadership.
    pub(super) fn best(&self, members: &Members, mine: &[u64], tolerance: Duration) -> Option<ReplicaId> {
        if self.by_wish {
            return None;
        }
        let me = members.me();
        let row_of = |voter: ReplicaId| match members.index(voter) {
            Some(_) if voter == me => Some(mine),
            Some(index) => self.rows[index].as_deref(),
            None => None,
        };
        let time = |voter: ReplicaId| {
            let Some(row) = row_of(voter) else { return UNREACHABLE };
            let to = |other| members.index(other).map_or(UNREACHABLE, |index| row[index]);
            majority_time(members.voters(), to)
        };
        better_leader(members.voters(), me, tolerance, time)
    }
}
