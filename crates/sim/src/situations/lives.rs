//! Situations with crashes, restarts and lost logs.

use synod_consensus::Role;
use synod_wire::{Ballot, Slot};

use super::{
    Reached, Sight, Situation,
    scene::{Actor, Scene},
};

/// The state of replicas when they crashed, and when they started again.
#[derive(Debug)]
pub(super) struct Watcher {
    /// The ballot that each replica knew when it crashed.
    ballots: Vec<Ballot>,
    /// The last slot of each replica's log, if it was not delivered.
    tails: Vec<Option<Slot>>,
}

impl Watcher {
    pub(super) fn new(capacity: usize) -> Watcher {
        Watcher { ballots: vec![Ballot::ZERO; capacity], tails: vec![None; capacity] }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        match *sight {
            Sight::Starts { of, tail, snapshot, amnesia, votes_lost } => {
                let known = scene.actors.iter().map(|actor| actor.face.decided).max().unwrap_or_default();
                self.tails[of] = (tail > known).then_some(tail);
                reached.mark(Situation::AmnesiaWithSnapshot, amnesia && snapshot > Slot::ZERO);
                let votes = scene.voters.contains(&of);
                reached.mark(Situation::VotesLost, votes && votes_lost.is_some());
                reached.mark(
                    Situation::VotesLostUndecided,
                    votes && votes_lost.is_some_and(|slot| slot > known),
                );
                reached.mark(Situation::LearnerAmnesia, amnesia && !scene.voters.contains(&of));
            }
            Sight::Ends { of } => {
                let actor = &scene.actors[of];
                self.ballots[of] = actor.face.ballot;
                reached.mark(Situation::RecoveryInterrupted, actor.face.lost);
                let down = |&voter: &usize| !scene.actors[voter].up;
                let all = scene.voters.len() > 2 && scene.voters.iter().all(down);
                reached.mark(Situation::AllDown, all);
            }
            Sight::Stepped { of, face } => {
                let actor = &scene.actors[of];
                if let Some(tail) = self.tails[of] {
                    let other = face.leader.is_some_and(|leader| leader != actor.id);
                    let higher = scene.above(face.ballot, self.ballots[of]);
                    reached.mark(Situation::RestartWithTail, other && higher && face.decided < tail);
                    self.tails[of] = Some(tail).filter(|&tail| face.decided < tail);
                }
                let recovers = |(other, actor): (usize, &Actor)| other != of && actor.face.lost;
                let stands = actor.becomes(Role::Candidate);
                if (face.lost || stands) && scene.running().any(recovers) {
                    reached.mark(Situation::RecoveriesOverlap, face.lost);
                    reached.mark(Situation::CandidacyDuringRecovery, stands);
                }
            }
            _ => {}
        }
    }
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
            &[Situation::RecoveriesOverlap],
            ALL,
            "cluster 5
             elect 1
             put 1 k1=1
             stabilize
             crash 4 5
             lose-log 4
             lose-log 5
             restart 4
             restart 5",
        ),
        (
            &[Situation::CandidacyDuringRecovery],
            &["raft"],
            "cluster 5
             elect 1
             put 1 k1=1
             stabilize
             crash 5
             lose-log 5
             restart 5
             crash 1
             tick 1s
             timeout 2",
        ),
        (
            &[Situation::CandidacyDuringRecovery],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 5
             elect 1
             put 1 k1=1
             stabilize
             crash 5
             lose-log 5
             restart 5
             crash 1
             tick 1s
             timeout 2",
        ),
        (
            &[Situation::RecoveryInterrupted],
            ALL,
            "cluster 3
             elect 1
             put 1 k1=1
             stabilize
             crash 3
             lose-log 3
             restart 3
             crash 3",
        ),
        (
            &[Situation::RestartWithTail],
            ALL,
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 3
             put 1 k1=1
             put 1 k2=1
             crash 1
             run 3s
             restart 1
             run 500ms",
        ),
        (
            &[Situation::AmnesiaWithSnapshot],
            ALL,
            "cluster 3 snapshot-slots=2
             elect 1
             put 1 k1=1
             put 1 k2=2
             put 1 k3=3
             run 500ms
             crash 3
             lose-log 3 keep-snapshots
             restart 3",
        ),
        (
            &[Situation::VotesLost],
            ALL,
            "cluster 3 durability=view
             elect 1
             run 200ms
             put 1 k1=1
             run 200ms
             crash 3
             restart 3",
        ),
        (
            &[Situation::VotesLostUndecided],
            ALL,
            "cluster 3 durability=view
             elect 1
             run 200ms
             partition 1 | 2 3
             put 1 k1=1
             run 10ms
             crash 1
             restart 1",
        ),
        (
            &[Situation::LearnerAmnesia],
            ALL,
            "cluster 3
             elect 1
             member 1 add learn
             run 500ms
             crash 4
             lose-log 4
             restart 4",
        ),
        (
            &[Situation::AllDown],
            ALL,
            "cluster 3
             elect 1
             crash 1
             crash 2
             crash 3",
        ),
    ];

    #[test]
    fn each_situation_is_seen_when_it_comes_to_be_and_not_before() {
        crate::situations::stories::play(STORIES);
    }
}
