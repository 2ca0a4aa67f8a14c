//! `synod lab run calibrate`: measures on this machine what work costs the program, and what virtual time foretells
//! with these costs.
//!
//! Groups of one, three and five processes run under several loads. What the processors spent on each replica is
//! explained as so much for each command that it took from clients, for each that it executed, for each message and
//! byte that it exchanged, and for each burst in which it handled what had come (`fit`). A commit is timed on the real
//! log. Groups of three and five then run under loads that the costs were not fitted to, and virtual time runs the
//! same, all replicas and the client on as many processors as this machine has: the differences are the model's error.

pub(crate) mod fit;
pub(crate) mod sample;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Args as ClapArgs;
use synod_consensus::{
    Dissemination::{self, Balanced, Leader},
    ProtocolKind,
};
use synod_storage::{Durability, Identity, Keep, Options, Wal};
use synod_wire::{ClusterId, Incarnation, ReplicaId, Slot, Writer};

use self::fit::{Price, Row};
use crate::{
    ground::{
        Asked, Load, Ordering, Outcome, Setup,
        hardware::{Costs, Hardware},
        virtual_time::{self, Traffic},
    },
    net::Topology,
    statistics,
    study::{Conduct, Environment, LabError, at, commit_of},
};

/// The arguments of `synod lab run calibrate`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The folder for `costs.toml`, which experiments read (`--set costs=DIR/costs.toml`), and `calibration.md`. The
    /// commits are timed in it, so it should lie on the disk that matters.
    #[arg(long, value_name = "DIR", default_value = "lab/calibration")]
    out: PathBuf,
    /// How long each load is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The program `synod` [default: this one, or the one built beside it].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// A load: replicas, clients, bytes of a value, and whether all replicas disseminate.
type Scene = (usize, usize, usize, Dissemination);

/// The loads that the costs are fitted to. A single replica exchanges no messages, and with few clients nearly every
/// command is a burst of its own: these loads tell what a burst costs apart from what a message does.
const FITTED: &[Scene] = &[
    (1, 1, 8, Leader),
    (1, 4, 8, Leader),
    (1, 16, 8, Leader),
    (1, 64, 8, Leader),
    (1, 512, 8, Leader),
    (1, 512, 1024, Leader),
    (3, 4, 8, Leader),
    (3, 64, 8, Leader),
    (3, 64, 1024, Leader),
    (3, 256, 256, Leader),
    (3, 512, 8, Leader),
    (3, 512, 1024, Leader),
    (5, 256, 8, Leader),
    (3, 64, 8, Balanced),
    (3, 512, 8, Balanced),
    (3, 512, 1024, Balanced),
    (5, 256, 8, Balanced),
];
/// The loads that virtual time foretells.
const FORETOLD: &[(Scene, Durability)] = &[
    ((3, 16, 8, Leader), Durability::Memory),
    ((3, 128, 64, Leader), Durability::Memory),
    ((3, 384, 512, Leader), Durability::Memory),
    ((3, 128, 64, Balanced), Durability::Memory),
    ((3, 128, 64, Leader), Durability::Sync),
    ((5, 16, 8, Leader), Durability::Memory),
    ((5, 128, 64, Leader), Durability::Memory),
    ((5, 384, 512, Leader), Durability::Memory),
    ((5, 128, 64, Balanced), Durability::Memory),
    ((5, 128, 64, Leader), Durability::Sync),
];
/// Commits that are timed, and the bytes of the record in each.
const COMMITS: usize = 200;
const RECORD_BYTES: usize = 1024;
/// What a put has in the log besides its value: the key, and what the API writes around both.
const PUT_BYTES: usize = 20;
/// The window of virtual time.
const FORETOLD_WINDOW: Duration = Duration::from_millis(500);

/// Calibrates, writes the files, and returns the report.
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
    fs::create_dir_all(&args.out).map_err(at(&args.out))?;
    let window = Duration::from_secs(args.seconds);
    let mut environment = Environment::now(commit_of(&conduct.program), String::new());
    let commits = commit_times(&args.out)?;
    let fsync_micros = statistics::median(&commits).unwrap_or(0.0) * 1e6;

    let mut measured = Vec::new();
    for &scene in FITTED {
        let (setup, load) = real(scene, Durability::Memory, window);
        let one = sample::measure(&setup, &load, conduct)?;
        eprintln!("calibrate: {}: {:.0} puts a second", one.what, one.throughput);
        measured.push((scene, one));
    }
    let puts: f64 = measured.iter().map(|(_, one)| one.throughput).sum();
    let client = measured.iter().map(|(_, one)| one.client_nanos * one.throughput).sum::<f64>() / puts;
    let rows: Vec<Row> = measured.iter().flat_map(|(scene, one)| one.rows(scene.2 + PUT_BYTES)).collect();
    let price = fit::fit(&rows).ok_or_else(|| LabError::Replicas("nothing was measured".to_owned()))?;
    environment.end();
    let machine = environment.in_words();
    let costs = Costs {
        about: format!("Measured by `synod lab run calibrate` on {machine}.").into(),
        burst_nanos: price.burst,
        message_nanos: price.message,
        byte_nanos: price.byte,
        request_nanos: price.request,
        execute_nanos: price.execute,
        client_nanos: client,
        fsync_micros,
    };
    let costs = costs.rounded();
    let file = args.out.join("costs.toml");
    let text = toml::to_string(&costs).expect("figures and a text can be written");
    fs::write(&file, text).map_err(at(&file))?;

    let mut report = costs_in_words(&costs, &commits, &rows, &price, &machine);
    foretell(&costs, environment.cores, window, conduct, &mut report)?;
    let file = args.out.join("calibration.md");
    fs::write(&file, &report).map_err(at(&file))?;
    let _ = write!(report, "\nFiles: {}", args.out.display());
    Ok(report)
}

/// A load for processes.
fn real(
    (replicas, clients, value_bytes, how): Scene,
    durability: Durability,
    window: Duration,
) -> (Setup, Load) {
    let ordering = Ordering::of(ProtocolKind::MultiPaxos);
    let mut setup = Setup { durability, ..Setup::new(replicas, ordering.protocol, ordering.election) };
    setup.settings.consensus.dissemination = how;
    let asked = if how == Balanced { Asked::All } else { Asked::Leader };
    (setup, Load { value_bytes, asked, warm_up: Duration::from_secs(1), ..Load::new(clients, window) })
}

/// The same load in virtual time, where all share as many processors.
fn foretold(
    scene: Scene,
    durability: Durability,
    (costs, cores): (&Costs, usize),
    conduct: &Conduct,
) -> Result<(Outcome, Traffic), LabError> {
    let (mut setup, mut load) = real(scene, durability, FORETOLD_WINDOW);
    setup.hardware = Hardware { costs: costs.clone(), shared_processors: Some(cores), ..Hardware::default() };
    setup.topology = Some(loopback()?);
    load.value_bytes += PUT_BYTES;
    load.warm_up = FORETOLD_WINDOW / 4;
    virtual_time::run(&setup, &load, conduct)
}

/// How long commits of one record take on the real log that wait for the disk, in seconds.
pub(crate) fn commit_times(folder: &Path) -> Result<Vec<f64>, LabError> {
    let failed = |error: synod_storage::StorageError| LabError::Replicas(format!("log: {error}"));
    let folder = tempfile::tempdir_in(folder).map_err(at(folder))?;
    let (cluster, incarnation) = (ClusterId(1), Incarnation(1));
    let identity = Identity { cluster, replica: ReplicaId(1), birth: 1, incarnation };
    let (mut wal, _) = Wal::open(folder.path(), identity, Options::default()).map_err(failed)?;
    let mut times = Vec::new();
    for slot in 0..=COMMITS {
        let mut writer = Writer::new();
        writer.bytes(&Bytes::from(vec![7; RECORD_BYTES]));
        wal.append_to(synod_wire::GroupId::FIRST, Keep::Slot(Slot(slot as u64 + 1)), writer.finish());
        let began = Instant::now();
        wal.commit().map_err(failed)?;
        // The first one makes files, too.
        if slot > 0 {
            times.push(began.elapsed().as_secs_f64());
        }
    }
    wal.close().map_err(failed)?;
    Ok(times)
}

fn costs_in_words(costs: &Costs, commits: &[f64], rows: &[Row], price: &Price, machine: &str) -> String {
    let mut text = format!("# Costs of virtual time\n\nOn: {machine}.\n\n");
    let micros = |nanos: f64| format!("{:.2} µs", nanos / 1e3);
    let mut slowest = commits.to_vec();
    slowest.sort_by(f64::total_cmp);
    let late = slowest.get(slowest.len() * 99 / 100).copied().unwrap_or(0.0) * 1e6;
    let _ = write!(
        text,
        "| what | costs |\n| --- | ---: |\n\
         | a command that is taken from a client and answered | {} |\n\
         | a command that is executed, at each replica | {} |\n\
         | a burst of what came meanwhile | {} |\n\
         | a message, to its sender and to its receiver | {} |\n\
         | a byte of a message or command | {:.2} ns |\n\
         | a command, to the load generator | {} |\n\
         | a commit that waits for the disk: median of {COMMITS} (99th percentile) | {:.0} µs ({late:.0} µs) |\n\n",
        micros(costs.request_nanos),
        micros(costs.execute_nanos),
        micros(costs.burst_nanos),
        micros(costs.message_nanos),
        costs.byte_nanos,
        micros(costs.client_nanos),
        costs.fsync_micros,
    );
    let _ = write!(
        text,
        "What each replica spent, and what these costs say:\n\n\
         | replica | commands taken a second | executed a second | bursts a second | messages a second | \
         Mbyte a second | processor, % | by the costs, % |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} |",
            row.what,
            row.requests,
            row.executed,
            row.bursts,
            row.messages,
            row.bytes / 1e6,
            row.busy * 100.0,
            price.of(row) * 100.0
        );
    }
    text
}

/// Runs groups in reality and in virtual time, and adds a table of both.
fn foretell(
    costs: &Costs,
    cores: usize,
    window: Duration,
    conduct: &Conduct,
    text: &mut String,
) -> Result<(), LabError> {
    text.push_str(
        "\nLoads that the costs were not fitted to, on processes and in virtual time. Other programs take processors from \
         real groups, but not what a put costs them.\n\n\
         | load | puts a second | in virtual time | error | processors used | a put, µs of processors | in virtual time | \
         error | median, ms | in virtual time |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut errors = Vec::new();
    for &(scene, durability) in FORETOLD {
        let (setup, load) = real(scene, durability, window);
        let one = sample::measure(&setup, &load, conduct)?;
        eprintln!("calibrate: {}: {:.0} puts a second", one.what, one.throughput);
        let (outcome, traffic) = foretold(scene, durability, (costs, cores), conduct)?;
        let puts = outcome.answered as f64 / outcome.seconds;
        let busy = traffic.leader.busy + (scene.0 - 1) as f64 * traffic.follower.busy;
        let micros = busy / outcome.answered.max(1) as f64 * 1e6 + costs.client_nanos / 1e3;
        let (of_puts, of_micros) = (puts / one.throughput - 1.0, micros / one.micros() - 1.0);
        errors.push((scene.0, of_puts.abs(), of_micros.abs()));
        let _ = writeln!(
            text,
            "| {} | {:.0} | {puts:.0} | {:+.0} % | {:.2} | {:.1} | {micros:.1} | {:+.0} % | {:.2} | {:.2} |",
            one.what,
            one.throughput,
            of_puts * 100.0,
            one.processors(),
            one.micros(),
            of_micros * 100.0,
            one.median_ms,
            outcome.latency.value_at_quantile(0.5) as f64 / 1e6,
        );
    }
    for size in [3, 5] {
        let of = |pick: fn(&(usize, f64, f64)) -> f64| {
            let own = errors.iter().filter(|(replicas, ..)| *replicas == size).map(pick);
            let own: Vec<f64> = own.map(|error| error * 100.0).collect();
            (own.iter().sum::<f64>() / own.len() as f64, own.iter().copied().fold(0.0, f64::max))
        };
        let ((puts, puts_most), (micros, micros_most)) = (of(|error| error.1), of(|error| error.2));
        let _ = writeln!(
            text,
            "\nWith {size} replicas virtual time is off by {puts:.0} % in puts a second (at most {puts_most:.0} %), and by \
             {micros:.0} % in what a put costs (at most {micros_most:.0} %)."
        );
    }
    Ok(())
}

/// The network of one machine: no delay.
fn loopback() -> Result<Topology, LabError> {
    Topology::parse("loopback", "about = 'one machine'\nreplicas = ['here']\nclient = 'here'\nlink = []")
}

impl Costs {
    /// With as many digits as they deserve.
    pub(crate) fn rounded(self) -> Costs {
        let round = |value: f64| format!("{value:.3e}").parse().unwrap_or(value);
        Costs {
            message_nanos: round(self.message_nanos),
            burst_nanos: round(self.burst_nanos),
            byte_nanos: round(self.byte_nanos),
            request_nanos: round(self.request_nanos),
            execute_nanos: round(self.execute_nanos),
            client_nanos: round(self.client_nanos),
            fsync_micros: round(self.fsync_micros),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_of_the_real_log_take_time() {
        let folder = tempfile::tempdir().unwrap();
        let times = commit_times(folder.path()).unwrap();
        assert_eq!(times.len(), COMMITS);
        assert!(times.iter().all(|time| *time > 0.0));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "it leaves nothing behind");
    }
}
