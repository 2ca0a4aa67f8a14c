//! A coordinator without a ring.
//!
//! In a star only the coordinator reaches all others, and no order of the members carries: each slot would go round the
//! ring and be lost, until it is sent again past the ring. So a coordinator whose proposals did not come round leaves
//! the ring. Its view has nobody else in it: each slot begins with the way to each member and back, and the others
//! send their batches straight to it, as replicas do that are not in the ring.
//!
//! Meanwhile it looks for an order that carries. A **probe** is the decision of a slot that it has proposed, which goes
//! round in the order that is tried and comes back; it says nothing new to anybody. The first order whose probe comes
//! back is the next ring. Some probes leave out the learners, or one voter, which may be what only the coordinator
//! reaches; such a member is left out of the ring for as long as the next search would wait, and gets what the others
//! order by catch-up.

use synod_wire::{Lsn, ReplicaId, Slot, Time};

use super::{
    DecisionRun, Message, Ring, State, View,
    coordinator::{Waiting, another_order},
};
use crate::{Effects, leadership::Leads, paxos::Paxos};

/// A search waits at most so many election time-outs before its first probe.
const PATIENCE_MAX: u32 = 16;

/// What a coordinator without a ring looks for.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// The order of the voters that is tried next.
    next: Vec<ReplicaId>,
    /// When it is tried.
    at: Time,
    /// The order of the last probe.
    tried: Vec<ReplicaId>,
    /// How many probes were sent.
    probes: usize,
}

impl Ring {
    /// Leaves a ring that does not carry. `next` is the order that is tried first. A ring that did not last makes the
    /// next search wait longer.
    pub(super) fn leave_ring(&mut self, now: Time, next: Vec<ReplicaId>, effects: &mut Effects) {
        let timeout = self.common().options.election_timeout;
        let me = self.me();
        let State::Leader(leader) = &mut self.state else { return };
        if now.since(leader.ring_at) > timeout * 2 * PATIENCE_MAX {
            leader.patience = 1;
        }
        let at = now + timeout * leader.patience;
        leader.patience = (leader.patience * 2).min(PATIENCE_MAX);
        self.form_ring(now, vec![me], effects);
        if let State::Leader(leader) = &mut self.state {
            leader.search = Some(Search { next, at, tried: Vec::new(), probes: 0 });
        }
    }

    /// Tries one more order of the members that are there, if it is time.
    pub(super) fn search_ring(&mut self, now: Time, present: Vec<ReplicaId>, effects: &mut Effects) {
        let (interval, decided) = (self.common().options.heartbeat_interval, self.decided());
        let members = self.common().members.clone();
        let (voters, learners): (Vec<_>, Vec<_>) =
            present.into_iter().partition(|&id| members.index(id).is_some());
        let State::Leader(leader) = &mut self.state else { return };
        let (ballot, began) = (leader.ballot, leader.began);
        let Some(search) = leader.search.as_mut().filter(|search| now >= search.at) else { return };
        if decided <= began {
            return; // Nothing that it could send round is decided in its ballot.
        }
        search.next.retain(|id| voters.contains(id));
        let is_same = search.next.len() == voters.len();
        let mut order = if is_same { std::mem::take(&mut search.next) } else { voters };
        search.next = another_order(&order, |_| true);
        // Now and then without those that may be the reason: the learners, or one of the voters after the other.
        let count = search.probes;
        search.probes += 1;
        if count % 4 == 3 && order.len() > 2 {
            let without = order.remove(1 + count / 4 % (order.len() - 1));
            // A ring that could lose no member would be worse than none.
            if !members.is_quorum(members.those(|id| order[1..].contains(&id))) {
                order.push(without);
            }
        } else if count % 2 == 0 {
            order.extend(learners);
        }
        search.tried.clone_from(&order);
        search.at = now + interval;
        let view = View::probe(ballot, order);
        let ttl = view.hops() + 1;
        let probe = DecisionRun { view, first: decided, last: decided, ttl };
        self.send_round(Message::Decision(probe), Lsn::ZERO, effects);
    }

    /// A decision came along a way that this coordinator chose for it: the probe of an order, which carries, or a
    /// detour to a member, which has voted. A probe may take longer than the time until the next one.
    pub(super) fn came_back(&mut self, now: Time, from: ReplicaId, view: &View, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        if !view.is_detour() || view.ballot != leader.ballot {
            return;
        }
        // Of two members a detour and a probe are the same.
        let carries = |search: &Search| view.len() > 2 || search.tried == *view.order;
        if !leader.search.as_ref().is_some_and(carries) {
            return self.heard_votes(now, self.common().members.only(from));
        }
        let order = view.order.to_vec();
        let timeout = self.common().options.election_timeout;
        let mut apart = leader.heard_since(now, timeout);
        apart.retain(|id| !order.contains(id));
        let until = now + timeout * leader.patience;
        self.form_ring(now, order, effects);
        if let State::Leader(leader) = &mut self.state {
            leader.apart = (apart, until);
        }
    }

    /// Proposes what was accepted here in these slots to each member by itself.
    pub(super) fn propose_directly(&mut self, first: Slot, page: &[Waiting], effects: &mut Effects) {
        let me = self.me();
        let slots: Vec<Slot> = (first.0..).map(Slot).take(page.len()).collect();
        let State::Leader(leader) = &mut self.state else { return };
        for (&slot, waiting) in slots.iter().zip(page) {
            let origin = waiting.batch.id().and_then(|id| id.origin.of_replica());
            if origin.is_some_and(|(origin, _)| origin != me) {
                leader.duties.awaits(slot);
            }
        }
        for peer in self.common().members.peers().collect::<Vec<_>>() {
            self.resend_straight(peer, &slots, effects);
        }
    }

    /// Tells the members that slots through this one are decided. Round a ring decisions travel by themselves.
    pub(super) fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
        let decided = Message::Decided { ballot: self.common().promised, through };
        self.common().broadcast(decided, Lsn::ZERO, effects);
    }

    /// Tells the members what is decided for the last time: from now on a ring does.
    pub(super) fn announce_at_last(&mut self, effects: &mut Effects) {
        let decided = self.decided();
        if let State::Leader(leader) = &mut self.state {
            leader.duties.announces_no_more(decided);
            self.tell_decided(decided, effects);
        }
    }

    /// Tells the members what is decided while there is no ring that does.
    pub(super) fn announce_directly(&mut self, now: Time, effects: &mut Effects) {
        if self.view.as_ref().is_some_and(View::is_direct) {
            self.announce(now, effects);
        }
    }
}
