//! The disk of a machine, which has one log for all groups.

use std::time::Duration;

use synod_host::Gate;
use synod_replica::{LogRecord, PeerMessage};
use synod_storage::Durability;
use synod_wire::{Lsn, ReplicaId};

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
    /// What it holds of each group that the machine hosts.
    groups: Vec<OfGroup>,
}

/// The records of one group, which have numbers of their own.
struct OfGroup {
    appended: Lsn,
    /// The last record of the commit that is under way.
    committing: Lsn,
    gate: Gate<Held>,
}

impl Disk {
    pub(super) fn new(durability: Durability, fsync: Duration, groups: usize) -> Disk {
        let group = || OfGroup { appended: Lsn::ZERO, committing: Lsn::ZERO, gate: Gate::new(Lsn::ZERO) };
        let groups = (0..groups).map(|_| group()).collect();
        Disk { durability, fsync, commits: false, waits: false, groups }
    }

    pub(super) fn append(&mut self, at: usize, record: &LogRecord, lsn: Lsn) {
        self.groups[at].appended = lsn;
        self.waits |= !self.fsync.is_zero() && self.durability.syncs(record.keep());
    }

    /// The last durable record of each group.
    pub(super) fn durable(&self) -> Vec<Lsn> {
        self.groups.iter().map(|group| group.gate.through()).collect()
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
    pub(super) fn send(&mut self, at: usize, after: Lsn, message: Held) -> Option<Held> {
        self.groups[at].gate.send(after, message)
    }

    /// A message whose record is durable, and the place of its group.
    pub(super) fn release(&mut self) -> Option<(usize, Held)> {
        self.groups.iter_mut().enumerate().find_map(|(at, group)| Some((at, group.gate.leave()?.1)))
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
        disk.append(0, &record, Lsn(1));
        disk.append(1, &record, Lsn(1));
        assert_eq!(disk.commit(), Some(Duration::from_millis(8)));
        disk.append(0, &record, Lsn(2));
        assert_eq!(disk.commit(), None, "one commit at a time");
        for (at, after) in [(0, 2), (1, 1)] {
            assert!(disk.send(at, Lsn(after), message(at)).is_none());
        }
        assert!(disk.send(0, Lsn::ZERO, message(9)).is_some(), "it rests on no record");
        disk.committed();
        assert_eq!(disk.durable(), [Lsn(1), Lsn(1)]);
        let released: Vec<_> = std::iter::from_fn(|| disk.release()).map(|(at, held)| (at, held.2)).collect();
        assert_eq!(released, [(1, 1)], "the other one waits for the next commit");
        assert_eq!(disk.commit(), Some(Duration::from_millis(8)));
    }
}
