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
