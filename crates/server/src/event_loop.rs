//! The event loop that a replica and its clients share.

use std::{
    fmt,
    future::{Future, poll_fn},
    io, mem,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use synod_transport::{Readiness, Socket};
use tokio::{
    io::Interest,
    net,
    runtime::{Builder, Handle, Runtime},
    time::timeout,
};
use tracing::warn;

use crate::serve::SHUTDOWN_TIMEOUT;

/// A loop of tokio's that runs on the replica's own thread (`synod_node::Config::event_loop`) and serves the clients of
/// a server there ([`Config::event_loop`](crate::Config::event_loop)).
pub struct EventLoop {
    handle: Handle,
    phase: Mutex<Phase>,
}

/// Where the runtime of the loop is.
enum Phase {
    /// The replica will run it.
    New(Runtime),
    /// The replica runs it.
    Runs,
    /// The replica has ended. What it answered last leaves when the server stops.
    Ended(Runtime),
    /// It is gone.
    Over,
}

/// Tasks of clients that have a turn before the replica may have another. Each has a bounded one.
const TURN_TASKS_MAX: u32 = 8;

/// How long the end of the replica may go unnoticed by a server that stops.
const GLANCE_INTERVAL: Duration = Duration::from_millis(20);

impl EventLoop {
    /// A loop that nobody runs yet.
    ///
    /// # Errors
    /// The system is out of file descriptors.
    pub fn new() -> io::Result<Arc<EventLoop>> {
        let runtime = Builder::new_current_thread()
            .event_interval(TURN_TASKS_MAX)
            .thread_name("client-reads")
            .on_thread_park(synod_node::threads::park)
            .on_thread_unpark(synod_node::threads::unpark)
            .enable_all()
            .build()?;
        Ok(Arc::new(EventLoop { handle: runtime.handle().clone(), phase: Mutex::new(Phase::New(runtime)) }))
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until `closed` is ready, which tasks of the loop bring about, or until the deadline; says which. If the
    /// replica has ended, or does meanwhile, this thread runs the loop.
    pub(crate) fn wait(&self, mut closed: Pin<&mut impl Future<Output = ()>>, deadline: Instant) -> bool {
        let waiting = match Builder::new_current_thread().enable_time().build() {
            Ok(waiting) => waiting,
            Err(error) => {
                warn!(%error, "the server cannot wait for requests");
                return false;
            }
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(runtime) = self.take_ended() {
                let is_closed = runtime.block_on(async { timeout(left, closed).await.is_ok() });
                runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
                return is_closed;
            }
            let slice = left.min(GLANCE_INTERVAL);
            if waiting.block_on(async { timeout(slice, closed.as_mut()).await.is_ok() }) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Takes the loop if the replica has ended.
    pub(crate) fn take_ended(&self) -> Option<Runtime> {
        let mut phase = self.lock();
        match mem::replace(&mut *phase, Phase::Over) {
            Phase::Ended(runtime) => Some(runtime),
            other => {
                *phase = other;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if let Phase::New(runtime) | Phase::Ended(runtime) = mem::replace(&mut *self.lock(), Phase::Over) {
            // Dropping a runtime would block, which is not allowed in asynchronous code.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").finish_non_exhaustive()
    }
}

impl synod_transport::EventLoop for EventLoop {
    fn run(&self, task: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        let phase = mem::replace(&mut *self.lock(), Phase::Runs);
        let Phase::New(runtime) = phase else { panic!("an event loop runs one replica, once") };
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(poll_fn(task))));
        *self.lock() = Phase::Ended(runtime);
        if let Err(panic) = outcome {
            panic::resume_unwind(panic);
        }
    }

    fn register(&self, socket: Socket) -> io::Result<Box<dyn Readiness>> {
        Ok(match socket {
            Socket::Connection(socket) => Box::new(Watched(net::TcpStream::from_std(socket.try_clone()?)?)),
            Socket::Datagrams(socket) => {
                Box::new(WatchedPackets(net::UdpSocket::from_std(socket.try_clone()?)?))
            }
        })
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(time))
    }
}

/// A socket, watched by means of a second descriptor.
#[derive(Debug)]
struct Watched(net::TcpStream);

impl Readiness for Watched {
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        match self.0.poll_read_ready(cx) {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => {
                _ = self.0.try_io(Interest::READABLE, nothing);
                true
            }
            // The loop ends: reading fails, or finds nothing.
            Poll::Ready(Err(_)) => true,
        }
    }
}

/// A socket for packets, watched in the same way.
#[derive(Debug)]
struct WatchedPackets(net::UdpSocket);

impl Readiness for WatchedPackets {
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        match self.0.poll_recv_ready(cx) {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => {
                _ = self.0.try_io(Interest::READABLE, nothing);
                true
            }
            Poll::Ready(Err(_)) => true,
        }
    }
}

/// As if a read had found nothing: the caller reads only after this, so what arrives meanwhile counts.
fn nothing() -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}
