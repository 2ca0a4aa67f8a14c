//! Replicas as processes `synod serve`, their disks, and faults that strike them.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::network::Network;
use crate::net::namespaces::tool;

/// Small limits, so that replicas often take snapshots, trim their logs and catch up in both ways, and soon need room.
const FLAGS: [&str; 6] = [
    "--election-timeout=600ms",
    "--heartbeat-interval=60ms",
    "--snapshot-count=2000",
    "--keep-slots=500",
    "--wal-segment-bytes=64KiB",
    "--exit-with-stdin",
];
/// The size of a replica's file system, where it has one of its own.
const DISK: &str = "size=96m";
/// How long a process that was told to stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The replicas of a run, as processes. Dropping it kills those that still run.
#[derive(Debug)]
pub struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    /// Those that say which groups there are, and what orders.
    flags: Vec<String>,
    /// The network between them.
    pub network: Network,
    replicas: Vec<Replica>,
}

#[derive(Debug, Default)]
struct Replica {
    /// Whether its data were deleted once, so that it is another replica than the one with which the cluster began.
    joins: bool,
    process: Option<(Child, ChildStdin)>,
}

impl Cluster {
    /// Starts a replica at each place of the network, with logs and data in the folder.
    pub fn start(
        program: &Path,
        folder: &Path,
        flags: Vec<String>,
        network: Network,
    ) -> Result<Cluster, String> {
        let replicas = network.addresses.iter().map(|_| Replica::default()).collect();
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let mut cluster = Cluster { program, folder, flags, network, replicas };
        for place in 0..cluster.replicas.len() {
            let disk = cluster.disk(place);
            fs::create_dir_all(&disk).map_err(|error| format!("{}: {error}", disk.display()))?;
            if cluster.has_disks() {
                let disk = disk.to_str().ok_or("--data: a path that is not UTF-8")?;
                tool("mount", &["-t", "tmpfs", "-o", DISK, "none", disk], "")?;
            }
            cluster.restart(place)?;
        }
        Ok(cluster)
    }

    /// How many replicas there are.
    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// The name of a replica.
    pub fn name(place: usize) -> String {
        format!("n{}", place + 1)
    }

    /// Client URLs.
    pub fn endpoints(&self) -> Vec<String> {
        self.network.addresses.iter().map(|address| format!("http://{}", address.client)).collect()
    }

    /// The address at which the others reach a replica.
    pub fn peer_url(&self, place: usize) -> String {
        format!("http://{}", self.network.addresses[place].advertised)
    }

    /// Whether each replica has a file system of its own.
    pub fn has_disks(&self) -> bool {
        self.network.addresses[0].namespace.is_some()
    }

    fn disk(&self, place: usize) -> PathBuf {
        self.folder.join(Cluster::name(place))
    }

    fn data(&self, place: usize) -> PathBuf {
        self.disk(place).join("data")
    }

    fn ballast(&self, place: usize) -> PathBuf {
        self.disk(place).join("ballast")
    }

    fn log(&self, place: usize) -> PathBuf {
        self.folder.join(format!("{}.log", Cluster::name(place)))
    }

    /// Starts a replica that does not run.
    pub fn restart(&mut self, place: usize) -> Result<(), String> {
        assert!(self.replicas[place].process.is_none(), "it runs");
        let address = &self.network.addresses[place];
        let failed = |error: std::io::Error| format!("starting {}: {error}", self.program.display());
        let log = File::options().create(true).append(true).open(self.log(place)).map_err(failed)?;
        let members =
            (0..self.len()).map(|place| format!("{}={}", Cluster::name(place), self.peer_url(place)));
        let mut command = address.command(&self.program);
        command
            .args(["serve", "--name", &Cluster::name(place)])
            .args(["--listen-client-urls", &format!("http://{}", address.client)])
            .args(["--listen-peer-urls", &format!("http://{}", address.peer)])
            .args(["--initial-advertise-peer-urls", &self.peer_url(place)])
            .args(["--initial-cluster", &members.collect::<Vec<_>>().join(",")])
            .args(["--initial-cluster-state", if self.replicas[place].joins { "existing" } else { "new" }])
            .args(&self.flags)
            .args(FLAGS)
            .arg("--data-dir")
            .arg(self.data(place))
            .process_group(0) // Ctrl-C is for this program, which then stops them in order.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take().expect("it is piped");
        self.replicas[place].process = Some((child, stdin));
        Ok(())
    }

    /// Kills a process, as a power switch would, and waits until it is gone. Does nothing if it does not run.
    pub fn kill(&mut self, place: usize) {
        if let Some((mut child, _)) = self.replicas[place].process.take() {
            // These calls fail only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops (`true`) or continues a process.
    pub fn pause(&self, place: usize, paused: bool) {
        if let Some((child, _)) = &self.replicas[place].process {
            let signal = if paused { Signal::STOP } else { Signal::CONT };
            // The call fails only if the process has ended, which is noticed elsewhere.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// How a process ended, if it has.
    pub fn ended(&mut self, place: usize) -> Option<ExitStatus> {
        let (child, _) = self.replicas[place].process.as_mut()?;
        let status = child.try_wait().ok()??;
        self.replicas[place].process = None;
        Some(status)
    }

    /// The last error that a replica logged, or its last line.
    pub fn last_words(&self, place: usize) -> String {
        let said = fs::read(self.log(place)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let error = said.lines().rfind(|line| line.contains("ERROR") || line.contains("panicked"));
        error.or(said.lines().last()).unwrap_or("nothing").to_owned()
    }

    /// Reports a replica that ended although no fault ended it.
    pub fn check(&mut self) -> Result<(), String> {
        for place in 0..self.len() {
            if let Some(status) = self.ended(place) {
                let (name, said) = (Cluster::name(place), self.last_words(place));
                return Err(format!("{name} ended by itself ({status}); it said: {said}"));
            }
        }
        Ok(())
    }

    /// Deletes the data of a replica that does not run. A replica that is started there next is a new member.
    pub fn wipe(&mut self, place: usize) -> Result<(), String> {
        assert!(self.replicas[place].process.is_none(), "it runs");
        let data = self.data(place);
        fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        self.replicas[place].joins = true;
        Ok(())
    }

    /// Fills a replica's file system.
    pub fn fill(&self, place: usize) {
        let Ok(mut ballast) = File::options().create(true).append(true).open(self.ballast(place)) else {
            return;
        };
        for size in [1 << 20, 4096, 1] {
            while ballast.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Makes room again.
    pub fn empty(&self, place: usize) -> Result<(), String> {
        let ballast = self.ballast(place);
        fs::remove_file(&ballast).map_err(|error| format!("{}: {error}", ballast.display()))
    }

    /// Stops all replicas, and has their logs verified.
    pub fn stop(&mut self) -> Result<(), String> {
        let mut ending = Vec::new();
        for (place, replica) in self.replicas.iter_mut().enumerate() {
            // The end of its standard input tells a replica to stop.
            ending.extend(replica.process.take().map(|(child, _)| (place, child)));
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut trouble = Vec::new();
        for (place, mut child) in ending {
            let name = Cluster::name(place);
            let status = loop {
                match child.try_wait() {
                    Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                    Ok(status) => break status,
                    Err(_) => break None,
                }
            };
            match status {
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    trouble.push(format!("{name} did not stop within {STOP_TIMEOUT:?}"));
                }
                Some(status) if !status.success() => {
                    trouble.push(format!("{name} did not stop in good order: {status}"));
                }
                Some(_) => {
                    let verify =
                        Command::new(&self.program).args(["wal", "verify"]).arg(self.data(place)).output();
                    let verify = verify.map_err(|error| format!("wal verify: {error}"))?;
                    let said = String::from_utf8_lossy(&verify.stdout);
                    if !verify.status.success() || !said.contains("closed in good order") {
                        trouble.push(format!("{name}: wal verify says: {}", said.trim()));
                    }
                }
            }
        }
        if trouble.is_empty() { Ok(()) } else { Err(trouble.join("; ")) }
    }

    /// Kills all replicas, and copies their data out of file systems that end with this program.
    pub fn keep(&mut self) -> Result<(), String> {
        for place in 0..self.len() {
            self.kill(place);
            if self.has_disks() {
                let kept = self.folder.join(format!("{}-data", Cluster::name(place)));
                let (from, to) = (self.data(place), kept);
                tool("cp", &["-a", &from.to_string_lossy(), &to.to_string_lossy()], "")?;
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.len()).for_each(|place| self.kill(place));
    }
}
