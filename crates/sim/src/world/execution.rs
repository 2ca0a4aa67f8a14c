//! The executor's work: batches, reads and snapshots.

use std::time::Duration;

use bytes::Bytes;
use synod_replica::{Event, Installed, SnapshotInfo};
use synod_wire::{Ballots, Batch, GroupId, Slot};

use super::{Happening, World, lives::restore, machine::Task, replaced};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, demand},
    clock::Moment,
    network::between,
};

/// Tasks that the executor does in one go.
const BURST_MAX: usize = 8;

/// Digests are compared after every so many slots.
const DIGEST_EVERY: u64 = 8;

impl World {
    /// Wakes the executor if it sleeps and has something to do.
    pub(super) fn go_on_executing(&mut self, of: usize) {
        let Some(life) = &mut self.machines[of].life else { return };
        if !life.execution.wake() {
            return;
        }
        let life = life.number;
        let (low, high) = self.plan.execute;
        let wait = between(&mut self.rng, low, high);
        self.queue.push(self.now + wait, Happening::Execute { of, life });
    }

    /// The executor does some of its tasks.
    pub(super) fn execute(&mut self, of: usize, number: u64) -> Checked {
        let mut executed = false;
        for _ in 0..BURST_MAX {
            let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
            let Some(task) = life.execution.begin() else { break };
            match task {
                Task::Execute { slot, ballots, batch, waiters } => {
                    life.holds.batches -= batch.bytes().len() as u64;
                    let known = slot <= life.executor.applied();
                    // Every other slot as if somebody waited for all of it, so that replies are compared as well as
                    // states.
                    let asked = |place| waiters.iter().any(|(of, _)| *of == place);
                    let awaited = |place| slot.0 % 2 == 0 || asked(place);
                    let outcomes = life.executor.execute(slot, ballots, &batch, awaited);
                    if !known {
                        self.reference.executed(self.machines[of].id, slot, &outcomes)?;
                        #[cfg(feature = "kv")]
                        self.check_leases(of, slot)?;
                    }
                    executed = true;
                    for (place, waiter) in waiters {
                        self.answer_request(of, waiter, outcomes[place].clone())?;
                    }
                    self.check_guest(of)?;
                    if slot.0 % DIGEST_EVERY == 0 {
                        self.check_state(of)?;
                    }
                }
                Task::Read { slot, questions } => {
                    questions.into_iter().for_each(|question| life.reads.push(slot, question));
                }
                Task::Snapshot => self.freeze(of)?,
                Task::Install(info) => self.install(of, info)?,
            }
            let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
            life.execution.done();
            self.answer_reads(of)?;
        }
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        life.execution.sleep();
        self.go_on_executing(of);
        if executed { self.see_progress(of) } else { Ok(()) }
    }

    /// The replicated clock shows no more than what went by, as the fastest clock would measure it. A tick measures at
    /// most one jump of its proposer's clock, and is bounded.
    pub(super) fn check_clock(&self) -> Checked {
        let elapsed = self.now.since(Moment::START);
        let shows = self.reference.clock();
        demand(shows <= elapsed + self.clock_error(), Invariant::ClockNotFast, || {
            format!(
                "the replicated clock shows {shows:?} after {elapsed:?}, with {} jumps of clocks",
                self.jumps
            )
        })
    }

    /// By how much more than the time that went by the clocks of replicas may have measured.
    pub(super) fn clock_error(&self) -> Duration {
        let elapsed = self.now.since(Moment::START);
        let drift = elapsed * u32::try_from(self.plan.clock_drift_ppm).expect("a fraction") / 1_000_000;
        drift + self.plan.largest(|settings| settings.clock_interval) * 2 * self.jumps
    }

    /// Compares a replica's state with the reference.
    pub(super) fn check_state(&self, of: usize) -> Checked {
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        self.reference.state(self.machines[of].id, &life.executor)
    }

    /// What is delivered must have been chosen: durably accepted by a quorum in one ballot. Where the log says who
    /// votes, it says what the group says.
    pub(super) fn check_chosen(&self, of: usize, slot: Slot, ballots: Ballots, batch: &Batch) -> Checked {
        let epoch = self.reference.epoch(slot);
        let (chosen, below) = if self.reference.protocol(slot).has_terms() {
            let term = self.terms.committed_in(epoch, slot).unwrap_or_default();
            (self.terms.committed(epoch, slot), ballots.decided.round < term)
        } else {
            let ballot = self.votes.chosen_in(epoch, slot).unwrap_or_default();
            (self.votes.chosen(epoch, slot), ballots.decided < ballot)
        };
        let is_it = |chosen: &Batch| chosen == batch || chosen.stands_for(batch);
        if !chosen.is_some_and(is_it)
            && let Some(before) = self.votes.chosen_before(epoch, slot, batch)
        {
            return demand(false, Invariant::VoidAfterTheEnd, || {
                format!("r{} delivers in slot {slot} what epoch {before} chose there, after its end", of + 1)
            });
        }
        demand(chosen.is_some_and(is_it), Invariant::QuorumDurable, || {
            format!("r{} delivers slot {slot}, which no quorum has durably accepted in one ballot", of + 1)
        })?;
        demand(!below, Invariant::DecidedBallot, || {
            format!("r{} says that ballot {} decided slot {slot}; a higher one did", of + 1, ballots.decided)
        })?;
        self.terms.agrees(epoch, slot, self.groups.after(slot))
    }

    fn freeze(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let (number, slot) = (life.number, life.executor.applied());
        if self.plan.disk.snapshot_fails.hit(&mut self.rng) {
            self.notice_after_disk(of, Event::SnapshotTaken(None));
            return Ok(());
        }
        let mut file = Vec::new();
        life.executor.freeze().write_to(&mut file).expect("memory takes everything");
        let (low, high) = self.plan.disk.snapshot;
        let wait = between(&mut self.rng, low, high);
        let happening = Happening::SnapshotWritten { of, life: number, slot, bytes: file.into() };
        self.queue.push(self.now + wait, happening);
        self.check_state(of)
    }

    /// A snapshot file is complete and durable; one that a crash interrupts does not exist.
    pub(super) fn snapshot_written(&mut self, of: usize, number: u64, slot: Slot, bytes: Bytes) -> Checked {
        let machine = &mut self.machines[of];
        if machine.in_life(number).is_none() {
            return Ok(());
        }
        let info = SnapshotInfo { slot, bytes: bytes.len() as u64 };
        if let Err(error) = self.name_snapshot(of, slot, bytes) {
            self.note(of, Mark::Note, || format!("cannot write a snapshot: {error}"));
            self.notice_after(of, Duration::ZERO, Event::SnapshotTaken(None));
            return Ok(());
        }
        if let Some(life) = &mut self.machines[of].life {
            life.watch.snapshot(slot)?;
        }
        self.coverage.snapshots_taken += 1;
        self.note(of, Mark::Note, || format!("has a snapshot to slot {slot}"));
        self.notice_after(of, Duration::ZERO, Event::SnapshotTaken(Some(info)));
        Ok(())
    }

    /// The received snapshot becomes a file of this replica, and its state.
    fn install(&mut self, of: usize, info: SnapshotInfo) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let bytes: Bytes = life.book.received(GroupId::FIRST, info).unwrap_or_default().into();
        demand(bytes.len() as u64 == info.bytes, Invariant::Sound, || {
            format!("r{} installs a snapshot of {} bytes; it has {}", of + 1, info.bytes, bytes.len())
        })?;
        if info.slot > life.executor.applied() {
            restore(&mut life.executor, info.slot, &bytes)?;
            replaced(&mut life.service);
        }
        if let Err(error) = self.name_snapshot(of, info.slot, bytes) {
            // Its state is ahead of its files already.
            self.disk_fails(of, &error);
            return Ok(());
        }
        self.coverage.snapshots_installed += 1;
        self.note(of, Mark::Note, || format!("installs the snapshot to slot {}", info.slot));
        self.check_state(of)?;
        self.check_guest(of)?;
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        let (ballots, group) = (life.executor.ballots(), life.executor.group().clone());
        let history = life.executor.history().clone();
        let installed = Installed { info, ballots, group, history };
        self.notice_after_disk(of, Event::SnapshotInstalled(Some(Box::new(installed))));
        Ok(())
    }
}
