//! The standard library's lock and condition variable, which also count how long a thread waits at them
//! ([`threads`](crate::threads)). One that need not wait pays nothing for that.

use std::{
    fmt,
    sync::{self, LockResult, MutexGuard, TryLockError, WaitTimeoutResult},
    time::Duration,
};

use super::profile;

/// A lock.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// The value, without the lock.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the error has the value.
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, after waiting for it.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the error has the guard.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => profile::blocked(|| self.0.lock()),
        }
    }

    /// The value, which nobody else can have locked.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the error has the value.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One that nobody waits for.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Waits until it is woken, with the lock released.
    ///
    /// # Errors
    /// A thread panicked while it held the lock; the error has the guard.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        profile::waiting(|| self.0.wait(guard))
    }

    /// Waits until it is woken, or for `timeout`.
    ///
    /// # Errors
    /// Those of [`Condvar::wait`].
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        profile::waiting(|| self.0.wait_timeout(guard, timeout))
    }

    /// Waits while a condition holds, or for `timeout`.
    ///
    /// # Errors
    /// Those of [`Condvar::wait`].
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        if !condition(&mut guard) {
            return self.0.wait_timeout_while(guard, Duration::ZERO, |_| false);
        }
        profile::waiting(|| self.0.wait_timeout_while(guard, timeout, condition))
    }

    /// Wakes one of those that wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
