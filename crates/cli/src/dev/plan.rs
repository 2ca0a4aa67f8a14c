//! The replicas of a cluster: their names, ports and folders, and the command lines that start them.

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
};

use synod_storage::DataDir;
use tempfile::TempDir;

use crate::failure::Failure;

/// The client ports of etcd's examples, as far as they go; a peer port is the next number.
const CLIENT_PORTS: [u16; 7] = [2379, 22379, 32379, 42379, 52379, 62379, 12379];
/// The distance between the client ports of two replicas if the first one is given.
const PORT_STEP: u16 = 10;

/// Makes a replica end when this process ends.
const EXIT_WITH_STDIN: &str = "--exit-with-stdin";

/// Where the data is.
#[derive(Debug)]
pub enum Folder {
    Kept(PathBuf),
    Removed(TempDir),
}

impl Folder {
    pub fn choose(data: &Path, ephemeral: bool) -> Result<Folder, Failure> {
        if ephemeral {
            let made = tempfile::Builder::new().prefix("synod-").tempdir();
            return made
                .map(Folder::Removed)
                .map_err(|error| Failure::failed(format!("a temporary folder cannot be made: {error}")));
        }
        Ok(Folder::Kept(data.to_owned()))
    }

    pub fn path(&self) -> &Path {
        match self {
            Folder::Kept(path) => path,
            Folder::Removed(folder) => folder.path(),
        }
    }

    /// The numbers of the replicas to run: those of the cluster that was made or started last. After `synod
    /// recover` the others belong to another cluster.
    pub fn replicas(&self, wanted: Option<usize>) -> Result<Replicas, Failure> {
        let mut found = Vec::new();
        for number in 1..=CLIENT_PORTS.len() {
            let folder = self.path().join(name(number));
            let written = match fs::metadata(folder.join("identity")) {
                Ok(file) => file.modified(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error),
            };
            let written =
                written.map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
            let marker = DataDir::read(&folder).map_err(Failure::failed)?;
            found.extend(marker.map(|marker| (number, marker.identity.cluster, written)));
        }
        let Some(&(_, cluster, _)) = found.iter().max_by_key(|(.., written)| written) else {
            return Ok(Replicas { run: (1..=wanted.unwrap_or(3)).collect(), others: Vec::new() });
        };
        let numbers = |of: bool| {
            let some = found.iter().filter(move |(_, other, _)| (*other == cluster) == of);
            some.map(|(number, ..)| *number).collect::<Vec<_>>()
        };
        let (run, others) = (numbers(true), numbers(false));
        match wanted {
            Some(wanted) if wanted != run.len() => Err(Failure::usage(format!(
                "--replicas {wanted}: {} holds the data of {found}; accepted: {found}, or another folder with --data-dir",
                self.path().display(),
                found = run.len(),
            ))),
            _ => Ok(Replicas { run, others }),
        }
    }
}

/// Replicas by their numbers, from 1 on.
#[derive(Debug, PartialEq, Eq)]
pub struct Replicas {
    pub run: Vec<usize>,
    /// Replicas whose data belong to another cluster.
    pub others: Vec<usize>,
}

pub fn name(number: usize) -> String {
    format!("n{number}")
}

/// The file with the first port with which the replicas below a folder began.
const BASE_PORT_FILE: &str = "base-port";
/// Stands for [`CLIENT_PORTS`] in that file.
const USUAL: &str = "usual";

impl Folder {
    /// The first port to use. The replicas know each other's addresses from their first start on, so with
    /// data of an earlier start it is the port of that start.
    pub fn base_port(&self, wanted: Option<u16>) -> Result<Option<u16>, Failure> {
        let file = self.path().join(BASE_PORT_FILE);
        let failed = |error: io::Error| Failure::failed(format!("{}: {error}", file.display()));
        let text = |port: Option<u16>| port.map_or_else(|| USUAL.to_owned(), |port| port.to_string());
        let kept = match fs::read_to_string(&file) {
            Ok(kept) => kept.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(self.path()).map_err(failed)?;
                fs::write(&file, text(wanted)).map_err(failed)?;
                return Ok(wanted);
            }
            Err(error) => return Err(failed(error)),
        };
        let known = match kept.as_str() {
            USUAL => None,
            port => Some(port.parse().map_err(|_| failed(io::Error::other("is not the number of a port")))?),
        };
        if wanted.is_some() && wanted != known {
            let accepted = known.map_or_else(|| "no --base-port".to_owned(), |port| port.to_string());
            return Err(Failure::usage(format!(
                "--base-port {}: {} holds the data of a cluster at other ports; accepted: {accepted}, or another \
                 folder with --data-dir",
                text(wanted),
                self.path().display()
            )));
        }
        Ok(known)
    }
}

/// One replica and how it is started.
#[derive(Clone, Debug)]
pub struct ReplicaPlan {
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    client_port: u16,
    peer_port: u16,
}

impl ReplicaPlan {
    /// The command line that starts it without `synod dev`.
    pub fn command(&self) -> String {
        let mut line = self.program.display().to_string();
        for arg in self.args.iter().filter(|arg| *arg != EXIT_WITH_STDIN) {
            let arg = arg.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=:/.,+".contains(c);
            line += &if arg.chars().all(plain) {
                format!(" {arg}")
            } else {
                format!(" '{}'", arg.replace('\'', r"'\''"))
            };
        }
        line
    }

    pub fn describe(&self) -> String {
        format!("{:<6} clients {}  peers {}", self.name, url(self.client_port), url(self.peer_port))
    }
}

/// All replicas.
#[derive(Debug)]
pub struct Plan {
    replicas: Vec<ReplicaPlan>,
    usual_ports: bool,
}

impl Plan {
    pub fn new(
        replicas: &[usize],
        base_port: Option<u16>,
        folder: &Path,
        flags: Vec<OsString>,
    ) -> Result<Plan, Failure> {
        let ports = ports(replicas.iter().copied().max().unwrap_or_default(), base_port)?;
        let program = env::current_exe()
            .map_err(|error| Failure::failed(format!("the path of this program is not known: {error}")))?;
        let members: Vec<_> = replicas.iter().map(|&number| (name(number), ports[number - 1])).collect();
        let peers = members.iter().map(|(name, port)| format!("{name}={}", url(port + 1)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let replicas = members.iter().map(|(name, port)| {
            let mut args: Vec<OsString> = vec!["serve".into(), EXIT_WITH_STDIN.into()];
            args.push(format!("--name={name}").into());
            let mut dir = OsString::from("--data-dir=");
            dir.push(folder.join(name));
            args.push(dir);
            args.push(format!("--listen-client-urls={}", url(*port)).into());
            args.push(format!("--advertise-client-urls={}", url(*port)).into());
            args.push(format!("--listen-peer-urls={}", url(port + 1)).into());
            args.push(format!("--initial-advertise-peer-urls={}", url(port + 1)).into());
            args.push(format!("--initial-cluster={peers}").into());
            args.push("--initial-cluster-token=synod-dev".into());
            args.push("--initial-cluster-state=new".into());
            args.extend(flags.iter().cloned());
            ReplicaPlan {
                name: name.clone(),
                program: program.clone(),
                args,
                client_port: *port,
                peer_port: port + 1,
            }
        });
        Ok(Plan { replicas: replicas.collect(), usual_ports: base_port.is_none() })
    }

    pub fn replicas(&self) -> &[ReplicaPlan] {
        &self.replicas
    }

    /// Where clients connect.
    pub fn endpoints(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| url(replica.client_port)).collect()
    }

    /// Refuses to start if a port is taken.
    pub fn check_ports(&self) -> Result<(), Failure> {
        let wanted = self.replicas.iter().flat_map(|replica| [replica.client_port, replica.peer_port]);
        for port in wanted {
            TcpListener::bind(("127.0.0.1", port)).map_err(|error| {
                Failure::failed(format!(
                    "port {port} cannot be used: {error}. Stop what listens there, or choose other ports: \
                     --base-port 7000"
                ))
            })?;
        }
        Ok(())
    }

    /// Commands to try next.
    pub fn advice(&self) -> String {
        let program = env::args().next().unwrap_or_else(|| "synod".to_owned());
        let mut text = String::from("\nTry, in another terminal:\n");
        if !self.usual_ports {
            let _ = writeln!(text, "  export SYNOD_ENDPOINTS={}", self.endpoints().join(","));
        }
        let endpoints = self.endpoints().join(",");
        let lines = [
            format!("{program} put city Lausanne"),
            format!("{program} get city"),
            format!("{program} status --cluster"),
            format!("etcdctl --endpoints {endpoints} endpoint status -w table"),
        ];
        let bench = format!("{program} bench put --endpoints {endpoints} --clients 64");
        for line in lines.into_iter().chain(cfg!(feature = "laboratory").then_some(bench)) {
            let _ = writeln!(text, "  {line}");
        }
        text.push_str("Kill a replica (kill -9 PID) and go on. Ctrl-C stops all.\n");
        text
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn ports(replicas: usize, base_port: Option<u16>) -> Result<Vec<u16>, Failure> {
    let Some(base) = base_port else { return Ok(CLIENT_PORTS[..replicas].to_vec()) };
    let span = PORT_STEP * u16::try_from(replicas).expect("at most 7");
    if base == 0 || base > u16::MAX - span {
        return Err(Failure::usage(format!("--base-port {base}: accepted: 1 to {}", u16::MAX - span)));
    }
    Ok((base..base + span).step_by(PORT_STEP.into()).collect())
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use synod_storage::Durability;
    use synod_wire::{ClusterId, ReplicaId};

    use super::*;

    #[test]
    fn ports_are_those_of_etcds_examples_or_follow_the_first() {
        assert_eq!(ports(3, None).unwrap(), [2379, 22379, 32379]);
        assert_eq!(ports(3, Some(7000)).unwrap(), [7000, 7010, 7020]);
        assert!(ports(7, Some(65_500)).unwrap_err().to_string().contains("accepted: 1 to 65465"));
    }

    #[test]
    fn a_taken_port_is_named_with_the_remedy() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let plan = Plan::new(&[1], Some(port), Path::new("x"), Vec::new()).unwrap();
        let error = plan.check_ports().unwrap_err().to_string();
        assert!(error.contains(&format!("port {port}")) && error.contains("--base-port"), "{error}");
    }

    #[test]
    fn the_ports_are_those_of_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |name: &str| Folder::Kept(folder.path().join(name));
        assert_eq!(kept("a").base_port(Some(7000)).unwrap(), Some(7000));
        assert_eq!(kept("a").base_port(None).unwrap(), Some(7000));
        assert!(kept("a").base_port(Some(8000)).unwrap_err().to_string().contains("accepted: 7000"));
        assert_eq!(kept("b").base_port(None).unwrap(), None);
        assert!(kept("b").base_port(Some(7000)).unwrap_err().to_string().contains("no --base-port"));
    }

    #[test]
    fn the_number_of_replicas_is_that_of_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Folder::Kept(folder.path().to_owned());
        let run = |run: &[usize], others: &[usize]| Replicas { run: run.to_vec(), others: others.to_vec() };
        assert_eq!(kept.replicas(None).unwrap(), run(&[1, 2, 3], &[]));
        assert_eq!(kept.replicas(Some(5)).unwrap().run.len(), 5);
        let make = |folder: &str, cluster, id| {
            let path = kept.path().join(folder);
            drop(DataDir::open(&path, ClusterId(cluster), ReplicaId(id), folder, Durability::Sync).unwrap());
        };
        (1..=3).for_each(|id| make(&name(id as usize), 7, id));
        // The folder that `synod recover` keeps of an earlier cluster is not a replica.
        make("n2.old-0250a8e7f065901c", 7, 2);
        assert_eq!(kept.replicas(None).unwrap(), run(&[1, 2, 3], &[]));
        assert!(kept.replicas(Some(5)).unwrap_err().to_string().contains("data of 3"));
        // The second replica becomes a cluster of its own.
        fs::remove_dir_all(kept.path().join("n2")).unwrap();
        thread::sleep(Duration::from_millis(20));
        make("n2", 8, 2);
        assert_eq!(kept.replicas(None).unwrap(), run(&[2], &[1, 3]));
        let plan = Plan::new(&[2], Some(7000), kept.path(), Vec::new()).unwrap();
        assert_eq!(plan.endpoints(), ["http://127.0.0.1:7010"]);
        let command = plan.replicas()[0].command();
        assert!(command.contains(" serve --name=n2 --data-dir=") && !command.contains("stdin"), "{command}");
    }
}
