//! The cost of idle groups: three nodes in this process, on real sockets and disks, host 1, 16 and 256 groups
//! and have nothing to do. The program prints the processor time of all three nodes together, and what they
//! send to each other.
//!
//! `cargo run --release -p synod-node --example groups -- [SECONDS] [GROUPS,...]`

use std::{
    env, fs,
    io::{self, Read, Write},
    net::TcpListener,
    thread::sleep,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_node::{Config, MemberAddress, Node};
use synod_replica::{Context, Frozen, StateMachine};
use synod_wire::{ClusterId, ReplicaId};

/// Counts commands.
#[derive(Clone, Default)]
struct Count(u64);

impl Frozen for Count {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0.to_le_bytes())
    }
}

impl StateMachine for Count {
    fn apply(&mut self, _command: &Bytes, _: &Context) -> Bytes {
        self.0 += 1;
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn query(&self, _query: &Bytes) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut count = [0; 8];
        snapshot.read_exact(&mut count)?;
        self.0 = u64::from_le_bytes(count);
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.0
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    let seconds = arguments.next().map_or(10, |text| text.parse().expect("SECONDS is a number"));
    let counts = arguments.next().unwrap_or_else(|| "1,16,256".to_owned());
    println!("groups   CPU (% of one core)   messages/s   frames/s   bytes/s");
    for groups in counts.split(',') {
        measure(groups.parse().expect("GROUPS are numbers"), Duration::from_secs(seconds));
    }
}

fn measure(groups: usize, time: Duration) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let listeners: Vec<_> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    let member = |(id, listener): (u64, &TcpListener)| {
        let address = listener.local_addr().expect("it listens").to_string();
        MemberAddress::new(ReplicaId(id), format!("r{id}"), address)
    };
    let members: Vec<_> = (1..).zip(&listeners).map(member).collect();
    drop(listeners);
    let start = |member: &MemberAddress| {
        let data = dir.path().join(&member.name);
        let mut config = Config::new(ClusterId(1), member.id, members.clone(), data);
        config.listen = vec![member.address.parse().expect("it is an address")];
        Node::start_groups_blocking(config, vec![Count::default(); groups]).expect("it starts")
    };
    let nodes: Vec<_> = members.iter().map(start).collect();
    let led = |node: &Node| node.handles().iter().all(|handle| handle.status().leader.is_some());
    while !nodes.iter().all(led) {
        sleep(Duration::from_millis(10));
    }
    // The work that an election leaves is done by then.
    sleep(Duration::from_secs(2));
    let (began, before) = (Instant::now(), Spent::now(&nodes));
    sleep(time);
    let (seconds, after) = (began.elapsed().as_secs_f64(), Spent::now(&nodes));
    let rate = |of: fn(&Spent) -> f64| (of(&after) - of(&before)) / seconds;
    println!(
        "{groups:6}   {:19.1}   {:10.0}   {:8.0}   {:7.0}",
        rate(|spent| spent.processor) * 100.0,
        rate(|spent| spent.messages),
        rate(|spent| spent.frames),
        rate(|spent| spent.bytes),
    );
    for node in nodes {
        node.stop_now_blocking().expect("it stops");
    }
}

/// What all nodes together have spent since they began.
struct Spent {
    /// Processor time of this process, in seconds.
    processor: f64,
    messages: f64,
    frames: f64,
    bytes: f64,
}

impl Spent {
    fn now(nodes: &[Node]) -> Spent {
        let statuses = || nodes.iter().flat_map(|node| node.handles().iter().map(|handle| handle.status()));
        let networks = || nodes.iter().map(Node::network);
        let peers = |of: fn(&synod_transport::PeerMetrics) -> u64| {
            networks().map(|network| network.peers.iter().map(of).sum::<u64>()).sum::<u64>() as f64
        };
        Spent {
            processor: processor_seconds(),
            messages: statuses().map(|status| status.messages_sent).sum::<u64>() as f64,
            frames: peers(|peer| peer.frames_sent),
            bytes: peers(|peer| peer.bytes_sent),
        }
    }
}

/// The processor time of all threads of this process, as Linux counts it, in hundredths of a second.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let fields: Vec<_> =
        stat.rsplit_once(')').expect("the name is in brackets").1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("it is a number");
    (ticks(11) + ticks(12)) / 100.0
}
