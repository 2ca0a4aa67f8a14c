//! The others who use the cluster: who they are before a load, and whether a load makes them wait.
//!
//! A cluster without others is loaded as far as it goes. Where there are others, a load ends as soon as one of two
//! things takes twice as long as before: a read of tune's own, which waits in the same queues as theirs, or a kind of
//! request of theirs, as members count it. What of theirs tune cannot tell from its own, puts, is judged by the read.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use synod_client::{Between, Client, Metrics, api::RangeRequest};

use super::cluster::{Cluster, client, refused};
use crate::{bench::TlsOptions, study::LabError};

/// How often the cluster is looked at during a load.
pub(super) const WATCHED_EVERY: Duration = Duration::from_millis(200);
/// Others are present from this many requests a second on, or with a watch.
const PRESENT_MIN: f64 = 1.0;
/// Their requests may take this many times as long as before.
const SLOWER_MAX: f64 = 2.0;
/// But this much longer is none the worse for anybody, in seconds.
const SLOWER_MIN: f64 = 0.001;
/// Requests, or reads of tune's own, that tell a mean.
const TELLING: usize = 5;
/// What tune itself asks for.
const OWN: [&str; 4] = [
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.Maintenance/Status",
    "/synod.v1.Native/Status",
    "/etcdserverpb.Cluster/MemberList",
];

/// What was seen of the cluster for a while.
#[derive(Debug)]
pub(super) struct Watched {
    /// What members counted at the beginning and at the end.
    pub(super) first: Vec<Metrics>,
    pub(super) last: Vec<Metrics>,
    /// Slots that the leader had under way, on average.
    pub(super) in_flight: f64,
    /// How long reads took, in seconds.
    reads: Vec<f64>,
}

/// Looks at a cluster.
pub(super) struct Watcher<'a> {
    cluster: &'a Cluster,
    tls: &'a TlsOptions,
    key: String,
}

impl Watcher<'_> {
    /// One that reads a key under this prefix.
    pub(super) fn new<'a>(cluster: &'a Cluster, tls: &'a TlsOptions, prefix: &str) -> Watcher<'a> {
        Watcher { cluster, tls, key: format!("{prefix}read") }
    }

    /// Looks for so long, or until `stop` becomes true; makes it true if what was there `before` takes too long now.
    pub(super) fn watch(
        &self,
        time: Duration,
        stop: &AtomicBool,
        before: Option<&Others>,
    ) -> Result<Watched, LabError> {
        on_a_runtime(async {
            let client = client(&self.cluster.urls(), self.tls)?;
            let first = all_pages(&client).await?;
            let mut watched = Watched { last: first.clone(), first, in_flight: 0.0, reads: Vec::new() };
            let ends_at = Instant::now() + time;
            let mut looks = 0.0;
            while Instant::now() < ends_at && !stop.load(Relaxed) {
                let began = Instant::now();
                let read = RangeRequest { key: self.key.clone().into(), ..RangeRequest::default() };
                client.get(read).await.map_err(refused)?;
                watched.reads.push(began.elapsed().as_secs_f64());
                watched.last = all_pages(&client).await?;
                looks += 1.0;
                let now = watched.last[0].value("synod_slots_in_flight", "").unwrap_or(0.0);
                watched.in_flight += (now - watched.in_flight) / looks;
                if before.is_some_and(|before| before.wait_longer(&watched)) {
                    stop.store(true, Relaxed);
                }
                thread::sleep(WATCHED_EVERY.saturating_sub(began.elapsed()));
            }
            Ok(watched)
        })
    }
}

/// What all members count of themselves.
pub(super) fn pages(cluster: &Cluster, tls: &TlsOptions) -> Result<Vec<Metrics>, LabError> {
    on_a_runtime(async { all_pages(&client(&cluster.urls(), tls)?).await })
}

async fn all_pages(client: &Client) -> Result<Vec<Metrics>, LabError> {
    client.metrics().await.into_iter().collect::<Result<_, _>>().map_err(refused)
}

fn on_a_runtime<T>(work: impl Future<Output = Result<T, LabError>>) -> Result<T, LabError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?.block_on(work)
}

/// Others' use of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Others {
    /// Their requests a second, and the mean time of these in seconds.
    pub(super) per_second: f64,
    pub(super) mean: Option<f64>,
    /// Their watches.
    pub(super) watches: f64,
    /// The mean time of each kind of request, in seconds.
    kinds: BTreeMap<String, f64>,
    /// The median of tune's own reads, in seconds.
    read: f64,
}

impl Others {
    /// What was seen while tune loaded nothing.
    pub(super) fn of(watched: &Watched) -> Others {
        let kinds = kinds(watched);
        let number: f64 = kinds.values().map(|(number, _)| number).sum::<f64>() - watched.reads.len() as f64;
        let seconds: f64 = kinds.values().map(|(_, seconds)| seconds).sum();
        let time = watched
            .first
            .iter()
            .zip(&watched.last)
            .map(|(before, after)| Between { before, after }.seconds());
        let time = time.fold(1e-9, f64::max);
        let puts = puts(watched);
        Others {
            per_second: (number.max(0.0) + puts) / time,
            mean: (number > 0.0).then(|| seconds / (number + watched.reads.len() as f64)),
            watches: watched.last.iter().filter_map(|page| page.value("synod_watches", "")).sum(),
            kinds: kinds.into_iter().map(|(kind, (number, seconds))| (kind, seconds / number)).collect(),
            read: median(&watched.reads),
        }
    }

    /// Whether there are any.
    pub(super) fn are_present(&self) -> bool {
        self.per_second >= PRESENT_MIN || self.watches > 0.0
    }

    /// Whether they wait for so much longer now that a load has to end.
    fn wait_longer(&self, now: &Watched) -> bool {
        let longer = |now: f64, then: f64| now > (then * SLOWER_MAX).max(then + SLOWER_MIN);
        let reads = now.reads.len() >= TELLING && longer(median(&now.reads), self.read);
        let kinds = kinds(now).into_iter().any(|(kind, (number, seconds))| {
            number >= TELLING as f64
                && self.kinds.get(&kind).is_some_and(|&then| longer(seconds / number, then))
        });
        self.are_present() && (reads || kinds)
    }
}

/// The requests of each kind, and how long they took together in seconds; none of the kinds of which tune has many
/// itself.
fn kinds(watched: &Watched) -> BTreeMap<String, (f64, f64)> {
    let mut kinds = BTreeMap::new();
    for (before, after) in watched.first.iter().zip(&watched.last) {
        let between = Between { before, after };
        for (method, _) in after.labelled("synod_request_seconds_count", "method") {
            if OWN.contains(&&*method) {
                continue;
            }
            let label = format!("method=\"{method}\"");
            let number = between.grown("synod_request_seconds_count", &label);
            let seconds = between.grown("synod_request_seconds_sum", &label);
            if number > 0.0 {
                let sum: &mut (f64, f64) = kinds.entry(method).or_default();
                *sum = (sum.0 + number, sum.1 + seconds);
            }
        }
    }
    kinds
}

/// Puts of anybody.
fn puts(watched: &Watched) -> f64 {
    let pairs = watched.first.iter().zip(&watched.last);
    pairs.map(|(before, after)| Between { before, after }.grown("synod_request_seconds_count", OWN[0])).sum()
}

fn median(times: &[f64]) -> f64 {
    crate::statistics::median(times).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kinds: &[(&str, u32, f64)]) -> Metrics {
        let lines = kinds.iter().map(|(method, number, seconds)| {
            format!(
                "synod_request_seconds_sum{{method=\"{method}\"}} {seconds}\n\
                 synod_request_seconds_count{{method=\"{method}\"}} {number}\n"
            )
        });
        Metrics::parse(&lines.collect::<String>())
    }

    fn watched(reads: &[f64], kinds: &[(&str, u32, f64)]) -> Watched {
        let none: Vec<_> = kinds.iter().map(|(method, ..)| (*method, 0, 0.0)).collect();
        Watched { first: vec![page(&none)], last: vec![page(kinds)], in_flight: 0.0, reads: reads.to_vec() }
    }

    const RANGE: &str = "/etcdserverpb.KV/Range";
    const TXN: &str = "/etcdserverpb.KV/Txn";

    #[test]
    fn nobody_waits_longer_where_there_are_no_others() {
        let nobody = Others::of(&watched(&[0.01; 6], &[(RANGE, 6, 0.06)]));
        assert!(!nobody.are_present());
        assert!(!nobody.wait_longer(&watched(&[1.0; 9], &[(RANGE, 9, 9.0)])));
    }

    #[test]
    fn others_who_wait_twice_as_long_end_a_load() {
        let before = Others::of(&watched(&[0.01; 6], &[(RANGE, 6, 0.06), (TXN, 30, 0.3)]));
        assert!(before.are_present());
        assert!(!before.wait_longer(&watched(&[0.015; 9], &[(RANGE, 9, 0.1), (TXN, 30, 0.5)])));
        assert!(before.wait_longer(&watched(&[0.025; 9], &[])), "by tune's own read");
        assert!(before.wait_longer(&watched(&[0.01; 9], &[(TXN, 30, 0.7)])), "by a kind of theirs");
        assert!(!before.wait_longer(&watched(&[0.01; 9], &[(TXN, 2, 0.7)])), "two are no mean");
        let puts = Others::of(&watched(&[0.01; 6], &[(RANGE, 6, 0.06), (OWN[0], 40, 0.4)]));
        assert!(puts.are_present() && puts.kinds.len() == 1);
    }

    #[test]
    fn a_millisecond_more_ends_no_load() {
        let before = Others::of(&watched(&[0.0002; 6], &[(TXN, 30, 0.006)]));
        assert!(!before.wait_longer(&watched(&[0.0008; 9], &[(TXN, 30, 0.03)])));
    }
}
