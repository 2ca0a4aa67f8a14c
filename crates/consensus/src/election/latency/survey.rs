//! The questions of one cycle of a leader: how long does it take each member to exchange messages with the others?

use std::time::Duration;

use synod_wire::{ReplicaId, Time};

use super::{
    origins::Origins,
    rules::{Rules, UNREACHABLE, better_leader, majority_time},
};
use crate::Members;

/// One cycle. Its matrix begins without any time, so nothing is left of a member that has crashed since the last one
/// (Santos 2012, section 6.3.2).
#[derive(Clone, Debug)]
pub(super) struct Survey {
    number: u64,
    ends_at: Time,
    /// What each member measured, if it reported and could lead; and this replica.
    rows: Vec<Option<Vec<u64>>>,
    /// Whether each member said last that an operator moved leadership away from it. That counts until the member says
    /// otherwise or is unreachable, since a report may be lost or late.
    by_wish: Vec<bool>,
}

/// What a member reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'a> {
    pub(super) able: bool,
    pub(super) by_wish: bool,
    pub(super) times: &'a [u64],
}

impl Survey {
    /// The first cycle of a leader. `handed_over` is the member that asked it to lead: an operator may have wished
    /// that, until that member says otherwise.
    pub(super) fn new(number: u64, ends_at: Time, members: usize, handed_over: Option<usize>) -> Survey {
        let by_wish = (0..members).map(|member| handed_over == Some(member)).collect();
        Survey { number, ends_at, rows: vec![None; members], by_wish }
    }

    /// The cycle after this one. `mine` are the times of the leader, `me`, as it asks: those of the others are as old.
    pub(super) fn next(self, number: u64, ends_at: Time, me: usize, mine: &[u64], rules: &Rules) -> Survey {
        let mut rows: Vec<_> = self.rows.into_iter().map(|row| rules.row_of_next_cycle(row)).collect();
        rows[me] = Some(mine.to_vec());
        let reached = mine.iter().map(|&time| time != UNREACHABLE);
        let said = self.by_wish.into_iter().zip(reached);
        let by_wish = said.map(|(said, reached)| rules.wish_of_next_cycle(said, reached)).collect();
        Survey { number, ends_at, rows, by_wish }
    }

    /// The member that said last that an operator moved leadership away from it.
    pub(super) fn moved_by_wish(&self) -> Option<usize> {
        self.by_wish.iter().position(|&by_wish| by_wish)
    }

    pub(super) fn ends_at(&self) -> Time {
        self.ends_at
    }

    /// A member reports what it measured. Times of other cycles, and of other members than there are, do not count.
    pub(super) fn reports(&mut self, member: usize, number: u64, report: Report<'_>) {
        let Report { able, by_wish, times } = report;
        // A member that is so far that it answers in the next cycle says the same then.
        self.by_wish[member] = by_wish;
        if number == self.number && times.len() == self.rows.len() {
            self.rows[member] = able.then(|| times.to_vec());
        }
    }

    /// The member that should lead in place of this replica; nobody after an operator moved leadership. With `origins`
    /// both parts of the time of a command may be off by two tolerances, so twice as much must be gained.
    pub(super) fn best(
        &self,
        members: &Members,
        tolerance: Duration,
        origins: Option<&Origins>,
        rules: &Rules,
    ) -> Option<ReplicaId> {
        if self.by_wish.contains(&true) {
            return None;
        }
        let row_of = |voter: ReplicaId| self.rows[members.index(voter)?].as_deref();
        let time = |voter: ReplicaId| {
            let Some(row) = row_of(voter) else { return UNREACHABLE };
            let to = |other| members.index(other).map_or(UNREACHABLE, |index| row[index]);
            let majority = majority_time(members.voters(), to);
            match origins.zip(row_of(members.me())) {
                Some((origins, mine)) => rules.time_of_command(majority, origins.way(row, mine)),
                None => majority,
            }
        };
        let tolerance = if origins.is_some() { tolerance * 2 } else { tolerance };
        better_leader(members.voters(), members.me(), tolerance, time)
    }
}
