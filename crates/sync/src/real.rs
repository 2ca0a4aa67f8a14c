//! The locks, channels, threads, clocks and sockets of the standard library, of crossbeam and of the system.

pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, atomic};

pub use std::thread;

/// Channels of crossbeam.
pub mod channel {
    pub use crossbeam_channel::{
        Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, TrySendError, bounded, unbounded,
    };
}

/// Clocks of the standard library.
pub mod time {
    pub use std::time::Instant;
}

/// Sockets of the standard library, and how to wait for several at a time.
pub mod net {
    pub use std::net::{Shutdown, TcpListener, TcpStream};

    use std::{io, os::unix::net::UnixStream, time::Duration};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Dropping it wakes the thread that waits with its [`Woken`].
    #[derive(Debug)]
    pub struct Waker(#[allow(dead_code, reason = "it is there to be dropped")] UnixStream);

    /// What a thread passes to [`wait_for`] so that the [`Waker`] can wake it.
    #[derive(Debug)]
    pub struct Woken(UnixStream);

    /// Makes a waker and its counterpart.
    ///
    /// # Errors
    /// The system is out of sockets.
    pub fn waker() -> io::Result<(Waker, Woken)> {
        let (waker, woken) = UnixStream::pair()?;
        Ok((Waker(waker), Woken(woken)))
    }

    /// Waits for a connection on any listener, for the waker of `woken`, or for `timeout`.
    pub fn wait_for(listeners: &[TcpListener], woken: &Woken, timeout: Option<Duration>) {
        let mut sockets: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        sockets.push(PollFd::new(&woken.0, PollFlags::IN));
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() });
        // An error (an interruption, or no memory) is treated as a wake-up: the caller checks for work
        // anyway.
        _ = poll(&mut sockets, timeout.as_ref());
    }
}
