//! The disk of a machine, which has one log for all groups.

use std::{collections::VecDeque, time::Duration};

use synod_replica::{LogRecord, PeerMessage};
use synod_storage::Durability;
use synod_wire::{Lsn, ReplicaId};

/// A message that waits for the disk: the record that has to be durable, the receiver, the message and its bytes.
pub(super) type Held = (Lsn, ReplicaId, PeerMessage, usize);

/// The log of a machine: one commit at a time, and each takes in what was appended before it began.
pub(super) struct Disk {
    durability: Durability,
    fsync: Duration,
    /// A commit is under way.
    commits: bool,
    /// A record that was appended since the last commit began has to wait for the disk.
    waits: bool,
    /// What it holds of each group that the machine hosts.
    groups: Vec<OfGroup>,
}

/// The records of one group, which have numbers of their own.
#[derive(Default)]
struct OfGroup {
    appended: Lsn,
    /// The last record of the commit that is under way.
    committing: Lsn,
    durable: Lsn,
    /// In the order in which they were sent.
    held: VecDeque<Held>,
}

impl Disk {
    pub(super) fn new(durability: Durability, fsync: Duration, groups: usize) -> Disk {
        let groups = (0..groups).map(|_| OfGroup::default()).collect();
        Disk { durability, fsync, commits: false, waits: false, groups }
    }

    pub(super) fn append(&mut self, at: usize, record: &LogRecord, lsn: Lsn) {
        self.groups[at].appended = lsn;
        self.waits |= !self.fsync.is_zero() && self.durability.syncs(record.keep());
    }

    /// The last durable record of each group.
    pub(super) fn durable(&self) -> Vec<Lsn> {
        self.groups.iter().map(|group| group.durable).collect()
    }

    /// Begins a commit, unless one is under way. Returns how long it takes; if nothing waits for the disk, what was
    /// appended is as durable as it has to be.
    pub(super) fn commit(&mut self) -> Option<Duration> {
        if self.commits {
            return None;
        }
        if !std::mem::take(&mut self.waits) {
            self.groups.iter_mut().for_each(|group| group.durable = group.appended);
            return None;
        }
        self.groups.iter_mut().for_each(|group| group.committing = group.appended);
        self.commits = true;
        Some(self.fsync)
    }

    /// A commit has ended.
    pub(super) fn committed(&mut self) {
        self.commits = false;
        self.groups.iter_mut().for_each(|group| group.durable = group.committing);
    }

    /// Holds a message of a group back until its record is durable. What rests on records does not overtake what waits
    /// for others. Returns a message that may leave at once.
    pub(super) fn hold(&mut self, at: usize, message: Held) -> Option<Held> {
        let group = &mut self.groups[at];
        if message.0 > group.durable || (message.0 > Lsn::ZERO && !group.held.is_empty()) {
            group.held.push_back(message);
            return None;
        }
        Some(message)
    }

    /// A message whose record is durable, and the place of its group.
    pub(super) fn release(&mut self) -> Option<(usize, Held)> {
        self.groups.iter_mut().enumerate().find_map(|(at, group)| {
            let due = group.held.front().is_some_and(|held| held.0 <= group.durable);
            due.then(|| group.held.pop_front().map(|held| (at, held)))?
        })
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::Slot;

    use super::*;

    #[test]
    fn a_commit_takes_in_what_all_groups_appended() {
        let mut disk = Disk::new(Durability::Sync, Duration::from_millis(8), 2);
        let record = LogRecord::Trimmed(Slot(1));
        let message = |after| (Lsn(after), ReplicaId(2), PeerMessage::SeekLeader, 9);
        disk.append(0, &record, Lsn(1));
        disk.append(1, &record, Lsn(1));
        assert_eq!(disk.commit(), Some(Duration::from_millis(8)));
        disk.append(0, &record, Lsn(2));
        assert_eq!(disk.commit(), None, "one commit at a time");
        for (at, after) in [(0, 2), (1, 1)] {
            assert!(disk.hold(at, message(after)).is_none());
        }
        assert!(disk.hold(0, message(0)).is_some(), "it rests on no record");
        disk.committed();
        assert_eq!(disk.durable(), [Lsn(1), Lsn(1)]);
        let released: Vec<_> = std::iter::from_fn(|| disk.release()).map(|(at, held)| (at, held.0)).collect();
        assert_eq!(released, [(1, Lsn(1))], "the other one waits for the next commit");
        assert_eq!(disk.commit(), Some(Duration::from_millis(8)));
    }
}
