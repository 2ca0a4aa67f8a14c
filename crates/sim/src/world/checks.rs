//! What is checked of one group: what all its replicas together may say, write and deliver.

use synod_replica::Group;
use synod_wire::{Epoch, GroupId, Lsn, Slot};

use super::machine::Machine;
use crate::{
    check::{Batches, Checked, DecidedLog, Groups, Letters, Memory, Terms, Violation, Votes},
    situations::Situations,
};

/// The checks of one group, and the situations that it comes to.
#[derive(Debug)]
pub(super) struct GroupChecks {
    /// What the group was after each slot that changed it.
    pub(super) groups: Groups,
    pub(super) votes: Votes,
    pub(super) batches: Batches,
    pub(super) memory: Memory,
    pub(super) letters: Letters,
    pub(super) terms: Terms,
    /// What it has decided.
    pub(super) log: DecidedLog,
    pub(super) situations: Situations,
}

impl GroupChecks {
    /// A group that begins so, with this log, and at most this many machines.
    pub(super) fn new(first: &Group, capacity: usize, log: DecidedLog) -> GroupChecks {
        let mut checks = GroupChecks {
            groups: Groups::new(first.clone(), capacity),
            votes: Votes::new(capacity),
            batches: Batches::new(capacity),
            memory: Memory::new(capacity),
            letters: Letters::default(),
            terms: Terms::new(capacity),
            log,
            situations: Situations::new(first, capacity),
        };
        checks.epoch_begins(first);
        checks
    }

    /// An epoch begins with this group.
    pub(super) fn epoch_begins(&mut self, group: &Group) {
        self.votes.epoch_begins(group);
        self.batches.epoch_begins(group);
        self.memory.epoch_begins(group);
        self.terms.epoch_begins(group);
    }

    /// A life of a machine begins with what its disk has of the group, which its snapshot holds through slot `base`.
    /// Returns the epoch that the log says to have been entered last.
    pub(super) fn restarted(
        &mut self,
        of: usize,
        group: GroupId,
        machine: &Machine,
        base: Slot,
    ) -> Result<Epoch, Violation> {
        let Machine { disk, files, copied, .. } = machine;
        let records = || disk.records(group);
        self.votes.restarted(of, records(), disk.lost, disk.amnesia)?;
        self.batches.restarted(of, records());
        if !copied {
            // By the number that the replica and its peers know, which a copy may have used before.
            self.memory.restarted(of, files.incarnation.0, records(), disk.amnesia)?;
        }
        let entered = self.groups.restarted(of, records());
        self.terms.restarted(of, base, records(), disk.lost)?;
        Ok(entered)
    }

    /// What a replica wrote is durable through this record. Returns the epoch that it has entered by that, if it has
    /// entered one.
    pub(super) fn entered(&mut self, of: usize, lsn: Lsn) -> Option<Epoch> {
        self.groups.durable(of, lsn)
    }

    /// What a replica wrote is durable through this record.
    pub(super) fn durable(&mut self, of: usize, lsn: Lsn) -> Checked {
        self.votes.durable(of, lsn)?;
        self.batches.durable(of, lsn);
        self.memory.durable(of, lsn)?;
        self.terms.durable(of, lsn)
    }
}
