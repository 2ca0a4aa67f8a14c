//! What executes the batches of the groups that a machine hosts: in turns, as a node does that executes on the thread
//! which steps the replicas, at a price for each command.

use std::{cell::Cell, collections::BTreeSet, ops::ControlFlow, time::Duration};

use bytes::Bytes;
use synod_host::{MERGED_BATCHES_MAX, Part, Turns};
use synod_replica::{Clocked, Executor, Group, MergedExecutor, Outcome, RequestError, StateMachine};
use synod_wire::{Ballot, Ballots, Batch, CommandKind, GroupId, Slot, Time};

use super::{client::Request, groups::Merging};
use crate::ground::registry::Registry;

/// Those who wait for the outcomes of a batch's commands, with the places of these.
type Clients = Vec<(usize, Request)>;

/// The executor of a machine. Groups have the numbers that the machine's host gives them.
pub(super) struct Execution {
    turns: Turns<Job>,
    executors: Executors,
    /// The last slot of each group of which the whole batch is executed, and what the group is told of the clock.
    shown: Vec<(Slot, Clocked)>,
    /// The groups that were executed further since their replicas were told.
    pub(super) ahead: BTreeSet<GroupId>,
}

enum Executors {
    /// Each group has a state machine of its own.
    Apart(Vec<Apart>),
    /// One state machine executes all of them in one order.
    Merged(Box<MergedExecutor<Registry, Decided>>),
}

/// The executor of a group, and the batch of which a part is executed.
struct Apart {
    executor: Executor<Registry>,
    begun: Option<Part<Request>>,
}

/// What comes with a batch that waits for its turn in the common order.
#[derive(Debug)]
struct Decided {
    clients: Clients,
    /// The values that clients proposed.
    values: Vec<u64>,
}

enum Job {
    Execute(Slot, Ballots, Batch, Clients),
    /// Execute what the job before has left.
    GoOn,
}

/// A batch that was executed.
pub(super) struct Answered {
    /// When that was done.
    pub(super) at: Time,
    pub(super) slot: Slot,
    /// What clients are answered.
    pub(super) answers: Vec<(Request, Result<Bytes, RequestError>)>,
    /// The values of clients, if they were executed in one order with other groups.
    pub(super) merged: Vec<u64>,
}

/// The time that executing takes.
struct Spent {
    began: Time,
    nanos_each: f64,
    commands: Cell<usize>,
}

impl Spent {
    fn command(&self) {
        self.commands.set(self.commands.get() + 1);
    }

    fn now(&self) -> Time {
        self.began + Duration::from_nanos((self.commands.get() as f64 * self.nanos_each) as u64)
    }
}

impl Execution {
    /// The executor of groups that begin so. `merge`: it executes them in one order.
    pub(super) fn new(groups: impl ExactSizeIterator<Item = Group>, merge: Option<&Merging>) -> Execution {
        let turns = Turns::new(groups.len());
        let shown = vec![(Slot::ZERO, Clocked::default()); groups.len()];
        let executors = match merge {
            Some(merge) => {
                Executors::Merged(Box::new(MergedExecutor::new(Registry::default(), groups, merge.take)))
            }
            None => {
                let apart =
                    |group| Apart { executor: Executor::new(Registry::default(), group), begun: None };
                Executors::Apart(groups.map(apart).collect())
            }
        };
        Execution { turns, executors, shown, ahead: BTreeSet::new() }
    }

    /// A decided batch comes.
    pub(super) fn push(
        &mut self,
        group: GroupId,
        slot: Slot,
        ballots: Ballots,
        batch: Batch,
        clients: Clients,
    ) {
        self.turns.push(group, Job::Execute(slot, ballots, batch, clients));
    }

    /// These groups have turns if something is to be executed.
    pub(super) fn find(&mut self, groups: &[GroupId]) {
        self.turns.find(groups);
    }

    /// Whether something is to be executed.
    pub(super) fn has_jobs(&self) -> bool {
        !self.turns.is_idle()
    }

    /// How far a group is, and what it is told of the clock.
    pub(super) fn shows(&self, group: GroupId) -> (Slot, Clocked) {
        self.shown[usize::from(group.0)]
    }

    /// Executes for a turn. Returns what was executed, and when the turn is over.
    pub(super) fn turn(&mut self, began: Time, nanos_each: f64) -> (Vec<(GroupId, Answered)>, Time) {
        let Execution { turns, executors, .. } = self;
        let (spent, mut answered) = (Spent { began, nanos_each, commands: Cell::new(0) }, Vec::new());
        turns.turn(began, |group, job, until| {
            let rest = match executors {
                Executors::Apart(groups) => {
                    let apart = &mut groups[usize::from(group.0)];
                    answered.extend(apart.run(job, &spent, until).map(|answered| (group, answered)));
                    apart.begun.is_some()
                }
                Executors::Merged(merged) => run_merged(merged, group, job, &spent, &mut answered),
            };
            (rest.then_some(Job::GoOn), spent.now())
        });
        for (group, answered) in &answered {
            self.shows_more(*group, answered.slot);
        }
        (answered, spent.now())
    }

    /// A group was executed further. Any group may move the clock, which the first one is told of then.
    fn shows_more(&mut self, group: GroupId, slot: Slot) {
        self.ahead.insert(group);
        self.shown[usize::from(group.0)] = (slot, self.clock(group));
        let (shown, clock) = (self.shown[0].1, self.clock(GroupId::FIRST));
        if self.merges() && shown != clock {
            self.shown[0].1 = clock;
            self.ahead.insert(GroupId::FIRST);
        }
    }

    fn clock(&self, group: GroupId) -> Clocked {
        match &self.executors {
            Executors::Apart(groups) => groups[usize::from(group.0)].executor.clocked(GroupId::FIRST),
            Executors::Merged(merged) => merged.executor().clocked(group),
        }
    }

    /// Whether the groups are executed in one order.
    pub(super) fn merges(&self) -> bool {
        matches!(self.executors, Executors::Merged(_))
    }

    /// How many batches of a group are executed, if the groups are executed in one order.
    pub(super) fn batches_of(&self, group: GroupId) -> Option<u64> {
        match &self.executors {
            Executors::Apart(_) => None,
            Executors::Merged(merged) => Some(merged.place_of(group).batches),
        }
    }

    /// The last slot of a group that is executed, and its ballot.
    pub(super) fn standing(&self, group: GroupId) -> (Slot, Ballot) {
        match &self.executors {
            Executors::Apart(groups) => {
                let executor = &groups[usize::from(group.0)].executor;
                (executor.applied(), executor.ballots().proposed)
            }
            Executors::Merged(merged) => {
                (merged.executor().applied_of(group), merged.executor().ballots().proposed)
            }
        }
    }

    /// What was executed of a group, together with what is in one order with it.
    pub(super) fn registry(&self, group: GroupId) -> &Registry {
        match &self.executors {
            Executors::Apart(groups) => groups[usize::from(group.0)].executor.machine(),
            Executors::Merged(merged) => merged.executor().machine(),
        }
    }

    /// Depends on the state of a group, its sessions included.
    pub(super) fn digest(&self, group: GroupId) -> u64 {
        match &self.executors {
            Executors::Apart(groups) => groups[usize::from(group.0)].executor.digest(),
            Executors::Merged(merged) => merged.executor().machine().digest(),
        }
    }
}

impl Apart {
    /// Does a job, or a part of it that takes as long as there is time.
    fn run(&mut self, job: Job, spent: &Spent, until: Time) -> Option<Answered> {
        let Apart { executor, begun } = self;
        if let Job::Execute(slot, ballots, batch, clients) = job {
            *begun = Some(Part::begin(executor, slot, ballots, batch, clients));
        }
        let awaited = |_: &[_], _| {
            spent.command();
            true
        };
        match begun.take()?.go_on(executor, awaited, || spent.now() >= until) {
            ControlFlow::Continue(rest) => {
                *begun = Some(rest);
                None
            }
            ControlFlow::Break((clients, outcomes)) => {
                let (at, slot) = (spent.now(), executor.applied());
                Some(Answered { at, slot, answers: answers(clients, &outcomes), merged: Vec::new() })
            }
        }
    }
}

/// Takes a batch, and executes what has its turn in the order of several groups; whether more has.
fn run_merged(
    merged: &mut MergedExecutor<Registry, Decided>,
    group: GroupId,
    job: Job,
    spent: &Spent,
    answered: &mut Vec<(GroupId, Answered)>,
) -> bool {
    if let Job::Execute(slot, ballots, batch, clients) = job {
        let of_clients = batch.commands().filter(|command| command.kind == CommandKind::Apply);
        let values = of_clients.filter_map(|command| value_of(&command.payload)).collect();
        let known = merged.take(group, slot, ballots, batch, Decided { clients, values });
        assert!(known.is_none(), "there are no snapshots that would have brought it");
    }
    for _ in 0..MERGED_BATCHES_MAX {
        let awaited = |_: &_, _| {
            spent.command();
            true
        };
        let Some((group, slot, decided, outcomes)) = merged.execute(awaited) else { return false };
        let Decided { clients, values } = decided;
        let (at, answers) = (spent.now(), answers(clients, &outcomes));
        answered.push((group, Answered { at, slot, answers, merged: values }));
    }
    true
}

/// What clients are answered, given the outcomes of all commands of a batch.
fn answers(clients: Clients, outcomes: &[Outcome]) -> Vec<(Request, Result<Bytes, RequestError>)> {
    let answer = |(place, client): (usize, Request)| {
        let answer = match &outcomes[place] {
            Outcome::Reply(reply) => Ok(reply.clone()),
            Outcome::Error(error) => Err(*error),
            Outcome::Unanswered => unreachable!("all are awaited"),
        };
        (client, answer)
    };
    clients.into_iter().map(answer).collect()
}

/// The value that a command of a client carries.
fn value_of(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|value| u64::from_le_bytes(*value))
}
