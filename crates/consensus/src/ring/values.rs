//! Batches on their way to the coordinator, and the bytes that come apart from their order.
//!
//! Each replica proposes the batches of its own clients. They go along the ring to the coordinator, which gives each a
//! slot; the bytes ride the first n-1 hops of that walk, whatever the message is called by then, so each link carries
//! them once, and their origin never gets them back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use synod_wire::{Batch, BatchId, Lsn, ReplicaId, SessionId, Time};

use super::{Content, Message, Ring, State, Value, View, coordinator::Waiting, round_trip::Took};
use crate::{Effects, Role, batches::fitting, leadership::Leads, paxos::Paxos, resend::Resend};

/// The most bytes of batches of which no slot is known yet. A batch that is dropped comes again.
const HELD_BYTES_MAX: usize = 64 << 20;

/// The most bytes of several batches in one message of the ring. A member sends a message on once it has all of it: a
/// burst that left as one message would take its time on each link in turn, with all the other links idle.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// So many places of batches that were delivered may stay in the order of those that are held.
const PLACES_SPARE: usize = 64;

/// A batch that was sent more often than this, without being delivered, goes the way of a replica that is not in the
/// ring.
const SENT_MAX: u32 = 3;

/// A batch of this replica's clients that is not delivered.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    batch: Batch,
    since: Time,
    resend: Resend,
    /// How often it was sent in this view; at first it goes round the ring, and later straight to the coordinator.
    sent: u32,
}

/// The batches of this replica's clients, and those of others that passed by, until they are delivered.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    pending: BTreeMap<BatchId, Pending>,
    held: BTreeMap<BatchId, Batch>,
    /// The held batches, in the order in which they came.
    held_order: VecDeque<BatchId>,
    held_bytes: usize,
}

impl Values {
    /// How many batches of this replica's clients are not delivered.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The batch of this name, if it is here.
    pub(super) fn find(&self, name: &Batch) -> Option<&Batch> {
        let id = name.id()?;
        let pending = self.pending.get(&id).map(|pending| &pending.batch);
        pending.or_else(|| self.held.get(&id)).filter(|batch| name.stands_for(batch))
    }

    /// Keeps a batch that passes by. Of more than `count_max` the oldest are dropped.
    pub(super) fn hold(&mut self, batch: &Batch, count_max: usize) {
        let Some(id) = batch.id().filter(|_| !batch.is_reference()) else { return };
        if self.pending.contains_key(&id) || self.held.contains_key(&id) {
            return;
        }
        self.held_bytes += batch.bytes().len();
        self.held.insert(id, batch.clone());
        self.held_order.push_back(id);
        while self.held.len() > count_max || self.held_bytes > HELD_BYTES_MAX {
            let Some(oldest) = self.held_order.pop_front() else { break };
            self.drop_held(oldest);
        }
    }

    fn drop_held(&mut self, id: BatchId) {
        if let Some(batch) = self.held.remove(&id) {
            self.held_bytes -= batch.bytes().len();
        }
        // What was delivered leaves its place in the order behind.
        while self.held_order.front().is_some_and(|id| !self.held.contains_key(id)) {
            self.held_order.pop_front();
        }
        if self.held_order.len() > 2 * self.held.len() + PLACES_SPARE {
            self.held_order.retain(|id| self.held.contains_key(id));
        }
    }

    /// A batch is delivered. Returns how long one of this replica's clients took.
    pub(super) fn delivered(&mut self, id: BatchId, now: Time) -> Option<Took> {
        self.drop_held(id);
        let pending = self.pending.remove(&id)?;
        Some(Took { time: now.since(pending.since), repeated: pending.sent > 1 })
    }

    /// Drops batches that their origin, this replica, has given up: those with a lower number.
    fn give_up_before(&mut self, origin: SessionId, floor: u64) {
        self.pending.retain(|id, _| id.origin != origin || id.number >= floor);
    }

    /// Drops what is delivered, or can never count any more.
    pub(super) fn drop_void(&mut self, is_void: impl Fn(BatchId) -> bool) {
        self.pending.retain(|&id, _| !is_void(id));
        let void: Vec<BatchId> = self.held.keys().copied().filter(|&id| is_void(id)).collect();
        void.into_iter().for_each(|id| self.drop_held(id));
    }

    /// Whether a batch was sent round the ring and straight to the coordinator, and still is not delivered: the ring
    /// that this replica knows may be over, and the coordinator out of reach.
    pub(super) fn is_stuck(&self) -> bool {
        self.pending.values().any(|pending| pending.sent > SENT_MAX)
    }

    /// When the next batch has to be sent again.
    pub(super) fn due(&self) -> Time {
        self.pending.values().map(|pending| pending.resend.at()).min().unwrap_or(Time::NEVER)
    }
}

impl Ring {
    /// Whether a batch is one of this replica's own clients, which it sends again by itself until it is delivered. What
    /// changes the group goes through the leader alone.
    fn is_own(&self, batch: &Batch) -> bool {
        let made_here = |id: BatchId| id.origin.of_replica().is_some_and(|(maker, _)| maker == self.me());
        let proposed_by_leader = batch.is_reference() || batch.reconfiguration().is_some();
        !proposed_by_leader && batch.id().is_some_and(made_here)
    }

    /// Takes a batch of this replica's clients; or, as the coordinator, any that has to be ordered.
    pub(super) fn propose(&mut self, now: Time, batch: Batch, _: bool) {
        if self.room() == 0 {
            return;
        }
        if !self.is_own(&batch) {
            let hops = self.hops();
            self.order(Waiting { batch, hops, safe: false });
            return;
        }
        let id = batch.id().expect("what clients ask for has a name");
        if self.table.voids(id) || self.values.pending.contains_key(&id) {
            return;
        }
        self.values.give_up_before(id.origin, batch.floor());
        let resend = Resend::at_once(now, self.resend_after());
        self.values.pending.insert(id, Pending { batch, since: now, resend, sent: 0 });
    }

    /// How many bytes of batches a message of the ring carries, unless it is a single batch.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.common.options.page_bytes_max.min(MESSAGE_BYTES_MAX)
    }

    /// How many hops bytes go from their origin.
    pub(super) fn hops(&self) -> u8 {
        self.view.as_ref().map_or(0, |view| self.rules().hops_of_bytes(view))
    }

    /// Lets everything that is not delivered go again, along a new ring.
    pub(super) fn send_values_again(&mut self, now: Time) {
        let wait = self.resend_after();
        for pending in self.values.pending.values_mut() {
            (pending.resend, pending.since, pending.sent) = (Resend::at_once(now, wait), now, 0);
        }
    }

    /// Sends the batches of this replica's clients that are new, and those whose time has come again.
    pub(super) fn send_values(&mut self, now: Time, effects: &mut Effects) {
        if self.values.due() > now {
            return;
        }
        let me = self.me();
        let Some(view) = self.view.clone().filter(|_| self.is_in_ring()) else { return };
        if self.role() == Role::Candidate {
            return;
        }
        let (wait, wait_max) = (self.resend_after(), self.common.options.election_timeout);
        let (mut round, mut straight) = (Vec::new(), Vec::new());
        for pending in self.values.pending.values_mut() {
            if pending.resend.is_due(now, wait_max) {
                let list = if pending.sent < 2 { &mut round } else { &mut straight };
                if pending.sent < 2 {
                    pending.resend = Resend::first(now, wait);
                }
                pending.sent += 1;
                list.push(pending.batch.clone());
            }
        }
        let hops = self.hops();
        if matches!(self.state, State::Leader(_)) {
            let all = round.into_iter().chain(straight);
            all.for_each(|batch| self.order(Waiting { batch, hops, safe: false }));
            return;
        }
        if let Some(next) = view.next(me) {
            self.send_pages(next, &view, false, &round, effects);
        }
        // The ring does not carry it: the coordinator gets the bytes, and sends them to all.
        self.send_pages(view.ballot.replica, &view, true, &straight, effects);
    }

    fn send_pages(
        &mut self,
        to: ReplicaId,
        view: &View,
        safe: bool,
        batches: &[Batch],
        effects: &mut Effects,
    ) {
        let (hops, mut rest) = (self.hops(), batches);
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(fitting(rest.iter(), self.message_bytes_max()));
            let value = |batch: &Batch| Value { hops, content: Content::Whole(batch.clone()) };
            let values = page.iter().map(value).collect();
            self.send_behind(to, Message::Values { view: view.clone(), safe, values }, Lsn::ZERO, effects);
            rest = tail;
        }
    }

    /// Batches pass by on their way to the coordinator, or have arrived there.
    pub(super) fn handle_values(
        &mut self,
        now: Time,
        from: ReplicaId,
        view: View,
        safe: bool,
        values: Vec<Value>,
        effects: &mut Effects,
    ) {
        let me = self.me();
        let obeyed = self.follow_ring(now, from, &view, effects);
        self.tell_of_newer_ring(&view, &values, effects);
        if !obeyed {
            return;
        }
        if view.ballot.replica != me {
            // They go on before anything else is done with them.
            if let Some(next) = self.onward(&view) {
                let values = values.iter().map(|value| sent_on(value, safe)).collect();
                self.send_behind(next, Message::Values { view, safe, values }, Lsn::ZERO, effects);
            }
            let count_max = self.held_max();
            let passing = values.iter().filter_map(|value| value.content.whole());
            passing.for_each(|batch| self.values.hold(batch, count_max));
            return;
        }
        // What came along an older ring was stripped for that one.
        let safe = safe || self.view.as_ref() != Some(&view);
        let mut answered: BTreeSet<ReplicaId> = BTreeSet::new();
        for Value { hops, content } in values {
            let Content::Whole(batch) = content else { continue };
            if let Some(id) = batch.id().filter(|&id| self.table.voids(id)) {
                // Its origin missed that it is delivered.
                answered.extend(id.origin.of_replica().map(|(origin, _)| origin));
            } else {
                self.order(Waiting { batch, hops: hops.saturating_sub(1), safe });
            }
        }
        let answered = answered.into_iter().filter(|&id| self.is_reached(id));
        let decided = Message::Decided { ballot: view.ballot, through: self.decided() };
        effects.send_each(answered, decided, Lsn::ZERO);
    }

    /// Tells the origins of these batches of a ring that is newer than the one along which they came: nobody else may
    /// do so, if it leaves them out.
    fn tell_of_newer_ring(&self, old: &View, values: &[Value], effects: &mut Effects) {
        let Some(view) = self.view.as_ref().filter(|view| !old.is_detour() && view.replaces(Some(old)))
        else {
            return;
        };
        let ids = values.iter().filter_map(|value| value.content.batch().id());
        let origins: BTreeSet<ReplicaId> =
            ids.filter_map(|id| id.origin.of_replica().map(|(origin, _)| origin)).collect();
        let told = origins.into_iter().filter(|&id| self.is_reached(id));
        effects.send_each(told, Message::View { view: view.clone() }, Lsn::ZERO);
    }

    /// How many batches of others are kept that have no slot yet.
    fn held_max(&self) -> usize {
        4 * self.common.options.window_max
    }
}

/// What a message carries of a batch that has so many hops to go with its bytes.
pub(super) fn carried(content: &Content, hops: u8, safe: bool) -> Content {
    let needed = hops > 0 || safe;
    match content {
        Content::Whole(batch) if needed => Content::Whole(batch.clone()),
        // What has no name of its own always goes as it is.
        Content::Whole(batch) => {
            batch.reference().map_or_else(|| Content::Whole(batch.clone()), Content::Name)
        }
        // A member before this one lacked the bytes, or they are not needed.
        Content::Name(_) => content.clone(),
    }
}

/// The value as it leaves to the next member: with its bytes as long as they are needed, if they are here.
pub(super) fn sent_on(value: &Value, safe: bool) -> Value {
    let hops = value.hops.saturating_sub(1);
    Value { hops, content: carried(&value.content, hops, safe) }
}
