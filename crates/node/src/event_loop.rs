//! The protocol as a task of an event loop, in place of a thread that waits by itself.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use synod_replica::StateMachine;
use synod_sync::{
    channel::{RecvTimeoutError, TryRecvError},
    net::Bell,
    time::Instant,
};
use synod_transport::EventLoop;

use crate::{
    Ended,
    protocol::{Input, ProtocolStage},
};

/// The loop on which the protocol runs, and what wakes it there.
pub(crate) struct Task {
    pub(crate) event_loop: Arc<dyn EventLoop>,
    pub(crate) bell: Arc<Bell>,
}

/// Wakes the task at a deadline. Deadlines move with every input, and mostly further away, so the timer is left as it
/// is if it ends too early.
struct Timer<'a> {
    event_loop: &'a dyn EventLoop,
    armed: Option<Armed>,
}

struct Armed {
    ends: Instant,
    sleep: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Timer<'_> {
    /// Whether the task has to look for what is due. If not, it is woken in `wait`, or before.
    fn poll(&mut self, cx: &mut Context<'_>, wait: Duration) -> bool {
        let due = Instant::now() + wait;
        let armed = match &mut self.armed {
            Some(armed) if armed.ends <= due => armed,
            _ => self.armed.insert(Armed { ends: due, sleep: self.event_loop.sleep(wait) }),
        };
        let ended = armed.sleep.as_mut().poll(cx).is_ready();
        if ended {
            self.armed = None;
        }
        ended
    }
}

impl<S: StateMachine> ProtocolStage<S> {
    /// Takes a turn whenever there is something to do, and lets the other tasks of the loop have theirs in between.
    pub(crate) fn run_on(mut self, task: &Task) -> Result<(), Ended> {
        let mut timer = Timer { event_loop: &*task.event_loop, armed: None };
        let mut end = None;
        task.event_loop.run(&mut |cx| {
            let next = match self.poll_next(cx, &task.bell, &mut timer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(next) => next,
            };
            task.bell.awake();
            end = self.turn(next);
            if end.is_some() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        end.unwrap_or(Ok(()))
    }

    /// An input, or none if a turn is due without one.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        bell: &Bell,
        timer: &mut Timer<'_>,
    ) -> Poll<Result<Option<Input>, RecvTimeoutError>> {
        // From here on whatever comes wakes the task.
        bell.sleep_as(cx.waker());
        let arrived = self.inbox.as_mut().is_some_and(|inbox| inbox.poll(cx));
        match self.inputs.queue.try_recv() {
            Ok(input) => return Poll::Ready(Ok(Some(input))),
            Err(TryRecvError::Disconnected) => return Poll::Ready(Err(RecvTimeoutError::Disconnected)),
            Err(TryRecvError::Empty) => {}
        }
        let wait = self.wait();
        // A timer of no time is not ready at once.
        if arrived || !self.common.execution.is_idle() || wait.is_zero() || timer.poll(cx, wait) {
            return Poll::Ready(Ok(None));
        }
        Poll::Pending
    }
}
