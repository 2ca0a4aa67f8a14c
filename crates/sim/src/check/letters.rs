//! Checks letters of rounds: each is said once, whatever its sender forgets, and rests on a promise of its phase.

use std::collections::BTreeMap;

use synod_consensus::{Letter, Message};
use synod_wire::{Ballot, Epoch, ReplicaId};

use super::invariant::{Checked, Invariant, demand};

/// Letters of this many phases are remembered.
const PHASES: u64 = 64;

/// What one replica said in an epoch, in all its lives.
#[derive(Debug, Default)]
struct Said {
    /// The letters, by phase, place and receiver.
    letters: BTreeMap<(u64, u8, ReplicaId), Message>,
    /// For each phase, the coordinator to which an estimate went.
    coordinators: BTreeMap<u64, ReplicaId>,
}

/// The letters of all epochs. Replicas are named by index.
#[derive(Debug, Default)]
pub struct Letters {
    epochs: BTreeMap<(Epoch, usize), Said>,
}

impl Letters {
    /// A message of an epoch leaves a replica, whose durable records promise this ballot.
    pub fn said(
        &mut self,
        epoch: Epoch,
        replica: usize,
        promised: Ballot,
        to: ReplicaId,
        message: &Message,
    ) -> Checked {
        let Some(Letter { phase, place, estimates_to }) = message.body().letter() else { return Ok(()) };
        let by = replica + 1;
        demand(promised.round >= phase, Invariant::LetterPromised, || {
            format!("r{by} sends a letter of round {phase}/{place}; its log promises {promised} only")
        })?;
        let said = self.epochs.entry((epoch, replica)).or_default();
        if let Some(coordinator) = estimates_to {
            let first = *said.coordinators.entry(phase).or_insert(coordinator);
            demand(first == coordinator && to == coordinator, Invariant::OneCoordinator, || {
                format!(
                    "r{by} sends {to} an estimate for {coordinator} in phase {phase}, in which it was for {first}"
                )
            })?;
        }
        let first = said.letters.entry((phase, place, to)).or_insert_with(|| message.clone());
        demand(*first == *message, Invariant::OneLetter, || {
            format!("r{by} says {message:?} to {to}, and has said {first:?} in that round")
        })?;
        let oldest = phase.saturating_sub(PHASES);
        said.letters = said.letters.split_off(&(oldest, 0, ReplicaId(0)));
        said.coordinators = said.coordinators.split_off(&oldest);
        Ok(())
    }
}
