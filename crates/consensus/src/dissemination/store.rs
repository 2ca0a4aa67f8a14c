//! The batches that are not delivered yet: which of them are here, and which other replicas hold them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use synod_wire::{Batch, BatchId, Delivered, Floors, Lsn, ReplicaId, SessionId, Slot, Time};

use super::{Bounds, Holdings, holdings::IDS_MAX};
use crate::{Members, ReplicaSet, resend::Resend};

/// A batch that is known to exist, and that may be here.
#[derive(Clone, Debug)]
pub(super) struct KnownBatch {
    /// The batch, if it is here.
    pub(super) batch: Option<Batch>,
    /// The slot through which this replica's own log keeps it.
    pub(super) keep: Slot,
    /// The replicas that hold it durably.
    pub(super) holders: ReplicaSet,
    /// Whether this life made it.
    pub(super) own: bool,
    /// Whether this replica, which leads, has it in its log already.
    proposed: bool,
    /// When it is sent again, if it was made here, or asked for again, if it is not here.
    pub(super) resend: Resend,
    /// Whether it was asked for.
    asked: bool,
    /// The replica to ask next; at first one that spoke of the batch.
    source: Option<ReplicaId>,
}

impl KnownBatch {
    /// Whether it may be proposed.
    fn may_be_proposed(&self, is_quorum: impl Fn(ReplicaSet) -> bool) -> bool {
        self.batch.is_some() && !self.proposed && is_quorum(self.holders)
    }
}

/// The batches that are not delivered yet, and a few that were delivered last.
#[derive(Clone, Debug)]
pub(super) struct Store {
    bounds: Bounds,
    known: BTreeMap<BatchId, KnownBatch>,
    /// How many of the batches this life made.
    own: usize,
    /// Bytes of the batches that are here.
    bytes: usize,
    /// The batches that are here, held by a quorum, and not proposed by this leader.
    stable: BTreeSet<BatchId>,
    /// The batches whose record is not durable yet, in the order of the log.
    undurable: VecDeque<(Lsn, BatchId)>,
    /// The origin whose turn was last.
    turn: SessionId,
    /// Which batches origins have given up, as far as was heard here.
    floors: Floors,
    recent: BTreeMap<BatchId, Batch>,
    /// The recent batches, oldest first.
    recent_order: VecDeque<BatchId>,
    recent_bytes: usize,
}

impl Store {
    pub(super) fn new(bounds: Bounds) -> Store {
        Store {
            bounds,
            known: BTreeMap::new(),
            own: 0,
            bytes: 0,
            stable: BTreeSet::new(),
            undurable: VecDeque::new(),
            turn: SessionId(0),
            floors: Floors::default(),
            recent: BTreeMap::new(),
            recent_order: VecDeque::new(),
            recent_bytes: 0,
        }
    }

    /// Whether there is no room for more batches of this origin.
    pub(super) fn is_full_of(&self, origin: ReplicaId) -> bool {
        let of_origin = |id: BatchId| id.origin.of_replica().is_some_and(|(replica, _)| replica == origin);
        let bytes = |known: &KnownBatch| known.batch.as_ref().map_or(0, |batch| batch.bytes().len());
        // What all origins have is counted as it goes; only where that is much is it told apart.
        let max = self.bounds.held_bytes_max;
        self.bytes > max
            && self.iter().filter(|(id, _)| of_origin(*id)).map(|(_, known)| bytes(known)).sum::<usize>()
                > max
    }

    /// Whether what is known of a batch that a peer speaks of may be kept.
    pub(super) fn may_note(&self, id: BatchId) -> bool {
        self.known.len() < self.bounds.known_max || self.knows(id)
    }

    /// How many batches are known of.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// How many batches of this life are not delivered.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// A batch that is here and not delivered.
    pub(super) fn get(&self, id: BatchId) -> Option<&Batch> {
        self.known.get(&id)?.batch.as_ref()
    }

    /// What is known of a batch.
    pub(super) fn get_mut(&mut self, id: BatchId) -> Option<&mut KnownBatch> {
        self.known.get_mut(&id)
    }

    /// A batch that is here, delivered or not.
    pub(super) fn get_or_recent(&self, id: BatchId) -> Option<&Batch> {
        self.get(id).or_else(|| self.recent.get(&id))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (BatchId, &mut KnownBatch)> {
        self.known.iter_mut().map(|(&id, known)| (id, known))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BatchId, &KnownBatch)> {
        self.known.iter().map(|(&id, known)| (id, known))
    }

    /// Returns what is known of a batch, which some replica knows. It is asked for after `wait`, unless
    /// it comes by itself.
    pub(super) fn note(&mut self, id: BatchId, now: Time, wait: Duration) -> &mut KnownBatch {
        self.known.entry(id).or_insert_with(|| KnownBatch {
            batch: None,
            keep: Slot::ZERO,
            holders: ReplicaSet::default(),
            own: false,
            proposed: false,
            asked: false,
            resend: Resend::first(now, wait),
            source: None,
        })
    }

    /// Takes a batch that came, or was made here; the log will keep it through a slot once this record is durable.
    pub(super) fn hold(
        &mut self,
        batch: Batch,
        keep: Slot,
        lsn: Lsn,
        known: (Time, Duration),
    ) -> &mut KnownBatch {
        let id = batch.id().expect("a batch that is disseminated has a name");
        self.bytes += batch.bytes().len();
        if lsn > Lsn::ZERO {
            self.undurable.push_back((lsn, id));
        }
        let entry = self.note(id, known.0, known.1);
        debug_assert!(entry.batch.is_none(), "a batch is taken in once");
        (entry.batch, entry.keep) = (Some(batch), keep);
        entry
    }

    /// Records what the origin of this batch says of its earlier ones.
    pub(super) fn hear(&mut self, batch: &Batch) {
        self.floors.hear(batch);
    }

    /// Records that this life made a batch, which is here.
    pub(super) fn made(&mut self, id: BatchId) {
        if let Some(known) = self.known.get_mut(&id).filter(|known| !known.own) {
            known.own = true;
            self.own += 1;
        }
    }

    /// Records that this replica holds a batch durably. If a quorum does, and the batch is here, it may be proposed.
    pub(super) fn held_by(&mut self, id: BatchId, who: ReplicaSet, is_quorum: impl Fn(ReplicaSet) -> bool) {
        if let Some(known) = self.known.get_mut(&id) {
            known.holders = known.holders.union(who);
            if known.may_be_proposed(is_quorum) {
                self.stable.insert(id);
            }
        }
    }

    /// Records that a replica has a batch, or had it, so that it can be asked.
    pub(super) fn heard_of(&mut self, id: BatchId, from: ReplicaId) {
        if let Some(known) = self.known.get_mut(&id) {
            known.source.get_or_insert(from);
        }
    }

    /// A replica refers to a batch in a message of the inner protocol, so it has the batch: it is asked next, even if
    /// others spoke of it or were asked without success, and no later than after `wait`.
    pub(super) fn refers_to(&mut self, id: BatchId, from: ReplicaId, now: Time, wait: Duration) {
        if let Some(known) = self.known.get_mut(&id) {
            known.source = Some(from);
            known.resend.no_later_than(now, wait);
        }
    }

    /// The replica to ask for a batch that is not here, for the first time or again: one that spoke of it, then the
    /// leader, which has what it proposes, then the others in turn.
    pub(super) fn source(
        &mut self,
        id: BatchId,
        leader: Option<ReplicaId>,
        members: &Members,
    ) -> Option<ReplicaId> {
        let known = self.known.get_mut(&id)?;
        let peers: Vec<ReplicaId> = members.peers().collect();
        let asked = known.source.or_else(|| peers.first().copied())?;
        let place = peers.iter().position(|&peer| peer == asked).map_or(0, |place| place + 1);
        let first = !std::mem::replace(&mut known.asked, true);
        let leader = leader.filter(|leader| first && *leader != asked && peers.contains(leader));
        known.source = leader.or_else(|| peers.get(place % peers.len().max(1)).copied());
        Some(asked)
    }

    /// Marks records through this one as durable; returns the batches that are durable with them.
    pub(super) fn durable(&mut self, lsn: Lsn) -> Vec<BatchId> {
        let mut durable = Vec::new();
        while let Some(&(record, id)) = self.undurable.front()
            && record <= lsn
        {
            self.undurable.pop_front();
            if self.known.get(&id).is_some_and(|known| known.batch.is_some()) {
                durable.push(id);
            }
        }
        durable
    }

    /// The batches that this replica holds durably and has not delivered.
    pub(super) fn holdings(&self, members: &Members) -> Holdings {
        let me = members.me();
        let held = |known: &KnownBatch| known.batch.is_some() && members.contains(known.holders, me);
        let ids = self.iter().filter(|(_, known)| held(known)).map(|(id, _)| id);
        ids.take(usize::try_from(IDS_MAX).expect("a small number")).collect()
    }

    /// Records that this replica begins to lead, and has these batches in its log: the others may be
    /// proposed if a quorum holds them.
    pub(super) fn begin_to_propose(
        &mut self,
        proposed: &BTreeSet<BatchId>,
        is_quorum: impl Fn(ReplicaSet) -> bool,
    ) {
        self.stable.clear();
        for (&id, known) in &mut self.known {
            known.proposed = proposed.contains(&id);
            if known.may_be_proposed(&is_quorum) {
                self.stable.insert(id);
            }
        }
    }

    /// The next batch to propose: the oldest of each origin in turn, so that no origin waits for another's. One that
    /// its origin has given up is left out, and stays here until it is void.
    pub(super) fn next_stable(&mut self) -> Option<&Batch> {
        let next = loop {
            let after = BatchId { origin: SessionId(self.turn.0.saturating_add(1)), number: 0 };
            let next = self.stable.range(after..).next().or_else(|| self.stable.first()).copied()?;
            self.stable.remove(&next);
            if !self.floors.gave_up(next) {
                break next;
            }
        };
        self.turn = next.origin;
        let known = self.known.get_mut(&next)?;
        known.proposed = true;
        known.batch.as_ref()
    }

    /// Whether a batch is known of.
    pub(super) fn knows(&self, id: BatchId) -> bool {
        self.known.contains_key(&id)
    }

    /// Whether a replica is known to hold a batch durably.
    pub(super) fn is_held_by(&self, id: BatchId, who: ReplicaId, members: &Members) -> bool {
        self.known.get(&id).is_some_and(|known| members.contains(known.holders, who))
    }

    /// Whether a batch has to be acknowledged once its record is durable.
    pub(super) fn waits_for_disk(&self) -> bool {
        !self.undurable.is_empty()
    }

    /// Records that a batch is delivered; returns it, with the slot through which the log keeps it. It can
    /// be asked for, for a while.
    pub(super) fn take_delivered(&mut self, id: BatchId) -> Option<(Batch, Slot)> {
        self.stable.remove(&id);
        let known = self.known.remove(&id)?;
        self.own -= usize::from(known.own);
        let batch = known.batch?;
        self.bytes -= batch.bytes().len();
        self.recent_bytes += batch.bytes().len();
        if self.recent.insert(id, batch.clone()).is_none() {
            self.recent_order.push_back(id);
        }
        while self.recent_order.len() > self.bounds.recent_max
            || self.recent_bytes > self.bounds.recent_bytes_max
        {
            let Some(oldest) = self.recent_order.pop_front() else { break };
            let dropped = self.recent.remove(&oldest);
            self.recent_bytes -= dropped.map_or(0, |batch| batch.bytes().len());
        }
        Some((batch, known.keep))
    }

    /// Drops batches that would be void if they were decided; returns those of which `is_kept` is false for the slot
    /// through which the log keeps them.
    pub(super) fn drop_void(&mut self, table: &Delivered, is_kept: impl Fn(Slot) -> bool) -> Vec<Batch> {
        let mut kept_too_short = Vec::new();
        for (id, known) in self.known.extract_if(.., |&id, _| table.voids(id)) {
            self.own -= usize::from(known.own);
            self.stable.remove(&id);
            if let Some(batch) = known.batch {
                self.bytes -= batch.bytes().len();
                kept_too_short.extend(Some(batch).filter(|_| !is_kept(known.keep)));
            }
        }
        kept_too_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, Incarnation, replica_session};

    fn members() -> Members {
        Members::new([1, 2, 3].map(ReplicaId), ReplicaId(1))
    }

    fn id(origin: u64, number: u64) -> BatchId {
        BatchId { origin: replica_session(ReplicaId(origin), Incarnation(1), 0), number }
    }

    fn batch(id: BatchId) -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, &[0; 100]);
        builder.finish_as(id, 1)
    }

    fn hold(store: &mut Store, id: BatchId, holders: &[u64]) {
        store.hold(batch(id), Slot(9), Lsn::ZERO, (Time::ZERO, Duration::ZERO));
        let members = members();
        let is_quorum = |holders| members.is_quorum(holders);
        holders.iter().for_each(|&who| store.held_by(id, members.only(ReplicaId(who)), is_quorum));
    }

    #[test]
    fn what_a_quorum_holds_is_proposed_one_of_each_origin_in_turn() {
        let mut store = Store::new(Bounds::default());
        (1..=3).for_each(|number| hold(&mut store, id(2, number), &[2, 3]));
        hold(&mut store, id(3, 1), &[3, 1]);
        hold(&mut store, id(3, 2), &[3, 3]);
        store.begin_to_propose(&BTreeSet::from([id(2, 1)]), |holders| members().is_quorum(holders));
        let next = std::iter::from_fn(|| store.next_stable().and_then(Batch::id));
        assert_eq!(next.collect::<Vec<_>>(), [id(2, 2), id(3, 1), id(2, 3)], "one holder twice is one");
    }

    #[test]
    fn what_its_origin_gave_up_is_not_proposed_and_stays_until_it_is_void() {
        let mut store = Store::new(Bounds::default());
        (1..=3).for_each(|number| hold(&mut store, id(2, number), &[2, 3]));
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"");
        let later = builder.finish_as(id(2, 4), 3);
        // Not held by a quorum: this leader has heard of it all the same.
        store.hold(later.clone(), Slot(9), Lsn::ZERO, (Time::ZERO, Duration::ZERO));
        store.hear(&later);
        let next = std::iter::from_fn(|| store.next_stable().and_then(Batch::id));
        assert_eq!(next.collect::<Vec<_>>(), [id(2, 3)]);
        assert!(store.get(id(2, 1)).is_some(), "another leader may have proposed it");
        let mut table = Delivered::default();
        table.deliver(&later);
        store.drop_void(&table, |_| true);
        assert!(store.get(id(2, 1)).is_none());
    }

    #[test]
    fn bytes_count_until_a_batch_is_delivered_or_void_and_it_stays_to_be_had_for_a_while() {
        let mut store = Store::new(Bounds::default());
        let size = batch(id(2, 1)).bytes().len();
        (1..=3).for_each(|number| hold(&mut store, id(2, number), &[2]));
        assert_eq!(store.bytes, 3 * size);
        assert_eq!(store.take_delivered(id(2, 3)), Some((batch(id(2, 3)), Slot(9))));
        assert!(store.get(id(2, 3)).is_none() && store.get_or_recent(id(2, 3)).is_some());
        let mut table = Delivered::default();
        let mut deliver_with_floor = |number, floor| {
            let mut builder = BatchBuilder::identified();
            builder.push(SessionId(1), 1, 1, b"");
            table.deliver(&builder.finish_as(id(2, number), floor));
            table.clone()
        };
        assert_eq!(store.drop_void(&deliver_with_floor(4, 2), |kept| kept >= Slot(9)), []);
        assert_eq!((store.bytes, store.len()), (size, 1), "the first is given up by its origin");
        let table = deliver_with_floor(5, 3);
        assert_eq!(
            store.drop_void(&table, |kept| kept >= Slot(10)),
            [batch(id(2, 2))],
            "the log keeps it through slot 9 only"
        );
    }

    #[test]
    fn the_replica_that_spoke_of_a_batch_is_asked_first_then_the_leader_and_then_the_others() {
        let mut store = Store::new(Bounds::default());
        store.note(id(2, 1), Time::ZERO, Duration::ZERO);
        store.heard_of(id(2, 1), ReplicaId(3));
        let asked = std::iter::from_fn(|| store.source(id(2, 1), None, &members()));
        assert_eq!(asked.take(3).collect::<Vec<_>>(), [3, 2, 3].map(ReplicaId));

        let five = Members::new((1..=5).map(ReplicaId), ReplicaId(1));
        store.note(id(2, 2), Time::ZERO, Duration::ZERO);
        store.heard_of(id(2, 2), ReplicaId(2));
        let asked = std::iter::from_fn(|| store.source(id(2, 2), Some(ReplicaId(4)), &five));
        assert_eq!(asked.take(5).collect::<Vec<_>>(), [2, 4, 5, 2, 3].map(ReplicaId));
    }
}
