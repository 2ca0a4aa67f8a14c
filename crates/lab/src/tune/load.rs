//! Loads on keys of tune's own, and what clients and members saw of them.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use synod_api::etcdserverpb::{DeleteRangeRequest, kv_client::KvClient};
use synod_client::Between;

use super::{
    cluster::{Cluster, refused},
    others::{Others, WATCHED_EVERY, Watched, Watcher, pages},
    say,
};
use crate::{
    bench::{self, BenchError, Ended, Operation, Options, TlsOptions, target::Target},
    calibrate::{fit::Row, sample::Counters},
    study::{Conduct, LabError},
};

/// What all keys of tune begin with; a number of the run follows.
const PREFIX: &str = "synod-tune/";
/// Bytes of the number of a key, and how many keys there are.
const NUMBER_BYTES: usize = 8;
const KEYS: u64 = 10_000;
/// Bytes of a key.
const KEY_BYTES: usize = PREFIX.len() + 16 + 1 + NUMBER_BYTES;
/// What a put has in a message besides its value: the key, and what the API writes around both.
const PUT_BYTES: usize = KEY_BYTES + 12;
/// What a version of a key takes in the store besides its value, roughly.
const VERSION_BYTES: usize = KEY_BYTES + 200;
/// The largest value of the last load, unless the others are larger.
const LARGER_MAX: usize = 16 << 10;
/// What is left out at the beginning of a load.
const WARM_UP: Duration = Duration::from_millis(500);
/// A cluster that has not been loaded is taken to do no more puts a second than this.
const RATE_AT_FIRST: f64 = 1000.0;
/// The share of the quota that a load may leave the store at.
const QUOTA_SHARE: f64 = 0.7;
/// How long a member may take to remove the keys.
const REMOVED_WITHIN: Duration = Duration::from_secs(5);

/// What came of a load.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) clients: usize,
    pub(super) value_bytes: usize,
    pub(super) puts_per_second: f64,
    pub(super) median_ms: f64,
    pub(super) p99_ms: f64,
    /// What a put cost the generator, in nanoseconds of a processor.
    pub(super) client_nanos: f64,
    /// What each member did, a second, the leader first.
    pub(super) members: Vec<Rates>,
    /// Slots that the leader had under way, on average of some looks.
    pub(super) in_flight: f64,
    /// Processors of this machine that neither the members nor this program kept busy, if all of them are on it and the
    /// system tells.
    pub(super) elsewhere: Option<f64>,
}

/// What a member did, a second.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    pub(super) name: String,
    /// What it spent, and on what.
    pub(super) counted: Counters,
    /// The share of time in which each stage worked.
    pub(super) protocol: f64,
    pub(super) log: f64,
    pub(super) executor: f64,
    /// The mean time of a commit to its log, in seconds.
    pub(super) commit: Option<f64>,
}

impl Rates {
    fn of(name: &str, between: Between<'_>) -> Rates {
        Rates {
            name: name.to_owned(),
            counted: Counters::of(between),
            protocol: between.rate("synod_protocol_busy_seconds_total", ""),
            log: between.rate("synod_log_busy_seconds_total", ""),
            executor: between.rate("synod_executor_busy_seconds_total", ""),
            commit: between.mean("synod_log_commit_seconds", ""),
        }
    }
}

impl Measured {
    /// A row for each member, to fit costs to.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let executed = self.members.iter().map(|one| one.counted.puts).sum();
        let what = |one: &Rates| format!("{}, {} clients", one.name, self.clients);
        self.members.iter().map(move |one| one.counted.row(what(one), executed, self.command_bytes()))
    }

    /// Bytes of a command as virtual time counts it.
    pub(super) fn command_bytes(&self) -> usize {
        self.value_bytes + PUT_BYTES
    }

    /// Processors that members and generator kept busy together.
    pub(super) fn processors(&self) -> f64 {
        self.members.iter().map(|one| one.counted.busy).sum::<f64>()
            + self.puts_per_second * self.client_nanos / 1e9
    }
}

/// All loads of a measurement.
#[derive(Debug)]
pub(super) struct Runs {
    /// The others who used the cluster before anything was loaded.
    pub(super) others: Others,
    /// Loads from one client to the most, and one of larger values.
    pub(super) loads: Vec<Measured>,
    /// Why the larger loads were left out, if they were.
    pub(super) cut_short: Option<&'static str>,
    /// Cores of this machine.
    pub(super) cores: usize,
}

impl Runs {
    /// The loads that the costs are fitted to: every second one, and those at both ends.
    pub(super) fn fitted(&self) -> impl Iterator<Item = &Measured> {
        self.loads.iter().enumerate().filter(|(at, _)| !self.is_held_out(*at)).map(|(_, load)| load)
    }

    /// The loads that are foretold.
    pub(super) fn held_out(&self) -> impl Iterator<Item = &Measured> {
        self.loads.iter().enumerate().filter(|(at, _)| self.is_held_out(*at)).map(|(_, load)| load)
    }

    /// The third and the fifth: there are fitted ones of more and of fewer clients.
    fn is_held_out(&self, at: usize) -> bool {
        matches!(at, 2 | 4) && at + 1 < self.loads.len()
    }

    /// Of the loads with values of the asked size the one with most puts a second.
    pub(super) fn top(&self) -> &Measured {
        let size = self.loads[0].value_bytes;
        let same = self.loads.iter().filter(|load| load.value_bytes == size);
        same.max_by(|one, other| one.puts_per_second.total_cmp(&other.puts_per_second))
            .expect("there is a first load")
    }
}

/// The loads, smallest first: clients, and bytes of a value.
fn scenes((most, value_bytes): (usize, usize)) -> Vec<(usize, usize)> {
    let mut clients = vec![1];
    for part in [64, 16, 4, 2, 1] {
        // No two of them are the same, however few there are.
        let least = clients[clients.len() - 1] + 1;
        clients.push((most / part).max(least));
    }
    let quarter = clients[3];
    let larger = (value_bytes * 8).clamp(1024, LARGER_MAX).max(value_bytes * 2);
    let all = clients.into_iter().map(|clients| (clients, value_bytes));
    all.chain([(quarter, larger)]).collect()
}

/// Runs all loads, and removes the keys that they wrote, whether or not they ended well.
pub(super) fn run_all(
    cluster: &Cluster,
    most: (usize, usize),
    window: Duration,
    tls: &TlsOptions,
    conduct: &Conduct,
) -> Result<Runs, LabError> {
    // Others' keys, and those of another run, are none of this one's.
    let prefix = format!("{PREFIX}{:016x}/", fastrand::u64(..));
    let driver =
        Driver { cluster, window, targets: tls.targets("--endpoints", &cluster.urls())?, tls, prefix };
    let outcome = driver.loads(most, conduct);
    match (outcome, driver.remove()) {
        (outcome, Ok(())) => outcome,
        (Ok(_), Err(left)) => Err(left.into()),
        (Err(error), Err(left)) => Err(refused(format!("{error}; {left}"))),
    }
}

struct Driver<'a> {
    cluster: &'a Cluster,
    window: Duration,
    targets: Vec<Target>,
    tls: &'a TlsOptions,
    prefix: String,
}

impl Driver<'_> {
    fn loads(&self, most: (usize, usize), conduct: &Conduct) -> Result<Runs, LabError> {
        let watcher = Watcher::new(self.cluster, self.tls, &self.prefix);
        let others = Others::of(&watcher.watch(self.window, &AtomicBool::new(false), None)?);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut runs = Runs { others, loads: Vec::new(), cut_short: None, cores };
        let scenes = scenes(most);
        if !self.has_room(scenes[0].1, RATE_AT_FIRST)? {
            return Err(refused(
                "the store is too near its quota for any load, which leaves history even when its keys are gone; compact, or \
                 raise --quota-backend-bytes",
            ));
        }
        for (clients, value_bytes) in scenes {
            let rate = runs.loads.iter().map(|load| load.puts_per_second).fold(RATE_AT_FIRST, f64::max);
            if !self.has_room(value_bytes, rate)? {
                runs.cut_short = Some("the store would come near its quota");
                break;
            }
            let (measured, is_stopped) = self.one(clients, value_bytes, &watcher, &runs.others, conduct)?;
            say(&format!(
                "{clients} clients, {value_bytes} bytes: {:.0} puts a second, median {:.2} ms",
                measured.puts_per_second, measured.median_ms
            ));
            if is_stopped && !runs.loads.is_empty() {
                runs.cut_short = Some("others' requests took twice as long");
                break;
            }
            runs.loads.push(measured);
            if is_stopped {
                runs.cut_short = Some("others' requests took twice as long");
                break;
            }
        }
        if let Some(why) = runs.cut_short {
            say(&format!("{why}: larger loads are left out"));
        }
        Ok(runs)
    }

    /// Whether a load leaves the store well below its quota, though each second brings twice as many puts as `rate`.
    fn has_room(&self, value_bytes: usize, rate: f64) -> Result<bool, LabError> {
        let seconds = (self.window + WARM_UP).as_secs_f64();
        let bytes = 2.0 * rate * seconds * (value_bytes + VERSION_BYTES) as f64;
        let pages = pages(self.cluster, self.tls)?;
        Ok(pages.iter().all(|page| {
            let told = |family: &str| page.value(family, "").unwrap_or(0.0);
            let quota = told("synod_store_quota_bytes");
            quota == 0.0 || told("synod_store_size_bytes") + bytes < QUOTA_SHARE * quota
        }))
    }

    /// Runs one load. The last part tells whether it was stopped for the sake of others.
    fn one(
        &self,
        clients: usize,
        value_bytes: usize,
        watcher: &Watcher<'_>,
        before: &Others,
        conduct: &Conduct,
    ) -> Result<(Measured, bool), LabError> {
        let mut options = Options { endpoints: self.cluster.urls(), ..Options::default() };
        options.clients = clients;
        options.load.tls = self.tls.clone();
        options.load.key_prefix.clone_from(&self.prefix);
        options.load.key_size = NUMBER_BYTES;
        options.load.key_space_size = KEYS;
        options.load.val_size = value_bytes;
        options.load.warmup = WARM_UP;
        options.load.duration = Some(self.window);
        options.load.interval = WATCHED_EVERY;
        let stop = Arc::clone(&options.load.stop);
        let (report, watched, machine) = thread::scope(|scope| {
            let driven = scope.spawn(|| bench::run(Operation::Put, &options));
            thread::sleep(WARM_UP);
            let began = Busy::now();
            let watched = watcher.watch(self.window * 9 / 10, &stop, Some(before));
            let machine = began.zip(Busy::now()).map(|(began, ended)| ended.since(&began));
            (driven.join().expect("the generator reports its errors"), watched, machine)
        });
        let (report, watched) = (report?, watched?);
        conduct.check()?;
        self.check(&report)?;
        let machine = machine.filter(|_| self.cluster.is_one_machine());
        let measured = Measured::of(&report, (clients, value_bytes), self.cluster, &watched, machine);
        Ok((measured, stop.load(Relaxed)))
    }

    /// Refuses a load whose puts failed, or in which another member came to lead.
    fn check(&self, report: &bench::Report) -> Result<(), LabError> {
        if report.failed > 0 || report.ended == Ended::GaveUp {
            let error = report.errors.first().map_or("", |error| &*error.message);
            let remedy = if error.contains("space exceeded") {
                "; compact, and end the alarm with `synod alarm disarm`"
            } else {
                ""
            };
            return Err(refused(format!("{} puts failed: {error}{remedy}", report.failed)));
        }
        let leader = &self.cluster.members[0].status;
        let leads = report.setup.leader_at_end.as_ref().and_then(|id| u64::from_str_radix(id, 16).ok());
        if leads != Some(leader.replica) {
            return Err(refused(format!(
                "{} lost the leadership during a load, so what was measured is of two leaders; measure again",
                leader.name
            )));
        }
        Ok(())
    }

    /// Removes the keys of this run.
    fn remove(&self) -> Result<(), BenchError> {
        let mut end = self.prefix.as_bytes().to_vec();
        *end.last_mut().expect("it is not empty") += 1;
        let (key, range_end) = (self.prefix.clone().into(), end.into());
        let request = DeleteRangeRequest { key, range_end, ..DeleteRangeRequest::default() };
        block_on(async {
            let mut failed = None;
            for target in &self.targets {
                let removing = async {
                    let channel = target.connect().await?;
                    let answer = KvClient::new(channel).delete_range(request.clone()).await;
                    answer.map(drop).map_err(|status| {
                        let reason = status.message().to_owned();
                        BenchError::Unreachable { endpoint: target.address.clone(), reason }
                    })
                };
                match tokio::time::timeout(REMOVED_WITHIN, removing).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => failed = Some(error.to_string()),
                    Err(_) => failed = Some(format!("{} does not answer", target.address)),
                }
            }
            let why = failed.unwrap_or_default();
            let (prefix, endpoint) = (&self.prefix, self.targets[0].address.clone());
            let reason = format!("keys are left: {why}; later: synod del --prefix {prefix}");
            Err(BenchError::Unreachable { endpoint, reason })
        })
    }
}

impl Measured {
    /// What a report and the members' counts say.
    fn of(
        report: &bench::Report,
        (clients, value_bytes): (usize, usize),
        cluster: &Cluster,
        watched: &Watched,
        machine: Option<f64>,
    ) -> Measured {
        let pairs = watched.first.iter().zip(&watched.last);
        let members = cluster
            .members
            .iter()
            .zip(pairs)
            .map(|(member, (before, after))| Rates::of(&member.status.name, Between { before, after }));
        let mut measured = Measured {
            clients,
            value_bytes,
            puts_per_second: report.throughput,
            median_ms: report.latency.p50_us as f64 / 1e3,
            p99_ms: report.latency.p99_us as f64 / 1e3,
            client_nanos: report.generator.cpu_us_per_request * 1e3,
            members: members.collect(),
            in_flight: watched.in_flight,
            elsewhere: None,
        };
        measured.elsewhere = machine.map(|busy| (busy - measured.processors()).max(0.0));
        measured
    }
}

/// How long the processors of this machine have worked, and could have.
struct Busy {
    at: Instant,
    seconds: f64,
}

impl Busy {
    /// `None` where the system does not tell.
    fn now() -> Option<Busy> {
        Busy::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line counts hundredths of a second of all processors: for programs, for programs that are nice, in the
    /// kernel, idle, waiting for a disk, ...
    fn parse(text: &str) -> Option<Busy> {
        let mut counted =
            text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(str::parse::<f64>);
        let mut next = || counted.next()?.ok();
        let working = next()? + next()? + next()?;
        Some(Busy { at: Instant::now(), seconds: working / 100.0 })
    }

    /// Processors that were busy since.
    fn since(&self, earlier: &Busy) -> f64 {
        (self.seconds - earlier.seconds) / (self.at - earlier.at).as_secs_f64().max(1e-9)
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| BenchError::Thread(error.to_string()))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_grow_from_one_client_to_the_most() {
        let loads = scenes((256, 100));
        assert_eq!(loads, [(1, 100), (4, 100), (16, 100), (64, 100), (128, 100), (256, 100), (64, 1024)]);
        let clients: Vec<usize> = scenes((16, 8192)).into_iter().map(|(clients, _)| clients).collect();
        assert_eq!(clients, [1, 2, 3, 4, 8, 16, 4], "no load is there twice");
        assert_eq!([8192, 1 << 20].map(|bytes| scenes((16, bytes))[6].1), [16 << 10, 2 << 20]);
    }

    #[test]
    fn how_busy_the_machine_is_is_read() {
        let mut busy = Busy::parse("cpu  100 20 80 5000 70 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(busy.seconds, 2.0);
        busy.at += Duration::from_secs(4);
        assert!(
            (busy.since(&Busy { at: busy.at - Duration::from_secs(4), seconds: 0.0 }) - 0.5).abs() < 1e-9
        );
        assert!(Busy::parse("something else").is_none());
    }
}
