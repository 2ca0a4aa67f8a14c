//! What surrounds an ordering protocol in a replica: pure, like the protocol itself.
//!
//! A [`Replica`] takes commands of clients, makes batches of them, has them ordered by a
//! [`synod_consensus::Protocol`], and says which decided batch to execute next. It routes to the leader,
//! confirms linearizable reads, helps replicas that lag, is helped when it lags itself, and decides when a
//! snapshot is due. An [`Executor`] applies decided batches to a [`StateMachine`], each command once.
//!
//! Both are pure: they take [`Event`]s and batches and answer with [`Action`]s and outcomes. `synod-node`
//! carries the actions out with threads, sockets and files; `synod-sim` does it with a seed.
//!
//! | file | contents |
//! | --- | --- |
//! | `replica.rs` | events in, actions out |
//! | `requests.rs`, `batcher.rs` | commands of clients, until they are decided or given up |
//! | `throughput.rs` | how long a command would wait, and whether it is refused |
//! | `proposing.rs` | what is proposed here, and what is sent to the leader |
//! | `instance.rs` | the instance of the ordering protocol that runs here |
//! | `forwarded.rs` | batches that followers sent here to be ordered |
//! | `executor.rs`, `session.rs` | execution, at most once |
//! | `backlog.rs` | what threads have not dealt with yet, bounded in bytes |
//! | `clock.rs` | the replicated clock |
//! | `merge/` | several groups in one order |
//! | `reads.rs` | linearizable reads without a log write |
//! | `relay.rs` | a way to the leader by another voter |
//! | `catch_up.rs`, `ahead.rs` | what this replica missed: which peers to ask for what |
//! | `transfer.rs`, `push.rs`, `decided.rs` | decided slots from one replica to another: asked for, pushed, kept |
//! | `snapshots.rs` | when a snapshot is due, which one is kept, how one comes from another replica |
//! | `group.rs`, `change.rs` | the members of the group and the protocol that orders; changes of these |
//! | `follow.rs` | groups that take their members from another group |
//! | `placement.rs` | groups for which voters are chosen among these members |
//! | `limits.rs` | limits that all replicas of a group have alike |
//! | `voters.rs` | changes of voters within an epoch; learners |
//! | `epochs.rs`, `epochs/` | from one epoch to the next; restarts; what replicas tell each other of themselves |
//! | `history.rs` | whether two replicas have decided the same |
//! | `record.rs` | the records that a replica writes |
//! | `salvage.rs` | what is kept of a log that lacks records |
//! | `message.rs` | what replicas say to each other |
//! | `describe.rs` | texts of changes, records and batches for people |

mod ahead;
mod backlog;
mod batcher;
mod births;
mod catch_up;
mod change;
mod clock;
mod decided;
pub mod describe;
mod epochs;
mod error;
mod events;
mod executor;
#[cfg(test)]
mod fixed;
mod follow;
mod forwarded;
mod group;
mod history;
mod instance;
mod limits;
mod merge;
mod message;
mod pacing;
mod placement;
mod proposing;
mod push;
mod reads;
mod record;
mod references;
mod relay;
mod replica;
mod requests;
mod salvage;
pub mod session;
mod settings;
mod snapshots;
mod state_machine;
mod throughput;
mod transfer;
mod voters;

pub use births::Met;
pub use catch_up::SEGMENTS_MAX;
pub use change::{Change, ChangeRequest, Named, Refusal, decode_reply, encode_reply};
pub use clock::Tick;
pub use decided::{Decided, LogBegin, LogFrom, LogPart};
pub use error::RequestError;
pub use events::{
    Action, Event, Installed, ReadId, Recovered, ReplicaStatus, RequestId, SessionCommand, SnapshotInfo,
    Waiting,
};
pub use executor::{
    Begun, Clocked, Cut, Executor, Outcome, ReadSnapshot, ReadSnapshotFrom, SNAPSHOT_FORMATS,
};
pub use follow::{Follower, MemberSet, Membership};
pub use group::{GROUP_MEMBERS_MAX, Goal, Group, Member, MemberInfo, Standing};
pub use history::{Fork, History, Mark};
pub use limits::{ANSWER_BYTES_MAX, LimitError, Limits, REQUEST_BYTES_MAX, REQUEST_BYTES_MIN};
#[cfg(feature = "planted-bugs")]
pub use merge::plant;
pub use merge::{
    Merge, MergeBug, MergedExecutor, MergedFile, MergedFiles, MergedReads, Ordered, Pace, Place, Point,
    Restored, SKIPS_PERIOD, Skips, Start, SubscribeError, Subscriber, Take, UnknownSkips,
};
pub use message::{PeerMessage, Routed};
pub use placement::{Choice, Others, Placement};
pub use record::LogRecord;
pub use replica::Replica;
pub use salvage::{salvage, salvage_with};
pub use session::SessionLimits;
pub use settings::{Settings, StateTransfer, UnknownTransfer};
pub use snapshots::worth_a_snapshot;
pub use state_machine::{Answer, Context, Frozen, Install, Replaced, SnapshotReader, StateMachine};
