//! The network between the replicas, and how it is cut.
//!
//! In **namespaces** each replica has a network of its own, and a router between all of them drops packets, by
//! direction:
//!
//! ```text
//!   clients ─┐
//!          router ─── n1: 10.211.1.2      from 10.211.1.2 to 10.211.2.2 blackhole
//!             ├────── n2: 10.211.2.2
//!             └────── n3: 10.211.3.2
//! ```
//!
//! TCP notices a packet that is lost in one direction in both: what arrives is not acknowledged. Behind the **relay**
//! (`crate::net`) connections stay up while what they carry in one direction waits, and arrives late.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Command, Stdio},
};

use synod_wire::ReplicaId;

use crate::net::{Link, Relay};

/// What `unshare` makes for the run. All of it disappears when its first process ends, in whatever way.
const UNSHARE: [&str; 5] = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
/// Everything that a run does with namespaces, in small.
const REHEARSAL: &str = "mount -t tmpfs -o size=1m none /run && ip netns add n1 && \
    ip link add h1 type veth peer name eth0 netns n1 && ip rule add from 10.211.1.2 to 10.211.2.2 blackhole && \
    echo 1 > /proc/sys/net/ipv4/ip_forward && nsenter --net=/run/netns/n1 true";

/// A command that runs a program in namespaces of its own. Without root's rights it becomes root in a namespace of
/// users.
pub fn private(program: &std::ffi::OsStr) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(UNSHARE).arg("--").arg(program);
    command
}

/// Tries whether the system allows namespaces.
///
/// # Errors
/// It does not, for this reason.
pub fn rehearse() -> Result<(), String> {
    let output = private("sh".as_ref()).args(["-c", REHEARSAL]).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.lines().last().unwrap_or("unshare failed").to_owned())
        }
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// Runs a tool that must succeed.
pub fn tool(name: &str, args: &[&str], input: &str) -> Result<(), String> {
    let failed = |what: &dyn std::fmt::Display| format!("{name} {}: {what}", args.join(" "));
    let mut command = Command::new(name);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).map_err(|error| failed(&error))?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&String::from_utf8_lossy(&output.stderr).trim()))
}

/// The addresses of a replica.
#[derive(Clone, Debug)]
pub struct Address {
    /// The address at which it listens for clients.
    pub client: SocketAddr,
    /// The address at which it listens for other replicas.
    pub peer: SocketAddr,
    /// The address that the other replicas dial.
    pub advertised: SocketAddr,
    /// The network that it is in, if it has one of its own.
    pub namespace: Option<String>,
}

/// The links between replicas, and how they are cut and mended.
#[derive(Debug)]
pub struct Network {
    /// The relay; `None` with namespaces.
    relay: Option<Relay>,
    /// The address of each place.
    pub addresses: Vec<Address>,
    cuts: BTreeSet<(usize, usize)>,
}

impl Network {
    /// Networks for replicas `n1`, `n2`, ... This process must be in namespaces of its own ([`private`]).
    pub fn namespaces(replicas: usize) -> Result<Network, String> {
        tool("mount", &["-t", "tmpfs", "none", "/run"], "")?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| format!("ip_forward: {error}"))?;
        let mut router = "link set lo up\n".to_owned();
        let mut addresses = Vec::new();
        for number in 1..=replicas {
            let name = format!("n{number}");
            tool("ip", &["netns", "add", &name], "")?;
            router += &format!(
                "link add h{number} type veth peer name eth0 netns {name}\naddr add 10.211.{number}.1/24 dev \
                 h{number}\nlink set h{number} up\n"
            );
            let number = u8::try_from(number).expect("few replicas");
            let ip = Ipv4Addr::new(10, 211, number, 2);
            let peer = SocketAddr::from((ip, 2380));
            let client = SocketAddr::from((ip, 2379));
            addresses.push(Address { client, peer, advertised: peer, namespace: Some(name) });
        }
        tool("ip", &["-batch", "-"], &router)?;
        for number in 1..=replicas {
            let own = format!(
                "link set lo up\naddr add 10.211.{number}.2/24 dev eth0\nlink set eth0 up\nroute add default via \
                 10.211.{number}.1\n"
            );
            tool("ip", &["-n", &format!("n{number}"), "-batch", "-"], &own)?;
        }
        Ok(Network { relay: None, addresses, cuts: BTreeSet::new() })
    }

    /// A relay on the loopback interface.
    pub fn relay(replicas: usize) -> Result<Network, String> {
        let ports = free_ports(2 * replicas);
        let address = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        let (clients, peers) = ports.split_at(replicas);
        let targets = (1..).map(ReplicaId).zip(peers.iter().map(address)).collect();
        let links = vec![vec![Link::CLEAR; replicas]; replicas];
        let relay = Relay::start(links, targets, 0).map_err(|error| format!("relay: {error}"))?;
        let advertised = relay.addresses().to_vec();
        let addresses = clients.iter().zip(peers).zip(advertised).map(|((client, peer), advertised)| {
            Address { client: address(client), peer: address(peer), advertised, namespace: None }
        });
        Ok(Network { addresses: addresses.collect(), relay: Some(relay), cuts: BTreeSet::new() })
    }

    /// The network's description in the report.
    pub fn describe(&self) -> &'static str {
        match self.relay {
            None => "a network namespace each; cuts drop packets by direction; data on a tmpfs each",
            Some(_) => {
                "loopback, through a relay; cuts hold back what is sent, by direction; no disk is filled up"
            }
        }
    }

    /// Tells the network that a new replica is at a place.
    pub fn settle(&self, id: u64, place: usize) {
        if let Some(relay) = &self.relay {
            relay.settle(ReplicaId(id), place);
        }
    }

    /// Cuts links: nothing gets from the first to the second place of each pair.
    pub fn cut(&mut self, pairs: &[(usize, usize)]) -> Result<(), String> {
        let new: Vec<_> = pairs.iter().copied().filter(|&pair| self.cuts.insert(pair)).collect();
        self.apply(&new, true)
    }

    /// Mends all links.
    pub fn mend(&mut self) -> Result<(), String> {
        let cuts: Vec<_> = std::mem::take(&mut self.cuts).into_iter().collect();
        self.apply(&cuts, false)
    }

    fn apply(&self, pairs: &[(usize, usize)], cut: bool) -> Result<(), String> {
        let Some(relay) = &self.relay else {
            let ip = |place: usize| self.addresses[place].peer.ip();
            let verb = if cut { "add" } else { "del" };
            let rule = |&(from, to): &(usize, usize)| {
                format!("rule {verb} from {} to {} blackhole\n", ip(from), ip(to))
            };
            return tool("ip", &["-batch", "-"], &pairs.iter().map(rule).collect::<String>());
        };
        pairs.iter().for_each(|&(from, to)| relay.cut(from, to, cut));
        Ok(())
    }
}

/// Free ports. They are below those that the system gives to outgoing connections, since a replica that was
/// killed must find its own port free again.
fn free_ports(count: usize) -> Vec<u16> {
    let mut ports = Vec::new();
    while ports.len() < count {
        let port = fastrand::u16(10_000..32_000);
        if !ports.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
    }
    ports
}
