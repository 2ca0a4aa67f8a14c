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
pub(super) mod tests {
    use super::{super::stories::Story, *};

    /// Situations, the casts that reach them, and how.
    pub(crate) const STORIES: &[Story] = &[
        (
            &[Situation::LearnerAhead],
            &["multipaxos+rotating", "sequence-paxos+rotating", "raft"],
            "cluster 5
             elect 1
             member 1 add learn
             run 500ms
             links 1-2 3-4 3-5 4-5 3-6 4-6 5-6
             elect 3
             put 3 k1=3
             run 40ms",
        ),
        (
            &[Situation::LeaderLearns, Situation::LeaderLearnsHigher, Situation::LeaderLearnsOther],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 5
             elect 1
             member 1 add learn
             run 500ms
             links 1-2 1-6 3-4 3-5 4-5 3-6 4-6 5-6
             put 1 k1=100
             deliver 1->2 proposal
             elect 3
             put 3 k1=3
             stabilize
             tick 100ms
             deliver 6->1 progress
             tick 25ms
             deliver 1->6 catch-up
             deliver 6->1 catch-up",
        ),
        (
            &[Situation::LeaderLearns, Situation::LeaderLearnsOther],
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
             deliver 3->1
             deliver 1->2
             deliver 1->3
             deliver 2->1
             deliver 3->1
             deliver 1->2
             deliver 2->1
             links 1-2 1-6 3-4 3-5 4-5 3-6 4-6 5-6
             timeout 4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             timeout 4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             deliver 4->3
             deliver 3->4
             deliver 4->6
             deliver 4->5
             tick 25ms
             deliver 6->4
             deliver 4->6
             tick 75ms
             deliver 6->1
             deliver 1->2
             deliver 2->1
             tick 25ms
             deliver 1->6
             deliver 6->1",
        ),
        (
            &[Situation::CandidateLearns, Situation::CandidateLearnsHigher],
            &["sequence-paxos"],
            "cluster 5
             elect 5
             member 5 add learn
             run 500ms
             links 1-2 1-3 1-5 3-5
             stall-disk 5
             put 5 k1=100
             deliver 5->1 proposal
             deliver 5->3 proposal
             transfer 5 1
             deliver 5->1 transfer
             deliver 1->2 prepare
             deliver 2->1 promise
             stall-disk 3
             deliver 1->3 prepare
             crash 5
             unstall-disk 5
             restart 5
             links 1-2 1-3 2-4 2-5 4-5 2-6 4-6 5-6
             run 10s
             put 5 k1=3
             run 200ms",
        ),
        (
            &[Situation::CandidateLearnsWinner],
            &["raft"],
            "cluster 3
             elect 1
             run 200ms
             partition 1 | 2 | 3
             tick 3s
             links 1-3
             timeout 3
             deliver 3->1
             deliver 1->3
             links 1-2
             drop 1->2
             timeout 2
             deliver 2->1
             deliver 1->2
             deliver 2->1
             deliver 1->2
             run 100ms
             member 2 add replace 1
             stabilize
             links 1-2 1-4 2-4
             run 500ms
             links 2-4 3-4
             run 300ms",
        ),
        (
            &[Situation::FollowerLearnsHigher],
            &["sequence-paxos+rotating"],
            "cluster 5
             elect 1
             run 200ms
             links 1-2 1-4 1-5 2-3 2-4 2-5 3-4 3-5 4-5
             put 1 k2=7
             stabilize
             links 1-2 1-3 1-4 1-5 2-3 2-4 2-5 4-5
             tick 100ms
             deliver 1->3
             links 2-3 2-4 2-5 4-5
             put 1 k1=100
             crash 1
             restart 1
             links 1-2 1-3 2-3 2-4 2-5 4-5
             tick 25ms
             timeout 1
             deliver 1->2
             deliver 2->1
             timeout 4
             deliver 4->2
             deliver 2->4
             timeout 4
             deliver 4->2
             deliver 4->5
             deliver 2->4
             deliver 5->4
             put 4 k1=3
             deliver 4->2
             deliver 4->5
             deliver 2->4
             deliver 5->4
             deliver 4->2
             deliver 3->2
             deliver 2->3
             deliver 3->2
             deliver 2->3",
        ),
        (
            &[Situation::FollowerLearnsHigher],
            &["sequence-paxos"],
            "cluster 5
             elect 5
             member 5 add learn
             run 500ms
             links 1-2 1-3 1-5
             stall-disk 5
             put 5 k1=100
             deliver 5->1 proposal
             transfer 5 1
             deliver 5->1 transfer
             deliver 1->2 prepare
             deliver 2->1 promise
             crash 5
             unstall-disk 5
             restart 5
             links 1-2 1-3 2-4 2-5 4-5 2-6 4-6 5-6
             pause 1
             pause 3
             run 1500ms
             put 5 k1=3
             run 200ms
             resume 3
             resume 1
             links 1-2 1-3 3-6 2-4 2-5 4-5 2-6 4-6 5-6
             deliver 6->3 progress
             tick 25ms
             deliver 3->6 catch-up
             deliver 6->3 catch-up",
        ),
        (
            &[Situation::LeaderInstalls, Situation::LeaderInstallsOverOwn],
            &["multipaxos+rotating"],
            "cluster 5 snapshot-slots=2 keep-slots=0
             elect 1
             member 1 add learn
             run 500ms
             links 1-2 3-4 3-5 4-5 3-6 4-6 5-6
             put 1 k1=100
             put 1 k2=200
             deliver 1->2 proposal
             deliver 2->1 vote
             elect 3
             put 3 k1=3
             stabilize
             links 1-2 1-6 3-4 3-5 4-5 3-6 4-6 5-6
             deliver 6->1 progress
             tick 25ms
             deliver 1->2
             deliver 2->1
             tick 25ms
             deliver 1->6
             deliver 6->1
             deliver 1->6
             deliver 6->1",
        ),
        (
            &[Situation::LeaderInstalls, Situation::LeaderInstallsOverOwn],
            &["raft"],
            "cluster 5 snapshot-slots=3 keep-slots=0
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
             deliver 3->1
             deliver 1->2
             deliver 1->3
             deliver 2->1
             deliver 3->1
             deliver 1->2
             deliver 2->1
             links 1-2 1-6 3-4 3-5 4-5 3-6 4-6 5-6
             timeout 4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             timeout 4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             deliver 4->3
             deliver 4->5
             deliver 3->4
             deliver 5->4
             deliver 4->3
             deliver 3->4
             deliver 4->6
             deliver 4->5
             tick 25ms
             deliver 6->4
             deliver 4->6
             deliver 6->4
             deliver 4->6 Chunk
             tick 75ms
             deliver 6->1
             tick 25ms
             deliver 1->2
             deliver 2->1
             tick 25ms
             deliver 1->6
             deliver 6->1 SnapshotOffer
             deliver 1->6
             deliver 6->1",
        ),
        (
            &[Situation::CandidateInstalls],
            &["multipaxos+rotating", "sequence-paxos+rotating"],
            "cluster 3 snapshot-slots=2 keep-slots=0
             elect 1
             member 1 add learn
             run 500ms
             partition 1 2 4 | 3
             put 1 k2=2
             put 1 k3=3
             run 500ms
             put 1 k4=4
             put 1 k5=4
             run 300ms
             heal
             timeout 3
             timeout 3
             links 1-2 1-4 2-4 3-4
             run 200ms",
        ),
        (
            &[Situation::CandidateInstalls],
            &["raft"],
            "cluster 3 snapshot-slots=2 keep-slots=0
             elect 1
             member 1 add learn
             run 500ms
             partition 1 2 4 | 3
             put 1 k2=2
             put 1 k3=3
             run 500ms
             put 1 k4=4
             put 1 k5=4
             run 300ms
             timeout 3
             timeout 3
             links 1-2 1-4 2-4 3-4
             run 200ms",
        ),
    ];

    #[test]
    fn each_situation_is_seen_when_it_comes_to_be_and_not_before() {
        crate::situations::stories::play(STORIES);
    }

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
