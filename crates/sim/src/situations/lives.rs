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
