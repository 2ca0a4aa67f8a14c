//! A thread that waits for one proposal at a time, as in a server with a thread for every request.

use std::{
    io,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use bytes::Bytes;
use synod_node::Handle;
use synod_replica::RequestError;
use tokio::sync::oneshot;

/// Small, so that thousands of threads fit into memory.
const STACK_BYTES: usize = 128 << 10;

/// A command, the handle to execute it with, and where to send the reply.
type Job = (Handle, Bytes, oneshot::Sender<Result<Bytes, RequestError>>);

/// A thread that executes one command at a time. It ends when this is dropped and its proposal is answered.
#[derive(Debug)]
pub(super) struct Waiter {
    jobs: mpsc::Sender<Job>,
}

impl Waiter {
    pub(super) fn start() -> io::Result<Waiter> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let work = move || {
            for (handle, command, answered) in inbox {
                // The receiver may have given up.
                let _ = answered.send(wait(handle.execute(command)));
            }
        };
        thread::Builder::new().name("request".into()).stack_size(STACK_BYTES).spawn(work)?;
        Ok(Waiter { jobs })
    }

    pub(super) async fn execute(&self, handle: Handle, command: Bytes) -> Result<Bytes, RequestError> {
        let (answered, answer) = oneshot::channel();
        // Both fail only if the thread has panicked, and then the outcome of the proposal is not known.
        let sent = self.jobs.send((handle, command, answered));
        sent.map_err(|_| RequestError::Stopping)?;
        answer.await.unwrap_or(Err(RequestError::Stopping))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the future is ready.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_until_it_is_woken() {
        let (sender, receiver) = oneshot::channel();
        let waiting = thread::spawn(move || wait(receiver));
        thread::sleep(std::time::Duration::from_millis(20));
        sender.send(7).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(7));
    }
}
