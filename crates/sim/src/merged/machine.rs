//! A machine: its disk, and the life of the process that runs on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use synod_consensus::To;
use synod_host::{Execution, Gate, Reads, SnapshotBook};
use synod_replica::{
    Action, Cut, MergedExecutor, MergedReads, Pace, PeerMessage, Replica, RequestId, SnapshotInfo,
};
use synod_wire::{Ballots, Batch, GroupId, Lsn, ReplicaId, Slot, Time};

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
    pub hosted: Vec<Hosted>,
    pub merged: MergedExecutor<Hosting, Replies>,
    pub pace: Pace,
    pub reads: MergedReads<Ask>,
    /// Reads that wait for slots of all groups.
    pub waiting: Reads<Vec<Slot>, Vec<Ask>>,
    pub execution: Execution<(GroupId, Job)>,
    /// When the last events of the executor come to the replicas.
    pub told_at: Moment,
    pub timer_at: Option<Moment>,
    pub glance_at: Time,
    /// The groups that the present burst has touched.
    pub touched: BTreeSet<GroupId>,
    pub snapshots: Snapshots,
    /// The version of the first group's members that the other groups were told of last.
    pub members_told: Option<u64>,
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

/// The replica of one group.
#[derive(Debug)]
pub(super) struct Hosted {
    pub replica: Replica,
    pub actions: Vec<Action>,
    pub deadline: Time,
    pub requests: BTreeMap<RequestId, Waiter>,
    /// Messages that wait for records.
    pub gate: Gate<(To, PeerMessage)>,
    /// The last slot that was delivered, or came with a snapshot.
    pub delivered: Slot,
    /// The last slot that the replica was told to be executed.
    pub executed: Slot,
    pub backlogged: bool,
    /// The group has let this node go.
    pub retired: bool,
}

impl Hosted {
    /// A replica that has just begun, with what it wants done, after the slot that came with its snapshot and with the
    /// records that are durable.
    pub(super) fn begun(replica: Replica, actions: Vec<Action>, delivered: Slot, durable: Lsn) -> Hosted {
        Hosted {
            replica,
            actions,
            deadline: Time::NEVER,
            requests: BTreeMap::new(),
            gate: Gate::new(durable),
            delivered,
            executed: delivered,
            backlogged: false,
            retired: false,
        }
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
