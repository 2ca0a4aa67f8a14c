//! `synod lab run threads`: measures what a put costs real replicas, with each placement of their stages on threads,
//! and etcd beside them.
//!
//! Three servers of each kind run in turn, round by round, so that what else happens on the machine concerns all of
//! them. Under each load the threads of the servers are asked how often they were switched and how long they ran. The
//! lone client asks the leader, and its median is compared with what a put takes at least: one round trip to the
//! client, one to a follower, and one commit to the disk, each measured by itself in the same run.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;

use crate::{
    attacks::cluster::{Cluster, SERVERS, System},
    bench::{self, Operation, Options},
    calibrate::commit_times,
    statistics,
    study::{Conduct, Environment, LabError, at, commit_of},
};

/// The arguments of `synod lab run threads`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The program `etcd`, to measure three of its servers as well.
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,
    /// Clients, each with one outstanding put. One alone asks the leader; several are spread over the servers.
    #[arg(long, value_name = "COUNT,...", value_delimiter = ',', default_value = "1,64,512")]
    clients: Vec<usize>,
    /// How often each kind of servers has its turn.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each load lasts in each turn.
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The folder in which the servers keep their data, on the disk that matters.
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Write the report to this file, too, as Markdown.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The program `synod` [default: this one, or the one built beside it].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Placements, and the arguments that choose them.
const PLACEMENTS: [(&str, &[&str]); 3] = [
    ("spread", &["--threads", "spread"]),
    ("compact, clients apart", &["--threads", "compact", "--client-io-threads", "1", "--laboratory"]),
    ("compact", &["--threads", "compact"]),
];
/// Bytes of a value.
const VALUE_BYTES: usize = 256;
/// How long each load runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// Descriptors that a server may have.
const FILES: u64 = 4096;
/// A server with more memory resident than this is killed, to save the machine.
const RESIDENT_MAX: u64 = 8 << 30;
/// Round trips that are timed, and the bytes of each.
const ROUND_TRIPS: usize = 2000;
const ROUND_TRIP_BYTES: usize = 300;

/// Servers of a kind.
struct Kind {
    name: &'static str,
    system: System,
    arguments: &'static [&'static str],
}

/// What one load cost in one turn.
#[derive(Clone, Copy, Debug)]
struct Cost {
    switches: f64,
    micros: f64,
    throughput: f64,
    median_ms: f64,
    p99_ms: f64,
}

/// What the threads of a process did since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    switches: u64,
    nanos: u64,
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
    let of_synod =
        |(name, arguments)| Kind { name, system: System::Synod(conduct.program.clone()), arguments };
    let mut kinds: Vec<_> = PLACEMENTS.map(of_synod).into();
    let etcd =
        args.etcd.clone().map(|file| Kind { name: "etcd", system: System::Etcd(file), arguments: &[] });
    kinds.extend(etcd);
    // For each number of clients, and each kind of servers, the turns.
    let mut costs = vec![vec![Vec::new(); kinds.len()]; args.clients.len()];
    let (mut commits, mut round_trips) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        commits.extend(commit_times(&args.folder)?);
        round_trips
            .extend(round_trip_times().map_err(|error| LabError::Replicas(format!("loopback: {error}")))?);
        for (at, kind) in kinds.iter().enumerate() {
            let turn = turn(kind, args, conduct)?;
            for ((clients, cost), of) in args.clients.iter().zip(turn).zip(&mut costs) {
                eprintln!(
                    "threads: round {round}, {}, {clients} clients: {:.0} puts a second, {:.2} switches and {:.1} µs a put",
                    kind.name, cost.throughput, cost.switches, cost.micros
                );
                of[at].push(cost);
            }
        }
    }
    environment.end();
    let median = |times: &[f64]| statistics::median(times).unwrap_or(0.0) * 1e3;
    let (commit_ms, round_trip_ms) = (median(&commits), median(&round_trips));
    let least_ms = commit_ms + 2.0 * round_trip_ms;
    let mut text = format!(
        "# What a put costs, by the placement of stages on threads\n\n\
         Three servers of each kind and the load generator on {}. Puts of {VALUE_BYTES} bytes, fsynced; medians of {} rounds of {} s, and the range in \
         brackets. Switches and processor time are those of the three servers, without the generator. One client asks the \
         leader, more are spread over the servers.\n\n\
         A commit to the disk took {commit_ms:.3} ms and a round trip {round_trip_ms:.3} ms (medians), so the lone client \
         waits at least {least_ms:.3} ms.\n\n\
         | clients | servers | switches a put | µs of processors a put | puts/s | median, ms | 99th percentile, ms |\n\
         | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n",
        environment.in_words(),
        args.rounds,
        args.seconds,
    );
    for (clients, of) in args.clients.iter().zip(&costs) {
        for (kind, turns) in kinds.iter().zip(of) {
            let cell = |pick: fn(&Cost) -> f64, digits: usize| {
                let mut all: Vec<_> = turns.iter().map(pick).collect();
                all.sort_by(f64::total_cmp);
                let (least, most) = (all.first().copied().unwrap_or(0.0), all.last().copied().unwrap_or(0.0));
                let median = statistics::median(&all).unwrap_or(0.0);
                format!("{median:.digits$} [{least:.digits$}, {most:.digits$}]")
            };
            let _ = writeln!(
                text,
                "| {clients} | {} | {} | {} | {} | {} | {} |",
                kind.name,
                cell(|cost| cost.switches, 2),
                cell(|cost| cost.micros, 1),
                cell(|cost| cost.throughput, 0),
                cell(|cost| cost.median_ms, 2),
                cell(|cost| cost.p99_ms, 2),
            );
        }
    }
    if let Some(file) = &args.out {
        fs::write(file, &text).map_err(at(file))?;
    }
    Ok(text)
}

/// Starts servers of a kind, and measures each load once.
fn turn(kind: &Kind, args: &Args, conduct: &Conduct) -> Result<Vec<Cost>, LabError> {
    conduct.check()?;
    let folder = tempfile::tempdir_in(&args.folder).map_err(at(&args.folder))?;
    let replicas = |why: String| LabError::Replicas(format!("{}: {why}", kind.name));
    let mut cluster =
        Cluster::start_with(&kind.system, kind.arguments, folder.path(), SERVERS, FILES, RESIDENT_MAX)
            .map_err(replicas)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| replicas(error.to_string()))?;
    runtime.block_on(cluster.await_service()).map_err(replicas)?;
    let mut costs = Vec::new();
    for &clients in &args.clients {
        conduct.check()?;
        let mut options = Options {
            endpoints: cluster.servers.iter().map(|server| server.client.to_string()).collect(),
            target_leader: clients == 1,
            clients,
            ..Options::default()
        };
        options.load.val_size = VALUE_BYTES;
        options.load.duration = Some(WARM_UP);
        bench::run(Operation::Put, &options)?;
        options.load.duration = Some(Duration::from_secs(args.seconds));
        let pids = cluster.pids();
        let before = counted(&pids).map_err(|error| replicas(format!("/proc: {error}")))?;
        let report = bench::run(Operation::Put, &options)?;
        let after = counted(&pids).map_err(|error| replicas(format!("/proc: {error}")))?;
        if report.failed > 0 || report.answered == 0 {
            return Err(replicas(format!(
                "{} puts failed, {} were answered",
                report.failed, report.answered
            )));
        }
        let puts = report.answered as f64;
        costs.push(Cost {
            switches: after.switches.saturating_sub(before.switches) as f64 / puts,
            micros: after.nanos.saturating_sub(before.nanos) as f64 / 1e3 / puts,
            throughput: report.throughput,
            median_ms: report.latency.p50_us as f64 / 1e3,
            p99_ms: report.latency.p99_us as f64 / 1e3,
        });
    }
    if let Some(dead) = cluster.dead().pop() {
        return Err(replicas(dead));
    }
    Ok(costs)
}

/// What the threads of these processes did, all together.
fn counted(pids: &[u32]) -> io::Result<Counted> {
    let mut sum = Counted::default();
    for pid in pids {
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            // A thread may have ended since it was listed.
            let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
            let Ok(times) = fs::read_to_string(task.join("schedstat")) else { continue };
            sum.switches += switches(&status);
            sum.nanos += times.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}

/// How often a thread gave up its processor or lost it, from its `status`.
fn switches(status: &str) -> u64 {
    let lines = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
    lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// How long round trips between two threads take over the loopback interface, in seconds.
fn round_trip_times() -> io::Result<Vec<f64>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut there = TcpStream::connect(listener.local_addr()?)?;
    let (mut here, _) = listener.accept()?;
    there.set_nodelay(true)?;
    here.set_nodelay(true)?;
    let echo = thread::spawn(move || -> io::Result<()> {
        let mut bytes = [0; ROUND_TRIP_BYTES];
        for _ in 0..ROUND_TRIPS {
            here.read_exact(&mut bytes)?;
            here.write_all(&bytes)?;
        }
        Ok(())
    });
    let (mut times, mut bytes) = (Vec::new(), [7; ROUND_TRIP_BYTES]);
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        there.write_all(&bytes)?;
        there.read_exact(&mut bytes)?;
        times.push(began.elapsed().as_secs_f64());
    }
    echo.join().expect("it reports its errors")?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tprotocol-1\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(switches(status), 34);
    }

    #[test]
    fn this_process_is_counted_and_loopback_takes_time() {
        let before = counted(&[std::process::id()]).unwrap();
        let times = round_trip_times().unwrap();
        assert_eq!(times.len(), ROUND_TRIPS);
        assert!(times.iter().all(|time| *time > 0.0));
        let after = counted(&[std::process::id()]).unwrap();
        assert!(after.switches > before.switches, "{before:?} {after:?}");
    }
}
