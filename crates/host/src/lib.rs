//! The pure part of a node: what stands between its replicas and the threads, files and sockets that serve them.
//!
//! A [`Replica`](../synod_replica/struct.Replica.html) says what it wants done. The parts here decide what of that may
//! happen when. They have no thread, clock, file or socket: `synod-node` puts threads around them, `synod-sim` a seed,
//! and `synod-lab` a model of what the work costs.
//!
//! # Duties of the caller
//!
//! 1. **Each message of a replica goes through the [`Gate`] of its group, in the order in which the replica sent it.** A
//!    message that goes around the gate may promise what a crash forgets.
//! 2. **The gate hears that a record is durable only once that record and all before it are.** Otherwise two leaders
//!    may each count the vote of a replica that remembers one of them.
//! 3. **What the gate lets out is sent in that order.** A vote that comes before the one that it rests on is refused,
//!    and has to be sent again.
//! 4. **A gate ends with the life of its replica.** What waits in it is never sent: the next life may not have the
//!    records that it rests on.
//!
//! | file | contents |
//! | --- | --- |
//! | `gate.rs` | which message may leave |

mod gate;

pub use gate::{Entry, Exit, Gate};
