//! A cluster of real processes, for tests and measurements. All of it panics where a process cannot be started, asked
//! or ended.

#![allow(clippy::missing_panics_doc, reason = "see the head")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{free_port, free_ports};

/// Processes of `synod serve`. Those that still run when this is dropped are killed.
#[derive(Debug)]
pub struct Cluster {
    replicas: Vec<Replica>,
}

#[derive(Debug)]
struct Replica {
    program: PathBuf,
    args: Vec<String>,
    endpoint: String,
    data_dir: PathBuf,
    log: PathBuf,
    /// Names and peer URLs of the replicas with which the cluster began.
    initial_cluster: Vec<(String, String)>,
    process: Option<Child>,
}

impl Cluster {
    /// Starts replicas on free ports, with data and logs below `folder`; `flags` are given to all.
    pub fn start(program: &Path, folder: &Path, replicas: usize, flags: &[&str]) -> Cluster {
        Cluster::start_some(program, folder, replicas, replicas, flags)
    }

    /// Starts the first `started` of this many replicas.
    pub fn start_some(
        program: &Path,
        folder: &Path,
        replicas: usize,
        started: usize,
        flags: &[&str],
    ) -> Cluster {
        let mut cluster = Cluster::of(program, folder, replicas, "http", <[u16]>::to_vec, flags);
        (0..started).for_each(|index| cluster.restart(index));
        cluster
    }

    /// Starts replicas that clients and other replicas reach with TLS, which `flags` say more about.
    pub fn start_with_tls(program: &Path, folder: &Path, replicas: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster::of(program, folder, replicas, "https", <[u16]>::to_vec, flags);
        (0..replicas).for_each(|index| cluster.restart(index));
        cluster
    }

    /// Starts replicas that reach each other at other ports than those at which they listen. `behind` gets these, and
    /// returns the others.
    pub fn start_behind(
        program: &Path,
        folder: &Path,
        replicas: usize,
        behind: impl FnOnce(&[u16]) -> Vec<u16>,
        flags: &[&str],
    ) -> Cluster {
        let mut cluster = Cluster::of(program, folder, replicas, "http", behind, flags);
        (0..replicas).for_each(|index| cluster.restart(index));
        cluster
    }

    /// Replicas that have not been started.
    fn of(
        program: &Path,
        folder: &Path,
        replicas: usize,
        scheme: &str,
        advertise: impl FnOnce(&[u16]) -> Vec<u16>,
        flags: &[&str],
    ) -> Cluster {
        let ports = free_ports(2 * replicas);
        let (clients, peers) = ports.split_at(replicas);
        let url = |port: u16| format!("{scheme}://127.0.0.1:{port}");
        let initial_cluster: Vec<_> = advertise(peers)
            .into_iter()
            .zip(1..)
            .map(|(port, number)| (format!("n{number}"), url(port)))
            .collect();
        let members: Vec<_> = initial_cluster.iter().map(|(name, url)| format!("{name}={url}")).collect();
        let replicas = (0..replicas).map(|index| {
            let name = format!("n{}", index + 1);
            let data_dir = folder.join(&name);
            let mut args = vec![
                "serve".to_owned(),
                format!("--name={name}"),
                format!("--data-dir={}", data_dir.display()),
                format!("--listen-client-urls={}", url(clients[index])),
                format!("--listen-peer-urls={}", url(peers[index])),
                format!("--initial-cluster={}", members.join(",")),
            ];
            args.extend(flags.iter().map(|flag| (*flag).to_owned()));
            Replica {
                program: program.to_owned(),
                args,
                endpoint: url(clients[index]),
                data_dir,
                log: folder.join(format!("{name}.log")),
                initial_cluster: initial_cluster.clone(),
                process: None,
            }
        });
        Cluster { replicas: replicas.collect() }
    }

    /// Starts one more replica, which joins: at free ports, or at those of another replica. Returns its index.
    pub fn join(&mut self, name: &str, peer_port: u16, flags: &[&str]) -> usize {
        let like = &self.replicas[0];
        let folder = like.log.parent().expect("it is in a folder").to_owned();
        let (scheme, _) = like.endpoint.split_once("://").expect("it is a URL");
        let url = |port: u16| format!("{scheme}://127.0.0.1:{port}");
        let client = free_port();
        let data_dir = folder.join(format!("{name}-{client}"));
        let mut others = like.initial_cluster.clone();
        others.retain(|(other, _)| other != name);
        others.push((name.to_owned(), url(peer_port)));
        let others: Vec<_> = others.iter().map(|(name, url)| format!("{name}={url}")).collect();
        let mut args = vec![
            "serve".to_owned(),
            format!("--name={name}"),
            format!("--data-dir={}", data_dir.display()),
            format!("--listen-client-urls={}", url(client)),
            format!("--listen-peer-urls={}", url(peer_port)),
            format!("--initial-advertise-peer-urls={}", url(peer_port)),
            format!("--initial-cluster={}", others.join(",")),
            "--initial-cluster-state=existing".to_owned(),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.replicas.push(Replica {
            program: like.program.clone(),
            args,
            endpoint: url(client),
            log: folder.join(format!("{name}-{client}.log")),
            data_dir,
            initial_cluster: like.initial_cluster.clone(),
            process: None,
        });
        let index = self.replicas.len() - 1;
        self.restart(index);
        index
    }

    /// The port at which the others reach one of the first replicas.
    pub fn peer_port(&self, index: usize) -> u16 {
        let url = &self.replicas[0].initial_cluster[index].1;
        url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("it ends in a port")
    }

    /// Waits until a process ends by itself.
    pub fn ends(&mut self, index: usize, wait_max: Duration) -> ExitStatus {
        let deadline = Instant::now() + wait_max;
        let process = self.replicas[index].process.as_mut().expect("it runs");
        while Instant::now() < deadline {
            if let Some(status) = process.try_wait().expect("it is our child") {
                self.replicas[index].process = None;
                return status;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("replica {index} still runs after {wait_max:?}");
    }

    /// What a replica has said so far.
    pub fn said(&self, index: usize) -> String {
        fs::read_to_string(&self.replicas[index].log).unwrap_or_default()
    }

    /// Client URLs, by replica.
    pub fn endpoints(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.endpoint.clone()).collect()
    }

    /// The data directory of a replica.
    pub fn data_dir(&self, index: usize) -> &Path {
        &self.replicas[index].data_dir
    }

    /// Ends a process as a power switch would, and waits until it is gone.
    pub fn kill(&mut self, index: usize) {
        let mut process = self.replicas[index].process.take().expect("it runs");
        process.kill().expect("it is our child");
        process.wait().expect("it is our child");
    }

    /// Stops a process, which then does nothing, and its machine takes connections for it.
    pub fn hang(&self, index: usize) {
        let process = self.replicas[index].process.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), Signal::STOP).expect("it is our child");
    }

    /// Starts a replica that does not run.
    pub fn restart(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        assert!(replica.process.is_none(), "it runs");
        let log =
            File::options().create(true).append(true).open(&replica.log).expect("the log can be written");
        let process =
            Command::new(&replica.program).args(&replica.args).stdin(Stdio::null()).stderr(log).spawn();
        replica.process = Some(process.expect("the program can be started"));
    }

    /// Makes the data directory of a replica that has none from a backup, with the replica's own flags.
    pub fn restore(&self, index: usize, more: &[&str]) -> Output {
        let replica = &self.replicas[index];
        let mut command = Command::new(&replica.program);
        command.args(["snapshot", "restore"]).args(&replica.args[1..]).args(more);
        command.stdin(Stdio::null()).output().expect("the program can be started")
    }

    /// Does the same, with further flags from now on.
    pub fn restart_with(&mut self, index: usize, flags: &[&str]) {
        self.replicas[index].args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.restart(index);
    }

    /// Asks a replica to stop, as a service manager does, and waits until it has.
    pub fn stop(&mut self, index: usize) -> ExitStatus {
        stop(&mut self.replicas[index].process.take().expect("it runs"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            if let Some(mut process) = replica.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
            if thread::panicking() {
                let said = fs::read_to_string(&replica.log).unwrap_or_default();
                let lines: Vec<_> = said.lines().collect();
                eprintln!("--- the end of {}:", replica.log.display());
                lines[lines.len().saturating_sub(30)..].iter().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}

/// Sends SIGTERM and waits; a process that does not end is a failure.
pub fn stop(process: &mut Child) -> ExitStatus {
    let pid = Pid::from_child(process);
    kill_process(pid, Signal::TERM).expect("it is our child");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(status) = process.try_wait().expect("it is our child") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = process.kill();
            panic!("the process does not stop");
        }
        thread::sleep(Duration::from_millis(20));
    }
}
