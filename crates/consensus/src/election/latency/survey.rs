//! The questions of one cycle of a leader: how long does it take each member to exchange messages with the others?

use std::time::Duration;

use synod_wire::{ReplicaId, Time};

use super::rules::{UNREACHABLE, better_leader, majority_time};
use crate::Members;

/// One cycle. Its matrix begins without any time, so nothing is left of a member that has crashed since the last one
/// (Santos 2012, section 6.3.2).
#[derive(Clone, Debug)]
pub(super) struct Survey {
    number: u64,
    ends_at: Time,
    /// What each member measured, if it reported and could lead.
    rows: Vec<Option<Vec<u64>>>,
}

impl Survey {
    pub(super) fn new(number: u64, ends_at: Time, members: usize) -> Survey {
        Survey { number, ends_at, rows: vec![None; members] }
    }

    pub(super) fn ends_at(&self) -> Time {
        self.ends_at
    }

    /// A member reports what it measured. `able` says that it could lead. Reports of other cycles, and of other members
    /// than there are, do not count.
    pub(super) fn reports(&mut self, member: usize, number: u64, able: bool, times: &[u64]) {
        if number == self.number && times.len() == self.rows.len() {
            self.rows[member] = able.then(|| times.to_vec());
        }
    }

    /// The member that should lead in place of this replica, whose own times are `mine`.
    pub(super) fn best(&self, members: &Members, mine: &[u64], tolerance: Duration) -> Option<ReplicaId> {
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
