//! `synod lab`: experiments by name, and their report.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use clap::{Args as ClapArgs, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    attacks, calibrate, chaos, experiments,
    ground::Ground,
    likeness, model,
    net::namespaces,
    overload, report,
    study::{self, COMMON_PARAMETERS, Conduct, Experiment, LabError, Parameters, RunOptions, Summary},
    threads,
};

/// The arguments of `synod lab`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show the experiments, or the parameters of some
    List {
        /// Experiments to show in full.
        names: Vec<String>,
    },
    /// Run experiments, or `all` of them, and judge the results; or attack real replicas (`chaos`,
    /// `attacks`), compare them with etcd (`likeness`), or measure what work costs (`calibrate`,
    /// `threads`) and what is served when too much is asked for (`overload`)
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Run {
        #[command(subcommand)]
        special: Option<Special>,
        /// The experiments.
        #[arg(required = true)]
        names: Vec<String>,
        /// The folder for the results, with a folder for each experiment (NAME-GROUND if it runs on another
        /// ground than usual).
        #[arg(long, value_name = "DIR", default_value = "lab")]
        out: PathBuf,
        /// Set a parameter.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Run longer and more often: an hour rather than minutes.
        #[arg(long)]
        full: bool,
        /// The commit that is measured, for the report.
        #[arg(long, value_name = "ID")]
        commit: Option<String>,
        /// The program `synod`, for experiments with processes [default: this one, or the one built beside it].
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Do not show progress.
        #[arg(long)]
        quiet: bool,
        /// This program was started in namespaces of its own.
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Print what a document's formulas foretell
    Model(model::Args),
    /// Write report.html, with every chart, from the results of `run`; or, with --out, a page for each document
    Report {
        /// The folder with the results of `run` [default: lab; with --out: none, so that the pages are written again
        /// from what is kept].
        #[arg(value_name = "RUNS")]
        folder: Option<PathBuf>,
        /// The folder of the pages, such as docs/results. What they need of each run is kept in its folder `data`; runs
        /// that are kept there and not in RUNS stay as they are.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Runs that are not experiments.
#[derive(Clone, Debug, Subcommand)]
enum Special {
    /// Kill, pause, cut off, fill up, slow down, wipe, reconfigure and replace real replicas under load, cut their
    /// power, and check what clients saw
    Chaos(Box<chaos::Args>),
    /// Do to real replicas, and to etcd beside them, what a hostile client can, and judge what honest clients notice
    Attacks(Box<attacks::Args>),
    /// Send the same random requests to real replicas and to etcd, and compare every answer
    Likeness(Box<likeness::Args>),
    /// Measure what a message, a byte, a command and an fsync cost real replicas, and how well virtual time foretells
    /// them
    Calibrate(Box<calibrate::Args>),
    /// Measure switches of threads, processor time, puts a second and latency for each placement of a replica's stages
    /// on threads, and of etcd beside it
    Threads(Box<threads::Args>),
    /// Ask real replicas with slow disks, and etcd beside them, for more than they can order, and judge what is
    /// answered in time
    Overload(Box<overload::Args>),
}

/// Runs `synod lab`, and prints what it has to say. The exit code is 0 if the command could be carried out,
/// whatever the verdicts; 1 otherwise, and 2 for a wrong argument. A run of chaos, attacks or likeness also
/// fails if something was found.
#[must_use]
pub fn main(args: Args) -> ExitCode {
    let outcome = match args.command {
        Command::List { names } => list(&names),
        Command::Report { folder, out } => write_report(folder.as_deref(), out.as_deref()),
        Command::Model(args) => model::run(&args).map(|table| println!("{table}")),
        Command::Run { special: Some(special), .. } => {
            return match (interruption(), own_program()) {
                (Ok(interrupted), Ok(program)) => match special {
                    Special::Chaos(args) => chaos::main(&args, &interrupted, &program),
                    Special::Attacks(args) => attacks::main(&args, &interrupted, &program),
                    Special::Likeness(args) => likeness::main(&args, &interrupted, &program),
                    Special::Calibrate(args) => told(calibrate::run(&args, &interrupted, &program)),
                    Special::Threads(args) => told(threads::run(&args, &interrupted, &program)),
                    Special::Overload(args) => told(overload::run(&args, &interrupted, &program)),
                },
                (Err(error), _) | (_, Err(error)) => {
                    eprintln!("error: {error}");
                    ExitCode::FAILURE
                }
            };
        }
        Command::Run { special: None, names, out, set, full, commit, program, quiet, inside } => {
            let options = RunOptions { folder: out, full, set, commit, progress: !quiet };
            run(&names, &options, program, inside)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let usage = matches!(
                error,
                LabError::UnknownExperiment { .. }
                    | LabError::Parameter { .. }
                    | LabError::Topology { .. }
                    | LabError::Costs { .. }
                    | LabError::Model(_)
            );
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// Prints what was measured. The exit code is 0 if all could be.
fn told(report: Result<String, LabError>) -> ExitCode {
    match report {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list(names: &[String]) -> Result<(), LabError> {
    if names.is_empty() {
        for experiment in experiments::ALL {
            println!("{:24} {}\n{:24} {}", experiment.name, experiment.title, "", experiment.source);
        }
        println!(
            "\nSee also: synod lab list NAME, synod lab run NAME..., synod lab report, synod lab run chaos --help, synod lab run attacks --list, synod lab run likeness --help, synod lab run calibrate --help, synod lab run threads --help, synod lab run overload --help"
        );
        return Ok(());
    }
    for experiment in experiments::find(names)? {
        show(experiment);
    }
    Ok(())
}

fn show(experiment: &Experiment) {
    println!("{}: {}\n{}\n\n{}\n", experiment.name, experiment.title, experiment.source, experiment.about);
    println!("Parameters (--set KEY=VALUE; the value of a --full run in brackets):");
    for parameter in experiment.parameters.iter().chain(COMMON_PARAMETERS) {
        let (key, default, full) = (parameter.key, parameter.default, parameter.full);
        println!("  {key}={default} [{full}]\n      {}", parameter.help);
    }
    println!("\nMust hold:");
    for shape in experiment.shapes {
        println!("  {} {}", shape.id, shape.claim);
    }
    println!();
}

fn run(
    names: &[String],
    options: &RunOptions,
    program: Option<PathBuf>,
    inside: bool,
) -> Result<(), LabError> {
    let experiments = experiments::find(names)?;
    Parameters::check_keys(&experiments, &options.set)?;
    let mut apart = false;
    // All parameters are checked before the first experiment takes its minutes.
    for experiment in &experiments {
        let parameters = Parameters::new(experiment, options.full, &options.set)?;
        (experiment.points)(&parameters)?;
        apart |= parameters.text("on") == Ground::Namespaces.to_string();
    }
    let interrupted = interruption()?;
    if inside {
        namespaces::heed_parent(&interrupted);
    } else if apart {
        return in_namespaces(&interrupted);
    }
    let program = match program {
        Some(program) => program,
        None => own_program()?,
    };
    let conduct = Conduct::new(interrupted, program);
    for experiment in experiments {
        let summary = study::run(experiment, options, &conduct)?;
        print(&summary, options);
    }
    println!("Next: synod lab report {}", options.folder.display());
    Ok(())
}

/// Runs this program again, in namespaces of its own.
fn in_namespaces(interrupted: &AtomicBool) -> Result<(), LabError> {
    let failed = |why: String| LabError::Replicas(format!("on=namespaces: {why}"));
    namespaces::rehearse().map_err(|why| failed(format!("{why}; run it as root")))?;
    let ended = namespaces::run_again(&["--inside".as_ref()], interrupted);
    let ended = ended.map_err(|error| failed(error.to_string()))?;
    if interrupted.load(Ordering::Relaxed) {
        return Err(LabError::Interrupted);
    }
    // It has said what failed.
    if ended.success() { Ok(()) } else { Err(failed(format!("the run ended: {ended}"))) }
}

/// This program, if it is `synod`; otherwise the `synod` that is built beside it or, for an example, above it.
pub(crate) fn own_program() -> Result<PathBuf, LabError> {
    let own = env::current_exe().map_err(|error| LabError::Replicas(format!("own program: {error}")))?;
    let synod = format!("synod{}", env::consts::EXE_SUFFIX);
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(&synod));
    Ok(beside.into_iter().find(|path| path.is_file()).unwrap_or(own))
}

fn print(summary: &Summary, options: &RunOptions) {
    let folder = options.folder.join(&summary.name);
    println!("{}: {:.0} s, figures in {}", summary.name, summary.took_seconds, folder.display());
    for claim in &summary.verdicts {
        let judgement = &claim.judgement;
        println!("  {} {}: {}. {}", claim.id, claim.claim, judgement.verdict.as_str(), judgement.reason);
    }
}

/// A flag that Ctrl-C and SIGTERM set. A second signal ends the program at once, without stopping replicas in order.
pub(crate) fn interruption() -> Result<Arc<AtomicBool>, LabError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    let failed = |error: std::io::Error| LabError::Replicas(format!("signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _context = runtime.enter();
        let listen = |kind| signal(kind).map_err(failed);
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?)
    };
    let listen = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                if told.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
                eprintln!("interrupted: cleaning up (once more: at once)");
            }
        });
    };
    thread::Builder::new().name("interrupt".into()).spawn(listen).map_err(failed)?;
    Ok(interrupted)
}

fn write_report(folder: Option<&Path>, out: Option<&Path>) -> Result<(), LabError> {
    let paths = match out {
        Some(out) => report::write_pages(folder, out)?,
        None => vec![report::write(folder.unwrap_or(Path::new("lab")))?],
    };
    for path in paths {
        println!("{}", path.display());
    }
    Ok(())
}
