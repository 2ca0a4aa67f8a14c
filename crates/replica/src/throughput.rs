//! How fast this replica's batches are delivered, and so how long a command would wait for its delivery.
//!
//! A command that is delivered after its client has given up costs as much as any other and is worth nothing. If
//! clients go on asking for more than can be ordered, all commands end so: each is served after its time, and
//! when the load ends, what waits keeps the next ones waiting. So a replica refuses a command when it comes, if what
//! waits already takes too long.
//!
//! The rate is that of batches, not of commands or bytes. A batch is what is ordered and written at a time, and while
//! all of them wait for a slow disk, ten commands in one batch take no longer than one. The rate counts only the time
//! in which something waited here and a leader was known; it is what the leader gives this replica of the whole, and
//! follows a leader that becomes slower within a request time-out. It is no estimate of what would be possible: a
//! lone client far from the leader also sees few batches a second. So it counts only while something has waited for
//! long, and what could leave at once may take longer than what has to wait for its turn here. An outage is no rate
//! either: if nothing was delivered since the oldest command came, nobody knows how fast the next leader will be, and
//! what waits is bounded by its bytes and by the request time-out.

use std::time::Duration;

use synod_wire::Time;

/// A command is refused if it would wait for longer than this part of the request time-out. The rest is for a rate that
/// falls, and for what lies between the client and this replica.
const WAIT_PART: u32 = 3;

/// If nothing waits for its turn here, a command may take for as many such parts as this: it waits only for those that
/// are being ordered, here and for other replicas, and their number is bounded.
const ORDER_PARTS: u32 = 2;

/// The rate counts once the oldest command has waited for this part of the request time-out; if nothing waits for its
/// turn here, once it has waited for a whole [`WAIT_PART`], since where all takes long, few are delivered at first.
const EVIDENCE_PART: u32 = 8;

/// What happened in a stretch of time.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// Batches that were delivered.
    delivered: u64,
    /// For how long some batch waited.
    busy: Duration,
}

/// The rate at which batches of this replica were delivered of late.
#[derive(Debug)]
pub(crate) struct Throughput {
    /// How long a command may wait, which is also how long a stretch is.
    wait_max: Duration,
    /// Whether a leader is known, which could order what waits.
    led: bool,
    /// When the present stretch began.
    began: Time,
    /// The time through which `present` counts.
    counted: Time,
    /// When a batch was delivered last.
    delivered_at: Time,
    before: Stretch,
    present: Stretch,
}

impl Throughput {
    pub fn new(request_timeout: Duration) -> Throughput {
        Throughput {
            wait_max: request_timeout / WAIT_PART,
            led: false,
            began: Time::ZERO,
            counted: Time::ZERO,
            delivered_at: Time::ZERO,
            before: Stretch::default(),
            present: Stretch::default(),
        }
    }

    /// Records whether a leader is known; what counts until now has to be counted before.
    pub fn led(&mut self, led: bool) {
        self.led = led;
    }

    /// Counts the time until now; since it was last counted, some batch `waits`, or none.
    pub fn elapse(&mut self, now: Time, waits: bool) {
        let elapsed = now.since(self.counted);
        if now >= self.began + self.wait_max {
            let old = now >= self.began + self.wait_max * 2;
            self.before = if old { Stretch::default() } else { self.present };
            (self.present, self.began) = (Stretch::default(), now);
        }
        if waits && self.led {
            self.present.busy += elapsed.min(self.wait_max);
        }
        self.counted = now;
    }

    /// Records that a batch is delivered, at the time through which was counted last.
    pub fn delivered(&mut self) {
        self.present.delivered += 1;
        self.delivered_at = self.counted;
    }

    /// For how long a batch counts from when it came: it is given up after the request time-out, and may be delivered a
    /// little later.
    pub fn counts_for(&self) -> Duration {
        self.wait_max * (WAIT_PART + 1)
    }

    /// Whether a command that comes now would wait for too long, after `batches` of which the oldest came at `oldest`.
    /// Some of them wait for their turn here (`queues`), or all are being ordered.
    pub fn is_exceeded(&self, batches: usize, oldest: Time, queues: bool) -> bool {
        if !self.led || self.delivered_at <= oldest {
            return false;
        }
        let oldest = self.counted.since(oldest);
        // One more counts as delivered: nothing is known of a replica that has just begun to wait.
        let delivered = self.before.delivered + self.present.delivered + 1;
        let busy = (self.before.busy + self.present.busy).as_nanos();
        let wait = busy * batches as u128;
        let (evidence, parts) = if queues {
            (self.wait_max * WAIT_PART / EVIDENCE_PART, 1)
        } else {
            (self.wait_max, ORDER_PARTS)
        };
        oldest >= evidence && wait > (self.wait_max * parts).as_nanos() * u128::from(delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: u32) -> Time {
        Time::ZERO + MS * ms
    }

    /// One that has delivered a batch each `every`, and had some waiting, until the end.
    fn steady(every: u32, end: u32) -> Throughput {
        let mut throughput = Throughput::new(SECOND * 6);
        throughput.led(true);
        for ms in (0..=end).step_by(every as usize) {
            throughput.elapse(at(ms), true);
            throughput.delivered();
        }
        throughput
    }

    #[test]
    fn as_many_batches_may_wait_as_are_delivered_in_a_third_of_the_time() {
        let throughput = steady(10, 10_000);
        assert!(
            !throughput.is_exceeded(200, at(9_000), true) && throughput.is_exceeded(205, at(9_000), true)
        );
        assert!(!throughput.is_exceeded(10_000, at(9_501), true), "nothing has waited for long");
        assert!(!throughput.is_exceeded(0, at(9_000), true));
    }

    #[test]
    fn what_is_being_ordered_may_take_twice_as_long_as_what_waits_for_its_turn() {
        let throughput = steady(100, 10_000);
        assert!(throughput.is_exceeded(30, at(8_000), true) && !throughput.is_exceeded(30, at(8_000), false));
        assert!(throughput.is_exceeded(45, at(8_000), false));
        assert!(!throughput.is_exceeded(45, at(8_001), false), "nothing has been on its way for long");
    }

    #[test]
    fn the_rate_follows_a_leader_that_becomes_slower_and_one_that_stops() {
        let mut throughput = steady(10, 10_000);
        for ms in (10_100..14_100).step_by(100) {
            throughput.elapse(at(ms), true);
            throughput.delivered();
        }
        assert!(
            throughput.is_exceeded(30, at(13_000), true) && !throughput.is_exceeded(15, at(13_000), true)
        );
        (14_100..18_200).step_by(100).for_each(|ms| throughput.elapse(at(ms), true));
        assert!(throughput.is_exceeded(2, at(13_000), true), "hardly anything is delivered");
    }

    #[test]
    fn an_outage_is_no_rate() {
        let mut throughput = steady(10, 1_000);
        throughput.elapse(at(8_000), false);
        // A leader that hangs is known for a while.
        (8_000..9_000).step_by(100).for_each(|ms| throughput.elapse(at(ms), true));
        assert!(!throughput.is_exceeded(3, at(8_000), true), "nothing was delivered since they came");
        throughput.delivered();
        assert!(throughput.is_exceeded(100, at(8_000), true));
        throughput.led(false);
        assert!(!throughput.is_exceeded(100, at(8_000), true), "nobody leads");
    }

    #[test]
    fn time_without_a_leader_or_without_a_batch_does_not_count() {
        let mut throughput = steady(10, 1_500);
        throughput.elapse(at(2_500), false);
        throughput.led(false);
        throughput.elapse(at(3_500), true);
        throughput.led(true);
        throughput.delivered();
        assert!(!throughput.is_exceeded(150, at(2_500), true));
        throughput.elapse(at(9_000), false);
        throughput.elapse(at(9_501), true);
        throughput.delivered();
        assert!(!throughput.is_exceeded(3, at(9_000), true), "it is too long ago");
    }
}
