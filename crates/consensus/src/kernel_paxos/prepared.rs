//! Phase 1 of single slots, as Kernel Paxos 2019 has it (sections III-C and VI-B), beside the one promise of all slots
//! with which every leader begins (section 4.6).
//!
//! | `prepare` | phase 1 of a new slot | messages of a leader for a command, n = 3 |
//! | --- | --- | --- |
//! | `all` | the promise of all slots is one of this slot | 7 |
//! | `ahead` | a window of slots is prepared at the beginning, and each `Accept` prepares a further one (K3, K4) | 7 |
//! | `each` | each slot is prepared when it is needed, as LibPaxos does (K39) | 13 |
//!
//! The last two are for the laboratory: a leader waits for promises that it does not need. It proposes the same values
//! as with the first, since the promise of all slots has told whatever was accepted in them.

use std::{collections::BTreeMap, time::Duration};

use synod_wire::{Slot, Time};

use super::{KernelPaxos, Message, Preparation, State, votes::Said};
use crate::{Effects, ReplicaSet, resend::Resend};

/// Which slots a leader has prepared.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    how: Preparation,
    /// The values of slots through this one were told with the promise of all slots.
    told: Slot,
    /// Slots through this one have been asked for.
    asked: Slot,
    /// The members that promised each of those that are not decided.
    promises: BTreeMap<Slot, ReplicaSet>,
    resend: Option<Resend>,
}

impl Prepared {
    pub(super) fn begin(how: Preparation, told: Slot) -> Prepared {
        Prepared { how, told, asked: told, promises: BTreeMap::new(), resend: None }
    }

    /// Whether something may be proposed in a slot.
    pub(super) fn is_ready(&self, slot: Slot, is_promised: impl Fn(ReplicaSet) -> bool) -> bool {
        self.how == Preparation::All
            || slot <= self.told
            || self.promises.get(&slot).is_some_and(|&promises| is_promised(promises))
    }

    /// The slots through this one that are to be asked for.
    fn ask(&mut self, through: Slot, now: Time, wait: Duration) -> Vec<Slot> {
        if self.how == Preparation::All {
            return Vec::new();
        }
        let slots: Vec<Slot> = (self.asked.0 + 1..=through.0).map(Slot).collect();
        self.asked = self.asked.max(through);
        if !slots.is_empty() {
            self.resend.get_or_insert(Resend::first(now, wait));
        }
        self.promises.extend(slots.iter().map(|&slot| (slot, ReplicaSet::default())));
        slots
    }

    /// The slot that the next proposal prepares with it, if fewer than a window of slots are prepared.
    pub(super) fn further(&mut self, through: Slot, now: Time, wait: Duration) -> Option<Slot> {
        let next = self.asked.next();
        if self.how != Preparation::Ahead || next > through {
            return None;
        }
        self.ask(next, now, wait);
        Some(next)
    }

    /// These members promised a slot.
    pub(super) fn promised(&mut self, slot: Slot, by: ReplicaSet) {
        if let Some(promises) = self.promises.get_mut(&slot) {
            *promises = promises.union(by);
        }
    }

    /// Slots through this one are decided.
    pub(super) fn decided(&mut self, through: Slot) {
        self.told = self.told.max(through);
        self.asked = self.asked.max(through);
        self.promises = self.promises.split_off(&through.next());
    }

    /// When it asks again.
    pub(super) fn resend_at(&self) -> Time {
        self.resend.as_ref().map_or(Time::NEVER, Resend::at)
    }
}

impl KernelPaxos {
    /// Prepares the first window of slots.
    pub(super) fn prepare_window(&mut self, now: Time, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        if leader.prepared.how == Preparation::Ahead {
            let through = Slot(leader.prepared.asked.0 + self.common.options.window_max as u64);
            self.prepare_through(through, now, effects);
        }
    }

    /// Prepares the slots of what waits.
    pub(super) fn prepare_waiting(&mut self, now: Time, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        self.prepare_through(leader.next_slot().prev(), now, effects);
    }

    fn prepare_through(&mut self, through: Slot, now: Time, effects: &mut Effects) {
        let wait = self.common.options.retransmit_after;
        let rules = self.rules();
        let State::Leader(leader) = &mut self.state else { return };
        let ballot = leader.ballot;
        for slot in leader.prepared.ask(through, now, wait) {
            self.common.broadcast(Message::Prepare { ballot, slot }, self.common.promised_lsn, effects);
            if matches!(self.voter.prepare(slot, ballot, &rules), Said::Promises { .. }) {
                leader.prepared.promised(slot, self.common.members.only(self.common.members.me()));
            }
        }
    }

    /// Asks again for promises that have not come.
    pub(super) fn prepare_again(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        let (ballot, prepared) = (leader.ballot, &mut leader.prepared);
        let Some(resend) = &mut prepared.resend else { return };
        if !resend.is_due(now, wait_max) {
            return;
        }
        let members = &self.common.members;
        let rules = self.common.rules();
        let open = prepared.promises.iter().filter(|(_, by)| !rules.is_promised(members, **by));
        let mut asks = false;
        for (&slot, &by) in open {
            asks = true;
            let missing = members.to_those(|id| id != members.me() && !members.contains(by, id));
            effects.send(missing, Message::Prepare { ballot, slot }, self.common.promised_lsn);
        }
        if !asks {
            prepared.resend = None;
        }
    }
}
