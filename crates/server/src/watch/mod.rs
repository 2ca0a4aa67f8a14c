//! etcd's service Watch: clients are told what changes, from any revision that is not compacted on.
//!
//! ```text
//! executor ── commits, views ──> hub ──> outgoing queues ──> tasks of streams ──> clients
//!             bounded            run()                       stream.rs
//! ```
//!
//! What needs no thread, the hub above all, is in [`synod_kv::watch`]. Each replica tells its clients what it has
//! executed itself. The thread that executes commands hands each commit over by reference and never waits; without
//! watchers it makes no events at all.

mod follower;
mod stream;

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use synod_api::etcdserverpb::HashKvResponse;
use synod_kv::{
    Compactions, Feed,
    watch::{
        ALL_BYTES_MAX, All, HANDED_BYTES_MAX, Hand, Hub, Message, Outgoing, RECENT_BYTES_MAX, Request,
        StreamNumber,
    },
};

pub(crate) use self::{
    follower::{Followed, Follower},
    stream::{serve, until_slow},
};
use crate::compaction_hashes::CompactionHashes;

/// Messages that are taken before watchers get what they are to be told.
const BURST_MAX: usize = 1024;
/// How long the hub waits for a view before it asks again: a replica may be too busy to take the question.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What watches of one store go through: a part that the store is given ([`Watches::feed`]), and the hub, which runs
/// once a server is started with it.
#[derive(Clone)]
pub struct Watches(Arc<Shared>);

struct Shared {
    hand: Arc<Hand>,
    hashes: Arc<CompactionHashes>,
    messages: Sender<Message>,
    /// For the thread that is started with the server.
    received: Mutex<Option<Receiver<Message>>>,
    streams: AtomicU64,
    /// What waits on all streams.
    waiting: Arc<All>,
    watchers: AtomicUsize,
    behind: AtomicUsize,
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watches")
    }
}

impl Default for Watches {
    fn default() -> Watches {
        Watches::new()
    }
}

impl Watches {
    /// Watches of a store that is still to be made.
    #[must_use]
    pub fn new() -> Watches {
        let hashes = Arc::<CompactionHashes>::default();
        Watches::with(Arc::clone(&hashes), Some(hashes))
    }

    /// Watches without hashes of compactions, which a thread makes.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn without_hashes() -> Watches {
        Watches::with(Arc::default(), None)
    }

    fn with(hashes: Arc<CompactionHashes>, compactions: Option<Arc<dyn Compactions>>) -> Watches {
        let (messages, received) = mpsc::channel();
        let hand = Arc::new(Hand::new(messages.clone(), compactions));
        let (streams, waiting, watchers, behind) = Default::default();
        let received = Mutex::new(Some(received));
        Watches(Arc::new(Shared { hand, hashes, messages, received, streams, waiting, watchers, behind }))
    }

    /// Most bytes of events that are kept for watches, those of a view that watchers read excepted.
    pub(crate) const BYTES_MAX: u64 = (HANDED_BYTES_MAX + RECENT_BYTES_MAX + 2 * ALL_BYTES_MAX) as u64;

    /// The store's end, for [`KvStore::feeding`](synod_kv::KvStore::feeding).
    #[must_use]
    pub fn feed(&self) -> Arc<dyn Feed> {
        self.0.hand.clone()
    }

    /// Starts the hub. `ask` asks the store anything, so that it looks at what its feed wants.
    pub(crate) fn start(&self, ask: impl Fn() + Send + 'static) -> io::Result<()> {
        let received = self.0.received.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(received) = received else {
            return Err(io::Error::other("these watches belong to another server already"));
        };
        let shared = Arc::clone(&self.0);
        let run = move || run(&shared, &received, ask);
        thread::Builder::new().name("watch".into()).spawn(run).map(drop)
    }

    /// The hub, to run without a thread.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn still(&self) -> Option<Still> {
        let received = self.0.received.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Still { hub: Hub::new(Arc::clone(&self.0.hand)), received })
    }

    /// Ends all streams, and the hub.
    pub(crate) fn stop(&self) {
        let _ = self.0.messages.send(Message::Stop);
    }

    /// Watches that are open, and how many of them have not been told everything yet.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.0.watchers.load(Relaxed), self.0.behind.load(Relaxed))
    }

    /// The hash of a compaction, if there is one.
    pub(crate) async fn hash_of(&self, revision: i64) -> Option<HashKvResponse> {
        self.0.hashes.of(revision).await
    }

    /// Opens a stream.
    fn open(&self) -> Opened {
        let number = self.0.streams.fetch_add(1, Relaxed);
        let messages = self.0.messages.clone();
        let out = Arc::new(Outgoing::new(number, Arc::clone(&self.0.waiting), messages.clone()));
        let opened = Opened { number, out: Arc::clone(&out), messages };
        opened.ask(Request::Open(out));
        opened
    }
}

/// A stream's way to the hub. Dropping it closes the stream.
struct Opened {
    number: StreamNumber,
    out: Arc<Outgoing>,
    messages: Sender<Message>,
}

impl Opened {
    fn ask(&self, request: Request) {
        if request.is_answered() {
            self.out.asks();
        }
        if self.messages.send(Message::Request(self.number, request)).is_err() {
            // The hub has ended.
            self.out.end();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.ask(Request::Close);
    }
}

/// A hub that does nothing by itself.
#[cfg(feature = "fuzzing")]
pub(crate) struct Still {
    hub: Hub,
    received: Receiver<Message>,
}

#[cfg(feature = "fuzzing")]
impl Still {
    /// Does all that there is to do. `ask` is that of [`Watches::start`].
    pub(crate) fn run(&mut self, ask: impl Fn()) {
        loop {
            let messages: Vec<_> = self.received.try_iter().collect();
            let is_idle = messages.is_empty() && !self.hub.has_work();
            messages.into_iter().for_each(|message| self.hub.take(message));
            self.hub.end_burst();
            self.hub.work();
            match self.hub.waits_for_view() {
                Some(_) => ask(),
                None if is_idle => return,
                None => {}
            }
        }
    }
}

fn run(shared: &Shared, received: &Receiver<Message>, ask: impl Fn()) {
    let mut hub = Hub::new(Arc::clone(&shared.hand));
    let mut asked: Option<(u64, Instant)> = None;
    loop {
        let first = if hub.has_work() {
            received.try_recv().ok()
        } else if hub.waits_for_view().is_some() {
            match received.recv_timeout(ASK_AGAIN_AFTER) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        } else {
            let Ok(message) = received.recv() else { return };
            Some(message)
        };
        for message in first.into_iter().chain(received.try_iter().take(BURST_MAX)) {
            let stops = matches!(message, Message::Stop);
            hub.take(message);
            if stops {
                return;
            }
        }
        hub.end_burst();
        hub.work();
        let (watchers, behind) = hub.counts();
        shared.watchers.store(watchers, Relaxed);
        shared.behind.store(behind, Relaxed);
        if let Some(number) = hub.waits_for_view()
            && asked.is_none_or(|(of, at)| of != number || at.elapsed() >= ASK_AGAIN_AFTER)
        {
            asked = Some((number, Instant::now()));
            ask();
        }
    }
}
