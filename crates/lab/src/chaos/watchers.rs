//! Watchers that follow everything that happens in the store.
//!
//! Some know one replica and ask it for their watch again whenever it ends. The others leave their watch of their own
//! accord every moment, and ask another replica for it. All of them ask for the revision after the last one that they
//! were told. At the end a fresh watcher at each replica reads the history again, from the last compaction on.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use synod_client::{Client, Error, Watch, api::WatchCreateRequest};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{clients::client, cluster::Cluster, events::Ledger, operator::WAIT_MAX};

/// Watchers that go from one replica to another.
const ROAMING: usize = 2;
/// How long a roaming watcher stays, in milliseconds.
const STAY: std::ops::Range<u64> = 100..3_000;
/// How long a watcher waits for a response before it looks whether it is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The pause before a watch is asked for again at the same replica.
const PAUSE: Duration = Duration::from_millis(50);
/// The first revision at which something is written.
const FIRST: i64 = 2;

/// Running watchers.
#[derive(Debug)]
pub struct Watchers {
    shared: Arc<Shared>,
    each: Vec<Client>,
    tasks: JoinSet<()>,
}

/// What watchers share.
#[derive(Debug)]
pub struct Shared {
    stop: AtomicBool,
    ledger: Mutex<Ledger>,
    /// The highest revision at which a compaction was asked for.
    compacted: AtomicI64,
}

impl Shared {
    /// What was told.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last revision at which a compaction is in nobody's way, at most `revision`. It counts as asked for.
    pub fn compact(&self, revision: i64) -> i64 {
        let revision = revision.min(self.ledger().position() - 1);
        self.compacted.fetch_max(revision, Ordering::Relaxed);
        revision
    }
}

impl Watchers {
    /// Starts a watcher that stays with each endpoint, and two that roam.
    ///
    /// # Errors
    /// An endpoint is not an address.
    pub fn start(endpoints: &[String], seed: u64) -> Result<Watchers, Error> {
        let one = |endpoint| client(std::slice::from_ref(endpoint));
        let each: Vec<Client> = endpoints.iter().map(one).collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            ledger: Mutex::default(),
            compacted: AtomicI64::new(FIRST - 1),
        });
        let mut tasks = JoinSet::new();
        for (place, client) in each.iter().enumerate() {
            let number = shared.ledger().add(format!("the watcher at {}", Cluster::name(place)), FIRST);
            tasks.spawn(stay(client.clone(), number, Arc::clone(&shared), i64::MAX));
        }
        for roaming in 0..ROAMING {
            let number = shared.ledger().add(format!("roaming watcher {}", roaming + 1), FIRST);
            let random = Rng::with_seed(seed.wrapping_add(number as u64));
            tasks.spawn(roam(each.clone(), random, number, Arc::clone(&shared)));
        }
        Ok(Watchers { shared, each, tasks })
    }

    /// What the watchers share.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Waits until all watchers have been told everything up to a revision, or for as long as anything may take. Then a
    /// fresh one at each replica follows what is not compacted, and all end.
    pub async fn stop(&mut self, until: i64) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.shared.ledger().position() <= until && Instant::now() < deadline {
            sleep(PAUSE).await;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        self.shared.stop.store(false, Ordering::Relaxed);
        let first = self.shared.compacted.load(Ordering::Relaxed) + 1;
        for (place, client) in self.each.iter().enumerate() {
            let name = format!("the last watcher at {}", Cluster::name(place));
            let number = self.shared.ledger().add(name, first);
            self.tasks.spawn(stay(client.clone(), number, Arc::clone(&self.shared), until));
        }
        let all_end = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(WAIT_MAX, all_end).await;
        self.tasks.abort_all();
    }

    /// Ends all watchers, wherever they are.
    pub fn abort(&mut self) {
        self.tasks.abort_all();
    }
}

/// A watch of everything, from the revision on that a watcher is due.
fn watch(client: &Client, number: usize, shared: &Shared) -> Watch {
    let start_revision = shared.ledger().watchers()[number].next;
    let (key, range_end) = ("\0".into(), "\0".into());
    client.watch(WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() })
}

/// Follows at one endpoint, until a revision has been told.
async fn stay(client: Client, number: usize, shared: Arc<Shared>, until: i64) {
    let mut watch = watch(&client, number, &shared);
    while !shared.stop.load(Ordering::Relaxed) && shared.ledger().watchers()[number].next <= until {
        if !follow(&mut watch, number, &shared).await {
            shared.ledger().resumes(number);
            watch = self::watch(&client, number, &shared);
            sleep(PAUSE).await;
        }
    }
}

/// Follows at one endpoint after the other.
async fn roam(each: Vec<Client>, mut random: Rng, number: usize, shared: Arc<Shared>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let client = &each[random.usize(..each.len())];
        let mut watch = watch(client, number, &shared);
        let leaves = Instant::now() + Duration::from_millis(random.u64(STAY));
        while Instant::now() < leaves && !shared.stop.load(Ordering::Relaxed) {
            if !follow(&mut watch, number, &shared).await {
                break;
            }
        }
        shared.ledger().resumes(number);
    }
}

/// Waits a moment for a response. False: the watch must be asked for again.
async fn follow(watch: &mut Watch, number: usize, shared: &Shared) -> bool {
    match timeout(LOOK_INTERVAL, watch.next()).await {
        Err(_) => true,
        Ok(Ok(Some(told))) if told.canceled => {
            let (reason, compacted) = (told.cancel_reason, told.compact_revision);
            let what = format!("its watch was ended: {reason:?}, compacted at {compacted}");
            shared.ledger().violates(number, what);
            false
        }
        Ok(Ok(Some(told))) => {
            shared.ledger().note(number, &told.events);
            true
        }
        Ok(Ok(None) | Err(_)) => false,
    }
}
