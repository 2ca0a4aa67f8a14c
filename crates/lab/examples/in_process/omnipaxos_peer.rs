//! The crate `omnipaxos`, with its authors' storage in memory.

use std::{collections::VecDeque, time::Instant};

use omnipaxos::{
    ClusterConfig, OmniPaxos, ServerConfig,
    messages::Message,
    storage::{Entry, NoSnapshot},
};
use omnipaxos_storage::memory_storage::MemoryStorage;
use synod_wire::Batch;

use crate::Cluster;

/// A batch is shared, as Synod's are.
#[derive(Clone, Debug)]
struct Value(#[expect(dead_code, reason = "a log holds it; nobody executes it")] Batch);

impl Entry for Value {
    type Snapshot = NoSnapshot;
}

struct Replicas {
    nodes: Vec<OmniPaxos<Value, MemoryStorage<Value>>>,
    inboxes: Vec<VecDeque<Message<Value>>>,
    outgoing: Vec<Message<Value>>,
    read: Vec<usize>,
    leader: usize,
}

pub fn start(replicas: usize) -> Box<dyn Cluster> {
    let ids: Vec<u64> = (1..=replicas as u64).collect();
    let cluster_config = ClusterConfig { configuration_id: 1, nodes: ids.clone(), flexible_quorum: None };
    let node = |&pid: &u64| {
        // An election round is one tick, so that the start is short; nothing ticks under load.
        let server = ServerConfig { pid, election_tick_timeout: 1, ..ServerConfig::default() };
        let storage = MemoryStorage::default();
        cluster_config.clone().build_for_server(server, storage).expect("a valid configuration")
    };
    let mut cluster = Replicas {
        nodes: ids.iter().map(node).collect(),
        inboxes: vec![VecDeque::new(); replicas],
        outgoing: Vec::new(),
        read: vec![0; replicas],
        leader: 0,
    };
    loop {
        cluster.nodes.iter_mut().for_each(OmniPaxos::tick);
        (0..20).for_each(|_| cluster.round(Instant::now()));
        let leader =
            |node: &OmniPaxos<_, _>| node.get_current_leader().filter(|(_, is_accepting)| *is_accepting);
        if let Some((pid, _)) = leader(&cluster.nodes[0])
            && cluster.nodes.iter().all(|node| leader(node).is_some_and(|(other, _)| other == pid))
        {
            cluster.leader = pid as usize - 1;
            return Box::new(cluster);
        }
    }
}

impl Cluster for Replicas {
    fn propose(&mut self, batch: &Batch) {
        self.nodes[self.leader].append(Value(batch.clone())).expect("there is a leader and no stop-sign");
    }

    fn round(&mut self, _: Instant) {
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            while let Some(message) = self.inboxes[index].pop_front() {
                node.handle_incoming(message);
            }
            node.take_outgoing_messages(&mut self.outgoing);
            for message in self.outgoing.drain(..) {
                self.inboxes[message.get_receiver() as usize - 1].push_back(message);
            }
            // An application must read what was decided.
            if let Some(entries) = self.nodes[index].read_decided_suffix(self.read[index]) {
                self.read[index] += entries.len();
            }
        }
    }

    fn decided(&self) -> (u64, u64) {
        let all = self.read.iter().min().copied();
        (self.read[self.leader] as u64, all.unwrap_or(0) as u64)
    }
}
