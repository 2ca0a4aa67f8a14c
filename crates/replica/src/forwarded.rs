//! Batches that followers sent here to be ordered.
//!
//! A follower keeps its batches until they are delivered, and sends them again to the replica that leads then. So a
//! batch that is dropped here is not lost.

use std::collections::{BTreeSet, VecDeque};

use synod_wire::{Batch, BatchId, Delivered, ReplicaId};

/// The batches of followers that wait here for a slot, or are in flight.
#[derive(Debug, Default)]
pub(crate) struct Forwarded {
    /// The batches that have to be proposed here.
    queue: VecDeque<Batch>,
    queue_bytes: usize,
    /// The batches that are queued here or in flight: when a follower has waited long and sends one again, ordering it
    /// again would only make the others wait longer.
    ordering: BTreeSet<BatchId>,
    /// Those of them that the replica that sent them may not have any more.
    lost_by_origin: BTreeSet<BatchId>,
}

impl Forwarded {
    /// Adds a batch that a follower wants to have ordered. Beyond `bytes_max` it is dropped, unless it is the
    /// only one; the follower sends it again.
    pub fn add(&mut self, batch: Batch, bytes_max: usize) {
        let Some(id) = batch.id() else { return };
        let fits = self.queue.is_empty() || self.queue_bytes + batch.bytes().len() <= bytes_max;
        if fits && self.ordering.insert(id) {
            self.queue_bytes += batch.bytes().len();
            self.queue.push_back(batch);
        }
    }

    /// The next batch of a follower.
    pub fn take(&mut self) -> Option<Batch> {
        let batch = self.queue.pop_front()?;
        self.queue_bytes -= batch.bytes().len();
        Some(batch)
    }

    /// Bytes of the batches that are queued.
    pub fn bytes(&self) -> usize {
        self.queue_bytes
    }

    /// How many batches are queued or in flight.
    pub fn len(&self) -> usize {
        self.ordering.len()
    }

    /// Takes note that this batch is decided, or will not be proposed.
    pub fn done(&mut self, batch: &Batch) {
        if let Some(id) = batch.id() {
            self.ordering.remove(&id);
            self.lost_by_origin.remove(&id);
        }
    }

    /// Takes note that a snapshot took the place of slots that were not delivered here: what is in flight may
    /// have been decided in one of them, and no message will tell.
    pub fn skipped(&mut self) {
        self.ordering = self.queue.iter().filter_map(Batch::id).collect();
        self.lost_by_origin.retain(|id| self.ordering.contains(id));
    }

    /// Drops the batches of followers that would be void if they were ordered.
    pub fn drop_void(&mut self, delivered: &Delivered) {
        self.ordering.retain(|&id| !delivered.voids(id));
        self.lost_by_origin.retain(|&id| !delivered.voids(id));
        self.queue.retain(|batch| batch.id().is_none_or(|id| !delivered.voids(id)));
        self.queue_bytes = self.queue.iter().map(|batch| batch.bytes().len()).sum();
    }

    /// Drops the batches of followers, since this replica does not lead any more: followers send them to the
    /// next leader.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.ordering.clear();
        self.lost_by_origin.clear();
        self.queue_bytes = 0;
    }

    /// Whether this replica, which sent a batch here to be ordered, still has it, as far as is known.
    pub fn is_spared(&self, id: BatchId, origin: ReplicaId) -> bool {
        let from = id.origin.of_replica().is_some_and(|(replica, _)| replica == origin);
        from && self.ordering.contains(&id) && !self.lost_by_origin.contains(&id)
    }

    /// Takes note that a replica missed something, perhaps since it lacks what it has sent here.
    pub fn missed_by(&mut self, origin: ReplicaId) {
        let from = |id: &&BatchId| id.origin.of_replica().is_some_and(|(replica, _)| replica == origin);
        self.lost_by_origin.extend(self.ordering.iter().filter(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, SessionId};

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), number, 1, &[0; 100]);
        builder.finish_as(BatchId { origin: SessionId(1), number }, 1)
    }

    #[test]
    fn a_followers_batch_is_queued_once_and_one_always_has_room() {
        let mut forwarded = Forwarded::default();
        forwarded.add(batch(1), 10);
        forwarded.add(batch(2), 10);
        assert_eq!(forwarded.take(), Some(batch(1)), "however large it is");
        assert_eq!(forwarded.take(), None);
        forwarded.add(batch(1), 10);
        assert_eq!(forwarded.take(), None, "it is in flight");
        forwarded.done(&batch(1));
        assert_eq!(forwarded.len(), 0);
    }

    #[test]
    fn an_origin_that_missed_something_is_not_spared_what_it_sent_before() {
        let (r1, r2) = (ReplicaId(1), ReplicaId(2));
        let of = |number: u64| {
            let mut builder = BatchBuilder::identified();
            builder.push(SessionId(1), number, 1, &[0; 100]);
            let origin = synod_wire::replica_session(r2, synod_wire::Incarnation(1), 0);
            builder.finish_as(BatchId { origin, number }, 1)
        };
        let id = |number: u64| of(number).id().unwrap();
        let mut forwarded = Forwarded::default();
        forwarded.add(of(1), 1_000);
        assert!(forwarded.is_spared(id(1), r2) && !forwarded.is_spared(id(1), r1));
        assert!(!forwarded.is_spared(id(2), r2), "another leader may have got it");
        forwarded.missed_by(r2);
        forwarded.add(of(2), 1_000);
        assert!(!forwarded.is_spared(id(1), r2) && forwarded.is_spared(id(2), r2));
    }

    #[test]
    fn what_a_snapshot_may_have_covered_is_not_taken_to_be_in_flight_forever() {
        let mut forwarded = Forwarded::default();
        forwarded.add(batch(1), 1_000);
        forwarded.take();
        forwarded.add(batch(2), 1_000);
        forwarded.skipped();
        assert_eq!(forwarded.len(), 1, "the second is still queued");
        forwarded.add(batch(1), 1_000);
        assert_eq!(forwarded.len(), 2, "and the first may be asked for again");
    }
}
