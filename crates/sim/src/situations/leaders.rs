//! Situations with several leaders and candidates at once.

use synod_consensus::{Class, Role, Threshold};
use synod_replica::{Event, PeerMessage};

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
        Sight::Sends { from, to, message: PeerMessage::Protocol { message, .. } }
            if message.body().class() == Class::Transfer =>
        {
            asks_to_lead(scene, from, to, reached);
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

/// A leader asks another replica to take over.
fn asks_to_lead(scene: &Scene, leader: usize, heir: usize, reached: &mut Reached) {
    let actor = &scene.actors[heir];
    reached.mark(Situation::HeirStalls, actor.face.stalled);
    reached.mark(Situation::FormerLeaderAsked, actor.led);
    reached.mark(Situation::BusyHandOver, !scene.actors[leader].proposed.is_empty());
    let peers = scene.voters.iter().filter(|&&voter| voter != heir && scene.linked(heir, voter)).count();
    reached.mark(Situation::HeirCutOff, 1 + peers < Threshold::Majority.least(scene.voters.len()));
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
