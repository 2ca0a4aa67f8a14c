//! Replicas whose messages are lost, doubled and reordered, and which crash: whatever they deliver is the same
//! (section 10.3 of the document: 8 % loss, 10 % duplication, any order). Some lose their logs, and those that lag
//! catch up from others or by snapshots. The simulator has more of the world around them; this has more schedules a
//! second, and no session that would keep an order.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;
use crate::{Claim, Claims, To, VoterSets};

struct Node {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    /// What is sent once a record is durable.
    held: Vec<(To, crate::Message, Lsn)>,
    durable: Lsn,
    log: Vec<crate::Record>,
    lives: u64,
    /// What it delivered, from slot 1 on, as the replica around a protocol keeps it.
    kept: Vec<(Ballots, Batch)>,
    /// A snapshot holds what was delivered through this slot, in these ballots.
    base: (Slot, Ballots),
    /// It lost a log.
    lost: bool,
}

/// What is under way from one replica to another.
#[derive(Clone)]
enum Letter {
    Said(crate::Message),
    /// What was decided in a slot, which the sender keeps.
    Kept(Slot, Ballots, Batch),
}

/// What went wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Two replicas delivered different batches in a slot.
    Agreement,
    /// A slot was delivered out of its order.
    Order,
    /// Two batches were proposed in a slot and ballot.
    Proposals,
    /// Two lives of a replica asked for promises of one ballot.
    Ballots,
    /// A vote was told again before its record was durable.
    Told,
    /// A read does not see what was delivered before it came.
    Read,
}

/// A replica that is away for a while, from which the others may make themselves independent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    /// What it sends and is sent is lost.
    Cut,
    /// It does nothing, and what it is sent waits.
    Asleep,
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
struct Ground {
    replicas: usize,
    /// Whether replicas that lag are told what others keep.
    catches_up: bool,
}

const ALONE: Ground = Ground { replicas: 3, catches_up: false };
const THREE: Ground = Ground { replicas: 3, catches_up: true };
const FIVE: Ground = Ground { replicas: 5, catches_up: true };

struct Cluster {
    options: Options,
    ground: Ground,
    nodes: Vec<Node>,
    bag: Vec<(ReplicaId, ReplicaId, Letter)>,
    now: Time,
    random: Rng,
    proposed: BTreeMap<(Slot, Ballot), Batch>,
    asked: BTreeMap<Ballot, u64>,
    chosen: BTreeMap<Slot, Batch>,
    away: Option<(usize, Away)>,
    /// For each read, the last slot that any replica had delivered when it came.
    reads: Vec<Slot>,
    commands: u64,
    wrong: Option<Wrong>,
}

impl Cluster {
    fn new(options: &Options, ground: Ground, seed: u64) -> Cluster {
        let mut cluster = Cluster {
            options: options.clone(),
            ground,
            nodes: Vec::new(),
            bag: Vec::new(),
            now: Time::ZERO,
            random: Rng::with_seed(seed),
            proposed: BTreeMap::new(),
            asked: BTreeMap::new(),
            chosen: BTreeMap::new(),
            away: None,
            reads: Vec::new(),
            commands: 0,
            wrong: None,
        };
        for at in 0..ground.replicas {
            let (protocol, effects) = cluster.start(at, Restart::first(Incarnation(1)));
            cluster.nodes.push(Node {
                protocol,
                effects,
                held: Vec::new(),
                durable: Lsn::ZERO,
                log: Vec::new(),
                lives: 1,
                kept: Vec::new(),
                base: (Slot::ZERO, Ballots::ZERO),
                lost: false,
            });
            cluster.carry_out(at);
        }
        cluster
    }

    fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.ground.replicas).map(id)
    }

    fn start(&self, at: usize, restart: Restart) -> (Box<dyn Protocol>, Effects) {
        let mut effects = Effects::new(Lsn(restart.records.len() as u64));
        let members = Members::new(self.ids(), id(at));
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
                Effect::Deliver { slot, ballots, batch } => self.deliver(at, slot, ballots, batch),
                Effect::ReadIndex { token, slot: Some(slot) } if slot < self.reads[token.0 as usize] => {
                    self.wrong = Some(Wrong::Read);
                }
                Effect::Lacks { peer, slot } if self.ground.catches_up => {
                    let (ballots, batch) = self.nodes[at].kept[slot.0 as usize - 1].clone();
                    self.bag.push((id(at), peer, Letter::Kept(slot, ballots, batch)));
                }
                _ => {}
            }
        }
        self.release(at);
    }

    fn deliver(&mut self, at: usize, slot: Slot, ballots: Ballots, batch: Batch) {
        let chosen = self.chosen.entry(slot).or_insert_with(|| batch.clone());
        if *chosen != batch {
            self.wrong = Some(Wrong::Agreement);
        }
        let kept = &mut self.nodes[at].kept;
        if slot.0 != kept.len() as u64 + 1 {
            self.wrong = Some(Wrong::Order);
        }
        kept.push((ballots, batch));
    }

    /// Sends what waits for nothing any more.
    fn release(&mut self, at: usize) {
        let durable = self.nodes[at].durable;
        let held = std::mem::take(&mut self.nodes[at].held);
        let (ready, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|(.., after)| *after <= durable);
        self.nodes[at].held = held;
        for (to, message, _) in ready {
            self.look_at(at, &message);
            self.bag.extend(to.ids().iter().map(|&to| (id(at), to, Letter::Said(message.clone()))));
        }
    }

    /// Looks at what a replica says in a ballot of its own, and at what it tells again.
    fn look_at(&mut self, at: usize, message: &crate::Message) {
        let crate::Message::KernelPaxos(message) = message else { return };
        if let [Claim::Told { ballot, slot, .. }] = message.claims()[..] {
            let node = &self.nodes[at];
            let durable = &node.log[..usize::try_from(node.durable.0).expect("a short log")];
            let holds = |record: &crate::Record| match record {
                crate::Record::KernelPaxos(Record::Accepted { ballot: of, slot: at, .. }) => {
                    *at == slot && *of >= ballot
                }
                crate::Record::KernelPaxos(Record::Learned(value)) => value.slot == slot,
                _ => false,
            };
            if !durable.iter().any(holds) {
                self.wrong = Some(Wrong::Told);
            }
        }
        match message {
            Message::Accept { ballot, slot, proposed, .. } => {
                let known = self.proposed.entry((*slot, *ballot)).or_insert_with(|| proposed.clone());
                if known != proposed {
                    self.wrong = Some(Wrong::Proposals);
                }
            }
            Message::PrepareAll { ballot, .. } => {
                let life = self.nodes[at].lives;
                if *self.asked.entry(*ballot).or_insert(life) != life {
                    self.wrong = Some(Wrong::Ballots);
                }
            }
            _ => {}
        }
    }

    fn happen(&mut self) {
        let at = self.random.usize(..self.ground.replicas);
        let what = self.random.u32(..1000);
        if what < if self.away.is_some() { 2 } else { 4 } {
            return self.leave_or_return(at);
        }
        if self.sleeps(at) {
            return;
        }
        match what {
            0..740 if !self.bag.is_empty() => self.arrives(),
            0..880 => {
                self.nodes[at].durable = self.nodes[at].effects.last_lsn();
                let durable = self.nodes[at].durable;
                self.step(at, Input::Durable(durable));
                self.release(at);
            }
            880..930 => {
                self.commands += 1;
                let batch = batch(&format!("{}", self.commands));
                self.step(at, Input::Propose { batch, awaited: true });
            }
            930..950 => self.read(at),
            950..965 if self.ground.catches_up => self.catch_up(at),
            950..994 => {
                self.now += Duration::from_millis(self.random.u64(10..400));
                for at in 0..self.ground.replicas {
                    if !self.sleeps(at) {
                        self.step(at, Input::Timer);
                    }
                }
            }
            994..999 => self.crash(at, false),
            _ => self.crash(at, true),
        }
    }

    fn sleeps(&self, at: usize) -> bool {
        self.away == Some((at, Away::Asleep))
    }

    /// A replica is away from now on, or the one that is away is back, and may be asked before it hears of anything.
    fn leave_or_return(&mut self, at: usize) {
        match self.away.take() {
            None => self.away = Some((at, if self.random.bool() { Away::Cut } else { Away::Asleep })),
            Some((back, _)) => self.read(back),
        }
    }

    fn read(&mut self, at: usize) {
        let token = ReadToken(self.reads.len() as u64);
        let delivered = self.nodes.iter().map(|node| node.kept.len()).max();
        self.reads.push(Slot(delivered.expect("there are nodes") as u64));
        self.step(at, Input::Control(Control::ReadIndex(token)));
    }

    /// A message arrives, or is lost or doubled: one of the latest, or any.
    fn arrives(&mut self) {
        let first = if self.random.bool() { self.bag.len().saturating_sub(8) } else { 0 };
        let picked = self.random.usize(first..self.bag.len());
        let (from, to) = (place(self.bag[picked].0), place(self.bag[picked].1));
        if self.sleeps(to) {
            return;
        }
        let is_cut = |at| self.away == Some((at, Away::Cut));
        let letter = match self.random.u32(..100) {
            _ if is_cut(from) || is_cut(to) => return drop(self.bag.remove(picked)),
            0..10 => self.bag[picked].2.clone(),
            10..18 => return drop(self.bag.remove(picked)),
            _ => self.bag.remove(picked).2,
        };
        let input = match letter {
            Letter::Said(message) => Input::Receive { from: id(from), message },
            Letter::Kept(slot, ballots, batch) => {
                Input::Control(Control::Learn { slot, ballots, batch, voters: None })
            }
        };
        self.step(to, input);
    }

    /// A replica is told what another one keeps and it lacks: a few slots, or a snapshot.
    fn catch_up(&mut self, at: usize) {
        let from = self.random.usize(..self.ground.replicas);
        let (has, lacks) = (self.nodes[at].kept.len(), self.nodes[from].kept.len());
        if lacks <= has {
            return;
        }
        if self.random.u32(..4) > 0 {
            for slot in has..lacks.min(has + 3) {
                let (ballots, batch) = self.nodes[from].kept[slot].clone();
                let slot = Slot(slot as u64 + 1);
                self.step(at, Input::Control(Control::Learn { slot, ballots, batch, voters: None }));
            }
            return;
        }
        let kept = self.nodes[from].kept.clone();
        let ballots = kept.iter().fold(Ballots::ZERO, |all, (ballots, _)| all.followed_by(*ballots));
        let (slot, voters) = (Slot(lacks as u64), VoterSets::simple(self.ids().collect()));
        self.nodes[at].kept = kept;
        self.nodes[at].base = (slot, ballots);
        let delivered = std::sync::Arc::default();
        self.step(at, Input::Control(Control::Installed { slot, ballots, voters, delivered }));
    }

    /// What is not durable is lost, and what waited for it is never sent. With a lost log records go that were durable;
    /// that happens to fewer than half of the replicas.
    fn crash(&mut self, at: usize, loses: bool) {
        let lost = self.nodes.iter().filter(|node| node.lost).count();
        let loses = loses && (self.nodes[at].lost || 2 * (lost + 1) < self.ground.replicas);
        let node = &mut self.nodes[at];
        node.log.truncate(usize::try_from(node.durable.0).expect("a short log"));
        if loses {
            node.lost = true;
            node.log.truncate(self.random.usize(..=node.log.len()));
            node.durable = Lsn(node.log.len() as u64);
        }
        // The log shows what is missing until the replica has written that it knows.
        let knows = node.log.iter().any(|record| record.amnesia() == Some(true));
        let amnesia = node.lost && !knows;
        node.held.clear();
        node.lives += 1;
        let (base, base_ballots) = node.base;
        node.kept.truncate(usize::try_from(base.0).expect("a short log"));
        let restart = Restart {
            records: node.log.clone(),
            base,
            base_ballots,
            decided: base,
            amnesia,
            ..Restart::first(Incarnation(node.lives))
        };
        let (protocol, effects) = self.start(at, restart);
        let node = &mut self.nodes[at];
        (node.protocol, node.effects) = (protocol, effects);
        self.carry_out(at);
    }
}

fn id(at: usize) -> ReplicaId {
    ReplicaId(at as u64 + 1)
}

fn place(id: ReplicaId) -> usize {
    usize::try_from(id.0 - 1).expect("one of a few")
}

/// How many events a run has.
const EVENTS: usize = 3_000;

/// A run: what went wrong first, and how many slots were decided by then.
fn run(options: &Options, ground: Ground, seed: u64) -> (Option<Wrong>, u64) {
    let mut cluster = Cluster::new(options, ground, seed);
    for _ in 0..EVENTS {
        cluster.happen();
        if cluster.wrong.is_some() {
            break;
        }
    }
    (cluster.wrong, cluster.chosen.len() as u64)
}

fn small(planted: Option<crate::Bug>) -> Options {
    Options { window_max: 3, planted, ..Options::of(ProtocolKind::KernelPaxos) }
}

#[test]
fn whatever_is_lost_doubled_reordered_or_forgotten_all_deliver_the_same() {
    for prepare in [Preparation::All, Preparation::Ahead, Preparation::Each] {
        let options = Options { kernel_paxos: Tuning { prepare }, ..small(None) };
        for (ground, at_least) in [(ALONE, 500), (THREE, 700), (FIVE, 150)] {
            let mut decided = 0;
            for seed in 0..100 {
                let (wrong, slots) = run(&options, ground, seed);
                assert_eq!(wrong, None, "{prepare}, {ground:?}, seed {seed}");
                decided += slots;
            }
            println!("{prepare}, {ground:?}: {decided} slots in 100 runs");
            assert!(decided > at_least, "{prepare}, {ground:?}: {decided} slots");
        }
    }
}

/// The mistakes that section 10.3 wants to be found, and others, each on a ground on which it shows, within as many
/// runs as the document has. The tests of single replicas find those that are not here.
#[test]
fn the_mistakes_of_the_document_are_found() {
    let bugs: [(crate::Bug, Ground); 11] = [
        (crate::Bug::VoteBeforeDurable, THREE),
        (crate::Bug::CommitWithMinority, THREE),
        (crate::Bug::ReuseBallot, THREE),
        (crate::Bug::VoteWithAmnesia, THREE),
        (crate::Bug::ReadWithoutConfirmation, THREE),
        (Bug::CountByPromise.into(), ALONE),
        (Bug::ForgetUndelivered.into(), THREE),
        (Bug::FillWithoutPhase1.into(), THREE),
        (Bug::FillInPresentBallot.into(), ALONE),
        (Bug::LeadBeforeRead.into(), THREE),
        (Bug::DecideAcrossBallots.into(), THREE),
    ];
    for (bug, ground) in bugs {
        let options = small(Some(bug));
        let found = (0..1500).find_map(|seed| Some((run(&options, ground, seed).0?, seed + 1)));
        let (wrong, runs) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: {wrong:?} in run {runs}");
    }
}
