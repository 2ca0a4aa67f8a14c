//! Why a replica does not start, has ended, or does not change its group.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use synod_consensus::{CombinationError, MEMBERS_MAX, OptionError, Threshold};
use synod_replica::{LimitError, Refusal, RequestError};
use synod_storage::{Damage, Durability, Loss, StorageError};
use synod_wire::{
    DecodeError, GROUPS_MAX, GroupId, Groups, Lsn, MERGED_MAX, REPLICA_ID_MAX, ReplicaId, Slot, TAKE_MAX,
};

/// What is wrong with a [`Config`](crate::Config).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The replica is not one of the members with which the group begins, and does not join either.
    #[error("replica {0} is not among the members")]
    NotAMember(ReplicaId),
    /// Two members have one id.
    #[error("two members have the id {0}")]
    SameId(ReplicaId),
    /// Two members have one address.
    #[error(
        "{one} and {other} are both at {address}; each member needs an address of its own, at which the others reach it"
    )]
    SameAddress {
        /// The name of one of them.
        one: String,
        /// The name of the other.
        other: String,
        /// Their `host:port`.
        address: String,
    },
    /// The group would begin with this many members.
    #[error("{0} members; at most {MEMBERS_MAX}")]
    TooManyMembers(usize),
    /// An id is out of range.
    #[error("{0} is not the id of a replica; they go from 1 to {REPLICA_ID_MAX}")]
    Id(ReplicaId),
    /// Protocol, election, dissemination and durability do not go together.
    #[error(transparent)]
    Combination(#[from] CombinationError),
    /// All members are needed to decide, so each would need what another one forgets.
    #[error(
        "with durability {durability}, a group of {members} could never go on without one of them, since {needed} decide; \
         use {least} members or more, or durability sync"
    )]
    AllAreNeeded {
        /// For which records a replica waits for its disk.
        durability: Durability,
        /// The members with which the group would begin.
        members: usize,
        /// How many members decide.
        needed: Threshold,
        /// The fewest members that survive the loss of one.
        least: usize,
    },
    /// A replica has at least one group, and a bounded number of them.
    #[error("{0} groups; there can be 1 to {GROUPS_MAX}")]
    Groups(usize),
    /// The cluster that this replica joins has another number of groups.
    #[error("the groups {own}; the cluster to be joined has {cluster}")]
    GroupsOfCluster {
        /// The groups that this replica was to have.
        own: Groups,
        /// Those of the cluster.
        cluster: Groups,
    },
    /// There are too few or too many merged groups, or batches of each in a row.
    #[error("2 to {MERGED_MAX} groups can be merged, with up to {TAKE_MAX} batches of each in a row")]
    Merging,
    /// Merged groups have one state machine.
    #[error("{0} state machines for groups that are merged into one order; they have one")]
    MergedMachines(usize),
    /// A time must not be 0.
    #[error("{0} is 0; it must be longer")]
    NoTime(&'static str),
    /// A number must not be 0.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// Replicas would have to send each other messages that their connections do not take.
    #[error(
        "a message between replicas may have {message_bytes_max} bytes, which exceeds the {frame_bytes_max} of a frame; \
         lower page_bytes_max, append_bytes_max, fetch_bytes_max or chunk_bytes_max"
    )]
    MessageTooLarge {
        /// The largest message, in bytes.
        message_bytes_max: usize,
        /// The largest frame, in bytes.
        frame_bytes_max: usize,
    },
    /// Only [`Threads::Compact`](crate::Threads::Compact) has a thread on which an event loop can run.
    #[error("threads are spread; on an event loop they have to be compact")]
    EventLoop,
    /// A limit of the group is out of its range.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// A leader would be missed although it lives.
    #[error(
        "election-timeout ({election_timeout:?}) must be at least 3 times heartbeat-interval ({heartbeat_interval:?})"
    )]
    ElectionTooSoon {
        /// How long a leader may be silent.
        election_timeout: Duration,
        /// How often it says that it lives.
        heartbeat_interval: Duration,
    },
}

/// What a log, or the data beside it, lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lacking {
    /// Files are damaged.
    #[error("{0}")]
    Damage(Damage),
    /// An earlier life kept its log so that this one does not find all of it.
    #[error("{0}")]
    Loss(Loss),
    /// The log goes on from a snapshot that is not there.
    #[error("it relies on a snapshot that is missing, or was set aside before")]
    Snapshot,
    /// The log ends before the change that removed the other members.
    #[error("what is left of it does not know yet that the others were removed")]
    Removals,
}

/// Why a replica did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration makes no sense.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// Log, snapshots or data directory.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The replica was started before with durability `crash-stop`, which keeps no log.
    #[error(
        "{0} is of a replica that was started with durability crash-stop before. It does not remember what it promised, so it must \
         not start again. Let another replica take its place: synod member replace, and then a start with an empty data \
         directory and --initial-cluster-state existing. If most of the voters are gone, make a new cluster of what a \
         snapshot holds: synod recover --force-new-cluster"
    )]
    Stopped(PathBuf),
    /// Listening for other replicas.
    #[error(transparent)]
    Transport(#[from] synod_transport::TransportError),
    /// The system gives no thread.
    #[error("a thread cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// A record of the log is not what this program writes.
    #[error("log record {lsn}: {error}")]
    Record {
        /// Its number.
        lsn: Lsn,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// A record of the log is of a group that the replica was not started with.
    #[error("log record {lsn} is of group {group}; this replica was started with {groups} groups")]
    RecordOfGroup {
        /// Its number.
        lsn: Lsn,
        /// Its group.
        group: GroupId,
        /// How many groups there are.
        groups: usize,
    },
    /// A snapshot is not what this program, or the state machine, writes.
    #[error("{}: {error}", path.display())]
    Snapshot {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// What the data directory says of the group with which the log begins is not what this program writes.
    #[error("{}: what the replica began with: {error}", data_dir.display())]
    Origin {
        /// The data directory.
        data_dir: PathBuf,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// Nobody can help: the data of the only replica is damaged.
    #[error(
        "the log is damaged ({0}), and there is no other replica to recover from; restore {1} from a backup"
    )]
    DamagedAlone(Lacking, PathBuf),
    /// The log of the only replica is gone, and it was not told to do without ([`Config::accept_lost_log`]).
    ///
    /// [`Config::accept_lost_log`]: crate::Config::accept_lost_log
    #[error(
        "the log is lost ({0}), and there is no other replica to recover from; restore {1} from a backup, or start \
         once with --accept-lost-log to go on from the last snapshot, without what was written since"
    )]
    LostAlone(Loss, PathBuf),
    /// The only voter lost something that members without a vote may hold.
    #[error(
        "the log is damaged or lost ({0}), and the other members have no vote, so nobody can tell what is missing, though they \
         may hold it. Make a new cluster of the data directory that holds most, this one or one of theirs: synod recover \
         --force-new-cluster"
    )]
    LostBeforeLearners(Lacking),
    /// The only member lost the record of those who were members once, and would give their ids to others.
    #[error(
        "the log is damaged or lost, and with it who was a member once. The ids of those would be given again, and one \
         that never heard of its removal would be taken for a new member. Make a new cluster of what is left, which they \
         cannot reach: synod recover --force-new-cluster"
    )]
    MembersForgotten,
}

/// Why a replica has ended by itself: it could not go on and keep its promises. Nothing that was acknowledged is lost
/// by that.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The disk failed, or is full. Repair that, and start the replica again.
    #[error(transparent)]
    Storage(Arc<StorageError>),
    /// Another replica knows a later life of this one: its data directory is an old copy, or is in use elsewhere.
    #[error("{why}")]
    #[non_exhaustive]
    Outlived {
        /// The replica that knows it.
        by: ReplicaId,
        /// Which of the two it is, and what to do, for a person.
        why: String,
    },
    /// This replica and others have decided different things, and no majority may agree with this one.
    #[error("{why}")]
    #[non_exhaustive]
    Forked {
        /// The replica from which it differs; itself, if an earlier life of it knew something else.
        with: ReplicaId,
        /// They agree through this slot at least.
        agreed: Slot,
        /// They differ in this slot, or in one after `agreed` and before it.
        slot: Slot,
        /// Where they differ, and what to do, for a person.
        why: String,
    },
    /// A change of the group was decided that this program does not know. Nothing after it is executed here.
    #[error(
        "a change of group {group} was decided in slot {slot} that this release does not know, as a later one makes: start \
         that release here, with this data directory; nothing is lost"
    )]
    #[non_exhaustive]
    UnknownChange {
        /// The group.
        group: GroupId,
        /// The slot.
        slot: Slot,
    },
    /// A thread of the replica has panicked, perhaps in the state machine. The message was written to standard error.
    #[error("thread {0} panicked; see the message above")]
    Panicked(String),
}

impl From<StorageError> for Ended {
    fn from(error: StorageError) -> Ended {
        Ended::Storage(Arc::new(error))
    }
}

/// Why no part of the decided log was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadLogError {
    /// The replica does not keep the slot any more: a snapshot covers it.
    #[error("slots before {first} are not kept any more")]
    Trimmed {
        /// The first slot that it keeps.
        first: Slot,
    },
    /// The replica is stopping.
    #[error("replica is stopping")]
    Stopping,
}

/// Why a change of the group was not made, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The group stays as it is, and this is why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The group would order, elect and disseminate in ways that do not go together, or not with this replica's
    /// durability.
    #[error(transparent)]
    Combination(#[from] CombinationError),
    /// The protocol does not heed one of the options.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A limit is out of its range.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The replica has several groups, and this is not the one in which their members are decided.
    #[error("the members of this group are those of group 0, and follow by themselves: change them there")]
    MembersFollow,
    /// The replica has several groups, and data that begin with a version in which none of these followed another.
    #[error(
        "this replica has several groups that began with a build from before 0.2.0, and the members of those stay as \
         they are"
    )]
    MembersStay,
    /// The group is one of several that are merged into one order, of which every member has to learn.
    #[error(
        "the groups are merged into one order, which a replica executes only if it learns all of them: the others can learn, \
         and not stay away"
    )]
    AllLearn,
    /// The change met what can meet any command.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl ChangeError {
    /// Whether the change may have been made, or may still be; see [`RequestError::may_have_executed`].
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            ChangeError::Refused(_)
            | ChangeError::Combination(_)
            | ChangeError::Option(_)
            | ChangeError::Limit(_)
            | ChangeError::MembersFollow
            | ChangeError::MembersStay
            | ChangeError::AllLearn => false,
            ChangeError::Request(error) => error.may_have_executed(),
        }
    }
}
