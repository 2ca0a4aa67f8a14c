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

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::stories::{ALL, Story},
        *,
    };

    /// Situations, the casts that reach them, and how.
    pub(crate) const STORIES: &[Story] = &[
        (
            &[Situation::Bridge],
            ALL,
            "cluster 3
             elect 1
             partition 1 | 2 3
             heal
             links 1-2 2-3",
        ),
        (
            &[Situation::LearnerBridge],
            ALL,
            "cluster 3
             elect 1
             member 1 add learn
             run 500ms
             links 1-2 2-3 2-4
             heal
             links 1-2 3-4 2-4",
        ),
        (
            &[Situation::BridgedLeaders],
            &["multipaxos", "multipaxos+rotating", "sequence-paxos", "sequence-paxos+rotating"],
            "cluster 5
             elect 1
             links 1-2 1-3 3-4 3-5 4-5
             elect 4",
        ),
        (
            &[Situation::TransferWhileCut],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 3
             elect 1
             run 200ms
             transfer 1 2
             run 200ms
             elect 1
             links 1-2 1-3
             transfer 1 2",
        ),
        (
            &[Situation::CommandRelayed],
            ALL,
            "cluster 3
             elect 1
             links 1-2 2-3
             run 1200ms
             put 3 k1=1
             deliver 3->2
             deliver 2->1 forward",
        ),
        (
            &[Situation::DeafLeader],
            ALL,
            "cluster 3
             elect 1
             cut 2->1
             put 1 k1=1
             cut 3->1
             put 1 k1=2",
        ),
    ];

    #[test]
    fn each_situation_is_seen_when_it_comes_to_be_and_not_before() {
        crate::situations::stories::play(STORIES);
    }
}
