//! What a leader knows of one follower's log, and how much it may send there.

use std::{collections::VecDeque, time::Duration};

use synod_wire::{Slot, Time};

use super::driftwood::ByGossip;
use crate::resend::Resend;

/// How entries are sent to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is not known where the follower's log agrees with the leader's: one message is sent at a time.
    Probe,
    /// That is known: entries are sent without waiting for answers, as far as the bounds allow.
    Pipeline,
    /// The follower needs entries that the leader no longer holds. It hears how far decisions go, fetches
    /// them from any peer, and says how far it has come.
    CatchUp,
}

/// What a leader knows of one follower's log, and how much it may send there.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// The number of this tracking in messages: answers that belong to an earlier tracking of the same
    /// replica do not count.
    pub(super) session: u64,
    /// The follower's log equals the leader's through this slot, durably.
    pub(super) matched: Slot,
    /// The next slot to send.
    pub(super) next: Slot,
    pub(super) mode: Mode,
    /// The messages without an answer: the last slot of each, and its bytes.
    inflight: VecDeque<(Slot, usize)>,
    inflight_bytes: usize,
    resend: Option<Resend>,
    /// When the follower last gave a sign of life in this term; before the first, since when the leader waits for one.
    pub(super) heard: Time,
    /// Whether it has given a sign of life in this term.
    pub(super) answers: bool,
    /// The follower's term, if that is above the leader's.
    pub(super) term_ahead: Option<u64>,
    /// The committed prefix that the follower was told.
    pub(super) told: Slot,
    pub(super) priority: u8,
    /// Whether the replica only follows.
    pub(super) learner: bool,
    pub(super) by_gossip: ByGossip,
}

impl Progress {
    /// The progress of a replica about which nothing is known: its log is first compared after `last`.
    pub(super) fn new(session: u64, last: Slot, learner: bool, now: Time) -> Progress {
        Progress {
            session,
            matched: Slot::ZERO,
            next: last.next(),
            mode: Mode::Probe,
            inflight: VecDeque::new(),
            inflight_bytes: 0,
            resend: None,
            heard: now,
            answers: false,
            term_ahead: None,
            told: Slot::ZERO,
            priority: 0,
            learner,
            by_gossip: ByGossip::default(),
        }
    }

    /// Records that the follower gives a sign of life.
    pub(super) fn lives(&mut self, now: Time) {
        (self.heard, self.answers) = (now, true);
    }

    /// Whether another message with entries may leave.
    pub(super) fn has_room(&self, count_max: usize, bytes_max: usize) -> bool {
        match self.mode {
            Mode::Probe => self.inflight.is_empty(),
            Mode::Pipeline => {
                self.inflight.is_empty()
                    || self.inflight.len() < count_max.max(1) && self.inflight_bytes < bytes_max
            }
            Mode::CatchUp => false,
        }
    }

    /// Records that a message with entries through `last` leaves.
    pub(super) fn sent(&mut self, last: Slot, bytes: usize, now: Time, resend_after: Duration) {
        self.inflight.push_back((last, bytes));
        self.inflight_bytes += bytes;
        if self.mode == Mode::Pipeline {
            self.next = last.next();
        }
        self.resend.get_or_insert_with(|| Resend::first(now, resend_after));
    }

    /// Records that the follower's log equals the leader's through a slot.
    pub(super) fn matches(&mut self, through: Slot, now: Time, resend_after: Duration) {
        let advanced = through > self.matched;
        self.matched = self.matched.max(through);
        if self.mode != Mode::Pipeline && through.next() >= self.next.min(self.matched.next()) {
            self.mode = Mode::Pipeline;
            self.forget_inflight();
            self.next = self.matched.next();
        }
        while self.inflight.front().is_some_and(|(last, _)| *last <= self.matched) {
            let (_, bytes) = self.inflight.pop_front().expect("there is a front");
            self.inflight_bytes -= bytes;
        }
        self.next = self.next.max(self.matched.next());
        if self.inflight.is_empty() {
            self.resend = None;
        } else if advanced {
            self.resend = Some(Resend::first(now, resend_after));
        }
    }

    /// Compares the logs again, from `next` on.
    pub(super) fn probe(&mut self, next: Slot) {
        self.mode = Mode::Probe;
        self.next = next.max(self.matched.next());
        self.forget_inflight();
    }

    /// Compares the logs again after a conflict at `prev`: after `agree`, the last slot where they may be equal, or
    /// from the beginning if the leader does not know its log so far back, which it finds out when it sends.
    pub(super) fn probe_before(&mut self, prev: Slot, agree: Option<Slot>) {
        self.probe(agree.map_or(Slot(1), |slot| slot.min(prev.prev()).next()));
    }

    /// Records that the follower needs what the leader no longer holds.
    pub(super) fn must_catch_up(&mut self) {
        self.mode = Mode::CatchUp;
        self.forget_unanswered();
    }

    /// Waits for no answer any more.
    pub(super) fn forget_unanswered(&mut self) {
        self.forget_inflight();
        self.resend = None;
    }

    fn forget_inflight(&mut self) {
        self.inflight.clear();
        self.inflight_bytes = 0;
    }

    /// When something has to be sent again.
    pub(super) fn resend_at(&self) -> Time {
        self.resend.as_ref().map_or(Time::NEVER, Resend::at)
    }

    /// Goes back to what is known if no answer came for too long.
    pub(super) fn probe_if_overdue(&mut self, now: Time, wait_max: Duration) {
        if self.resend.as_mut().is_some_and(|resend| resend.is_due(now, wait_max)) {
            self.probe(if self.mode == Mode::Pipeline { self.matched.next() } else { self.next });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(10);

    fn pipelined() -> Progress {
        let mut progress = Progress::new(1, Slot(4), false, Time::ZERO);
        progress.sent(Slot(4), 0, Time::ZERO, WAIT);
        assert!(!progress.has_room(9, 9), "one probe at a time");
        progress.matches(Slot(4), Time::ZERO, WAIT);
        progress
    }

    #[test]
    fn a_pipeline_is_bounded_in_messages_and_in_bytes() {
        let mut progress = pipelined();
        assert_eq!((progress.mode, progress.next), (Mode::Pipeline, Slot(5)));
        progress.sent(Slot(5), 60, Time::ZERO, WAIT);
        assert!(progress.has_room(2, 100));
        progress.sent(Slot(8), 60, Time::ZERO, WAIT);
        assert!(!progress.has_room(2, 1000) && !progress.has_room(9, 100));
        assert_eq!(progress.next, Slot(9), "optimistic");
        progress.matches(Slot(5), Time::ZERO, WAIT);
        assert!(progress.has_room(2, 100));
    }

    #[test]
    fn without_an_answer_the_pipeline_rolls_back() {
        let mut progress = pipelined();
        progress.sent(Slot(5), 1, Time::ZERO, WAIT);
        progress.sent(Slot(6), 1, Time::ZERO, WAIT);
        progress.probe_if_overdue(Time::ZERO, WAIT);
        assert_eq!(progress.mode, Mode::Pipeline);
        progress.probe_if_overdue(Time::ZERO + WAIT, WAIT);
        assert_eq!((progress.mode, progress.next, progress.matched), (Mode::Probe, Slot(5), Slot(4)));
        assert!(progress.has_room(1, 1));
    }
}
