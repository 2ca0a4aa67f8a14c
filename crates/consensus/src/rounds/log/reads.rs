//! Linearizable reads of the log in rounds: a question to all members, and the answers of a quorum.

use synod_wire::{Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{Message, RoundsLog};
use crate::{Effect, Effects, ReadToken, ReplicaSet};

/// The most reads that wait; the client of the oldest has given up long ago.
const READS_MAX: usize = 4096;

/// A read that waits for a quorum.
#[derive(Clone, Debug)]
pub(super) struct Read {
    number: u64,
    token: ReadToken,
    told: ReplicaSet,
    last: Slot,
}

impl RoundsLog {
    /// What is decided was accepted by a majority, and one of any majority says so: a read waits for the highest slot
    /// in which any of these accepted something, and not only for what is known to be decided.
    pub(super) fn read_index(&mut self, now: Time, token: ReadToken, effects: &mut Effects) {
        if self.is_mute() || self.reads.len() >= READS_MAX {
            effects.push(Effect::ReadIndex { token, slot: None });
            return;
        }
        self.reads_asked += 1;
        let number = self.reads_asked;
        self.reads.push_back(Read { number, token, told: ReplicaSet::default(), last: Slot::ZERO });
        self.asked_at = now;
        effects.send(self.members().to_peers(), self.ask(number), Lsn::ZERO);
        self.told(now, self.me(), self.life, number, self.read_through(), effects);
    }

    pub(super) fn ask(&self, number: u64) -> Message {
        Message::Ask { life: self.life, number }
    }

    /// Answers a question of another member.
    pub(super) fn asked(&self, from: ReplicaId, life: Incarnation, number: u64, effects: &mut Effects) {
        effects.send(from, Message::Told { life, number, last: self.read_through() }, Lsn::ZERO);
    }

    /// What is only voted for by others does not count: each of them says so itself.
    fn read_through(&self) -> Slot {
        self.rules.read_through(self.slots.last_accepted(), self.slots.decided())
    }

    /// A member answers. It may have accepted, or know, what this replica lacks while all rest: then a phase brings it.
    pub(super) fn told(
        &mut self,
        now: Time,
        from: ReplicaId,
        life: Incarnation,
        number: u64,
        last: Slot,
        effects: &mut Effects,
    ) {
        if !self.rules.is_own_question(life, self.life) {
            return;
        }
        if last > self.decided_by_others() {
            self.begin_if_resting(now, effects);
        }
        let members = self.slots.members();
        let Some(at) = self.reads.iter().position(|read| read.number == number) else { return };
        let read = &mut self.reads[at];
        (read.told, read.last) = (read.told.union(members.only(from)), read.last.max(last));
        if members.is_quorum(read.told) {
            effects.push(Effect::ReadIndex { token: read.token, slot: Some(read.last) });
            self.reads.remove(at);
        }
    }

    /// When this replica asks again, if reads wait.
    pub(super) fn asks_again_at(&self) -> Time {
        if self.reads.is_empty() {
            Time::NEVER
        } else {
            self.asked_at + self.slots.options().retransmit_after
        }
    }

    pub(super) fn ask_again(&mut self, now: Time, effects: &mut Effects) {
        if now < self.asks_again_at() {
            return;
        }
        self.asked_at = now;
        for read in &self.reads {
            effects.send(self.members().to_peers(), self.ask(read.number), Lsn::ZERO);
        }
    }
}
