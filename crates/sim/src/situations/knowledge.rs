//! Situations in which a replica learns from outside its ballot: slots from peers, and snapshots.

use std::collections::BTreeMap;

use synod_consensus::Role;
use synod_replica::{Event, LogRecord, PeerMessage};
use synod_wire::{Ballot, Batch, ReplicaId, Slot};

use super::{
    Reached, Sight, Situation,
    scene::{Actor, Scene},
};
use crate::check::{is_learned, slots};

/// For each replica, the slots that peers handed out to it and that it has not delivered.
#[derive(Debug)]
pub(super) struct Watcher {
    offered: Vec<BTreeMap<Slot, (Ballot, Batch)>>,
}

impl Watcher {
    pub(super) fn new(capacity: usize) -> Watcher {
        Watcher { offered: (0..capacity).map(|_| BTreeMap::new()).collect() }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        match *sight {
            Sight::Starts { of, .. } => self.offered[of].clear(),
            Sight::Takes { of, event: Event::Receive { message, .. } } => self.is_offered(of, message),
            Sight::Takes { of, event: Event::SnapshotInstalled(Some(installed)) } => {
                install(scene, &scene.actors[of], installed.info.slot, installed.ballots.decided, reached);
            }
            Sight::Appends { of, record } if is_learned(record) => self.learns(scene, of, record, reached),
            Sight::Stepped { of, face } => {
                let offered = &mut self.offered[of];
                while offered.first_key_value().is_some_and(|(slot, _)| *slot <= face.decided) {
                    offered.pop_first();
                }
                let ahead = |learner: &Actor, leader: &Actor| {
                    learner.face.epoch == leader.face.epoch && learner.face.decided > leader.face.decided
                };
                let learns = |of: usize| !scene.voters.contains(&of);
                if !reached.has(Situation::LearnerAhead) && learns(of) && face.decided > Slot::ZERO {
                    let me = &scene.actors[of];
                    let lags = scene.leaders().any(|(other, leader)| other != of && ahead(me, leader));
                    reached.mark(Situation::LearnerAhead, lags);
                }
            }
            _ => {}
        }
    }

    fn is_offered(&mut self, of: usize, message: &PeerMessage) {
        if let PeerMessage::Fetched { from, batches, .. } | PeerMessage::Pushed { from, batches, .. } =
            message
        {
            let slots = (from.0..).map(Slot).zip(batches);
            self.offered[of]
                .extend(slots.map(|(slot, known)| (slot, (known.ballots.decided, known.batch.clone()))));
        }
    }

    fn learns(&self, scene: &Scene, of: usize, record: &LogRecord, reached: &mut Reached) {
        let actor = &scene.actors[of];
        let role = actor.face.role;
        reached.mark(Situation::LeaderLearns, role == Role::Leader);
        reached.mark(Situation::CandidateLearns, role == Role::Candidate);
        for (slot, (ballot, batch)) in
            self.offered[of].range(Slot(slots(record).start)..Slot(slots(record).end))
        {
            let higher = scene.above(*ballot, actor.face.ballot);
            let own = actor.proposed.get(slot);
            reached.mark(Situation::LeaderLearnsHigher, higher && role == Role::Leader);
            reached.mark(Situation::LeaderLearnsOther, own.is_some_and(|own| own != batch));
            reached.mark(Situation::CandidateLearnsHigher, higher && role == Role::Candidate);
            reached.mark(Situation::FollowerLearnsHigher, higher && follows(scene, of));
            // As far as it knew, its term had no leader.
            let nobody = Ballot { round: ballot.round, replica: ReplicaId::default() };
            let won = role == Role::Candidate && actor.face.ballot == nobody && ballot.replica != actor.id;
            reached.mark(Situation::CandidateLearnsWinner, won && scene.orders.has_terms());
        }
    }
}

/// A snapshot through a slot that was decided in this ballot is installed.
fn install(scene: &Scene, actor: &Actor, slot: Slot, ballot: Ballot, reached: &mut Reached) {
    let role = actor.face.role;
    if slot <= actor.face.decided {
        return;
    }
    let over = actor.proposed.range(..=slot).next().is_some();
    let of = super::scene::index_of(actor.id);
    reached.mark(Situation::LeaderInstalls, role == Role::Leader);
    reached.mark(Situation::LeaderInstallsOverOwn, role == Role::Leader && over);
    reached.mark(Situation::CandidateInstalls, role == Role::Candidate);
    let higher = scene.above(ballot, actor.face.ballot);
    reached.mark(Situation::FollowerInstallsHigher, higher && follows(scene, of));
}

/// Whether a voter follows a leader.
fn follows(scene: &Scene, of: usize) -> bool {
    let face = &scene.actors[of].face;
    face.role == Role::Follower && face.leader.is_some() && scene.voters.contains(&of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_installs_what_a_higher_ballot_decided() {
        let mut seen = crate::situations::stories::three();
        let installed = |round| {
            let info = synod_replica::SnapshotInfo { slot: Slot(9), bytes: 1 };
            let ballots = synod_wire::Ballots::both(Ballot { round, replica: synod_wire::ReplicaId(1) });
            let group = synod_replica::Group::of(&synod_consensus::Options::default(), []);
            let history = synod_replica::History::unknown(Slot(9));
            Event::SnapshotInstalled(Some(Box::new(synod_replica::Installed {
                info,
                ballots,
                group,
                history,
            })))
        };
        seen.follows(1, 1, 5);
        seen.takes(1, &installed(5));
        assert!(!seen.reached().has(Situation::FollowerInstallsHigher));
        seen.takes(1, &installed(6));
        assert!(seen.reached().has(Situation::FollowerInstallsHigher));
    }
}
