//! Situations with several leaders and candidates at once.

use synod_consensus::{Role, Threshold};
use synod_replica::Event;

use super::{
    Reached, Sight, Situation,
    scene::{Actor, Scene},
};

pub(super) fn see(scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
    match *sight {
        Sight::Delivers { of, first: true, .. } if scene.actors[of].face.role == Role::Leader => {
            let me = &scene.actors[of];
            let deposed = scene.leaders().any(|(other, leader)| other != of && scene.outranks(me, leader));
            reached.mark(Situation::DeposedUnknowing, deposed);
        }
        Sight::Takes { of, event: Event::Read(_) } if scene.actors[of].face.role == Role::Leader => {
            let me = &scene.actors[of];
            let newer = |leader: &Actor| scene.outranks(leader, me) && leader.face.decided > me.face.decided;
            let others = scene.actors.iter().filter(|other| other.up && other.face.role == Role::Leader);
            reached.mark(Situation::DeposedRead, others.into_iter().any(newer));
        }
        Sight::Resumes { of, long: true } if scene.actors[of].face.role == Role::Leader => {
            let me = &scene.actors[of];
            let replaced = scene.leaders().any(|(_, leader)| scene.outranks(leader, me));
            reached.mark(Situation::PausedLeaderReturns, replaced);
        }
        Sight::Jumps { of, long: true } => {
            reached.mark(Situation::ClockJump, scene.actors[of].face.role == Role::Leader);
        }
        Sight::Stepped { of, .. } => match scene.actors[of].face.role {
            Role::Leader => leads(scene, of, reached),
            Role::Candidate => {
                let me = &scene.actors[of];
                let rival = |(other, rival): (usize, &Actor)| {
                    other != of
                        && rival.face.role == Role::Candidate
                        && (scene.outranks(rival, me) || scene.outranks(me, rival))
                };
                reached.mark(Situation::Duel, scene.running().any(rival));
            }
            _ => {}
        },
        _ => {}
    }
}

/// A leader has done something.
fn leads(scene: &Scene, of: usize, reached: &mut Reached) {
    let me = &scene.actors[of];
    if !reached.has(Situation::HungQuorum) && !me.proposed.is_empty() {
        reached.mark(Situation::HungQuorum, has_hung_quorum(scene, of));
    }
    for (other, leader) in scene.leaders().filter(|(other, _)| *other != of) {
        let stalled = |lower: &Actor, higher: &Actor| lower.face.stalled && scene.outranks(higher, lower);
        reached.mark(Situation::StalledLeader, stalled(me, leader) || stalled(leader, me));
        if !reached.has(Situation::TwoLeadersOneSlot) && me.face.epoch == leader.face.epoch {
            let both = me.proposed.keys().any(|slot| scene.actors[other].proposed.contains_key(slot));
            reached.mark(Situation::TwoLeadersOneSlot, both);
        }
    }
}

/// Whether a leader needs every replica that it reaches, and the disk of one of them does not answer.
fn has_hung_quorum(scene: &Scene, of: usize) -> bool {
    let peers = scene.voters.iter().filter(|&&voter| voter != of && scene.linked(of, voter));
    let (mut quorum, mut hung) = (1, false);
    for &peer in peers {
        quorum += 1;
        hung |= scene.actors[peer].face.stalled;
    }
    hung && quorum < scene.voters.len() && quorum == Threshold::Majority.least(scene.voters.len())
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
            &[Situation::DeposedUnknowing],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 3
             elect 2
             put 2 k1=2
             stabilize",
        ),
        (
            &[Situation::DeposedUnknowing],
            &["raft"],
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 3
             elect 2",
        ),
        (
            &[Situation::TwoLeadersOneSlot],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 3
             put 1 k1=1
             elect 2
             put 2 k1=2",
        ),
        (
            &[Situation::TwoLeadersOneSlot],
            &["raft"],
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 3
             put 1 k1=1
             elect 2",
        ),
        (
            &[Situation::DeposedRead],
            &["multipaxos+rotating", "sequence-paxos+rotating", "raft"],
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 3
             get 1
             elect 2
             put 2 k1=2
             stabilize
             get 1",
        ),
        (
            &[Situation::PausedLeaderReturns],
            &["multipaxos+rotating", "sequence-paxos+rotating", "raft"],
            "cluster 3
             elect 1
             run 200ms
             pause 1
             tick 10ms
             resume 1
             pause 1
             elect 2
             run 3s
             resume 1",
        ),
        (
            &[Situation::StalledLeader],
            &["multipaxos+rotating", "sequence-paxos+rotating", "raft"],
            "cluster 3
             elect 1
             run 200ms
             stall-disk 1
             partition 1 | 2 3
             put 1 k1=1
             elect 2",
        ),
        (
            &[Situation::HungQuorum],
            ALL,
            "cluster 3
             elect 1
             run 200ms
             crash 3
             stall-disk 2
             run 200ms
             put 1 k1=1",
        ),
        (
            &[Situation::ClockJump],
            ALL,
            "cluster 3
             elect 1
             run 200ms
             jump 2 10s
             jump 1 10ms
             jump 1 10s",
        ),
        (
            &[Situation::Duel],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 3
             timeout 1
             timeout 2",
        ),
        (
            &[Situation::Duel],
            &["raft"],
            "cluster 5 fetch-bytes=1
             elect 5
             member 5 add learn
             run 500ms
             links 4-5
             put 5 k1=100
             deliver 5->4 proposal
             partition 1 | 2 | 3 | 4 | 5 | 6
             tick 3s
             links 1-2 1-3 1-6
             timeout 1
             deliver 1->2
             deliver 1->3
             deliver 2->1
             deliver 3->1",
        ),
    ];

    #[test]
    fn each_situation_is_seen_when_it_comes_to_be_and_not_before() {
        crate::situations::stories::play(STORIES);
    }
}
