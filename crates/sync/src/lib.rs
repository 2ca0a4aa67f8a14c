//! What threads are made of: locks, atomics, channels, threads, clocks and sockets.
//!
//! As a rule these are the standard library's, under the same names. With the feature
//! `shuttle` they are those of a scheduler (the crate `shuttle`), which decides at every operation on one of
//! them which thread runs next. So the runtime's own code, from `Node::start` to `Node::stop`, runs in any
//! order that threads could run in, with its own time and network, and a seed repeats a failure. Tests use it
//! through `explore`.
//!
//! Only operations that order threads belong here. A counter that nothing depends on stays an atomic of the
//! standard library, since each operation here makes the scheduler decide once more.

pub mod channel;

#[cfg(not(feature = "shuttle"))]
mod real;
#[cfg(not(feature = "shuttle"))]
pub use real::*;

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(feature = "shuttle")]
pub use explored::*;

/// What threads of one name have done with their time so far. What is left of the time that went by is the system's: a
/// disk, a socket, a sleep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadTimes {
    /// The name, of at most 15 bytes as the system keeps it.
    pub name: String,
    /// How many threads have it.
    pub threads: u32,
    /// They had a processor.
    pub busy: std::time::Duration,
    /// They could have used one, and others had it.
    pub ready: std::time::Duration,
    /// They waited for a lock.
    pub blocked: std::time::Duration,
    /// They waited for something to do, or for room in a queue.
    pub waiting: std::time::Duration,
}

/// The processor time that this thread has taken so far. Unlike the time that goes by, it leaves out when the thread
/// waited for a processor.
#[must_use]
pub fn processor_time() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::try_from(now).unwrap_or_default()
}

/// Errors that a test plants in the runtime, each at one place, to check that exploring finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The log's thread lets messages leave before their records are written.
    SendBeforeCommit,
    /// The thread that prepares segments releases the lock between looking for work and waiting.
    LookWithoutLock,
    /// The replica stops without having the log commit its records.
    StopWithoutCommit,
    /// The thread that writes snapshots forgets that it was told to stop while it was writing one.
    ForgetStop,
    /// Queueing a frame does not wake the thread that sends.
    NoWakeForFrames,
}

/// Whether a test has planted this error. Without the feature `shuttle` it is never planted.
#[cfg(not(feature = "shuttle"))]
#[inline(always)]
#[must_use]
pub const fn planted(_: Planted) -> bool {
    false
}
