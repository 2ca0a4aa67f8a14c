//! From each replica to all others: batches, acknowledgements, and questions for what is missing.

use std::collections::BTreeSet;

use synod_wire::{Batch, BatchId, Lsn, ReplicaId, Slot, Time};

use super::{Balanced, Holdings, Message, Record, by_reference};
use crate::{Batches, Effects, Input, batches::fitting};

impl Balanced {
    // Sending.

    /// Takes a batch of this replica's clients, or what the leader has to order as it is.
    pub(super) fn propose(&mut self, now: Time, batch: Batch, awaited: bool, effects: &mut Effects) {
        if !by_reference(&batch) {
            // As every protocol, it takes none where it does not lead.
            let ballot = self.leading();
            self.unnamed.extend(ballot.map(|ballot| (ballot, batch, awaited)));
            return;
        }
        let id = batch.id().expect("a reference names it");
        if self.table.voids(id) {
            return;
        }
        if self.store.get(id).is_none() {
            self.hold(now, batch.clone(), effects);
        }
        self.store.made(id);
        self.outgoing.push(batch);
    }

    /// Writes a record of a batch.
    fn hold(&mut self, now: Time, batch: Batch, effects: &mut Effects) {
        let keep = self.keep();
        let id = batch.id().expect("a batch that is disseminated has a name");
        let (rules, held) = (self.rules(), Record::Held { keep, batch: batch.clone() });
        let lsn = rules.writes(held).map_or(Lsn::ZERO, |record| effects.append(record.into()));
        self.store.hear(&batch);
        self.store.hold(batch, keep, lsn, (now, self.options.retransmit_after));
        self.arrived = true;
        if rules.acknowledges_after(lsn) == Lsn::ZERO {
            self.holds_durably(id);
        }
    }

    /// Sends what this burst disseminates, and what was not acknowledged yet: with it, or by itself.
    pub(super) fn spread(&mut self, now: Time, effects: &mut Effects) {
        self.unacknowledged.sort_unstable();
        self.unacknowledged.dedup();
        let mut held: Holdings = self.unacknowledged.drain(..).collect();
        let outgoing = std::mem::take(&mut self.outgoing);
        let mut rest = &outgoing[..];
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(fitting(rest.iter(), self.options.page_bytes_max));
            let (batches, held) = (page.into(), std::mem::take(&mut held));
            effects.send(self.members.to_peers(), Message::Forward { batches, held }, Lsn::ZERO);
            rest = tail;
        }
        // A replica that missed an acknowledgement hears all of them again after a while: soon if there are no new
        // ones, and after an election time-out however many there are.
        let all = now >= self.advertise_at.min(self.advertise_by);
        if all {
            held = self.store.holdings(&self.members);
            self.advertise_by = now + self.options.election_timeout;
        }
        if all || !held.is_empty() {
            self.advertise_at = now + self.options.heartbeat_interval;
        }
        if !held.is_empty() {
            effects.send(self.members.to_peers(), Message::Held { held }, Lsn::ZERO);
        }
    }

    /// Sends this replica's own batches again that some replica is not known to hold, and asks again for
    /// batches that are not here.
    pub(super) fn repeat(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.options.election_timeout;
        let (mut again, mut lacked) = (Vec::new(), Vec::new());
        let n = self.members.count();
        for (id, known) in self.store.iter_mut() {
            let wanted = known.batch.is_none() || known.own && known.holders.len() < n;
            if wanted && known.resend.is_due(now, wait_max) {
                match &known.batch {
                    Some(batch) => again.push((batch.clone(), known.holders)),
                    None => lacked.push(id),
                }
            }
        }
        for peer in self.members.peers().collect::<Vec<_>>() {
            let lacks = |(_, holders): &&(Batch, _)| !self.members.contains(*holders, peer);
            let batches: Vec<Batch> = again.iter().filter(lacks).map(|(batch, _)| batch.clone()).collect();
            self.forward(peer, &batches, effects);
        }
        // What messages wait for is asked for by itself: it is taken in also where there is no room for other batches,
        // which would fill the answer.
        let wanted: BTreeSet<BatchId> = if lacked.is_empty() { BTreeSet::new() } else { self.wanted() };
        let (wanted, others): (Vec<_>, Vec<_>) = lacked.into_iter().partition(|id| wanted.contains(id));
        self.ask(&wanted, effects);
        self.ask(&others, effects);
    }

    /// Sends again, when a session to a peer begins, what may be lost.
    pub(super) fn tell_again(&mut self, now: Time, peer: ReplicaId, effects: &mut Effects) {
        let members = &self.members;
        let lacks =
            self.store.iter().filter(|(_, known)| known.own && !members.contains(known.holders, peer));
        let batches: Vec<Batch> = lacks.filter_map(|(_, known)| known.batch.clone()).collect();
        self.forward(peer, &batches, effects);
        let held = self.store.holdings(&self.members);
        if !held.is_empty() {
            effects.send(peer, Message::Held { held }, Lsn::ZERO);
        }
        // What this peer was asked for may be lost; what others were asked for is not put off.
        let retry = self.options.retransmit_after;
        for (_, known) in self.store.iter_mut().filter(|(_, known)| known.batch.is_none()) {
            known.resend.no_later_than(now, retry);
        }
    }

    fn forward(&self, to: ReplicaId, batches: &[Batch], effects: &mut Effects) {
        let mut rest = batches;
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(fitting(rest.iter(), self.options.page_bytes_max));
            let (batches, held): (Batches, _) = (page.into(), Holdings::default());
            effects.send(to, Message::Forward { batches, held }, Lsn::ZERO);
            rest = tail;
        }
    }

    fn ask(&mut self, lacked: &[BatchId], effects: &mut Effects) {
        let leader = self.inner.status().view.leader;
        let mut asked: Vec<(ReplicaId, BatchId)> = Vec::new();
        for &id in lacked {
            asked.extend(self.store.source(id, leader, &self.members).map(|from| (from, id)));
        }
        asked.sort_unstable();
        for of_one in asked.chunk_by(|(one, _), (other, _)| one == other) {
            let lacked = of_one.iter().map(|&(_, id)| id).collect();
            effects.send(of_one[0].0, Message::Lacks { lacked }, Lsn::ZERO);
        }
    }

    /// When something has to be sent again.
    pub(super) fn due(&self) -> Time {
        let n = self.members.count();
        let wanted = self
            .store
            .iter()
            .filter(|(_, known)| known.batch.is_none() || known.own && known.holders.len() < n);
        let resend = wanted.map(|(_, known)| known.resend.at()).min();
        let advertise = (self.store.len() > 0).then_some(self.advertise_at.min(self.advertise_by));
        resend.into_iter().chain(advertise).min().unwrap_or(Time::NEVER)
    }

    // Receiving.

    pub(super) fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        match message {
            Message::Forward { batches, held } => {
                for batch in batches.iter() {
                    self.handle_batch(now, batch, effects);
                }
                self.handle_held(now, from, &held);
            }
            Message::Held { held } => self.handle_held(now, from, &held),
            Message::Lacks { lacked } => self.handle_lacks(from, &lacked, effects),
            Message::Delivered { decided } => self.elsewhere = self.elsewhere.max(decided),
        }
    }

    fn handle_batch(&mut self, now: Time, batch: &Batch, effects: &mut Effects) {
        let Some(id) = batch.id().filter(|_| by_reference(batch)) else { return };
        if self.table.voids(id) {
            return;
        }
        if self.store.get(id).is_some() {
            // The sender sent it again, so it may have missed that it is here.
            if self.store.is_held_by(id, self.members.me(), &self.members) {
                self.unacknowledged.push(id);
            }
            return;
        }
        let origin = id.origin.of_replica().map(|(replica, _)| replica);
        let full = self.inner.is_congested() || origin.is_some_and(|origin| self.store.is_full_of(origin));
        let known = self.store.may_note(id);
        // A batch that a message waits for is always taken, since the message was taken in already.
        let wanted = || self.parked.iter().any(|parked| refers_to(&parked.message, id));
        if !full && known || wanted() {
            self.hold(now, batch.clone(), effects);
        }
    }

    fn handle_held(&mut self, now: Time, from: ReplicaId, held: &Holdings) {
        let wait = self.options.retransmit_after;
        for id in held.ids() {
            if self.table.voids(id) || !self.store.may_note(id) {
                continue;
            }
            self.store.note(id, now, wait);
            self.store.heard_of(id, from);
            self.note_holder(id, from);
        }
    }

    fn handle_lacks(&mut self, from: ReplicaId, lacked: &Holdings, effects: &mut Effects) {
        let here: Vec<Batch> = lacked.ids().filter_map(|id| self.store.get_or_recent(id)).cloned().collect();
        self.forward(from, &here[..fitting(here.iter(), self.options.bounds.answer_bytes_max)], effects);
        let gone = |id| self.store.get_or_recent(id).is_none() && self.table.voids(id);
        if lacked.ids().any(gone) {
            effects.send(from, Message::Delivered { decided: self.decided() }, Lsn::ZERO);
        }
    }

    /// Marks records through this one as durable: what is held with them can be acknowledged.
    pub(super) fn became_durable(&mut self, lsn: Lsn) {
        for id in self.store.durable(lsn) {
            self.holds_durably(id);
        }
    }

    fn holds_durably(&mut self, id: BatchId) {
        self.note_holder(id, self.members.me());
        self.unacknowledged.push(id);
    }

    /// Records that a replica holds a batch durably.
    fn note_holder(&mut self, id: BatchId, who: ReplicaId) {
        let (members, rules) = (&self.members, self.rules());
        self.store.held_by(id, members.only(who), |holders| rules.is_stable(members, holders));
    }

    // References of the inner protocol.

    /// Takes a message of the inner protocol, which gets it once it may see every reference in it.
    pub(super) fn receive_inner(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: crate::Message,
        effects: &mut Effects,
    ) {
        let lacked = self.lacked_by(&message);
        if self.rules().may_see(&lacked) {
            return self.step_inner(now, Input::Receive { from, message }, effects);
        }
        // A message for which there is no room is lost, as any message may be; its sender sends it again.
        if self.parked.len() < self.options.bounds.parked_max && self.members.index(from).is_some() {
            let wait = self.options.retransmit_after;
            for id in lacked {
                self.store.note(id, now, wait);
                self.store.refers_to(id, from, now, wait);
            }
            self.parked.push_back(super::Parked { from, message, since: now });
        }
    }

    /// The batches to which a message refers and that are not here, though they may count when they are decided.
    fn lacked_by(&self, message: &crate::Message) -> Vec<BatchId> {
        let mut lacked = Vec::new();
        message.body().for_each_batch(&mut |batch| {
            let id = batch.id().filter(|_| batch.is_reference());
            lacked.extend(id.filter(|&id| self.store.get(id).is_none() && !self.table.voids(id)));
        });
        lacked
    }

    /// Gives the inner protocol the messages whose batches have come. They are looked through only where a batch came,
    /// or something was delivered, since the last time.
    pub(super) fn take_parked(&mut self, now: Time, effects: &mut Effects) {
        let timeout = self.options.election_timeout;
        while std::mem::take(&mut self.arrived) {
            for _ in 0..self.parked.len() {
                let Some(parked) = self.parked.pop_front() else { break };
                if self.lacked_by(&parked.message).is_empty() {
                    let super::Parked { from, message, .. } = parked;
                    self.step_inner(now, Input::Receive { from, message }, effects);
                } else {
                    self.parked.push_back(parked);
                }
            }
        }
        while self.parked.front().is_some_and(|parked| now >= parked.since + timeout) {
            self.parked.pop_front();
        }
    }

    /// The batches that messages wait for.
    fn wanted(&self) -> BTreeSet<BatchId> {
        self.parked.iter().flat_map(|parked| self.lacked_by(&parked.message)).collect()
    }

    /// What a peer says was decided in a slot, in the form in which the inner protocol orders it. If the
    /// batch is ordered by reference, a record of it is written first.
    pub(super) fn learn(&mut self, now: Time, slot: Slot, batch: Batch, effects: &mut Effects) -> Batch {
        let Some(reference) = batch.reference().filter(|_| by_reference(&batch)) else { return batch };
        let id = batch.id().expect("it has a reference");
        if slot > self.decided() && self.store.get(id).is_none() && !self.table.voids(id) {
            self.hold(now, batch, effects);
        }
        reference
    }
}

fn refers_to(message: &crate::Message, id: BatchId) -> bool {
    let mut refers = false;
    message.body().for_each_batch(&mut |batch| refers |= batch.id() == Some(id));
    refers
}
