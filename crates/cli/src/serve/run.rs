//! A replica's life in a process: start, serve, stop.

use std::{
    io::{self, Read as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use prometheus_client::registry::Registry;
use synod_kv::KvStore;
use synod_node::{Ended, Handle, Node, StartError, TransportError};
use synod_replica::Group;
use synod_server::{Auth, EventLoop, Hashes, Server, Upkeep, Watches};
use synod_storage::StorageError;
use synod_wire::{Groups, ReplicaId};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    agreed::{begins_another, differing},
    config::Checked,
    descriptors,
    flags::{ServeArgs, Tuning},
    join::Joining,
    laboratory, log,
    membership::{Membership, Watch},
    notify,
    process::ProcessMetrics,
    replica::{Fixed, Served},
};
use crate::{failure::Failure, freed};

/// How long a request to stop may go unnoticed.
const GLANCE_INTERVAL: Duration = Duration::from_millis(50);
/// The time between two looks whether a replica that joins may serve clients.
const JOINING_GLANCE: Duration = Duration::from_millis(10);
/// How long a replica that was removed still answers.
const GRACE: Duration = Duration::from_secs(1);
/// How long another process may hold on to the data directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

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

    let Checked {
        node: mut config,
        server: mut server_config,
        upkeep,
        check_at_start,
        mut groups,
        joining,
        client_urls,
        tls,
        ..
    } = checked;
    (server_config.tls, config.tls) = tls.start(&config.data_dir).map_err(Failure::usage)?;
    server_config.connections_max = connections(args.tuning.connections_max)?;
    if let Some(joining) = joining {
        groups = join(&joining, &mut config, &args.tuning, &stop)?;
    }
    if server_config.client_io_threads == 0 {
        let event_loop = EventLoop::new().map_err(Failure::failed)?;
        config.event_loop = Some(event_loop.clone());
        server_config.event_loop = Some(event_loop);
    }
    let data_dir = config.data_dir.clone();
    let fixed = Fixed {
        cluster: config.cluster,
        me: config.me,
        name: config.name.clone(),
        durability: config.durability.to_string(),
        learners_max: args.etcd.max_learners,
        transfer_timeout: args.tuning.request_timeout,
        obstacles: Arc::default(),
        laboratory: args.tuning.laboratory,
        tuning: args.tuning.clone(),
    };
    let peer_tls = config.tls.clone();
    let told = config.joins.as_ref().map(|origin| origin.present.clone());
    let queue_bytes_max = config.settings.queue_bytes_max as u64;
    let merged = config.merging.is_some();
    // Where keys are spread over several groups there is no single revision to watch by, nor one store of users.
    let watches = (merged || groups.count == 1).then(Watches::new);
    server_config.watches.clone_from(&watches);
    if watches.is_none() {
        server_config.auth = None;
    }
    let stores = if merged { 1 } else { groups.count };
    let hashes: Vec<_> = (0..stores).map(|_| Hashes::default()).collect();
    let node = start(config, watches.as_ref(), server_config.auth.as_ref(), &hashes, &stop)?;
    // A joining replica may have been told of a group that its own log does not reach yet.
    let here = node.handle().group();
    let group = told.filter(|told| told.version > here.version).unwrap_or_else(|| (*here).clone());
    if let Err(refusal) = check_name(&fixed.name, fixed.me, &group) {
        node.stop_blocking().map_err(Failure::failed)?;
        return Err(refusal);
    }
    let other = begins_another(args, fixed.cluster, groups, &group);
    differing(&args.tuning, &group, groups).iter().chain(&other).for_each(|line| tracing::warn!("{line}"));
    if !args.tuning.laboratory {
        warn_of_measured(&node, &args.tuning);
    }
    let membership = Membership {
        handle: node.handle(),
        others: node.handles()[1..].to_vec(),
        cluster: fixed.cluster,
        groups,
        me: fixed.me,
        name: fixed.name.clone(),
        client_urls,
        tls: peer_tls,
        obstacles: Arc::clone(&fixed.obstacles),
    };
    let answer_bytes_max = node.handle().limits().answer_bytes_max;
    let registry = registry(&node, &server_config, process);
    let served = served(&node, fixed, merged);
    let upkeep =
        Upkeep::start(upkeep, served.iter().cloned().zip(hashes).collect()).map_err(Failure::failed)?;
    if check_at_start && let Err(differs) = upkeep.check_at_start() {
        node.stop_blocking().map_err(Failure::failed)?;
        return Err(Failure::failed(format!(
            "{differs}: this replica's contents are not those of most others. Replace it: `synod member replace`"
        )));
    }
    let cannot_listen = |error: io::Error| {
        Failure::failed(format!("{error}; see --listen-client-urls and --listen-metrics-urls"))
    };
    let mut server = Server::prepare_groups(&server_config, served, registry).map_err(cannot_listen)?;
    tracing::info!(
        mib = (server_config.memory_bytes_max(answer_bytes_max) + queue_bytes_max) >> 20,
        "memory that clients can make this replica take at most, beside the store"
    );
    let watch = membership.start()?;
    if until_joined(&node, &stop, &watch) {
        server.open().map_err(cannot_listen)?;
        watch.opened();
        tracing::info!(name = args.member.name, "serving");
    }

    let outcome = until_stopped(node, server, &stop, &watch);
    drop(upkeep);
    outcome.map_err(|reason| cannot_go_on(&reason, &data_dir))?;
    tracing::info!("stopped");
    Ok(())
}

/// Joins the cluster: asks a member which number this replica has, and what the group is. Returns the groups.
fn join(
    joining: &Joining,
    config: &mut synod_node::Config,
    tuning: &Tuning,
    stop: &AtomicBool,
) -> Result<Groups, Failure> {
    let (me, origin) = super::join::join(joining, config.tls.as_ref(), stop)?;
    let groups = super::join::groups(&origin, tuning.groups)?;
    tracing::info!(%me, cluster = %origin.cluster, %groups, "joining");
    config.merging = super::config::merging(groups, tuning);
    (config.me, config.cluster, config.joins) = (me, origin.cluster, Some(origin));
    Ok(groups)
}

/// Warns of options, of the groups and of this replica, that exist to be measured.
fn warn_of_measured(node: &Node, tuning: &Tuning) {
    let several = node.handles().len() > 1;
    for (number, group) in node.handles().iter().map(Handle::group).enumerate() {
        let number = Some(number).filter(|_| several);
        let own = laboratory::own_remarks(tuning, &group);
        laboratory::remarks(&group, number).chain(own).for_each(|line| tracing::warn!("{line}"));
    }
}

/// Everything that is counted here.
fn registry(node: &Node, server: &synod_server::Config, process: ProcessMetrics) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(node.metrics()));
    registry.register_collector(Box::new(server.requests.clone()));
    registry.register_collector(Box::new(process));
    registry
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

/// What clients reach: a store of each group, or one of all merged groups.
fn served(node: &Node, fixed: Fixed, merged: bool) -> Vec<Served> {
    let fixed = Arc::new(fixed);
    let groups: Arc<[_]> = node.handles().iter().cloned().collect();
    if merged {
        return vec![Served::merged(groups, fixed)];
    }
    (0..groups.len()).map(|number| Served::new(number, Arc::clone(&groups), Arc::clone(&fixed))).collect()
}

fn cannot_go_on(reason: &Ended, data_dir: &Path) -> Failure {
    tracing::error!(%reason, "the replica cannot go on");
    Failure::failed(format!(
        "{reason}\nThe replica has stopped rather than break a promise; nothing acknowledged is lost. Put right what is \
         wrong with {}, then start it again.",
        data_dir.display()
    ))
}

/// Waits until a replica that joins may serve clients; false if it is to end before.
fn until_joined(node: &Node, stop: &AtomicBool, watch: &Watch) -> bool {
    while !watch.has_joined() {
        let ends = stop.load(Ordering::Acquire) || watch.is_removed();
        if ends || node.wait_blocking(JOINING_GLANCE).is_some() {
            return false;
        }
    }
    true
}

/// Waits for the end and shuts down in order; an error says why the replica could not go on.
fn until_stopped(node: Node, server: Server, stop: &AtomicBool, watch: &Watch) -> Result<(), Ended> {
    let handles = node.handles().to_vec();
    // Until every group has it out, its vote may be needed in one.
    let removed = || handles.iter().all(Handle::is_retired) || watch.is_removed();
    let (mut failed, mut told) = (None, false);
    while failed.is_none() && !stop.load(Ordering::Acquire) && !removed() {
        // As with etcd: once there is a leader, and so a quorum that it can serve with.
        let leads_nobody = |group: &Handle| group.takes_part() && group.status().leader.is_none();
        if !told && !handles.iter().any(leads_nobody) {
            notify::tell(notify::State::Ready);
            told = true;
        }
        failed = node.wait_blocking(GLANCE_INTERVAL);
    }
    notify::tell(notify::State::Stopping);
    watch.stop();
    if failed.is_some() {
        // The replica stops first: it will not answer the requests under way any more, and says so to them.
        let outcome = node.stop_now_blocking();
        server.stop();
        return outcome;
    }
    if removed() {
        tracing::warn!(
            "this replica was removed from the cluster: it ends. The cluster does not need its data directory \
             any more; to come back, delete it and add the replica again"
        );
        // Clients that were told of other replicas a moment ago may still be on their way to them.
        thread::sleep(GRACE);
    }
    tracing::info!("stopping: requests under way are finished, then the log is closed");
    // Before the server, which answers those whose commands are decided meanwhile.
    node.hand_over_blocking();
    server.stop();
    node.stop_now_blocking()
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

/// A replica may take another name, but not one that another member has, since the name could not tell them
/// apart. (A replica that is added to replace another begins with that one's name.)
fn check_name(name: &str, me: ReplicaId, group: &Group) -> Result<(), Failure> {
    let own = group.member(me).map_or("", |member| member.info.name.as_str());
    let other = group.members.iter().find(|member| member.id != me && member.info.name == name);
    match other {
        Some(other) if !own.is_empty() && own != name => Err(Failure::usage(format!(
            "--name {name}: the member {} has that name, and this data directory is that of {own} ({me}). Give --name {own}, \
             or the data directory of {name}",
            other.id
        ))),
        _ => Ok(()),
    }
}

/// Starts the replica. If another process of it, which was told to stop a moment ago, is still closing its
/// log, waits for it.
fn start(
    config: synod_node::Config,
    watches: Option<&Watches>,
    auth: Option<&Auth>,
    hashes: &[Hashes],
    stop: &AtomicBool,
) -> Result<Node, Failure> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let mut said = false;
    loop {
        let store = |hashes: &Hashes| {
            let store = KvStore::new().compared_by(hashes.comparer());
            let store = watches.map(Watches::feed).into_iter().fold(store, KvStore::feeding);
            auth.map(Auth::feed).into_iter().fold(store, KvStore::authenticating)
        };
        let stores = hashes.iter().map(store).collect();
        match Node::start_groups_blocking(config.clone(), stores) {
            Err(StartError::Storage(locked @ StorageError::Locked { .. }))
                if Instant::now() < deadline && !stop.load(Ordering::Acquire) =>
            {
                if !said {
                    tracing::warn!("{locked}; waiting up to {LOCK_TIMEOUT:?} for it to end");
                    said = true;
                }
                thread::sleep(GLANCE_INTERVAL);
            }
            other => return other.map_err(start_failure),
        }
    }
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Config(_) => Failure::usage(error),
        StartError::Transport(TransportError::Bind { .. } | TransportError::NoListenAddress) => {
            Failure::failed(format!("{error}; see --listen-peer-urls"))
        }
        _ => Failure::failed(error),
    }
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
