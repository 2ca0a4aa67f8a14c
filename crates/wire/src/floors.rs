//! Which batches their origins have given up, as far as a replica has heard.
//!
//! The origin of a batch says in it which of its earlier batches it still waits for ([`Batch::floor`]). A batch below
//! the highest such number of its life is delivered, or nobody waits for it any more: the requests in it were
//! answered that their outcome is not known. So a leader may leave it out, which saves a slot for a batch that somebody
//! waits for.
//!
//! This is what one replica has heard, and not what was delivered ([`Delivered`](crate::Delivered)): two replicas may
//! know different floors. So it may decide what a leader proposes, and never what a decided batch means or whether
//! it is kept.

use std::collections::BTreeMap;

use crate::{Batch, BatchId, Life, ReplicaId};

/// The highest floor that was heard of the latest life of each replica.
#[derive(Clone, Debug, Default)]
pub struct Floors {
    heard: BTreeMap<ReplicaId, (Life, u64)>,
}

impl Floors {
    /// Records what the origin of this batch says of its earlier ones; returns whether that is new.
    pub fn hear(&mut self, batch: &Batch) -> bool {
        let Some((replica, life)) = batch.id().and_then(|id| id.origin.of_replica()) else { return false };
        let heard = (life, batch.floor());
        // A later life begins with a low floor, which counts more.
        let known = self.heard.entry(replica).or_insert((life, 0));
        let newer = heard > *known;
        *known = heard.max(*known);
        newer
    }

    /// Whether its origin does not wait for this batch any more.
    #[must_use]
    pub fn gave_up(&self, id: BatchId) -> bool {
        let Some((replica, life)) = id.origin.of_replica() else { return false };
        self.heard.get(&replica).is_some_and(|&(heard, floor)| heard == life && id.number < floor)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.heard.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, Incarnation, SessionId, replica_session};

    fn batch(life: u64, number: u64, floor: u64) -> Batch {
        let origin = replica_session(ReplicaId(1), Incarnation(life), 3);
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"x");
        builder.finish_as(BatchId { origin, number }, floor)
    }

    #[test]
    fn the_highest_floor_of_a_life_counts_in_that_life_only() {
        let mut floors = Floors::default();
        let gave_up = |floors: &Floors, life, number| floors.gave_up(batch(life, number, 1).id().unwrap());
        assert!(!gave_up(&floors, 1, 1));
        assert!(floors.hear(&batch(1, 9, 5)));
        assert!(!floors.hear(&batch(1, 7, 3)), "an earlier batch, sent again");
        assert!(gave_up(&floors, 1, 4) && !gave_up(&floors, 1, 5) && !gave_up(&floors, 2, 4));
        assert!(floors.hear(&batch(2, 1, 1)), "a new life numbers its batches from 1");
        assert!(!gave_up(&floors, 2, 1) && !gave_up(&floors, 1, 4), "of the latest life only");
        assert!(!floors.hear(&batch(1, 9, 9)));
        assert!(!gave_up(&floors, 1, 8));
    }
}
