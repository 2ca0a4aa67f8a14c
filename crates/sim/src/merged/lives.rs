//! Starts, crashes and pauses of nodes, and what their replicas are told by their own node.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use synod_consensus::Link;
use synod_host::{Execution, Host, Reads, SnapshotBook, Started};
use synod_replica::{
    Cut, Event, Executor, Group, Installed, MergedExecutor, MergedFile, MergedFiles, Pace, Recovered, Replica,
};
use synod_wire::{GroupId, Incarnation, Slot};

use super::{
    Happening, Situation, World,
    machine::{Hosted, Life, Snapshots, id},
    upkeep::Kept,
};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::{Clock, PERFECT_PPM},
    guest::Hosting,
    network::between,
    sealed::unsealed,
    watching::Service,
};

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
        let (mut started, mut hosted) = (Vec::new(), Vec::new());
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
            started.push(Started { replica, actions, durable: last_lsn, executed: delivered });
            hosted.push(Hosted::begun(delivered, last_lsn));
        }
        let groups = hosted.len();
        let pace = Pace::new(self.plan.skips, self.plan.take, groups, now);
        let heartbeat = self.plan.base().consensus.heartbeat_interval;
        machine.life = Some(Life {
            clock,
            host: Host::new(id(of), started, Some(pace), heartbeat),
            hosted,
            // How far the state is that the files gave.
            ahead: (0..groups as u16).map(GroupId).collect(),
            shown: executor.clocked(GroupId::FIRST),
            merged: MergedExecutor::of(executor),
            waiting: Reads::default(),
            execution: Execution::default(),
            told_at: self.now,
            timer_at: None,
            snapshots: Snapshots { book: SnapshotBook::new(groups, Some(files)), writing: VecDeque::new() },
            leaves: false,
            kept,
            service: service.map(Box::new),
        });
        self.look_later(of);
        self.dial_all(of);
        self.begin_bursts(of)
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

    /// All replicas of a node are told of the session to another one, and when all members were met.
    pub(super) fn linked(&mut self, of: usize, number: u64, peer: usize, link: Link) -> Checked {
        let (now, nodes) = (self.now, self.plan.nodes);
        let machine = &mut self.machines[of];
        let met_all = link == Link::Up && machine.has_met_all(of, nodes);
        let Some(life) = machine.in_life(number) else { return Ok(()) };
        let now = life.clock.read(now);
        life.host.step_all(now, || Event::Link { peer: id(peer), link });
        if met_all {
            life.host.step_all(now, || Event::MetAll);
        }
        self.end_burst(of)
    }
}

fn unsound(detail: &str) -> Violation {
    Violation { invariant: Invariant::Sound, detail: detail.to_owned() }
}
