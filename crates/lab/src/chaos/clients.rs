//! Clients that work without a pause over the etcd API.
//!
//! Some know one replica only and stay with it whatever happens: a replica that is cut off from the others is
//! still asked, and must not answer with stale data. The others know all replicas and go where they are served.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use synod_api::mvccpb::KeyValue;
use synod_client::{
    Client, Config, Error,
    api::{
        Compare, PutRequest, RangeRequest, RequestOp, ResponseHeader, TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
    },
};
use tokio::{task::JoinSet, time::sleep};

use super::history::{Answer, History, Op, Seen, name_of};

/// How long a request may take: longer than an election, so that some requests live through one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a failed request.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause between requests of one client, since clients share two processors with the replicas.
const THINK_TIME: Duration = Duration::from_millis(4);
/// Clients for each replica, and clients that know all replicas.
const CLIENTS: usize = 3;
/// Keys in use at a time. There are few, so that clients meet.
const KEYS: usize = 6;
/// After this many operations another key takes the place of one, so that the search for an order stays short.
const OPERATIONS_PER_KEY: u64 = 400;
/// Bytes that a value has besides its number, so that logs grow and disks fill up.
const PADDING: usize = 256;

/// Counts completed operations, and remembers the longest time without one.
#[derive(Debug)]
pub struct Pulse {
    completed: AtomicU64,
    gap: Mutex<(Instant, Duration)>,
}

impl Pulse {
    fn beat(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
        let mut gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        *gap = (Instant::now(), gap.1.max(gap.0.elapsed()));
    }

    /// Operations completed.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// The longest time without a completed operation since the last call, including one that still goes on.
    pub fn longest_gap(&self) -> Duration {
        let mut gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = gap.1.max(gap.0.elapsed());
        gap.1 = Duration::ZERO;
        longest
    }
}

/// What clients share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    history: History,
    pulse: Arc<Pulse>,
    /// The last number that was written. Each is written once.
    values: AtomicU64,
    /// Operations begun in each place of a key.
    used: [AtomicU64; KEYS],
}

/// Running clients.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    endpoints: Vec<String>,
    tasks: JoinSet<()>,
}

impl Clients {
    /// Starts three clients for each endpoint, and three that know all of them.
    ///
    /// # Errors
    /// An endpoint is not an address.
    pub fn start(endpoints: &[String], seed: u64) -> Result<Clients, Error> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            history: History::default(),
            pulse: Arc::new(Pulse {
                completed: AtomicU64::new(0),
                gap: Mutex::new((Instant::now(), Duration::ZERO)),
            }),
            values: AtomicU64::new(0),
            used: [const { AtomicU64::new(0) }; KEYS],
        });
        let mut tasks = JoinSet::new();
        let single = endpoints.iter().map(std::slice::from_ref);
        for (number, known) in single.chain([endpoints]).flat_map(|known| [known; CLIENTS]).enumerate() {
            let random = Rng::with_seed(seed.wrapping_add(number as u64));
            tasks.spawn(work(client(known)?, random, Arc::clone(&shared)));
        }
        Ok(Clients { shared, endpoints: endpoints.to_vec(), tasks })
    }

    /// The count of completed operations.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.shared.pulse)
    }

    /// Ends the clients, and reads every key once more: writes that were acknowledged long ago must still be there.
    ///
    /// # Errors
    /// A key cannot be read.
    pub async fn stop(&mut self) -> Result<(), Error> {
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let client = client(&self.endpoints)?;
        for key in 0..self.shared.keys() {
            let invoked = self.shared.history.begin();
            let seen = ask(&client, key, Op::Get).await?;
            self.shared.history.end(key, Op::Get, invoked, Some(seen));
        }
        Ok(())
    }

    /// The requests and answers.
    pub fn history(&self) -> &History {
        &self.shared.history
    }
}

impl Shared {
    /// The key to use next in a place.
    fn next_key(&self, place: usize) -> u32 {
        let generation = generation(self.used[place].fetch_add(1, Ordering::Relaxed));
        generation * KEYS as u32 + place as u32
    }

    /// An upper bound of the keys that were used: all keys lie below it.
    fn keys(&self) -> u32 {
        let most = self.used.iter().map(|used| used.load(Ordering::Relaxed)).max().unwrap_or(0);
        (generation(most) + 1) * KEYS as u32
    }
}

/// How many keys of a place have been replaced after this many operations.
fn generation(operations: u64) -> u32 {
    u32::try_from(operations / OPERATIONS_PER_KEY).unwrap_or(u32::MAX / KEYS as u32)
}

/// A client of these endpoints. It sends no request twice that may have been executed.
pub fn client(endpoints: &[String]) -> Result<Client, Error> {
    let mut config = Config::new(endpoints.iter().cloned());
    config.connect_timeout = Duration::from_millis(500);
    config.request_timeout = REQUEST_TIMEOUT;
    Client::new(config)
}

/// Reads, writes and swaps keys that other clients use too, and records the answers.
async fn work(client: Client, mut random: Rng, shared: Arc<Shared>) {
    let mut last_seen = [(0, 0); KEYS];
    while !shared.stop.load(Ordering::Relaxed) {
        let place = random.usize(..KEYS);
        let key = shared.next_key(place);
        let (of, value) = last_seen[place];
        let expected = if of == key { value } else { 0 };
        let fresh = || shared.values.fetch_add(1, Ordering::Relaxed) + 1;
        let op = match random.u8(..10) {
            0..4 => Op::Get,
            4..7 => Op::Put(fresh()),
            _ => Op::Swap { expected, new: fresh() },
        };
        let invoked = shared.history.begin();
        let outcome = ask(&client, key, op).await;
        // An operation that certainly was not executed is left out; if it was executed after all, a read reveals that.
        if outcome.as_ref().err().is_none_or(Error::may_have_executed) {
            shared.history.end(key, op, invoked, outcome.as_ref().ok().copied());
        }
        let Ok(seen) = outcome else {
            sleep(PAUSE).await;
            continue;
        };
        shared.pulse.beat();
        let value = match (seen.answer, op) {
            (Answer::Holds(value) | Answer::NotSwapped(value), _) => value,
            (_, Op::Put(value) | Op::Swap { new: value, .. }) => value,
            (_, Op::Get) => 0,
        };
        last_seen[place] = (key, value);
        sleep(THINK_TIME).await;
    }
}

/// Sends one request, in the client's way.
pub async fn ask(client: &Client, key: u32, op: Op) -> Result<Seen, Error> {
    let name = || name_of(key).into();
    let put = |value| PutRequest { key: name(), value: encode(value), ..PutRequest::default() };
    let range = || RangeRequest { key: name(), ..RangeRequest::default() };
    let revision = |header: Option<ResponseHeader>| header.map_or(0, |header| header.revision);
    Ok(match op {
        Op::Get => {
            let response = client.get(range()).await?;
            let (value, written_at) = held(&response.kvs);
            Seen { answer: Answer::Holds(value), revision: revision(response.header), written_at }
        }
        Op::Put(value) => {
            let response = client.put(put(value)).await?;
            Seen { answer: Answer::Written, revision: revision(response.header), written_at: 0 }
        }
        Op::Swap { expected, new } => {
            let (target, union) = match expected {
                0 => (CompareTarget::Create, TargetUnion::CreateRevision(0)),
                value => (CompareTarget::Value, TargetUnion::Value(encode(value))),
            };
            let compare = Compare {
                result: CompareResult::Equal.into(),
                target: target.into(),
                key: name(),
                target_union: Some(union),
                ..Compare::default()
            };
            let ops = |request| vec![RequestOp { request: Some(request) }];
            let txn = TxnRequest {
                compare: vec![compare],
                success: ops(Request::RequestPut(put(new))),
                failure: ops(Request::RequestRange(range())),
            };
            let response = client.txn(txn).await?;
            let read = match response.responses.first().and_then(|response| response.response.as_ref()) {
                Some(Response::ResponseRange(range)) => held(&range.kvs),
                _ => (0, 0),
            };
            let revision = revision(response.header);
            match response.succeeded {
                true => Seen { answer: Answer::Swapped, revision, written_at: 0 },
                false => Seen { answer: Answer::NotSwapped(read.0), revision, written_at: read.1 },
            }
        }
    })
}

fn encode(value: u64) -> bytes::Bytes {
    format!("{value}{}", ".".repeat(PADDING)).into()
}

/// The number that a key holds, and the revision at which it was written. A value that no client wrote
/// becomes a number that none writes, so that the check of the history reports it.
fn held(kvs: &[KeyValue]) -> (u64, i64) {
    let number = |value: &[u8]| {
        let text = std::str::from_utf8(value).ok()?.strip_suffix(&".".repeat(PADDING))?;
        text.parse().ok().filter(|&number| number > 0)
    };
    kvs.first().map_or((0, 0), |kv| (number(&kv.value).unwrap_or(u64::MAX), kv.mod_revision))
}
