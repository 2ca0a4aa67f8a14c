//! Groups that take their members from another group of their cluster.
//!
//! A cluster of several groups decides on its members in one of these, its first group. Each other group follows: its
//! caretaker proposes, in the group itself, the member set that its node has seen decided in the first group
//! ([`Change::Follow`]), and so does another voter if the caretaker does not. `docs/epochs.md` has the argument. Its
//! rules are:
//!
//! - A member set is named by the version of the first group in which the members last changed. A group that follows
//!   keeps the version that it followed last as replicated state, and refuses a set that is not later.
//! - A member that votes in the first group and not here learns until it has caught up here, and is promoted then.
//! - A voter that the first group does not have any more votes until such a member takes its place. Without one it
//!   leaves at once.

use std::sync::Arc;

use synod_consensus::{Bug, Threshold, VoterSets};
use synod_wire::{Batch, DecodeError, Reader, ReplicaId, Slot, Time, Writer};

use crate::{
    Change, Goal, Group, Member, Refusal, Replica, Standing,
    change::Concerns,
    group::{GROUP_MEMBERS_MAX, read_members},
};

/// How many times the interval of a caretaker's questions another voter waits before it proposes members.
const OTHERS_WAIT: u32 = 5;

/// Where it is decided who the members of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Membership {
    /// In the group itself, which is the only one of its cluster.
    Alone,
    /// In the group itself, and the other groups of its cluster follow. Ids, standings or addresses for peers last
    /// changed with this version of the group.
    Followed(u64),
    /// In another group. The members are those that the other group had in this version, or will be once learners have
    /// caught up.
    Follows(u64),
}

/// The members of a group that others follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSet {
    /// The version of the group in which they last changed. A later set has a higher one.
    pub version: u64,
    /// The members, by id.
    pub members: Vec<Member>,
    /// The id that the next member gets.
    pub next_id: ReplicaId,
}

impl MemberSet {
    pub(crate) fn member(&self, id: ReplicaId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Whether a group can have these members. What a replica sends is; what is read may be anything.
    fn is_sound(&self) -> bool {
        let votes = |member: &Member| member.standing == Standing::Voter;
        self.members.len() <= GROUP_MEMBERS_MAX
            && self.members.iter().any(votes)
            && self.members.is_sorted_by(|one, other| one.id < other.id)
            && self.members.iter().all(|member| member.id < self.next_id)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.version);
        writer.replica(self.next_id);
        writer.u32(u32::try_from(self.members.len()).expect("few members"));
        self.members.iter().for_each(|member| member.encode(writer));
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<MemberSet, DecodeError> {
        let version = reader.u64("version of the members")?;
        let next_id = reader.replica("next id")?;
        Ok(MemberSet { version, members: read_members(reader)?, next_id })
    }
}

/// The voters of a group that follows another, as the other has to know them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// The voters.
    pub voters: VoterSets,
    /// The members of the cluster that were chosen to vote there; `None` if those of the first group do.
    pub chosen: Option<Vec<ReplicaId>>,
    /// How many of its voters decide.
    pub threshold: Threshold,
}

const FOLLOWED: u8 = 1;
const FOLLOWS: u8 = 2;

impl Membership {
    /// The same, with members that last changed in this version.
    #[must_use]
    pub fn in_version(self, version: u64) -> Membership {
        match self {
            Membership::Alone => Membership::Alone,
            Membership::Followed(_) => Membership::Followed(version),
            Membership::Follows(_) => Membership::Follows(version),
        }
    }

    /// A group that stands alone writes nothing, as it did before groups could follow.
    pub(crate) fn encode(self, writer: &mut Writer) {
        let (tag, version) = match self {
            Membership::Alone => return,
            Membership::Followed(version) => (FOLLOWED, version),
            Membership::Follows(version) => (FOLLOWS, version),
        };
        writer.u8(tag);
        writer.u64(version);
    }

    /// Reads what is left of a group's bytes.
    pub(crate) fn decode(reader: &mut Reader) -> Result<Membership, DecodeError> {
        if reader.remaining() == 0 {
            return Ok(Membership::Alone);
        }
        let tag = reader.u8("membership")?;
        let version = reader.u64("version of the members")?;
        match tag {
            FOLLOWED => Ok(Membership::Followed(version)),
            FOLLOWS => Ok(Membership::Follows(version)),
            value => Err(DecodeError::Undefined { field: "membership", value: value.into() }),
        }
    }
}

impl Group {
    /// The group as the one that the other groups of its cluster follow.
    #[must_use]
    pub fn followed(self) -> Group {
        Group { membership: Membership::Followed(self.version), ..self }
    }

    /// The group as one that follows another, with whose members of this version it begins.
    #[must_use]
    pub fn following(self, version: u64) -> Group {
        Group { membership: Membership::Follows(version), ..self }
    }

    /// The voters of this group, which follows another.
    #[must_use]
    pub fn follower(&self) -> Follower {
        let chosen = self.placement.as_ref().map(|placement| placement.choice.voters.clone());
        Follower { voters: self.voter_sets(), chosen, threshold: self.threshold() }
    }

    /// The members for the groups that follow this one; `None` if none does.
    #[must_use]
    pub fn member_set(&self) -> Option<MemberSet> {
        let Membership::Followed(version) = self.membership else { return None };
        Some(MemberSet { version, members: self.members.clone(), next_id: self.next_id })
    }

    /// Whether this group, which follows, has the members and voters of `first`, or those of them that were chosen.
    #[must_use]
    pub fn agrees_with(&self, first: &Group) -> bool {
        let known = match (self.membership, first.membership) {
            (Membership::Follows(known), Membership::Followed(version)) => known >= version,
            _ => false,
        };
        let members = first.members.iter().map(|member| member.id).filter(|&id| self.has_part_for(id));
        known
            && self.outgoing.is_empty()
            && self.members.iter().map(|member| member.id).eq(members)
            && self.voters().eq(first.voters().filter(|&id| self.may_choose(id)))
    }

    /// Whether a member of this group may not leave it yet, since a group with these voters follows this one, does not
    /// have its voters yet, and would be left with too few of its own among the members to decide anything, even that
    /// it follows. While voters of that group change, both its sets of voters have to decide.
    #[must_use]
    pub fn is_needed_by(&self, follower: &Follower, leaving: ReplicaId) -> bool {
        let Follower { voters: follower, chosen, threshold } = follower;
        let chosen = |id: &ReplicaId| chosen.as_ref().is_none_or(|chosen| chosen.contains(id));
        let own: Vec<_> = self.voters().filter(chosen).collect();
        let stays = |id: &&ReplicaId| **id != leaving && self.member(**id).is_some();
        let needed = |voters: &[ReplicaId]| {
            let lags = voters != own;
            let left = voters.iter().filter(stays).count();
            lags && voters.contains(&leaving) && left < threshold.least(voters.len())
        };
        needed(follower.incoming()) || needed(follower.outgoing())
    }

    /// Whether the members of `next` differ from these in what groups that follow have to know.
    pub(crate) fn has_other_members(&self, next: &Group) -> bool {
        let told =
            |member: &Member| (member.id, member.standing, member.birth, member.info.peer_urls.clone());
        !self.members.iter().map(told).eq(next.members.iter().map(told))
    }

    /// What [`Group::after`] says where a bug is planted.
    #[must_use]
    pub fn after_with(&self, slot: Slot, batch: &Batch, bug: Option<Bug>) -> Option<Result<Group, Refusal>> {
        match bug {
            Some(Bug::FollowOlder) => self.after_any_set(slot, batch),
            Some(Bug::StalePlacement) => self.after_stale_placement(slot, batch),
            Some(Bug::RejoinWithinEpoch) => self.after_rejoining(slot, batch),
            _ => self.after(slot, batch),
        }
    }

    /// With [`Bug::FollowOlder`] any member set counts as a later one.
    fn after_any_set(&self, slot: Slot, batch: &Batch) -> Option<Result<Group, Refusal>> {
        let Membership::Follows(followed) = self.membership else { return self.after(slot, batch) };
        let changed = self.clone().following(0).after(slot, batch)?;
        Some(changed.map(|next| match next.membership {
            Membership::Follows(0) => next.following(followed),
            _ => next,
        }))
    }

    /// Takes on the members that another group has decided on.
    pub(crate) fn follow(&mut self, set: &MemberSet) -> Result<Concerns, Refusal> {
        let Membership::Follows(followed) = self.membership else { return Err(Refusal::Malformed) };
        if !set.is_sound() {
            return Err(Refusal::Malformed);
        }
        if set.version <= followed {
            return Err(Refusal::OlderMembers { offered: set.version, followed });
        }
        let choice = self.placement.as_ref().and_then(|placement| placement.choice_in(set));
        let concerns = self.arrange(set.members.clone(), choice);
        self.next_id = self.next_id.max(set.next_id);
        self.membership = Membership::Follows(set.version);
        Ok(concerns)
    }
}

/// What this node has seen of the groups that this one follows, or that follow it.
#[derive(Debug, Default)]
pub(crate) struct OtherGroups {
    /// The latest members decided in the group that this one follows, and since when this node has seen them.
    followed: Option<(Arc<MemberSet>, Time)>,
    /// The voters of the groups that follow this one; `None` before this node said anything.
    followers: Option<Vec<Follower>>,
}

impl OtherGroups {
    /// Records the voters of the groups that follow this one.
    pub(crate) fn told_of_followers(&mut self, followers: Vec<Follower>) {
        self.followers = Some(followers);
    }
}

impl Replica {
    /// Records the members of the group that this one follows. A set that is not later than the known one, as
    /// that of a node whose log lost its end, is ignored.
    pub(crate) fn told_of_members(&mut self, now: Time, set: Arc<MemberSet>) {
        if self.settings.merged {
            self.backlog.leaves(self.me < set.next_id && set.member(self.me).is_none());
            self.watch_backlog(now);
        }
        if self.other_groups.followed.as_ref().is_none_or(|(known, _)| known.version < set.version) {
            self.other_groups.followed = Some((set, now));
        }
    }

    /// Whether a learner has to wait, although it has caught up: it would take the place of a replica that a group
    /// which follows this one needs, or may need, as far as this node knows. What is known may be out of date: that
    /// mostly makes the learner wait for longer, but a voter that such a group took on since is not known to be needed.
    pub(crate) fn is_held_back(&self, goal: Goal) -> bool {
        let (Membership::Followed(_), Goal::Replace(leaving)) = (self.group.membership, goal) else {
            return false;
        };
        let needed = |follower: &Follower| self.group.is_needed_by(follower, leaving);
        self.other_groups.followers.as_ref().is_none_or(|followers| followers.iter().any(needed))
    }

    /// When this replica proposes the members of the group that this one follows: as the caretaker, or as another voter
    /// if the caretaker has not done so for a while. The caretaker's node may have been removed from the other group,
    /// and hears nothing of it any more.
    pub(crate) fn follow_at(&self) -> Option<Time> {
        let Membership::Follows(version) = self.group.membership else { return None };
        let (_, told_at) = self.other_groups.followed.as_ref().filter(|(set, _)| set.version > version)?;
        let busy = self.changing.ends_epoch() || !self.group.outgoing.is_empty();
        let others = !self.has(Bug::OnlyCaretakerFollows);
        let takes_part = self.takes_care() || others && self.group.votes(self.me) && self.instance.runs();
        let wait = if self.takes_care() { 0 } else { OTHERS_WAIT };
        let since = *told_at + self.ask_interval() * wait;
        let interval = self.ask_interval() * wait.max(1);
        (takes_part && !busy).then(|| self.reports.may_ask_at(interval).max(since))
    }

    /// Proposes the members of the group that this one follows.
    pub(crate) fn follow_members(&mut self, now: Time) {
        if self.follow_at().is_some_and(|at| now >= at)
            && let Some((set, _)) = &self.other_groups.followed
        {
            self.ask_for(now, Change::Follow(Arc::clone(set)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, ChangeRequest, Event, LogRecord, MemberInfo, Recovered, Settings};
    use bytes::Bytes;
    use std::time::Duration;
    use synod_consensus::{Options, ProtocolKind};
    use synod_wire::{Batch, Incarnation, Lsn, Slot};

    fn info(name: &str) -> MemberInfo {
        MemberInfo::new(name, vec![format!("http://{name}:1")])
    }

    fn first(protocol: ProtocolKind) -> Group {
        let members = ["a", "b", "c"].into_iter().zip(1..).map(|(name, id)| (ReplicaId(id), info(name)));
        Group::first(&Options::of(protocol), members).followed()
    }

    fn behind(first: &Group) -> Group {
        first.clone().following(first.version)
    }

    fn changed(group: &Group, change: Change) -> Result<Group, Refusal> {
        group.apply(Slot(9), &ChangeRequest { expected: group.version, change })
    }

    fn followed(group: &Group, first: &Group) -> Result<Group, Refusal> {
        changed(group, Change::Follow(Arc::new(first.member_set().expect("others follow it"))))
    }

    fn settled(group: Group) -> Group {
        Group { outgoing: Vec::new(), ..group }
    }

    fn standings(group: &Group) -> Vec<(u64, Standing)> {
        group.members.iter().map(|member| (member.id.0, member.standing)).collect()
    }

    /// A member is replaced and one leaves: each set of the first group, in order.
    fn history(protocol: ProtocolKind) -> Vec<Group> {
        let mut groups = vec![first(protocol)];
        for change in [
            Change::Add { info: info("d"), goal: Goal::Replace(ReplicaId(3)) },
            Change::promote(ReplicaId(4)),
            Change::Remove(ReplicaId(2)),
            Change::Add { info: info("e"), goal: Goal::Vote },
            Change::promote(ReplicaId(5)),
        ] {
            let next = changed(groups.last().expect("one at least"), change).expect("it can be made");
            groups.push(settled(next));
        }
        groups
    }

    #[test]
    fn a_new_member_learns_until_it_votes_in_the_first_group_and_takes_its_place_once_it_has_caught_up() {
        let history = history(ProtocolKind::MultiPaxos);
        let group = behind(&history[0]);
        assert!(group.agrees_with(&history[0]));
        let joined = followed(&group, &history[1]).unwrap();
        let [voter, learner] = [Standing::Voter, Standing::Learner(Goal::Learn)];
        assert_eq!(standings(&joined), [(1, voter), (2, voter), (3, voter), (4, learner)]);
        assert_eq!((joined.epoch, joined.next_id), (group.epoch, ReplicaId(5)));
        assert!(joined.agrees_with(&history[1]) && !joined.agrees_with(&history[2]));
        assert_eq!(changed(&joined, Change::promote(ReplicaId(4))), Err(Refusal::MembersFollow));
        let to_vote = followed(&joined, &history[2]).unwrap();
        let replaces = Standing::Learner(Goal::Replace(ReplicaId(3)));
        assert_eq!(standings(&to_vote), [(1, voter), (2, voter), (3, voter), (4, replaces)]);
        assert!(!to_vote.agrees_with(&history[2]), "it has to catch up here, too");
        let replaced = changed(&to_vote, Change::promote(ReplicaId(4))).unwrap();
        assert!(replaced.agrees_with(&history[2]));
        let left = followed(&replaced, &history[3]).unwrap();
        assert_eq!(standings(&left), [(1, voter), (4, voter)]);
        assert!(left.epoch > replaced.epoch && left.agrees_with(&history[3]));
    }

    #[test]
    fn an_older_member_set_is_never_followed() {
        for protocol in [ProtocolKind::MultiPaxos, ProtocolKind::Raft] {
            let history = history(protocol);
            let mut group = behind(&history[0]);
            let mut latest = 0;
            // Caretakers that lag propose what they know in any order, and learners catch up at times.
            for round in 0..400_usize {
                let offered = round * 7 % 31 % history.len();
                let before = group.clone();
                match followed(&group, &history[offered]) {
                    Ok(next) => {
                        assert!(offered > latest, "{offered} after {latest}");
                        latest = offered;
                        group = settled(next);
                    }
                    Err(refusal) => {
                        let versions = [offered, latest].map(|at| history[at].member_set().unwrap().version);
                        let [offered, followed] = versions;
                        assert_eq!(refusal, Refusal::OlderMembers { offered, followed });
                        assert_eq!(group, before);
                    }
                }
                let ready = group.learners().find(|&(_, goal)| goal != Goal::Learn);
                if let Some((id, _)) = ready.filter(|_| round % 3 == 0) {
                    group = settled(changed(&group, Change::promote(id)).unwrap());
                }
                assert!(group.voters().count() >= 2 && group.next_id >= history[latest].next_id);
            }
            assert_eq!(latest, history.len() - 1);
            assert!(group.agrees_with(&history[latest]), "{group:?}");
        }
    }

    #[test]
    fn a_group_that_lags_skips_sets_and_keeps_as_many_voters_as_the_first_group_has() {
        let history = history(ProtocolKind::Raft);
        let group = followed(&behind(&history[0]), &history[5]).unwrap();
        let replaces = |id| Standing::Learner(Goal::Replace(ReplicaId(id)));
        let voter = Standing::Voter;
        assert_eq!(
            standings(&group),
            [(1, voter), (2, voter), (3, voter), (4, replaces(2)), (5, replaces(3))]
        );
        assert_eq!(group.outgoing, [], "nobody's vote has changed yet");
        let one = settled(changed(&group, Change::promote(ReplicaId(5))).unwrap());
        let both = settled(changed(&one, Change::promote(ReplicaId(4))).unwrap());
        assert!(both.agrees_with(&history[5]));
    }

    #[test]
    fn only_a_group_that_follows_takes_on_members_and_it_takes_none_of_its_own() {
        let history = history(ProtocolKind::MultiPaxos);
        let group = behind(&history[0]);
        for change in [
            Change::Add { info: info("x"), goal: Goal::Vote },
            Change::Remove(ReplicaId(1)),
            Change::Update { id: ReplicaId(1), info: info("x") },
        ] {
            assert_eq!(changed(&group, change), Err(Refusal::MembersFollow));
        }
        assert_eq!(followed(&history[0], &history[1]), Err(Refusal::Malformed));
        let set = history[1].member_set().unwrap();
        let follow = |set: MemberSet| changed(&group, Change::Follow(Arc::new(set)));
        assert!(follow(set.clone()).is_ok());
        let twice = [set.members.clone(), set.members.clone()].concat();
        assert_eq!(follow(MemberSet { members: twice, ..set.clone() }), Err(Refusal::Malformed));
        let learners = set.members[3..].to_vec();
        assert_eq!(follow(MemberSet { members: learners, ..set.clone() }), Err(Refusal::Malformed));
        assert_eq!(follow(MemberSet { next_id: ReplicaId(4), ..set }), Err(Refusal::Malformed));
    }

    #[test]
    fn a_member_leaves_only_if_groups_that_lag_can_follow_without_it() {
        let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId).collect::<Vec<_>>();
        let five = VoterSets::simple(ids(&[1, 2, 3, 4, 5]));
        let needed = |first: &[u64], leaving| {
            let five = Follower { voters: five.clone(), chosen: None, threshold: Threshold::Majority };
            Group::of(&Options::default(), ids(first)).is_needed_by(&five, ReplicaId(leaving))
        };
        assert!(!needed(&[1, 2, 3, 4, 5], 1), "it does not lag");
        assert!(!needed(&[2, 3, 4, 5], 2), "three of five are left");
        assert!(needed(&[3, 4, 5], 3), "4 and 5 cannot decide that the group follows");
        assert!(!needed(&[4, 5, 6], 6), "it has no vote there");
    }

    #[test]
    fn the_voters_before_a_change_under_way_have_to_decide_too() {
        let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId).collect::<Vec<_>>();
        let group = |voters: &[u64]| Group::of(&Options::default(), ids(voters));
        // The first group has 4 in the place of 3, and the other one is about to: 3 is dead.
        let (first, other) = (group(&[1, 2, 4]), Group { outgoing: ids(&[1, 2, 3]), ..group(&[1, 2, 4]) });
        let needed = |id| first.is_needed_by(&other.follower(), ReplicaId(id));
        assert!(needed(2), "1 alone is no majority of 1, 2 and 3");
        assert!(!needed(4), "1 and 2 decide without it in both");
    }

    #[test]
    fn a_learner_takes_no_place_that_a_lagging_group_needs() {
        let first = history(ProtocolKind::MultiPaxos).swap_remove(0);
        let next = |group: &Group, name, old| {
            let goal = Goal::Replace(ReplicaId(old));
            changed(group, Change::Add { info: info(name), goal }).expect("it can be made")
        };
        let joined = next(&first, "d", 3);
        let replaced = changed(&joined, Change::promote(ReplicaId(4))).unwrap();
        let again = next(&replaced, "e", 2);
        let mut caretaker = Caretaker::new(again.clone());
        let held_back = |caretaker: &Caretaker, goal| caretaker.replica.is_held_back(goal);
        let two = Goal::Replace(ReplicaId(2));
        assert!(held_back(&caretaker, two), "nothing is known of the groups that follow");
        assert!(!held_back(&caretaker, Goal::Vote), "nobody leaves");
        caretaker.step(Event::Followers(vec![again.follower(), first.follower()]));
        assert!(held_back(&caretaker, two), "1 alone cannot have the group follow");
        caretaker.step(Event::Followers(vec![again.follower(), again.follower()]));
        assert!(!held_back(&caretaker, two));
        let mut alone = Caretaker::new(Group { membership: Membership::Alone, ..again });
        alone.step(Event::Timer);
        assert!(!held_back(&alone, two), "no group follows it");
    }

    #[test]
    fn what_members_say_of_themselves_is_nothing_to_follow() {
        let first = first(ProtocolKind::MultiPaxos);
        let mut told = info("a");
        told.client_urls = vec!["http://a:2".into()];
        let update = |info| changed(&first, Change::Update { id: ReplicaId(1), info }).unwrap();
        assert_eq!(update(told.clone()).membership, Membership::Followed(1));
        told.peer_urls = vec!["http://elsewhere:1".into()];
        let moved = update(told);
        assert_eq!(moved.membership, Membership::Followed(2));
        let group = followed(&behind(&first), &moved).unwrap();
        assert_eq!(group.member(ReplicaId(1)), moved.member(ReplicaId(1)));
    }

    /// The only voter of a group, which is its caretaker. What it appends is durable at once.
    struct Caretaker {
        replica: Replica,
        now: Time,
        decided: Vec<Batch>,
    }

    impl Caretaker {
        fn new(first: Group) -> Caretaker {
            let now = Time::ZERO + Duration::from_secs(3600);
            let recovered = Recovered {
                records: Vec::<LogRecord>::new(),
                last_lsn: Lsn::ZERO,
                snapshot: None,
                amnesia: false,
                birth: 1,
                incarnation: Incarnation(1),
                nonce: 1,
                met_all: true,
            };
            let mut actions = Vec::new();
            let replica =
                Replica::start(Settings::default(), ReplicaId(1), first, recovered, now, &mut actions);
            let mut caretaker = Caretaker { replica, now, decided: Vec::new() };
            caretaker.carry_out(actions);
            caretaker
        }

        fn carry_out(&mut self, actions: Vec<Action>) {
            let mut durable = None;
            for action in actions {
                match action {
                    Action::Append { lsn, .. } => durable = Some(lsn),
                    Action::Execute { batch, .. } => self.decided.push(batch),
                    _ => {}
                }
            }
            if let Some(lsn) = durable {
                self.step(Event::Durable(lsn));
            }
        }

        fn step(&mut self, event: Event) {
            let mut actions = Vec::new();
            self.replica.step(self.now, event, &mut actions);
            self.replica.flush(self.now, &mut actions);
            self.carry_out(actions);
        }

        fn pass(&mut self) {
            for _ in 0..100 {
                self.now += Duration::from_millis(100);
                self.step(Event::Timer);
            }
        }

        /// The versions of the member sets that were proposed here and decided.
        fn proposed(&self) -> Vec<u64> {
            let changes = self.decided.iter().filter_map(Batch::reconfiguration);
            let changes = changes.map(|payload| ChangeRequest::decode(payload).unwrap().change);
            changes
                .filter_map(|change| match change {
                    Change::Follow(set) => Some(set.version),
                    _ => None,
                })
                .collect()
        }
    }

    #[test]
    fn another_voter_proposes_the_members_if_the_caretaker_does_not() {
        let history = history(ProtocolKind::MultiPaxos);
        let mut voter = Caretaker::new(behind(&history[0]));
        assert_eq!(voter.replica.follow_at(), None);
        voter.step(Event::Members(Arc::new(history[1].member_set().unwrap())));
        let due = voter.replica.follow_at().expect("it knows of a later set");
        assert!(!voter.replica.takes_care() && due >= voter.now + voter.replica.ask_interval() * OTHERS_WAIT);
        voter.now = due;
        voter.step(Event::Timer);
        assert!(voter.replica.follow_at() > Some(due), "it has asked for the change");
    }

    #[test]
    fn a_caretaker_proposes_the_latest_set_that_it_was_told_of_once() {
        let alone = Group::first(&Options::default(), [(ReplicaId(1), info("a"))]).followed();
        let add = |name, group: &Group| {
            changed(group, Change::Add { info: info(name), goal: Goal::Learn }).expect("it can be made")
        };
        let (two, four) = (add("b", &alone), add("d", &add("c", &add("b", &alone))));
        let mut caretaker = Caretaker::new(behind(&alone));
        let told = |group: &Group| Event::Members(Arc::new(group.member_set().unwrap()));
        caretaker.pass();
        caretaker.step(told(&alone));
        caretaker.pass();
        assert_eq!(caretaker.proposed(), [0_u64; 0], "it begins with these");
        caretaker.step(told(&four));
        caretaker.pass();
        assert!(caretaker.replica.group().agrees_with(&four));
        // Its node starts again, say, and has not learned all of the first group's log yet.
        caretaker.step(told(&two));
        caretaker.pass();
        assert_eq!(caretaker.proposed(), [4]);
        // Another caretaker may not know better.
        let change = Change::Follow(Arc::new(two.member_set().unwrap()));
        let late = ChangeRequest { expected: caretaker.replica.group().version, change };
        let payload: Bytes = late.encode().to_bytes();
        caretaker.step(Event::Request {
            request: crate::RequestId(1),
            kind: synod_wire::CommandKind::Reconfigure,
            session: None,
            payload,
        });
        caretaker.pass();
        assert_eq!(caretaker.proposed(), [4, 2]);
        assert!(caretaker.replica.group().agrees_with(&four), "decided and refused");
    }
}
