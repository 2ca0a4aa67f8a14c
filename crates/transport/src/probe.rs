//! Probes: how long it takes until a peer has answered.
//!
//! ```text
//! probe := kind u8 | number u64
//! kind  := 0: asks; 1: answers; 2: the probe with this number came as a datagram
//! ```
//!
//! A probe is the body of a mark, a frame without a message, whose body peers of earlier versions take no notice of:
//! these never answer. It travels on the connection that its sender dialled, and the answer on the one that the peer
//! dialled. So both wait behind the messages that wait there, and the time is what a message and its answer take
//! without disks.

use std::time::Duration;

use synod_sync::time::Instant;
use synod_wire::{Encoded, Writer};

/// A peer that does not answer is asked again after this many intervals. With the default that is above what histograms
/// tell apart, so a peer that is very slow is measured, too.
const PATIENCE: u32 = 4;

/// The least time between two datagrams of a peer of which it is told that they came.
const ARRIVAL_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes of a probe.
pub(crate) const PROBE_BYTES: usize = 9;
const ASKS: u8 = 0;
const ANSWERS: u8 = 1;
const ARRIVED: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Asks(u64),
    Answers(u64),
    /// A datagram of the peer's came ([`crate::datagram::Content::Probe`]). Only a peer that sends such is told.
    Arrived(u64),
}

impl Probe {
    /// The probe in the body of a mark, if there is one. What follows it is of a later version.
    pub(crate) fn read(body: &[u8]) -> Option<Probe> {
        let body: &[u8; PROBE_BYTES] = body.first_chunk()?;
        let number = u64::from_le_bytes(body[1..].try_into().expect("8 bytes"));
        match body[0] {
            ASKS => Some(Probe::Asks(number)),
            ANSWERS => Some(Probe::Answers(number)),
            ARRIVED => Some(Probe::Arrived(number)),
            _ => None,
        }
    }

    pub(crate) fn write(self) -> Encoded {
        let (kind, number) = match self {
            Probe::Asks(number) => (ASKS, number),
            Probe::Answers(number) => (ANSWERS, number),
            Probe::Arrived(number) => (ARRIVED, number),
        };
        let mut writer = Writer::new();
        writer.u8(kind);
        writer.u64(number);
        writer.finish()
    }
}

/// The probes of one session to a peer.
#[derive(Debug)]
pub(crate) struct Probes {
    /// See [`Config::probe_interval`](crate::Config::probe_interval).
    interval: Duration,
    /// The number of the last one, and when it was sent or the session began.
    asked: (u64, Instant),
    /// The last number of the session before.
    before: u64,
    /// Whether the answer to the last one is outstanding.
    awaited: bool,
    /// Whether the peer has answered one in this session.
    answers: bool,
    /// Since when it has been asked, and has answered nothing.
    unheard: Option<Instant>,
    /// When it answered last after it was silent.
    back: Option<Instant>,
    /// When one of the peer's was answered last.
    answered: Option<Instant>,
    /// When the peer was told last that one of its probes came as a datagram.
    told: Option<Instant>,
}

impl Probes {
    pub(crate) fn new(interval: Duration) -> Probes {
        Probes {
            interval,
            asked: (0, Instant::now()),
            before: 0,
            awaited: false,
            answers: false,
            unheard: None,
            back: None,
            answered: None,
            told: None,
        }
    }

    /// A session begins. What is still on its way belongs to the one before.
    pub(crate) fn begin(&mut self) {
        (self.asked.1, self.before, self.awaited) = (Instant::now(), self.asked.0, false);
        (self.answers, self.unheard, self.back) = (false, None, None);
    }

    /// What to send now, if it is time to ask.
    pub(crate) fn ask(&mut self) -> Option<Probe> {
        let wait = if self.awaited { self.interval.saturating_mul(PATIENCE) } else { self.interval };
        if self.asked.1.elapsed() < wait {
            return None;
        }
        let number = self.asked.0 + 1;
        let now = Instant::now();
        (self.asked, self.awaited) = ((number, now), true);
        self.unheard.get_or_insert(now);
        Some(Probe::Asks(number))
    }

    /// The answer to one of the peer's, unless it asks more often than a replica does.
    pub(crate) fn answer(&mut self, number: u64) -> Option<Probe> {
        if self.answered.is_some_and(|at| at.elapsed() < self.interval / 2) {
            return None;
        }
        self.answered = Some(Instant::now());
        Some(Probe::Answers(number))
    }

    /// Whether the peer is told of a probe that came as a datagram, unless they come more often than a replica sends
    /// them.
    pub(crate) fn admits_arrival(&mut self) -> bool {
        let admits = self.told.is_none_or(|at| at.elapsed() >= ARRIVAL_INTERVAL);
        if admits {
            self.told = Some(Instant::now());
        }
        admits
    }

    /// How long the answer to the last one took that comes now; `None` if it is not the answer to that, or has come
    /// before. Any answer of this session shows that the peer lives.
    pub(crate) fn took(&mut self, number: u64) -> Option<Duration> {
        let (last, at) = self.asked;
        if self.before < number && number <= last {
            if self.is_silent() {
                self.back = Some(Instant::now());
            }
            (self.answers, self.unheard) = (true, None);
        }
        let is_first = last == number && std::mem::take(&mut self.awaited);
        is_first.then(|| at.elapsed())
    }

    /// Whether the peer has answered before and no longer does, though it was asked twice: its process hangs, or its
    /// machine. Its connections stay open, as the system sees to them.
    pub(crate) fn is_silent(&self) -> bool {
        let patience = self.interval.saturating_mul(PATIENCE + 1);
        self.answers && self.unheard.is_some_and(|since| since.elapsed() >= patience)
    }

    /// When the peer answered again after it was silent, if it was in this session.
    pub(crate) fn back(&self) -> Option<Instant> {
        self.back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(4);

    fn ago(intervals: u32) -> Instant {
        Instant::now().checked_sub(INTERVAL * intervals).expect("the machine has run for some time")
    }

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        for probe in [Probe::Asks(7), Probe::Answers(u64::MAX), Probe::Arrived(8)] {
            let body = probe.write().to_bytes();
            assert_eq!(Probe::read(&body), Some(probe));
            assert_eq!(Probe::read(&body[1..]), None);
            assert_eq!(Probe::read(&[&body[..], b"later"].concat()), Some(probe));
        }
        assert_eq!(Probe::read(&[]), None);
        assert_eq!(Probe::read(&[3; PROBE_BYTES]), None);
    }

    #[test]
    fn only_the_first_answer_to_the_last_probe_of_the_session_counts() {
        let mut probes = Probes::new(INTERVAL);
        assert_eq!(probes.ask(), None);
        assert_eq!(probes.took(0), None);
        probes.asked.1 = ago(PATIENCE);
        assert_eq!(probes.ask(), Some(Probe::Asks(1)));
        // A peer that is slow is measured all the same.
        probes.asked.1 = ago(3);
        assert_eq!(probes.ask(), None);
        probes.asked.1 = ago(PATIENCE);
        assert_eq!(probes.ask(), Some(Probe::Asks(2)));
        assert_eq!(probes.took(1), None);
        assert!(probes.took(2).is_some());
        assert_eq!(probes.took(2), None);
        probes.asked.1 = ago(PATIENCE);
        assert_eq!(probes.ask(), Some(Probe::Asks(3)));
        probes.begin();
        assert_eq!(probes.took(3), None);
    }

    #[test]
    fn a_peer_is_silent_that_has_answered_before_and_for_long_does_not() {
        let mut probes = Probes::new(INTERVAL);
        let ask = |probes: &mut Probes| {
            probes.asked.1 = ago(PATIENCE);
            assert!(probes.ask().is_some());
            probes.asked.0
        };
        // One of an earlier version never answers.
        ask(&mut probes);
        probes.unheard = Some(ago(PATIENCE + 1));
        assert!(!probes.is_silent());
        let number = ask(&mut probes);
        assert!(probes.took(number).is_some());
        ask(&mut probes);
        assert!(!probes.is_silent());
        probes.unheard = Some(ago(PATIENCE + 1));
        assert!(probes.is_silent());
        // That it is asked again does not begin its time again.
        let number = ask(&mut probes);
        assert!(probes.is_silent());
        assert!(probes.back().is_none());
        // An answer to an earlier one is an answer, and does not count as a time.
        assert!(probes.took(number - 1).is_none() && !probes.is_silent() && probes.back().is_some());
        assert!(probes.took(number).is_some());
        probes.begin();
        assert!(probes.back().is_none());
        // What is left of an earlier session says nothing of this one.
        ask(&mut probes);
        assert!(probes.took(number).is_none() && !probes.answers);
    }

    #[test]
    fn a_peer_that_asks_too_often_is_not_answered() {
        let mut probes = Probes::new(INTERVAL);
        assert_eq!(probes.answer(5), Some(Probe::Answers(5)));
        assert_eq!(probes.answer(6), None);
        probes.begin();
        assert_eq!(probes.answer(7), None);
        probes.answered = Some(ago(PATIENCE));
        assert_eq!(probes.answer(8), Some(Probe::Answers(8)));
    }

    #[test]
    fn a_peer_that_probes_by_datagrams_too_often_is_not_told() {
        let mut probes = Probes::new(INTERVAL);
        assert!(probes.admits_arrival() && !probes.admits_arrival());
        probes.told = Some(Instant::now() - ARRIVAL_INTERVAL);
        assert!(probes.admits_arrival());
    }
}
