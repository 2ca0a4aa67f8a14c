//! What a leader knows of each follower.

use std::time::Duration;

use synod_wire::{Slot, Time};

use crate::resend::Resend;

/// A follower, as its leader sees it.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) stage: Stage,
    /// It has accepted the sequence of this ballot through this slot, durably (las[r]).
    pub(super) last: Slot,
    /// It was seen to have this slot of the sequence, at least in a page that counts for nothing yet.
    pub(super) reached: Slot,
    /// The sequence was sent to it through this slot.
    pub(super) sent: Slot,
    pub(super) resend: Resend,
    /// Until then it gets by with what is sent again: a question of it changes nothing.
    ask_at: Time,
}

/// How far a leader has come with a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It was sent a `Prepare`, or has to be sent one (lds[r] = ⊥).
    Asked,
    /// What it lacks is dropped: it will ask when it has learned that.
    Lagging,
    /// It is sent the sequence from `first` on; `page` is the page under way, `whole` says whether it is the last.
    Syncing { first: Slot, page: Slot, whole: bool },
    /// It appends.
    Synced,
}

impl Peer {
    pub(super) fn asked(now: Time, wait: Duration) -> Peer {
        let (none, resend) = (Slot::ZERO, Resend::at_once(now, wait));
        Peer { stage: Stage::Asked, last: none, reached: none, sent: none, resend, ask_at: now }
    }

    /// When something is to be sent to it again; the leader has written its sequence through `written`.
    pub(super) fn resend_at(&self, written: Slot) -> Time {
        match self.stage {
            Stage::Lagging => Time::NEVER,
            Stage::Synced if self.last >= written => Time::NEVER,
            _ => self.resend.at(),
        }
    }

    /// It is sent something that it was not sent before.
    pub(super) fn goes_on(&mut self, now: Time, resend_after: Duration, timeout: Duration) {
        self.resend = Resend::first(now, resend_after);
        // It asks a time-out after the last page that it took, which was a while before this one was sent.
        self.ask_at = now + timeout / 2;
    }

    /// Whether the leader is about to bring it to its sequence.
    pub(super) fn is_served(&self, now: Time) -> bool {
        matches!(self.stage, Stage::Asked | Stage::Syncing { .. }) && now < self.ask_at
    }

    /// Whether it has been sent everything that comes before `sent`, so that more may follow.
    pub(super) fn takes_accepts(&self) -> bool {
        matches!(self.stage, Stage::Synced | Stage::Syncing { whole: true, .. })
    }
}
