//! One state machine for several groups: executes the batch whose turn it is.

use std::io::{self, Read};

use synod_wire::{Ballots, Batch, GroupId, Slot};

use super::{Merge, Place, Take};
use crate::{
    Cut, Event, Executor, Frozen, Group, Installed, Outcome, ReadSnapshot, Replaced, SnapshotInfo,
    StateMachine,
};

/// Executes the batches of several groups in their common order. `T` is what comes with a batch and is handed back with
/// the outcomes of its commands: who waits for them.
#[derive(Debug)]
pub struct MergedExecutor<S, T> {
    executor: Executor<S>,
    merge: Merge<Decided<T>>,
}

/// A decided batch that waits for its turn.
#[derive(Debug)]
struct Decided<T> {
    slot: Slot,
    ballots: Ballots,
    with: T,
}

/// What came of a snapshot that was received.
#[derive(Debug)]
pub struct Restored<T> {
    /// What the replicas of the groups are to be told.
    pub events: Vec<(GroupId, Event)>,
    /// What came with batches that the snapshot has brought: their outcomes are not known here.
    pub gone: Vec<T>,
}

impl<S: StateMachine, T> MergedExecutor<S, T> {
    /// An executor in the initial state of groups that began so.
    ///
    /// # Panics
    /// If there is no group.
    #[must_use]
    pub fn new(machine: S, groups: impl IntoIterator<Item = Group>, take: Take) -> MergedExecutor<S, T> {
        MergedExecutor::of(Executor::merged(machine, groups, take))
    }

    /// The same from a state that was restored.
    ///
    /// # Panics
    /// If the executor is one of a single group.
    #[must_use]
    pub fn of(executor: Executor<S>) -> MergedExecutor<S, T> {
        let take = executor.take().expect("it was made for several groups");
        let merge = Merge::new(take, (0u16..).map(GroupId).zip(executor.places()));
        MergedExecutor { executor, merge }
    }

    /// The state that was executed.
    #[must_use]
    pub fn executor(&self) -> &Executor<S> {
        &self.executor
    }

    /// The group that all others wait for, if a batch waits.
    #[must_use]
    pub fn waits_for(&self) -> Option<GroupId> {
        self.merge.waits_for()
    }

    /// Where a group is, as far as it is executed.
    #[must_use]
    pub fn place_of(&self, group: GroupId) -> Place {
        self.executor.place_of(group).unwrap_or_default()
    }

    /// Takes the next batch that a group has decided. A batch that a snapshot has brought is handed back.
    pub fn take(&mut self, group: GroupId, slot: Slot, ballots: Ballots, batch: Batch, with: T) -> Option<T> {
        if slot <= self.executor.applied_of(group) {
            return Some(with);
        }
        self.merge.push(group, batch, Decided { slot, ballots, with });
        None
    }

    /// Executes the batch whose turn it is, if it is here. `awaited` says for which of its commands somebody waits.
    pub fn execute(
        &mut self,
        awaited: impl Fn(&T, usize) -> bool,
    ) -> Option<(GroupId, Slot, T, Vec<Outcome>)> {
        let (group, batch, Decided { slot, ballots, with }) = self.merge.pop()?;
        let outcomes = self.executor.execute_of(group, slot, ballots, &batch, |place| awaited(&with, place));
        Some((group, slot, with, outcomes))
    }

    /// Freezes the state for a snapshot that a group asked for: the slot of that group by which it is named, and how
    /// far all groups are in it. `None`: nothing of the group is executed.
    #[must_use]
    pub fn freeze(&self, group: GroupId) -> Option<(Slot, Cut, Box<dyn Frozen>)> {
        let slot = self.executor.applied_of(group);
        (slot > Slot::ZERO).then(|| (slot, self.executor.cut(), self.executor.freeze()))
    }

    /// Goes on from a snapshot that was received for a group, which `open` opens from its beginning. What was executed
    /// beyond it stays.
    ///
    /// # Errors
    /// Why it cannot be installed; nothing has changed.
    pub fn restore<R: Read>(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        open: impl Fn() -> Result<R, String>,
    ) -> Result<Restored<T>, String> {
        let cut = Cut::read_from(&mut open()?).map_err(|error| error.to_string())?;
        let mut snapshot = open()?;
        let (restored, ()) = self.put(group, info, cut, |executor| executor.restore(&mut snapshot))?;
        Ok(restored)
    }

    /// The same with a snapshot that was read before; also what it replaced, to be dropped on another thread.
    ///
    /// # Errors
    /// Why it cannot be installed; nothing has changed.
    pub fn install(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        snapshot: ReadSnapshot<S>,
    ) -> Result<(Restored<T>, Replaced), String> {
        self.put(group, info, snapshot.cut(), |executor| executor.install(snapshot))
    }

    fn put<P>(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        cut: Option<Cut>,
        put: impl FnOnce(&mut Executor<S>) -> io::Result<P>,
    ) -> Result<(Restored<T>, P), String> {
        let before = self.executor.cut().slots;
        let cut = cut.filter(|cut| cut.slots.len() == before.len());
        let cut = cut.ok_or("it is of other groups than this replica's")?;
        let replaced = put(&mut self.executor).map_err(|error| error.to_string())?;
        let applied = self.executor.cut().slots;
        let passed = |of: GroupId, decided: &Decided<T>| decided.slot <= applied[usize::from(of.0)];
        let gone = self.merge.restart(self.executor.places(), passed);
        let events = (0u16..).map(GroupId).zip(&cut.slots).zip(before).filter_map(|((of, &slot), before)| {
            let info = SnapshotInfo { slot, bytes: info.bytes };
            if slot > before || of == group {
                let installed = Installed { info, ..self.executor.installed(of, info.bytes) };
                Some((of, Event::SnapshotInstalled(Some(Box::new(installed)))))
            } else {
                (slot > Slot::ZERO).then_some((of, Event::SnapshotShared(info)))
            }
        });
        let restored = Restored {
            events: events.collect(),
            gone: gone.into_iter().map(|decided| decided.with).collect(),
        };
        Ok((restored, replaced))
    }
}
