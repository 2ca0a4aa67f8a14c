//! `synod tune`: what a running cluster can do, what binds it, and what would help.
//!
//! ```text
//!  cluster      who the members are, and whether a measurement makes sense now
//!  load         loads on keys of its own: what clients see, and what every member counts of itself
//!  others       who else is there, and whether they have to wait
//!  foretell     costs that explain these counts; with them the host that ships runs in virtual time
//!  advice       settings of this cluster and others in virtual time: what each would change
//!  page         one page for people, or JSON
//! ```
//!
//! Costs are fitted to some loads, and others are foretold with them: the difference is the error that the page names.
//! What it says of other settings is a ratio of two runs in virtual time, applied to what was measured.

mod advice;
mod cluster;
mod foretell;
mod load;
mod others;
mod page;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args as ClapArgs;
use synod_consensus::ProtocolKind;
use synod_replica::Settings;
use synod_storage::Durability;

use self::{
    advice::Advice,
    cluster::Cluster,
    foretell::Foreteller,
    load::{Measured, Runs},
};
use crate::{
    bench::{BenchError, Format, TlsOptions},
    cli::{interruption, own_program},
    ground::{Ordering, Setup, processes::Processes},
    study::{Conduct, LabError},
};

/// More than this share of what the cluster could do is lost with its present settings: then the exit code is 1.
const LOSS_MAX: f64 = 0.10;
/// Virtual time may be off by this share for its advice to decide anything.
const ERROR_MAX: f64 = 0.20;
/// The exit code after Ctrl-C, as of shells.
const INTERRUPTED: u8 = 130;

/// Arguments of `synod tune`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Client URLs of the cluster; the other members are found through these.
    #[arg(
        long,
        env = "SYNOD_ENDPOINTS",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379",
        value_name = "URL,..."
    )]
    endpoints: Vec<String>,
    /// Start three replicas on this machine for the measurement, with data in a temporary folder (TMPDIR), and measure
    /// these, whatever --endpoints says.
    #[arg(long)]
    local: bool,
    /// Bytes of a value.
    #[arg(long, default_value_t = 256, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    val_size: u32,
    /// The most clients of its own, each with one put at a time.
    #[arg(long, default_value_t = 256, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(16..=4096))]
    clients: u32,
    /// How long each of its seven loads lasts.
    #[arg(long, default_value_t = 2, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// With --rate: how soon a put must be answered. The document's batch and window for that are told.
    #[arg(long, requires = "rate", value_name = "TIME", value_parser = time)]
    target: Option<Duration>,
    /// With --target: puts a second that will come.
    #[arg(long, requires = "target", value_name = "PER-SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Tell the measured costs, and the formulas with these numbers.
    #[arg(long)]
    explain: bool,
    /// Write the proposed settings to this file, in the form that `synod serve --config-file` reads.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// TLS, for endpoints with https://.
    #[command(flatten)]
    tls: TlsOptions,
    /// The format of standard output.
    #[arg(short, long, value_enum, default_value = "simple", value_name = "FORMAT")]
    write_out: Format,
}

/// Reads a time such as 20ms or 1.5s.
fn time(text: &str) -> Result<Duration, String> {
    let accepted = || format!("{text}: not accepted; a time such as 20ms or 1.5s is");
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(accepted)?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(accepted()),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * unit);
    let seconds = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= 60.0).ok_or_else(accepted)?;
    Ok(Duration::from_secs_f64(seconds))
}

/// All that was found out.
#[derive(Debug)]
struct Findings {
    cluster: Cluster,
    runs: Runs,
    /// The loads that the costs were not fitted to, each with what was foretold of it.
    foretold: Vec<(Measured, foretell::Foretold)>,
    foreteller: Foreteller,
    advice: Advice,
    target: Option<advice::Target>,
}

/// Runs `synod tune`. The exit code is 0 if the settings serve this cluster, 1 if more than a tenth is lost with them
/// or something failed, 2 for a wrong argument, and 130 after Ctrl-C.
#[must_use]
pub fn main(args: &Args) -> ExitCode {
    match tune(args) {
        Ok(loses) => ExitCode::from(u8::from(loses)),
        Err(LabError::Interrupted) => {
            eprintln!("interrupted; no key is left");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Measures, foretells and tells. Whether much is lost with the present settings.
fn tune(args: &Args) -> Result<bool, LabError> {
    if let Some(path) = args.write.as_ref().filter(|path| path.exists()) {
        let (flag, value) = ("--write", path.display().to_string());
        let accepted = "a file that is not there yet is".to_owned();
        return Err(BenchError::Argument { flag, value, accepted }.into());
    }
    let findings = find(args)?;
    let text = match args.write_out {
        Format::Json => page::json(&findings),
        Format::Simple | Format::Wide => page::text(&findings, args.explain),
    };
    println!("{text}");
    if let Some(path) = &args.write {
        let file = page::settings_file(&findings);
        std::fs::write(path, file).map_err(crate::study::at(path))?;
        eprintln!("Wrote {}.", path.display());
    }
    let is_credible = page::error(&findings).is_some_and(|error| error <= ERROR_MAX);
    Ok(is_credible && findings.advice.gain() > LOSS_MAX)
}

fn find(args: &Args) -> Result<Findings, LabError> {
    let conduct = Conduct::new(interruption()?, own_program()?);
    let local = if args.local { Some(local(&conduct)?) } else { None };
    let endpoints = local.as_ref().map_or(&args.endpoints, |local| &local.direct);
    let cluster = Cluster::find(endpoints, &args.tls)?;
    cluster.check()?;
    say(&format!(
        "{} members of {}; their clients are watched for a moment",
        cluster.members.len(),
        cluster.ordering()
    ));
    let window = Duration::from_secs(args.seconds);
    let most = (args.clients as usize, args.val_size as usize);
    let runs = load::run_all(&cluster, most, window, &args.tls, &conduct)?;
    say("what other settings would bring is computed");
    let foreteller = Foreteller::new(&cluster, &runs)?;
    let mut foretold = Vec::new();
    for measured in runs.held_out() {
        foretold.push((measured.clone(), foreteller.load(measured, &conduct)?));
    }
    let advice = Advice::find(&foreteller, &runs, &conduct)?;
    let target = args
        .target
        .zip(args.rate)
        .map(|(target, rate)| advice::Target::of(&foreteller, &runs, (target, f64::from(rate)), &conduct));
    let target = target.transpose()?;
    Ok(Findings { cluster, runs, foretold, foreteller, advice, target })
}

/// Three replicas with the default settings, which serve.
fn local(conduct: &Conduct) -> Result<Processes, LabError> {
    let ordering = Ordering::of(ProtocolKind::MultiPaxos);
    let mut setup = Setup::new(3, ordering.protocol, ordering.election);
    setup.settings = Settings::default();
    setup.durability = Durability::Sync;
    let mut processes = Processes::start(&setup, conduct)?;
    processes.wait_until_serving(&setup, conduct)?;
    Ok(processes)
}

/// Tells about progress where results do not go.
fn say(what: &str) {
    eprintln!("tune: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["20", "ms", "-3ms", "0s", "2h", "1e9s"] {
            assert!(time(wrong).unwrap_err().contains("20ms or 1.5s"), "{wrong}");
        }
    }
}
