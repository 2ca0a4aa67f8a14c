//! Groups that choose their voters among the members of their cluster.
//!
//! A group that [follows](crate::Membership::Follows) the first group of its cluster has the members and the voters of
//! that one, unless a [`Placement`] says otherwise: then it has the voters that were chosen for it, and the other
//! members of the cluster learn what it decides or take no part in it. `docs/epochs.md` has the argument. Its rules
//! are:
//!
//! - Which members vote and which learn is one function of the members of the cluster and of the choice
//!   ([`Group::arrange`]). A group with a placement keeps both as replicated state, so a later choice and a later
//!   member set give the same group at every replica.
//! - A choice names members that vote in the first group, as far as this group has followed it. The place of a chosen
//!   member that leaves the cluster goes to a member that began to vote there; without one there is one place less. A
//!   group whose last chosen member leaves so follows the first group again.
//! - A member that took part in an epoch and has another part now, or that took none and comes back, does so in a new
//!   epoch.

use std::fmt;

use synod_wire::{Batch, DecodeError, Incarnation, Reader, ReplicaId, Slot, Writer};

use crate::{
    Goal, Group, Member, MemberSet, Membership, Refusal, Standing,
    births::{give_births, named_in},
    change::Concerns,
    group::read_members,
};

/// What the members of a cluster that do not vote in a group are to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Others {
    /// They learn what the group decides.
    Learn,
    /// They are no members of the group, and run nothing of it.
    StayAway,
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Others::Learn => "learn",
            Others::StayAway => "stay away",
        })
    }
}

/// The voters of a group, where these are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The members of the cluster that vote in the group, by id. Each of them votes in the first group.
    pub voters: Vec<ReplicaId>,
    /// What the other members of the cluster are to the group.
    pub others: Others,
}

/// The part that members of the cluster take in a group, where that is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The choice.
    pub choice: Choice,
    /// The members of the cluster and their standings in its first group, as the group followed that one last.
    pub cluster: Vec<Member>,
}

/// The part that a member of the cluster is to take in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Votes,
    Learns,
    IsAway,
}

impl Choice {
    /// The choice of these voters.
    #[must_use]
    pub fn of(voters: impl IntoIterator<Item = ReplicaId>, others: Others) -> Choice {
        let mut voters: Vec<_> = voters.into_iter().collect();
        voters.sort_unstable();
        voters.dedup();
        Choice { voters, others }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bool(self.others == Others::StayAway);
        writer.u32(u32::try_from(self.voters.len()).expect("few members"));
        self.voters.iter().for_each(|&id| writer.replica(id));
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Choice, DecodeError> {
        let others = if reader.bool("others stay away")? { Others::StayAway } else { Others::Learn };
        let count = reader.u32("chosen voters")?;
        let voters = (0..count).map(|_| reader.replica("chosen voter")).collect::<Result<_, _>>()?;
        Ok(Choice { voters, others })
    }
}

impl Placement {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        self.choice.encode(writer);
        writer.u32(u32::try_from(self.cluster.len()).expect("few members"));
        self.cluster.iter().for_each(|member| member.encode(writer));
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Placement, DecodeError> {
        Ok(Placement { choice: Choice::decode(reader)?, cluster: read_members(reader)? })
    }

    /// The choice among the members of a later set, if one of the chosen members is left, or has a successor.
    ///
    /// The member that took the place of another in the first group is known if the group followed the set in which it
    /// was to do so. A group that skipped that set gives the places to the members that began to vote, in the order of
    /// their ids.
    pub(crate) fn choice_in(&self, set: &MemberSet) -> Option<Choice> {
        let before =
            |id: ReplicaId| self.cluster.iter().find(|member| member.id == id).map(|own| own.standing);
        let began = set.members.iter().filter(|member| member.standing == Standing::Voter);
        let began = began.map(|member| member.id).filter(|&id| before(id) != Some(Standing::Voter));
        let gone = |id: ReplicaId| set.member(id).is_none();
        let (mut heirs, mut free) = (Vec::new(), Vec::new());
        for id in began {
            match before(id) {
                Some(Standing::Learner(Goal::Replace(old))) if gone(old) => heirs.push((old, id)),
                _ => free.push(id),
            }
        }
        let mut free = free.into_iter();
        let in_its_place = |id: ReplicaId| match heirs.iter().find(|(old, _)| *old == id) {
            _ if !gone(id) => Some(id),
            Some(&(_, heir)) => Some(heir),
            None => free.find(|id| !self.choice.voters.contains(id)),
        };
        let voters: Vec<_> = self.choice.voters.iter().copied().filter_map(in_its_place).collect();
        (!voters.is_empty()).then(|| Choice::of(voters, self.choice.others))
    }
}

impl Group {
    /// Whether the replica `id`, a member of the cluster, votes here in the long run if it votes in the first group.
    #[must_use]
    pub fn may_choose(&self, id: ReplicaId) -> bool {
        self.placement.as_ref().is_none_or(|placement| placement.choice.voters.contains(&id))
    }

    /// Whether the replica `id` is to be a member of this group in the long run if it is one of the cluster.
    #[must_use]
    pub fn has_part_for(&self, id: ReplicaId) -> bool {
        let learn = |placement: &Placement| placement.choice.others == Others::Learn;
        self.may_choose(id) || self.placement.as_ref().is_some_and(learn)
    }

    /// Whether the replica `id` takes no part in this group although it is a member of the cluster.
    #[must_use]
    pub fn is_away(&self, id: ReplicaId) -> bool {
        let in_cluster = |placement: &Placement| placement.cluster.iter().any(|member| member.id == id);
        !self.counts(id) && self.member(id).is_none() && self.placement.as_ref().is_some_and(in_cluster)
    }

    /// The members of the cluster with their standings in its first group, as this group followed that one last.
    pub(crate) fn cluster(&self) -> Vec<Member> {
        if let Some(placement) = &self.placement {
            return placement.cluster.clone();
        }
        // A voter that is replaced here has left the first group.
        let left = |id| self.learners().any(|(_, goal)| goal == Goal::Replace(id));
        let members = self.members.iter().filter(|member| !left(member.id));
        let of_first = |member: &Member| match member.standing {
            Standing::Learner(Goal::Learn) => member.clone(),
            _ => Member { standing: Standing::Voter, ..member.clone() },
        };
        members.map(of_first).collect()
    }

    /// Chooses the voters of a group that follows another, or leaves the choice to the other group.
    pub(crate) fn place(&mut self, choice: Option<&Choice>) -> Result<Concerns, Refusal> {
        let Membership::Follows(_) = self.membership else { return Err(Refusal::FollowsNone) };
        if self.placement.as_ref().map(|placement| &placement.choice) == choice {
            return Err(Refusal::NothingToDo);
        }
        let cluster = self.cluster();
        if let Some(choice) = choice {
            if choice.voters.is_empty() || !choice.voters.is_sorted_by(|one, other| one < other) {
                return Err(Refusal::Malformed);
            }
            let votes = |id: ReplicaId| {
                cluster.iter().any(|member| member.id == id && member.standing == Standing::Voter)
            };
            if let Some(&id) = choice.voters.iter().find(|&&id| !votes(id)) {
                return Err(Refusal::NotAVoterOfFirst(id));
            }
        }
        Ok(self.arrange(cluster, choice.cloned()))
    }

    /// Gives each member of the cluster its part. A voter that is to vote no more keeps its vote while a member that is
    /// to vote in its place learns.
    pub(crate) fn arrange(&mut self, cluster: Vec<Member>, choice: Option<Choice>) -> Concerns {
        let voters: Vec<_> = self.voters().collect();
        // What either of the two groups names is named in both.
        let known = named_in(self.members.iter().chain(&self.former));
        let mut cluster = cluster;
        give_births(&mut cluster, &known);
        let part = |told: &Member| match &choice {
            None if told.standing == Standing::Voter => Part::Votes,
            None => Part::Learns,
            Some(choice) if choice.voters.contains(&told.id) => Part::Votes,
            Some(Choice { others: Others::Learn, .. }) => Part::Learns,
            Some(Choice { others: Others::StayAway, .. }) => Part::IsAway,
        };
        let part_of = |id: ReplicaId| cluster.iter().find(|told| told.id == id).map(part);
        // Those that are still members of the cluster come first: if there are fewer successors, the others leave at
        // once.
        let stays = voters.iter().copied().filter(|&id| part_of(id).is_some_and(|part| part != Part::Votes));
        let leaves = voters.iter().copied().filter(|&id| part_of(id).is_none());
        let mut leaving = stays.chain(leaves);
        let mut replaced = Vec::new();
        let mut next: Vec<Member> = Vec::new();
        for told in cluster.iter().filter(|told| part(told) == Part::Votes) {
            let votes = self.votes(told.id);
            let old = if votes { None } else { leaving.next() };
            replaced.extend(old);
            let standing = match old {
                _ if votes => Standing::Voter,
                Some(old) => Standing::Learner(Goal::Replace(old)),
                None => Standing::Learner(Goal::Vote),
            };
            next.push(self.known_as(told, standing));
        }
        // A voter that is to vote no more and has no successor leaves with the last promotion: the voters that have one
        // may be down.
        let waits = next.iter().any(|member| member.standing != Standing::Voter);
        for told in cluster.iter().filter(|told| part(told) != Part::Votes) {
            if self.votes(told.id) && (waits || replaced.contains(&told.id)) {
                next.push(self.known_as(told, Standing::Voter));
            } else if part(told) == Part::Learns {
                next.push(self.known_as(told, Standing::Learner(Goal::Learn)));
            }
        }
        let gone = |id: ReplicaId| replaced.contains(&id) && !cluster.iter().any(|told| told.id == id);
        next.extend(self.members.iter().filter(|member| gone(member.id)).cloned());
        next.sort_by_key(|member| member.id);
        self.members = next;
        self.placement =
            choice.map(|choice| Placement { choice, cluster: cluster.iter().map(forgotten).collect() });
        if self.voters().eq(voters) { Concerns::Members } else { Concerns::Voters }
    }

    /// A member of the cluster as a member of this group.
    fn known_as(&self, told: &Member, standing: Standing) -> Member {
        let own = self.member(told.id);
        let readmitted = own.map_or(Incarnation(0), |own| own.readmitted);
        let birth = own.and_then(|own| own.birth).or(told.birth);
        Member { standing, readmitted, birth, ..told.clone() }
    }

    /// The vote of `old` has gone to another member; with the last that was to come, all leave that were not chosen.
    pub(crate) fn hand_over_place(&mut self, old: Option<ReplicaId>) {
        let waits = self.learners().any(|(_, goal)| goal != Goal::Learn);
        let placement = self.placement.take();
        let in_cluster = |id: ReplicaId| {
            placement.as_ref().is_some_and(|placement| placement.cluster.iter().any(|member| member.id == id))
        };
        let chosen =
            |id: ReplicaId| placement.as_ref().is_none_or(|placement| placement.choice.voters.contains(&id));
        let learn = placement.as_ref().is_some_and(|placement| placement.choice.others == Others::Learn);
        let hands_over = |member: &Member| {
            let surplus = !waits && !chosen(member.id) && in_cluster(member.id);
            old == Some(member.id) || member.standing == Standing::Voter && surplus
        };
        self.members.retain_mut(|member| {
            if !hands_over(member) {
                return true;
            }
            member.standing = Standing::Learner(Goal::Learn);
            learn && in_cluster(member.id)
        });
        self.placement = placement;
    }

    /// Whether a replica has another part in `next` that it cannot take in the present epoch: a voter goes on without a
    /// vote, or a replica comes that may have been a member before. It has stopped its protocol meanwhile, and
    /// forgotten what it said in this epoch.
    pub(crate) fn takes_back(&self, next: &Group) -> bool {
        let demoted = |id: ReplicaId| next.member(id).is_some() && !next.votes(id);
        let returns = |id: ReplicaId| self.member(id).is_none() && id < self.next_id;
        self.voters().any(demoted) || next.members.iter().any(|member| returns(member.id))
    }
}

// Planted bugs.

impl Group {
    /// What [`Group::after`] says where [`Bug::StalePlacement`](synod_consensus::Bug::StalePlacement) is planted.
    pub(crate) fn after_stale_placement(&self, slot: Slot, batch: &Batch) -> Option<Result<Group, Refusal>> {
        let changed = self.after(slot, batch)?;
        Some(changed.map(|mut next| {
            if let (Some(before), Some(placement)) = (&self.placement, &mut next.placement) {
                placement.cluster.clone_from(&before.cluster);
            }
            next
        }))
    }

    /// The same for [`Bug::RejoinWithinEpoch`](synod_consensus::Bug::RejoinWithinEpoch).
    pub(crate) fn after_rejoining(&self, slot: Slot, batch: &Batch) -> Option<Result<Group, Refusal>> {
        let changed = self.after(slot, batch)?;
        Some(changed.map(|mut next| {
            let learns = self.takes_back(&next) && self.voters().eq(next.voters());
            if learns && self.changes_voters_itself() {
                (next.epoch, next.first) = (self.epoch, self.first);
            }
            next
        }))
    }
}

/// A member as the first group knows it, without what concerns that group's own epochs.
fn forgotten(member: &Member) -> Member {
    Member { readmitted: Incarnation(0), ..member.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Change, ChangeRequest, Follower, MemberInfo};
    use synod_consensus::{Options, ProtocolKind, Threshold};

    fn info(name: &str) -> MemberInfo {
        MemberInfo::new(name, vec![format!("http://{name}:1")])
    }

    fn ids(ids: &[u64]) -> Vec<ReplicaId> {
        ids.iter().copied().map(ReplicaId).collect()
    }

    fn first(protocol: ProtocolKind, members: u64) -> Group {
        let members = (1..=members).map(|id| (ReplicaId(id), info(&format!("n{id}"))));
        Group::first(&Options::of(protocol), members).followed()
    }

    fn behind(first: &Group) -> Group {
        first.clone().following(first.version)
    }

    fn changed(group: &Group, change: Change) -> Result<Group, Refusal> {
        let next = group.apply(Slot(9), &ChangeRequest { expected: group.version, change })?;
        Ok(Group { outgoing: Vec::new(), ..next })
    }

    fn made(group: &Group, change: Change) -> Group {
        let next = changed(group, change).expect("it can be made");
        assert_eq!(Group::decode(next.encode().to_bytes()).as_ref(), Ok(&next));
        next
    }

    fn placed(group: &Group, voters: &[u64], others: Others) -> Group {
        made(group, Change::Place(Some(Choice::of(ids(voters), others))))
    }

    fn followed(group: &Group, first: &Group) -> Group {
        made(group, Change::Follow(Arc::new(first.member_set().expect("others follow it"))))
    }

    /// All that are to vote and learn are promoted, in the order of their ids.
    fn grown(mut group: Group) -> Group {
        loop {
            let next = group.learners().find(|&(_, goal)| goal != Goal::Learn);
            let Some((id, _)) = next else { return group };
            group = made(&group, Change::promote(id));
        }
    }

    fn voters(group: &Group) -> Vec<u64> {
        group.voters().map(|id| id.0).collect()
    }

    fn learners(group: &Group) -> Vec<u64> {
        group.learners().map(|(id, _)| id.0).collect()
    }

    fn replaced(first: &Group, old: u64) -> [Group; 2] {
        let goal = Goal::Replace(ReplicaId(old));
        let joined = made(first, Change::Add { info: info(&format!("n{}", first.next_id)), goal });
        let promoted = made(&joined, Change::promote(first.next_id));
        [joined, promoted]
    }

    #[test]
    fn those_that_are_to_vote_learn_first_and_the_others_learn_or_stay_away_then() {
        for protocol in [ProtocolKind::MultiPaxos, ProtocolKind::Raft] {
            let first = first(protocol, 5);
            for others in [Others::Learn, Others::StayAway] {
                let three = grown(placed(&behind(&first), &[1, 2, 3], others));
                assert_eq!(voters(&three), [1, 2, 3]);
                let rest: &[u64] = if others == Others::Learn { &[4, 5] } else { &[] };
                assert_eq!(learners(&three), rest);
                assert_eq!(three.is_away(ReplicaId(4)), others == Others::StayAway);
                assert!(three.agrees_with(&first) && !three.is_away(ReplicaId(1)));

                let moves = placed(&three, &[3, 4, 5], others);
                assert_eq!(
                    (voters(&moves), learners(&moves)),
                    (vec![1, 2, 3], vec![4, 5]),
                    "they keep their votes"
                );
                assert!(!moves.agrees_with(&first));
                let moved = grown(moves);
                assert!(voters(&moved) == [3, 4, 5] && moved.agrees_with(&first));
                assert_eq!(learners(&moved).is_empty(), others == Others::StayAway);

                let again = grown(made(&moved, Change::Place(None)));
                assert!(voters(&again) == [1, 2, 3, 4, 5] && again.agrees_with(&first));
                assert_eq!(again.placement, None);
            }
        }
    }

    #[test]
    fn no_vote_is_given_up_before_the_last_of_the_chosen_members_has_caught_up() {
        let moves = placed(&behind(&first(ProtocolKind::MultiPaxos, 4)), &[4], Others::StayAway);
        assert_eq!(voters(&moves), [4], "it has voted before");
        let three = placed(&behind(&first(ProtocolKind::MultiPaxos, 4)), &[1, 2, 3], Others::StayAway);
        let moves = placed(&three, &[4], Others::StayAway);
        assert_eq!((voters(&moves), learners(&moves)), (vec![1, 2, 3], vec![4]), "replica 1 may be down");
        assert_eq!(voters(&grown(moves)), [4]);
    }

    #[test]
    fn a_member_takes_another_part_in_a_new_epoch_where_voters_change_within_an_epoch_too() {
        let first = first(ProtocolKind::Raft, 5);
        let all = behind(&first);
        let three = placed(&all, &[1, 2, 3], Others::Learn);
        assert_eq!((three.epoch.0, three.outgoing.len()), (all.epoch.0 + 1, 0), "replicas 4 and 5 learn now");
        let away = placed(&three, &[1, 2, 3], Others::StayAway);
        assert_eq!(away.epoch, three.epoch, "learners leave");
        let two = placed(&away, &[1, 2], Others::StayAway);
        assert_eq!(two.epoch, away.epoch, "a voter leaves");
        let back = placed(&two, &[1, 2], Others::Learn);
        assert_eq!(
            (back.epoch.0, back.first),
            (two.epoch.0 + 1, Slot(10)),
            "replica 3 has voted in the epoch"
        );
        let votes = placed(&back, &[1, 2, 3], Others::Learn);
        assert_eq!(votes.epoch, back.epoch);
        assert_eq!(grown(votes).epoch, back.epoch);
        let joined = made(&first, Change::Add { info: info("n6"), goal: Goal::Learn });
        assert_eq!(followed(&back, &joined).epoch, back.epoch, "replica 6 was never here");
        let to_come = followed(&two, &joined);
        assert_eq!((to_come.epoch, learners(&to_come)), (two.epoch, vec![]));
        assert!(to_come.is_away(ReplicaId(6)));
    }

    #[test]
    fn a_successor_in_the_first_group_takes_the_place_of_a_chosen_member() {
        let first = first(ProtocolKind::MultiPaxos, 5);
        let three = placed(&behind(&first), &[1, 2, 3], Others::StayAway);
        let [joined, promoted] = replaced(&first, 3);
        let [_, other] = replaced(&promoted, 5);
        // It follows each set, or the last one alone.
        let step = followed(&followed(&followed(&three, &joined), &promoted), &other);
        assert_eq!(
            (voters(&step), learners(&step)),
            (vec![1, 2, 3], vec![6]),
            "a removed voter is needed until then"
        );
        let after = grown(step);
        assert!(voters(&after) == [1, 2, 6] && after.agrees_with(&other));
        assert!(after.is_away(ReplicaId(7)) && after.is_away(ReplicaId(4)) && !after.is_away(ReplicaId(3)));
        let skipped = grown(followed(&three, &other));
        assert!(voters(&skipped) == [1, 2, 6] && skipped.agrees_with(&other));

        let left = made(&other, Change::Remove(ReplicaId(2)));
        let two = followed(&after, &left);
        assert!(voters(&two) == [1, 6] && two.agrees_with(&left), "nobody takes its place");
        let alone = made(&left, Change::Remove(ReplicaId(1)));
        let one = followed(&two, &alone);
        assert_eq!(voters(&one), [6]);
        let gone = made(&alone, Change::Remove(ReplicaId(6)));
        let all = followed(&one, &gone);
        assert_eq!((&all.placement, voters(&all)), (&None, vec![6]), "it follows the first group again");
        assert!(voters(&grown(all.clone())) == [4, 7] && grown(all).agrees_with(&gone));
    }

    #[test]
    fn a_choice_is_of_voters_of_the_first_group_alone() {
        let first = first(ProtocolKind::MultiPaxos, 3);
        let group = behind(&first);
        let place = |group: &Group, voters: &[u64]| {
            let choice = Choice { voters: ids(voters), others: Others::Learn };
            changed(group, Change::Place(Some(choice)))
        };
        assert_eq!(place(&group, &[]), Err(Refusal::Malformed));
        assert_eq!(place(&group, &[2, 1]), Err(Refusal::Malformed));
        assert_eq!(place(&group, &[1, 4]), Err(Refusal::NotAVoterOfFirst(ReplicaId(4))));
        assert_eq!(place(&first, &[1]), Err(Refusal::FollowsNone));
        assert_eq!(changed(&group, Change::Place(None)), Err(Refusal::NothingToDo));
        let learns = followed(&group, &made(&first, Change::Add { info: info("n4"), goal: Goal::Learn }));
        assert_eq!(place(&learns, &[1, 4]), Err(Refusal::NotAVoterOfFirst(ReplicaId(4))));
        let one = place(&learns, &[1]).expect("it votes there");
        assert_eq!(place(&one, &[1]), Err(Refusal::NothingToDo));
        assert_eq!(changed(&one, Change::promote(ReplicaId(2))), Err(Refusal::MembersFollow));
    }

    #[test]
    fn a_member_leaves_the_cluster_if_the_chosen_voters_can_do_without_it() {
        let first = first(ProtocolKind::MultiPaxos, 5);
        let two = grown(placed(&behind(&first), &[1, 2], Others::StayAway));
        let needed = |first: &Group, group: &Group, id| first.is_needed_by(&group.follower(), ReplicaId(id));
        assert!(!needed(&first, &two, 2), "it runs on until the group has let it go");
        let left = made(&first, Change::Remove(ReplicaId(2)));
        assert!(needed(&left, &two, 1), "nobody may be left that decides that replica 2 goes");
        assert!(!needed(&left, &followed(&two, &left), 1));
        let moves = placed(&two, &[3, 4], Others::StayAway);
        assert!(needed(&first, &moves, 1), "it has not moved yet");
        assert_eq!(
            two.follower(),
            Follower { voters: two.voter_sets(), chosen: Some(ids(&[1, 2])), threshold: Threshold::Majority }
        );
    }

    /// A change of members, which the group may refuse.
    fn drawn_change(rng: &mut fastrand::Rng, group: &Group) -> Change {
        let member = |rng: &mut fastrand::Rng| group.members[rng.usize(0..group.members.len())].id;
        let goal = match rng.u8(0..3) {
            0 => Goal::Vote,
            1 => Goal::Learn,
            _ => Goal::Replace(member(rng)),
        };
        match rng.u8(0..3) {
            0 => Change::Add { info: info(&format!("n{}", group.next_id)), goal },
            1 => Change::Remove(member(rng)),
            _ => Change::promote(group.learners().next().map_or_else(|| member(rng), |(id, _)| id)),
        }
    }

    /// Member sets in any order, choices, and promotions in between: the group never takes on an older set, never is
    /// without a voter, and has what the latest of both say once its learners have caught up.
    #[test]
    fn choices_and_member_sets_that_overtake_each_other_lead_to_the_same_group() {
        for (protocol, seed) in
            [ProtocolKind::MultiPaxos, ProtocolKind::Raft].into_iter().cycle().zip(0..120_u64)
        {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let mut firsts = vec![first(protocol, rng.u64(1..6))];
            for _ in 0..12 {
                let last = firsts.last().expect("one at least");
                let change = drawn_change(rng, last);
                firsts.extend(changed(last, change));
            }
            let mut group = behind(&firsts[0]);
            let mut latest = 0;
            for _ in 0..60 {
                let before = group.clone();
                let next = match rng.u8(0..4) {
                    0 => {
                        let offered = rng.usize(0..firsts.len());
                        let set = firsts[offered].member_set().expect("others follow it");
                        let version = set.version;
                        let next = changed(&group, Change::Follow(Arc::new(set)));
                        let Membership::Follows(followed) = group.membership else { panic!("it follows") };
                        assert_eq!(next.is_ok(), version > followed);
                        latest = if next.is_ok() { offered } else { latest };
                        next
                    }
                    1 => {
                        let voters = firsts[latest].voters().filter(|_| rng.bool()).collect::<Vec<_>>();
                        let others = if rng.bool() { Others::Learn } else { Others::StayAway };
                        let choice = (!voters.is_empty()).then(|| Choice::of(voters, others));
                        changed(&group, Change::Place(choice))
                    }
                    _ => {
                        let ready = group.learners().find(|&(_, goal)| goal != Goal::Learn);
                        ready
                            .map_or(Err(Refusal::NothingToDo), |(id, _)| changed(&group, Change::promote(id)))
                    }
                };
                group = next.unwrap_or(group);
                assert!(group.voters().next().is_some(), "{before:?} became {group:?}");
                let had = before
                    .voters()
                    .count()
                    .min(firsts[latest].voters().filter(|&id| group.may_choose(id)).count());
                assert!(group.voters().count() >= had, "{before:?} became {group:?}");
                assert!(
                    group
                        .cluster()
                        .iter()
                        .map(|member| member.id)
                        .eq(firsts[latest].members.iter().map(|m| m.id))
                );
                assert_eq!(Group::decode(group.encode().to_bytes()).as_ref(), Ok(&group));
            }
            let last = firsts.last().expect("one at least");
            if latest + 1 < firsts.len() {
                group =
                    changed(&group, Change::Follow(Arc::new(last.member_set().expect("others follow it"))))
                        .unwrap_or(group);
            }
            let group = grown(group);
            assert!(group.agrees_with(last), "{group:?} and {last:?}");
        }
    }
}
