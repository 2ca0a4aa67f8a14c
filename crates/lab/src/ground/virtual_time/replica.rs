//! One replica with its processor, its executor and its inbox.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use synod_consensus::{Message, sequence_paxos};
use synod_replica::{
    Action, Event, Executor, Group, LogRecord, Outcome as Executed, PeerMessage, Recovered, Replica,
    RequestError, RequestId, Settings,
};
use synod_storage::Durability;
use synod_wire::{Ballot, CommandKind, GroupId, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::Usage;
use crate::{
    ground::{hardware::Costs, registry::Registry},
    study::LabError,
};

/// How many events are handled before their effects leave, as on a server.
const BURST_MAX: usize = 512;

/// A replica in virtual time.
pub(super) struct Machine {
    pub(super) id: ReplicaId,
    /// Its site: the place in the topology of the replica that it is, or whose place it took.
    pub(super) place: usize,
    pub(super) replica: Replica,
    pub(super) executor: Executor<Registry>,
    /// Events that wait for the processor.
    inbox: VecDeque<Event>,
    /// Whether the processor has been scheduled to handle the inbox.
    pub(super) scheduled: bool,
    pub(super) free_at: Time,
    pub(super) deadline: Time,
    /// It is removed, or its machine has failed.
    pub(super) retired: bool,
    /// Until when its network card is busy with what it sends.
    pub(super) sends_until: Time,
    /// Until when its network card is busy with what it receives.
    pub(super) receives_until: Time,
    pub(super) usage: Usage,
    pub(super) disk: Disk,
    costs: Costs,
    actions: Vec<Action>,
}

/// A message that waits for the disk: the record that has to be durable, the receiver, the message and its bytes.
type Held = (Lsn, ReplicaId, PeerMessage, usize);

/// The log of a replica: one commit at a time, and each takes in what was appended before it began.
pub(super) struct Disk {
    durability: Durability,
    fsync: Duration,
    appended: Lsn,
    pub(super) durable: Lsn,
    /// The last record of the commit that is under way.
    commits: Option<Lsn>,
    /// A record that was appended since the last commit began has to wait for the disk.
    waits: bool,
    /// In the order in which they were sent.
    pub(super) held: VecDeque<Held>,
}

impl Disk {
    fn append(&mut self, record: &LogRecord, lsn: Lsn) {
        self.appended = lsn;
        self.waits |= !self.fsync.is_zero() && self.durability.syncs(record.keep());
    }

    /// Begins a commit, unless one is under way. Returns how long it takes; if nothing waits for the disk, what was
    /// appended is as durable as it has to be.
    pub(super) fn commit(&mut self) -> Option<Duration> {
        if self.commits.is_some() {
            return None;
        }
        if !std::mem::take(&mut self.waits) {
            self.durable = self.appended;
            return None;
        }
        self.commits = Some(self.appended);
        Some(self.fsync)
    }

    /// A commit has ended.
    pub(super) fn committed(&mut self) {
        self.durable = self.commits.take().expect("it has begun");
    }

    /// A message whose record is durable.
    pub(super) fn release(&mut self) -> Option<Held> {
        let due = self.held.front().is_some_and(|held| held.0 <= self.durable);
        if due { self.held.pop_front() } else { None }
    }
}

/// The effects of a burst outside of the machine.
#[derive(Default)]
pub(super) struct Burst {
    /// The messages, each after the record that has to be durable before it leaves.
    pub(super) messages: Vec<(Lsn, ReplicaId, PeerMessage, usize)>,
    pub(super) answers: Vec<(RequestId, Result<Bytes, RequestError>)>,
    /// The new group, if it has changed.
    pub(super) group: Option<Group>,
    /// Whether the leader has changed.
    pub(super) leader: bool,
    /// Commands that were executed.
    commands: usize,
    /// The last slot that was executed, if any was.
    pub(super) executed: Option<Slot>,
    /// How long the commit takes that begins after the burst.
    pub(super) commit: Option<Duration>,
    /// 1 if something came from outside, else 0.
    pub(super) woken: f64,
    /// Seconds that it took.
    pub(super) busy: f64,
}

impl Machine {
    /// A replica without a past. Its random numbers depend on its id and on `life`.
    pub(super) fn start(
        settings: Settings,
        (costs, durability): (Costs, Durability),
        id: ReplicaId,
        place: usize,
        first: &Group,
        life: Incarnation,
        now: Time,
    ) -> Machine {
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: None,
            amnesia: false,
            incarnation: life,
            nonce: 0,
            met_all: true,
        };
        // A run is short enough to keep everything.
        let mut settings = settings;
        (settings.snapshot_slots, settings.snapshot_log_bytes) = (u64::MAX, u64::MAX);
        let executor = Executor::new(Registry::default(), first.clone());
        let mut actions = Vec::new();
        let replica = Replica::start(settings, id, first.clone(), recovered, now, &mut actions);
        Machine {
            id,
            place,
            replica,
            executor,
            inbox: VecDeque::new(),
            scheduled: false,
            free_at: now,
            deadline: Time::NEVER,
            retired: false,
            sends_until: now,
            receives_until: now,
            usage: Usage::default(),
            disk: Disk {
                durability,
                fsync: costs.fsync(),
                appended: Lsn::ZERO,
                durable: Lsn::ZERO,
                commits: None,
                waits: false,
                held: VecDeque::new(),
            },
            costs,
            actions,
        }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.inbox.push_back(event);
    }

    pub(super) fn has_work(&self) -> bool {
        !self.inbox.is_empty()
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
        if self.deadline <= now {
            self.deadline = Time::NEVER;
            self.inbox.push_back(Event::Timer);
        }
        for _ in 0..BURST_MAX {
            let Some(event) = self.inbox.pop_front() else { break };
            woken |= matches!(event, Event::Receive { .. } | Event::Request { .. });
            cost += match &event {
                Event::Receive { message, .. } => self.costs.message(size(message)),
                Event::Request { payload, .. } => self.costs.request(payload.len()),
                _ => 0.0,
            };
            self.replica.step(now, event, &mut self.actions);
        }
        self.replica.flush(now, &mut self.actions);
        let mut burst = Burst::default();
        self.carry_out(&mut burst)?;
        cost += burst.messages.iter().map(|(.., bytes)| self.costs.message(*bytes)).sum::<f64>();
        if woken {
            cost += self.costs.burst_nanos;
            burst.woken = 1.0;
        }
        cost += burst.commands as f64 * self.costs.execute_nanos;
        self.free_at = now + Duration::from_nanos(cost as u64);
        burst.busy = cost / 1e9;
        Ok(burst)
    }

    fn carry_out(&mut self, burst: &mut Burst) -> Result<(), LabError> {
        let mut executed = None;
        let durable = self.disk.durable;
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Append { lsn, record } => self.disk.append(&record, lsn),
                Action::Send { to, message, after } => {
                    let bytes = size(&message);
                    let each = to.ids().iter();
                    burst.messages.extend(each.map(|&to| (after, to, message.clone(), bytes)));
                }
                Action::Execute { slot, ballots, batch, requests } => {
                    let outcomes = self.executor.execute(slot, ballots, &batch, |_| true);
                    burst.commands += outcomes.len();
                    for (place, request) in requests {
                        let answer = match &outcomes[place] {
                            Executed::Reply(reply) => Ok(reply.clone()),
                            Executed::Error(error) => Err(*error),
                            Executed::Unanswered => unreachable!("all are awaited"),
                        };
                        burst.answers.push((request, answer));
                    }
                    executed = Some(slot);
                }
                Action::RequestFailed { request, error } => burst.answers.push((request, Err(error))),
                Action::Deadline(at) => self.deadline = at,
                Action::Group(group) => burst.group = Some(group),
                Action::Leader(_) => burst.leader = true,
                Action::Retired => self.retired = true,
                Action::Forked(fork) => {
                    return Err(LabError::Replicas(format!("replicas that decided the same: {fork:?}")));
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
        }
        self.actions = actions;
        burst.executed = executed;
        burst.commit = self.disk.commit();
        if self.disk.durable > durable {
            self.inbox.push_back(Event::Durable(self.disk.durable));
        }
        let clock = self.executor.clocked(GroupId::FIRST);
        self.inbox.extend(executed.map(|slot| Event::Executed { slot, clock }));
        Ok(())
    }

    /// The last slot that it knows to be decided, and its ballot.
    pub(super) fn standing(&self) -> (Slot, Ballot) {
        (self.executor.applied(), self.executor.ballots().proposed)
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
