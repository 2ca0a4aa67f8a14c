//! Carrying out what replicas want.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use synod_consensus::To;
use synod_host::{Effect, Kept, ReadAt};
use synod_replica::{Action, Event, Fork, LogRecord, PeerMessage, SnapshotInfo};
use synod_storage::StorageError;
use synod_wire::{Ballots, Batch, Epoch, GroupId, Lsn, ReplicaId, Slot, Time};

use super::{
    Happening, World,
    machine::Task,
    waiting::{Question, Waiter},
};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, demand, is_learned},
    clock::Moment,
    describe,
    network::{Wire, between},
    situations::Sight,
};

impl World {
    pub(super) fn index(&self, id: ReplicaId) -> usize {
        let index = usize::try_from(id.0).expect("a small number") - 1;
        assert!(index < self.machines.len(), "replicas send to those who are or were members");
        index
    }

    /// Carries out what a node wants done, in its order. Its burst is over then.
    pub(super) fn carry_out(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let mut effects = std::mem::take(&mut self.effects);
        let now = life.clock.read(self.now);
        life.host.carry_out(now, |group, _, effect| effects.push((group, effect)));
        let touched = life.host.end();
        life.host.reuse(touched);
        self.check_absence(of, &effects)?;
        for (_, effect) in effects.drain(..) {
            self.effect(of, effect)?;
        }
        self.effects = effects;
        self.write_log(of);
        self.go_on_executing(of);
        self.set_timer(of);
        Ok(())
    }

    /// A replica that takes no part in the group says nothing of its protocol.
    fn check_absence(&mut self, of: usize, effects: &[(GroupId, Effect<Waiter, Question>)]) -> Checked {
        let id = self.machines[of].id;
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let away = life.replica().group().is_away(id);
        let stayed_away = std::mem::replace(&mut life.away, away) && away;
        if !stayed_away {
            return Ok(());
        }
        let actions = || {
            effects.iter().filter_map(|(_, effect)| match effect {
                Effect::Action(action) => Some(action),
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

    fn effect(&mut self, of: usize, effect: Effect<Waiter, Question>) -> Checked {
        match effect {
            Effect::Execute { slot, ballots, batch, clients } => {
                self.execute_later(of, slot, ballots, batch, clients)
            }
            Effect::Read(ReadAt::Slot(slot), questions) => {
                let Some(life) = &mut self.machines[of].life else { return Ok(()) };
                life.execution.push(Task::Read { slot, questions });
                Ok(())
            }
            Effect::Read(ReadAt::Slots(_), _) => unreachable!("a group that is alone"),
            Effect::ReadFailed(questions, error) => {
                questions.into_iter().for_each(|question| self.fail_read(question, error));
                Ok(())
            }
            Effect::CommandFailed(waiter, error) => self.fail_request(of, waiter, error),
            Effect::Action(action) => self.act(of, action),
        }
    }

    fn act(&mut self, of: usize, action: Action) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let replica = life.host.replica(GroupId::FIRST);
        match action {
            Action::Append { lsn, record } => self.append(of, lsn, record)?,
            Action::Send { to, message, after } => self.send_after(of, to, message, after)?,
            Action::Leader(view) => {
                let epoch = replica.group().epoch;
                life.watch.leader(view, epoch)?;
                self.coverage.elections += u64::from(view.leader == Some(machine.id));
                let leads = view.leader == Some(machine.id);
                let mark = if leads { Mark::Leads(epoch, view.ballot) } else { Mark::Follows(epoch, view) };
                self.note(of, mark, || describe::view(view));
            }
            Action::Group(group) => {
                machine.files.knows(&group);
                self.groups.agrees(machine.id, life.watch.delivered(), &group)?;
            }
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
                let delivered = life.watch.delivered();
                self.retires(of, delivered)?;
            }
            Action::TakeSnapshot => life.execution.push(Task::Snapshot),
            Action::ReadChunk { to, slot, offset, len_max } => self.read_chunk(of, to, slot, offset, len_max),
            Action::WriteChunk { info, offset, bytes } => self.write_chunk(of, info, offset, bytes),
            Action::InstallSnapshot(info) => life.execution.push(Task::Install(info)),
            Action::Trim(through) => {
                life.watch.trims(through)?;
                self.coverage.trims += 1;
                if !self.plan.disk.trim_waits.hit(&mut self.rng) {
                    machine.disk.trim(through);
                }
                self.note(of, Mark::Note, || format!("trims its log through slot {through}"));
            }
            Action::Execute { .. }
            | Action::ReadAt { .. }
            | Action::ReadFailed { .. }
            | Action::RequestFailed { .. }
            | Action::Deadline(_) => unreachable!("the host has dealt with it"),
        }
        Ok(())
    }

    fn append(&mut self, of: usize, lsn: Lsn, record: LogRecord) -> Checked {
        self.rests_on_backup(of, &record)?;
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        machine.disk.append(lsn, &record);
        self.coverage.slots_fetched += u64::from(is_learned(&record));
        if machine.copied {
            // What it writes is set aside, and tells nothing of what the replica said.
            return Ok(());
        }
        let replica = life.host.replica(GroupId::FIRST);
        let table = std::sync::Arc::clone(replica.history().delivered());
        // Once the end of an epoch is delivered here, what the epoch has in later slots counts for nothing.
        let present = replica.group();
        let ended = matches!(&record, LogRecord::Protocol { epoch, .. } if *epoch < present.epoch);
        let counts = |slot, id| !(ended && slot >= present.first || table.voids(id));
        self.batches.appended(of, lsn, &record, counts)?;
        self.votes.appended(of, lsn, &record)?;
        self.memory.appended(of, lsn, &record)?;
        self.groups.appended(of, lsn, &record);
        if let LogRecord::Entered { group, .. } = &record {
            life.watch.enters(group.epoch);
        }
        self.situations.see(&Sight::Appends { of, record: &record });
        self.terms.appended(of, lsn, &record)?;
        let shown = self.shows_log(of);
        self.note_if(shown, of, Mark::Write, || format!("log {lsn}: {}", describe::record(&record)));
        Ok(())
    }

    /// Sends a message once the record that it rests on is durable.
    fn send_after(&mut self, of: usize, to: To, message: PeerMessage, after: Lsn) -> Checked {
        if let PeerMessage::Protocol { .. } = &message {
            self.has_backup(of)?;
        }
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        match &message {
            PeerMessage::Protocol { epoch, .. } => life.watch.says(*epoch)?,
            PeerMessage::Pushed { batches, .. } => self.coverage.slots_pushed += batches.len() as u64,
            _ => {}
        }
        let durable = machine.disk.durable();
        life.gate.durable(durable);
        let leaves = life.gate.send(after, (to, message));
        let Some((to, message)) = leaves else {
            let held = life.gate.waiting().last().expect("it waits");
            let bytes = held.1.1.encode().len() as u64;
            life.holds.messages += bytes;
            life.holds.largest_message = life.holds.largest_message.max(bytes);
            return Ok(());
        };
        machine.disk.relies(after);
        for &to in to.ids() {
            let life = self.machines[of].life.as_ref().expect("it runs");
            if life.gate.waiting().any(|(_, (held, _))| held.includes(to)) {
                self.situations.see(&Sight::Overtakes { message: &message });
            }
            let to = self.index(to);
            self.send(of, to, &message)?;
        }
        Ok(())
    }

    /// Queues a decided batch for execution, and compares it with what others delivered.
    fn execute_later(
        &mut self,
        of: usize,
        slot: Slot,
        ballots: Ballots,
        batch: Batch,
        waiters: Vec<(usize, Waiter)>,
    ) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let bytes = batch.bytes().len() as u64;
        life.watch.delivers(slot, bytes)?;
        life.holds.batches += bytes;
        let id = machine.id;
        machine.delivered = machine.delivered.max(slot);
        life.execution.push(Task::Execute { slot, ballots, batch: batch.clone(), waiters });
        let first = slot > self.reference.last();
        let mark = Mark::Delivers { first };
        self.note(of, mark, || format!("delivers slot {slot}: {}", describe::batch(&batch)));
        self.situations.see(&Sight::Delivers { of, first, batch: &batch });
        if first {
            let by_reference = self.reference.disseminates() && batch.reconfiguration().is_none();
            self.batches.delivered(slot, by_reference, &batch)?;
        }
        self.reference.delivered(id, slot, &batch)?;
        for command in batch.commands().filter(|_| first) {
            self.goodput.executed(self.now, &command.payload);
        }
        #[cfg(feature = "kv")]
        self.leases_end();
        #[cfg(feature = "kv")]
        self.decide_leases(slot)?;
        self.check_clock()?;
        self.group_moves(slot)?;
        self.check_chosen(of, slot, ballots, &batch)?;
        Ok(())
    }

    fn read_chunk(&mut self, of: usize, to: ReplicaId, slot: Slot, offset: u64, len_max: usize) {
        let now = self.time();
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return };
        let (_, named) = life.book.serve(now, to, GroupId::FIRST, slot, offset);
        let file = machine.disk.snapshot(named);
        let total = file.map_or(0, |file| file.len() as u64);
        let bytes = file.map(|file| {
            let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(file.len());
            file.slice(begin..(begin + len_max).min(file.len()))
        });
        let bytes = bytes.unwrap_or_default();
        self.notice_after_disk(of, Event::ChunkRead { to, slot, offset, total, bytes });
    }

    fn write_chunk(&mut self, of: usize, info: SnapshotInfo, offset: u64, bytes: Bytes) {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return };
        let begun = life.book.receive(GroupId::FIRST, info, offset, || Ok::<_, Infallible>(Vec::new()));
        let Ok(receiving) = begun;
        assert_eq!(receiving.len() as u64, offset, "pieces come in order");
        let fails = self.plan.disk.snapshot_fails.hit(&mut self.rng);
        let event = if fails {
            Event::SnapshotInstalled(None)
        } else {
            receiving.extend_from_slice(&bytes);
            Event::ChunkWritten { slot: info.slot, end: receiving.len() as u64 }
        };
        self.notice_after_disk(of, event);
    }

    /// In a script, records are shown only while the disk is what the story is about.
    fn shows_log(&self, of: usize) -> bool {
        self.network.wire() != Wire::Manual || self.machines[of].disk.is_stalled()
    }

    /// Tells a replica something after the time that its disk needs for a piece of a snapshot.
    pub(super) fn notice_after_disk(&mut self, of: usize, event: Event) {
        let (low, high) = self.plan.disk.snapshot;
        let wait = between(&mut self.rng, low, high);
        self.notice_after(of, wait, event);
    }

    /// The time since the beginning, for what asks for none of a replica's clocks.
    pub(super) fn time(&self) -> Time {
        Time::ZERO + self.now.since(Moment::START)
    }

    /// Writes a snapshot file under its name. How many are left is for the book to say.
    pub(super) fn name_snapshot(&mut self, of: usize, slot: Slot, bytes: Bytes) -> Result<(), StorageError> {
        let now = self.time();
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let info = SnapshotInfo { slot, bytes: bytes.len() as u64 };
        life.book.written(GroupId::FIRST, info, None);
        for (_, kept) in life.book.keep(now, GroupId::FIRST) {
            let Kept::Newest(count) = kept else { unreachable!("a group that is alone") };
            machine.disk.write_snapshot(slot, bytes.clone(), count)?;
        }
        Ok(())
    }

    pub(super) fn notice_after(&mut self, of: usize, wait: Duration, event: Event) {
        let life = self.machines[of].lives;
        self.queue.push(self.now + wait, Happening::Notice { of, life, event: Box::new(event) });
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
        let lsn = match machine.disk.end_sync(self.plan.settings.consensus.planted) {
            Ok(Some(lsn)) => lsn,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.disk_fails(of, &error);
                return Ok(());
            }
        };
        let disk = &mut machine.disk;
        // Real files note that a loss is made good, once all that was written is durable. Until then it counts as one.
        let all_durable = lsn == disk.last();
        let votes = machine.life.as_ref().is_some_and(|life| life.replica().may_vote());
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
        if !self.machines[of].copied {
            if let Some(epoch) = self.groups.durable(of, lsn) {
                self.check_prefix(of, epoch)?;
            }
            self.votes.durable(of, lsn)?;
            self.batches.durable(of, lsn);
            self.memory.durable(of, lsn)?;
            self.terms.durable(of, lsn)?;
        }
        let shown = self.shows_log(of);
        self.note_if(shown, of, Mark::Durable, || format!("log durable to {lsn}"));
        self.happen(Happening::Progress { of, life })?;
        self.write_log(of);
        Ok(())
    }

    /// Checks that a replica that has durably entered an epoch holds everything that was decided before it, or lost
    /// some of it.
    fn check_prefix(&self, of: usize, epoch: Epoch) -> Checked {
        let machine = &self.machines[of];
        let missing = machine.disk.missing_before(self.groups.first_of(epoch)).filter(|_| !machine.disk.lost);
        demand(missing.is_none(), Invariant::WholePrefix, || {
            format!(
                "{} has entered epoch {epoch}; its disk lacks slot {}",
                machine.id,
                missing.unwrap_or_default()
            )
        })
    }

    /// Lets the messages leave whose records are durable.
    pub(super) fn release(&mut self, of: usize) -> Checked {
        let machine = &mut self.machines[of];
        let durable = machine.disk.durable();
        let Some(life) = &mut machine.life else { return Ok(()) };
        life.gate.durable(durable);
        let ready: Vec<_> = std::iter::from_fn(|| life.gate.leave()).collect();
        ready.iter().for_each(|(after, _)| machine.disk.relies(*after));
        life.holds.messages -=
            ready.iter().map(|(_, (_, message))| message.encode().len() as u64).sum::<u64>();
        for (_, (to, message)) in ready {
            for &to in to.ids() {
                let to = self.index(to);
                self.send(of, to, &message)?;
            }
        }
        Ok(())
    }
}
