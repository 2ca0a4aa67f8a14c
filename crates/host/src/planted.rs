//! Bugs of a host that a test can plant, to see that the simulator finds them.
//!
//! A host has no options that could carry one, so a bug is planted for all that the present thread does. That is
//! possible only under the feature `planted-bugs`, which nothing but the simulator's tests enables.

/// A known way to get a host wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostBug {
    /// Of the messages whose records are durable the last one leaves first.
    LastOutFirst,
    /// A message waits for the records of those that were sent before it.
    WaitForAll,
    /// A message waits for no record.
    WaitForNone,
    /// A change of the members is written down after all that follows it.
    MembersLast,
    /// Deadlines pass unseen.
    SkipDeadlines,
    /// No snapshot file stays once there is a newer one, nor that one.
    KeepNoFile,
    /// The rest of a batch of which a part is executed comes after all other jobs.
    RestLast,
}

impl HostBug {
    /// All of them.
    pub const ALL: &'static [HostBug] = &[
        HostBug::LastOutFirst,
        HostBug::WaitForAll,
        HostBug::WaitForNone,
        HostBug::MembersLast,
        HostBug::SkipDeadlines,
        HostBug::KeepNoFile,
        HostBug::RestLast,
    ];

    /// Those of which message may leave when.
    pub const OF_GATE: &'static [HostBug] =
        &[HostBug::LastOutFirst, HostBug::WaitForAll, HostBug::WaitForNone];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    use super::HostBug;

    thread_local! {
        static PLANTED: Cell<Option<HostBug>> = const { Cell::new(None) };
    }

    /// Plants a bug in whatever this thread does from now on, or takes it away.
    pub fn plant(bug: Option<HostBug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn has(bug: HostBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(not(feature = "planted-bugs"))]
mod switch {
    pub(crate) fn has(_: super::HostBug) -> bool {
        false
    }
}

pub(crate) use switch::has;
#[cfg(feature = "planted-bugs")]
pub use switch::plant;
