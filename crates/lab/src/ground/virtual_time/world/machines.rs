//! Machines that start, work through what has come, wait for their disks, and carry out what their replicas want.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::Role;
use synod_replica::{Goal, Group, RequestError};
use synod_wire::{COMMAND_HEADER_BYTES, GroupId, Incarnation, ReplicaId, Time};

use super::{
    super::{
        client::Request,
        execution::Answered,
        machine::{Burst, Effects, Given, Kind, Machine, kind},
    },
    Happening, World,
};
use crate::study::LabError;

/// The time from the change of the group until the new replica starts.
const JOIN_DELAY: Duration = Duration::from_millis(50);
/// The bytes of an answer: those of Santos 2012, section 10.4, and as much around it as around a command.
const ANSWER_BYTES: usize = COMMAND_HEADER_BYTES + 8;

impl World<'_> {
    pub(super) fn join(&mut self, id: ReplicaId, place: usize) -> Result<(), LabError> {
        let life = Incarnation(self.random.u64(1..1_000_000));
        let mut machine = Machine::start(self.setup, self.groups, (id, place), &self.first, life, self.now);
        let burst = machine.begin(self.now)?;
        let others: Vec<_> = self.machines.keys().copied().collect();
        self.machines.insert(id, machine);
        self.carry_out(id, burst)?;
        for other in others {
            self.connect(id, other);
            self.connect(other, id);
        }
        self.schedule(id);
        Ok(())
    }

    /// Starts the members of a group that have not started.
    fn admit(&mut self, group: &Group) {
        let learners: Vec<_> = group.learners().collect();
        for (id, goal) in learners {
            let waits =
                self.happenings.values().any(|what| matches!(what, Happening::Join(one, _) if *one == id));
            if self.machines.contains_key(&id) || waits {
                continue;
            }
            let place = match goal {
                Goal::Replace(victim) => self.machines.get(&victim).map_or(0, |machine| machine.place),
                _ => id.0 as usize % self.setup.replicas,
            };
            self.after(JOIN_DELAY, Happening::Join(id, place));
        }
    }

    pub(super) fn give(&mut self, to: ReplicaId, group: GroupId, given: Given) {
        // A replica that has not started yet, or has been removed, receives nothing.
        let Some(machine) = self.machines.get_mut(&to).filter(|machine| !machine.retired) else { return };
        machine.push(group, given);
        self.schedule(to);
    }

    /// Schedules a processor to work as soon as it is free, if there is something to do.
    fn schedule(&mut self, id: ReplicaId) {
        let machine = self.machines.get_mut(&id).expect("a machine that has started");
        if machine.works_at == Time::NEVER && machine.has_work() {
            let at = machine.free_at.max(self.now);
            self.work_at(id, at);
        }
    }

    fn work_at(&mut self, id: ReplicaId, at: Time) {
        self.machines.get_mut(&id).expect("a machine that has started").works_at = at;
        self.at(at, Happening::Work(id));
    }

    /// Schedules a processor to work when something is due, unless it works earlier anyway.
    fn wake_later(&mut self, id: ReplicaId) {
        let machine = self.machines.get_mut(&id).expect("a machine that has started");
        let due = machine.due().max(self.now);
        if due < machine.wakes_at {
            machine.wakes_at = due;
            self.at(due, Happening::Work(id));
        }
    }

    pub(super) fn work(&mut self, id: ReplicaId) -> Result<(), LabError> {
        let (now, machine) = (self.now, self.machines.get_mut(&id).expect("a machine that has started"));
        for at in [&mut machine.wakes_at, &mut machine.works_at] {
            if *at <= now {
                *at = Time::NEVER;
            }
        }
        if machine.retired || machine.works_at < Time::NEVER {
            // What is due is done when it works.
            return Ok(());
        }
        if machine.due() > now && !machine.has_work() {
            self.wake_later(id);
            return Ok(());
        }
        if machine.free_at > now {
            let at = machine.free_at;
            self.work_at(id, at);
            return Ok(());
        }
        let processor = self.processors.iter().enumerate().min_by_key(|(_, until)| **until);
        if let Some((_, &until)) = processor.filter(|(_, until)| **until > now) {
            // All processors are busy with other replicas, or with the client.
            self.work_at(id, until);
            return Ok(());
        }
        let burst = machine.work(now)?;
        if let Some((processor, _)) = processor {
            self.processors[processor] = machine.free_at;
        }
        self.carry_out(id, burst)
    }

    /// What waited for the disk leaves, and the next commit begins.
    pub(super) fn committed(&mut self, id: ReplicaId) {
        let counts = !self.is_over();
        let Some(machine) = self.machines.get_mut(&id).filter(|machine| !machine.retired) else { return };
        let next = machine.committed();
        if counts {
            machine.usage.commits += 1.0;
        }
        let groups: Vec<_> = machine.hosted.iter().map(|hosted| hosted.group).collect();
        let held: Vec<_> = std::iter::from_fn(|| machine.disk.release()).collect();
        for (at, (to, message, bytes)) in held {
            self.send(id, to, groups[usize::from(at.0)], (message, bytes), self.now);
        }
        if let Some(time) = next {
            self.after(time, Happening::Committed(id));
        }
        self.schedule(id);
    }

    /// Carries out the effects of a burst, which leave when it is over, and those of the turn of execution after it.
    fn carry_out(&mut self, id: ReplicaId, burst: Burst) -> Result<(), LabError> {
        let (machine, leaves) = (&self.machines[&id], burst.leaves);
        let groups: Vec<_> = machine.hosted.iter().map(|hosted| hosted.group).collect();
        if let Some(time) = burst.commit {
            self.at(leaves + time, Happening::Committed(id));
        }
        if !self.is_over() {
            let usage = &mut self.machines.get_mut(&id).expect("it has started").usage;
            usage.busy += burst.busy;
            usage.bursts += burst.woken;
        }
        for ((at, group), effects) in (0u16..).map(GroupId).zip(groups).zip(burst.groups) {
            self.carry_out_of(id, (at, group), effects, leaves)?;
        }
        self.wake_later(id);
        self.schedule(id);
        Ok(())
    }

    /// Carries out what a burst caused in a group, which has the number `at` at the machine.
    fn carry_out_of(
        &mut self,
        id: ReplicaId,
        (at, group): (GroupId, GroupId),
        effects: Effects,
        leaves: Time,
    ) -> Result<(), LabError> {
        let over = self.is_over();
        for (after, held) in effects.messages {
            let (message, bytes) = (&held.1, held.2 as u64);
            match kind(message) {
                Kind::Decide => self.traffic.decides += 1,
                Kind::Sync => self.traffic.sync_bytes += bytes,
                Kind::Other => {}
            }
            self.stopwatch.sent(self.now, message);
            self.traffic.messages += 1;
            self.traffic.bytes += bytes;
            if !over {
                let sent = &mut self.sent[usize::from(group.0)];
                (sent.messages, sent.bytes) = (sent.messages + 1, sent.bytes + bytes);
            }
            let machine = self.machines.get_mut(&id).expect("it has started");
            if let Some((to, message, bytes)) = machine.disk.send(at, after, held) {
                self.send(id, to, group, (message, bytes), leaves);
            }
        }
        let failed = effects.failed.into_iter().map(|(request, error)| (request, Err(error)));
        self.answer_clients(id, group, failed, leaves)?;
        if effects.leader {
            let status = self.machines[&id].replica(group).status();
            let view = status.protocol.view;
            if status.protocol.role == Role::Leader && view.leader == Some(id) {
                let back = self.way(group, self.machines[&id].place)?.1;
                self.at(leaves + back, Happening::Hear(group, status.epoch, view.ballot, id));
            }
        }
        for answered in effects.answered {
            self.executed(id, group, answered)?;
        }
        if !over {
            self.sent[usize::from(group.0)].skips += effects.skips;
        }
        if let Some(group) = effects.group {
            self.admit(&group);
        }
        Ok(())
    }

    /// A machine has executed a batch of a group.
    fn executed(&mut self, id: ReplicaId, group: GroupId, answered: Answered) -> Result<(), LabError> {
        let (place, over) = (self.machines[&id].place, self.is_over());
        let Answered { at, slot, answers, merged: values } = answered;
        self.answer_clients(id, group, answers.into_iter(), at)?;
        if group == GroupId::FIRST {
            let leads = self.clients[0].leader() == Some(id);
            self.discovery.found(slot, leads, place, at);
        }
        if let Some(merged) = self.merged.get_mut(&(place, group)).filter(|_| !over) {
            let (groups, proposed) = (self.clients.len() as u64, &self.proposed[usize::from(group.0)]);
            for value in values {
                merged.executed(proposed[(value / groups) as usize], at);
            }
        }
        Ok(())
    }

    /// Answers to clients leave a machine.
    fn answer_clients(
        &mut self,
        id: ReplicaId,
        group: GroupId,
        answers: impl Iterator<Item = (Request, Result<Bytes, RequestError>)>,
        leaves: Time,
    ) -> Result<(), LabError> {
        let (back, beside) = (self.way(group, self.machines[&id].place)?.1, self.seats(group).load.beside);
        for (request, answer) in answers {
            let through = if beside { leaves } else { self.through_card(id, ANSWER_BYTES, leaves) };
            self.at(through + back, Happening::Answer((group, request, answer)));
        }
        Ok(())
    }
}
