//! The log in memory: the entries that are not delivered, a bounded tail of those that are, and what is known of the
//! terms and configurations of the rest.

use std::{collections::VecDeque, sync::Arc};

use synod_wire::{Ballot, Lsn, Slot};

use super::messages::{Configuration, Entries, Entry};
use crate::{VoterSets, batches::last_of};

/// The most sections of one term that are remembered. Each takes an election, so more of them are rare; the
/// oldest is forgotten, and a replica that asks about it has to catch up by other means.
const RUNS_MAX: usize = 1024;

/// A slot, with the term that its entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) slot: Slot,
    pub(super) ballot: Ballot,
}

/// The log of a replica, as far as it is in memory.
#[derive(Clone, Debug)]
pub(super) struct Log {
    /// The slot of the first entry that is held.
    first: Slot,
    /// The entries that have a record, by record; of the first one, entries before `first` may be left.
    written: VecDeque<Written>,
    /// The entries after them, whose record is still to be written.
    unwritten: Vec<Entry>,
    /// No record holds an entry after this slot.
    recorded: Slot,
    /// The first slot of each term in the log, ascending, with the term. Nothing is known of the terms before
    /// the first.
    runs: VecDeque<Position>,
    /// The configurations in the log, ascending: the last one that is delivered, and those after it. The last counts.
    configurations: VecDeque<Configuration>,
    /// The record of the last entry that is not held any more.
    floor: Lsn,
}

/// The entries of one record. They are shared with it, and with the message that brought them or takes them on.
#[derive(Clone, Debug)]
struct Written {
    first: Slot,
    entries: Entries,
    /// The number of the record; records of later slots have larger numbers.
    lsn: Lsn,
}

impl Written {
    fn last(&self) -> Slot {
        last_of(self.first, &self.entries)
    }
}

/// Bytes that an entry takes in a message besides its batch.
const ENTRY_BYTES: usize = 32;

/// How many of these entries, from the first on, fit a message of this many bytes, and how many bytes these
/// take; at least one entry, if there is one.
pub(super) fn fitting<'a>(entries: impl Iterator<Item = &'a Entry>, bytes_max: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for entry in entries {
        let size = entry.batch.bytes().len() + ENTRY_BYTES + entry.voters.as_ref().map_or(0, voters_bytes);
        if count > 0 && bytes + size > bytes_max {
            break;
        }
        count += 1;
        bytes += size;
    }
    (count, bytes)
}

/// How many bytes voters take in a message.
pub(super) fn voters_bytes(voters: &VoterSets) -> usize {
    8 * (1 + voters.incoming().len() + voters.outgoing().len())
}

impl Log {
    /// An empty log after the slot of `base`, from which on that configuration counts.
    pub(super) fn new(base: Configuration) -> Log {
        Log {
            first: base.slot.next(),
            written: VecDeque::new(),
            unwritten: Vec::new(),
            recorded: base.slot,
            runs: VecDeque::from([Position { slot: base.slot, ballot: base.ballot }]),
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
        Slot(self.last_written().0 + self.unwritten.len() as u64)
    }

    /// The last slot that has a record; what is after it was sent to no replica yet.
    pub(super) fn last_written(&self) -> Slot {
        self.written.back().map_or(self.first.prev(), Written::last)
    }

    /// The slot after which no record holds an entry, counting entries that are not held any more.
    pub(super) fn recorded(&self) -> Slot {
        self.recorded
    }

    /// Learns that the records of earlier lives hold entries through this slot.
    pub(super) fn set_recorded(&mut self, slot: Slot) {
        self.recorded = self.recorded.max(slot);
    }

    /// The entries from a slot on, as far as they have a record.
    pub(super) fn from(&self, slot: Slot) -> impl Iterator<Item = &Entry> {
        let from = self.position(slot);
        self.written.range(from..).flat_map(move |written| {
            let skipped = usize::try_from(slot.0.saturating_sub(written.first.0)).unwrap_or(usize::MAX);
            &written.entries[skipped..]
        })
    }

    /// The entries after all that have a record.
    pub(super) fn unwritten(&self) -> &[Entry] {
        &self.unwritten
    }

    /// This many entries from a slot on. What was written together leaves together, and is then only shared.
    pub(super) fn share(&self, from: Slot, count: usize) -> Entries {
        match self.written.get(self.position(from)) {
            Some(written) if written.first == from && written.entries.len() == count => {
                Arc::clone(&written.entries)
            }
            _ => self.from(from).take(count).cloned().collect(),
        }
    }

    /// The index in `written` of the record that holds a slot, if one does.
    fn position(&self, slot: Slot) -> usize {
        self.first_not(|written| written.last() < slot)
    }

    /// The index of the first record in `written` of which `holds` is not true, where it is true of all before that.
    fn first_not(&self, holds: impl Fn(&Written) -> bool) -> usize {
        // It is nearly always the last one, or the end.
        match self.written.iter().rev().take(3).position(&holds) {
            Some(after) => self.written.len() - after,
            None => self.written.partition_point(holds),
        }
    }

    /// The term of a slot, if it is known.
    pub(super) fn ballot_at(&self, slot: Slot) -> Option<Ballot> {
        if slot > self.last() {
            return None;
        }
        // It is nearly always the last term.
        self.runs.iter().rev().find(|run| run.slot <= slot).map(|run| run.ballot)
    }

    /// The term of the last slot.
    pub(super) fn last_ballot(&self) -> Ballot {
        self.runs.back().expect("there is always one").ballot
    }

    /// The first slot of the term that a slot has.
    pub(super) fn run_start(&self, slot: Slot) -> Slot {
        self.runs.iter().rev().find(|run| run.slot <= slot).map_or(Slot::ZERO, |run| run.slot)
    }

    /// The last slot through `slot` whose term is not above `ballot`; `None` if that is not known.
    pub(super) fn last_not_above(&self, slot: Slot, ballot: Ballot) -> Option<Slot> {
        let mut end = slot.min(self.last());
        for run in self.runs.iter().rev() {
            if run.slot > end {
                continue;
            }
            if run.ballot <= ballot {
                return Some(end);
            }
            end = run.slot.prev();
        }
        None
    }

    /// Adds an entry at the end, whose record [`Log::write`] will write.
    pub(super) fn push(&mut self, entry: Entry) {
        let continues = self.runs.back().is_some_and(|run| run.ballot == entry.ballot);
        if !continues || entry.voters.is_some() {
            self.takes(self.last().next(), &entry);
        }
        self.unwritten.push(entry);
    }

    /// Gives records to the entries that have none. `record` writes one and returns its number; none holds
    /// more than this many bytes, or one entry.
    pub(super) fn write(&mut self, bytes_max: usize, mut record: impl FnMut(Slot, Entries) -> Lsn) {
        while !self.unwritten.is_empty() {
            let (count, _) = fitting(self.unwritten.iter(), bytes_max);
            let first = self.last_written().next();
            let entries: Entries = self.unwritten.drain(..count).collect();
            let lsn = record(first, Arc::clone(&entries));
            self.add_written(Written { first, entries, lsn });
        }
    }

    /// Adds entries at the end that a record holds. All entries before them must have a record.
    pub(super) fn append(&mut self, entries: Entries, lsn: Lsn) {
        debug_assert!(self.unwritten.is_empty(), "records are written in the order of slots");
        let first = self.last().next();
        // Of no term anything may be known, where more than `RUNS_MAX` followed each other and were cut off.
        let mut ballot = self.runs.back().map(|run| run.ballot);
        for (slot, entry) in (first.0..).map(Slot).zip(entries.iter()) {
            // Nearly all entries continue a term, with the voters that there were.
            if ballot != Some(entry.ballot) || entry.voters.is_some() {
                self.takes(slot, entry);
                ballot = Some(entry.ballot);
            }
        }
        self.add_written(Written { first, entries, lsn });
    }

    fn add_written(&mut self, written: Written) {
        self.recorded = self.recorded.max(written.last());
        self.written.push_back(written);
    }

    /// Records the term and the configuration of an entry that is added.
    fn takes(&mut self, slot: Slot, entry: &Entry) {
        if self.runs.back().is_none_or(|run| run.ballot != entry.ballot) {
            self.runs.push_back(Position { slot, ballot: entry.ballot });
            if self.runs.len() > RUNS_MAX {
                self.runs.pop_front();
            }
        }
        if let Some(voters) = &entry.voters {
            let (ballot, voters) = (entry.ballot, voters.clone());
            self.configurations.push_back(Configuration { slot, ballot, voters });
        }
    }

    /// Removes the entries from a slot on, with the configurations that they brought.
    pub(super) fn truncate(&mut self, from: Slot) {
        debug_assert!(from >= self.first, "what is delivered stays");
        debug_assert!(self.unwritten.is_empty(), "what is removed has a record");
        while self.written.back().is_some_and(|written| written.first >= from) {
            self.written.pop_back();
        }
        if let Some(written) = self.written.back_mut().filter(|written| written.last() >= from) {
            let kept = usize::try_from(from.0 - written.first.0).expect("less than there are");
            written.entries = written.entries[..kept].into();
        }
        while self.runs.back().is_some_and(|run| run.slot >= from) {
            self.runs.pop_back();
        }
        while self.configurations.len() > 1
            && self.configurations.back().is_some_and(|configuration| configuration.slot >= from)
        {
            self.configurations.pop_back();
        }
    }

    /// Drops the entries before a slot from memory; whole records are freed at a time.
    pub(super) fn release(&mut self, first: Slot) {
        self.first = self.first.max(first.min(self.last_written().next()));
        while let Some(written) = self.written.front().filter(|written| written.last() < self.first) {
            self.floor = written.lsn;
            self.written.pop_front();
        }
    }

    /// Makes the log end at `base`, which came by a snapshot.
    pub(super) fn restart_after(&mut self, base: Configuration) {
        *self = Log { floor: self.floor, recorded: self.recorded, ..Log::new(base) };
    }

    /// Forgets the terms of slots that a snapshot covers, except the one that lasts into the rest.
    pub(super) fn forget_before(&mut self, slot: Slot) {
        while self.runs.get(1).is_some_and(|run| run.slot <= slot) {
            self.runs.pop_front();
        }
    }

    /// Forgets the configurations through this slot except the last one, since what is decided through it stays.
    pub(super) fn forget_configurations_before(&mut self, slot: Slot) {
        while self.configurations.get(1).is_some_and(|next| next.slot <= slot) {
            self.configurations.pop_front();
        }
    }

    /// The record that has to be durable so that everything through a slot is.
    pub(super) fn lsn_of(&self, slot: Slot) -> Lsn {
        let written = self.written.get(self.position(slot)).or(self.written.back());
        written.filter(|written| written.first <= slot).map_or(self.floor, |written| written.lsn)
    }

    /// The last slot through which the entries are on stable storage if the records through `durable` are;
    /// `None` if that is not known, since the last of them are not held any more.
    pub(super) fn stable(&self, durable: Lsn) -> Option<Slot> {
        match self.first_not(|written| written.lsn <= durable).checked_sub(1) {
            Some(index) => Some(self.written[index].last()),
            None if self.floor > durable => None,
            None => Some(self.written.front().map_or(self.first, |written| written.first).prev()),
        }
    }

    /// The configuration that counts.
    pub(super) fn configuration(&self) -> &Configuration {
        self.configurations.back().expect("there is always one")
    }

    /// The configuration as of a slot, or the first one known, if that is later.
    pub(super) fn configuration_at(&self, slot: Slot) -> &Configuration {
        let found = self.configurations.iter().rev().find(|configuration| configuration.slot <= slot);
        found.unwrap_or(&self.configurations[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MEMBERS_MAX, VoterSets};
    use synod_wire::{Batch, ReplicaId};

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    /// A log of slots 1 and on with entries of these terms.
    fn log(terms: &[u64]) -> Log {
        let voters = VoterSets::simple(vec![ReplicaId(1)]);
        let mut log = Log::new(Configuration { slot: Slot::ZERO, ballot: Ballot::ZERO, voters });
        for (lsn, &term) in (1..).zip(terms) {
            log.append([entry(term)].into(), Lsn(lsn));
        }
        log
    }

    fn entry(term: u64) -> Entry {
        Entry { ballot: ballot(term), batch: Batch::noop(), voters: None }
    }

    /// The first terms are forgotten, and the rest is cut off by another leader: then no term is known.
    #[test]
    fn a_log_goes_on_after_more_terms_were_cut_off_than_are_remembered() {
        let terms: Vec<u64> = (1..=RUNS_MAX as u64 + 76).collect();
        let mut log = log(&terms);
        log.truncate(Slot(1));
        log.append([entry(2_000)].into(), Lsn(2_000));
        assert_eq!((log.last(), log.last_ballot()), (Slot(1), ballot(2_000)));
        let mut log = self::log(&terms);
        log.truncate(Slot(1));
        log.push(entry(3_000));
        assert_eq!((log.last(), log.last_ballot()), (Slot(1), ballot(3_000)));
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
    fn a_leader_skips_terms_that_a_follower_cannot_have() {
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
        log.append([Entry { voters: Some(voters.clone()), ..entry(1) }].into(), Lsn(2));
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

    #[test]
    fn what_waits_gets_few_records_that_are_bounded_and_shared() {
        let mut log = log(&[1]);
        (0..5).for_each(|_| log.push(entry(2)));
        assert_eq!(
            (log.last(), log.ballot_at(Slot(6)), log.from(Slot(1)).count()),
            (Slot(6), Some(ballot(2)), 1)
        );
        let mut records = Vec::new();
        let one = ENTRY_BYTES + Batch::noop().bytes().len();
        log.write(2 * one, |slot, entries| {
            records.push((slot, entries));
            Lsn(10 + records.len() as u64)
        });
        let lens: Vec<_> = records.iter().map(|(slot, entries)| (slot.0, entries.len())).collect();
        assert_eq!(lens, [(2, 2), (4, 2), (6, 1)]);
        assert!(Arc::ptr_eq(&log.share(Slot(4), 2), &records[1].1));
        assert_eq!((log.share(Slot(3), 9).len(), log.share(Slot(7), 9).len()), (4, 0));
        assert_eq!([1, 2, 3, 5, 6, 9].map(|slot| log.lsn_of(Slot(slot)).0), [1, 11, 11, 12, 13, 13]);
        assert_eq!([0, 1, 10, 11, 13].map(|lsn| log.stable(Lsn(lsn)).unwrap().0), [0, 1, 1, 3, 6]);
    }

    /// The largest message of Raft is an append of entries each of which changes voters, in the largest group.
    #[test]
    fn an_append_has_the_bytes_that_a_message_may_have() {
        let ids =
            |from: u64| (from..from + MEMBERS_MAX as u64).map(synod_wire::ReplicaId).collect::<Vec<_>>();
        let voters = VoterSets::joint(ids(1), ids(1 + MEMBERS_MAX as u64));
        let changes = Entry { voters: Some(voters), ..entry(1) };
        for (entries, page_max) in [vec![changes; 100], vec![entry(1); 5_000]]
            .iter()
            .flat_map(|entries| [1, 1_000, 1_100, 20_000].map(|max| (entries, max)))
        {
            let raft = crate::raft::Tuning { append_bytes_max: page_max, ..Default::default() };
            let options = crate::Options { raft, page_bytes_max: 1, ..Default::default() };
            let (count, _) = fitting(entries.iter(), page_max);
            let message = crate::raft::Message::Append {
                ballot: ballot(1),
                session: 1,
                prev: Slot(1),
                prev_ballot: ballot(1),
                entries: entries[..count].into(),
                commit: Slot(1),
            };
            let mut writer = synod_wire::Writer::new();
            crate::Message::from(message).encode(&mut writer);
            let (len, max) = (writer.finish().len(), options.message_bytes_max(0));
            assert!(len <= max, "{len} bytes of {count} entries, {max} allowed");
        }
    }

    #[test]
    fn a_record_is_cut_off_at_either_end() {
        let mut log = log(&[1]);
        log.append([entry(1), entry(1), entry(2)].into(), Lsn(2));
        log.release(Slot(3));
        assert_eq!((log.first(), log.from(Slot(3)).count()), (Slot(3), 2));
        assert_eq!((log.lsn_of(Slot(2)), log.lsn_of(Slot(1))), (Lsn(2), Lsn(1)));
        assert_eq!((log.stable(Lsn(0)), log.stable(Lsn(1))), (None, Some(Slot(1))), "slot 2 is in record 2");
        log.truncate(Slot(4));
        assert_eq!((log.last(), log.last_ballot(), log.recorded()), (Slot(3), ballot(1), Slot(4)));
        log.truncate(Slot(3));
        assert_eq!((log.first(), log.last(), log.from(Slot(3)).count()), (Slot(3), Slot(2), 0));
        log.append([entry(3)].into(), Lsn(3));
        assert_eq!(
            (log.last(), log.from(Slot(3)).next(), log.lsn_of(Slot(3))),
            (Slot(3), Some(&entry(3)), Lsn(3))
        );
        log.release(Slot(9));
        assert_eq!(
            (log.first(), log.last(), log.stable(Lsn(2)), log.stable(Lsn(3))),
            (Slot(4), Slot(3), None, Some(Slot(3)))
        );
    }
}
