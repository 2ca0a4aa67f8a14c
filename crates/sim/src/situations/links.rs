//! Situations with cuts that leave some links.

use synod_consensus::{Role, Threshold};
use synod_replica::{Event, PeerMessage, Routed};

use super::{
    Reached, Sight, Situation,
    scene::{Actor, Scene},
};

pub(super) fn see(scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
    if let Sight::Takes { of, event: Event::Receive { from, message } } = *sight
        && let PeerMessage::Relayed { origin, message: Routed::Forward(_), .. } = message
        && from != origin
    {
        reached.mark(Situation::CommandRelayed, scene.actors[of].face.role == Role::Leader);
    }
    if !scene.is_cut() {
        return;
    }
    match *sight {
        Sight::Cuts(_) | Sight::Starts { .. } | Sight::Resumes { .. } => {
            for (of, _) in scene.running().filter(|(of, _)| is_bridge(scene, *of)) {
                reached.mark(Situation::Bridge, true);
                reached.mark(Situation::LearnerBridge, !scene.voters.contains(&of));
            }
        }
        Sight::Stepped { of, .. } if scene.actors[of].face.role == Role::Leader => {
            let actor = &scene.actors[of];
            if !reached.has(Situation::BridgedLeaders) && actor.becomes(Role::Leader) {
                reached.mark(Situation::BridgedLeaders, is_bridged(scene, of));
            }
            if !reached.has(Situation::DeafLeader) {
                reached.mark(Situation::DeafLeader, is_deaf(scene, of));
            }
        }
        Sight::Takes { of, event: Event::Transfer(_) } if scene.actors[of].face.role == Role::Leader => {
            let some = scene.voters.iter().any(|&voter| voter != of && scene.linked(of, voter));
            let pairs = || scene.voters.iter().flat_map(|a| scene.voters.iter().map(move |b| (*a, *b)));
            let runs = |of: usize| scene.actors.get(of).is_some_and(Actor::runs);
            let missing = pairs().any(|(a, b)| a < b && runs(a) && runs(b) && !scene.linked(a, b));
            reached.mark(Situation::TransferWhileCut, some && missing);
        }
        _ => {}
    }
}

/// Whether two neighbours of a replica do not reach each other without it.
pub(super) fn is_bridge(scene: &Scene, of: usize) -> bool {
    let neighbours: Vec<usize> =
        scene.running().map(|(peer, _)| peer).filter(|&peer| peer != of && scene.linked(of, peer)).collect();
    let Some((&first, others)) = neighbours.split_first() else { return false };
    others.iter().any(|&other| !scene.connected_without(Some(of), first, other))
}

/// Whether another leads, and a bridge is between them.
pub(super) fn is_bridged(scene: &Scene, of: usize) -> bool {
    scene.leaders().filter(|(other, _)| *other != of && scene.connected_without(None, of, *other)).any(
        |(other, _)| {
            let between = scene.running().map(|(peer, _)| peer).filter(|&peer| peer != of && peer != other);
            between.into_iter().any(|peer| !scene.connected_without(Some(peer), of, other))
        },
    )
}

/// Whether a quorum hears a leader, and the leader hears no quorum.
fn is_deaf(scene: &Scene, of: usize) -> bool {
    let voters = scene.voters.iter().filter(|&&voter| voter != of);
    let (mut hear, mut heard) = (1, 1);
    for &voter in voters {
        hear += usize::from(scene.reaches(of, voter));
        heard += usize::from(scene.reaches(voter, of));
    }
    let quorum = Threshold::Majority.least(scene.voters.len());
    hear >= quorum && heard < quorum
}
