//! What threads are made of: locks, atomics, channels, threads, clocks and sockets.
//!
//! As a rule these are the standard library's and crossbeam's, under the same names. With the feature `shuttle` they are
//! those of a scheduler (the crate `shuttle`) that decides, at every operation on one of them, which thread goes on. So
//! the runtime's own code, from `Node::start` to `Node::stop`, runs in any order that threads could run in, with time
//! and network of its own, and a seed repeats what went wrong. `explore` is how a test uses it.
//!
//! Only what orders threads belongs here. A counter that nothing depends on stays an atomic of the standard library, since
//! each operation here makes the scheduler decide once more.

#[cfg(not(feature = "shuttle"))]
mod real;
#[cfg(not(feature = "shuttle"))]
pub use real::*;

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(feature = "shuttle")]
pub use explored::*;

/// Errors that tests plant, each at one place in the runtime, to see that exploring finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The log's thread lets messages leave before it has written what they rest on.
    SendBeforeCommit,
    /// A message whose record is durable leaves at once, although an earlier one still waits in the log's queue.
    OvertakeGated,
    /// The thread that prepares segments looks for work, and then waits without holding the lock in between.
    LookWithoutLock,
    /// The replica stops without telling the log to commit what it was given.
    StopWithoutCommit,
    /// The thread that writes snapshots forgets that it was told to stop while it wrote one.
    ForgetStop,
    /// Who queues a frame does not wake the thread that sends.
    NoWakeForFrames,
}

/// Whether a test has planted this error. Never, but under the feature `shuttle`.
#[cfg(not(feature = "shuttle"))]
#[inline(always)]
#[must_use]
pub const fn planted(_: Planted) -> bool {
    false
}
