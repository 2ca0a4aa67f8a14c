//! `log.state`: how the previous life of the log ended, and what is not yet made good.
//!
//! The log itself cannot say that it was emptied, kept in memory, or lost with the machine's memory; this small
//! file beside the segments does. It is replaced when the log is opened and closed, never in between.

use std::{ops::Range, path::Path};

use synod_wire::{ClusterId, Format, Incarnation, Lsn, ReplicaId};

use crate::{Durability, Identity, Loss, StorageError, disk::Disk, fields::Fields};

pub(crate) const FILE_NAME: &str = "log.state";
const TITLE: &str = "synod log state";
const FORMAT: Format = Format::first(3);

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    pub identity: Identity,
    /// How the current or last life wrote.
    pub durability: Durability,
    /// Which boot of the machine that life belongs to; empty if the system does not say.
    pub boot: String,
    /// The last record, if that life closed the log.
    pub closed_at: Option<Lsn>,
    /// What is not made good.
    pub loss: Option<Loss>,
    /// Segments below this one were set aside.
    pub begins: u64,
    /// Segments from this one on are from an attempt to begin afresh that was not finished.
    pub unfinished: Option<u64>,
}

/// What the file says when a log is opened.
pub(crate) enum Previous {
    /// There is no such file.
    None,
    Read(LogState),
    Unreadable(String),
}

impl Previous {
    /// The segments that make the log: those before were set aside, those behind were never finished.
    pub(crate) fn segments(&self) -> Range<u64> {
        match self {
            Previous::Read(state) => state.begins..state.unfinished.unwrap_or(u64::MAX),
            _ => 0..u64::MAX,
        }
    }

    /// The last record, if the log was closed in good order.
    pub(crate) fn closed_at(&self) -> Option<Lsn> {
        match self {
            Previous::Read(state) => state.closed_at,
            _ => None,
        }
    }

    /// See [`LogState::lost_unsynced`].
    pub(crate) fn lost_unsynced(&self, boot: &str) -> bool {
        matches!(self, Previous::Read(state) if state.lost_unsynced(boot))
    }

    /// Whose it is, and the life that wrote it.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self {
            Previous::Read(state) => Some(state.identity),
            _ => None,
        }
    }
}

impl LogState {
    /// The state of a log that begins to be written now.
    pub(crate) fn opened(identity: Identity, durability: Durability, boot: String) -> LogState {
        LogState { identity, durability, boot, closed_at: None, loss: None, begins: 0, unfinished: None }
    }

    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Previous, StorageError> {
        let path = dir.join(FILE_NAME);
        let fields = match Fields::read(disk, &path)? {
            None => return Ok(Previous::None),
            Some(Err(reason)) => {
                return Ok(Previous::Unreadable(format!("{} is damaged: {reason}", path.display())));
            }
            Some(Ok(fields)) => fields,
        };
        let malformed = |reason: String| StorageError::Malformed { path: path.clone(), reason };
        fields.check_version(&path, &FORMAT)?;
        LogState::from_fields(&fields).map(Previous::Read).map_err(malformed)
    }

    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
        self.to_fields().write(disk, &dir.join(FILE_NAME), TITLE)
    }

    /// What the previous life may have forgotten, given that a new one begins on the boot `boot`.
    pub(crate) fn loss_at_restart(&self, boot: &str) -> Option<Loss> {
        match self.durability {
            Durability::Memory => Some(Loss::Memory),
            _ if self.lost_unsynced(boot) => Some(self.loss.clone().unwrap_or(Loss::Reboot)),
            _ => self.loss.clone(),
        }
    }

    /// Whether the machine went down, before the boot `boot`, under a life that did not wait for the disk.
    pub(crate) fn lost_unsynced(&self, boot: &str) -> bool {
        let rebooted = self.boot.is_empty() || self.boot != boot;
        self.durability == Durability::Async && self.closed_at.is_none() && rebooted
    }

    fn to_fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.set_version(&FORMAT);
        fields.set("cluster", self.identity.cluster);
        fields.set("replica", self.identity.replica.0);
        fields.set("birth", format_args!("{:016x}", self.identity.birth));
        fields.set("incarnation", self.identity.incarnation);
        fields.set("durability", self.durability);
        fields.set("boot", &self.boot);
        fields.set("begins", self.begins);
        fields.set("unfinished", self.unfinished.map_or("no".to_owned(), |segment| segment.to_string()));
        fields.set("closed_at", self.closed_at.map_or("open".to_owned(), |lsn| lsn.to_string()));
        let (loss, detail) = match &self.loss {
            None => ("none", ""),
            Some(Loss::Memory) => ("memory", ""),
            Some(Loss::Reboot) => ("reboot", ""),
            Some(Loss::LogMissing) => ("log-missing", ""),
            Some(Loss::Quarantined(detail)) => ("quarantined", detail.as_str()),
            Some(Loss::StateUnreadable(detail)) => ("state-unreadable", detail.as_str()),
        };
        fields.set("loss", loss);
        fields.set("loss_detail", detail);
        fields
    }

    fn from_fields(fields: &Fields) -> Result<LogState, String> {
        let optional = |key: &str, none: &str| match fields.text(key)? {
            text if text == none => Ok(None),
            _ => fields.parse::<u64>(key).map(Some),
        };
        let detail = fields.text("loss_detail")?.to_owned();
        let loss = match fields.text("loss")? {
            "none" => None,
            "memory" => Some(Loss::Memory),
            "reboot" => Some(Loss::Reboot),
            "log-missing" => Some(Loss::LogMissing),
            "quarantined" => Some(Loss::Quarantined(detail)),
            "state-unreadable" => Some(Loss::StateUnreadable(detail)),
            other => return Err(format!("\"loss = {other}\" is not known")),
        };
        Ok(LogState {
            identity: Identity {
                cluster: ClusterId(fields.hex("cluster")?),
                replica: ReplicaId(fields.parse("replica")?),
                birth: fields.hex("birth")?,
                incarnation: Incarnation(fields.parse("incarnation")?),
            },
            durability: fields.parse("durability")?,
            boot: fields.text("boot")?.to_owned(),
            closed_at: optional("closed_at", "open")?.map(Lsn),
            loss,
            begins: fields.parse("begins")?,
            unfinished: optional("unfinished", "no")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> LogState {
        let identity = Identity {
            cluster: ClusterId(0xab),
            replica: ReplicaId(2),
            birth: 5,
            incarnation: Incarnation(3),
        };
        LogState::opened(identity, Durability::Sync, "b0".to_owned())
    }

    #[test]
    fn every_state_comes_back() {
        let text = "segment 3 at byte 40: a = b".to_owned();
        let losses = [
            None,
            Some(Loss::Memory),
            Some(Loss::Reboot),
            Some(Loss::LogMissing),
            Some(Loss::Quarantined(text.clone())),
            Some(Loss::StateUnreadable(text)),
        ];
        for loss in losses {
            for closed_at in [None, Some(Lsn(0)), Some(Lsn(9))] {
                let state =
                    LogState { loss: loss.clone(), closed_at, begins: 4, unfinished: Some(7), ..state() };
                assert_eq!(LogState::from_fields(&state.to_fields()), Ok(state));
            }
        }
    }

    #[test]
    fn memory_forgets_always_and_async_when_the_machine_went_down() {
        let with = |durability, closed_at| LogState { durability, closed_at, boot: "b1".into(), ..state() };
        assert_eq!(with(Durability::Memory, Some(Lsn(3))).loss_at_restart("b1"), Some(Loss::Memory));
        assert_eq!(with(Durability::Async, None).loss_at_restart("b1"), None);
        assert_eq!(with(Durability::Async, None).loss_at_restart("b2"), Some(Loss::Reboot));
        assert_eq!(with(Durability::Async, Some(Lsn(3))).loss_at_restart("b2"), None);
        assert_eq!(with(Durability::Sync, None).loss_at_restart("b2"), None);
        let sticky = LogState { loss: Some(Loss::LogMissing), ..with(Durability::Sync, Some(Lsn(3))) };
        assert_eq!(sticky.loss_at_restart("b1"), Some(Loss::LogMissing));
    }
}
