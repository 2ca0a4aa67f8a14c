//! The common order of merged groups.
//!
//! It is found here from the decided logs alone, another way than the merge finds it: each batch with something to
//! execute has a key, and the next of the order is the one with the least key, once no group can decide a lesser one.

use std::{collections::BTreeMap, ops::RangeInclusive};

use synod_replica::{Place, Point, Take};
use synod_wire::{Batch, BatchBuilder, CommandKind, GroupId, SessionId, Slot};

use crate::per_group::PerGroup;

/// The logs of merged groups, and how far their common order has come.
#[derive(Debug)]
pub(crate) struct Order {
    take: u64,
    logs: PerGroup<Log>,
    /// How far the order is in each group.
    reached: BTreeMap<GroupId, Followed>,
}

/// What one group decided.
#[derive(Debug)]
struct Log {
    batches: Vec<Batch>,
    /// The place of the group before the first slot, and after each.
    places: Vec<Place>,
    /// Slots through this one are in the order, or have nothing to execute.
    through: u64,
}

/// How far a subscriber is in a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    /// Everything through this slot was given to it, or is not to be.
    slot: usize,
    /// Only batches at these positions are.
    from: u64,
    until: u64,
}

impl Followed {
    pub(crate) fn of(point: Point) -> Followed {
        let slot = usize::try_from(point.slot.0).expect("a short log");
        Followed { slot, from: point.from, until: point.until.unwrap_or(u64::MAX) }
    }

    /// The group leaves where this point says.
    pub(crate) fn leave(&mut self, point: Point) {
        self.until = point.until.unwrap_or(u64::MAX);
    }
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
        let log = |_| Log { batches: Vec::new(), places: vec![Place::default()], through: 0 };
        let whole = |at| (GroupId(at), Followed { slot: 0, from: 0, until: u64::MAX });
        Order {
            take: take.get().into(),
            logs: (0..groups).map(log).collect(),
            reached: (0..groups as u16).map(whole).collect(),
        }
    }

    /// A slot of the first group stands for a backup, and has the first place in the order. It is executed.
    pub(crate) fn begin_with_backup(&mut self) {
        let mut loading = BatchBuilder::new();
        loading.push(SessionId(1), 1, 1, b"");
        self.decided(GroupId::FIRST, &loading.finish());
        self.logs[GroupId::FIRST].through = 1;
        self.reached.entry(GroupId::FIRST).and_modify(|reached| reached.slot = 1);
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
        let mut reached = std::mem::take(&mut self.reached);
        let next = self.next_of(&mut reached);
        self.reached = reached;
        let (group, slot) = next?;
        let log = &mut self.logs[group];
        let first = log.through + 1;
        log.through = slot.0;
        Some((group, first..=slot.0))
    }

    /// The next batch for a subscriber of these groups that is so far: the one with the least key, unless a group can
    /// still decide a lesser one. It counts as given.
    pub(crate) fn next_of(&self, groups: &mut BTreeMap<GroupId, Followed>) -> Option<(GroupId, Slot)> {
        let mut least: Option<((u64, GroupId, u64), GroupId)> = None;
        for (&group, reached) in groups.iter_mut() {
            let log = &self.logs[group];
            let executes = |at: usize| log.places[at].batches < log.places[at + 1].batches;
            while reached.slot < log.batches.len()
                && (!executes(reached.slot) || log.places[reached.slot].position < reached.from)
            {
                reached.slot += 1;
            }
            let position = log.places[reached.slot.min(log.batches.len())].position.max(reached.from);
            let key = (position / self.take, group, position);
            if position < reached.until && least.is_none_or(|(least, _)| key < least) {
                least = Some((key, group));
            }
        }
        let (_, group) = least?;
        let reached = groups.get_mut(&group)?;
        let at = reached.slot;
        (at < self.logs[group].batches.len()).then(|| {
            reached.slot += 1;
            (group, Slot(at as u64 + 1))
        })
    }

    /// How many slots of a group after this one say nothing but skips.
    pub(crate) fn skips_since(&self, group: GroupId, slot: Slot) -> usize {
        let only_skips = |batch: &&Batch| batch.places().skips_to.is_some() && !batch.places().executes;
        let after = usize::try_from(slot.0).expect("a short log");
        self.logs[group].batches.iter().skip(after).filter(only_skips).count()
    }
}
