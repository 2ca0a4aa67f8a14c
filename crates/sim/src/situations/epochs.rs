//! Situations in which the group changes during other faults.

use std::collections::BTreeMap;

use synod_consensus::Role;
use synod_replica::{Event, Goal, Group, Membership, PeerMessage, Refusal};
use synod_wire::{Epoch, Slot};

use super::{
    Reached, Sight, Situation, links,
    scene::{Scene, index_of},
};

/// When epochs began.
#[derive(Debug)]
pub(super) struct Watcher {
    /// The first slot of each epoch but the first.
    first: BTreeMap<Epoch, Slot>,
    /// The newest epoch in which each replica was seen, and the life in which it came there.
    entered: Vec<(Epoch, u64)>,
    /// The group after everything that was delivered.
    group: Group,
}

impl Watcher {
    pub(super) fn new(group: &Group, capacity: usize) -> Watcher {
        Watcher { first: BTreeMap::new(), entered: vec![(Epoch(0), 0); capacity], group: group.clone() }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        match *sight {
            Sight::Regroups { slot, before, group } => {
                if group.epoch > before.epoch {
                    self.first.insert(group.epoch, slot.next());
                }
                self.group.clone_from(group);
            }
            Sight::Delivers { first: true, batch, .. } => {
                let changed = self.group.after(Slot(0), batch);
                let refused = matches!(changed, Some(Err(Refusal::OlderMembers { .. })));
                reached.mark(Situation::OlderMembersRefused, refused);
            }
            Sight::Stepped { of, face } if face.epoch > self.entered[of].0 => {
                self.entered[of] = (face.epoch, scene.actors[of].lives);
            }
            Sight::Sends { from, message, .. } => {
                let (PeerMessage::Fetched { from: slot, batches, .. }
                | PeerMessage::Pushed { from: slot, batches, .. }) = message
                else {
                    return;
                };
                let (epoch, life) = self.entered[from];
                let old = self.first.get(&epoch).is_some_and(|first| slot < first);
                let later = scene.actors[from].lives > life;
                reached.mark(Situation::OldSlotOfLaterLife, !batches.is_empty() && old && later);
            }
            _ => {}
        }
        see(scene, sight, reached);
    }
}

fn see(scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
    match *sight {
        Sight::Regroups { slot, before, group } => regroup(scene, slot, before, group, reached),
        Sight::Takes { of, event: Event::SnapshotInstalled(Some(installed)) } => {
            let later = installed.group.epoch > scene.actors[of].face.epoch;
            reached.mark(Situation::EndInstalled, later);
        }
        Sight::Stepped { of, face } => {
            let actor = &scene.actors[of];
            let stood = matches!(actor.before.role, Role::Leader | Role::Candidate);
            reached.mark(Situation::EndLearned, actor.learns && stood && face.epoch > actor.before.epoch);
            reached.mark(Situation::JointLeader, scene.joint && actor.becomes(Role::Leader));
        }
        _ => {}
    }
}

fn regroup(scene: &Scene, slot: Slot, before: &Group, group: &Group, reached: &mut Reached) {
    let removed = |id| before.member(id).is_some() && group.member(id).is_none();
    let leader_leaves = scene.leaders().any(|(_, leader)| removed(leader.id));
    let follows = matches!(group.membership, Membership::Follows(_));
    reached.mark(Situation::LeaderRemoved, leader_leaves);
    let left_behind = scene.leaders().any(|(_, leader)| removed(leader.id) && !group.is_away(leader.id));
    reached.mark(Situation::LeaderLeftBehind, follows && left_behind);
    let handed_over = |id| before.votes(id) && !group.votes(id) && !group.may_choose(id);
    let stays = |id| group.is_away(id) || group.member(id).is_some();
    let not_chosen = scene.leaders().any(|(_, leader)| handed_over(leader.id) && stays(leader.id));
    reached.mark(Situation::LeaderNotChosen, not_chosen);
    let came_back = group.members.iter().any(|member| before.is_away(member.id));
    reached.mark(Situation::ComesBack, came_back);
    let reordered = (group.protocol, group.election) != (before.protocol, before.election);
    let takes_on = follows && group.learners().any(|(_, goal)| goal != Goal::Learn);
    reached.mark(Situation::ReorderedWhileFollowing, reordered && takes_on);
    let newcomers = group.voters().filter(|&id| before.member(id).is_some() && !before.votes(id));
    let lags = |of: usize| scene.actors[of].face.decided.next() < slot;
    reached.mark(Situation::LaggingVoter, newcomers.map(index_of).any(lags));
    if group.epoch == before.epoch {
        return;
    }
    let some = |is: fn(&super::Face) -> bool| scene.running().any(|(_, actor)| is(&actor.face));
    let bridges = |scene: &Scene| scene.running().any(|(of, _)| links::is_bridge(scene, of));
    reached.mark(Situation::EpochUnderBridge, scene.is_cut() && bridges(scene));
    reached.mark(Situation::EpochWithTwoLeaders, scene.leaders().count() > 1);
    reached.mark(Situation::EpochDuringCandidacy, some(|face| face.role == Role::Candidate));
    reached.mark(Situation::EpochDuringRecovery, some(|face| face.lost));
    reached.mark(Situation::EpochDuringSnapshot, some(|face| face.receiving));
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::stories::{ALL, Story},
        *,
    };

    /// Situations, the casts that reach them, and how.
    pub(crate) const STORIES: &[Story] = &[
        (
            &[Situation::EpochUnderBridge],
            &["multipaxos", "multipaxos+rotating", "sequence-paxos", "sequence-paxos+rotating"],
            "cluster 3
             elect 1
             run 300ms
             links 1-2 1-3
             member 1 remove 3
             stabilize",
        ),
        (
            &[Situation::EpochWithTwoLeaders],
            &["multipaxos+rotating", "sequence-paxos+rotating", "raft"],
            "cluster 3
             elect 1
             run 300ms
             partition 1 | 2 3
             elect 2
             reconfigure 2 multipaxos ballot
             stabilize",
        ),
        (
            &[Situation::EpochDuringCandidacy],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 3
             elect 1
             run 300ms
             timeout 3
             timeout 3
             partition 1 2 | 3
             reconfigure 1 multipaxos ballot
             stabilize",
        ),
        (
            &[Situation::EpochDuringCandidacy],
            &["raft"],
            "cluster 3
             elect 1
             run 300ms
             partition 1 2 | 3
             timeout 3
             timeout 3
             reconfigure 1 multipaxos ballot
             stabilize",
        ),
        (
            &[Situation::EpochDuringRecovery],
            ALL,
            "cluster 3
             elect 1
             run 300ms
             crash 3
             lose-log 3
             restart 3
             reconfigure 1 raft
             stabilize",
        ),
        (
            &[Situation::EpochDuringSnapshot],
            &["multipaxos+rotating"],
            "cluster 3 snapshot-slots=2 keep-slots=0 chunk-bytes=100
             elect 1
             run 300ms
             partition 1 2 | 3
             put 1 k2=2
             put 1 k3=3
             run 500ms
             put 1 k4=4
             put 1 k5=4
             run 300ms
             heal
             put 1 k6=1
             deliver 1->3
             timeout 3
             deliver 3->2
             deliver 2->3
             reconfigure 1 raft
             deliver 1->2 proposal
             deliver 2->1",
        ),
        (
            &[Situation::EndLearned],
            &["multipaxos+rotating"],
            "cluster 3
             elect 1
             run 300ms
             partition 1 2 | 3
             reconfigure 1 multipaxos ballot
             run 1s
             heal
             timeout 3
             timeout 3
             run 300ms",
        ),
        (
            &[Situation::EndInstalled],
            &["multipaxos+rotating"],
            "cluster 3 snapshot-slots=2 keep-slots=0
             elect 1
             put 1 k1=1
             run 300ms
             crash 3
             reconfigure 1 multipaxos ballot
             run 3s
             put 1 k2=2
             put 1 k3=3
             run 1s
             put 1 k4=2
             put 1 k5=3
             run 1s
             restart 3
             run 2s",
        ),
        (
            &[Situation::OldSlotOfLaterLife],
            &["multipaxos+rotating"],
            "cluster 3
             elect 1
             run 300ms
             crash 3
             put 1 k1=1
             reconfigure 1 multipaxos ballot
             run 2s
             crash 1
             restart 1
             run 1s
             restart 3
             run 2s",
        ),
        (
            &[Situation::OldSlotOfLaterLife],
            &["sequence-paxos+rotating"],
            "cluster 3
             elect 1
             run 300ms
             crash 3
             put 1 k1=1
             reconfigure 1 sequence-paxos ballot
             run 2s
             crash 1
             restart 1
             run 1s
             restart 3
             run 2s",
        ),
        (
            &[Situation::LeaderRemoved],
            ALL,
            "cluster 3
             elect 1
             run 300ms
             member 1 remove 3
             run 2s
             member 1 remove 1
             run 1s",
        ),
        (
            &[Situation::OlderMembersRefused],
            ALL,
            "cluster 3 follows=true
             elect 1
             run 300ms
             first-group add learn
             first-group add learn
             see 1
             run 3s
             member 1 follow 2
             stabilize",
        ),
        (
            &[Situation::ReorderedWhileFollowing],
            &["multipaxos", "multipaxos+rotating", "sequence-paxos", "sequence-paxos+rotating"],
            "cluster 3 follows=true
             elect 1
             run 300ms
             first-group add
             first-group promote 4
             see 1 2
             run 3s
             partition 1 2 3 | 4
             run 5s
             see 1
             run 3s
             reconfigure 1 raft
             stabilize",
        ),
        (
            &[Situation::ReorderedWhileFollowing],
            &["raft"],
            "cluster 3 follows=true
             elect 1
             run 300ms
             first-group add
             first-group promote 4
             see 1 2
             run 3s
             partition 1 2 3 | 4
             run 5s
             see 1
             run 3s
             reconfigure 1 multipaxos
             stabilize",
        ),
        (
            &[Situation::LeaderLeftBehind],
            ALL,
            "cluster 3 follows=true
             elect 1
             run 300ms
             first-group remove 1
             see 2
             run 30s",
        ),
        (
            &[Situation::LeaderNotChosen],
            ALL,
            "cluster 3 follows=true
             elect 1
             run 300ms
             member 1 place 2,3 learn
             run 5s",
        ),
        (
            &[Situation::ComesBack],
            ALL,
            "cluster 3 follows=true
             elect 1
             run 300ms
             member 1 place 1,2 away
             run 5s
             member 1 place 1,3 away
             run 5s",
        ),
        (
            &[Situation::LaggingVoter],
            &["multipaxos", "multipaxos+rotating", "sequence-paxos", "sequence-paxos+rotating"],
            "cluster 3
             elect 1
             member 1 add learn
             run 500ms
             put 1 k1=1
             run 300ms
             partition 1 2 3 | 4
             put 1 k1=1
             put 1 k2=2
             put 1 k3=2
             run 1s
             member 1 promote 4
             run 100ms",
        ),
        (
            &[Situation::JointLeader],
            &["raft"],
            "cluster 3
             elect 1
             member 1 add replace 3
             stabilize
             member 1 promote 4
             deliver 1->4
             deliver 4->1
             deliver 1->3
             deliver 3->1
             crash 1
             run 3s",
        ),
    ];

    #[test]
    fn each_situation_is_seen_when_it_comes_to_be_and_not_before() {
        crate::situations::stories::play(STORIES);
    }
}
