//! Channels with the behaviour of crossbeam's.

use std::{collections::VecDeque, fmt, iter, time::Duration};

pub use crossbeam_channel::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use shuttle::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Condvar, time};

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
}

impl<T> Channel<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    let state = State { queue: VecDeque::new(), bound, senders: 1, receivers: 1 };
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
                drop(state);
                self.0.readable.notify_one();
                return Ok(());
            }
            state = self.0.writable.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends without waiting.
    ///
    /// # Errors
    /// There is no room, or the receiver is gone.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.lock();
        if state.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if state.queue.len() >= state.bound {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        drop(state);
        self.0.readable.notify_one();
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
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => {}
            }
            state = self.0.readable.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a message, but no longer than `timeout`.
    ///
    /// # Errors
    /// No message came in time, or the channel is empty and all senders are gone.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let until = time::now().saturating_add(timeout);
        let mut state = self.0.lock();
        loop {
            match self.take(&mut state) {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if time::now() >= until => return Err(RecvTimeoutError::Timeout),
                Err(TryRecvError::Empty) => {}
            }
            let left = until.saturating_sub(time::now());
            state = self.0.readable.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
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

    /// Whether no message is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().queue.is_empty()
    }

    fn take(&self, state: &mut State<T>) -> Result<T, TryRecvError> {
        match state.queue.pop_front() {
            Some(message) => {
                self.0.writable.notify_one();
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
            std::mem::take(&mut state.queue)
        };
        self.0.writable.notify_all();
        drop(waiting);
    }
}
