//! One machine with its processor and its inbox, the replicas of the groups that it hosts, and what executes for them.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use synod_consensus::{Message, sequence_paxos};
use synod_replica::{
    Action, Clocked, Event, Executor, Group, MergedExecutor, Outcome as Executed, Pace, PeerMessage,
    Recovered, Replica, RequestError, RequestId, StateMachine,
};
use synod_wire::{Ballot, Ballots, Batch, CommandKind, GroupId, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{
    Usage,
    disk::{Disk, Held},
    groups::Groups,
};
use crate::{
    ground::{Setup, hardware::Costs, registry::Registry},
    study::LabError,
};

/// How many events are handled before their effects leave, as on a server.
const BURST_MAX: usize = 512;

/// A machine in virtual time.
pub(super) struct Machine {
    pub(super) id: ReplicaId,
    /// Its site: the place in the topology of the machine that it is, or whose place it took.
    pub(super) place: usize,
    /// The replicas of the groups that it hosts, by the numbers of the groups.
    pub(super) hosted: Vec<Hosted>,
    pub(super) executing: Executing,
    /// When the groups that it leads skip, if groups are merged.
    pace: Option<Pace>,
    /// Events that wait for the processor, each with the place of its group in `hosted`.
    inbox: VecDeque<(usize, Event)>,
    /// Whether the processor has been scheduled to handle the inbox.
    pub(super) scheduled: bool,
    pub(super) free_at: Time,
    /// It is removed, or it has failed.
    pub(super) retired: bool,
    /// Until when its network card is busy with what it sends.
    pub(super) sends_until: Time,
    /// Until when its network card is busy with what it receives.
    pub(super) receives_until: Time,
    pub(super) usage: Usage,
    pub(super) disk: Disk,
    costs: Costs,
}

/// The replica of a group.
pub(super) struct Hosted {
    pub(super) group: GroupId,
    pub(super) replica: Replica,
    deadline: Time,
    /// It has taken an event since it was last flushed.
    touched: bool,
    actions: Vec<Action>,
}

/// What executes the batches of the groups that a machine hosts.
pub(super) enum Executing {
    /// Each group has a state machine of its own.
    Apart(Vec<Executor<Registry>>),
    /// One state machine executes all of them in one order.
    Merged(Box<MergedExecutor<Registry, Decided>>),
}

/// What comes with a batch that waits for its turn.
#[derive(Debug)]
pub(super) struct Decided {
    /// The requests that wait for its commands, each with its place in the batch.
    requests: Vec<(usize, RequestId)>,
    /// The values that clients proposed.
    values: Vec<u64>,
}

/// The effects of a burst outside of the machine.
#[derive(Default)]
pub(super) struct Burst {
    /// Those of each group that the machine hosts.
    pub(super) groups: Vec<Effects>,
    /// Commands that were executed.
    commands: usize,
    /// How long the commit takes that begins after the burst.
    pub(super) commit: Option<Duration>,
    /// 1 if something came from outside, else 0.
    pub(super) woken: f64,
    /// Seconds that it took.
    pub(super) busy: f64,
}

/// The effects of one group.
#[derive(Default)]
pub(super) struct Effects {
    /// The messages, each after the record that has to be durable before it leaves.
    pub(super) messages: Vec<(Lsn, Held)>,
    pub(super) answers: Vec<(RequestId, Result<Bytes, RequestError>)>,
    /// The new group, if it has changed.
    pub(super) group: Option<Group>,
    /// Whether the leader has changed.
    pub(super) leader: bool,
    /// The last slot that was executed, if any was.
    pub(super) executed: Option<Slot>,
    /// The values of clients that were executed in one order with other groups.
    pub(super) merged: Vec<u64>,
    /// Skips that were proposed.
    pub(super) skips: u64,
}

impl Machine {
    /// A machine without a past. Its replicas' random numbers depend on its id and on `life`.
    pub(super) fn start(
        setup: &Setup,
        groups: &Groups,
        (id, place): (ReplicaId, usize),
        first: &[Group],
        life: Incarnation,
        now: Time,
    ) -> Machine {
        let costs = setup.hardware.costs.clone();
        let numbers: Vec<_> = groups.hosted_at(place).collect();
        let begun = || numbers.iter().map(|group| first[usize::from(group.0)].clone());
        let hosted =
            numbers.iter().map(|&group| Hosted::start(setup, groups, (id, place), group, first, life, now));
        let hosted: Vec<_> = hosted.collect();
        let executing = match &groups.merge {
            Some(merge) if groups.merges_at(place) => {
                Executing::Merged(Box::new(MergedExecutor::new(Registry::default(), begun(), merge.take)))
            }
            _ => Executing::Apart(begun().map(|group| Executor::new(Registry::default(), group)).collect()),
        };
        let pace = groups.merge.as_ref().map(|merge| Pace::new(merge.skips, merge.take, hosted.len(), now));
        Machine {
            id,
            place,
            executing,
            pace,
            inbox: VecDeque::new(),
            scheduled: false,
            free_at: now,
            retired: false,
            sends_until: now,
            receives_until: now,
            usage: Usage::default(),
            disk: Disk::new(setup.durability, costs.fsync(), hosted.len()),
            hosted,
            costs,
        }
    }

    /// The place of a group in `hosted`, if the machine hosts it.
    fn at(&self, group: GroupId) -> Option<usize> {
        self.hosted.iter().position(|hosted| hosted.group == group)
    }

    /// Whether the machine hosts a group.
    pub(super) fn hosts(&self, group: GroupId) -> bool {
        self.at(group).is_some()
    }

    /// The replica of a group.
    ///
    /// # Panics
    /// If the machine does not host the group.
    pub(super) fn replica(&self, group: GroupId) -> &Replica {
        &self.hosted[self.at(group).expect("it hosts the group")].replica
    }

    pub(super) fn push(&mut self, group: GroupId, event: Event) {
        if let Some(at) = self.at(group) {
            self.inbox.push_back((at, event));
        }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// When it has something to do, whatever comes.
    pub(super) fn deadline(&self) -> Time {
        let due = self.pace.as_ref().map_or(Time::NEVER, Pace::due);
        self.hosted.iter().map(|hosted| hosted.deadline).fold(due, Time::min)
    }

    /// Carries out the actions of the start.
    pub(super) fn begin(&mut self) -> Result<Burst, LabError> {
        let mut burst = Burst::default();
        self.carry_out(&mut burst)?;
        Ok(burst)
    }

    /// Handles the inbox. `free_at` then tells when the processor is done with it.
    pub(super) fn work(&mut self, now: Time) -> Result<Burst, LabError> {
        let (mut cost, mut woken) = (0.0, false);
        for (at, hosted) in self.hosted.iter_mut().enumerate() {
            if hosted.deadline <= now {
                hosted.deadline = Time::NEVER;
                self.inbox.push_back((at, Event::Timer));
            }
        }
        for _ in 0..BURST_MAX {
            let Some((at, event)) = self.inbox.pop_front() else { break };
            woken |= matches!(event, Event::Receive { .. } | Event::Request { .. });
            cost += match &event {
                Event::Receive { message, .. } => self.costs.message(size(message)),
                Event::Request { payload, .. } => self.costs.request(payload.len()),
                _ => 0.0,
            };
            self.hosted[at].step(now, event);
        }
        self.flush(now);
        let mut burst = Burst::default();
        let skips = self.skip(now);
        self.carry_out(&mut burst)?;
        skips.into_iter().for_each(|at| burst.groups[at].skips += 1);
        let messages = burst.groups.iter().flat_map(|effects| &effects.messages);
        cost += messages.map(|(_, (.., bytes))| self.costs.message(*bytes)).sum::<f64>();
        if woken {
            cost += self.costs.burst_nanos;
            burst.woken = 1.0;
        }
        cost += burst.commands as f64 * self.costs.execute_nanos;
        self.free_at = now + Duration::from_nanos(cost as u64);
        burst.busy = cost / 1e9;
        Ok(burst)
    }

    fn flush(&mut self, now: Time) {
        for hosted in self.hosted.iter_mut().filter(|hosted| hosted.touched) {
            hosted.touched = false;
            hosted.replica.flush(now, &mut hosted.actions);
        }
    }

    /// Has groups skip positions of the common order. Returns the places of those that do.
    fn skip(&mut self, now: Time) -> Vec<usize> {
        let Some(pace) = &mut self.pace else { return Vec::new() };
        let skips = pace.skips(now, self.hosted.iter().map(|hosted| &hosted.replica));
        for &(at, target) in &skips {
            self.hosted[usize::from(at.0)].step(now, Event::Skip(target));
        }
        self.flush(now);
        skips.into_iter().map(|(at, _)| usize::from(at.0)).collect()
    }

    fn carry_out(&mut self, burst: &mut Burst) -> Result<(), LabError> {
        burst.groups.resize_with(self.hosted.len(), Effects::default);
        let durable = self.disk.durable();
        for at in 0..self.hosted.len() {
            let mut actions = std::mem::take(&mut self.hosted[at].actions);
            for action in actions.drain(..) {
                self.carry_out_one(at, action, burst)?;
            }
            self.hosted[at].actions = actions;
        }
        self.execute_turns(burst);
        burst.commit = self.disk.commit();
        for (at, (before, now)) in durable.into_iter().zip(self.disk.durable()).enumerate() {
            if now > before {
                self.inbox.push_back((at, Event::Durable(now)));
            }
        }
        let clock = self.executing.clock();
        for (at, effects) in burst.groups.iter().enumerate() {
            self.inbox.extend(effects.executed.map(|slot| (at, Event::Executed { slot, clock: clock[at] })));
        }
        Ok(())
    }

    fn carry_out_one(&mut self, at: usize, action: Action, burst: &mut Burst) -> Result<(), LabError> {
        let effects = &mut burst.groups[at];
        match action {
            Action::Append { lsn, record } => self.disk.append(at, &record, lsn),
            Action::Send { to, message, after } => {
                let bytes = size(&message);
                let each = to.ids().iter();
                effects.messages.extend(each.map(|&to| (after, (to, message.clone(), bytes))));
            }
            Action::Execute { slot, ballots, batch, requests } => match &mut self.executing {
                Executing::Apart(executors) => {
                    let outcomes = executors[at].execute(slot, ballots, &batch, |_| true);
                    burst.commands += outcomes.len();
                    effects.add(slot, requests, &outcomes);
                }
                Executing::Merged(merged) => take(merged, at, slot, ballots, batch, requests),
            },
            Action::RequestFailed { request, error } => effects.answers.push((request, Err(error))),
            Action::Deadline(deadline) => self.hosted[at].deadline = deadline,
            Action::Group(group) => effects.group = Some(group),
            Action::Leader(_) => effects.leader = true,
            Action::Retired => self.retired = true,
            Action::Forked(fork) => {
                return Err(LabError::Replicas(format!("replicas that decided the same: {fork:?}")));
            }
            Action::TwoProposals { ballot, slot } => {
                let why = format!("two batches were proposed for slot {slot} in ballot {ballot}");
                return Err(LabError::Replicas(why));
            }
            Action::UnknownChange { slot } => {
                let why = format!("a change in slot {slot} is not known");
                return Err(LabError::Replicas(why));
            }
            Action::Agreed(_) => {}
            Action::TakeSnapshot
            | Action::ReadChunk { .. }
            | Action::WriteChunk { .. }
            | Action::InstallSnapshot(_) => {
                let what = "a run in virtual time that takes snapshots; choose a shorter window";
                return Err(LabError::Replicas(what.to_owned()));
            }
            Action::ReadAt { .. } | Action::ReadFailed { .. } | Action::Trim(_) => {}
        }
        Ok(())
    }

    /// Executes what has its turn in the order of several groups.
    fn execute_turns(&mut self, burst: &mut Burst) {
        let Executing::Merged(merged) = &mut self.executing else { return };
        while let Some((group, slot, decided, outcomes)) = merged.execute(|_, _| true) {
            burst.commands += outcomes.len();
            let effects = &mut burst.groups[usize::from(group.0)];
            effects.add(slot, decided.requests, &outcomes);
            effects.merged.extend(decided.values);
        }
    }

    /// How many batches of a group wait for other groups, if the machine executes several in one order.
    pub(super) fn waiting(&self) -> Vec<(GroupId, u64)> {
        let Executing::Merged(merged) = &self.executing else { return Vec::new() };
        let places = (0u16..).map(GroupId).zip(&self.hosted).map(|(at, hosted)| {
            let learned = hosted.replica.merged_at().map_or(0, |place| place.batches);
            (hosted.group, learned.saturating_sub(merged.place_of(at).batches))
        });
        places.collect()
    }

    /// The last slot of a group that it executed, and its ballot.
    pub(super) fn standing(&self, group: GroupId) -> (Slot, Ballot) {
        let at = self.at(group).expect("it hosts the group");
        match &self.executing {
            Executing::Apart(executors) => (executors[at].applied(), executors[at].ballots().proposed),
            Executing::Merged(merged) => {
                (merged.executor().applied_of(GroupId(at as u16)), merged.executor().ballots().proposed)
            }
        }
    }

    /// What was executed of a group, together with what is in one order with it.
    pub(super) fn registry(&self, group: GroupId) -> &Registry {
        match &self.executing {
            Executing::Apart(executors) => executors[self.at(group).expect("it hosts the group")].machine(),
            Executing::Merged(merged) => merged.executor().machine(),
        }
    }

    /// Depends on what was executed of a group, and on the order of it.
    pub(super) fn digest(&self, group: GroupId) -> u64 {
        match &self.executing {
            Executing::Apart(executors)
                if !self.hosted.iter().any(|hosted| hosted.replica.merged_at().is_some()) =>
            {
                executors[self.at(group).expect("it hosts the group")].digest()
            }
            // Sessions differ while skips go on.
            _ => self.registry(group).digest(),
        }
    }
}

/// Takes a batch that waits for its turn.
fn take(
    merged: &mut MergedExecutor<Registry, Decided>,
    at: usize,
    slot: Slot,
    ballots: Ballots,
    batch: Batch,
    requests: Vec<(usize, RequestId)>,
) {
    let of_clients = batch.commands().filter(|command| command.kind == CommandKind::Apply);
    let values = of_clients.filter_map(|command| value_of(&command.payload)).collect();
    let known = merged.take(GroupId(at as u16), slot, ballots, batch, Decided { requests, values });
    assert!(known.is_none(), "there are no snapshots that would have brought it");
}

/// The value that a command of a client carries.
fn value_of(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|value| u64::from_le_bytes(*value))
}

impl Hosted {
    fn start(
        setup: &Setup,
        groups: &Groups,
        (id, place): (ReplicaId, usize),
        group: GroupId,
        first: &[Group],
        life: Incarnation,
        now: Time,
    ) -> Hosted {
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: None,
            amnesia: false,
            birth: 1,
            incarnation: life,
            nonce: 0,
            met_all: true,
        };
        let number = usize::from(group.0);
        let mut settings = setup.settings_of(place);
        // A run is short enough to keep everything.
        (settings.snapshot_slots, settings.snapshot_log_bytes) = (u64::MAX, u64::MAX);
        settings.merged = groups.merge.is_some();
        if let Some(leader) = groups.groups[number].leader {
            settings.consensus.priority = u8::from(leader == place);
        }
        let mut actions = Vec::new();
        let replica = Replica::start(settings, id, first[number].clone(), recovered, now, &mut actions);
        Hosted { group, replica, deadline: Time::NEVER, touched: false, actions }
    }

    fn step(&mut self, now: Time, event: Event) {
        self.replica.step(now, event, &mut self.actions);
        self.touched = true;
    }
}

impl Executing {
    /// What each group is told of the replicated clock.
    fn clock(&self) -> Vec<Clocked> {
        match self {
            Executing::Apart(executors) => {
                executors.iter().map(|executor| executor.clocked(GroupId::FIRST)).collect()
            }
            Executing::Merged(merged) => {
                let executor = merged.executor();
                (0..executor.groups()).map(|at| executor.clocked(GroupId(at as u16))).collect()
            }
        }
    }
}

impl Effects {
    /// The batch of a slot was executed with these outcomes, which requests wait for.
    fn add(&mut self, slot: Slot, requests: Vec<(usize, RequestId)>, outcomes: &[Executed]) {
        for (place, request) in requests {
            let answer = match &outcomes[place] {
                Executed::Reply(reply) => Ok(reply.clone()),
                Executed::Error(error) => Err(*error),
                Executed::Unanswered => unreachable!("all are awaited"),
            };
            self.answers.push((request, answer));
        }
        self.executed = Some(slot);
    }
}

/// A command of the client.
pub(super) fn request(request: RequestId, kind: CommandKind, payload: Bytes) -> Event {
    Event::Request { request, kind, session: None, payload }
}

fn size(message: &PeerMessage) -> usize {
    message.encode().len()
}

/// The kinds of messages that are counted.
pub(super) enum Kind {
    /// It only tells that slots are decided.
    Decide,
    /// It brings a follower in line with a new leader.
    Sync,
    /// Everything else.
    Other,
}

/// Sorts a message.
pub(super) fn kind(message: &PeerMessage) -> Kind {
    let PeerMessage::Protocol { message, .. } = message else { return Kind::Other };
    match message {
        Message::SequencePaxos(sequence_paxos::Message::Decide { .. }) => Kind::Decide,
        Message::SequencePaxos(sequence_paxos::Message::AcceptSync(_)) => Kind::Sync,
        _ => Kind::Other,
    }
}
