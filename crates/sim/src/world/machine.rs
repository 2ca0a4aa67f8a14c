//! One replica's machine: a disk that lasts, and the life that runs on it for a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use synod_consensus::To;
use synod_host::{Execution, Gate, Host, Part, Parting, ReadAt, Reads, SnapshotBook};
use synod_replica::{Clocked, Cut, Executor, MergedExecutor, PeerMessage, Replica, SnapshotInfo};
use synod_wire::{Ballots, Batch, GroupId, Lsn, ReplicaId, Slot, Time};

use super::{
    FIRST, Happening, Served,
    identity::Files,
    lives::birth_of,
    waiting::{Question, Waiter},
};
use crate::{
    backup,
    check::{Held, SentMessages, Watch},
    clock::{Clock, Moment},
    disk::Disk,
    files::Files as RealFiles,
    guest::Hosting,
    per_group::PerGroup,
    plan::Plan,
};

/// A simulated machine: its disk, and the replica that runs on it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) id: ReplicaId,
    pub(crate) disk: Disk,
    /// What tells the identity of the replica and of those that it knows; on the disk as well.
    pub(crate) files: Files,
    /// A copy of the disk that was taken earlier.
    pub(crate) copy: Option<Box<(Disk, Files)>>,
    /// A copy was restored, and the replica does not know it: nobody listens to it.
    pub(crate) copied: bool,
    /// It lost all its data, and others know another birth of it.
    pub(crate) wiped: bool,
    /// It ended, and must not start again.
    pub(crate) stopped: bool,
    /// How many lives have begun, on whichever disk.
    pub(crate) lives: u64,
    pub(crate) life: Option<Life>,
    /// For each group, the last slot that any of its lives delivered.
    pub(crate) delivered: PerGroup<Slot>,
    /// It was removed, and stopped for good.
    pub(crate) retired: bool,
    /// If the process is paused.
    pub(crate) paused: Option<Pause>,
}

/// A process that does nothing for a while.
#[derive(Debug)]
pub(crate) struct Pause {
    pub(crate) since: Moment,
    /// What waits for it to go on.
    pub(crate) waiting: VecDeque<Happening>,
}

/// A node from its start to its crash.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) number: u64,
    /// The replicas of all groups, with those who wait for them.
    pub(crate) host: Host<Waiter, Question>,
    /// Its peers: the members of its groups, and for a while those that were.
    pub(crate) parting: Parting<()>,
    /// What it has of each group beside its replica.
    pub(crate) hosted: PerGroup<Hosted>,
    /// What executes for the groups: for each one, or for all that are merged.
    pub(crate) states: PerGroup<State>,
    pub(crate) clock: Clock,
    /// The peers, by index, that were met in this life, each with the number of the life that it was in.
    pub(crate) recognised: BTreeMap<usize, u64>,
    /// A burst has begun, and ends later.
    pub(crate) in_burst: bool,
    /// The instant at which the host's deadline is looked at next.
    pub(crate) timer_at: Option<Moment>,
    /// The deadline that was looked at last.
    pub(crate) timer_for: Time,
    /// Its snapshots, with the pieces of one that have come so far.
    pub(crate) book: SnapshotBook<Vec<u8>>,
    /// If this life began without its log: once this record is durable, the log says so itself.
    pub(crate) confesses_at: Option<Lsn>,
    /// If the node had lost its log and votes again: once this record is durable, the loss is made good.
    pub(crate) whole_at: Option<Lsn>,
    /// The newest revision that a stale read has shown.
    pub(crate) seen_revision: i64,
    /// What serves those who watch, if somebody does.
    pub(crate) service: Served,
}

/// What a life has of a group, beside its replica.
#[derive(Debug)]
pub(crate) struct Hosted {
    pub(crate) watch: Watch,
    /// Messages that wait for their records, each with its number among all that the replica sent.
    pub(crate) gate: Gate<(u64, To, PeerMessage)>,
    pub(crate) sent: SentMessages,
    /// The bytes of these, and of the batches that the executor has to execute.
    pub(crate) holds: Held,
    /// As of the last step: whether the replica took nothing in, and how many messages it had not sent for want of
    /// room.
    pub(crate) backlogged: bool,
    pub(crate) sends_given_up: u64,
    /// The version of the group as of the last step, and how many slots ahead its replicas accept.
    pub(crate) ahead_max: Option<(u64, u64)>,
    /// As of the last step: whether the replica takes no part in the group.
    pub(crate) away: bool,
    /// The group does not need the replica any more.
    pub(crate) retired: bool,
}

impl Hosted {
    /// What has done nothing yet, and whose log is durable through this record.
    pub(crate) fn new(watch: Watch, durable: Lsn) -> Hosted {
        Hosted {
            watch,
            gate: Gate::new(durable),
            sent: SentMessages::default(),
            holds: Held::default(),
            backlogged: false,
            sends_given_up: 0,
            ahead_max: None,
            away: false,
            retired: false,
        }
    }
}

/// A state machine of a life, and the work for it: that of one group, or of all groups that are merged.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) executing: Executing,
    /// What it has to do, each for a group.
    pub(crate) execution: Execution<(GroupId, Task)>,
    /// Queries that wait for slots.
    pub(crate) reads: Reads<ReadAt, Question>,
    /// The groups that were executed further since their replicas were told.
    pub(crate) ahead: BTreeSet<GroupId>,
    /// The snapshot that is being written, and those that come after it.
    pub(crate) drafts: VecDeque<Draft>,
    /// While a part of a batch is executed: how far the state was before it, and what the clock showed. Nobody but the
    /// rest of the batch looks at the state.
    pub(crate) before: Option<(Slot, Clocked)>,
    /// When the last events of an executor of merged groups come to the replicas.
    pub(crate) told_at: Moment,
}

/// What executes batches.
#[derive(Debug)]
pub(crate) enum Executing {
    /// Those of one group.
    Alone(Box<Executor<Hosting>>),
    /// Those of merged groups, in their common order.
    Merged(Box<Merged>),
}

/// What executes the batches of merged groups.
#[derive(Debug)]
pub(crate) struct Merged {
    /// A batch is named by the group and the slot that decided it.
    pub(crate) executor: MergedExecutor<Hosting, (GroupId, Slot)>,
    /// Those who wait for the outcomes of batches that wait for their turn.
    pub(crate) waiting: BTreeMap<(GroupId, Slot), Awaited>,
    /// The replicated clock, as the executor showed it last.
    pub(crate) shown: Clocked,
}

/// A batch that waits for its turn.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    pub(crate) bytes: u64,
    /// Those who wait for the outcomes of its commands, with their places.
    pub(crate) waiters: Vec<(usize, Waiter)>,
}

/// A snapshot that is not a file yet.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) group: GroupId,
    pub(crate) slot: Slot,
    /// How far merged groups are in it.
    pub(crate) cut: Option<Cut>,
    pub(crate) bytes: Bytes,
}

impl State {
    /// What has done nothing yet.
    pub(crate) fn new(executing: Executing, now: Moment) -> State {
        State {
            executing,
            execution: Execution::default(),
            reads: Reads::default(),
            ahead: BTreeSet::new(),
            before: None,
            drafts: VecDeque::new(),
            told_at: now,
        }
    }

    pub(crate) fn executor(&self) -> &Executor<Hosting> {
        match &self.executing {
            Executing::Alone(executor) => executor,
            Executing::Merged(merged) => merged.executor.executor(),
        }
    }

    /// What executes, unless a part of a batch is executed.
    pub(crate) fn whole(&self) -> Option<&Executor<Hosting>> {
        self.before.is_none().then(|| self.executor())
    }

    /// The last slot of a group that is executed whole.
    pub(crate) fn applied(&self, group: GroupId) -> Slot {
        match (&self.executing, self.before) {
            (Executing::Alone(_), Some((slot, _))) => slot,
            (Executing::Alone(executor), None) => executor.applied(),
            (Executing::Merged(merged), _) => merged.executor.executor().applied_of(group),
        }
    }

    /// What the replica of a group is told of the clock. A state machine has the clock of one group, unless groups are
    /// merged.
    pub(crate) fn clocked(&self, group: GroupId) -> Clocked {
        match (&self.executing, self.before) {
            (Executing::Alone(_), Some((_, clock))) => clock,
            (Executing::Alone(executor), None) => executor.clocked(FIRST),
            (Executing::Merged(merged), _) => merged.executor.executor().clocked(group),
        }
    }

    /// What executes merged groups, if they are merged.
    pub(crate) fn merged(&mut self) -> Option<&mut Merged> {
        match &mut self.executing {
            Executing::Alone(_) => None,
            Executing::Merged(merged) => Some(merged),
        }
    }

    /// A group was executed further. The clock of merged groups is the first one's, and any group may move it.
    pub(crate) fn executed_more(&mut self, group: GroupId) {
        self.ahead.insert(group);
        if let Executing::Merged(merged) = &mut self.executing {
            let clock = merged.executor.executor().clocked(FIRST);
            if std::mem::replace(&mut merged.shown, clock) != clock {
                self.ahead.insert(FIRST);
            }
        }
    }
}

impl Life {
    /// A life that has done nothing yet.
    pub(crate) fn new(
        number: u64,
        (host, parting): (Host<Waiter, Question>, Parting<()>),
        hosted: PerGroup<Hosted>,
        (states, book): (PerGroup<State>, SnapshotBook<Vec<u8>>),
        clock: Clock,
        service: Served,
    ) -> Life {
        Life {
            number,
            host,
            parting,
            hosted,
            states,
            clock,
            recognised: BTreeMap::new(),
            in_burst: false,
            timer_at: None,
            timer_for: Time::NEVER,
            book,
            confesses_at: None,
            whole_at: None,
            seen_revision: 0,
            service,
        }
    }

    /// The replica of a group.
    pub(crate) fn replica(&self, group: GroupId) -> &Replica {
        self.host.replica(group)
    }

    /// The group by which the state of a group is named.
    pub(crate) fn state_at(&self, group: GroupId) -> GroupId {
        if self.states.groups().len() == 1 { FIRST } else { group }
    }

    /// What executes for a group.
    pub(crate) fn state(&mut self, group: GroupId) -> &mut State {
        let at = self.state_at(group);
        &mut self.states[at]
    }

    /// The state of a group.
    pub(crate) fn executor(&self, group: GroupId) -> &Executor<Hosting> {
        self.states[self.state_at(group)].executor()
    }

    /// The last slot of a group that is executed.
    pub(crate) fn applied(&self, group: GroupId) -> Slot {
        self.states[self.state_at(group)].applied(group)
    }

    /// What the replica of a group is told of the clock.
    pub(crate) fn clocked(&self, group: GroupId) -> Clocked {
        self.states[self.state_at(group)].clocked(group)
    }
}

/// Work of the executor, which does one thing after the other.
#[derive(Debug)]
pub(crate) enum Task {
    /// Execute a batch, and answer these of its commands.
    Execute { slot: Slot, ballots: Ballots, batch: Batch, waiters: Vec<(usize, Waiter)> },
    /// Execute the rest of a batch.
    GoOn(Slot, Part<Waiter>),
    /// Execute more of merged groups: what has its turn.
    Turns,
    /// Answer queries from a state that is so far.
    Read { at: ReadAt, questions: Vec<Question> },
    /// Freeze the state and write it.
    Snapshot,
    /// Go on from the snapshot that was received.
    Install(SnapshotInfo),
}

impl Machine {
    /// A machine with an empty disk.
    pub(crate) fn new(id: ReplicaId, plan: &Plan) -> Machine {
        Machine {
            id,
            disk: Disk::new(
                plan.disk.files.map(|files| RealFiles::new(id, files, plan.seed)),
                plan.durability,
                plan.groups,
            ),
            files: Files::new(birth_of(id), plan.groups),
            copy: None,
            copied: false,
            wiped: false,
            stopped: false,
            lives: 0,
            life: None,
            delivered: (0..plan.groups).map(|_| Slot::ZERO).collect(),
            retired: false,
            paused: None,
        }
    }

    /// Leaves on the disk, which is empty, what a restore of a backup leaves there.
    pub(crate) fn begin_with(&mut self, snapshot: Bytes) {
        self.disk.begin_with(FIRST, backup::SLOT, snapshot);
        self.delivered[FIRST] = self.delivered[FIRST].max(backup::SLOT);
    }

    /// Begins a life with what the disk still has.
    pub(crate) fn begin_life(&mut self) {
        self.lives += 1;
        // No two lives draw the same nonce, whichever disk they run on.
        if self.files.begin(self.lives) {
            // As if the log was lost; what the replica had decided is still what was decided. Real files know it.
            if self.disk.files().is_none() {
                self.disk.lose_log(false);
            }
            self.copied = false;
        }
        if self.disk.amnesia {
            // It knows that it forgot, also if it was a copy that it forgot.
            self.files.begin_without_memory();
            self.copied = false;
        }
    }

    /// Whether a replica runs here, paused or not.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.is_some()
    }

    /// Whether a replica runs here and does something.
    pub(crate) fn is_running(&self) -> bool {
        self.life.is_some() && self.paused.is_none()
    }

    /// The present life, if it is this one.
    pub(crate) fn in_life(&mut self, number: u64) -> Option<&mut Life> {
        self.life.as_mut().filter(|life| life.number == number)
    }
}
