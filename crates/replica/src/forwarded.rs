//! Batches that followers sent here to be ordered.
//!
//! A follower keeps its batches until they are delivered, and sends them again to the replica that leads then. So a
//! batch that is dropped here is not lost.
//!
//! Followers have their turns, and the clients of this replica have one as well, so an origin that asks for more than
//! can be ordered gets a share. A batch for which nobody waits any more is dropped before it costs a slot. One is if
//! its origin says so in a later batch ([`Floors`]), or if it has waited here for a request time-out, since its
//! origin has given it up by then. (If the origin is more patient than this replica, it sends the batch again.) Where
//! a batch is held elsewhere, and ordered by reference, it is not this queue that has it; see
//! `synod_consensus::dissemination`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
};

use synod_wire::{Batch, BatchId, Delivered, Floors, ReplicaId, SessionId, Time};

/// A batch that waits for a slot.
#[derive(Debug)]
struct Queued {
    id: BatchId,
    batch: Batch,
    /// When it came.
    came: Time,
}

/// The batches of followers that wait here for a slot, or are in flight.
#[derive(Debug, Default)]
pub(crate) struct Forwarded {
    /// The batches that have to be proposed here, of each origin. No queue is empty.
    queues: BTreeMap<SessionId, VecDeque<Queued>>,
    queue_bytes: usize,
    /// The origin whose turn was last.
    turn: SessionId,
    /// The batches that are queued here or in flight: when a follower has waited long and sends one again, ordering it
    /// again would only make the others wait longer.
    ordering: BTreeSet<BatchId>,
    /// Those of them that the replica that sent them may not have any more.
    lost_by_origin: BTreeSet<BatchId>,
    /// Which batches origins have given up.
    floors: Floors,
}

impl Forwarded {
    /// Records what the origin of this batch says of its earlier ones, and drops those that it gave up.
    pub fn hear(&mut self, batch: &Batch) {
        if self.floors.hear(batch) {
            let floors = std::mem::take(&mut self.floors);
            self.drop_queued(|queued| floors.gave_up(queued.id));
            self.floors = floors;
        }
    }

    /// Adds a batch that a follower wants to have ordered. Beyond `bytes_max` it is dropped, unless it is the
    /// only one; the follower sends it again.
    pub fn add(&mut self, now: Time, batch: Batch, bytes_max: usize) {
        let Some(id) = batch.id() else { return };
        let fits = self.queues.is_empty() || self.queue_bytes + batch.bytes().len() <= bytes_max;
        if fits && !self.floors.gave_up(id) && self.ordering.insert(id) {
            self.queue_bytes += batch.bytes().len();
            self.queues.entry(id.origin).or_default().push_back(Queued { id, batch, came: now });
        }
    }

    /// The next batch of a follower.
    pub fn take(&mut self) -> Option<Batch> {
        let later = self.queues.range_mut((Bound::Excluded(self.turn), Bound::Unbounded)).next();
        let origin = later.map(|(&origin, _)| origin).or_else(|| self.queues.keys().next().copied())?;
        let queue = self.queues.get_mut(&origin)?;
        let batch = queue.pop_front()?.batch;
        if queue.is_empty() {
            self.queues.remove(&origin);
        }
        self.queue_bytes -= batch.bytes().len();
        self.turn = origin;
        Some(batch)
    }

    /// Whether the next turn is this origin's, whose batches wait elsewhere, and not that of one that has some here.
    pub fn is_turn_of(&self, origin: SessionId) -> bool {
        let place = |id: SessionId| (id <= self.turn, id);
        self.queues.keys().all(|&other| place(origin) < place(other))
    }

    /// Records that this origin had its turn.
    pub fn had_turn(&mut self, origin: SessionId) {
        self.turn = origin;
    }

    /// Drops what was queued at or before this instant: nobody waits for it any more.
    pub fn expire(&mut self, came_max: Time) {
        if self.queues.values().any(|queue| queue.front().is_some_and(|queued| queued.came <= came_max)) {
            self.drop_queued(|queued| queued.came <= came_max);
        }
    }

    fn drop_queued(&mut self, drops: impl Fn(&Queued) -> bool) {
        for queued in self.queues.values().flatten().filter(|queued| drops(queued)) {
            self.queue_bytes -= queued.batch.bytes().len();
            self.ordering.remove(&queued.id);
            self.lost_by_origin.remove(&queued.id);
        }
        self.queues.values_mut().for_each(|queue| queue.retain(|queued| !drops(queued)));
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    /// Bytes of the batches that are queued.
    pub fn bytes(&self) -> usize {
        self.queue_bytes
    }

    /// How many batches are queued or in flight.
    pub fn len(&self) -> usize {
        self.ordering.len()
    }

    /// Records that this batch is decided, or will not be proposed.
    pub fn done(&mut self, batch: &Batch) {
        if let Some(id) = batch.id() {
            self.ordering.remove(&id);
            self.lost_by_origin.remove(&id);
        }
    }

    /// Records that a snapshot took the place of slots that were not delivered here: what is in flight may
    /// have been decided in one of them, and no message will tell.
    pub fn skipped(&mut self) {
        self.ordering = self.queues.values().flatten().map(|queued| queued.id).collect();
        self.lost_by_origin.retain(|id| self.ordering.contains(id));
    }

    /// Drops the batches of followers that would be void if they were ordered.
    pub fn drop_void(&mut self, delivered: &Delivered) {
        self.ordering.retain(|&id| !delivered.voids(id));
        self.lost_by_origin.retain(|&id| !delivered.voids(id));
        self.drop_queued(|queued| delivered.voids(queued.id));
    }

    /// Drops the batches of followers, since this replica does not lead any more: followers send them to the
    /// next leader.
    pub fn clear(&mut self) {
        *self = Forwarded::default();
    }

    /// Whether this replica, which sent a batch here to be ordered, still has it, as far as is known.
    pub fn is_spared(&self, id: BatchId, origin: ReplicaId) -> bool {
        let from = id.origin.of_replica().is_some_and(|(replica, _)| replica == origin);
        let has = self.ordering.contains(&id) && !self.lost_by_origin.contains(&id);
        from && has && !self.floors.gave_up(id)
    }

    /// Records that a replica missed something, perhaps since it lacks what it has sent here.
    pub fn missed_by(&mut self, origin: ReplicaId) {
        let from = |id: &&BatchId| id.origin.of_replica().is_some_and(|(replica, _)| replica == origin);
        self.lost_by_origin.extend(self.ordering.iter().filter(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, Incarnation, replica_session};

    const NOW: Time = Time::ZERO;

    /// A batch of the first life of a replica, which waits for none below `floor`.
    fn of(replica: u64, number: u64, floor: u64) -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), number, 1, &[0; 100]);
        let origin = replica_session(ReplicaId(replica), Incarnation(1), 0);
        builder.finish_as(BatchId { origin, number }, floor)
    }

    fn names(forwarded: &mut Forwarded) -> Vec<String> {
        let named = |batch: Batch| batch.id().unwrap().to_string();
        std::iter::from_fn(|| forwarded.take().map(named)).collect()
    }

    #[test]
    fn what_its_origin_gave_up_costs_no_slot() {
        let mut forwarded = Forwarded::default();
        let queued = [of(2, 1, 1), of(2, 2, 1), of(3, 1, 1)];
        queued.into_iter().for_each(|batch| forwarded.add(NOW, batch, 1_000));
        let (first, bytes) = (forwarded.take().unwrap(), forwarded.bytes());
        assert!(forwarded.is_spared(first.id().unwrap(), ReplicaId(2)));
        forwarded.hear(&of(2, 4, 3));
        forwarded.add(NOW, of(2, 4, 3), 1_000);
        assert!(
            !forwarded.is_spared(first.id().unwrap(), ReplicaId(2)),
            "it cannot fill in a reference to it"
        );
        assert_eq!((forwarded.bytes(), forwarded.len()), (bytes, 3), "one in flight, and two wait");
        forwarded.add(NOW, of(2, 2, 1), 1_000);
        assert_eq!(names(&mut forwarded), ["r3/1#1", "r2/1#4"], "also if it comes late");
    }

    #[test]
    fn what_has_waited_for_too_long_costs_no_slot_and_may_come_again() {
        let mut forwarded = Forwarded::default();
        let second = std::time::Duration::from_secs(1);
        forwarded.add(NOW, of(2, 1, 1), 1_000);
        forwarded.add(NOW + second, of(2, 2, 1), 1_000);
        forwarded.expire(NOW);
        assert_eq!(forwarded.len(), 1);
        forwarded.add(NOW + second * 2, of(2, 1, 1), 1_000);
        assert_eq!(names(&mut forwarded), ["r2/1#2", "r2/1#1"]);
    }

    #[test]
    fn each_origin_has_its_turn_and_the_leader_too() {
        let mut forwarded = Forwarded::default();
        let own = replica_session(ReplicaId(2), Incarnation(1), 0);
        assert!(forwarded.is_turn_of(own), "nobody else wants one");
        let queued = [of(3, 1, 1), of(3, 2, 1), of(1, 1, 1), of(1, 2, 1)];
        queued.into_iter().for_each(|batch| forwarded.add(NOW, batch, 1_000));
        let mut turns = Vec::new();
        for _ in 0..6 {
            if forwarded.is_turn_of(own) {
                forwarded.had_turn(own);
                turns.push("r2".to_owned());
            } else {
                turns.push(forwarded.take().unwrap().id().unwrap().to_string());
            }
        }
        assert_eq!(turns, ["r1/1#1", "r2", "r3/1#1", "r1/1#2", "r2", "r3/1#2"]);
        assert_eq!(forwarded.bytes(), 0);
    }

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), number, 1, &[0; 100]);
        builder.finish_as(BatchId { origin: SessionId(1), number }, 1)
    }

    #[test]
    fn a_followers_batch_is_queued_once_and_one_always_has_room() {
        let mut forwarded = Forwarded::default();
        forwarded.add(NOW, batch(1), 10);
        forwarded.add(NOW, batch(2), 10);
        assert_eq!(forwarded.take(), Some(batch(1)), "however large it is");
        assert_eq!(forwarded.take(), None);
        forwarded.add(NOW, batch(1), 10);
        assert_eq!(forwarded.take(), None, "it is in flight");
        forwarded.done(&batch(1));
        assert_eq!(forwarded.len(), 0);
    }

    #[test]
    fn an_origin_that_missed_something_is_not_spared_what_it_sent_before() {
        let (r1, r2) = (ReplicaId(1), ReplicaId(2));
        let of = |number: u64| of(2, number, 1);
        let id = |number: u64| of(number).id().unwrap();
        let mut forwarded = Forwarded::default();
        forwarded.add(NOW, of(1), 1_000);
        assert!(forwarded.is_spared(id(1), r2) && !forwarded.is_spared(id(1), r1));
        assert!(!forwarded.is_spared(id(2), r2), "another leader may have got it");
        forwarded.missed_by(r2);
        forwarded.add(NOW, of(2), 1_000);
        assert!(!forwarded.is_spared(id(1), r2) && forwarded.is_spared(id(2), r2));
    }

    #[test]
    fn what_a_snapshot_may_have_covered_is_not_taken_to_be_in_flight_forever() {
        let mut forwarded = Forwarded::default();
        forwarded.add(NOW, batch(1), 1_000);
        forwarded.take();
        forwarded.add(NOW, batch(2), 1_000);
        forwarded.skipped();
        assert_eq!(forwarded.len(), 1, "the second is still queued");
        forwarded.add(NOW, batch(1), 1_000);
        assert_eq!(forwarded.len(), 2, "and the first may be asked for again");
    }
}
