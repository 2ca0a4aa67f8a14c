//! The real ones.

pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, atomic};

pub use std::thread;

/// Channels.
pub mod channel {
    pub use crossbeam_channel::{
        Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, bounded, unbounded,
    };
}

/// Clocks.
pub mod time {
    pub use std::time::Instant;
}

/// Sockets.
pub mod net {
    pub use std::net::{Shutdown, TcpListener, TcpStream};

    use std::{io, os::unix::net::UnixStream, time::Duration};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Dropping it wakes who waits with its [`Woken`].
    #[derive(Debug)]
    pub struct Waker(#[allow(dead_code, reason = "it is there to be dropped")] UnixStream);

    /// See [`Waker`].
    #[derive(Debug)]
    pub struct Woken(UnixStream);

    /// A waker, and what it wakes.
    ///
    /// # Errors
    /// The system is out of sockets.
    pub fn waker() -> io::Result<(Waker, Woken)> {
        let (waker, woken) = UnixStream::pair()?;
        Ok((Waker(waker), Woken(woken)))
    }

    /// Waits for a connection on any listener, for `woken`, or until `timeout`.
    pub fn wait_for(listeners: &[TcpListener], woken: &Woken, timeout: Option<Duration>) {
        let mut sockets: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        sockets.push(PollFd::new(&woken.0, PollFlags::IN));
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() });
        // An error (an interruption, or no memory) is as good as a wake-up: the caller looks for itself.
        _ = poll(&mut sockets, timeout.as_ref());
    }
}
