//! What a replica is told and what it wants done: everything between it and the threads of a server, or the simulator.

use std::sync::Arc;

use bytes::Bytes;
use synod_consensus::{LeaderView, Link, Status as ProtocolStatus, To};
use synod_wire::{
    Ballot, Ballots, Batch, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time,
};

use crate::{Clocked, Follower, Fork, Group, History, LogRecord, MemberSet, Met, PeerMessage, RequestError};

/// Names a command of a local client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a query of a local client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// A snapshot on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// It holds everything through this slot.
    pub slot: Slot,
    /// The size of its file in bytes.
    pub bytes: u64,
}

/// A snapshot that replaced the executor's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The snapshot.
    pub info: SnapshotInfo,
    /// The highest ballots of the slots that it holds, as far as they are of the group's epoch.
    pub ballots: Ballots,
    /// The group after that slot.
    pub group: Group,
    /// What was decided through that slot.
    pub history: History,
}

/// A command's place in the session of a client that identifies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCommand {
    /// The session.
    pub session: SessionId,
    /// The command's number in it.
    pub sequence: u64,
    /// The lowest number that the session still waits for.
    pub lowest_outstanding: u64,
}

/// An event for a replica.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message of a peer arrived.
    Receive {
        /// The sender.
        from: ReplicaId,
        /// The message.
        message: PeerMessage,
    },
    /// What a peer says from now on comes from this life of it, until another one is told.
    Met {
        /// The peer.
        peer: ReplicaId,
        /// How it introduced itself.
        met: Met,
    },
    /// Every member with which the group began was met once, so that none of them can have lost what it
    /// promised without being noticed. A replica takes no part in ordering before that, whatever it has
    /// fetched meanwhile.
    MetAll,
    /// A session to a peer began or ended, or cannot begin.
    Link {
        /// The peer.
        peer: ReplicaId,
        /// What happened to the session.
        link: Link,
    },
    /// Records through this one are on stable storage.
    Durable(Lsn),
    /// The last deadline has passed.
    Timer,
    /// A local client sends a command.
    Request {
        /// A name that comes back with the result.
        request: RequestId,
        /// What executes the command.
        kind: CommandKind,
        /// The session of a client that identifies itself; otherwise the command counts as this replica's.
        session: Option<SessionCommand>,
        /// The command.
        payload: Bytes,
    },
    /// A local client sends a command that keeps something alive, such as a lease. It is a command of this replica, and
    /// is not refused because others wait: the client would lose more than time.
    Upkeep {
        /// A name that comes back with the result.
        request: RequestId,
        /// The command.
        payload: Bytes,
    },
    /// A local client wants to read, linearizably.
    Read(ReadId),
    /// Everything through this slot is executed.
    Executed {
        /// The last slot that was executed.
        slot: Slot,
        /// What the replicated clock shows ([`Executor::clocked`](crate::Executor::clocked)), read no later than
        /// the instant of this event.
        clock: Clocked,
    },
    /// The log that this group shares with others has become long only because of this group: a snapshot is
    /// due, whatever the settings say, if there is anything that it could hold.
    TakeSnapshot,
    /// Answers [`Action::TakeSnapshot`]: the snapshot is on stable storage, or could not be taken.
    SnapshotTaken(Option<SnapshotInfo>),
    /// Another group took a snapshot that holds this one too, as far as `info.slot`.
    SnapshotShared(SnapshotInfo),
    /// Answers [`Action::ReadChunk`].
    ChunkRead {
        /// The peer that asked.
        to: ReplicaId,
        /// The snapshot.
        slot: Slot,
        /// Where the piece begins.
        offset: u64,
        /// The file's size; 0 if there is no such snapshot any more.
        total: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// Answers [`Action::WriteChunk`]: written through `end`.
    ChunkWritten {
        /// The snapshot.
        slot: Slot,
        /// Where the next piece begins.
        end: u64,
    },
    /// Answers [`Action::InstallSnapshot`], or [`Action::WriteChunk`] if the piece could not be written;
    /// `None` if nothing was installed.
    SnapshotInstalled(Option<Box<Installed>>),
    /// An operator wants this member to lead.
    Transfer(ReplicaId),
    /// The group that this one follows has decided on these members, as this node knows it. An older set than one that
    /// was told before may come, and changes nothing.
    Members(Arc<MemberSet>),
    /// The group should go on to this position of the common order, as far as this replica takes care of it.
    Skip(u64),
    /// The groups that follow this one have these voters, as this node knows them; of equal ones one is enough.
    Followers(Vec<Follower>),
}

/// Something that a replica wants done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Add a record to the write-ahead log.
    Append {
        /// Its number; records are numbered without gaps.
        lsn: Lsn,
        /// The record.
        record: LogRecord,
    },
    /// Send a message once record `after` is durable.
    Send {
        /// The receivers; never the replica itself.
        to: To,
        /// The message.
        message: PeerMessage,
        /// The record that has to be durable first; `Lsn::ZERO` if the message may leave at once.
        after: Lsn,
    },
    /// Execute a decided batch, in the order of these actions.
    Execute {
        /// Its slot.
        slot: Slot,
        /// The ballots with which it was delivered.
        ballots: Ballots,
        /// The batch.
        batch: Batch,
        /// The local requests to answer with the outcomes: for each its place among the batch's commands.
        requests: Vec<(usize, RequestId)>,
    },
    /// Answer a query from a state that includes `slot`.
    ReadAt {
        /// The query.
        read: ReadId,
        /// The slot.
        slot: Slot,
    },
    /// A query cannot be answered.
    ReadFailed {
        /// The query.
        read: ReadId,
        /// The reason.
        error: RequestError,
    },
    /// A command has failed, or its outcome will not be known here.
    RequestFailed {
        /// The command.
        request: RequestId,
        /// The reason.
        error: RequestError,
    },
    /// Another replica leads, as far as this one knows, or none.
    Leader(LeaderView),
    /// The group has changed. All replicas that it knows ([`Group::known`]) must be reachable.
    Group(Group),
    /// Another replica has decided something else: nothing that it says counts here any more. If no majority
    /// can agree with this replica, it must stop.
    Forked(Fork),
    /// Two batches were proposed for a slot in one ballot, as no replica does that keeps to the protocol. An operator
    /// should hear of it.
    TwoProposals {
        /// The ballot, which names the replica that proposed both, or in whose name somebody did.
        ballot: Ballot,
        /// The slot.
        slot: Slot,
    },
    /// A replica that had decided something else has learned again, and agrees as far as it has come.
    Agreed(ReplicaId),
    /// A change was decided in this slot that this program does not know. The replica has stopped before it: to skip
    /// the change would make its group another one than that of the others. A later release goes on from here.
    UnknownChange {
        /// The slot.
        slot: Slot,
    },
    /// This replica is not a member any more, and is not needed any more.
    Retired,
    /// Call with [`Event::Timer`] at this time; replaces the previous deadline.
    Deadline(Time),
    /// Freeze the state as it is after all `Execute` actions so far and write it to stable storage.
    TakeSnapshot,
    /// Read a piece of a snapshot.
    ReadChunk {
        /// The peer that asked for it.
        to: ReplicaId,
        /// The snapshot.
        slot: Slot,
        /// Where the piece begins.
        offset: u64,
        /// The largest size of the piece.
        len_max: usize,
    },
    /// Add a piece to the snapshot that is being received; with offset 0 it begins again.
    WriteChunk {
        /// The snapshot.
        info: SnapshotInfo,
        /// Where the piece begins.
        offset: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// The received snapshot is complete: verify it, make it durable, and replace the executor's state by it.
    InstallSnapshot(SnapshotInfo),
    /// The write-ahead log may forget slots through this one, once the records appended before are durable.
    Trim(Slot),
}

/// What a replica finds when it starts.
#[derive(Debug)]
pub struct Recovered {
    /// The records of its write-ahead log, in order.
    pub records: Vec<LogRecord>,
    /// The number of the last of them.
    pub last_lsn: Lsn,
    /// The snapshot that its executor was restored from.
    pub snapshot: Option<Installed>,
    /// Whether records may be missing.
    pub amnesia: bool,
    /// The birth of its data directory: a number that was drawn when that was made.
    pub birth: u64,
    /// The number of this life of the replica.
    pub incarnation: Incarnation,
    /// The number that this life drew. It is part of the replica's own session: a life of the same number on
    /// a copy of this disk has another session.
    pub nonce: u64,
    /// Whether every member with which the group began was met once, by this life or an earlier one; see
    /// [`Event::MetAll`].
    pub met_all: bool,
}

/// The number of things that are waited for; at rest all are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Reads of local clients.
    pub reads: usize,
    /// Questions of other replicas, for their reads.
    pub remote_reads: usize,
    /// Commands of local clients.
    pub commands: usize,
    /// Commands of clients that identify themselves, by which their requests are found.
    pub client_commands: usize,
    /// Batches of followers that are queued here or being ordered.
    pub forwarded: usize,
    /// Changes of the group that the protocol does not take yet.
    pub changes: usize,
    /// Decided slots that are not executed.
    pub unexecuted: usize,
    /// Bytes of messages that wait for the disk.
    pub held_bytes: u64,
}

/// A replica's answers to questions about itself.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaStatus {
    /// The epoch.
    pub epoch: Epoch,
    /// The newest epoch that it entered. What the protocol's status says of ballots is of this epoch.
    pub entered: Epoch,
    /// Whether it does not vote because it has not met every member with which the group began; see
    /// [`Event::MetAll`].
    pub waits_for_members: bool,
    /// The protocol's status, or an equivalent in a replica that takes no part in ordering.
    pub protocol: ProtocolStatus,
    /// The last slot that can be read ([`crate::Replica::read_log`]).
    pub delivered: Slot,
    /// The last executed slot.
    pub executed: Slot,
    /// The last snapshot.
    pub snapshot: Option<SnapshotInfo>,
    /// Slots that it may have under way while it leads.
    pub window_max: usize,
    /// Bytes of commands that wait for a decision.
    pub queued_bytes: usize,
    /// How many decided slots are kept in memory.
    pub kept_slots: usize,
    /// The bytes of these slots.
    pub kept_bytes: u64,
    /// Bytes of batches that followers sent here to be ordered, and that wait for room.
    pub forwarded_bytes: usize,
    /// Questions of other replicas, for their reads, that wait here.
    pub remote_reads: usize,
    /// Bytes of decided batches that are not executed.
    pub unexecuted_bytes: u64,
    /// Bytes of records that are not on stable storage.
    pub undurable_bytes: u64,
    /// Bytes of messages that wait for these records.
    pub held_bytes: u64,
    /// Messages that were not sent, since this replica started, because too many bytes waited for the disk.
    pub sends_given_up: u64,
    /// Whether the executor or the disk lags so far that nothing more is taken in.
    pub backlogged: bool,
    /// Whether [`Event::Durable`] should come at once; otherwise it may come with the next event.
    pub waits_for_disk: bool,
    /// A snapshot that is being received, and how many bytes of it have come.
    pub receiving: Option<(SnapshotInfo, u64)>,
    /// How many peers the snapshot, or decided slots that are missing here, come from.
    pub sources: usize,
    /// Bytes of decided batches that wait for slots with lower numbers.
    pub ahead_bytes: usize,
    /// Whether an earlier life may have said something in this epoch that the replica has forgotten: it does
    /// not vote before it has learned that, or an epoch begins for it.
    pub without_memory: bool,
    /// Whether this replica does what one replica has to do for all, as far as it knows.
    pub takes_care: bool,
}
