//! Clients that never rest, over the official Rust client of etcd.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_client::{Client, Compare, CompareOp, ConnectOptions, Error, Txn, TxnOp, TxnOpResponse};
use tokio::{task::JoinSet, time::sleep};

use synod_lab::chaos::history::{Answer, History, Op, Seen};

/// How long one request may take: longer than an election, so that some requests live through one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between a failed request and the next.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause between the requests of one client, which leaves the replicas some time on two processors that
/// many clients share.
const THINK_TIME: Duration = Duration::from_millis(2);
/// There are few keys, so that clients meet.
const KEYS: u32 = 4;

/// A client of these endpoints.
pub async fn connect(endpoints: &[String]) -> Client {
    let options =
        ConnectOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(Duration::from_millis(500));
    Client::connect(endpoints, Some(options)).await.expect("endpoints are well formed; nothing is sent yet")
}

/// Acknowledged writes of the writers.
#[derive(Debug)]
struct Acknowledged {
    count: u64,
    last: Instant,
    /// The longest time between two of them since this was last read.
    gap: Duration,
}

impl Acknowledged {
    fn add(&mut self) {
        self.count += 1;
        self.gap = self.gap.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

/// All clients that run.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    pub history: Arc<History>,
    acknowledged: Arc<Mutex<Acknowledged>>,
    /// The next value that `meet` writes, so that every number is written once.
    values: Arc<AtomicU64>,
    writers: JoinSet<Vec<String>>,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts a writer for each endpoint, one for all of them, and four clients that read, write and swap.
    pub fn start(endpoints: &[String]) -> Load {
        let mut load = Load {
            stop: Arc::default(),
            history: Arc::default(),
            acknowledged: Arc::new(Mutex::new(Acknowledged {
                count: 0,
                last: Instant::now(),
                gap: Duration::ZERO,
            })),
            values: Arc::new(AtomicU64::new(1)),
            writers: JoinSet::new(),
            clients: JoinSet::new(),
        };
        let single = endpoints.iter().map(std::slice::from_ref);
        single.chain([endpoints]).for_each(|endpoints| load.add_writer(endpoints));
        (0..4).for_each(|_| load.add_client(endpoints));
        load
    }

    /// Adds a writer and a client for one more replica.
    pub fn join(&mut self, endpoint: &String) {
        let only = std::slice::from_ref(endpoint);
        self.add_writer(only);
        self.add_client(only);
    }

    fn add_writer(&mut self, endpoints: &[String]) {
        let (stop, count) = (self.stop.clone(), self.acknowledged.clone());
        self.writers.spawn(write(self.writers.len(), endpoints.to_vec(), stop, count));
    }

    fn add_client(&mut self, endpoints: &[String]) {
        let (stop, history, values) = (self.stop.clone(), self.history.clone(), self.values.clone());
        let seed = self.clients.len() as u64;
        self.clients.spawn(meet(seed, endpoints.to_vec(), stop, history, values));
    }

    /// How many writes were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.lock().unwrap().count
    }

    /// The longest time without an acknowledged write since this was last called.
    pub fn longest_gap(&self) -> Duration {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        let gap = acknowledged.gap.max(acknowledged.last.elapsed());
        acknowledged.gap = Duration::ZERO;
        acknowledged.last = Instant::now();
        gap
    }

    /// Ends the load; returns the keys whose writes were acknowledged.
    pub async fn stop(mut self) -> (Vec<String>, Arc<History>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut keys = Vec::new();
        while let Some(written) = self.writers.join_next().await {
            keys.extend(written.expect("a writer does not panic"));
        }
        while let Some(client) = self.clients.join_next().await {
            client.expect("a client does not panic");
        }
        (keys, self.history)
    }
}

/// Writes one key after the other, each once; returns those that were acknowledged.
async fn write(
    number: usize,
    endpoints: Vec<String>,
    stop: Arc<AtomicBool>,
    count: Arc<Mutex<Acknowledged>>,
) -> Vec<String> {
    let mut client = connect(&endpoints).await;
    let mut acknowledged = Vec::new();
    for sequence in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("load/{number}/{sequence:08}");
        match client.put(key.clone(), sequence.to_string(), None).await {
            Ok(_) => {
                acknowledged.push(key);
                count.lock().unwrap().add();
                sleep(THINK_TIME).await;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
    acknowledged
}

/// Reads, writes and swaps a few keys that others use too, and records what it sees.
async fn meet(
    seed: u64,
    endpoints: Vec<String>,
    stop: Arc<AtomicBool>,
    history: Arc<History>,
    values: Arc<AtomicU64>,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = connect(&endpoints).await;
    let mut last_seen = [0; KEYS as usize];
    while !stop.load(Ordering::Relaxed) {
        let key = random.u32(..KEYS);
        let fresh = || values.fetch_add(1, Ordering::Relaxed);
        let op = match random.u8(..10) {
            0..4 => Op::Get,
            4..7 => Op::Put(fresh()),
            _ => Op::Swap { expected: last_seen[key as usize], new: fresh() },
        };
        let invoked = history.begin();
        let seen = ask(&mut client, key, op).await.ok();
        history.end(key, op, invoked, seen);
        match (seen.map(|seen| seen.answer), op) {
            (Some(Answer::Holds(value)), _) | (Some(Answer::Written), Op::Put(value)) => {
                last_seen[key as usize] = value;
            }
            (Some(Answer::Swapped), Op::Swap { new, .. }) => last_seen[key as usize] = new,
            _ => {}
        }
        sleep(if seen.is_some() { THINK_TIME } else { PAUSE }).await;
    }
}

async fn ask(client: &mut Client, key: u32, op: Op) -> Result<Seen, Error> {
    let name = format!("met/{key}");
    let revision =
        |header: Option<&etcd_client::ResponseHeader>| header.map_or(0, |header| header.revision());
    match op {
        Op::Get => {
            let response = client.get(name, None).await?;
            let revision = revision(response.header());
            Ok(match response.kvs().first() {
                Some(kv) => Seen {
                    answer: Answer::Holds(number(kv.value())),
                    revision,
                    written_at: kv.mod_revision(),
                },
                None => Seen { answer: Answer::Holds(0), revision, written_at: 0 },
            })
        }
        Op::Put(value) => {
            let response = client.put(name, value.to_string(), None).await?;
            Ok(Seen { answer: Answer::Written, revision: revision(response.header()), written_at: 0 })
        }
        Op::Swap { expected, new } => {
            let compare = match expected {
                0 => Compare::create_revision(name.clone(), CompareOp::Equal, 0),
                value => Compare::value(name.clone(), CompareOp::Equal, value.to_string()),
            };
            let txn = Txn::new()
                .when([compare])
                .and_then([TxnOp::put(name.clone(), new.to_string(), None)])
                .or_else([TxnOp::get(name, None)]);
            let response = client.txn(txn).await?;
            let held = match response.op_responses().first() {
                Some(TxnOpResponse::Get(get)) => {
                    get.kvs().first().map(|kv| (number(kv.value()), kv.mod_revision()))
                }
                _ => None,
            };
            let (held, written_at) = held.unwrap_or((0, 0));
            let answer = if response.succeeded() { Answer::Swapped } else { Answer::NotSwapped(held) };
            Ok(Seen { answer, revision: revision(response.header()), written_at })
        }
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("only numbers are written here")
}
