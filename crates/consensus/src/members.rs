//! Who votes, and what a quorum is.

use std::sync::Arc;

use synod_wire::ReplicaId;

use crate::To;

/// The most replicas a group may have.
pub const MEMBERS_MAX: usize = 63;

/// The voting members of a group, in ascending order, and this replica's place among them, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    ids: Vec<ReplicaId>,
    me: ReplicaId,
    /// All but this replica.
    peers: Arc<[ReplicaId]>,
}

impl Members {
    /// A group of these members, as seen by `me`.
    ///
    /// # Panics
    /// If `me` is not a member, a member is named twice, or there are more than [`MEMBERS_MAX`]: whoever reads a
    /// configuration checks that first.
    #[must_use]
    pub fn new(ids: impl IntoIterator<Item = ReplicaId>, me: ReplicaId) -> Members {
        let mut ids: Vec<_> = ids.into_iter().collect();
        ids.sort_unstable();
        assert!(ids.len() <= MEMBERS_MAX, "at most {MEMBERS_MAX} members");
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "members are distinct");
        assert!(ids.binary_search(&me).is_ok(), "this replica is a member");
        let peers = ids.iter().copied().filter(|&id| id != me).collect();
        Members { ids, me, peers }
    }

    /// A group of these members, as seen by a replica that does not vote (yet): it only follows. For protocols that
    /// change voters themselves.
    ///
    /// # Panics
    /// As [`Members::new`], and if `me` is a member.
    #[must_use]
    pub fn observed(ids: impl IntoIterator<Item = ReplicaId>, me: ReplicaId) -> Members {
        let mut all: Vec<_> = ids.into_iter().collect();
        all.push(me);
        let mut members = Members::new(all, me);
        members.ids.retain(|&id| id != me);
        members
    }

    /// This replica.
    #[must_use]
    pub fn me(&self) -> ReplicaId {
        self.me
    }

    /// This replica's place, from 0.
    ///
    /// # Panics
    /// If this replica only observes.
    #[must_use]
    pub fn my_index(&self) -> usize {
        self.index(self.me).expect("this replica is a member")
    }

    /// All members, this replica among them unless it only observes.
    #[must_use]
    pub fn ids(&self) -> &[ReplicaId] {
        &self.ids
    }

    /// All members but this replica.
    pub fn peers(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.peers.iter().copied()
    }

    /// To all members but this replica.
    #[must_use]
    pub fn to_peers(&self) -> To {
        To::Each(Arc::clone(&self.peers))
    }

    /// How many members there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// How many members make a majority.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.ids.len() / 2 + 1
    }

    /// A member's place, from 0.
    #[must_use]
    pub fn index(&self, id: ReplicaId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// Whether these replicas are a majority of the members.
    #[must_use]
    pub fn is_quorum(&self, set: ReplicaSet) -> bool {
        set.len() >= self.quorum()
    }

    /// The largest number that a majority of the members reaches, each having reached `value`.
    #[must_use]
    pub fn quorum_value(&self, value: impl FnMut(ReplicaId) -> u64) -> u64 {
        reached_by(&self.ids, self.quorum(), value)
    }

    /// Adds a member to a set; a replica that is no member changes nothing.
    pub fn add(&self, set: &mut ReplicaSet, id: ReplicaId) {
        if let Some(index) = self.index(id) {
            set.0 |= 1 << index;
        }
    }

    /// Whether a member is in a set.
    #[must_use]
    pub fn contains(&self, set: ReplicaSet, id: ReplicaId) -> bool {
        self.index(id).is_some_and(|index| set.0 & (1 << index) != 0)
    }
}

/// The largest number that `count` of these replicas reach, each having reached `value`.
pub(crate) fn reached_by(ids: &[ReplicaId], count: usize, mut value: impl FnMut(ReplicaId) -> u64) -> u64 {
    debug_assert!(0 < count && count <= ids.len(), "so many there are");
    let mut values = [0; MEMBERS_MAX];
    let values = &mut values[..ids.len()];
    for (value_of, &id) in values.iter_mut().zip(ids) {
        *value_of = value(id);
    }
    values.sort_unstable();
    values[ids.len() - count]
}

/// A set of members of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaSet(u64);

impl ReplicaSet {
    /// Who is in either of two sets.
    #[must_use]
    pub fn union(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 | other.0)
    }

    /// How many are in it.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether nobody is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(n: u64) -> Members {
        Members::new((1..=n).map(ReplicaId), ReplicaId(1))
    }

    /// Any two quorums share a member: checked against all pairs of subsets.
    #[test]
    fn quorums_intersect() {
        for n in 1..=7 {
            let members = members(n);
            let quorums: Vec<u64> =
                (0..1u64 << n).filter(|&bits| members.is_quorum(ReplicaSet(bits))).collect();
            for a in &quorums {
                assert!(quorums.iter().all(|b| a & b != 0), "{n} members");
            }
        }
    }

    /// A group of 2f+1 makes progress without any f of its members.
    #[test]
    fn a_minority_is_not_needed() {
        for (n, f) in [(1, 0), (3, 1), (5, 2), (7, 3)] {
            assert_eq!(members(n).quorum() + f, n as usize);
        }
    }

    /// Against a count of who reaches what.
    #[test]
    fn a_quorum_value_is_reached_by_a_quorum_and_no_higher_one_is() {
        for n in 1..=5 {
            let members = members(n);
            for seed in 0..3_u64.pow(n as u32) {
                let value = |id: ReplicaId| seed / 3_u64.pow(id.0 as u32 - 1) % 3;
                let reach = |least| members.ids().iter().filter(|&&id| value(id) >= least).count();
                let found = members.quorum_value(value);
                assert!(reach(found) >= members.quorum() && reach(found + 1) < members.quorum());
            }
        }
    }

    #[test]
    fn strangers_are_not_counted() {
        let members = members(3);
        let mut set = ReplicaSet::default();
        members.add(&mut set, ReplicaId(9));
        assert!(set.is_empty());
        members.add(&mut set, ReplicaId(2));
        members.add(&mut set, ReplicaId(2));
        assert_eq!(set.len(), 1);
        assert!(members.contains(set, ReplicaId(2)) && !members.contains(set, ReplicaId(3)));
    }
}
