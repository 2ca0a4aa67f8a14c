//! Contenders for a few locks with short leases, that write under the locks which they hold.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use synod_client::{
    Client, Error, Lock,
    api::{Compare, PutRequest, RequestOp, TxnRequest, request_op::Request},
};
use tokio::{
    runtime::Builder,
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    clients::client,
    events::{Known, Ledger},
    holds::{Fenced, Hold},
};

/// How many locks there are.
const LOCKS: u32 = 2;
/// The least time to live that a server grants.
const TTL: Duration = Duration::from_secs(2);
/// How long a lock is held, in milliseconds. Some holds need renewals.
const HOLDS: [std::ops::Range<u64>; 2] = [10..150, 500..3_000];
/// How long a contender waits for a lock before it leaves the queue, in milliseconds.
const WAITS: std::ops::Range<u64> = 1_000..8_000;
/// The pause between writes of a holder, and after a failure.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the contenders may take to end.
const END_MAX: Duration = Duration::from_secs(15);

/// Running contenders.
#[derive(Debug)]
pub struct Holders {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// What contenders share.
#[derive(Debug)]
struct Shared {
    began: Instant,
    stop: AtomicBool,
    /// The last number that was written. Each is written once.
    values: AtomicU64,
    record: Mutex<Record>,
}

/// What contenders saw.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Which contender held which lock when.
    pub holds: Vec<Hold>,
    /// Writes under a lock that were answered.
    pub written: Vec<(Fenced, Known)>,
    /// Writes that the fence refused.
    pub refused: u64,
    /// Holders that vanished without letting go.
    pub vanished: u64,
    /// Holders that lost their lock.
    pub lost: u64,
    /// Contenders that left the queue.
    pub left: u64,
    /// Leases that ended early.
    pub violations: Vec<String>,
}

impl Shared {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until the contenders are to end.
    async fn stopped(&self) {
        while !self.stops() {
            sleep(PAUSE).await;
        }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holders {
    /// Starts contenders for each lock: two that know all replicas, one for each replica that knows no other, and one
    /// that vanishes now and then.
    ///
    /// # Errors
    /// An endpoint is not an address.
    pub fn start(endpoints: &[String], seed: u64) -> Result<Holders, Error> {
        let (began, stop, values) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
        let shared = Arc::new(Shared { began, stop, values, record: Mutex::default() });
        let mut tasks = JoinSet::new();
        let mut who = 0;
        for lock in 0..LOCKS {
            let single = endpoints.iter().map(std::slice::from_ref);
            for known in single.chain([endpoints; 2]) {
                let random = Rng::with_seed(seed.wrapping_add(u64::from(who)));
                let contender = Contender { lock, who, random, shared: Arc::clone(&shared) };
                tasks.spawn(contender.work(client(known)?));
                who += 1;
            }
            let random = Rng::with_seed(seed.wrapping_add(u64::from(who)));
            let contender = Contender { lock, who, random, shared: Arc::clone(&shared) };
            let endpoints = endpoints.to_vec();
            let (ends, ended) = oneshot::channel::<()>();
            // It is no task, for which the runtime would wait after an interruption.
            thread::spawn(move || {
                contender.vanish_now_and_then(&endpoints);
                drop(ends);
            });
            tasks.spawn(async move { _ = ended.await });
            who += 1;
        }
        Ok(Holders { shared, tasks })
    }

    /// Ends the contenders.
    pub async fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let all_end = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(END_MAX, all_end).await;
        self.tasks.abort_all();
    }

    /// What they saw.
    pub fn record(&self) -> Record {
        self.shared.record().clone()
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// The writes under locks that watchers were told, also those whose writers got no answer.
pub fn told(ledger: &Ledger) -> Vec<Fenced> {
    let of_lock = |lock| {
        let key = guarded(lock);
        let fence = |value: &str| value.split('/').next()?.parse().ok();
        let of = |(revision, value): (i64, &str)| Some(Fenced { lock, fence: fence(value)?, revision });
        ledger.values(&key).filter_map(of).collect::<Vec<_>>()
    };
    (0..LOCKS).flat_map(of_lock).collect()
}

/// The key that is written under a lock.
fn guarded(lock: u32) -> String {
    format!("chaos-guarded/{lock}")
}

/// A contender for one lock.
struct Contender {
    lock: u32,
    who: u32,
    random: Rng,
    shared: Arc<Shared>,
}

impl Contender {
    /// Waits for the lock, holds it, and lets go of it, over and over.
    async fn work(mut self, client: Client) {
        while !self.shared.stops() {
            let Some(lock) = self.acquire(&client).await else { continue };
            let from = self.shared.now();
            self.hold(&client, &lock).await;
            let (fence, token, late) = (lock.fence(), lock.revision(), self.random.u8(..4));
            self.note(&lock, from);
            // In some cases a write is under way while the lock is let go, or comes afterwards.
            let write = self.write(&client, fence, token);
            match late {
                0 => _ = tokio::join!(lock.unlock(), write),
                1 => {
                    let _ = lock.unlock().await;
                    write.await;
                }
                2 => drop(lock),
                _ => _ = lock.unlock().await,
            }
            sleep(PAUSE).await;
        }
    }

    /// Does the same in a runtime of its own for each lock, which ends while the lock is held. Then nobody renews the
    /// lease, and nobody lets go, as if the process had been killed.
    fn vanish_now_and_then(mut self, endpoints: &[String]) {
        while !self.shared.stops() {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            let Ok(client) = client(endpoints) else { return };
            let held = runtime.block_on(async {
                let lock = self.acquire(&client).await?;
                let from = self.shared.now();
                self.hold(&client, &lock).await;
                Some((lock, from))
            });
            runtime.shutdown_background();
            if let Some((lock, from)) = held {
                let until = lock.held_until().saturating_duration_since(self.shared.began);
                let hold = Hold { lock: self.lock, who: self.who, fence: lock.revision(), from, until };
                self.shared.record().holds.push(hold);
                self.shared.record().vanished += 1;
            }
            let goes_on = Instant::now() + Duration::from_millis(self.random.u64(0..4_000));
            while Instant::now() < goes_on && !self.shared.stops() {
                thread::sleep(PAUSE);
            }
        }
    }

    async fn acquire(&mut self, client: &Client) -> Option<Lock> {
        let name = format!("chaos-lock/{}", self.lock);
        let wait = Duration::from_millis(self.random.u64(WAITS));
        tokio::select! {
            locked = client.lock(name, TTL) => match locked {
                Ok(lock) => return Some(lock),
                Err(_) => sleep(PAUSE).await,
            },
            () = sleep(wait) => self.shared.record().left += 1,
            () = self.shared.stopped() => {}
        }
        None
    }

    /// Holds a lock for some time and writes meanwhile, until the lock is lost.
    async fn hold(&mut self, client: &Client, lock: &Lock) {
        let range = &HOLDS[usize::from(self.random.u8(..8) == 0)];
        let ends = Instant::now() + Duration::from_millis(self.random.u64(range.clone()));
        let (mut sure_until, mut lost) = (lock.held_until(), false);
        let mut is_lost = pin!(lock.lost());
        while Instant::now() < ends && !lost && !self.shared.stops() {
            sure_until = sure_until.max(lock.held_until());
            tokio::select! {
                () = &mut is_lost => lost = true,
                () = async {
                    self.write(client, lock.fence(), lock.revision()).await;
                    sleep(PAUSE).await;
                } => {}
            }
        }
        let now = Instant::now();
        let mut record = self.shared.record();
        record.lost += u64::from(lost);
        if lost && now < sure_until {
            let (who, key, early) = (self.who, lock.key(), sure_until - now);
            record
                .violations
                .push(format!("contender {who} lost {key:?} {early:?} before its lease ran out"));
        }
    }

    /// Records that the lock was held until now, or until its lease ran out.
    fn note(&self, lock: &Lock, from: Duration) {
        let now = self.shared.now();
        let until = lock.held_until().saturating_duration_since(self.shared.began).min(now);
        let hold = Hold { lock: self.lock, who: self.who, fence: lock.revision(), from, until };
        self.shared.record().holds.push(hold);
    }

    /// Writes if the fence allows it.
    async fn write(&self, client: &Client, fence: Compare, token: i64) {
        let (key, number) = (guarded(self.lock), self.shared.values.fetch_add(1, Ordering::Relaxed));
        let value = format!("{token}/{}/{number}", self.who);
        let put =
            PutRequest { key: key.clone().into(), value: value.clone().into(), ..PutRequest::default() };
        let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
        let request = TxnRequest { compare: vec![fence], success, ..TxnRequest::default() };
        match client.txn(request).await {
            Ok(answer) if answer.succeeded => {
                let revision = answer.header.map_or(0, |header| header.revision);
                let fenced = Fenced { lock: self.lock, fence: token, revision };
                self.shared.record().written.push((fenced, Known { revision, key, value }));
            }
            Ok(_) => self.shared.record().refused += 1,
            Err(_) => sleep(PAUSE).await,
        }
    }
}
