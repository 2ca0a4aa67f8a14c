//! The lives of replicas that are over.

use std::collections::BTreeMap;

use synod_wire::{Incarnation, ReplicaId};

/// The latest life of each member, as far as one replica knows. What a replica promised or answered in an
/// earlier life does not count: it may have forgotten that. See `recovery.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lives(BTreeMap<ReplicaId, Incarnation>);

impl Lives {
    /// Records that a replica lives this life, or has lived it; returns whether that is new.
    pub(super) fn note(&mut self, replica: ReplicaId, life: Incarnation) -> bool {
        let known = self.0.entry(replica).or_default();
        let news = life > *known;
        *known = (*known).max(life);
        news
    }

    /// The latest life of a replica that is known.
    pub(super) fn latest(&self, replica: ReplicaId) -> Incarnation {
        self.0.get(&replica).copied().unwrap_or_default()
    }

    /// Whether no later life of a replica is known than this one.
    pub(super) fn is_latest(&self, replica: ReplicaId, life: Incarnation) -> bool {
        life >= self.latest(replica)
    }

    /// The lives for a message or a record: by replica, in ascending order.
    pub(super) fn list(&self) -> Vec<(ReplicaId, Incarnation)> {
        self.0.iter().map(|(&replica, &life)| (replica, life)).collect()
    }
}

impl FromIterator<(ReplicaId, Incarnation)> for Lives {
    fn from_iter<T: IntoIterator<Item = (ReplicaId, Incarnation)>>(lives: T) -> Lives {
        Lives(lives.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_life_is_news_and_ends_the_ones_before() {
        let (r2, mut lives) = (ReplicaId(2), Lives::default());
        assert!(lives.is_latest(r2, Incarnation(1)), "nothing is known of it");
        assert!(lives.note(r2, Incarnation(3)));
        assert!(!lives.note(r2, Incarnation(3)) && !lives.note(r2, Incarnation(2)));
        assert!(!lives.is_latest(r2, Incarnation(2)) && lives.is_latest(r2, Incarnation(3)));
        assert_eq!(lives.list(), [(r2, Incarnation(3))]);
        assert_eq!(lives.list().into_iter().collect::<Lives>(), lives);
    }
}
