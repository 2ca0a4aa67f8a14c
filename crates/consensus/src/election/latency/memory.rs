//! What outlives an epoch.
//!
//! An epoch begins when voters come or go, and where one comes back that lost its log. None of that mends a member that
//! fails whenever it leads, or says that an operator thinks otherwise now. What was measured, and a question on its
//! way, is of the members of the old epoch, and ends with it.

use std::collections::BTreeMap;

use synod_wire::{ReplicaId, Time};

use super::{LatencyAware, Wish, abstention::Abstention};

/// What the election of the next epoch should know of this one, by member: the next may have others.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Which members failed, this replica included.
    failed: BTreeMap<ReplicaId, Abstention>,
    /// What an operator wanted of this replica, while it counts.
    kept: Option<Wish>,
    /// The member that said to this replica, which leads, that an operator moved leadership away from it.
    moved: Option<ReplicaId>,
}

impl Memory {
    pub(super) fn of(election: &LatencyAware) -> Memory {
        let LatencyAware { members, doubts, abstains, kept, asked_by, survey, .. } = election;
        let of = |index: usize| if index == members.my_index() { *abstains } else { doubts[index] };
        let ids = members.ids().iter().enumerate();
        let moved = survey.as_ref().and_then(|survey| survey.moved_by_wish());
        Memory {
            failed: ids.map(|(index, &id)| (id, of(index))).collect(),
            kept: *kept,
            moved: moved.map(|index| members.ids()[index]).or(*asked_by),
        }
    }

    /// Gives it to an election that begins.
    pub(super) fn restore(&self, election: &mut LatencyAware, now: Time) {
        for (&id, failed) in &self.failed {
            match election.members.index(id) {
                Some(index) if index == election.members.my_index() => election.abstains = *failed,
                Some(index) => election.doubts[index] = *failed,
                None => {}
            }
        }
        let is_member = |id: ReplicaId| election.members.index(id).is_some();
        election.kept = self.kept.filter(|wish| now < wish.ends_at && is_member(wish.heir));
        election.asked_by = self.moved;
    }
}
