//! Replicas as processes `synod serve`, their disks, and faults that strike them.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{disks::Disks, network::Network};
use crate::{net::namespaces::tool, strace::SlowDisk};

/// Small limits, so that replicas often take snapshots, trim their logs and catch up in both ways, and soon need room.
const FLAGS: [&str; 6] = [
    "--election-timeout=600ms",
    "--heartbeat-interval=60ms",
    "--snapshot-count=2000",
    "--keep-slots=500",
    "--wal-segment-bytes=64KiB",
    "--exit-with-stdin",
];
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
    /// Where their data are.
    pub disks: Disks,
    replicas: Vec<Replica>,
}

#[derive(Debug, Default)]
struct Replica {
    /// Whether its data were deleted once, so that it is another replica than the one with which the cluster began.
    joins: bool,
    process: Option<(Child, ChildStdin)>,
    /// What makes its disk slow, if it is.
    slow: Option<SlowDisk>,
}

impl Cluster {
    /// Starts a replica at each place of the network, with logs and data in the folder.
    pub fn start(
        program: &Path,
        folder: &Path,
        flags: Vec<String>,
        network: Network,
        disks: Disks,
    ) -> Result<Cluster, String> {
        let replicas = network.addresses.iter().map(|_| Replica::default()).collect();
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let mut cluster = Cluster { program, folder, flags, network, disks, replicas };
        (0..cluster.len()).try_for_each(|place| cluster.restart(place))?;
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

    fn data(&self, place: usize) -> PathBuf {
        self.disks.path(place).join("data")
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

    /// Kills a process, and waits until it is gone. Does nothing if it does not run.
    pub fn kill(&mut self, place: usize) {
        self.replicas[place].slow = None;
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

    /// Cuts the power of some replicas at the same time: their processes end, and their disks forget what was not
    /// synchronised.
    pub fn cut_power(&mut self, places: &[usize]) -> Result<(), String> {
        // A process that is stopped does not hear of what its disk says from now on, as if it had no power either.
        places.iter().for_each(|&place| self.pause(place, true));
        places.iter().try_for_each(|&place| self.disks.cut_power(place))?;
        places.iter().for_each(|&place| self.kill(place));
        places.iter().try_for_each(|&place| self.disks.return_power(place))
    }

    /// Makes the disk of a running replica slow: each commit takes so much longer.
    pub fn slow_down(&mut self, place: usize, by: Duration) -> Result<(), String> {
        let record = self.folder.join(format!("{}.strace", Cluster::name(place)));
        let (child, _) = self.replicas[place].process.as_ref().ok_or("the replica does not run")?;
        self.replicas[place].slow = Some(SlowDisk::begin(Pid::from_child(child), by, &record)?);
        Ok(())
    }

    /// Makes it as fast as before. Returns how many commits took longer.
    pub fn speed_up(&mut self, place: usize) -> Result<usize, String> {
        self.replicas[place].slow.take().map_or(Ok(0), SlowDisk::end)
    }

    /// How a process ended, if it has.
    pub fn ended(&mut self, place: usize) -> Option<ExitStatus> {
        let (child, _) = self.replicas[place].process.as_mut()?;
        let status = child.try_wait().ok()??;
        self.replicas[place].process = None;
        Some(status)
    }

    /// Everything that the replicas at a place have logged.
    pub fn said(&self, place: usize) -> String {
        String::from_utf8_lossy(&fs::read(self.log(place)).unwrap_or_default()).into_owned()
    }

    /// The last error that a replica logged, or its last line.
    pub fn last_words(&self, place: usize) -> String {
        let said = self.said(place);
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

    /// Deletes all data of a replica that does not run, and what tells it who it was. Does nothing if there are none.
    pub fn wipe(&mut self, place: usize) -> Result<(), String> {
        assert!(self.replicas[place].process.is_none(), "it runs");
        let data = self.data(place);
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("{}: {error}", data.display())),
            _ => Ok(()),
        }
    }

    /// A replica that is started at this place from now on is a new member.
    pub fn renew(&mut self, place: usize) {
        self.replicas[place].joins = true;
    }

    /// Whether the member at this place joined later, so that it asks the members when it begins without data.
    pub fn has_joined(&self, place: usize) -> bool {
        self.replicas[place].joins
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
            if self.disks.are_mounted() {
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
