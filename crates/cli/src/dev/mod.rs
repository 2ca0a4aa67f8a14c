//! `synod dev`: a whole cluster on this machine, each replica a process of its own.

mod plan;
mod replica;
mod watch;

use std::{
    ffi::OsString,
    fmt,
    io::{self, Write as _},
    path::PathBuf,
};

use clap::{ArgMatches, Args, Command, parser::ValueSource};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch as value},
    task::JoinSet,
};

use self::{
    plan::{Folder, Plan},
    replica::Ended,
};
use crate::{client::block_on, failure::Failure, serve::flags::Tuning};

/// Arguments of `synod dev`.
#[derive(Clone, Debug, Args)]
pub struct DevArgs {
    /// How many replicas: 1, 3, 5 or 7 [default: as many as have data, or 3].
    #[arg(long, value_name = "COUNT", value_parser = ["1", "3", "5", "7"])]
    replicas: Option<String>,
    /// The folder for the replicas' data; a second start continues with it.
    #[arg(
        long = "data-dir",
        alias = "data",
        value_name = "DIR",
        default_value = "synod-data",
        conflicts_with = "ephemeral"
    )]
    data: PathBuf,
    /// Keep the data in a temporary folder that is removed at the end.
    #[arg(long)]
    ephemeral: bool,
    /// The first of the ports to use: replica i gets PORT+10(i-1) for clients and the next port for peers
    /// [default: that of the data; or 2379, 22379, 32379, ... and the next, as in etcd's examples].
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,
    /// Start a replica again a second after it died. Otherwise it stays dead, so that the effect can be seen.
    #[arg(long)]
    restart: bool,
    /// What the replicas say, as for `serve`. That a peer cannot be reached is no news here.
    #[arg(long, value_name = "LEVEL", default_value = "warn,synod_transport=error")]
    log_level: String,
    #[command(flatten)]
    tuning: Tuning,
}

/// Runs a cluster until it is told to stop or all replicas have ended.
pub fn run(args: DevArgs, given: &ArgMatches) -> Result<(), Failure> {
    let folder = Folder::choose(&args.data, args.ephemeral)?;
    let replicas =
        folder.replicas(args.replicas.as_deref().map(|text| text.parse().expect("clap checked it")))?;
    let mut flags = passed_on(given);
    flags.push(format!("--log-level={}", args.log_level).into());
    for other in &replicas.others {
        let (other, folder) = (plan::name(*other), folder.path().display());
        say(format_args!("{other} is not started: {folder}/{other} holds data of another cluster"));
    }
    let plan = Plan::new(&replicas.run, folder.base_port(args.base_port)?, folder.path(), flags)?;
    plan.check_ports()?;
    plan.replicas().iter().for_each(|replica| say(format_args!("{}", replica.describe())));
    let kept = if args.ephemeral { "removed at the end" } else { "kept for the next start" };
    say(format_args!("data   {} ({kept})", folder.path().display()));
    block_on(supervise(&plan, args.restart))
}

/// Prints a line. A closed standard output must not end the cluster.
fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The settings on the command line, for the replicas; they inherit those of the environment.
fn passed_on(given: &ArgMatches) -> Vec<OsString> {
    let tuning = Tuning::augment_args(Command::new("tuning"));
    let typed = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let mut flags = Vec::new();
    for arg in tuning.get_arguments().filter(|arg| typed(arg.get_id().as_str())) {
        for value in given.get_raw(arg.get_id().as_str()).into_iter().flatten() {
            let mut flag = OsString::from(format!("--{}=", arg.get_long().expect("all have a name")));
            flag.push(value);
            flags.push(flag);
        }
    }
    flags
}

async fn supervise(plan: &Plan, restart: bool) -> Result<(), Failure> {
    let unheard = |error| Failure::failed(format!("signals cannot be received: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(unheard)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unheard)?;
    let (stop, stopping) = value::channel(false);
    let (died, mut deaths) = mpsc::channel(plan.replicas().len());
    let mut replicas = JoinSet::new();
    for replica in plan.replicas() {
        replicas.spawn(replica::keep(replica.clone(), restart, stopping.clone(), died.clone()));
    }
    let watcher = tokio::spawn(watch::leader(plan.endpoints(), plan.advice()));

    let outcome = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            Some(Ended { name, how, returns }) = deaths.recv() => {
                let then = if returns { "it starts again in a second" } else { "it stays dead" };
                say(format_args!("{name} has ended ({how}); {then}"));
                let dead = plan.replicas().iter().find(|replica| !returns && replica.name == name);
                if let Some(replica) = dead {
                    say(format_args!("to start it again, in another terminal:\n  {}", replica.command()));
                }
            }
            joined = replicas.join_next() => if joined.is_none() || replicas.is_empty() {
                while let Ok(Ended { name, how, .. }) = deaths.try_recv() {
                    say(format_args!("{name} has ended ({how})"));
                }
                break Err(Failure::failed("no replica is left; what they said is above"));
            },
        }
    };
    watcher.abort();
    if outcome.is_ok() {
        say(format_args!("stopping"));
    }
    stop.send_replace(true);
    while replicas.join_next().await.is_some() {}
    outcome
}
