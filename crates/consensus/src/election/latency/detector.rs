//! How long it takes to each member and back (Santos 2012, section 6.3.1).

use std::time::Duration;

use synod_wire::Time;

use super::rules::UNREACHABLE;

/// Pings whose answers are timed. One that comes later counts as unanswered.
const TIMED_MAX: usize = 8;

/// Pings to all members, and the time of the last answer of each.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    /// When the latest pings left, the latest last, and its number.
    sent: Vec<Time>,
    number: u64,
    /// The last ping that each member answered.
    answered: Vec<u64>,
    /// Nanoseconds of each round trip; [`UNREACHABLE`] without an answer.
    times: Vec<u64>,
    me: usize,
    /// Pings in a row without an answer, after which a member counts as unreachable.
    misses: u32,
}

impl Detector {
    pub(super) fn new(members: usize, me: usize, misses: u32) -> Detector {
        let mut times = vec![UNREACHABLE; members];
        times[me] = 0;
        Detector { sent: Vec::new(), number: 0, answered: vec![0; members], times, me, misses: misses.max(1) }
    }

    /// A ping to all members leaves now. Returns its number. A member that has not answered as many pings in a row as
    /// it may miss becomes unreachable.
    pub(super) fn ping(&mut self, now: Time) -> u64 {
        for (member, time) in self.times.iter_mut().enumerate() {
            if member != self.me && self.number >= self.answered[member] + u64::from(self.misses) {
                *time = UNREACHABLE;
            }
        }
        self.number += 1;
        if self.sent.len() == TIMED_MAX {
            self.sent.remove(0);
        }
        self.sent.push(now);
        self.number
    }

    /// A member answers a ping. An answer to an earlier ping than the last one that it answered says nothing.
    pub(super) fn answers(&mut self, member: usize, number: u64, now: Time) {
        let ago = self.number.checked_sub(number).and_then(|ago| usize::try_from(ago).ok());
        let sent = ago.and_then(|ago| self.sent.iter().rev().nth(ago));
        if let Some(&sent) = sent.filter(|_| number > self.answered[member] && member != self.me) {
            self.answered[member] = number;
            self.times[member] = nanos(now.since(sent));
        }
    }

    /// Nanoseconds of the round trip to each member.
    pub(super) fn times(&self) -> &[u64] {
        &self.times
    }
}

/// Never [`UNREACHABLE`].
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(UNREACHABLE).min(UNREACHABLE - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn the_last_answer_counts() {
        let mut detector = Detector::new(3, 0, 2);
        assert_eq!(detector.times(), [0, UNREACHABLE, UNREACHABLE]);
        assert_eq!(detector.ping(at(0)), 1);
        detector.answers(1, 1, at(4));
        assert_eq!(detector.ping(at(100)), 2);
        detector.answers(2, 1, at(150));
        detector.answers(1, 2, at(107));
        assert_eq!(detector.times(), [0, 7 * MS, 150 * MS]);
        detector.answers(1, 1, at(170));
        detector.answers(2, 9, at(170));
        detector.answers(0, 2, at(170));
        assert_eq!(detector.times(), [0, 7 * MS, 150 * MS], "late, never asked, and of itself");
    }

    #[test]
    fn a_member_is_unreachable_after_as_many_misses_in_a_row_as_are_allowed() {
        for misses in [1, 2] {
            let mut detector = Detector::new(2, 0, misses);
            let mut now = 0;
            let mut ping = |detector: &mut Detector| {
                now += 100;
                (detector.ping(at(now)), now)
            };
            let (number, sent) = ping(&mut detector);
            detector.answers(1, number, at(sent + 4));
            for missed in 1..=misses {
                ping(&mut detector);
                assert_eq!(
                    detector.times()[1],
                    4 * MS,
                    "{missed} of {misses}, and the last may still be answered"
                );
            }
            let (number, sent) = ping(&mut detector);
            assert_eq!(detector.times()[1], UNREACHABLE);
            detector.answers(1, number, at(sent + 5));
            assert_eq!(detector.times()[1], 5 * MS);
        }
    }
}
