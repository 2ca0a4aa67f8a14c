//! The replicated clock, by which idle sessions of clients expire: replicated state that leaders move through the log.
//!
//! The clock may be slow, and is never fast: after an event of the log it shows at most the time that truly
//! went by since the log began, as the fastest clock of a replica measures it. So nothing that is said to
//! last for a while by this clock ends early. A [`Tick`] names the instant at which the clock stands and the
//! one to which it goes on, and moves only a clock that shows the former. The argument is by induction over
//! the ticks that moved the clock, with T(t) for the time that truly went by until t:
//!
//! - A leader has seen the clock show `from` at a moment s, so `from` <= T(s).
//! - It proposes the tick at a moment p, and `by` is what its own clock measured from s to p, or less. So `from + by`
//!   <= T(p), and the tick takes effect later than that.
//!
//! The argument does not need to know who leads: a tick that comes late from a paused leader, from a lost
//! session or through a new leader's Phase 1 finds a clock that shows something else, and does nothing; and
//! of two leaders that measure the same time, only one moves the clock.
//!
//! A tick is also bounded: while a whole group is stopped, or no tick is decided for longer, the clock stands
//! still, and the sessions of clients that could not ask meanwhile do not all expire at once.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::Bug;
use synod_wire::{CommandKind, Time};

use crate::{Clocked, Replica};

/// The longest tick, in intervals.
const INTERVALS_MAX: u32 = 2;

/// What a leader says about the replicated clock, in milliseconds since the log began: the payload of
/// [`CommandKind::AdvanceClock`](synod_wire::CommandKind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// What the clock must show.
    pub from: u64,
    /// How far the clock goes on.
    pub by: u64,
}

const TICK_BYTES: usize = 16;

impl Tick {
    /// The payload of a command.
    #[must_use]
    pub fn encode(self) -> [u8; TICK_BYTES] {
        let mut bytes = [0; TICK_BYTES];
        bytes[..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..].copy_from_slice(&self.by.to_le_bytes());
        bytes
    }

    /// Reads what [`Tick::encode`] wrote; `None` for a payload that this program does not write.
    #[must_use]
    pub fn decode(payload: &Bytes) -> Option<Tick> {
        let bytes: &[u8; TICK_BYTES] = payload[..].try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(Tick { from: word(0), by: word(8) })
    }
}

/// What one replica knows of the replicated clock, and when it proposes a tick.
#[derive(Debug)]
pub(crate) struct ClockView {
    /// What the clock shows, in milliseconds, and a moment by which so much time had truly gone by.
    shown: Option<(u64, Time)>,
    /// What the clock will show if the last tick proposed here takes effect, and when that was proposed.
    proposed: Option<(u64, Time)>,
    /// When this replica last proposed a tick, or began to lead.
    ticked_at: Time,
    /// The number of that tick in the replica's own session.
    last_tick: Option<u64>,
    /// What the clock shows when the state machine waits for nothing more.
    waits_for: Option<u64>,
}

/// Ticks for which the state machine waits follow each other no faster, so that what happens meanwhile shares one.
const WAITED_FOR_INTERVAL: Duration = Duration::from_millis(100);

impl ClockView {
    pub(crate) fn new(now: Time) -> ClockView {
        ClockView { shown: None, proposed: None, ticked_at: now, last_tick: None, waits_for: None }
    }

    /// Records that commands were executed, after which the clock shows `clock`.
    pub(crate) fn shows(&mut self, clock: Clocked, now: Time) {
        self.waits_for = clock.waits_for.map(millis);
        let clock = millis(clock.shows);
        if self.shown.is_none_or(|(shown, _)| shown != clock) {
            // If this replica proposed the same, so much time had gone by then, whichever replica's tick took effect.
            let own = self.proposed.filter(|(proposed, _)| *proposed == clock);
            self.shown = Some(own.unwrap_or((clock, now)));
        }
    }

    /// Records that another replica leads now, or this one.
    pub(crate) fn leader_changed(&mut self, now: Time) {
        self.ticked_at = now;
    }

    /// When the next tick is due at the leader.
    pub(crate) fn due(&self, interval: Duration) -> Time {
        let due = self.ticked_at + interval;
        let Some((waits_for, (shows, at))) = self.waits_for.zip(self.shown) else { return due };
        let reached = at + Duration::from_millis(waits_for.saturating_sub(shows));
        due.min(reached.max(self.ticked_at + WAITED_FOR_INTERVAL.min(interval)))
    }

    /// Records the number, in the replica's own session, of the tick that is proposed.
    pub(crate) fn ticks_as(&mut self, sequence: u64) {
        self.last_tick = Some(sequence);
    }

    /// The number of the last tick that this replica proposed.
    pub(crate) fn last_tick(&self) -> Option<u64> {
        self.last_tick
    }

    /// The tick to propose now. If this replica has not seen the clock, the tick moves nothing; once it is
    /// executed, the replica has seen the clock.
    pub(crate) fn tick(&mut self, now: Time, interval: Duration, bounded: bool) -> Tick {
        self.ticked_at = now;
        let Some((from, at)) = self.shown else { return Tick { from: 0, by: 0 } };
        let max = if bounded { interval.saturating_mul(INTERVALS_MAX) } else { Duration::MAX };
        let by = millis(now.since(at).min(max));
        self.proposed = Some((from.saturating_add(by), now));
        Tick { from, by }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Replica {
    /// Lets the replicated clock go on, by which idle sessions of clients expire.
    pub(crate) fn advance_clock(&mut self, now: Time) {
        if self.tick_at().is_some_and(|at| now >= at) {
            let interval = self.settings.clock_interval;
            let tick = self.clock.tick(now, interval, !self.has(Bug::ClockCountsTwice));
            let sequence = self.requests.add_own(now, None, CommandKind::AdvanceClock, &tick.encode());
            self.clock.ticks_as(sequence);
        }
    }

    /// When this replica asks for the next tick of the replicated clock. One tick is under way at a time: where
    /// deciding takes longer than the interval, further ticks would fill the window and leave clients no room.
    pub(crate) fn tick_at(&self) -> Option<Time> {
        let under_way = self.clock.last_tick().is_some_and(|tick| self.requests.lowest_own() <= tick);
        (self.takes_care() && !under_way).then(|| self.clock.due(self.settings.clock_interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Time {
        Time::ZERO + S * seconds
    }

    #[test]
    fn a_tick_survives_the_log_and_nothing_else_is_one() {
        let tick = Tick { from: 7, by: u64::MAX };
        assert_eq!(Tick::decode(&Bytes::copy_from_slice(&tick.encode())), Some(tick));
        assert_eq!(Tick::decode(&Bytes::from_static(&[0; 8])), None);
    }

    fn shows(shows: Duration) -> Clocked {
        Clocked { shows, waits_for: None }
    }

    #[test]
    fn what_the_state_machine_waits_for_makes_a_tick_due() {
        let mut view = ClockView::new(at(0));
        view.shows(Clocked { shows: 5 * S, waits_for: Some(8 * S) }, at(1));
        assert_eq!(view.due(30 * S), at(4));
        view.shows(Clocked { shows: 5 * S, waits_for: Some(5 * S) }, at(1));
        assert_eq!(view.due(30 * S), at(1));
        view.tick(at(4), 30 * S, true);
        assert_eq!(view.due(30 * S), at(4) + WAITED_FOR_INTERVAL);
        view.shows(shows(5 * S), at(5));
        assert_eq!(view.due(30 * S), at(34));
    }

    #[test]
    fn what_went_by_is_counted_once_and_in_bounded_steps() {
        let mut view = ClockView::new(at(0));
        assert_eq!(view.tick(at(30), 30 * S, true), Tick { from: 0, by: 0 }, "it was not seen yet");
        view.shows(shows(Duration::ZERO), at(31));
        assert_eq!(view.due(30 * S), at(60));
        assert_eq!(view.tick(at(60), 30 * S, true), Tick { from: 0, by: 29_000 });
        // The tick takes effect a second later: what went by meanwhile is in the next one.
        view.shows(shows(29 * S), at(61));
        assert_eq!(view.tick(at(90), 30 * S, true), Tick { from: 29_000, by: 30_000 });
        // That tick was lost, and another leader moved the clock.
        view.shows(shows(40 * S), at(95));
        assert_eq!(view.tick(at(120), 30 * S, true), Tick { from: 40_000, by: 25_000 });
        // This is after a pause of a quarter of an hour.
        assert_eq!(view.tick(at(1_000), 30 * S, true), Tick { from: 40_000, by: 60_000 });
    }
}
