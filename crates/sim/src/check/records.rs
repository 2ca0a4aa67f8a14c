//! The contents of records, whichever layer wrote them.

use std::ops::Range;

use synod_replica::LogRecord;
use synod_wire::{Batch, Slot};

/// Whether a record holds what a peer told.
pub fn is_learned(record: &LogRecord) -> bool {
    match record {
        LogRecord::Protocol { record, .. } => record.is_decision(),
        LogRecord::Learned { .. } | LogRecord::Decided { .. } => true,
        LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => false,
    }
}

/// The slots for which a record holds a batch; they are consecutive.
pub fn slots(record: &LogRecord) -> Range<u64> {
    let mut slots = 0..0;
    let mut holds = |slot: Slot| {
        slots.start = if slots.is_empty() { slot.0 } else { slots.start };
        slots.end = slot.0 + 1;
    };
    match record {
        LogRecord::Learned { slot, .. } | LogRecord::Decided { slot, .. } => holds(*slot),
        LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => {}
        LogRecord::Protocol { record, .. } => record.body().for_each_batch(&mut |slot, _| holds(slot)),
    }
    slots
}

/// The batches that a record holds, with their slots.
pub fn values(record: &LogRecord) -> Vec<(Slot, Batch)> {
    match record {
        LogRecord::Learned { slot, batch, .. } | LogRecord::Decided { slot, batch, .. } => {
            vec![(*slot, batch.clone())]
        }
        LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => Vec::new(),
        LogRecord::Protocol { record, .. } => {
            let mut values = Vec::new();
            record.body().for_each_batch(&mut |slot, batch| values.push((slot, batch.clone())));
            values
        }
    }
}
