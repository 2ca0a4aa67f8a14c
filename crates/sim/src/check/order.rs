//! The common order of merged groups.
//!
//! It is found here from the decided logs alone, another way than the merge finds it: each batch with something to
//! execute has a key, and the next of the order is the one with the least key, once no group can decide a lesser one.

use std::ops::RangeInclusive;

use synod_replica::{Place, Take};
use synod_wire::{Batch, CommandKind, GroupId, Slot};

use crate::per_group::PerGroup;

/// The logs of merged groups, and how far their common order has come.
#[derive(Debug)]
pub(crate) struct Order {
    take: u64,
    logs: PerGroup<Log>,
}

/// What one group decided.
#[derive(Debug)]
struct Log {
    batches: Vec<Batch>,
    /// The place of the group before the first slot, and after each.
    places: Vec<Place>,
    /// The slots with something to execute that are not in the order yet are those from this one on.
    next: usize,
    /// Slots through this one are in the order, or have nothing to execute.
    through: u64,
}

/// The place of a group after a batch: what `Place::after` says, from the commands themselves.
pub(crate) fn place_after(before: Place, batch: &Batch) -> Place {
    let (mut executes, mut target) = (false, 0);
    for command in batch.commands() {
        if command.kind == CommandKind::Skip {
            target = target.max(command.payload[..].try_into().map_or(0, u64::from_le_bytes));
        } else {
            executes = true;
        }
    }
    let mut place = before;
    if executes {
        place =
            Place { position: before.position + 1, batches: before.batches + 1, last: Some(before.position) };
    }
    place.position = place.position.max(target);
    place
}

impl Order {
    /// The order of this many groups that have decided nothing.
    pub(crate) fn new(groups: usize, take: Take) -> Order {
        let log = |_| Log { batches: Vec::new(), places: vec![Place::default()], next: 0, through: 0 };
        Order { take: take.get().into(), logs: (0..groups).map(log).collect() }
    }

    /// A group has decided its next batch.
    pub(crate) fn decided(&mut self, group: GroupId, batch: &Batch) {
        let log = &mut self.logs[group];
        let before = *log.places.last().expect("there is the one before the first slot");
        log.places.push(place_after(before, batch));
        log.batches.push(batch.clone());
    }

    /// Where a group is after a slot.
    pub(crate) fn place(&self, group: GroupId, slot: Slot) -> Place {
        self.logs[group].places[usize::try_from(slot.0).expect("a short log")]
    }

    /// What a group decided in a slot.
    pub(crate) fn batch(&self, group: GroupId, slot: Slot) -> &Batch {
        &self.logs[group].batches[usize::try_from(slot.0 - 1).expect("a short log")]
    }

    /// Whether a decided slot has something to execute, and so a place in the order.
    pub(crate) fn executes(&self, group: GroupId, slot: Slot) -> bool {
        self.place(group, slot).batches > self.place(group, slot.prev()).batches
    }

    /// The next batch of the order, if no later decision can come before it: the slot of a group, after those of the
    /// same group that have nothing to execute.
    pub(crate) fn pop(&mut self) -> Option<(GroupId, RangeInclusive<u64>)> {
        let mut least: Option<((u64, GroupId, u64), GroupId)> = None;
        for (at, log) in self.logs.all_mut().enumerate() {
            while log.next < log.batches.len()
                && log.places[log.next].batches == log.places[log.next + 1].batches
            {
                log.next += 1;
            }
            let group = GroupId(at as u16);
            // The position of the next batch with something to execute, or of the next one to be decided.
            let position = log.places[log.next].position;
            let key = (position / self.take, group, position);
            if least.is_none_or(|(least, ..)| key < least) {
                least = Some((key, group));
            }
        }
        let (_, group) = least?;
        let log = &mut self.logs[group];
        if log.next == log.batches.len() {
            return None;
        }
        log.next += 1;
        let first = log.through + 1;
        log.through = log.next as u64;
        Some((group, first..=log.through))
    }
}
