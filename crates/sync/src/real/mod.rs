//! The threads, clocks and sockets of the standard library and of the system, and locks that count how long they are
//! waited for.

mod locks;
mod profile;

pub use std::sync::{Arc, MutexGuard, PoisonError, Weak, atomic};

pub use std::thread;

pub use self::{
    locks::{Condvar, Mutex},
    profile::{park, threads, unpark},
};

/// Clocks of the standard library.
pub mod time {
    pub use std::time::Instant;
}

/// Sockets of the standard library, and how to wait for several at a time.
pub mod net {
    pub use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

    use std::{
        io::{self, IoSlice, Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
        sync::{
            Arc, Mutex, PoisonError,
            atomic::{AtomicBool, Ordering::SeqCst},
        },
        task,
        time::Duration,
    };

    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        net::{SendAncillaryBuffer, SendFlags, sendmsg},
    };

    use super::profile;

    /// Writes as much as the connection takes at once, although it is one that blocks.
    ///
    /// # Errors
    /// The connection takes nothing now ([`io::ErrorKind::WouldBlock`]), or is broken.
    pub fn write_at_once(stream: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(sendmsg(stream, parts, &mut SendAncillaryBuffer::default(), SendFlags::DONTWAIT)?)
    }

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

    /// Wakes a thread that waits for connections to become readable.
    #[derive(Debug)]
    pub struct Bell {
        /// Whether the thread waits, or is about to.
        asleep: AtomicBool,
        /// The task that waits, if none of the threads does.
        task: Mutex<Option<task::Waker>>,
        rope: UnixStream,
        bell: UnixStream,
    }

    impl Bell {
        /// A bell that nobody has rung.
        ///
        /// # Errors
        /// The system is out of sockets.
        pub fn new() -> io::Result<Bell> {
            let (rope, bell) = UnixStream::pair()?;
            rope.set_nonblocking(true)?;
            bell.set_nonblocking(true)?;
            Ok(Bell { asleep: AtomicBool::new(false), task: Mutex::default(), rope, bell })
        }

        /// Has [`Bell::wait`] return, or wakes the task that sleeps. Costs no system call if nobody waits.
        pub fn ring(&self) {
            if self.asleep.swap(false, SeqCst) {
                match &*self.task.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some(task) => task.wake_by_ref(),
                    // Where there is no room, it is ringing already.
                    None => _ = (&self.rope).write(&[0]),
                }
            }
        }

        /// From now on [`Bell::ring`] wakes this task, once. The task looks for something to do after this, since what
        /// was rung for before does not wake it. A bell is either a thread's, which waits, or a task's.
        pub fn sleep_as(&self, task: &task::Waker) {
            let mut of = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            if !of.as_ref().is_some_and(|same| same.will_wake(task)) {
                *of = Some(task.clone());
            }
            drop(of);
            self.asleep.store(true, SeqCst);
        }

        /// The task is awake, and need not be woken.
        pub fn awake(&self) {
            self.asleep.store(false, SeqCst);
        }

        /// Waits until one of the streams has something to read or is closed, until a packet is there, until the
        /// bell is rung, or for `timeout`. `is_idle` is asked once before the thread falls asleep, and a thread that
        /// makes it false has to ring afterwards. Only one thread at a time may wait. `ready` is told the place of
        /// each stream that is worth reading; the sockets for packets come after the streams.
        pub fn wait<'a>(
            &self,
            streams: impl Iterator<Item = &'a TcpStream>,
            packets: &'a [Arc<UdpSocket>],
            timeout: Duration,
            is_idle: impl Fn() -> bool,
            mut ready: impl FnMut(usize),
        ) {
            let mut sockets = vec![PollFd::new(&self.bell, PollFlags::IN)];
            sockets.extend(streams.map(|stream| PollFd::new(stream, PollFlags::IN)));
            sockets.extend(packets.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN)));
            self.asleep.store(!timeout.is_zero(), SeqCst);
            let timeout = if is_idle() { timeout } else { Duration::ZERO };
            let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
            // After an error (an interruption, or no memory) nothing is ready, and the caller waits again.
            let polled = profile::waiting(|| poll(&mut sockets, Some(&timeout)));
            self.asleep.store(false, SeqCst);
            if polled.is_err() {
                return;
            }
            if !sockets[0].revents().is_empty() {
                _ = (&self.bell).read(&mut [0; 16]);
            }
            for (at, socket) in sockets[1..].iter().enumerate() {
                if !socket.revents().is_empty() {
                    ready(at);
                }
            }
        }
    }

    /// Waits for a connection on any listener, for the waker of `woken`, or for `timeout`.
    pub fn wait_for(listeners: &[TcpListener], woken: &Woken, timeout: Option<Duration>) {
        wait_for_any(listeners.iter(), woken, timeout);
    }

    /// Waits for a packet at any of the sockets, or for the waker of `woken`.
    pub fn wait_for_packets(sockets: &[Arc<UdpSocket>], woken: &Woken) {
        wait_for_any(sockets.iter().map(|socket| &**socket), woken, None);
    }

    fn wait_for_any<'a, S: AsFd + 'a>(
        sockets: impl Iterator<Item = &'a S>,
        woken: &Woken,
        timeout: Option<Duration>,
    ) {
        let mut sockets: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        sockets.push(PollFd::new(&woken.0, PollFlags::IN));
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() });
        // An error (an interruption, or no memory) is treated as a wake-up: the caller checks for work
        // anyway.
        _ = profile::waiting(|| poll(&mut sockets, timeout.as_ref()));
    }
}
