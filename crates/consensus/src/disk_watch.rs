//! Whether the disk answers.

use synod_wire::{Lsn, Time};

/// Since when the oldest record has been on its way to the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskWatch {
    pending: Option<(Lsn, Time)>,
}

impl DiskWatch {
    /// A record was appended.
    pub(crate) fn appended(&mut self, lsn: Lsn, now: Time) {
        self.pending.get_or_insert((lsn, now));
    }

    /// `last` is the last record appended. If more came in while the oldest was written, they count from now:
    /// at most one write too late.
    pub(crate) fn durable(&mut self, lsn: Lsn, last: Lsn, now: Time) {
        if self.pending.is_some_and(|(oldest, _)| oldest <= lsn) {
            self.pending = (last > lsn).then_some((last, now));
        }
    }

    /// Since when the oldest record has been waiting, if one is.
    pub(crate) fn stalled_since(&self) -> Option<Time> {
        self.pending.map(|(_, since)| since)
    }
}
