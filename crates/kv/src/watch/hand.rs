//! The hand-over from the thread that executes commands to the hub. It is bounded in bytes, and the store never waits:
//! when the bound is reached, the hub is told that it has lost something, and no more until it asks for a view.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    mpsc::Sender,
};

use super::message::Message;
use crate::{Commit, Compactions, Event, Feed, View};

/// Bytes of commits that may be on their way to the hub.
pub const HANDED_BYTES_MAX: usize = 32 << 20;

/// What a commit counts besides its events.
const COMMIT_BYTES: usize = 64;

/// The store's end of the hand-over, and what the hub wants of the store.
#[derive(Debug)]
pub struct Hand {
    messages: Sender<Message>,
    events: AtomicBool,
    /// The number of the view that is wanted, or 0.
    view: AtomicU64,
    bytes: AtomicUsize,
    bytes_max: usize,
    compactions: Option<Arc<dyn Compactions>>,
}

impl Hand {
    /// A hand-over to the hub that takes these messages, within [`HANDED_BYTES_MAX`], and of compactions to somebody
    /// else.
    #[must_use]
    pub fn new(messages: Sender<Message>, compactions: Option<Arc<dyn Compactions>>) -> Hand {
        Hand { compactions, ..Hand::bounded(messages, HANDED_BYTES_MAX) }
    }

    /// One within other bounds, to the hub alone.
    #[must_use]
    pub fn bounded(messages: Sender<Message>, bytes_max: usize) -> Hand {
        let (events, view, bytes) = Default::default();
        Hand { messages, events, view, bytes, bytes_max, compactions: None }
    }

    /// Asks for a view, and for all commits after it. The store sees the first wish no later than the second.
    pub(super) fn want_view(&self, number: u64) {
        self.events.store(true, SeqCst);
        self.view.store(number, SeqCst);
    }

    pub(super) fn want_nothing(&self) {
        self.view.store(0, SeqCst);
        self.events.store(false, SeqCst);
    }

    /// The hub has taken a commit of this many bytes.
    pub(super) fn taken(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, SeqCst);
    }

    fn send(&self, message: Message) {
        // A failed send means that the server has ended.
        let _ = self.messages.send(message);
    }
}

impl Feed for Hand {
    fn wants_events(&self) -> bool {
        self.events.load(SeqCst)
    }

    fn wants_view(&self) -> bool {
        self.view.load(SeqCst) != 0
    }

    fn committed(&self, commit: Commit) {
        let bytes = COMMIT_BYTES + commit.events.iter().map(Event::bytes).sum::<usize>();
        if self.bytes.load(SeqCst) + bytes > self.bytes_max {
            self.events.store(false, SeqCst);
            self.send(Message::Lost);
            return;
        }
        self.bytes.fetch_add(bytes, SeqCst);
        self.send(Message::Committed(commit, bytes));
    }

    fn compacting(&self, revision: i64, before: &dyn Fn() -> View) {
        if let Some(compactions) = &self.compactions {
            Arc::clone(compactions).compacting(revision, before);
        }
    }

    fn compacted(&self, revision: i64) {
        if self.wants_events() {
            self.send(Message::Compacted(revision));
        }
    }

    fn view(&self, view: View) {
        let number = self.view.swap(0, SeqCst);
        self.send(Message::View(number, Box::new(view)));
    }

    fn replaced(&self) {
        if let Some(compactions) = &self.compactions {
            compactions.replaced();
        }
        self.missed();
    }

    fn missed(&self) {
        if self.wants_events() {
            self.send(Message::Lost);
        }
    }
}
