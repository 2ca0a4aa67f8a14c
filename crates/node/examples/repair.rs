//! The cost of one flipped bit in a replica's log. Three replicas in this process, on real files and over TCP
//! on the loopback interface, fill their logs; one is stopped, its log is damaged, and it is started again.
//! The program counts the bytes that the others send it until it has everything again.
//!
//! `cargo run --release -p synod-node --example repair -- [PROTOCOL] [MEBIBYTES]`; takes about six times the
//! log in memory, and eight times on the disk (under `TMPDIR`).

use std::{
    fs::File,
    io::{self, Read, Write},
    net::TcpListener,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_consensus::Options;
use synod_node::{Config, MemberAddress, Node};
use synod_replica::{Context, Frozen, StateMachine};
use synod_wire::{ClusterId, ReplicaId};

/// Counts commands, and remembers a checksum of them all.
#[derive(Clone, Default)]
struct Sum {
    count: u64,
    crc: u32,
}

impl Frozen for Sum {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.count.to_le_bytes())?;
        out.write_all(&self.crc.to_le_bytes())
    }
}

impl StateMachine for Sum {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.count += 1;
        self.crc = self.crc.rotate_left(1) ^ crc32fast::hash(command);
        Bytes::new()
    }

    fn query(&self, _query: &Bytes) -> Bytes {
        Bytes::copy_from_slice(&self.count.to_le_bytes())
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let (mut count, mut crc) = ([0; 8], [0; 4]);
        snapshot.read_exact(&mut count)?;
        snapshot.read_exact(&mut crc)?;
        *self = Sum { count: u64::from_le_bytes(count), crc: u32::from_le_bytes(crc) };
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.count << 32 | u64::from(self.crc)
    }
}

/// What happens to the log while its replica is down.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Nothing,
    /// A bit flips at this share of the log.
    Flip(f64),
    /// The log is gone, which was also the cost of a flipped bit before logs were repaired.
    Gone,
}

type Failure = Box<dyn std::error::Error>;

/// Commands are as large as a batch, so each is a batch.
const COMMAND_BYTES: usize = 60 << 10;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let protocol = args.get(1).map_or("multipaxos", String::as_str).parse()?;
    let mebibytes: usize = args.get(2).map_or("1024", String::as_str).parse()?;
    let dir = tempfile::tempdir()?;
    let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let member = |(listener, id): (&TcpListener, u64)| -> io::Result<MemberAddress> {
        let address = listener.local_addr()?.to_string();
        Ok(MemberAddress::new(ReplicaId(id), format!("r{id}"), address))
    };
    let members: Vec<_> = listeners.iter().zip(1..).map(member).collect::<Result<_, _>>()?;
    drop(listeners);
    let start = |id: usize| -> Result<Node, Failure> {
        let member = &members[id - 1];
        let mut config = Config::new(ClusterId(7), member.id, members.clone(), dir.path().join(&member.name));
        config.listen = vec![member.address.parse()?];
        config.settings.consensus = Options::of(protocol);
        // There are no snapshots, so all data is in the log.
        (config.settings.snapshot_slots, config.settings.snapshot_log_bytes) = (u64::MAX, u64::MAX);
        config.settings.kept_bytes_max = u64::MAX;
        Ok(Node::start_blocking(config, Sum::default())?)
    };
    let others = [start(1)?, start(2)?];
    let mut third = start(3)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fill(&others[0], mebibytes << 20))?;
    let log = third.handle().status().log_bytes;
    println!(
        "{protocol}, a log of {} MiB without a snapshot, commands of {} KiB",
        log >> 20,
        COMMAND_BYTES >> 10
    );

    let wal = dir.path().join("r3/wal");
    for harm in [Harm::Nothing, Harm::Flip(0.5), Harm::Flip(0.0), Harm::Flip(0.999), Harm::Gone] {
        third.stop_now_blocking()?;
        match harm {
            Harm::Nothing => {}
            Harm::Flip(share) => flip(&wal, share)?,
            Harm::Gone => std::fs::remove_dir_all(&wal)?,
        }
        let sent = || others.iter().map(sent_to_the_third).sum::<u64>();
        let (before, began) = (sent(), Instant::now());
        third = start(3)?;
        let goal = others[0].handle().status().decided;
        while third.handle().status().executed < goal {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (fetched, took) = (sent() - before, began.elapsed());
        while third.handle().status().without_memory {
            std::thread::sleep(Duration::from_millis(1));
        }
        let votes = began.elapsed();
        let digest = |node: &Node| runtime.block_on(node.handle().digest());
        assert_eq!(digest(&others[0])?, digest(&third)?);
        println!(
            "{:14} {fetched:>12} bytes fetched; everything is here after {took:.1?}, and it votes after {votes:.1?}",
            format!("{harm:?}")
        );
    }
    third.stop_now_blocking()?;
    for node in others {
        node.stop_now_blocking()?;
    }
    Ok(())
}

/// Executes commands of this many bytes together.
async fn fill(node: &Node, bytes: usize) -> Result<(), Failure> {
    let handle = node.handle();
    while handle.status().leader.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..bytes.div_ceil(COMMAND_BYTES) {
        while tasks.len() >= 16 {
            tasks.join_next().await.expect("there are some")??;
        }
        let handle = handle.clone();
        tasks.spawn(async move {
            let mut command = vec![b'x'; COMMAND_BYTES];
            command[..8].copy_from_slice(&number.to_le_bytes());
            handle.execute(command.into()).await.map(drop)
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Flips a bit at a share of the written log, in a segment that is not empty.
fn flip(wal: &Path, share: f64) -> io::Result<()> {
    let mut segments: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(wal)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            segments.push(path);
        }
    }
    segments.sort();
    let mut written = Vec::new();
    for path in segments {
        let bytes = std::fs::read(&path)?;
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0);
        written.push((path, end.saturating_sub(HEADER)));
    }
    let all: usize = written.iter().map(|(_, bytes)| bytes).sum();
    let mut at = (all as f64 * share) as usize;
    for (path, bytes) in written {
        if at < bytes {
            let file = File::options().read(true).write(true).open(path)?;
            // The place is after the head of the segment and that of its first record.
            let place = (HEADER + at.max(100)) as u64;
            let mut byte = [0];
            file.read_exact_at(&mut byte, place)?;
            byte[0] ^= 1;
            file.write_all_at(&byte, place)?;
            return file.sync_all();
        }
        at -= bytes;
    }
    Err(io::Error::other("there is nothing to harm"))
}

/// Bytes of a segment before its records.
const HEADER: usize = 4096;

/// Bytes that a replica has sent to the third one.
fn sent_to_the_third(node: &Node) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(node.metrics()));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("it is text");
    let line = text.lines().find_map(|line| line.strip_prefix("synod_peer_bytes_sent_total{peer=\"3\"} "));
    let line = line
        .or_else(|| text.lines().find_map(|line| line.strip_prefix("synod_peer_bytes_sent{peer=\"3\"} ")));
    line.and_then(|number| number.parse().ok()).expect("it is among the metrics")
}
