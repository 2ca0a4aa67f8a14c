//! What a replica makes sure of before it takes over from a leader that asked it to.
//!
//! The leader serves meanwhile. If the chosen replica stood at once and its disk hung, or its links were cut a moment
//! ago, the leader would have followed it before anybody knew.

use synod_wire::{Lsn, Slot, Time};

use super::rules::Rules;
use crate::Members;

/// The tests of one replica: its disk by a record, its links by pings, and what it knows to be decided.
#[derive(Clone, Debug)]
pub(super) struct Preparation {
    /// The number of its pings.
    number: u64,
    /// It fails unless all is well by then.
    ends_at: Time,
    /// The promise, which is written again. A disk that hangs shows only when something is written.
    record: Lsn,
    is_durable: bool,
    /// Slots through this one were known to be decided when the leader asked. A replica that is always a slot behind
    /// has them soon.
    asked_at: Slot,
    caught_up: bool,
    /// Which members answered its pings.
    answered: Vec<bool>,
}

impl Preparation {
    pub(super) fn new(
        number: u64,
        ends_at: Time,
        record: Lsn,
        asked_at: Slot,
        members: usize,
    ) -> Preparation {
        let answered = vec![false; members];
        Preparation { number, ends_at, record, is_durable: false, asked_at, caught_up: false, answered }
    }

    pub(super) fn ends_at(&self) -> Time {
        self.ends_at
    }

    /// A member answers a ping.
    pub(super) fn answers(&mut self, member: usize, number: u64) {
        self.answered[member] |= number == self.number;
    }

    /// Records through this one are durable.
    pub(super) fn durable(&mut self, through: Lsn) {
        self.is_durable |= self.record <= through;
    }

    /// This replica knows slots through `here`, and some replica those through `known`, to be decided.
    pub(super) fn decided(&mut self, known: Slot, here: Slot, rules: &Rules) {
        self.caught_up = rules.needs_decided(self.asked_at, known) <= here;
    }

    /// Whether all is well.
    pub(super) fn is_complete(&self, members: &Members, rules: &Rules) -> bool {
        let answers = |id| id == members.me() || members.index(id).is_some_and(|index| self.answered[index]);
        rules.may_stand(self.is_durable, members.voters().is_quorum(answers), self.caught_up)
    }
}
