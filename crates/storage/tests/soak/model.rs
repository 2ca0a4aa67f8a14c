//! What must survive.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::PathBuf,
};

use bytes::Bytes;
use synod_storage::{Keep, Recovered, RecoveredRecord};
use synod_wire::{Incarnation, Lsn, ReplicaId, Slot};

/// What the replica knows to be durable, and what it does not know yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// Records that were reported durable, each with its place.
    pub(super) records: BTreeMap<Lsn, RecoveredRecord>,
    /// Records that were appended after these and not yet reported durable.
    pub(super) unsure: Vec<RecoveredRecord>,
    pub(super) commits: Vec<Commit>,
    /// Something other than later records proves that records through this one were durable.
    pub(super) marked: Lsn,
    /// Records through this one survive a power failure.
    pub(super) synced: Lsn,
    pub(super) slot: u64,
    pub(super) trimmed: Slot,
    /// Contents that were written for a snapshot, and whether one was reported durable.
    pub(super) snapshots: BTreeMap<Slot, Vec<Vec<u8>>>,
    pub(super) snapshot: Slot,
    pub(super) births: BTreeMap<ReplicaId, u64>,
    /// What the book may hold instead, because a change of it got no answer.
    pub(super) births_unsure: Option<BTreeMap<ReplicaId, u64>>,
    pub(super) group: Option<Bytes>,
    pub(super) groups_unsure: Vec<Bytes>,
    pub(super) incarnation: Incarnation,
    pub(super) birth: Option<u64>,
    pub(super) salt: u64,
}

impl Model {
    /// The first record through `last` that the log must hold and does not.
    pub(super) fn missing(&self, recovered: &Recovered, last: Lsn) -> Option<Lsn> {
        let there: BTreeSet<Lsn> = recovered.records.iter().map(|record| record.lsn).collect();
        let needed = |(lsn, record): &(&Lsn, &RecoveredRecord)| match record.keep {
            Keep::Slot(slot) => slot > self.trimmed,
            Keep::State(key) => {
                let mut later = self.records.range(lsn.next()..);
                !later.any(|(&at, later)| at <= recovered.last && later.keep == Keep::State(key))
            }
        };
        let mut promised = self.records.range(..=last).filter(needed).map(|(&lsn, _)| lsn);
        promised.find(|lsn| !there.contains(lsn))
    }
}

/// The place of a commit's records. A commit that spans segments counts as one in the last of them.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) last: Lsn,
    pub(super) path: PathBuf,
    pub(super) bytes: Range<usize>,
}
