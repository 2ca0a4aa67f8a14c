//! A few replicas, stepped by hand: what they say, and what must be durable first. `scenarios/` and the
//! simulator check how they behave when much goes wrong.

mod recovery;
mod steps;
mod vectors;

use std::time::Duration;

use synod_wire::{Ballot, Ballots, Batch, BatchBuilder, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time};

use super::{Message, Record, SequencePaxos, State};
use crate::{
    Bug, Control, Effect, Effects, ElectionKind, Input, Members, Options, Protocol, ProtocolKind, Restart,
    paxos::Paxos,
};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

fn options() -> Options {
    // The tests decide by hand which replica leads.
    Options { election: ElectionKind::Rotating, ..Options::of(ProtocolKind::SequencePaxos) }
}

fn planted(bug: Option<Bug>) -> Options {
    Options { planted: bug, ..options() }
}

fn id(of: usize) -> ReplicaId {
    ReplicaId(of as u64 + 1)
}

fn ballot(round: u64, of: usize) -> Ballot {
    Ballot { round, replica: id(of) }
}

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

fn text(batch: &Batch) -> String {
    let command = batch.commands().next();
    command.map_or(String::new(), |command| String::from_utf8(command.payload.to_vec()).expect("text"))
}

struct Node {
    replica: SequencePaxos,
    /// The records on its disk, which writes at once.
    records: Vec<Record>,
    /// What it has delivered, from slot 1 on, in this life.
    delivered: String,
    down: bool,
}

/// Replicas, and the messages between them that were neither delivered nor lost yet.
struct Cluster {
    options: Options,
    now: Time,
    nodes: Vec<Node>,
    wire: Vec<(usize, usize, Message)>,
    reads: Vec<Option<Slot>>,
}

impl Cluster {
    fn new(count: usize, options: Options) -> Cluster {
        let mut cluster = Cluster {
            now: Time::ZERO + Duration::from_secs(100),
            nodes: Vec::new(),
            wire: Vec::new(),
            reads: Vec::new(),
            options,
        };
        for of in 0..count {
            let node = cluster.life(count, of, Vec::new(), false);
            cluster.nodes.push(node.0);
            cluster.settle(of, node.1);
        }
        cluster
    }

    fn life(&self, count: usize, of: usize, records: Vec<Record>, amnesia: bool) -> (Node, Effects) {
        let mut effects = Effects::new(Lsn(records.len() as u64));
        let restart = Restart {
            records: records.iter().cloned().map(crate::Record::from).collect(),
            amnesia,
            ..Restart::first(Incarnation(7))
        };
        let members = Members::new((0..count).map(id), id(of));
        let replica = SequencePaxos::start(self.options.clone(), members, restart, self.now, &mut effects);
        (Node { replica, records, delivered: String::new(), down: false }, effects)
    }

    /// Carries effects out; what is appended is durable at once.
    fn settle(&mut self, of: usize, mut effects: Effects) {
        let node = &mut self.nodes[of];
        node.replica.flush(self.now, &mut effects);
        loop {
            let mut appended = None;
            for effect in effects.drain() {
                match effect {
                    Effect::Append { lsn, record: crate::Record::SequencePaxos(record) } => {
                        node.records.push(record);
                        assert_eq!(lsn.0, node.records.len() as u64);
                        appended = Some(lsn);
                    }
                    Effect::Send { to, message: crate::Message::SequencePaxos(message), .. } => {
                        let each = to.ids().iter();
                        self.wire.extend(each.map(|to| (of, to.0 as usize - 1, message.clone())));
                    }
                    Effect::Deliver { batch, .. } => node.delivered += &text(&batch),
                    Effect::ReadIndex { slot, .. } => self.reads.push(slot),
                    _ => {}
                }
            }
            let Some(lsn) = appended else { break };
            node.replica.step(self.now, Input::Durable(lsn), &mut effects);
            node.replica.flush(self.now, &mut effects);
        }
    }

    fn effects(&self, of: usize) -> Effects {
        Effects::new(Lsn(self.nodes[of].records.len() as u64))
    }

    fn step(&mut self, of: usize, input: Input) {
        let mut effects = self.effects(of);
        self.nodes[of].replica.step(self.now, input, &mut effects);
        self.settle(of, effects);
    }

    fn campaign(&mut self, of: usize, round: u64) {
        let mut effects = self.effects(of);
        let before = effects.last_lsn();
        self.nodes[of].replica.become_candidate(self.now, ballot(round, of), &mut effects);
        self.nodes[of].replica.end_of_step(self.now, before, &mut effects);
        self.settle(of, effects);
    }

    /// Makes `of` lead with `with` as the rest of the quorum; both know that.
    fn elect(&mut self, of: usize, with: usize, round: u64) {
        self.campaign(of, round);
        self.pass(of, with);
        self.pass(with, of);
        assert!(matches!(self.nodes[of].replica.state, State::Leader(_)), "{}", id(of));
    }

    fn propose(&mut self, of: usize, text: &str) {
        assert!(self.nodes[of].replica.room() > 0);
        self.step(of, Input::Propose { batch: batch(text), awaited: true });
    }

    /// The messages that are under way from one replica to another.
    fn waiting(&self, from: usize, to: usize) -> Vec<&Message> {
        let meant = self.wire.iter().filter(|(a, b, _)| (*a, *b) == (from, to));
        meant.map(|(_, _, message)| message).collect()
    }

    fn take(&mut self, from: usize, to: usize) -> Vec<Message> {
        let (taken, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.wire).into_iter().partition(|(a, b, _)| (*a, *b) == (from, to));
        self.wire = rest;
        taken.into_iter().map(|(_, _, message)| message).collect()
    }

    /// Delivers what is now under way from one replica to another.
    fn pass(&mut self, from: usize, to: usize) {
        for message in self.take(from, to) {
            self.hand(from, to, message);
        }
    }

    fn hand(&mut self, from: usize, to: usize, message: Message) {
        if !self.nodes[to].down {
            self.step(to, Input::Receive { from: id(from), message: message.into() });
        }
    }

    fn lose(&mut self, from: usize, to: usize) {
        self.take(from, to);
    }

    fn lose_all(&mut self) {
        self.wire.clear();
    }

    /// Delivers everything between two replicas, including what they answer.
    fn talk(&mut self, one: usize, other: usize) {
        for _ in 0..100 {
            self.pass(one, other);
            self.pass(other, one);
        }
        assert!(self.waiting(one, other).is_empty() && self.waiting(other, one).is_empty(), "no end");
    }

    fn link(&mut self, of: usize, peer: usize) {
        self.step(of, Input::Link { peer: id(peer), link: crate::Link::Up });
    }

    fn wait(&mut self, of: usize, wait: Duration) {
        self.now += wait;
        self.step(of, Input::Timer);
    }

    /// Ends a life, and begins the next one with this many of its records.
    fn restart(&mut self, of: usize, records: usize, amnesia: bool) {
        let mut kept = std::mem::take(&mut self.nodes[of].records);
        kept.truncate(records);
        let (node, effects) = self.life(self.nodes.len(), of, kept, amnesia);
        self.nodes[of] = node;
        self.settle(of, effects);
    }

    fn delivered(&self, of: usize) -> &str {
        &self.nodes[of].delivered
    }

    /// Has a peer tell what a ballot decided.
    fn learn(&mut self, of: usize, decided_in: Ballot, slot: u64, text: &str) {
        let (slot, ballots, batch) = (Slot(slot), Ballots::both(decided_in), batch(text));
        self.step(of, Input::Control(Control::Learn { slot, ballots, batch, voters: None }));
    }

    fn records(&self, of: usize) -> usize {
        self.nodes[of].records.len()
    }

    fn replica(&self, of: usize) -> &SequencePaxos {
        &self.nodes[of].replica
    }
}
