//! Setting damaged files aside and beginning a new log.

use synod_wire::{Encoded, GroupId, Lsn};

use super::{
    Keep, Wal,
    format::segment_number,
    open::{SET_ASIDE, set_aside},
    state::LogState,
    writer::Body,
};
use crate::{
    Loss, StorageError,
    disk::{file_names, sync_dir},
};

/// Records are copied into the new log in commits of about this many bytes.
const COMMIT_BYTES: usize = 8 << 20;

impl Wal {
    /// Begins a new log with the records in `keep`, under new and higher numbers but in their order, and sets
    /// all older files aside as `*.damaged`. Returns the number of the last record; the next one that is
    /// appended follows it.
    ///
    /// `keep` has the records that the caller still believes in, usually made of
    /// [`super::Recovered::records`]: they are written piece by piece, so what they share with these takes no
    /// memory of its own, but space on the disk. Every later start is told [`Loss::Quarantined`] until
    /// [`Wal::loss_made_good`]: this replica does not know any more what the damaged records promised.
    ///
    /// Either all of it happens or, if the process ends in between, nothing.
    ///
    /// # Errors
    /// The disk failed or is full; the log is then failed.
    ///
    /// # Panics
    /// If the log was not found damaged when it was opened.
    pub fn quarantine(
        &mut self,
        keep: impl IntoIterator<Item = (GroupId, Keep, Encoded)>,
    ) -> Result<Lsn, StorageError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let (damage, found) = self.damage.take().expect("only a damaged log is set aside");
        let done = self.begin_afresh(keep, damage.to_string(), found);
        if let Err(error) = &done {
            self.failure = Some(error.clone());
        }
        done.map(|()| self.durable)
    }

    fn begin_afresh(
        &mut self,
        keep: impl IntoIterator<Item = (GroupId, Keep, Encoded)>,
        reason: String,
        found: LogState,
    ) -> Result<(), StorageError> {
        self.pending.clear();
        self.pending_bytes = 0;
        let names = file_names(&*self.disk, &self.dir)?;
        // The number must not be that of a segment that was set aside before, which would be overwritten when
        // this one is set aside, nor that of a missing one: that is on the list until this is finished.
        let numbers = names.iter().filter_map(|name| segment_number(name.trim_end_matches(SET_ASIDE)));
        let last = numbers.chain(self.listed.keys().copied()).max();
        let first = last.map_or(1, |last| last + 1).max(self.state.begins);
        let old: Vec<_> = names.into_iter().filter(|name| segment_number(name).is_some()).collect();

        self.state.loss = Some(Loss::Quarantined(reason));
        // From here until `begins` is written, a restart removes what is written below. It has to find the
        // damage again, so all that tells damage from a torn end stays as it was: where the log was closed,
        // and how it was written.
        let (identity, loss, unfinished) = (self.identity, self.state.loss.clone(), Some(first));
        LogState { identity, loss, unfinished, ..found }.write(&*self.disk, &self.dir)?;

        self.states.clear();
        self.last_state = Lsn::ZERO;
        self.appended = self.durable;
        if self.options.durability.writes() {
            self.files = Some(self.first_files(first, self.durable.next(), self.listed.clone())?);
        }
        let (mut records, mut promises) = (0_u64, 0_u64);
        for (group, keep, record) in keep {
            records += 1;
            promises += u64::from(matches!(keep, Keep::State(_)));
            self.push(group, keep, Body::Encoded(record));
            if self.pending_bytes >= COMMIT_BYTES {
                self.commit()?;
            }
        }
        self.commit()?;
        self.sync_everything()?;
        self.synced = self.durable;

        self.state.begins = first;
        self.state.unsynced = None;
        self.state.write(&*self.disk, &self.dir)?;
        for name in &old {
            set_aside(&*self.disk, &self.dir.join(name))?;
        }
        sync_dir(&*self.disk, &self.dir)?;
        tracing::warn!(records, promises, segment = first, "began a fresh log");
        Ok(())
    }
}
