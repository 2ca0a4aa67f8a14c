//! Commands per second and latency of three replicas in this process, over TCP on the loopback interface,
//! without gRPC: the cost of the runtime itself.
//!
//! `cargo run --release -p synod-node --example commands -- [sync|async|memory] [CLIENTS] [SECONDS] [spread|compact]`

use std::{
    io::{self, Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_node::{Config, MemberAddress, Node, Threads};
use synod_replica::{Context, Frozen, StateMachine};
use synod_wire::{ClusterId, ReplicaId};

/// Counts commands.
#[derive(Clone, Default)]
struct Counter(u64);

impl Frozen for Counter {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0.to_le_bytes())
    }
}

impl StateMachine for Counter {
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
        let mut bytes = [0; 8];
        snapshot.read_exact(&mut bytes)?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.0
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let arg = |index: usize, default: &str| args.get(index).cloned().unwrap_or_else(|| default.to_owned());
    let durability = arg(1, "sync").parse()?;
    let clients: usize = arg(2, "1").parse()?;
    let seconds: f64 = arg(3, "3").parse()?;
    let threads: Threads = arg(4, "spread").parse()?;
    let dir = tempfile::tempdir()?;
    let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let members: Vec<MemberAddress> = listeners
        .iter()
        .zip(1..)
        .map(|(listener, id)| {
            let address = listener.local_addr()?.to_string();
            Ok(MemberAddress::new(ReplicaId(id), format!("r{id}"), address))
        })
        .collect::<io::Result<_>>()?;
    drop(listeners);
    let mut nodes = Vec::new();
    for member in &members {
        let mut config = Config::new(ClusterId(7), member.id, members.clone(), dir.path().join(&member.name));
        config.listen = vec![member.address.parse()?];
        config.durability = durability;
        config.threads = threads;
        nodes.push(Node::start_blocking(config, Counter::default())?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let latencies = runtime.block_on(async {
        let leader = loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Some(leader) = nodes[0].handle().status().leader {
                break leader;
            }
        };
        let handle = nodes[leader.0 as usize - 1].handle();
        handle.execute(Bytes::from_static(b"warm up")).await?;
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..clients {
            let handle = handle.clone();
            tasks.spawn(async move {
                let payload = Bytes::from(vec![b'x'; 256]);
                let mut latencies = Vec::new();
                while Instant::now() < end {
                    let began = Instant::now();
                    handle.execute(payload.clone()).await?;
                    latencies.push(began.elapsed());
                }
                Ok::<_, synod_replica::RequestError>(latencies)
            });
        }
        let mut all = Vec::new();
        while let Some(latencies) = tasks.join_next().await {
            all.extend(latencies??);
        }
        Ok::<_, Box<dyn std::error::Error>>(all)
    })?;
    let mut latencies = latencies;
    latencies.sort_unstable();
    println!(
        "{durability}, {clients} clients, threads {threads}: {:.0}/s, median {:?}, 99% {:?}",
        latencies.len() as f64 / seconds,
        latencies[latencies.len() / 2],
        latencies[latencies.len() * 99 / 100],
    );
    for node in nodes {
        node.stop_now_blocking()?;
    }
    Ok(())
}
