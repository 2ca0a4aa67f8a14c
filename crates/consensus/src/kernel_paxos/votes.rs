//! The acceptor of a replica: the C of `kernel/core`, and how ballots and batches look to it.
//!
//! Its ballots are numbers: the round in the high bits and the place of the owner among the members in the low ones, so
//! that they are ordered as ballots are. Its values are names of batches. The learner keeps the batches, and whatever
//! the acceptor tells is a name that has to fit one of them.

use std::sync::Arc;

use synod_kernel_core::{Acceptor, Message, Type, Value};
use synod_wire::{Ballot, Batch, ReplicaId, Slot};

use super::rules::Rules;
use crate::Members;

/// The low bits of a ballot's number, for the owner: there are at most 127 members.
const OWNER_BITS: u32 = 8;
// Every ballot in reach has a number.
const _: () = assert!(Ballot::ROUND_MAX == u64::MAX >> OWNER_BITS);

/// What the acceptor promised and voted for.
#[derive(Clone, Debug)]
pub(super) struct Voter {
    acceptor: Acceptor,
    slots: u64,
    /// Slots through this one are forgotten.
    trimmed: Slot,
    /// The members in their order.
    members: Arc<[ReplicaId]>,
}

/// What the acceptor says of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The ballot is promised there. `accepted` is what was accepted before, in which ballot and with which name.
    Promises { accepted: Option<(Ballot, Value)> },
    /// A higher ballot is promised, or the slot is forgotten, or there is no room for it.
    Nothing,
}

impl Voter {
    /// An acceptor that has said nothing, with room for this many slots.
    pub(super) fn new(members: &Members, slots: u64, delivered: Slot) -> Voter {
        let members = members.ids().into();
        let mut voter = Voter { acceptor: Acceptor::new(slots), slots, trimmed: Slot::ZERO, members };
        voter.trim(delivered);
        voter
    }

    /// Ballots that a peer names are in reach, and so are those in which a replica stands.
    fn number(&self, ballot: Ballot) -> u64 {
        assert!(ballot.is_in_reach(), "{ballot} has no number");
        let place = self.members.binary_search(&ballot.replica).map_or(0, |place| place as u64 + 1);
        ballot.round << OWNER_BITS | place
    }

    fn ballot(&self, number: u64) -> Ballot {
        let place = usize::try_from(number & ((1 << OWNER_BITS) - 1)).unwrap_or(0);
        let owner = place.checked_sub(1).and_then(|place| self.members.get(place));
        Ballot { round: number >> OWNER_BITS, replica: owner.copied().unwrap_or_default() }
    }

    fn about(&self, kind: Type, slot: Slot, ballot: Ballot) -> Message {
        Message { instance: slot.0, ballot: self.number(ballot), ..Message::new(kind) }
    }

    // Phase 1.

    /// Promises a ballot for all slots, if no higher one is promised. Returns the highest slot that was touched.
    pub(super) fn prepare_all(&mut self, ballot: Ballot) -> Slot {
        let message = self.about(Type::PrepareAll, Slot::ZERO, ballot);
        // Ballot 0 is no ballot: nothing is promised yet.
        self.acceptor.handle(message, None).map_or(Slot::ZERO, |(reply, _)| Slot(reply.extra))
    }

    /// Promises a ballot in a slot, and tells what was accepted there.
    pub(super) fn prepare(&mut self, slot: Slot, ballot: Ballot, rules: &Rules) -> Said {
        let message = self.about(Type::Prepare, slot, ballot);
        match self.acceptor.handle(message, None) {
            Ok((reply, value)) if reply.kind() == Some(Type::Promise) && reply.ballot == message.ballot => {
                let has_accepted = rules.has_accepted(reply.value_ballot, reply.length);
                let accepted = value.filter(|_| has_accepted);
                Said::Promises { accepted: accepted.map(|value| (self.ballot(reply.value_ballot), value)) }
            }
            _ => Said::Nothing,
        }
    }

    // Phase 2.

    /// Votes for a proposal, unless a higher ballot is promised or there is no room for its slot. Returns whether it
    /// did, and the further slot if that is promised with it and nothing was accepted there.
    pub(super) fn accept(
        &mut self,
        slot: Slot,
        ballot: Ballot,
        batch: &Batch,
        further: Option<Slot>,
    ) -> (bool, Option<Slot>) {
        let extra = further.map_or(0, |slot| slot.0);
        let message = Message { extra, ..self.about(Type::Accept, slot, ballot) };
        match self.acceptor.handle(message, Some(name(batch))) {
            Ok((reply, _)) if reply.kind() == Some(Type::Accepted) => {
                (true, further.filter(|slot| slot.0 == reply.extra))
            }
            _ => (false, None),
        }
    }

    /// What was accepted in a slot, and which ballot is promised there by now.
    pub(super) fn repeat(&mut self, slot: Slot) -> Option<(Ballot, Ballot, Value)> {
        let (reply, value) = self.acceptor.handle(self.about(Type::Repeat, slot, Ballot::ZERO), None).ok()?;
        Some((self.ballot(reply.ballot), self.ballot(reply.value_ballot), value?))
    }

    // Its memory.

    /// Forgets the slots through this one.
    pub(super) fn trim(&mut self, through: Slot) {
        if through > self.trimmed {
            self.trimmed = through;
            let message = self.about(Type::Trim, through, Ballot::ZERO);
            self.acceptor.handle(message, None).expect("an acceptor can always be trimmed");
        }
    }

    /// The highest slot of which it knows anything.
    pub(super) fn touched(&mut self) -> Slot {
        let hello = Message::new(Type::LearnerHi);
        let (reply, _) = self.acceptor.handle(hello, None).expect("a learner is always answered");
        Slot(reply.extra)
    }

    /// Whether it has room for a slot.
    pub(super) fn has_room(&self, slot: Slot) -> bool {
        slot.0 <= self.trimmed.0 + self.slots
    }
}

/// The name of a batch, by which the acceptor has it: the value that fills a gap, or checksum and length.
pub(super) fn name(batch: &Batch) -> Value {
    if batch.is_noop() {
        return Value::NoOp;
    }
    let mut name = [0; 12];
    name[..4].copy_from_slice(&batch.crc().to_le_bytes());
    name[4..].copy_from_slice(&(batch.bytes().len() as u64).to_le_bytes());
    Value::name(&name)
}

#[cfg(test)]
#[path = "tests/votes.rs"]
mod tests;
