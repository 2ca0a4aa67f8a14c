//! The ring: which replica sends to which, and which votes a message carries.
//!
//! The coordinator chooses the view, and every message of the ring carries it; a replica sends a message on along the
//! view in that message, or not at all. Nothing that a replica promises or counts depends on a view (docs/ring.md).

use std::sync::Arc;

use synod_wire::{Ballot, DecodeError, Reader, ReplicaId, Writer};

use crate::{MEMBERS_MAX, Members, ReplicaSet, codec::Field};

/// A ring: the coordinator, then the other members in the order in which messages pass them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The ballot of the coordinator, which comes first in the order.
    pub ballot: Ballot,
    /// The number of the view in its ballot; the first is 1. With 0 it is not the ring but the way of one message: a
    /// detour from the coordinator to one member and back, or a probe.
    pub minor: u64,
    /// The members, each once. The pointer is a small one: messages are moved several times.
    pub order: Arc<Vec<ReplicaId>>,
}

impl View {
    /// The way from the coordinator to one member, and back.
    pub(super) fn detour(ballot: Ballot, to: ReplicaId) -> View {
        View { ballot, minor: 0, order: vec![ballot.replica, to].into() }
    }

    /// An order of the members that is tried before it becomes the ring.
    pub(super) fn probe(ballot: Ballot, order: Vec<ReplicaId>) -> View {
        View { ballot, minor: 0, order: order.into() }
    }

    /// Whether it is the way of one message, and not the ring.
    pub(super) fn is_detour(&self) -> bool {
        self.minor == 0
    }

    /// Whether the coordinator has no ring, and sends to each member by itself.
    pub(super) fn is_direct(&self) -> bool {
        self.len() == 1
    }

    /// How many members it has.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Where a replica stands.
    pub(super) fn place(&self, id: ReplicaId) -> Option<usize> {
        self.order.iter().position(|&member| member == id)
    }

    /// Whether a replica is in it.
    pub(super) fn contains(&self, id: ReplicaId) -> bool {
        self.place(id).is_some()
    }

    /// The member to which a member sends; none if it is alone, or not in the ring.
    pub(super) fn next(&self, id: ReplicaId) -> Option<ReplicaId> {
        let next = self.order[(self.place(id)? + 1) % self.len()];
        Some(next).filter(|&next| next != id)
    }

    /// How many hops it takes until a message of one member has passed all others.
    pub(super) fn hops(&self) -> u8 {
        u8::try_from(self.len() - 1).expect("a group has few members")
    }

    /// Whether it takes the place of another as the ring.
    pub(super) fn replaces(&self, other: Option<&View>) -> bool {
        !self.is_detour() && other.is_none_or(|other| (self.ballot, self.minor) > (other.ballot, other.minor))
    }

    /// Whether it is a ring of these members, and perhaps others, led by the owner of its ballot.
    pub(super) fn is_of(&self, members: &Members, others: bool) -> bool {
        let distinct = |(at, id): (usize, &ReplicaId)| !self.order[..at].contains(id);
        self.order.first() == Some(&self.ballot.replica)
            && members.index(self.ballot.replica).is_some()
            && self.order.iter().all(|&id| others || members.index(id).is_some())
            && self.order.iter().enumerate().all(distinct)
    }

    /// These votes, as a set of replicas. Learners have no vote, whatever a message says.
    pub(super) fn voters(&self, votes: Votes, members: &Members) -> ReplicaSet {
        let voted = self.order.iter().enumerate().filter(|&(place, _)| votes.has(place));
        voted.fold(ReplicaSet::default(), |set, (_, &id)| set.union(members.only(id)))
    }
}

impl Field for View {
    fn write(&self, writer: &mut Writer) {
        writer.ballot(self.ballot);
        writer.u64(self.minor);
        writer.u32(u32::try_from(self.order.len()).expect("a group has few members"));
        self.order.iter().for_each(|&id| writer.replica(id));
    }

    fn read(reader: &mut Reader, _: &'static str) -> Result<View, DecodeError> {
        let (ballot, minor) = (reader.ballot("ballot of a view")?, reader.u64("number of a view")?);
        let count = reader.u32("members of a view")?;
        if count == 0 || count as usize > MEMBERS_MAX {
            return Err(DecodeError::Undefined { field: "members of a view", value: count.into() });
        }
        let order: Result<Vec<ReplicaId>, _> =
            (0..count).map(|_| reader.replica("member of a view")).collect();
        Ok(View { ballot, minor, order: order?.into() })
    }
}

/// Which members of a view voted: a bit for each place in its order, never a number of votes. A message that passes a
/// replica twice carries its vote once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Votes(pub [u64; 2]);

const _: () = assert!(MEMBERS_MAX <= 2 * u64::BITS as usize, "a bit for each member of a ring");

impl Votes {
    /// Whether the member at this place voted.
    #[must_use]
    pub fn has(self, place: usize) -> bool {
        place < MEMBERS_MAX && self.0[place / 64] >> (place % 64) & 1 == 1
    }

    /// These votes and that of the member at this place.
    #[must_use]
    pub fn with(mut self, place: usize) -> Votes {
        self.0[place / 64] |= 1 << (place % 64);
        self
    }

    /// How many members voted.
    #[must_use]
    pub fn count(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

impl Field for Votes {
    fn write(&self, writer: &mut Writer) {
        self.0.iter().for_each(|&word| writer.u64(word));
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Votes, DecodeError> {
        Ok(Votes([reader.u64(name)?, reader.u64(name)?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(order: &[u64]) -> View {
        let ballot = Ballot { round: 1, replica: ReplicaId(order[0]) };
        View { ballot, minor: 1, order: order.iter().copied().map(ReplicaId).collect::<Vec<_>>().into() }
    }

    #[test]
    fn a_ring_comes_back_to_where_it_begins_and_one_member_sends_to_nobody() {
        let ring = view(&[2, 3, 1]);
        let mut at = ReplicaId(2);
        let walk = std::iter::from_fn(|| {
            at = ring.next(at)?;
            Some(at.0)
        });
        assert_eq!(walk.take(4).collect::<Vec<_>>(), [3, 1, 2, 3]);
        assert_eq!((ring.next(ReplicaId(4)), view(&[1]).next(ReplicaId(1))), (None, None));
        assert_eq!(ring.hops(), 2);
    }

    #[test]
    fn only_a_ring_of_members_that_begins_with_its_coordinator_is_followed() {
        let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(1));
        let [of_members, of_any] = [false, true];
        assert!(view(&[2, 3, 1]).is_of(&members, of_members) && view(&[3]).is_of(&members, of_members));
        assert!(!view(&[2, 4]).is_of(&members, of_members) && view(&[2, 4]).is_of(&members, of_any));
        assert!(!view(&[2, 3, 2]).is_of(&members, of_any) && !view(&[4, 2]).is_of(&members, of_any));
        let other = View { ballot: Ballot { round: 1, replica: ReplicaId(3) }, ..view(&[2, 3]) };
        assert!(!other.is_of(&members, of_any));
    }

    #[test]
    fn a_vote_counts_once_and_is_of_a_place() {
        let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(1));
        let votes = Votes::default().with(0).with(0).with(2);
        assert_eq!((votes.count(), votes.has(1), votes.has(MEMBERS_MAX)), (2, false, false));
        let voters = view(&[2, 3, 1]).voters(votes, &members);
        assert_eq!(voters, members.only(ReplicaId(2)).union(members.only(ReplicaId(1))));
    }
}
