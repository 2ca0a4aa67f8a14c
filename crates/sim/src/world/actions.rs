//! Carrying out what replicas want.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use synod_consensus::To;
use synod_host::{Effect, Kept};
use synod_replica::{Action, Event, Fork, Group, LogRecord, PeerMessage, Replica, SnapshotInfo};
use synod_storage::StorageError;
use synod_wire::{Ballots, Batch, Epoch, GroupId, Lsn, ReplicaId, Slot, Time};

use super::{
    FIRST, Happening, World,
    machine::Task,
    waiting::{Question, Waiter},
};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, Order, Violation, demand, is_learned},
    clock::Moment,
    describe,
    network::{Wire, between},
    situations::Sight,
};

/// What passes at least between two looks at a deadline.
pub(super) const LOOK: Duration = Duration::from_micros(1);

impl World {
    pub(super) fn index(&self, id: ReplicaId) -> usize {
        let index = usize::try_from(id.0).expect("a small number") - 1;
        assert!(index < self.machines.len(), "replicas send to those who are or were members");
        index
    }

    /// Carries out what a node wants done, in its order. Its burst is over then; returns the groups that it touched.
    pub(super) fn carry_out(&mut self, of: usize) -> Result<Vec<GroupId>, Violation> {
        let Some(life) = &mut self.machines[of].life else { return Ok(Vec::new()) };
        let mut effects = std::mem::take(&mut self.effects);
        let now = life.clock.read(self.now);
        life.host.carry_out(now, |group, _, effect| effects.push((group, effect)));
        if self.order.is_some() {
            // Skips come after all that the burst wanted was carried out.
            let touched = life.host.touched().to_vec();
            self.perform(of, &touched, &mut effects)?;
            let Some(life) = &mut self.machines[of].life else { return Ok(Vec::new()) };
            let skips = life.host.skip(now);
            life.host.carry_out(now, |group, _, effect| effects.push((group, effect)));
            self.see_skips(of, &skips);
        }
        let Some(life) = &mut self.machines[of].life else { return Ok(Vec::new()) };
        let touched = life.host.end();
        for &group in &touched {
            if life.host.deadline(group) <= now {
                // Time passes between one look and the next.
                life.host.wake(group, now + LOOK);
            }
        }
        self.perform(of, &touched, &mut effects)?;
        self.effects = effects;
        self.write_log(of);
        touched.iter().for_each(|&group| self.go_on_executing(of, group));
        self.let_go(of);
        self.set_timer(of);
        Ok(touched)
    }

    /// Does what a node wants done.
    fn perform(
        &mut self,
        of: usize,
        touched: &[GroupId],
        effects: &mut Vec<(GroupId, Effect<Waiter, Question>)>,
    ) -> Checked {
        for &group in touched {
            self.check_absence(of, group, effects)?;
        }
        let mut ends_at = self.dies_within(of, effects.len());
        for (at, (group, effect)) in effects.drain(..).enumerate() {
            // What was done may have changed who may end.
            if ends_at == Some(at) && !self.may_crash(of) {
                ends_at = None;
            }
            if ends_at.is_none_or(|end| at < end) {
                self.effect(of, group, effect)?;
            } else {
                self.is_never_done(of, effect);
            }
        }
        if ends_at.is_some() {
            self.coverage.crashes_within += 1;
            self.crash(of);
            self.restart_later(of);
        }
        Ok(())
    }

    /// How many of the things that a replica wants done are done before its process ends, if it does not come to do
    /// all.
    fn dies_within(&mut self, of: usize, effects: usize) -> Option<usize> {
        let dies = effects > 1 && self.plan.faults.any_step.hit(&mut self.deaths);
        let dies = dies && !self.faults_are_over() && self.may_crash(of);
        dies.then(|| self.deaths.usize(1..effects))
    }

    /// A replica that takes no part in the group says nothing of its protocol.
    fn check_absence(
        &mut self,
        of: usize,
        group: GroupId,
        effects: &[(GroupId, Effect<Waiter, Question>)],
    ) -> Checked {
        let id = self.machines[of].id;
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let away = life.replica(group).group().is_away(id);
        let stayed_away = std::mem::replace(&mut life.hosted[group].away, away) && away;
        if !stayed_away {
            return Ok(());
        }
        let actions = || {
            effects.iter().filter_map(|(of, effect)| match effect {
                Effect::Action(action) if *of == group => Some(action),
                _ => None,
            })
        };
        // In what it learns it may find that it came back and left again.
        let came_back = |action: &Action| matches!(action, Action::Group(group) if !group.is_away(id));
        let speaks = |action: &&Action| {
            matches!(
                action,
                Action::Send { message: PeerMessage::Protocol { .. }, .. }
                    | Action::Append { record: LogRecord::Protocol { .. }, .. }
            )
        };
        let spoke = actions().find(speaks).filter(|_| !actions().any(came_back));
        demand(spoke.is_none(), Invariant::AwayIsSilent, || {
            format!("{id} takes no part in the group, and wants {spoke:?} done")
        })
    }

    fn effect(&mut self, of: usize, group: GroupId, effect: Effect<Waiter, Question>) -> Checked {
        match effect {
            Effect::Execute { slot, ballots, batch, clients } => {
                self.execute_later(of, (group, slot), ballots, batch, clients)
            }
            Effect::Read(at, questions) => {
                self.execution_of(of, group, Task::Read { at, questions });
                Ok(())
            }
            Effect::ReadFailed(questions, error) => {
                questions.into_iter().for_each(|question| self.fail_read(question, error));
                Ok(())
            }
            Effect::CommandFailed(waiter, error) => self.fail_request(of, group, waiter, error),
            Effect::Action(action) => self.act(of, group, action),
        }
    }

    fn act(&mut self, of: usize, group: GroupId, action: Action) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let replica = life.host.replica(group);
        match action {
            Action::Append { lsn, record } => self.append(of, group, lsn, record)?,
            Action::Send { to, message, after } => self.send_after(of, group, to, message, after)?,
            Action::Leader(view) => {
                let epoch = replica.group().epoch;
                life.hosted[group].watch.leader(view, epoch)?;
                self.coverage.elections += u64::from(view.leader == Some(machine.id));
                let leads = view.leader == Some(machine.id);
                let mark = if leads { Mark::Leads(epoch, view.ballot) } else { Mark::Follows(epoch, view) };
                let named = self.of_group(group);
                self.note(of, mark, || format!("{named}{}", describe::view(view)));
            }
            Action::Group(becomes) => self.regroup(of, group, &becomes)?,
            Action::Forked(fork) => {
                // Whatever is delivered is compared with what others delivered, so a real fork is found before.
                return demand(false, Invariant::Agreement, || {
                    let Fork { with, agreed, slot, ours, theirs, .. } = fork;
                    format!(
                        "r{} finds that {with} has another history between slots {agreed} and {slot}: {theirs:016x} there, \
                         {ours:016x} here",
                        of + 1
                    )
                });
            }
            Action::Agreed(_) => {}
            Action::TwoProposals { ballot, slot } => {
                return demand(false, Invariant::OneProposal, || {
                    format!("r{} is given two batches for slot {slot} in ballot {ballot}", of + 1)
                });
            }
            Action::UnknownChange { slot } => {
                return demand(false, Invariant::Sound, || {
                    format!("r{} does not know the change in slot {slot}", of + 1)
                });
            }
            Action::Retired => {
                let hosted = &mut life.hosted[group];
                hosted.retired = true;
                let delivered = hosted.watch.delivered();
                self.retires(of, group, delivered)?;
            }
            Action::TakeSnapshot => self.execution_of(of, group, Task::Snapshot),
            Action::ReadChunk { to, slot, offset, len_max } => {
                self.read_chunk(of, group, to, slot, offset, len_max);
            }
            Action::WriteChunk { info, offset, bytes } => self.write_chunk(of, group, info, offset, bytes),
            Action::InstallSnapshot(info) if self.order.is_some() => self.accept_snapshot(of, group, info),
            Action::InstallSnapshot(info) => self.execution_of(of, group, Task::Install(info)),
            Action::Trim(through) => {
                life.hosted[group].watch.trims(through)?;
                self.trim(of, group, through);
            }
            Action::Execute { .. }
            | Action::ReadAt { .. }
            | Action::ReadFailed { .. }
            | Action::RequestFailed { .. }
            | Action::Deadline(_) => unreachable!("the host has dealt with it"),
        }
        Ok(())
    }

    /// A replica has another group, or begins with one.
    fn regroup(&mut self, of: usize, group: GroupId, becomes: &Group) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        machine.files.knows(group, becomes);
        let hosted = &mut life.hosted[group];
        hosted.retired &= becomes.member(machine.id).is_none();
        let delivered = hosted.watch.delivered();
        self.checks[group].groups.agrees(machine.id, delivered, becomes)?;
        self.regroup_peers(of, group, becomes);
        self.merged_group_changes(group, delivered, becomes);
        Ok(())
    }

    /// What executes for a group has something to do.
    pub(super) fn execution_of(&mut self, of: usize, group: GroupId, task: Task) {
        if let Some(life) = &mut self.machines[of].life {
            life.state(group).execution.push((group, task));
        }
    }

    fn trim(&mut self, of: usize, group: GroupId, through: Slot) {
        self.coverage.trims += 1;
        if !self.plan.disk.trim_waits.hit(&mut self.rng) {
            self.machines[of].disk.trim(group, through);
        }
        self.note(of, Mark::Note, || format!("trims its log through slot {through}"));
    }

    fn append(&mut self, of: usize, group: GroupId, lsn: Lsn, record: LogRecord) -> Checked {
        self.rests_on_backup(of, group, &record)?;
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        if let LogRecord::Entered { group: entered, .. } = &record {
            demand(machine.files.knows_of(group, entered.version), Invariant::MembersFirst, || {
                format!("r{} enters epoch {} and has not written down its members", of + 1, entered.epoch)
            })?;
        }
        machine.disk.append(group, lsn, &record);
        self.coverage.slots_fetched += u64::from(is_learned(&record));
        if machine.copied {
            // What it writes is set aside, and tells nothing of what the replica said.
            return Ok(());
        }
        let replica = life.host.replica(group);
        let table = std::sync::Arc::clone(replica.history().delivered());
        // Once the end of an epoch is delivered here, what the epoch has in later slots counts for nothing.
        let present = replica.group();
        let ended = matches!(&record, LogRecord::Protocol { epoch, .. } if *epoch < present.epoch);
        let counts = |slot, id| !(ended && slot >= present.first || table.voids(id));
        let checks = &mut self.checks[group];
        checks.batches.appended(of, lsn, &record, counts)?;
        checks.votes.appended(of, lsn, &record)?;
        checks.memory.appended(of, lsn, &record)?;
        checks.groups.appended(of, lsn, &record);
        if let LogRecord::Entered { group: entered, .. } = &record {
            life.hosted[group].watch.enters(entered.epoch);
        }
        checks.situations.see(&Sight::Appends { of, record: &record });
        checks.terms.appended(of, lsn, &record)?;
        let shown = self.shows_log(of);
        let named = self.of_group(group);
        self.note_if(shown, of, Mark::Write, || format!("{named}log {lsn}: {}", describe::record(&record)));
        Ok(())
    }

    /// Sends a message once the record that it rests on is durable.
    fn send_after(&mut self, of: usize, group: GroupId, to: To, message: PeerMessage, after: Lsn) -> Checked {
        if let PeerMessage::Protocol { .. } = &message
            && group == FIRST
        {
            self.has_backup(of)?;
        }
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let hosted = &mut life.hosted[group];
        match &message {
            PeerMessage::Protocol { epoch, .. } => hosted.watch.says(*epoch)?,
            PeerMessage::Pushed { batches, .. } => self.coverage.slots_pushed += batches.len() as u64,
            _ => {}
        }
        let durable = machine.disk.durable_of(group);
        hosted.gate.durable(durable);
        let number = hosted.sent.number();
        let leaves = hosted.gate.send(after, (number, to, message));
        hosted.sent.sent(number, after, durable, leaves.is_some())?;
        let Some((_, to, message)) = leaves else {
            let (_, (_, _, held)) = hosted.gate.waiting().last().expect("it waits");
            let bytes = held.encode().len() as u64;
            hosted.holds.messages += bytes;
            hosted.holds.largest_message = hosted.holds.largest_message.max(bytes);
            return Ok(());
        };
        machine.disk.relies(group, after);
        for &to in to.ids() {
            let life = self.machines[of].life.as_ref().expect("it runs");
            if life.hosted[group].gate.waiting().any(|(_, (_, held, _))| held.includes(to)) {
                self.checks[group].situations.see(&Sight::Overtakes { message: &message });
            }
            let to = self.index(to);
            self.send(of, to, group, &message)?;
        }
        Ok(())
    }

    /// Queues a decided batch for execution, and compares it with what others delivered.
    fn execute_later(
        &mut self,
        of: usize,
        (group, slot): (GroupId, Slot),
        ballots: Ballots,
        batch: Batch,
        waiters: Vec<(usize, Waiter)>,
    ) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let (hosted, bytes) = (&mut life.hosted[group], batch.bytes().len() as u64);
        hosted.watch.delivers(slot, bytes)?;
        hosted.holds.batches += bytes;
        let id = machine.id;
        machine.delivered[group] = slot.max(machine.delivered[group]);
        life.state(group)
            .execution
            .push((group, Task::Execute { slot, ballots, batch: batch.clone(), waiters }));
        let first = slot > self.checks[group].log.last();
        let mark = Mark::Delivers { first };
        let named = self.of_group(group);
        self.note(of, mark, || format!("{named}delivers slot {slot}: {}", describe::batch(&batch)));
        let checks = &mut self.checks[group];
        checks.situations.see(&Sight::Delivers { of, first, batch: &batch });
        if first {
            let by_reference = checks.log.disseminates() && batch.reconfiguration().is_none();
            checks.batches.delivered(slot, by_reference, &batch)?;
        }
        checks.log.delivered(id, slot, &batch)?;
        for command in batch.commands().filter(|_| first) {
            self.goodput.executed(self.now, &command.payload);
        }
        if first {
            self.decide(group, slot, &batch)?;
            self.see_batch(group, slot);
        }
        self.check_clock(group)?;
        self.group_moves(group, slot)?;
        self.check_chosen(of, (group, slot), ballots, &batch)
    }

    /// A batch is decided: the reference executes it, or what has its turn now in the common order.
    fn decide(&mut self, group: GroupId, slot: Slot, batch: &Batch) -> Checked {
        let Some(order) = &mut self.order else {
            self.references[group].execute(group, slot, batch, true)?;
            self.checks[group].log.agrees(self.references[group].group())?;
            return self.executed_by_reference(group);
        };
        order.decided(group, batch);
        while let Some((group, slots)) = self.order.as_mut().and_then(Order::pop) {
            let last = *slots.end();
            for slot in slots {
                let Some(order) = &self.order else { break };
                let batch = order.batch(group, Slot(slot));
                self.references[FIRST].execute(group, Slot(slot), batch, slot == last)?;
            }
            self.executed_by_reference(FIRST)?;
        }
        Ok(())
    }

    /// The reference of a state has come to its next point, which only the store's leases look at.
    fn executed_by_reference(&mut self, at: GroupId) -> Checked {
        #[cfg(not(feature = "kv"))]
        let _ = at;
        #[cfg(feature = "kv")]
        if at == FIRST {
            self.leases_end();
            self.decide_leases(self.references[at].last())?;
        }
        Ok(())
    }

    fn read_chunk(
        &mut self,
        of: usize,
        group: GroupId,
        to: ReplicaId,
        slot: Slot,
        offset: u64,
        len_max: usize,
    ) {
        let now = self.time();
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return };
        let (name, named) = life.book.serve(now, to, group, slot, offset);
        let file = machine.disk.snapshot(name, named);
        let total = file.map_or(0, |file| file.len() as u64);
        let bytes = file.map(|file| {
            let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(file.len());
            file.slice(begin..(begin + len_max).min(file.len()))
        });
        let bytes = bytes.unwrap_or_default();
        self.notice_after_disk(of, group, Event::ChunkRead { to, slot, offset, total, bytes });
    }

    fn write_chunk(&mut self, of: usize, group: GroupId, info: SnapshotInfo, offset: u64, bytes: Bytes) {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return };
        let begun = life.book.receive(group, info, offset, || Ok::<_, Infallible>(Vec::new()));
        let Ok(receiving) = begun;
        assert_eq!(receiving.len() as u64, offset, "pieces come in order");
        let fails = self.plan.disk.snapshot_fails.hit(&mut self.rng);
        let event = if fails {
            Event::SnapshotInstalled(None)
        } else {
            receiving.extend_from_slice(&bytes);
            Event::ChunkWritten { slot: info.slot, end: receiving.len() as u64 }
        };
        self.notice_after_disk(of, group, event);
    }

    /// In a script, records are shown only while the disk is what the story is about.
    fn shows_log(&self, of: usize) -> bool {
        self.network.wire() != Wire::Manual || self.machines[of].disk.is_stalled()
    }

    /// Tells a replica something after the time that its disk needs for a piece of a snapshot.
    pub(super) fn notice_after_disk(&mut self, of: usize, group: GroupId, event: Event) {
        let (low, high) = self.plan.disk.snapshot;
        let wait = between(&mut self.rng, low, high);
        self.notice_after(of, wait, group, event);
    }

    /// The time since the beginning, for what asks for none of a replica's clocks.
    pub(super) fn time(&self) -> Time {
        Time::ZERO + self.now.since(Moment::START)
    }

    /// Writes a snapshot file under its name. How many are left is for the book to say.
    pub(super) fn name_snapshot(
        &mut self,
        of: usize,
        group: GroupId,
        slot: Slot,
        bytes: Bytes,
    ) -> Result<(), StorageError> {
        let now = self.time();
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let info = SnapshotInfo { slot, bytes: bytes.len() as u64 };
        life.book.written(group, info, None);
        for (group, kept) in life.book.keep(now, group) {
            let Kept::Newest(count) = kept else { unreachable!("groups that are not merged") };
            machine.disk.write_snapshot(group, slot, bytes.clone(), count)?;
        }
        Ok(())
    }

    pub(super) fn notice_after(&mut self, of: usize, wait: Duration, group: GroupId, event: Event) {
        self.notice_at(of, self.now + wait, group, event);
    }

    pub(super) fn notice_at(&mut self, of: usize, at: Moment, group: GroupId, event: Event) {
        let life = self.machines[of].lives;
        self.queue.push(at, Happening::Notice { of, life, group, event: Box::new(event) });
    }

    /// Begins a sync if there is something to be made durable.
    pub(super) fn write_log(&mut self, of: usize) {
        let machine = &mut self.machines[of];
        if !machine.is_running() || !machine.disk.begin_sync() {
            return;
        }
        let (life, stalled) = (machine.lives, machine.disk.is_stalled());
        let wait = match machine.disk.waits(self.plan.settings.consensus.planted) {
            true if stalled => return,
            true => {
                between(&mut self.rng, self.plan.disk.sync.0, self.plan.disk.sync.1) + machine.disk.slower
            }
            false => Duration::ZERO,
        };
        self.queue.push(self.now + wait, Happening::SyncEnds { of, life });
    }

    /// A sync ends, unless the disk is stalled: then it ends when that is over.
    pub(super) fn sync_ends(&mut self, of: usize, life: u64) -> Checked {
        let machine = &mut self.machines[of];
        if machine.in_life(life).is_none() {
            return Ok(());
        }
        let durable = match machine.disk.end_sync(self.plan.settings.consensus.planted) {
            Ok(Some(durable)) => durable,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.disk_fails(of, &error);
                return Ok(());
            }
        };
        let disk = &mut machine.disk;
        // Real files note that a loss is made good, once all that was written is durable. Until then it counts as one.
        let lsn = disk.durable();
        let all_durable = lsn == disk.last();
        let votes = machine.life.as_ref().is_some_and(|life| life.host.replicas().all(Replica::may_vote));
        let mut noted = true;
        if let Some(files) = disk.files() {
            noted = votes && all_durable;
            if noted && let Err(error) = files.loss_made_good() {
                self.disk_fails(of, &error);
                return Ok(());
            }
        }
        if let Some(life) = &mut machine.life {
            if life.confesses_at.take_if(|at| *at <= lsn).is_some() {
                disk.amnesia = false;
            }
            if noted && life.whole_at.take_if(|at| *at <= lsn).is_some() {
                self.coverage.recoveries += 1;
                disk.lost = false;
            }
        }
        let copied = self.machines[of].copied;
        for &(group, through) in durable.iter().filter(|_| !copied) {
            if let Some(epoch) = self.checks[group].entered(of, through) {
                self.check_prefix(of, group, epoch)?;
            }
            self.checks[group].durable(of, through)?;
        }
        let shown = self.shows_log(of);
        self.note_if(shown, of, Mark::Durable, || format!("log durable to {lsn}"));
        let groups = durable.into_iter().map(|(group, _)| group).collect();
        self.happen(Happening::Progress { of, life, groups })?;
        self.write_log(of);
        Ok(())
    }

    /// Checks that a replica that has durably entered an epoch holds everything that was decided before it, or lost
    /// some of it.
    fn check_prefix(&self, of: usize, group: GroupId, epoch: Epoch) -> Checked {
        let machine = &self.machines[of];
        let first = self.checks[group].groups.first_of(epoch);
        let held = self.held_by_files(of, group);
        let missing = machine.disk.missing_between(group, held, first).filter(|_| !machine.disk.lost);
        demand(missing.is_none(), Invariant::WholePrefix, || {
            format!(
                "{} has entered epoch {epoch}; its disk lacks slot {}",
                machine.id,
                missing.unwrap_or_default()
            )
        })
    }

    /// Lets the messages of a group leave whose records are durable.
    pub(super) fn release(&mut self, of: usize, group: GroupId) -> Checked {
        let machine = &mut self.machines[of];
        let durable = machine.disk.durable_of(group);
        let Some(life) = &mut machine.life else { return Ok(()) };
        let hosted = &mut life.hosted[group];
        hosted.gate.durable(durable);
        let ready: Vec<_> = std::iter::from_fn(|| hosted.gate.leave()).collect();
        hosted.sent.leave(durable, ready.iter().map(|(_, (number, ..))| *number))?;
        ready.iter().for_each(|(after, _)| machine.disk.relies(group, *after));
        hosted.holds.messages -=
            ready.iter().map(|(_, (_, _, message))| message.encode().len() as u64).sum::<u64>();
        for (_, (_, to, message)) in ready {
            for &to in to.ids() {
                let to = self.index(to);
                self.send(of, to, group, &message)?;
            }
        }
        Ok(())
    }
}
