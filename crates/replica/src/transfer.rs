//! Decided slots from one replica to another: what this one asks for, what it answers, and what it does with what
//! comes.

use std::{ops::RangeInclusive, time::Duration};

use synod_wire::{Lsn, ReplicaId, Slot, Time};

use crate::{
    PeerMessage, Replica, StateTransfer,
    catch_up::{Arrived, Ask, Pace},
    decided::Decided,
    events::Action,
};

impl Replica {
    /// Asks for what is missing.
    pub(crate) fn catch_up(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.is_backlogged() || self.reports.is_retired() {
            return;
        }
        self.learn_ahead(now, actions);
        let status = self.protocol_status();
        if self.catch_up.rests(now, status.decided, status.decided_elsewhere) {
            return;
        }
        let (pace, leader) = (self.pace(), self.view.leader);
        for (to, ask) in self.catch_up.next(now, status.decided, status.decided_elsewhere, leader, &pace) {
            let message = match ask {
                Ask::Slots { from, through } => PeerMessage::Fetch { from, through },
                Ask::Chunk { slot, offset } => PeerMessage::FetchChunk { slot, offset },
            };
            actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
        }
    }

    pub(crate) fn pace(&self) -> Pace {
        let consensus = &self.settings.consensus;
        let retry = consensus.election_timeout / 2;
        let delay = match self.settings.state_transfer {
            // A leader proposes nothing new before it has what was decided before it.
            _ if self.proposes_without_leading() && self.leads() => consensus.retransmit_after / 4,
            // Batches come by ways of their own, and are asked for by name first.
            _ if self.proposes_without_leading() => consensus.retransmit_after * 2,
            _ if self.instance.runs() => consensus.heartbeat_interval / 4,
            // With this setting nothing comes by itself.
            StateTransfer::Pull => Duration::ZERO,
            StateTransfer::Eager => retry,
        };
        let fresh = consensus.heartbeat_interval / 4;
        // This is longer than it takes to ask all others, one after the other.
        let forget = consensus.election_timeout * 2;
        let others = u32::try_from(self.group.members.len()).unwrap_or(u32::MAX);
        let lacked = forget.max(delay.saturating_mul(others));
        Pace { delay, retry, fresh, forget, lacked, answer_bytes: self.settings.fetch_bytes_max }
    }

    pub(crate) fn answer_fetch(
        &mut self,
        now: Time,
        to: ReplicaId,
        from: Slot,
        through: Slot,
        actions: &mut Vec<Action>,
    ) {
        let kept = self.decided.first();
        let decided = self.decided.last();
        self.snapshots.slots_asked_for(from, now);
        let batches = self.decided.range(from, through, self.settings.fetch_bytes_max);
        let offer = if batches.is_none() { self.snapshot_offer(from, actions) } else { None };
        let message = offer.unwrap_or_else(|| {
            let batches = batches.unwrap_or_default();
            PeerMessage::Fetched { from, kept, decided, batches }
        });
        actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
    }

    /// Sends a peer a decided slot that it lacks, if that is kept.
    pub(crate) fn push_kept(&self, to: ReplicaId, slot: Slot, actions: &mut Vec<Action>) {
        let batches = self.decided.range(slot, slot, self.settings.fetch_bytes_max);
        if let Some(batches) = batches.filter(|batches| !batches.is_empty()) {
            let message = PeerMessage::Pushed { from: slot, decided: self.decided.last(), batches };
            actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
        }
    }

    /// Takes an answer of a peer that keeps these slots.
    pub(crate) fn fetched(
        &mut self,
        now: Time,
        arrived: Arrived,
        keeps: RangeInclusive<Slot>,
        actions: &mut Vec<Action>,
    ) {
        // In an epoch that is over no other message says how much more there is.
        self.known.hears_of(*keeps.end());
        let (decided, pace) = (self.decided.last(), self.pace());
        self.catch_up.fetched(now, arrived, keeps, decided, &pace);
        self.learn_ahead(now, actions);
    }

    /// Takes slots that a peer, which has decided slots through `last`, sends without being asked.
    pub(crate) fn pushed(&mut self, now: Time, arrived: Arrived, last: Slot, actions: &mut Vec<Action>) {
        self.known.hears_of(last);
        let (decided, pace) = (self.decided.last(), self.pace());
        self.catch_up.pushed(now, arrived, last, decided, &pace);
        self.learn_ahead(now, actions);
    }

    /// Delivers what came, in order, as long as the next slot is here and can be taken.
    fn learn_ahead(&mut self, now: Time, actions: &mut Vec<Action>) {
        loop {
            let slot = self.decided.last().next();
            let Some(Decided { ballots, batch }) = self.catch_up.front(slot).cloned() else { return };
            self.learn(now, slot, ballots, batch, actions);
            if self.decided.last() < slot {
                // The slot cannot be taken yet; it is kept.
                return;
            }
            self.catch_up.delivered(self.decided.last());
        }
    }
}
