//! The one log of a group that all its replicas must show.
//!
//! The first replica that delivers a slot fixes its batch here. Every other delivery is compared with it.

use std::{collections::HashSet, fmt};

use bytes::Bytes;
use synod_consensus::{Bug, ProtocolKind};
use synod_replica::Group;
use synod_wire::{Batch, CommandKind, Epoch, Slot};

use super::invariant::{Checked, Invariant, Violation, demand};
use crate::backup;

/// What one group has decided, and the group after that.
#[derive(Debug)]
pub struct DecidedLog {
    /// The slot after which the group begins: it stands for a backup, if it is not 0.
    begins: Slot,
    /// The batch of slot 1, 2, and so on, with the epoch and the protocol that decided it.
    batches: Vec<(Batch, Epoch, ProtocolKind)>,
    group: Group,
    /// The payloads that clients have submitted.
    submitted: HashSet<Bytes>,
    changes_wrongly: Option<Bug>,
    /// Whether the group is merged with others. Only such a group orders skips.
    is_merged: bool,
}

impl DecidedLog {
    /// The empty log of a group that begins so, and may be merged with others.
    #[must_use]
    pub fn new(group: Group, is_merged: bool) -> DecidedLog {
        DecidedLog {
            begins: Slot::ZERO,
            batches: Vec::new(),
            group,
            submitted: HashSet::new(),
            changes_wrongly: None,
            is_merged,
        }
    }

    /// A slot stands for a backup: it has its place, and nobody may deliver what stands there.
    pub fn begin_with_backup(&mut self) {
        self.batches.push((Batch::noop(), self.group.epoch, self.group.protocol));
        self.begins = backup::SLOT;
    }

    /// Changes groups as replicas with this planted bug do.
    #[cfg(feature = "planted-bugs")]
    pub fn change_wrongly(&mut self, bug: Bug) {
        self.changes_wrongly = Some(bug);
    }

    /// The last slot that some replica has delivered.
    #[must_use]
    pub fn last(&self) -> Slot {
        Slot(self.batches.len() as u64)
    }

    /// The group after the last slot.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The epoch that decided a slot, or would decide it now.
    #[must_use]
    pub fn epoch(&self, slot: Slot) -> Epoch {
        self.batches.get(index_of(slot)).map_or(self.group.epoch, |(_, epoch, _)| *epoch)
    }

    /// The protocol that decided a slot, or would decide it now.
    #[must_use]
    pub fn protocol(&self, slot: Slot) -> ProtocolKind {
        self.batches.get(index_of(slot)).map_or(self.group.protocol, |(_, _, protocol)| *protocol)
    }

    /// Whether batches are ordered by reference now.
    #[must_use]
    pub fn disseminates(&self) -> bool {
        self.group.disseminates()
    }

    /// A client submits a command.
    pub fn submitted(&mut self, payload: &Bytes) {
        self.submitted.insert(payload.clone());
    }

    /// A replica delivers a slot. Returns whether it is the first one that does.
    pub fn delivered(
        &mut self,
        who: impl fmt::Display,
        slot: Slot,
        batch: &Batch,
    ) -> Result<bool, Violation> {
        demand(slot > self.begins, Invariant::BackupUnordered, || {
            format!("{who} delivers slot {slot}, which stands for the backup that the group begins with")
        })?;
        if let Some((known, ..)) = self.batches.get(index_of(slot)) {
            demand(known == batch, Invariant::Agreement, || {
                format!("{who} delivers a batch in slot {slot} that is not the one delivered there before")
            })?;
            return Ok(false);
        }
        demand(slot == self.last().next(), Invariant::DeliveryOrder, || {
            format!("{who} delivers slot {slot}; nobody has delivered {}", self.last().next())
        })?;
        self.is_valid(&who, slot, batch)?;
        self.batches.push((batch.clone(), self.group.epoch, self.group.protocol));
        if let Some(Ok(group)) = self.group.after_with(slot, batch, self.changes_wrongly) {
            self.group = group;
        }
        Ok(true)
    }

    /// The reference has executed the last slot: the log and execution make the same group, with the same members.
    ///
    /// # Errors
    /// They differ.
    pub fn agrees(&self, reference: &Group) -> Checked {
        demand(self.group == *reference, Invariant::OneGroup, || {
            format!(
                "after slot {} the log makes version {} of the group (epoch {}), the reference version {} (epoch {}){}",
                self.last(),
                self.group.version,
                self.group.epoch,
                reference.version,
                reference.epoch,
                if self.group.members == reference.members { "" } else { ", of other members" }
            )
        })
    }

    fn is_valid(&self, who: &dyn fmt::Display, slot: Slot, batch: &Batch) -> Checked {
        demand(batch.is_intact(), Invariant::Validity, || format!("the batch of slot {slot} is damaged"))?;
        for command in batch.commands() {
            // Replicas propose these commands themselves.
            let of_replica = match command.kind {
                CommandKind::AdvanceClock | CommandKind::Settle => true,
                CommandKind::Skip => self.is_merged,
                _ => false,
            };
            let known = of_replica || command.kind.is_change() || self.submitted.contains(&command.payload);
            demand(known, Invariant::Validity, || {
                format!("{who} delivers a command in slot {slot} that no client submitted")
            })?;
        }
        Ok(())
    }
}

fn index_of(slot: Slot) -> usize {
    usize::try_from(slot.0 - 1).expect("a short log")
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_wire::ReplicaId;

    use super::*;

    #[test]
    fn the_slot_of_a_backup_is_delivered_by_nobody() {
        let mut log = DecidedLog::new(Group::of(&Options::default(), (1..=3).map(ReplicaId)), false);
        log.begin_with_backup();
        assert_eq!(log.last(), backup::SLOT);
        let delivers = |log: &mut DecidedLog, slot| log.delivered("r1", Slot(slot), &Batch::noop());
        assert_eq!(delivers(&mut log, 1).unwrap_err().invariant, Invariant::BackupUnordered);
        assert!(delivers(&mut log, 2).expect("it is the first slot"));
        assert!(!delivers(&mut log, 2).expect("it is the same"));
        assert_eq!(log.last(), Slot(2));
    }

    #[test]
    fn the_log_and_the_reference_make_the_same_group() {
        let group = Group::of(&Options::default(), (1..=3).map(ReplicaId));
        let log = DecidedLog::new(group.clone(), false);
        log.agrees(&group).expect("nothing has changed it");
        let other = Group::of(&Options::default(), (1..=4).map(ReplicaId));
        let violation = log.agrees(&other).unwrap_err();
        assert_eq!(violation.invariant, Invariant::OneGroup);
        assert!(violation.detail.contains("other members"), "{violation}");
    }
}
