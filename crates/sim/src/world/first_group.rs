//! The first group of the cluster, where the simulated group follows one.
//!
//! The first group is played by its log alone: a list of groups, each made from the one before by a change, with the
//! function that all its replicas would apply. What a node knows of the first group is a place in that list. A node
//! sees changes late, several at once, or none while it is down; a node that starts again may know less than before;
//! and a node that the first group has removed sees nothing after that.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use synod_replica::{Change, ChangeRequest, Event, Goal, Group, MemberSet, Membership, Others, Standing};
use synod_wire::{GroupId, ReplicaId, Slot};

use super::{
    FIRST, Happening, World,
    checks::GroupChecks,
    operator::{draw_limits, draw_voters, info},
    possible::{changed, promotion},
};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, demand, settled},
    describe,
    network::{Wire, between},
    plan::Plan,
};

/// A node sees a change of the first group within this many election time-outs, unless it sees that one only with a
/// later one.
const SEEN_TIMEOUTS: u32 = 3;

/// The first group, and what nodes have seen of it.
#[derive(Debug)]
pub(super) struct FirstGroup {
    /// The group as it began, and after each of its changes.
    history: Vec<Group>,
    /// For each machine, the place of the latest of these groups that its node has seen.
    seen: Vec<usize>,
}

impl FirstGroup {
    /// The first group as it begins, with the members with which the simulated group begins, if that one follows it.
    /// There are at most `capacity` machines.
    pub(super) fn new(plan: &Plan, begins: &Group, capacity: usize) -> Option<FirstGroup> {
        let first = || begins.clone().followed();
        plan.changes.follows.then(|| FirstGroup { history: vec![first()], seen: vec![0; capacity] })
    }

    /// The first group as it is.
    pub(super) fn latest(&self) -> &Group {
        self.history.last().expect("it began")
    }

    /// The members with this version.
    fn set(&self, version: u64) -> Option<MemberSet> {
        self.history.iter().filter_map(Group::member_set).find(|set| set.version == version)
    }

    /// The members at a place.
    fn set_at(&self, place: usize) -> Arc<MemberSet> {
        Arc::new(self.history[place].member_set().expect("others follow it"))
    }

    /// The member sets that a group may still follow that follows this version.
    pub(super) fn sets_after(&self, followed: u64) -> Vec<Arc<MemberSet>> {
        let mut sets: Vec<_> = (0..self.history.len()).map(|place| self.set_at(place)).collect();
        sets.retain(|set| set.version > followed);
        sets.dedup_by_key(|set| set.version);
        sets
    }

    /// The last place that the node of a replica can see: the latest, or the one that removed the replica.
    fn last_for(&self, id: ReplicaId) -> usize {
        let last = self.history.len() - 1;
        let member = self.history.iter().rposition(|group| group.member(id).is_some());
        member.map_or(last, |member| (member + 1).min(last))
    }
}

impl World {
    /// The operator does something about members: has the first group change, or one node see what it has decided, or
    /// has some set proposed, as the caretaker of a node that lags would.
    pub(super) fn operate_members(&mut self) -> Checked {
        match self.operator.rng.u8(0..20) {
            16.. => self.choose_voters(),
            0..7 => self.change_first_group(),
            7..13 => {
                let of = self.operator.rng.usize(0..self.machines.len());
                if self.machines[of].is_running() { self.sees(of) } else { Ok(()) }
            }
            _ => self.propose_some_set(),
        }
    }

    /// The operator asks the first group for a change, mostly once the simulated group has followed the last one.
    fn change_first_group(&mut self) -> Checked {
        let Some(first) = &self.first else { return Ok(()) };
        let latest = first.latest().clone();
        let follows = self.checks[FIRST].log.group().agrees_with(&latest);
        if !follows && self.operator.rng.u8(0..3) > 0 {
            return Ok(());
        }
        let change = self.draw_change_of_first(&latest);
        if self.is_refused(&latest, &change) {
            return Ok(());
        }
        let Some(next) = changed(&latest, change).filter(|next| self.is_sensible_to_follow(next)) else {
            return Ok(());
        };
        self.first_group_becomes(next);
        let timeout = self.plan.settings.consensus.election_timeout;
        for of in 0..self.machines.len() {
            if self.operator.rng.u8(0..4) > 0 {
                let wait = between(&mut self.operator.rng, Duration::ZERO, timeout * SEEN_TIMEOUTS);
                self.queue.push(self.now + wait, Happening::Sees { of });
            }
        }
        Ok(())
    }

    fn first_group_becomes(&mut self, next: Group) {
        self.note_for_all(|| format!("group 0   {}", describe::group(&next)));
        self.coverage.first_changes += 1;
        self.first.iter_mut().for_each(|first| first.history.push(next.clone()));
    }

    fn draw_change_of_first(&mut self, first: &Group) -> Change {
        let leader = self.leader().filter(|&id| first.member(id).is_some());
        let rng = &mut self.operator.rng;
        let member = |rng: &mut Rng| first.members[rng.usize(0..first.members.len())].id;
        match rng.u8(0..100) {
            0..35 => {
                let goal = match rng.u8(0..4) {
                    0 => Goal::Learn,
                    1 | 2 => Goal::Vote,
                    _ => Goal::Replace(leader.filter(|_| rng.bool()).unwrap_or_else(|| member(rng))),
                };
                Change::Add { info: info(first.next_id, 0), goal }
            }
            35..62 => {
                let learners: Vec<ReplicaId> = first.learners().map(|(id, _)| id).collect();
                promotion(first, rng.choice(learners).unwrap_or_else(|| member(rng)))
            }
            62..84 => Change::Remove(leader.filter(|_| rng.bool()).unwrap_or_else(|| member(rng))),
            84..92 => {
                let id = member(rng);
                Change::Update { id, info: info(id, rng.u64(0..3)) }
            }
            // The version grows, and the members stay as they are.
            _ => draw_limits(rng, first),
        }
    }

    /// Whether a server refuses a change of the first group, since a replica leaves that a lagging group needs: as far
    /// as the server knows, which need not be the latest.
    fn is_refused(&mut self, first: &Group, change: &Change) -> bool {
        let (Change::Remove(leaving) | Change::Add { goal: Goal::Replace(leaving), .. }) = *change else {
            return false;
        };
        let of = self.operator.rng.usize(0..self.machines.len());
        let Some(life) = &self.machines[of].life else { return true };
        first.is_needed_by(&life.replica(FIRST).group().follower(), leaving)
    }

    /// The operator chooses other voters for the group, as far as a replica knows it, or has it follow the first
    /// group's again.
    fn choose_voters(&mut self) -> Checked {
        let of = self.operator.rng.usize(0..self.machines.len());
        let (Some(first), Some(life)) = (&self.first, &self.machines[of].life) else { return Ok(()) };
        let group = settled(life.replica(FIRST).group().clone());
        let Membership::Follows(version) = group.membership else { return Ok(()) };
        let Some(set) = first.set(version).filter(|_| self.machines[of].is_running()) else { return Ok(()) };
        let voters = set.members.iter().filter(|member| member.standing == Standing::Voter);
        let voters = voters.map(|member| member.id).collect();
        let others = |rng: &mut Rng| if rng.bool() { Others::Learn } else { Others::StayAway };
        let change = draw_voters(&mut self.operator.rng, voters, others);
        let request = ChangeRequest { expected: group.version, change };
        let Some(next) = group.apply(Slot(1), &request).ok().map(settled) else { return Ok(()) };
        if !self.holds_as_it_follows(&next, &self.sets_after(FIRST, &next)) {
            return Ok(());
        }
        self.operator.possible.push((FIRST, next));
        self.ask_for_change(of, FIRST, request)
    }

    /// Whether enough replicas with their memory remain wherever the simulated group follows, and it does not grow
    /// without end.
    fn is_sensible_to_follow(&self, next: &Group) -> bool {
        let machines = (self.plan.replicas + self.plan.changes.spares) as u64;
        let more: Vec<_> = next.member_set().into_iter().collect();
        next.next_id.0 - 1 <= machines && self.others_hold(FIRST, &more)
    }

    /// A replica is asked to have the group follow a set that its node has seen at any time.
    fn propose_some_set(&mut self) -> Checked {
        let of = self.operator.rng.usize(0..self.machines.len());
        let (Some(first), Some(life)) = (&self.first, &self.machines[of].life) else { return Ok(()) };
        if !self.machines[of].is_running() {
            return Ok(());
        }
        let set = first.set_at(self.operator.rng.usize(0..=first.seen[of]));
        let request =
            ChangeRequest { expected: life.replica(FIRST).group().version, change: Change::Follow(set) };
        self.ask_for_change(of, FIRST, request)
    }

    /// A replica's node sees what the first group has decided, or some of it.
    pub(super) fn sees(&mut self, of: usize) -> Checked {
        let id = self.machines[of].id;
        let Some(first) = self.first.as_mut().filter(|_| self.machines[of].is_alive()) else { return Ok(()) };
        let (seen, last) = (first.seen[of], first.last_for(id));
        let rng = &mut self.operator.rng;
        first.seen[of] = if rng.u8(0..4) == 0 { rng.usize(seen..=last) } else { last };
        self.tell_members(of)
    }

    /// A node starts: it knows what it has written down of the first group, and sees the rest later.
    pub(super) fn sees_at_start(&mut self, of: usize) -> Checked {
        if self.faults_are_over() {
            return self.sees_at_last(of);
        }
        let Some(first) = &mut self.first else { return Ok(()) };
        if self.network.wire() != Wire::Manual {
            let rng = &mut self.operator.rng;
            if rng.u8(0..4) == 0 {
                first.seen[of] = rng.usize(0..=first.seen[of]);
            }
            let wait =
                between(rng, Duration::ZERO, self.plan.settings.consensus.election_timeout * SEEN_TIMEOUTS);
            self.queue.push(self.now + wait, Happening::Sees { of });
        }
        self.tell_members(of)
    }

    /// Nothing goes wrong any more: every node sees all that it can. One that the first group has removed may not even
    /// hear of that, as long as the group has a voter that is a member there.
    pub(super) fn sees_at_last(&mut self, of: usize) -> Checked {
        let id = self.machines[of].id;
        let voters: Vec<ReplicaId> = self.checks[FIRST].log.group().voters().collect();
        let Some(first) = self.first.as_mut().filter(|_| self.machines[of].is_alive()) else { return Ok(()) };
        let removed = first.latest().member(id).is_none();
        let others = voters.iter().any(|&voter| first.latest().member(voter).is_some());
        if !(removed && others && self.operator.rng.bool()) {
            first.seen[of] = first.last_for(id);
        }
        self.tell_members(of)
    }

    fn tell_members(&mut self, of: usize) -> Checked {
        let Some(first) = &self.first else { return Ok(()) };
        let set = first.set_at(first.seen[of]);
        self.note(of, Mark::Note, || format!("sees the members of version {} of group 0", set.version));
        self.step(of, FIRST, Event::Members(set))
    }

    /// Checks how a group that follows changes.
    pub(super) fn check_following(&self, of: GroupId, slot: Slot, before: &Group, group: &Group) -> Checked {
        if self.first.is_none() && of == FIRST {
            return Ok(());
        }
        let (Membership::Follows(earlier), Membership::Follows(version)) =
            (before.membership, group.membership)
        else {
            return demand(false, Invariant::FollowsForward, || {
                format!("slot {slot} ends that the group follows")
            });
        };
        demand(version >= earlier, Invariant::FollowsForward, || {
            format!("slot {slot} has the group follow version {version} of group 0 after version {earlier}")
        })?;
        let set = match &self.first {
            Some(first) => first.set(version),
            None => self.checks[FIRST].groups.member_set(version),
        };
        let wrong = match set {
            Some(set) => differs(before, group, &set),
            None => Some("group 0 had no such members".to_owned()),
        };
        demand(wrong.is_none(), Invariant::MembersOfVersion, || {
            let wrong = wrong.unwrap_or_default();
            format!("after slot {slot} the group follows version {version} of group 0: {wrong}")
        })
    }

    /// Whether the groups have the members of the first one, if they follow one.
    pub(super) fn has_followed(&self) -> bool {
        let followed = match &self.first {
            Some(first) => first.latest(),
            None => self.checks[FIRST].log.group(),
        };
        let follows = |checks: &GroupChecks| checks.log.group().agrees_with(followed);
        self.checks.all().skip(usize::from(self.first.is_none())).all(follows)
    }

    // Scripts.

    /// In a script the first group changes.
    pub(crate) fn change_first_in_script(
        &mut self,
        change: impl FnOnce(&Group) -> Change,
    ) -> Result<(), String> {
        let first =
            self.first.as_ref().ok_or("this cluster has one group; begin with 'cluster 3 follows=true'")?;
        let latest = first.latest();
        let request = ChangeRequest { expected: latest.version, change: change(latest) };
        let next = latest.apply(Slot(1), &request).map_err(|refusal| refusal.to_string())?;
        self.first_group_becomes(settled(next));
        Ok(())
    }

    /// In a script a replica is asked to have the group follow this version of the first group.
    pub(crate) fn follow_in_script(&mut self, of: usize, version: u64) -> Result<(), String> {
        let set = self.first.as_ref().and_then(|first| first.set(version));
        let set = Arc::new(set.ok_or(format!("group 0 had no members of version {version}"))?);
        let asked = self.change_in_script(of, |_| Change::Follow(set));
        asked.map_err(|violation| format!("violates {violation}"))
    }

    /// In a script a replica's node sees the members of this version of the first group, or of the latest.
    pub(crate) fn see_in_script(&mut self, of: usize, version: Option<u64>) -> Result<(), String> {
        let first =
            self.first.as_mut().ok_or("this cluster has one group; begin with 'cluster 3 follows=true'")?;
        let version = version.unwrap_or(first.latest().version);
        let place = first.history.iter().position(|group| group.version == version);
        first.seen[of] = place.ok_or(format!("group 0 has no version {version}"))?;
        let seen = self.tell_members(of).and_then(|()| self.settle());
        seen.map_err(|violation| format!("violates {violation}"))
    }
}

/// What is wrong with the members of a group that follows this set, if something is.
fn differs(before: &Group, group: &Group, set: &MemberSet) -> Option<String> {
    let waits = group.learners().any(|(_, goal)| goal != Goal::Learn);
    let mut to_vote = 0;
    for told in &set.members {
        let votes = told.standing == Standing::Voter && group.may_choose(told.id);
        to_vote += usize::from(votes);
        let Some(own) = group.member(told.id) else {
            if group.has_part_for(told.id) {
                return Some(format!("{} is missing", told.id));
            }
            continue;
        };
        let is_right = match own.standing {
            Standing::Voter => votes || group.placement.is_some() && waits,
            Standing::Learner(Goal::Learn) => !votes && group.has_part_for(told.id),
            _ => votes,
        };
        if own.info != told.info || !is_right {
            return Some(format!("{own:?} was {told:?} there"));
        }
    }
    if let Some(placement) = &group.placement {
        let known = placement.cluster.iter().map(|member| (member.id, member.standing, &member.info));
        let told = set.members.iter().map(|member| (member.id, member.standing, &member.info));
        // A choice is made of what the group knows of a learner there: nothing but that it learns.
        let learns = |(id, standing, info)| match standing {
            Standing::Learner(_) => (id, Standing::Learner(Goal::Learn), info),
            _ => (id, standing, info),
        };
        if !known.map(learns).eq(told.map(learns)) {
            return Some(format!("it takes {:?} for the members of the cluster", placement.cluster));
        }
        let votes = |id: &ReplicaId| {
            set.members.iter().any(|member| member.id == *id && member.standing == Standing::Voter)
        };
        if let Some(wrong) = placement.choice.voters.iter().find(|id| !votes(id)) {
            return Some(format!("{wrong} was chosen, and does not vote there"));
        }
    }
    let told = |id: ReplicaId| set.members.iter().any(|member| member.id == id);
    let stays = |id| group.votes(id) && group.learners().any(|(_, goal)| goal == Goal::Replace(id));
    if let Some(left) = group.members.iter().find(|member| !told(member.id) && !stays(member.id)) {
        return Some(format!("{} is no member there, and nobody is to take its place", left.id));
    }
    let few = group.voters().count() < before.voters().count().min(to_vote);
    few.then(|| format!("of {} voters {} are left", before.voters().count(), group.voters().count()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::Options;

    fn ids(ids: &[u64]) -> Vec<ReplicaId> {
        ids.iter().copied().map(ReplicaId).collect()
    }

    fn first() -> Group {
        Group::of(&Options::default(), ids(&[1, 2, 3])).followed()
    }

    fn add(first: &Group, goal: Goal) -> Group {
        changed(first, Change::Add { info: info(first.next_id, 0), goal }).expect("it can be made")
    }

    fn set(first: &Group) -> Arc<MemberSet> {
        Arc::new(first.member_set().expect("others follow it"))
    }

    #[test]
    fn a_group_differs_from_a_set_if_somebody_is_missing_or_stays_or_votes_too_early() {
        let begins = first();
        let follows = begins.clone().following(begins.version);
        let joined = add(&begins, Goal::Replace(ReplicaId(1)));
        let replaced = changed(&joined, Change::promote(ReplicaId(4))).unwrap();
        let group = changed(&follows, Change::Follow(set(&replaced))).unwrap();
        assert_eq!(differs(&follows, &group, &set(&replaced)), None);
        let wrong = |group: &Group, set: &MemberSet| differs(&follows, group, set).expect("it differs");
        assert_eq!(wrong(&follows, &set(&replaced)), "r4 is missing");
        let mut early = group.clone();
        early.members[3].standing = Standing::Voter;
        assert!(wrong(&early, &set(&replaced)).starts_with("r1 is no member there"));
        assert!(wrong(&early, &set(&joined)).contains("was"));
        let mut moved = group.clone();
        moved.members[1].info = info(ReplicaId(2), 7);
        assert!(wrong(&moved, &set(&replaced)).contains("was"));
        let mut few = group.clone();
        few.members.remove(0);
        assert_eq!(wrong(&few, &set(&replaced)), "of 3 voters 2 are left");
    }
}
