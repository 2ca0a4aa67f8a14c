//! An event loop that its owner shares with others.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use synod_sync::{
    Arc,
    net::{TcpStream, UdpSocket},
};

/// An event loop on which the owner of an [`Inbox`](crate::Inbox) runs as a task, beside other tasks of that loop. So
/// sockets of peers and of clients are waited for in one place, and no thread has to be woken where a client's request
/// becomes the protocol's input, or an executed command the client's answer.
pub trait EventLoop: fmt::Debug + Send + Sync {
    /// Runs `task` on the calling thread until it is ready, and other tasks of the loop meanwhile. At most one task can
    /// be run at a time.
    fn run(&self, task: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>);

    /// Watches a socket that does not block. Called by the task that runs.
    ///
    /// # Errors
    /// The system cannot watch one more socket.
    fn register(&self, socket: Socket) -> io::Result<Box<dyn Readiness>>;

    /// Becomes ready after this time. Called by the task that runs.
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A socket that an event loop is to watch.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A connection with a peer.
    Connection(Arc<TcpStream>),
    /// What takes datagrams of all peers.
    Datagrams(Arc<UdpSocket>),
}

/// A socket that an event loop watches.
pub trait Readiness: fmt::Debug + Send {
    /// Whether something may have arrived, or the socket was closed, since this was last true. The caller then reads
    /// all that is there. If it is false, the task is woken once something has arrived.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool;
}
