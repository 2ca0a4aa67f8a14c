//! The disk of one replica: a write-ahead log with group commit, and snapshot files.
//!
//! Only those guarantees of `synod-storage` are modelled on which replicas rely: records become durable in
//! order, and when a sync ends all records are durable that were written before it began. A crash keeps
//! everything durable and any prefix of the rest; the record after that prefix is torn, and recovery cuts it
//! off. With a durability that does not wait for all records, records count as durable once the kernel has
//! them, and the end of the machine leaves those that were waited for and any prefix of the rest.
//!
//! All groups of a node have one log, in the order in which they wrote, and each numbers its own records. A sync makes
//! durable what was written before it began, of all groups.
//!
//! In runs of the family `files` the real files stand beside this model (`files.rs`). The model then tells
//! when records are durable and what must survive; the real files decide what a crash leaves.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use synod_consensus::{Bug, Proofs};
use synod_replica::{LogRecord, salvage_with};
use synod_storage::{Durability, Ending, StorageError};
use synod_wire::{GroupId, Keep, Lsn, Slot};

use crate::{
    check::{Invariant, Violation, demand, slots},
    files::Files,
    per_group::PerGroup,
};

/// The start of a repair's search for proofs.
#[cfg(feature = "planted-bugs")]
fn proofs(planted: Option<Bug>) -> Proofs {
    Proofs::planted(planted)
}

#[cfg(not(feature = "planted-bugs"))]
fn proofs(_: Option<Bug>) -> Proofs {
    Proofs::default()
}

/// A record in the log.
#[derive(Clone, Debug)]
struct Stored {
    /// Its number in the log of all groups.
    number: Lsn,
    group: GroupId,
    /// Its number among those of its group.
    lsn: Lsn,
    keep: Keep,
    bytes: Bytes,
}

/// How far the log has come for one group, in the group's own numbers.
#[derive(Clone, Debug, Default)]
struct OfGroup {
    last: Lsn,
    durable: Lsn,
    /// The last record on which a message rests that has left.
    relied: Lsn,
    /// The numbers, in the log of all groups and in the group's, of the records that may not survive the end of the
    /// machine, and of the one before them.
    written: VecDeque<(Lsn, Lsn)>,
    /// The last slot for which the log had a record, if the end of the machine took that record and left the states.
    votes_lost: Option<Slot>,
    /// The log may lack slots through this one.
    trimmed: Slot,
}

impl OfGroup {
    /// The group's last record, if the log of all groups ends with this one.
    fn at(&self, end: Lsn) -> Lsn {
        let last = self.written.iter().rev().find(|(number, _)| *number <= end);
        last.map_or(Lsn::ZERO, |(_, lsn)| *lsn)
    }

    /// The log ends with this record of all groups, all of which is durable.
    fn cut(&mut self, end: Lsn) {
        let last = self.at(end);
        *self = OfGroup {
            last,
            durable: last,
            relied: Lsn::ZERO,
            votes_lost: self.votes_lost,
            trimmed: self.trimmed,
            ..OfGroup::default()
        };
        self.written.push_back((end, last));
    }

    /// Records through this one of all groups survive the end of the machine.
    fn synced(&mut self, through: Lsn) {
        while self.written.get(1).is_some_and(|(number, _)| *number <= through) {
            self.written.pop_front();
        }
    }
}

/// The disk of one replica. It outlives the replica's lives.
#[derive(Debug, Default)]
pub struct Disk {
    log: VecDeque<Stored>,
    of: PerGroup<OfGroup>,
    last: Lsn,
    durable: Lsn,
    durability: Durability,
    /// Records through this one survive the end of the machine.
    synced: Lsn,
    /// For each state of a group, the record on which a message of the last life rested. The next life must find it, or
    /// a later one.
    promised: BTreeMap<(GroupId, u8), Lsn>,
    /// The last record of the sync in progress.
    syncing: Option<Lsn>,
    /// Whether the disk is stalled: no sync ends until it is mended.
    stalled: bool,
    /// How much longer each sync takes than those of other disks.
    pub(crate) slower: Duration,
    /// Slots of groups through which the log may be trimmed, each once a record is durable.
    trims: VecDeque<(Lsn, GroupId, Slot)>,
    /// Complete snapshot files, by the group and the slot that they cover: the newest, and the one before it.
    snapshots: BTreeMap<(GroupId, Slot), Bytes>,
    /// Whether records were lost, and the replica has not yet made that good.
    pub(crate) lost: bool,
    /// Whether records were lost, and the log does not say so itself.
    pub(crate) amnesia: bool,
    /// The real files, if the run has them. They hold one group.
    files: Option<Files>,
}

/// What a starting replica finds on its disk.
#[derive(Debug)]
pub struct Found {
    /// The log.
    pub records: Vec<(Lsn, LogRecord)>,
    /// The number of the last record ever written, as far as the log tells.
    pub last: Lsn,
    /// The newest snapshot.
    pub snapshot: Option<(Slot, Bytes)>,
}

impl Disk {
    /// An empty disk of a node with this many groups.
    pub fn new(files: Option<Files>, durability: Durability, groups: usize) -> Disk {
        assert!(files.is_none() || groups == 1, "the real files hold one group");
        let of = (0..groups).map(|_| OfGroup::default()).collect();
        Disk { files, durability, of, ..Disk::default() }
    }

    /// Replaces the disk by that of a replica that never ran.
    pub fn wiped(&mut self) -> Disk {
        Disk::new(self.files.as_mut().map(Files::wiped), self.durability, self.of.groups().len())
    }

    /// Has a snapshot on an empty disk before its replica ever runs, as a restore of a backup leaves it.
    pub fn begin_with(&mut self, group: GroupId, slot: Slot, bytes: Bytes) {
        if let Some(files) = &mut self.files {
            files.begin_with(slot, &bytes);
        }
        self.snapshots.insert((group, slot), bytes);
    }

    /// A copy of what is durable now.
    pub fn copy(&mut self) -> Disk {
        let mut copy = Disk {
            log: self.log.clone(),
            of: self.of.clone(),
            trims: self.trims.clone(),
            snapshots: self.snapshots.clone(),
            promised: BTreeMap::new(),
            files: None,
            ..*self
        };
        copy.cut(self.durable);
        copy.files = self.files.as_mut().map(Files::copy);
        copy
    }

    /// The real files, if the run has them.
    pub fn files(&mut self) -> Option<&mut Files> {
        self.files.as_mut()
    }

    /// Starts a process. Returns how many slots a damaged log proved to be decided. The inner error means
    /// that the process ended before it could begin.
    pub fn start(&mut self) -> Result<Result<Option<u64>, StorageError>, Violation> {
        for ((group, key), lsn) in std::mem::take(&mut self.promised) {
            let kept = |stored: &Stored| {
                (stored.group, stored.keep) == (group, Keep::State(key)) && stored.lsn >= lsn
            };
            demand(self.log.iter().any(kept), Invariant::StatesKept, || {
                format!(
                    "the log ends at {}, without state {key} of record {lsn}, on which a message rested",
                    self.last
                )
            })?;
        }
        let newest = self.snapshots.last_key_value().map(|(&(_, slot), bytes)| (slot, bytes.clone()));
        let Some(files) = &mut self.files else { return Ok(Ok(None)) };
        let log = self.log.iter().map(|stored| (stored.lsn, &stored.bytes));
        let started = match files.start(self.durable, log, newest)? {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        let stored = |(lsn, record): (Lsn, LogRecord)| Stored {
            number: lsn,
            group: GroupId::FIRST,
            lsn,
            keep: record.keep(),
            bytes: record.encode().to_bytes(),
        };
        self.log = started.records.into_iter().map(stored).collect();
        (self.last, self.durable) = (started.last, started.last);
        self.of[GroupId::FIRST].written = [(started.last, started.last)].into();
        self.of[GroupId::FIRST].cut(started.last);
        self.snapshots.extend(started.snapshot.map(|(slot, bytes)| ((GroupId::FIRST, slot), bytes)));
        self.amnesia = started.lost;
        self.lost = started.lost || self.lost && !started.unharmed;
        Ok(Ok(started.kept))
    }

    /// Appends a record; it is not durable yet.
    ///
    /// # Panics
    /// If the record is not the next one: replicas number them without gaps.
    pub fn append(&mut self, group: GroupId, lsn: Lsn, record: &LogRecord) {
        let of = &mut self.of[group];
        assert_eq!(lsn, of.last.next(), "records are numbered without gaps");
        self.last = self.last.next();
        of.last = lsn;
        of.written.push_back((self.last, lsn));
        if let Some(files) = &mut self.files {
            files.append(lsn, record);
        }
        let (number, keep, bytes) = (self.last, record.keep(), record.encode().to_bytes());
        self.log.push_back(Stored { number, group, lsn, keep, bytes });
    }

    /// Begins a sync of everything written so far, unless one is under way or there is nothing to do.
    pub fn begin_sync(&mut self) -> bool {
        let begins = self.syncing.is_none() && self.durable < self.last;
        if begins {
            self.syncing = Some(self.last);
        }
        begins
    }

    /// Whether the sync in progress waits for the disk itself.
    #[must_use]
    pub fn waits(&self, planted: Option<Bug>) -> bool {
        let through = self.syncing.unwrap_or_default();
        let due = self.log.iter().filter(|stored| self.durable < stored.number && stored.number <= through);
        let waits = due.map(|stored| stored.keep).any(|keep| self.durability.syncs(keep));
        waits && (planted != Some(Bug::PromiseUnsynced) || self.durability.keeps_votes(Ending::Machine))
    }

    /// A message of a group that rests on its records through this one leaves.
    pub fn relies(&mut self, group: GroupId, after: Lsn) {
        let relied = &mut self.of[group].relied;
        *relied = after.max(*relied);
    }

    /// Ends the sync in progress. Returns the groups of which something became durable, each with the last such record;
    /// `None` if the disk is stalled, so that the sync goes on.
    ///
    /// # Errors
    /// A write or the fsync failed: the replica ends.
    pub fn end_sync(&mut self, planted: Option<Bug>) -> Result<Option<Vec<(GroupId, Lsn)>>, StorageError> {
        if self.stalled {
            return Ok(None);
        }
        let waits = self.waits(planted);
        let Some(through) = self.syncing.take() else { return Ok(None) };
        if let Some(files) = &mut self.files {
            files.commit(through)?;
        }
        self.durable = through.max(self.durable);
        if waits {
            self.synced = self.durable;
        }
        let mut durable = Vec::new();
        for group in self.of.groups() {
            let of = &mut self.of[group];
            let now = of.at(self.durable);
            if now > of.durable {
                of.durable = now;
                durable.push((group, now));
            }
            of.synced(self.synced);
        }
        while let Some(&(lsn, group, through)) = self.trims.front()
            && lsn <= self.durable
        {
            self.trims.pop_front();
            self.forget(group, through);
        }
        Ok(Some(durable))
    }

    /// Whether a sync is in progress.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    /// Stalls the disk, or lets it go on.
    pub fn stall(&mut self, stalled: bool) {
        self.stalled = stalled;
    }

    /// Whether the disk is stalled.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// The last durable record, by its number in the log of all groups.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The last durable record of a group.
    #[must_use]
    pub fn durable_of(&self, group: GroupId) -> Lsn {
        self.of[group].durable
    }

    /// The last record written, by its number in the log of all groups.
    #[must_use]
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// The last record written of a group.
    #[must_use]
    pub fn last_of(&self, group: GroupId) -> Lsn {
        self.of[group].last
    }

    /// The log may forget slots of a group through this one, and states that were written again since, once everything
    /// written so far is durable. Records that are not durable stay.
    pub fn trim(&mut self, group: GroupId, through: Slot) {
        if self.durable < self.last {
            self.trims.push_back((self.last, group, through));
        } else {
            self.forget(group, through);
        }
    }

    fn forget(&mut self, group: GroupId, through: Slot) {
        if let Some(files) = &mut self.files {
            files.trim(through).expect("a log that failed ends its replica");
        }
        self.of[group].trimmed = through.max(self.of[group].trimmed);
        let durable = self.durable;
        let mut seen = [false; 256];
        let mut kept: VecDeque<Stored> = VecDeque::new();
        // The iteration is from the end, so that the newest record of a state comes first.
        for stored in std::mem::take(&mut self.log).into_iter().rev() {
            let needed = stored.group != group
                || match stored.keep {
                    Keep::Slot(slot) => slot > through,
                    Keep::State(key) => {
                        !std::mem::replace(&mut seen[usize::from(key)], stored.number <= durable)
                    }
                };
            if needed || stored.number > durable {
                kept.push_front(stored);
            }
        }
        self.log = kept;
    }

    /// The records of a group, for people and checks.
    ///
    /// # Panics
    /// If a record does not decode, which would be a bug of its codec.
    pub fn records(&self, group: GroupId) -> impl Iterator<Item = (Lsn, LogRecord)> + '_ {
        self.log.iter().filter(move |stored| stored.group == group).map(|stored| {
            let record = LogRecord::decode(stored.bytes.clone()).expect("what was encoded decodes");
            (stored.lsn, record)
        })
    }

    /// The first slot of a group after `held` and before `first` that no record holds.
    #[must_use]
    pub fn missing_between(&self, group: GroupId, held: Slot, first: Slot) -> Option<Slot> {
        let recorded: BTreeSet<u64> = self.records(group).flat_map(|(_, record)| slots(&record)).collect();
        (held.next().0..first.0).find(|slot| !recorded.contains(slot)).map(Slot)
    }

    /// Writes a snapshot file of a group. This many of the group stay, the newest.
    ///
    /// # Errors
    /// It could not be written. Older ones may be gone nevertheless.
    pub fn write_snapshot(
        &mut self,
        group: GroupId,
        slot: Slot,
        bytes: Bytes,
        kept: usize,
    ) -> Result<(), StorageError> {
        if let Some(files) = &mut self.files {
            files.write_snapshot(slot, &bytes, kept)?;
        }
        self.snapshots.insert((group, slot), bytes);
        let slots: Vec<Slot> = self.snapshots_of(group).map(|(slot, _)| slot).collect();
        for &slot in &slots[..slots.len().saturating_sub(kept)] {
            self.snapshots.remove(&(group, slot));
        }
        Ok(())
    }

    /// Writes a snapshot file of merged groups, named by a group and its slot. All others stay.
    pub fn write_merged(&mut self, group: GroupId, slot: Slot, bytes: Bytes) {
        self.snapshots.insert((group, slot), bytes);
    }

    /// All snapshot files, by their names.
    pub fn snapshots(&self) -> impl Iterator<Item = (GroupId, Slot, &Bytes)> {
        self.snapshots.iter().map(|(&(group, slot), bytes)| (group, slot, bytes))
    }

    /// Deletes the snapshot files of a group but those of these slots.
    pub fn keep_snapshots(&mut self, group: GroupId, slots: &[Slot]) {
        self.snapshots.retain(|(of, slot), _| *of != group || slots.contains(slot));
    }

    /// The log of a group may lack slots through this one.
    #[must_use]
    pub fn trimmed(&self, group: GroupId) -> Slot {
        self.of[group].trimmed
    }

    /// Damages the newest snapshot file of a group, so that recovery goes back to the one before it. Records that it
    /// covered may be gone from the log.
    pub fn damage_snapshot(&mut self, group: GroupId) {
        let slot = self.newest_snapshot(group);
        let damaged = self.snapshots.remove(&(group, slot));
        if let Some((files, _)) = self.files.as_mut().zip(damaged) {
            files.harm_snapshot(slot);
        }
        self.lost = true;
    }

    /// The snapshot files of a group, from the oldest to the newest.
    fn snapshots_of(&self, group: GroupId) -> impl DoubleEndedIterator<Item = (Slot, &Bytes)> {
        let of = self.snapshots.range((group, Slot::ZERO)..=(group, Slot(u64::MAX)));
        of.map(|(&(_, slot), bytes)| (slot, bytes))
    }

    /// The slot that the newest snapshot of a group covers; 0 if there is none.
    #[must_use]
    pub fn newest_snapshot(&self, group: GroupId) -> Slot {
        self.snapshots_of(group).next_back().map_or(Slot::ZERO, |(slot, _)| slot)
    }

    /// A snapshot file.
    #[must_use]
    pub fn snapshot(&self, group: GroupId, slot: Slot) -> Option<&Bytes> {
        self.snapshots.get(&(group, slot))
    }

    /// The last slot for which the log had a record of a group, if the end of the machine took that record and left the
    /// states. It is told once.
    pub fn take_votes_lost(&mut self, group: GroupId) -> Option<Slot> {
        self.of[group].votes_lost.take()
    }

    /// Whether the end of the machine took records of some group, and left the states.
    #[must_use]
    pub fn has_lost_votes(&self) -> bool {
        self.of.all().any(|of| of.votes_lost.is_some())
    }

    /// Ends a process or its machine: any prefix of the records that are not durable survives.
    pub fn crash(&mut self, ending: Ending, rng: &mut Rng) {
        if let Some(files) = &mut self.files {
            // The next start finds out what survived.
            files.crash();
            self.syncing = None;
            self.trims.clear();
            return;
        }
        let floor = self.kept_by(ending);
        // Records that the kernel had and nothing waited for are mostly recent, and are lost as a whole.
        let nothing_more = floor < self.durable && rng.u8(0..4) > 0;
        let kept = if nothing_more { floor } else { Lsn(rng.u64(floor.0..=self.last.0)) };
        self.end(ending, kept);
    }

    /// Ends a process or its machine: no record survives that is not durable.
    pub fn crash_hard(&mut self, ending: Ending) {
        self.end(ending, self.kept_by(ending));
    }

    /// The last record that survives such an end.
    fn kept_by(&self, ending: Ending) -> Lsn {
        if self.durability.keeps_votes(ending) { self.durable } else { self.synced }
    }

    fn end(&mut self, ending: Ending, kept: Lsn) {
        let (forgets, keeps_states) =
            (!self.durability.keeps_votes(ending), self.durability.keeps_promises(ending));
        if keeps_states {
            let relied = self.log.iter().filter(|stored| stored.lsn <= self.of[stored.group].relied);
            let state = |stored: &Stored| {
                if let Keep::State(key) = stored.keep {
                    Some(((stored.group, key), stored.lsn))
                } else {
                    None
                }
            };
            self.promised = relied.filter_map(state).collect();
        }
        let last_slot = |disk: &Disk, group| disk.records(group).flat_map(|(_, record)| slots(&record)).max();
        let loses = forgets && keeps_states;
        let held: PerGroup<Option<u64>> =
            self.of.groups().map(|group| loses.then(|| last_slot(self, group)).flatten()).collect();
        self.cut(kept);
        for (group, held) in held.iter() {
            let lost = held.filter(|_| last_slot(self, group) < *held).map(Slot);
            self.of[group].votes_lost = lost;
        }
        if forgets {
            (self.lost, self.amnesia) = (true, true);
        }
    }

    fn cut(&mut self, kept: Lsn) {
        self.log.retain(|stored| stored.number <= kept);
        // Recovery reads what is left and makes it durable before it goes on.
        (self.last, self.durable, self.synced) = (kept, kept, kept);
        self.of.all_mut().for_each(|of| of.cut(kept));
        self.syncing = None;
        self.trims.clear();
    }

    /// A later life remembers less than it should, and knows that.
    fn forget_promises(&mut self) {
        self.promised.clear();
        (self.lost, self.amnesia) = (true, true);
        self.of.all_mut().for_each(|of| of.votes_lost = None);
    }

    /// Loses the log, so that the next life knows only that there was one. `snapshots` says whether those are
    /// lost as well.
    pub fn lose_log(&mut self, snapshots: bool) {
        self.log.clear();
        (self.last, self.durable, self.synced, self.syncing) = (Lsn::ZERO, Lsn::ZERO, Lsn::ZERO, None);
        self.of.all_mut().for_each(|of| *of = OfGroup::default());
        self.trims.clear();
        if snapshots {
            self.snapshots.clear();
        }
        self.forget_promises();
    }

    /// Some records are damaged, and recognised as such.
    pub fn damage_log(&mut self, rng: &mut Rng) {
        self.log.retain(|_| rng.u8(0..4) > 0);
        self.forget_promises();
    }

    /// Damages some records, recognisably. Like a server, repair makes what the rest proves the log, with
    /// numbers after the last one that was used, where snapshots hold so much of each group. Returns how many slots it
    /// says to be decided.
    pub fn repair_log(&mut self, held: &PerGroup<Slot>, rng: &mut Rng, planted: Option<Bug>) -> u64 {
        let lost = if rng.u8(0..4) > 0 { rng.usize(1..4) } else { self.log.len() / 4 };
        for _ in 0..lost {
            if self.log.is_empty() {
                break;
            }
            // Records that replaced an earlier one matter most.
            let replacing = if rng.bool() { self.replacing() } else { Vec::new() };
            let one = rng.choice(replacing).unwrap_or_else(|| rng.usize(..self.log.len()));
            // Records that were written together lie together.
            let first = if rng.bool() { one.saturating_sub(1) } else { one };
            self.log.drain(first..=one);
        }
        let keeps_votes = planted == Some(Bug::RepairKeepsVotes);
        let salvaged = |group| -> Vec<LogRecord> {
            let records: Vec<_> = self.records(group).collect();
            if keeps_votes {
                return records.into_iter().map(|(_, record)| record).collect();
            }
            salvage_with(records, held[group], || proofs(planted))
        };
        let kept: PerGroup<Vec<LogRecord>> = self.of.groups().map(salvaged).collect();
        self.log.clear();
        for (group, records) in kept.iter() {
            records.iter().for_each(|record| self.append(group, self.of[group].last.next(), record));
        }
        self.forget_promises();
        (self.durable, self.synced, self.amnesia) = (self.last, self.last, !keeps_votes);
        for of in self.of.all_mut() {
            of.durable = of.last;
            of.synced(self.last);
        }
        kept.all().flatten().map(|record| slots(record).count() as u64).sum()
    }

    /// The places of records that hold a slot which an earlier record held, too.
    fn replacing(&self) -> Vec<usize> {
        let mut held = BTreeSet::new();
        let replaces = |(at, stored): (usize, &Stored)| {
            let record = LogRecord::decode(stored.bytes.clone()).expect("what was encoded decodes");
            let named = |slot| (stored.group, slot);
            let again = slots(&record).any(|slot| held.contains(&named(slot)));
            held.extend(slots(&record).map(named));
            again.then_some(at)
        };
        self.log.iter().enumerate().filter_map(replaces).collect()
    }

    /// What the replica of a group finds when it starts.
    #[must_use]
    pub fn recover(&self, group: GroupId) -> Found {
        Found {
            records: self.records(group).collect(),
            last: self.of[group].last,
            snapshot: self.snapshots_of(group).next_back().map(|(slot, bytes)| (slot, bytes.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_consensus::multipaxos;
    use synod_wire::{Ballot, Batch, Epoch};

    use super::*;

    fn promised(round: u64) -> LogRecord {
        let record = multipaxos::Record::Promised(Ballot { round, ..Ballot::ZERO }).into();
        LogRecord::Protocol { epoch: Epoch(1), record }
    }

    fn accepted(slot: u64) -> LogRecord {
        let (ballot, first, decided) = (Ballot::ZERO, Slot(slot), Slot::ZERO);
        let batches = [Batch::noop()].into();
        let record = multipaxos::Record::Accepted { ballot, first, decided, batches }.into();
        LogRecord::Protocol { epoch: Epoch(1), record }
    }

    const FIRST: GroupId = GroupId::FIRST;
    const SECOND: GroupId = GroupId(1);

    fn disk() -> Disk {
        Disk::new(None, Durability::default(), 1)
    }

    fn lsns(disk: &Disk) -> Vec<u64> {
        disk.records(FIRST).map(|(lsn, _)| lsn.0).collect()
    }

    #[test]
    fn what_comes_during_a_sync_goes_with_the_next() {
        let mut disk = disk();
        disk.append(FIRST, Lsn(1), &promised(1));
        assert!(disk.begin_sync());
        disk.append(FIRST, Lsn(2), &promised(2));
        assert!(!disk.begin_sync());
        assert_eq!(disk.end_sync(None).unwrap(), Some(vec![(FIRST, Lsn(1))]));
        assert!(disk.begin_sync());
        disk.stall(true);
        assert_eq!(disk.end_sync(None).unwrap(), None);
        disk.stall(false);
        assert_eq!(disk.end_sync(None).unwrap(), Some(vec![(FIRST, Lsn(2))]));
        assert!(!disk.begin_sync());
    }

    #[test]
    fn a_crash_keeps_what_is_durable_and_some_prefix_of_the_rest() {
        let mut kept = [0; 5];
        for seed in 0..100 {
            let mut disk = disk();
            disk.append(FIRST, Lsn(1), &promised(1));
            disk.begin_sync();
            disk.end_sync(None).unwrap();
            for n in 2..=4 {
                disk.append(FIRST, Lsn(n), &promised(n));
            }
            disk.crash(Ending::Process, &mut Rng::with_seed(seed));
            let found = lsns(&disk);
            assert_eq!(found, (1..=disk.last().0).collect::<Vec<_>>());
            kept[found.len()] += 1;
        }
        assert_eq!(kept[0], 0);
        assert!(kept[1..].iter().all(|&count| count > 0), "{kept:?}");
    }

    #[test]
    fn without_votes_the_end_of_a_machine_leaves_what_was_waited_for_alone() {
        let mut lost = 0;
        for (seed, ending) in (0..50).flat_map(|seed| [(seed, Ending::Process), (seed, Ending::Machine)]) {
            let mut disk = Disk::new(None, Durability::View, 1);
            for (lsn, record) in (1..).zip([accepted(1), promised(1), accepted(2), accepted(3)]) {
                disk.append(FIRST, Lsn(lsn), &record);
                disk.begin_sync();
                assert_eq!(disk.waits(None), lsn == 2);
                disk.end_sync(None).unwrap();
                disk.relies(FIRST, Lsn(lsn));
            }
            disk.crash(ending, &mut Rng::with_seed(seed));
            let forgets = ending == Ending::Machine;
            assert_eq!((disk.amnesia, disk.lost), (forgets, forgets));
            let kept = lsns(&disk).len();
            assert!(if forgets { (2..=4).contains(&kept) } else { kept == 4 }, "{kept} after {ending:?}");
            assert_eq!(disk.take_votes_lost(FIRST), (kept < 4).then_some(Slot(3)));
            lost += u64::from(kept < 4);
            assert!(disk.start().is_ok());
        }
        assert!(lost > 0);
    }

    #[test]
    fn trimming_keeps_later_slots_and_the_latest_state() {
        let mut disk = disk();
        let records = [promised(1), accepted(1), promised(2), accepted(2), accepted(3), promised(3)];
        for (lsn, record) in (1..).zip(&records) {
            disk.append(FIRST, Lsn(lsn), record);
            if lsn == 5 {
                disk.begin_sync();
                disk.end_sync(None).unwrap();
            }
        }
        disk.trim(FIRST, Slot(2));
        assert_eq!(lsns(&disk), [1, 2, 3, 4, 5, 6], "nothing is forgotten before the last record is durable");
        disk.begin_sync();
        disk.append(FIRST, Lsn(7), &promised(4));
        disk.end_sync(None).unwrap();
        assert_eq!(lsns(&disk), [5, 6, 7], "promise 4 is not durable, so promise 3 still matters");
    }

    #[test]
    fn a_damaged_snapshot_leaves_the_one_before_it() {
        let mut disk = disk();
        for slot in 1..=3 {
            disk.write_snapshot(FIRST, Slot(slot), Bytes::from_static(b"state"), 2).unwrap();
        }
        assert!(disk.snapshot(FIRST, Slot(1)).is_none(), "two are kept");
        disk.damage_snapshot(FIRST);
        assert_eq!((disk.newest_snapshot(FIRST), disk.lost), (Slot(2), true));
    }

    #[test]
    fn groups_share_a_log_and_number_their_own_records() {
        for seed in 0..50 {
            let mut disk = Disk::new(None, Durability::default(), 2);
            let order = [FIRST, SECOND, SECOND, FIRST, SECOND];
            let mut last = [0; 2];
            for (at, group) in order.into_iter().enumerate() {
                last[usize::from(group.0)] += 1;
                disk.append(group, Lsn(last[usize::from(group.0)]), &accepted(at as u64));
                if at == 2 {
                    disk.begin_sync();
                }
            }
            assert_eq!(disk.end_sync(None).unwrap(), Some(vec![(FIRST, Lsn(1)), (SECOND, Lsn(2))]));
            // What one group lets go of is no other's.
            disk.trim(SECOND, Slot(9));
            disk.begin_sync();
            disk.append(FIRST, Lsn(3), &accepted(9));
            disk.end_sync(None).unwrap();
            assert_eq!((disk.records(FIRST).count(), disk.records(SECOND).count()), (3, 0));
            disk.append(SECOND, Lsn(4), &accepted(10));
            disk.crash(Ending::Process, &mut Rng::with_seed(seed));
            let ends = (disk.last_of(FIRST).0, disk.last_of(SECOND).0);
            assert!([(2, 3), (3, 3), (3, 4)].contains(&ends), "{ends:?}");
            assert_eq!(disk.recover(SECOND).last, disk.last_of(SECOND));
        }
    }
}
