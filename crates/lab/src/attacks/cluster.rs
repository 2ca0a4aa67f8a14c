//! Three servers as processes on this machine, Synod's or etcd's, and how much memory they use.

use std::{
    fs::{self, File},
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use synod_api::etcdserverpb::{
    HashKvRequest, PutRequest, StatusRequest, kv_client::KvClient, maintenance_client::MaintenanceClient,
};
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::users::token;
use crate::net::free_addresses;

/// How many servers there are.
pub const SERVERS: usize = 3;
/// How long a start may take until all servers serve, and how long they may take until they hold the same.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// Time between two samples of the servers' memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The system that is attacked.
#[derive(Clone, Debug)]
pub enum System {
    /// Synod, with the path of the program `synod`.
    Synod(PathBuf),
    /// etcd, with the path of the program `etcd`.
    Etcd(PathBuf),
}

impl System {
    /// The system's name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            System::Synod(_) => "synod",
            System::Etcd(_) => "etcd",
        }
    }
}

/// The addresses of a server.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub client: SocketAddr,
    pub peer: SocketAddr,
    pub metrics: SocketAddr,
}

/// A running process, as the thread that watches memory sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    pid: Option<Pid>,
    /// The most memory that the process ever had resident, in bytes.
    peak: u64,
    stopped_by_guard: bool,
}

/// The servers. They are killed when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    system: System,
    /// The command under which each server runs; empty if it runs by itself.
    under: Vec<String>,
    /// What the servers are told besides their addresses.
    arguments: Vec<String>,
    folder: PathBuf,
    nofile: u64,
    /// The number of servers.
    count: usize,
    pub servers: [Addresses; SERVERS],
    children: [Option<Child>; SERVERS],
    watched: Arc<Mutex<[Watched; SERVERS]>>,
    end: Arc<AtomicBool>,
}

impl Cluster {
    /// Starts all servers, each with a limit of descriptors. A server whose resident memory grows beyond
    /// `guard` bytes is killed, so that an attack does not exhaust the machine.
    pub fn start(system: &System, folder: &Path, nofile: u64, guard: u64) -> Result<Cluster, String> {
        Cluster::start_some(system, folder, SERVERS, nofile, guard)
    }

    /// Starts fewer than [`SERVERS`] servers.
    pub fn start_some(
        system: &System,
        folder: &Path,
        count: usize,
        nofile: u64,
        guard: u64,
    ) -> Result<Cluster, String> {
        Cluster::start_with(system, &[], folder, count, nofile, guard)
    }

    /// The same with further arguments.
    pub fn start_with(
        system: &System,
        arguments: &[&str],
        folder: &Path,
        count: usize,
        nofile: u64,
        guard: u64,
    ) -> Result<Cluster, String> {
        Cluster::start_under(&[], system, arguments, folder, count, nofile, guard)
    }

    /// The same with servers that run under another command, such as a tracer. It has to end with its server.
    pub fn start_under(
        under: &[&str],
        system: &System,
        arguments: &[&str],
        folder: &Path,
        count: usize,
        nofile: u64,
        guard: u64,
    ) -> Result<Cluster, String> {
        let free = free_addresses(3 * SERVERS).map_err(|error| format!("ports: {error}"))?;
        let servers = [0, 1, 2].map(|place| Addresses {
            client: free[3 * place],
            peer: free[3 * place + 1],
            metrics: free[3 * place + 2],
        });
        let mut cluster = Cluster {
            system: system.clone(),
            under: under.iter().map(|&word| word.to_owned()).collect(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            folder: folder.to_owned(),
            nofile,
            count,
            servers,
            children: Default::default(),
            watched: Arc::default(),
            end: Arc::default(),
        };
        for place in 0..count {
            cluster.restart(place)?;
        }
        let (watched, end) = (Arc::clone(&cluster.watched), Arc::clone(&cluster.end));
        thread::spawn(move || watch(&watched, &end, guard));
        Ok(cluster)
    }

    /// The name of a server.
    pub fn name(place: usize) -> String {
        format!("n{}", place + 1)
    }

    /// Starts a server that does not run.
    pub fn restart(&mut self, place: usize) -> Result<(), String> {
        let name = Cluster::name(place);
        let log = self.folder.join(format!("{name}.log"));
        let failed = |error: std::io::Error| format!("starting {name}: {error}");
        let log = File::options().create(true).append(true).open(log).map_err(failed)?;
        let url = |address: SocketAddr| format!("http://{address}");
        let Addresses { client, peer, metrics } = self.servers[place];
        let members = self.servers.iter().take(self.count).enumerate();
        let members = members.map(|(place, server)| format!("{}={}", Cluster::name(place), url(server.peer)));
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -n "$0" && exec "$@""#, &self.nofile.to_string()]).args(&self.under);
        match &self.system {
            System::Synod(program) => command.arg(program).args(["serve", "--exit-with-stdin"]),
            System::Etcd(program) => command.arg(program).args(["--log-level", "error"]),
        };
        command
            .args(["--name", &name, "--initial-cluster", &members.collect::<Vec<_>>().join(",")])
            .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
            .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
            .args(["--listen-metrics-urls", &url(metrics), "--data-dir"])
            .arg(self.folder.join(&name))
            .args(&self.arguments)
            .process_group(0) // Ctrl-C is for this program, which then ends them.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().map_err(failed)?;
        self.lock()[place] = Watched { pid: Some(Pid::from_child(&child)), ..Watched::default() };
        self.children[place] = Some(child);
        Ok(())
    }

    /// Kills a server, as a power switch would.
    pub fn kill(&mut self, place: usize) {
        self.lock()[place].pid = None;
        if let Some(mut child) = self.children[place].take() {
            // These calls fail only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The servers that ended although the program did not end them, each with its last words.
    pub fn dead(&mut self) -> Vec<String> {
        let mut dead = Vec::new();
        for place in 0..SERVERS {
            let Some(child) = self.children[place].as_mut() else { continue };
            let Ok(Some(status)) = child.try_wait() else { continue };
            let watched = {
                let mut all = self.lock();
                all[place].pid = None;
                all[place]
            };
            let said =
                fs::read(self.folder.join(format!("{}.log", Cluster::name(place)))).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let last = said.lines().rfind(|line| line.contains("ERROR")).or(said.lines().last());
            let why = match watched.stopped_by_guard {
                true => format!("killed with {} MiB resident, to save the machine", mib(watched.peak)),
                false => format!("{status}; it said: {}", last.unwrap_or("nothing")),
            };
            dead.push(format!("{}: {why}", Cluster::name(place)));
        }
        dead
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().flatten().map(Child::id).collect()
    }

    /// The resident memory of each server now, in bytes.
    pub fn resident(&self) -> [u64; SERVERS] {
        self.lock().map(|one| one.pid.and_then(|pid| memory(pid, "VmRSS:")).unwrap_or(0))
    }

    /// The highest resident memory of each server since its start, in bytes.
    pub fn peaks(&self) -> [u64; SERVERS] {
        self.lock().map(|one| one.peak)
    }

    /// Waits until a put succeeds at every server, one server after the other.
    pub async fn await_service(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        for place in 0..self.count {
            while !puts(self.servers[place].client, Duration::from_secs(2)).await {
                if let Some(dead) = self.dead().pop() {
                    return Err(dead);
                }
                if began.elapsed() > WAIT_MAX {
                    return Err(format!("{} does not serve after {WAIT_MAX:?}", Cluster::name(place)));
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(began.elapsed())
    }

    /// The place of the leader.
    pub async fn leader(&self) -> Result<usize, String> {
        for (place, server) in self.servers.iter().enumerate() {
            let status = MaintenanceClient::new(channel(server.client)).status(StatusRequest {}).await;
            let status = status.map(tonic::Response::into_inner).map_err(|error| error.to_string())?;
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                return Ok(place);
            }
        }
        Err("nobody leads".to_owned())
    }

    /// The member that leads, and its term, as the first server tells them that has not ended.
    pub async fn leads(&self) -> Result<(u64, u64), String> {
        let mut error = "no server runs".to_owned();
        for (server, _) in self.servers.iter().zip(&self.children).filter(|(_, child)| child.is_some()) {
            let told = async {
                let mut client = MaintenanceClient::new(channel(server.client));
                match client.status(StatusRequest {}).await {
                    // Since an attack users count.
                    Err(status) if status.message().contains("user name is empty") => {
                        let token = token(server.client).await?;
                        let mut request = tonic::Request::new(StatusRequest {});
                        let token =
                            token.parse().map_err(|_| tonic::Status::internal("the token is no header"))?;
                        request.metadata_mut().insert("authorization", token);
                        client.status(request).await
                    }
                    told => told,
                }
            };
            match timeout(Duration::from_secs(5), told).await {
                Ok(Ok(status)) => return Ok((status.get_ref().leader, status.get_ref().raft_term)),
                Ok(Err(status)) => error = status.to_string(),
                Err(_) => error = format!("{} does not tell who leads", server.client),
            }
        }
        Err(error)
    }

    /// Waits until all servers hold the same keys and values at the same revision.
    pub async fn compare(&self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let mut hashes = Vec::new();
            for server in &self.servers {
                let mut client = MaintenanceClient::new(channel(server.client));
                let hash = client.hash_kv(HashKvRequest { revision: 0 });
                if let Ok(Ok(hash)) = timeout(Duration::from_secs(10), hash).await {
                    let hash = hash.into_inner();
                    hashes.push((hash.header.map_or(0, |header| header.revision), hash.hash));
                }
            }
            if hashes.len() == SERVERS && hashes.iter().all(|hash| *hash == hashes[0]) {
                return Ok(());
            }
            if began.elapsed() > WAIT_MAX {
                return Err(format!("(revision, hash) of each: {hashes:?}"));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [Watched; SERVERS]> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        (0..SERVERS).for_each(|place| self.kill(place));
    }
}

fn watch(watched: &Mutex<[Watched; SERVERS]>, end: &AtomicBool, guard: u64) {
    while !end.load(Ordering::Relaxed) {
        for one in watched.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            let Some(pid) = one.pid else { continue };
            let Some(peak) = memory(pid, "VmHWM:") else { continue };
            one.peak = peak;
            if peak > guard && !one.stopped_by_guard {
                one.stopped_by_guard = true;
                // The call fails only if the process has ended. No other process has its id, since it was not
                // waited for.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// A line of /proc/PID/status, in bytes.
fn memory(pid: Pid, line: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let value = status.lines().find_map(|text| text.strip_prefix(line))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Bytes as whole MiB.
pub fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// A connection that is made when it is first needed, and made again after it is lost.
pub fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URL");
    endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy()
}

/// Whether a put over a new connection succeeds in time.
pub async fn puts(address: SocketAddr, within: Duration) -> bool {
    let put = PutRequest { key: "served".into(), ..PutRequest::default() };
    let mut client = KvClient::new(channel(address));
    timeout(within, client.put(put)).await.is_ok_and(|answer| answer.is_ok())
}
