//! What waits to leave on the stream of a client: bounded in bytes for each stream, and for all streams together.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::Sender,
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

use super::hub::{Message, Request, StreamNumber, Told, Wants};

/// Bytes of events that may wait on one stream, and on all of them. A stream on which nothing waits takes one response
/// in any case.
pub(crate) const STREAM_BYTES_MAX: usize = 128 << 10;
pub(crate) const ALL_BYTES_MAX: usize = 64 << 20;
/// What an event counts here at least, and any other item.
const ITEM_BYTES: usize = 64;
/// Items that wait here, and requests that wait for the hub, together: with more the client's next request is not read.
pub(crate) const ITEMS_MAX: usize = 1024;

/// What is sent to a client.
#[derive(Debug)]
pub(crate) enum Item {
    /// A watch has begun.
    Created { id: i64, revision: i64, progress: bool },
    /// A watch is refused. Its client gets back what the watch cost (`free`), as with the last two items.
    Refused { revision: i64, free: u64, reason: String },
    /// A watch is told what happened. It has been told everything through the revision then.
    Events { id: i64, revision: i64, wants: Wants, events: Vec<Arc<Told>> },
    /// A watch, or all watches of the stream, have been told everything through this revision.
    Progress { id: i64, revision: i64 },
    /// A watch has ended as its client asked.
    Canceled { id: i64, revision: i64, free: u64 },
    /// A watch has ended, since what it asks for is compacted. Its id is not free until its client cancels it.
    Compacted { id: i64, compact_revision: i64, free: u64 },
}

/// The queue between the hub and the task of a stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    number: StreamNumber,
    queue: Mutex<Queue>,
    /// Bytes that wait on all streams.
    all: Arc<AtomicUsize>,
    hub: Sender<Message>,
    /// Wakes the task that sends.
    sender: AtomicWaker,
    /// Wakes the task that reads requests.
    reader: AtomicWaker,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<(Item, usize)>,
    bytes: usize,
    /// Requests of the client that the hub has not answered.
    asked: usize,
    /// The hub waits for room.
    refused: bool,
    ended: bool,
}

impl Queue {
    fn has_few(&self) -> bool {
        self.items.len() + self.asked < ITEMS_MAX
    }
}

impl Outgoing {
    pub(crate) fn new(number: StreamNumber, all: Arc<AtomicUsize>, hub: Sender<Message>) -> Outgoing {
        let (queue, sender, reader) = Default::default();
        Outgoing { number, queue, all, hub, sender, reader }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item that has no events.
    pub(crate) fn push(&self, item: Item) {
        let mut queue = self.queue();
        self.add(&mut queue, item, 0);
    }

    /// Adds events, if they have room. If not, the hub hears of it when they do.
    pub(crate) fn push_if_room(&self, item: Item, bytes: usize) -> bool {
        let mut queue = self.queue();
        let fits = queue.bytes + bytes <= STREAM_BYTES_MAX && self.all.load(Relaxed) + bytes <= ALL_BYTES_MAX;
        queue.refused |= !(queue.items.is_empty() || fits);
        if !queue.refused {
            self.add(&mut queue, item, bytes);
        }
        !queue.refused
    }

    fn add(&self, queue: &mut Queue, item: Item, bytes: usize) {
        if queue.ended {
            return;
        }
        let bytes = bytes + ITEM_BYTES;
        queue.bytes += bytes;
        self.all.fetch_add(bytes, Relaxed);
        queue.items.push_back((item, bytes));
        if queue.items.len() == 1 {
            self.sender.wake();
        }
    }

    /// Takes the next item. `None`: the server ends the stream.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.sender.register(cx.waker());
        let item = self.next();
        let ended = item.is_none() && self.queue().ended;
        match item {
            None if !ended => Poll::Pending,
            item => Poll::Ready(item),
        }
    }

    /// Takes the next item if there is one.
    pub(crate) fn next(&self) -> Option<Item> {
        let mut queue = self.queue();
        let (item, bytes) = queue.items.pop_front()?;
        queue.bytes -= bytes;
        self.all.fetch_sub(bytes, Relaxed);
        if queue.refused && queue.bytes <= STREAM_BYTES_MAX / 2 {
            queue.refused = false;
            // A failed send means that the server has ended.
            let _ = self.hub.send(Message::Request(self.number, Request::Room));
        }
        if queue.has_few() {
            self.reader.wake();
        }
        Some(item)
    }

    /// Takes note of a request that the hub is to answer.
    pub(crate) fn asks(&self) {
        self.queue().asked += 1;
    }

    /// Takes note that the hub has answered a request, perhaps with no item.
    pub(crate) fn answered(&self) {
        let mut queue = self.queue();
        queue.asked -= 1;
        if queue.has_few() {
            self.reader.wake();
        }
    }

    /// Whether few items and few requests wait.
    pub(crate) fn has_few(&self) -> bool {
        self.queue().has_few()
    }

    /// Waits until few items and few requests wait.
    pub(crate) fn poll_few(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.reader.register(cx.waker());
        if self.has_few() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends the stream: nothing is added any more.
    pub(crate) fn end(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        self.all.fetch_sub(mem::take(&mut queue.bytes), Relaxed);
        queue.items.clear();
        self.sender.wake();
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.end();
    }
}
