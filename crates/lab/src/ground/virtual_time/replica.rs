//! One replica with its processor, its executor and its inbox.

use std::collections::VecDeque;

use bytes::Bytes;
use synod_consensus::{Message, sequence_paxos};
use synod_replica::{
    Action, Event, Executor, Group, Outcome as Executed, PeerMessage, Recovered, Replica, RequestError,
    RequestId, Settings,
};
use synod_wire::{Ballot, CommandKind, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{BYTE_NANOS, MESSAGE_NANOS, REQUEST_NANOS};
use crate::{ground::registry::Registry, study::LabError};

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
    pub(super) retired: bool,
    actions: Vec<Action>,
}

/// The effects of a burst outside of the machine.
#[derive(Default)]
pub(super) struct Burst {
    pub(super) messages: Vec<(ReplicaId, PeerMessage, usize)>,
    pub(super) answers: Vec<(RequestId, Result<Bytes, RequestError>)>,
    /// The new group, if it has changed.
    pub(super) group: Option<Group>,
    /// Whether the leader has changed.
    pub(super) leader: bool,
}

impl Machine {
    /// A replica without a past. Its random numbers depend on its id and on `life`.
    pub(super) fn start(
        settings: Settings,
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
        let mut cost = 0.0;
        if self.deadline <= now {
            self.deadline = Time::NEVER;
            self.inbox.push_back(Event::Timer);
        }
        for _ in 0..BURST_MAX {
            let Some(event) = self.inbox.pop_front() else { break };
            cost += match &event {
                Event::Receive { message, .. } => price(size(message)),
                Event::Request { payload, .. } => REQUEST_NANOS as f64 + payload.len() as f64 * BYTE_NANOS,
                _ => 0.0,
            };
            self.replica.step(now, event, &mut self.actions);
        }
        self.replica.flush(now, &mut self.actions);
        let mut burst = Burst::default();
        self.carry_out(&mut burst)?;
        cost += burst.messages.iter().map(|(_, _, bytes)| price(*bytes)).sum::<f64>();
        self.free_at = now + std::time::Duration::from_nanos(cost as u64);
        Ok(burst)
    }

    fn carry_out(&mut self, burst: &mut Burst) -> Result<(), LabError> {
        let (mut durable, mut executed) = (None, None);
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Append { lsn, .. } => durable = Some(lsn),
                Action::Send { to, message, .. } => {
                    let bytes = size(&message);
                    let each = to.ids().iter();
                    burst.messages.extend(each.map(|&to| (to, message.clone(), bytes)));
                }
                Action::Execute { slot, ballots, batch, requests } => {
                    let outcomes = self.executor.execute(slot, ballots, &batch, |_| true);
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
        // The disk answers at once, and commands cost nothing to execute.
        self.inbox.extend(durable.map(Event::Durable));
        let clock = self.executor.clock();
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

fn price(bytes: usize) -> f64 {
    MESSAGE_NANOS as f64 + bytes as f64 * BYTE_NANOS
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
