//! What a server refuses of a change before it is proposed, and how far a group has followed the first one.

use synod_consensus::ElectionKind;
use synod_node::Handle;
use synod_replica::{Membership, Placement};
use synod_wire::ReplicaId;

use crate::{Change, ChangeError, Goal, Group, Member};

/// Refuses to have a member leave the first of several groups while another group needs it.
pub(super) fn check_others_follow(
    groups: &[Handle],
    first: &Group,
    leaving: ReplicaId,
    removed: bool,
) -> Result<(), ChangeError> {
    for (number, handle) in groups.iter().enumerate().skip(1) {
        // What this replica knows of a group in which it takes no part is old.
        let (group, old) = (handle.group(), !handle.takes_part());
        let is_left = |id: &&ReplicaId| first.member(**id).is_some();
        let is_only = |placement: &Placement| placement.choice.voters.iter().filter(is_left).eq([&leaving]);
        if removed && group.placement.as_ref().is_some_and(is_only) {
            let as_known = if old { ", as far as this replica knows, which takes no part in it" } else { "" };
            return Err(ChangeError::Unacceptable(format!(
                "{leaving} is the only member that votes in group {number}{as_known}: let others vote there first, with \
                 `synod reconfigure --group {number} --voters`, or ask a replica that takes part in the group"
            )));
        }
        if !old && first.is_needed_by(&group.follower(), leaving) {
            return Err(ChangeError::Unacceptable(format!(
                "group {number} has not followed the last changes of members ({}), and without {leaving} fewer than a \
                 majority of its voters are left: wait until `synod status` shows it as group 0",
                members_pending(&group, first)
            )));
        }
    }
    Ok(())
}

/// Refuses a change to an election that 0.2.0 passes over, while a member may run it. A group that has that election
/// has no such member.
pub(super) fn check_all_know_election(group: &Group, change: &Change) -> Result<(), ChangeError> {
    let begins = matches!(change, Change::Order { election: ElectionKind::Latency, .. })
        && group.election != ElectionKind::Latency;
    if begins && !group.names_births() {
        let why = "election latency: a member may run 0.2.0, which does not know it and would part from the others: let all voters run \
                   0.3.0 or later and meet, until the group names their data directories (docs/upgrading.md)";
        return Err(ChangeError::Unacceptable(why.to_owned()));
    }
    Ok(())
}

/// What is missing until a group has the members of the first one, for people; empty if it has them, as the first group
/// itself does.
pub(super) fn members_pending(group: &Group, first: &Group) -> String {
    if !matches!(group.membership, Membership::Follows(_)) || group.agrees_with(first) {
        return String::new();
    }
    let name = Member::name;
    let mut missing = Vec::new();
    let part = |id| first.member(id).is_some() && group.has_part_for(id);
    for member in first.members.iter().filter(|member| part(member.id)) {
        let is_to_vote = first.votes(member.id) && group.may_choose(member.id);
        match group.member(member.id) {
            None => missing.push(format!("{} joins", name(member))),
            Some(_) if is_to_vote && !group.votes(member.id) => {
                missing.push(format!("{} learns", name(member)))
            }
            Some(_) if !is_to_vote && group.votes(member.id) => {
                missing.push(format!("{} hands over its vote", name(member)));
            }
            Some(_) => {}
        }
    }
    let left = group.members.iter().filter(|member| !part(member.id));
    missing.extend(left.map(|member| format!("{} leaves", name(member))));
    if missing.is_empty() { "not up to date".to_owned() } else { missing.join(", ") }
}

/// The member that leaves with a change of the group, or will.
pub(super) fn leaving(group: &Group, change: &Change) -> Option<ReplicaId> {
    match *change {
        Change::Remove(id) | Change::Add { goal: Goal::Replace(id), .. } => Some(id),
        Change::Promote { id: promoted, .. } => group.learners().find_map(|(id, goal)| match goal {
            Goal::Replace(old) if id == promoted => Some(old),
            _ => None,
        }),
        _ => None,
    }
}

/// Whether a change would leave more members than this many without a vote for good. A learner that is to vote, or to
/// replace another member, does not count.
pub(super) fn adds_too_many_learners(group: &Group, change: &Change, max: u32) -> bool {
    let stay = group.learners().filter(|(_, goal)| *goal == Goal::Learn).count();
    matches!(change, Change::Add { goal: Goal::Learn, .. }) && stay >= max as usize
}

#[cfg(test)]
mod tests {
    use synod_replica::{ChangeRequest, MemberInfo};
    use synod_wire::Slot;

    use super::*;

    #[test]
    fn an_election_that_a_member_may_not_know_waits_until_all_have_met() {
        let options = synod_consensus::Options::default();
        let mut group = Group::of(&options, [1, 2, 3].map(ReplicaId));
        let change = |election| Change::Order {
            protocol: options.protocol,
            election,
            overrides: synod_consensus::Overrides::default(),
        };
        check_all_know_election(&group, &change(ElectionKind::Rotating)).expect("every release knows it");
        let why = check_all_know_election(&group, &change(ElectionKind::Latency)).unwrap_err().to_string();
        assert!(why.contains("let all voters run 0.3.0"), "{why}");
        group.election = ElectionKind::Latency;
        check_all_know_election(&group, &change(ElectionKind::Latency)).expect("all members know it");
        group.election = options.election;
        group.members[1].birth = Some(7);
        check_all_know_election(&group, &change(ElectionKind::Latency)).expect("all have met");
    }

    #[test]
    fn learners_that_are_to_vote_do_not_count() {
        let group = Group::of(&synod_consensus::Options::default(), [1, 2, 3].map(ReplicaId));
        let add = |goal| Change::Add { info: MemberInfo::new("", vec![format!("http://{goal:?}:1")]), goal };
        let added = |group: &Group, goal| {
            group.apply(Slot(1), &ChangeRequest { expected: group.version, change: add(goal) }).unwrap()
        };
        let voting = added(&group, Goal::Vote);
        assert!(!adds_too_many_learners(&voting, &add(Goal::Learn), 1));
        let learning = added(&voting, Goal::Learn);
        assert!(adds_too_many_learners(&learning, &add(Goal::Learn), 1));
        assert!(!adds_too_many_learners(&learning, &add(Goal::Learn), 2));
        assert!(!adds_too_many_learners(&learning, &add(Goal::Vote), 1));
        assert!(!adds_too_many_learners(&learning, &Change::promote(ReplicaId(5)), 1));
    }

    #[test]
    fn a_member_leaves_when_its_successor_is_promoted() {
        let group = Group::of(&synod_consensus::Options::default(), [1, 2, 3].map(ReplicaId));
        let add = |goal| Change::Add { info: MemberInfo::default(), goal };
        let replaces = add(Goal::Replace(ReplicaId(2)));
        assert_eq!(leaving(&group, &replaces), Some(ReplicaId(2)));
        assert_eq!(leaving(&group, &add(Goal::Vote)), None);
        assert_eq!(leaving(&group, &Change::Remove(ReplicaId(1))), Some(ReplicaId(1)));
        let request = ChangeRequest { expected: group.version, change: replaces };
        let group = group.apply(Slot(1), &request).unwrap();
        assert_eq!(leaving(&group, &Change::promote(ReplicaId(4))), Some(ReplicaId(2)));
        assert_eq!(leaving(&group, &Change::promote(ReplicaId(3))), None);
    }
}
