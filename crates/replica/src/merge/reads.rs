//! Linearizable reads of the common order.

use std::{collections::BTreeMap, mem};

use synod_wire::{GroupId, Slot};

use super::{MergeBug, has};
use crate::ReadId;

/// Reads at one replica of all groups. A read asks each group for the slot that it must see, and waits until all of
/// these are executed: whatever was answered before the read came is decided in some group, in one of these slots or
/// before. `Q` is what is to be read.
#[derive(Debug)]
pub struct MergedReads<Q> {
    /// Queries of the present burst; they share one confirmation of each group.
    burst: Vec<Q>,
    rounds: BTreeMap<ReadId, Round<Q>>,
    last: u64,
}

#[derive(Debug)]
struct Round<Q> {
    /// The slot that each group named.
    slots: Vec<Option<Slot>>,
    queries: Vec<Q>,
}

impl<Q> Default for MergedReads<Q> {
    fn default() -> MergedReads<Q> {
        MergedReads { burst: Vec::new(), rounds: BTreeMap::new(), last: 0 }
    }
}

impl<Q> MergedReads<Q> {
    /// Somebody asks.
    pub fn query(&mut self, query: Q) {
        self.burst.push(query);
    }

    /// The read that all groups are to be asked for, if there are queries.
    pub fn read(&mut self, groups: usize) -> Option<ReadId> {
        if self.burst.is_empty() {
            return None;
        }
        self.last += 1;
        let read = ReadId(self.last);
        let mut slots = vec![None; groups];
        if has(MergeBug::AskOneGroup) {
            slots[1..].fill(Some(Slot::ZERO));
        }
        self.rounds.insert(read, Round { slots, queries: mem::take(&mut self.burst) });
        Some(read)
    }

    /// A group has named its slot. After the last one: the slots of all groups, and the queries that see them.
    pub fn confirmed(&mut self, group: GroupId, read: ReadId, slot: Slot) -> Option<(Vec<Slot>, Vec<Q>)> {
        let round = self.rounds.get_mut(&read)?;
        if has(MergeBug::AskOneGroup) && group != GroupId::FIRST {
            return None;
        }
        round.slots[usize::from(group.0)] = Some(slot);
        if round.slots.contains(&None) {
            return None;
        }
        let Round { slots, queries } = self.rounds.remove(&read)?;
        Some((slots.into_iter().flatten().collect(), queries))
    }

    /// A group cannot confirm a read: the queries that have failed with it.
    pub fn failed(&mut self, read: ReadId) -> Vec<Q> {
        self.rounds.remove(&read).map(|round| round.queries).unwrap_or_default()
    }

    /// All queries that wait for groups.
    pub fn into_queries(self) -> impl Iterator<Item = Q> {
        self.rounds.into_values().flat_map(|round| round.queries).chain(self.burst)
    }
}
