//! `synod lab run chaos`: applies every fault to real replicas, and checks what clients saw.
//!
//! A seed draws a schedule of faults ([`Schedule`]). They are applied one after another to processes `synod
//! serve`, some of them together with an operator's action. Clients work without a pause and record what they
//! see; at the end [`History::check`](history::History::check) looks for a store that explains it. Watchers follow
//! everything that happens, and contenders hold locks; what they see is checked too. How a run proceeds, and how
//! operations and faults coincide, is different each time; the schedule is the same.
//!
//! Where the system allows it, everything happens in namespaces that the program makes and that end with it:
//! of networks, so that packets can be dropped; of mounts, so that each replica has a file system that can get
//! full and lose power; of processes, so that none survives. The program then runs twice: the outer one waits, and
//! tells the inner one to end by closing its standard input. Elsewhere replicas are behind the laboratory's relay.

mod clients;
mod cluster;
mod disks;
mod events;
pub mod history;
mod holders;
mod holds;
mod log;
mod network;
mod operator;
mod report;
mod run;
mod schedule;
mod timeline;
mod watchers;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::{Args as ClapArgs, ValueEnum};
use synod_consensus::{Dissemination, ProtocolKind};
use synod_wire::{Durability, Groups};
use tokio::time::{Instant, interval, sleep};

pub use self::schedule::{Fault, Schedule, Step, Victim};
use self::{
    clients::Clients,
    cluster::Cluster,
    disks::Disks,
    holders::Holders,
    log::Log,
    network::Network,
    operator::Operator,
    report::{Locks, Report, Watched},
    run::{Run, Tally},
    timeline::Timeline,
    watchers::Watchers,
};
use crate::{
    figure::{Figure, numbers::date},
    net::namespaces,
    strace,
    study::{Environment, commit_of},
};

/// The arguments of `synod lab run chaos`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The protocol, except during a change-protocol.
    #[arg(long, default_value = "multipaxos")]
    protocol: ProtocolKind,
    /// How batches reach all replicas.
    #[arg(long, default_value = "leader")]
    dissemination: Dissemination,
    /// The groups of the cluster, as `serve --groups`: merge:N, or shard:1.
    #[arg(long, default_value_t = Groups::ONE, value_parser = groups)]
    groups: Groups,
    /// Options of the protocol, as `serve --options`: KEY=VALUE,...
    #[arg(long, default_value = "")]
    options: String,
    /// How long faults are applied; longer if some fault has not had its turn by then. All of them take about 90 s.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The seed of the schedule of faults [default: another each time].
    #[arg(long)]
    seed: Option<u64>,
    /// How many replicas.
    #[arg(long, default_value_t = 3, value_parser = replicas)]
    replicas: usize,
    /// The folder for logs and data, which must be empty or not exist; they stay there [default: a temporary
    /// folder, which stays only if the run fails].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// What a replica waits for before it says something, as `serve --durability`. Anything but sync is a control: it
    /// loses writes when all lose power, and the run has to find that.
    #[arg(long, default_value = "sync", value_parser = durability)]
    durability: Durability,
    /// Faults to apply [default: all that the machine and the network allow].
    #[arg(long, value_name = "FAULT,...", value_delimiter = ',')]
    faults: Vec<Fault>,
    /// The network between the replicas [default: namespaces where the system allows them].
    #[arg(long)]
    network: Option<Ground>,
    /// The program `synod` [default: this one, or the one built beside it].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Do not show progress.
    #[arg(long)]
    quiet: bool,
    /// This is the inner program: it runs in namespaces of its own, and ends with its standard input.
    #[arg(long, hide = true, requires_all = ["data", "seed"])]
    inside: bool,
}

/// The network between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ground {
    /// Each replica has a network and a file system of its own.
    Namespaces,
    /// The loopback interface and the laboratory's relay. Disks can neither be filled up nor lose power.
    Relay,
}

fn replicas(text: &str) -> Result<usize, String> {
    match text {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("accepted: 3, 5".to_owned()),
    }
}

fn groups(text: &str) -> Result<Groups, String> {
    let groups: Groups = text.parse().map_err(|error: synod_wire::UnknownGroups| error.to_string())?;
    // The clients use etcd's API.
    let one_store = groups.merged.is_some() || groups == Groups::ONE;
    if one_store { Ok(groups) } else { Err("accepted: merge:N, shard:1".to_owned()) }
}

fn durability(text: &str) -> Result<Durability, String> {
    match text.parse() {
        Ok(kept @ (Durability::Sync | Durability::View | Durability::Async)) => Ok(kept),
        // The others end with the first replica that is killed.
        _ => Err("accepted: sync, view, async".to_owned()),
    }
}

/// Why there is no verdict.
#[derive(Debug)]
enum Stopped {
    /// An argument is not valid.
    Usage(String),
    /// Something that a run needs does not work.
    Failed(String),
    /// SIGINT or SIGTERM.
    Interrupted,
}

impl From<String> for Stopped {
    fn from(why: String) -> Stopped {
        Stopped::Failed(why)
    }
}

/// Runs chaos and prints the report. The exit code is 0 if nothing was found and every fault was covered, 1
/// otherwise, 2 for a wrong argument, and 130 after SIGINT or SIGTERM.
pub(crate) fn main(args: &Args, interrupted: &Arc<AtomicBool>, own_program: &Path) -> ExitCode {
    let outcome = if args.inside {
        inside(args, interrupted, own_program)
    } else {
        outside(args, interrupted, own_program)
    };
    let (error, code) = match outcome {
        Ok(code) => return code,
        Err(Stopped::Usage(why)) => (why, 2),
        Err(Stopped::Failed(why)) => (why, 1),
        // The program outside of the namespaces reports the interruption.
        Err(Stopped::Interrupted) if args.inside => return ExitCode::from(130),
        Err(Stopped::Interrupted) => ("interrupted".to_owned(), 130),
    };
    eprintln!("error: {error}");
    ExitCode::from(code)
}

/// Chooses the network, and starts the run there.
fn outside(args: &Args, interrupted: &Arc<AtomicBool>, own_program: &Path) -> Result<ExitCode, Stopped> {
    let failed = |what: &str, error: std::io::Error| Stopped::Failed(format!("{what}: {error}"));
    let ground = match (args.network, namespaces::rehearse()) {
        (Some(Ground::Relay), _) => Ground::Relay,
        (_, Ok(())) => Ground::Namespaces,
        (Some(Ground::Namespaces), Err(why)) => {
            return Err(Stopped::Failed(format!(
                "--network namespaces: {why}; run it as root, or with --network relay"
            )));
        }
        (None, Err(why)) => {
            eprintln!(
                "there are no namespaces to be had ({why}): replicas are behind a relay, and no disk is filled up or \
                 loses power"
            );
            Ground::Relay
        }
    };
    let on_disks = [Fault::DiskFull, Fault::PowerLoss, Fault::PowerLossAll];
    if let Some(fault) = on_disks.into_iter().find(|fault| args.faults.contains(fault))
        && ground == Ground::Relay
    {
        return Err(Stopped::Usage(format!("--faults {}: only with --network namespaces", fault.name())));
    }
    let mut temporary = None;
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => {
            let folder = tempfile::Builder::new().prefix("synod-chaos-").tempdir();
            temporary.insert(folder.map_err(|error| failed("temporary folder", error))?).path().to_owned()
        }
    };
    fs::create_dir_all(&folder).map_err(|error| failed("--data", error))?;
    if fs::read_dir(&folder).map_err(|error| failed("--data", error))?.next().is_some() {
        return Err(Stopped::Usage(format!("--data {}: it is not empty", folder.display())));
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let outcome = match ground {
        Ground::Namespaces => in_namespaces(args, interrupted, &folder, seed),
        Ground::Relay => {
            let network = Network::relay(args.replicas)?;
            start(args, seed, &folder, network, interrupted, own_program)
        }
    };
    if let Some(temporary) = temporary
        && !matches!(outcome, Ok(code) if code == ExitCode::SUCCESS)
        && !matches!(outcome, Err(Stopped::Interrupted))
    {
        eprintln!("logs and data stay in {}", temporary.keep().display());
    }
    outcome
}

/// Runs this program again, in namespaces of its own, with the same arguments.
fn in_namespaces(
    args: &Args,
    interrupted: &Arc<AtomicBool>,
    folder: &Path,
    seed: u64,
) -> Result<ExitCode, Stopped> {
    let failed = |error: std::io::Error| Stopped::Failed(format!("the run in namespaces: {error}"));
    let mut more: Vec<&OsStr> = vec!["--inside".as_ref()];
    let seed = seed.to_string();
    if args.seed.is_none() {
        more.extend(["--seed".as_ref(), OsStr::new(&seed)]);
    }
    if args.data.is_none() {
        more.extend(["--data".as_ref(), folder.as_os_str()]);
    }
    let status = namespaces::run_again(&more, interrupted).map_err(failed)?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(130) => Err(Stopped::Interrupted),
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(Stopped::Failed(format!("the run in namespaces ended: {status}"))),
    }
}

fn inside(args: &Args, interrupted: &Arc<AtomicBool>, own_program: &Path) -> Result<ExitCode, Stopped> {
    let (Some(folder), Some(seed)) = (&args.data, args.seed) else { unreachable!("they are required") };
    namespaces::heed_parent(interrupted);
    // Only `strace` looks there, which says so if it finds no process.
    let _ = namespaces::show_own_processes();
    start(args, seed, folder, Network::namespaces(args.replicas)?, interrupted, own_program)
}

/// Runs it here.
fn start(
    args: &Args,
    seed: u64,
    folder: &Path,
    network: Network,
    interrupted: &AtomicBool,
    own_program: &Path,
) -> Result<ExitCode, Stopped> {
    let program = args.program.clone().unwrap_or_else(|| own_program.to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("threads: {error}"))?;
    let (report, figure) = runtime.block_on(async {
        let stopped = async {
            while !interrupted.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            report = measure(args, seed, folder, network, &program) => report.map_err(Stopped::Failed),
            () = stopped => Err(Stopped::Interrupted),
        }
    })?;
    println!("{report}");
    let text = format!("{report}\n![Operations over time](timeline.svg)\n");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| Stopped::Failed(format!("{}: {error}", path.display())))
    };
    write("report.md", &text)?;
    let drawn = figure.write(&folder.join("timeline"));
    drawn.map_err(|(path, error)| Stopped::Failed(format!("{}: {error}", path.display())))?;
    let violations: Vec<&str> = report.violations().collect();
    if !violations.is_empty() {
        write("violations.txt", &violations.join("\n"))?;
    }
    Ok(if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(
    args: &Args,
    seed: u64,
    folder: &Path,
    network: Network,
    program: &Path,
) -> Result<(Report, Figure), String> {
    let disks = disks(args, folder, &network)?;
    let (faults, left_out) = faults(args, &disks, folder)?;
    let on = format!("{}; {}", network.describe(), disks.describe());
    let mut environment = Environment::now(commit_of(program), on.clone());
    let cluster = Cluster::start(program, folder, flags(args), network, disks)?;
    let endpoints = cluster.endpoints();
    let refused = |error: synod_client::Error| error.to_string();
    let operator = Operator::new(&endpoints).map_err(refused)?;
    let log = Log::new(&folder.join("events.log"), args.seconds, !args.quiet)?;
    let tallies: BTreeMap<_, _> = faults.iter().map(|&fault| (fault, Tally::default())).collect();
    let clients = Clients::start(&endpoints, seed).map_err(refused)?;
    let mut watchers = Watchers::start(&endpoints, seed).map_err(refused)?;
    let mut holders = Holders::start(&endpoints, seed).map_err(refused)?;
    let longest_gap = (Duration::ZERO, 0.0, String::new());
    let timeline = Timeline::begin(clients.pulse());
    let mut run = Run {
        cluster,
        clients,
        operator,
        protocol: args.protocol,
        durability: args.durability,
        tallies,
        longest_gap,
        log,
        timeline,
    };
    announce(&mut run.log, args, seed, &on, &left_out);
    run.await_service("the start").await?;
    run.clients.pulse().longest_gap();

    let began = Instant::now();
    let housekeeping =
        tokio::spawn(keep_house(run.log.bar(), run.clients.pulse(), run.operator.clone(), watchers.shared()));
    let broken = play(&mut run, Schedule::new(seed, &faults, args.replicas), args.seconds).await;
    let mut broken = Vec::from_iter(broken);
    let gap = run.clients.pulse().longest_gap();
    run.note_gap(gap, "the last fault");
    let took = began.elapsed();
    let figure = run.timeline.end();
    housekeeping.abort();
    run.log.say("reading every key once more, comparing replicas, checking the history");
    let in_order = broken.is_empty();
    if let Err(error) = run.clients.stop().await {
        broken.push(format!("a key cannot be read in the end: {error}"));
    }
    holders.stop().await;
    let (watched, locks) = settle(&run, &mut watchers, &holders, in_order, &mut broken).await;
    if in_order {
        broken.extend(run.operator.compare().await.err());
        broken.extend(run.cluster.stop().err());
    }
    let findings = run.clients.history().check();
    let nothing_found =
        findings.violations.is_empty() && watched.violations.is_empty() && locks.violations.is_empty();
    if !(broken.is_empty() && nothing_found) {
        run.cluster.keep()?;
    }
    environment.end();
    let figure = Figure { caption: caption(args, seed, &environment), ..figure };
    let report = Report {
        setup: setup(args, seed, &on, &left_out, &environment),
        took,
        tallies: run.tallies,
        longest_gap: run.longest_gap,
        findings,
        watched,
        locks,
        broken,
    };
    Ok((report, figure))
}

fn disks(args: &Args, folder: &Path, network: &Network) -> Result<Disks, String> {
    match network.addresses[0].namespace {
        Some(_) => Disks::mounted(folder, args.replicas),
        None => Disks::folders(folder, args.replicas),
    }
}

/// The flags of `synod serve`.
fn flags(args: &Args) -> Vec<String> {
    let mut flags = vec![
        format!("--protocol={}", args.protocol),
        format!("--dissemination={}", args.dissemination),
        format!("--groups={}", args.groups),
        format!("--durability={}", args.durability),
        // Options that exist to be measured are attacked too.
        "--laboratory".to_owned(),
    ];
    if !args.options.is_empty() {
        flags.push(format!("--options={}", args.options));
    }
    flags
}

fn announce(log: &mut Log, args: &Args, seed: u64, on: &str, left_out: &[String]) {
    log.say(&format!(
        "seed {seed}: {}, dissemination {}, {}, {} replicas, {on}",
        args.protocol, args.dissemination, args.groups, args.replicas
    ));
    left_out.iter().for_each(|why| log.say(why));
}

/// Applies faults for this many seconds, each at least once. Returns a promise that was broken, which ends it.
async fn play(run: &mut Run, steps: Schedule, seconds: u64) -> Option<String> {
    let began = Instant::now();
    for (turn, step) in steps.enumerate() {
        if turn >= run.tallies.len() && began.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        if let Err(why) = run.step(&step).await {
            run.log.say(&format!("BROKEN: {why}"));
            return Some(why);
        }
    }
    None
}

/// The caption: what the figure itself does not show.
fn caption(args: &Args, seed: u64, environment: &Environment) -> Vec<String> {
    let day = date(environment.began);
    vec![
        "In each tenth of a second; dashed vertical lines: where a fault begins.".to_owned(),
        format!(
            "Clients, {} replicas and everything else on one machine with {} cores.",
            args.replicas, environment.cores
        ),
        format!(
            "synod lab run chaos, {}, dissemination {}, {}, seed {seed}, {day}, {}.",
            args.protocol,
            args.dissemination,
            args.groups,
            environment.program()
        ),
    ]
}

/// Waits until watchers have been told everything, if the run is in order, and checks what they and the holders of
/// locks saw.
async fn settle(
    run: &Run,
    watchers: &mut Watchers,
    holders: &Holders,
    in_order: bool,
    broken: &mut Vec<String>,
) -> (Watched, Locks) {
    let held = if in_order { run.operator.everything().await } else { Err("nothing is read".to_owned()) };
    let until = match &held {
        Ok((revision, _)) => {
            watchers.stop(*revision).await;
            *revision
        }
        Err(why) => {
            watchers.abort();
            if in_order {
                broken.push(format!("the store cannot be read in the end: {why}"));
            }
            i64::MAX
        }
    };
    let shared = watchers.shared();
    let ledger = shared.ledger();
    let record = holders.record();
    let mut known = run.clients.history().known();
    known.extend(record.written.iter().map(|(_, known)| known.clone()));
    let held = held.ok().map(|(_, held)| held);
    let watched = Watched {
        watchers: ledger.watchers().to_vec(),
        known: known.len(),
        violations: ledger.check(until, &known, held.as_deref()),
    };
    let mut written = holders::told(&ledger);
    written.extend(record.written.iter().map(|(fenced, _)| *fenced));
    let mut violations = record.violations.clone();
    violations.extend(holds::check(&record.holds, &written));
    (watched, Locks { changes: holds::changes(&record.holds), record, violations })
}

/// The faults of the run: those that were asked for, or all that can be applied here; and why others are left out. The
/// error names a fault that was asked for and cannot be applied.
fn faults(args: &Args, disks: &Disks, folder: &Path) -> Result<(Vec<Fault>, Vec<String>), String> {
    let asked = if args.faults.is_empty() { Fault::ALL } else { &args.faults };
    let no_strace = asked.contains(&Fault::SlowDisk).then(|| strace::rehearse(folder).err()).flatten();
    let obstacle = |fault: Fault| match fault {
        Fault::DiskFull => (!disks.are_mounted()).then(|| "only with --network namespaces".to_owned()),
        Fault::PowerLoss | Fault::PowerLossAll => disks.no_power_loss(),
        Fault::SlowDisk => no_strace.clone(),
        _ => None,
    };
    let (mut faults, mut left_out) = (Vec::new(), Vec::new());
    for &fault in asked {
        match obstacle(fault) {
            None => faults.push(fault),
            Some(why) if args.faults.is_empty() => {
                left_out.push(format!("{} is left out: {why}", fault.name()))
            }
            Some(why) => return Err(format!("--faults {}: {why}", fault.name())),
        }
    }
    Ok((faults, left_out))
}

fn setup(
    args: &Args,
    seed: u64,
    on: &str,
    left_out: &[String],
    environment: &Environment,
) -> Vec<(&'static str, String)> {
    let Environment { cores, processor, kernel, load_before, load_after, .. } = environment;
    let load = |load: &Option<f64>| load.unwrap_or(0.0);
    let build = if environment.optimised { "" } else { ", built without optimisations" };
    let machine = format!(
        "{cores} cores of {}, {kernel}; load average {:.1} before and {:.1} after{build}",
        processor.as_deref().unwrap_or("an unknown processor"),
        load(load_before),
        load(load_after),
    );
    vec![
        ("Seed", seed.to_string()),
        ("Protocol", args.protocol.to_string()),
        ("Dissemination", args.dissemination.to_string()),
        ("Groups", args.groups.to_string()),
        ("Options", if args.options.is_empty() { "none".to_owned() } else { args.options.clone() }),
        ("Durability", args.durability.to_string()),
        ("Replicas", format!("{}: {on}", args.replicas)),
        ("Faults left out", if left_out.is_empty() { "none".to_owned() } else { left_out.join("; ") }),
        ("Machine", machine),
    ]
}

/// Keeps the bar up to date, and the store small: it compacts versions that are no longer read.
async fn keep_house(
    bar: indicatif::ProgressBar,
    pulse: Arc<clients::Pulse>,
    operator: Operator,
    watched: Arc<watchers::Shared>,
) {
    let (began, mut before) = (Instant::now(), 0);
    let mut tick = interval(Duration::from_secs(1));
    for second in 1_u64.. {
        tick.tick().await;
        let completed = pulse.completed();
        bar.set_position(began.elapsed().as_secs());
        bar.set_message(format!("{completed} operations, {} a second", completed - before));
        before = completed;
        if second.is_multiple_of(5) {
            // Compaction may fail during a fault; the next round tries again.
            let _ = operator.compact(2000, |revision| watched.compact(revision)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_fault_that_cannot_be_applied_is_left_out_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks::folders(folder.path(), 3).unwrap();
        let faults = |line: &[&str]| {
            let line = ["chaos"].iter().chain(line);
            faults(&Line::parse_from(line).args, &disks, folder.path())
        };
        let (all, left_out) = faults(&[]).unwrap();
        assert!(
            all.contains(&Fault::Kill)
                && all.contains(&Fault::Wipe)
                && all.len() + left_out.len() == Fault::ALL.len()
        );
        for fault in ["disk-full", "power-loss", "power-loss-all"] {
            let why = format!("{fault} is left out: only with --network namespaces");
            assert!(left_out.contains(&why), "{left_out:?}");
            assert!(faults(&["--faults", fault]).unwrap_err().starts_with(&format!("--faults {fault}: ")));
        }
        assert_eq!(faults(&["--faults", "wipe"]).unwrap(), (vec![Fault::Wipe], vec![]));
    }

    #[test]
    fn a_durability_that_ends_with_the_first_kill_is_refused() {
        assert_eq!(durability("async"), Ok(Durability::Async));
        assert_eq!(durability("memory").unwrap_err(), "accepted: sync, view, async");
    }
}
