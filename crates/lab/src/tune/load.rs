//! Loads on keys of tune's own, and what clients and members saw of them.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use synod_api::etcdserverpb::{DeleteRangeRequest, kv_client::KvClient};
use synod_client::{Between, Metrics};

use super::{
    cluster::{Cluster, client, refused},
    say,
};
use crate::{
    bench::{self, BenchError, Ended, Operation, Options, TlsOptions, target::Target},
    calibrate::{fit::Row, sample::Counters},
    study::{Conduct, LabError},
};

/// What all keys of tune begin with.
const PREFIX: &str = "synod-tune/";
/// Bytes of the number of a key, and how many keys there are.
const NUMBER_BYTES: usize = 8;
const KEYS: u64 = 10_000;
/// What a put has in a message besides its value: the key, and what the API writes around both.
const PUT_BYTES: usize = PREFIX.len() + NUMBER_BYTES + 12;
/// What is left out at the beginning of a load.
const WARM_UP: Duration = Duration::from_millis(500);
/// Others count as present from this many requests a second on.
const OTHERS_MIN: f64 = 1.0;
/// Others' requests may take this many times as long as before; then no larger load follows.
const SLOWER_MAX: f64 = 2.0;

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
    /// Slots that it had under way when it was asked at the end.
    pub(super) in_flight: f64,
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
            in_flight: between.after.value("synod_slots_in_flight", "").unwrap_or(0.0),
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
    /// Requests of others, a second, before anything was loaded.
    pub(super) others_per_second: f64,
    /// How long these took, in seconds.
    pub(super) others_mean: Option<f64>,
    /// Loads from one client to the most, and one of larger values.
    pub(super) loads: Vec<Measured>,
    /// Whether the larger loads were left out, since others' requests took twice as long.
    pub(super) spared_others: bool,
    /// Cores of this machine, and whether all members are on it.
    pub(super) cores: usize,
    pub(super) one_machine: bool,
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
fn scenes((clients, value_bytes): (usize, usize)) -> Vec<(usize, usize)> {
    let share = |part: usize| (clients / part).max(2);
    let larger = (value_bytes * 8).clamp(1024, 16 << 10);
    vec![
        (1, value_bytes),
        (share(64), value_bytes),
        (share(16), value_bytes),
        (share(4), value_bytes),
        (share(2), value_bytes),
        (clients, value_bytes),
        (share(4), larger),
    ]
}

/// Runs all loads, and removes the keys that they wrote, whether or not they ended well.
pub(super) fn run_all(
    cluster: &Cluster,
    most: (usize, usize),
    window: Duration,
    tls: &TlsOptions,
    conduct: &Conduct,
) -> Result<Runs, LabError> {
    let driver = Driver { cluster, window, targets: tls.targets("--endpoints", &cluster.urls())?, tls };
    let outcome = driver.loads(most, conduct);
    let removed = driver.remove();
    let runs = outcome?;
    removed?;
    Ok(runs)
}

struct Driver<'a> {
    cluster: &'a Cluster,
    window: Duration,
    targets: Vec<Target>,
    tls: &'a TlsOptions,
}

impl Driver<'_> {
    fn loads(&self, most: (usize, usize), conduct: &Conduct) -> Result<Runs, LabError> {
        let before = self.pages()?;
        thread::sleep(self.window);
        let after = self.pages()?;
        let (others_per_second, others_mean) = others(&before, &after);
        let mut runs = Runs {
            others_per_second,
            others_mean,
            loads: Vec::new(),
            spared_others: false,
            cores: thread::available_parallelism().map_or(1, usize::from),
            one_machine: false,
        };
        for (clients, value_bytes) in scenes(most) {
            let (measured, report, slower) = self.one(clients, value_bytes, &runs)?;
            runs.one_machine = report.setup.client_host.loopback;
            conduct.check()?;
            if report.failed > 0 || report.ended == Ended::GaveUp {
                let why =
                    report.errors.first().map_or_else(String::new, |error| format!(": {}", error.message));
                return Err(LabError::Replicas(format!("{} puts failed{why}", report.failed)));
            }
            say(&format!(
                "{clients} clients, {value_bytes} bytes: {:.0} puts a second, median {:.2} ms",
                measured.puts_per_second, measured.median_ms
            ));
            runs.loads.push(measured);
            if slower {
                runs.spared_others = true;
                say("others' requests take twice as long as before: larger loads are left out");
                break;
            }
        }
        Ok(runs)
    }

    /// Runs one load. The last part tells whether others' requests took too long meanwhile.
    fn one(
        &self,
        clients: usize,
        value_bytes: usize,
        runs: &Runs,
    ) -> Result<(Measured, bench::Report, bool), LabError> {
        let mut options = Options { endpoints: self.cluster.urls(), ..Options::default() };
        options.clients = clients;
        options.load.tls = self.tls.clone();
        options.load.key_prefix = PREFIX.to_owned();
        options.load.key_size = NUMBER_BYTES;
        options.load.key_space_size = KEYS;
        options.load.val_size = value_bytes;
        options.load.warmup = WARM_UP;
        options.load.duration = Some(self.window);
        let (report, before, after, machine) = thread::scope(|scope| {
            let driven = scope.spawn(|| bench::run(Operation::Put, &options));
            thread::sleep(WARM_UP + self.window / 10);
            let before = self.pages();
            let began = Busy::now();
            thread::sleep(self.window * 8 / 10);
            let machine = began.zip(Busy::now()).map(|(began, ended)| ended.since(&began));
            let after = self.pages();
            (driven.join().expect("the generator reports its errors"), before, after, machine)
        });
        let (report, before, after) = (report?, before?, after?);
        let members = self.cluster.members.iter().zip(before.iter().zip(&after));
        let mut measured = Measured {
            clients,
            value_bytes,
            puts_per_second: report.throughput,
            median_ms: report.latency.p50_us as f64 / 1e3,
            p99_ms: report.latency.p99_us as f64 / 1e3,
            client_nanos: report.generator.cpu_us_per_request * 1e3,
            members: members
                .map(|(member, (before, after))| Rates::of(&member.status.name, Between { before, after }))
                .collect(),
            elsewhere: None,
        };
        let machine = machine.filter(|_| report.setup.client_host.loopback);
        measured.elsewhere = machine.map(|busy| (busy - measured.processors()).max(0.0));
        // Its own puts wait in the same queues as those of others, and so tell how long these wait.
        let mean = others(&before, &after).1;
        let slower = runs.others_per_second >= OTHERS_MIN
            && mean.zip(runs.others_mean).is_some_and(|(now, then)| now > then * SLOWER_MAX);
        Ok((measured, report, slower))
    }

    /// What all members count of themselves.
    fn pages(&self) -> Result<Vec<Metrics>, LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let pages = runtime.block_on(async {
            let client = client(&self.cluster.urls(), self.tls)?;
            Ok::<_, LabError>(client.metrics().await)
        })?;
        pages.into_iter().collect::<Result<_, _>>().map_err(refused)
    }

    /// Removes the keys of tune, also those that an earlier run left when it was killed.
    fn remove(&self) -> Result<(), BenchError> {
        block_on(async {
            let mut failed = None;
            for target in &self.targets {
                let mut end = PREFIX.as_bytes().to_vec();
                *end.last_mut().expect("it is not empty") += 1;
                let request = DeleteRangeRequest {
                    key: PREFIX.into(),
                    range_end: end.into(),
                    ..DeleteRangeRequest::default()
                };
                let answer = match target.connect().await {
                    Ok(channel) => KvClient::new(channel).delete_range(request).await,
                    Err(error) => {
                        failed = Some(error);
                        continue;
                    }
                };
                match answer {
                    Ok(_) => return Ok(()),
                    Err(status) => {
                        let reason = format!("its keys under {PREFIX} are still there: {}", status.message());
                        failed = Some(BenchError::Unreachable { endpoint: target.address.clone(), reason });
                    }
                }
            }
            failed.map_or(Ok(()), Err)
        })
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

/// Requests of clients a second at all members together, and how long they took on average.
fn others(before: &[Metrics], after: &[Metrics]) -> (f64, Option<f64>) {
    let pairs = || before.iter().zip(after).map(|(before, after)| Between { before, after });
    let services = ["etcdserverpb.KV/", "synod.v1.Native/Execute", "synod.v1.Native/Query"];
    let sum = |family: &str, of: fn(&Between<'_>, &str, &str) -> f64| -> f64 {
        pairs().map(|pair| services.iter().map(|service| of(&pair, family, service)).sum::<f64>()).sum()
    };
    let number = sum("synod_request_seconds_count", |pair, family, service| pair.grown(family, service));
    let seconds = sum("synod_request_seconds_sum", |pair, family, service| pair.grown(family, service));
    let rate = sum("synod_request_seconds_count", |pair, family, service| pair.rate(family, service));
    (rate, (number > 0.0).then(|| seconds / number))
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
        assert_eq!(scenes((16, 8192))[6], (4, 16 << 10));
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

    #[test]
    fn what_others_ask_for_is_told_from_what_tune_asks_for() {
        let method = |method: &str, number: u32, seconds: f64| {
            format!(
                "synod_request_seconds_sum{{method=\"/{method}\"}} {seconds}\n\
                 synod_request_seconds_count{{method=\"/{method}\"}} {number}\n"
            )
        };
        let before = Metrics::parse(&method("etcdserverpb.KV/Range", 0, 0.0));
        let after = method("etcdserverpb.KV/Range", 30, 0.3) + &method("synod.v1.Native/Status", 900, 900.0);
        let (rate, mean) = others(&[before], &[Metrics::parse(&after)]);
        assert!(rate > 0.0);
        assert!((mean.unwrap() - 0.01).abs() < 1e-9);
    }
}
