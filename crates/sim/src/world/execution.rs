//! The executor's work: batches, reads and snapshots.

use std::{ops::ControlFlow, time::Duration};

use bytes::Bytes;
use synod_host::Part;
use synod_replica::{Event, Installed, SnapshotInfo};
use synod_wire::{Ballots, Batch, GroupId, Slot};

use super::{
    FIRST, Happening, World,
    checks::GroupChecks,
    lives::restore,
    machine::{Draft, Executing, Task},
    replaced,
    sealed::sealed,
    waiting::Waiter,
};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, Violation, demand},
    clock::Moment,
    network::between,
    odds::Odds,
};

/// Tasks that the executor does in one go.
const BURST_MAX: usize = 8;

/// How often a process ends when it has executed a part of a batch, where processes end at any step.
const DIES_WITHIN_A_BATCH: Odds = Odds::percent(10);

/// Digests are compared after each run of this many slots.
const DIGEST_EVERY: u64 = 8;

impl World {
    /// Wakes what executes for a group if it sleeps and has something to do.
    pub(super) fn go_on_executing(&mut self, of: usize, group: GroupId) {
        let Some(life) = &mut self.machines[of].life else { return };
        if !life.state(group).execution.wake() {
            return;
        }
        let (life, group) = (life.number, life.state_at(group));
        let (low, high) = self.plan.execute;
        let wait = between(&mut self.rng, low, high);
        self.queue.push(self.now + wait, Happening::Execute { of, life, group });
    }

    /// What executes for a group, or for merged groups, does some of its tasks.
    pub(super) fn execute(&mut self, of: usize, number: u64, at: GroupId) -> Checked {
        let mut is_over = false;
        for _ in 0..BURST_MAX {
            let Some(life) = self.machines[of].in_life(number).filter(|_| !is_over) else { break };
            let Some((group, task)) = life.states[at].execution.begin() else { break };
            let rest = self.run_task(of, group, task)?;
            let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
            let state = &mut life.states[at];
            is_over = rest.is_some();
            let within_batch = matches!(rest, Some(Task::GoOn(..)));
            match rest {
                Some(rest) => state.execution.goes_on((group, rest)),
                None => state.execution.done(),
            }
            if within_batch && self.dies_within_a_batch(of) {
                self.crash(of);
                self.restart_later(of);
                return Ok(());
            }
            self.answer_reads(of, at)?;
            self.see_reads(of);
        }
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        let state = &mut life.states[at];
        state.execution.sleep();
        let ahead = std::mem::take(&mut state.ahead);
        self.go_on_executing(of, at);
        ahead.into_iter().try_for_each(|group| self.see_progress(of, group))
    }

    /// Whether a process ends when it has executed a part of a batch.
    fn dies_within_a_batch(&mut self, of: usize) -> bool {
        let may = self.plan.faults.any_step != Odds::NEVER && !self.faults_are_over();
        may && DIES_WITHIN_A_BATCH.hit(&mut self.deaths) && self.may_crash(of)
    }

    /// Does a task of a group, or a part of it if the turn is over then; returns the rest.
    fn run_task(&mut self, of: usize, group: GroupId, task: Task) -> Result<Option<Task>, Violation> {
        let Some(life) = &mut self.machines[of].life else { return Ok(None) };
        let state = life.state(group);
        match (task, &state.executing) {
            (Task::Execute { slot, ballots, batch, waiters }, Executing::Alone(_)) => {
                return self.execute_batch(of, (group, slot), ballots, batch, waiters);
            }
            (Task::GoOn(slot, part), _) => return self.go_on_with(of, (group, slot), part),
            (Task::Execute { slot, ballots, batch, waiters }, Executing::Merged(_)) => {
                return self.take_in_turn(of, (group, slot), ballots, batch, waiters);
            }
            (Task::Turns, _) => return self.execute_turns(of),
            (Task::Read { at, questions }, _) => {
                questions.into_iter().for_each(|question| state.reads.push(at.clone(), question));
            }
            (Task::Snapshot, _) => self.freeze(of, group)?,
            (Task::Install(info), Executing::Alone(_)) => self.install(of, group, info)?,
            (Task::Install(info), Executing::Merged(_)) => return self.install_merged(of, group, info),
        }
        Ok(None)
    }

    /// Whether a turn of execution is over after a command, or after a batch of merged groups.
    pub(super) fn turn_is_over(&mut self) -> bool {
        self.plan.turn_ends.hit(&mut self.turns)
    }

    fn execute_batch(
        &mut self,
        of: usize,
        (group, slot): (GroupId, Slot),
        ballots: Ballots,
        batch: Batch,
        waiters: Vec<(usize, Waiter)>,
    ) -> Result<Option<Task>, Violation> {
        let Some(life) = &mut self.machines[of].life else { return Ok(None) };
        life.hosted[group].holds.batches -= batch.bytes().len() as u64;
        let state = &mut life.states[group];
        state.before = Some((state.applied(group), state.clocked(group)));
        let Executing::Alone(executor) = &mut state.executing else { unreachable!("it is not merged") };
        let part = Part::begin(executor, slot, ballots, batch, waiters);
        self.go_on_with(of, (group, slot), part)
    }

    /// Executes a batch that was begun, or a part of it, which shows nowhere.
    fn go_on_with(
        &mut self,
        of: usize,
        (group, slot): (GroupId, Slot),
        part: Part<Waiter>,
    ) -> Result<Option<Task>, Violation> {
        let World { machines, plan, turns, .. } = self;
        let Some(life) = &mut machines[of].life else { return Ok(None) };
        let state = &mut life.states[group];
        let Executing::Alone(executor) = &mut state.executing else { unreachable!("it is not merged") };
        // Every other slot as if somebody waited for all of it, so that replies are compared as well as states.
        let awaited = |waiters: &[(usize, Waiter)], place| {
            slot.0 % 2 == 0 || waiters.iter().any(|(of, _)| *of == place)
        };
        let (waiters, outcomes) = match part.go_on(executor, awaited, || plan.turn_ends.hit(turns)) {
            ControlFlow::Continue(rest) => {
                self.coverage.batches_in_parts += 1;
                return Ok(Some(Task::GoOn(slot, rest)));
            }
            ControlFlow::Break(executed) => executed,
        };
        let before = state.before.take();
        state.executed_more(group);
        if before.is_some_and(|(before, _)| slot > before) {
            self.references[group].executed(self.machines[of].id, (group, slot), slot.0, &outcomes)?;
            #[cfg(feature = "kv")]
            if group == FIRST {
                self.check_leases(of, slot.0)?;
            }
        }
        for (place, waiter) in waiters {
            self.answer_request(of, waiter, outcomes[place].clone())?;
        }
        self.check_guest(of)?;
        if slot.0 % DIGEST_EVERY == 0 {
            self.check_state(of, group)?
        }
        Ok(None)
    }

    /// The replicated clock of a group shows no more than what went by, as the fastest clock would measure it. A tick
    /// measures at most one jump of its proposer's clock, and is bounded.
    pub(super) fn check_clock(&self, group: GroupId) -> Checked {
        let elapsed = self.now.since(Moment::START);
        let shows = self.reference(group).clock();
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

    /// Compares a replica's state with the reference, unless it has a part of a batch.
    pub(super) fn check_state(&self, of: usize, group: GroupId) -> Checked {
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        let Some(executor) = life.states[life.state_at(group)].whole() else { return Ok(()) };
        self.reference(group).state(self.machines[of].id, executor)
    }

    /// What is delivered must have been chosen: durably accepted by a quorum in one ballot. Where the log says who
    /// votes, it says what the group says.
    pub(super) fn check_chosen(
        &self,
        of: usize,
        (group, slot): (GroupId, Slot),
        ballots: Ballots,
        batch: &Batch,
    ) -> Checked {
        let GroupChecks { groups, votes, terms, log, .. } = &self.checks[group];
        let epoch = log.epoch(slot);
        let (chosen, below) = if log.protocol(slot).has_terms() {
            let term = terms.committed_in(epoch, slot).unwrap_or_default();
            (terms.committed(epoch, slot), ballots.decided.round < term)
        } else {
            let ballot = votes.chosen_in(epoch, slot).unwrap_or_default();
            (votes.chosen(epoch, slot), ballots.decided < ballot)
        };
        let is_it = |chosen: &Batch| chosen == batch || chosen.stands_for(batch);
        if !chosen.is_some_and(is_it)
            && let Some(before) = votes.chosen_before(epoch, slot, batch)
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
        terms.agrees(epoch, slot, groups.after(slot))
    }

    fn freeze(&mut self, of: usize, group: GroupId) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let state = life.state(group);
        let (slot, cut, frozen) = match &state.executing {
            Executing::Alone(executor) => (executor.applied(), None, Some(executor.freeze())),
            Executing::Merged(merged) => match merged.executor.freeze(group) {
                Some((slot, cut, frozen)) => (slot, Some(cut), Some(frozen)),
                None => (Slot::ZERO, None, None),
            },
        };
        let fails = self.plan.disk.snapshot_fails.hit(&mut self.rng);
        let Some(frozen) = frozen.filter(|_| !fails) else {
            self.notice_after_disk(of, group, Event::SnapshotTaken(None));
            return Ok(());
        };
        let mut file = Vec::new();
        frozen.write_to(&mut file).expect("memory takes everything");
        let bytes = if cut.is_some() { sealed(file) } else { file.into() };
        state.drafts.push_back(Draft { group, slot, cut, bytes });
        if state.drafts.len() == 1 {
            self.write_next(of, group);
        }
        self.check_state(of, group)
    }

    /// The next snapshot is being written.
    fn write_next(&mut self, of: usize, group: GroupId) {
        let (life, group) = (self.machines[of].lives, self.plan.state_of(group));
        let (low, high) = self.plan.disk.snapshot;
        let wait = between(&mut self.rng, low, high);
        self.queue.push(self.now + wait, Happening::SnapshotWritten { of, life, group });
    }

    /// A snapshot file is complete and durable; one that a crash interrupts does not exist.
    pub(super) fn snapshot_written(&mut self, of: usize, number: u64, at: GroupId) -> Checked {
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        let state = &mut life.states[at];
        let Some(Draft { group, slot, cut, bytes }) = state.drafts.pop_front() else { return Ok(()) };
        if !state.drafts.is_empty() {
            self.write_next(of, at);
        }
        if let Some(cut) = cut {
            return self.merged_written(of, (group, slot), cut, bytes);
        }
        let info = SnapshotInfo { slot, bytes: bytes.len() as u64 };
        if let Err(error) = self.name_snapshot(of, group, slot, bytes) {
            self.note(of, Mark::Note, || format!("cannot write a snapshot: {error}"));
            self.notice_after(of, Duration::ZERO, group, Event::SnapshotTaken(None));
            return Ok(());
        }
        self.coverage.snapshots_taken += 1;
        self.note(of, Mark::Note, || format!("has a snapshot to slot {slot}"));
        self.notice_after(of, Duration::ZERO, group, Event::SnapshotTaken(Some(info)));
        Ok(())
    }

    /// The received snapshot becomes a file of this replica, and its state.
    fn install(&mut self, of: usize, group: GroupId, info: SnapshotInfo) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let bytes: Bytes = life.book.received(group, info).unwrap_or_default().into();
        demand(bytes.len() as u64 == info.bytes, Invariant::Sound, || {
            format!("r{} installs a snapshot of {} bytes; it has {}", of + 1, info.bytes, bytes.len())
        })?;
        let Executing::Alone(executor) = &mut life.states[group].executing else {
            unreachable!("it is not merged")
        };
        if info.slot > executor.applied() {
            restore(executor, info.slot, &bytes)?;
            life.hosted[group].watch.restores(info.slot);
            replaced(&mut life.service);
        }
        if let Err(error) = self.name_snapshot(of, group, info.slot, bytes) {
            // Its state is ahead of its files already.
            self.disk_fails(of, &error);
            return Ok(());
        }
        self.coverage.snapshots_installed += 1;
        self.note(of, Mark::Note, || format!("installs the snapshot to slot {}", info.slot));
        self.check_state(of, group)?;
        self.check_guest(of)?;
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        let executor = life.executor(group);
        let (ballots, present) = (executor.ballots(), executor.group().clone());
        let history = executor.history().clone();
        let installed = Installed { info, ballots, group: present, history };
        self.notice_after_disk(of, group, Event::SnapshotInstalled(Some(Box::new(installed))));
        Ok(())
    }
}
