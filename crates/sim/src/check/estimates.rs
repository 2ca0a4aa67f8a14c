//! Checks estimates, which replicas have where a ballot has no proposal: what enough of them said in one round stays
//! the estimate of each of these, and is what the others adopt.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Batch, Slot};

use super::invariant::{Checked, Invariant, Violation, demand};

/// Estimates for this many slots are remembered.
const SLOTS: u64 = 1_000;

/// What replicas hold and said of one slot. They are named by index.
#[derive(Debug, Default)]
struct Estimated {
    /// The estimates that each has held durably, by the ballots in which it accepted them; the last is its estimate.
    held: BTreeMap<usize, BTreeMap<Ballot, Batch>>,
    /// The values said in a round, each with the replicas that said it, as a set of bits.
    said: BTreeMap<u64, Vec<(Batch, u64)>>,
    /// The first round in which a quorum said the same, with these.
    chosen: Option<(u64, Batch)>,
}

impl Estimated {
    /// An estimate changes with more than two thirds of the members heard. If more than two thirds said one value in
    /// that round, or in an earlier one, it is the most frequent of those that are heard. The first may be any.
    fn follows(&self, slot: Slot, replica: usize) -> Checked {
        let (Some((chosen_in, chosen)), Some(held)) = (&self.chosen, self.held.get(&replica)) else {
            return Ok(());
        };
        for ((_, before), (ballot, after)) in held.iter().zip(held.iter().skip(1)) {
            // A new estimate is of the round after the one in which it was adopted.
            let changes = before != after && ballot.round > *chosen_in;
            demand(!changes || after == chosen, Invariant::EstimateFollows, || {
                format!(
                    "r{} adopts another estimate for slot {slot} before round {}; a quorum said the same in round \
                     {chosen_in}",
                    replica + 1,
                    ballot.round
                )
            })?;
        }
        Ok(())
    }
}

/// The estimates of one epoch.
#[derive(Debug)]
pub(super) struct Estimates {
    quorum: usize,
    slots: BTreeMap<Slot, Estimated>,
}

impl Estimates {
    /// Those of a group in which this many replicas decide.
    pub(super) fn new(quorum: usize) -> Estimates {
        Estimates { quorum, slots: BTreeMap::new() }
    }

    /// A replica durably holds an estimate, in the place of an earlier one. Returns whether a quorum holds the same.
    ///
    /// # Errors
    /// It had another estimate, and a quorum said a third one in an earlier round.
    pub(super) fn hold(
        &mut self,
        replica: usize,
        ballot: Ballot,
        slot: Slot,
        batch: &Batch,
    ) -> Result<bool, Violation> {
        let estimated = self.slots.entry(slot).or_default();
        estimated.held.entry(replica).or_default().insert(ballot, batch.clone());
        estimated.follows(slot, replica)?;
        let last = estimated.held.values().filter_map(|held| held.last_key_value());
        let is_quorum = last.filter(|(_, held)| *held == batch).count() >= self.quorum;
        self.slots = self.slots.split_off(&Slot(slot.0.saturating_sub(SLOTS)));
        Ok(is_quorum)
    }

    /// Whether a replica durably holds this estimate, or held it before a later one: a letter may leave with the record
    /// of the next.
    pub(super) fn holds(&self, replica: usize, ballot: Ballot, slot: Slot, batch: &Batch) -> bool {
        let held = self.slots.get(&slot).and_then(|estimated| estimated.held.get(&replica)?.get(&ballot));
        held == Some(batch)
    }

    /// A replica says its estimate in a round.
    ///
    /// # Errors
    /// A quorum said something else in an earlier round, so that it may be decided.
    pub(super) fn said(&mut self, replica: usize, round: u64, slot: Slot, batch: &Batch) -> Checked {
        let estimated = self.slots.entry(slot).or_default();
        if let Some((chosen_in, chosen)) = &estimated.chosen {
            let said = estimated.said.get(chosen_in).into_iter().flatten();
            let has_said = said.filter(|(said, _)| said == chosen).any(|(_, by)| by & 1 << replica != 0);
            demand(round <= *chosen_in || !has_said || chosen == batch, Invariant::ChosenStays, || {
                format!(
                    "r{} says another estimate for slot {slot} in round {round}; a quorum and it said the same in \
                     round {chosen_in}",
                    replica + 1
                )
            })?;
        }
        let said = estimated.said.entry(round).or_default();
        let known = said.iter().position(|(known, _)| known == batch);
        let place = known.unwrap_or_else(|| {
            said.push((batch.clone(), 0));
            said.len() - 1
        });
        said[place].1 |= 1 << replica;
        let is_quorum = said[place].1.count_ones() as usize >= self.quorum;
        if is_quorum && estimated.chosen.as_ref().is_none_or(|(chosen_in, _)| round < *chosen_in) {
            estimated.chosen = Some((round, batch.clone()));
            // The last letter of a quorum may leave after a replica that heard enough of the others adopted what they
            // say.
            estimated.held.keys().try_for_each(|&holder| estimated.follows(slot, holder))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, ReplicaId, SessionId};

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), number, number, b"x");
        builder.finish()
    }

    #[test]
    fn a_quorum_holds_what_enough_hold_at_one_moment() {
        let mut estimates = Estimates::new(3);
        let ballot = |round| Ballot { round, replica: ReplicaId(1) };
        let mut hold =
            |replica, round, number| estimates.hold(replica, ballot(round), Slot(7), &batch(number)).unwrap();
        assert!(!hold(0, 1, 1) && !hold(1, 1, 1) && !hold(2, 1, 2));
        assert!(!hold(0, 2, 2), "it is in the place of the other");
        assert!(!hold(3, 1, 1) && hold(3, 2, 2));
        let holds = |round, number| estimates.holds(0, ballot(round), Slot(7), &batch(number));
        assert!(holds(1, 1) && holds(2, 2) && !holds(2, 1) && !holds(3, 2));
    }

    #[test]
    fn who_gives_up_an_estimate_adopts_what_a_quorum_said() {
        let ballot = |round| Ballot { round, replica: ReplicaId(1) };
        let adopts = |round, number, is_first: bool, comes_late: bool| {
            let mut estimates = Estimates::new(3);
            let hold = |estimates: &mut Estimates| {
                estimates.hold(3, ballot(round), Slot(7), &batch(number)).map(|_| ())
            };
            if !is_first {
                estimates.hold(3, ballot(1), Slot(7), &batch(9)).unwrap();
            }
            let before = if comes_late { hold(&mut estimates) } else { Ok(()) };
            let mut said = |replica| estimates.said(replica, 5, Slot(7), &batch(1));
            let after = before.and_then(|()| (0..3).try_for_each(&mut said));
            let after = after.and_then(|()| if comes_late { Ok(()) } else { hold(&mut estimates) });
            after.map_err(|violation| violation.invariant)
        };
        for comes_late in [false, true] {
            assert_eq!(adopts(6, 1, false, comes_late), Ok(()));
            assert_eq!(adopts(6, 2, false, comes_late), Err(Invariant::EstimateFollows));
            assert_eq!(adopts(5, 2, false, comes_late), Ok(()), "it was adopted in the round before");
            assert_eq!(adopts(6, 2, true, comes_late), Ok(()), "it had none");
        }
    }

    #[test]
    fn those_that_said_in_a_round_what_a_quorum_said_say_nothing_else_later() {
        let mut estimates = Estimates::new(3);
        let mut said = |replica, round, number| {
            let said = estimates.said(replica, round, Slot(7), &batch(number));
            said.map_err(|violation| violation.invariant)
        };
        for replica in 0..3 {
            assert_eq!(said(replica, 5, 1), Ok(()));
        }
        assert_eq!(said(3, 6, 2), Ok(()), "it did not say so");
        assert_eq!(said(2, 4, 2), Ok(()), "that was before");
        assert_eq!(said(2, 6, 1), Ok(()));
        assert_eq!(said(2, 6, 2), Err(Invariant::ChosenStays));
    }
}
