//! Starts, crashes and pauses of nodes, and the bursts of events that their replicas take: what the protocol's thread
//! does.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use synod_consensus::Link;
use synod_host::{Execution, Reads, SnapshotBook};
use synod_replica::{
    Cut, Event, Executor, Group, Installed, MergedExecutor, MergedFile, MergedFiles, MergedReads, Pace,
    Recovered, Replica,
};
use synod_wire::{GroupId, Incarnation, Slot, Time};

use super::{
    Happening, Situation, World,
    execution::unsealed,
    machine::{Hosted, Life, Snapshots, id},
    upkeep::Kept,
};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::{Clock, PERFECT_PPM},
    guest::Hosting,
    network::between,
    watching::Service,
};

/// A node looks at its groups that often, whatever happens.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// What a life begins with.
struct Restored {
    executor: Executor<Hosting>,
    files: MergedFiles,
    /// The snapshot of each group.
    starts: Vec<Option<Installed>>,
    kept: Option<Kept>,
}

impl World {
    /// Begins a life from what the disk holds.
    pub(super) fn start(&mut self, of: usize) -> Checked {
        let first = self.plan.first_groups();
        let machine = &mut self.machines[of];
        machine.lives += 1;
        let number = machine.lives;
        let service = Service::new(&self.plan.watches);
        let Restored { executor, files, starts, kept } =
            self.restored(of, number, &first, service.as_ref())?;
        let shown = between(&mut self.rng, Duration::ZERO, Duration::from_secs(1_000));
        let rate = PERFECT_PPM - 500 + self.rng.u64(0..=1_000);
        let clock = Clock::new(self.now, shown + Duration::from_secs(3_600), rate);
        let now = clock.read(self.now);
        let nonce = self.rng.u64(..);
        let incarnation = Incarnation(number);
        let machine = &mut self.machines[of];
        let met_all = machine.has_met_all(of, self.plan.nodes);
        let mut hosted = Vec::new();
        for ((group, first), snapshot) in (0u16..).map(GroupId).zip(first).zip(starts) {
            let (records, last_lsn) = machine.disk.records(group);
            let birth = id(of).0;
            let mut settings = self.plan.groups[usize::from(group.0)].clone();
            // Each node prefers to lead another group.
            settings.consensus.priority =
                u8::from((of + usize::from(group.0)).is_multiple_of(self.plan.nodes));
            let delivered = snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.info.slot);
            let recovered =
                Recovered { records, last_lsn, snapshot, amnesia: false, birth, incarnation, nonce, met_all };
            let mut actions = Vec::new();
            let replica = Replica::start(settings, id(of), first, recovered, now, &mut actions);
            hosted.push(Hosted::begun(replica, actions, delivered, last_lsn));
        }
        let groups = hosted.len();
        machine.life = Some(Life {
            clock,
            hosted,
            merged: MergedExecutor::of(executor),
            pace: Pace::new(self.plan.skips, self.plan.take, groups, now),
            reads: MergedReads::default(),
            waiting: Reads::default(),
            execution: Execution::default(),
            told_at: self.now,
            timer_at: None,
            glance_at: now + GLANCE_INTERVAL,
            touched: (0..groups as u16).map(GroupId).collect(),
            snapshots: Snapshots { book: SnapshotBook::new(groups, Some(files)), writing: VecDeque::new() },
            members_told: None,
            leaves: false,
            kept,
            service: service.map(Box::new),
        });
        self.look_later(of);
        self.dial_all(of);
        self.end_burst(of)
    }

    /// Reads the state from the files on the disk, as a life begins.
    fn restored(
        &mut self,
        of: usize,
        number: u64,
        first: &[Group],
        service: Option<&Service>,
    ) -> Result<Restored, Violation> {
        let (store, kept) = self.kept_store(of, number, service);
        let mut executor = Executor::merged(store, first.to_vec(), self.plan.take);
        let machine = &self.machines[of];
        let mut files = MergedFiles::default();
        for (group, slot) in machine.disk.names() {
            let bytes = machine.disk.file(group, slot).expect("it has this name");
            let content = unsealed(bytes).ok_or_else(|| unsound("a file is damaged"))?;
            let cut = Cut::read_from(&mut &content[..]).map_err(|error| unsound(&error.to_string()))?;
            let cut = cut.ok_or_else(|| unsound("a file of one group"))?;
            files.add(MergedFile { cut, group, slot, bytes: bytes.len() as u64 });
        }
        let disk = &machine.disk;
        let mut read = BTreeSet::new();
        let starts = files.restore_all(&mut executor, |executor, file| {
            let content = disk.file(file.group, file.slot).and_then(unsealed).unwrap_or_default();
            let before = executor.cut();
            executor.restore(&mut &content[..]).map_err(|error| unsound(&error.to_string()))?;
            if executor.cut() != before {
                read.insert((file.group, file.slot));
            }
            Ok(true)
        })?;
        for (group, slot) in (0u16..).map(GroupId).zip(executor.cut().slots) {
            let trimmed = disk.trimmed(group);
            demand(slot >= trimmed, Invariant::SnapshotCovers, || {
                format!(
                    "the log of {group} at r{} is trimmed to slot {trimmed}; its files hold {slot}",
                    of + 1
                )
            })?;
        }
        // A first life begins with a backup, if with anything.
        if let Some(several) = Some(read.len()).filter(|read| *read > 0 && number > 1) {
            self.counts.see(Situation::RestartFromSnapshot);
            if several > 1 {
                self.counts.see(Situation::RestartFromSeveral);
            }
        }
        self.order.state(of, &executor)?;
        let at = executor.cut();
        let is_removed =
            |group| at.slots.iter().any(|slot| *slot > Slot::ZERO) && !self.order.has_member(group, id(of));
        if self.groups().any(is_removed) {
            self.counts.see(Situation::RemovedRestarts);
        }
        self.line(of, || {
            format!("starts life {number} from {}, batch {}", super::slots(&at.slots), at.order)
        });
        Ok(Restored { executor, files, starts, kept })
    }

    pub(super) fn restart(&mut self, of: usize) -> Checked {
        let machine = &self.machines[of];
        if machine.life.is_some() || machine.gone { Ok(()) } else { self.start(of) }
    }

    /// The process of a node ends.
    pub(super) fn crash(&mut self, of: usize) -> Checked {
        let Some(life) = self.machines[of].life.take() else { return Ok(()) };
        if life.merged.waits_for().is_some() {
            self.counts.see(Situation::WaitingAtCrash);
        }
        if of >= self.plan.nodes && life.merged.executor().cut().order < self.order.len() {
            self.counts.see(Situation::JoinerCrashes);
        }
        self.line(of, || "crashes".to_owned());
        self.machines[of].paused = None;
        self.machines[of].disk.crash(&mut self.rng);
        for other in (0..self.machines.len()).filter(|other| *other != of) {
            let link = if self.rng.bool() { Link::Refused } else { Link::Down };
            self.break_session(of, other, link)?;
        }
        Ok(())
    }

    /// A node stops doing anything; what is meant for it waits.
    pub(super) fn pause(&mut self, of: usize, lasts: Duration) {
        let machine = &mut self.machines[of];
        if machine.life.is_some() && machine.paused.is_none() {
            machine.paused = Some(VecDeque::new());
            self.line(of, || format!("stops for {lasts:?}"));
            self.queue.push(self.now + lasts, Happening::Resume { of });
        }
    }

    pub(super) fn resume(&mut self, of: usize) -> Checked {
        let Some(waiting) = self.machines[of].paused.take() else { return Ok(()) };
        self.line(of, || "goes on".to_owned());
        waiting.into_iter().try_for_each(|happening| self.happen(happening))
    }

    pub(super) fn unstall(&mut self, of: usize) -> Checked {
        self.machines[of].stalled = false;
        let life = self.machines[of].lives;
        self.happen(Happening::SyncEnds { of, life })
    }

    /// Replicas are told something by their own node.
    pub(super) fn notice(&mut self, of: usize, life: u64, events: Vec<(GroupId, Event)>) -> Checked {
        if self.machines[of].in_life(life).is_none() {
            return Ok(());
        }
        for (group, event) in events {
            if let Event::SnapshotInstalled(Some(installed)) = &event
                && let Some(life) = &mut self.machines[of].life
            {
                let hosted = &mut life.hosted[usize::from(group.0)];
                hosted.delivered = hosted.delivered.max(installed.info.slot);
            }
            if matches!(event, Event::SnapshotShared(_)) {
                self.counts.see(Situation::SharedTrims);
            }
            self.step(of, group, event);
        }
        self.end_burst(of)
    }

    /// Gives an event to the replica of a group. A burst follows.
    pub(super) fn step(&mut self, of: usize, group: GroupId, event: Event) {
        let Some(life) = &mut self.machines[of].life else { return };
        let now = life.clock.read(self.now);
        let hosted = &mut life.hosted[usize::from(group.0)];
        hosted.replica.step(now, event, &mut hosted.actions);
        life.touched.insert(group);
    }

    pub(super) fn timer(&mut self, of: usize, number: u64) -> Checked {
        let now = self.now;
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        if life.timer_at.is_none_or(|at| at > now) {
            return Ok(()); // An earlier look made this one superfluous.
        }
        life.timer_at = None;
        self.end_burst(of)
    }

    /// What the protocol's thread does at the end of a burst of inputs.
    pub(super) fn end_burst(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let (now, groups) = (life.clock.read(self.now), life.hosted.len());
        if now >= life.glance_at {
            life.glance_at = now + GLANCE_INTERVAL;
            life.touched.extend((0..groups as u16).map(GroupId));
            self.tell_followers(of);
        }
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        for (group, hosted) in (0u16..).map(GroupId).zip(&mut life.hosted) {
            if now >= hosted.deadline {
                hosted.deadline = Time::NEVER;
                hosted.replica.step(now, Event::Timer, &mut hosted.actions);
                life.touched.insert(group);
            }
        }
        if let Some(read) = life.reads.read(groups) {
            for (group, hosted) in (0u16..).map(GroupId).zip(&mut life.hosted) {
                hosted.replica.step(now, Event::Read(read), &mut hosted.actions);
                life.touched.insert(group);
            }
        }
        self.flush(of)?;
        if self.tell_members(of) {
            self.flush(of)?;
        }
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let skips = life.pace.skips(now, life.hosted.iter().map(|hosted| &hosted.replica));
        if !skips.is_empty() {
            for (group, target) in skips {
                let earlier = self.skipped.insert((group, target), of);
                if earlier.is_some_and(|earlier| earlier != of) {
                    self.counts.see(Situation::TwoCaretakers);
                }
                self.line(of, || format!("has {group} skip to {target}"));
                self.step(of, group, Event::Skip(target));
            }
            self.flush(of)?;
        }
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        life.touched.clear();
        self.check_places(of)?;
        self.write_log(of);
        self.go_on_executing(of);
        self.set_timer(of);
        self.leave_later(of);
        Ok(())
    }

    fn flush(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let now = life.clock.read(self.now);
        let touched: Vec<GroupId> = life.touched.iter().copied().collect();
        for group in &touched {
            let hosted = &mut life.hosted[usize::from(group.0)];
            hosted.replica.flush(now, &mut hosted.actions);
        }
        for group in touched {
            let Some(life) = &mut self.machines[of].life else { return Ok(()) };
            let actions = std::mem::take(&mut life.hosted[usize::from(group.0)].actions);
            for action in actions {
                self.carry_out(of, group, action)?;
            }
        }
        Ok(())
    }

    /// The place of each group that its replica knows is that of its log.
    fn check_places(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        for (group, hosted) in (0u16..).map(GroupId).zip(&mut life.hosted) {
            let (known, of_log) = (hosted.replica.merged_at(), self.order.place(group, hosted.delivered));
            demand(known == Some(of_log), Invariant::PlaceOfLog, || {
                let slot = hosted.delivered;
                format!("r{} has {group} at {known:?} after slot {slot}; its log says {of_log:?}", of + 1)
            })?;
            let backlogged = hosted.replica.status().backlogged;
            if backlogged && !hosted.backlogged && life.merged.waits_for().is_some() {
                self.counts.see(Situation::Backlogged);
            }
            hosted.backlogged = backlogged;
        }
        Ok(())
    }

    /// Sees to it that the earliest deadline is looked at when it passes, or a little later.
    fn set_timer(&mut self, of: usize) {
        let (now, late) = (self.now, between(&mut self.rng, Duration::ZERO, self.plan.timer_late));
        let number = self.machines[of].lives;
        let Some(life) = &mut self.machines[of].life else { return };
        let first = life.pace.due().min(life.glance_at);
        let deadline = life.hosted.iter().map(|hosted| hosted.deadline).fold(first, Time::min);
        let Some(rings) = life.clock.when(deadline) else { return };
        let at = rings.max(now + Duration::from_micros(1)) + late;
        if life.timer_at.is_none_or(|earlier| at < earlier) {
            life.timer_at = Some(at);
            self.queue.push(at, Happening::Timer { of, life: number });
        }
    }
}

fn unsound(detail: &str) -> Violation {
    Violation { invariant: Invariant::Sound, detail: detail.to_owned() }
}
