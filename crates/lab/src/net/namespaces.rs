//! A network of its own for each replica, in namespaces of Linux, and a router between them and the clients.
//!
//! ```text
//!   clients ─┐
//!          router ─── n1: 10.211.1.2
//!             ├────── n2: 10.211.2.2
//!             └────── n3: 10.211.3.2
//! ```
//!
//! A program that uses them runs in namespaces of its own ([`run_again`]), so that all of it disappears with the
//! program, in whatever way it ends.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// What `unshare` makes for a run. All of it disappears when its first process ends.
const UNSHARE: [&str; 5] = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
/// Everything that a run does with namespaces, in small.
const REHEARSAL: &str = "mount -t tmpfs -o size=1m none /run && ip netns add n1 && \
    ip link add h1 type veth peer name eth0 netns n1 && ip rule add from 10.211.1.2 to 10.211.2.2 blackhole && \
    echo 1 > /proc/sys/net/ipv4/ip_forward && nsenter --net=/run/netns/n1 true";
/// Bytes that a limited card sends at once, and bytes that wait for it before packets are dropped.
const BURST_BYTES: u64 = 64 << 10;
const WAITING_BYTES: u64 = 4 << 20;

/// A command that runs a program in namespaces of its own. Without root's rights it becomes root in a namespace of
/// users.
fn private(program: &OsStr) -> Command {
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
pub(crate) fn rehearse() -> Result<(), String> {
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

/// Runs this program again, in namespaces of its own, with the same arguments and some more. When `interrupted` becomes
/// true, its standard input ends; it looks at that with [`heed_parent`].
///
/// # Errors
/// The system does not start it.
pub(crate) fn run_again(more: &[&OsStr], interrupted: &AtomicBool) -> io::Result<ExitStatus> {
    let program = env::current_exe()?;
    let mut command = private(program.as_os_str());
    command.args(env::args_os().skip(1)).args(more);
    // Ctrl-C reaches only this process, which passes it on.
    let mut child = command.process_group(0).stdin(Stdio::piped()).spawn()?;
    loop {
        if interrupted.load(Ordering::Relaxed) {
            drop(child.stdin.take());
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Sets `interrupted` once the standard input ends.
pub(crate) fn heed_parent(interrupted: &Arc<AtomicBool>) {
    let told = Arc::clone(interrupted);
    thread::spawn(move || {
        let mut nobody_writes = [0];
        while io::stdin().read(&mut nobody_writes).is_ok_and(|read| read > 0) {}
        told.store(true, Ordering::Relaxed);
    });
}

/// Shows the processes of this program's namespace in `/proc`, where tools look for the threads of a process by its
/// number. This process must be in namespaces of its own ([`run_again`]).
///
/// # Errors
/// The system does not allow it.
pub(crate) fn show_own_processes() -> Result<(), String> {
    tool("mount", &["-t", "proc", "none", "/proc"], "")
}

/// Runs a tool that must succeed.
///
/// # Errors
/// What it said.
pub(crate) fn tool(name: &str, args: &[&str], input: &str) -> Result<(), String> {
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
pub(crate) struct Address {
    /// The address at which it listens for clients.
    pub(crate) client: SocketAddr,
    /// The address at which it listens for other replicas.
    pub(crate) peer: SocketAddr,
    /// The address that the other replicas dial.
    pub(crate) advertised: SocketAddr,
    /// The network that it is in, if it has one of its own.
    pub(crate) namespace: Option<String>,
}

impl Address {
    /// A command that runs a program where the replica is.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{namespace}")).arg("--").arg(program);
        command
    }
}

/// Networks for replicas `n1`, `n2`, ... They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Namespaces {
    names: Vec<String>,
}

impl Namespaces {
    /// Makes the networks. This process must be in namespaces of its own ([`run_again`]).
    pub(crate) fn new(replicas: usize) -> Result<Namespaces, String> {
        tool("mount", &["-t", "tmpfs", "none", "/run"], "")?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| format!("ip_forward: {error}"))?;
        // Dropped if something fails.
        let mut made = Namespaces { names: Vec::new() };
        let mut router = "link set lo up\n".to_owned();
        for number in 1..=replicas {
            let name = format!("n{number}");
            tool("ip", &["netns", "add", &name], "")?;
            router += &format!(
                "link add h{number} type veth peer name eth0 netns {name}\naddr add 10.211.{number}.1/24 dev \
                 h{number}\nlink set h{number} up\n"
            );
            made.names.push(name);
        }
        tool("ip", &["-batch", "-"], &router)?;
        for number in 1..=replicas {
            let own = format!(
                "link set lo up\naddr add 10.211.{number}.2/24 dev eth0\nlink set eth0 up\nroute add default via \
                 10.211.{number}.1\n"
            );
            tool("ip", &["-n", &format!("n{number}"), "-batch", "-"], &own)?;
        }
        Ok(made)
    }

    /// Where each replica is.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let address = |(number, name): (u8, &String)| {
            let at = |port| SocketAddr::from((Ipv4Addr::new(10, 211, number, 2), port));
            let peer = at(2380);
            Address { client: at(2379), peer, advertised: peer, namespace: Some(name.clone()) }
        };
        (1..).zip(&self.names).map(address).collect()
    }

    /// Lets each replica send this many bytes a second, and receive as many, headers included.
    pub(crate) fn limit(&self, bytes_per_second: f64) -> Result<(), String> {
        let rate = format!("{:.0}bit", bytes_per_second * 8.0);
        let (burst, waiting) = (BURST_BYTES.to_string(), WAITING_BYTES.to_string());
        let limit = ["root", "tbf", "rate", &rate, "burst", &burst, "limit", &waiting];
        for name in &self.names {
            let outside = format!("h{}", &name[1..]);
            tool("tc", &[&["qdisc", "add", "dev", &outside][..], &limit].concat(), "")?;
            tool("tc", &[&["-n", name, "qdisc", "add", "dev", "eth0"][..], &limit].concat(), "")?;
        }
        Ok(())
    }

    /// What has passed each replica's card.
    pub(crate) fn traffic(&self) -> io::Result<Vec<Traffic>> {
        // What /sys shows belongs to the network in which it was mounted.
        let counters = fs::read_to_string("/proc/net/dev")?;
        let traffic = |name: &String| {
            let outside = format!("h{}", &name[1..]);
            traffic_of(&counters, &outside)
                .ok_or_else(|| io::Error::other(format!("no counters of {outside}")))
        };
        self.names.iter().map(traffic).collect()
    }
}

/// The traffic of a replica, out of the counters of the router's interface to it.
fn traffic_of(counters: &str, interface: &str) -> Option<Traffic> {
    let line = counters.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'))?;
    let mut numbers = line.split_whitespace().map(str::parse);
    // What the router receives, the replica has sent.
    Some(Traffic { sent: numbers.next()?.ok()?, received: numbers.nth(7)?.ok()? })
}

/// Bytes that a card has carried, with the headers of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // If something fails, the network ends with this process. Without the first of them the link would go some
            // time after the namespace.
            let _ = tool("ip", &["link", "del", &format!("h{}", &name[1..])], "");
            let _ = tool("ip", &["netns", "del", name], "");
        }
        let _ = tool("umount", &["/run"], "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_card_are_found() {
        let counters = "Inter-|   Receive                                                |  Transmit\n \
                        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n    \
                        h1:    1234      12    0    0    0     0          0         0     5678      56    0\n   \
                        h11:      99       1    0    0    0     0          0         0       77       1    0\n";
        let found =
            |interface| traffic_of(counters, interface).map(|traffic| (traffic.sent, traffic.received));
        assert_eq!(found("h1"), Some((1234, 5678)));
        assert_eq!(found("h11"), Some((99, 77)));
        assert_eq!(found("h2"), None);
    }
}
