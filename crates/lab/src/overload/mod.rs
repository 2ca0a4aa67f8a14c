//! `synod lab run overload`: whether a cluster that is asked for more than it can order goes on serving, and etcd
//! beside it.
//!
//! The disks of the servers are made slow: `strace` delays each of their commits. First clients in a closed loop find
//! the most that the servers answer, the best. Then puts are due at a multiple of that in an open loop, each with a
//! deadline. Throughout, a few clients in a closed loop ask one after the other, and show when all is as it was
//! before.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use clap::Args as ClapArgs;

use crate::{
    attacks::cluster::{Cluster, SERVERS, System},
    bench::{self, Interval, Operation, Options, Report},
    strace::holding_back,
    study::{Conduct, Environment, LabError, at, commit_of},
};

/// The arguments of `synod lab run overload`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The program `etcd`, to overload three of its servers as well.
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,
    /// How much longer each commit to the disk takes: `strace` holds `fdatasync` back.
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    commit_ms: u64,
    /// Bytes of a batch at which Synod closes it. (etcd has no such bound.)
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    batch_bytes: usize,
    /// Batches that Synod's leader has under way at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    window: u16,
    /// Clients of the closed loop that finds the best; each number is tried.
    #[arg(long, value_name = "COUNT,...", value_delimiter = ',', default_value = "64,256,1024")]
    clients: Vec<usize>,
    /// How many times the best is asked for.
    #[arg(long, value_name = "FACTOR", default_value_t = 3.0)]
    factor: f64,
    /// How long it is asked for.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    /// The deadline of each put.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    deadline: u64,
    /// The folder in which the servers keep their data.
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Write the report to this file, too, as Markdown.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The program `synod` [default: this one, or the one built beside it].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Bytes of a value.
const VALUE_BYTES: usize = 256;
/// How long each closed loop lasts that looks for the best.
const CLOSED_LOOP: Duration = Duration::from_secs(8);
/// The few clients that ask throughout, and for how long before and after the overload.
const FEW: usize = 3;
const QUIET: Duration = Duration::from_secs(8);
/// The length of the intervals in which their answers are counted.
const INTERVAL: Duration = Duration::from_millis(500);
/// All must be as before so long after the overload.
const RECOVERY_MAX: Duration = Duration::from_secs(2);
/// The part of the best that must be answered in time during the overload; of what the few clients had, after it.
const PART: f64 = 0.8;
/// Descriptors that a server may have.
const FILES: u64 = 8192;
/// A server with more memory resident than this is killed, to save the machine.
const RESIDENT_MAX: u64 = 6 << 30;
/// The most clients of the open loop.
const OPEN_CLIENTS_MAX: f64 = 60_000.0;

/// What came of one system.
#[derive(Debug)]
struct Outcome {
    name: &'static str,
    best: f64,
    best_clients: usize,
    overload: Report,
    /// Answers in time a second during the overload.
    goodput: f64,
    /// Answers a second of the few clients before and during the overload, and from [`RECOVERY_MAX`] after it on.
    few: [f64; 3],
    /// After how many seconds they had [`PART`] of what they had before, and kept it; none if never.
    recovered: Option<f64>,
}

/// Measures, and returns the report.
///
/// # Errors
/// Something could not be measured or written, or Ctrl-C was pressed.
pub(crate) fn run(
    args: &Args,
    interrupted: &Arc<AtomicBool>,
    own_program: &Path,
) -> Result<String, LabError> {
    let program = args.program.clone().unwrap_or_else(|| own_program.to_owned());
    let conduct = &Conduct::new(Arc::clone(interrupted), program);
    let mut environment = Environment::now(commit_of(&conduct.program), String::new());
    let synod = System::Synod(conduct.program.clone());
    let systems = [synod].into_iter().chain(args.etcd.clone().map(System::Etcd));
    let outcomes: Vec<Outcome> =
        systems.map(|system| overload(&system, args, conduct)).collect::<Result<_, _>>()?;
    environment.end();
    let text = report(args, &environment, &outcomes);
    if let Some(file) = &args.out {
        fs::write(file, &text).map_err(at(file))?;
    }
    Ok(text)
}

/// Overloads three servers of one system.
fn overload(system: &System, args: &Args, conduct: &Conduct) -> Result<Outcome, LabError> {
    let folder = tempfile::tempdir_in(&args.folder).map_err(at(&args.folder))?;
    let replicas = |why: String| LabError::Replicas(format!("{}: {why}", system.name()));
    let slower = holding_back("fdatasync", Duration::from_millis(args.commit_ms), "/dev/null");
    let strace = ["strace", "-D", "--seccomp-bpf"].into_iter().chain(slower.iter().map(String::as_str));
    let strace: Vec<_> = strace.collect();
    let (bytes, window) = (args.batch_bytes.to_string(), args.window.to_string());
    let arguments: &[&str] = match system {
        System::Synod(_) => &["--batch-bytes-max", &bytes, "--window-max", &window],
        System::Etcd(_) => &[],
    };
    let mut cluster =
        Cluster::start_under(&strace, system, arguments, folder.path(), SERVERS, FILES, RESIDENT_MAX)
            .map_err(replicas)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| replicas(error.to_string()))?;
    runtime.block_on(cluster.await_service()).map_err(replicas)?;
    let options = |clients: usize, duration: Duration| {
        let endpoints = cluster.servers.iter().map(|server| server.client.to_string()).collect();
        let mut options = Options { endpoints, clients, ..Options::default() };
        options.load.val_size = VALUE_BYTES;
        options.load.duration = Some(duration);
        options.load.timeout = Duration::from_secs(args.deadline);
        options.load.give_up_after = Duration::from_secs(600);
        options.load.interval = INTERVAL;
        options
    };
    let (mut best, mut best_clients) = (0.0, 0);
    for &clients in &args.clients {
        conduct.check()?;
        let report = bench::run(Operation::Put, &options(clients, CLOSED_LOOP))?;
        eprintln!("overload: {}, {clients} clients: {:.0} puts a second", system.name(), report.throughput);
        if report.throughput > best {
            (best, best_clients) = (report.throughput, clients);
        }
    }
    conduct.check()?;
    let lasts = Duration::from_secs(args.seconds);
    let few = options(FEW, QUIET + lasts + QUIET);
    let few = thread::spawn(move || bench::run(Operation::Put, &few));
    thread::sleep(QUIET);
    let rate = best * args.factor;
    // Each put that is due finds a free client, however long the others wait.
    let clients = (rate * args.deadline as f64 * 1.1).clamp(64.0, OPEN_CLIENTS_MAX) as usize;
    let mut open = options(clients, lasts);
    open.load.rate = Some(rate);
    open.load.conns = Some(30.min(clients));
    let report = bench::run(Operation::Put, &open)?;
    let few = few.join().map_err(|_| replicas("the few clients panicked".to_owned()))??;
    if let Some(dead) = cluster.dead().pop() {
        return Err(replicas(dead));
    }
    // A report counts as answered what was answered before its deadline.
    let goodput = report.answered as f64 / lasts.as_secs_f64();
    let (begin, end) = (QUIET.as_secs_f64(), (QUIET + lasts).as_secs_f64());
    let of = |from: f64, to: f64| mean(&few.series, from, to);
    let before = of(1.0, begin - 1.0);
    let after = end + RECOVERY_MAX.as_secs_f64();
    let rates = [before, of(begin, end), of(after, f64::INFINITY)];
    let recovered = recovered(&few.series, end, before * PART);
    let (name, overload) = (system.name(), report);
    eprintln!(
        "overload: {name}: {goodput:.0} of {best:.0} answered in time, as before after {recovered:?} s"
    );
    Ok(Outcome { name, best, best_clients, overload, goodput, few: rates, recovered })
}

/// Answers a second in the intervals that lie within a time.
fn mean(series: &[Interval], from: f64, to: f64) -> f64 {
    let within = series.iter().filter(|interval| interval.from_seconds >= from && interval.to_seconds <= to);
    let (answered, seconds) = within.fold((0.0, 0.0), |(answered, seconds), interval| {
        (answered + interval.answered as f64, seconds + interval.to_seconds - interval.from_seconds)
    });
    if seconds > 0.0 { answered / seconds } else { 0.0 }
}

/// The seconds from `end` on after which the mean of two intervals in a row reaches `least` for the first time.
fn recovered(series: &[Interval], end: f64, least: f64) -> Option<f64> {
    let pairs = series.windows(2).filter(|pair| pair[0].from_seconds >= end);
    let mut well = pairs.filter(|pair| mean(pair, 0.0, f64::INFINITY) >= least);
    well.next().map(|pair| pair[0].from_seconds - end)
}

impl Outcome {
    fn serves(&self) -> bool {
        self.goodput >= PART * self.best
    }

    fn recovers(&self) -> bool {
        let [before, _, after] = self.few;
        after >= PART * before && self.recovered.is_some_and(|after| after <= RECOVERY_MAX.as_secs_f64())
    }
}

fn report(args: &Args, environment: &Environment, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "# More than can be ordered\n\n\
         Three servers of each kind and the load generator on {}. Puts of {VALUE_BYTES} bytes, fsynced; each commit takes {} ms \
         longer. Synod closes batches at {} bytes, and has {} under way. Puts are due at {} times the best of a closed loop, for {} s, each with \
         a deadline of {} s. {FEW} further clients put one after the other, from {} s before to {} s after.\n\n\
         | | best, puts/s (clients) | due, puts/s | answered in time, puts/s | of the best | median, ms | 99th percentile, ms | the few before, during and after, puts/s | as before after, s |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        environment.in_words(),
        args.commit_ms,
        args.batch_bytes,
        args.window,
        args.factor,
        args.seconds,
        args.deadline,
        QUIET.as_secs(),
        QUIET.as_secs(),
    );
    for outcome in outcomes {
        let Outcome { name, best, best_clients, overload, goodput, few: [before, during, after], recovered } =
            outcome;
        let ms = |us: u64| us as f64 / 1e3;
        let _ = writeln!(
            text,
            "| {name} | {best:.0} ({best_clients}) | {:.0} | {goodput:.0} | {:.2} | {:.0} | {:.0} | {before:.0}, {during:.0}, {after:.0} | {} |",
            overload.setup.rate.unwrap_or_default(),
            goodput / best.max(1.0),
            ms(overload.latency.p50_us),
            ms(overload.latency.p99_us),
            recovered.map_or("never".to_owned(), |after| format!("{after:.1}")),
        );
    }
    text.push('\n');
    for outcome in outcomes {
        let verdict = |holds: bool| if holds { "holds" } else { "does not hold" };
        let _ = writeln!(
            text,
            "- {}: at least {PART} of the best is answered in time: {}. All is as before within {} s: {}.",
            outcome.name,
            verdict(outcome.serves()),
            RECOVERY_MAX.as_secs(),
            verdict(outcome.recovers()),
        );
        for error in outcome.overload.errors.iter().take(3) {
            let _ = writeln!(text, "  - {} times {}: {}", error.count, error.code, error.message);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(answered: &[u64]) -> Vec<Interval> {
        let interval = |(place, &answered): (usize, &u64)| Interval {
            from_seconds: place as f64 / 2.0,
            to_seconds: (place + 1) as f64 / 2.0,
            answered,
            failed: 0,
            throughput: answered as f64 * 2.0,
            p50_us: None,
            p99_us: None,
            max_us: None,
        };
        answered.iter().enumerate().map(interval).collect()
    }

    #[test]
    fn a_rate_is_counted_within_a_time_and_recovery_from_its_end() {
        let series = series(&[10, 10, 0, 2, 4, 9, 7, 10]);
        assert_eq!(
            (mean(&series, 0.0, 1.0), mean(&series, 1.0, 2.0), mean(&series, 9.0, 10.0)),
            (20.0, 2.0, 0.0)
        );
        assert_eq!(recovered(&series, 1.0, 16.0), Some(1.5));
        assert_eq!(recovered(&series, 1.0, 20.0), None);
    }
}
