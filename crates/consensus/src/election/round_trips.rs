//! How long members take to answer, for a protocol that places them by it.

use std::{collections::VecDeque, time::Duration};

use synod_wire::Time;

/// An answer counts for at least this many rounds, and for less than twice as many.
const ROUNDS: u64 = 32;
/// Answers to requests of this many rounds are timed. Later ones are late by more than an election time-out.
const TIMED_MAX: usize = 24;

/// The shortest time in which each member answered lately. The shortest, since bytes of commands may stand in a queue
/// before a request: that says how much the link carries at the moment, and not how long it is.
#[derive(Clone, Debug)]
pub(super) struct RoundTrips {
    /// When the latest rounds began, the latest first.
    began: VecDeque<Time>,
    /// The shortest time of each member in this stretch of rounds, and in the one before.
    shortest: Vec<[Option<Duration>; 2]>,
}

impl RoundTrips {
    pub(super) fn new(members: usize) -> RoundTrips {
        RoundTrips { began: VecDeque::new(), shortest: vec![[None; 2]; members] }
    }

    /// A round of requests begins.
    pub(super) fn begins(&mut self, round: u64, now: Time) {
        self.began.push_front(now);
        self.began.truncate(TIMED_MAX);
        if round.is_multiple_of(ROUNDS) {
            self.shortest.iter_mut().for_each(|[lately, before]| *before = lately.take());
        }
    }

    /// A member answered the request of the round that is the `ago`th before the present one.
    pub(super) fn answers(&mut self, member: usize, ago: u64, now: Time) {
        let began = usize::try_from(ago).ok().and_then(|ago| self.began.get(ago));
        if let Some(&began) = began {
            let [lately, _] = &mut self.shortest[member];
            let took = now.since(began);
            *lately = Some(lately.map_or(took, |shortest| shortest.min(took)));
        }
    }

    /// The shortest time in which a member answered lately; none if it did not.
    pub(super) fn of(&self, member: usize) -> Option<Duration> {
        self.shortest[member].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_shortest_answer_counts_until_it_is_old() {
        let mut trips = RoundTrips::new(2);
        let at = |round: u64, millis| Time::ZERO + ms(100) * u32::try_from(round).unwrap() + ms(millis);
        let mut round = 0;
        let mut answered = |trips: &mut RoundTrips, times: u64, took: u64| {
            for _ in 0..times {
                round += 1;
                trips.begins(round, at(round, 0));
                trips.answers(1, 0, at(round, took));
            }
        };
        answered(&mut trips, 5, 30);
        answered(&mut trips, 1, 8);
        answered(&mut trips, 5, 50);
        assert_eq!((trips.of(0), trips.of(1)), (None, Some(ms(8))));
        answered(&mut trips, ROUNDS, 50);
        assert_eq!(trips.of(1), Some(ms(8)), "less than two stretches ago");
        answered(&mut trips, ROUNDS, 50);
        assert_eq!(trips.of(1), Some(ms(50)));
    }

    #[test]
    fn a_late_answer_is_timed_from_its_own_request_and_a_silent_member_is_forgotten() {
        let mut trips = RoundTrips::new(1);
        for round in 1..=3 {
            trips.begins(round, Time::ZERO + ms(100 * round));
        }
        trips.answers(0, 2, Time::ZERO + ms(340));
        assert_eq!(trips.of(0), Some(ms(240)));
        trips.answers(0, 99, Time::ZERO + ms(341));
        assert_eq!(trips.of(0), Some(ms(240)), "of a request that is not remembered");
        for round in 4..=2 * ROUNDS {
            trips.begins(round, Time::ZERO + ms(100 * round));
        }
        assert_eq!(trips.of(0), None);
    }
}
