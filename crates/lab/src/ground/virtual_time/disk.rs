//! The disk of a machine, which has one log for all groups.

use std::time::Duration;

use synod_host::Gate;
use synod_replica::{LogRecord, PeerMessage};
use synod_storage::Durability;
use synod_wire::{GroupId, Lsn, ReplicaId};

/// A message that may wait for the disk: the receiver, the message and its bytes.
pub(super) type Held = (ReplicaId, PeerMessage, usize);

/// The log of a machine: one commit at a time, and each takes in what was appended before it began.
pub(super) struct Disk {
    durability: Durability,
    fsync: Duration,
    /// A commit is under way.
    commits: bool,
    /// A record that was appended since the last commit began has to wait for the disk.
    waits: bool,
    /// What it holds of each group that the machine hosts, by the numbers that the machine's host gives them.
    groups: Vec<OfGroup>,
}

/// The records of one group, which have numbers of their own.
struct OfGroup {
    appended: Lsn,
    /// The last record of the commit that is under way.
    committing: Lsn,
    /// What was durable when it was last asked which groups are further.
    asked: Lsn,
    gate: Gate<Held>,
}

impl Disk {
    pub(super) fn new(durability: Durability, fsync: Duration, groups: usize) -> Disk {
        let none = Lsn::ZERO;
        let group = || OfGroup { appended: none, committing: none, asked: none, gate: Gate::new(none) };
        let groups = (0..groups).map(|_| group()).collect();
        Disk { durability, fsync, commits: false, waits: false, groups }
    }

    pub(super) fn append(&mut self, group: GroupId, record: &LogRecord, lsn: Lsn) {
        self.groups[usize::from(group.0)].appended = lsn;
        self.waits |= !self.fsync.is_zero() && self.durability.syncs(record.keep());
    }

    /// The last durable record of a group.
    pub(super) fn durable(&self, group: GroupId) -> Lsn {
        self.groups[usize::from(group.0)].gate.through()
    }

    /// The groups of which more is durable than when this was asked before.
    pub(super) fn take_further(&mut self) -> impl Iterator<Item = GroupId> {
        (0u16..).map(GroupId).zip(&mut self.groups).filter_map(|(number, group)| {
            let durable = group.gate.through();
            (std::mem::replace(&mut group.asked, durable) < durable).then_some(number)
        })
    }

    /// Begins a commit, unless one is under way. Returns how long it takes; if nothing waits for the disk, what was
    /// appended is as durable as it has to be.
    pub(super) fn commit(&mut self) -> Option<Duration> {
        if self.commits {
            return None;
        }
        if !std::mem::take(&mut self.waits) {
            self.groups.iter_mut().for_each(|group| group.gate.durable(group.appended));
            return None;
        }
        self.groups.iter_mut().for_each(|group| group.committing = group.appended);
        self.commits = true;
        Some(self.fsync)
    }

    /// A commit has ended.
    pub(super) fn committed(&mut self) {
        self.commits = false;
        self.groups.iter_mut().for_each(|group| group.gate.durable(group.committing));
    }

    /// Sends a message of a group after this record. Returns the message if it leaves at once.
    pub(super) fn send(&mut self, group: GroupId, after: Lsn, message: Held) -> Option<Held> {
        self.groups[usize::from(group.0)].gate.send(after, message)
    }

    /// A message whose record is durable, and its group.
    pub(super) fn release(&mut self) -> Option<(GroupId, Held)> {
        let mut groups = (0u16..).map(GroupId).zip(&mut self.groups);
        groups.find_map(|(number, group)| Some((number, group.gate.leave()?.1)))
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
        let message = |bytes| (ReplicaId(2), PeerMessage::SeekLeader, bytes);
        let [first, second] = [0, 1].map(GroupId);
        disk.append(first, &record, Lsn(1));
        disk.append(second, &record, Lsn(1));
        assert_eq!(disk.commit(), Some(Duration::from_millis(8)));
        disk.append(first, &record, Lsn(2));
        assert_eq!(disk.commit(), None, "one commit at a time");
        for (group, after, bytes) in [(first, 2, 0), (second, 1, 1)] {
            assert!(disk.send(group, Lsn(after), message(bytes)).is_none());
        }
        assert!(disk.send(first, Lsn::ZERO, message(9)).is_some(), "it rests on no record");
        disk.committed();
        assert_eq!([first, second].map(|group| disk.durable(group)), [Lsn(1), Lsn(1)]);
        assert_eq!(disk.take_further().collect::<Vec<_>>(), [first, second]);
        assert_eq!(disk.take_further().count(), 0);
        let released: Vec<_> = std::iter::from_fn(|| disk.release()).map(|(of, held)| (of, held.2)).collect();
        assert_eq!(released, [(second, 1)], "the other one waits for the next commit");
        assert_eq!(disk.commit(), Some(Duration::from_millis(8)));
    }
}
