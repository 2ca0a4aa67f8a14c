//! `fuzz`: runs a target, repeats a failure, writes the corpus. See docs/fuzzing.md.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use synod_fuzz::{Budget, Corpus, Counting, Target, Verdict, once, run, targets, written};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Feeds mutated bytes to what reads bytes of clients, peers and disks.
#[derive(Debug, Parser)]
#[command(name = "fuzz")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the targets.
    List,
    /// Writes the inputs that encoders make into the corpus in the tree.
    Corpus,
    /// Runs targets until their time is over, or until an input fails.
    Run {
        /// Targets; without any, all of them.
        targets: Vec<String>,
        /// Seed of the inputs; the same seed and number of runs give the same inputs.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Seconds for each target.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Inputs for each target, at most.
        #[arg(long, default_value_t = u64::MAX)]
        runs: u64,
        /// Folder for inputs that fail.
        #[arg(long, default_value = "target/fuzz")]
        out: PathBuf,
    },
    /// Runs a target on files, and says what it says of them.
    File {
        /// The target.
        target: String,
        /// The files.
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match execute(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<(), String> {
    match command {
        Command::List => {
            targets::all().iter().for_each(|target| println!("{:15} {}", target.name, target.about))
        }
        Command::Corpus => {
            for target in targets::all() {
                let count = written(&target).map_err(|error| format!("{}: {error}", target.name))?;
                println!("{:15} {count} inputs", target.name);
            }
        }
        Command::Run { targets: names, seed, seconds, runs, out } => {
            let chosen = if names.is_empty() {
                Ok(targets::all())
            } else {
                names.iter().map(|name| named(name)).collect()
            };
            let mut failed = Vec::new();
            for target in chosen? {
                let budget = Budget { runs, time: Duration::from_secs(seconds) };
                if let Err(why) = run_one(&target, seed, budget, &out) {
                    eprintln!("{why}");
                    failed.push(target.name);
                }
            }
            if !failed.is_empty() {
                return Err(format!("failed: {}", failed.join(", ")));
            }
        }
        Command::File { target, files } => {
            let target = named(&target)?;
            for file in files {
                let input = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
                let verdict =
                    once(&target, &input).map_err(|failure| format!("{}: {failure}", file.display()))?;
                match verdict {
                    Verdict::Accepted(kind) => println!("{}: accepted: {kind}", file.display()),
                    Verdict::Refused(reason) => println!("{}: refused: {reason}", file.display()),
                }
            }
        }
    }
    Ok(())
}

fn named(name: &str) -> Result<Target, String> {
    let names = || targets::all().iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    targets::named(name).ok_or_else(|| format!("no target {name:?}; there are {}", names()))
}

fn run_one(target: &Target, seed: u64, budget: Budget, out: &Path) -> Result<(), String> {
    let corpus = Corpus::read(target).map_err(|error| {
        format!("{}: {error}; `fuzz corpus` writes the corpus", Corpus::folder(target).display())
    })?;
    match run(target, &corpus, seed, budget) {
        Ok(report) => {
            println!("{:15} {report}", target.name);
            Ok(())
        }
        Err(failure) => {
            let file = out.join(format!("{}-{:08x}", target.name, crc32fast::hash(&failure.input)));
            fs::create_dir_all(out)
                .and_then(|()| fs::write(&file, &failure.input))
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let again = format!("repeat it with `fuzz file {} {}`", target.name, file.display());
            Err(format!("{:15} FAILED, with seed {seed}: {failure}\n{again}", target.name))
        }
    }
}
