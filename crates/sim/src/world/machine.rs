//! One replica's machine: a disk that lasts, and the life that runs on it for a while.

use std::collections::{BTreeMap, VecDeque};

use synod_consensus::To;
use synod_host::{Execution, Gate, Host, Reads, SnapshotBook};
use synod_replica::{Executor, PeerMessage, Replica, SnapshotInfo};
use synod_wire::{Ballots, Batch, GroupId, Lsn, ReplicaId, Slot, Time};

use super::{
    FIRST, Happening, Served,
    identity::Files,
    lives::birth_of,
    waiting::{Question, Waiter},
};
use crate::{
    backup::{self, Backup},
    check::{Held, Watch},
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
    /// What it has of each group beside its replica.
    pub(crate) hosted: PerGroup<Hosted>,
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
    pub(crate) executor: Executor<Hosting>,
    pub(crate) watch: Watch,
    /// Messages that wait for their records.
    pub(crate) gate: Gate<(To, PeerMessage)>,
    /// What the executor has to do.
    pub(crate) execution: Execution<Task>,
    /// The bytes of both.
    pub(crate) holds: Held,
    /// Queries that wait for a slot.
    pub(crate) reads: Reads<Slot, Question>,
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
    pub(crate) fn new(executor: Executor<Hosting>, watch: Watch, durable: Lsn) -> Hosted {
        Hosted {
            executor,
            watch,
            gate: Gate::new(durable),
            execution: Execution::default(),
            holds: Held::default(),
            reads: Reads::default(),
            backlogged: false,
            sends_given_up: 0,
            ahead_max: None,
            away: false,
            retired: false,
        }
    }
}

impl Life {
    /// A life that has done nothing yet.
    pub(crate) fn new(
        number: u64,
        host: Host<Waiter, Question>,
        hosted: PerGroup<Hosted>,
        clock: Clock,
        service: Served,
    ) -> Life {
        let groups = hosted.groups().len();
        Life {
            number,
            host,
            hosted,
            clock,
            recognised: BTreeMap::new(),
            in_burst: false,
            timer_at: None,
            timer_for: Time::NEVER,
            book: SnapshotBook::new(groups, None),
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
}

/// Work of the executor, which does one thing after the other.
#[derive(Debug)]
pub(crate) enum Task {
    /// Execute a batch, and answer these of its commands.
    Execute { slot: Slot, ballots: Ballots, batch: Batch, waiters: Vec<(usize, Waiter)> },
    /// Answer queries from a state that includes the slot.
    Read { slot: Slot, questions: Vec<Question> },
    /// Freeze the state and write it.
    Snapshot,
    /// Replace the state by the one received.
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
    pub(crate) fn begin_with(&mut self, backup: &Backup) {
        self.disk.begin_with(FIRST, backup::SLOT, backup.snapshot());
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
