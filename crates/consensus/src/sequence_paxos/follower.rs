//! What a follower keeps besides its sequence.

use synod_wire::{Batch, Slot, Time};

use crate::{batches::last_of, resend::Resend};

/// How far a follower has come with the leader of its ballot (Ng 2020: the second half of the state;
/// RECOVER is added for lost sessions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It may have missed something, and only a `Prepare` helps.
    Recover,
    /// It has promised, and waits for the sequence.
    Prepare,
    /// It has the leader's sequence, or a prefix of it, and appends.
    Accept,
}

/// A replica that neither leads nor tries to.
#[derive(Clone, Debug)]
pub(super) struct Follower {
    pub(super) phase: Phase,
    /// When a leader is asked for a `Prepare`, unless it brings this replica to [`Phase::Accept`] before: soon if this
    /// replica needs one, but only after an election time-out while the leader prepares it or sends it pages.
    pub(super) ask: Resend,
    /// If the leader has dropped what this replica lacks: it need not ask before slots through this one are
    /// decided here. Otherwise 0.
    pub(super) dropped: Slot,
    /// The pages that have come of a sequence that is not whole yet.
    pub(super) staging: Option<Staging>,
    /// The last page of its promise that this replica was asked for.
    pub(super) told: Slot,
    /// Whether something was accepted since the last `Accepted` left.
    pub(super) accepted_due: bool,
}

/// The pages of an `AcceptSync` that have come.
#[derive(Clone, Debug)]
pub(super) struct Staging {
    pub(super) first: Slot,
    pub(super) batches: Vec<Batch>,
}

impl Staging {
    pub(super) fn next(&self) -> Slot {
        last_of(self.first, &self.batches).next()
    }
}

impl Follower {
    pub(super) fn ask_at(&self) -> Time {
        if self.phase == Phase::Accept || self.dropped > Slot::ZERO { Time::NEVER } else { self.ask.at() }
    }
}
