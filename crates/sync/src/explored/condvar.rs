//! A condition variable whose time-outs follow the test's clock.

use std::time::Duration;

use shuttle::sync::{Arc, LockResult, MutexGuard};

use super::time::{self, Sleeper};

/// As in the standard library.
#[derive(Debug)]
pub struct Condvar(Arc<shuttle::sync::Condvar>);

/// As in the standard library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// As in the standard library.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar(Arc::new(shuttle::sync::Condvar::new()))
    }
}

/// What the standard library's function returns. It is never poisoned, since a panic ends the test.
type Waited<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

impl Condvar {
    /// As in the standard library.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// As in the standard library.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// As in the standard library.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> Waited<'a, T> {
        let until = time::now().saturating_add(timeout);
        let sleeper = (until < Duration::MAX).then(|| Sleeper::until(until, &self.0));
        let guard = self.0.wait(guard).unwrap_or_else(shuttle::sync::PoisonError::into_inner);
        drop(sleeper);
        Ok((guard, WaitTimeoutResult(time::now() >= until)))
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// As in the standard library.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Waited<'a, T> {
        let until = time::now().saturating_add(timeout);
        loop {
            if !condition(&mut guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            if time::now() >= until {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            let sleeper = (until < Duration::MAX).then(|| Sleeper::until(until, &self.0));
            guard = self.0.wait(guard).unwrap_or_else(shuttle::sync::PoisonError::into_inner);
            drop(sleeper);
        }
    }

    /// As in the standard library.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As in the standard library.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
