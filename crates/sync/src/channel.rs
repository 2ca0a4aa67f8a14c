//! Channels: queues under a lock, at which a receiver sleeps as soon as it finds nothing.
//!
//! Other channels look at an empty queue for a while before they sleep, and yield the processor meanwhile. That gains
//! time where each thread has a processor of its own. Here several replicas share few, and the yielding was a third of
//! all switches of threads. A message that finds no sleeping receiver costs no system call.

use std::{collections::VecDeque, fmt, iter, mem, sync::PoisonError, time::Duration};

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

use crate::{Arc, Condvar, Mutex, MutexGuard, time::Instant};

struct Channel<T> {
    state: Mutex<State<T>>,
    readable: Condvar,
    writable: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    bound: usize,
    senders: usize,
    receivers: usize,
    /// Receivers that sleep.
    asleep: usize,
    /// Whether one of them was woken, and has not looked yet. What comes meanwhile needs no other wake-up: that
    /// receiver wakes the next one if it leaves something.
    awakening: bool,
    /// Senders that sleep for want of room.
    blocked: usize,
}

impl<T> State<T> {
    /// Whether a receiver has to be woken for what the queue holds.
    fn must_wake(&mut self) -> bool {
        let must = self.asleep > 0 && !self.awakening && !self.queue.is_empty();
        self.awakening |= must;
        must
    }
}

impl<T> Channel<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a receiver if that is due.
    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        let must_wake = state.must_wake();
        drop(state);
        if must_wake {
            self.readable.notify_one();
        }
    }
}

/// The sending end of a channel.
pub struct Sender<T>(Arc<Channel<T>>);

/// The receiving end of a channel.
pub struct Receiver<T>(Arc<Channel<T>>);

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// A channel in which at most `bound` messages wait.
#[must_use]
pub fn bounded<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let state = State {
        queue: VecDeque::new(),
        bound,
        senders: 1,
        receivers: 1,
        asleep: 0,
        awakening: false,
        blocked: 0,
    };
    let channel = Channel { state: Mutex::new(state), readable: Condvar::new(), writable: Condvar::new() };
    let channel = Arc::new(channel);
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

/// A channel in which any number of messages waits.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

impl<T> Sender<T> {
    /// Sends a message, after waiting for room.
    ///
    /// # Errors
    /// All receivers are gone.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.0.lock();
        loop {
            if state.receivers == 0 {
                return Err(SendError(message));
            }
            if state.queue.len() < state.bound {
                state.queue.push_back(message);
                self.0.wake(state);
                return Ok(());
            }
            state.blocked += 1;
            state = self.0.writable.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.blocked -= 1;
        }
    }

    /// Sends without waiting.
    ///
    /// # Errors
    /// There is no room, or all receivers are gone.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.lock();
        if state.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if state.queue.len() >= state.bound {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        self.0.wake(state);
        Ok(())
    }

    /// How many messages are in the channel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().queue.len()
    }

    /// Whether the channel holds no message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Receiver<T> {
    /// Waits for a message.
    ///
    /// # Errors
    /// The channel is empty, and all senders are gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.lock();
        loop {
            match self.take(&mut state) {
                Ok(message) => {
                    self.0.wake(state);
                    return Ok(message);
                }
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => {}
            }
            state.asleep += 1;
            state = self.0.readable.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
            state.awakening = false;
        }
    }

    /// Waits for a message, but no longer than `timeout`.
    ///
    /// # Errors
    /// No message came in time, or the channel is empty and all senders are gone.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let mut began = None;
        let mut state = self.0.lock();
        loop {
            match self.take(&mut state) {
                Ok(message) => {
                    self.0.wake(state);
                    return Ok(message);
                }
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = timeout.saturating_sub(began.get_or_insert_with(Instant::now).elapsed());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            state.asleep += 1;
            state = self.0.readable.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.asleep -= 1;
            state.awakening = false;
        }
    }

    /// Takes a message without waiting.
    ///
    /// # Errors
    /// The channel is empty.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.take(&mut self.0.lock())
    }

    /// Takes the messages that are in the channel, without waiting.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        iter::from_fn(|| self.try_recv().ok())
    }

    /// Whether the channel holds no message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().queue.is_empty()
    }

    fn take(&self, state: &mut State<T>) -> Result<T, TryRecvError> {
        match state.queue.pop_front() {
            Some(message) => {
                if state.blocked > 0 {
                    self.0.writable.notify_one();
                }
                Ok(message)
            }
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.0.lock().receivers += 1;
        Receiver(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.lock();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.0.readable.notify_all();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.lock();
            state.receivers -= 1;
            if state.receivers > 0 {
                return;
            }
            mem::take(&mut state.queue)
        };
        self.0.writable.notify_all();
        drop(waiting);
    }
}
