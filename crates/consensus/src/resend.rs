//! When something has to be sent again.

use std::time::Duration;

use synod_wire::Time;

/// Sends again after a while, then after twice as long, and so on up to a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resend {
    at: Time,
    wait: Duration,
}

impl Resend {
    /// The schedule of something that was sent just now.
    pub(crate) fn first(now: Time, wait: Duration) -> Resend {
        Resend { at: now + wait, wait }
    }

    /// The schedule of something that has to be sent at once.
    pub(crate) fn at_once(now: Time, wait: Duration) -> Resend {
        Resend { at: now, wait: wait / 2 }
    }

    /// Begins the schedule again, unless it has to be sent before `wait` is over anyway.
    pub(crate) fn no_later_than(&mut self, now: Time, wait: Duration) {
        if self.at > now + wait {
            *self = Resend::first(now, wait);
        }
    }

    /// The next time at which it has to be sent.
    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// Whether it has to be sent now; if so, sets the next time.
    pub(crate) fn is_due(&mut self, now: Time, wait_max: Duration) -> bool {
        let due = now >= self.at;
        if due {
            self.wait = (self.wait * 2).min(wait_max);
            self.at = now + self.wait;
        }
        due
    }
}
