//! The groups that may come next, as far as is known here. Enough voters of each must keep their memory, so faults take
//! that of no more, and an operator asks for no change after which too few have it.

use std::sync::Arc;

use synod_replica::{Change, ChangeRequest, Goal, Group, MemberSet, Membership};
use synod_wire::{GroupId, ReplicaId, Slot};

use super::{FIRST, World, lives::birth_of, machine::Machine};
use crate::check::settled;

/// No group has more voters in a simulation.
const VOTERS_MAX: usize = 7;

impl World {
    /// With a quorum's memory gone, acknowledged writes may be gone by right. So only as many may lose their logs as
    /// are not needed to decide: of the voters of every group that is still needed (see `check/groups.rs`), and of
    /// every one that may come next.
    pub(super) fn may_lose(&self, of: usize) -> bool {
        let machine = &self.machines[of];
        let lost = |id: &ReplicaId| {
            let out = |other: &Machine| other.disk.lost || self.is_out(self.index(*id));
            *id == machine.id || self.machine_of(*id).is_some_and(out)
        };
        let holds = |group: &Group| {
            let voters: Vec<_> = group.voters().collect();
            voters.iter().filter(|id| lost(id)).count() <= spared(group)
        };
        // A replica that never ran or is gone has nothing to lose.
        machine.lives > 0
            && !machine.retired
            && (machine.disk.lost
                || self.checks.all().all(|checks| checks.groups.needed().all(holds))
                    && self.checks.groups().all(|at| self.coming_groups(at).iter().all(holds)))
    }

    /// A group as it is, and as it is made by each change that was asked for and may be decided.
    fn possible_groups(&self, at: GroupId) -> impl Iterator<Item = &Group> {
        let group = self.checks[at].log.group();
        let asked = self.operator.possible.iter().filter(move |(of, _)| *of == at).map(|(_, next)| next);
        std::iter::once(group).chain(asked.filter(|next| next.version > group.version))
    }

    /// The groups that a group becomes, with what was asked for.
    fn coming_groups(&self, at: GroupId) -> Vec<Group> {
        self.possible_groups(at).flat_map(|group| groups_after(group, &self.sets_after(at, group))).collect()
    }

    /// The sets of members that a group may follow, now or later.
    pub(super) fn sets_after(&self, at: GroupId, group: &Group) -> Vec<Arc<MemberSet>> {
        let Membership::Follows(followed) = group.membership else { return Vec::new() };
        if let Some(first) = &self.first {
            return first.sets_after(followed);
        }
        if at == FIRST {
            return Vec::new();
        }
        let mut sets = self.checks[FIRST].groups.member_sets();
        sets.extend(self.possible_groups(FIRST).flat_map(sets_of));
        sets.retain(|set| set.version > followed);
        sets.sort_by_key(|set| set.version);
        sets.dedup();
        sets.into_iter().map(Arc::new).collect()
    }

    /// Whether enough replicas with their memory remain if a change makes this of a group, and no group grows without
    /// end.
    pub(super) fn is_sensible(&self, at: GroupId, next: &Group) -> bool {
        let few = next.next_id.0 - 1 <= (self.plan.replicas + self.plan.changes.spares) as u64;
        few && self.holds_as_it_follows(next, &self.sets_after(at, next))
            && (at != FIRST || self.checks.groups().skip(1).all(|of| self.others_hold(of, &sets_of(next))))
    }

    /// Whether a group holds, whatever it becomes, if it may follow these sets, too.
    pub(super) fn others_hold(&self, at: GroupId, more: &[MemberSet]) -> bool {
        self.possible_groups(at).all(|group| {
            let mut sets = self.sets_after(at, group);
            sets.extend(more.iter().cloned().map(Arc::new));
            self.holds_as_it_follows(group, &sets)
        })
    }

    /// Whether a group has enough voters with their memory, and not too many, while it follows these sets.
    pub(super) fn holds_as_it_follows(&self, group: &Group, sets: &[Arc<MemberSet>]) -> bool {
        groups_after(group, sets).iter().all(|group| {
            let voters: Vec<_> = group.voters().collect();
            voters.len() <= VOTERS_MAX.max(self.plan.replicas) && self.lost_among(&voters) <= spared(group)
        })
    }

    /// How many of the replicas with which the group began may be out, whatever the group becomes.
    pub(super) fn spared_of_the_first(&self) -> usize {
        let replicas = self.plan.replicas;
        let needed = self.possible_groups(FIRST).map(|group| group.threshold().least(replicas));
        replicas - needed.max().unwrap_or(replicas)
    }

    /// How many of these replicas have lost their memory.
    fn lost_among(&self, voters: &[ReplicaId]) -> usize {
        let lost = |id: &&ReplicaId| self.machine_of(**id).is_some_and(|machine| machine.disk.lost);
        voters.iter().filter(lost).count()
    }
}

/// How many voters of a group are not needed to decide.
fn spared(group: &Group) -> usize {
    let voters = group.voters().count();
    voters - group.threshold().least(voters)
}

/// A promotion that a group does not refuse for the birth that it names.
pub(crate) fn promotion(group: &Group, id: ReplicaId) -> Change {
    let birth = group.birth_of(id).unwrap_or_else(|| birth_of(id));
    Change::Promote { id, birth: Some(birth).filter(|_| group.names_births()) }
}

/// A group after a change that is complete at once; `None` if the change is refused.
pub(super) fn changed(group: &Group, change: Change) -> Option<Group> {
    let request = ChangeRequest { expected: group.version, change };
    group.apply(Slot(1), &request).ok().map(settled)
}

/// The members that others may follow of a group, and of all that it becomes without further requests.
fn sets_of(group: &Group) -> Vec<MemberSet> {
    groups_after(group, &[]).iter().filter_map(Group::member_set).collect()
}

/// A group once it is complete, and every one that it becomes if it follows some of these sets, one after the other,
/// and a leader promotes the learners that are to vote meanwhile, at any time.
fn groups_after(group: &Group, sets: &[Arc<MemberSet>]) -> Vec<Group> {
    let members = |group: &Group| {
        let standings: Vec<_> = group.members.iter().map(|member| (member.id, member.standing)).collect();
        (group.membership, standings, group.placement.clone())
    };
    let mut found = vec![settled(group.clone())];
    let mut place = 0;
    while let Some(group) = found.get(place).cloned() {
        let promotions =
            group.learners().filter(|(_, goal)| *goal != Goal::Learn).map(|(id, _)| promotion(&group, id));
        let sets = sets.iter().map(|set| Change::Follow(Arc::clone(set)));
        for next in promotions.chain(sets).filter_map(|change| changed(&group, change)) {
            if !found.iter().any(|known| members(known) == members(&next)) {
                found.push(next);
            }
        }
        place += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;

    use super::*;
    use crate::world::operator::info;

    fn ids(ids: &[u64]) -> Vec<ReplicaId> {
        ids.iter().copied().map(ReplicaId).collect()
    }

    fn set(first: &Group) -> Arc<MemberSet> {
        Arc::new(first.member_set().expect("others follow it"))
    }

    #[test]
    fn the_voters_that_may_come_are_those_of_each_set_and_of_what_leads_there() {
        let begins = Group::of(&Options::default(), ids(&[1, 2, 3])).followed();
        let replaces = Change::Add { info: info(begins.next_id, 0), goal: Goal::Replace(ReplicaId(1)) };
        let joined = changed(&begins, replaces).expect("it can be made");
        let replaced = changed(&joined, Change::promote(ReplicaId(4))).unwrap();
        let left = changed(&replaced, Change::Remove(ReplicaId(2))).unwrap();
        let follows = begins.clone().following(begins.version);
        let coming = groups_after(&follows, &[set(&joined), set(&replaced), set(&left)]);
        let mut voters: Vec<Vec<_>> = coming.iter().map(|group| group.voters().collect()).collect();
        voters.sort();
        voters.dedup();
        assert_eq!(voters, [ids(&[1, 2, 3]), ids(&[1, 3]), ids(&[2, 3, 4]), ids(&[3, 4])]);
        // What comes of the first group by itself others may follow.
        assert_eq!(sets_of(&joined), [joined.member_set().unwrap(), replaced.member_set().unwrap()]);
    }
}
