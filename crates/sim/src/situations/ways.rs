//! Situations of rings along which messages go from replica to replica.

use std::collections::BTreeSet;

use synod_consensus::{RingPath, Role};
use synod_replica::{Event, PeerMessage};
use synod_wire::{Ballot, ReplicaId, Slot};

use super::{
    Reached, Sight, Situation,
    scene::{Scene, index_of},
};

/// A ring: its ballot, its number, and the replicas in their order.
type Ring = (Ballot, u64, Vec<ReplicaId>);

/// The latest ring that each replica chose, or has heard of.
#[derive(Debug)]
pub(super) struct Watcher {
    chosen: Vec<Option<Ring>>,
    heard: Vec<Option<(Ballot, u64)>>,
    /// The latest range of slots about which each replica asked.
    asked: Vec<Option<(Ballot, Slot)>>,
}

impl Watcher {
    pub(super) fn new(capacity: usize) -> Watcher {
        Watcher { chosen: vec![None; capacity], heard: vec![None; capacity], asked: vec![None; capacity] }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        match *sight {
            Sight::Sends { from, message, .. } => {
                let role = scene.actors[from].face.role;
                reached.mark(Situation::LearnerOnRing, role == Role::Learner && way(message).is_some());
                if let PeerMessage::Protocol { message, .. } = message
                    && let Some((ballot, through)) = message.body().range_asked()
                {
                    let again =
                        self.asked[from].is_some_and(|(asked, last)| asked == ballot && last < through);
                    reached.mark(Situation::SecondRange, again && role == Role::Candidate);
                    reached.mark(Situation::MoreReserved, again && role == Role::Leader);
                    self.asked[from] = self.asked[from].max(Some((ballot, through)));
                }
                let Some(way) = way(message) else { return };
                let leads = index_of(way.ballot.replica) == from;
                if let Some(votes) = way.votes.filter(|_| way.number > 0) {
                    let place = way.order.iter().position(|&id| index_of(id) == from);
                    let without = place.is_some_and(|place| !votes.has(place));
                    reached.mark(Situation::VotesWithoutLeader, without && leads);
                    reached.mark(Situation::VotesPass, without && role == Role::Follower);
                }
                if leads {
                    self.chooses(from, way, reached);
                }
            }
            Sight::Takes { of, event: Event::Receive { message, .. } } => {
                let Some(way) = way(message).filter(|way| way.number > 0) else { return };
                let known = self.heard[of].filter(|(ballot, _)| *ballot == way.ballot);
                reached.mark(Situation::OldRing, known.is_some_and(|(_, number)| way.number < number));
                self.heard[of] = self.heard[of].max(Some((way.ballot, way.number)));
            }
            _ => {}
        }
    }

    /// A leader sends something along a ring of its own.
    fn chooses(&mut self, leader: usize, way: RingPath<'_>, reached: &mut Reached) {
        if way.number == 0 {
            return reached.mark(Situation::Detour, true);
        }
        if way.order.len() == 1 {
            return reached.mark(Situation::RingIsLeft, true);
        }
        let members = |order: &[ReplicaId]| order.iter().copied().collect::<BTreeSet<_>>();
        if let Some((ballot, number, order)) = &self.chosen[leader]
            && *ballot == way.ballot
            && way.number > *number
        {
            let (before, now) = (members(order), members(way.order));
            reached.mark(Situation::RingShrinks, !before.is_subset(&now));
            reached.mark(Situation::RingGrows, !now.is_subset(&before));
            reached.mark(Situation::RingTurns, before == now && order != way.order);
        }
        let next = Some((way.ballot, way.number, way.order.to_vec()));
        if next > self.chosen[leader] {
            self.chosen[leader] = next;
        }
    }
}

fn way(message: &PeerMessage) -> Option<RingPath<'_>> {
    let PeerMessage::Protocol { message, .. } = message else { return None };
    message.body().ring_path()
}

#[cfg(test)]
mod tests {
    use synod_consensus::ring;
    use synod_wire::Epoch;

    use super::{super::stories::three, *};

    #[test]
    fn a_ring_is_old_where_a_later_one_of_its_ballot_has_been_heard_of() {
        let late = |of: usize, round: u64| {
            let mut seen = three();
            let mut hears = |of: usize, round: u64, minor: u64| {
                let ballot = Ballot { round, replica: ReplicaId(1) };
                let order = vec![ReplicaId(1), ReplicaId(2), ReplicaId(3)].into();
                let message = ring::Message::View { view: ring::View { ballot, minor, order } };
                let message = PeerMessage::Protocol { epoch: Epoch(1), message: message.into() };
                seen.takes(of, &Event::Receive { from: ReplicaId(1), message });
            };
            hears(1, 1, 2);
            hears(of, round, 1);
            seen.reached().has(Situation::OldRing)
        };
        assert!(late(1, 1));
        assert!(!late(2, 1), "this one has not heard of it");
        assert!(!late(1, 2), "of another ballot");
    }
}
