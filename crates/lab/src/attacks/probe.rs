//! Honest clients that put without a pause, one at each server.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use synod_api::etcdserverpb::{PutRequest, kv_client::KvClient};
use tokio::time::{sleep, timeout};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
};

use super::{
    cluster::{Cluster, channel},
    users,
};

/// A put that takes longer has failed.
const PUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two puts of a client.
const THINK_TIME: Duration = Duration::from_millis(5);
/// The refusals after which a new token helps.
const WANTS_TOKEN: [&str; 3] = [
    "etcdserver: user name is empty",
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
];
const VALUE: &[u8] = &[b'.'; 64];

#[derive(Clone, Copy, Debug)]
struct Put {
    place: usize,
    began: Instant,
    took: Duration,
    ok: bool,
}

/// Running clients. They have a thread of their own, so that an attack in this process does not delay them.
#[derive(Debug)]
pub struct Probe {
    done: Arc<Mutex<Vec<Put>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The results of clients in a span of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub ok: usize,
    pub failed: usize,
    pub median: Duration,
    pub p99: Duration,
    /// The longest time without a put that succeeded.
    pub gap: Duration,
}

/// All the puts of a probe that has ended.
#[derive(Debug)]
pub struct Puts(Vec<Put>);

impl Probe {
    /// Starts a client at each server.
    pub fn start(cluster: &Cluster) -> Result<Probe, String> {
        let failed = |error: std::io::Error| format!("the probe: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (done, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let addresses = cluster.servers.map(|server| server.client);
        let (shared, told) = (Arc::clone(&done), Arc::clone(&stop));
        let work = move || {
            runtime.block_on(async {
                let clients = [0, 1, 2].map(|place| put(place, addresses[place], &shared, &told));
                let [first, second, third] = clients;
                tokio::join!(first, second, third);
            });
        };
        let thread = thread::Builder::new().name("probe".into()).spawn(work).map_err(failed)?;
        Ok(Probe { done, stop, thread: Some(thread) })
    }

    /// Ends the clients.
    pub fn stop(mut self) -> Puts {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the probe does not panic");
        }
        Puts(self.done.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn put(place: usize, address: SocketAddr, done: &Mutex<Vec<Put>>, stop: &AtomicBool) {
    let mut client = KvClient::new(channel(address));
    let mut token = None;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let ok = timeout(PUT_TIMEOUT, async {
            match client.put(request(place, token.as_ref())).await {
                // Users count since, and it has to show who it is, as clients of etcd do by themselves.
                Err(status) if WANTS_TOKEN.contains(&status.message()) => {
                    token = users::token(address).await.ok().and_then(|token| token.parse().ok());
                    client.put(request(place, token.as_ref())).await.is_ok()
                }
                answer => answer.is_ok(),
            }
        });
        let ok = ok.await.unwrap_or(false);
        let put = Put { place, began, took: began.elapsed(), ok };
        done.lock().unwrap_or_else(PoisonError::into_inner).push(put);
        sleep(THINK_TIME).await;
    }
}

fn request(place: usize, token: Option<&MetadataValue<Ascii>>) -> Request<PutRequest> {
    let key = format!("probe/{place}").into();
    let mut request = Request::new(PutRequest { key, value: VALUE.into(), ..PutRequest::default() });
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

impl Puts {
    /// The puts that began in a span of time, at some of the servers.
    pub fn figures(&self, (from, to): (Instant, Instant), at: impl Fn(usize) -> bool) -> Figures {
        let within = |put: &&Put| at(put.place) && (from..to).contains(&put.began);
        let (mut took, mut failed) = (Vec::new(), 0);
        for put in self.0.iter().filter(within) {
            match put.ok {
                true => took.push(put.took),
                false => failed += 1,
            }
        }
        took.sort_unstable();
        let percentile = |percent| took.get(took.len() * percent / 100).copied().unwrap_or(Duration::MAX);
        // A put that began earlier or ends later also shows that the server serves.
        let mut ends: Vec<_> = self.0.iter().filter(|put| put.ok && at(put.place)).collect();
        ends.sort_unstable_by_key(|put| put.began + put.took);
        let (mut last, mut gap) = (from, Duration::ZERO);
        for end in ends.into_iter().map(|put| (put.began + put.took).clamp(from, to)).chain([to]) {
            gap = gap.max(end - last);
            last = end;
        }
        Figures { ok: took.len(), failed, median: percentile(50), p99: percentile(99), gap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_counts_where_it_began_and_silence_is_measured_to_the_ends() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let put =
            |place, began, took, ok| Put { place, began: at(began), took: Duration::from_millis(took), ok };
        let puts = Puts(vec![
            put(0, 90, 20, true),
            put(0, 120, 10, true),
            put(0, 140, 250, true),
            put(0, 300, 1, false),
            put(1, 200, 5, true),
        ]);
        let first = puts.figures((at(100), at(400)), |place| place == 0);
        assert_eq!((first.ok, first.failed), (2, 1));
        assert_eq!(first.p99, Duration::from_millis(250));
        assert_eq!(first.gap, Duration::from_millis(260));
        let all = puts.figures((at(100), at(400)), |_| true);
        assert_eq!((all.ok, all.gap), (3, Duration::from_millis(185)));
        let nobody = puts.figures((at(100), at(400)), |place| place == 2);
        assert_eq!((nobody.ok, nobody.gap), (0, Duration::from_millis(300)));
    }
}
