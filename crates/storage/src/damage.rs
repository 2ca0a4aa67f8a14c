//! What a log may have lost.

use std::fmt;

use synod_wire::Lsn;

/// Why promises that this replica gave may be missing from its log, although no file is damaged. The reason
/// stays recorded until [`crate::Wal::loss_made_good`], across any number of restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The previous life kept its records in memory only.
    Memory,
    /// An earlier life kept its records in memory only, and no other may follow it (durability `crash-stop`).
    Stopped,
    /// The previous life did not wait for the disk, and the machine went down before the log was closed.
    Reboot,
    /// Damaged files were set aside; the text says what was wrong with them.
    Quarantined(String),
    /// The identity has run before, but its log is gone.
    LogMissing,
    /// The file that would tell whether anything was lost is itself damaged.
    StateUnreadable(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Memory => write!(f, "the previous run kept its log in memory only"),
            Loss::Stopped => {
                write!(f, "an earlier run was the only one that it may have (durability crash-stop)")
            }
            Loss::Reboot => {
                write!(
                    f,
                    "the machine went down before the previous run's log was written (durability async or view)"
                )
            }
            Loss::Quarantined(why) => write!(f, "damaged log files were set aside: {why}"),
            Loss::LogMissing => write!(f, "this replica has run before, but its log is gone"),
            Loss::StateUnreadable(why) => write!(f, "it is unknown how the previous run ended: {why}"),
        }
    }
}

/// Corruption that is not a torn tail: something that was once durable cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The damaged places, in log order; never empty.
    pub spots: Vec<DamageSpot>,
    /// Whether the latest record of every [`crate::Keep::State`] key is known to be among the records that
    /// were read. If so, promises survived and only slots may be missing.
    pub state_intact: bool,
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamageSpot {
    /// Sequence number of the segment.
    pub segment: u64,
    /// The offset in the segment's file, in bytes.
    pub offset: u64,
    /// The lowest record number that may be lost here. If it is [`Lsn::ZERO`] and `last_lost` is zero too, no
    /// numbered record is lost, only a restated one.
    pub first_lost: Lsn,
    /// The highest record number that may be lost here.
    pub last_lost: Lsn,
    /// What was found there.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, spot) in self.spots.iter().enumerate() {
            if i > 0 {
                write!(f, "; ")?;
            }
            write!(f, "segment {} at byte {}: {}", spot.segment, spot.offset, spot.reason)?;
            if spot.last_lost > Lsn::ZERO {
                write!(f, " (records {} to {})", spot.first_lost, spot.last_lost)?;
            }
        }
        write!(f, "; promises {}", if self.state_intact { "are intact" } else { "may be lost" })
    }
}
