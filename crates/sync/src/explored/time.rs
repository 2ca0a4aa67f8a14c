//! A clock that the test moves.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::{Add, Sub},
    time::Duration,
};

use shuttle::sync::{Arc, Condvar};

/// The threads that wait for a point in time.
#[derive(Default)]
struct Sleepers {
    last: u64,
    waiting: BTreeMap<u64, (Duration, Arc<Condvar>)>,
}

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static SLEEPERS: RefCell<Sleepers> = RefCell::default();
}

pub(super) fn reset() {
    NOW.set(Duration::ZERO);
    // An execution that failed leaves objects that belong to its own scheduler: dropping them here would
    // panic.
    std::mem::forget(SLEEPERS.take());
}

/// The time since the test began.
#[must_use]
pub fn now() -> Duration {
    NOW.get()
}

/// Moves the clock to the earliest point in time that a thread waits for. Returns false if none waits for
/// time.
pub(super) fn pass() -> bool {
    let next = SLEEPERS.with_borrow(|sleepers| sleepers.waiting.values().map(|(until, _)| *until).min());
    let Some(next) = next else { return false };
    NOW.set(now().max(next));
    let due = SLEEPERS.with_borrow(|sleepers| {
        let due = sleepers.waiting.values().filter(|(until, _)| *until <= now());
        due.map(|(_, condvar)| Arc::clone(condvar)).collect::<Vec<_>>()
    });
    // A thread that was just about to wait misses this notification, and is due at the next call.
    due.iter().for_each(|condvar| condvar.notify_all());
    true
}

/// A thread's entry among the sleepers.
pub(super) struct Sleeper(u64);

impl Sleeper {
    pub(super) fn until(deadline: Duration, condvar: &Arc<Condvar>) -> Sleeper {
        SLEEPERS.with_borrow_mut(|sleepers| {
            sleepers.last += 1;
            sleepers.waiting.insert(sleepers.last, (deadline, Arc::clone(condvar)));
            Sleeper(sleepers.last)
        })
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        _ = SLEEPERS.try_with(|sleepers| {
            if let Ok(mut sleepers) = sleepers.try_borrow_mut() {
                sleepers.waiting.remove(&self.0);
            }
        });
    }
}

/// As in the standard library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// As in the standard library.
    #[must_use]
    pub fn now() -> Instant {
        Instant(now())
    }

    /// As in the standard library.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        now().saturating_sub(self.0)
    }

    /// As in the standard library.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
