//! The pure part of a node: what stands between its replicas and the threads, files and sockets that serve them.
//!
//! A [`Replica`](synod_replica::Replica) says what it wants done. The parts here decide what of that may
//! happen when. They have no thread, clock, file or socket: `synod-node` puts threads around them, `synod-sim` a seed,
//! and `synod-lab` a model of what the work costs.
//!
//! # Duties of the caller
//!
//! 1. **A burst is [`Host::step`] as often as inputs have come, then [`Host::turn`], then [`Host::carry_out`], all with
//!    one time that was read no earlier than what the executor had shown.** With an earlier time a replica takes less
//!    to have gone by than the replicated clock says; without the turn deadlines pass unseen.
//! 2. **What a burst wants is carried out in the order in which it is handed out, and a change of a group's members is
//!    written down, durably, before anything that follows it leaves.** Otherwise a replica that loses a part of its log
//!    may find a group in which it decides alone.
//! 3. **The node takes its turn when [`Host::due`] has come. A caller that also executes looks at the clock between two
//!    jobs, and ends that work after a bounded time.** Otherwise heartbeats are late, and a leader that is well is
//!    taken for lost.
//! 4. **Each message of a replica goes through the [`Gate`] of its group, in the order in which the replica sent it.**
//!    A message that goes around the gate may promise what a crash forgets.
//! 5. **The gate hears that a record is durable only once that record and all before it are.** Otherwise two leaders
//!    may each count the vote of a replica that remembers one of them.
//! 6. **What the gate lets out is sent in that order.** A vote that comes before an earlier one may be refused, and has
//!    to be sent again.
//! 7. **A gate ends with the life of its replica.** What waits in it is never sent: the next life may not have the
//!    records that it rests on.
//! 8. **Jobs of execution are taken from their [`Execution`] one at a time, and only after all that the step wants that
//!    pushed them is carried out.** A snapshot that is frozen within a batch lacks the rest of it for good; a client
//!    that is told of a change of the group before the change shows asks the wrong replicas next.
//! 9. **A snapshot file gets its name, is served and is deleted only as the [`SnapshotBook`] says, and the book hears
//!    of it before a replica does.** A replica that hears of a snapshot trims its log: without the
//!    file, slots are gone.
//!
//! | duty | a caller that skips it is noticed by |
//! | --- | --- |
//! | 1 | the invariant `clock-not-fast`; `HostBug::SkipDeadlines` |
//! | 2 | the invariant `members-first`; `HostBug::MembersLast` |
//! | 3 | `turns.rs`: a turn ends in time; the invariant `liveness` |
//! | 4, 5, 6 | the invariant `gate-order`; the three `HostBug`s of the gate |
//! | 7 | the simulator makes a gate for each life; the invariant `durable-before-promise` |
//! | 8 | `execution.rs` and the executor, which panic; `HostBug::RestLast` |
//! | 9 | the invariants `snapshot-covers` and `liveness`; `HostBug::KeepNoFile` |
//!
//! | file | contents |
//! | --- | --- |
//! | `host.rs` | the groups of a node, and the bursts in which their replicas are stepped |
//! | `clients.rs` | who waits for which command, and for which read |
//! | `gate.rs` | which message may leave |
//! | `execution.rs` | what is executed next, and which reads wait |
//! | `turns.rs` | execution by the thread that steps the replicas |
//! | `bundle.rs` | in which frames messages leave |
//! | `parting.rs` | who is a peer, and for how long after it was removed |
//! | `planted.rs` | bugs that tests plant |
//! | `snapshots.rs` | which snapshot file is received, named, served, installed and forgotten |

mod bundle;
mod clients;
mod execution;
mod gate;
mod host;
mod parting;
mod planted;
mod snapshots;
mod turns;

pub use bundle::{BUNDLE, Bundles, encode_by_version, open_bundle};
pub use execution::{Execution, Reads};
pub use gate::{Entry, Exit, Gate};
pub use host::{BURST_MAX, Effect, Host, Input, Progress, ReadAt, Started};
pub use parting::Parting;
pub use planted::HostBug;
#[cfg(feature = "planted-bugs")]
pub use planted::plant;
pub use snapshots::{Kept, SnapshotBook};
pub use turns::{EXECUTION_TURN, Executed, MERGED_BATCHES_MAX, Part, Turns};
