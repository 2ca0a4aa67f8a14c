//! A condition variable whose timeouts obey the test's time.

use std::time::Duration;

use shuttle::sync::{Arc, LockResult, MutexGuard};

use super::time::{self, Sleeper};

/// As of the standard library.
#[derive(Debug)]
pub struct Condvar(Arc<shuttle::sync::Condvar>);

/// As of the standard library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// As of the standard library.
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

/// What the standard library returns, without its poison: a panic ends the test anyway.
type Waited<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

impl Condvar {
    /// As of the standard library.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// As of the standard library.
    ///
    /// # Errors
    /// As of the standard library.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    /// As of the standard library.
    ///
    /// # Errors
    /// As of the standard library.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> Waited<'a, T> {
        let until = time::now().saturating_add(timeout);
        let sleeper = (until < Duration::MAX).then(|| Sleeper::until(until, &self.0));
        let guard = self.0.wait(guard).unwrap_or_else(shuttle::sync::PoisonError::into_inner);
        drop(sleeper);
        Ok((guard, WaitTimeoutResult(time::now() >= until)))
    }

    /// As of the standard library.
    ///
    /// # Errors
    /// As of the standard library.
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

    /// As of the standard library.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As of the standard library.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
