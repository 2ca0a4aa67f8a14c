//! A machine: its disk, and the life of the process that runs on it.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use synod_consensus::To;
use synod_host::{Execution, Gate, Host, Progress, Reads, SnapshotBook};
use synod_replica::{Clocked, Cut, MergedExecutor, PeerMessage, SnapshotInfo};
use synod_wire::{Ballots, Batch, GroupId, Lsn, ReplicaId, Slot};

use super::{Happening, clients::Ask, disk::Disk, upkeep::Kept};
use crate::{
    clock::{Clock, Moment},
    guest::Hosting,
    watching::Service,
};

/// A machine of the world.
#[derive(Debug)]
pub(super) struct Machine {
    pub disk: Disk,
    /// The number of the present life, or of the last one.
    pub lives: u64,
    pub life: Option<Life>,
    /// What waits while the process is stopped.
    pub paused: Option<VecDeque<Happening>>,
    pub stalled: bool,
    /// The others that were met, in all lives.
    pub met: BTreeSet<usize>,
    /// Every group has let the node go, and it has ended for good.
    pub gone: bool,
}

impl Machine {
    pub fn new(groups: usize) -> Machine {
        Machine {
            disk: Disk::new(groups),
            lives: 0,
            life: None,
            paused: None,
            stalled: false,
            met: BTreeSet::new(),
            gone: false,
        }
    }

    /// Whether the machine, which has this place, has met all others with which the groups begin. One that joins need
    /// not.
    pub fn has_met_all(&self, of: usize, nodes: usize) -> bool {
        of >= nodes || self.met.range(..nodes).count() == nodes - 1
    }

    pub fn in_life(&mut self, number: u64) -> Option<&mut Life> {
        let lives = self.lives;
        self.life.as_mut().filter(|_| lives == number)
    }
}

/// One life of a node: its replicas, what executes for them, and who waits for it.
#[derive(Debug)]
pub(super) struct Life {
    pub clock: Clock,
    /// The replicas of the groups, and their bursts.
    pub host: Host<Waiter, Ask>,
    /// What serves them, by the number of the group.
    pub hosted: Vec<Hosted>,
    /// The groups that may have become durable or executed further since their replicas were told.
    pub ahead: BTreeSet<GroupId>,
    pub merged: MergedExecutor<Hosting, Replies>,
    /// The replicated clock, as the executor showed it last.
    pub shown: Clocked,
    /// Reads that wait for slots of all groups.
    pub waiting: Reads<Vec<Slot>, Vec<Ask>>,
    pub execution: Execution<(GroupId, Job)>,
    /// When the last events of the executor come to the replicas.
    pub told_at: Moment,
    pub timer_at: Option<Moment>,
    pub snapshots: Snapshots,
    /// The node ends soon.
    pub leaves: bool,
    /// The keeper of the node's store, if the run has them.
    pub kept: Option<Kept>,
    /// What serves those who watch, if somebody does.
    pub service: Option<Box<Service>>,
}

/// Those who wait for the outcomes of a batch's commands, with the places of these.
pub(super) type Replies = Vec<(usize, Waiter)>;

/// What waits for the outcome of a command.
#[derive(Clone, Debug)]
pub(super) enum Waiter {
    Client(Ask),
    /// An operator asked for a change of a group.
    Operator,
    /// The keeper of the node's store wanted it.
    Keeper,
    /// A client of the guest, and which of all its commands that is.
    Guest(usize),
}

impl Life {
    /// How far a group is.
    pub fn progress(&self, group: GroupId) -> Progress {
        let executor = self.merged.executor();
        Progress {
            durable: self.hosted[usize::from(group.0)].gate.through(),
            executed: executor.applied_of(group),
            clock: executor.clocked(group),
        }
    }

    /// A group was executed further. The clock is the first one's, and any group may move it.
    pub fn executed_more(&mut self, group: GroupId) {
        self.ahead.insert(group);
        let clock = self.merged.executor().clocked(GroupId::FIRST);
        if clock != self.shown {
            self.shown = clock;
            self.ahead.insert(GroupId::FIRST);
        }
    }
}

/// What serves the replica of one group.
#[derive(Debug)]
pub(super) struct Hosted {
    /// Messages that wait for records.
    pub gate: Gate<(To, PeerMessage)>,
    /// The last slot that was delivered, or came with a snapshot.
    pub delivered: Slot,
    pub backlogged: bool,
    /// The group has let this node go.
    pub retired: bool,
}

impl Hosted {
    /// What serves a replica that has just begun, after the slot that came with its snapshot and with the records that
    /// are durable.
    pub(super) fn begun(delivered: Slot, durable: Lsn) -> Hosted {
        Hosted { gate: Gate::new(durable), delivered, backlogged: false, retired: false }
    }
}

/// What the executor has to do, in order.
#[derive(Debug)]
pub(super) enum Job {
    Execute { slot: Slot, ballots: Ballots, batch: Batch, replies: Replies },
    Read { slots: Vec<Slot>, reads: Vec<Ask> },
    Freeze,
    Restore(SnapshotInfo),
}

/// What the thread of snapshots does.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub book: SnapshotBook<Vec<u8>>,
    /// The snapshot that is being written, and those that come after it.
    pub writing: VecDeque<Draft>,
}

/// A snapshot that is not a file yet.
#[derive(Debug)]
pub(super) struct Draft {
    pub group: GroupId,
    pub slot: Slot,
    pub cut: Cut,
    pub bytes: Bytes,
}

pub(super) fn id(of: usize) -> ReplicaId {
    ReplicaId(of as u64 + 1)
}

pub(super) fn index(id: ReplicaId) -> usize {
    id.0 as usize - 1
}
