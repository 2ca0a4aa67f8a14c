//! The executor's work, and that of the thread of snapshots.

use std::time::Duration;

use synod_host::Kept;
use synod_replica::{Cut, Event, Group, Outcome, RequestError, Restored, SnapshotInfo};
use synod_wire::{GroupId, ReplicaId, Slot, Time};

use super::{
    Happening, Situation, World,
    clients::Response,
    machine::{Draft, Job, Replies, Waiter},
};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::Moment,
    network::between,
    sealed::{sealed, unsealed},
};

/// Tasks that the executor does in one go.
const BURST_MAX: usize = 8;

impl World {
    /// The time since the beginning, for what asks for none of a node's clocks.
    fn time(&self) -> Time {
        Time::ZERO + self.now.since(Moment::START)
    }

    /// Wakes the executor if it sleeps and has something to do.
    pub(super) fn go_on_executing(&mut self, of: usize) {
        let Some(life) = &mut self.machines[of].life else { return };
        if !life.execution.wake() {
            return;
        }
        let (life, wait) =
            (self.machines[of].lives, between(&mut self.rng, self.plan.execute.0, self.plan.execute.1));
        self.queue.push(self.now + wait, Happening::Execute { of, life });
    }

    /// The executor does some of its jobs.
    pub(super) fn execute(&mut self, of: usize, number: u64) -> Checked {
        for _ in 0..BURST_MAX {
            let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
            let Some((group, job)) = life.execution.begin() else { break };
            match job {
                Job::Execute { slot, ballots, batch, replies } => {
                    match life.merged.take(group, slot, ballots, batch, replies) {
                        Some(replies) => self.give_up(of, replies),
                        None => self.execute_turns(of)?,
                    }
                }
                Job::Read { slots, reads } => {
                    life.waiting.push(slots, reads);
                    if !self.answer_reads(of)? {
                        self.counts.see(Situation::ReadWaitsForSkip);
                    }
                }
                Job::Freeze => self.freeze(of, group),
                Job::Restore(info) => self.restore(of, group, info)?,
            }
            let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
            life.execution.done();
        }
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        life.execution.sleep();
        self.go_on_executing(of);
        self.queue.push(self.now, Happening::Seen { of, life: number });
        Ok(())
    }

    /// Executes whatever has its turn.
    fn execute_turns(&mut self, of: usize) -> Checked {
        loop {
            let Some(life) = &mut self.machines[of].life else { return Ok(()) };
            let awaited =
                |replies: &Replies, at| at % 2 == 0 || replies.iter().any(|(place, _)| *place == at);
            let Some((group, slot, replies, outcomes)) = life.merged.execute(awaited) else { break };
            life.executed_more(group);
            let order = life.merged.executor().cut().order;
            self.line(of, || format!("executes slot {slot} of {group}, through batch {order}"));
            if of >= self.plan.nodes {
                self.counts.see(Situation::Joins);
            }
            self.order.executed(of, (group, slot), order, &outcomes)?;
            self.check_state(of)?;
            self.check_leases(of, order)?;
            for (place, waiter) in replies {
                let response = match &outcomes[place] {
                    Outcome::Reply(reply) => Response::Reply(reply.clone()),
                    Outcome::Error(error) => Response::Failed(*error),
                    Outcome::Unanswered => unreachable!("it was asked for"),
                };
                match (waiter, &outcomes[place]) {
                    (Waiter::Client(ask), _) => self.respond(&ask, response),
                    (Waiter::Keeper, Outcome::Reply(reply)) => self.kept(of, Some(reply)),
                    (Waiter::Keeper, _) => self.kept(of, None),
                    (Waiter::Guest(at), Outcome::Reply(reply)) => self.guest_told(at, order, reply.clone()),
                    (Waiter::Operator | Waiter::Guest(_), _) => {}
                }
            }
            self.check_compaction(of)?;
            self.check_guest(of)?;
        }
        self.answer_reads(of)?;
        let waits_for = self.machines[of].life.as_ref().and_then(|life| life.merged.waits_for());
        if waits_for.is_some_and(|group| self.leader_of(group).is_none()) {
            self.counts.see(Situation::LeaderlessGroup);
        }
        Ok(())
    }

    fn give_up(&mut self, of: usize, replies: Replies) {
        for (_, waiter) in replies {
            match waiter {
                Waiter::Client(ask) => self.respond(&ask, Response::Failed(RequestError::OutcomeUnknown)),
                Waiter::Keeper => self.kept(of, None),
                Waiter::Operator | Waiter::Guest(_) => {}
            }
        }
    }

    /// Compares a node's state with the reference.
    pub(super) fn check_state(&self, of: usize) -> Checked {
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        self.order.state(of, life.merged.executor())
    }

    /// Answers the reads that have waited for what is executed now; whether none is left.
    fn answer_reads(&mut self, of: usize) -> Result<bool, Violation> {
        let Some(life) = &mut self.machines[of].life else { return Ok(true) };
        let applied = life.merged.executor().cut().slots;
        let reached = |slots: &[Slot]| slots.iter().zip(&applied).all(|(slot, applied)| slot <= applied);
        let ready: Vec<_> = life.waiting.reached(|slots| reached(slots)).collect();
        let (none_left, executor) = (life.waiting.is_empty(), life.merged.executor());
        let asks = ready.into_iter().flatten();
        let answers: Vec<_> = asks.map(|ask| (executor.query(&ask.payload), ask)).collect();
        for (answer, ask) in answers {
            match ask.guest_read() {
                Some(read) => self.guest_read(of, read, &answer)?,
                None => self.respond(&ask, Response::Reply(answer)),
            }
        }
        Ok(none_left)
    }

    /// A group wants a snapshot.
    fn freeze(&mut self, of: usize, group: GroupId) {
        let Some(life) = &mut self.machines[of].life else { return };
        let Some((slot, cut, frozen)) = life.merged.freeze(group) else {
            self.notice_later(of, Duration::ZERO, vec![(group, Event::SnapshotTaken(None))]);
            return;
        };
        let mut file = Vec::new();
        frozen.write_to(&mut file).expect("memory takes everything");
        let writing = &mut life.snapshots.writing;
        writing.push_back(Draft { group, slot, cut, bytes: sealed(file) });
        if writing.len() == 1 {
            self.write_next(of);
        }
    }

    fn write_next(&mut self, of: usize) {
        let (life, (low, high)) = (self.machines[of].lives, self.plan.snapshot);
        let wait = between(&mut self.rng, low, high);
        self.queue.push(self.now + wait, Happening::Written { of, life });
    }

    /// A snapshot file is complete and durable; one that a crash interrupts does not exist.
    pub(super) fn written(&mut self, of: usize, number: u64) -> Checked {
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        let Some(Draft { group, slot, cut, bytes }) = life.snapshots.writing.pop_front() else {
            return Ok(());
        };
        let more = !life.snapshots.writing.is_empty();
        // Replicas have heard before of what the executor had installed when the state was frozen.
        let told_at = life.told_at.max(self.now);
        if !life.snapshots.book.may_be_named(group, slot, Some(&cut)) {
            self.line(of, || {
                format!("has a snapshot to slot {slot} of {group} that holds more than a new one")
            });
            let events = vec![(group, Event::SnapshotTaken(None))];
            self.queue.push(told_at, Happening::Notice { of, life: number, events });
            if more {
                self.write_next(of);
            }
            return Ok(());
        }
        let len = bytes.len() as u64;
        self.line(of, || format!("has a snapshot to slot {slot} of {group}: {}", super::slots(&cut.slots)));
        let (now, info) = (self.time(), SnapshotInfo { slot, bytes: len });
        let machine = &mut self.machines[of];
        machine.disk.write_file((group, slot), bytes);
        let Some(life) = &mut machine.life else { return Ok(()) };
        let shared = life.snapshots.book.written(group, info, Some(cut)).into_iter();
        let mut events: Vec<_> = shared.map(|(other, info)| (other, Event::SnapshotShared(info))).collect();
        events.push((group, Event::SnapshotTaken(Some(info))));
        let kept = life.snapshots.book.keep(now, group);
        let stays = |of, slot| {
            let is_kept = |(group, kept): &(GroupId, Kept)| {
                *group == of && matches!(kept, Kept::Slots(slots) if slots.contains(&slot))
            };
            kept.iter().any(is_kept)
        };
        machine.disk.retain(stays);
        if more {
            self.write_next(of);
        }
        self.queue.push(told_at, Happening::Notice { of, life: number, events });
        Ok(())
    }

    /// Reads a piece of the file that holds a group through this slot.
    pub(super) fn read_chunk(
        &mut self,
        of: usize,
        group: GroupId,
        to: ReplicaId,
        slot: Slot,
        offset: u64,
        len_max: usize,
    ) -> Event {
        let now = self.time();
        let Some(life) = &mut self.machines[of].life else { unreachable!("it asks") };
        let (named, slot_named) = life.snapshots.book.serve(now, to, group, slot, offset);
        let bytes = self.machines[of].disk.file(named, slot_named).cloned().unwrap_or_default();
        let (total, from) = (bytes.len() as u64, (offset as usize).min(bytes.len()));
        let bytes = bytes.slice(from..bytes.len().min(from + len_max));
        Event::ChunkRead { to, slot, offset, total, bytes }
    }

    /// The executor goes on from a snapshot that was received for a group.
    fn restore(&mut self, of: usize, group: GroupId, info: SnapshotInfo) -> Checked {
        let content = self.machines[of].disk.file(group, info.slot).and_then(unsealed);
        let Some(content) = content else {
            // Newer ones have taken its place meanwhile.
            self.line(of, || format!("has no file of slot {} of {group} any more", info.slot));
            return self.tell_in_order(of, vec![(group, Event::SnapshotInstalled(None))]);
        };
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let ids = |group: &Group| group.members.iter().map(|member| member.id).collect::<Vec<_>>();
        let before = life.merged.executor().cut();
        let members = ids(life.merged.executor().group_of(GroupId::FIRST));
        let cut = Cut::read_from(&mut &content[..]).ok().flatten().unwrap_or_else(|| before.clone());
        let restored = life.merged.restore(group, info, || Ok(&content[..]));
        let Restored { events, gone } = restored.map_err(|error| Violation {
            invariant: Invariant::Sound,
            detail: format!("r{} cannot install slot {} of {group}: {error}", of + 1, info.slot),
        })?;
        life.snapshots.book.restored(group, info.slot, true);
        let after = life.merged.executor().cut();
        if after.order > before.order {
            life.service.iter_mut().for_each(|service| service.installed += 1);
        }
        let has_others = members != ids(life.merged.executor().group_of(GroupId::FIRST));
        self.line(of, || {
            let [held, before] = [&cut.slots, &before.slots].map(|of| super::slots(of));
            format!("installs slot {} of {group} ({held}, batch {}; it had {before})", info.slot, cut.order)
        });
        for (at, (held, before)) in cut.slots.iter().zip(&before.slots).enumerate() {
            if at != usize::from(group.0) && held > before {
                self.counts.see(Situation::MovedOthers);
            }
            if held < before {
                self.counts.see(Situation::HeadKept);
            }
        }
        if of >= self.plan.nodes && before.order == 0 && after.order > 0 {
            self.counts.see(Situation::JoinsBySnapshot);
        }
        if has_others {
            self.counts.see(Situation::MembersBySnapshot);
        }
        if cut.order < before.order && after.slots != before.slots {
            self.counts.see(Situation::OlderInstalled);
        }
        if !gone.is_empty() {
            self.counts.see(Situation::GoneWithSnapshot);
        }
        demand(after.order >= before.order, Invariant::Monotone, || {
            format!("r{} goes back from batch {} to batch {}", of + 1, before.order, after.order)
        })?;
        self.check_state(of)?;
        self.check_compaction(of)?;
        self.check_guest(of)?;
        gone.into_iter().for_each(|replies| self.give_up(of, replies));
        let groups = self.groups();
        if let Some(life) = &mut self.machines[of].life {
            groups.for_each(|group| life.executed_more(group));
        }
        self.execute_turns(of)?;
        self.tell_in_order(of, events)
    }

    /// The executor tells replicas something, after all that it has told before.
    fn tell_in_order(&mut self, of: usize, events: Vec<(GroupId, Event)>) -> Checked {
        let wait = between(&mut self.rng, self.plan.execute.0, self.plan.execute.1);
        let (now, number) = (self.now, self.machines[of].lives);
        if let Some(life) = &mut self.machines[of].life {
            life.told_at = life.told_at.max(now + wait);
            self.queue.push(life.told_at, Happening::Notice { of, life: number, events });
        }
        Ok(())
    }
}
