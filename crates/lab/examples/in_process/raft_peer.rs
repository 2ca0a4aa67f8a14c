//! The crate `raft` (raft-rs), with its own storage in memory.

use std::{collections::VecDeque, time::Instant};

use raft::{
    Config, RawNode, StateRole,
    eraftpb::{Entry, Message},
    storage::MemStorage,
};
use slog::{Discard, Logger, o};
use synod_wire::Batch;

use crate::Cluster;

struct Replicas {
    nodes: Vec<RawNode<MemStorage>>,
    inboxes: Vec<VecDeque<Message>>,
    decided: Vec<u64>,
}

pub fn start(replicas: usize) -> Box<dyn Cluster> {
    let ids: Vec<u64> = (1..=replicas as u64).collect();
    let logger = Logger::root(Discard, o!());
    let node = |&id: &u64| {
        let storage = MemStorage::new_with_conf_state((ids.clone(), vec![]));
        // Settings that suit this load: many entries a message, many messages in flight, appends merged.
        let config = Config {
            id,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 4096,
            max_uncommitted_size: u64::MAX,
            batch_append: true,
            ..Config::default()
        };
        RawNode::new(&config, storage, &logger).expect("a valid configuration")
    };
    let mut cluster = Replicas {
        nodes: ids.iter().map(node).collect(),
        inboxes: vec![VecDeque::new(); replicas],
        decided: vec![0; replicas],
    };
    cluster.nodes[0].campaign().expect("a voter may campaign");
    while cluster.nodes[0].raft.state != StateRole::Leader {
        cluster.round(Instant::now());
    }
    (0..10).for_each(|_| cluster.round(Instant::now()));
    Box::new(cluster)
}

impl Replicas {
    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            self.inboxes[message.to as usize - 1].push_back(message);
        }
    }

    fn count(&mut self, index: usize, entries: &[Entry]) {
        // The entry that begins a term is empty.
        self.decided[index] += entries.iter().filter(|entry| !entry.data.is_empty()).count() as u64;
    }

    fn carry_out(&mut self, index: usize) {
        if !self.nodes[index].has_ready() {
            return;
        }
        let mut ready = self.nodes[index].ready();
        self.send(ready.take_messages());
        self.count(index, &ready.take_committed_entries());
        let store = self.nodes[index].store().clone();
        store.wl().append(ready.entries()).expect("entries follow each other");
        if let Some(state) = ready.hs() {
            store.wl().set_hardstate(state.clone());
        }
        self.send(ready.take_persisted_messages());
        let mut light = self.nodes[index].advance(ready);
        if let Some(commit) = light.commit_index() {
            store.wl().mut_hard_state().commit = commit;
        }
        self.send(light.take_messages());
        self.count(index, &light.take_committed_entries());
        self.nodes[index].advance_apply();
    }
}

impl Cluster for Replicas {
    fn propose(&mut self, batch: &Batch) {
        // The crate takes a vector of its own, so this copy is a part of its interface.
        self.nodes[0]
            .propose(Vec::new(), batch.bytes().to_vec())
            .expect("it leads, and nothing is too large");
    }

    fn round(&mut self, _: Instant) {
        for index in 0..self.nodes.len() {
            while let Some(message) = self.inboxes[index].pop_front() {
                self.nodes[index].step(message).expect("a message of this group");
            }
            self.carry_out(index);
        }
    }

    fn decided(&self) -> (u64, u64) {
        (self.decided[0], self.decided.iter().min().copied().unwrap_or(0))
    }
}
