//! What a replica keeps of a log of which records are lost, and how it goes on from there.
//!
//! Promises and votes may be among what is lost, so the replica has no memory, as if the whole log were gone.
//! But what was decided was decided, whatever else is lost: [`salvage`] finds what the rest of the log
//! proves, and that becomes the new log ([`LogRecord::Decided`]). There are gaps in it. The slots before the
//! first gap are delivered at once; the replica asks others only for the gaps, and takes the rest from its
//! own log in its turn. Only then does it run the current epoch's protocol, as a replica without memory.
//! docs/repair.md has the argument.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use synod_consensus::Proofs;
use synod_wire::{Ballots, Batch, Epoch, Lsn, Slot, Time};

use crate::{Action, Decided, LogRecord, Replica};

/// What the records of a log say although some between them are lost, which shows in their numbers: what was
/// decided after slot `base`, which a snapshot covers, and which epoch was entered last. All of it holds
/// whatever the lost records said.
#[must_use]
pub fn salvage(records: impl IntoIterator<Item = (Lsn, LogRecord)>, base: Slot) -> Vec<LogRecord> {
    salvage_with(records, base, Proofs::default)
}

/// Does what [`salvage`] does, with what an epoch's proofs begin with.
#[doc(hidden)]
#[must_use]
pub fn salvage_with(
    records: impl IntoIterator<Item = (Lsn, LogRecord)>,
    base: Slot,
    begin: impl Fn() -> Proofs,
) -> Vec<LogRecord> {
    let mut proofs: BTreeMap<Epoch, Proofs> = BTreeMap::new();
    // Records that say by themselves in which slot they count, or in which epoch.
    let mut certain: BTreeMap<Slot, LogRecord> = BTreeMap::new();
    let mut trimmed = Slot::ZERO;
    let mut entered = None;
    let mut expected = None;
    for (lsn, record) in records {
        if expected.is_some_and(|expected| expected != lsn) {
            proofs.values_mut().for_each(Proofs::skip);
        }
        expected = Some(lsn.next());
        match record {
            LogRecord::Protocol { epoch, record } => {
                proofs.entry(epoch).or_insert_with(&begin).read(&record);
            }
            LogRecord::Entered { group, amnesia } => {
                if amnesia {
                    // Records were lost before this one.
                    proofs.values_mut().for_each(Proofs::skip);
                }
                entered = entered
                    .take()
                    .filter(|entered: &crate::Group| entered.epoch > group.epoch)
                    .or(Some(group));
            }
            LogRecord::Trimmed(slot) => {
                // The snapshot may be another replica's, with other values than were accepted here.
                proofs.values_mut().for_each(|proofs| proofs.cover(slot));
                trimmed = trimmed.max(slot);
            }
            LogRecord::Learned { slot, .. } => {
                proofs.values_mut().for_each(|proofs| proofs.cover(slot));
                certain.insert(slot, record);
            }
            LogRecord::Decided { slot, .. } => {
                certain.entry(slot).or_insert(record);
            }
            // Each slot that is kept says in which ballots it was decided.
            LogRecord::Ended { .. } => {}
        }
    }
    let mut kept = Vec::new();
    kept.extend(entered.map(|group| LogRecord::Entered { group, amnesia: true }));
    if trimmed > Slot::ZERO {
        kept.push(LogRecord::Trimmed(trimmed));
    }
    let learned: std::collections::BTreeSet<Slot> = certain.keys().copied().collect();
    kept.extend(certain.into_values().filter(|record| slot_of(record) > base));
    for (epoch, proofs) in proofs {
        let decided = proofs.into_decided().into_iter();
        // After the end of its epoch a decision is void, so one slot may have been decided in several epochs.
        kept.extend(
            decided
                .filter(|(slot, _)| *slot > base && !learned.contains(slot))
                .map(|(slot, (ballots, batch))| LogRecord::Decided { epoch, slot, ballots, batch }),
        );
    }
    kept.sort_by_key(slot_of);
    kept
}

/// The slot that a record is about; records that are about none come first.
fn slot_of(record: &LogRecord) -> Slot {
    match record {
        LogRecord::Learned { slot, .. } | LogRecord::Decided { slot, .. } => *slot,
        _ => Slot::ZERO,
    }
}

/// Decided slots of this replica's own log that wait for slots before them, which were lost. There are no
/// more than the log holds.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    /// What each epoch decided in a slot, which counts if the slot belongs to that epoch.
    slots: BTreeMap<(Slot, Epoch), Decided>,
}

impl Salvaged {
    pub(crate) fn insert(&mut self, epoch: Epoch, slot: Slot, ballots: Ballots, batch: Batch) {
        self.slots.insert((slot, epoch), Decided { ballots, batch });
    }

    /// The last slot in which something waits.
    pub(crate) fn last(&self) -> Slot {
        self.slots.last_key_value().map_or(Slot::ZERO, |((slot, _), _)| *slot)
    }

    /// What waits in the slot with which `epoch` goes on, or begins.
    pub(crate) fn take(&mut self, slot: Slot, epoch: Epoch) -> Option<Decided> {
        self.slots.remove(&(slot, epoch))
    }

    /// Drops what does not wait any more, when everything through `delivered` is delivered and `epoch` goes
    /// on after it. Returns whether anything was dropped.
    pub(crate) fn release(&mut self, delivered: Slot, epoch: Epoch) -> bool {
        let before = self.slots.len();
        self.slots.retain(|(slot, of), _| *slot > delivered && *of >= epoch);
        self.slots.len() < before
    }

    /// The slots in which something waits that will be taken, since it is of the epoch that goes on now.
    pub(crate) fn runs(&self, epoch: Epoch) -> VecDeque<Range<Slot>> {
        let mut runs: VecDeque<Range<Slot>> = VecDeque::new();
        for (slot, _) in self.slots.keys().filter(|(_, of)| *of == epoch) {
            match runs.back_mut() {
                Some(run) if run.end == *slot => run.end = slot.next(),
                _ => runs.push_back(*slot..slot.next()),
            }
        }
        runs
    }
}

impl Replica {
    /// What the next slot delivers, if a damaged log says that this batch, or a reference to it, was decided
    /// in it. The reference does not count if the batch was delivered before.
    pub(crate) fn as_delivered(&self, batch: Batch) -> Batch {
        let void = batch.id().is_some_and(|id| self.history.delivered().voids(id));
        let reference = batch.reference().filter(|_| void && batch.reconfiguration().is_none());
        reference.filter(|_| self.group.disseminates()).unwrap_or(batch)
    }

    /// Delivers what this replica's own log holds of slots whose turn has come.
    pub(crate) fn take_salvaged(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut taken = false;
        while !self.is_backlogged() && !self.instance.runs() {
            let slot = self.decided.last().next();
            let Some(Decided { ballots, batch }) = self.salvaged.take(slot, self.group.epoch) else {
                break;
            };
            taken = true;
            let batch = self.as_delivered(batch);
            self.deliver(now, slot, ballots, batch, actions);
            self.carry_out(now, actions);
            // What waits there may have been void.
            self.salvaged.release(self.decided.last(), self.group.epoch);
            self.begin(now, false);
            self.carry_out(now, actions);
        }
        if taken {
            self.watch_salvaged();
        }
    }

    /// Forgets what is delivered or void of what this replica's own log holds, and sees to it that only the
    /// rest is asked for.
    pub(crate) fn watch_salvaged(&mut self) {
        self.salvaged.release(self.decided.last(), self.group.epoch);
        self.catch_up.holds(self.salvaged.runs(self.group.epoch));
    }
}
