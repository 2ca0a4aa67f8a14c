//! A replica's life in a process: flags become settings, the server runs until it is told to stop, and its end becomes an
//! exit code.

use std::{
    io::{self, Read as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use synod_node::{StartError, TransportError};
use synod_server::node::{Error, NodeServer, Settings};
use synod_wire::Groups;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    agreed::{begins_another, differing},
    config::Checked,
    descriptors,
    flags::ServeArgs,
    log, notify,
    process::ProcessMetrics,
};
use crate::{failure::Failure, freed};

/// Runs a replica until it is told to stop or cannot go on. `told` are warnings about where its flags come from.
pub fn serve(args: &ServeArgs, told: &[String]) -> Result<(), Failure> {
    let process = ProcessMetrics::now();
    let found = super::etcd::dns::discover(args)?;
    let args = found.as_ref().unwrap_or(args);
    let checked = super::config::check(args).map_err(Failure::usage)?;
    log::start(&args.log)?;
    freed::give_back().map_err(Failure::failed)?;
    // This comes before anything of the replica is started, so that an early signal is not lost.
    let stop = stop_requests(args.exit_with_stdin).map_err(Failure::failed)?;
    told.iter().chain(&checked.warnings).for_each(|warning| tracing::warn!("{warning}"));
    describe(&checked);

    let settings = settings(checked, args)?;
    let data_dir = settings.node.data_dir.clone();
    let failure = |error| failure(error, &data_dir);
    let server = NodeServer::start(settings, &stop).map_err(failure)?;
    let (groups, group) = (server.groups(), server.group());
    let other = begins_another(args, server.cluster(), groups, group);
    differing(&args.tuning, group, groups).iter().chain(&other).for_each(|line| tracing::warn!("{line}"));
    let mut metrics = server.metrics();
    metrics.register_collector(Box::new(process));
    server.serve(metrics, &stop, notify::tell).map_err(failure)?;
    tracing::info!("stopped");
    Ok(())
}

/// What flags ask for, with what this process and the files allow.
fn settings(checked: Checked, args: &ServeArgs) -> Result<Settings, Failure> {
    let Checked { mut node, mut server, upkeep, check_at_start, groups, joining, client_urls, tls, .. } =
        checked;
    (server.tls, node.tls) = tls.start(&node.data_dir).map_err(Failure::usage)?;
    server.connections_max = connections(args.tuning.connections_max)?;
    Ok(Settings {
        node,
        server,
        upkeep,
        check_at_start,
        groups,
        joining,
        client_urls,
        learners_max: args.etcd.max_learners,
        laboratory: args.tuning.laboratory,
        options: args.tuning.options.clone(),
    })
}

/// How many connections clients may have: `wanted`, or as many as the limit of open files allows.
fn connections(wanted: u32) -> Result<usize, Failure> {
    let limit = descriptors::raise();
    let places = descriptors::places(wanted, limit).map_err(Failure::failed)?;
    if places < wanted {
        tracing::warn!(
            files = limit,
            connections = places,
            "clients get fewer connections than --connections-max {wanted}: the limit of open files leaves no more"
        );
    } else {
        tracing::info!(connections = places, files = limit, "connections that clients may have");
    }
    Ok(places as usize)
}

/// What an operator is told of a server that does not serve, or has ended by itself.
fn failure(error: Error, data_dir: &Path) -> Failure {
    match error {
        Error::Setting(_) | Error::Start(StartError::Config(_)) => Failure::usage(error),
        Error::Start(StartError::Transport(
            TransportError::Bind { .. } | TransportError::NoListenAddress,
        )) => Failure::failed(format!("{error}; see --listen-peer-urls")),
        Error::Listen(_) => {
            Failure::failed(format!("{error}; see --listen-client-urls and --listen-metrics-urls"))
        }
        Error::Ended(reason) => {
            tracing::error!(%reason, "the replica cannot go on");
            Failure::failed(format!(
                "{reason}\nThe replica has stopped rather than break a promise; nothing acknowledged is lost. Put right \
                 what is wrong with {}, then start it again.",
                data_dir.display()
            ))
        }
        other => Failure::failed(other),
    }
}

fn describe(checked: &Checked) {
    let node = &checked.node;
    for member in &node.members {
        let own = if member.id == node.me { " (this replica)" } else { "" };
        tracing::info!(id = %member.id, peers = member.address, "the cluster begins with {}{own}", member.name);
    }
    // A cluster of one group has nothing to tell of it.
    let groups = Some(checked.groups).filter(|groups| *groups != Groups::ONE);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        data_dir = %node.data_dir.display(),
        durability = %node.durability,
        groups = groups.map(tracing::field::display),
        "synod"
    );
    tracing::debug!(threads = ?node.threads, settings = ?node.settings, "settings of this replica");
}

/// A flag that becomes true on SIGTERM, on SIGINT and, if asked for, at the end of standard input.
fn stop_requests(exit_with_stdin: bool) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _context = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let signalled = Arc::clone(&stop);
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            terminate_or_interrupt(&mut terminate, &mut interrupt).await;
            signalled.store(true, Ordering::Release);
            // An operator who asks twice does not want to wait for requests under way.
            terminate_or_interrupt(&mut terminate, &mut interrupt).await;
            eprintln!("asked to stop for the second time: not waiting for anything");
            std::process::exit(1);
        });
    })?;
    if exit_with_stdin {
        let orphaned = Arc::clone(&stop);
        thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut nobody_writes = [0];
            while io::stdin().read(&mut nobody_writes).is_ok_and(|read| read > 0) {}
            orphaned.store(true, Ordering::Release);
        })?;
    }
    Ok(stop)
}

async fn terminate_or_interrupt(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
