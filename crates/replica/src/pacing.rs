//! How much a leader has under way at a time, where that is not a fixed number of slots (`--window-max auto`).
//!
//! What is under way and waits in the queue of a link, a disk or a processor makes every later command wait, and orders
//! nothing sooner. What is under way must cover the way to a quorum and back, or the bottleneck has pauses. So the
//! bound is twice the highest rate of late times the shortest time from proposal to delivery of late, as congestion
//! control by bandwidth and round trip has it (Cardwell and others, "BBR", 2016). Twice, so that the rate can show
//! itself to be higher: then so is the bound one round trip later.
//!
//! The shortest time would grow with the queue that it allows. So every ten seconds the leader lets what is under way
//! come to an end, and times one batch that finds no queue.
//!
//! Batches are bounded, too, where the bottleneck is so slow that a full one would occupy it for long: what comes after
//! would wait for the whole of it.

use std::{collections::VecDeque, time::Duration};

use synod_wire::{BatchId, Time};

/// The bound is this many times the rate times the shortest time.
const GAIN: f64 = 2.0;
/// The highest rate counts for at least this long, until one is measured that clients did not limit.
const RATE_FOR: Duration = Duration::from_secs(2);
/// The shortest time counts for this long. Then it is measured without a queue.
const TIME_FOR: Duration = Duration::from_secs(10);
/// A batch occupies the bottleneck for no longer than this.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// But it may always have as many bytes.
const BATCH_BYTES_MIN: usize = 4 << 10;
/// Batches that may be under way in any case: one that is ordered, and one that follows it.
const BATCHES_MIN: usize = 2;
/// Batches that may be under way while no rate is known yet.
const BATCHES_FIRST: usize = 4;

/// A batch under way.
#[derive(Debug)]
struct Sent {
    id: Option<BatchId>,
    bytes: usize,
    at: Time,
    /// Bytes that were delivered by then, and when the last of them were.
    delivered: u64,
    delivered_at: Time,
    /// Nothing else waited, so that it says nothing of how fast it could go.
    limited: bool,
    /// It found nothing under way.
    alone: bool,
}

/// The shortest time from proposal to delivery, of a batch of this many bytes, and when it was found.
#[derive(Clone, Copy, Debug)]
struct Shortest {
    time: Duration,
    bytes: usize,
    at: Time,
}

/// What a leader has under way, and how fast it goes.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    under_way: VecDeque<Sent>,
    bytes: usize,
    delivered: u64,
    delivered_at: Time,
    /// Bytes a second, each with its time, falling; the first is the highest of those that count.
    rates: VecDeque<(Time, f64)>,
    /// The shortest time from proposal to delivery.
    shortest: Option<Shortest>,
    /// What is under way comes to an end, so that the shortest time can be measured again.
    draining: bool,
    /// Whether nothing waited when the last batches left.
    starved: bool,
}

impl Pacing {
    /// Forgets what is under way, which another leader may order or not. What was measured stays.
    pub fn restart(&mut self) {
        self.under_way.clear();
        self.bytes = 0;
        self.draining = false;
    }

    /// The largest batch to make now, if `most` is the largest that may be made.
    pub fn batch_bytes_max(&self, most: usize) -> usize {
        let Some((rate, _)) = self.measured() else { return most };
        let bytes = rate * BATCH_TIME.as_secs_f64();
        (bytes as usize).clamp(BATCH_BYTES_MIN.min(most), most)
    }

    /// Whether another batch may leave. `batch`: the largest there is.
    pub fn has_room(&self, batch: usize) -> bool {
        self.under_way.is_empty() || !self.draining && self.bytes < self.bound(batch)
    }

    /// The bytes that may be under way.
    fn bound(&self, batch: usize) -> usize {
        let Some((rate, shortest)) = self.measured() else { return BATCHES_FIRST * batch };
        let product = GAIN * rate * shortest.as_secs_f64();
        (product as usize).max(BATCHES_MIN * self.batch_bytes_max(batch))
    }

    fn measured(&self) -> Option<(f64, Duration)> {
        Some((self.rates.front()?.1, self.shortest?.time))
    }

    /// A batch leaves.
    pub fn sent(&mut self, now: Time, id: Option<BatchId>, bytes: usize) {
        let alone = self.under_way.is_empty();
        if alone {
            // The time without anything under way is no part of a rate.
            self.delivered_at = now;
        }
        self.bytes += bytes;
        self.under_way.push_back(Sent {
            id,
            bytes,
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            limited: self.starved,
            alone,
        });
    }

    /// Records whether something waits that has no room; `batch`: the largest there is.
    pub fn left(&mut self, something: bool, batch: usize) {
        self.starved = !something;
        let Some(shortest) = self.shortest.filter(|_| something) else { return };
        // The time of a batch that was larger than batches are now tells more of its bytes than of the way.
        let is_old = self.delivered_at > shortest.at + TIME_FOR;
        if is_old || shortest.bytes > 2 * self.batch_bytes_max(batch) {
            self.draining = true;
        }
    }

    /// A batch was delivered, and with it all that left before it, or nothing will come of these.
    pub fn delivered(&mut self, now: Time, id: BatchId) {
        let Some(place) = self.under_way.iter().position(|sent| sent.id == Some(id)) else { return };
        let mut sent = None;
        for ended in self.under_way.drain(..=place) {
            self.bytes -= ended.bytes;
            self.delivered += ended.bytes as u64;
            sent = Some(ended);
        }
        let Some(sent) = sent else { return };
        self.delivered_at = now;
        let time = now.since(sent.at);
        let is_clean = self.draining && sent.alone;
        if is_clean || self.shortest.is_none_or(|shortest| time <= shortest.time) {
            self.draining &= !is_clean;
            self.shortest = Some(Shortest { time, bytes: sent.bytes, at: now });
        }
        let seconds = now.since(sent.delivered_at).as_secs_f64();
        if seconds > 0.0 {
            self.rated(now, (self.delivered - sent.delivered) as f64 / seconds, sent.limited);
        }
    }

    fn rated(&mut self, now: Time, rate: f64, limited: bool) {
        // One that was held up by clients tells a lower bound alone.
        if limited && self.rates.front().is_some_and(|(_, highest)| rate <= *highest) {
            return;
        }
        while self.rates.front().is_some_and(|(at, _)| now > *at + RATE_FOR) {
            self.rates.pop_front();
        }
        while self.rates.back().is_some_and(|(_, lower)| *lower <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((now, rate));
    }

    /// When the oldest batch has been under way for `patience`: then it is no longer counted, since the protocol may
    /// have let it go, and what waits must leave again.
    pub fn gives_up_at(&self, patience: Duration) -> Option<Time> {
        self.under_way.front().map(|sent| sent.at + patience)
    }

    /// Gives up what has been under way for `patience`.
    pub fn give_up(&mut self, now: Time, patience: Duration) {
        while let Some(sent) = self.under_way.front().filter(|sent| now >= sent.at + patience) {
            self.bytes -= sent.bytes;
            self.under_way.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::SessionId;

    use super::*;

    const BATCH: usize = 64 << 10;
    const STEP: Duration = Duration::from_micros(500);

    /// A path to a quorum: a bottleneck, and a delay after it.
    struct Path {
        rate: f64,
        delay: Duration,
        free_at: Time,
    }

    /// How a leader with endless commands fares on a path for `seconds`: bytes a second, and the mean time of a batch,
    /// in each second.
    struct Leader {
        pacing: Pacing,
        path: Path,
        now: Time,
        number: u64,
        arriving: VecDeque<(Time, BatchId, Time, usize)>,
    }

    impl Leader {
        fn on(rate: f64, delay: Duration) -> Leader {
            let path = Path { rate, delay, free_at: Time::ZERO };
            Leader { pacing: Pacing::default(), path, now: Time::ZERO, number: 0, arriving: VecDeque::new() }
        }

        fn run(&mut self, seconds: u32) -> Vec<(f64, Duration)> {
            (0..seconds).map(|_| self.second()).collect()
        }

        fn second(&mut self) -> (f64, Duration) {
            let end = self.now + Duration::from_secs(1);
            let (mut bytes, mut took, mut number) = (0, Duration::ZERO, 0);
            while self.now < end {
                self.now += STEP;
                while let Some((_, id, sent, size)) =
                    self.arriving.front().copied().filter(|(at, ..)| *at <= self.now)
                {
                    self.arriving.pop_front();
                    self.pacing.delivered(self.now, id);
                    (bytes, took, number) = (bytes + size, took + self.now.since(sent), number + 1);
                }
                while self.pacing.has_room(BATCH) {
                    let size = self.pacing.batch_bytes_max(BATCH);
                    self.number += 1;
                    let id = BatchId { origin: SessionId(1), number: self.number };
                    self.pacing.sent(self.now, Some(id), size);
                    let begins = self.path.free_at.max(self.now);
                    self.path.free_at = begins + Duration::from_secs_f64(size as f64 / self.path.rate);
                    self.arriving.push_back((self.path.free_at + self.path.delay, id, self.now, size));
                }
                self.pacing.left(true, BATCH);
            }
            (bytes as f64, took / number.max(1))
        }
    }

    #[track_caller]
    fn fills(seconds: &[(f64, Duration)], rate: f64, longest: Duration) {
        let mean = seconds.iter().map(|(bytes, _)| bytes).sum::<f64>() / seconds.len() as f64;
        assert!(mean >= 0.9 * rate, "{mean} of {rate}: {seconds:?}");
        let took = seconds.iter().map(|(_, took)| *took).max().unwrap();
        assert!(took <= longest, "{took:?}: {seconds:?}");
    }

    /// The wide-area test bed of Santos 2012, section 8.5: 10 Mbit/s, 50 ms.
    const NARROW: f64 = 10e6 / 8.0;
    const FAR: Duration = Duration::from_millis(100);

    #[test]
    fn a_narrow_path_is_filled_and_hardly_queued_on() {
        let mut leader = Leader::on(NARROW, FAR);
        leader.run(2);
        // Twice the way with the batch that was timed, and the batch that has just left.
        fills(&leader.run(60), NARROW, 2 * (FAR + BATCH_TIME) + BATCH_TIME + BATCH_TIME / 5);
    }

    #[test]
    fn a_fast_path_is_filled_too() {
        let mut leader = Leader::on(200e6, Duration::from_millis(1));
        leader.run(1);
        fills(&leader.run(20), 200e6, Duration::from_millis(5));
        let mut leader = Leader::on(200e6, FAR);
        leader.run(3);
        fills(&leader.run(40), 200e6, 3 * FAR);
    }

    #[test]
    fn a_change_of_the_path_is_followed_within_five_seconds() {
        let mut leader = Leader::on(NARROW, FAR);
        leader.run(20);
        leader.path.rate = NARROW * 10.0;
        leader.run(5);
        fills(&leader.run(5), NARROW * 10.0, 4 * FAR);
        leader.path.rate = NARROW / 2.0;
        leader.run(5);
        fills(&leader.run(5), NARROW / 2.0, 4 * FAR + BATCH_TIME);
    }

    #[test]
    fn a_slow_path_gets_small_batches() {
        let mut leader = Leader::on(100e3, Duration::from_millis(20));
        leader.run(5);
        fills(&leader.run(10), 100e3, Duration::from_millis(250));
        assert!(leader.pacing.batch_bytes_max(BATCH) < 8 << 10);
    }

    #[test]
    fn what_is_never_delivered_blocks_nothing_for_good() {
        let mut pacing = Pacing::default();
        let patience = Duration::from_secs(1);
        while pacing.has_room(BATCH) {
            pacing.sent(Time::ZERO, None, BATCH);
        }
        assert_eq!(pacing.gives_up_at(patience), Some(Time::ZERO + patience));
        pacing.give_up(Time::ZERO + patience, patience);
        assert!(pacing.has_room(BATCH) && pacing.bytes == 0);
    }

    #[test]
    fn idle_clients_teach_no_low_rate() {
        let mut leader = Leader::on(NARROW, FAR);
        leader.run(5);
        let rate = |leader: &Leader| leader.pacing.measured().unwrap().0;
        let before = rate(&leader);
        let id = |number| BatchId { origin: SessionId(2), number };
        leader.pacing.restart();
        for number in 0..100 {
            leader.pacing.left(false, BATCH);
            leader.pacing.sent(leader.now, Some(id(number)), 300);
            leader.now += FAR;
            leader.pacing.delivered(leader.now, id(number));
        }
        assert_eq!(rate(&leader), before);
    }
}
