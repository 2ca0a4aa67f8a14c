//! One run: asks the servers for their status, starts the threads, and collects and sums up their counts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::sleep_until,
};

use super::{
    BenchError, Consistency, Load, Operation, Options,
    generator::{self, Clock, Controls, Event, Last, Plan},
    host,
    report::{Ended, EndpointStatus, ErrorCount, GeneratorCost, Interval, Latency, Report, Setup},
    requests::Values,
    tally::Tally,
    target::Target,
};

/// How long outstanding requests are waited for at Ctrl-C, or when a run is given up.
const GRACE: Duration = Duration::from_secs(1);

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Whether it is warming up.
    pub warming_up: bool,
    /// Time since the start of the window.
    pub elapsed: Duration,
    /// Requests answered in the window so far.
    pub answered: u64,
    /// Requests failed so far.
    pub failed: u64,
    /// The interval that has just ended, if the run is not warming up.
    pub interval: Option<Interval>,
}

/// Runs `operation` with these options, and returns the report. It blocks and uses threads of its own, so it must
/// not be called in an asynchronous runtime. From its beginning on Ctrl-C no longer ends the process by itself.
///
/// # Errors
/// The options are not valid, no server can be reached, or none leads although `target_leader` is set.
/// Requests that fail are no error here; the report counts them.
pub fn run(operation: Operation, options: &Options) -> Result<Report, BenchError> {
    run_observed(operation, options, &mut |_| {})
}

/// Does what [`run`] does, and reports the progress to `observer` about once an interval.
///
/// # Errors
/// Those of [`run`].
pub fn run_observed(
    operation: Operation,
    options: &Options,
    observer: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    options.validate(operation)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| BenchError::Thread(error.to_string()))?;
    runtime.block_on(run_async(operation, options, observer))
}

async fn run_async(
    operation: Operation,
    options: &Options,
    observer: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let addresses = options.load.tls.targets("--endpoints", &options.endpoints)?;
    let names: Vec<String> = addresses.iter().map(|target| target.address.clone()).collect();
    let client_host = host::describe(&names);
    let mut endpoints = Vec::new();
    for target in &addresses {
        endpoints.push(target.status().await?);
    }
    let chosen = choose(&endpoints, options.target_leader)?;
    let conns = options.conns(chosen.len());
    let threads = options.load.threads(conns);
    for conn in 0..conns {
        endpoints[chosen[conn % chosen.len()]].connections += 1;
    }
    let targets: Vec<&Target> = chosen.iter().map(|&at| &addresses[at]).collect();

    let fleet = Fleet::launch(plans(operation, options, &targets, conns, threads)).await?;
    let outcome = fleet.drive(&options.load, observer).await?;

    let mut leader_at_end = None;
    for target in &addresses {
        if let Ok(status) = target.status().await {
            leader_at_end = Some(status.leader);
            break;
        }
    }
    let load = &options.load;
    let (read_ratio, consistency, name) = match operation {
        Operation::Put => (None, None, "put"),
        Operation::Get(consistency) => (None, Some(consistency), "get"),
        Operation::Mixed { read_ratio, consistency } => (Some(read_ratio), Some(consistency), "mixed"),
    };
    let setup = Setup {
        operation: name.into(),
        read_ratio,
        consistency: consistency.map(|consistency| match consistency {
            Consistency::Linearizable => "linearizable".into(),
            Consistency::Serializable => "serializable".into(),
        }),
        endpoints,
        target_leader: options.target_leader,
        leader_at_end,
        clients: options.clients,
        conns,
        threads,
        rate: load.rate,
        poisson: load.poisson,
        warmup_seconds: load.warmup.as_secs_f64(),
        duration_seconds: load.window().map(|window| window.as_secs_f64()),
        total: load.total,
        key_size: load.key_size,
        val_size: load.val_size,
        key_space_size: load.key_space_size,
        sequential_keys: load.sequential_keys,
        random_values: load.random_values,
        timeout_seconds: load.timeout.as_secs_f64(),
        seed: load.seed,
        began_unix_ms: u64::try_from(began.as_millis()).unwrap_or(u64::MAX),
        client_host,
    };
    Ok(outcome.report(setup))
}

/// The endpoints that get requests.
fn choose(endpoints: &[EndpointStatus], target_leader: bool) -> Result<Vec<usize>, BenchError> {
    if !target_leader {
        return Ok((0..endpoints.len()).collect());
    }
    match endpoints.iter().position(|endpoint| endpoint.leads) {
        Some(leader) => Ok(vec![leader]),
        None => {
            let names: Vec<&str> = endpoints.iter().map(|endpoint| endpoint.endpoint.as_str()).collect();
            let named =
                endpoints.iter().map(|endpoint| endpoint.leader.as_str()).find(|leader| *leader != "0");
            let leader = named.map_or("nobody".into(), |leader| format!("member {leader}"));
            Err(BenchError::NoLeader { endpoints: names.join(","), leader })
        }
    }
}

/// Distributes connections over endpoints, clients over connections, and connections with their clients over threads.
fn plans(
    operation: Operation,
    options: &Options,
    targets: &[&Target],
    conns: usize,
    threads: usize,
) -> Vec<Plan> {
    let values = Values::new(operation, &options.load);
    let plan = |thread: usize| {
        let connections: Vec<(Target, usize)> = (thread..conns)
            .step_by(threads)
            .map(|conn| {
                let clients = options.clients / conns + usize::from(conn < options.clients % conns);
                (targets[conn % targets.len()].clone(), clients)
            })
            .collect();
        let clients: usize = connections.iter().map(|(_, clients)| clients).sum();
        Plan {
            thread,
            threads,
            operation,
            load: options.load.clone(),
            values: values.clone(),
            connections,
            rate: options.load.rate.map(|rate| rate * clients as f64 / options.clients as f64),
        }
    };
    (0..threads).map(plan).collect()
}

/// The threads of a run, ready to start.
#[derive(Debug)]
struct Fleet {
    threads: Vec<JoinHandle<()>>,
    starts: Vec<oneshot::Sender<Clock>>,
    events: mpsc::Receiver<Event>,
    stop: Arc<AtomicBool>,
    abort: watch::Sender<bool>,
}

impl Fleet {
    /// Starts threads, and waits until all have their connections.
    async fn launch(plans: Vec<Plan>) -> Result<Fleet, BenchError> {
        let (abort, aborted) = watch::channel(false);
        let stop = Arc::new(AtomicBool::new(false));
        let controls = Controls { stop: stop.clone(), abort: aborted, sent: Arc::new(AtomicU64::new(0)) };
        let (sender, events) = mpsc::channel(4 * plans.len());
        let mut fleet = Fleet { threads: Vec::new(), starts: Vec::new(), events, stop, abort };
        for plan in plans {
            let (start, started) = oneshot::channel();
            let (controls, sender) = (controls.clone(), sender.clone());
            let thread = thread::Builder::new()
                .name(format!("bench-{}", plan.thread))
                .spawn(move || generator::run(plan, controls, sender, started))
                .map_err(|error| BenchError::Thread(error.to_string()))?;
            fleet.threads.push(thread);
            fleet.starts.push(start);
        }
        drop(sender);
        for _ in 0..fleet.threads.len() {
            match fleet.events.recv().await {
                Some(Event::Ready) => {}
                Some(Event::Failed(error)) => return Err(error),
                _ => return Err(BenchError::Thread("it ended before the run began".into())),
            }
        }
        Ok(fleet)
    }

    /// Starts the run, waits for its end, and returns the counts.
    async fn drive(
        mut self,
        load: &Load,
        observer: &mut dyn FnMut(&Progress),
    ) -> Result<Outcome, BenchError> {
        let start = Instant::now();
        let window = start + load.warmup;
        let clock = Clock { start, window, end: load.window().map(|length| window + length) };
        for sender in self.starts.drain(..) {
            // A thread that has ended has reported why, which is found below.
            let _ = sender.send(clock);
        }
        let mut collector = Collector::new(self.threads.len(), load.interval);
        let mut give_up = GiveUp { after: load.give_up_after, last_answer: start, failed: false };
        let mut ended = Ended::Complete;
        let mut stopped_at: Option<Instant> = None;
        let interrupted = async {
            if tokio::signal::ctrl_c().await.is_err() {
                // Without signals the run cannot be interrupted.
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(interrupted);
        while !collector.is_complete() {
            let aborting_at = stopped_at.map_or(start, |at| at + GRACE);
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::Interval { thread, interval, tally }) => collector.take(thread, interval, tally),
                    Some(Event::Done { thread, interval, tally, last }) => {
                        collector.take(thread, interval, tally);
                        collector.finish(thread, last);
                    }
                    Some(Event::Failed(error)) => return Err(error),
                    Some(Event::Ready) | None => return Err(BenchError::Thread("it ended during the run".into())),
                },
                () = &mut interrupted, if stopped_at.is_none() => ended = Ended::Interrupted,
                () = sleep_until(aborting_at.into()), if stopped_at.is_some() && !*self.abort.borrow() => {
                    self.abort.send_replace(true);
                }
            }
            for (interval, answered, failed) in collector.completed(clock) {
                let now = Instant::now();
                if give_up.is_time(now, answered, failed) && ended == Ended::Complete {
                    ended = Ended::GaveUp;
                }
                observer(&Progress {
                    warming_up: interval.is_none(),
                    elapsed: now.saturating_duration_since(window),
                    answered: collector.sum.answered_in_window,
                    failed: collector.sum.failed,
                    interval,
                });
            }
            if load.stop.load(Ordering::Relaxed) && ended == Ended::Complete {
                ended = Ended::Interrupted;
            }
            if ended != Ended::Complete && stopped_at.is_none() {
                self.stop.store(true, Ordering::Relaxed);
                stopped_at = Some(Instant::now());
            }
        }
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| BenchError::Thread("it panicked".into()))?;
        }
        let Collector { sum, series, last, .. } = collector;
        Ok(Outcome { clock, ended, stopped_at, finished_at: Instant::now(), sum, series, last })
    }
}

impl Drop for Fleet {
    /// Ends the threads of a run that ends with an error.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.abort.send_replace(true);
    }
}

/// Decides when a run that only fails is ended.
#[derive(Debug)]
struct GiveUp {
    after: Duration,
    last_answer: Instant,
    /// Whether a request failed since the last answer. A run in which nothing is due for long does not fail.
    failed: bool,
}

impl GiveUp {
    fn is_time(&mut self, now: Instant, answered: u64, failed: u64) -> bool {
        if answered > 0 {
            (self.last_answer, self.failed) = (now, false);
        }
        self.failed |= failed > 0;
        self.failed && now.duration_since(self.last_answer) >= self.after
    }
}

/// Merges the counts of the threads.
#[derive(Debug)]
struct Collector {
    interval: Duration,
    /// For each thread, the first interval that it has not handed over yet; also 0 during the warm-up.
    next: Vec<u64>,
    last: Vec<Option<Last>>,
    /// Intervals that some thread has yet to hand over. The warm-up comes in parts and is not waited for.
    open: BTreeMap<Option<u64>, Tally>,
    series: Vec<Interval>,
    sum: Tally,
}

impl Collector {
    fn new(threads: usize, interval: Duration) -> Collector {
        Collector {
            interval,
            next: vec![0; threads],
            last: vec![None; threads],
            open: BTreeMap::new(),
            series: Vec::new(),
            sum: Tally::default(),
        }
    }

    fn take(&mut self, thread: usize, interval: Option<u64>, tally: Tally) {
        if let Some(interval) = interval {
            self.next[thread] = interval + 1;
        }
        self.open.entry(interval).or_default().add(&tally);
    }

    fn finish(&mut self, thread: usize, last: Last) {
        self.next[thread] = u64::MAX;
        self.last[thread] = Some(last);
    }

    fn is_complete(&self) -> bool {
        self.last.iter().all(Option::is_some)
    }

    /// Takes the intervals that every thread has handed over, each with its answers and failures.
    fn completed(&mut self, clock: Clock) -> Vec<(Option<Interval>, u64, u64)> {
        let complete_below = self.next.iter().copied().min().unwrap_or(0);
        let mut completed = Vec::new();
        while let Some(entry) = self.open.first_entry() {
            let interval = *entry.key();
            if interval.is_some_and(|interval| interval >= complete_below) {
                break;
            }
            let tally = entry.remove();
            self.sum.add(&tally);
            let row = interval.map(|number| self.row(number, &tally, clock));
            // An interval after the last answer, in which only stragglers are waited for, is not shown.
            if let Some(row) = row.clone().filter(|row| row.to_seconds > row.from_seconds) {
                self.series.push(row);
            }
            completed.push((row, tally.answered, tally.failed + tally.failed_in_warmup));
        }
        completed
    }

    fn row(&self, number: u64, tally: &Tally, clock: Clock) -> Interval {
        let from = self.interval.mul_f64(number as f64);
        let mut to = from + self.interval;
        if self.is_complete() {
            let finish =
                self.last.iter().flatten().filter_map(|last| last.answer).max().unwrap_or(clock.start);
            to = to.min(finish.saturating_duration_since(clock.window)).max(from);
        }
        let histogram = tally.all();
        let seconds = (to - from).as_secs_f64();
        let some = |value| (!histogram.is_empty()).then_some(value);
        Interval {
            from_seconds: from.as_secs_f64(),
            to_seconds: to.as_secs_f64(),
            answered: tally.answered,
            failed: tally.failed,
            throughput: if seconds > 0.0 { tally.answered as f64 / seconds } else { 0.0 },
            p50_us: some(histogram.value_at_quantile(0.5)),
            p99_us: some(histogram.value_at_quantile(0.99)),
            max_us: some(histogram.max()),
        }
    }
}

/// The counts of a run.
#[derive(Debug)]
struct Outcome {
    clock: Clock,
    ended: Ended,
    stopped_at: Option<Instant>,
    finished_at: Instant,
    sum: Tally,
    series: Vec<Interval>,
    last: Vec<Option<Last>>,
}

impl Outcome {
    fn report(self, setup: Setup) -> Report {
        let last = || self.last.iter().flatten();
        let last_answer = last().filter_map(|last| last.answer).max();
        // As a rule time ends the window. If a count or a user ended it, it ends with the last answer, or,
        // without an answer, when the run was stopped.
        let end = match (self.clock.end, self.stopped_at) {
            (Some(end), None) => end,
            (_, stopped_at) => last_answer.max(stopped_at).unwrap_or(self.finished_at),
        };
        let seconds = end.saturating_duration_since(self.clock.window).as_secs_f64();
        let all = self.sum.all();
        let requests = all.len() + self.sum.failed;
        let cpu_seconds: f64 = last().map(|last| last.cpu.as_secs_f64()).sum();
        let running = self.finished_at.saturating_duration_since(self.clock.window).as_secs_f64();
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let mut errors: Vec<ErrorCount> = self
            .sum
            .errors
            .iter()
            .map(|((code, message), &count)| ErrorCount {
                code: code.clone(),
                message: message.clone(),
                count,
            })
            .collect();
        errors.sort_by_key(|error| std::cmp::Reverse(error.count));
        let by_operation = match (&self.sum.puts, &self.sum.gets) {
            (Some(puts), Some(gets)) => {
                vec![("put".into(), Latency::of(puts)), ("get".into(), Latency::of(gets))]
            }
            _ => Vec::new(),
        };
        Report {
            ended: self.ended,
            seconds,
            throughput: ratio(self.sum.answered_in_window as f64, seconds),
            answered: all.len(),
            failed: self.sum.failed,
            failed_in_warmup: self.sum.failed_in_warmup,
            unfinished: last().map(|last| last.unfinished).sum(),
            found: setup.consistency.is_some().then_some(self.sum.found),
            latency: Latency::of(&all),
            by_operation,
            lateness: self.sum.lateness.as_ref().map(Latency::of),
            generator: GeneratorCost {
                cpu_seconds,
                cpu_us_per_request: ratio(cpu_seconds * 1e6, requests as f64),
                cores: ratio(cpu_seconds, running),
            },
            errors,
            first_errors: self.sum.first_errors,
            series: self.series,
            setup,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tally::Kind;

    fn status(endpoint: &str, leads: bool) -> EndpointStatus {
        EndpointStatus {
            endpoint: endpoint.into(),
            connections: 0,
            version: "1".into(),
            member: if leads { "2a".into() } else { "1".into() },
            leads,
            leader: "2a".into(),
            term: 1,
            database_bytes: 0,
        }
    }

    #[test]
    fn the_leader_is_chosen_or_missed_by_name() {
        let endpoints = [status("a:1", false), status("b:1", true)];
        assert_eq!(choose(&endpoints, true).unwrap(), [1]);
        assert_eq!(choose(&endpoints, false).unwrap(), [0, 1]);
        let error = choose(&endpoints[..1], true).unwrap_err().to_string();
        assert!(error.contains("a:1") && error.contains("member 2a"), "{error}");
    }

    #[test]
    fn every_client_and_connection_is_dealt_once() {
        let targets = ["127.0.0.1:1", "127.0.0.1:2"]
            .map(|text| crate::bench::target::parse("--endpoints", text, None).unwrap());
        let mut options = Options { clients: 10, ..Options::default() };
        options.load.rate = Some(1000.0);
        let plans = plans(Operation::Put, &options, &[&targets[0], &targets[1]], 4, 3);
        let shares: Vec<Vec<usize>> =
            plans.iter().map(|plan| plan.connections.iter().map(|(_, clients)| *clients).collect()).collect();
        assert_eq!(shares, [vec![3, 2], vec![3], vec![2]]);
        let rates: f64 = plans.iter().filter_map(|plan| plan.rate).sum();
        assert!((rates - 1000.0).abs() < 1e-6);
        let to_first =
            plans.iter().flat_map(|plan| &plan.connections).filter(|(t, _)| t.address.ends_with(":1"));
        assert_eq!(to_first.count(), 2);
    }

    #[test]
    fn an_interval_is_complete_when_every_thread_has_handed_it_over() {
        let start = Instant::now();
        let clock = Clock { start, window: start, end: None };
        let tally = |latency_ms, count: u64| {
            let mut tally = Tally { answered: count, answered_in_window: count, ..Tally::default() };
            (0..count).for_each(|_| tally.record_latency(Kind::Put, Duration::from_millis(latency_ms)));
            tally
        };
        let mut collector = Collector::new(2, Duration::from_secs(1));
        collector.take(0, Some(0), tally(1, 10));
        collector.take(0, Some(1), tally(1, 10));
        assert!(collector.completed(clock).is_empty());
        collector.take(1, Some(0), tally(5, 30));
        let completed = collector.completed(clock);
        assert_eq!(completed.len(), 1);
        let (row, answered, failed) = &completed[0];
        let row = row.as_ref().unwrap();
        assert_eq!((*answered, *failed, row.throughput), (40, 0, 40.0));
        assert!((5_000..=5_010).contains(&row.p50_us.unwrap()), "{row:?}");

        // The last interval ends with the last answer.
        let last = |millis| Last {
            answer: Some(start + Duration::from_millis(millis)),
            cpu: Duration::ZERO,
            unfinished: 0,
        };
        collector.finish(0, last(1_100));
        collector.take(1, Some(1), tally(5, 10));
        collector.finish(1, last(1_500));
        assert!(collector.is_complete());
        let completed = collector.completed(clock);
        let row = completed[0].0.as_ref().unwrap();
        assert_eq!((row.to_seconds, row.throughput), (1.5, 40.0));
        assert_eq!(collector.sum.answered_in_window, 60);
    }

    #[test]
    fn only_lasting_failure_ends_a_run() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut give_up = GiveUp { after: Duration::from_secs(10), last_answer: start, failed: false };
        assert!(!give_up.is_time(at(20), 0, 0), "nothing was due");
        assert!(!give_up.is_time(at(21), 1, 5), "something was answered");
        assert!(!give_up.is_time(at(30), 0, 5), "too early");
        assert!(give_up.is_time(at(31), 0, 0));
    }
}
