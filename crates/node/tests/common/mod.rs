//! Groups of replicas in this process, on real sockets and disks.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    fs,
    io::{self, Read, Write},
    mem::replace,
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use synod_node::{Config, Handle, MemberAddress, Node, StartError};
use synod_replica::{Context, Frozen, SnapshotReader, StateMachine};
use synod_testkit::free_port;
use synod_wire::{ClusterId, ReplicaId};

/// A state machine that remembers every command, in order.
#[derive(Clone, Default)]
pub struct Tape(pub Vec<u8>);

impl Frozen for Tape {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0)
    }
}

impl StateMachine for Tape {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.0.extend_from_slice(command);
        Bytes::from(self.0.len().to_string())
    }

    fn query(&self, _query: &Bytes) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        *self = Tape::read(snapshot)?;
        Ok(())
    }

    fn reader() -> Option<SnapshotReader<Tape>> {
        Some(|snapshot| {
            let read = Tape::read(snapshot)?;
            Ok(Box::new(|tape| Box::new(replace(tape, read))))
        })
    }

    fn digest(&self) -> u64 {
        self.0.iter().fold(0, |digest: u64, &byte| digest.wrapping_mul(31).wrapping_add(byte.into()))
    }
}

impl Tape {
    pub fn read(snapshot: &mut dyn Read) -> io::Result<Tape> {
        let mut tape = Vec::new();
        snapshot.read_to_end(&mut tape)?;
        Ok(Tape(tape))
    }
}

pub struct Group {
    pub dir: tempfile::TempDir,
    pub members: Vec<MemberAddress>,
    pub tune: fn(&mut Config),
}

impl Group {
    pub fn new(count: u64, tune: fn(&mut Config)) -> Group {
        let member =
            |id| MemberAddress::new(ReplicaId(id), format!("r{id}"), format!("127.0.0.1:{}", free_port()));
        Group { dir: tempfile::tempdir().unwrap(), members: (1..=count).map(member).collect(), tune }
    }

    pub fn config(&self, id: u64) -> Config {
        let member = &self.members[id as usize - 1];
        let dir = self.dir.path().join(&member.name);
        let mut config = Config::new(ClusterId(7), member.id, self.members.clone(), dir);
        config.listen = vec![member.address.parse().unwrap()];
        config.segment_bytes = 1 << 20;
        config.settings.consensus.heartbeat_interval = Duration::from_millis(30);
        config.settings.consensus.election_timeout = Duration::from_millis(300);
        (self.tune)(&mut config);
        config
    }

    pub fn try_start(&self, id: u64) -> Result<Node, StartError> {
        self.start_with(id, Tape::default())
    }

    pub fn start_with(&self, id: u64, machine: impl StateMachine) -> Result<Node, StartError> {
        Node::start_blocking(self.config(id), machine)
    }

    pub fn start(&self, id: u64) -> Node {
        self.try_start(id).unwrap()
    }
}

/// Copies a data directory.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { _ = fs::copy(&path, &target).unwrap() }
    }
}

pub fn block<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), future).await.expect("a minute is enough")
    })
}

pub fn append(handle: &Handle, text: &str) -> String {
    let reply = block(handle.execute(Bytes::copy_from_slice(text.as_bytes()))).unwrap();
    String::from_utf8(reply.to_vec()).unwrap()
}

pub fn tape(handle: &Handle) -> String {
    String::from_utf8(block(handle.query(Bytes::new())).unwrap().to_vec()).unwrap()
}
