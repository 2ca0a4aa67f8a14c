//! Execution where groups are merged into one order: batches in their turn, and snapshots that hold all groups.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::Role;
use synod_host::{Kept, SnapshotBook};
use synod_replica::{
    Cut, Event, Group, MergedExecutor, MergedFile, MergedFiles, Outcome, RequestError, Restored, SnapshotInfo,
};
use synod_wire::{Ballots, Batch, CommandKind, GroupId, ReplicaId, Slot};

use super::{
    FIRST, World,
    lives::Found,
    machine::{Awaited, Executing, Life, Merged, State, Task},
    replaced,
    sealed::{sealed, unsealed},
    waiting::Waiter,
};
use crate::{
    backup::Backup,
    chart::Mark,
    check::{Checked, Invariant, Violation, demand},
    network::between,
    plan::Plan,
    situations::MergeSituation,
};

impl World {
    /// A life begins with what the files on its disk hold of all groups.
    pub(super) fn merged_state(&mut self, of: usize) -> Result<Found, Violation> {
        let (hosting, service) = self.hosting();
        let mut executor = self.unused_executor(FIRST, hosting);
        let disk = &self.machines[of].disk;
        let mut files = MergedFiles::default();
        for (group, slot, bytes) in disk.snapshots() {
            let cut = cut_of(bytes).ok_or_else(|| unsound("a file is damaged, or of one group"))?;
            files.add(MergedFile { cut, group, slot, bytes: bytes.len() as u64 });
        }
        let mut read = 0;
        let snapshots = files.restore_all(&mut executor, |executor, file| {
            let content = disk.snapshot(file.group, file.slot).and_then(unsealed).unwrap_or_default();
            let before = executor.cut();
            executor.restore(&mut &content[..]).map_err(|error| unsound(&error.to_string()))?;
            read += u32::from(executor.cut() != before);
            Ok(true)
        })?;
        for (group, slot) in self.checks.groups().zip(executor.cut().slots) {
            let trimmed = disk.trimmed(group);
            // What it lost and learned again is in the log again.
            let learned = || disk.missing_between(group, slot, trimmed.next()).is_none();
            demand(slot >= trimmed || disk.lost || learned(), Invariant::SnapshotCovers, || {
                let who = of + 1;
                format!("the log of {group} at r{who} is trimmed to slot {trimmed}; its files hold {slot}")
            })?;
        }
        self.see_restart(of, read, &executor.cut().slots);
        let shown = executor.clocked(FIRST);
        let (executor, waiting) = (MergedExecutor::of(executor), Default::default());
        let merged = Merged { executor, waiting, shown };
        let mut state = State::new(Executing::Merged(Box::new(merged)), self.now);
        // How far the state is that the files gave.
        state.ahead = self.checks.groups().collect();
        let book = SnapshotBook::new(self.plan.groups, Some(files));
        Ok(Found { states: [state].into_iter().collect(), book, snapshots, service })
    }

    /// A batch comes to the executor, which executes whatever has its turn then.
    pub(super) fn take_in_turn(
        &mut self,
        of: usize,
        (group, slot): (GroupId, Slot),
        ballots: Ballots,
        batch: Batch,
        waiters: Vec<(usize, Waiter)>,
    ) -> Result<Option<Task>, Violation> {
        let Some(merged) = self.merged(of) else { return Ok(None) };
        merged.waiting.insert((group, slot), Awaited { bytes: batch.bytes().len() as u64, waiters });
        match merged.executor.take(group, slot, ballots, batch, (group, slot)) {
            Some(gone) => self.is_gone(of, gone).map(|()| None),
            None => self.execute_turns(of),
        }
    }

    fn merged(&mut self, of: usize) -> Option<&mut Merged> {
        self.machines[of].life.as_mut()?.state(FIRST).merged()
    }

    /// Executes whatever has its turn, or some of it.
    pub(super) fn execute_turns(&mut self, of: usize) -> Result<Option<Task>, Violation> {
        loop {
            let Some(Merged { executor, waiting, .. }) = self.merged(of) else { return Ok(None) };
            // Every other command as if somebody waited for it, so that replies are compared as well as states.
            let awaited = |of: &(GroupId, Slot), at| {
                let asked = |awaited: &Awaited| awaited.waiters.iter().any(|(place, _)| *place == at);
                at % 2 == 0 || waiting.get(of).is_some_and(asked)
            };
            let Some((group, slot, _, outcomes)) = executor.execute(awaited) else { break };
            let order = executor.executor().cut().order;
            let waiters = self.has_its_turn(of, (group, slot));
            self.line(of, || format!("executes slot {slot} of {group}, through batch {order}"));
            // One that has nothing to execute is not in the order.
            if self.order.as_ref().is_some_and(|known| known.executes(group, slot)) {
                let who = self.machines[of].id;
                self.references[FIRST].executed(who, (group, slot), order, &outcomes)?;
                #[cfg(feature = "kv")]
                self.check_leases(of, order)?;
            }
            self.check_state(of, group)?;
            for (place, waiter) in waiters {
                self.answer_request(of, waiter, outcomes[place].clone())?;
            }
            self.check_guest(of)?;
            if of >= self.plan.replicas {
                self.merges.see(MergeSituation::Joins);
            }
            if self.turn_is_over() {
                self.merges.see(MergeSituation::TurnEnds);
                return Ok(Some(Task::Turns));
            }
        }
        if self.waits_for(of).is_some_and(|group| self.leader_of(group).is_none()) {
            self.merges.see(MergeSituation::LeaderlessGroup);
        }
        Ok(None)
    }

    /// The group that all others wait for at a replica, if a batch waits there.
    pub(super) fn waits_for(&self, of: usize) -> Option<GroupId> {
        let life = self.machines[of].life.as_ref()?;
        match &life.states[FIRST].executing {
            Executing::Alone(_) => None,
            Executing::Merged(merged) => merged.executor.waits_for(),
        }
    }

    /// A batch waits for its turn no longer. Returns those who wait for its outcomes.
    fn has_its_turn(&mut self, of: usize, (group, slot): (GroupId, Slot)) -> Vec<(usize, Waiter)> {
        let Some(life) = &mut self.machines[of].life else { return Vec::new() };
        let state = life.state(FIRST);
        state.executed_more(group);
        let awaited = state.merged().and_then(|merged| merged.waiting.remove(&(group, slot)));
        let Awaited { bytes, waiters } = awaited.unwrap_or_default();
        life.hosted[group].holds.batches -= bytes;
        waiters
    }

    /// A snapshot has brought a batch: its outcomes are not known here.
    fn is_gone(&mut self, of: usize, gone: (GroupId, Slot)) -> Checked {
        for (_, waiter) in self.has_its_turn(of, gone) {
            self.answer_request(of, waiter, Outcome::Error(RequestError::OutcomeUnknown))?;
        }
        Ok(())
    }

    /// A snapshot of all groups is complete and durable.
    pub(super) fn merged_written(
        &mut self,
        of: usize,
        (group, slot): (GroupId, Slot),
        cut: Cut,
        bytes: Bytes,
    ) -> Checked {
        let (time, now) = (self.time(), self.now);
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        // Replicas have heard before of what the executor had installed when the state was frozen.
        let state = life.state(FIRST);
        state.told_at = state.told_at.max(now);
        let told_at = state.told_at;
        if !life.book.may_be_named(group, slot, Some(&cut)) {
            self.line(of, || {
                format!("has a snapshot to slot {slot} of {group} that holds more than a new one")
            });
            self.notice_at(of, told_at, group, Event::SnapshotTaken(None));
            return Ok(());
        }
        let info = SnapshotInfo { slot, bytes: bytes.len() as u64 };
        machine.disk.write_merged(group, slot, bytes);
        let shared = life.book.written(group, info, Some(cut));
        for (group, kept) in life.book.keep(time, group) {
            let Kept::Slots(slots) = kept else { unreachable!("groups that are merged") };
            machine.disk.keep_snapshots(group, &slots);
        }
        self.coverage.snapshots_taken += 1;
        self.note(of, Mark::Note, || format!("has a snapshot to slot {slot} of {group}"));
        for (other, info) in shared {
            self.notice_at(of, told_at, other, Event::SnapshotShared(info));
        }
        self.notice_at(of, told_at, group, Event::SnapshotTaken(Some(info)));
        Ok(())
    }

    /// The received snapshot of a group becomes a file, and the executor is to go on from it.
    pub(super) fn accept_snapshot(&mut self, of: usize, group: GroupId, info: SnapshotInfo) {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return };
        let whole = life.book.received(group, info).filter(|bytes| bytes.len() as u64 == info.bytes);
        let accepted = whole.and_then(|bytes| {
            let bytes: Bytes = bytes.into();
            let file = life.book.accepted(group, info, &mut &unsealed(&bytes)?[..])?;
            Some((file, bytes))
        });
        let Some((file, bytes)) = accepted else {
            self.line(of, || format!("has received a snapshot of {group} that is not what it asked for"));
            self.notice_after(of, Duration::ZERO, group, Event::SnapshotInstalled(None));
            return;
        };
        life.book.named(file);
        machine.disk.write_merged(group, info.slot, bytes);
        self.execution_of(of, group, Task::Install(info));
    }

    /// The executor goes on from a snapshot that was received for a group.
    pub(super) fn install_merged(
        &mut self,
        of: usize,
        group: GroupId,
        info: SnapshotInfo,
    ) -> Result<Option<Task>, Violation> {
        let content = self.machines[of].disk.snapshot(group, info.slot).and_then(unsealed);
        let Some(content) = content else {
            // Newer ones have taken its place meanwhile.
            self.line(of, || format!("has no file of slot {} of {group} any more", info.slot));
            self.tell_in_order(of, vec![(group, Event::SnapshotInstalled(None))]);
            return Ok(None);
        };
        let Some(merged) = self.merged(of) else { return Ok(None) };
        let members = member_ids(merged.executor.executor().group());
        let before = merged.executor.executor().cut();
        let restored = merged.executor.restore(group, info, || Ok(&content[..]));
        let Restored { events, gone } = restored.map_err(|error| {
            unsound(&format!("r{} cannot install slot {} of {group}: {error}", of + 1, info.slot))
        })?;
        let after = merged.executor.executor().cut();
        let has_others = members != member_ids(merged.executor.executor().group());
        demand(after.order >= before.order, Invariant::Monotone, || {
            format!("r{} goes back from batch {} to batch {}", of + 1, before.order, after.order)
        })?;
        if let Some(life) = &mut self.machines[of].life {
            life.book.restored(group, info.slot, true);
            for (group, slot) in self.checks.groups().zip(&after.slots) {
                life.hosted[group].watch.restores(*slot);
                life.state(group).executed_more(group);
            }
            if after.order > before.order {
                replaced(&mut life.service);
            }
        }
        self.coverage.snapshots_installed += 1;
        self.note(of, Mark::Note, || {
            let [held, before] = [&after.slots, &before.slots].map(|slots| text_of(slots));
            format!("installs slot {} of {group}: it has {held}, and had {before}", info.slot)
        });
        let held = Cut::read_from(&mut &content[..]).ok().flatten().unwrap_or_else(|| before.clone());
        self.see_installed(of, group, (&before, &held, &after));
        self.merges.mark(MergeSituation::MembersBySnapshot, has_others);
        self.merges.mark(MergeSituation::GoneWithSnapshot, !gone.is_empty());
        self.check_state(of, group)?;
        self.check_guest(of)?;
        gone.into_iter().try_for_each(|gone| self.is_gone(of, gone))?;
        let rest = self.execute_turns(of)?;
        self.tell_in_order(of, events);
        Ok(rest)
    }

    /// The executor tells replicas something, after all that it has told before.
    fn tell_in_order(&mut self, of: usize, events: Vec<(GroupId, Event)>) {
        let wait = between(&mut self.rng, self.plan.execute.0, self.plan.execute.1);
        let now = self.now;
        let Some(life) = &mut self.machines[of].life else { return };
        let state = life.state(FIRST);
        state.told_at = state.told_at.max(now + wait);
        let told_at = state.told_at;
        for (group, event) in events {
            self.notice_at(of, told_at, group, event);
        }
    }

    /// The last slot of a group that the snapshot files on a disk hold.
    pub(super) fn held_by_files(&self, of: usize, group: GroupId) -> Slot {
        let disk = &self.machines[of].disk;
        if self.order.is_none() {
            return disk.newest_snapshot(group);
        }
        let cuts = disk.snapshots().filter_map(|(_, _, bytes)| cut_of(bytes));
        cuts.map(|cut| cut.slots[usize::from(group.0)]).max().unwrap_or_default()
    }

    /// A node has had groups skip to these positions.
    pub(super) fn see_skips(&mut self, of: usize, skips: &[(GroupId, u64)]) {
        for &(group, target) in skips {
            let earlier = self.skipped.insert((group, target), of);
            if earlier.is_some_and(|earlier| earlier != of) {
                self.merges.see(MergeSituation::TwoCaretakers);
            }
            self.line(of, || format!("has {group} skip to {target}"));
        }
    }

    /// A batch of a merged group was decided.
    pub(super) fn see_batch(&mut self, group: GroupId, slot: Slot) {
        let Some(order) = &self.order else { return };
        let batch = order.batch(group, slot);
        let (places, moved) = (batch.places(), order.place(group, slot) != order.place(group, slot.prev()));
        let skips = batch.commands().any(|command| command.kind == CommandKind::Skip);
        if places.skips_to.is_some() && !moved {
            self.merges.see(MergeSituation::SkipWithoutWeight);
        }
        if places.executes && skips {
            self.merges.see(MergeSituation::SkipAmongCommands);
        }
    }

    /// Reads that all groups have confirmed may wait until one has skipped.
    pub(super) fn see_reads(&mut self, of: usize) {
        let waits = |life: &Life| !life.states[FIRST].reads.is_empty();
        if self.order.is_some() && self.machines[of].life.as_ref().is_some_and(waits) {
            self.merges.see(MergeSituation::ReadWaitsForSkip);
        }
    }

    /// A life began with what this many files held.
    fn see_restart(&mut self, of: usize, read: u32, slots: &[Slot]) {
        let id = self.machines[of].id;
        // A first life begins with a backup, if with anything.
        if read > 0 && self.machines[of].lives > 1 {
            self.merges.see(MergeSituation::RestartFromSnapshot);
            if read > 1 {
                self.merges.see(MergeSituation::RestartFromSeveral);
            }
        }
        let has_state = slots.iter().any(|slot| *slot > Slot::ZERO);
        if has_state && self.checks.all().any(|checks| checks.log.group().member(id).is_none()) {
            self.merges.see(MergeSituation::RemovedRestarts);
        }
    }

    /// A snapshot that holds so much was installed for a group, between these two states.
    fn see_installed(&mut self, of: usize, group: GroupId, (before, held, after): (&Cut, &Cut, &Cut)) {
        for (at, (held, before)) in held.slots.iter().zip(&before.slots).enumerate() {
            if at != usize::from(group.0) && held > before {
                self.merges.see(MergeSituation::MovedOthers);
            }
            if held < before {
                self.merges.see(MergeSituation::HeadKept);
            }
        }
        if of >= self.plan.replicas && before.order == 0 && after.order > 0 {
            self.merges.see(MergeSituation::JoinsBySnapshot);
        }
        if held.order < before.order && after.slots != before.slots {
            self.merges.see(MergeSituation::OlderInstalled);
        }
    }

    /// The life of a replica of merged groups ends.
    pub(super) fn see_end_of_merge(&mut self, of: usize) {
        let Some(life) = self.machines[of].life.as_ref().filter(|_| self.order.is_some()) else { return };
        let executed = life.executor(FIRST).cut().order;
        if self.waits_for(of).is_some() {
            self.merges.see(MergeSituation::WaitingAtCrash);
        }
        if of >= self.plan.replicas && executed < self.references[FIRST].last() {
            self.merges.see(MergeSituation::JoinerCrashes);
        }
    }

    /// A replica of a merged group that has delivered so much has another group.
    pub(super) fn merged_group_changes(&mut self, group: GroupId, delivered: Slot, becomes: &Group) {
        if self.order.is_none() || delivered == Slot::ZERO {
            return;
        }
        let began = &self.plan.settings.consensus;
        if (becomes.protocol, becomes.election) != (began.protocol, began.election) {
            self.merges.see(MergeSituation::ProtocolChanges);
        }
        if becomes.placement.is_some() {
            self.merges.see(MergeSituation::VotersChosen);
        }
        if group == FIRST {
            (0..self.machines.len()).for_each(|of| self.see_removal(of, becomes));
        }
    }

    /// The first group may have removed a node that does not know it yet.
    fn see_removal(&mut self, of: usize, first: &Group) {
        let id = self.machines[of].id;
        let Some(life) = self.machines[of].life.as_ref().filter(|_| first.member(id).is_none()) else {
            return;
        };
        if life.replica(FIRST).group().member(id).is_none() {
            return; // It knows.
        }
        let mut others = life.host.replicas().skip(1);
        let leads = others.clone().any(|replica| replica.status().protocol.role == Role::Leader);
        let votes = others.any(|replica| replica.group().votes(id));
        self.merges.mark(MergeSituation::LeaderRemoved, leads);
        self.merges.mark(MergeSituation::StillVotes, votes);
        self.merges.mark(MergeSituation::RemovedWhileWaiting, self.waits_for(of).is_some());
    }

    /// The place of a merged group that its replica knows is that of its log.
    pub(super) fn check_place(&self, of: usize, group: GroupId) -> Checked {
        let (Some(order), Some(life)) = (&self.order, &self.machines[of].life) else { return Ok(()) };
        let (slot, known) = (life.hosted[group].watch.delivered(), life.replica(group).merged_at());
        let of_log = order.place(group, slot);
        demand(known == Some(of_log), Invariant::PlaceOfLog, || {
            format!("r{} has {group} at {known:?} after slot {slot}; its log says {of_log:?}", of + 1)
        })
    }
}

/// The file with which each first member begins that begins with a backup.
pub(super) fn file_of(backup: &Backup, plan: &Plan) -> Bytes {
    let snapshot = backup.snapshot();
    if plan.merging.is_some() { sealed(snapshot.to_vec()) } else { snapshot }
}

/// How far merged groups are in a file.
fn cut_of(file: &Bytes) -> Option<Cut> {
    Cut::read_from(&mut &unsealed(file)?[..]).ok().flatten()
}

/// Text for people: how far groups are.
fn text_of(slots: &[Slot]) -> String {
    slots.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn member_ids(group: &Group) -> Vec<ReplicaId> {
    group.members.iter().map(|member| member.id).collect()
}

fn unsound(detail: &str) -> Violation {
    Violation { invariant: Invariant::Sound, detail: detail.to_owned() }
}
