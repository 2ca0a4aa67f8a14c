//! The log in memory: the entries that are not delivered, a bounded tail of those that are, and what is known of the
//! terms and configurations of the rest.

use std::collections::VecDeque;

use synod_wire::{Ballot, Lsn, Slot};

use super::messages::{Configuration, Entry};

/// Stretches of one term that are remembered at most. Each takes an election, so more are a curiosity; what is
/// forgotten is the oldest, and whoever asks about it has to catch up by other means.
const RUNS_MAX: usize = 1024;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Log {
    /// The slot of the first entry held.
    first: Slot,
    entries: VecDeque<Stored>,
    /// The first slot of each term in the log, ascending, with the term; where they begin, knowledge begins.
    runs: VecDeque<(Slot, Ballot)>,
    /// The configurations in the log, ascending: the last one that is delivered, and those behind it. The last counts.
    configurations: VecDeque<Configuration>,
    /// The record of the last entry that is not held any more.
    floor: Lsn,
}

#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) entry: Entry,
    /// The record that holds it. Records of later slots have larger numbers.
    pub(super) lsn: Lsn,
}

impl Log {
    /// An empty log behind the slot of `base`, as of which that counts.
    pub(super) fn new(base: Configuration) -> Log {
        Log {
            first: base.slot.next(),
            entries: VecDeque::new(),
            runs: VecDeque::from([(base.slot, base.ballot)]),
            configurations: VecDeque::from([base]),
            floor: Lsn::ZERO,
        }
    }

    /// The first slot that is held, or would be.
    pub(super) fn first(&self) -> Slot {
        self.first
    }

    /// The last slot.
    pub(super) fn last(&self) -> Slot {
        Slot(self.first.0 + self.entries.len() as u64 - 1)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Stored> {
        let index = slot.0.checked_sub(self.first.0)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// The entries from a slot on.
    pub(super) fn from(&self, slot: Slot) -> impl Iterator<Item = &Entry> {
        let skipped = usize::try_from(slot.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        self.entries.range(skipped.min(self.entries.len())..).map(|stored| &stored.entry)
    }

    /// The term of a slot, if it is known.
    pub(super) fn ballot_at(&self, slot: Slot) -> Option<Ballot> {
        if slot > self.last() {
            return None;
        }
        // Nearly always the last term is asked for.
        self.runs.iter().rev().find(|(first, _)| *first <= slot).map(|&(_, ballot)| ballot)
    }

    /// The term of the last slot.
    pub(super) fn last_ballot(&self) -> Ballot {
        self.runs.back().expect("there is always one").1
    }

    /// The first slot of the term that a slot has.
    pub(super) fn run_start(&self, slot: Slot) -> Slot {
        self.runs.iter().rev().find(|(first, _)| *first <= slot).map_or(Slot::ZERO, |&(first, _)| first)
    }

    /// The last slot through `slot` whose term is not above `ballot`; `None` if that is not known.
    pub(super) fn last_not_above(&self, slot: Slot, ballot: Ballot) -> Option<Slot> {
        let mut end = slot.min(self.last());
        for &(first, of) in self.runs.iter().rev() {
            if first > end {
                continue;
            }
            if of <= ballot {
                return Some(end);
            }
            end = first.prev();
        }
        None
    }

    /// Adds an entry at the end.
    pub(super) fn append(&mut self, entry: Entry, lsn: Lsn) -> Slot {
        let slot = self.last().next();
        if self.runs.back().is_none_or(|&(_, ballot)| ballot != entry.ballot) {
            self.runs.push_back((slot, entry.ballot));
            if self.runs.len() > RUNS_MAX {
                self.runs.pop_front();
            }
        }
        if let Some(voters) = &entry.voters {
            let (ballot, voters) = (entry.ballot, voters.clone());
            self.configurations.push_back(Configuration { slot, ballot, voters });
        }
        self.entries.push_back(Stored { entry, lsn });
        slot
    }

    /// Removes the entries from a slot on, with the configurations that they brought.
    pub(super) fn truncate(&mut self, from: Slot) {
        debug_assert!(from >= self.first, "what is delivered stays");
        self.entries.truncate(usize::try_from(from.0 - self.first.0).unwrap_or(usize::MAX));
        while self.runs.back().is_some_and(|(first, _)| *first >= from) {
            self.runs.pop_back();
        }
        while self.configurations.len() > 1
            && self.configurations.back().is_some_and(|configuration| configuration.slot >= from)
        {
            self.configurations.pop_back();
        }
    }

    /// Holds the entries before a slot no longer.
    pub(super) fn release(&mut self, first: Slot) {
        while self.first < first
            && let Some(stored) = self.entries.pop_front()
        {
            self.floor = stored.lsn;
            self.first = self.first.next();
        }
    }

    /// The log ends at `base`, which came by a snapshot.
    pub(super) fn restart_after(&mut self, base: Configuration) {
        *self = Log { floor: self.floor, ..Log::new(base) };
    }

    /// Forgets the terms of slots that a snapshot covers, but for that which lasts into the rest.
    pub(super) fn forget_before(&mut self, slot: Slot) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= slot) {
            self.runs.pop_front();
        }
    }

    /// What is decided through this slot stays: of the configurations in it only the last one can count.
    pub(super) fn forget_configurations_before(&mut self, slot: Slot) {
        while self.configurations.get(1).is_some_and(|next| next.slot <= slot) {
            self.configurations.pop_front();
        }
    }

    /// The record that has to be durable for everything through a slot to be.
    pub(super) fn lsn_of(&self, slot: Slot) -> Lsn {
        self.get(slot.min(self.last())).map_or(self.floor, |stored| stored.lsn)
    }

    /// Who votes.
    pub(super) fn configuration(&self) -> &Configuration {
        self.configurations.back().expect("there is always one")
    }

    /// Who votes as of a slot; as of the first one known, if that is later.
    pub(super) fn configuration_at(&self, slot: Slot) -> &Configuration {
        let found = self.configurations.iter().rev().find(|configuration| configuration.slot <= slot);
        found.unwrap_or(&self.configurations[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::membership::VoterSets;
    use synod_wire::{Batch, ReplicaId};

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    /// Slots 1.. with entries of these terms.
    fn log(terms: &[u64]) -> Log {
        let voters = VoterSets::simple(vec![ReplicaId(1)]);
        let mut log = Log::new(Configuration { slot: Slot::ZERO, ballot: Ballot::ZERO, voters });
        for (lsn, &term) in (1..).zip(terms) {
            log.append(Entry { ballot: ballot(term), batch: Batch::noop(), voters: None }, Lsn(lsn));
        }
        log
    }

    #[test]
    fn terms_stay_known_when_entries_are_released() {
        let mut log = log(&[1, 1, 2, 4, 4]);
        log.release(Slot(5));
        assert_eq!((log.first(), log.last()), (Slot(5), Slot(5)));
        let terms: Vec<_> = (0..=5).map(|slot| log.ballot_at(Slot(slot)).unwrap().round).collect();
        assert_eq!(terms, [0, 1, 1, 2, 4, 4]);
        assert_eq!(log.ballot_at(Slot(6)), None);
        assert_eq!(log.lsn_of(Slot(2)), Lsn(4), "a bound is enough");
        log.forget_before(Slot(3));
        assert_eq!(log.ballot_at(Slot(2)), None);
        assert_eq!(log.ballot_at(Slot(3)), Some(ballot(2)));
    }

    #[test]
    fn a_leader_skips_terms_that_a_follower_can_not_have() {
        let log = log(&[1, 1, 2, 4, 4]);
        assert_eq!(log.last_not_above(Slot(9), ballot(3)), Some(Slot(3)));
        assert_eq!(log.last_not_above(Slot(2), ballot(3)), Some(Slot(2)));
        assert_eq!(log.last_not_above(Slot(5), Ballot::ZERO), Some(Slot::ZERO));
        assert_eq!(log.run_start(Slot(5)), Slot(4));
    }

    #[test]
    fn a_configuration_goes_with_its_entry() {
        let mut log = log(&[1]);
        let voters = VoterSets::simple(vec![ReplicaId(2)]);
        log.append(Entry { ballot: ballot(1), batch: Batch::noop(), voters: Some(voters.clone()) }, Lsn(2));
        assert_eq!(log.configuration().voters, voters);
        assert_eq!(log.configuration_at(Slot(1)).slot, Slot::ZERO);
        let mut delivered = log.clone();
        delivered.forget_configurations_before(Slot(1));
        assert_eq!(delivered.configurations.len(), 2, "slot 2 may still be truncated");
        delivered.forget_configurations_before(Slot(2));
        assert_eq!(delivered.configurations.len(), 1);
        log.truncate(Slot(2));
        assert_eq!(log.configuration().slot, Slot::ZERO);
        assert_eq!(log.last(), Slot(1));
        log.restart_after(Configuration { slot: Slot(7), ballot: ballot(3), voters: voters.clone() });
        assert_eq!((log.last(), log.last_ballot()), (Slot(7), ballot(3)));
        assert_eq!(log.configuration().voters, voters);
    }
}
