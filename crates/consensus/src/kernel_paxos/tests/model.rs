//! Three replicas whose messages are lost, doubled and reordered, and which crash: whatever they deliver is the same
//! (section 10.3 of the document: 8 % loss, 10 % duplication, any order). The simulator has more of the world around
//! them; this has more schedules a second, and no session that would keep an order.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;
use crate::To;

struct Node {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    /// What is sent once a record is durable.
    held: Vec<(To, crate::Message, Lsn)>,
    durable: Lsn,
    log: Vec<crate::Record>,
    lives: u64,
}

/// What went wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Two replicas delivered different batches in a slot.
    Agreement,
    /// Two batches were proposed in a slot and ballot.
    Proposals,
    /// Two lives of a replica asked for promises of one ballot.
    Ballots,
}

struct Cluster {
    options: Options,
    nodes: Vec<Node>,
    bag: Vec<(ReplicaId, ReplicaId, crate::Message)>,
    now: Time,
    random: Rng,
    proposed: BTreeMap<(Slot, Ballot), Batch>,
    asked: BTreeMap<Ballot, u64>,
    chosen: BTreeMap<Slot, Batch>,
    commands: u64,
    wrong: Option<Wrong>,
}

impl Cluster {
    fn new(options: &Options, seed: u64) -> Cluster {
        let mut cluster = Cluster {
            options: options.clone(),
            nodes: Vec::new(),
            bag: Vec::new(),
            now: Time::ZERO,
            random: Rng::with_seed(seed),
            proposed: BTreeMap::new(),
            asked: BTreeMap::new(),
            chosen: BTreeMap::new(),
            commands: 0,
            wrong: None,
        };
        for at in 0..3 {
            let (protocol, effects) = cluster.start(at, Vec::new(), 1);
            let (held, log) = (Vec::new(), Vec::new());
            cluster.nodes.push(Node { protocol, effects, held, durable: Lsn::ZERO, log, lives: 1 });
            cluster.carry_out(at);
        }
        cluster
    }

    fn start(&self, at: usize, records: Vec<crate::Record>, life: u64) -> (Box<dyn Protocol>, Effects) {
        let mut effects = Effects::new(Lsn(records.len() as u64));
        let restart = Restart { records, ..Restart::first(Incarnation(life)) };
        let members = Members::new([R1, R2, R3], id(at));
        (self.options.start(members, restart, self.now, &mut effects), effects)
    }

    fn step(&mut self, at: usize, input: Input) {
        let node = &mut self.nodes[at];
        node.protocol.step(self.now, input, &mut node.effects);
        node.protocol.flush(self.now, &mut node.effects);
        self.carry_out(at);
    }

    fn carry_out(&mut self, at: usize) {
        let effects: Vec<Effect> = self.nodes[at].effects.drain().collect();
        for effect in effects {
            match effect {
                Effect::Append { record, .. } => self.nodes[at].log.push(record),
                Effect::Send { to, message, after } => self.nodes[at].held.push((to, message, after)),
                Effect::Deliver { slot, batch, .. } => {
                    let chosen = self.chosen.entry(slot).or_insert_with(|| batch.clone());
                    if *chosen != batch {
                        self.wrong = Some(Wrong::Agreement);
                    }
                }
                _ => {}
            }
        }
        self.release(at);
    }

    /// Sends what waits for nothing any more.
    fn release(&mut self, at: usize) {
        let durable = self.nodes[at].durable;
        let held = std::mem::take(&mut self.nodes[at].held);
        let (ready, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|(.., after)| *after <= durable);
        self.nodes[at].held = held;
        for (to, message, _) in ready {
            self.look_at(at, &message);
            self.bag.extend(to.ids().iter().map(|&to| (id(at), to, message.clone())));
        }
    }

    /// Looks at what a replica says in a ballot of its own.
    fn look_at(&mut self, at: usize, message: &crate::Message) {
        match message {
            crate::Message::KernelPaxos(Message::Accept { ballot, slot, proposed, .. }) => {
                let known = self.proposed.entry((*slot, *ballot)).or_insert_with(|| proposed.clone());
                if known != proposed {
                    self.wrong = Some(Wrong::Proposals);
                }
            }
            crate::Message::KernelPaxos(Message::PrepareAll { ballot, .. }) => {
                let life = self.nodes[at].lives;
                if *self.asked.entry(*ballot).or_insert(life) != life {
                    self.wrong = Some(Wrong::Ballots);
                }
            }
            _ => {}
        }
    }

    fn happen(&mut self) {
        let at = self.random.usize(..3);
        match self.random.u32(..1000) {
            0..720 if !self.bag.is_empty() => {
                let picked = self.random.usize(..self.bag.len());
                let (from, to, message) = match self.random.u32(..100) {
                    0..10 => self.bag[picked].clone(),
                    10..18 => return drop(self.bag.swap_remove(picked)),
                    _ => self.bag.swap_remove(picked),
                };
                self.step(place(to), Input::Receive { from, message });
            }
            0..860 => {
                self.nodes[at].durable = self.nodes[at].effects.last_lsn();
                let durable = self.nodes[at].durable;
                self.step(at, Input::Durable(durable));
                self.release(at);
            }
            860..930 => {
                self.commands += 1;
                let batch = batch(&format!("{}", self.commands));
                self.step(at, Input::Propose { batch, awaited: true });
            }
            930..994 => {
                self.now += Duration::from_millis(self.random.u64(10..400));
                (0..3).for_each(|at| self.step(at, Input::Timer));
            }
            _ => self.crash(at),
        }
    }

    /// What is not durable is lost, and what waited for it is never sent.
    fn crash(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.log.truncate(usize::try_from(node.durable.0).expect("a short log"));
        node.held.clear();
        node.lives += 1;
        let (records, life) = (node.log.clone(), node.lives);
        let (protocol, effects) = self.start(at, records, life);
        let node = &mut self.nodes[at];
        (node.protocol, node.effects) = (protocol, effects);
        self.carry_out(at);
    }
}

fn id(at: usize) -> ReplicaId {
    ReplicaId(at as u64 + 1)
}

fn place(id: ReplicaId) -> usize {
    usize::try_from(id.0 - 1).expect("one of three")
}

/// How many of these runs went wrong, and how many slots were decided in all.
fn run(options: &Options, seeds: u64, steps: usize) -> (u64, u64) {
    let (mut wrong, mut decided) = (0, 0);
    for seed in 0..seeds {
        let mut cluster = Cluster::new(options, seed);
        for _ in 0..steps {
            cluster.happen();
            if cluster.wrong.is_some() {
                wrong += 1;
                break;
            }
        }
        decided += cluster.chosen.len() as u64;
    }
    (wrong, decided)
}

fn small(planted: Option<crate::Bug>) -> Options {
    Options { window_max: 3, planted, ..Options::of(ProtocolKind::KernelPaxos) }
}

#[test]
fn whatever_is_lost_doubled_reordered_or_forgotten_all_deliver_the_same() {
    for prepare in [Preparation::All, Preparation::Ahead, Preparation::Each] {
        let options = Options { kernel_paxos: Tuning { prepare }, ..small(None) };
        let (wrong, decided) = run(&options, 150, 3_000);
        assert!(wrong == 0 && decided > 100, "{prepare}: {wrong} runs went wrong, {decided} slots");
    }
}

/// The mistakes that section 10.3 wants to be found, as far as a run of three replicas shows them. The tests of single
/// replicas find the others.
#[test]
fn the_mistakes_of_the_document_are_found() {
    for bug in [
        crate::Bug::VoteBeforeDurable,
        crate::Bug::CommitWithMinority,
        crate::Bug::ReuseBallot,
        Bug::CountByPromise.into(),
        Bug::ForgetUndelivered.into(),
        Bug::FillWithoutPhase1.into(),
        Bug::DecideAcrossBallots.into(),
    ] {
        let (wrong, decided) = run(&small(Some(bug)), 400, 3_000);
        println!("{bug:?}: {wrong} of 400 runs went wrong; {decided} slots");
        assert!(wrong > 0, "{bug:?}: not found in {decided} slots");
    }
}
