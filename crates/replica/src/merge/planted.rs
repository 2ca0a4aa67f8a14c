//! Bugs of the merge that a test can plant, to see that the simulator finds them.
//!
//! A merge has no options of its own that could carry one, so a bug is planted for all that the present thread does.
//! That is possible only under the feature `planted-bugs`, which nothing but the simulator's tests enables.

/// A known way to get a merge wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeBug {
    /// A skip says by how much the group goes on, and not to where.
    RelativeSkips,
    /// A skip that says the same as the last one is taken for it, whichever group it is of (Benz 2013, ERR-9).
    ConflateSkips,
    /// A snapshot does not say where the last group is in the common order.
    ForgetPlace,
    /// A read asks one group alone for the slot that it must see.
    AskOneGroup,
    /// A snapshot that is installed takes the place of groups that were further.
    ForgetFurtherHead,
    /// A batch without anything to execute takes a position when it is taken out.
    SilentTakesPosition,
    /// A batch is executed when its group is the first that has one, although another one may still come before it.
    DoNotWait,
    /// A subscriber takes a group to be at the position where the group begins for it, and not where its log is.
    SubscribeAnywhere,
    /// A snapshot that is installed brings what groups have executed, and not their members and protocols.
    KeepMembersAtRestore,
    /// A node that the first group has removed is held back by what it will not execute in other groups.
    HoldLeavingBack,
    /// A snapshot that another group took is of no use to a group that lacks its log.
    ServeOwnFiles,
}

impl MergeBug {
    /// All of them.
    pub const ALL: &'static [MergeBug] = &[
        MergeBug::RelativeSkips,
        MergeBug::ConflateSkips,
        MergeBug::ForgetPlace,
        MergeBug::AskOneGroup,
        MergeBug::ForgetFurtherHead,
        MergeBug::SilentTakesPosition,
        MergeBug::DoNotWait,
        MergeBug::SubscribeAnywhere,
        MergeBug::KeepMembersAtRestore,
        MergeBug::HoldLeavingBack,
        MergeBug::ServeOwnFiles,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    use super::MergeBug;

    thread_local! {
        static PLANTED: Cell<Option<MergeBug>> = const { Cell::new(None) };
    }

    /// Plants a bug in whatever this thread does from now on, or takes it away.
    pub fn plant(bug: Option<MergeBug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn has(bug: MergeBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(not(feature = "planted-bugs"))]
mod switch {
    pub(crate) fn has(_: super::MergeBug) -> bool {
        false
    }
}

pub(crate) use switch::has;
#[cfg(feature = "planted-bugs")]
pub use switch::plant;
