//! What waits to leave on the stream of a client, or is leaving: bounded in bytes for each stream, and for all streams
//! together.
//!
//! A stream has [`STREAM_BYTES_MIN`] bytes for itself, which its client pays for. Beyond that it may hold a small part
//! of what no stream holds. So streams that nobody reads cannot take everything from the others, however many there
//! are; `admission.rs` in `synod-grpc` says more of such thresholds.
//!
//! A revision that has no room by that even on a stream where nothing waits is **large**. The hub gives places to
//! these, one for each stream (`places.rs`), and what else waits there does not count for them.

use std::{
    collections::VecDeque,
    mem,
    ops::{AddAssign, SubAssign},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::Sender,
    },
    task::{Context, Poll, Waker},
};

use super::message::{Message, Request, StreamNumber, Told, Wants};

/// Bytes that may wait on a stream in any case.
pub const STREAM_BYTES_MIN: usize = 16 << 10;
/// Bytes that may wait on one stream.
pub const STREAM_BYTES_MAX: usize = 256 << 10;
/// Bytes that may wait on all streams together, beyond those that each may have.
pub const ALL_BYTES_MAX: usize = 64 << 20;
/// A stream may have one part in this many of what is left of these.
const SHARE: usize = 64;
/// What an item counts here beside its events.
const ITEM_BYTES: usize = 64;
/// Items that wait here or are leaving, and requests that wait for the hub, together: with more the client's next
/// request is not read.
pub(super) const ITEMS_MAX: usize = 128;

/// What is sent to a client.
#[derive(Debug)]
pub enum Item {
    /// A watch has begun.
    Created {
        /// Its id.
        id: i64,
        /// The hub has been told so far.
        revision: i64,
        /// Its client asks to be told from time to time how far the watch is.
        progress: bool,
    },
    /// A watch is refused.
    Refused {
        /// The hub has been told so far.
        revision: i64,
        /// What its client gets back of what the watch cost, as with the last two items.
        free: u64,
        /// Why it is refused.
        reason: String,
    },
    /// A watch is told what happened.
    Events {
        /// Its id.
        id: i64,
        /// It has been told everything through this revision then.
        revision: i64,
        /// What it wants of events.
        wants: Wants,
        /// At least one.
        events: Vec<Arc<Told>>,
    },
    /// A watch, or all watches of the stream, have been told everything.
    Progress {
        /// The id of the watch, or [`NO_WATCH`](super::NO_WATCH).
        id: i64,
        /// They have been told everything through this revision.
        revision: i64,
    },
    /// A watch has ended as its client asked.
    Canceled {
        /// Its id.
        id: i64,
        /// The hub has been told so far.
        revision: i64,
        /// What its client gets back.
        free: u64,
    },
    /// A watch has ended, since what it asks for is compacted. Its id is not free until its client cancels it.
    Compacted {
        /// Its id.
        id: i64,
        /// The first revision that is left.
        compact_revision: i64,
        /// What its client gets back.
        free: u64,
    },
}

/// What waits on all streams.
#[derive(Debug, Default)]
pub struct All {
    /// Bytes beyond those that each may have.
    bytes: AtomicUsize,
    /// Streams that wait for the place of a large revision.
    wanting: AtomicUsize,
}

impl All {
    /// Bytes that wait beyond those that each stream may have.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// The queue between the hub and the task of a stream.
#[derive(Debug)]
pub struct Outgoing {
    number: StreamNumber,
    queue: Mutex<Queue>,
    all: Arc<All>,
    hub: Sender<Message>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<(Item, Weight)>,
    /// Of the items, and of those that were taken and have not left.
    bytes: Weight,
    /// How many large revisions there were.
    large_count: u64,
    /// How many items were taken and have not left, and their bytes.
    leaving: (usize, Weight),
    /// Requests of the client that the hub has not answered.
    asked: usize,
    /// The hub waits for room.
    refused: bool,
    ended: bool,
    /// Wakes the task that sends.
    sender: Option<Waker>,
    /// Wakes the task that reads requests.
    reader: Option<Waker>,
}

/// Bytes of large revisions, and those of everything else.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    large: usize,
    small: usize,
}

impl AddAssign for Weight {
    fn add_assign(&mut self, more: Weight) {
        self.large += more.large;
        self.small += more.small;
    }
}

impl SubAssign for Weight {
    fn sub_assign(&mut self, less: Weight) {
        self.large -= less.large;
        self.small -= less.small;
    }
}

impl Queue {
    /// Bytes beyond those that each stream may have.
    fn extra(&self) -> usize {
        self.bytes.small.saturating_sub(STREAM_BYTES_MIN)
    }

    fn has_few(&self) -> bool {
        self.items.len() + self.leaving.0 + self.asked < ITEMS_MAX
    }

    /// What wakes the task that reads requests, if it may go on.
    fn wakes_reader(&mut self) -> Option<Waker> {
        if self.has_few() { self.reader.take() } else { None }
    }
}

impl Outgoing {
    /// The queue of a stream, beside others that have this many bytes waiting, to the hub that takes these messages.
    #[must_use]
    pub fn new(number: StreamNumber, all: Arc<All>, hub: Sender<Message>) -> Outgoing {
        Outgoing::bounded(number, all, hub, STREAM_BYTES_MAX)
    }

    /// The same within another bound than `STREAM_BYTES_MAX`.
    #[must_use]
    pub fn bounded(number: StreamNumber, all: Arc<All>, hub: Sender<Message>, bytes_max: usize) -> Outgoing {
        Outgoing { number, queue: Mutex::default(), all, hub, bytes_max }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item that has no events.
    pub fn push(&self, item: Item) {
        self.add(self.queue(), item, Weight { large: 0, small: ITEM_BYTES });
    }

    /// Bytes of events for which there is room now.
    #[must_use]
    pub fn room(&self) -> usize {
        let queue = self.queue();
        self.room_beside(queue.bytes.small, &queue)
    }

    /// Whether events of this many bytes are large: they would have no room if nothing waited here.
    #[must_use]
    pub(super) fn is_large(&self, bytes: usize) -> bool {
        bytes > self.room_beside(0, &self.queue())
    }

    /// The room for events beside this many bytes.
    fn room_beside(&self, bytes: usize, queue: &Queue) -> usize {
        let others = self.all.bytes().saturating_sub(queue.extra() - bytes.saturating_sub(STREAM_BYTES_MIN));
        let extra = ALL_BYTES_MAX.saturating_sub(others) / SHARE;
        (STREAM_BYTES_MIN + extra).min(self.bytes_max).saturating_sub(bytes + ITEM_BYTES)
    }

    /// Adds events, if they have room. If not, the hub hears of it when they do.
    #[must_use]
    pub fn push_if_room(&self, item: Item, bytes: usize) -> bool {
        let mut queue = self.queue();
        queue.refused |= bytes > self.room_beside(queue.bytes.small, &queue);
        let takes = !queue.refused || queue.ended;
        if takes {
            self.add(queue, item, Weight { large: 0, small: bytes + ITEM_BYTES });
        }
        takes
    }

    /// Adds a large revision. The hub hears of it when it has left; until then there may be no other.
    pub fn push_large(&self, item: Item, bytes: usize) {
        let mut queue = self.queue();
        debug_assert!(queue.bytes.large == 0, "one at a time");
        queue.large_count += 1;
        self.add(queue, item, Weight { large: bytes, small: ITEM_BYTES });
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let Weight { large, small } = self.queue().bytes;
        large + small
    }

    /// Whether events were refused and the hub has not heard of room since.
    #[must_use]
    pub(super) fn is_full(&self) -> bool {
        self.queue().refused
    }

    fn add(&self, mut queue: MutexGuard<'_, Queue>, item: Item, bytes: Weight) {
        if queue.ended {
            return;
        }
        let before = queue.extra();
        queue.bytes += bytes;
        self.all.bytes.fetch_add(queue.extra() - before, Relaxed);
        queue.items.push_back((item, bytes));
        let wakes = if queue.items.len() == 1 { queue.sender.take() } else { None };
        wake(queue, wakes);
    }

    /// Takes the next item, which counts until it [has left](Outgoing::sent). `None`: the server ends the stream.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut queue = self.queue();
        if !queue.items.is_empty() {
            return Poll::Ready(self.pop(queue));
        }
        if queue.ended {
            return Poll::Ready(None);
        }
        queue.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The same, if there is an item.
    pub fn next(&self) -> Option<Item> {
        self.pop(self.queue())
    }

    fn pop(&self, mut queue: MutexGuard<'_, Queue>) -> Option<Item> {
        let (item, bytes) = queue.items.pop_front()?;
        queue.leaving.0 += 1;
        queue.leaving.1 += bytes;
        Some(item)
    }

    /// Records that all items that were taken have left.
    pub fn sent(&self) {
        let mut queue = self.queue();
        let before = queue.extra();
        let (_, left) = mem::take(&mut queue.leaving);
        queue.bytes -= left;
        self.all.bytes.fetch_sub(before - queue.extra(), Relaxed);
        // A failed send means that the server has ended.
        let tell = |request| _ = self.hub.send(Message::Request(self.number, request));
        if left.large > 0 {
            tell(Request::LargeLeft);
        }
        let room = self.room_beside(queue.bytes.small, &queue);
        if queue.refused && (queue.bytes.small == 0 || room >= STREAM_BYTES_MIN.min(self.bytes_max) / 2) {
            queue.refused = false;
            tell(Request::Room);
        }
        let wakes = queue.wakes_reader();
        wake(queue, wakes);
    }

    /// The large revision that waits or is leaving: which one of the stream, and its bytes.
    #[must_use]
    pub fn large(&self) -> Option<(u64, usize)> {
        let queue = self.queue();
        (queue.bytes.large > 0).then_some((queue.large_count, queue.bytes.large))
    }

    /// Whether streams wait for the place of a large revision.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.all.wanting.load(Relaxed) > 0
    }

    /// Records how many streams wait for such a place.
    pub(super) fn set_wanting(&self, streams: usize) {
        self.all.wanting.store(streams, Relaxed);
    }

    /// Records a request that the hub is to answer.
    pub fn asks(&self) {
        self.queue().asked += 1;
    }

    /// Records that the hub has answered a request, perhaps with no item.
    pub fn answered(&self) {
        let mut queue = self.queue();
        queue.asked -= 1;
        let wakes = queue.wakes_reader();
        wake(queue, wakes);
    }

    /// Whether few items and few requests wait.
    #[must_use]
    pub fn has_few(&self) -> bool {
        self.queue().has_few()
    }

    /// Waits until few items and few requests wait.
    pub fn poll_few(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue();
        if queue.has_few() {
            return Poll::Ready(());
        }
        queue.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the stream: nothing is added any more.
    pub fn end(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        self.all.bytes.fetch_sub(queue.extra(), Relaxed);
        (queue.bytes, queue.leaving) = Default::default();
        queue.items.clear();
        let wakes = queue.sender.take();
        wake(queue, wakes);
    }
}

/// Wakes a task once nobody holds the queue.
fn wake(queue: MutexGuard<'_, Queue>, waker: Option<Waker>) {
    drop(queue);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.end();
    }
}
