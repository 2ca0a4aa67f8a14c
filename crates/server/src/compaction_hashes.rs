//! etcd's hashes of compactions: what `HashKV` says of the revision at which the store was compacted is the hash of
//! what there was before, so that replicas and observers can compare what they held when some of them are compacted and
//! others are not.
//!
//! The hash is made from a view by a thread of its own. One is made at a time, and the thread rests nine times as long
//! as it took. The next compactions wait for it with their views, at most two of them, if hashes are made quickly.
//! Others get no such hash, and `HashKV` is that of what is left, as after a restart: a view that waits keeps what its
//! compaction drops.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use synod_api::etcdserverpb::HashKvResponse;
use synod_kv::{Compactions, View};
use tokio::time::sleep;

use crate::readers::give_way;

/// Hashes that are kept, as with etcd.
const KEPT_MAX: usize = 10;
/// Views that wait.
const WAITING_MAX: usize = 2;
/// None waits where a hash takes longer.
const QUICK: Duration = Duration::from_millis(100);
/// How many times as long as a hash took none is made.
const REST: u32 = 9;
/// How often somebody who waits for a hash looks.
const GLANCE: Duration = Duration::from_millis(10);

/// The hashes of the last compactions.
#[derive(Debug, Default)]
pub(crate) struct CompactionHashes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether there is a thread that makes hashes.
    has_thread: bool,
    /// The revision whose hash is being made.
    making: Option<i64>,
    /// The compactions whose hashes are made next.
    waiting: VecDeque<Waiting>,
    /// The last hash took too long for others to wait.
    is_slow: bool,
    /// By revision.
    made: VecDeque<HashKvResponse>,
    /// How often the store was replaced: a hash of the one before does not count.
    replaced: u64,
}

/// A compaction whose hash is not made yet.
#[derive(Debug)]
struct Waiting {
    revision: i64,
    /// What there is until then.
    view: View,
    /// [`State::replaced`] when the view was made.
    replaced: u64,
}

/// It is called by the thread that executes commands.
impl Compactions for CompactionHashes {
    fn compacting(self: Arc<Self>, revision: i64, before: &dyn Fn() -> View) {
        {
            let mut state = self.state();
            // A view that waits is not given up for a later one: this thread would have to free what only that view
            // holds.
            if state.has_thread && (state.is_slow || state.waiting.len() == WAITING_MAX) {
                return;
            }
            let waiting = Waiting { revision, view: before(), replaced: state.replaced };
            state.waiting.push_back(waiting);
            if mem::replace(&mut state.has_thread, true) {
                return;
            }
        }
        let hashes = Arc::clone(&self);
        if thread::Builder::new().name("hash".into()).spawn(move || hashes.make_all()).is_err() {
            let mut state = self.state();
            state.has_thread = false;
            state.waiting.clear();
        }
    }

    fn replaced(&self) {
        let mut state = self.state();
        state.made.clear();
        state.replaced += 1;
    }
}

impl CompactionHashes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the hashes that are due, until none is.
    fn make_all(&self) {
        give_way();
        loop {
            let Waiting { revision, view, replaced } = {
                let mut state = self.state();
                let Some(next) = state.waiting.pop_front() else {
                    state.has_thread = false;
                    return;
                };
                state.making = Some(next.revision);
                next
            };
            let began = Instant::now();
            let hash = view.hash_kv(revision);
            drop(view);
            let took = began.elapsed();
            drop(self.made(hash.ok(), replaced, took > QUICK));
            thread::sleep(took * REST);
        }
    }

    /// Keeps a hash; returns what waits no more.
    fn made(&self, hash: Option<HashKvResponse>, replaced: u64, is_slow: bool) -> VecDeque<Waiting> {
        let mut state = self.state();
        state.making = None;
        let hash = hash.filter(|_| state.replaced == replaced);
        state.made.extend(hash);
        if state.made.len() > KEPT_MAX {
            state.made.pop_front();
        }
        state.is_slow = is_slow;
        if is_slow { mem::take(&mut state.waiting) } else { VecDeque::new() }
    }

    /// The hash of a compaction's revision, if there is one or will be.
    pub(crate) async fn of(&self, revision: i64) -> Option<HashKvResponse> {
        loop {
            {
                let state = self.state();
                if let Some(made) = state.made.iter().find(|made| made.hash_revision == revision) {
                    return Some(*made);
                }
                let mut waiting = state.waiting.iter().map(|waiting| waiting.revision);
                if state.making != Some(revision) && !waiting.any(|waits| waits == revision) {
                    return None;
                }
            }
            sleep(GLANCE).await;
        }
    }
}
