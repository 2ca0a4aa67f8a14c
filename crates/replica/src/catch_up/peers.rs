//! The peers that can be asked, and how likely each is to help.

use synod_wire::{ReplicaId, Slot, Time};

use super::Pace;

/// A peer that can be asked.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: ReplicaId,
    pub(super) keeps: Option<Keeps>,
    /// Whether there is no session to it.
    pub(super) down: bool,
    /// When it left a question unanswered, if it has answered none since.
    pub(super) silent_since: Option<Time>,
    /// How many of its answers came late, less those that came in time. For each, it gets another time-out to
    /// answer in.
    pub(super) slow: u32,
    /// When its last answer came.
    pub(super) answered_at: Time,
    /// Whether something of what was missing came from it.
    pub(super) helped: bool,
}

/// The slots that a peer said it keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeps {
    pub(super) first: Slot,
    pub(super) last: Slot,
    /// When it said so, and the last slot that was then known to be decided: it said nothing of later slots.
    pub(super) at: Time,
    pub(super) elsewhere: Slot,
}

/// How likely a peer is to help with a slot; the likeliest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Has,
    /// It has said nothing of that slot, or has not said it for long.
    Unknown,
    /// It leads, so it surely has the slot, but also has enough to send.
    Leads,
    /// It lacked the slot a while ago.
    Lacked,
    Silent,
    Down,
}

/// The upper bound of [`Peer::slow`].
pub(super) const SLOW_MAX: u32 = 3;

impl Peer {
    pub(super) fn new(id: ReplicaId) -> Peer {
        Peer {
            id,
            keeps: None,
            down: false,
            silent_since: None,
            slow: 0,
            answered_at: Time::ZERO,
            helped: false,
        }
    }

    pub(super) fn answers(&mut self, now: Time) {
        self.silent_since = None;
        self.answered_at = now;
    }

    /// Whether it said that it has a slot. Only what it says later takes that back.
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.keeps.is_some_and(|keeps| keeps.first <= slot && slot <= keeps.last)
    }

    pub(super) fn is_silent(&self, now: Time, pace: &Pace) -> bool {
        self.silent_since.is_some_and(|since| now < since + pace.forget)
    }

    /// Whether it keeps only what comes after a slot. It may offer a snapshot of that slot, but only if it is
    /// asked, and a peer that has just answered is not asked.
    pub(super) fn keeps_what_follows(&self, slot: Slot, now: Time, pace: &Pace) -> bool {
        !self.down
            && !self.is_silent(now, pace)
            && now >= self.answered_at + pace.fresh
            && self.keeps.is_some_and(|keeps| slot < keeps.first)
    }

    /// Whether it is one of the peers that are asked first.
    pub(super) fn helps(&self, leader: Option<ReplicaId>, now: Time, pace: &Pace) -> bool {
        !self.down && !self.is_silent(now, pace) && leader != Some(self.id)
    }

    /// How likely it is to help with a slot; `None` if it has just said that it cannot.
    pub(super) fn rank(&self, slot: Slot, leader: Option<ReplicaId>, now: Time, pace: &Pace) -> Option<Rank> {
        let speaks_of = |keeps: &Keeps| slot < keeps.first || slot <= keeps.elsewhere;
        let lacked = self.keeps.filter(|keeps| !self.has(slot) && speaks_of(keeps));
        let lacked = lacked.map(|keeps| keeps.at);
        if lacked.is_some_and(|at| now < at + pace.fresh) {
            return None;
        }
        Some(if self.down {
            Rank::Down
        } else if self.is_silent(now, pace) {
            Rank::Silent
        } else if leader == Some(self.id) {
            Rank::Leads
        } else if lacked.is_some_and(|at| now < at + pace.lacked) {
            Rank::Lacked
        } else if self.has(slot) {
            Rank::Has
        } else {
            Rank::Unknown
        })
    }
}
