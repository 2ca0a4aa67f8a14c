//! What replicas want done: the log, messages, and what is for the executor or for snapshots.

use std::{convert::Infallible, time::Duration};

use synod_host::{Effect, ReadAt};
use synod_replica::{Action, Event, Group, SnapshotInfo};
use synod_wire::{CommandKind, GroupId, Slot};

use super::{
    Happening, Situation, World,
    clients::{Ask, Response},
    machine::{Job, Waiter, id, index},
};
use crate::{
    check::{Checked, Invariant, demand},
    network::between,
    sealed::unsealed,
};

impl World {
    /// Carries out something that a group wants.
    pub(super) fn carry_out(&mut self, of: usize, group: GroupId, effect: Effect<Waiter, Ask>) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        match effect {
            Effect::Execute { slot, ballots, batch, clients } => {
                let before = std::mem::replace(&mut life.hosted[usize::from(group.0)].delivered, slot);
                demand(slot == before.next(), Invariant::DeliveryOrder, || {
                    format!("r{} delivers slot {slot} of {group} after slot {before}", of + 1)
                })?;
                let job = Job::Execute { slot, ballots, batch: batch.clone(), replies: clients };
                life.execution.push((group, job));
                self.line(of, || {
                    format!("delivers slot {slot} of {group}: {}", crate::describe::batch(&batch))
                });
                self.order.delivered(of, group, slot, &batch)?;
                self.leases_end();
                self.note_batch(group, slot);
            }
            Effect::Read(ReadAt::Slots(slots), reads) => {
                life.execution.push((group, Job::Read { slots, reads }));
            }
            Effect::Read(ReadAt::Slot(_), _) => unreachable!("the groups are merged"),
            Effect::ReadFailed(reads, error) => {
                reads.iter().for_each(|ask| self.respond(ask, Response::Failed(error)));
            }
            Effect::CommandFailed(waiter, error) => match waiter {
                Waiter::Client(ask) => self.respond(&ask, Response::Failed(error)),
                Waiter::Keeper => self.kept(of, None),
                Waiter::Operator | Waiter::Guest(_) => {}
            },
            Effect::Action(action) => self.act(of, group, action)?,
        }
        Ok(())
    }

    fn act(&mut self, of: usize, group: GroupId, action: Action) -> Checked {
        let at = usize::from(group.0);
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        match action {
            Action::Append { lsn, record } => self.machines[of].disk.append(group, lsn, &record),
            Action::Send { to, message, after } => {
                if let Some((to, message)) = life.hosted[at].gate.send(after, (to, message)) {
                    to.ids().iter().for_each(|&to| self.send(of, index(to), group, &message));
                }
            }
            Action::TakeSnapshot => life.execution.push((group, Job::Freeze)),
            Action::ReadChunk { to, slot, offset, len_max } => {
                let event = self.read_chunk(of, group, to, slot, offset, len_max);
                self.notice_later(of, Duration::ZERO, vec![(group, event)]);
            }
            Action::WriteChunk { info, offset, bytes } => {
                let book = &mut life.snapshots.book;
                let begun = book.receive(group, info, offset, || Ok::<_, Infallible>(Vec::new()));
                let Ok(content) = begun;
                content.resize(usize::try_from(offset).expect("small"), 0);
                content.extend_from_slice(&bytes);
                let end = content.len() as u64;
                let wait = between(&mut self.rng, Duration::ZERO, Duration::from_micros(200));
                self.notice_later(of, wait, vec![(group, Event::ChunkWritten { slot: info.slot, end })]);
            }
            Action::InstallSnapshot(info) => self.finish(of, group, info),
            Action::Trim(through) => self.machines[of].disk.trim(group, through),
            Action::Forked(fork) => demand(false, Invariant::Agreement, || {
                format!("r{} differs from {} in {group}: {fork:?}", of + 1, fork.with)
            })?,
            Action::TwoProposals { ballot, slot } => demand(false, Invariant::OneProposal, || {
                format!("r{} is given two batches for slot {slot} of {group} in ballot {ballot}", of + 1)
            })?,
            Action::UnknownChange { slot } => demand(false, Invariant::Sound, || {
                format!("r{} does not know the change in slot {slot} of {group}", of + 1)
            })?,
            Action::Group(after) => self.regroup(of, group, &after),
            Action::Retired => {
                life.hosted[at].retired = true;
                self.line(of, || format!("is not needed in {group} any more"));
            }
            Action::Leader(_) | Action::Agreed(_) => {}
            Action::Execute { .. }
            | Action::ReadAt { .. }
            | Action::ReadFailed { .. }
            | Action::RequestFailed { .. }
            | Action::Deadline(_) => unreachable!("the host has dealt with it"),
        }
        Ok(())
    }

    /// A replica has another group, or begins with one.
    fn regroup(&mut self, of: usize, group: GroupId, after: &Group) {
        let Some(life) = &mut self.machines[of].life else { return };
        let hosted = &mut life.hosted[usize::from(group.0)];
        hosted.retired &= after.member(id(of)).is_none();
        let is_first = hosted.delivered == Slot::ZERO;
        self.line(of, || format!("{group} is {}", crate::describe::group(after)));
        if is_first {
            return;
        }
        let began = &self.plan.groups[usize::from(group.0)].consensus;
        if (after.protocol, after.election) != (began.protocol, began.election) {
            self.counts.see(Situation::ProtocolChanges);
        }
        if after.placement.is_some() {
            self.counts.see(Situation::VotersChosen);
        }
        if group == GroupId::FIRST {
            self.members_change(after);
        }
    }

    /// The received snapshot of a group becomes a file, and the executor is to go on from it.
    fn finish(&mut self, of: usize, group: GroupId, info: SnapshotInfo) {
        let Some(life) = &mut self.machines[of].life else { return };
        let book = &mut life.snapshots.book;
        let whole = book.received(group, info).filter(|bytes| bytes.len() as u64 == info.bytes);
        let accepted = whole.and_then(|bytes| {
            let bytes = bytes.into();
            let file = book.accepted(group, info, &mut &unsealed(&bytes)?[..])?;
            Some((file, bytes))
        });
        let Some((file, bytes)) = accepted else {
            self.line(of, || format!("has received a snapshot of {group} that is not what it asked for"));
            self.notice_later(of, Duration::ZERO, vec![(group, Event::SnapshotInstalled(None))]);
            return;
        };
        life.snapshots.book.named(file);
        life.execution.push((group, Job::Restore(info)));
        self.machines[of].disk.write_file((group, info.slot), bytes);
    }

    /// Records what a decided batch says.
    fn note_batch(&mut self, group: GroupId, slot: Slot) {
        let places = self.order.batch(group, slot).places();
        let moved = self.order.place(group, slot) != self.order.place(group, slot.prev());
        if places.skips_to.is_some() && !moved {
            self.counts.see(Situation::SkipWithoutWeight);
        }
        let mut kinds = self.order.batch(group, slot).commands().map(|command| command.kind);
        if places.executes && kinds.any(|kind| kind == CommandKind::Skip) {
            self.counts.see(Situation::SkipAmongCommands);
        }
    }

    pub(super) fn notice_later(&mut self, of: usize, wait: Duration, events: Vec<(GroupId, Event)>) {
        let life = self.machines[of].lives;
        self.queue.push(self.now + wait, Happening::Notice { of, life, events });
    }

    /// Begins a sync if there is something to be made durable.
    pub(super) fn write_log(&mut self, of: usize) {
        let machine = &mut self.machines[of];
        if machine.life.is_some() && machine.disk.begin_sync() {
            let (life, wait) = (machine.lives, between(&mut self.rng, self.plan.sync.0, self.plan.sync.1));
            self.queue.push(self.now + wait, Happening::SyncEnds { of, life });
        }
    }

    /// A sync ends, unless the disk is stalled: then it ends when that is over.
    pub(super) fn sync_ends(&mut self, of: usize, life: u64) -> Checked {
        let machine = &mut self.machines[of];
        if machine.in_life(life).is_none() || machine.stalled {
            return Ok(());
        }
        let durable = machine.disk.end_sync();
        for (group, lsn) in durable {
            let Some(life) = &mut self.machines[of].life else { return Ok(()) };
            life.ahead.insert(group);
            let gate = &mut life.hosted[usize::from(group.0)].gate;
            gate.durable(lsn);
            let ready: Vec<_> = std::iter::from_fn(|| gate.leave()).collect();
            for (_, (to, message)) in ready {
                to.ids().iter().for_each(|&to| self.send(of, index(to), group, &message));
            }
        }
        self.end_burst(of)
    }
}
