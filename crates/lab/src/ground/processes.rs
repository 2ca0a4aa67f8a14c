//! Replicas as processes `synod serve`, and clients over gRPC: the whole server.
//!
//! With a topology a relay stands between the replicas, and between them and the client:
//!
//! ```text
//!  load ─▶ relay: a way for the client ─▶ --listen-client-urls   replica   --listen-peer-urls ◀─ relay ◀─ the others
//!                                                                              (only the relay knows these)
//! ```
//!
//! With cards each replica has a network of its own instead, whose card is limited in both directions
//! (`crate::net::namespaces`). The links between the cards add no delay.

use std::{
    fs::File,
    net::SocketAddr,
    process::{Child, ChildStdin, Stdio},
    thread,
    time::{Duration, Instant},
};

use synod_consensus::ProtocolKind;
use synod_wire::ReplicaId;

use super::{Asked, Load, Setup};
use crate::{
    bench::{self, Options, Report},
    net::{
        Relay, free_addresses,
        namespaces::{Address, Namespaces},
    },
    study::{Conduct, LabError, Sample},
};

/// How long the processes may take until a write succeeds, and until the replica with the highest priority leads.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process that was told to stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// What each outstanding proposal adds to the warm-up. Through gRPC, answering the first round takes longer
/// than on other grounds.
const FIRST_ROUND: Duration = Duration::from_micros(50);
/// Clients that share a connection.
const CLIENTS_PER_CONNECTION: usize = 256;

/// The part of the window in which bytes are counted begins and ends this much after its beginning and before its end.
const EDGE: f64 = 0.2;

/// Starts the processes, drives the load, and stops them.
///
/// # Errors
/// The program cannot be started or does not serve, the load has an action that this ground lacks, or Ctrl-C
/// was pressed.
pub fn run(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<Sample, LabError> {
    checked(load)?;
    let mut processes = Processes::start(setup, conduct)?;
    processes.wait_until_serving(setup, conduct)?;
    let report = bench::run(bench::Operation::Put, &processes.options(setup, load))?;
    conduct.check()?;
    processes.check()?;
    Ok(sample(&report))
}

/// The same with a network for each replica, and cards as the setup's machines have them. This process must be in
/// namespaces of its own.
///
/// # Errors
/// Those of [`run`], and networks cannot be made.
pub fn run_with_cards(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<Sample, LabError> {
    checked(load)?;
    let networks = Namespaces::new(setup.replicas).map_err(LabError::Replicas)?;
    let mut processes = Processes::launch(&networks.addresses(), setup, conduct)?;
    processes.wait_until_serving(setup, conduct)?;
    if let Some(bytes_per_second) = setup.hardware.card.bytes_per_second {
        networks.limit(bytes_per_second).map_err(LabError::Replicas)?;
    }
    let options = processes.options(setup, load);
    let (report, before, after) = thread::scope(|scope| {
        let driven = scope.spawn(|| bench::run(bench::Operation::Put, &options));
        thread::sleep(options.load.warmup + load.window.mul_f64(EDGE));
        let before = (Instant::now(), networks.traffic());
        thread::sleep(load.window.mul_f64(1.0 - 2.0 * EDGE));
        let after = (Instant::now(), networks.traffic());
        (driven.join().expect("the generator reports its errors"), before, after)
    });
    conduct.check()?;
    processes.check()?;
    let mut sample = sample(&report?);
    let counted = |error| LabError::Replicas(format!("counters of the cards: {error}"));
    let (was, is) = (before.1.map_err(counted)?, after.1.map_err(counted)?);
    let seconds = (after.0 - before.0).as_secs_f64();
    let megabits = |bytes: u64| bytes as f64 * 8e-6 / seconds;
    let leader = sample.figures["leader"] as usize;
    let mut followers = [Vec::new(), Vec::new()];
    for (place, (was, is)) in (1..).zip(was.iter().zip(&is)) {
        let (sent, received) = (megabits(is.sent - was.sent), megabits(is.received - was.received));
        if place == leader {
            sample.figures.extend([("leader_sent", sent), ("leader_received", received)]);
        } else {
            followers[0].push(sent);
            followers[1].push(received);
        }
    }
    for (name, all) in ["follower_sent", "follower_received"].into_iter().zip(&followers) {
        sample.figures.insert(name, all.iter().sum::<f64>() / all.len().max(1) as f64);
    }
    Ok(sample)
}

fn checked(load: &Load) -> Result<(), LabError> {
    if load.acts.is_empty() && !load.thread_each {
        return Ok(());
    }
    Err(LabError::Replicas("processes are not changed under load; see `--set on=`".to_owned()))
}

fn sample(report: &Report) -> Sample {
    let ms = |microseconds: f64| microseconds / 1e3;
    let latency = &report.latency;
    let leader = report.setup.leader_at_end.as_ref().and_then(|id| u64::from_str_radix(id, 16).ok());
    let figures = [
        ("throughput", report.throughput),
        ("mean_ms", ms(latency.mean_us)),
        ("median_ms", ms(latency.p50_us as f64)),
        ("p99_ms", ms(latency.p99_us as f64)),
        ("max_ms", ms(latency.max_us as f64)),
        ("timed_out", report.failed as f64),
        ("leader", leader.unwrap_or(0) as f64),
    ];
    Sample { figures: figures.into(), timeline: Vec::new(), events: Vec::new() }
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> LabError {
    move |error| LabError::Replicas(format!("{what}: {error}"))
}

/// Running processes. They end when this is dropped, and also when the lab is killed: each reads a pipe that
/// the lab holds open, and stops at its end.
pub(crate) struct Processes {
    children: Vec<(Child, Option<ChildStdin>)>,
    /// The addresses that the load dials.
    endpoints: Vec<String>,
    /// The addresses at which replicas serve clients, without a network in between.
    pub(crate) direct: Vec<String>,
    folder: tempfile::TempDir,
    /// Dropped after the processes.
    _relay: Option<Relay>,
}

impl Processes {
    pub(crate) fn start(setup: &Setup, conduct: &Conduct) -> Result<Processes, LabError> {
        let addresses = free_addresses(2 * setup.replicas).map_err(failed("ports"))?;
        let (clients, peers) = addresses.split_at(setup.replicas);
        let (mut endpoints, mut advertised) = (clients.to_vec(), peers.to_vec());
        let mut relay = None;
        if let Some(topology) = &setup.topology {
            let targets = (1..).map(ReplicaId).zip(peers.iter().copied()).collect();
            let links = topology.links_with_client(setup.replicas)?;
            let mut between = Relay::start(links, targets, setup.seed).map_err(failed("relay"))?;
            advertised = between.addresses().to_vec();
            for (place, client) in clients.iter().enumerate() {
                endpoints[place] = between.open(setup.replicas, place, *client).map_err(failed("relay"))?;
            }
            relay = Some(between);
        }
        let address = |((client, peer), advertised): ((&SocketAddr, &SocketAddr), &SocketAddr)| Address {
            client: *client,
            peer: *peer,
            advertised: *advertised,
            namespace: None,
        };
        let addresses: Vec<_> = clients.iter().zip(peers).zip(&advertised).map(address).collect();
        let mut processes = Processes::launch(&addresses, setup, conduct)?;
        processes.endpoints = endpoints.iter().map(ToString::to_string).collect();
        processes._relay = relay;
        Ok(processes)
    }

    fn launch(addresses: &[Address], setup: &Setup, conduct: &Conduct) -> Result<Processes, LabError> {
        let folder = tempfile::tempdir().map_err(failed("temporary folder"))?;
        let members =
            (1..).zip(addresses).map(|(id, address)| format!("r{id}=http://{}", address.advertised));
        let members = members.collect::<Vec<_>>().join(",");
        let direct: Vec<_> = addresses.iter().map(|address| address.client.to_string()).collect();
        let endpoints = direct.clone();
        let mut processes = Processes { children: Vec::new(), endpoints, direct, folder, _relay: None };
        for (index, address) in addresses.iter().enumerate() {
            let name = format!("r{}", index + 1);
            let log = processes.folder.path().join(format!("{name}.log"));
            let log = File::create(log).map_err(failed("log of a replica"))?;
            let mut command = address.command(&conduct.program);
            command
                .args(["serve", "--name", &name, "--initial-cluster", &members, "--exit-with-stdin"])
                .args(["--listen-client-urls", &format!("http://{}", address.client)])
                .args(["--listen-peer-urls", &format!("http://{}", address.peer)])
                .args(flags(setup, index)?)
                .arg("--data-dir")
                .arg(processes.folder.path().join(&name))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(log);
            let starting = format!("starting {}", conduct.program.display());
            let mut child = command.spawn().map_err(failed(starting))?;
            let stdin = child.stdin.take();
            processes.children.push((child, stdin));
        }
        Ok(processes)
    }

    /// The options of the load generator for a load.
    pub(crate) fn options(&self, setup: &Setup, load: &Load) -> Options {
        let mut options = Options { endpoints: self.endpoints.clone(), ..Options::default() };
        options.target_leader = load.asked == Asked::Leader;
        options.clients = load.concurrent;
        options.load.conns = Some(load.concurrent.div_ceil(CLIENTS_PER_CONNECTION).max(match load.asked {
            Asked::Leader => 1,
            Asked::All => self.endpoints.len(),
        }));
        options.load.rate = load.rate;
        options.load.poisson = load.rate.is_some();
        options.load.warmup = load.warm_up + FIRST_ROUND * u32::try_from(load.concurrent).unwrap_or(u32::MAX);
        options.load.duration = Some(load.window);
        options.load.timeout = load.answer_timeout;
        options.load.val_size = load.value_bytes;
        options.load.seed = setup.seed;
        options
    }

    /// Waits for the first write that succeeds, and then a little for the replica with the highest priority
    /// to lead, if there is one. The experiment itself finds out whether it does.
    pub(crate) fn wait_until_serving(&mut self, setup: &Setup, conduct: &Conduct) -> Result<(), LabError> {
        let deadline = Instant::now() + START_TIMEOUT;
        let wanted = setup.priorities.iter().zip(1..).max().filter(|(priority, _)| **priority > 0);
        let wanted = wanted.map(|(_, id): (_, u64)| format!("{id:x}"));
        let mut options = Options { endpoints: self.direct.clone(), ..Options::default() };
        options.target_leader = true;
        options.load.total = Some(1);
        options.load.timeout = Duration::from_secs(2);
        options.load.give_up_after = Duration::from_secs(2);
        let mut wait_max = None;
        loop {
            conduct.check()?;
            self.check()?;
            let why = match bench::run(bench::Operation::Put, &options) {
                Ok(report) if report.answered == 1 => {
                    let until = *wait_max.get_or_insert_with(|| {
                        Instant::now() + setup.settings.consensus.election_timeout * 2
                    });
                    if wanted.is_none() || report.setup.leader_at_end == wanted || Instant::now() > until {
                        return Ok(());
                    }
                    String::new()
                }
                Ok(_) => "no write succeeded".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(LabError::Replicas(format!("{why} after {START_TIMEOUT:?}")));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that all processes run. The error has the last words of one that does not.
    pub(crate) fn check(&mut self) -> Result<(), LabError> {
        for (index, (child, _)) in self.children.iter_mut().enumerate() {
            if let Ok(Some(status)) = child.try_wait() {
                let log = self.folder.path().join(format!("r{}.log", index + 1));
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let end = said.lines().last().unwrap_or("nothing").to_owned();
                return Err(LabError::Replicas(format!(
                    "replica {} ended ({status}); it said: {end}",
                    index + 1
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // The end of its standard input tells a replica to stop.
        self.children.iter_mut().for_each(|(_, stdin)| drop(stdin.take()));
        let deadline = Instant::now() + STOP_TIMEOUT;
        for (child, _) in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            // These calls fail only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The setup as flags. The replica at a place has the same settings on every ground.
fn flags(setup: &Setup, place: usize) -> Result<Vec<String>, LabError> {
    let settings = setup.settings_of(place);
    let consensus = &settings.consensus;
    if consensus.sequence_paxos != Default::default() {
        let what =
            "the optimisations of sequence-paxos cannot be switched off for processes; see `--set on=`";
        return Err(LabError::Replicas(what.to_owned()));
    }
    let time = |time: Duration| format!("{}us", time.as_micros());
    let mut flags = vec![
        ("protocol", consensus.protocol.to_string()),
        ("election", consensus.election.to_string()),
        ("dissemination", consensus.dissemination.to_string()),
        ("priority", consensus.priority.to_string()),
        ("heartbeat-interval", time(consensus.heartbeat_interval)),
        ("election-timeout", time(consensus.election_timeout)),
        ("election-tolerance", time(consensus.latency.tolerance)),
        ("retransmit-after", time(consensus.retransmit_after)),
        ("announce-delay-max", time(consensus.announce_delay_max)),
        ("window-max", if settings.paced { "auto".to_owned() } else { consensus.window_max.to_string() }),
        ("batch-bytes-max", settings.batch_bytes_max.to_string()),
        ("batch-delay-max", time(settings.batch_delay_max)),
        ("queue-bytes-max", settings.queue_bytes_max.to_string()),
        ("request-timeout", time(settings.request_timeout)),
        ("snapshot-count", settings.snapshot_slots.to_string()),
        ("snapshot-log-bytes", settings.snapshot_log_bytes.to_string()),
        ("durability", setup.durability.to_string()),
    ];
    if consensus.protocol == ProtocolKind::Raft {
        let raft = &consensus.raft;
        let auto = |text: Option<String>| text.unwrap_or_else(|| "auto".to_owned());
        let options = [
            ("replication", raft.replication.to_string()),
            ("round-interval", auto(raft.round_interval.map(time))),
            ("round-fan-out", auto(raft.round_fan_out.map(|fan_out| fan_out.to_string()))),
            ("status-echoes", raft.status_echoes.to_string()),
        ];
        flags.push(("options", options.map(|(key, value)| format!("{key}={value}")).join(",")));
    }
    // What exists to be measured is measured here.
    let flags = flags.into_iter().flat_map(|(flag, value)| [format!("--{flag}"), value]);
    Ok(flags.chain(["--laboratory".to_owned()]).collect())
}
