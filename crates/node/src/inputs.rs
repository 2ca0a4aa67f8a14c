//! How asynchronous tasks, which must not wait, reach the protocol's thread.

use std::sync::Arc;

use synod_replica::RequestError;
use synod_sync::{
    channel::{Receiver, Sender, TrySendError, bounded, unbounded},
    net::Bell,
};

use crate::protocol::Input;

/// The queue of the protocol's thread, for other threads, which wait if it is full.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    inputs: Sender<Input>,
    /// Wakes the thread if it waits for sockets beside its queue.
    bell: Option<Arc<Bell>>,
}

impl Queue {
    /// A queue of this length, and its other end.
    pub(crate) fn new(inputs_max: usize, bell: Option<Arc<Bell>>) -> (Queue, Receiver<Input>) {
        let (inputs, taken) = bounded(inputs_max);
        (Queue { inputs, bell }, taken)
    }

    /// Waits for room; returns false if the thread has ended.
    pub(crate) fn send(&self, input: Input) -> bool {
        let sent = self.inputs.send(input).is_ok();
        self.ring();
        sent
    }

    /// The same without waiting.
    #[allow(clippy::result_large_err, reason = "a sender that finds the queue full goes on with the input")]
    pub(crate) fn try_send(&self, input: Input) -> Result<(), TrySendError<Input>> {
        self.inputs.try_send(input)?;
        self.ring();
        Ok(())
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn len(&self) -> usize {
        self.inputs.len()
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// Where tasks leave what the protocol's thread has to do. The queue of that thread has a fixed length, and a
/// sender has to wait when it is full; then the input of a task goes around the queue. That is bounded as
/// well, since each request has a place in the admission.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    queue: Queue,
    around: Sender<Input>,
}

/// What the protocol's thread takes from: its queue and, after each look at that, what went around it.
#[derive(Clone, Debug)]
pub(crate) struct InputsEnd {
    pub(crate) queue: Receiver<Input>,
    pub(crate) around: Receiver<Input>,
}

impl Inputs {
    /// The inputs for the thread that takes from `queue`, whose other end `end` is, and what that thread takes from.
    pub(crate) fn new(queue: Queue, end: Receiver<Input>) -> (Inputs, InputsEnd) {
        let (around, beside) = unbounded();
        (Inputs { queue, around }, InputsEnd { queue: end, around: beside })
    }

    /// Hands something over without waiting; returns false if the thread has ended.
    pub(crate) fn send(&self, input: Input) -> bool {
        let input = match self.queue.try_send(input) {
            Ok(()) => return true,
            Err(TrySendError::Disconnected(_)) => return false,
            Err(TrySendError::Full(input)) => input,
        };
        if self.around.send(input).is_err() {
            return false;
        }
        // If the queue is still full, the thread has yet to take from it, and looks here after that. If not,
        // this wakes the thread.
        !matches!(self.queue.try_send(Input::Wake), Err(TrySendError::Disconnected(_)))
    }

    /// The same, unless the queue is full.
    pub(crate) fn send_if_room(&self, input: Input) -> Result<(), RequestError> {
        self.queue.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => RequestError::Overloaded,
            TrySendError::Disconnected(_) => RequestError::Stopping,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_task_waits_for_a_full_queue_and_the_thread_is_woken_for_what_went_around_it() {
        let (queue, taken) = Queue::new(1, None);
        let (inputs, end) = Inputs::new(queue, taken);
        assert!(inputs.send(Input::Wake));
        assert!(end.around.is_empty());
        assert!(inputs.send(Input::Stop));
        // The thread takes from its queue, then looks at what went around it.
        assert!(matches!(end.queue.try_recv(), Ok(Input::Wake)));
        assert!(matches!(end.around.try_recv(), Ok(Input::Stop)));
        assert!(end.queue.is_empty());

        // The thread took what was in its queue just before something went around it.
        inputs.around.send(Input::Stop).unwrap();
        assert!(inputs.send(Input::Wake));
        assert!(matches!(end.queue.try_recv(), Ok(Input::Wake)));
        assert!(matches!(end.around.try_recv(), Ok(Input::Stop)));

        drop(end);
        assert!(!inputs.send(Input::Wake));
    }
}
