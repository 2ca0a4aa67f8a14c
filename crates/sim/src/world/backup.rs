//! A group that begins with the state of a backup, and what must hold of the slot that stands for it.

#[cfg(feature = "kv")]
use std::time::Duration;

use synod_replica::LogRecord;
use synod_wire::GroupId;

use super::{FIRST, World};
use crate::{
    backup,
    check::{Checked, Invariant, demand, slots},
    situations::MergeSituation,
};

impl World {
    /// The group begins: leases of the backup live from now on, since nothing of its clock was kept.
    pub(super) fn begin_with_backup(&mut self) -> Checked {
        if self.backup.is_none() {
            return Ok(());
        }
        self.coverage.backups += 1;
        if self.order.is_some() {
            self.merges.see(MergeSituation::BeginsWithBackup);
        }
        self.note_for_all(|| {
            let (first, slot) = (backup::SLOT.next(), backup::SLOT);
            format!(
                "backup    the group begins with slot {first}; slot {slot} stands for the state of a backup"
            )
        });
        #[cfg(feature = "kv")]
        self.decide_leases(backup::SLOT.0)?;
        #[cfg(feature = "kv")]
        self.leases.executed("a restore", backup::SLOT.0, Duration::ZERO, Duration::ZERO)?;
        Ok(())
    }

    /// What a replica writes of a protocol rests on the backup, for which no record stands.
    pub(super) fn rests_on_backup(&self, of: usize, group: GroupId, record: &LogRecord) -> Checked {
        if self.backup.is_none() || group != FIRST {
            return Ok(());
        }
        demand(!slots(record).contains(&backup::SLOT.0), Invariant::BackupUnordered, || {
            format!("r{} writes a record of slot {}, which stands for a backup", of + 1, backup::SLOT)
        })?;
        if matches!(record, LogRecord::Protocol { .. }) { self.has_backup(of) } else { Ok(()) }
    }

    /// A replica that takes part in its protocol has what the group began with: one without its snapshot does not begin
    /// with nothing.
    pub(super) fn has_backup(&self, of: usize) -> Checked {
        let Some(life) = self.machines[of].life.as_ref().filter(|_| self.backup.is_some()) else {
            return Ok(());
        };
        demand(life.hosted[FIRST].watch.delivered() >= backup::SLOT, Invariant::WholePrefix, || {
            format!(
                "r{} takes part in epoch {}, and lacks the backup",
                of + 1,
                life.replica(FIRST).group().epoch
            )
        })
    }
}
