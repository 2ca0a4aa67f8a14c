//! Replicas and messages by number. The effect of each event on a replica is computed once.
//!
//! There are far fewer different replicas than states, so most steps of an exploration are looked up.

use std::collections::BTreeSet;

use synod_consensus::Message;
use synod_wire::{Ballots, ReplicaId, Slot};

use super::{
    fingerprint::{self, Set, Table},
    judge::{Deeds, judge},
    node::{Happening, Node, Setting, Step},
    on_disk::Value,
    past::Owed,
};
use crate::check::{Checked, Violation};

/// A message in flight, late, or lost: it may arrive, or not.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) from: ReplicaId,
    pub(super) to: ReplicaId,
    pub(super) message: Message,
}

/// An event at a replica, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Move {
    /// A parcel arrives.
    Receive(u32),
    /// The session to the replica with this index breaks.
    Session(u32),
    Durable(u32),
    Timer,
    Wait,
    /// The command with this index is proposed.
    Propose(u32),
    /// A decision comes by catch-up.
    Learn(u32),
    Restart(u32),
}

/// A replica, with properties that are often needed.
pub(super) struct Known {
    pub(super) node: Node,
    fingerprint: u128,
    pub(super) deeds: u32,
    pub(super) durable: u32,
    pub(super) records: u32,
    pub(super) has_timer: bool,
    pub(super) has_room: bool,
    /// How many slots its present life has delivered.
    pub(super) delivered: usize,
    /// What all its lives have delivered, from slot 1 on.
    pub(super) decisions: Vec<u32>,
}

/// A delivery: the slot, its ballots, and the value.
pub(super) type Decision = (Slot, Ballots, Value);

/// The effect of a move on a replica.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) node: u32,
    /// The parcels that leave.
    pub(super) sent: Vec<u32>,
    pub(super) owed: Vec<Owed>,
}

/// All replicas and messages that were met.
pub(super) struct Space {
    pub(super) setting: Setting,
    nodes: Vec<Known>,
    node_numbers: Table<u128, u32>,
    parcels: Vec<Parcel>,
    parcel_fingerprints: Vec<u128>,
    parcel_numbers: Table<u128, u32>,
    decisions: Vec<Decision>,
    decision_numbers: Table<Decision, u32>,
    deeds: Vec<Deeds>,
    deed_numbers: Table<Deeds, u32>,
    outcomes: Vec<Outcome>,
    outcome_numbers: Table<(u32, Move), u32>,
    /// Combinations of all replicas' deeds that were found to be right.
    judged: Set<u128>,
}

impl Space {
    pub(super) fn new(setting: Setting) -> Space {
        Space {
            setting,
            nodes: Vec::new(),
            node_numbers: Table::default(),
            parcels: Vec::new(),
            parcel_fingerprints: Vec::new(),
            parcel_numbers: Table::default(),
            decisions: Vec::new(),
            decision_numbers: Table::default(),
            deeds: Vec::new(),
            deed_numbers: Table::default(),
            outcomes: Vec::new(),
            outcome_numbers: Table::default(),
            judged: Set::default(),
        }
    }

    pub(super) fn node(&self, number: u32) -> &Known {
        &self.nodes[number as usize]
    }

    pub(super) fn parcel(&self, number: u32) -> &Parcel {
        &self.parcels[number as usize]
    }

    pub(super) fn decision(&self, number: u32) -> Decision {
        self.decisions[number as usize]
    }

    /// Different replicas, each with its past.
    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Different messages.
    pub(super) fn parcel_count(&self) -> usize {
        self.parcels.len()
    }

    /// Different commands that a replica has delivered.
    pub(super) fn command_count(&self) -> usize {
        let delivered = self.decisions.iter().filter_map(|&(_, _, value)| self.setting.values.number(value));
        delivered.collect::<BTreeSet<usize>>().len()
    }

    /// A fingerprint of a state, which is the same in other spaces: of its replicas, and of its parcels in any order.
    pub(super) fn fingerprint(&self, words: &[u32]) -> u128 {
        let (nodes, parcels) = words.split_at(self.setting.ids.len());
        let nodes = nodes.iter().map(|&node| self.node(node).fingerprint);
        let nodes = nodes.fold(0, |all: u128, one| all.rotate_left(17) ^ one);
        // Addition ignores the order, and counts a parcel that occurs twice twice.
        let parcels = parcels.iter().map(|&parcel| self.parcel_fingerprints[parcel as usize]);
        nodes ^ parcels.fold(0, u128::wrapping_add).rotate_left(64)
    }

    /// The replicas and the parcels of the beginning.
    pub(super) fn begin(&mut self) -> Result<(Vec<u32>, Vec<u32>), Violation> {
        let (mut nodes, mut parcels) = (Vec::new(), Vec::new());
        for id in self.setting.ids.clone() {
            let step = Node::first(id, &self.setting)?;
            let outcome = self.take_in(id, step)?;
            nodes.push(outcome.node);
            parcels.extend(outcome.sent);
        }
        parcels.sort_unstable();
        Ok((nodes, parcels))
    }

    /// The effect of a move on the replica with this index.
    pub(super) fn outcome(&mut self, index: usize, node: u32, made: Move) -> Result<&Outcome, Violation> {
        let number = match self.outcome_numbers.get(&(node, made)) {
            Some(&number) => number,
            None => {
                let happening = self.happening(index, node, made);
                let step = self.node(node).node.step(&self.setting, &happening, None)?;
                let outcome = self.take_in(self.setting.ids[index], step)?;
                let number = number(self.outcomes.len());
                self.outcomes.push(outcome);
                self.outcome_numbers.insert((node, made), number);
                number
            }
        };
        Ok(&self.outcomes[number as usize])
    }

    /// A move of the replica with this index, spelt out.
    pub(super) fn happening(&self, index: usize, node: u32, made: Move) -> Happening {
        match made {
            Move::Receive(parcel) => {
                let Parcel { from, message, .. } = self.parcel(parcel);
                Happening::Receive(*from, message.clone())
            }
            Move::Session(peer) => Happening::Session(self.setting.ids[peer as usize]),
            Move::Durable(records) => Happening::Durable(records as usize),
            Move::Timer => Happening::Timer,
            Move::Wait => Happening::Wait,
            Move::Propose(proposed) => {
                let life = usize::try_from(self.node(node).node.life()).expect("a small number");
                let form = (life - 1) * self.setting.ids.len() + index;
                let command = self.setting.values.command(proposed as usize, form);
                Happening::Propose(command.expect("only commands that there are").clone())
            }
            Move::Learn(decision) => {
                let (slot, ballot, value) = self.decision(decision);
                let batch = self.setting.values.batch(value).expect("only what was proposed is delivered");
                Happening::Learn(slot, ballot, batch.clone())
            }
            Move::Restart(kept) => Happening::Restart(kept as usize),
        }
    }

    /// Whether these replicas agree, and fulfil the conditions in `owed`.
    pub(super) fn judge(&mut self, nodes: &[u32], owed: &[Owed]) -> Checked {
        let all: Vec<u32> = nodes.iter().map(|&node| self.node(node).deeds).collect();
        let key = fingerprint::of_words(&all);
        if owed.is_empty() && self.judged.contains(&key) {
            return Ok(());
        }
        let deeds: Vec<&Deeds> = all.iter().map(|&deeds| &self.deeds[deeds as usize]).collect();
        let verdict = judge(&deeds, self.setting.options.threshold())?;
        self.judged.insert(key);
        owed.iter().try_for_each(|owed| verdict.fulfils(owed))
    }

    fn take_in(&mut self, from: ReplicaId, step: Step) -> Result<Outcome, Violation> {
        let parcels: Vec<Parcel> =
            step.sent.into_iter().map(|(to, message)| Parcel { from, to, message }).collect();
        let sent = parcels.into_iter().map(|parcel| self.parcel_number(parcel)).collect();
        let node = self.node_number(step.node)?;
        Ok(Outcome { node, sent, owed: step.owed })
    }

    fn parcel_number(&mut self, parcel: Parcel) -> u32 {
        let next = number(self.parcels.len());
        // Messages contain no instants.
        let fingerprint = fingerprint::of_debug(&parcel, synod_wire::Time::ZERO);
        *self.parcel_numbers.entry(fingerprint).or_insert_with(|| {
            self.parcels.push(parcel);
            self.parcel_fingerprints.push(fingerprint);
            next
        })
    }

    fn node_number(&mut self, node: Node) -> Result<u32, Violation> {
        let fingerprint = node.fingerprint();
        if let Some(&known) = self.node_numbers.get(&fingerprint) {
            return Ok(known);
        }
        let deeds = Deeds::of(node.disk(&self.setting.values), node.past(), &self.setting.values)?;
        let deeds = self.deeds_number(deeds);
        let (durable, records) = node.log();
        let (has_timer, has_room) = (node.has_timer(), node.has_room());
        let delivered = usize::try_from(node.delivered()).expect("as many as are in memory");
        let all = (1..).map(Slot).zip(&node.past().delivered);
        let all: Vec<Decision> = all.map(|(slot, &(value, ballot))| (slot, ballot, value)).collect();
        let decisions = all.into_iter().map(|decision| self.decision_number(decision)).collect();
        let next = number(self.nodes.len());
        let (durable, records) = (number(durable), number(records));
        self.nodes.push(Known {
            node,
            fingerprint,
            deeds,
            durable,
            records,
            has_timer,
            has_room,
            delivered,
            decisions,
        });
        self.node_numbers.insert(fingerprint, next);
        Ok(next)
    }

    fn decision_number(&mut self, decision: Decision) -> u32 {
        let next = number(self.decisions.len());
        *self.decision_numbers.entry(decision).or_insert_with(|| {
            self.decisions.push(decision);
            next
        })
    }

    fn deeds_number(&mut self, deeds: Deeds) -> u32 {
        if let Some(&known) = self.deed_numbers.get(&deeds) {
            return known;
        }
        let next = number(self.deeds.len());
        self.deeds.push(deeds.clone());
        self.deed_numbers.insert(deeds, next);
        next
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("fewer than 2^32 of anything fit into memory")
}
