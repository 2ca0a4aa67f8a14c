//! etcd's hashes of compactions: what `HashKV` says of the revision at which the store was compacted is the hash of what there
//! was before, so that replicas and observers can compare what they held when some of them are compacted and others are not.
//!
//! The hash is made from a view by a thread of its own. One is made at a time, and the thread rests nine times as long as it
//! took: a compaction meanwhile gets no such hash, and `HashKV` is that of what is left, as after a restart.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use synod_api::etcdserverpb::HashKvResponse;
use synod_kv::View;
use tokio::time::sleep;

use crate::readers::give_way;

/// Hashes that are kept, as with etcd.
const KEPT_MAX: usize = 10;
/// How many times as long as a hash took none is made.
const REST: u32 = 9;
/// How often somebody who waits for a hash looks.
const GLANCE: Duration = Duration::from_millis(10);

/// The hashes of the last compactions.
#[derive(Debug, Default)]
pub(crate) struct CompactionHashes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The revision whose hash is being made.
    making: Option<i64>,
    /// No hash is made before.
    rests_until: Option<Instant>,
    /// By revision.
    made: VecDeque<HashKvResponse>,
    /// How often the store was replaced: a hash of the one before does not count.
    replaced: u64,
}

impl CompactionHashes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the hash of a revision at which the store is about to be compacted. It is called by the thread that executes
    /// commands.
    pub(crate) fn make(self: &Arc<CompactionHashes>, revision: i64, before: &dyn Fn() -> View) {
        let now = Instant::now();
        let replaced = {
            let mut state = self.state();
            if state.making.is_some() || state.rests_until.is_some_and(|until| now < until) {
                return;
            }
            state.making = Some(revision);
            state.replaced
        };
        let (hashes, view) = (Arc::clone(self), before());
        let made = thread::Builder::new().name("hash".into()).spawn(move || {
            give_way();
            let hash = view.hash_kv(revision);
            drop(view);
            hashes.made(hash.ok(), now, replaced);
        });
        if made.is_err() {
            self.made(None, now, replaced);
        }
    }

    /// The store is replaced by another one, which may have had other contents at these revisions.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.made.clear();
        state.replaced += 1;
    }

    fn made(&self, hash: Option<HashKvResponse>, began: Instant, replaced: u64) {
        let mut state = self.state();
        state.making = None;
        state.rests_until = Some(Instant::now() + began.elapsed() * REST);
        let hash = hash.filter(|_| state.replaced == replaced);
        state.made.extend(hash);
        if state.made.len() > KEPT_MAX {
            state.made.pop_front();
        }
    }

    /// The hash of a compaction's revision, if there is one or will be.
    pub(crate) async fn of(&self, revision: i64) -> Option<HashKvResponse> {
        loop {
            {
                let state = self.state();
                if let Some(made) = state.made.iter().find(|made| made.hash_revision == revision) {
                    return Some(*made);
                }
                if state.making != Some(revision) {
                    return None;
                }
            }
            sleep(GLANCE).await;
        }
    }
}
