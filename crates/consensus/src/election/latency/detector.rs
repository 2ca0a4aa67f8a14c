//! How long it takes to each member and back (Santos 2012, section 6.3.1).

use std::{collections::VecDeque, time::Duration};

use synod_wire::Time;

use super::rules::{Rules, UNREACHABLE};

/// Pings whose answers are timed. One that comes later counts as unanswered.
const TIMED_MAX: usize = 8;
/// Of this many answers of a member the shortest counts.
const LATELY: usize = 4;

/// Pings to all members, and the time in which each answered lately.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    /// When the latest pings left, the latest last, and its number.
    sent: Vec<Time>,
    number: u64,
    /// The last ping that each member answered.
    answered: Vec<u64>,
    /// Nanoseconds of the last round trips to each member, the latest last.
    lately: Vec<VecDeque<u64>>,
    /// Nanoseconds to each member and back; [`UNREACHABLE`] without an answer.
    times: Vec<u64>,
    me: usize,
    /// Pings in a row without an answer, after which a member counts as unreachable.
    misses: u32,
}

impl Detector {
    pub(super) fn new(members: usize, me: usize, misses: u32) -> Detector {
        let mut times = vec![UNREACHABLE; members];
        times[me] = 0;
        Detector {
            sent: Vec::new(),
            number: 0,
            answered: vec![0; members],
            lately: vec![VecDeque::new(); members],
            times,
            me,
            misses: misses.max(1),
        }
    }

    /// A ping to all members leaves now. Returns its number. A member that has not answered as many pings in a row as
    /// it may miss becomes unreachable.
    pub(super) fn ping(&mut self, now: Time) -> u64 {
        for (member, time) in self.times.iter_mut().enumerate() {
            if member != self.me && self.number >= self.answered[member] + u64::from(self.misses) {
                *time = UNREACHABLE;
                self.lately[member].clear();
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
    pub(super) fn answers(&mut self, member: usize, number: u64, now: Time, rules: &Rules) {
        let ago = self.number.checked_sub(number).and_then(|ago| usize::try_from(ago).ok());
        let sent = ago.and_then(|ago| self.sent.iter().rev().nth(ago));
        if let Some(&sent) = sent.filter(|_| number > self.answered[member] && member != self.me) {
            self.answered[member] = number;
            let lately = &mut self.lately[member];
            if lately.len() == LATELY {
                lately.pop_front();
            }
            lately.push_back(nanos(now.since(sent)));
            self.times[member] = rules.time_of(lately);
        }
    }

    /// The members are others from now on; `place_before` says where each stood, if it was one. New ones have answered
    /// nothing, and missed nothing yet.
    pub(super) fn change_members(&mut self, place_before: &[Option<usize>], me: usize) {
        let number = self.number;
        self.answered =
            place_before.iter().map(|place| place.map_or(number, |at| self.answered[at])).collect();
        self.lately = place_before
            .iter()
            .map(|place| place.map_or_else(VecDeque::new, |at| std::mem::take(&mut self.lately[at])))
            .collect();
        self.times =
            place_before.iter().map(|place| place.map_or(UNREACHABLE, |at| self.times[at])).collect();
        (self.me, self.times[me]) = (me, 0);
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

    fn answers(detector: &mut Detector, member: usize, number: u64, millis: u64) {
        detector.answers(member, number, at(millis), &Rules::SOUND);
    }

    #[test]
    fn the_shortest_of_the_last_answers_counts() {
        let mut detector = Detector::new(3, 0, 2);
        assert_eq!(detector.times(), [0, UNREACHABLE, UNREACHABLE]);
        assert_eq!(detector.ping(at(0)), 1);
        answers(&mut detector, 1, 1, 4);
        assert_eq!(detector.ping(at(100)), 2);
        answers(&mut detector, 2, 1, 150);
        answers(&mut detector, 1, 2, 107);
        assert_eq!(detector.times(), [0, 4 * MS, 150 * MS]);
        answers(&mut detector, 1, 1, 101);
        answers(&mut detector, 2, 9, 170);
        answers(&mut detector, 0, 2, 170);
        assert_eq!(detector.times(), [0, 4 * MS, 150 * MS], "late, never asked, and of itself");
        for (number, expected) in [(3, 4), (4, 4), (5, 7), (6, 9)] {
            let now = 100 * (number - 1);
            assert_eq!(detector.ping(at(now)), number);
            answers(&mut detector, 1, number, now + 9);
            assert_eq!(detector.times()[1], expected * MS, "ping {number}");
        }
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
            answers(&mut detector, 1, number, sent + 4);
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
            answers(&mut detector, 1, number, sent + 5);
            assert_eq!(detector.times()[1], 5 * MS);
        }
    }
}
