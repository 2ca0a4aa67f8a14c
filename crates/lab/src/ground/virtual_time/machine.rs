//! One machine: its processor and its inbox, the replicas of the groups that it hosts, and what executes for them.
//!
//! It does what a node does that has one thread for all of this (`crates/node/src/protocol.rs`), with the same
//! [`Host`]: a burst of what has come, whose messages and records then leave, and a turn of execution.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{Message, sequence_paxos};
use synod_host::{BURST_MAX, Effect, Host, Input, Progress, Started};
use synod_replica::{
    Action, Event, Group, Pace, PeerMessage, Recovered, Replica, RequestError, StateMachine,
};
use synod_wire::{Ballot, CommandKind, GroupId, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{
    Usage,
    client::Request,
    disk::{Disk, Held},
    execution::{Answered, Execution},
    groups::Groups,
};
use crate::{
    ground::{Setup, hardware::Costs, registry::Registry},
    study::LabError,
};

/// A machine in virtual time.
pub(super) struct Machine {
    pub(super) id: ReplicaId,
    /// Its site: the place in the topology of the machine that it is, or whose place it took.
    pub(super) place: usize,
    /// The replicas of the groups that it hosts. Here a group has the number of its place in `hosted`.
    host: Host<Request, Infallible>,
    /// The groups that it hosts, by their numbers.
    pub(super) hosted: Vec<Hosted>,
    pub(super) execution: Execution,
    /// What waits for the processor, and what it costs if it came from outside, in nanoseconds.
    inbox: VecDeque<(Input<Request, Infallible>, Option<f64>)>,
    /// The groups that have become durable further since their replicas were told.
    durable: BTreeSet<GroupId>,
    /// When a processor works next for it, since it has something to do.
    pub(super) works_at: Time,
    /// When it looks next whether something is due.
    pub(super) wakes_at: Time,
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

/// What a machine knows of a group beside its replica.
pub(super) struct Hosted {
    pub(super) group: GroupId,
    /// The replica wants to hear at once of what becomes durable.
    waits_for_disk: bool,
    /// The replica wants to hear at once of what is executed.
    backlogged: bool,
}

/// What comes to a machine.
pub(super) enum Given {
    /// Something for the replica of a group, from its own machine.
    Event(Event),
    /// A message of a peer, and its bytes.
    Message(ReplicaId, PeerMessage, usize),
    /// A command of a client.
    Command(CommandKind, Bytes, Request),
}

/// The effects of a burst, and of the turn of execution after it, outside of the machine.
#[derive(Default)]
pub(super) struct Burst {
    /// When that leaves which replicas want sent and written.
    pub(super) leaves: Time,
    /// The effects of each group that the machine hosts.
    pub(super) groups: Vec<Effects>,
    /// How long the commit takes that begins after the burst.
    pub(super) commit: Option<Duration>,
    /// 1 if something came from outside, else 0.
    pub(super) woken: f64,
    /// Seconds that the burst and the turn took.
    pub(super) busy: f64,
}

/// The effects of one group.
#[derive(Default)]
pub(super) struct Effects {
    /// The messages, each after the record that has to be durable before it leaves.
    pub(super) messages: Vec<(Lsn, Held)>,
    /// Commands of clients that have failed.
    pub(super) failed: Vec<(Request, RequestError)>,
    /// The new group, if it has changed.
    pub(super) group: Option<Group>,
    /// Whether the leader has changed.
    pub(super) leader: bool,
    /// Batches that were executed.
    pub(super) answered: Vec<Answered>,
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
        let begun = numbers.iter().map(|group| first[usize::from(group.0)].clone());
        let execution = Execution::new(begun, groups.merge.as_ref().filter(|_| groups.merges_at(place)));
        let started = numbers.iter().map(|&group| start(setup, groups, (id, place), group, first, life, now));
        let pace = groups.merge.as_ref().map(|merge| Pace::new(merge.skips, merge.take, numbers.len(), now));
        let heartbeat = setup.settings.consensus.heartbeat_interval;
        let hosted = |group| Hosted { group, waits_for_disk: false, backlogged: false };
        Machine {
            id,
            place,
            host: Host::new(id, started.collect(), pace, heartbeat),
            execution,
            inbox: VecDeque::new(),
            durable: BTreeSet::new(),
            works_at: Time::NEVER,
            wakes_at: Time::NEVER,
            free_at: now,
            retired: false,
            sends_until: now,
            receives_until: now,
            usage: Usage::default(),
            disk: Disk::new(setup.durability, costs.fsync(), numbers.len()),
            hosted: numbers.into_iter().map(hosted).collect(),
            costs,
        }
    }

    /// The number that the host gives a group, if the machine hosts it.
    fn at(&self, group: GroupId) -> Option<GroupId> {
        let at = self.hosted.iter().position(|hosted| hosted.group == group)?;
        Some(GroupId(at as u16))
    }

    /// The same.
    ///
    /// # Panics
    /// If the machine does not host the group.
    fn number(&self, group: GroupId) -> GroupId {
        self.at(group).expect("it hosts the group")
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
        self.host.replica(self.number(group))
    }

    pub(super) fn push(&mut self, group: GroupId, given: Given) {
        let Some(group) = self.at(group) else { return };
        self.inbox.push_back(match given {
            Given::Event(event) => (Input::Event(group, event), None),
            Given::Message(from, message, bytes) => {
                (Input::Event(group, Event::Receive { from, message }), Some(self.costs.message(bytes)))
            }
            Given::Command(kind, payload, client) => {
                let cost = self.costs.request(payload.len());
                (Input::Command { group, kind, session: None, payload, client }, Some(cost))
            }
        });
    }

    /// Whether it has something to do now: also if a replica waits for what has happened on the disk or in execution.
    pub(super) fn has_work(&self) -> bool {
        let hosted = |group: &GroupId| &self.hosted[usize::from(group.0)];
        !self.inbox.is_empty()
            || self.execution.has_jobs()
            || self.durable.iter().any(|group| hosted(group).waits_for_disk)
            || self.execution.ahead.iter().any(|group| hosted(group).backlogged)
    }

    /// When it has something to do, whatever comes.
    pub(super) fn due(&self) -> Time {
        self.host.due()
    }

    /// Carries out what the start of the replicas wants done.
    pub(super) fn begin(&mut self, now: Time) -> Result<Burst, LabError> {
        let mut burst = Burst { leaves: now, ..Burst::default() };
        self.carry_out(now, &mut burst)?;
        self.write(&mut burst);
        self.leave(now);
        Ok(burst)
    }

    /// Handles the inbox, and executes for a while. `free_at` then tells when the processor is done with it.
    pub(super) fn work(&mut self, now: Time) -> Result<Burst, LabError> {
        let (mut cost, mut woken) = (0.0, false);
        for _ in 0..BURST_MAX {
            let Some((input, of_input)) = self.inbox.pop_front() else { break };
            woken |= of_input.is_some();
            cost += of_input.unwrap_or(0.0);
            self.host.step(now, input);
        }
        self.look(now);
        self.host.turn(now);
        let mut burst = Burst::default();
        self.carry_out(now, &mut burst)?;
        let skips = self.host.skip(now);
        if !skips.is_empty() {
            self.carry_out(now, &mut burst)?;
        }
        skips.into_iter().for_each(|(group, _)| burst.groups[usize::from(group.0)].skips += 1);
        let messages = burst.groups.iter().flat_map(|effects| &effects.messages);
        cost += messages.map(|(_, (.., bytes))| self.costs.message(*bytes)).sum::<f64>();
        if woken {
            cost += self.costs.burst_nanos;
            burst.woken = 1.0;
        }
        burst.leaves = now + Duration::from_nanos(cost as u64);
        self.write(&mut burst);
        self.leave(burst.leaves);
        let (answered, free_at) = self.execution.turn(burst.leaves, self.costs.execute_nanos);
        for (group, answered) in answered {
            burst.groups[usize::from(group.0)].answered.push(answered);
        }
        self.free_at = free_at;
        burst.busy = self.free_at.since(now).as_secs_f64();
        Ok(burst)
    }

    /// A commit of the disk has ended. Returns how long the next one takes, which begins at once.
    pub(super) fn committed(&mut self) -> Option<Duration> {
        self.disk.committed();
        let next = self.disk.commit();
        self.durable.extend(self.disk.take_further());
        next
    }

    /// Tells the replicas what has become durable and what was executed.
    fn look(&mut self, now: Time) {
        let mut ahead = std::mem::take(&mut self.durable);
        ahead.append(&mut self.execution.ahead);
        for group in ahead {
            let (executed, clock) = self.execution.shows(group);
            let progress = Progress { durable: self.disk.durable(group), executed, clock };
            self.host.step(now, Input::Progress(group, progress));
        }
    }

    /// Carries out what the touched groups want, as far as it stays on the machine.
    fn carry_out(&mut self, now: Time, burst: &mut Burst) -> Result<(), LabError> {
        burst.groups.resize_with(self.hosted.len(), Effects::default);
        let Machine { host, disk, execution, retired, .. } = self;
        let mut failed = None;
        host.carry_out(now, |group, _, effect| {
            let effects = &mut burst.groups[usize::from(group.0)];
            match effect {
                Effect::Execute { slot, ballots, batch, clients } => {
                    execution.push(group, slot, ballots, batch, clients);
                }
                Effect::CommandFailed(client, error) => effects.failed.push((client, error)),
                Effect::Read(..) | Effect::ReadFailed(..) => unreachable!("nobody asks"),
                Effect::Action(Action::Append { lsn, record }) => disk.append(group, &record, lsn),
                Effect::Action(Action::Retired) => *retired = true,
                Effect::Action(action) => failed = failed.take().or(effects.act(action).err()),
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// The disk begins a commit, if it can and has something to do.
    fn write(&mut self, burst: &mut Burst) {
        burst.commit = self.disk.commit();
        self.durable.extend(self.disk.take_further());
    }

    /// All that the burst wanted has left by now.
    fn leave(&mut self, now: Time) {
        let touched = self.host.end();
        for &group in &touched {
            let status = self.host.replica(group).status();
            let hosted = &mut self.hosted[usize::from(group.0)];
            (hosted.waits_for_disk, hosted.backlogged) = (status.waits_for_disk, status.backlogged);
        }
        self.execution.find(&touched);
        self.host.reuse(touched);
        self.free_at = now;
    }

    /// How many batches of a group wait for other groups, if the machine executes several in one order.
    pub(super) fn waiting(&self) -> Vec<(GroupId, u64)> {
        let places = (0u16..).map(GroupId).zip(self.host.replicas()).filter_map(|(at, replica)| {
            let learned = replica.merged_at().map_or(0, |place| place.batches);
            let executed = self.execution.batches_of(at)?;
            Some((self.hosted[usize::from(at.0)].group, learned.saturating_sub(executed)))
        });
        places.collect()
    }

    /// The last slot of a group that it executed, and its ballot.
    pub(super) fn standing(&self, group: GroupId) -> (Slot, Ballot) {
        self.execution.standing(self.number(group))
    }

    /// What was executed of a group, together with what is in one order with it.
    pub(super) fn registry(&self, group: GroupId) -> &Registry {
        self.execution.registry(self.number(group))
    }

    /// Whether the machine executes the groups that it hosts in one order.
    pub(super) fn merges(&self) -> bool {
        self.execution.merges()
    }

    /// Depends on what was executed of a group, and on the order of it.
    pub(super) fn digest(&self, group: GroupId) -> u64 {
        // Sessions differ while skips go on.
        let skips = self.host.replicas().any(|replica| replica.merged_at().is_some());
        if skips { self.registry(group).digest() } else { self.execution.digest(self.number(group)) }
    }
}

/// Starts the replica of a group.
fn start(
    setup: &Setup,
    groups: &Groups,
    (id, place): (ReplicaId, usize),
    group: GroupId,
    first: &[Group],
    life: Incarnation,
    now: Time,
) -> Started {
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
    Started { replica, actions, durable: Lsn::ZERO, executed: Slot::ZERO }
}

impl Effects {
    /// Takes an action that neither the host nor the disk deals with.
    fn act(&mut self, action: Action) -> Result<(), LabError> {
        match action {
            Action::Send { to, message, after } => {
                let bytes = size(&message);
                let each = to.ids().iter();
                self.messages.extend(each.map(|&to| (after, (to, message.clone(), bytes))));
            }
            Action::Group(group) => self.group = Some(group),
            Action::Leader(_) => self.leader = true,
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
            Action::TakeSnapshot
            | Action::ReadChunk { .. }
            | Action::WriteChunk { .. }
            | Action::InstallSnapshot(_) => {
                let what = "a run in virtual time that takes snapshots; choose a shorter window";
                return Err(LabError::Replicas(what.to_owned()));
            }
            Action::Agreed(_) | Action::Trim(_) => {}
            Action::Append { .. }
            | Action::Retired
            | Action::Execute { .. }
            | Action::ReadAt { .. }
            | Action::ReadFailed { .. }
            | Action::RequestFailed { .. }
            | Action::Deadline(_) => unreachable!("others have dealt with it"),
        }
        Ok(())
    }
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
