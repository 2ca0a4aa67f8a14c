//! The records that a replica writes: those of its protocol, each with the epoch that it belongs to, and its own.

use bytes::Bytes;
use synod_consensus::Record;
use synod_wire::{Ballots, Batch, DecodeError, Encoded, Epoch, Keep, Reader, Slot, Writer};

use crate::Group;

/// A record of a replica's write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord {
    /// A record of the protocol.
    Protocol {
        /// The epoch of the instance that wrote it.
        epoch: Epoch,
        /// The protocol's record.
        record: Record,
    },
    /// The replica entered an epoch. Everything before the epoch's first slot was decided when this was
    /// written, with the values that the log or a snapshot holds.
    Entered {
        /// The group as it is in this epoch.
        group: Group,
        /// Whether an earlier life may have voted in the epoch.
        amnesia: bool,
    },
    /// An epoch ended with this slot. This is written before `Entered` of the next epoch, whose protocol may
    /// replace the states of this epoch, and with them the ballots in which its slots were decided.
    Ended {
        /// The slot of the change that ended it.
        slot: Slot,
        /// The highest ballots of the epoch's slots through that one.
        ballots: Ballots,
    },
    /// A snapshot covers slots through this one, whose records may be gone. If that snapshot is lost, what it
    /// held has to come from other replicas before this replica takes part again.
    Trimmed(Slot),
    /// A replica that takes no part in ordering learned what was decided in a slot.
    Learned {
        /// The slot.
        slot: Slot,
        /// The ballots with which it was delivered.
        ballots: Ballots,
        /// The batch.
        batch: Batch,
    },
    /// An earlier log, of which records were lost, proves what was decided in a slot; see `salvage.rs`.
    Decided {
        /// The epoch of the decision, which counts if the slot belongs to this epoch.
        epoch: Epoch,
        /// The slot.
        slot: Slot,
        /// The ballots with which it was delivered, or could have been.
        ballots: Ballots,
        /// The batch.
        batch: Batch,
    },
}

const PROTOCOL: u8 = 1;
const ENTERED: u8 = 2;
const LEARNED: u8 = 3;
const TRIMMED: u8 = 4;
const ENDED: u8 = 5;
const DECIDED: u8 = 6;

/// Protocols number their states from 1.
const STATE_ENTERED: u8 = 200;
const STATE_TRIMMED: u8 = 201;

/// About the most bytes that everything except batches takes in a record.
const OTHER_BYTES: u64 = 256;

impl LogRecord {
    /// About how many bytes the record takes in memory while it waits to be written.
    pub(crate) fn weight(&self) -> u64 {
        let batches = match self {
            LogRecord::Protocol { record, .. } => record.batch_bytes(),
            LogRecord::Learned { batch, .. } | LogRecord::Decided { batch, .. } => batch.bytes().len() as u64,
            LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Trimmed(_) => 0,
        };
        batches + OTHER_BYTES
    }

    /// How long the log must keep the record. The states of an older epoch need not be kept: that epoch is
    /// over, and only what it decided still counts.
    #[must_use]
    pub fn keep(&self) -> Keep {
        match self {
            LogRecord::Protocol { record, .. } => record.keep(),
            LogRecord::Entered { .. } => Keep::State(STATE_ENTERED),
            LogRecord::Trimmed(_) => Keep::State(STATE_TRIMMED),
            LogRecord::Learned { slot, .. }
            | LogRecord::Decided { slot, .. }
            | LogRecord::Ended { slot, .. } => Keep::Slot(*slot),
        }
    }

    /// The bytes for the log.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut writer = Writer::new();
        match self {
            LogRecord::Protocol { epoch, record } => {
                writer.u8(PROTOCOL);
                writer.u64(epoch.0);
                record.encode(&mut writer);
            }
            LogRecord::Entered { group, amnesia } => {
                writer.u8(ENTERED);
                writer.bool(*amnesia);
                writer.shared(&group.encode().to_bytes());
            }
            LogRecord::Ended { slot, ballots } => {
                writer.u8(ENDED);
                writer.slot(*slot);
                writer.ballots(*ballots);
            }
            LogRecord::Trimmed(slot) => {
                writer.u8(TRIMMED);
                writer.slot(*slot);
            }
            LogRecord::Learned { slot, ballots, batch } => {
                writer.u8(LEARNED);
                writer.slot(*slot);
                writer.ballots(*ballots);
                writer.batch(batch);
            }
            LogRecord::Decided { epoch, slot, ballots, batch } => {
                writer.u8(DECIDED);
                writer.u64(epoch.0);
                writer.slot(*slot);
                writer.ballots(*ballots);
                writer.batch(batch);
            }
        }
        writer.finish()
    }

    /// Reads what [`LogRecord::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are not a record of this version.
    pub fn decode(bytes: Bytes) -> Result<LogRecord, DecodeError> {
        let mut reader = Reader::new(bytes);
        let record = match reader.u8("record")? {
            PROTOCOL => {
                let epoch = Epoch(reader.u64("epoch")?);
                LogRecord::Protocol { epoch, record: Record::decode(&mut reader)? }
            }
            ENTERED => {
                let amnesia = reader.bool("amnesia")?;
                LogRecord::Entered { group: Group::decode(reader.bytes("group")?)?, amnesia }
            }
            ENDED => LogRecord::Ended { slot: reader.slot("slot")?, ballots: reader.ballots("ballots")? },
            TRIMMED => LogRecord::Trimmed(reader.slot("trimmed")?),
            LEARNED => LogRecord::Learned {
                slot: reader.slot("slot")?,
                ballots: reader.ballots("ballots")?,
                batch: reader.batch("batch")?,
            },
            DECIDED => LogRecord::Decided {
                epoch: Epoch(reader.u64("epoch")?),
                slot: reader.slot("slot")?,
                ballots: reader.ballots("ballots")?,
                batch: reader.batch("batch")?,
            },
            value => return Err(DecodeError::Undefined { field: "record", value: value.into() }),
        };
        reader.finish()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::Options;
    use synod_wire::{Ballot, ReplicaId};

    /// One of each kind.
    fn records() -> Vec<LogRecord> {
        let ballot = Ballot { round: 5, replica: ReplicaId(2) };
        let group = Group::of(&Options::default(), [ReplicaId(1), ReplicaId(2)]);
        vec![
            LogRecord::Protocol {
                epoch: Epoch(3),
                record: synod_consensus::multipaxos::Record::Promised(ballot).into(),
            },
            LogRecord::Entered { group, amnesia: true },
            LogRecord::Ended { slot: Slot(8), ballots: Ballots::both(ballot) },
            LogRecord::Trimmed(Slot(7)),
            LogRecord::Learned { slot: Slot(4), ballots: Ballots::both(ballot), batch: Batch::noop() },
            LogRecord::Decided {
                epoch: Epoch(2),
                slot: Slot(4),
                ballots: Ballots::both(ballot),
                batch: Batch::noop(),
            },
        ]
    }

    #[test]
    fn every_byte_is_where_earlier_versions_look_for_it() {
        let lines = records().into_iter().map(|record| (format!("{record:?}"), record.encode().to_bytes()));
        crate::fixed::check("records", include_str!("fixed/records.txt"), lines);
    }

    #[test]
    fn records_survive_the_disk() {
        for record in records() {
            assert_eq!(LogRecord::decode(record.encode().to_bytes()), Ok(record));
        }
    }
}
