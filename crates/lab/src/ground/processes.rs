//! Replicas as processes `synod serve`, and clients over gRPC: the whole server.

use std::{
    fs::File,
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use synod_storage::Durability;

use super::{Load, Ordering};
use crate::{
    bench::{self, Options, Report},
    study::{Conduct, LabError, Sample},
};

/// How long the processes may take until a write succeeds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process that was told to stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the processes, drives the load against the leader, and stops them.
///
/// # Errors
/// The program can not be started or does not serve; requests fail; Ctrl-C.
pub fn run(
    replicas: usize,
    ordering: Ordering,
    durability: Durability,
    load: &Load,
    conduct: &Conduct,
) -> Result<Sample, LabError> {
    let mut processes = Processes::start(replicas, ordering, durability, conduct)?;
    processes.wait_until_serving(conduct)?;
    let mut options = Options { endpoints: processes.endpoints.clone(), ..Options::default() };
    options.target_leader = true;
    options.clients = load.concurrent;
    options.load.warmup = load.warm_up;
    options.load.duration = Some(load.window);
    options.load.timeout = load.answer_timeout;
    options.load.val_size = 8;
    let report = bench::run(bench::Operation::Put, &options)?;
    conduct.check()?;
    processes.check()?;
    Ok(sample(&report))
}

fn sample(report: &Report) -> Sample {
    let ms = |microseconds: f64| microseconds / 1e3;
    let latency = &report.latency;
    let figures = [
        ("throughput", report.throughput),
        ("mean_ms", ms(latency.mean_us)),
        ("median_ms", ms(latency.p50_us as f64)),
        ("p99_ms", ms(latency.p99_us as f64)),
        ("max_ms", ms(latency.max_us as f64)),
        ("timed_out", report.failed as f64),
    ];
    Sample { figures: figures.into(), timeline: Vec::new() }
}

/// Running processes. They end when this is dropped, and also when the lab is killed: each reads a pipe that the lab
/// holds open, and stops at its end.
struct Processes {
    children: Vec<(Child, Option<ChildStdin>)>,
    endpoints: Vec<String>,
    folder: tempfile::TempDir,
}

impl Processes {
    fn start(
        replicas: usize,
        ordering: Ordering,
        durability: Durability,
        conduct: &Conduct,
    ) -> Result<Processes, LabError> {
        let failed = |what: &str, error: std::io::Error| LabError::Replicas(format!("{what}: {error}"));
        let folder = tempfile::tempdir().map_err(|error| failed("temporary folder", error))?;
        let ports = free_ports(2 * replicas).map_err(|error| failed("ports", error))?;
        let (clients, peers) = ports.split_at(replicas);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let members: Vec<_> =
            peers.iter().zip(1..).map(|(&port, id)| format!("r{id}={}", url(port))).collect();
        let mut processes = Processes { children: Vec::new(), endpoints: Vec::new(), folder };
        for (index, (&client, &peer)) in clients.iter().zip(peers).enumerate() {
            let name = format!("r{}", index + 1);
            let log = processes.folder.path().join(format!("{name}.log"));
            let log = File::create(log).map_err(|error| failed("log of a replica", error))?;
            let mut command = Command::new(&conduct.program);
            command
                .arg("serve")
                .args(["--name", &name, "--initial-cluster", &members.join(",")])
                .args(["--listen-client-urls", &url(client), "--listen-peer-urls", &url(peer)])
                .args([
                    "--protocol",
                    &ordering.protocol.to_string(),
                    "--election",
                    &ordering.election.to_string(),
                ])
                .args(["--durability", &durability.to_string(), "--exit-with-stdin"])
                .arg("--data-dir")
                .arg(processes.folder.path().join(&name))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(log);
            let mut child = command
                .spawn()
                .map_err(|error| failed(&format!("starting {}", conduct.program.display()), error))?;
            let stdin = child.stdin.take();
            processes.children.push((child, stdin));
            processes.endpoints.push(format!("127.0.0.1:{client}"));
        }
        Ok(processes)
    }

    /// Waits for the first write that succeeds.
    fn wait_until_serving(&mut self, conduct: &Conduct) -> Result<(), LabError> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut options = Options { endpoints: self.endpoints.clone(), ..Options::default() };
        options.target_leader = true;
        options.load.total = Some(1);
        options.load.timeout = Duration::from_secs(2);
        options.load.give_up_after = Duration::from_secs(2);
        loop {
            conduct.check()?;
            self.check()?;
            match bench::run(bench::Operation::Put, &options) {
                Ok(report) if report.answered == 1 => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Ok(_) if Instant::now() > deadline => {
                    return Err(LabError::Replicas(format!("no write succeeded within {START_TIMEOUT:?}")));
                }
                _ => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Whether all still run; otherwise the last words of the one that does not.
    fn check(&mut self) -> Result<(), LabError> {
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
            // These fail only where it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_ports(count: usize) -> std::io::Result<Vec<u16>> {
    let bound = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<Vec<_>>>()?;
    bound.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}
