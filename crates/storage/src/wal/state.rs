//! `log.state`: how the previous life of the log ended, and which loss is not yet made good.
//!
//! The log itself cannot say that it was emptied, kept in memory, or lost with the machine's memory; this small
//! file beside the segments does. It is replaced when the log is opened and when it is closed, never in between.

use std::{ops::Range, path::Path};

use synod_wire::{ClusterId, Format, Incarnation, Lsn, ReplicaId};

use super::list::Listed;
use crate::{Durability, Ending, Identity, Loss, StorageError, disk::Disk, fields::Fields};

pub(crate) const FILE_NAME: &str = "log.state";
const TITLE: &str = "synod log state";
pub(crate) const FORMAT: Format = Format::first(3);

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    pub identity: Identity,
    /// How the life that wrote this made its records durable.
    pub durability: Durability,
    /// The boot of the machine under which that life ran; empty if the system does not say.
    pub boot: String,
    /// The last record, if that life closed the log.
    pub closed_at: Option<Lsn>,
    /// The loss that is not made good.
    pub loss: Option<Loss>,
    /// The first segment of the log; the segments below it were set aside.
    pub begins: u64,
    /// Segments from this one on are from an attempt to begin a new log that was not finished.
    pub unfinished: Option<u64>,
    /// The boot of the machine under which an earlier life wrote the segments without waiting for the disk,
    /// if no life has made them durable since. A life in memory leaves the segments as they are.
    pub unsynced: Option<String>,
}

/// What the file says when the log is opened.
pub(crate) enum Previous {
    /// There is no such file.
    None,
    Read(LogState),
    Unreadable(String),
}

impl Previous {
    /// Segments from this one on are from an attempt to begin a new log that was not finished.
    pub(crate) fn unfinished(&self) -> u64 {
        match self {
            Previous::Read(state) => state.unfinished.unwrap_or(u64::MAX),
            _ => u64::MAX,
        }
    }

    /// The segments that make the log: the ones before them were set aside, the ones after them were never finished.
    pub(crate) fn segments(&self) -> Range<u64> {
        match self {
            // Earlier versions of the program noted attempts to begin a new log below what was set aside.
            Previous::Read(state) => state.begins..self.unfinished().max(state.begins),
            _ => 0..u64::MAX,
        }
    }

    /// Whether the log has no segment because a life in memory set all its segments aside and began none.
    /// `listed` is the list of its segments, and `is_empty` says that none of them is there. If so,
    /// `log.mark` speaks of records that were set aside.
    pub(crate) fn is_set_aside(&self, listed: &Listed, is_empty: bool) -> bool {
        let none_listed = matches!(listed, Listed::Read(_)) && listed.within(self.segments()).is_empty();
        is_empty && none_listed && self.segments().start > 0
    }

    /// The last record, if the log was closed in good order.
    pub(crate) fn closed_at(&self) -> Option<Lsn> {
        match self {
            Previous::Read(state) => state.closed_at,
            _ => None,
        }
    }

    /// Whether the machine went down, before the boot `boot`, under a life that did not wait for the disk
    /// ([`LogState::lost_unsynced`]).
    pub(crate) fn lost_unsynced(&self, boot: &str) -> bool {
        matches!(self, Previous::Read(state) if state.lost_unsynced(boot))
    }

    /// Whether no life of the replica has begun to write a log.
    pub(crate) fn is_unborn(&self) -> bool {
        match self {
            Previous::None => true,
            Previous::Read(state) => state.identity.incarnation == Incarnation(0),
            Previous::Unreadable(_) => false,
        }
    }

    /// The replica that the log belongs to, and the life that wrote it.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self {
            Previous::Read(state) => Some(state.identity),
            _ => None,
        }
    }
}

impl LogState {
    /// The state of a log that a life begins to write now.
    pub(crate) fn opened(identity: Identity, durability: Durability, boot: String) -> LogState {
        let (closed_at, loss, unfinished, unsynced) = (None, None, None, None);
        LogState { identity, durability, boot, closed_at, loss, begins: 0, unfinished, unsynced }
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
        if !self.durability.may_restart() {
            return Some(Loss::Stopped);
        }
        if !self.durability.keeps_votes(Ending::Process) {
            // If an earlier life noted that the replica must not start again, that stays so.
            return Some(self.loss.clone().filter(|loss| *loss == Loss::Stopped).unwrap_or(Loss::Memory));
        }
        let by_reboot = self.lost_unsynced(boot).then_some(Loss::Reboot);
        self.loss.clone().or(by_reboot)
    }

    /// The boot of the machine under which the segments were written without waiting for the disk; `None` if they are
    /// durable.
    pub(crate) fn unsynced_since(&self) -> Option<&str> {
        let ends = [Ending::Process, Ending::Machine];
        let by_this_life =
            ends.map(|end| self.durability.keeps_votes(end)) == [true, false] && self.closed_at.is_none();
        self.unsynced.as_deref().or(by_this_life.then_some(&self.boot))
    }

    /// Whether the machine went down, before the boot `boot`, under a life that did not wait for the disk.
    pub(crate) fn lost_unsynced(&self, boot: &str) -> bool {
        self.unsynced_since().is_some_and(|since| since.is_empty() || since != boot)
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
        if let Some(boot) = &self.unsynced {
            fields.set("unsynced", boot);
        }
        let (loss, detail) = match &self.loss {
            None => ("none", ""),
            Some(Loss::Memory) => ("memory", ""),
            Some(Loss::Stopped) => ("stopped", ""),
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
            "stopped" => Some(Loss::Stopped),
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
            unsynced: fields.text("unsynced").ok().map(str::to_owned),
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
            Some(Loss::Stopped),
            Some(Loss::Reboot),
            Some(Loss::LogMissing),
            Some(Loss::Quarantined(text.clone())),
            Some(Loss::StateUnreadable(text)),
        ];
        for loss in losses {
            for closed_at in [None, Some(Lsn(0)), Some(Lsn(9))] {
                for unsynced in [None, Some(String::new()), Some("b7".to_owned())] {
                    let loss = loss.clone();
                    let unfinished = Some(7);
                    let state = LogState { loss, closed_at, begins: 4, unfinished, unsynced, ..state() };
                    assert_eq!(LogState::from_fields(&state.to_fields()), Ok(state));
                }
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
