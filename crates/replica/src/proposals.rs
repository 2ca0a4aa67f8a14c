//! Batches of this replica's clients until they are decided, and batches that followers sent here to be ordered.
//!
//! A batch may be lost on its way (a leader crashes with it), so it stays here until it is delivered, and is sent
//! again whenever another replica begins to lead. That can order it twice; the session table executes it once.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use synod_wire::{Ballot, Batch, BatchId, Delivered, Epoch, ReplicaId, SessionId, Time};

use crate::batcher::{Closed, Waiter};

/// What has to order a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// The leader of this ballot.
    Leader(Ballot),
    /// The protocol that runs here in this epoch, whichever replica leads.
    Here(Epoch),
}

/// A batch on its way.
#[derive(Debug)]
struct Outstanding {
    closed: Closed,
    /// What has to order it, and when it was given there.
    sent: Option<(Taker, Time)>,
    /// How often it was sent to that leader again.
    repeats: u32,
}

/// How often the time doubles after which a batch is sent to the same leader again.
const REPEAT_DOUBLINGS_MAX: u32 = 3;

impl Outstanding {
    fn retry_at(&self, retry: Duration) -> Option<Time> {
        let wait = retry.checked_mul(1 << self.repeats.min(REPEAT_DOUBLINGS_MAX)).unwrap_or(Duration::MAX);
        self.sent.map(|(_, at)| at + wait)
    }
}

/// The batches on their way.
#[derive(Debug)]
pub struct Proposals {
    /// The session of this life, which names its batches.
    session: SessionId,
    /// The batches by number, which is the order in which they were made.
    outstanding: BTreeMap<u64, Outstanding>,
    bytes: usize,
    /// The first sequence number of this replica's own session in each outstanding batch.
    own_first: BTreeSet<u64>,
    /// The batches of followers that have to be proposed here.
    forwarded: VecDeque<Batch>,
    forwarded_bytes: usize,
    /// Those of them that are queued here or in flight: when a follower has waited long and sends one again,
    /// ordering it again would only make the others wait longer.
    ordering: BTreeSet<BatchId>,
    /// Those of them that the replica that sent them may not have any more.
    lost_by_origin: BTreeSet<BatchId>,
}

fn own_first(closed: &Closed) -> Option<u64> {
    closed.waiters.iter().find_map(|waiter| match waiter {
        Waiter::Own { sequence, .. } => Some(*sequence),
        Waiter::Client { .. } => None,
    })
}

impl Proposals {
    /// The proposals of a life with this session, none of which is on its way yet.
    pub fn new(session: SessionId) -> Proposals {
        Proposals {
            session,
            outstanding: BTreeMap::new(),
            bytes: 0,
            own_first: BTreeSet::new(),
            forwarded: VecDeque::new(),
            forwarded_bytes: 0,
            ordering: BTreeSet::new(),
            lost_by_origin: BTreeSet::new(),
        }
    }

    /// The lowest number of a batch that is outstanding.
    pub fn lowest_number(&self) -> Option<u64> {
        self.outstanding.first_key_value().map(|(&number, _)| number)
    }

    /// Bytes of batches that are outstanding.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Everything that waits for a batch that is outstanding.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.outstanding.values().flat_map(|batch| &batch.closed.waiters)
    }

    /// Bytes of followers' batches that are queued here.
    pub fn forwarded_bytes(&self) -> usize {
        self.forwarded_bytes
    }

    /// Followers' batches that are queued here or in flight.
    pub fn ordering(&self) -> usize {
        self.ordering.len()
    }

    /// The lowest outstanding sequence number of this replica's own session.
    pub fn lowest_own(&self) -> Option<u64> {
        self.own_first.first().copied()
    }

    /// Batches sent to the leader of `ballot` and not delivered yet.
    pub fn with_leader(&self, ballot: Ballot) -> usize {
        let taker = Taker::Leader(ballot);
        self.outstanding.values().filter(|batch| batch.sent.is_some_and(|(sent, _)| sent == taker)).count()
    }

    /// Adds a batch, which was just given to `taker`, if there is one.
    pub fn add(&mut self, closed: Closed, taker: Option<Taker>, now: Time) {
        self.bytes += closed.batch.bytes().len();
        self.own_first.extend(own_first(&closed));
        let (number, sent) = (closed.number, taker.map(|taker| (taker, now)));
        self.outstanding.insert(number, Outstanding { closed, sent, repeats: 0 });
    }

    /// The next batch to send, or to send again: one that `taker` does not have, or was given longer than
    /// `retry` ago. It counts as given now. `changes` says whether only changes of the group are wanted
    /// (`Some(true)`), only other batches (`Some(false)`), or both.
    pub fn resend(
        &mut self,
        taker: Taker,
        changes: Option<bool>,
        now: Time,
        retry: Duration,
    ) -> Option<Batch> {
        let elsewhere = |batch: &Outstanding| batch.sent.is_none_or(|(sent, _)| sent != taker);
        let overdue = |batch: &Outstanding| batch.retry_at(retry).is_some_and(|at| now >= at);
        let mut wanted = self
            .outstanding
            .values_mut()
            .filter(|batch| changes.is_none_or(|changes| changes == batch.closed.changes_group));
        let batch = wanted.find(|batch| elsewhere(batch) || overdue(batch))?;
        batch.repeats = if elsewhere(batch) { 0 } else { batch.repeats + 1 };
        batch.sent = Some((taker, now));
        Some(batch.closed.batch.clone())
    }

    /// Whether it is time to send a batch to the leader of `ballot` again, which has had it for so long.
    pub fn is_overdue(&self, ballot: Ballot, now: Time, retry: Duration) -> bool {
        let overdue = |batch: &Outstanding| {
            batch.sent.is_some_and(|(sent, _)| sent == Taker::Leader(ballot))
                && batch.retry_at(retry).is_some_and(|at| now >= at)
        };
        self.outstanding.values().any(overdue)
    }

    /// The outstanding change of the group with this place in its session.
    pub fn change(&self, session: SessionId, sequence: u64) -> Option<Batch> {
        let changes = self.outstanding.values().filter(|outstanding| outstanding.closed.changes_group);
        let mut changes = changes.map(|outstanding| &outstanding.closed.batch);
        let asked = |batch: &Batch| {
            batch.commands().any(|command| (command.session, command.sequence) == (session, sequence))
        };
        changes.find(|batch| asked(batch)).cloned()
    }

    /// Takes note that what was sent to a leader may be lost.
    pub fn forget_sent(&mut self) {
        let to_leader = |batch: &&mut Outstanding| matches!(batch.sent, Some((Taker::Leader(_), _)));
        self.outstanding.values_mut().filter(to_leader).for_each(|batch| batch.sent = None);
    }

    /// When the next batch has to be sent to the leader again.
    pub fn retry_at(&self, retry: Duration) -> Option<Time> {
        let to_leader = |batch: &&Outstanding| matches!(batch.sent, Some((Taker::Leader(_), _)));
        self.outstanding.values().filter(to_leader).filter_map(|batch| batch.retry_at(retry)).min()
    }

    /// Takes note that this batch is decided; if it is one of this replica's, returns it with what waits for it.
    pub fn delivered(&mut self, batch: &Batch) -> Option<Closed> {
        let id = batch.id()?;
        self.ordering.remove(&id);
        self.lost_by_origin.remove(&id);
        let ours = id.origin == self.session && !batch.is_reference();
        if ours { self.remove(id.number) } else { None }
    }

    /// Takes note that this batch will not be proposed here; if it is one of this replica's, returns it with
    /// what waits for it.
    pub fn give_up(&mut self, batch: &Batch) -> Option<Closed> {
        self.delivered(batch)
    }

    fn remove(&mut self, number: u64) -> Option<Closed> {
        let Outstanding { closed, .. } = self.outstanding.remove(&number)?;
        self.bytes -= closed.batch.bytes().len();
        if let Some(first) = own_first(&closed) {
            self.own_first.remove(&first);
        }
        Some(closed)
    }

    /// When the oldest command came.
    pub fn oldest(&self) -> Option<Time> {
        self.outstanding.values().map(|batch| batch.closed.born).min()
    }

    /// Gives up the batches whose first command came at or before `born_max`.
    pub fn expire(&mut self, born_max: Time) -> Vec<Closed> {
        let old = self.outstanding.iter().filter(|(_, batch)| batch.closed.born <= born_max);
        let old: Vec<u64> = old.map(|(&number, _)| number).collect();
        old.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Adds a batch that a follower wants to have ordered. Beyond `bytes_max` it is dropped, unless it is the
    /// only one; the follower sends it again.
    pub fn forwarded(&mut self, batch: Batch, bytes_max: usize) {
        let Some(id) = batch.id() else { return };
        let fits = self.forwarded.is_empty() || self.forwarded_bytes + batch.bytes().len() <= bytes_max;
        if fits && self.ordering.insert(id) {
            self.forwarded_bytes += batch.bytes().len();
            self.forwarded.push_back(batch);
        }
    }

    /// The next batch of a follower.
    pub fn take_forwarded(&mut self) -> Option<Batch> {
        let batch = self.forwarded.pop_front()?;
        self.forwarded_bytes -= batch.bytes().len();
        Some(batch)
    }

    /// Takes note that a snapshot took the place of slots that were not delivered here: what is in flight may
    /// have been decided in one of them, and no message will tell.
    pub fn skipped(&mut self) {
        self.ordering = self.forwarded.iter().filter_map(Batch::id).collect();
        self.lost_by_origin.retain(|id| self.ordering.contains(id));
    }

    /// Drops the batches of followers that would be void if they were ordered.
    pub fn drop_void(&mut self, delivered: &Delivered) {
        self.ordering.retain(|&id| !delivered.voids(id));
        self.lost_by_origin.retain(|&id| !delivered.voids(id));
        self.forwarded.retain(|batch| batch.id().is_none_or(|id| !delivered.voids(id)));
        self.forwarded_bytes = self.forwarded.iter().map(|batch| batch.bytes().len()).sum();
    }

    /// Drops the batches of followers, since this replica does not lead any more: followers send them to the
    /// next leader.
    pub fn drop_forwarded(&mut self) {
        self.forwarded.clear();
        self.ordering.clear();
        self.lost_by_origin.clear();
        self.forwarded_bytes = 0;
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

    /// The outstanding batch for which a reference stands.
    pub fn referred_to(&self, reference: &Batch) -> Option<Batch> {
        let id = reference.id().filter(|id| id.origin == self.session)?;
        let batch = &self.outstanding.get(&id.number)?.closed.batch;
        Some(batch).filter(|batch| reference.stands_for(batch)).cloned()
    }

    /// Some outstanding batch, which only a planted bug wants.
    pub fn any(&self) -> Option<Batch> {
        self.outstanding.values().next().map(|outstanding| outstanding.closed.batch.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::BatchBuilder;

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), number, 1, &[0; 100]);
        builder.finish_as(BatchId { origin: SessionId(1), number }, 1)
    }

    #[test]
    fn what_is_outstanding_counts_until_it_is_delivered() {
        let mut proposals = Proposals::new(SessionId(1));
        let len = batch(1).bytes().len();
        for sequence in [1, 2] {
            let waiters = vec![Waiter::Own { sequence, request: None }];
            let (batch, number, born) = (batch(sequence), sequence, Time::ZERO);
            let closed = Closed { batch, number, changes_group: false, waiters, born };
            proposals.add(closed, Some(Taker::Leader(Ballot::ZERO)), Time::ZERO);
        }
        assert_eq!((proposals.bytes(), proposals.lowest_own()), (2 * len, Some(1)));
        assert!(proposals.delivered(&batch(1)).is_some());
        assert_eq!((proposals.bytes(), proposals.lowest_own()), (len, Some(2)));
        assert!(proposals.delivered(&batch(2)).is_some());
        assert_eq!((proposals.bytes(), proposals.lowest_own()), (0, None));
    }

    #[test]
    fn a_followers_batch_is_queued_once_and_one_always_has_room() {
        let mut proposals = Proposals::new(SessionId(1));
        proposals.forwarded(batch(1), 10);
        proposals.forwarded(batch(2), 10);
        assert_eq!(proposals.take_forwarded(), Some(batch(1)), "however large it is");
        assert_eq!(proposals.take_forwarded(), None);
        proposals.forwarded(batch(1), 10);
        assert_eq!(proposals.take_forwarded(), None, "it is in flight");
        proposals.delivered(&batch(1));
        assert_eq!(proposals.ordering(), 0);
    }

    #[test]
    fn a_reference_stands_for_an_outstanding_batch_of_this_life_with_the_same_bytes() {
        let mut proposals = Proposals::new(SessionId(1));
        let closed = |batch: Batch| Closed {
            number: batch.id().unwrap().number,
            batch,
            changes_group: false,
            waiters: Vec::new(),
            born: Time::ZERO,
        };
        proposals.add(closed(batch(1)), None, Time::ZERO);
        let reference = |batch: Batch| batch.reference().unwrap();
        assert_eq!(proposals.referred_to(&reference(batch(1))), Some(batch(1)));
        assert_eq!(proposals.referred_to(&reference(batch(2))), None, "it is not here");
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, &[0; 99]);
        let other_life = builder.finish_as(BatchId { origin: SessionId(2), number: 1 }, 1);
        assert_eq!(proposals.referred_to(&reference(other_life)), None);
        builder.push(SessionId(1), 1, 1, &[0; 99]);
        let other_bytes = builder.finish_as(BatchId { origin: SessionId(1), number: 1 }, 1);
        assert_eq!(proposals.referred_to(&reference(other_bytes)), None);
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
        let mut proposals = Proposals::new(SessionId(1));
        proposals.forwarded(of(1), 1_000);
        assert!(proposals.is_spared(id(1), r2) && !proposals.is_spared(id(1), r1));
        assert!(!proposals.is_spared(id(2), r2), "another leader may have got it");
        proposals.missed_by(r2);
        proposals.forwarded(of(2), 1_000);
        assert!(!proposals.is_spared(id(1), r2) && proposals.is_spared(id(2), r2));
    }

    #[test]
    fn what_a_snapshot_may_have_covered_is_not_taken_to_be_in_flight_forever() {
        let mut proposals = Proposals::new(SessionId(1));
        proposals.forwarded(batch(1), 1_000);
        proposals.take_forwarded();
        proposals.forwarded(batch(2), 1_000);
        proposals.skipped();
        assert_eq!(proposals.ordering(), 1, "the second is still queued");
        proposals.forwarded(batch(1), 1_000);
        assert_eq!(proposals.ordering(), 2, "and the first may be asked for again");
    }
}
