//! Whether the disk answers: a leader yields, and nobody tries to lead, while a record has been on its way to it for
//! longer than an election time-out, whatever the protocol and the election.

use std::time::Duration;

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

    /// Whether no record has been waiting for longer than `timeout`. A disk that hangs is noticed only once something
    /// is written to it.
    pub(crate) fn answers(&self, now: Time, timeout: Duration) -> bool {
        self.pending.is_none_or(|(_, since)| now.since(since) <= timeout)
    }
}
