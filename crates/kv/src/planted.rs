//! Bugs of the store, of its upkeep and of watches that a test can plant, to see that the simulator finds them.
//!
//! A store has no options that could carry one, so a bug is planted for all that the present thread does. That is
//! possible only under the feature `planted-bugs`, which nothing but the simulator's tests enables.

/// A known way to get users, the upkeep of the store, leases or watches wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBug {
    /// A snapshot that is restored leaves what users may do as it was before: what follows from their roles is not made
    /// again.
    KeepRightsAtRestore,
    /// A command counts whatever has changed of users and roles since its server found out who its user is.
    AnyAuthRevision,
    /// What a role permits is found out for the user that the role is granted to, and not again when the role changes.
    RightsOfGrant,
    /// The role of a user that is revoked goes on permitting.
    KeepRightsOfRevokedRole,
    /// A compaction is made at the present revision, and not at one that is old.
    CompactAtPresent,
    /// A revision counts as old after a tenth of the period.
    HastyCompaction,
    /// Hashes are compared although their stores were compacted at different revisions.
    JudgeAcrossCompactions,
    /// An answer counts for whatever was asked last.
    AnyRound,
    /// A member hashes what it has when it answers, and not what it had when it executed the question.
    HashAtPresent,
    /// Some hash is taken for the right one, also if no majority of the members has it.
    AnyHashIsRight,
    /// Hashes are not looked at: members with the same revision are taken to be the same.
    JudgeByRevision,
    /// The time of a lease counts from what the clock shows at its grant or renewal, and goes on counting when another
    /// replica moves the clock.
    LeaseCountsAtOnce,
    /// A lease that a snapshot brings has the end that its time to live says, if its time was not counted yet.
    LeaseCountsAtRestore,
    /// The last key of a lease stays when the lease ends.
    LeaseLeavesAKey,
    /// A watcher that was told what a view has goes on with what the hub is told next. What came between is lost.
    WatchLosesBetween,
    /// Watchers that read a view together are told all of it, also what some of them know.
    WatchRepeats,
    /// A response ends where it has enough bytes, also within a revision.
    WatchSplitsRevisions,
    /// A watch of what is compacted goes on with what is left, and is not told.
    WatchOverCompaction,
}

impl KvBug {
    /// Bugs of users.
    pub const AUTH: &'static [KvBug] = &[
        KvBug::KeepRightsAtRestore,
        KvBug::AnyAuthRevision,
        KvBug::RightsOfGrant,
        KvBug::KeepRightsOfRevokedRole,
    ];

    /// Bugs of leases.
    pub const LEASES: &'static [KvBug] =
        &[KvBug::LeaseCountsAtOnce, KvBug::LeaseCountsAtRestore, KvBug::LeaseLeavesAKey];

    /// Bugs of the hub of watches.
    pub const WATCHES: &'static [KvBug] = &[
        KvBug::WatchLosesBetween,
        KvBug::WatchRepeats,
        KvBug::WatchSplitsRevisions,
        KvBug::WatchOverCompaction,
    ];

    /// Bugs of compactions and comparisons.
    pub const UPKEEP: &'static [KvBug] = &[
        KvBug::CompactAtPresent,
        KvBug::HastyCompaction,
        KvBug::JudgeAcrossCompactions,
        KvBug::AnyRound,
        KvBug::HashAtPresent,
        KvBug::AnyHashIsRight,
        KvBug::JudgeByRevision,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    use super::KvBug;

    thread_local! {
        static PLANTED: Cell<Option<KvBug>> = const { Cell::new(None) };
    }

    /// Plants a bug in whatever this thread does from now on, or takes it away.
    pub fn plant(bug: Option<KvBug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn has(bug: KvBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(not(feature = "planted-bugs"))]
mod switch {
    pub(crate) fn has(_: super::KvBug) -> bool {
        false
    }
}

pub(crate) use switch::has;
#[cfg(feature = "planted-bugs")]
pub use switch::plant;
