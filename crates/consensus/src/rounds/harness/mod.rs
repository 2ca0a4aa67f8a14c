//! Rounds under attack: algorithms with every kind of loss, layers in runs with bad and good periods, bugs that must
//! be found. All is drawn from a seed; docs/rounds.md says what is drawn, and what the runs came to.
//!
//! - `heard_of.rs`: algorithms alone, with whatever each replica hears.
//! - `good_period.rs`: the layers of chapter 4, with steps, delays and clocks within bounds once a good period begins;
//!   `bounds.rs`: its runs against the theorems.
//! - `steps.rs`: the layers of chapter 5, one step a tick; `swift.rs`: its runs against the theorems.
//! - `planted.rs`: each rule replaced, and found.

mod bounds;
mod good_period;
mod heard_of;
mod planted;
mod steps;
mod swift;

use std::collections::BTreeMap;

use synod_wire::{ReplicaId, Slot};

/// How many seeds a test plays: these, or as many as the variable `SEEDS` says.
fn seeds(usual: u64) -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

/// What replicas decided, checked with each decision.
#[derive(Debug, Default)]
struct Verdict {
    proposed: BTreeMap<Slot, Vec<u64>>,
    decided: BTreeMap<Slot, u64>,
    by: BTreeMap<(Slot, ReplicaId), u64>,
}

impl Verdict {
    fn propose(&mut self, slot: Slot, value: u64) {
        self.proposed.entry(slot).or_default().push(value);
    }

    /// Validity, agreement and integrity of a decision.
    fn decide(&mut self, slot: Slot, by: ReplicaId, value: u64) -> Result<(), String> {
        if !self.proposed.get(&slot).is_some_and(|proposed| proposed.contains(&value)) {
            return Err(format!("validity: {by} decided {value} in {slot}, which nobody proposed"));
        }
        let first = *self.decided.entry(slot).or_insert(value);
        if first != value {
            return Err(format!("agreement: {by} decided {value} in {slot}, and another {first}"));
        }
        match self.by.insert((slot, by), value) {
            Some(_) => Err(format!("integrity: {by} decided {slot} twice")),
            None => Ok(()),
        }
    }

    fn has_decided(&self, slot: Slot, by: ReplicaId) -> bool {
        self.by.contains_key(&(slot, by))
    }
}

/// The largest of what runs measured, as a part of a bound.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    part: f64,
    value: f64,
    bound: f64,
    seed: u64,
}

impl Worst {
    fn note(&mut self, value: f64, bound: f64, seed: u64) {
        let part = value / bound;
        if part > self.part {
            *self = Worst { part, value, bound, seed };
        }
    }
}

impl std::fmt::Display for Worst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Worst { part, value, bound, seed } = self;
        write!(f, "{value:.0} of {bound:.0} ({:.0} %, seed {seed})", part * 100.0)
    }
}
